"""Expectations over a Beta distribution against a dense sum."""

import math

import numpy as np
import pytest
from helpers import settings_of_m2
from hypothesis import given, settings
from hypothesis import strategies as st

from privproj.distributions.squared_sensitivity import ScaledBeta, log_gaussian_delta_at


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(settings_of_m2)
def test_expected_profile_matches_dense_trapezoid(setting):
    """The trapezoidal rule is spectrally accurate for an analytic integrand on the line."""
    dim, rank, mu, eps = setting
    dist = ScaledBeta(rank / 2, (dim - rank) / 2, mu * mu)
    step = dist.step / 64
    points = dist.start + step * np.arange(-64 * 40, 64 * 90)
    logs = np.array([log_gaussian_delta_at(eps, dist.value(t)) + dist.log_density(t) for t in points if abs(t) < 600])
    dense = logs.max() + math.log(math.fsum(np.exp(logs - logs.max())) * step)
    low, high = dist.expected_profile(eps)
    assert low <= dense <= high
    assert high - low <= 1e-11 + 1e-13 * abs(dense)


@settings(max_examples=15, deadline=None)
@given(settings_of_m2, st.floats(1e-6, 1e3), st.floats(0.0, 1.2))
def test_truncated_profile_matches_dense_trapezoid(setting, shift, share):
    """``E[h_eps(X + c^2); X + c^2 <= x]``; the integrand is unimodal although it is flat on the left (C31)."""
    dim, rank, mu, eps = setting
    base = ScaledBeta(rank / 2, (dim - rank) / 2, mu * mu)
    dist = ScaledBeta(base.a, base.b, base.scale, shift)
    up_to = shift + share * base.scale
    step = base.step / 64
    points = base.start + step * np.arange(-64 * 40, 64 * 90)
    logs = [
        log_gaussian_delta_at(eps, base.value(t) + shift) + base.log_density(t)
        for t in points
        if abs(t) < 600
    ]  # fmt: skip
    low, high = dist.expected_profile(eps)
    dense = min(0.0, max(logs) + math.log(math.fsum(np.exp(np.array(logs) - max(logs))) * step))
    assert low <= dense <= high
    assert high - low <= 1e-9 + 1e-12 * abs(dense)
    assert dist.expected_profile(eps, up_to).lower <= high
    # Both parts together are the whole: the tail and the mean above are those of the parts.
    tail, above = math.exp(dist.log_tail(up_to)), dist.mean_above(up_to)
    assert 0.0 <= tail <= 1.0 and min(up_to, dist.supremum) * (1.0 - 1e-12) <= above <= dist.supremum
    assert tail * above <= dist.mean * (1.0 + 1e-9)


def test_mean_above_of_shifted_distribution():
    base = ScaledBeta(4.0, 28.0, 5.0)
    dist = ScaledBeta(4.0, 28.0, 5.0, 0.75)
    for x in (0.1, 0.8, 1.5, 4.0, 5.7, 6.0):
        inside = 0.75 < x < 5.75
        assert dist.log_tail(x) == (base.log_tail(x - 0.75) if inside else 0.0 if x <= 0.75 else -math.inf)
        if inside:
            assert dist.mean_above(x) == pytest.approx(base.mean_above(x - 0.75) + 0.75, rel=1e-12)
    assert (dist.mean_above(0.1), dist.mean_above(6.0)) == (dist.mean, 5.75)
    bins, moved = base.bins(), dist.bins()
    assert np.array_equal(moved.mass, bins.mass)
    assert moved.mean @ moved.mass == pytest.approx(dist.mean, rel=1e-9)
