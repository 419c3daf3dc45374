"""An epoch in which each record picks one batch of several at random: balls-in-bins, or random allocation.

**The epoch.** A release has the pair ``(P, Q)``: with the record, and without it. ``W = dP/dQ`` is the likelihood
ratio under ``Q``, and ``m`` the ``P``-mass at infinity. The record is in one of ``t`` batches, each as likely. So the
epoch is dominated by ``(Pbar, Q^t)``, the mean over ``i`` of ``Q^(i-1) P Q^(t-i)`` against ``Q^t`` (claim C25). With
``S = W_1 + ... + W_t``, independent copies, its profiles are, for ``s >= 0``,

    remove:  H_s(Pbar || Q^t) = m + E (S/t - s)_+
    add:     H_s(Q^t || Pbar) = E (1 - s S/t)_+ = s E (1/s - S/t)_+.

The excess over ``max(0, 1 - s)`` of the remove order is ``m + E (S/t - s)_+`` for ``s >= 1`` and ``E (s - S/t)_+``
below. Both are sums of positive terms, so nothing cancels.

**The law of W** comes from the pairs of one release on a lattice (C18), one that dominates and one that is dominated.
Every mean of an increasing or decreasing convex function of ``S`` grows with the pair (C25).

**The law of S** is found by repeated doubling. A law of ``j`` copies has atoms ``q_i`` at ``z_i >= 0``, where
``Z = W_1 + ... + W_j - j w`` and ``w`` is the least finite ``W``. Their sums are moved to a grid:

* (i) *Above:* an atom between neighbours ``a <= z <= b`` is split so that its mass and its mean stay:
  ``q (b - z) / (b - a)`` at ``a`` and ``q (z - a) / (b - a)`` at ``b``.
* (ii) *Below:* all atoms between two neighbours become one at their mean.
* (iii) *Beyond* the last point ``B`` only the mass and the mean are kept. There ``Z - c`` is positive for every ``c <=
  B``, whatever is added to it, so that nothing is lost for such ``c``. For a larger ``c`` the value at ``B`` is taken
  from above, and 0 from below.
* (iv) ``Q``-mass ``m_q`` at ``W = 0`` is moved to ``w``. That only enlarges ``E (S/t - s)_+``. It lowers
  ``E (s - S/t)_+`` by at most ``m_q w``, which is added.

By Jensen (i) enlarges every mean of a convex function and (ii) makes it smaller, whatever the grid; no proof rests on
:func:`_choose_points`.

**Rounding** (v). Masses are sums of products of positive factors. If each is right to a factor ``e^r``, so is every
mean, and in a sum of two laws the ``r`` of both add up (``growth``). Places are positive, and right to a factor
``1 +- rho`` (``drift``): ``E f(Z)`` is taken at ``(1 + rho) Z`` or ``(1 - rho) Z``, whichever is on the safe side.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from privproj.composition.dominating_pairs import (
    LARGEST_LOSS,
    TRUNCATED_RUN_MASS,
    UNIT_ROUNDING,
    DominatingPair,
    excess_bounds,
    outline_step,
    repeat,
)
from privproj.composition.tails import deepened
from privproj.errors import PrecisionLimit, Refused
from privproj.numerics.arrays import Array
from privproj.numerics.interval import Enclosure
from privproj.numerics.jit import compile_kernel
from privproj.numerics.special import add_laws
from privproj.profiles.privacy_profile import LazyBounds, PrivacyProfile
from privproj.run import Run

POINTS_PER_SCORE = 56.0
"""Grid points to one unit of the normal score of a law. Speed only."""

CORE_SCORE = 6.0
"""Normal score, of probability 1e-9, from which on grid points are rarer. Speed only."""

EPOCH_CUTS = (TRUNCATED_RUN_MASS, 1e-76, 1e-136)
"""At what masses tails are cut, for smaller and smaller deltas. Speed only."""

NATS_ABOVE_CUT = 14.0 * math.log(10.0)
"""How far above that mass, in nats, a delta is from which on the next is used. Speed only."""

PILOT_ATOMS = 130
"""Atoms of each factor in the pilot that a grid is chosen by. Speed only."""

KNOTS_PER_DEVIATION = 64.0
"""Most values of a release's profile to one standard deviation of its loss. Speed only."""

LEAST_PILOT_MASS = 1e-280
"""Least divisor, and least probability whose score is taken, in the pilot. Speed only."""

UNDERFLOWN_MASS = 1e-290
"""Mass that underflow can take of all products together: 5e-324 of each, and fewer than 1e30 count. Soundness."""

