"""Truncated Poisson batches."""

import itertools
import math
import random

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M2, Gaussian
from privproj.accounting.query import composition_of
from privproj.composition.truncated_poisson import (
    HARMLESS_SHARE,
    TruncatedCurve,
    log_binomial_tail,
    log_probability_of_cut,
    smallest_harmless_cap,
    with_truncated_batches,
)
from privproj.numerics.interval import Enclosure
from privproj.profiles.conversion import LEAST_LOG_VALUE
from privproj.run import Run
from privproj.sampling import NeighboringRelation
from privproj.schedule import Composition, phase_of

CAPPED = {"steps": 588, "sampling_rate": 256 / 50000, "dataset_size": 50000}
"""A run with 256 records in a batch on average; it needs a ``max_batch_size``."""


def run(cap, **changes):
    return Run(**{**CAPPED, "max_batch_size": cap, **changes})


def whole(options):
    """Return the same run without truncation."""
    return {key: value for key, value in options.items() if key not in ("max_batch_size", "dataset_size")}


def exact_log_tail(n, q, m):
    """Return ``ln P[Bin(n, q) >= m]`` in mpmath, term by term."""
    with mpmath.workdps(50):
        term = mpmath.binomial(n, m) * mpmath.mpf(q) ** m * (1 - mpmath.mpf(q)) ** (n - m)
        total = mpmath.mpf(0)
        for k in range(m, n + 1):
            total += term
            if term < total * mpmath.mpf(10) ** -30:
                break
            term *= mpmath.mpf(n - k) * mpmath.mpf(q) / ((k + 1) * (1 - mpmath.mpf(q)))
        return mpmath.log(total)


@settings(max_examples=60, deadline=None)
@given(size=st.floats(0.0, 5.0), rate=st.floats(-7.0, -0.01), above=st.floats(-0.5, 38.0))
def test_binomial_tail_is_enclosed(size, rate, above):
    n, q = math.ceil(10.0**size), 10.0**rate
    m = min(n, max(1, math.ceil(n * q + above * math.sqrt(n * q))))
    exact, found = exact_log_tail(n, q, m), log_binomial_tail(n, q, m)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower <= 3e-9 + 3e-14 * abs(exact)


@pytest.mark.parametrize("above", [1.0, 3.0, 12.0, 36.5])
def test_huge_binomial_tail_is_enclosed(above):
    n, q = 10**12, 0.01
    m = math.ceil(n * q + above * math.sqrt(n * q * (1 - q)))
    with mpmath.workdps(50):  # P[X >= m] is an integral of x^(m-1) (1-x)^(n-m) up to q
        reach = [q - 4.0 * j * math.sqrt(q / n) / above for j in range(16, -1, -1)]
        part = mpmath.quad(
            lambda x: mpmath.exp((m - 1) * mpmath.log(x / q) + (n - m) * mpmath.log1p((q - x) / (1 - mpmath.mpf(q)))),
            reach,
        )
        beta = mpmath.loggamma(m) + mpmath.loggamma(n - m + 1) - mpmath.loggamma(n + 1)
        exact = mpmath.log(part) + (m - 1) * mpmath.log(q) + (n - m) * mpmath.log(1 - mpmath.mpf(q)) - beta
    found = log_binomial_tail(n, q, m)
    assert found.lower <= exact <= found.upper <= found.lower + 3e-9 + 3e-14 * abs(exact)


def test_binomial_tail_at_ends_of_its_range():
    assert log_binomial_tail(10, 0.3, 0) == Enclosure(0.0, 0.0)
    assert log_binomial_tail(10, 0.3, 11).upper == -math.inf
    assert log_binomial_tail(10, 1.0, 10) == Enclosure(0.0, 0.0)
    assert log_binomial_tail(10, 0.3, 10).upper == pytest.approx(10 * math.log(0.3), rel=1e-8)
    assert log_binomial_tail(10**6, 1e-300, 1).upper >= math.log(1e-294)
    assert log_binomial_tail(10**6, 1e-300, 1).lower == -math.inf


def truncated_delta(others, sign, rate, cap, z, eps):
    """Return ``delta(eps)`` of one step in both directions, by integration: others add ``sign`` each, the record 1."""
    x = np.linspace(-others - 12.0 * z, others + 1 + 12.0 * z, 20001)

    def density(present):
        size, total = others + present, np.zeros_like(x)
        values = [float(sign)] * others + [1.0] * present
        for mask in itertools.product((0, 1), repeat=size):
            batch = [v for v, inside in zip(values, mask, strict=True) if inside]
            weight = math.prod(rate if inside else 1.0 - rate for inside in mask)
            kept = list(itertools.combinations(batch, cap)) if len(batch) > cap else [tuple(batch)]
            for each in kept:
                total += weight / len(kept) * np.exp(-0.5 * ((x - sum(each)) / z) ** 2) / (z * math.sqrt(2 * math.pi))
        return total

    p, q = density(1), density(0)
    gaps = (np.maximum(a - math.exp(eps) * b, 0.0) for a, b in ((p, q), (q, p)))
    return [float(np.trapezoid(gap, x)) for gap in gaps]


