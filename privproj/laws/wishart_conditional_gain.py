"""Two monotone ingredients of the vector Wishart profile with unequal norms: gains given ``A``, and tails of ``A``.

With ``k = (d + r - 1)/2``, ``a = (d + 1 - r)/2``, ``A = e^x``, ``tau = ln kappa`` and ``e' = eps + (r-1) tau`` the pair
has, given ``A``, the gain (C12)

    G(x) = E[(1 - e^(-(e^y - 1)(U - (a y + e')/(e^y - 1))))_+]        x = tau - y, y > 0
    G(x) = E[(1 - e^(-(1 - e^-y)((a y - e')/(1 - e^-y) - U)))_+]      x = tau + y, y > 0

with ``U ~ Gamma(k)``. It does not depend on the alignment, falls up to a valley at or beyond ``tau`` and rises from
there. The alignment enters only by the tails of ``A``.

Shapes: ``y`` is ``(n,)`` and ``start``, which holds ``e'`` for each epsilon, is ``(e,)``; what depends on both is ``(n,
e)``, and bounds between neighbouring ``y`` are ``(n - 1, e)``.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from privproj.laws.wishart_loss import log_gamma_ratio
from privproj.numerics.arrays import Array
from privproj.numerics.gamma_hockey_stick import log_gamma_hockey_stick
from privproj.numerics.kernels import stirling_remainder

LEAST_SHARE_OF_DIFFERENCE = 1e-5
"""A difference of two incomplete gammas above this share of the first keeps nine digits (C12). Soundness."""

INVISIBLE_PROBABILITY = 1e-280
"""Probabilities below this are 0 here; the caller adds a floor that is larger than all of them. Soundness."""

LARGEST_BOUND_EXPONENT = 600.0
"""Largest exponent that is evaluated; one beyond counts as :data:`HUGE_BOUND` in upper bounds. Soundness."""

HUGE_BOUND = 1e280
"""Value of an exponential with a larger exponent: above every probability, so the bound then says nothing.
Soundness."""

LEAST_LOG_ARGUMENT = 1e-300
"""Least argument of a logarithm or a density. Soundness."""

LARGEST_THRESHOLD = 1e300
"""Finite stand-in for an infinite threshold, where all tails and densities are 0. Soundness."""


def exp_from_above(x: Array) -> Array:
    """Return ``e^x`` from above, and finite: :data:`HUGE_BOUND` beyond :data:`LARGEST_BOUND_EXPONENT`."""
    return np.where(x > LARGEST_BOUND_EXPONENT, HUGE_BOUND, np.exp(np.minimum(x, LARGEST_BOUND_EXPONENT)))


def _safe_difference(first: Array, exponent: Array, second: Array) -> Array:
    """Return ``first - e^exponent second``, or -1 where ``second`` underflows and the exponential would undo that."""
    return np.where(
        (second < INVISIBLE_PROBABILITY) & (exponent > 0.0), -1.0, first - exp_from_above(exponent) * second
    )


@dataclass(frozen=True)
class _SlopePanels:
    """Bounds of the slope of a gain between neighbouring nodes, each of shape ``(n - 1, e)``.

    Beyond ``tau``, ``high >= G' >= low``. Before ``tau``, where the gain falls, ``high >= -G' >= low``.
    """

    high: Array
    low: Array


@dataclass(frozen=True)
class ConditionalGain:
    """The gain ``G`` given ``A``, and bounds of its slope, for many ``eps`` at once (C12, step 1).

    ``dim`` and ``rank`` are ``d`` and ``r`` of the mechanism. Gains are right to 1e-8 relative, which
    :mod:`privproj.laws.wishart_unequal_norms` allows for.
    """

    dim: int
    rank: int

    @property
    def constants(self) -> tuple[float, float, float]:
        """The constants ``k = (d + r - 1)/2``, ``a = (d + 1 - r)/2`` and ``r - 1``, in this order."""
        return 0.5 * (self.rank + self.dim - 1.0), 0.5 * (self.dim + 1.0 - self.rank), self.rank - 1.0

    def at(self, y: Array, start: Array, side: float) -> Array:
        """Return the gain ``G(tau - side y)`` at every ``y > 0``, of shape ``(n, e)``.

        ``side`` is 1 before ``tau``, where the gain falls, and -1 beyond. It is a difference of two incomplete gamma
        functions, or a quadrature where that keeps too few digits, and 0 where it is invisible.
        """
        k, a, c = self.constants
        y = y[:, None]
        # Q(k, b) - e^(e' - (r-1) y) Q(k, b e^y),   b = (a y + e')/(e^y - 1) cut at 0, before tau (C12)
        # P(k, b) - e^(e' + (r-1) y) P(k, b e^-y),  b = (a y - e')/(1 - e^-y) cut at 0, beyond
        rate = side * np.expm1(side * y)
        place = (a * y + side * start) / rate
        b = np.maximum(place, 0.0)
        first = self.tail(b, side)
        value = _safe_difference(first, start - side * c * y, self.tail(b * (1.0 + side * rate), side))
        weak = (first > INVISIBLE_PROBABILITY) & ~(value > LEAST_SHARE_OF_DIFFERENCE * first)
        value = np.where(first > INVISIBLE_PROBABILITY, value, 0.0)
        if np.any(weak):
            rate = np.broadcast_to(rate, place.shape)
            value[weak] = np.exp(log_gamma_hockey_stick(k, rate[weak], place[weak], side))
        return np.clip(np.nan_to_num(value), 0.0, 1.0)

    def tail(self, v: Array, side: float) -> Array:
        """Return ``Q(k, v)`` before ``tau`` (``side = 1``), and ``P(k, v)`` beyond (-1)."""
        return (special.gammaincc if side > 0.0 else special.gammainc)(self.constants[0], v)

    def density(self, v: Array) -> Array:
        """Return ``N(v) = v g_k(v)``, where ``g_k`` is the density of ``Gamma(k)``; 0 for ``v <= 0``."""
        k = self.constants[0]
        # v g_k(v) = sqrt(k/2 pi) e^-R e^(-k (w - 1 - ln w)), w = v/k, R the remainder of Stirling's formula
        w = np.maximum(v, LEAST_LOG_ARGUMENT) / k
        log_value = k * (np.log(w) - (w - 1.0)) + 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k)
        return np.where(v > 0.0, np.exp(log_value), 0.0)

    def slope_rate(self, v: Array, side: float) -> Array:
        """Return ``R(v)`` before ``tau`` (``side = 1``), and ``J(v)`` beyond (-1).

        The slope of both is ``(a - v) g_k(v)`` (C12, step 1).
        """
        # R(v) = v g_k(v) + (r-1) Q(k, v),  J(v) = v g_k(v) - (r-1) P(k, v)
        return self.density(v) + side * self.constants[2] * self.tail(np.maximum(v, 0.0), side)

    def slopes(self, y: Array, start: Array, side: float) -> _SlopePanels:
        """Return bounds of the slope between neighbouring ``y``, which increase from 0 or above.

        Before ``tau`` (``side = 1``) ``-G'(tau - y) = e^(e' - (r-1) y) R(v)`` at ``v = (a y + e')/(1 - e^-y)``. Beyond
        (-1) ``G'(tau + y) = e^(e' + (r-1) y) J(v)`` at ``v = (a y - e')/(e^y - 1)``. ``R(v(y))`` and ``J(v(y))`` are
        quasi-concave, so the least value is at an end and the largest at an end or the peak. ``J`` may be negative.
        """
        _, a, c = self.constants
        y = y[:, None]
        rise = -side * np.expm1(-side * y)
        with np.errstate(all="ignore"):
            v = np.maximum((a * y + side * start) / rise, 0.0)
        at_tau = np.where(side * start > 0.0, np.inf, np.where(side * start < 0.0, 0.0, max(a, 0.0)))
        v = np.where(y > 0.0, v, at_tau)
        rate = self.slope_rate(np.minimum(v, LARGEST_THRESHOLD), side)
        # The largest rate is at an end, or where v turns, a (e^(side y) - 1 - side y) = e', or at v = a (C12, step 1).
        near, far = rate[:-1], rate[1:]
        top, least = np.maximum(near, far), np.minimum(near, far)
        if a > 0.0:
            turn = a * (np.expm1(np.minimum(side * y, LARGEST_BOUND_EXPONENT)) - side * y) - start
            passes_a = (side * (v[:-1] - a) <= 0.0) & (side * (v[1:] - a) >= 0.0)
            peaked = np.where(start >= 0.0, (turn[:-1] <= 0.0) & (turn[1:] >= 0.0), passes_a)
            with np.errstate(all="ignore"):
                if side > 0.0:
                    extreme = np.maximum((a * y[:-1] + start) / rise[1:], a)
                else:
                    extreme = np.maximum(np.fmin((a * y[1:] - start) / rise[:-1], a), 0.0)
            spot = np.where(start >= 0.0, extreme, a)
            top[peaked] = np.maximum(top[peaked], self.slope_rate(spot[peaked], side))
        # e^(e' - side (r-1) y) times the rate; the exponential falls with y before tau and rises beyond
        exponent = start - side * c * y
        larger, smaller = (exponent[:-1], exponent[1:]) if side > 0.0 else (exponent[1:], exponent[:-1])
        heavy, light = exp_from_above(larger), np.exp(np.minimum(smaller, LARGEST_BOUND_EXPONENT))
        return _SlopePanels(np.where(top > 0.0, heavy, light) * top, np.where(least > 0.0, light, heavy) * least)


@dataclass(frozen=True)
class AlignmentLaw:
    """The law of ``A = rho + sqrt(1 - rho^2) T/sqrt(r)``, where ``T`` has Student's law ``t_r`` (C9, C12).

    Misalignments ``m = 1 - rho > 0`` are a column, and places ``x = ln A`` a row; the results have a row for each
    ``m``.
    """

    rank: int

    def tails(self, m: Array, x: Array) -> tuple[Array, Array]:
        """Return ``P(A < e^x)`` and ``P(A > e^x)``; the first counts ``A <= 0`` too."""
        # I_q(r/2, 1/2)/2 on the far side, q = s^2/(s^2 + z^2), z = e^x - rho, s^2 = 1 - rho^2 = m (2 - m) (C12, step 4)
        z, square = np.expm1(x) + m, m * (2.0 - m)
        half = 0.5 * special.betainc(0.5 * self.rank, 0.5, square / (square + z * z))
        return np.where(z < 0.0, half, 1.0 - half), np.where(z < 0.0, 1.0 - half, half)

    def beyond_any(self, x: Array) -> Array:
        """Return the largest ``P(A > e^x)`` over all alignments, for ``x >= 0``: that at ``rho = e^-x``."""
        # P(A > e^x) = I_q(r/2, 1/2)/2, q = e^-2x (C12, step 4)
        return 0.5 * special.betainc(0.5 * self.rank, 0.5, np.exp(-2.0 * np.maximum(x, 0.0)))

    def density(self, m: Array, x: Array) -> Array:
        """Return the density of ``ln A`` at ``x``, which is unimodal."""
        # c_r A s^r (s^2 + z^2)^-(r+1)/2 = c_r A (s^2 + z^2)^-1/2 (1 + z^2/s^2)^-r/2, z = A - rho (C9)
        z, square = np.expm1(x) + m, m * (2.0 - m)
        log_rest = x - 0.5 * np.log(square + z * z) - 0.5 * self.rank * np.log1p(z * z / square)
        return np.exp(log_gamma_ratio(self.rank) + log_rest)

    def mode(self, m: Array) -> Array:
        """Return the ``ln A`` where :meth:`density` is largest."""
        # The positive root of r A^2 - (r-1) rho A - 1 = 0 (C12, step 3), without cancellation
        r = float(self.rank)
        b = (r - 1.0) * (1.0 - m)
        root = np.hypot(b, 2.0 * math.sqrt(r))
        return np.log(np.where(b > 0.0, (b + root) / (2.0 * r), 2.0 / (root + np.abs(b))))

    def never(self, m: Array) -> Array:
        """Return ``P(A <= 0)``, the probability that the loss is infinite."""
        # P(A <= 0) = I_{m(2-m)}(r/2, 1/2)/2, one minus that for rho < 0 (C9)
        half = 0.5 * special.betainc(0.5 * self.rank, 0.5, m * (2.0 - m))
        return np.where(m < 1.0, half, 1.0 - half)
