"""Random command lines keep the laws of :mod:`tests.differential.command_line_rules`, and these laws can fail."""

import json

import pytest
from hypothesis import strategies as st

from tests.differential import command_lines
from tests.differential.command_line_rules import broken, call, check_case
from tests.differential.command_lines import Case
from tests.differential.report import Check, Report, check_examples, distribution_of, run_examples

EXAMPLES = {"calls": 15, "lonely": 20, "runs": 40, "checks": 30, "ledgers": 40, "raw": 40}


@pytest.mark.parametrize("strategy", EXAMPLES)
def test_command_lines_keep_all_rules(strategy):
    check_examples(getattr(command_lines, strategy)(), check_case, EXAMPLES[strategy])


@pytest.mark.slow
def test_many_calls_keep_all_rules():
    check_examples(command_lines.calls(), check_case, 130)


@pytest.mark.slow
def test_hundred_thousand_command_lines_keep_all_rules(tmp_path, capsys):
    report = Report(running=tmp_path / "running.txt")
    run_examples(report, command_lines.everything(), check_case, examples=100_000, seed=1)
    with capsys.disabled():
        print(f"\ncommand lines: {json.dumps(report.plain()['counts'])}")
    assert not report.failures, "\n\n".join(report.failures.values())


# --- negative controls ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "rules"),
    [
        (("epsilon", "gaussian", "--noise-multiplier", "1", "--delta", "1e-5", "--json"), []),
        (("epsilon", "gaussian", "--noise-multiplier", "\u0661", "--delta", "1e-5"), []),
        (("epsilon", "gaussian", "--noise-multiplier", "1", "--delta", "1e-5", "--json", "--bound", "\0"), []),
    ],
)
def test_command_line_rules_hold_for_plain_calls(arguments, rules):
    assert broken(Case(arguments), call(Case(arguments))) == rules


def test_command_line_rules_detect_wrong_output(monkeypatch):
    def wrong(text):
        print("epsilon = nan")
        with open("left", "w") as file:
            file.write("half")
        return 7

    monkeypatch.setattr("tests.differential.command_line_rules.exit_code", wrong)
    case = Case(("epsilon", "gaussian"))
    assert {distribution_of(s).split(":")[0] for s in broken(case, call(case))} == {
        "exit code", "a number", "a file without an option",
    }  # fmt: skip


def test_command_line_rules_detect_exception_and_hang(monkeypatch):
    def endless(arguments):
        if arguments == ["raise"]:
            raise TypeError("here")
        while True:
            pass

    monkeypatch.setattr("tests.differential.command_line_rules.exit_code", endless)
    monkeypatch.setattr("tests.differential.command_line_rules.MOST_SECONDS", 0.1)
    for arguments in (("raise",), ("hang",)):
        assert broken(Case(arguments), call(Case(arguments)))[0].startswith("traceback: ")


def test_report_keeps_smallest_example_of_each_rule():
    def check(number):
        check = Check("row", str(number))
        if number > 100:
            check.fail("large", f"{number} > 100")
        if number < -5:
            check.fail("small", f"{number} < -5")
        return check

    report = run_examples(Report(), st.integers(-(10**6), 10**6), check, examples=600, seed=3)
    assert report.failures == {"large": "large: 101 > 100\n    101", "small": "small: -6 < -5\n    -6"}
    assert report.examples >= 600
