"""The Renyi conversion of the Gaussian moment averaged over the captured energy, one release or a column (C15).

The functions are kernels (:mod:`privproj.numerics.compiled`). A row is ``(a, n, mu)``: ``B ~ Beta(a, n - a)`` and
sensitivity over noise ``mu``. With ``t = alpha - 1`` and ``c = t (1 + t) mu^2 / 2``,

    ln delta(eps) = inf_t F(t),  F(t) = ln 1F1(a; n; c) - t eps + phi(t),  phi(t) = -t ln(1 + 1/t) - ln(1 + t).

``ln 1F1`` at ``c(t)`` is convex in ``t``, being the log of a mean of moments of a likelihood ratio, and so is ``phi``.
So Newton's method finds the least value. And ``F`` is at least its tangent with ``phi`` left as it is, whose least
value is a closed form: that is the lower end.
"""

from math import exp, expm1, fabs, inf, log, log1p, sqrt

from privproj.curves.columns import KernelColumns
from privproj.numerics.enclosure import FUNCTION_RELATIVE_ERROR
from privproj.numerics.inverse_kernels import inverse_of, newton_start, root_of

MOST_TERMS = 8000.0
"""Most terms of the series of ``1F1`` in columns; rows that need more are not answered. Speed only."""

RELATIVE_ERROR_PER_TERM = 8e-16
"""Relative error allowed for each term: six roundings that make it from the one before, and one of the sum.
Soundness."""

LARGEST_SUM = 2.0**900
"""A sum of terms is divided by this as soon as it is larger, which is exact. Soundness."""

LOG_LARGEST_SUM = 900.0 * log(2.0)
"""Its natural log."""

SEARCH_MARGIN = 1e-11
"""Half the width of an enclosure, in nats, for each nat of ``ln delta`` and one more.

Sixteen widths are more than the scalar search over orders misses (C24). Soundness.
"""

ROUNDING_ERROR = 4e-15
"""Relative error allowed to the terms of ``F``, which nearly cancel. Soundness."""

WIDEST = 1e-9
"""Width of an enclosure, in nats for each nat of ``ln delta`` and one more, from which on a row is not answered.

It keeps the widths of one question alike (C24). Soundness.
"""

SCALAR_SEARCHES = -1e-5
"""``ln delta`` below which the scalar search, from ``t = e^-14`` on, finds the best order, about ``-ln delta``.
Soundness.

Between this and :data:`SCALAR_ENDS` a row is not answered.
"""

SCALAR_ENDS = -2e-7
"""``ln delta`` above which both answer 0: ``F`` is positive from ``t = -e ln delta`` on. Soundness."""

LEAST_ORDER = 1e-30
"""Least ``t = alpha - 1`` that is tried. Every order is sound. Speed only."""

MOST_ORDER = 1e30
"""Largest. Speed only."""


def moment_terms(a, n, c, most):
    """Return ``(log_scale, total, first, second, count)``: the sums of ``t_j``, ``j t_j``, ``j^2 t_j`` over ``j >= 1``.

    ``1F1(a; n; c) = 1 + sum t_j`` with ``t_(j+1)/t_j = (a+j) c/((n+j)(j+1))``. Where ``log_scale`` is not 0, the sums
    are ``e^log_scale`` times what is returned. ``count`` terms were added; more than ``most``: too few were.
    """
    term = total = first = second = a * c / n
    j, log_scale = 1.0, 0.0
    while True:
        up, down = (a + j) * c, (n + j) * (j + 1.0)
        # The ratios to come are at most x = max(a + j, 1 + j) c/((n + j)(j + 1)), so what is left is t_j x/(1 - x).
        ratio = max(up, (1.0 + j) * c) / down
        # Share of the sum below which a term ends the series. Speed only.
        if term * ratio < 1e-17 * total * (1.0 - ratio) or j > most:
            return log_scale, total, first, second, j
        term *= up / down
        j += 1.0
        total += term
        first += j * term
        second += j * j * term
        if total > LARGEST_SUM:
            term, total, log_scale = term / LARGEST_SUM, total / LARGEST_SUM, log_scale + LOG_LARGEST_SUM
            first, second = first / LARGEST_SUM, second / LARGEST_SUM


def _energy_cumulant(a, n, c):
    """Return ``ln 1F1(a; n; c)``, its first two derivatives in ``c > 0``, and its relative error; inf if it is long."""
    log_scale, total, first, second, count = moment_terms(a, n, c, MOST_TERMS)
    if count > MOST_TERMS:
        return inf, inf, inf, inf
    whole = total if log_scale > 0.0 else 1.0 + total
    value = log_scale + log(total) if log_scale > 0.0 else log1p(total)
    # M' = sum j t_j / (c S),  M'' = sum j (j - 1) t_j / (c^2 S) - M'^2
    slope = first / whole / c
    bend = (second - first) / whole / (c * c) - slope * slope
    return value, slope, bend, FUNCTION_RELATIVE_ERROR + count * RELATIVE_ERROR_PER_TERM


