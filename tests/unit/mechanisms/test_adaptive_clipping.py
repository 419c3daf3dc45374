"""The count that adapts a clip: one joint release with the sum, in closed form and simulated, never two phases."""

import math
from itertools import pairwise

import numpy as np
import pytest
from helpers import full_if

import privproj
from privproj import M1, M2, Gaussian, InvalidParameterError, Layer, Outcome, UnsupportedError
from privproj.accounting.lower_bounds import lower_bound
from privproj.accounting.schedule import Composition
from privproj.io.run_file import from_data
from privproj.mechanisms.registry import bounds_of, find_bound
from privproj.schedule import phase_of

REFERENCE = {"dim": 2048, "rank": 16, "noise_multiplier": 0.155974}
RUN = {"steps": 2000, "sampling_rate": 0.01}
COUNTED = [bound.name for bound in bounds_of(M2) if "adaptive-clipping" in bound.supports]


def epsilon(mechanism, delta=1e-5, **options):
    return privproj.epsilon(mechanism, delta=delta, **options).value


@pytest.mark.parametrize("bound", [bound.name for bound in bounds_of(Gaussian)])
@pytest.mark.parametrize(
    ("options", "z_times", "s_times"),
    [({}, 1.0, 2.0), ({"relation": "replace"}, 1.0, 1.0), ({"group_size": 3}, 1 / 3, 2 / 3), ({"steps": 9}, 1.0, 2.0)],
)
def test_sum_and_count_equal_one_gaussian_release(bound, options, z_times, s_times):
    """One record moves the count by 1/2, by 1 where it is replaced, and a group of K by K/2."""
    z, sigma = 30.0, 25.0
    joint = ((z * z_times) ** -2 + (sigma * s_times) ** -2) ** -0.5
    with_count = epsilon(Gaussian(noise_multiplier=z, adaptive_clipping_sigma=sigma), bound=bound, **options)
    plain = {name: value for name, value in options.items() if name != "group_size"}
    assert with_count == pytest.approx(epsilon(Gaussian(noise_multiplier=joint), bound=bound, **plain), rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"relation": "replace"}, {"group_size": 3}, {"steps": 4}])
@pytest.mark.parametrize("bound", [name for name in COUNTED if name != "exact-rank1"])
def test_adaptive_m2_without_projection_is_gaussian(bound, options):
    given = {"noise_multiplier": 2.0, "adaptive_clipping_sigma": 1.5}
    other = "rdp" if bound == "mixture-rdp" else None
    found = epsilon(M2(dim=8, rank=8, **given), bound=bound, **options)
    assert found == pytest.approx(epsilon(Gaussian(**given), bound=other, **options), rel=1e-12)


@pytest.mark.parametrize(("options", "times"), [({"relation": "replace"}, 2.0), ({"group_size": 3}, 3.0)])
def test_count_of_projected_sum_has_full_sensitivity(options, times):
    """With the noise of the sum so large that it says nothing, what is left is the Gaussian count."""
    silent = M2(dim=64, rank=4, noise_multiplier=1e9, adaptive_clipping_sigma=2.0)
    assert epsilon(silent, **options) == pytest.approx(epsilon(Gaussian(noise_multiplier=4.0 / times)), rel=1e-6)


@pytest.mark.parametrize("run", full_if([{}, {"steps": 50, "sampling_rate": 0.05}], bool))
@pytest.mark.parametrize("bound", COUNTED)
def test_epsilon_falls_with_noise_on_count(bound, run):
    shape = {"dim": 64, "rank": 4, "noise_multiplier": 0.8}
    found = [epsilon(M2(**shape, adaptive_clipping_sigma=s), bound=bound, **run) for s in (0.3, 2.0, 1e9)]
    plain = epsilon(M2(**shape), bound=bound, **run)
    assert all(low > high for low, high in pairwise(found))
    assert found[0] > 1.2 * plain
    assert found[-1] == pytest.approx(plain, rel=1e-8)


def test_adaptive_reference_run():
    """What a count with S = 5 costs: less than three hundredths; measured 1.0889 without, 1.1107 with it."""
    plain, counted = (epsilon(M2(**REFERENCE, **more), **RUN) for more in ({}, {"adaptive_clipping_sigma": 5.0}))
    assert plain == pytest.approx(1.0889, rel=1e-3)
    assert counted == pytest.approx(1.1107, rel=1e-3)


