"""Parsing of events, and their composition compared with the accountants of dp-accounting."""

import inspect
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from helpers import full_if
from hypothesis import given
from hypothesis import strategies as st

import privproj
from privproj import Gaussian, InvalidParameterError, UnsupportedError
from privproj.contrib.events.event_composition import (
    FIELDS,
    RELATIONS,
    RENYI_NOISE,
    Relation,
    add_divergences,
    compose_losses,
    data_of,
    event_from,
    has_loss_distribution,
    has_renyi_curve,
    is_private,
    leaves_of,
    merged,
    why_unsupported,
)
from privproj.errors import PrecisionError

GAUSSIAN = dp_event.GaussianDpEvent(2.0)
LAPLACE = dp_event.LaplaceDpEvent(3.0)
MIXTURE = dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0, 2.0], [0.81, 0.18, 0.01])
TREE = dp_event.SingleEpochTreeAggregationDpEvent(2.0, [8, 3])
REPEATED = dp_event.SelfComposedDpEvent(dp_event.RandomizedResponseDpEvent(0.5, 4), 3)

EXAMPLES = [
    GAUSSIAN,
    LAPLACE,
    MIXTURE,
    TREE,
    dp_event.NoOpDpEvent(),
    dp_event.NonPrivateDpEvent(),
    dp_event.UnsupportedDpEvent(),
    dp_event.RandomizedResponseDpEvent(0.5, 4),
    dp_event.DiscreteLaplaceDpEvent(0.3, 2),
    dp_event.SelfComposedDpEvent(dp_event.SelfComposedDpEvent(LAPLACE, 3), 2),
    dp_event.ComposedDpEvent([GAUSSIAN, LAPLACE]),
    dp_event.PoissonSampledDpEvent(0.1, GAUSSIAN),
    dp_event.PoissonSampledDpEvent(0.1, LAPLACE),
    dp_event.PoissonSampledDpEvent(0.1, dp_event.ComposedDpEvent([GAUSSIAN, GAUSSIAN])),
    dp_event.SampledWithReplacementDpEvent(100, 10, GAUSSIAN),
    dp_event.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
    dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, 1.0),
    dp_event.RepeatAndSelectDpEvent(TREE, 5.0, math.inf),
    dp_event.ZCDpEvent(0.1),
    dp_event.ZCDpEvent(0.1, 0.01),
    dp_event.TruncatedSubsampledGaussianDpEvent(50, 0.1, 4, 1.0),
]
STEP = 1e-2
ONLY_RENYI = {"RepeatAndSelectDpEvent", "ZCDpEvent", "SampledWithoutReplacementDpEvent"}


def divergences_of(curve):
    """The divergences at the orders that a curve knows."""
    return np.array([curve.at(order) for order in curve.orders])


def is_slow(event):
    """True for events that dp-accounting takes its time for."""
    return isinstance(event, dp_event.MixtureOfGaussiansDpEvent | dp_event.SampledWithoutReplacementDpEvent)


def test_event_from_reads_every_event_class():
    classes = {
        name for name, kind in inspect.getmembers(dp_event, inspect.isclass) if issubclass(kind, dp_event.DpEvent)
    }
    assert set(FIELDS) == classes - {"DpEvent"} == {type(event).__name__ for event in EXAMPLES}
    for event in EXAMPLES:
        assert event_from(data_of(event)) == event


