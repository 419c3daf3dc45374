"""The lines of the Wishart profile: their values, what bounds them in a strip and beyond a node, and their sums."""

import mpmath as mp
import pytest
from helpers import needs
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

needs("flint")

from flint import arb, ctx  # noqa: E402

from privproj.contrib.certify import gamma, wishart  # noqa: E402
from privproj.contrib.certify.balls import GOAL_BITS, enclose_to_goal  # noqa: E402
from privproj.errors import PrecisionError  # noqa: E402

SHAPES = st.tuples(
    st.integers(2, 60), st.integers(1, 60), st.floats(1e-9, 1.9), st.one_of(st.just(0.0), st.floats(1e-3, 9.0))
)
"""Dimensions, ranks, misalignments and epsilons."""

SHAPE_EXAMPLES = [(40, 3, 0.01, 1.0), (40, 3, 1.2, 0.0), (3, 30, 0.1, 2.0), (2, 1, 1.9, 3.0), (5, 40, 1.5, 9.0)]
"""Some of them: both sides with and without an epsilon, ranks above the dimension, and wide laws."""


def pair_of(dim, rank, misalignment, eps):
    return wishart._RatioPair(
        dim, rank, arb(misalignment), arb(eps), GOAL_BITS, gamma.NearbyValues(arb(rank + dim - 1) / 2)
    )


def lines_of(dim, rank, misalignment, eps):
    """The lines of a pair, each with its sign, how often thresholds turn, and ``F(s)`` of complex ``s`` by mpmath."""
    pair = pair_of(dim, rank, misalignment, eps)
    a, k, m = mp.mpf(dim + 1 - rank) / 2, mp.mpf(rank + dim - 1) / 2, mp.mpf(misalignment)
    front = mp.gamma((mp.mpf(rank) + 1) / 2) / mp.gamma(mp.mpf(rank) / 2) / mp.sqrt(mp.pi)
    front *= (m * (2 - m)) ** (mp.mpf(rank) / 2)

    def weight(sign, x):
        # the density of x in C9
        return front * (2 * (mp.cosh(x) - 1 + m)) ** (-mp.mpf(rank + 1) / 2) * mp.exp(sign * (rank - 1) * x / 2)

    def gain(sign, x):
        near = (a * x + sign * eps) / mp.expm1(x)
        plain, tilted = (near, near * mp.exp(x))[::sign]
        tilt = mp.exp(eps - sign * (rank - 1) * x)
        ends = (lambda z: (z, mp.inf)) if sign > 0 else (lambda z: (0, z))
        return mp.gammainc(k, *ends(plain), regularized=True) - tilt * mp.gammainc(k, *ends(tilted), regularized=True)

    def function(sign, x_of, slope_of):
        return lambda s: slope_of(mp.exp(s)) * weight(sign, x_of(mp.exp(s))), lambda s: gain(sign, x_of(mp.exp(s)))

    found = []
    if rank <= dim or (rank == dim + 1 and eps > 0.0):
        found.append((pair.line(1, arb(0), arb(1)), 1, *function(1, mp.log1p, lambda f: f / (1 + f))))
    if rank <= dim:
        origin = eps / a
        above = function(-1, lambda f: origin + mp.log1p(f), lambda f: f / (1 + f))
        start = pair.eps / pair.a
        found.append((pair.line(-1, start.expm1(), start.exp()), 1, *above))
    if rank > dim + 1 and eps > 0.0:
        end = mp.expm1(eps / -a)
        up_to = function(1, lambda f: mp.log1p(end * f / (1 + f)), lambda f: end * f / ((1 + f) * (1 + f + end * f)))
        found.append((pair.line(1, arb(0), (pair.eps / -pair.a).expm1(), bend=1), 2, *up_to))
    return found


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.floats(-12.0, 6.0), st.floats(0.0, 1.25))
@example(SHAPE_EXAMPLES[0], -3.0, 1.0)
@example(SHAPE_EXAMPLES[1], 0.5, 1.25)
@example(SHAPE_EXAMPLES[2], 0.5, 1.25)
@example(SHAPE_EXAMPLES[2], -1.0, 0.8)
@example(SHAPE_EXAMPLES[4], 1.5, 1.25)
@example((60, 60, 1e-4, 0.1), -2.0, 1.25)
@example((2, 60, 0.01, 9.0), 3.0, 1.25)
def test_values_are_those_of_formula_and_bounded_in_strip(shape, s, angle):
    """``|w(s + i theta)| <= C^-(turns (r+1)/2) w(s)`` and ``|g| <= 2 cos(turns theta)^-k`` (C21)."""
    dim, rank, _, _ = shape
    with mp.workdps(60), ctx.workprec(192):
        for line, turns, weight, gain in lines_of(*shape):
            wanted = weight(s) * gain(s)
            assume(not 0 < abs(wanted) < mp.mpf("1e-40"))
            assert line.value(arb(s).exp()).overlaps(arb(mp.nstr(wanted, 40)) + arb(0, 1e-40))
            theta = mp.mpf(angle) / turns
            heavier = mp.cos(theta) ** (-mp.mpf(turns * (rank + 1)) / 2)
            assert abs(weight(mp.mpc(s, theta))) <= heavier * weight(s) * (1 + mp.mpf("1e-40"))
            most = 2 * mp.cos(turns * theta) ** (-mp.mpf(rank + dim - 1) / 2)
            assert abs(gain(mp.mpc(s, theta))) <= most * (1 + mp.mpf("1e-40"))


