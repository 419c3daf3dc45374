"""Run files: keys, aliases, schema, and errors that name their place."""

import json
import tomllib
from importlib.resources import files

import jsonschema
import pytest
from helpers import GAUSSIAN_PHASE, M2_PHASE, ROOT

from privproj import InvalidParameter
from privproj.bounds import LINES, mechanism_named
from privproj.records.entries import keys_of
from privproj.records.run_file import FOR_ALL, PHASE_KEYS, from_data


def eps_of(*phases):
    return from_data({"phase": list(phases)}).epsilon(delta=1e-5).value


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


@pytest.mark.full
def test_run_files_fit_their_schema():
    schema = json.loads((files("privproj") / "run_schema.json").read_text())
    example = tomllib.loads((ROOT / "examples" / "run.toml").read_text())
    for data in (example, {"phase": [phase.as_dict() for phase in from_data(example).phases]}):
        jsonschema.validate(data, schema)
        assert from_data(data).epsilon(delta=1e-5).value == from_data(example).epsilon(delta=1e-5).value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"phase": []}, schema)


GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 2}

SCHEMA = json.loads((files("privproj") / "run_schema.json").read_text())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"relation": "replace", "phase": [{**GAUSSIAN, "relation": "replace"}]}, "phase 1: relation"),
        ({"phase": [{**GAUSSIAN, "discretization": 1e-3}]}, "phase 1: discretization"),
        ({"phase": [{**GAUSSIAN, "composer": "privproj"}]}, "phase 1: composer"),
        ({"phase": [GAUSSIAN], "discretization": "1e-3"}, "a.toml: discretization"),
        ({"phase": [GAUSSIAN], "discretization": 7}, "a.toml: discretization"),
        ({"phase": [GAUSSIAN], "composer": None}, "a.toml: composer"),
        ({"phase": [{**GAUSSIAN, "bound": None}]}, "phase 1: bound"),
        ({"phase": [{**GAUSSIAN, "steps": True}]}, "phase 1: steps"),
        ({"phase": [{**GAUSSIAN, "split": "even"}]}, "phase 1: split"),
        ({"phase": [{"mechanism": "m2", "layers": ["64x4"], "noise_multiplier": 1}]}, "phase 1: layers"),
        ({"phase": [{"mechanism": "m2", "layer": [], "noise_multiplier": 1}]}, "phase 1: layer"),
        (
            {"phase": [{"mechanism": "m2", "dim": 9, "rank": 2, "noise_multiplier": 1, "fixed_projection": "no"}]},
            "fixed",
        ),
        ({"phase": [GAUSSIAN, {**GAUSSIAN, "group_size": 4}]}, "a.toml: group_size"),
    ],
)
def test_keys_of_a_run_file(data, words):
    with pytest.raises(InvalidParameter, match=words):
        from_data(data, "a.toml")
    if "group_size" not in words and "split" not in words:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, SCHEMA)


@pytest.mark.parametrize("name", dict.fromkeys(kind for kind, _ in LINES))
def test_the_schema_of_run_files_has_the_keys_that_are_read(name):
    phase = SCHEMA["properties"]["phase"]["items"]
    known = {key for key in keys_of(mechanism_named(name), PHASE_KEYS) if key not in FOR_ALL or key == "relation"}
    rules = [rule["then"]["propertyNames"]["enum"] for rule in phase["allOf"]
             if name in rule.get("if", {}).get("properties", {}).get("mechanism", {}).get("enum", ())]  # fmt: skip
    expected = f"privproj/run_schema.json: one rule for {name} with these keys"
    assert [set(rule) for rule in rules] == [known] and known <= set(phase["properties"]), expected
    assert set(SCHEMA["properties"]) == {*FOR_ALL, "phase"}
