"""The hockey stick of a Gamma variable against 30 digits."""

import math

import mpmath
import numpy as np
import pytest

from privproj.numerics import gamma_hockey_stick


def test_inner_average_against_30_digits():
    def exact(k, rate, start, sign):
        with mpmath.workdps(30):
            width = math.sqrt(k)
            if sign > 0:
                points = [max(start, 0.0), *(p for p in (k, k + 12 * width, k + 40 * width + 100) if p > start)]
            else:
                points = [*(p for p in (0.0, k - 12 * width, k) if 0.0 <= p < start), start]

            def integrand(u):
                return mpmath.exp((k - 1) * mpmath.log(u) - u - mpmath.loggamma(k)) * -mpmath.expm1(
                    -rate * sign * (u - start)
                )

            return float(mpmath.log(mpmath.quad(integrand, points)))

    for k, rate, start, sign in (
        (1.0, 1e-6, 3.0, 1.0), (1.0, 5.0, 0.3, 1.0), (1.5, 0.5, 1.0, -1.0), (1.5, 0.9, 30.0, -1.0),
        (20.0, 0.1, 10.0, 1.0), (20.0, 0.5, 8.0, -1.0), (1e3, 0.9, 1030.0, -1.0), (1e4, 1e-5, 9.9e3, 1.0),
    ):  # fmt: skip
        found = float(gamma_hockey_stick.log_gamma_hockey_stick(k, np.array([rate]), np.array([start]), sign)[0])
        assert found == pytest.approx(exact(k, rate, start, sign), rel=0, abs=1e-11)
