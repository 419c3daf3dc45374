"""Account for balls-in-bins sampling: in each epoch a record is in one of several batches, chosen at random.

One release has the dominating pair ``(P, Q)``: ``P`` is its output distribution with the record, and ``Q`` without it.
``W`` is the likelihood ratio ``dP/dQ`` of an output drawn from ``Q``. An epoch has ``t`` batches, and ``S`` is a sum of
``t`` independent copies of ``W``. The likelihood ratio of the epoch is ``S/t``, so the distribution of ``S`` gives its
hockey-stick divergences (C25).

The distribution of ``W`` is computed from a dominating pair for upper bounds, and from a dominated pair for lower
bounds (C18). The distribution of ``S`` is computed from it by repeated squaring, on grids that affect the accuracy of
the bounds, but not their validity.
"""

# **The epoch.** One release has the dominating pair ``(P, Q)``: ``P`` is its output distribution with the record, and
# ``Q`` without it. ``W = dP/dQ`` is the likelihood ratio of an output drawn from ``Q``, and ``m`` is the mass of ``P``
# where ``Q`` is 0 (infinite loss). The record is in one of the ``t`` batches of the epoch, each with probability
# ``1/t``. So the pair ``(Pbar, Q^t)`` dominates the epoch, where ``Pbar`` is the mean over ``i`` of
# ``Q^(i-1) P Q^(t-i)`` (claim C25). Let ``S = W_1 + ... + W_t`` be a sum of independent copies of ``W``. At
# ``s = e^eps`` the hockey-stick divergences of the epoch are
#
#     remove:  H_s(Pbar || Q^t) = m + E (S/t - s)_+
#     add:     H_s(Q^t || Pbar) = E (1 - s S/t)_+ = s E (1/s - S/t)_+.
#
# The excess in the remove direction is ``H_s(Pbar || Q^t) - max(0, 1 - s)``. It equals ``m + E (S/t - s)_+`` for ``s >=
# 1`` and ``E (s - S/t)_+`` for ``s < 1``. Both are sums of positive terms, so no digits are lost by cancellation.
#
# **The distribution of W** is computed from two discrete pairs on a uniform grid (C18): a dominating pair gives an
# upper bound, and a dominated pair gives a lower bound. The mean of every increasing or decreasing convex function of
# ``S`` increases if the pair of one release is replaced by a pair that dominates it (C25).
#
# **The distribution of S** is computed by repeated squaring. Let ``w`` be the least finite value of ``W``. The sum
# ``Z = W_1 + ... + W_j - j w`` has a discrete distribution with masses ``q_i`` at ``z_i >= 0``. After each addition its
# atoms are moved to a grid:
#
# * (i) *Upper bound:* an atom of mass ``q`` at ``z``, between the grid points ``a <= z <= b``, is split so that its
#   mass and its mean do not change: ``q (b - z) / (b - a)`` at ``a`` and ``q (z - a) / (b - a)`` at ``b``.
# * (ii) *Lower bound:* all atoms between two neighboring grid points are merged into one atom at their mean.
# * (iii) *Beyond the last grid point* ``B`` only the total mass and the mean are stored. They determine ``E (Z - c)_+``
#   exactly for every ``c <= B``, because ``Z - c`` is positive there. For a larger ``c`` an upper bound uses the value
#   at ``B``, and a lower bound uses 0.
# * (iv) *Mass* ``m_q`` *of* ``Q`` *at* ``W = 0`` is moved to ``w``. This move increases ``E (S/t - s)_+``. It decreases
#   ``E (s - S/t)_+`` by at most ``m_q w``, which is added to the upper bound.
#
# By Jensen's inequality, (i) increases and (ii) decreases the mean of every convex function, on every grid. So the
# choice of the grid (:func:`_choose_points`) affects the accuracy of the bounds, but not their validity.
#
# **Rounding** (v). Masses are sums of products of positive factors. If every mass is accurate to a factor ``e^r``, so
# is every mean. If two distributions are added, their ``r`` add up (field ``growth``). The values ``z_i`` are positive
# and accurate to a factor ``1 +- rho`` (field ``drift``). ``E f(Z)`` is evaluated at ``(1 + rho) Z`` or ``(1 - rho)
# Z``: at the larger result for an upper bound, and at the smaller one for a lower bound.

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from privproj.composition.dominating_pairs import (
    LARGEST_LOSS,
    TRUNCATED_RUN_MASS,
    UNIT_ROUNDING,
    DominatingPair,
    ExcessBounds,
    describe_coarsely,
    excess_bounds,
    repeat_by_squaring,
)
from privproj.composition.several_batches import SubsetEpochBounds
from privproj.composition.tails import truncate_below
from privproj.errors import PrecisionError, UnsupportedError
from privproj.numerics.arrays import Array
from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, Enclosure
from privproj.numerics.jit import compile_kernel
from privproj.numerics.special import convolve_discrete
from privproj.profiles.privacy_profile import Phases, PrivacyProfile, TwoSidedTable
from privproj.run import Run, Sampling

