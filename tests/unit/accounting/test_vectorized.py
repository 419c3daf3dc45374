"""Array functions agree with scalar functions within their margins, also after a round trip."""

import math
import pickle
import random

import numpy as np
import pytest

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Outcome, PublicSketch, Side, Status, UnsupportedError
from privproj.accounting.kernel_rows import row_function
from privproj.accounting.query import composition_of
from privproj.accounting.vectorized_kernels import answers_of
from privproj.mechanisms.registry import registry
from privproj.numerics import jit
from privproj.numerics.interval import LOG_DELTA_STEP, digits_above, rounded_log_delta
from privproj.profiles.conversion import delta_value
from privproj.profiles.gaussian import GAUSSIAN_KERNELS
from privproj.profiles.privacy_profile import ProfileKernels

KINDS = {
    "gaussian": lambda rng: {},
    "m2": lambda rng: _shape(rng, 10**5) | {"columns": 8},
    "sketch-public": lambda rng: {"rank": rng.choice([1, 16, 300])},
}
"""Parameters besides the noise multiplier, at random, for each mechanism with columns."""

RUNS = ({}, {"sampling_rate": 0.01}, {"relation": "replace"}, {"group_size": 2})
"""Runs for all functions: a release, a sampled run, another relation and a group."""


def _shape(rng, largest):
    dim = round(math.exp(rng.uniform(1.0, math.log(largest))))
    return {"dim": dim, "rank": min(dim, rng.choice([1, 2, 4, 16, 64]))}


def drawn(kind, count, seed=0):
    """Random columns of a mechanism: its parameters, epsilons and deltas."""
    rng = random.Random(f"{kind} {seed}")
    rows = [{"noise_multiplier": 10.0 ** rng.uniform(-1, 1), **KINDS[kind](rng)} for _ in range(count)]
    eps = [10.0 ** rng.uniform(-2, 1.5) for _ in rows]
    deltas = [10.0 ** rng.uniform(-12, -0.5) for _ in rows]
    return {name: [row[name] for row in rows] for name in rows[0]}, eps, deltas


def with_columns(count, seed=0, runs=RUNS):
    """Every bound that some of its drawn parameters give columns, with such rows alone, and a run."""
    for bound in registry():
        kind = bound.mechanism.name
        if row_function(bound) is not None and kind in KINDS:
            given, eps, deltas = drawn(kind, count, seed)
            for run in runs:
                if run.get("relation", "add-remove") in bound.relations and not (
                    run.get("group_size") and bound.of_group != "same"
                ):
                    yield pytest.param(
                        bound.mechanism, bound.name, run, given, eps, deltas, id=f"{kind}-{bound.name}-{run}"
                    )


def mechanism_at(kind, given, i):
    return kind(**{name: column[i] for name, column in given.items()})


@pytest.mark.parametrize(("kind", "bound", "run", "given", "eps", "deltas"), list(with_columns(1, runs=RUNS[:2])))
def test_arrays_and_scalars_agree_after_round_trip(kind, bound, run, given, eps, deltas):
    back = privproj.epsilons(kind, **given, delta=deltas, bound=bound, **run)
    forth = privproj.deltas(kind, **given, epsilon=eps, bound=bound, **run)
    requested = np.minimum(back.value, 1e9)
    assert (privproj.deltas(kind, **given, epsilon=requested, bound=bound, **run).value <= deltas).all()
    for i in range(len(eps)):
        mechanism = mechanism_at(kind, given, i)
        one = privproj.epsilon(mechanism, delta=deltas[i], bound=bound, **run)
        other = privproj.delta(mechanism, epsilon=eps[i], bound=bound, **run)
        assert back.value[i] == pytest.approx(one.value, rel=1e-7) and forth.value[i] == pytest.approx(
            other.value, rel=1e-7
        )
        assert back.lower[i] <= one.value and (one.lower or 0.0) <= back.value[i]
        assert forth.lower[i] <= other.value and (other.lower or 0.0) <= forth.value[i]
        assert privproj.delta(mechanism, epsilon=requested[i], bound=bound, **run).value <= deltas[i]
        if 0.0 < forth.value[i] < 1.0:
            assert privproj.epsilon(mechanism, delta=forth.value[i], bound=bound, **run).value <= eps[i]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "bound", "run", "given", "eps", "deltas"), list(with_columns(20, seed=1)))