LEAST_PLACE = 1e-150
"""Least point of a grid above 0, in units of one ``W``: distances are then above 1e-167. Soundness."""

UNDERFLOWN_NEAR_ZERO = 1e-130
"""Mass that underflow can take of splits at so small distances: 5e-324 over 1e-167 of each, times 1e20. Soundness."""

KERNEL_ROUNDINGS = 16.0
"""Units of rounding allowed to one placed mass, besides those of its sums. Nine operations need less. Soundness."""


@dataclass(frozen=True)
class SumLaw:
    """The law of ``Z``, the sum of ``copies`` independent ``W - w``; whoever makes one guarantees its side (C25)."""

    places: Array
    """The places ``z_i >= 0`` of the atoms, increasing; no unit."""

    masses: Array
    """Their masses ``q_i``."""

    far_mass: float
    """Mass from the last point ``B`` on."""

    far_excess: float
    """Sum of mass times ``z - B`` over the atoms from ``B`` on."""

    growth: float
    """All masses are right to a factor ``e^growth``."""

    drift: float
    """All places are right to a factor ``1 +- drift``."""


@dataclass(frozen=True)
class _Epoch:
    """The sums of an epoch of one pair, read as its profile at any ``s`` (module docstring, "The epoch")."""

    law: SumLaw
    """The law of ``Z = S - t w``."""

    batches: int
    """The number ``t`` of batches."""

    pair: DominatingPair
    """The pair of a release; nothing of it is infinite or lost from below."""

    log_least: float
    """The least finite loss ``ln w`` of a release, in nats."""

    top: float
    """The last point ``B`` of the grid."""

    above: bool
    """True for an upper bound, False for a lower one."""

    def excess(self, losses: Array) -> Array:
        """The excess of the remove order at ``ln s = losses`` (nats), on the safe side."""
        bounds = np.empty(len(losses))
        for read, chosen in ((self.right, losses >= 0.0), (self.left, losses < 0.0)):
            # Products of atoms and epsilons that are held in memory at a time. Speed only.
            parts = 1 + np.count_nonzero(chosen) * len(self.law.places) // 2**22
            bounds[chosen] = np.concatenate([read(part) for part in np.array_split(losses[chosen], parts)])
        return bounds

    def thresholds(self, losses: Array) -> tuple[Array, Array]:
        """``c = t (s - w)`` at ``ln s = losses``, below and above its rounding; 0 where ``s <= w``."""
        # c = t s (1 - e^(ln w - ln s))
        c = self.batches * np.exp(losses) * -np.expm1(np.minimum(self.log_least - losses, 0.0))
        error = UNIT_ROUNDING * (16.0 + 4.0 * np.abs(losses) + 4.0 * abs(self.log_least)) + self.law.drift
        return c * (1.0 - error), c * (1.0 + error)

    def right(self, losses: Array) -> Array:
        """``m + E (S/t - s)_+``."""
        law, low, high = self.law, *self.thresholds(losses)
        c = low if self.above else high
        # sum q (z - c)_+, and over the far atoms; beyond the grid the value at its end from above, 0 from below
        share = np.sum(law.masses * np.maximum(law.places - c[:, None], 0.0), axis=1)
        far = law.far_excess + law.far_mass * np.maximum(self.top - c, 0.0)
        if self.above:
            share = (share + far) * (1.0 + law.drift) + UNDERFLOWN_MASS * self.top
            # m |Q|^(t - 1), with |Q| the mass of a release
            return (share / self.batches + self.pair.infinity_mass * max(1.0, self.total)) * self.factor
        share = (share + np.where(c <= self.top, far, 0.0)) * (1.0 - law.drift) - UNDERFLOWN_MASS * self.top
        return np.maximum(share, 0.0) / self.batches * self.factor

    def left(self, losses: Array) -> Array:
        """``E (s - S/t)_+``."""
        law, low, high = self.law, *self.thresholds(losses)
        c = high if self.above else low
        # sum q (c - z)_+
        share = np.sum(law.masses * np.maximum(c[:, None] - law.places, 0.0), axis=1) / self.batches
        if not self.above:
            return np.maximum(share * self.factor - UNDERFLOWN_NEAR_ZERO * np.exp(losses), 0.0)
        # The far atoms as if they were at the end of the grid, and (iv) for the mass at W = 0 that was moved to w.
        share += law.far_mass * np.maximum(c - self.top, 0.0) / self.batches
        s = np.exp(losses)
        moved = self.pair.infinity_mass_q * np.minimum(math.exp(self.log_least) * (1.0 + 1e-9), self.batches * s)
        # times |Q|^(t - 1), with |Q| the mass of a release
        return (share + moved * max(1.0, self.total)) * self.factor + s * UNDERFLOWN_NEAR_ZERO

    @property
    def total(self) -> float:
        """``|Q|^t``, the whole mass, nearly 1."""
        return float(np.sum(self.law.masses)) + self.law.far_mass

    @property
    def factor(self) -> float:
        """``e^growth`` from above, ``e^-growth`` from below, and a margin for the sums that are read."""
        growth = self.law.growth + UNIT_ROUNDING * (32.0 + 2.0 * len(self.law.places))
        return math.exp(growth if self.above else -growth)


