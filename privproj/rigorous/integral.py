"""Rigorous integrals over the line (Petras' algorithm in Arb), with what lies beyond the window bounded (C21)."""

from collections.abc import Callable

from flint import acb, arb, ctx

from privproj.numerics.quadrature import climb_hill
from privproj.rigorous.balls import GOAL_BITS, log_of_upper_end

GUARD_BITS = 16
"""Bits beyond the goal to which an integral is computed. Speed only."""

Integrand = Callable[[acb, bool], acb]
"""``f(t, analytic)`` encloses a function on a complex ball ``t``.

With ``analytic`` it must not be finite unless the function is analytic on the whole ball.
"""

Remainder = Callable[[arb], arb]
"""``bound(t)`` is an upper bound of the integral beyond ``t``."""


def positive_integral(
    f: Integrand,
    start: float,
    step: float,
    *,
    left: Remainder,
    right: Remainder,
    high: arb | None = None,
    known: arb | None = None,
    goal: int = GOAL_BITS,
) -> arb:
    """Return a ball that holds ``int f`` for a function that is non-negative on the line.

    Its one hill is sought from ``start`` in steps of ``step``, which only decides how narrow the ball is. ``left(t)``
    bounds the integral below ``t`` and ``right(t)`` the one above, unless it ends at ``high``. What does not matter
    beside ``known``, to which the integral will be added, is not followed. ``goal`` is the relative accuracy that is
    sought, in bits.
    """
    top, peak = _find_top(f, start, step, float("inf") if high is None else float(high.mid()))
    if peak == float("-inf"):
        return arb.nan()
    floor = peak - 0.7 * (goal + 24) - 10.0
    a = _search_outward(left, top, -step, floor)
    b = _search_outward(right, top, step, floor) if high is None else high.lower()
    scale = arb(peak).exp()
    tolerance = arb(2) ** -(goal + GUARD_BITS)
    enough = tolerance if known is None else (tolerance * known.lower() / scale).max(tolerance)
    # After 20,000 evaluations an integral is left as wide as it is (speed only).
    # int f = scale int_a^b f/scale + [0, what is beyond the window and at ends that are balls]
    inside = acb.integral(
        lambda t, analytic: f(t, analytic) / scale, a, b, rel_tol=tolerance, abs_tol=enough, eval_limit=20_000
    ).real
    # An end that is a ball may hold as much as its width allows.
    above = right(b) if high is None else 2 * arb(high.rad()) * f(acb(high), False).real.upper()
    return scale * inside + arb(0).union(left(a) + above)


def _find_top(f: Integrand, start: float, step: float, high: float) -> tuple[float, float]:
    """Return a point near the top of the hill below an end, and the log of the height there, to guide the rest."""

    def height(t: float) -> float:
        with ctx.workprec(64):
            return log_of_upper_end(f(acb(t), False).real)

    return climb_hill(height, min(start, high - 0.01 * step), step, high)


def _search_outward(bound: Remainder, top: float, stride: float, floor: float) -> arb:
    """Return a point beyond ``top``, towards ``stride``, where the log of the remainder is below ``floor``."""

    def enough(t: float) -> bool:
        with ctx.workprec(64):
            return log_of_upper_end(bound(arb(t))) < floor

    inside, t = top, top + stride
    for _ in range(60):
        if enough(t):
            break
        inside, stride = t, 1.5 * stride
        t += stride
    for _ in range(5):
        middle = 0.5 * (inside + t)
        inside, t = (inside, middle) if enough(middle) else (middle, t)
    return arb(t)
