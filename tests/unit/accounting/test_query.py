"""Queries for whole runs: the reference run, groups, sampling, and extreme queries."""

import html
import re

import numpy as np
import pytest
from helpers import RUN, eps_of, full_if, m2

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Sketch, UnsupportedError, Wishart
from privproj.accounting.phase import phase_for
from privproj.composition.grid import ComposedCurve
from privproj.errors import ConvergenceError, PrecisionError, PrivprojError
from privproj.mechanisms.registry import find_bound
from privproj.numerics.special import log_add
from privproj.schedule import phase_of

CLAIM = Sketch(rank=16, frobenius_bound=1, sensitivity=0.01, noise_sigma=1, step_smoothness=0.01, eigenvalues=768)
"""A mechanism whose bound ``lora-by-design`` is refuted."""


@pytest.mark.parametrize(
    ("z", "bound", "low", "high"),
    full_if(
        [
            (0.155974, "rank-free", 1.0887, 1.0912),
            (0.155974, "exact-rank1", 1.0811, 1.0836),
            (0.155974, "mixture-rdp", 1.7193, 1.7195),
            (0.155974, "good-event", 4.475, 4.4805),
            (0.155974, "good-event-q", 3.709, 3.7135),
            (0.194968, "rank-free", 0.8117, 0.8148),
            (0.194968, "mixture-rdp", 1.2593, 1.2595),
            (0.194968, "good-event", 2.681, 2.6855),
            (0.194968, "good-event-q", 2.324, 2.3285),
        ],
        lambda row: row[1].startswith("good-event"),
    ),
)
def test_reference_run(z, bound, low, high):
    assert low <= eps_of(m2(z, change_rank=10), bound) <= high


def test_reference_run_on_coarse_grid_and_with_even_split():
    assert eps_of(m2(0.155974), discretization=1e-3) == pytest.approx(1.0911, rel=3e-4, abs=0)
    assert eps_of(m2(0.155974, change_rank=10), "good-event", split="even") == pytest.approx(4.493, rel=3e-4, abs=0)


@pytest.mark.full
def test_bounds_of_run_come_in_order():
    rows = privproj.compare(m2(0.155974, change_rank=10), delta=1e-5, **RUN)
    values = {row.bound.name: row.result.value for row in rows}
    order = ["exact-rank1", "rank-free", "mixture-rdp", "good-event-q", "good-event", "gaussian"]
    assert [values[name] for name in order] == sorted(values.values())[:2] + sorted(values[n] for n in order[2:])
    assert [row.result.status for row in rows[:3]] == ["proved"] * 3


def test_group_of_records():
    alone, pair = eps_of(m2(0.5)), privproj.epsilon(m2(0.5), delta=1e-5, group_size=2, **RUN)
    assert pair.value > alone
    assert pair.status == "conditional"
    assert "at most 2 records" in pair.data_assumptions[0]
    one = {"delta": 1e-5, "steps": 50}
    paired = privproj.epsilon(Gaussian(noise_multiplier=2.0), group_size=2, sampling_rate=0.1, **one).value
    assert paired < privproj.epsilon(Gaussian(noise_multiplier=1.0), sampling_rate=0.19, **one).value
    whole = privproj.epsilon(Gaussian(noise_multiplier=3.0), delta=1e-5, group_size=3)
    assert whole.value == pytest.approx(
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5).value, rel=1e-12, abs=0
    )


def test_sampling_rate_query_keeps_sampling():
    query = {"epsilon": 1.0, "delta": 1e-5, "steps": 20}
    fixed = privproj.rate(m2(0.5), sampling="fixed", **query)
    assert (fixed.run["sampling"], fixed.run["relation"]) == ("fixed", "replace")
    assert "The neighboring relation is replace" in fixed.warnings[0]
    again = privproj.epsilon(m2(0.5), delta=1e-5, steps=20, sampling="fixed", sampling_rate=fixed.value)
    assert again.value <= 1.0 + 1e-9
    for scheme in ("partition", "balls-in-bins", "shuffle"):
        with pytest.raises(InvalidParameterError, match="calibrate the number of epochs with the query steps"):
            privproj.rate(m2(0.5), sampling=scheme, **query)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_little_noise_gives_result_or_error(sampling):
    for z in (0.3, 0.05, 0.01):
        try:
            value = privproj.epsilon(
                Gaussian(noise_multiplier=z), delta=1e-6, steps=100, sampling_rate=0.01, sampling=sampling
            ).value
            assert value > 10
        except PrecisionError:
            assert z < 0.05


