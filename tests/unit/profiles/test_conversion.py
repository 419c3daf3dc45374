"""Both conversions of every curve are exact inverses."""

import contextlib
import math
import random

import pytest
from helpers import GUARANTEES, RUNS, ids, mechanism_for
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mp

import privproj
from privproj import UnsupportedError
from privproj.accounting.query import composition_of
from privproj.numerics.interval import LOG_DELTA_STEP, Enclosure, digits_above, digits_below
from privproj.profiles.conversion import (
    delta_value,
    floor_log_delta,
    is_within,
    log10_value,
    meets,
    read_epsilon,
    read_log_delta,
)
from privproj.targets import delta_target, full_target


def is_consistent(mechanism, bound, run, eps, delta):
    """Check both round trips and return how many could be checked."""
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
"""Bounds with nested root finding, which take seconds per query."""
INTEGRALS = {"residual", "exact", "known-projection", "secret-projection", "known-projection-rank1", "two-stage"}


def one_release_each():
    """Every bound, the slow ones marked; profiles that are integrals belong to the full run."""
    marks = {name: [pytest.mark.full] for name in INTEGRALS} | {name: [pytest.mark.slow] for name in SLOW}
    return [pytest.param(b, marks=marks.get(b.name, [])) for b in GUARANTEES]


@pytest.mark.parametrize("bound", one_release_each(), ids=ids)
def test_conversions_of_one_release_are_exact_inverses(bound):
    draw = random.Random(bound.name)
    tried = 0
    z = 40.0 if bound.name in ("classical", "classical-2", "operator-norm-published") else 1.0
    for _ in range(4):
        eps, delta = 10 ** draw.uniform(-1.5, 0.9), 10 ** draw.uniform(-9, -1)
        with contextlib.suppress(UnsupportedError):  # beyond the range in which a rule is proved
            tried += is_consistent(mechanism_for(bound, z), bound.name, {}, eps, delta)
    assert tried


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n == "m2" else ()) for n in RUNS])
def test_conversions_of_run_are_exact_inverses(name):
    mechanism, run = RUNS[name]
    draw = random.Random(name)
    assert sum(
        is_consistent(mechanism, None, run, 10 ** draw.uniform(-1.5, 0.5), 10 ** draw.uniform(-9, -1)) for _ in range(4)
    )


class Noisy:
    """A curve ``delta = e^-eps`` whose conversions have random errors of 1e-7 of eps."""

    digits = 5

    @staticmethod
    def noise(x):
        return x * random.Random(x).uniform(0.0, 1e-7)

    def log_delta(self, eps):
        return Enclosure(-math.inf, min(0.0, -eps + self.noise(eps)))

    def epsilon(self, log_delta):
        return Enclosure(-math.inf, -log_delta + self.noise(-log_delta))


class Led(Noisy):
    """The same for a rule whose delta has a relative error of 1e-8 in its logarithm."""

    leads_with_epsilon = True

    def log_delta(self, eps):
        return Enclosure(-math.inf, -eps * (1.0 + random.Random(eps).uniform(-1e-8, 1e-8)))

    def epsilon(self, log_delta):
        return Enclosure(-math.inf, -log_delta)


@pytest.mark.parametrize("curve", [Noisy(), Led()])
def test_conversions_are_exact_for_arbitrary_curve(curve):
    draw, naive = random.Random(5), 0
    for _ in range(200):
        delta, eps = 10 ** draw.uniform(-12, -0.1), draw.uniform(0.01, 20.0)
        answer = read_epsilon(curve, delta_target(delta, None)).upper
        assert delta_value(read_log_delta(curve, answer).upper) <= delta
        assert answer == pytest.approx(-math.log(delta), rel=1e-4)
        back = delta_value(read_log_delta(curve, eps).upper)
        assert read_epsilon(curve, delta_target(back, None)).upper <= eps
        assert back == pytest.approx(math.exp(-eps), rel=3e-3)
        naive += curve.epsilon(curve.log_delta(eps).upper).upper > eps
    assert naive > 20, "the curve is too tame to show anything"


def test_meets_holds_at_reported_epsilon_only():
    curve, draw = Noisy(), random.Random(6)
    for _ in range(50):
        delta = 10 ** draw.uniform(-12, -0.1)
        eps = read_epsilon(curve, delta_target(delta, None)).upper
        assert meets(curve, full_target(eps, delta, None, zero=True))
        assert not meets(curve, full_target(eps * (1.0 - 1e-6), delta, None, zero=True))


numbers = st.floats(-150.0, 17.0).map(lambda x: 10.0**x)


@settings(max_examples=300, deadline=None)
@given(x=numbers, digits=st.integers(4, 13))
@example(x=1e-20, digits=10)
@example(x=1e-19, digits=10)
def test_digits_below_and_above_enclose_number(x, digits):
    low, high = digits_below(x, digits), digits_above(x, digits)
    assert low <= x <= high <= low * (1.0 + 1.001 * 10.0 ** (1 - digits))
    for y in (low, high):
        assert digits_below(y, digits) == y == digits_above(y, digits)
        assert y == pytest.approx(float(f"{y:.{digits - 1}e}"), rel=1e-15, abs=0.0)
    assert low == x == high or digits_above(low * (1.0 + 1e-15), digits) == high


