"""Noise calibrated to an attack risk: it meets its target closely in every function that returns the risk."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from helpers import RUN, RUNS
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Laplace, PublicSketch, Side
from privproj.accounting.lower_bounds import with_details
from privproj.accounting.query import composition_of
from privproj.io.run_file import from_data
from privproj.profiles.tradeoff import advantage, tradeoff, true_positive_rates
from privproj.schedule import calibrate_noise

NORMAL = NormalDist()
TARGETS = [{"advantage": 0.1}, {"tpr": 0.02, "fpr": 0.01}]
rates = st.floats(-4, -0.1).map(lambda x: 10.0**x)
risks = st.one_of(
    rates.map(lambda a: {"advantage": a}),
    st.tuples(rates, st.floats(1.01, 50)).map(lambda t: {"tpr": min(t[0] * t[1], 0.5 + 0.5 * t[0]), "fpr": t[0]}),
)
silent = st.one_of(
    st.just(Gaussian()),
    st.just(Laplace()),
    st.builds(lambda rank: PublicSketch(rank=rank), st.integers(1, 300)),
    st.integers(2, 300).flatmap(lambda d: st.integers(1, d).map(lambda r: M2(dim=d, rank=r))),
)


def shown_risk(mechanism, target, bound=None, **run):
    """Return the largest risk over all functions that return it."""
    curve = composition_of(mechanism, bound, run).curve()
    if "advantage" in target:
        return advantage(curve)
    found = true_positive_rates(curve, [target["fpr"]])[0]
    assert abs(1.0 - found - tradeoff(curve, [target["fpr"]])[0]) <= 2.0**-52
    return found


@settings(max_examples=20, deadline=None)
@given(silent, risks)
def test_calibrated_noise_meets_attack_risk_tightly(mechanism, target):
    found = privproj.sigma(mechanism, **target)
    wanted = target.get("advantage") or target["tpr"]
    assert found.risk == target
    assert shown_risk(replace(mechanism, noise_multiplier=found.value), target) <= wanted
    assert shown_risk(replace(mechanism, noise_multiplier=found.value * (1 - 1e-6)), target) > wanted


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("bound", ["two-sided", "classical", "classical-2", "rdp", "zcdp", "gdp"])
def test_bounds_of_every_kind_keep_to_target(bound, target):
    found = privproj.sigma(Gaussian(), bound=bound, **target)
    wanted = target.get("advantage") or target["tpr"]
    assert shown_risk(Gaussian(noise_multiplier=found.value), target, bound=bound) <= wanted
    assert found.value >= privproj.sigma(Gaussian(), **target).value * (1 - 1e-9)


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(
    "name", ["gaussian", "m2", *(pytest.param(n, marks=pytest.mark.full) for n in RUNS if n not in ("gaussian", "m2"))]
)
def test_run_keeps_to_target_and_little_less_noise_does_not(name, target):
    mechanism, run = RUNS[name]
    found = privproj.sigma(replace(mechanism, noise_multiplier=None), **target, **run)
    wanted = target.get("advantage") or target["tpr"]
    assert shown_risk(replace(mechanism, noise_multiplier=found.value), target, **run) <= wanted
    assert shown_risk(replace(mechanism, noise_multiplier=0.999 * found.value), target, **run) > wanted


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-6, 0.999), st.floats(1e-9, 0.999))
def test_risk_sigma_agrees_with_closed_form(risk, share):
    # A = 2 Phi(mu/2) - 1, and B = Phi(Phi^-1(a) + mu)
    found = privproj.sigma(Gaussian(), advantage=risk)
    exact = 0.5 / NORMAL.inv_cdf(0.5 + 0.5 * risk)
    assert found.side is Side.EXACT
    assert exact * (1 - 1e-9) <= found.value <= exact * (1 + 1e-9)
    assert found.lower <= exact * (1 + 1e-9)
    fpr = share * risk
    found = privproj.sigma(Gaussian(), tpr=risk, fpr=fpr)
    mu = NORMAL.inv_cdf(risk) - NORMAL.inv_cdf(fpr)
    assert abs(found.value * mu - 1.0) <= 1e-8 * (1.0 + 1.0 / mu)
    assert found.lower <= found.value


@pytest.mark.parametrize("mechanism", [Gaussian(), Laplace(), M2(dim=200, rank=7)], ids=lambda m: m.name)
def test_advantage_is_delta_at_epsilon_zero(mechanism):
    for risk in (1e-4, 0.03, 0.4):
        z = privproj.sigma(mechanism, advantage=risk).value
        assert privproj.delta(replace(mechanism, noise_multiplier=z), epsilon=0.0).value <= risk
        near = privproj.sigma(mechanism, epsilon=1e-9, delta=risk).value
        assert math.isclose(z, near, rel_tol=1e-4)


def test_larger_risk_needs_no_more_noise():
    silent = M2(dim=300, rank=12)
    for grid in ([{"advantage": a} for a in (0.01, 0.1, 0.5)], [{"tpr": b, "fpr": 0.01} for b in (0.011, 0.02, 0.5)]):
        found = [privproj.sigma(silent, **target).value for target in grid]
        assert found == sorted(found, reverse=True)
    strict, loose = (privproj.sigma(silent, tpr=0.2, fpr=a).value for a in (0.1, 0.01))
    assert strict > loose


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_best_attack_on_m2_reaches_target_and_no_more(target):
    dim, rank, count = 64, 8, 400_000
    z = privproj.sigma(M2(dim=dim, rank=rank, change_rank=1), bound="exact-rank1", **target).value
    draw = np.random.default_rng(5)
    # An adversary who sees the projection sees a Gaussian with squared sensitivity Beta(r/2, (d-r)/2)/z^2.
    shift = np.sqrt(draw.beta(rank / 2, (dim - rank) / 2, (2, count))) / z
    without, with_record = shift * draw.standard_normal((2, count)) + 0.5 * shift**2 * np.array([[-1.0], [1.0]])
    if "advantage" in target:
        wanted, hit, least = target["advantage"], np.mean(with_record > 0.0) - np.mean(without > 0.0), 0.0
    else:
        wanted, least = target["tpr"], np.quantile(without, 1.0 - target["fpr"])
        hit = np.mean(with_record > least)
    assert abs(hit - wanted) <= 5.0 * math.sqrt(2.0 * wanted / count)


def test_unreachable_risk_is_met_by_least_noise():
    run = {"steps": 20, "sampling_rate": 0.01}
    # The record is in no batch with probability 0.99^20 = 0.818.
    found = privproj.sigma(Gaussian(), tpr=0.5, fpr=0.01, **run)
    assert found.value < 0.1
    assert shown_risk(Gaussian(noise_multiplier=found.value), {"tpr": 0.5, "fpr": 0.01}, **run) <= 0.2


def test_advantage_has_a_lower_bound():
    found = privproj.sigma(M2(dim=2048, rank=16), advantage=0.1, **RUN)
    assert 0.09 <= with_details(found).lower_bound.value <= 0.1
    assert with_details(privproj.sigma(M2(dim=2048, rank=16), tpr=0.02, fpr=0.01)).lower_bound is None


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_phases_of_run_are_scaled_to_risk(target):
    phases = [
        {"mechanism": "m2", "dim": 64, "rank": 4, "noise_multiplier": 0.3, "steps": 20, "sampling_rate": 0.1},
        {"mechanism": "gaussian", "noise_multiplier": 3, "steps": 5},
    ]
    scaled = calibrate_noise(from_data({"phase": phases}), **target)
    wanted = target.get("advantage") or target["tpr"]
    shown = scaled.risk(**target)
    assert 0.99 * wanted < shown.value <= wanted and shown.risk == target
    assert scaled.scaled(0.99).risk(**target).value > wanted
    first, second = (phase.mechanism.noise_multiplier for phase in scaled.phases)
    assert first / 0.3 == pytest.approx(second / 3, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ({"advantage": 0.1, "epsilon": 1.0}, "epsilon"),
        ({"advantage": 0.1, "delta": 1e-5}, "delta"),
        ({"advantage": 0.1, "tpr": 0.2, "fpr": 0.1}, "advantage"),
        ({"tpr": 0.2}, "fpr"),
        ({"fpr": 0.2}, "tpr"),
        ({"tpr": 0.2, "fpr": 0.2}, "tpr"),
        ({"tpr": 1.0, "fpr": 0.2}, "tpr"),
        ({"advantage": 0.0}, "advantage"),
        ({"advantage": math.nan}, "advantage"),
        ({"delta": 1e-5}, "epsilon"),
        ({}, "epsilon"),
    ],
    ids=str,
)
def test_invalid_risk_target_error_names_it(target, name):
    with pytest.raises(InvalidParameterError) as caught:
        privproj.sigma(Gaussian(), **target)
    assert caught.value.name == name


def test_risk_that_no_noise_meets_is_vacuous():
    found = privproj.sigma(Gaussian(), advantage=1e-15)
    assert found.value is None and "larger risk" in found.warnings[-1]


def test_risk_targets_next_to_zero_and_one_have_results():
    largest = math.nextafter(1.0, 0.0)
    z = privproj.sigma(Gaussian(), advantage=largest).value
    assert z and advantage(composition_of(Gaussian(noise_multiplier=z), None, {}).curve()) <= largest
    for rate in (0.01, 0.5, largest - 2.0**-53):
        # Any noise up to 1e12 leaves more than one rounding.
        assert privproj.sigma(Gaussian(), tpr=math.nextafter(rate, 1.0), fpr=rate).value is None


def test_evaluate_accepts_attack_risk():
    assert privproj.evaluate("gaussian.analytic.sigma", advantage=0.1) == privproj.sigma(Gaussian(), advantage=0.1)
    with pytest.raises(InvalidParameterError):
        privproj.evaluate("gaussian.analytic.sigma", advantage=0.1, epsilon=1.0)
