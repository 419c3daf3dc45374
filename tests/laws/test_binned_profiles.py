"""Tables of profiles are upper bounds, close, and fall."""

import math

import numpy as np
import pytest
from helpers import rank_one
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M2, Layer
from privproj.bounds import find_bound
from privproj.errors import PrecisionLimit
from privproj.laws import binned, binned_profiles
from privproj.laws.profiles import log_any_rank_profile
from privproj.laws.squared_shift import ScaledBeta, ScaledGamma


@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(3, 3000),
    share=st.floats(0, 1),
    mu=st.floats(-0.5, 1).map(lambda x: 10.0**x),
)
def test_tables_are_upper_bounds_and_close(dim, share, mu):
    rank = 1 + round(share**3 * (dim - 2))
    law = ScaledBeta(rank / 2, (dim - rank) / 2, mu * mu)
    bins = binned.beta_bins(law.a, law.b, law.scale)
    eps = np.array([0.0, 0.01, 0.3, 1.0, 3.0])
    free, one = binned_profiles.any_rank_deltas(eps, (bins,)), binned_profiles.rank_one_deltas(eps, bins)
    for i, e in enumerate(eps):
        for table, scalar in ((free, log_any_rank_profile), (one, rank_one)):
            low, high = scalar(float(e), law)
            if high > -60:
                assert math.exp(low) <= table[i]
            if high > -30:
                assert table[i] <= math.exp(high) * (1 + 0.03 + 4e-3 * abs(high))


STACK = (Layer(dim=768, rank=16, count=24),)


def stack(z=0.155974, clipping="joint", layers=STACK, **more):
    return M2(layers=layers, clipping=clipping, noise_multiplier=z, **more)


def test_tables_refuse_dimensions_beyond_their_margin():
    with pytest.raises(PrecisionLimit, match="dim"):
        privproj.epsilon(M2(dim=10**8, rank=16, noise_multiplier=0.1), delta=1e-5, steps=10)


def test_tables_keep_falling_far_beyond_the_bulk():
    """A tangent at a far atom must not take over: two phases failed on it."""
    stack = M2(layers=(Layer(dim=768, rank=16, count=24),), clipping="per-layer", noise_multiplier=0.2)
    _, upper = find_bound(M2, "rank-free").representation(stack).table(np.linspace(0.0, 12.0, 80))
    assert np.all(np.diff(upper) <= 1e-12 * upper[:-1])


@given(rank=st.integers(1, 3000), mu=st.floats(-1, 1).map(lambda x: 10**x), eps=st.sampled_from([0.0, 0.01, 0.3, 1, 3]))
def test_public_tables_are_upper_bounds_and_close(rank, mu, eps):
    law = ScaledGamma(0.5 * rank, 2 * mu**2 / rank)
    bins, at = binned.gamma_bins(law.a, law.scale), np.array([eps])
    free, one = binned_profiles.any_rank_deltas(at, (bins,))[0], binned_profiles.rank_one_deltas(at, bins)[0]
    for table, scalar in ((free, log_any_rank_profile), (one, rank_one)):
        low, high = scalar(eps, law)
        if high > -60:
            assert math.exp(low) <= table
        if high > -30:
            assert table <= math.exp(high) * (1 + 0.03 + 4e-3 * abs(high))
