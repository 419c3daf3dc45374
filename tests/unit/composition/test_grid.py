"""Choice of the grid: limits, lazy lower bounds, and fallbacks."""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from helpers import gaussian

import privproj
from privproj import M1, M2, Gaussian
from privproj.accounting.query import composition_of
from privproj.composition import grid
from privproj.composition.compose import compose_phases
from privproj.composition.dominating_pairs import describe_coarsely
from privproj.composition.grid import UniformGridCurve
from privproj.errors import GridSizeError, PrecisionError
from privproj.profiles.gaussian import gaussian_deltas, gaussian_ends
from privproj.profiles.privacy_profile import TwoSidedTable
from privproj.run import Run

pytestmark = pytest.mark.full  # extremes, which take a minute together


def test_too_fine_grid_raises_before_allocation():
    with pytest.raises(GridSizeError, match="larger discretization"):
        privproj.epsilon(Gaussian(noise_multiplier=5.0), delta=1e-5, steps=30, sampling_rate=0.9, discretization=1e-7)


def test_upper_ends_do_not_evaluate_lower_bounds():
    def above(eps):
        return gaussian_deltas(eps, 1.0)

    def refuse(eps):
        raise AssertionError("a lower bound was computed")

    def curve(below):
        profile = replace(gaussian(1.0), table=TwoSidedTable(below, above), closed_form=None)
        return compose_phases([(profile, Run(steps=500, sampling_rate=0.02)), (profile, Run(steps=3))])

    whole, alone = curve(lambda eps: gaussian_ends(eps, 1.0)[0]), curve(refuse)
    for eps in (0.0, 1.0, 8.0):
        lower, upper = whole.log_delta(eps)
        assert alone.log_delta(eps).upper == upper > lower > upper - 1e-2
    for log_delta in (-3.0, -20.0):
        lower, upper = whole.epsilon(log_delta)
        assert alone.epsilon(log_delta).upper == upper > lower > 0.99 * upper
    with pytest.raises(AssertionError, match="lower bound"):
        print(alone.log_delta(1.0).lower)


def test_omitted_directions_change_neither_end():
    """The add direction is evaluated only where it may be larger; both ends are maxima over both directions."""
    for steps, rate, mu in ((500, 0.02, 1.0), (3, 0.4, 2.0), (40, 0.9, 0.3)):
        profile, run = gaussian(1.0 / mu), Run(steps=steps, sampling_rate=rate)
        step = describe_coarsely(profile, run)
        curve = UniformGridCurve([step], step.deviation / 32)
        below = curve.below
        assert len(curve.above) == len(below) == 2
        for eps in (0.0, 0.2, 1.0, 2.5):
            found = [order.delta(eps) for order in curve.above]
            most = max(x.value + x.error + order.infinity_mass for x, order in zip(found, curve.above, strict=True))
            least = max(x.value - x.error for x in (order.delta(eps) for order in below))
            assert curve.log_delta(eps).upper == math.log(min(max(most, 1e-300), 1.0))
            assert curve.log_delta_below(eps) == (math.log(least) if least > 0.0 else -math.inf)


@pytest.mark.parametrize(("noise", "steps", "rate", "log_delta"), [(0.550466, 40, 0.00281172463674272, -10.49)])
def test_lower_end_falls_back_to_coarser_grid(noise, steps, rate, log_delta):
    found = privproj.epsilon(
        Gaussian(noise_multiplier=noise), delta=math.exp(log_delta), steps=steps, sampling_rate=rate
    )
    assert 0.99 * found.value < found.lower <= found.value


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "log10_delta"),
    [(0.85, 1e-4, 1000, -9.0), (0.85, 1e-4, 30_000, -11.0), (0.6, 1e-5, 30_000, -9.0), (1.2, 1e-4, 1000, -11.0)],
)
def test_rare_large_losses_are_resolved(noise, rate, steps, log10_delta):
    # no tilt resolves both, so that a uniform grid is up to six times above the truth here
    found = privproj.epsilon(Gaussian(noise_multiplier=noise), log10_delta=log10_delta, steps=steps, sampling_rate=rate)
    assert found.lower < found.value < 1.02 * found.lower
    if log10_delta >= -9.0:  # further down dp-accounting's FFT is mostly rounding: negative deltas, optimistic epsilons
        peer = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
        above = peer.self_compose(steps).get_epsilon_for_delta(10.0**log10_delta)
        assert found.lower < above and found.value < 1.02 * above


