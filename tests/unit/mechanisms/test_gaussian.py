"""The Gaussian baselines: limits of validity, order, composition."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

import privproj
from privproj import Gaussian, InvalidParameterError, UnsupportedError
from privproj.profiles.approximate_dp import advanced_epsilon
from privproj.reference import composition


def eps_of(bound, z, delta=1e-5, **run):
    return privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, bound=bound, **run).value


@pytest.mark.parametrize("z", [5.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_exact_value_is_below_every_other_bound(z, delta):
    exact = eps_of("analytic", z, delta)
    for bound in ("two-sided", "rdp", "zcdp", "gdp"):
        assert exact <= eps_of(bound, z, delta) * (1 + 1e-11)
    for bound in ("classical", "classical-2"):
        try:
            assert exact <= eps_of(bound, z, delta)
        except UnsupportedError:
            assert z < 10


@pytest.mark.parametrize("bound", ["classical", "classical-2"])
def test_classical_rules_are_rejected_from_epsilon_one(bound):
    blank = Gaussian()
    assert privproj.sigma(blank, epsilon=0.99, delta=1e-5, bound=bound).usable
    for epsilon in (1.0, 2.0):
        with pytest.raises(UnsupportedError, match="analytic"):
            privproj.sigma(blank, epsilon=epsilon, delta=1e-5, bound=bound)
        with pytest.raises(UnsupportedError):
            privproj.delta(Gaussian(noise_multiplier=5), epsilon=epsilon, bound=bound)
    with pytest.raises(UnsupportedError) as caught:
        eps_of(bound, 1.0)
    assert caught.value.result.outcome == "unsupported"
    assert caught.value.result.value is None


def test_classical_formula():
    assert eps_of("classical", 10.0) == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 10, rel=1e-12, abs=0)
    assert eps_of("classical-2", 10.0) == pytest.approx(math.sqrt(2 * math.log(2e5)) / 10, rel=1e-12, abs=0)


@pytest.mark.parametrize("bound", ["analytic", "gdp"])
def test_gaussian_releases_compose_exactly(bound):
    assert eps_of(bound, 30.0, steps=900) == pytest.approx(eps_of(bound, 1.0), rel=1e-12, abs=0)
    result = privproj.epsilon(Gaussian(noise_multiplier=30.0), delta=1e-5, bound=bound, steps=900)
    assert result.side == "exact"


def test_rules_compose_by_smaller_of_basic_and_advanced():
    few, many = eps_of("classical", 100.0, steps=2), eps_of("classical", 1000.0, steps=1000)
    per_step = math.sqrt(2 * math.log(1.25 * 2 / 1e-5)) / 100
    assert few == pytest.approx(2 * per_step, rel=1e-12, abs=0)
    assert many < 1000 * math.sqrt(2 * math.log(1.25e8)) / 1000
    assert many >= eps_of("analytic", 1000.0, steps=1000)
    back = privproj.delta(Gaussian(noise_multiplier=1000.0), epsilon=many, bound="classical", steps=1000)
    assert back.value == pytest.approx(1e-5, rel=1e-4, abs=0)


def test_advanced_composition_formula():
    expected = 0.1 * math.sqrt(200 * math.log(1e6)) + 100 * 0.1 * (math.e**0.1 - 1) / (math.e**0.1 + 1)
    assert advanced_epsilon(0.1, 100, 1e-6) == pytest.approx(expected, rel=1e-12, abs=0)


@given(st.floats(1e-8, 5.0), st.integers(1, 10**6), st.floats(1e-12, 1.0 - 1e-12) | st.floats(1.0 - 1e-7, 1.0 - 1e-15))
def test_advanced_composition_rounds_up(eps, steps, slack):
    found = advanced_epsilon(eps, steps, slack)
    with mp.workdps(40):
        exact = composition.advanced_composition(mp.mpf(eps), steps, mp.mpf(slack))
        assert exact <= found <= exact * (1 + mp.mpf("1e-11"))


def test_gdp_has_no_subsampled_form():
    with pytest.raises(UnsupportedError, match="gdp"):
        eps_of("gdp", 1.0, sampling_rate=0.1)


def test_relation_and_sampling_pairs():
    for relation in ("add-remove", "replace", "zero-out"):
        assert (
            eps_of("analytic", 1.0)
            == privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, relation=relation).value
        )
    with pytest.raises(UnsupportedError, match="supported"):
        eps_of("analytic", 1.0, sampling_rate=0.1, relation="replace")
    with pytest.raises(InvalidParameterError):
        eps_of("analytic", 1.0, sampling_rate=0.1, relation="substitute")


def test_tiny_and_huge_deltas_are_named_not_rounded_to_zero():
    tiny = privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=60.0)
    assert 0 < tiny.value <= 1.01e-300
    assert tiny.side == "upper bound"
    assert tiny.log10_delta == pytest.approx(-771.3, abs=2)
    large = privproj.delta(Gaussian(noise_multiplier=0.01), epsilon=1.0)
    assert large.outcome == "vacuous"
    assert large.as_dict()["value"] is None
    covered = privproj.epsilon(Gaussian(noise_multiplier=100.0), delta=0.1)
    assert covered.value == 0.0
    assert "total variation" in covered.warnings[0]