POINTS_PER_SCORE = 56.0  # grid points for one unit of the normal score of a distribution
CORE_SCORE = 6.0  # normal score, of probability 1e-9, beyond which grid points are sparser
EPOCH_CUTS = (TRUNCATED_RUN_MASS, 1e-76, 1e-136)  # masses of truncated tails, one level each, for smaller deltas
NATS_ABOVE_CUT = 14.0 * math.log(10.0)  # nats; the next level is used where ln delta < ln(mass of the tails) + this
PILOT_ATOMS = 130  # atoms of each term in the rough sum that determines the grid
KNOTS_PER_DEVIATION = 64.0  # largest number of values of a profile for one standard deviation of its loss
LEAST_PILOT_MASS = 1e-280  # least divisor, and least probability with a score, in that rough sum

UNDERFLOWN_MASS = 1e-290  # soundness: mass lost to underflow by fewer than 1e30 products, each at most 5e-324
LEAST_PLACE = 1e-150  # soundness: least positive grid point, in units of one W; distances are then above 1e-167
UNDERFLOWN_NEAR_ZERO = 1e-130  # soundness: mass that splits at such distances lose: 5e-324 / 1e-167 of each, times 1e20
MOST_PICKS = 6  # batches of a record in one block, or batches that it is not in
MOST_BLOCK_BATCHES = 256  # batches of a block in which a record is in several
NEGLIGIBLE_EXCESS = 1e-3  # relative increase of epsilon up to which a record is in one batch of each block
MOST_TESTED_BATCHES = 200  # batches of an epoch up to which a lower bound for several batches per record is computed
TESTED_TILT = 0.6  # r / (1-r) in such a lower bound, as a multiple of k / (b-k); about the tightest one
LEAST_TESTED_CENTER = 1e-6  # soundness: least mass of the loss 0, whose error is absolute, in such a lower bound
SCORE_CELLS = 200  # cells of the statistic of one batch; every number is sound
KERNEL_ROUNDINGS = 16.0  # soundness: units of rounding of one placed mass, besides its sums; nine operations need less


@dataclass(frozen=True)
class SumDistribution:
    """A bound of the distribution of a sum of independent likelihood ratios, each minus its least value (C25).

    Every increasing or decreasing convex function has at least its exact mean under an upper bound, and at most its
    exact mean under a lower bound. The code that builds the distribution guarantees this.
    """

    # For every c, the means of (Z - c)_+ and (c - Z)_+ of the sum Z are at least those of the exact distribution for an
    # upper bound, and at most those for a lower bound.

    places: Array  # values ``z_i >= 0`` of the atoms, increasing; dimensionless

    masses: Array  # probabilities ``q_i`` of these values

    far_mass: float  # total mass at and beyond the last grid point ``B``

    far_excess: float  # sum of mass times ``z - B`` over the atoms at and beyond ``B``

    growth: float  # each mass is accurate to a factor ``e^growth``

    drift: float  # each value is accurate to a factor ``1 +- drift``


