"""A composed run at every depth of its tails: for a small delta they are cut further out (C23, "Depths").

A grid of losses has to end somewhere, and what lies beyond counts as infinite: a floor, below which it says nothing. So
there are levels, each a composition on a grid. The first, with the ordinary grid, answers deltas from the first of
:data:`LEAST_LOGS` on. Each of the others cuts the tails far below the least delta that it answers.

No answer is above the simple bounds of a run (C23, "Simple bounds"):

* (i) *Ever sampled:* delta is at most ``1 - prod (1 - q_i)^T_i``, the probability that the record is in any batch.
* (ii) *Basic composition:* delta is at most ``sum T_i delta_i(w_i eps)`` for all shares with ``sum T_i w_i = 1``.

Here phase ``i`` has ``T_i`` releases at the sampling rate ``q_i``, each with the profile ``delta_i``.
"""

import math
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from privproj.composition.dominating_pairs import LARGEST_LOSS, TRUNCATED_RUN_MASS, outline_step
from privproj.composition.grid import GridCurve, NoGrid
from privproj.curves.profile import Phases, PrivacyProfile
from privproj.errors import GridLimit, PrecisionLimit
from privproj.numerics.arrays import Array
from privproj.numerics.enclosure import Enclosure, LateEnclosure, log1m_exp
from privproj.numerics.search import find_crossing
from privproj.runs import Run

LEAST_LOGS = tuple(power * math.log(10.0) for power in (-15.5, -60, -83, -120, -190, -260))
"""The log of the least delta of each level; down to the first, deltas are ordinary. Speed only."""

LARGEST_CAPPED_EPSILON = 1e15
"""Largest epsilon, in nats, at which a simple bound is looked for when the composition has no answer. Contract."""

LEAST_CAPPED_EPSILON = 1e-200
"""Where the search for a small epsilon ends, and the least epsilon that a share is computed from. Speed only."""


