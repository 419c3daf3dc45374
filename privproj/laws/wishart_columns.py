"""The exact profile of the vector Wishart mechanism over columns: a row ``(d, r, m)`` for each release (C9, C20).

Rows of one dimension and rank share the tables of their gains, and their panels are evaluated together.
"""

import numpy as np

from privproj.curves.profile import LARGEST_PROFILE_EPSILON, SMALLEST_PROFILE_EPSILON
from privproj.errors import NotConverged
from privproj.laws.wishart_integral import PANEL_ERROR_SHARE
from privproj.laws.wishart_loss import FARTHEST_EPSILON, log_deltas, log_infinite, steepness
from privproj.numerics.array_search import falling_inverses
from privproj.numerics.arrays import Array, Index, rows_by_kind, widen_outward_each

ROWS_TOGETHER = 4096
"""Rows whose inverses are sought together. Speed only."""


class WishartColumns:
    """The profile of a row ``(d, r, m)``, ``d >= 2``, with the margins of one release asked alone."""

    def log_deltas(self, eps: Array, laws: Array, threads: int = 1) -> tuple[Array, Array]:
        """Return ``(lower, upper)`` of ``ln delta`` at ``eps >= 0`` for every row; one thread is used."""
        lower, upper = np.empty_like(eps), np.empty_like(eps)
        for (dim, rank), rows in rows_by_kind(laws[:, :2], ROWS_TOGETHER):
            lower[rows], upper[rows] = _log_delta_ends(int(dim), int(rank), laws[rows, 2], eps[rows])
        return lower, upper

    def epsilons(self, log_deltas: Array, laws: Array, threads: int = 1) -> tuple[Array, Array]:
        """Return ``(lower, upper)`` of the inverse of :meth:`log_deltas` for every row; one thread is used."""
        lower, upper = np.empty_like(log_deltas), np.empty_like(log_deltas)
        for (dim, rank), rows in rows_by_kind(laws[:, :2], ROWS_TOGETHER):
            lower[rows], upper[rows] = _epsilon_ends(int(dim), int(rank), laws[rows, 2], log_deltas[rows])
        return lower, upper


def _log_delta_ends(dim: int, rank: int, misalignment: Array, eps: Array) -> tuple[Array, Array]:
    """Return the enclosure of ``ln delta`` for each pair; it says nothing where the panels do not settle."""
    # The profile falls to P(A <= 0), which it has all but reached at the farthest epsilon.
    near = np.minimum(eps, FARTHEST_EPSILON)
    try:
        whole, error = log_deltas(dim, rank, misalignment, near, PANEL_ERROR_SHARE)
    except NotConverged:
        if len(eps) == 1:
            return np.full(1, -np.inf), np.full(1, np.inf)
        ends = [_log_delta_ends(dim, rank, m, e) for m, e in zip(misalignment[:, None], eps[:, None], strict=True)]
        return np.concatenate([low for low, _ in ends]), np.concatenate([high for _, high in ends])
    lower, upper = widen_outward_each(whole, error, steepness(whole, rank, misalignment))
    for i in np.flatnonzero(eps > FARTHEST_EPSILON):
        lower[i] = widen_outward_each(np.array([log_infinite(rank, misalignment[i])]), 0.0, 1.0)[0][0]
    return lower, upper


def _epsilon_ends(dim: int, rank: int, misalignment: Array, levels: Array) -> tuple[Array, Array]:
    """Return the enclosure of the inverse for each pair, both ends evaluated."""
    lower, upper = np.zeros_like(levels), np.zeros_like(levels)
    above = np.flatnonzero(_log_delta_ends(dim, rank, misalignment, np.zeros_like(levels))[1] > levels)
    if not len(above):
        return lower, upper
    m = misalignment[above]

    def ends(eps: Array, rows: Index) -> tuple[Array, Array]:
        return _log_delta_ends(dim, rank, m[rows], eps)

    # The loss is about ((r - 1) T + sqrt(k) T Z) s + k (s T)^2/2, s^2 = m (2 - m)/r, k = (r + d - 1)/2, Z normal.
    k = 0.5 * (rank + dim - 1.0)
    variance = m * (2.0 - m) / rank * ((rank - 1.0) ** 2 + k)
    guess = np.sqrt(-2.0 * levels[above] * variance) - k * m * levels[above] / rank
    lower[above], upper[above] = falling_inverses(
        ends, levels[above], guess, SMALLEST_PROFILE_EPSILON, LARGEST_PROFILE_EPSILON
    )
    return lower, upper


WISHART_COLUMNS = WishartColumns()
"""The profile over columns."""
