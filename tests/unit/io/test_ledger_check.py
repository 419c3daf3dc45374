"""Verification of ledgers: written ledgers pass; altered ones fail even with recomputed hashes."""

import json

import pytest
from privproj_cli.main import exit_code
from unit.io.ledgers import PHASE, SECOND, TARGET, spend
from unit.io.tampering import chained, entries_of

import privproj
from privproj.accounting.schedule import phase_of
from privproj.errors import InvalidParameterError
from privproj.io.files import INCOMPLETE
from privproj.io.ledger import AS_WRITTEN, KEPT, SECRET, WITHIN_PLAN, Ledger, read_ledger, verify_ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def failing(content):
    """The claims of a ledger that do not hold."""
    return {claim for claim, holds in verify_ledger(content, "ledger").claims.items() if not holds}


QUIET = phase_of(privproj.Gaussian(noise_multiplier=20.0), "quiet", steps=5)
BINS = phase_of(privproj.Gaussian(noise_multiplier=30.0), "bins", steps=2, sampling="balls-in-bins", batches=3)
CUT = phase_of(
    privproj.Gaussian(noise_multiplier=30.0), "cut", steps=4, sampling_rate=0.01, max_batch_size=40, dataset_size=900
)
LAYERS = phase_of(
    privproj.M2(
        layers=tuple(map(privproj.Layer.parse, ("64x8x2", "32x4"))), clipping="per-layer", noise_multiplier=9.0
    ),
    "layers",
)


def test_verify_ledger_holds_for_written_ledger(path):
    for phase, steps in ((QUIET, 2), (BINS, 4), (CUT, 1), (LAYERS, 1), (QUIET, 0), (CUT, 2)):
        spend(path, steps, phase, None)
    found = verify_ledger(path.read_bytes(), str(path))
    assert found.holds and found.claims.keys() == {AS_WRITTEN, WITHIN_PLAN, SECRET}
    assert found.account == read_ledger(path)


def test_altered_ledger_hashes_equal_those_of_writer(path):
    spend(path, 7)
    spend(path, 2, SECOND)
    assert chained(entries_of(path.read_bytes())) == path.read_bytes()


def test_ledger_after_crash_holds_unless_phase_is_incomplete(path):
    spend(path, 2, QUIET)
    whole = path.read_bytes()
    for cut in (1, 3, 20):
        assert not failing(whole[:-cut])
    spend(path, 0, SECOND)
    assert failing(path.read_bytes()[:-30]) == {AS_WRITTEN}


def test_verify_ledger_reports_missed_target(path):
    """Edited downwards, or never met; one that is met within the rounding of another machine is kept."""
    spend(path, 5, QUIET, {"epsilon": 8.0, "delta": 1e-5})
    entries = entries_of(path.read_bytes())
    known = privproj.epsilon(privproj.Gaussian(noise_multiplier=20.0), steps=5, delta=1e-5).value
    for factor, kept in ((1.0, True), (1 - 1e-9, True), (1 - 1e-5, False), (0.5, False)):
        entries[1]["target"] = {"epsilon": known * factor, "delta": 1e-5}
        assert failing(chained(entries)) == (set() if kept else {KEPT})
    entries[1]["target"] = {"delta": 1e-5}
    assert not failing(chained(entries))
    entries[1]["target"] = {"epsilon": 8.0}
    assert failing(chained(entries)) == {KEPT}


def test_verify_ledger_checks_earlier_targets(path):
    spend(path, 5, QUIET, {"epsilon": 3.0, "delta": 1e-5})
    spend(path, 5, SECOND, {"epsilon": 60.0, "delta": 1e-5})
    assert not failing(path.read_bytes())
    entries = entries_of(path.read_bytes())
    entries[1]["target"] = {"epsilon": 0.1, "delta": 1e-5}
    assert failing(chained(entries)) == {KEPT}


def test_excess_releases_break_target(path):
    known = privproj.epsilon(privproj.Gaussian(noise_multiplier=20.0), steps=5, delta=1e-5).value
    spend(path, 5, QUIET, {"epsilon": known, "delta": 1e-5})
    assert not failing(path.read_bytes())
    spend(path, 1, QUIET, None)
    assert failing(path.read_bytes()) == {KEPT, WITHIN_PLAN}


def test_verify_fails_for_more_releases_than_planned(path, capsys):
    """A smaller claimed plan cannot hide a release in the file."""
    spend(path, 5, QUIET, None)
    assert not failing(path.read_bytes())
    entries = entries_of(path.read_bytes())
    entries[1]["phase"]["steps"] = 3
    assert failing(chained(entries)) == {WITHIN_PLAN}
    spend(path.with_name("bins"), 7, BINS, None)
    assert failing(path.with_name("bins").read_bytes()) == {WITHIN_PLAN}


def test_ledger_marks_are_written_once(path):
    """That noise came from a given seed, and that a subspace is public."""
    for mark, failed in (("insecure", {SECRET}), ("public_subspace", set())):
        path = path.with_name(mark)
        for _ in range(2):
            Ledger(path, QUIET, TARGET, (mark,)).close()
        assert failing(path.read_bytes()) == failed
        assert getattr(read_ledger(path), mark) and path.read_bytes().count(mark.encode()) == 1
        entries = entries_of(path.read_bytes())
        entries[1][mark] = False
        with pytest.raises(InvalidParameterError):
            verify_ledger(chained(entries), str(path))


