"""What a privacy profile says in words of hypothesis tests: trade-off function, advantage, attack rates.

A test tells two neighbouring data sets apart by the output of a run. The trade-off function ``f(a)`` is the least false
negative rate at the false positive rate ``a``. A profile ``delta(eps)`` that holds in both orders bounds it from below
(Dong, Roth, Su 2022).
"""

import math
from collections.abc import Sequence

from privproj.curves.profile import Curve

READ_EPSILONS = [0.0, *(math.exp(-7.0 + 0.05 * i) for i in range(230))]
"""Where the profile is read, in nats. Any epsilon gives a valid bound, more of them a tighter one. Speed only."""


def profile_points(curve: Curve, epsilons: Sequence[float]) -> list[float]:
    """Upper bounds of ``delta(eps)`` at these epsilons (nats); they are as sound as the curve."""
    return [math.exp(max(curve.log_delta(eps).upper, -690.0)) for eps in epsilons]


def tradeoff(curve: Curve, rates: Sequence[float], epsilons: Sequence[float] = READ_EPSILONS) -> list[float]:
    """A lower bound of the false negative rate ``f(a)`` of every test, at each of these false positive rates ``a``.

    ``epsilons`` (nats) are where the curve is read. It is as sound as the curve, whatever they are.
    """
    # f(a) >= max(0, max over eps of max(1 - delta(eps) - e^eps a, e^-eps (1 - delta(eps) - a)))
    points = [(eps, delta) for eps, delta in zip(epsilons, profile_points(curve, epsilons), strict=True) if eps < 700.0]
    return [max(0.0, *(max(1.0 - d - math.exp(e) * a, math.exp(-e) * (1.0 - d - a)) for e, d in points)) for a in rates]


def true_positive_rates(curve: Curve, rates: Sequence[float]) -> list[float]:
    """An upper bound of the true positive rate of every membership attack, at each of these false positive rates."""
    # min(1, 1 - f(a) + 1e-12), where the last term is for rounding
    return [min(1.0, 1.0 - miss + 1e-12) for miss in tradeoff(curve, rates)]


def advantage(curve: Curve) -> float:
    """An upper bound of true positive less false positive rate of every membership attack: ``delta(0)``."""
    return math.exp(min(curve.log_delta(0.0).upper, 0.0))
