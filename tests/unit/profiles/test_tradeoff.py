"""Trade-off curves and attack rates."""

import math

import pytest
from scipy import stats

import privproj
from privproj import M2, Gaussian, Laplace
from privproj.accounting.query import composition_of
from privproj.profiles.tradeoff import advantage, profile_points, tradeoff, true_positive_rates


def curve_of(mechanism, **run):
    return composition_of(mechanism, None, run).curve()


def scanned_tradeoff(curve, rates, epsilons):
    """The best trade-off function of these epsilons, by the closed form (Dong, Roth, Su 2022)."""
    points = list(zip(epsilons, profile_points(curve, epsilons), strict=True))
    return [max(0.0, *(max(1 - d - math.exp(e) * a, math.exp(-e) * (1 - d - a)) for e, d in points)) for a in rates]


def test_tradeoff_of_gaussian_matches_closed_form():
    curve = curve_of(Gaussian(noise_multiplier=0.8))
    rates = [1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9]
    for rate, found in zip(rates, tradeoff(curve, rates), strict=True):
        exact = stats.norm.cdf(stats.norm.ppf(1 - rate) - 1 / 0.8)
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-12)
    assert advantage(curve) == pytest.approx(2 * stats.norm.cdf(0.5 / 0.8) - 1, rel=1e-9, abs=0)
    grid = scanned_tradeoff(curve, rates, [0.0, 0.5, 1.0])
    assert all(coarse <= found for coarse, found in zip(grid, tradeoff(curve, rates), strict=True))


def test_tradeoff_is_consistent_with_profile():
    curve = curve_of(M2(dim=256, rank=16, noise_multiplier=0.5))
    found = true_positive_rates(curve, [0.001, 0.01, 0.1])
    assert found == sorted(found)
    for rate, hit in zip([0.001, 0.01, 0.1], found, strict=True):
        assert rate <= hit <= rate + advantage(curve)
        for eps, delta in zip([0.5, 1.0], profile_points(curve, [0.5, 1.0]), strict=True):
            assert hit <= math.exp(eps) * rate + delta + 1e-3


@pytest.mark.full
@pytest.mark.parametrize(
    ("mechanism", "run"),
    [
        (Laplace(noise_multiplier=2.0), {}),
        (M2(dim=256, rank=16, noise_multiplier=0.1), {}),
        (Gaussian(noise_multiplier=0.7), {"steps": 50, "sampling_rate": 0.02}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_tradeoff_uses_best_epsilon(mechanism, run):
    curve = curve_of(mechanism, **run)
    rates = [1e-6, 1e-3, 0.05, 0.4, 0.97]
    dense = scanned_tradeoff(curve, rates, [0.0, *(math.exp(-9.0 + 0.02 * i) for i in range(750))])
    for searched, scanned in zip(tradeoff(curve, rates), dense, strict=True):
        assert searched >= scanned - 1e-9


@pytest.mark.parametrize("bound", ["classical", "zcdp", "rdp", "two-sided"])
def test_advantage_of_bound_that_fails_at_epsilon_zero(bound):
    exact = 2 * stats.norm.cdf(0.25) - 1
    found = advantage(composition_of(Gaussian(noise_multiplier=2.0), bound, {}).curve())
    assert exact <= found < 0.8
    assert found <= privproj.delta(Gaussian(noise_multiplier=2.0), epsilon=0.5, bound=bound).value + math.tanh(0.25)


def test_advantage_is_printed_delta_at_epsilon_zero():
    for mechanism in (Gaussian(noise_multiplier=1.3), M2(dim=64, rank=5, noise_multiplier=0.4)):
        assert advantage(curve_of(mechanism)) == privproj.delta(mechanism, epsilon=0.0).value
