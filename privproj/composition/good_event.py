"""Bound delta of a run by the probability of a bad event plus the delta of a Gaussian run (C16).

The bad event of a release is that the release multiplies the norm of the difference of neighboring sums by more than a
given factor. If the event does not occur in any release, the run has at most the privacy loss of a Gaussian run, whose
sensitivity is multiplied by this factor. Every factor gives a valid bound: the user sets the share of delta for the bad
event, or privproj optimizes it.
"""

# ``radius(p)`` is the factor that is exceeded with probability at most ``p``. The bad event can occur ``n`` times in
# the run. ``H^tau`` is the privacy profile of the Gaussian run with the sensitivity over noise ``mu radius(p)``, and
# ``tau = radius(p)^2``. So delta is at most ``n p + H^tau``.

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from privproj.composition.compose import compose
from privproj.numerics.interval import RESULT_DIGITS, Enclosure, log_difference, next_up
from privproj.numerics.root_finding import minimize
from privproj.numerics.special import log_add
from privproj.profiles.approximate_dp import log_delta_by_search
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, at_first_level
from privproj.run import Run

CACHED_RUNS = 64  # Gaussian runs that are cached
EVENT_SPACING = 2.0**-6  # nats between tried values of ln(n p); delta is within a relative 1e-5 of its minimum
ROUGH_SPACING = 2.0**-2  # the same for runs on a coarse grid; many queries share these runs
LEAST_ROUGH_EVENT = -30.0  # least ln(n p) that runs on a coarse grid determine; below, their rounding matters
FIRST_EVENT = -12.0  # first ln(n p) of a search
LEAST_EVENT = -665.0  # least ln(n p) of a search
MOST_EVENT = -0.5  # largest ln(n p) of a search
LEAST_SLOPE = 1e-9  # least slope -d ln H^tau / d ln(n p) that a search accepts; the largest is its inverse


