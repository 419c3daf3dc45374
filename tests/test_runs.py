"""Whole runs: subsampling, composition, layers, budgets."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M2, Gaussian, InvalidParameter, Layer, Refused
from privproj.bounds import find
from privproj.composition.compose import compose_on_grid, compose_phases
from privproj.errors import PrecisionLimit
from privproj.laws import binned, binned_profiles
from privproj.laws.profiles import log_any_rank_profile
from privproj.laws.squared_shift import ScaledBeta
from privproj.runs import Run

RUN = {"steps": 2000, "sampling_rate": 0.01}


def rank_one(eps, law):
    """``ln E[h_eps(X)]``."""
    return law.expected_profile(eps)


def m2(z, **more):
    return M2(dim=2048, rank=16, noise_multiplier=z, **more)


def eps_of(mechanism, bound=None, delta=1e-5, **run):
    return privproj.epsilon(mechanism, delta=delta, bound=bound, **{**RUN, **run}).value


# --- the reference run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "bound", "low", "high"),
    [
        (0.155974, "rank-free", 1.0887, 1.0912),
        (0.155974, "exact-rank1", 1.0811, 1.0836),
        (0.155974, "mixture-rdp", 1.7193, 1.7195),
        (0.155974, "good-event", 4.475, 4.4805),
        (0.155974, "good-event-q", 3.709, 3.7135),
        (0.194968, "rank-free", 0.8117, 0.8148),
        (0.194968, "mixture-rdp", 1.2593, 1.2595),
        (0.194968, "good-event", 2.681, 2.6855),
        (0.194968, "good-event-q", 2.324, 2.3285),
    ],
)
def test_reference_run(z, bound, low, high):
    assert low <= eps_of(m2(z, change_rank=10), bound) <= high


def test_reference_run_on_the_coarse_grid_and_with_the_even_split():
    assert eps_of(m2(0.155974), discretization=1e-3) == pytest.approx(1.0911, rel=3e-4, abs=0)
    assert eps_of(m2(0.155974, change_rank=10), "good-event", split="even") == pytest.approx(4.493, rel=3e-4, abs=0)


def test_bounds_of_the_run_come_in_order():
    rows = privproj.compare(m2(0.155974, change_rank=10), delta=1e-5, **RUN)
    values = {row.bound.name: row.result.value for row in rows}
    order = ["exact-rank1", "rank-free", "mixture-rdp", "good-event-q", "good-event", "gaussian"]
    assert [values[name] for name in order] == sorted(values.values())[:2] + sorted(values[n] for n in order[2:])
    assert [row.result.status for row in rows[:3]] == ["proved"] * 3


# --- the composer ---------------------------------------------------------------------------------


def dp_epsilon(z, run, step, delta=1e-5):
    """dp-accounting's own subsampled Gaussian."""
    single = dp.from_gaussian_mechanism(z, sampling_prob=run["sampling_rate"], value_discretization_interval=step)
    return single.self_compose(run["steps"]).get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("z", "run", "step"),
    [
        (0.8, RUN, 1e-3),
        (1.0, {"steps": 1000, "sampling_rate": 0.01}, 1e-3),
        (2.0, {"steps": 50, "sampling_rate": 0.3}, 1e-3),
    ],
)
def test_full_rank_and_gaussian_runs_equal_dp_accounting(z, run, step):
    peer = dp_epsilon(z, run, step)
    for mechanism in (Gaussian(noise_multiplier=z), M2(dim=30, rank=30, noise_multiplier=z)):
        ours = privproj.epsilon(mechanism, delta=1e-5, discretization=step, **run)
        assert ours.value == pytest.approx(peer, rel=5e-5, abs=0)
        assert ours.lower < peer
        theirs = privproj.epsilon(mechanism, delta=1e-5, discretization=step, composer="dp-accounting", **run)
        assert theirs.value == pytest.approx(ours.value, rel=1e-6, abs=0)
        assert theirs.numerics["composer"] == "dp-accounting"


@settings(max_examples=12, deadline=None)
@given(steps=st.integers(2, 5000), log10_delta=st.floats(-9, -2), mu=st.floats(0.3, 3))
def test_composed_gaussian_is_never_below_the_closed_form(steps, log10_delta, mu):
    z, delta = math.sqrt(steps) / mu, 10**log10_delta
    exact = privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, steps=steps).value
    run = Run(steps=steps)
    ours = compose_on_grid(
        [(find(Gaussian, "analytic").representation(Gaussian(noise_multiplier=z)), run)],
        run.discretization,
        run.composer,
    )
    value = ours.epsilon(math.log(delta)).upper
    assert exact * (1 - 1e-12) <= value
    assert value <= exact * 1.01 + 1e-6
    assert ours.log_delta(value).upper == pytest.approx(math.log(delta), rel=0, abs=1e-6)


