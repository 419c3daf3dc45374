"""Theorem 1 of 2601.21719: the privacy loss at quantiles of its two variables (C11).

The published loss, and the largest that the quantiles allow.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from privproj.curves.epsilon_delta import ComposedRule, EpsilonDeltaRule
from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Baseline, Bound
from privproj.mechanisms.wishart import OF_ALIGNMENT, refuses_unequal_norms
from privproj.numerics.kernels import LEAST_LOG_QUANTILE
from privproj.numerics.search import minimise
from privproj.runs import Run

QUANTILE_RTOL = 1e-12
"""Relative margin by which the answers of the quantile functions are moved outward. Soundness."""

ANSWER_SPACING = 2.0**-32
"""Spacing of the log deltas that are answered, wide since both directions are searched for. Speed only."""


@dataclass(frozen=True)
class _Quantiles:
    """Where ``A`` and ``W`` lie outside of events of probability ``delta_T`` and ``delta_W``.

    * ``low``, ``high``: ``1 - a_-`` and ``1 - a_+`` at the two ends of ``A``.
    * ``top``: the quantile that ``W`` exceeds with probability ``delta_W``.
    * ``both``: two quantiles beyond which ``W`` lies with probability ``delta_W`` together.
    """

    low: float
    high: float
    top: float
    both: tuple[float, float]


def _quantiles(mechanism: Wishart, log_delta_t: float, log_delta_w: float) -> _Quantiles:
    """The quantiles at these shares of delta; infinite where a share is too small for the quantile functions."""
    from scipy import special

    if min(log_delta_t, log_delta_w) < LEAST_LOG_QUANTILE:
        return _Quantiles(math.inf, -math.inf, math.inf, (0.0, math.inf))
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
    return _Quantiles(m + spread * out, m - spread * out, above * out, (below / out, outer * out))


def published_loss(mechanism: Wishart, found: _Quantiles) -> float:
    """The published bound on the loss within these quantiles; ``inf`` unless ``a_- > 0``."""
    dim, rank, _ = mechanism.shape
    if found.low >= 1.0:
        return math.inf
    # |d+1-r|/2 |ln a_-| + (w/2) (1/a_- - 1), low = 1 - a_- (2601.21719, Theorem 1; C11).
    return -0.5 * abs(dim + 1 - rank) * math.log1p(-found.low) + 0.5 * found.top * found.low / (1.0 - found.low)


LossBound = Callable[[Wishart, _Quantiles], float]


@dataclass(frozen=True)
class QuantileBound:
    """The rule for any run; delta is split between ``T`` and ``W``, evenly unless the run says otherwise."""

    mechanism: Wishart
    loss: LossBound

    def over_run(self, run: Run) -> EpsilonDeltaRule | ComposedRule:
        """The rule of the run; its delta is searched for."""
        split = run.split or 0.5
        rule = EpsilonDeltaRule(lambda x: self.epsilon(x, split), margin=self.margin, inverse_spacing=ANSWER_SPACING)
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


QUANTILE = Bound(
    name="quantile",
    summary="the published bound for unit vectors",
    formula="eps = |d+1-r|/2 |ln a| + (w/2)(1/a - 1), a = rho - sqrt(1-rho^2) t/sqrt(r) > 0, t and w quantiles of T_r "
    "and chi2_(r+d-1) that leave out delta_T and delta_W",
    source="arXiv 2601.21719, Theorem 1",
    proof="C11",
    # eps = |d+1-r|/2 |ln a_-| + (w/2)(1/a_- - 1) (2601.21719, Theorem 1; C11).
    representation=lambda mechanism: QuantileBound(mechanism, published_loss),
    splits=True,
    refuses=refuses_unequal_norms,
    baseline=Baseline("published", "unsampled"),
    version=2,
    **OF_ALIGNMENT,
)


def _largest_loss(mechanism: Wishart, found: _Quantiles) -> float:
    """The largest loss with ``W`` below its top quantile, or between two, whichever gives less (C11).

    It is about the pair at the promised misalignment, which dominates every better aligned one (C10). The loss is
    linear in ``W``; in ``1/A`` it is convex, or monotone where ``a < 0``: the maximum is at an end or at ``A = 1``.
    """
    if found.low >= 1.0:
        return math.inf
    # max a ln A + (W/2) (1/A - 1) over a_- <= A <= a_+ and W within its quantiles, a = (d+1-r)/2 (C11).
    return min(_at_ends(mechanism, found, 0.0, found.top), _at_ends(mechanism, found, *found.both))


def _at_ends(mechanism: Wishart, found: _Quantiles, least: float, most: float) -> float:
    """The largest of the losses at ``(a_-, most)``, at ``(a_+, least)`` and 0, rounded up."""
    dim, rank, _ = mechanism.shape
    a = 0.5 * (dim + 1 - rank)
    # a ln A + (W/2) (1/A - 1) at A = a_- = 1 - low with the largest W, and at A = a_+ = 1 - high with the least (C11).
    left = a * math.log1p(-found.low) + 0.5 * most * found.low / (1.0 - found.low)
    right = a * math.log1p(-found.high) + 0.5 * least * found.high / (1.0 - found.high) if found.high < 0.0 else 0.0
    size = abs(a * math.log1p(-found.low)) + abs(a * math.log1p(-min(found.high, 0.0)))
    return max(left, right, 0.0) + 1e-14 * size + 1e-300


QUANTILE_SHARP = Bound(
    name="quantile-sharp",
    summary="the published quantiles with the largest loss they allow",
    formula="eps = max over A in [a_-, a_+] and W within its quantiles of (d+1-r)/2 ln A + (W/2)(1/A - 1)",
    source="privproj, from the proof of arXiv 2601.21719, Theorem 1",
    proof="C11",
    # eps = max over A in [a_-, a_+] and W within its quantiles of a ln A + (W/2)(1/A - 1) (C11).
    representation=lambda mechanism: QuantileBound(mechanism, _largest_loss),
    splits=True,
    refuses=refuses_unequal_norms,
    version=2,
    **OF_ALIGNMENT,
)
