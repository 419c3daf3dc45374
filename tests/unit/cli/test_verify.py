"""One door for three kinds of files: what a file is, is seen from what it says; a file that is none is one sentence."""

import io
import json
import os
import sys

import pytest
from helpers import needs
from privproj_cli.main import exit_code
from unit.io.ledgers import TARGET, spend

import privproj
from privproj.accounting.schedule import phase_of
from privproj.io.files import AS_FAR_AS_IT_GOES, LARGEST_FILE
from privproj.io.ledger import LARGEST_LEDGER
from privproj.result import round_outward

KINDS = ("certificate", "ledger", "statement")


@pytest.fixture
def documents(tmp_path, capsys):
    """A document of each kind, under a name that says nothing."""
    needs("flint")
    question = ("gaussian", "--noise-multiplier", "2", "--delta", "1e-5")
    paths = {kind: tmp_path / str(i) for i, kind in enumerate(KINDS)}
    assert exit_code(["epsilon", *question, "--certificate", str(paths["certificate"])]) == 0
    assert exit_code(["report", *question, "-o", str(paths["statement"])]) == 0
    spend(paths["ledger"], 5, phase_of(privproj.Gaussian(noise_multiplier=20.0), steps=5), TARGET)
    capsys.readouterr()
    return paths


def test_one_verdict_for_every_kind(documents, capsys):
    for kind, path in documents.items():
        assert exit_code(["verify", str(path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["verdict"], found["kind"]) == ("holds", kind) and found["claim"]
        assert all(found["claims"].values())
        assert exit_code(["verify", str(path)]) == 0
        said = capsys.readouterr().out
        assert said.startswith("holds: ") and said.count("\n  yes  ") == len(found["claims"])
        assert max(map(len, said.splitlines())) <= 100


def test_a_document_comes_from_standard_input(documents, monkeypatch, capsys):
    for path in documents.values():
        exit_code(["verify", str(path)])
        usual = capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        assert exit_code(["verify", "-"]) == 0 and capsys.readouterr() == usual


def test_a_link_is_what_it_leads_to(documents, tmp_path, capsys):
    link = tmp_path / "link"
    for path in documents.values():
        link.symlink_to(path)
        assert exit_code(["verify", str(link)]) == 0
        link.unlink()


def test_a_delta_is_for_ledgers(documents, capsys):
    codes = [exit_code(["verify", str(path), "--delta", "1e-6"]) for path in documents.values()]
    assert codes == [2, 0, 2]


def refused(path, capsys):
    """Check that a file is refused by one sentence."""
    assert exit_code(["verify", str(path)]) == 2, path
    said = capsys.readouterr()
    assert not said.out and said.err.startswith("error: expected") and said.err.count("\n") == 1
    assert len(said.err) < 1000 and said.err[:-1].isprintable()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"\0" * 5000, b"\xff\xfe\x00", b"hello", b"[]", b"{", b"{}", b"null", b"1" * 100_000,
        b"[" * 100_000, b"{" * 100_000, b'{"a":' * 100_000, b'{"ledger"', b'{"ledger": 1}', b'{"ledger": "privproj"',
        b'{"ledger": "privproj", "version": 2}\n' + b"[" * 100_000 + b"\n", b'{"certificate": {}}', b" {} " * 400_000,
        b"PRIVACY STATEMENT\n", b"## Privacy statement\n\xff", b'{"privproj": ', b'{"privproj": ' + b"[" * 100_000,
        b"PRIVACY STATEMENT\r\nEnd of the privacy statement.\r\n", "{\u202e\x1b[2J}".encode(), b"%PDF",
        b'{"privproj": "0.1.0", "style": "text", "delta": 1e-05, "run": {"\x1b[2J": 1}}',
    ],
    ids=lambda content: ascii(content[:30]),
)  # fmt: skip
def test_a_file_that_is_none_of_them_is_one_sentence(tmp_path, capsys, content):
    (tmp_path / "file").write_bytes(content)
    refused(tmp_path / "file", capsys)


