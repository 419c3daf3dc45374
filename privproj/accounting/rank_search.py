"""The ranks that meet a target, where epsilon grows, falls, or first falls and then grows with the rank.

Every rank that is returned was evaluated by ``excess``; ``rough`` only tells the search where to look.
"""

import math
from collections.abc import Callable

from privproj.numerics.search import largest_integer, minimise


def rank_ends(
    excess: Callable[[int], float], shape: str, limit: int, rough: Callable[[int], float] | None = None
) -> tuple[int | None, int | None]:
    """``(smallest, largest)`` rank from 1 to ``limit`` at which ``excess`` is at most 0.

    ``shape`` says how epsilon depends on the rank: "grows" finds the largest only, "falls" the smallest only,
    "u-shaped" both. An end that is not sought, or that does not exist, is None. ``rough`` is a cheaper excess for the
    search.
    """

    def fits(rank: int) -> bool:
        return excess(rank) <= 0.0

    if shape == "grows":
        return None, largest_integer(fits, 1, limit)
    if shape != "u-shaped":
        if not fits(limit):
            return None, None
        return (largest_integer(lambda rank: not fits(rank), 1, limit) or 0) + 1, None
    rough = rough or excess
    best = _best_rank(rough, limit)
    if not fits(best):
        ends = max(math.log(best) - 1.0, 0.0), min(math.log(best) + 1.0, math.log(limit))
        best = round(math.exp(minimise(lambda x: excess(round(math.exp(x))), *ends, rtol=1e-3, points=5)[0]))
    if not fits(best):
        return None, None
    return _rank_end(excess, rough, best, 1), _rank_end(excess, rough, best, limit)


def _best_rank(excess: Callable[[int], float], limit: int) -> int:
    """A rank that fits, or else nearly the one with the least excess."""

    def at(x: float) -> float:
        return excess(round(math.exp(x)))

    scan = [math.log(limit) * i / 12.0 for i in range(13)]
    # The place of the thirteen ranks of the first scan, evenly spaced in their logs, that is tried first. Speed only.
    for i in sorted(range(13), key=lambda i: abs(i - 4)):
        if at(scan[i]) <= 0.0:
            return round(math.exp(scan[i]))
    best = min(range(13), key=lambda i: at(scan[i]))
    return round(math.exp(minimise(at, scan[max(best - 1, 0)], scan[min(best + 1, 12)], rtol=1e-3, points=7)[0]))


def _rank_end(excess: Callable[[int], float], rough: Callable[[int], float], best: int, end: int) -> int:
    """The last rank that fits on the way from ``best``, which fits, to ``end``; ``rough`` says where to start."""
    near, slope = best, math.inf
    if rough(best) <= 0.0 < rough(end):
        near, beyond = _bracket_end(rough, best, end, 1e-2)
        slope = (rough(beyond) - rough(near)) / math.log(beyond / near)
        if 0.0 < abs(slope) < math.inf:
            near = _rank_at(near, -rough(near) / slope)
    fit, miss, stride, toward = best, None, max(1, round(1e-3 * near)), 1 if end > best else -1
    for count in range(200):
        value = excess(near)
        fit, miss = (near, miss) if value <= 0.0 else (fit, near)
        if fit == end or (miss is not None and abs(miss - fit) <= 1):
            break
        # The place of the end by Newton's method in ln rank, with the slope of the rough excess
        guess = _rank_at(near, -value / slope) if math.isfinite(value) else near
        if miss is None:
            ahead = max(toward * (guess - fit), stride)
            near, stride = fit + toward * min(ahead, abs(end - fit)), 4 * stride
        else:
            low, high = sorted((fit, miss))
            guess = (low + high) // 2 if count % 4 == 3 else guess
            near = min(max(guess, low + 1), high - 1)
    return fit


def _rank_at(rank: int, logs: float) -> int:
    """The rank that is ``e^logs`` times as large, within a factor of 10."""
    return max(1, round(rank * math.exp(min(max(logs, -2.3), 2.3))))


def _bracket_end(excess: Callable[[int], float], inside: int, outside: int, rtol: float) -> tuple[int, int]:
    """A rank that fits and one that does not, near each other, between such a pair; by secants in ``ln rank``."""
    at_inside, at_outside = excess(inside), excess(outside)
    for count in range(200):
        if abs(outside - inside) <= max(1.0, rtol * inside):
            break
        share = at_inside / (at_inside - at_outside) if math.isfinite(at_outside) and count % 3 != 2 else 0.5
        share = min(max(share, 0.02), 0.98)
        middle = round(math.exp((1.0 - share) * math.log(inside) + share * math.log(outside)))
        low, high = sorted((inside, outside))
        middle = min(max(middle, low + 1), high - 1)
        value = excess(middle)
        if value <= 0.0:
            inside, at_inside = middle, value
        else:
            outside, at_outside = middle, value
    return inside, outside
