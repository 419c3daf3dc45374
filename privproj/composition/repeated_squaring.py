"""Compose runs by repeated squaring on adaptive grids of privacy losses (C23).

The method is for runs whose losses differ by orders of magnitude. If batches are sampled at a tiny rate, the loss of a
step is usually about as small as the rate, and very rarely ten orders of magnitude larger. No uniform grid resolves
both. In this module a loss distribution has a few hundred atoms, at the losses where they are needed.

A loss distribution is a pair of measures ``P`` and ``Q``, as in :mod:`privproj.composition.dominating_pairs`. After
each composition of two distributions, the atoms are moved to a grid. For an upper bound of delta, atoms are split
between neighboring grid points; for a lower bound, the atoms between two grid points are merged. Every grid gives valid
bounds.
"""

# **A distribution** is a pair of measures as in :mod:`privproj.composition.dominating_pairs`: ``P`` has masses ``p_j``
# at the losses ``x_j`` and a mass ``m`` at ``+inf``. ``Q`` has masses ``q_j = p_j e^-x_j`` and a mass ``m_q`` at
# ``-inf``. Its profile in ``t = e^eps >= 0`` is ``D(t) = m + sum_j p_j max(0, 1 - t e^-x_j)``. The profile of the add
# direction is ``m_q + sum_j q_j max(0, 1 - t e^x_j)``.
#
# **Product.** The composition of two releases has the atoms ``p_i p_j`` at ``x_i + x_j``. Each atom ``p`` at ``x`` is
# moved to a grid, in one of these ways:
#
# * (i) If it is between two neighboring grid points ``a <= x <= b``, it is split so that its ``P``-mass and its
#   ``Q``-mass do not change: ``p_a = p expm1(b - x) / expm1(b - a)`` and ``p_b = p expm1(a - x) / expm1(a - b)``.
# * (ii) If it is above the last grid point ``a``, the mass ``p e^(a - x)`` is moved to ``a``, and the rest of its
#   ``P``-mass to ``+inf``.
# * (iii) If it is below the first grid point ``b``, its ``P``-mass is moved to ``b``, and the rest ``p (e^-x - e^-b)``
#   of its ``Q``-mass to ``-inf``.
# * (iv) If it is negligible or its absolute loss is too large, its ``P``-mass is moved to ``+inf`` and its ``Q``-mass
#   to ``-inf``.
#
# Each atom is the sum of its parts, and ``(P, Q) -> sum (P - t Q)_+`` is subadditive. So ``D`` can only increase, for
# every ``t`` and in both directions. The profile of a product increases with its factors (C2). So on every grid the
# result dominates the composition of the releases. :func:`_choose_grid` places more points where a split would increase
# ``D`` much; the grid affects the accuracy only.
#
# **Lower bounds** (v). All atoms between two neighboring grid points are merged into one, with the sum of their
# ``P``-masses and the sum of their ``Q``-masses, at ``x' = -ln(sum Q / sum P)``. The loss ``x'`` is decreased by its
# rounding error, which only increases ``Q``. Atoms above the last point join the last group. Atoms below the first
# point and negligible atoms are dropped. By the same subadditivity ``D`` can only decrease. Lower bounds are computed
# in the remove direction only: delta is the maximum of both directions, so the result is a lower bound of delta.
#
# **Rounding** (vi). All losses are integer multiples of ``unit``, a power of two, and less than ``2^52`` units. So
# their sums and differences are exact. Masses are sums of positive terms. If each mass is accurate to a factor ``e^r``,
# so is ``D``, and in a product the ``r`` of both factors add up. ``growth`` is this ``r``. A computed delta is
# multiplied by ``e^growth`` for an upper bound, or by ``e^-growth`` for a lower bound.

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from privproj.composition.dominating_pairs import (
    REMEDY,
    ROUGH_EXCESS,
    SMALLEST_UPPER_BOUND,
    UNIT_ROUNDING,
    CoarseDescription,
    DominatingPair,
    ExcessBounds,
    FloatArray,
    distinct_cells,
    excess_bounds,
    repeat_by_squaring,
)
from privproj.composition.fourier import DeltaValue
from privproj.errors import GridSizeError
from privproj.numerics.root_finding import find_crossing

