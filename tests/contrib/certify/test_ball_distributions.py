"""Distributions of the squared sensitivity: densities, error of the trapezoidal rule, and means."""

import mpmath as mp
import pytest
from helpers import needs
from hypothesis import example, given, settings
from hypothesis import strategies as st

import privproj.reference.distributions as reference

needs("flint")

from flint import arb, ctx  # noqa: E402

from privproj.contrib.certify import distributions as dists  # noqa: E402
from privproj.contrib.certify import integral  # noqa: E402
from privproj.errors import PrecisionError  # noqa: E402

SHAPES = st.one_of(
    st.integers(1, 400).map(lambda twice: (0.5 * twice, None)),
    st.tuples(st.integers(1, 400), st.integers(1, 400)).map(lambda twice: (0.5 * twice[0], 0.5 * twice[1])),
)
"""Shapes of a Gamma law, which has one, and of a Beta law."""

SHARES = st.floats(1e-3, 1.0)
"""Cuts, in units of 1 for a Beta law and of three times the mean for a Gamma law."""


def distribution_of(shape, scale=1.0):
    a, b = shape
    return (
        dists.BallGammaDistribution(arb(a), arb(scale))
        if b is None
        else dists.BallBetaDistribution(arb(a), arb(b), arb(scale))
    )


def cut_of(shape, share):
    a, b = shape
    return 3.0 * a * share if b is None else share


def density(shape, cut, s):
    """The density of s, of complex s too, by mpmath: that of U at c e^s/(1 + e^s) times dU/ds."""
    a, b = shape
    share = 1 / (1 + mp.exp(-s))
    u, rest = cut * share, (1 + (1 - cut) * mp.exp(s)) / (1 + mp.exp(s))
    log_part = -u - mp.loggamma(a) if b is None else (b - 1) * mp.log(rest) - mp.log(mp.beta(a, b))
    return mp.exp((a - 1) * mp.log(u) + log_part) * cut * share / (1 + mp.exp(s))


def profile(eps, x):
    """h_eps of a complex x, by mpmath."""
    mu = mp.sqrt(x)
    u = eps / mu - mu / 2
    return (mp.erfc(u / mp.sqrt(2)) - mp.exp(eps) * mp.erfc((u + mu) / mp.sqrt(2))) / 2


def probability(shape, low, high):
    a, b = shape
    if b is None:
        return mp.gammainc(a, low, high, regularized=True)
    return mp.betainc(a, b, low, high, regularized=True)


@settings(max_examples=60, deadline=None)
@given(SHAPES, SHARES, st.floats(-20.0, 20.0))
def test_density_agrees_with_mpmath(shape, share, s):
    with mp.workdps(40), ctx.workprec(128):
        cut = cut_of(shape, share)
        wanted = density(shape, mp.mpf(cut), mp.mpf(s))
        found = distribution_of(shape).density(arb(s).exp(), arb(cut))
        assert found.overlaps(arb(mp.nstr(wanted, 35)) * arb(1, 1e-30))


@settings(max_examples=200, deadline=None)
@given(SHAPES, SHARES, st.floats(-12.0, 12.0), st.floats(0.0, dists.WIDEST_STRIP))
@example((3.0, 0.5), 0.999, 8.0, 1.2)
@example((0.5, 0.5), 1.0, 8.0, 1.2)
@example((200.0, 0.5), 0.5, 0.0, 1.2)
@example((200.0, 3.0), 1.0, 8.0, 1.2)
def test_density_in_strip_is_bounded_by_real_one(shape, share, s, angle):
    a, m = shape[0], float(distribution_of(shape).steepness.mid())
    with mp.workdps(40):
        cut, cosine = mp.mpf(cut_of(shape, share)), mp.cos(angle)
        inside = abs(density(shape, cut, mp.mpc(s, angle)))
        # |f(s + i theta)| <= C^-a f(s + ln C), and C^-m' f(s - ln C) for a Beta law
        for power, place in ((a, s + mp.log(cosine)), (m, s + mp.log(cosine) if m == a else s - mp.log(cosine))):
            assert inside <= cosine**-power * density(shape, cut, place) * (1 + mp.mpf("1e-30"))


@pytest.mark.parametrize("nats", [0.5, 2.0, 6.0])
@pytest.mark.parametrize(
    ("shape", "cut", "scale", "eps"),
    [
        ((700.0, 10.0), 1.0 - 1.7e-6, 61.0, 0.015),
        ((700.0, 100.0), 1.0, 98.3, 6.83),
        ((100.0, 100.0), 0.99993, 83.9, 0.01),
        ((20.0, 0.5), 0.9, 1.0, 1.0),
        ((5.0, None), 8.0, 2.0, 3.0),
    ],
)
def test_coarse_quadrature_error_is_within_its_bound(shape, cut, scale, eps, nats):
    """With a coarse goal the error reaches three quarters of its bound."""
    with ctx.workprec(256):
        line = distribution_of(shape, scale).line(arb(eps), arb(cut))
        fine, rest = line.sum_nodes(50.0)
        found, missed = line.sum_nodes(nats)
        assert rest < missed * 1e-6
        assert abs(found - fine) <= missed + rest


