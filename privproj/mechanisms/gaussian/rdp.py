"""The Renyi curve of the Gaussian mechanism (Mironov 2017, Corollary 3)."""

from privproj.curves.renyi import RenyiCurve, poisson_curve
from privproj.mechanisms import ClippedSum, Gaussian
from privproj.mechanisms.bound import Bound


def representation(mechanism: ClippedSum) -> RenyiCurve:
    """The Renyi curve of one release, with the moments from which Poisson sampling builds its own."""
    mu = mechanism.joint_mu
    # ln E_Q[R^j] = j (j - 1) mu^2 / 2, R the likelihood ratio (C15).
    moments = poisson_curve(lambda j: 0.5 * j * (j - 1) * mu * mu)
    # D(alpha) = alpha mu^2 / 2 (Mironov 2017, Corollary 3).
    return RenyiCurve(lambda alpha: 0.5 * alpha * mu * mu, poisson=moments)


BOUND = Bound(
    name="rdp",
    mechanism=Gaussian,
    summary="Renyi curve, converted at the best order",
    formula="D(alpha) = alpha mu^2/2, mu = 1/z",
    source="Mironov 2017, Corollary 3; conversion Canonne, Kamath, Steinke 2020",
    example="privproj epsilon gaussian --bound rdp --noise-multiplier 1 --delta 1e-5",
    representation=representation,
    renyi=True,
    counts_clipped=True,
)
