"""The exact profile of the Gaussian mechanism (Balle, Wang 2018, Theorem 8)."""

import math
from typing import TYPE_CHECKING

from privproj import kernels
from privproj.bound import Bound
from privproj.mechanisms import Gaussian, NoisyMechanism
from privproj.numerics import Enclosure, outward
from privproj.profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.arrays import Array
    from privproj.rigorous.profiles import Profile


def profile(mu: float) -> PrivacyProfile:
    """``delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``; ``T`` releases have ``mu sqrt(T)``."""

    def log_delta(eps: float) -> Enclosure:
        return outward(kernels.log_gaussian_delta(eps, mu), steepness=mu * mu)

    def table(eps: "Array") -> "tuple[Array, Array]":
        from privproj.arrays import gaussian_ends

        return gaussian_ends(eps, mu)

    return PrivacyProfile(
        log_delta, composed=lambda steps: profile(mu * math.sqrt(steps)), table=table, resolution=256.0
    )


def form(mechanism: NoisyMechanism) -> PrivacyProfile:
    """The profile at ``mu = 1/z``."""
    return profile(mechanism.mu)


def provable(mechanism: NoisyMechanism, steps: int) -> "Profile":
    """The profile in balls, at ``mu = sqrt(T)/z``."""
    from privproj.rigorous.profiles import GaussianProfile

    return GaussianProfile(mechanism.z, steps)


BOUND = Bound(
    name="analytic",
    mechanism=Gaussian,
    summary="exact privacy profile",
    formula="delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z",
    source="Balle, Wang 2018, Theorem 8",
    example="privproj epsilon gaussian --noise-multiplier 1 --delta 1e-5",
    form=form,
    provable=provable,
    provable_steps=True,
    exact=True,
)
