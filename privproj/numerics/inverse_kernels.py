"""The search for epsilon as a kernel: Newton's method in a bracket, and both ends evaluated."""

import types
from math import fabs, inf, log, pi, sqrt
from typing import Any

SMALLEST_PROFILE_EPSILON = 1e-200
"""Smallest epsilon above 0 that a profile answers. Contract."""

LARGEST_PROFILE_EPSILON = 1e18
"""Largest epsilon that a profile answers; ``inf`` beyond. Contract."""

NEWTON_END = 3e-7
"""Relative step after which Newton's method is at rounding: its error is squared. Speed only."""

CLOSEST_SHARE = 2.0**-47
"""Relative distance from the root at which a profile is evaluated on either side, first. Speed only."""

ENDS: Any = None
"""The profile that is inverted; :func:`inverse_of` puts it in its place. Speed only."""

FIRST_NATS = 0.7
"""Nats of ``-ln delta`` from which Newton's method runs on ``sqrt(-2 ln delta)``, nearly a line. Speed only."""


def newton_start(mu, log_delta):
    """Return about the epsilon of a Gaussian release with sensitivity over noise ``mu`` at ``log_delta < 0``."""
    square = -2.0 * log_delta
    reach = sqrt(max(square - log(2.0 * pi * max(square, 1.0)), 0.1 * square))
    return min(max(mu * (0.5 * mu + reach), SMALLEST_PROFILE_EPSILON), LARGEST_PROFILE_EPSILON)


def newton_step(eps, value, slope, log_delta, low, high):
    """Return the next epsilon by Newton's method, kept in the bracket.

    ``value`` is ``ln delta`` at ``eps``, and ``slope`` is ``-d ln delta/deps``. ``low`` (0: none) and ``high`` (inf:
    none) bracket the crossing.
    """
    step = inf
    if slope > 0.0 and fabs(value) < 1e300:
        step = (value - log_delta) / slope
        if min(-value, -log_delta) > FIRST_NATS:
            # on p = sqrt(-2 ln delta), dp/deps = slope/p
            p, goal = sqrt(-2.0 * value), sqrt(-2.0 * log_delta)
            step = 2.0 * (value - log_delta) / (goal + p) * p / slope
    moved = eps + step
    if not low < moved < high:
        if high == inf:
            moved = 16.0 * eps
        elif low <= 0.0:
            moved = eps / 16.0
        else:
            moved = sqrt(low) * sqrt(high) if high > 4.0 * low else 0.5 * (low + high)
    if high == inf:
        moved = min(moved, 100.0 * eps)
    if low <= 0.0:
        moved = max(moved, 0.01 * eps)
    return min(max(moved, SMALLEST_PROFILE_EPSILON), LARGEST_PROFILE_EPSILON)


def inverse_of(ends):
    """Return the kernel ``find_epsilon(log_delta, law, state, start)`` of a profile.

    ``ends(eps, law, state)`` returns ``(lower, upper, slope, state)``: an enclosure of ``ln delta``, the slope
    ``-d ln delta/deps``, and what speeds up the next evaluation; its answers hold for every ``state``. The
    search begins at the epsilon ``start``.
    """
    return with_globals(_find_epsilon, ENDS=ends)


def root_of(ends):
    """Return the kernel ``find_root(log_delta, law, state, start)`` of such a profile, which promises nothing.

    It returns nearly the smallest ``eps`` with ``delta(eps) <= e^log_delta``, 0 and ``inf`` as that is, in half as many
    evaluations; and the last miss in nats. Who uses it evaluates the profile there.
    """
    return with_globals(_find_root, ENDS=ends)


def with_globals(function, **names):
    """Return a plain function over these globals: numba keeps no machine code of one that is handed another."""
    return types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)


