"""Mills ratios of the Gamma law, tabulated with a proved error, and what a threshold gains over it.

For ``U ~ Gamma(k)``, ``k >= 1``, put ``U = k e^w`` and ``D(w) = e^w - 1 - w``. The density of ``w`` is
``F e^(-k D(w))``, ``F = sqrt(k/(2 pi)) e^-(remainder of Stirling's formula)``. With the two Mills ratios

    above(w) = int_0^inf exp(-k (D(w + y) - D(w))) dy,    P(U > k e^w) = F e^(-k D(w)) above(w)
    below(w) = int_0^inf exp(-k (D(w - y) - D(w))) dy,    P(U < k e^w) = F e^(-k D(w)) below(w)

and ``b = k e^w``, ``E = b (e^x - 1) - k x`` the two gains of a privacy loss that is linear in ``U`` are

    E[(1 - e^(-(e^x - 1)(U - b)))_+]  = F e^(-k D(w)) [above(w) - above(w + x)]
                                      = 1 - e^E + F e^(-k D(w)) [below(w + x) - below(w)]
    E[(1 - e^(-(1 - e^-x)(b - U)))_+] = F e^(-k D(w)) [below(w) - below(w - x)]

(docs/proofs.md C20). Both ratios and their slopes are Chebyshev polynomials on panels. All are entire, and on the line
through ``w`` parallel to the imaginary axis ``|above(w + i v)| <= above(w + ln cos v)``, ``|below(w + i v)| <=
below(w)``: this bounds the error of the polynomials, and like bounds that of the Gauss rules that feed them.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privproj.errors import NotConverged
from privproj.numerics.arrays import Array, gauss_nodes
from privproj.numerics.kernels import stirling_remainder

PANEL_COEFFICIENTS = 24
"""Coefficients of a panel; the error is computed for the value taken. Speed only."""

PANEL_ELLIPSE = 6.0
"""Sum of the semi-axes of the ellipse around a panel on which the ratios are bounded. Speed only."""

RATIO_NODES = 32
"""Gauss nodes of each part of a ratio's own integral; the error is computed. Speed only."""

RATIO_PARTS = 3
"""Parts of a ratio's own integral. Speed only."""

MORE_RATIO_PARTS = 40
"""This number over ``k`` more parts: for a small shape the integral is longer. Speed only."""

CUT_OFF_NATS = 44.0
"""Nats below the start (or the top) of a ratio's integrand where it is cut off; the rest is bounded. Speed only."""

SLIM_SHARE = 0.1
"""Differences over less than this share of the natural scale are integrals of the slope. Speed only."""

SLOPE_NODES = 8
"""Gauss nodes of the integral of a slope; the error is computed. Speed only."""

SLIM_ELLIPSE = 17.0
"""Sum of the semi-axes of the ellipse for the integral of a slope; it lies in that of the panel (C20). Proof."""

POLYNOMIAL_RELATIVE_ROUNDING = 2e-15
"""Relative rounding of a polynomial (measured). Proof."""

GAIN_ERROR_FACTOR = 8.0
"""By how much the sums of a gain amplify relative errors (C20). Proof."""

FARTHEST_DEVIANCE = 1e9
"""``k D`` up to which ``above`` is tabulated; beyond, gains are below ``e^-1e9``, and are negligible (C20). Proof."""

LOWEST_LOG_THRESHOLD = -40.0
"""``w`` from which ``below`` is tabulated; gains below are negligible (C20). Proof."""

DIFFERENCE_FROM = -1.0
"""``w`` from which ``below - 1/k`` is formed as a difference. Speed only."""

LARGEST_GAIN_ERROR = 1e-11
"""Proved relative error of a gain beyond which no table is used, and :class:`NotConverged` is raised. Contract."""

SERIES_RANGE = 0.3
"""``|w|`` below which ``D`` is summed in powers. Proof."""

SERIES_TERMS = 14
"""Powers in that sum: its remainder is below ``0.3^13 2/15! < 1e-18`` of it. Proof."""

PART_ELLIPSES = (1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 6.0)
"""Ellipses tried for the error of the Gauss rule on one part: sums of their semi-axes. Speed only."""


