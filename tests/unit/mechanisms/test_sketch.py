"""Gaussian sketches: Renyi curves against random spectra, exact profiles against simulation, statuses."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privproj
from privproj import InvalidParameterError, PublicSketch, Sketch, UnsupportedError
from privproj.assumptions import Requirement
from privproj.mechanisms.sketch.exact_rank1 import sketch_profile
from privproj.mechanisms.sketch.one_vector import largest_ratio
from privproj.mechanisms.sketch.rdp import (
    divergence_bracket,
    sharp_curve,
    sharp_divergence_bracket,
    tight_curve,
)

sizes = st.floats(math.log(1.2), math.log(1e6)).map(math.exp)


def eps_of(mechanism, bound, delta=1e-5, **run):
    return privproj.epsilon(mechanism, delta=delta, bound=bound, **run).value


@given(gamma=sizes, rank=st.integers(1, 500), n=st.integers(1, 50), log10_delta=st.floats(-12, -2))
def test_sketch_bounds_are_ordered(gamma, rank, n, log10_delta):
    mechanism, delta = Sketch(rank=rank, gamma=gamma, eigenvalues=n), 10**log10_delta
    best, tight_one, printed = (eps_of(mechanism, bound, delta) for bound in ("rdp-best", "rdp-tight", "rdp"))
    assert best <= tight_one * (1 + 1e-9) <= printed * (1 + 2e-9)
    assert eps_of(mechanism, "exact-rank1", delta) <= best * (1 + 1e-9)
    if gamma > 2.5:
        assert tight_one <= eps_of(Sketch(rank=rank, gamma=gamma, eigenvalues=1), "tcdp", delta) * (1 + 1e-9)


@pytest.mark.parametrize(("gamma", "alpha"), [(1.3, 1.1), (2, 1.9), (3, 2.0), (3, 3.7), (10, 9.0), (1000, 4.0)])
def test_one_eigenvalue_is_worst_spectrum(gamma, alpha):
    """``D_alpha`` of random pairs of covariances, from its definition, against both curves at the spectrum's norm."""
    rng = np.random.default_rng(7)
    mechanism = Sketch(rank=2, gamma=gamma)
    for _ in range(1500):
        nu = rng.standard_normal(rng.integers(1, 9)) * rng.exponential(size=1)
        nu = nu / np.linalg.norm(nu) / gamma * (1.0 if rng.random() < 0.5 else rng.random())
        if np.all(1 + alpha * nu > 0):
            exact = (alpha * np.log1p(nu) - np.log1p(alpha * nu)).sum() / (alpha - 1)
            assert exact <= tight_curve(mechanism, gamma).divergence(alpha) * (1 + 1e-12) + 1e-15
        if alpha >= 2 and np.all(1 - (alpha - 1) * nu > 0):
            exact = (-(alpha - 1) * np.log1p(nu) - np.log1p(-(alpha - 1) * nu)).sum() / (alpha - 1)
            assert exact <= sharp_curve(mechanism, gamma).divergence(alpha) * (1 + 1e-12) + 1e-15


@given(share=st.floats(1e-9, 0.999), alpha=st.floats(-5, 3).map(lambda x: 1 + 10**x))
def test_divergence_brackets_match_50_digits(share, alpha):
    with mpmath.workdps(50):
        a, t = mpmath.mpf(alpha), mpmath.mpf(share / alpha)
        first = a * mpmath.log1p(-t) - mpmath.log1p(-a * t)
        found = divergence_bracket(alpha, share / alpha)
        assert first <= found <= first * (1 + mpmath.mpf(1e-11) + mpmath.mpf(1e-13) / (a - 1))
        t = mpmath.mpf(share / (alpha - 1)) if alpha >= 2 else mpmath.mpf(0)
        if alpha >= 2:
            second = -(a - 1) * mpmath.log1p(t) - mpmath.log1p(-(a - 1) * t)
            assert second <= sharp_divergence_bracket(alpha, float(t)) <= second * (1 + mpmath.mpf("1e-11"))


