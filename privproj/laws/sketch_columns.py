"""The exact profile of the secret sketch where one record is one column, over columns: a row ``(r, nu)`` (C14).

Rows of one rank are evaluated together.
"""

import numpy as np

from privproj.curves.profile import LARGEST_PROFILE_EPSILON, SMALLEST_PROFILE_EPSILON
from privproj.numerics.array_search import falling_inverses
from privproj.numerics.arrays import Array, Index, rows_by_kind, widen_outward_each
from privproj.numerics.gamma_hockey_stick import QUADRATURE_RELATIVE_ERROR, log_gamma_hockey_stick

ROWS_TOGETHER = 256
"""Rows whose quadratures are evaluated together. Speed only."""


class SketchColumns:
    """The profile of a row ``(r, nu)``, with the margins of one release asked alone."""

    def log_deltas(self, eps: Array, laws: Array, threads: int = 1) -> tuple[Array, Array]:
        """Return ``(lower, upper)`` of ``ln delta`` at ``eps >= 0`` for every row; one thread is used."""
        lower, upper = np.empty_like(eps), np.empty_like(eps)
        for (rank,), rows in rows_by_kind(laws[:, :1], ROWS_TOGETHER):
            lower[rows], upper[rows] = log_delta_ends(rank, laws[rows, 1], eps[rows])
        return lower, upper

    def epsilons(self, log_deltas: Array, laws: Array, threads: int = 1) -> tuple[Array, Array]:
        """Return ``(lower, upper)`` of the inverse of :meth:`log_deltas` for every row; one thread is used."""
        lower, upper = np.zeros_like(log_deltas), np.zeros_like(log_deltas)
        for (rank,), rows in rows_by_kind(laws[:, :1], ROWS_TOGETHER):
            rows = rows[log_delta_ends(rank, laws[rows, 1], np.zeros(len(rows)))[1] > log_deltas[rows]]
            if len(rows):
                lower[rows], upper[rows] = _epsilon_ends(rank, laws[rows, 1], log_deltas[rows])
        return lower, upper


def log_delta_ends(rank: float, nu: Array, eps: Array) -> tuple[Array, Array]:
    """Return the enclosure of ``ln delta(eps)`` for each ``nu``; two arrays of the shape ``(n,)`` of both."""
    # half = r ln(1+nu)/2, k = nu/(1+nu), U = X/2 ~ Gamma(r/2) (C14).
    half, k = 0.5 * rank * np.log1p(nu), nu / (1.0 + nu)
    with np.errstate(all="ignore"):
        # Present against absent: L = nu U - half > eps.
        rise = log_gamma_hockey_stick(0.5 * rank, nu, (half + eps) / nu, 1.0)
        # Absent against present: L = half - k U > eps.
        fall = log_gamma_hockey_stick(0.5 * rank, k, (half - eps) / k, -1.0)
    found = np.maximum(rise, fall)
    return widen_outward_each(found, QUADRATURE_RELATIVE_ERROR, 4.0 * np.abs(found) + 40.0)


def _epsilon_ends(rank: float, nu: Array, levels: Array) -> tuple[Array, Array]:
    """Return the enclosure of the inverse for each ``nu``, both ends evaluated."""

    def ends(eps: Array, rows: Index) -> tuple[Array, Array]:
        return log_delta_ends(rank, nu[rows], eps)

    # The loss nu U - r ln(1 + nu)/2 has the deviation nu sqrt(r/2), and an exponential tail of scale nu.
    guess = nu * (np.sqrt(-levels * rank) - levels)
    return falling_inverses(ends, levels, guess, SMALLEST_PROFILE_EPSILON, LARGEST_PROFILE_EPSILON)


SKETCH_COLUMNS = SketchColumns()
"""The profile over columns."""