@pytest.mark.parametrize("nats", [0.5, 60.0, 800.0])
@pytest.mark.parametrize("shape", SHAPE_EXAMPLES)
def test_rule_takes_these_bounds(shape, nats):
    dim, rank, _, _ = shape
    with ctx.workprec(128):
        for line, turns, *_ in lines_of(*shape):
            angle, most = line.strip(nats)
            assert 0 < turns * angle < 1.57
            turned, plain = (turns * arb(angle)).cos(), arb(angle).cos()
            # M = 2 cos(turns theta)^-k C^-(turns (r+1)/2)
            wanted = 2 / turned ** (arb(rank + dim - 1) / 2) / plain ** (arb(turns * (rank + 1)) / 2)
            assert most.overlaps(wanted) and most.rel_accuracy_bits() > 64


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.floats(-8.0, 6.0))
@example(SHAPE_EXAMPLES[0], -3.0)
@example(SHAPE_EXAMPLES[1], 0.5)
@example(SHAPE_EXAMPLES[2], 0.5)
@example(SHAPE_EXAMPLES[3], -1.0)
@example((2, 40, 0.3, 0.0), 0.0)
def test_truncated_tails_are_within_their_bound(shape, s):
    step = 0.25
    with mp.workdps(30), ctx.workprec(192):
        for line, *_ in lines_of(*shape):
            # The infinite sums on either side, as far as they matter to 192 bits.
            before, beyond = (
                sum((line.value(arb(s + side * step * j).exp()) for j in range(1, 400)), arb(0)) for side in (-1, 1)
            )
            assert not line.left(arb(s).exp()) < step * before
            assert not line.right(arb(s).exp()) < step * beyond
            # Far out they are not wasteful: what is cut off there has to vanish.
            assert line.left(arb(-300).exp()) < 1e-60 and line.right(arb(300).exp()) < 1e-60


@pytest.mark.parametrize("nats", [0.3, 2.0, 8.0])
@pytest.mark.parametrize("shape", [*SHAPE_EXAMPLES, (200, 1, 0.25, 27.0), (200, 1, 9e-4, 1.4), (5, 300, 0.18, 25.0)])
def test_coarse_quadrature_error_is_within_its_bound(shape, nats):
    """Its error comes to a third of what is said (among 11,000 random rules)."""
    with ctx.workprec(256), mp.workdps(15):
        for line, *_ in lines_of(*shape):
            fine, rest = line.sum_nodes(60.0)
            found, missed = line.sum_nodes(nats)
            assert rest < missed * 1e-6
            assert abs(found - fine) <= missed + rest


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 80), st.floats(1e-9, 1.9), st.floats(-1.5, 3.0))
@example(3, 1.0, 0.0)
def test_tails_of_ratio_are_those_of_student(rank, misalignment, away):
    with mp.workdps(90), ctx.workprec(192):
        pair, m = pair_of(50, rank, misalignment, 1.0), mp.mpf(misalignment)
        # P(T < t) = 1 - I_(r/(r + t^2))(r/2, 1/2)/2 for t > 0, t = away sqrt(r / (1 - rho^2))
        t = mp.mpf(away) * mp.sqrt(rank / (m * (2 - m)))
        half = mp.betainc(mp.mpf(rank) / 2, 0.5, 0, rank / (rank + t * t), regularized=True) / 2
        below = 1 - half if t > 0 else half
        assert pair.below(arb(away)).overlaps(arb(mp.nstr(below, 35)) * arb(1, 1e-30))
        assert pair.beyond(arb(away)).overlaps(arb(mp.nstr(half, 35)) * arb(1, 1e-30))


def test_tail_has_result_if_rank_is_at_most_dim():
    for eps in (1e9, 1e300):
        with pytest.raises(PrecisionError, match="no enclosure"):
            enclose_to_goal(lambda eps=eps: wishart.BallWishartProfile(64, 100, 0.001).delta(arb(eps), {}))
    ball, _ = enclose_to_goal(lambda: wishart.BallWishartProfile(64, 4, 0.001).delta(arb(1e300), {}))
    assert ball.overlaps(pair_of(64, 4, 0.001, 1e300).below(arb(0.001) - 1))


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
def test_ends_for_runs_hold_profile(dim, rank, misalignment, eps):
    profile = wishart.BallWishartProfile(dim, rank, misalignment)
    with ctx.workprec(128):
        lower, upper = profile.ends(arb(eps))
        ball = profile.delta(arb(eps), {})
        assert not lower > ball and not upper < ball and upper - lower <= 1e-9 * upper
