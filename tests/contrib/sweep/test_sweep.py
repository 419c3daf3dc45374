"""Sweeps: every point once, the same table however often it is killed, cut or left by a worker."""

import csv
import dataclasses
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from functools import partial

import pytest
from contrib.sweep.grids import GRID, table, written
from helpers import needs
from privproj_cli.main import exit_code

import privproj
from privproj.contrib.sweep.sweep import grid_from, run_sweep
from privproj.errors import InvalidParameterError
from privproj.io.jobs import complete_rows, open_pool


def test_rows_are_library_calls_in_order_of_loops(tmp_path):
    out = tmp_path / "out.csv"
    counts = run_sweep(grid_from(GRID), out)
    rows = table(out)
    points = list(itertools.product(*GRID["grid"].values()))
    assert len(rows) == len(points) == sum(counts.values()) and not (tmp_path / "out.csv.journal").exists()
    for row, (dim, rank, noise) in zip(rows, points, strict=True):
        assert (row["dim"], row["rank"], row["noise_multiplier"]) == (str(dim), str(rank), repr(noise))
        if rank > dim:
            assert row["outcome"] == "invalid" and "rank" in row["note"] and row["value"] == ""
            continue
        found = privproj.delta(privproj.M2(dim=dim, rank=rank, noise_multiplier=noise), epsilon=1.0)
        assert row["outcome"] == found.outcome
        assert found.outcome != "ok" or float(row["value"]) == found.value
    assert counts["invalid"] == 4


def test_sweep_never_overwrites_a_finished_sweep(tmp_path):
    out = tmp_path / "out.csv"
    first = run_sweep(grid_from(GRID), out)
    before = out.read_bytes(), out.stat().st_mtime_ns
    assert run_sweep(grid_from(GRID), out) == first and (out.read_bytes(), out.stat().st_mtime_ns) == before
    axes = GRID["grid"]
    for other in (
        {**GRID, "grid": {"dim": [64], "rank": [4], "noise_multiplier": [1.0]}},
        {**GRID, "grid": {**axes, "noise_multiplier": [0.5, 1.0, 2.0, 2e-3]}},
        {**GRID, "grid": {**axes, "noise_multiplier": [*axes["noise_multiplier"], 3.0]}},
        {**GRID, "epsilon": 2.0},
        {**GRID, "grid": {name: axes[name] for name in reversed(axes)}},
    ):
        with pytest.raises(privproj.InvalidParameterError, match="new file"):
            run_sweep(grid_from(other), out)
    assert (out.read_bytes(), out.stat().st_mtime_ns) == before
    with pytest.raises(privproj.InvalidParameterError, match="new file"):
        run_sweep(grid_from(GRID), "/dev/zero")
    lines = before[0].decode().splitlines(keepends=True)
    *cells, _ = lines[-1].split(",")
    unknown = lines[-1].replace(table(out)[-1]["outcome"], "fine")
    for last in ("", ",".join(cells[:4]), ",".join(cells), lines[-1].strip() + ",1\n", unknown):
        out.write_text("".join([*lines[:-1], last]))
        with pytest.raises(privproj.InvalidParameterError, match="new file"):
            run_sweep(grid_from(GRID), out)


KILLED = """
import os, random, signal, sys
from privproj_cli.main import main

before_it, sync, size = int(sys.argv.pop(1)), os.fsync, 0

def sync_or_die(file):
    global before_it, size
    before_it -= 1
    if before_it < 0:
        os.ftruncate(file, random.randint(size, os.fstat(file).st_size))
        os.killpg(0, signal.SIGKILL)
    sync(file)
    size = os.fstat(file).st_size

os.fsync = sync_or_die
main()
"""
"""The command, which kills itself and its workers once so many batches are on the disk and a part of the next is."""


def killed_sweep(grid, out, batches, options=()):
    """Run the command until that moment; a batch has at most twice as many points as the one before it."""
    line = [sys.executable, "-c", KILLED, str(batches), "sweep", str(grid), "-o", str(out), *options]
    done = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    return done.returncode


@pytest.mark.full
@pytest.mark.parametrize("options", [("--workers", "2"), pytest.param((), marks=pytest.mark.slow)])
def test_sweep_killed_again_and_again_ends_with_same_table(tmp_path, options):
    grid, out = written(tmp_path, 400), tmp_path / "out.csv"
    run_sweep(grid_from(tomllib.loads(grid.read_text())), tmp_path / "whole.csv")
    for batches in (0, 3, 2):
        assert killed_sweep(grid, out, batches, options) == -signal.SIGKILL and not out.exists()
    assert len((tmp_path / "out.csv.journal").read_bytes().splitlines()) > 3
    assert exit_code(["sweep", str(grid), "-o", str(out), *options]) == 0
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_parquet_holds_same_numbers(tmp_path):
    pyarrow = needs("pyarrow.parquet")
    grid = grid_from(GRID)
    run_sweep(grid, tmp_path / "out.csv")
    run_sweep(grid, tmp_path / "out.parquet")
    found = pyarrow.read_table(tmp_path / "out.parquet").to_pydict()
    rows = table(tmp_path / "out.csv")
    assert list(found) == grid.names == list(rows[0])
    assert [None if not row["value"] else float(row["value"]) for row in rows] == found["value"]
    assert run_sweep(grid, tmp_path / "out.parquet") == run_sweep(grid, tmp_path / "out.csv")


