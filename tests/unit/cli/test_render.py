"""Text output: the number, rounded outward, then bound, run, neighbors and requirements."""

import re

import pytest
from helpers import ROOT
from privproj_cli.render import describe_run, gap_text, round_outward

from privproj.result import limit_text
from privproj.run import Run

GAUSSIAN = "gaussian --noise-multiplier 1"

M2 = "m2 --dim 2048 --rank 16 --noise-multiplier 0.5"


@pytest.mark.parametrize("line", [f"epsilon {GAUSSIAN} --delta 1e-5", f"epsilon {M2} --delta 1e-5"])
def test_text_starts_with_value_and_assumption(run, line):
    code, out, err = run(line)
    first, bound, steps, neighbors, requires, *_ = out.splitlines()
    assert (code, err) == (0, "")
    assert re.fullmatch(r"epsilon = [\d.]+  \((upper bound|exact), delta = 1e-05\)", first)
    assert re.fullmatch(r"  bound:     [\w-]+ \(proved\)", bound)
    assert steps == "  run:       1 step on the whole dataset"
    assert neighbors == "  neighbors: add or remove one record"
    assert requires.startswith("  requires:  ")


def test_default_text_has_at_most_six_labels(run):
    line = f"epsilon {M2} --columns 9 --bound column-exact --delta 1e-5 --sampling-rate 0.1 --steps 9 --clip 1"
    out = run(line)[1]
    assert len(re.findall(r"^  [a-z ]+:", out, re.M)) <= 6


@pytest.mark.parametrize(
    "line",
    [
        f"epsilon {M2} --delta 1e-5 --sampling-rate 0.01 --steps 20",
        "epsilon gaussian --batch-size 512 --dataset-size 120000 --epochs 5 --noise-multiplier 0.9 --delta 1e-6",
        "epsilon wishart --dim 768 --rank 16 --misalignment 1e-6 --delta 1e-5",
        f"sigma {M2.partition(' --noise')[0]} --epsilon 1 --delta 1e-5",
        f"run {ROOT / 'examples' / 'run.toml'} --delta 1e-5",
        f"remaining {ROOT / 'examples' / 'run.toml'} --epsilon 3 --delta 1e-5",
        f"ledger {ROOT / 'examples' / 'ledger.jsonl'}",
    ],
)
def test_default_output_is_short(run, line):
    out = run(line)[1]
    assert len(out.splitlines()) <= 8 and len(out.split()) <= 75


def test_default_epsilon_solves_one_problem(run, monkeypatch):
    from privproj.accounting.query import Composition

    curves, queries = [], Composition.curve
    monkeypatch.setattr(Composition, "curve", lambda self: curves.append(self) or queries(self))
    run(f"epsilon {M2} --delta 1e-5 --sampling-rate 0.01 --steps 20")
    assert len(curves) == 1
    run(f"epsilon {M2} --delta 1e-5 --sampling-rate 0.01 --steps 20 -v")
    assert len(curves) > 1


def test_assumption_on_data_is_on_second_line(run):
    out = run("epsilon wishart --dim 768 --rank 16 --misalignment 1e-6 --delta 1e-5")[1].splitlines()
    assert out[0].endswith("(exact, delta = 1e-05), only under an assumption on the data")
    assert out[1].startswith("  assumes:   ")
    assert "  bound:     exact (proved under this assumption)" in out


def test_verbose_adds_other_bounds_of_projection(run):
    line = f"epsilon {M2} --delta 1e-5"
    assert "other bounds" not in run(line)[1]
    others = (
        r"other bounds: - epsilon [\d.]+ by the bound of DP-SGD, which ignores the projection - epsilon [\d.]+ by the "
        r"published bound, for differences of neighboring sums of rank up to 2048 \(the largest possible rank\)"
    )
    assert re.search(others, joined(run(f"{line} -v")[1]))


@pytest.mark.full
def test_composed_run_at_risk_has_no_published_baseline(run):
    """The published bound would compose the run for each point of a curve."""
    line = "sigma m2 --dim 2048 --rank 16 --advantage 0.1 -v"
    assert "published" in run(line)[1]
    out = run(f"{line} --steps 10 --sampling-rate 0.01")[1]
    assert "by the bound of DP-SGD" in out and "published" not in out


def joined(out):
    """The text without its line breaks."""
    return " ".join(out.split())


