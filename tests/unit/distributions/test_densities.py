"""Densities of the log of a squared sensitivity: mass, mean, and comparison with simulation."""

import math

import mpmath as mp
import numpy as np
import pytest

import privproj
from privproj import M1
from privproj.distributions.densities import ProjectedEnergy, SecretShift
from privproj.distributions.tabulated import panels_of
from privproj.profiles.gaussian import gaussian_deltas
from privproj.reference.m1 import _energy_density


@pytest.mark.parametrize(
    ("dim", "rank"), [(2, 1), (2, 30), (3, 2), (40, 10), (40, 400), (1000, 1), (10**6, 64), (5, 10**6)]
)
def test_projected_energy_has_mass_one_and_its_mean(dim, rank):
    dist = ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank)
    mass, moment = (float(end[0]) for end in panels_of(dist).above)
    assert mass == pytest.approx(1.0, rel=1e-12, abs=0)
    assert moment == pytest.approx((rank + dim + 1) / rank, rel=1e-11, abs=0)


@pytest.mark.parametrize(("dim", "rank"), [(98, 1), (4, 3), (40, 60)])
def test_projected_energy_density_in_far_tails(dim, rank):
    """If ``N`` is far above its mean the terms of the sum are narrower than in the bulk."""
    dist = ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank)
    center = math.log(4.0 * dist.a * (dist.a + dist.b))
    y = [center + 0.5, center + 2.0, center + 4.0]
    found = dist.density(np.array(y) - 2.0 * math.log(rank))
    for value, place in zip(found.tolist(), y, strict=True):
        known = float(_energy_density(mp.mpf(dist.a), mp.mpf(dist.b), mp.mpf(place)))
        assert value == pytest.approx(known, rel=1e-12, abs=0)


@pytest.mark.full
@pytest.mark.parametrize(("dim", "rank"), [(40, 10), (40, 100), (3, 1)])
def test_projected_energy_matches_simulation(dim, rank):
    rng = np.random.default_rng(dim + rank)
    count = 20_000
    z = rng.standard_normal((count, dim, rank)) / math.sqrt(rank)
    energy = np.sort((np.einsum("cdr,cr->cd", z, z[:, 0, :]) ** 2).sum(axis=1))
    dist = panels_of(ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank))
    tails = np.array([dist.tails(float(x))[0] for x in energy[:: count // 200]])
    expected = 1.0 - np.arange(0, count, count // 200) / count
    assert np.max(np.abs(tails - expected)) <= 2.2 / math.sqrt(count)  # Kolmogorov-Smirnov at 1e-4


@pytest.mark.parametrize("rank", [1, 3, 8, 11, 14, 18, 21, 28, 60, 400])
@pytest.mark.parametrize("center", [1e-3, 0.5, 3.0, 39.0])
def test_secret_shift_has_mass_one(rank, center):
    """Most of all where the noise is small: the terms are those of the Gamma law alone, which at ranks near 16 decay
    slowest."""
    mass = float(panels_of(SecretShift(rank, center / rank, 1e-8)).above[0][0])
    assert mass == pytest.approx(1.0, rel=1e-12, abs=0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("rank", "sigma", "m"), [(1, 0.5, 0.3), (5, 1.0, 0.1), (5, 0.2, 1.2), (200, 0.7, 0.02), (64, 3.0, 0.5)]
)
def test_secret_projection_exceeds_simulated_delta(rank, sigma, m):
    """Simulate ``M v + E`` with ``g`` revealed; the likelihood ratio gives the divergence."""
    rng = np.random.default_rng(rank)
    count = 300_000
    dist = SecretShift(rank, sigma, m)
    g = rng.chisquare(rank, count) / rank
    scale, c = dist.parts(g)
    shift = np.abs(scale * (c + rng.standard_normal(count)))
    for eps in (0.0, 0.5, 2.0):
        draws = gaussian_deltas(np.array(eps), shift)
        mechanism = M1(dim=30, rank=rank, noise_multiplier=sigma / math.sqrt(2 * m), columns=1, misalignment=m)
        exact = privproj.delta(mechanism, epsilon=eps, bound="secret-projection").value
        assert abs(draws.mean() - exact) <= 5 * draws.std() / math.sqrt(count) + 1e-12


def test_secret_projection_bounds_simulated_release():
    """Simulate the release itself in two dimensions; one test gives a lower bound of its divergence."""
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
