"""The vector Wishart mechanism: the exact profile against simulation, quadrature and the published bounds."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

import privproj
from privproj import InvalidParameter, Refused, Wishart
from privproj.bounds.wishart.early_exact_tail import log_mixed_tail
from privproj.diagnostics import alignment
from privproj.laws import wishart_integral
from privproj.laws.wishart_loss import VectorWishart
from privproj.laws.wishart_unequal_norms import UnequalNorms
from privproj.numerics import gamma_hockey_stick, gamma_mills

SETTINGS = [
    (2, 1, 0.3),
    (2, 2, 0.1),
    (2, 5, 0.4),
    (3, 2, 0.5),
    (10, 3, 0.02),
    (10, 10, 0.05),
    (20, 30, 0.05),
    (50, 5, 0.01),
]


def bound_of(mechanism, bound, delta=1e-5, **run):
    return privproj.epsilon(mechanism, delta=delta, bound=bound, **run).value


def log_density(y, v, dim, rank):
    """``(v.y)^((r-d-1)/2) e^(-r |y|^2 / (2 v.y))`` on ``v.y > 0``, the law of ``M v`` up to a constant."""
    inner = y @ v
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = 0.5 * (rank - dim - 1) * np.log(inner) - 0.5 * rank * (y * y).sum(axis=1) / inner
    return np.where(inner > 0.0, inside, -np.inf)


@pytest.mark.parametrize(("dim", "rank", "m"), SETTINGS)
def test_exact_profile_is_what_the_mechanism_leaks(dim, rank, m):
    """``M v`` itself is drawn; its likelihood ratio against ``M v'`` gives the hockey-stick divergence."""
    rng = np.random.default_rng(dim * 100 + rank)
    count = 200_000 if dim * rank < 200 else 60_000
    rho = 1.0 - m
    first, second = np.zeros(dim), np.zeros(dim)
    first[0], second[0], second[1] = 1.0, rho, math.sqrt(m * (2.0 - m))
    gaussians = rng.standard_normal((count, dim, rank)) / math.sqrt(rank)
    y = np.einsum("cdr,cr->cd", gaussians, gaussians[:, 0, :])
    loss = log_density(y, first, dim, rank) - log_density(y, second, dim, rank)
    for eps in (0.0, 0.5, 1.5):
        gains = np.clip(-np.expm1(eps - loss), 0.0, None)
        exact = math.exp(VectorWishart(dim, rank, m).log_delta(eps).upper)
        assert abs(gains.mean() - exact) <= 5 * gains.std() / math.sqrt(count) + 1e-12


@pytest.mark.parametrize(
    ("dim", "rank", "m", "eps", "value"),
    [
        (10**6, 64, 1e-12, 5e-4, 4.3554347874652e-7),
        (10**6, 64, 1e-12, 5e-3, 1.9002684787741e-20),
        (10**6, 64, 1e-6, 1.0, 1.29419140300342e-5),
        (10**6, 10**6, 1e-10, 0.1, 1.56032628026281e-15),
        (2, 1, 1e-12, 0.1, 1.21117485797798e-6),
        (768, 16, 1e-4, 8.0, 3.06193210923069e-16),
    ],
)
def test_hard_settings(dim, rank, m, eps, value):
    low, high = VectorWishart(dim, rank, m).log_delta(eps)
    assert low - 1e-13 <= math.log(value) <= high + 1e-13
    assert high - low < 1e-9


CORNERS = [
    (300000, 2, 5.220740386781583e-07, 0.0),
    (2, 1, 1e-12, 0.1),
    (2, 9, 1e-9, 1.4e-4),
    (4, 1, 1.6e-7, 11.5),
    (1000, 16, 8e-6, 0.3),
    (5, 40, 0.7, 0.2),
    (100000, 3, 1.5, 40.0),
]