CUT_MASS = 1e-38  # mass beyond each end of the grid of a product, counted by (ii) and (iii)
NEGLIGIBLE_MASS = 1e-46  # atoms of a product below this in both masses are not placed, counted by (iv)
LARGEST_REACH = 350.0  # soundness: nats, limit of the absolute losses of a run; e^-loss is then far from overflow
FARTHEST_LOSS = 0.49 * LARGEST_REACH  # nats; a larger absolute loss counts as infinite if it would exceed the reach
LEAST_PLACED_MASS = 1e-290  # soundness: least P-mass of an atom on a grid; smaller ones may have lost digits
# soundness: mass added to m and to m_q for underflow: 1e-308 for each of 1e7 atoms, times e^350, is below 1e-148.
UNDERFLOWN_MASS = 1e-130
LOSS_BITS = 51  # soundness: losses are at most 2 to this power of units, so that a sum of two is exact
# soundness: units of rounding of one placed mass. Two expm1 of at most 4 units each and five operations need 13.
SPLIT_ROUNDINGS = 40.0
INFINITE_PART_MARGIN = 1.0 + 1e-9  # soundness: margin of m and m_q, which are sums of at most 1e7 positive terms
LEAST_PILOT_MASS = 1e-250  # least divisor of a mean in the rough product that determines a grid
GRID_RELATIVE_ERROR = 0.0005  # approximate relative error of delta that all grids of a run may cause together
MOST_ATOM_PRODUCTS = 8e6  # approximate number of atoms of all products of a run together, for usual deltas
GRID_POINT_LIMITS = (600, 1600)  # least and largest number of points of one grid
PILOT_ATOMS = 160  # atoms of each factor in the rough product that determines a grid
KNOT_LOSS_SHARE = 0.02  # largest spacing of the knots of one release, relative to the loss


@dataclass(frozen=True)
class LossPmf:
    """Two measures ``P`` and ``Q`` with atoms at arbitrary privacy losses (C23).

    In the remove direction ``P`` is for the dataset with the record, and ``Q`` for the dataset without it. The code
    that builds the pair guarantees either that it dominates a release, or that the release dominates it.
    """

    # losses ``x_j`` in nats, multiples of ``unit``; increasing, except in a product that is not yet on a grid
    losses: FloatArray

    masses: FloatArray  # the ``P``-masses ``p_j`` at these losses

    infinity_mass: float  # ``P``-mass at the loss ``+inf``

    infinity_mass_q: float  # ``Q``-mass at the loss ``-inf``

    unit: float  # a power of two, in nats; every loss is an integer multiple of it

    growth: float = 0.0  # each mass is accurate to a factor ``e^growth`` (C23, "Rounding")

    @cached_property
    def others(self) -> FloatArray:
        """The masses of ``Q`` at the privacy losses."""
        return self.masses * np.exp(-self.losses)

    @property
    def reach(self) -> float:
        """The largest absolute privacy loss in nats."""
        # at least one rounding unit of the losses
        return float(max(-self.losses[0], self.losses[-1], self.unit))

    def mirrored(self) -> "LossPmf":
        """Return the pair of measures for the opposite direction (add or remove)."""
        growth = self.growth + 8.0 * UNIT_ROUNDING
        return LossPmf(
            -self.losses[::-1], self.others[::-1], self.infinity_mass_q, self.infinity_mass, self.unit, growth
        )


