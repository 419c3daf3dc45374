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
        best = round(math.exp(minimise(lambda x: excess(round(math.exp(x))), 0.0, math.log(limit), rtol=1e-3)[0]))
    if not fits(best):
        return None, None
    return _rank_end(excess, rough, best, 1), _rank_end(excess, rough, best, limit)


def _best_rank(excess: Callable[[int], float], limit: int) -> int:
    """A rank that fits, or else nearly the one with the least excess."""

    def at(x: float) -> float:
        return excess(round(math.exp(x)))

    scan = [math.log(limit) * i / 12.0 for i in range(13)]
    best = min(range(13), key=lambda i: at(scan[i]))
    if at(scan[best]) <= 0.0:
        return round(math.exp(scan[best]))
    return round(math.exp(minimise(at, scan[max(best - 1, 0)], scan[min(best + 1, 12)], rtol=1e-3, points=7)[0]))


def _rank_end(excess: Callable[[int], float], rough: Callable[[int], float], best: int, end: int) -> int:
    """The last rank that fits on the way from ``best``, which fits, to ``end``; ``rough`` says where to start."""
    near = best
    if rough(best) <= 0.0 < rough(end):
        near = _last_fitting_rank(rough, best, end, 1e-3)
    if excess(near) > 0.0:
        return _last_fitting_rank(excess, best, near, 0.0)
    stride, toward = max(1, round(1e-3 * near)), 1 if end > best else -1
    while near != end:
        further = min(near + stride, end) if toward > 0 else max(near - stride, end)
        if excess(further) > 0.0:
            return _last_fitting_rank(excess, near, further, 0.0)
        near, stride = further, 4 * stride
    return end


def _last_fitting_rank(excess: Callable[[int], float], inside: int, outside: int, rtol: float) -> int:
    """The last rank that fits between one that fits and one that does not, by secants in ``ln rank``."""
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
    return inside