def test_shuffle_is_upper_bound_and_equals_partition():
    epochs = {"delta": 1e-5, "steps": 3}
    shuffled = privproj.epsilon(Gaussian(noise_multiplier=5.0), sampling="shuffle", batches=10, **epochs)
    parted = privproj.epsilon(Gaussian(noise_multiplier=5.0), sampling="partition", **epochs)
    assert (str(shuffled.side), str(parted.side)) == ("upper bound", "exact")
    assert shuffled.value == parted.value and shuffled.run["relation"] == "zero-out"


def test_fixed_batches_use_replace_relation():
    result = privproj.epsilon(m2(0.5), delta=1e-5, sampling="fixed", **RUN)
    assert result.run["relation"] == "replace"
    with pytest.raises(UnsupportedError):
        privproj.epsilon(m2(0.5), delta=1e-5, bound="exact-rank1", sampling="fixed", **RUN)
    with pytest.raises(UnsupportedError, match="sampling"):
        privproj.epsilon(m2(0.5), delta=1e-5, bound="mixture-rdp", sampling="fixed", **RUN)


@pytest.mark.full
def test_absurd_queries_have_a_result_or_an_error():
    far = privproj.delta(privproj.Laplace(noise_multiplier=2.0), epsilon=1e6, steps=2)
    assert far.value <= 1e-30
    with pytest.raises(ConvergenceError, match="where the search ends"):
        privproj.steps(privproj.Laplace(noise_multiplier=1e5), epsilon=1.0, delta=1e-12)
    tiny = [
        privproj.epsilon(privproj.PublicSketch(rank=3, noise_multiplier=5.0), delta=d).value for d in (1e-299, 1e-300)
    ]
    assert 80 < tiny[0] < tiny[1] < 90
    half = privproj.PublicSketch(rank=16, noise_multiplier=0.5)
    assert 0 < privproj.delta(half, epsilon=1.0, sampling_rate=0.5).value < 1
    with pytest.raises(privproj.PrivprojError, match="exceeds 600 with probability 1"):
        privproj.epsilon(M2(dim=10, rank=3, noise_multiplier=1e-2), delta=1e-5, steps=10)
    wide = privproj.Wishart(dim=1000, rank=64, misalignment=1e-8, norm_ratio=2.0)
    assert privproj.delta(wide, epsilon=600.0).value > 0


def test_query_rejects_its_own_quantity():
    z = Gaussian(noise_multiplier=9.0)
    with pytest.raises(InvalidParameterError, match="steps"):
        privproj.steps(z, epsilon=1.0, delta=1e-5, steps=3)
    with pytest.raises(InvalidParameterError, match="sampling_rate"):
        privproj.rate(z, epsilon=1.0, delta=1e-5, sampling_rate=0.5)


def test_batch_size_and_epochs_agree_with_command_line():
    """(q, T) = (B/N, ceil(E ceil(N/B))), or batches and epochs where each record is used once per epoch."""
    sizes, z = {"batch_size": 256, "dataset_size": 50_000}, Gaussian(noise_multiplier=1.0)
    plain = {"sampling_rate": 256 / 50_000, "steps": 588, "dataset_size": 50_000}
    assert privproj.epsilon(z, delta=1e-5, epochs=3, **sizes) == privproj.epsilon(z, delta=1e-5, **plain)
    assert privproj.sigma(Gaussian(), epsilon=1.0, delta=1e-5, epochs=3, **sizes).value == (
        privproj.sigma(Gaussian(), epsilon=1.0, delta=1e-5, **plain).value
    )
    most = privproj.steps(z, epsilon=1.0, delta=1e-5, **sizes).value
    assert most == privproj.steps(z, epsilon=1.0, delta=1e-5, sampling_rate=256 / 50_000, public_size=True).value
    in_bins = privproj.epsilon(z, delta=1e-5, epochs=3, sampling="balls-in-bins", **sizes)
    assert (in_bins.run["steps"], in_bins.run["batches"]) == (3, 196)
    with pytest.raises(InvalidParameterError, match="give epochs or steps"):
        privproj.epsilon(z, delta=1e-5, **sizes)
    with pytest.raises(InvalidParameterError, match="steps must be omitted if epochs is given"):
        privproj.epsilon(z, delta=1e-5, epochs=3, steps=3, **sizes)


