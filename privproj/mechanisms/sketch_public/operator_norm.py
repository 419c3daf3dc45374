"""The Gaussian baseline of the public sketch: a bound on the norm of the sketched change, then a Gaussian run."""

import math

from privproj.composition.good_event import GoodEvent
from privproj.mechanisms import PublicSketch
from privproj.mechanisms.bound import Baseline, Bound
from privproj.numerics.interval import next_up


def representation(mechanism: PublicSketch) -> GoodEvent:
    """A Gaussian run at the norm of the sketched change, outside of the event that it is larger.

    The norm is a Lipschitz function of the Gaussian matrix with constant ``|D|_op/sqrt(r)`` and mean at most ``|D|_F``.
    """
    root = math.sqrt(mechanism.needed_rank)

    def radius(log_bad: float) -> float:
        # |D A^T|_F <= (1 + t/sqrt(r)) |D|_F but for probability d0, t = sqrt(2 ln(1/d0)) (C16).
        return next_up(1.0 + math.sqrt(-2.0 * log_bad) / root)

    return GoodEvent(mechanism.mu, radius, default_split=0.5)


BOUND = Bound(
    name="operator-norm",
    mechanism=PublicSketch,
    summary="norm of the sketched change by Gaussian concentration, then a Gaussian run; loose",
    formula="delta = T d0 + delta of the Gaussian run at mu (1 + sqrt(2 ln(1/d0)/r))",
    source="Gaussian concentration of a Lipschitz function, as in arXiv 2601.21719, Equation 5",
    proof="C16",
    representation=representation,
    splits=True,
    baseline=Baseline("operator norm", "unsampled"),
    version=5,
)
