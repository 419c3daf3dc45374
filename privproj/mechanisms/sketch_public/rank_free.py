"""The default bound of the public sketch: a change of any rank, no promise on the data."""

from typing import TYPE_CHECKING

from privproj.curves.gaussian import gaussian_profile
from privproj.curves.profile import PrivacyProfile
from privproj.laws.profiles import LOWER_END_REFINEMENT, any_rank_profile, rank_one_profile
from privproj.laws.shift_kernels import SHIFT_COLUMNS
from privproj.laws.squared_shift import ScaledGamma
from privproj.mechanisms import PublicSketch
from privproj.mechanisms.bound import Bound

if TYPE_CHECKING:
    from privproj.curves.columns import RowOfLaw
    from privproj.rigorous.profiles import BallProfile


def law(mechanism: PublicSketch) -> ScaledGamma:
    """The law of the squared shift of a unit direction, in units of the noise."""
    rank = mechanism.needed_rank
    # X = mu^2 |A u|^2 for a unit vector u: mu^2 chi2_r / r (C7).
    return ScaledGamma(0.5 * rank, 2.0 * mechanism.mu**2 / rank)


def representation(mechanism: PublicSketch) -> PrivacyProfile:
    """The any-rank profile of that law."""
    # delta(eps) = min_p E[g_p(X)] (C5).
    return any_rank_profile(law(mechanism))


def columns(mechanism: PublicSketch, any_rank: float = 1.0) -> "RowOfLaw":
    """The profile over columns and the row of one release."""
    return SHIFT_COLUMNS, (*law(mechanism).row, any_rank)


def allowed(mechanism: PublicSketch) -> tuple[PrivacyProfile, ...]:
    """The profile of a change of rank one and, as the limit of ever more directions, of one that is spread evenly."""
    # delta(eps) = E[h_eps(X)] (C4), and h_eps(E X) = h_eps(mu^2) (C28).
    even = () if mechanism.dim else (gaussian_profile(mechanism.mu),)
    return (rank_one_profile(law(mechanism), LOWER_END_REFINEMENT), *even)


def provable(mechanism: PublicSketch, steps: int) -> "BallProfile":
    """The bound in balls; its tangent is the witness of the certificate."""
    from privproj.rigorous.profiles import BallAnyRank

    return BallAnyRank(mechanism.needed_rank, mechanism.z)


BOUND = Bound(
    name="rank-free",
    mechanism=PublicSketch,
    summary="sketch known to all, noise after: change of any rank, no promise on the data",
    formula="delta(eps) = min_p E[g_p(mu^2 chi2_r / r)], g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C5",
    example="privproj epsilon sketch-public --rank 16 --noise-multiplier 1 --delta 1e-5",
    representation=representation,
    allows=allowed,
    provable=provable,
    columns=columns,
    version=5,
)
