"""Filters: never an overspend, nothing changed by a refusal, and no adversary gains more than is said."""

import contextlib
import copy
import math
import pickle
import sys
import threading
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from helpers import full_if
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from unit.accounting import adversary

import privproj
from privproj import M1, M2, Gaussian, InvalidParameterError, Laplace, Sketch, UnsupportedError
from privproj.assumptions import Requirement
from privproj.contrib.filters import Filter
from privproj.profiles.conversion import meets
from privproj.profiles.rdp import OneOrder
from privproj.schedule import phase_of
from privproj.targets import full_target

ADAPTERS = M2(dim=2048, rank=16, noise_multiplier=0.155974)


# --- prices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "bound", "fixed", "price"),
    [(Gaussian(noise_multiplier=1.0), "rdp", 2.584, 2.868), (ADAPTERS, "mixture-rdp", 1.089, 1.7194)],
    ids=["gaussian", "m2"],
)
def test_filter_costs_renyi_epsilon_at_best_order(mechanism, bound, fixed, price):
    run = {"sampling_rate": 0.01, "steps": 2000}
    renyi = privproj.epsilon(mechanism, delta=1e-5, bound=bound, **run).value
    assert privproj.epsilon(mechanism, delta=1e-5, **run).value == pytest.approx(fixed, abs=5e-4, rel=0)
    assert renyi == pytest.approx(price, abs=5e-4, rel=0)
    budget = Filter.for_releases(mechanism, epsilon=renyi, delta=1e-5, sampling_rate=0.01)
    assert budget.most_steps(mechanism, sampling_rate=0.01) == 2000
    budget.spend(mechanism, **run)
    assert budget.epsilon_of_spent(1e-5) <= budget.epsilon(1e-5).value <= renyi
    with pytest.raises(UnsupportedError, match="Nothing was counted; 0 releases fit"):
        budget.spend(mechanism, sampling_rate=0.01)


@pytest.mark.parametrize(("noise", "epsilon"), [(10.0, 1.0), (3.0, 4.0), (40.0, 0.5)])
def test_filter_without_order_equals_fixed_plan(noise, epsilon):
    release = Gaussian(noise_multiplier=noise)
    fixed = privproj.steps(release, epsilon=epsilon, delta=1e-5).value
    budget = Filter(epsilon=epsilon, delta=1e-5)
    assert budget.most_steps(release) == fixed
    budget.spend(release, steps=fixed)
    known = privproj.epsilon(release, delta=1e-5, steps=fixed).value
    assert budget.epsilon_of_spent(1e-5) == pytest.approx(known, rel=1e-9, abs=0)
    assert Filter.for_releases(release, epsilon=epsilon, delta=1e-5).most_steps(release) <= fixed


def test_for_releases_order_is_locally_optimal():
    for release, run in ((Gaussian(noise_multiplier=30.0), {}), (ADAPTERS, {"sampling_rate": 0.01})):
        chosen = Filter.for_releases(release, epsilon=1.5, delta=1e-6, **run)
        for factor in (0.5, 0.8, 1.25, 2.0):
            try:
                other = Filter(epsilon=1.5, delta=1e-6, order=round(chosen.order * factor))
            except UnsupportedError:
                continue
            assert other.most_steps(release, **run) <= chosen.most_steps(release, **run)


# --- the conversion -------------------------------------------------------------------------------


@given(
    order=st.floats(1.001, 1e6),
    divergence=st.floats(1e-9, 50.0),
    log_delta=st.floats(-200.0, -0.1),
    eps=st.floats(0.0, 100.0),
)
def test_one_order_encloses_conversion(order, divergence, log_delta, eps):
    with mpmath.workdps(50):
        a, b = mpmath.mpf(order), mpmath.mpf(divergence)
        known = b + (-mpmath.mpf(log_delta) - mpmath.log(a)) / (a - 1) + mpmath.log(1 - 1 / a)
        found = OneOrder(order, divergence).epsilon(log_delta)
        assert found.lower <= max(0, known) <= found.upper
        assert found.upper - found.lower <= 1e-11 * (1.0 + divergence + (300.0 + math.log(order)) / (order - 1.0))
        known = (a - 1) * (b - mpmath.mpf(eps) + mpmath.log(1 - 1 / a)) - mpmath.log(a)
        found = OneOrder(order, divergence).log_delta(eps)
        assert found.lower <= min(0, known) <= found.upper


