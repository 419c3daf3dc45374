"""The curve of a run on a grid of losses: which grid, and which way to compose on it.

:mod:`privproj.composition.dominating_pairs` brackets one step between a dominating and a dominated pair (C18).
:mod:`privproj.composition.fourier` composes both with every error bounded (C19), so that they enclose the exact value
of the bound. :mod:`privproj.composition.repeated_squaring` does so where the losses have many scales (C23).
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial

from privproj.composition.dominating_pairs import REMEDY, TRUNCATED_RUN_MASS, DominatingPair, Outline
from privproj.composition.fourier import MOST_FFT_CELLS, QUICK_FFT_CELLS, LatticeComposition
from privproj.composition.repeated_squaring import DoubledCurve, compose_laws, first_bounds, law_from_pair
from privproj.errors import GridLimit, PrecisionLimit
from privproj.numerics.interval import Enclosure, LateEnclosure, next_up

LARGEST_GRID_STEP = 10.0
"""Largest distance of two lattice points, in nats; a coarser grid is refused. Contract."""

MOST_COARSENINGS = 8
"""How many times a default grid is made coarser before the question is refused. Contract."""

LOOSE_SHARE = 0.03
"""Share of an upper end of delta that may be error before another way to compose is asked too. Any is sound; that of
doubling costs about a hundredth of epsilon. Speed only."""

LEAST_DOUBLED_CUT = 1e-100
"""Least mass at which tails may be cut in a composition by doubling, whose products underflow further down.