# --- epochs as releases ------------------------------------------------------------------------------


def allocate(profile: PrivacyProfile, run: Run) -> list[tuple[PrivacyProfile, Run]]:
    """The epochs of a balls-in-bins run as releases on the whole data set, to be composed (C25).

    A record that picks ``k`` of ``t`` batches picks one of each of ``k`` blocks of ``floor(t/k)`` or ``ceil(t/k)``.
    Raises :class:`Refused` for a bound without a theorem for batches.
    """
    if not profile.can_be_subsampled:
        raise Refused("this bound has no theorem for sampled batches; expected a bound with one, or sampling=partition")
    unsampled = replace(run, sampling=None, batches=None, batches_per_record=1)
    return [
        (profile if batches == 1 else _epoch_profile(profile, batches), replace(unsampled, steps=steps))
        for batches, steps in blocks_of(run)
    ]


def blocks_of(run: Run) -> list[tuple[int, int]]:
    """The sizes of the blocks of a record in a balls-in-bins run, and how many of each there are in the run (C25)."""
    assert run.batches is not None
    size, longer = divmod(run.batches, run.batches_per_record)
    blocks = ((size, run.batches_per_record - longer), (size + 1, longer))
    return [(batches, run.steps * count) for batches, count in blocks if count]


# How many epochs are kept for further questions about the same release. Speed only.
@lru_cache(maxsize=8)
def _epoch_profile(release: PrivacyProfile, batches: int, depth: int = 0) -> PrivacyProfile:
    """The profile of one epoch, in both orders, as sound as that of a release.

    Its tails are cut at the mass ``EPOCH_CUTS[depth]``, and for smaller deltas at the next.
    """
    cut = EPOCH_CUTS[depth]
    ends = EpochEnds(deepened(release, math.log(cut)) if depth else release, batches, cut)

    def deeper(mass: float) -> PrivacyProfile:
        further = next((k for k, least in enumerate(EPOCH_CUTS) if least <= mass), len(EPOCH_CUTS) - 1)
        try:
            return _epoch_profile(release, batches, further) if further > depth else profile
        except PrecisionLimit:  # masses would underflow
            return profile

    def next_depth(log_delta: float) -> PrivacyProfile | None:
        """The profile at the next depth where this delta is better looked for there, and there is one."""
        if depth + 1 == len(EPOCH_CUTS) or log_delta >= math.log(cut) + NATS_ABOVE_CUT:
            return None
        further = deeper(EPOCH_CUTS[depth + 1])
        return None if further is profile else further

    def log_delta(eps: float) -> Enclosure:
        lower, upper = at_this_depth.log_delta(eps)
        if further := next_depth(upper):
            ends = further.log_delta(eps)
            lower, upper = max(lower, ends.lower), min(upper, ends.upper)
        return Enclosure(min(lower, upper), upper)

    def guess(log_delta: float) -> float | None:
        eps = (next_depth(log_delta) or at_this_depth).epsilon(log_delta).upper
        return eps if 0.0 < eps < math.inf else None

    # Values of an epoch's profile to one standard deviation of its loss, where epochs are composed. Speed only.
    at_this_depth = PrivacyProfile(
        lambda eps: ends.log_delta(eps, release),
        resolution=64.0,
        can_be_subsampled=False,
        excess=LazyBounds(ends.excess_below, ends.above.excess),
        numerics={"epoch": "sum of likelihood ratios", "atoms": len(ends.above.law.places)},
    )
    profile = replace(at_this_depth, log_delta=log_delta, guess=guess, deeper=deeper)
    return profile


def _log(x: float) -> float:
    """``ln x``, ``-inf`` at 0."""
    return math.log(x) if x > 0.0 else -math.inf


