"""Events as phases: the joint epsilon is at least that of each phase, and at most their sum."""

import json
import math
from dataclasses import replace

import pytest
from dp_accounting import dp_event

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Laplace, Outcome, Side, UnsupportedError
from privproj.accounting.lower_bounds import PHASES_LEFT_OUT
from privproj.assumptions import Requirement
from privproj.contrib.events import event_phase
from privproj.contrib.events.event_composition import data_of
from privproj.contrib.events.events import event_text
from privproj.schedule import Composition, calibrate_noise, from_data, phase_of, remaining

TREE = dp_event.SingleEpochTreeAggregationDpEvent(4.0, [8, 8])
CONCENTRATED = dp_event.ZCDpEvent(0.1)
DISCRETE = dp_event.DiscreteLaplaceDpEvent(0.3, 1)
RUN = {"steps": 100, "sampling_rate": 0.01, "relation": "zero-out"}
STEP = 1e-2
ADAPTERS = phase_of(M2(dim=64, rank=8, noise_multiplier=0.5), "adapters", **RUN)


def event(found, name="event", relation="zero-out", **more):
    return event_phase(found, name, relation=relation, **more)


COSTS = [
    dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0)),
    DISCRETE,
    dp_event.RandomizedResponseDpEvent(0.9, 3),
    TREE,
    CONCENTRATED,
    dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(8.0), 3.0, 1.0),
]


@pytest.mark.parametrize("found", COSTS, ids=lambda found: type(found).__name__)
def test_event_with_phase_costs_between_max_and_sum(found):
    both = Composition((ADAPTERS, event(found)), STEP).epsilon(delta=1e-5)
    # Basic composition: the sum of both at half of delta, our phase by the bound that the accountant has of it.
    bound = None if "grid_step" in both.numerics else "mixture-rdp"
    ours = privproj.epsilon(ADAPTERS.mechanism, delta=5e-6, bound=bound, **RUN).value
    alone = [Composition((event(found),), STEP).epsilon(delta=delta) for delta in (1e-5, 5e-6)]
    known = privproj.epsilon(ADAPTERS.mechanism, delta=1e-5, **RUN).lower
    assert max(alone[0].value * (1 - 1e-6), known) <= both.value <= (alone[1].value + ours) * (1 + 1e-2)
    assert both.numerics["composer"] == "dp-accounting" and "not proved" in str(both.numerics["rounding"])
    assert both.side is Side.UPPER and Requirement.EVENT_MATCHES_PROGRAM in both.requirements
    below = privproj.lower_bound(both)
    assert below is None or below.gap in ("", PHASES_LEFT_OUT)
    assert not any("(none)" in text for answer in alone for text in answer.warnings)
    assert both.bound == f"m2.{both.mechanism['phases'][0]['bound']} + dp-accounting.{type(found).__name__}"


@pytest.mark.full
def test_gaussian_event_equals_gaussian_phase():
    ours = phase_of(Gaussian(noise_multiplier=2.0), **RUN)
    theirs = event(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(2.0)), steps=100)
    known, found = Composition((ADAPTERS, ours)), Composition((ADAPTERS, theirs), 1e-3)
    assert known.epsilon(delta=1e-5).lower <= found.epsilon(delta=1e-5).value
    assert found.epsilon(delta=1e-5).value == pytest.approx(known.epsilon(delta=1e-5).value, rel=1e-2, abs=0)
    assert known.delta(epsilon=0.5).lower <= found.delta(epsilon=0.5).value


def test_phase_uses_renyi_bound_if_event_has_divergences_only():
    requested = Composition((ADAPTERS, event(CONCENTRATED)))
    found = requested.by_one_accountant()
    assert found.phases[0].bound.name == "mixture-rdp"
    assert found.epsilon(delta=1e-5).value == requested.epsilon(delta=1e-5).value
    assert requested.meets(epsilon=requested.epsilon(delta=1e-5).value, delta=1e-5)
    # rho-zCDP is what a Gaussian release with z^2 = 1 / (2 rho) keeps to
    same = privproj.epsilon(Gaussian(noise_multiplier=5.0**0.5), delta=1e-5, bound="rdp").value
    alone = Composition((event(CONCENTRATED),)).epsilon(delta=1e-5).value
    assert same <= alone == pytest.approx(same, rel=1e-2, abs=0)


def test_non_private_event_gives_no_guarantee():
    for found in (
        dp_event.NonPrivateDpEvent(),
        dp_event.RepeatAndSelectDpEvent(dp_event.NonPrivateDpEvent(), 2.0, 1.0),
    ):
        whole = Composition((ADAPTERS, event(found)))
        assert whole.epsilon(delta=1e-5).outcome is Outcome.VACUOUS and whole.epsilon(delta=1e-5).value == math.inf
        assert whole.delta(epsilon=1.0).outcome is Outcome.VACUOUS and not whole.meets(epsilon=1e9, delta=0.5)
        assert [row.more_steps for row in remaining(whole, epsilon=10.0, delta=1e-5)] == [0]