@pytest.mark.parametrize("relation", Relation, ids=str)
@pytest.mark.parametrize(
    "event", full_if([event for event in EXAMPLES if is_private(event)], is_slow), ids=lambda e: type(e).__name__
)
def test_compose_equals_dp_accounting_for_each_event(event, relation):
    leaves, log_delta = merged(leaves_of(event, 2)), math.log(1e-3)
    by_losses = all(has_loss_distribution(leaf, relation) for leaf, _ in leaves)
    by_orders = all(has_renyi_curve(leaf, relation) for leaf, _ in leaves)
    if by_losses:
        curve = compose_losses([], leaves, relation, STEP)
        repeated = any(isinstance(leaf, dp_event.RandomizedResponseDpEvent) for leaf, _ in leaves)
        # The record is in 4 nodes of a tree of 8 leaves, each a Gaussian release.
        known = dp_event.GaussianDpEvent(1.0) if event is TREE else event
        stock = PLDAccountant(relation, STEP).compose(known, 1 if repeated else 2)
        pld = stock._pld.self_compose(2) if repeated else stock._pld
        assert curve.epsilon(log_delta).upper == pytest.approx(pld.get_epsilon_for_delta(1e-3), rel=1e-8, abs=1e-8)
        assert curve.epsilon(log_delta).upper >= pld.get_epsilon_for_delta(1e-3) - 1e-12
        # delta, except the allowance for rounding
        assert math.exp(curve.log_delta(0.2).upper) - curve.noise == pytest.approx(
            pld.get_delta_for_epsilon(0.2), rel=1e-9, abs=curve.floor
        )
    if by_orders:
        curve = add_divergences([], leaves, relation)
        stock = RdpAccountant(neighboring_relation=relation).compose(_over_the_clip(event, relation), 2)
        without = isinstance(event, dp_event.SampledWithoutReplacementDpEvent)
        assert np.allclose(divergences_of(curve), stock.rdp, rtol=1.1e-6 if without else 1e-9, atol=1e-10)
        assert np.all(divergences_of(curve) >= stock.rdp)
        assert curve.divergence_at(1.5001) == math.inf
        if stock.rdp.min() > 1e-6 and not without:  # below, dp-accounting also bounds the total variation
            assert curve.epsilon(log_delta).upper == pytest.approx(stock.get_epsilon(1e-3), rel=1e-9, abs=1e-9)
    if not by_losses and not by_orders:
        rejected = [leaf for leaf, _ in leaves if not has_loss_distribution(leaf, relation)]
        assert "dp-accounting" in why_unsupported(rejected[0], relation)
    if type(event).__name__ in ONLY_RENYI:
        assert not by_losses


def _over_the_clip(event, relation):
    """The same event with noise multipliers over the sensitivity, which the Renyi accountant takes them for."""
    if relation is not Relation.REPLACE_ONE:
        return event
    if isinstance(event, dp_event.ComposedDpEvent):
        return dp_event.ComposedDpEvent([_over_the_clip(part, relation) for part in event.events])
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return dp_event.SelfComposedDpEvent(_over_the_clip(event.event, relation), event.count)
    if isinstance(event, dp_event.RepeatAndSelectDpEvent):
        return dp_event.RepeatAndSelectDpEvent(_over_the_clip(event.event, relation), event.mean, event.shape)
    if isinstance(event, dp_event.SampledWithoutReplacementDpEvent):
        return dp_event.SampledWithoutReplacementDpEvent(100, 10, _over_the_clip(event.event, relation))
    known = isinstance(event, dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent)
    return type(event)(event.noise_multiplier / 2.0) if known else event


def test_repeated_randomized_response_costs_more_than_one():
    for relation in (Relation.REPLACE_ONE, Relation.REPLACE_SPECIAL):
        # pure epsilon of k of n buckets: three times that of one, at a delta too small to help
        once = compose_losses([], merged(leaves_of(REPEATED.event)), relation, 1e-3).epsilon(math.log(1e-8)).upper
        thrice = compose_losses([], merged(leaves_of(REPEATED)), relation, 1e-3).epsilon(math.log(1e-8)).upper
        assert thrice == pytest.approx(3.0 * once, rel=1e-2, abs=0)


@pytest.mark.parametrize(("leaves", "nodes"), [(1, 1), (7, 3), (8, 4), (9, 4), ([3, 100], 7)])
def test_tree_equals_gaussian_nodes_of_record(leaves, nodes):
    tree = [(dp_event.SingleEpochTreeAggregationDpEvent(6.0, leaves), 2)]
    found = compose_losses([], tree, Relation.REPLACE_SPECIAL, 1e-3).epsilon(math.log(1e-5)).upper
    exact = privproj.epsilon(Gaussian(noise_multiplier=6.0), delta=1e-5, steps=2 * nodes, relation="zero-out").value
    assert exact * (1 - 1e-9) <= found == pytest.approx(exact, rel=1e-4, abs=0)
    by_orders = add_divergences([], tree, Relation.REPLACE_SPECIAL).epsilon(math.log(1e-5)).upper
    assert found < by_orders < 1.2 * found


