"""Bounds of the unequal-norm profile over cells of alignments and ratios of norms, from finitely many nodes (C12).

With ``k = (d + r - 1)/2``, ``a = (d + 1 - r)/2``, ``A = e^x``, ``tau = ln kappa`` and ``e' = eps + (r-1) tau`` the pair
has, given ``A``, the gain (C12)

    G(x) = E[(1 - e^(-(e^y - 1)(U - (a y + e')/(e^y - 1))))_+]        x = tau - y, y > 0
    G(x) = E[(1 - e^(-(1 - e^-y)((a y - e')/(1 - e^-y) - U)))_+]      x = tau + y, y > 0

with ``U ~ Gamma(k)``. It does not depend on the alignment, falls up to a valley at or beyond ``tau`` and rises from
there. The alignment enters only by the tails of ``A``. With the falling and the rising part of ``G`` one pair has

    delta = G(valley) + int_falling |dG(x)| P(A < e^x) + int_rising dG(x) P(A > e^x).

Three facts bound it between nodes. First, take a panel of width ``h`` on which ``G'`` is in ``[s, S]``. The integral of
``dG`` times a monotone tail is that of the means but for ``(h/4) (S - s)`` times the change of the tail, and the mean
of the tail is that of its ends but for ``h/8`` times the range of the density of ``x``. Second, at fixed ``x <= 0``
both tails are monotone in the alignment; at ``x > 0`` they turn once, at ``rho = e^-x``. Third, in ``tau = ln kappa`` a
falling part grows and a rising one shrinks, and ``G + K tau^2/2`` is convex for the ``K`` of
:func:`_second_slope_bounds`.

Shapes: ``n`` nodes make ``n - 1`` panels. What belongs to the panels of a gain is by ``(panel, ratio, eps)``, and what
belongs to tails by ``(misalignment, panel or node)``. For one ratio ``y`` is ``(n,)`` and ``start``, which holds
``e'`` for each epsilon, is ``(e,)``; what depends on both is ``(n, e)``, and bounds between neighbouring ``y`` are
``(n - 1, e)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from privproj.laws.wishart_loss import log_gamma_ratio
from privproj.numerics.arrays import Array
from privproj.numerics.gamma_gain import log_gamma_hockey_stick
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

LARGEST_THRESHOLD = 1e300
"""Finite stand-in for an infinite threshold, where all tails and densities are 0. Soundness."""


def _exp_from_above(x: Array) -> Array:
    """Return ``e^x`` from above, and finite: :data:`HUGE_BOUND` beyond :data:`LARGEST_BOUND_EXPONENT`."""
    return np.where(x > LARGEST_BOUND_EXPONENT, HUGE_BOUND, np.exp(np.minimum(x, LARGEST_BOUND_EXPONENT)))


def _safe_difference(first: Array, exponent: Array, second: Array) -> Array:
    """Return ``first - e^exponent second``, or -1 where ``second`` underflows and the exponential would undo that."""
    return np.where(
        (second < INVISIBLE_PROBABILITY) & (exponent > 0.0), -1.0, first - _exp_from_above(exponent) * second
    )


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

    def log_density(self, v: Array) -> Array:
        """Return ``ln N(v)``, ``N(v) = v g_k(v)``, where ``g_k`` is the density of ``Gamma(k)``, for ``v > 0``."""
        k = self.constants[0]
        # v g_k(v) = sqrt(k/2 pi) e^-R e^(-k (w - 1 - ln w)), w = v/k, R the remainder of Stirling's formula
        w = np.maximum(v, LEAST_POSITIVE) / k
        return k * (np.log(w) - (w - 1.0)) + 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k)

    def slope_rate(self, v: Array, side: float) -> Array:
        """Return ``R(v)`` before ``tau`` (``side = 1``), and ``J(v)`` beyond (-1).

        The slope of both is ``(a - v) g_k(v)`` (C12, step 1).
        """
        # R(v) = v g_k(v) + (r-1) Q(k, v),  J(v) = v g_k(v) - (r-1) P(k, v)
        return np.where(v > 0.0, np.exp(self.log_density(v)), 0.0) + side * self.constants[2] * self.tail(
            np.maximum(v, 0.0), side
        )

    def slopes(self, y: Array, start: Array, side: float) -> tuple[Array, Array]:
        """Return bounds ``(high, low)`` of the slope's size between neighbouring ``y``, which increase from 0 or above.

        Each is of shape ``(n - 1, e)``. Beyond ``tau``, ``high >= G' >= low``; before it, ``high >= -G' >= low``.

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
        heavy, light = _exp_from_above(larger), np.exp(np.minimum(smaller, LARGEST_BOUND_EXPONENT))
        return np.where(top > 0.0, heavy, light) * top, np.where(least > 0.0, light, heavy) * least


