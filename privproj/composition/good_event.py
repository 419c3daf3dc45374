"""Good-event accounting: part of delta for an unlikely event, the rest for a Gaussian run outside of it (C16).

The event is that a release stretches the change of a record by more than a factor ``radius(p)``, which happens with
probability at most ``p``. Let there be ``n`` occasions for it in the run, and let ``H^tau``, ``tau = radius(p)^2``, be
the profile of the same run of the Gaussian mechanism at ``mu radius(p)``. Then delta is at most ``n p + H^tau``. Every
``p`` is sound, so the split of delta between both terms may be given or searched for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from privproj.composition.compose import compose
from privproj.numerics.interval import ANSWER_DIGITS, Enclosure, log_difference, next_up
from privproj.numerics.root_finding import minimise
from privproj.numerics.special import log_add
from privproj.profiles.approximate_dp import log_delta_by_search
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, shallow
from privproj.run import Run

KEPT_RUNS = 64
"""How many Gaussian runs are kept for further questions. Speed only."""

EVENT_SPACING = 2.0**-6
"""Distance of the ``ln(n p)`` that such a run tries: delta is off its least by a relative 1e-5 at most. Speed only."""

ROUGH_SPACING = 2.0**-2
"""Distance of those that are tried roughly, so that many questions try the same ones. Speed only."""

LEAST_ROUGH_EVENT = -30.0
"""Least ``ln(n p)`` that is chosen by rough runs, whose rounding shows below. Speed only."""

FIRST_EVENT = -12.0
"""The ``ln(n p)`` that is tried first. Speed only."""

LEAST_EVENT = -665.0
"""Least ``ln(n p)`` that is tried. Speed only."""

MOST_EVENT = -0.5
"""Largest ``ln(n p)`` that is tried. Speed only."""

LEAST_SLOPE = 1e-9
"""Least slope ``-d ln H^tau / d ln(n p)`` that is believed; the largest is its inverse. Speed only."""


@dataclass(frozen=True)
class GoodEventCurve:
    """The curve ``delta(eps) = n p + H^tau(eps)`` of a run (C16); the bound that gives ``release`` guarantees it."""

    release: "GoodEvent"
    """What the bound says of one release."""

    run: Run
    """The run whose curve this is."""

    log_count: float
    """``ln n``, ``n`` how often the event may occur in the run."""

    @property
    def split(self) -> float | str:
        """The share of delta for the event, above 0 and below 1, or "optimal"."""
        return self.run.split or self.release.default_split

    @property
    def leads_with_epsilon(self) -> bool:
        """True with a given split: delta is then searched for as the inverse of epsilon (C24)."""
        return isinstance(self.split, float)

    @property
    def digits(self) -> int:
        """Digits of an epsilon that is answered (C24): less where the search for the best split is rougher.

        With a given split epsilon is that of a Gaussian run, which is itself a search, right to 1e-12 of it.
        """
        if self.leads_with_epsilon:
            return 8 if self.composed else 10
        return 5 if self.composed else ANSWER_DIGITS

    @property
    def numerics(self) -> dict[str, object]:
        """How delta is split between the event and the Gaussian run, for an answer to say."""
        return {"split": self.split}

    @property
    def composed(self) -> bool:
        """True where the Gaussian run needs a grid, so that each trial of a split is a composition."""
        return self.run.sampling_rate < 1.0

    @property
    def log_sampled(self) -> float:
        """The log of the probability that the record is in any batch, which delta is never above (C23)."""
        if not self.composed:
            return 0.0
        from privproj.composition.tails import log_ever_sampled

        return log_ever_sampled([self.run])

    @lru_cache(maxsize=KEPT_RUNS)  # noqa: B019  (both readings ask for the same runs; a curve lives for one question)
    def gaussian(self, log_bad: float) -> Curve:
        """The curve ``H^tau`` of the Gaussian run outside an event for which ``ln(n p)`` is ``log_bad``."""
        return shallow(compose(self.gaussian_release(log_bad), self.run))

    @lru_cache(maxsize=KEPT_RUNS)  # noqa: B019
    def rough_gaussian(self, log_bad: float) -> Curve:
        """The same on a coarse grid, by which a split is chosen."""
        # Values of a profile per deviation of the loss by which an event is chosen. Speed only.
        profile = replace(self.gaussian_release(log_bad), resolution=32.0)
        return shallow(compose(profile, replace(self.run, discretization=None)))

    def gaussian_release(self, log_bad: float) -> PrivacyProfile:
        """The profile of one release outside of the event."""
        # mu radius(p), with ln p = ln(n p) - ln n lowered by its rounding: a smaller p has a larger radius.
        return gaussian_profile(next_up(self.release.mu * self.release.radius(log_bad - self.log_count - 1e-12)))

    def at_share(self, log_delta: float, log_odds: float) -> float:
        """``eps`` (nats) at which delta is met when the event gets the share ``1/(1 + e^-log_odds)`` of it."""
        # n p = share delta,  H^tau(eps) = (1 - share) delta
        log_share, log_rest = -math.log1p(math.exp(-log_odds)), -math.log1p(math.exp(log_odds))
        return self.gaussian(log_delta + log_share).epsilon(log_delta + log_rest).upper

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats at the given split, or at the best one found (C16); the lower end is not known."""
        if isinstance(self.split, float):
            log_odds = math.log(self.split) - math.log1p(-self.split)
            return Enclosure(-math.inf, self.at_share(log_delta, log_odds))
        if self.log_sampled <= log_delta:
            return Enclosure(-math.inf, 0.0)
        if self.composed and log_delta > LEAST_ROUGH_EVENT:
            return Enclosure(-math.inf, self.composed_epsilon(log_delta))
        rtol = 3e-3 if self.composed else 1e-9
        # Least and largest log odds of the share of delta that goes to the bad event. Any share is sound. Speed only.
        best = minimise(lambda x: self.at_share(log_delta, x), -40.0, 2.5, rtol=rtol, points=8)[1]
        return Enclosure(-math.inf, best)

    def composed_epsilon(self, log_delta: float) -> float:
        """``eps`` (nats) at the event that :meth:`best_event` chooses there."""
        chosen, most = _floor_to(log_delta - 1.0, EVENT_SPACING), _floor_to(log_delta - EVENT_SPACING, EVENT_SPACING)
        eps = self.rough_gaussian(chosen).epsilon(log_difference(log_delta, chosen)).upper
        tried = None
        # How often an event is chosen for the epsilon that the last one has. Speed only.
        for _ in range(4):
            chosen = min(self.best_event(eps), most) if eps < math.inf else chosen
            if chosen == tried:
                break
            # H^tau(eps) = delta - n p
            eps, tried = self.gaussian(chosen).epsilon(log_difference(log_delta, chosen)).upper, chosen
        return eps

    @lru_cache(maxsize=KEPT_RUNS)  # noqa: B019
    def best_event(self, eps: float) -> float:
        """``ln(n p)`` near its best for ``eps`` (nats), a multiple of :data:`EVENT_SPACING`, by rough runs.

        ``n p`` grows with ``p`` and ``H^tau`` falls, and their sum is least where the slopes of both agree. That is at
        ``n p = m H^tau``, with the slope ``-m`` of ``ln H^tau`` in ``ln(n p)``.
        """

        def rest(log_bad: float) -> float:
            return self.rough_gaussian(log_bad).log_delta(eps).upper

        before, at_before = FIRST_EVENT, rest(FIRST_EVENT)
        place = _floor_to(min(max(at_before - 2.0, LEAST_EVENT), MOST_EVENT), ROUGH_SPACING)
        seen = {before: at_before}
        # Rough runs that are tried for one epsilon, before the best of them is taken. Speed only.
        for _ in range(12):
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
        """``ln delta(eps)`` at the best split found, or the inverse of :meth:`epsilon` at a given split (C16).

        The lower end is not known.
        """
        if isinstance(self.split, float):
            rtol = 1e-7 if self.composed else 1e-12
            return Enclosure(-math.inf, log_delta_by_search(lambda x: self.epsilon(x).upper, eps, rtol))

        def total(log_bad: float) -> float:
            # ln(n p + H^tau(eps))
            return log_add(log_bad, self.gaussian(log_bad).log_delta(eps).upper)

        if self.composed and (event := self.best_event(eps)) > LEAST_ROUGH_EVENT:
            return Enclosure(-math.inf, min(self.log_sampled, total(event)))
        rtol = 1e-3 if self.composed else 1e-9
        least = minimise(lambda s: total(-math.exp(s)), -0.7, 6.5, rtol=rtol, points=14)[1]
        return Enclosure(-math.inf, min(self.log_sampled, least))


@dataclass(frozen=True)
class GoodEvent:
    """What a good-event bound says of one release; the bound guarantees ``radius`` (C16)."""

    mu: float
    """Sensitivity over noise, ``1/z``."""

    radius: Callable[[float], float]
    """From ``ln p`` to the largest factor by which a release stretches a change, but for a probability ``p``."""

    sampled: bool = False
    """True where the event counts only in releases whose batch has the record in it, so that ``n = q T``."""

    once: bool = False
    """True where one draw serves all releases and ``radius`` holds for every change, so that ``n = 1``."""

    default_split: float | str = "optimal"
    """The share of delta for the event where the run does not say one, or "optimal"."""

    def over_run(self, run: Run) -> GoodEventCurve:
        """The curve of the run, in which the event may occur ``n`` times: ``T`` unless a field says otherwise."""
        # n = T,  q T,  or 1
        count = (run.sampling_rate if self.sampled else 1.0) * (1 if self.once else run.steps)
        return GoodEventCurve(self, run, math.log(count))


def _floor_to(x: float, spacing: float) -> float:
    """The largest multiple of ``spacing`` that is at most ``x``."""
    return math.floor(x / spacing) * spacing
