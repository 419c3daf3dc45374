"""Balls-in-bins against independent references: mpmath, and exact likelihood ratios of simulated epochs."""

import math
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from epoch_values import TRUTH
from helpers import full_if, gaussian
from reference.allocation import gaussian_epoch_delta

import privproj
from privproj import M2, Gaussian
from privproj.composition.balls_in_bins import allocate
from privproj.reference.special import gaussian_delta
from privproj.run import Run

M2_OF_TWO = (("exact-rank1", 0.3, 0.3, 0.00909452782625, 0.0084207964812),)
"""``bound, z, eps, remove, add``: M2 (2048, 16), two batches, by the same from its profile in mpmath, 8 digits."""


def ask(quantity, mechanism, batches, epochs=1, **target):
    return getattr(privproj, quantity)(mechanism, sampling="balls-in-bins", batches=batches, steps=epochs, **target)


def epsilon(z, batches, delta, epochs=1, **run):
    return ask("epsilon", Gaussian(noise_multiplier=z), batches, epochs, delta=delta, **run)


def assert_encloses(result, truth, looseness=1e-2):
    assert result.lower is None or result.lower <= truth
    assert truth <= result.value <= truth * (1 + looseness)


WITH_FULL = full_if(TRUTH, lambda row: row[1] >= 100)
"""Return the same cases, with the larger numbers of batches in the full run."""


@pytest.mark.parametrize(("z", "batches", "eps", "remove", "add"), WITH_FULL)
def test_delta_and_epsilon_enclose_truth(z, batches, eps, remove, add):
    truth = max(remove, add)
    found = ask("delta", Gaussian(noise_multiplier=z), batches, epsilon=eps)
    assert found.lower * (1 - 1e-12) <= truth <= found.value * (1 + 1e-12)
    back = epsilon(z, batches, truth)
    assert back.lower * (1 - 1e-9) <= eps <= back.value * (1 + 1e-9)
    assert back.value <= eps * (1 + 1e-2)
    assert back.value - back.lower <= (1e-2 if truth > 1e-9 else 2e-2) * back.value


@pytest.mark.parametrize(("z", "batches", "eps", "remove", "add"), WITH_FULL)
def test_each_direction_is_enclosed(z, batches, eps, remove, add):
    ((profile, _),) = allocate(gaussian(z), Run(sampling="balls-in-bins", batches=batches))
    (low_remove, low_add), (high_remove, high_add) = profile.excess(np.array([eps, -eps]))
    assert low_remove <= remove <= high_remove
    # H_s(Q^t || Pbar) = s E (1/s - S/t)_+
    assert low_add * math.exp(eps) <= add <= high_add * math.exp(eps)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_epochs_are_enclosed_in_both_directions(seed):
    rng = np.random.default_rng(seed)
    z, batches, delta = 10 ** rng.uniform(-0.5, 1.5), int(10 ** rng.uniform(0.8, 5)), 10 ** -rng.uniform(1, 12)
    eps = max(epsilon(z, batches, delta).value, 1e-3) * rng.uniform(0.9, 1.1)
    with mp.workdps(12):
        remove, add = (float(gaussian_epoch_delta(eps, z, batches, order)) for order in ("remove", "add"))
    test_each_direction_is_enclosed(z, batches, eps, remove, add)


@pytest.mark.slow
@pytest.mark.parametrize(("z", "batches", "eps", "remove", "add"), TRUTH)
def test_reference_delta_agrees_with_mpmath(z, batches, eps, remove, add):
    with mp.workdps(14):
        for order, stored in (("remove", remove), ("add", add)):
            assert float(gaussian_epoch_delta(eps, z, batches, order)) == pytest.approx(stored, rel=1e-12)


@pytest.mark.parametrize(("z", "delta"), [(1.0, 1e-6), (0.3, 1e-30), (50.0, 1e-9)])
def test_one_batch_equals_single_release(z, delta):
    once, single = epsilon(z, 1, delta), privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta)
    assert (once.value, once.lower) == (single.value, single.lower)
    with mp.workdps(30):
        assert delta == pytest.approx(float(gaussian_delta(once.value, 1 / mp.mpf(z))), rel=1e-9)
    several = epsilon(z, 1, delta, 7)
    assert several.value == privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, steps=7).value