@settings(max_examples=300, deadline=None)
@given(x=st.floats(1e-9, 1e9))
def test_digits_below_keeps_number_with_ten_digits(x):
    written = float(f"{x:.12e}")
    assert digits_below(written) == written == digits_above(written)


@settings(max_examples=200, deadline=None)
@given(log_delta=st.floats(-690.0, -1e-8))
def test_printed_delta_is_upper_bound(log_delta):
    with mp.workdps(50):
        assert mp.mpf(delta_value(log_delta)) >= mp.exp(log_delta)
        assert mp.mpf(log10_value(log_delta)) >= mp.mpf(log_delta) / mp.log(10)


@settings(max_examples=200, deadline=None)
@given(log_delta=st.floats(-690.0, -1e-8))
def test_printed_delta_is_met_by_its_log_delta(log_delta):
    upper = read_log_delta(Steep(log_delta), 1.0).upper
    assert log_delta <= upper <= log_delta + 1.001 * LOG_DELTA_STEP
    assert is_within(delta_target(delta_value(upper), None), log_delta)
    assert is_within(delta_target(None, log10_value(upper)), log_delta)
    assert not is_within(delta_target(delta_value(upper - 2.0 * LOG_DELTA_STEP), None), log_delta)


class Steep:
    """A curve with a constant delta."""

    def __init__(self, log_delta):
        self.value = log_delta

    def log_delta(self, eps):
        return Enclosure(-math.inf, self.value)

    def epsilon(self, log_delta):
        return Enclosure(-math.inf, 0.0 if self.value <= log_delta else math.inf)


def test_log_delta_does_not_depend_on_earlier_queries():
    mechanism, run = RUNS["m2"]
    composition = composition_of(mechanism, None, run)
    fresh = {eps: composition.curve().log_delta(eps) for eps in (0.05, 0.3, 0.31, 1.0, 2.0)}
    used = composition.curve()
    read_epsilon(used, delta_target(1e-9, None))
    for eps in (2.0, 0.31, 0.05, 1.0, 0.3):
        assert used.log_delta(eps) == fresh[eps]


def test_read_epsilon_converges_from_small_start():
    for begin in (0.0, 1e-200, 1e-9, 0.3, 3.0):
        tried = []

        class Late(Steep):
            def epsilon(self, log_delta, begin=begin):
                return Enclosure(-math.inf, begin)

            def log_delta(self, eps, tried=tried):
                tried.append(eps)
                assert len(tried) < 1000, "the search does not end"
                return Enclosure(-math.inf, self.value if eps >= 3.7 else 0.0)

        assert read_epsilon(Late(-20.0), delta_target(1e-7, None)).upper == 3.7


def test_read_epsilon_of_curve_that_ends_at_zero():
    gaussian = privproj.Gaussian(noise_multiplier=3.876523491089105)
    assert 0.0 <= privproj.epsilon(gaussian, bound="rdp", delta=0.1555982374990468).value < 1e-11


@settings(max_examples=200, deadline=None)
@given(log_delta=st.floats(-2e6, -1e3))
def test_printed_log10_delta_round_trip(log_delta):
    upper = read_log_delta(Steep(log_delta), 1.0).upper
    assert floor_log_delta(delta_target(None, log10_value(upper))) >= upper


@pytest.mark.full
@pytest.mark.parametrize(
    ("mechanism", "requested"),
    [
        (privproj.Wishart(dim=391, rank=177, misalignment=5e-9), {"bound": "quantile", "steps": 3}),
        (privproj.M2(dim=2048, rank=16, noise_multiplier=0.5, change_rank=2), {"bound": "good-event", "split": 0.5}),
    ],
)
def test_conversions_are_exact_for_epsilon_delta_rule(mechanism, requested):
    draw = random.Random(8)
    for _ in range(60):
        delta = 10 ** draw.uniform(-8, -1)
        delta = draw.choice([delta, 1.0 - delta])
        eps = privproj.epsilon(mechanism, delta=delta, **requested).value
        assert privproj.delta(mechanism, epsilon=eps, **requested).value <= delta
        back = privproj.delta(mechanism, epsilon=1.1 * eps, **requested).value
        assert back == 1.0 or privproj.epsilon(mechanism, delta=back, **requested).value <= 1.1 * eps


@pytest.mark.slow
def test_good_event_delta_is_at_most_that_of_being_sampled():
    mechanism = privproj.M2(dim=840, rank=1, noise_multiplier=0.0365721, change_rank=1)
    requested = {"bound": "good-event", "steps": 86, "sampling_rate": 1.6e-9}
    for eps in (0.0, 0.2, 5.0):
        back = privproj.delta(mechanism, epsilon=eps, **requested).value
        assert back <= 86 * 1.6e-9 * (1.0 + 1e-9)
        assert privproj.epsilon(mechanism, delta=back, **requested).value <= eps
