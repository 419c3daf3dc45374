"""A curve read both ways: ``delta(epsilon(d)) <= d`` and ``epsilon(delta(e)) <= e`` hold without any tolerance.

Two searches in floating point are inverses only up to rounding, and rounding differs between processors. Here both
laws hold by construction (claim C24). ``D(e)`` is the upper end of ``ln delta`` as the curve evaluates it at the
epsilon ``e``, a pure function. ``H`` is a lattice of log deltas, and ``value(h)`` the delta that is printed for its
point ``h`` (:func:`delta_value`, or :func:`log10_value`). ``E(h)`` is the curve's own inverse, moved up until
``D(E(h)) <= h`` was evaluated. The answers are

    epsilon(d) = E(h)      where h is the largest point of H with value(h) <= d,
    delta(e)   = value(h)  where h is the first point of H, from D(e) upwards, with E(h) <= e.

*First law.* Let ``e = E(h)``. Then ``D(e) <= h`` and ``E(h) <= e``, so the first such point from ``D(e)`` upwards is at
most ``h``, and ``value(h) <= d``. *Second law.* ``delta(e) = value(h)`` with ``E(h) <= e``, and the largest point whose
value is at most ``value(h)`` is ``h``. Nothing else is asked of ``D`` or ``E``: neither monotonicity nor a small error
(but see :data:`FINE_STEPS`, and :func:`leads_with_epsilon`).
"""

import math
from collections.abc import Callable, Iterator

from privproj.curves.profile import Curve, log_delta_unless
from privproj.errors import PrivprojError
from privproj.numerics.enclosure import Enclosure, LateEnclosure, next_up
from privproj.runs.targets import FullTarget, Target

LEAST_LOG_VALUE = math.log(1e-300)
"""Log deltas below this are answered by their logarithm alone. Contract."""

DEFAULT_SPACING = 2.0**-20
"""Distance of the points of ``H`` where a curve does not say its own: a relative 1e-6 of delta. Speed only."""

LARGE_LOG_DELTA = 2.0**16
"""``|ln delta|`` beyond which the lattice is coarser by :data:`COARSE_LATTICE_FACTOR`.

Its points must be doubles. Soundness.
"""

COARSE_LATTICE_FACTOR = 2.0**12
"""How much wider the lattice is beyond :data:`LARGE_LOG_DELTA`: 53 bits then hold every point up to 2^28. Soundness."""

FINE_STEPS = 256
"""How many candidates for ``delta(e)`` are neighbours in ``H``; those beyond are ever further apart.

The first law holds as long as a curve's own inverse is right to so many points. Soundness.
"""

POINTS_BACK = 8.0
"""How many points below the end of a search for delta the first candidate lies, for a rule that leads with epsilon.

The first law needs that search to be right to so many points. Soundness.
"""

WIDTHS_APART = 8.0
"""How many widths of the enclosure apart two values must be for the test that saves a search to decide (C24).

It rests on the width changing by less than this factor over a few roundings of epsilon, which is observed, not proved
(docs/proofs.md, what is only observed). Soundness (measured).
"""


def spacing_of(curve: Curve, log_delta: float) -> float:
    """Distance of the points of ``H`` at this natural log of delta; a power of two."""
    spacing = float(getattr(curve, "inverse_spacing", DEFAULT_SPACING))
    return spacing * COARSE_LATTICE_FACTOR if log_delta < -LARGE_LOG_DELTA else spacing


def delta_value(log_delta: float) -> float:
    """The delta that is printed for a point ``h`` of ``H``: ``e^h`` rounded up, at most 1 and at least 1e-300."""
    return min(1.0, next_up(math.exp(max(log_delta, LEAST_LOG_VALUE))))


def log10_value(log_delta: float) -> float:
    """The ``log10_delta`` that is printed for a point ``h`` of ``H``: ``h / ln 10`` rounded up, at most 0."""
    return min(0.0, log_delta / math.log(10.0) + 8e-16 * abs(log_delta))


