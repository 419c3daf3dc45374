"""The Gaussian profile: the functions of arrays enclose the exact deltas."""

import math

import numpy as np
from mpmath import mp

from privproj import Gaussian
from privproj.mechanisms.registry import find_bound
from privproj.profiles.gaussian import gaussian_deltas, gaussian_deltas_below, gaussian_ends, scaled_tails
from privproj.reference.special import gaussian_delta


def test_gaussian_table_encloses_delta():
    form = find_bound(Gaussian, "analytic").representation(Gaussian(noise_multiplier=0.5))
    eps = np.linspace(0, 20, 50)
    for e, below, above in zip(eps, *form.table(eps), strict=True):
        low, high = form.log_delta(float(e))
        assert math.exp(low) <= above <= math.exp(high) * (1 + 1e-8)
        assert math.exp(low) * (1 - 1e-8) <= below <= math.exp(high)


def test_scaled_tails_match_mpmath():
    rng = np.random.default_rng(1)
    x = np.concatenate([[0.0], 4.0 / np.arange(0.01, 1.0, 1 / 128) - 4.0, 10.0 ** rng.uniform(-6, 2, 300)])
    x = x[x >= 0.0]
    with mp.workdps(40):
        exact = np.array([float(mp.exp(mp.mpf(v) ** 2 / 2) * mp.erfc(mp.mpf(v) / mp.sqrt(2)) / 2) for v in x.tolist()])
    assert np.max(np.abs(scaled_tails(x) / exact - 1.0)) <= 1.6e-15


def test_gaussian_ends_enclose_exact_delta():
    rng = np.random.default_rng(2)
    eps, mu = 10.0 ** rng.uniform(-4, 1.5, 300), 10.0 ** rng.uniform(-2, 1.3, 300)
    lower, upper = gaussian_ends(eps, mu)
    for e, m, low, high in zip(eps.tolist(), mu.tolist(), lower, upper, strict=True):
        with mp.workdps(60):
            exact = gaussian_delta(mp.mpf(e), mp.mpf(m))
        assert low <= exact <= high
        if exact > 1e-250 and m > 1e-2:
            assert high <= exact * (1 + 1e-8) + 1e-14
    assert np.array_equal(lower, gaussian_deltas_below(eps, mu))
    assert np.array_equal(upper, gaussian_deltas(eps, mu))


def test_gaussian_ends_at_extreme_sensitivities():
    lower, upper = gaussian_ends(np.array([0.0, 1.0, 600.0]), np.array([0.0, 0.0, 1e9]))
    assert lower[:2].max() == 0.0 and upper[:2].max() <= 1e-299
    assert 1.0 - 1e-8 <= lower[2] <= upper[2] == 1.0
