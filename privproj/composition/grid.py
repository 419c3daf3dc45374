"""Compose a run on a discretization grid of privacy losses, and choose the grid.

:mod:`privproj.composition.dominating_pairs` bounds one step by a dominating and a dominated pair of measures (C18).
:mod:`privproj.composition.fourier` composes these pairs on a uniform grid and bounds every numerical error (C19), so
that the results enclose the exact composition. If the losses differ by orders of magnitude,
:mod:`privproj.composition.repeated_squaring` composes the pairs on adaptive grids (C23).
"""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

import numpy as np

from privproj.composition.dominating_pairs import (
    REMEDY,
    TRUNCATED_RUN_MASS,
    CoarseDescription,
    DominatingPair,
    ExcessBounds,
    describe_coarsely,
)
from privproj.composition.fourier import MOST_FFT_CELLS, QUICK_FFT_CELLS, FourierComposition
from privproj.composition.repeated_squaring import (
    FARTHEST_LOSS,
    ComposedPmf,
    adaptive_bounds,
    compose_pmfs,
    pmf_from_pair,
)
from privproj.errors import GridSizeError, PrecisionError
from privproj.numerics.interval import Enclosure, LazyEnclosure, next_up

LARGEST_GRID_STEP = 10.0  # nats between two grid points; a coarser grid is not supported
MOST_COARSENINGS = 8  # times that a default grid is made coarser before the query is not supported
# Share of the numerical error in delta above which the next grid is tried. Repeated squaring is about 1 % above the
# exact epsilon.
LOOSE_SHARE = 0.03
# Masses of the truncated tails of a run, tried if the grid with tails down to TRUNCATED_RUN_MASS is too long.
SHORT_RUN_MASSES = (1e-26, 1e-20)
SHORT_SPAN = 0.1  # largest range of losses between such truncated tails, relative to the range with default tails
LEAST_SQUARED_CUT = 1e-100  # soundness: least tail mass that repeated squaring truncates; below, products underflow
MOST_DEFAULT_CELLS = 2.0**29  # cells of a default grid in 24 standard deviations of the loss of the run
SMALLEST_COMPOSED_DELTA = 1e-300  # soundness: a smaller upper bound of delta is replaced by this before its log
# description of a composition by repeated squaring, in results
SQUARING_NUMERICS: dict[str, object] = {"composer": "privproj", "grid": "a grid that follows the losses"}

PairsOfSteps = list[tuple[DominatingPair, int]]  # pair of one step of each phase, with the number of steps

ComposedDirection = FourierComposition | ComposedPmf  # a composed run in one direction, remove or add


class ComposedCurve:
    """The privacy curve of a composed run, the maximum of the add and remove directions (C18).

    Args:
        bounds: For each phase, bounds of the privacy profile of one step, and the number of steps.
        numerics: How the curve was computed, for the report of a result.
    """

    # upper bounds of delta in the remove direction and, if it differs, in the add direction
    above: tuple[ComposedDirection, ...]

    # raised where delta is below the mass of the losses that count as infinite
    error_of_infinite_losses: type[PrecisionError] = PrecisionError

    def __init__(self, bounds: list[tuple[ExcessBounds, int]], numerics: dict[str, object]) -> None:
        self.bounds, self.numerics = bounds, numerics
        self.above = self.compose([(ends.above, steps) for ends, steps in bounds], above=True)

    def compose(self, pairs: PairsOfSteps, *, above: bool) -> tuple[ComposedDirection, ...]:
        """Return the composed run in the remove direction and, if it differs, the add direction.

        Args:
            pairs: The discrete pair of measures of one step of each phase, and the number of steps.
            above: True for upper bounds of delta, False for lower bounds.
        """
        raise NotImplementedError

    @cached_property
    def below(self) -> tuple[ComposedDirection, ...]:
        """Lower bounds of delta, in the remove direction and possibly the add direction.

        The tuple is empty if some step has no lower bound.
        """
        pairs = [(ends.below, steps) for ends, steps in self.bounds if ends.below]
        return self.compose(pairs, above=False) if len(pairs) == len(self.bounds) else ()

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``; ``eps`` is in nats."""
        return LazyEnclosure(lambda: self.log_delta_below(eps), math.log(min(self.delta_above(eps)[0], 1.0)))

    def delta_above(self, eps: float) -> tuple[float, float]:
        """Return an upper bound of delta, and its part due to numerical error and infinite losses."""
        # the maximum over the directions of value + error + infinite part
        upper = SMALLEST_COMPOSED_DELTA, 0.0
        for one in self.above:
            if one is self.above[0] or not one.log_chernoff_bound(eps) < math.log(upper[0]):
                upper = max(upper, _delta_above(one, eps))
        return upper

    def log_delta_below(self, eps: float) -> float:
        """Return a lower bound of ``ln delta(eps)``, or ``-inf`` if none is known."""
        # the maximum over the directions of value - error; a direction is skipped if its upper bound is smaller
        lower = 0.0
        for below, above in zip(self.below, self.above, strict=False):
            may_be_larger = lower <= 0.0 or not (
                above.log_chernoff_bound(eps) < math.log(lower) or _delta_above(above, eps)[0] < lower
            )
            if may_be_larger:
                finite = below.delta(eps)
                lower = max(lower, finite.value - finite.error)
        return math.log(lower) if lower > 0.0 else -math.inf

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats.

        Raises:
            PrecisionError: The mass of losses that count as infinite is at least delta.
        """
        # For repeated squaring this is a GridSizeError, because the next grid may represent these losses as finite.
        delta = math.exp(log_delta)
        infinite = max(c.infinity_mass for c in self.above)
        if delta <= infinite:
            raise self.error_of_infinite_losses(
                f"delta must be above {infinite:.1e}, the probability of losses too large for double precision, "
                f"got {delta:.3g}. {REMEDY}"
            )
        # The larger epsilon of both directions. The second one is solved only if its delta at the first epsilon is
        # above delta.
        upper, worst = self.above[0].epsilon(delta, above=True), 0
        for one in self.above[1:]:
            if one.log_chernoff_bound(upper) > log_delta and _delta_above(one, upper)[0] > delta:
                upper, worst = max((upper, 0), (one.epsilon(delta, above=True), 1))
        upper = next_up(upper) if upper else 0.0

        def find_lower() -> float:
            if upper == 0.0:
                return 0.0
            if not self.below:
                return -math.inf
            return self.below[min(worst, len(self.below) - 1)].epsilon(delta, above=False, near=upper)

        return LazyEnclosure(find_lower, upper)