def deviance(w: Array) -> Array:
    """Return ``D(w) = e^w - 1 - w`` at every entry, without cancellation near 0."""
    small = np.abs(w) < SERIES_RANGE
    v = np.where(small, w, 0.0)
    series = np.zeros_like(v)
    for divisor in range(SERIES_TERMS, 2, -1):
        series = v / divisor * (1.0 + series)
    wide = np.where(small, 1.0, w)
    return np.where(small, 0.5 * v * v * (1.0 + series), np.expm1(wide) - wide)


def gauss_error(count: int, ellipse: Array | float) -> Array | float:
    """Return a bound of the error of the Gauss rule on [0, 1], for ``|f| <= 1`` on the ellipse (C20)."""
    # 2.1 rho^-2n / (1 - rho^-2) (C20, Gauss rules)
    return 2.1 * ellipse ** (-2.0 * count) / (1.0 - ellipse**-2.0)


def _ratio_exponent(k: float, sign: float, w: Array, y: Array, turn: Array | float = 1.0) -> Array:
    """Return the exponent ``-k (D(w +- y) - D(w))`` of a ratio's integrand; ``turn`` is ``cos v`` at ``y + iv``."""
    # k (+-y - e^w (e^(+-y) turn - 1)) = -k (D(w +- y) - D(w)) at turn = 1
    return k * (sign * y - np.exp(w) * (np.expm1(sign * y) * turn - (1.0 - turn)))


def _cut_off_place(k: float, sign: float, w: Array) -> Array:
    """Return the ``y`` where the exponent is :data:`CUT_OFF_NATS` below its largest value, by Newton's method."""
    top = np.maximum(-sign * w, 0.0)
    level = _ratio_exponent(k, sign, w, top) - CUT_OFF_NATS
    most = 10.0 / math.sqrt(k) + (2.0 * CUT_OFF_NATS + 2.0) / k
    y = top + (min(most, math.log(2.0 + 2.0 * CUT_OFF_NATS / k) + 2.0) if sign > 0.0 else most)
    for _ in range(40):
        fall = -sign * k * (1.0 - np.exp(np.minimum(w + sign * y, 30.0)))
        step = (level - _ratio_exponent(k, sign, w, np.minimum(y, 30.0 if sign > 0.0 else 1e9))) / fall
        y = np.maximum(y - np.clip(step, 0.0, 0.9 * (y - top)), top)
    return y


def _mills_ratios(k: float, sign: float, w: Array) -> tuple[Array, Array, Array]:
    """Return the ratio, the size of its slope, and the proved relative error of both, at every ``w``.

    ``sign`` is 1 for ``above`` and -1 for ``below``. Of ``below`` it is what exceeds ``1/k``: ``int_0^inf e^(-k y) (e^q
    - 1) dy``, ``q = k e^w (1 - e^-y)``, which is positive, and small where ``w`` is.
    """
    nodes, weights = gauss_nodes(RATIO_NODES)
    end, parts = _cut_off_place(k, sign, w), RATIO_PARTS + int(MORE_RATIO_PARTS / k)
    ratio, slope, error, error_of_slope = (np.zeros_like(w) for _ in range(4))
    for part in range(parts):
        left, width = end * part / parts, end / parts
        y = left[:, None] + width[:, None] * nodes
        values = np.exp(_ratio_exponent(k, sign, w[:, None], y)) * weights * width[:, None]
        ratio += values.sum(axis=1) if sign > 0.0 else (values * _small_rise(k, w[:, None], y)).sum(axis=1)
        slope += k * np.exp(w) * (values * np.abs(np.expm1(sign * y))).sum(axis=1)
        missed = _gauss_part_error(k, sign, w, left, width)
        error, error_of_slope = error + missed[0], error_of_slope + missed[1]
    ratio -= np.where((w > DIFFERENCE_FROM) & (sign < 0.0), 1.0 / k, 0.0)
    # Beyond the last part the integrand is log-concave: at most its height over its slope (C20).
    last, fall = np.exp(_ratio_exponent(k, sign, w, end)), sign * k * np.expm1(w + sign * end)
    lever = k * np.exp(w) * np.abs(np.expm1(sign * end))
    rest_of_slope = last * lever / (fall - 1.0 / np.abs(np.expm1(-sign * end)))
    rest = last / fall if sign > 0.0 else np.minimum(last / fall, rest_of_slope)
    both = np.maximum((error + rest) / ratio, (error_of_slope + np.abs(rest_of_slope)) / slope)
    return ratio, slope, np.where(rest_of_slope > 0.0, both, np.inf)