@dataclass(frozen=True)
class AlignmentLaw:
    """The law of ``A = rho + sqrt(1 - rho^2) T/sqrt(r)``, where ``T`` has Student's law ``t_r`` (C9, C12).

    Misalignments ``m = 1 - rho > 0`` are a column, and places ``x = ln A`` a row; the results have a row for each
    ``m``.
    """

    rank: int

    def tails(self, m: Array, x: Array) -> tuple[Array, Array]:
        """Return ``P(A < e^x)`` and ``P(A > e^x)``; the first counts ``A <= 0`` too, and is that alone at ``-inf``."""
        # I_q(r/2, 1/2)/2 on the far side, q = s^2/(s^2 + z^2), z = e^x - rho, s^2 = 1 - rho^2 = m (2 - m) (C12, step 4)
        z, square = np.expm1(x) + m, m * (2.0 - m)
        half = 0.5 * special.betainc(0.5 * self.rank, 0.5, square / (square + z * z))
        return np.where(z < 0.0, half, 1.0 - half), np.where(z < 0.0, 1.0 - half, half)

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


LOWEST_LOG_ALIGNMENT = -60.0
"""Lowest node in ``x = ln A``; what is below is counted in full. Speed only."""

HIGHEST_LOG_ALIGNMENT = 300.0
"""Highest node in ``x = ln A``; what is above is counted in full. Speed only."""

SLOPE_RELATIVE_ERROR = 1e-9
"""Relative error allowed to a bound of a slope: rounding of special functions, measured (C12). Soundness (measured)."""

LEAST_POSITIVE = 1e-300
"""Least argument of a logarithm, and least distance of ``y`` from 0. Soundness."""


@dataclass(frozen=True)
class CellGrid:
    """Where pairs are evaluated; all three arrays increase.

    * ``misalignments``: ``m = 1 - rho``, from 0 on.
    * ``ratios``: values of ``tau = ln kappa``.
    * ``points``: nodes in ``x = ln A``, with 0 and the ratios among them.
    """

    misalignments: Array
    ratios: Array
    points: Array


@dataclass(frozen=True)
class _TailWeights:
    """What one part of a gain is multiplied with, by ``(row, panel)``, a row for each misalignment or cell of them.

    * ``mean``: a bound of the mean of the tail over the panel.
    * ``most``: a bound of the tail on the whole panel. Both are from above for upper bounds of delta, from below for
      lower.
    * ``change``: how much the tail changes over the panel; negative for lower bounds, where the error is taken off.
    """

    mean: Array
    most: Array
    change: Array


@dataclass(frozen=True)
class _GainPart:
    """One part of the gain on each panel, three arrays by ``(panel, ratio, eps)``.

    * ``fine``: its change, on panels where means of the tail are used.
    * ``coarse``: its change, on panels where the largest value of the tail stands for the tail.
    * ``spread``: the error of ``fine`` for each unit by which the tail changes.
    """

    fine: Array
    coarse: Array
    spread: Array

    def panels(self, chosen: slice, ratio: int, step: int = 1) -> "_GainPart":
        """Return a view of what belongs to some panels at a ratio, by ``(panel, eps)``; in reverse for a step of -1."""
        return _GainPart(*(part[chosen, ratio][::step] for part in (self.fine, self.coarse, self.spread)))

    def times(self, weights: _TailWeights) -> Array:
        """Return the sum over the panels of this part times the weights, by ``(row, ratio, eps)``."""
        pairs = ((weights.mean, self.fine), (weights.most, self.coarse), (weights.change, self.spread))
        return sum((_sum_over_panels(_flush_invisible(w), _flush_invisible(part)) for w, part in pairs), np.zeros(()))


def _sum_over_panels(weights: Array, part: Array) -> Array:
    """Return the sum over the panels; by no product of matrices, as BLAS would start its threads for it."""
    return np.einsum("kp,pre->kre", weights, part)


