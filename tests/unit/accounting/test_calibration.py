"""Every calibration keeps to its target."""

import math
import random
from dataclasses import replace

import pytest
from helpers import RUN, RUNS, eps_of, m2

import privproj
from privproj import M2, Gaussian, PublicSketch, Wishart
from privproj.accounting.calibration import ROUGH_NOISE_RTOL, solve_sigma
from privproj.accounting.query import composition_of
from privproj.accounting.schedule import dp_sft
from privproj.composition.good_event import GoodEventCurve
from privproj.io.run_file import from_data
from privproj.schedule import calibrate_noise
from privproj.targets import full_target


def answers_at_most(mechanism, run, eps, delta, bound=None):
    assert privproj.epsilon(mechanism, delta=delta, bound=bound, **run).value <= eps
    assert privproj.delta(mechanism, epsilon=eps, bound=bound, **run).value <= delta


@pytest.mark.full
@pytest.mark.parametrize("name", RUNS)
def test_sigma_and_steps_and_rate_keep_to_their_target(name):
    mechanism, run = RUNS[name]
    draw = random.Random(name)
    eps, delta = 10 ** draw.uniform(-0.7, 0.6), 10 ** draw.uniform(-8, -4)
    silent = replace(mechanism, noise_multiplier=None)
    z = privproj.sigma(silent, epsilon=eps, delta=delta, **run).value
    answers_at_most(replace(mechanism, noise_multiplier=z), run, eps, delta)
    others = {key: value for key, value in run.items() if key != "steps"}
    found = privproj.steps(mechanism, epsilon=2.0, delta=1e-5, **others).value
    if found is not None:
        answers_at_most(mechanism, {**others, "steps": found}, 2.0, 1e-5)
    others = {key: value for key, value in run.items() if key != "sampling_rate"}
    found = privproj.rate(mechanism, epsilon=1.0, delta=1e-5, **others).value
    if found is not None:
        answers_at_most(mechanism, {**others, "sampling_rate": found}, 1.0, 1e-5)


def test_rank_and_misalignment_keep_to_their_target():
    run = {"steps": 200, "sampling_rate": 0.01}
    found = privproj.rank(M2(dim=512, noise_multiplier=0.3), epsilon=1.0, delta=1e-5, **run).value
    answers_at_most(M2(dim=512, rank=found, noise_multiplier=0.3), run, 1.0, 1e-5)
    found = privproj.misalignment(Wishart(dim=50, rank=8), epsilon=1.0, delta=1e-5).value
    answers_at_most(Wishart(dim=50, rank=8, misalignment=found), {}, 1.0, 1e-5)


BINS = {"sampling": "balls-in-bins", "batches": 50}
RARE_BINS = pytest.param({**BINS, "batches_per_record": 3}, marks=pytest.mark.full)
SMALL_M2 = pytest.param(M2(dim=64, rank=8), marks=pytest.mark.full)


@pytest.mark.full
@pytest.mark.parametrize("run", [BINS, {**BINS, "steps": 4}, RARE_BINS], ids=str)
@pytest.mark.parametrize("silent", [Gaussian(), SMALL_M2], ids=lambda m: m.name)
def test_noise_of_epochs_in_bins_just_meets_its_target(silent, run):
    z = privproj.sigma(silent, epsilon=0.7, delta=1e-5, **run).value
    answers_at_most(replace(silent, noise_multiplier=z), run, 0.7, 1e-5)
    assert privproj.epsilon(replace(silent, noise_multiplier=0.999 * z), delta=1e-5, **run).value > 0.7


def test_epochs_and_rank_in_bins_are_last_that_fit():
    found = privproj.steps(Gaussian(noise_multiplier=1.5), epsilon=1.5, delta=1e-5, **BINS)
    answers_at_most(Gaussian(noise_multiplier=1.5), {**BINS, "steps": found.value}, 1.5, 1e-5)
    more = {**BINS, "steps": found.value + 1}
    assert found.value > 1 and privproj.epsilon(Gaussian(noise_multiplier=1.5), delta=1e-5, **more).value > 1.5
    rank = privproj.rank(M2(dim=64, noise_multiplier=0.7), epsilon=0.5, delta=1e-5, **BINS).value
    answers_at_most(M2(dim=64, rank=rank, noise_multiplier=0.7), BINS, 0.5, 1e-5)
    wider = M2(dim=64, rank=rank + 1, noise_multiplier=0.7)
    assert 1 < rank < 63 and privproj.epsilon(wider, delta=1e-5, **BINS).value > 0.5


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_joint_calibrations_keep_to_their_target(seed):
    draw = random.Random(seed)
    eps, delta = 10 ** draw.uniform(-0.5, 0.7), 10 ** draw.uniform(-8, -4)
    m2 = {"mechanism": "m2", "dim": 512, "rank": 8, "noise_multiplier": 0.2, "sampling_rate": 0.01, "steps": 100}
    gaussian = {"mechanism": "gaussian", "noise_multiplier": 2, "sampling_rate": 0.01, "steps": 100}
    for schedule in (
        calibrate_noise(from_data({"phase": [m2, gaussian]}), epsilon=eps, delta=delta),
        dp_sft(epsilon=eps, delta=delta, sampling_rate=0.01, steps=(50, 80)),
        dp_sft(epsilon=eps, delta=delta, sampling_rate=0.01, steps=(50, 80), budget="split"),
    ):
        read_back = from_data({"phase": [phase.as_dict() for phase in schedule.phases]})
        assert read_back.epsilon(delta=delta).value <= eps
        assert read_back.delta(epsilon=eps).value <= delta