@pytest.mark.parametrize(("others", "rate", "cap"), [(3, 0.5, 2), (4, 0.3, 2), (3, 0.97, 3), (2, 0.9, 2), (2, 0.2, 1)])
def test_truncated_step_is_within_its_bound(others, rate, cap):
    beyond = rate < 0.9
    mechanism, sampled = Gaussian(noise_multiplier=0.5), {"sampling_rate": rate}
    for relation, size in (("add-remove", others), ("zero-out", others + 1)):
        cut = {"max_batch_size": cap, "dataset_size": size, "relation": relation}
        for eps in (0.0, 0.5, 1.0, 2.0, 4.0):
            bound = privproj.delta(mechanism, epsilon=eps, **sampled, **cut).value
            plain = privproj.delta(mechanism, epsilon=eps, **sampled, relation=relation).value
            true = [d for sign in (-1, 1) for d in truncated_delta(others, sign, rate, cap, 0.5, eps)]
            assert max(true) <= bound * (1.0 + 1e-9)
            beyond = beyond or max(true) > 1.05 * plain
    assert beyond, "no cut shows, so the law would hold without any price of a cut"


def test_truncation_probability_is_upper_bound():
    draw = np.random.default_rng(1)
    for cap, size in ((8, 40), (10, 60)):
        found = log_probability_of_cut(run(cap, steps=5, sampling_rate=0.1, dataset_size=size))
        seen = np.mean((draw.binomial(size, 0.1, size=(200000, 5)) > cap - 1).any(axis=1))
        assert seen <= math.exp(found.upper) + 5e-3
        assert math.exp(found.upper) <= 1.3 * seen + 5e-3


def test_truncation_cost_is_below_published_one():
    published = math.log(588 * (1.0 + math.exp(2.0))) + log_binomial_tail(50000, 256 / 50000, 385).upper
    assert math.exp(published) == pytest.approx(1.6e-10, rel=0.1)
    assert math.exp(log_probability_of_cut(run(384)).upper) < 0.25 * math.exp(published)


def test_truncation_cost_is_monotone():
    draw = random.Random(3)
    for _ in range(40):
        cap, size, steps = draw.randint(260, 500), draw.randint(20000, 90000), draw.randint(1, 10**6)
        here = log_probability_of_cut(run(cap, dataset_size=size, steps=steps))
        for easier in ({"cap": cap + 1}, {"dataset_size": size - 100}, {"steps": max(1, steps // 2)}):
            given_run = {"cap": cap, "dataset_size": size, "steps": steps, **easier}
            assert log_probability_of_cut(run(given_run.pop("cap"), **given_run)).upper <= here.upper


def test_group_that_fills_batch_is_always_truncated():
    one, ten = (log_probability_of_cut(run(cap, group_size=size)) for cap, size in ((384, 1), (393, 10)))
    assert one == ten
    assert log_probability_of_cut(run(9, group_size=10)).upper == 0.0


@pytest.mark.parametrize(("relation", "cap"), [("add-remove", 50001), ("zero-out", 50000), ("add-remove", 10**12)])
def test_unreachable_max_batch_size_changes_nothing(relation, cap):
    options = {**CAPPED, "relation": relation}
    for ask in (
        lambda **o: privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, **o),
        lambda **o: privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=0.7, **o),
    ):
        assert ask(**options, max_batch_size=cap).value == ask(**whole(options)).value


@pytest.mark.parametrize("bound", ["analytic", "rdp"])
def test_epsilon_decreases_with_max_batch_size(bound):
    values = [
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-6, bound=bound, **CAPPED, max_batch_size=cap).value
        for cap in (300, 350, 357, 360, 370, 384, 50001)
    ]
    # Renyi curves only add the probability of a truncation. Profiles compose truncated steps where that is too large.
    assert (values[0] == values[1] == math.inf) == (bound == "rdp")
    # A truncation that takes less than 1 % of delta is added to it, which is slightly larger than truncated steps.
    assert all(a * (1.0 + 1e-3) >= b for a, b in itertools.pairwise(values))
    assert values[2] >= (1.01 if bound == "rdp" else 1.0) * values[-1]