def _delta_above(one: ComposedDirection, eps: float) -> tuple[float, float]:
    """Return the values of :meth:`ComposedCurve.delta_above` for one direction."""
    # numerical error and infinite losses
    finite = one.delta(eps)
    error = finite.error + one.infinity_mass
    return finite.value + error, error


class UniformGridCurve(ComposedCurve):
    """The privacy curve of a run on a uniform grid, by Fourier inversion (C18, C19).

    Args:
        steps: A rough loss distribution of one step of each phase.
        spacing: The distance of two grid points in nats.
        most_fft: The longest FFT in grid points.

    Raises:
        PrecisionError: The spacing is above :data:`LARGEST_GRID_STEP`.
    """

    def __init__(self, steps: list[CoarseDescription], spacing: float, most_fft: int = MOST_FFT_CELLS) -> None:
        if spacing > LARGEST_GRID_STEP:
            raise PrecisionError(
                f"the grid step of this run must be below {LARGEST_GRID_STEP:g}, got {spacing:.3g}. {REMEDY}"
            )
        self.most_fft, self.needs_both_directions = most_fft, any(step.needs_both_directions for step in steps)
        self.small_delta = min(step.truncated_mass for step in steps) < TRUNCATED_RUN_MASS
        super().__init__([(step.pairs(spacing), step.run.steps) for step in steps], {})
        points = sum(len(ends.above.cells) for ends, _ in self.bounds)
        self.numerics = {"composer": "privproj", "grid_step": spacing, "grid_points": points}

    def compose(self, pairs: PairsOfSteps, *, above: bool) -> tuple[FourierComposition, ...]:
        """Return the composed run in the remove direction and, if it differs, the add direction."""
        directions = [pairs]
        if self.needs_both_directions:
            directions.append([(pair.mirrored(), steps) for pair, steps in pairs])
        return tuple(FourierComposition(each, self.most_fft, small_delta=self.small_delta) for each in directions)


