"""Renyi and zero-concentrated DP of the Gaussian mechanism."""

from privproj.mechanisms import ClippedSum, Gaussian
from privproj.mechanisms.bound import Bound
from privproj.profiles.rdp import ConcentratedCurve, RenyiCurve, poisson_curve


def rdp_of(mechanism: ClippedSum) -> RenyiCurve:
    """The Renyi curve of one release, with the moments from which Poisson sampling builds its own."""
    mu = mechanism.mu_with_count
    # ln E_Q[R^j] = j (j - 1) mu^2 / 2, R the likelihood ratio (C15).
    moments = poisson_curve(lambda j: 0.5 * j * (j - 1) * mu * mu)
    # D(alpha) = alpha mu^2 / 2 (Mironov 2017, Corollary 3).
    return RenyiCurve(lambda alpha: 0.5 * alpha * mu * mu, poisson=moments)


RDP = Bound(
    name="rdp",
    mechanism=Gaussian,
    summary="Renyi curve, converted at the best order",
    formula="D(alpha) = alpha mu^2/2, mu = 1/z",
    source="Mironov 2017, Corollary 3; conversion Canonne, Kamath, Steinke 2020",
    representation=rdp_of,
    renyi=True,
    supports_adaptive_clipping=True,
    version=2,
)


def _zcdp_of(mechanism: Gaussian) -> ConcentratedCurve:
    """The zero-concentrated curve of one release."""
    mu = mechanism.mu_with_count
    # rho = mu^2 / 2 (Bun, Steinke 2016, Proposition 1.6).
    return ConcentratedCurve(0.5 * mu * mu)


ZCDP = Bound(
    name="zcdp",
    mechanism=Gaussian,
    summary="zero-concentrated DP with its closed-form conversion",
    formula="rho = mu^2/2, eps = rho + 2 sqrt(rho ln(1/delta)), mu = 1/z",
    source="Bun, Steinke 2016, Propositions 1.3 and 1.6",
    representation=_zcdp_of,
    supports_adaptive_clipping=True,
    version=3,
)
