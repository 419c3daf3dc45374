"""The vector Wishart mechanism where neighbouring vectors differ in norm: the worst pair, enclosed.

With ``|v| = kappa |v'|`` and the symbols of :mod:`privproj.laws.wishart_loss` the loss is

    L = -d ln kappa + a ln(kappa A) + U (kappa/A - 1),    infinite where A <= 0.

Neither order, alignment or ratio is the worst in general. The largest ``H_eps`` over every misalignment in ``[0, m]``
and every ``|ln kappa| <= log_ratio`` is enclosed by branch and bound (C12): both ranges are cut into cells, each with a
proved upper bound (:mod:`privproj.laws.wishart_unequal_cells`), and cells and quadrature panels are halved until the
largest upper bound is close to the best pair. Where the search ends early the upper bound holds as well.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privproj.curves.profile import PrivacyProfile
from privproj.laws.wishart_unequal_cells import (
    HIGHEST_LOG_ALIGNMENT,
    LOWEST_LOG_ALIGNMENT,
    AlignmentLaw,
    CellBounds,
    CellGrid,
    ConditionalGain,
    bounds_on,
)
from privproj.numerics.arrays import Array
from privproj.numerics.enclosure import LOG_OF_ZERO_FROM_ABOVE, Enclosure

ChosenCells = NDArray[np.bool_]
"""A choice of panels or of cells."""

SEARCH_GOAL = 2e-3
"""Relative width of the enclosure at which a search ends. Speed only."""

EPSILONS_PER_GRID = 32
"""How many values of eps of a table share a grid. Speed only."""

LOG2_EPSILONS_PER_GRID = 0.125
"""Log to base 2 of the factor within which single values of eps share a grid: ``2^(1/8)``. Speed only."""

UNEQUAL_NORMS_MARGIN = 1e-8
"""Relative error allowed to special functions and sums: gains keep nine digits; measured. Soundness (measured)."""

STEEPEST_LOG_DELTA = 1e4
"""``-d ln delta/d eps`` allowed for in lower ends; measured. Soundness (measured)."""

UNDERFLOW_FLOOR = 1e-270
"""Added above for what underflows: a few thousand panels of what is invisible. Soundness."""


@dataclass(frozen=True)
class UnequalNorms:
    """Every pair with misalignment at most ``m`` and norms within a factor ``e^log_ratio``, in both orders (C12).

    * ``dim``, ``rank``: ``d`` and ``r`` of the mechanism.
    * ``misalignment``: the largest permitted ``m = 1 - rho``.
    * ``log_ratio``: the largest permitted ``|ln kappa|``, the log of the ratio of norms, above 0.
    """

    dim: int
    rank: int
    misalignment: float
    log_ratio: float

    def profile(self) -> PrivacyProfile:
        """Return the privacy profile of the worst pair, with what composition and inversion need to know of it."""
        # Spacing of the log deltas that are answered: the enclosure is no narrower. Speed only.
        # Relative bracket of the epsilons that are answered: the enclosure is no narrower. Speed only.
        # Evaluations per deviation of the loss where releases are composed. Speed only.
        return PrivacyProfile(
            self.log_delta,
            table=self.table,
            resolution=8.0,
            numerics={"worst_pair": "enclosed", "search_goal": SEARCH_GOAL},
            inverse_spacing=2.0**-9,
            inverse_rtol=1e-5,
        )

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of the largest ``ln H_eps`` over all pairs."""
        grid = (
            None if self.parallel else _kept_grid(self, math.floor(math.log2(max(eps, 1e-6)) / LOG2_EPSILONS_PER_GRID))
        )
        lower, upper = self.on_one_grid(np.array([eps]), grid)
        if not lower[0] > 0.0:
            return Enclosure(-math.inf, min(0.0, math.log(upper[0])))
        return Enclosure(max(math.log(lower[0]), LOG_OF_ZERO_FROM_ABOVE), min(0.0, math.log(upper[0])))

    def table(self, eps: Array) -> tuple[Array, Array]:
        """Return lower and upper bounds of delta for many ``eps``, two arrays of the shape of ``eps``.

        Neighbouring values share a grid of :data:`EPSILONS_PER_GRID`, which is sought for two of them and valid for
        all.
        """
        order = np.argsort(eps)
        lower, upper = np.zeros(len(eps)), np.ones(len(eps))
        for begin in range(0, len(eps), EPSILONS_PER_GRID):
            chosen = order[begin : begin + EPSILONS_PER_GRID]
            few = np.unique(eps[chosen[[len(chosen) // 4, -1 - len(chosen) // 4]]])
            grid = None if self.parallel else search_grid(self, few, self.first_grid())
            lower[chosen], upper[chosen] = self.on_one_grid(eps[chosen], grid)
        return lower, upper

    def on_one_grid(self, eps: Array, grid: CellGrid | None) -> tuple[Array, Array]:
        """Return lower and upper bounds of delta with their margins, for ``eps`` off by a few roundings.

        Parallel vectors need no grid: ``grid`` is None for them.
        """
        # eps is lowered by a few roundings of eps + r R, and the ends move outward by 1e-8 (C12, as evaluated).
        shift = 4e-15 * (eps + self.rank * self.log_ratio)
        if grid is None:
            lower = upper = self.parallel_gain(eps - shift)
        else:
            lower, upper = _delta_ends(self.bounds(grid, eps - shift))
        return (
            np.maximum(lower * (1.0 - UNEQUAL_NORMS_MARGIN - STEEPEST_LOG_DELTA * shift) - UNDERFLOW_FLOOR, 0.0),
            np.minimum(upper * (1.0 + UNEQUAL_NORMS_MARGIN) + UNDERFLOW_FLOOR, 1.0),
        )

    @property
    def parallel(self) -> bool:
        """True where no angle is possible: in one dimension, or with a misalignment of 0."""
        return self.dim == 1 or self.misalignment == 0.0

    def parallel_gain(self, eps: Array) -> Array:
        """Return delta of parallel vectors, the larger gain at ``A = 1`` of both orders; it grows with the ratio."""
        # max of G(0) at tau = ln kappa and tau = -ln kappa, e' = eps + (r-1) tau (C12, step 4, parallel vectors)
        gain, size, c = ConditionalGain(self.dim, self.rank), np.array([self.log_ratio]), self.rank - 1.0
        with np.errstate(all="ignore"):
            both = gain.at(size, eps + c * size, 1.0)[0], gain.at(size, eps - c * size, -1.0)[0]
        return np.maximum(*both)

    def bounds(self, grid: CellGrid, eps: Array) -> CellBounds:
        """Return every bound on this grid (:class:`CellBounds`), without the margin for special functions."""
        with np.errstate(all="ignore"):
            return bounds_on(ConditionalGain(self.dim, self.rank), AlignmentLaw(self.rank), grid, eps)

    def first_grid(self) -> CellGrid:
        """Return a coarse grid, whose nodes crowd at 0 and at the ends of the range of ``tau``."""
        m, ratio = self.misalignment, self.log_ratio
        ratios = np.array([-ratio, 0.0, ratio])
        spread, width = math.sqrt(m * (2.0 - m) / self.rank), 1.0 / math.sqrt(0.5 * (self.rank + self.dim - 1.0))
        low = 0.02 * min(spread, max(width, ratio))
        out = np.geomspace(low, -LOWEST_LOG_ALIGNMENT, int(math.log(-LOWEST_LOG_ALIGNMENT / low) / 0.6) + 2)
        near = np.geomspace(0.02 * min(ratio, width), ratio, 12)
        around = [out, -out, *(tau + side * near for tau in ratios[::2] for side in (-1.0, 1.0))]
        points = np.concatenate([*around, ratios, [LOWEST_LOG_ALIGNMENT, 100.0, 180.0, HIGHEST_LOG_ALIGNMENT]])
        steps = np.concatenate([[0.0], m * 4.0 ** np.arange(-8.0, 1.0)])
        return CellGrid(steps, ratios, np.unique(np.clip(points, LOWEST_LOG_ALIGNMENT, HIGHEST_LOG_ALIGNMENT)))


def _delta_ends(bounds: CellBounds) -> tuple[Array, Array]:
    """Return the largest lower bound of a pair at a node, and the largest upper bound of a cell (C12, step 7)."""
    # max over nodes of the lower bounds <= worst pair <= max over cells of the upper bounds (C12, step 7)
    return bounds.lower.max(axis=(0, 1)), bounds.cells.max(axis=(0, 1))


# Grids that are remembered. Speed only.
@lru_cache(maxsize=256)
def _kept_grid(worst: UnequalNorms, place: int) -> CellGrid:
    """Return the grid that every ``eps`` from ``2^(place/8)`` to ``2^((place+1)/8)`` shares, remembered."""
    return search_grid(worst, 2.0 ** (LOG2_EPSILONS_PER_GRID * np.array([place, place + 1.0])), worst.first_grid())


def search_grid(worst: UnequalNorms, eps: Array, grid: CellGrid) -> CellGrid:
    """Return a grid on which these ``eps`` are enclosed to :data:`SEARCH_GOAL`, or the last one that was tried.

    The search starts with ``grid``. Bounds on every grid are valid; the search only decides how close they are.
    """
    # Refinements of a grid after which a search ends, close or not. Speed only.
    for _ in range(30):
        bounds = worst.bounds(grid, eps)
        finer = _refine_grid(grid, bounds)
        if finer is None:
            return grid
        grid = finer
    return grid


def _refine_grid(grid: CellGrid, bounds: CellBounds) -> CellGrid | None:
    """Return the grid with panels and cells halved where they cost most.

    None is returned where the enclosure is close enough, or the grid is full.
    """
    lower, upper = _delta_ends(bounds)
    goal = lower * (1.0 + SEARCH_GOAL) + UNDERFLOW_FLOOR
    todo = upper > goal
    if not todo.any():
        return None
    # Nodes in ``ln A`` on a grid from which on no more are added. Speed only.
    panels = _costly_panels(bounds, todo, SEARCH_GOAL * lower) & (len(grid.points) < 4000)
    active = (bounds.cells > goal) & todo
    alignments, ratios = _costly_cells(bounds, active, SEARCH_GOAL * lower, bool(panels.any()))
    # Misalignments on a grid from which on no more are added. Speed only.
    alignments &= len(grid.misalignments) < 400
    # Ratios of norms on a grid from which on no more are added. Speed only.
    ratios &= len(grid.ratios) < 60
    if not (panels.any() or alignments.any() or ratios.any()):
        return None
    near, far = grid.misalignments[:-1][alignments], grid.misalignments[1:][alignments]
    # Cells of misalignments are halved in their logs; the cell at 0 is cut at a sixteenth.
    middle = np.where(near > 0.0, np.sqrt(near * far), far / 16.0)
    halves = _interval_middles(grid.ratios, ratios)
    return CellGrid(
        np.unique(np.concatenate([grid.misalignments, middle])),
        np.unique(np.concatenate([grid.ratios, halves])),
        np.unique(np.concatenate([grid.points, halves, _interval_middles(grid.points, panels)])),
    )


def _interval_middles(nodes: Array, chosen: ChosenCells) -> Array:
    """Return the middles of the chosen intervals between neighbouring nodes."""
    return 0.5 * (nodes[:-1] + nodes[1:])[chosen]


def _costly_panels(bounds: CellBounds, todo: ChosenCells, allowed: Array) -> ChosenCells:
    """Return which panels cost the largest upper bound of a pair more than their share of ``allowed``."""
    worst = bounds.upper.reshape(-1, len(todo)).argmax(axis=0)
    rows, columns = np.unravel_index(worst, bounds.upper.shape[:2])
    (fall, rise), (fall_low, rise_low) = bounds.tails.weights(True), bounds.tails.weights(False)
    costly = np.zeros(len(bounds.layers.before.fine), bool)
    for i, (row, column) in enumerate(zip(rows, columns, strict=True)):
        if not (todo[i] and bounds.upper[row, column, i] - bounds.lower[row, column, i] > 0.4 * allowed[i]):
            continue
        cost = np.zeros(len(costly))
        for part, high, low in (
            (bounds.layers.before, fall, fall_low),
            (bounds.layers.falling, fall, fall_low),
            (bounds.layers.rising, rise, rise_low),
        ):
            # The gap of both means times the change of the gain, and the change of the tail times the errors
            cost += (high.mean - low.mean)[row] * part.fine[:, column, i]
            cost += high.change[row] * (part.coarse + 2.0 * part.spread)[:, column, i]
        # Panels with more than one part in so many of the error that is allowed are halved. Speed only.
        costly |= cost > 0.4 * allowed[i] / 600.0
    return costly


def _costly_cells(
    bounds: CellBounds, active: ChosenCells, allowed: Array, panels: bool
) -> tuple[ChosenCells, ChosenCells]:
    """Return which cells of misalignments and of ratios to halve: those that cost more, or both where neither does."""
    corners = bounds.upper[1:], bounds.upper[:-1]
    corner = np.maximum(*(np.maximum(c[:, 1:], c[:, :-1]) for c in corners))
    alone = bounds.over_alignments
    by_alignment = np.maximum(alone[:, 1:], alone[:, :-1]) - corner
    by_ratio = np.minimum(bounds.over_ratios, bounds.cells)
    small = 0.15 * allowed
    first = active & (by_alignment > small) & (by_alignment >= 0.3 * by_ratio)
    second = active & (by_ratio > small) & (by_ratio >= 0.3 * by_alignment)
    neither = active & ~first & ~second & (not panels)
    return np.asarray((first | neither).any(axis=(1, 2))), np.asarray((second | neither).any(axis=(0, 2)))