# --- simulation of the program itself ------------------------------------------------------------------


def epoch_losses(rng, count, draw_shift, batches, present):
    """Return ``ln (1/t) sum_i dP/dQ(x_i)`` of simulated epochs: noise, and a record in a random batch."""
    shift = draw_shift(rng, (count, batches))
    x = rng.standard_normal((count, batches))
    if present:
        rows = np.arange(count), rng.integers(batches, size=count)
        x[rows] += shift[rows]
    return np.log(np.exp(shift * x - 0.5 * shift**2).mean(axis=1))


def simulated_deltas(rng, count, draw_shift, batches, epochs, eps):
    """Return ``(delta, its standard error)`` in both directions, from log likelihood ratios summed over epochs."""
    found = []
    for sign, present in ((1.0, True), (-1.0, False)):
        losses = sum(epoch_losses(rng, count, draw_shift, batches, present) for _ in range(epochs))
        gain = np.maximum(0.0, -np.expm1(eps - sign * losses))
        found.append((gain.mean(), gain.std() / math.sqrt(count)))
    return found


def constant(z):
    return lambda rng, size: np.full(size, 1.0 / z)


def captured(dim, rank, z):
    """Return shifts of a rank-one difference under M2: ``mu sqrt(B)``, fresh ``B ~ Beta(r/2, (d-r)/2)``."""
    return lambda rng, size: np.sqrt(rng.beta(0.5 * rank, 0.5 * (dim - rank), size)) / z


def assert_agrees(result, simulated, looseness=2e-2):
    """Check that both directions are at most delta and the larger one is near it, up to five standard errors."""
    for delta, error in simulated:
        assert delta - 5.0 * error <= result.value
    delta, error = max(simulated)
    assert result.lower is None or result.lower <= delta + 5.0 * error
    assert result.value <= (delta + 5.0 * error) * (1 + looseness)


RUNS = [(1.0, 2, 1, 0.4), (1.0, 2, 3, 1.0), (0.7, 3, 4, 2.0), (2.0, 3, 10, 0.8), (1.0, 30, 5, 0.5), (0.5, 1000, 1, 0.6)]


