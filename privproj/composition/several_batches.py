"""Account for balls-in-bins epochs in which a record is in several batches (C25, "Several batches of an epoch").

A record is in ``k`` of the ``b`` batches, and all sets of ``k`` batches are equally likely. With the likelihood ratio
``W_i`` of the output of batch ``i``, the likelihood ratio ``X`` of the epoch is the mean, over these sets, of the
product of the ``W_i`` of a set.

``X`` is not a function of a sum over the batches, so convolutions do not give its distribution. But convolutions give
the moments of ``X`` conditional on a statistic ``L``, a sum over the batches of ``ln(1 - theta + theta W_i)`` rounded
to a grid, with a free parameter ``theta`` between 0 and 1. These moments bound the hockey-stick divergences of the
epoch from above and from below.
"""

# With ``e_k``, the sum of all products of ``k`` different ``W_i``, ``X = e_k(W_1, ..., W_b) / binom(b, k)``.
#
# **Labels.** The label of a batch is ``ln(1 - theta + theta W)`` for a number ``0 < theta < 1``, rounded up to a grid.
# ``L`` is the sum of the labels of all batches. The moments ``M_n(L) = E[X^n; L]`` for ``n <= 4`` are computed exactly:
# ``X^n`` is the mean, over ``n`` independent sets of ``k`` batches, of the product of the ``W_i`` of all sets. A batch
# that is in ``nu`` of the sets contributes ``W^nu``. So ``M_n`` is a sum of convolutions of
# ``pi_nu(l) = E[W^nu; label = l]``, and the weights of this sum are the probabilities of :func:`overlaps`.
#
# **Upper bound.** Given ``L``, let ``mean``, ``v2`` and ``v4`` be the mean, the variance and the fourth central moment
# of ``X``. ``X`` is between 0 and ``largest = e^L / (binom(b, k) theta^k (1-theta)^(b-k))``, because ``e_k x^k <=
# prod_i (1 + x W_i)`` for all ``x > 0``. With ``g = |t - mean|`` and ``G = sqrt(v2 + g^2)``, both ``E[(X - t)_+] -
# (mean - t)_+`` and ``E[(t - X)_+] - (t - mean)_+`` are at most
#
#     (i)   v2 / (2 (G + g)),
#     (ii)  27 v4 / (256 g^3),
#     (iii) (largest - t) v2 / (v2 + (largest - mean)^2)
#               if t > mean, t + G > largest and v2 <= (largest - mean)^2 (for (X - t)_+ only),
#     (iv)  t v2 / (v2 + mean^2)  if t < mean, t < G and v2 <= mean^2,
#     (v)   t v4 / g^4            if t < mean.
#
# They are the means of polynomials above ``(x - t)_+`` or ``(t - x)_+``. (i) is the mean of ``(x - t + G)^2 / (4 G)``,
# and (ii) of ``27 (x - mean)^4 / (256 g^3)``. (iii) and (iv) are the means of the parabolas that touch 0 and have the
# value ``largest - t`` at ``largest``, or ``t`` at 0. (v) is ``t`` times Markov's bound of the probability that ``X <=
# t``. Every ``theta`` gives valid bounds. For each ``t`` the smallest bound is used, among several ``theta`` and a
# division of the batches into ``k`` blocks, of which the record is in one batch each.
#
# **Lower bound.** By Jensen's inequality ``E[(X - t)_+]`` is at least the sum of ``(M_1 - t M_0)_+`` over all ``L``,
# and ``E[(t - X)_+]`` at least the sum of ``(t M_0 - M_1)_+``.
#
# **Rounding.** All sums have positive terms. If every ``M_n`` is accurate to a factor ``e^gamma``, the mean of a
# polynomial is accurate to ``gamma`` times the sum of the sizes of its terms. For the parabolas this is a small
# multiple of the effect of an error ``gamma mean^2`` of ``v2``. For the quartic it is the effect of an error of ``v4``
# by ``gamma`` times the sum of the sizes of its terms. ``v2`` and ``v4`` are increased by 64 times these errors, and
# the result by a factor ``e^(8 gamma)``, which also covers the error of ``mean``.

