"""Find roots and minima of functions, and invert privacy profiles.

:func:`root_of` builds a kernel (:mod:`privproj.numerics.jit`) that inverts a privacy profile by Newton's method. The
other functions accept any function.
"""

import math
import types
from collections.abc import Callable, Sequence
from math import fabs, inf, log, pi, sqrt
from typing import Any

from privproj.errors import ConvergenceError
from privproj.numerics.interval import Enclosure

SMALLEST_PROFILE_EPSILON = 1e-200  # nats, smallest epsilon above 0 that a profile returns

LARGEST_PROFILE_EPSILON = 1e18  # nats, largest finite epsilon that a profile returns

LEAST_RELATIVE_VALLEY = 2.0**-26  # relative distance from a minimum within which values differ by rounding only

NEWTON_END = 3e-7  # Newton's method ends after a relative step of at most this: the next step squares the error

FIRST_NATS = 0.7  # if -ln delta is larger, Newton's method uses sqrt(-2 ln delta), which is nearly linear in eps

ENDS: Any = None  # the profile to invert; root_of sets both globals

BENDS: Any = None  # True for a profile with kinks, where smoothness cannot be used to estimate the error of a step


def find_crossing(
    excess: Callable[[float], float],
    guess: float,
    *,
    low: float,
    high: float,
    spread: float = 1.0,
    rtol: float = 1e-14,
) -> Enclosure:
    """Return a bracket of the root of a non-increasing function on ``low <= x <= high``.

    Args:
        excess: A non-increasing function.
        guess: The start of the search.
        low: The least point of the search, above 0.
        high: The largest point of the search.
        spread: The relative size of the first step.
        rtol: The relative width of the bracket.

    Returns:
        Two evaluated points ``(x1, x2)`` with ``excess(x1) > 0 >= excess(x2)``. The result is ``(0, low)`` if no
        evaluated value is positive, and ``(high, inf)`` if all are. A finite ``x2`` satisfies ``excess(x2) <= 0`` even
        if ``excess`` is not monotone.

    Raises:
        ConvergenceError: A value of ``excess`` is nan.
    """

    def checked(x: float) -> float:
        value = excess(x)
        if math.isnan(value):
            raise ConvergenceError(
                f"the root search found a value that is not a number at {x!r}. Please report these parameters as a bug."
            )
        return value

    start = min(max(guess, low), high)
    value = checked(start)
    seeks_safe = value > 0.0
    near, far, at_near, at_far = start, start, value, value
    factor = 1.0 + spread
    while (at_far > 0.0) == seeks_safe:
        if far == (high if seeks_safe else low):
            return Enclosure(high, math.inf) if seeks_safe else Enclosure(0.0, low)
        near, at_near = far, at_far
        far = min(high, far * factor) if seeks_safe else max(low, far / factor)
        at_far = checked(far)
        factor = min(factor**3, 1e60)
    x1, f1, x2, f2 = (near, at_near, far, at_far) if seeks_safe else (far, at_far, near, at_near)
    # Bisect in logs, then use Chandrupatla's method.
    while x2 > 4.0 * x1:
        x = math.sqrt(x1) * math.sqrt(x2)
        value = checked(x)
        x1, f1, x2, f2 = (x, value, x2, f2) if value > 0.0 else (x1, f1, x, value)
    last, at_last, share = x1, f1, 0.5
    while x2 - x1 > rtol * x2:
        x = x1 + share * (x2 - x1)
        if not x1 < x < x2:  # rounded to an end
            x = x1 + 0.5 * (x2 - x1)
        if not x1 < x < x2:
            break
        value = checked(x)
        last, at_last = (x1, f1) if value > 0.0 else (x2, f2)
        x1, f1, x2, f2 = (x, value, x2, f2) if value > 0.0 else (x1, f1, x, value)
        # the next point has at least a certain relative distance from both ends
        share = _interpolated_share(x1, f1, x2, f2, last, at_last, max(0.5 * rtol, 2.0**-51) * x2)
    return Enclosure(x1, x2)