def dense_delta(dim, rank, m, eps, count=400_000):
    """``E[g(A)]`` by midpoints in ``asinh`` of Student's variable; the incomplete gammas are scipy's."""
    n, a, spread = rank + dim - 1.0, 0.5 * (dim + 1.0 - rank), math.sqrt(m * (2.0 - m) / rank)
    ends = np.arcsinh([-(1.0 - m) / spread, m / spread, 1e18 / spread])
    total = stats.t.cdf(-(1.0 - m) / spread, rank)
    for low, high, tail in ((ends[0], ends[1], special.gammaincc), (ends[1], ends[2], special.gammainc)):
        s = low + (np.arange(count) + 0.5) * (high - low) / count
        t = np.sinh(s)
        excess = -m + spread * t
        loss, shrink = np.log1p(excess), -excess / (1.0 + excess)
        threshold = (eps - a * loss) / shrink
        tilt = np.exp(np.minimum(eps + (rank - 1.0) * loss, 700.0))
        gain = tail(n / 2, np.maximum(threshold, 0.0)) - tilt * tail(n / 2, np.maximum(threshold / (1.0 + excess), 0.0))
        gain = np.where((threshold <= 0.0) & (excess > 0.0), 0.0, gain)
        total += float(np.sum(gain * stats.t.pdf(t, rank) * np.cosh(s))) * (high - low) / count
    return total


@pytest.mark.parametrize(("dim", "rank", "m", "eps"), [c for c in CORNERS if c[2] > 1e-8])
def test_enclosure_holds_what_a_dense_sum_finds(dim, rank, m, eps):
    """A first doubling that happens to agree is no bound: the first of these came out 6e-7 too low."""
    found = VectorWishart(dim, rank, m).log_delta(eps)
    dense = math.log(dense_delta(dim, rank, m, eps))
    assert found.upper - found.lower <= 1e-9
    assert found.lower - 3e-8 <= dense <= found.upper + 3e-8


@pytest.mark.parametrize(("dim", "rank", "m", "eps"), CORNERS)
def test_enclosures_overlap_whatever_the_nodes(monkeypatch, dim, rank, m, eps):
    """Fewer nodes and a larger share only widen the enclosure: its error is proved."""
    close = VectorWishart(dim, rank, m).log_delta_anew(eps)
    for nodes, share in ((6, 1e-6), (9, 1e-8)):
        monkeypatch.setattr(wishart_integral, "NODES", nodes)
        pair = VectorWishart(dim, rank, m)
        whole, error = pair.log_deltas(np.array([eps]), share)
        assert whole[0] - error[0] <= close.upper and close.lower <= whole[0] + error[0]


def test_the_error_of_the_panels_is_needed(monkeypatch):
    """Were the bound of a Gauss rule left out, few nodes would give a wrong number for a sure one."""
    pair, eps = VectorWishart(300000, 2, 5.220740386781583e-07), np.array([0.0])
    close = pair.log_delta_anew(0.0)
    monkeypatch.setattr(wishart_integral, "NODES", 2)
    monkeypatch.setattr(wishart_integral.WishartIntegral, "log_error", lambda self, p: np.full_like(p.low, -np.inf))
    whole, error = pair.log_deltas(eps)
    assert not whole[0] - error[0] <= close.upper or not close.lower <= whole[0] + error[0]


@pytest.mark.parametrize(("dim", "rank", "m"), [c[:3] for c in CORNERS])
def test_table_is_the_profile(dim, rank, m):
    eps = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, 8)])
    lower, upper = VectorWishart(dim, rank, m).table(eps)
    for e, low, high in zip(eps.tolist(), lower, upper, strict=True):
        one = VectorWishart(dim, rank, m).log_delta(e)
        assert low <= math.exp(one.upper) * (1 + 1e-14) and math.exp(one.lower) * (1 - 1e-14) <= high
        assert high <= low * (1 + 2e-9) or high < 1e-290
        for nearby in (e * (1 - 1e-15), e * (1 + 1e-15)):
            off = VectorWishart(dim, rank, m).log_delta_anew(nearby) if e == eps[4] else one
            assert low <= math.exp(off.upper) and math.exp(off.lower) <= high


