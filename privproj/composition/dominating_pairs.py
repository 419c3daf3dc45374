"""Bound a release by two discrete pairs of measures: one dominates it, and it dominates the other (C18).

A pair of measures on a uniform grid of privacy losses has a privacy profile. The pair dominates a release if its
profile is at least that of the release at every epsilon, negative ones included. Adaptive composition preserves
domination (C2), so the composed pairs bound a run from above and from below.

All bounds are computed for delta minus ``max(0, 1 - e^eps)`` (the *excess*), which avoids cancellation. The profile of
a release is evaluated at some grid points (*knots*). A polygon through these values bounds the excess, and the changes
of its slope determine the masses of the pair.
"""

# **Domination** (C2). Write ``t = e^eps``. Let ``(P, Q)`` be a pair of non-negative measures on the losses ``j h``
# (``j`` an integer, ``h`` the grid step). ``P`` has the masses ``p_j``, and the mass ``m`` at ``+inf``. ``Q`` has the
# masses ``p_j / t_j`` with ``t_j = e^(j h)``. The profile of the pair is ``D(t) = m + sum over t_j > t of p_j (1 - t /
# t_j)``. The pair dominates a release with the profile ``delta`` if ``D(t) >= delta(t)`` for **every** ``t >= 0``.
# Adaptive composition preserves domination, even if the measures are not normalized: the profile of two releases is
# ``int P2(dy) D_1(t e^-loss(y))``, which increases if one of both pairs is replaced by a pair that dominates it. The
# same with ``<=`` gives lower bounds.
#
# **The excess** is ``E(t) = delta(t) - max(0, 1 - t)``. It can be computed without cancellation. A profile that is the
# same in the add and remove directions has ``E(1/t) = E(t) / t`` (C1). Sampling at rate ``q`` maps ``t`` to ``1 + q (t
# - 1)`` and ``E`` to ``q E`` (C17; Balle, Barthe, Gaboardi 2018). For Poisson sampling this holds in the remove
# direction. For a fixed batch size it holds for ``t >= 1``, and ``E(1/t) = E(t) / t`` gives the other values. With
# ``tau = expm1(j h) / q``, the excess of a sampled step at the loss ``j h`` is
#
#     E = q delta(log1p(tau))               if tau >= 0
#     E = q (1 + tau) delta(-log1p(tau))    if -1 < tau < 0
#     E = 0                                 if tau <= -1.
#
# **A dominating pair** (:func:`pair_above`, C18). The profile is evaluated at *knots*: some of the grid points,
# including 0. At each knot an upper bound of ``delta`` is known. Because ``delta`` is convex in ``t``, the chords
# between these bounds are upper bounds too. Left of the first knot, the line to the point ``(t, delta) = (0, 1)`` is an
# upper bound. Right of the last knot, the last value is an upper bound.
#
# **A dominated pair** (:func:`pair_below`, C18). The line through two points of a convex function lies below the
# function outside the interval between them. So two lines bound ``delta`` from below between the knots ``i`` and ``i +
# 2``. Each line goes through the lower bound at ``i + 1`` and the upper bound at ``i`` or ``i + 2``. The segment that
# joins their values at ``i`` and ``i + 2`` lies below both lines, because they form a concave kink at ``i + 1``. If two
# segments meet at a knot, the smaller value is used. Beyond the first segment that is not positive at both ends, the
# lower bound of ``E`` is 0.
#
# **From a polygon to masses** (:func:`_scale_polygon`, C18). The lower convex hull of the polygon is the profile of a
# pair, and the changes of its slope determine the masses. Floating-point masses are only approximate, so they are
# corrected. With ``dt_l = t_(l+1) - t_l`` the excess of a pair at the knot ``i`` is
#
#     m + F_i,       F_i = sum_(l >= i) dt_l  sum_(j > l)  p_j / t_j    for t_i >= 1,
#     t_i m_q + G_i, G_i = sum_(l <  i) dt_l  sum_(j <= l) p_j / t_j    for t_i <= 1,
#
# where ``m_q`` is the ``Q``-mass at the loss ``-inf``. These sums have positive terms only, and a relative error of at
# most :data:`NESTED_SUM_RELATIVE_ERROR`. Three steps make the pair a valid bound:
#
# 1. Masses at positive losses are multiplied by a factor ``kappa``, and masses at negative losses by ``c = (kappa F_0 +
#    m - m_q) / G_0``. Then both formulas agree at ``t = 1``.
# 2. ``kappa`` is chosen so that the excess of the pair is at or above the polygon at every knot (at or below it for the
#    dominated pair). Between knots both are linear.
# 3. ``p_0 = 1 - m - sum of the other masses`` completes ``P``. If this is negative, the dominating pair uses ``p_0 =
#    0``, which only increases its profile. The dominated pair does not exist then.
#
# The proof holds for the pair with the exact ``c`` and ``p_0``. The field ``rounding`` bounds the difference between
# the computed and these exact masses; :mod:`privproj.composition.fourier` and
# :mod:`privproj.composition.repeated_squaring` account for it.

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privproj.errors import GridSizeError, PrecisionError
from privproj.profiles.privacy_profile import PrivacyProfile, TwoSidedTable
from privproj.run import Run

