"""The integral of the exact profile of the vector Wishart mechanism by Gauss rules with a proved error (C9, C20).

``delta(eps) = P(A <= 0) + int f(A) g(A) dA``: ``f`` is the density of ``A = 1 - m + s T``, ``s = sqrt(m (2 - m)/r)``,
``T`` has Student's law with ``r`` degrees of freedom, and ``g`` is the gain of :mod:`privproj.laws.wishart_loss`, which
rises on both sides of ``A = 1``. There are three parts: below ``A = 1`` where the threshold ``U2`` is positive, where
it is not (``g`` is ``1 - e^eps A^(r-1)``), and above ``A = 1``.

On each panel the integral lies between its width times the least and the largest ``f`` and ``g``, which are monotone.
The error of the Gauss rule is at most ``2.1 M rho^-2n / (1 - rho^-2)`` widths, ``M`` a bound of ``|f g|`` on an ellipse
around it (C20). These bounds decide whether a panel is left out, evaluated or halved. So the result is an enclosure
wherever the panels are. Panels of many ``eps`` go together: an array ``index`` says which epsilon each belongs to.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privproj.errors import NotConverged
from privproj.numerics.arrays import Array, gauss_nodes
from privproj.numerics.gamma_mills import GammaGain, deviance, gamma_gain, gauss_error

Index = NDArray[np.intp]
"""For each panel the number of its epsilon."""

BELOW_ONE = 0
"""Kind of a panel below ``A = 1`` where the threshold ``U2`` is positive. Proof."""

CERTAIN_GAIN = 1
"""Kind of a panel below ``A = 1`` where it is not, so that the gain is ``1 - e^eps A^(r-1)``. Proof."""

ABOVE_ONE = 2
"""Kind of a panel above ``A = e^(eps/a)``, where the threshold ``U1`` is positive. Proof."""

PANEL_NODES = 20
"""Gauss nodes of a panel. Speed only."""

PANEL_ELLIPSES = (1.5, 2.0, 2.7, 3.5)
"""Ellipses tried for the error of a panel: sums of their semi-axes. Speed only."""

PANEL_ERROR_SHARE = 1e-13
"""What a panel may add to the relative error of one value without being halved. It is added. Speed only."""

TABLE_PANEL_ERROR_SHARE = 1e-12
"""What a panel may add to the relative error of a value of a table without being halved. It is added. Speed only."""

MOST_HALVINGS = 90
"""Halvings after which :class:`NotConverged` is raised. Contract."""

MINIMUM_OVER_RISE = 2.32
"""``min(2, x) <= 2.32 (1 - e^-x)`` for ``x >= 0`` (C20). Proof."""

BERNOULLI_BEND = 0.28
"""Half of a bound of ``|B''|``, ``B(x) = x/(e^x - 1)``, for ``|Im x| <= 1`` (C20). Proof."""

THRESHOLD_ROUNDING = 1.5e-15
"""Relative rounding of thresholds and of epsilon, which callers may have off by 1e-15; measured. Proof."""

FARTHEST_LOG_ALIGNMENT = 45.0
"""``ln A`` up to which there are panels; the rest is bounded and added. Speed only."""

PANELS_TOWARDS_ZERO = 40
"""Number of first panels towards ``A = 0``, each half as wide as the one before. Speed only."""

PANELS_TOWARDS_THRESHOLD = 25.0
"""Number of first panels towards a threshold of 0, each half as wide as the one before. Speed only."""

LEAST_DIVISOR = 1e-300
"""Least divisor and least argument of a logarithm, of numbers that are 0 or far larger. Proof."""


def _log_sums_by_index(index: Index, logs: Array, count: int) -> Array:
    """Return ``ln`` of the sums of ``e^logs`` over equal ``index``, for the indices below ``count``."""
    top = np.full(count, -np.inf)
    np.maximum.at(top, index, logs)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.bincount(index, np.exp(logs - safe[index]), count))


def _bernoulli_less_one(x: Array) -> Array:
    """Return ``B(x) - 1 = x/(e^x - 1) - 1`` for ``x >= 0``, without cancellation near 0."""
    small = np.minimum(x, 0.1)
    v = small * small
    # B(x) - 1 = -x/2 + x^2/12 - x^4/720 + x^6/30240 - x^8/1209600 + ..., the Bernoulli numbers over factorials
    series = -0.5 * small + v * (1.0 / 12.0 - v * (1.0 / 720.0 - v * (1.0 / 30240.0 - v / 1209600.0)))
    wide = np.maximum(x, 0.1)
    return np.where(x < 0.1, series, wide / np.expm1(np.minimum(wide, 700.0)) - 1.0)


@dataclass(frozen=True)
class _IntegralPanels:
    """Panels ``[low, high]``, each of one part and one epsilon; all four arrays have one entry for each panel.

    * ``index``: the number of its epsilon.
    * ``kind``: its part, :data:`BELOW_ONE`, :data:`CERTAIN_GAIN` or :data:`ABOVE_ONE`.
    * ``low``, ``high``: its ends as places. A place is ``1 - A`` below 1, and ``A - e^(eps/a)`` above.
    """

    index: Index
    kind: NDArray[np.int8]
    low: Array
    high: Array

    def __getitem__(self, chosen: NDArray[np.bool_]) -> "_IntegralPanels":
        return _IntegralPanels(self.index[chosen], self.kind[chosen], self.low[chosen], self.high[chosen])

    def halve(self) -> "_IntegralPanels":
        """Return twice as many panels: each is cut in two."""
        middle = 0.5 * (self.low + self.high)
        both = np.concatenate
        return _IntegralPanels(
            both([self.index, self.index]),
            both([self.kind, self.kind]),
            both([self.low, middle]),
            both([middle, self.high]),
        )


@dataclass(frozen=True)
class _ThresholdBox:
    """``x1 <= Re x <= x2, |Im x| <= turn <= 1``, and bounds of ``B(x) = x/(e^x - 1)`` and ``N(x) = 1/(e^x - 1)`` (C20).

    * ``b1``, ``b2``, ``n1``, ``n2``: ``B`` and ``N`` at ``x1`` and ``x2``; both fall on the real line.
    * ``bend``, ``n_bend``: ``|Re B - B(Re x)| <= bend`` and ``Re N >= N(Re x) - n_bend`` on the box.
    * ``b_aside``, ``n_aside``: bounds of ``|Im B|`` and ``|Im N|`` on the box.

    Each array has one entry for each panel.
    """

    x1: Array
    x2: Array
    turn: Array
    b1: Array
    b2: Array
    n1: Array
    n2: Array
    bend: Array
    n_bend: Array
    b_aside: Array
    n_aside: Array

    @staticmethod
    def around(x1: Array, x2: Array, turn: Array) -> "_ThresholdBox":
        """Return the box with its bounds, rounded outward by 1e-12 relative where sizes are compared."""
        # N = 1/rise, |N'| = (1 + rise)/rise^2, N'' = (1 + rise)(2 + rise)/rise^3, largest at x1
        # bend = turn^2 min(0.28, |N'| + |x| N''/2), b_aside = turn min(1/2, N + |x| |N'|) (C20)
        rise = np.expm1(np.minimum(x1, 200.0))
        n1, n2 = 1.0 / rise, 1.0 / np.expm1(np.minimum(x2, 700.0))
        fall, curve = (1.0 + rise) / rise**2, (1.0 + rise) * (2.0 + rise) / rise**3
        b1, b2 = (1.0 + _bernoulli_less_one(x) for x in (x1, x2))
        far = x2 + 1.0
        bend = turn**2 * np.minimum(BERNOULLI_BEND, fall + 0.5 * far * curve)
        b_aside = turn * np.minimum(0.5, n1 + far * fall)
        slack = 1e-12
        return _ThresholdBox(
            x1, x2, turn, b1, b2, n1, n2, bend + slack * b2, 0.5 * turn**2 * curve + slack * n2, b_aside, turn * fall
        )


@dataclass(frozen=True)
class WishartIntegral:
    """The profile of one pair for an array of ``eps >= 0``, ``dim >= 2``, with a proved error of its quadratures.

    * ``dim``, ``rank``, ``misalignment``: ``d``, ``r`` and ``m``.
    * ``log_infinite``: ``ln P(A <= 0)``.
    * ``log_front``: the log of Student's density at 0, ``ln(c_r/sqrt(r))``.
    * ``eps``: the values of epsilon, of shape ``(e,)``.
    * ``share``: what a panel may add to the relative error of one value without being halved.

    In the methods ``place``, ``kind`` and ``index`` are as in :class:`_IntegralPanels`, and of equal shape. A rectangle
    around a panel is given by its ``centre``, which is ``A - 1``, and its half axes ``wide`` and ``tall``.
    """

    dim: int
    rank: int
    misalignment: float
    log_infinite: float
    log_front: float
    eps: Array
    share: float = PANEL_ERROR_SHARE

    @cached_property
    def gain(self) -> GammaGain:
        """The gains over a threshold of ``U ~ Gamma(k)``, with their own proved error."""
        return gamma_gain(self.k)

    @property
    def k(self) -> float:
        """The shape ``k = (r + d - 1)/2`` of ``U``."""
        return 0.5 * (self.rank + self.dim - 1.0)

    @property
    def a(self) -> float:
        """The factor ``a = (d + 1 - r)/2`` of ``ln A`` in the loss."""
        return 0.5 * (self.dim + 1.0 - self.rank)

    @cached_property
    def spread(self) -> float:
        """The scale ``s = sqrt(m (2 - m)/r)`` of ``A = 1 - m + s T``."""
        return math.sqrt(self.misalignment * (2.0 - self.misalignment) / self.rank)

    @cached_property
    def kink(self) -> Array:
        """The ``|ln A| = eps/|a|`` at which a threshold is 0, for each epsilon."""
        return self.eps / max(abs(self.a), LEAST_DIVISOR)

    @cached_property
    def log_density_front(self) -> float:
        """The log of the largest density ``f``, that at ``A = 1 - m``."""
        return self.log_front - math.log(self.spread)

    # --- the integrand --------------------------------------------------------------------------

    def offset(self, kind: NDArray[np.int8], index: Index, place: Array) -> Array:
        """Return ``A - 1`` at these places."""
        return np.where(kind == ABOVE_ONE, np.expm1(np.minimum(self.kink[index], 600.0)) + place, -place)

    def log_density(self, offset: Array) -> Array:
        """Return ``ln f(A)``, the log of the density of ``A``, at ``A = 1 + offset``."""
        # f(A) = c_r/(sqrt(r) s) (1 + t^2/r)^(-(r+1)/2), t = (A - 1 + m)/s (C9)
        t = (offset + self.misalignment) / self.spread
        return self.log_density_front - 0.5 * (self.rank + 1.0) * np.log1p(t * t / self.rank)

    def log_gain(self, kind: NDArray[np.int8], index: Index, place: Array) -> tuple[Array, Array]:
        """Return ``ln g`` at these places, and by what a rounding of the threshold is multiplied in it."""
        found, steep = np.full_like(place, -np.inf), np.zeros_like(place)
        for part, gain in ((BELOW_ONE, self.below), (CERTAIN_GAIN, self.certain), (ABOVE_ONE, self.above)):
            here = kind == part
            if np.any(here):
                found[here], steep[here] = gain(self.eps[index[here]], self.kink[index[here]], place[here])
        return found, steep

    def below(self, eps: Array, kink: Array, place: Array) -> tuple[Array, Array]:
        """Return ``ln g_-`` and its steepness below ``A = 1`` where ``U2 > 0``.

        ``g_-`` rises from 0 at ``A = 1`` to 1 at ``A = 0``.
        """
        k, a = self.k, self.a
        inside = (place > 0.0) & (place < 1.0)
        x = -np.log1p(-np.where(inside, place, 0.5))
        # U2 = a x/(e^x - 1) + eps/(e^x - 1) and k = a + (r - 1):
        # U2/k - 1 = [a (B(x) - 1) + eps N(x) - (r - 1)] / k, so small differences keep their digits; w = ln(U2/k) (C9).
        terms = a * _bernoulli_less_one(x), eps / np.expm1(x)
        w = np.log1p(np.maximum((terms[0] + terms[1] - (self.rank - 1.0)) / k, -1.0 + 1e-16))
        # g_- = E[(1 - e^(-(e^x - 1)(U - U2)))_+] (C9), and e^E = e^(eps - (r-1) x) (C20)
        found = self.gain.log_over(np.maximum(w, -39.0), x, eps - (self.rank - 1.0) * x)
        steep = self.steepness(w, np.abs(terms[0]) + terms[1] + self.rank, 1.0)
        found = np.where(inside, found, np.where(place > 0.0, 0.0, self.gain_at_one(eps)))
        return found, np.where(inside, steep, 0.0)

    @staticmethod
    def gain_at_one(eps: Array) -> Array:
        """Return ``ln g = -inf`` at ``A = 1``, where nothing is gained, one for each of ``eps``."""
        return np.full_like(eps, -np.inf)

    def certain(self, eps: Array, kink: Array, place: Array) -> tuple[Array, Array]:
        """Return ``ln g_- = ln(1 - e^eps A^(r-1))`` and its steepness, where ``U2 <= 0``."""
        with np.errstate(divide="ignore"):
            # 1 - e^eps A^(r-1) (C9), A = 1 - place
            exponent = eps + (self.rank - 1.0) * np.log1p(-np.minimum(place, 1.0))
            return np.log(-np.expm1(np.minimum(exponent, 0.0))), np.full_like(place, 4.0)

    def above(self, eps: Array, kink: Array, place: Array) -> tuple[Array, Array]:
        """Return ``ln g_+`` and its steepness above ``A = e^(eps/a)``, where ``U1 > 0``."""
        k, a = self.k, self.a
        # A = e^x, x = eps/a + beyond, beyond = ln(1 + place e^(-eps/a)):
        # U1 = (a x - eps)/(1 - e^-x) = a beyond/(1 - e^-x).
        beyond = np.log1p(np.maximum(place, 0.0) * np.exp(-kink))
        x = np.maximum(kink + beyond, LEAST_DIVISOR)
        threshold = a * beyond / -np.expm1(-x)
        # x/(1 - e^-x) = x + B(x), so U1/k - 1 = [a (x + B(x) - 1) - eps/(1 - e^-x) - (r - 1)] / k near k.
        terms = a * (x + _bernoulli_less_one(x)), eps / -np.expm1(-x)
        near = np.log1p(np.maximum((terms[0] - terms[1] - (self.rank - 1.0)) / k, -0.9))
        with np.errstate(divide="ignore"):
            w = np.where(threshold > 0.5 * k, near, np.log(threshold / k))
        w = np.maximum(w, -39.0)
        steep = self.steepness(w, np.abs(terms[0]) + terms[1] + self.rank, -1.0)
        inside = place > 0.0
        x = np.where(inside, x, 1.0)
        return np.where(inside, self.gain.log_under(w, x), -np.inf), np.where(inside, steep, 0.0)

    def steepness(self, w: Array, terms: Array, sign: float) -> Array:
        """Estimate ``terms |d ln g/d U|`` at ``U = k e^w``: the factor of a rounding of the threshold in ``ln g``.

        ``terms`` are the sizes of what the threshold is a sum of. ``sign`` is 1 for ``g_-`` and -1 for ``g_+``. It is
        not proved to be an upper bound (C20, the sum).
        """
        # k |d ln g/d U| is about sqrt(k) + k |e^w - 1| in the tail, and min(sqrt(k), 1/|e^w - 1|) elsewhere.
        k, away = self.k, np.abs(np.expm1(np.minimum(w, 50.0)))
        tail = math.sqrt(k) + k * away
        bulk = np.minimum(math.sqrt(k), 1.0 / np.maximum(away, 1e-300))
        return (2.0 * np.where(sign * w > 0.0, tail, bulk) + 2.0) * np.minimum(terms / k, 1e6)

    # --- bounds on a panel ----------------------------------------------------------------------

    def panel_bounds(self, p: _IntegralPanels) -> tuple[Array, Array]:
        """Return ``ln`` of a lower and of an upper bound of the integral over each panel.

        ``g`` rises with the place, and ``f`` has one hill: the bounds are the width times the least, or the largest,
        ``f`` and ``g``.
        """
        # width min(f) g(low) <= integral <= width max(f) g(high), with 1e-9 for rounding (C20, the sum)
        far, near = self.offset(p.kind, p.index, p.high), self.offset(p.kind, p.index, p.low)
        with np.errstate(divide="ignore"):
            width = np.log(p.high - p.low)
        at_near, at_far = self.log_density(near), self.log_density(far)
        astride = (near + self.misalignment) * (far + self.misalignment) <= 0.0
        most = np.where(astride, self.log_density_front, np.maximum(at_near, at_far))
        high_gain = self.log_gain(p.kind, p.index, p.high)[0]
        low_gain = np.append(-np.inf, high_gain[:-1])
        new = np.append(True, (p.low[1:] != p.high[:-1]) | (np.diff(p.kind) != 0) | (np.diff(p.index) != 0))
        low_gain[new] = self.log_gain(p.kind[new], p.index[new], p.low[new])[0]
        return width + np.minimum(at_near, at_far) + low_gain - 1e-9, width + most + high_gain + 1e-9

    def gauss(self, p: _IntegralPanels) -> tuple[Array, Array, Array]:
        """Return ``ln`` of the Gauss rule on each panel, ``ln`` of its proved error, and the mean of the steepness."""
        nodes, weights = gauss_nodes(PANEL_NODES)
        width = (p.high - p.low)[:, None]
        place = p.low[:, None] + width * nodes
        kind, index = np.repeat(p.kind, PANEL_NODES), np.repeat(p.index, PANEL_NODES)
        flat = place.ravel()
        gain, steep = self.log_gain(kind, index, flat)
        logs = (self.log_density(self.offset(kind, index, flat)) + gain).reshape(place.shape)
        peak = np.maximum(logs.max(axis=1), -1e300)
        values = np.exp(logs - peak[:, None]) * weights * width
        total = values.sum(axis=1)
        leaning = (values * steep.reshape(place.shape)).sum(axis=1) / np.maximum(total, LEAST_DIVISOR)
        with np.errstate(divide="ignore"):
            return peak + np.log(total), self.log_error(p), leaning

    def log_error(self, p: _IntegralPanels) -> Array:
        """Return ``ln`` of the proved error of the Gauss rule on each panel: the least over a few ellipses."""
        best = np.full_like(p.low, np.inf)
        for ellipse in PANEL_ELLIPSES:
            # 2.1 M rho^-2n / (1 - rho^-2) widths (C20, Gauss rules)
            bound = self.log_size(p, ellipse) + math.log(gauss_error(PANEL_NODES, ellipse))
            best = np.fmin(best, np.where(np.isnan(bound), np.inf, bound))
        return best + np.log(p.high - p.low)

    def log_size(self, p: _IntegralPanels, ellipse: float) -> Array:
        """Return ``ln`` of a bound of ``|f g|`` on the rectangle around the ellipse, ``inf`` if none is known."""
        half = 0.5 * (p.high - p.low)
        # Half axes of the ellipse: h/4 (rho + 1/rho) and h/4 (rho - 1/rho)
        wide, tall = half * 0.5 * (ellipse + 1.0 / ellipse), half * 0.5 * (ellipse - 1.0 / ellipse)
        centre = self.offset(p.kind, p.index, 0.5 * (p.high + p.low))
        size = self.log_density_size(centre, wide, tall)
        found = np.full_like(size, np.inf)
        for part, bound in (
            (BELOW_ONE, self.below_size),
            (CERTAIN_GAIN, self.certain_size),
            (ABOVE_ONE, self.above_size),
        ):
            here = p.kind == part
            if np.any(here):
                found[here] = bound(self.eps[p.index[here]], centre[here], wide[here], tall[here])
        return size + found

    def log_density_size(self, centre: Array, wide: Array, tall: Array) -> Array:
        """Return ``ln`` of a bound of ``|f|`` on the rectangle (C20, gains off the real line).

        With ``T = sqrt(r) (t + i v)`` the size of ``1 + T^2/r`` is least at the least ``|t|``, and there at ``v^2 = 1 -
        t^2`` or the nearest possible value.
        """
        unit = self.spread * math.sqrt(self.rank)
        t = np.maximum(np.abs(centre + self.misalignment) - wide, 0.0) / unit
        v2 = np.clip(1.0 - t * t, 0.0, (tall / unit) ** 2)
        # (1 + t^2 + v^2)^2 - 4 v^2 = (1 + t^2 - v^2)^2 + 4 t^2 v^2
        square = (1.0 + t * t - v2) ** 2 + 4.0 * t * t * v2
        with np.errstate(divide="ignore"):
            return self.log_density_front - 0.25 * (self.rank + 1.0) * np.log(square)

    def below_size(self, eps: Array, centre: Array, wide: Array, tall: Array) -> Array:
        """Return ``ln`` of a bound of ``|g_-|`` on the rectangle, ``inf`` if none is known (C20)."""
        least, most = 1.0 + centre - wide, -centre - wide
        valid = (least > 0.0) & (least * (1.0 - least) >= tall**2) & ((1.0 - most) * most >= tall**2)
        least, most = np.where(valid, least, 0.5), np.where(valid, most, 0.1)
        x1, x2 = -0.5 * np.log((1.0 - most) ** 2 + tall**2), -np.log(least)
        turn = np.arctan(tall / least)
        valid &= (turn <= 1.0) & (x1 > 0.0)
        box = _ThresholdBox.around(np.where(valid, x1, 0.1), x2, turn)
        # U2 = a B + eps N falls on the real line: Re U2 >= a B(x2) + eps N(x2) - |a| bend - eps n_bend, and
        # |Im U2| <= |a| b_aside + eps n_aside.
        real = self.a * box.b2 + eps * box.n2 - abs(self.a) * box.bend - eps * box.n_bend
        imaginary = abs(self.a) * box.b_aside + eps * box.n_aside
        valid &= real > 0.0
        real = np.where(valid, real, 1.0)
        # |g_-| <= 2.32 e^(|z| - Re z) E[(1 - e^(-|e^x - 1| (U - |z|)))_+], |z| - Re z <= Im^2/(2 Re z), z = U2 (C20)
        rate = np.hypot(centre - wide, tall) / least
        found = imaginary**2 / (2.0 * real) + self.log_gain_size(real, rate)
        if self.a > 0.0:
            found = np.minimum(found, self.full_below(eps, box, real, imaginary))
        return np.where(valid, found, np.inf)

    def full_below(self, eps: Array, box: "_ThresholdBox", real: Array, imaginary: Array) -> Array:
        """Return ``ln`` of another bound of ``|g_-|``, which is smaller where the gain is nearly 1.

        ``real`` and ``imaginary`` bound the real part of ``z = U2`` from below and the size of its imaginary part.
        """
        # 1 + |P(k, z)| + |e^(eps-(r-1)x) Q(k, z e^x)|, z below k, z e^x = a (x + B) + eps (1 + N) above (C20, C21)
        size = np.hypot(self.a * (box.b1 + box.bend) + eps * box.n1, imaginary)
        moved = self.a * (box.x1 + box.b1 - box.bend) + eps * (1.0 + box.n2 - box.n_bend)
        aside = self.a * box.turn + eps * box.n_aside
        low = imaginary**2 / (2.0 * real) - self.chernoff(size, -1.0)
        high = (
            eps
            - (self.rank - 1.0) * box.x1
            + aside**2 / (2.0 * np.maximum(moved, LEAST_DIVISOR))
            - self.chernoff(moved, 1.0)
        )
        return np.logaddexp(np.logaddexp(0.0, low), high)

    def chernoff(self, threshold: Array, sign: float) -> Array:
        """Return ``-ln`` of Chernoff's bound of the tail of ``U`` above ``threshold`` (``sign = 1``) or below it (-1).

        It is ``-inf`` on the other side of ``k``, where the bound says nothing.
        """
        # P(U > k e^w) <= e^(-k D(w)) for w > 0, and P(U < k e^w) for w < 0 (C21, Chernoff)
        w = np.log(np.maximum(threshold, LEAST_DIVISOR) / self.k)
        return np.where(sign * w > 0.0, self.k * deviance(w) * (1.0 - 1e-12), -np.inf)

    def log_gain_size(self, threshold: Array, rate: Array) -> Array:
        """Return ``ln(2.32 E[(1 - e^(-rate (U - threshold)))_+])``, which bounds a gain off the real line."""
        x, w = np.log1p(rate), np.log(threshold / self.k)
        found = self.gain.log_over(np.maximum(w, -39.0), x, np.minimum(threshold * rate - self.k * x, 600.0))
        return math.log(MINIMUM_OVER_RISE) + np.where(w > -39.0, found, 0.0) + 1e-6

    def certain_size(self, eps: Array, centre: Array, wide: Array, tall: Array) -> Array:
        """Return ``ln`` of the bound ``1 + e^eps |A|^(r-1)`` of ``|1 - e^eps A^(r-1)|`` on the rectangle."""
        return np.logaddexp(0.0, eps + (self.rank - 1.0) * np.log(np.hypot(1.0 + centre + wide, tall)))

    def above_size(self, eps: Array, centre: Array, wide: Array, tall: Array) -> Array:
        """Return ``ln`` of a bound of ``|g_+|`` on the rectangle, ``inf`` if none is known (C20)."""
        least, most = centre - wide, np.hypot(1.0 + centre + wide, tall)
        x1, x2, turn = np.log1p(np.maximum(least, 0.0)), np.log(most), np.arctan(tall / (1.0 + np.maximum(least, 0.0)))
        valid = (least > 0.0) & (x1 > eps / self.a) & (turn <= 1.0)
        box = _ThresholdBox.around(np.where(valid, x1, 0.1), x2, turn)
        # U1 = a (x + B(x)) - eps (1 + N(x)): its least and its largest real part, and |Im U1| <= a turn + eps n_aside.
        real = self.a * (box.x1 + box.b1 - box.bend) - eps * (1.0 + box.n1)
        most_real = self.a * (box.x2 + box.b2 + box.bend) - eps * (1.0 + box.n2 - box.n_bend)
        imaginary = self.a * turn + eps * box.n_aside
        # |g_+| <= 2.32 e^(|z| - Re z) E[(1 - e^(-(1 - e^-|x|)(|z| - U)))_+], z = U1 (C20)
        size = np.hypot(np.maximum(most_real, -real), imaginary)
        excess = np.where(
            real > 0.0, np.minimum(imaginary**2 / (2.0 * np.maximum(real, LEAST_DIVISOR)), 2.0 * size), 2.0 * size
        )
        w = np.maximum(np.log(size / self.k), -39.0)
        gain = math.log(MINIMUM_OVER_RISE) + self.gain.log_under(w, np.hypot(x2, turn)) + 1e-6
        found = np.minimum(excess + gain, self.full_above(eps, box, real, excess))
        return np.where(valid, found, np.inf)

    def full_above(self, eps: Array, box: "_ThresholdBox", real: Array, excess: Array) -> Array:
        """Return ``ln`` of another bound of ``|g_+|``, which is smaller where the gain is nearly 1.

        ``real`` bounds the real part of ``z = U1`` from below, and ``excess`` bounds ``|z| - Re z``.
        """
        # 1 + |Q(k, z)| + |e^(eps+(r-1)x) P(k, z e^-x)|, z above k, z e^-x = a B(x) - eps N(x) below (C20, C21)
        aside = self.a * box.b_aside + eps * box.n_aside
        moved = self.a * (box.b2 - box.bend) - eps * box.n1
        size = np.hypot(np.maximum(self.a * (box.b1 + box.bend), -moved), aside)
        away = np.where(moved > 0.0, aside**2 / (2.0 * np.maximum(moved, LEAST_DIVISOR)), 2.0 * size)
        low = eps + (self.rank - 1.0) * box.x2 + away - self.chernoff(size, -1.0)
        return np.logaddexp(np.logaddexp(0.0, excess - self.chernoff(real, 1.0)), low)

    # --- panels ---------------------------------------------------------------------------------

    def first_panels(self) -> _IntegralPanels:
        """Return panels that grow from ``A = 1`` and towards ``A = 0``, and others around the bulk of ``A``."""
        shrinking = 1.0 - 0.5 ** np.arange(1, PANELS_TOWARDS_ZERO + 1)
        start = 1e-7 * min(self.spread, 1.0)
        bulk = self.spread * np.array(
            [-40, -28, -20, -14, -10, -7, -5, -3.5, -2.2, -1, 0, 1, 2.2, 3.5, 5, 7, 10, 14, 20, 28, 40]
        )
        growing = start * 2.0 ** np.arange(0, math.ceil(math.log2(0.5 / start)))
        below = np.concatenate([[0.0, 1.0], growing, shrinking, self.misalignment + bulk])
        below = _distinct_edges(below[(below >= 0.0) & (below <= 1.0)])
        parts = []
        for i, kink in enumerate(self.kink.tolist()):
            parts.extend(self.parts(i, kink, below, bulk))
        return _IntegralPanels(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def parts(
        self, i: int, kink: float, below: Array, bulk: Array
    ) -> list[tuple[Index, NDArray[np.int8], Array, Array]]:
        """Return the first panels of epsilon number ``i``, one entry ``(index, kind, low, high)`` for each kind.

        ``kink`` is its ``eps/|a|``, ``below`` holds edges of places below ``A = 1``, and ``bulk`` places around the
        mode of ``A``.
        """
        if self.a > 0.0:
            top = math.exp(min(kink, 600.0))
            if kink > FARTHEST_LOG_ALIGNMENT:
                return [_panels_between(i, BELOW_ONE, below)]
            scale = min(self.spread, 1.0, kink if kink > 0.0 else 1.0)
            growing = (
                1e-7
                * scale
                * 2.0 ** np.arange(math.ceil(math.log2(math.exp(FARTHEST_LOG_ALIGNMENT) / (1e-7 * scale))) + 1)
            )
            centre = -self.misalignment - (top - 1.0)
            above = np.concatenate([[0.0], growing, centre + bulk])
            above = _distinct_edges(above[(above >= 0.0) & (above <= growing[-1])])
            return [_panels_between(i, BELOW_ONE, below), _panels_between(i, ABOVE_ONE, above)]
        turn = -math.expm1(-kink) if self.a < 0.0 else float(self.eps[i] > 0.0)
        before = _distinct_edges(
            np.concatenate(
                [below[below < turn], turn * (1.0 - 0.5 ** np.arange(1.0, PANELS_TOWARDS_THRESHOLD)), [turn]]
            )
        )
        after = np.append(turn, below[below > turn])
        return [
            _panels_between(i, part, edges)
            for part, edges in ((BELOW_ONE, before), (CERTAIN_GAIN, after))
            if len(edges) > 1
        ]

    def log_beyond(self) -> float:
        """Return ``ln`` of a bound of ``P(ln A > 45)``, beyond the panels, where ``f`` is at most a power."""
        # ln A > 45 iff T > (e^45 - 1 + m)/s >= t, and P(T > t) <= front int_t^inf (u^2/r)^-(r+1)/2 du, that is
        # front r^((r+1)/2) t^-r / r.
        t = (math.exp(FARTHEST_LOG_ALIGNMENT) - 1.0) / self.spread
        r = float(self.rank)
        return self.log_front + 0.5 * (r + 1.0) * math.log(r) - r * math.log(t) - math.log(r)

    def log_delta(self) -> tuple[Array, Array, Array]:
        """Return three arrays with an entry for each epsilon.

        * ``ln delta``;
        * its relative error, as far as it is proved: what panels and Gauss rules miss;
        * what the rounding of a threshold is multiplied by in it, an estimate.

        Raises :class:`NotConverged` after :data:`MOST_HALVINGS` halvings.
        """
        count = len(self.eps)
        total, missed = np.full(count, self.log_infinite), np.full(count, self.log_beyond())
        leaning = np.full(count, -np.inf)
        panels = self.first_panels()
        for _ in range(MOST_HALVINGS):
            # Each panel is in [low, high]: half of the gap is the error of the middle.
            low, high = self.panel_bounds(panels)
            least = np.logaddexp(total, _log_sums_by_index(panels.index, low, count))
            enough = (least + math.log(self.share))[panels.index]
            with np.errstate(divide="ignore", invalid="ignore"):
                half = high + np.log1p(-np.exp(np.minimum(low - high, 0.0))) - math.log(2.0)
            idle = (half <= enough) | (high == -np.inf)
            middle = np.logaddexp(low, high) - math.log(2.0)
            total = np.logaddexp(total, _log_sums_by_index(panels.index[idle], middle[idle], count))
            missed = np.logaddexp(missed, _log_sums_by_index(panels.index[idle], half[idle], count))
            panels = panels[~idle]
            if not len(panels.low):
                return total, np.exp(missed - total), np.exp(leaning - total)
            # Else the Gauss rule, where its error is small enough; else the panel is halved.
            value, error, steep = self.gauss(panels)
            done = error <= enough[~idle]
            here = panels.index[done]
            total = np.logaddexp(total, _log_sums_by_index(here, value[done], count))
            missed = np.logaddexp(missed, _log_sums_by_index(here, error[done], count))
            leaning = np.logaddexp(
                leaning, _log_sums_by_index(here, value[done] + np.log(steep[done] + LEAST_DIVISOR), count)
            )
            panels = panels[~done]
            if not len(panels.low):
                return total, np.exp(missed - total), np.exp(leaning - total)
            panels = panels.halve()
        raise NotConverged("the quadrature of the exact profile did not settle; please report these parameters")


def _distinct_edges(edges: Array) -> Array:
    """Return these edges in increasing order, each once."""
    ordered = np.sort(edges)
    return ordered[np.concatenate([[True], np.diff(ordered) > 0.0])]


def _panels_between(i: int, kind: int, edges: Array) -> tuple[Index, NDArray[np.int8], Array, Array]:
    """Return index, kind, low and high ends of the panels between these edges."""
    count = len(edges) - 1
    return np.full(count, i, np.intp), np.full(count, kind, np.int8), edges[:-1], edges[1:]
