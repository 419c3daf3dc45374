"""The commands that audit."""

import json
import subprocess
import sys

import pytest
from privproj_cli.main import exit_code

from privproj.contrib.audit import AuditVerdict
from privproj.contrib.audit.command import finding_from


def requested(capsys, line):
    code = exit_code(["audit", *line.split(), "--json"])
    return code, json.loads(capsys.readouterr().out)


KEYS = {"auc", "epsilon_lower", "confidence", "claimed_epsilon", "ceiling", "verdict", "trials", "seconds"}


def test_symmetry(capsys):
    code, found = requested(capsys, "symmetry --dim 64 --columns 8 --rank 16")
    assert (code, found["auc"], found["verdict"]) == (0, 1.0, "separates") and set(found) >= KEYS
    assert found["seconds"] < 5.0
    assert requested(capsys, "symmetry --dim 64 --columns 8 --rank 16 --claim 5")[0] == 1
    code, found = requested(capsys, "symmetry --columns 1 --claim 5")
    assert (code, found["verdict"]) == (0, "does not separate")


@pytest.mark.parametrize(("ceiling", "refuted", "noted"), [(1.0, False, True), (9.0, False, False), (1.0, True, False)])
def test_audit_with_too_few_trials_warns(ceiling, refuted, noted):
    found = AuditVerdict(auc=0.6, epsilon_lower=0.5, confidence=0.95, ceiling=ceiling, trials=40, claimed_epsilon=2.0,
                         delta=1e-3, profile_refuted=refuted)  # fmt: skip
    assert ("too few" in finding_from(found)[2].get("warning", "")) == noted


@pytest.mark.slow
def test_mechanism(release, capsys):
    line = "mechanism m2 --dim 64 --rank 8 --noise-multiplier 1 --steps 4 --delta 1e-3 --trials 800 --seed 1"
    code, found = requested(capsys, line)
    assert (code, found["verdict"], found["confidence"], found["trials"]) == (0, "not refuted", 0.999, 800)
    assert set(found) >= KEYS
    code, found = requested(capsys, line + " --fault clip-after-mean --workers 1")
    assert (code, found["verdict"]) == (1, "refuted")
    few = line.replace("--trials 800", "--trials 100 --workers 1")
    assert exit_code(["audit", *few.split(), "--claim", "0.01"]) in (0, 1)
    shown = capsys.readouterr().out
    assert "an audit never confirms" in shown and "is private" not in shown


@pytest.mark.full
def test_loader(release, capsys):
    line = "loader --noise-multiplier 0.5 --batches 6 --epochs 4 --trials 100 --seed 1"
    code, found = requested(capsys, line)
    assert (code, found["verdict"], found["trials"]) == (0, "not refuted", 100) and set(found) >= KEYS
    code, found = requested(capsys, line + " --fault two-bins --claim 0.001")
    assert (code, found["verdict"], found["fault"]) == (1, "refuted", "two-bins")


@pytest.mark.full
def test_one_run_and_membership(release, capsys):
    code, found = requested(capsys, "one-run --noise-multiplier 2 --canaries 200 --guesses 50 --seed 1")
    assert code == 0 and set(found) >= KEYS
    line = "membership --mechanism dp-sgd --noise-multiplier 4 --models 8 --steps 2 --records 20 --seed 1 --workers 1"
    code, found = requested(capsys, line)
    assert code == 0 and set(found) >= KEYS and found["trials"] == 8
    code, found = requested(capsys, line + " --attack calibrated")
    assert code == 0 and len(found["rates"]) == 2


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("mechanism m2 --noise-multiplier 1", "--dim"),
        ("mechanism m2 --dim 64 --noise-multiplier 1", "missing --rank"),
        ("mechanism gaussian --noise-multiplier 1 --rank 8", "--rank must be"),
        ("mechanism m2 --dim 64 --rank 8 --noise-multiplier 0", "--noise-multiplier must be"),
        ("mechanism m2 --dim 64 --rank 8 --noise-multiplier 1 --delta 2", "delta"),
        ("mechanism gaussian --noise-multiplier 1 --fault isotropic", "does not project"),
        ("mechanism m2 --dim 64 --rank 8 --noise-multiplier 1 --trials 3", "trials"),
        ("one-run --noise-multiplier 1 --guesses 2000", "guesses"),
        ("membership --noise-multiplier -1 --rank 4", "noise multiplier"),
        ("membership --noise-multiplier 1 --mechanism m2 --rank 0", "rank"),
        ("membership --noise-multiplier 1 --records 1e5 --rank 4", "records"),
        ("symmetry --rank 0", "rank"),
        ("loader --noise-multiplier 1 --batches 0", "batches"),
        ("loader --noise-multiplier 1 --trials 4", "trials"),
        ("loader --noise-multiplier 1 --fault isotropic", "fault"),
        ("one-run --noise-multiplier 5 --claim -1", "--claim must be a number from 0"),
        ("one-run --noise-multiplier 5 --seed -1", "seed"),
        ("membership --noise-multiplier 4 --rank 4 --models 8 --journal /nowhere/j.jsonl", "journal"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(release, capsys, line, text):
    assert exit_code(["audit", *line.split()]) == 2
    shown = capsys.readouterr()
    error = [row for row in shown.err.splitlines() if row.startswith("error")]
    assert shown.out == "" and len(error) == 1 and text in error[0]


def test_names_of_audits_import_neither_torch_nor_numpy():
    code = (
        "import sys, privproj.contrib.audit, privproj.contrib.audit.command;"
        "assert not {'torch', 'opacus', 'numpy', 'scipy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
