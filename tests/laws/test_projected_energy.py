"""The law of the projected change: mass, mean, and simulation."""

import math

import mpmath as mp
import numpy as np
import pytest
from reference.m1 import _energy_density

from privproj.laws.panel_law import panels_of
from privproj.laws.projected_energy import ProjectedEnergy


@pytest.mark.parametrize(
    ("dim", "rank"), [(2, 1), (2, 30), (3, 2), (40, 10), (40, 400), (1000, 1), (10**6, 64), (5, 10**6)]
)
def test_law_of_the_projected_change_has_mass_one_and_its_mean(dim, rank):
    law = ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank)
    mass, moment = (float(end[0]) for end in panels_of(law).above)
    assert mass == pytest.approx(1.0, rel=1e-12, abs=0)
    assert moment == pytest.approx((rank + dim + 1) / rank, rel=1e-11, abs=0)


@pytest.mark.parametrize(("dim", "rank"), [(98, 1), (4, 3), (40, 60)])
def test_density_is_right_in_far_tails(dim, rank):
    """Where ``N`` is far above its mean the terms of the sum are narrower than in the bulk."""
    law = ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank)
    centre = math.log(4.0 * law.a * (law.a + law.b))
    y = [centre + 0.5, centre + 2.0, centre + 4.0]
    found = law.density(np.array(y) - 2.0 * math.log(rank))
    for value, place in zip(found.tolist(), y, strict=True):
        known = float(_energy_density(mp.mpf(law.a), mp.mpf(law.b), mp.mpf(place)))
        assert value == pytest.approx(known, rel=1e-12, abs=0)


@pytest.mark.full
@pytest.mark.parametrize(("dim", "rank"), [(40, 10), (40, 100), (3, 1)])
def test_law_of_the_projected_change_by_simulation(dim, rank):
    rng = np.random.default_rng(dim + rank)
    count = 20_000
    z = rng.standard_normal((count, dim, rank)) / math.sqrt(rank)
    energy = np.sort((np.einsum("cdr,cr->cd", z, z[:, 0, :]) ** 2).sum(axis=1))
    law = panels_of(ProjectedEnergy(0.5 * rank, 0.5 * (dim - 1), rank))
    tails = np.array([law.tails(float(x))[0] for x in energy[:: count // 200]])
    expected = 1.0 - np.arange(0, count, count // 200) / count
    assert np.max(np.abs(tails - expected)) <= 2.2 / math.sqrt(count)  # Kolmogorov-Smirnov at 1e-4
