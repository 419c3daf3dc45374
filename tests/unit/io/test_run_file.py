"""Run files: keys, aliases, schema, and errors that name their place."""

import json
import tomllib
from dataclasses import fields
from importlib.resources import files

import jsonschema
import pytest
from helpers import GAUSSIAN_PHASE, M2_PHASE, ROOT

from privproj import InvalidParameterError, UnsupportedError
from privproj.accounting.config import keys_of
from privproj.io.run_file import FOR_ALL, PHASE_KEYS, from_data
from privproj.mechanisms.registry import bound_names, mechanism_named
from privproj.run import Run
from privproj.sampling import Sampling


def eps_of(*phases):
    return from_data({"phase": list(phases)}).epsilon(delta=1e-5).value


def test_aliases_are_gaussian_mechanisms():
    for name in ("dp-sgd", "prism", "dp-lora-fa"):
        assert eps_of({**GAUSSIAN_PHASE, "mechanism": name}) == eps_of(GAUSSIAN_PHASE)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "missing phase in a.toml"),
        ({"phase": []}, "list of phases"),
        ({"phase": [3]}, "phase 1"),
        ({"phase": [{"mechanism": "m3"}]}, "unknown mechanism 'm3' in a.toml, phase 1"),
        ({"phase": [GAUSSIAN_PHASE, {**M2_PHASE, "rank": 5000}]}, "phase 2: rank must be .* got 5000"),
        ({"phase": [{**GAUSSIAN_PHASE, "step": 3}]}, "unknown key 'step' in a.toml, phase 1"),
        ({"phase": [{**GAUSSIAN_PHASE, "steps": 2.5}]}, "phase 1: steps must be"),
        ({"phase": [{**GAUSSIAN_PHASE, "batch_size": 10}]}, "phase 1: sampling_rate must be omitted if batch_size"),
        ({"phases": [GAUSSIAN_PHASE]}, "unknown key 'phases' in a.toml; did you mean 'phase'?"),
        ({"phase": [GAUSSIAN_PHASE, {**GAUSSIAN_PHASE, "relation": "zero-out"}]}, "relation must be the same"),
    ],
)
def test_run_file_error_names_file_entry_and_key(data, text):
    with pytest.raises(InvalidParameterError, match=text):
        from_data(data, "a.toml")


@pytest.mark.full
def test_unsupported_phase_error_names_file_and_entry_once():
    phase = {**GAUSSIAN_PHASE, "sampling": "poisson", "sampling_rate": 0.5, "steps": 3, "relation": "replace"}
    with pytest.raises(UnsupportedError) as found:
        from_data({"phase": [GAUSSIAN_PHASE, phase]}, "r.toml")
    assert str(found.value).startswith("r.toml, phase 2: ") and str(found.value).count("r.toml") == 1


def test_example_run_file_matches_schema():
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
    ("data", "text"),
    [
        ({"relation": "replace", "phase": [{**GAUSSIAN, "relation": "replace"}]}, "phase 1: relation"),
        ({"phase": [{**GAUSSIAN, "discretization": 1e-3}]}, "phase 1: discretization"),
        ({"phase": [GAUSSIAN], "discretization": "1e-3"}, "discretization must be"),
        ({"phase": [GAUSSIAN], "discretization": 7}, "discretization must be"),
        ({"phase": [GAUSSIAN], "discretization": None}, "missing discretization"),
        ({"phase": [{**GAUSSIAN, "bound": None}]}, "missing bound|bound must be"),
        ({"phase": [{**GAUSSIAN, "steps": True}]}, "phase 1: steps"),
        ({"phase": [{**GAUSSIAN, "split": "even"}]}, "phase 1: split"),
        ({"phase": [{"mechanism": "m2", "layers": ["64x4"], "noise_multiplier": 1}]}, "unknown key 'layers'"),
        ({"phase": [{"mechanism": "m2", "layer": [], "noise_multiplier": 1}]}, "phase 1: layer"),
        (
            {"phase": [{"mechanism": "m2", "dim": 9, "rank": 2, "noise_multiplier": 1, "fixed_projection": "no"}]},
            "fixed",
        ),
        ({"phase": [GAUSSIAN, {**GAUSSIAN, "group_size": 4}]}, "group_size must be the same"),
    ],
)
def test_unknown_run_file_keys_are_rejected(data, text):
    with pytest.raises(InvalidParameterError, match=text):
        from_data(data, "a.toml")
    if "group_size" not in text and "split" not in text:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, SCHEMA)


