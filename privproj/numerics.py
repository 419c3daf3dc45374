"""Numerical tools of the core: enclosures and their outward margin, one safe search, one quadrature.

Everything here is on ``math``. Logs of tiny numbers are written ``log_...``; ``-inf`` is the log of zero.
"""

import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from privproj.errors import NotConverged

ROUNDING = 1e-12
"""Relative error allowed to a special function or a converged quadrature (measured: below 1e-13)."""

ROUNDING_PER_LOG = 4e-15
"""Further relative error for each unit of ``|log delta|`` (a rounding of the exponent)."""

ENOUGH = 1e-6
"""Relative error of a quadrature beyond which no number is returned; a smaller one widens the enclosure."""

LAST_BITS = 2.0**-51
"""A search looks at least so far, relative, from the ends that it knows. Speed only."""

LOG_FLOOR = -1e300
LOG_NEGLIGIBLE = -1000.0


class Enclosure(NamedTuple):
    """``lower <= exact value <= upper``."""

    lower: float
    upper: float


def outward(log_value: float, error: float = 0.0, steepness: float = 1.0) -> Enclosure:
    """The one outward margin: the enclosure of a log probability computed with relative error ``error``.

    ``steepness`` bounds ``|d log_value / d log(parameter)|`` for parameters that are themselves rounded. Raises
    :class:`NotConverged` for a nan.
    """
    if log_value == -math.inf:
        return Enclosure(-math.inf, LOG_FLOOR)
    margin = ROUNDING + error + ROUNDING_PER_LOG * abs(log_value) + 1e-15 * steepness
    if math.isnan(margin):
        raise NotConverged("a probability or its error came out undefined; please report these parameters")
    return Enclosure(log_value - margin, min(0.0, log_value + margin))


def log1m_exp(x: float) -> float:
    """``ln(1 - e^x)`` for ``x <= 0``."""
    if x >= 0.0:
        return -math.inf
    return math.log(-math.expm1(x)) if x > -0.7 else math.log1p(-math.exp(x))


def next_up(x: float) -> float:
    """``x`` moved up past the error of a handful of roundings."""
    return x + 8e-16 * abs(x)


# --- search -------------------------------------------------------------------------------------


def crossing(
    excess: Callable[[float], float],
    guess: float,
    *,
    low: float,
    high: float,
    spread: float = 1.0,
    rtol: float = 1e-14,
) -> Enclosure:
    """Bracket the point where a non-increasing ``excess`` stops being positive, on ``0 < low <= x <= high``.

    Returns ``(x1, x2)`` with ``excess(x1) > 0 >= excess(x2)``, both evaluated, ``x2 - x1 <= rtol * x2``;
    ``(0, low)`` if nothing is positive down to ``low``; ``(high, inf)`` if all is positive up to ``high``.
    Raises :class:`NotConverged` on a nan.
    """

    def checked(x: float) -> float:
        value = excess(x)
        if math.isnan(value):
            raise NotConverged(f"the search met an undefined value at {x!r}; please report these parameters")
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
    ends = (near, at_near, far, at_far) if seeks_safe else (far, at_far, near, at_near)
    return shrink(checked, *ends, rtol=rtol)


def shrink(f: Callable[[float], float], x1: float, f1: float, x2: float, f2: float, *, rtol: float) -> Enclosure:
    """Shrink a bracket ``f(x1) > 0 >= f(x2)`` to relative width ``rtol`` (Chandrupatla; geometric halving first)."""
    while x2 > 4.0 * x1:
        middle = math.sqrt(x1) * math.sqrt(x2)
        x1, f1, x2, f2 = replaced(x1, f1, x2, f2, middle, f(middle))
    last, at_last, share = x1, f1, 0.5
    while x2 - x1 > rtol * x2:
        x = x1 + share * (x2 - x1)
        if not x1 < x < x2:  # a look so close to one end that rounding makes it that end
            x = x1 + 0.5 * (x2 - x1)
        if not x1 < x < x2:
            break
        value = f(x)
        last, at_last = (x1, f1) if value > 0.0 else (x2, f2)
        x1, f1, x2, f2 = replaced(x1, f1, x2, f2, x, value)
        share = interpolated_share(x1, f1, x2, f2, last, at_last, max(0.5 * rtol, LAST_BITS) * x2)
    return Enclosure(x1, x2)


def replaced(x1: float, f1: float, x2: float, f2: float, x: float, value: float) -> tuple[float, float, float, float]:
    """The bracket with the end of the same sign replaced by ``x``."""
    return (x, value, x2, f2) if value > 0.0 else (x1, f1, x, value)


def interpolated_share(x1: float, f1: float, x2: float, f2: float, x3: float, f3: float, tolerance: float) -> float:
    """Where to look next, as a share of the bracket: inverse quadratic where it is safe, else the middle."""
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
    """Largest ``n`` in ``low..high`` for which a predicate that only turns from true to false holds; None if none."""
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