@pytest.mark.parametrize(("z", "batches", "epochs", "eps"), full_if(RUNS, lambda row: row[:3] != (1.0, 2, 3)))
def test_simulated_runs_agree(z, batches, epochs, eps):
    count = min(400_000, 10_000_000 // (batches * epochs))
    simulated = simulated_deltas(np.random.default_rng(11), count, constant(z), batches, epochs, eps)
    assert_agrees(ask("delta", Gaussian(noise_multiplier=z), batches, epochs, epsilon=eps), simulated)


@pytest.mark.full
@pytest.mark.parametrize(("z", "batches", "epochs", "eps"), [(0.5, 2, 1, 0.2), (0.4, 3, 3, 0.5), (0.3, 20, 4, 0.3)])
def test_simulated_runs_of_m2_agree(z, batches, epochs, eps):
    simulated = simulated_deltas(np.random.default_rng(12), 200_000, captured(200, 10, z), batches, epochs, eps)
    mechanism = M2(dim=200, rank=10, noise_multiplier=z)
    assert_agrees(ask("delta", mechanism, batches, epochs, epsilon=eps, bound="exact-rank1"), simulated)
    free = ask("delta", mechanism, batches, epochs, epsilon=eps)
    assert all(delta - 5.0 * error <= free.value for delta, error in simulated)


def test_comparison_detects_understated_delta():
    simulated = simulated_deltas(np.random.default_rng(13), 400_000, constant(1.0), 2, 1, 0.4)
    found = ask("delta", Gaussian(noise_multiplier=1.05), 2, epsilon=0.4)
    with pytest.raises(AssertionError):
        assert_agrees(found, simulated)


@pytest.mark.full
@pytest.mark.parametrize(("bound", "z", "eps", "remove", "add"), M2_OF_TWO)
def test_two_batches_of_m2(bound, z, eps, remove, add):
    mechanism = M2(dim=2048, rank=16, noise_multiplier=z)
    assert_encloses(ask("delta", mechanism, 2, epsilon=eps, bound=bound), max(remove, add))
    found = ask("epsilon", mechanism, 2, delta=max(remove, add), bound=bound)
    assert found.lower is None or found.lower <= eps
    assert eps <= found.value <= eps * (1 + 1e-2)


def two_batches_of_any_profile(profile, eps):
    """``H(Pbar || Q^2) = g(2 s) + int_0^s G(w) G(2 s - w) dw``, ``G = -g' = Q(W > w)``: by Gauss-Legendre."""

    def tail(w, h=1e-3):
        # -g'(w) by differences of fourth order, on one side of the corner that a bound may have at w = 1
        h = min(h, 0.25 * abs(w - 1.0), 0.1 * w)
        return (8 * (profile(w - h / 2) - profile(w + h / 2)) - (profile(w - h) - profile(w + h))) / (6 * h)

    s, nodes, total = math.exp(eps), np.polynomial.legendre.leggauss(20), 0.0
    cuts = sorted({0.0, s, *(c for c in (1.0, 2 * s - 1) if 0 < c < s)})
    for left, right in pairwise(cuts):
        for x, weight in zip(*nodes, strict=True):
            w = 0.5 * (left + right) + 0.5 * (right - left) * x
            total += 0.5 * (right - left) * weight * tail(w) * tail(2 * s - w)
    return profile(2 * s) + total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "bound", "eps"),
    [
        (M2(dim=2048, rank=16, noise_multiplier=0.3), "exact-rank1", 0.3),
        (M2(dim=2048, rank=16, noise_multiplier=0.3), "rank-free", 0.3),
        (M2(dim=2048, rank=16, noise_multiplier=0.155974), "rank-free", 0.8),
    ],
)
def test_two_batches_from_profile_of_one_release(mechanism, bound, eps):
    def profile(w):
        value = privproj.delta(mechanism, epsilon=abs(math.log(w)), bound=bound).value
        return value if w >= 1 else 1 - w + w * value

    truth = two_batches_of_any_profile(profile, eps)
    if bound == "exact-rank1":
        assert truth == pytest.approx(M2_OF_TWO[0][3], rel=1e-6)
    found = ask("epsilon", mechanism, 2, delta=truth, bound=bound).value
    assert eps * (1 - 1e-6) <= found <= eps * (1 + 1e-2)


EXTRA = 1.5
"""Half of the simulated epochs have so much more shift, and weights at most 2, so that large losses are seen."""


def weighted_epochs(rng, count, draw_shift, batches):
    """Return losses of epochs with the record and their weights, by importance sampling."""
    shift = draw_shift(rng, (count, batches))
    x = rng.standard_normal((count, batches))
    own, noise = np.arange(count), rng.standard_normal(count) + EXTRA * (rng.random(count) < 0.5)
    batch = rng.integers(batches, size=count)
    x[own, batch] = shift[own, batch] + noise
    weight = 2.0 / (1.0 + np.exp(EXTRA * noise - 0.5 * EXTRA**2))
    return np.log(np.exp(shift * x - 0.5 * shift**2).mean(axis=1)), weight / weight.sum()


def resampled_delta(losses, weights, epochs, epsilons, cell=1e-3, cells=2**16):
    """Return ``delta`` of independent simulated epochs, with masses split between the points of a uniform grid."""
    place = losses / cell
    below = np.floor(place).astype(int)
    masses = np.bincount(below % cells, weights * (below + 1 - place), cells)
    masses += np.bincount((below + 1) % cells, weights * (place - below), cells)
    whole = np.maximum(np.fft.irfft(np.fft.rfft(masses) ** epochs, cells), 0.0)
    total = cell * np.where(np.arange(cells) < cells // 2, np.arange(cells), np.arange(cells) - cells)
    return [float(whole @ np.maximum(0.0, -np.expm1(eps - total))) for eps in epsilons]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "bound", "draw_shift"),
    [
        (Gaussian(noise_multiplier=1.0), None, constant(1.0)),
        (M2(dim=2048, rank=16, noise_multiplier=0.155974), "exact-rank1", captured(2048, 16, 0.155974)),
        (M2(dim=2048, rank=16, noise_multiplier=0.155974), None, captured(2048, 16, 0.155974)),
    ],
)
def test_twenty_epochs_of_hundred_batches(mechanism, bound, draw_shift):
    found = ask("epsilon", mechanism, 100, 20, delta=1e-5, bound=bound)
    rng, ends = np.random.default_rng(15), (found.lower or 0.0, found.value, found.value * (1 - 3e-2))
    runs = [resampled_delta(*weighted_epochs(rng, 100_000, draw_shift, 100), 20, ends) for _ in range(12)]
    (at_lower, at_value, nearby), errors = np.mean(runs, axis=0), 5.0 * np.std(runs, axis=0) / math.sqrt(12)
    assert at_value - errors[1] <= 1e-5 <= at_lower + errors[0]
    if bound or isinstance(mechanism, Gaussian):  # the bound is the truth of what is simulated
        assert nearby - errors[2] > 1e-5


