"""The default bound of M1: a change of any rank, no promise on the data, the projection known to all."""

from typing import TYPE_CHECKING

from privproj.bound import Bound
from privproj.mechanisms import M1
from privproj.numerics import Enclosure
from privproj.profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.arrays import Array
    from privproj.energy import ScaledEnergy


def law(mechanism: M1) -> "ScaledEnergy":
    """``X = mu^2 |M u|^2`` for a unit vector ``u``: ``mu^2 U (U + Y)/r^2``, ``U ~ chi2_r``, ``Y ~ chi2_(d-1)``."""
    from privproj.energy import ProjectedEnergy, ScaledEnergy

    dim, rank = mechanism.shape
    return ScaledEnergy(ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank), mechanism.mu**2)


def form(mechanism: M1) -> PrivacyProfile:
    """The any-rank profile of that law."""
    energy = law(mechanism)

    def log_delta(eps: float) -> Enclosure:
        from privproj.random_sensitivity import log_any_rank_profile

        return log_any_rank_profile(eps, energy)

    def table(eps: "Array") -> "tuple[Array, Array]":
        from privproj import arrays

        return arrays.from_above(arrays.any_rank_deltas(eps, (energy.bins(),)))

    return PrivacyProfile(log_delta, table=table, resolution=40.0)


BOUND = Bound(
    name="known-projection",
    mechanism=M1,
    summary="change of any rank, no promise on the data; far below the published Gaussian baseline",
    formula="delta(eps) = min_p E[g_p(mu^2 X)], X = U(U+Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1), g_p the convex majorant of "
    "the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant (privproj.random_sensitivity, privproj.energy)",
    example="privproj epsilon m1 --dim 1000 --rank 256 --noise-multiplier 20 --delta 1e-5",
    form=form,
)
