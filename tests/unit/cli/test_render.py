"""Text: the number first, rounded outward, and what it rests on."""

import re

import pytest
from helpers import ROOT
from privproj_cli.render import excess_words, round_outward, run_words

from privproj.result import limit_words
from privproj.run import Run

GAUSSIAN = "gaussian --noise-multiplier 1"

M2 = "m2 --dim 2048 --rank 16 --noise-multiplier 0.5"


@pytest.mark.parametrize("line", [f"epsilon {GAUSSIAN} --delta 1e-5", f"epsilon {M2} --delta 1e-5"])
def test_text_starts_with_the_number_and_says_what_it_rests_on(run, line):
    code, out, err = run(line)
    first, second = out.splitlines()[:2]
    assert (code, err) == (0, "")
    assert re.fullmatch(r"epsilon = [\d.]+  \((upper bound|exact), at delta 1e-05\)", first)
    assert "proved, no promise on the data" in second and "add-remove" in second and "one release" in second


def test_gain_line_of_a_projection_mechanism(run):
    _, out, _ = run(f"epsilon {M2} --delta 1e-5")
    assert re.search(r"gain: +plain Gaussian [\d.]+, published \(k=2048\) [\d.]+, this bound", out)


@pytest.mark.full
def test_a_run_at_a_risk_has_no_published_baseline(run):
    """It would compose the run anew for each point of a curve; one release has it."""
    line = "sigma m2 --dim 2048 --rank 16 --advantage 0.1"
    assert "published" in run(line)[1]
    out = run(f"{line} --steps 10 --sampling-rate 0.01")[1]
    assert "gain:     plain Gaussian" in out and "published" not in out


def lines_of(out):
    """The words of an answer without their line breaks."""
    return " ".join(out.split())


def test_an_answer_says_below_what_no_accounting_can_go(run):
    _, out, _ = run(f"epsilon {M2} --delta 1e-5")
    assert re.search(
        r"at least: epsilon [\d.]+ by any accounting, against whoever sees the projections: this answer is at most "
        r"0.01 % above the truth",
        lines_of(out),
    )
    _, out, _ = run("sigma m2 --dim 2048 --rank 16 --epsilon 1 --delta 1e-5")
    assert "with this noise multiplier by any accounting" in lines_of(out)
    assert "the epsilon asked for is at most" in lines_of(out)
    small = "m2 --dim 2048 --rank 1 --noise-multiplier 0.16 --sampling-rate 0.01 --steps 2000"
    _, out, _ = run(f"delta {small} --epsilon 0.3")
    assert re.search(r"at least: delta [\d.e-]+ by any accounting.* times the truth; the bound takes", lines_of(out))
    _, out, _ = run("epsilon sketch-public --rank 16 --noise-multiplier 1 --delta 1e-5")
    assert "by any accounting: this answer" in lines_of(out)
    _, out, _ = run(f"epsilon {GAUSSIAN} --delta 1e-5 --sampling shuffle --batches 100")
    assert re.search(r"at least: epsilon [\d.]+ by any accounting: this answer is at most", lines_of(out))
    _, out, _ = run(f"epsilon {GAUSSIAN} --delta 1e-5")
    assert "at least" not in out


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.0, "0.01 % above"),
        (1.00751, "0.76 % above"),
        (1.0984, "9.9 % above"),
        (1.5, "50 % above"),
        (1.995, "100 % above"),
        (2.01, "2.1 times"),
    ],
)
def test_how_far_an_answer_is_above_the_truth_is_rounded_up(ratio, words):
    assert excess_words(ratio) == words


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (Run(steps=20, sampling="balls-in-bins", batches=100), "20 epochs, each record in one of 100 batches, picked"),
        (Run(sampling="balls-in-bins", batches=9, batches_per_record=3), "one epoch, each record in 3 of 9 batches"),
        (Run(steps=2, sampling="shuffle", batches=9), "2 epochs, each record in one of 9 shuffled batches, counted as"),
        (Run(steps=2, sampling="shuffle"), "2 epochs, each record in one shuffled batch, counted as one release"),
        (Run(steps=2, sampling="partition"), "2 epochs, each record in one batch of a partition"),
        (Run(steps=2, sampling_rate=0.01, max_batch_size=7, dataset_size=90), "per step, at most 7 of 90)"),
    ],
)
def test_a_run_is_said_in_words(run, words):
    assert words in run_words(run.parameters())


@pytest.mark.parametrize("value", [0.98765, 1.00004, 123456.0, 3.2e-7, 9.99951e-12, 1.0])
def test_text_rounds_outward(value):
    assert value <= float(round_outward(value)) <= value * 1.0011
    assert value * 0.9989 <= float(round_outward(value, up=False)) <= value


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [(1e-5, "1e-05", "1e-05"), (8e-6, "8e-06", "8e-06"), (1 / 3, "0.333333", "0.333334"), (2.0000001, "2", "2.00001")],
)
def test_a_limit_is_said_as_it_was_given_or_so_that_less_is_claimed(value, down, up):
    assert (limit_words(value, up=False), limit_words(value, up=True)) == (down, up)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("epsilon gaussian --noise-multiplier 1 --delta 1.0000004e-5", "at delta 1.00001e-05"),
        ("sigma gaussian --epsilon 2.0000001 --delta 1e-5", "meets epsilon 2.00001 and"),
        ("epsilon wishart --dim 100 --rank 16 --misalignment 9.9999951e-6 --delta 1e-5", "cos(v, v') <= 9.99999e-06:"),
        ("epsilon sketch --rank 16 --gamma 333.33333333 --delta 1e-5", ">= 333.334 for all"),
        ("epsilon sketch --rank 16 --frobenius-bound 1 --sensitivity .0033333339 --noise-sigma 1 --delta 1e-5",
         "|Q - Q'|_F <= 0.00333333 for"),
    ],
)  # fmt: skip
def test_what_is_said_claims_no_more_than_what_was_asked(line, words, run):
    """Rounded to nearest, a promise asked for less, and a target was smaller, than what the number holds for."""
    assert words in run(line)[1]


def test_tiny_delta_is_not_shown_as_zero(run):
    code, out, _ = run("delta gaussian --noise-multiplier 1 --epsilon 60")
    assert code == 0 and out.startswith("delta < 1e-300  (upper bound, at epsilon 60)")


def test_a_refuted_number_is_no_better_for_asking_nothing_of_the_data(run):
    sizes = "--rank 16 --frobenius-bound 1 --sensitivity 0.01 --noise-sigma 1 --step-smoothness 0.01 --steps 2"
    _, out, _ = run(f"epsilon sketch --bound lora-by-design {sizes} --delta 1e-5 --allow-refuted")
    assert "lora-by-design (refuted); replace" in out and "no promise" not in out


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
def test_lines_are_wrapped_to_the_terminal_and_say_the_same(run, monkeypatch, columns, line):
    monkeypatch.chdir(ROOT)
    piped = run(line)
    monkeypatch.setattr("privproj_cli.render.terminal_width", lambda: columns)
    shown = run(line)
    assert (shown[0], shown[1].split(), shown[2]) == (piped[0], piped[1].split(), piped[2])
    assert max(map(len, shown[1].splitlines())) <= min(columns, 100)
