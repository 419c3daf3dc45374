"""The exact profile of the vector Wishart mechanism against simulation and dense sums."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats
from unit.distributions.pairs import log_density

import privproj
from privproj import Wishart
from privproj.distributions import wishart_integral
from privproj.distributions.wishart_loss import VectorWishart

SETTINGS = [
    (2, 1, 0.3),
    (2, 2, 0.1),
    (2, 5, 0.4),
    (3, 2, 0.5),
    (10, 3, 0.02),
    (10, 10, 0.05),
    (20, 30, 0.05),
    (50, 5, 0.01),
]


@pytest.mark.full
@pytest.mark.parametrize(("dim", "rank", "m"), SETTINGS)
def test_exact_profile_matches_simulation(dim, rank, m):
    """Simulate ``M v``; its likelihood ratio against ``M v'`` gives the hockey-stick divergence."""
    rng = np.random.default_rng(dim * 100 + rank)
    count = 200_000 if dim * rank < 200 else 60_000
    rho = 1.0 - m
    first, second = np.zeros(dim), np.zeros(dim)
    first[0], second[0], second[1] = 1.0, rho, math.sqrt(m * (2.0 - m))
    gaussians = rng.standard_normal((count, dim, rank)) / math.sqrt(rank)
    y = np.einsum("cdr,cr->cd", gaussians, gaussians[:, 0, :])
    loss = log_density(y, first, dim, rank) - log_density(y, second, dim, rank)
    for eps in (0.0, 0.5, 1.5):
        gains = np.clip(-np.expm1(eps - loss), 0.0, None)
        exact = math.exp(VectorWishart(dim, rank, m).log_delta(eps).upper)
        assert abs(gains.mean() - exact) <= 5 * gains.std() / math.sqrt(count) + 1e-12


@pytest.mark.parametrize(
    ("dim", "rank", "m", "eps", "value"),
    [
        (10**6, 64, 1e-12, 5e-4, 4.3554347874652e-7),
        (10**6, 64, 1e-12, 5e-3, 1.9002684787741e-20),
        (10**6, 64, 1e-6, 1.0, 1.29419140300342e-5),
        (10**6, 10**6, 1e-10, 0.1, 1.56032628026281e-15),
        (2, 1, 1e-12, 0.1, 1.21117485797798e-6),
        (768, 16, 1e-4, 8.0, 3.06193210923069e-16),
    ],
)
def test_exact_profile_at_extreme_parameters(dim, rank, m, eps, value):
    low, high = VectorWishart(dim, rank, m).log_delta(eps)
    assert low - 1e-13 <= math.log(value) <= high + 1e-13
    assert high - low < 1e-9


CORNERS = [
    (300000, 2, 5.220740386781583e-07, 0.0),
    (2, 1, 1e-12, 0.1),
    (2, 9, 1e-9, 1.4e-4),
    (4, 1, 1.6e-7, 11.5),
    (1000, 16, 8e-6, 0.3),
    (5, 40, 0.7, 0.2),
    (100000, 3, 1.5, 40.0),
]


def dense_delta(dim, rank, m, eps, count=400_000):
    """``E[g(A)]`` by midpoints in ``asinh`` of Student's variable; the incomplete gammas are scipy's."""
    n, a, spread = rank + dim - 1.0, 0.5 * (dim + 1.0 - rank), math.sqrt(m * (2.0 - m) / rank)
    ends = np.arcsinh([-(1.0 - m) / spread, m / spread, 1e18 / spread])
    total = stats.t.cdf(-(1.0 - m) / spread, rank)
    for low, high, tail in ((ends[0], ends[1], special.gammaincc), (ends[1], ends[2], special.gammainc)):
        s = low + (np.arange(count) + 0.5) * (high - low) / count
        t = np.sinh(s)
        excess = -m + spread * t
        loss, shrink = np.log1p(excess), -excess / (1.0 + excess)
        threshold = (eps - a * loss) / shrink
        tilt = np.exp(np.minimum(eps + (rank - 1.0) * loss, 700.0))
        gain = tail(n / 2, np.maximum(threshold, 0.0)) - tilt * tail(n / 2, np.maximum(threshold / (1.0 + excess), 0.0))
        gain = np.where((threshold <= 0.0) & (excess > 0.0), 0.0, gain)
        total += float(np.sum(gain * stats.t.pdf(t, rank) * np.cosh(s))) * (high - low) / count
    return total