def test_adaptive_epsilon_is_close_to_lower_bound():
    result = privproj.epsilon(M2(**REFERENCE, adaptive_clipping_sigma=2.0), delta=1e-5, **RUN)
    assert result.lower <= result.value
    least = lower_bound(result)
    assert least is not None and least.value <= result.value <= 1.02 * least.value


# --- one release, not two -------------------------------------------------------------------------------


def simulated_delta(eps, steps, rate, c, captured):
    """Mean and standard error of ``(1 - e^(eps - L))+`` for a run with the record, ``L`` its loss.

    In every step the record is in the batch or not. If it is, it moves the sum by the root of ``captured`` (a squared
    shift in units of the noise, drawn for each step) and the count of the same batch by ``c``.
    """
    rng = np.random.default_rng(11)
    count, loss = 400_000, 0.0
    for _ in range(steps):
        moved = np.sqrt(captured(rng, count))
        present = rng.random(count) < rate
        total, unclipped = rng.standard_normal((2, count)) + present * np.stack([moved, np.full(count, c)])
        # The likelihood ratio of both outputs together, given the projection: (1 - q) + q e^(a x - a^2/2 + c y - c^2/2)
        gain = moved * total - 0.5 * moved**2 + c * unclipped - 0.5 * c * c
        loss = loss + np.log1p(rate * np.expm1(gain))
    found = np.maximum(0.0, -np.expm1(np.minimum(eps - loss, 0.0)))
    return found.mean(), found.std() / math.sqrt(count)


@pytest.mark.parametrize("steps", [1, 3])
def test_joint_release_covers_simulation_and_two_phases_not(steps):
    """Sum and count are of one batch: what composes them as two phases, each with a batch of its own, is no bound."""
    run, eps = {"steps": steps, "sampling_rate": 0.1}, 1.5
    joint = privproj.delta(Gaussian(noise_multiplier=1.0, adaptive_clipping_sigma=0.5), epsilon=eps, **run)
    phases = (phase_of(Gaussian(noise_multiplier=1.0), name, **run) for name in ("sum", "count"))
    apart = Composition(tuple(phases)).delta(epsilon=eps)
    found, error = simulated_delta(eps, steps, 0.1, 1.0, lambda rng, count: np.ones(count))
    assert apart.value < found - 20.0 * error
    assert abs(found - joint.value) < 5.0 * error


@pytest.mark.full
@pytest.mark.parametrize(("steps", "rate", "eps"), [(1, 1.0, 1.0), (1, 0.2, 0.5), (4, 0.2, 1.0)])
def test_simulated_adaptive_m2_never_exceeds_bound(steps, rate, eps):
    dim, rank, z, sigma = 12, 3, 0.4, 0.6

    def captured(rng, count):
        """``mu^2 |P u|^2``: a unit vector as a Haar frame of this rank sees it."""
        u = rng.standard_normal((count, dim))
        return (u[:, :rank] ** 2).sum(axis=1) / (u**2).sum(axis=1) / z**2

    mechanism = M2(dim=dim, rank=rank, noise_multiplier=z, adaptive_clipping_sigma=sigma)
    run = {"steps": steps, **({"sampling_rate": rate} if rate < 1.0 else {})}
    found, error = simulated_delta(eps, steps, rate, 0.5 / sigma, captured)
    rank_one = privproj.delta(mechanism, epsilon=eps, bound="exact-rank1", **run).value
    assert abs(found - rank_one) < 5.0 * error + 1e-3 * rank_one
    for bound in COUNTED:
        assert found - 5.0 * error < privproj.delta(mechanism, epsilon=eps, bound=bound, **run).value


# --- every entry point -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [bound.name for bound in bounds_of(M2) if "adaptive-clipping" not in bound.supports])
def test_unsupported_bounds_name_those_with_count(bound):
    mechanism = M2(**REFERENCE, adaptive_clipping_sigma=2.0, change_rank=2)
    with pytest.raises(UnsupportedError, match=r"adaptive clipping.*rank-free"):
        privproj.epsilon(mechanism, delta=1e-5, bound=bound)