def _interpolated_share(x1: float, f1: float, x2: float, f2: float, x3: float, f3: float, tolerance: float) -> float:
    """Return the next point of Chandrupatla's method, as a fraction of the bracket.

    Args:
        x1: The lower end of the bracket.
        f1: The value at ``x1``, positive.
        x2: The upper end of the bracket.
        f2: The value at ``x2``, at most 0.
        x3: The end that was replaced last.
        f3: The value at ``x3``.
        tolerance: The least distance from both ends.
    """
    if not all(map(math.isfinite, (f1, f2, f3))) or f3 in (f1, f2):
        return 0.5
    place = (x1 - x2) / (x3 - x2) if f3 > 0.0 else (x2 - x1) / (x3 - x1)
    a, b, c = (f1, f2, f3) if f3 > 0.0 else (f2, f1, f3)
    height = (a - b) / (c - b)
    if not (height * height < place and (1.0 - height) ** 2 < 1.0 - place):
        return 0.5
    near, far, away = (x1, x2, x3) if f3 > 0.0 else (x2, x1, x3)
    t = a / (b - a) * c / (b - c) + (away - near) / (far - near) * a / (c - a) * b / (c - b)
    share = t if near == x1 else 1.0 - t
    edge = min(0.5, tolerance / (x2 - x1))
    return min(max(share, edge), 1.0 - edge)


def largest_integer(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the largest ``n`` in ``low..high`` for which ``fits(n)`` is True, or None.

    ``fits`` must not become True again after it is False.
    """
    if not fits(low):
        return None
    step = 1
    while low + step <= high and fits(low + step):
        low, step = low + step, 2 * step
    end = min(high + 1, low + step)
    while end - low > 1:
        middle = (low + end) // 2
        low, end = (middle, end) if fits(middle) else (low, middle)
    return low


def minimize(
    f: Callable[[float], float], low: float, high: float, rtol: float = 1e-9, points: int = 25
) -> tuple[float, float]:
    """Return ``(x, f(x))`` near the minimum of ``f`` on ``[low, high]``, by Brent's method.

    It starts from a scan of ``points`` values. ``f(x)`` is not proved to be the minimum.
    """
    scan = [low + (high - low) * i / (points - 1.0) for i in range(points)]
    values = [f(x) for x in scan]
    best = min(range(points), key=values.__getitem__)
    left, right = max(0, best - 1), min(points - 1, best + 1)
    a, x, b, at_x = scan[left], scan[best], scan[right], values[best]
    # w and v are the points with the next smallest values; parabolas go through x, w and v
    (w, at_w), (v, at_v) = sorted(((scan[i], values[i]) for i in (left, right)), key=lambda pair: pair[1])
    floor = LEAST_RELATIVE_VALLEY * (b - a)
    step = before = b - a
    while True:
        middle, nearest = 0.5 * (a + b), 0.5 * max(rtol, LEAST_RELATIVE_VALLEY) * (abs(a) + abs(b)) + floor
        if abs(x - middle) <= nearest - 0.5 * (b - a):
            return x, at_x
        # golden section of the larger side
        golden = 0.5 * (3.0 - math.sqrt(5.0)) * ((b if x < middle else a) - x)
        move = _parabola_step(x, at_x, w, at_w, v, at_v)
        # accept the parabola if it stays inside and its step is less than half of the step before the last
        fits = a - x + nearest < move < b - x - nearest and abs(move) < 0.5 * abs(before)
        before, step = step, move if fits else golden
        if not fits:
            before = b - x if x < middle else x - a
        u = x + (step if abs(step) >= 0.5 * nearest else math.copysign(0.5 * nearest, middle - x))
        value = f(u)
        if value <= at_x:
            a, b = (x, b) if u >= x else (a, x)
            v, at_v, w, at_w, x, at_x = w, at_w, x, at_x, u, value
        else:
            a, b = (u, b) if u < x else (a, u)
            if value <= at_w or w == x:
                v, at_v, w, at_w = w, at_w, u, value
            elif value <= at_v or v in (x, w):
                v, at_v = u, value


def _parabola_step(x: float, at_x: float, w: float, at_w: float, v: float, at_v: float) -> float:
    """Return the step from ``x`` to the vertex of the parabola through three points.

    The points are ``x``, ``w`` and ``v``. The result is ``inf`` if there is no vertex.
    """
    if not all(map(math.isfinite, (at_x, at_w, at_v))) or len({x, w, v}) < 3:
        return math.inf
    r, q = (x - w) * (at_x - at_v), (x - v) * (at_x - at_w)
    bend = 2.0 * (q - r)
    return ((x - w) * r - (x - v) * q) / bend if bend else math.inf


def minimize_integer(f: Callable[[int], float], low: int, high: int) -> float:
    """Return the minimum of a unimodal function on the integers ``low..high``."""
    while high - low > 4:
        left = low + (high - low) // 3
        right = high - (high - low) // 3
        low, high = (low, right) if f(left) <= f(right) else (left, high)
    return min(map(f, range(low, high + 1)))


# --- the inverse of a privacy profile, as a kernel -------------------------------------------------


def newton_start(mu: float, log_delta: float) -> float:
    """Return approximately the epsilon of the Gaussian mechanism at ``log_delta < 0``.

    ``mu`` is the sensitivity divided by the noise standard deviation.
    """
    square = -2.0 * log_delta
    reach = sqrt(max(square - log(2.0 * pi * max(square, 1.0)), 0.1 * square))
    return min(max(mu * (0.5 * mu + reach), SMALLEST_PROFILE_EPSILON), LARGEST_PROFILE_EPSILON)


def newton_step(eps: float, value: float, slope: float, log_delta: float, low: float, high: float) -> float:
    """Return the next epsilon of Newton's method for ``ln delta(eps) = log_delta``.

    Args:
        eps: The current epsilon in nats.
        value: ``ln delta`` at ``eps``.
        slope: ``-d ln delta/deps`` at ``eps``.
        log_delta: The target ``ln delta``.
        low: The lower end of a bracket of the root, 0 if unknown.
        high: The upper end of the bracket, inf if unknown.
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


def root_of(ends: Callable[..., tuple[float, float, float, Any]], *, bends: bool = False) -> Callable[..., Any]:
    """Return a kernel ``find_root(log_delta, row, state, start)`` that inverts a profile.

    The kernel returns approximately the smallest ``eps`` with ``delta(eps) <= e^log_delta``, which may be 0 or ``inf``,
    and the difference ``ln delta - log_delta`` at the last evaluation. The search begins at the epsilon ``start``. The
    caller must evaluate the profile at the result.

    Args:
        ends: A kernel with arguments ``(eps, row, state)``, where ``row`` has the parameters of the profile. It returns
            bounds of ``ln delta``, the slope ``-d ln delta/deps``, and a state that makes the next evaluation faster
            without affecting its validity.
        bends: True if the profile has kinks.
    """
    return with_globals(_find_root, ENDS=ends, BENDS=bends)


def with_globals(function: Any, **names: Any) -> Any:
    """Return a copy of a function, with the globals ``names`` replaced."""
    # A kernel gets other functions as globals, because numba does not cache the machine code of a function that has a
    # function as argument.
    return types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)


