"""The search for epsilon as a kernel: Newton's method in a bracket, whose end is evaluated by who uses it."""

import types
from math import fabs, inf, log, pi, sqrt
from typing import Any

SMALLEST_PROFILE_EPSILON = 1e-200
"""Smallest epsilon above 0 that a profile answers. Contract."""

LARGEST_PROFILE_EPSILON = 1e18
"""Largest epsilon that a profile answers; ``inf`` beyond. Contract."""

NEWTON_END = 3e-7
"""Relative step after which Newton's method is at rounding: its error is squared. Speed only."""

ENDS: Any = None
"""The profile that is inverted, and ``BENDS``; :func:`root_of` puts both in their place. Speed only."""

BENDS: Any = None
"""True for a profile with bends, where neither a cubic nor the square of a step tells how near it is. Speed only."""

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


def root_of(ends, *, bends=False):
    """Return the kernel ``find_root(log_delta, law, state, start)`` of a profile, which promises nothing.

    ``ends(eps, law, state)`` returns ``(lower, upper, slope, state)``: an enclosure of ``ln delta``, the slope
    ``-d ln delta/deps``, and what speeds up the next evaluation; its answers hold for every ``state``. The search
    begins at the epsilon ``start``. It returns nearly the smallest ``eps`` with ``delta(eps) <= e^log_delta``, 0 and
    ``inf`` as that is, and the last miss in nats.
    """
    return with_globals(_find_root, ENDS=ends, BENDS=bends)


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
        # Miss of a root, as a share of ``ln delta``, that is as good as none. Speed only.
        if fabs(miss) <= -1e-12 * log_delta:
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
        curved = not BENDS and slope > 0.0 and min(-upper, -log_delta) > FIRST_NATS and upper > -1e300
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
        end = 1e-14 if BENDS else NEWTON_END
        if fabs(moved - eps) <= end * eps or high - low <= end * low:
            return moved, miss
        x, p, d, missed = eps, here, here / slope if curved else 0.0, miss
        eps = moved
    return eps, inf
