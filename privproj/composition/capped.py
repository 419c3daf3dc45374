"""A composed curve that is nowhere above the simple bounds of a run (C23, "Simple bounds").

* (i) *Ever sampled:* delta is at most ``1 - prod (1 - q_i)^T_i``, the probability that the record is in any batch.
* (ii) *Basic composition:* delta is at most ``sum T_i delta_i(w_i eps)`` for all shares with ``sum T_i w_i = 1``.

Here phase ``i`` has ``T_i`` releases at the sampling rate ``q_i``, each with the profile ``delta_i``.
"""

import math
from functools import cached_property
from typing import ClassVar

from privproj.composition.depths import DepthCurve, Grid
from privproj.composition.grid import COMPOSED_INVERSE_SPACING
from privproj.curves.profile import PrivacyProfile, log_delta_unless
from privproj.errors import GridLimit, PrecisionLimit
from privproj.numerics.enclosure import Enclosure, LateEnclosure, log1m_exp
from privproj.numerics.search import find_crossing
from privproj.runs import Run

LARGEST_CAPPED_EPSILON = 1e15
"""Largest epsilon, in nats, at which a simple bound is looked for when the composition has no answer. Contract."""

LEAST_CAPPED_EPSILON = 1e-200
"""Where the search for a small epsilon ends, and the least epsilon that a share is computed from. Speed only."""


class CappedCurve:
    """A composed curve that is nowhere above the simple bounds of C23; its inverse is nowhere above theirs.

    It is as sound as ``curve`` and as the profiles of the phases.
    """

    inverse_spacing: ClassVar[float] = COMPOSED_INVERSE_SPACING
    """Spacing of the log deltas that are answered (C24)."""

    def __init__(self, curve: DepthCurve | Grid, phases: list[tuple[PrivacyProfile, Run]]) -> None:
        self.curve, self.phases = curve, phases
        self.releases = [
            (profile if run.sampling_rate == 1.0 else profile.sampled(run.sampling_rate), run.steps)
            for profile, run in phases
        ]
        self.log_sampled = _log_ever_sampled([run for _, run in phases])

    @cached_property
    def shares(self) -> list[float]:
        """The shares ``w_i`` of epsilon in basic composition."""
        return _even_shares(self.releases)

    @cached_property
    def shallow(self) -> "CappedCurve":
        """The same without the levels of small deltas."""
        return CappedCurve(self.curve.first, self.phases) if isinstance(self.curve, DepthCurve) else self

    @property
    def numerics(self) -> dict[str, object]:
        """How the composition was computed: the composer, and the grid."""
        return self.curve.numerics

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, enclosed; ``eps`` is in nats."""
        found = self.curve.log_delta(eps)
        return LateEnclosure(lambda: found.lower, self.cap_log_delta(eps, found.upper))

    def log_delta_unless(self, eps: float, enough: float) -> float:
        """The upper end of :meth:`log_delta` unless that is at most ``enough``: then an upper bound that is so too."""
        upper = log_delta_unless(self.curve, eps, enough)
        return upper if upper <= enough else self.cap_log_delta(eps, upper)

    def cap_log_delta(self, eps: float, upper: float) -> float:
        """The least of the composed ``ln delta(eps)``, of (i) ever sampled and of (ii) basic composition."""
        return min(upper, self.log_sampled, self.log_basic(eps))

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats, enclosed: the least of the inverses of the composition and of both simple bounds.

        Where the composition has no answer and no simple bound helps, it raises what the composition raised.
        """
        if self.log_sampled <= log_delta:
            return Enclosure(0.0, 0.0)
        try:
            found = self.curve.epsilon(log_delta)
        except PrecisionLimit as error:
            found = Enclosure(-math.inf, LARGEST_CAPPED_EPSILON)
            if self.log_basic(0.0 if isinstance(error, GridLimit) else found.upper) > log_delta:
                raise
        upper = self.cap_epsilon(log_delta, found.upper)
        return LateEnclosure(lambda: found.lower, upper) if upper else Enclosure(0.0, 0.0)

    def cap_epsilon(self, log_delta: float, upper: float) -> float:
        """The least of the composed ``eps(delta)`` and of the inverse of basic composition."""
        if upper == 0.0 or self.log_basic(upper) > log_delta:
            return upper
        if self.log_basic(0.0) <= log_delta:
            return 0.0
        return find_crossing(
            lambda e: self.log_basic(e) - log_delta, upper, low=LEAST_CAPPED_EPSILON, high=upper, rtol=1e-12
        ).upper

    def log_basic(self, eps: float) -> float:
        """The log of the bound by basic composition at ``eps`` (nats), rounded up (C23)."""
        # (ii) ln sum_i T_i delta_i(w_i eps)
        logs = [
            profile.log_delta(eps * share * (1.0 - 1e-15)).upper + math.log(steps)
            for (profile, steps), share in zip(self.releases, self.shares, strict=True)
        ]
        top = max(logs)
        return min(top + math.log(math.fsum(math.exp(x - top) for x in logs)) + 1e-13 * (1.0 + abs(top)), 0.0)


def _log_ever_sampled(runs: list[Run]) -> float:
    """The log of the probability that the record is in any batch, rounded up (C23)."""
    if any(run.sampling_rate == 1.0 for run in runs):
        return 0.0
    # (i) ln(1 - prod_i (1 - q_i)^T_i)
    untouched = math.fsum(run.steps * math.log1p(-run.sampling_rate) for run in runs)
    return min(log1m_exp(untouched) + 1e-12, 0.0)


def _even_shares(releases: list[tuple[PrivacyProfile, int]]) -> list[float]:
    """Shares ``w_i`` of epsilon, ``sum T_i w_i = 1``, in proportion to what one release spends at a small delta."""
    if len(releases) == 1:
        return [1.0 / releases[0][1]]
    # Phases share epsilon as they spend it where delta is this many nats below ``ln delta(0)``. Any shares are sound.
    # Speed only.
    sizes = [
        max(profile.epsilon(min(profile.log_delta(0.0).upper, 0.0) - 20.0).upper, LEAST_CAPPED_EPSILON)
        for profile, _ in releases
    ]
    sizes = [min(size, LARGEST_CAPPED_EPSILON) for size in sizes]
    total = math.fsum(steps * size for size, (_, steps) in zip(sizes, releases, strict=True)) * (1.0 + 1e-15)
    return [size / total for size in sizes]