@dataclass(frozen=True)
class _Epoch:
    """A bound of the privacy profile of an epoch of balls-in-bins sampling.

    It is computed from the distribution of the sum ``S`` of the likelihood ratios of all batches.
    """

    distribution: SumDistribution  # distribution of ``Z = S - t w``

    batches: int  # number ``t`` of batches

    pair: DominatingPair  # pair of a release; a lower bound has no infinite or lost mass

    log_least: float  # least finite loss ``ln w`` of a release, in nats

    top: float  # last point ``B`` of the grid

    above: bool  # True for an upper bound, False for a lower one

    def excess(self, losses: Array) -> Array:
        """Return bounds of delta minus ``max(0, 1 - e^eps)``, in the remove direction.

        ``losses`` are epsilons in nats, of any sign.
        """
        bounds = np.empty(len(losses))
        for read, chosen in ((self.right, losses >= 0.0), (self.left, losses < 0.0)):
            # 2^22: products of atoms and epsilons that are in memory at a time
            parts = 1 + np.count_nonzero(chosen) * len(self.distribution.places) // 2**22
            bounds[chosen] = np.concatenate([read(part) for part in np.array_split(losses[chosen], parts)])
        return bounds

    def thresholds(self, losses: Array) -> tuple[Array, Array]:
        """Return the likelihood-ratio sums that correspond to privacy losses, rounded down and up."""
        # Z = S - t w is at the threshold c = t (s - w) if S/t = s, where ln s is the loss. c is 0 where s <= w.
        # c = t s (1 - e^(ln w - ln s))
        c = self.batches * np.exp(losses) * -np.expm1(np.minimum(self.log_least - losses, 0.0))
        error = UNIT_ROUNDING * (16.0 + 4.0 * np.abs(losses) + 4.0 * abs(self.log_least)) + self.distribution.drift
        return c * (1.0 - error), c * (1.0 + error)

    def right(self, losses: Array) -> Array:
        """Return bounds of delta of the epoch at ``losses >= 0`` (nats), in the remove direction."""
        # delta at ln s is m + E (S/t - s)_+, with the mass m of infinite losses
        distribution, low, high = self.distribution, *self.thresholds(losses)
        c = low if self.above else high
        # sum q (z - c)_+, also over the far atoms; beyond the grid the value at its end (above) or 0 (below)
        share = np.sum(distribution.masses * np.maximum(distribution.places - c[:, None], 0.0), axis=1)
        far = distribution.far_excess + distribution.far_mass * np.maximum(self.top - c, 0.0)
        if self.above:
            share = (share + far) * (1.0 + distribution.drift) + UNDERFLOWN_MASS * self.top
            # m |Q|^(t - 1), with |Q| the mass of a release
            return (share / self.batches + self.pair.infinity_mass * max(1.0, self.total)) * self.factor
        share = (share + np.where(c <= self.top, far, 0.0)) * (1.0 - distribution.drift) - UNDERFLOWN_MASS * self.top
        return np.maximum(share, 0.0) / self.batches * self.factor

    def left(self, losses: Array) -> Array:
        """Return bounds of delta minus ``1 - e^eps`` at ``losses < 0`` (nats), in the remove direction."""
        # the excess at ln s is E (s - S/t)_+
        distribution, low, high = self.distribution, *self.thresholds(losses)
        c = high if self.above else low
        # sum q (c - z)_+
        share = np.sum(distribution.masses * np.maximum(c[:, None] - distribution.places, 0.0), axis=1) / self.batches
        if not self.above:
            return np.maximum(share * self.factor - UNDERFLOWN_NEAR_ZERO * np.exp(losses), 0.0)
        # The far atoms count as if they were at the end of the grid. For (iv) the mass that was moved from W = 0 to w
        # is added.
        share += distribution.far_mass * np.maximum(c - self.top, 0.0) / self.batches
        s = np.exp(losses)
        moved = self.pair.infinity_mass_q * np.minimum(math.exp(self.log_least) * (1.0 + 1e-9), self.batches * s)
        # times |Q|^(t - 1), with |Q| the mass of a release
        return (share + moved * max(1.0, self.total)) * self.factor + s * UNDERFLOWN_NEAR_ZERO

    @property
    def total(self) -> float:
        """The total mass of the output distribution of an epoch without the record; close to 1."""
        return float(np.sum(self.distribution.masses)) + self.distribution.far_mass

    @property
    def factor(self) -> float:
        """The factor on a bound that covers the rounding of masses: above 1 for an upper bound."""
        growth = self.distribution.growth + UNIT_ROUNDING * (32.0 + 2.0 * len(self.distribution.places))
        return math.exp(growth if self.above else -growth)


# --- epochs as releases ------------------------------------------------------------------------------