@pytest.mark.parametrize("rank", [1, 2, 3, 16, 64, 1000])
@pytest.mark.parametrize("nu", [1e-4, 0.03, 0.5, 4.0, 300.0, 1e6])
def test_sketch_exact_rank1_matches_50_digits(rank, nu):
    spread = math.sqrt(rank / 2) * min(nu, 1.0)
    for eps in (0.0, 0.3 * spread, 2 * spread, 6 * spread):
        with mpmath.workdps(60):
            n, e, half = mpmath.mpf(nu), mpmath.mpf(eps), mpmath.mpf(rank) / 2
            log = mpmath.log1p(n)

            def below(x, half=half):
                return mpmath.gammainc(half, 0, x / 2, regularized=True) if x > 0 else mpmath.mpf(0)

            def above(x, half=half):
                return mpmath.gammainc(half, x / 2, mpmath.inf, regularized=True)

            w, w2 = (rank * log - 2 * e) * (1 + n) / n, (rank * log + 2 * e) / n
            first = below(w) - mpmath.exp(e) * below(w / (1 + n))
            second = above(w2) - mpmath.exp(e) * above(w2 * (1 + n))
            exact = max(first, second)
            if exact < mpmath.mpf("1e-250"):
                continue
            low, high = sketch_profile(rank, nu).log_delta(eps)
            assert low <= mpmath.log(exact) <= high < low + 1e-9


def test_sketch_exact_rank1_matches_simulation():
    """The mechanism itself is drawn, with and without one column; the likelihood ratio gives the divergence."""
    rng = np.random.default_rng(3)
    rank, noise, count = 5, 0.7, 400_000
    column = np.array([0.6, -0.3, 0.5])
    rest = rng.standard_normal((3, 4)) * 0.2
    floor = float(np.linalg.eigvalsh(rest @ rest.T)[0]) + noise**2
    full = np.column_stack([rest, column])
    distributions = [q @ q.T + noise**2 * np.eye(3) for q in (full, rest)]
    draws = rng.standard_normal((count, rank, full.shape[1])) @ full.T + noise * rng.standard_normal((count, rank, 3))
    logs = [
        -0.5 * np.einsum("crn,nm,crm->c", draws, np.linalg.inv(s), draws) - 0.5 * rank * np.linalg.slogdet(s)[1]
        for s in distributions
    ]
    gains = np.clip(-np.expm1(0.4 - (logs[0] - logs[1])), 0, None)
    nu = float(column @ np.linalg.solve(distributions[1], column))
    exact = math.exp(sketch_profile(rank, nu).log_delta(0.4).upper)
    assumed = privproj.evaluate(
        "sketch.exact-rank1.delta", rank=rank, gamma=floor / float(column @ column), epsilon=0.4
    )
    assert nu <= float(column @ column) / floor
    assert gains.mean() <= exact + 5 * gains.std() / math.sqrt(count) <= assumed.value
    assert max(gains.mean(), 1e-3) > 0.5 * exact


def test_sketch_releases_add_their_ranks():
    one, many = Sketch(rank=64, gamma=50), Sketch(rank=4, gamma=50)
    assert eps_of(many, "exact-rank1", steps=16) == eps_of(one, "exact-rank1")
    assert eps_of(Sketch(rank=4, gamma=50, layer_count=16), "exact-rank1") == eps_of(one, "exact-rank1")
    assert privproj.epsilon(many, delta=1e-5, bound="exact-rank1").run["relation"] == "zero-out"


@pytest.mark.parametrize("bound", ["rdp-best", "rdp-tight", "rdp", "tcdp", "lora-one-step", "exact-rank1"])
def test_layers_of_sketches_require_independence(bound):
    layers = {n: Sketch(rank=4, gamma=50, eigenvalues=2, layer_count=n) for n in (1, 2)}
    asks = {
        n: Requirement.INDEPENDENT_LAYER_PROJECTIONS in privproj.epsilon(one, delta=1e-5, bound=bound).requirements
        for n, one in layers.items()
    }
    assert asks == {1: False, 2: True}


def test_enforced_norms_make_sketch_bounds_proved():
    given = {"rank": 16, "frobenius_bound": 1.0, "sensitivity": 0.01, "noise_sigma": 1.0}
    assert privproj.epsilon(Sketch(**given, enforced=True), delta=1e-5).status == "proved"
    assumed = privproj.epsilon(Sketch(**given), delta=1e-5)
    assert assumed.status == "conditional" and len(assumed.data_assumptions) == 2
    floor = privproj.epsilon(Sketch(**given, enforced=True, eigen_floor=0.1), delta=1e-5)
    assert (
        floor.status == "conditional"
        and "eigenvalues of Q Q^T" in floor.data_assumptions[0]
        and floor.value < assumed.value
    )
    assert assumed.value == pytest.approx(eps_of(Sketch(rank=16, gamma=16 / 0.02), "rdp-best"), rel=1e-12, abs=0)


