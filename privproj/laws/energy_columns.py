"""The profiles of a projected energy over columns: a row ``(a, b, r, any_rank, scale)`` for each release (C4, C5, C7).

Rows of one law differ in their scale alone: they share its panels, and Gaussian profiles at their nodes are evaluated
together. ``any_rank`` is 1 for the bound of C5 and 0 for that of C4.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privproj.curves.profile import LARGEST_PROFILE_EPSILON, SMALLEST_PROFILE_EPSILON
from privproj.errors import NotConverged
from privproj.laws.panel_law import (
    DENSITY_MARGIN,
    MOST_LEVELS,
    NEGLIGIBLE_PANEL,
    PANEL_ERROR_SHARE,
    SMALLEST_TOLD_DELTA,
    LawPanels,
    gaussian_delta_values,
    panels_of,
    sums_of_rules,
)
from privproj.laws.projected_energy import ProjectedEnergy
from privproj.numerics.array_search import falling_inverses
from privproj.numerics.arrays import Array, Index, rows_by_kind, widen_outward_each
from privproj.numerics.kernels import SQRT_HALF_PI

_NodesOf = Callable[[int, NDArray[Any]], tuple[Array, Array]]

ROWS_TOGETHER = 512
"""Rows that are evaluated together. Speed only."""

LEAST_ERROR = 5e-12
"""Least relative error that is added, so that the widths of one question are alike (C24). Proof."""

LEAST_ERROR_PER_NAT = 2e-14
"""What is added to that for each nat of ``ln delta``. Proof."""

LARGEST_ERROR_RATIO = 1.5
"""How many times as large the error may be in a row that is answered (C24). Proof."""

NEGLIGIBLE_BELOW = 2e-14
"""Relative error allowed to what lies below the panels, beside what is above the cut. Proof."""

LARGEST_ANSWERED = 1e3
"""Largest epsilon at which rows are answered: beyond, too few inverses are found to keep both readings alike (C24).

