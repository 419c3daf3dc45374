"""The Wishart profile over columns against one release at a time, mpmath and balls, on hostile rows."""

import math

import mpmath
import numpy as np
import pytest
from helpers import needs
from reference.wishart import exact_delta

from privproj.laws.wishart_columns import WISHART_COLUMNS
from privproj.laws.wishart_loss import VectorWishart
from privproj.mechanisms import Wishart
from privproj.mechanisms.wishart.exact import columns


def hostile_rows(seed, count, largest=6.0):
    """Rows of the law and epsilons of their size: any dimension and rank, misalignments from 1e-15 to 1.96."""
    rng, laws, eps = np.random.default_rng(seed), [], []
    for i in range(count):
        dim, rank = round(10 ** rng.uniform(0.302, largest)), round(10 ** rng.uniform(0.0, largest))
        rank = max(1, dim + int(rng.integers(-2, 4))) if i % 6 == 0 else rank
        m = min(10 ** rng.uniform(-15.0, 0.29), 1.96)
        laws.append((dim, rank, m))
        eps.append(0.0 if i % 9 == 0 else max(m * dim, 3.0 * math.sqrt(m * dim / rank)) * 10 ** rng.uniform(-3.0, 1.3))
    return np.array(laws), np.minimum(eps, 1e8)


def test_rows_are_one_release_each():
    """Rows of several kinds in any order, and several of one kind together: as when each is asked alone."""
    laws, eps = hostile_rows(1, 8)
    laws, eps = np.concatenate([laws, laws * [1.0, 1.0, 0.5], laws[::-1]]), np.tile(eps, 3)
    lower, upper = WISHART_COLUMNS.log_deltas(eps, laws)
    for (dim, rank, m), e, low, high in zip(laws.tolist(), eps.tolist(), lower, upper, strict=True):
        alone = VectorWishart(int(dim), int(rank), m).log_delta(e)
        assert (low, high) == pytest.approx(alone, rel=1e-13, abs=1e-13)


def test_inverses_are_evaluated_at_both_ends():
    rng = np.random.default_rng(3)
    laws = np.stack([np.full(20, 300.0), rng.choice([1.0, 16.0], 20), 10.0 ** rng.uniform(-9.0, -0.5, 20)], axis=1)
    levels = np.log(10.0 ** rng.uniform(-10.0, -1.0, 20))
    levels[0] = -0.1
    lower, upper = WISHART_COLUMNS.epsilons(levels, laws)
    finite = np.isfinite(upper)
    assert finite.sum() > 10 and upper[0] == 0.0
    assert np.all(WISHART_COLUMNS.log_deltas(upper[finite], laws[finite])[1] <= levels[finite])
    known = finite & (lower > 0.0)
    assert np.all(WISHART_COLUMNS.log_deltas(lower[known], laws[known])[0] > levels[known])
    assert np.all(upper[known] <= lower[known] * (1.0 + 1e-8))
    for i in np.flatnonzero(~finite):  # infinite losses alone are too likely
        assert VectorWishart(300, int(laws[i, 1]), laws[i, 2]).log_delta(1e9).upper > levels[i]


def test_the_farthest_epsilons_are_bounded_by_the_last_one_that_is_evaluated():
    lower, upper = WISHART_COLUMNS.log_deltas(np.array([1e12]), np.array([[50.0, 3.0, 0.01]]))
    alone = VectorWishart(50, 3, 0.01).log_delta(1e12)
    assert (lower[0], upper[0]) == pytest.approx(alone, rel=1e-12)


def test_what_has_no_row():
    assert columns(Wishart(dim=1, rank=3, misalignment=0.1)) is None
    assert columns(Wishart(dim=9, rank=3, misalignment=0.1, norm_ratio=1.1)) is None
    assert columns(Wishart(dim=9, rank=3, misalignment=0.1)) == (WISHART_COLUMNS, (9.0, 3.0, 0.1))


@pytest.mark.full
def test_rows_against_mpmath():
    laws, eps = hostile_rows(5, 2, largest=2.5)
    lower, upper = WISHART_COLUMNS.log_deltas(eps, laws)
    for (dim, rank, m), e, low, high in zip(laws.tolist(), eps.tolist(), lower, upper, strict=True):
        with mpmath.workdps(30):
            exact = float(mpmath.log(exact_delta(e, int(dim), int(rank), m)))
        assert low - 1e-13 <= exact <= high + 1e-13 and high - low < 1e-10


@pytest.mark.slow
def test_rows_against_balls():
    needs("flint")
    from flint import arb, ctx

    from privproj.rigorous.wishart import BallWishartProfile

    laws, eps = hostile_rows(7, 400)
    lower, upper = WISHART_COLUMNS.log_deltas(eps, laws)
    for (dim, rank, m), e, low, high in zip(laws.tolist(), eps.tolist(), lower, upper, strict=True):
        with ctx.workprec(192):
            ball = BallWishartProfile(int(dim), int(rank), m).delta(arb(e), {}).log()
        assert not low > ball and not high < ball, (dim, rank, m, e)