class DepthCurve:
    """A composed curve of all levels, nowhere above the simple bounds; its inverse is nowhere above theirs.

    It is as sound as the profiles of the phases (C18, C19, C23). ``step`` is the distance of lattice points in nats
    that was asked for; where it ``is_shallow`` the first level alone answers.
    """

    inverse_spacing: ClassVar[float] = 2.0**-33
    """Spacing of the log deltas that are answered (C24). Speed only."""

    def __init__(self, phases: Phases, step: float | None) -> None:
        self.phases, self.step, self.is_shallow = phases, step, False
        # How many levels are kept for further questions. Speed only.
        self.level = lru_cache(maxsize=8)(self._level)
        self.used = self.level(0)
        self.releases = [
            (profile if run.sampling_rate == 1.0 else profile.sampled(run.sampling_rate), run.steps)
            for profile, run in phases
        ]
        self.log_sampled = _log_ever_sampled([run for _, run in phases])

    @property
    def numerics(self) -> dict[str, object]:
        """How the last answer was computed: the composer, and the grid."""
        return self.used.numerics

    @cached_property
    def shallow(self) -> "DepthCurve":
        """The same without the levels of small deltas."""
        curve = copy(self)
        curve.is_shallow = True
        return curve

    def _level(self, k: int) -> GridCurve | NoGrid:
        """The composition on a grid of a level, or why there is none."""
        phases, cut = self.phases, TRUNCATED_RUN_MASS
        if k > 0:
            # Where a level cuts the tails, as a share of its least delta. Speed only.
            log_cut = LEAST_LOGS[k] + math.log(1e-16)
            phases = [(deepened(profile, log_cut), run) for profile, run in phases]
            cut = math.exp(max(log_cut, *(_log_floor(profile, run) for profile, run in phases)))
        try:
            return GridCurve([outline_step(*phase, cut) for phase in phases], self.step)
        except PrecisionLimit as error:
            return NoGrid(error)

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, enclosed; ``eps`` is in nats."""
        upper, used = self.log_delta_unless(eps, -math.inf), self.used
        return LateEnclosure(lambda: -math.inf if isinstance(used, NoGrid) else used.log_delta(eps).lower, upper)

    def log_delta_unless(self, eps: float, enough: float) -> float:
        """The upper end of :meth:`log_delta` unless that is at most ``enough``: then an upper bound that is so too."""
        self.used = self.level(0)
        if isinstance(self.used, NoGrid):
            # Where losses are too large for a grid, ever sampled (i) is nearly the truth.
            if self.log_sampled == 0.0:
                raise self.used.reason
            return min(self.log_sampled, self.log_basic(eps))
        upper = min(self.used.log_delta(eps, enough).upper, 0.0)
        for k, least in enumerate(LEAST_LOGS[:-1], start=1):
            if self.is_shallow or upper > least or upper <= enough:
                break
            with suppress(PrecisionLimit):
                deeper = self.level(k).log_delta(eps).upper
                if deeper < upper:
                    upper, self.used = deeper, self.level(k)
        # Below its least delta the last level is not followed, as it hangs there on where its tails end.
        upper = max(upper, LEAST_LOGS[-1])
        # The least of the composed ln delta(eps), of (i) ever sampled and of (ii) basic composition.
        return upper if upper <= enough else min(upper, self.log_sampled, self.log_basic(eps))

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
            has_no_grid = isinstance(error, GridLimit) or isinstance(self.level(0), NoGrid)
            if self.log_basic(0.0 if has_no_grid else composed.upper) > log_delta:
                raise
        upper = composed.upper
        if upper and self.log_basic(upper) <= log_delta:
            ends = {"low": LEAST_CAPPED_EPSILON, "high": upper, "rtol": 1e-12}
            zero = self.log_basic(0.0) <= log_delta
            upper = 0.0 if zero else find_crossing(lambda e: self.log_basic(e) - log_delta, upper, **ends).upper
        return LateEnclosure(lambda: composed.lower, upper) if upper else Enclosure(0.0, 0.0)

    def composed_epsilon(self, log_delta: float) -> Enclosure:
        """The least ``eps(delta)`` of the level of this delta and of all before, which may be closest still.

        Raises :class:`PrecisionLimit` where infinite losses alone exceed delta.
        """
        deepest = 0 if self.is_shallow else len(LEAST_LOGS) - 1
        k = next((k for k, least in enumerate(LEAST_LOGS[:deepest]) if log_delta >= least), deepest)
        grids, answers = [self.level(j) for j in range(k, -1, -1)], []
        for grid in grids:
            with suppress(PrecisionLimit):
                answers.append((grid.epsilon(log_delta), grid))
        if not answers:
            return grids[0].epsilon(log_delta)
        ends, self.used = min(answers, key=lambda answer: answer[0].upper)
        return ends

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
    table = profile.table
    if table is None:
        return profile

    def ends(eps: Array) -> tuple[Array, Array]:
        lower, upper = (np.array(end) for end in table(eps))
        # The least delta that is read from a table: below, single values are tighter. Speed only.
        deep = np.flatnonzero(upper < 1e-20)
        if profile.log_deltas is not None:
            lower[deep], upper[deep] = np.exp(profile.log_deltas(eps[deep]))
            return lower, upper
        for i in deep.tolist():
            lower[i], upper[i] = np.exp(profile.log_delta(float(eps[i])))
        return lower, upper

    return replace(profile, table=ends)


def _log_ever_sampled(runs: list[Run]) -> float:
    """The log of the probability that the record is in any batch, rounded up (C23)."""
    if any(run.sampling_rate == 1.0 for run in runs):
        return 0.0
    # (i) ln(1 - prod_i (1 - q_i)^T_i)
    untouched = math.fsum(run.steps * math.log1p(-run.sampling_rate) for run in runs)
    return min(log1m_exp(untouched) + 1e-12, 0.0)
