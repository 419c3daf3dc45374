"""Define the Gaussian mechanism and its bounds."""

import math
from dataclasses import dataclass, replace

from privproj.assumptions import Requirement
from privproj.mechanisms.base import ClippedSum
from privproj.mechanisms.bound import Bound
from privproj.numerics.interval import Enclosure, widen_outward
from privproj.profiles.approximate_dp import EpsilonDeltaRule
from privproj.profiles.gaussian import gaussian_profile, log_two_sided
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.profiles.rdp import ConcentratedCurve, RenyiCurve, poisson_curve


@dataclass(frozen=True, kw_only=True)
class Gaussian(ClippedSum):
    """The Gaussian mechanism, which adds Gaussian noise to a query.

    The release is ``V + E``, where the entries of ``E`` are independent ``N(0, sigma^2)``.

    Args:
        noise_multiplier: ``z``, the ratio of ``sigma`` to the sensitivity of ``V`` in the Frobenius norm, from 1e-12 to
            1e12; None only for the sigma query.
        adaptive_clipping_sigma: ``S``, the standard deviation of the noise on the count that adapts the clipping norm,
            from 1e-12 to 1e12. The count is ``sum(b_i - 1/2)``, where ``b_i`` is 1 if record ``i`` of the batch was not
            clipped, else 0. The plain count ``sum(b_i)`` has twice the sensitivity and needs twice the noise. None
            means a fixed clipping norm.

    Raises:
        InvalidParameterError: A value is outside its range.

    >>> from privproj import Gaussian, epsilon
    >>> round(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5).value, 4)
    4.3772
    """

    name = "gaussian"
    summary = "Add Gaussian noise to a sum of clipped gradients (DP-SGD)."
    example = "noise_multiplier=1"
    requirements = (Requirement.PER_RECORD_CLIPPING,)


def representation(mechanism: ClippedSum) -> PrivacyProfile:
    """Return the exact privacy profile of one release."""
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
    worst_differences=lambda mechanism: (representation(mechanism),),
    exact=True,
    supports=("adaptive-clipping",),
)


def _two_sided_of(mechanism: Gaussian) -> PrivacyProfile:
    """Return a loose privacy profile: the probability that ``|privacy loss| > eps``."""
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
    summary="delta as the probability that the absolute privacy loss exceeds epsilon; a looser bound than analytic",
    formula="T(eps) = Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2), mu = 1/z",
    source="arXiv 2601.21719, Equation 10",
    representation=_two_sided_of,
    version=4,
    supports=("adaptive-clipping",),
)


GDP = Bound(
    name="gdp",
    mechanism=Gaussian,
    summary="exact trade-off function (GDP), composed in closed form",
    formula="f(a) = Phi(Phi^-1(1 - a) - mu), mu^2 adds over releases, mu = 1/z",
    source="Dong, Roth, Su 2022, Theorem 2.7 and Corollary 3.3",
    # f(a) = Phi(Phi^-1(1 - a) - mu), mu = 1/z (Dong, Roth, Su 2022, Theorem 2.7): its profile is the analytic one, and
    # T releases are mu sqrt(T)-GDP (Corollary 3.3).
    representation=lambda mechanism: replace(gaussian_profile(mechanism.mu_with_count), can_be_subsampled=False),
    version=3,
    exact=True,
    supports=("adaptive-clipping",),
)


def classical_rule(mu: float, constant: float = 1.25) -> EpsilonDeltaRule:
    """Return the rule ``eps = mu sqrt(2 ln(constant/delta))`` of one Gaussian release.

    The rule is proved for ``0 < eps < 1`` only. ``mu`` is the ratio of sensitivity to noise.
    """
    return EpsilonDeltaRule(
        # eps = mu sqrt(2 ln(constant/delta)) (Dwork, Roth 2014, Theorem A.1, for the constant 1.25).
        epsilon_at=lambda log_delta: mu * math.sqrt(2.0 * (math.log(constant) - log_delta)),
        # The same solved for delta: ln delta = ln constant - eps^2/(2 mu^2).
        log_delta_at=lambda eps: math.log(constant) - 0.5 * (eps / mu) ** 2,
        limit=1.0,
        remedy="Use the bound analytic, which is exact for every epsilon",
    )


CLASSICAL = Bound(
    name="classical",
    mechanism=Gaussian,
    summary="classical rule with ln(1.25/delta), for 0 < epsilon < 1 only",
    formula="eps = mu sqrt(2 ln(1.25/delta)), 0 < eps < 1, mu = 1/z",
    source="Dwork, Roth 2014, Theorem A.1",
    example="--noise-multiplier 10",
    # sigma = s sqrt(2 ln(1.25/delta)) / eps (Dwork, Roth 2014, Theorem A.1).
    representation=lambda mechanism: classical_rule(mechanism.mu_with_count),
    supports=("adaptive-clipping",),
    version=2,
)


CLASSICAL_2 = Bound(
    name="classical-2",
    mechanism=Gaussian,
    summary="classical rule with ln(2/delta), for 0 < epsilon < 1 only",
    formula="eps = mu sqrt(2 ln(2/delta)), 0 < eps < 1, mu = 1/z",
    source="arXiv 2601.21719, early version, Lemma 1",
    example="--noise-multiplier 10",
    # sigma = s sqrt(2 ln(2/delta)) / eps (2601.21719, early version, Lemma 1): more noise than the textbook rule.
    representation=lambda mechanism: classical_rule(mechanism.mu_with_count, 2.0),
    supports=("adaptive-clipping",),
    version=2,
)


def rdp_of(mechanism: ClippedSum) -> RenyiCurve:
    """Return the Renyi curve of one release, also for Poisson sampling (C15)."""
    mu = mechanism.mu_with_count
    # ln E_Q[R^j] = j (j - 1) mu^2 / 2, R the likelihood ratio (C15).
    moments = poisson_curve(lambda j: 0.5 * j * (j - 1) * mu * mu)
    # D(alpha) = alpha mu^2 / 2 (Mironov 2017, Corollary 3).
    return RenyiCurve(lambda alpha: 0.5 * alpha * mu * mu, poisson=moments)


RDP = Bound(
    name="rdp",
    mechanism=Gaussian,
    summary="Renyi DP, converted to epsilon at the best order",
    formula="D(alpha) = alpha mu^2/2, mu = 1/z",
    source="Mironov 2017, Corollary 3; conversion Canonne, Kamath, Steinke 2020",
    representation=rdp_of,
    supports=("adaptive-clipping",),
    version=2,
)


def _zcdp_of(mechanism: Gaussian) -> ConcentratedCurve:
    """Return the zCDP curve of one release."""
    mu = mechanism.mu_with_count
    # rho = mu^2 / 2 (Bun, Steinke 2016, Proposition 1.6).
    return ConcentratedCurve(0.5 * mu * mu)


ZCDP = Bound(
    name="zcdp",
    mechanism=Gaussian,
    summary="the zCDP parameter, with its closed-form conversion to epsilon",
    formula="rho = mu^2/2, eps = rho + 2 sqrt(rho ln(1/delta)), mu = 1/z",
    source="Bun, Steinke 2016, Propositions 1.3 and 1.6",
    representation=_zcdp_of,
    supports=("adaptive-clipping",),
    version=3,
)