def test_ledger_without_hashes_is_rejected(path):
    spend(path, 2, QUIET)
    lines = [json.dumps(entry) for entry in entries_of(path.read_bytes())]
    for version in ("1", "2"):
        lines[0] = f'{{"ledger": "privproj", "version": {version}}}'
        with pytest.raises(InvalidParameterError, match="a ledger that privproj wrote"):
            verify_ledger(("\n".join(lines) + "\n").encode(), "ledger")


def another(phase, **changes):
    return {key: value for key, value in {**phase, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 5.0},
        {"noise_multiplier": 20},
        {"bound": None},
        {"sampling_rate": None},
        {"relation": None},
        {"name": None},
        {"mechanism": "prism"},
        {"noise_multiplier": None, "noise-multiplier": 20.0},
        {"group_size": 1},
        {"public_size": False},
        {"sampling": "poisson"},
    ],
    ids=str,
)
def test_verify_ledger_reports_phase_not_as_written(path, change):
    """It reads as the same phase, and the tool never writes it so."""
    spend(path, 2, QUIET)
    entries = entries_of(path.read_bytes())
    same = privproj.epsilon(privproj.Gaussian(noise_multiplier=20.0), steps=2, delta=1e-5).value
    entries[1]["phase"] = another(entries[1]["phase"], **change)
    content = chained(entries)
    assert failing(content) == {AS_WRITTEN}
    assert verify_ledger(content, "ledger").account.epsilon(1e-5).value == pytest.approx(same, rel=1e-12)


def test_verify_ledger_reports_misplaced_lines(path):
    spend(path, 2, QUIET)
    head, opening, *steps = entries_of(path.read_bytes())
    again = [head, opening, *steps, {"phase": opening["phase"]}, {"step": 1}]
    assert failing(chained(again)) == {AS_WRITTEN}
    turned = [head, dict(reversed(opening.items())), *steps]
    assert failing(chained(turned)) == {AS_WRITTEN}
    for phase in (opening["phase"], another(opening["phase"], steps=7)):
        seeded = [head, {**opening, "insecure": True}, *steps, {"phase": phase, "insecure": True}, {"step": 1}]
        assert failing(chained(seeded)) == {AS_WRITTEN, SECRET}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a\x1b[2Jepsilon = 0.1"},
        {"name": "a\nepsilon = 0.1"},
        {"name": "a\u202e"},
        {"name": "\ud800"},
        {"\x08\x08\u202eholds: ": 1},
        {"sampling": "balls-in-bins", "batch_size": 10, "dataset_size": 100, "sampling_rate": None},
        {"sampling": "balls-in-bins"},
        {"planned": True},
        {"epsilon": 0.1},
        {"discretization": 0.1},
        {"requirements": []},
    ],
    ids=ascii,
)
def test_phase_with_changed_meaning_is_rejected_in_one_line(path, change, capsys):
    """What a terminal would obey, a run that needs a key more, and keys that are none of a phase."""
    spend(path, 2, QUIET)
    entries = entries_of(path.read_bytes())
    entries[1]["phase"] = another(entries[1]["phase"], **change)
    path.write_bytes(chained(entries))
    with pytest.raises(InvalidParameterError):
        read_ledger(path)
    for command in ("ledger", "verify"):
        assert exit_code([command, str(path)]) == 2
        output = capsys.readouterr()
        assert not output.out and output.err.count("\n") == 1 and output.err[:-1].isprintable()


def test_ledger_verdict_omits_phase_names(path, capsys):
    """A name is free: it could claim anything."""
    spend(path, 2, phase_of(privproj.Gaussian(noise_multiplier=20.0), "epsilon is at most 0.01", steps=5))
    for arguments in ((), ("--json",)):
        assert exit_code(["verify", str(path), *arguments]) == 0
        assert "0.01" not in capsys.readouterr().out


def test_ledger_verdict_names_data_assumption(path, capsys):
    release = privproj.M2(dim=64, rank=4, noise_multiplier=9.0)
    for bound, assumed in (("exact-rank1", True), ("rank-free", False)):
        spend(path.with_name(bound), 1, phase_of(release, "m2", bound), None)
        assert exit_code(["verify", str(path.with_name(bound)), "--delta", "1e-5"]) == 0
        assert ("assumes:   every record changes" in capsys.readouterr().out) == assumed


def test_ledger_verdict_equals_accountant(path, capsys):
    spend(path, 2, QUIET)
    assert exit_code(["verify", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["kind"], found["target"]) == (INCOMPLETE, "ledger", TARGET)
    assert (found["steps"], found["steps_planned"], found["missing_releases"]) == (2, 5, 3)
    account = read_ledger(path)
    assert found["epsilon"] == account.epsilon(1e-5).value < found["epsilon_of_plan"]
    assert exit_code(["verify", str(path), "--delta", "1e-7", "-v"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "at delta 1e-07" in output and "no key" in output and "phase 1:" in output


def test_verify_rejects_ledger_without_phase(path, capsys):
    path.write_bytes(chained([{"ledger": "privproj", "version": 2}]))
    assert exit_code(["verify", str(path)]) == 2
    spend(path.with_name("other"), 1, PHASE, {"epsilon": 8.0})
    assert exit_code(["verify", str(path.with_name("other"))]) == 2
    assert "--delta" in capsys.readouterr().err
