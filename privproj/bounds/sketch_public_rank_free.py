"""The default bound of the public sketch: a change of any rank, no promise on the data."""

from typing import TYPE_CHECKING

from privproj.bound import Bound
from privproj.mechanisms import PublicSketch
from privproj.profile import PrivacyProfile
from privproj.random_sensitivity import ScaledGamma, log_any_rank_profile

if TYPE_CHECKING:
    from privproj.arrays import Array
    from privproj.rigorous.profiles import Profile


def law(mechanism: PublicSketch) -> ScaledGamma:
    """``X = mu^2 |A u|^2`` for a unit vector ``u``: ``mu^2 chi2_r / r``."""
    rank = mechanism.needed_rank
    return ScaledGamma(0.5 * rank, 2.0 * mechanism.mu**2 / rank)


def form(mechanism: PublicSketch) -> PrivacyProfile:
    """The any-rank profile of that law."""
    energy = law(mechanism)

    def table(eps: "Array") -> "tuple[Array, Array]":
        from privproj import arrays

        return arrays.from_above(arrays.any_rank_deltas(eps, (arrays.gamma_bins(energy.a, energy.scale),)))

    return PrivacyProfile(lambda eps: log_any_rank_profile(eps, energy), table=table, resolution=40.0)


def provable(mechanism: PublicSketch, steps: int) -> "Profile":
    """The bound in balls."""
    from privproj.rigorous.profiles import AnyRank

    return AnyRank(mechanism.needed_rank, mechanism.z)


BOUND = Bound(
    name="rank-free",
    mechanism=PublicSketch,
    summary="sketch known to all, noise after: change of any rank, no promise on the data",
    formula="delta(eps) = min_p E[g_p(mu^2 chi2_r / r)], g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant (privproj.random_sensitivity)",
    example="privproj epsilon sketch-public --rank 16 --noise-multiplier 1 --delta 1e-5",
    form=form,
    provable=provable,
)