class ComposedPmf:
    """An upper or lower bound of delta, computed from a composed loss distribution (C23).

    Rounding errors are included.

    Args:
        pmf: The composed distribution.
        above: True for an upper bound, False for a lower bound.
    """

    def __init__(self, pmf: LossPmf, *, above: bool = True) -> None:
        self.pmf = pmf
        # Rounding (vi): a factor e^growth from above, e^-growth from below.
        self.factor = math.exp(pmf.growth + 1e-12 if above else -pmf.growth - 1e-12)
        self.infinity_mass = pmf.infinity_mass * self.factor

    def delta(self, eps: float) -> DeltaValue:
        """Return the part of delta that is due to finite losses, at ``eps`` (nats)."""
        # The value includes its rounding error, so the ``error`` of the result is 0.
        # sum_(x_j > eps) p_j (1 - e^(eps - x_j))
        first = int(np.searchsorted(self.pmf.losses, eps, side="right"))
        masses, gap = self.pmf.masses[first:], eps - self.pmf.losses[first:]
        value = -float(np.sum(masses * np.expm1(gap))) * self.factor
        return DeltaValue(value, 0.0, -float(np.sum(masses * np.exp(gap))))

    def log_chernoff_bound(self, eps: float) -> float:
        """Return ``ln delta`` at ``eps`` (nats): the sum over all losses, not Chernoff's bound."""
        # the exact sum, which takes no longer than a Chernoff bound
        return math.log(max(self.delta(eps).value + self.infinity_mass, SMALLEST_UPPER_BOUND))

    def epsilon(self, delta: float, *, above: bool, near: float | None = None) -> float:
        """Return an upper or lower bound of ``eps(delta)`` in nats.

        Args:
            delta: A probability above 0.
            above: True for an upper bound, False for a lower bound.
            near: The start of the search in nats (None: the largest loss).
        """
        # approximately the least eps >= 0 at which the curve is at most delta (above), or the largest at which it is
        # above
        limit = math.log(delta) + (-1e-12 if above else 1e-12)
        if self.log_chernoff_bound(0.0) <= limit:
            return 0.0
        ends = {"low": 1e-300, "high": float(np.max(self.pmf.losses, initial=1e-300)), "rtol": 1e-13}
        crossing = find_crossing(lambda eps: self.log_chernoff_bound(eps) - limit, near or ends["high"], **ends)
        return crossing.upper if above else crossing.lower


# --- one release -----------------------------------------------------------------------------------


def adaptive_bounds(step: CoarseDescription) -> ExcessBounds:
    """Return bounds of delta minus ``max(0, 1 - e^eps)`` at adaptively spaced epsilons (C18).

    The bounds are for a sampled release, in the remove direction.
    """
    # The distance of two losses at which the profile is evaluated is a share of the loss, or of the length over which
    # the excess falls by a factor e.
    unit = _unit_for(max(-step.losses[0], step.losses[-1]))
    losses, log_excess = step.losses, step.log_excess
    middle, width = np.abs(0.5 * (losses[1:] + losses[:-1])), np.diff(losses)
    decay = width / np.maximum(np.abs(np.diff(log_excess)), 1e-9)
    smallest = 0.1 * math.exp(float(log_excess.max()))
    coarser = max(1.0, 40.0 / step.profile.resolution)
    # 0.1: largest spacing as a share of the decay length
    spacing = np.minimum(
        coarser * np.minimum(KNOT_LOSS_SHARE * np.maximum(middle, smallest), 0.1 * decay), step.widest_gap
    )
    rough = log_excess[:-1] < log_excess.max() + math.log(step.rough_excess / step.run.steps)
    count = np.concatenate([[0.0], np.cumsum(width / np.where(rough, 4.0 * spacing, spacing))])
    at = np.interp(np.linspace(0.0, count[-1], math.ceil(count[-1]) + 2), count, losses)
    if step.needs_both_directions:
        # The first knot is just below the smallest loss of the support, so that no mass is lost there.
        at[0] = (1.0 + 1e-12) * losses[0] - unit
    # Beyond FARTHEST_LOSS products would exceed LARGEST_REACH.
    at = np.clip(at[np.abs(at) > 0.5 * KNOT_LOSS_SHARE * smallest], -FARTHEST_LOSS, FARTHEST_LOSS)
    knots = distinct_cells(np.append(np.rint(at / unit), 0.0).astype(np.int64))
    return excess_bounds(step.profile, step.run, knots, unit)


def pmf_from_pair(pair: DominatingPair, sign: float) -> LossPmf:
    """Return a pair of measures on a uniform grid as a loss distribution with atoms.

    ``sign`` is 1 if the pair dominates a release, and -1 if the release dominates the pair.
    """
    # the absolute error of cell 0 is added or subtracted
    masses = np.maximum(pair.masses + np.where(pair.cells == 0, sign * pair.rounding, 0.0), 0.0)
    positive = masses > 0.0
    losses = pair.step * pair.cells[positive]
    return LossPmf(losses, masses[positive], pair.infinity_mass, pair.infinity_mass_q, pair.step, pair.rounding)