# --- the table of independent enclosures ---------------------------------------------------------------

ENCLOSURES = (
    (1.0, 1000, 1, 1e-6, 0.168652, 0.175687),
    (2.0, 100, 1, 1e-6, 0.200498, 0.210012),
    (0.8, 200, 1, 1e-5, 0.899886, 0.929381),
    (0.5, 1000, 1, 1e-6, 4.098446, 4.117572),
    (1.0, 100, 20, 1e-5, 2.410749, 2.495311),
)
"""``z, t, epochs, delta, lower, upper``: Gaussian epsilons enclosed by PLD_accounting 2.0, an independent program."""


@pytest.mark.parametrize(
    ("z", "batches", "epochs", "delta", "low", "high"), full_if(ENCLOSURES, lambda row: row[1] == 1000)
)
def test_epsilon_is_within_enclosures_of_another_program(z, batches, epochs, delta, low, high):
    found = epsilon(z, batches, delta, epochs)
    assert low <= found.lower <= found.value <= high
    assert found.value - found.lower < 1e-2 * found.value


# --- properties ----------------------------------------------------------------------------------------------


@pytest.mark.full
def test_epsilon_decreases_with_batches_to_zero():
    found = [epsilon(1.0, batches, 1e-6).value for batches in (1, 2, 5, 20, 100, 1000, 10**4, 10**5)]
    assert all(more < fewer for fewer, more in pairwise(found))
    # E S/t = 1 with variance (e^(1/z^2) - 1)/t: for small losses the epoch is Gaussian with that standard deviation.
    mu = math.sqrt(math.expm1(1.0) / 10**5)
    assert found[-1] == pytest.approx(privproj.epsilon(Gaussian(noise_multiplier=1 / mu), delta=1e-6).value, rel=0.05)


@pytest.mark.full
def test_epsilon_is_monotone_in_noise_and_epochs():
    by_noise = [epsilon(z, 100, 1e-5).value for z in (0.3, 0.5, 0.8, 1.0, 2.0, 10.0, 100.0)]
    assert all(more < less for less, more in pairwise(by_noise))
    by_epochs = [epsilon(1.0, 100, 1e-5, epochs).value for epochs in (1, 2, 5, 20, 100)]
    assert all(fewer < more for fewer, more in pairwise(by_epochs))


@pytest.mark.parametrize(
    ("z", "batches", "epochs", "delta"),
    [(1.0, 2, 1, 1e-6), (0.3, 1000, 1, 1e-6), (1.0, 100, 20, 1e-5), (100.0, 10, 3, 1e-9)],
)
def test_epoch_is_at_most_one_release(z, batches, epochs, delta):
    single = privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, steps=epochs).value
    assert 0.0 < epsilon(z, batches, delta, epochs).value <= single * (1 + 1e-9)


@pytest.mark.full
@pytest.mark.parametrize(("z", "batches"), [(100.0, 10**5), (0.3, 1000)])
def test_epoch_epsilon_is_within_two_percent_of_truth(z, batches):
    for delta in (1e-5, 1e-8, 1e-12):
        found = epsilon(z, batches, delta)
        assert 0.0 < found.lower <= found.value <= found.lower * (1 + 2e-2)


