"""The command ``privproj verify``: kinds of documents, verdicts, and files that are none of them."""

import io
import json
import os
import sys

import pytest
from helpers import feature_rows, needs
from privproj_cli.main import exit_code
from privproj_cli.verify import UNPROVED
from unit.io.ledgers import TARGET, spend

import privproj
from privproj.accounting.schedule import phase_of
from privproj.io.files import INCOMPLETE
from privproj.io.ledger import LARGEST_LEDGER
from privproj.result import round_outward

DOCUMENTS = feature_rows("DOCUMENTS")  # the words that write a document, by kind


@pytest.fixture(params=["ledger", *DOCUMENTS])
def document(request, tmp_path, capsys):
    """Return the kind of a document, and the document under a name that does not tell its kind."""
    kind, path = request.param, tmp_path / "document"
    needs(*feature_rows("EXTRAS").get(kind, ()))
    if kind == "ledger":
        spend(path, 5, phase_of(privproj.Gaussian(noise_multiplier=20.0), steps=5), TARGET)
    else:
        assert exit_code([*DOCUMENTS[kind], str(path)]) == 0
    capsys.readouterr()
    return kind, path


def test_verify_has_one_verdict_for_every_kind(document, capsys):
    kind, path = document
    assert exit_code(["verify", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["kind"]) == ("holds", kind) and found["claim"]
    assert all(found["claims"].values())
    assert exit_code(["verify", str(path)]) == 0
    output = capsys.readouterr().out
    count = len(found["claims"])
    assert output.startswith("holds: ") and f"({count} of {count} checks passed) " in " ".join(output.split())
    assert len(output.splitlines()) <= 10
    assert max(map(len, output.splitlines())) <= 100


def test_verify_reads_standard_input(document, monkeypatch, capsys):
    _, path = document
    exit_code(["verify", str(path)])
    usual = capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert exit_code(["verify", "-"]) == 0 and capsys.readouterr() == usual


def test_verify_follows_links(document, tmp_path):
    _, path = document
    (tmp_path / "link").symlink_to(path)
    assert exit_code(["verify", str(tmp_path / "link")]) == 0


def test_verify_takes_delta_for_ledgers_only(document):
    kind, path = document
    assert exit_code(["verify", str(path), "--delta", "1e-6"]) == (0 if kind == "ledger" else 2)


def test_verify_takes_no_two_documents_of_one_kind(document):
    _, path = document
    assert exit_code(["verify", str(path), str(path)]) == 2
    assert exit_code(["verify", *4 * [str(path)]]) == 2


def rejected(path, capsys):
    """Check that a file is rejected with one sentence."""
    assert exit_code(["verify", str(path)]) == 2, path
    output = capsys.readouterr()
    assert not output.out and output.err.startswith(("error: FILE must be", "error: certificate: content must be"))
    assert output.err.count("\n") == 1
    assert len(output.err) < 1000 and output.err[:-1].isprintable()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"\0" * 5000, b"\xff\xfe\x00", b"hello", b"[]", b"{", b"{}", b"null", b"1" * 100_000,
        b"[" * 100_000, b"{" * 100_000, b'{"a":' * 100_000, b'{"ledger"', b'{"ledger": 1}', b'{"ledger": "privproj"',
        b'{"ledger": "privproj", "version": 2}\n' + b"[" * 100_000 + b"\n", b" {} " * 400_000,
        "{\u202e\x1b[2J}".encode(), b"%PDF", *feature_rows("MALFORMED"),
    ],
    ids=lambda content: ascii(content[:30]),
)  # fmt: skip
def test_verify_refuses_malformed_files_in_one_line(tmp_path, capsys, content):
    (tmp_path / "file").write_bytes(content)
    rejected(tmp_path / "file", capsys)


def test_verify_rejects_special_files(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(LARGEST_LEDGER + 1)
    for name in (".", "pipe", "loop", "nowhere", "huge", "missing", "x" * 500):
        rejected(tmp_path / name, capsys)
    rejected("/dev/zero", capsys)


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
def test_verify_states_missing_releases_first(tmp_path, capsys, parts, counts):
    """A run that was stopped, one that goes on, and one whose last lines were cut off look alike."""
    for phase, releases in parts:
        spend(tmp_path / "ledger", releases, phase, None)
    made, planned = counts
    assert exit_code(["verify", str(tmp_path / "ledger"), "--delta", "1e-5"]) == 0
    output = capsys.readouterr().out
    first, second = output.split("\n")[:2]
    assert first.startswith(f"{INCOMPLETE}: a ledger, {made} of {planned} planned releases (")
    assert second.startswith(f"  missing:   {planned - made} of {planned} planned releases are not in the ledger")
    assert "holds" not in output
    assert exit_code(["verify", str(tmp_path / "ledger"), "--delta", "1e-5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["steps"], found["steps_planned"]) == (INCOMPLETE, made, planned)
    assert found["missing_releases"] == planned - made and next(iter(found)) == "verdict"
    whole = found["epsilon_of_plan"]
    assert found["claim"].startswith(f"epsilon <= {round_outward(whole)} at delta 1e-05 after the whole plan")
    flat = " ".join(output.split())
    for text in (found["claim"], *found["unproved"], *found["warnings"]):
        assert text in flat


def test_verify_holds_for_completed_plan(tmp_path, capsys):
    for phase in (SHORT, LONG):
        spend(tmp_path / "ledger", phase.run.steps, phase, None)
    assert exit_code(["verify", str(tmp_path / "ledger"), "--delta", "1e-5"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("holds: a ledger, 304 of 304 planned releases (") and "missing" not in output


def test_verify_begins_each_item_of_a_list_with_a_dash(tmp_path, capsys):
    spend(tmp_path / "ledger", SHORT.run.steps, SHORT, None)
    assert exit_code(["verify", str(tmp_path / "ledger"), "--delta", "1e-5", "-v"]) == 0
    output = capsys.readouterr().out
    assert len(UNPROVED) == 2 and "\n  unproved:  - " in output
    flat = " ".join(output.split())
    for text in UNPROVED:
        assert f"- {text}" in flat