def test_array_results_hold_in_scalar_functions(kind, bound, run, given, eps, deltas):
    back = privproj.epsilons(kind, **given, delta=deltas, bound=bound, **run)
    requested = np.minimum(back.value, 1e9)
    assert (privproj.deltas(kind, **given, epsilon=requested, bound=bound, **run).value <= deltas).all()
    for i in range(0, len(eps), 4):
        mechanism = mechanism_at(kind, given, i)
        assert privproj.delta(mechanism, epsilon=requested[i], bound=bound, **run).value <= deltas[i]


@pytest.mark.parametrize("run", [{}, pytest.param({"sampling_rate": 0.01}, marks=pytest.mark.full)])
def test_sigmas_meet_their_targets_and_are_nearly_least(run):
    given, eps, deltas = drawn("m2", 3)
    shape = {name: given[name] for name in ("dim", "rank")}
    found = privproj.sigmas(M2, **shape, epsilon=eps, delta=deltas, **run)
    assert (found.lower <= found.value).all() and (found.outcome == Outcome.OK).all()
    again = privproj.epsilons(M2, **shape, noise_multiplier=found.value, delta=deltas, **run)
    assert (again.value <= eps).all()
    for i, noise in enumerate(found.value.tolist()):
        mechanism = M2(dim=shape["dim"][i], rank=shape["rank"][i], noise_multiplier=noise)
        assert privproj.epsilon(mechanism, delta=deltas[i], **run).value <= eps[i]
        assert privproj.delta(mechanism, epsilon=eps[i], **run).value <= deltas[i]
        least = privproj.sigma(M2(dim=shape["dim"][i], rank=shape["rank"][i]), epsilon=eps[i], delta=deltas[i], **run)
        assert noise == pytest.approx(least.value, rel=1e-6 if run else 1e-9)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "bound", "run", "given", "eps", "deltas"), list(with_columns(4, 3, RUNS[:2])))
def test_array_sigmas_meet_targets_in_scalar_functions(kind, bound, run, given, eps, deltas):
    """All four combinations of array and scalar functions."""
    shape = {name: column for name, column in given.items() if name != "noise_multiplier"}
    found = privproj.sigmas(kind, **shape, epsilon=eps, delta=deltas, bound=bound, **run).value
    for i in np.flatnonzero(found < math.inf).tolist():
        target = {"epsilon": eps[i], "delta": deltas[i]}
        one = {name: column[i] for name, column in shape.items()}
        noises = [float(found[i]), privproj.sigma(kind(**one), **target, bound=bound, **run).value]
        requested = {**one, "noise_multiplier": noises}
        assert (privproj.epsilons(kind, **requested, delta=deltas[i], bound=bound, **run).value <= eps[i]).all()
        assert (privproj.deltas(kind, **requested, epsilon=eps[i], bound=bound, **run).value <= deltas[i]).all()
        for noise in noises:
            mechanism = kind(**one, noise_multiplier=noise)
            assert privproj.epsilon(mechanism, delta=deltas[i], bound=bound, **run).value <= eps[i]
            assert privproj.delta(mechanism, epsilon=eps[i], bound=bound, **run).value <= deltas[i]
        if "rank" in one and i == 0:
            named = kind(**{name: value for name, value in one.items() if name != "rank"}, noise_multiplier=noises[0])
            rank = privproj.rank(named, **target, bound=bound, **run).value
            again = {**one, "rank": rank, "noise_multiplier": noises[0]}
            assert rank is None or privproj.epsilons(kind, **again, delta=deltas[i], bound=bound, **run).value <= eps[i]


@pytest.mark.parametrize("count", [None, 2.0], ids=str)
def test_array_sigmas_are_near_scalar_sigmas(count):
    eps, deltas = np.array([[0.5], [1.0], [4.0]]), 10.0 ** -np.arange(2.0, 8.0)
    requested = Gaussian(adaptive_clipping_sigma=count)
    found = privproj.sigmas(requested, epsilon=eps, delta=deltas)
    for i, j in np.ndindex(3, 6):
        least = privproj.sigma(requested, epsilon=float(eps[i, 0]), delta=float(deltas[j]))
        assert found.outcome[i, j] == least.outcome and found.value[i, j] == pytest.approx(
            least.value or math.inf, rel=2e-9
        )


