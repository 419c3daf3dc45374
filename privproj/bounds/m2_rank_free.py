"""The default bound of M2: a change of any rank, no promise on the data.

``delta(eps) <= min over p >= x0(eps) of E[g_p(mu^2 B)]``, ``B ~ Beta(r/2, (d-r)/2)``; proof and
computation are in :mod:`privproj.random_sensitivity`.
"""

from typing import TYPE_CHECKING

from privproj.bound import Bound
from privproj.bounds.gaussian_analytic import profile as gaussian_profile
from privproj.mechanisms import M2
from privproj.profile import PrivacyProfile
from privproj.random_sensitivity import ScaledBeta, log_any_rank_profile

if TYPE_CHECKING:
    from privproj.arrays import Array


def law(mechanism: M2) -> ScaledBeta:
    """``X = mu^2 |P u|^2`` for a unit vector ``u``: ``mu^2 Beta(r/2, (d-r)/2)``."""
    return ScaledBeta(*mechanism.beta_shape, mechanism.mu**2)


def form(mechanism: M2) -> PrivacyProfile:
    """The any-rank profile; with ``r = d`` the projection is the identity and the profile Gaussian."""
    if mechanism.rank == mechanism.dim:
        return gaussian_profile(mechanism.mu)
    energy = law(mechanism)

    def table(eps: "Array") -> "Array":
        from privproj.arrays import any_rank_deltas, beta_bins

        return any_rank_deltas(eps, (beta_bins(energy.a, energy.b, energy.scale),))

    return PrivacyProfile(lambda eps: log_any_rank_profile(eps, energy), table=table)


BOUND = Bound(
    name="rank-free",
    mechanism=M2,
    summary="change of any rank, no promise on the data; two to three times tighter than the published bound",
    formula="delta(eps) = min_p E[g_p(mu^2 B)], B ~ Beta(r/2, (d-r)/2), g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant (privproj.random_sensitivity)",
    example="privproj epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.3814 --delta 1e-5",
    form=form,
)
