"""The inverses of many non-increasing functions at once, each end evaluated."""

import math
from collections.abc import Callable

import numpy as np

from privproj.numerics.arrays import Array, Index

MOST_LOOKS = 400
"""Looks at one function after which the best ends known are returned. Speed only."""

NEAR_WIDTHS = 2.0
"""An upper end at which a function is within so many widths of its enclosure from the level is close. Speed only."""

LEAST_WIDTH = 1e-13
"""Least width of an enclosure that counts there. Speed only."""

LEAST_RELATIVE_BRACKET = 2.0**-50
"""Relative width of a bracket in which no closer look is taken. Speed only."""


def falling_inverses(
    ends: Callable[[Array, Index], tuple[Array, Array]], levels: Array, guess: Array, low: float, high: float
) -> tuple[Array, Array]:
    """Return ``(lower, upper)`` of the least ``x`` from ``low`` to ``high`` at which a function is at most its level.

    Args:
        ends: From places and the numbers of their rows, of one shape, to an enclosure of the functions there.
        levels: The level of each row.
        guess: Where the search of each row begins.
        low: The least place that is tried, above 0.
        high: The largest place that is tried.

    Returns:
        At ``upper`` the upper end of the function was evaluated to be at most the level; it is ``inf`` where it is
        above at ``high``. At ``lower`` the lower end was evaluated to be above the level, or it is 0.
    """
    rows = np.arange(len(levels))
    # Outside and inside: places where the upper end is above its level, and where it is not.
    out, inside = np.zeros(len(rows)), np.full(len(rows), np.inf)
    at_out, at_inside = np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
    lower, width = np.zeros(len(rows)), np.full(len(rows), LEAST_WIDTH)
    spare, at_spare = np.zeros(len(rows)), np.full(len(rows), np.nan)

    def look(x: Array, here: Index) -> None:
        bottom, top = ends(x, here)
        value = top - levels[here]
        miss = ~(value <= 0.0)
        known = np.isfinite(bottom) & np.isfinite(top)
        width[here] = np.maximum(np.subtract(top, bottom, out=np.zeros_like(x), where=known), LEAST_WIDTH)
        spare[here] = np.where(miss, out[here], inside[here])
        at_spare[here] = np.where(miss, at_out[here], at_inside[here])
        out[here], at_out[here] = np.where(miss, x, out[here]), np.where(miss, value, at_out[here])
        inside[here], at_inside[here] = np.where(miss, inside[here], x), np.where(miss, at_inside[here], value)
        sure = (bottom > levels[here]) & (x > lower[here])
        lower[here] = np.where(sure, x, lower[here])

    x, factor = np.clip(guess, low, high), np.full(len(rows), 2.0)
    open_rows = rows
    while len(open_rows):
        look(x[open_rows], open_rows)
        up, down = np.isinf(inside) & (out < high), (out == 0.0) & (inside > low)
        x = np.where(up, np.minimum(out * factor, high), np.where(down, np.maximum(inside / factor, low), x))
        factor = np.minimum(factor**2, 1e30)
        open_rows = np.flatnonzero(up | down)
    searched = (out > 0.0) & np.isfinite(inside)
    for _ in range(MOST_LOOKS):
        far = at_inside < -NEAR_WIDTHS * width
        here = np.flatnonzero(searched & far & (inside - out > LEAST_RELATIVE_BRACKET * inside))
        if not len(here):
            break
        share = _next_share(*(a[here] for a in (out, at_out, inside, at_inside, spare, at_spare, width)))
        x1, x2 = out[here], inside[here]
        place = np.where(x2 > 4.0 * x1, np.sqrt(x1) * np.sqrt(x2), x1 + share * (x2 - x1))
        look(np.where((place > x1) & (place < x2), place, x1 + 0.5 * (x2 - x1)), here)
    # From the upper end down, by the slope in the bracket, until the lower end of the function is above the level.
    with np.errstate(all="ignore"):
        slope = (at_out - at_inside) / (inside - out)
        step = np.where(slope > 0.0, 2.0 * (width - at_inside) / slope, 0.0)
    place = np.where(searched, inside, 0.0)
    step = np.maximum(np.where(np.isfinite(step), step, 0.0), 4.0 * LEAST_RELATIVE_BRACKET * place)
    for _ in range(MOST_LOOKS):
        here = np.flatnonzero(searched & (place - step > lower))
        if not len(here):
            break
        x = place[here] - step[here]
        lower[here] = np.where(ends(x, here)[0] > levels[here], x, lower[here])
        step[here] *= 4.0
    return np.minimum(lower, inside), np.where(inside <= high, inside, math.inf)


def _next_share(x1: Array, f1: Array, x2: Array, f2: Array, x3: Array, f3: Array, width: Array) -> Array:
    """Return where to look next, as shares of the brackets: inverse quadratic where that is safe, else the middle."""
    # The level that is aimed at lies below the true one by a part of what counts as close.
    aim, newest_is_out = 0.4 * NEAR_WIDTHS * width, f3 > 0.0
    with np.errstate(all="ignore"):
        near, far = np.where(newest_is_out, x1, x2), np.where(newest_is_out, x2, x1)
        a, b, c = np.where(newest_is_out, f1, f2) + aim, np.where(newest_is_out, f2, f1) + aim, f3 + aim
        place, height = (near - far) / (x3 - far), (a - b) / (c - b)
        smooth = (height * height < place) & ((1.0 - height) ** 2 < 1.0 - place)
        share = a / (b - a) * c / (b - c) + (x3 - near) / (far - near) * a / (c - a) * b / (c - b)
        share = np.where(newest_is_out, share, 1.0 - share)
        edge = np.minimum(0.5, LEAST_RELATIVE_BRACKET * x2 / (x2 - x1))
    return np.clip(np.where(smooth & np.isfinite(share), share, 0.5), edge, 1.0 - edge)