def _small_rise(k: float, w: Array, y: Array) -> Array:
    """Return ``1 - e^-q``, or 1 where ``w`` is above :data:`DIFFERENCE_FROM`: there ``1/k`` is taken off in the end."""
    return np.where(w > DIFFERENCE_FROM, 1.0, -np.expm1(k * np.exp(w) * np.expm1(-y)))


def _gauss_part_error(k: float, sign: float, w: Array, left: Array, width: Array) -> tuple[Array, Array]:
    """Return proved errors of the Gauss rule on one part, of the ratio and of its slope: the best of a few ellipses."""
    best = np.full_like(w, np.inf), np.full_like(w, np.inf)
    for ellipse in PART_ELLIPSES:
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
class _RatioTable:
    """One Mills ratio and the size of its slope, by polynomials on ``p`` panels, and their proved error (C20).

    * ``edges``, of shape ``(p + 1,)``: the ends of the panels, in ``w``.
    * ``ratio``, ``slope``, of shape ``(coefficients, p)``: Chebyshev coefficients on each panel.
    * ``error``: relative error of both polynomials.
    * ``amplified``: relative error of a difference of two values, or of an integral of the slope in its place.
    """

    edges: Array
    ratio: Array
    slope: Array
    error: float
    amplified: float

    def place(self, w: Array) -> tuple[NDArray[np.intp], Array]:
        """Return the panel of each ``w`` and where in it, from -1 to 1; the ends stand for what lies beyond."""
        panel = np.clip(np.searchsorted(self.edges, w, side="right") - 1, 0, len(self.edges) - 2)
        left, right = self.edges[panel], self.edges[panel + 1]
        return panel, np.clip((2.0 * w - left - right) / (right - left), -1.0, 1.0)

    def at(self, w: Array, coefficients: Array) -> Array:
        """Return the values at ``w`` of the polynomials with these coefficients, by Clenshaw's sum."""
        panel, y = self.place(w)
        ahead, last, twice = np.zeros_like(y), np.zeros_like(y), 2.0 * y
        for j in range(PANEL_COEFFICIENTS - 1, 0, -1):
            ahead, last = coefficients[j][panel] + twice * ahead - last, ahead
        return coefficients[0][panel] + y * ahead - last


def _panel_edges(k: float, sign: float) -> Array:
    """Return edges of panels that are 0.45 of the scale wide, from beyond 0 on the other side outward."""
    unit, edges = 1.0 / math.sqrt(k), []
    end = _farthest_log_threshold(k) if sign > 0.0 else -LOWEST_LOG_THRESHOLD
    place = -2.2 * unit
    while place < end:
        edges.append(place)
        place += 0.45 * min(max(place, 0.0) + unit, 1.0)
    return sign * np.array([*edges, place])[:: int(sign)]


def _farthest_log_threshold(k: float) -> float:
    """Return a ``w > 0`` at which ``k D(w)`` is at least :data:`FARTHEST_DEVIANCE`."""
    return math.log1p(2.0 * FARTHEST_DEVIANCE / k) + 2.0


def _build_ratio_table(k: float, sign: float) -> _RatioTable:
    """Return the table of ``above`` (``sign = 1``) or ``below`` (-1) of ``Gamma(k)``, with its proved error (C20).

    The error is that of interpolation in Chebyshev points of the first kind, of the Gauss rules, and of rounding.
    """
    edges = _panel_edges(k, sign)
    angle = (np.arange(PANEL_COEFFICIENTS) + 0.5) * math.pi / PANEL_COEFFICIENTS
    middle, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
    points = (middle[:, None] + half[:, None] * np.cos(angle)).ravel()
    ratio, slope, missed = _mills_ratios(k, sign, points)
    transform = 2.0 / PANEL_COEFFICIENTS * np.cos(np.arange(PANEL_COEFFICIENTS)[:, None] * angle)
    transform[0] *= 0.5
    parts = [transform @ part.reshape(len(middle), PANEL_COEFFICIENTS).T for part in (ratio, slope)]
    flat, spread, slope_spread, loss = _panel_spreads(k, sign, edges)
    # 4 M rho^(1-n) / (rho - 1) for the interpolant, and (2/pi) ln n + 1 times the error of what it is fed with (C20)
    interpolated = 4.0 * PANEL_ELLIPSE ** (1.0 - PANEL_COEFFICIENTS) / (PANEL_ELLIPSE - 1.0) * spread
    lebesgue = 2.0 / math.pi * math.log(PANEL_COEFFICIENTS) + 1.0
    error = interpolated + lebesgue * flat * float(np.max(missed)) + POLYNOMIAL_RELATIVE_ROUNDING
    slim = gauss_error(SLOPE_NODES, SLIM_ELLIPSE) * slope_spread * flat
    return _RatioTable(edges, parts[0], parts[1], error, max(error * loss, float(slim) + error))


