"""The curve of a run on a grid of losses: which grid, and which way to compose on it.

:mod:`privproj.composition.dominating_pairs` brackets one step between a dominating and a dominated pair (C18).
:mod:`privproj.composition.fourier` composes both with every error bounded (C19), so that they enclose the exact value
of the bound. :mod:`privproj.composition.doubling` does so where the losses have many scales (C23).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import ClassVar, TypeVar

from privproj.composition import doubling
from privproj.composition.dominating_pairs import (
    REMEDY,
    TRUNCATED_RUN_MASS,
    DominatingPair,
    Outline,
    is_one_sided,
    step_pairs,
)
from privproj.composition.doubling import DoubledCurve
from privproj.composition.fourier import MOST_FFT_CELLS, QUICK_FFT_CELLS, Composition
from privproj.curves.profile import PrivacyProfile
from privproj.errors import GridLimit, PrecisionLimit
from privproj.numerics.enclosure import Enclosure, LateEnclosure, next_up
from privproj.runs import Run

Found = TypeVar("Found")

LARGEST_GRID_STEP = 10.0
"""Largest distance of two lattice points, in nats; a coarser grid is refused. Contract."""

MOST_COARSENINGS = 8
"""How many times a default grid is made coarser before the question is refused. Contract."""

DOUBLED_NUMERICS: dict[str, object] = {"composer": "privproj", "grid": "follows the losses"}
"""What an answer says of its numerics where the run was composed by doubling. Contract."""

LEAST_DOUBLED_CUT = 1e-100
"""Least mass at which tails may be cut in a composition by doubling, whose products underflow further down.

Soundness.
"""

PEER_POINTS_PER_DEVIATION = 20.0
"""Points per loss deviation on dp-accounting's grid. Speed only."""

MOST_DEFAULT_PEER_CELLS = 2.0**20
"""Most cells on dp-accounting's grid: a coarser one, still sound, is used where there would be more. Speed only."""

MOST_DEFAULT_CELLS = 2.0**29
"""Cells that the default grid may have in 24 deviations of the composed loss, else it is coarser. Speed only."""

COMPOSED_INVERSE_SPACING = 2.0**-33
"""Spacing of the log deltas with which composed runs are answered. Speed only."""

SMALLEST_COMPOSED_DELTA = 1e-300
"""Smallest upper end of a delta whose log is taken. Larger than what it replaces, so bounds only grow. Soundness."""


PairOrder = list[tuple[DominatingPair, int]]
"""The pairs of a run in one order (remove or add), one to a phase, each with its number of steps."""

BelowOrder = Callable[[], Composition | DoubledCurve]
"""Makes the lower bounds of one order."""