@given(
    epsilon=st.floats(0.05, 30.0),
    log10_delta=st.floats(-12.0, -0.5),
    order=st.one_of(st.none(), st.floats(1.01, 5e3)),
)
def test_filter_budget_is_largest_that_meets_target(epsilon, log10_delta, order):
    delta = 10.0**log10_delta
    kind = {"order": order}
    try:
        budget = Filter(epsilon=epsilon, delta=delta, **kind)
    except UnsupportedError:
        price = OneOrder(order, 0.0).price(math.log(delta))
        assert epsilon <= price * (1.0 + 1e-9)
        return
    assert budget.epsilon(delta).value <= epsilon and budget.delta(epsilon).value <= delta
    if order is not None:
        more = budget.budget + 1e-9 * (1.0 + budget.budget + 30.0 / (order - 1.0))
        assert not meets(OneOrder(order, more), full_target(epsilon, delta, None, zero=False))


# --- the count ------------------------------------------------------------------------------------

RELEASES = st.tuples(st.floats(0.3, 50.0), st.sampled_from([1.0, 1.0, 0.1, 0.01]), st.integers(1, 40), st.booleans())
"""Noise, rate, steps, and whether ``fits`` is called first."""


def true_cost(noise, rate, order):
    """The Renyi divergence at a whole order of a Gaussian release on a Poisson sampled batch, in mpmath."""
    a, q, mu = int(order), mpmath.mpf(rate), 1 / mpmath.mpf(noise)
    if rate == 1.0:
        return a * mu**2 / 2
    parts = (
        mpmath.binomial(a, j) * (1 - q) ** (a - j) * q**j * mpmath.exp(j * (j - 1) * mu**2 / 2) for j in range(a + 1)
    )
    return mpmath.log(mpmath.fsum(parts)) / (a - 1)


@settings(max_examples=40)
@given(plan=st.lists(RELEASES, max_size=8), order=st.integers(2, 12), remaining=st.floats(0.01, 3.0))
def test_filter_never_overspends(plan, order, remaining):
    budget, counted, steps = Filter(order=order, budget=remaining), mpmath.mpf(0), 0
    with mpmath.workdps(50):
        for noise, rate, more, asks in plan:
            release, run = Gaussian(noise_multiplier=noise), {"sampling_rate": rate}
            fits = budget.fits(release, steps=more, **run) if asks else None
            most, before = budget.most_steps(release, **run), (repr(budget), budget.phases, budget.left)
            assert most == 0 or budget.fits(release, steps=most, **run)
            assert not budget.fits(release, steps=most + 1, **run)
            try:
                budget.spend(release, steps=more, **run)
            except UnsupportedError:
                assert before == (repr(budget), budget.phases, budget.left) and fits is not True and most < more
                continue
            assert fits is not False and most >= more
            counted, steps = counted + more * true_cost(noise, rate, order), steps + more
            assert counted <= mpmath.mpf(budget.spent) <= mpmath.mpf(remaining)
            assert mpmath.mpf(budget.spent) <= counted * (1 + mpmath.mpf(10) ** -9) + mpmath.mpf(10) ** -300
            assert Fraction(budget.spent) + Fraction(budget.left) <= Fraction(remaining) * (1 + Fraction(1, 10**15))
    assert sum(query.run.steps for query in budget.phases) == steps


@settings(max_examples=20)
@given(plan=st.lists(RELEASES, min_size=1, max_size=6), seed=st.randoms(use_true_random=False))
def test_filter_ignores_order_and_grouping_of_steps(plan, seed):
    whole, pieces = Filter(order=6, budget=1e6), Filter(order=6, budget=1e6)
    for noise, rate, steps, _ in plan:
        whole.spend(Gaussian(noise_multiplier=noise), sampling_rate=rate, steps=steps)
    singles = [(noise, rate) for noise, rate, steps, _ in plan for _ in range(steps)]
    seed.shuffle(singles)
    for noise, rate in singles:
        pieces.spend(Gaussian(noise_multiplier=noise), sampling_rate=rate)
    assert whole.spent == pieces.spent and whole.left == pieces.left
    assert whole.epsilon_of_spent(1e-5) == pieces.epsilon_of_spent(1e-5)


