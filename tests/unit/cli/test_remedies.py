"""Errors of the command line name what exists, and their remedies are accepted."""

import pytest
from privproj_cli.main import exit_code, options_in
from privproj_cli.options import with_options

from privproj.mechanisms.registry import mechanism_names

WISHART = "epsilon wishart --dim 100 --rank 5 --misalignment 1e-6 --delta 1e-5"
GAUSSIAN = "epsilon gaussian --noise-multiplier 1 --delta 1e-5"
SKETCH = "epsilon sketch --gamma 50 --rank 16 --delta 1e-5 --steps 10"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (f"{SKETCH} --sampling fixed --relation add-remove --sampling-rate 0.01", "Omit the sampling"),
        (
            f"{WISHART} --sampling fixed --sampling-rate 0.01 --steps 9 --relation add-remove",
            "Use --sampling fixed with --relation replace.\n",
        ),
        (f"{WISHART} --sampling partition --relation add-remove", "Use --relation zero-out or replace.\n"),
        ("misalignment gaussian --epsilon 1 --delta 1e-5", "misalignment is not defined for gaussian"),
        ("epsilon wishart --dim 100 --rank 5 --delta 1e-5", "an assumption on your data (`privproj alignment`"),
        (f"{GAUSSIAN} --sampling shuffle --relation add-remove", "or --sampling poisson or balls-in-bins.\n"),
        (
            f"{GAUSSIAN} --sampling shuffle --sampling-rate 0.01",
            "Use --batches T instead of --sampling-rate, and --steps",
        ),
        (f"{GAUSSIAN} --sampling partition --batches 9", "--batches needs --sampling balls-in-bins or shuffle.\n"),
        (
            f"{GAUSSIAN} --batch-size 9 --sampling-rate 0.1",
            "Give --sampling-rate, or --batch-size and --dataset-size.\n",
        ),
        (f"{GAUSSIAN} --batch-size 9", "give --dataset-size, and --epochs or --steps,"),
        (
            f"{GAUSSIAN} --batch-size 9 --dataset-size 99 --epochs 1 --steps 9",
            "--steps must be omitted if --epochs is given",
        ),
        ("epsilon sketch --rank 16 --gamma 9 --enforced --delta 1e-5", "omitted if --gamma is given, got --enforced."),
        ("epsilon sketch --rank 16 --delta 1e-5", "give --sensitivity, --frobenius-bound and --noise-sigma, or"),
        ("sigma gaussian --tpr 0.1", "give --tpr and --fpr together.\n"),
        ("epsilon m2 --dim 64 --noise-multiplier 1 --delta 1e-5", "give --dim and --rank, or --layer.\n"),
        ("rank m2 --noise-multiplier 1 --epsilon 1 --delta 1e-5", "missing --dim; try --dim 768.\n"),
        ("rank m2 --layer 9x3 --noise-multiplier 1 --epsilon 1 --delta 1e-5", "got 9x3x1. Give --dim instead.\n"),
        ("epsilon m2 --layer 9x3@0.5 --noise-multiplier 1 --delta 1e-5", "--clipping must be per-layer if a layer"),
        (
            "epsilon m2 --layer 9x3@0.5 --clipping per-layer --noise-multiplier 1 --delta 1e-5",
            "with the sum 1, got shares for 1 of 1 layers, with the sum 0.5.\n",
        ),
        (
            "epsilon m1 --bound column --dim 64 --rank 4 --noise-multiplier 1 --delta 1e-5",
            "missing --span-dim; give --span-dim and --residual-misalignment",
        ),
        (f"{GAUSSIAN} --relation replace --sampling-rate 0.1 --steps 9", "or zero-out, or --sampling fixed.\n"),
        (f"{GAUSSIAN} --batch-size 9 --epochs 1", "missing --dataset-size; give --dataset-size with --batch-size.\n"),
        (
            "dp-sft --epsilon 4 --delta 1e-5 --sampling-rate 0.1 --steps 9 --subspace-steps 0",
            "--subspace-steps must be an integer >= 1, got 0.\n",
        ),
        (
            "epsilon m2 --bound beta-tail --dim 64 --rank 4 --noise-multiplier 1 --delta 1e-5",
            "give --columns, the other",
        ),
    ],
)
def test_error_of_query_has_remedy(command, text, capsys):
    assert exit_code(command.split()) in (2, 3)
    assert text in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        SKETCH,
        f"{WISHART} --sampling fixed --sampling-rate 0.01 --steps 9 --relation replace",
        f"{WISHART} --sampling partition --relation zero-out",
        f"{WISHART} --sampling partition --relation replace",
    ],
)
def test_remedy_of_unsupported_sampling_is_accepted(command):
    assert exit_code(command.split()) == 0