WRAPPED = {
    "composed": (Gaussian(noise_multiplier=1.0), "analytic", {**CAPPED, "max_batch_size": 360}),
    "closed form": (Gaussian(noise_multiplier=1.0), "analytic", {**CAPPED, "steps": 1, "max_batch_size": 330}),
    "renyi": (Gaussian(noise_multiplier=1.0), "rdp", {**CAPPED, "max_batch_size": 360}),
    "m2": (M2(dim=512, rank=8, noise_multiplier=0.3), "rank-free", {**CAPPED, "max_batch_size": 360}),
    "m2 renyi": (M2(dim=512, rank=8, noise_multiplier=0.3), "mixture-rdp", {**CAPPED, "max_batch_size": 372}),
}


@pytest.mark.full
@pytest.mark.parametrize("name", WRAPPED)
def test_truncated_epsilon_and_delta_are_exact_inverses(name):
    mechanism, bound, options = WRAPPED[name]
    draw, floor = random.Random(name), log_probability_of_cut(Run(**options)).upper
    for _ in range(3):
        delta = math.exp(draw.uniform(floor + 1e-3, -2.0))
        eps = privproj.epsilon(mechanism, delta=delta, bound=bound, **options).value
        assert privproj.delta(mechanism, epsilon=eps, bound=bound, **options).value <= delta
        eps = draw.uniform(0.05, 1.5)
        delta = privproj.delta(mechanism, epsilon=eps, bound=bound, **options).value
        assert privproj.epsilon(mechanism, delta=delta, bound=bound, **options).value <= eps


def test_truncated_rule_still_leads_with_epsilon():
    mechanism = M2(dim=200, rank=12, change_rank=2, noise_multiplier=1.0)
    options = {"steps": 20, "sampling_rate": 0.05, "dataset_size": 2000, "max_batch_size": 160, "split": 0.3}
    for delta in (1e-4, 1e-6):
        eps = privproj.epsilon(mechanism, delta=delta, bound="good-event", **options).value
        assert privproj.delta(mechanism, epsilon=eps, bound="good-event", **options).value <= delta


def test_truncated_curve_encloses_sum_and_its_inverse():
    composition = composition_of(Gaussian(noise_multiplier=1.0), None, {**CAPPED, "max_batch_size": 360})
    plain = composition.with_run(max_batch_size=None, dataset_size=None).curve()
    cut = log_probability_of_cut(composition.only.run)
    curve = TruncatedCurve(plain, cut)
    for eps in (0.1, 0.6, 1.2):
        ends, uncut = curve.log_delta(eps), plain.log_delta(eps)
        assert ends.lower <= np.logaddexp(uncut.lower, cut.lower) <= np.logaddexp(uncut.upper, cut.upper) <= ends.upper
        assert ends.upper - ends.lower <= (uncut.upper - uncut.lower) + 1e-7
        inside = curve.epsilon(0.5 * (ends.lower + ends.upper))
        assert inside.lower <= eps * (1.0 + 1e-9) and inside.upper >= eps * (1.0 - 1e-9)
    assert [*curve.epsilon(cut.lower - 1e-9)] == [math.inf, math.inf]


def test_uncertain_truncation_widens_epsilon_and_delta():
    plain = composition_of(Gaussian(noise_multiplier=1.0), None, {"steps": 30}).curve()
    curve = TruncatedCurve(plain, Enclosure(math.log(1e-7), math.log(8e-7)))
    for delta in (9e-7, 1e-5):
        found = curve.epsilon(math.log(delta))
        assert 0.0 < found.lower < (1.0 - 1e-3) * found.upper
        assert curve.log_delta(found.upper).upper == pytest.approx(math.log(delta), abs=1e-9)
        assert curve.log_delta(found.lower).lower == pytest.approx(math.log(delta), abs=1e-9)
    assert curve.epsilon(math.log(5e-7)).lower < curve.epsilon(math.log(5e-7)).upper == math.inf


def test_calibration_includes_truncation_cost():
    mechanism, target = Gaussian(), {"epsilon": 1.0, "delta": 1e-6}
    z = {cap: privproj.sigma(mechanism, **target, **CAPPED, max_batch_size=cap).value for cap in (300, 357, 50001)}
    assert z[300] > z[357] > z[50001]
    loud, options = Gaussian(noise_multiplier=z[357]), {**CAPPED, "max_batch_size": 357}
    assert privproj.epsilon(loud, delta=1e-6, **options).value <= 1.0
    del options["steps"]
    assert privproj.steps(loud, **target, **options).value == 588
    del options["sampling_rate"]
    found = privproj.rate(loud, **target, **options, steps=588).value
    assert found == pytest.approx(256 / 50000, rel=1e-4)