@pytest.mark.parametrize("k", [1.0, 1.5, 4.0, 37.5, 1e3, 5e6, 1e7])
def test_gains_from_the_tables_against_the_ball_of_their_own_error(k):
    """The tabulated gains against 30 digits of the regularised incomplete gammas, over seven decades of the shape."""
    gain = gamma_mills.gamma_gain(k)
    assert gain.error < 1e-11
    rng = np.random.default_rng(int(k))
    for z, size in zip(rng.uniform(-3.0, 8.0, 6), 10.0 ** rng.uniform(-4, 1.2, 6), strict=True):
        w, x = (z if k > 30 else z / 3.0) / math.sqrt(k), min(size / math.sqrt(k), 3.0)
        with mpmath.workdps(40):
            b, tilt = mpmath.mpf(k) * mpmath.exp(mpmath.mpf(w)), 0
            tilt = b * mpmath.expm1(mpmath.mpf(x)) - mpmath.mpf(k) * x

            def density(y, k=k):
                return mpmath.exp(-k * (mpmath.expm1(y) - y))

            def over(y, k=k, b=b, x=x):
                return density(y) * -mpmath.expm1(-mpmath.expm1(x) * (k * mpmath.exp(y) - b))

            reach = [w + i * 1.5 / math.sqrt(k) for i in range(14 if k > 30 else 7)]
            front = mpmath.exp(-mpmath.loggamma(k) + k * mpmath.log(k) - k)
            exact = float(mpmath.log(front * mpmath.quad(over, reach)))
        found = float(gain.log_over(np.array([w]), np.array([x]), np.array([float(tilt)]))[0])
        assert found == pytest.approx(exact, rel=0, abs=1e-11 + 1e-14 * abs(exact))


@pytest.mark.parametrize("k", [1.0, 20.0, 1e4, 5e6, 1e7])
def test_both_routes_to_a_gain_agree(k):
    """Exponents of the size of the shape cancel: they must not cost digits in proportion to it."""
    gain, rng = gamma_mills.gamma_gain(k), np.random.default_rng(3)
    w, x = rng.uniform(-0.9, 6.0, 200) / math.sqrt(k), 10.0 ** rng.uniform(-3, 1, 200) / math.sqrt(k)
    start = k * np.exp(w)
    with np.errstate(all="ignore"):
        over = gamma_hockey_stick.mean_gain(k, np.expm1(x), start, 1.0)
        under = gamma_hockey_stick.mean_gain(k, -np.expm1(-x), start, -1.0)
    np.testing.assert_allclose(gain.log_over(w, x, start * np.expm1(x) - k * x), over, rtol=0, atol=2e-11)
    np.testing.assert_allclose(gain.log_under(w, x), under, rtol=0, atol=2e-11)


def test_inner_average_against_30_digits():
    def exact(k, rate, start, sign):
        with mpmath.workdps(30):
            width = math.sqrt(k)
            if sign > 0:
                points = [max(start, 0.0), *(p for p in (k, k + 12 * width, k + 40 * width + 100) if p > start)]
            else:
                points = [*(p for p in (0.0, k - 12 * width, k) if 0.0 <= p < start), start]

            def integrand(u):
                return mpmath.exp((k - 1) * mpmath.log(u) - u - mpmath.loggamma(k)) * -mpmath.expm1(
                    -rate * sign * (u - start)
                )

            return float(mpmath.log(mpmath.quad(integrand, points)))

    for k, rate, start, sign in (
        (1.0, 1e-6, 3.0, 1.0), (1.0, 5.0, 0.3, 1.0), (1.5, 0.5, 1.0, -1.0), (1.5, 0.9, 30.0, -1.0),
        (20.0, 0.1, 10.0, 1.0), (20.0, 0.5, 8.0, -1.0), (1e3, 0.9, 1030.0, -1.0), (1e4, 1e-5, 9.9e3, 1.0),
    ):  # fmt: skip
        found = float(gamma_hockey_stick.mean_gain(k, np.array([rate]), np.array([start]), sign)[0])
        assert found == pytest.approx(exact(k, rate, start, sign), rel=0, abs=1e-11)


