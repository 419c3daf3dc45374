"""Moments of the loss bound a run at every delta, and tightly at small deltas."""

import math

import numpy as np
import pytest
from helpers import gaussian

import privproj
from privproj.composition.moments import MomentCurve, _chord_weights, _excess_of
from privproj.profiles.gaussian import log_gaussian_delta
from privproj.run import Run


@pytest.mark.parametrize("theta", [0.01, 1.0, 7.0, 40.0])
def test_gaussian_moment_is_bounded_within_two_percent(theta):
    excess = _excess_of(gaussian(2.0), Run(), -5000.0, 1.0)
    # E_P e^(theta L) = e^(theta (theta + 1) mu^2 / 2), mu = 1/2
    exact = theta * (theta + 1.0) / 8.0
    assert exact <= excess.log_moment(theta) <= 1.02 * exact
    assert exact <= excess.mirrored().log_moment(theta) <= 1.02 * exact


@pytest.mark.parametrize("power", [-5, -40, -300, -1000, -(10**6)])
@pytest.mark.parametrize("steps", [1, 100])
def test_unsampled_gaussian_is_bounded_at_every_delta(steps, power):
    log_delta, curve = power * math.log(10.0), MomentCurve([(gaussian(math.sqrt(steps)), Run(steps=steps))], -(2.0**23))
    eps = curve.epsilon_above(log_delta)
    assert log_gaussian_delta(eps, 1.0) <= log_delta
    # a Chernoff bound loses a few nats of ln delta
    assert log_gaussian_delta(eps / 1.02, 1.0) >= log_delta - 8.0


@pytest.mark.parametrize("rate", [0.9, 1e-2, 1e-12, 1e-300])
def test_moment_epsilon_and_delta_are_inverses(rate):
    curve = MomentCurve([(gaussian(1.0), Run(steps=50, sampling_rate=rate, sampling="poisson"))], -4000.0)
    for log_delta in (-30.0 + math.log(rate), -1000.0):
        assert curve.log_delta_above(curve.epsilon_above(log_delta)) == pytest.approx(log_delta, rel=1e-12)


def test_chord_weights_agree_with_integrals():
    y = np.array([1e-9, 0.1, 0.499999, 0.500001, 3.0, 50.0])
    log_a, log_b = _chord_weights(y)
    r = (np.arange(200_000) + 0.5) / 200_000
    for i, at in enumerate(y):
        weight = np.exp(at * (r - 1.0))
        assert math.exp(log_a[i] - at) == pytest.approx(float(np.mean(weight * (1.0 - r))), rel=1e-6)
        assert math.exp(log_b[i] - at) == pytest.approx(float(np.mean(weight * r)), rel=1e-6)


def test_epsilon_at_tiny_delta_is_that_of_moments():
    options = {"steps": 100, "sampling_rate": 0.004, "sampling": "poisson"}
    result = privproj.epsilon(privproj.Gaussian(noise_multiplier=2.0), delta=1e-250, **options)
    assert result.numerics["grid"] == "no grid, but moments of the loss"
    assert result.value <= 15.0  # 1143 without moments


def test_epsilon_at_tiny_delta_is_at_most_that_of_moments():
    run = Run(steps=24, sampling_rate=0.019, sampling="poisson")
    result = privproj.epsilon(
        privproj.Gaussian(noise_multiplier=0.26), delta=1e-150, steps=24, sampling_rate=0.019, sampling="poisson"
    )
    by_moments = MomentCurve([(gaussian(0.26), run)], -700.0).epsilon_above(-150.0 * math.log(10.0))
    assert result.lower <= result.value <= min(1.001 * result.lower, by_moments)
