"""The integral of the exact profile of the vector Wishart mechanism by Gauss rules with a proved error (C9, C20).

With ``A = e^x`` the gain ``g`` of :mod:`privproj.laws.wishart_loss` rises on both sides of ``x = 0``, from 0. Its slope
is a closed form, so by parts

    delta = P(A <= 0) + int_0^inf g_-'(x) P(0 < A < e^-x) dx + int_0^inf g_+'(x) P(A > e^x) dx
    g_-'(x) = N(u) + (r-1) e^(eps - (r-1) x) Q(k, v),   u = a B(x) + eps N(x),  v = u e^x
    g_+'(x) = N(v) - (r-1) e^(eps + (r-1) x) P(k, u),   u = a B(x) - eps N(x),  v = u e^x

with ``N(u) = u g_k(u)``, ``g_k`` the density of ``Gamma(k)``, ``B(x) = x/(e^x - 1)`` and ``N(x) = 1/(e^x - 1)``. Where
``u <= 0`` the first is ``(r-1) e^(eps - (r-1) x)``, and the second is 0.

The error of the Gauss rule on a panel is at most ``2.1 M rho^-2n / (1 - rho^-2)`` widths, where ``M`` bounds the
integrand on an ellipse around it (C20). The bound on the panel itself says which panels are left out; the others are
evaluated or cut. So the result is an enclosure wherever the panels are. Panels of many ``eps`` go together: an array
``index`` says which epsilon each belongs to. ``sign`` is 1 for the side below ``A = 1`` and -1 for the one above.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special

from privproj.errors import NotConverged
from privproj.numerics import kernels
from privproj.numerics.arrays import Array, Index, deviance, gauss_nodes

PANEL_NODES = 24
"""Gauss nodes of a panel. Speed only."""

PANEL_ERROR_SHARE = 1e-13
"""What a panel may add to the relative error of one value without being cut. It is added. Speed only."""

TABLE_PANEL_ERROR_SHARE = 1e-12
"""What a panel may add to the relative error of a value of a table without being cut. It is added. Speed only."""

MOST_CUTS = 90
"""Rounds of cuts after which :class:`NotConverged` is raised. Contract."""

MOST_PANELS = 10**6
"""Panels at once from which on it is raised, too. Contract."""

BERNOULLI_BEND = 0.28
"""Half of a bound of ``|B''|``, ``B(x) = x/(e^x - 1)``, for ``|Im x| <= 1`` (C20). Soundness."""

THRESHOLD_ROUNDING = 6e-15
"""Relative rounding of thresholds and of epsilon, which callers may have off by 1e-15; measured below 1.5e-15.
Soundness (measured)."""

INCOMPLETE_RELATIVE_ERROR = 1.2e-12
"""Relative error allowed to incomplete gammas and betas in an integral, beside that of every special function.

Measured below 2e-13. Soundness (measured).
"""

FARTHEST_LOG_ALIGNMENT = 60.0
"""``|ln A|`` up to which there are panels; the rest is bounded and added. Speed only."""

WINDOW_NATS = 34.0
"""Nats below the largest bound of a panel at which one is not looked at for a guess of the sum. Speed only."""

PLACE_GROWTH = 1.5
"""How many times as wide as the one before a first panel is. Speed only."""

FRACTION_FROM = 4.0
"""Deviations of ``U`` beyond its mean from which continued fractions stand for incomplete gammas.

So many deviations out :data:`FRACTION_TERMS` terms are right to 1e-15; measured. Soundness (measured).
"""

FRACTION_TERMS = 32
"""Terms of these continued fractions. Soundness (measured)."""

LOG_VISIBLE = -600.0
"""Log of a tail of Student's law below which it is computed in logs, by ten terms of a series. Soundness."""

LEAST_PLACE = 1e-100
"""Stand-in for an end ``x = 0``; nothing below it matters. Soundness."""