def test_lora_one_step_rejects_several_steps():
    clip, batch, noise, rank = 1.0, 100, 0.5, 8
    step = Sketch(
        rank=rank,
        frobenius_bound=clip,
        sensitivity=2 * clip / batch,
        noise_sigma=noise,
        step_smoothness=0.01,
        eigenvalues=3,
    )
    assert step.gamma_of_matrices == pytest.approx(batch * rank * noise**2 / (4 * clip**2), rel=1e-12, abs=0)
    assert eps_of(step, "lora-one-step") == eps_of(step, "rdp-best")
    with pytest.raises(UnsupportedError, match="fresh projection"):
        eps_of(step, "lora-one-step", steps=2)
    with pytest.raises(UnsupportedError, match="contains A a second time"):
        eps_of(step, "lora-by-design", steps=2)
    marked = privproj.epsilon(step, delta=1e-5, bound="lora-by-design", steps=2, allow_refuted=True)
    assert (marked.outcome, marked.side, marked.usable, marked.upper) == ("unsupported", "none", False, None)
    assert marked.value > 0 and "NOT A GUARANTEE" in marked.warnings[-1]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"gamma": 5.0, "noise_sigma": 1.0}, "omitted if gamma is given"),
        ({"gamma": -1.0}, "gamma"),
        ({"noise_sigma": 1.0}, "sensitivity"),
        ({"noise_sigma": 1.0, "sensitivity": 1.0}, "frobenius_bound"),
        ({"gamma": 5.0, "layer_count": 0}, "layer_count"),
    ],
)
def test_invalid_sketch_parameters_are_named(given, text):
    with pytest.raises(InvalidParameterError, match=text):
        eps_of(Sketch(rank=4, **given), "rdp-best")


def test_unsupported_sketch_queries_are_rejected():
    with pytest.raises(UnsupportedError, match="gamma must be above 1"):
        eps_of(Sketch(rank=4, gamma=0.9), "rdp-best")
    with pytest.raises(UnsupportedError, match="5/2"):
        eps_of(Sketch(rank=4, gamma=2.0, eigenvalues=3), "tcdp")
    with pytest.raises(InvalidParameterError, match="eigenvalues"):
        eps_of(Sketch(rank=4, gamma=20.0), "rdp")
    with pytest.raises(UnsupportedError, match="replace"):
        eps_of(Sketch(rank=4, gamma=20.0), "exact-rank1", relation="replace")
    with pytest.raises(UnsupportedError, match="fresh"):
        eps_of(Sketch(rank=4, gamma=20.0, fixed_projection=True), "rdp-best", steps=2)
    with pytest.raises(UnsupportedError, match="poisson"):
        eps_of(Sketch(rank=4, gamma=20.0), "rdp-best", sampling_rate=0.1, sampling="poisson")


def test_sketch_rank_returns_ranks_that_fit():
    public = PublicSketch(noise_multiplier=5.0)
    smallest = privproj.rank(public, epsilon=0.9, delta=1e-5)
    assert smallest.side == "upper bound"
    fits = [eps_of(PublicSketch(noise_multiplier=5.0, rank=smallest.value + k), "rank-free") <= 0.9 for k in (-1, 0)]
    assert fits == [False, True]
    largest = privproj.rank(Sketch(gamma=100.0), epsilon=0.5, delta=1e-5).value
    assert eps_of(Sketch(gamma=100.0, rank=largest), "rdp-best") <= 0.5
    assert eps_of(Sketch(gamma=100.0, rank=largest + 1), "rdp-best") > 0.5


