"""Compose a run on several discretization grids, each for a range of deltas (C23, "Levels").

A grid is finite, and larger losses count as infinite. Delta is at least the mass of these losses, so one grid is not
enough for all deltas. A run therefore has several tail-truncation levels. Each level has a grid for a range of deltas,
and truncates the tails of the losses at a mass below the smallest of these deltas. If a grid is not tight, the result
is limited by Renyi moments (:mod:`privproj.composition.moments`).

No result exceeds two simple bounds: the probability that the record is in any batch, and basic composition (C23,
"Simple bounds").
"""

# The first level has the default grid and covers the deltas above the first of LEAST_LOGS. Every other level covers
# five powers of ten. Its tails are truncated only somewhat below its least delta, because a grid with much longer tails
# is slower and less accurate. If masses would underflow on a grid, the result is the bound by moments alone.
#
# The epsilon of a query determines the level. ``b_k`` is the epsilon of level ``k + 1`` at the least delta of level
# ``k``, and level ``k`` is used for epsilons from ``b_(k-1)`` up to ``b_k``. So ``epsilon`` and ``log_delta`` use the
# same level (C24), and a query usually needs the grid of one level only.
#
# Phase ``i`` has ``T_i`` releases at the sampling rate ``q_i``, each with the profile ``delta_i``. The simple bounds
# are
#
# * (i) *Ever sampled:* delta is at most ``1 - prod (1 - q_i)^T_i``, the probability that the record is in any batch.
# * (ii) *Basic composition:* delta is at most ``sum T_i delta_i(w_i eps)`` for all shares ``w_i`` with
#   ``sum T_i w_i = 1``.

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from privproj.composition.dominating_pairs import LARGEST_LOSS, REMEDY, describe_coarsely
from privproj.composition.grid import GridCurve
from privproj.composition.moments import MomentCurve, log_delta_columns
from privproj.errors import GridSizeError, PrecisionError
from privproj.numerics.arrays import Array
from privproj.numerics.interval import Enclosure, LazyEnclosure, log1m_exp, next_up
from privproj.numerics.root_finding import find_crossing
from privproj.profiles.privacy_profile import Phases, PrivacyProfile, TwoSidedTable
from privproj.run import Run

# decimal log of the least delta of each level with a grid; the first level covers usual deltas
LEAST_POWERS = (-15.5, *(-22.0 - 5.0 * k for k in range(34)))
# nats, ln of the least delta of every level
LEAST_LOGS = (*(power * math.log(10.0) for power in LEAST_POWERS), -(2.0**13), -(2.0**23))
NATS_ABOVE_CUT = math.log(1e6)  # nats between the truncated mass and the least delta of a level
NATS_OF_PLATEAU = math.log(1e3)  # nats above the truncated mass at which a floor may begin, below NATS_ABOVE_CUT
ROUGH_SHARE = 0.01  # share of the least delta of a level below which adaptive grids may be rougher
NATS_OF_TABLE = math.log(1e10)  # nats between the truncated mass and the least accurate delta of a table
NATS_WITHIN = 4.0  # nats that a level may be looser than the next one at the least delta of the level (largest seen: 2)
CLOSE_ENOUGH = 1.02  # ratio of upper and lower epsilons up to which a grid needs no bound by moments
# nats; at larger epsilons, which guarantee nothing, the mass of losses that a grid counts as infinite can hide the
# difference of two levels
LARGEST_USEFUL_EPSILON = 150.0
LARGEST_CAPPED_EPSILON = 1e15  # nats, largest epsilon at which a simple bound replaces a composition without a result
HUGE_EPSILON = 1e300  # nats, at which delta is the probability of an infinite loss
LEAST_CAPPED_EPSILON = 1e-200  # nats, least epsilon of a search, and least epsilon from which shares are computed
NOTHING_SO_SMALL = f"delta is below the probability of losses that are too large to compose. {REMEDY}"
# descriptions of results without a grid: by the simple bound (i) or an infinite loss, or by moments
NO_GRID_NUMERICS: dict[str, object] = {
    "composer": "privproj",
    "grid": "no grid, but the probability that a record is sampled, or that a loss is infinite",
}
MOMENTS_NUMERICS: dict[str, object] = {"composer": "privproj", "grid": "no grid, but moments of the loss"}


