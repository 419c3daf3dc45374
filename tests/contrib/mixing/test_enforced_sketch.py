"""The integral over the eigenvalue's noise against sums that enclose it, and its excess."""

import math

import numpy as np
import pytest
from scipy import special, stats

from privproj.contrib.mixing.enforced_sketch import EnforcedSketch


def present_profile(rank, nu, eps):
    """``P(L > eps) - e^eps Q(L > eps)`` of the sketch with the record against without, from tails of a chi-square."""
    w = (rank * np.log1p(nu) + 2 * eps) / nu
    return special.chdtrc(rank, np.maximum(w, 0)) - np.exp(eps) * special.chdtrc(rank, np.maximum(w, 0) * (1 + nu))


@pytest.mark.parametrize(
    ("rank", "gamma", "eigen_noise"), [(100, 65.0, 7.0), (3, 2.0, 0.5), (1, 1.0, 4.0), (5000, 300.0, 40.0)]
)
@pytest.mark.parametrize("eps", [0.0, 0.4, 2.0])
def test_monotone_sums_enclose_integral(rank, gamma, eigen_noise, eps):
    """``R h`` increases with ``u``, so its values at the ends of cells give sums below and above, without a rule."""
    mu, end = 1 / eigen_noise, gamma / eigen_noise
    u = np.linspace(-9.0, min(end * (1 - 1e-9), 9.0 + mu), 20_001)
    shift = np.clip(u, 0.0, mu)
    ratio = shift * u - 0.5 * shift**2
    values = np.exp(ratio) * present_profile(rank, 1.0 / (gamma - eigen_noise * u), eps - ratio)
    mass = np.diff(stats.norm.cdf(u))
    far = u[-1]
    beyond = (mu - far) / math.sqrt(2 * math.pi) + 0.5 if far < mu else stats.norm.sf(far - mu)
    least, most = np.sum(mass * values[:-1]), np.sum(mass * values[1:]) + beyond + 1e-18
    if end < 9.0:
        least += beyond
    lower, upper = (
        min(math.exp(x[0]), 1.0) for x in EnforcedSketch(rank, gamma, eigen_noise).log_delta_ends(np.array([eps]), True)
    )
    assert least * (1 - 1e-9) <= upper and lower <= most * (1 + 1e-9)
    assert upper <= lower * (1 + 1e-6)


def test_excess_is_constant_beyond_cut():
    distribution = EnforcedSketch(100.0, 65.0, 7.0)
    losses = np.array([-60.0, -30.0, -0.7, -0.1, 0.0, 0.1, 0.7, 30.0, 60.0])
    lower, upper = distribution.excess(losses)
    assert np.all(lower <= upper)
    for present, sign in ((True, 1.0), (False, -1.0)):
        at = losses[losses * sign > 0]
        exact = np.exp(distribution.log_delta_ends(np.abs(at), present)[1] + np.minimum(at, 0.0))
        found = upper[losses * sign > 0]
        assert np.all(found >= exact)
        near = np.abs(at) < 1.0
        assert np.all(found[near] <= exact[near] * (1 + 1e-9))
    assert upper[-1] == upper[-2] < 1e-12
    assert lower[-1] == lower[0] == 0.0


@pytest.mark.parametrize("gamma", [0.01, 1e12])
@pytest.mark.parametrize("eigen_noise", [0.01, 1e6])
def test_enforced_sketch_at_ends_of_its_domain(gamma, eigen_noise):
    distribution = EnforcedSketch(3.0, gamma, eigen_noise)
    for present in (True, False):
        lower, upper = distribution.log_delta_ends(np.array([0.0, 0.3, 1e6]), present)
        assert np.all(lower <= upper) and np.all(upper <= 0.0)
        assert np.all(np.diff(upper) <= 1e-6)
