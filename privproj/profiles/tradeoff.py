"""Bounds of the trade-off function, advantage and attack rates, from a privacy curve.

An adversary tests which of two neighboring datasets was used, given the output of a run. The trade-off function is the
least false negative rate at each false positive rate. A privacy profile that holds in the add and remove directions
bounds it from below (Dong, Roth, Su 2022). Every epsilon gives a valid bound, and a search finds the best one. The
bounds depend on the curve only, so a calibration to a risk agrees with the reported risk (C30).
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

from privproj.errors import PrivprojError
from privproj.numerics.interval import next_up
from privproj.numerics.root_finding import minimize
from privproj.profiles.conversion import delta_value, read_log_delta
from privproj.profiles.privacy_profile import Curve, at_first_level, log_delta_unless
from privproj.targets import RiskTarget

LARGEST_READ_EPSILON = 700.0  # nats; larger epsilons are not evaluated, because e^eps would overflow

CLEARLY_MORE = 1.0 + 1e-6  # delta(0) is used unless it exceeds the bound at another epsilon by this factor

GUESSED_BELOW = 1e-6  # for smaller advantages and rate differences, mu is approximated by the first term of a series

ROOT_2PI = math.sqrt(2.0 * math.pi)  # sqrt(2 pi)

# soundness: added to a true positive rate for the rounding of differences of numbers up to 1
RATE_ROUNDING = 2e-15

UNIT = 2.0**-53  # soundness: subtracted from a false negative rate for the rounding of 1 - x


def profile_points(curve: Curve, epsilons: Sequence[float], enough: float = 0.0) -> list[float]:
    """Return upper bounds of delta at epsilons in nats.

    A bound of at most ``enough`` may be loose.
    """
    least = math.log(enough) if enough else -math.inf
    return [delta_value(log_delta_unless(curve, eps, least)) for eps in epsilons]


def tradeoff(curve: Curve, rates: Sequence[float]) -> list[float]:
    """Return lower bounds of the false negative rate of every membership attack.

    ``rates`` are false positive rates, one for each bound.
    """
    return [max(0.0, 1.0 - hit - UNIT) for hit in true_positive_rates(curve, rates)]


def true_positive_rates(curve: Curve, rates: Sequence[float]) -> list[float]:
    """Return upper bounds of the true positive rate of every membership attack.

    ``rates`` are false positive rates, one for each bound.
    """

    def at(eps: float, delta: float, rate: float) -> float:
        # min(1, delta + e^eps a, 1 - e^-eps (1 - delta - a)) at the false positive rate a (C30), rounded up
        growth = math.exp(eps)
        mirrored = 1.0 - (1.0 - delta - rate) / growth + RATE_ROUNDING
        return min(1.0, next_up(delta + growth * rate), next_up(mirrored))

    # Epsilons at which the curve raises an error are not used.
    read = _reader(curve)
    return [_least_risk(read, partial(at, rate=rate)) for rate in rates]


def advantage(curve: Curve) -> float:
    """Return an upper bound of the true minus the false positive rate of every attack."""

    def at(eps: float, delta: float) -> float:
        # (e^eps - 1 + 2 delta) / (e^eps + 1) (C30), rounded up
        return min(1.0, next_up(math.tanh(0.5 * eps) + 2.0 * delta / (math.exp(eps) + 1.0)))

    # The printed delta at epsilon 0 is used unless a larger epsilon gives a clearly smaller bound.
    least = _least_risk(_reader(curve), at)
    try:
        at_zero = delta_value(read_log_delta(curve, 0.0).upper)
    except PrivprojError:
        return least
    return at_zero if at_zero <= least * CLEARLY_MORE else least


def gaussian_mu_of_risk(risk: float, fpr: float | None) -> float:
    """Return approximately the sensitivity over noise of a Gaussian with this attack risk.

    Args:
        risk: A true positive rate at the false positive rate ``fpr``, or an advantage if ``fpr`` is None.
        fpr: A false positive rate, or None.
    """
    from statistics import NormalDist

    if risk >= 1.0:
        return math.inf
    # 2 Phi^-1((1 + A)/2), or Phi^-1(B) - Phi^-1(a)
    if fpr is None:
        return -2.0 * NormalDist().inv_cdf(0.5 * (1.0 - risk)) if risk > GUESSED_BELOW else risk * ROOT_2PI
    rare = NormalDist().inv_cdf(fpr)
    if abs(risk - fpr) > GUESSED_BELOW * min(fpr, 1.0 - fpr):
        return NormalDist().inv_cdf(risk) - rare
    return (risk - fpr) * math.exp(0.5 * rare * rare) * ROOT_2PI


def risk_of(curve: Curve, target: RiskTarget) -> float:
    """Return the reported upper bound of the attack risk of a run (C30).

    The risk is the true positive rate at the false positive rate of ``target``, or the advantage if it has none.
    """
    return advantage(curve) if target.fpr is None else true_positive_rates(curve, [target.fpr])[0]


def _reader(curve: Curve) -> Callable[[float], float]:
    """Return a cached map from epsilon to delta, which is 1 where the curve raises an error."""
    # No risk depends on deltas below 1e-30.
    curve = at_first_level(curve)

    @cache
    def read(eps: float) -> float:
        try:
            return delta_value(curve.log_delta(eps).upper)
        except PrivprojError:
            return 1.0

    return read


def _least_risk(read: Callable[[float], float], risk_at: Callable[[float, float], float]) -> float:
    """Return approximately the least attack risk over epsilons of a privacy profile.

    Args:
        read: Map from epsilon to delta.
        risk_at: Map from epsilon and delta to an upper bound of the risk.
    """

    def at(eps: float) -> float:
        return risk_at(eps, read(eps))

    risks = {0.0: at(0.0)}
    # factor between the epsilons of the scan
    step = math.exp(0.5)
    for factor in (step, 1.0 / step):
        eps, rises, least = 1.0, 0, math.inf
        # The risk of a convex profile decreases and then increases in eps, so the scan ends once it has increased twice
        # in a row. Below 1e-4 nats only epsilon 0 is evaluated.
        while rises < 2 and 1e-4 < eps < LARGEST_READ_EPSILON:
            risks[eps] = at(eps)
            # A risk of 1 does not indicate where the minimum is.
            rises = rises + 1 if least < risks[eps] < 1.0 else 0
            least, eps = min(least, risks[eps]), eps * factor
    scanned = sorted(risks)
    best = min(range(len(scanned)), key=lambda i: risks[scanned[i]])
    low, high = scanned[max(best - 1, 0)], scanned[min(best + 1, len(scanned) - 1)]
    # The risk is flat near its minimum, so a relative width of 1e-6 suffices.
    return min(risks[scanned[best]], minimize(at, low, high, rtol=1e-6, points=3)[1])