def _order_terms(eps, t, row):
    """Return ``F``, ``F'`` and ``F''`` at ``t``, and the error of ``F`` in nats; all inf where the series is long."""
    a, n, mu = row[0], row[1], row[2]
    c = 0.5 * t * (1.0 + t) * mu * mu
    # beyond c = n + MOST_TERMS the terms still grow when the last one is added
    if not 0.0 < c < n + MOST_TERMS:
        return inf, inf, inf, inf
    value, slope, bend, error = _energy_cumulant(a, n, c)
    if value == inf:
        return inf, inf, inf, inf
    growth, stretch = (0.5 + t) * mu * mu, log1p(1.0 / t)
    level = value - t * eps - t * stretch - log1p(t)
    more = fabs(value) * error + ROUNDING_ERROR * (c * slope + t * eps + 1.0)
    return level, slope * growth - eps - stretch, bend * growth * growth + slope * mu * mu + 1.0 / (t * (1.0 + t)), more


def _least_of_tangent(t, slope):
    """Return how far ``F`` may fall below its value at ``t``, at most 0: that of its tangent, ``phi`` left as it is."""
    # min over y of (F' - phi'(t)) (y - t) + phi(y) - phi(t) = ln(1 - e^k) - ln(1 - e^k0) + t (k - k0),
    # k0 = phi'(t) = -ln(1 + 1/t), k = k0 - F'
    k = -log1p(1.0 / t) - slope
    if not k < 0.0:
        return -inf
    # (1 - e^k)/(1 - e^k0) = 1 + e^k0 (1 - e^-F')/(1 - e^k0) = 1 - t (e^-F' - 1)
    part = -t * expm1(-slope) if slope > -700.0 else -inf
    return min(0.0, log1p(part) - t * slope) if part > -1.0 else -inf


def _mixture_ends(eps, row, state):
    """Return ``(lower, upper, -d ln delta/deps, state)``; ``state`` is ``alpha - 1`` where the search begins."""
    t, low, high = min(max(state, LEAST_ORDER), MOST_ORDER), 0.0, inf
    best, place, below = inf, t, -inf
    # Most steps of the search for an order. Speed only.
    for _ in range(80):
        level, slope, bend, more = _order_terms(eps, t, row)
        if level + more < best:
            best, place = level + more, t
        fall = _least_of_tangent(t, slope) if level < inf else -inf
        if level + fall - more > below:
            below = level + fall - more
        # Nats by which the order that is found may miss the least value. Speed only.
        if fall > -1e-14 or (fall > -1e-9 and high - low < 1e-13 * high):
            break
        if slope > 0.0:
            high = t
        else:
            low = t
        # Newton's step on ln t, kept in the bracket
        moved = t * exp(min(max(-slope / (bend * t), -3.0), 3.0)) if level < inf else 0.0
        if not low < moved < high:
            moved = 0.125 * t if low <= 0.0 else sqrt(low) * sqrt(high) if high > 4.0 * low else 0.5 * (low + high)
        t = min(max(moved, LEAST_ORDER), MOST_ORDER)
    if not best - below <= WIDEST * (1.0 + fabs(best)):
        return -inf, inf, 0.0, state
    if SCALAR_SEARCHES < best <= SCALAR_ENDS:
        return -inf, inf, 0.0, state
    margin = FUNCTION_RELATIVE_ERROR + SEARCH_MARGIN * (1.0 + fabs(best))
    return below - margin, 0.0 if best > SCALAR_ENDS else min(0.0, best + margin), place, place


def _first_order(eps, row):
    """Return about the best ``alpha - 1`` at ``eps``: that of a Gaussian moment of the mean energy ``a/n``."""
    # t mu^2 a/n = eps + 3, about (1/2 + t) mu^2 a/n = eps + ln(1 + 1/t); but no larger than at c = 0.8 n, as the
    # moment grows like (1 - c/n)^-a
    mu = max(row[2], 1e-100)
    return min((eps + 3.0) / mu / mu * row[1] / row[0], sqrt(1.6 * row[1]) / mu)


def _mixture_log_delta(eps, row):
    """Return the enclosure of ``ln delta`` at ``eps``; the row is ``(a, n, mu)``."""
    lower, upper, _, _ = _mixture_ends(eps, row, _first_order(eps, row))
    return lower, upper


_find_mixture_epsilon = inverse_of(_mixture_ends)
_find_mixture_root = root_of(_mixture_ends)


def _mixture_epsilon(log_delta, row):
    """Return the enclosure of the inverse of :func:`_mixture_log_delta`."""
    start = newton_start(row[2] * sqrt(row[0] / row[1]), log_delta)
    return _find_mixture_epsilon(log_delta, row, _first_order(start, row), start)


def _mixture_root(log_delta, row):
    """Return nearly the inverse of :func:`_mixture_log_delta`, and what it misses."""
    start = newton_start(row[2] * sqrt(row[0] / row[1]), log_delta)
    return _find_mixture_root(log_delta, row, _first_order(start, row), start)


MIXTURE_COLUMNS = KernelColumns(_mixture_log_delta, _mixture_epsilon, _mixture_root)
"""The Renyi curve of M2, converted, over columns; a row is ``(a, n, mu)``."""