@pytest.mark.parametrize(
    ("eps", "log10_delta"), [(8.0, -300.0), (1e9, -1e-10), (1e6, -1e-10), (1e9, -1e-8), (0.1, -50.0)]
)
def test_array_sigma_equals_scalar_near_its_limit(eps, log10_delta):
    found = privproj.sigmas(Gaussian, epsilon=[eps], log10_delta=log10_delta)
    assert found.value == pytest.approx(
        privproj.sigma(Gaussian(), epsilon=eps, log10_delta=log10_delta).value, rel=2e-9
    )


def test_array_sigmas_round_trip_at_large_deltas():
    eps, powers = [0.0143666767714, 1.6, 0.3], [-0.006417714377287043, -0.05, -1.0]
    found = privproj.sigmas(Gaussian, epsilon=eps, log10_delta=powers)
    back = privproj.epsilons(Gaussian, noise_multiplier=found.value, log10_delta=powers)
    assert (back.value <= eps).all()


@pytest.mark.parametrize(
    "bound",
    [bound for bound in registry() if row_function(bound) is not None],
    ids=lambda bound: f"{bound.mechanism.name}-{bound.name}",
)
def test_notes_of_array_bounds_do_not_depend_on_noise(bound):
    """One question is put for all rows that differ in noise alone."""
    given, _, _ = drawn(bound.mechanism.name, 6)
    for i in range(6):
        output = set()
        for noise in (1e-12, 0.3, 1.0, 1e12):
            mechanism = mechanism_at(bound.mechanism, {**given, "noise_multiplier": [noise] * 6}, i)
            phase = composition_of(mechanism, bound.name, {}).only
            facts = (
                phase.notes,
                phase.data_assumptions,
                phase.mechanism_requirements,
                phase.run_requirements,
                phase.status,
            )
            checks = bound.check(mechanism), bound.is_exact(mechanism), bound.guarantees(mechanism)
            has = [at is None for mu in (1e-12, 1.0, 1e12) for at in (row_function(bound)(mechanism, mu),)]
            output.add((*facts, *checks, *has))
        assert len(output) == 1


def test_noise_that_group_takes_out_of_domain_on_way_is_no_error():
    found = privproj.sigmas(Gaussian, epsilon=[1.0, 8.0], delta=[1e-5, 0.02], group_size=2, sampling_rate=0.01)
    assert found.outcome.tolist() == [Outcome.OK, Outcome.OK]


@pytest.mark.full
def test_machine_code_and_plain_python_answer_alike(monkeypatch):
    noises = [0.5, 1.0, 4.0]
    plain = privproj.deltas(Gaussian, noise_multiplier=noises, epsilon=1.0)
    monkeypatch.setattr(jit, "COMPILE_ROWS", 1)
    fast = privproj.deltas(Gaussian, noise_multiplier=noises, epsilon=1.0, threads=2)
    assert fast.value == pytest.approx(plain.value, rel=1e-9)
    assert (fast.lower <= plain.value).all() and (plain.lower <= fast.value).all()


def test_columns_are_broadcast_and_row_does_not_depend_on_others():
    noises, deltas = np.array([[0.5], [1.0], [2.0]]), np.array([1e-9, 1e-5])
    found = privproj.epsilons(M2, dim=64, rank=4, noise_multiplier=noises, delta=deltas)
    assert found.value.shape == found.lower.shape == found.outcome.shape == (3, 2)
    again = privproj.epsilons("m2", dim=64, rank=[4], noise_multiplier=noises, log10_delta=np.log10(deltas))
    assert found.value == pytest.approx(again.value, rel=1e-9)
    for i, j in np.ndindex(3, 2):
        alone = privproj.epsilons(M2, dim=64, rank=4, noise_multiplier=noises[i, 0], delta=deltas[j])
        assert alone.value.shape == () and alone.value == found.value[i, j]
    assert privproj.epsilons(M2, dim=64, rank=4, noise_multiplier=[], delta=1e-5).value.shape == (0,)


