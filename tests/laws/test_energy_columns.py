"""A projected energy over columns: one release at a time, a double integral, and inverses that were evaluated."""

import mpmath as mp
import numpy as np
import pytest
from helpers import needs

from privproj.laws.energy_columns import ENERGY_COLUMNS
from privproj.mechanisms import M1
from privproj.mechanisms.m1 import known_projection, known_projection_rank1

BOUNDS = (known_projection, known_projection_rank1)


def drawn(seed, count):
    """Mechanisms of a few shapes, and epsilons of the size of the loss."""
    rng = np.random.default_rng(seed)
    shapes = rng.choice([(1, 1), (30, 3), (400, 16), (1000, 256)], count).tolist()
    noises = 10.0 ** rng.uniform(-0.5, 1.0, count)
    return [
        M1(dim=dim, rank=rank, noise_multiplier=z) for (dim, rank), z in zip(shapes, noises.tolist(), strict=True)
    ], np.append(10.0 ** rng.uniform(-2.0, 0.8, count - 1), 0.0)


@pytest.mark.parametrize("bound", BOUNDS)
def test_rows_are_one_release_each_and_a_row_does_not_depend_on_the_others(bound):
    mechanisms, eps = drawn(1, 24)
    laws = np.array([bound.BOUND.columns(mechanism)[1] for mechanism in mechanisms])
    lower, upper = ENERGY_COLUMNS.log_deltas(eps, laws)
    assert np.isfinite(upper).all()
    for i, (mechanism, e) in enumerate(zip(mechanisms, eps.tolist(), strict=True)):
        scalar = bound.representation(mechanism).log_delta(e)
        assert lower[i] <= scalar.upper and scalar.lower <= upper[i]
        assert scalar.upper - scalar.lower <= 1.5 * (upper[i] - lower[i]) <= 1e-10
        alone = ENERGY_COLUMNS.log_deltas(eps[i : i + 1], laws[i : i + 1])
        assert (alone[0][0], alone[1][0]) == pytest.approx((lower[i], upper[i]), rel=1e-13, abs=1e-14)


@pytest.mark.parametrize("bound", BOUNDS)
def test_inverses_are_evaluated_at_both_ends(bound):
    mechanisms, _ = drawn(2, 12)
    laws = np.array([bound.BOUND.columns(mechanism)[1] for mechanism in mechanisms])
    levels = np.log(10.0 ** np.random.default_rng(3).uniform(-12.0, -1.0, len(laws)))
    lower, upper = ENERGY_COLUMNS.epsilons(levels, laws)
    found = np.isfinite(upper)
    assert found.sum() >= 6 and np.all(lower[~found] == -np.inf)
    lower, upper, levels, laws = lower[found], upper[found], levels[found], laws[found]
    assert np.all(ENERGY_COLUMNS.log_deltas(upper, laws)[1] <= levels)
    known = lower > 0.0
    assert np.all(ENERGY_COLUMNS.log_deltas(lower[known], laws[known])[0] > levels[known])
    assert np.all(upper[known] <= lower[known] * (1.0 + 1e-8))


def test_a_change_of_rank_one_in_one_dimension_is_one_integral():
    needs("numpy")
    # d = 1: X = U^2/r^2 with U ~ chi2_r
    mechanism, eps = M1(dim=1, rank=1, noise_multiplier=2.0), 0.5
    laws = np.array([known_projection_rank1.BOUND.columns(mechanism)[1]])
    lower, upper = ENERGY_COLUMNS.log_deltas(np.array([eps]), laws)

    def integrand(v):
        # U = v^2, v normal
        mu = v * v / 2
        inner = mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)
        return 2 * mp.npdf(v) * inner

    with mp.workdps(25):
        exact = mp.log(mp.quad(integrand, [mp.mpf("1e-6"), 0.3, 1, 2, 3, 5, 8, 14]))
    assert lower[0] <= exact <= upper[0]


def test_what_is_below_doubles_says_nothing():
    laws = np.array([known_projection.BOUND.columns(M1(dim=400, rank=64, noise_multiplier=50.0))[1]])
    assert ENERGY_COLUMNS.log_deltas(np.array([300.0]), laws) == (-np.inf, np.inf)
