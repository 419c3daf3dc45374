"""The two readings of every curve are exact inverses, and every calibration meets its target: no tolerance anywhere."""

import contextlib
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_laws import GUARANTEES, ids, mechanism_for

import privproj
from privproj import M2, Gaussian, Laplace, PublicSketch, Refused, Wishart
from privproj.accounting.two_stage import dp_sft
from privproj.curves.inversion import (
    delta_value,
    epsilon_at,
    floor_log_delta,
    log10_value,
    read_epsilon,
    read_log_delta,
)
from privproj.errors import PrivprojError
from privproj.numerics.enclosure import Enclosure
from privproj.records.run_file import from_data
from privproj.runs import delta_target

RUNS = {
    "gaussian": (Gaussian(noise_multiplier=1.1), {"steps": 40, "sampling_rate": 0.03}),
    "gaussian, fixed": (Gaussian(noise_multiplier=1.1), {"steps": 300, "sampling_rate": 0.03, "sampling": "fixed"}),
    "laplace": (Laplace(noise_multiplier=6.4), {"steps": 20}),
    "laplace, sampled once": (Laplace(noise_multiplier=1.36), {"sampling_rate": 0.4}),
    "m2": (M2(dim=512, rank=8, noise_multiplier=0.3), {"steps": 200, "sampling_rate": 0.01}),
    "m2 gaussian": (M2(dim=59, rank=55, noise_multiplier=1.0), {"steps": 50, "sampling_rate": 0.05}),
    "sketch-public": (PublicSketch(rank=2, noise_multiplier=2.534484416553443), {"steps": 300, "sampling_rate": 0.01}),
}


def obeys_both_laws(mechanism, bound, run, eps, delta):
    """How many of the two laws were put to the test."""
    tried = 0
    found = privproj.epsilon(mechanism, delta=delta, bound=bound, **run).value
    if math.isfinite(found):
        assert privproj.delta(mechanism, epsilon=found, bound=bound, **run).value <= delta
        tried += 1
    back = privproj.delta(mechanism, epsilon=eps, bound=bound, **run).value
    if 1e-290 < back < 1.0:
        assert privproj.epsilon(mechanism, delta=back, bound=bound, **run).value <= eps
        tried += 1
    return tried


SLOW = {"early", "early-exact-tail", "column", "column-exact", "mixture-rdp"}
"""Bounds whose two directions search for each other: seconds a question."""


def one_release_each():
    """Every guarantee, the slow ones marked."""
    return [pytest.param(b, marks=[pytest.mark.slow] if b.name in SLOW else []) for b in GUARANTEES]


@pytest.mark.parametrize("bound", one_release_each(), ids=ids)
def test_readings_of_one_release_are_exact_inverses(bound):
    draw = random.Random(bound.name)
    tried = 0
    z = 40.0 if bound.name.startswith("classical") else 1.0
    for _ in range(4):
        eps, delta = 10 ** draw.uniform(-1.5, 0.9), 10 ** draw.uniform(-9, -1)
        with contextlib.suppress(Refused):  # beyond the range in which a rule is proved
            tried += obeys_both_laws(mechanism_for(bound, z), bound.name, {}, eps, delta)
    assert tried


@pytest.mark.parametrize("name", RUNS)
def test_readings_of_a_run_are_exact_inverses(name):
    mechanism, run = RUNS[name]
    draw = random.Random(name)
    assert sum(
        obeys_both_laws(mechanism, None, run, 10 ** draw.uniform(-1.5, 0.5), 10 ** draw.uniform(-9, -1))
        for _ in range(4)
    )


class Noisy:
    """A curve ``delta = e^-eps`` whose two directions are off by different noise of 1e-7, one value at a time."""

    inverse_spacing = 2.0**-30

    @staticmethod
    def noise(x):
        return random.Random(x).uniform(0.0, 1e-7)

    def log_delta(self, eps):
        return Enclosure(-math.inf, min(0.0, -eps + self.noise(eps)))

    def epsilon(self, log_delta):
        return Enclosure(-math.inf, -log_delta + self.noise(-log_delta))


