"""Ledgers whose target has an order: the filter counts every release before it is written."""

import json
import os

import pytest
from privproj_cli.main import exit_code
from unit.io.ledgers import PHASE, RELEASE, SECOND, TARGET, spend
from unit.io.tampering import chained, entries_of

import privproj
from privproj.accounting.schedule import phase_of
from privproj.assumptions import Requirement
from privproj.contrib.filters import Filter
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.integrations.dp_accounting import event_of
from privproj.io.files import INCOMPLETE
from privproj.io.ledger import KEPT, Account, Ledger, read_ledger, verify_ledger

QUIET = phase_of(privproj.Gaussian(noise_multiplier=20.0), "quiet", steps=5)
LONG = phase_of(privproj.Gaussian(noise_multiplier=1.1), "dp-sgd", steps=300, sampling_rate=0.01)
SHORT = phase_of(privproj.Gaussian(noise_multiplier=9.0), "more", steps=4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def failed_claims(content):
    return {claim for claim, holds in verify_ledger(content, "ledger").claims.items() if not holds}


FILTER = {"epsilon": 8.0, "delta": 1e-5, "order": 6}
CHOSEN = phase_of(privproj.Gaussian(noise_multiplier=1.5), "dp-sgd", steps=2)


def adaptive_ledger(path):
    """A ledger under a filter whose first phase was stopped early, and whose second one was chosen then."""
    spend(path, 7, PHASE, FILTER)
    spend(path, 2, CHOSEN, {})
    return read_ledger(path)


def test_ledger_with_filter_allows_adaptive_phases(path):
    account = adaptive_ledger(path)
    budget = Filter(**FILTER)
    found = account.epsilon(1e-5)
    assert found.value == budget.epsilon(1e-5).value <= 8.0 and account.target == FILTER
    assert (
        account.requirements == (Requirement.FIXED_FILTER, Requirement.ONLY_THIS_LEDGER)
        and Requirement.FIXED_FILTER in found.requirements
    )
    assert Requirement.FIXED_SCHEDULE not in found.requirements and account.stopped == ()
    budget.spend(RELEASE, sampling_rate=0.25, steps=7)
    budget.spend(privproj.Gaussian(noise_multiplier=1.5), steps=2)
    assert account.budget().spent == budget.spent == found.mechanism["filter"]["spent"]
    assert found.run["steps"] == account.spent == 9
    assert [steps for _, steps in account.planned.phases] == [7, 2]


def test_ledger_rejects_overspending_step_before_writing(path):
    release = privproj.Gaussian(noise_multiplier=2.0)
    fit = Filter(**FILTER).most_steps(release)
    with pytest.raises(UnsupportedError, match=f"{fit} releases fit"):
        Ledger(path, phase_of(release, "dp-sgd", steps=fit + 1), FILTER)
    assert read_ledger(path).phases == ()
    book = Ledger(path, phase_of(release, "dp-sgd", steps=fit), FILTER)
    for _ in range(fit):
        book.record()
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="Nothing was counted; 0 releases fit"):
            book.record()
    assert path.read_bytes() == before and book.steps == fit
    book.close()
    with pytest.raises(UnsupportedError, match="would exceed the budget"):
        Ledger(path, CHOSEN)
    assert path.read_bytes() == before


def test_ledger_recounts_filter_after_write_failure(path, monkeypatch):
    book = Ledger(path, PHASE, FILTER)
    book.record()

    def broken(*file):
        raise OSError(28, "No space left on device")

    for name, written in (("fsync", 3), ("write", 4)):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, broken)
            with pytest.raises(UnsupportedError, match="No space left"):
                book.record()
        book.record()
        assert book.budget.spent == read_ledger(path).budget().spent and read_ledger(path).spent == written
    book.close()


