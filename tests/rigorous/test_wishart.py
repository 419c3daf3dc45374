"""The threshold function of a ball."""

import pytest
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

needs("flint")

from flint import acb, arb, ctx  # noqa: E402

from privproj.rigorous import wishart  # noqa: E402


@settings(max_examples=40, deadline=None)
@given(st.floats(-0.8, 0.8), st.floats(0.001, 0.2), st.floats(-1, 1))
def test_the_threshold_function_on_a_wide_ball(x, radius, place):
    found = wishart.bernoulli_ratio(acb(arb(x, radius), arb(0, radius)))
    inside = acb(x + 0.99 * radius * place, 0.99 * radius * place)
    assert not found.is_finite() or found.overlaps(inside / inside.expm1())


@pytest.mark.parametrize(
    ("dim", "rank", "misalignment", "eps"),
    [
        (2048, 16, 0.001, 0.0),
        (2048, 16, 0.001, 1.0),
        (2048, 16, 0.001, 20.0),
        (1000, 1, 1e-6, 0.1),
        (900, 900, 1e-12, 1e-5),
        (1500, 40, 1e-9, 0.0),
        (10**5, 64, 1e-8, 0.3),
        (1200, 1201, 0.01, 1.0),
        (88, 89, 1e-8, 0.0),
        (30, 40, 0.3, 0.0),
        (60, 3, 1.2, 4.0),
    ],
)
def test_ends_for_runs_hold_the_profile(dim, rank, misalignment, eps):
    profile = wishart.BallWishartProfile(dim, rank, misalignment)
    with ctx.workprec(128):
        lower, upper = profile.ends(arb(eps))
        assert profile.ends(arb(eps)) == (lower, upper)
        ball = profile.delta(arb(eps), {})
        assert not lower > ball and not upper < ball and upper - lower <= 1e-5 * upper