@settings(max_examples=40, deadline=None)
@given(
    dim=st.integers(2, 3000),
    rank=st.integers(1, 3000),
    m=st.floats(-9, -0.3).map(lambda x: 10.0**x),
    log10_delta=st.floats(-9, -2),
)
def test_bounds_come_in_order(dim, rank, m, log10_delta):
    mechanism = Wishart(dim=dim, rank=rank, misalignment=m)
    for split in ("even", "optimal", 0.2):
        sharp, plain = (bound_of(mechanism, b, 10**log10_delta, split=split) for b in ("quantile-sharp", "quantile"))
        assert sharp <= plain * (1 + 1e-9)
        assert bound_of(mechanism, "exact", 10**log10_delta) <= sharp * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(2, 400), rank=st.integers(1, 400), m=st.floats(-8, -0.5).map(lambda x: 10.0**x), eps=st.floats(0, 5)
)
def test_profile_grows_with_misalignment_and_falls_with_epsilon(dim, rank, m, eps):
    low = VectorWishart(dim, rank, m).log_delta(eps)
    assert low.lower <= VectorWishart(dim, rank, 1.3 * m).log_delta(eps).upper
    assert VectorWishart(dim, rank, m).log_delta(eps + 0.1).lower <= low.upper
    assert low.upper >= VectorWishart(dim, rank, m).log_infinite() - 1e-9


def test_epsilon_and_misalignment_are_inverses():
    found = privproj.misalignment(Wishart(dim=1000, rank=16), epsilon=1.0, delta=1e-5)
    assert found.side == "lower bound"
    answer = bound_of(Wishart(dim=1000, rank=16, misalignment=found.value), "exact")
    assert 1.0 - 1e-6 <= answer <= 1.0 + 1e-12


def test_composed_releases_cost_more_than_one_and_less_than_basic_composition():
    mechanism = Wishart(dim=1000, rank=64, misalignment=8e-6)
    one = bound_of(mechanism, "exact", 1e-5)
    twenty = bound_of(mechanism, "exact", 1e-5, steps=20)
    assert one < twenty < 20 * bound_of(mechanism, "exact", 5e-7)
    assert twenty < bound_of(mechanism, "quantile-sharp", 1e-5, steps=20)
    sampled = bound_of(mechanism, "exact", 1e-5, steps=20, sampling_rate=0.1, sampling="fixed")
    assert sampled < twenty


def test_what_is_refused():
    mechanism = {"dim": 1000, "rank": 16, "misalignment": 8e-6}
    with pytest.raises(Refused, match="fresh"):
        bound_of(Wishart(**mechanism, fixed_projection=True), "exact", steps=2)
    with pytest.raises(Refused, match="fixed"):
        bound_of(Wishart(**mechanism), "exact", steps=2, sampling_rate=0.1)
    with pytest.raises(Refused, match="fixed"):
        bound_of(Wishart(**mechanism), "exact", steps=2, sampling_rate=0.1, sampling="poisson", relation="add-remove")
    with pytest.raises(Refused, match="one record"):
        bound_of(Wishart(**mechanism), "exact", relation="add-remove", group_size=2)
    with pytest.raises(Refused, match="equal norms"):
        bound_of(Wishart(**mechanism, norm_ratio=1.1), "quantile")
    with pytest.raises(InvalidParameter, match="not both"):
        Wishart(**mechanism, alignment=0.5)
    with pytest.raises(InvalidParameter, match="misalignment"):
        bound_of(Wishart(dim=10, rank=2), "exact")
    assert privproj.epsilon(Wishart(**mechanism), delta=1e-5).run["relation"] == "replace"


