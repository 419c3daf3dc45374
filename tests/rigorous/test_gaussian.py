"""The Gaussian profile of a ball."""

import mpmath as mp
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

needs("flint")

from flint import acb, arb  # noqa: E402

from privproj.rigorous import gaussian  # noqa: E402


@settings(max_examples=80, deadline=None)
@given(st.floats(0.0, 20.0), st.floats(0.3, 6.0), st.floats(0.01, 0.3), st.floats(-1, 1), st.floats(-1, 1))
def test_the_profile_on_a_wide_ball_holds_its_points(eps, mu, radius, right, up):
    ball = acb(arb(mu, radius * mu), arb(0, radius * mu))
    found = gaussian.delta_around(arb(eps), ball)
    inside = mp.mpc(mu * (1 + radius * right), mu * radius * up)
    with mp.workdps(40):
        u = eps / inside - inside / 2
        value = (mp.erfc(u / mp.sqrt(2)) - mp.exp(eps) * mp.erfc((u + inside) / mp.sqrt(2))) / 2
    assert not found.is_finite() or found.contains(acb(float(value.real), float(value.imag)))
