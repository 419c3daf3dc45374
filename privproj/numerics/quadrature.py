"""Integrals of smooth unimodal functions given by their logs, with error estimates."""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from privproj.errors import ConvergenceError

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array

# relative error above which log_integral raises ConvergenceError; a smaller error widens the enclosure
LARGEST_QUADRATURE_ERROR = 1e-6

# relative error at which panels are no longer halved
QUADRATURE_GOAL = 1e-12

# If a quadrature fails and the log of its peak is below this, a rough bound is used instead.
LOG_NEGLIGIBLE_HEIGHT = -1000.0

# soundness: nats below the peak at which an integrand is truncated; e^-46 is below rounding
LOG_DROP_AT_EDGE = 46.0

# soundness: Gauss nodes of the second rule; the difference of both rules estimates the error (measured, not proved)
CHECK_NODES = 13


def legendre(n: int, x: float) -> tuple[float, float]:
    """Return the Legendre polynomials ``P_n(x)`` and ``P_(n-1)(x)`` for ``n >= 1``."""
    p, previous = x, 1.0
    for k in range(2, n + 1):
        p, previous = ((2 * k - 1) * x * p - (k - 1) * previous) / k, p
    return p, previous


@lru_cache(maxsize=8)
def gauss_legendre(n: int) -> tuple[tuple[float, float], ...]:
    """Return the n-point Gauss-Legendre rule on [0, 1] as pairs ``(node, weight)``."""
    rule = []
    for i in range(n):
        x = math.cos(math.pi * (i + 0.75) / (n + 0.5))
        slope = 1.0
        for _ in range(8):
            p, previous = legendre(n, x)
            # Newton's method for a root of P_n, P_n' = n (x P_n - P_(n-1)) / (x^2 - 1); its weight is
            # 1 / ((1 - x^2) P_n'^2) on [0, 1].
            slope = n * (x * p - previous) / (x * x - 1.0)
            x -= p / slope
        rule.append((0.5 + 0.5 * x, 1.0 / ((1.0 - x * x) * slope * slope)))
    return tuple(rule)


@lru_cache(maxsize=8)
def gauss_nodes(count: int) -> "tuple[Array, Array]":
    """Return the nodes and the weights of :func:`gauss_legendre` as two arrays."""
    import numpy as np

    nodes, weights = zip(*gauss_legendre(count), strict=True)
    return np.array(nodes), np.array(weights)


def _gauss_rule_sum(
    log_f: Callable[[Any], Any], edges: list[float], n: int, reference: float, takes_arrays: bool
) -> float:
    """Return ``int e^(log_f(t) - reference) dt`` over all intervals between ``edges``.

    The Gauss rule on each interval has ``n`` nodes.
    """
    if takes_arrays:
        import numpy as np

        nodes, weights = np.array(gauss_legendre(n)).T
        low, width = np.array(edges[:-1]), np.diff(edges)
        places = (low[:, None] + width[:, None] * nodes).ravel()
        heights = np.exp(np.minimum(700.0, log_f(places) - reference)).reshape(len(low), n)
        return math.fsum((heights * weights * width[:, None]).ravel().tolist())
    total = 0.0
    for left, right in pairwise(edges):
        width = right - left
        total += width * math.fsum(
            w * math.exp(min(700.0, log_f(left + x * width) - reference)) for x, w in gauss_legendre(n)
        )
    return total


def log_integral(
    log_f: Callable[[Any], Any], start: float, step: float, high: float = math.inf, *, takes_arrays: bool = False
) -> tuple[float, float]:
    """Return ``ln int_-inf^high e^log_f dt`` and an estimate of its relative error.

    The integrand must be smooth and unimodal. The estimate bounds the error in tests, but this is not proved. The
    estimate is 3 if the quadrature does not converge for an integrand below e^-1000.

    Args:
        log_f: The log of the integrand.
        start: The point at which the search for the peak starts.
        step: The first step of this search.
        high: The upper limit of the integral.
        takes_arrays: True if ``log_f`` accepts arrays, which is faster.

    Raises:
        ConvergenceError: The error stays above 1e-6.
    """
    top, peak = _find_peak(log_f, min(start, high - 0.01 * step), step, high)
    if peak == -math.inf:
        return -math.inf, 0.0
    left = _find_drop_off(log_f, top, peak, -step, -math.inf)
    right = _find_drop_off(log_f, top, peak, step, high)
    edges = [left, left + 0.6 * (top - left), top, top + 0.4 * (right - top), right]
    fine, error, enough = 0.0, math.inf, max(QUADRATURE_GOAL, 4e-15 * abs(peak))
    for _ in range(7):
        fine, coarse = (_gauss_rule_sum(log_f, edges, count, peak, takes_arrays) for count in (20, CHECK_NODES))
        # usually at most 1e-12
        error = abs(fine - coarse) / fine if fine > 0.0 else math.inf
        if error <= enough:
            break
        edges = sorted({*edges, *(0.5 * (a + b) for a, b in pairwise(edges))})
    if not error <= max(LARGEST_QUADRATURE_ERROR, enough):
        if not peak < LOG_NEGLIGIBLE_HEIGHT:
            raise ConvergenceError(
                f"the quadrature reached a relative error of {error:.1e} only. Please report these parameters as a bug."
            )
        # the height times the width of the integrand
        width = max(right - left, 1e-15 * abs(left) + 1e-300)
        return peak + math.log(width), 3.0
    return peak + math.log(fine), max(error, enough - QUADRATURE_GOAL)


def _find_peak(log_f: Callable[[float], float], start: float, step: float, high: float) -> tuple[float, float]:
    """Return a point near the maximum of a unimodal function on ``(-inf, high]``, and its value."""
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


def _find_drop_off(log_f: Callable[[float], float], top: float, peak: float, stride: float, limit: float) -> float:
    """Return the point where ``log_f`` has decreased to 46 below ``peak``, or ``limit``.

    The search starts at ``top`` in the direction of ``stride``.
    """
    inside = outside = top
    while log_f(outside) > peak - LOG_DROP_AT_EDGE:
        if outside == limit:
            return limit
        inside, stride = outside, 2.0 * stride
        outside = min(outside + stride, limit) if stride > 0.0 else outside + stride
    for _ in range(3):
        middle = 0.5 * (inside + outside)
        inside, outside = (middle, outside) if log_f(middle) > peak - LOG_DROP_AT_EDGE else (inside, middle)
    return outside
