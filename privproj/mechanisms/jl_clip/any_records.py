"""Random clipping where several records change: under replacement, and for a group."""

from privproj.curves.profile import PrivacyProfile
from privproj.laws.profiles import any_rank_profile, rank_one_profile
from privproj.mechanisms import JLClip
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.jl_clip.exact import law


def representation(mechanism: JLClip) -> PrivacyProfile:
    """The any-rank profile of the law of one record whose vector has all of the sensitivity."""
    # delta(eps) = min_p E[g_p(mu^2 r / chi2_r)] (C32, several records).
    return any_rank_profile(law(mechanism))


def refuses(mechanism: JLClip) -> str | None:
    """Why there is no bound for one or two probes: the squared shift has no mean."""
    if (mechanism.probes or 0) < 3:
        return f"any-records needs a mean of the squared shift, which takes 3 probes, got probes={mechanism.probes}"
    return None


BOUND = Bound(
    name="any-records",
    mechanism=JLClip,
    summary="several records at once, whose estimates may depend on each other: replacement and groups",
    formula="delta(eps) = min_p E[g_p(mu^2 r / chi2_r)], g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C32",
    example="privproj epsilon jl-clip --bound any-records --group-size 2 --probes 30 --noise-multiplier 2 --delta 1e-5",
    representation=representation,
    version=2,
    allows=lambda mechanism: (rank_one_profile(law(mechanism)),),
    refuses=refuses,
)
