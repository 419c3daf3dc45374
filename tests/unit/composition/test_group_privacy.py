"""Groups of records: exact for Gaussian noise, an upper bound otherwise, and at most group privacy."""

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from helpers import m2, slow_if
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

import privproj
from privproj import M1, M2, Gaussian, Laplace, PublicSketch, UnsupportedError, Wishart
from privproj.accounting.lower_bounds import lower_bound
from privproj.composition.compose import compose_on_grid
from privproj.composition.group_privacy import curve_of_group, fixed_size_weights, group_step, poisson_weights
from privproj.distributions.squared_sensitivity import ScaledBeta
from privproj.mechanisms.m2.rank_free import representation
from privproj.mechanisms.registry import find_bound
from privproj.numerics.interval import Enclosure
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.run import Run
from privproj.schedule import Composition, phase_of

pytestmark = pytest.mark.full  # extremes, which take a minute together

LONG = {"sampling_rate": 0.01, "steps": 1000, "delta": 1e-5}
SHORT = {"sampling_rate": 512 / 120000, "steps": 1172, "delta": 1e-6}


def of_group(size, z=1.0, **run):
    return privproj.epsilon(Gaussian(noise_multiplier=z), group_size=size, **{**LONG, **run})


@pytest.mark.parametrize(
    ("size", "z", "run", "value"),
    [
        (2, 1.0, LONG, 3.979),
        (5, 1.0, LONG, 11.638),
        (2, 0.9, SHORT, 2.574),
        (4, 0.9, SHORT, 5.39),
        (8, 0.9, SHORT, 11.63),
    ],
)
def test_group_epsilon_agrees_with_reference_table(size, z, run, value):
    found = of_group(size, z, **run)
    assert found.value == pytest.approx(value, rel=2e-3) and found.lower <= value * (1.0 + 2e-3)
    assert found.status == "conditional" and f"at most {size} records" in found.data_assumptions[0]


def test_group_epsilon_of_m2_agrees_with_reference():
    reference = M2(dim=2048, rank=16, noise_multiplier=0.155974)
    found = [privproj.epsilon(reference, group_size=k, **{**LONG, "steps": 2000}).value for k in (1, 2, 5)]
    assert found == [pytest.approx(value, rel=1.5e-2) for value in (1.089, 2.35, 6.77)]


@pytest.mark.parametrize("mechanism", [Gaussian(noise_multiplier=1.0), Laplace(noise_multiplier=3.0), m2(0.5)])
def test_group_of_one_is_one_record_and_epsilon_increases(mechanism):
    plain = privproj.epsilon(mechanism, **LONG).value
    found = [privproj.epsilon(mechanism, group_size=k, **LONG).value for k in (1, 2, 3, 6)]
    assert found[0] == plain and found == sorted(found) and found[1] > 1.5 * plain


def excess_of_mixture(loss, mu, rate, size):
    """Return the excess of the mixture of Gaussians at ``ln t``, to 50 digits."""
    with mpmath.workdps(50):
        mu, q, t = mpmath.mpf(mu), mpmath.mpf(rate), mpmath.exp(mpmath.mpf(loss))
        w = [mpmath.binomial(size, j) * q**j * (1 - q) ** (size - j) for j in range(size + 1)]
        if t <= w[0]:
            return mpmath.mpf(0)

        def ratio(x):
            return mpmath.fsum(w[j] * mpmath.exp(j * mu * x - (j * mu) ** 2 / 2) for j in range(size + 1))

        def tail(x):
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        low, high = mpmath.mpf(-3000), mpmath.mpf(3000)
        for _ in range(220):
            middle = (low + high) / 2
            low, high = (middle, high) if ratio(middle) < t else (low, middle)
        found = mpmath.fsum(w[j] * tail(low - j * mu) for j in range(size + 1)) - t * tail(low)
        return found - max(mpmath.mpf(0), 1 - t)


