"""Composition by repeated squaring, each time on a grid that follows the losses: for laws of many scales.

Where a batch is sampled at a tiny rate, a step mostly loses about the rate, and once in a long while ten orders of
magnitude more. No lattice of equal cells holds both. Here a law has a few hundred atoms, wherever they are needed. All
of this is claim C23.

**A law** is a pair as in :mod:`privproj.composition.dominating_pairs`: ``P``-masses ``p_j`` at losses ``x_j``
(``Q``-masses ``q_j = p_j e^-x_j``), ``P``-mass ``m`` at ``+inf`` and ``Q``-mass ``m_q`` at ``-inf``. Its profile in
``t = e^eps >= 0`` is ``D(t) = m + sum_j p_j max(0, 1 - t e^-x_j)``. That of the other order is
``m_q + sum_j q_j max(0, 1 - t e^x_j)``.

**Product.** The atoms of two releases together are ``p_i p_j`` at ``x_i + x_j``. Each is moved to a grid, in one of
these ways:

* (i) Between neighbours ``a <= x <= b`` it is split so that its ``P``- and its ``Q``-mass both stay:
  ``p_a = p expm1(b - x) / expm1(b - a)`` and ``p_b = p expm1(a - x) / expm1(a - b)``.
* (ii) Above the last point ``a`` it leaves ``p e^(a - x)`` there and the rest of its ``P``-mass at ``+inf``.
* (iii) Below the first point ``b`` it moves there and leaves ``p (e^-x - e^-b)`` of its ``Q``-mass at ``-inf``.
* (iv) An atom that is negligible, or whose loss is too large, becomes ``P``-mass at ``+inf`` and ``Q``-mass at
  ``-inf``.

Each atom is the sum of its parts, and ``(P, Q) -> sum (P - t Q)_+`` is subadditive. So ``D`` only grows, for every
``t`` and in both orders. A larger factor only enlarges a product (C2). So every law here dominates its releases,
whatever the grid. :func:`_choose_grid` puts points where a split would enlarge ``D`` much; no proof rests on it.

**Below** (v). All atoms between two neighbours become one, with the sum of their ``P``- and of their ``Q``-masses, at
``x' = -ln(sum Q / sum P)``. It is moved down by its rounding, which only adds to ``Q``. Atoms beyond the last point
join the last group; those below the first point and negligible ones are dropped. By the same subadditivity ``D`` only
falls. This is done for the remove order only; delta is the larger of both orders, so that is a lower bound.

**Rounding** (vi). All losses are multiples of a power of two, ``unit``, and below ``2^52`` of them, so that sums and
differences are exact. Masses are sums of positive terms. If each is right to a factor ``e^r``, so is ``D``, and in a
product the ``r`` of both factors add up. ``growth`` is this ``r``, and what is read is multiplied by ``e^growth`` or
``e^-growth``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from privproj.composition.dominating_pairs import (
    REMEDY,
    SMALLEST_UPPER_BOUND,
    TRUNCATED_RUN_MASS,
    UNIT_ROUNDING,
    Cells,
    DominatingPair,
    ExcessBounds,
    FloatArray,
    Outline,
    distinct_cells,
    excess_bounds,
    repeat,
)
from privproj.composition.fourier import DeltaValue
from privproj.errors import GridLimit
from privproj.numerics.root_finding import find_crossing

CUT_MASS = 1e-38
"""Mass of either side that one product leaves beyond its grid. It is counted by (ii) and (iii). Speed only."""

NEGLIGIBLE_MASS = 1e-46
"""Atoms of a product below this in both masses are not placed. They are counted as (iv). Speed only."""

LARGEST_REACH = 350.0
"""Losses of a whole run must stay below this, in nats: there ``e^-loss`` is far from underflow and overflow.
Soundness."""

FARTHEST_LOSS = 0.49 * LARGEST_REACH
"""Losses beyond it, in nats, are infinite in a product that would reach too far. They are counted. Speed only."""

LEAST_PLACED_MASS = 1e-290
"""Least ``P``-mass of an atom that is placed. It is above every number that lost digits to underflow. Soundness."""

UNDERFLOWN_MASS = 1e-130
"""Mass added to either infinite part for what underflow can take: 1e-308 of an atom, times ``e^350``, times 1e7 atoms.