def test_guarantee_is_number_and_shows_itself_in_line():
    answer = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)
    again = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)
    assert float(answer) == answer.value and {answer: 1}[again] == 1
    assert repr(answer).startswith("<epsilon = 4.378 (exact, delta = 1e-05);") and "\n" not in repr(answer)
    for lost in (
        privproj.rank(M2(dim=96, noise_multiplier=1e-3), epsilon=0.1, delta=1e-5),
        privproj.epsilon(CLAIM, delta=1e-5, bound="lora-by-design", steps=2, allow_refuted=True),
    ):  # fmt: skip
        with pytest.raises(InvalidParameterError, match="a guarantee"):
            float(lost)


SIZES = {"batch_size": 256, "dataset_size": 50_000, "epochs": 3}
PLAIN = {"sampling_rate": 256 / 50_000, "steps": 588, "dataset_size": 50_000}
ENTRY_POINTS = {
    "delta": lambda **run: privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=1.0, **run).value,
    "compare": lambda **run: privproj.compare(Gaussian(noise_multiplier=1.0), delta=1e-5, **run).to_dict(),
    "gdp_mu": lambda **run: privproj.gdp_mu(Gaussian(noise_multiplier=1.0), **run).value,
    "update_utility": lambda **run: privproj.update_utility(
        M2(dim=64, rank=4, noise_multiplier=1.0), epsilon=1.0, delta=1e-5, **run
    ),
    "choose": lambda **run: privproj.choose(layers="64x4", epsilon=1.0, delta=1e-5, **run).to_dict(),
    "columns": lambda **run: privproj.epsilons(Gaussian, noise_multiplier=[1, 2], delta=1e-5, **run).value.tolist(),
    "phase_of": lambda **run: phase_of(Gaussian(noise_multiplier=1.0), **run),
    "accountant": lambda **run: privproj.Accountant().step(Gaussian(noise_multiplier=1.0), **run).epsilon(1e-5).value,
}  # fmt: skip
"""What takes the options of a run."""


@pytest.mark.parametrize("entry_point", full_if(ENTRY_POINTS, lambda entry_point: entry_point == "choose"))
def test_every_entry_point_accepts_batch_size_and_epochs(entry_point):
    found, plain = ENTRY_POINTS[entry_point](**SIZES), ENTRY_POINTS[entry_point](**PLAIN)
    assert found == plain


SCALAR_ENTRY_POINTS = {
    **{name: getattr(privproj, name) for name in ("sigma", "rank", "steps", "rate", "misalignment", "update_utility")},
    "epsilon": lambda mechanism, epsilon, delta: privproj.epsilon(mechanism, delta=delta),
    "delta": lambda mechanism, epsilon, delta: privproj.delta(mechanism, epsilon=epsilon),
    "compare": lambda mechanism, epsilon, delta: privproj.compare(mechanism, delta=delta),
    "gdp_mu": lambda mechanism, epsilon, delta: privproj.gdp_mu(mechanism),
    "phase_of": lambda mechanism, epsilon, delta: phase_of(mechanism),
    "accountant": lambda mechanism, epsilon, delta: privproj.Accountant().step(mechanism),
}
"""What takes one mechanism."""


