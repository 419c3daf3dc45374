"""A secret projection: the profile against what the mechanism leaks."""

import math

import numpy as np
import pytest

import privproj
from privproj import M1
from privproj.curves import gaussian_arrays
from privproj.laws.secret_shift import SecretShift


@pytest.mark.full
@pytest.mark.parametrize(
    ("rank", "sigma", "m"), [(1, 0.5, 0.3), (5, 1.0, 0.1), (5, 0.2, 1.2), (200, 0.7, 0.02), (64, 3.0, 0.5)]
)
def test_secret_projection_is_above_what_the_mechanism_leaks(rank, sigma, m):
    """``M v + E`` with ``g`` revealed: the Gaussian pair is drawn, its likelihood ratio gives the divergence."""
    rng = np.random.default_rng(rank)
    count = 300_000
    law = SecretShift(rank, sigma, m)
    g = rng.chisquare(rank, count) / rank
    scale, c = law.parts(g)
    shift = np.abs(scale * (c + rng.standard_normal(count)))
    for eps in (0.0, 0.5, 2.0):
        draws = gaussian_arrays.gaussian_deltas(np.array(eps), shift)
        mechanism = M1(dim=30, rank=rank, noise_multiplier=sigma / math.sqrt(2 * m), columns=1, misalignment=m)
        exact = privproj.delta(mechanism, epsilon=eps, bound="secret-projection").value
        assert abs(draws.mean() - exact) <= 5 * draws.std() / math.sqrt(count) + 1e-12


def test_secret_projection_bounds_the_simulated_release():
    """The release itself, with nothing revealed, in two dimensions: what one test sees of its divergence."""
    rng = np.random.default_rng(23)
    rank, sigma, m, count = 3, 0.6, 0.4, 400_000
    first, second = np.array([1.0, 0.0]), np.array([1 - m, math.sqrt(m * (2 - m))])

    def release(v):
        z = rng.standard_normal((count, 2, rank)) / math.sqrt(rank)
        return np.einsum("cdr,cr->cd", z, np.einsum("cdr,d->cr", z, v)) + sigma * rng.standard_normal((count, 2))

    direction = second - first
    a, b = release(first) @ direction, release(second) @ direction
    mechanism = M1(dim=2, rank=rank, noise_multiplier=sigma / math.sqrt(2 * m), columns=1, misalignment=m)
    for eps in (0.0, 0.5):
        threshold = np.quantile(b, 0.3)
        seen = (a < threshold).mean() - math.exp(eps) * (b < threshold).mean()
        assert seen <= privproj.delta(mechanism, epsilon=eps, bound="secret-projection").value + 5 / math.sqrt(count)