@pytest.mark.parametrize(
    ("first", "second"),
    [(TARGET, FILTER), (FILTER, TARGET), (FILTER, {**FILTER, "order": 7}), (FILTER, {**FILTER, "epsilon": 9.0}),
     ({}, FILTER)],
    ids=str,
)  # fmt: skip
def test_ledger_filter_is_fixed_before_first_release(path, first, second):
    spend(path, 1, PHASE, first)
    before = path.read_bytes()
    with pytest.raises(UnsupportedError, match="cannot change after the first release"):
        Ledger(path, SECOND, second)
    assert path.read_bytes() == before


def test_ledger_filter_can_change_before_first_release(path):
    spend(path, 0, PHASE, TARGET)
    spend(path, 0, PHASE, FILTER)
    spend(path, 3, SECOND, {**FILTER, "order": 7})
    assert read_ledger(path).target == {**FILTER, "order": 7}


def test_ledger_rejects_phase_that_filter_cannot_count(path):
    bins = phase_of(privproj.Gaussian(noise_multiplier=2.0), "dp-sgd", steps=1, sampling="balls-in-bins", batches=5)
    with pytest.raises(UnsupportedError, match="balls-in-bins"):
        Ledger(path, bins, FILTER)
    with pytest.raises(UnsupportedError, match="leaves no budget"):
        Ledger(path, PHASE, {"epsilon": 0.1, "delta": 1e-5, "order": 3})
    with pytest.raises(InvalidParameterError, match="order"):
        Ledger(path, PHASE, {**FILTER, "order": 1})
    with pytest.raises(InvalidParameterError, match="'order': None"):
        Ledger(path, PHASE, {**FILTER, "order": None})


def test_ledger_command_reports_whole_filter_budget(path, capsys):
    account = adaptive_ledger(path)
    assert exit_code(["ledger", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["filter"] == account.budget().parameters() and Requirement.FIXED_FILTER in shown["requirements"]
    assert shown["epsilon"] == shown["epsilon_of_plan"] == account.epsilon(1e-5).value
    assert exit_code(["ledger", str(path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "filter: Renyi divergence at most" in output and "at order 6" in output
    assert "report: the epsilon of the whole budget of the filter" in output


def test_verify_fails_on_ledger_that_overspent_filter(path):
    budget = {"epsilon": 4.0, "delta": 1e-5, "order": 6}
    fit = Filter(**budget).most_steps(QUIET)
    spend(path, 2, QUIET, budget)
    spend(path, 1, phase_of(privproj.Gaussian(noise_multiplier=3.0), "loud", steps=3), {})
    assert verify_ledger(path.read_bytes(), str(path)).holds and 20 < fit < 5000
    entries = entries_of(path.read_bytes())
    more = [{"step": step} for step in range(2, fit)]
    long = {**QUIET.as_dict(), "steps": fit}
    assert failed_claims(chained([*entries, {"phase": long}, {"step": 1}, *more])) == {KEPT}
    assert not failed_claims(chained([*entries, {"phase": QUIET.as_dict()}, {"step": 1}]))


def test_verify_counts_releases_under_filter(tmp_path, capsys):
    budget = {"epsilon": 6.0, "delta": 1e-5, "order": 8}
    for (phase, releases), target, counts in (
        ((LONG, 7), budget, "7 of 300"), ((SHORT, 1), {}, "8 of 11"), ((SHORT, 3), {}, "11 of 11")
    ):  # fmt: skip
        spend(tmp_path / "ledger", releases, phase, target)
        assert exit_code(["verify", str(tmp_path / "ledger")]) == 0
        output = capsys.readouterr().out
        assert f"{counts} planned releases" in output.split("\n")[0]
        assert output.startswith("holds: " if counts == "11 of 11" else INCOMPLETE)


def test_event_of_rejects_ledger_with_filter():
    account = Account(((PHASE.as_dict(), 50),), {"epsilon": 3.0, "delta": 1e-5, "order": 8.0})
    with pytest.raises(UnsupportedError, match="adaptively chosen parameters"):
        event_of(account)