def test_filter_sum_is_exact_if_floats_would_overspend():
    """Added as floats, with rounding to nearest, many small costs after a large one would be lost."""
    large, small = Gaussian(noise_multiplier=1.0), Gaussian(noise_multiplier=1e9)
    used = Filter(order=2, budget=2.0)
    used.spend(large)
    budget = Filter(order=2, budget=used.spent + 1e-15)
    budget.spend(large)
    fit = budget.most_steps(small)
    assert used.spent + 1e-18 == used.spent and 0 < fit < 2000
    for _ in range(fit):
        budget.spend(small)
    with pytest.raises(UnsupportedError, match="0 releases fit"):
        budget.spend(small)


def test_sampled_release_counts_at_next_integer_order():
    release = Gaussian(noise_multiplier=1.0)
    between, next_whole = (Filter(order=order, budget=1.0) for order in (6.2, 7))
    for budget in (between, next_whole):
        budget.spend(release, sampling_rate=0.01, steps=10)
    assert between.spent == next_whole.spent
    quiet = Gaussian(noise_multiplier=10.0)
    assert Filter(order=6.2, budget=9.0).most_steps(quiet) > Filter(order=7, budget=9.0).most_steps(quiet)


def test_filter_counts_phase_as_mechanism_and_run():
    by_phase, by_message = Filter(order=7, budget=1.0), Filter(order=7, budget=1.0)
    by_phase.spend(phase_of(ADAPTERS, "adapters", sampling_rate=0.01, steps=100))
    by_message.spend(ADAPTERS, sampling_rate=0.01, steps=100)
    assert by_phase.spent == by_message.spent > 0.0
    with pytest.raises(InvalidParameterError, match="A phase already states its bounds"):
        by_phase.spend(phase_of(ADAPTERS, "adapters"), steps=3)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_filter_counts_adaptive_clipping_with_sum(relation):
    with_count = Gaussian(noise_multiplier=2.0, adaptive_clipping_sigma=0.7)
    counted = {}
    for kind in ({"order": None}, {"order": 5.0}):
        both, alone = (Filter(budget=99.0, relation=relation, **kind) for _ in range(2))
        both.spend(with_count)
        alone.spend(Gaussian(noise_multiplier=2.0))
        counted[both.order] = both.spent - alone.spent
    shift = (1.0 if relation == "replace" else 0.5) / 0.7
    assert counted[None] == pytest.approx(shift**2, rel=1e-12, abs=0)
    assert counted[5.0] == pytest.approx(2.5 * shift**2, rel=1e-12, abs=0)


# --- unsupported uses ------------------------------------------------------------------------------

PLAIN = Gaussian(noise_multiplier=2.0)


@pytest.mark.parametrize(
    ("release", "run", "text"),
    [(M1(dim=50, rank=30, noise_multiplier=40.0), {}, "Renyi accounting is not supported"),
     (Laplace(noise_multiplier=4.0), {}, "Renyi accounting is not supported"),
     (PLAIN, {"sampling": "balls-in-bins", "batches": 5}, "balls-in-bins"),
     (PLAIN, {"sampling": "shuffle", "relation": "zero-out"}, "shuffled"),
     (PLAIN, {"sampling": "fixed", "sampling_rate": 0.1, "relation": "replace"}, "does not support fixed sampling"),
     (PLAIN, {"sampling_rate": 0.1, "max_batch_size": 50, "dataset_size": 100}, "max_batch_size"),
     (M2(dim=64, rank=4, noise_multiplier=1.0, fixed_projection=True), {}, "with a fixed projection"),
     (Sketch(rank=4, gamma=8.0), {"relation": "replace"}, "no finite divergence at order 16")],
    ids=str,
)  # fmt: skip
def test_filter_rejects_releases_it_cannot_count(release, run, text):
    budget = Filter(order=16, budget=5.0, relation=run.get("relation", "add-remove"))
    for ask in (budget.spend, budget.fits, budget.most_steps):
        with pytest.raises(UnsupportedError, match=text):
            ask(release, **run)
    assert budget.spent == 0.0 and budget.phases == ()


