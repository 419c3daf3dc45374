"""Binned laws keep the mean and dominate."""

import math

import numpy as np
import pytest

from privproj.laws import binned, binned_profiles


@pytest.mark.parametrize("count", [1, 2, 5])
def test_convolved_law_keeps_the_mean_and_dominates(count):
    rng = np.random.default_rng(2)
    parts = ((64, 4, count, 0.9 / count), (16, 16, 1, 0.1))
    bins = binned.convolve_layers(parts, 4.0)
    draws = 4.0 * (0.1 + 0.9 * rng.beta(2, 30, (400_000, count)).mean(axis=1))
    assert bins.mass.sum() == pytest.approx(1.0, rel=1e-9, abs=0)
    assert np.sum(bins.mass * bins.mean) == pytest.approx(4.0 * (0.1 + 0.9 / 16), rel=2e-3, abs=0)
    for power in (2, 3):
        convex = binned_profiles.chord_means(bins.edges**power, bins).sum()
        sample = draws**power
        assert convex >= sample.mean() - 5 * sample.std() / math.sqrt(len(draws))
        assert convex <= sample.mean() * 1.02