class RepeatedSquaringCurve(ComposedCurve):
    """The privacy curve of a run by repeated squaring on adaptive grids (C23).

    Lower bounds are available in the remove direction only.

    Args:
        steps: A rough loss distribution of one step of each phase.

    Raises:
        GridSizeError: Tails are truncated at a mass below :data:`LEAST_SQUARED_CUT`.
    """

    error_of_infinite_losses = GridSizeError

    def __init__(self, steps: list[CoarseDescription]) -> None:
        cut = min(step.truncated_mass for step in steps)
        if cut < LEAST_SQUARED_CUT:
            raise GridSizeError(
                f"delta is below {LEAST_SQUARED_CUT:g}, the smallest tail that the composition keeps. {REMEDY}"
            )
        self.tail_scale, self.needs_both_directions = (
            min(cut / TRUNCATED_RUN_MASS, 1.0),
            any(step.needs_both_directions for step in steps),
        )
        self.rough_excess = min(step.rough_excess for step in steps)
        super().__init__([(adaptive_bounds(step), step.run.steps) for step in steps], SQUARING_NUMERICS)

    def compose(self, pairs: PairsOfSteps, *, above: bool) -> tuple[ComposedPmf, ...]:
        """Return the composed run in the remove direction and, for upper bounds, the add direction."""
        sign = 1.0 if above else -1.0
        pmfs = [(pmf_from_pair(pair, sign), steps) for pair, steps in pairs]
        pmf = compose_pmfs(pmfs, self.tail_scale, self.rough_excess, below=not above)
        directions = (pmf, pmf.mirrored()) if above and self.needs_both_directions else (pmf,)
        return tuple(ComposedPmf(each, above=above) for each in directions)


