"""Run files on the command line."""

import json

import pytest
from fuzz.laws import call
from fuzz.strategies import Case
from helpers import GAUSSIAN_PHASE, M2_PHASE
from privproj_cli.files import as_toml, read_data
from privproj_cli.main import exit_code

from privproj.records.run_file import from_data


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


def test_events_go_out_as_a_run_file_that_says_the_same(tmp_path, capsys):
    file, again = tmp_path / "run.toml", tmp_path / "again.json"
    shuffled = {**GAUSSIAN_PHASE, "sampling": "poisson", "planned": True, "name": "later"}
    phases = [{"name": "tree", "event": TREE, "steps": 2}, M2_PHASE, shuffled]
    file.write_text(as_toml(phases, relation="zero-out"))
    assert exit_code(["run", str(file), "--events"]) == 0
    again.write_text(capsys.readouterr().out)
    written, read = (from_data(read_data(str(path))) for path in (file, again))
    assert [phase.as_dict() for phase in read.phases] == [phase.as_dict() for phase in written.phases]
    assert exit_code(["run", str(again), "--events"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(again.read_text())
    assert exit_code(["run", str(file), "--events", "--delta", "1e-5"]) == 2
    assert "--events" in capsys.readouterr().err


def test_commands_answer_a_run_with_events_or_refuse_in_one_line(tmp_path, capsys):
    file, out = tmp_path / "run.toml", tmp_path / "out.toml"
    file.write_text(as_toml([{"name": "tree", "event": TREE}, M2_PHASE], relation="zero-out"))
    assert exit_code(["run", str(file), "--delta", "1e-5", "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "tree: SingleEpochTreeAggregationDpEvent(noise_multiplier=4, step_counts=[8, 8]), once" in shown
    assert "(rank-free)" in shown and "measured, not proved" in " ".join(shown.split())
    assert from_data(read_data(str(out))).as_dict() == from_data(read_data(str(file))).as_dict()
    out.write_text(as_toml([{"event": {"type": "ZCDpEvent", "rho": 0.1}}, M2_PHASE], relation="zero-out"))
    assert exit_code(["run", str(out), "--delta", "1e-5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(mixture-rdp)" in shown and "Renyi divergences at" in shown and "measured, not proved" in shown
    assert exit_code(["remaining", str(out), "--epsilon", "5", "--delta", "1e-5"]) == 0
    assert "more steps fit" in capsys.readouterr().out
    assert exit_code(["report", "run", str(file), "--delta", "1e-5"]) == 0
    assert "event SingleEpochTreeAggregationDpEvent(" in " ".join(capsys.readouterr().out.split())
    for extra in (["--epsilon", "1", "--calibrate"], ["--certify"]):
        assert exit_code(["run", str(file), "--delta", "1e-5", *extra]) == 3
        found = capsys.readouterr()
        assert found.err.count("\n") == 1 and not found.out
    file.write_text(as_toml([{"event": {"type": "NonPrivateDpEvent"}}, M2_PHASE]))
    assert exit_code(["run", str(file), "--delta", "1e-5"]) == 4
    assert "no finite epsilon" in capsys.readouterr().out
    file.write_text(as_toml([{"event": {"type": "UnsupportedDpEvent"}}, M2_PHASE]))
    assert exit_code(["run", str(file), "--delta", "1e-5"]) == 3
    assert "UnsupportedDpEvent" in capsys.readouterr().err
