"""The textbook Gaussian mechanism, for epsilon below one only, with the two constants that are in print."""

import math

from privproj.mechanisms import Gaussian
from privproj.mechanisms.bound import Bound
from privproj.profiles.approximate_dp import EpsilonDeltaRule


def _classical_rule(mu: float, constant: float) -> EpsilonDeltaRule:
    """The textbook rule with this constant, which is proved for ``0 < eps < 1`` only."""
    return EpsilonDeltaRule(
        # eps = mu sqrt(2 ln(constant/delta)) (Dwork, Roth 2014, Theorem A.1, for the constant 1.25).
        epsilon_at=lambda log_delta: mu * math.sqrt(2.0 * (math.log(constant) - log_delta)),
        # The same solved for delta: ln delta = ln constant - eps^2/(2 mu^2).
        log_delta_at=lambda eps: math.log(constant) - 0.5 * (eps / mu) ** 2,
        limit=1.0,
        remedy="use --bound analytic, which is exact at every epsilon",
    )


CLASSICAL = Bound(
    name="classical",
    mechanism=Gaussian,
    summary="textbook rule, proved for 0 < epsilon < 1 only",
    formula="eps = mu sqrt(2 ln(1.25/delta)), 0 < eps < 1, mu = 1/z",
    source="Dwork, Roth 2014, Theorem A.1",
    options="--noise-multiplier 10",
    # sigma = s sqrt(2 ln(1.25/delta)) / eps (Dwork, Roth 2014, Theorem A.1).
    representation=lambda mechanism: _classical_rule(mechanism.mu_with_count, 1.25),
    supports_adaptive_clipping=True,
    version=2,
)


CLASSICAL_2 = Bound(
    name="classical-2",
    mechanism=Gaussian,
    summary="textbook rule with constant 2; printed without a limit on epsilon, accepted below 1 only",
    formula="eps = mu sqrt(2 ln(2/delta)), 0 < eps < 1, mu = 1/z",
    source="arXiv 2601.21719, early version, Lemma 1",
    options="--noise-multiplier 10",
    # sigma = s sqrt(2 ln(2/delta)) / eps (2601.21719, early version, Lemma 1): more noise than the textbook asks for.
    representation=lambda mechanism: _classical_rule(mechanism.mu_with_count, 2.0),
    supports_adaptive_clipping=True,
    version=2,
)
