"""Compute the exact privacy profile of the vector Wishart mechanism (C9)."""

import math

from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.wishart import OF_ALIGNMENT
from privproj.numerics.interval import next_up, widen_outward
from privproj.profiles.privacy_profile import PrivacyProfile


def representation(mechanism: Wishart) -> PrivacyProfile:
    """Return the privacy profile of the worst pair of neighboring vectors.

    For equal norms, the profile is exact (C10). Otherwise, it has numerical upper and lower bounds (C12).
    """
    dim, rank, misalignment = mechanism.shape
    if mechanism.norm_ratio != 1.0:
        from privproj.distributions.wishart_unequal_norms import UnequalNorms

        # The worst pair, enclosed over all |ln kappa| <= ln(norm_ratio), misalignments up to m, and both orders (C12).
        return UnequalNorms(*mechanism.shape, next_up(math.log(mechanism.norm_ratio))).profile()
    if dim == 1:
        return PrivacyProfile(lambda eps: widen_outward(-math.inf), closed_form=lambda steps: representation(mechanism))

    from privproj.distributions.wishart_loss import VectorWishart

    # delta(eps) = E[max(0, 1 - e^(eps - L))], L = a ln A + (W/2)(1/A - 1), a = (d+1-r)/2 (C9, C10).
    return VectorWishart(dim, rank, misalignment).profile()


EXACT = Bound(
    name="exact",
    summary="exact privacy profile, if 1 - cosine of neighboring query vectors is at most --misalignment",
    formula="L = (d+1-r)/2 ln A + (W/2)(1/A - 1), A = rho + sqrt(1-rho^2) T_r/sqrt(r), W ~ chi2_(r+d-1); "
    "delta(eps) = E[max(0, 1 - e^(eps - L))], L infinite where A <= 0",
    source="privproj: exact delta of the mechanism of arXiv 2601.21719, Theorem 1",
    proof="C9",
    representation=representation,
    exact=True,
    version=8,
    **OF_ALIGNMENT,
)