def allocate(profile: PrivacyProfile, run: Run, blocks: int | None = None) -> Phases:
    """Return the epochs of a balls-in-bins run as releases on the whole dataset (C25).

    The composition of the returned releases bounds the run.

    Args:
        profile: The privacy profile of one release.
        run: A run with ``sampling=balls-in-bins``.
        blocks: The number of blocks into which the batches of an epoch are divided (None: a number with a tight
            result). Each block contains a fixed number of a record's batches and counts as an epoch.

    Returns:
        Pairs of the profile of an epoch and the run of such epochs, at most three.

    Raises:
        UnsupportedError: The bound of the release has no subsampling theorem.
    """
    if not profile.can_be_subsampled:
        raise UnsupportedError(
            "this bound does not support balls-in-bins sampling. Use another bound, or sampling=partition"
        )
    if blocks is None:
        blocks = _number_of_blocks(profile, run)
        while 2 * blocks <= run.batches_per_record:
            try:
                return allocate(profile, run, blocks)
            except PrecisionError:  # the likelihood ratios of a block are too large
                blocks *= 2
        blocks = run.batches_per_record
    unsampled = replace(run, sampling=None, batches=None, batches_per_record=1)
    releases = []
    for batches, picks, count in _divide(run.batches or 1, run.batches_per_record, blocks):
        steps = run.steps * count
        if picks == batches:
            releases.append((profile, replace(unsampled, steps=steps * picks)))
        else:
            epoch = _epoch_profile(profile, batches) if picks == 1 else _subset_profile(profile, batches, picks)
            releases.append((epoch, replace(unsampled, steps=steps)))
    return releases


def _number_of_blocks(profile: PrivacyProfile, run: Run) -> int:
    """Return the number of blocks into which the batches of an epoch are divided (C25)."""
    # Fewer blocks have a smaller delta. In a block with more than MOST_PICKS batches of a record, or with many batches,
    # the moments of the likelihood ratio take long. If the noise is so large that the number of blocks hardly matters,
    # the record is in one batch of each block.
    batches, picks = run.batches or 1, run.batches_per_record
    blocks = max(math.ceil(min(picks, batches - picks) / MOST_PICKS), math.ceil(batches / MOST_BLOCK_BATCHES))
    if picks in (1, batches) or 2 * blocks > picks:
        return picks
    # For small losses of variance v, blocks with one batch per record increase epsilon by about q (1-q) v / 4.
    rate, deviation = picks / batches, describe_coarsely(profile, Run(steps=batches)).deviation
    return blocks if rate * (1.0 - rate) * deviation**2 > 4.0 * NEGLIGIBLE_EXCESS else picks


def _divide(batches: int, picks: int, blocks: int) -> list[tuple[int, int, int]]:
    """Return the sizes of the blocks into which the batches of an epoch are divided (C25).

    Each entry has the number of batches of a block, the number of them that contain the record, and the number of such
    blocks.
    """
    (size, longer), (picks, more) = divmod(batches, blocks), divmod(picks, blocks)
    sizes = Counter((size + (i < longer), picks + (i < more)) for i in range(blocks))
    return [(*block, count) for block, count in sorted(sizes.items())]


def tested_epochs(release: PrivacyProfile, run: Run) -> tuple[PrivacyProfile, Run] | None:
    """Return a lower bound of the privacy profile of a balls-in-bins epoch, by a test statistic (C28).

    Returns:
        The lower bound, and the run with one release for each epoch; None if there are more than
        :data:`MOST_TESTED_BATCHES` batches, or if the release has no usable lower bound.
    """
    # A record is in k of t batches. The statistic is the sum over the batches of ln(1 - r + r W), rounded to a grid,
    # where W is the likelihood ratio of the release on that batch. Every r gives a lower bound. With the record, the
    # distribution of the statistic is the same for every choice of the k batches.
    batches, count = run.batches or 1, run.batches_per_record
    if batches > MOST_TESTED_BATCHES:
        return None
    pair = _release_bounds(release, batches).below
    if pair is None or (center := float(pair.masses[pair.cells == 0][0])) < LEAST_TESTED_CENTER:
        return None
    losses: Array = pair.losses.astype(float)
    present: Array = pair.masses.astype(float)
    absent: Array = present * np.exp(-losses)
    odds = TESTED_TILT * count / (batches - count)
    scores: Array = np.log1p(odds / (1.0 + odds) * np.expm1(losses))
    mean = float(present @ scores)
    deviation = math.sqrt(float(present @ (scores - mean) ** 2))
    # at most SCORE_CELLS cells for each batch; larger scores count as the largest
    low = max(float(scores[0]), mean - 8.0 * deviation)
    width = max(deviation / 16.0, (mean + 8.0 * deviation - low) / SCORE_CELLS)
    cells = np.clip(np.rint((scores - low) / width), 0, SCORE_CELLS).astype(int)
    with_record, without = (np.bincount(cells, masses).astype(float) for masses in (present, absent))

    def join(one: Array, other: Array, _: int) -> Array:
        return np.convolve(one, other)

    rest = repeat_by_squaring(without, batches - count, join)
    p = join(repeat_by_squaring(with_record, count, join), rest, batches)
    q = join(repeat_by_squaring(without, count, join), rest, batches)
    # every mass of a release, and the rounding of the sums of positive products
    error = batches * (2.0 * pair.rounding * (1.0 + 1.0 / center) + UNIT_ROUNDING * (64.0 + 8.0 * len(p)))

    def excess(losses: Array, sign: float) -> Array:
        values = []
        for loss in losses.tolist():
            # sum (p - t q)_+ for t >= 1, and sum (t q - p)_+ below
            one, other = (p, math.exp(loss) * q) if loss >= 0.0 else (math.exp(loss) * q, p)
            values.append(float(np.sum(np.maximum(one * (1.0 + sign * error) - other * (1.0 - sign * error), 0.0))))
        return np.array(values) * (1.0 + sign * error)

    table = TwoSidedTable(lambda at: excess(at, -1.0), lambda at: excess(at, 1.0))
    profile = PrivacyProfile(
        lambda eps: _log_delta(table, eps), resolution=KNOTS_PER_DEVIATION, can_be_subsampled=False, excess=table
    )
    return profile, replace(run, sampling=None, batches=None, batches_per_record=1)


