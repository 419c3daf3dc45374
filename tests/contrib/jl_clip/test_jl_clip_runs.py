"""Compositions of random clipping, whose losses have heavy tails and whose profile has no kernels."""

import math
from contextlib import suppress

import pytest

import privproj
from privproj import Gaussian
from privproj.accounting.query import composition_of
from privproj.contrib.jl_clip import JLClip
from privproj.errors import PrecisionError


@pytest.mark.parametrize(("z", "rate", "steps", "delta"), [(2.0, 5e-4, 200, 1e-6), (3.0, 0.01, 2000, 1e-8)])
def test_heavy_tailed_runs_are_enclosed_within_5_percent(z, rate, steps, delta):
    """Few probes: one release in 1e12 has a loss of hundreds of nats."""
    found = privproj.epsilon(JLClip(noise_multiplier=z, probes=8), delta=delta, steps=steps, sampling_rate=rate)
    assert found.lower < found.value < 1.05 * found.lower


def test_little_and_much_noise_together_are_enclosed():
    """On the whole dataset there is no end of the support, and both orders are one."""
    accountant = privproj.Accountant()
    accountant.step(JLClip(noise_multiplier=0.1, probes=10**6))
    accountant.step(Gaussian(noise_multiplier=30.0))
    found = accountant.epsilon(delta=1e-5)
    assert found.lower < found.value < 1.01 * found.lower


def test_rare_large_losses_are_followed_without_kernels():
    # a grid alone is 15 to 30 % above it
    mechanism = JLClip(noise_multiplier=0.544, probes=6131)
    found = privproj.epsilon(mechanism, delta=1e-10, steps=3803, sampling_rate=1.38e-5)
    assert found.lower < found.value < 1.02 * found.lower


def test_profile_without_kernels_is_enclosed_within_3_percent():
    found = privproj.epsilon(JLClip(noise_multiplier=2.5, probes=2), delta=0.01, steps=58, sampling="partition")
    assert found.lower < found.value < 1.03 * found.lower


@pytest.mark.parametrize(
    ("mechanism", "steps", "rate", "log10_delta"),
    [
        (JLClip(noise_multiplier=4.0, probes=6), 100, 0.01, -10),
        pytest.param(JLClip(noise_multiplier=4.0, probes=6), 100, 0.01, -11, marks=pytest.mark.full),
    ],
)
def test_epsilon_near_infinity_is_best_of_both_methods(mechanism, steps, rate, log10_delta):
    """Doubling puts losses beyond 171 nats at infinity, which lattices follow."""
    run = {"steps": steps, "sampling_rate": rate}
    found, seen = privproj.epsilon(mechanism, log10_delta=log10_delta, **run).value, {}
    ways = composition_of(mechanism, None, run).curve().first
    for level, step in enumerate(ways.spacings):
        with suppress(PrecisionError):
            seen[step] = ways.level(level).epsilon(log10_delta * math.log(10.0)).upper
    grid = next(upper for step, upper in seen.items() if step)
    assert found <= 1.001 * min(grid, seen.get(0.0, grid))
