"""Bounds of the cells of a grid cover what is inside."""

import math

import numpy as np
import pytest
from laws.pairs import mean_over_w, one_pair
from scipy import stats

from privproj.laws.wishart_unequal_cells import AlignmentLaw, CellGrid, ConditionalGain, bounds_on, tails_on_grid
from privproj.laws.wishart_unequal_norms import UnequalNorms


@pytest.mark.parametrize(("dim", "rank", "m", "ratio"), [(6, 3, 0.1, 0.3), (40, 60, 1e-3, 0.05), (2, 1, 0.2, 0.4)])
def test_a_coarse_grid_is_above_the_pairs_between_its_nodes(dim, rank, m, ratio):
    """With three nodes of everything but ``x`` the bounds of the cells still cover what is inside."""
    gain, law = ConditionalGain(dim, rank), AlignmentLaw(rank)
    points = np.unique(np.concatenate([UnequalNorms(dim, rank, m, ratio).first_grid().points, [-ratio, ratio]]))
    grid = CellGrid(np.array([0.0, 0.1 * m, m]), np.array([-ratio, 0.0, ratio]), points)
    for eps in (0.0, 0.4, 1.5):
        with np.errstate(all="ignore"):
            cells = bounds_on(gain, law, grid, np.array([eps])).cells[:, :, 0]
        for row, share in enumerate((0.04, 0.45)):
            for column, side in enumerate((-0.5, 0.5)):
                assert one_pair(dim, rank, share * m, side * ratio, eps) <= cells[row, column] * (1 + 1e-6)


def test_means_of_tails_are_between_their_bounds():
    grid = CellGrid(np.array([0.0, 1e-3, 0.2, 1.4]), np.array([0.0]), np.linspace(-3.0, 2.0, 41))
    tails = tails_on_grid(AlignmentLaw(5), grid)
    for i, (left, right) in enumerate(zip(grid.points[:-1], grid.points[1:], strict=True)):
        inner = np.linspace(left, right, 401)
        for row, m in enumerate(grid.misalignments[1:], 1):
            mean = np.trapezoid(stats.t.cdf((np.exp(inner) - 1 + m) * math.sqrt(5 / (m * (2 - m))), 5), inner)
            low, high = tails.below_means[1][row, i], tails.below_means[0][row, i]
            assert low * (1 - 1e-3) <= mean / (right - left) <= high * (1 + 1e-3)


@pytest.mark.parametrize(("dim", "rank", "tau", "eps"), [(5, 3, 0.3, 0.5), (5, 9, -0.4, 0.6), (400, 30, -0.1, 0.2)])
def test_gains_and_their_slopes(dim, rank, tau, eps):
    """The gain is the mean over ``W``, and its differences are within the bounds of its slope on every panel."""
    gain, y = ConditionalGain(dim, rank), np.linspace(0.0, 1.2, 60)
    start = np.array([eps + (rank - 1.0) * tau])
    for side in (1.0, -1.0):
        values, (high, low) = gain.at(y[1:], start, side), gain.slopes(y, start, side)
        with np.errstate(all="ignore"):
            exact = mean_over_w(tau - side * y[1:], tau, eps, dim, rank)
        assert values[:, 0] == pytest.approx(exact, rel=1e-6, abs=1e-12)
        change = np.diff(values[:, 0]) / np.diff(y[1:])
        slack = 1e-9 * (np.abs(high[1:, 0]) + np.abs(low[1:, 0])) + 1e-10
        assert np.all(change <= high[1:, 0] + slack) and np.all(change >= low[1:, 0] - slack)
