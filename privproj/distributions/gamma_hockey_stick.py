"""Expectations (*gains*) ``E[(1 - e^(-c (U - b)))_+]`` for a Gamma variable ``U``.

Gains are hockey-stick divergences of a privacy loss that is linear in ``U``. They are computed from tables or by
quadrature. Let ``U ~ Gamma(k)`` with ``k >= 1``, ``U = k e^w`` and ``D(w) = e^w - 1 - w``. The density of ``w`` is
``F e^(-k D(w))``, where ``F = sqrt(k/(2 pi)) e^-(remainder of Stirling's formula)``. The two Mills ratios are

    above(w) = int_0^inf exp(-k (D(w + y) - D(w))) dy,    P(U > k e^w) = F e^(-k D(w)) above(w)
    below(w) = int_0^inf exp(-k (D(w - y) - D(w))) dy,    P(U < k e^w) = F e^(-k D(w)) below(w)

For ``x > 0``, ``b = k e^w`` and ``tilt = b (e^x - 1) - k x`` the gains above and below the threshold ``b`` are

    E[(1 - e^(-(e^x - 1)(U - b)))_+]  = F e^(-k D(w)) [above(w) - above(w + x)]
                                      = 1 - e^tilt + F e^(-k D(w)) [below(w + x) - below(w)]
    E[(1 - e^(-(1 - e^-x)(b - U)))_+] = F e^(-k D(w)) [below(w) - below(w - x)]

(docs/proofs.md C20). Both ratios and their slopes are tabulated as polynomials in ``w`` on panels, which interpolate in
Chebyshev points. The error of a polynomial is bounded by the values of the ratio in the complex plane: ratios and
slopes are entire functions, ``|above(w + i v)| <= above(w + ln cos v)`` and ``|below(w + i v)| <= below(w)``. Similar
bounds hold for the Gauss rules that compute the interpolated values.

For few values, and for ``k < 1``, :func:`log_gamma_hockey_stick` computes a gain by a quadrature of positive terms.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.chebyshev import cheb2poly
from numpy.typing import NDArray

from privproj.errors import ConvergenceError
from privproj.numerics.arrays import Array
from privproj.numerics.quadrature import gauss_nodes
from privproj.numerics.special import stirling_remainder

PANEL_COEFFICIENTS = 24  # coefficients of a panel; the resulting error is computed

PANEL_ELLIPSE = 6.0  # sum of the semi-axes of the ellipse around a panel on which the ratios are bounded

RATIO_NODES = 32  # Gauss nodes of each part of the integral of a ratio; the resulting error is computed

# nats below its maximum at which the integrand of a ratio is truncated; the rest of the integral is bounded
CUT_OFF_NATS = 44.0

# a difference of ratios at a distance below this share of their scale is computed as an integral of the slope
SLIM_SHARE = 0.1

# soundness: distance beyond the ends of a panel up to which its polynomials are accurate, in units of the scale at its
# inner end; the scale grows by less than 1.4 over a panel, and half of SLIM_SHARE times 1.4 is 0.07
SLIM_REACH = 0.07

POLYNOMIAL_RELATIVE_ROUNDING = 2e-15  # soundness: relative rounding of a polynomial (measured)

GAIN_ERROR_FACTOR = 8.0  # soundness: factor by which the sums of a gain amplify relative errors (C20)

# soundness: largest k D in the table of above; at larger ones gains are below e^-1e9 (C20)
FARTHEST_DEVIANCE = 1e9

LOWEST_LOG_THRESHOLD = -40.0  # soundness: least w of the table of below; gains at a smaller w are negligible (C20)

DIFFERENCE_FROM = -1.0  # least w at which below - 1/k is computed as a difference

# proved relative error of a gain above which gamma_gain raises ConvergenceError
LARGEST_GAIN_ERROR = 1e-11

SERIES_RANGE = 0.3  # soundness: |w| below which D is a power series

# soundness: coefficients of D/w^2, the highest first: the remainder is below 0.3^12 2.1/14! < 2e-17 of it
SERIES_COEFFICIENTS = tuple(1.0 / math.factorial(n) for n in range(13, 1, -1))


def deviance(w: Array) -> Array:
    """Return ``D(w) = e^w - 1 - w`` at every entry, without cancellation near 0."""
    small = np.abs(w) < SERIES_RANGE
    v = np.where(small, w, 0.0)
    return np.where(small, np.polyval(SERIES_COEFFICIENTS, v) * v * v, np.expm1(w) - w)


def gauss_error(count: int, ellipse: Array | float) -> Array | float:
    """Return a bound of the error of the Gauss rule with ``count`` nodes on [0, 1].

    The modulus of the integrand is at most 1 on a complex ellipse with its foci at the ends of the interval.
    ``ellipse`` is the sum of its semi-axes divided by half the length of the interval (C20).
    """
    # 2.1 rho^-2n / (1 - rho^-2) (C20, Gauss rules)
    return 2.1 * ellipse ** (-2.0 * count) / (1.0 - ellipse**-2.0)


def _ratio_exponent(k: float, sign: float, w: Array, y: Array, turn: Array | float = 1.0) -> Array:
    """Return the log of the integrand of a Mills ratio of ``Gamma(k)``.

    Args:
        k: The shape of the Gamma distribution.
        sign: 1 for the upper tail, -1 for the lower tail.
        w: The argument of the ratio.
        y: The variable of integration, or its real part.
        turn: The cosine of the imaginary part of the variable of integration. The result is the real part of the
            log.
    """
    # The integrand is exp(-k (D(w +- y) - D(w))).
    # k (+-y - e^w (e^(+-y) turn - 1)) = -k (D(w +- y) - D(w)) at turn = 1
    return k * (sign * y - np.exp(w) * (np.expm1(sign * y) * turn - (1.0 - turn)))


def _cut_off_place(k: float, sign: float, w: Array) -> Array:
    """Return approximately the ``y`` at which the integral of a Mills ratio is truncated.

    ``y`` is the variable of integration, and ``w`` is the argument of the ratio.
    """
    top = np.maximum(-sign * w, 0.0)
    level = _ratio_exponent(k, sign, w, top) - CUT_OFF_NATS
    most = 10.0 / math.sqrt(k) + (2.0 * CUT_OFF_NATS + 2.0) / k
    y = top + (min(most, math.log(2.0 + 2.0 * CUT_OFF_NATS / k) + 2.0) if sign > 0.0 else most)
    # The result may be inexact, because the rest of the integral is bounded for every truncation.
    for _ in range(20):
        fall = -sign * k * (1.0 - np.exp(np.minimum(w + sign * y, 30.0)))
        step = (level - _ratio_exponent(k, sign, w, np.minimum(y, 30.0 if sign > 0.0 else 1e9))) / fall
        y = np.maximum(y - np.clip(step, 0.0, 0.9 * (y - top)), top)
    return y


def _mills_ratios(k: float, sign: float, w: Array) -> tuple[Array, Array, Array]:
    """Return a Mills ratio of ``Gamma(k)`` at ``w``, its absolute slope, and a proved error.

    The error is relative and holds for both. ``sign`` is 1 for the upper tail. It is -1 for the lower tail, where
    ``1/k`` is subtracted from the ratio.
    """
    nodes, weights = gauss_nodes(RATIO_NODES)
    # at least three parts of the integral, and more for a small shape, for which the range is longer
    end, parts = _cut_off_place(k, sign, w), 3 + int((20 if sign < 0.0 else 2.0) / k)
    ratio, slope, error, error_of_slope = (np.zeros_like(w) for _ in range(4))
    in_full = (w > DIFFERENCE_FROM)[:, None]
    for part in range(parts):
        left, width = end * part / parts, end / parts
        y = left[:, None] + width[:, None] * nodes
        # The integrand of the ratio is exp(k (+-y - e^w (e^(+-y) - 1))), minus e^(-k y) for below. The integrand of the
        # slope is that exponential times k e^w |e^(+-y) - 1|.
        grown = np.expm1(sign * y)
        lever = (k * np.exp(w))[:, None] * grown
        values = np.exp((sign * k) * y - lever)
        slope += width * ((values * np.abs(lever)) @ weights)
        if sign < 0.0:
            values *= np.where(in_full, 1.0, -np.expm1(lever))
        ratio += width * (values @ weights)
        missed = _gauss_part_error(k, sign, w, left, width)
        error, error_of_slope = error + missed[0], error_of_slope + missed[1]
    ratio -= np.where((w > DIFFERENCE_FROM) & (sign < 0.0), 1.0 / k, 0.0)
    # Beyond the last part the integrand is log-concave, so the rest is at most its height over its log slope (C20).
    last, fall = np.exp(_ratio_exponent(k, sign, w, end)), sign * k * np.expm1(w + sign * end)
    lever = k * np.exp(w) * np.abs(np.expm1(sign * end))
    rest_of_slope = last * lever / (fall - 1.0 / np.abs(np.expm1(-sign * end)))
    rest = last / fall if sign > 0.0 else np.minimum(last / fall, rest_of_slope)
    both = np.maximum((error + rest) / ratio, (error_of_slope + np.abs(rest_of_slope)) / slope)
    return ratio, slope, np.where(rest_of_slope > 0.0, both, np.inf)


def _gauss_part_error(k: float, sign: float, w: Array, left: Array, width: Array) -> tuple[Array, Array]:
    """Return proved errors of a Gauss rule for a Mills ratio and for its slope.

    The rule integrates over ``[left, left + width]``. The other arguments are those of :func:`_mills_ratios`.
    """
    best = np.full_like(w, np.inf), np.full_like(w, np.inf)
    # sums of the semi-axes of the ellipses
    for ellipse in (1.6, 2.5, 4.0, 6.0):
        beyond = 0.25 * width * (ellipse + 1.0 / ellipse - 2.0)
        height = 0.25 * width * (ellipse - 1.0 / ellipse)
        turn = np.cos(np.minimum(height, math.pi))
        low, high = left - beyond, left + width + beyond
        with np.errstate(all="ignore"):
            top = np.where(turn > 0.0, -sign * (w + np.log(turn)), high if sign > 0.0 else low)
        # On the ellipse the exponent is at most its value with e^w cos v for e^w: concave, with its peak at top (C20)
        size = np.exp(np.minimum(_ratio_exponent(k, sign, w, np.clip(top, low, high), turn), 700.0))
        growth = np.exp(np.maximum(np.maximum(sign * low, sign * high), 0.0))
        lever = k * np.exp(w) * np.minimum(growth + 1.0, growth * (np.maximum(-low, high) + height))
        missed = gauss_error(RATIO_NODES, ellipse) * width * size
        excess = missed
        if sign < 0.0:
            flat = np.exp(np.minimum(-k * low, 700.0))
            excess = gauss_error(RATIO_NODES, ellipse) * width * np.minimum(lever, 2.0) * np.maximum(size, flat)
            excess = np.where(w > DIFFERENCE_FROM, missed, excess)
        best = np.minimum(best[0], excess), np.minimum(best[1], missed * lever)
    return best


@dataclass(frozen=True)
class _Polynomials:
    """One polynomial ``sum_j coefficients_j y^j`` with ``y = (w - middle)/half`` on each interval.

    * ``coefficients``, of shape ``(terms, intervals)``.
    * ``middle``, ``half``, of shape ``(intervals,)``: center and half-width of each interval.
    """

    coefficients: Array
    middle: Array
    half: Array

    def at(self, panel: NDArray[np.intp], w: Array) -> Array:
        """Return the values at ``w`` of the polynomials with the indices ``panel``."""
        y = (w - self.middle[panel]) / self.half[panel]
        total = self.coefficients[-1].take(panel)
        for row in self.coefficients[-2::-1]:
            total *= y
            total += row.take(panel)
        return total

    def slant(self, panel: NDArray[np.intp], w: Array, end: Array) -> Array:
        """Return ``(p(w) - p(end)) / (w - end)`` for the polynomials ``p`` with the indices ``panel``."""
        middle, half = self.middle[panel], self.half[panel]
        y, z = (w - middle) / half, (end - middle) / half
        total = self.coefficients[-1].take(panel)
        slant = np.zeros_like(total)
        # p(y) - p(z) = (y - z) q: q by Horner's rule on the sums of Horner's rule, without differences
        for row in self.coefficients[-2::-1]:
            slant *= z
            slant += total
            total *= y
            total += row.take(panel)
        return slant / half


@dataclass(frozen=True)
class _RatioTable:
    """A Mills ratio of a Gamma distribution and its slope, as polynomials on panels.

    * ``edges``: the ends of the panels, in the argument of the ratio.
    * ``ratio``: the polynomials of the ratio.
    * ``rise``: the polynomials of an antiderivative of the absolute slope.
    * ``amplified``: the proved relative error of a difference of two ratios (C20).
    """

    edges: Array
    ratio: _Polynomials
    rise: _Polynomials
    amplified: float

    def place(self, w: Array) -> NDArray[np.intp]:
        """Return the index of the panel nearest to each argument ``w`` of the ratio."""
        return np.searchsorted(self.edges[1:-1], w, side="right")

    def at(self, w: Array) -> Array:
        """Return the Mills ratio at ``w``, or at the nearest end of the table."""
        w = np.minimum(np.maximum(w, self.edges[0]), self.edges[-1])
        return self.ratio.at(self.place(w), w)


def _panel_edges(k: float, sign: float) -> Array:
    """Return the ends of the panels of a tabulated Mills ratio of ``Gamma(k)``.

    ``sign`` is 1 for the upper tail and -1 for the lower tail.
    """
    unit, edges = 1.0 / math.sqrt(k), []
    # k D(end) is at least FARTHEST_DEVIANCE.
    end = math.log1p(2.0 * FARTHEST_DEVIANCE / k) + 2.0 if sign > 0.0 else -LOWEST_LOG_THRESHOLD
    # width of a panel beyond |w| = 3
    place, wide = -2.2 * unit, 0.8 if sign > 0.0 else 1.6
    while place < end:
        edges.append(place)
        # other panels are 0.36 of the scale at their inner end wide
        place += wide if place > 3.0 else 0.36 * float(_ratio_scale(k, sign, np.array(sign * place)))
    return sign * np.array([*edges, place])[:: int(sign)]


def _coefficients(values: Array) -> Array:
    """Return coefficients of the polynomials with these values at Chebyshev points.

    Values have one row for each polynomial, and coefficients one column.
    """
    n = PANEL_COEFFICIENTS
    angle = (np.arange(n) + 0.5) * math.pi / n
    series = 2.0 / n * np.cos(np.arange(n)[:, None] * angle) @ values.T
    series[0] *= 0.5
    # The matrix converts the Chebyshev series to powers.
    return np.stack([np.pad(cheb2poly(unit[: j + 1]), (0, n - 1 - j)) for j, unit in enumerate(np.eye(n))], 1) @ series


def _build_ratio_table(k: float, sign: float) -> _RatioTable:
    """Return the table of a Mills ratio of ``Gamma(k)``, with its proved error (C20).

    ``sign`` is 1 for the upper tail. It is -1 for the lower tail, where ``1/k`` is subtracted from the ratio.
    """
    edges = _panel_edges(k, sign)
    inner = edges[:-1] if sign > 0.0 else edges[1:]
    reach = SLIM_REACH * _ratio_scale(k, sign, inner)
    middle, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges) + reach
    angle = (np.arange(PANEL_COEFFICIENTS) + 0.5) * math.pi / PANEL_COEFFICIENTS
    points = (middle[:, None] + half[:, None] * np.cos(angle)).ravel()
    ratio, slope, missed = _mills_ratios(k, sign, points)
    ratios, slopes = (_coefficients(part.reshape(-1, PANEL_COEFFICIENTS)) for part in (ratio, slope))
    # The antiderivative of sum_j c_j y^j is half sum_j c_j y^(j+1)/(j+1).
    powers = slopes * half / np.arange(1.0, PANEL_COEFFICIENTS + 1.0)[:, None]
    rise = _Polynomials(np.concatenate([np.zeros((1, len(middle))), powers]), middle, half)
    flat, spread = _panel_spreads(k, sign, middle - half, middle + half)
    # 4 M rho^(1-n) / (rho - 1) for the interpolant, and (2/pi) ln n + 1 times the error of its data (C20)
    interpolated = 4.0 * PANEL_ELLIPSE ** (1.0 - PANEL_COEFFICIENTS) / (PANEL_ELLIPSE - 1.0)
    lebesgue = 2.0 / math.pi * math.log(PANEL_COEFFICIENTS) + 1.0
    of_panels = interpolated * spread + lebesgue * float(np.max(missed)) * flat
    error = float(np.max(of_panels)) + POLYNOMIAL_RELATIVE_ROUNDING
    # The largest factor by which a difference amplifies a relative error, if its distance is at least SLIM_SHARE of the
    # scale. Ratios and slopes are monotone, so the ends of a panel suffice.
    near, far = (edges[:-1], edges[1:]) if sign > 0.0 else (edges[1:], edges[:-1])
    largest = _mills_ratios(k, sign, near)[0]
    least_slope = _mills_ratios(k, sign, far + sign * SLIM_SHARE * _ratio_scale(k, sign, far))[1]
    factors = 2.0 * largest / (SLIM_SHARE * _ratio_scale(k, sign, near) * least_slope)
    factor = max(1.01 * float(np.max(factors)), 1.0)
    return _RatioTable(edges, _Polynomials(ratios, middle, half), rise, error * factor)


def _panel_spreads(k: float, sign: float, low: Array, high: Array) -> tuple[Array, Array]:
    """Return two quotients for each panel that bound the error of a tabulated Mills ratio (C20).

    * the largest value on the panel, divided by the smallest value on the panel;
    * a bound of the values on a complex ellipse around the panel, divided by the smallest value on the panel.

    Each quotient is computed for the ratio and for its slope, and the larger one is returned.
    """
    near, far = (low, high) if sign > 0.0 else (high, low)
    half = 0.5 * (high - low)
    beyond = 0.5 * half * (PANEL_ELLIPSE + 1.0 / PANEL_ELLIPSE - 2.0)
    height = 0.5 * half * (PANEL_ELLIPSE - 1.0 / PANEL_ELLIPSE)
    turn = np.cos(height) if sign > 0.0 else np.ones_like(half)
    (top, steep, _), (largest, bent, _), (least, flat, _) = (
        _mills_ratios(k, sign, w) for w in (near - sign * beyond + np.log(turn), near, far)
    )
    spread = np.maximum(top / least, steep / turn / flat)
    return 1.01 * np.maximum(largest / least, bent / flat), 1.01 * spread


def _ratio_scale(k: float, sign: float, w: Array) -> Array:
    """Return the distance over which a Mills ratio of ``Gamma(k)`` varies near ``w``."""
    # Above the mean, below(w) increases as e^(k D), so its scale decreases.
    scale = np.minimum(np.maximum(sign * w, 0.0) + 1.0 / math.sqrt(k), 1.0)
    return scale if sign > 0.0 else scale * np.exp(-np.maximum(w, 0.0))


@dataclass(frozen=True)
class GammaGain:
    """Tables for expectations (gains) ``E[(1 - e^(-c (U - b)))_+]`` of ``U ~ Gamma(k)``.

    * ``above``, ``below``: tables of the Mills ratios of the upper and the lower tail.
    * ``log_front``: the log density of ``ln(U/k)`` at 0.
    * ``error``: the relative error of a gain, proved except for rounding (C20).
    """

    k: float
    above: _RatioTable
    below: _RatioTable
    log_front: float
    error: float

    def drop(self, table: _RatioTable, w: Array, x: Array) -> Array:
        """Return the absolute change of a Mills ratio from ``w`` to ``w + x`` or ``w - x``.

        The end is ``w + x`` for the table ``above`` and ``w - x`` for the table ``below``.
        """
        sign = 1.0 if table is self.above else -1.0
        slim = x < SLIM_SHARE * _ratio_scale(self.k, sign, w)
        drops, wide = np.empty_like(w), ~slim
        drops[wide] = table.at(w[wide]) - table.at(w[wide] + sign * x[wide])
        # the integral of the slope, as x times its mean
        w, x, low, high = w[slim], x[slim], table.edges[0], table.edges[-1]
        panel, end = table.place(w + 0.5 * sign * x), np.clip(w + sign * x, low, high)
        drops[slim] = x * table.rise.slant(panel, np.clip(w, low, high), end)
        return np.maximum(drops, 0.0)

    def log_under(self, w: Array, x: Array) -> Array:
        """Return ``ln E[(1 - e^(-(1 - e^-x)(k e^w - U)))_+]`` for ``U ~ Gamma(k)``."""
        # E' = k (x - e^w (1 - e^-x))
        return self.log_over(w, x, self.k * (x + np.exp(w) * np.expm1(-x)), -1.0)

    def log_over(self, w: Array, x: Array, tilt: Array, sign: float = 1.0) -> Array:
        """Return ``ln E[(1 - e^(-(e^x - 1)(U - k e^w)))_+]`` for ``U ~ Gamma(k)``.

        Args:
            w: The log of the threshold over ``k``.
            x: The log of one plus the rate, above 0.
            tilt: ``k e^w (e^x - 1) - k x``.
            sign: 1; -1 is for :meth:`log_under` only.
        """
        ratio, other = (self.above, self.below) if sign > 0.0 else (self.below, self.above)
        log_density = self.log_front - self.k * deviance(w)
        logs = np.empty_like(w)
        beyond = sign * w >= -1.0 / math.sqrt(self.k)
        # F e^(-k D(w)) [above(w) - above(w + x)], or F e^(-k D(w)) [below(w) - below(w - x)] (C20, Mills ratios)
        logs[beyond] = log_density[beyond] + np.log(self.drop(ratio, w[beyond], x[beyond]))
        w, moved, x, tilt, log_density = (part[~beyond] for part in (w, w + sign * x, x, tilt, log_density))
        gain, density, far = np.empty_like(w), np.exp(log_density), sign * moved > 2.0 / math.sqrt(self.k)
        near = ~far
        # 1 - e^E + F e^(-k D(w)) [below(w + x) - below(w)], or where w + x is beyond the mean
        # 1 - F e^(-k D(w)) [below(w) + above(w + x)]; the same with w - x and the ratios exchanged (C20)
        gain[near] = -np.expm1(tilt[near]) + density[near] * self.drop(other, moved[near], x[near])
        gain[far] = 1.0 - density[far] * (1.0 / self.k + other.at(w[far]) + ratio.at(moved[far]))
        logs[~beyond] = np.log(np.clip(gain, 0.0, 1.0))
        return logs


@lru_cache(maxsize=64)
def gamma_gain(k: float) -> GammaGain:
    """Return cached tables for ``E[(1 - e^(-c (U - b)))_+]``, ``U ~ Gamma(k)``, ``k >= 1``.

    Raises:
        ConvergenceError: The proved error of the tables is above :data:`LARGEST_GAIN_ERROR`.
    """
    with np.errstate(all="ignore"):
        above, below = _build_ratio_table(k, 1.0), _build_ratio_table(k, -1.0)
    log_front = 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k)
    error = GAIN_ERROR_FACTOR * max(above.amplified, below.amplified)
    if not error < LARGEST_GAIN_ERROR:
        raise ConvergenceError(
            f"the table of the Gamma distribution has an error of {error:.1e}. Please report k={k!r} as a bug."
        )
    return GammaGain(k, above, below, log_front, error)


INNER_NODES = 64  # soundness: Gauss nodes of an integral, for which QUADRATURE_RELATIVE_ERROR was measured

# soundness: relative error of the quadrature (measured against 200 nodes and 30 digits: below 4e-12, k from 1/2 to
# 5e6)
QUADRATURE_RELATIVE_ERROR = 2e-11

# soundness: largest start / k that is resolved; beyond it the expectation is 0 or 1
FARTHEST_PLACE = 1e30

# soundness: nats below its maximum at which an integrand is truncated; e^-40 is below QUADRATURE_RELATIVE_ERROR
DROPPED_NATS = 40.0

# soundness: exponents are limited to this to avoid overflow; within the range of integration they are smaller
LARGEST_DENSITY_EXPONENT = 600.0


def log_gamma_hockey_stick(k: float, rate: Array, start: Array, sign: float) -> Array:
    """Return ``ln E[(1 - e^(-rate (U - start)))_+]`` for ``U ~ Gamma(k)``, by quadrature.

    The relative error is below :data:`QUADRATURE_RELATIVE_ERROR` (measured).

    Args:
        k: The shape, also below 1.
        rate: The factor in the exponent, above 0.
        start: The threshold, of the same shape as ``rate``.
        sign: -1 for ``start - U`` instead of ``U - start``.
    """
    # E = sqrt(k/2 pi) e^-R int e^(-k D(w)) gain(w) dw/w, D = w - 1 - ln w, R the remainder of Stirling's formula
    place = np.clip(start / k, -FARTHEST_PLACE, FARTHEST_PLACE)
    # the deviance at place if the gain starts beyond the mean, else 0
    beyond = np.where(place > 0.0, sign * np.maximum(sign * (place - 1.0), 0.0), 0.0)
    reached = beyond - np.log1p(beyond)
    # The deviance is a little above t at w = 1 - s + s^2/3 - s^3/24 and at w' = 1 + s + min(s^2/2, s^2/3 + s^3/36),
    # s = sqrt(2 t).
    t = reached + (DROPPED_NATS + 0.5 * math.log(k + 1.0)) / k
    s = np.sqrt(2.0 * t)
    low = -s + s * s * (1.0 / 3.0 - s / 24.0)
    low, high = np.maximum(1.0 + low, 0.0), 1.0 + s + np.minimum(t, s * s * (1.0 / 3.0 + s / 36.0))
    low, high = (np.maximum(low, place), high) if sign > 0.0 else (low, np.minimum(high, place))
    log_total = _log_panel_integral(k, rate, place, reached, low, high, sign)
    # integrate by layers if the gain's exponent rises by more than 60 nats
    steep = rate * k * (high - low) > 60.0
    if np.any(steep):
        some = [np.broadcast_to(x, steep.shape)[steep] for x in (rate, place, reached, low, high)]
        log_total[steep] = _log_integral_by_layers(k, some[0], some[1], some[2], some[3], some[4], sign)
    log_total = log_total + 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k)
    if sign < 0.0:
        # Below the accuracy of the nodes: ln(rate s^(k+1)/Gamma(k+2) (1 - s (k + rate)/(k+2))) + O(s^2), s = start
        near = (start > 0.0) & (start < 1e-6)
        r, s = rate[near], start[near]
        correction = np.log1p(-s * (k + r) / (k + 2.0))
        log_total[near] = np.log(r) + (k + 1.0) * np.log(s) - math.lgamma(k + 2.0) + correction
    return log_total


def _log_integral_by_layers(
    k: float, rate: Array, place: Array, reached: Array, low: Array, high: Array, sign: float
) -> Array:
    """Return :func:`_log_panel_integral` by a sum over parts that widen away from ``place``."""
    # the gain's exponent rises by 30 nats over the first layer
    layer, parts = 30.0 / (k * rate), []
    while np.any(low < high):
        corner = np.clip(place + sign * layer, low, high)
        ends = (low, corner) if sign > 0.0 else (corner, high)
        parts.append(_log_panel_integral(k, rate, place, reached, *ends, sign))
        low, high = (corner, high) if sign > 0.0 else (low, corner)
        layer = 300.0 * layer
    return np.logaddexp.reduce(parts)


def _log_panel_integral(
    k: float, rate: Array, place: Array, reached: Array, low: Array, high: Array, sign: float
) -> Array:
    """Return ``ln int e^(-k D(w)) (1 - e^(-rate k sign (w - place))) dw/w`` over an interval.

    The interval is ``[low, high]``, and ``D(w) = w - 1 - ln w``. ``reached`` is the least value of ``D`` on it.
    """
    width = np.maximum(high - low, 0.0)
    share, rest, weights = _crowded_nodes(sign)
    w = low[..., None] + width[..., None] * share
    beyond, part = (low - place, share) if sign > 0.0 else (place - high, rest)
    gain = -np.expm1((-rate * k)[..., None] * (beyond[..., None] + width[..., None] * part))
    with np.errstate(divide="ignore", invalid="ignore"):
        # -k D(w) - ln w = (k - 1)(ln w - (w - 1)) - (w - 1), less its value where the gain starts
        away = w - 1.0
        exponent = (k - 1.0) * (np.log1p(away) - away) - away + k * reached[..., None]
        total = (np.exp(np.minimum(exponent, LARGEST_DENSITY_EXPONENT)) * gain) @ weights * width
        return np.where(width > 0.0, np.log(total) - reached * k, -np.inf)


@lru_cache(maxsize=2)
def _crowded_nodes(sign: float) -> tuple[Array, Array, Array]:
    """Return nodes ``x``, ``1 - x``, and weights for integration over [0, 1].

    The nodes are denser near 0, for ``sign = -1`` at both ends.
    """
    nodes, weights = gauss_nodes(INNER_NODES)
    # int_0^1 f(x) dx at x = u^2, or at x = u^2 (3 - 2u), which turns at both ends
    if sign > 0.0:
        return nodes**2, 1.0 - nodes**2, 2.0 * nodes * weights
    share, rest = nodes**2 * (3.0 - 2.0 * nodes), (1.0 - nodes) ** 2 * (1.0 + 2.0 * nodes)
    return share, rest, 6.0 * nodes * (1.0 - nodes) * weights
