"""Tabulated hockey-stick expectations of Gamma variables against their reported error."""

import math

import mpmath
import numpy as np
import pytest

from privproj.distributions import gamma_hockey_stick as gains


@pytest.mark.full
@pytest.mark.parametrize("k", [1.0, 1.5, 4.0, 37.5, 1e3, 5e6, 1e7])
def test_gamma_gain_error_against_ball_arithmetic(k):
    """Compare with regularized incomplete gamma functions of 30 digits, over seven decades of the shape."""
    gain = gains.gamma_gain(k)
    assert gain.error < 1e-11
    rng = np.random.default_rng(int(k))
    for z, size in zip(rng.uniform(-3.0, 8.0, 6), 10.0 ** rng.uniform(-4, 1.2, 6), strict=True):
        w, x = (z if k > 30 else z / 3.0) / math.sqrt(k), min(size / math.sqrt(k), 3.0)
        with mpmath.workdps(40):
            b, tilt = mpmath.mpf(k) * mpmath.exp(mpmath.mpf(w)), 0
            tilt = b * mpmath.expm1(mpmath.mpf(x)) - mpmath.mpf(k) * x

            def density(y, k=k):
                return mpmath.exp(-k * (mpmath.expm1(y) - y))

            def over(y, k=k, b=b, x=x):
                return density(y) * -mpmath.expm1(-mpmath.expm1(x) * (k * mpmath.exp(y) - b))

            reach = [w + i * 1.5 / math.sqrt(k) for i in range(14 if k > 30 else 7)]
            front = mpmath.exp(-mpmath.loggamma(k) + k * mpmath.log(k) - k)
            exact = float(mpmath.log(front * mpmath.quad(over, reach)))
        found = float(gain.log_over(np.array([w]), np.array([x]), np.array([float(tilt)]))[0])
        assert found == pytest.approx(exact, rel=0, abs=1e-11 + 1e-14 * abs(exact))