That product is below 1e-148. Soundness.
"""

LOSS_BITS = 51
"""Losses are at most 2 to this power of units, so that a sum of two is exact. Soundness."""

SPLIT_ROUNDINGS = 40.0
"""Units of rounding allowed to one placed mass. Two expm1 of at most 4 units each and five operations need 13.

Soundness.
"""

INFINITE_PART_MARGIN = 1.0 + 1e-9
"""Margin of sums of infinite parts, which have at most 1e7 positive terms. Soundness."""

LEAST_PILOT_MASS = 1e-250
"""Least divisor of a mean in the pilot that grids are chosen by. Speed only."""

GRID_RELATIVE_ERROR = 0.0005
"""Relative error of delta that all grids of a run may cause together, roughly. Speed only."""

MOST_ATOM_PRODUCTS = 8e6
"""About how many atoms all products of a run have together. Speed only."""

GRID_POINT_LIMITS = (600, 1600)
"""Least and largest number of points that :data:`MOST_ATOM_PRODUCTS` leaves to one grid. Speed only."""

ROUGH_EXCESS = 1e-13
"""Excess of a whole run below which grids follow it more roughly. Speed only."""

PILOT_ATOMS = 160
"""Atoms of each factor in the pilot that a grid is chosen by. Speed only."""

KNOT_LOSS_SHARE = 0.02
"""Largest spacing of the first knots as a share of the loss. Speed only."""


@dataclass(frozen=True)
class LossPmf:
    """Two measures ``P`` and ``Q`` with atoms at any losses. Whoever makes one guarantees what it dominates (C23)."""

    losses: FloatArray
    """The losses ``x_j`` in nats, multiples of ``unit``; in increasing order, except in a product not yet on a grid."""

    masses: FloatArray
    """The ``P``-masses ``p_j`` at these losses."""

    infinity_mass: float
    """``P``-mass at the loss ``+inf``."""

    infinity_mass_q: float
    """``Q``-mass at the loss ``-inf``."""

    unit: float
    """A power of two, in nats, that every loss is a multiple of."""

    growth: float = 0.0
    """All masses are right to a factor ``e^growth`` (module docstring, (vi))."""

    @cached_property
    def others(self) -> FloatArray:
        """The ``Q``-masses ``p_j e^-x_j`` at the same losses."""
        return self.masses * np.exp(-self.losses)

    @property
    def reach(self) -> float:
        """The largest absolute loss in nats, and at least one unit."""
        return float(max(-self.losses[0], self.losses[-1], self.unit))

    def mirrored(self) -> "LossPmf":
        """The pair ``(Q, P)``: the law of the add order, where this one is that of the remove order."""
        growth = self.growth + 8.0 * UNIT_ROUNDING
        return LossPmf(
            -self.losses[::-1], self.others[::-1], self.infinity_mass_q, self.infinity_mass, self.unit, growth
        )


class DoubledCurve:
    """The profile of a composed law, moved up (``above``) or down by what rounding may have cost (C23, "Rounding")."""

    def __init__(self, law: LossPmf, *, above: bool = True) -> None:
        self.law = law
        # Rounding (vi): a factor e^growth from above, e^-growth from below.
        self.factor = math.exp(law.growth + 1e-12 if above else -law.growth - 1e-12)
        self.infinity_mass = law.infinity_mass * self.factor

    def delta(self, eps: float) -> DeltaValue:
        """The finite part of delta at ``eps`` (nats), on the safe side already, so that its error is 0."""
        # sum_(x_j > eps) p_j (1 - e^(eps - x_j))
        first = int(np.searchsorted(self.law.losses, eps, side="right"))
        masses, gap = self.law.masses[first:], eps - self.law.losses[first:]
        value = -float(np.sum(masses * np.expm1(gap))) * self.factor
        return DeltaValue(value, 0.0, -float(np.sum(masses * np.exp(gap))))

    def chernoff(self, eps: float) -> float:
        """``ln delta(eps)`` with its infinite part: the value, which is as cheap here as a bound is on a lattice."""
        return math.log(max(self.delta(eps).value + self.infinity_mass, SMALLEST_UPPER_BOUND))

    def epsilon(self, delta: float, *, above: bool, near: float | None = None) -> float:
        """An end of the inverse ``eps(delta)`` in nats; the search starts at ``near``.

        With ``above`` it is nearly the least ``eps >= 0`` at which the curve is at most ``delta``. Without, it is
        nearly the largest one at which the curve is larger, or 0.
        """
        limit = math.log(delta) + (-1e-12 if above else 1e-12)
        if self.chernoff(0.0) <= limit:
            return 0.0
        ends = {"low": 1e-300, "high": float(np.max(self.law.losses, initial=1e-300)), "rtol": 1e-13}
        crossing = find_crossing(lambda eps: self.chernoff(eps) - limit, near or ends["high"], **ends)
        return crossing.upper if above else crossing.lower


# --- one release -----------------------------------------------------------------------------------


def first_bounds(shape: Outline) -> ExcessBounds:
    """Bounds of the excess of one sampled release on knots of every scale, as sound as its profile (C18)."""
    unit = _unit_for(max(-shape.losses[0], shape.losses[-1]))
    return excess_bounds(shape.profile, shape.run, _first_knots(shape, unit), unit)


def law_from_pair(pair: DominatingPair, sign: float) -> LossPmf:
    """The pair as a law; the absolute error of its cell 0 is added (``sign`` 1, from above) or taken away (-1)."""
    masses = np.maximum(pair.masses + np.where(pair.cells == 0, sign * pair.rounding, 0.0), 0.0)
    positive = masses > 0.0
    losses = pair.step * pair.cells[positive]
    return LossPmf(losses, masses[positive], pair.infinity_mass, pair.infinity_mass_q, pair.step, pair.rounding)


def _first_knots(shape: Outline, unit: float) -> Cells:
    """The lattice cells (losses over ``unit``) to evaluate, spaced by a share of the loss or of the decay length."""
    losses, log_excess = shape.losses, shape.log_excess
    middle, width = np.abs(0.5 * (losses[1:] + losses[:-1])), np.diff(losses)
    decay = width / np.maximum(np.abs(np.diff(log_excess)), 1e-9)
    smallest = 0.1 * math.exp(float(log_excess.max()))
    coarse = max(1.0, 40.0 / shape.profile.resolution)
    # Largest spacing of the first knots as a share of the length in which the excess falls by e. Speed only.
    spacing = np.minimum(
        coarse * np.minimum(KNOT_LOSS_SHARE * np.maximum(middle, smallest), 0.1 * decay), shape.widest_gap
    )
    depth = shape.truncated_mass / TRUNCATED_RUN_MASS
    rough = log_excess[:-1] < log_excess.max() + math.log(ROUGH_EXCESS * depth / shape.run.steps)
    count = np.concatenate([[0.0], np.cumsum(width / np.where(rough, 4.0 * spacing, spacing))])
    at = np.interp(np.linspace(0.0, count[-1], math.ceil(count[-1]) + 2), count, losses)
    if shape.has_two_orders:
        # The first one lies just beyond the end of the support, so that no mass is lost there.
        at[0] = (1.0 + 1e-12) * losses[0] - unit
    at = at[np.abs(at) > 0.5 * KNOT_LOSS_SHARE * smallest]
    return distinct_cells(np.append(np.rint(at / unit), 0.0).astype(np.int64))


def _unit_for(reach: float) -> float:
    """The finest power of two, in nats, of which losses up to ``reach`` are at most ``2^LOSS_BITS``."""
    return 2.0 ** (math.ceil(math.log2(reach)) - LOSS_BITS)


# --- the grid: any is sound -------------------------------------------------------------------------


@dataclass(frozen=True)
class _GridCare:
    """How closely a grid follows a law. Any values are sound."""

    error: float
    """Relative error of the excess that the grid may cause, roughly."""

    floor: float
    """Excess below which the grid may be coarser."""

    most: int
    """Largest number of points."""

    depth: float = 1.0
    """By how much less mass is cut and neglected than where tails are those of ordinary deltas."""


@dataclass(frozen=True)
class _PilotLaw:
    """A rough picture of a product, by which a grid is chosen for it."""

    losses: FloatArray
    """Losses of a few atoms in nats, increasing."""

    masses: FloatArray
    """Their ``P``-masses."""

    low: float
    """The lowest loss of the grid, in nats."""

    high: float
    """The highest loss of the grid, in nats."""


def _thin_atoms(law: LossPmf) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """``(mean loss, mass, least loss, largest loss)`` of at most :data:`PILOT_ATOMS` groups of neighbouring atoms."""
    count = len(law.losses)
    starts = np.unique(np.linspace(0, count, min(PILOT_ATOMS, count), endpoint=False).astype(int))
    masses = np.maximum(np.add.reduceat(law.masses, starts), LEAST_PILOT_MASS)
    first, last = law.losses[starts], law.losses[np.append(starts[1:], count) - 1]
    return np.clip(np.add.reduceat(law.masses * law.losses, starts) / masses, first, last), masses, first, last


def _thin_product(one: LossPmf, two: LossPmf, cut: float) -> _PilotLaw:
    """The pilot of the product of both laws; beyond its ends lies about the mass ``cut`` of either side."""
    ours = _thin_atoms(one)
    theirs = ours if one is two else _thin_atoms(two)
    masses = np.outer(ours[1], theirs[1]).ravel()
    middle, first, last = (np.add.outer(ours[i], theirs[i]).ravel() for i in (0, 2, 3))
    order = np.argsort(middle)
    middle, masses, first, last = (x[order] for x in (middle, masses, first, last))
    low = first[min(int(np.searchsorted(np.cumsum(masses * np.exp(-first)), cut)), len(first) - 1)]
    high = last[max(len(last) - 1 - int(np.searchsorted(np.cumsum(masses[::-1]), cut)), 0)]
    if not low < high:
        low, high = first[0], last[-1]
    return _PilotLaw(np.clip(middle, low, high), masses, float(low), float(high))


def _mean_and_deviation(losses: FloatArray, masses: FloatArray) -> tuple[float, float]:
    """The mean and the standard deviation, in nats, of a law that need not be normalised."""
    total = float(np.sum(masses))
    mean = float(np.sum(masses * losses)) / total
    return mean, math.sqrt(float(np.sum(masses * (losses - mean) ** 2)) / total)


def _candidate_points(sight: _PilotLaw, bulks: list[tuple[float, float]]) -> FloatArray:
    """Losses (nats) at every scale, and more about both ``bulks``, each a mean and a standard deviation of the loss."""
    largest = max(-sight.low, sight.high)
    smallest = 1e-3 * min(float(np.sum(sight.masses * np.abs(sight.losses))), largest)
    smallest = max(smallest, 1e-12 * largest)
    scales = np.geomspace(smallest, largest, max(20, math.ceil(5.0 * math.log(largest / smallest))))
    about = [mean + deviation * np.linspace(-9.0, 9.0, 55) for mean, deviation in bulks]
    points = np.unique(np.concatenate([-scales, scales, [0.0], *about]))
    inner = points[(points > sight.low) & (points < sight.high)]
    return np.concatenate([[sight.low], inner, [sight.high]])


def _choose_grid(sight: _PilotLaw, care: _GridCare) -> FloatArray:
    """Grid points in nats, about ``sqrt(p h / (8 E error))`` of them to each interval between candidates.

    ``h`` is the length of the interval, ``p`` its mass and ``E`` the excess there. A split to points at a distance
    ``s`` adds about ``(p / h) s^2 / 8`` to the excess, and that shall be ``error E``. Every grid is sound. Raises
    :class:`GridLimit` where losses are too large for that.
    """
    if sight.low == sight.high:
        return np.array([sight.low])
    others = sight.masses * np.exp(-sight.losses)
    bulks = [_mean_and_deviation(sight.losses, masses) for masses in (sight.masses, others)]
    points = _candidate_points(sight, bulks)
    masses = np.bincount(np.searchsorted(0.5 * (points[1:] + points[:-1]), sight.losses), sight.masses, len(points))
    # An interval between two lumps of the pilot is not empty.
    masses = np.maximum(masses, 0.25 * np.convolve(masses, np.ones(5))[2 : 2 + len(masses)])
    gap = np.clip(points[:, None] - points[None, :], -LARGEST_REACH, LARGEST_REACH)
    right = points >= 0.0
    fall, beyond = np.exp(-np.abs(gap)), np.where(right[:, None], gap < 0.0, gap > 0.0)
    weights = np.where(right[:, None], masses[None, :], (masses * np.exp(-points))[None, :])
    # 1e-300: least divisor where grid points are spaced. Speed only.
    excess = np.maximum(np.sum(weights * beyond * (1.0 - fall), axis=1), 1e-300)
    slope = np.sum(weights * beyond * fall, axis=1) / excess
    away = np.where(right, points - max(bulks[0][0], 0.0), min(bulks[1][0], 0.0) - points)
    # sqrt(p h / (8 error E)), and fewer points away from the bulk and where the excess is below the floor.
    # What overflows is limited to 40, or is no number and refused below.
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.sqrt(np.diagonal(weights) * np.gradient(points) / (8.0 * care.error * excess))
        wanted = wanted / np.sqrt(np.maximum(away * slope, 1.0)) * np.minimum(1.0, excess / care.floor) ** (1.0 / 8.0)
    wanted = np.minimum(wanted, 40.0) + 0.05
    count = np.concatenate([[0.0], np.cumsum(0.5 * (wanted[1:] + wanted[:-1]))])
    if not math.isfinite(count[-1]):
        raise GridLimit(f"expected a run whose losses stay below {LARGEST_REACH:g}, got larger ones; {REMEDY}")
    return np.interp(np.linspace(0.0, count[-1], 2 + int(min(count[-1], care.most))), count, points)


# --- products --------------------------------------------------------------------------------------


def _multiply_laws(one: LossPmf, two: LossPmf, care: _GridCare, *, below: bool = False) -> LossPmf:
    """A law that dominates both releases together or, with ``below``, one that they dominate (C23, "Products").

    Raises :class:`GridLimit` where losses reach :data:`LARGEST_REACH`.
    """
    if len(one.losses) and len(two.losses) and one.reach + two.reach >= LARGEST_REACH:
        # A square stays one.
        nearer = _without_far_atoms(one, below=below)
        one, two = nearer, nearer if one is two else _without_far_atoms(two, below=below)
    if not len(one.losses) or not len(two.losses):
        return one if not len(one.losses) else two
    reach = one.reach + two.reach
    if not reach < LARGEST_REACH:
        raise GridLimit(f"expected a run whose losses stay below {LARGEST_REACH:g}, got {reach:.3g}; {REMEDY}")
    unit, move = _unit_for(reach), merge_atoms if below else split_atoms
    if one is not two:
        one, two = (_fit_to_unit(law, unit, care, move) for law in (one, two))
    points = _choose_grid(_thin_product(one, two, CUT_MASS * care.depth), care)
    return move(_product_atoms(one, two, care.depth, below=below), _round_to_unit(points, unit), unit)


def _without_far_atoms(law: LossPmf, *, below: bool) -> LossPmf:
    """The law with the atoms beyond :data:`FARTHEST_LOSS` at infinity (iv) or, with ``below``, without them."""
    far = law.losses > FARTHEST_LOSS
    m, m_q = (0.0 if below else float(np.sum(x[far])) * INFINITE_PART_MARGIN for x in (law.masses, law.others))
    m, m_q = law.infinity_mass + m, law.infinity_mass_q + m_q
    return replace(law, losses=law.losses[~far], masses=law.masses[~far], infinity_mass=m, infinity_mass_q=m_q)


def _round_to_unit(points: FloatArray, unit: float) -> FloatArray:
    """The points moved to multiples of the unit (nats), the ends outward, increasing and distinct, 0 among them."""
    cells = np.rint(points / unit)
    cells[0], cells[-1] = math.floor(points[0] / unit), math.ceil(points[-1] / unit)
    return distinct_cells(np.append(cells, 0.0).astype(np.int64)) * unit


def _fit_to_unit(
    law: LossPmf, unit: float, care: _GridCare, move: Callable[[LossPmf, FloatArray, float], LossPmf]
) -> LossPmf:
    """The law, moved by ``move`` to a coarser unit where its own is too fine for exact sums (C23, "Rounding")."""
    if law.unit * 2.0 ** (52 - LOSS_BITS) >= unit or law is IDENTITY_LAW:
        return law
    points = _choose_grid(_thin_product(law, IDENTITY_LAW, CUT_MASS * care.depth), care)
    return move(law, _round_to_unit(points, unit), unit)


def _product_atoms(one: LossPmf, two: LossPmf, depth: float, *, below: bool) -> LossPmf:
    """The product of both laws, atom by atom and unsorted; laws from ``below`` have no infinite parts (C23)."""
    if one is two:
        i, j = np.triu_indices(len(one.losses))
        times = np.where(i == j, 1.0, 2.0)
    else:
        i, j = (x.ravel() for x in np.indices((len(one.losses), len(two.losses))))
        times = np.ones(len(i))
    # P-masses p_i p_j and Q-masses q_i q_j at x_i + x_j; in a square the pairs (i, j) and (j, i) together.
    masses, others = times * one.masses[i] * two.masses[j], times * one.others[i] * two.others[j]
    placed = ((masses > NEGLIGIBLE_MASS * depth) | (others > NEGLIGIBLE_MASS * depth)) & (masses > LEAST_PLACED_MASS)
    # m_1 (|P_2| + m_2) + |P_1| m_2, and (iv) negligible atoms, which from below are dropped.
    m = one.infinity_mass * (float(np.sum(two.masses)) + two.infinity_mass)
    m_q = one.infinity_mass_q * (float(np.sum(two.others)) + two.infinity_mass_q)
    m += float(np.sum(one.masses)) * two.infinity_mass + (0.0 if below else float(np.sum(masses[~placed])))
    m_q += float(np.sum(one.others)) * two.infinity_mass_q + (0.0 if below else float(np.sum(others[~placed])))
    losses, growth = one.losses[i[placed]] + two.losses[j[placed]], one.growth + two.growth
    m, m_q = m * INFINITE_PART_MARGIN, m_q * INFINITE_PART_MARGIN
    return LossPmf(losses, masses[placed], m, m_q, min(one.unit, two.unit), growth)


def split_atoms(law: LossPmf, points: FloatArray, unit: float) -> LossPmf:
    """A law on these points that dominates the given one: its atoms split between neighbours (C23, "Splitting").

    ``points`` are losses in nats, increasing multiples of ``unit``.
    """
    under, over = law.losses < points[0], law.losses >= points[-1]
    inside = ~(under | over)
    x, p = law.losses[inside], law.masses[inside]
    at = np.searchsorted(points, x, side="right") - 1
    gap = np.diff(points)
    masses = np.zeros(len(points))
    # (i) p_a = p expm1(b - x) / expm1(b - a)
    masses += np.bincount(at, p * (np.expm1(points[at + 1] - x) / np.expm1(gap)[at]), len(points))
    # (i) p_b = p expm1(a - x) / expm1(a - b)
    masses[1:] += np.bincount(at, p * (np.expm1(points[at] - x) / np.expm1(-gap)[at]), len(points))[:-1]
    far, near = points[-1] - law.losses[over], points[0] - law.losses[under]
    # (ii) Above the last point a: p e^(a - x) there and, below, p (1 - e^(a - x)) at +inf.
    masses[-1] += float(np.sum(law.masses[over] * np.exp(far)))
    # (iii) Below the first point b: p there, and Q-mass p (e^-x - e^-b) = e^-b p expm1(b - x) at -inf.
    masses[0] += float(np.sum(law.masses[under]))
    m = law.infinity_mass - float(np.sum(law.masses[over] * np.expm1(far)))
    m_q = law.infinity_mass_q + math.exp(-points[0]) * float(np.sum(law.masses[under] * np.expm1(near)))
    positive = masses > 0.0
    # Rounding (vi): of a placed mass, and of sums of N terms. Infinite parts get a margin, and what underflow can take.
    growth = law.growth + (SPLIT_ROUNDINGS + 2.0 * len(law.losses)) * UNIT_ROUNDING
    m, m_q = (float(end) * INFINITE_PART_MARGIN + UNDERFLOWN_MASS for end in (m, m_q))
    return LossPmf(points[positive], masses[positive], m, m_q, unit, growth)


def merge_atoms(law: LossPmf, points: FloatArray, unit: float) -> LossPmf:
    """A law that the given one dominates: all atoms from one point to the next made one, the rest dropped (C23).

    ``points`` are losses in nats, increasing multiples of ``unit``. It is for the remove order only.
    """
    inside = law.losses >= points[0]
    x, p = law.losses[inside], law.masses[inside]
    at = np.searchsorted(points, x, side="right") - 1
    # (v) x' = -ln(sum Q / sum P) = a - ln(1 + sum p expm1(a - x) / sum p), moved down by its rounding and to a unit.
    masses = np.bincount(at, p, len(points)).astype(float)
    fall = np.bincount(at, p * np.expm1(points[at] - x), len(points))
    positive = masses > 0.0
    error = (SPLIT_ROUNDINGS + 2.0 * len(x)) * UNIT_ROUNDING
    width = -np.log1p(np.maximum(fall[positive] / masses[positive], -1.0 + 1e-15))
    slack = 2.0 * unit + 4.0 * UNIT_ROUNDING * np.abs(points[positive]) + 4.0 * error * np.expm1(width)
    places = points[positive] + np.floor(np.maximum(width - slack, 0.0) / unit) * unit
    return LossPmf(places, masses[positive], 0.0, 0.0, unit, law.growth + error)


IDENTITY_LAW = LossPmf(np.zeros(1), np.ones(1), 0.0, 0.0, 1e-300)
"""The law of no release: all mass at loss 0, exactly, with a unit finer than every other. Soundness."""


def _compose_steps(law: LossPmf, steps: int, depth: float, *, below: bool = False) -> LossPmf:
    """A law that dominates ``steps`` releases of one law or, with ``below``, that they dominate: repeated squaring."""
    levels = steps.bit_length() + steps.bit_count() - 1
    error, (fewest, limit) = GRID_RELATIVE_ERROR / levels, GRID_POINT_LIMITS
    most = int(min(max(math.sqrt(MOST_ATOM_PRODUCTS / levels), fewest), limit))
    most = 2 * most // 3 if below else most

    def multiply(one: LossPmf, two: LossPmf, done: int) -> LossPmf:
        care = _GridCare(error, ROUGH_EXCESS * depth * min(1.0, done / steps), most, depth)
        return _multiply_laws(one, two, care, below=below)

    return repeat(multiply(law, IDENTITY_LAW, 1), steps, multiply)


def compose_laws(laws: list[tuple[LossPmf, int]], depth: float = 1.0, *, below: bool = False) -> LossPmf:
    """A law that dominates a run or, with ``below``, that the run dominates (C23).

    The phases of the run are given as the law of one release and its number of releases. ``depth`` says by what factor
    less mass is cut and neglected than for ordinary deltas. Raises :class:`GridLimit`
    where losses reach :data:`LARGEST_REACH`.
    """
    care = _GridCare(GRID_RELATIVE_ERROR / 4.0, ROUGH_EXCESS * depth, GRID_POINT_LIMITS[1], depth)
    composed = (_compose_steps(law, steps, depth, below=below) for law, steps in laws)
    return reduce(lambda one, two: _multiply_laws(one, two, care, below=below), composed)
