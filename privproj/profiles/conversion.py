"""Exact inverses: ``delta(epsilon(d)) <= d`` and ``epsilon(delta(e)) <= e`` (C24).

Both inequalities hold without a tolerance. Reported epsilons are rounded up to ``n`` significant digits, where ``n`` is
13, or less for some curves. Let ``D(e)`` be the upper bound of ``ln delta`` at the epsilon ``e``, rounded up to a
multiple of 2^-36; it depends on ``e`` only. Let ``V(h)`` be the delta that is printed for a log delta ``h``
(:func:`delta_value`, or :func:`log10_value`). The results are

    delta(e)   = V(D(c)), where c is e rounded down to n digits,
    epsilon(d) = the least number c with n digits and V(D(c)) <= d, near the inverse that the curve computes.

Both results evaluate ``V(D(c))`` at numbers ``c`` with ``n`` digits, so the inequalities hold exactly. Some bounds are
maps from delta to epsilon (:func:`leads_with_epsilon`). Their epsilon is evaluated at deltas for which
``x = 1/ln(1/delta)`` has ``n`` digits. Their delta is given by the least such ``x`` with an epsilon of at most ``c``.
"""

import math
from collections.abc import Callable

from privproj.numerics.interval import (
    LEAST_LOG_ROUNDED,
    LEAST_ROUNDED,
    LOG_DELTA_STEP,
    RESULT_DIGITS,
    Enclosure,
    LazyEnclosure,
    digits_above,
    digits_below,
    next_up,
    rounded_log_delta,
)
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, log_delta_unless
from privproj.targets import FullTarget, Target

LEAST_LOG_VALUE = math.log(1e-300)  # nats; log deltas below this are printed as logarithms only

LARGEST_TRIED = 1e18  # largest number that is tried if no number near the inverse of the curve passes

# nats; no search for epsilon is needed if ln delta is this far below the target (C24, "Calibration")
# soundness: an evaluated profile increases by less between neighboring numbers (measured, not proved)
SPARE_LOG = 2.0**-34

# largest x = 1/ln(1/delta) of a search; if only a delta closer to 1 suffices, the result is delta = 1
LARGEST_INVERSE_LOG = 1e9


def delta_value(log_delta: float) -> float:
    """Return the printed delta for a log delta: rounded up, and between 1e-300 and 1."""
    # ln 1e-300 is not exact in double precision.
    is_least = log_delta < LEAST_LOG_VALUE - 1e-12
    return 1e-300 if is_least else min(1.0, max(1e-300, next_up(math.exp(log_delta))))


def log10_value(log_delta: float) -> float:
    """Return ``log10(delta)`` as it is printed: rounded up, and at most 0."""
    return min(0.0, log_delta / math.log(10.0) + 8e-16 * abs(log_delta))


def is_within(target: Target, log_delta: float) -> bool:
    """Return whether a log delta, rounded as privproj prints it, meets the target."""
    # rounded up to a multiple of 2^-36
    return _is_printed_within(target, rounded_log_delta(log_delta))


def _is_printed_within(target: Target, log_delta: float) -> bool:
    """Return whether the delta printed for ``log_delta``, not rounded first, meets the target."""
    if target.by_log:
        return log10_value(log_delta) <= target.log10_delta
    # A delta that is not printed is compared by its logarithm.
    if target.delta is None or target.delta < 1e-300:
        return log_delta <= target.log_delta
    return delta_value(log_delta) <= target.delta


def floor_log_delta(target: Target) -> float:
    """Return the largest log delta whose printed delta meets a target delta."""
    point = rounded_log_delta(target.log_delta)
    # Each point is rounded already. The next one is the next smaller multiple, or the next double if logs are not
    # rounded.
    while not _is_printed_within(target, point):
        point = point - LOG_DELTA_STEP if point > LEAST_LOG_ROUNDED else math.nextafter(point, -math.inf)
    return point


def resolved_at(curve: Curve, log_delta: float) -> Curve:
    """Return the slower form of ``curve`` if doubles do not resolve this delta, else ``curve``."""
    small = curve.small_deltas if isinstance(curve, PrivacyProfile) else None
    return small.profile if small is not None and log_delta < small.below else curve


def read_epsilon(curve: Curve, target: Target) -> Enclosure:
    """Return the reported epsilon of a privacy curve at a target delta, in nats (C24).

    The upper end is the reported epsilon. The lower end is a lower bound of the exact epsilon of the curve.
    """
    if leads_with_epsilon(curve):
        # Find the largest x of this many digits whose delta is printed as at most the target's. Beyond the largest x
        # of a search the result is delta = 1.
        digits, near = digits_of(curve), min(_inverse_log(target.log_delta), LARGEST_INVERSE_LOG)
        above = _least_passing(lambda x: not _is_printed_within(target, _log_delta_of(x)), near, digits)
        x = digits_below(min(above * (1.0 - 10.0 ** -(digits + 2)), LARGEST_INVERSE_LOG), digits)
        ends = curve.epsilon(_log_delta_of(x))
        return LazyEnclosure(lambda: ends.lower, digits_above(ends.upper, digits))
    log_delta = floor_log_delta(target)

    # V(D(e)) <= d
    def passes(eps: float) -> bool:
        return log_delta_unless(curve, eps, log_delta) <= log_delta

    near = curve.epsilon(log_delta).upper
    # Root finding ends near an epsilon of 0, not at 0.
    if near < 1e-6 and passes(0.0):
        return Enclosure(0.0, 0.0)
    eps = near if near == math.inf else _least_passing(passes, near, digits_of(curve))
    if isinstance(curve, PrivacyProfile) and 0.0 < eps < math.inf:
        return LazyEnclosure(lambda: curve.epsilon_below(target.log_delta, eps), eps)
    return LazyEnclosure(lambda: curve.epsilon(target.log_delta).lower, eps)


