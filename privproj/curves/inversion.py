"""A curve read both ways as exact inverses: ``delta(epsilon(d)) <= d`` and ``epsilon(delta(e)) <= e``, not nearly so.

Two searches in floating point are inverses only up to rounding, and rounding differs between processors. Here both
laws hold by construction (claim C24). Let ``D(e)`` be the upper end of ``ln delta`` as the curve evaluates it, a pure
function of ``e``, and ``H`` a lattice of log deltas. The answers are

    epsilon(d) = E(h)  with h the largest point of H with value(h) <= d,  and  D(E(h)) <= h, checked;
    delta(e)   = value(h)  with h the first point of H, from D(e) upwards, that has E(h) <= e.

*First law.* Let ``e = E(h)``. The point ``h`` has ``D(e) <= h`` and ``E(h) <= e``, so the first such point from
``D(e)`` upwards is at most ``h``, and ``value(h) <= d``. *Second law.* ``delta(e) = value(h)`` with ``E(h) <= e``, and
the largest point whose value is at most ``value(h)`` is ``h``. Nothing is asked of ``D`` or ``E`` beyond that: neither
monotonicity nor a small error (but see :data:`FINE_STEPS`, and :func:`_leads_with_epsilon`).
"""

import math
from collections.abc import Callable, Iterator

from privproj.curves.profile import Curve
from privproj.errors import PrivprojError
from privproj.numerics.enclosure import Enclosure, next_up
from privproj.runs import FullTarget, Target

LEAST_LOG_VALUE = math.log(1e-300)
"""Log deltas below are answered by their logarithm alone. Contract."""

DEFAULT_SPACING = 2.0**-20
"""Points of ``H`` are so far apart where a curve does not say: 1e-6 of delta. Speed only."""

LARGE_LOG_DELTA = 2.0**16
"""Beyond this ``|ln delta|`` the lattice is :data:`COARSE_LATTICE_FACTOR` times as wide, so that its points are
doubles. Proof.
"""

COARSE_LATTICE_FACTOR = 2.0**12
"""Factor of the lattice beyond :data:`LARGE_LOG_DELTA`: 53 bits hold every point up to 2^28. Proof."""

FINE_STEPS = 256
"""So many neighbours are tried one after the other, then more distant ones. The first law holds up to there. Proof."""

NEARLY_ZERO_EPSILON = 1e-6
"""Below this epsilon 0 itself is tried: searches end just beside it. Speed only."""

FIRST_STEP = 1e-3
"""First relative step upwards where an inverse fell short, as a share of the lattice's spacing. Speed only."""

POINTS_BACK = 8.0
"""Points below the end of a search for an inverse from which candidates are tried.

The first law rests on it, where that search is right to so many points. Proof.
"""

LOOSE_POINTS = 32.0
"""An epsilon whose delta lies so many points below the one asked for is tightened to its last bit. Speed only."""

WIDTHS_APART = 8.0
"""How many widths of the enclosure two values differ when the cheap test decides; any number above 2 will do. Proof."""


def _spacing_of(curve: Curve, log_delta: float) -> float:
    """Distance of the points of ``H`` at this log delta; a power of two."""
    own = float(getattr(curve, "inverse_spacing", DEFAULT_SPACING))
    return own * COARSE_LATTICE_FACTOR if log_delta < -LARGE_LOG_DELTA else own


def delta_value(log_delta: float) -> float:
    """``e^h`` rounded up, at most 1 and never below 1e-300: the delta that is printed for a point ``h`` of ``H``."""
    return min(1.0, next_up(math.exp(max(log_delta, LEAST_LOG_VALUE))))


def log10_value(log_delta: float) -> float:
    """``h / ln 10`` rounded up: the ``log10_delta`` that is printed for a point ``h`` of ``H``."""
    return min(0.0, log_delta / math.log(10.0) + 8e-16 * abs(log_delta))


def floor_log_delta(curve: Curve, target: Target) -> float:
    """The largest point ``h`` of ``H`` whose printed value is at most the target, a delta or its logarithm."""
    asked = None if target.by_log else target.delta

    def allowed(point: float) -> bool:
        return log10_value(point) <= target.log10_delta if asked is None else delta_value(point) <= asked

    near = target.log_delta
    step = _spacing_of(curve, near)
    point = math.floor(near / step) * step
    while point + step <= 0.0 and allowed(point + step):
        point += step
    while not allowed(point) and (asked is None or point > LEAST_LOG_VALUE):
        point -= step
    return point


def _points_above(curve: Curve, log_delta: float) -> Iterator[float]:
    """The points of ``H`` from this log delta upwards: :data:`FINE_STEPS` neighbours, then ever sparser, last 0."""
    step, count = _spacing_of(curve, log_delta), 0
    point = math.ceil(log_delta / step) * step
    while point < 0.0:
        yield point
        count += 1
        point += step if count < FINE_STEPS else step * 2.0 ** (count - FINE_STEPS)
    yield 0.0


