"""The law of the squared shift in panels: its moments, the series of the profile, and both ends of every mean."""

from helpers import needs
from hypothesis import example, given, settings
from hypothesis import strategies as st

needs("flint")

from flint import acb, arb, ctx  # noqa: E402

from privproj.rigorous import gaussian, panels  # noqa: E402
from privproj.rigorous.laws import BallBetaLaw, BallGammaLaw  # noqa: E402
from privproj.rigorous.profiles import BallAnyRank, BallRandomSensitivity  # noqa: E402

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


def law_of(shape, more=0):
    """The law of U, in the coordinate ln U or the logit; size-biased with one ``more`` in its first shape."""
    if isinstance(shape, int):
        return BallGammaLaw(arb(shape) / 2 + more, arb(1), arb(1))
    a, b = arb(shape[1]) / 2 + more, arb(shape[0] - shape[1]) / 2
    return BallBetaLaw(a, b, arb(1))


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.floats(0.05, 3.0), st.floats(1.01, 1.15), st.integers(0, 12))
@example((16, 15), 1.0, 1.06, 3)
def test_moments_of_a_panel_are_its_integrals(shape, place, ratio, n):
    with ctx.workprec(512):
        law = law_of(shape)
        left = place * law.mean.mid() / (1 + place * law.mean.mid() / 2 if law.supremum is not None else 1)
        right = left * ratio
        if law.supremum is not None and not right < 1:
            return
        centre = (left + right) / 2
        mass = law.share_below(right) - law.share_below(left)
        found = law.moments(mass, left, right, centre, n + 1)[n]
    with ctx.workprec(128):
        ends = law.coordinate(left), law.coordinate(right)

        def integrand(t, analytic):
            return law.density(t, analytic) * (law.value(t) ** 2 / centre - 1) ** n

        wanted = acb.integral(integrand, *ends, rel_tol=arb(2) ** -60, abs_tol=arb(2) ** -300).real
        assert found.overlaps(wanted) and found.rel_accuracy_bits() > 60 and wanted.rel_accuracy_bits() > 15


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.floats(0.05, 3.0))
def test_the_mean_beyond_a_point(shape, place):
    with ctx.workprec(256):
        law = law_of(shape)
        u = (place * law.mean / (1 + place * law.mean if law.supremum is not None else 1)).mid()
        tail = 1 - law.share_below(u)
        biased = law_of(shape, more=1)
    with ctx.workprec(128):
        assert (law.mean_above(u, tail) * tail).overlaps(law.mean * biased.tail(biased.coordinate(u)))


@settings(max_examples=200, deadline=None)
@given(st.floats(0.0, 60.0), st.floats(0.0, 60.0), st.floats(0.05, 0.9), st.floats(0.0, 1.0), st.floats(-1.0, 1.0))
def test_the_slope_on_a_disc_is_bounded(alpha, beta, radius, part, turn):
    v = radius * part * acb(0, arb.pi() * turn).exp()
    # F / F_0 = (1+v)^(-1/2) e^(alpha + beta - alpha/(1+v) - beta (1+v))
    ratio = (alpha + beta - alpha / (1 + v) - beta * (1 + v)).exp() / (1 + v).sqrt()
    assert not abs(ratio) > panels._size(arb(alpha), arb(beta), arb(radius))


@settings(max_examples=12, deadline=None)
@given(SHAPES, NOISES, EPSILONS)
@example((2048, 16), 0.155974, 9.0)
@example((64, 48), 1.0, 8.0)
@example((4096, 1), 0.05, 0.0)
@example(16, 1.0, 300.0)
@example((1_000_000, 16), 0.004, 14.0)
@example((100_000, 2_000), 0.1, 14.0)
def test_ends_of_rank_one_hold_the_integral(shape, noise, eps):
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
        law = profile.panels()
        cut = min(share * float(gaussian.inflection(arb(eps)) / law.scale), law.reach)
        if cut > 0:
            below, tail, beyond = law.split(arb(eps), cut)
            assert not upper < below + tail * gaussian.delta(arb(eps), beyond.sqrt())


@settings(max_examples=30, deadline=None)
@given(SHAPES, NOISES, st.floats(0.01, 3.0), st.floats(1e-3, 1.5), st.floats(0.3, 3.0))
@example((2048, 16), 0.155974, 1.0, 0.9, 0.5)
@example((2048, 16), 0.155974, 1.0, 1.4, 1.5)
@example((2048, 16), 0.155974, 1.0, 0.3, 1.1)
@example((2048, 16), 0.155974, 1.0, 0.98, 3.0)
def test_any_tangent_and_cut_that_are_used_give_a_bound(shape, noise, eps, place, tangent):
    profile, plain = BallAnyRank(shape, noise), BallAnyRank(shape, noise)
    with ctx.workprec(128):
        least, law = gaussian.inflection(arb(eps)), profile.panels()
        cut = min(place * float(least / law.scale), law.reach)
        profile._tangents = lambda eps: iter([((least * tangent).mid(), cut), *plain._tangents(eps)])
        (lower, upper), best = profile.ends(arb(eps)), plain.ends(arb(eps))
        assert not lower > best[1] and not upper < best[0]
