"""The claim that Gaussian noise along one random direction is private (R1SMG, arXiv 2306.02256): refuted."""

import math

from privproj.curves.epsilon_delta import EpsilonDeltaRule
from privproj.mechanisms import R1SMG
from privproj.mechanisms.bound import Bound
from privproj.result import Status


def representation(mechanism: R1SMG) -> EpsilonDeltaRule:
    """The claimed rule."""
    dim, double = mechanism.dim or 3, 2.0 * mechanism.mu**2
    power = 0.5 * (dim - 2)
    # ln[Gamma((M-1)/2) / (sqrt(pi) Gamma(M/2))]
    front = math.lgamma(0.5 * (dim - 1)) - math.lgamma(0.5 * dim) - 0.5 * math.log(math.pi)
    return EpsilonDeltaRule(
        # eps = 2 mu^2/psi, psi = (delta Gamma((M-1)/2)/(sqrt(pi) Gamma(M/2)))^(2/(M-2)) (2306.02256; refuted, C22).
        epsilon_at=lambda log_delta: double * math.exp(min(-(log_delta + front) / power, 700.0)),
        # The same solved for delta: ln delta = (M-2)/2 ln(2 mu^2/eps) - front.
        log_delta_at=lambda eps: power * math.log(double / eps) - front if eps > 0.0 else 0.0,
    )


BOUND = Bound(
    name="published",
    mechanism=R1SMG,
    summary="Gaussian noise along one random direction, claimed private with less noise in higher dimension",
    formula="eps = 2 mu^2/psi, psi = (delta Gamma((M-1)/2) / (sqrt(pi) Gamma(M/2)))^(2/(M-2)), mu = 1/z",
    source="arXiv 2306.02256, the constant C_R of its abstract, read as the variance of the noise over the squared "
    "sensitivity; the text of the theorem was not at hand",
    proof="C22",
    example="privproj epsilon r1smg --dim 100 --noise-multiplier 1.64 --delta 1e-5 --allow-refuted",
    representation=representation,
    groups=False,
    status=Status.REFUTED,
    reason="the release lies near the true vector with a constant probability, and hardly ever that near another: "
    "the privacy loss is about (M-1)/2 ln(1 + 1/z^2). At epsilon 1 with the noise claimed for delta 1e-5, delta is "
    "at least 0.05 at M = 10 and 0.41 at M = 100. Use gaussian, which adds noise in every direction",
)