def _flush_invisible(values: Array) -> Array:
    """Return the values with 0 for those that are invisible, because arithmetic with denormal numbers is slow.

    The caller's floor is above the sum of all of them.
    """
    return np.where(np.abs(values) < INVISIBLE_PROBABILITY, 0.0, values)


@dataclass(frozen=True)
class _GainLayers:
    """The gain at each ratio ``tau``, cut into the layers of C12, step 2.

    * ``before``: the panels left of ``tau``, where ``G`` falls.
    * ``falling``, ``rising``: the panels right of ``tau``, where ``G`` falls to its valley and rises from there.
    * ``valley``: the least ``G`` at a node from ``tau`` on, by ``(ratio, eps)``.
    * ``values``: ``G`` at every node, by ``(ratio, node, eps)``.
    """

    before: _GainPart
    falling: _GainPart
    rising: _GainPart
    valley: Array
    values: Array


# --- the alignment ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AlignmentTails:
    """Tails of ``A``, a row for each misalignment; row 0 is that of parallel vectors, ``A = 1``.

    * ``below``, ``above``: ``P(A < e^x)`` and ``P(A > e^x)`` at the nodes.
    * ``below_means``, ``above_means``: upper and lower bounds of their means on the panels, in this order.
    * ``never``: ``P(A <= 0)``.
    """

    below: Array
    above: Array
    below_means: tuple[Array, Array]
    above_means: tuple[Array, Array]
    never: Array

    def weights(self, upper: bool) -> tuple[_TailWeights, _TailWeights]:
        """Return the weights of falling and of rising parts, for upper or for lower bounds of single pairs."""
        side, sign = (0, 1.0) if upper else (1, -1.0)
        change = self.below[:, 1:] - self.below[:, :-1], self.above[:, :-1] - self.above[:, 1:]
        most = (self.below[:, 1:], self.above[:, :-1]) if upper else (self.below[:, :-1], self.above[:, 1:])
        return (
            _TailWeights(self.below_means[side], most[0], sign * change[0]),
            _TailWeights(self.above_means[side], most[1], sign * change[1]),
        )


def tails_on_grid(law: AlignmentLaw, grid: CellGrid) -> _AlignmentTails:
    """Return the tails at the nodes of a grid, and bounds of their means on its panels (C12, step 3)."""
    x, m = grid.points, grid.misalignments[1:, None]
    below, above = law.tails(m, x)
    density, mode = law.density(m, x), law.mode(m)
    highest = np.maximum(density[:, 1:], density[:, :-1])
    highest = np.where((mode >= x[:-1] - 1e-12) & (mode <= x[1:] + 1e-12), law.density(m, mode), highest)
    # mean of T on a panel = mean of its ends -+ (h/8) (sup f - inf f), f unimodal (C12, step 3)
    slack = np.diff(x) / 8.0 * (highest - np.minimum(density[:, 1:], density[:, :-1]))
    low, high = 0.5 * (below[:, 1:] + below[:, :-1]), 0.5 * (above[:, 1:] + above[:, :-1])
    passed, passed_panels = (x > 0.0)[None, :].astype(float), (x[1:] > 0.0)[None, :].astype(float)
    return _AlignmentTails(
        np.vstack([passed, below]),
        np.vstack([1.0 - passed, above]),
        (
            np.vstack([passed_panels, np.minimum(low + slack, below[:, 1:])]),
            np.vstack([passed_panels, np.maximum(low - slack, below[:, :-1])]),
        ),
        (
            np.vstack([1.0 - passed_panels, np.minimum(high + slack, above[:, :-1])]),
            np.vstack([1.0 - passed_panels, np.maximum(high - slack, above[:, 1:])]),
        ),
        np.append(0.0, law.tails(m[:, 0], np.array(-np.inf))[0]),
    )


@dataclass(frozen=True)
class _AlignmentCells:
    """Weights of the layers that hold for every misalignment of a cell, a row for each cell between neighbouring ones.

    * ``falling``, ``rising``: the weights, from above.
    * ``below_most``, ``below_least``: the largest and the least ``P(A < e^x)`` over the cell, at the nodes.
    * ``above_most``: the largest ``P(A > e^x)`` over the cell, at the nodes.
    """

    falling: _TailWeights
    rising: _TailWeights
    below_most: Array
    below_least: Array
    above_most: Array