def read_log_delta(curve: Curve, eps: float) -> Enclosure:
    """Return the reported ``ln delta`` of a privacy curve at ``eps`` nats (C24).

    The upper end is the reported value. The lower end is a lower bound of the exact ``ln delta`` of the curve.
    """
    cut = digits_below(eps, digits_of(curve))
    ends = curve.log_delta(cut)
    upper = rounded_log_delta(ends.upper)
    if leads_with_epsilon(curve) and upper < 0.0:
        near, digits = _inverse_log(upper), digits_of(curve)
        x = _least_passing(lambda x: curve.epsilon(_log_delta_of(x)).upper <= cut, near, digits)
        upper = _log_delta_of(x)
    return LazyEnclosure(lambda: (ends if cut == eps else curve.log_delta(eps)).lower, upper)


def leads_with_epsilon(curve: Curve) -> bool:
    """Return whether delta of the curve is computed as the inverse of epsilon (C24)."""
    return bool(getattr(curve, "leads_with_epsilon", False))


def digits_of(curve: Curve) -> int:
    """Return the number of significant digits of a reported epsilon of the curve."""
    return int(getattr(curve, "digits", RESULT_DIGITS))


def number_before(curve: Curve, eps: float) -> float:
    """Return a number below ``eps`` by at least one unit of the last reported digit."""
    return digits_below(eps * (1.0 - 10.0 ** (1 - digits_of(curve))), digits_of(curve))


def _inverse_log(log_delta: float) -> float:
    return -(1.0 - 1e-15) / log_delta


def _log_delta_of(x: float) -> float:
    return -1.0 / x


def _least_passing(passes: Callable[[float], bool], near: float, digits: int = RESULT_DIGITS) -> float:
    """Return a number of ``digits`` digits that passes, while the next smaller number fails.

    The search starts at ``near``. The result is ``inf`` if no number passes.
    """
    low = high = digits_above(max(near, LEAST_ROUNDED), digits)
    # The first step is less than the distance of two such numbers, and the steps grow.
    finer = 10.0 ** -(digits + 2)
    first = step = high * finer
    if passes(high):
        while True:
            low = digits_below(high - step, digits)
            if low <= 0.0 or not passes(low):
                break
            high, step = low, 4.0 * (high - low)
    else:
        while True:
            high = digits_above(low + step, digits)
            if passes(high):
                break
            if high > LARGEST_TRIED:
                return math.inf
            low, step = high, 4.0 * (high - low)
    while (after := digits_above(low + (low * finer or first), digits)) < high:
        middle = max(after, digits_below(0.5 * (low + high), digits))
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def meets(curve: Curve, target: FullTarget, margin: float = 0.0) -> bool:
    """Return whether ``delta(e) <= d`` and ``epsilon(d) <= e (1 - margin)`` (C24).

    ``e`` and ``d`` are the target epsilon and delta. Only the second inequality is tested if the curve is a map from
    delta to epsilon.
    """
    most = target.epsilon * (1.0 - margin)
    if not leads_with_epsilon(curve):
        point = floor_log_delta(target)
        if log_delta_unless(curve, digits_below(target.epsilon, digits_of(curve)), point) > point:
            return False
        # D(number before e) <= ln d - 2^-34 saves the search for epsilon(d) in a profile of one release.
        before = number_before(curve, most)
        if isinstance(curve, PrivacyProfile) and before > 0.0 and curve.log_delta(before).upper <= point - SPARE_LOG:
            return True
    return read_epsilon(curve, target).upper <= most


def log_excess(curve: Curve, target: FullTarget) -> float:
    """Return an upper bound of ``ln(delta / target delta)`` at the target epsilon.

    A negative bound may be loose. If the curve is a map from delta to epsilon, the result is an upper bound of
    ``ln(epsilon / target epsilon)`` at the target delta.
    """
    if leads_with_epsilon(curve) and target.epsilon > 0.0:
        # A result is rounded up by at most a digit, so aim at the number before.
        aim = number_before(curve, target.epsilon)
        return math.log(max(curve.epsilon(target.log_delta).upper, 1e-300) / max(aim, 1e-300))
    return log_delta_unless(curve, target.epsilon, target.log_delta) - target.log_delta
