"""Bounds on the loss of the vector Wishart mechanism from quantiles of its two variables (C11)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from privproj.curves.epsilon_delta import ComposedRule, EpsilonDeltaRule, log_delta_by_search
from privproj.mechanisms import Wishart
from privproj.numerics.kernels import LEAST_LOG_QUANTILE
from privproj.numerics.search import minimise
from privproj.runs import Run

QUANTILE_RTOL = 1e-12
"""Relative margin by which the answers of the quantile functions are moved outward. Proof."""

ANSWER_SPACING = 2.0**-32
"""Spacing of the log deltas that are answered, wide since both directions are searched for. Speed only."""


@dataclass(frozen=True)
class Quantiles:
    """Where ``A`` and ``W`` lie outside of events of probability ``delta_T`` and ``delta_W``.

    * ``low``, ``high``: ``1 - a_-`` and ``1 - a_+`` at the two ends of ``A``.
    * ``top``: the quantile that ``W`` exceeds with probability ``delta_W``.
    * ``both``: two quantiles beyond which ``W`` lies with probability ``delta_W`` together.
    """

    low: float
    high: float
    top: float
    both: tuple[float, float]


def _quantiles(mechanism: Wishart, log_delta_t: float, log_delta_w: float) -> Quantiles:
    """The quantiles at these shares of delta; infinite where a share is too small for the quantile functions."""
    from scipy import special

    if min(log_delta_t, log_delta_w) < LEAST_LOG_QUANTILE:
        return Quantiles(math.inf, -math.inf, math.inf, (0.0, math.inf))
    dim, rank, m = mechanism.shape
    # P(|T_r| > t) = I_y(r/2, 1/2) = delta_T with t^2/r = (1 - y)/y; 1 - a_-+ = m +- sqrt(m (2-m)) t/sqrt(r) (C11).
    y = float(special.betaincinv(0.5 * rank, 0.5, math.exp(log_delta_t)))
    spread = math.sqrt(m * (2.0 - m)) * math.sqrt((1.0 - y) / y) if y > 0.0 else math.inf
    # P(W > w) = delta_W, or delta_W/2 on both sides; W/2 ~ Gamma(k), k = (r + d - 1)/2 (C9).
    k, delta = 0.5 * (rank + dim - 1), math.exp(log_delta_w)
    above, below, outer = (
        float(f(k, share * delta)) * 2.0
        for f, share in ((special.gammainccinv, 1.0), (special.gammaincinv, 0.5), (special.gammainccinv, 0.5))
    )
    out = 1.0 + QUANTILE_RTOL
    return Quantiles(m + spread * out, m - spread * out, above * out, (below / out, outer * out))


def published_loss(mechanism: Wishart, found: Quantiles) -> float:
    """The published bound on the loss within these quantiles; ``inf`` unless ``a_- > 0``."""
    dim, rank, _ = mechanism.shape
    if found.low >= 1.0:
        return math.inf
    # |d+1-r|/2 |ln a_-| + (w/2) (1/a_- - 1), low = 1 - a_- (2601.21719, Theorem 1; C11).
    return -0.5 * abs(dim + 1 - rank) * math.log1p(-found.low) + 0.5 * found.top * found.low / (1.0 - found.low)


LossBound = Callable[[Wishart, Quantiles], float]


@dataclass(frozen=True)
class QuantileBound:
    """The rule for any run; delta is split between ``T`` and ``W``, evenly unless the run says otherwise."""

    mechanism: Wishart
    loss: LossBound

    def over_run(self, run: Run) -> EpsilonDeltaRule | ComposedRule:
        """The rule of the run; its delta is searched for."""
        split = run.split or 0.5
        rule = EpsilonDeltaRule(
            lambda x: self.epsilon(x, split),
            lambda eps: self.log_delta(eps, split),
            margin=self.margin,
            inverse_spacing=ANSWER_SPACING,
        )
        return rule.over_run(run)

    @property
    def margin(self) -> float:
        """Relative error of the loss for quantiles that are moved by :data:`QUANTILE_RTOL`.

        It is 1, that is unknown, for the sharp loss, where the two ends nearly cancel.
        """
        return 1e-10 if self.loss is published_loss else 1.0

    def epsilon(self, log_delta: float, split: float | str) -> float:
        """Epsilon at this log delta with this share for ``T``, or with the best one."""
        if isinstance(split, float):
            # delta_T = split delta, delta_W = (1 - split) delta.
            return self.at(log_delta + math.log(split), log_delta + math.log1p(-split))

        def at(odds: float) -> float:
            return self.at(log_delta - math.log1p(math.exp(-odds)), log_delta - math.log1p(math.exp(odds)))

        return minimise(at, -12.0, 12.0, rtol=1e-8)[1]

    def at(self, log_delta_t: float, log_delta_w: float) -> float:
        """Epsilon where ``T`` and ``W`` have these two shares of delta."""
        return self.loss(self.mechanism, _quantiles(self.mechanism, log_delta_t, log_delta_w))

    def log_delta(self, eps: float, split: float | str) -> float:
        """The least log delta whose epsilon is at most ``eps``, by a search over ``1/ln(1/delta)``; 0 if none is."""
        return log_delta_by_search(lambda log_delta: self.epsilon(log_delta, split), eps)
