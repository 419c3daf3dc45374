"""Entries: no key is dropped, coerced or overruled, and what the command line refuses, files refuse."""

import json

import pytest
from helpers import feature_rows, full_if

from tests.differential.command_line_rules import call
from tests.differential.command_lines import Case

GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 2}


# --- files and command line -------------------------------------------------------------------------------------

REJECTED = [
    {**GAUSSIAN, "epochs": 3},
    {**GAUSSIAN, "batch_size": 10},
    {**GAUSSIAN, "epochs": 3, "dataset_size": 100},
    {**GAUSSIAN, "epochs": 3, "sampling_rate": 0.1},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "sampling_rate": 0.1},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "steps": 5, "epochs": 2},
    {**GAUSSIAN, "batch_size": 100, "dataset_size": 10},
    {**GAUSSIAN, "sampling": "fixed"},
    {**GAUSSIAN, "sampling": "balls-in-bins"},
    {**GAUSSIAN, "sampling_rate": 0.1},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100},
    {**GAUSSIAN, "sampling": "balls-in-bins", "batches": 10, "batch_size": 10, "dataset_size": 100},
    {**GAUSSIAN, "batches": 10, "epochs": 2},
    {**GAUSSIAN, "sampling_rate": 0.1, "max_batch_size": 30},
    {**GAUSSIAN, "sampling": "fixd", "sampling_rate": 1},
    {**GAUSSIAN, "sampling": "", "sampling_rate": 0.5},
    {**GAUSSIAN, "relation": ""},
    {**GAUSSIAN, "split": "even"},
    {**GAUSSIAN, "split": "0.x"},
    {**GAUSSIAN, "dim": 8},
    {**GAUSSIAN, "bound": "rank-free"},
    {"mechanism": "m2", "layer": "768x16@", "noise_multiplier": 1},
    {"mechanism": "m2", "layer": " 768x16", "noise_multiplier": 1},
    {"mechanism": "m2", "layer": "768x16", "dim": 9, "noise_multiplier": 1},
    {"mechanism": "m2", "layer": "768x16", "rank": 4, "noise_multiplier": 1},
    {"mechanism": "m2", "dim": 64, "rank": 4, "clipping": "per-layer", "noise_multiplier": 1},
    {"mechanism": "m2", "dim": 64, "rank": 4, "gamma": 3, "noise_multiplier": 1},
    {"mechanism": "wishart", "dim": 64, "rank": 4, "misalignment": 1e-6, "alignment": 0.99},
    {"mechanism": "sketch", "rank": 4, "gamma": 30, "noise_sigma": 2},
    {"mechanism": "sketch", "rank": 4, "gamma": 30, "enforced": True},
]

ANSWERED = [
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "epochs": 1},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 95, "epochs": 1.5},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "steps": 3},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "epochs": 2, "sampling": "fixed"},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 100, "epochs": 2, "sampling": "partition", "relation": "zero-out"},
    {**GAUSSIAN, "sampling_rate": 0.25, "steps": 1, "group_size": 2},
    {**GAUSSIAN, "batch_size": 10, "dataset_size": 95, "epochs": 1.5, "sampling": "balls-in-bins"},
    {**GAUSSIAN, "batches": 10, "batches_per_record": 3, "sampling": "balls-in-bins", "relation": "zero-out"},
    {**GAUSSIAN, "batches": 10, "epochs": 2, "sampling": "shuffle"},
    {**GAUSSIAN, "sampling_rate": 0.1, "steps": 2, "max_batch_size": 30, "dataset_size": 100, "relation": "zero-out"},
    {"mechanism": "m2", "layer": "64x4x2@1", "clipping": "per-layer", "noise_multiplier": 1},
]


def arguments_of(given):
    """The keys as a call of the command line."""
    rest = {key: value for key, value in given.items() if key != "mechanism"}
    options = [[f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])] for key, value in rest.items()]
    return ["epsilon", given["mechanism"], *(word for option in options for word in option), "--delta", "1e-5"]


def as_files(given):
    """The keys as a run file and a check file, with the calls that read them."""
    checked = {"bound": [{**given, "delta": 1e-5, "at_most": 1e9}]}
    data = {"run": {"phase": [given]}, "check": checked}
    tails = {"run": ("--delta", "1e-5", "--json"), "check": ()}
    return [Case((kind, "in.json", *tails[kind]), {"in.json": json.dumps(data[kind]).encode()}) for kind in data]


@pytest.mark.parametrize("given", REJECTED, ids=str)
def test_file_rejects_what_command_line_rejects(given):
    assert call(Case(tuple(arguments_of(given)))).code == 2
    for case in as_files(given):
        seen = call(case)
        assert (seen.code, seen.err.count("\n"), seen.out) == (2, 1, ""), case
        assert "in.json" in seen.err and " 1" in seen.err


@pytest.mark.parametrize("given", ANSWERED, ids=str)
def test_file_and_command_line_give_equal_results(given):
    spoken = json.loads(call(Case((*arguments_of(given), "--json"))).out)["value"]
    run, check = map(call, as_files(given))
    assert json.loads(run.out)["value"] == spoken
    assert f"epsilon = {spoken!r}  (" in check.out


def test_dataset_size_alone_gives_warning_everywhere():
    given = {**GAUSSIAN, "dataset_size": 10**6}
    spoken = call(Case(arguments_of(given)))
    assert spoken.code == 0 and "below 1/N" in " ".join(spoken.out.split())
    for case in as_files(given):
        found = call(case)
        output = " ".join((found.out, *(text.decode() for text in found.left.values())))
        assert found.code == 0 and "below 1/N" in " ".join(output.split())


COMMANDS = ["compare", *feature_rows("QUERIES"), "sigma --epsilon 1", "choose --epsilon 1"]


@pytest.mark.parametrize("arguments", full_if(COMMANDS, lambda arguments: "choose" in arguments))
def test_every_command_warns_of_large_delta(arguments):
    command, *more = arguments.split()
    about = ["--layer", "64x4"] if command == "choose" else ["gaussian"]
    about += ["--noise-multiplier", "2"] if command in ("compare", *feature_rows("QUERIES")) else []
    for size, warned in ((1000, False), (1002, True)):
        sizes = ["--batch-size", "10", "--dataset-size", str(size), "--epochs", "1"]
        found = call(Case((command, *about, *more, *sizes, "--delta", "0.000999")))
        output = " ".join((found.out + found.err).split())
        assert found.code == 0 and "Poisson sampling assumed" in output
        assert ("delta is not below 1/N" in output) == warned


# --- keys and their types -------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-400", "-1e-400", "0.000e5", "0.0"])
def test_number_of_file_that_underflows_is_not_taken_for_zero(text):
    data = f'[[bound]]\nquery = "delta"\nmechanism = "gaussian"\nnoise_multiplier = 1\nepsilon = {text}\nat_most = 1\n'
    seen = call(Case(("check", "a.toml"), {"a.toml": data.encode()}))
    assert seen.code == (2 if "1" in text else 0)
    assert "underflows" in seen.err or "1" not in text
