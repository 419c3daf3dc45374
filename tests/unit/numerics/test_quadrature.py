"""Quadrature: exact for polynomials, and an error if it does not converge."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privproj.errors import ConvergenceError
from privproj.numerics.quadrature import gauss_legendre, log_integral


def test_gauss_rule_is_exact_for_polynomials():
    for n in (13, 20):
        rule = gauss_legendre(n)
        for degree in range(2 * n):
            assert math.fsum(w * x**degree for x, w in rule) == pytest.approx(1 / (degree + 1), rel=1e-14, abs=0)


@settings(max_examples=80)
@given(center=st.floats(-50, 50), log_width=st.floats(-6, 3), start=st.floats(-20, 20), cut=st.floats(-3, 6))
def test_log_integral_of_normal_density(center, log_width, start, cut):
    width = math.exp(log_width)

    def log_f(t):
        return -0.5 * ((t - center) / width) ** 2 - math.log(width) - 0.5 * math.log(2 * math.pi)

    value, error = log_integral(log_f, center + start * width, width, center + cut * width)
    assert error <= 1e-12
    assert math.exp(value) == pytest.approx(0.5 * math.erfc(-cut / math.sqrt(2)), rel=1e-11, abs=0)


def test_log_integral_raises_not_converged():
    with pytest.raises(ConvergenceError):
        log_integral(lambda t: -abs(t) + math.sin(1e5 * t), 0.3, 1.0)
