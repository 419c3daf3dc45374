"""Evaluate Theorem 1 of arXiv 2601.21719 by quantiles (C11).

The privacy loss of the vector Wishart mechanism is ``(d+1-r)/2 ln A + (W/2)(1/A - 1)`` for two random variables ``A``
and ``W`` (C9). ``A = rho + sqrt(1-rho^2) T/sqrt(r)``, where ``rho`` is the cosine of neighboring vectors and ``T`` has
Student's t distribution with ``r`` degrees of freedom. ``W`` is chi-square with ``r + d - 1`` degrees of freedom. ``T``
and ``W`` are outside of their quantiles with probabilities ``delta_T`` and ``delta_W``, whose sum is delta. Epsilon is
a bound on the loss within the quantiles: the published bound (``quantile``), or the largest loss (``quantile-sharp``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Bound, OverRun
from privproj.mechanisms.wishart import OF_ALIGNMENT, check_equal_norms
from privproj.numerics.root_finding import minimize
from privproj.numerics.special import LEAST_LOG_QUANTILE
from privproj.profiles.approximate_dp import EpsilonDeltaRule
from privproj.profiles.privacy_profile import Curve
from privproj.run import Run

QUANTILE_RTOL = 1e-12  # soundness: quantiles are moved outward by this relative margin


@dataclass(frozen=True)
class _Quantiles:
    """Quantiles of the Student variable ``T`` and the chi-square variable ``W``.

    The privacy loss of the vector Wishart mechanism is a function of ``T`` and ``W`` (C9).

    Attributes:
        t: The quantile of ``|T|/sqrt(r)``, where ``r`` is the number of degrees of freedom.
        top: The one-sided upper quantile of ``W``.
        both: The two-sided quantiles of ``W``.
    """

    t: float
    top: float
    both: tuple[float, float]


def quantiles_of(dim: int, rank: int, log_delta_t: float, log_delta_w: float) -> _Quantiles:
    """Return quantiles of the Student and the chi-square variable of the Wishart loss.

    The Student variable is outside of its quantiles with probability ``e^log_delta_t``, and the chi-square variable
    with probability ``e^log_delta_w``. The quantiles are rounded outward; they are
    infinite if a probability is too small.
    """
    from scipy import special

    if min(log_delta_t, log_delta_w) < LEAST_LOG_QUANTILE:
        return _Quantiles(math.inf, math.inf, (0.0, math.inf))
    # P(|T_r| > t sqrt(r)) = I_y(r/2, 1/2) = delta_T with t^2 = (1 - y)/y (C11).
    y = float(special.betaincinv(0.5 * rank, 0.5, math.exp(log_delta_t)))
    # P(W > w) = delta_W, or delta_W/2 on both sides; W/2 ~ Gamma(k), k = (r + d - 1)/2 (C9).
    k, delta = 0.5 * (rank + dim - 1), math.exp(log_delta_w)
    above, below, outer = (
        float(f(k, share * delta)) * 2.0
        for f, share in ((special.gammainccinv, 1.0), (special.gammaincinv, 0.5), (special.gammainccinv, 0.5))
    )
    out = 1.0 + QUANTILE_RTOL
    return _Quantiles(math.sqrt((1.0 - y) / y) * out if y > 0.0 else math.inf, above * out, (below / out, outer * out))


def largest_at_corners(
    dim: int, rank: int, log_ratio: float, log_ends: tuple[float, float], w: tuple[float, float]
) -> float:
    """Return the largest privacy loss over intervals of its two variables, rounded up.

    The loss of the vector Wishart mechanism is a function of two variables ``A`` and ``W`` (C9, for unequal norms C12).

    Args:
        dim: The dimension.
        rank: The degrees of freedom.
        log_ratio: The log of the ratio of the norms of the neighbors, of either sign.
        log_ends: The logs of the two ends of the interval of ``A``.
        w: The two ends of the interval of ``W``.
    """
    p, q = 0.5 * (dim + 1 - rank), 0.5 * (dim + rank - 1)
    # The loss is linear in W, and in 1/A convex, or monotone if d + 1 < r; so it is largest at a corner.
    # p ln A - q ln tau + (W/2)(tau/A - 1), tau = kappa/kappa' in both orders (C11, C12, C13).
    corners = [
        p * log_a - q * tau + 0.5 * u * math.expm1(tau - log_a)
        for log_a in log_ends
        for u in w
        for tau in {log_ratio, -log_ratio}
    ]
    size = q * abs(log_ratio) + abs(p) * sum(map(abs, log_ends))
    # The loss is at least 0.
    return max(*corners, 0.0) + 1e-13 * size + 1e-300


def published_loss(dim: int, rank: int, m: float, log_delta_t: float, log_delta_w: float) -> float:
    """Return the published bound on the Wishart loss outside of two tail events.

    The loss is a function of a Student and a chi-square variable. Each event is a tail of one of these variables.

    Args:
        dim: The dimension.
        rank: The degrees of freedom of the Wishart matrix.
        m: The misalignment, one minus the cosine of neighboring vectors.
        log_delta_t: The log of the probability of the event for the Student variable.
        log_delta_w: The log of the probability of the event for the chi-square variable.

    Returns:
        The bound in nats; ``inf`` if the event for the Student variable is too rare for a finite bound.
    """
    quantiles = quantiles_of(dim, rank, log_delta_t, log_delta_w)
    # a_- = rho - sqrt(1-rho^2) t/sqrt(r) = 1 - low (C11).
    low = m + math.sqrt(m * (2.0 - m)) * quantiles.t
    if not low < 1.0:
        return math.inf
    # |d+1-r|/2 |ln a_-| + (w/2) (1/a_- - 1), low = 1 - a_- (2601.21719, Theorem 1; C11).
    return -0.5 * abs(dim + 1 - rank) * math.log1p(-low) + 0.5 * quantiles.top * low / (1.0 - low)


LossBound = Callable[[int, int, float, float, float], float]


def split_rule(epsilon: Callable[[float | str, float], float], default: float | str, **fields: Any) -> OverRun:
    """Return a bound whose epsilon depends on how delta is divided between two events.

    Args:
        epsilon: A function of the split and ``ln delta`` that returns epsilon. A split is the share of delta for the
            first event, or "optimal".
        default: The split if the run has none.
        **fields: Other fields of :class:`privproj.profiles.approximate_dp.EpsilonDeltaRule`.
    """

    def over_run(run: Run) -> Curve:
        return EpsilonDeltaRule(partial(epsilon, run.split or default), **fields).over_run(run)

    return OverRun(over_run)


def _rule_of(mechanism: Wishart, loss: LossBound, margin: float) -> OverRun:
    """Return the rule from delta to epsilon for a bound ``loss`` on the privacy loss.

    Delta is divided evenly between two tail events by default. ``margin`` is the relative error of the loss.
    """
    return split_rule(partial(quantile_epsilon, loss, *mechanism.shape), 0.5, margin=margin)


def quantile_epsilon(
    loss: LossBound, dim: int, rank: int, misalignment: float, split: float | str, log_delta: float
) -> float:
    """Return epsilon at a log delta, given a function that bounds the Wishart loss.

    The bound ``loss`` holds outside of two tail events. ``split`` is the share of delta for the tail of the Student
    variable, or "optimal".
    """
    if isinstance(split, float):
        # delta_T = split delta, delta_W = (1 - split) delta.
        return loss(dim, rank, misalignment, log_delta + math.log(split), log_delta + math.log1p(-split))

    def at(odds: float) -> float:
        return loss(dim, rank, misalignment, *(log_delta + share for share in log_shares(odds)))

    return minimize(at, -12.0, 12.0, rtol=1e-8)[1]


def log_shares(odds: float) -> tuple[float, float]:
    """Return ``ln s`` and ``ln(1 - s)`` of a share ``s``, from its log odds."""
    # ln(1/(1 + e^-odds)) and ln(1/(1 + e^odds)).
    return -math.log1p(math.exp(-odds)), -math.log1p(math.exp(odds))


QUANTILE = Bound(
    name="quantile",
    summary="published bound for query vectors of equal norm",
    formula="eps = |d+1-r|/2 |ln a| + (w/2)(1/a - 1), a = rho - sqrt(1-rho^2) t/sqrt(r) > 0, t and w quantiles of T_r "
    "and chi2_(r+d-1) that leave out delta_T and delta_W",
    source="arXiv 2601.21719, Theorem 1",
    proof="C11",
    # eps = |d+1-r|/2 |ln a_-| + (w/2)(1/a_- - 1) (2601.21719, Theorem 1; C11).
    representation=lambda mechanism: _rule_of(mechanism, published_loss, margin=1e-10),
    supports=("split",),
    check=check_equal_norms,
    version=4,
    **OF_ALIGNMENT,
)


def _largest_loss(dim: int, rank: int, m: float, log_delta_t: float, log_delta_w: float) -> float:
    """Return the largest Wishart loss outside of two tail events (C11).

    The loss is a function of a Student and a chi-square variable. Each event is a tail of one of these variables.
    ``m`` is the largest misalignment of neighboring vectors.
    """
    quantiles = quantiles_of(dim, rank, log_delta_t, log_delta_w)
    spread = math.sqrt(m * (2.0 - m)) * quantiles.t
    if not m + spread < 1.0:
        # Vectors with a smaller misalignment have a smaller delta (C10).
        return math.inf
    # max a ln A + (W/2) (1/A - 1) over a_- <= A <= a_+ and W within its quantiles, a = (d+1-r)/2 (C11).
    ends = math.log1p(-m - spread), math.log1p(spread - m)
    return min(largest_at_corners(dim, rank, 0.0, ends, w) for w in ((0.0, quantiles.top), quantiles.both))


QUANTILE_SHARP = Bound(
    name="quantile-sharp",
    summary="version of quantile that computes the largest privacy loss exactly and gives a smaller epsilon",
    formula="eps = max over A in [a_-, a_+] and W within its quantiles of (d+1-r)/2 ln A + (W/2)(1/A - 1)",
    source="privproj, from the proof of arXiv 2601.21719, Theorem 1",
    proof="C11",
    # eps = max over A in [a_-, a_+] and W within its quantiles of a ln A + (W/2)(1/A - 1) (C11).
    # The relative error is unknown, as the two ends nearly cancel.
    representation=lambda mechanism: _rule_of(mechanism, _largest_loss, margin=1.0),
    supports=("split",),
    check=check_equal_norms,
    version=4,
    **OF_ALIGNMENT,
)