LEAST_DIVISOR = 1e-300
"""Least divisor and least argument of a logarithm, of numbers that are 0 or far larger. Soundness."""


def _add_logs(logs: Array, index: Index, more: Array) -> Array:
    """Return ``ln`` of ``e^logs`` plus the sums of ``e^more`` over equal ``index``."""
    top = logs.copy()
    np.maximum.at(top, index, more)
    top = np.where(np.isfinite(top), top, 0.0)
    return top + np.log(np.exp(logs - top) + np.bincount(index, np.exp(more - top[index]), len(logs)))


@dataclass(frozen=True)
class _LogSums:
    """Logs of what has been summed up for each epsilon: the integral, its error, and itself times the steepness."""

    total: Array
    missed: Array
    leaning: Array

    def add(self, index: Index, value: Array, error: Array, leaning: Array) -> "_LogSums":
        """Return the sums with these panels, whose logs of the three are given."""
        return _LogSums(
            _add_logs(self.total, index, value),
            _add_logs(self.missed, index, error),
            _add_logs(self.leaning, index, leaning),
        )


def _bernoulli_less_one(x: Array) -> Array:
    """Return ``B(x) - 1 = x/(e^x - 1) - 1`` for ``x >= 0``, without cancellation near 0."""
    small = np.minimum(x, 0.1)
    v = small * small
    # B(x) - 1 = -x/2 + x^2/12 - x^4/720 + x^6/30240 - x^8/1209600 + ..., the Bernoulli numbers over factorials
    series = -0.5 * small + v * (1.0 / 12.0 - v * (1.0 / 720.0 - v * (1.0 / 30240.0 - v / 1209600.0)))
    wide = np.maximum(x, 0.1)
    return np.where(x < 0.1, series, wide / np.expm1(wide) - 1.0)


@dataclass(frozen=True)
class _IntegralPanels:
    """Panels ``[low, high]`` of places, each of the epsilon with the number ``index`` (:class:`WishartIntegral`)."""

    index: Index
    low: Array
    high: Array

    def __getitem__(self, chosen: Any) -> "_IntegralPanels":
        return _IntegralPanels(self.index[chosen], self.low[chosen], self.high[chosen])

    def cut(self, parts: Index) -> "_IntegralPanels":
        """Return more panels: each is cut in so many parts of equal width."""
        of = np.repeat(np.arange(len(parts)), parts)
        number = np.arange(len(of)) - (np.cumsum(parts) - parts)[of]
        p, width, parts = self[of], (self.high - self.low)[of], parts[of]
        high = np.where(number + 1 == parts, p.high, p.low + width * ((number + 1) / parts))
        return _IntegralPanels(p.index, p.low + width * (number / parts), high)