@pytest.mark.parametrize(("mu", "rate", "size"), [(1.0, 0.01, 5), (0.3, 0.2, 3), (4.0, 1e-4, 8), (2.0, 0.9, 2)])
def test_group_step_is_enclosed_to_nine_digits(mu, rate, size):
    step = group_step(lambda j: gaussian_profile(j * mu), poisson_weights(rate, size))
    least = size * math.log1p(-rate)
    losses = np.array([0.5 * least, 0.1 * least, -1e-4, 0.0, 1e-3, 0.1, 1.0, 4.0, 9.0])
    lower, upper = step.excess(losses)
    for loss, low, high in zip(losses, lower, upper, strict=True):
        exact = excess_of_mixture(loss, mu, rate, size)
        assert low <= exact <= high <= exact * (1 + 1e-8) + 1e-30, loss
        assert low >= exact * (1 - 1e-5) or exact < 1e-12, loss
    assert step.excess(np.array([least - 1e-6]))[1] == [0.0]


def hockey_stick(p, q, t):
    return sum(max(a - t * b, 0.0) for a, b in zip(p, q, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-2.0, 2.0), min_size=3, max_size=3), st.floats(0.01, 0.8), st.floats(0.05, 0.95))
def test_group_step_is_above_brute_force_over_two_points(changes, rate, alone):
    """Three records with different effects on a coin: every subset, both directions, several losses."""
    base = math.log(alone / (1.0 - alone))
    subsets = [s for k in range(4) for s in itertools.combinations(range(3), k)]
    coin = {s: 1.0 / (1.0 + math.exp(-base - sum(changes[i] for i in s))) for s in subsets}
    dists = {s: (p, 1.0 - p) for s, p in coin.items()}

    def member(j):
        near = [dists[s] for s in subsets if 0 < len(s) <= j]

        def log_delta(eps):
            worst = max(
                max(hockey_stick(p, dists[()], math.exp(eps)), hockey_stick(dists[()], p, math.exp(eps))) for p in near
            )
            return Enclosure(-math.inf, math.log(worst * (1.0 + 1e-12)) if worst > 0.0 else -700.0)

        return PrivacyProfile(log_delta)

    if max(abs(change) for change in changes) < 1e-3:
        return
    step = group_step(member, poisson_weights(rate, 3))
    weight = {s: rate ** len(s) * (1.0 - rate) ** (3 - len(s)) for s in subsets}
    mixed = tuple(sum(weight[s] * dists[s][i] for s in subsets) for i in (0, 1))
    for eps in (0.0, 0.05, 0.3, 1.0):
        t = math.exp(eps)
        remove, add = hockey_stick(mixed, dists[()], t), hockey_stick(dists[()], mixed, t)
        upper = step.excess(np.array([eps, -eps]))[1]
        assert remove <= upper[0] + 1e-12 and add <= upper[1] * t + 1e-12


@pytest.mark.slow
def test_group_step_is_close_to_equal_rank_one_records():
    """``E_b max_x [sum_j w_j Q(x - j m sqrt b) - t Q(x)]`` is attained, by quadrature over ``b``."""
    mechanism, rate, size = M2(dim=2048, rank=16, noise_multiplier=0.156), 0.01, 5
    distribution = ScaledBeta(8.0, 1016.0, mechanism.mu**2)
    step = group_step(lambda j: representation(mechanism.for_group(j)), poisson_weights(rate, size))
    nodes, weights = np.polynomial.legendre.leggauss(80)
    x = 0.5 * distribution.mean * 6.0 * (nodes + 1.0)
    b = x / mechanism.mu**2
    density = np.exp(7.0 * np.log(b) + 1015.0 * np.log1p(-b) - special.betaln(8.0, 1016.0)) / mechanism.mu**2
    for eps in (0.01, 0.5, 2.0):
        inner = [float(excess_of_mixture(eps, math.sqrt(value), rate, size)) for value in x]
        attained = float(np.sum(weights * density * inner) * 0.5 * distribution.mean * 6.0)
        upper = step.excess(np.array([eps]))[1][0]
        assert attained <= upper <= 1.15 * attained


