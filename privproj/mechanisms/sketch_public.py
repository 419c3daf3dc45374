"""Define the public Gaussian sketch with noise and its bounds."""

import math
from dataclasses import dataclass
from typing import Any

from privproj.assumptions import Requirement
from privproj.composition.good_event import GoodEvent
from privproj.distributions.mixture_profile import LOWER_END_REFINEMENT, any_rank_profile, rank_one_profile
from privproj.distributions.squared_sensitivity import BetaGammaSensitivity
from privproj.mechanisms.base import Lift, NoisyMechanism
from privproj.mechanisms.bound import OF_RANK_ONE, Bound
from privproj.numerics.interval import next_up
from privproj.parameters import flag, parameter, whole_number
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import PrivacyProfile


@dataclass(frozen=True, kw_only=True)
class PublicSketch(NoisyMechanism):
    """A public Gaussian sketch with noise.

    The release is ``Q A^T + N`` together with ``A``, which is resampled for each release. ``A`` has ``rank`` rows and
    independent entries ``N(0, 1/rank)``.

    Args:
        noise_multiplier: ``z``, the ratio of the standard deviation of ``N`` to the sensitivity ``max |Q - Q'|_F``,
            from 1e-12 to 1e12; None only for the sigma query.
        rank: The number of rows of ``A``, from 1 to 1e6; None only for the rank query.
        dim: The number of columns of ``A``, at least 1; it does not affect privacy.
        fixed_projection: Whether one ``A`` is used for all releases.

    Raises:
        InvalidParameterError: A value is outside its range.

    >>> from privproj import PublicSketch, epsilon
    >>> round(epsilon(PublicSketch(rank=16, noise_multiplier=1.0), delta=1e-5).value, 4)
    5.5039
    """

    name = "sketch-public"
    summary = "Multiply a sum of clipped gradients by a public Gaussian matrix, and add noise."
    example = "rank=16 noise_multiplier=5"
    finds_rank = True
    requirements = (Requirement.FRESH_SKETCH, Requirement.CLIPPING_BEFORE_SKETCH, Requirement.SECRET_SKETCH_SEED)
    with_rank = "falls"
    rank: int | None = parameter(whole_number(high=10**6), "Rows of the sketching matrix.", "R")
    dim: int | None = parameter(
        whole_number(high=10**12), "Columns of the sketching matrix (does not change the result).", "D"
    )
    fixed_projection: bool = flag("Use one sketching matrix for all steps.")

    def lift(self) -> Lift | None:
        """Return the noise and projection error of the model update (C38).

        Returns:
            The errors, or None if ``dim`` is None.
        """
        if self.dim is None:
            return None
        # The update is Y A for the sketch Y = Q A^T + N, and its mean is Q.
        return Lift(1.0, 1.0 + (self.dim + 1) / self.needed_rank)


def squared_sensitivity(mechanism: PublicSketch, mu: Any) -> BetaGammaSensitivity:
    """Return the distribution of the squared sensitivity for a difference of rank one.

    The sensitivity is taken after sketching, and its square divided by the noise variance. ``mu`` is the sensitivity
    before sketching, divided by the standard deviation of the noise; it may be an array.
    """
    rank = mechanism.needed_rank
    # X = mu^2 |A u|^2 for a unit vector u: mu^2 chi2_r / r (C7).
    return BetaGammaSensitivity(0.5 * rank, math.inf, 2.0 * mu**2 / rank)


def worst_differences(mechanism: PublicSketch) -> tuple[PrivacyProfile, ...]:
    """Return privacy profiles that are lower bounds on delta (C28).

    Each is the profile for one difference between neighboring matrices, or for a limit of such differences.
    """
    # The first difference has rank one. The second one is the limit of differences with more and more equal singular
    # values, which dim rules out, because it limits the rank.
    # delta(eps) = E[h_eps(X)] (C4), and h_eps(E X) = h_eps(mu^2) (C28).
    even = () if mechanism.dim else (gaussian_profile(mechanism.mu),)
    return (rank_one_profile(squared_sensitivity(mechanism, mechanism.mu), LOWER_END_REFINEMENT), *even)


RANK_FREE = Bound(
    name="rank-free",
    mechanism=PublicSketch,
    summary="bound for neighboring sums that differ by a matrix of any rank",
    formula="delta(eps) = min_p E[g_p(mu^2 chi2_r / r)], g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C5",
    # delta(eps) = min_p E[g_p(X)] (C5).
    representation=lambda mechanism: any_rank_profile(squared_sensitivity(mechanism, mechanism.mu)),
    worst_differences=worst_differences,
    version=6,
)


EXACT_RANK1 = Bound(
    name="exact-rank1",
    mechanism=PublicSketch,
    summary="exact if neighboring sums differ by a matrix of rank one",
    formula="delta(eps) = E[h_eps(mu^2 chi2_r / r)], h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the privacy loss given the sketch is Gaussian",
    proof="C4",
    # delta(eps) = E[h_eps(mu^2 chi2_r / r)] (C4, C7).
    representation=lambda mechanism: rank_one_profile(squared_sensitivity(mechanism, mechanism.mu)),
    # Differences of rank one of several records sum to a difference of any rank.
    of_group=RANK_FREE.representation,
    worst_differences=lambda mechanism: worst_differences(mechanism)[:1],
    exact=True,
    version=7,
    **OF_RANK_ONE,
)


def _operator_norm_of(mechanism: PublicSketch) -> GoodEvent:
    """Return the bound by a Gaussian mechanism with a larger sensitivity (C16).

    The sensitivity is multiplied by a bound on the factor by which the sketch increases the norm of a difference. The
    probability that the factor exceeds its bound is added to delta.
    """
    root = math.sqrt(mechanism.needed_rank)

    def radius(log_bad: float) -> float:
        # |D A^T|_F, for the difference D, is a Lipschitz function of the normal entries of sqrt(r) A, with the constant
        # |D|_op/sqrt(r) and a mean of at most |D|_F.
        # |D A^T|_F <= (1 + t/sqrt(r)) |D|_F except with probability d0, t = sqrt(2 ln(1/d0)) (C16).
        return next_up(1.0 + math.sqrt(-2.0 * log_bad) / root)

    return GoodEvent(mechanism.mu, radius, default_split=0.5)


OPERATOR_NORM = Bound(
    name="operator-norm",
    mechanism=PublicSketch,
    summary="Gaussian mechanism with a high-probability bound on the sensitivity after sketching",
    formula="delta = T d0 + delta of the Gaussian run at mu (1 + sqrt(2 ln(1/d0)/r))",
    source="Gaussian concentration of a Lipschitz function, as in arXiv 2601.21719, Equation 5",
    proof="C16",
    representation=_operator_norm_of,
    supports=("split",),
    version=5,
)
