"""Balls-in-bins: sums of likelihood ratios are on the safe side for every grid; epsilon of an epoch."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M2, Gaussian, Laplace
from privproj.composition import balls_in_bins
from privproj.composition.balls_in_bins import EpochBounds, SumDistribution, add_sum
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.numerics.interval import widen_outward
from privproj.numerics.jit import compile_kernel
from privproj.numerics.special import convolve_discrete
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import PrivacyProfile


def bins(mechanism, batches, epochs=1, **requested):
    ask = privproj.delta if "epsilon" in requested else privproj.epsilon
    requested = requested if "epsilon" in requested else {"delta": 1e-6, **requested}
    return ask(mechanism, sampling="balls-in-bins", batches=batches, steps=epochs, **requested)


# --- sums on a grid ----------------------------------------------------------------------------------

PLACES = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=12, unique=True)


def distribution_of(draw, places):
    masses = np.array(draw(st.lists(st.floats(1e-6, 1.0), min_size=len(places), max_size=len(places))))
    far = draw(st.sampled_from([0.0, 0.1]))
    return SumDistribution(np.sort(places), masses / masses.sum() * (1.0 - far), far, far * 3.0, 0.0, 0.0)


def hinge(dist, c, top):
    """Return ``E (Z - c)_+`` for ``c`` up to ``top``; the far atoms are beyond."""
    return float(dist.masses @ np.maximum(dist.places - c, 0.0)) + dist.far_excess + dist.far_mass * (top - c)


def exact_hinge(one, two, c, top):
    """Return the same of the sum, atom by atom, with each far atom at its mean."""
    atoms = []
    for dist in (one, two):
        far = [(top + dist.far_excess / dist.far_mass, dist.far_mass)] if dist.far_mass else []
        atoms.append([*zip(dist.places, dist.masses, strict=True), *far])
    return math.fsum(p * q * max(x + y - c, 0.0) for x, p in atoms[0] for y, q in atoms[1])


@given(st.data())
@settings(max_examples=80)
def test_add_sum_bounds_convex_means_on_both_sides(data):
    one, two = (distribution_of(data.draw, data.draw(PLACES)) for _ in range(2))
    two = one if data.draw(st.booleans()) else two
    top = data.draw(st.floats(60.0, 120.0))
    inner = np.array(data.draw(st.lists(st.floats(0.5, 55.0), max_size=9, unique=True)))
    points = np.concatenate([[0.0], np.sort(inner), [top]])
    above, below = (add_sum(one, two, points, above=side) for side in (True, False))
    for c in (0.0, *inner.tolist(), 7.3, 0.99 * top, top):
        truth = exact_hinge(one, two, c, top)
        assert hinge(below, c, top) <= truth * (1.0 + 1e-12) + 1e-13
        assert hinge(above, c, top) >= truth * (1.0 - 1e-12) - 1e-13
    for dist in (above, below):
        assert hinge(dist, 0.0, top) == pytest.approx(exact_hinge(one, two, 0.0, top), rel=1e-12)
        assert dist.masses.sum() + dist.far_mass == pytest.approx(1.0, rel=1e-12)


def test_compiled_add_sum_equals_plain_kernel():
    draw = np.random.default_rng(3)
    x, y, points = (np.sort(draw.exponential(3.0, 40)) for _ in range(3))
    points[0] = 0.0
    p, q = draw.random(40), draw.random(40)
    for square in (True, False):
        found = []
        for add in (convolve_discrete, compile_kernel(convolve_discrete)):
            parts = [np.zeros(40) for _ in range(3)]
            far = add(x, p, x if square else y, p if square else q, square, points, *parts)
            found.append(np.concatenate([*parts, far]))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-13)


@pytest.mark.parametrize("points", [3.0, 60.0])
def test_epoch_is_sound_on_any_grid(points, monkeypatch):
    """A poor grid gives a wider enclosure of the same number."""
    release, at = gaussian_profile(1.0), np.array([0.05, 0.4, 1.5, -0.05, -0.4])
    ends = EpochBounds(release, 21)
    fine = ends.above.excess(at), ends.below.excess(at)
    monkeypatch.setattr(balls_in_bins, "POINTS_PER_SCORE", points)
    ends = EpochBounds(release, 21)
    above, below = ends.above.excess(at), ends.below.excess(at)
    assert np.all(below <= fine[0]) and np.all(fine[1] <= above)
    assert np.all(below <= above)


@pytest.mark.parametrize("infinite", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("loss", [0.1, 1.0, 6.0])
def test_infinite_losses_count_in_both_directions(infinite, loss):
    """The release reveals the record with some probability, and else a coin; the reference sums over all outcomes."""
    rest = 1.0 - infinite

    def log_delta(eps):
        found = infinite + rest * max(0.0, math.exp(loss) - math.exp(eps)) / (1.0 + math.exp(loss))
        return widen_outward(math.log(found) if found > 0.0 else -math.inf)

    q = rest / (1.0 + math.exp(loss))
    atoms = [(0.0, infinite), (math.exp(loss), q), (math.exp(-loss), q * math.exp(loss))]
    at = np.array([0.0, 0.3 * loss, 0.9 * loss, 1.1 * loss, -0.3 * loss, -0.9 * loss, -1.1 * loss])
    for batches in (2, 3, 5):
        ways = [tuple(zip(*way, strict=True)) for way in product(atoms, repeat=batches)]
        dist = [(sum(w) / batches, math.prod(masses)) for w, masses in ways]
        gains = [infinite + math.fsum(p * max(w - math.exp(x), 0.0) for w, p in dist) for x in at if x >= 0.0]
        gains += [math.fsum(p * max(math.exp(x) - w, 0.0) for w, p in dist) for x in at if x < 0.0]
        ends = EpochBounds(PrivacyProfile(log_delta), batches)
        assert np.all(ends.above.excess(at) >= np.array(gains) * (1.0 - 1e-11))
        assert ends.below is None or np.all(ends.below.excess(at) <= np.array(gains) * (1.0 + 1e-11))


def test_epoch_bounds_include_their_rounding():
    at = np.array([0.05, 0.4, -0.05, -0.4])
    ends = EpochBounds(gaussian_profile(1.0), 21)
    for end, factor in (ends.above, math.exp(0.1)), (ends.below, math.exp(-0.1)):
        less_sure = replace(end, distribution=replace(end.distribution, growth=end.distribution.growth + 0.1))
        np.testing.assert_allclose(less_sure.excess(at), factor * end.excess(at), rtol=1e-9)
        moved = replace(end, distribution=replace(end.distribution, drift=1e-3)).excess(at) / end.excess(at)
        assert np.all(moved > 1.0) if end.above else np.all(moved < 1.0)


# --- profiles of epochs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 7])
def test_one_batch_equals_one_release(epochs):
    release = Gaussian(noise_multiplier=1.0)
    assert bins(release, 1, epochs).value == privproj.epsilon(release, delta=1e-6, steps=epochs).value


@cache
def epsilon_by_batches(z, batches):
    return bins(Gaussian(noise_multiplier=z), batches)


@pytest.mark.parametrize("z", [0.4, 1.0, 5.0])
def test_epoch_epsilon_decreases_with_number_of_batches(z):
    values = [epsilon_by_batches(z, batches) for batches in (1, 2, 5, 30, 400)]
    for few, many in pairwise(values):
        assert many.value < few.lower
        assert 0.99 * many.value < many.lower <= many.value


def test_epoch_epsilon_is_monotone_in_epochs_and_noise():
    values = [bins(Gaussian(noise_multiplier=1.0), 50, epochs).value for epochs in (1, 2, 9, 100)]
    assert values == sorted(values)
    values = [bins(Gaussian(noise_multiplier=z), 50, 3).value for z in (0.3, 0.6, 1.0, 4.0, 40.0)]
    assert values == sorted(values, reverse=True)


def test_sum_distribution_has_mean_one_per_batch():
    """``E (S/t - s)_+`` less ``E (s - S/t)_+`` is ``1 - s``: the excess at 1 is the same from both sides."""
    for z, batches in ((0.5, 10), (1.0, 1000), (20.0, 100)):
        ends = EpochBounds(gaussian_profile(1.0 / z), batches)
        for end in (ends.above, ends.below):
            right, left = end.right(np.array([1e-12])), end.left(np.array([-1e-12]))
            assert right[0] == pytest.approx(left[0], rel=1e-6)


def test_record_in_every_batch_is_in_every_release():
    release = Gaussian(noise_multiplier=2.0)
    one, some, every = (bins(release, 6, 3, batches_per_record=count).value for count in (1, 4, 6))
    assert one < some < every == privproj.epsilon(release, delta=1e-6, steps=18).value


@pytest.mark.parametrize("target", [{"delta": 1e-2}, {"epsilon": 1.0}])
def test_several_batches_per_record_have_no_lower_end(target):
    release = Gaussian(noise_multiplier=1.0)
    one, several, every = (bins(release, 4, batches_per_record=count, **target) for count in (1, 2, 4))
    assert several.lower is None and several.interval.upper == several.value
    assert 0.0 < one.lower <= one.value < several.value < every.value * (1.0 + 1e-9)
    assert every.lower is not None


@pytest.mark.parametrize("mechanism", [Laplace(noise_multiplier=1.5), M2(dim=64, rank=8, noise_multiplier=0.5)])
def test_epochs_of_other_profiles_are_sound(mechanism):
    alone = privproj.epsilon(mechanism, delta=1e-6).value
    epoch = bins(mechanism, 40)
    assert 0.0 < epoch.value < 0.9 * alone
    assert bins(mechanism, 40, 5).value > epoch.value
    # The round trip holds.
    assert bins(mechanism, 40, 5, epsilon=bins(mechanism, 40, 5).value).value <= 1e-6


def test_epoch_of_pure_dp_is_pure_dp():
    assert bins(Laplace(noise_multiplier=2.0), 100, delta=1e-200).value <= 0.5


def test_epoch_epsilon_exists_at_tiny_deltas():
    values = [bins(Gaussian(noise_multiplier=1.0), 100, delta=delta).value for delta in (1e-6, 1e-20, 1e-35, 1e-90)]
    assert values == sorted(values)
    assert values[-1] <= privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-90).value


@pytest.mark.parametrize("z", [0.05, 1e4])
def test_epoch_epsilon_exists_at_extreme_noise(z):
    result = bins(Gaussian(noise_multiplier=z), 1000, delta=1e-12)
    assert 0.0 <= 0.99 * result.value <= result.lower <= result.value < math.inf


@pytest.mark.parametrize("z", [0.05, 0.08])
def test_epochs_of_little_noise_are_at_most_as_many_releases(z):
    result = bins(Gaussian(noise_multiplier=z), 1000, 10, delta=1e-10)
    whole = privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-10, steps=10).value
    assert 0.95 * result.value <= result.lower <= result.value <= whole


# --- not supported ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ({"relation": "replace"}, "not supported under relation=replace"),
        ({"bound": "rdp"}, "does not support balls-in-bins"),
    ],
)
def test_bound_without_batch_theorem_raises(run, text):
    with pytest.raises(UnsupportedError, match=text):
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, sampling="balls-in-bins", batches=10, **run)


@pytest.mark.parametrize(
    "run",
    [{"batches": None}, {"batches": 0}, {"batches": 3, "batches_per_record": 4}, {"batches": 3, "sampling_rate": 0.1}],
)
def test_invalid_numbers_of_batches_raise(run):
    with pytest.raises(InvalidParameterError):
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, sampling="balls-in-bins", **run)


@pytest.mark.parametrize(
    ("noise", "batches", "epochs", "delta"),
    [(24.422, 53, 10, 1e-6), (100.0, 53, 10, 1e-4), (100.0, 5, 48, 1e-9), (15e3, 20, 48, 1e-15)],
)
def test_large_last_atom_is_resolved(noise, batches, epochs, delta):
    """Laplace losses have an atom at their end; a split to the end of the grid made epsilon 14 times too large."""
    mechanism = Laplace(noise_multiplier=noise)
    found = privproj.epsilon(mechanism, delta=delta, sampling="balls-in-bins", batches=batches, steps=epochs)
    assert found.lower < found.value < 1.12 * found.lower
    poisson = privproj.epsilon(mechanism, delta=delta, sampling_rate=1.0 / batches, steps=epochs * batches)
    assert found.value < 1.002 * poisson.value
