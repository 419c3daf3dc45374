"""Repeated squaring: losses of many scales are enclosed tightly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import Gaussian, Laplace
from privproj.composition import repeated_squaring


def merged(distribution, scale):
    """Return a dominated distribution: atoms with neighboring ratios are merged; independent of the package."""
    seen = (distribution[0] > 1e-30) & (distribution[1] > 1e-30)
    p, q = distribution[0][seen], distribution[1][seen]
    group = np.floor(np.arcsinh(np.log(p / q) / scale) * 20.0).astype(int)
    group -= group.min()
    p, q = np.bincount(group, p), np.bincount(group, q)
    return p[p > 0.0], q[p > 0.0]


def garbled_run(z, rate, steps):
    """Return a tight lower bound of the run: the exact masses of 3000 bins, squared and merged."""
    edges = np.concatenate([[-np.inf], np.linspace(-8.0, 8.0 + 1.0 / z, 3000), [np.inf]])
    cdf = [np.array([0.5 * math.erfc((m - x) / math.sqrt(2.0)) for x in edges]) for m in (0.0, 1.0 / z)]
    q, p = (np.diff(c) for c in cdf)
    seen = (q > 1e-15) & (p > 0.0)
    q, p = q[seen], p[seen]
    base = whole = merged(((1.0 - rate) * q + rate * p, q), 0.1 * rate)
    for bit in bin(steps)[3:]:
        for other in [whole, base] if bit == "1" else [whole]:
            product = (np.outer(one, two).ravel() for one, two in zip(whole, other, strict=True))
            whole = merged(tuple(product), 0.1 * rate)
    return whole


def garbled_delta(distribution, eps):
    p, q = distribution
    t = math.exp(eps)
    return max(float(np.maximum(p - t * q, 0.0).sum()), float(np.maximum(q - t * p, 0.0).sum()))


MANY_SCALES = [
    (10.0 ** (-0.6 + 0.11 * (i % 8)), 10.0 ** (-6.0 + 0.45 * (i % 9)), (2, 3, 5, 12, 30)[i % 5]) for i in range(20)
]


@pytest.mark.full
@pytest.mark.parametrize(("z", "rate", "steps"), MANY_SCALES)
def test_rare_losses_are_enclosed_within_four_percent(z, rate, steps):
    distribution = garbled_run(z, rate, steps)
    top = garbled_delta(distribution, 0.0)
    for share in (0.5, 1e-2):
        delta = max(top * share, 1e-10)
        result = privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, steps=steps, sampling_rate=rate)
        assert garbled_delta(distribution, result.value) <= delta * (1.0 + 1e-6)
        assert (result.lower or 0.0) <= result.value
        close = (
            garbled_delta(distribution, result.value) >= 0.97 * delta
            or garbled_delta(distribution, 0.96 * result.value) > delta
        )
        assert close or delta > top


@settings(max_examples=40, deadline=None)
@given(
    losses=st.lists(st.floats(-4.0, 4.0), min_size=1, max_size=6),
    points=st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=8),
)
def test_split_atoms_dominate_and_merged_atoms_are_dominated(losses, points):
    """The proof needs this for every grid, in both directions."""
    unit = 2.0**-40
    losses, points = (np.unique(np.rint(np.array(x) / unit)) * unit for x in (losses, points))
    distribution = repeated_squaring.LossPmf(losses, np.full(len(losses), 1.0 / len(losses)), 0.0, 0.0, unit)
    placed, merge = (
        repeated_squaring.split_atoms(distribution, points, unit),
        repeated_squaring.merge_atoms(distribution, points, unit),
    )
    for eps in np.linspace(-5.0, 5.0, 21):
        for one, two in ((distribution, placed), (distribution.mirrored(), placed.mirrored())):
            assert whole_delta(two, eps) >= whole_delta(one, eps) * (1.0 - 1e-12)
        assert whole_delta(merge, eps) <= whole_delta(distribution, eps) * (1.0 + 1e-12) + 1e-15


def test_far_atoms_dominate_at_infinity_and_less_if_removed():
    distribution = repeated_squaring.LossPmf(
        np.array([-1.0, 0.5, 100.0, 300.0]), np.array([0.2, 0.7, 0.09, 0.01]), 0.0, 0.0, 0.5
    )
    near, left = (repeated_squaring._without_far_atoms(distribution, below=below) for below in (False, True))
    assert near.reach < repeated_squaring.LARGEST_REACH / 2 < distribution.reach
    for eps in (-5.0, 0.0, 2.0, 50.0, 200.0, 400.0):
        for one, two in ((distribution, near), (distribution.mirrored(), near.mirrored())):
            assert whole_delta(two, eps) >= whole_delta(one, eps) * (1.0 - 1e-12)
        assert whole_delta(left, eps) <= whole_delta(distribution, eps)
    # If all atoms are too far, all mass is infinite, or the lower bound is 0.
    alone = repeated_squaring.LossPmf(np.array([200.0]), np.ones(1), 0.0, 0.0, 0.5)
    assert repeated_squaring.compose_pmfs([(alone, 3)]).infinity_mass >= 1.0
    assert whole_delta(repeated_squaring.compose_pmfs([(alone, 3)], below=True), 0.0) == 0.0


@pytest.mark.full
@pytest.mark.parametrize("delta", [1e-14, 1e-16, 1e-18])
def test_lower_bound_keeps_mass_at_end_of_support(delta):
    """A release without a sampled record has the least loss."""
    found = privproj.epsilon(Gaussian(noise_multiplier=0.2), delta=delta, steps=100, sampling_rate=1e-7)
    assert found.lower < found.value < 1.01 * found.lower


def test_rarely_sampled_run_is_enclosed():
    """One run in 25 million has losses of 373 nats; the lower bound has almost no mass."""
    run = {"steps": 1665, "sampling_rate": 2.4e-11}
    found = privproj.delta(Laplace(noise_multiplier=0.00268), epsilon=0.0, **run)
    drawn = -math.expm1(1665 * math.log1p(-2.4e-11))
    assert (found.lower or 0.0) <= drawn * (1.0 + 1e-12)
    assert found.value == pytest.approx(drawn, rel=1e-6)


def test_loose_result_is_replaced_until_no_grid_is_tighter():
    """Being sampled twice is rarer than delta, so epsilon is at most the loss of one sampling."""
    rate, steps, delta = 1e-9, 100, 1e-12
    assert math.comb(steps, 2) * rate**2 < delta
    found = privproj.epsilon(Laplace(noise_multiplier=1 / 300), delta=delta, steps=steps, sampling_rate=rate)
    assert found.value < 1.01 * (300.0 + math.log(rate))


def whole_delta(distribution, eps):
    return distribution.infinity_mass + float(
        distribution.masses @ np.maximum(-np.expm1(eps - distribution.losses), 0.0)
    )
