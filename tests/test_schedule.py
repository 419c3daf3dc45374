"""Runs as data: joint composition, ready runs, the odometer, run files."""

import json
import math
import tomllib
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from privproj_cli.files import as_toml
from privproj_cli.main import exit_code

import privproj
from privproj import M2, Gaussian, InvalidParameter, Refused
from privproj.accounting.two_stage import dp_sft
from privproj.records.run_file import from_data

M2_PHASE = {"mechanism": "m2", "dim": 2048, "rank": 16, "noise_multiplier": 0.2, "sampling_rate": 0.01, "steps": 300}
GAUSSIAN_PHASE = {"mechanism": "gaussian", "noise_multiplier": 2, "sampling_rate": 0.01, "steps": 200}


def eps_of(*phases):
    return from_data({"phase": list(phases)}).epsilon(delta=1e-5).value


def test_one_phase_is_the_run_it_describes():
    alone = privproj.epsilon(M2(dim=2048, rank=16, noise_multiplier=0.2), delta=1e-5, steps=300, sampling_rate=0.01)
    assert eps_of(M2_PHASE) == alone.value
    assert (
        eps_of({"mechanism": "gaussian", "noise_multiplier": 1})
        == privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5).value
    )


def test_phases_compose_jointly():
    first, second, both = eps_of(M2_PHASE), eps_of(GAUSSIAN_PHASE), eps_of(M2_PHASE, GAUSSIAN_PHASE)
    assert max(first, second) < both < first + second
    split = eps_of(M2_PHASE, {**M2_PHASE, "steps": 100}, GAUSSIAN_PHASE)
    assert split == pytest.approx(eps_of({**M2_PHASE, "steps": 400}, GAUSSIAN_PHASE), rel=1e-3, abs=0)
    exact = math.sqrt(3 / 4 + 5 / 9)
    parts = [{"mechanism": "gaussian", "noise_multiplier": z, "steps": n} for z, n in ((2, 3), (3, 5))]
    found = from_data({"phase": parts}).epsilon(delta=1e-5)
    known = privproj.epsilon(Gaussian(noise_multiplier=1 / exact), delta=1e-5).value
    assert found.lower <= known * (1 + 1e-12) and known <= found.value <= known * (1 + 1e-3)


def test_a_joint_result_names_every_phase_and_the_weakest_status():
    aligned = {"mechanism": "wishart", "dim": 100, "rank": 9, "misalignment": 1e-6}
    phases = [{"mechanism": "gaussian", "noise_multiplier": 2}, aligned]
    found = from_data({"relation": "replace", "phase": phases}).epsilon(delta=1e-5)
    assert found.status == "conditional" and len(found.mechanism["phases"]) == 2 and found.promises
    assert found.bound == "gaussian.analytic + wishart.exact"


def test_dp_sft_budgets():
    target = {"epsilon": 4, "delta": 1e-5, "sampling_rate": 0.01, "steps": (1000, 1000)}
    split, joint = dp_sft(**target, budget="split"), dp_sft(**target)
    noise = [[p.question.mechanism.noise_multiplier for p in s.phases] for s in (split, joint)]
    assert noise[0] == [pytest.approx(0.8204, rel=2e-4, abs=0), pytest.approx(1.5065, rel=1.5e-3, abs=0)]
    for before, after in zip(*noise, strict=True):
        assert after / before == pytest.approx(0.908, abs=0.003, rel=0)
    assert 3.999 < joint.epsilon(delta=1e-5).value <= 4.0
    public = dp_sft(**target, public=True)
    assert len(public.phases) == 1
    assert public.phases[0].question.mechanism.noise_multiplier < noise[1][1]


def test_odometer():
    done = from_data({"phase": [M2_PHASE, {**GAUSSIAN_PHASE, "planned": True}]})
    more = done.more_steps(done.phases[1], epsilon=1.0, delta=1e-5)
    assert (
        eps_of(M2_PHASE, {**GAUSSIAN_PHASE, "steps": more})
        <= 1.0
        < eps_of(M2_PHASE, {**GAUSSIAN_PHASE, "steps": more + 1})
    )
    assert done.more_steps(done.phases[1], epsilon=0.01, delta=1e-5) == 0


def test_aliases_are_the_gaussians_that_they_are():
    for name in ("dp-sgd", "prism", "dp-lora-fa"):
        assert eps_of({**GAUSSIAN_PHASE, "mechanism": name}) == eps_of(GAUSSIAN_PHASE)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "a.toml: phase"),
        ({"phase": []}, "list of phases"),
        ({"phase": [3]}, "phase 1"),
        ({"phase": [{"mechanism": "m3"}]}, "phase 1: mechanism=m3"),
        ({"phase": [GAUSSIAN_PHASE, {**M2_PHASE, "rank": 5000}]}, "phase 2: rank=5000"),
        ({"phase": [{**GAUSSIAN_PHASE, "step": 3}]}, "phase 1: step=3"),
        ({"phase": [{**GAUSSIAN_PHASE, "steps": 2.5}]}, "phase 1: steps=2.5"),
        ({"phase": [{**GAUSSIAN_PHASE, "batch_size": 10}]}, "phase 1: dataset_size"),
        ({"phases": [GAUSSIAN_PHASE]}, "a.toml: phases"),
        ({"phase": [GAUSSIAN_PHASE, {**GAUSSIAN_PHASE, "relation": "zero-out"}]}, "one neighbouring relation"),
    ],
)
def test_errors_name_file_entry_and_key(data, words):
    with pytest.raises(InvalidParameter, match=words):
        from_data(data, "a.toml")


def test_bounds_without_a_profile_are_refused():
    with pytest.raises(Refused, match="no privacy profile"):
        eps_of(GAUSSIAN_PHASE, {**GAUSSIAN_PHASE, "bound": "rdp"})
    tiny = from_data({"phase": [{"mechanism": "gaussian", "noise_multiplier": 1e-3}]})
    with pytest.raises(Refused, match="common factor"):
        tiny.calibrated(epsilon=1e-9, delta=1e-300)


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


def test_run_files_fit_their_schema():
    schema = json.loads((files("privproj") / "run_schema.json").read_text())
    example = tomllib.loads((Path(__file__).parents[1] / "examples" / "run.toml").read_text())
    for data in (example, {"phase": [phase.as_dict() for phase in from_data(example).phases]}):
        jsonschema.validate(data, schema)
        assert from_data(data).epsilon(delta=1e-5).value == from_data(example).epsilon(delta=1e-5).value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"phase": []}, schema)


def test_a_fixed_projection_serves_one_phase_only():
    phase = {"mechanism": "m2", "dim": 64, "rank": 4, "noise_multiplier": 1, "fixed_projection": True}
    assert eps_of(phase) > 0
    with pytest.raises(Refused, match="fresh projection"):
        eps_of(phase, phase)
    assert eps_of({**phase, "bound": "gaussian"}, {**phase, "bound": "gaussian"}) > 0
