"""Statements list the requirements that ledgers and run files have."""

import pytest
from helpers import full_if, needs, slow_if
from privproj_cli.main import exit_code
from unit.test_assumptions import RUNS_OF_TRAINING, TEXTS, present, stated_of, write_run

from privproj.contrib.statement.command import written
from privproj.contrib.statement.statement import account_data, run_data, statement_from
from privproj.io.files import read_data
from privproj.io.ledger import read_ledger
from privproj.io.run_file import from_data


def stated(text):
    """Return the names of the requirements in a statement."""
    flat = " ".join(text.split())
    return {key for key, sentence in TEXTS.items() if f"requirement on the program: {sentence}" in flat}


@pytest.mark.parametrize("cut", slow_if([False, True], bool))
@pytest.mark.parametrize("name", full_if(RUNS_OF_TRAINING, lambda name: not name.startswith("one ")))
def test_statements_list_requirements_of_run(run, tmp_path, name, cut):
    """A ledger that is cut has the requirements of the whole run."""
    path, run_file = write_run(tmp_path, name, cut)
    of_ledger, of_run = tmp_path / "of-ledger", tmp_path / "of-run"
    of_ledger.write_text(written(statement_from(account_data(read_ledger(path)), 1e-5, "text")))
    of_run.write_text(written(statement_from(run_data(from_data(read_data(str(run_file)))), 1e-5, "text")))
    expected = stated_of(run, path, f"ledger {path} --delta 1e-5")
    for line in (f"verify {of_ledger}", f"verify {of_ledger} {path}"):
        assert stated_of(run, path, line) == expected
    assert stated(of_ledger.read_text()) == expected
    assert stated(of_run.read_text()) == stated_of(run, path, f"verify {of_run}") == expected - {"ONLY_THIS_LEDGER"}


@pytest.mark.full
def test_train_writes_statement_with_its_requirements(tmp_path, monkeypatch, capsys):
    needs("torch", "opacus", "sklearn")
    monkeypatch.chdir(tmp_path)
    line = "train --data digits --mechanism dp-sgd --epsilon 2 --delta 1e-5 --steps 3 --insecure-seed 1 --output run"
    assert exit_code(line.split()) == 0
    text = (tmp_path / "run" / "statement.md").read_text()
    assert "ONLY_THIS_LEDGER" in present(
        [sentence for sentence in TEXTS.values() if sentence in " ".join(text.split())]
    )
    assert "known seed" in text
    assert exit_code(["verify", str(tmp_path / "run" / "statement.md")]) == 0
