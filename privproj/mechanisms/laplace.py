"""Define the Laplace mechanism and its exact privacy profile."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privproj.assumptions import Requirement
from privproj.mechanisms.base import NoisyMechanism
from privproj.mechanisms.bound import Bound
from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, Enclosure, widen_outward
from privproj.parameters import NOISE, parameter
from privproj.profiles.privacy_profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array


@dataclass(frozen=True, kw_only=True)
class Laplace(NoisyMechanism):
    """The Laplace mechanism, which adds Laplace noise to a query.

    Args:
        noise_multiplier: ``z``, the ratio of the scale of the noise to the sensitivity in the 1-norm, from 1e-12 to
            1e12; None only for the sigma query.

    Raises:
        InvalidParameterError: The noise multiplier is outside its range.

    >>> from privproj import Laplace, epsilon
    >>> round(epsilon(Laplace(noise_multiplier=1.0), delta=1e-5).value, 5)
    0.99998
    """

    name = "laplace"
    summary = "Add Laplace noise to a vector."
    example = "noise_multiplier=2"
    requirements = (Requirement.L1_SENSITIVITY,)
    deviation_over_scale = math.sqrt(2.0)  # noise of scale b has the standard deviation sqrt(2) b
    noise_multiplier: float | None = parameter(
        NOISE, "z = noise scale / sensitivity in the 1-norm.", "Z", is_needed=True, is_found=True
    )


def representation(mechanism: Laplace) -> PrivacyProfile:
    """Return the exact privacy profile of one release."""
    mu = mechanism.mu

    def log_delta(eps: float) -> Enclosure:
        if eps >= mu:
            return Enclosure(-math.inf, LOG_OF_ZERO_FROM_ABOVE)
        # delta(eps) = 1 - e^((eps - mu)/2) for eps < mu, else 0 (C3); rounding of mu changes it by a few 1e-16 mu
        # (C20).
        delta = -math.expm1(0.5 * (eps - mu))
        return widen_outward(math.log(delta), 4e-16 * mu / delta)

    def table(eps: "Array") -> "tuple[Array, Array]":
        import numpy as np

        # delta(eps) = 1 - e^((eps - mu)/2) for eps < mu, else 0 (C3).
        delta = np.maximum(-np.expm1(0.5 * np.minimum(eps - mu, 0.0)), 0.0)
        margin = 1e-15 * (delta + mu)
        return np.maximum(delta - margin, 0.0), np.where(eps < mu * (1.0 + 1e-14), delta + margin, 0.0)

    return PrivacyProfile(log_delta, table=table, resolution=256.0)


EXACT = Bound(
    name="exact",
    mechanism=Laplace,
    summary="exact privacy profile",
    formula="delta(eps) = 1 - e^((eps - mu)/2) for eps < mu = 1/z, else 0",
    source="the likelihood ratio of two Laplace distributions, shifted by the sensitivity",
    representation=representation,
    version=4,
    worst_differences=lambda mechanism: (representation(mechanism),),
    exact=True,
)
