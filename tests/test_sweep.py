"""Sweeps: every point once, the same table however often it is killed and whoever does the work."""

import csv
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from privproj_cli.main import exit_code

import privproj
from privproj.records import journal, workers
from privproj.records.sweep import COLUMNS, asked, columns_of, grid_from, swept

GRID = {
    "query": "delta",
    "mechanism": "m2",
    "epsilon": 1.0,
    "grid": {"dim": [64, 128], "rank": [4, 100], "noise_multiplier": [0.5, 1.0, 2.0, 1e-3]},
}
TEXT = """
query = "{query}"
mechanism = "m2"
epsilon = 1.0
dim = 512
[grid]
rank = [{ranks}]
noise_multiplier = [{noise}]
"""


def written(tmp_path, rows, query="delta"):
    path = tmp_path / "grid.toml"
    noise = ", ".join(f"{0.2 + 0.01 * i:.4g}" for i in range(rows // 4))
    path.write_text(TEXT.format(query=query, ranks="2, 4, 8, 16", noise=noise))
    return path


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_the_library_calls_in_the_order_of_the_loops(tmp_path):
    out = tmp_path / "out.csv"
    counts = swept(grid_from(GRID), out)
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


def test_a_finished_sweep_is_left_alone_and_another_one_is_not_overwritten(tmp_path):
    out = tmp_path / "out.csv"
    first = swept(grid_from(GRID), out)
    before = out.read_bytes(), out.stat().st_mtime_ns
    assert swept(grid_from(GRID), out) == first and (out.read_bytes(), out.stat().st_mtime_ns) == before
    for other in ({**GRID, "grid": {"dim": [64], "rank": [4], "noise_multiplier": [1.0]}},):
        with pytest.raises(privproj.InvalidParameter, match="new file"):
            swept(grid_from(other), out)
    assert (out.read_bytes(), out.stat().st_mtime_ns) == before


def test_a_journal_of_another_grid_is_refused_and_kept(tmp_path):
    out = tmp_path / "out.csv"
    book = journal.Journal(f"{out}.journal", grid_from(GRID).title())
    book.add([0], asked([next(grid_from(GRID).tasks())[1]]))
    book.close()
    before = (tmp_path / "out.csv.journal").read_bytes()
    with pytest.raises(privproj.InvalidParameter, match="this very question"):
        swept(grid_from({**GRID, "epsilon": 2.0}), out)
    assert (tmp_path / "out.csv.journal").read_bytes() == before


def test_a_journal_cut_anywhere_gives_the_same_table(tmp_path):
    out, kept = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    grid = grid_from(GRID)
    swept(grid, out)
    whole = out.read_bytes()
    book = journal.Journal(kept, grid.title())
    for number, task in grid.tasks():
        book.add([number], asked([task]))
    book.close()
    content = kept.read_bytes()
    random.seed(3)
    for cut in (0, 1, len(content), *random.sample(range(len(content)), 25)):
        out.unlink(missing_ok=True)
        kept.write_bytes(content[:cut])
        swept(grid, out)
        assert out.read_bytes() == whole


def test_only_what_is_missing_is_asked(tmp_path):
    grid, calls = grid_from(GRID), []

    def counting(work, batches):
        for batch in batches:
            calls.extend(number for number, _ in batch)
            yield [number for number, _ in batch], work([task for _, task in batch])

    book = journal.Journal(tmp_path / "out.csv.journal", grid.title())
    tasks = list(grid.tasks())
    book.add([3, 7], asked([tasks[3][1], tasks[7][1]]))
    book.close()
    swept(grid, tmp_path / "out.csv", counting)
    assert sorted(calls) == [i for i in range(len(grid)) if i not in (3, 7)]


def test_two_sweeps_cannot_share_a_journal(tmp_path):
    book = journal.Journal(tmp_path / "out.csv.journal", grid_from(GRID).title())
    with pytest.raises(privproj.InvalidParameter, match="no other process"):
        swept(grid_from(GRID), tmp_path / "out.csv")
    book.close()


def killed_often(grid, out, times, options=()):
    """Run the command, killing it ``times`` times at random moments, until it ends."""
    line = [str(Path(sys.executable).with_name("privproj")), "sweep", str(grid), "-o", str(out), *options]
    kills = 0
    for _ in range(60):
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        if kills < times:
            time.sleep(random.uniform(0.6, 1.6))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        process.wait()
        if process.returncode == 0:
            return kills
    raise AssertionError("the sweep did not end")


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_a_sweep_killed_again_and_again_ends_with_the_same_table(tmp_path, options):
    grid = written(tmp_path, 1200)
    swept(grid_from(tomllib.loads(grid.read_text())), tmp_path / "whole.csv")
    kills = killed_often(grid, tmp_path / "out.csv", 3, options)
    assert kills >= 1 and (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_worker_that_dies_is_replaced(tmp_path):
    marker = tmp_path / "died"
    book = journal.Journal(tmp_path / "journal", {"of": "deaths"})
    found = journal.done(mortal, ((i, (str(marker), i)) for i in range(12)), book, workers.by_processes(2))
    book.close()
    assert marker.exists() and {i: row for i, (row,) in found.items()} == {i: str(i * i) for i in range(12)}


def mortal(tasks):
    for marker, i in tasks:
        if i == 5 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    return [[str(i * i)] for _, i in tasks]


def test_a_dask_cluster_that_loses_a_worker(tmp_path):
    distributed = pytest.importorskip("distributed")
    grid_path = written(tmp_path, 800)
    grid = grid_from(tomllib.loads(grid_path.read_text()))
    swept(grid, tmp_path / "whole.csv")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        seen = []

        def progress(count):
            seen.append(count)
            if len(seen) == 4:
                os.kill(pids[0], signal.SIGKILL)

        swept(grid, tmp_path / "out.csv", workers.by_dask(cluster.scheduler_address), progress)
    assert len(seen) > 4 and sum(seen) == len(grid)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_parquet_holds_the_same_numbers(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    grid = grid_from(GRID)
    swept(grid, tmp_path / "out.csv")
    swept(grid, tmp_path / "out.parquet")
    found = pyarrow.read_table(tmp_path / "out.parquet").to_pydict()
    rows = table(tmp_path / "out.csv")
    assert list(found) == columns_of(grid) == list(rows[0])
    assert [None if not row["value"] else float(row["value"]) for row in rows] == found["value"]
    assert swept(grid, tmp_path / "out.parquet") == swept(grid, tmp_path / "out.csv")


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
    ],
)
def test_a_grid_that_is_none_is_refused_before_anything_is_written(tmp_path, change, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({**GRID, **change}))
    assert exit_code(["sweep", str(path), "-o", str(tmp_path / "out.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and os.listdir(tmp_path) == ["grid.json"]


def test_bad_places_and_workers_are_refused(tmp_path, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    call = ["sweep", str(path), "-o"]
    assert exit_code([*call, str(tmp_path / "none" / "out.csv")]) == 2
    for extra in (["--workers", "0"], ["--workers", "2.5"], ["--workers", "2", "--dask", "tcp://127.0.0.1:1"]):
        assert exit_code([*call, str(tmp_path / "out.csv"), *extra]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_command_says_what_it_did(tmp_path, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    assert exit_code(["sweep", str(path), "-o", str(tmp_path / "out.csv"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["outcomes"]["invalid"] == 4 and "questions" in said.err


def test_every_row_has_every_column():
    assert all(len(row) == len(COLUMNS) for row in asked([task for _, task in grid_from(GRID).tasks()]))
