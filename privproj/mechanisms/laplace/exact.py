"""The exact profile of the Laplace mechanism."""

import math
from typing import TYPE_CHECKING

from privproj.mechanisms import Laplace
from privproj.mechanisms.bound import Bound, in_balls
from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, Enclosure, widen_outward
from privproj.profiles.privacy_profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array


def representation(mechanism: Laplace) -> PrivacyProfile:
    """The exact profile of one release at ``mu = 1/z``, for one epsilon and as a table."""
    mu = mechanism.mu

    def log_delta(eps: float) -> Enclosure:
        if eps >= mu:
            return Enclosure(-math.inf, LOG_OF_ZERO_FROM_ABOVE)
        # delta(eps) = 1 - e^((eps - mu)/2) for eps < mu, else 0 (C3); rounding of mu moves it by a few 1e-16 mu (C20).
        delta = -math.expm1(0.5 * (eps - mu))
        return widen_outward(math.log(delta), 4e-16 * mu / delta)

    def table(eps: "Array") -> "tuple[Array, Array]":
        import numpy as np

        # delta(eps) = 1 - e^((eps - mu)/2) for eps < mu, else 0 (C3).
        delta = np.maximum(-np.expm1(0.5 * np.minimum(eps - mu, 0.0)), 0.0)
        margin = 1e-15 * (delta + mu)
        return np.maximum(delta - margin, 0.0), np.where(eps < mu * (1.0 + 1e-14), delta + margin, 0.0)

    return PrivacyProfile(log_delta, table=table, resolution=256.0)


BOUND = Bound(
    name="exact",
    mechanism=Laplace,
    summary="exact privacy profile",
    formula="delta(eps) = 1 - e^((eps - mu)/2) for eps < mu = 1/z, else 0",
    source="the likelihood ratio of two Laplace laws at distance mu",
    representation=representation,
    version=4,
    worst_changes=lambda mechanism: (representation(mechanism),),
    ball_profile=in_balls("BallLaplaceProfile", lambda mechanism, steps: (mechanism.z,)),
    exact=True,
)
