"""Bound M1 by a Gaussian mechanism and the operator norm of the projection (C16).

``operator-norm`` uses the Gaussian profile, and ``operator-norm-published`` a closed form of epsilon.
"""

import math
from dataclasses import replace
from functools import partial

from privproj.composition.good_event import GoodEvent
from privproj.mechanisms import M1
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.gaussian import classical_rule
from privproj.numerics.interval import next_up
from privproj.profiles.approximate_dp import EpsilonDeltaRule


def representation(mechanism: M1) -> GoodEvent:
    """Return the bound by a Gaussian mechanism with a larger sensitivity (C16).

    The sensitivity is multiplied by a bound on the operator norm of the projection. The probability that the norm
    exceeds its bound is added to delta.
    """
    # For a fixed projection the probability is added once, for any number of releases.
    return GoodEvent(mechanism.mu, partial(_radius, mechanism), once=mechanism.fixed_projection, default_split=0.5)


def _radius(mechanism: M1, log_bad: float) -> float:
    """Return an operator-norm bound that fails with probability at most ``e^log_bad``."""
    # (sqrt d + sqrt r + t)^2 / r, t = sqrt(2 ln(1/d0))
    dim, rank = mechanism.shape
    return next_up((math.sqrt(dim) + math.sqrt(rank) + math.sqrt(-2.0 * log_bad)) ** 2 / rank)


OPERATOR_NORM = Bound(
    name="operator-norm",
    mechanism=M1,
    summary="Gaussian mechanism with a high-probability bound on the norm of the projection",
    formula="delta = T d0 + delta of the Gaussian run at mu (sqrt d + sqrt r + sqrt(2 ln(1/d0)))^2 / r; d0 once for a "
    "fixed projection",
    source="privproj: arXiv 2601.21719, Equation 5, with the exact Gaussian profile",
    proof="C16",
    representation=representation,
    supports=("split", "fixed-projection"),
    version=5,
)


def _published(mechanism: M1) -> EpsilonDeltaRule:
    """Return the published closed form of epsilon, proved for ``0 < eps < 1`` only."""
    half = math.log(0.5)

    def epsilon_at(log_delta: float) -> float:
        # sqrt(2 ln(1.25/delta_1)) mu |M|_op, delta_1 = d0 = delta/2 (2601.21719, Equations 4 and 5).
        return classical_rule(mechanism.mu * _radius(mechanism, log_delta + half)).epsilon_at(log_delta + half)

    return replace(classical_rule(mechanism.mu), epsilon_at=epsilon_at, log_delta_at=None, remedy="Use operator-norm")


OPERATOR_NORM_PUBLISHED = Bound(
    name="operator-norm-published",
    mechanism=M1,
    summary="published version of the bound operator-norm, in closed form, for 0 < epsilon < 1 only",
    formula="eps = sqrt(2 ln(2.5/delta)) mu (sqrt d + sqrt r + sqrt(2 ln(2/delta)))^2 / r, 0 < eps < 1",
    source="arXiv 2601.21719, Equations 4 and 5",
    proof="C16",
    example="--dim 1000 --rank 256 --noise-multiplier 100",
    representation=_published,
)
