"""Run files on the command line."""

import json

import pytest
from fuzz.laws import call
from fuzz.strategies import Case
from helpers import GAUSSIAN_PHASE, M2_PHASE
from privproj_cli.files import as_toml
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