@dataclass(frozen=True)
class GoodEventCurve:
    """An upper bound of delta of a run: the probability of a bad event plus a Gaussian delta (C16).

    In the bad event, a release multiplies the difference of neighboring sums by more than a given factor. The bound is
    valid if ``release`` bounds the probability of this event.
    """

    release: "GoodEvent"  # good event of one release

    run: Run

    log_count: float  # ``ln n``, the log of the number of times that the bad event can occur in the run

    @property
    def split(self) -> float | str:
        """The share of delta that is the probability of the bad event, or "optimal"."""
        return self.run.split or self.release.default_split

    @property
    def leads_with_epsilon(self) -> bool:
        """True if delta is computed as the inverse of epsilon (C24).

        This is the case if the share of delta for the bad event is fixed.
        """
        return isinstance(self.split, float)

    @property
    def digits(self) -> int:
        """The number of significant digits of a reported epsilon (C24)."""
        # Fewer digits are reported if delta is less accurate: after an optimization of the split on a grid, or if delta
        # is computed as the inverse of epsilon.
        if self.leads_with_epsilon:
            return 8 if self.composed else 10
        return 5 if self.composed else RESULT_DIGITS

    @property
    def numerics(self) -> dict[str, object]:
        """The share of delta for the bad event, as an entry of a result."""
        return {"split": self.split}

    @property
    def composed(self) -> bool:
        """True if batches are sampled, so that the Gaussian run needs a discretization grid."""
        return self.run.sampling_rate < 1.0

    @property
    def log_sampled(self) -> float:
        """The log probability that the record is in any batch, an upper bound of ``ln delta`` (C23)."""
        if not self.composed:
            return 0.0
        from privproj.composition.tails import log_ever_sampled

        return log_ever_sampled([self.run])

    @lru_cache(maxsize=CACHED_RUNS)  # noqa: B019  (log_delta and epsilon use the same runs; a curve lives for one query)
    def gaussian(self, log_bad: float) -> Curve:
        """Return the privacy curve of the Gaussian run in which the bad event does not occur.

        ``log_bad`` is the log of the total probability of the bad event.
        """
        return at_first_level(compose(self.gaussian_release(log_bad), self.run))

    @lru_cache(maxsize=CACHED_RUNS)  # noqa: B019
    def rough_gaussian(self, log_bad: float) -> Curve:
        """Return a faster, less accurate curve of the Gaussian run without the bad event."""
        # Its grid has only 32 values of the profile per standard deviation of the loss.
        profile = replace(self.gaussian_release(log_bad), resolution=32.0)
        return at_first_level(compose(profile, replace(self.run, discretization=None)))

    def gaussian_release(self, log_bad: float) -> PrivacyProfile:
        """Return the privacy profile of one Gaussian release in which the bad event does not occur.

        ``log_bad`` is the log of the total probability of the bad event in the run.
        """
        # mu radius(p), with ln p = ln(n p) - ln n lowered by its rounding: a smaller p has a larger radius.
        return gaussian_profile(next_up(self.release.mu * self.release.radius(log_bad - self.log_count - 1e-12)))

    def at_share(self, log_delta: float, log_odds: float) -> float:
        """Return epsilon (nats) at a delta of which a given share is for the bad event.

        Args:
            log_delta: ``ln delta``.
            log_odds: The log odds of the share, ``ln(share / (1 - share))``.
        """
        # n p = share delta,  H^tau(eps) = (1 - share) delta
        log_share, log_rest = -math.log1p(math.exp(-log_odds)), -math.log1p(math.exp(log_odds))
        return self.gaussian(log_delta + log_share).epsilon(log_delta + log_rest).upper

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an upper bound of ``eps(delta)`` in nats (C16); the lower end is ``-inf``."""
        if isinstance(self.split, float):
            log_odds = math.log(self.split) - math.log1p(-self.split)
            return Enclosure(-math.inf, self.at_share(log_delta, log_odds))
        if self.log_sampled <= log_delta:
            return Enclosure(-math.inf, 0.0)
        if self.composed and log_delta > LEAST_ROUGH_EVENT:
            return Enclosure(-math.inf, self.composed_epsilon(log_delta))
        rtol = 3e-3 if self.composed else 1e-9
        # -40 and 2.5: log odds of the share of delta for the bad event; any share is sound.
        best = minimize(lambda x: self.at_share(log_delta, x), -40.0, 2.5, rtol=rtol, points=8)[1]
        return Enclosure(-math.inf, best)

    def composed_epsilon(self, log_delta: float) -> float:
        """Return an upper bound of ``eps(delta)`` in nats for a run with sampled batches."""
        # Delta is split into the probability of the bad event and the delta of the Gaussian run, nearly optimally.
        # Every split gives a valid bound.
        # The split and epsilon are computed in turn: best_event chooses the split for the last epsilon, and this split
        # gives the next epsilon.
        chosen, most = _floor_to(log_delta - 1.0, EVENT_SPACING), _floor_to(log_delta - EVENT_SPACING, EVENT_SPACING)
        eps = self.rough_gaussian(chosen).epsilon(log_difference(log_delta, chosen)).upper
        tried = None
        for _ in range(4):  # each time for the epsilon of the last choice
            chosen = min(self.best_event(eps), most) if eps < math.inf else chosen
            if chosen == tried:
                break
            # H^tau(eps) = delta - n p
            eps, tried = self.gaussian(chosen).epsilon(log_difference(log_delta, chosen)).upper, chosen
        return eps

    @lru_cache(maxsize=CACHED_RUNS)  # noqa: B019
    def best_event(self, eps: float) -> float:
        """Return the log probability of the bad event that nearly minimizes delta at ``eps`` (nats)."""
        # n p is the total probability of the bad event, and H is the delta of the Gaussian run. As p increases, H
        # decreases. The sum n p + H is smallest at n p = m H, where -m is the slope of ln H in ln(n p). Coarse grids
        # are enough for H here.

        def rest(log_bad: float) -> float:
            return self.rough_gaussian(log_bad).log_delta(eps).upper

        before, at_before = FIRST_EVENT, rest(FIRST_EVENT)
        place = _floor_to(min(max(at_before - 2.0, LEAST_EVENT), MOST_EVENT), ROUGH_SPACING)
        seen = {before: at_before}
        for _ in range(12):  # after 12 runs on coarse grids the best ln(n p) is returned
            if place == before:
                place = before - ROUGH_SPACING
            seen[place] = at = rest(place)
            slope = min(max((at_before - at) / (place - before), LEAST_SLOPE), 1.0 / LEAST_SLOPE)
            # the root of l = ln m + ln H^tau(place) - m (l - place)
            best = (math.log(slope) + at + slope * place) / (1.0 + slope)
            best = min(max(best, LEAST_EVENT), MOST_EVENT)
            if abs(best - place) <= ROUGH_SPACING >= abs(place - before):
                return _floor_to(best, EVENT_SPACING)
            before, at_before, place = place, at, _floor_to(best, ROUGH_SPACING)
        return min(seen, key=lambda log_bad: log_add(log_bad, seen[log_bad]))

    def log_delta(self, eps: float) -> Enclosure:
        """Return an upper bound of ``ln delta(eps)``, ``eps`` in nats (C16); the lower end is ``-inf``."""
        # For a fixed split, the result is the inverse of epsilon. Otherwise the best split is used.
        if isinstance(self.split, float):
            rtol = 1e-7 if self.composed else 1e-12
            return Enclosure(-math.inf, log_delta_by_search(lambda x: self.epsilon(x).upper, eps, rtol))

        def total(log_bad: float) -> float:
            # ln(n p + H^tau(eps))
            return log_add(log_bad, self.gaussian(log_bad).log_delta(eps).upper)

        if self.composed and (event := self.best_event(eps)) > LEAST_ROUGH_EVENT:
            return Enclosure(-math.inf, min(self.log_sampled, total(event)))
        rtol = 1e-3 if self.composed else 1e-9
        least = minimize(lambda s: total(-math.exp(s)), -0.7, 6.5, rtol=rtol, points=14)[1]
        return Enclosure(-math.inf, min(self.log_sampled, least))


@dataclass(frozen=True)
class GoodEvent:
    """The event that a release multiplies the difference of neighboring sums by at most a factor (C16).

    The code that builds the event guarantees that it fails with probability at most ``p`` for the factor
    ``radius(ln p)``.
    """

    mu: float  # sensitivity divided by the standard deviation of the noise, the inverse of the noise multiplier

    # maps ``ln p`` to a factor: with probability at least ``1 - p``, a release multiplies the norm of a difference of
    # neighboring sums by at most this factor
    radius: Callable[[float], float]

    # True if the bad event counts only in releases whose batch contains the record; then ``n = q T``
    sampled: bool = False

    # True if all releases use one random matrix and ``radius`` holds for every difference at once; then ``n = 1``
    once: bool = False

    default_split: float | str = "optimal"  # share of delta for the bad event, if the run has none; or "optimal"

    def over_run(self, run: Run) -> GoodEventCurve:
        """Return the privacy curve of a run of releases with this event."""
        # The bad event can occur n times: the number of steps, or 1 if ``once`` is True, times the sampling rate if
        # ``sampled`` is True.
        # n = T, q T or 1
        count = (run.sampling_rate if self.sampled else 1.0) * (1 if self.once else run.steps)
        return GoodEventCurve(self, run, math.log(count))


def _floor_to(x: float, spacing: float) -> float:
    """Return the largest multiple of ``spacing`` that is at most ``x``."""
    return math.floor(x / spacing) * spacing