@given(floor=st.floats(-4, 4), change=st.floats(-3, 3), total=st.floats(-3, 3), share=st.floats(0, 1))
def test_largest_ratio_is_the_maximum_over_norms(floor, change, total, share):
    floor, change, total = 10**floor, 10**change, 10**total
    for limits in ((change, total, share * total), (change, math.inf, share), (math.inf, total, 0.0)):
        step, most, least = limits
        sizes = np.unique(np.concatenate([least + np.geomspace(1e-6, 1e4, 4001) * math.sqrt(floor), [least]]))
        sizes = sizes[sizes <= most]
        longer = np.minimum(sizes + step, most)
        ratios = (longer - sizes) * (longer + sizes) / (sizes**2 + floor)
        found = largest_ratio(floor, least, step, most)
        assert np.max(ratios) <= found * (1 + 1e-9)
        assert found <= np.max(ratios) * (1 + 1e-2) or most < least + 1e-3 * math.sqrt(floor)


@given(floor=st.floats(-6, 6), total=st.floats(-3, 3), change=st.floats(-17, 0), share=st.floats(0, 1))
def test_largest_ratio_is_rounded_up_for_small_differences(floor, total, change, share):
    floor, total = 10**floor, 10**total
    change, least = total * 10**change, share * total
    with mpmath.workdps(60):
        a, d, most = mpmath.mpf(floor), mpmath.mpf(change), mpmath.mpf(total)
        # The maximum is at S^2 + S D = a, or at the nearest S from the least norm to C - D.
        size = max(mpmath.mpf(least), min((mpmath.sqrt(d * d + 4 * a) - d) / 2, most - d))
        step = min(d, most - size)
        exact = step * (step + 2 * size) / (size * size + a)
        assert exact <= largest_ratio(floor, least, change, total) * (1 + mpmath.mpf(10) ** -15)


@pytest.mark.parametrize("noise", [1e-100, 1e-150, 1e-160, 1e-170])
def test_one_vector_has_no_finite_epsilon_for_tiny_noise(noise):
    mechanism = Sketch(rank=1000, frobenius_bound=1.0, sketch_sigma=1.0, noise_sigma=noise)
    assert privproj.epsilon(mechanism, delta=1e-5, bound="one-vector").value == math.inf


def test_one_vector_matches_a_simulated_sketch():
    # A sum of norm S in one dataset and S + C in its neighbor, S^2 + S C = a: Gaussian vectors of two variances.
    rng, rank, noise = np.random.default_rng(4), 6, 3.0
    mechanism = Sketch(rank=rank, sensitivity=1.0, sketch_sigma=1.0, noise_sigma=noise, enforced=True)
    size = (math.sqrt(1 + 4 * noise**2) - 1) / 2
    variances = [size**2 + noise**2, (size + 1) ** 2 + noise**2]
    for eps in (0.1, 0.5, 1.0):
        deltas = []
        for a, b in (variances, variances[::-1]):
            squares = a * rng.chisquare(rank, 10**6)
            loss = 0.5 * rank * math.log(b / a) + 0.5 * squares * (1 / b - 1 / a)
            deltas.append(np.mean(np.maximum(1 - np.exp(eps - loss), 0)))
        bound = privproj.delta(mechanism, epsilon=eps, bound="one-vector")
        assert bound.side == "exact" and bound.value == pytest.approx(max(deltas), rel=0.02)


def test_one_vector_needs_no_assumption_and_is_smaller():
    clipped = Sketch(rank=1000, frobenius_bound=1.0, sensitivity=1.0, sketch_sigma=1.0, noise_sigma=40.0, enforced=True)
    found = privproj.epsilon(clipped, delta=1e-5, bound="one-vector")
    assert found.status == "proved" and Requirement.SKETCHED_VECTOR in found.requirements
    assert found.value < eps_of(clipped, "rdp-best") / 2.4
    # A sum of unknown norm: 3.155 where one vector has 0.0695.
    of_sum = {"rank": 1000, "sketch_sigma": 1.0, "noise_sigma": 31.62686, "enforced": True}
    assert eps_of(Sketch(frobenius_bound=1.0, **of_sum), "one-vector") == pytest.approx(0.0695, rel=1e-4)
    assert eps_of(Sketch(sensitivity=1.0, **of_sum), "one-vector") == pytest.approx(3.15522, rel=1e-4)
    # Several releases: the longer vector may be in either dataset, so that the closed form of one direction is smaller.
    many = eps_of(clipped, "one-vector", steps=20)
    assert found.value < many < 20 * found.value
    with pytest.raises(InvalidParameterError, match="frobenius_bound"):
        eps_of(Sketch(rank=4, noise_sigma=1.0), "one-vector")
