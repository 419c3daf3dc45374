"""The profile of the vector Wishart mechanism, by Gauss rules with a proved error.

The mechanism releases a unit vector times a Wishart matrix. Let two unit vectors have the misalignment ``m`` (one minus
their cosine). Then ``delta(eps) = P(A <= 0) + int f(A) g(A) dA``. The *alignment ratio* ``A = 1 - m + s T`` has the
density ``f``, where ``s = sqrt(m (2 - m)/r)``, and ``T`` has Student's distribution with ``r`` degrees of freedom (C9).
The *gain* ``g`` is the hockey-stick divergence given ``A``. It depends on a threshold ``U1`` or ``U2`` of a Gamma
variable (:mod:`privproj.distributions.wishart_loss`), and increases with the distance from ``A = 1`` on both sides. The
integral has three parts: below ``A = 1`` where ``U2`` is positive, below ``A = 1`` where ``U2`` is not positive (there
``g`` is ``1 - e^eps A^(r-1)``), and above ``A = 1``.

On each panel the integral is at least the width times the least ``f`` and ``g``, and at most the width times the
largest ``f`` and ``g``. The error of a Gauss rule with ``n`` nodes is at most the width times ``2.1 M rho^-2n / (1 -
rho^-2)``, where ``M`` bounds ``|f g|`` on an ellipse around the panel with the size parameter ``rho`` (C20). These
bounds determine whether a panel is omitted, evaluated or divided, so the result is an enclosure for any choice of
panels. The first panels are made from narrow pieces, whose integrals are bounded without evaluating ``g``. Panels of
many ``eps`` are evaluated together: the array ``index`` has the number of the epsilon of each panel.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privproj.distributions.gamma_hockey_stick import GammaGain, gamma_gain, gauss_error
from privproj.errors import ConvergenceError
from privproj.numerics.arrays import Array, Index
from privproj.numerics.quadrature import gauss_nodes
from privproj.numerics.special import log_beta_tail, stirling_remainder

Kinds = NDArray[np.int8]  # the part of each panel: BELOW_ONE, CERTAIN_GAIN or ABOVE_ONE

BELOW_ONE = 0  # soundness: kind of a panel below A = 1 where the threshold U2 is positive

# soundness: kind of a panel below A = 1 where U2 is not positive, so that the gain is 1 - e^eps A^(r-1)
CERTAIN_GAIN = 1

ABOVE_ONE = 2  # soundness: kind of a panel above A = e^(eps/a), where the threshold U1 is positive

PANEL_NODES = 24  # Gauss nodes of a panel

STEP_DEVIATIONS = 30.0  # standard deviations of U; a larger distance of a threshold from the mean is limited to this

# least ratio of the distances of both ends of a piece from a singular point that the choice of first panels assumes
LEAST_SHARE_LEFT = 0.2

WINDOW_NATS = 34.0  # a piece gets no first panel if its bound is this many nats below the largest bound

PANEL_ERROR_SHARE = 1e-13  # relative error that a panel may add to a value without being halved

# relative error that a panel may add to a value of a table without being halved
TABLE_PANEL_ERROR_SHARE = 1e-12

MOST_HALVINGS = 90  # halvings after which ConvergenceError is raised

# soundness: min(2, x) <= 2.32 (1 - e^-x) for x >= 0 (C20), as a logarithm
LOG_MINIMUM_OVER_RISE = math.log(2.32)

BERNOULLI_BEND = 0.28  # soundness: half of a bound of |B''|, B(x) = x/(e^x - 1), for |Im x| <= 1 (C20)

# soundness: relative rounding of thresholds and of epsilon, which callers may have rounded by 1e-15 (measured)
THRESHOLD_ROUNDING = 1.5e-15

FARTHEST_LOG_ALIGNMENT = 45.0  # largest ln A of a panel; a bound of the integral beyond is added

FIRST_PLACE = 1e-7  # width of the first piece at A = 1 or at a threshold of 0, over the least scale there

PLACE_GROWTH = 2.0  # ratio of the widths of successive pieces

# ends of pieces around the bulk of A, in units of s
BULK = np.array([-40, -28, -20, -14, -10, -7, -5, -3.5, -2.2, -1, 0, 1, 2.2, 3.5, 5, 7, 10, 14, 20, 28, 40])

BEFORE_ZERO = 1.0 - 2.0**-53  # soundness: the last double before A = 0

# soundness: least divisor and least argument of a logarithm, of numbers that are 0 or far larger
LEAST_DIVISOR = 1e-300


def log_gamma_ratio(r: float) -> float:
    """Return ``ln Gamma((r+1)/2) - ln Gamma(r/2) - ln(pi)/2``."""
    # This is the log density at 0 of Student's distribution with r degrees of freedom, times sqrt(r) (C9).
    # With z = r/2 and R the remainder of Stirling's formula it is
    # z ln(1 + 1/(2z)) + ln(z)/2 - 1/2 + R(z + 1/2) - R(z) - ln(pi)/2, without cancellation of large terms.
    z = 0.5 * r
    return (
        z * math.log1p(0.5 / z)
        + 0.5 * math.log(z)
        - 0.5
        + stirling_remainder(z + 0.5)
        - stirling_remainder(z)
        - 0.5 * math.log(math.pi)
    )


def log_infinite(rank: int, misalignment: float) -> float:
    """Return the log probability of an infinite privacy loss of the vector Wishart mechanism.

    ``misalignment`` is one minus the cosine of the vectors of neighboring datasets.
    """
    # P(A <= 0) = I_{m(2-m)}(r/2, 1/2)/2 for m <= 1, where I_{m(2-m)}(r/2, 1/2) = P(Beta(1/2, r/2) > (1 - m)^2),
    # and one minus that beyond (C9)
    m = misalignment
    log_half = log_beta_tail(0.5, 0.5 * rank, (1.0 - m) ** 2, m * (2.0 - m)) - math.log(2.0)
    return log_half if m <= 1.0 else math.log1p(-math.exp(log_half))


def _add_logs(logs: Array, index: Index, more: Array) -> Array:
    """Return logs of sums after adding the number ``e^more[i]`` to the sum ``index[i]``."""
    top = logs.copy()
    np.maximum.at(top, index, more)
    top = np.where(np.isfinite(top), top, 0.0)
    return top + np.log(np.exp(logs - top) + np.bincount(index, np.exp(more - top[index]), len(logs)))


@dataclass(frozen=True)
class _LogSums:
    """Logs of three sums over panels of integration, for each epsilon.

    * ``total``: the integral.
    * ``missed``: its error.
    * ``leaning``: the integral of the integrand times its steepness, the estimated effect of rounding.
    """

    total: Array
    missed: Array
    leaning: Array

    def add(self, index: Index, value: Array, error: Array, steep: Array | None = None) -> "_LogSums":
        """Return the sums after adding panels of integration.

        Args:
            index: The number of the epsilon of each panel.
            value: The log of the integral over each panel.
            error: The log of the error of each panel.
            steep: The mean steepness of each panel; None adds nothing.
        """
        leaning = (
            self.leaning if steep is None else _add_logs(self.leaning, index, value + np.log(steep + LEAST_DIVISOR))
        )
        return _LogSums(_add_logs(self.total, index, value), _add_logs(self.missed, index, error), leaning)


def _bernoulli_less_one(x: Array) -> Array:
    """Return ``x/(e^x - 1) - 1`` for ``x >= 0``, without cancellation near 0."""
    small = np.minimum(x, 0.1)
    v = small * small
    # B(x) - 1 = -x/2 + x^2/12 - x^4/720 + x^6/30240 - x^8/1209600 + ..., the Bernoulli numbers over factorials
    series = -0.5 * small + v * (1.0 / 12.0 - v * (1.0 / 720.0 - v * (1.0 / 30240.0 - v / 1209600.0)))
    wide = np.maximum(x, 0.1)
    return np.where(x < 0.1, series, wide / np.expm1(np.minimum(wide, 700.0)) - 1.0)


@dataclass(frozen=True)
class _IntegralPanels:
    """Intervals (panels) for integration over the alignment ratio, each for one epsilon.

    * ``index``: the number of the epsilon.
    * ``kind``: the part of the integral, :data:`BELOW_ONE`, :data:`CERTAIN_GAIN` or :data:`ABOVE_ONE`.
    * ``low``, ``high``: the ends as distances. Ends below 1 are distances from 1. Ends above 1 are distances from the
      ratio at which the Gamma threshold is 0.
    """

    # The distances are 1 - A below A = 1 and A - e^(eps/a) above (module docstring of wishart_loss).
    index: Index
    kind: NDArray[np.int8]
    low: Array
    high: Array

    def __getitem__(self, chosen: Any) -> "_IntegralPanels":
        return _IntegralPanels(self.index[chosen], self.kind[chosen], self.low[chosen], self.high[chosen])

    def join(self, other: "_IntegralPanels") -> "_IntegralPanels":
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return _IntegralPanels(*(np.concatenate(pair) for pair in both))

    def cut(self, parts: NDArray[np.intp]) -> "_IntegralPanels":
        """Return the panels after dividing panel ``i`` into ``parts[i]`` equal parts."""
        of = np.repeat(np.arange(len(parts)), parts)
        number = np.arange(len(of)) - (np.cumsum(parts) - parts)[of]
        p, width, parts = self[of], (self.high - self.low)[of], parts[of]
        high = np.where(number + 1 == parts, p.high, p.low + width * ((number + 1) / parts))
        return _IntegralPanels(p.index, p.kind, p.low + width * (number / parts), high)


@dataclass(frozen=True)
class _ThresholdBox:
    """Bounds of ``B(x) = x/(e^x - 1)`` and ``N(x) = 1/(e^x - 1)`` on complex rectangles (C20).

    A rectangle is ``x1 <= Re x <= x2, |Im x| <= turn <= 1``.

    * ``b1``, ``b2``, ``n1``, ``n2``: ``B`` and ``N`` at ``x1`` and ``x2``; both decrease on the real line.
    * ``bend``, ``n_bend``: ``|Re B - B(Re x)| <= bend`` and ``Re N >= N(Re x) - n_bend``.
    * ``b_aside``, ``n_aside``: bounds of ``|Im B|`` and ``|Im N|``.
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
        """Return bounds on the rectangles ``x1 <= Re x <= x2, |Im x| <= turn``, rounded outward."""
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
    """The privacy profile of the vector Wishart mechanism for a pair of unit vectors.

    The profile is an integral over the *alignment ratio* ``A = v'.y / v.y`` of the release ``y`` and the vectors ``v``
    and ``v'`` of two neighboring datasets. The integrand is the density of ``A`` times the hockey-stick divergence
    given ``A``. The divergence depends on a threshold ``U1`` or ``U2`` of ``U ~ Gamma(k)``
    (:mod:`privproj.distributions.wishart_loss`).

    * ``misalignment``: one minus the cosine of ``v`` and ``v'``.
    * ``eps``: the epsilons, at least 0.
    * ``share``: the relative error that a panel may add to one value without being halved.

    In the methods, ``index`` and ``kind`` are the epsilon and the part of the integral (:class:`_IntegralPanels`).
    ``place`` is ``1 - A`` below ``A = 1``, and ``A - e^(eps/a)`` above. A rectangle around a panel in the complex plane
    has its ``center`` at ``A - 1`` and the half axes ``wide`` and ``tall``.
    """

    dim: int
    rank: int
    misalignment: float
    eps: Array
    share: float = PANEL_ERROR_SHARE

    @cached_property
    def log_front(self) -> float:
        """The log density at 0 of Student's distribution with ``rank`` degrees of freedom."""
        return log_gamma_ratio(self.rank) - 0.5 * math.log(self.rank)

    @cached_property
    def gain(self) -> GammaGain:
        """Tables for hockey-stick expectations of a Gamma variable, with a proved error."""
        return gamma_gain(self.k)

    @property
    def k(self) -> float:
        """The shape ``(r + d - 1)/2`` of the Gamma variable, for the rank ``r`` and the dimension ``d``."""
        return 0.5 * (self.rank + self.dim - 1.0)

    @property
    def a(self) -> float:
        """The factor ``(d + 1 - r)/2`` of the log alignment ratio in the privacy loss.

        ``d`` is the dimension, and ``r`` is the rank.
        """
        return 0.5 * (self.dim + 1.0 - self.rank)

    @cached_property
    def unit(self) -> float:
        """The sine ``sqrt(m (2 - m))`` of the angle of two vectors with the misalignment ``m``."""
        return math.sqrt(self.misalignment * (2.0 - self.misalignment))

    @cached_property
    def kink(self) -> Array:
        """The absolute log alignment ratio at which the threshold of the Gamma variable is 0."""
        return self.eps / max(abs(self.a), LEAST_DIVISOR)

    @cached_property
    def turn(self) -> Array:
        """The supremum of ``1 - A`` with a positive threshold ``U2``, for each epsilon.

        ``A`` is the alignment ratio, and ``U2`` is the threshold of the Gamma variable for ``A < 1``.
        """
        if self.a < 0.0:
            return -np.expm1(-self.kink)
        # The threshold is positive down to A = 0, or nowhere.
        return np.where((self.a > 0.0) | (self.eps > 0.0), 1.0, 0.0)

    @cached_property
    def log_density_front(self) -> float:
        """The log of the largest value of the density of the alignment ratio."""
        return self.log_front + 0.5 * math.log(self.rank) - float(np.log(self.unit))

    # --- the integrand --------------------------------------------------------------------------

    def offset(self, kind: Kinds, index: Index, place: Array) -> Array:
        """Return the alignment ratios minus 1 at each ``place`` (:class:`WishartIntegral`)."""
        return np.where(kind == ABOVE_ONE, np.expm1(np.minimum(self.kink, 600.0))[index] + place, -place)

    def log_density(self, offset: Array) -> Array:
        """Return the log density of the alignment ratio at ``1 + offset``."""
        # f(A) = c_r/(sqrt(r) s) (1 + t^2)^(-(r+1)/2), t = (A - 1 + m)/(s sqrt(r)) (C9)
        t = (offset + self.misalignment) / self.unit
        return self.log_density_front - 0.5 * (self.rank + 1.0) * np.log1p(t * t)

    def log_gain(self, kind: Kinds, index: Index, place: Array) -> tuple[Array, Array]:
        """Return the log hockey-stick divergence given the alignment ratio, and its steepness.

        The steepness is the estimated change of the log divergence divided by the relative rounding error of the terms
        of the Gamma threshold.
        """
        logs, steep = np.empty_like(place), np.empty_like(place)
        for part in np.unique(kind):
            here, gain = kind == part, (self.below, self.certain, self.above)[part]
            logs[here], steep[here] = gain(index[here], place[here])
        return logs, steep

    def threshold_below(self, index: Index, place: Array) -> tuple[Array, Array, Array]:
        """Return ``ln(U2/k)``, ``x = -ln A`` and the sum of the absolute terms of ``U2``.

        ``U2`` is the threshold of the Gamma variable for alignment ratios ``A < 1``, and ``place`` is ``1 - A``.
        """
        k, a, eps = self.k, self.a, self.eps[index]
        x = -np.log1p(-place)
        # U2 = a x/(e^x - 1) + eps/(e^x - 1) and k = a + (r - 1):
        # U2/k - 1 = [a (B(x) - 1) + eps N(x) - (r - 1)] / k, so small differences keep their digits (C9).
        terms = a * _bernoulli_less_one(x), eps * (1.0 - place) / place
        w = np.log1p(np.maximum((terms[0] + terms[1] - (self.rank - 1.0)) / k, -1.0 + 1e-16))
        return np.maximum(w, -39.0), x, np.abs(terms[0]) + terms[1] + self.rank

    def threshold_above(self, index: Index, place: Array) -> tuple[Array, Array, Array]:
        """Return ``ln(U1/k)``, ``x = ln A`` and the sum of the absolute terms of ``U1``.

        ``U1`` is the threshold of the Gamma variable for alignment ratios ``A > 1``. ``place`` is the distance of ``A``
        from the ratio at which ``U1`` is 0.
        """
        k, a, eps, kink = self.k, self.a, self.eps[index], self.kink[index]
        # A = e^x, x = eps/a + beyond, beyond = ln(1 + place e^(-eps/a)):
        # U1 = (a x - eps)/(1 - e^-x) = a beyond/(1 - e^-x).
        beyond = np.log1p(place * np.exp(-kink))
        x = np.maximum(kink + beyond, LEAST_DIVISOR)
        shrunk = -np.expm1(-x)
        threshold = a * beyond / shrunk
        # x/(1 - e^-x) = x + B(x), so U1/k - 1 = [a (x + B(x) - 1) - eps/(1 - e^-x) - (r - 1)] / k near k.
        terms = a * (x + _bernoulli_less_one(x)), eps / shrunk
        near = np.maximum((terms[0] - terms[1] - (self.rank - 1.0)) / k, -0.9)
        w = np.where(threshold > 0.5 * k, np.log1p(near), np.log(np.maximum(threshold, LEAST_DIVISOR) / k))
        return np.maximum(w, -39.0), x, np.abs(terms[0]) + terms[1] + self.rank

    def below(self, index: Index, place: Array) -> tuple[Array, Array]:
        """Return :meth:`log_gain` for alignment ratios below 1 and positive thresholds.

        ``place`` is one minus the alignment ratio.
        """
        inside = (place > 0.0) & (place < 1.0)
        w, x, terms = self.threshold_below(index, np.where(inside, place, 0.5))
        # g_- = E[(1 - e^(-(e^x - 1)(U - U2)))_+] (C9), and e^E = e^(eps - (r-1) x) (C20)
        log_g = self.gain.log_over(w, x, self.eps[index] - (self.rank - 1.0) * x)
        return np.where(inside, log_g, np.where(place > 0.0, 0.0, -np.inf)), self.steepness(w, terms, 1.0)

    def certain(self, index: Index, place: Array) -> tuple[Array, Array]:
        """Return :meth:`log_gain` for alignment ratios below 1 and thresholds of at most 0.

        ``place`` is one minus the alignment ratio.
        """
        # 1 - e^eps A^(r-1) (C9), A = 1 - place
        exponent = self.eps[index] + (self.rank - 1.0) * np.log1p(-np.minimum(place, 1.0))
        return np.log(-np.expm1(np.minimum(exponent, 0.0))), np.full_like(place, 4.0)

    def above(self, index: Index, place: Array) -> tuple[Array, Array]:
        """Return :meth:`log_gain` for alignment ratios above 1 and positive thresholds.

        ``place`` is the distance of the alignment ratio from the ratio at which the threshold is 0.
        """
        w, x, terms = self.threshold_above(index, np.maximum(place, 0.0))
        inside = place > 0.0
        log_g = self.gain.log_under(w, np.where(inside, x, 1.0))
        return np.where(inside, log_g, -np.inf), self.steepness(w, terms, -1.0)

    def steepness(self, w: Array, terms: Array, sign: float) -> Array:
        """Return the estimated effect of rounding on a log hockey-stick divergence.

        It is not proved to be an upper bound (C20, "The sum").

        Args:
            w: The log of the Gamma threshold over ``k``.
            terms: The sum of the absolute values of the terms of the threshold.
            sign: 1 for alignment ratios below 1, -1 above.
        """
        # The result is terms |d ln g/d U| at the threshold U.
        # k |d ln g/d U| is about sqrt(k) + k |e^w - 1| in the tail, and min(sqrt(k), 1/|e^w - 1|) elsewhere.
        k, away = self.k, np.abs(np.expm1(np.minimum(w, 50.0)))
        bulk = np.minimum(math.sqrt(k), 1.0 / np.maximum(away, 1e-300))
        return (2.0 * np.where(sign * w > 0.0, math.sqrt(k) + k * away, bulk) + 2.0) * np.minimum(terms / k, 1e6)

    # --- bounds on a panel ----------------------------------------------------------------------

    def log_most_gain(self, kind: Kinds, index: Index, place: Array) -> tuple[Array, Array]:
        """Return the log of an upper bound of the hockey-stick divergence, without tables (C20).

        The second result is the distance of the threshold from the mean of the Gamma variable, in standard deviations,
        limited to :data:`STEP_DEVIATIONS`.
        """
        k, most, step = self.k, np.empty_like(place), np.zeros_like(place)
        for part in np.unique(kind):
            here, sign = kind == part, -1.0 if part == ABOVE_ONE else 1.0
            if part == CERTAIN_GAIN:
                most[here] = self.certain(index[here], place[here])[0]
                continue
            threshold = self.threshold_above if part == ABOVE_ONE else self.threshold_below
            w, x, _ = threshold(index[here], np.minimum(place[here], BEFORE_ZERO) if sign > 0.0 else place[here])
            rate = np.abs(np.expm1(np.minimum(sign * x, 600.0)))
            most[here] = self.log_hockey_stick_size(k * np.exp(np.minimum(w, 600.0)), rate, sign)
            step[here] = np.clip(math.sqrt(k) * w, -STEP_DEVIATIONS, STEP_DEVIATIONS)
        return np.minimum(most, 0.0), step

    def log_most_density(self, p: _IntegralPanels) -> tuple[Array, Array]:
        """Return logs of the least and the largest density of the alignment ratio on each panel."""
        # f is unimodal, with its peak at A = 1 - m.
        far, near = self.offset(p.kind, p.index, p.high), self.offset(p.kind, p.index, p.low)
        m, at_near, at_far = self.misalignment, self.log_density(near), self.log_density(far)
        most = np.where((near + m) * (far + m) <= 0.0, self.log_density_front, np.maximum(at_near, at_far))
        return np.minimum(at_near, at_far), most

    def panel_bounds(self, p: _IntegralPanels) -> tuple[Array, Array]:
        """Return logs of a lower and an upper bound of the integral over each panel."""
        # width min(f) g(low) <= integral <= width max(f) g(high), with 1e-9 for rounding (C20, the sum)
        least, most = self.log_most_density(p)
        low, high = (self.log_gain(p.kind, p.index, place)[0] for place in (p.low, p.high))
        width = np.log(p.high - p.low)
        return width + least + low - 1e-9, width + most + high + 1e-9

    def gauss(self, p: _IntegralPanels) -> tuple[Array, Array]:
        """Return the log integral over each panel by a Gauss rule, and the mean steepness.

        The steepness is that of :meth:`log_gain`.
        """
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
        return peak + np.log(total), leaning

    def log_error(self, p: _IntegralPanels, enough: Array) -> Array:
        """Return the log of a proved bound of the error of the Gauss rule on each panel.

        The search for a smaller bound stops when the log is at most ``enough``.
        """
        # 2.1 M rho^-2n / (1 - rho^-2) widths (C20, Gauss rules)
        best = np.full_like(p.low, np.inf)
        # sums of the semi-axes of the ellipses
        for ellipse in (3.0, 2.0):
            left = np.flatnonzero(best > enough)
            if not len(left):
                break
            some = p[left]
            bound = (
                self.log_size(some, ellipse)
                + math.log(gauss_error(PANEL_NODES, ellipse))
                + np.log(some.high - some.low)
            )
            best[left] = np.fmin(best[left], bound)
        return best

    def log_size(self, p: _IntegralPanels, ellipse: float) -> Array:
        """Return the log of a bound of the modulus of the integrand on a complex ellipse.

        ``ellipse`` is the size parameter of an ellipse around each panel. The result is ``inf`` if no bound is known.
        """
        half = 0.5 * (p.high - p.low)
        # Half axes of the ellipse: h/4 (rho + 1/rho) and h/4 (rho - 1/rho)
        wide, tall = half * 0.5 * (ellipse + 1.0 / ellipse), half * 0.5 * (ellipse - 1.0 / ellipse)
        center = self.offset(p.kind, p.index, 0.5 * (p.high + p.low))
        log_g = np.empty_like(center)
        for part in np.unique(p.kind):
            here, bound = p.kind == part, (self.below_size, self.certain_size, self.above_size)[part]
            log_g[here] = bound(self.eps[p.index[here]], center[here], wide[here], tall[here])
        return self.log_density_size(center, wide, tall) + log_g

    def log_density_size(self, center: Array, wide: Array, tall: Array) -> Array:
        """Return the log of a bound of the density of the alignment ratio on a rectangle (C20).

        The rectangle is complex. Its ``center`` is an alignment ratio minus 1, and its half axes are ``wide`` and
        ``tall``.
        """
        t = np.maximum(np.abs(center + self.misalignment) - wide, 0.0) / self.unit
        v2 = np.clip(1.0 - t * t, 0.0, (tall / self.unit) ** 2)
        # (1 + t^2 + v^2)^2 - 4 v^2 = (1 + t^2 - v^2)^2 + 4 t^2 v^2
        square = (1.0 + t * t - v2) ** 2 + 4.0 * t * t * v2
        return self.log_density_front - 0.25 * (self.rank + 1.0) * np.log(square)

    def below_size(self, eps: Array, center: Array, wide: Array, tall: Array) -> Array:
        """Return the log of a bound of the hockey-stick divergence for ratios below 1 (C20).

        The bound holds for complex alignment ratios in the rectangle of :meth:`log_density_size`. The result is ``inf``
        if no bound is known.
        """
        least, most = 1.0 + center - wide, -center - wide
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
        rate = np.hypot(center - wide, tall) / least
        log_g = imaginary**2 / (2.0 * real) + LOG_MINIMUM_OVER_RISE + self.log_hockey_stick_size(real, rate, 1.0)
        if self.a > 0.0:
            log_g = np.minimum(log_g, self.full_below(eps, box, real, imaginary))
        return np.where(valid, log_g, np.inf)

    def full_below(self, eps: Array, box: "_ThresholdBox", real: Array, imaginary: Array) -> Array:
        """Return another log bound for :meth:`below_size`, smaller for divergences near 1.

        Args:
            eps: Epsilon in nats, for each panel.
            box: Bounds of the functions in the Gamma threshold on a complex rectangle.
            real: Lower bounds of the real part of the threshold.
            imaginary: Upper bounds of the modulus of its imaginary part.
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
        """Return the exponent ``q`` of Chernoff's bound ``e^-q`` of a tail of ``Gamma(k)``.

        The tail is above (``sign = 1``) or below (-1) the threshold. If the tail contains the mean, ``q`` is ``-inf``.
        """
        # P(U > k e^w) <= e^(-k D(w)) for w > 0, and P(U < k e^w) for w < 0 (C21, Chernoff); D cancels near 0
        ratio = np.maximum(threshold, LEAST_DIVISOR) / self.k
        w = np.log(ratio)
        least = self.k * np.maximum(ratio - 1.0 - w, 0.0) * (1.0 - 1e-9) - 1e-15 * self.k * (1.0 + ratio)
        return np.where(sign * w > 0.0, np.maximum(least, 0.0), -np.inf)

    def log_hockey_stick_size(self, threshold: Array, rate: Array, sign: float) -> Array:
        """Return a bound of ``ln E[(1 - e^(-rate (U - threshold)))_+]``, ``U ~ Gamma(k)``.

        For ``sign = -1`` it bounds the expectation with ``threshold - U``.
        """
        # E[(1 - e^(-c (U - b)))_+] <= P(U > b) and <= c E(U - b)_+ <= c (sqrt(k) + (k - b)_+), and the same below b,
        # where it is at most c b P(U < b) too (C20, gains off the real line)
        tail = np.minimum(-self.chernoff(threshold, sign), 0.0)
        if sign < 0.0:
            tail = tail + np.minimum(np.log(rate * threshold), 0.0)
        excess = rate * (math.sqrt(self.k) + np.maximum(sign * (self.k - threshold), 0.0))
        return np.minimum(tail, np.log(excess)) + 1e-6

    def certain_size(self, eps: Array, center: Array, wide: Array, tall: Array) -> Array:
        """Return the log of a bound of the hockey-stick divergence for thresholds of at most 0.

        The bound holds for complex alignment ratios in the rectangle of :meth:`log_density_size`.
        """
        # |1 - e^eps A^(r-1)| <= 1 + e^eps |A|^(r-1)
        return np.logaddexp(0.0, eps + (self.rank - 1.0) * np.log(np.hypot(1.0 + center + wide, tall)))

    def above_size(self, eps: Array, center: Array, wide: Array, tall: Array) -> Array:
        """Return the log of a bound of the hockey-stick divergence for ratios above 1 (C20).

        The bound holds for complex alignment ratios in the rectangle of :meth:`log_density_size`. The result is ``inf``
        if no bound is known.
        """
        least, most = center - wide, np.hypot(1.0 + center + wide, tall)
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
        gain = LOG_MINIMUM_OVER_RISE + self.log_hockey_stick_size(size, -np.expm1(-np.hypot(x2, turn)), -1.0)
        log_g = np.minimum(excess + gain, self.full_above(eps, box, real, excess))
        return np.where(valid, log_g, np.inf)

    def full_above(self, eps: Array, box: "_ThresholdBox", real: Array, excess: Array) -> Array:
        """Return another log bound for :meth:`above_size`, smaller for divergences near 1.

        Args:
            eps: Epsilon in nats, for each panel.
            box: Bounds of the functions in the Gamma threshold ``z`` on a complex rectangle.
            real: Lower bounds of the real part of ``z``.
            excess: Upper bounds of ``|z| - Re z``.
        """
        # 1 + |Q(k, z)| + |e^(eps+(r-1)x) P(k, z e^-x)|, z above k, z e^-x = a B(x) - eps N(x) below (C20, C21)
        aside = self.a * box.b_aside + eps * box.n_aside
        moved = self.a * (box.b2 - box.bend) - eps * box.n1
        size = np.hypot(np.maximum(self.a * (box.b1 + box.bend), -moved), aside)
        away = np.where(moved > 0.0, aside**2 / (2.0 * np.maximum(moved, LEAST_DIVISOR)), 2.0 * size)
        low = eps + (self.rank - 1.0) * box.x2 + away - self.chernoff(size, -1.0)
        return np.logaddexp(np.logaddexp(0.0, excess - self.chernoff(real, 1.0)), low)

    # --- panels ---------------------------------------------------------------------------------

    def pieces(self) -> _IntegralPanels:
        """Return narrow intervals that cover the alignment ratios from 0 to ``e^45``."""
        m, spread = self.misalignment, self.unit / math.sqrt(self.rank)
        kink, turn = self.kink[:, None], self.turn[:, None]
        # They are narrowest near A = 1, near A = 0, and where a threshold is 0.
        # pieces that grow from A = 1 towards A = 0
        growing = np.minimum(FIRST_PLACE * min(spread, 1.0) * PLACE_GROWTH ** np.arange(44), 0.5)
        towards_zero = 1.0 - 0.5 ** np.arange(1.0, 41.0)
        shared = np.concatenate([[0.0, 1.0], towards_zero, growing, np.clip(m + spread * BULK, 0.0, 1.0)])
        edges = [np.broadcast_to(shared, (len(kink), len(shared)))]
        if self.a <= 0.0:
            # pieces towards a threshold of 0, each half as wide as the previous one
            edges += [turn, turn * (1.0 - 0.5 ** np.arange(1.0, 46.0))]
        parts = [self.between(np.concatenate(edges, axis=1), turn, BELOW_ONE)]
        if self.a <= 0.0:
            parts.append(self.between(np.concatenate(edges, axis=1), turn, CERTAIN_GAIN))
        elif np.any(self.kink <= FARTHEST_LOG_ALIGNMENT):
            end = math.exp(FARTHEST_LOG_ALIGNMENT)
            scale = FIRST_PLACE * np.minimum(min(spread, 1.0), np.where(kink > 0.0, kink, 1.0))
            center = -m - np.expm1(np.minimum(kink, 600.0))
            # pieces that grow from the threshold above A = 1
            growing = np.minimum(scale * PLACE_GROWTH ** np.arange(40), end)
            # 23 more pieces beyond, each 16 times as wide as the previous one
            farther = np.minimum(growing[:, -1:] * 16.0 ** np.arange(1.0, 24.0), end)
            fixed = np.broadcast_to([0.0, end], (len(kink), 2))
            above = np.concatenate([fixed, growing, farther, np.clip(center + spread * BULK, 0.0, end)], axis=1)
            parts.append(self.between(np.where(kink > FARTHEST_LOG_ALIGNMENT, 0.0, above), turn, ABOVE_ONE))
        return _IntegralPanels(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @staticmethod
    def between(edges: Array, turn: Array, kind: int) -> tuple[Index, Kinds, Array, Array]:
        """Return the intervals between ``edges`` as ``(index, kind, low, high)``.

        ``edges`` has one row for each epsilon. For :data:`BELOW_ONE` only the intervals below ``turn`` are returned,
        and for :data:`CERTAIN_GAIN` only the intervals above ``turn``.
        """
        edges = np.sort(edges, axis=1)
        low, high = edges[:, :-1], edges[:, 1:]
        chosen = low < high
        if kind != ABOVE_ONE:
            chosen &= (high <= turn) if kind == BELOW_ONE else (low >= turn)
        index = np.nonzero(chosen)[0]
        return index, np.full(len(index), kind, np.int8), low[chosen], high[chosen]

    def first_panels(self, pieces: _IntegralPanels, most: Array) -> tuple[_IntegralPanels, NDArray[np.bool_]]:
        """Return intervals for the Gauss rule, and a mask of the ``pieces`` that they cover.

        ``most`` has upper bounds of the logs of the integrals over the pieces. Any choice of intervals gives a valid
        result.
        """
        top = np.full(len(self.eps), -np.inf)
        np.maximum.at(top, pieces.index, most)
        covered = most > top[pieces.index] - WINDOW_NATS
        p = pieces[covered]
        if not len(p.low):
            return p, covered
        t = [(self.offset(p.kind, p.index, x) + self.misalignment) / self.unit for x in (p.low, p.high)]
        angle = np.abs(np.arcsinh(t[1]) - np.arcsinh(t[0]))
        fall = 0.5 * (self.rank + 1.0) * np.abs(np.log1p(t[1] * t[1]) - np.log1p(t[0] * t[0]))
        gains, steps = zip(
            *(self.log_most_gain(p.kind, p.index, np.maximum(x, LEAST_DIVISOR)) for x in (p.low, p.high)), strict=True
        )
        rise = np.minimum(gains[1] - gains[0], WINDOW_NATS)
        # Singular points are A = 1 or the threshold above it, and A = 0 or the threshold below A = 1.
        turn = 1.0 if self.a > 0.0 else np.where(p.kind == BELOW_ONE, self.turn[p.index], 1.0)
        left = turn - p.low
        nearer = np.where(p.kind == ABOVE_ONE, 1.0, np.maximum(turn - p.high, LEAST_SHARE_LEFT * left) / left)
        folds = np.log(p.high / np.maximum(p.low, LEAST_SHARE_LEFT * p.high)) - np.log(nearer)
        # in units of one first panel: change of ln f and ln g, log of the ratio of the distances of its ends from a
        # singular point, width in asinh of Student's variable over sqrt(r)
        size = (fall + rise) / 20.0 + folds / 0.7 + angle / 4.0
        # and width in standard deviations of U, where the threshold passes its mean
        size += np.abs(steps[1] - steps[0]) / 5.0
        # First panels 40 nats below the top are twice as wide.
        size /= 1.0 + (top[p.index] - most[covered]) / 40.0
        parts = np.maximum(np.ceil(size), 1.0).astype(np.intp)
        # Divide pieces that belong to several panels, then join neighbors whose sizes sum to one panel.
        p, size = p.cut(parts), np.repeat(size / parts, parts)
        new = np.append(True, (p.low[1:] != p.high[:-1]) | (np.diff(p.kind) != 0) | (np.diff(p.index) != 0))
        run = np.cumsum(new) - 1
        along = np.cumsum(size)
        before = (along - size)[new][run]
        total = np.bincount(run, size)[run]
        label = np.floor((along - 0.5 * size - before) / total * np.ceil(total))
        first = new | np.append(True, np.diff(label) != 0.0)
        last = np.append(first[1:], True)
        return _IntegralPanels(p.index[first], p.kind[first], p.low[first], p.high[last]), covered

    def log_beyond(self) -> float:
        """Return the log of a bound of the probability beyond the range of integration."""
        # ln A > 45 iff T > (e^45 - 1 + m)/s >= t. As f decreases like a power, P(T > t) is at most
        # front int_t^inf (u^2/r)^-(r+1)/2 du = front r^((r+1)/2) t^-r / r.
        r = float(self.rank)
        t = (math.exp(FARTHEST_LOG_ALIGNMENT) - 1.0) / (self.unit / math.sqrt(r))
        return self.log_front + 0.5 * (r + 1.0) * math.log(r) - r * float(np.log(t)) - math.log(r)

    def log_delta(self) -> tuple[Array, Array, Array]:
        """Return ``ln delta`` at each epsilon, with two parts of its error.

        Returns:
            * ``ln delta``;
            * the proved relative error of delta, from panels and Gauss rules;
            * the estimated change of ``ln delta`` divided by the relative rounding error of Gamma thresholds.

        Raises:
            ConvergenceError: The error is too large after :data:`MOST_HALVINGS` halvings.
        """
        infinite = log_infinite(self.rank, self.misalignment)
        sums = _LogSums(*(np.full_like(self.eps, log) for log in (infinite, self.log_beyond(), -np.inf)))
        pieces = self.pieces()
        most = self.log_most_density(pieces)[1] + np.log(pieces.high - pieces.low) + 1e-9
        most = most + self.log_most_gain(pieces.kind, pieces.index, pieces.high)[0]
        panels, covered = self.first_panels(pieces, most)
        rest, half = pieces[~covered], most[~covered] - math.log(2.0)
        for _ in range(MOST_HALVINGS):
            value, steep = self.gauss(panels)
            allowed = _add_logs(sums.total, panels.index, value) + math.log(self.share)
            if len(rest.low):
                # The integral over an omitted piece is between 0 and e^most. Half of e^most is added both to the value
                # and to the error.
                small = half <= allowed[rest.index]
                sums = sums.add(rest.index[small], half[small], half[small])
                rest, more = rest[:0], rest[~small]
                if len(more.low):
                    panels = panels.join(more)
                    value, steep = self.gauss(panels)
            enough = allowed[panels.index]
            error = self.log_error(panels, enough)
            done = error <= enough
            sums = sums.add(panels.index[done], value[done], error[done], steep[done])
            panels, enough, error = panels[~done], enough[~done], error[~done]
            if len(panels.low):
                # Each integral is in [low, high], and half of the gap is the error of the middle. If that is too large,
                # divide the panel.
                low, high = self.panel_bounds(panels)
                gap = high + np.log1p(-np.exp(np.minimum(low - high, 0.0))) - math.log(2.0)
                small = (gap <= enough) | (high == -np.inf)
                sums = sums.add(panels.index[small], np.logaddexp(low, high)[small] - math.log(2.0), gap[small])
                # one more part for every 8 nats of excess error, at most 6 parts
                panels, parts = panels[~small], 2.0 + (error - enough)[~small] / 8.0
                parts = np.where(parts < np.inf, np.clip(parts, 2.0, 6), 2.0)
                panels = panels.cut(parts.astype(np.intp))
            if not len(panels.low):
                return sums.total, np.exp(sums.missed - sums.total), np.exp(sums.leaning - sums.total)
        raise ConvergenceError(
            "the quadrature of the exact profile did not converge. Please report these parameters as a bug."
        )