def _panel_spreads(k: float, sign: float, edges: Array) -> tuple[float, float, float, float]:
    """Return four numbers that the error of the table needs, each the largest over its panels.

    * the largest over the smallest value on a panel, of the ratio or of its slope;
    * the bound on the ellipse of a panel over the smallest value, of either;
    * the same of the slope alone;
    * by how much a difference over :data:`SLIM_SHARE` of the scale amplifies a relative error.

    Ratios and slopes are monotone (C20), so the ends of a panel suffice.
    """
    near, far = (edges[:-1], edges[1:]) if sign > 0.0 else (edges[1:], edges[:-1])
    half = 0.5 * np.abs(far - near)
    beyond, height = (
        0.5 * half * (PANEL_ELLIPSE + 1.0 / PANEL_ELLIPSE - 2.0),
        0.5 * half * (PANEL_ELLIPSE - 1.0 / PANEL_ELLIPSE),
    )
    turn = np.cos(height) if sign > 0.0 else np.ones_like(half)
    shift = SLIM_SHARE * _ratio_scale(k, sign, far)
    (top, steep, _), (high, bent, _), (least, flat, _), (_, flattest, _) = (
        _mills_ratios(k, sign, w) for w in (near - sign * beyond + np.log(turn), near, far, far + sign * shift)
    )
    flatness = np.maximum(high / least, bent / flattest)
    loss = 2.0 * high / (SLIM_SHARE * _ratio_scale(k, sign, near) * flattest)
    found = (flatness, np.maximum(top / least, steep / turn / flat), steep / turn / flat, loss)
    return tuple(1.01 * float(np.max(part)) for part in found)  # pyright: ignore


def _ratio_scale(k: float, sign: float, w: Array) -> Array:
    """Return the distance in ``w`` over which a ratio varies."""
    return np.minimum(np.maximum(sign * w, 0.0) + 1.0 / math.sqrt(k), 1.0)