@pytest.mark.full
def test_steps_keep_to_epsilon_above_which_rare_losses_are_lumps():
    """There a finer grid has too many infinite losses for delta: epsilon was 5.7e7 of a run that fits into 2000."""
    mechanism, run = PublicSketch(rank=1, noise_multiplier=0.1), {"bound": "exact-rank1", "sampling_rate": 3e-5}
    steps = privproj.steps(mechanism, epsilon=2000.0, delta=0.002, **run).value
    assert privproj.epsilon(mechanism, delta=0.002, steps=steps, **run).value <= 2000.0
    assert privproj.delta(mechanism, epsilon=2000.0, steps=steps, **run).value <= 0.002
    delta = privproj.delta(mechanism, epsilon=2000.0, steps=101293, **run).value
    assert privproj.epsilon(mechanism, delta=delta, steps=101293, **run).value <= 2000.0


def test_least_printed_delta_is_a_valid_target():
    near = math.nextafter(1e-300, 0.0)
    assert privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=near).value == pytest.approx(37.4488, rel=1e-5, abs=0)
    noise = privproj.sigma(Gaussian(), steps=620, epsilon=1000.0, delta=1e-300).value
    assert privproj.delta(Gaussian(noise_multiplier=noise), steps=620, epsilon=1000.0).value <= 1e-300


@pytest.mark.full
def test_sigma_inverts_epsilon_of_run():
    target = eps_of(m2(0.3))
    found = privproj.sigma(M2(dim=2048, rank=16), epsilon=target, delta=1e-5, **RUN)
    assert found.value == pytest.approx(0.3, rel=1e-6, abs=0)
    assert eps_of(m2(found.value)) <= target


def test_steps_and_rate_are_last_that_fit():
    mechanism = m2(0.3)
    found = privproj.steps(mechanism, epsilon=0.5, delta=1e-5, sampling_rate=0.01)
    assert eps_of(mechanism, steps=found.value) <= 0.5 < eps_of(mechanism, steps=found.value + 1)
    rate = privproj.rate(mechanism, epsilon=0.5, delta=1e-5, steps=100)
    assert eps_of(mechanism, steps=100, sampling_rate=rate.value) <= 0.5 * (1 + 1e-9)
    assert eps_of(mechanism, steps=100, sampling_rate=rate.value * 1.001) > 0.5
    assert privproj.rate(m2(50.0), epsilon=1.0, delta=1e-5).value == 1.0
    assert privproj.steps(Gaussian(noise_multiplier=0.1), epsilon=0.1, delta=1e-9).outcome == "vacuous"


@pytest.mark.full
def test_gaussian_bound_of_layers_calibrates_like_gaussian():
    """The first guess is not that of the projection, which would be far too little noise for this bound."""
    run = {"steps": 1564, "sampling_rate": 0.00128, "epsilon": 4.0, "delta": 1e-6}
    layers = M2(layers=(privproj.Layer(dim=4096, rank=8, count=64),), clipping="per-layer")
    found, plain = privproj.sigma(layers, bound="gaussian", **run).value, privproj.sigma(Gaussian(), **run).value
    assert found == pytest.approx(plain, rel=1e-6, abs=0)


def test_rule_that_leads_with_epsilon_is_calibrated_by_it(monkeypatch):
    """One epsilon a trial and not ten, to the least noise; each is a composition of its own."""
    requested, whole = [], GoodEventCurve.epsilon
    monkeypatch.setattr(GoodEventCurve, "epsilon", lambda self, x: requested.append(x) or whole(self, x))
    run = {"bound": "good-event", "steps": 300, "sampling_rate": 0.02, "split": "even"}
    z = privproj.sigma(m2(None, change_rank=5), epsilon=1.0, delta=1e-5, **run).value
    assert 0 < len(requested) <= 16
    assert eps_of(m2(z, change_rank=5), **run) <= 1.0
    assert eps_of(m2(z * (1.0 - 1e-6), change_rank=5), **run) > 1.0


def test_compared_sigma_is_near_the_least():
    composition = composition_of(Gaussian(), None, RUN)
    target = full_target(1.0, 1e-5, None, zero=False)
    roughly, closely = (solve_sigma(composition, target, roughly=roughly) for roughly in (True, False))
    assert closely.value <= roughly.value <= closely.value * (1.0 + 2.0 * ROUGH_NOISE_RTOL)
    assert roughly.lower is None and closely.lower is not None
    answers_at_most(Gaussian(noise_multiplier=roughly.value), RUN, 1.0, 1e-5)


@pytest.mark.parametrize("mechanism", [Gaussian(), M2(dim=2048, rank=16)], ids=["gaussian", "m2"])
def test_composed_sigma_holds_on_other_processors(mechanism):
    run = {"steps": 500, "sampling_rate": 0.02}
    for eps in (0.3, 1.0, 4.0):
        noise = privproj.sigma(mechanism, epsilon=eps, delta=1e-5, **run).value
        assert privproj.epsilon(replace(mechanism, noise_multiplier=noise), delta=1e-5, **run).value <= eps * (1 - 3e-9)
    rate = privproj.rate(replace(mechanism, noise_multiplier=1.0), epsilon=1.0, delta=1e-5, steps=500).value
    at_rate = privproj.epsilon(
        replace(mechanism, noise_multiplier=1.0), delta=1e-5, steps=500, sampling_rate=rate
    ).value
    assert 1.0 - 1e-3 <= at_rate <= 1.0 - 3e-9