def floor_log_delta(curve: Curve, target: Target) -> float:
    """The largest point ``h`` of ``H`` whose printed value is at most the target's delta, or its ``log10_delta``."""
    asked = None if target.by_log else target.delta

    def allowed(point: float) -> bool:
        return log10_value(point) <= target.log10_delta if asked is None else delta_value(point) <= asked

    near = target.log_delta
    step = spacing_of(curve, near)
    point = math.floor(near / step) * step
    while point + step <= 0.0 and allowed(point + step):
        point += step
    while not allowed(point) and (asked is None or point > LEAST_LOG_VALUE):
        point -= step
    return point


def _points_above(curve: Curve, log_delta: float) -> Iterator[float]:
    """The points of ``H`` from this log delta upwards: :data:`FINE_STEPS` neighbours, then ever sparser, at last 0."""
    step, count = spacing_of(curve, log_delta), 0
    point = math.ceil(log_delta / step) * step
    while point < 0.0:
        yield point
        count += 1
        point += step if count < FINE_STEPS else step * 2.0 ** (count - FINE_STEPS)
    yield 0.0


def epsilon_at(curve: Curve, log_delta: float) -> Enclosure:
    """``E(h)`` in nats for the log delta ``h``: the curve's own inverse, moved up until ``D(E(h)) <= h`` (C24).

    The lower end is the curve's own. So is the upper end where it is ``inf``, or where the curve leads with epsilon.
    """
    ends = curve.epsilon(log_delta)
    eps = _raise_to_pass(curve, log_delta, ends.upper)
    return LateEnclosure(lambda: ends.lower, eps)


def _raise_to_pass(curve: Curve, log_delta: float, upper: float) -> float:
    """The end ``upper`` of a curve's own inverse, moved up until ``D(E(h)) <= h`` (C24)."""
    if upper == math.inf or leads_with_epsilon(curve):
        return upper

    def passes(e: float) -> bool:
        return log_delta_unless(curve, e, log_delta) <= log_delta

    # Below this epsilon 0 itself is tried, as searches end just beside it. Speed only.
    if upper < 1e-6 and passes(0.0):
        return 0.0
    spacing = spacing_of(curve, log_delta)
    # First relative step upwards where an inverse fell short, as a share of the lattice's spacing. Speed only.
    eps = smallest_passing(passes, upper, max(1e-15, 1e-3 * spacing))
    # An epsilon whose delta lies more points than this below the one asked for is tightened. Speed only.
    if eps < math.inf and log_delta - curve.log_delta(eps).upper > 32.0 * spacing:
        eps = _tighten_to_last_bit(passes, eps)
    return eps


def _tighten_to_last_bit(passes: Callable[[float], bool], x: float) -> float:
    """The last double that passes on the way down from ``x``, which passes; found by halving a bracket."""
    low, step = x, 2.0**-52
    while passes(low) and step < 1.0:
        x, low, step = low, x * (1.0 - step), 4.0 * step
    while not passes(low) and low < (middle := 0.5 * (low + x)) < x:
        low, x = (low, middle) if passes(middle) else (middle, x)
    return x


def read_epsilon(curve: Curve, target: Target) -> Enclosure:
    """``epsilon(d)`` in nats, as the module docstring says, with a lower end of the curve's exact inverse (C24).

    The lower end is of the inverse at ``d`` itself, as ``h`` lies a little below ``ln d``.
    """
    answer = epsilon_at(curve, floor_log_delta(curve, target))
    return LateEnclosure(lambda: _epsilon_below(curve, target, answer), answer.upper)


def _epsilon_below(curve: Curve, target: Target, answer: Enclosure) -> float:
    """The lower end of :func:`read_epsilon`, from what was answered at ``h``."""
    lower, step = answer.lower, 1e-15
    if not 0.0 < lower < math.inf:
        return lower
    ends = curve.log_delta(lower)
    if ends.lower == -math.inf:
        return min(curve.epsilon(target.log_delta).lower, lower)
    # Between both epsilons ln delta falls by about the width of its enclosure, and by that of h at first.
    fall, missing = ends.upper - ends.lower, target.log_delta - ends.lower
    if 0.0 < missing < math.inf and 0.0 < fall < math.inf:
        step = min(max(step, 1.1 * missing / fall * (answer.upper / lower - 1.0)), 1e-3)
    while lower > 0.0 and curve.log_delta(lower).lower < target.log_delta:
        lower, step = lower * (1.0 - min(step, 1.0)), 8.0 * step
    return lower


