"""Trade-off curves and attack rates."""

import math

import pytest
from scipy import stats

from privproj import M2, Gaussian
from privproj.accounting.question import ask_by_name
from privproj.curves.tradeoff import advantage, profile_points, tradeoff, true_positive_rates


def curve_of(mechanism, **run):
    return ask_by_name(mechanism, None, run).curve()


def test_trade_off_of_the_gaussian_is_the_known_one_from_below():
    curve = curve_of(Gaussian(noise_multiplier=0.8))
    rates = [1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9]
    for rate, found in zip(rates, tradeoff(curve, rates), strict=True):
        exact = stats.norm.cdf(stats.norm.ppf(1 - rate) - 1 / 0.8)
        assert exact * (1 - 2e-3) - 1e-4 <= found <= exact * (1 + 1e-12)
    assert advantage(curve) == pytest.approx(2 * stats.norm.cdf(0.5 / 0.8) - 1, rel=1e-9, abs=0)


def test_rates_are_consistent_with_the_profile():
    curve = curve_of(M2(dim=256, rank=16, noise_multiplier=0.5))
    found = true_positive_rates(curve, [0.001, 0.01, 0.1])
    assert found == sorted(found)
    for rate, hit in zip([0.001, 0.01, 0.1], found, strict=True):
        assert rate <= hit <= rate + advantage(curve)
        for eps, delta in zip([0.5, 1.0], profile_points(curve, [0.5, 1.0]), strict=True):
            assert hit <= math.exp(eps) * rate + delta + 1e-3