@pytest.mark.parametrize("mechanism", [M1(dim=1000, rank=1000, noise_multiplier=0.8)])
def test_rare_large_losses_are_resolved_without_kernels(mechanism):
    # a uniform grid alone is 15 to 30 % above it
    found = privproj.epsilon(mechanism, delta=1e-10, steps=3803, sampling_rate=1.38e-5)
    assert found.lower < found.value < 1.02 * found.lower


@pytest.mark.parametrize(("steps", "delta"), [(2, 3.8e-8), (14, 3.8e-10)])
@pytest.mark.parametrize("mechanism", [M2(dim=2, rank=1, noise_multiplier=0.0475), Gaussian(noise_multiplier=0.0475)])
def test_slow_tails_are_enclosed(mechanism, steps, delta):
    # with knots further apart the lines below them fall to nothing: lower ends were a quarter of the value
    found = privproj.epsilon(mechanism, delta=delta, steps=steps, sampling_rate=2e-5, sampling="fixed")
    assert found.lower < found.value < 1.02 * found.lower


def test_lower_end_falls_back_to_repeated_squaring():
    """The uniform grid is coarser than the rate, so that it has no point between the least loss and 0."""
    mechanism = M2(dim=100, rank=10, noise_multiplier=0.1)
    found = privproj.epsilon(mechanism, delta=1e-5, steps=100, sampling_rate=0.001)
    assert "grid_step" in found.numerics and found.lower < found.value < 1.02 * found.lower


def test_losses_beyond_any_grid_cost_at_most_being_sampled():
    """The noise is so small that a batch reveals its records: delta is the probability of being in any batch."""
    run = {"steps": 1000, "sampling_rate": 1e-4}
    ever = -math.expm1(1000 * math.log1p(-1e-4))
    for eps in (0.0, 1.0, 100.0):
        assert ever <= privproj.delta(Gaussian(noise_multiplier=1e-3), epsilon=eps, **run).value <= ever * (1 + 1e-9)
    assert privproj.epsilon(Gaussian(noise_multiplier=1e-3), delta=0.1, **run).value == 0.0
    with pytest.raises(PrecisionError, match="exceeds 600"):
        privproj.epsilon(Gaussian(noise_multiplier=1e-3), delta=0.09, **run)
    with pytest.raises(PrecisionError, match="exceeds 600"):
        privproj.delta(Gaussian(noise_multiplier=1e-3), epsilon=1.0, steps=10, sampling_rate=1.0 - 1e-9)


@pytest.mark.full
def test_sigma_is_minimal_if_delta_covers_being_sampled():
    for delta, most in ((1e-3, 1e-12), (9e-4, math.inf)):
        found = privproj.sigma(Gaussian(), epsilon=0.1, delta=delta, steps=10, sampling_rate=1e-4)
        assert found.value <= most and (found.value > 0.1) == (delta < 9.99e-4)
        assert ("whole records" in " ".join(found.warnings)) == (most == 1e-12)
    at_risk = privproj.sigma(Gaussian(), advantage=0.5, steps=10, sampling_rate=1e-4)
    assert at_risk.value == 1e-12 and "whole records" in " ".join(at_risk.warnings)


@pytest.mark.parametrize(
    ("mechanism", "steps", "rate", "log10_delta"),
    [
        (M2(dim=8, rank=4, noise_multiplier=0.1), 10**6, 1e-6, -9),
    ],
)
def test_epsilon_near_infinite_losses_is_best_of_both_grids(mechanism, steps, rate, log10_delta):
    """In repeated squaring losses beyond 171 nats are infinite; uniform grids represent them."""
    run = {"steps": steps, "sampling_rate": rate}
    found, seen = privproj.epsilon(mechanism, log10_delta=log10_delta, **run).value, {}
    ways = composition_of(mechanism, None, run).curve().first
    for level, step in enumerate(ways.spacings):
        with suppress(PrecisionError):
            seen[step] = ways.level(level).epsilon(log10_delta * math.log(10.0)).upper
    atoms = next(upper for step, upper in seen.items() if step)
    assert found <= 1.001 * min(atoms, seen.get(0.0, atoms))