def smallest_passing(
    passes: Callable[[float], bool], start: float, step: float = 1e-15, largest: float = 1e18
) -> float:
    """The first number from ``start`` up to the ``largest`` that was tried and ``passes``; ``inf`` where none does.

    The tries go up by a relative ``step``, then by four times that, and so on.
    """
    x = start
    while x <= largest:
        if passes(x):
            return x
        x = max(x * (1.0 + step), 1e-15)
        step *= 4.0
    return math.inf


def read_log_delta(curve: Curve, eps: float) -> Enclosure:
    """``ln delta(e)`` for ``e`` in nats: its upper end is the first point ``h`` of ``H`` with ``E(h) <= e`` (C24).

    Points are tried from ``D(e)`` upwards, or from a little below where the curve leads with epsilon. The printed delta
    is ``value(h)``. The lower end is the curve's.
    """
    ends = curve.log_delta(eps)
    start = ends.upper
    if leads_with_epsilon(curve):
        start -= POINTS_BACK * spacing_of(curve, start)
    inside = (p for p in _points_above(curve, start) if p == 0.0 or _is_answered_within(curve, eps, p, ends.upper))
    return LateEnclosure(lambda: ends.lower, next(inside))


def leads_with_epsilon(curve: Curve) -> bool:
    """True for a rule ``eps(delta)`` whose ``log_delta`` is a search for its inverse (C24).

    There ``E`` needs no check: ``E(h) <= e`` is itself the proof of ``(e, e^h)``. ``delta(e)`` is the first point with
    ``E(h) <= e``, from a little below where that search ended.
    """
    return bool(getattr(curve, "leads_with_epsilon", False))


def _is_answered_within(curve: Curve, eps: float, log_delta: float, upper: float) -> bool:
    """True where ``E(h) <= e`` for the point ``log_delta`` and ``eps``.

    Where the curve has no answer for that point, it will do if ``D(e)``, which is ``upper``, is not above it.
    """
    try:
        return is_certainly_inside(curve, eps, log_delta) or epsilon_at(curve, log_delta).upper <= eps
    except PrivprojError:  # no answer there, so none that contradicts, and none that proves
        return log_delta >= upper


def is_certainly_inside(curve: Curve, eps: float, log_delta: float) -> bool:
    """True where ``E(h) <= e`` is known without a search, from the accuracy ``rtol`` that the curve's inverse states.

    The search for ``E(h)`` evaluated ``D(x) > h`` at some ``x >= E(h) (1 - rtol)``. So the true profile at ``x`` is
    above ``h`` less the width of the enclosure there, which is taken to be at most :data:`WIDTHS_APART` times that at
    ``e' = e (1 - 4 rtol)``. Where the profile is below that at ``e'`` already, ``x < e'``, as the true profile falls.
    Then ``E(h) < e`` (C24, "A test that saves a search").
    """
    rtol = getattr(curve, "inverse_rtol", None)
    if rtol is None or eps <= 0.0:
        return False
    # D(e') + WIDTHS_APART (width at e') < h
    before = curve.log_delta(eps * (1.0 - 4.0 * rtol))
    return before.upper + WIDTHS_APART * (before.upper - before.lower) < log_delta


def meets(curve: Curve, target: FullTarget) -> bool:
    """True where both readings keep to the target, ``epsilon(d) <= e`` and ``delta(e) <= d`` (C24, "Calibration")."""
    point = floor_log_delta(curve, target)
    inside = is_certainly_inside(curve, target.epsilon, point)
    if not inside and epsilon_at(curve, point).upper > target.epsilon:
        return False
    return leads_with_epsilon(curve) or log_delta_unless(curve, target.epsilon, point) <= point


def log_excess(curve: Curve, target: FullTarget) -> float:
    """``ln delta(eps) - ln delta`` at a target, from above; where it is below 0, any bound of it that is so too.

    Of a rule that leads with epsilon, whose delta is a search, it is ``ln epsilon(delta) - ln eps``.
    """
    if leads_with_epsilon(curve) and target.epsilon > 0.0:
        eps = curve.epsilon(floor_log_delta(curve, target)).upper
        # The least epsilon whose log guides a search. Speed only.
        return math.log(max(eps, 1e-300) / target.epsilon)
    return log_delta_unless(curve, target.epsilon, target.log_delta) - target.log_delta