@pytest.mark.parametrize("query", ["deltas", "epsilons", "sigmas"])
def test_rows_of_several_shapes_are_answered_as_each_alone(query, monkeypatch):
    """Also where nothing is projected, which is another law, and where the same shape comes again."""
    columns = {"dim": [64, 128, 64, 16, 64], "rank": [4, 4, 64, 2, 4], "noise_multiplier": [0.5, 1.0, 2.0, 0.7, 0.9]}
    targets = {"epsilon": [1.0, 0.5, 2.0, 0.1, 0.7], "delta": [1e-5, 1e-3, 1e-6, 1e-5, 1e-4]}
    columns |= {"deltas": {"epsilon": targets["epsilon"]}, "epsilons": {"delta": targets["delta"]}}.get(query, targets)
    if query == "sigmas":
        del columns["noise_multiplier"]
    # Who asks often is answered by machine code, which rounds otherwise.
    monkeypatch.setattr(jit, "_needs_machine_code", lambda *_: False)
    ask = getattr(privproj, query)
    found = ask(M2, **columns)
    for i in range(5):
        alone = ask(M2, **{name: column[i] for name, column in columns.items()})
        assert (found.value[i], found.lower[i], found.log10_delta[i]) == (alone.value, alone.lower, alone.log10_delta)


def test_lower_bounds_use_original_arguments():
    noises = np.array([0.5, 1.0])
    found = privproj.epsilons(M2, dim=64, rank=4, noise_multiplier=noises, delta=1e-5)
    noises *= 3.0
    found = pickle.loads(pickle.dumps(found))
    assert ((0.999999 * found.value < found.lower) & (found.lower < found.value)).all()
    assert found.arguments["noise_multiplier"].tolist() == [0.5, 1.0]
    known = privproj.deltas(M2, dim=64, rank=4, noise_multiplier=[1.0], epsilon=1.0)
    assert 0.0 < pickle.loads(pickle.dumps(known)).lower[0] < known.value[0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: privproj.epsilons(M2, dim=[64, 8, 64], rank=9, noise_multiplier=1.0, delta=[0.1, 0.1, 2]),
            "row 1: rank",
        ),
        (
            lambda: privproj.epsilons(M2, dim=[64, 64, 8], rank=9, noise_multiplier=1.0, delta=[0.1, 2, 0.1]),
            "row 1: delta",
        ),
        (
            lambda: privproj.epsilons(M2, dim=64, rank=[4, 65, 66], noise_multiplier=1.0, delta=1e-5),
            "row 1: rank must be",
        ),
        (lambda: privproj.deltas(Gaussian, noise_multiplier=[[1.0], [-1.0]], epsilon=[1.0, 2.0]), "row 1, 0: noise"),
        (lambda: privproj.deltas(Gaussian, noise_multiplier=1.0, epsilon=[1.0, math.nan]), "row 1: epsilon must be"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=1.0, delta=[0.1, 1.0]), "row 1: delta must be"),
        (
            lambda: privproj.epsilons(Gaussian, noise_multiplier=[1.0], epsilon=1.0, delta=0.1),
            "epsilon must be omitted",
        ),
        (lambda: privproj.epsilons(3, delta=0.1), "a mechanism, its class"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=[[1.0, 2.0], [3.0]], delta=0.1), "rows of equal length"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=(1.0, True), delta=0.1), "booleans"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=[1.0, 2.0], delta=[0.1, 0.2, 0.3]), "broadcast"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=1.0, delta=0.1, colour=1), "colour"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=1.0), "missing delta"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=1.0, delta=0.1, threads=0), "threads"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=1.0, delta=0.1, bound="best"), "bound"),
        (lambda: privproj.epsilons(Gaussian, noise_multiplier=1.0, delta=0.1, steps=[1, 0]), "row 1: steps"),
        (lambda: privproj.sigmas(Gaussian, noise_multiplier=[1.0], epsilon=1.0, delta=0.1), "noise_multiplier"),
        (lambda: privproj.sigmas("wishart", dim=9, rank=2, misalignment=0.1, epsilon=1.0, delta=0.1), "mechanism"),
    ],
)
def test_first_bad_row_is_named_with_its_value(call, text):
    with pytest.raises(InvalidParameterError, match=text):
        call()


def test_array_functions_reject_and_warn_like_scalar_ones():
    with pytest.raises(UnsupportedError, match="replace"):
        privproj.epsilons(Gaussian, noise_multiplier=[1.0], delta=1e-5, relation="replace", sampling_rate=0.5)
    found = privproj.epsilons(
        M2, dim=64, rank=4, columns=8, change_rank=[1, 2], noise_multiplier=1.0, delta=1e-5, bound="beta-tail"
    )
    assert found.status is Status.CONDITIONAL and len(found.data_assumptions) == 2
    assert privproj.epsilons(M2, dim=64, rank=4, noise_multiplier=1.0, delta=1e-5).status is Status.PROVED


