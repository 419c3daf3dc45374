"""The likelihood ratio of an epoch in which a record is in several batches: its moments and bounds (C25)."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import Gaussian
from privproj.accounting.schedule import phase_of
from privproj.composition.compose import compose_on_grid, releases_of
from privproj.composition.dominating_pairs import DominatingPair
from privproj.composition.several_batches import TILTS, _Labeled, overlaps

STEP = 0.25


@st.composite
def pairs(draw):
    """Draw a pair of measures on a few losses, with mass at both infinities: P and Q have the total mass 1."""
    cells = sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=2)))
    cells = np.array([-draw(st.integers(1, 12)), 0, *cells])
    weights = np.array([draw(st.floats(0.02, 1.0)) for _ in cells])
    others = weights * np.exp(-STEP * cells)
    share = draw(st.floats(0.2, 0.99)) / max(weights.sum(), others.sum())
    masses = share * weights
    return DominatingPair(cells, masses, STEP, 1.0 - masses.sum(), 1.0 - share * others.sum(), 0.0)


def exact_excess(pair, batches, picks, t):
    """Return ``E (X - t)_+`` and ``E (t - X)_+`` under Q over finite X, by enumeration of all outputs."""
    ratios = np.concatenate([[0.0], np.exp(pair.losses)])
    absent = np.concatenate([[pair.infinity_mass_q], pair.masses * np.exp(-pair.losses)])
    right = left = 0.0
    for outputs in itertools.product(range(len(ratios)), repeat=batches):
        sets = itertools.combinations(outputs, picks)
        x = sum(math.prod(ratios[i] for i in each) for each in sets) / math.comb(batches, picks)
        mass = math.prod(absent[i] for i in outputs)
        right, left = right + mass * max(x - t, 0.0), left + mass * max(t - x, 0.0)
    return right, left


@settings(max_examples=60, deadline=None)
@given(
    pair=pairs(),
    epoch=st.sampled_from([(2, 1), (3, 1), (3, 2), (4, 2), (4, 3), (5, 3)]),
    loss=st.floats(-8.0, 8.0),
    tilt=st.sampled_from(sorted({tilt for tilts in TILTS.values() for tilt in tilts})),
    cut=st.sampled_from([1e-36, 0.05]),
)
def test_labels_enclose_exact_excess(pair, epoch, loss, tilt, cut):
    (batches, picks), t = epoch, math.exp(loss)
    odds = tilt * picks / (batches - picks)
    finite = replace(pair, infinity_mass=0.0)
    above = _Labeled(finite, batches, picks, odds / (1.0 + odds), cut, above=True)
    below = _Labeled(finite, batches, picks, odds / (1.0 + odds), cut, above=False)
    for right, exact in zip((True, False), exact_excess(pair, batches, picks, t), strict=True):
        upper, lower = (
            float(x[0])
            for x in (above.excess(np.array([t]), right=right), below.least_excess(np.array([t]), right=right))
        )
        assert lower * (1 - 1e-12) - 1e-15 <= exact <= upper * (1 + 1e-12) + 1e-280


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.floats(0.0, 4.0), min_size=2, max_size=3, unique=True),
    weights=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    t=st.floats(0.001, 4.5),
)
def test_excess_holds_for_every_distribution_with_these_moments(values, weights, t):
    """The bound knows mean, variance, fourth central moment and the largest value of X, which may be attained."""
    x, p = np.array(values), np.array(weights[: len(values)])
    p /= p.sum()
    mean = p @ x
    labeled = object.__new__(_Labeled)
    labeled.mean, labeled.variance, labeled.fourth = (
        np.array([y]) for y in (mean, *(p @ (x - mean) ** n for n in (2, 4)))
    )
    labeled.largest, labeled.usable, labeled.gamma = np.array([x.max()]), np.array([True]), 0.0
    labeled.absent, labeled.present = np.array([1.0, 0.0]), np.array([mean, 0.0])
    for right, exact in ((True, p @ np.maximum(x - t, 0.0)), (False, p @ np.maximum(t - x, 0.0))):
        assert exact <= float(labeled.excess(np.array([t]), right=right)[0]) * (1.0 + 1e-9) + 1e-12


def test_largest_likelihood_ratio_is_attained():
    # Two batches with a huge ratio and two with a tiny one: e_2 is about one product.
    pair = DominatingPair(np.array([-24, 24]), np.array([0.002, 0.998]), STEP, 0.0, 0.0, 0.0)
    labeled = _Labeled(pair, 4, 2, 0.4, 1e-36, above=True)
    share = labeled.mean / labeled.largest
    assert np.all(share <= 1.0)
    assert share.max() >= 0.9


def test_moments_are_those_of_exact_distribution():
    pair = DominatingPair(np.array([-4, 0, 4]), np.array([0.2, 0.3, 0.5]), STEP, 0.0, 0.0, 0.0)
    labeled = _Labeled(pair, 4, 2, 0.4, 1e-36, above=True)
    masses = labeled.absent[:-1][labeled.usable]
    ratios, absent = np.exp(pair.losses), pair.masses * np.exp(-pair.losses)
    moments = np.zeros(3)
    for outputs in itertools.product(range(3), repeat=4):
        x = sum(ratios[i] * ratios[j] for i, j in itertools.combinations(outputs, 2)) / 6.0
        moments += math.prod(absent[i] for i in outputs) * np.array([1.0, x, x * x])
    found = [masses.sum(), masses @ labeled.mean, masses @ (labeled.variance + labeled.mean**2)]
    assert found == pytest.approx(moments, rel=1e-9)


@pytest.mark.parametrize(("batches", "picks", "sets"), [(4, 2, 3), (5, 3, 2), (4, 1, 4), (3, 2, 4)])
def test_overlaps_equal_enumeration_of_sets(batches, picks, sets):
    counts = {}
    choices = list(itertools.combinations(range(batches), picks))
    for chosen in itertools.product(choices, repeat=sets):
        times = [sum(i in each for each in chosen) for i in range(batches)]
        key = tuple(times.count(d) for d in range(sets + 1))
        counts[key] = counts.get(key, 0) + 1
    expected = {key: count / len(choices) ** sets for key, count in counts.items()}
    found = overlaps(batches, picks, sets)
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], rel=1e-12) for key in found)


def epsilon(z, batches, picks, delta, epochs=1):
    run = {"steps": epochs, "sampling": "balls-in-bins", "batches": batches, "batches_per_record": picks}
    return privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, **run)


@pytest.mark.parametrize(
    ("z", "batches", "picks", "epochs", "delta"),
    [(1.0, 10, 2, 3, 1e-5), (2.0, 10, 8, 3, 1e-5), (1.0, 20, 10, 3, 1e-5), (1.0, 60, 3, 3, 1e-5)],
)
def test_epsilon_of_several_batches_is_close_to_lower_bound(z, batches, picks, epochs, delta):
    found = epsilon(z, batches, picks, delta, epochs)
    below = privproj.lower_bound(found).value
    assert below <= found.value <= 1.02 * below


def test_epsilon_increases_with_batches_of_a_record():
    found = [epsilon(1.0, 8, picks, 1e-5, 2).value for picks in range(1, 9)]
    assert all(fewer < more for fewer, more in itertools.pairwise(found))


def test_little_noise_divides_batches_into_smaller_blocks():
    assert 1000.0 < epsilon(0.05, 10, 5, 1e-5).value < 1500.0  # five batches: 5 / (2 * 0.05^2) nats


@pytest.mark.parametrize(
    ("mechanism", "batches", "picks", "delta"),
    [
        (Gaussian(noise_multiplier=0.8), 40, 39, 1e-8),  # ratios of one block are too large for moments
        (Gaussian(noise_multiplier=1.0), 10, 3, 1e-70),  # small deltas use blocks
        (privproj.Laplace(noise_multiplier=0.124), 12, 6, 1e-7),  # pure differential privacy
    ],
    ids=["huge-ratios", "small-delta", "pure"],
)
def test_several_batches_are_at_most_blocks_and_round_trip(mechanism, batches, picks, delta):
    run = {"sampling": "balls-in-bins", "batches": batches, "batches_per_record": picks}
    found = privproj.epsilon(mechanism, delta=delta, **run)
    phase = phase_of(mechanism, **run)
    in_blocks = compose_on_grid(releases_of(*phase.profile(), in_blocks=True)).epsilon(math.log(delta)).upper
    assert found.value <= in_blocks * (1.0 + 1e-9)
    assert privproj.delta(mechanism, epsilon=found.value, **run).value <= delta
