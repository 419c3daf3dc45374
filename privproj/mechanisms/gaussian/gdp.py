"""Gaussian DP (Dong, Roth, Su 2022): the trade-off function of the Gaussian mechanism, exact."""

from dataclasses import replace

from privproj.curves.gaussian import gaussian_profile
from privproj.curves.profile import PrivacyProfile
from privproj.mechanisms import Gaussian
from privproj.mechanisms.bound import Bound


def representation(mechanism: Gaussian) -> PrivacyProfile:
    """The profile that belongs to the trade-off function; it composes in closed form and is not subsampled."""
    # f(a) = Phi(Phi^-1(1 - a) - mu), mu = 1/z (Dong, Roth, Su 2022, Theorem 2.7): its profile is the analytic one, and
    # T releases are mu sqrt(T)-GDP (Corollary 3.3).
    return replace(gaussian_profile(mechanism.joint_mu), can_be_subsampled=False)


BOUND = Bound(
    name="gdp",
    mechanism=Gaussian,
    summary="trade-off function, exact; composes in closed form",
    formula="f(a) = Phi(Phi^-1(1 - a) - mu), mu^2 adds over releases, mu = 1/z",
    source="Dong, Roth, Su 2022, Theorem 2.7 and Corollary 3.3",
    example="privproj epsilon gaussian --bound gdp --noise-multiplier 20 --steps 100 --delta 1e-5",
    representation=representation,
    exact=True,
    counts_clipped=True,
)