def _unit_for(reach: float) -> float:
    """Return a rounding unit in nats, so that ``reach`` (nats) is at most ``2^LOSS_BITS`` units."""
    return 2.0 ** (math.ceil(math.log2(reach)) - LOSS_BITS)


# --- the grid: every grid gives valid bounds --------------------------------------------------------


@dataclass(frozen=True)
class _GridTolerance:
    """The accuracy of a grid of privacy losses; bounds are valid for any value."""

    error: float  # approximate relative error of the excess that the grid may cause

    floor: float  # excess below which the grid may be coarser

    most: int  # largest number of points

    tail_scale: float = 1.0  # factor of the masses that count as negligible; below 1 for small deltas


def _choose_grid(one: LossPmf, two: LossPmf, tolerance: _GridTolerance) -> FloatArray:
    """Return grid points in nats for the composition of two loss distributions.

    Every grid gives valid bounds.

    Raises:
        GridSizeError: The losses are too large.
    """
    # Candidate points divide the losses into intervals. An interval of length h with the mass p and the excess E gets
    # about sqrt(p h / (8 E error)) points, with the error of the tolerance. Then splitting atoms increases the excess
    # by about error E. p and E are estimates from a rough composition with few atoms.

    # At most PILOT_ATOMS groups of neighboring atoms: their mean loss, mass, least loss and largest loss.
    def group_atoms(pmf: LossPmf) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        count = len(pmf.losses)
        starts = np.unique(np.linspace(0, count, min(PILOT_ATOMS, count), endpoint=False).astype(int))
        group = np.maximum(np.add.reduceat(pmf.masses, starts), LEAST_PILOT_MASS)
        first, last = pmf.losses[starts], pmf.losses[np.append(starts[1:], count) - 1]
        return np.clip(np.add.reduceat(pmf.masses * pmf.losses, starts) / group, first, last), group, first, last

    # The product of the groups. About the Q-mass CUT_MASS is below low, and about the P-mass CUT_MASS is above high.
    ours = group_atoms(one)
    theirs = ours if one is two else group_atoms(two)
    mass = np.outer(ours[1], theirs[1]).ravel()
    losses, first, last = (np.add.outer(ours[i], theirs[i]).ravel() for i in (0, 2, 3))
    ordered = np.argsort(losses)
    losses, mass, first, last = (x[ordered] for x in (losses, mass, first, last))
    cut = CUT_MASS * tolerance.tail_scale
    low = first[min(int(np.searchsorted(np.cumsum(mass * np.exp(-first)), cut)), len(first) - 1)]
    high = last[max(len(last) - 1 - int(np.searchsorted(np.cumsum(mass[::-1]), cut)), 0)]
    if not low < high:
        low, high = first[0], last[-1]
    losses, low, high = np.clip(losses, low, high), float(low), float(high)
    if low == high:
        return np.array([low])

    # Candidates: losses of every order of magnitude, and more near the means under P and under Q.
    about: list[tuple[float, float]] = []
    for weights in (mass, mass * np.exp(-losses)):
        total = float(np.sum(weights))
        mean = float(np.sum(weights * losses)) / total
        about.append((mean, math.sqrt(float(np.sum(weights * (losses - mean) ** 2)) / total)))
    largest = max(-low, high)
    smallest = 1e-3 * min(float(np.sum(mass * np.abs(losses))), largest)
    smallest = max(smallest, 1e-12 * largest)
    scales = np.geomspace(smallest, largest, max(20, math.ceil(5.0 * math.log(largest / smallest))))
    near = [mean + deviation * np.linspace(-9.0, 9.0, 55) for mean, deviation in about]
    points = np.unique(np.concatenate([-scales, scales, [0.0], *near]))
    points = np.concatenate([[low], points[(points > low) & (points < high)], [high]])

    masses = np.bincount(np.searchsorted(0.5 * (points[1:] + points[:-1]), losses), mass, len(points))
    # The rough product has few atoms. An interval between two of them is not empty, so it gets a part of their mass.
    masses = np.maximum(masses, 0.25 * np.convolve(masses, np.ones(5))[2 : 2 + len(masses)])
    gap = np.clip(points[:, None] - points[None, :], -LARGEST_REACH, LARGEST_REACH)
    right = points >= 0.0
    fall, beyond = np.exp(-np.abs(gap)), np.where(right[:, None], gap < 0.0, gap > 0.0)
    weights = np.where(right[:, None], masses[None, :], (masses * np.exp(-points))[None, :])
    excess = np.maximum(np.sum(weights * beyond * (1.0 - fall), axis=1), 1e-300)  # 1e-300: least divisor
    slope = np.sum(weights * beyond * fall, axis=1) / excess
    away = np.where(right, points - max(about[0][0], 0.0), min(about[1][0], 0.0) - points)
    # sqrt(p h / (8 error E)), and fewer points away from the bulk and where the excess is below the floor. A value
    # that overflows is limited to 40, or is nan and raises below.
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = np.sqrt(np.diagonal(weights) * np.gradient(points) / (8.0 * tolerance.error * excess))
        wanted = wanted / np.sqrt(np.maximum(away * slope, 1.0))
        wanted = wanted * np.minimum(1.0, excess / tolerance.floor) ** (1.0 / 8.0)
    wanted = np.minimum(wanted, 40.0) + 0.05
    count = np.concatenate([[0.0], np.cumsum(0.5 * (wanted[1:] + wanted[:-1]))])
    if not math.isfinite(count[-1]):
        raise GridSizeError(f"the privacy losses of this run exceed {LARGEST_REACH:g}. {REMEDY}")
    return np.interp(np.linspace(0.0, count[-1], 2 + int(min(count[-1], tolerance.most))), count, points)


