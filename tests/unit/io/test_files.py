"""Files of the command line: read up to a size, written whole or not at all, and named where that fails."""

import json
import os
import stat
import time
from pathlib import Path

import pytest
from helpers import feature_rows, needs
from privproj_cli.main import exit_code
from unit.io.ledgers import spend

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io import ledger
from privproj.io.files import LARGEST_FILE, read_bounded, write_atomically
from tests.differential.command_line_rules import call
from tests.differential.command_lines import Case

GAUSSIAN = ("gaussian", "--noise-multiplier", "1")
PHASE = {"mechanism": "gaussian", "noise_multiplier": 3}
BOUND = {**PHASE, "delta": 1e-5, "at_most": 9}
RUN = {"phase": [PHASE]}
WRITERS = {
    "a curve": ("curve", *GAUSSIAN, "-o", "out"),
    "a picture": ("curve", *GAUSSIAN, "--points", "3", "--plot", "out.svg"),
    "a run file": ("run", "run.json", "--delta", "1e-5", "-o", "out"),
    "a report of checks": ("check", "bounds.json", "--junit", "out"),
    **feature_rows("WRITERS"),
}
"""Every command that writes a file, by kind of file."""
READERS = {
    "check": ("check", "FILE"),
    "run": ("run", "FILE", "--delta", "1e-5"),
    "remaining": ("remaining", "FILE", "--epsilon", "1", "--delta", "1e-5"),
    "ledger": ("ledger", "FILE"),
    "verify": ("verify", "FILE"),
    **feature_rows("READERS"),
}
"""Every command that reads a text file."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a run file and a file of bounds."""
    monkeypatch.chdir(tmp_path)
    for name, content in {"run": RUN, "bounds": {"bound": [BOUND]}}.items():
        Path(f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def needed(entry_point):
    """Skip if the extra of a command is missing."""
    needs(*{"a picture": ("matplotlib",), **feature_rows("EXTRAS")}.get(entry_point, ()))


def rejected(arguments, capsys):
    """A call that fails with one line, which is returned."""
    assert exit_code([*arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.splitlines()[-1].startswith("error: ")
    return output.err.splitlines()[-1]


@pytest.mark.parametrize("entry_point", WRITERS)
def test_full_disk_error_names_file_and_keeps_old_one(entry_point, folder, monkeypatch, capsys):
    needed(entry_point)
    path = folder / WRITERS[entry_point][-1]
    path.write_text("old")
    before = sorted(folder.iterdir())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    output = rejected(WRITERS[entry_point], capsys)
    assert path.name in output and "No space left" in output
    assert sorted(folder.iterdir()) == before and path.read_text() == "old"


@pytest.mark.parametrize("entry_point", WRITERS)
def test_missing_directory_error_names_directory(entry_point, folder, capsys):
    needed(entry_point)
    *arguments, name = WRITERS[entry_point]
    assert f"missing/{name}" in rejected((*arguments, f"missing/{name}"), capsys)


@pytest.mark.parametrize("entry_point", WRITERS)
def test_write_through_link_replaces_target(entry_point, folder, capsys):
    needed(entry_point)
    path, real = folder / WRITERS[entry_point][-1], folder / "elsewhere" / "real"
    real.parent.mkdir()
    real.write_text("old")
    path.symlink_to(real)
    assert exit_code([*WRITERS[entry_point]]) == 0
    assert path.is_symlink() and real.read_text() != "old" and sorted(real.parent.iterdir()) == [real]


def test_write_to_device_keeps_device(folder, capsys):
    """A link stands for it here, so that no fault could harm the device."""
    (folder / "out").symlink_to("/dev/full")
    assert "No space left" in rejected(WRITERS["a curve"], capsys)
    assert (folder / "out").is_symlink() and stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_write_to_pipe():
    """As a shell's ``-o /dev/stdout | ...`` does."""
    end, start = os.pipe()
    write_atomically(f"/dev/fd/{start}", lambda file: file.write(b"words"))
    os.close(start)
    with open(end, "rb") as file:
        assert file.read() == b"words"


@pytest.mark.parametrize(
    ("before", "requested", "after"), [(0o640, None, 0o640), (None, 0o600, 0o600), (0o644, 0o600, 0o600)]
)
def test_temporary_file_has_no_extra_permissions(tmp_path, before, requested, after):
    """Those of the file that it replaces, unless it is told which."""
    path, seen = tmp_path / "file", []
    if before is not None:
        path.touch()
        path.chmod(before)

    def fill(file):
        seen.extend(stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir() if one != path)

    write_atomically(path, fill, requested)
    assert stat.S_IMODE(path.stat().st_mode) == after and seen and all(mode & ~after == 0 for mode in seen)


def test_killed_write_keeps_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def killed(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, killed)
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("entry_point", READERS)
def test_oversized_file_is_rejected_unread(entry_point, folder, capsys):
    """It takes no space on the disk, and would take all of the memory."""
    with open("huge", "wb") as file:
        file.truncate(1 << 40)
    sentence = ["huge" if word == "FILE" else word for word in READERS[entry_point]]
    assert "of at most" in rejected(sentence, capsys)


@pytest.mark.parametrize("name", [".", "pipe", "/dev/zero", "missing", "loop", "x" * 500])
@pytest.mark.parametrize("entry_point", READERS)
def test_non_file_is_rejected_by_name(entry_point, name, folder, capsys):
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    sentence = [name if word == "FILE" else word for word in READERS[entry_point]]
    output = rejected(sentence, capsys)
    assert name in output or name == "pipe"


EVENTS = '{"type": "SelfComposedDpEvent", "count": 2, "event": ' * 450 + '{"type": "NoOpDpEvent"}' + "}" * 450
DEEP = {
    "a key": ("toml", b"a." * 100_000 + b"a = 1"),
    "a header": ("toml", b"[" + b"a . " * 100_000 + b"a]"),
    "a quoted key": ("toml", b"x = {" + b'\'a,\'."\\"b".' * 50_000 + b"a = 1}"),
    "lists": ("toml", b"a = " + b"[" * 100_000),
    "events": ("json", f'{{"phase": [{{"event": {EVENTS}}}]}}'.encode()),
}
"""Files that make a parser slow or overflow its stack: suffix and content."""


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("entry_point", ["check", "run"])
def test_deeply_nested_file_is_rejected_quickly(entry_point, kind, folder, capsys):
    """A dotted key of 200 kB takes the reader of TOML minutes and gigabytes."""
    ending, content = DEEP[kind]
    Path(f"in.{ending}").write_bytes(content)
    start = time.process_time()
    output = rejected([f"in.{ending}" if word == "FILE" else word for word in READERS[entry_point]], capsys)
    assert time.process_time() - start < 5.0 and "report it" not in output


def test_pipe_is_read_to_its_end():
    """What a shell puts in the place of ``<(...)``."""
    end, start = os.pipe()
    os.write(start, b"words")
    os.close(start)
    try:
        assert read_bounded(f"/dev/fd/{end}") == b"words"
    finally:
        os.close(end)


def test_endless_pipe_is_rejected(tmp_path):
    end, start = os.pipe()
    os.write(start, b"words")
    os.close(start)
    with pytest.raises(InvalidParameterError, match="at most 3 bytes"):
        read_bounded(f"/dev/fd/{end}", most=3)
    os.close(end)


def test_ledger_does_not_exceed_largest_size(tmp_path, monkeypatch):
    """A release that would make the ledger too long is rejected, and the ledger stays readable."""
    path = tmp_path / "ledger.jsonl"
    spend(path, 3)
    size = path.stat().st_size
    assert size < LARGEST_FILE < ledger.LARGEST_LEDGER
    monkeypatch.setattr(ledger, "LARGEST_LEDGER", size + 100)
    with pytest.raises(UnsupportedError, match="Begin another ledger"):
        spend(path, 9)
    assert 3 < ledger.read_ledger(path).spent < 9


def test_ledger_does_not_exceed_largest_number_of_phases():
    with pytest.raises(InvalidParameterError, match="phases must be at most 1000"):
        ledger.Account(phases=(({}, 1),) * 1001)


def test_duplicate_keys_are_named():
    text = (
        '{"phase": [{"mechanism": "gaussian", "noise_multiplier": 0.01}, {"steps": 3, "mechanism": "m2", "steps": 4}]}'
    )
    seen = call(Case(("run", "a.json", "--delta", "1e-5"), {"a.json": text.encode()}))
    assert seen.code == 2 and "'steps' appears twice" in seen.err
    toml = "[[phase]]\nmechanism = 'gaussian'\nsteps = 3\nsteps = 4\n"
    seen = call(Case(("run", "a.toml", "--delta", "1e-5"), {"a.toml": toml.encode()}))
    assert seen.code == 2 and "steps = 4" in seen.err