@dataclass(frozen=True)
class WishartIntegral:
    """The profile of one pair at many ``eps >= 0``, with a proved error of the integral.

    * ``dim``, ``rank``, ``misalignment``: ``d >= 2``, ``r`` and ``m``.
    * ``log_infinite``: ``ln P(A <= 0)``.
    * ``log_front``: the log of Student's density at 0, ``ln(c_r/sqrt(r))``.
    * ``eps``: the epsilons, of shape ``(e,)``.
    * ``share``: what a panel may add to the relative error of one value without being cut.

    In the methods a ``place`` is ``x`` below ``A = 1``, and above it how far ``x`` is beyond the kink ``eps/a``. Arrays
    ``place`` and ``index`` are of equal shape.
    """

    dim: int
    rank: int
    misalignment: float
    log_infinite: float
    log_front: float
    eps: Array
    share: float = PANEL_ERROR_SHARE

    @property
    def k(self) -> float:
        """The shape ``k = (r + d - 1)/2`` of ``U``."""
        return 0.5 * (self.rank + self.dim - 1.0)

    @property
    def a(self) -> float:
        """The factor ``a = (d + 1 - r)/2`` of ``ln A`` in the loss."""
        return 0.5 * (self.dim + 1.0 - self.rank)

    @cached_property
    def unit(self) -> float:
        """The scale ``s sqrt(r) = sqrt(m (2 - m))`` of ``A = 1 - m + s T``."""
        return math.sqrt(self.misalignment * (2.0 - self.misalignment))

    @cached_property
    def kink(self) -> Array:
        """The ``|ln A| = eps/|a|`` at which ``u`` is 0, for each epsilon."""
        return self.eps / max(abs(self.a), LEAST_DIVISOR)

    @cached_property
    def turn(self) -> Array:
        """The place below ``A = 1`` from which on ``u <= 0``; inf where there is none."""
        if self.a < 0.0:
            return self.kink
        return np.where((self.a > 0.0) | (self.eps > 0.0), np.inf, 0.0)

    @cached_property
    def log_density_front(self) -> float:
        """``ln F``, ``F = sqrt(k/(2 pi)) e^-R`` the largest ``N(u)``, ``R`` the remainder of Stirling's formula."""
        return 0.5 * math.log(self.k / (2.0 * math.pi)) - kernels.stirling_remainder(self.k)

    @property
    def log_c(self) -> float:
        """``ln(r - 1)``."""
        return math.log(self.rank - 1.0) if self.rank > 1 else -math.inf

    # --- the integrand --------------------------------------------------------------------------

    def log_density(self, u: Array, gap: Array) -> Array:
        """Return ``ln N(u)`` from ``u`` and ``gap = u - k``; near ``k`` the latter keeps the digits."""
        # N(u) = F e^(-k (e^w - 1 - w)), w = ln(u/k) (C20)
        k = self.k
        w = np.where(u > 0.5 * k, np.log1p(np.maximum(gap / k, -0.9)), np.log(np.maximum(u, LEAST_DIVISOR) / k))
        return self.log_density_front - k * deviance(w)

    def log_slope(self, sign: float, index: Index, place: Array) -> tuple[Array, Array]:
        """Return ``ln g'`` at these places, and by what a rounding of a threshold is multiplied in it."""
        x = place if sign > 0.0 else place + self.kink[index]
        b, n = _bernoulli_less_one(x), 1.0 / np.expm1(x)
        if sign > 0.0:
            found, steep = self.slope_below(self.eps[index], x, b, n)
            certain = place >= self.turn[index]
            tilt = self.log_c + self.eps[index] - (self.rank - 1.0) * x
            return np.where(certain, tilt, found), np.where(certain, 4.0 + np.abs(tilt), steep)
        return self.slope_above(self.eps[index], x, b, n, place)

    def slope_below(self, eps: Array, x: Array, b: Array, n: Array) -> tuple[Array, Array]:
        """Return :meth:`log_slope` below ``A = 1`` for ``u > 0``; ``b`` is ``B(x) - 1`` and ``n`` is ``N(x)``."""
        k, a, c = self.k, self.a, self.rank - 1.0
        # u - k = a (B - 1) + eps N - (r-1) and v - k = a (x + B - 1) + eps (1 + N) - (r-1): small differences keep
        # their digits
        near, far = a * b + eps * n - c, a * (x + b) + eps * (1.0 + n) - c
        beyond = far > FRACTION_FROM * math.sqrt(k)
        first = self.log_density((a * x + eps) * n, near)
        tail = special.gammaincc(k, np.maximum(k + np.where(beyond, 0.0, far), 0.0))
        found = np.logaddexp(first, self.log_c + eps - c * x + np.log(tail))
        # e^(eps - (r-1) x) N(v) = N(u), so the second term is (r-1) N(u) Q/N at v (C20)
        if beyond.any():
            found[beyond] = first[beyond] + np.log1p(c * self.upper_ratio(far[beyond]))
        # |dg'| <= N(u) (|u - k|/u + (r-1)/v) dU (C20, the sum)
        least = 1e-6 * k
        share = np.abs(near) / np.maximum(k + near, least) + c / np.maximum(k + far, least)
        steep = np.exp(first - found) * share * (np.abs(a * b) + eps * n + self.rank)
        return found, 2.0 + steep + np.where(beyond, 0.0, eps + c * x)

    def upper_ratio(self, gap: Array) -> Array:
        """Return ``Q(k, v)/N(v)`` at ``v = k + gap``, by its continued fraction."""
        # 1/(gap + 1 + (k-1)/(gap + 3 + 2 (k-2)/(gap + 5 + ...)))
        below = gap + (2.0 * FRACTION_TERMS + 1.0)
        for j in range(FRACTION_TERMS, 0, -1):
            below = gap + (2.0 * j - 1.0) + j * (self.k - j) / below
        return 1.0 / below

    def slope_above(self, eps: Array, x: Array, b: Array, n: Array, place: Array) -> tuple[Array, Array]:
        """Return :meth:`log_slope` above ``A = 1``; the arguments are as in :meth:`slope_below`."""
        k, a, c = self.k, self.a, self.rank - 1.0
        # u = a place N(x) and v = u e^x keep their digits near the kink; near k, v - k is as below A = 1 with -eps
        u, v = a * place * n, a * place * (1.0 + n)
        away = a * (x + b) - eps * (1.0 + n) - c
        # N(v) - (r-1) N(v) P/N at u, and P/N = 1/(k - u + rest): the part (a - u + rest)/(r - 1 + a - u + rest) of N(v)
        less = eps * n - a * b
        gap = c + less
        beyond = gap > FRACTION_FROM * math.sqrt(k)
        inside = np.where(beyond, k, u)
        ratio = np.exp(self.log_density(inside, inside - k)) / special.gammainc(k, inside)
        rest = np.maximum(ratio - gap, 0.0)
        if beyond.any():
            rest[beyond] = self.lower_rest(u[beyond], gap[beyond])
        found = self.log_density(v, away) + np.log((less + rest) / (gap + rest))
        # |d ln N(v)| = |v - k|/v dv (C20, the sum)
        terms = np.where(v > 0.5 * k, a * (x - b) + eps * (1.0 + n) + self.rank, v)
        return found, 4.0 + np.abs(v - k) / np.maximum(v, LEAST_DIVISOR) * terms

    def lower_rest(self, u: Array, gap: Array) -> Array:
        """Return ``N(u)/P(k, u) - (k - u)``, ``gap = k - u``, by the continued fraction of ``P``."""
        # u/(gap + 1 + 2 u/(gap + 2 + 3 u/(...)))
        below = gap + FRACTION_TERMS
        for j in range(FRACTION_TERMS, 1, -1):
            below = gap + (j - 1.0) + j * u / below
        return u / below

    def log_tail(self, sign: float, x: Array) -> Array:
        """Return ``ln P(0 < A < e^-x)``, or ``ln P(A > e^x)`` for ``sign = -1``."""
        found = self.log_student_tail(-sign * (np.expm1(-sign * x) + self.misalignment) / self.unit)
        return found if sign < 0.0 else found + np.log(-np.expm1(np.minimum(self.log_infinite - found, 0.0)))

    def log_student_tail(self, t: Array) -> Array:
        """Return ``ln P(T > t sqrt(r))`` of Student's law."""
        # I_q(r/2, 1/2)/2 = (1 - I_y(1/2, r/2))/2, q = 1/(1 + t^2), y = 1 - q, for t > 0, and one minus that below (C9)
        r = float(self.rank)
        q = 1.0 / (1.0 + t * t)
        y = t * t * q
        near = y < min(0.5, 2.0 / r)
        half, far = np.empty_like(t), ~near
        half[near] = 0.5 - 0.5 * special.betainc(0.5, 0.5 * r, y[near])
        # q is rounded, by what 1 - q and y differ: its density times that is added
        q, y = q[far], y[far]
        density = np.exp(self.log_front + 0.5 * math.log(r) + (0.5 * r - 1.0) * np.log(q)) / np.sqrt(y)
        half[far] = 0.5 * (special.betainc(0.5 * r, 0.5, q) + (1.0 - q - y) * q * density)
        found = np.where(t > 0.0, np.log(half), np.log1p(-half))
        deep = ~(found > LOG_VISIBLE)
        if deep.any():
            found[deep] = self.log_deep_tail(t[deep] ** 2)
        return found

    def log_deep_tail(self, square: Array) -> Array:
        """Return :meth:`log_student_tail` deep in the tail, where ``t^2`` is ``square``."""
        # c_r q^b / (r sqrt(y)) 2F1(1, 1/2; b + 1; -1/t^2), b = r/2, whose terms fall as n/(b t^2)
        series, b = np.ones_like(square), 0.5 * self.rank
        for n in range(10, 0, -1):
            series = 1.0 - (n - 0.5) / ((b + n) * square) * series
        front = self.log_front - 0.5 * math.log(self.rank) - b * np.log1p(square)
        return front - 0.5 * np.log(square / (1.0 + square)) + np.log(series)

    # --- bounds on a panel ----------------------------------------------------------------------

    def log_most(self, sign: float, p: _IntegralPanels) -> Array:
        """Return ``ln`` of an upper bound of the integral over each panel."""
        # width times the largest slope times the tail at the nearer end, with 1e-6 for rounding (C20, the sum)
        low, high = self.ends(sign, p)
        size = self.log_slope_size(sign, p, low, high, np.zeros_like(low))
        return size + self.log_tail(sign, low) + np.log(p.high - p.low) + 1e-6

    def ends(self, sign: float, p: _IntegralPanels) -> tuple[Array, Array]:
        """Return ``x`` at both ends of each panel."""
        kink = 0.0 if sign > 0.0 else self.kink[p.index]
        return p.low + kink, p.high + kink

    def log_error(self, sign: float, p: _IntegralPanels, ellipse: float = 3.0) -> Array:
        """Return ``ln`` of the proved error of the Gauss rule on each panel, ``inf`` if none is known.

        ``ellipse`` is the sum of the semi-axes of the ellipse around a panel, in half widths; any above 1 is sound.
        """
        # 2.1 M rho^-2n / (1 - rho^-2) widths (C20, Gauss rules)
        share = math.log(2.1 / (1.0 - ellipse**-2.0)) - 2.0 * PANEL_NODES * math.log(ellipse)
        return self.log_size(sign, p, ellipse) + share + np.log(p.high - p.low)

    def log_size(self, sign: float, p: _IntegralPanels, ellipse: float) -> Array:
        """Return ``ln`` of a bound of the integrand on a rectangle around the ellipse, ``inf`` if none is known."""
        half = 0.25 * (p.high - p.low)
        # Half axes of the ellipse: h/4 (rho + 1/rho) and h/4 (rho - 1/rho)
        beyond, tall = half * (ellipse + 1.0 / ellipse - 2.0), half * (ellipse - 1.0 / ellipse)
        low, high = self.ends(sign, p)
        valid = (low > beyond) & (tall <= 1.0)
        low, high, tall = np.where(valid, low - beyond, low), high + beyond, np.minimum(tall, 1.0)
        found = self.log_slope_size(sign, p, low, high, tall) + self.log_tail_size(sign, low, high, tall)
        return np.where(valid, found, np.inf) + 1e-6

    def log_slope_size(self, sign: float, p: _IntegralPanels, x1: Array, x2: Array, tall: Array) -> Array:
        """Return ``ln`` of a bound of ``|g'|`` for ``x1 <= Re x <= x2``, ``|Im x| <= tall <= 1`` (C20)."""
        k, a, c, eps = self.k, self.a, self.rank - 1.0, self.eps[p.index]
        # N falls, |N'| = N (1 + N), N'' = N (1 + N) (1 + 2 N); |Re B - B(Re x)| <= tall^2 min(0.28, |N'| + |x| N''/2),
        # |Im B| <= tall min(1/2, N + |x| |N'|), |Im (x + B)| <= tall (C20, thresholds off the real line)
        n1, n2 = (1.0 / np.expm1(np.maximum(x, LEAST_PLACE)) for x in (x1, x2))
        fall, far = tall * n1 * (1.0 + n1), x2 + 1.0
        curve = tall * fall * (0.5 + n1)
        bend = abs(a) * np.minimum(BERNOULLI_BEND * tall * tall, tall * fall + far * curve)
        aside = abs(a) * np.minimum(0.5 * tall, tall * n1 + far * fall) + eps * fall
        n2 = n2 - curve
        least, most = (eps * n2, eps * n1) if sign > 0.0 else (-eps * n1, -eps * n2)
        b1, b2 = a * _bernoulli_less_one(x1) + a, a * _bernoulli_less_one(x2) + a
        u = np.minimum(b1, b2) - bend + least, np.maximum(b1, b2) + bend + most, aside
        b1, b2 = b1 + a * x1, b2 + a * x2
        least, most = sign * eps + least, sign * eps + most
        v = np.minimum(b1, b2) - bend + least, np.maximum(b1, b2) + bend + most, abs(a) * tall + eps * fall
        if sign < 0.0:
            # N(v) + (r-1) N(v) P/N at u, where P/N <= 1/(k - |u|)
            room = k - np.hypot(u[1], u[2])
            both = np.log1p(c / np.maximum(room, LEAST_DIVISOR))
            return self.log_density_size(*v) + np.where((room > 0.0) | (c == 0.0), both, np.inf)
        # N(u) + (r-1) e^(eps - (r-1) x) Q(k, v), and |Q| <= e^(|v| - Re v) min(1, N(|v|)/(|v| - k)), |Q| <= 1 + |P|,
        # where |P| <= e^(|v| - Re v) N(|v|)/(k - |v|)
        first, tilt = self.log_density_size(*u), self.log_c + eps - c * x1
        skew, size = self.skew(v[0], v[2]), np.hypot(v[1], v[2])
        rest = np.where(
            size < k, self.log_density_size(v[0], size, v[2]) - np.log(np.maximum(k - size, LEAST_DIVISOR)), skew
        )
        second = tilt + np.minimum(skew, np.logaddexp(0.0, rest))
        second = np.minimum(
            second, np.where(v[0] > k, self.log_c + first - np.log(np.maximum(v[0] - k, LEAST_DIVISOR)), np.inf)
        )
        return np.where(p.low >= self.turn[p.index], tilt, np.logaddexp(first, second))

    @staticmethod
    def skew(real: Array, imaginary: Array) -> Array:
        """Return a bound of ``|z| - Re z`` for ``Re z >= real``, ``|Im z| <= imaginary``; inf unless ``real > 0``."""
        found = imaginary * imaginary / (2.0 * np.maximum(real, LEAST_DIVISOR))
        return np.where((real > 0.0) | (imaginary == 0.0), found, np.inf)

    def log_density_size(self, low: Array, high: Array, imaginary: Array) -> Array:
        """Return ``ln`` of a bound of ``|N(z)|`` for ``low <= Re z <= high`` and ``|Im z| <= imaginary`` (C20)."""
        # |N(z)| = e^(|z| - Re z) N(|z|), and N is largest at k
        nearest = np.clip(self.k, np.maximum(low, LEAST_DIVISOR), np.maximum(np.hypot(high, imaginary), LEAST_DIVISOR))
        return self.skew(low, imaginary) + self.log_density(nearest, nearest - self.k)

    def log_tail_size(self, sign: float, x1: Array, x2: Array, tall: Array) -> Array:
        """Return ``ln`` of a bound of the tail of ``A`` for ``x1 <= Re x <= x2`` and ``|Im x| <= tall`` (C20)."""
        m, unit, drop = self.misalignment, self.unit, 2.0 * np.sin(0.5 * tall) ** 2
        # Re A - 1 is between e^(-sign x) at one end, and that at the other times cos(tall), less 1
        ends = np.expm1(-sign * x1), np.expm1(-sign * x2)
        low = np.minimum(*ends)
        low, high = (low * (1.0 - drop) - drop + m) / unit, (np.maximum(*ends) + m) / unit
        near, far = (-high, -low) if sign > 0.0 else (low, high)
        v = np.exp(-sign * (x1 if sign > 0.0 else x2)) * np.sin(tall) / unit
        found = self.log_student_size(near, v)
        if np.any(near < 0.0):
            found = np.minimum(found, np.logaddexp(0.0, self.log_student_size(-far, v)))
        return np.logaddexp(found, self.log_infinite) if sign > 0.0 else found

    def log_student_size(self, t: Array, v: Array) -> Array:
        """Return ``ln`` of a bound of the tail of Student's law beyond ``z``, ``Re z >= t`` and ``|Im z| <= v``."""
        # |1 + (t + iv)^2|^2 = (1 + t^2)^2 - v^2 (2 - 2 t^2 - v^2), over (1 + t^2)^2 least at the least t >= 0 and at
        # v^2 = 1 - t^2 or the nearest possible value (C20, tails off the real line)
        square = np.maximum(t, 0.0) ** 2
        v2 = np.clip(1.0 - square, 0.0, v * v)
        ratio = 1.0 - v2 * (2.0 - 2.0 * square - v2) / (1.0 + square) ** 2
        return self.log_student_tail(t) - 0.25 * (self.rank + 1.0) * np.log(np.maximum(ratio, 0.0))

    # --- panels ---------------------------------------------------------------------------------

    def first_panels(self, sign: float) -> _IntegralPanels:
        """Return panels that cover ``|ln A| < 60`` on one side: they grow from 0 or the kink, shrink to the turn."""
        # Where the first panel ends: at a tiny share of the least scale, or where u or v makes N tiny. Speed only.
        least, k = 1e-14 * min(self.unit / math.sqrt(self.rank), 1.0), self.k
        kink = np.zeros_like(self.kink) if sign > 0.0 else self.kink
        tiny = self.eps / (3.0 * k + 1e3) if sign > 0.0 else k / self.a * math.exp(-1.0 - 40.0 / k) / (1.0 + 1.0 / kink)
        start = np.maximum(least, tiny)
        count = math.ceil(math.log(FARTHEST_LOG_ALIGNMENT / float(start.min())) / math.log(PLACE_GROWTH)) + 1
        end = np.maximum(FARTHEST_LOG_ALIGNMENT - kink, 0.0)[:, None]
        edges = [np.zeros_like(end), np.minimum(start[:, None] * PLACE_GROWTH ** np.arange(count), end)]
        if sign > 0.0 and self.a < 0.0:
            # Number of panels towards the turn, each half as wide as the one before. Speed only.
            edges.append(np.minimum(self.turn[:, None] * (1.0 - 0.5 ** np.arange(54.0)), end))
            edges.append(np.minimum(self.turn[:, None], end))
        found = np.sort(np.concatenate(edges, axis=1), axis=1)
        low, high = found[:, :-1], found[:, 1:]
        index, column = np.nonzero(low < high)
        return _IntegralPanels(index, low[index, column], high[index, column])

    def log_values(self, sign: float, index: Index, place: Array) -> tuple[Array, Array]:
        """Return ``ln`` of the integrand at these places, and the steepness of its slope."""
        slope, steep = self.log_slope(sign, index, place)
        return slope + self.log_tail(sign, place if sign > 0.0 else place + self.kink[index]), steep

    def gauss(self, sign: float, p: _IntegralPanels) -> tuple[Array, Array]:
        """Return ``ln`` of the Gauss rule on each panel, and of that with the steepness as a factor."""
        nodes, weights = gauss_nodes(PANEL_NODES)
        width = (p.high - p.low)[:, None]
        index, place = np.repeat(p.index, PANEL_NODES), (p.low[:, None] + width * nodes).ravel()
        logs, steep = self.log_values(sign, index, place)
        peak = np.maximum(logs.reshape(len(width), -1).max(axis=1), -1e300)
        values = np.exp(logs.reshape(len(width), -1) - peak[:, None]) * weights * width
        return peak + np.log(values.sum(axis=1)), peak + np.log((values * steep.reshape(values.shape)).sum(axis=1))

    def log_beyond(self) -> float:
        """Return ``ln`` of a bound of what is beyond ``|ln A| = 60``, where gains are at most 1."""
        far, r = FARTHEST_LOG_ALIGNMENT, float(self.rank)
        # f(A) = c_r/(sqrt(r) s) (1 + t^2)^(-(r+1)/2): below e^-60 it rises to A = e^-60 (or is at most its peak), and
        # P(A > e^60) = P(T > t sqrt(r)) <= front int t^-(r+1) dt, t = (e^60 - 1 + m)/unit (C20, the sum)
        front = self.log_front + 0.5 * math.log(r)
        t = max(1.0 - self.misalignment - math.exp(-far), 0.0) / self.unit
        below = front - math.log(self.unit) - 0.5 * (r + 1.0) * math.log1p(t * t) - far
        return kernels.log_add(below, front - r * math.log(math.expm1(far) / self.unit) - math.log(r))

    def log_delta(self) -> tuple[Array, Array, Array]:
        """Return three arrays with an entry for each epsilon.

        * ``ln delta``;
        * its relative error, as far as it is proved: what panels and Gauss rules miss;
        * what the rounding of a threshold is multiplied by in it, an estimate.

        Raises :class:`NotConverged` after :data:`MOST_CUTS` rounds of cuts, or at :data:`MOST_PANELS` panels.
        """
        known = self.log_infinite, self.log_beyond(), -math.inf
        sums = _LogSums(*(np.full_like(self.eps, log) for log in known))
        for sign in (1.0, -1.0) if self.a > 0.0 else (1.0,):
            sums = self.add_side(sums, sign)
        return sums.total, np.exp(sums.missed - sums.total), np.exp(sums.leaning - sums.total)

    def add_side(self, sums: _LogSums, sign: float) -> _LogSums:
        """Return the sums with the integral over one side."""
        p = self.first_panels(sign)
        for _ in range(MOST_CUTS):
            # A panel that is left out is in [0, most]: half of that is the middle and its error.
            most = self.log_most(sign, p)
            half = most - math.log(2.0)
            # A guess of the sum decides only where to stop: values in the middles of what is not far below the most.
            top = np.full_like(self.eps, -np.inf)
            np.maximum.at(top, p.index, most)
            seen = p[most > top[p.index] - WINDOW_NATS]
            guess = self.log_values(sign, seen.index, 0.5 * (seen.low + seen.high))[0] + np.log(seen.high - seen.low)
            enough = (_add_logs(sums.total, seen.index, guess) + math.log(self.share))[p.index]
            small = half <= enough - 3.0
            sums = sums.add(p.index[small], half[small], half[small], half[small])
            p, enough = p[~small], enough[~small]
            error = self.log_error(sign, p)
            done = error <= enough
            if done.any():
                value, leaning = self.gauss(sign, p[done])
                sums = sums.add(p.index[done], value, error[done], leaning)
            # A panel is cut in one part more for so many nats that its error is too large. Speed only.
            parts = 2.0 + (error - enough)[~done] / 8.0
            # Most parts that a panel is cut in at once. Speed only.
            parts = np.where(parts < np.inf, np.clip(parts, 2.0, 6.0), 2.0)
            p = p[~done].cut(parts.astype(np.intp))
            if not len(p.low):
                return sums
            if len(p.low) > MOST_PANELS:
                break
        raise NotConverged("the quadrature of the exact profile did not settle; please report these parameters")
