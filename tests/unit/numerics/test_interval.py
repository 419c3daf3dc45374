"""Enclosures are rounded outward."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privproj.numerics.interval import Enclosure, log1m_exp, widen_outward


@given(st.floats(-700, -1e-12))
def test_log1m_exp(x):
    assert math.exp(log1m_exp(x)) + math.exp(x) == pytest.approx(1.0, rel=1e-15, abs=0)


def test_widen_outward_contains_value_and_is_at_most_one():
    assert widen_outward(-1e-15).upper == 0.0
    low, high = widen_outward(-300.0)
    assert low < -300.0 < high
    assert isinstance(widen_outward(-math.inf), Enclosure)
    assert widen_outward(-math.inf).upper > -math.inf