def test_integer_noise_multipliers_are_composed_separately():
    def divergences(noise):
        inner = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), 4)
        data = data_of(dp_event.PoissonSampledDpEvent(0.01, inner))
        leaves = merged(leaves_of(event_from(data)))
        return divergences_of(add_divergences([], leaves, Relation.ADD_OR_REMOVE_ONE)).tolist()

    assert divergences(2) == divergences(2.0)
    one = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
    stock = RdpAccountant().compose(one).rdp
    assert np.allclose(divergences(2), stock, rtol=1e-9, atol=1e-10)


@pytest.mark.full
def test_renyi_noise_covers_measured_rounding():
    from mpmath import binomial, exp, fsum, log, mp, mpf

    mp.dps = 40
    for rate in (1e-12, 1e-6, 0.01, 0.5):
        for z in (0.5, 2.0, 20.0):
            event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(z))
            found = add_divergences([], [(event, 1)], Relation.ADD_OR_REMOVE_ONE, [2.0, 5.0, 32.0, 256.0])
            for order, divergence in zip(found.orders, divergences_of(found), strict=True):
                a, q = round(order), mpf(rate)
                terms = (
                    binomial(a, k) * (1 - q) ** (a - k) * q**k * exp(mpf(k * k - k) / (2 * z * z)) for k in range(a + 1)
                )
                truth = log(fsum(terms)) / (a - 1)
                assert truth <= divergence <= truth * (1 + mpf(10) ** -13) + 2 * RENYI_NOISE / (a - 1)


def test_is_private_detects_nested_non_private_events():
    nested = dp_event.RepeatAndSelectDpEvent(
        dp_event.ComposedDpEvent([GAUSSIAN, dp_event.NonPrivateDpEvent()]), 2.0, 1.0
    )
    assert not is_private(nested) and not is_private(dp_event.NonPrivateDpEvent()) and is_private(TREE)


def test_merged_combines_equal_events():
    parts = dp_event.ComposedDpEvent([GAUSSIAN, LAPLACE, dp_event.SelfComposedDpEvent(GAUSSIAN, 4)])
    assert merged(leaves_of(parts, 2)) == [(GAUSSIAN, 10), (LAPLACE, 2)]


PLAIN = {"type": "GaussianDpEvent", "noise_multiplier": 2}


def nested(depth):
    event = PLAIN
    for _ in range(depth):
        event = {"type": "SelfComposedDpEvent", "count": 1, "event": event}
    return event


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (3, "event must be .* got 3"),
        ({}, "missing type in event"),
        ({"type": 3}, "unknown dp-accounting event '3' in event"),
        ({"type": "Gaussian"}, "did you mean 'GaussianDpEvent'"),
        ({"type": "GaussianDpEvent"}, "missing noise_multiplier in event"),
        ({**PLAIN, "noise_multipler": 1}, "did you mean 'noise_multiplier'"),
        *(
            ({**PLAIN, "noise_multiplier": z}, f"noise_multiplier must be .*, got {z}")
            for z in (0, -1, True, math.nan, math.inf)
        ),
        ({**PLAIN, "noise_multiplier": "2"}, "noise_multiplier must be .*, got the text '2'"),
        (nested(17), "at most 16 deep"),
        ({"type": "SelfComposedDpEvent", "count": 2.5, "event": PLAIN}, "event: count must be .*, got 2.5"),
        (
            {"type": "ComposedDpEvent", "events": [PLAIN, {**PLAIN, "noise_multiplier": 0}]},
            "event, events 2: noise_multiplier",
        ),
        ({"type": "ComposedDpEvent", "events": PLAIN}, "list of 1 to 1000"),
        ({"type": "ComposedDpEvent", "events": []}, "list of 1 to 1000"),
        (
            {"type": "ComposedDpEvent", "events": [{"type": "ReleaseDpEvent"}]},
            "unknown dp-accounting event 'ReleaseDpEvent' in event, events 1",
        ),
        (
            {"type": "PoissonSampledDpEvent", "sampling_probability": 1.5, "event": PLAIN},
            "sampling_probability must be .*, got 1.5",
        ),
        ({**data_of(MIXTURE), "sampling_probs": [0.5, 0.5]}, "as long as sensitivities"),
        ({**data_of(MIXTURE), "sampling_probs": [0.5, 0.4, 0.0]}, "with the sum 1"),
        ({**data_of(MIXTURE), "sensitivities": [0, 0, 0]}, "above 0"),
        ({**data_of(TREE), "step_counts": [8, 0]}, "step_counts must be .*, got 0"),
        (
            {"type": "RepeatAndSelectDpEvent", "event": PLAIN, "mean": 2, "shape": "many"},
            "shape must be .*, got the text 'many'",
        ),
        (
            {**data_of(dp_event.SampledWithoutReplacementDpEvent(9, 9, GAUSSIAN)), "sample_size": 10},
            "sample_size must be .*, got 10",
        ),
    ],
    ids=str,
)
def test_invalid_event_data_raises_one_clear_error(data, text):
    with pytest.raises(InvalidParameterError, match=text):
        event_from(data)