def test_steps_without_one_step_suggest_more_noise(capsys):
    assert exit_code(["steps", "gaussian", "--noise-multiplier", "10", "--epsilon", "0.01", "--delta", "1e-5"]) == 4
    assert "or more noise." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "content", "text"),
    [
        ("verify", '{"phase": [', "It is not valid JSON: "),
        ("verify", '{"a": 1}', "verify its ledger.jsonl or statement.md"),
        ("ledger", "", "FILE must be a ledger with a phase"),
        ("ledger", "{}", "FILE must be a ledger that privproj wrote"),
        ("run", "[1, 2]", "This file contains a list."),
    ],
)
def test_error_of_file_names_file_and_cause(command, content, text, tmp_path, capsys):
    path = tmp_path / "file.json"
    path.write_text(content)
    assert exit_code([command, str(path)]) == 2
    assert text in capsys.readouterr().err


RESULT = '{"quantity": "epsilon", "bound": "analytic", "outcome": "ok"}'
PHASE = '[[phase]]\nmechanism = "gaussian"\nnoise_multiplier = 1\n'
REGRESSION = '[[bound]]\nname = "a"\nmechanism = "gaussian"\nnoise_multiplier = 1\ndelta = 1e-5\n'


@pytest.mark.parametrize(
    ("content", "remedy", "readers"),
    [
        (
            '{"ledger": "privproj", "version": 2',
            "It is a ledger; use `privproj ledger` or `privproj verify`",
            ["ledger"],
        ),
        (PHASE, "It is a run file; use `privproj run`", ["run", "remaining"]),
        (REGRESSION, "It is a regression file; use `privproj check`", ["check"]),
        (RESULT, "It is the result of a query in JSON; no command reads results", []),
    ],
)
@pytest.mark.parametrize("command", ["verify", "run", "remaining", "ledger", "check"])
def test_error_of_other_kind_of_file_names_its_command(content, remedy, readers, command, tmp_path, capsys):
    path = tmp_path / ("file.json" if content.startswith("{") else "file.toml")
    path.write_text(content)
    budget = {"run": ["--delta", "1e-5"], "remaining": ["--epsilon", "9", "--delta", "1e-5"]}.get(command, [])
    code = exit_code([command, str(path), *budget])
    is_other = command not in readers and not (command == "verify" and "ledger" in readers)
    assert (f"{remedy}.\n" in capsys.readouterr().err) == is_other
    assert code == 2 or not is_other


@pytest.mark.parametrize("value", ['"1"', '"1e5"'])
def test_number_in_quotes_in_file_is_called_text(value, tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text(f'[[phase]]\nmechanism = "gaussian"\nnoise_multiplier = {value}\n')
    assert exit_code(["run", str(path), "--delta", "1e-5"]) == 2
    shown = value.strip('"')
    assert f"must be a number, got the text '{shown}'. Write the number without quotes." in capsys.readouterr().err


def test_error_of_file_keeps_names_of_its_keys(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text('[[phase]]\nmechanism = "gaussian"\nnoise_multiplier = 1\nbatch_size = 9\nsampling_rate = 0.1\n')
    assert exit_code(["run", str(path), "--delta", "1e-5"]) == 2
    assert "sampling_rate must be omitted if batch_size is given" in capsys.readouterr().err


def test_warning_of_query_names_option(capsys):
    assert exit_code([*GAUSSIAN.split(), "--sampling", "shuffle", "--steps", "2"]) == 0
    assert "(--batches T)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("mechanism", mechanism_names())
def test_options_replace_parameters_in_messages(mechanism):
    options = options_in(["epsilon", mechanism])
    text = "give steps, with sampling=fixed. See x/batch_size.toml, other=1"
    found = with_options(text, options)
    assert "give --steps" in found and "x/batch_size.toml" in found and "other=1" in found
    assert ("--sampling fixed." in found) == ("--sampling" in options)
    assert with_options(text, ()) == text


def test_options_of_no_command_are_none():
    assert options_in([]) == options_in(["--version"]) == options_in(["epsilon", "nothing"]) == []


@pytest.mark.parametrize("command", ["epsilon", "delta", "compare"])
def test_error_of_unsound_mechanism_names_no_bound_first(command, capsys):
    target = ["--epsilon", "1"] if command == "delta" else ["--delta", "1e-5"]
    assert exit_code([command, "wishart-matrix", "--dim", "8", "--rank", "4", "--columns", "2", *target]) == 3
    assert "no bound of wishart-matrix is a guarantee; the bound early-matrix is refuted: " in capsys.readouterr().err
