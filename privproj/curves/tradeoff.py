"""What a privacy profile says in words of hypothesis tests: trade-off function, advantage, attack rates."""

import math
from collections.abc import Sequence

from privproj.curves.profile import Curve

READ_EPSILONS = [0.0, *(math.exp(-7.0 + 0.05 * i) for i in range(230))]
"""Where the profile is read, in nats. Any epsilon gives a valid bound, more of them a tighter one. Speed only."""


def profile_points(curve: Curve, epsilons: Sequence[float]) -> list[float]:
    """Upper bounds of ``delta(eps)`` at these epsilons."""
    return [math.exp(max(curve.log_delta(eps).upper, -690.0)) for eps in epsilons]


def tradeoff(curve: Curve, rates: Sequence[float], epsilons: Sequence[float] = READ_EPSILONS) -> list[float]:
    """``f(a)``, a lower bound of the false negative rate of every test at false positive rate ``a``.

    ``f(a) = max over eps >= 0 of (0, 1 - delta(eps) - e^eps a, e^-eps (1 - delta(eps) - a))`` (Dong, Roth, Su 2022).
    """
    points = [(eps, delta) for eps, delta in zip(epsilons, profile_points(curve, epsilons), strict=True) if eps < 700.0]
    return [max(0.0, *(max(1.0 - d - math.exp(e) * a, math.exp(-e) * (1.0 - d - a)) for e, d in points)) for a in rates]


def true_positive_rates(curve: Curve, rates: Sequence[float]) -> list[float]:
    """The largest true positive rate of any membership attack at these false positive rates, rounded up."""
    return [min(1.0, 1.0 - miss + 1e-12) for miss in tradeoff(curve, rates)]


def advantage(curve: Curve) -> float:
    """``delta(0)``: the largest true positive minus false positive rate of any membership attack, rounded up."""
    return math.exp(min(curve.log_delta(0.0).upper, 0.0))
