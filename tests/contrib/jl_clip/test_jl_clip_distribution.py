"""The inverse Gamma law: both integrals against mpmath, its bins against itself."""

import math

import mpmath as mp
import numpy as np
import pytest

from privproj import reference
from privproj.contrib.jl_clip.exact import InverseGamma
from privproj.distributions.mixture_profile import any_rank_profile, rank_one_profile


def distribution(probes, z=1.0):
    return InverseGamma(0.5 * probes, 0.5 * probes / z**2)


@pytest.mark.parametrize(("probes", "eps"), [(4, 3.9), (4, 4.1), (12, 40.0)])
def test_both_integrals_enclose_reference(probes, eps):
    # Up to eps = probes one integrand is taken, beyond it the other.
    found = distribution(probes).expected_profile(eps)
    exact = mp.log(reference.value("jl-clip.exact.delta", digits=20, probes=probes, noise_multiplier=1, epsilon=eps))
    assert found.lower <= exact <= found.upper <= found.lower + 1e-10


@pytest.mark.parametrize("probes", [1, 2, 5, 30, 10**6])
def test_table_encloses_integral(probes):
    for z in (0.1, 2.0):
        eps = np.array([0.0, 1e-3, 0.5, 3.0, 40.0])
        below, above = rank_one_profile(distribution(probes, z)).table(eps)
        for e, low, high in zip(eps, below, above, strict=True):
            exact = distribution(probes, z).expected_profile(float(e))
            assert low <= math.exp(exact.upper) * (1 + 1e-12)
            assert high >= math.exp(exact.lower) * (1 - 1e-12)


@pytest.mark.parametrize("probes", [5, 30, 10**6])
def test_bins_hold_all_mass(probes):
    bins = distribution(probes).bins()
    assert bins.mass.sum() == pytest.approx(1.0, rel=1e-10)
    assert np.all(np.diff(bins.edges) > 0.0) and np.all(bins.mean >= bins.edges[:-1])
    for k in (20, 300, 500, 800):
        tail = math.exp(distribution(probes).log_tail(float(bins.edges[k])))
        assert bins.mass[k:].sum() == pytest.approx(tail, rel=1e-9)


def test_finer_bins_come_closer():
    # where delta is about 1e-5, on either side of it
    eps = np.array([5.6])
    gaps = [np.subtract(*rank_one_profile(distribution(30), finer).table(eps)[::-1])[0] for finer in (1, 4)]
    assert 0.0 < 8.0 * gaps[1] < gaps[0] < 1e-7


@pytest.mark.parametrize("probes", [3, 12, 1000])
def test_majorant_is_above_mean_and_its_table_encloses_it(probes):
    eps = np.array([0.0, 0.3, 2.0, 20.0])
    profile = any_rank_profile(distribution(probes))
    below, above = profile.table(eps)
    for e, low, high in zip(eps, below, above, strict=True):
        bound, exact = profile.log_delta(float(e)), distribution(probes).expected_profile(float(e))
        assert exact.lower <= bound.upper + 1e-12
        assert low <= math.exp(bound.upper) * (1 + 1e-12)
        assert high >= math.exp(bound.lower) * (1 - 1e-12)