def test_one_dimension_leaks_nothing():
    assert privproj.epsilon(Wishart(dim=1, rank=3, misalignment=0.5), delta=1e-9).value == 0.0


# --- norms that differ ------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "rank", "m", "ratio", "eps"), [(5, 3, 0.1, 1.3, 0.5), (5, 3, 0.1, 1 / 1.3, 0.5),
    (10, 20, 0.02, 1.1, 0.3), (3, 1, 0.4, 0.8, 0.7), (20, 10, 0.01, 1 / 1.2, 1.0), (1, 4, 0.0, 1.5, 0.2)])  # fmt: skip
def test_unequal_norms_cover_what_the_mechanism_leaks(dim, rank, m, ratio, eps):
    """``M v`` is drawn for ``|v| = ratio``, ``|v'| = 1``; its density needs the norm of ``v``."""
    rng = np.random.default_rng(dim * 100 + rank)
    count = 200_000
    first, second = np.zeros(max(dim, 2)), np.zeros(max(dim, 2))
    first[0], second[0], second[1] = ratio, 1.0 - m, math.sqrt(m * (2.0 - m))
    first, second = first[:dim], second[:dim]
    gaussians = rng.standard_normal((count, dim, rank)) / math.sqrt(rank)
    y = np.einsum("cdr,cr->cd", gaussians, gaussians[:, 0, :]) * ratio

    def log_law(v):
        size = float(np.linalg.norm(v))
        return log_density(y / size, v / size, dim, rank) - dim * math.log(size)

    gains = np.clip(-np.expm1(eps - log_law(first) + log_law(second)), 0.0, None)
    upper = math.exp(UnequalNorms(dim, rank, m, abs(math.log(ratio))).log_delta(eps).upper)
    assert gains.mean() - 5 * gains.std() / math.sqrt(count) <= upper


@settings(max_examples=15)
@given(dim=st.integers(2, 300), rank=st.integers(1, 300), m=st.floats(-6, -1).map(lambda x: 10.0**x))
def test_a_larger_ratio_of_norms_leaks_more_and_equal_norms_are_the_limit(dim, rank, m):
    found = [UnequalNorms(dim, rank, m, ratio).log_delta(0.3) for ratio in (1e-9, 0.01, 0.1)]
    assert all(smaller.lower <= larger.upper for smaller, larger in itertools.pairwise(found))
    equal = VectorWishart(dim, rank, m).log_delta(0.3)
    assert equal.lower <= found[0].upper + 1e-9


# --- the early version ------------------------------------------------------------------------------


@settings(max_examples=10)
@given(dim=st.integers(2, 200), rank=st.integers(2, 200), m=st.floats(-14, -9).map(lambda x: 10.0**x))
def test_early_bounds_are_above_the_exact_profile(dim, rank, m):
    mechanism = Wishart(dim=dim, rank=rank, misalignment=m)
    exact, tail, early = (bound_of(mechanism, b) for b in ("exact", "early-exact-tail", "early"))
    assert exact <= tail <= early * (1 + 1e-6)


def test_early_bound_at_given_values_is_no_better_than_the_best():
    given = {"dim": 50, "rank": 40, "misalignment": 1e-8}
    best = bound_of(Wishart(**given), "early")
    for t, eta, radius in ((2.0, 0.5, 400.0), (1.0, 0.1, 350.0), (4.0, 1.0, 330.0)):
        found = privproj.evaluate("wishart.early.epsilon", **given, t=t, eta=eta, R=radius)
        at_same = bound_of(Wishart(**given), "early", delta=found.delta)
        assert found.value >= at_same * (1 - 1e-6)
        assert best > 0
    with pytest.raises(InvalidParameter, match="R above"):
        privproj.evaluate("wishart.early.epsilon", **given, t=2, eta=0.5, R=100)