def test_two_phases_compose_jointly():
    form = find(Gaussian, "analytic").representation
    strong, weak = (form(Gaussian(noise_multiplier=z)) for z in (20.0, 40.0))
    joint = compose_phases([(strong, Run(steps=100)), (weak, Run(steps=300))])
    mu = math.sqrt(100 / 20**2 + 300 / 40**2)
    exact = privproj.epsilon(Gaussian(noise_multiplier=1 / mu), delta=1e-5).value
    assert exact <= joint.epsilon(math.log(1e-5)).upper <= exact * 1.005


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_one_subsampled_step_is_the_amplification_theorem(sampling):
    q, z = 0.05, 0.7
    profile = find(Gaussian, "analytic").representation(Gaussian(noise_multiplier=z))
    for eps in (0.0, 0.1, 0.5, 1.5):
        inner = math.log1p(math.expm1(eps) / q)
        theorem = q * math.exp(profile.log_delta(inner).upper)
        ours = privproj.delta(
            Gaussian(noise_multiplier=z), epsilon=eps, sampling_rate=q, sampling=sampling, discretization=1e-4
        ).value
        assert theorem * (1 - 1e-9) <= ours <= theorem * (1 + 1e-3)


def test_small_rate_and_many_steps_are_tight():
    run = {"steps": 10**6, "sampling_rate": 1e-5}
    value = privproj.epsilon(m2(0.155974), delta=1e-5, **run)
    finer = float(value.numerics["grid_step"]) / 10
    assert value.value <= 1.03 * privproj.epsilon(m2(0.155974), delta=1e-5, discretization=finer, **run).value


def test_simulated_subsampled_run_stays_below_the_bound():
    """A Gaussian run of one dimension under Poisson sampling: losses drawn, both orders."""
    rng = np.random.default_rng(5)
    q, z, steps, count = 0.2, 1.5, 8, 200_000
    for order in ("remove", "add"):
        sampled = rng.random((count, steps)) < (q if order == "remove" else 0.0)
        outcome = sampled + z * rng.standard_normal((count, steps))
        loss = np.log1p(q * np.expm1((2 * outcome - 1) / (2 * z * z))).sum(axis=1)
        loss = loss if order == "remove" else -loss
        for eps in (0.2, 0.8, 1.5):
            gains = np.clip(-np.expm1(eps - loss), 0, None)
            bound = privproj.delta(Gaussian(noise_multiplier=z), epsilon=eps, steps=steps, sampling_rate=q).value
            assert gains.mean() <= bound + 5 * gains.std() / math.sqrt(count)


def test_reused_projection_exceeds_what_fresh_projections_are_charged():
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
    with pytest.raises(Refused, match="--bound gaussian"):
        privproj.delta(fixed, epsilon=1.0, steps=steps)
    plain = privproj.delta(fixed, epsilon=1.0, steps=steps, bound="gaussian").value
    assert gains.mean() <= plain + 5 * gains.std() / math.sqrt(count)


def test_hopeless_losses_and_grids_are_precision_limits():
    for run, z in (
        ({"steps": 2, "sampling_rate": 0.5}, 1e-3),
        ({"steps": 3, "sampling_rate": 0.9, "discretization": 1e-12}, 1.0),
    ):
        with pytest.raises(PrecisionLimit) as caught:
            privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-5, **run)
        assert caught.value.result.outcome == "precision_limit"


def test_dp_accounting_refuses_below_its_floor():
    peer = {**RUN, "composer": "dp-accounting"}
    with pytest.raises(PrecisionLimit, match="default composer"):
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-13, **peer)
    with pytest.raises(PrecisionLimit):
        privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=30.0, **peer)
    with pytest.raises(PrecisionLimit):
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, discretization=1e-9, **peer)


