"""The gain against 30 digits and against a quadrature, and bounds off the real line."""

import math

import mpmath
import numpy as np
import pytest

from privproj.distributions import gamma_hockey_stick as gains
from privproj.distributions.wishart_integral import WishartIntegral, log_gamma_ratio


@pytest.mark.parametrize("k", [1.0, 20.0, 1e4, 5e6, 1e7])
def test_gamma_gain_matches_quadrature(k):
    """Exponents as large as the shape cancel, which must not lose digits."""
    gain, rng = gains.gamma_gain(k), np.random.default_rng(3)
    w, x = rng.uniform(-0.9, 6.0, 200) / math.sqrt(k), 10.0 ** rng.uniform(-3, 1, 200) / math.sqrt(k)
    start = k * np.exp(w)
    with np.errstate(all="ignore"):
        over = gains.log_gamma_hockey_stick(k, np.expm1(x), start, 1.0)
        under = gains.log_gamma_hockey_stick(k, -np.expm1(-x), start, -1.0)
    np.testing.assert_allclose(gain.log_over(w, x, start * np.expm1(x) - k * x), over, rtol=0, atol=2e-11)
    np.testing.assert_allclose(gain.log_under(w, x), under, rtol=0, atol=2e-11)


def test_log_gain_matches_30_digits():
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
        found = float(gains.log_gamma_hockey_stick(k, np.array([rate]), np.array([start]), sign)[0])
        assert found == pytest.approx(exact(k, rate, start, sign), rel=0, abs=1e-11)


def _size_at(dim, rank, m, eps, a):
    """Return ``|f g|`` at a complex ``A``, by incomplete gamma functions in 40 digits (C9)."""
    k, half, x = mpmath.mpf(rank + dim - 1) / 2, mpmath.mpf(dim + 1 - rank) / 2, -mpmath.log(a)
    c, eps, m = rank - 1, mpmath.mpf(eps), mpmath.mpf(m)
    below = mpmath.re(a) < 1
    tail = (lambda z: mpmath.gammainc(k, z, mpmath.inf, True)) if below else (lambda z: mpmath.gammainc(k, 0, z, True))
    z = (half * x + eps) / mpmath.expm1(x)
    gain = tail(z) - mpmath.exp(eps - c * x) * tail(z * mpmath.exp(x))
    density = mpmath.exp(log_gamma_ratio(rank)) / mpmath.sqrt(m * (2 - m))
    return abs(gain * density * (1 + (a - 1 + m) ** 2 / (m * (2 - m))) ** (-mpmath.mpf(rank + 1) / 2))


@pytest.mark.parametrize(("dim", "rank", "m", "eps"), [(40, 3, 0.01, 0.3), (25, 12, 0.1, 1.0), (60, 1, 1e-3, 0.1)])
def test_complex_plane_bounds_hold(dim, rank, m, eps):
    integral = WishartIntegral(dim, rank, m, np.array([eps]))
    pieces = integral.pieces()
    checked = 0
    with np.errstate(all="ignore"), mpmath.workdps(40):
        for ellipse in (2.0, 3.0):
            bounds = integral.log_size(pieces, ellipse)
            for i in range(0, len(bounds), 3):
                piece = pieces[np.array([i])]
                center = float(integral.offset(piece.kind, piece.index, 0.5 * (piece.low + piece.high))[0])
                half = 0.25 * float(piece.high[0] - piece.low[0])
                if not (np.isfinite(bounds[i]) and abs(center) < 3.0 and half > 1e-6):
                    continue
                for turn in (0.3, 1.2, 2.4):
                    shift = mpmath.mpc(
                        half * (ellipse + 1.0 / ellipse) * math.cos(turn),
                        half * (ellipse - 1.0 / ellipse) * math.sin(turn),
                    )
                    size = _size_at(dim, rank, m, eps, 1 + center + shift)
                    assert mpmath.log(size) <= bounds[i] + 1e-9
                    checked += 1
    assert checked > 20
