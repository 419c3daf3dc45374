"""Enclose incomplete gamma and Beta functions, and gamma tails, in balls.

``P(k, z)`` is the distribution function of ``Gamma(k)``, and ``Q(k, z) = 1 - P(k, z)``.
:mod:`privproj.numerics.special` has the same functions in floats, and :mod:`privproj.reference.special` in mpmath.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from flint import arb, arb_poly, ctx

from privproj.errors import PrecisionError

LEAST_SHAPE = (
    400.0  # shape from which Taylor series replace Arb's functions; below it a disc of convergence could reach 0
)

MOST_TERMS = 1_000_000  # terms of a series before PrecisionError


def lower(k: arb, z: arb) -> arb:
    """Return a ball that contains ``P(U <= z)`` for ``U ~ Gamma(k)`` and real ``z``."""
    # Below k a series of positive terms is summed, and a geometric series bounds the remainder.
    if not z > 0:
        return arb(0).union(lower(k, z.upper())) if z.upper() > 0 else arb(0)
    if z > k - 4 * k.sqrt():
        return 1 - z.gamma_upper(k, regularized=1)
    # z^k e^-z / Gamma(k+1) sum_j z^j / (k+1)_j
    return (k * z.log() - z - (k + 1).lgamma()).exp() * _sum_series(lambda j: z / (k + j + 1), arb(0))


def _sum_series(ratio: Callable[[int], arb], limit: arb) -> arb:
    """Return a ball that contains the series ``1 + r_0 + r_0 r_1 + ...``.

    The ratios ``r_n = ratio(n)`` must be positive and converge monotonically to ``limit``.

    Raises:
        PrecisionError: The series does not converge within :data:`MOST_TERMS` terms.
    """
    total = term = arb(1)
    least = arb(2) ** -ctx.prec
    for n in range(MOST_TERMS):
        last = ratio(n)
        term = term * last
        total = total + term
        if n % 16 == 0 and term < least * total:
            # The later ratios are at most max(r_n, limit), so a geometric series bounds the remainder.
            most = last.max(limit)
            if not most < 1:
                break
            return total + arb(0).union(term * most / (1 - most))
    raise PrecisionError(f"a series did not converge within {MOST_TERMS} terms")


def lower_beta(a: arb, b: arb, u: arb) -> arb:
    """Return a ball that contains ``P(B <= u)`` for ``B ~ Beta(a, b)``.

    ``u`` must be between 0 and 1. The shapes ``a`` and ``b`` may be large.
    """
    if u * (a + b) > a:
        return 1 - lower_beta(b, a, 1 - u)
    # u^a (1-u)^b / (a Beta(a, b)) sum_n (a+b)_n / (a+1)_n u^n
    front = (a * u.log() + b * (-u).log1p() + (a + b).lgamma() - (a + 1).lgamma() - b.lgamma()).exp()
    return front * _sum_series(lambda n: (a + b + n) / (a + 1 + n) * u, u)


def upper(k: arb, z: arb) -> arb:
    """Return a ball that contains ``P(U > z)`` for ``U ~ Gamma(k)`` and real ``z``."""
    return z.gamma_upper(k, regularized=1)


class NearbyValues:
    """The distribution function of ``Gamma(k)`` in balls, fast at many points for one ``k``."""

    def __init__(self, k: arb) -> None:
        # Distance of the expansion points is 1/8 standard deviation.
        self.k, self.shape, self.width = k, float(k), 0.125 * math.sqrt(float(k))
        # Expansion points lie within 16 standard deviations of the shape.
        self.farthest = 16.0 * math.sqrt(self.shape)
        self._points: dict[tuple[int, int], _Point | None] = {}

    def lower(self, z: arb) -> arb:
        """Return a ball that contains ``P(U <= z)`` for ``U ~ Gamma(k)``."""
        near = self._rise(z)
        return lower(self.k, z) if near is None else near[0].below + near[1]

    def upper(self, z: arb) -> arb:
        """Return a ball that contains ``P(U > z)`` for ``U ~ Gamma(k)``."""
        near = self._rise(z)
        return upper(self.k, z) if near is None else near[0].above - near[1]

    def _rise(self, z: arb) -> "tuple[_Point, arb] | None":
        """Return the Taylor expansion nearest to ``z``, and ``P(z) - P(place)`` for its point ``place``.

        ``P`` is the distribution function of ``Gamma(k)``. The result is None if no expansion is accurate at ``z``.
        """
        # Far from k, and for small k, no Taylor series is used.
        place = float(z.mid())
        if self.shape < LEAST_SHAPE or not abs(place - self.shape) < self.farthest:
            return None
        key = round(place / self.width), ctx.prec
        if key not in self._points:
            self._points[key] = self._expand(arb(key[0] * self.width))
        point = self._points[key]
        if point is None:
            return None
        y = z / point.place - 1
        return (point, point.series(y)) if abs(y) <= point.reach else None

    def _expand(self, point: arb) -> "_Point | None":
        """Return the Taylor expansion of the distribution function of ``Gamma(k)`` at a point.

        The result is None if the remainder is too large.
        """
        # G = dP/dy at z = point (1 + y): G = G_0 (1+y)^(k-1) e^(-point y)
        # n G_n = (k - point - n) G_(n-1) - point G_(n-2)
        k = self.k
        front = (k * point.log() - point - k.lgamma()).exp()
        series, before, now = [arb(0)], arb(0), front
        # Number of terms: each reduces the remainder by about a factor 8
        terms = ctx.prec // 4
        for n in range(1, terms):
            series.append(now / n)
            before, now = now, ((k - point - n) * now - point * before) / n
        # |G| <= G_0 e^(|k - 1 - point| R + (k-1) R^2/(2 (1 - R))) for |y| <= R; the rest for |y| <= rho by Cauchy
        rho, radius = 0.51 * self.width / point, 4 * self.width / point
        if not (point > 0 and radius < 1):
            return None
        size = (abs(k - 1 - point) * radius + (k - 1) * radius * radius / (2 * (1 - radius))).exp()
        part = rho / radius
        rest = front * size * radius * part**terms / (terms * (1 - part))
        below, above = lower(k, point), upper(k, point)
        # Largest remainder of the series relative to P and Q; otherwise Arb's functions are used
        if not rest < arb(2) ** (40 - ctx.prec) * below.min(above):
            return None
        series[0] = arb(0, rest.abs_upper())
        return _Point(below, above, point, rho.lower(), arb_poly(series))


class _Point(NamedTuple):
    """A Taylor expansion of ``P``, the distribution function of ``Gamma(k)``.

    Attributes:
        below: ``P`` at the expansion point.
        above: ``1 - P`` at the expansion point.
        place: The expansion point.
        reach: The largest ``|y|`` at which the series is valid, where ``y = z/place - 1``.
        series: ``P(z) - P(place)`` in powers of ``y``, with the remainder in the constant term.
    """

    below: arb
    above: arb
    place: arb
    reach: arb
    series: arb_poly


def chernoff_bound(k: arb, y: arb) -> arb:
    """Return Chernoff's bound of the tail of ``Gamma(k)`` beyond ``y``.

    The tail is the upper one if ``y > k``, and the lower one if ``y < k``.
    """
    # e^-(y - k - k ln(y/k))
    return (k + k * (y / k).log() - y).exp() if y > 0 else arb(0)
