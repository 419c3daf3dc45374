"""The vector Wishart mechanism: order of its bounds, early bounds, and unsupported queries."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M1, InvalidParameterError, UnsupportedError, Wishart
from privproj.distributions.wishart_integral import log_infinite
from privproj.distributions.wishart_loss import VectorWishart
from privproj.mechanisms.m1.column import residual_loss
from privproj.mechanisms.wishart.early import log_mixed_tail
from privproj.mechanisms.wishart.quantile import published_loss


def bound_of(mechanism, bound, delta=1e-5, **run):
    return privproj.epsilon(mechanism, delta=delta, bound=bound, **run).value


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(2, 3000),
    rank=st.integers(1, 3000),
    m=st.floats(-9, -0.3).map(lambda x: 10.0**x),
    log10_delta=st.floats(-9, -2),
)
def test_wishart_bounds_are_ordered(dim, rank, m, log10_delta):
    mechanism = Wishart(dim=dim, rank=rank, misalignment=m)
    exact = bound_of(mechanism, "exact", 10**log10_delta)
    for split in ("even", "optimal", 0.2):
        sharp, plain = (bound_of(mechanism, b, 10**log10_delta, split=split) for b in ("quantile-sharp", "quantile"))
        assert exact <= sharp * (1 + 1e-9) and sharp <= plain * (1 + 1e-9)


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(2, 400), rank=st.integers(1, 400), m=st.floats(-8, -0.5).map(lambda x: 10.0**x), eps=st.floats(0, 5)
)
def test_wishart_delta_is_monotone(dim, rank, m, eps):
    low = VectorWishart(dim, rank, m).log_delta(eps)
    assert low.lower <= VectorWishart(dim, rank, 1.3 * m).log_delta(eps).upper
    assert VectorWishart(dim, rank, m).log_delta(eps + 0.1).lower <= low.upper
    assert low.upper >= log_infinite(rank, m) - 1e-9


def test_wishart_epsilon_and_misalignment_are_inverses():
    found = privproj.misalignment(Wishart(dim=1000, rank=16), epsilon=1.0, delta=1e-5)
    assert found.side == "lower bound"
    answer = bound_of(Wishart(dim=1000, rank=16, misalignment=found.value), "exact")
    assert 1.0 - 1e-6 <= answer <= 1.0 + 1e-12


@pytest.mark.full
def test_composed_wishart_is_below_basic_composition():
    mechanism = Wishart(dim=1000, rank=64, misalignment=8e-6)
    one = bound_of(mechanism, "exact", 1e-5)
    twenty = bound_of(mechanism, "exact", 1e-5, steps=20)
    assert one < twenty < 20 * bound_of(mechanism, "exact", 5e-7)
    assert twenty < bound_of(mechanism, "quantile-sharp", 1e-5, steps=20)
    sampled = bound_of(mechanism, "exact", 1e-5, steps=20, sampling_rate=0.1, sampling="fixed")
    assert sampled < twenty


def test_unsupported_wishart_queries_are_rejected():
    mechanism = {"dim": 1000, "rank": 16, "misalignment": 8e-6}
    with pytest.raises(UnsupportedError, match="fresh"):
        bound_of(Wishart(**mechanism, fixed_projection=True), "exact", steps=2)
    with pytest.raises(UnsupportedError, match="fixed"):
        bound_of(Wishart(**mechanism), "exact", steps=2, sampling_rate=0.1)
    with pytest.raises(UnsupportedError, match="fixed"):
        bound_of(Wishart(**mechanism), "exact", steps=2, sampling_rate=0.1, sampling="poisson", relation="add-remove")
    with pytest.raises(UnsupportedError, match="norm_ratio must be 1"):
        bound_of(Wishart(**mechanism, norm_ratio=1.1), "quantile")
    with pytest.raises(InvalidParameterError, match="omitted if misalignment"):
        Wishart(**mechanism, alignment=0.5)
    with pytest.raises(InvalidParameterError, match="misalignment"):
        bound_of(Wishart(dim=10, rank=2), "exact")
    assert privproj.epsilon(Wishart(**mechanism), delta=1e-5).run["relation"] == "replace"


# --- the early version ------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=10)
@given(dim=st.integers(2, 200), rank=st.integers(2, 200), m=st.floats(-14, -9).map(lambda x: 10.0**x))
def test_early_bounds_are_above_exact_profile(dim, rank, m):
    mechanism = Wishart(dim=dim, rank=rank, misalignment=m)
    exact, tail, early = (bound_of(mechanism, b) for b in ("exact", "early-exact-tail", "early"))
    assert exact <= tail <= early * (1 + 1e-6)


def test_early_bound_at_given_values_is_above_best():
    given = {"dim": 50, "rank": 40, "misalignment": 1e-8}
    best = bound_of(Wishart(**given), "early")
    for t, eta, radius in ((2.0, 0.5, 400.0), (1.0, 0.1, 350.0), (4.0, 1.0, 330.0)):
        found = privproj.evaluate("wishart.early.epsilon", **given, t=t, eta=eta, R=radius)
        at_same = bound_of(Wishart(**given), "early", delta=found.delta)
        assert found.value >= at_same * (1 - 1e-6)
        assert best > 0
    with pytest.raises(InvalidParameterError, match="R must be above"):
        privproj.evaluate("wishart.early.epsilon", **given, t=2, eta=0.5, R=100)


def test_exact_tail_matches_simulation():
    rng = np.random.default_rng(2)
    mechanism, t = Wishart(dim=30, rank=12, misalignment=0.05), 6.0
    g = rng.standard_normal((400_000, 2, 12))
    rho = 0.95
    x = (g[:, 0] ** 2).sum(axis=1)
    y = rho * x + math.sqrt(1 - rho**2) * (g[:, 0] * g[:, 1]).sum(axis=1)
    hit = ((x <= t) | (y <= t)).mean()
    assert abs(hit - math.exp(log_mixed_tail(mechanism, t))) <= 5 * math.sqrt(hit / len(x))


# --- source of the assumption -------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["early-corollary", "rp-gd"])
@pytest.mark.parametrize("allowed", [False, True])
def test_flawed_bounds_name_reason_and_alternative(bound, allowed):
    with pytest.raises(UnsupportedError, match="Use the bound exact"):
        bound_of(Wishart(dim=100, rank=200, misalignment=1e-6), bound, allow_refuted=allowed)


@pytest.mark.full
def test_wishart_rank_returns_interval():
    found = privproj.rank(Wishart(dim=1000, misalignment=8e-6), epsilon=0.2, delta=1e-5)
    assert found.lower < found.value == found.upper
    for rank, fits in ((found.lower, 1), (found.value, 1), (found.lower - 1, 0), (found.value + 1, 0), (64, 1)):
        assert (bound_of(Wishart(dim=1000, rank=rank, misalignment=8e-6), "exact") <= 0.2) == bool(fits)


@pytest.mark.parametrize("log_delta", [-706.0, -720.0, -740.0, -760.0])
def test_quantile_of_tiny_delta_is_infinite(log_delta):
    release = Wishart(dim=1000, rank=256, misalignment=1e-12)
    column = M1(dim=1000, rank=256, noise_multiplier=20.0, span_dim=0, residual_misalignment=1e-9)
    assert published_loss(*release.shape, -700.0, -700.0) < math.inf
    assert residual_loss(column, -700.0, -700.0) < math.inf
    for parts in ((log_delta, -20.0), (-20.0, log_delta)):
        assert published_loss(*release.shape, *parts) == math.inf
        assert residual_loss(column, *parts) == math.inf
