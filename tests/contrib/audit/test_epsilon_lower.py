"""Bounds from counts are what they claim to be."""

import math

import numpy as np
import pytest
from scipy import stats

import privproj
from privproj import Gaussian
from privproj.contrib.audit.epsilon_lower import (
    Counts,
    assess_claim,
    auc,
    balanced_accuracy,
    ceiling,
    counts_on_second_half,
    one_run_epsilon,
    one_run_p_value,
)
from privproj.errors import InvalidParameterError


def test_ceiling_of_perfect_separation():
    """The numbers of the specification: n runs in each arm, 95 %."""
    for n, known in ((50, 2.57), (200, 3.98), (1000, 5.60), (5000, 7.21)):
        assert ceiling(n, n, 0.0, 0.95) == pytest.approx(known, abs=0.006, rel=0)


def test_bound_is_that_of_clopper_and_pearson():
    counts = Counts(60, 100, 3, 120)
    low, high = stats.beta.ppf(0.025, 60, 41), stats.beta.ppf(0.975, 4, 117)
    other = math.log((1 - high - 1e-3) / (1 - low))
    assert counts.epsilon(1e-3, 0.95) == pytest.approx(max(math.log((low - 1e-3) / high), other), rel=1e-12, abs=0)
    assert Counts(0, 100, 120, 120).epsilon(0.0, 0.95) == 0.0 == Counts(50, 100, 60, 120).epsilon(1e-3, 0.95)


def test_audit_bound_error_rate_is_at_most_the_level():
    """Randomized response with epsilon 1: a confidence of 90 % is exceeded in at most 10 % of 2000 experiments."""
    rng, rate = np.random.default_rng(0), math.e / (1 + math.e)
    found = [
        Counts(rng.binomial(300, rate), 300, rng.binomial(300, 1 - rate), 300).epsilon(0.0, 0.9) for _ in range(2000)
    ]
    assert np.mean(np.array(found) > 1.0) <= 0.1
    assert np.median(found) > 0.6


def test_thresholds_come_from_other_half():
    scores = np.concatenate([np.zeros(50), np.ones(50)])
    value_of = lambda tried: [counts.epsilon(1e-3, 0.95) for counts in tried]  # noqa: E731
    counts = counts_on_second_half(scores, scores, value_of)
    assert counts.members == counts.others == 50
    rng, refuted = np.random.default_rng(1), 0
    for _ in range(300):
        a, b = rng.standard_normal((2, 200))
        refuted += assess_claim(a, b, delta=1e-6, confidence=0.95, claim=0.0).refuted
    assert refuted <= 15
    with pytest.raises(InvalidParameterError, match="at least 4 in each arm"):
        counts_on_second_half(scores[:3], scores, value_of)


def test_auc_and_balanced_accuracy():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(4000) + 1.0, rng.standard_normal(4000)
    assert auc(a, b) == pytest.approx(stats.mannwhitneyu(a, b).statistic / 16e6, rel=1e-12, abs=0)
    assert auc(np.ones(3), np.ones(5)) == 0.5
    assert balanced_accuracy(a, b) == pytest.approx(stats.norm.cdf(0.5), abs=0.02, rel=0)
    assert balanced_accuracy(b, a) < 0.52


def test_worked_example_of_one_run():
    assert one_run_p_value(100, 100, 75, math.log(3), 0.0) == pytest.approx(0.553, abs=5e-4, rel=0)
    tail = stats.binom.sf(59, 100, 0.6)
    assert one_run_p_value(100, 100, 60, math.log(1.5), 0.0) == pytest.approx(tail, rel=1e-9, abs=0)
    assert one_run_p_value(100, 100, 75, 1.0, 1e-3) > one_run_p_value(100, 100, 75, 1.0, 0.0)
    found = one_run_epsilon(1000, 200, 190, 1e-5, 0.95)
    assert (
        one_run_p_value(1000, 200, 190, found * 0.999, 1e-5)
        < 0.05
        < one_run_p_value(1000, 200, 190, found * 1.001, 1e-5)
    )
    assert one_run_epsilon(100, 100, 50, 0.0, 0.95) == 0.0


def test_attack_on_five_copies_refutes_epsilon_of_one_record():
    z, rate, steps, delta, runs = 1.0, 0.05, 40, 1e-2, 40000
    draw = np.random.default_rng(1)
    one = privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, sampling_rate=rate, steps=steps).value
    group = {"sampling_rate": rate, "steps": steps, "group_size": 5}
    five = privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, **group).value
    weights = [math.comb(5, j) * rate**j * (1 - rate) ** (5 - j) for j in range(6)]

    def scores(copies):
        shifts = draw.binomial(copies, rate, size=(runs, steps)) if copies else 0.0
        outputs = shifts + z * draw.standard_normal((runs, steps))
        ratio = sum(w * np.exp((j * outputs - 0.5 * j * j) / z**2) for j, w in enumerate(weights))
        return np.log(ratio).sum(axis=1)

    copies, none = scores(5), scores(0)
    assert assess_claim(copies, none, delta=delta, claim=one).refuted
    assert not assess_claim(copies, none, delta=delta, claim=five).refuted