FloatArray = NDArray[np.floating[Any]]  # array of floats

Cells = NDArray[np.int64]  # losses of grid points as integer multiples of the grid step

TRUNCATED_RUN_MASS = 1e-36  # mass of the truncated tails of all steps together, which is added to delta
ROUGH_EXCESS = 1e-13  # excess of a whole run below which adaptive grids may be rougher, for usual deltas
REMEDY = "Use a larger delta, more noise, or a Renyi bound (m2: mixture-rdp, gaussian: rdp)."
# soundness: nats; a larger loss of one unsampled step counts as infinite. Every value is valid for which e^loss does
# not overflow.
LARGEST_LOSS = 600.0
MOST_MASS_BEYOND = 0.5  # largest probability of a loss beyond LARGEST_LOSS; a step with more is not supported
# Nats. A floor of the profile is searched only where ln E is at most this far above its value at the truncation. A
# floor is a range of losses where the excess E is nearly constant, for example because a bound adds a constant: ln E
# decreases less than half as fast as before. The mass of a floor counts as infinite loss.
PLATEAU_NATS = math.log(1e8)
# Nats, largest distance of two knots for profiles with a high resolution. In a tail that decreases slowly, the lower
# bounds would otherwise be 0 a few nats from a knot, because they are linear in e^loss.
WIDEST_KNOT_GAP = 0.5
SMALLEST_UPPER_BOUND = 1e-300  # soundness: replaces smaller upper bounds of a delta, and smaller divisors
# soundness: least sampling rate on a grid. It replaces a smaller rate, at which masses would underflow. A larger rate
# has a larger delta (C17), so this is valid for upper bounds only. Even 1e8 steps at this rate have a delta below the
# range of the first tail-truncation level, and the later levels use the exact rate.
LEAST_GRID_RATE = 1e-30
MOST_GRID_CELLS = 2.0**62  # cells to either side of loss 0: they are counted in 64 bits
# soundness: least 1 + tau at which lower bounds come from the profile; nearer to the end of the support they are 0.
# SAMPLING_MAP_RELATIVE_ERROR depends on it.
LEAST_SAMPLED_SHARE = 1e-3
UNIT_ROUNDING = 2.0**-53  # soundness: unit of rounding of a double
# soundness: relative error of two nested cumulative sums of at most 2e4 positive terms, each of a dozen roundings. With
# more terms it grows in proportion: _scale_polygon uses 5 units of rounding for each term if that is more.
NESTED_SUM_RELATIVE_ERROR = 1e-11
# soundness: relative error that the sampling map causes in delta (C18), if 1 + tau is at least 1. A tenth of it is
# divided by a smaller 1 + tau.
SAMPLING_MAP_RELATIVE_ERROR = 1e-11


@dataclass(frozen=True)
class DominatingPair:
    """Two measures ``P`` and ``Q`` on a uniform grid of privacy losses (C18).

    In the remove direction ``P`` is for the dataset with the record, and ``Q`` for the dataset without it. The code
    that builds the pair guarantees either that it dominates a release, or that the release dominates it.
    """

    cells: Cells  # losses as integer multiples of ``step``, in increasing order

    masses: FloatArray  # the ``P``-mass at each of these losses; the ``Q``-mass is ``e^-loss`` times the ``P``-mass

    step: float  # distance of two grid points, in nats

    infinity_mass: float  # ``P``-mass at the loss ``+inf``

    infinity_mass_q: float  # ``Q``-mass at the loss ``-inf``

    # bound of the relative error of every mass; for cell 0 it bounds the absolute error instead
    rounding: float

    @property
    def losses(self) -> FloatArray:
        """The privacy losses of the grid points, in nats."""
        return self.step * self.cells

    @property
    def log_size(self) -> float:
        """An upper bound of ``ln max(1, |P|)``, where ``|P|`` is the total mass of ``P``."""
        # |P| may exceed 1 only if the mass at the loss 0 was set to 0.
        if float(self.masses[np.searchsorted(self.cells, 0)]) > self.rounding:
            return 0.0
        return math.log(max(1.0, float(self.masses.sum()) + self.infinity_mass)) + 2.0 * self.rounding

    def mirrored(self) -> "DominatingPair":
        """Return the pair of measures for the opposite direction (add or remove)."""
        # Q-masses p_j e^(-j h) at the losses -j h. Each is off by 2 u (4 + |j h|) more.
        masses = (self.masses * np.exp(-self.step * self.cells))[::-1]
        error = 2.0 * UNIT_ROUNDING * (4.0 + self.step * float(np.max(np.abs(self.cells))))
        return DominatingPair(
            -self.cells[::-1], masses, self.step, self.infinity_mass_q, self.infinity_mass, self.rounding + error
        )