import math
from collections import defaultdict
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from privproj.composition.dominating_pairs import (
    LARGEST_LOSS,
    UNIT_ROUNDING,
    DominatingPair,
    ExcessBounds,
    describe_coarsely,
)
from privproj.composition.grid import RepeatedSquaringCurve
from privproj.errors import PrecisionError
from privproj.numerics.arrays import Array
from privproj.profiles.privacy_profile import Phases

# values of theta / (1-theta), as multiples of k / (b-k), for E (X - t)_+ and for E (t - X)_+; every choice is sound
TILTS = {True: (1.0, 0.65, 0.4, 0.25), False: (1.0, 1.6, 2.5)}
CELLS_PER_DEVIATION = 40.0  # cells of L for one standard deviation of L
LARGEST_RANGE = 150.0  # nats, largest range of L; the fourth power of a larger X would leave the range of doubles
LEAST_MASS = 1e-70  # soundness: with less mass in a cell, only its mean is used: higher moments may have underflown
LOST = 1e-110  # soundness: absolute error of every M_n: 1e10 products that each lose 5e-324 times e^450
UNDERFLOWN_MASS = 1e-290  # soundness: mass lost to underflow in M_0 and M_1
MOST_WORK = 6e8  # products of cells and terms of the fourth moment
COARSE_CELLS = 4000  # cells of the grid that determines where the others end