@settings(max_examples=300, deadline=None)
@given(st.floats(0.0, 30.0), st.floats(1e-3, 200.0), st.floats(-20.0, 20.0), st.floats(0.01, dists.WIDEST_STRIP))
@example(10.0, 20.0, 3.0, 0.3)
@example(10.0, 30.0, 0.5, 0.3)
@example(10.0, 15.0, 0.0, 1.2)
@example(10.0, 2.0, 20.0, 1.2)
def test_profile_in_strip_is_bounded(eps, size, s, angle):
    with mp.workdps(60), ctx.workprec(128):
        inside = abs(profile(mp.mpf(eps), size / (1 + mp.exp(-mp.mpc(s, angle)))))
        most = dists._profile_growth(arb(eps), arb(size), arb(angle).cos()).exp() / arb(angle).cos().sqrt()
        assert not arb(mp.nstr(inside, 40)) * (1 - arb(1e-30)) > most


@settings(max_examples=60, deadline=None)
@given(SHAPES, SHARES, st.floats(-8.0, 8.0))
@example((3.0, 0.5), 1.0, 6.0)
@example((3.0, 0.5), 0.9, 6.0)
@example((3.0, 20.0), 1.0, 3.0)
def test_truncated_tails_are_within_their_bound(shape, share, s):
    distribution, cut = distribution_of(shape), cut_of(shape, share)
    with mp.workdps(30), ctx.workprec(128):
        place = cut / (1 + mp.exp(-mp.mpf(s)))
        odds = arb(s).exp()
        for bound, mass in (
            (distribution.below(odds, arb(cut)), probability(shape, 0, place)),
            (distribution.above(odds, arb(cut)), probability(shape, place, cut)),
        ):
            assert float(bound.upper()) >= float(mass) * (1 - 1e-9) - 1e-25


@settings(max_examples=25, deadline=None)
@given(SHAPES, SHARES, st.floats(0.05, 30.0), st.one_of(st.just(0.0), st.floats(0.01, 8.0)))
@example((3.0, 0.5), 1.0, 1.0, 10.0)
@example((0.5, 3.0), 0.5, 1.0, 0.0)
@example((4.0, None), 0.9, 1.0, 8.0)
def test_mean_up_to_cut_is_integral(shape, share, scale, eps):
    a, b = shape
    cut = cut_of(shape, share)
    distribution = (
        reference.gamma_distribution(mp.mpf(a), mp.mpf(scale))
        if b is None
        else reference.beta_distribution(a, b, mp.mpf(scale))
    )
    with mp.workdps(25), ctx.workprec(192):
        whole = cut == 1.0 and b is not None
        mean = reference.expected_delta if whole else reference._expected_delta_below
        wanted = mean(mp.mpf(eps), distribution, *(() if whole else (mp.mpf(scale) * cut,)))
        found = distribution_of(shape, scale).expected_delta(arb(eps), arb(cut))
        assert found.rel_accuracy_bits() >= 64
        assert found.overlaps(arb(mp.nstr(wanted, 25)) * arb(1, 1e-16))


@pytest.mark.parametrize("goal", [10, 36, 64])
def test_quadrature_reaches_its_goal(goal):
    with ctx.workprec(128):
        distribution = distribution_of((8.0, 1016.0), 4.0)
        fine = distribution.expected_delta(arb(1.0))
        found = distribution.expected_delta(arb(1.0), goal=goal)
        beside = distribution.expected_delta(arb(1.0), None, arb(0.1), goal)
    assert found.overlaps(fine) and found.rel_accuracy_bits() >= goal
    assert beside.overlaps(fine) and beside.rad() <= arb(2) ** -goal * 0.1
    assert beside.rad() > found.rad()


def test_inverse_gamma_agrees_with_inverse():
    with mp.workdps(25), ctx.workprec(128):
        found = dists.BallGammaDistribution(arb(10.0), arb(20.0), inverse=True).expected_delta(arb(0.5))
        wanted = mp.quad(
            lambda u: profile(mp.mpf(0.5), 20 / u) * mp.exp(-u) * u**9 / mp.factorial(9), [0, 5, 10, 20, 90]
        )
        assert found.overlaps(arb(mp.nstr(wanted, 25)) * arb(1, 1e-15))


@settings(max_examples=15, deadline=None)
@given(SHAPES, SHARES)
def test_mean_beyond_point(shape, share):
    a, b = shape
    cut = 0.9 * cut_of(shape, share)
    with ctx.workprec(256):
        distribution = distribution_of(shape)
        tail = distribution.tail(arb(cut))
        # E[U; U > u] = E U P(U' > u), U' of the first shape a + 1
        assert (distribution.mean_above(arb(cut), tail) * tail).overlaps(
            distribution.mean * distribution_of((a + 1.0, b)).tail(arb(cut))
        )


def test_no_tail_beyond_end_and_no_endless_rule():
    with pytest.raises(PrecisionError, match="u must be below 1"):
        distribution_of((3.0, 4.0)).tail(arb(1.0, 1e-20))
    with pytest.raises(PrecisionError, match=f"more than {integral.MOST_NODES}"):
        distribution_of((0.5, None), 1e5).expected_delta(arb(4e9))