@dataclass(frozen=True)
class ComposedCurve:
    """The curve of a composed run: the larger of its orders, each from above and, where known, from below.

    Its soundness is that of the pairs (C18) and of what composed them (C19 or C23).
    """

    above: tuple[Composition | DoubledCurve, ...]
    """Upper bounds of delta: of the remove order and, unless both orders are the same, of the add order."""

    compose_below: "Callable[[], tuple[BelowOrder, ...]]"
    """Finds what makes lower bounds of delta, each of one of these orders; none where none is known."""

    numerics: dict[str, object] = field(default_factory=dict)
    """What an answer says about how it was computed."""

    inverse_spacing: ClassVar[float] = COMPOSED_INVERSE_SPACING
    """Spacing of the log deltas that are answered (C24)."""

    @cached_property
    def below(self) -> "tuple[BelowOrder, ...]":
        """What :attr:`compose_below` finds, once it is asked for; each order is composed once."""
        return tuple(cache(make) for make in self.compose_below())

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)`` (``eps`` in nats), enclosed: the value of each order with its error on the safe side."""
        # upper = max over orders of value + error + infinite part
        upper = SMALLEST_COMPOSED_DELTA
        for order in self.above:
            if order is self.above[0] or not order.chernoff(eps) < math.log(upper):
                upper = max(upper, _upper_end(order, eps))
        return LateEnclosure(lambda: _unless_too_long(lambda: self.log_delta_below(eps)), math.log(min(upper, 1.0)))

    def log_delta_below(self, eps: float) -> float:
        """The lower end of :meth:`log_delta`, ``-inf`` where none is known."""
        # lower = max over orders of value - error; of an order whose upper bound is smaller it is not asked
        lower = 0.0
        for make, above in zip(self.below, self.above, strict=False):
            if lower <= 0.0 or not (above.chernoff(eps) < math.log(lower) or _upper_end(above, eps) < lower):
                finite = make().delta(eps)
                lower = max(lower, finite.value - finite.error)
        return math.log(lower) if lower > 0.0 else -math.inf

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats, enclosed; raises :class:`PrecisionLimit` where infinite losses alone exceed delta."""
        upper, order = self.solve_above(log_delta)
        return LateEnclosure(lambda: _unless_too_long(lambda: self.solve_below(log_delta, upper, order)), upper)

    def solve_above(self, log_delta: float) -> tuple[float, int]:
        """The upper end of :meth:`epsilon`, and the order (an index of :attr:`above`) that has it.

        Raises :class:`PrecisionLimit` where infinite losses alone exceed delta.
        """
        delta = math.exp(log_delta)
        infinite = max(c.at_infinity for c in self.above)
        if delta <= infinite:
            raise PrecisionLimit(
                f"expected a delta above {infinite:.1e}, which losses too large for double precision may cost, "
                f"got {delta:.3g}; {REMEDY}"
            )
        # The larger epsilon of both orders. The second order is only solved where its delta at the first epsilon is
        # above delta.
        upper, worst = self.above[0].epsilon(delta, above=True), 0
        for order in self.above[1:]:
            if order.chernoff(upper) > log_delta and _upper_end(order, upper) > delta:
                upper, worst = max((upper, 0), (order.epsilon(delta, above=True), 1))
        return (next_up(upper) if upper else 0.0), worst

    def solve_below(self, log_delta: float, upper: float, order: int) -> float:
        """The lower end of :meth:`epsilon`, from what :meth:`solve_above` found; ``-inf`` where none is known."""
        if upper == 0.0:
            return 0.0
        if not self.below:
            return -math.inf
        below = self.below[min(order, len(self.below) - 1)]()
        return below.epsilon(math.exp(log_delta), above=False, near=upper)


def _upper_end(order: Composition | DoubledCurve, eps: float) -> float:
    """An upper bound of the delta of one order at ``eps`` (nats)."""
    finite = order.delta(eps)
    return finite.value + finite.error + order.at_infinity


def _unless_too_long(find_lower: Callable[[], float]) -> float:
    """A lower end, or ``-inf`` where it would take too much memory or time."""
    try:
        return find_lower()
    except GridLimit:
        return -math.inf