Distribution = TypeVar("Distribution")


def repeat_by_squaring(
    first: Distribution, count: int, compose: Callable[[Distribution, Distribution, int], Distribution]
) -> Distribution:
    """Return the composition of ``count`` equal releases, by repeated squaring.

    Args:
        first: The distribution of one release.
        count: The number of releases, at least 1.
        compose: A function of two distributions and their total number of releases that returns their composition.
    """
    composed, done = first, 1
    for bit in bin(count)[3:]:
        composed, done = compose(composed, composed, 2 * done), 2 * done
        if bit == "1":
            composed, done = compose(composed, first, done + 1), done + 1
    return composed


# --- one step, before the grid is chosen ------------------------------------------------------------


@dataclass(frozen=True)
class CoarseDescription:
    """A sampled release, with a rough distribution of its privacy loss (remove direction).

    The distribution determines at which losses the privacy profile is evaluated. Any losses give valid bounds.
    """

    profile: PrivacyProfile  # privacy profile of the release

    run: Run  # sampling of the batches, and the number of releases

    losses: FloatArray  # some losses in nats, increasing

    log_excess: FloatArray  # ``ln E`` at these losses, with ``E(t) = delta(t) - max(0, 1 - t)``, ``t = e^loss``

    deviation: float  # standard deviation of the loss, in nats

    truncated_mass: float  # total mass of the tails that are truncated in all steps, which is added to delta

    rough_excess: float  # excess of a whole run below which repeated squaring may be rougher

    @property
    def span(self) -> float:
        """The difference of the largest and the smallest loss of the rough distribution, in nats."""
        return float(self.losses[-1] - self.losses[0])

    @property
    def widest_gap(self) -> float:
        """The largest distance of two losses at which the profile is evaluated, in nats."""
        # inf for profiles with a low resolution
        return WIDEST_KNOT_GAP if self.profile.resolution >= 32.0 else math.inf

    @property
    def needs_both_directions(self) -> bool:
        """True if the add direction of a step differs from the remove direction."""
        return needs_both_directions(self.profile, self.run)

    def pairs(self, step: float) -> "ExcessBounds":
        """Return bounds of delta minus ``max(0, 1 - e^eps)`` for one sampled step (C18).

        The bounds are for the remove direction, and valid if the profile is valid. ``step`` is the distance of two grid
        points in nats.
        """
        # If the sampled pair is symmetric, the bounds hold in the add direction too.
        resolution = self.profile.resolution * (4.0 if step < 0.99 * self.deviation / self.profile.resolution else 1.0)
        return excess_bounds(self.profile, self.run, self.knots(step, resolution), step)

    def knots(self, step: float, resolution: float) -> Cells:
        """Return the grid points at which the profile is evaluated, as multiples of ``step``.

        Any choice gives valid bounds.

        Args:
            step: The distance of two grid points in nats.
            resolution: The number of evaluations for one standard deviation of the loss.

        Raises:
            GridSizeError: The grid has more than :data:`MOST_GRID_CELLS` points.
        """
        # Beyond eight standard deviations there are fewer evaluations.
        if not (count := max(-self.losses[0], self.losses[-1]) / step) < MOST_GRID_CELLS:
            raise GridSizeError(
                f"the discretization grid needs {count:.2g} cells, more than {MOST_GRID_CELLS:.2g}. {REMEDY}"
            )
        core = max(step, self.deviation / resolution)
        middle = 0.5 * (self.losses[1:] + self.losses[:-1])
        decay = np.diff(self.losses) / np.maximum(np.abs(np.diff(self.log_excess)), 1e-9)
        # Beyond the core the distance of the knots is a fraction of the length in which the excess falls by a factor e.
        wide = np.minimum(max(0.04, 4.0 / resolution) * decay, self.widest_gap)
        # 8: standard deviations of the loss to both sides of the core, where knots are equally spaced
        spacing = np.maximum(np.where(np.abs(middle) < 8.0 * self.deviation, core, wide), core)
        places = np.concatenate([[0.0], np.cumsum(np.diff(self.losses) / spacing)])
        at = np.interp(np.arange(math.floor(places[-1]) + 1), places, self.losses)
        always = [math.floor(self.losses[0] / step), -1, 0, 1, math.ceil(self.losses[-1] / step)]
        return distinct_cells(np.concatenate([np.rint(at / step), always]).astype(np.int64))


