"""What a result says of how its batches were drawn."""

import math

import pytest

import privproj
from privproj import M2, Gaussian
from privproj.accounting.lower_bounds import with_details
from privproj.errors import PrecisionError
from privproj.schedule import Composition, phase_of

CAPPED = {"steps": 588, "sampling_rate": 256 / 50000, "dataset_size": 50000}
SHUFFLED = {"sampling": "shuffle", "batches": 1000}


def test_result_names_smallest_harmless_cap_and_it_is_harmless():
    mechanism = Gaussian(noise_multiplier=1.0)
    whole = privproj.epsilon(mechanism, delta=1e-6, steps=588, sampling_rate=256 / 50000).value
    found = privproj.epsilon(mechanism, delta=1e-6, **CAPPED, max_batch_size=360)
    least = with_details(found).alternatives["smallest_harmless_max_batch_size"]
    assert any("takes at most 27 % of delta" in sentence and str(least) in sentence for sentence in found.warnings)
    kept = privproj.epsilon(mechanism, delta=1e-6, **CAPPED, max_batch_size=least)
    assert any("takes less than 1 % of delta" in sentence for sentence in kept.warnings)
    assert whole < min(kept.value, found.value) <= max(kept.value, found.value) < 1.002 * whole
    for ask in (
        privproj.delta(mechanism, epsilon=whole, **CAPPED, max_batch_size=340),
        privproj.sigma(Gaussian(), epsilon=0.85, delta=1e-6, **CAPPED, max_batch_size=300),
    ):
        assert abs(with_details(ask).alternatives["smallest_harmless_max_batch_size"] - least) <= 1


def test_likely_truncation_has_a_finite_epsilon_and_a_remedy():
    found = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, **CAPPED, max_batch_size=260)
    whole = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, steps=588, sampling_rate=256 / 50000)
    assert whole.value < found.value < math.inf
    texts = [text for text in found.warnings if "probability above delta" in text]
    assert any("With max_batch_size >= " in text for text in texts)


@pytest.mark.parametrize("steps", [1, 3])
def test_shuffle_result_equals_partition(steps):
    mechanism = Gaussian(noise_multiplier=1.0)
    found = privproj.epsilon(mechanism, delta=1e-6, steps=steps, **SHUFFLED)
    assert found.value == privproj.epsilon(mechanism, delta=1e-6, steps=steps, sampling="partition").value
    poisson = privproj.epsilon(mechanism, delta=1e-6, steps=1000 * steps, sampling_rate=1e-3, relation="zero-out").value
    assert with_details(found).alternatives["poisson_not_valid"] == poisson
    assert poisson < 3.7 < with_details(found).lower_bound.value < found.value
    assert any("NOT VALID" in text for text in with_details(found).warnings)


def test_shuffle_result_mentions_balls_in_bins():
    mechanism, balls = Gaussian(noise_multiplier=1.0), {"sampling": "balls-in-bins", "batches": 1000}
    found = privproj.epsilon(mechanism, delta=1e-6, **SHUFFLED)
    other = privproj.epsilon(mechanism, delta=1e-6, relation="zero-out", **balls).value
    assert with_details(found).alternatives["balls_in_bins_instead"] == other


def test_alternative_that_no_grid_holds_is_left_out():
    mechanism = Gaussian(noise_multiplier=0.02)
    with pytest.raises(PrecisionError, match="more noise"):
        privproj.epsilon(mechanism, delta=1e-6, steps=2, sampling="balls-in-bins", batches=1000)
    found = privproj.epsilon(mechanism, delta=1e-6, steps=2, **SHUFFLED)
    assert math.isfinite(found.value) and "balls_in_bins_instead" not in with_details(found).alternatives


@pytest.mark.full
def test_delta_of_shuffled_batches_has_lower_bound_too():
    found = privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=3.0, **SHUFFLED)
    assert (
        with_details(found).alternatives["poisson_not_valid"]
        < 10.0 ** with_details(found).lower_bound.value
        < found.value
    )


def test_shuffle_sigma_equals_partition():
    found = privproj.sigma(Gaussian(), epsilon=1.0, delta=1e-6, **SHUFFLED)
    plain = privproj.sigma(Gaussian(), epsilon=1.0, delta=1e-6, sampling="partition")
    assert found.value == pytest.approx(plain.value, rel=1e-9)  # array functions support partitions only
    assert 0.0 < with_details(found).lower_bound.value < 1.0


@pytest.mark.full
def test_noise_multiplier_of_projection_is_that_of_partition_too():
    requested, run = {"epsilon": 1.0, "delta": 1e-6}, {"steps": 2}
    found = privproj.sigma(M2(dim=512, rank=8), **requested, **run, **SHUFFLED)
    assert found.value == privproj.sigma(M2(dim=512, rank=8), **requested, **run, sampling="partition").value


def test_no_lower_bound_without_proof():
    fixed = M2(dim=512, rank=8, noise_multiplier=0.1, fixed_projection=True)
    found = privproj.epsilon(fixed, delta=1e-6, bound="gaussian", **SHUFFLED)
    assert with_details(found).lower_bound is None
    assert any(sentence.startswith("No amplification is proved") for sentence in found.warnings)
    without = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, sampling="shuffle")
    assert not without.numerics
    assert any("number of batches" in sentence for sentence in without.warnings)


def test_known_projection_has_lower_bound_too():
    mechanism = M2(dim=512, rank=8, noise_multiplier=0.1)
    found = privproj.epsilon(mechanism, delta=1e-6, steps=2, sampling="shuffle", batches=100)
    assert with_details(found).alternatives["poisson_not_valid"] < with_details(found).lower_bound.value < found.value
    assert with_details(found).lower_bound.for_whom == "an adversary who observes the projections"


def test_phases_are_remarked_on_together():
    first = phase_of(Gaussian(noise_multiplier=2.0), "first", sampling="shuffle", batches=100)
    second = phase_of(Gaussian(noise_multiplier=1.0), "second", sampling="shuffle", batches=100)
    alone, both = (Composition(phases).epsilon(delta=1e-6) for phases in ((second,), (first, second)))
    assert with_details(both).lower_bound.value == with_details(alone).lower_bound.value < both.value
    assert (
        with_details(alone).alternatives["poisson_not_valid"]
        < with_details(both).alternatives["poisson_not_valid"]
        < both.value
    )
    capped = phase_of(Gaussian(noise_multiplier=1.0), "capped", max_batch_size=360, **CAPPED)
    found = Composition((capped, phase_of(Gaussian(noise_multiplier=9.0), "whole"))).epsilon(delta=1e-6)
    assert with_details(found).alternatives["smallest_harmless_max_batch_size"] > 360
    assert math.isfinite(found.value)