def _bounds_over_alignments(law: AlignmentLaw, grid: CellGrid, tails: _AlignmentTails) -> _AlignmentCells:
    """Return the weights over cells of misalignments (C12, step 4).

    Where a tail is monotone over the whole cell and panel, its mean is largest at one end of the cell. Elsewhere the
    largest value of the tail stands for its mean.
    """
    # P(A > e^x) is largest over all alignments at rho = e^-x, that is at m = 1 - e^-x (C12, step 4).
    x, near, far = grid.points, grid.misalignments[:-1, None], grid.misalignments[1:, None]
    turn = -np.expm1(-np.maximum(x, 0.0))[None, :]
    below_rises = (x[1:] <= 0.0)[None, :] | (near >= turn[:, 1:])
    below_falls = ~below_rises & (far <= turn[:, :-1])
    inside, extreme = (turn > near) & (turn < far) & (x > 0.0), law.tails(turn, x)[1]
    below = np.maximum(tails.below[:-1], tails.below[1:])
    below_least = np.minimum(tails.below[:-1], tails.below[1:])
    below_least = np.where(inside, np.minimum(1.0 - extreme, below_least), below_least)
    above = np.maximum(tails.above[:-1], tails.above[1:])
    above = np.where(inside, np.maximum(extreme, above), above)
    above_least = np.minimum(tails.above[:-1], tails.above[1:])
    most, top = below[:, 1:], above[:, :-1]
    mean, high = tails.below_means[0], tails.above_means[0]
    falling = np.where(below_rises, mean[1:], np.where(below_falls, mean[:-1], most))
    rising = np.where(below_rises, high[:-1], np.where(below_falls, high[1:], top))
    return _AlignmentCells(
        _TailWeights(np.minimum(falling, most), most, most - below_least[:, :-1]),
        _TailWeights(np.minimum(rising, top), top, top - above_least[:, 1:]),
        below,
        below_least,
        above,
    )


# --- the gain ---------------------------------------------------------------------------------------


def _gain_layers(gain: ConditionalGain, grid: CellGrid, eps: Array) -> _GainLayers:
    """Return the layers of the gain, with bounds of its slope, at every ratio and node (C12, steps 2 and 3)."""
    x, shape = grid.points, (len(grid.points) - 1, len(grid.ratios), len(eps))
    parts = [_GainPart(*(np.zeros(shape) for _ in range(3))) for _ in range(3)]
    values, valley = np.zeros((shape[1], len(x), shape[2])), np.zeros(shape[1:])
    for i, tau in enumerate(grid.ratios):
        at, start = int(np.searchsorted(x, tau)), eps + gain.constants[2] * tau
        at_tau = -np.expm1(np.minimum(start, 0.0))[None, :]
        y = np.append(0.0, (tau - x[:at])[::-1])
        grown = np.maximum.accumulate(np.vstack([at_tau, gain.at(y[1:], start, 1.0)]), axis=0)
        _fill_panels(gain, [None, parts[0].panels(slice(at), i, -1)], y, start, 1.0, grown)
        y = np.append(0.0, x[at + 1 :] - tau)
        values[i, : at + 1], values[i, at:] = grown[::-1], np.vstack([at_tau, gain.at(y[1:], start, -1.0)])
        valley[i] = values[i, at:].min(axis=0)
        beyond = [part.panels(slice(at, None), i) for part in parts[1:]]
        _fill_panels(gain, beyond, y, start, -1.0, values[i, at:])
    return _GainLayers(parts[0], parts[1], parts[2], valley, values)


