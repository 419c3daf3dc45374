"""The command ``privproj sweep``, and its agreement with queries of the command line."""

import json
import os
from pathlib import Path

import pytest
from contrib.sweep.grids import GRID
from privproj_cli.main import exit_code
from unit.accounting.test_config import ANSWERED, REJECTED, arguments_of
from unit.io.test_files import DEEP

import privproj
from privproj.accounting.query import build_result
from privproj.contrib.sweep.sweep import MOST_CORNERS, grid_from
from tests.differential.command_line_rules import call
from tests.differential.command_lines import Case

GRID_FILE = {"mechanism": "gaussian", "noise_multiplier": 3, "delta": 1e-5, "grid": {"steps": [1, 2]}}


def test_sweep_prints_outcomes(tmp_path, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    assert exit_code(["sweep", str(path), "-o", str(tmp_path / "out.csv"), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["outcomes"]["invalid"] == 4 and "16 queries" in output.err


def test_sweep_prints_assumptions_of_its_rows(run, tmp_path):
    """All that an answer of some row assumes or asks of the data, with the rows that it is about."""
    fixed = {
        "mechanism": "m2",
        "delta": 1e-5,
        "dim": 64,
        "rank": 4,
        "noise_multiplier": 1,
        "change_rank": 2,
        "steps": 5,
    }
    axes = {"bound": ["rank-free", "beta-tail"], "sampling_rate": [0.1, 1.0]}
    (tmp_path / "grid.json").write_text(json.dumps({**fixed, "grid": axes}))
    code, out, _ = run(f"sweep {tmp_path}/grid.json -o {tmp_path}/table.csv -v")
    output = " ".join(out.split())
    assert code == 0 and "assumes: (bound=beta-tail sampling_rate=0.1" in output
    found = json.loads(run(f"sweep {tmp_path}/grid.json -o {tmp_path}/again.csv --json")[1])
    requested, kept = (
        privproj.M2(dim=64, rank=4, noise_multiplier=1, change_rank=2),
        {"requirements": set(), "data_assumptions": set()},
    )
    for bound, run_of in (("rank-free", {"sampling_rate": 0.1}), ("beta-tail", {})):
        answer = privproj.epsilon(requested, delta=1e-5, bound=bound, steps=5, **run_of)
        kept["requirements"] |= set(answer.requirements)
        kept["data_assumptions"] |= set(answer.data_assumptions)
    assert all(text in output for sentences in kept.values() for text in sentences)
    assert all(set(found[name]) == sentences for name, sentences in kept.items())


def test_sweep_prints_requirements_by_bound(run, tmp_path):
    axes = {"bound": ["rank-free", "gaussian"], "rank": [4, 8, 16], "sampling_rate": [0.01, 0.1]}
    fixed = {"mechanism": "m2", "dim": 64, "noise_multiplier": 1, "steps": 5, "delta": 1e-5}
    (tmp_path / "grid.json").write_text(json.dumps({**fixed, "grid": axes}))
    _, out, _ = run(f"sweep {tmp_path}/grid.json -o {tmp_path}/table.csv")
    stated = " ".join(out.split("requires:")[1].split())
    assert "only m2.rank-free: fresh-projection, secret-seed" in stated and "poisson-sampling," in stated
    assert "rank=" not in stated and "sampling_rate=" not in stated


def points_of(query="epsilon", **given):
    """What a sweep of these axes looks at for assumptions: the questions at its corners, by where they are."""
    axes = {name: given.pop(name) for name in [n for n, value in given.items() if isinstance(value, list)]}
    data = {"mechanism": "gaussian", "noise_multiplier": 1, "query": query, **given, "grid": axes}
    return dict(grid_from({name: value for name, value in data.items() if name not in axes}).corners())


def test_corners_include_every_end_of_every_axis():
    axes = {"noise_multiplier": [1, 2, 3], "delta": [1e-3, 1e-4, 1e-5], "steps": [2, 5, 9], "group_size": [1, 2, 3]}
    axes |= {"sampling_rate": [0.1, 0.2, 0.3], "relation": ["add-remove", "zero-out"], "bound": ["analytic", "rdp"]}
    axes |= {"adaptive_clipping_sigma": [3, 4, 5]}
    axes |= {"discretization": [1e-3, 1e-4, 1e-5], "max_batch_size": [50, 60, 70], "dataset_size": [500, 600, 700]}
    output = " ".join(points_of(**axes))
    for name, values in axes.items():
        ends = values if isinstance(values[0], str) else (min(values), max(values))
        assert all(f"{name}={value}" in output for value in ends), name
    assert len(points_of(**axes)) == 2 ** len(axes) <= MOST_CORNERS


def test_corners_fall_back_to_valid_point():
    found = points_of(steps=10, delta=1e-5, sampling_rate=[-1.0, 0.5, 2.0], group_size=[2, 1])
    assert list(found) == ["sampling_rate=0.5 group_size=2"]


def test_corners_of_rate_and_steps_queries_are_runs():
    independently = "Each record is in each batch independently"
    for query, given in (("rate", {"steps": 10}), ("steps", {"sampling_rate": 0.1})):
        (composition, *_) = points_of(query, delta=1e-5, epsilon=[1, 2], **given).values()
        text = " ".join(build_result(composition, query, 1.0).requirements)
        assert independently in text and "do not depend on earlier outputs" in text


def sweep_of(keys):
    """Return the call that sweeps delta with these keys fixed."""
    content = json.dumps({**keys, "grid": {"delta": [1e-5, 1e-6]}}).encode()
    return call(Case(("sweep", "in.json", "-o", "out.csv"), {"in.json": content}))


@pytest.mark.parametrize("keys", REJECTED, ids=str)
def test_sweep_refuses_keys_that_command_line_refuses(keys):
    seen = sweep_of(keys)
    assert (seen.code, seen.err.count("\n"), seen.out) == (2, 1, "") and "in.json" in seen.err


@pytest.mark.parametrize("keys", ANSWERED, ids=str)
def test_sweep_value_equals_command_line_value(keys):
    value = json.loads(call(Case((*arguments_of(keys), "--json"))).out)["value"]
    assert sweep_of(keys).left["out.csv"].decode().splitlines()[1].split(",")[1] == repr(value)


def test_sweep_warns_of_delta_above_one_over_dataset_size():
    found = sweep_of({"mechanism": "gaussian", "noise_multiplier": 2, "dataset_size": 10**6})
    assert found.code == 0 and "below 1/N" in " ".join(found.left["out.csv"].decode().split())


def test_sweep_on_full_disk_names_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("grid.json").write_text(json.dumps(GRID_FILE))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert exit_code(["sweep", "grid.json", "-o", "out.csv"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "out.csv" in error and "No space left" in error and not Path("out.csv").exists()


def test_sweep_into_missing_folder_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("grid.json").write_text(json.dumps(GRID_FILE))
    assert exit_code(["sweep", "grid.json", "-o", "missing/out"]) == 2
    assert "missing/out" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["-", ""])
def test_sweep_output_needs_file_name(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path("grid.json").write_text(json.dumps(GRID_FILE))
    assert exit_code(["sweep", "grid.json", "-o", name]) == 2
    assert "a file name" in capsys.readouterr().err


@pytest.mark.parametrize("kind", DEEP)
def test_sweep_refuses_deeply_nested_files(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    ending, content = DEEP[kind]
    Path(f"in.{ending}").write_bytes(content)
    assert exit_code(["sweep", f"in.{ending}", "-o", "out"]) == 2
    assert "report it" not in capsys.readouterr().err


def test_sweep_names_doubled_keys():
    grid = '{"mechanism": "gaussian", "delta": 1e-5, "grid": {"steps": [1, 2], "noise_multiplier": [1], "steps": [3]}}'
    seen = call(Case(("sweep", "a.json", "-o", "o.csv"), {"a.json": grid.encode()}))
    assert seen.code == 2 and "'steps' appears twice" in seen.err
