"""Bound M1 by the norm of the projection, as in the published baseline (C16)."""

import math

from privproj.composition.good_event import GoodEvent
from privproj.mechanisms import M1
from privproj.mechanisms.bound import Bound
from privproj.numerics.interval import next_up


def representation(mechanism: M1) -> GoodEvent:
    """Return a Gaussian run at a bound on the norm of the projection.

    The bound holds except for a rare event.

    The event does not depend on the difference. A fixed projection fails at most once, whatever the number of releases.
    """
    dim, rank = mechanism.shape
    edge = math.sqrt(dim) + math.sqrt(rank)

    def radius(log_bad: float) -> float:
        # |M|_op <= (sqrt d + sqrt r + t)^2 / r except with probability d0, t = sqrt(2 ln(1/d0)) (C16).
        return next_up((edge + math.sqrt(-2.0 * log_bad)) ** 2 / rank)

    return GoodEvent(mechanism.mu, radius, once=mechanism.fixed_projection, default_split=0.5)


OPERATOR_NORM = Bound(
    name="operator-norm",
    mechanism=M1,
    summary="published baseline: Gaussian mechanism at a bound on the norm of the projection (loose)",
    formula="delta = T d0 + delta of the Gaussian run at mu (sqrt d + sqrt r + sqrt(2 ln(1/d0)))^2 / r; d0 once for a "
    "fixed projection",
    source="arXiv 2601.21719, Equation 5, with the exact Gaussian profile",
    proof="C16",
    representation=representation,
    supports=("split", "fixed-projection"),
    version=5,
)
