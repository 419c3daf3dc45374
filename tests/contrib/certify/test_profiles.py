"""Both ends of the profiles of random projections, for runs."""

import math
import random

import pytest
from helpers import needs
from hypothesis import example, given, settings
from hypothesis import strategies as st

needs("flint")

from flint import arb, ctx  # noqa: E402

from privproj.contrib.certify import gaussian  # noqa: E402
from privproj.contrib.certify.profiles import BallAnyRank, BallRandomSensitivity  # noqa: E402
from privproj.distributions.beta_gamma_kernels import mixture_log_delta  # noqa: E402
from privproj.errors import PrecisionError  # noqa: E402

SHAPES = st.one_of(
    st.integers(1, 40),
    st.tuples(st.integers(2, 4000), st.integers(1, 200)).filter(lambda shape: shape[0] > shape[1]),
)
"""Ranks of public sketches, and dimensions with ranks of M2."""

NOISES = st.floats(0.1, 5.0)
EPSILONS = st.one_of(st.just(0.0), st.floats(1e-6, 15.0))
NARROW = 1e-7
"""Relative distance of both ends, where delta is above :data:`FAR`."""
FAR = 1e-40


def reaches(lower, upper):
    return not upper > FAR or bool(upper - lower <= NARROW * upper)


@settings(max_examples=12, deadline=None)
@given(SHAPES, NOISES, EPSILONS)
@example((2048, 16), 0.155974, 9.0)
@example((64, 48), 1.0, 8.0)
@example((4096, 1), 0.05, 0.0)
@example(16, 1.0, 300.0)
@example((1_000_000, 16), 0.004, 14.0)
@example((100_000, 2_000), 0.1, 14.0)
def test_ends_of_rank_one_hold_integral(shape, noise, eps):
    profile = BallRandomSensitivity(shape, noise)
    with ctx.workprec(192):
        lower, upper = profile.ends(arb(eps))
        wide = profile.ends(arb(eps, 1e-30) if eps else arb(0))
        ball = profile.delta(arb(eps), {})
        assert wide[0] <= upper and lower <= wide[1]
        assert not lower > ball and not upper < ball and reaches(lower, upper)


@settings(max_examples=12, deadline=None)
@given(SHAPES, NOISES, EPSILONS, st.floats(0.01, 1.0))
@example((2048, 16), 0.155974, 5.0, 0.5)
@example((2048, 16), 0.155974, 0.55, 0.5)
@example((4096, 1), 0.05, 14.0, 1.0)
@example((64, 48), 1.0, 8.0, 0.9)
@example((1_000_000, 16), 0.004, 14.0, 0.7)
def test_ends_of_any_rank_lie_between_dual_values_and_tangents(shape, noise, eps, share):
    profile, one = BallAnyRank(shape, noise), BallRandomSensitivity(shape, noise)
    with ctx.workprec(192):
        lower, upper = profile.ends(arb(eps))
        value = profile.delta(arb(eps), profile.witness(eps))
        assert not lower > value and not upper < value * (1 - arb(NARROW))
        assert not upper < one.ends(arb(eps))[0] and reaches(lower, upper)
        # V(c) <= E g_p(X) for every c and p
        distribution = profile.distribution()
        cut = share * gaussian.inflection(arb(eps)) / distribution.scale
        if cut > 0 and (distribution.supremum is None or cut < 1):
            tail = distribution.tail(cut)
            below = distribution.expected_delta(arb(eps), cut, tail)
            assert not upper < below + tail * gaussian.delta(arb(eps), distribution.mean_above(cut, tail).sqrt())


@settings(max_examples=30, deadline=None)
@given(SHAPES, NOISES, st.floats(0.01, 3.0), st.floats(1.0, 3.0))
@example((2048, 16), 0.155974, 1.0, 1.0)
@example((2048, 16), 0.155974, 1.0, 1.5)
@example((2048, 16), 0.155974, 1.0, 3.0)
def test_any_tangent_that_is_used_gives_bound(shape, noise, eps, tangent):
    profile, plain = BallAnyRank(shape, noise), BallAnyRank(shape, noise)
    with ctx.workprec(128):
        profile.witness = lambda eps: {"tangent": float(gaussian.inflection(arb(eps))) * tangent}
        (lower, upper), best = profile.ends(arb(eps)), plain.ends(arb(eps))
        assert not lower > best[1] and not upper < best[0]


def test_tangent_below_inflection_is_rejected_or_lifted():
    profile = BallAnyRank((2048, 16), 0.155974)
    with ctx.workprec(128):
        low = {"tangent": 0.9 * float(gaussian.inflection(arb(1.0)))}
        with pytest.raises(PrecisionError, match="the inflection point"):
            profile.delta(arb(1.0), low)
        with pytest.raises(PrecisionError, match="not convex"):
            profile.delta(arb(1.0), {})
        plain = profile.ends(arb(1.0))
        profile.witness = lambda eps: low
        lifted = profile.ends(arb(1.0))
        assert lifted[0] <= plain[1] <= lifted[1] * (1 + arb(NARROW))


@pytest.mark.full
@pytest.mark.parametrize("any_rank", [False, True])
def test_ball_profiles_overlap_float_kernels(any_rank):
    """The best tangent of the floats gives the least ``E[g_p(X)]`` to rounding, so the balls overlap the kernels."""
    draw, kind = random.Random(11), BallAnyRank if any_rank else BallRandomSensitivity
    for _ in range(40):
        dim = int(10 ** draw.uniform(0.6, 4))
        rank = draw.randint(1, dim - 1)
        shape = rank if draw.random() < 0.3 else (dim, rank)
        gamma = isinstance(shape, int)
        z = 10 ** draw.uniform(-1, 1) * (1.0 if gamma else math.sqrt(rank / dim))
        eps = 10 ** draw.uniform(-2, 1)
        distribution = (rank / 2, math.inf, 2 / z**2 / rank) if gamma else (rank / 2, (dim - rank) / 2, z**-2)
        lower, upper = mixture_log_delta(eps, (*distribution, float(any_rank)))
        profile = kind(shape, z)
        ball = profile.delta(arb(eps), profile.witness(eps)).log()
        assert lower <= float(ball.upper()) and float(ball.lower()) <= upper