# --- products --------------------------------------------------------------------------------------


def _multiply(one: LossPmf, two: LossPmf, tolerance: _GridTolerance, *, below: bool = False) -> LossPmf:
    """Return a loss distribution that dominates the composition of two (C23, "Products").

    If ``below`` is True, the composition dominates the result instead.
    """
    if len(one.losses) and len(two.losses) and one.reach + two.reach >= LARGEST_REACH:
        # If both factors are the same object, they remain so: squares are cheaper.
        nearer = _without_far_atoms(one, below=below)
        one, two = nearer, nearer if one is two else _without_far_atoms(two, below=below)
    if not len(one.losses) or not len(two.losses):
        return one if not len(one.losses) else two
    reach = one.reach + two.reach
    if not reach < LARGEST_REACH:
        raise GridSizeError(f"the privacy losses of this run reach {reach:.3g}, more than {LARGEST_REACH:g}. {REMEDY}")
    unit, move = _unit_for(reach), merge_atoms if below else split_atoms
    if one is not two:
        one, two = (_fit_to_unit(pmf, unit, tolerance, move) for pmf in (one, two))
    points = _choose_grid(one, two, tolerance)
    return move(_product_atoms(one, two, tolerance.tail_scale, below=below), _round_to_unit(points, unit), unit)


def _without_far_atoms(pmf: LossPmf, *, below: bool) -> LossPmf:
    """Return the loss distribution without atoms beyond :data:`FARTHEST_LOSS`.

    Their masses are moved to infinite losses, or dropped if ``below`` is True.
    """
    far = np.abs(pmf.losses) > FARTHEST_LOSS
    m, m_q = (0.0 if below else float(np.sum(x[far])) * INFINITE_PART_MARGIN for x in (pmf.masses, pmf.others))
    m, m_q = pmf.infinity_mass + m, pmf.infinity_mass_q + m_q
    return replace(pmf, losses=pmf.losses[~far], masses=pmf.masses[~far], infinity_mass=m, infinity_mass_q=m_q)


def _round_to_unit(points: FloatArray, unit: float) -> FloatArray:
    """Return losses in nats, rounded to distinct multiples of a unit; the loss 0 is added."""
    # The first loss is rounded down, and the last one up.
    cells = np.rint(points / unit)
    cells[0], cells[-1] = math.floor(points[0] / unit), math.ceil(points[-1] / unit)
    return distinct_cells(np.append(cells, 0.0).astype(np.int64)) * unit