def minimise(
    f: Callable[[float], float], low: float, high: float, rtol: float = 1e-9, points: int = 25
) -> tuple[float, float]:
    """``(x, f(x))`` near the least value on ``[low, high]``: a scan, then golden sections."""
    scan = [low + (high - low) * i / (points - 1.0) for i in range(points)]
    values = [f(x) for x in scan]
    best = min(range(points), key=values.__getitem__)
    a, b = scan[max(0, best - 1)], scan[min(points - 1, best + 1)]
    golden = 0.5 * (math.sqrt(5.0) - 1.0)
    x1, x2 = b - golden * (b - a), a + golden * (b - a)
    f1, f2 = f(x1), f(x2)
    while b - a > rtol * (abs(a) + abs(b)) + 1e-300:
        if f1 <= f2:
            b, x2, f2 = x2, x1, f1
            x1 = b - golden * (b - a)
            f1 = f(x1)
        else:
            a, x1, f1 = x1, x2, f2
            x2 = a + golden * (b - a)
            f2 = f(x2)
    return min(((x1, f1), (x2, f2), (scan[best], values[best])), key=lambda pair: pair[1])


# --- quadrature ---------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def gauss_legendre(n: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights of the n-point Gauss-Legendre rule on [0, 1]."""
    rule = []
    for i in range(n):
        x = math.cos(math.pi * (i + 0.75) / (n + 0.5))
        slope = 1.0
        for _ in range(8):
            p, previous = x, 1.0
            for k in range(2, n + 1):
                p, previous = ((2 * k - 1) * x * p - (k - 1) * previous) / k, p
            slope = n * (x * p - previous) / (x * x - 1.0)
            x -= p / slope
        rule.append((0.5 + 0.5 * x, 1.0 / ((1.0 - x * x) * slope * slope)))
    return tuple(rule)


def log_rule(log_f: Callable[[float], float], edges: list[float], n: int, reference: float) -> float:
    """``sum of panels of  int e^(log_f(t) - reference) dt`` by the n-point Gauss rule."""
    total = 0.0
    for left, right in itertools.pairwise(edges):
        width = right - left
        total += width * math.fsum(
            w * math.exp(min(700.0, log_f(left + x * width) - reference)) for x, w in gauss_legendre(n)
        )
    return total


def log_integral(log_f: Callable[[float], float], start: float, step: float, high: float = math.inf) -> Enclosure:
    """``(ln int_-inf^high e^log_f dt, relative error)`` of a smooth integrand with one hill, as a pair.

    The hill is found from ``start`` in steps of ``step``; the window ends where it has dropped by ``e^-46``.
    Two Gauss rules on the same panels give the error; panels are halved until it is below 1e-12, or below what the
    rounding of a huge exponent leaves. Where that fails for an integral far below anything representable, its height
    times its width is returned, with an error of three in the log.
    """
    edges, peak = hill(log_f, start, step, high)
    if peak == -math.inf:
        return Enclosure(-math.inf, 0.0)
    fine, error, enough = 0.0, math.inf, max(1e-12, 4e-15 * abs(peak))
    for _ in range(7):
        fine, coarse = log_rule(log_f, edges, 20, peak), log_rule(log_f, edges, 13, peak)
        error = abs(fine - coarse) / fine if fine > 0.0 else math.inf
        if error <= enough:
            break
        edges = sorted({*edges, *(0.5 * (a + b) for a, b in pairwise(edges))})
    if not error <= max(ENOUGH, enough) and peak < LOG_NEGLIGIBLE:
        width = max(edges[-1] - edges[0], 1e-15 * abs(edges[0]) + 1e-300)
        return Enclosure(peak + math.log(width), 3.0)
    if not error <= max(ENOUGH, enough):
        raise NotConverged(f"the quadrature reached only a relative {error:.1e}; please report these parameters")
    return Enclosure(peak + math.log(fine), max(error, enough - 1e-12))


def hill(log_f: Callable[[float], float], start: float, step: float, high: float) -> tuple[list[float], float]:
    """Panel edges around the hill of ``log_f`` on ``(-inf, high]``, and (nearly) its height."""
    top, peak = climb(log_f, min(start, high - 0.01 * step), step, high)
    left = drop_off(log_f, top, peak, -step, -math.inf)
    right = drop_off(log_f, top, peak, step, high)
    return [left, left + 0.6 * (top - left), top, top + 0.4 * (right - top), right], peak


def climb(log_f: Callable[[float], float], start: float, step: float, high: float) -> tuple[float, float]:
    """A point near the top of the hill and the height there."""
    t, value = start, log_f(start)
    stride = step if t + step <= high and log_f(t + step) > value else -step
    level = 0
    while level < 2 and abs(stride) > 1e-12 * step:
        moved = min(t + stride, high)
        at_moved = log_f(moved)
        if at_moved > value:
            t, value, stride, level = moved, at_moved, 2.0 * stride, 0
        else:
            level = level + 1 if value - at_moved < 1.0 else 0
            stride = -0.3 * stride
    return t, value


def drop_off(log_f: Callable[[float], float], top: float, peak: float, stride: float, limit: float) -> float:
    """The point beyond ``top``, towards ``stride``, where ``log_f`` is about 46 below ``peak`` (or ``limit``)."""
    inside = outside = top
    while log_f(outside) > peak - 46.0:
        if outside == limit:
            return limit
        inside, stride = outside, 2.0 * stride
        outside = min(outside + stride, limit) if stride > 0.0 else outside + stride
    for _ in range(3):
        middle = 0.5 * (inside + outside)
        inside, outside = (middle, outside) if log_f(middle) > peak - 46.0 else (inside, middle)
    return outside
