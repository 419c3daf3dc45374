"""Enclose the privacy profile of a balls-in-bins epoch in ball arithmetic (C25, C29).

In an epoch each record is assigned to one of ``t`` batches. The release of one batch has a pair of distributions ``P``
and ``Q``. Let ``W = dP/dQ`` under ``Q``, let ``m`` be the mass of ``P`` at an infinite loss, and let ``S`` be the sum
of ``t`` independent copies of ``W``. At ``s = e^eps``, the profile of an epoch is ``m + E (S/t - s)_+``. The excess is
the profile minus ``max(0, 1 - s)``.

``W`` and ``S`` are discretized on a linear grid, whose points are called cells. Arb's discrete Fourier transform
computes the distribution of ``S`` on a window of cells. The bounds are sound for every grid. The second part of the
module chooses grids in floating point.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from flint import arb, ctx

from privproj.composition.balls_in_bins import allocate
from privproj.composition.dominating_pairs import TRUNCATED_RUN_MASS, FloatArray, describe_coarsely
from privproj.contrib.certify.composition import (
    BallPair,
    BallPhase,
    ComposedDistribution,
    Ends,
    Knot,
    Releases,
    Window,
    pair_above,
    pair_below,
)
from privproj.contrib.certify.grids import LOG_LEAST_TRUNCATED, SHARE_TRUNCATED, chernoff_edge
from privproj.contrib.certify.profiles import BallProfile
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.run import Run

SLACK_SHARE = 10.0  # least ratio of an excess to the mass outside of its window at which it is evaluated


@dataclass(frozen=True)
class EpochGrid:
    """A linear grid for the likelihood ratios of batches and their sum over an epoch.

    Attributes:
        level: The spacing of the grid is ``2^level``.
        knots: The positive indices of grid points, in increasing order, at which the profile of one batch is evaluated.
        window: The grid points on which the distribution of the sum is computed.
    """

    # Every grid gives sound bounds.
    level: int
    knots: tuple[int, ...]
    window: Window

    @property
    def step(self) -> arb:
        """The spacing of the grid, as an exact number."""
        return arb(2) ** self.level


class BallEpochs(Releases):
    """The balls-in-bins epochs of a run, with bounds of the profile of an epoch (C29)."""

    one_sided = True

    def __init__(self, release: BallProfile, batches: int, epochs: int, grids: Sequence[EpochGrid]) -> None:
        self.steps, self.batches = epochs, batches
        self.sums = [_sums_of_release(release, batches, grid) for grid in grids]

    def excess(self, cell: int, h: arb) -> Ends:
        """Return bounds of the profile of an epoch minus ``max(0, 1 - e^eps)``.

        The profile is in the remove direction, at an epsilon of ``cell`` times the grid spacing ``h``. An unknown
        lower bound is 0.
        """
        c, low, high = self.batches * (cell * h).exp(), arb(0), arb(1)
        # The best bounds of all grids: a coarse grid covers large losses, and a fine grid is tight for small losses.
        for below, above in self.sums:
            high = high.min(above.right(c) if cell >= 0 else above.left(c))
            if below is not None:
                low = low.max(below.right(c) if cell >= 0 else below.left(c))
        return low.lower(), high.upper()


def _sums_of_release(release: BallProfile, batches: int, grid: EpochGrid) -> tuple["_Sum | None", "_Sum"]:
    """Discretize the sum of an epoch's likelihood ratios, for lower and upper bounds.

    The sum for lower bounds is None if no lower bound is known.
    """
    # W = 1 is the cell 0 of the pairs, which the pair from below needs.
    unit = 1 << -grid.level if grid.level <= 0 else 0
    h = grid.step
    knots = [_knot(release, cell - unit, cell * h) for cell in grid.knots]
    pair = pair_below(knots) if unit in grid.knots[2:-2] else None
    below = pair and _Sum(pair, unit, batches, grid, above=False)
    return below, _Sum(pair_above(knots), unit, batches, grid, above=True)


def _knot(release: BallProfile, cell: int, t: arb) -> Knot:
    """Return bounds of the profile of a release at ``t = e^eps``, the threshold of one grid cell."""
    # delta(ln t) for t >= 1, and 1 - t + t delta(-ln t) for t < 1 (C1: negative epsilon)
    if t >= 1:
        low, high = release.ends(t.log().max(arb(0)))
        return Knot(cell, t, low.max(arb(0)).lower(), high.min(arb(1)).upper())
    low, high = release.ends((-t.log()).max(arb(0)))
    return Knot(cell, t, (1 - t + t * low.max(arb(0))).lower(), (1 - t + t * high).min(arb(1)).upper())


class _Sum:
    """The discretized sum of the likelihood ratios of the batches of an epoch.

    The sum gives upper bounds of the profile of the epoch if ``above``, and lower bounds otherwise.
    """

    def __init__(self, pair: BallPair, unit: int, batches: int, grid: EpochGrid, *, above: bool) -> None:
        # If above, the pair dominates a release; otherwise a release nearly dominates the pair. self.costs bound the
        # error of the profile at e^eps >= 1 and at e^eps < 1.
        self.batches, self.h, self.above, window = batches, grid.step, above, grid.window
        # The cells of W > 0 and their masses q_j = p_j / t_j under Q
        cells = tuple(cell + unit for cell in pair.cells)
        masses = [p / (cell * self.h) for cell, p in zip(cells, pair.masses, strict=True)]
        finite, total = sum(pair.masses, arb(0)), sum(masses, arb(0))
        if above:
            # q_0 = (1 - sum_j q_j)_+, so that |Q| >= 1
            cells, masses = (0, *cells), [(1 - total).max(arb(0)), *masses]
            # m |Q|^(t - 1) for the right part, (m + sum_j p_j - 1) |Q|^(t - 1) for the left one
            growth = sum(masses, arb(0)) ** (batches - 1)
            self.costs = pair.rest * growth, (pair.rest + finite - 1).max(arb(0)) * growth
        else:
            # Scaled so that |Q| <= 1.
            scale = (1 / total.max(arb(1))).lower()
            masses = [mass * scale for mass in masses]
            # The rest for the right part, 1 + rest - sum_j p_j for the left one
            self.costs = pair.rest, 1 + pair.rest - scale * finite
        composed = ComposedDistribution([(BallPair(cells, tuple(masses), arb(0)), batches)], 2.0**grid.level, window)
        # S >= 0
        self.beyond, self.before = composed.beyond_right, composed.beyond_left if window.first > 0 else arb(0)
        self.start, self.end, self.order = window.first, window.first + window.size, arb(window.right)
        # Bits to which the masses of S are rounded outward before they are added up
        with ctx.workprec(64):
            distribution = [(mass.upper() if above else mass.lower()).max(arb(0)) for mass in composed.distribution]
            self.from_left, self.from_right = _Hinges(distribution), _Hinges(distribution[::-1])
        if above:
            first, inner = self.start + 1, range(self.start + 1, self.end)
            self.last = first + bisect_left(inner, True, key=lambda k: self._is_slack(self._gain_and_slack(arb(k))))
            self.least = first + bisect_left(
                inner, True, key=lambda k: not self._is_slack(self._loss_and_slack(arb(k)))
            )

    def right(self, c: arb) -> arb:
        """Return a bound of the profile of an epoch at ``e^eps = c / batches >= 1``.

        The result is an upper bound if ``self.above``, and a lower bound otherwise.
        """
        # m + E (S/t - s)_+ at s = c/t
        place = c / self.h
        if self.above:
            # E (S - c)_+ falls with c.
            gain, slack = self._gain_and_slack(place.min(arb(self.last)))
            return ((gain + slack) * self.h / self.batches + self.costs[0]).upper()
        gain = self.from_right.at((self.end - 1 - place).lower())
        # The mass before the window is included in the sum.
        gain = gain - (self.end - place).max(arb(0)) * self.before
        return (gain * self.h / self.batches - self.costs[0]).max(arb(0)).lower()

    def left(self, c: arb) -> arb:
        """Bound the profile of an epoch minus ``1 - e^eps`` at ``e^eps = c / batches < 1``.

        The result is an upper bound if ``self.above``, and a lower bound otherwise.
        """
        # E (s - S/t)_+ at s = c/t
        place = c / self.h
        if self.above:
            # E (1 - S/c)_+ rises with c.
            near = place.max(arb(self.least))
            loss, slack = self._loss_and_slack(near)
            share = place / near if self.least > 0 else arb(1)
            return ((loss + slack) * share * self.h / self.batches + self.costs[1]).upper()
        loss = self.from_left.at((place - self.start).lower())
        # The mass beyond the window is included in the sum.
        loss = loss - (place - self.start).max(arb(0)) * self.beyond
        return (loss * self.h / self.batches - self.costs[1]).max(arb(0)).lower()

    def _gain_and_slack(self, place: arb) -> Ends:
        """Bound the mean excess of the sum of likelihood ratios over ``place``.

        The first result is an upper bound of the part of the mean from sums inside the window, and the second of the
        part from sums above the window. The threshold ``place`` and the bounds are in grid steps.
        """
        # (S - c)_+ <= (b - c)_+ + e^(x (S - b)) / (e x) for S >= b
        largest_excess = (self.end - place).max(arb(0)) + 1 / (arb(1).exp() * self.order * self.h)
        return self.from_right.at((self.end - 1 - place).upper()), largest_excess * self.beyond

    def _loss_and_slack(self, place: arb) -> Ends:
        """Bound the mean shortfall of the sum of likelihood ratios below ``place``.

        The first result is an upper bound of the part of the mean from sums inside the window, and the second of the
        part from sums below the window. The threshold ``place`` and the bounds are in grid steps.
        """
        # (c - S)_+ <= c for S < a
        return self.from_left.at((place - self.start).upper()), place * self.before

    def _is_slack(self, ends: Ends) -> bool:
        """Return whether mass outside the window may dominate a bound.

        ``ends`` has the parts of the bound inside and outside the window.
        """
        # The discrete Fourier transform may wrap mass from outside into the window, which small expectations exceed
        # by little.
        cells = self.end - self.start
        return not ends[0] > SLACK_SHARE * (ends[1] + cells * (self.beyond + self.before))


class _Hinges:
    """The function ``x -> sum_i q_i (x - i)_+`` of non-negative masses ``q_i``."""

    def __init__(self, masses: Sequence[arb]) -> None:
        self.mass = list(accumulate(masses))
        self.moment = [arb(0), *accumulate(self.mass[:-1])]

    def at(self, x: arb) -> arb:
        if not x > 0:
            return arb(0)
        # sum_(i <= k) q_i (k - i) + (x - k) sum_(i <= k) q_i,  k = floor(x) or the last
        last = len(self.mass) - 1
        k = last if x >= last else int(float(x.floor()))
        return self.moment[k] + (x - k) * self.mass[k]


def epochs_in_balls(release: BallProfile, run: Run, grids: Sequence[EpochGrid]) -> Releases:
    """Return the balls-in-bins epochs of a run, with profiles in ball arithmetic (C25).

    ``release`` is the profile of one batch. ``grids`` are unused if every batch contains every record.
    """
    assert run.batches is not None
    if run.batches == run.batches_per_record:
        return BallPhase(release, run.steps * run.batches)
    return BallEpochs(release, run.batches, run.steps, grids)


# --- grids, in floats --------------------------------------------------------------------------------

RESOLUTION = 48.0  # knots per standard deviation of the loss of a release

ORDERS = np.geomspace(1e-9, 1e3, 241)  # orders of Chernoff's bound, in units of 1 / (standard deviation of S)

Atoms = tuple[FloatArray, FloatArray]  # values of W, and masses under Q, in floats


def propose_epochs(
    profile: PrivacyProfile, run: Run, log_delta: float, composed: int, fineness: float = 1.0
) -> tuple[EpochGrid, ...]:
    """Return grids for balls-in-bins epochs that are tight near delta ``e^log_delta``.

    ``composed`` is the number of epochs and other releases in the run. ``fineness`` multiplies the number of grid
    points.
    """
    batches = run.batches or 1
    if batches == run.batches_per_record:
        return ()
    ((epoch, _),) = allocate(profile, run)
    beyond = min(TRUNCATED_RUN_MASS, math.exp(max(log_delta + SHARE_TRUNCATED, LOG_LEAST_TRUNCATED)))
    shape, last = (
        describe_coarsely(profile, Run(steps=batches * composed), beyond),
        describe_coarsely(epoch, Run(steps=composed), beyond),
    )
    step = shape.deviation / (fineness * RESOLUTION)
    pair = shape.pairs(step).above
    losses = pair.step * pair.cells
    atoms = np.exp(losses), pair.masses * np.exp(-losses)
    places = np.exp(step * shape.knots(step, fineness * RESOLUTION))
    # Relative error of epsilon that the step of the grid may cause, by Chernoff's bound
    search = _Search(atoms, places, batches, 3e-4 / fineness**2)
    # At s, a value of W above t s counts as if it were infinite.
    log_mass = log_delta - math.log(composed)
    # Log of the share of delta that may be at infinity if epochs are composed
    least = log_mass + (math.log(1e-3) if composed > 1 else -2.0)
    right = last.losses >= 0.0
    log_excess, right = -last.log_excess[right], last.losses[right]
    reach = float(np.interp(-least, log_excess, right))
    depths = sorted({log_delta, log_delta / composed})
    shared = search.grid(reach, (1, -1), depths, log_mass)
    # Cells up to which one window serves both parts of the excess
    if shared.window.size <= 2**17:
        return (shared,)
    grids = [search.grid(0.0, (-1,), depths, log_mass), search.grid(reach, (1,), depths[:1], log_mass)]
    if grids[1].level <= grids[0].level:
        grids = [shared]
    # Loss of an epoch, in nats, that the finest of several grids covers
    while len(grids) > 1 and composed > 1 and reach > 1.0:
        reach *= 0.5
        log_mass = -float(np.interp(reach, right, log_excess))
        grids.append(search.grid(reach, (1,), [log_mass], log_mass))
    return tuple(grids)


@dataclass(frozen=True)
class _Search:
    """A floating-point search for a likelihood-ratio grid of a balls-in-bins epoch.

    Attributes:
        atoms: The distribution of the likelihood ratio of one batch.
        places: The likelihood ratios at which the profile of one batch may be evaluated.
        batches: The number of batches of an epoch.
        tolerance: The largest relative error of a privacy loss that the grid may cause.
    """

    atoms: Atoms
    places: FloatArray
    batches: int
    tolerance: float

    def grid(self, reach: float, sides: tuple[int, ...], depths: Sequence[float], log_mass: float) -> EpochGrid:
        """Return the coarsest grid on which quantiles of an epoch's loss are accurate.

        Args:
            reach: The largest relevant loss of an epoch, in nats.
            sides: 1 for losses in the remove direction, and -1 for losses in the add direction.
            depths: The logs of the tail probabilities of the quantiles.
            log_mass: The log of a probability that is much larger than the probability outside the window.
        """
        # Log of the share of delta that may lie outside of a window, by Chernoff's bound
        places, log_mass = self.places[self.places <= self.batches * math.exp(reach)], log_mass + math.log(1e-7)
        exact = _split(self.atoms, places)
        # The quantiles without rounding to a grid
        targets = [(depth, side, self.loss(exact, depth, side)) for depth in (*depths, log_mass) for side in sides]
        largest = max(self.loss(exact, depths[0], side) for side in (1, -1))
        level = math.floor(math.log2(places[-1]))
        while True:
            h = 2.0**level
            knots = np.unique(np.append(np.rint(places / h), max(1.0 / h, 1.0)))
            knots = knots[knots > 0.0]
            distribution = _split(self.atoms, knots * h)
            (end, right), (start, left) = (_edge(distribution, self.batches, side, log_mass) for side in (1, -1))
            first = math.floor(max(start, 0.0) / h)
            size = 1 << (math.ceil(end / h) + 1 - first).bit_length()
            close = all(
                abs(self.loss(distribution, depth, side) / loss - 1.0)
                # The tolerance is larger at the ends of windows, and for a direction whose epsilon is below this share
                # of the larger one.
                <= (1e-2 if depth == log_mass or loss < 0.8 * largest else self.tolerance)
                for depth, side, loss in targets
            )
            # Number of cells that a window does not exceed, and the number that it has at least
            if size >= 2**19 or (close and size >= 2**15):
                return EpochGrid(level, tuple(int(knot) for knot in knots), Window(first, size, right, left))
            level -= 1

    def loss(self, distribution: Atoms, log_mass: float, side: int) -> float:
        """Return the loss of an epoch that is exceeded with probability ``e^log_mass``.

        ``side`` is 1 for the loss in the remove direction, and -1 for the loss in the add direction.
        """
        # ln(S/t) for large S, and -ln(S/t) for small S, by Chernoff's bound
        return side * math.log(max(_edge(distribution, self.batches, side, log_mass)[0] / self.batches, 1e-300))


def _split(atoms: Atoms, places: FloatArray) -> Atoms:
    """Return a distribution with all its mass moved to 0 and to the points ``places``."""
    places = np.concatenate([[0.0], places])
    w, q = atoms
    # Each atom is split between its neighbors without changing the mean. Atoms beyond the last point are moved to it.
    at = np.clip(np.searchsorted(places, w) - 1, 0, len(places) - 2)
    share = np.clip((w - places[at]) / (places[at + 1] - places[at]), 0.0, 1.0)
    masses: FloatArray = np.zeros(len(places))
    np.add.at(masses, at + 1, q * share)
    np.add.at(masses, at, q - q * share)
    # Least mass at W = 0, which rounding may leave in balls: a large order of a tail bound would amplify it
    masses[0] = max(masses[0] + 1.0 - float(masses.sum()), 1e-33)
    return places, masses


def _edge(distribution: Atoms, copies: int, side: int, log_mass: float) -> tuple[float, float]:
    """Return a point beyond which a sum of i.i.d. terms has probability ``e^log_mass``.

    ``side`` is 1 for the upper tail, and -1 for the lower one. The second result is the best order of Chernoff's bound.
    """
    places, masses = distribution
    mean = float(masses @ places)
    orders = ORDERS / math.sqrt(copies * float(masses @ (places - mean) ** 2))
    edge, order = chernoff_edge([(side * places, masses, copies)], orders, log_mass)
    return side * edge, order