SETTINGS = [(1.0, 0.01, 300, 3), (0.6, 0.001, 2000, 8), (2.0, 0.2, 50, 4), (1.0, 0.05, 10, 20)]


def peer_ends(z, rate, steps, size, delta):
    """Return the optimistic and the pessimistic epsilon of dp-accounting's mixture of Gaussians."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    probs = [math.comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1)]
    ends = []
    for pessimistic in (False, True):
        one = pld.from_mixture_gaussian_mechanism(
            z, list(range(size + 1)), probs, pessimistic_estimate=pessimistic, value_discretization_interval=1e-2
        )
        ends.append(one.self_compose(steps).get_epsilon_for_delta(delta))
    return ends


@pytest.mark.parametrize(("z", "rate", "steps", "size"), [SETTINGS[0], *slow_if(SETTINGS[1:], lambda setting: True)])
def test_group_epsilon_is_within_another_accountant(z, rate, steps, size):
    low, high = peer_ends(z, rate, steps, size, 1e-6)
    found = of_group(size, z, sampling_rate=rate, steps=steps, delta=1e-6).value
    assert low * (1.0 - 1e-9) <= found <= 1.01 * high


@pytest.mark.slow
def test_group_epsilon_is_within_another_at_200_settings():
    draw, compared = np.random.default_rng(5), 0
    while compared < 200:
        z, rate = math.exp(draw.uniform(-0.7, 1.6)), math.exp(draw.uniform(-7.0, -1.0))
        steps, size = int(math.exp(draw.uniform(0.0, 7.0))), int(draw.integers(2, 12))
        found = of_group(size, z, sampling_rate=rate, steps=steps, delta=1e-6).value
        if 0.05 < found < 30.0:
            low, high = peer_ends(z, rate, steps, size, 1e-6)
            assert low * (1.0 - 1e-9) <= found <= 1.01 * high, (z, rate, steps, size)
            compared += 1


def test_group_at_rates_near_one_equals_unsampled_group():
    whole = of_group(4, 9.0, sampling_rate=1.0, steps=10).value
    assert of_group(4, 9.0, sampling_rate=1.0 - 1e-9, steps=10).value == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize(
    ("mechanism", "run"),
    [
        (Gaussian(noise_multiplier=4.0), {"sampling": "balls-in-bins", "batches": 100, "steps": 5}),
        (m2(2.0), {"sampling": "partition", "steps": 5}),
        (Gaussian(noise_multiplier=2.0), {"sampling": "fixed", "sampling_rate": 0.01, "steps": 100}),
        (Wishart(dim=1000, rank=16, misalignment=8e-6), {}),
        (m2(0.5), {"bound": "mixture-rdp", "sampling_rate": 0.01, "steps": 100}),
    ],
)
def test_bound_without_group_step_uses_group_privacy(mechanism, run):
    size, delta = 3, 1e-6
    found = privproj.epsilon(mechanism, group_size=size, delta=delta, **run).value
    one = privproj.delta(mechanism, epsilon=found / size, **run).value
    assert one * sum(math.exp(j * found / size) for j in range(size)) <= delta * (1.0 + 1e-6)
    assert found > privproj.epsilon(mechanism, delta=delta, **run).value


@pytest.mark.parametrize("run", [{}, {"sampling_rate": 0.02, "steps": 20}])
@pytest.mark.parametrize(
    ("mechanism", "names"),
    [
        (M2(dim=1024, rank=16, noise_multiplier=1.0), ("exact-rank1", "rank-free")),
        (M1(dim=500, rank=100, noise_multiplier=6.0), ("known-projection-rank1", "known-projection")),
        (PublicSketch(rank=16, noise_multiplier=4.0), ("exact-rank1", "rank-free")),
    ],
)
def test_group_of_rank_one_is_at_most_any_rank_bound(mechanism, names, run):
    """It is at least the bound of copies of one record, whose difference has rank one and the joint shift (C17)."""
    size, delta = 12, 1e-6
    one, any_rank = (privproj.epsilon(mechanism, bound=name, group_size=size, delta=delta, **run) for name in names)
    assert one.side == "upper bound" and one.value <= any_rank.value * (1.0 + 1e-9)
    if not run:
        assert one.value == pytest.approx(any_rank.value, rel=1e-9)
        seen = replace(mechanism, noise_multiplier=mechanism.z / size)
        assert one.value >= privproj.epsilon(seen, bound=names[0], delta=delta).value


@pytest.mark.parametrize("size", [2, 12])
def test_group_step_uses_rank_one_bound_for_one_record_only(size):
    """Compare with one explicit step: rank one if a batch has one record, any rank if it has more (C17, C37)."""
    mechanism, rate, eps = M2(dim=256, rank=4, noise_multiplier=0.2), 0.3, 0.05

    def member(count):
        seen = mechanism.for_group(count)
        return find_bound(M2, "exact-rank1" if count == 1 else "rank-free").representation(seen)

    by_hand = group_step(member, poisson_weights(rate, size)).log_delta(eps).upper
    requested = {"epsilon": eps, "sampling_rate": rate, "steps": 1, "group_size": size}
    of_rank_one, of_any = (privproj.delta(mechanism, bound=name, **requested) for name in ("exact-rank1", "rank-free"))
    assert math.log(of_rank_one.value) == pytest.approx(by_hand, rel=1e-6)
    assert of_rank_one.value < of_any.value


def test_group_difference_of_vectors_is_vector():
    mechanism, requested = (
        M2(dim=1024, rank=16, columns=1, noise_multiplier=1.0),
        {"bound": "exact-rank1", "delta": 0.4},
    )
    vector = privproj.epsilon(mechanism, group_size=12, **requested).value
    assert vector == privproj.epsilon(replace(mechanism, noise_multiplier=1.0 / 12), **requested).value
    assert vector < 0.95 * privproj.epsilon(replace(mechanism, columns=None), group_size=12, **requested).value


@pytest.mark.parametrize("sampling", ["partition", "shuffle"])
def test_gaussian_epoch_is_worst_with_group_in_one_batch(sampling):
    size, epochs, delta = 4, 3, 1e-6
    found = of_group(size, 8.0, sampling=sampling, sampling_rate=1.0, steps=epochs, delta=delta)
    assert (found.side, found.status, found.numerics) == ("upper bound", "conditional", {})
    costs = {}
    for counts in [(4,), (3, 1), (2, 2), (2, 1, 1), (1, 1, 1, 1)]:
        releases = [phase_of(Gaussian(noise_multiplier=8.0 / n), str(i), steps=epochs) for i, n in enumerate(counts)]
        costs[counts] = Composition(tuple(releases)).epsilon(delta=delta)
    assert max(cost.lower for cost in costs.values()) <= found.value == costs[4,].value
    # joint with other phases, and no more than group privacy of one record
    other = phase_of(m2(2.0), "m2", steps=5, relation="zero-out", group_size=size)
    epoch = phase_of(Gaussian(noise_multiplier=8.0), "epoch", sampling=sampling, steps=epochs, group_size=size)
    whole = phase_of(Gaussian(noise_multiplier=2.0), "whole", steps=epochs, relation="zero-out")
    one = replace(other, mechanism=m2(0.5), run=replace(other.run, group_size=1))
    assert (
        Composition((epoch, other)).epsilon(delta=delta).value
        <= Composition((whole, one)).epsilon(delta=delta).value * 1.001
    )


def test_group_without_bound_raises():
    """One of its records has no epsilon either, so group privacy does not apply."""
    mechanism = Gaussian(noise_multiplier=1e-10)
    assert privproj.epsilon(mechanism, log10_delta=-1e5, group_size=440).outcome == "vacuous"


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.lists(st.floats(-1.5, 1.5), min_size=8, max_size=8))
def test_fixed_size_group_step_is_above_brute_force(batch, size, moves):
    """The group is part of seven records and is replaced; the bias of a coin is the sum over the batch."""
    records = 7
    if size > min(batch, records - batch):
        return
    before, after = moves[:records], [*(-x for x in moves[:size]), *moves[size:records]]
    batches = list(itertools.combinations(range(records), batch))

    def distribution(values, chosen):
        p = 1.0 / (1.0 + math.exp(-sum(values[i] for i in chosen)))
        return p, 1.0 - p

    def member(j):
        """Return the worst delta of batches that differ in at most ``j`` replaced records."""
        values = [*before, *after[:size]]
        sums = [sum(c) for n in (batch,) for c in itertools.combinations(values, n)]
        reach = j * (max(values) - min(values))

        def log_delta(eps):
            pairs = ((a, b) for a in (min(sums), *sums[::7], max(sums)) for b in (a - reach, a + reach))
            dists = [[(1.0 / (1.0 + math.exp(-x)), 1.0 / (1.0 + math.exp(x))) for x in pair] for pair in pairs]
            worst = max(hockey_stick(*way, math.exp(eps)) for p, q in dists for way in ((p, q), (q, p)))
            return Enclosure(-math.inf, math.log(worst * (1.0 + 1e-9)) if worst > 0.0 else -700.0)

        return PrivacyProfile(log_delta)

    if max(moves) - min(moves) < 1e-2:
        return
    step = group_step(member, fixed_size_weights(records, batch, size), of_fixed_size=True)
    p, q = (
        tuple(sum(distribution(values, chosen)[i] for chosen in batches) / len(batches) for i in (0, 1))
        for values in (before, after)
    )
    for eps in (0.0, 0.1, 0.5):
        exact = max(hockey_stick(p, q, math.exp(eps)), hockey_stick(q, p, math.exp(eps)))
        assert exact <= math.exp(step.log_delta(eps).upper) + 1e-12


def test_fixed_size_group_step_requires_dataset_size():
    run = {"sampling": "fixed", "sampling_rate": 0.01, "steps": 1000, "delta": 1e-5, "group_size": 3}
    converted = privproj.epsilon(Gaussian(noise_multiplier=1.0), **run).value
    known = [privproj.epsilon(Gaussian(noise_multiplier=1.0), dataset_size=n, **run).value for n in (1000, 10**7)]
    # Among very many records each is sampled almost independently; the reflected pair replaces the add direction.
    poisson = of_group(3, 1.0).value
    assert known[0] < known[1] < converted and poisson <= known[1] <= 1.3 * poisson


def test_copies_of_record_are_below_and_close_to_every_bound():
    run = {"delta": 1e-5, "sampling_rate": 0.01, "steps": 2000, "group_size": 5}
    found = privproj.epsilon(M2(dim=2048, rank=16, noise_multiplier=0.155974), **run)
    below = lower_bound(found)
    assert below.quantity == "epsilon" and 0.95 * found.value < below.value < found.value
    bins = {"sampling": "balls-in-bins", "batches": 20, "steps": 3, "delta": 1e-5, "group_size": 2}
    assert lower_bound(privproj.epsilon(Gaussian(noise_multiplier=4.0), **bins)) is None


def test_batch_weights_agree_with_scipy():
    from scipy import stats

    j = np.arange(9)
    assert np.exp(poisson_weights(0.03, 8)) == pytest.approx(stats.binom.pmf(j, 8, 0.03), rel=1e-11)
    assert np.exp(fixed_size_weights(500, 40, 8)) == pytest.approx(stats.hypergeom.pmf(j, 500, 8, 40), rel=1e-11)


def test_group_phases_and_inverses_agree():
    phases = [(1.0, 0.01, 300), (2.0, 0.05, 100)]
    run = Composition(tuple(
        phase_of(Gaussian(noise_multiplier=z), sampling_rate=q, steps=n, group_size=3) for z, q, n in phases
    ))  # fmt: skip
    found = run.epsilon(delta=1e-5).value
    assert run.delta(epsilon=found).value <= 1e-5
    joint = [
        (group_step(lambda j, z=z: gaussian_profile(j / z), poisson_weights(q, 3)), Run(steps=n)) for z, q, n in phases
    ]
    assert found == pytest.approx(compose_on_grid(joint).epsilon(math.log(1e-5)).upper, rel=1e-9)


@pytest.mark.parametrize("quantity", ["sigma", "steps", "rate"])
def test_calibration_meets_target_for_group(quantity):
    run = {"sampling_rate": 0.01, "steps": 200}
    mechanism = Gaussian() if quantity == "sigma" else Gaussian(noise_multiplier=2.0)
    requested = {
        name: value for name, value in run.items() if name != {"steps": "steps", "rate": "sampling_rate"}.get(quantity)
    }
    value = getattr(privproj, quantity)(mechanism, epsilon=2.0, delta=1e-6, group_size=4, **requested).value
    found = {"sigma": {}, "steps": {"steps": value}, "rate": {"sampling_rate": value}}[quantity]
    mechanism = Gaussian(noise_multiplier=value) if quantity == "sigma" else mechanism
    assert privproj.epsilon(mechanism, delta=1e-6, group_size=4, **{**run, **found}).value <= 2.0


def test_large_group_falls_back_to_group_privacy():
    with pytest.raises(UnsupportedError, match="likely"):
        group_step(lambda j: gaussian_profile(1.0 * j), poisson_weights(0.5, 2000))
    assert of_group(1000, 300.0, steps=10).value > 0.0


@pytest.mark.slow
def test_group_run_survives_dp_event_round_trip():
    from privproj.integrations.dp_accounting import event_of

    phase = phase_of(Gaussian(noise_multiplier=1.0), sampling_rate=0.01, steps=100, group_size=4)
    event = event_of(phase).events[0]
    assert event.count == 100 and sum(event.event.sampling_probs) == pytest.approx(1.0, rel=1e-12)
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(event)
    found = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, sampling_rate=0.01, steps=100, group_size=4)
    assert found.value == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-2)


@pytest.mark.full
def test_group_delta_exists_far_beyond_its_losses():
    """There tails are truncated at masses below the least double."""
    found = privproj.delta(Gaussian(noise_multiplier=11.3), epsilon=7.2, sampling_rate=0.1, steps=10, group_size=3)
    assert 0.0 < found.value < 1e-290


def test_group_privacy_is_used_if_group_epsilon_is_huge():
    """The Renyi epsilon of ten records at once is hundreds; ten times that of one is below 1."""
    run = {"steps": 27, "sampling_rate": 0.005}
    mechanism = Gaussian(noise_multiplier=2.8)
    for log10_delta in (-3.6, -8.0, -20.0):
        found = privproj.epsilon(mechanism, log10_delta=log10_delta, bound="rdp", group_size=10, **run).value
        of_one = privproj.epsilon(mechanism, log10_delta=log10_delta - 9.0, bound="rdp", **run).value
        assert found <= 10.0 * of_one
        back = privproj.delta(mechanism, epsilon=found, bound="rdp", group_size=10, **run)
        assert back.log10_delta <= log10_delta and back.log10_delta > 1.001 * log10_delta


def test_group_privacy_search_finds_first_root():
    """The delta of one record is constant far out, as with a bad event, and its factor grows."""

    def refuse():
        raise UnsupportedError("no curve of a group's own steps")

    plain = gaussian_profile(2.0)
    single = PrivacyProfile(lambda e: Enclosure(*(max(end, -60.0) for end in plain.log_delta(e))))
    curve = curve_of_group(refuse, lambda: single, 3, is_true=False)
    found = curve.epsilon(-8.0).upper
    assert curve.log_delta(found).upper <= -8.0 < curve.log_delta(0.9999 * found).upper
    assert curve.log_delta(400.0).upper == 0.0