def distinct_cells(cells: Cells) -> Cells:
    """Return the distinct grid points in increasing order."""
    ordered = np.sort(cells)
    return ordered[np.concatenate([[True], ordered[1:] > ordered[:-1]])]


def _read_table(
    table: Callable[[Any], tuple[FloatArray, FloatArray]], at: Any
) -> tuple[Callable[[], FloatArray], FloatArray]:
    """Return lower bounds (as a function) and upper bounds of a tabulated privacy profile.

    ``at`` are the epsilons at which ``table`` is evaluated.
    """
    # Upper bounds are at least 1e-300.
    if isinstance(table, TwoSidedTable):
        return partial(table.below, at), np.maximum(table.above(at), SMALLEST_UPPER_BOUND)
    lower, upper = table(at)
    return lambda: lower, np.maximum(upper, SMALLEST_UPPER_BOUND)


def delta_bounds(profile: PrivacyProfile, eps: FloatArray) -> tuple[Callable[[], FloatArray], FloatArray]:
    """Return lower bounds (as a function without arguments) and upper bounds of delta.

    Args:
        profile: A privacy profile.
        eps: Epsilons in nats, at least 0.
    """
    if profile.table is not None:
        return _read_table(profile.table, np.asarray(eps, float))
    log_deltas = [profile.log_delta(float(e)) for e in eps.tolist()]
    lower, upper = (np.array([math.exp(x[i]) if x[i] > -690.0 else 0.0 for x in log_deltas]) for i in (0, 1))
    return lambda: lower, np.maximum(upper, SMALLEST_UPPER_BOUND)


def needs_both_directions(profile: PrivacyProfile, run: Run) -> bool:
    """Return whether the add direction of a step differs from the remove direction."""
    return run.scheme.is_one_sided or profile.excess is not None


def describe_coarsely(
    profile: PrivacyProfile,
    run: Run,
    truncated_mass: float = TRUNCATED_RUN_MASS,
    plateau: float = PLATEAU_NATS,
    rough_excess: float | None = None,
) -> CoarseDescription:
    """Return a rough distribution of the privacy loss of one sampled step.

    Args:
        profile: The profile of the release.
        run: The sampling of the batches, and the number of releases.
        truncated_mass: The mass of the tails of the whole run that are truncated.
        plateau: Tails are also truncated where delta is nearly constant and below ``e^plateau`` times the truncated
            mass of one release.
        rough_excess: The delta of the whole run below which adaptive grids may be rougher (None: :data:`ROUGH_EXCESS`,
            reduced in proportion to a ``truncated_mass`` below :data:`TRUNCATED_RUN_MASS`).

    Raises:
        PrecisionError: The loss of an unsampled step exceeds :data:`LARGEST_LOSS` with a probability above
            :data:`MOST_MASS_BEYOND`.
    """
    q = max(run.sampling_rate, LEAST_GRID_RATE)
    start = 0.05 * float(_excess_above(profile, np.zeros(1))[0])
    eps = np.geomspace(min(start, 1.0), LARGEST_LOSS, 1 + math.ceil(5.0 * math.log(LARGEST_LOSS / min(start, 1.0))))
    eps = np.concatenate([[0.0], eps])
    delta = np.minimum.accumulate(_excess_above(profile, eps))
    if delta[-1] > MOST_MASS_BEYOND:
        raise PrecisionError(
            f"the privacy loss of an unsampled step exceeds {LARGEST_LOSS:g} with probability {delta[-1]:.2g}. {REMEDY}"
        )
    # Sampling maps t to 1 + q (t - 1) and E to q E (C17); in a symmetric pair E(1/t) = E(t) / t (C1).
    right, above = np.log1p(q * np.expm1(eps)), np.maximum(q * delta, SMALLEST_UPPER_BOUND)
    left, below = -right, above * np.exp(-right)
    if profile.excess is not None:
        left, below = -eps, np.minimum.accumulate(_read_table(profile.excess, -eps)[1])
    elif needs_both_directions(profile, run):
        left, below = np.log1p(q * np.expm1(-eps)), above * np.exp(-eps)
    log_least = math.log(truncated_mass) - math.log(run.steps)
    right, above = _cut_tail(right, np.log(above), log_least, plateau)
    left, log_below = -left, np.log(np.maximum(below, SMALLEST_UPPER_BOUND))
    if profile.excess is None:
        left, below = _cut_tail(left, log_below, log_least, plateau)
    else:  # truncate by the excess of the add direction, E(t) / t, which is the larger one for t < 1
        left, log_add = _cut_tail(left, log_below + left, log_least, plateau)
        below = log_add - left
    losses = np.concatenate([-left[:0:-1], right])
    log_excess = np.concatenate([below[:0:-1], above])
    deviation = _deviation(losses, np.exp(log_excess))
    rough_excess = rough_excess or ROUGH_EXCESS * min(truncated_mass / TRUNCATED_RUN_MASS, 1.0)
    return CoarseDescription(profile, run, losses, log_excess, deviation, truncated_mass, rough_excess)


