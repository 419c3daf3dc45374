"""What shuffled batches cost at the least."""

import itertools
import math

import numpy as np
import pytest

import privproj
from privproj import M2, Gaussian
from privproj.accounting.shuffling import ShuffledEpochs, fixed_shift, random_shift
from privproj.distributions.squared_sensitivity import ScaledBeta
from privproj.sampling import NeighboringRelation

ZERO_OUT, REPLACE = NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE


def distribution(mechanism):
    """Return the distribution of the squared sensitivity for a known projection."""
    return ScaledBeta(*mechanism.alike.beta_shape, mechanism.mu**2)


def sound(z, epochs, delta):
    """Epsilon of one release for each epoch."""
    return privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, steps=epochs).value


def test_published_example_is_between_poisson_and_partition():
    poisson = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, steps=1000, sampling_rate=1e-3).value
    least = ShuffledEpochs(fixed_shift(1.0), 1000, 1, ZERO_OUT).epsilon_at_least(math.log(1e-6))
    assert poisson < 0.19 < 3.7 < least < sound(1.0, 1, 1e-6)


@pytest.mark.parametrize("relation", [ZERO_OUT, REPLACE])
@pytest.mark.parametrize("epochs", [1, 3, pytest.param(30, marks=pytest.mark.full)])
def test_no_lower_bound_is_above_sound_number(relation, epochs):
    for z, batches, delta in itertools.product((0.05, 1.0, 4.0), (1, 2, 10**6), (1e-12, 1e-5, 0.2)):
        least = ShuffledEpochs(fixed_shift(z), batches, epochs, relation).epsilon_at_least(math.log(delta))
        assert 0.0 <= least <= sound(z, epochs, delta)


@pytest.mark.parametrize("relation", [ZERO_OUT, REPLACE])
def test_one_batch_in_one_epoch_is_single_release(relation):
    for z, delta in ((1.0, 1e-6), (0.3, 1e-10), (8.0, 1e-3)):
        least = ShuffledEpochs(fixed_shift(z), 1, 1, relation).epsilon_at_least(math.log(delta))
        assert least == pytest.approx(sound(z, 1, delta), rel=1e-6)


def exact_delta(z, batches, relation, eps):
    """``delta(eps)`` of one epoch of 2 or 3 shuffled batches for the data of C27, by integration of its densities."""
    high, low = (1.0 / z, 0.0) if relation is REPLACE else (2.0 / z, 1.0 / z)
    x = np.linspace(-7.0, high + 7.0, 1201 if batches == 2 else 161)
    step = x[1] - x[0]

    def density(shift):
        plain, moved = (np.exp(-0.5 * (x - s) ** 2) / math.sqrt(2.0 * math.pi) for s in (0.0, shift))
        total = 0.0
        for place in range(batches):
            term = np.ones(())
            for i in range(batches):
                term = np.multiply.outer(term, moved if i == place else plain)
            total = total + term / batches
        return total

    return float(np.maximum(density(high) - math.exp(eps) * density(low), 0.0).sum() * step**batches)


@pytest.mark.full
@pytest.mark.parametrize("batches", [2, 3])
@pytest.mark.parametrize("relation", [ZERO_OUT, REPLACE])
def test_lower_bound_is_below_truth_of_its_data_and_near_it(batches, relation):
    for z, eps in ((0.5, 1.0), (0.7, 4.0), (1.0, 0.3), (1.0, 1.5), (2.0, 0.4))[:: batches - 1]:
        exact = exact_delta(z, batches, relation, eps)
        least = math.exp(ShuffledEpochs(fixed_shift(z), batches, 1, relation).log_delta_at_least(eps))
        assert 0.2 * exact <= least <= exact * (1.0 + 1e-4)


def test_two_epochs_of_one_batch_are_below_truth_of_two_releases():
    for z, eps in ((1.0, 1.0), (0.5, 6.0), (3.0, 0.5)):
        exact = privproj.delta(Gaussian(noise_multiplier=z), epsilon=eps, steps=2).value
        assert 0.2 * exact <= math.exp(ShuffledEpochs(fixed_shift(z), 1, 2, ZERO_OUT).log_delta_at_least(eps)) <= exact


