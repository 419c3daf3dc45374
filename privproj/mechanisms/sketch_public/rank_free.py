"""The public sketch: a change of any rank, no promise on the data, and the exact profile of one of rank one."""

import math
from typing import TYPE_CHECKING, Any

from privproj.distributions.beta_gamma_kernels import SHIFT_COLUMNS
from privproj.distributions.mixture_profile import LOWER_END_REFINEMENT, any_rank_profile, rank_one_profile
from privproj.distributions.squared_sensitivity import HillLaw
from privproj.mechanisms import PublicSketch
from privproj.mechanisms.bound import OF_RANK_ONE, Bound, in_balls
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.profiles.privacy_profile import LawRow


def law(mechanism: PublicSketch) -> HillLaw:
    """The law of the squared shift of a unit direction, in units of the noise."""
    return _law_at(mechanism, mechanism.mu)


def _law_at(mechanism: PublicSketch, mu: Any) -> HillLaw:
    """That law at another ratio ``mu``, or at an array of them."""
    rank = mechanism.needed_rank
    # X = mu^2 |A u|^2 for a unit vector u: mu^2 chi2_r / r (C7).
    return HillLaw(0.5 * rank, math.inf, 2.0 * mu**2 / rank)


def _law_row(mechanism: PublicSketch, mu: Any, any_rank: float = 1.0) -> "LawRow":
    """The profile over columns and the row of one release."""
    return SHIFT_COLUMNS, _law_at(mechanism, mu).row(any_rank)


def worst_changes(mechanism: PublicSketch) -> tuple[PrivacyProfile, ...]:
    """The profile of a change of rank one and, as the limit of ever more directions, of one that is spread evenly."""
    # delta(eps) = E[h_eps(X)] (C4), and h_eps(E X) = h_eps(mu^2) (C28).
    even = () if mechanism.dim else (gaussian_profile(mechanism.mu),)
    return (rank_one_profile(law(mechanism), LOWER_END_REFINEMENT), *even)


RANK_FREE = Bound(
    name="rank-free",
    mechanism=PublicSketch,
    summary="sketch known to all, noise after: change of any rank, no promise on the data",
    formula="delta(eps) = min_p E[g_p(mu^2 chi2_r / r)], g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C5",
    # delta(eps) = min_p E[g_p(X)] (C5).
    representation=lambda mechanism: any_rank_profile(law(mechanism)),
    worst_changes=worst_changes,
    ball_profile=in_balls("BallAnyRank", lambda mechanism, steps: (mechanism.needed_rank, mechanism.z)),
    law_row=_law_row,
    version=6,
)


EXACT_RANK1 = Bound(
    name="exact-rank1",
    mechanism=PublicSketch,
    summary="sketch known to all, noise after: exact for changes of rank one",
    formula="delta(eps) = E[h_eps(mu^2 chi2_r / r)], h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the privacy loss given the sketch is Gaussian",
    proof="C4",
    # delta(eps) = E[h_eps(mu^2 chi2_r / r)] (C4, C7).
    representation=lambda mechanism: rank_one_profile(law(mechanism)),
    # Changes of rank one of several records add up to one of any rank.
    of_several=RANK_FREE.representation,
    worst_changes=lambda mechanism: worst_changes(mechanism)[:1],
    ball_profile=in_balls("BallRandomSensitivity", lambda mechanism, steps: (mechanism.needed_rank, mechanism.z)),
    law_row=lambda mechanism, mu: _law_row(mechanism, mu, any_rank=0.0),
    exact=True,
    version=7,
    **OF_RANK_ONE,
)
