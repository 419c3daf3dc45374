"""The gain given the alignment, and bounds of its slope."""

import numpy as np
import pytest
from laws.pairs import mean_over_w

from privproj.laws.wishart_conditional_gain import ConditionalGain


@pytest.mark.parametrize(("dim", "rank", "tau", "eps"), [(5, 3, 0.3, 0.5), (5, 9, -0.4, 0.6), (400, 30, -0.1, 0.2)])
def test_gains_and_their_slopes(dim, rank, tau, eps):
    """The gain is the mean over ``W``, and its differences are within the bounds of its slope on every panel."""
    gain, y = ConditionalGain(dim, rank), np.linspace(0.0, 1.2, 60)
    start = np.array([eps + (rank - 1.0) * tau])
    for side in (1.0, -1.0):
        values, slopes = gain.at(y[1:], start, side), gain.slopes(y, start, side)
        with np.errstate(all="ignore"):
            exact = mean_over_w(tau - side * y[1:], tau, eps, dim, rank)
        assert values[:, 0] == pytest.approx(exact, rel=1e-6, abs=1e-12)
        change = np.diff(values[:, 0]) / np.diff(y[1:])
        slack = 1e-9 * (np.abs(slopes.high[1:, 0]) + np.abs(slopes.low[1:, 0])) + 1e-10
        assert np.all(change <= slopes.high[1:, 0] + slack) and np.all(change >= slopes.low[1:, 0] - slack)
