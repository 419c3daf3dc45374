"""Compute integrals, roots and minima at any precision, for all reference values.

The errors of these results are not proved; :func:`evaluate_until_settled` compares results at two precisions.
"""

from collections.abc import Callable
from typing import Any

import mpmath as mp

Real = Any  # a float, an int, text or an ``mpf``

Function = Callable[..., Any]  # a function of such numbers that returns one

MOST_HALVINGS = 14  # halvings of the trapezoidal rule before ArithmeticError


def integrate_line(f: Function, start: Real = 0, step: Real = 1) -> Real:
    """Return ``int_-inf^inf f(t) dt`` of a positive smooth ``f`` with one maximum.

    The search for the maximum begins at ``start`` with the step ``step``. Raises :class:`ArithmeticError` if the
    trapezoidal sums do not converge.
    """
    top, width = _find_hill(f, mp.mpf(start), mp.mpf(step))
    right, left = _find_negligible(f, top, width), _find_negligible(f, top, -width)
    count = max(8, int(mp.ceil((right - left) / width)))
    h = (right - left) / count
    total = h * mp.fsum(f(left + h * j) for j in range(count + 1))
    for _ in range(MOST_HALVINGS):
        finer = (total + h * mp.fsum(f(left + h * (j + mp.mpf(1) / 2)) for j in range(count))) / 2
        if abs(finer - total) <= abs(finer) * mp.mpf(10) ** (-(mp.mp.dps // 2) - 1):
            return finer
        total, h, count = finer, h / 2, 2 * count
    raise ArithmeticError("the trapezoidal sums did not settle")


def _find_hill(f: Function, start: Real, step: Real) -> tuple[Real, Real]:
    """Return the approximate maximizer of ``f`` and the width of the maximum.

    At a distance of this width, ``f`` is smaller by about a factor e. The search begins at ``start`` with the step
    ``step``.
    """
    with mp.workdps(20):
        top, value = start, f(start)
        while step > mp.mpf(10) ** -30:
            places = (top + step, top - step, top + step / 2, top - step / 2)
            better = next(((x, y) for x in places if (y := f(x)) > value), None)
            if better is None:
                if max(f(top + step), f(top - step)) > value / 3:
                    return top, step
                step /= 4
                continue
            top, value, step = better[0], better[1], step * 2 if better[1] > 3 * value else step
    raise ArithmeticError("no hill was found")


def _find_negligible(f: Function, top: Real, stride: Real) -> Real:
    """Return a point beyond which ``f`` is negligible compared with its maximum ``f(top)``.

    It is to the right of ``top`` if ``stride`` is positive, else to the left.
    """
    least, x = f(top) * mp.mpf(10) ** (-mp.mp.dps - 3), top
    while f(x) > least or f(x + stride) > least:
        stride *= mp.mpf(5) / 4
        x += stride
    return x + stride


def integrate_below(f: Function, cut: Real, scale: Real = 1) -> Real:
    """Return ``int_-inf^cut f(t) dt`` for ``f`` that decays exponentially to the left.

    ``scale`` is about the distance over which ``f`` varies.
    """

    # t = cut - scale e^(s - e^-s) maps the whole line to the half line, and both ends decay fast.
    def integrand(s: Real) -> Real:
        away = scale * mp.exp(s - mp.exp(-s))
        return f(cut - away) * away * (1 + mp.exp(-s))

    return integrate_line(integrand)


def integrate_above(f: Function, cut: Real, scale: Real = 1) -> Real:
    """Return ``int_cut^inf f(t) dt`` for ``f`` that decays exponentially to the right.

    ``scale`` is about the distance over which ``f`` varies.
    """
    return integrate_below(lambda t: f(-t), -cut, scale)


def find_root(f: Function, start: Real, step: Real = 1) -> Real:
    """Return the root of a monotone ``f``, to nearly all digits.

    The search begins at ``start`` with the step ``step``. Raises :class:`ArithmeticError` if ``f`` does not change
    sign.
    """
    a, fa = mp.mpf(start), f(mp.mpf(start))
    step = mp.mpf(step)
    up, down = f(a + step), f(a - step)
    sign = 1 if abs(up) <= abs(down) or up * fa < 0 else -1
    b, fb = a + sign * step, up if sign > 0 else down
    while fa * fb > 0:
        step *= 2
        if step > mp.mpf(10) ** 9:
            raise ArithmeticError("no change of sign")
        a, fa, b = b, fb, b + sign * step
        fb = f(b)
    return root_in_bracket(f, a, fa, b, fb)


def root_in_bracket(f: Function, a: Real, fa: Real, b: Real, fb: Real) -> Real:
    """Return the root of ``f`` between ``a`` and ``b``, to nearly all digits.

    ``fa = f(a)`` and ``fb = f(b)`` must have different signs.
    """
    close = mp.mpf(10) ** (3 - mp.mp.dps)
    for step in range(2000):
        if fb == 0 or abs(b - a) <= close * (abs(a) + abs(b)):
            return b
        c = (a + b) / 2 if step % 4 == 3 else b - fb * (b - a) / (fb - fa)
        fc = f(c)
        if fc * fb < 0:
            a, fa = b, fb
        else:
            fa /= 2
        b, fb = c, fc
    raise ArithmeticError("the search for a root did not end")


def find_minimum(f: Function, low: Real, high: Real, points: int = 40) -> tuple[Real, Real]:
    """Return ``(x, f(x))`` at the minimum of ``f`` on ``[low, high]``.

    The search begins with a scan of ``points`` intervals. Nearly all digits of ``f(x)`` are correct, and nearly half of
    those of ``x``.
    """
    low, high = mp.mpf(low), mp.mpf(high)
    with mp.workdps(20):
        scan = [low + (high - low) * j / points for j in range(points + 1)]
        values = [f(x) for x in scan]
        best = min(range(points + 1), key=values.__getitem__)
        cell = _golden_bracket(f, scan[max(0, best - 1)], scan[min(points, best + 1)], (high - low) / 100000)
    refined = _newton_minimum(f, *cell, low, high)
    return min(((x, f(x)) for x in (refined, sum(cell) / 2, scan[best])), key=lambda pair: pair[1])


def _golden_bracket(f: Function, a: Real, b: Real, width: Real) -> tuple[Real, Real]:
    """Return a bracket of a minimum in ``[a, b]``, of length at most ``width``."""
    share = (mp.sqrt(5) - 1) / 2
    x, y = b - share * (b - a), a + share * (b - a)
    fx, fy = f(x), f(y)
    while b - a > width:
        if fx <= fy:
            b, y, fy = y, x, fx
            x = b - share * (b - a)
            fx = f(x)
        else:
            a, x, fx = x, y, fy
            y = a + share * (b - a)
            fy = f(y)
    return a, b


def _newton_minimum(f: Function, a: Real, b: Real, low: Real, high: Real) -> Real:
    """Return the minimizer of ``f`` near ``[a, b]``, limited to ``[low, high]``."""
    x, h = (a + b) / 2, (b - a) / 2
    least = (high - low) * mp.mpf(10) ** (-mp.mp.dps * 2 // 5)
    for _ in range(40):
        if x - h < low or x + h > high:
            return min(max(x, low), high)
        # x - h (f(x+h) - f(x-h)) / (2 (f(x+h) - 2 f(x) + f(x-h)))
        up, here, down = f(x + h), f(x), f(x - h)
        bend = up - 2 * here + down
        change = -h * (up - down) / (2 * bend) if bend > 0 else mp.mpf(0)
        change = max(min(change, b - a), a - b)
        x += change
        if h <= least:
            return min(max(x, low), high)
        h = max(least, min(abs(change), h / 100))
    return x


def evaluate_until_settled(value: Callable[[], Any], digits: int, extra: int = 8, grown: int = 15) -> Real:
    """Return ``value()`` once two precisions agree to ``digits`` decimal digits.

    The first precision is ``digits + extra`` decimal digits, and the second one has ``grown`` digits more. Raises
    :class:`ArithmeticError` if no two successive results agree.
    """
    # The increase doubles each time.
    with mp.workdps(digits + extra):
        last = value()
    for attempt in range(1, 6):
        with mp.workdps(digits + extra + grown * 2 ** (attempt - 1)):
            now = value()
            if now == last or abs(now - last) <= abs(now) * mp.mpf(10) ** -digits:
                return now
        last = now
    raise ArithmeticError(f"two precisions never agreed to {digits} digits")