@lru_cache(maxsize=8)
def _subset_profile(release: PrivacyProfile, batches: int, picks: int) -> PrivacyProfile:
    """Return the privacy profile of an epoch in which a record is in several batches.

    The profile is valid in the add and remove directions if ``release`` is valid. ``picks`` is the number of batches of
    a record, above 1 and below ``batches``.
    """
    epoch = Run(sampling=Sampling.BALLS_IN_BINS, batches=batches, batches_per_record=picks)
    bounds = SubsetEpochBounds(
        _release_bounds(release, batches), batches, picks, allocate(release, epoch, picks), TRUNCATED_RUN_MASS
    )
    table = TwoSidedTable(bounds.excess_below, bounds.excess_above)
    return PrivacyProfile(
        lambda eps: _log_delta(table, eps),
        resolution=32.0,
        can_be_subsampled=False,
        excess=table,
        numerics=bounds.numerics,
    )


@lru_cache(maxsize=8)
def _epoch_profile(release: PrivacyProfile, batches: int, level: int = 0) -> PrivacyProfile:
    """Return the privacy profile of an epoch in which a record is in one batch.

    The profile is valid in the add and remove directions if ``release`` is valid.

    Args:
        release: The profile of one release.
        batches: The number of batches of an epoch.
        level: The index in :data:`EPOCH_CUTS` of the mass at which tails are truncated. Smaller deltas use larger
            indices.
    """
    cut = EPOCH_CUTS[level]
    bounds = EpochBounds(truncate_below(release, math.log(cut)) if level else release, batches, cut)

    def with_smaller_tails(mass: float) -> PrivacyProfile:
        further = next((k for k, least in enumerate(EPOCH_CUTS) if least <= mass), len(EPOCH_CUTS) - 1)
        try:
            return _epoch_profile(release, batches, further) if further > level else profile
        except PrecisionError:  # masses would underflow
            return profile

    # The profile at the next level, or None if this level resolves delta.
    def next_level(log_delta: float) -> PrivacyProfile | None:
        if level + 1 == len(EPOCH_CUTS) or log_delta >= math.log(cut) + NATS_ABOVE_CUT:
            return None
        further = with_smaller_tails(EPOCH_CUTS[level + 1])
        return None if further is profile else further

    def log_delta(eps: float) -> Enclosure:
        lower, upper = at_this_level.log_delta(eps)
        if further := next_level(upper):
            ends = further.log_delta(eps)
            lower, upper = max(lower, ends.lower), min(upper, ends.upper)
        return Enclosure(min(lower, upper), upper)

    def guess(log_delta: float) -> float | None:
        eps = (next_level(log_delta) or at_this_level).epsilon(log_delta).upper
        return eps if 0.0 < eps < math.inf else None

    table = TwoSidedTable(bounds.excess_below, bounds.excess_above)
    at_this_level = PrivacyProfile(
        # Mixing does not increase delta, so the epoch has at most the delta of one release.
        lambda eps: _log_delta(table, eps, release.log_delta(eps).upper),
        resolution=64.0,
        can_be_subsampled=False,
        excess=table,
        numerics=bounds.numerics,
    )
    profile = replace(at_this_level, log_delta=log_delta, guess=guess, with_smaller_tails=with_smaller_tails)
    return profile