def test_runs_and_bounds_without_columns_are_answered_row_by_row():
    found = privproj.epsilons(Gaussian, noise_multiplier=[1.0, 2.0], delta=1e-5, steps=3)
    single = [privproj.epsilon(Gaussian(noise_multiplier=z), delta=1e-5, steps=3) for z in (1.0, 2.0)]
    assert found.value.tolist() == [one.value for one in single] and found.side is Side.EXACT
    rule = privproj.epsilons(Gaussian, noise_multiplier=[1e-3, 40.0], delta=1e-5, bound="rdp")
    assert rule.side is Side.UPPER and rule.outcome.tolist() == [Outcome.OK, Outcome.OK]


def test_rows_of_bound_without_kernels_are_scalar_answers():
    shape = {"dim": 64, "rank": 4, "noise_multiplier": 2.0}
    found = privproj.epsilons("m1", **shape, delta=[1e-5, 1e-3])
    single = [privproj.epsilon(privproj.M1(**shape), delta=delta) for delta in (1e-5, 1e-3)]
    assert found.value.tolist() == [one.value for one in single]
    assert found.lower.tolist() == [one.lower for one in single]


def test_array_row_without_result_has_outcome():
    found = privproj.deltas(Gaussian, noise_multiplier=[1e-6, 1.0], epsilon=[0.0, 1.0])
    assert found.value[0] == 1.0 and found.outcome.tolist() == [Outcome.VACUOUS, Outcome.OK]
    none = privproj.sigmas(Gaussian, epsilon=[1e-9, 1.0], log10_delta=-1e6)
    assert none.value[0] == math.inf and none.outcome.tolist() == [Outcome.VACUOUS, Outcome.OK]
    assert none.lower[0] == 0.0


def test_deltas_below_doubles_have_log10_delta():
    found = privproj.deltas(Gaussian, noise_multiplier=1.0, epsilon=[1.0, 50.0, 1000.0])
    for log10, eps in zip(found.log10_delta.tolist(), (1.0, 50.0, 1000.0), strict=True):
        scalar = privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=eps)
        assert log10 == pytest.approx(scalar.log10_delta, rel=1e-9)
    assert 0.0 < found.value[2] <= 1e-299 and found.side is Side.UPPER and found.lower[2] == 0.0


def test_every_name_of_answer_is_array_of_its_shape():
    found = privproj.sigmas(PublicSketch, rank=[4, 8], epsilon=1.0, delta=1e-5)
    for name in ("value", "lower", "log10_delta", "outcome"):
        assert getattr(found, name).shape == (2,)
    assert found.bound == "rank-free" and found.requirements and "C" in found.source


def test_mechanism_whose_parameters_are_arrays_is_its_columns():
    requested = {"dim": 2048, "rank": np.array([4, 16]), "noise_multiplier": [[0.5], [1.0]]}
    for ask, target in (
        (privproj.epsilons, {"delta": 1e-5}),
        (privproj.deltas, {"epsilon": 1.0}),
        (privproj.epsilons, {"delta": [1e-5, 1e-6], "steps": 3}),
    ):
        inside, beside = ask(M2(**requested), **target), ask(M2, **requested, **target)
        assert inside.value.tolist() == beside.value.tolist() and inside.value.shape == (2, 2)
    one = privproj.epsilons(M2(dim=2048, rank=16, noise_multiplier=0.5, change_rank=2), delta=[1e-5, 1e-6])
    scalar = privproj.epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5, change_rank=2), delta=1e-6)
    assert (
        one.value[1] == pytest.approx(scalar.value, rel=1e-8, abs=0) and one.data_assumptions == scalar.data_assumptions
    )
    with pytest.raises(InvalidParameterError, match="rank must be given once"):
        privproj.epsilons(M2(**requested), rank=3, delta=1e-5)
    with pytest.raises(InvalidParameterError, match="unknown parameter 'ranks' of M2"):
        privproj.epsilons(M2(ranks=[3]), delta=1e-5)
    with pytest.raises(InvalidParameterError, match=r"row 1: rank must be"):
        privproj.epsilons(M2(dim=8, rank=[3, 0], noise_multiplier=1.0), delta=1e-5)


