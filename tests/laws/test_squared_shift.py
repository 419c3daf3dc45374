"""Means over a Beta law against a dense sum."""

import math

import numpy as np
from helpers import settings_of_m2
from hypothesis import given, settings

from privproj.laws.squared_shift import ScaledBeta, log_gaussian_delta_at


@settings(max_examples=25, deadline=None)
@given(settings_of_m2)
def test_expectation_against_a_dense_trapezoid(setting):
    """The trapezoid rule is spectrally accurate for an analytic integrand on the line; the kernels are tested apart."""
    dim, rank, mu, eps = setting
    law = ScaledBeta(rank / 2, (dim - rank) / 2, mu * mu)
    step = law.step / 64
    points = law.start + step * np.arange(-64 * 40, 64 * 90)
    logs = np.array([log_gaussian_delta_at(eps, law.value(t)) + law.log_density(t) for t in points if abs(t) < 600])
    dense = logs.max() + math.log(math.fsum(np.exp(logs - logs.max())) * step)
    low, high = law.expected_profile(eps)
    assert low <= dense <= high
    assert high - low <= 1e-11 + 1e-13 * abs(dense)
