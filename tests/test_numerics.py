"""Search and quadrature."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privproj.errors import NotConverged
from privproj.numerics.enclosure import Enclosure, log1m_exp, outward
from privproj.numerics.quadrature import gauss_legendre, log_integral
from privproj.numerics.search import crossing, largest_integer, minimise

LIMITS = {"low": 1e-100, "high": 1e100}


@settings(max_examples=300)
@given(
    root=st.floats(-60, 60).map(lambda x: 10.0**x),
    guess=st.floats(-60, 60).map(lambda x: 10.0**x),
    shape=st.sampled_from(
        [lambda r: r, lambda r: r**3, lambda r: math.expm1(min(r, 700)), lambda r: 1.0 if r > 0 else -1.0]
    ),
)
def test_crossing_brackets_the_root(root, guess, shape):
    def excess(x):
        return shape(min(1e100, max(-1e100, math.log(root) - math.log(x))))

    low, high = crossing(excess, guess, **LIMITS)
    assert excess(low) > 0 >= excess(high)
    assert high - low <= 1e-14 * high or math.nextafter(low, high) == high or excess(0.5 * (low + high)) == 0


def test_crossing_says_when_there_is_none():
    assert crossing(lambda x: 1.0, 1.0, **LIMITS) == (1e100, math.inf)
    assert crossing(lambda x: -1.0, 1.0, **LIMITS) == (0.0, 1e-100)
    with pytest.raises(NotConverged):
        crossing(lambda x: math.nan, 1.0, **LIMITS)


@given(low=st.integers(1, 50), span=st.integers(0, 10**6), cut=st.integers(0, 10**6))
def test_largest_integer(low, span, cut):
    found = largest_integer(lambda n: n <= cut, low, low + span)
    assert found == (None if cut < low else min(cut, low + span))


@given(st.floats(-700, -1e-12))
def test_log1m_exp(x):
    assert math.exp(log1m_exp(x)) + math.exp(x) == pytest.approx(1.0, rel=1e-15, abs=0)


def test_gauss_rule_is_exact_for_polynomials():
    for n in (13, 20):
        rule = gauss_legendre(n)
        for degree in range(2 * n):
            assert math.fsum(w * x**degree for x, w in rule) == pytest.approx(1 / (degree + 1), rel=1e-14, abs=0)


@settings(max_examples=80)
@given(centre=st.floats(-50, 50), log_width=st.floats(-6, 3), start=st.floats(-20, 20), cut=st.floats(-3, 6))
def test_log_integral_of_a_normal_density(centre, log_width, start, cut):
    width = math.exp(log_width)

    def log_f(t):
        return -0.5 * ((t - centre) / width) ** 2 - math.log(width) - 0.5 * math.log(2 * math.pi)

    value, error = log_integral(log_f, centre + start * width, width, centre + cut * width)
    assert error <= 1e-12
    assert math.exp(value) == pytest.approx(0.5 * math.erfc(-cut / math.sqrt(2)), rel=1e-11, abs=0)


def test_log_integral_refuses_what_it_cannot_do():
    with pytest.raises(NotConverged):
        log_integral(lambda t: -abs(t) + math.sin(1e5 * t), 0.3, 1.0)


def test_minimise():
    x, value = minimise(lambda t: (t - 0.3) ** 2 + 1.0, -5.0, 5.0)
    assert x == pytest.approx(0.3, abs=1e-7)
    assert value == pytest.approx(1.0, rel=1e-12, abs=0)


def test_outward_contains_and_never_exceeds_one():
    assert outward(-1e-15).upper == 0.0
    low, high = outward(-300.0)
    assert low < -300.0 < high
    assert isinstance(outward(-math.inf), Enclosure)
    assert outward(-math.inf).upper > -math.inf