def epsilon_at(curve: Curve, log_delta: float) -> Enclosure:
    """``E(h)``: the curve's own inverse, moved up until ``D(E(h)) <= h``; the lower end as the curve has it."""
    found = curve.epsilon(log_delta)
    if found.upper == math.inf or _leads_with_epsilon(curve):
        return found
    if found.upper < NEARLY_ZERO_EPSILON and curve.log_delta(0.0).upper <= log_delta:
        return Enclosure(0.0, 0.0)

    def passes(e: float) -> bool:
        return curve.log_delta(e).upper <= log_delta

    spacing = _spacing_of(curve, log_delta)
    eps = smallest_passing(passes, found.upper, max(1e-15, FIRST_STEP * spacing))
    if eps < math.inf and log_delta - curve.log_delta(eps).upper > LOOSE_POINTS * spacing:
        eps = _tighten_to_last_bit(passes, eps)
    return Enclosure(min(found.lower, eps), eps)


def _tighten_to_last_bit(passes: Callable[[float], bool], x: float) -> float:
    """The last double before ``passes`` turns false, downwards from ``x``, which passes; by halving a bracket."""
    low, step = x, 2.0**-52
    while passes(low) and step < 1.0:
        x, low, step = low, x * (1.0 - step), 4.0 * step
    while not passes(low) and low < (middle := 0.5 * (low + x)) < x:
        low, x = (low, middle) if passes(middle) else (middle, x)
    return x


def read_epsilon(curve: Curve, target: Target) -> Enclosure:
    """``epsilon(d)``, and a lower end of the curve's exact inverse at ``d`` itself, which ``h`` lies a little below."""
    found = epsilon_at(curve, floor_log_delta(curve, target))
    if not 0.0 < found.lower < math.inf:
        return found
    if curve.log_delta(found.lower).lower == -math.inf:
        return Enclosure(min(curve.epsilon(target.log_delta).lower, found.lower), found.upper)
    lower, step = found.lower, 1e-15
    while lower > 0.0 and curve.log_delta(lower).lower < target.log_delta:
        lower, step = lower * (1.0 - min(step, 1.0)), 8.0 * step
    return Enclosure(lower, found.upper)


def smallest_passing(passes: Callable[[float], bool], start: float, step: float = 1e-15) -> float:
    """``start``, moved up by as little as makes ``passes`` true: by ``step`` relative, four times that, and so on.

    ``inf`` where nothing up to 1e18 passes.
    """
    x = start
    while not passes(x):
        x = max(x * (1.0 + step), 1e-15)
        step *= 4.0
        if x > 1e18:
            return math.inf
    return x


def read_log_delta(curve: Curve, eps: float) -> Enclosure:
    """``ln delta(e)``: its upper end is the first point ``h`` of ``H`` from ``D(e)`` upwards with ``E(h) <= e``."""
    found = curve.log_delta(eps)
    start = found.upper
    if _leads_with_epsilon(curve):
        start -= POINTS_BACK * _spacing_of(curve, start)
    inside = (p for p in _points_above(curve, start) if p == 0.0 or _is_answered_within(curve, eps, p, found.upper))
    return Enclosure(found.lower, next(inside))


def _leads_with_epsilon(curve: Curve) -> bool:
    """True for a rule ``eps(delta)`` whose ``log_delta`` is a search for its inverse.

    There ``E`` needs no check: ``E(h) <= e`` is itself the proof of ``(e, e^h)``. The delta of ``e`` is the first
    point with it, from a little below where that search ended.
    """
    return bool(getattr(curve, "leads_with_epsilon", False))


def _is_answered_within(curve: Curve, eps: float, log_delta: float, known: float) -> bool:
    """True unless the curve, asked for its epsilon at this point, answers a number above ``eps``.

    Where it has no answer the point will do only if ``D(e)``, which is ``known``, is not above it.
    """
    try:
        return is_certainly_inside(curve, eps, log_delta) or epsilon_at(curve, log_delta).upper <= eps
    except PrivprojError:  # no answer there, so none that contradicts, and none that proves
        return log_delta >= known


def is_certainly_inside(curve: Curve, eps: float, log_delta: float) -> bool:
    """True where ``E(h) <= e`` is known without a search: from the accuracy ``rtol`` that the curve's inverse states.

    The curve found ``D(x) > h`` at some ``x >= E(h) (1 - rtol)``, so the true profile there is above ``h`` less the
    width of one enclosure, which is at most :data:`WIDTHS_APART` times that at ``e' = e (1 - 4 rtol)``. Where it is
    below that already at ``e'``, ``x`` lies further left, as the true profile falls.
    """
    rtol = getattr(curve, "inverse_rtol", None)
    if rtol is None or eps <= 0.0:
        return False
    before = curve.log_delta(eps * (1.0 - 4.0 * rtol))
    return before.upper + WIDTHS_APART * (before.upper - before.lower) < log_delta


def meets(curve: Curve, target: FullTarget) -> bool:
    """True where both readings keep to the target: asked for its epsilon or its delta, the curve answers no more."""
    point = floor_log_delta(curve, target)
    if epsilon_at(curve, point).upper > target.epsilon:
        return False
    return _leads_with_epsilon(curve) or curve.log_delta(target.epsilon).upper <= point