@pytest.mark.parametrize(
    ("given", "text"),
    [({}, "budget"), ({"order": 1.0}, "order"), ({"order": 8}, "budget"), ({"order": 8, "budget": 0.0}, "budget"),
     ({"order": 8, "budget": 1.0, "epsilon": 1.0, "delta": 1e-5}, "must be omitted if"),
        ({"order": 8, "epsilon": 1.0}, "budget"),
     ({"order": math.nan, "budget": 1.0}, "order"), ({"order": 8, "budget": math.inf}, "budget"),
     ({"order": 8, "budget": 1.0, "relation": "near"}, "relation")],
    ids=str,
)  # fmt: skip
def test_invalid_filter_arguments_are_rejected(given, text):
    with pytest.raises(InvalidParameterError, match=text):
        Filter(**given)


def test_order_without_budget_is_rejected():
    with pytest.raises(UnsupportedError, match="order 4 leaves no budget"):
        Filter(epsilon=0.5, delta=1e-5, order=4)
    with pytest.raises(UnsupportedError, match="noise up to 1e12 leaves no budget"):
        Filter(epsilon=1e-12, delta=1e-300)
    small = Filter(epsilon=1e-7, delta=1e-12).budget
    assert small**-0.5 == pytest.approx(privproj.sigma(Gaussian(), epsilon=1e-7, delta=1e-12).value, rel=1e-9, abs=0)
    with pytest.raises(UnsupportedError, match=r"no order leaves a budget"):
        Filter.for_releases(Sketch(rank=1000, gamma=1.001), epsilon=0.01, delta=1e-9)


def test_filter_relation_and_group_size_are_fixed():
    budget = Filter(order=8, budget=5.0)
    for run in ({"relation": "replace"}, {"group_size": 2}):
        with pytest.raises(InvalidParameterError, match="as in the filter"):
            budget.spend(PLAIN, **run)
    with pytest.raises(InvalidParameterError, match="allow_refuted must be false in a filter"):
        budget.spend(PLAIN, bound="gdp", allow_refuted=True)
    with pytest.raises(UnsupportedError, match="Gaussian noise on whole datasets only"):
        Filter(budget=1.0).spend(PLAIN, sampling_rate=0.1)
    group = Filter(budget=4.0, group_size=2)
    assert (group.most_steps(PLAIN), Filter(budget=4.0).most_steps(PLAIN)) == (3, 15)


def test_filter_result_lists_counted_releases():
    budget = Filter(epsilon=6.0, delta=1e-5, order=8, relation="replace")
    budget.spend(PLAIN, steps=2)
    assert str(budget.epsilon(1e-5).status) == "proved"
    budget.spend(Sketch(rank=4, gamma=100.0), steps=3)
    found = budget.epsilon(1e-5)
    assert str(found.status) == "conditional" and found.data_assumptions and found.run["steps"] == 5
    assert found.bound == "renyi-filter (gaussian.rdp + sketch.rdp-best)"
    assert Requirement.FIXED_FILTER in found.requirements and Requirement.FIXED_SCHEDULE not in found.requirements
    assert found.mechanism["filter"] == {"order": 8.0, "budget": budget.budget, "spent": budget.spent}
    assert [phase["steps"] for phase in found.mechanism["phases"]] == [2, 3]
    assert found.value == Filter(epsilon=6.0, delta=1e-5, order=8).epsilon(1e-5).value


# --- adversaries ----------------------------------------------------------------------------------


def admission(moves, **budget):
    """Return the states of a game that a filter admits."""

    def admits(state):
        requested = Filter(**budget)
        try:
            for (mu, rate), steps in zip(moves, state, strict=True):
                if steps:
                    requested.spend(Gaussian(noise_multiplier=1.0 / mu), sampling_rate=rate, steps=steps)
        except UnsupportedError:
            return False
        return True

    return admits


