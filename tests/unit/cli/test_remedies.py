"""Errors of the command line name what exists, and their remedies are accepted."""

import pytest
from privproj_cli.main import exit_code

WISHART = "epsilon wishart --dim 100 --rank 5 --misalignment 1e-6 --delta 1e-5"
SKETCH = "epsilon sketch --gamma 50 --rank 16 --delta 1e-5 --steps 10"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (f"{SKETCH} --sampling fixed --relation add-remove --sampling-rate 0.01", "Omit the sampling"),
        (
            f"{WISHART} --sampling fixed --sampling-rate 0.01 --steps 9 --relation add-remove",
            "Use sampling=fixed with relation=",
        ),
        (f"{WISHART} --sampling partition --relation add-remove", "Use relation=zero-out or replace.\n"),
        ("misalignment gaussian --epsilon 1 --delta 1e-5", "misalignment is not defined for gaussian"),
        ("epsilon wishart --dim 100 --rank 5 --delta 1e-5", "an assumption on your data (`privproj alignment`"),
        ("epsilon m2 --dim 64 --noise-multiplier 1 --delta 1e-5", "give --dim and --rank, or --layer\n"),
        (
            "epsilon m2 --bound beta-tail --dim 64 --rank 4 --noise-multiplier 1 --delta 1e-5",
            "give --columns (the other",
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
