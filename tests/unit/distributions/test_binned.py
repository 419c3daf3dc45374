"""Distributions in bins keep the mean and dominate."""

import math

import numpy as np
import pytest
from scipy import special

from privproj.distributions import binned


@pytest.mark.parametrize("count", [1, 2, 5])
def test_convolve_layers_keeps_mean_and_dominates(count):
    rng = np.random.default_rng(2)
    parts = ((64, 4, count, 0.9 / count), (16, 16, 1, 0.1))
    bins = binned.convolve_layers(parts, 4.0)
    draws = 4.0 * (0.1 + 0.9 * rng.beta(2, 30, (200_000, count)).mean(axis=1))
    assert bins.mass.sum() == pytest.approx(1.0, rel=1e-9, abs=0)
    assert np.sum(bins.mass * bins.mean) == pytest.approx(4.0 * (0.1 + 0.9 / 16), rel=2e-3, abs=0)
    for power in (2, 3):
        convex = float(bins.weights @ bins.edges**power)
        sample = draws**power
        assert convex >= sample.mean() - 5 * sample.std() / math.sqrt(len(draws))
        assert convex <= sample.mean() * 1.02


@pytest.mark.parametrize(
    "parts",
    [((64, 4, 2, 0.45), (16, 16, 1, 0.1)), ((64, 1, 5, 0.1), (32, 8, 5, 0.1)), ((512, 8, 200, 0.005),)],
)
def test_convolve_layers_below_is_below_and_close(parts):
    rng, scale = np.random.default_rng(3), 4.0
    bins = binned.convolve_layers_below(parts, scale)
    draws = np.zeros(50_000)
    for dim, rank, count, share in parts:
        for _ in range(count):
            draws += scale * share * (rng.beta(rank / 2, (dim - rank) / 2, len(draws)) if rank < dim else 1.0)
    mean = np.sum(bins.mass * bins.mean)
    assert np.all(np.diff(bins.edges) >= 0) and np.all((bins.edges[:-1] <= bins.mean) & (bins.mean <= bins.edges[1:]))
    assert bins.mass.sum() == pytest.approx(1.0, rel=1e-9, abs=0)
    # exact mean: scale sum n share r/d
    exact = scale * sum(count * share * rank / dim for dim, rank, count, share in parts)
    assert exact * (1 - 6e-3) <= mean <= exact * (1 + 1e-12)
    for point in np.quantile(draws, [0.01, 0.1, 0.5, 0.9, 0.99, 0.999]):
        share = (draws > point).mean()
        within = bins.mass[bins.edges[:-1] >= point].sum()
        assert within <= share + 5 * math.sqrt(share / len(draws))


@pytest.mark.parametrize(("a", "b"), [(2.0, 30.0), (4.0, 508.0), (8.0, 1016.0)])
def test_convolve_layers_moves_truncated_mass_up(a, b):
    """There are at most 1e5 equal layers, and each has at most two truncations."""
    cells = 1000.0
    atoms = binned._spread_beta_atoms(a, b, cells)
    lost = special.betainc(b, a, max(1.0 - len(atoms) / cells, 0.0))
    assert lost <= binned.BINNED_TAIL
    assert 2 * 1e5 * binned.BINNED_TAIL <= binned.MASS_LOST_TO_CUTS
    assert binned.convolve_layers(((int(2 * (a + b)), int(2 * a), 3, 1.0),), 1.0).mass[-1] >= binned.MASS_LOST_TO_CUTS


def test_grid_distribution_moves_mass_down_only():
    atoms = np.random.default_rng(4).dirichlet(np.ones(9))
    dist = binned._GridDistribution(atoms, 0)
    for found in (dist.coarser(1), dist.coarser(3), dist.plus(binned._GridDistribution(np.array([1.0, 1e-30]), 1))):
        places = 2**found.level * np.arange(len(found.atoms))
        for point in range(10):
            assert found.atoms[places > point].sum() <= atoms[np.arange(9) > point].sum() * (1 + 1e-12)
        assert found.atoms.sum() == pytest.approx(1.0, rel=1e-12, abs=0)


@pytest.mark.parametrize(("a", "b"), [(0.5, 3.5), (8.0, 376.0), (400.0, 2000.0)])
def test_beta_bins_have_exact_masses_and_means(a, b):
    bins = binned.beta_bins(a, b, 1.0)
    mass = np.diff(special.betainc(a, b, bins.edges))
    first = a / (a + b) * np.diff(special.betainc(a + 1, b, bins.edges))
    near = mass > 1e-6
    assert np.allclose(bins.mass[near], mass[near], rtol=1e-9, atol=0)
    assert np.allclose((bins.mass * bins.mean)[near], first[near], rtol=1e-9, atol=0)


@pytest.mark.parametrize("a", [0.5, 8.0, 3000.0])
def test_gamma_bins_have_exact_masses_and_means(a):
    bins = binned.gamma_bins(a, 1.0)
    edges = np.append(bins.edges[:-1], np.inf)
    mass, first = np.diff(special.gammainc(a, edges)), a * np.diff(special.gammainc(a + 1, edges))
    near = mass > 1e-6
    assert np.allclose(bins.mass[near], mass[near], rtol=1e-9, atol=0)
    assert np.allclose((bins.mass * bins.mean)[near], first[near], rtol=1e-9, atol=0)


@pytest.mark.parametrize(("dim", "rank"), [(10**9, 1), (10**9, 10**4), (10**9, 5 * 10**8)])
def test_bins_in_large_dimensions_keep_mass_and_mean(dim, rank):
    bins = binned.beta_bins(rank / 2, (dim - rank) / 2, 1.0)
    assert bins.mass.sum() == pytest.approx(1.0, rel=1e-10, abs=0)
    assert np.sum(bins.mass * bins.mean) == pytest.approx(rank / dim, rel=1e-10, abs=0)


def test_wide_cells_keep_mass_and_mean():
    atoms = binned._spread_beta_atoms(1500.0, 24000.0, 30.0)
    assert atoms.sum() == pytest.approx(1.0, rel=1e-11, abs=0)
    assert np.sum(atoms * np.arange(len(atoms))) == pytest.approx(30.0 * 1500 / 25500, rel=1e-11, abs=0)
