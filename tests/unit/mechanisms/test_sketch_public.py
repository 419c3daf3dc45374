"""The public sketch: what it leaks, and the order of its bounds."""

import math

import numpy as np
import pytest

import privproj
from privproj import PublicSketch
from privproj.profiles.gaussian import gaussian_deltas


def eps_of(mechanism, bound, delta=1e-5, **run):
    return privproj.epsilon(mechanism, delta=delta, bound=bound, **run).value


@pytest.mark.parametrize(("rank", "z"), [(1, 2.0), (4, 1.0), (30, 0.5)])
def test_public_sketch_matches_simulation(rank, z):
    rng = np.random.default_rng(rank)
    shift = rng.chisquare(rank, 500_000) / rank / z**2
    for eps in (0.0, 0.5, 2.0):
        draws = gaussian_deltas(np.array(eps), np.sqrt(shift))
        exact = privproj.delta(PublicSketch(rank=rank, noise_multiplier=z), epsilon=eps, bound="exact-rank1").value
        assert abs(draws.mean() - exact) <= 5 * draws.std() / math.sqrt(len(draws)) + 1e-12


def test_public_sketch_bounds_are_ordered():
    for run in ({}, {"steps": 100}, {"steps": 300, "sampling_rate": 0.01}):
        mechanism = PublicSketch(rank=16, noise_multiplier=2.0)
        one, free, norm = (eps_of(mechanism, b, **run) for b in ("exact-rank1", "rank-free", "operator-norm"))
        assert one <= free * (1 + 1e-9) <= norm
        plain = privproj.epsilon(privproj.Gaussian(noise_multiplier=2.0), delta=1e-5, **run).value
        wide = eps_of(PublicSketch(rank=10**6, noise_multiplier=2.0), "rank-free", **run)
        assert plain <= free
        assert plain * (1 - 1e-6) <= wide <= plain * 1.01
