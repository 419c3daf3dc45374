"""M2: order of the bounds, limits, the primal form, and the mechanism itself."""

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from helpers import eps_of, m2, settings_of_m2
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Layer, UnsupportedError
from privproj.distributions.squared_sensitivity import log_gaussian_delta_at, log_gaussian_delta_slope
from privproj.mechanisms.m2.beta_tail_kernels import (
    beta_tail_delta,
    beta_tail_epsilon,
    beta_tail_value,
    log_tail_profile,
)
from privproj.mechanisms.m2.mixture_rdp import log_energy_moment
from privproj.mechanisms.registry import find_bound
from privproj.numerics.special import beta_constant, beta_tail_scale
from privproj.profiles.gaussian import log_gaussian_delta
from privproj.reference import m2 as reference


def log_delta(bound, eps, **parameters):
    """The enclosure of the log of a bound's delta."""
    return find_bound(M2, bound).representation(M2(**parameters)).log_delta(eps)


@settings(max_examples=60, deadline=None)
@given(settings_of_m2)
def test_m2_bounds_are_ordered(setting):
    dim, rank, mu, eps = setting
    given = {"dim": dim, "rank": rank, "noise_multiplier": 1 / mu, "change_rank": 1}
    exact, free = log_delta("exact-rank1", eps, **given), log_delta("rank-free", eps, **given)
    sharp, tail = log_delta("beta-tail-sharp", eps, **given), log_delta("beta-tail", eps, **given)
    plain = log_delta("gaussian", eps, **given)
    assert exact.lower <= free.upper
    assert exact.lower <= sharp.upper
    assert sharp.lower <= tail.upper
    assert free.lower <= plain.upper
    assert sharp.lower <= plain.upper


