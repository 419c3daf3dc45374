"""Rules of one release: amplification by sampling and composition."""

import math

import mpmath as mp
import pytest

import privproj
from privproj import Gaussian, UnsupportedError, Wishart


def classical(noise, **run):
    return privproj.epsilon(Gaussian(noise_multiplier=noise), bound="classical", **run).value


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize(("noise", "rate", "delta"), [(20.0, 0.1, 1e-5), (50.0, 1e-6, 1e-9), (7.0, 0.999, 1e-3)])
def test_classical_rule_is_amplified_by_sampling(noise, rate, delta, sampling):
    """ln(1 + q (e^eps - 1)) at q delta (Balle, Barthe, Gaboardi 2018), at 50 digits."""
    with mp.workdps(50):
        plain = mp.sqrt(2 * mp.log(mp.mpf("1.25") * mp.mpf(rate) / mp.mpf(delta))) / noise if delta < rate else None
        if plain is None:
            plain = mp.sqrt(2 * mp.log(mp.mpf("1.25"))) / noise  # delta of the release without sampling is 1
        expected = mp.log1p(rate * mp.expm1(plain))
    found = classical(noise, delta=delta, steps=1, sampling_rate=rate, sampling=sampling)
    assert float(expected) * (1 - 1e-13) <= found <= float(expected) * (1 + 1e-8)
    exact = privproj.epsilon(
        Gaussian(noise_multiplier=noise), delta=delta, steps=1, sampling_rate=rate, sampling=sampling
    )
    assert exact.value <= found


def test_classical_rule_below_1e_6_has_epsilon():
    assert classical(1e8, delta=1e-5) == pytest.approx(math.sqrt(2.0 * math.log(1.25e5)) * 1e-8, rel=1e-9, abs=0)


def test_amplified_rule_tends_to_rule_without_sampling():
    plain = classical(20.0, delta=1e-5)
    near = classical(20.0, delta=1e-5, steps=1, sampling_rate=1.0 - 1e-9)
    assert plain * (1 - 1e-8) <= near <= plain * (1 + 1e-12)


def test_amplified_rule_has_delta_and_sigma():
    run = {"steps": 30, "sampling_rate": 0.1, "bound": "classical"}
    eps = classical(20.0, delta=1e-5, steps=30, sampling_rate=0.1)
    back = privproj.delta(Gaussian(noise_multiplier=20.0), epsilon=eps, **run).value
    assert 1e-5 * (1 - 1e-9) <= back <= 1e-5
    sigma = privproj.sigma(Gaussian(), epsilon=eps, delta=1e-5, **run).value
    assert sigma == pytest.approx(20.0, rel=1e-8, abs=0)


def test_amplified_rule_of_steps_is_above_composed_profile():
    run = {"steps": 50, "sampling_rate": 0.05, "delta": 1e-6}
    assert privproj.epsilon(Gaussian(noise_multiplier=30.0), **run).value < classical(30.0, **run)
    mechanism = privproj.M2(dim=64, rank=8, noise_multiplier=2.0, change_rank=4)
    found = privproj.epsilon(mechanism, bound="beta-tail", **{**run, "steps": 1})
    assert privproj.epsilon(mechanism, **{**run, "steps": 1}).value <= found.value


def test_amplified_rule_of_wishart_is_for_batches_of_fixed_size():
    mechanism = Wishart(dim=1000, rank=16, misalignment=8e-6)
    run = {"steps": 1, "sampling_rate": 0.1, "delta": 1e-5, "bound": "quantile"}
    plain = privproj.epsilon(mechanism, delta=1e-4, bound="quantile").value
    found = privproj.epsilon(mechanism, sampling="fixed", **run).value
    assert found == pytest.approx(math.log1p(0.1 * math.expm1(plain)), rel=1e-9, abs=0)
    with pytest.raises(UnsupportedError):
        privproj.epsilon(mechanism, sampling="poisson", **run)


def test_amplified_epsilon_of_huge_epsilon_is_finite():
    """e^eps is not a double; ln(1 + q (e^eps - 1)) is eps + ln q."""
    mechanism = Wishart(dim=1000, rank=16, misalignment=0.2)
    plain = privproj.epsilon(mechanism, delta=1e-2, bound="quantile").value
    found = privproj.epsilon(mechanism, delta=1e-3, bound="quantile", steps=1, sampling_rate=0.1, sampling="fixed")
    assert plain > 710.0 and found.value == pytest.approx(plain + math.log(0.1), rel=1e-9, abs=0)