def _log_delta(excess: TwoSidedTable, eps: float, most: float = 0.0) -> Enclosure:
    """Return an enclosure of ``ln delta(eps)``, the larger one of the add and remove directions.

    Args:
        excess: Bounds of ``delta(eps) - max(0, 1 - e^eps)`` in the remove direction.
        eps: Epsilon in nats.
        most: An upper bound of the result.
    """
    # max(E(e^eps), e^eps E(e^-eps))
    near = min(eps, LARGEST_LOSS)
    lower, upper = (max(_log(right), _log(left) + near) for right, left in excess(np.array([near, -near])))
    margin = 1e-14 * (1.0 + near)
    upper = max(min(upper + margin, most, 0.0), LOG_OF_ZERO_FROM_ABOVE)
    return Enclosure(min(lower - margin if eps == near else -math.inf, upper), upper)


def _log(x: float) -> float:
    return math.log(x) if x > 0.0 else -math.inf


class EpochBounds:
    """Bounds of the privacy profile of a balls-in-bins epoch in which a record is in one batch.

    Args:
        release: The profile of one release.
        batches: The number of batches of an epoch.
        cut: The probability mass at which the tails of the loss are truncated.
    """

    def __init__(self, release: PrivacyProfile, batches: int, cut: float = TRUNCATED_RUN_MASS) -> None:
        self.batches, self.bounds = batches, _release_bounds(release, batches, cut)
        pair, step = self.bounds.above, self.bounds.step
        log_least = _least_loss(pair)
        # A profile with few values, for a first guess only, has fewer points.
        density = POINTS_PER_SCORE * min(1.0, max(release.resolution / KNOTS_PER_DEVIATION, 0.25))
        # At the first level tails have the full density of points up to the normal score 14, of probability 1e-44.
        score = 14.0 * math.sqrt(math.log(cut) / math.log(TRUNCATED_RUN_MASS))
        first = _first_distribution(pair, log_least, above=True)
        mean = float(np.sum(first.masses * first.places))
        spread = math.sqrt(float(np.sum(first.masses * first.places * first.places)))
        reach = float(first.places[-1])
        # The grid ends one largest W and 20 standard deviations of S above the mean.
        top = reach + batches * mean + 20.0 * math.sqrt(batches) * spread
        self.top = min(top, batches * reach) * (1.0 + 1e-9)
        self.grids: list[Array] = []

        # W - w of one release is at most the difference of its extreme likelihood ratios, and a sum of j copies is at
        # most j times as large, with a margin for rounding. On a longer grid, atoms of large mass would be split
        # between their neighbor and the distant end of the grid.
        widest = step * float(self.bounds.cells[-1]), step * float(self.bounds.cells[0])
        largest = math.exp(widest[0]) - math.exp(widest[1])

        def add(one: SumDistribution, two: SumDistribution, copies: int) -> SumDistribution:
            end = min(self.top, copies * largest * (1.0 + 1e-9 * copies))
            self.grids.append(_choose_points(one, two, end, copies * math.exp(log_least), density, score))
            return add_sum(one, two, self.grids[-1], above=True)

        distribution = repeat_by_squaring(first, batches, add)
        self.above = _Epoch(distribution, batches, pair, log_least, self.top, above=True)

    @property
    def numerics(self) -> dict[str, object]:
        """How the profile was computed, for the report of a result."""
        return {"epoch": "sum of likelihood ratios", "atoms": len(self.above.distribution.places)}

    def excess_above(self, losses: Array) -> Array:
        """Return upper bounds of delta minus ``max(0, 1 - e^eps)``, in the remove direction.

        ``losses`` are epsilons in nats, of any sign.
        """
        return self.above.excess(losses)

    @cached_property
    def below(self) -> _Epoch | None:
        """The lower bound of the profile of the epoch; None if the release has no lower bound."""
        pair = self.bounds.below
        if pair is None:
            return None
        log_least, grids = _least_loss(pair), iter(self.grids)
        first = _first_distribution(pair, log_least, above=False)
        distribution = repeat_by_squaring(
            first, self.batches, lambda one, two, _: add_sum(one, two, next(grids), above=False)
        )
        return _Epoch(distribution, self.batches, pair, log_least, self.top, above=False)

    def excess_below(self, losses: Array) -> Array:
        """Return lower bounds of delta minus ``max(0, 1 - e^eps)``, in the remove direction.

        ``losses`` are epsilons in nats, of any sign. The result is 0 if no lower bound is known.
        """
        if self.below is None:
            return np.zeros(len(losses))
        return np.minimum(self.below.excess(losses), self.above.excess(losses))


