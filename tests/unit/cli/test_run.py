"""Run files and sweeps on the command line."""

import json

import pytest
from contrib.sweep.grids import GRID
from fuzz.laws import call
from fuzz.strategies import Case
from helpers import GAUSSIAN_PHASE, M2_PHASE, needs
from privproj_cli.main import exit_code

import privproj
from privproj.accounting.query import build_result
from privproj.contrib.sweep.sweep import MOST_CORNERS, grid_from
from privproj.io.files import as_toml, read_data
from privproj.io.run_file import from_data


def eps_of(*phases):
    return from_data({"phase": list(phases)}).epsilon(delta=1e-5).value


@pytest.mark.full
def test_run_files_on_the_command_line(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(as_toml([M2_PHASE, {**GAUSSIAN_PHASE, "planned": True, "name": "later"}]))
    assert exit_code(["run", str(file), "--delta", "1e-5", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["value"] == eps_of(M2_PHASE, GAUSSIAN_PHASE) and shown["mechanism"]["name"] == "run"
    out = tmp_path / "out.json"
    assert exit_code(["run", str(file), "--epsilon", "1", "--delta", "1e-5", "--calibrate", "-o", str(out)]) == 0
    assert exit_code(["run", str(out), "--delta", "1e-5", "--json"]) == 0
    capsys.readouterr()
    assert exit_code(["run", str(out), "--delta", "1e-5", "--json"]) == 0
    assert 0.9999 < json.loads(capsys.readouterr().out)["value"] <= 1.0
    assert exit_code(["remaining", str(file), "--epsilon", "1", "--delta", "1e-5"]) == 0
    assert "later" in capsys.readouterr().out
    assert exit_code(["remaining", str(file), "--epsilon", "0.01", "--delta", "1e-5"]) == 4
    for text in ("[[phase", "phase = 3", '[[phase]]\nmechanism = "m3"'):
        file.write_text(text)
        assert exit_code(["run", str(file), "--delta", "1e-5"]) == 2
        assert str(file) in capsys.readouterr().err
    assert exit_code(["run", str(tmp_path / "none.toml"), "--delta", "1e-5"]) == 2


GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 2}


def test_a_written_run_file_answers_as_the_one_it_came_from(tmp_path):
    phases = [{**GAUSSIAN, "steps": 9, "sampling_rate": 0.1}, {"mechanism": "m2", "layer": ["64x4@0.1", "32x4@0.9"],
              "clipping": "per-layer", "noise_multiplier": 2, "planned": True}]  # fmt: skip
    source = tmp_path / "a.toml"
    source.write_text(as_toml(phases, discretization=0.01))
    for ending in ("toml", "json"):
        target = tmp_path / f"b.{ending}"
        assert exit_code(["run", str(source), "--delta", "1e-5", "-o", str(target)]) == 0
        seen = [call(Case(("run", str(path), "--delta", "1e-5", "--json"))) for path in (source, target)]
        first, second = (json.loads(one.out) for one in seen)
        assert first["value"] == second["value"] and first["numerics"] == second["numerics"]


TREE = {"type": "SingleEpochTreeAggregationDpEvent", "noise_multiplier": 4.0, "step_counts": [8, 8]}


@pytest.mark.full
def test_commands_answer_a_run_with_events_or_refuse_in_one_line(tmp_path, capsys):
    file, out = tmp_path / "run.toml", tmp_path / "out.toml"
    file.write_text(as_toml([{"name": "tree", "event": TREE}, M2_PHASE], relation="zero-out"))
    assert exit_code(["run", str(file), "--delta", "1e-5", "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "tree: SingleEpochTreeAggregationDpEvent(noise_multiplier=4.0, step_counts=[8, 8]), once" in shown
    assert "bound rank-free)" in shown and "measured, not proved" in " ".join(shown.split())
    assert from_data(read_data(str(out))).as_dict() == from_data(read_data(str(file))).as_dict()
    out.write_text(as_toml([{"event": {"type": "ZCDpEvent", "rho": 0.1}}, M2_PHASE], relation="zero-out"))
    assert exit_code(["run", str(out), "--delta", "1e-5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "bound mixture-rdp)" in shown and "Renyi divergences at" in shown and "measured, not proved" in shown
    assert exit_code(["remaining", str(out), "--epsilon", "5", "--delta", "1e-5"]) == 0
    assert "more steps fit" in capsys.readouterr().out
    assert exit_code(["report", "run", str(file), "--delta", "1e-5"]) == 0
    assert ": SingleEpochTreeAggregationDpEvent(" in " ".join(capsys.readouterr().out.split())
    assert exit_code(["run", str(file), "--delta", "1e-5", "--epsilon", "1", "--calibrate"]) == 3
    found = capsys.readouterr()
    assert found.err.count("\n") == 1 and not found.out
    file.write_text(as_toml([{"event": {"type": "NonPrivateDpEvent"}}, M2_PHASE]))
    assert exit_code(["run", str(file), "--delta", "1e-5"]) == 4
    assert "no finite epsilon" in capsys.readouterr().out
    file.write_text(as_toml([{"event": {"type": "UnsupportedDpEvent"}}, M2_PHASE]))
    assert exit_code(["run", str(file), "--delta", "1e-5"]) == 3
    assert "UnsupportedDpEvent" in capsys.readouterr().err


@pytest.mark.extra
def test_a_run_with_events_is_not_certified(tmp_path, capsys):
    needs("flint")
    file = tmp_path / "run.toml"
    file.write_text(as_toml([{"name": "tree", "event": TREE}, M2_PHASE], relation="zero-out"))
    assert exit_code(["run", str(file), "--delta", "1e-5", "--certify"]) == 3
    found = capsys.readouterr()
    assert found.err.count("\n") == 1 and not found.out


@pytest.mark.parametrize("words", ["--advantage 0.1", "--tpr 0.02 --fpr 0.01"])
def test_a_run_file_is_calibrated_to_a_risk(tmp_path, words, capsys):
    source, target = tmp_path / "a.toml", tmp_path / "b.toml"
    source.write_text(as_toml([{**GAUSSIAN, "steps": 9, "sampling_rate": 0.1}, {**GAUSSIAN, "steps": 2}]))
    assert exit_code(["run", str(source), "--calibrate", *words.split(), "--json", "-o", str(target)]) == 0
    shown = json.loads(capsys.readouterr().out)
    wanted = shown["risk"].get("advantage") or shown["risk"]["tpr"]
    assert shown["quantity"] in ("advantage", "tpr") and 0.99 * wanted < shown["value"] <= wanted
    # what was written, asked back, and a risk without --calibrate
    assert exit_code(["run", str(target), "--epsilon", "0", "--json"]) == 0
    assert "advantage" not in words or json.loads(capsys.readouterr().out)["value"] <= wanted
    assert exit_code(["run", str(target), *words.split()]) == 2
    assert "--calibrate" in capsys.readouterr().err


@pytest.mark.parametrize("slack", ["", pytest.param("--delta 1e-5", marks=pytest.mark.full)])
def test_a_run_file_has_one_mu(tmp_path, slack, capsys):
    file = tmp_path / "run.toml"
    file.write_text(as_toml([{**GAUSSIAN, "steps": 9, "sampling_rate": 0.1}, {**GAUSSIAN, "steps": 2}]))
    assert exit_code(["run", str(file), "--gdp", *slack.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schedule = from_data(read_data(str(file)))
    assert found["value"] == privproj.gdp_mu(schedule, **({"delta": 1e-5} if slack else {})).value
    # at least that of the two releases on the whole data set, at most that of all on the whole data set
    each = 1.0 / GAUSSIAN["noise_multiplier"]
    assert 2**0.5 * each < found["value"] < 11**0.5 * each
    for epsilon in (0.5, 2.0):
        gaussian = privproj.delta(privproj.Gaussian(noise_multiplier=1.0 / found["value"]), epsilon=epsilon)
        assert schedule.delta(epsilon=epsilon).lower <= max(gaussian.value, found["delta"])
    assert exit_code(["run", str(file), "--gdp", *slack.split()]) == 0
    shown = capsys.readouterr().out
    assert "gdp mu = " in shown and "regret:" in shown
    for wrong in ("--epsilon 1", "--advantage 0.1", "--calibrate", "--certify"):
        assert exit_code(["run", str(file), "--gdp", *wrong.split()]) == 2
        assert "--gdp" in capsys.readouterr().err


# --- sweeps -------------------------------------------------------------------------------------------


def test_the_command_says_what_it_did(tmp_path, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    assert exit_code(["sweep", str(path), "-o", str(tmp_path / "out.csv"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["outcomes"]["invalid"] == 4 and "questions" in said.err


def test_a_sweep_says_what_its_numbers_take_for_granted(run, tmp_path):
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
    code, out, _ = run(f"sweep {tmp_path}/grid.json -o {tmp_path}/table.csv")
    said = " ".join(out.split())
    assert code == 0 and "promise: (bound=beta-tail sampling_rate=0.1" in said
    found = json.loads(run(f"sweep {tmp_path}/grid.json -o {tmp_path}/again.csv --json")[1])
    asked, kept = privproj.M2(dim=64, rank=4, noise_multiplier=1, change_rank=2), {"assumes": set(), "promises": set()}
    for bound, run_of in (("rank-free", {"sampling_rate": 0.1}), ("beta-tail", {})):
        answer = privproj.epsilon(asked, delta=1e-5, bound=bound, steps=5, **run_of)
        kept["assumes"] |= set(answer.assumes)
        kept["promises"] |= set(answer.promises)
    assert all(words in said for sentences in kept.values() for words in sentences)
    assert all(set(found[name]) == sentences for name, sentences in kept.items())


def asked_of(query="epsilon", **given):
    """What a sweep of these axes looks at for assumptions: the questions at its corners, by where they are."""
    axes = {name: given.pop(name) for name in [n for n, value in given.items() if isinstance(value, list)]}
    data = {"mechanism": "gaussian", "noise_multiplier": 1, "query": query, **given, "grid": axes}
    return dict(grid_from({name: value for name, value in data.items() if name not in axes}).corners())


def test_every_end_of_every_axis_is_asked_for_what_it_takes_for_granted_in_large_grids_too():
    axes = {"noise_multiplier": [1, 2, 3], "delta": [1e-3, 1e-4, 1e-5], "steps": [2, 5, 9], "group_size": [1, 2, 3]}
    axes |= {"sampling_rate": [0.1, 0.2, 0.3], "relation": ["add-remove", "zero-out"], "bound": ["analytic", "rdp"]}
    axes |= {"adaptive_clipping_sigma": [3, 4, 5]}
    axes |= {"discretization": [1e-3, 1e-4, 1e-5], "max_batch_size": [50, 60, 70], "dataset_size": [500, 600, 700]}
    said = " ".join(asked_of(**axes))
    for name, values in axes.items():
        ends = values if isinstance(values[0], str) else (min(values), max(values))
        assert all(f"{name}={value}" in said for value in ends), name
    assert len(asked_of(**axes)) == 2 ** len(axes) <= MOST_CORNERS


def test_a_valid_point_stands_in_where_no_end_is_valid():
    found = asked_of(steps=10, delta=1e-5, sampling_rate=[-1.0, 0.5, 2.0], group_size=[2, 1])
    assert list(found) == ["sampling_rate=0.5 group_size=2"]


def test_what_a_query_finds_is_asked_as_a_run():
    one_by_one = "each record joins each batch on its own"
    for query, given in (("rate", {"steps": 10}), ("steps", {"sampling_rate": 0.1})):
        (question, *_) = asked_of(query, delta=1e-5, epsilon=[1, 2], **given).values()
        words = " ".join(build_result(question, query, 1.0).assumes)
        assert one_by_one in words and "do not depend on earlier outputs" in words