def test_no_op_event_changes_nothing():
    nothing = Composition((ADAPTERS, event(dp_event.NoOpDpEvent())), STEP).epsilon(delta=1e-5)
    peer = Composition((ADAPTERS,), STEP, "dp-accounting").epsilon(delta=1e-5)
    assert nothing.value == pytest.approx(peer.value, rel=1e-6, abs=0)
    assert Composition((event(dp_event.NoOpDpEvent()),)).epsilon(delta=1e-5).value == 0.0


LAPLACE = phase_of(Laplace(noise_multiplier=9.0), "counts", relation="zero-out")
BINS = phase_of(Gaussian(noise_multiplier=1.0), "bins", sampling="balls-in-bins", batches=9, relation="zero-out")
OVER_BOTH = phase_of(Gaussian(noise_multiplier=9.0), "ours", relation="replace")


@pytest.mark.parametrize(
    ("phases", "text"),
    [
        ([event(dp_event.UnsupportedDpEvent(), "x")], "phase x: dp-accounting does not support UnsupportedDpEvent"),
        ([event(TREE, "x", "add-remove")], "phase x: .* under relation=zero-out only, not add-remove"),
        ([event(CONCENTRATED, "x"), event(DISCRETE, "y")], "phase x .*ZCDpEvent.*phase y .*DiscreteLaplace"),
        ([event(CONCENTRATED, "x"), LAPLACE], "phase counts has no Renyi divergences"),
        (
            [event(dp_event.GaussianDpEvent(2.0), "x", "replace"), OVER_BOTH],
            "phases x and ours define the noise multiplier differently",
        ),
        ([event(CONCENTRATED, "x"), BINS], "phase bins has no Renyi divergences"),
    ],
    ids=["unsupported", "relation", "neither", "no Renyi bound", "scales", "batches"],
)
def test_unsupported_event_error_names_phase_and_reason(phases, text):
    for query in (lambda run: run.epsilon(delta=1e-5), lambda run: run.delta(epsilon=1.0), Composition.curve):
        with pytest.raises(UnsupportedError, match=text):
            query(Composition(tuple(phases)))


def test_event_noise_is_relative_to_clipping_norm():
    one = event(dp_event.LaplaceDpEvent(2.0), relation="replace")
    found = Composition((one,)).epsilon(delta=1e-9)
    assert Requirement.NOISE_OVER_CLIP in found.requirements
    # pure epsilon 2C / b, read through Renyi divergences
    assert found.value == pytest.approx(1.0, rel=0.03, abs=0) and found.value >= 0.999
    assert Composition((event(dp_event.LaplaceDpEvent(2.0)),)).epsilon(delta=1e-9).value == pytest.approx(
        0.5, rel=1e-3, abs=0
    )
    mixed = event(dp_event.RandomizedResponseDpEvent(0.9, 3), relation="replace")
    assert Composition((mixed, OVER_BOTH), STEP).epsilon(delta=1e-5).value > 0.0


def test_unsupported_query_about_event_is_one_sentence():
    whole = Composition((ADAPTERS, event(TREE, "tree")))
    with pytest.raises(UnsupportedError, match="phase tree uses another accountant"):
        calibrate_noise(whole, epsilon=1.0, delta=1e-5)
    with pytest.raises(InvalidParameterError, match="relation must be the same"):
        Composition((ADAPTERS, event(TREE, relation=None)))
    with pytest.raises(InvalidParameterError, match="event"):
        event_phase(3)
    with pytest.raises(InvalidParameterError, match="in total"):
        event_phase(dp_event.SelfComposedDpEvent(TREE, 10**8), steps=2)


@pytest.mark.parametrize("found", [TREE, DISCRETE, CONCENTRATED], ids=lambda found: type(found).__name__)
def test_remaining_is_largest_number_that_fits(found):
    whole = Composition((ADAPTERS, event(found, "event")), 3e-2)
    (row,) = remaining(whole, epsilon=6.0, delta=1e-5)
    longer = (replace(whole, phases=(*whole.phases, event(found, "m", steps=row.more_steps + i))) for i in (0, 1))
    assert [run.meets(epsilon=6.0, delta=1e-5) for run in longer] == [True, False]
    assert row.phase.name == "event"


def test_event_phase_round_trip_through_data():
    for found in (TREE, dp_event.SelfComposedDpEvent(DISCRETE, 3)):
        whole = Composition((event(found, "x", steps=2), ADAPTERS))
        assert from_data(json.loads(json.dumps(whole.as_dict()))) == whole
        assert event_phase(data_of(found), "x", 2, "zero-out") == whole.phases[0]
    assert event_text(data_of(TREE)) == "SingleEpochTreeAggregationDpEvent(noise_multiplier=4.0, step_counts=[8, 8])"


def test_equal_events_of_two_phases_are_merged():
    twice = Composition((event(TREE, "a"), event(TREE, "b"))).epsilon(delta=1e-5).value
    assert twice == Composition((event(TREE, "a", steps=2),)).epsilon(delta=1e-5).value