class EpochEnds:
    """The epoch of a release from above, and from below where that is asked for."""

    def __init__(self, release: PrivacyProfile, batches: int, cut: float = TRUNCATED_RUN_MASS) -> None:
        self.batches = batches
        # Tails are cut as if there were so many epochs: a little mass, which is counted. Speed only.
        run = Run(steps=batches * 10**4)
        shape = outline_step(release, run, cut)
        finest = min(release.resolution, KNOTS_PER_DEVIATION)
        step = 2.0 ** math.floor(math.log2(shape.deviation / finest))
        self.bounds = excess_bounds(release, run, shape.knots(step, finest), step)
        pair = self.bounds.above
        log_least = _least_loss(pair)
        # A profile with few values, where only a first guess is needed, has fewer points. Speed only.
        density = POINTS_PER_SCORE * min(1.0, max(release.resolution / KNOTS_PER_DEVIATION, 0.25))
        # Up to the normal score 14, of probability 1e-44, tails are followed closely at the first cut. Speed only.
        score = 14.0 * math.sqrt(math.log(cut) / math.log(TRUNCATED_RUN_MASS))
        first = _first_law(pair, log_least, above=True)
        mean = float(np.sum(first.masses * first.places))
        spread = math.sqrt(float(np.sum(first.masses * first.places * first.places)))
        reach = float(first.places[-1])
        # Standard deviations of ``S`` that the grid reaches beyond the mean, besides one largest ``W``. Speed only.
        top = reach + batches * mean + 20.0 * math.sqrt(batches) * spread
        self.top = min(top, batches * reach) * (1.0 + 1e-9)
        self.grids: list[Array] = []

        # No atom of one release, from above or below, is further from the least than all its cells; of j copies so
        # many times that, with room for rounding. A grid that goes on would have large atoms split to its end.
        widest = step * float(self.bounds.cells[-1]), step * float(self.bounds.cells[0])
        largest = math.exp(widest[0]) - math.exp(widest[1])

        def add(one: SumLaw, two: SumLaw, copies: int) -> SumLaw:
            end = min(self.top, copies * largest * (1.0 + 1e-9 * copies))
            self.grids.append(_choose_points(one, two, end, copies * math.exp(log_least), density, score))
            return add_sum(one, two, self.grids[-1], above=True)

        law = repeat(first, batches, add)
        self.above = _Epoch(law, batches, pair, log_least, self.top, above=True)

    @cached_property
    def below(self) -> _Epoch | None:
        """The epoch from below on the same grids, or None where too little is known of the release."""
        pair = self.bounds.below
        if pair is None:
            return None
        log_least, grids = _least_loss(pair), iter(self.grids)
        first = _first_law(pair, log_least, above=False)
        law = repeat(first, self.batches, lambda one, two, _: add_sum(one, two, next(grids), above=False))
        return _Epoch(law, self.batches, pair, log_least, self.top, above=False)

    def excess_below(self, losses: Array) -> Array:
        """Lower bounds of the excess at these ``ln t``; 0 where none is known."""
        if self.below is None:
            return np.zeros(len(losses))
        return np.minimum(self.below.excess(losses), self.above.excess(losses))

    def log_delta(self, eps: float, release: PrivacyProfile) -> Enclosure:
        """``ln delta(eps)`` of the larger order, enclosed; ``eps`` is in nats."""
        # max(E(e^eps), e^eps E(e^-eps)), and that of one release at most: mixing does not raise delta.
        near = min(eps, LARGEST_LOSS)
        both = np.array([near, -near])
        lower, upper = (
            max(_log(right), _log(left) + near) for right, left in (self.excess_below(both), self.above.excess(both))
        )
        margin = 1e-14 * (1.0 + near)
        upper = min(upper + margin, release.log_delta(eps).upper, 0.0)
        return Enclosure(min(lower - margin if eps == near else -math.inf, upper), upper)


def _least_loss(pair: DominatingPair) -> float:
    """The least loss of a pair that has mass, in nats."""
    return float(pair.step * pair.cells[pair.masses > 0.0][0])


def _first_law(pair: DominatingPair, log_least: float, *, above: bool) -> SumLaw:
    """The law of ``W - w`` under ``Q``; the absolute error of the pair's cell 0 goes to the safe side."""
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
    return SumLaw(places, masses, 0.0, 0.0, growth, UNIT_ROUNDING * (16.0 + 8.0 * largest))


# --- sums of two laws --------------------------------------------------------------------------------