def _excess_above(profile: PrivacyProfile, eps: FloatArray) -> FloatArray:
    """Return upper bounds of delta minus ``max(0, 1 - e^eps)`` for an unsampled release.

    They are for the remove direction and epsilons of any sign, in nats.
    """
    return delta_bounds(profile, eps)[1] if profile.excess is None else _read_table(profile.excess, eps)[1]


def _cut_tail(
    losses: FloatArray, log_excess: FloatArray, log_least: float, plateau: float
) -> tuple[FloatArray, FloatArray]:
    """Return losses without their tail, and the log excess of a privacy profile at these losses.

    Any truncation of the tail gives valid bounds.

    Args:
        losses: Losses in nats from 0 on, increasing.
        log_excess: The log of delta minus ``max(0, 1 - e^eps)`` at these losses.
        log_least: The log excess at which the tail is truncated.
        plateau: The tail is also truncated where the excess is nearly constant and its log is below
            ``log_least + plateau``.
    """
    # A constant excess would put a small mass at very large losses, which would dominate the composition. At least
    # three points remain.
    distinct = np.concatenate([[True], np.diff(losses) > 1e-12 * losses[1:]])
    losses, log_excess = losses[distinct], log_excess[distinct]
    rate = -np.diff(log_excess) / np.diff(losses)
    slow = (rate < 0.5 * np.maximum.accumulate(rate)) & (log_excess[:-1] < log_least + plateau)
    ended = np.append(slow, True) | (log_excess < log_least)
    last = max(int(np.argmax(ended)), min(2, len(losses) - 1))
    log_least = max(log_least, float(log_excess[last]))
    share = (log_excess[last - 1] - log_least) / max(log_excess[last - 1] - log_excess[last], 1e-300)
    # If the excess falls eight times as much as between the two points before, or to 0, the support of the loss ends
    # between the last two points. This only affects the choice of the knots.
    before, fall = -np.diff(log_excess[max(last - 2, 0) : last + 1])[[0, -1]]
    share = 1.0 if fall > 8.0 * before or log_excess[last] <= math.log(SMALLEST_UPPER_BOUND) + 30.0 else share
    end = losses[last - 1] + min(max(share, 0.2), 1.0) * (losses[last] - losses[last - 1])
    return np.append(losses[:last], end), np.append(log_excess[:last], max(log_least, float(log_excess[last])))


def _deviation(losses: FloatArray, excess: FloatArray) -> float:
    """Return the standard deviation of the finite privacy losses of a distribution, in nats.

    ``excess`` is delta minus ``max(0, 1 - e^eps)`` at epsilons equal to ``losses``.
    """
    # linear in t = e^loss between them
    masses = np.maximum(_polygon_kinks(np.diff(losses), excess), 0.0)
    masses[losses == 0.0] = max(1.0 - float(masses.sum() - masses[losses == 0.0].sum()), 0.0)
    total = masses.sum()
    mean = np.sum(masses * losses) / total
    return max(float(np.sqrt(np.sum(masses * (losses - mean) ** 2) / total)), 1e-15)


# --- the grid --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExcessBounds:
    """Upper and lower bounds of delta minus ``max(0, 1 - e^eps)`` of a release at some grid points.

    They are for the remove direction. The code that builds them guarantees them.
    """

    cells: Cells  # losses as integer multiples of ``step``, in increasing order

    upper: FloatArray  # upper bounds at these losses

    find_lower: Callable[[], FloatArray]  # computes the lower bounds at these losses, 0 if unknown

    step: float  # distance of two grid points, in nats

    @cached_property
    def above(self) -> DominatingPair:
        """A discrete pair of measures that dominates the release."""
        return pair_above(self.cells, self.upper, self.step)

    @cached_property
    def below(self) -> DominatingPair | None:
        """A discrete pair of measures that the release dominates; None if there is none."""
        return pair_below(self.cells, self.find_lower(), self.upper, self.step)


