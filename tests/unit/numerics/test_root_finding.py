"""Root finding brackets the root, or reports that there is none."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privproj.errors import ConvergenceError
from privproj.numerics.root_finding import find_crossing, largest_integer, minimize

LIMITS = {"low": 1e-100, "high": 1e100}


@settings(max_examples=300)
@given(
    root=st.floats(-60, 60).map(lambda x: 10.0**x),
    guess=st.floats(-60, 60).map(lambda x: 10.0**x),
    shape=st.sampled_from(
        [lambda r: r, lambda r: r**3, lambda r: math.expm1(min(r, 700)), lambda r: 1.0 if r > 0 else -1.0]
    ),
)
def test_find_crossing_brackets_root(root, guess, shape):
    def excess(x):
        return shape(min(1e100, max(-1e100, math.log(root) - math.log(x))))

    low, high = find_crossing(excess, guess, **LIMITS)
    assert excess(low) > 0 >= excess(high)
    assert high - low <= 1e-14 * high or math.nextafter(low, high) == high or excess(0.5 * (low + high)) == 0


def test_find_crossing_reports_missing_root():
    assert find_crossing(lambda x: 1.0, 1.0, **LIMITS) == (1e100, math.inf)
    assert find_crossing(lambda x: -1.0, 1.0, **LIMITS) == (0.0, 1e-100)
    with pytest.raises(ConvergenceError):
        find_crossing(lambda x: math.nan, 1.0, **LIMITS)


@given(low=st.integers(1, 50), span=st.integers(0, 10**6), cut=st.integers(0, 10**6))
def test_largest_integer(low, span, cut):
    found = largest_integer(lambda n: n <= cut, low, low + span)
    assert found == (None if cut < low else min(cut, low + span))


def test_minimize():
    x, value = minimize(lambda t: (t - 0.3) ** 2 + 1.0, -5.0, 5.0)
    assert x == pytest.approx(0.3, abs=1e-7)
    assert value == pytest.approx(1.0, rel=1e-12, abs=0)


@pytest.mark.parametrize("power", [1.0, 1.3, 2.0, 4.0])
@pytest.mark.parametrize("bottom", [-6.0, -5.0, -0.77, 0.0, 1e-9, 3.2])
def test_minimize_converges_to_minimum(bottom, power):
    """A kink, a flat minimum, a minimum at an end, values of ``inf``: the result is the minimum within the width."""
    seen = []

    def valley(t):
        seen.append(t)
        return math.inf if t < bottom - 1.0 else 7.0 + abs(t - bottom) ** power

    x, value = minimize(valley, -5.0, 5.0, rtol=1e-6, points=15)
    nearest = min(max(bottom, -5.0), 5.0)
    assert value == valley(x) <= 7.0 + (abs(nearest - bottom) + 2e-6) ** power
    assert len(seen) < 60
