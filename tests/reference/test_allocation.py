"""Test the reference of a balls-in-bins epoch: its two methods and a simulated epoch agree."""

import math

import mpmath as mp
import numpy as np
import pytest
from helpers import full_if
from reference.allocation import (
    gaussian_epoch_delta,
    gaussian_epoch_delta_by_quadrature,
    lognormal_shortfall,
    two_batches_delta,
)

from privproj.reference.special import gaussian_delta, normal_tail


def agree(one, two, digits):
    return abs(one - two) <= abs(two) * mp.mpf(10) ** -digits


def two_gaussian_batches(eps, z, order):
    mu = 1 / mp.mpf(z)
    return two_batches_delta(
        eps, lambda w: normal_tail(mp.log(w) / mu + mu / 2), lambda w: gaussian_delta(mp.log(w), mu), order
    )


@pytest.mark.parametrize("order", ["remove", "add"])
@pytest.mark.parametrize(("z", "eps"), [(1, 0.5), (0.5, 2), (5, 0.01), (1, 0)])
def test_allocation_two_batches_agree_to_20_digits(z, eps, order):
    with mp.workdps(25):
        assert agree(two_gaussian_batches(eps, z, order), gaussian_epoch_delta_by_quadrature(eps, z, 2, order), 20)


@pytest.mark.parametrize(
    ("z", "eps", "order"), full_if([(1, 0.5, "add"), (4, 0.1, "add"), (4, 0.1, "remove")], lambda x: x[0] > 1)
)
def test_allocation_inversion_agrees_for_two_batches(z, eps, order):
    with mp.workdps(12):
        assert agree(gaussian_epoch_delta(eps, z, 2, order), gaussian_epoch_delta_by_quadrature(eps, z, 2, order), 11)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["remove", "add"])
@pytest.mark.parametrize(("z", "eps", "batches"), [(1, 0.5, 3), (0.5, 2, 3), (4, 0.1, 3), (0.5, 2, 2), (10, 0.03, 2)])
def test_allocation_inversion_agrees_with_integrals(z, eps, batches, order):
    with mp.workdps(12):
        inverted = gaussian_epoch_delta(eps, z, batches, order)
        assert agree(inverted, gaussian_epoch_delta_by_quadrature(eps, z, batches, order), 11)


def test_allocation_of_one_batch_is_release():
    with mp.workdps(8):
        assert gaussian_epoch_delta(1, 2, 1) == gaussian_delta(1, mp.mpf(1) / 2)
        assert agree(lognormal_shortfall(2, mp.mpf("0.5"), 1), gaussian_delta(mp.log(2), "0.5") - 1 + 2, 7)


@pytest.mark.full
@pytest.mark.parametrize(
    ("z", "eps", "batches"), [(2, 0.1, 20), pytest.param(0.5, 0.8, 50, marks=pytest.mark.slow), (8, 0.02, 5)]
)
def test_allocation_agrees_with_simulated_epoch(z, eps, batches):
    """Compare with noise and a record in a random batch, ``delta = E (1 - e^(eps - L))_+``, in both directions."""
    rng, count, deltas = np.random.default_rng(5), 200_000, []
    noise = rng.standard_normal((count, batches))
    for order, present in (("remove", 1.0), ("add", 0.0)):
        x = noise.copy()
        x[np.arange(count), rng.integers(batches, size=count)] += present / z
        ratio = np.exp(x / z - 0.5 / z**2).mean(axis=1)
        loss = np.log(ratio) if present else -np.log(ratio)
        gain = np.maximum(0.0, -np.expm1(eps - loss))
        with mp.workdps(5):
            truth = float(gaussian_epoch_delta(eps, z, batches, order))
        assert abs(gain.mean() - truth) < 5.0 * gain.std() / math.sqrt(count)
        deltas.append(truth)
    with mp.workdps(5):
        assert float(gaussian_epoch_delta(eps, z, batches)) == pytest.approx(max(deltas), rel=1e-4)