def _fill_panels(
    gain: ConditionalGain, parts: Sequence[_GainPart | None], y: Array, start: Array, side: float, at_y: Array
) -> None:
    """Fill in what falls with ``y`` to the least of the gains ``at_y``, and what rises from there, on these panels.

    Before ``tau`` (``side = 1``) nothing falls, and there is no first part.
    """
    # (h/4) (S - s): Gruess' inequality (C12, step 3). Where it is above half of the change, the largest tail is taken;
    # where G' may change its sign, means are taken too.
    (high, low), change, count = gain.slopes(y, start, side), np.diff(at_y, axis=0), len(y) - 1
    size = np.maximum(np.abs(high), np.abs(low))
    spread = 0.25 * np.diff(y)[:, None] * (high - low + SLOPE_RELATIVE_ERROR * size)
    falls = np.arange(count)[:, None] < np.argmin(at_y, axis=0)[None, :]
    fine = (spread < 0.5 * np.abs(change)) | ((high > 0.0) & (low < 0.0))
    for part, sign, chosen in ((parts[0], -1.0, falls), (parts[1], 1.0, ~falls)):
        if part is not None:
            size = np.maximum(sign * change, 0.0) * chosen
            part.fine[:], part.coarse[:] = size * fine, size * ~fine
            part.spread[:] = np.where(fine & chosen, spread, 0.0)


def _second_slope_bounds(gain: ConditionalGain, grid: CellGrid, eps: Array) -> tuple[Array, Array, Array]:
    """Return bounds ``K >= -d^2 G/d tau^2`` on each panel, below the first node and beyond the last (C12, step 6).

    The first is by ``(panel, cell of ratios, eps)``, the others by ``(cell of ratios, eps)``.
    """
    # K_x = e^e N(v) (v - k)_+ for x < tau and e^e N(v) (k - v)_+ for x > tau, where N(v) = v g_k(v),
    # v = (k y + e)/(1 - e^-y), e = eps + (r-1) x and y = tau - x (C12, step 6)
    k, a, c = gain.constants
    x = grid.points[:, None, None]
    first, last = grid.ratios[None, :-1, None], grid.ratios[None, 1:, None]
    e = eps + c * x
    least, most = e[:-1], e[1:]
    left = _log_largest_bend(gain, *_threshold_range(k, first - x[1:], last - x[:-1], least, most, 1.0), 1.0) + most
    right = _log_largest_bend(gain, *_threshold_range(k, x[:-1] - last, x[1:] - first, least, most, -1.0), -1.0) + most
    left, right = np.where(last > x[:-1], left, -np.inf), np.where(x[1:] > first, right, -np.inf)
    on_panels = _exp_from_above(np.maximum(left, right))
    reached = a * (first - LOWEST_LOG_ALIGNMENT) + eps + c * first if a > 0.0 else 0.0 * (first + eps)
    under = (
        _log_largest_bend(gain, reached, np.maximum(reached, LARGEST_THRESHOLD), 1.0) + eps + c * LOWEST_LOG_ALIGNMENT
    )
    over = k * float(np.exp(gain.log_density(np.array(k))))
    return on_panels, _exp_from_above(under)[0], np.full_like(under[0], over)


def _threshold_range(k: float, low: Array, high: Array, least: Array, most: Array, side: float) -> tuple[Array, Array]:
    """Return the range of ``v`` for ``low <= side y <= high`` cut at 0 and ``least <= e <= most``.

    ``side`` is 1 left of ``tau`` and -1 right of it.
    """
    low, high = np.maximum(low, LEAST_POSITIVE), np.maximum(high, LEAST_POSITIVE)
    # v = k w/near + side e/near at w = side y: the first term is monotone in w, and the second in w and in e.
    near, far = -side * np.expm1(-side * low), -side * np.expm1(-side * high)
    one = k * low / near + side * np.where(least > 0.0, least / far, least / near)
    other = k * high / far + side * np.where(most > 0.0, most / near, most / far)
    return (one, other) if side > 0.0 else (other, one)


def _log_largest_bend(gain: ConditionalGain, low: Array, high: Array, sign: float) -> Array:
    """Return ``ln`` of the largest ``N(v) (sign (v - k))_+`` for ``low <= v <= high``."""
    k = gain.constants[0]
    # N(v) |v - k| is largest where (v - k)^2 = v.
    peak = k + 0.5 + sign * math.sqrt(k + 0.25)
    v = np.minimum(np.maximum(peak, low), np.maximum(high, low))
    return np.where(high > 0.0, gain.log_density(v) + np.log(np.maximum(sign * (v - k), LEAST_POSITIVE)), -np.inf)