def excess_bounds(profile: PrivacyProfile, run: Run, cells: Cells, step: float) -> ExcessBounds:
    """Return bounds of delta minus ``max(0, 1 - e^eps)`` for a sampled step (C17).

    They are for the remove direction.

    Args:
        profile: The profile of the release.
        run: The sampling of the batches.
        cells: The epsilons as integer multiples of ``step``, in increasing order.
        step: The distance of two grid points in nats.
    """
    # For a symmetric pair, the negatives of the cells are added. Otherwise the cells beyond the end of the support are
    # replaced by a single cell, where the excess is 0.
    q = max(run.sampling_rate, LEAST_GRID_RATE)
    lower_factor = 1.0 if q == run.sampling_rate else 0.0
    if profile.excess is not None:
        find_lower, upper = _read_table(profile.excess, step * cells)
        return ExcessBounds(cells, upper, find_lower, step)
    if not needs_both_directions(profile, run):
        # E = q delta(log1p(tau)), tau = expm1(j h) / q, for t >= 1 (C17), and E(1/t) = E(t) / t (C1).
        right = distinct_cells(np.abs(cells))
        find_delta, upper = delta_bounds(profile, np.log1p(np.expm1(step * right) / q))
        weight = np.exp(-step * right[:0:-1])

        def reflect(end: FloatArray, factor: float) -> FloatArray:
            return np.concatenate([weight * end[:0:-1], end]) * (q * factor)

        lower_factor *= 1.0 - SAMPLING_MAP_RELATIVE_ERROR
        cells, above = np.concatenate([-right[:0:-1], right]), reflect(upper, 1.0 + SAMPLING_MAP_RELATIVE_ERROR)
        return ExcessBounds(cells, above, lambda: reflect(find_delta(), lower_factor), step)
    # E = q delta(log1p(tau)) for tau >= 0, q (1 + tau) delta(-log1p(tau)) for -1 < tau < 0, and 0 for tau <= -1 (C17).
    inside = np.expm1(step * cells) / q > -1.0
    beyond = [] if inside.all() else [math.floor(math.log1p(-q) / step * (1.0 + 1e-12))]
    first, cells = np.zeros(len(beyond)), np.concatenate([np.array(beyond, np.int64), cells[inside]])

    # Near the end of the support 1 + tau loses digits. E increases with 1 + tau, so a small amount is added to 1 + tau
    # for the upper bound.
    tau = np.minimum(np.expm1(step * cells[len(beyond) :]) / q, 1e300)
    share = np.minimum(1.0 + tau + np.where(tau < LEAST_SAMPLED_SHARE - 1.0, 1e-15, 0.0), 1.0)
    find_delta, upper = delta_bounds(profile, np.where(tau < -0.5, -np.log(share), np.abs(np.log1p(tau))))
    error = SAMPLING_MAP_RELATIVE_ERROR * (0.9 + 0.1 / np.maximum(share, LEAST_SAMPLED_SHARE))

    def find_lower() -> FloatArray:
        lower = q * share * find_delta() * (lower_factor * (1.0 - error))
        return np.concatenate([first, np.where(share < LEAST_SAMPLED_SHARE, 0.0, lower)])

    upper = np.concatenate([first, q * share * upper * (1.0 + error)])
    return ExcessBounds(cells, upper, find_lower, step)


def pair_above(cells: Cells, upper: FloatArray, step: float) -> DominatingPair:
    """Return a pair of measures that dominates every release with these upper bounds (C18).

    Args:
        cells: Epsilons as integer multiples of ``step``, in increasing order; one of them is 0.
        upper: Upper bounds of delta minus ``max(0, 1 - e^eps)`` at these epsilons, in the remove direction.
        step: The distance of two grid points in nats.

    Raises:
        PrecisionError: The losses are too large for a pair.
    """
    cells, upper = _lower_hull(cells, upper, step)
    # m is the last value. Left of the first knot the line to (t, E) = (0, 0) has the slope m_q = E_first / t_first.
    m_q = float(upper[0] * np.exp(-step * cells[0])) * (1.0 + 1e-14)
    pair = _scale_polygon(cells, upper, step, float(upper[-1]), m_q)
    if pair is None:
        raise PrecisionError(f"the privacy losses of one step exceed {LARGEST_LOSS:g}. {REMEDY}")
    return pair


