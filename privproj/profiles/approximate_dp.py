"""Maps from delta to epsilon of one release, their amplification and composition."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from privproj.errors import UnsupportedError
from privproj.numerics.interval import Enclosure, next_up
from privproj.numerics.root_finding import find_crossing, minimize
from privproj.profiles.conversion import LARGEST_INVERSE_LOG
from privproj.run import Run

# Least x = 1/ln(1/delta) of a search. So the least delta of a result is e^-1000, below the least printed delta, 1e-300.
# If a smaller delta suffices, e^-1000 is returned, which is a valid upper bound.
LEAST_INVERSE_LOG = 1e-3
EXPONENT_LIMIT = 700.0  # nats; e^eps is finite below this


def log_delta_by_search(epsilon_at: Callable[[float], float], eps: float, rtol: float = 1e-12) -> float:
    """Return an upper bound of the least ``ln delta`` at which epsilon is at most ``eps``.

    The result is 0 if no delta below 1 suffices.

    Args:
        epsilon_at: A decreasing map from ``ln delta`` to epsilon in nats.
        eps: The target epsilon in nats.
        rtol: The relative accuracy of ``x = 1/ln(1/delta)``, the unknown of the search.
    """
    # The map was evaluated at the result, so the bound is valid.
    x = find_crossing(
        lambda x: epsilon_at(-1.0 / x) - eps, 0.1, low=LEAST_INVERSE_LOG, high=LARGEST_INVERSE_LOG, rtol=rtol
    ).upper
    return -1.0 / x if math.isfinite(x) else 0.0


@dataclass(frozen=True)
class EpsilonDeltaRule:
    """A bound of one release that is a map from ``ln delta`` to epsilon."""

    # Proved for 0 < eps < limit. The code that builds the object guarantees that it is valid.
    epsilon_at: Callable[[float], float]  # Map from ``ln delta`` to ``eps`` (nats) of one release

    # Map from ``eps`` (nats) to ``ln delta`` of one release; None computes it by root finding
    log_delta_at: Callable[[float], float] | None = None

    limit: float = math.inf  # The rule is proved for epsilons (nats) below this limit

    remedy: str = ""  # Advice in the error message for ``eps`` beyond ``limit``

    # Relative amount by which ``epsilon_at`` may exceed the exact value. Except for rounding, ``epsilon_at`` is never
    # below it.
    margin: float = 1e-15

    def within(self, eps: float) -> float:
        """Return ``eps`` if the bound is proved at this epsilon.

        Raises:
            UnsupportedError: The bound is not proved at this epsilon.
        """
        if not 0.0 < eps < self.limit and not eps == self.limit == math.inf:
            raise UnsupportedError(
                f"this bound is proved for 0 < epsilon < {self.limit:g} only, got {eps:.6g}. {self.remedy}"
            )
        return eps

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return lower and upper bounds of ``eps(delta)`` of one release, in nats.

        Raises:
            UnsupportedError: The bound is not proved at this epsilon.
        """
        eps = self.within(self.epsilon_at(log_delta))
        return Enclosure(eps * (1.0 - self.margin) if math.isfinite(eps) else 0.0, next_up(eps))

    def log_delta(self, eps: float) -> Enclosure:
        """Return lower and upper bounds of ``ln delta(eps)`` of one release.

        Raises:
            UnsupportedError: The bound is not proved at this epsilon.
        """
        inverse = self.log_delta_at or partial(log_delta_by_search, self.epsilon_at)
        value = inverse(self.within(eps))
        margin = 1e-12 + 4e-15 * abs(value)
        return Enclosure(min(0.0, value) - margin if self.margin <= 1e-15 else -math.inf, min(0.0, value + margin))

    def log_delta_unless(self, eps: float, enough: float) -> float:
        """Return an upper bound of ``ln delta(eps)``, or 0 for ``eps = 0``; ``enough`` is unused."""
        return self.log_delta(eps).upper if eps > 0.0 else 0.0

    def over_run(self, run: Run) -> "EpsilonDeltaRule | ComposedRule":
        """Return the bound of a run: amplified by sampling, then composed over the steps.

        Raises:
            UnsupportedError: The run is sampled and protects several records of one user.
        """
        if run.sampling_rate < 1.0 and run.group_size > 1:
            raise UnsupportedError(
                "this bound does not support sampling with group_size above 1. Use a bound with a privacy profile, or "
                "group_size=1"
            )
        step = self if run.sampling_rate == 1.0 else self.amplified(run.sampling_rate)
        return step if run.steps == 1 else ComposedRule(step, run.steps)

    def amplified(self, rate: float) -> "EpsilonDeltaRule":
        """Return the bound of a release on a batch that is sampled at ``rate``.

        It holds for Poisson sampling under add-remove and zero-out, and for batches of a fixed size under replace
        (Balle, Barthe, Gaboardi 2018, Theorems 8 and 9).
        """

        # (eps, delta) becomes (ln(1 + q (e^eps - 1)), q delta) at the rate q.
        def epsilon_at(log_delta: float) -> float:
            # Delta of the release without sampling is delta/q; if that is not below 1, a smaller one is used.
            plain = self.epsilon_at(min(log_delta - math.log(rate), -1.0 / LARGEST_INVERSE_LOG))
            if plain >= EXPONENT_LIMIT:
                # ln(1 + q (e^eps - 1)) <= eps + ln(q + e^-eps)
                return plain + math.log(rate + math.exp(-plain)) if plain < math.inf else math.inf
            return math.log1p(rate * math.expm1(plain)) if plain >= 0.0 else plain

        limit = math.log1p(rate * math.expm1(self.limit)) if self.limit < EXPONENT_LIMIT else self.limit
        return EpsilonDeltaRule(
            lambda log_delta: epsilon_at(log_delta) * (1.0 + 4e-15), limit=limit, remedy=self.remedy, margin=1.0
        )