def test_phases_add_their_truncation_costs():
    def phase(cap, **more):
        size = {} if cap is None else {"max_batch_size": cap, "dataset_size": 50000}
        return phase_of(Gaussian(noise_multiplier=1.0), f"cap {cap}", steps=300, sampling_rate=256 / 50000, **size)

    capped, plain = Composition((phase(360), phase(365))), Composition((phase(None), phase(None)))
    both = sum(math.exp(log_probability_of_cut(p.run).upper) for p in capped.phases)
    for eps, smaller in ((0.3, 1.0 - 1e-9), (0.8, 0.9)):  # 1e-9: rounding of composed deltas
        added = plain.delta(epsilon=eps).value + both
        # Where truncations take more than 1 % of delta, truncated steps are composed, which is smaller.
        assert smaller * added <= capped.delta(epsilon=eps).value <= added * (1.0 + 1e-6)


@pytest.mark.parametrize(("cap", "z", "least"), [(16, 1.67642, 0.99), (32, 1.00460, 0.995)])
def test_truncated_steps_match_dp_accounting(cap, z, least):
    # Reference: dp-accounting's from_truncated_subsampled_gaussian_mechanism, grid 1e-3: epsilon = 1 at delta 1e-6.
    # It uses the slightly looser replace relation for a record that takes the place of another one.
    options = {"steps": 128, "sampling_rate": 0.01, "dataset_size": 1000, "max_batch_size": cap}
    found = privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-6, **options).value
    assert least <= found <= 1.002


@pytest.mark.parametrize("relation", ["add-remove", "zero-out"])
def test_truncated_epsilon_increases_with_dataset_size(relation):
    options = {"steps": 40, "sampling_rate": 0.05, "max_batch_size": 12, "relation": relation}
    values = [
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, dataset_size=size, **options).value
        for size in (20, 100, 200, 300, 600, 2000)
    ]
    assert all(a <= b * (1.0 + 1e-9) for a, b in itertools.pairwise(values)) and values[-1] < 20.0


@pytest.mark.full
def test_truncated_step_of_m2_exceeds_its_simulation():
    # Others contribute -u, the record contributes u, a fixed unit vector; the adversary observes P.
    rng, n, q, cap, z, dim, rank = np.random.default_rng(7), 6, 0.5, 3, 0.4, 4, 2
    squares = rng.beta(0.5 * rank, 0.5 * (dim - rank), 400)
    grid = np.linspace(-8.0, 8.0, 4001)

    def deltas(eps):
        found = []
        for b in squares:
            shift = math.sqrt(b) / z
            density = []
            for present in (1, 0):
                total = np.zeros_like(grid)
                for others in range(n + 1):
                    weight = math.comb(n, others) * q**others * (1 - q) ** (n - others)
                    inside = present * q * min(1.0, cap / (others + 1))
                    full = min(others, cap)
                    for chance, value in ((1 - inside, -full), (inside, 1 - min(others, cap - 1))):
                        total += weight * chance * np.exp(-0.5 * (grid * (1 + cap * shift) - value * shift) ** 2)
                density.append(total * (1 + cap * shift) / math.sqrt(2 * math.pi))
            a, b = density
            found.append([np.trapezoid(np.maximum(x - math.exp(eps) * y, 0.0), grid) for x, y in ((a, b), (b, a))])
        return np.mean(found, axis=0)

    options = {"steps": 1, "sampling_rate": q, "dataset_size": n, "max_batch_size": cap}
    for eps in (0.5, 1.5, 3.0):
        bound = privproj.delta(M2(dim=dim, rank=rank, noise_multiplier=z), epsilon=eps, **options).value
        assert 0.0 < max(deltas(eps)) <= bound < 1.0


def test_smallest_harmless_cap_is_minimal():
    for log_delta in (math.log(1e-6), math.log(1e-12), 10.0 * LEAST_LOG_VALUE):
        least = smallest_harmless_cap(run(300), log_delta)
        goal = log_delta + math.log(HARMLESS_SHARE)
        assert log_probability_of_cut(run(least)).upper <= goal < log_probability_of_cut(run(least - 1)).upper
    assert smallest_harmless_cap(run(300, relation=NeighboringRelation.ZERO_OUT, sampling_rate=0.999), -1e6) == 50000


def test_run_without_max_batch_size_keeps_its_curve():
    curve = composition_of(Gaussian(noise_multiplier=1.0), None, {"steps": 3}).curve()
    assert with_truncated_batches(curve, [Run(steps=3)]) is curve
