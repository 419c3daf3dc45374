"""Slopes of gains and tails of the alignment against 40 digits, and sizes off the real line."""

import math

import mpmath
import numpy as np
import pytest

from privproj.laws.wishart_integral import WishartIntegral
from privproj.laws.wishart_loss import log_gamma_ratio, log_infinite
from privproj.numerics.arrays import gauss_nodes
from privproj.numerics.gamma_hockey_stick import log_gamma_hockey_stick


def integral_of(dim, rank, m, eps):
    front = log_gamma_ratio(rank) - 0.5 * math.log(rank)
    return WishartIntegral(dim, rank, m, log_infinite(rank, m), front, np.array([eps]))


def exact_slope(dim, rank, eps, x, sign):
    """``g'`` by incomplete gamma functions at a real or complex ``x`` (C9)."""
    k, a, c = mpmath.mpf(rank + dim - 1) / 2, mpmath.mpf(dim + 1 - rank) / 2, rank - 1
    u = (a * x + sign * eps) / mpmath.expm1(x)
    v = u * mpmath.exp(x)
    own, other, away = (u, v, mpmath.inf) if sign > 0 else (v, u, 0)
    density = mpmath.exp(k * mpmath.log(own) - own - mpmath.loggamma(k))
    tail = mpmath.gammainc(k, other, away, True) if sign > 0 else mpmath.gammainc(k, 0, other, True)
    return density + sign * c * mpmath.exp(eps - sign * c * x) * tail


def exact_tail(rank, m, x, sign):
    """``P(0 < A < e^-x)`` or ``P(A > e^x)`` at a real or complex ``x``, by a series that holds off the line (C9)."""

    def beyond(t):
        # P(T > t sqrt(r)) = 1/2 - c_r t 2F1(1/2, (r+1)/2; 3/2; -t^2)
        half = mpmath.mpf(rank) / 2
        front = mpmath.gamma(half + mpmath.mpf(1) / 2) / mpmath.gamma(half) / mpmath.sqrt(mpmath.pi)
        return mpmath.mpf(1) / 2 - front * t * mpmath.hyp2f1(0.5, half + 0.5, 1.5, -t * t)

    m = mpmath.mpf(m)
    unit = mpmath.sqrt(m * (2 - m))
    t = (mpmath.expm1(-sign * x) + m) / unit
    return beyond(-t) - beyond((1 - m) / unit) if sign > 0 else beyond(t)


@pytest.mark.parametrize(
    ("dim", "rank", "eps"),
    [(2, 1, 0.1), (3, 2, 0.0), (40, 3, 0.3), (25, 12, 1.0), (10, 40, 0.5), (2048, 16, 1.0), (2048, 700, 2.0)],
)
def test_slopes_against_40_digits(dim, rank, eps):
    """Both incomplete gammas and both continued fractions: the thresholds run from far below the mean to far above."""
    integral, checked = integral_of(dim, rank, 0.01, eps), 0
    for sign in (1.0, -1.0) if integral.a > 0 else (1.0,):
        most = integral.turn[0] if sign > 0 else math.inf
        for size in 10.0 ** np.arange(-4.0, 1.1, 0.25):
            place = size / math.sqrt(integral.k) * 3.0
            if place >= most:
                continue
            with np.errstate(all="ignore"), mpmath.workdps(60):
                found, steep = integral.log_slope(sign, np.zeros(1, np.intp), np.array([place]))
                kink = mpmath.mpf(eps) / mpmath.mpf(integral.a) if sign < 0 else 0
                exact = mpmath.log(exact_slope(dim, rank, eps, place + kink, int(sign)))
            if exact > -1e4:
                assert float(found[0] - exact) == pytest.approx(0.0, abs=1e-12 + 1.5e-15 * float(steep[0]))
                checked += 1
    assert checked > 10