# --- tables ---------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(3, 3000),
    share=st.floats(0, 1),
    mu=st.floats(-0.5, 1).map(lambda x: 10.0**x),
)
def test_tables_are_upper_bounds_and_close(dim, share, mu):
    rank = 1 + round(share**3 * (dim - 2))
    law = ScaledBeta(rank / 2, (dim - rank) / 2, mu * mu)
    bins = binned.beta_bins(law.a, law.b, law.scale)
    eps = np.array([0.0, 0.01, 0.3, 1.0, 3.0])
    free, one = binned_profiles.any_rank_deltas(eps, (bins,)), binned_profiles.rank_one_deltas(eps, bins)
    for i, e in enumerate(eps):
        for table, scalar in ((free, log_any_rank_profile), (one, rank_one)):
            low, high = scalar(float(e), law)
            if high > -60:
                assert math.exp(low) <= table[i]
            if high > -30:
                assert table[i] <= math.exp(high) * (1 + 0.03 + 4e-3 * abs(high))


def test_gaussian_table_is_an_upper_bound():
    form = find(Gaussian, "analytic").representation(Gaussian(noise_multiplier=0.5))
    eps = np.linspace(0, 20, 50)
    for e, below, above in zip(eps, *form.table(eps), strict=True):
        low, high = form.log_delta(float(e))
        assert math.exp(low) <= above <= math.exp(high) * (1 + 1e-8)
        assert math.exp(low) * (1 - 1e-8) <= below <= math.exp(high)


# --- layers ---------------------------------------------------------------------------------------

STACK = (Layer(dim=768, rank=16, count=24),)


def stack(z=0.155974, clipping="joint", layers=STACK, **more):
    return M2(layers=layers, clipping=clipping, noise_multiplier=z, **more)


def test_equal_layers_under_a_joint_clip_cost_what_one_costs():
    assert eps_of(stack()) == eps_of(M2(dim=768, rank=16, noise_multiplier=0.155974))


@pytest.mark.parametrize("bound", ["rank-free", "mixture-rdp"])
def test_per_layer_clipping_beats_joint_and_approaches_the_gaussian_at_the_mean_energy(bound):
    joint, apart = eps_of(stack(), bound), eps_of(stack(clipping="per-layer"), bound)
    limit = eps_of(
        Gaussian(noise_multiplier=0.155974 * math.sqrt(768 / 16)), "analytic" if bound == "rank-free" else "rdp"
    )
    assert limit < apart < joint
    assert apart - limit < 0.1 * (joint - limit)


def test_an_unprojected_tensor_under_the_joint_clip_removes_all_gain():
    with_head = (*STACK, Layer(dim=10, rank=10))
    result = privproj.epsilon(stack(1.0, layers=with_head), delta=1e-5, **RUN)
    assert result.value == eps_of(Gaussian(noise_multiplier=1.0))
    assert "unprojected tensor" in result.warnings[0]
    shares = (Layer(dim=768, rank=16, count=24, share=0.99), Layer(dim=10, rank=10, share=0.01))
    assert eps_of(stack(1.0, "per-layer", shares)) < result.value


def test_layers_of_different_shape_are_no_better_than_the_worst():
    mixed = (*STACK, Layer(dim=3072, rank=16, count=12))
    worst = eps_of(M2(dim=768, rank=16, noise_multiplier=0.155974))
    assert eps_of(stack(layers=mixed)) == pytest.approx(worst, rel=1e-6, abs=0)
    assert eps_of(stack(layers=mixed)) >= worst * (1 - 1e-6)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_convolved_law_keeps_the_mean_and_dominates(count):
    rng = np.random.default_rng(2)
    parts = ((64, 4, count, 0.9 / count), (16, 16, 1, 0.1))
    bins = binned.convolved_bins(parts, 4.0)
    draws = 4.0 * (0.1 + 0.9 * rng.beta(2, 30, (400_000, count)).mean(axis=1))
    assert bins.mass.sum() == pytest.approx(1.0, rel=1e-9, abs=0)
    assert np.sum(bins.mass * bins.mean) == pytest.approx(4.0 * (0.1 + 0.9 / 16), rel=2e-3, abs=0)
    for power in (2, 3):
        convex = binned_profiles.chord(bins.edges**power, bins).sum()
        sample = draws**power
        assert convex >= sample.mean() - 5 * sample.std() / math.sqrt(len(draws))
        assert convex <= sample.mean() * 1.02


def test_layers_refuse_what_does_not_hold():
    with pytest.raises(Refused, match="several"):
        eps_of(stack(), "exact-rank1")
    for bad in (
        {"layers": STACK, "dim": 5},
        {"layers": (Layer(dim=8, rank=2, share=0.5),), "clipping": "per-layer"},
        {"layers": (Layer(dim=8, rank=2, share=1.0),)},
        {},
    ):
        with pytest.raises(InvalidParameter):
            M2(**bad)
    with pytest.raises(InvalidParameter):
        privproj.rank(M2(layers=STACK, noise_multiplier=1.0), epsilon=1.0, delta=1e-5)