@pytest.mark.parametrize(
    ("dim", "rank", "misalignment", "steps", "delta"),
    [(25, 8, 1.038e-6, 10, 4e-3), (33, 5, 6.251e-10, 10, 1e-4), (12, 3, 1e-12, 5, 1e-6)],
)
def test_composed_wishart_encloses_simulated_loss(dim, rank, misalignment, steps, delta):
    """The loss is usually tiny, and rarely up to infinity: the default grid must resolve its bulk (C9, C23)."""
    found = privproj.epsilon(privproj.Wishart(dim=dim, rank=rank, misalignment=misalignment), delta=delta, steps=steps)
    rng, losses = np.random.default_rng(1), np.zeros(400_000)
    for _ in range(steps):
        # L = a ln A + U (1/A - 1), A = rho + sqrt(1 - rho^2) T / sqrt(r), infinite where A <= 0 (C9)
        tilt = math.sqrt(misalignment * (2.0 - misalignment) / rank)
        moved = tilt * rng.standard_t(rank, len(losses)) - misalignment
        scale, positive = rng.gamma(0.5 * (rank + dim - 1), size=len(losses)), moved > -1.0
        moved = np.where(positive, moved, 0.0)
        loss = 0.5 * (dim + 1 - rank) * np.log1p(moved) - scale * moved / (1.0 + moved)
        losses += np.where(positive, loss, np.inf)
    for eps, sign in ((found.upper, 1.0), (found.lower, -1.0)):
        excess = -np.expm1(np.minimum(eps - losses, 0.0))
        error = 4.0 * np.std(excess) / math.sqrt(len(losses))
        assert sign * (np.mean(excess) - delta) <= error
    assert 0.0 < found.lower <= found.upper <= 1.02 * found.lower


@pytest.mark.parametrize(
    ("dim", "rank", "misalignment", "steps", "log10_delta"),
    [(64, 6, 1e-5, 30, -9), (25, 8, 1.038e-6, 50, -14), (25, 3, 1e-15, 10, -9), (20, 3, 1e-12, 1000, -6)],
)
def test_composed_wishart_is_within_one_percent(dim, rank, misalignment, steps, log10_delta):
    wishart = privproj.Wishart(dim=dim, rank=rank, misalignment=misalignment)
    found = privproj.epsilon(wishart, log10_delta=log10_delta, steps=steps)
    assert 0.0 < found.lower <= found.upper <= 1.01 * found.lower


def test_failed_repeated_squaring_is_not_repeated(monkeypatch):
    tried = []

    def refuse(shapes):
        tried.append(shapes)
        raise GridSizeError("too much work")

    monkeypatch.setattr(grid, "RepeatedSquaringCurve", refuse)
    curve = grid.GridCurve([describe_coarsely(gaussian(1.0 / 0.85), Run(steps=30_000, sampling_rate=1e-4))])
    assert all(curve.log_delta(eps).upper < -20.0 for eps in (0.3, 0.4, 0.5))
    assert len(tried) == 1


def test_numerics_are_known_before_first_query():
    """A calibration may end with a curve without a query, and the first grid may exceed its limits."""
    target, run = 0.3019373158472418, {"steps": 2, "sampling_rate": 7.312412840202676e-08}
    found = privproj.sigma(Gaussian(), epsilon=target, delta=1.7439767147454356e-12, **run)
    again = privproj.epsilon(Gaussian(noise_multiplier=found.value), delta=1.7439767147454356e-12, **run)
    assert 0.99 * target < again.value <= target


@pytest.mark.parametrize("delta", [1.5e-12, 1.6e-12])
def test_loose_uniform_grid_gives_way_to_repeated_squaring(delta):
    """On every uniform grid, few large losses with many small ones give 18 times this epsilon."""
    sampled = ((0.525, 1e-5, 12), (1.14, 0.0018, 800))
    shapes = [describe_coarsely(gaussian(1.0 / z), Run(steps=steps, sampling_rate=rate)) for z, rate, steps in sampled]
    found = grid.GridCurve(shapes).epsilon(math.log(delta))
    assert found.upper <= found.lower * 1.01