@pytest.mark.parametrize("run", [{}, {"steps": 3, "relation": "replace"}], ids=str)
def test_array_result_becomes_frame_with_arguments(run):
    """Every row, evaluated with its own arguments, has its value."""
    found = privproj.epsilons(M2(dim=64, rank=[[4], [8]], noise_multiplier=[1.0, 2.0]), delta=1e-5, **run)
    frame = found.to_dict()
    assert {len(column) for column in frame.values()} == {4} == {found.value.size}
    for i in range(4):
        row = {name: column[i] for name, column in frame.items()}
        value, lower, outcome = row.pop("epsilon"), row.pop("lower"), row.pop("outcome")
        assert (row.pop("side"), row.pop("status")) == (str(found.side), "proved") and row["bound"] == "rank-free"
        again = privproj.epsilons(M2, **row).value
        assert value == again and lower <= value and outcome == "ok"
    layered = privproj.epsilons(
        M2(layers=(privproj.Layer(dim=64, rank=4),), noise_multiplier=[1.0, 2.0]), delta=1e-5
    ).to_dict()
    assert layered["layers"] == [str(privproj.Layer(dim=64, rank=4))] * 2
    assert len(repr(found)) < 300
    many = privproj.epsilons(Gaussian(noise_multiplier=np.linspace(1, 2, 1000)), delta=1e-5)
    assert len(repr(many)) < 300


def rows_of(distribution, count=150, seed=3):
    """The two answers of columns over the profile of a law, this profile, and rows with a log delta each."""
    draw = random.Random(seed)
    delta_of, epsilon_of = answers_of(distribution)
    rows = [(10.0 ** draw.uniform(-0.7, 0.7), 1.0) for _ in range(count)]
    return delta_of, epsilon_of, [(row, math.log(10.0 ** draw.uniform(-12, -1))) for row in rows]


def test_array_results_hold_in_other_arithmetic():
    """One that is half as wide again, wherever it holds the truth (C24, "Columns")."""
    delta_of, epsilon_of, requested = rows_of(GAUSSIAN_KERNELS)
    for row, log_delta in requested:
        eps = epsilon_of(log_delta, row)[1]
        lower, upper = GAUSSIAN_KERNELS.log_delta(eps, row[:1])
        wide = 1.5 * (upper - lower)
        # The scalar function, and array functions, which raise their upper bound by two widths.
        for other in (upper + wide, upper + wide + 2.0 * wide):
            assert rounded_log_delta(other) <= log_delta
        assert delta_of(eps, row)[1] >= rounded_log_delta(upper + wide)


def test_delta_that_is_multiple_of_step_is_not_passed_in_print():
    """What is printed for such a log is above its exponential: an upper end that is moved up to it is no answer."""
    logs = [k * LOG_DELTA_STEP for k in range(-700_000_000_000, -1_000_000_000, 7_000_000_001)]
    logs = [h for h in logs if math.log(math.exp(h)) >= h]
    assert len(logs) > 20
    for h in logs:
        delta, upper = math.exp(h), h - 6.5e-12
        assert delta_value(h) > delta
        distribution = ProfileKernels(
            lambda eps, row, upper=upper: (upper - 1e-12, upper), lambda log_delta, row: (1.0, 0.0)
        )
        assert answers_of(distribution)[1](math.log(delta), (1.0, 1.0))[1] == math.inf


def test_noise_of_columns_leaves_next_epsilon_within_its_target():
    rng = random.Random(8)
    eps, deltas = [10.0 ** rng.uniform(-1, 1) for _ in range(60)], [10.0 ** rng.uniform(-9, -2) for _ in range(60)]
    noises = privproj.sigmas(Gaussian, epsilon=eps, delta=deltas).value
    found = privproj.epsilons(Gaussian, noise_multiplier=noises, delta=deltas).value
    assert all(digits_above(x * (1.0 + 1e-14)) <= limit for x, limit in zip(found.tolist(), eps, strict=True))


def test_epsilons_accept_arrays_of_run_options():
    runs = {"steps": [10, 20], "sampling_rate": [[0.1], [0.2]], "sampling": ["poisson", "fixed"],
            "relation": ["add-remove", "replace"], "group_size": [1, 1], "public_size": [False, True]}  # fmt: skip
    found = privproj.epsilons(Gaussian, noise_multiplier=2.0, delta=1e-5, **runs)
    grids = {name: np.broadcast_to(np.array(value, object), (2, 2)) for name, value in runs.items()}
    for i in np.ndindex(2, 2):
        run = {name: grid[i] for name, grid in grids.items()}
        assert found.value[i] == privproj.epsilon(Gaussian(noise_multiplier=2.0), delta=1e-5, **run).value
    assert found.to_dict()["steps"].tolist() == [10, 20, 10, 20]