def test_one_layer_is_the_plain_mechanism_for_the_published_bounds():
    one = (Layer(dim=768, rank=16),)
    for bound in ("beta-tail", "beta-tail-sharp"):
        layered = privproj.epsilon(stack(0.5, layers=one, change_rank=3), delta=1e-5, bound=bound).value
        plain = privproj.epsilon(
            M2(dim=768, rank=16, change_rank=3, noise_multiplier=0.5), delta=1e-5, bound=bound
        ).value
        assert layered == pytest.approx(plain, rel=1e-7, abs=0)


# --- budgets --------------------------------------------------------------------------------------


def test_sigma_inverts_epsilon_of_a_run():
    target = eps_of(m2(0.3))
    found = privproj.sigma(M2(dim=2048, rank=16), epsilon=target, delta=1e-5, **RUN)
    assert found.value == pytest.approx(0.3, rel=1e-6, abs=0)
    assert eps_of(m2(found.value)) <= target


def test_steps_and_rate_are_the_last_that_fit():
    mechanism = m2(0.3)
    found = privproj.steps(mechanism, epsilon=0.5, delta=1e-5, sampling_rate=0.01)
    assert eps_of(mechanism, steps=found.value) <= 0.5 < eps_of(mechanism, steps=found.value + 1)
    rate = privproj.rate(mechanism, epsilon=0.5, delta=1e-5, steps=100)
    assert eps_of(mechanism, steps=100, sampling_rate=rate.value) <= 0.5 * (1 + 1e-9)
    assert eps_of(mechanism, steps=100, sampling_rate=rate.value * 1.001) > 0.5
    assert privproj.rate(m2(50.0), epsilon=1.0, delta=1e-5).value == 1.0
    assert privproj.steps(Gaussian(noise_multiplier=0.1), epsilon=0.1, delta=1e-9).outcome == "vacuous"


def test_group_of_records():
    alone, pair = eps_of(m2(0.5)), privproj.epsilon(m2(0.5), delta=1e-5, group_size=2, **RUN)
    assert pair.value > alone
    assert pair.status == "conditional"
    assert "at most 2 records" in pair.promises[0]
    one = {"delta": 1e-5, "steps": 50}
    paired = privproj.epsilon(Gaussian(noise_multiplier=2.0), group_size=2, sampling_rate=0.1, **one).value
    assert paired == pytest.approx(
        privproj.epsilon(Gaussian(noise_multiplier=1.0), sampling_rate=0.19, **one).value, rel=1e-9, abs=0
    )
    whole = privproj.epsilon(Gaussian(noise_multiplier=3.0), delta=1e-5, group_size=3)
    assert whole.value == pytest.approx(
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5).value, rel=1e-12, abs=0
    )
    for bad in ({"bound": "exact-rank1"}, {"relation": "zero-out"}):
        with pytest.raises(Refused):
            privproj.epsilon(m2(0.5), delta=1e-5, group_size=2, **{**RUN, **bad})


def test_the_rank_is_never_assumed():
    blank = M2(dim=2048, columns=10, noise_multiplier=0.5)
    for bound in ("rank-free", "exact-rank1", "mixture-rdp", "good-event", "good-event-q", "beta-tail"):
        with pytest.raises(InvalidParameter, match="rank"):
            privproj.epsilon(blank, delta=1e-5, bound=bound)
    assert [row.bound.name for row in privproj.compare(blank, delta=1e-5) if row.result] == ["gaussian"]


def test_rate_keeps_the_sampling_that_was_asked_for():
    question = {"epsilon": 1.0, "delta": 1e-5, "steps": 20}
    fixed = privproj.rate(m2(0.5), sampling="fixed", **question)
    assert (fixed.run["sampling"], fixed.run["relation"]) == ("fixed", "replace")
    assert "relation is replace" in fixed.warnings[0]
    again = privproj.epsilon(m2(0.5), delta=1e-5, steps=20, sampling="fixed", sampling_rate=fixed.value)
    assert again.value <= 1.0 + 1e-9
    with pytest.raises(InvalidParameter):
        privproj.rate(m2(0.5), sampling="partition", **question)