@pytest.mark.parametrize("order", full_if(["remove", "add"], lambda order: order == "add"))
def test_best_adversary_of_renyi_filter_stays_below_delta(order):
    epsilon, delta, moves = 2.0, 1e-2, [(0.3, 1.0), (1.0, 0.2)]
    found = adversary.at(
        adversary.value(moves, admission(moves, epsilon=epsilon, delta=delta, order=4), order), epsilon
    )
    assert 0.1 * delta < found < delta


@pytest.mark.full
def test_adversary_detects_filter_that_allows_too_much():
    epsilon, delta, moves = 2.0, 1e-2, [(0.3, 1.0), (1.0, 0.2)]
    budget = Filter(epsilon=epsilon, delta=delta, order=4).budget
    found = adversary.value(moves, admission(moves, budget=2.5 * budget, order=4), "remove")
    assert adversary.at(found, epsilon) > 1.5 * delta


def test_best_adversary_of_gaussian_filter_equals_fixed_plan():
    moves, epsilon = [(0.5, 1.0), (1.0, 1.0)], 2.0
    requested = {"budget": 2.0000001}
    found = adversary.at(adversary.value(moves, admission(moves, **requested), "remove"), epsilon)
    assert found == pytest.approx(Filter(**requested).delta(epsilon).value, rel=2e-3, abs=0)
    assert adversary.at(adversary.composed([(1.0, 1.0)] * 2, "remove"), epsilon) == pytest.approx(
        found, rel=2e-3, abs=0
    )


def test_composed_profile_of_adaptive_run_is_not_guarantee():
    """After a first release either second one completes the same delta; who may choose gains half as much again."""
    epsilon, first, loud, rare = 2.0, (0.5, 1.0), (0.5, 1.0), (1.801704467, 0.05)
    planned = [adversary.at(adversary.composed([first, second], "remove"), epsilon) for second in (loud, rare)]
    assert planned[0] == pytest.approx(planned[1], rel=1e-2, abs=0)
    delta = 1.02 * max(planned)
    chosen = np.maximum(*(adversary.after(adversary.stopped(), second, "remove") for second in (loud, rare)))
    assert adversary.at(adversary.after(chosen, first, "remove"), epsilon) > 1.5 * delta
    moves = [first, rare]
    best_order = Filter.for_releases(Gaussian(noise_multiplier=2.0), epsilon=epsilon, delta=delta).order
    admits = admission(moves, epsilon=epsilon, delta=delta, order=best_order)
    assert admits((1, 0))
    assert adversary.at(adversary.value(moves, admits, "remove"), epsilon) < delta


@pytest.mark.full
@pytest.mark.parametrize("kind", [{"order": 4.0}, {"order": None}], ids=str)
def test_adaptive_audit_does_not_refute_filter(kind):
    """Noise is chosen loud while the loss is short of epsilon and quiet beyond, until the filter refuses."""
    epsilon, delta, trials, rng = 2.0, 0.1, 1000, np.random.default_rng(26)
    rates = (1.0,) if "kind" in kind else (1.0, 0.5)

    remaining = Filter(epsilon=epsilon, delta=delta, **kind).budget

    def loss_of_run(member):
        budget, loss = Filter(budget=remaining, **kind), 0.0
        while loss < epsilon:
            rate = rates[budget.spent > 0.5 * budget.budget] if len(rates) > 1 else 1.0
            for noise in (0.9, 1.6, 3.0):
                mu = 1.0 / noise
                try:
                    budget.spend(Gaussian(noise_multiplier=noise), sampling_rate=rate)
                except UnsupportedError:
                    continue
                seen = rng.standard_normal() + mu * (member and rng.random() < rate)
                loss += math.log(1.0 - rate + rate * math.exp(mu * seen - 0.5 * mu * mu))
                break
            else:
                return loss
        return loss

    # P(E) - e^eps Q(E) <= delta for the event that the loss reached epsilon, with both rates at 1 - 1e-4.
    inside, outside = (sum(loss_of_run(member) >= epsilon for _ in range(trials)) for member in (True, False))
    assert inside > 0.5 * delta * trials
    # Clopper-Pearson: quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k).
    true = special.betaincinv(inside, trials - inside + 1, 1e-4)
    false = special.betaincinv(outside + 1, trials - outside, 1.0 - 1e-4)
    measured = true - math.exp(epsilon) * false
    assert measured <= delta