Soundness.
"""

MOST_DEFAULT_CELLS = 2.0**29
"""Cells that the default grid may have in 24 deviations of the composed loss, else it is coarser. Speed only."""

SMALLEST_COMPOSED_DELTA = 1e-300
"""Smallest upper end of a delta whose log is taken. Larger than what it replaces, so bounds only grow. Soundness."""


PairOrder = list[tuple[DominatingPair, int]]
"""The pairs of a run in one order (remove or add), one to a phase, each with its number of steps."""

BelowOrder = Callable[[], LatticeComposition | DoubledCurve]
"""Makes the lower bounds of one order."""


@dataclass(frozen=True)
class ComposedCurve:
    """The curve of a composed run: the larger of its orders, each from above and, where known, from below.

    Its soundness is that of the pairs (C18) and of what composed them (C19 or C23).
    """

    above: tuple[LatticeComposition | DoubledCurve, ...]
    """Upper bounds of delta: of the remove order and, unless both orders are the same, of the add order."""

    compose_below: "Callable[[], tuple[BelowOrder, ...]]"
    """Finds what makes lower bounds of delta, each of one of these orders; none where none is known."""

    numerics: dict[str, object]
    """What an answer says about how it was computed."""

    @cached_property
    def below(self) -> "tuple[BelowOrder, ...]":
        """What :attr:`compose_below` finds, once it is asked for; each order is composed once."""
        return tuple(cache(make) for make in self.compose_below())

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)`` (``eps`` in nats), enclosed: the value of each order with its error on the safe side."""
        return LateEnclosure(lambda: self.log_delta_below(eps), math.log(min(self.upper_end(eps)[0], 1.0)))

    def upper_end(self, eps: float) -> tuple[float, float]:
        """The upper end of delta at ``eps`` (nats), and how much of it is error or infinite."""
        # upper = max over orders of value + error + infinite part
        upper = SMALLEST_COMPOSED_DELTA, 0.0
        for order in self.above:
            if order is self.above[0] or not order.chernoff(eps) < math.log(upper[0]):
                upper = max(upper, _upper_end(order, eps))
        return upper

    def is_loose(self, eps: float) -> bool:
        """True where more than :data:`LOOSE_SHARE` of the upper end of delta is error, or what counts as infinite."""
        upper, error = self.upper_end(eps)
        return error > LOOSE_SHARE * upper

    def log_delta_below(self, eps: float) -> float:
        """The lower end of :meth:`log_delta`, ``-inf`` where none is known."""
        # lower = max over orders of value - error; of an order whose upper bound is smaller it is not asked
        lower = 0.0
        for make, above in zip(self.below, self.above, strict=False):
            if lower <= 0.0 or not (above.chernoff(eps) < math.log(lower) or _upper_end(above, eps)[0] < lower):
                finite = make().delta(eps)
                lower = max(lower, finite.value - finite.error)
        return math.log(lower) if lower > 0.0 else -math.inf

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats, enclosed; raises :class:`PrecisionLimit` where infinite losses alone exceed delta.

        By doubling that is a :class:`GridLimit`, as a lattice may follow losses that are too far there.
        """
        delta = math.exp(log_delta)
        infinite = max(c.infinity_mass for c in self.above)
        if delta <= infinite:
            raise (GridLimit if self.numerics is DOUBLED_NUMERICS else PrecisionLimit)(
                f"expected a delta above {infinite:.1e}, which losses too large for double precision may cost, "
                f"got {delta:.3g}; {REMEDY}"
            )
        # The larger epsilon of both orders. The second order is only solved where its delta at the first epsilon is
        # above delta.
        upper, worst = self.above[0].epsilon(delta, above=True), 0
        for order in self.above[1:]:
            if order.chernoff(upper) > log_delta and _upper_end(order, upper)[0] > delta:
                upper, worst = max((upper, 0), (order.epsilon(delta, above=True), 1))
        upper = next_up(upper) if upper else 0.0
        return LateEnclosure(lambda: self.epsilon_below(delta, upper, worst), upper)

    def epsilon_below(self, delta: float, upper: float, order: int) -> float:
        """The lower end of :meth:`epsilon`, from the upper one and the order that has it; ``-inf`` where it is unknown.

        ``order`` is an index of :attr:`above`.
        """
        if upper == 0.0:
            return 0.0
        if not self.below:
            return -math.inf
        return self.below[min(order, len(self.below) - 1)]().epsilon(delta, above=False, near=upper)


def _upper_end(order: LatticeComposition | DoubledCurve, eps: float) -> tuple[float, float]:
    """An upper bound of the delta of one order at ``eps`` (nats), and how much of it is error or infinite."""
    finite = order.delta(eps)
    error = finite.error + order.infinity_mass
    return finite.value + error, error


def lower_end(ends: Enclosure) -> float:
    """The lower end of what one curve answers, or ``-inf`` where it would take too much memory or time."""
    try:
        return ends.lower
    except GridLimit:
        return -math.inf


DOUBLED_NUMERICS: dict[str, object] = {"composer": "privproj", "grid": "a grid that follows the losses"}
"""What an answer by doubling says about how it was computed."""


class GridCurve:
    """The curve on the lattice that was asked for, or on the default one.

    The latter is by doubling where the losses have many scales. A question that takes too much work in the first way is
    answered in the second, then on coarser and coarser lattices. One whose answer on a lattice is loose, as
    where rare large losses stand beside many small ones and no tilt holds both, is answered by the next way if that is
    better. Every question starts with the first way, and its lower end with that of its upper end, so that its answer
    does not depend on what was asked before (C24). All ways are sound.
    """

    def __init__(self, shapes: list[Outline], step: float | None = None) -> None:
        self.shapes, self.most_fft = shapes, MOST_FFT_CELLS if step else QUICK_FFT_CELLS
        # The ways to compose (levels), in the order of trial: a lattice's step in nats, or 0 for doubling.
        self.steps = [step] if step else _default_ways(shapes)
        self.compose_level = cache(self._compose_level)
        self.used = 0

    @property
    def numerics(self) -> dict[str, object]:
        """How the last answer was computed: the composer, and the grid."""
        return self.level(self.used).numerics if self.steps[self.used] else DOUBLED_NUMERICS

    def level(self, level: int) -> ComposedCurve:
        """The curve on the lattice with the step ``steps[level]``, or by doubling where that is 0."""
        curve = self.compose_level(level)
        if isinstance(curve, PrecisionLimit):
            raise curve
        return curve

    def _compose_level(self, level: int) -> ComposedCurve | PrecisionLimit:
        """The same, or why there is none; kept, so that what takes too much work is not tried at every epsilon."""
        step = self.steps[level]
        try:
            return compose_on_lattice(self.shapes, step, self.most_fft) if step else _compose_adaptively(self.shapes)
        except PrecisionLimit as error:
            return error

    def log_delta(self, eps: float, enough: float = -math.inf) -> Enclosure:
        """``ln delta(eps)``, enclosed, composed in the first way that does not take too much work.

        An upper end that is at most ``enough`` may be loose.
        """
        return self.answer(lambda curve: curve.log_delta(eps), lambda _: eps, enough)

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats, enclosed, composed in the first way that does not take too much work."""
        return self.answer(lambda curve: curve.epsilon(log_delta), lambda ends: ends.upper)

    def answer(
        self,
        read: Callable[[ComposedCurve], Enclosure],
        epsilon_of: Callable[[Enclosure], float],
        enough: float = -math.inf,
    ) -> Enclosure:
        """What ``read`` finds on the first curve that raises no :class:`PrecisionLimit`; the last one may raise it.

        Where that is above ``enough`` and loose at the epsilon of what it finds, the next that answers is asked too, as
        long as this finds less, and the least counts. Near an epsilon from which on it is loose, the two readings may
        come from different ways: the doors move an answer until it holds when asked back (C24).
        """
        self.used, ends = self.first_answer(read, 0)
        # What cannot be looked at more closely stands as it was found.
        with suppress(PrecisionLimit):
            while self.used + 1 < len(self.steps) and ends.upper > enough:
                if not self.level(self.used).is_loose(epsilon_of(ends)):
                    break
                level, other = self.first_answer(read, self.used + 1)
                if other.upper > ends.upper:
                    break
                self.used, ends = level, other
        first = self.used
        return LateEnclosure(lambda: self.answer_below(ends, read, first), ends.upper)

    def first_answer(self, read: Callable[[ComposedCurve], Enclosure], level: int) -> tuple[int, Enclosure]:
        """The first level from this one on that raises no :class:`PrecisionLimit`, and what ``read`` finds there.

        On a coarser lattice fewer losses may count as infinite.
        """
        failures: list[PrecisionLimit] = []
        for number in range(level, len(self.steps)):
            try:
                return number, read(self.level(number))
            except PrecisionLimit as error:
                failures.append(error)
        # That losses are infinite says more than that a grid takes too much work.
        raise next((error for error in failures if not isinstance(error, GridLimit)), failures[-1])

    def answer_below(self, ends: Enclosure, read: Callable[[ComposedCurve], Enclosure], first: int) -> float:
        """The lower end of ``ends``, which were read at this level or, where those have none, at a later one.

        It is ``-inf`` where none has one.
        """
        for level in range(first, len(self.steps)):
            with suppress(PrecisionLimit):
                lower = (ends if level == first else read(self.level(level))).lower
                if lower > -math.inf or not self.has_lower_ends:
                    return lower
        return -math.inf

    @cached_property
    def has_lower_ends(self) -> bool:
        """True where knots of every scale have lower bounds: doubling has lower ends then, if no lattice has."""
        return all(first_bounds(shape).below for shape in self.shapes)


