"""Events of dp-accounting as phases of run files, of schedules, and as events again."""

import json
from importlib.resources import files

import dp_accounting
import jsonschema
import pytest
from dp_accounting import NeighboringRelation, dp_event
from helpers import M2_PHASE

from privproj import M2, Accountant, Gaussian, InvalidParameterError
from privproj.assumptions import Requirement
from privproj.contrib.events import event_phase
from privproj.contrib.events.event_composition import FIELDS
from privproj.contrib.events.events import EVENT_KIND
from privproj.integrations.dp_accounting import ProjectionPLDAccountant, event_of
from privproj.schedule import Composition, from_data, phase_of

SCHEMA = json.loads((files("privproj") / "run_schema.json").read_text())
GAUSSIAN = Gaussian(noise_multiplier=2.0)
FINE = {"value_discretization_interval": 1e-2}
TREE = {"type": "SingleEpochTreeAggregationDpEvent", "noise_multiplier": 2, "step_counts": [8, 8]}


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        ({"event": 3}, "phase 1: event must be .*, got 3"),
        (
            {"event": {**TREE, "steps": 3}},
            "unknown key 'steps' of SingleEpochTreeAggregationDpEvent in a.toml, phase 1, event",
        ),
        ({"event": TREE, "mechanism": "gaussian"}, "unknown key 'event' in a.toml, phase 1"),
        ({"event": TREE, "steps": 0}, "phase 1: steps must be .*, got 0"),
        ({"event": TREE, "sampling_rate": 0.1}, "unknown key 'sampling_rate' in a.toml, phase 1"),
        ({"event": {"type": "ReleaseDpEvent"}}, "did you mean"),
    ],
    ids=str,
)
def test_invalid_event_error_names_phase_and_key(phase, text):
    with pytest.raises(InvalidParameterError, match=text):
        from_data({"phase": [phase]}, "a.toml")


def test_run_schema_lists_every_event():
    phase = SCHEMA["properties"]["phase"]["items"]
    assert set(SCHEMA["$defs"]["event"]["properties"]["type"]["enum"]) == {*FIELDS}
    assert phase["allOf"][0]["then"]["propertyNames"]["enum"] == [*EVENT_KIND.keys]
    whole = from_data({"relation": "zero-out", "phase": [{"event": TREE, "steps": 2, "planned": True}, M2_PHASE]})
    jsonschema.validate(whole.as_dict(), SCHEMA)
    assert from_data(whole.as_dict()) == whole
    for bad in (
        {"event": TREE, "mechanism": "gaussian"},
        {"event": TREE, "sampling_rate": 0.1},
        {"event": {"type": "x"}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"phase": [bad]}, SCHEMA)


def test_accountant_continues_run_with_event():
    phase = {"event": {"type": "ZCDpEvent", "rho": 0.01}}
    schedule = from_data({"phase": [phase]})
    accountant = Accountant(schedule).step(GAUSSIAN)
    assert accountant.epsilon(1e-5).value > schedule.epsilon(delta=1e-5).value


def test_result_with_event_depends_on_measured_rounding():
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(4.0))
    result = Composition((event_phase(event, steps=3),)).epsilon(delta=1e-5)
    assert result.status == "conditional" and Requirement.MEASURED_ROUNDING in result.data_assumptions


def test_event_of_run_with_event_costs_same():
    sampled = phase_of(M2(dim=64, rank=8, noise_multiplier=0.5), "sampled", steps=50, sampling_rate=0.01)
    theirs = event_phase(dp_event.DiscreteLaplaceDpEvent(0.3, 1), "theirs", steps=2)
    whole = Composition((sampled, theirs), 1e-2, "dp-accounting")
    composed = ProjectionPLDAccountant(**FINE).compose(event_of(whole)).get_epsilon(1e-5)
    assert composed == pytest.approx(whole.epsilon(delta=1e-5).value, rel=1e-5, abs=0)
    assert len(event_of(whole).events) == 2


def test_event_of_run_with_tree_costs_same():
    tree = dp_accounting.SingleEpochTreeAggregationDpEvent(6.0, [8, 9])
    adapters = phase_of(M2(dim=64, rank=8, noise_multiplier=0.5), "m2", steps=9, relation="zero-out")
    whole = Composition((event_phase(tree, "tree", relation="zero-out"), adapters), 1e-2)
    accountant = ProjectionPLDAccountant(NeighboringRelation.REPLACE_SPECIAL, **FINE)
    assert accountant.compose(event_of(whole)).get_epsilon(1e-5) == pytest.approx(
        whole.epsilon(delta=1e-5).value, rel=1e-5, abs=0
    )
    assert not ProjectionPLDAccountant().supports(tree)
