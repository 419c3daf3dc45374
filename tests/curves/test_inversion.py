"""The two readings of every curve are exact inverses."""

import contextlib
import math
import random

import pytest
from helpers import GUARANTEES, RUNS, ids, mechanism_for
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import Gaussian, Refused
from privproj.curves.inversion import (
    delta_value,
    epsilon_at,
    floor_log_delta,
    log10_value,
    read_epsilon,
    read_log_delta,
)
from privproj.numerics.enclosure import Enclosure
from privproj.runs.targets import delta_target


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
INTEGRALS = {"residual", "exact", "known-projection", "secret-projection", "known-projection-rank1", "two-stage"}


def one_release_each():
    """Every guarantee, the slow ones marked; laws that are integrals are asked in the full run."""
    marks = {name: [pytest.mark.full] for name in INTEGRALS} | {name: [pytest.mark.slow] for name in SLOW}
    return [pytest.param(b, marks=marks.get(b.name, [])) for b in GUARANTEES]


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


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "m2" else ()) for n in RUNS])
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
    question = privproj.accounting.question.ask_by_name(mechanism, None, run)
    fresh = {eps: question.curve().log_delta(eps) for eps in (0.05, 0.3, 0.31, 1.0, 2.0)}
    used = question.curve()
    epsilon_at(used, math.log(1e-9))
    for eps in (2.0, 0.31, 0.05, 1.0, 0.3):
        assert used.log_delta(eps) == fresh[eps]