def add_sum(one: SumLaw, two: SumLaw, points: Array, *, above: bool) -> SumLaw:
    """The law of the sum of both, an upper bound on these points or a lower one between them ((i) to (iii))."""
    top = float(points[-1])
    mass, left, right = (np.zeros(len(points)) for _ in range(3))
    far_mass, far_excess = compile_kernel(add_laws)(
        one.places, one.masses, two.places, two.masses, one is two, points, mass, left, right
    )
    # Far atoms stay far, whatever is added: mass m_1 |two| + |one| m_2, excess e_1 |two| + m_1 E Z_2 and the converse.
    one_mean, two_mean = (float(np.sum(law.masses * law.places)) for law in (one, two))
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
        return SumLaw(points[positive], masses[positive], far_mass, far_excess, growth, drift)
    # (ii) a + sum q (z - a) / sum q
    positive = mass > 0.0
    places = points[positive] + left[positive] / mass[positive]
    return SumLaw(places, mass[positive], far_mass, far_excess, growth, drift + 2.0 * terms)


def _choose_points(one: SumLaw, two: SumLaw, top: float, least: float, density: float, score: float) -> Array:
    """Grid points from 0 to ``top``, evenly spaced in the normal score of the sum, under ``Q`` and under ``Pbar``.

    Every grid is sound. ``least`` is the sum of all ``w``, by which ``S`` is larger than ``Z``. ``density`` is the
    number of points to one unit of the score, which is followed up to ``score``.
    """
    (x, p), (y, q) = _thinned(one), _thinned(two)
    places = np.add.outer(x, y).ravel()
    order = np.argsort(places, kind="stable")
    places, masses = places[order], np.multiply.outer(p, q).ravel()[order]
    ladders = [_ladder(places, weights, score) for weights in (masses, masses * (places + least))]
    rungs = np.unique(np.concatenate([rung for rung, _ in ladders]))
    rungs = rungs[(rungs > LEAST_PLACE) & (rungs < top)]
    if len(rungs) < 2:
        return np.unique(np.array([0.0, *rungs, top]))
    steps = np.maximum(*(np.diff(np.interp(rungs, rung, scores)) for rung, scores in ladders))
    count = np.concatenate([[0.0], np.cumsum(steps)]) * density
    inner = np.exp(np.interp(np.linspace(0.0, count[-1], math.ceil(count[-1]) + 2), count, np.log(rungs)))
    # Just above the largest sum, which may be likely: split between its neighbours it would reach the end.
    inner = np.append(inner, (float(one.places[-1]) + float(two.places[-1])) * (1.0 + 1e-12))
    return np.unique(np.concatenate([[0.0], inner[(inner > 0.0) & (inner < top)], [top]]))


def _ladder(places: Array, weights: Array, score: float) -> tuple[Array, Array]:
    """Places at which the normal score of a law passes evenly spaced values, and these values."""
    # Spacing of the scores between which grid points are spread evenly, wider than the pilot is lumpy. Speed only.
    wanted = np.arange(-score, score, 0.4)
    at = np.searchsorted(np.maximum.accumulate(_normal_scores(weights, score)), wanted)
    rungs, first = np.unique(places[np.minimum(at, len(places) - 1)], return_index=True)
    core = np.clip(wanted[first], -CORE_SCORE, CORE_SCORE)
    # Share of the grid points to a unit of the score that is left beyond the core. Speed only.
    return rungs, core + 0.5 * (wanted[first] - core)


def _thinned(law: SumLaw) -> tuple[Array, Array]:
    """Mean places and masses of at most :data:`PILOT_ATOMS` groups of neighbouring atoms."""
    count = len(law.places)
    starts = np.linspace(0, count, min(PILOT_ATOMS, count), endpoint=False).astype(int)
    starts = np.unique(np.append(starts, [min(1, count - 1), count - 1]))  # the outermost atoms stay alone
    masses = np.add.reduceat(law.masses, starts)
    return np.add.reduceat(law.masses * law.places, starts) / np.maximum(masses, LEAST_PILOT_MASS), masses


def _normal_scores(weights: Array, largest: float) -> Array:
    """The normal score of the law at each atom, roughly, cut at the largest."""
    total = float(np.sum(weights))
    low, high = np.cumsum(weights) / total, np.cumsum(weights[::-1])[::-1] / total
    tail = np.clip(np.minimum(low, high), LEAST_PILOT_MASS, 0.5)
    r = np.sqrt(-2.0 * np.log(tail))
    # Abramowitz, Stegun 26.2.23
    size = r - (2.515517 + r * (0.802853 + r * 0.010328)) / (1.0 + r * (1.432788 + r * (0.189269 + r * 0.001308)))
    return np.clip(np.where(low < high, -size, size), -largest, largest)
