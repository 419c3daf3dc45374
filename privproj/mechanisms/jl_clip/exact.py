"""Random clipping by Gaussian probes: the exact profile, and one for several records."""

from typing import TYPE_CHECKING

from privproj.laws.profiles import any_rank_profile, rank_one_profile
from privproj.mechanisms import JLClip
from privproj.mechanisms.bound import OF_ONE_RECORD, Bound
from privproj.mechanisms.jl_clip._inverse_gamma import InverseGamma

if TYPE_CHECKING:
    from privproj.rigorous.profiles import BallProfile


def law(mechanism: JLClip) -> InverseGamma:
    """The law of the squared shift of a long vector, in units of the noise."""
    assert mechanism.probes is not None
    half = 0.5 * mechanism.probes
    # X = mu^2 r / chi2_r (C32).
    return InverseGamma(half, mechanism.mu**2 * half)


def provable(mechanism: JLClip, steps: int) -> "BallProfile":
    """The integral of the profile in balls."""
    from privproj.rigorous.profiles import BallRandomClip

    assert mechanism.probes is not None
    return BallRandomClip(mechanism.probes, mechanism.z)


EXACT = Bound(
    name="exact",
    mechanism=JLClip,
    summary="exact profile for whoever sees the probes, over vectors of any length",
    formula="delta(eps) = E[h_eps(mu^2 r / chi2_r)], mu = 1/z, h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the law of the clipped norm of a long vector, for the algorithm of arXiv 2102.03013",
    proof="C32",
    example="privproj epsilon jl-clip --probes 30 --noise-multiplier 1 --delta 1e-5",
    # delta(eps) = E[h_eps(mu^2 r / chi2_r)] (C32).
    representation=lambda mechanism: rank_one_profile(law(mechanism)),
    version=3,
    allows=lambda mechanism: (rank_one_profile(law(mechanism)),),
    provable=provable,
    exact=True,
    **OF_ONE_RECORD,
)


def refuses(mechanism: JLClip) -> str | None:
    """Why there is no bound for one or two probes: the squared shift has no mean."""
    if (mechanism.probes or 0) < 3:
        return f"any-records needs a mean of the squared shift, which takes 3 probes, got probes={mechanism.probes}"
    return None


ANY_RECORDS = Bound(
    name="any-records",
    mechanism=JLClip,
    summary="several records at once, whose estimates may depend on each other: replacement and groups",
    formula="delta(eps) = min_p E[g_p(mu^2 r / chi2_r)], g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C32",
    example="privproj epsilon jl-clip --bound any-records --group-size 2 --probes 30 --noise-multiplier 2 --delta 1e-5",
    # delta(eps) = min_p E[g_p(mu^2 r / chi2_r)] (C32, several records).
    representation=lambda mechanism: any_rank_profile(law(mechanism)),
    version=3,
    allows=lambda mechanism: (rank_one_profile(law(mechanism)),),
    refuses=refuses,
)
