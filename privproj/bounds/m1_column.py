"""One changed column, secret projection: quantiles of the residual, the corrected radius of the correlated part."""

import math
from dataclasses import dataclass

from privproj.bound import Bound
from privproj.bounds.gaussian_analytic import profile as gaussian_profile
from privproj.mechanisms import M1
from privproj.numerics import crossing, minimise
from privproj.one_column import (
    chained_log_delta,
    correlated_shift,
    events,
    has_residual,
    promises,
    residual_loss,
    told_apart,
)
from privproj.result import Status
from privproj.rules import ComposedRule, EpsilonDeltaRule
from privproj.runs import Run

SWEEPS = 3


@dataclass(frozen=True)
class ColumnForm:
    """``(eps_R + eps_C, delta_T + delta_W + delta_C + d1 + d2 + d3)``, the shares of delta optimised unless given."""

    mechanism: M1

    def over(self, run: Run) -> EpsilonDeltaRule | ComposedRule:
        """The rule of the run."""
        split = run.split or "optimal"
        return EpsilonDeltaRule(
            lambda log_delta: self.epsilon(log_delta, split), lambda eps: self.log_delta(eps, split), margin=1.0
        ).over(run)

    def epsilon(self, log_delta: float, split: float | str) -> float:
        """``eps(delta)``; several changed columns are a chain of equal links (Theorem 3)."""
        count = self.mechanism.changed_columns
        if told_apart(self.mechanism):
            return math.inf
        if count == 1:
            return self.link(log_delta, split)
        link = crossing(
            lambda e: self.link(chained_log_delta(log_delta, e, count), split) - e, 1.0, low=1e-9, high=1e6, rtol=1e-9
        ).upper
        return count * link

    def link(self, log_delta: float, split: float | str) -> float:
        """``eps`` of one changed column."""
        odds = [0.0, 0.0, 0.0]
        if isinstance(split, float):
            odds[0] = math.log(split) - math.log1p(-split)
            return self.at(log_delta, odds)
        best = self.at(log_delta, odds)
        for _ in range(SWEEPS):
            for i in range(3):

                def trial(x: float, i: int = i) -> float:
                    return self.at(log_delta, [*odds[:i], x, *odds[i + 1 :]])

                odds[i], best = minimise(trial, -12.0, 12.0, rtol=1e-4)
        return best

    def at(self, log_delta: float, odds: list[float]) -> float:
        """``eps`` with these log odds: residual against the rest, ``T`` against ``W``, Gaussian against the radius."""
        (residual, rest), (t, w), (gauss, radius) = (shares(x) for x in odds)
        count, there = events(self.mechanism), has_residual(self.mechanism)
        if not count:
            residual = 0.0
        if not there:
            rest = 0.0
        loss = residual_loss(self.mechanism, log_delta + residual + t, log_delta + residual + w) if there else 0.0
        if not count or loss == math.inf:
            return loss
        shift = correlated_shift(self.mechanism, log_delta + rest + radius - math.log(count))
        return loss + gaussian_profile(shift).epsilon(log_delta + rest + gauss).upper

    def log_delta(self, eps: float, split: float | str) -> float:
        """The inverse by search over ``x = 1/ln(1/delta)``; 0 where no delta below 1 will do."""
        x = crossing(lambda x: self.epsilon(-1.0 / x, split) - eps, 0.1, low=2e-3, high=1e9, rtol=1e-9).upper
        return -1.0 / x if math.isfinite(x) else 0.0


def shares(odds: float) -> tuple[float, float]:
    """``ln`` of a share and of the rest, from its log odds."""
    return -math.log1p(math.exp(-odds)), -math.log1p(math.exp(odds))


BOUND = Bound(
    name="column",
    mechanism=M1,
    summary="the published bound on changed columns, its second lemma corrected",
    formula="eps_R + eps_C: eps_R the largest residual loss within quantiles, eps_C the Gaussian epsilon at |C x| <= "
    "(1/r)(sqrt(d+r-k) + sqrt k + t1)(alpha(sqrt r + t2) + beta(sqrt k + t3))/sigma; c columns: a chain",
    source="arXiv 2601.21719, Theorems 3 and 4, with Lemma 14 corrected by privproj (privproj.one_column)",
    example="privproj epsilon m1 --bound column --dim 1000 --rank 64 --span-dim 4 --residual-misalignment 8e-6 "
    "--noise-multiplier 20 --delta 1e-5",
    form=ColumnForm,
    groups=False,
    splits=True,
    status=Status.CONDITIONAL,
    promises_of=promises,
)
