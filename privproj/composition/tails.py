"""A composed run at every depth of its tails: for a small delta they are cut further out (C23, "Depths").

A grid of losses has to end somewhere, and what lies beyond counts as infinite: a floor, below which it says nothing. So
there are levels. The first, with the ordinary grid, answers deltas from the first of :data:`LEAST_LOGS` on. Each of the
others cuts the tails far below the least delta that it answers, and is the least of a composition on a grid and of the
bound by moments (:mod:`privproj.composition.moments`), or the latter alone where masses would underflow.

Which level answers at an epsilon is decided by boundaries: ``b_k`` is the epsilon of level ``k`` at its least delta,
and level ``k`` answers from above ``b_(k-1)`` up to ``b_k``. So both readings use the same level there (C24).

No answer is above the simple bounds of a run (C23, "Simple bounds"):

* (i) *Ever sampled:* delta is at most ``1 - prod (1 - q_i)^T_i``, the probability that the record is in any batch.
* (ii) *Basic composition:* delta is at most ``sum T_i delta_i(w_i eps)`` for all shares with ``sum T_i w_i = 1``.

Here phase ``i`` has ``T_i`` releases at the sampling rate ``q_i``, each with the profile ``delta_i``.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from privproj.composition.dominating_pairs import LARGEST_LOSS, REMEDY, outline_step
from privproj.composition.grid import ComposedCurve, GridCurve, lower_end
from privproj.composition.moments import MomentCurve, log_delta_columns
from privproj.errors import GridLimit, PrecisionLimit
from privproj.numerics.arrays import Array
from privproj.numerics.interval import Enclosure, LateEnclosure, log1m_exp, next_up
from privproj.numerics.root_finding import find_crossing
from privproj.profiles.privacy_profile import LazyBounds, Phases, PrivacyProfile
from privproj.run import Run

Grid = ComposedCurve | GridCurve
"""A composition on a grid of losses."""

LEAST_POWERS = (-15.5, -60, -120, -190)
"""The least delta of each level with a grid, as a power of 10; down to the first, deltas are ordinary. Speed only."""

LEAST_LOGS = (*(power * math.log(10.0) for power in LEAST_POWERS), -(2.0**13), -(2.0**23))
"""The log of the least delta of each level; those that have no power of 10 have no grid either. Speed only."""

NATS_ABOVE_CUT = 10.0
"""A grid is tried at deltas at least so many nats above where tails are cut. Speed only."""

NATS_WITHIN = 1.0
"""A delta that is so many nats above the least one of a level is certainly within it. Soundness."""

CLOSE_ENOUGH = 1.002
"""A grid whose upper ends are within this factor of its lower ends is taken. Speed only."""

NOTHING_SO_SMALL = f"expected a larger delta, as losses too large to be followed may cost more; {REMEDY}"
"""Why there is no answer. Contract."""

NO_GRID_NUMERICS: dict[str, object] = {"composer": "privproj", "grid": "no grid, but whether a record is drawn"}
"""What an answer says of its numerics where losses are too large for any grid. Contract."""

MOMENTS_NUMERICS: dict[str, object] = {"composer": "privproj", "grid": "no grid, but moments of the loss"}
"""What an answer says of its numerics where moments gave it. Contract."""


LARGEST_CAPPED_EPSILON = 1e15
"""Largest epsilon, in nats, at which a simple bound is looked for when the composition has no answer. Contract."""

LEAST_CAPPED_EPSILON = 1e-200
"""Where the search for a small epsilon ends, and the least epsilon that a share is computed from. Speed only."""


class DepthCurve:
    """A composed curve of all levels, nowhere above the simple bounds; its inverse is nowhere above theirs.

    It is as sound as the profiles of the phases (C18, C19, C23). ``step`` is the distance of lattice points in nats
    that was asked for; with ``is_shallow`` the first level alone answers. Where the losses of a step are too large for
    any grid, ``first`` says so.
    """

    digits = 11
    """Significant digits of an epsilon: a search on a grid ends by so much above its root (NEWTON_RTOL). Speed only."""

    def __init__(
        self, first: GridCurve | PrecisionLimit, phases: Phases, step: float | None, *, is_shallow: bool = False
    ) -> None:
        self.first, self.phases, self.step, self.is_shallow = first, phases, step, is_shallow
        # How many levels are kept for further questions. Speed only.
        self.level = lru_cache(maxsize=8)(self._level)
        self.boundary = lru_cache(maxsize=None)(self._boundary)
        self.used: GridCurve | _Level | None = None if isinstance(first, PrecisionLimit) else first
        self.releases = [
            (profile if run.sampling_rate == 1.0 else profile.sampled(run.sampling_rate), run.steps)
            for profile, run in phases
        ]
        self.log_sampled = log_ever_sampled([run for _, run in phases])

    @property
    def numerics(self) -> dict[str, object]:
        """How the last answer was computed: the composer, and the grid."""
        return NO_GRID_NUMERICS if self.used is None else self.used.numerics

    @cached_property
    def shallow(self) -> "DepthCurve":
        """The same without the levels of small deltas."""
        return DepthCurve(self.first, self.phases, self.step, is_shallow=True)

    def _level(self, k: int) -> "GridCurve | _Level":
        """The curve of a level; raises :class:`PrecisionLimit` where the first has none."""
        if k == 0:
            if isinstance(self.first, PrecisionLimit):
                raise self.first
            return self.first
        # Where a level cuts the tails, as a share of its least delta. Speed only.
        log_cut = 2.0 * LEAST_LOGS[k] if k >= len(LEAST_POWERS) else LEAST_LOGS[k] + math.log(1e-16)
        phases = [(deepened(profile, log_cut), run) for profile, run in self.phases]
        log_cut = max(log_cut, *(_log_floor(profile, run) for profile, run in phases))
        return _Level(k, phases, self.step, log_cut, self.first if k == 1 else None)

    def _boundary(self, k: int) -> float:
        """``b_k``: the epsilon of a level at its least delta; ``inf`` for the last, or where it has no answer."""
        try:
            return self.level(k).epsilon(LEAST_LOGS[k]).upper if k + 1 < len(LEAST_LOGS) else math.inf
        except PrecisionLimit:
            return math.inf

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, enclosed; ``eps`` is in nats."""
        upper, used = self.log_delta_unless(eps, -math.inf), self.used
        return LateEnclosure(lambda: -math.inf if used is None else used.log_delta(eps).lower, upper)

    def log_delta_unless(self, eps: float, enough: float) -> float:
        """The upper end of :meth:`log_delta` unless that is at most ``enough``: then an upper bound that is so too.

        Further levels are known to find no more than the least delta of this one, as they answer above its boundary.
        """
        upper = most = 0.0
        if isinstance(self.first, PrecisionLimit):
            # Where losses are too large for a grid, ever sampled (i) is nearly the truth.
            if self.log_sampled == 0.0:
                raise self.first
            return min(self.log_sampled, self.log_basic(eps))
        # What is far below an ordinary delta may be loose.
        loose_from = enough if enough >= LEAST_LOGS[0] else -math.inf
        for k in self.levels_at(eps):
            self.used = self.level(k)
            ends = self.first.log_delta(eps, loose_from) if k == 0 else self.used.log_delta(eps)
            upper = min(ends.upper, most)
            if upper <= enough and enough >= LEAST_LOGS[k]:
                return upper
            if self.is_shallow or upper > LEAST_LOGS[k] + NATS_WITHIN or eps <= self.boundary(k):
                break
            most = LEAST_LOGS[k]
        # The least of the composed ln delta(eps), of (i) ever sampled and of (ii) basic composition.
        return upper if upper <= enough else min(upper, self.log_sampled, self.log_basic(eps))

    def levels_at(self, eps: float) -> Iterator[int]:
        """The levels that may answer at ``eps``, in the order of trial: the first, then those near a rough guess."""
        yield 0
        guess = self.guide.log_delta_above(eps)
        for k in range(1, len(LEAST_LOGS)):
            # A level is left out where its least delta is above this power of a rough upper bound of delta. Speed only.
            if LEAST_LOGS[k] <= 0.5 * guess or k + 1 == len(LEAST_LOGS):
                yield k

    @cached_property
    def guide(self) -> MomentCurve:
        """A rough bound at every delta."""
        # Its knots are spaced ten times as widely as else. Speed only.
        return MomentCurve(self.phases, 2.0 * LEAST_LOGS[-1], 10.0)

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats, enclosed: the least of the inverses of the composition and of both simple bounds.

        Where the composition has no answer and no simple bound helps, it raises what the composition raised.
        """
        if self.log_sampled <= log_delta:
            return Enclosure(0.0, 0.0)
        try:
            composed = self.composed_epsilon(log_delta)
        except PrecisionLimit as error:
            composed = Enclosure(-math.inf, LARGEST_CAPPED_EPSILON)
            has_no_grid = isinstance(error, GridLimit) or isinstance(self.first, PrecisionLimit)
            if self.log_basic(0.0 if has_no_grid else composed.upper) > log_delta:
                raise
        upper = composed.upper
        if upper and self.log_basic(upper) <= log_delta:
            ends = {"low": LEAST_CAPPED_EPSILON, "high": upper, "rtol": 1e-12}
            zero = self.log_basic(0.0) <= log_delta
            upper = 0.0 if zero else find_crossing(lambda e: self.log_basic(e) - log_delta, upper, **ends).upper
        return LateEnclosure(lambda: composed.lower, upper) if upper else Enclosure(0.0, 0.0)

    def composed_epsilon(self, log_delta: float) -> Enclosure:
        """The composed ``eps(delta)``; raises :class:`PrecisionLimit` where infinite losses alone exceed delta."""
        if self.is_shallow:
            return self.level(0).epsilon(log_delta)
        k = next((k for k, least in enumerate(LEAST_LOGS) if log_delta >= least), len(LEAST_LOGS) - 1)
        while k > 0 and self.boundary(k - 1) == math.inf:
            k -= 1
        self.used = used = self.level(k)
        ends = used.epsilon(log_delta)
        upper = ends.upper if k == 0 else max(ends.upper, next_up(self.boundary(k - 1)))
        upper = min(upper, self.boundary(k)) if log_delta <= LEAST_LOGS[k] + NATS_WITHIN else upper
        if used is self.first or _are_costly(self.phases):
            return LateEnclosure(lambda: ends.lower, upper)
        return LateEnclosure(lambda: self.from_larger_deltas(used, ends.lower, upper, log_delta), upper)

    def from_larger_deltas(self, used: "GridCurve | _Level", lower: float, upper: float, log_delta: float) -> float:
        """A lower end of the epsilon of a delta that is the best of those at larger deltas, whose epsilons are smaller.

        Few rare large losses make lumps, and between two of them no tilt holds both.
        """
        deepest = len(LEAST_POWERS) - 1
        if log_delta < LEAST_LOGS[deepest]:
            return max(lower, self.level(deepest).epsilon(LEAST_LOGS[deepest]).lower)
        # The powers of a delta whose lower ends are looked at too. Speed only.
        for share in (0.995, 0.98, 0.96, 0.93, 0.9):
            # Where a lower end is at least this share of the upper one, no better one is looked for. Speed only.
            if lower >= 0.98 * upper:
                break
            lower = max(lower, used.epsilon(share * log_delta).lower)
        return lower

    @cached_property
    def shares(self) -> list[float]:
        """Shares ``w_i`` of epsilon, ``sum T_i w_i = 1``, in proportion to what one release spends at a small delta."""
        if len(self.releases) == 1:
            return [1.0 / self.releases[0][1]]
        # Phases share epsilon as they spend it where delta is this many nats below ``ln delta(0)``. Any shares are
        # sound. Speed only.
        sizes = [
            max(profile.epsilon(min(profile.log_delta(0.0).upper, 0.0) - 20.0).upper, LEAST_CAPPED_EPSILON)
            for profile, _ in self.releases
        ]
        sizes = [min(size, LARGEST_CAPPED_EPSILON) for size in sizes]
        total = math.fsum(steps * size for size, (_, steps) in zip(sizes, self.releases, strict=True)) * (1.0 + 1e-15)
        return [size / total for size in sizes]

    def log_basic(self, eps: float) -> float:
        """The log of the bound by basic composition at ``eps`` (nats), rounded up (C23)."""
        # (ii) ln sum_i T_i delta_i(w_i eps)
        logs = [
            profile.log_delta(eps * share * (1.0 - 1e-15)).upper + math.log(steps)
            for (profile, steps), share in zip(self.releases, self.shares, strict=True)
        ]
        top = max(logs)
        return min(top + math.log(math.fsum(math.exp(x - top) for x in logs)) + 1e-13 * (1.0 + abs(top)), 0.0)


@dataclass(eq=False)
class _Level:
    """The run with tails cut at one depth: the least of a composition on a grid and of the bound by moments.

    Next to the first level the ordinary grid is asked too, which may be the closest one still.
    """

    k: int
    phases: Phases
    step: float | None
    log_cut: float
    ordinary: GridCurve | PrecisionLimit | None
    numerics: dict[str, object] = field(default_factory=MOMENTS_NUMERICS.copy)

    @cached_property
    def grid(self) -> ComposedCurve | PrecisionLimit:
        """The composition on the first grid that is close at both ends of the level, or the closest, or why none is.

        Where values of a profile are costly, that of the first grid which the next finer one does not improve. It is
        the same for every question, so that their answers agree (C24).
        """
        if self.k >= len(LEAST_POWERS):
            return PrecisionLimit(NOTHING_SO_SMALL)
        try:
            shapes = [outline_step(*phase, math.exp(self.log_cut)) for phase in self.phases]
        except PrecisionLimit as error:
            return error
        grids, best, least, last = GridCurve(shapes, self.step), None, math.inf, PrecisionLimit(NOTHING_SO_SMALL)
        levels, costly = range(len(grids.steps)), _are_costly(self.phases)
        for level in reversed(levels) if costly else levels:
            try:
                curve = grids.level(level)
                logs = LEAST_LOGS[self.k - 1 : self.k + 1]
                ends = [curve.epsilon(max(x, self.log_cut + NATS_ABOVE_CUT)) for x in logs]
            except PrecisionLimit as error:
                last = error
                continue
            pairs = [(lower_end(end), end.upper) for end in ends]
            # A lower end that is unknown is worse than any other. Speed only.
            size = max((upper / lower if lower > 0.0 else 1e9 * (1.0 + upper)) for lower, upper in pairs)
            size, before = math.fsum(end.upper for end in ends) if costly else size, least
            if size < least:
                best, least = curve, size
            if (costly and size * CLOSE_ENOUGH > before) or (not costly and size < CLOSE_ENOUGH):
                break
        return best or last

    @cached_property
    def moments(self) -> MomentCurve:
        """The bound by moments, with tails cut as deep."""
        # Knots are spaced more widely where values of a profile are costly. Speed only.
        return MomentCurve(self.phases, self.log_cut, 4.0 if _are_costly(self.phases) else 1.0)

    def read(self, on_grid: Callable[[Grid], Enclosure], by_moments: float) -> Enclosure:
        """What is found on the grid and, next to the first level, on the ordinary one, and the bound by moments."""
        answers: list[tuple[Enclosure, Grid]] = []
        for grid in (self.grid, self.ordinary):
            with suppress(PrecisionLimit):
                answers += [(on_grid(grid), grid)] if isinstance(grid, Grid) else []
        upper = min([by_moments, *(ends.upper for ends, _ in answers)])
        self.numerics = next((grid.numerics for ends, grid in answers if ends.upper == upper), MOMENTS_NUMERICS)
        return LateEnclosure(lambda: max((lower_end(ends) for ends, _ in answers), default=-math.inf), upper)

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, enclosed; ``eps`` is in nats."""
        return self.read(lambda grid: grid.log_delta(eps), self.moments.log_delta_above(eps))

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats, enclosed; raises :class:`PrecisionLimit` where no upper end is known."""
        ends = self.read(lambda grid: grid.epsilon(log_delta), self.moments.epsilon_above(log_delta))
        if ends.upper == math.inf:
            raise self.grid if isinstance(self.grid, PrecisionLimit) else PrecisionLimit(NOTHING_SO_SMALL)
        return ends


def _are_costly(phases: Phases) -> bool:
    """True where values of some profile take so long that upper ends have to do."""
    return any(profile.is_costly for profile, _ in phases)


def _log_floor(profile: PrivacyProfile, run: Run) -> float:
    """Log of the delta of a run below which tails cannot be cut, as the profile falls no more, or ``-inf``."""
    near, far = (profile.log_delta(eps).upper for eps in (0.5 * LARGEST_LOSS, LARGEST_LOSS))
    if far > -1.0 or far < near - 1.0:
        return -math.inf
    return far + math.log(2.0 * run.steps) + math.log(run.sampling_rate)


def deepened(profile: PrivacyProfile, log_cut: float) -> PrivacyProfile:
    """The profile with values that are good down to ``e^log_cut``: from its table only where they are large."""
    if profile.deeper is not None:
        profile = profile.deeper(math.exp(log_cut))
    if profile.table is None:
        return profile
    # How many columns of values of a profile are kept. Speed only.
    columns = lru_cache(maxsize=4)(lambda eps: log_delta_columns(profile, np.array(eps)))

    def end(which: int) -> Callable[[Array], Array]:
        return lambda eps: np.exp(columns(tuple(eps.tolist()))[which])

    return replace(profile, table=LazyBounds(end(0), end(1)))


def log_ever_sampled(runs: list[Run]) -> float:
    """The log of the probability that the record is in any batch, rounded up (C23)."""
    if any(run.sampling_rate == 1.0 for run in runs):
        return 0.0
    # (i) ln(1 - prod_i (1 - q_i)^T_i)
    untouched = math.fsum(run.steps * math.log1p(-run.sampling_rate) for run in runs)
    return min(log1m_exp(untouched) + 1e-12, 0.0)
