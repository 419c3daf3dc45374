"""Composition: lower <= exact <= upper, for every size of delta and every kind of run."""

import math

import mpmath
import numpy as np
import pytest
from helpers import eps_of, gaussian, m2
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import Gaussian, Laplace
from privproj.composition.compose import compose_on_grid, compose_phases
from privproj.errors import PrecisionError
from privproj.mechanisms.registry import find_bound
from privproj.numerics.interval import Enclosure
from privproj.numerics.root_finding import find_crossing
from privproj.profiles.gaussian import gaussian_ends, log_gaussian_delta
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.run import Run

DP_SGD = ((1.0, 0.01, 1000), (0.6, 0.001, 10**5), (2.0, 0.05, 10**6))


def epsilon_of_unit_gaussian(log_delta):
    return find_crossing(lambda e: log_gaussian_delta(e, 1.0) - log_delta, 1.0, low=1e-9, high=100.0).upper


@pytest.mark.parametrize("steps", [1, 100, 10**4, 10**6])
def test_composed_gaussian_is_enclosed_from_half_to_1e_30(steps):
    curve = compose_on_grid([(gaussian(math.sqrt(steps)), Run(steps=steps))])
    for log_delta in np.linspace(math.log(0.38), math.log(1e-30), 200):
        eps = epsilon_of_unit_gaussian(float(log_delta))
        exact = log_gaussian_delta(eps, 1.0)
        lower, upper = curve.log_delta(eps)
        assert lower <= exact <= upper
        if log_delta > math.log(1e-12):
            assert 1.0 - math.exp(lower - upper) < 1e-3


@pytest.mark.parametrize("steps", [1, 100, 10**4])
def test_epsilon_is_inverse_of_log_delta(steps):
    curve = compose_on_grid([(gaussian(math.sqrt(steps)), Run(steps=steps))])
    for log10_delta in (-1, -3, -8, -20, -29):
        low, high = curve.epsilon(log10_delta * math.log(10.0))
        exact = epsilon_of_unit_gaussian(log10_delta * math.log(10.0))
        assert low <= exact <= high <= low * (1 + 1e-3)
        assert curve.log_delta(high).upper <= log10_delta * math.log(10.0) + 1e-12


def mixture(share, mu1, mu2):
    """Return the profile of a release that reveals its shift, ``mu1`` with probability ``share``, else ``mu2``."""

    def table(eps):
        (low1, high1), (low2, high2) = (gaussian_ends(eps, mu) for mu in (mu1, mu2))
        return share * low1 + (1 - share) * low2, share * high1 + (1 - share) * high2

    def log_delta(eps):
        return Enclosure(*(math.log(max(x[0], 1e-300)) for x in table(np.array([eps]))))

    return PrivacyProfile(log_delta, table=table, resolution=256.0)


def binomial_formula(eps, share, mu1, mu2, steps):
    """Return the exact profile of ``steps`` releases: a binomial mixture of Gaussian profiles, to 30 digits."""
    with mpmath.workdps(30):
        total = mpmath.mpf(0)
        for count in range(steps + 1):
            weight = (
                mpmath.binomial(steps, count) * mpmath.mpf(share) ** count * mpmath.mpf(1 - share) ** (steps - count)
            )
            mu = mpmath.sqrt(count * mpmath.mpf(mu1) ** 2 + (steps - count) * mpmath.mpf(mu2) ** 2)
            total += weight * (mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu))
        return float(mpmath.log(total))


@pytest.mark.parametrize(
    ("share", "mu1", "mu2", "steps"), [(0.25, 1.0, 0.3, 1), (0.1, 0.5, 0.05, 100), (0.5, 0.2, 0.1, 300)]
)
def test_two_atom_mixtures_are_enclosed(share, mu1, mu2, steps):
    curve = compose_on_grid([(mixture(share, mu1, mu2), Run(steps=steps))])
    for eps in (0.0, 0.1, 0.7, 2.0, 5.0, 9.0, 14.0):
        lower, upper = curve.log_delta(eps)
        exact = binomial_formula(eps, share, mu1, mu2, steps)
        assert lower <= exact <= upper or exact < math.log(1e-33)
        if exact > math.log(1e-12):
            assert 1.0 - math.exp(lower - upper) < 1e-3


def test_phases_of_different_noise_are_enclosed():
    phases = [(gaussian(20.0), Run(steps=100)), (gaussian(40.0), Run(steps=300)), (gaussian(3.0), Run(steps=1))]
    curve = compose_phases(phases)
    mu = math.sqrt(100 / 20**2 + 300 / 40**2 + 1 / 9)
    for eps in (0.0, 0.3, 1.0, 3.0, 6.0):
        lower, upper = curve.log_delta(eps)
        assert lower <= log_gaussian_delta(eps, mu) <= upper
        assert 1.0 - math.exp(lower - upper) < 3e-3


@pytest.mark.parametrize(("case", "peers"), [(0, (1.8280, 1.8289)), (1, (6.10, 6.137)), (2, (462.65, 462.77))])
def test_dp_sgd_epsilon_agrees_with_other_accountants(case, peers):
    z, rate, steps = DP_SGD[case]
    result = privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-5, steps=steps, sampling_rate=rate)
    assert peers[0] <= result.lower <= result.value <= peers[1]
    assert result.value - result.lower < 0.005 + 5e-5 * result.value


