"""The exact profile of random clipping by Gaussian probes."""

from typing import TYPE_CHECKING

from privproj.curves.profile import PrivacyProfile
from privproj.laws.profiles import rank_one_profile
from privproj.mechanisms import JLClip
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.jl_clip._inverse_gamma import InverseGamma
from privproj.runs.sampling import NeighbouringRelation

if TYPE_CHECKING:
    from privproj.rigorous.profiles import BallProfile


def law(mechanism: JLClip) -> InverseGamma:
    """The law of the squared shift of a long vector, in units of the noise."""
    assert mechanism.probes is not None
    half = 0.5 * mechanism.probes
    # X = mu^2 r / chi2_r (C32).
    return InverseGamma(half, mechanism.mu**2 * half)


def representation(mechanism: JLClip) -> PrivacyProfile:
    """The profile of the pair (probes, release) as the record's vector grows without end."""
    # delta(eps) = E[h_eps(mu^2 r / chi2_r)] (C32).
    return rank_one_profile(law(mechanism))


def provable(mechanism: JLClip, steps: int) -> "BallProfile":
    """The integral of the profile in balls."""
    from privproj.rigorous.profiles import BallRandomClip

    assert mechanism.probes is not None
    return BallRandomClip(mechanism.probes, mechanism.z)


BOUND = Bound(
    name="exact",
    mechanism=JLClip,
    summary="exact profile for whoever sees the probes, over vectors of any length",
    formula="delta(eps) = E[h_eps(mu^2 r / chi2_r)], mu = 1/z, h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the law of the clipped norm of a long vector, for the algorithm of arXiv 2102.03013",
    proof="C32",
    example="privproj epsilon jl-clip --probes 30 --noise-multiplier 1 --delta 1e-5",
    representation=representation,
    version=2,
    allows=lambda mechanism: (rank_one_profile(law(mechanism)),),
    provable=provable,
    exact=True,
    groups=False,
    relations=(NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.ZERO_OUT),
)