KEYS = ["type", "event", "events", *dict.fromkeys(key for keys in FIELDS.values() for key in keys)]
VALUES = st.recursive(
    st.one_of(st.sampled_from([*FIELDS, 0, 1, 2.5, -1, 1e308, math.nan, True, None, "inf", "", [0.5, 0.5]])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=12,
)


@pytest.mark.full
@given(st.sampled_from(EXAMPLES), st.sampled_from(KEYS), VALUES)
def test_hostile_event_data_is_parsed_or_rejected(event, key, value):
    for data in (value, {**data_of(event), key: value}):
        try:
            found = event_from(data)
        except InvalidParameterError as error:
            assert "\n" not in str(error).replace(repr(value), "")
        else:
            assert event_from(data_of(found)) == found


def test_foreign_and_endless_events_are_rejected():
    class OwnDpEvent(dp_event.DpEvent):
        """An event that dp-accounting does not know."""

    with pytest.raises(InvalidParameterError, match="OwnDpEvent"):
        data_of(OwnDpEvent())
    many = dp_event.SelfComposedDpEvent(dp_event.SelfComposedDpEvent(GAUSSIAN, 10**6), 10**6)
    with pytest.raises(InvalidParameterError, match="in total"):
        list(leaves_of(many))


@pytest.mark.parametrize(
    ("event", "step"),
    [
        (dp_event.DiscreteLaplaceDpEvent(1e-9, 1), None),
        (dp_event.GaussianDpEvent(1e-9), None),
        (GAUSSIAN, 1e-9),
        (GAUSSIAN, 20.0),
    ],
    ids=str,
)
def test_oversized_grid_is_rejected_before_allocation(event, step):
    with pytest.raises(PrecisionError):
        compose_losses([], [(event, 1)], Relation.ADD_OR_REMOVE_ONE, step)


@pytest.mark.parametrize(
    "event",
    [
        dp_event.RepeatAndSelectDpEvent(
            dp_event.PoissonSampledDpEvent(1e-15, dp_event.GaussianDpEvent(1e3)), 3.0, math.inf
        ),
        dp_event.SampledWithoutReplacementDpEvent(10, 9, dp_event.GaussianDpEvent(1e12)),
    ],
    ids=str,
)
def test_event_without_divergence_is_rejected(event):
    relation = Relation.REPLACE_ONE if hasattr(event, "sample_size") else Relation.ADD_OR_REMOVE_ONE
    with pytest.raises(UnsupportedError, match=f"dp-accounting cannot compute {type(event).__name__}"):
        add_divergences([], [(event, 1)], relation)


def test_negative_divergence_is_rejected():
    rare = dp_event.PoissonSampledDpEvent(1e-15, dp_event.GaussianDpEvent(1.0))
    assert RdpAccountant().compose(rare).rdp.min() < 0.0
    assert divergences_of(add_divergences([], [(rare, 1)], Relation.ADD_OR_REMOVE_ONE)).min() > 0.0


def test_relations_match_those_of_dp_accounting():
    assert set(RELATIONS) == set(Relation) and len(set(RELATIONS.values())) == 3
