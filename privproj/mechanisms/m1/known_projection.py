"""Bound M1 for an adversary who observes the projection.

For differences of rank one the profile is exact.
"""

from typing import TYPE_CHECKING

from privproj.distributions.mixture_profile import LOWER_END_REFINEMENT, any_rank_profile, rank_one_profile
from privproj.mechanisms import M1
from privproj.mechanisms.bound import OF_RANK_ONE, Bound
from privproj.profiles.privacy_profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.distributions.tabulated import TabulatedSensitivity


def distribution(mechanism: M1) -> "TabulatedSensitivity":
    """Return the distribution of the squared sensitivity over noise.

    The difference is one unit direction.
    """
    from privproj.distributions.densities import ProjectedEnergy
    from privproj.distributions.tabulated import TabulatedSensitivity

    dim, rank = mechanism.shape
    # X = mu^2 |M u|^2 for a unit vector u: mu^2 U (U + Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1) (C7).
    return TabulatedSensitivity(ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank), mechanism.mu**2)


def worst_differences(mechanism: M1) -> tuple[PrivacyProfile, ...]:
    """Return the profile of a difference of rank one.

    Every assumption on the rank allows such a difference.
    """
    # delta(eps) = E[h_eps(X)] (C4)
    return (rank_one_profile(distribution(mechanism), LOWER_END_REFINEMENT),)


KNOWN_PROJECTION = Bound(
    name="known-projection",
    mechanism=M1,
    summary="neighboring sums may differ by a matrix of any rank; no assumption on the data",
    formula="delta(eps) = min_p E[g_p(mu^2 X)], X = U(U+Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1), g_p the convex majorant of "
    "the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C5",
    # delta(eps) = min_p E[g_p(X)] (C5).
    representation=lambda mechanism: any_rank_profile(distribution(mechanism)),
    worst_differences=worst_differences,
    version=8,
)


KNOWN_PROJECTION_RANK1 = Bound(
    name="known-projection-rank1",
    mechanism=M1,
    summary="exact if neighboring sums differ by a matrix of rank one and the adversary sees the projection",
    formula="delta(eps) = E[h_eps(mu^2 X)], X = U(U+Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1), h_eps(x) the Gaussian delta at "
    "sqrt(x)",
    source="privproj: the privacy loss given the projection is Gaussian",
    proof="C4",
    # delta(eps) = E[h_eps(mu^2 U (U + Y)/r^2)] (C4, C7).
    representation=lambda mechanism: rank_one_profile(distribution(mechanism)),
    # Differences of rank one of several records sum to a difference of any rank.
    of_group=KNOWN_PROJECTION.representation,
    worst_differences=worst_differences,
    exact="given-projection",
    version=8,
    **OF_RANK_ONE,
)