@pytest.mark.full
def test_batches_per_record_cost_at_most_as_many_epochs():
    found = [epsilon(1.0, 60, 1e-5, batches_per_record=k).value for k in (1, 2, 3, 7, 60)]
    assert all(fewer < more for fewer, more in pairwise(found))
    # Two blocks of 30 batches are two epochs of 30, and 60 of 1 are 60 releases. The bound without blocks is smaller.
    assert 0.9 <= found[1] / epsilon(1.0, 30, 1e-5, 2).value <= 1.0
    assert found[-1] == pytest.approx(privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, steps=60).value)


def subset_losses(rng, count, z, batches, chosen):
    """Return ``ln dP/dQ`` of a uniform ``k``-subset of the batches, ``k = 2``: the mean of ``W_i W_j`` over pairs."""
    x = rng.standard_normal((count, batches))
    for i in range(count if chosen else 0):
        x[i, rng.choice(batches, 2, replace=False)] += 1.0 / z
    w = np.exp(x / z - 0.5 / z**2)
    return np.log((w.sum(axis=1) ** 2 - (w**2).sum(axis=1)) / (batches * (batches - 1)))


@pytest.mark.parametrize(
    ("z", "batches", "count", "epochs", "delta", "epsilon_of_mixture"),
    # epsilon of the mixture over all sets of batches, by simulation; right to about 0.5 %
    [(1.0, 10, 5, 1, 0.01, 4.725), (1.0, 10, 8, 3, 0.01, 19.33)],
)
def test_several_batches_are_enclosed_close_to_mixture(z, batches, count, epochs, delta, epsilon_of_mixture):
    found = epsilon(z, batches, delta, epochs, batches_per_record=count)
    below = privproj.lower_bound(found).value
    assert 0.99 * epsilon_of_mixture <= below <= 1.005 * epsilon_of_mixture
    assert 0.995 * epsilon_of_mixture <= found.value <= 1.01 * epsilon_of_mixture


@pytest.mark.full
def test_uniform_pair_of_batches_is_covered():
    z, batches, eps, count, rng = 1.0, 6, 0.8, 200_000, np.random.default_rng(14)
    found = ask("delta", Gaussian(noise_multiplier=z), batches, epsilon=eps, batches_per_record=2)
    below, simulated = 10.0 ** privproj.lower_bound(found).value, []
    for sign, present in ((1.0, True), (-1.0, False)):
        gain = np.maximum(0.0, -np.expm1(eps - sign * subset_losses(rng, count, z, batches, present)))
        assert gain.mean() - 5.0 * gain.std() / math.sqrt(count) <= found.value
        simulated.append(gain.mean() + 5.0 * gain.std() / math.sqrt(count))
    assert 0.9 * max(simulated) <= below <= max(simulated)
    assert found.value <= 1.02 * max(simulated)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "batches", "picks", "epochs", "delta", "simulated"),
    [(1.0, 10, 8, 3, 0.01, 19.35), (1.0, 10, 5, 1, 0.01, 4.73), (2.0, 100, 10, 1, 0.001, 1.444)],
)
def test_epsilon_of_several_batches_is_above_simulated_pair(z, batches, picks, epochs, delta, simulated):
    """The table of C25: the loss of an epoch is the log of the elementary symmetric polynomial of the ratios."""
    rng, n = np.random.default_rng(1), 1_000_000 if batches < 50 else 200_000
    losses = np.zeros(n)
    for _ in range(epochs):
        x = rng.standard_normal((n, batches))
        x[:, :picks] += 1.0 / z  # by symmetry, the record is in the first batches
        polynomial = np.zeros((picks + 1, n))
        polynomial[0] = 1.0
        for i in range(batches):
            ratio = np.exp(x[:, i] / z - 0.5 / z**2)
            for k in range(min(i + 1, picks), 0, -1):
                polynomial[k] += ratio * polynomial[k - 1]
        losses += np.log(polynomial[picks] / math.comb(batches, picks))
    low, high = 0.0, 80.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        is_above = np.mean(np.maximum(1.0 - np.exp(middle - losses), 0.0)) > delta
        low, high = (middle, high) if is_above else (low, middle)
    assert high == pytest.approx(simulated, rel=0.01)
    run = {"steps": epochs, "sampling": "balls-in-bins", "batches": batches, "batches_per_record": picks}
    bound = privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, **run).value
    assert 0.99 * high <= bound <= 1.01 * high  # the simulation is right to about 0.5 %