@pytest.mark.parametrize(("dim", "rank", "m", "eps"), [c for c in CORNERS if c[2] > 1e-8])
def test_enclosure_contains_dense_sum(dim, rank, m, eps):
    """A quadrature with accidental agreement was 6e-7 too low here (regression)."""
    found = VectorWishart(dim, rank, m).log_delta(eps)
    dense = math.log(dense_delta(dim, rank, m, eps))
    assert found.upper - found.lower <= 1e-9
    assert found.lower - 3e-8 <= dense <= found.upper + 3e-8


@pytest.mark.parametrize(("dim", "rank", "m", "eps"), CORNERS)
def test_bounds_of_many_epsilons_contain_each_log_delta(dim, rank, m, eps):
    """Also beyond the largest epsilon at which panels are evaluated."""
    pair, several = VectorWishart(dim, rank, m), np.array([eps, 2.0 * eps + 1e-3, 50.0, 1e8, 2e9, 1e15])
    for each, low, high in zip(several.tolist(), *pair.bounds(several), strict=True):
        single = pair.log_delta(each)
        assert low <= single.upper and single.lower <= high
        assert high - low <= 1e-4 * max(1.0, -high)


@pytest.mark.parametrize(("dim", "rank", "m", "eps"), CORNERS)
def test_enclosures_overlap_for_any_nodes(monkeypatch, dim, rank, m, eps):
    """Fewer nodes and a larger share only widen the enclosure: its error is proved."""
    close = VectorWishart(dim, rank, m).compute_log_delta(eps)
    for nodes, share in ((6, 1e-6), (9, 1e-8)):
        monkeypatch.setattr(wishart_integral, "PANEL_NODES", nodes)
        pair = VectorWishart(dim, rank, m)
        whole, error = pair.log_deltas(np.array([eps]), share)
        assert whole[0] - error[0] <= close.upper and close.lower <= whole[0] + error[0]


def test_reported_panel_error_is_needed(monkeypatch):
    """Without the bound of the Gauss rule's error, few nodes give an enclosure that misses the value."""
    pair, eps = VectorWishart(300000, 2, 5.220740386781583e-07), np.array([0.0])
    close = pair.compute_log_delta(0.0)
    monkeypatch.setattr(wishart_integral, "PANEL_NODES", 2)
    monkeypatch.setattr(
        wishart_integral.WishartIntegral, "log_error", lambda self, p, enough: np.full_like(p.low, -np.inf)
    )
    whole, error = pair.log_deltas(eps)
    assert not whole[0] - error[0] <= close.upper or not close.lower <= whole[0] + error[0]


@pytest.mark.full
@pytest.mark.parametrize(("dim", "rank", "m"), [c[:3] for c in CORNERS])
def test_wishart_table_matches_profile(dim, rank, m):
    eps = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, 8)])
    lower, upper = VectorWishart(dim, rank, m).table(eps)
    for e, low, high in zip(eps.tolist(), lower, upper, strict=True):
        one = VectorWishart(dim, rank, m).log_delta(e)
        assert low <= math.exp(one.upper) * (1 + 1e-14) and math.exp(one.lower) * (1 - 1e-14) <= high
        assert high <= low * (1 + 2e-9) or high < 1e-290
        for nearby in (e * (1 - 1e-15), e * (1 + 1e-15)):
            off = VectorWishart(dim, rank, m).compute_log_delta(nearby) if e == eps[4] else one
            assert low <= math.exp(off.upper) and math.exp(off.lower) <= high


def test_one_dimension_has_zero_delta():
    assert privproj.epsilon(Wishart(dim=1, rank=3, misalignment=0.5), delta=1e-9).value == 0.0


@pytest.mark.parametrize(
    ("dim", "rank", "m"), [(2048, 16, 1e-3), (1000, 256, 8e-6), (10**6, 64, 1e-12), (10, 20, 0.01)]
)
def test_guess_epsilon_does_not_change_result(dim, rank, m):
    profile = VectorWishart(dim, rank, m).profile()
    target = math.log(1e-5)
    alone = replace(profile, guess=None).epsilon(target)
    assert profile.guess(target) == pytest.approx(alone.upper, rel=1e-6)
    assert profile.epsilon(target).upper == pytest.approx(alone.upper, rel=1e-10)
    assert profile.log_delta(profile.epsilon(target).upper).upper <= target


def test_guess_epsilon_is_none_if_delta_is_too_large():
    assert VectorWishart(2, 1, 0.1).guess_epsilon(math.log(1e-5)) is None


@pytest.mark.filterwarnings("error")
def test_guess_epsilon_is_none_if_delta_is_one():
    assert VectorWishart(2343, 31454, 0.04447).guess_epsilon(math.log(1e-5)) is None