@pytest.mark.parametrize("k2", [3, 41, 2063, 20001])
def test_slopes_add_up_to_the_gain(k2):
    """Between two places a gain rises by the integral of its slope: the gains by their own quadrature."""
    rank = 1 + k2 // 20
    integral, eps, nodes = integral_of(k2 + 1 - rank, rank, 0.01, 0.2), 0.2, gauss_nodes(64)
    for sign in (1.0, -1.0):
        kink = eps / integral.a if sign < 0 else 0.0
        low, high = (size / math.sqrt(integral.k) for size in (0.5, 1.0))
        with np.errstate(all="ignore"):
            slope = np.exp(integral.log_slope(sign, np.zeros(64, np.intp), low + (high - low) * nodes[0])[0])
            x = np.array([low, high]) + kink
            rate = sign * np.expm1(sign * x)
            gain = np.exp(log_gamma_hockey_stick(integral.k, rate, (integral.a * x + sign * eps) / rate, sign))
        assert float(slope @ nodes[1]) * (high - low) == pytest.approx(float(gain[1] - gain[0]), rel=1e-9)


@pytest.mark.parametrize("rank", [1, 2, 16, 200, 5000])
def test_tails_of_the_alignment_against_40_digits(rank):
    """Small and large deviations, and tails far below the least double."""
    integral = integral_of(10, rank, 0.01, 1.0)
    sizes = 10.0 ** np.arange(-7.0, 2.1, 0.5) / math.sqrt(rank)
    with np.errstate(all="ignore"):
        found = integral.log_student_tail(np.concatenate([sizes, -sizes]))
    for t, value, below in zip(sizes.tolist(), found[: len(sizes)], found[len(sizes) :], strict=True):
        with mpmath.workdps(50):
            square = mpmath.mpf(t) ** 2
            half = mpmath.betainc(mpmath.mpf(rank) / 2, 0.5, 0, 1 / (1 + square), regularized=True) / 2
            exact = float(mpmath.log(half)), float(mpmath.log1p(-half))
        assert value == pytest.approx(exact[0], rel=1e-14, abs=1e-12)
        assert below == pytest.approx(exact[1], rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(("dim", "rank", "m", "eps"), [(40, 3, 0.01, 0.3), (25, 12, 0.1, 1.0), (60, 1, 1e-3, 0.1)])
def test_sizes_off_the_real_line_are_bounds(dim, rank, m, eps):
    integral, checked = integral_of(dim, rank, m, eps), 0
    for sign in (1.0, -1.0):
        panels = integral.first_panels(sign).cut
        with np.errstate(all="ignore"), mpmath.workdps(40):
            for pieces in (panels(np.ones(len(integral.first_panels(sign).low), np.intp) * n) for n in (1, 3)):
                for ellipse in (2.0, 3.0):
                    bounds = integral.log_size(sign, pieces, ellipse)
                    ends = integral.ends(sign, pieces)
                    for i in range(0, len(bounds), 5):
                        low, high = float(ends[0][i]), float(ends[1][i])
                        if not (np.isfinite(bounds[i]) and low > 1e-4 and high < 3.0):
                            continue
                        for turn in (0.3, 1.2, 2.4):
                            x = 0.5 * (low + high) + 0.25 * (high - low) * mpmath.mpc(
                                (ellipse + 1.0 / ellipse) * math.cos(turn), (ellipse - 1.0 / ellipse) * math.sin(turn)
                            )
                            size = abs(exact_slope(dim, rank, eps, x, int(sign)) * exact_tail(rank, m, x, int(sign)))
                            assert mpmath.log(size) <= bounds[i] + 1e-9
                            checked += 1
    assert checked > 40


@pytest.mark.parametrize(("dim", "rank", "m", "eps"), [(40, 3, 0.01, 0.3), (25, 12, 0.1, 1.0), (10, 40, 0.2, 0.5)])
def test_the_most_of_a_panel_is_above_its_integral(dim, rank, m, eps):
    integral = integral_of(dim, rank, m, eps)
    for sign in (1.0, -1.0) if integral.a > 0 else (1.0,):
        panels = integral.first_panels(sign)
        with np.errstate(all="ignore"):
            # Where hardly anything of A > 0 is left, the tail is a rounding of P(A <= 0).
            most = np.logaddexp(integral.log_most(sign, panels), integral.log_infinite - 33.0)
            assert np.all(integral.gauss(sign, panels)[0] <= most)