def _find_root(  # noqa: C901
    log_delta: float, row: Sequence[float], state: Any, start: float
) -> tuple[float, float]:
    eps = min(max(start, SMALLEST_PROFILE_EPSILON), LARGEST_PROFILE_EPSILON)
    low, high, missed, x, p, d = 0.0, inf, inf, 0.0, 0.0, 0.0
    goal = sqrt(-2.0 * log_delta)
    for _ in range(200):
        _, upper, slope, state = ENDS(eps, row, state)
        if upper == inf or (eps >= LARGEST_PROFILE_EPSILON and upper > log_delta):
            return inf, inf
        miss = upper - log_delta
        if fabs(miss) <= -1e-12 * log_delta:  # converged: at most an error of 1e-12 relative to ln delta
            return eps, miss
        if miss > 0.0:
            low = eps
        else:
            high = eps
            if low <= 0.0 and not miss > -slope * eps:
                # the tangent at this point reaches the target below 0
                _, upper_at_0, _, state = ENDS(0.0, row, state)
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
                if fabs(missed * miss) <= 1e-6:  # nats squared: the next error is a rounding
                    return moved, miss
        end = 1e-14 if BENDS else NEWTON_END
        if fabs(moved - eps) <= end * eps or high - low <= end * low:
            return moved, miss
        x, p, d, missed = eps, here, here / slope if curved else 0.0, miss
        eps = moved
    return eps, inf