class DefaultGrid:
    """The curve on the default lattice, or by doubling where the losses have many scales.

    A question that takes too much work in the first way is answered in the second, then on coarser and coarser
    lattices. Every question starts with the first way, and its lower end with the way of its upper end, so that its
    answer does not depend on what was asked before (C24). All ways are sound.
    """

    inverse_spacing: ClassVar[float] = COMPOSED_INVERSE_SPACING
    """Spacing of the log deltas that are answered (C24)."""

    def __init__(self, phases: list[tuple[PrivacyProfile, Run]], shapes: list[Outline]) -> None:
        self.phases, self.shapes = phases, shapes
        # The ways to compose (levels), in the order of trial: a lattice's step in nats, or 0 for doubling.
        step = _default_grid_step(phases, shapes)
        first, then = (0.0, step) if _has_many_scales(phases, shapes) else (step, 0.0)
        # Where a default grid takes too much work, one coarser by this factor is used. Speed only.
        self.steps = [first, then, *(step * 4.0**k for k in range(1, MOST_COARSENINGS + 1))]
        self.levels: dict[int, ComposedCurve] = {}
        self.used = 0

    @property
    def numerics(self) -> dict[str, object]:
        """How the last answer was computed: the composer, and the grid."""
        return self.level(self.used).numerics if self.steps[self.used] else DOUBLED_NUMERICS

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, enclosed, composed in the first way that does not take too much work."""
        upper, level = self.answer(lambda grid: grid.log_delta(eps).upper), self.used
        return LateEnclosure(lambda: self.answer_below(lambda grid: grid.log_delta_below(eps), level), upper)

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats, enclosed, composed in the first way that does not take too much work."""
        (upper, order), level = self.answer(lambda grid: grid.solve_above(log_delta)), self.used
        return LateEnclosure(
            lambda: self.answer_below(lambda grid: grid.solve_below(log_delta, upper, order), level), upper
        )

    def level(self, level: int) -> ComposedCurve:
        """The curve on the lattice with the step ``steps[level]``, or by doubling where that is 0. It is kept."""
        if level not in self.levels:
            step = self.steps[level]
            new = (
                compose_on_lattice(self.phases, self.shapes, step, QUICK_FFT_CELLS)
                if step
                else _compose_by_doubling(self.phases, self.shapes)
            )
            self.levels[level] = new
        return self.levels[level]

    def answer_below(self, read: Callable[[ComposedCurve], float], first: int) -> float:
        """The lower end that ``read`` finds on the curve of this level or a coarser one; ``-inf`` on none."""
        for level in range(first, len(self.steps)):
            try:
                return read(self.level(level))
            except GridLimit:
                continue
        return -math.inf

    def answer(self, read: Callable[[ComposedCurve], Found]) -> Found:
        """What ``read`` finds on the first curve that raises no :class:`GridLimit`; the last one may raise it."""
        for level in range(len(self.steps) - 1):
            try:
                found = read(self.level(level))
            except GridLimit:
                continue
            self.used = level
            return found
        self.used = len(self.steps) - 1
        return read(self.level(self.used))


def _has_many_scales(phases: list[tuple[PrivacyProfile, Run]], shapes: list[Outline]) -> bool:
    """True where the losses of one step reach far beyond the spread of the whole run: no lattice holds both."""
    # The deviation of the loss of the run is sqrt(sum T_i deviation_i^2).
    spread = math.sqrt(sum(run.steps * s.deviation**2 for s, (_, run) in zip(shapes, phases, strict=True)))
    releases = sum(run.steps for _, run in phases)
    # Range of one step's losses over the deviation of the run's, above which it is composed by doubling. Speed only.
    return releases > 1 and max(shape.span for shape in shapes) > 5e3 * spread


def _compose_by_doubling(phases: list[tuple[PrivacyProfile, Run]], shapes: list[Outline]) -> ComposedCurve:
    """The curve of the run by repeated squaring: both orders from above, the remove order from below (C23).

    Raises :class:`GridLimit` for tails that are cut later than its products are.
    """
    cut = min(shape.truncated_mass for shape in shapes)
    if cut < LEAST_DOUBLED_CUT:
        raise GridLimit(f"expected a delta above what products of laws are cut at, {LEAST_DOUBLED_CUT:g}; {REMEDY}")
    depth = cut / TRUNCATED_RUN_MASS
    found = [doubling.first_bounds(profile, run, shape) for (profile, run), shape in zip(phases, shapes, strict=True)]
    steps = [run.steps for _, run in phases]
    laws = [doubling.law_from_pair(bounds.above, 1.0) for bounds in found]
    law = doubling.compose_laws(list(zip(laws, steps, strict=True)), depth)
    one_order = not any(is_one_sided(*phase) for phase in phases)
    above = (DoubledCurve(law),) if one_order else (DoubledCurve(law), DoubledCurve(law.mirrored()))

    def compose_below() -> tuple[BelowOrder, ...]:
        known = [doubling.law_from_pair(bounds.below, -1.0) for bounds in found if bounds.below]
        if len(known) < len(found):
            return ()
        law_below = doubling.compose_laws(list(zip(known, steps, strict=True)), depth, below=True)
        return (lambda: DoubledCurve(law_below, above=False),)

    return ComposedCurve(above, compose_below, DOUBLED_NUMERICS)


