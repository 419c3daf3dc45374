"""Bound M1 for an adversary who observes the projection.

The bound ``known-projection`` holds for any difference between neighboring sums, and ``known-projection-rank1`` is
exact for differences of rank one.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from privproj.distributions.mixture_profile import LOWER_END_REFINEMENT, any_rank_profile, rank_one_profile
from privproj.mechanisms import M1
from privproj.mechanisms.bound import OF_RANK_ONE, Bound
from privproj.numerics.interval import Enclosure
from privproj.profiles.privacy_profile import PrivacyProfile, SmallDeltas

if TYPE_CHECKING:
    from privproj.distributions.tabulated import TabulatedSensitivity


# Nats. Tails below e^-660 are not resolved in doubles and are bounded by that number, which is at most 0.7 % of a delta
# of e^-655. Queries compute smaller deltas in mpmath.
SMALLEST_LOG_DELTA = -655.0

# decimal digits on which two precisions of mpmath agree; log deltas are widened by one unit of the fifth digit
DIGITS = 6


def distribution(mechanism: M1) -> "TabulatedSensitivity":
    """Return the distribution of the squared sensitivity for a difference of rank one.

    The sensitivity is taken after the projection, and its square divided by the noise variance (C7).
    """
    from privproj.distributions.densities import ProjectedEnergy
    from privproj.distributions.tabulated import TabulatedSensitivity

    dim, rank = mechanism.shape
    # X = mu^2 |M u|^2 for a unit vector u: mu^2 U (U + Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1) (C7).
    return TabulatedSensitivity(ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank), mechanism.mu**2)


def worst_differences(mechanism: M1) -> tuple[PrivacyProfile, ...]:
    """Return one privacy profile that is a lower bound on delta (C28), as a tuple.

    The profile is that for neighboring sums that differ by rank one.
    """
    # delta(eps) = E[h_eps(X)] (C4)
    # Every assumption on the rank allows such a difference.
    return (rank_one_profile(distribution(mechanism), LOWER_END_REFINEMENT),)


def _with_small_deltas(mechanism: M1, profile: PrivacyProfile, bound: str) -> PrivacyProfile:
    """Return the profile, with deltas below ``e^SMALLEST_LOG_DELTA`` computed in mpmath.

    mpmath evaluates the quantity ``m1.<bound>.delta`` of :mod:`privproj.reference`.
    """

    def log_delta(eps: float) -> Enclosure:
        ends = profile.log_delta(eps)
        if ends.upper > SMALLEST_LOG_DELTA:
            return ends
        import mpmath as mp

        from privproj import reference

        dim, rank = mechanism.shape
        parameters = {"dim": dim, "rank": rank, "noise_multiplier": mechanism.noise_multiplier, "epsilon": eps}
        try:
            exact = float(mp.log(reference.value(f"m1.{bound}.delta", DIGITS, **parameters)))
        except ArithmeticError:
            return ends
        error = 10.0 ** (1 - DIGITS)
        return Enclosure(exact - error, min(ends.upper, exact + error))

    slow = PrivacyProfile(log_delta, digits=DIGITS)
    return replace(profile, small_deltas=SmallDeltas(SMALLEST_LOG_DELTA, slow))


def _any_rank(mechanism: M1) -> PrivacyProfile:
    # delta(eps) = min_p E[g_p(X)] (C5).
    return _with_small_deltas(mechanism, any_rank_profile(distribution(mechanism)), "known-projection")


def _rank_one(mechanism: M1) -> PrivacyProfile:
    # delta(eps) = E[h_eps(mu^2 U (U + Y)/r^2)] (C4, C7).
    return _with_small_deltas(mechanism, rank_one_profile(distribution(mechanism)), "known-projection-rank1")


KNOWN_PROJECTION = Bound(
    name="known-projection",
    mechanism=M1,
    summary="bound for neighboring sums that differ by a matrix of any rank",
    formula="delta(eps) = min_p E[g_p(mu^2 X)], X = U(U+Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1), g_p the convex majorant of "
    "the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C5",
    representation=_any_rank,
    worst_differences=worst_differences,
    version=9,
)


KNOWN_PROJECTION_RANK1 = Bound(
    name="known-projection-rank1",
    mechanism=M1,
    summary="exact if neighboring sums differ by a matrix of rank one and the adversary sees the projection",
    formula="delta(eps) = E[h_eps(mu^2 X)], X = U(U+Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1), h_eps(x) the Gaussian delta at "
    "sqrt(x)",
    source="privproj: the privacy loss given the projection is Gaussian",
    proof="C4",
    representation=_rank_one,
    # Differences of rank one of several records sum to a difference of any rank.
    of_group=KNOWN_PROJECTION.representation,
    worst_differences=worst_differences,
    exact="given-projection",
    version=9,
    **OF_RANK_ONE,
)