def pair_below(cells: Cells, lower: FloatArray, upper: FloatArray, step: float) -> DominatingPair | None:
    """Return a pair of measures that every release with these bounds dominates (C18).

    The result is None if the bounds are too far apart.

    Args:
        cells: Epsilons as integer multiples of ``step``, in increasing order; one of them is 0.
        lower: Lower bounds of delta minus ``max(0, 1 - e^eps)`` at these epsilons, in the remove direction.
        upper: Upper bounds of the same values.
        step: The distance of two grid points in nats.
    """
    zero = int(np.searchsorted(cells, 0))
    # A smaller lower bound counts as 0: masses near the least double would lose digits.
    lower = np.where(lower < 1e-285, 0.0, lower)
    start, stop = zero % 2, len(cells) - (len(cells) - 1 - zero) % 2
    cells, lower, upper = cells[start:stop], lower[start:stop], upper[start:stop]
    # ratio = (t_(i+1) - t_i) / (t_(i+2) - t_(i+1))
    gap, middle = step * np.diff(cells), lower[1::2]
    ratio = -np.expm1(-gap[0::2]) / np.expm1(gap[1::2])
    # The line through L_(i+1) and U_(i+2), at t_i: (1 + ratio) L_(i+1) - ratio U_(i+2). The line through U_i and
    # L_(i+1), at t_(i+2): (1 + 1/ratio) L_(i+1) - U_i / ratio. Both are lowered by their rounding.
    size = middle * (1.0 + 1.0 / ratio) * 1e-14
    at_left = (1.0 + ratio) * middle - ratio * upper[2::2] - ratio * size
    at_right = (1.0 + 1.0 / ratio) * middle - upper[0:-1:2] / ratio - size
    # At each knot the smaller of the two ends that meet there; 0 beyond the first segment that is not positive.
    value = np.concatenate([[0.0], np.minimum(at_right[:-1], at_left[1:]), [0.0]])
    cells, zero = cells[0::2], (zero - start) // 2
    positive = np.concatenate([[False], np.minimum(at_left, at_right) > 0.0, [False]])
    first, last = zero - int(np.argmin(positive[zero::-1])), zero + int(np.argmin(positive[zero + 1 :]))
    if not first < zero < last:
        return None
    cells, value = cells[first : last + 1], value[first : last + 1]
    value[[0, -1]] = 0.0
    return _scale_polygon(*_lower_hull(cells, value, step), step, 0.0, 0.0, below=True)


def _lower_hull(cells: Cells, values: FloatArray, step: float) -> tuple[Cells, FloatArray]:
    """Return the vertices of the lower convex hull of a privacy profile (C18).

    The profile is given by ``values``: delta minus ``max(0, 1 - e^eps)`` at the grid points ``cells``. The result has
    the grid points of the vertices, always including the loss 0, and the values there.
    """
    # The hull includes the point (t, E) = (0, 0).
    while True:
        kink, zero = _polygon_kinks(step * np.diff(cells), values), int(np.searchsorted(cells, 0))
        convex = (kink > 0.0) | (cells == 0)
        convex[-1] = True
        if convex.all() and kink[zero] >= -1.0 - 1e-12:
            return cells, values
        # Where delta is straight at t = 1, E has a kink of -1. With a smaller one delta is not convex there, and its
        # value is lowered to the chord: delta = E + 1 - t on the left, E on the right.
        if kink[zero] < -1.0:
            left, right = -math.expm1(step * cells[zero - 1]), math.expm1(step * cells[zero + 1])
            lowered = (right * (values[zero - 1] + left) + left * values[zero + 1]) / (left + right)
            if convex.all() and not lowered < values[zero]:
                return cells, values
            values = values.copy()
            values[zero] = min(lowered, values[zero])
        cells, values = cells[convex], values[convex]


def _polygon_kinks(gap: FloatArray, values: FloatArray) -> FloatArray:
    """Return the masses of the privacy loss distribution whose profile is a polygon.

    The mass at the loss 0 is not valid.

    Args:
        gap: The differences of the losses of neighboring corners, in nats.
        values: Delta minus ``max(0, 1 - e^eps)`` at the corners.
    """
    # a P-mass is t = e^loss times the change of slope of the polygon in t
    # At t = 1 the excess has a further change of slope.
    # p_i = t_i (E_(i+1) - E_i) / (t_(i+1) - t_i) - t_i (E_i - E_(i-1)) / (t_i - t_(i-1)): slope on the right less left.
    rise = np.diff(values)
    right = np.append(rise / np.expm1(gap), 0.0)
    left = np.concatenate([[values[0]], rise / -np.expm1(-gap)])
    return right - left