def test_laws_hold_for_a_curve_that_is_neither_monotone_nor_its_own_inverse():
    curve, draw, naive = Noisy(), random.Random(5), 0
    for _ in range(200):
        delta, eps = 10 ** draw.uniform(-12, -0.1), draw.uniform(0.01, 20.0)
        found = read_epsilon(curve, delta_target(delta, None)).upper
        assert delta_value(read_log_delta(curve, found).upper) <= delta
        back = delta_value(read_log_delta(curve, eps).upper)
        assert read_epsilon(curve, delta_target(back, None)).upper <= eps
        naive += curve.epsilon(curve.log_delta(eps).upper).upper > eps
    assert naive > 20, "the curve is too tame to show anything"


class Silent(Noisy):
    """A rule ``delta = e^-eps`` that has no answer for its epsilon anywhere."""

    leads_with_epsilon = True

    def log_delta(self, eps):
        return Enclosure(-math.inf, -eps)

    def epsilon(self, log_delta):
        raise Refused("no answer")


def test_a_point_that_nothing_proves_is_no_delta():
    for eps in (0.3, 1.0, 7.7):
        assert read_log_delta(Silent(), eps).upper >= -eps


@settings(max_examples=200, deadline=None)
@given(delta=st.floats(1e-300, 1.0, exclude_max=True))
def test_a_delta_is_floored_to_the_lattice_and_stays_there(delta):
    curve = Gaussian(noise_multiplier=1.0)
    point = floor_log_delta(curve, delta_target(delta, None))
    assert delta_value(point) <= delta <= delta_value(point) * (1.0 + 2e-6) or point < math.log(1e-300)
    assert floor_log_delta(curve, delta_target(delta_value(point), None)) == point or delta_value(point) == 1e-300


@settings(max_examples=100, deadline=None)
@given(power=st.floats(-9e5, -1e-3))
def test_a_log10_delta_is_floored_to_the_lattice_and_stays_there(power):
    curve = Gaussian(noise_multiplier=1.0)
    point = floor_log_delta(curve, delta_target(None, power))
    assert log10_value(point) <= power
    assert floor_log_delta(curve, delta_target(None, log10_value(point))) == point


def test_a_reading_does_not_depend_on_what_was_asked_before():
    mechanism, run = RUNS["m2"]
    question = privproj.accounting.question.ask(mechanism, None, run)
    fresh = {eps: question.curve().log_delta(eps) for eps in (0.05, 0.3, 0.31, 1.0, 2.0)}
    used = question.curve()
    epsilon_at(used, math.log(1e-9))
    for eps in (2.0, 0.31, 0.05, 1.0, 0.3):
        assert used.log_delta(eps) == fresh[eps]


def answers_at_most(mechanism, run, eps, delta, bound=None):
    assert privproj.epsilon(mechanism, delta=delta, bound=bound, **run).value <= eps
    assert privproj.delta(mechanism, epsilon=eps, bound=bound, **run).value <= delta


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


@pytest.mark.parametrize("seed", range(2))
def test_joint_calibrations_keep_to_their_target(seed):
    draw = random.Random(seed)
    eps, delta = 10 ** draw.uniform(-0.5, 0.7), 10 ** draw.uniform(-8, -4)
    m2 = {"mechanism": "m2", "dim": 512, "rank": 8, "noise_multiplier": 0.2, "sampling_rate": 0.01, "steps": 100}
    gaussian = {"mechanism": "gaussian", "noise_multiplier": 2, "sampling_rate": 0.01, "steps": 100}
    for schedule in (
        from_data({"phase": [m2, gaussian]}).calibrated(epsilon=eps, delta=delta),
        dp_sft(epsilon=eps, delta=delta, sampling_rate=0.01, steps=(50, 80)),
        dp_sft(epsilon=eps, delta=delta, sampling_rate=0.01, steps=(50, 80), budget="split"),
    ):
        read_back = from_data({"phase": [phase.as_dict() for phase in schedule.phases]})
        assert read_back.epsilon(delta=delta).value <= eps
        assert read_back.delta(epsilon=eps).value <= delta


def test_a_target_out_of_reach_is_an_answer_not_an_endless_search():
    with pytest.raises(PrivprojError):
        privproj.sigma(Gaussian(), epsilon=1.0, delta=1e-5, bound="classical")