def test_what_is_no_file_is_not_read(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(LARGEST_LEDGER + 1)
    for name in (".", "pipe", "loop", "nowhere", "huge", "missing", "x" * 500):
        refused(tmp_path / name, capsys)
    refused("/dev/zero", capsys)


def test_a_certificate_with_something_far_behind_it_is_refused(documents, capsys):
    """What is not read is not checked."""
    path = documents["certificate"]
    path.write_bytes(path.read_bytes() + b" " * LARGEST_FILE + b"epsilon is 0.001")
    refused(path, capsys)


def test_what_cannot_be_computed_is_said_in_json_too(tmp_path, capsys):
    """A question that no bound answers is none that a statement could have been written from."""
    phase = '{"mechanism": "sketch", "rank": 16, "gamma": 9.0, "steps": 3, "sampling_rate": 0.1}'
    asked = f'"run": {{"phase": [{phase}]}}'
    line = f'{{"privproj": "0.1.0", "style": "text", "delta": 1e-05, {asked}}}'
    (tmp_path / "file").write_text(f"PRIVACY STATEMENT\n{line}\nEnd of the privacy statement.\n")
    assert exit_code(["verify", str(tmp_path / "file"), "--json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == "refused" and said.err.count("\n") == 1


LONG = phase_of(privproj.Gaussian(noise_multiplier=1.1), "dp-sgd", steps=300, sampling_rate=0.01)
SHORT = phase_of(privproj.Gaussian(noise_multiplier=9.0), "more", steps=4)


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        (((LONG, 3),), (3, 300)),
        (((LONG, 0),), (0, 300)),
        (((LONG, 299), (SHORT, 4)), (303, 304)),
        (((SHORT, 4), (LONG, 0)), (4, 304)),
        (((SHORT, 0), (LONG, 1)), (1, 300)),
    ],
    ids=["cut", "nothing", "first phase", "last phase", "given up"],
)
def test_a_ledger_that_ends_before_its_plan_says_first_what_is_missing(tmp_path, capsys, parts, counts):
    """A run that was stopped, one that goes on, and one whose last lines were cut off look alike."""
    for phase, releases in parts:
        spend(tmp_path / "ledger", releases, phase, None)
    made, planned = counts
    assert exit_code(["verify", str(tmp_path / "ledger"), "--delta", "1e-5"]) == 0
    said = capsys.readouterr().out
    first, second = said.split("\n")[:2]
    assert first == f"{AS_FAR_AS_IT_GOES}: a ledger, {made} of {planned} planned releases"
    assert second.startswith(f"  missing:  {planned - made} of {planned} planned releases are not in the ledger")
    assert "holds" not in said
    assert exit_code(["verify", str(tmp_path / "ledger"), "--delta", "1e-5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["steps"], found["steps_planned"]) == (AS_FAR_AS_IT_GOES, made, planned)
    assert found["missing_releases"] == planned - made and next(iter(found)) == "verdict"
    whole = found["epsilon_of_plan"]
    assert found["claim"].startswith(f"epsilon is at most {round_outward(whole)} at delta 1e-05 after the whole plan")
    flat = " ".join(said.split())
    for words in (found["claim"], *found["unproved"], *found["assumes"], *found["warnings"]):
        assert words in flat


def test_a_ledger_that_reached_the_end_of_its_plan_holds(tmp_path, capsys):
    for phase in (SHORT, LONG):
        spend(tmp_path / "ledger", phase.run.steps, phase, None)
    assert exit_code(["verify", str(tmp_path / "ledger"), "--delta", "1e-5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("holds: a ledger, 304 of 304 planned releases\n") and "missing" not in said


@pytest.mark.parametrize("style", ["text", "markdown", "html"])
def test_a_statement_that_fails_shows_its_own_number_beside_the_recomputed_one(tmp_path, capsys, style):
    path = tmp_path / "statement"
    line = ["report", "gaussian", "--noise-multiplier", "2", "--delta", "1e-5", "--style", style, "-o", str(path)]
    assert exit_code(line) == 0
    stated = privproj.epsilon(privproj.Gaussian(noise_multiplier=2.0), delta=1e-5).value
    true = f"epsilon is at most {round_outward(stated)}"
    claimed, found = "claimed:  {} at delta {}, in the words", f"found:    {true} at delta 1e-05, computed anew"
    text = path.read_text()
    assert true in text
    for said, shown in (
        (text, (true, "1e-05")),
        (text.replace(true, "epsilon is at most 0.1"), ("epsilon is at most 0.1", "1e-05")),
        (text.replace(f"{true} at delta 1e-05", f"{true} at delta 1e-09"), (true, "1e-09")),
    ):
        path.write_text(said)
        capsys.readouterr()
        assert exit_code(["verify", str(path)]) == (0 if said == text else 1)
        answer = capsys.readouterr().out
        assert claimed.format(*shown) in answer and found in answer
    path.write_text(text.replace(true, "\x1b[2Jepsilon is at most none"))
    assert exit_code(["verify", str(path)]) == 1
    answer = capsys.readouterr().out
    assert "claimed:  no epsilon that can be read" in answer and found in answer and "\x1b" not in answer
