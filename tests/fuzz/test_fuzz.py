"""Fuzzing: whatever is asked, an exit code, one clear line, whole files, in bounded time. See ``tests/fuzz``."""

import json

import pytest
from helpers import needs
from hypothesis import HealthCheck, given, settings

from fuzz import strategies
from fuzz.drive import Tally, drive, kind_of, minimised
from fuzz.laws import broken, call
from fuzz.strategies import Case

CASES, SEED = 100_000, 1


def check(case: Case) -> None:
    """Fail with what to type, and what the files hold."""
    found = broken(case, call(case))
    assert not found, f"{found[0]}\n{case}"


def fuzzed(strategy, cases: int):
    """A test that feeds so many cases to the command line."""

    @settings(max_examples=cases, suppress_health_check=list(HealthCheck), print_blob=False)
    @given(strategy)
    def test(case: Case) -> None:
        check(case)

    return test


test_calls = pytest.mark.full(fuzzed(strategies.calls(), 130))
test_a_few_calls = fuzzed(strategies.calls(), 15)
test_commands_without_a_mechanism = fuzzed(strategies.lonely(), 20)
test_run_files = fuzzed(strategies.runs(), 40)
test_regression_files = fuzzed(strategies.checks(), 30)
test_ledgers = fuzzed(strategies.ledgers(), 40)
test_statements = fuzzed(strategies.statements(), 20)
test_raw_bytes = fuzzed(strategies.raw(), 40)


def test_certificates():
    needs("flint")
    fuzzed(strategies.certificates(), 20)()


@pytest.mark.parametrize(
    ("words", "law"),
    [
        (("epsilon", "gaussian", "--noise-multiplier", "1", "--delta", "1e-5", "--json"), None),
        (("epsilon", "gaussian", "--noise-multiplier", "\u0661", "--delta", "1e-5"), None),
        (("epsilon", "gaussian", "--noise-multiplier", "1", "--delta", "1e-5", "--json", "--bound", "\0"), None),
    ],
)
def test_the_laws_hold_of_plain_cases(words, law):
    assert broken(Case(words), call(Case(words))) == ([] if law is None else [law])


def test_the_laws_see_what_is_broken(monkeypatch):
    def wrong(words):
        print("epsilon = nan")
        with open("left", "w") as file:
            file.write("half")
        return 7

    monkeypatch.setattr("fuzz.laws.exit_code", wrong)
    case = Case(("epsilon", "gaussian"))
    assert {kind_of(s).split(":")[0] for s in broken(case, call(case))} == {
        "exit code", "a number", "a file nobody asked for",
    }  # fmt: skip


def test_a_traceback_and_a_hang_are_failures(monkeypatch):
    def endless(words):
        if words == ["raise"]:
            raise TypeError("here")
        while True:
            pass

    monkeypatch.setattr("fuzz.laws.exit_code", endless)
    monkeypatch.setattr("fuzz.laws.MOST_SECONDS", 0.1)
    for words in (("raise",), ("hang",)):
        assert broken(Case(words), call(Case(words)))[0].startswith("traceback: ")


@pytest.mark.slow
def test_a_hundred_thousand_cases(tmp_path, capsys):
    tally = drive(Tally(running=tmp_path / "running.txt"), CASES, SEED)
    counts = {"seed": SEED, "cases": tally.cases, "exit codes": dict(tally.codes), "commands": dict(tally.commands)}
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    with capsys.disabled():
        print(f"\nfuzz: {json.dumps(counts)}")
    assert tally.cases >= CASES
    shown = [f"{words}\n{minimised(case, kind)}" for kind, (case, words) in tally.failures.items()]
    assert not shown, "\n\n".join(shown)