A row is to be read both ways by columns or by the scalar door. Proof.
"""

LEAST_CUT = 1e-12
"""Least cut that is tried, as a share of the inflection point. Speed only."""


class _EnergyColumns:
    """The profile of a row ``(a, b, r, any_rank, scale)``, with the margins of one release asked alone."""

    def log_deltas(self, eps: Array, laws: Array, threads: int = 1) -> tuple[Array, Array]:
        """Return ``(lower, upper)`` of ``ln delta`` at ``eps >= 0`` for every row; one thread is used."""
        lower, upper = np.full_like(eps, -np.inf), np.full_like(eps, np.inf)
        for law, rows in rows_by_kind(laws[:, :4], ROWS_TOGETHER):
            if panels := _panels(law):
                lower[rows], upper[rows] = _log_delta_ends(panels, law[3] > 0.0, laws[rows, 4], eps[rows])
        return lower, upper

    def epsilons(self, log_deltas: Array, laws: Array, threads: int = 1) -> tuple[Array, Array]:
        """Return ``(lower, upper)`` of the inverse of :meth:`log_deltas` for every row; one thread is used."""
        lower, upper = np.full_like(log_deltas, -np.inf), np.full_like(log_deltas, np.inf)
        for law, rows in rows_by_kind(laws[:, :4], ROWS_TOGETHER):
            if panels := _panels(law):
                lower[rows], upper[rows] = _epsilon_ends(panels, law[3] > 0.0, laws[rows, 4], log_deltas[rows])
        return lower, upper


ENERGY_COLUMNS = _EnergyColumns()
"""The profiles over columns."""


def _panels(law: tuple[float, ...]) -> LawPanels | None:
    """The panels of ``(a, b, r)``; None where its mass does not come out."""
    panels = panels_of(ProjectedEnergy(law[0], law[1], int(law[2])))
    try:
        return panels if len(panels.base.x) else None
    except NotConverged:
        return None


def _log_delta_ends(panels: LawPanels, any_rank: bool, scale: Array, eps: Array) -> tuple[Array, Array]:
    """Return the enclosure of ``ln delta`` for each pair; it says nothing where doubles end or panels do not settle."""
    with np.errstate(all="ignore"):
        if any_rank:
            value, error, steepness = _any_rank_values(panels, scale, eps)
        else:
            whole, error = _mean_profiles(panels, scale, eps, np.full_like(eps, np.inf))
            value, error = np.where(whole >= SMALLEST_TOLD_DELTA, np.log(whole), np.nan), error + DENSITY_MARGIN
            steepness = _panel_steepness(value)
        value = np.where(eps <= LARGEST_ANSWERED, value, np.nan)
        least = LEAST_ERROR + LEAST_ERROR_PER_NAT * np.abs(value)
        known = np.isfinite(value) & (error < LARGEST_ERROR_RATIO * least)
        error = np.maximum(error, least)
    lower, upper = np.full_like(eps, -np.inf), np.full_like(eps, np.inf)
    lower[known], upper[known] = widen_outward_each(value[known], error[known], steepness[known])
    return lower, upper


def _epsilon_ends(panels: LawPanels, any_rank: bool, scale: Array, levels: Array) -> tuple[Array, Array]:
    """Return the enclosure of the inverse for each pair, both ends evaluated."""
    lower, upper = np.zeros_like(levels), np.zeros_like(levels)
    above = np.flatnonzero(_log_delta_ends(panels, any_rank, scale, np.zeros_like(levels))[1] > levels)
    if not len(above):
        return lower, upper
    scales = scale[above]

    def ends(eps: Array, rows: Index) -> tuple[Array, Array]:
        bottom, top = _log_delta_ends(panels, any_rank, scales[rows], eps)
        # what is not known is far below
        return bottom, np.where(top < np.inf, top, -1e5)

    # that of a Gaussian release whose squared shift is the mean: mu^2/2 + mu sqrt(2 |ln delta|)
    square = scales * panels.above[1][0]
    guess = 0.5 * square + np.sqrt(-2.0 * square * levels[above])
    lower[above], upper[above] = falling_inverses(
        ends, levels[above], guess, SMALLEST_PROFILE_EPSILON, LARGEST_PROFILE_EPSILON
    )
    found = _log_delta_ends(panels, any_rank, scale, upper)[1] <= levels
    return np.where(found, lower, -np.inf), np.where(found, upper, np.inf)


def _panel_steepness(value: Array) -> Array:
    """Return the steepness of a sum over panels whose log is ``value``."""
    return 4.0 * np.abs(value) + 40.0


def _mean_profiles(panels: LawPanels, scale: Array, eps: Array, up_to: Array) -> tuple[Array, Array]:
    """Return ``E[h_eps(scale X); X <= up_to]`` for each row, and the relative error that both rules show."""
    low, width, count = panels.grid
    place = np.clip((np.log(up_to) - low) / width, 0.0, float(count))
    whole = place.astype(np.intp)
    # a panel whose most is negligible beside the least of another is an error
    mass = panels.base.sums(np.ones_like(panels.base.x))[0]
    edges = gaussian_delta_values(eps[:, None], scale[:, None] * np.exp(low + np.arange(count + 1) * width))
    inside = np.arange(count) < whole[:, None]
    most = np.where(inside, mass * edges[:, 1:], 0.0)
    least = np.where(inside, mass * edges[:, :-1], 0.0).max(axis=1, keepdims=True)
    negligible = most < NEGLIGIBLE_PANEL * least
    error, value = np.where(negligible, most, 0.0).sum(axis=1), np.zeros_like(eps)
    rows, indices = np.nonzero(inside & ~negligible)

    def of_panels(level: int, indices: NDArray[Any]) -> tuple[Array, Array]:
        kept, which = np.unique(indices, return_inverse=True)
        nodes = panels.at(level, kept)
        return nodes.x[which], nodes.weighted[which]

    def of_parts(level: int, ends: NDArray[Any]) -> tuple[Array, Array]:
        nodes = panels.evaluate_panels(ends[:, 0], ends[:, 1])
        return nodes.x, nodes.weighted

    def integrate(
        rows: Index, places: Any, nodes: Callable[..., tuple[Array, Array]], halve: Callable[..., Array]
    ) -> None:
        # panels are halved where both rules disagree
        nonlocal value, error
        for level in range(MOST_LEVELS + 1):
            x, weighted = nodes(level, places)
            terms = gaussian_delta_values(eps[rows][:, None], scale[rows][:, None] * x) * weighted
            fine, coarse = sums_of_rules(terms)
            gap = np.abs(fine - coarse)
            total = value + np.bincount(rows, fine, len(eps))
            wide = (gap > 0.1 * PANEL_ERROR_SHARE * total[rows]) & (level < MOST_LEVELS)
            value = value + np.bincount(rows[~wide], fine[~wide], len(eps))
            error = error + np.bincount(rows[~wide], np.minimum(gap, fine)[~wide], len(eps))
            if not wide.any():
                return
            rows, places = np.repeat(rows[wide], 2), halve(places[wide])

    if len(rows):
        integrate(rows, indices, of_panels, lambda places: (2 * places[:, None] + np.arange(2)).ravel())
    part = np.flatnonzero(place > whole)
    if len(part):
        ends = np.stack([low + whole[part] * width, low + place[part] * width], axis=1)
        integrate(part, ends, of_parts, _halves)
    return value, np.where(value > 0.0, error / value, 0.0)


def _halves(ends: NDArray[Any]) -> NDArray[Any]:
    """Return both halves of each interval."""
    left, right = ends.T
    middle = 0.5 * (left + right)
    return np.stack([left, middle, middle, right], axis=1).reshape(-1, 2)


def _tails(panels: LawPanels, x: Array) -> tuple[Array, Array]:
    """Return ``P(X > x)`` and ``E[X; X > x]`` for each entry, as :meth:`LawPanels.tails` does."""
    low, width, count = panels.grid
    place = (np.log(x) - low) / width
    panel = np.clip(place, 0, count - 1).astype(np.intp)
    _, polynomials, fits = panels.interpolants
    t, logs = 2.0 * (place - panel) - 1.0, np.zeros((len(x), 2))
    for power in range(polynomials.shape[2]):
        logs = logs * t[:, None] + polynomials[panel, :, power]
    mass, moment = np.exp(logs).T
    for i in np.flatnonzero(~fits[panel] | (place <= 0.0) | (place >= count)):
        mass[i], moment[i] = panels.tails(float(x[i]))
    return mass, moment


def _any_rank_values(panels: LawPanels, scale: Array, eps: Array) -> tuple[Array, Array, Array]:
    """Return ``ln min_p E[g_p(scale X)]`` by its dual form (C5), its relative error and its steepness; nan: unknown."""
    mean = scale * panels.above[1][0]
    at_mean, slope = _profile_and_slope(eps, mean)
    # the tangent at the mean lies above h from 0 on, and the bound is h(E X)
    value, error = np.log(at_mean), np.zeros_like(eps)
    rows = np.flatnonzero(~((at_mean >= slope * mean) & (at_mean > 0.0)))
    if len(rows):
        value[rows], error[rows] = _cut_values(panels, scale[rows], eps[rows])
    # (v + sqrt 3)(v + mu + sqrt 3), v = sqrt(2 |ln delta|) (C20)
    v = np.sqrt(2.0 * np.abs(value)) + np.sqrt(3.0)
    return np.where(value >= np.log(SMALLEST_TOLD_DELTA), value, np.nan), error, v * (v + np.sqrt(mean))


def _cut_values(panels: LawPanels, scale: Array, eps: Array) -> tuple[Array, Array]:
    """Return ``ln V(c)`` at the root ``c`` of ``l_M(c)(c) = h(c)`` (C5), and its relative error."""
    bend = 2.0 * eps * (eps / (1.0 + np.hypot(1.0, eps)))

    def beyond(cut: Array, rows: Index) -> tuple[Array, Array]:
        mass, moment = _tails(panels, cut / scale[rows])
        return mass, np.where(mass > 0.0, np.maximum(cut, scale[rows] * moment / mass), cut)

    def gap(share: Array, rows: Index) -> tuple[Array, Array]:
        # (h(c) - l_p(c)) / h(p) at p = M(c)
        cut = share * bend[rows]
        top = beyond(cut, rows)[1]
        at_top, slope = _profile_and_slope(eps[rows], top)
        found = (gaussian_delta_values(eps[rows], cut) + slope * (top - cut)) / at_top - 1.0
        # where h(p) is below doubles, its tangent is steep
        found = np.minimum(np.where(np.isnan(found), 1.0, found), 1e300)
        return found, found

    everyone = np.arange(len(eps))
    share = falling_inverses(gap, np.zeros_like(eps), np.full_like(eps, 0.5), LEAST_CUT, 1.0)[1]
    cut = np.minimum(share, 1.0) * bend
    mass, top = beyond(cut, everyone)
    above = mass * gaussian_delta_values(eps, top)
    # V(c) = E[h(X); X <= c] + P(X > c) h(M(c))
    below, error = _mean_profiles(panels, scale, eps, cut / scale)
    lower, upper = widen_outward_each(np.log(below), error + DENSITY_MARGIN, _panel_steepness(np.log(below)))
    return np.log(below + above), np.where(below > 0.0, upper - lower, 0.0) + NEGLIGIBLE_BELOW


def _profile_and_slope(eps: Array, x: Array) -> tuple[Array, Array]:
    """Return ``h_eps(x)`` and ``h_eps'(x) = phi(u)/(2 sqrt x)``, ``u = (eps - x/2)/sqrt x`` (C3)."""
    root = np.sqrt(x)
    density = np.exp(-0.5 * np.square((eps - 0.5 * x) / root)) / (2.0 * SQRT_HALF_PI)
    return gaussian_delta_values(eps, x), density / (2.0 * root)