def _release_bounds(release: PrivacyProfile, batches: int, cut: float = TRUNCATED_RUN_MASS) -> ExcessBounds:
    """Return bounds of delta minus ``max(0, 1 - e^eps)`` for one release."""
    # the tails are truncated as for 10^4 epochs
    run = Run(steps=batches * 10**4)
    coarse = describe_coarsely(release, run, cut)
    finest = min(release.resolution, KNOTS_PER_DEVIATION)
    step = 2.0 ** math.floor(math.log2(coarse.deviation / finest))
    return excess_bounds(release, run, coarse.knots(step, finest), step)


def _least_loss(pair: DominatingPair) -> float:
    """Return the smallest privacy loss with positive mass, in nats."""
    return float(pair.step * pair.cells[pair.masses > 0.0][0])


def _first_distribution(pair: DominatingPair, log_least: float, *, above: bool) -> SumDistribution:
    """Return a bound of the distribution of the likelihood ratio of a release minus its least value.

    The likelihood ratio is ``dP/dQ`` of an output drawn from ``Q``, where ``P`` is the output distribution with the
    record, and ``Q`` without it. If ``above`` is True, ``pair`` must dominate the release; otherwise the release must
    dominate ``pair``.
    """
    error = np.where(pair.cells == 0, pair.rounding if above else -pair.rounding, 0.0)
    positive = pair.masses + error > 0.0
    losses: Array = pair.step * pair.cells[positive].astype(float)  # exact: the step is a power of two
    # z = e^x (1 - e^(ln w - x)),  q = p e^-x
    places = np.exp(losses) * -np.expm1(log_least - losses)
    masses: Array = (pair.masses + error)[positive].astype(float) * np.exp(-losses)
    if above:  # (iv)
        places, masses = np.concatenate([[0.0], places]), np.concatenate([[pair.infinity_mass_q], masses])
    largest = float(np.max(np.abs(losses)))
    growth = pair.rounding + UNIT_ROUNDING * (16.0 + 4.0 * largest)
    return SumDistribution(places, masses, 0.0, 0.0, growth, UNIT_ROUNDING * (16.0 + 8.0 * largest))


# --- sums of two distributions --------------------------------------------------------------------------------


def add_sum(one: SumDistribution, two: SumDistribution, points: Array, *, above: bool) -> SumDistribution:
    """Return a bound of the distribution of the sum of two independent terms, on a grid.

    It is an upper bound if ``above`` is True and both terms are upper bounds. It is a lower bound if ``above`` is False
    and both are lower bounds.
    """
    # Atoms are moved to the points such that the means of convex functions can only increase (or decrease).
    top = float(points[-1])
    mass, left, right = (np.zeros(len(points)) for _ in range(3))
    far_mass, far_excess = compile_kernel(convolve_discrete)(
        one.places, one.masses, two.places, two.masses, one is two, points, mass, left, right
    )
    # If one term is beyond the grid, so is the sum. With far masses m_i, far excesses e_i and total masses |one| and
    # |two|, such sums have the mass m_1 |two| + |one| m_2 + m_1 m_2. Their excess is e_1 |two| + m_1 E Z_2, the same
    # with one and two exchanged, and a term for two far atoms.
    one_mean, two_mean = (float(np.sum(distribution.masses * distribution.places)) for distribution in (one, two))
    ones, twos = float(np.sum(one.masses)), float(np.sum(two.masses))
    far_mass += one.far_mass * twos + ones * two.far_mass + one.far_mass * two.far_mass
    far_excess += one.far_excess * twos + one.far_mass * two_mean + ones * two.far_excess + one_mean * two.far_mass
    far_excess += one.far_mass * (two.far_excess + top * two.far_mass) + one.far_excess * two.far_mass
    terms = UNIT_ROUNDING * (KERNEL_ROUNDINGS + len(one.places) + len(two.places))
    growth, drift = one.growth + two.growth + 2.0 * terms, max(one.drift, two.drift) + 4.0 * UNIT_ROUNDING
    gap = np.diff(points)
    if above:
        # (i) q (b - z) / (b - a) at a, q (z - a) / (b - a) at b
        masses = np.zeros(len(points))
        masses[:-1] += right[:-1] / gap
        masses[1:] += left[:-1] / gap
        positive = masses > 0.0
        return SumDistribution(points[positive], masses[positive], far_mass, far_excess, growth, drift)
    # (ii) a + sum q (z - a) / sum q
    positive = mass > 0.0
    places = points[positive] + left[positive] / mass[positive]
    return SumDistribution(places, mass[positive], far_mass, far_excess, growth, drift + 2.0 * terms)