class GridCurve:
    """The privacy curve of a run on a given uniform grid, or on the first grid that works.

    The grids are tried in this order:

    1. the uniform grid that is as fine as the profiles require;
    2. repeated squaring on adaptive grids;
    3. grids 1 and 2 with tails truncated earlier, if the range of losses is then much shorter;
    4. coarser uniform grids.

    Every grid gives valid bounds. A result does not depend on earlier queries (C24).

    Args:
        coarse: A rough loss distribution of one step of each phase.
        spacing: The distance of two grid points in nats (None: the grids above).
    """

    # If the losses differ by orders of magnitude, 2 comes before 1. If repeated squaring counts some losses as infinite
    # because they are very large, 2 comes after 3.

    # Truncated tails count as infinite losses, so grids with shorter tails work for larger deltas only. If a query
    # exceeds the limits of one grid, it is evaluated on the next grid. A loose result is also compared with the result
    # on the next grid: on a uniform grid, no single tilt resolves rare large losses together with many small ones.
    # Every query starts with the first grid, and the search for its lower bound starts with the grid of its upper
    # bound.

    def __init__(self, coarse: list[CoarseDescription], spacing: float | None = None) -> None:
        self.coarse, self.most_fft = coarse, MOST_FFT_CELLS if spacing else QUICK_FFT_CELLS
        self.curves: dict[int, ComposedCurve | PrecisionError] = {}
        self.used = 0
        # The grids in the order of trial: the spacing of a uniform grid in nats, or 0 for repeated squaring. The index
        # of a grid in this list is its level.
        self.spacings = [spacing] if spacing else []
        self.short_masses: dict[int, float] = {}  # levels with shorter tails, and the mass of the truncated tails
        if not spacing:
            finest = min(step.deviation / step.profile.resolution for step in coarse)
            # The standard deviation of the loss of the run is sqrt(sum T_i deviation_i^2).
            deviation = math.sqrt(sum(step.run.steps * step.deviation**2 for step in coarse))
            default = max(finest, 24.0 * deviation / MOST_DEFAULT_CELLS)
            # No uniform grid resolves losses of one step that are so large compared to those of the run.
            is_wide = max(step.span for step in coarse) > 5e3 * deviation
            squared_first = is_wide and sum(step.run.steps for step in coarse) > 1
            coarser = [default * 4.0**k for k in range(1, MOST_COARSENINGS + 1)]  # 4: one coarsening
            uniform, squared, short = (default, None), (0.0, None), []
            if all(step.truncated_mass == TRUNCATED_RUN_MASS for step in coarse):
                short = [(spacing, mass) for mass in SHORT_RUN_MASSES for spacing in (default, 0.0)]
            grids = [squared, uniform, *short] if squared_first else [uniform, squared, *short]
            if max(float(np.max(np.abs(step.losses))) for step in coarse) > FARTHEST_LOSS:
                grids = [uniform, *short, squared]  # repeated squaring leaves out some losses
            self.spacings = [spacing for spacing, _ in grids] + coarser
            self.short_masses = {level: mass for level, (_, mass) in enumerate(grids) if mass}

    @property
    def numerics(self) -> dict[str, object]:
        """The grid and the composition method of the last result, for its report."""
        return self.level(self.used).numerics if self.spacings[self.used] else SQUARING_NUMERICS

    def level(self, level: int) -> ComposedCurve:
        """Return the privacy curve on the grid with this index.

        Raises:
            PrecisionError: The grid exceeds its limits.
        """
        if level not in self.curves:
            spacing, steps = self.spacings[level], self.coarse
            try:
                if level in self.short_masses:
                    steps = [describe_coarsely(one.profile, one.run, self.short_masses[level]) for one in steps]
                    if max(one.span for one in steps) > SHORT_SPAN * max(one.span for one in self.coarse):
                        raise GridSizeError(f"no tail of the losses can be truncated much earlier. {REMEDY}")
                curve = UniformGridCurve(steps, spacing, self.most_fft) if spacing else RepeatedSquaringCurve(steps)
            except PrecisionError as error:
                curve = error
            self.curves[level] = curve
        curve = self.curves[level]
        if isinstance(curve, PrecisionError):
            raise curve
        return curve

    def log_delta(self, eps: float, threshold: float = -math.inf) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``; ``eps`` is in nats.

        An upper end of at most ``threshold`` may be loose.
        """
        return self.evaluate(lambda curve: curve.log_delta(eps), lambda _: eps, threshold)

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats."""
        return self.evaluate(lambda curve: curve.epsilon(log_delta), lambda ends: ends.upper)

    def evaluate(
        self,
        read: Callable[[ComposedCurve], Enclosure],
        epsilon_of: Callable[[Enclosure], float],
        threshold: float = -math.inf,
    ) -> Enclosure:
        """Return the result on the first grid that works, or a tighter result on a later grid.

        Args:
            read: Computes the result from the privacy curve on a grid.
            epsilon_of: Returns the epsilon of a result, at which the numerical error of delta is evaluated.
            threshold: A result at most this large may be loose.

        Raises:
            PrecisionError: No grid is within its limits.
        """
        # A later grid is tried if the result is above the threshold and a large part of its delta is numerical error.
        # Later grids are tried as long as the results decrease or tails are short. At some epsilons log_delta and
        # epsilon may use different grids. privproj.profiles.conversion then moves a result until the round trip holds
        # (C24).
        self.used, ends = self._first_available(read, 0)
        with suppress(PrecisionError):  # without a comparison the result stands
            level = self.used
            while level + 1 < len(self.spacings) and ends.upper > threshold:
                upper, error = self.level(self.used).delta_above(epsilon_of(ends))
                if not error > LOOSE_SHARE * upper:
                    break
                # Shorter tails do not improve a result with default tails. They are used only if there is no such
                # result.
                level += 1
                while level in self.short_masses and self.used not in self.short_masses:
                    level += 1
                level, other = self._first_available(read, level)
                if other.upper <= ends.upper:
                    self.used, ends = level, other
                elif level not in self.short_masses:
                    break
        first = self.used

        def find_lower() -> float:
            for level in range(first, len(self.spacings)):
                with suppress(PrecisionError):
                    lower = (ends if level == first else read(self.level(level))).lower
                    if lower > -math.inf or not self.squaring_has_lower_bounds:
                        return lower
            return -math.inf

        return LazyEnclosure(find_lower, ends.upper)

    def _first_available(self, read: Callable[[ComposedCurve], Enclosure], start: int) -> tuple[int, Enclosure]:
        """Return the index of the first grid from ``start`` on that works, and its result."""
        failures: list[PrecisionError] = []
        for level in range(start, len(self.spacings)):
            try:
                return level, read(self.level(level))
            except PrecisionError as error:
                failures.append(error)
        # An error about infinite losses is more informative than one about the work of a grid.
        raise next((error for error in failures if not isinstance(error, GridSizeError)), failures[-1])

    @cached_property
    def squaring_has_lower_bounds(self) -> bool:
        """True if repeated squaring has lower bounds for this run."""
        # If so, the search for a lower bound continues after a uniform grid without one.
        return all(adaptive_bounds(step).below for step in self.coarse)


class SmallestGridCurve(GridCurve):
    """The smallest of several upper bounds of the privacy curve of one run.

    Args:
        bounds: The privacy curves.
    """

    def __init__(self, bounds: list[GridCurve]) -> None:
        self.bounds, self.smallest = bounds, bounds[0]

    @property
    def numerics(self) -> dict[str, object]:
        """The grid and the composition method of the last result, for its report."""
        return self.smallest.numerics

    def log_delta(self, eps: float, threshold: float = -math.inf) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``; ``eps`` is in nats.

        An upper end of at most ``threshold`` may be loose.
        """
        return self._smallest(lambda bound: bound.log_delta(eps, threshold))

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats."""
        return self._smallest(lambda bound: bound.epsilon(log_delta))

    def _smallest(self, read: Callable[[GridCurve], Enclosure]) -> Enclosure:
        results: list[tuple[Enclosure, GridCurve]] = []
        for bound in self.bounds:
            with suppress(PrecisionError):
                results.append((read(bound), bound))
        if not results:
            return read(self.bounds[0])
        ends, self.smallest = min(results, key=lambda result: result[0].upper)
        return LazyEnclosure(lambda: min(ends.lower for ends, _ in results), ends.upper)
