"""Audits in one run."""

import math

import pytest
from scipy import stats

import privproj


def test_one_run_finds_half_the_noise(release):
    from privproj.audit.one_run import one_run

    loud = one_run(privproj.Gaussian(noise_multiplier=0.5), 1000, 200, 1e-5, 0.95, seed=0)
    quiet = one_run(privproj.Gaussian(noise_multiplier=4.0), 1000, 200, 1e-5, 0.95, seed=0)
    assert quiet[0] < 0.6 < 2.0 < loud[0] and loud[1] > 190
    known = stats.norm.cdf(1.0 / (0.5 * math.sqrt(2.0)))
    assert loud[2] == pytest.approx(known, abs=0.03, rel=0)
    claim = privproj.epsilon(privproj.Gaussian(noise_multiplier=4.0), delta=1e-5).value
    assert quiet[0] < claim < loud[0]
