"""The composer: lower <= exact <= upper, at every size of delta and for every shape of run."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M2, Gaussian, Laplace
from privproj.bounds import find
from privproj.composition import dominating_pairs, doubling, fourier
from privproj.composition.compose import compose_on_grid, compose_phases
from privproj.curves import gaussian_arrays
from privproj.curves.profile import PrivacyProfile
from privproj.errors import GridLimit
from privproj.numerics import kernels
from privproj.numerics.enclosure import Enclosure
from privproj.numerics.search import crossing
from privproj.runs import Run

DP_SGD = ((1.0, 0.01, 1000), (0.6, 0.001, 10**5), (2.0, 0.05, 10**6))


def gaussian(z):
    return find(Gaussian, "analytic").representation(Gaussian(noise_multiplier=z))


def epsilon_of_unit_gaussian(log_delta):
    return crossing(lambda e: kernels.log_gaussian_delta(e, 1.0) - log_delta, 1.0, low=1e-9, high=100.0).upper


def profile_values(pair, eps):
    losses = pair.step * pair.cells
    return pair.at_infinity + float(pair.masses @ np.maximum(-np.expm1(eps - losses), 0.0))


# --- exact values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 100, 10**4, 10**6])
def test_composed_gaussian_is_enclosed_from_a_half_to_1e_30(steps):
    curve = compose_on_grid([(gaussian(math.sqrt(steps)), Run(steps=steps))])
    for log_delta in np.linspace(math.log(0.38), math.log(1e-30), 200):
        eps = epsilon_of_unit_gaussian(float(log_delta))
        exact = kernels.log_gaussian_delta(eps, 1.0)
        lower, upper = curve.log_delta(eps)
        assert lower <= exact <= upper
        if log_delta > math.log(1e-12):
            assert 1.0 - math.exp(lower - upper) < 1e-3


@pytest.mark.parametrize("steps", [1, 100, 10**4])
def test_epsilon_is_the_inverse(steps):
    curve = compose_on_grid([(gaussian(math.sqrt(steps)), Run(steps=steps))])
    for log10_delta in (-1, -3, -8, -20, -29):
        low, high = curve.epsilon(log10_delta * math.log(10.0))
        exact = epsilon_of_unit_gaussian(log10_delta * math.log(10.0))
        assert low <= exact <= high <= low * (1 + 1e-3)
        assert curve.log_delta(high).upper <= log10_delta * math.log(10.0) + 1e-12


def mixture(share, mu1, mu2):
    """With probability ``share`` the release has the shift ``mu1``, else ``mu2``; which one is told."""

    def table(eps):
        (low1, high1), (low2, high2) = (gaussian_arrays.gaussian_ends(eps, mu) for mu in (mu1, mu2))
        return share * low1 + (1 - share) * low2, share * high1 + (1 - share) * high2

    def log_delta(eps):
        return Enclosure(*(math.log(max(x[0], 1e-300)) for x in table(np.array([eps]))))

    return PrivacyProfile(log_delta, table=table, resolution=256.0)


def binomial_formula(eps, share, mu1, mu2, steps):
    """The exact profile of ``steps`` releases: a binomial mixture of Gaussian profiles, at 30 digits."""
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
        assert lower <= kernels.log_gaussian_delta(eps, mu) <= upper
        assert 1.0 - math.exp(lower - upper) < 3e-3


def test_phases_of_different_sampling_agree_with_dp_accounting():
    phases = [(gaussian(0.8), Run(steps=300, sampling_rate=0.01)), (gaussian(5.0), Run(steps=20))]
    ours = compose_phases(phases, 1e-3)
    theirs = compose_phases(phases, 1e-3, "dp-accounting")
    log_delta = math.log(1e-6)
    assert ours.epsilon(log_delta).upper == pytest.approx(theirs.epsilon(log_delta).upper, rel=1e-6, abs=0)


# --- against the peers ------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "peers"), [(0, (1.8280, 1.8289)), (1, (6.10, 6.137)), (2, (462.65, 462.77))])
def test_dp_sgd_runs_lie_where_the_peers_say(case, peers):
    z, rate, steps = DP_SGD[case]
    result = privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-5, steps=steps, sampling_rate=rate)
    assert peers[0] <= result.lower <= result.value <= peers[1]
    assert result.value - result.lower < 0.005 + 5e-5 * result.value


@settings(max_examples=15, deadline=None)
@given(
    z=st.floats(0.4, 5.0),
    rate=st.floats(-3, -0.01).map(lambda x: 10.0**x),
    steps=st.integers(2, 3000),
    log10_delta=st.floats(-8, -2),
)
def test_finer_grids_stay_inside_and_dp_accounting_agrees(z, rate, steps, log10_delta):
    run = {"delta": 10.0**log10_delta, "steps": steps, "sampling_rate": rate}
    mechanism = Gaussian(noise_multiplier=z)
    fine = privproj.epsilon(mechanism, **run)
    grid = 8.0 * float(fine.numerics.get("grid_step", 2e-4))
    coarse = privproj.epsilon(mechanism, discretization=min(grid, 1.0), **run)
    assert fine.value <= coarse.value * (1 + 1e-3) + 1e-9
    assert (coarse.lower or 0.0) <= fine.value
    assert (fine.lower or 0.0) <= coarse.value
    if coarse.value > 600.0:
        return  # the peer's e^-loss underflows
    peer = privproj.epsilon(mechanism, discretization=min(grid, 1.0), composer="dp-accounting", **run)
    assert peer.value == pytest.approx(coarse.value, rel=1e-5, abs=1e-6)


# --- the pairs --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    z=st.floats(-1, 3).map(lambda x: 10.0**x),
    rate=st.floats(-5, 0).map(lambda x: 10.0**x),
    sampling=st.sampled_from(["poisson", "fixed"]),
    coarse=st.integers(0, 5),
)
def test_pairs_bracket_the_sampled_profile_between_the_knots_too(z, rate, sampling, coarse):
    profile, run = gaussian(z), Run(steps=100, sampling_rate=rate, sampling=sampling)
    shape = dominating_pairs.outline(profile, run)
    step = shape.deviation / 256.0 * 4.0**coarse
    above, below = dominating_pairs.pairs(profile, run, shape, step)
    for place in (0.0, 0.1234, 0.5, 1.71, 3.3, 6.1):
        loss = place * shape.deviation
        exact = math.log(rate) + kernels.log_gaussian_delta(math.log1p(math.expm1(loss) / rate), 1 / z)
        if exact > -75.0:
            assert math.log(profile_values(above, loss)) >= exact - 1e-12
            if below is not None:
                assert math.log(max(profile_values(below, loss), 1e-300)) <= exact + 1e-12
    add = above.mirrored()
    assert add.mirrored().masses == pytest.approx(above.masses, rel=1e-9, abs=0)
    assert above.masses.sum() + above.at_infinity == pytest.approx(1.0, rel=1e-9, abs=0)
    assert add.masses.sum() + add.at_infinity == pytest.approx(1.0, rel=1e-9, abs=0)


def test_the_add_order_is_the_theorem_for_one_step():
    """``(1 - (1-q) e^eps) delta_0(ln q + eps - ln(1 - (1-q) e^eps))`` below ``-ln(1-q)``, else 0 (Balle et al.)."""
    q, z = 0.3, 1.0
    profile, run = gaussian(z), Run(steps=1, sampling_rate=q)
    shape = dominating_pairs.outline(profile, run)
    above = dominating_pairs.pairs(profile, run, shape, shape.deviation / 256)[0].mirrored()
    for eps in (0.0, 0.05, 0.2, 0.3):
        rest = 1.0 - (1.0 - q) * math.exp(eps)
        exact = rest * math.exp(privproj_delta(profile, math.log(q) + eps - math.log(rest)))
        assert exact <= profile_values(above, eps) <= exact * (1 + 1e-3)
    assert profile_values(above, -math.log1p(-q) + 2 * above.step) == 0.0


def privproj_delta(profile, eps):
    return profile.log_delta_anywhere(eps).upper


def test_a_bound_that_is_not_convex_is_replaced_by_its_hull():
    bumpy = PrivacyProfile(
        lambda e: Enclosure(-math.inf, min(0.0, kernels.log_gaussian_delta(e, 1.0) + 0.5 * (1 + math.sin(9 * e))))
    )
    run = Run(steps=3, sampling_rate=0.1)
    shape = dominating_pairs.outline(bumpy, run)
    above, below = dominating_pairs.pairs(bumpy, run, shape, shape.deviation / 12)
    assert below is None
    values = [profile_values(above, e) for e in np.linspace(0, 3, 40)]
    assert all(x >= y for x, y in pairwise(values))


# --- sparse and full spectra, limits ------------------------------------------------------------------


def test_sparse_and_full_spectra_agree_within_their_errors(monkeypatch):
    run = Run(steps=400, sampling_rate=0.02)
    profile = gaussian(1.0)
    shape = dominating_pairs.outline(profile, run)
    pair = dominating_pairs.pairs(profile, run, shape, shape.deviation / 64)[0]
    sparse = fourier.Composition([(pair, run.steps)])
    theta = sparse.tilt_for_delta(math.log(1e-6))
    assert len(sparse.tilted(theta).frequencies) < 2000
    monkeypatch.setattr(fourier.Tilted, "wanted", lambda self: None)
    full = fourier.Composition([(pair, run.steps)])
    assert len(full.tilted(theta).frequencies) > 2000 or full.tilted(theta).length > 2**14
    for eps in (0.5, 1.0, 1.5, 2.0):
        one, two = sparse.tilted(theta).delta(eps), full.tilted(theta).delta(eps)
        assert abs(one.value - two.value) <= one.error + two.error
        assert one.error < 1e-6 * one.value


def test_any_tilt_gives_a_sound_answer():
    profile, run = gaussian(10.0), Run(steps=100)
    shape = dominating_pairs.outline(profile, run)
    pair = dominating_pairs.pairs(profile, run, shape, shape.deviation / 64)[0]
    whole = fourier.Composition([(pair, 100)])
    best = whole.delta(2.0)
    for theta in (0.01, 0.5, 2.0, 6.0, 20.0):
        found = whole.tilted(theta).delta(2.0)
        assert abs(found.value - best.value) <= found.error + best.error


def test_convolution_without_fourier_agrees():
    profile, run = gaussian(1.5), Run(steps=4, sampling_rate=0.2)
    shape = dominating_pairs.outline(profile, run)
    pair = dominating_pairs.pairs(profile, run, shape, 0.02)[0]
    dense = np.zeros(int(pair.cells[-1] - pair.cells[0]) + 1)
    dense[pair.cells - pair.cells[0]] = pair.masses
    law = dense
    for _ in range(3):
        law = np.convolve(law, dense)
    losses = pair.step * (4 * pair.cells[0] + np.arange(len(law)))
    whole = fourier.Composition([(pair, 4)])
    for eps in (0.0, 0.31, 1.0, 4.0, 8.0):
        direct = float(law[losses > eps] @ -np.expm1(eps - losses[losses > eps]))
        found = whole.delta(eps)
        assert abs(found.value - direct) <= found.error + 1e-12 * direct


def test_too_fine_a_grid_is_refused_before_memory_is_taken():
    with pytest.raises(GridLimit, match="larger discretization"):
        privproj.epsilon(Gaussian(noise_multiplier=5.0), delta=1e-5, steps=30, sampling_rate=0.9, discretization=1e-7)


@pytest.mark.parametrize(
    ("z", "rate", "steps"), [(0.6, 1e-4, 100), (0.3, 1e-6, 1000), (1e6, 1e-9, 10**9), (1.0, 0.01, 10**9)]
)
def test_extreme_runs_are_answered_soundly(z, rate, steps):
    run = {"steps": steps, "sampling_rate": rate}
    result = privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-6, **run)
    assert (result.lower or 0.0) <= result.value
    assert result.value <= privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-6, bound="rdp", **run).value


def test_the_default_composer_and_the_alternative_are_named():
    mechanism = M2(dim=2048, rank=16, noise_multiplier=0.155974)
    run = {"delta": 1e-5, "steps": 2000, "sampling_rate": 0.01}
    ours = privproj.epsilon(mechanism, **run)
    peer = privproj.epsilon(mechanism, composer="dp-accounting", **run)
    assert (ours.numerics["composer"], peer.numerics["composer"]) == ("privproj", "dp-accounting")
    assert peer.value == pytest.approx(ours.value, rel=2e-3, abs=0)
    with pytest.raises(privproj.InvalidParameter, match="composer"):
        privproj.epsilon(mechanism, composer="other", **run)


def test_a_kink_that_rounds_below_its_place_ends_the_hull():
    """A step for which lowering the excess at 1 gives the same float again and again."""
    closed = find(Gaussian, "analytic").representation(Gaussian(noise_multiplier=0.5817958562471157))
    found = compose_on_grid(
        [(closed, Run(steps=6, discretization=0.00013263950792452898))], 0.00013263950792452898
    ).epsilon(-11.5)
    exact = closed.closed_form(6).epsilon(-11.5)
    assert found.lower <= exact.upper and exact.lower <= found.upper


# --- losses of many scales ----------------------------------------------------------------------------


def merged(law, scale):
    """Atoms with neighbouring ratios made one: a garbled law, which shows less; written without the package."""
    seen = (law[0] > 1e-30) & (law[1] > 1e-30)
    p, q = law[0][seen], law[1][seen]
    group = np.floor(np.arcsinh(np.log(p / q) / scale) * 20.0).astype(int)
    group -= group.min()
    p, q = np.bincount(group, p), np.bincount(group, q)
    return p[p > 0.0], q[p > 0.0]


def garbled_run(z, rate, steps):
    """Less than the truth, by a little: the exact masses of 3000 bins, squared and merged."""
    edges = np.concatenate([[-np.inf], np.linspace(-8.0, 8.0 + 1.0 / z, 3000), [np.inf]])
    cdf = [np.array([0.5 * math.erfc((m - x) / math.sqrt(2.0)) for x in edges]) for m in (0.0, 1.0 / z)]
    q, p = (np.diff(c) for c in cdf)
    seen = (q > 1e-15) & (p > 0.0)
    q, p = q[seen], p[seen]
    base = whole = merged(((1.0 - rate) * q + rate * p, q), 0.1 * rate)
    for bit in bin(steps)[3:]:
        for other in [whole, base] if bit == "1" else [whole]:
            product = (np.outer(one, two).ravel() for one, two in zip(whole, other, strict=True))
            whole = merged(tuple(product), 0.1 * rate)
    return whole


def garbled_delta(law, eps):
    p, q = law
    t = math.exp(eps)
    return max(float(np.maximum(p - t * q, 0.0).sum()), float(np.maximum(q - t * p, 0.0).sum()))


MANY_SCALES = [
    (10.0 ** (-0.6 + 0.11 * (i % 8)), 10.0 ** (-6.0 + 0.45 * (i % 9)), (2, 3, 5, 12, 30)[i % 5]) for i in range(20)
]


@pytest.mark.parametrize(("z", "rate", "steps"), MANY_SCALES)
def test_rare_losses_are_never_below_the_truth_nor_far_above(z, rate, steps):
    law = garbled_run(z, rate, steps)
    top = garbled_delta(law, 0.0)
    for share in (0.5, 1e-2):
        delta = max(top * share, 1e-10)
        result = privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, steps=steps, sampling_rate=rate)
        assert garbled_delta(law, result.value) <= delta * (1.0 + 1e-6)
        assert (result.lower or 0.0) <= result.value
        close = garbled_delta(law, result.value) >= 0.97 * delta or garbled_delta(law, 0.96 * result.value) > delta
        assert close or delta > top


@pytest.mark.parametrize("z", [0.4, 1.0])
@pytest.mark.parametrize(("rate", "steps"), [(1e-8, 2), (1e-5, 10), (1e-2, 300), (1.0, 10)])
def test_no_answer_is_above_a_simple_bound(z, rate, steps):
    """Basic composition of equal shares, and the probability of ever being sampled."""
    run = {"steps": steps, "sampling_rate": rate}
    for mechanism in (Laplace(noise_multiplier=z), Gaussian(noise_multiplier=z)):
        for eps in (0.0, 1e-6, 0.1, 3.0, 20.0):
            found = privproj.delta(mechanism, epsilon=eps, **run).value
            one = privproj.delta(mechanism, epsilon=eps / steps, sampling_rate=rate).value
            ever = -math.expm1(steps * math.log1p(-rate)) if rate < 1.0 else 1.0
            assert found <= min(steps * one, ever) * (1.0 + 1e-9) + 1e-299
        for delta in (1e-9, 1e-6, 1e-3):
            found = privproj.epsilon(mechanism, delta=delta, **run).value
            one = privproj.epsilon(mechanism, delta=delta / steps, sampling_rate=rate).value
            assert found <= steps * one * (1.0 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    losses=st.lists(st.floats(-4.0, 4.0), min_size=1, max_size=6),
    points=st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=8),
)
def test_moved_atoms_show_more_and_merged_ones_less(losses, points):
    """For every grid, in both orders: the law that the proof rests on."""
    unit = 2.0**-40
    losses, points = (np.unique(np.rint(np.array(x) / unit)) * unit for x in (losses, points))
    law = doubling.Law(losses, np.full(len(losses), 1.0 / len(losses)), 0.0, 0.0, unit)
    placed, merge = doubling.placed(law, points, unit), doubling.merged(law, points, unit)
    for eps in np.linspace(-5.0, 5.0, 21):
        for one, two in ((law, placed), (law.mirrored(), placed.mirrored())):
            assert whole_delta(two, eps) >= whole_delta(one, eps) * (1.0 - 1e-12)
        assert whole_delta(merge, eps) <= whole_delta(law, eps) * (1.0 + 1e-12) + 1e-15


def whole_delta(law, eps):
    return law.at_infinity + float(law.masses @ np.maximum(-np.expm1(eps - law.losses), 0.0))