@pytest.mark.full
@pytest.mark.parametrize("relation", [ZERO_OUT, REPLACE])
@pytest.mark.parametrize("mechanism", [Gaussian(noise_multiplier=0.9), M2(dim=60, rank=6, noise_multiplier=0.3)])
def test_simulated_attack_reaches_claimed_rates(mechanism, relation):
    batches, w, draw = 10, 2.0, np.random.default_rng(7)
    cells = random_shift(distribution(mechanism)) if isinstance(mechanism, M2) else fixed_shift(0.9)
    claimed = ShuffledEpochs(cells, batches, 1, relation).log_looks_so(w)
    high, low = (1.0, 0.0) if relation is REPLACE else (2.0, 1.0)
    root = np.full((400000, batches), 1.0 / 0.9)
    if isinstance(mechanism, M2):  # |P u|, as the norm of the first coordinates of a uniform direction
        kept, rest = draw.chisquare(6, size=root.shape), draw.chisquare(54, size=root.shape)
        root = np.sqrt(kept / (kept + rest)) / 0.3
    for shift, log_claimed, tighter in zip((high, low), claimed, (1.15, 1.0 / 1.15), strict=True):
        noise = draw.normal(size=root.shape)
        noise[:, 0] += shift * root[:, 0]
        seen = np.mean((noise > w / root + 0.5 * (high + low) * root).any(axis=1))
        slack = 4.0 * math.sqrt(seen / len(root))
        ends = sorted((math.exp(log_claimed), math.exp(log_claimed) * tighter))
        assert ends[0] - slack <= seen <= ends[1] + slack


@pytest.mark.full
def test_known_projection_lower_bound_is_below_partition():
    for z, rank in ((0.05, 16), (0.3, 4)):
        mechanism = M2(dim=512, rank=rank, noise_multiplier=z)
        cells = random_shift(distribution(mechanism))
        exact = privproj.epsilon(mechanism, delta=1e-5, bound="exact-rank1").value
        assert 0.9 * exact <= ShuffledEpochs(cells, 1, 1, ZERO_OUT).epsilon_at_least(math.log(1e-5)) <= exact
        sound_number = privproj.epsilon(mechanism, delta=1e-5, bound="exact-rank1", steps=3).value
        assert ShuffledEpochs(cells, 50, 3, ZERO_OUT).epsilon_at_least(math.log(1e-5)) <= sound_number


def test_both_readings_agree():
    for epochs, z, batches in ((1, 1.0, 100), (5, 1.0, 100), (1, 0.1, 10**5)):
        epoch = ShuffledEpochs(fixed_shift(z), batches, epochs, ZERO_OUT)
        eps = epoch.epsilon_at_least(math.log(1e-6))
        assert epoch.log_delta_at_least(eps) == pytest.approx(math.log(1e-6), abs=0.1)


def test_more_epochs_cost_no_less_and_more_batches_no_more():
    for z in (0.5, 1.0, 2.0):
        by_epochs = [
            ShuffledEpochs(fixed_shift(z), 100, e, ZERO_OUT).epsilon_at_least(math.log(1e-6))
            for e in (1, 2, 5, 20, 100)
        ]
        assert all(a <= b * (1.0 + 1e-6) for a, b in itertools.pairwise(by_epochs))
        by_batches = [
            ShuffledEpochs(fixed_shift(z), t, 1, ZERO_OUT).epsilon_at_least(math.log(1e-6)) for t in (1, 10, 100, 1000)
        ]
        assert all(a >= b for a, b in itertools.pairwise(by_batches))


@pytest.mark.parametrize("epochs", [1, pytest.param(10**4, marks=pytest.mark.full)])
def test_extreme_parameters_give_number_or_nothing(epochs):
    for z, batches in itertools.product((1e-12, 1e-3, 1e12), (1, 10**7)):
        run = ShuffledEpochs(fixed_shift(z), batches, epochs, ZERO_OUT)
        for log_delta, eps in ((-1e-9, 0.0), (-700.0, 1.0), (-2.3e6, 1e9)):
            assert 0.0 <= run.epsilon_at_least(log_delta) < math.inf
            assert run.log_delta_at_least(eps) <= 0.0
