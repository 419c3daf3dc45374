"""Good-event accounting: part of delta for an unlikely event, the rest for a Gaussian run outside of it (C16).

The event is that a release stretches the change of a record by more than a factor ``radius(p)``, which happens with
probability at most ``p``. Let there be ``n`` occasions for it in the run, and let ``H^tau``, ``tau = radius(p)^2``, be
the profile of the same run of the Gaussian mechanism at ``mu radius(p)``. Then delta is at most ``n p + H^tau``. Every
``p`` is sound, so the split of delta between both terms may be given or searched for.
"""

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
"""How many Gaussian runs are kept for further questions. Speed only."""

LEAST_LOG_ODDS = -40.0
"""Least log odds of the share of delta that goes to the bad event. Any share is sound. Speed only."""

LEAST_LOG_ODDS_ON_GRID = -10.0
"""The same for a run that needs a grid, where each trial costs more. Speed only."""

MOST_LOG_ODDS = 2.5
"""Largest log odds of that share. Speed only."""


@dataclass(frozen=True)
class GoodEventCurve:
    """The curve ``delta(eps) = n p + H^tau(eps)`` of a run (C16); the bound that gives ``radius`` guarantees it."""

    mu: float
    """Sensitivity over noise, ``1/z``."""

    radius: Callable[[float], float]
    """From ``ln p`` to the largest factor by which a release stretches a change, but for a probability ``p``."""

    run: Run
    """The run whose curve this is."""

    log_count: float
    """``ln n``, ``n`` how often the event may occur in the run."""

    default_split: float | str
    """The split where the run does not say one."""

    @property
    def split(self) -> float | str:
        """The share of delta for the event, above 0 and below 1, or "optimal"."""
        return self.run.split or self.default_split

    @property
    def leads_with_epsilon(self) -> bool:
        """True with a given split: delta is then searched for as the inverse of epsilon (C24)."""
        return isinstance(self.split, float)

    @property
    def inverse_spacing(self) -> float:
        """Spacing of the log deltas that are answered (C24): wider where the search for the best split is rougher."""
        return 2.0**-30 if self.accuracy < 1e-6 else 2.0**-14

    @property
    def numerics(self) -> dict[str, object]:
        """How delta is split between the event and the Gaussian run, for an answer to say."""
        return {"split": self.split}

    @property
    def accuracy(self) -> float:
        """Relative tolerance of the search for the best split. It is wider for a sampled run.

        Such a run needs a grid, and each trial is a composition. Any split is sound.
        """
        return 1e-9 if self.run.sampling_rate == 1.0 else 3e-3

    @lru_cache(maxsize=KEPT_RUNS)  # noqa: B019  (both readings ask for the same runs; a curve lives for one question)
    def gaussian(self, log_bad: float) -> Curve:
        """The curve ``H^tau`` of the Gaussian run outside an event for which ``ln(n p)`` is ``log_bad``."""
        # mu radius(p), with ln p = ln(n p) - ln n lowered by its rounding: a smaller p has a larger radius.
        profile = gaussian_profile(next_up(self.mu * self.radius(log_bad - self.log_count - 1e-12)))
        return compose(profile, self.run)

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
        least = LEAST_LOG_ODDS if self.run.sampling_rate == 1.0 else LEAST_LOG_ODDS_ON_GRID
        best = minimise(
            lambda odds: self.at_share(log_delta, odds), least, MOST_LOG_ODDS, rtol=self.accuracy, points=8
        )[1]
        return Enclosure(-math.inf, best)

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)`` at the best split found, or the inverse of :meth:`epsilon` at a given split (C16).

        The lower end is not known.
        """
        if isinstance(self.split, float):
            rtol = 1e-12 if self.run.sampling_rate == 1.0 else 1e-7
            return Enclosure(-math.inf, log_delta_by_search(lambda x: self.epsilon(x).upper, eps, rtol))

        def total(s: float) -> float:
            # ln(n p + H^tau(eps)) at ln(n p) = -e^s
            log_bad = -math.exp(s)
            return kernels.log_add(log_bad, self.gaussian(log_bad).log_delta(eps).upper)

        return Enclosure(-math.inf, min(0.0, minimise(total, -0.7, 6.5, rtol=min(self.accuracy, 1e-3), points=14)[1]))


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
        return GoodEventCurve(self.mu, self.radius, run, math.log(count), self.default_split)