@pytest.mark.parametrize(
    "change",
    [
        {"grid": None},
        {"grid": {}},
        {"grid": {"dim": []}},
        {"grid": {"dim": 64}},
        {"grid": {"epsilon": [1.0]}},
        {"grid": {"dim": [64], "colour": ["red"]}},
        {"colour": "red"},
        {"query": "meaning"},
        {"mechanism": "m3"},
        {"grid": {"dim": list(range(2, 5000)), "rank": list(range(1, 5000))}},
        {"grid": {name: list(range(2, 9999)) for name in ("dim", "rank", "steps", "columns", "change_rank")}},
    ],
)
def test_invalid_grid_is_rejected_before_writing(tmp_path, change, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({**GRID, **change}))
    assert exit_code(["sweep", str(path), "-o", str(tmp_path / "out.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and os.listdir(tmp_path) == ["grid.json"]


def test_invalid_output_and_workers_are_rejected(tmp_path, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    call = ["sweep", str(path), "-o"]
    assert exit_code([*call, str(tmp_path / "none" / "out.csv")]) == 2
    for extra in (["--workers", "0"], ["--workers", "2.5"], ["--workers", "2", "--dask", "tcp://127.0.0.1:1"]):
        assert exit_code([*call, str(tmp_path / "out.csv"), *extra]) == 2
    assert "Traceback" not in capsys.readouterr().err


def rows_of(grid, work=None):
    """The rows of a grid, which it computes itself or another one in its place."""
    return csv.reader((work or grid)(range(len(grid))).splitlines())


def test_every_row_has_every_column():
    grid = grid_from(GRID)
    assert all(len(row) == len(grid.names) for row in rows_of(grid))


GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 2}


@pytest.mark.parametrize(
    ("axes", "word"),
    [
        ({"steps": []}, "one or more distinct values"),
        ({"steps": 3}, "a list"),
        ({"steps": [3, 3]}, "one or more distinct values"),
        ({"steps": [3, 3.0]}, "one or more distinct values"),
        ({"steps": [3, "4"]}, "steps must be an integer"),
        ({"bound": ["rdp", "rd\np"]}, "without line breaks"),
        ({"steps": [True, 2]}, "steps must be an integer"),
        ({"noise_multiplier": [3]}, "omitted if"),
        ({"noise-multiplier": [3]}, "omitted if"),
        ({"sampling-rate": [0.1], "sampling_rate": [0.2]}, "sampling_rate must be given once"),
        ({"query": ["epsilon"]}, "unknown key 'query'"),
        ({"mechanism": ["m2"]}, "omitted if"),
        ({"epsilon": [1.0]}, "unknown key 'epsilon'"),
        ({"epochs": [1, 2]}, "batch_size"),
        ({"dim": [1, 2]}, "unknown key 'dim'"),
        ({}, "a table"),
    ],
)
def test_axes_of_sweep(axes, word):
    with pytest.raises(InvalidParameterError, match=word):
        grid_from({**GAUSSIAN, "delta": 1e-5, "grid": axes}, "g.toml")


def test_sweep_without_a_valid_point_is_rejected():
    fixed = {"mechanism": "m2", "noise_multiplier": 1, "delta": 1e-5}
    assert len(grid_from({**fixed, "grid": {"dim": [4, 8], "rank": [6, 9]}})) == 4
    with pytest.raises(InvalidParameterError, match="rank"):
        grid_from({**fixed, "grid": {"dim": [4, 8], "rank": [16, 9]}})


LARGE = {
    "query": "epsilon",
    "mechanism": "gaussian",
    "dataset_size": 1000,
    "grid": {
        "noise_multiplier": [0.5 + 0.1 * i for i in range(11)],
        "delta": [1e-300, 1e-5, 0.9],
        "steps": [1, 2],
        "relation": ["add-remove", "replace"],
    },
}
"""A grid that is evaluated by arrays, except its runs of two releases."""


def row_alone(grid, number):
    """The row of a point in a grid that has no other point, and so is too small for columns."""
    alone = dataclasses.replace(grid, axes={name: [value] for name, value in grid.point(number).items()})
    return alone(range(1))


@pytest.mark.parametrize("query", ["delta", "epsilon", "sigma"])
def test_rows_in_columns_are_library_calls_within_their_margins(query):
    axes = dict(LARGE["grid"])
    if query != "epsilon":
        axes["epsilon"] = [0.0, 1.0] if query == "delta" else [0.01, 0.1, 0.3, 0.5, 0.8, 1.0]
    for name in {"delta": ["delta"], "epsilon": [], "sigma": ["noise_multiplier"]}[query]:
        del axes[name]
    grid = grid_from({**LARGE, "query": query, "grid": axes})
    assert len(grid) >= 64
    differ = 0
    for number, one in enumerate(rows_of(grid)):
        (other,) = csv.reader([row_alone(grid, number)])
        one, other = (dict(zip(grid.names, row, strict=True)) for row in (one, other))
        for name in one:
            if name in ("value", "lower", "upper", "epsilon", "delta", "log10_delta", "noise_multiplier") and one[name]:
                differ += one[name] != other[name]
                assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-8)
            else:
                assert one[name] == other[name]
    assert differ


def test_chunks_and_workers_do_not_change_row():
    grid = grid_from(LARGE)
    points = range(len(grid))
    assert len(grid) > 64 and grid(points) == "".join(grid(points[i : i + 7]) for i in points[::7])
    assert grid(points[::-1]).splitlines()[::-1] == grid(points).splitlines()


def test_attack_risk_can_be_an_axis(tmp_path):
    risks = [0.005 * (i + 1) for i in range(70)]
    grid = {"query": "sigma", "mechanism": "gaussian", "grid": {"advantage": risks}}
    run_sweep(grid_from(grid), tmp_path / "out.csv")
    rows = table(tmp_path / "out.csv")
    assert [float(row["advantage"]) for row in rows] == risks
    for row in rows[::10]:
        found = privproj.sigma(privproj.Gaussian(), advantage=float(row["advantage"]))
        assert float(row["value"]) == found.value and row["epsilon"] == row["delta"] == ""


# --- the journal --------------------------------------------------------------------------------------


def journal_of(out):
    return out.with_name(f"{out.name}.journal")


def begin(grid, out, count):
    """A sweep that was killed once so many rows were on the disk."""
    journal_of(out).write_text(grid.head + grid(range(count)))


def test_journal_of_another_grid_is_rejected_and_kept(tmp_path):
    out = tmp_path / "out.csv"
    begin(grid_from(GRID), out, 1)
    before = journal_of(out).read_bytes()
    for change in ({"epsilon": 2.0}, {"grid": {**GRID["grid"], "rank": [4, 101]}}):
        with pytest.raises(privproj.InvalidParameterError, match="journal of the same query"):
            run_sweep(grid_from({**GRID, **change}), out)
    assert journal_of(out).read_bytes() == before and not out.exists()


def test_journal_cut_anywhere_gives_same_table(tmp_path):
    out, grid = tmp_path / "out.csv", grid_from(GRID)
    run_sweep(grid, out)
    whole = out.read_bytes()
    begin(grid, out, len(grid))
    content = journal_of(out).read_bytes()
    random.seed(3)
    for cut in (0, 1, len(content), *random.sample(range(len(content)), 25)):
        out.unlink(missing_ok=True)
        journal_of(out).write_bytes(content[:cut])
        run_sweep(grid, out)
        assert out.read_bytes() == whole


def test_resumed_sweep_computes_missing_points_only(tmp_path):
    grid, calls = grid_from(GRID), []

    @contextmanager
    def counting():
        def start(timed, work, numbers):
            calls.extend(numbers)
            return lambda: timed(work, numbers)

        yield start, 1

    begin(grid, tmp_path / "out.csv", 5)
    run_sweep(grid, tmp_path / "out.csv", counting)
    assert calls == [*range(5, len(grid))]


def test_two_sweeps_cannot_share_journal(tmp_path):
    grid, out = grid_from(GRID), tmp_path / "out.csv"
    other = complete_rows(lambda numbers: "row\n" * len(numbers), 3, journal_of(out), "others\n", open_pool, print)
    with other, pytest.raises(privproj.InvalidParameterError, match="no other process"):
        run_sweep(grid, out)
    assert journal_of(out).read_text() == "others\n" + 3 * "row\n"


# --- workers ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_dask_cluster_that_loses_worker(tmp_path):
    distributed = needs("distributed")
    grid_path = written(tmp_path, 240)
    grid = grid_from(tomllib.loads(grid_path.read_text()))
    run_sweep(grid, tmp_path / "whole.csv")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        seen = []

        def progress(count):
            seen.append(count)
            if len(seen) == 4:
                os.kill(pids[0], signal.SIGKILL)

        run_sweep(grid, tmp_path / "out.csv", partial(open_pool, 1, cluster.scheduler_address), progress)
    assert len(seen) > 4 and sum(seen) == len(grid)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize(("name", "expected"), [("t.xlsx", "a .csv or .parquet file"), ("none/t.csv", "in a folder")])
def test_sweep_rejects_output_that_it_cannot_write(tmp_path, name, expected):
    with pytest.raises(InvalidParameterError, match=f"--output must be {expected}"):
        run_sweep(grid_from(GRID), tmp_path / name)