def _scale_polygon(
    cells: Cells, values: FloatArray, step: float, m: float, m_q: float, *, below: bool = False
) -> DominatingPair | None:
    """Return a pair of measures whose privacy profile is at or above a convex polygon (C18).

    The result is None if no scale of the masses achieves that.

    Args:
        cells: The epsilons of the corners as integer multiples of ``step``; one of them is 0.
        values: Delta minus ``max(0, 1 - e^eps)`` at the corners.
        step: The distance of two grid points in nats.
        m: The ``P``-mass at the loss ``+inf``.
        m_q: The ``Q``-mass at the loss ``-inf``.
        below: True for a lower bound: the profile is at or below the polygon.
    """
    losses, zero = step * cells, int(np.searchsorted(cells, 0))
    if zero in (0, len(cells) - 1):  # no loss on one side of 0
        return None
    largest = float(np.max(np.abs(losses)))
    gap, summed = step * np.diff(cells), max(NESTED_SUM_RELATIVE_ERROR, 5.0 * UNIT_ROUNDING * len(cells))
    masses = np.maximum(_polygon_kinks(gap, values), 0.0)
    masses[zero] = 0.0
    right, left = _excess_sums(losses, gap, masses, zero)
    # F_0 = sum_(j > 0) p_j (1 - 1/t_j),  G_0 = sum_(j < 0) p_j (1/t_j - 1)
    away = -masses * np.expm1(-losses)
    f, g = float(away[zero + 1 :].sum()), float(-away[:zero].sum())
    # Required: m + kappa F_i and t_i m_q + c G_i are both >= E_i (<= E_i if below), with c G_0 = kappa F_0 + m - m_q:
    #   below (m = m_q = 0):  kappa <= min (E_i - m) / F_i,  kappa <= min ((E_i - t_i m_q) / G_i) G_0 / F_0,
    #   above:  kappa >= max (E_i - m) / F_i,  kappa >= (max ((E_i - t_i m_q) / G_i) G_0 + m_q - m) / F_0.
    want_right = values[zero:-1] - m
    want_left = values[1 : zero + 1] - m_q * np.exp(losses[1 : zero + 1])
    # with a margin for the rounding of m_q and its products
    m_q *= 1.0 + (10.0 + 4.0 * largest) * UNIT_ROUNDING
    if below:
        need = float(np.min(_ratios(want_left, left))) * g / max(f, SMALLEST_UPPER_BOUND)
        scale = min(float(np.min(_ratios(want_right, right))), need) * (1.0 - summed)
    else:
        # The sum may cancel, so its first term has a separate margin.
        need = math.fsum((float(np.max(_ratios(want_left, left))) * g * (1.0 + summed), m_q, -m))
        scale = max(float(np.max(_ratios(want_right, right))), need / max(f, SMALLEST_UPPER_BOUND)) * (1.0 + summed)
    if not 0.0 < scale < 2.0:
        return None
    # Masses above times kappa, those below times c = (kappa F_0 + m - m_q) / G_0, and p_0 = 1 - m - sum of the others.
    rise = scale * f + m - m_q
    masses[zero + 1 :] *= scale
    masses[:zero] *= rise / g
    center = 1.0 - m - float(masses.sum())
    if below and center < 0.0:
        return None
    masses[zero] = max(center, 0.0)
    # (100 + 4 max |loss|) u, more where the difference kappa F_0 + m - m_q cancels.
    rounding = (100.0 + 4.0 * largest) * UNIT_ROUNDING
    rounding *= max(1.0, (scale * f + m + m_q) / rise)
    return DominatingPair(cells, masses, step, m, m_q, rounding)


def _ratios(wanted: FloatArray, sums: FloatArray) -> FloatArray:
    """Return ``wanted / sums``, or a huge number for a sum of 0."""
    return wanted / np.maximum(sums, SMALLEST_UPPER_BOUND)


def _excess_sums(losses: FloatArray, gap: FloatArray, masses: FloatArray, zero: int) -> tuple[FloatArray, FloatArray]:
    """Return delta minus ``max(0, 1 - e^eps)`` of a pair of measures, without infinite losses (C18).

    The first array is for losses from 0 on, and the second one for losses up to 0.
    """
    # With t = e^loss, dt_l = t_(l+1) - t_l and the Q-masses q_j = p_j / t_j, the sums of positive terms are F_i for
    # losses from 0 on, and G_i for losses up to 0.
    # weight_j = p_j / t_j,  width_l = dt_l = t_(l+1) - t_l
    t = np.exp(losses)
    weight, width = masses / t, t[:-1] * np.expm1(gap)
    # F_i = sum_(l >= i) dt_l sum_(j > l) p_j / t_j
    right = np.cumsum((width[zero:] * np.cumsum(weight[:zero:-1])[::-1])[::-1])[::-1]
    # G_i = sum_(l < i) dt_l sum_(j <= l) p_j / t_j
    left = np.cumsum(width[:zero] * np.cumsum(weight[:zero]))
    return right, left