def test_verbose_adds_lower_bound(run):
    line = f"epsilon {M2} --delta 1e-5"
    assert "lower bound" not in run(line)[1]
    assert re.search(
        r"lower bound: epsilon >= [\d.]+, against an adversary who observes the projections \(gap <= 0.01 %\)",
        joined(run(f"{line} -v")[1]),
    )
    out = run("sigma m2 --dim 2048 --rank 16 --epsilon 1 --delta 1e-5 -v")[1]
    assert re.search(r"lower bound: epsilon >= [\d.]+ with this noise multiplier", joined(out))
    small = "m2 --dim 2048 --rank 1 --noise-multiplier 0.16 --sampling-rate 0.01 --steps 2000"
    out = run(f"delta {small} --epsilon 0.3 -v")[1]
    assert re.search(
        r"lower bound: delta >= [\d.e-]+, against .* \(gap <= a factor of [\d.]+\); the bound", joined(out)
    )
    out = run("epsilon sketch-public --rank 16 --noise-multiplier 1 --delta 1e-5 -v")[1]
    assert re.search(r"lower bound: epsilon >= [\d.]+ \(gap", joined(out))
    out = run(f"epsilon {GAUSSIAN} --delta 1e-5 --sampling shuffle --batches 100 -v")[1]
    assert re.search(r"lower bound: epsilon >= [\d.]+ \(gap", joined(out))
    assert "lower bound" not in run(f"epsilon {GAUSSIAN} --delta 1e-5 -v")[1]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "0.01 %"),
        (1.00751, "0.76 %"),
        (1.0984, "9.9 %"),
        (1.5, "50 %"),
        (1.995, "100 %"),
        (2.01, "a factor of 2.1"),
    ],
)
def test_gap_is_rounded_up(ratio, text):
    assert gap_text(ratio) == text


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (Run(steps=20, sampling="balls-in-bins", batches=100), "20 epochs, each record in one of 100 batches, chosen"),
        (Run(sampling="balls-in-bins", batches=9, batches_per_record=3), "one epoch, each record in 3 of 9 batches"),
        (
            Run(steps=2, sampling="shuffle", batches=9),
            "2 epochs, 9 shuffled batches per epoch; each epoch counts as one release",
        ),
        (Run(steps=2, sampling="shuffle"), "2 epochs, shuffled batches; each epoch counts as one release"),
        (Run(steps=2, sampling="partition"), "2 epochs, each record in one batch of a partition"),
        (Run(steps=2, sampling_rate=0.01, max_batch_size=7, dataset_size=90), "per step, at most 7 of 90)"),
    ],
)
def test_run_line_describes_the_run(run, text):
    assert text in describe_run(run.parameters())


@pytest.mark.parametrize("value", [0.98765, 1.00004, 123456.0, 3.2e-7, 9.99951e-12, 1.0])
def test_text_rounds_outward(value):
    assert value <= float(round_outward(value)) <= value * 1.0011
    assert value * 0.9989 <= float(round_outward(value, up=False)) <= value


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [(1e-5, "1e-05", "1e-05"), (8e-6, "8e-06", "8e-06"), (1 / 3, "0.333333", "0.333334"), (2.0000001, "2", "2.00001")],
)
def test_printed_limits_are_exact_or_conservative(value, down, up):
    assert (limit_text(value, up=False), limit_text(value, up=True)) == (down, up)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("epsilon gaussian --noise-multiplier 1 --delta 1.0000004e-5", "delta = 1.00001e-05"),
        ("sigma gaussian --epsilon 2.0000001 --delta 1e-5", "meets epsilon 2.00001 and"),
        ("epsilon wishart --dim 100 --rank 16 --misalignment 9.9999951e-6 --delta 1e-5", "1 - cosine <= 9.99999e-06 ("),
        ("epsilon sketch --rank 16 --gamma 333.33333333 --delta 1e-5", "lambda + a >= 333.334 |Q Q^T"),
        ("epsilon sketch --rank 16 --frobenius-bound 1 --sensitivity .0033333339 --noise-sigma 1 --delta 1e-5",
         "Q - Q' is at most 0.00333333 for"),
    ],
)  # fmt: skip
def test_printed_target_claims_no_more_than_the_query(line, text, run):
    """Rounding to nearest would print a weaker assumption or a smaller target than that of the number."""
    assert text in run(line)[1]


def test_tiny_delta_is_not_shown_as_zero(run):
    code, out, _ = run("delta gaussian --noise-multiplier 1 --epsilon 60")
    assert code == 0 and out.startswith("delta < 1e-300  (upper bound, epsilon = 60)")


def test_refuted_number_is_no_better_for_asking_nothing_of_data(run):
    sizes = (
        "--rank 16 --frobenius-bound 1 --sensitivity 0.01 --noise-sigma 1 "
        "--step-smoothness 0.01 --eigenvalues 3 --steps 2"
    )
    _, out, _ = run(f"epsilon sketch --bound lora-by-design {sizes} --delta 1e-5 --allow-refuted")
    assert "NOT A GUARANTEE" in out.splitlines()[0] and "  bound:     lora-by-design (refuted)\n" in out


@pytest.mark.parametrize("columns", [50, 72, 100, 300])
@pytest.mark.parametrize(
    "line",
    [
        "epsilon wishart --dim 1000 --rank 16 --misalignment 8e-6 --delta 1e-5",
        "epsilon m2 --dim 64 --rank 4 --noise-multiplier 3 --steps 3 --sampling-rate 0.1 --delta 1e-5",
        "run examples/run.toml --delta 1e-5",
        "check examples/bounds.toml",
        "explain C9",
        f"compare {M2} --delta 1e-5",
        "bounds",
        "bounds rank-free",
    ],
)
def test_wrapped_lines_have_equal_text(run, monkeypatch, columns, line):
    monkeypatch.chdir(ROOT)
    piped = run(line)
    monkeypatch.setattr("privproj_cli.render.terminal_width", lambda: columns)
    shown = run(line)
    assert (shown[0], shown[1].split(), shown[2]) == (piped[0], piped[1].split(), piped[2])
    assert max(map(len, shown[1].splitlines())) <= min(columns, 100)
