"""The command ``privproj select``."""

import json
import re
from importlib.resources import files

import jsonschema
import pytest
from privproj_cli.explain import entries, word_groups

from privproj.assumptions import Requirement

SCHEMA = json.loads((files("privproj") / "schema.json").read_text())

LINE = "select gaussian --trials 10"


@pytest.mark.parametrize(
    ("wording", "quantity"),
    [
        ("--noise-multiplier 4 --delta 1e-5", "epsilon"),
        ("--noise-multiplier 4 --epsilon 1.6", "delta"),
        ("--epsilon 1 --delta 1e-5", "sigma"),
        ("--noise-multiplier 4 --delta 1e-5 --distribution negative-binomial --shape 0.5 --steps 3", "epsilon"),
    ],
)
def test_select_finds_missing_parameter(run, wording, quantity):
    code, out, _ = run(f"{LINE} {wording} --json")
    shown = json.loads(out)
    jsonschema.validate(shown, SCHEMA)
    assert code == 0 and shown["quantity"] == quantity and shown["bound"] == "analytic + selection"
    assert shown["run"]["selection"]["expected_trials"] == pytest.approx(10.0, rel=1e-9, abs=0)
    text = run(f"{LINE} {wording}")[1]
    assert f"runs, {shown['run']['selection']['distribution']} distribution with mean 10" in text
    assert all(Requirement(sentence).short in text for sentence in shown["run"]["requirements"])
    assert ("for one run" in text) == (quantity == "epsilon")


def test_select_without_value_reports_outcome(run):
    code, out, _ = run("select gaussian --trials 1e5 --noise-multiplier 1e-3 --epsilon 1 --json")
    assert code == 4 and json.loads(out)["value"] is None
    code, out, err = run("select wishart-matrix --dim 8 --rank 2 --columns 2 --trials 10 --delta 1e-5 --json")
    assert code == 3 and json.loads(out)["value"] is None and err.count("\n") == 1


@pytest.mark.parametrize(
    ("wording", "output"),
    [
        ("--noise-multiplier 4", "--delta"),
        ("--noise-multiplier 4 --delta 1e-5 --epsilon 1", "--noise-multiplier"),
        ("--delta 1e-5", "--noise-multiplier"),
        ("--noise-multiplier 4 --delta 1e-5 --distribution geometrik", "geometric"),
        ("--noise-multiplier 4 --delta 1e-5 --shape 2", "--shape"),
    ],
)
def test_select_invalid_options_are_usage_errors(run, wording, output):
    code, out, err = run(f"{LINE} {wording}")
    assert (code, out) == (2, "") and err.count("\n") == 1 and output in err


def test_select_warns_of_large_delta(run):
    assert "1/N" in run(f"{LINE} --noise-multiplier 4 --delta 1e-2 --batch-size 10 --dataset-size 1000 --epochs 1")[1]


def test_select_labels_have_explanations(run):
    groups = word_groups()
    text = run("select gaussian --noise-multiplier 3 --delta 1e-5 --trials 3")[1]
    labels = re.findall(r"^  ([a-z]+(?: [a-z]+)?): ", text, re.MULTILINE)
    assert {"trials", "comparison"} <= set(labels)
    assert all(entries(groups, label) for label in ("trials", "comparison"))


def test_select_names_assumptions_of_adaptive_clipping(run):
    line = "select gaussian --noise-multiplier 5 --adaptive-clipping-sigma 9 --steps 4 --trials 3 --delta 1e-3 --json"
    result = json.loads(run(line)[1])
    assumed = [*result["mechanism"]["requirements"], *result["run"]["requirements"]]
    assert Requirement.CENTERED_COUNT in assumed and Requirement.FIXED_SCHEDULE_EXCEPT_CLIP in assumed
    assert Requirement.FIXED_SCHEDULE not in assumed