@lru_cache(maxsize=64)
def overlaps(batches: int, picks: int, sets: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of how many batches are in how many of several random sets.

    The sets are independent, and each is a uniformly random set of ``picks`` of the batches.

    Args:
        batches: The number of batches.
        picks: The size of each set.
        sets: The number ``n`` of sets.

    Returns:
        Map from ``(N_0, ..., N_n)`` to its probability; ``N_i`` batches are in exactly ``i`` of the sets.
    """
    distribution: dict[tuple[int, ...], float] = {(batches,): 1.0}
    for _ in range(sets):
        following: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for counts, probability in distribution.items():
            # moved[nu] of the counts[nu] batches that are in nu sets are in the next set, too
            for some in product(*(range(min(count, picks) + 1) for count in counts[:-1])):
                moved = (*some, picks - sum(some))
                if 0 <= moved[-1] <= counts[-1]:
                    ways = math.prod(math.comb(*pair) for pair in zip(counts, moved, strict=True))
                    stay = [count - gone for count, gone in zip(counts, moved, strict=True)]
                    after = tuple(a + b for a, b in zip([*stay, 0], [0, *moved], strict=True))
                    following[after] += probability * ways / math.comb(batches, picks)
        distribution = following
    return distribution


def _convolve(one: Array, two: Array) -> Array:
    """Return the convolution of two arrays of masses on a grid.

    The last element of each array is the mass beyond the grid.
    """
    cells = len(one) - 1
    last = [int(np.max(np.flatnonzero(x[:-1]), initial=0)) + 1 for x in (one, two)]
    masses = np.convolve(one[: last[0]], two[: last[1]])
    result = np.zeros(cells + 1)
    inside = min(cells, len(masses))
    result[:inside] = masses[:inside]
    result[-1] = np.sum(masses[inside:]) + one[-1] * np.sum(two) + np.sum(one[:-1]) * two[-1]
    return result


class _Powers:
    """Convolutions of several measures on one grid, cached.

    Args:
        cells: The grid index of each atom; ``count`` for an atom beyond the grid.
        weights: For each measure, the masses of its atoms.
        count: The number of grid cells.
    """

    def __init__(self, cells: NDArray[np.intp], weights: list[Array], count: int) -> None:
        self.measures = [np.bincount(cells, each, count + 1).astype(float) for each in weights]
        self.power = lru_cache(maxsize=None)(self._power)
        self.joint = lru_cache(maxsize=None)(self._joint)

    def _power(self, degree: int, count: int) -> Array:
        if count == 1:
            return self.measures[degree]
        if count % 2:
            return _convolve(self.power(degree, count - 1), self.measures[degree])
        half = self.power(degree, count // 2)
        return _convolve(half, half)

    def _joint(self, counts: tuple[int, ...], degree: int = 0) -> Array:
        """Return the convolution of several measures, each with a number of copies.

        ``counts[i]`` is the number of copies of the measure with the index ``degree + i``.
        """
        if not counts[0]:
            return self.joint(counts[1:], degree + 1)
        first = self.power(degree, counts[0])
        return _convolve(first, self.joint(counts[1:], degree + 1)) if any(counts[1:]) else first

    def moment(self, weights: dict[tuple[int, ...], float]) -> Array:
        """Return a weighted sum of convolutions of the measures.

        Each key of ``weights`` is the number of copies of each measure in a convolution.
        """
        total = np.zeros(len(self.measures[0]) - 1)
        for counts, weight in weights.items():
            total += weight * self.joint(counts)[:-1]
        return total


class _Labeled:
    """Moments of the likelihood ratio of an epoch, conditional on a statistic of its batches.

    The statistic is the sum over the batches of ``ln(1 - theta + theta W)`` with the likelihood ratio ``W`` of a batch,
    rounded up to a grid.

    Args:
        pair: The discrete pair of measures of one release.
        batches: The number of batches.
        picks: The number of batches of a record.
        theta: The parameter of the statistic, between 0 and 1.
        cut: The approximate probability that the statistic is beyond the grid.
        above: True for upper bounds, False for lower bounds.

    Raises:
        PrecisionError: The likelihood ratios are too large, or the moments take too long.
    """

    def __init__(
        self, pair: DominatingPair, batches: int, picks: int, theta: float, cut: float, *, above: bool
    ) -> None:
        error = np.where(pair.cells == 0, 1.0, pair.masses) * pair.rounding
        masses: Array = (pair.masses + error if above else pair.masses - error).astype(float)
        losses: Array = (pair.step * pair.cells).astype(float)
        losses, masses = losses[masses > 0.0], masses[masses > 0.0]
        ratios = np.concatenate([[0.0], np.exp(losses)])  # W
        absent = np.concatenate([[pair.infinity_mass_q if above else 0.0], masses * np.exp(-losses)])  # mass of Q
        present = np.concatenate([[0.0], masses])  # mass of P
        labels = np.log1p(theta * (ratios - 1.0))
        least = float(labels[1])  # W = 0 has the same label as the least positive W
        labels = np.maximum(labels - least, 0.0)

        # standard deviation of L with the record
        variance = 0.0
        for weights, count in ((absent, batches - picks), (present, picks)):
            mean = float(weights @ labels) / float(np.sum(weights))
            variance += count * float(weights @ (labels - mean) ** 2)
        width = math.sqrt(variance) / CELLS_PER_DEVIATION or 1.0
        # a coarse grid determines where this one ends
        coarse = np.minimum(np.rint(labels / (8.0 * width)), COARSE_CELLS).astype(int)
        rough = _Powers(coarse, [absent, present], COARSE_CELLS)
        tail = np.cumsum(rough.joint((batches - picks, picks))[::-1])[::-1]
        count = 8 * (int(np.count_nonzero(tail > cut)) + 1) + batches
        sums = batches * least + width * np.arange(count)
        work = count**2 * len(overlaps(batches, picks, 4)) if above else 0
        if not (width * count < LARGEST_RANGE and work < MOST_WORK):
            raise PrecisionError("the likelihood ratios of an epoch are too large, or have too many values")

        cells = np.minimum(np.ceil(labels / width), count).astype(int)
        inside = np.minimum(ratios, math.exp(LARGEST_RANGE) / theta)  # larger ratios are beyond the grid
        degrees = [present * inside**degree for degree in range(4 if above else 1)]
        powers = _Powers(cells, [absent, *degrees], count)
        self.absent, self.present = (powers.joint(counts) for counts in ((batches,), (batches - picks, picks)))
        self.gamma = batches * UNIT_ROUNDING * (count + 64.0 + 16.0 * float(np.max(np.abs(losses))))
        if not above:
            return
        absent, present = self.absent[:-1], self.present[:-1]
        self.usable = (absent > LEAST_MASS) & (present > LEAST_MASS)
        mean = self.mean = present[self.usable] / absent[self.usable]
        second, third, fourth = (
            (powers.moment(overlaps(batches, picks, n))[self.usable] + LOST) / absent[self.usable] for n in (2, 3, 4)
        )
        error = 64.0 * self.gamma
        self.variance = np.maximum(second - mean * mean, 0.0) + error * (second + mean * mean)
        self.fourth = np.maximum(fourth - 4.0 * mean * third + 6.0 * mean * mean * second - 3.0 * mean**4, 0.0)
        self.fourth += error * (fourth + 4.0 * mean * third + 6.0 * mean * mean * second + 5.0 * mean**4)
        log_share = math.log(math.comb(batches, picks))
        log_share += picks * math.log(theta) + (batches - picks) * math.log1p(-theta)
        self.largest = np.exp(sums[self.usable] - log_share + 1e-9 * batches)

    def excess(self, t: Array, *, right: bool) -> Array:
        """Return an upper bound of ``E max(0, X - t)`` if ``right`` is True, else of ``E max(0, t - X)``.

        ``X`` is the likelihood ratio of the epoch. Infinite values of ``X`` are not counted.
        """
        t = t[:, None]
        mean, v2, v4, largest = self.mean, self.variance, self.fourth, self.largest
        gap = np.abs(t - mean)
        distance = np.sqrt(v2 + gap * gap)
        beyond = 0.5 * v2 / (distance + gap)
        # soundness: v4 is at least 700 gamma mean^4 > 1e-11 mean^4, so that nearer to the mean (ii) and (v) are useless
        far = np.maximum(gap, 1e-20 * (t + mean))
        beyond = np.minimum(beyond, 27.0 / 256.0 * (v4 / far**3))
        at_end = right & (t > mean) & (t + distance > largest) & (v2 <= (largest - mean) ** 2)
        bound_at_end = np.maximum(largest - t, 0.0) * v2 / (v2 + (largest - mean) ** 2)
        beyond = np.where(at_end, np.minimum(beyond, bound_at_end), beyond)
        at_zero = (t < mean) & (t < distance) & (v2 <= mean * mean)
        beyond = np.where(at_zero, np.minimum(beyond, t * (v2 / (v2 + mean * mean))), beyond)
        beyond = np.where(t < mean, np.minimum(beyond, t * (v4 / far**3 / far)), beyond)
        most = mean if right else t
        bound = np.minimum(np.maximum(mean - t if right else t - mean, 0.0) + beyond, most)
        rest = self.present if right else self.absent
        few = float(np.sum(rest[:-1][~self.usable])) + float(rest[-1]) + UNDERFLOWN_MASS
        return (bound @ self.absent[:-1][self.usable] + few * (1.0 if right else t[:, 0])) * math.exp(8.0 * self.gamma)

    def least_excess(self, t: Array, *, right: bool) -> Array:
        """Return a lower bound of ``E max(0, X - t)`` if ``right`` is True, else of ``E max(0, t - X)``.

        ``X`` is the likelihood ratio of the epoch.
        """
        difference = self.present - t[:, None] * self.absent
        error = 2.0 * self.gamma * (self.present + t[:, None] * self.absent)
        return np.sum(np.maximum((difference if right else -difference) - error, 0.0), axis=1) * (1.0 - 1e-12)


class SubsetEpochBounds:
    """Bounds of the privacy profile of an epoch in which a record is in several batches.

    The upper bound is the smaller of two bounds: one uses moments of the likelihood ratio, the other divides the
    batches into blocks.

    Args:
        release: Bounds of the privacy profile of one release.
        batches: The number of batches of the epoch.
        picks: The number of batches of a record, above 1 and below ``batches``.
        blocks: The profiles and runs of the blocks; the record is in one batch of each block.
        cut: The probability mass at which tails are truncated.
    """

    def __init__(self, release: ExcessBounds, batches: int, picks: int, blocks: Phases, cut: float) -> None:
        self.release, self.batches, self.picks, self.cut = release, batches, picks, cut
        self.blocks = RepeatedSquaringCurve([describe_coarsely(*block, cut) for block in blocks]).above
        pair = release.above
        self.labeled = self._label(pair, above=True)
        if not all(self.labeled.values()):
            raise PrecisionError("the likelihood ratios of an epoch are too large, or have too many values")
        # k m |P|^(k-1) |Q|^(b-k)
        size = float(np.sum(pair.masses)) + pair.infinity_mass + pair.infinity_mass_q + 1e-9
        self.infinity_mass = picks * pair.infinity_mass * max(1.0, size) ** batches

    def _label(self, pair: DominatingPair, *, above: bool) -> dict[bool, list[_Labeled]]:
        """Return moments of the likelihood ratio of an epoch, conditional on several statistics.

        The keys are True for ``eps >= 0`` and False for ``eps < 0``. A statistic is omitted if the moments
        for it cannot be computed.
        """
        labeled: dict[bool, list[_Labeled]] = {True: [], False: []}
        for right, tilts in TILTS.items():
            for tilt in tilts:
                odds = tilt * self.picks / (self.batches - self.picks)
                with suppress(PrecisionError):
                    labeled[right].append(
                        _Labeled(pair, self.batches, self.picks, odds / (1.0 + odds), self.cut, above=above)
                    )
        return labeled

    @cached_property
    def labeled_below(self) -> dict[bool, list[_Labeled]]:
        """The result of :meth:`_label` for lower bounds; its lists are empty if none are known."""
        pair = self.release.below
        return {True: [], False: []} if pair is None else self._label(pair, above=False)

    @property
    def numerics(self) -> dict[str, object]:
        """How the profile was computed, for the report of a result."""
        atoms = max((len(labeled.absent) for labeled in self.labeled[True]), default=0)
        return {"epoch": "likelihood ratio with known moments", "atoms": atoms}

    def excess_above(self, losses: Array) -> Array:
        """Return upper bounds of delta minus ``max(0, 1 - e^eps)``, in the remove direction.

        ``losses`` are epsilons in nats, of any sign.
        """
        bounds = np.empty(len(losses))
        for right, chosen in ((True, losses >= 0.0), (False, losses < 0.0)):
            near = losses[chosen]
            t = np.exp(np.minimum(near, LARGEST_RANGE + 30.0))  # the excess decreases on the right
            direction = self.blocks[0 if right else 1]
            by_blocks = np.array([direction.delta(eps).value for eps in np.abs(near).tolist()])
            best = (by_blocks + direction.infinity_mass) * (1.0 if right else t)
            for labeled in self.labeled[right]:
                parts = np.array_split(t, 1 + len(t) // 256)
                by_label = np.concatenate([labeled.excess(part, right=right) for part in parts])
                best = np.minimum(best, by_label + (self.infinity_mass if right else 0.0))
            bounds[chosen] = best
        return bounds

    def excess_below(self, losses: Array) -> Array:
        """Return lower bounds of delta minus ``max(0, 1 - e^eps)``, in the remove direction.

        ``losses`` are epsilons in nats, of any sign. The result is 0 if no lower bound is known.
        """
        bounds = np.zeros(len(losses))
        for right, chosen in ((True, losses >= 0.0), (False, losses < 0.0)):
            t = np.exp(np.minimum(losses[chosen], LARGEST_LOSS))
            for labeled in self.labeled_below[right]:
                bounds[chosen] = np.maximum(bounds[chosen], labeled.least_excess(t, right=right))
        return bounds
