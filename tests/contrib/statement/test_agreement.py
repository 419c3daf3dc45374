"""A statement and a ledger agree where the statement covers every release of the ledger, and in no other case."""

import json
from functools import cache

import pytest
from privproj_cli.main import exit_code
from unit.io.ledgers import spend
from unit.io.tampering import chained, entries_of

import privproj
from privproj.accounting.schedule import Composition, phase_of
from privproj.assumptions import Requirement
from privproj.contrib.statement.command import written
from privproj.contrib.statement.statement import (
    COUNTED,
    COVERED,
    LEDGER_HOLDS,
    SAME_DELTA,
    SAME_FILE,
    SAME_FOUNDATION,
    SAME_RUN,
    STATEMENT_HOLDS,
    account_data,
    compare_with_ledger,
    query_data,
    run_data,
    statement_from,
    verify_statement,
)
from privproj.io.files import INCOMPLETE
from privproj.io.ledger import Ledger, read_ledger, verify_ledger

DELTA = 1e-5
TARGET = {"epsilon": 8.0, "delta": DELTA}
RUN = {"steps": 30, "sampling_rate": 0.1, "public_size": True}
GAUSSIAN = privproj.Gaussian(noise_multiplier=4.0)
PHASE = phase_of(GAUSSIAN, "dp-sgd", **RUN)
SECOND = phase_of(privproj.Gaussian(noise_multiplier=9.0), "more", steps=5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def stated(data, delta=DELTA):
    """A statement with this data, as text."""
    return _stated(json.dumps(data), delta)


@cache
def _stated(sentence, delta):
    return written(statement_from(json.loads(sentence), delta, "text"))


@cache
def checked(text):
    """The verdict on a statement, which depends on its text alone."""
    return verify_statement(text.encode(), "statement", written)


def of_plan(phase=PHASE, **run):
    """The data of a statement about a phase as one question, some of its run changed."""
    return query_data(phase_of(phase.mechanism, bound=phase.bound.name, **{**RUN, **run}))


def compared(text, content):
    """The verdict in words, and the claims that do not hold."""
    found = compare_with_ledger(checked(text), verify_ledger(content, "ledger"))
    return found.word, {claim for claim, holds in found.claims.items() if not holds}


def agrees(text, content):
    word, failed = compared(text, content)
    assert (word == "fails") == bool(failed)
    return not failed


@pytest.mark.full
def test_every_kind_of_statement_agrees_with_ledger_of_its_run(path):
    """That of a question, of a run file and of a training run."""
    spend(path, 30, PHASE, TARGET)
    for data in (of_plan(), run_data(Composition((PHASE,))), account_data(read_ledger(path))):
        assert compared(stated(data), path.read_bytes()) == ("holds", set())
    spend(path, 5, SECOND, {})
    for data in (run_data(Composition((PHASE, SECOND))), account_data(read_ledger(path))):
        assert compared(stated(data), path.read_bytes()) == ("holds", set())


@pytest.mark.parametrize("releases", [0, 1, 29])
def test_unfinished_ledger_agrees_with_statement(path, releases):
    spend(path, releases, PHASE, TARGET)
    for known in ({}, {"dataset_size": 3000}):  # of which a ledger says nothing unless batches are capped
        assert compared(stated(of_plan(**known)), path.read_bytes()) == (INCOMPLETE, set())
    both = stated(run_data(Composition((PHASE, SECOND))))
    spend(path, 30 - releases, PHASE, TARGET)
    assert compared(both, path.read_bytes()) == (INCOMPLETE, set())


def test_ledger_with_extra_releases_disagrees(path):
    spend(path, 10, PHASE, TARGET)
    early = stated(account_data(read_ledger(path)))
    assert compared(early, path.read_bytes()) == (INCOMPLETE, set())
    spend(path, 1, PHASE, TARGET)
    assert compared(early, path.read_bytes()) == ("fails", {COUNTED, COVERED})
    spend(path, 19, PHASE, TARGET)
    whole = stated(of_plan())
    assert agrees(whole, path.read_bytes())
    spend(path, 1, SECOND, {})
    assert compared(whole, path.read_bytes())[1] >= {SAME_RUN, COUNTED, COVERED}


def test_statement_with_other_parameters_disagrees(path):
    """Although it claims more epsilon than was spent: what it says was done is not what the ledger says."""
    spend(path, 30, PHASE, TARGET)
    for changes in ({"steps": 31}, {"sampling_rate": 0.2}):
        assert compared(stated(of_plan(PHASE, **changes)), path.read_bytes()) == ("fails", {SAME_RUN})
    louder = phase_of(privproj.Gaussian(noise_multiplier=3.9), "dp-sgd", **RUN)
    assert compared(stated(of_plan(louder)), path.read_bytes()) == ("fails", {SAME_RUN})


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"steps": 29}, {SAME_RUN, COUNTED, COVERED}),
        ({"sampling_rate": 0.09}, {SAME_RUN, COVERED}),
        ({"group_size": 2}, {SAME_RUN}),
        ({"relation": "zero-out"}, {SAME_RUN}),
        ({"sampling": "fixed", "relation": "replace"}, {SAME_RUN}),
    ],
    ids=["fewer steps", "another rate", "a group", "another relation", "fixed batches"],
)
def test_statement_of_another_run_does_not_agree(path, changes, failed):
    spend(path, 30, PHASE, TARGET)
    word, found = compared(stated(of_plan(PHASE, **changes)), path.read_bytes())
    assert word == "fails" and found >= failed