def _fit_to_unit(
    pmf: LossPmf, unit: float, tolerance: _GridTolerance, move: Callable[[LossPmf, FloatArray, float], LossPmf]
) -> LossPmf:
    """Return the loss distribution with losses that are multiples of a coarser unit.

    Args:
        pmf: The loss distribution; it is returned unchanged if its unit is coarse enough.
        unit: The coarser unit, a power of two in nats.
        tolerance: The accuracy of the grid to which atoms are moved.
        move: :func:`split_atoms` or :func:`merge_atoms`.
    """
    # With too fine a unit, sums of losses would not be exact (C23, "Rounding").
    if pmf.unit * 2.0 ** (52 - LOSS_BITS) >= unit or pmf is IDENTITY_PMF:
        return pmf
    return move(pmf, _round_to_unit(_choose_grid(pmf, IDENTITY_PMF, tolerance), unit), unit)


def _product_atoms(one: LossPmf, two: LossPmf, tail_scale: float, *, below: bool) -> LossPmf:
    """Return the unsorted atoms of the composition of two loss distributions (C23).

    Negligible atoms are moved to infinite losses or, if ``below`` is True, dropped.
    """
    if one is two:
        i, j = np.triu_indices(len(one.losses))
        times = np.where(i == j, 1.0, 2.0)
    else:
        i, j = (x.ravel() for x in np.indices((len(one.losses), len(two.losses))))
        times = np.ones(len(i))
    # P-masses p_i p_j and Q-masses q_i q_j at x_i + x_j. In a square the pairs (i, j) and (j, i) are one atom.
    masses, others = times * one.masses[i] * two.masses[j], times * one.others[i] * two.others[j]
    negligible = NEGLIGIBLE_MASS * tail_scale
    placed = ((masses > negligible) | (others > negligible)) & (masses > LEAST_PLACED_MASS)
    # m_1 (|P_2| + m_2) + |P_1| m_2, and (iv) negligible atoms, which are dropped from a lower bound.
    m = one.infinity_mass * (float(np.sum(two.masses)) + two.infinity_mass)
    m_q = one.infinity_mass_q * (float(np.sum(two.others)) + two.infinity_mass_q)
    m += float(np.sum(one.masses)) * two.infinity_mass + (0.0 if below else float(np.sum(masses[~placed])))
    m_q += float(np.sum(one.others)) * two.infinity_mass_q + (0.0 if below else float(np.sum(others[~placed])))
    losses, growth = one.losses[i[placed]] + two.losses[j[placed]], one.growth + two.growth
    m, m_q = m * INFINITE_PART_MARGIN, m_q * INFINITE_PART_MARGIN
    return LossPmf(losses, masses[placed], m, m_q, min(one.unit, two.unit), growth)


def split_atoms(pmf: LossPmf, points: FloatArray, unit: float) -> LossPmf:
    """Return a loss distribution on given points that dominates ``pmf`` (C23, "Splitting").

    Args:
        pmf: The loss distribution; its atoms may be unsorted.
        points: Losses in nats, increasing multiples of ``unit``.
        unit: A power of two, in nats.
    """
    under, over = pmf.losses < points[0], pmf.losses >= points[-1]
    inside = ~(under | over)
    x, p = pmf.losses[inside], pmf.masses[inside]
    at = np.searchsorted(points, x, side="right") - 1
    gap = np.diff(points)
    masses = np.zeros(len(points))
    # (i) p_a = p expm1(b - x) / expm1(b - a)
    masses += np.bincount(at, p * (np.expm1(points[at + 1] - x) / np.expm1(gap)[at]), len(points))
    # (i) p_b = p expm1(a - x) / expm1(a - b)
    masses[1:] += np.bincount(at, p * (np.expm1(points[at] - x) / np.expm1(-gap)[at]), len(points))[:-1]
    far, near = points[-1] - pmf.losses[over], points[0] - pmf.losses[under]
    # (ii) Above the last point a: p e^(a - x) there and, below, p (1 - e^(a - x)) at +inf.
    masses[-1] += float(np.sum(pmf.masses[over] * np.exp(far)))
    # (iii) Below the first point b: p there, and Q-mass p (e^-x - e^-b) = e^-b p expm1(b - x) at -inf.
    masses[0] += float(np.sum(pmf.masses[under]))
    m = pmf.infinity_mass - float(np.sum(pmf.masses[over] * np.expm1(far)))
    m_q = pmf.infinity_mass_q + math.exp(-points[0]) * float(np.sum(pmf.masses[under] * np.expm1(near)))
    positive = masses > 0.0
    # Rounding (vi) of a placed mass, and of sums of N terms. Infinite parts get a margin, and a mass for underflow is
    # added to them.
    growth = pmf.growth + (SPLIT_ROUNDINGS + 2.0 * len(pmf.losses)) * UNIT_ROUNDING
    m, m_q = (float(end) * INFINITE_PART_MARGIN + UNDERFLOWN_MASS for end in (m, m_q))
    return LossPmf(points[positive], masses[positive], m, m_q, unit, growth)