def test_exact_tail_is_the_probability_that_an_inner_product_is_small():
    rng = np.random.default_rng(2)
    mechanism, t = Wishart(dim=30, rank=12, misalignment=0.05), 6.0
    g = rng.standard_normal((400_000, 2, 12))
    rho = 0.95
    x = (g[:, 0] ** 2).sum(axis=1)
    y = rho * x + math.sqrt(1 - rho**2) * (g[:, 0] * g[:, 1]).sum(axis=1)
    hit = ((x <= t) | (y <= t)).mean()
    assert abs(hit - math.exp(log_mixed_tail(mechanism, t))) <= 5 * math.sqrt(hit / len(x))


# --- where the promise comes from -------------------------------------------------------------------


def test_misalignment_of_means():
    rng = np.random.default_rng(4)
    records, bound = 20, 1.0
    worst, least = 0.0, math.inf
    for _ in range(2000):
        vectors = rng.standard_normal((records + 1, 5)) + 1.5
        vectors *= bound / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), bound)
        means = vectors[:-1].mean(axis=0), vectors[1:].mean(axis=0)
        norms = [np.linalg.norm(mean) for mean in means]
        least = min(least, *norms)
        worst = max(worst, 1 - means[0] @ means[1] / norms[0] / norms[1])
    assert worst <= alignment.mean_misalignment(bound, least, records)
    with pytest.raises(InvalidParameter, match="norm floor"):
        alignment.mean_misalignment(1.0, 0.01, 10)


def test_preprocessing_keeps_its_promise_and_reports_no_gain_as_an_error():
    rng = np.random.default_rng(9)
    dim, gamma, m, beta = 400, 4.0, 0.8, 1e-2
    after = alignment.preprocessed_misalignment(m, gamma, dim, beta)
    first, second = np.zeros(dim), np.zeros(dim)
    first[0], second[0], second[1] = 1.0, 1 - m, math.sqrt(m * (2 - m))
    u = rng.standard_normal((5000, dim))
    u *= gamma / np.linalg.norm(u, axis=1, keepdims=True)
    a, b = first + u, second + u
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert (cosines < 1 - after).mean() <= beta
    assert alignment.preprocessing_gain(m, gamma, dim, beta) == pytest.approx(m - after, rel=1e-12, abs=0)
    with pytest.raises(InvalidParameter, match="gamma above"):
        alignment.preprocessed_misalignment(1e-4, gamma, dim, beta)
    printed = (1 - 0.2) / (1 + 0.2) * math.sqrt(2 / dim * math.log(8 / beta))
    with pytest.raises(InvalidParameter):
        alignment.preprocessed_misalignment(m, 1.01 * printed, dim, beta)


def test_condition_number_of_the_matrix():
    rng = np.random.default_rng(1)
    dim, rank, failure = 10, 400, 0.05
    factor = alignment.descent_condition(dim, rank, failure)
    spectra = [np.linalg.svd(rng.standard_normal((dim, rank)), compute_uv=False) for _ in range(500)]
    assert np.mean([(s[0] / s[-1]) ** 2 > factor for s in spectra]) <= 2 * failure
    with pytest.raises(InvalidParameter, match="rank above"):
        alignment.descent_condition(100, 50, 0.1)


@pytest.mark.parametrize("bound", ["early-corollary", "rp-gd"])
@pytest.mark.parametrize("allowed", [False, True])
def test_what_is_no_guarantee_says_why_and_what_to_use(bound, allowed):
    with pytest.raises(Refused, match="Use exact"):
        bound_of(Wishart(dim=100, rank=200, misalignment=1e-6), bound, allow_refuted=allowed)


def test_ranks_that_fit_are_an_interval():
    found = privproj.rank(Wishart(dim=1000, misalignment=8e-6), epsilon=0.2, delta=1e-5)
    assert found.lower < found.value == found.upper
    for rank, fits in ((found.lower, 1), (found.value, 1), (found.lower - 1, 0), (found.value + 1, 0), (64, 1)):
        assert (bound_of(Wishart(dim=1000, rank=rank, misalignment=8e-6), "exact") <= 0.2) == bool(fits)
