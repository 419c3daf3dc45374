"""Incomplete gamma functions of balls."""

import mpmath as mp
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

needs("flint")

from flint import arb, ctx  # noqa: E402

from privproj.contrib.certify import gamma  # noqa: E402

shapes = st.floats(1.0, 500.0)


@settings(max_examples=60, deadline=None)
@given(shapes, st.floats(0.05, 3.0))
def test_incomplete_gamma_functions_enclose_mpmath(k, share):
    z = share * k
    with ctx.workprec(128), mp.workdps(40):
        for ball, value in (
            (gamma.lower(arb(k), arb(z)), mp.gammainc(k, 0, z, regularized=True)),
            (gamma.upper(arb(k), arb(z)), mp.gammainc(k, z, mp.inf, regularized=True)),
        ):
            assert ball.overlaps(arb(mp.nstr(value, 40)) * arb(1, 1e-25))


@settings(max_examples=60, deadline=None)
@given(st.floats(400.0, 1e5), st.lists(st.floats(-18.0, 18.0), min_size=1, max_size=4))
def test_values_near_points_of_table(k, deviations):
    near = gamma.NearbyValues(arb(k))
    with ctx.workprec(128):
        for deviation in deviations:
            z = arb(max(k + deviation * k**0.5, 0.01 * k))
            for found, wanted in ((near.lower(z), gamma.lower(arb(k), z)), (near.upper(z), gamma.upper(arb(k), z))):
                assert found.overlaps(wanted) and found.rel_accuracy_bits() > 44


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 3000.0), st.floats(0.5, 3000.0), st.floats(-6.0, 6.0))
def test_incomplete_beta_functions_enclose_mpmath(a, b, deviations):
    u = a / (a + b) + deviations * (a * b / (a + b + 1)) ** 0.5 / (a + b)
    if not 1e-3 < u < 1.0 - 1e-3:
        return
    with ctx.workprec(128), mp.workdps(40):
        value = mp.betainc(a, b, 0, u, regularized=True)
        assert gamma.lower_beta(arb(a), arb(b), arb(u)).overlaps(arb(mp.nstr(value, 40)) * arb(1, 1e-25))
        assert gamma.lower_beta(arb(a), arb(b), arb(u)).rel_accuracy_bits() > 60 or value < 1e-12