def test_adaptive_clipping_rejects_per_layer_and_bad_sigma():
    layers = (Layer(dim=64, rank=4, count=2),)
    with pytest.raises(UnsupportedError, match="joint"):
        epsilon(M2(layers=layers, clipping="per-layer", noise_multiplier=1.0, adaptive_clipping_sigma=2.0))
    for bad in (0.0, -1.0, math.nan, math.inf, "2", True):
        with pytest.raises(InvalidParameterError, match="adaptive_clipping_sigma"):
            Gaussian(noise_multiplier=1.0, adaptive_clipping_sigma=bad)
    with pytest.raises(InvalidParameterError, match="unknown parameter"):
        M1(dim=8, rank=4, noise_multiplier=1.0, adaptive_clipping_sigma=2.0)


def test_adaptive_layers_cost_at_most_worst():
    count = {"noise_multiplier": 0.5, "adaptive_clipping_sigma": 1.0}
    several = epsilon(M2(layers=(Layer(dim=64, rank=8), Layer(dim=300, rank=16)), **count))
    each = [epsilon(M2(dim=dim, rank=rank, **count)) for dim, rank in ((64, 8), (300, 16))]
    assert max(each) * (1.0 - 1e-9) <= several <= 1.01 * max(each)


@pytest.mark.parametrize("bound", ["rank-free", "exact-rank1"])
def test_adaptive_table_encloses_quadrature(bound):
    profile = find_bound(M2, bound).representation(
        M2(dim=64, rank=8, noise_multiplier=0.4, adaptive_clipping_sigma=0.7)
    )
    points = np.array([0.0, 0.01, 0.3, 1.0, 3.0, 9.0])
    for eps, low, high in zip(points, *profile.table(points), strict=True):
        value = profile.log_delta(float(eps))
        assert 0.98 * math.exp(value.lower) <= low <= math.exp(value.upper)
        assert math.exp(value.lower) <= high <= 1.02 * math.exp(value.upper)


@pytest.mark.parametrize(("epsilon", "sigma"), [(1.0, 5.0), (4.0, 0.8)])
@pytest.mark.parametrize("run", full_if([{}, RUN], bool))
def test_adaptive_sigma_meets_its_target(run, epsilon, sigma):
    found = privproj.sigma(M2(dim=256, rank=8, adaptive_clipping_sigma=sigma), epsilon=epsilon, delta=1e-5, **run)
    mechanism = M2(dim=256, rank=8, adaptive_clipping_sigma=sigma, noise_multiplier=found.value)
    assert epsilon * (1.0 - 2e-4) <= privproj.epsilon(mechanism, delta=1e-5, **run).value <= epsilon
    plain = privproj.sigma(M2(dim=256, rank=8), epsilon=epsilon, delta=1e-5, **run)
    assert found.value > plain.value


def test_count_that_exceeds_target_is_reported():
    found = privproj.sigma(Gaussian(adaptive_clipping_sigma=0.5), epsilon=1.0, delta=1e-5)
    assert found.value is None and found.outcome is Outcome.VACUOUS
    assert any("adaptive_clipping_sigma" in text for text in found.warnings)


def test_run_files_keep_count():
    phase = {"mechanism": "m2", **REFERENCE, **RUN, "adaptive_clipping_sigma": 2.0}
    schedule = from_data({"phase": [phase]})
    assert schedule.phases[0].as_dict()["adaptive_clipping_sigma"] == 2.0
    found = schedule.epsilon(delta=1e-5).value
    assert found == pytest.approx(epsilon(M2(**REFERENCE, adaptive_clipping_sigma=2.0), **RUN), rel=1e-9)


def test_adaptive_arrays_match_single_queries():
    sigmas = [0.5, 5.0]
    for kind, given in ((Gaussian, {"noise_multiplier": 1.0}), (M2, {"dim": 64, "rank": 4, "noise_multiplier": 1.0})):
        found = privproj.epsilons(kind, **given, adaptive_clipping_sigma=sigmas, delta=1e-5).value
        alone = [epsilon(kind(**given, adaptive_clipping_sigma=s)) for s in sigmas]
        assert found.tolist() == pytest.approx(alone, rel=1e-9)
