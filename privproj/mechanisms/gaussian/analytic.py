"""The exact profile of the Gaussian mechanism (Balle, Wang 2018, Theorem 8)."""

from typing import TYPE_CHECKING

from privproj.curves.gaussian import GAUSSIAN_COLUMNS, gaussian_profile
from privproj.curves.profile import PrivacyProfile
from privproj.mechanisms import ClippedSum, Gaussian
from privproj.mechanisms.bound import Bound

if TYPE_CHECKING:
    from privproj.rigorous.profiles import BallProfile


def representation(mechanism: ClippedSum) -> PrivacyProfile:
    """The exact profile of one release at ``mu = 1/z``."""
    # delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z (C3).
    return gaussian_profile(mechanism.joint_mu)


def provable(mechanism: ClippedSum, steps: int) -> "BallProfile":
    """The exact profile of ``steps`` releases in balls."""
    from privproj.rigorous.profiles import BallGaussianProfile

    # T releases are one at mu = sqrt(T)/z (C3).
    return BallGaussianProfile(mechanism.z, steps)


BOUND = Bound(
    name="analytic",
    mechanism=Gaussian,
    summary="exact privacy profile",
    formula="delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z",
    source="Balle, Wang 2018, Theorem 8",
    proof="C3",
    example="privproj epsilon gaussian --noise-multiplier 1 --delta 1e-5",
    representation=representation,
    version=3,
    allows=lambda mechanism: (representation(mechanism),),
    provable=provable,
    columns=lambda mechanism: (GAUSSIAN_COLUMNS, (mechanism.joint_mu,)),
    provable_steps=True,
    exact=True,
    counts_clipped=True,
)
