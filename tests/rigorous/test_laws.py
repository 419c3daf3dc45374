"""Densities and tails of balls."""

import mpmath as mp
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

needs("flint")

from flint import acb, arb  # noqa: E402

from privproj.rigorous import laws  # noqa: E402


@settings(max_examples=60, deadline=None)
@given(st.floats(0.5, 50.0), st.floats(0.5, 50.0), st.floats(-2.0, 2.0), st.floats(0.01, 0.5), st.floats(-1, 1))
def test_densities_on_a_wide_ball_hold_their_points(a, b, t, radius, place):
    gammas = laws.BallGammaLaw(arb(a), arb(1)), laws.BallGammaLaw(arb(a), arb(1), sign=-1)
    for law in (laws.BallBetaLaw(arb(a), arb(b), arb(1)), *gammas):
        found = law.density(acb(arb(t, radius), arb(0, radius)), True)
        inside = law.density(acb(t + 0.99 * radius * place, 0.99 * radius * place), False)
        assert not found.is_finite() or found.overlaps(inside)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 50.0), st.floats(0.5, 50.0), st.floats(-6.0, 6.0))
def test_tails_are_bounded_by_the_log_concave_remainder(a, b, t):
    law = laws.BallBetaLaw(arb(a), arb(b), arb(1))
    share = 1 / (1 + mp.exp(-mp.mpf(t)))
    below = mp.betainc(a, b, 0, share, regularized=True)
    assert float(law.below(arb(t)).upper()) >= float(below) * (1 - 1e-9)
    assert float(law.above(arb(t)).upper()) >= float(1 - below) - 1e-12


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 50.0), st.floats(-3.0, 3.0))
def test_the_inverse_law_is_the_gamma_law_mirrored(a, t):
    inverse, plain = laws.BallGammaLaw(arb(a), arb(1), sign=-1), laws.BallGammaLaw(arb(a), arb(1))
    assert inverse.density(acb(t), False).overlaps(plain.density(acb(-t), False))
    assert (inverse.value(acb(t)) * plain.value(acb(-t))).overlaps(acb(1))
    assert inverse.tail(arb(t)).overlaps(1 - plain.tail(arb(-t)))