def merge_atoms(pmf: LossPmf, points: FloatArray, unit: float) -> LossPmf:
    """Return a loss distribution that ``pmf`` dominates in the remove direction (C23).

    Args:
        pmf: The loss distribution; its atoms may be unsorted.
        points: Losses in nats, increasing multiples of ``unit``.
        unit: A power of two, in nats.
    """
    # Atoms between two points are merged, and atoms below the first point are dropped.
    inside = pmf.losses >= points[0]
    x, p = pmf.losses[inside], pmf.masses[inside]
    at = np.searchsorted(points, x, side="right") - 1
    # (v) x' = -ln(sum Q / sum P) = a - ln(1 + sum p expm1(a - x) / sum p), moved down by its rounding and to a unit.
    masses = np.bincount(at, p, len(points)).astype(float)
    fall = np.bincount(at, p * np.expm1(points[at] - x), len(points))
    positive = masses > 0.0
    error = (SPLIT_ROUNDINGS + 2.0 * len(x)) * UNIT_ROUNDING
    width = -np.log1p(np.maximum(fall[positive] / masses[positive], -1.0 + 1e-15))
    slack = 2.0 * unit + 4.0 * UNIT_ROUNDING * np.abs(points[positive]) + 4.0 * error * np.expm1(width)
    places = points[positive] + np.floor(np.maximum(width - slack, 0.0) / unit) * unit
    return LossPmf(places, masses[positive], 0.0, 0.0, unit, pmf.growth + error)


# soundness: the exact distribution of no release: all mass is at loss 0, with a unit finer than every other unit
IDENTITY_PMF = LossPmf(np.zeros(1), np.ones(1), 0.0, 0.0, 1e-300)


def compose_pmfs(
    pmfs: list[tuple[LossPmf, int]],
    tail_scale: float = 1.0,
    rough_excess: float = ROUGH_EXCESS,
    *,
    below: bool = False,
) -> LossPmf:
    """Return a loss distribution that dominates a run of several phases (C23).

    Args:
        pmfs: The loss distribution of one release of each phase, and its number of releases.
        tail_scale: The factor of the masses that count as negligible; below 1 for small deltas.
        rough_excess: The delta of the run below which grids may be rougher.
        below: If True, return a distribution that the run dominates instead.

    Raises:
        GridSizeError: Losses reach :data:`LARGEST_REACH`.
    """

    def compose_steps(pmf: LossPmf, steps: int) -> LossPmf:
        levels = steps.bit_length() + steps.bit_count() - 1
        error, (fewest, limit) = GRID_RELATIVE_ERROR / levels, GRID_POINT_LIMITS
        # The number of products grows with the powers of ten between 1 and the rough excess.
        products = MOST_ATOM_PRODUCTS * max(math.log(rough_excess) / math.log(ROUGH_EXCESS), 1.0)
        most = int(min(max(math.sqrt(products / levels), fewest), limit))
        most = 2 * most // 3 if below else most

        def multiply(one: LossPmf, two: LossPmf, done: int) -> LossPmf:
            floor = rough_excess * min(1.0, done / steps)
            return _multiply(one, two, _GridTolerance(error, floor, most, tail_scale), below=below)

        return repeat_by_squaring(multiply(pmf, IDENTITY_PMF, 1), steps, multiply)

    tolerance = _GridTolerance(GRID_RELATIVE_ERROR / 4.0, rough_excess, GRID_POINT_LIMITS[1], tail_scale)
    composed = (compose_steps(pmf, steps) for pmf, steps in pmfs)
    return reduce(lambda one, two: _multiply(one, two, tolerance, below=below), composed)
