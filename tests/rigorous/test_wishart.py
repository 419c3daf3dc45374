"""The threshold function of a ball."""

from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

needs("flint")

from flint import acb, arb  # noqa: E402

from privproj.rigorous import wishart  # noqa: E402


@settings(max_examples=40, deadline=None)
@given(st.floats(-0.8, 0.8), st.floats(0.001, 0.2), st.floats(-1, 1))
def test_the_threshold_function_on_a_wide_ball(x, radius, place):
    found = wishart.bernoulli_ratio(acb(arb(x, radius), arb(0, radius)))
    inside = acb(x + 0.99 * radius * place, 0.99 * radius * place)
    assert not found.is_finite() or found.overlaps(inside / inside.expm1())
