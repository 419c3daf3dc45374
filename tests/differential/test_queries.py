"""Random queries against an independent evaluation, the reference itself, and negative controls of both."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from tests.differential import pair_composition, pairs
from tests.differential.features import feature_dict
from tests.differential.queries import (
    BOUNDS,
    PARAMETERS,
    SHARE,
    Query,
    is_quick,
    queries,
    query_of_seed,
    quick_queries,
)
from tests.differential.query_rules import check_query, evaluate
from tests.differential.report import Report, run_examples

MOST_UNCHECKED = 0.2  # share of the quick queries without an independent value
COUNTS = settings(suppress_health_check=list(HealthCheck), print_blob=False)


@pytest.mark.full
def test_quick_queries_keep_all_rules():
    report = Report()

    @settings(COUNTS, max_examples=250)
    @given(quick_queries())
    def test(query):
        check = check_query(query)
        report.add(check)
        check.raise_first()
        assert not check.flags & {"overtime", "usage"}

    test()
    answered = report.totals["checked"] + report.totals["not checked"]
    assert answered >= 0.8 * report.examples
    assert report.totals["not checked"] <= MOST_UNCHECKED * answered


def make_query(query, mechanism, bound, parameters, run=None, **target):
    return Query(1, query, mechanism, parameters, bound, run or {}, **target)


HARD = {
    "unequal norms": make_query(
        "delta", "wishart", "exact", {"dim": 2, "rank": 2, "misalignment": 1e-4, "norm_ratio": 1.001}, epsilon=3.0
    ),
    "narrow panels": make_query(
        "delta", "wishart", "exact", {"dim": 300000, "rank": 2, "misalignment": 5.220740386781583e-07}, epsilon=0.0
    ),
    "few steps": make_query(
        "epsilon",
        "gaussian",
        "analytic",
        {"noise_multiplier": 0.3763},
        {"steps": 30, "sampling_rate": 1e-6},
        delta=4.6e-6,
    ),
    "tiny rate": make_query(
        "epsilon", "gaussian", "analytic", {"noise_multiplier": 0.5}, {"steps": 100, "sampling_rate": 1e-5}, delta=1e-8
    ),
    "atoms": make_query("epsilon", "laplace", "exact", {"noise_multiplier": 1.0}, {"steps": 10}, delta=1e-8),
    "rate": make_query(
        "rate",
        "sketch-public",
        "rank-free",
        {"rank": 2, "noise_multiplier": 2.534484416553443},
        {"steps": 300},
        epsilon=1.0,
        delta=1e-6,
    ),
    "a tail elsewhere": make_query(
        "epsilon", "wishart", "early-exact-tail", {"dim": 88, "rank": 1, "misalignment": 2.9e-4}, delta=6.2e-11
    ),
    "no such noise": make_query(
        "sigma",
        "m2",
        "beta-tail",
        {"dim": 605, "rank": 16, "change_rank": 7},
        {"steps": 16345},
        epsilon=1.796,
        delta=1.691e-10,
    ),
    "more than everything": make_query("delta", "gaussian", "classical-2", {"noise_multiplier": 3.16}, epsilon=0.0015),
    "a group": make_query(
        "epsilon",
        "gaussian",
        "analytic",
        {"noise_multiplier": 1.24526},
        {"steps": 197, "sampling_rate": 1.587e-7, "group_size": 2},
        delta=0.00436,
    ),
    **{name: Query(1, *arguments) for name, arguments in feature_dict("QUERIES").items()},
}


@pytest.mark.full
@pytest.mark.parametrize("query", HARD.values(), ids=HARD)
def test_hard_queries_keep_all_rules(query):
    check = check_query(query)
    assert check.broken == []
    assert not check.flags & {"overtime", "usage"}


# --- the reference itself ---------------------------------------------------------------------------


def test_pair_composition_agrees_with_gaussian_closed_form():
    """1000 Gaussian releases at ``z`` are one at ``z/sqrt(1000)``, for delta about 1e-5 and 1e-60."""
    for z, eps, at in ((20.0, 5.0, 1e-5), (2.0, 383.5, 1e-60)):
        direct, error = pairs.gaussian(math.sqrt(1000) / z).delta(eps)
        low, high = pair_composition.composed(pairs.gaussian(1 / z), 1000, eps, at)
        assert error < 1e-10 * direct
        assert low <= direct <= high < 1.1 * low


def test_pair_composition_agrees_on_one_and_two_grids():
    pair = pairs.Remove(pairs.gaussian(1.0), 1e-3)
    one = pair_composition.composed(pair, 100, 0.05, 1e-4)
    left, right = pair_composition.end(pair, 1e-16, -1.0), pair_composition.end(pair, 1e-14, 1.0)
    two = [pair_composition.rare_delta(pair, 100, 0.05, left, 0.02, right, scale)[0] for scale in (1.0, 2.0)]
    assert two[1] <= two[0] * (1 + 1e-9)
    assert max(one[0], two[1] - (two[0] - two[1])) <= min(one[1], two[1])


@pytest.mark.parametrize(
    ("dim", "rank", "m", "eps", "expected"),
    [
        (10**6, 64, 1e-12, 5e-4, 4.3554347874652e-7), (10**6, 64, 1e-12, 5e-3, 1.9002684787741e-20),
        (10**6, 64, 1e-6, 1.0, 1.29419140300342e-5), (10**6, 10**6, 1e-10, 0.1, 1.56032628026281e-15),
        (2, 1, 1e-12, 0.1, 1.21117485797798e-6), (768, 16, 1e-4, 8.0, 3.06193210923069e-16),
    ],
)  # fmt: skip
def test_wishart_pair_matches_table_of_specification(dim, rank, m, eps, expected):
    value, error = pairs.Wishart(dim, rank, m).delta(eps)
    assert abs(value - expected) <= error + 1e-12 * expected
    assert error <= 1e-5 * expected


def test_pairs_have_mean_squared_sensitivity_of_theory():
    """The mean of ``S^2`` has a closed form for each pair, as the specification states it."""
    for pair, mean in (
        (pairs.m2_rank_one(2048, 16, 1.0), 16 / 2048), (pairs.sketched(5, 1.0), 1.0),
        (pairs.m1_rank_one(1000, 16, 1.0), (16 + 1000 + 1) / 16),
        (pairs.m2_layers([(64, 4, 0.5), (32, 8, 0.5)], 1.0), 0.15625),
    ):  # fmt: skip
        assert math.isclose(float(pair.w.sum()), 1.0, rel_tol=1e-10)
        assert math.isclose(float(pair.s**2 @ pair.w), mean, rel_tol=1e-8)


# --- negative controls ----------------------------------------------------------------------------


def understated(share):
    """Return an accountant whose values are too small by a relative ``share``."""

    def answer(query, **changes):
        result = evaluate(query, **changes)
        value = result.value
        return replace(result, value=value * (1 - share)) if isinstance(value, float) and value < math.inf else result

    return answer


def broken_rules(query, evaluate, all_rules=True):
    return [rule for rule, _ in check_query(query, evaluate=evaluate, all_rules=all_rules).broken]


@pytest.mark.parametrize("share", [1e-5, 1e-3])
def test_understated_result_breaks_unsafe(share):
    """A relative error of 1e-5 is detected at single releases whose delta is enclosed from both sides."""
    drawn = [query for query in map(query_of_seed, range(10**5, 10**5 + 160)) if is_quick(query)]
    exact = [query for query in drawn if query.kind.endswith(("analytic one", "exact one", "rank1 one"))]
    checks = [check_query(query, evaluate=understated(share), all_rules=False) for query in exact]
    enclosed = [
        check
        for check in checks
        if "checked above" in check.flags
        and check.value
        and check.value > 1e-200
        and "rank-free" not in check.query.bound
    ]
    assert len(enclosed) >= 5
    undetected = [check.example for check in enclosed if "unsafe" not in {rule for rule, _ in check.broken}]
    assert len(undetected) <= 0.2 * len(enclosed), undetected


SAMPLED = Query(0, "epsilon", "gaussian", {"noise_multiplier": 0.8}, "analytic",
                {"steps": 2000, "sampling_rate": 0.01}, delta=1e-5)  # fmt: skip
ONE_STEP = Query(0, "epsilon", "gaussian", {"noise_multiplier": 2.0}, "analytic", delta=1e-6)


def test_understated_run_breaks_unsafe():
    assert broken_rules(SAMPLED, understated(5e-3), all_rules=False) == ["unsafe"]
    assert broken_rules(SAMPLED, evaluate, all_rules=False) == []


def test_overstated_run_breaks_useless():
    assert broken_rules(SAMPLED, understated(-0.02), all_rules=False) == ["useless"]


def test_round_trip_one_ulp_above_target_breaks_inverse():
    def answer(query, **changes):
        result = evaluate(query, **changes)
        return replace(result, value=math.nextafter(1e-6, 1.0)) if query.query == "delta" else result

    assert "inverse" in broken_rules(ONE_STEP, answer)


def test_exception_breaks_traceback_and_nan_breaks_number():
    def raises(query, **changes):
        raise KeyError("here")

    def nan(query, **changes):
        return replace(evaluate(query), value=math.nan)

    assert broken_rules(ONE_STEP, raises) == ["traceback"]
    assert "number" in broken_rules(ONE_STEP, nan)


@pytest.mark.parametrize(
    ("rule", "query", "factor"),
    [
        ("monotone", replace(ONE_STEP, seed=0), lambda q: 100.0 if q.parameters["noise_multiplier"] > 2.0 else 1.0),
        ("basic", replace(SAMPLED, seed=1), lambda q: 1e-3 if q.run["steps"] == 1 else 1.0),
        ("order", replace(ONE_STEP, seed=2, bound="rdp"), lambda q: 1e-3 if q.bound == "rdp" else 1.0),
    ],
    ids=["monotone", "basic", "order"],
)  # fmt: skip
def test_scaled_result_breaks_rule(rule, query, factor):
    def answer(query, **changes):
        result = evaluate(query, **changes)
        return replace(result, value=result.value * factor(query))

    assert rule in broken_rules(query, answer)


@pytest.mark.slow
def test_many_queries_keep_all_rules(capsys):
    report = run_examples(Report(), queries(), check_query, examples=20_000, seed=1)
    with capsys.disabled():
        print(f"\nqueries: {json.dumps(report.plain()['counts'])}")
    assert not report.failures, "\n\n".join(report.failures.values())


def test_queries_cover_every_mechanism_with_guarantee():
    fixed = {query.mechanism for query in HARD.values()} - (SHARE.keys() | PARAMETERS.keys())
    assert set(BOUNDS) - fixed == SHARE.keys() & PARAMETERS.keys()