@pytest.mark.parametrize("column", [[4, 16], (4, 16), range(4, 6), np.array([4, 16]), np.array([[4]])], ids=repr)
@pytest.mark.parametrize("entry_point", SCALAR_ENTRY_POINTS)
def test_mechanism_with_arrays_error_names_functions(entry_point, column):
    several = M2(dim=2048, rank=column, noise_multiplier=0.5)
    assert not isinstance(several, M2)
    with pytest.raises(
        InvalidParameterError, match=r"rank must be one number, got an array\. For arrays use privproj\.epsilons"
    ):
        SCALAR_ENTRY_POINTS[entry_point](several, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("rows", [
    lambda: privproj.compare(M2(dim=64, rank=4, noise_multiplier=1.0), delta=1e-5),
    lambda: privproj.compare(M2(dim=64, rank=4, noise_multiplier=1.0), epsilon=1.0),
    lambda: privproj.choose(layers="64x4", epsilon=1.0, delta=1e-5),
])  # fmt: skip
def test_rows_are_table_and_columns(rows):
    found = rows()
    columns = found.to_dict()
    assert isinstance(found, tuple) and len(found) > 2 and {len(column) for column in columns.values()} == {len(found)}
    for i, row in enumerate(found):
        assert {name: value for name, column in columns.items() if (value := column[i]) is not None} == {
            name: value for name, value in row.as_row().items() if value is not None
        }
        assert len(repr(row)) < 300 and "\n" not in repr(row)
    assert repr(found).split("\n") == [repr(row) for row in found]


@pytest.mark.parametrize(("mechanism", "run", "short"), [
    (Gaussian(noise_multiplier=1.0), {}, {"classical": "proved for 0 < epsilon < 1 only"}),
    (Gaussian(noise_multiplier=1.0), {"steps": 9, "sampling_rate": 0.1}, {
        "gdp": "has no amplification by subsampling",
    }),
    (M2(dim=64, rank=4, noise_multiplier=1.0), {}, {"beta-tail": "needs --columns"}),
])  # fmt: skip
def test_short_reason_is_first_clause_outside_parentheses(mechanism, run, short):
    rows = {row.bound.name: row for row in privproj.compare(mechanism, delta=1e-5, **run)}
    for bound, sentence in short.items():
        assert rows[bound].short == sentence and len(rows[bound].reason) > len(sentence)


@pytest.mark.parametrize(
    ("options", "sentence"), [({"step": 3}, "mean 'steps'"), ({"batch_size": 8}, "give dataset_size, and epochs or")]
)
def test_unknown_option_of_run_has_suggestion(options, sentence):
    with pytest.raises(InvalidParameterError, match=sentence):
        privproj.epsilon(Gaussian(noise_multiplier=9.0), delta=1e-5, **options)


def test_repr_without_guarantee_states_it():
    refuted = privproj.epsilon(CLAIM, delta=1e-5, bound="lora-by-design", steps=2, allow_refuted=True)
    assert "NOT A GUARANTEE" in str(refuted) and "refuted" in str(refuted)
    assumed = privproj.epsilon(Wishart(dim=50, rank=8, misalignment=1e-4), delta=1e-5)
    assert all(sentence in str(assumed) for sentence in assumed.data_assumptions) and assumed.data_assumptions


def test_answer_reads_as_one_line():
    release = M2(dim=64, rank=4, noise_multiplier=1.0)
    requested = [
        privproj.epsilon(release, log10_delta=-400),
        privproj.delta(release, epsilon=1.0),
        privproj.steps(release, epsilon=9.0, delta=1e-5),
        privproj.sigma(M2(dim=64, rank=4), epsilon=1.0, delta=1e-5),
    ]
    for answer in requested:
        shown = answer.one_line
        assert "\n" not in shown and answer.bound in shown and str(answer.side) in shown
        number = float(shown.split(" = ")[1].split()[0])
        assert "add or remove one record" in shown
        assert (number <= answer.value) if answer.side == "lower bound" else (number >= answer.value)


def test_target_out_of_reach_is_answer_not_endless_search():
    with pytest.raises(PrivprojError):
        privproj.sigma(Gaussian(), epsilon=1.0, delta=1e-5, bound="classical")


@pytest.mark.full
def test_event_that_rough_runs_choose_is_as_good_as_any():
    """delta of a sampled run against the least over many events, up to the difference of two grids (1.5e-4)."""
    curve = phase_for(m2(0.155974, change_rank=10), find_bound(M2, "good-event"), RUN).curve()
    for eps in (1.0, 4.0):
        totals = (log_add(-x, curve.gaussian(-x).log_delta(eps).upper) for x in np.arange(0.5, 24.0, 0.5))
        assert curve.log_delta(eps).upper <= min(totals) + 4e-4


def test_name_is_no_mechanism_and_text_no_number():
    for ask in (privproj.epsilon, lambda name, delta: privproj.sigma(name, epsilon=1.0, delta=delta)):
        with pytest.raises(
            InvalidParameterError,
            match="must be an object such as",
        ):
            ask("gaussian", delta=1e-5)  # pyright: ignore
    with pytest.raises(InvalidParameterError, match=r"got the text '2'\. Write the number without quotes"):
        Gaussian(noise_multiplier="2")  # pyright: ignore


def test_reading_value_computes_no_lower_bound(monkeypatch):
    run = {"sampling_rate": 0.01, "steps": 50}
    answer = privproj.epsilon(Gaussian(noise_multiplier=0.9), delta=1e-5, **run)
    assert 0.999 * answer.value < answer.lower <= answer.value
    monkeypatch.setattr(ComposedCurve, "below", property(lambda _: 1 / 0))
    fresh = privproj.epsilon(Gaussian(noise_multiplier=0.91), delta=1e-5, **run)
    assert 0.0 < fresh.value < answer.value
    with pytest.raises(ZeroDivisionError):
        fresh.lower  # noqa: B018


def test_printed_result_shows_side_run_and_warnings():
    result = privproj.epsilon(Gaussian(noise_multiplier=0.9), delta=1e-6, **SIZES)
    assert result.warnings
    for shown in (str(result), repr(result), result._repr_html_()):
        assert "upper bound, delta = 1e-06" in shown and "Poisson sampling at rate 0.00512" in shown
        assert all(text in html.unescape(shown) for text in result.warnings)


@pytest.mark.parametrize("spec", [".3f", ".1e", ".2g", "12.4f", "g", ".0f"])
def test_formatted_result_is_rounded_to_safe_side(spec):
    upper = privproj.epsilon(Gaussian(noise_multiplier=0.7), delta=1e-6)
    lower = privproj.rate(Gaussian(noise_multiplier=1.0), epsilon=1.0, delta=1e-6, steps=10)
    assert float(format(upper, spec)) >= upper.value and float(format(lower, spec)) <= lower.value
    assert f"{upper}" == str(upper)


def test_results_compare_with_numbers():
    result = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)
    assert result < 5 and result <= result.value and result > 4.0 and result >= result and not result > 5.0
    nothing = privproj.rank(M2(dim=96, noise_multiplier=1e-3), epsilon=0.1, delta=1e-5)
    with pytest.raises(InvalidParameterError, match="a guarantee"):
        _ = nothing < 5
    with pytest.raises(TypeError):
        _ = result < "5"


