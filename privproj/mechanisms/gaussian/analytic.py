"""The exact profile of the Gaussian mechanism, as a trade-off function, and the tail of its loss (C3)."""

from dataclasses import replace

from privproj.mechanisms import ClippedSum, Gaussian
from privproj.mechanisms.bound import Bound, in_balls
from privproj.numerics.interval import Enclosure, widen_outward
from privproj.profiles.gaussian import GAUSSIAN_COLUMNS, gaussian_profile, log_two_sided
from privproj.profiles.privacy_profile import PrivacyProfile


def representation(mechanism: ClippedSum) -> PrivacyProfile:
    """The exact profile of one release at ``mu = 1/z``."""
    # delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z (C3).
    return gaussian_profile(mechanism.mu_with_count)


ANALYTIC = Bound(
    name="analytic",
    mechanism=Gaussian,
    summary="exact privacy profile",
    formula="delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z",
    source="Balle, Wang 2018, Theorem 8",
    proof="C3",
    representation=representation,
    version=5,
    worst_changes=lambda mechanism: (representation(mechanism),),
    # T releases are one at mu = sqrt(T)/z (C3).
    ball_profile=in_balls("BallGaussianProfile", lambda mechanism, steps: (mechanism.z, steps)),
    law_row=lambda mechanism, mu: (GAUSSIAN_COLUMNS, (mechanism.mus_with_count(mu),)),
    certifies_runs=True,
    exact=True,
    supports_adaptive_clipping=True,
)


def _two_sided_of(mechanism: Gaussian) -> PrivacyProfile:
    """The probability that the absolute privacy loss exceeds eps, which is an upper bound of delta."""
    mu = mechanism.mu_with_count

    def log_delta(eps: float) -> Enclosure:
        if eps == 0.0:
            return Enclosure(0.0, 0.0)
        # T(eps; mu) = Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2) (C3); at eps = 0 it is 1.
        return widen_outward(log_two_sided(eps, mu), steepness=mu * mu)

    return PrivacyProfile(log_delta)


TWO_SIDED = Bound(
    name="two-sided",
    mechanism=Gaussian,
    summary="tail of the absolute privacy loss; loose",
    formula="T(eps) = Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2), mu = 1/z",
    source="arXiv 2601.21719, Equation 10",
    representation=_two_sided_of,
    version=4,
    supports_adaptive_clipping=True,
)


GDP = Bound(
    name="gdp",
    mechanism=Gaussian,
    summary="trade-off function, exact; composes in closed form",
    formula="f(a) = Phi(Phi^-1(1 - a) - mu), mu^2 adds over releases, mu = 1/z",
    source="Dong, Roth, Su 2022, Theorem 2.7 and Corollary 3.3",
    # f(a) = Phi(Phi^-1(1 - a) - mu), mu = 1/z (Dong, Roth, Su 2022, Theorem 2.7): its profile is the analytic one, and
    # T releases are mu sqrt(T)-GDP (Corollary 3.3).
    representation=lambda mechanism: replace(gaussian_profile(mechanism.mu_with_count), can_be_subsampled=False),
    version=3,
    exact=True,
    supports_adaptive_clipping=True,
)
