"""Good-event accounting: part of delta for an event, the rest for a Gaussian run at the shift that it allows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from privproj.composition.compose import compose
from privproj.curves.epsilon_delta import log_delta_by_search
from privproj.curves.gaussian import gaussian_profile
from privproj.curves.profile import Curve
from privproj.numerics import kernels
from privproj.numerics.enclosure import Enclosure, next_up
from privproj.numerics.search import minimise
from privproj.runs import Run

KEPT_RUNS = 64
"""Gaussian runs that are kept. Speed only."""

LEAST_LOG_ODDS = -40.0
"""Least log odds of the share of delta that goes to the bad event. Any share is sound. Speed only."""

LEAST_LOG_ODDS_ON_GRID = -10.0
"""The same for a run that needs a grid, where each trial costs more. Speed only."""

MOST_LOG_ODDS = 2.5
"""Largest log odds of that share. Speed only."""


@dataclass(frozen=True)
class GoodEventCurve:
    """``delta = n p + delta_gauss(eps; mu radius(p))``, ``n`` how often the event of probability ``p`` can occur.

    Outside the event that some release stretches the change by more than ``radius(p)`` the run is a (subsampled)
    Gaussian run at ``mu radius(p)``. ``radius`` takes ``ln p``.
    """

    mu: float
    radius: Callable[[float], float]
    run: Run
    log_count: float
    default_split: float | str

    @property
    def split(self) -> float | str:
        """The share of delta for the bad event, or "optimal"."""
        return self.run.split or self.default_split

    @property
    def leads_with_epsilon(self) -> bool:
        """With a given split delta is searched for as the inverse of epsilon."""
        return isinstance(self.split, float)

    @property
    def inverse_spacing(self) -> float:
        """Spacing of the log deltas that are answered: as wide as the best split, found twice, may differ."""
        return 2.0**-30 if self.accuracy < 1e-6 else 2.0**-14

    @property
    def numerics(self) -> dict[str, object]:
        """How delta is split between the bad event and the Gaussian run."""
        return {"split": self.split}

    @property
    def accuracy(self) -> float:
        """Relative tolerance of the search for the best split. It is wider for a sampled run.

        Such a run needs a grid, and each trial is a composition. Any split is sound.
        """
        return 1e-9 if self.run.sampling_rate == 1.0 else 3e-3

    @lru_cache(maxsize=KEPT_RUNS)  # noqa: B019  (both readings ask for the same runs; a curve lives for one question)
    def gaussian(self, log_bad: float) -> Curve:
        """The curve of the Gaussian run outside a bad event that has this log probability over the whole run."""
        profile = gaussian_profile(next_up(self.mu * self.radius(log_bad - self.log_count - 1e-12)))
        return compose(profile, self.run)

    def at_share(self, log_delta: float, log_odds: float) -> float:
        """``eps`` when the bad event gets the share ``1/(1 + e^-log_odds)`` of delta."""
        log_share, log_rest = -math.log1p(math.exp(-log_odds)), -math.log1p(math.exp(log_odds))
        return self.gaussian(log_delta + log_share).epsilon(log_delta + log_rest).upper

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` at the given split, or at the best one (C16); the lower end is not known."""
        if isinstance(self.split, float):
            log_odds = math.log(self.split) - math.log1p(-self.split)
            return Enclosure(-math.inf, self.at_share(log_delta, log_odds))
        least = LEAST_LOG_ODDS if self.run.sampling_rate == 1.0 else LEAST_LOG_ODDS_ON_GRID
        best = minimise(
            lambda odds: self.at_share(log_delta, odds), least, MOST_LOG_ODDS, rtol=self.accuracy, points=8
        )[1]
        return Enclosure(-math.inf, best)

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)`` at the best split, or the inverse of :meth:`epsilon` at a given split (C16)."""
        if isinstance(self.split, float):
            rtol = 1e-12 if self.run.sampling_rate == 1.0 else 1e-7
            return Enclosure(-math.inf, log_delta_by_search(lambda x: self.epsilon(x).upper, eps, rtol))

        def total(s: float) -> float:
            # ln [n p + delta_gauss(eps; mu radius(p))] at ln(n p) = -e^s
            log_bad = -math.exp(s)
            return kernels.log_add(log_bad, self.gaussian(log_bad).log_delta(eps).upper)

        return Enclosure(-math.inf, min(0.0, minimise(total, -0.7, 6.5, rtol=min(self.accuracy, 1e-3), points=14)[1]))


@dataclass(frozen=True)
class GoodEvent:
    """Good-event accounting of any run: the event may occur ``n`` times, ``n = T`` by default (C16).

    With ``sampled`` a failure counts only when the record is in the batch, so ``n = q T``. With ``once`` one draw
    serves all releases and the radius holds for every change, so ``n = 1``.
    """

    mu: float
    radius: Callable[[float], float]
    sampled: bool = False
    once: bool = False
    default_split: float | str = "optimal"

    def over_run(self, run: Run) -> GoodEventCurve:
        """The curve of the run, with the number ``n`` of times that the event can occur in it."""
        count = (run.sampling_rate if self.sampled else 1.0) * (1 if self.once else run.steps)
        return GoodEventCurve(self.mu, self.radius, run, math.log(count), self.default_split)