@pytest.mark.full
@settings(max_examples=15, deadline=None)
@given(
    z=st.floats(0.4, 5.0),
    rate=st.floats(-3, -0.01).map(lambda x: 10.0**x),
    steps=st.integers(2, 3000),
    log10_delta=st.floats(-8, -2),
)
def test_finer_grids_stay_inside(z, rate, steps, log10_delta):
    run = {"delta": 10.0**log10_delta, "steps": steps, "sampling_rate": rate}
    mechanism = Gaussian(noise_multiplier=z)
    fine = privproj.epsilon(mechanism, **run)
    grid = 8.0 * float(fine.numerics.get("grid_step", 2e-4))
    coarse = privproj.epsilon(mechanism, discretization=min(grid, 1.0), **run)
    assert fine.value <= coarse.value * (1 + 1e-3) + 1e-9
    assert (coarse.lower or 0.0) <= fine.value
    assert (fine.lower or 0.0) <= coarse.value


@pytest.mark.parametrize(
    ("z", "rate", "steps"), [(0.6, 1e-4, 100), (0.3, 1e-6, 1000), (1e6, 1e-9, 10**9), (1.0, 0.01, 10**9)]
)
def test_extreme_runs_are_sound(z, rate, steps):
    run = {"steps": steps, "sampling_rate": rate}
    result = privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-6, **run)
    assert (result.lower or 0.0) <= result.value
    assert result.value <= privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-6, bound="rdp", **run).value


SEVERAL_RUNS = [(1e-8, 2), (1e-5, 10), (1e-2, 300), (1.0, 10)]
COSTLY_RUNS = [pytest.param(rate, steps, 20.0, marks=pytest.mark.slow) for rate, steps in SEVERAL_RUNS]


@pytest.mark.full
@pytest.mark.parametrize("z", [0.4, 1.0])
@pytest.mark.parametrize(
    ("rate", "steps", "largest"),
    [*((*run, 3.0) for run in SEVERAL_RUNS), *COSTLY_RUNS],
)
def test_epsilon_is_at_most_simple_bounds(z, rate, steps, largest):
    """Simple bounds: basic composition of equal shares, and the probability of ever being sampled."""
    run = {"steps": steps, "sampling_rate": rate}
    for mechanism in (Laplace(noise_multiplier=z), Gaussian(noise_multiplier=z)):
        for eps in (0.0, 1e-6, 0.1, largest):
            found = privproj.delta(mechanism, epsilon=eps, **run).value
            one = privproj.delta(mechanism, epsilon=eps / steps, sampling_rate=rate).value
            ever = -math.expm1(steps * math.log1p(-rate)) if rate < 1.0 else 1.0
            assert found <= min(steps * one, ever) * (1.0 + 1e-9) + 1e-299
        for delta in (1e-9, 1e-6, 1e-3):
            found = privproj.epsilon(mechanism, delta=delta, **run).value
            one = privproj.epsilon(mechanism, delta=delta / steps, sampling_rate=rate).value
            assert found <= steps * one * (1.0 + 1e-9)


@settings(max_examples=12, deadline=None)
@given(steps=st.integers(2, 5000), log10_delta=st.floats(-9, -2), mu=st.floats(0.3, 3))
def test_composed_gaussian_is_never_below_closed_form(steps, log10_delta, mu):
    z, delta = math.sqrt(steps) / mu, 10**log10_delta
    exact = privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, steps=steps).value
    run = Run(steps=steps)
    ours = compose_on_grid(
        [(find_bound(Gaussian, "analytic").representation(Gaussian(noise_multiplier=z)), run)],
        run.discretization,
    )
    value = ours.epsilon(math.log(delta)).upper
    assert exact * (1 - 1e-12) <= value
    assert value <= exact * 1.01 + 1e-6
    assert ours.log_delta(value).upper == pytest.approx(math.log(delta), rel=0, abs=1e-6)


def test_two_phases_compose_jointly():
    form = find_bound(Gaussian, "analytic").representation
    strong, weak = (form(Gaussian(noise_multiplier=z)) for z in (20.0, 40.0))
    joint = compose_phases([(strong, Run(steps=100)), (weak, Run(steps=300))])
    mu = math.sqrt(100 / 20**2 + 300 / 40**2)
    exact = privproj.epsilon(Gaussian(noise_multiplier=1 / mu), delta=1e-5).value
    assert exact <= joint.epsilon(math.log(1e-5)).upper <= exact * 1.005


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_one_subsampled_step_equals_amplification(sampling):
    q, z = 0.05, 0.7
    profile = find_bound(Gaussian, "analytic").representation(Gaussian(noise_multiplier=z))
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


def test_simulated_subsampled_run_stays_below_bound():
    """One-dimensional Gaussian run under Poisson sampling, with simulated losses in both directions."""
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


def test_excessive_losses_and_grids_raise_precision_limit():
    for run, z in (
        ({"steps": 2, "sampling_rate": 0.5}, 1e-3),
        ({"steps": 3, "sampling_rate": 0.9, "discretization": 1e-12}, 1.0),
    ):
        with pytest.raises(PrecisionError) as caught:
            privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-5, **run)
        assert caught.value.result.outcome == "precision_limit"


def test_absurd_runs_are_sound_or_raise_before_allocation():
    run = {"steps": 10**12, "sampling_rate": 0.01}
    try:
        assert eps_of(m2(1.0), **run) < eps_of(m2(1.0), "mixture-rdp", **run)
    except PrecisionError:
        assert privproj.epsilon(m2(1.0), delta=1e-5, bound="mixture-rdp", **run).usable
