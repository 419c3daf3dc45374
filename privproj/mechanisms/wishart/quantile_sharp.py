"""The published bound of the vector Wishart mechanism with the largest loss that the quantiles allow."""

import math

from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.wishart._promises import alignment_promises, refuses_unequal_norms
from privproj.mechanisms.wishart._quantiles import QuantileBound, Quantiles
from privproj.result import Status


def _largest_loss(mechanism: Wishart, found: Quantiles) -> float:
    """The largest loss with ``W`` below its top quantile, or between two, whichever gives less (C11).

    It is about the pair at the promised misalignment, which dominates every better aligned one (C10). The loss is
    linear in ``W``; in ``1/A`` it is convex, or monotone where ``a < 0``: the maximum is at an end or at ``A = 1``.
    """
    if found.low >= 1.0:
        return math.inf
    # max a ln A + (W/2) (1/A - 1) over a_- <= A <= a_+ and W within its quantiles, a = (d+1-r)/2 (C11).
    return min(_at_ends(mechanism, found, 0.0, found.top), _at_ends(mechanism, found, *found.both))


def _at_ends(mechanism: Wishart, found: Quantiles, least: float, most: float) -> float:
    """The largest of the losses at ``(a_-, most)``, at ``(a_+, least)`` and 0, rounded up."""
    dim, rank, _ = mechanism.shape
    a = 0.5 * (dim + 1 - rank)
    # a ln A + (W/2) (1/A - 1) at A = a_- = 1 - low with the largest W, and at A = a_+ = 1 - high with the least (C11).
    left = a * math.log1p(-found.low) + 0.5 * most * found.low / (1.0 - found.low)
    right = a * math.log1p(-found.high) + 0.5 * least * found.high / (1.0 - found.high) if found.high < 0.0 else 0.0
    size = abs(a * math.log1p(-found.low)) + abs(a * math.log1p(-min(found.high, 0.0)))
    return max(left, right, 0.0) + 1e-14 * size + 1e-300


def representation(mechanism: Wishart) -> QuantileBound:
    """The rule with the largest loss that the quantiles allow."""
    # eps = max over A in [a_-, a_+] and W within its quantiles of a ln A + (W/2)(1/A - 1) (C11).
    return QuantileBound(mechanism, _largest_loss)


BOUND = Bound(
    name="quantile-sharp",
    mechanism=Wishart,
    summary="the published quantiles with the largest loss they allow",
    formula="eps = max over A in [a_-, a_+] and W within its quantiles of (d+1-r)/2 ln A + (W/2)(1/A - 1)",
    source="privproj, from the proof of arXiv 2601.21719, Theorem 1",
    proof="C11",
    example="privproj epsilon wishart --bound quantile-sharp --dim 1000 --rank 16 --misalignment 8e-6 --delta 1e-5",
    representation=representation,
    status=Status.CONDITIONAL,
    groups=False,
    splits=True,
    promises_of=alignment_promises,
    refuses=refuses_unequal_norms,
    version=2,
)