@pytest.mark.parametrize("layer", ["64x8x1", "64x8x3", "768x16x100000", "4096x2048x224"])
def test_per_layer_laws_of_every_size_are_finite_and_between_their_limits(layer):
    dim, rank, count = map(int, layer.split("x"))
    law = stack(1.0, "per-layer", (Layer(dim=dim, rank=rank, count=count),))
    value = privproj.delta(law, epsilon=0.5).value
    energy = math.sqrt(rank / dim)
    concentrated = privproj.delta(Gaussian(noise_multiplier=1 / energy), epsilon=0.5).value
    assert (
        concentrated * (1 - 1e-9)
        <= value
        <= privproj.delta(M2(dim=dim, rank=rank, noise_multiplier=1.0), epsilon=0.5).value * 1.001
    )


def test_tables_refuse_dimensions_beyond_their_margin():
    with pytest.raises(PrecisionLimit, match="dim"):
        privproj.epsilon(M2(dim=10**8, rank=16, noise_multiplier=0.1), delta=1e-5, steps=10)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_little_noise_is_answered_or_refused(sampling):
    for z in (0.3, 0.05, 0.01):
        try:
            value = privproj.epsilon(
                Gaussian(noise_multiplier=z), delta=1e-6, steps=100, sampling_rate=0.01, sampling=sampling
            ).value
            assert value > 10
        except PrecisionLimit:
            assert z < 0.05


def test_absurd_runs_are_answered_soundly_or_refused_before_memory_is_taken():
    run = {"steps": 10**12, "sampling_rate": 0.01}
    try:
        assert eps_of(m2(1.0), **run) < eps_of(m2(1.0), "mixture-rdp", **run)
    except PrecisionLimit:
        assert privproj.epsilon(m2(1.0), delta=1e-5, bound="mixture-rdp", **run).usable


def test_fixed_batches_use_the_replace_relation():
    result = privproj.epsilon(m2(0.5), delta=1e-5, sampling="fixed", **RUN)
    assert result.run["relation"] == "replace"
    with pytest.raises(Refused):
        privproj.epsilon(m2(0.5), delta=1e-5, bound="exact-rank1", sampling="fixed", **RUN)
    with pytest.raises(Refused, match="sampling"):
        privproj.epsilon(m2(0.5), delta=1e-5, bound="mixture-rdp", sampling="fixed", **RUN)


def test_replacing_a_record_doubles_the_promised_rank():
    one, two = (
        privproj.epsilon(m2(0.8, change_rank=k), delta=1e-5, bound="beta-tail", relation=relation).value
        for k, relation in ((4, "replace"), (8, "add-remove"))
    )
    assert one == two


def test_subsampled_rdp_is_above_the_composed_profile_and_below_the_gaussian_one():
    for q in (0.001, 0.01, 0.2):
        run = {"steps": 200, "sampling_rate": q}
        assert eps_of(m2(0.4), "rank-free", **run) <= eps_of(m2(0.4), "mixture-rdp", **run)
        assert eps_of(m2(0.4), "mixture-rdp", **run) <= eps_of(Gaussian(noise_multiplier=0.4), "rdp", **run)


# --- absurd questions -------------------------------------------------------------------------------


def test_absurd_questions_have_an_answer_or_a_reason():
    far = privproj.delta(privproj.Laplace(noise_multiplier=2.0), epsilon=1e6, steps=2)
    assert far.value <= 1e-30
    with pytest.raises(privproj.NotConverged, match="steps fit"):
        privproj.steps(privproj.Laplace(noise_multiplier=1e5), epsilon=1.0, delta=1e-12)
    tiny = [
        privproj.epsilon(privproj.PublicSketch(rank=3, noise_multiplier=5.0), delta=d).value for d in (1e-299, 1e-300)
    ]
    assert 80 < tiny[0] < tiny[1] < 90
    half = privproj.PublicSketch(rank=16, noise_multiplier=0.5)
    assert 0 < privproj.delta(half, epsilon=1.0, sampling_rate=0.5).value < 1
    with pytest.raises(privproj.PrivprojError, match="losses lie below"):
        privproj.epsilon(M2(dim=10, rank=3, noise_multiplier=1e-2), delta=1e-5, steps=10)
    wide = privproj.Wishart(dim=1000, rank=64, misalignment=1e-8, norm_ratio=2.0)
    assert privproj.delta(wide, epsilon=600.0).value > 0


def test_tables_keep_falling_far_beyond_the_bulk():
    """A tangent at a far atom must not take over: two phases failed on it."""
    stack = M2(layers=(Layer(dim=768, rank=16, count=24),), clipping="per-layer", noise_multiplier=0.2)
    _, upper = find(M2, "rank-free").representation(stack).table(np.linspace(0.0, 12.0, 80))
    assert np.all(np.diff(upper) <= 1e-12 * upper[:-1])