def _default_ways(shapes: list[Outline]) -> list[float]:
    """The ways to compose on the default grid, in the order of trial."""
    # As fine as the profiles are worth, within MOST_DEFAULT_CELLS.
    finest = min(shape.deviation / shape.profile.resolution for shape in shapes)
    # The deviation of the loss of the run is sqrt(sum T_i deviation_i^2).
    spread = math.sqrt(sum(shape.run.steps * shape.deviation**2 for shape in shapes))
    step = max(finest, 24.0 * spread / MOST_DEFAULT_CELLS)
    # Where the losses of one step reach so far beyond the spread of the whole run, no lattice holds both. Speed only.
    is_wide = max(shape.span for shape in shapes) > 5e3 * spread
    first, then = (0.0, step) if is_wide and sum(shape.run.steps for shape in shapes) > 1 else (step, 0.0)
    # Where a default grid takes too much work, one coarser by this factor is used. Speed only.
    return [first, then, *(step * 4.0**k for k in range(1, MOST_COARSENINGS + 1))]


def _compose_adaptively(shapes: list[Outline]) -> ComposedCurve:
    """The curve of the run by repeated squaring: both orders from above, the remove order from below (C23).

    Raises :class:`GridLimit` for tails that are cut later than its products are.
    """
    cut = min(shape.truncated_mass for shape in shapes)
    if cut < LEAST_DOUBLED_CUT:
        raise GridLimit(f"expected a delta above what products of laws are cut at, {LEAST_DOUBLED_CUT:g}; {REMEDY}")
    depth, bounds = cut / TRUNCATED_RUN_MASS, [(first_bounds(shape), shape.run.steps) for shape in shapes]
    law = compose_laws([(law_from_pair(ends.above, 1.0), steps) for ends, steps in bounds], depth)
    orders = (law, law.mirrored()) if any(shape.has_two_orders for shape in shapes) else (law,)

    def compose_below() -> tuple[BelowOrder, ...]:
        laws = [(law_from_pair(ends.below, -1.0), steps) for ends, steps in bounds if ends.below]
        if len(laws) < len(bounds):
            return ()
        law_below = compose_laws(laws, depth, below=True)
        return (lambda: DoubledCurve(law_below, above=False),)

    return ComposedCurve(tuple(map(DoubledCurve, orders)), compose_below, DOUBLED_NUMERICS)


def compose_on_lattice(shapes: list[Outline], step: float, most_fft: int = MOST_FFT_CELLS) -> ComposedCurve:
    """The curve on the lattice with this step (nats), by Fourier inversion (C18, C19).

    ``most_fft`` is the longest FFT in cells. Raises :class:`PrecisionLimit` for a step above
    :data:`LARGEST_GRID_STEP`.
    """
    if step > LARGEST_GRID_STEP:
        raise PrecisionLimit(f"expected a run whose grid is finer than {LARGEST_GRID_STEP:g}, got {step:.3g}; {REMEDY}")
    bounds = [(shape.pairs(step), shape.run.steps) for shape in shapes]
    deep = min(shape.truncated_mass for shape in shapes) < TRUNCATED_RUN_MASS
    orders = (False, True) if any(shape.has_two_orders for shape in shapes) else (False,)

    def compose_order(pairs: PairOrder, mirrored: bool) -> LatticeComposition:
        pairs = [(pair.mirrored(), steps) for pair, steps in pairs] if mirrored else pairs
        return LatticeComposition(pairs, most_fft, deep=deep)

    def compose_below() -> tuple[BelowOrder, ...]:
        below = [(ends.below, steps) for ends, steps in bounds if ends.below]
        return tuple(partial(compose_order, below, order) for order in orders) if len(below) == len(bounds) else ()

    above = [(ends.above, steps) for ends, steps in bounds]
    points = sum(len(pair.cells) for pair, _ in above)
    numerics = {"composer": "privproj", "grid_step": step, "grid_points": points}
    return ComposedCurve(tuple(compose_order(above, order) for order in orders), compose_below, numerics)
