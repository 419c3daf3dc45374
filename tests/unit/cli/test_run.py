"""Run files on the command line."""

import json

import pytest
from helpers import GAUSSIAN_PHASE, M2_PHASE
from privproj_cli.main import exit_code

import privproj
from privproj.io.files import as_toml, read_data
from privproj.io.run_file import from_data
from tests.differential.command_line_rules import call
from tests.differential.command_lines import Case


def eps_of(*phases):
    return from_data({"phase": list(phases)}).epsilon(delta=1e-5).value


@pytest.mark.full
def test_run_files_on_command_line(tmp_path, capsys):
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


def test_written_run_file_answers_as_one_it_came_from(tmp_path):
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
def test_commands_answer_run_with_events_or_refuse_in_one_line(tmp_path, capsys):
    file, out = tmp_path / "run.toml", tmp_path / "out.toml"
    file.write_text(as_toml([{"name": "tree", "event": TREE}, M2_PHASE], relation="zero-out"))
    assert exit_code(["run", str(file), "--delta", "1e-5", "-o", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "tree: SingleEpochTreeAggregationDpEvent(noise_multiplier=4.0, step_counts=[8, 8]), once" in shown
    assert "m2.rank-free (proved under this assumption)" in shown and "measured, not proved" in shown
    assert from_data(read_data(str(out))).as_dict() == from_data(read_data(str(file))).as_dict()
    out.write_text(as_toml([{"event": {"type": "ZCDpEvent", "rho": 0.1}}, M2_PHASE], relation="zero-out"))
    assert exit_code(["run", str(out), "--delta", "1e-5", "-v"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "bound mixture-rdp)" in shown and "Renyi divergences at" in shown and "measured, not proved" in shown
    assert exit_code(["remaining", str(out), "--epsilon", "5", "--delta", "1e-5"]) == 0
    assert "more steps of" in capsys.readouterr().out
    assert exit_code(["run", str(file), "--delta", "1e-5", "--epsilon", "1", "--calibrate"]) == 3
    found = capsys.readouterr()
    assert found.err.count("\n") == 1 and not found.out
    file.write_text(as_toml([{"event": {"type": "NonPrivateDpEvent"}}, M2_PHASE]))
    assert exit_code(["run", str(file), "--delta", "1e-5"]) == 4
    assert "no finite epsilon" in capsys.readouterr().out
    file.write_text(as_toml([{"event": {"type": "UnsupportedDpEvent"}}, M2_PHASE]))
    assert exit_code(["run", str(file), "--delta", "1e-5"]) == 3
    assert "UnsupportedDpEvent" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("arguments", ["--advantage 0.1", "--tpr 0.02 --fpr 0.01"])
def test_run_file_is_calibrated_to_risk(tmp_path, arguments, capsys):
    source, target = tmp_path / "a.toml", tmp_path / "b.toml"
    source.write_text(as_toml([{**GAUSSIAN, "steps": 9, "sampling_rate": 0.1}, {**GAUSSIAN, "steps": 2}]))
    assert exit_code(["run", str(source), "--calibrate", *arguments.split(), "--json", "-o", str(target)]) == 0
    shown = json.loads(capsys.readouterr().out)
    wanted = shown["risk"].get("advantage") or shown["risk"]["tpr"]
    assert shown["quantity"] in ("advantage", "tpr") and 0.99 * wanted < shown["value"] <= wanted
    # a written run, evaluated again, and a risk without --calibrate
    assert exit_code(["run", str(target), "--epsilon", "0", "--json"]) == 0
    assert "advantage" not in arguments or json.loads(capsys.readouterr().out)["value"] <= wanted
    assert exit_code(["run", str(target), *arguments.split()]) == 2
    assert "--calibrate" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("slack", ["", pytest.param("--delta 1e-5", marks=pytest.mark.full)])
def test_run_file_has_one_mu(tmp_path, slack, capsys):
    file = tmp_path / "run.toml"
    file.write_text(as_toml([{**GAUSSIAN, "steps": 9, "sampling_rate": 0.1}, {**GAUSSIAN, "steps": 2}]))
    assert exit_code(["run", str(file), "--gdp", *slack.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schedule = from_data(read_data(str(file)))
    assert found["value"] == privproj.gdp_mu(schedule, **({"delta": 1e-5} if slack else {})).value
    # at least that of the two releases on the whole dataset, at most that of all on the whole dataset
    each = 1.0 / GAUSSIAN["noise_multiplier"]
    assert 2**0.5 * each < found["value"] < 11**0.5 * each
    for epsilon in (0.5, 2.0):
        gaussian = privproj.delta(privproj.Gaussian(noise_multiplier=1.0 / found["value"]), epsilon=epsilon)
        assert schedule.delta(epsilon=epsilon).lower <= max(gaussian.value, found["delta"])
    assert exit_code(["run", str(file), "--gdp", *slack.split()]) == 0
    shown = capsys.readouterr().out
    assert "gdp mu = " in shown and "regret:" in shown
    for wrong in ("--epsilon 1", "--advantage 0.1", "--calibrate"):
        assert exit_code(["run", str(file), "--gdp", *wrong.split()]) == 2
        assert "--gdp" in capsys.readouterr().err