class TailLevelsCurve:
    """The privacy curve of a run, composed on several grids with tails of different length.

    Each grid (a tail-truncation level) is for a range of deltas. The curve is valid if the profiles of the phases are
    valid (C18, C19, C23).

    Args:
        first: The curve of the first level, or the exception if the losses of a step are too large for any grid.
        phases: The phases of the run.
        step: The distance of two grid points in nats (None: the default grids).
        first_level_only: If True, the other levels are not used.
    """

    digits = 11  # significant digits of a reported epsilon: a search on a grid ends 1e-11 above its root (NEWTON_RTOL)

    def __init__(
        self,
        first: GridCurve | PrecisionError,
        phases: Phases,
        step: float | None,
        *,
        first_level_only: bool = False,
    ) -> None:
        self.first, self.phases, self.step, self.first_level_only = first, phases, step, first_level_only
        self.level = lru_cache(maxsize=8)(self._level)
        self.boundary = lru_cache(maxsize=None)(self._boundary)
        self.used: GridCurve | _Level | None = None if isinstance(first, PrecisionError) else first
        self.releases = [
            (profile if run.sampling_rate == 1.0 else profile.sampled(run.sampling_rate), run.steps)
            for profile, run in phases
        ]
        self.log_sampled = log_ever_sampled([run for _, run in phases])

    @property
    def numerics(self) -> dict[str, object]:
        """The grid and the composition method of the last result, for its report."""
        return NO_GRID_NUMERICS if self.used is None else self.used.numerics

    @cached_property
    def at_first_level(self) -> "TailLevelsCurve":
        """The same curve with its first tail-truncation level only."""
        return TailLevelsCurve(self.first, self.phases, self.step, first_level_only=True)

    def _level(self, k: int) -> "GridCurve | _Level":
        """Return the privacy curve on the grid of tail-truncation level ``k``."""
        if k == 0:
            if isinstance(self.first, PrecisionError):
                raise self.first
            return self.first
        # The tails are truncated at a share of the least delta of the level.
        log_cut = 2.0 * LEAST_LOGS[k] if k >= len(LEAST_POWERS) else LEAST_LOGS[k] - NATS_ABOVE_CUT
        phases = [(truncate_below(profile, log_cut - NATS_OF_TABLE), run) for profile, run in self.phases]
        for profile, run in phases:
            # Tails cannot be truncated below a delta at which the profile becomes constant.
            near, far = (profile.log_delta(eps).upper for eps in (0.5 * LARGEST_LOSS, LARGEST_LOSS))
            if far <= -1.0 and far >= near - 1.0:
                log_cut = max(log_cut, far + math.log(2.0 * run.steps) + math.log(run.sampling_rate))
        return _Level(k, phases, self.step, log_cut, self.first if k == 1 else None)

    def _boundary(self, k: int) -> float:
        """Return the largest epsilon (nats) for which tail-truncation level ``k`` is used.

        The result is ``inf`` for the last level, or if the epsilon is unknown.
        """
        # b_k, the epsilon of level k + 1 at the least delta of level k
        try:
            return self.level(k + 1).epsilon(LEAST_LOGS[k]).upper if k + 1 < len(LEAST_LOGS) else math.inf
        except PrecisionError:
            return math.inf

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``; ``eps`` is in nats."""
        upper, used = self.log_delta_unless(eps, -math.inf), self.used
        return LazyEnclosure(lambda: -math.inf if used is None else used.log_delta(eps).lower, upper)

    def log_delta_unless(self, eps: float, threshold: float) -> float:
        """Return an upper bound of ``ln delta(eps)``, which may be loose if it is at most ``threshold``."""
        upper = most = rough = 0.0
        if isinstance(self.first, PrecisionError):
            # If losses are too large for a grid, the bound (i) is close to the exact value.
            if self.log_sampled == 0.0:
                raise self.first
            return min(self.log_sampled, self.log_basic(eps))
        # A delta of the first level may be loose if it is at most the threshold and the threshold is in this level.
        loose_from = threshold if threshold >= LEAST_LOGS[0] else -math.inf
        start = next((k for k, least in enumerate(LEAST_LOGS) if threshold >= least), 0)
        # On a given grid, levels can differ by any amount, so that log_delta must take its usual way.
        if start and not self.first_level_only and self.step is None and eps > self.boundary(start - 1):
            most = LEAST_LOGS[start - 1]  # the level that epsilon uses
        else:
            start = 0
        for k in range(start, len(LEAST_LOGS)):
            # A level is skipped if its least delta is above a rough upper bound of delta.
            if 0 < k < len(LEAST_LOGS) - 1 and LEAST_LOGS[k] >= rough:
                most = LEAST_LOGS[k]
                continue
            self.used = self.level(k)
            if k == 0 and not self.first_level_only:
                upper = self.first.log_delta(eps, max(loose_from, LEAST_LOGS[0])).upper
            else:
                upper = min(self.used.log_delta(eps).upper, most)
            if upper <= threshold and threshold >= LEAST_LOGS[k]:
                return upper
            if self.first_level_only or (upper > LEAST_LOGS[k] + NATS_WITHIN and self._is_close(eps, upper)):
                break
            rough = self.guide.log_delta_above(eps) if k == 0 else rough
            if rough > LEAST_LOGS[k] and eps < self.boundary(k):
                upper = self.first.log_delta(eps).upper if k == 0 else upper
                break
            # The next level is used for epsilons above the boundary of this level. There delta is at most the least
            # delta of this level.
            most = LEAST_LOGS[k]
        # The least of the composed ln delta(eps), of (i) ever sampled and of (ii) basic composition.
        return upper if upper <= threshold else min(upper, self.log_sampled, self.log_basic(eps))

    def _is_close(self, eps: float, upper: float) -> bool:
        """Return whether later tail-truncation levels need not be tried.

        ``upper`` is the upper bound of ``ln delta(eps)`` so far.
        """
        # Later levels are needed only for a huge ``eps`` at which the bound by moments is much smaller than ``upper``.
        return eps <= LARGEST_USEFUL_EPSILON or self.guide.log_delta_above(eps) > upper - NATS_WITHIN

    @cached_property
    def guide(self) -> MomentCurve:
        """A loose upper bound of delta at every epsilon, which selects a tail-truncation level."""
        # Its profiles are evaluated at losses that are ten times as far apart as by default.
        return MomentCurve(self.phases, 2.0 * LEAST_LOGS[-1], 10.0)

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats.

        Raises:
            PrecisionError: Neither the composition nor a simple bound has a result.
        """
        if self.log_sampled <= log_delta:
            return Enclosure(0.0, 0.0)
        if self.log_beyond(LARGEST_LOSS) > log_delta and self.log_beyond(HUGE_EPSILON) > log_delta:
            self.used = None
            return Enclosure(math.inf, math.inf)
        try:
            composed = self.composed_epsilon(log_delta)
        except PrecisionError as error:
            composed = Enclosure(-math.inf, LARGEST_CAPPED_EPSILON)
            has_no_grid = isinstance(error, GridSizeError) or isinstance(self.first, PrecisionError)
            if self.log_basic(0.0 if has_no_grid else composed.upper) > log_delta:
                raise
        upper = composed.upper
        if upper and self.log_basic(upper) <= log_delta:
            ends = {"low": LEAST_CAPPED_EPSILON, "high": upper, "rtol": 1e-12}
            zero = self.log_basic(0.0) <= log_delta
            upper = 0.0 if zero else find_crossing(lambda e: self.log_basic(e) - log_delta, upper, **ends).upper
        return LazyEnclosure(lambda: composed.lower, upper) if upper else Enclosure(0.0, 0.0)

    def composed_epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats, by composition on a grid.

        Raises:
            PrecisionError: The mass of losses that count as infinite exceeds delta.
        """
        if self.first_level_only:
            return self.level(0).epsilon(log_delta)
        k = next((k for k, least in enumerate(LEAST_LOGS) if log_delta >= least), len(LEAST_LOGS) - 1)
        while k > 0 and self.boundary(k - 1) == math.inf:
            k -= 1
        self.used = used = self.level(k)
        try:
            ends = used.epsilon(log_delta)
        except PrecisionError as error:
            # Losses that count as infinite have more mass. From the boundary on, delta is at most that of the level.
            if isinstance(error, GridSizeError) or self.boundary(k) == math.inf:
                raise
            ends = Enclosure(-math.inf, self.boundary(k))
        upper = ends.upper if k == 0 else max(ends.upper, next_up(self.boundary(k - 1)))
        upper = min(upper, self.boundary(k)) if log_delta <= LEAST_LOGS[k] + NATS_WITHIN else upper
        if used is self.first:
            return LazyEnclosure(lambda: ends.lower, upper)

        def find_lower() -> float:
            # The epsilon at a larger delta is a lower bound too, so take the best of several. Rare large losses divide
            # the distribution into clusters, and no tilt resolves two neighboring clusters.
            lower, last = max([ends.lower, *self.lower_ends_of_one(log_delta)]), len(LEAST_POWERS) - 1
            if log_delta < LEAST_LOGS[last]:
                return max(lower, self.level(last).epsilon(LEAST_LOGS[last]).lower)
            for power in (0.995, 0.98, 0.96, 0.93, 0.9):  # of delta
                if lower >= 0.98 * upper or _are_costly(self.phases):
                    break
                lower = max(lower, used.epsilon(power * log_delta).lower)
            return lower

        return LazyEnclosure(find_lower, upper)

    def log_beyond(self, eps: float) -> float:
        """Return a lower bound of the log probability that any release has a loss above ``eps``.

        If only infinite losses are above ``eps`` (nats), the result is also a lower bound of ``ln delta`` of the run at
        every epsilon.
        """
        # ln(1 - prod_i (1 - delta_i(eps))^T_i) for phases with the profile delta_i and T_i releases
        logs = [(min(profile.log_delta(eps).lower, -1e-300), steps) for profile, steps in self.releases]
        # x = sum T_i delta_i, and delta_0 >= x - x^2/2
        top = max(log for log, _ in logs)
        log_sum = top + math.log(math.fsum(steps * math.exp(log - top) for log, steps in logs)) if top > -1e300 else top
        if log_sum < -1.0:
            return log_sum + math.log1p(-0.5 * math.exp(log_sum)) - 1e-12 * (1.0 - log_sum)
        return log1m_exp(math.fsum(steps * log1m_exp(log) for log, steps in logs)) - 1e-12

    def lower_ends_of_one(self, log_delta: float) -> list[float]:
        """Return lower bounds of epsilon (nats) of a single release of each phase.

        Each of them is also a lower bound for the run, which includes the release.
        """
        return [profile.epsilon(log_delta).lower for profile, _ in self.releases]

    @cached_property
    def shares(self) -> list[float]:
        """The share of epsilon that one release of each phase gets in basic composition."""
        # Shares times numbers of releases add up to 1. Any such shares give a valid bound.
        # They are proportional to the epsilon of one release.
        if len(self.releases) == 1:
            return [1.0 / self.releases[0][1]]
        # 20: the epsilons are compared at a delta that is so many nats below delta(0).
        sizes = [
            max(profile.epsilon(min(profile.log_delta(0.0).upper, 0.0) - 20.0).upper, LEAST_CAPPED_EPSILON)
            for profile, _ in self.releases
        ]
        sizes = [min(size, LARGEST_CAPPED_EPSILON) for size in sizes]
        total = math.fsum(steps * size for size, (_, steps) in zip(sizes, self.releases, strict=True)) * (1.0 + 1e-15)
        return [size / total for size in sizes]

    def log_basic(self, eps: float) -> float:
        """Return ``ln delta`` by basic composition at ``eps`` (nats), rounded up (C23)."""
        # (ii) ln sum_i T_i delta_i(w_i eps)
        logs = [
            profile.log_delta(eps * share * (1.0 - 1e-15)).upper + math.log(steps)
            for (profile, steps), share in zip(self.releases, self.shares, strict=True)
        ]
        top = max(logs)
        return min(top + math.log(math.fsum(math.exp(x - top) for x in logs)) + 1e-13 * (1.0 + abs(top)), 0.0)


@dataclass(eq=False)
class _Level:
    """The privacy curve of a run for a range of deltas, on a grid with suitably truncated tails."""

    # The curve is the smaller of a composition on this grid and the bound by moments. The first such grid after the
    # default one also evaluates the default grid, which may be tighter.

    k: int
    phases: Phases
    step: float | None
    log_cut: float
    default: GridCurve | PrecisionError | None
    numerics: dict[str, object] = field(default_factory=MOMENTS_NUMERICS.copy)

    @cached_property
    def grid(self) -> GridCurve | PrecisionError:
        """The privacy curve on the grid, or the exception that says why there is no grid."""
        if self.k >= len(LEAST_POWERS):
            return PrecisionError(NOTHING_SO_SMALL)
        try:
            cut, rough = math.exp(self.log_cut), ROUGH_SHARE * math.exp(LEAST_LOGS[self.k])
            coarse = [describe_coarsely(*phase, cut, NATS_OF_PLATEAU, rough) for phase in self.phases]
            return GridCurve(coarse, self.step)
        except PrecisionError as error:
            return error

    @cached_property
    def moments(self) -> MomentCurve:
        """The bound of delta by the moments ``E e^(theta loss)`` of the privacy loss."""
        # Profiles are evaluated at fewer losses if evaluations are costly.
        return MomentCurve(self.phases, self.log_cut, 4.0 if _are_costly(self.phases) else 1.0)

    @cached_property
    def is_tight(self) -> bool:
        """True if upper and lower bounds of epsilon on the grid are close to each other."""
        # They are compared at the smallest and largest delta of the level.
        # A floor of the profile can raise the truncation. Near it, the grid is not tight.
        if isinstance(self.grid, PrecisionError) or self.log_cut > LEAST_LOGS[self.k] - 0.5 * NATS_ABOVE_CUT:
            return False
        try:
            ends = [self.grid.epsilon(log) for log in LEAST_LOGS[self.k - 1 : self.k + 1]]
        except PrecisionError:
            return False
        return all(end.upper <= CLOSE_ENOUGH * _lower_end(end) for end in ends)

    def evaluate(self, read: Callable[[GridCurve], Enclosure], by_moments: Callable[[MomentCurve], float]) -> Enclosure:
        """Return an enclosure of epsilon or of ``ln delta``.

        Args:
            read: Computes the enclosure from the privacy curve on a grid.
            by_moments: Computes an upper end from the bound by moments, which is used if the grid is not tight.
        """
        # If the grid is not tight, the upper end is the least one of this grid, the default grid and the bound by
        # moments.
        results: list[tuple[Enclosure, GridCurve]] = []
        for grid in (self.grid,) if self.is_tight else (self.grid, self.default):
            with suppress(PrecisionError):
                results += [(read(grid), grid)] if isinstance(grid, GridCurve) else []
        ends_above = [ends.upper for ends, _ in results]
        upper = min(ends_above if self.is_tight and ends_above else [by_moments(self.moments), *ends_above])
        self.numerics = next((grid.numerics for ends, grid in results if ends.upper == upper), MOMENTS_NUMERICS)
        return LazyEnclosure(lambda: max((_lower_end(ends) for ends, _ in results), default=-math.inf), upper)

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``; ``eps`` is in nats."""
        return self.evaluate(lambda grid: grid.log_delta(eps), lambda moments: moments.log_delta_above(eps))

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats.

        Raises:
            PrecisionError: No upper bound is known.
        """
        ends = self.evaluate(lambda grid: grid.epsilon(log_delta), lambda moments: moments.epsilon_above(log_delta))
        if ends.upper == math.inf:
            raise self.grid if isinstance(self.grid, PrecisionError) else PrecisionError(NOTHING_SO_SMALL)
        return ends


def _lower_end(ends: Enclosure) -> float:
    """Return the lower end of an enclosure, or ``-inf`` if it cannot be computed."""
    try:
        return ends.lower
    except GridSizeError:
        return -math.inf


def _are_costly(phases: Phases) -> bool:
    # Then some searches for tighter bounds are omitted.
    return any(profile.is_costly for profile, _ in phases)


def truncate_below(profile: PrivacyProfile, log_cut: float) -> PrivacyProfile:
    """Return the privacy profile with tabulated deltas that are accurate down to ``e^log_cut``."""
    if profile.with_smaller_tails is not None:
        profile = profile.with_smaller_tails(math.exp(log_cut))
    if profile.table is None:
        return profile
    columns = lru_cache(maxsize=4)(lambda eps: log_delta_columns(profile, np.array(eps)))

    def column(which: int) -> Callable[[Array], Array]:
        return lambda eps: np.exp(columns(tuple(eps.tolist()))[which])

    return replace(profile, table=TwoSidedTable(column(0), column(1)))


def log_ever_sampled(runs: list[Run]) -> float:
    """Return the log probability that the record is in any batch, rounded up (C23)."""
    if any(run.sampling_rate == 1.0 for run in runs):
        return 0.0
    # (i) ln(1 - prod_i (1 - q_i)^T_i)
    untouched = math.fsum(run.steps * math.log1p(-run.sampling_rate) for run in runs)
    return min(log1m_exp(untouched) + 1e-12, 0.0)
