"""Bounds that are an ``(eps, delta)`` rule and nothing more, and what can be said of many of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from privproj.errors import Refused
from privproj.numerics.enclosure import Enclosure, next_up
from privproj.numerics.search import find_crossing, minimise
from privproj.runs import Run

LEAST_INVERSE_LOG = 1e-3
"""Least ``x = 1/ln(1/delta)`` at which a delta is searched for: no answer is below ``e^-1000``.

That is below 1e-300, the least delta that is answered as a number. Where a smaller delta would do, this one is
answered, which is sound. Contract.
"""

LARGEST_INVERSE_LOG = 1e9
"""Largest ``x`` there: where only a delta nearer to 1 would do, 1 is answered. Contract."""


def log_delta_by_search(epsilon_at: Callable[[float], float], eps: float, rtol: float = 1e-12) -> float:
    """``ln delta`` of a rule ``eps(ln delta)`` that falls: nearly the least one with ``epsilon_at(ln delta) <= eps``.

    The search is over ``x = 1/ln(1/delta)``, to a relative ``rtol`` in ``x``. The rule was evaluated at the answer,
    which is as sound as the rule. It is never below :data:`LEAST_INVERSE_LOG` allows, and 0 where no delta below 1 will
    do.
    """
    x = find_crossing(
        lambda x: epsilon_at(-1.0 / x) - eps, 0.1, low=LEAST_INVERSE_LOG, high=LARGEST_INVERSE_LOG, rtol=rtol
    ).upper
    return -1.0 / x if math.isfinite(x) else 0.0


@dataclass(frozen=True)
class EpsilonDeltaRule:
    """A rule ``eps(ln delta)`` and its inverse ``ln delta(eps)``, proved for ``0 < eps < limit`` only.

    ``eps(ln delta)`` is exact or above, by at most a relative ``margin``. ``inverse_spacing`` is wider where one
    direction is searched for (:mod:`privproj.curves.inversion`).
    """

    epsilon_at: Callable[[float], float]
    log_delta_at: Callable[[float], float]
    limit: float = math.inf
    remedy: str = ""
    margin: float = 1e-15
    inverse_spacing: float = 2.0**-40

    def within(self, eps: float) -> float:
        """``eps`` if the rule is proved there; raises :class:`Refused` otherwise."""
        if not 0.0 < eps < self.limit and not eps == self.limit == math.inf:
            raise Refused(
                f"expected 0 < epsilon < {self.limit:g}, where this rule is proved, got {eps:.6g}; {self.remedy}",
                brief=f"is proved for 0 < epsilon < {self.limit:g} only",
            )
        return eps

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` of one release; raises :class:`Refused` outside the proved range."""
        eps = self.within(self.epsilon_at(log_delta))
        return Enclosure(eps * (1.0 - self.margin) if math.isfinite(eps) else 0.0, next_up(eps))

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)`` of one release; raises :class:`Refused` outside the proved range."""
        value = self.log_delta_at(self.within(eps))
        margin = 1e-12 + 4e-15 * abs(value)
        return Enclosure(min(0.0, value) - margin if self.margin <= 1e-15 else -math.inf, min(0.0, value + margin))

    def over_run(self, run: Run) -> "EpsilonDeltaRule | ComposedRule":
        """The rule for a run, by composition theorems; there is no sampled form."""
        if run.sampling_rate < 1.0:
            raise Refused(f"an (epsilon, delta) rule has no theorem for sampling={run.sampling}; use a profile bound")
        return self if run.steps == 1 else ComposedRule(self, run.steps)


def basic_composition(eps: float, delta: float, steps: int) -> tuple[float, float]:
    """``(k eps, k delta)``: basic composition of ``k`` equal releases, rounded up."""
    return next_up(steps * eps), next_up(steps * delta)


def advanced_composition(eps: float, delta: float, steps: int, slack: float) -> tuple[float, float]:
    """``(eps sqrt(2k ln(1/d')) + k eps (e^eps - 1)/(e^eps + 1), k delta + d')``: advanced composition (Dwork, Roth)."""
    drift = steps * eps * math.tanh(0.5 * eps)
    return next_up(eps * math.sqrt(2.0 * steps * math.log(1.0 / slack)) + drift), next_up(steps * delta + slack)


@dataclass(frozen=True)
class ComposedRule:
    """``steps`` releases of one rule: the smaller of basic and advanced composition, the latter's slack optimised."""

    rule: EpsilonDeltaRule
    steps: int
    leads_with_epsilon: ClassVar[bool] = True

    @property
    def inverse_spacing(self) -> float:
        """Spacing of the log deltas that are answered: that of the rule."""
        return self.rule.inverse_spacing

    @property
    def numerics(self) -> dict[str, object]:
        """How the run was composed."""
        return {"composition": "the smaller of basic and advanced"}

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` of the run; the lower end is not known."""
        return Enclosure(-math.inf, next_up(min(self.basic(log_delta), self.advanced(log_delta))))

    def per_step(self, log_delta: float) -> float:
        """``eps`` of one release at ``delta``, ``inf`` where the rule proves nothing."""
        eps = self.rule.epsilon_at(log_delta)
        return next_up(eps) if 0.0 < eps < self.rule.limit else math.inf

    def basic(self, log_delta: float) -> float:
        """Basic composition: ``k eps(delta/k)``."""
        return basic_composition(self.per_step(log_delta - math.log(self.steps)), 0.0, self.steps)[0]

    def advanced(self, log_delta: float) -> float:
        """Advanced composition with ``d' = share * delta`` and ``delta_i = (1 - share) delta / k``."""

        def at(log_odds: float) -> float:
            share = 1.0 / (1.0 + math.exp(-log_odds))
            step = self.per_step(log_delta + math.log1p(-share) - math.log(self.steps))
            if step == math.inf:
                return math.inf
            return advanced_composition(step, 0.0, self.steps, math.exp(log_delta) * share)[0]

        return minimise(at, -12.0, 12.0, rtol=1e-6)[1] if log_delta > -690.0 else math.inf

    def log_delta(self, eps: float) -> Enclosure:
        """The inverse of :meth:`epsilon`, by :func:`log_delta_by_search`; the lower end is not known."""
        return Enclosure(-math.inf, log_delta_by_search(lambda x: self.epsilon(x).upper, eps, rtol=1e-15))