def test_mechanism_errors_give_valid_call():
    for call, sentence in (
        (lambda: Gaussian(0.9), r"Write Gaussian\(noise_multiplier=0.9\)"),
        (lambda: M2(768, 16), r"Write M2\(dim=\.\.\., rank=\.\.\., noise_multiplier=\.\.\.\)"),
        (lambda: privproj.sigma(Gaussian, epsilon=1.0, delta=1e-5), r"Write Gaussian\(\)"),
        (lambda: privproj.epsilon(Gaussian, delta=1e-5), r"Write Gaussian\(noise_multiplier=\.\.\.\)"),
    ):
        with pytest.raises(InvalidParameterError, match=sentence):
            call()


def test_unsupported_error_carries_mechanism_run_and_bound():
    run = {"sampling": "partition", "steps": 2, "relation": "add-remove"}
    with pytest.raises(UnsupportedError) as error:
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, **run)
    found = error.value
    assert (found.mechanism, found.sampling, found.relation, found.bound) == (
        "gaussian",
        "partition",
        "add-remove",
        "analytic",
    )


def test_dir_lists_public_names_and_submodules():
    assert {"epsilon", "Gaussian", "schedule", "training"} <= set(dir(privproj))


@pytest.mark.parametrize("run", [{}, {"steps": 3, "sampling_rate": 0.1}])
def test_printed_result_names_its_requirements(run):
    result = privproj.epsilon(M2(dim=64, rank=4, noise_multiplier=1.0), delta=1e-5, **run)
    (line,) = [line for line in str(result).split("\n") if line.startswith("  requires:")]
    assert line.split(":", 1)[1].strip().split(", ") == result.as_dict()["requires"]
    assert len(result.requirements) >= 3 and ", ".join(result.as_dict()["requires"]) in result._repr_html_()


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (privproj.epsilon, "epsilon(mechanism, delta=1e-5)"),
        (privproj.delta, "delta(mechanism, epsilon=1.0)"),
        (privproj.sigma, "sigma(mechanism, epsilon=1.0, delta=1e-5)"),
        (privproj.compare, "compare(mechanism, delta=1e-5)"),
        (privproj.epsilons, "epsilons(mechanism, delta=[1e-5, 1e-6])"),
        (privproj.gdp_mu, "gdp_mu(mechanism, delta=1e-5)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("mechanism", [Gaussian, Gaussian(noise_multiplier=1.0)], ids=["class", "instance"])
def test_positional_target_error_shows_a_call(function, call, mechanism):
    with pytest.raises(InvalidParameterError, match=re.escape(f"must be given by name, got (1e-05,). Write {call}.")):
        function(mechanism, 1e-5)


def test_shown_calls_are_valid():
    mechanism = Gaussian(noise_multiplier=1.0)
    assert privproj.epsilon(mechanism, delta=1e-5).value > 1.0 > privproj.delta(mechanism, epsilon=1.0).value
    assert privproj.sigma(Gaussian(), epsilon=1.0, delta=1e-5).value > 1.0
    assert privproj.choose(layers="768x16", epsilon=1.0, delta=1e-5)
    assert (privproj.sigmas(Gaussian(), epsilon=[1.0, 2.0], delta=1e-5).value > 1.0).all()