def test_verify_adds_requirements_of_ledger(path, capsys):
    """A rate and steps that a statement of a plan gives as constants came from the size of the data."""
    spend(path, 30, PHASE, TARGET)
    for data, is_stated in ((of_plan(public_size=False), False), (of_plan(), True)):
        path.with_name("statement").write_text(stated(data))
        line = ["verify", str(path.with_name("statement")), str(path)]
        assert exit_code(line) == 0
        assert Requirement.PUBLIC_DATASET_SIZE.short in capsys.readouterr().out
        assert exit_code([*line, "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (Requirement.PUBLIC_DATASET_SIZE in record["statement"]["requirements"]) == is_stated
        assert Requirement.PUBLIC_DATASET_SIZE in record["ledger"]["requirements"]
        assert Requirement.PUBLIC_DATASET_SIZE in record["requirements"]


def test_another_bound_or_mechanism_does_not_agree(path):
    release = privproj.M2(dim=64, rank=4, noise_multiplier=9.0)
    spend(path, 1, phase_of(release, "m2", "rank-free"), TARGET)
    assert agrees(stated(query_data(phase_of(release, bound="rank-free"))), path.read_bytes())
    for mechanism, bound in ((release, "exact-rank1"), (release, "gaussian"), (GAUSSIAN, None)):
        assert not agrees(stated(query_data(phase_of(mechanism, bound=bound))), path.read_bytes())
    spend(path.with_name("other"), 1, phase_of(release, "m2", "exact-rank1"), TARGET)
    assert (
        SAME_FOUNDATION
        in compared(stated(query_data(phase_of(release, bound="rank-free"))), path.with_name("other").read_bytes())[1]
    )


def test_statement_at_larger_delta_than_target_does_not_agree(path):
    """A stricter one does, with the epsilon that belongs to it."""
    spend(path, 30, PHASE, TARGET)
    assert compared(stated(of_plan(), 1e-3), path.read_bytes()) == ("fails", {SAME_DELTA})
    assert agrees(stated(of_plan(), 1e-7), path.read_bytes())


def test_files_agree_only_if_each_is_verified(path):
    spend(path, 30, PHASE, TARGET)
    text, content = stated(of_plan()), path.read_bytes()
    lied = text.replace("epsilon is at most", "epsilon is about")
    assert compared(lied, content) == ("fails", {STATEMENT_HOLDS})
    seeded = path.with_name("seeded")
    book = Ledger(seeded, PHASE, TARGET, ("insecure",))
    book.close()
    spend(seeded, 30, PHASE, TARGET)
    assert compared(text, seeded.read_bytes()) == ("fails", {LEDGER_HOLDS})


def test_ledger_that_claims_smaller_plan_does_not_agree(path):
    """An owner shortens a run of 30 releases and its plan to 3, and recomputes the hashes."""
    spend(path, 30, PHASE, TARGET)
    entries = entries_of(path.read_bytes())[:5]
    entries[1]["phase"]["steps"] = 3
    content = chained(entries)
    assert verify_ledger(content, "ledger").word == "holds"
    for data in (of_plan(), account_data(read_ledger(path))):
        assert compared(stated(data), content) == ("fails", {SAME_RUN})


def test_phase_without_release_is_no_part_of_comparison(path):
    """It was given up before its first one, so nothing of it exists."""
    spend(path, 0, SECOND, None)
    spend(path, 30, PHASE, None)
    assert compared(stated(of_plan()), path.read_bytes()) == ("holds", set())


def test_filter_agrees_with_its_own_budget_alone(path):
    budget = {"epsilon": 6.0, "delta": DELTA, "order": 8}
    spend(path, 12, PHASE, budget)
    spend(path, 5, SECOND, {})
    account = read_ledger(path)
    data = account_data(account)
    assert compared(stated(data), path.read_bytes()) == ("holds", set())
    for other in ({**budget, "epsilon": 7.0}, {**budget, "epsilon": 5.0}):
        changed = {**data, "ledger": {**data["ledger"], "filter": other}}
        assert SAME_RUN in compared(stated(changed), path.read_bytes())[1]
    assert compared(stated(run_data(Composition((PHASE, SECOND)))), path.read_bytes())[1] >= {SAME_RUN, COVERED}


def test_public_subspace_has_to_be_named(path):
    book = Ledger(path, PHASE, TARGET, ("public_subspace",))
    book.close()
    spend(path, 30, PHASE, TARGET)
    assert compared(stated(of_plan()), path.read_bytes()) == ("fails", {SAME_FOUNDATION})
    assert agrees(stated(account_data(read_ledger(path))), path.read_bytes())


def test_epochs_of_balls_in_bins_are_counted_in_releases(path):
    bins = {"steps": 2, "sampling": "balls-in-bins", "batches": 3}
    release = privproj.Gaussian(noise_multiplier=30.0)
    text = stated(query_data(phase_of(release, **bins)))
    for releases, word in ((4, INCOMPLETE), (2, "holds")):
        spend(path, releases, phase_of(release, "bins", **bins), TARGET)
        assert compared(text, path.read_bytes()) == (word, set())


def test_file_order_is_free_and_json_agrees_with_text(path, capsys):
    spend(path, 3, PHASE, TARGET)
    statement = path.with_name("statement.md")
    statement.write_text(f"# Model card\n\n{stated(of_plan())}\n")
    spoken = []
    for pair in ((statement, path), (path, statement)):
        assert exit_code(["verify", *map(str, pair), "-v"]) == 0
        output = capsys.readouterr().out
        assert exit_code(["verify", *map(str, pair), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        spoken.append((output, found))
        assert output.startswith(f"{INCOMPLETE}: a statement and its ledger, 3 of 30 planned releases (")
        assert "\n  missing:" in output
        assert (found["verdict"], found["steps"], found["steps_planned"], found["missing_releases"]) == (
            INCOMPLETE, 3, 30, 27,
        )  # fmt: skip
        flat = " ".join(output.split())
        for sentence in (*found["requirements"], *found["unproved"], found["claim"], found["computed"]):
            assert sentence in flat
        assert max(map(len, output.splitlines())) <= 100
    assert spoken[0] == spoken[1]
    statement.write_text(stated(of_plan(steps=2)))
    assert exit_code(["verify", str(statement), str(path)]) == 1
    output = capsys.readouterr().out
    assert output.startswith("FAILS: ") and "steps 30 in the ledger, 2 in the statement" in " ".join(output.split())


def test_files_are_those_whose_digests_statement_names(path, capsys):
    spend(path, 30, PHASE, TARGET)
    statement, checkpoint = path.with_name("statement.md"), path.with_name("checkpoint.pt")
    checkpoint.write_bytes(b"weights" * 1000)
    requested = ["report", "ledger", str(path), "--checkpoint", str(checkpoint), "-o", str(statement)]
    assert exit_code(requested) == 0

    def failed(*more):
        capsys.readouterr()
        code = exit_code(["verify", str(statement), str(path), *map(str, more), "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (code == 1) == (found["verdict"] == "fails")
        return {claim for claim, holds in found["claims"].items() if not holds}, " ".join(found["unproved"])

    both = {name: SAME_FILE.format(name=name) for name in ("ledger", "checkpoint")}
    assert failed(checkpoint)[0] == set() and "a digest identifies the file, not its origin" in failed(checkpoint)[1]
    assert failed()[0] == set() and "is that of the checkpoint: you did not pass the file" in failed()[1]
    assert exit_code(["verify", str(statement)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert all(f"that the SHA-256 in the statement is that of the {name}" in output for name in both)
    whole, weights = path.read_bytes(), checkpoint.read_bytes()
    checkpoint.write_bytes(weights[:-1])
    assert failed(checkpoint)[0] == {both["checkpoint"]}
    path.write_bytes(whole.rsplit(b"\n", 2)[0] + b"\n")  # consistent as far as it goes, but not the file that was meant
    assert failed()[0] == {both["ledger"]}
    path.write_bytes(whole)
    statement.write_text(stated(of_plan()))  # that of a plan names neither
    assert failed()[0] == set() and failed(checkpoint)[0] == {both["checkpoint"]}


def test_two_files_of_other_kinds_give_one_error(path, tmp_path, capsys):
    spend(path, 3, PHASE, TARGET)
    statement, other = path.with_name("statement.md"), path.with_name("other")
    statement.write_text(stated(of_plan()))
    other.write_text("{}")
    for files in (
        (path, path), (statement, statement), (path, other), (other, statement), (path, statement, tmp_path),
        (path, other, path), (path, statement, path, path), (path, statement, "--delta", 1e-6),
    ):  # fmt: skip
        assert exit_code(["verify", *map(str, files)]) == 2
        output = capsys.readouterr()
        assert not output.out and output.err.count("\n") == 1