def _find_root(log_delta, law, state, start):
    """Return nearly the root and the last miss: by Newton's method, then by values and slopes at two points."""
    eps = min(max(start, SMALLEST_PROFILE_EPSILON), LARGEST_PROFILE_EPSILON)
    low, high, missed, x, p, d = 0.0, inf, inf, 0.0, 0.0, 0.0
    goal = sqrt(-2.0 * log_delta)
    for _ in range(200):
        _, upper, slope, state = ENDS(eps, law, state)
        if upper == inf or (eps >= LARGEST_PROFILE_EPSILON and upper > log_delta):
            return inf, inf
        miss = upper - log_delta
        # Miss of a root in nats, for each nat of ``ln delta`` and one more, that is as good as none. Speed only.
        if fabs(miss) <= 1e-12 * (1.0 - log_delta):
            return eps, miss
        if miss > 0.0:
            low = eps
        else:
            high = eps
            if low <= 0.0 and not miss > -slope * eps:
                # the line through this point meets the goal below 0
                _, upper_at_0, _, state = ENDS(0.0, law, state)
                if upper_at_0 <= log_delta:
                    return 0.0, 0.0
                if high <= SMALLEST_PROFILE_EPSILON:
                    return SMALLEST_PROFILE_EPSILON, 0.0
        moved = newton_step(eps, upper, slope, log_delta, low, high)
        # eps as a function of p = sqrt(-2 ln delta), whose slope is p/slope
        curved = slope > 0.0 and min(-upper, -log_delta) > FIRST_NATS and upper > -1e300
        here = sqrt(-2.0 * upper) if curved else 0.0
        if curved and p > 0.0 and here != p:
            width = here - p
            t = (goal - p) / width
            u = 1.0 - t
            # the cubic with these values and slopes at t = 0 and t = 1 (Hermite)
            near, far = (1.0 + 2.0 * t) * x + t * width * d, (1.0 + 2.0 * u) * eps - u * width * here / slope
            between = u * u * near + t * t * far
            if -2.0 < t < 3.0 and low < between < high:
                moved = between
                # By this product of the last two misses, in nats, the root is at rounding. Speed only.
                if fabs(missed * miss) <= 1e-6:
                    return moved, miss
        if fabs(moved - eps) <= NEWTON_END * eps or high - low <= NEWTON_END * low:
            return moved, miss
        x, p, d, missed = eps, here, here / slope if curved else 0.0, miss
        eps = moved
    return eps, inf


def _find_epsilon(log_delta, law, state, start):
    """Return the enclosure of the smallest ``eps`` with ``delta(eps) <= e^log_delta``.

    At the upper end ``upper <= log_delta`` was evaluated, and ``upper > log_delta`` at an epsilon that is less by a few
    roundings (:data:`CLOSEST_SHARE`). At the lower end ``lower >= log_delta`` was evaluated, or it is 0. ``(0, inf)``:
    there is none up to 1e18. ``(-inf, inf)``: it is not known.
    """
    _, upper, _, state = ENDS(0.0, law, state)
    if upper <= log_delta:
        return 0.0, 0.0
    eps = min(max(start, SMALLEST_PROFILE_EPSILON), LARGEST_PROFILE_EPSILON)
    low, high = 0.0, inf
    for _ in range(200):
        _, upper, slope, state = ENDS(eps, law, state)
        if upper == inf or (eps >= LARGEST_PROFILE_EPSILON and upper > log_delta):
            return (-inf if upper == inf else 0.0), inf
        if upper > log_delta:
            low = eps
        else:
            high = eps
        if high <= SMALLEST_PROFILE_EPSILON:
            return 0.0, SMALLEST_PROFILE_EPSILON
        last = eps
        eps = newton_step(eps, upper, slope, log_delta, low, high)
        if fabs(eps - last) <= NEWTON_END * last or high - low <= NEWTON_END * low:
            break
    # above delta a few roundings before the end
    share, before = CLOSEST_SHARE, eps
    while True:
        before = max(eps * (1.0 - share), SMALLEST_PROFILE_EPSILON)
        _, upper, slope, state = ENDS(before, law, state)
        if upper > log_delta or share >= 0.5:
            break
        share *= 8.0
    if upper > log_delta and slope > 0.0:
        eps = max(before, min(before + (upper - log_delta) / slope, before * (1.0 + 1e-6)))
    # and not above it at the end
    share, lower, upper = CLOSEST_SHARE, 0.0, inf
    for _ in range(60):
        eps = eps * (1.0 + share)
        lower, upper, slope, state = ENDS(eps, law, state)
        if upper <= log_delta:
            break
        share *= 4.0
    if upper > log_delta:
        return -inf, inf
    share = CLOSEST_SHARE
    for _ in range(40):
        least = eps * (1.0 - share) + (min(lower - log_delta, 0.0) / slope if slope > 0.0 else -eps)
        if not least > SMALLEST_PROFILE_EPSILON:
            break
        if ENDS(least, law, state)[0] >= log_delta:
            return least, eps
        share *= 8.0
    return 0.0, eps