def advanced_epsilon(eps: float, steps: int, slack: float) -> float:
    """Return the epsilon of ``steps`` adaptive releases by advanced composition, rounded up.

    If each release is ``(eps, delta)``-DP, the delta of all releases is ``steps * delta + slack`` (Dwork, Rothblum,
    Vadhan 2010; in this form Kairouz, Oh, Viswanath 2015).
    """
    # eps sqrt(2 k ln(1/d')) + k eps (e^eps - 1)/(e^eps + 1), where (e^eps - 1)/(e^eps + 1) = tanh(eps/2). The
    # logarithm of d' is used because the rounding of 1/d' matters if d' is near 1.
    return next_up(eps * math.sqrt(-2.0 * steps * math.log(slack)) + steps * eps * math.tanh(0.5 * eps))


@dataclass(frozen=True)
class ComposedRule:
    """The smaller of basic and advanced composition of ``steps`` equal releases."""

    # The slack of advanced composition is optimized numerically. Every value gives a valid bound.
    rule: EpsilonDeltaRule  # The rule of one release

    steps: int  # The number ``k`` of releases

    # Delta is computed as the inverse of epsilon (C24, "Rules that lead with epsilon")
    leads_with_epsilon: ClassVar[bool] = True

    # How the run was composed, for the result
    numerics: ClassVar[dict[str, object]] = {"composition": "the smaller of basic and advanced"}

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return ``eps(delta)`` of the run in nats; the lower end is ``-inf`` (unknown)."""
        return Enclosure(-math.inf, next_up(min(self.basic(log_delta), self.advanced(log_delta))))

    def per_step(self, log_delta: float) -> float:
        """Return epsilon (nats) of one release at ``log_delta``, or ``inf`` if none is proved."""
        eps = self.rule.epsilon_at(log_delta)
        return next_up(eps) if 0.0 < eps < self.rule.limit else math.inf

    def basic(self, log_delta: float) -> float:
        """Return epsilon (nats) of the run at this ``ln delta`` by basic composition."""
        # k eps(delta / k)
        return next_up(self.steps * self.per_step(log_delta - math.log(self.steps)))

    def advanced(self, log_delta: float) -> float:
        """Return epsilon (nats) of the run at this ``ln delta`` by advanced composition."""

        # With d' = share delta each release has delta_i = (1 - share) delta / k.
        def at(log_odds: float) -> float:
            share = 1.0 / (1.0 + math.exp(-log_odds))
            step = self.per_step(log_delta + math.log1p(-share) - math.log(self.steps))
            if step == math.inf:
                return math.inf
            return advanced_epsilon(step, self.steps, math.exp(log_delta) * share)

        return minimize(at, -12.0, 12.0, rtol=1e-6)[1] if log_delta > -690.0 else math.inf

    def log_delta(self, eps: float) -> Enclosure:
        """Return ``ln delta(eps)`` of the run; the lower end is ``-inf`` (unknown)."""
        return Enclosure(-math.inf, log_delta_by_search(lambda x: self.epsilon(x).upper, eps, rtol=1e-15))
