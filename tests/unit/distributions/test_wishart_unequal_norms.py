"""The vector Wishart mechanism with unequal norms: the worst pair is enclosed."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy import special
from unit.distributions.pairs import log_density, mean_over_w, one_pair

import privproj
from privproj import M1, Wishart
from privproj.distributions.wishart_loss import VectorWishart
from privproj.distributions.wishart_unequal_norms import UnequalNorms
from privproj.mechanisms.m1.column import residual_profile

WIDTH = 0.03
"""Relative width of an enclosure: panels, and cells of ratios and of alignments."""


def largest(dim, rank, m, ratio, eps):
    """The maximum over some pairs: a lower bound of the supremum."""
    shares = [0.0, *np.geomspace(1e-4, 1.0, 9)]
    found = {(x, t): one_pair(dim, rank, m * x, t * ratio, eps, 200) for x in shares for t in (-1.0, 0.5, 1.0)}
    best, side = max(found, key=found.__getitem__)
    near = np.unique(np.clip(best * np.geomspace(0.5, 2.0, 5), 0.0, 1.0))
    return max(one_pair(dim, rank, m * x, side * ratio, eps, 500) for x in near)


def distribution_of(dim, rank, m, ratio, eps):
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
def test_unequal_norms_enclosure_contains_worst_pair(dim, rank, m, ratio, eps):
    upper, lower, reference = distribution_of(dim, rank, m, ratio, eps)
    assert reference <= upper * (1 + 1e-6)
    assert lower <= reference * (1 + 5e-3), "the pair behind the lower end exists"
    assert upper <= lower * (1 + WIDTH)


@pytest.mark.parametrize(
    ("dim", "rank", "m", "ratio", "eps"),
    [
        (2, 1, 1e-3, math.log(1.01), 1.001 * math.log(1.01)),
        (2, 1, 1e-6, 1e-6, 1.001e-6),
        (2, 1, 1e-3, math.log(1.01), math.log(1.01)),
        (4, 5, 1e-6, math.log(1.01), 0.0),
        (9, 10, 1e-6, math.log(1.01), 0.0),
    ],
)
def test_gains_at_nodes_with_tiny_gain(dim, rank, m, ratio, eps):
    """The gain starts within rounding of 0."""
    upper, lower, reference = distribution_of(dim, rank, m, ratio, eps)
    assert reference <= upper * (1 + 1e-6) and lower <= upper <= lower * (1 + WIDTH)
    ends = UnequalNorms(dim, rank, m, ratio).delta_ends(np.array([eps]))
    assert ends[0] < ends[1], "the lower end is its own, and not cut to the upper one"


def test_parallel_vectors_at_epsilon_600():
    """Compare with the closed form at 30 digits where an exponential exceeds e^600."""
    dim, rank, ratio, eps = 196, 184, 1.6576094130454921, 610.8291527705306
    k, a = mp.mpf(dim + rank - 1) / 2, mp.mpf(dim + 1 - rank) / 2
    with mp.workdps(60):
        y, start = mp.mpf(ratio), mp.mpf(eps) + (rank - 1) * mp.mpf(ratio)
        b = (a * y + start) / mp.expm1(y)
        right = mp.gammainc(k, b, regularized=True)
        right -= mp.exp(start - (rank - 1) * y) * mp.gammainc(k, b * mp.exp(y), regularized=True)
    lower, upper = UnequalNorms(dim, rank, 1e-12, ratio).delta_ends(np.array([eps]))
    assert lower[0] <= float(right) * (1 + 1e-6) <= upper[0] * (1 + 2e-6) <= lower[0] * (1 + WIDTH)


@pytest.mark.full
@settings(max_examples=25)
@given(
    dim=st.floats(0.3, 4).map(lambda x: round(10**x)),
    share=st.floats(-2, 0.3),
    m=st.floats(-9, 0).map(lambda x: 10.0**x),
    ratio=st.floats(-5, -0.2).map(lambda x: 10.0**x),
    eps=st.floats(0, 4),
)
def test_upper_bound_exceeds_every_pair(dim, share, m, ratio, eps):
    upper, _, reference = distribution_of(dim, max(1, round(dim * 10**share)), m, ratio, eps)
    assert reference <= upper * (1 + 1e-6) or upper < 1e-25


@pytest.mark.parametrize(("dim", "rank", "m", "ratio"), [(6, 3, 0.1, 0.3), (40, 60, 1e-3, 0.05), (2, 1, 0.2, 0.4)])
@pytest.mark.parametrize("count", [2, 9, 40])
def test_few_nodes_enclose_pairs(dim, rank, m, ratio, count):
    """The nodes determine only the width of the enclosure."""
    worst, eps = UnequalNorms(dim, rank, m, ratio), np.array([0.0, 0.4, 1.5])
    nodes = np.sort(np.concatenate([-np.geomspace(1e-3, 5.0, count), np.geomspace(1e-3, 3.0, count)]))
    with np.errstate(all="ignore"):
        lower, upper, _ = worst.bounds(nodes, eps)
    shares = [(0.04, -0.5), (0.45, 0.5), (1.0, 0.97), (1.0, -1.0)]
    for i, e in enumerate(eps.tolist()):
        pairs = [one_pair(dim, rank, share * m, side * ratio, e) for share, side in shares]
        assert max(pairs) <= upper[i] * (1 + 1e-6)
        assert lower[i] <= math.exp(worst.log_delta(e).upper)


@pytest.mark.parametrize(("dim", "rank", "tau", "eps"), [(5, 3, 0.3, 0.5), (5, 9, -0.4, 0.6), (400, 30, -0.1, 0.2)])
def test_gains_match_reference_given_alignment(dim, rank, tau, eps):
    """The gain is the mean over ``W``, with one minimum in ``x``, and one in the ratio at ``tau = x``."""
    worst, x = UnequalNorms(dim, rank, 0.1, 1.0), np.linspace(tau - 1.2, tau + 1.2, 120)
    ratios = np.linspace(-1.0, 1.0, 81)
    with np.errstate(all="ignore"):
        gains = worst.gains(np.array([tau]), x, np.array([eps]))[0, :, 0]
        over_ratios = worst.gains(ratios, x, np.array([eps]))[:, :, 0]
        exact = mean_over_w(x, tau, eps, dim, rank)
    assert gains == pytest.approx(exact, rel=1e-6, abs=1e-12)
    for line in (gains, *over_ratios.T):
        steps = np.diff(line)
        steps = steps[np.abs(steps) > 1e-12]
        assert np.all(np.diff(np.sign(steps)) >= 0), "falls, then rises"
    sides = np.sign(ratios[1:, None] + ratios[:-1, None] - 2.0 * x) * np.diff(over_ratios, axis=0)
    assert np.all((sides >= -1e-12) | (np.abs(ratios[1:, None] - x) < 0.05))


class _Steps(UnequalNorms):
    """Every pair gains 1 beyond a place, or below one."""

    def gains(self, ratios, x, eps):
        gained = x > eps[:, None] if self.log_ratio > 0.5 else x < -eps[:, None]
        return np.repeat(gained.T[None].astype(float), len(ratios), axis=0)


@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_tails_are_largest_over_alignments(ratio):
    """The tail is largest at an alignment inside a cell."""
    worst, places = _Steps(9, 5, 0.5, ratio), np.array([0.05, 0.2, 0.7, 1.5])
    nodes = np.sort(np.concatenate([-30.0 * 0.9 ** np.arange(60), [0.0], 30.0 * 0.9 ** np.arange(60), places, -places]))
    with np.errstate(all="ignore"):
        _, upper, _ = worst.bounds(nodes, places)
    m = np.linspace(1e-3, 0.5, 4000)[:, None]
    below, above = worst.tails(m, places if ratio > 0.5 else -places)
    # All is gained where A <= 0, too.
    parts = (above, worst.tails(m, np.array([-np.inf]))[0]) if ratio > 0.5 else (below, np.zeros(1))
    assert np.all((parts[0] + parts[1]).max(axis=0) <= upper * (1 + 1e-12))
    assert np.all(upper <= (parts[0].max(axis=0) + parts[1].max(axis=0)) * 1.1)


def test_unequal_norms_table_matches_profile():
    worst, eps = UnequalNorms(50, 8, 1e-4, 0.02), np.array([0.3, 0.0, 1.1, 0.6])
    lower, upper = worst.table(eps)
    for i, e in enumerate(eps):
        one = worst.log_delta(float(e))
        assert math.exp(one.lower) <= upper[i] and lower[i] <= math.exp(one.upper)
        assert upper[i] <= math.exp(one.lower) * (1 + 2 * WIDTH)


def test_parallel_vectors_and_one_dimension_have_closed_form():
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


def test_delta_increases_with_misalignment_bound():
    ends = [UnequalNorms(30, 10, m, ratio).log_delta(0.4) for m, ratio in ((1e-3, 0.01), (1e-2, 0.01), (1e-2, 0.1))]
    assert all(smaller.lower <= larger.upper for smaller, larger in itertools.pairwise(ends))


def test_unequal_norms_results_are_unconditional_bounds():
    found = privproj.delta(Wishart(dim=1000, rank=16, misalignment=0.0023, norm_ratio=1.05), epsilon=1.0)
    assert found.numerics["worst_pair"] == "enclosed" and not any("observed" in note for note in found.warnings)
    assert found.lower is not None and found.lower <= found.value <= found.lower * (1 + WIDTH)
    column = M1(dim=100, rank=64, noise_multiplier=5.0, span_dim=20, residual_misalignment=1e-3, residual_norm=1.0,
        other_residual_norm=1.2)  # fmt: skip
    profile = residual_profile(column)
    assert profile is not None and profile.numerics["worst_pair"] == "enclosed"
    reference = one_pair(80, 44, 1e-3, math.log(1.2), 0.5)
    assert reference <= math.exp(profile.log_delta(0.5).upper) * (1 + 1e-6)


@pytest.mark.full
def test_composition_exceeds_one_release():
    mechanism = Wishart(dim=20, rank=4, misalignment=1e-3, norm_ratio=1.05)
    one, two = (privproj.epsilon(mechanism, delta=1e-3, steps=steps) for steps in (1, 2))
    assert one.value <= two.value * (1 + WIDTH) and two.value <= 2 * privproj.epsilon(mechanism, delta=5e-4).value


@pytest.mark.full
@pytest.mark.parametrize(("dim", "rank", "m", "ratio", "eps"), [(5, 3, 0.1, 1.3, 0.5), (5, 3, 0.1, 1 / 1.3, 0.5),
    (10, 20, 0.02, 1.1, 0.3), (3, 1, 0.4, 0.8, 0.7), (20, 10, 0.01, 1 / 1.2, 1.0), (1, 4, 0.0, 1.5, 0.2)])  # fmt: skip
def test_unequal_norms_exceed_simulated_delta(dim, rank, m, ratio, eps):
    """Simulate ``M v`` for ``|v| = ratio``, ``|v'| = 1``; its density needs the norm of ``v``."""
    rng = np.random.default_rng(dim * 100 + rank)
    count = 200_000
    first, second = np.zeros(max(dim, 2)), np.zeros(max(dim, 2))
    first[0], second[0], second[1] = ratio, 1.0 - m, math.sqrt(m * (2.0 - m))
    first, second = first[:dim], second[:dim]
    gaussians = rng.standard_normal((count, dim, rank)) / math.sqrt(rank)
    y = np.einsum("cdr,cr->cd", gaussians, gaussians[:, 0, :]) * ratio

    def log_density_of_query(v):
        size = float(np.linalg.norm(v))
        return log_density(y / size, v / size, dim, rank) - dim * math.log(size)

    gains = np.clip(-np.expm1(eps - log_density_of_query(first) + log_density_of_query(second)), 0.0, None)
    upper = math.exp(UnequalNorms(dim, rank, m, abs(math.log(ratio))).log_delta(eps).upper)
    assert gains.mean() - 5 * gains.std() / math.sqrt(count) <= upper


@pytest.mark.full
@settings(max_examples=15)
@given(dim=st.integers(2, 300), rank=st.integers(1, 300), m=st.floats(-6, -1).map(lambda x: 10.0**x))
def test_delta_increases_with_norm_ratio(dim, rank, m):
    found = [UnequalNorms(dim, rank, m, ratio).log_delta(0.3) for ratio in (1e-9, 0.01, 0.1)]
    assert all(smaller.lower <= larger.upper for smaller, larger in itertools.pairwise(found))
    equal = VectorWishart(dim, rank, m).log_delta(0.3)
    assert equal.lower <= found[0].upper + 1e-9