def _choose_points(
    one: SumDistribution, two: SumDistribution, top: float, least: float, density: float, score: float
) -> Array:
    """Return grid points from 0 to ``top`` for the sum of two independent terms.

    Every grid gives valid bounds.

    Args:
        one: The distribution of the first term.
        two: The distribution of the second term.
        top: The last grid point.
        least: The sum of the least values of the likelihood ratios, which the terms do not include.
        density: The number of grid points per unit of the normal score (the normal quantile of the distribution
            function).
        score: The largest normal score at which grid points are placed.
    """
    # The points are evenly spaced in the normal score Phi^-1(P(Z <= z)) of the sum Z, under the output distributions of
    # an epoch with and without the record.
    (x, p), (y, q) = _thinned(one), _thinned(two)
    places = np.add.outer(x, y).ravel()
    order = np.argsort(places, kind="stable")
    places, masses = places[order], np.multiply.outer(p, q).ravel()[order]
    scored = [_score_points(places, weights, score) for weights in (masses, masses * (places + least))]
    marks = np.unique(np.concatenate([mark for mark, _ in scored]))
    marks = marks[(marks > LEAST_PLACE) & (marks < top)]
    if len(marks) < 2:
        return np.unique(np.array([0.0, *marks, top]))
    steps = np.maximum(*(np.diff(np.interp(marks, mark, scores)) for mark, scores in scored))
    count = np.concatenate([[0.0], np.cumsum(steps)]) * density
    inner = np.exp(np.interp(np.linspace(0.0, count[-1], math.ceil(count[-1]) + 2), count, np.log(marks)))
    # Add a point just above the largest sum. Its mass may be large, and would otherwise be split to the last point.
    inner = np.append(inner, (float(one.places[-1]) + float(two.places[-1])) * (1.0 + 1e-12))
    return np.unique(np.concatenate([[0.0], inner[(inner > 0.0) & (inner < top)], [top]]))


def _score_points(places: Array, weights: Array, score: float) -> tuple[Array, Array]:
    """Return quantiles of a distribution, and their normal scores, halved beyond :data:`CORE_SCORE`.

    Args:
        places: The increasing values of the atoms.
        weights: The masses of the atoms, not normalized.
        score: The largest absolute value of a normal score.
    """
    # The normal score of a value is Phi^-1 of its distribution function.
    wanted = np.arange(-score, score, 0.4)  # wider than the lumps of the estimate
    at = np.searchsorted(np.maximum.accumulate(_normal_scores(weights, score)), wanted)
    marks, first = np.unique(places[np.minimum(at, len(places) - 1)], return_index=True)
    core = np.clip(wanted[first], -CORE_SCORE, CORE_SCORE)
    # Beyond the core there are half as many grid points for one unit of the score.
    return marks, core + 0.5 * (wanted[first] - core)


def _thinned(distribution: SumDistribution) -> tuple[Array, Array]:
    """Return the mean values and masses of groups of atoms, at most :data:`PILOT_ATOMS`."""
    count = len(distribution.places)
    starts = np.linspace(0, count, min(PILOT_ATOMS, count), endpoint=False).astype(int)
    starts = np.unique(np.append(starts, [min(1, count - 1), count - 1]))  # the outermost atoms stay alone
    masses = np.add.reduceat(distribution.masses, starts)
    return np.add.reduceat(distribution.masses * distribution.places, starts) / np.maximum(
        masses, LEAST_PILOT_MASS
    ), masses


def _normal_scores(weights: Array, largest: float) -> Array:
    """Return the approximate normal score of each atom: ``Phi^-1`` of the distribution function.

    Args:
        weights: The masses of the atoms in increasing order of the values, not normalized.
        largest: The largest absolute value of a score.
    """
    total = float(np.sum(weights))
    low, high = np.cumsum(weights) / total, np.cumsum(weights[::-1])[::-1] / total
    tail = np.clip(np.minimum(low, high), LEAST_PILOT_MASS, 0.5)
    r = np.sqrt(-2.0 * np.log(tail))
    # Abramowitz, Stegun 26.2.23
    size = r - (2.515517 + r * (0.802853 + r * 0.010328)) / (1.0 + r * (1.432788 + r * (0.189269 + r * 0.001308)))
    return np.clip(np.where(low < high, -size, size), -largest, largest)
