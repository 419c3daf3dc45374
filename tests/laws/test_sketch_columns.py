"""The sketch profile over columns: one release at a time, balls, and inverses that were evaluated."""

import numpy as np
import pytest
from helpers import needs

from privproj.laws.sketch_columns import SKETCH_COLUMNS
from privproj.mechanisms import Sketch
from privproj.mechanisms.sketch.exact_rank1 import columns, sketch_profile


def hostile_rows(seed, count):
    """Rows ``(r, nu)`` and epsilons of the size of the loss."""
    rng = np.random.default_rng(seed)
    laws = np.stack([rng.choice([1.0, 2.0, 7.0, 64.0, 1e4, 1e7], count), 10.0 ** rng.uniform(-8.0, 3.0, count)], axis=1)
    eps = laws[:, 1] * np.sqrt(laws[:, 0]) * 10.0 ** rng.uniform(-2.0, 1.3, count)
    eps[::7] = 0.0
    return laws, eps


def test_rows_are_one_release_each():
    laws, eps = hostile_rows(1, 120)
    lower, upper = SKETCH_COLUMNS.log_deltas(eps, laws)
    for (rank, nu), e, low, high in zip(laws.tolist(), eps.tolist(), lower, upper, strict=True):
        assert (low, high) == pytest.approx(sketch_profile(rank, nu).log_delta(e), rel=1e-13, abs=1e-13)


def test_inverses_are_evaluated_at_both_ends():
    laws, _ = hostile_rows(2, 300)
    levels = np.log(10.0 ** np.random.default_rng(3).uniform(-30.0, -0.1, 300))
    lower, upper = SKETCH_COLUMNS.epsilons(levels, laws)
    assert np.all(np.isfinite(upper)) and np.any(upper == 0.0)
    assert np.all(SKETCH_COLUMNS.log_deltas(upper, laws)[1] <= levels)
    known = lower > 0.0
    assert np.all(SKETCH_COLUMNS.log_deltas(lower[known], laws[known])[0] > levels[known])
    assert np.all(known | (upper < 1e-3)) and np.all(upper[known] <= lower[known] * (1.0 + 1e-7))


def test_layers_are_one_release_of_the_sum_of_their_ranks():
    assert columns(Sketch(rank=16, gamma=1000.0)) == (SKETCH_COLUMNS, (16.0, 1e-3))


@pytest.mark.full
def test_rows_against_balls():
    needs("flint")
    from flint import arb, ctx

    from privproj.rigorous.profiles import BallSecretSketch

    laws, eps = hostile_rows(5, 150)
    lower, upper = SKETCH_COLUMNS.log_deltas(eps, laws)
    for (rank, nu), e, low, high in zip(laws.tolist(), eps.tolist(), lower, upper, strict=True):
        with ctx.workprec(256):
            ball = BallSecretSketch(int(rank), 1.0 / nu).delta(arb(e), {}).log()
        assert not low > ball and not high < ball, (rank, nu, e)
