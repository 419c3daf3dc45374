"""The vector Wishart mechanism with unequal norms: the worst pair is enclosed.

The reference draws nothing from the package: the loss ``L = -d ln kappa + (d+1-r)/2 ln(kappa A) + (W/2)(kappa/A - 1)``
is averaged over ``A`` and ``W`` by plain Gauss rules.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.legendre import leggauss
from scipy import special, stats

import privproj
from privproj import M1, Wishart
from privproj.bounds.m1._one_column import residual_profile
from privproj.laws.wishart_conditional_gain import AlignmentLaw, ConditionalGain
from privproj.laws.wishart_unequal_cells import Grid, bounds_on, tails_at
from privproj.laws.wishart_unequal_norms import CLOSE, UnequalNorms, searched

LAYERS = (0.0, 1e-3, 1e-2, 0.05, 0.15, 0.3, 0.5, 0.75, 1.0)


def mean_over_w(log_a, tau, eps, dim, rank):
    """``E_W[(1 - e^(eps - L))_+]`` over the half line of ``W`` where ``L > eps``."""
    n = rank + dim - 1.0
    constant, slope = -dim * tau + 0.5 * (dim + 1 - rank) * (tau + log_a), 0.5 * np.expm1(tau - log_a)
    least, most = max(0.0, n - 12 * math.sqrt(2 * n)), n + 14 * math.sqrt(2 * n) + 60.0
    start = np.maximum((eps - constant) / slope, 0.0)
    decay = 40.0 / np.maximum(np.abs(0.5 - (0.5 * n - 1) / np.maximum(start, 1e-300)), 0.2 / math.sqrt(n))
    low = np.where(slope > 0, np.maximum(start, least), np.where(start > least, least, np.maximum(start - decay, 0.0)))
    high = np.where(slope > 0, np.maximum(most, low + decay), np.minimum(start, most))
    near, signed = np.where(slope > 0, low, high), np.where(slope > 0, 1.0, -1.0) * (high - low)
    nodes, weights = leggauss(12)
    total = np.zeros_like(slope)
    for left, right in itertools.pairwise(LAYERS):
        w = near[:, None] + signed[:, None] * (left + (right - left) * 0.5 * (nodes + 1))
        loss = constant[:, None] + w * slope[:, None]
        law = np.exp((0.5 * n - 1) * np.log(0.5 * w) - 0.5 * w - special.gammaln(0.5 * n)) / 2
        total += (law * np.clip(-np.expm1(eps - loss), 0, None)) @ weights * np.abs(signed) * (right - left) / 2
    return np.where(high > low, total, 0.0)


def one_pair(dim, rank, m, tau, eps, count=300):
    """``H_eps`` of one pair."""
    with np.errstate(all="ignore"):
        if m == 0.0:
            return float(mean_over_w(np.zeros(1), tau, eps, dim, rank)[0])
        s, root = math.sqrt(m * (2 - m)), math.sqrt(rank)
        reach = math.asinh(1e12 if rank == 1 else 1e6 if rank == 2 else 400.0 if rank < 8 else 60.0)
        kink, scale = (math.expm1(tau) + m) * root / s, root / s / math.sqrt(0.5 * (rank + dim - 1))
        near = np.geomspace(1e-3 * min(scale, 1.0), 20 * scale, 60)
        v = np.concatenate([np.linspace(-reach, reach, count), np.arcsinh(kink + np.concatenate([-near, [0.0], near]))])
        start = math.asinh(-(1 - m) * root / s)
        v = np.unique(np.append(v[(v > start) & (v <= reach)], max(start, -reach)))
        middle, half = 0.5 * (v[1:] + v[:-1]), 0.5 * np.diff(v) / math.sqrt(3.0)
        v = np.concatenate([middle - half, middle + half])
        t = np.sinh(v)
        excess = s * t / root - m
        weight = stats.t.pdf(t, rank) * np.cosh(v) * np.concatenate([half, half]) * math.sqrt(3.0)
        gains = mean_over_w(np.log1p(np.maximum(excess, -1 + 1e-300)), tau, eps, dim, rank)
        return float(weight @ gains + stats.t.cdf(-(1 - m) * root / s, rank))


def largest(dim, rank, m, ratio, eps):
    """The largest over some pairs: a lower bound of the supremum."""
    shares = [0.0, *np.geomspace(1e-4, 1.0, 9)]
    found = {(x, t): one_pair(dim, rank, m * x, t * ratio, eps, 200) for x in shares for t in (-1.0, 0.5, 1.0)}
    best, side = max(found, key=found.__getitem__)
    near = np.unique(np.clip(best * np.geomspace(0.5, 2.0, 5), 0.0, 1.0))
    return max(one_pair(dim, rank, m * x, side * ratio, eps, 500) for x in near)


def law_of(dim, rank, m, ratio, eps):
    """Upper end, lower end and reference."""
    found = UnequalNorms(dim, rank, m, ratio).log_delta(eps)
    return math.exp(found.upper), math.exp(found.lower), largest(dim, rank, m, ratio, eps)


@pytest.mark.parametrize(
    ("dim", "rank", "m", "ratio", "eps"),
    [
        (2, 2, 1e-4, math.log(1.001), 3.0),
        (2, 1, 0.3, 0.5, 0.7),
        (3, 6, 0.5, 0.5, 0.2),
        (1000, 16, 0.0023, math.log(1.05), 1.0),
        (1000, 1000, 1e-3, 0.02, 0.0),
        (100000, 3, 1e-6, 1e-4, 0.5),
        (100, 50, 1e-6, 0.01, 0.5),
        (20, 40, 1.5, 0.2, 0.5),
    ],
)
def test_the_enclosure_holds_the_worst_pair(dim, rank, m, ratio, eps):
    upper, lower, reference = law_of(dim, rank, m, ratio, eps)
    assert reference <= upper * (1 + 1e-6)
    assert lower <= reference * (1 + 5e-3), "the pair behind the lower end exists"
    assert upper <= lower * (1 + 1.5 * CLOSE)


@settings(max_examples=25)
@given(
    dim=st.floats(0.3, 4).map(lambda x: round(10**x)),
    share=st.floats(-2, 0.3),
    m=st.floats(-9, 0).map(lambda x: 10.0**x),
    ratio=st.floats(-5, -0.2).map(lambda x: 10.0**x),
    eps=st.floats(0, 4),
)
def test_the_upper_end_is_above_every_pair(dim, share, m, ratio, eps):
    upper, _, reference = law_of(dim, max(1, round(dim * 10**share)), m, ratio, eps)
    assert reference <= upper * (1 + 1e-6) or upper < 1e-25


@pytest.mark.parametrize(("dim", "rank", "m", "ratio"), [(6, 3, 0.1, 0.3), (40, 60, 1e-3, 0.05), (2, 1, 0.2, 0.4)])
def test_a_coarse_grid_is_above_the_pairs_between_its_nodes(dim, rank, m, ratio):
    """With three nodes of everything but ``x`` the bounds of the cells still cover what is inside."""
    gain, law = ConditionalGain(dim, rank), AlignmentLaw(rank)
    points = np.unique(np.concatenate([UnequalNorms(dim, rank, m, ratio).first_grid().points, [-ratio, ratio]]))
    grid = Grid(np.array([0.0, 0.1 * m, m]), np.array([-ratio, 0.0, ratio]), points)
    for eps in (0.0, 0.4, 1.5):
        with np.errstate(all="ignore"):
            cells = bounds_on(gain, law, grid, np.array([eps])).cells[:, :, 0]
        for row, share in enumerate((0.04, 0.45)):
            for column, side in enumerate((-0.5, 0.5)):
                assert one_pair(dim, rank, share * m, side * ratio, eps) <= cells[row, column] * (1 + 1e-6)


@pytest.mark.parametrize(("dim", "rank", "tau", "eps"), [(5, 3, 0.3, 0.5), (5, 9, -0.4, 0.6), (400, 30, -0.1, 0.2)])
def test_gains_and_their_slopes(dim, rank, tau, eps):
    """The gain is the mean over ``W``, and its differences are within the bounds of its slope on every panel."""
    gain, y = ConditionalGain(dim, rank), np.linspace(0.0, 1.2, 60)
    start = np.array([eps + (rank - 1.0) * tau])
    for values, slopes, side in (
        (gain.falling(y[1:], start), gain.falling_slopes(y, start), -1.0),
        (gain.rising(y[1:], start), gain.rising_slopes(y, start), 1.0),
    ):
        with np.errstate(all="ignore"):
            exact = mean_over_w(tau + side * y[1:], tau, eps, dim, rank)
        assert values[:, 0] == pytest.approx(exact, rel=1e-6, abs=1e-12)
        change = np.diff(values[:, 0]) / np.diff(y[1:])
        slack = 1e-9 * (np.abs(slopes.high[1:, 0]) + np.abs(slopes.low[1:, 0])) + 1e-10
        assert np.all(change <= slopes.high[1:, 0] + slack) and np.all(change >= slopes.low[1:, 0] - slack)


@settings(max_examples=20)
@given(m=st.floats(-12, 0.2).map(lambda x: 10.0**x), ratio=st.floats(-8, 1).map(lambda x: 10.0**x), eps=st.floats(0, 3))
def test_the_search_covers_the_whole_promise(m, ratio, eps):
    worst = UnequalNorms(30, 7, m, ratio)
    for grid in (worst.first_grid(), searched(worst, np.array([eps]), worst.first_grid())):
        assert (grid.misalignments[0], grid.misalignments[-1]) == (0.0, m)
        assert (grid.ratios[0], grid.ratios[-1]) == (-ratio, ratio)
        assert np.all(np.isin([0.0, *grid.ratios], grid.points)) and np.all(np.diff(grid.points) > 0.0)


def test_means_of_tails_are_between_their_bounds():
    grid = Grid(np.array([0.0, 1e-3, 0.2, 1.4]), np.array([0.0]), np.linspace(-3.0, 2.0, 41))
    tails = tails_at(AlignmentLaw(5), grid)
    for i, (left, right) in enumerate(zip(grid.points[:-1], grid.points[1:], strict=True)):
        inner = np.linspace(left, right, 401)
        for row, m in enumerate(grid.misalignments[1:], 1):
            mean = np.trapezoid(stats.t.cdf((np.exp(inner) - 1 + m) * math.sqrt(5 / (m * (2 - m))), 5), inner)
            low, high = tails.below_means[1][row, i], tails.below_means[0][row, i]
            assert low * (1 - 1e-3) <= mean / (right - left) <= high * (1 + 1e-3)


def test_a_table_is_the_profile():
    worst, eps = UnequalNorms(50, 8, 1e-4, 0.02), np.array([0.3, 0.0, 1.1, 0.6])
    lower, upper = worst.table(eps)
    for i, e in enumerate(eps):
        one = worst.log_delta(float(e))
        assert math.exp(one.lower) <= upper[i] and lower[i] <= math.exp(one.upper)
        assert upper[i] <= math.exp(one.lower) * 1.03


def test_parallel_vectors_and_one_dimension_have_a_closed_form():
    """Scaling a Gamma variable: ``H_eps`` by its distribution function."""
    k, tau, eps = 2.0, math.log(1.5), 0.2
    exact = []
    for t in (tau, -tau):
        cut = (eps + k * t) / math.expm1(t)
        tail = special.gammaincc if t > 0 else special.gammainc
        exact.append(tail(k, cut) - math.exp(eps) * tail(k, cut * math.exp(t)))
    found = UnequalNorms(1, 4, 0.5, tau).log_delta(eps)
    assert math.exp(found.lower) <= max(exact) * (1 + 1e-12) and max(exact) <= math.exp(found.upper) * (1 + 1e-12)
    assert found.upper - found.lower <= 1e-6


def test_a_larger_promise_leaks_no_less():
    ends = [UnequalNorms(30, 10, m, ratio).log_delta(0.4) for m, ratio in ((1e-3, 0.01), (1e-2, 0.01), (1e-2, 0.1))]
    assert all(smaller.lower <= larger.upper for smaller, larger in itertools.pairwise(ends))


def test_results_are_guarantees_without_a_reservation():
    found = privproj.delta(Wishart(dim=1000, rank=16, misalignment=0.0023, norm_ratio=1.05), epsilon=1.0)
    assert found.numerics["worst_pair"] == "enclosed" and not any("observed" in note for note in found.warnings)
    assert found.lower is not None and found.lower <= found.value <= found.lower * (1 + 2 * CLOSE)
    column = M1(dim=100, rank=64, noise_multiplier=5.0, span_dim=20, residual_misalignment=1e-3, residual_norm=1.0,
        other_residual_norm=1.2)  # fmt: skip
    profile = residual_profile(column)
    assert profile is not None and profile.numerics["worst_pair"] == "enclosed"
    reference = one_pair(80, 44, 1e-3, math.log(1.2), 0.5)
    assert reference <= math.exp(profile.log_delta(0.5).upper) * (1 + 1e-6)


def test_releases_compose_above_one_release():
    mechanism = Wishart(dim=20, rank=4, misalignment=1e-3, norm_ratio=1.05)
    one, two = (privproj.epsilon(mechanism, delta=1e-3, steps=steps) for steps in (1, 2))
    assert one.value <= two.value * (1 + CLOSE) and two.value <= 2 * privproj.epsilon(mechanism, delta=5e-4).value
