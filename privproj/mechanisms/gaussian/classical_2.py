"""The textbook rule with the larger constant of the early version (its Lemma 1), held to the same range."""

from privproj.curves.epsilon_delta import EpsilonDeltaRule
from privproj.mechanisms import Gaussian
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.gaussian.classical import classical_rule


def representation(mechanism: Gaussian) -> EpsilonDeltaRule:
    """The rule of one release with constant 2; it is printed without a limit on eps, and held to the textbook range."""
    # sigma = s sqrt(2 ln(2/delta)) / eps (2601.21719, early version, Lemma 1): more noise than the textbook asks for.
    return classical_rule(mechanism.joint_mu, 2.0)


BOUND = Bound(
    name="classical-2",
    mechanism=Gaussian,
    summary="textbook rule with constant 2; printed without a limit on epsilon, accepted below 1 only",
    formula="eps = mu sqrt(2 ln(2/delta)), 0 < eps < 1, mu = 1/z",
    source="arXiv 2601.21719, early version, Lemma 1",
    example="privproj epsilon gaussian --bound classical-2 --noise-multiplier 10 --delta 1e-5",
    representation=representation,
    counts_clipped=True,
)