@pytest.mark.parametrize("dim", [64, 768, 4096])
@pytest.mark.parametrize("rank", [4, 16, 32])
@pytest.mark.parametrize("mu", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("eps", [0.1, 1.0, 4.0])
def test_rank_free_is_below_sharp_published_bound_at_rank_two(dim, rank, mu, eps):
    """An observation on this grid, not a theorem."""
    given = {"dim": dim, "rank": rank, "noise_multiplier": 1 / mu, "change_rank": 2}
    assert log_delta("rank-free", eps, **given).lower <= log_delta("beta-tail-sharp", eps, **given).upper


@settings(max_examples=25, deadline=None)
@given(settings_of_m2)
def test_rank_free_is_monotone_in_rank_and_dim(setting):
    dim, rank, mu, eps = setting
    for bound in ("rank-free", "exact-rank1", "beta-tail"):
        here = log_delta(bound, eps, dim=dim, rank=rank, noise_multiplier=1 / mu, change_rank=1)
        wider = log_delta(bound, eps, dim=2 * dim, rank=rank, noise_multiplier=1 / mu, change_rank=1)
        larger = log_delta(bound, eps, dim=dim, rank=min(dim, rank + 1), noise_multiplier=1 / mu, change_rank=1)
        assert wider.lower <= here.upper
        assert here.lower <= larger.upper


@settings(max_examples=10, deadline=None)
@given(settings_of_m2, st.floats(1.01, 20))
def test_mixture_moment_is_below_gaussian_moment(setting, alpha):
    dim, rank, mu, _ = setting
    curve = find_bound(M2, "mixture-rdp").representation(M2(dim=dim, rank=rank, noise_multiplier=1 / mu))
    with mp.workdps(30):
        c = alpha * (alpha - 1) * mu**2 / 2
        exact = float(mp.log(mp.hyp1f1(mp.mpf(rank) / 2, mp.mpf(dim) / 2, c, maxterms=10**6)) / (alpha - 1))
    value = curve.divergence(alpha)
    assert value <= alpha * mu * mu / 2 * (1 + 1e-12)
    assert value == pytest.approx(exact, rel=1e-9, abs=1e-11 / (alpha - 1))
    assert value >= exact * (1 - 1e-13)


@settings(max_examples=100, deadline=None)
@given(settings_of_m2)
def test_rank_free_is_exact_in_two_regimes(setting):
    dim, rank, mu, eps = setting
    given = {"dim": dim, "rank": rank, "noise_multiplier": 1 / mu}
    mean = mu * mu * rank / dim
    free = log_delta("rank-free", eps, **given)
    even = log_gaussian_delta_at(eps, mean)
    # E g_p(X) >= h(E X): never below DP-SGD at the noise multiplier z sqrt(d/r) (docs/theory.md, Theorem 1 (f)).
    assert free.upper >= even - 1e-12 * abs(even)
    if mu * mu <= 2.0 * (math.sqrt(1.0 + eps * eps) - 1.0):  # mu^2 <= x0: rank one attains the bound (d)
        exact = log_delta("exact-rank1", eps, change_rank=1, **given)
        assert free.upper == pytest.approx(exact.upper, rel=1e-9, abs=1e-9)
    elif even >= math.log(mean) + log_gaussian_delta_slope(eps, mean):  # h(x) >= x h'(x): equal singular values do (d)
        assert free.upper == pytest.approx(even, rel=1e-9, abs=1e-9)


def test_rank_free_is_not_exact_between_the_regimes():
    # d = 2, r = 1: the differences are w and 1 - w, and X = mu^2 (1/2 + (w - 1/2) cos phi) with phi uniform.
    mu, eps = 2.5, 2.0
    phi = (np.arange(2000) + 0.5) * np.pi / 2000
    sizes = [mu**2 * (0.5 + a * np.cos(phi)) for a in np.linspace(0.0, 0.5, 101)]
    worst = max(np.mean([math.exp(log_gaussian_delta_at(eps, x)) for x in squares]) for squares in sizes)
    assert worst == pytest.approx(0.24361, rel=1e-4)
    answer = math.exp(log_delta("rank-free", eps, dim=2, rank=1, noise_multiplier=1 / mu).upper)
    assert answer > 1.04 * worst


def test_m2_with_full_rank_is_gaussian():
    plain = privproj.epsilon(Gaussian(noise_multiplier=1.3), delta=1e-6)
    for bound in ("rank-free", "exact-rank1", "gaussian"):
        result = privproj.epsilon(M2(dim=50, rank=50, noise_multiplier=1.3), delta=1e-6, bound=bound)
        assert result.value == pytest.approx(plain.value, rel=1e-12, abs=0)
        assert "rank equals dim" in result.warnings[0]
    assert (
        privproj.epsilon(M2(dim=50, rank=50, noise_multiplier=1.3), delta=1e-6, bound="mixture-rdp").value
        >= plain.value
    )


def test_exact_rank1_concentrates_for_large_dimension():
    d, r, mu = 10**8, 10**6, 20.0
    value = log_delta("rank-free", 1.0, dim=d, rank=r, noise_multiplier=1 / mu).upper
    assert value == pytest.approx(log_gaussian_delta(1.0, mu * math.sqrt(r / d)), rel=1e-4, abs=0)


@pytest.mark.parametrize(
    ("dim", "rank", "mu", "eps"), [(2, 1, 3.0, 0.5), (64, 4, 1.0, 8.0), (768, 16, 2.0, 1.0), (5000, 4999, 0.7, 0.2)]
)
def test_exact_rank1_matches_mpmath(dim, rank, mu, eps):
    with mp.workdps(20):
        truth = float(mp.log(reference.expected_profile(eps, mu, dim, rank)))
    low, high = log_delta("exact-rank1", eps, dim=dim, rank=rank, noise_multiplier=1 / mu)
    assert low <= truth + 1e-14 * abs(truth)
    assert truth - 1e-14 * abs(truth) <= high


def random_losses(rng, dim, rank, change, mu, count):
    """Privacy losses of the mechanism itself: ``Z`` and ``E`` drawn, ``Y = M (V + E)``, ``Z`` known to the attacker."""
    change = change / np.linalg.norm(change)
    sketch = rng.standard_normal((count, dim, rank)) / math.sqrt(rank)
    noise = rng.standard_normal((count, *change.shape)) / mu
    released = sketch @ (np.swapaxes(sketch, 1, 2) @ (change + noise))
    frame = np.linalg.qr(sketch)[0]
    coordinates = np.swapaxes(frame, 1, 2)
    core = np.linalg.inv(coordinates @ sketch @ np.swapaxes(sketch, 1, 2) @ frame)
    seen = core @ (coordinates @ released)
    shift = coordinates @ change
    return mu * mu * np.sum(shift * (seen - 0.5 * shift), axis=(1, 2))


@pytest.mark.full
@pytest.mark.parametrize("change_rank", [1, 5])
def test_simulated_m2_never_exceeds_rank_free(change_rank):
    rng = np.random.default_rng(11)
    dim, rank, mu = 24, 3, 2.5
    change = np.zeros((dim, 6))
    change[range(change_rank), range(change_rank)] = 1.0
    losses = np.concatenate([random_losses(rng, dim, rank, change, mu, 20_000) for _ in range(10)])
    for eps in (0.0, 0.1, 0.5, 1.0, 2.0, 3.0):
        gains = np.clip(-np.expm1(eps - losses), 0.0, None)
        mean, error = gains.mean(), gains.std() / math.sqrt(len(gains))
        bound = math.exp(log_delta("rank-free", eps, dim=dim, rank=rank, noise_multiplier=1 / mu).upper)
        assert mean <= bound + 5 * error
        if change_rank == 1:
            exact = math.exp(log_delta("exact-rank1", eps, dim=dim, rank=rank, noise_multiplier=1 / mu).upper)
            assert abs(mean - exact) <= 5 * error


@pytest.mark.full
def test_rank_five_exceeds_rank_one_profile_at_small_epsilon():
    """Why ``exact-rank1`` is conditional and ``rank-free`` exists."""
    rng = np.random.default_rng(3)
    dim, rank, mu, eps = 200, 4, 5.0, 0.05
    frames = np.linalg.qr(rng.standard_normal((20_000, dim, rank)))[0]
    energy = mu * mu * (frames[:, :5, :] ** 2).sum(axis=(1, 2)) / 5
    deltas = np.array([math.exp(log_gaussian_delta_at(eps, x)) for x in energy])
    mean, error = deltas.mean(), deltas.std() / math.sqrt(len(deltas))
    given = {"dim": dim, "rank": rank, "noise_multiplier": 1 / mu}
    assert mean - 5 * error > math.exp(log_delta("exact-rank1", eps, **given).upper)
    assert mean <= math.exp(log_delta("rank-free", eps, **given).upper) + 5 * error


def test_replace_is_rejected_for_rank_one():
    mechanism = M2(dim=64, rank=4, noise_multiplier=1.0)
    with pytest.raises(UnsupportedError, match="replace"):
        privproj.epsilon(mechanism, delta=1e-5, bound="exact-rank1", relation="replace")
    assert privproj.epsilon(mechanism, delta=1e-5, relation="replace").usable


def test_change_rank_is_limited_by_shape():
    mechanism = M2(dim=64, rank=4, noise_multiplier=1.0)
    with pytest.raises(InvalidParameterError, match="columns"):
        privproj.epsilon(mechanism, delta=1e-5, bound="beta-tail")
    by_shape = privproj.epsilon(M2(dim=64, rank=4, columns=8, noise_multiplier=1.0), delta=1e-5, bound="beta-tail")
    assumed = privproj.epsilon(
        M2(dim=64, rank=4, columns=8, change_rank=2, noise_multiplier=1.0), delta=1e-5, bound="beta-tail"
    )
    assert (by_shape.status, by_shape.data_assumptions) == ("proved", ())
    assert assumed.status == "conditional"
    assert "at most 2" in assumed.data_assumptions[0]
    assert assumed.value < by_shape.value
    one_column = privproj.epsilon(M2(dim=64, rank=4, columns=1, noise_multiplier=1.0), delta=1e-5, bound="exact-rank1")
    assert one_column.status == "proved"


def test_rank_returns_largest_rank_that_fits():
    blank = M2(dim=2048, noise_multiplier=1.0)
    found = privproj.rank(blank, epsilon=1.0, delta=1e-5)
    for rank, fits in ((found.value, True), (found.value + 1, False)):
        delta = privproj.delta(M2(dim=2048, rank=rank, noise_multiplier=1.0), epsilon=1.0).value
        assert (delta <= 1e-5) == fits
    nothing = privproj.rank(M2(dim=4, noise_multiplier=0.01), epsilon=0.1, delta=1e-9)
    assert (nothing.value, nothing.outcome) == (None, "vacuous")
    assert privproj.rank(M2(dim=64, noise_multiplier=50.0), epsilon=1.0, delta=1e-5).value == 64


def test_m2_bounds_match_published_values():
    given = {"dim": 2048, "rank": 16}
    for bound, k, expected in (("beta-tail", 10, 0.7787), ("rank-free", None, 0.3814), ("gaussian", None, 3.7306)):
        found = privproj.sigma(M2(**given, change_rank=k), epsilon=1.0, delta=1e-5, bound=bound)
        assert found.value == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("c", [1e-9, 1.0, 499.0, 501.0, 5e3, 1e5])
@pytest.mark.parametrize(("a", "b"), [(0.5, 3.5), (8.0, 1016.0), (50.0, 0.5)])
def test_energy_moments_match_confluent_function(a, b, c):
    found = log_energy_moment(a, b, c)
    with mp.workdps(60):
        exact = mp.log(mp.hyp1f1(a, a + b, c))
    assert 0.0 <= found - exact <= 1e-11 + 1e-14 * float(exact)


def test_reused_projection_exceeds_bound_for_fresh_ones():
    """The adaptive attack of a fixed projection: from the second step on the gradient lies in the known span."""
    rng = np.random.default_rng(8)
    dim, rank, z, steps, count = 64, 2, 3.0, 12, 100_000
    energy = rng.beta(rank / 2, (dim - rank) / 2, count)
    shift = (energy + steps - 1.0) / z**2
    loss = rng.standard_normal(count) * np.sqrt(shift) + shift / 2
    gains = np.clip(-np.expm1(1.0 - loss), 0, None)
    fresh = privproj.delta(M2(dim=dim, rank=rank, noise_multiplier=z), epsilon=1.0, steps=steps).value
    assert gains.mean() - 5 * gains.std() / math.sqrt(count) > 3 * fresh
    fixed = M2(dim=dim, rank=rank, noise_multiplier=z, fixed_projection=True)
    with pytest.raises(UnsupportedError, match="pass bound=gaussian"):
        privproj.delta(fixed, epsilon=1.0, steps=steps)
    plain = privproj.delta(fixed, epsilon=1.0, steps=steps, bound="gaussian").value
    assert gains.mean() <= plain + 5 * gains.std() / math.sqrt(count)


def test_beta_tail_requires_change_rank_or_columns():
    blank = M2(dim=2048, columns=10, noise_multiplier=0.5)
    for bound in ("rank-free", "exact-rank1", "mixture-rdp", "good-event", "good-event-q", "beta-tail"):
        with pytest.raises(InvalidParameterError, match="rank"):
            privproj.epsilon(blank, delta=1e-5, bound=bound)
    assert [row.bound.name for row in privproj.compare(blank, delta=1e-5) if row.result] == ["gaussian"]


def test_replace_doubles_assumed_rank():
    one, two = (
        privproj.epsilon(m2(0.8, change_rank=k), delta=1e-5, bound="beta-tail", relation=relation).value
        for k, relation in ((4, "replace"), (8, "add-remove"))
    )
    assert one == two


def test_subsampled_rdp_lies_between_profile_and_gaussian_rdp():
    for q in (0.001, 0.01, 0.2):
        run = {"steps": 200, "sampling_rate": q}
        assert eps_of(m2(0.4), "rank-free", **run) <= eps_of(m2(0.4), "mixture-rdp", **run)
        assert eps_of(m2(0.4), "mixture-rdp", **run) <= eps_of(Gaussian(noise_multiplier=0.4), "rdp", **run)


def brute_minimum(a, b, k, mu, eps, sharp):
    """The bound on a dense grid of tau, and at tau = 1."""
    grid = math.log(a / b) + np.linspace(-30, 60, 1500) * beta_tail_scale(a, b)
    values = [beta_tail_value(t, a, b, beta_constant(a, b), math.log(k), mu, eps, sharp) for t in grid if -200 < t < 35]
    return min([*values, log_tail_profile(eps, mu, sharp), 0.0])


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(
    dim=st.integers(3, 5000),
    share=st.floats(0, 1),
    k=st.sampled_from([1, 2, 10]),
    mu=st.floats(-2, 2).map(lambda x: 10.0**x),
    eps=st.floats(-4, 2).map(lambda x: 10.0**x),
    sharp=st.booleans(),
)
def test_beta_tail_is_minimal_over_tau(dim, share, k, mu, eps, sharp):
    rank = 1 + round(share**3 * (dim - 2))
    a, b = rank / 2, (dim - rank) / 2
    found, _ = beta_tail_delta(a, b, float(k), mu, eps, sharp)
    brute = brute_minimum(a, b, k, mu, eps, sharp)
    assert found <= brute + 1e-10 * (1 + abs(brute))


@settings(max_examples=60, deadline=None)
@given(
    dim=st.integers(20, 10**6),
    rank=st.integers(1, 19),
    k=st.sampled_from([1, 10]),
    mu=st.floats(-1, 1).map(lambda x: 10.0**x),
    log10_delta=st.floats(-12, -2),
    sharp=st.booleans(),
)
def test_epsilon_inverts_delta_on_safe_side(dim, rank, k, mu, log10_delta, sharp):
    a, b, log_delta = rank / 2, (dim - rank) / 2, log10_delta * math.log(10)
    eps = beta_tail_epsilon(a, b, float(k), mu, log_delta, sharp)
    assert beta_tail_delta(a, b, float(k), mu, eps, sharp)[0] <= log_delta
    if eps > 1e-12:
        assert beta_tail_delta(a, b, float(k), mu, eps, sharp)[0] >= log_delta - 1e-11


def test_beta_tail_at_given_tau_is_not_below_minimum():
    found = math.exp(beta_tail_delta(8.0, 1016.0, 10.0, 1.2841916, 1.0, False)[0])
    for tau in (0.01, 0.02, 0.03, 0.05, 0.2):
        assert float(reference.beta_tail_bound(1, 1.2841916, 2048, 16, 10, tau, False)) >= found


@pytest.mark.parametrize("bound", ["beta-tail", "beta-tail-sharp"])
@pytest.mark.parametrize("shape", [{"dim": 2048, "rank": 16}, {"layers": (Layer(dim=64, rank=4, count=2),)}], ids=str)
def test_tau_of_a_result_is_the_best(bound, shape):
    mechanism = M2(**shape, change_rank=2, noise_multiplier=0.8)

    def delta(**run):
        return privproj.delta(mechanism, epsilon=1.0, bound=bound, **run)

    best = delta()
    tau = best.numerics["tau"]
    assert delta(tau=tau).value == pytest.approx(best.value, rel=1e-6, abs=0)
    assert all(delta(tau=tau * factor).value > best.value for factor in (0.8, 1.25))
    at_one = privproj.delta(
        Gaussian(noise_multiplier=0.8), epsilon=1.0, bound="two-sided" if bound == "beta-tail" else "analytic"
    )
    assert delta(tau=1.0).value == pytest.approx(at_one.value, rel=1e-11, abs=0)


def test_tau_is_used_by_epsilon_and_runs():
    mechanism = M2(dim=2048, rank=16, change_rank=10, noise_multiplier=0.7787)
    given = {"bound": "beta-tail", "tau": 0.04}
    epsilon = privproj.epsilon(mechanism, delta=1e-3, **given)
    assert epsilon.numerics["tau"] == 0.04
    assert privproj.delta(mechanism, epsilon=epsilon.value, **given).value <= 1e-3
    noise = privproj.sigma(replace(mechanism, noise_multiplier=None), epsilon=epsilon.value, delta=1e-3, **given).value
    assert noise == pytest.approx(0.7787, rel=1e-8, abs=0)
    many = {"delta": 1e-2, "steps": 10}
    assert privproj.epsilon(mechanism, **many, **given) > privproj.epsilon(mechanism, **many, bound="beta-tail")


def test_tau_is_rejected_by_other_bounds():
    mechanism = M2(dim=2048, rank=16, change_rank=10, noise_multiplier=0.7787)
    with pytest.raises(InvalidParameterError, match="has no tau"):
        privproj.delta(mechanism, epsilon=1.0, tau=0.1)
    for tau in (0.0, 1.1):
        with pytest.raises(InvalidParameterError, match="tau"):
            privproj.delta(mechanism, epsilon=1.0, bound="beta-tail", tau=tau)
    rows = {row.bound.name: row for row in privproj.compare(mechanism, epsilon=1.0, tau=0.1)}
    assert rows["beta-tail"].result.numerics["tau"] == 0.1 and "tau" not in rows["rank-free"].result.numerics


@pytest.mark.parametrize(
    "layers", ["96x8x2", Layer(dim=96, rank=8, count=2), ["96x8x2"], [Layer(dim=96, rank=8, count=2)]]
)
def test_layers_from_text_and_objects_are_equal(layers):
    usual = M2(layers=(Layer(dim=96, rank=8, count=2),), noise_multiplier=0.5)
    found = M2(layers=layers, noise_multiplier=0.5)
    assert found == usual and hash(found) == hash(usual)
    assert privproj.epsilon(found, delta=1e-5, steps=3, sampling_rate=0.1).value


def test_invalid_layers_are_rejected():
    for layers in ("96", [96], 96):
        with pytest.raises(InvalidParameterError, match="768x16x24"):
            M2(layers=layers, noise_multiplier=0.5)