@dataclass(frozen=True)
class GammaGain:
    """The gains of ``Gamma(k)`` over thresholds ``k e^w``, from tables of the two Mills ratios.

    * ``k``: the shape, at least 1.
    * ``above``, ``below``: the tables.
    * ``log_front``: ``ln F = ln(k/(2 pi))/2 - R``, ``R`` the remainder of Stirling's formula.
    * ``error``: the relative error of a gain, proved but for rounding (C20).

    Arrays given to a method have one shape, which is that of the result.
    """

    k: float
    above: _RatioTable
    below: _RatioTable
    log_front: float
    error: float

    def drop(self, table: _RatioTable, w: Array, x: Array) -> Array:
        """Return ``|ratio(w) - ratio(w')|``, where ``w' = w + x`` for ``above`` and ``w' = w - x`` for ``below``.

        ``w`` is where the ratio is larger. The result is a difference, or the integral of the slope where that would
        cancel.
        """
        sign = 1.0 if table is self.above else -1.0
        slim = x < SLIM_SHARE * _ratio_scale(self.k, sign, w)
        found = np.empty_like(w)
        wide = ~slim
        found[wide] = table.at(w[wide], table.ratio) - table.at(w[wide] + sign * x[wide], table.ratio)
        if np.any(slim):
            nodes, weights = gauss_nodes(SLOPE_NODES)
            places = w[slim][:, None] + sign * x[slim][:, None] * nodes
            slopes = table.at(places.ravel(), table.slope).reshape(places.shape)
            found[slim] = (slopes @ weights) * x[slim]
        return np.maximum(found, 0.0)

    def log_over(self, w: Array, x: Array, tilt: Array) -> Array:
        """Return ``ln E[(1 - e^(-(e^x - 1)(U - k e^w)))_+]``; ``tilt`` is ``E`` of the module docstring."""
        unit = 1.0 / math.sqrt(self.k)
        log_density = self.log_front - self.k * deviance(w)
        found = np.empty_like(w)
        high = w >= -unit
        # F e^(-k D(w)) [above(w) - above(w + x)] (C20, Mills ratios)
        found[high] = log_density[high] + np.log(self.drop(self.above, w[high], x[high]))
        low = ~high
        if np.any(low):
            found[low] = np.log(self.over_from_below(w[low], x[low], tilt[low], np.exp(log_density[low])))
        return found

    def over_from_below(self, w: Array, x: Array, tilt: Array, density: Array) -> Array:
        """Return the gain of :meth:`log_over`, no log, for ``w < -1/sqrt(k)``, mostly from the table ``below``."""
        far = w + x > 2.0 / math.sqrt(self.k)
        found, near = np.empty_like(w), ~far
        # 1 - e^E + F e^(-k D(w)) [below(w + x) - below(w)], or where w + x is beyond the mean
        # 1 - F e^(-k D(w)) [below(w) + above(w + x)] (C20, Mills ratios)
        found[near] = -np.expm1(tilt[near]) + density[near] * self.drop(self.below, w[near] + x[near], x[near])
        rest = 1.0 / self.k + self.below.at(w[far], self.below.ratio) + self.above.at(w[far] + x[far], self.above.ratio)
        found[far] = 1.0 - density[far] * rest
        return np.clip(found, 0.0, 1.0)

    def log_under(self, w: Array, x: Array) -> Array:
        """Return ``ln E[(1 - e^(-(1 - e^-x)(k e^w - U)))_+]``."""
        found = np.empty_like(w)
        low = w < 1.0 / math.sqrt(self.k)
        # F e^(-k D(w)) [below(w) - below(w - x)] (C20, Mills ratios)
        found[low] = self.log_front - self.k * deviance(w[low]) + np.log(self.drop(self.below, w[low], x[low]))
        high = ~low
        if np.any(high):
            found[high] = np.log(self.under_from_above(w[high], x[high]))
        return found

    def under_from_above(self, w: Array, x: Array) -> Array:
        """Return the gain of :meth:`log_under`, no log, for ``w >= 1/sqrt(k)``, mostly from the table ``above``."""
        k, unit = self.k, 1.0 / math.sqrt(self.k)
        density = np.exp(self.log_front - k * deviance(w))
        found, far = np.empty_like(w), w - x < -2.0 * unit
        near = ~far
        # 1 - e^E' + F e^(-k D(w)) [above(w - x) - above(w)], E' = k (x - e^w (1 - e^-x)), or where w - x is below the
        # mean 1 - F e^(-k D(w)) [above(w) + below(w - x)] (C20, Mills ratios)
        tilt = k * (x + np.exp(w) * np.expm1(-x))
        found[near] = -np.expm1(tilt[near]) + density[near] * self.drop(self.above, w[near] - x[near], x[near])
        rest = 1.0 / k + self.above.at(w[far], self.above.ratio) + self.below.at(w[far] - x[far], self.below.ratio)
        found[far] = 1.0 - density[far] * rest
        return np.clip(found, 0.0, 1.0)


@lru_cache(maxsize=64)
def gamma_gain(k: float) -> GammaGain:
    """Return the gains of ``Gamma(k)``, ``k >= 1``, with their tables, remembered.

    Raises :class:`NotConverged` where their proved error is above :data:`LARGEST_GAIN_ERROR`.
    """
    with np.errstate(all="ignore"):
        above, below = _build_ratio_table(k, 1.0), _build_ratio_table(k, -1.0)
    log_front = 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k)
    error = GAIN_ERROR_FACTOR * max(above.amplified, below.amplified)
    if not error < LARGEST_GAIN_ERROR:
        raise NotConverged(f"the table of the Gamma law is only right to {error:.1e}; please report k={k!r}")
    return GammaGain(k, above, below, log_front, error)
