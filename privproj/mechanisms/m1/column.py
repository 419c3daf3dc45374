"""Bound M1 by quantiles, for one changed column and a secret projection (C13).

Let ``v`` and ``v'`` be one column of the matrix in two neighboring datasets. The other columns span ``k`` dimensions.
The residual of a column is its part orthogonal to this span. The projection of ``d`` dimensions at rank ``r`` is
``M = C + M_perp``. ``M_perp`` acts on the residuals alone, and is independent of ``C`` given the projection on the
span. ``M_perp`` is a vector Wishart mechanism in ``d - k`` dimensions with ``r - k`` degrees of freedom. So the privacy
loss is the sum of two parts. The residual part is the loss of ``M_perp``; for ``r <= k`` there is none. The correlated
part is a Gaussian loss at the sensitivity ``|C (v - v')|``.

The bound ``column`` uses quantiles of the two parts, and a correction of Lemma 14 of arXiv 2601.21719. The bound
``column-published`` is Theorem 4 of this paper with Lemma 14 as reconstructed from its proof. It is refuted if the rank
exceeds ``k``. If several columns change, they change one after the other, in a chain of datasets.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from privproj.assumptions import Assumption, DataAssumption
from privproj.distributions.mixture_profile import rank_one_profile
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms import M1
from privproj.mechanisms.bound import Bound, Flaw, OverRun
from privproj.mechanisms.wishart.quantile import (
    largest_at_corners,
    log_shares,
    published_loss,
    quantile_epsilon,
    quantiles_of,
    split_rule,
)
from privproj.numerics.interval import Enclosure, next_up
from privproj.numerics.root_finding import find_crossing, minimize
from privproj.numerics.special import log_add
from privproj.profiles.approximate_dp import EpsilonDeltaRule
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.result import Status, limit_text


def _has_residual(mechanism: M1) -> bool:
    """Return whether the residual of the changed column adds to the privacy loss.

    The residual is the part orthogonal to the other columns.
    """
    k, m, _, _ = mechanism.span_residual
    dim, rank = mechanism.shape
    first, second = mechanism.norms
    if rank <= k or first == second == 0.0:
        return False
    return first != second or (m > 0.0 and dim - k > 1)


def is_distinguished(mechanism: M1) -> bool:
    """Return whether exactly one neighbor has a nonzero residual, so that delta is 1.

    The residual is the part of the changed column orthogonal to the other columns.
    """
    return _has_residual(mechanism) and min(mechanism.norms) == 0.0


def residual_profile(mechanism: M1) -> PrivacyProfile | None:
    """Return the profile of the residual of the changed column (C13).

    The residual is the part of the column orthogonal to the other columns. The result is None if it does not add to the
    privacy loss.
    """
    if not _has_residual(mechanism):
        return None
    if is_distinguished(mechanism):
        return PrivacyProfile(lambda eps: Enclosure(0.0, 0.0))
    from privproj.distributions.wishart_loss import VectorWishart
    from privproj.distributions.wishart_unequal_norms import UnequalNorms

    k, m, _, _ = mechanism.span_residual
    dim, rank = mechanism.shape
    first, second = mechanism.norms
    if first == second:
        # (d, r) -> (d - k, r - k) (C13); its profile is that of C9.
        return VectorWishart(dim - k, rank - k, m).profile()
    # This is an upper bound for unequal norms.
    # The same with |ln(kappa/kappa')| <= R (C12, C13).
    return UnequalNorms(dim - k, rank - k, m, next_up(abs(math.log(first / second)))).profile()


def residual_loss(mechanism: M1, log_delta_t: float, log_delta_w: float) -> float:
    """Return the largest privacy loss of the residual, except for two rare events (C13).

    The residual is the part of the changed column orthogonal to the other columns. The result is ``inf`` if an event is
    too rare for a finite bound.

    Args:
        mechanism: The mechanism with its assumptions on the column.
        log_delta_t: The log of the probability of the event for the Student variable of the loss.
        log_delta_w: The log of the probability of the event for the chi-square variable of the loss.
    """
    k, m, _, _ = mechanism.span_residual
    dim, rank = mechanism.shape
    quantiles = quantiles_of(dim - k, rank - k, log_delta_t, log_delta_w)
    # sine = sin theta = sqrt(m (2 - m)) at the assumed angle, A_- = cos theta - t sin theta = 1 - low (C13).
    sine = math.sqrt(m * (2.0 - m))
    low = m + sine * quantiles.t
    if not low < 1.0:
        return math.inf
    # A_+ = cos theta + t sin theta, or its largest value sqrt(1 + t^2) if a smaller angle attains that (C13).
    t = quantiles.t
    high = math.sqrt(1.0 + t * t) if sine > t * (1.0 - m) else 1.0 - m + sine * t
    first, second = mechanism.norms
    ends = math.log1p(-low), math.log(high)
    return largest_at_corners(dim - k, rank - k, math.log(first / second), ends, quantiles.both)


def correlated_shift(mechanism: M1, log_d: float) -> float:
    """Return a bound on the sensitivity of the Gaussian part of the loss (C13).

    The sensitivity is divided by the standard deviation of the noise. The bound fails only in a few events
    (:func:`_count_of_events`), each of probability at most ``e^log_d``.
    """
    k = mechanism.span_residual[0]
    dim, rank = mechanism.shape
    alpha, beta = mechanism.column_shift
    # Lemma 14 of arXiv 2601.21719, corrected
    # t = sqrt(2 ln(1/d)); for k = 0 there is no correlated part.
    t = math.sqrt(max(-2.0 * log_d, 0.0))
    if k == 0:
        return 0.0
    if rank <= k:
        # r <= k: (1/r) (sqrt d + sqrt r + t) (sqrt r + t) sqrt(alpha^2 + beta^2) (C13).
        stretch = (math.sqrt(dim) + math.sqrt(rank) + t) * (math.sqrt(rank) + t)
        return next_up(stretch / rank * math.hypot(alpha, beta))
    # r > k: (1/r) (sqrt(d+r-k) + sqrt k + t) (alpha (sqrt r + t) + beta (sqrt k + t)) (C13).
    stretched = alpha * (math.sqrt(rank) + t) + beta * (math.sqrt(k) + t)
    return next_up((math.sqrt(dim + rank - k) + math.sqrt(k) + t) / rank * stretched)


def _count_of_events(mechanism: M1) -> int:
    """Return the number of events in which the bound of :func:`correlated_shift` fails."""
    k, (_, rank) = mechanism.span_residual[0], mechanism.shape
    return 0 if k == 0 else 2 if rank <= k else 3


def correlated_profile(mechanism: M1) -> PrivacyProfile | None:
    """Return the exact profile of the Gaussian part of the privacy loss (C13).

    The result is None if this part is 0.

    Raises:
        UnsupportedError: The change of the column is partly within the span of the other columns and partly orthogonal
            to it.
    """
    from privproj.distributions.densities import ProjectedEnergy
    from privproj.distributions.tabulated import TabulatedSensitivity

    k = mechanism.span_residual[0]
    dim, rank = mechanism.shape
    alpha, beta = mechanism.column_shift
    if k == 0 and alpha == 0.0:
        return None
    if rank <= k or beta == 0.0:
        # In the span, and always for r <= k: |C x|^2 = |x|^2 X_r (X_r + Y_(d-1))/r^2 (C13).
        distribution = ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank)
    elif alpha == 0.0:
        # Orthogonal to the span: |C x|^2 = |x|^2 X_k (X_k + Y_(d+r-k-1))/r^2 (C13).
        distribution = ProjectedEnergy(0.5 * k, 0.5 * (dim + rank - k - 1), rank)
    else:
        raise UnsupportedError(
            "the bound column-exact does not support a change both within the span and orthogonal to it. Use the bound "
            "column or known-projection"
        )
    # delta(eps) = E[h_eps(|C x|^2/sigma^2)] (C4).
    return rank_one_profile(TabulatedSensitivity(distribution, alpha * alpha + beta * beta))


def chained_log_delta(log_delta: float, link: float, count: int) -> float:
    """Return ``ln delta`` of each of ``count`` successive changes of a column (C13).

    Each change has the same delta and the epsilon ``link``. All changes together have the delta ``e^log_delta``.
    """
    # delta = sum_i delta_i e^((i-1) link), all delta_i equal (C13, chain).
    total = -math.inf
    for i in range(count):
        total = log_add(total, i * link)
    return log_delta - total


def _column_assumptions(mechanism: M1) -> tuple[Assumption, ...]:
    k, *limits, beta = mechanism.span_residual
    m, alpha = (limit_text(limit, up=False) for limit in limits)
    # s = sqrt(c (alpha^2 + beta^2)), the unit of the noise multiplier.
    size = math.hypot(limits[1], beta) * math.sqrt(mechanism.changed_columns)
    first, second = (f"{norm:g}" for norm in mechanism.norms)
    several = mechanism.changed_columns > 1
    changed = f"at most {mechanism.changed_columns} columns" if several else "one column"
    links = ", also while they are changed one after the other" if several else ""
    return (
        DataAssumption.CHANGED_COLUMNS.at(changed=changed, k=k, links=links),
        DataAssumption.RESIDUAL.at(first=first, second=second, m=m, alpha=alpha, size=limit_text(size, up=True)),
        DataAssumption.SECRET_PROJECTION.at(),
    )


# fields of the bounds on changed columns
OF_COLUMN: dict[str, Any] = {
    "mechanism": M1,
    "of_group": None,
    "status": Status.CONDITIONAL,
    "assumptions": _column_assumptions,
}


def _epsilon(mechanism: M1, split: float | str, log_delta: float) -> float:
    """Return epsilon of the bound ``column`` at a log delta, for all changed columns.

    ``split`` is the share of delta for the residual part of the loss. For "optimal", the best shares are used.
    """
    if is_distinguished(mechanism):
        return math.inf
    return _chain(partial(_link, mechanism, split), mechanism.changed_columns, log_delta)


def _chain(link: Callable[[float], float], count: int, log_delta: float) -> float:
    """Return epsilon at a log delta if ``count`` columns change in turn (C13).

    ``link`` maps ``ln delta`` of one changed column to its epsilon.
    """
    if count == 1:
        return link(log_delta)
    # The least epsilon with link(ln delta_i(epsilon)) <= epsilon; the chain costs count times as much (C13, chain).
    least = find_crossing(
        lambda e: link(chained_log_delta(log_delta, e, count)) - e, 1.0, low=1e-9, high=1e6, rtol=1e-9
    ).upper
    return count * least


def _link(mechanism: M1, split: float | str, log_delta: float) -> float:
    """Return epsilon of the bound ``column`` for one changed column, at a log delta.

    ``split`` is the share of delta for the residual part of the loss. For "optimal", the best shares are used.
    """
    odds = [0.0, 0.0, 0.0]
    if isinstance(split, float):
        odds[0] = math.log(split) - math.log1p(-split)
        return _epsilon_at_odds(mechanism, log_delta, odds)
    best = _epsilon_at_odds(mechanism, log_delta, odds)
    # coordinate descent over the shares; any shares are sound
    for _ in range(3):
        for i in range(3):

            def trial(x: float, i: int = i) -> float:
                return _epsilon_at_odds(mechanism, log_delta, [*odds[:i], x, *odds[i + 1 :]])

            odds[i], best = minimize(trial, -12.0, 12.0, rtol=1e-4)
    return best


def _epsilon_at_odds(mechanism: M1, log_delta: float, odds: list[float]) -> float:
    """Return a bound on epsilon for one changed column and given shares of delta.

    ``odds`` has the log odds of three divisions of delta: between the residual and the Gaussian part of the loss,
    between two events of the residual part, and between two events of the Gaussian part.
    """
    # eps_R(delta_T, delta_W) + eps_C(delta_C) at the radius outside of the events; the shares sum to delta (C13).
    # The share of the residual part is divided between the events of residual_loss, and the share of the Gaussian part
    # between its loss and the bound on its sensitivity.
    (residual, rest), (t, w), (gauss, radius) = (log_shares(x) for x in odds)
    count, there = _count_of_events(mechanism), _has_residual(mechanism)
    if not count:
        residual = 0.0
    if not there:
        rest = 0.0
    loss = residual_loss(mechanism, log_delta + residual + t, log_delta + residual + w) if there else 0.0
    if not count or loss == math.inf:
        return loss
    shift = correlated_shift(mechanism, log_delta + rest + radius - math.log(count))
    return loss + gaussian_profile(shift).epsilon(log_delta + rest + gauss).upper


COLUMN = Bound(
    name="column",
    summary="bound for records that change one or more columns of the query matrix; corrects a published lemma",
    formula="eps_R + eps_C: eps_R the largest residual loss within quantiles, eps_C the Gaussian epsilon at |C x| <= "
    "(1/r)(sqrt(d+r-k) + sqrt k + t1)(alpha(sqrt r + t2) + beta(sqrt k + t3))/sigma; c columns: a chain",
    source="arXiv 2601.21719, Theorems 3 and 4, with Lemma 14 corrected by privproj",
    proof="C13",
    example="--dim 1000 --rank 64 --span-dim 4 --residual-misalignment 8e-6 --noise-multiplier 20",
    # eps_R + eps_C (C13): the largest residual loss within quantiles, and the Gaussian epsilon at a bound on |C x|. The
    # shares of delta among its events are optimized unless they are given.
    representation=lambda mechanism: split_rule(partial(_epsilon, mechanism), "optimal", margin=1.0),
    supports=("split",),
    version=4,
    **OF_COLUMN,
)


def _check_equal_norms(mechanism: M1) -> None:
    first, second = mechanism.norms
    if first != second:
        raise InvalidParameterError(
            "other_residual_norm", second, f"{first:g}, like residual_norm, for a published bound"
        )


def _published_epsilon(mechanism: M1, log_delta: float) -> float:
    return _chain(partial(_published_link, mechanism), mechanism.changed_columns, log_delta)


def _published_link(mechanism: M1, log_delta: float) -> float:
    """Return epsilon of the bound ``column-published`` for one changed column."""
    k, misalignment, *_ = mechanism.span_residual
    dim, rank = mechanism.shape
    there = _has_residual(mechanism)
    # delta = delta_T + delta_W + delta_C + 2 d0 in equal parts; without a residual delta = delta_C + 2 d0.
    part = log_delta - math.log(4.0 if there else 2.0)
    # t = sqrt(2 ln(1/d0)), m = min(k, r).
    t, m = math.sqrt(-2.0 * (part - math.log(2.0))), math.sqrt(min(k, rank))
    # shift = (s/sigma) (sqrt d + sqrt m + t)(sqrt m + t)/r, s that of one column, and sqrt(2 ln(1.25/delta_C)) shift
    # (2601.21719, Theorem 4 and Lemma 14, as reconstructed; refuted for r > k, see C13).
    mu = mechanism.mu / math.sqrt(mechanism.changed_columns)
    shift = mu * (math.sqrt(dim) + m + t) * (m + t) / rank
    gauss = math.sqrt(2.0 * (math.log(1.25) - part)) * shift
    # The residual is the mechanism of Theorem 1 in d - k dimensions and of rank r - k (2601.21719, Lemma 2).
    loss = published_loss(dim - k, rank - k, misalignment, part, part) if there else 0.0
    # Without a residual part, the textbook rule is proved up to a Gaussian epsilon of 1 only.
    return loss + gauss if gauss <= 1.0 or there else math.inf


def _has_wrong_radius(mechanism: M1) -> bool:
    """Return whether the sensitivity that ``column-published`` uses is wrong (C13)."""
    # The rank exceeds the dimension that the other columns span.
    return mechanism.shape[1] > mechanism.span_residual[0]


COLUMN_PUBLISHED = Bound(
    name="column-published",
    summary="published bound for records that change one or more columns of the query matrix; wrong for large ranks",
    formula="eps_R + sqrt(2 ln(1.25/delta_C)) (1/r)(sqrt d + sqrt(min(k,r)) + t)(sqrt(min(k,r)) + t) s/sigma, eps_R "
    "that of wishart quantile at (d-k, r-k), delta = delta_R + delta_C + 2 d0, t = sqrt(2 ln(1/d0)); c columns: a "
    "chain",
    source="arXiv 2601.21719, Theorems 3 and 4 and Lemma 14, reconstructed from their proofs",
    example="--dim 40 --rank 2 --span-dim 4 --residual-misalignment 1e-6 --noise-multiplier 1e4",
    representation=lambda mechanism: EpsilonDeltaRule(partial(_published_epsilon, mechanism), margin=1.0),
    flaw=Flaw(
        "its proof treats random rows that depend on each other as independent (docs/not-a-guarantee.md has a "
        "counterexample). Use known-projection, which needs no assumption on the data",
        affects=_has_wrong_radius,
    ),
    check=_check_equal_norms,
    version=5,
    **{**OF_COLUMN, "status": Status.REFUTED},
)


def _residual_published(mechanism: M1) -> OverRun:
    """Return the published bound on the privacy loss of one changed column's residual.

    The residual is the part of the column orthogonal to the other columns.

    Raises:
        UnsupportedError: The residual does not add to the privacy loss.
        InvalidParameterError: Several columns change.
    """
    k, misalignment, *_ = mechanism.span_residual
    dim, rank = mechanism.shape
    if rank <= k:
        raise UnsupportedError("the bound residual-published needs a rank above span_dim. Use column-published")
    if mechanism.changed_columns > 1:
        raise InvalidParameterError(
            "changed_columns", mechanism.changed_columns, "1 for the bound residual-published", "use column-published"
        )
    # Theorem 1 of arXiv 2601.21719:
    # eps_R of (d, r) -> (d - k, r - k) (2601.21719, Lemma 2).
    return split_rule(partial(quantile_epsilon, published_loss, dim - k, rank - k, misalignment), 0.5, margin=1e-10)


RESIDUAL_PUBLISHED = Bound(
    name="residual-published",
    summary="published bound for records that change one column of the query; wrong unless all other columns are 0",
    formula="eps of wishart quantile at (d-k, r-k)",
    source="arXiv 2601.21719, Lemma 2",
    proof="C13",
    example="--dim 1000 --rank 64 --span-dim 0 --residual-misalignment 8e-6 --noise-multiplier 20",
    representation=_residual_published,
    flaw=Flaw(
        "it covers only the part of the changed column that is orthogonal to the other columns. Use column-exact or "
        "column, or set span_dim to 0 if all other columns are zero",
        affects=lambda mechanism: mechanism.span_residual[0] > 0,
    ),
    supports=("split",),
    check=_check_equal_norms,
    **{**OF_COLUMN, "status": Status.REFUTED},
)
