"""One door for three kinds of files: what a file is, is seen from what it says; a file that is none is one sentence."""

import json
import os

import pytest
from helpers import needs
from privproj_cli import verify
from privproj_cli.main import exit_code
from records.ledgers import TARGET, spend

import privproj
from privproj.accounting.schedule import phase_of
from privproj.records.certificate import LARGEST_FILE

KINDS = ("certificate", "ledger", "statement")


@pytest.fixture
def documents(tmp_path, capsys):
    """A document of each kind, under a name that says nothing."""
    needs("flint")
    question = ("gaussian", "--noise-multiplier", "2", "--delta", "1e-5")
    paths = {kind: tmp_path / str(i) for i, kind in enumerate(KINDS)}
    assert exit_code(["epsilon", *question, "--certificate", str(paths["certificate"])]) == 0
    assert exit_code(["report", *question, "-o", str(paths["statement"])]) == 0
    spend(paths["ledger"], 2, phase_of(privproj.Gaussian(noise_multiplier=20.0), steps=5), TARGET)
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
        b'{"ledger": "privproj", "version": 1}\n' + b"[" * 100_000 + b"\n", b'{"certificate": {}}', b" {} " * 400_000,
        b"PRIVACY STATEMENT\n", b"## Privacy statement\n\xff", b'{"privproj": ', b'{"privproj": ' + b"[" * 100_000,
        b"PRIVACY STATEMENT\r\nEnd of the privacy statement.\r\n", "{\u202e\x1b[2J}".encode(), b"%PDF",
        b'{"privproj": "0.1.0", "style": "text", "delta": 1e-05, "question": {"\x1b[2J": 1}}',
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
        file.truncate(verify.LARGEST + 1)
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
    asked = '"question": {"mechanism": "sketch", "rank": 16, "gamma": 9.0, "steps": 3, "sampling_rate": 0.1}'
    line = f'{{"privproj": "0.1.0", "style": "text", "delta": 1e-05, {asked}}}'
    (tmp_path / "file").write_text(f"PRIVACY STATEMENT\n{line}\nEnd of the privacy statement.\n")
    assert exit_code(["verify", str(tmp_path / "file"), "--json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == "refused" and said.err.count("\n") == 1