def test_epsilon_of_spent_is_not_guarantee_after_stopping():
    """An adversary who stops at a large loss breaks the current epsilon, but not the epsilon of the budget."""
    noise, steps, delta = 2.0, 16, 1e-2
    so_far = [
        privproj.epsilon(Gaussian(noise_multiplier=noise), delta=delta, steps=t).value for t in range(1, steps + 1)
    ]

    def of_stopping(epsilon):
        """What stopping now gains against this epsilon, over minus the loss."""
        return np.maximum(0.0, -np.expm1(epsilon + adversary.EPSILONS))

    found = of_stopping(so_far[-1])
    for epsilon in (*reversed(so_far[:-1]), math.inf):
        found = np.maximum(of_stopping(epsilon), adversary.after(found, (1.0 / noise, 1.0), "remove"))
    assert adversary.at(found, 0.0) > 2.0 * delta
    found = of_stopping(so_far[-1])
    for _ in range(steps):
        found = np.maximum(of_stopping(so_far[-1]), adversary.after(found, (1.0 / noise, 1.0), "remove"))
    assert adversary.at(found, 0.0) == pytest.approx(delta, rel=5e-3, abs=0)


def test_filter_cannot_be_copied_or_pickled():
    budget = Filter(budget=1.0)
    budget.spend(Gaussian(noise_multiplier=2.0), steps=2)
    for made in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="copied"):
            made(budget)


def test_threads_do_not_overspend_shared_filter():
    release, before = Gaussian(noise_multiplier=100.0), sys.getswitchinterval()

    def spend_all(budget: Filter, made: list[int]) -> None:
        with contextlib.suppress(UnsupportedError):
            while True:
                budget.spend(release)
                made.append(1)

    sys.setswitchinterval(1e-7)
    try:
        for _ in range(20):
            budget, made = Filter(budget=0.003), []
            threads = [threading.Thread(target=spend_all, args=(budget, made)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(made) * Fraction(1, 10**4) <= Fraction(budget.budget)
    finally:
        sys.setswitchinterval(before)


def test_cost_is_at_least_divergence_at_large_orders():
    # The excess of the sum over 1, of which the first terms are all that counts at such a rate.
    rate, z, order = 3e-8, 1000.0, 67009
    with mpmath.workdps(50):
        q, terms = mpmath.mpf(rate), range(2, 30)
        excess = mpmath.fsum(
            mpmath.binomial(order, j)
            * (1 - q) ** (order - j)
            * q**j
            * mpmath.expm1(j * (j - 1) / (2 * mpmath.mpf(z) ** 2))
            for j in terms
        )
        truth = mpmath.log1p(excess) / (order - 1)
        budget = Filter(order=order, budget=1.0)
        budget.spend(Gaussian(noise_multiplier=z), sampling_rate=rate)
        assert truth <= budget.spent <= truth * (1 + mpmath.mpf("1e-7"))


@pytest.mark.parametrize("name", ["order", "budget", "relation", "group_size"])
def test_filter_attributes_are_read_only(name):
    budget = Filter(epsilon=1.0, delta=1e-5, order=20)
    before = getattr(budget, name)
    with pytest.raises(InvalidParameterError, match=name):
        setattr(budget, name, 2 * before if name != "relation" else "replace")
    assert getattr(budget, name) == before


def test_filter_takes_batch_size_and_dataset_size():
    mechanism, sizes = Gaussian(noise_multiplier=1.0), {"batch_size": 256, "dataset_size": 50_000}
    plain = {"sampling_rate": 256 / 50_000, "dataset_size": 50_000}
    by_sizes, by_rate = (
        Filter.for_releases(mechanism, epsilon=1.0, delta=1e-5, **run)
        for run in ({**sizes, "epochs": 3}, {**plain, "steps": 588})
    )
    steps = by_sizes.most_steps(mechanism, **sizes, steps=1)
    assert by_sizes.order == by_rate.order and steps == by_rate.most_steps(mechanism, **plain, steps=1)


def test_filter_names_missing_delta():
    with pytest.raises(InvalidParameterError, match="missing delta; give epsilon and delta"):
        Filter(epsilon=1.0)