def _default_grid_step(phases: list[tuple[PrivacyProfile, Run]], shapes: list[Outline]) -> float:
    """Distance of lattice points in nats: as fine as the profiles are worth, within :data:`MOST_DEFAULT_CELLS`."""
    finest = min(s.deviation / profile.resolution for s, (profile, _) in zip(shapes, phases, strict=True))
    spread = math.sqrt(sum(run.steps * s.deviation**2 for s, (_, run) in zip(shapes, phases, strict=True)))
    return max(finest, 24.0 * spread / MOST_DEFAULT_CELLS)


def compose_on_lattice(
    phases: list[tuple[PrivacyProfile, Run]], shapes: list[Outline], step: float, most_fft: int = MOST_FFT_CELLS
) -> ComposedCurve:
    """The curve on the lattice with this step (nats), by Fourier inversion (C18, C19).

    ``shapes`` are the outlines of the steps of the phases, ``most_fft`` is the longest FFT in cells. Raises
    :class:`PrecisionLimit` for a step above :data:`LARGEST_GRID_STEP`.
    """
    if step > LARGEST_GRID_STEP:
        raise PrecisionLimit(f"expected a run whose grid is finer than {LARGEST_GRID_STEP:g}, got {step:.3g}; {REMEDY}")
    found = [step_pairs(profile, run, shape, step) for (profile, run), shape in zip(phases, shapes, strict=True)]
    orders = _in_both_orders([bounds.above for bounds in found], phases)
    points = sum(len(pair.cells) for pair, _ in orders[0])
    deep = min(shape.truncated_mass for shape in shapes) < TRUNCATED_RUN_MASS

    def compose_below() -> tuple[BelowOrder, ...]:
        known = [(bounds.below, run.steps) for bounds, (_, run) in zip(found, phases, strict=True) if bounds.below]
        if len(known) < len(found):
            return ()
        makers = (lambda: known), (lambda: _mirrored(known))
        return tuple(lambda make=make: Composition(make(), most_fft, deep=deep) for make in makers[: len(orders)])

    numerics = {"composer": "privproj", "grid_step": step, "grid_points": points}
    return ComposedCurve(tuple(Composition(order, most_fft, deep=deep) for order in orders), compose_below, numerics)


def dominating_orders(phases: list[tuple[PrivacyProfile, Run]], shapes: list[Outline], step: float) -> list[PairOrder]:
    """Pairs that dominate the releases in the remove order and, unless every pair is symmetric, in the add order.

    :func:`step_pairs` guarantees that (C18).
    """
    found = [step_pairs(*phase, shape, step).above for phase, shape in zip(phases, shapes, strict=True)]
    return _in_both_orders(found, phases)


def _in_both_orders(pairs: list[DominatingPair], phases: list[tuple[PrivacyProfile, Run]]) -> list[PairOrder]:
    """The pairs of the phases with their numbers of steps and, unless all are symmetric, the same mirrored."""
    order = [(pair, run.steps) for pair, (_, run) in zip(pairs, phases, strict=True)]
    if not any(is_one_sided(*phase) for phase in phases):
        return [order]
    return [order, _mirrored(order)]


def _mirrored(order: PairOrder) -> PairOrder:
    """The add order of a run whose remove order this is."""
    return [(pair.mirrored(), steps) for pair, steps in order]


def peer_grid_step(phases: list[tuple[PrivacyProfile, Run]], shapes: list[Outline], most: float = math.inf) -> float:
    """The default distance of lattice points for dp-accounting, in nats, about ``most`` at most. Any is sound.

    Its window reaches far, as its Chernoff orders are at least ``1 / span`` (of a step's losses). Hence the step is so
    coarse that there are about :data:`MOST_DEFAULT_PEER_CELLS` cells at most.
    """
    step = min(most, min(shape.deviation for shape in shapes) / PEER_POINTS_PER_DEVIATION)
    for shape, (_, run) in zip(shapes, phases, strict=True):
        spread = shape.deviation * math.sqrt(run.steps)
        chernoff = spread * spread / (2.0 * shape.span) if spread > 8.0 * shape.span else 0.0
        step = max(step, min(run.steps * shape.span, shape.span + 24.0 * spread + chernoff) / MOST_DEFAULT_PEER_CELLS)
    return step
