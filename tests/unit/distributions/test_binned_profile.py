"""Tables of profiles enclose them, are tight, and decrease."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M1, M2, Layer
from privproj.distributions import binned
from privproj.distributions import binned_profile as binned_profiles
from privproj.distributions.mixture_profile import any_rank_profile, rank_one_profile
from privproj.distributions.squared_sensitivity import BetaGammaSensitivity
from privproj.errors import PrecisionError
from privproj.mechanisms.m1 import known_projection
from privproj.mechanisms.m2 import rank_free
from privproj.mechanisms.registry import find_bound
from privproj.profiles.gaussian import gaussian_deltas


@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(3, 3000),
    share=st.floats(0, 1),
    mu=st.floats(-0.5, 1).map(lambda x: 10.0**x),
)
def test_tables_enclose_profiles_and_are_close(dim, share, mu):
    rank = 1 + round(share**3 * (dim - 2))
    dist = BetaGammaSensitivity(rank / 2, (dim - rank) / 2, mu * mu)
    tables_enclose(dist, binned.beta_bins(dist.a, dist.b, dist.scale), np.array([0.0, 0.01, 0.3, 1.0, 3.0]))


def tables_enclose(dist, bins, eps):
    """Both tables enclose the quadrature of the same distribution, and are tight."""
    free = binned_profiles.any_rank_deltas_below(eps, (bins,)), binned_profiles.any_rank_deltas(eps, (bins,))
    one = binned_profiles.rank_one_deltas_below(eps, bins), binned_profiles.rank_one_deltas(eps, bins)
    for i, e in enumerate(eps):
        for (below, above), profile in ((free, any_rank_profile), (one, rank_one_profile)):
            low, high = profile(dist).log_delta(float(e))
            assert below[i] <= math.exp(high)
            if high > -60:
                assert math.exp(low) <= above[i]
            if high > -30:
                assert above[i] <= math.exp(high) * (1 + 0.03 + 4e-3 * abs(high))
                assert below[i] >= math.exp(low) * (1 - 0.03 - 4e-3 * abs(high))


STACK = (Layer(dim=768, rank=16, count=24),)


def stack(z=0.155974, clipping="joint", layers=STACK, **more):
    return M2(layers=layers, clipping=clipping, noise_multiplier=z, **more)


def test_bins_refuse_dimensions_beyond_their_margin():
    with pytest.raises(PrecisionError, match="dim"):
        privproj.epsilon(M2(dim=10**10, rank=16, noise_multiplier=0.1), delta=1e-5, steps=10)


def test_tables_decrease_far_beyond_bulk():
    """A tangent at a distant atom must not be chosen (regression)."""
    stack = M2(layers=(Layer(dim=768, rank=16, count=24),), clipping="per-layer", noise_multiplier=0.2)
    _, upper = find_bound(M2, "rank-free").representation(stack).table(np.linspace(0.0, 12.0, 80))
    assert np.all(np.diff(upper) <= 1e-12 * upper[:-1])


@given(rank=st.integers(1, 3000), mu=st.floats(-1, 1).map(lambda x: 10**x), eps=st.sampled_from([0.0, 0.01, 0.3, 1, 3]))
def test_public_tables_enclose_profiles_and_are_close(rank, mu, eps):
    dist = BetaGammaSensitivity(0.5 * rank, math.inf, 2 * mu**2 / rank)
    tables_enclose(dist, binned.gamma_bins(dist.a, dist.scale), np.array([eps]))


@pytest.mark.parametrize(("dim", "rank", "z"), [(1000, 256, 20.0), (40, 3, 2.0), (5, 1, 1.0)])
def test_tables_of_projected_energy_enclose_profiles(dim, rank, z):
    dist = known_projection.distribution(M1(dim=dim, rank=rank, noise_multiplier=z))
    tables_enclose(dist, dist.bins(), np.array([0.0, 0.01, 0.3, 1.0, 3.0]))


def test_wide_bins_have_sound_lower_bounds():
    """Coarse bins around the inflection, where neither a chord nor a tangent alone is a bound."""
    rng = np.random.default_rng(1)
    for eps in (0.1, 1.0, 4.0):
        x0 = 2 * (math.sqrt(1 + eps * eps) - 1)
        for _ in range(200):
            left = x0 * rng.uniform(0, 1.5)
            right = left + x0 * rng.exponential(2.0)
            points = left + (right - left) * np.sort(rng.beta(*rng.uniform(0.3, 3, 2), 50))
            bins = binned.Bins(np.array([0.0, left, right]), np.array([0.0, 1.0]), np.array([0.0, points.mean()]))
            exact = gaussian_deltas(np.array([eps]), np.sqrt(points)).mean()
            found = binned_profiles.rank_one_deltas_below(np.array([eps]), bins)[0]
            assert float(gaussian_deltas(np.array([eps]), math.sqrt(left))[0]) * (1 - 1e-8) <= found <= exact


@pytest.mark.parametrize("shapes", [((768, 16),), ((64, 4), (900, 90), (4000, 500))])
def test_many_rows_match_single_rows(shapes):
    """Between guides only a few columns are evaluated; none that matters may be omitted."""
    dists = tuple(binned.beta_bins(r / 2, (d - r) / 2, 30.0) for d, r in shapes)
    eps = np.random.default_rng(3).permutation(np.concatenate([np.linspace(0, 12, 110), np.geomspace(1e-4, 60, 40)]))
    rtol = 2e-4 if dists[1:] else 1e-7
    for table in (binned_profiles.any_rank_deltas, binned_profiles.any_rank_deltas_below):
        alone = np.array([table(np.array([e]), dists)[0] for e in eps])
        counts = alone > 1e-40
        assert np.allclose(table(eps, dists)[counts], alone[counts], rtol=rtol, atol=0)
    for table in (binned_profiles.rank_one_deltas, binned_profiles.rank_one_deltas_below):
        alone = np.array([table(np.array([e]), dists[0])[0] for e in eps])
        assert np.allclose(table(eps, dists[0]), alone, rtol=1e-9, atol=1e-40)


def test_omitted_layers_do_not_increase_bound():
    rng = np.random.default_rng(4)
    shapes = {(int(d), int(rng.integers(1, d // 2))) for d in rng.integers(4, 400, 40)}
    kept = rank_free._largest_shapes(shapes)
    assert 1 <= len(kept) < len(shapes)
    eps = np.array([0.0, 0.1, 1.0, 4.0])
    dist = {shape: binned.beta_bins(shape[1] / 2, (shape[0] - shape[1]) / 2, 9.0) for shape in shapes}
    bound = binned_profiles.any_rank_deltas(eps, tuple(dist[shape] for shape in kept))
    for shape in shapes:
        assert np.all(binned_profiles.any_rank_deltas_below(eps, (dist[shape],)) <= bound)
        # The mean of a convex increasing function is largest for one of those that are kept.
        for bend in (0.05, 0.3, 0.7):
            means = [float(dist[s].mass @ np.maximum(dist[s].mean / 9.0 - bend, 0.0)) for s in (shape, *kept)]
            assert means[0] <= max(means[1:]) * 1.01 + 1e-9