# --- bounds over cells ------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellBounds:
    """Every bound on a grid; the leading axes are cells or nodes of misalignments and of ratios, the last is eps.

    * ``cells``, by ``(cell, cell, eps)``: upper bounds of delta of every pair in a cell.
    * ``over_alignments``, by ``(cell, ratio, eps)``: upper bounds where only the misalignment is free.
    * ``over_ratios``, by ``(cell, cell, eps)``: how far delta between two ratios may be above its values there.
    * ``upper``, ``lower``, by ``(misalignment, ratio, eps)``: bounds of the pairs at the nodes.
    * ``tails``, ``layers``: what they were made of.
    """

    cells: Array
    over_alignments: Array
    over_ratios: Array
    upper: Array
    lower: Array
    tails: _AlignmentTails
    layers: _GainLayers


def bounds_on(gain: ConditionalGain, law: AlignmentLaw, grid: CellGrid, eps: Array) -> CellBounds:
    """Return every bound on this grid (C12, steps 2 to 6).

    They hold for exact special functions; :mod:`privproj.laws.wishart_unequal_norms` adds the margin for theirs.
    """
    tails, layers = tails_on_grid(law, grid), _gain_layers(gain, grid, eps)
    cells, at = _bounds_over_alignments(law, grid, tails), np.searchsorted(grid.points, grid.ratios)
    edges = cells.below_most[:, 0], cells.above_most[:, -1]
    before, beyond = _sum_both_sides(layers, (cells.falling, cells.rising), edges)
    alone, kappa = before + beyond, _bend_between_ratios(gain, grid, eps, cells)
    overlap = np.maximum(cells.below_most[:, at[1:]] - cells.below_least[:, at[:-1]], 0.0)
    at_tau = layers.values[np.arange(len(at)), at]
    # What falls before tau at t2, the rest at t1, and G_t2(t2) P_<(t2) - G_t1(t1) P_<(t1) from above (C12, step 5)
    mixed = before[:, 1:] + beyond[:, :-1] + overlap[:, :, None] * at_tau[None, 1:]
    # The smaller of that and of max(delta(t1), delta(t2)) + K (t2 - t1)^2/8 (C12, steps 6 and 7)
    by_cells = np.minimum(mixed, np.maximum(alone[:, 1:], alone[:, :-1]) + kappa)
    upper, lower = _bounds_at_nodes(grid, tails, layers)
    return CellBounds(by_cells, alone, kappa, upper, lower, tails, layers)


def _sum_both_sides(
    layers: _GainLayers, weights: tuple[_TailWeights, _TailWeights], edges: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return what falls before ``tau`` and the rest of the layers, each with what is beyond the outermost node."""
    # delta = G_0 + int_falling |dG| P_< + int_rising dG P_>, and 1 - G of the outermost nodes times the tail beyond
    # (C12, steps 2 and 3)
    before = layers.before.times(weights[0]) + (1.0 - layers.values[None, :, 0]) * edges[0][:, None, None]
    beyond = layers.falling.times(weights[0]) + layers.rising.times(weights[1]) + layers.valley[None]
    return before, beyond + (1.0 - layers.values[None, :, -1]) * edges[1][:, None, None]


def _bend_between_ratios(gain: ConditionalGain, grid: CellGrid, eps: Array, cells: _AlignmentCells) -> Array:
    """Return ``K h^2/8``, how far a profile can be above its values at two ratios that are ``h`` apart."""
    # K (t2 - t1)^2/8, K = E[K_x]: bounds of K_x on the panels times their largest probability (C12, step 6)
    on_panels, under, over = _second_slope_bounds(gain, grid, eps)
    mass = np.minimum(cells.falling.change, cells.rising.change)
    total = _sum_over_panels(mass, on_panels)
    total = total + cells.below_most[:, 0, None, None] * under + cells.above_most[:, -1, None, None] * over
    return total * np.diff(grid.ratios)[None, :, None] ** 2 / 8.0


def _bounds_at_nodes(grid: CellGrid, tails: _AlignmentTails, layers: _GainLayers) -> tuple[Array, Array]:
    """Return upper and lower bounds of the pairs at the nodes; parallel vectors have the gain at ``x = 0``."""
    nothing = np.zeros(len(grid.misalignments))
    upper = np.add(*_sum_both_sides(layers, tails.weights(True), (tails.below[:, 0], tails.above[:, -1])))
    lower = np.add(*_sum_both_sides(layers, tails.weights(False), (tails.never, nothing)))
    upper[0] = lower[0] = layers.values[:, int(np.searchsorted(grid.points, 0.0))]
    return upper, lower