SIZES = {"batch_size": 10, "dataset_size": 95}
BINS = {"sampling": "balls-in-bins"}
ACCEPTED = [
    {**BINS, "batches": 10}, {**BINS, **SIZES, "epochs": 1},
    {**BINS, "batches": 10, "epochs": 2, "batches_per_record": 3},
    {"sampling": "shuffle"}, {"sampling": "shuffle", "batches": 10, "epochs": 0.5},
    {"sampling": "partition", "epochs": 2}, {**SIZES, "sampling": "fixed", "steps": 3},
    {"sampling": "fixed", "sampling_rate": 1}, {**SIZES, "max_batch_size": 20, "epochs": 2},
    {"sampling_rate": 0.1, "steps": 3, "max_batch_size": 20, "dataset_size": 95, "public_size": True},
    {"sampling_rate": 0.1, "steps": 3, "dataset_size": 95}, {"dataset_size": 95},
]  # fmt: skip
REJECTED = [
    {**BINS}, {**BINS, "batches": 0}, {**BINS, **SIZES, "batches": 10}, {**BINS, "batches": 1.5},
    {"batches": 10}, {"batches": 10, "epochs": 2}, {"sampling": "partition", "batches": 10},
    {"sampling": "shuffle", "batches": 10, "batches_per_record": 2}, {"sampling": "shuffling"},
    {**BINS, "batches": 10, "max_batch_size": 20, "dataset_size": 95}, {"sampling_rate": 0.1, "max_batch_size": 20},
    {**SIZES, "max_batch_size": 20, "public_size": False}, {"sampling_rate": 0.1, "dataset_size": 95.5},
    {"epochs": 2}, {"sampling": "fixed"}, {"sampling": "poisson", "epochs": 2},
    {"sampling_rate": 0.1}, {"sampling_rate": 0.1, "sampling": "fixed"}, {**SIZES}, {**BINS, **SIZES},
]  # fmt: skip


def reads(run):
    """True if the phase with this run is one that is read, whether or not a bound answers for it."""
    try:
        found = from_data({"phase": [{**GAUSSIAN, **run}]})
    except UnsupportedError:
        return True
    except InvalidParameterError:
        return False
    written = found.as_dict()
    jsonschema.validate(written, SCHEMA)
    return from_data(written).as_dict() == written


@pytest.mark.parametrize("run", [*ACCEPTED, *REJECTED], ids=str)
def test_schema_accepts_exactly_readable_runs(run):
    valid = jsonschema.Draft202012Validator(SCHEMA).is_valid({"phase": [{**GAUSSIAN, **run}]})
    assert valid == reads(run) == (run in ACCEPTED)


def test_schemas_list_every_sampling_and_run_key():
    phase = SCHEMA["properties"]["phase"]["items"]["properties"]
    result = json.loads((files("privproj") / "schema.json").read_text())["properties"]["run"]["properties"]
    assert phase["sampling"]["enum"] == [*Sampling] == [name for name in result["sampling"]["enum"] if name]
    own = {field.name for field in fields(Run)} - {"discretization", "split", "notes"}
    assert own <= set(phase) and set(result) == {*own, "requirements"}


@pytest.mark.parametrize("name", dict.fromkeys(kind for kind, _ in bound_names()))
def test_run_schema_lists_mechanism_keys(name):
    phase = SCHEMA["properties"]["phase"]["items"]
    known = {key for key in keys_of(mechanism_named(name), PHASE_KEYS) if key not in FOR_ALL or key == "relation"}
    rules = [rule["then"]["propertyNames"]["enum"] for rule in phase["allOf"]
             if name in rule.get("if", {}).get("properties", {}).get("mechanism", {}).get("enum", ())]  # fmt: skip
    expected = f"privproj/run_schema.json: one rule for {name} with these keys"
    assert [set(rule) for rule in rules] == [known] and known <= set(phase["properties"]), expected
    assert set(SCHEMA["properties"]) == {*FOR_ALL, "phase"}
