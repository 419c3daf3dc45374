"""The table of ``choose`` as text, JSON and a picture; the utility line of a query."""

import json

import pytest
from helpers import needs

import privproj

REQUESTED = "choose --layer 96x8 --epsilon 2 --delta 1e-5 --sampling-rate .02 --steps 300"


@pytest.mark.full
def test_choose_table_agrees_with_json(run):
    code, text, _ = run(REQUESTED)
    _, out, _ = run(f"{REQUESTED} --json")
    rows = json.loads(out)["choices"]
    table = text.partition("\nalgorithm ")[2].partition("\n  algorithm:")[0].splitlines()[1:]
    shown = [line.split()[0] for line in table]
    assert code == 0 and shown == [row["name"].split()[0] for row in rows]
    found = privproj.choose(layers="96x8", epsilon=2.0, delta=1e-5, sampling_rate=0.02, steps=300)
    assert [row["result"]["value"] for row in rows] == [row.result.value for row in found]
    for sentence in ("  algorithm:", "  noise:", "  error:", "  ranking:", "  neighbors:", "  requires:"):
        assert sentence in text


def test_choose_prints_requirements_of_rows(run):
    _, text, _ = run("choose --layer 96x8 --epsilon 2 --delta 1e-3 --batch-size 50 --dataset-size 1000 --epochs 1")
    assert "delta is not below 1/N = 0.001" in text
    assert "warning:" in run("choose --layer 96x8 --epsilon 2 --delta 1e-5 --sampling shuffle --batches 9 --steps 1")[1]


@pytest.mark.full
def test_title_is_whole_in_pipe_and_fits_terminal(run, monkeypatch):
    title = run(REQUESTED)[1].splitlines()[0]
    monkeypatch.setattr("privproj_cli.render.terminal_width", lambda: 50)
    lines = run(REQUESTED)[1].partition("\nalgorithm")[0].splitlines()
    assert " ".join(lines).split() == title.split() and max(map(len, lines)) <= 50 < len(title)


@pytest.mark.full
def test_projection_error_is_never_in_scientific_notation(run):
    """About 100 in a column of two digits was 1e+02."""
    rows = run("choose --layer 768x8 --epsilon 8 --delta 1e-5")[1].splitlines()[2:8]
    assert len(rows) == 6 and not any("e+" in row for row in rows)
    assert "1024 times for the mean over 2 fresh" in " ".join(
        run("epsilon m2 --dim 2048 --rank 1 --noise-multiplier 1 --steps 2 --delta 1e-5 -v")[1].split()
    )


@pytest.mark.full
def test_several_ranks_and_picture(run, tmp_path):
    needs("matplotlib")
    code, out, _ = run(f"{REQUESTED} --rank 4 --rank 8 --rank 32 --plot {tmp_path / 'error.svg'} --json")
    assert code == 0 and {row["rank"] for row in json.loads(out)["choices"]} == {None, 4, 8, 32}
    assert "m2-projected-clip" in (tmp_path / "error.svg").read_text()
    code, _, err = run(f"{REQUESTED} --plot {tmp_path / 'one.svg'}")
    assert code == 2 and "several ranks" in err and not (tmp_path / "one.svg").exists()


@pytest.mark.parametrize(
    ("sentence", "output"),
    [
        ("--layer 96x96", "got 96x96x1."),
        ("--layer 96x8 --rank 0", "got 0."),
        ("--layer 96", "form DxR[xN]"),
        ("--layer 96x8 --rank 4 --rank 96", "got 96."),
    ],
)
def test_bad_input_is_one_sentence(run, sentence, output):
    code, _, err = run(f"choose {sentence} --epsilon 2 --delta 1e-5")
    assert code == 2 and output in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "sentence",
    ["epsilon m2 --dim 96 --rank 8 --noise-multiplier .5 --delta 1e-5", "sigma m2 --dim 96 --rank 8 --advantage .1",
     "rank m2 --dim 96 --noise-multiplier .5 --epsilon 2 --delta 1e-5",
     "steps m2 --dim 96 --rank 8 --noise-multiplier .5 --sampling-rate .1 --epsilon 2 --delta 1e-5",
     "delta m1 --dim 96 --rank 8 --noise-multiplier 9 --epsilon 1"],
)  # fmt: skip
def test_verbose_result_of_projection_has_its_utility(run, sentence):
    assert "  utility:   - effective noise multiplier" in run(f"{sentence} -v")[1] and "utility" not in run(sentence)[1]
    numerics = json.loads(run(f"{sentence} --json")[1])["numerics"]
    assert numerics["effective_noise_multiplier"] >= numerics["dp_sgd_noise_multiplier"] * 0.998
    assert numerics["projection_error"] > 0.0 and numerics["projection_error_of_run"] <= numerics["projection_error"]


@pytest.mark.parametrize(
    "sentence",
    ["epsilon m2 --dim 96 --rank 8 --noise-multiplier 1e-9 --delta 1e-5", "epsilon m2 --dim 96 --rank 8 "
     "--noise-multiplier 1e9 --delta 1e-3", "delta m2 --dim 96 --rank 8 --noise-multiplier 1e6 --epsilon 1",
     "delta m2 --dim 96 --rank 8 --noise-multiplier .5 --epsilon 0"],
)  # fmt: skip
def test_result_unusable_as_target_omits_utility(run, sentence):
    code, text, _ = run(sentence)
    assert code == 0 and "utility:" not in text


def test_unprojected_release_has_no_utility_line(run):
    assert "utility:" not in run("epsilon m2 --dim 96 --rank 96 --noise-multiplier 2 --delta 1e-12")[1]


def test_result_without_projection_has_no_utility(run):
    assert "utility:" not in run("epsilon gaussian --noise-multiplier 1 --delta 1e-5")[1]
    assert "utility:" not in run("rank m2 --dim 96 --noise-multiplier 1e-3 --epsilon .1 --delta 1e-5")[1]
