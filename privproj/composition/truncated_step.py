"""Bound one step on a Poisson batch that is truncated to a maximum size at random (C26).

If a batch has more records than the maximum size, the records that are dropped are chosen uniformly at random. One
record is protected. If the sampled other records do not fill the batch, the protected record joins them. Otherwise it
can replace one of them, and the profile of a release for two records bounds this case. The bound of the step is a
mixture of the two cases, and covers every number of other records up to the dataset size.
"""

# A batch has at most ``B`` records. There are ``n`` other records, sampled at rate ``q``. In the first case fewer than
# ``B`` of them are sampled.
#
# Let ``E_j`` be the excess ``delta(t) - max(0, 1 - t)`` of a release for batches that differ in ``j`` records. The
# excess of the step is at most
#
#     (1 - w) a + w b,   a = q E_1(1 + (t - 1)/q),   b = p E_2(1 + (t - 1)/p),
#
# where ``w = P[Bin(n, q) >= B]`` is the probability of the second case, and ``p = B P[Bin(n + 1, q) > B] / ((n + 1)
# w)`` is the probability that the protected record is in the batch in that case. ``w`` increases with ``n`` and ``p``
# decreases. So ``w`` at the upper end of an interval of ``n`` and ``p`` at the lower end give a bound for all ``n`` in
# the interval. The result is the maximum over intervals that cover all ``n`` up to the dataset size.

import math

import numpy as np

from privproj.composition.dominating_pairs import delta_bounds
from privproj.composition.truncated_poisson import log_binomial_tail, other_records
from privproj.numerics.arrays import Array
from privproj.numerics.interval import Enclosure
from privproj.profiles.privacy_profile import PrivacyProfile, TwoSidedTable
from privproj.run import Run
from privproj.sampling import NeighboringRelation

MOST_INTERVALS = 40  # intervals of numbers of other records; more are slower and tighter
LEAST_LOG_SHARE = -80.0  # log of the probability w below which one interval covers all smaller numbers
STEP_MARGIN = 1e-11  # soundness: relative margin of the excess of a step, a sum of two terms


def truncated_step(one: PrivacyProfile, two: PrivacyProfile, run: Run) -> PrivacyProfile:
    """Return the privacy profile of one step on a Poisson batch truncated at random (C26).

    The profile is valid in the add and remove directions if ``one`` and ``two`` are valid. The caller must account for
    the step as one release on the whole dataset.

    Args:
        one: The profile of a release for one record, the same in both directions.
        two: The profile of a release for two records, which bounds the replacement of one record by another.
        run: A run with a maximum batch size and a dataset size; one record is protected.
    """
    rate, cap = run.sampling_rate, run.max_batch_size or 1
    shares = _shares_of_truncation(other_records(run), rate, cap)
    replaces = run.relation is NeighboringRelation.ZERO_OUT

    def above(losses: Array) -> Array:
        plain = _sampled_excess(one, rate, losses)
        # Under zero-out the record occupies a place of the batch in both datasets, and the excess at t < 1 is t E(1/t).
        at, weight = (np.abs(losses), np.exp(np.minimum(losses, 0.0))) if replaces else (losses, 1.0)
        worst = plain
        for share, inside in shares:
            worst = np.maximum(worst, (1.0 - share) * plain + share * weight * _sampled_excess(two, inside, at))
        return worst * (1.0 + STEP_MARGIN)

    def log_delta(eps: float) -> Enclosure:
        # The add direction at e^eps is E(t) / t at t = e^-eps.
        right, left = above(np.array([eps, -eps])).tolist()
        top = max(math.log(x) + grown if x > 0.0 else -745.0 for x, grown in ((right, 0.0), (left, eps)))
        return Enclosure(-math.inf, min(0.0, top + 1e-14))

    return PrivacyProfile(
        log_delta,
        excess=TwoSidedTable(lambda losses: np.zeros(len(losses)), above),
        resolution=one.resolution,
        can_be_subsampled=False,
    )


def _shares_of_truncation(others: int, rate: float, cap: int) -> list[tuple[float, float]]:
    """Return pairs of upper bounds of two probabilities.

    The first is the probability that the sampled other records fill the batch. The second is the probability that, in
    this case, the protected record is in the batch. Each pair is for an interval of the number of other records; the
    intervals cover all numbers from ``cap`` to ``others``.

    Args:
        others: The largest number of other records.
        rate: The sampling rate.
        cap: The maximum batch size.
    """
    shares, ratio = [], min(0.97, (cap / max(others, cap)) ** (1.0 / MOST_INTERVALS))
    while others >= cap:
        share = log_binomial_tail(others, rate, cap)
        # With fewer than B other records no batch is truncated. If w is negligible, one interval covers the rest.
        least = cap if share.upper < LEAST_LOG_SHARE else max(cap, min(others - 1, math.floor(others * ratio)))
        within = log_binomial_tail(least + 1, rate, cap + 1).upper - log_binomial_tail(least, rate, cap).lower
        inside = min(rate * cap / (cap + 1.0), cap / (least + 1.0) * math.exp(min(within, 0.0)))
        shares.append((math.exp(share.upper), inside * (1.0 + 1e-15)))
        if least == cap:
            break
        others = least
    return shares


def _sampled_excess(profile: PrivacyProfile, rate: float, losses: Array) -> Array:
    """Return upper bounds of delta minus ``max(0, 1 - e^eps)`` for a sampled step (C17).

    They are for the remove direction. ``profile`` must be the same in both directions, and ``losses`` are epsilons in
    nats.
    """
    # t' - 1 = (t - 1)/q; beyond e^700, delta at a smaller loss is an upper bound.
    tau = np.expm1(np.minimum(losses, 700.0)) / rate
    # E(t') = delta(ln t') for t' >= 1 and t' delta(-ln t') below; E increases up to 1, so t' is rounded up there.
    ratio = np.clip(1.0 + tau + 1e-15, 1e-300, 1.0)
    eps = np.where(tau < 0.0, -np.log(ratio), np.log1p(np.maximum(tau, 0.0))) * (1.0 - 4e-15)
    _, upper = delta_bounds(profile, eps)
    return np.where(tau > -1.0 - 1e-15, rate * ratio * upper, 0.0)
