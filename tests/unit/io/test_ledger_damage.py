"""A damaged, moved or interrupted ledger is rejected or counts every release."""

import multiprocessing
import os
import random
import signal
import time

import pytest
from unit.io.ledgers import PHASE, SECOND, TARGET, THIRD, altered, covers, spend

from privproj.errors import InvalidParameterError
from privproj.io.ledger import Ledger, read_ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The bytes of a ledger of three phases."""
    path = tmp_path_factory.mktemp("ledgers") / "ledger.jsonl"
    for phase, steps in ((PHASE, 7), (SECOND, 3), (THIRD, 4)):
        spend(path, steps, phase)
    return path.read_bytes()


@pytest.fixture
def three_phases(path, content):
    """A ledger of three phases, its account, its lines."""
    path.write_bytes(content)
    return path, read_ledger(path), content.splitlines(keepends=True)


# --- bits, lines and blocks ---------------------------------------------------------------------------


@pytest.mark.parametrize("flips", [200, pytest.param(3000, marks=pytest.mark.slow)])
def test_flipped_bits_never_reduce_ledger_count(three_phases, flips):
    path, known, lines = three_phases
    whole, draw = b"".join(lines), random.Random(flips)
    for _ in range(flips):
        place, bit = draw.randrange(len(whole)), draw.randrange(8)
        content = bytearray(whole)
        content[place] ^= 1 << bit
        found = altered(path, bytes(content))
        assert found is None or covers(found, known), (place, bit)


@pytest.mark.slow
def test_no_single_flipped_bit_reduces_ledger_count(three_phases):
    path, known, lines = three_phases
    whole = b"".join(lines)
    for place in range(len(whole)):
        for bit in range(8):
            found = altered(path, whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert found is None or covers(found, known), (place, bit)


HOW = {
    "zeros": lambda draw, chunk: bytes(len(chunk)),
    "removed": lambda draw, chunk: b"",
    "doubled": lambda draw, chunk: chunk * 2,
    "garbage": lambda draw, chunk: draw.randbytes(len(chunk)),
    "reversed": lambda draw, chunk: chunk[::-1],
}


@pytest.mark.parametrize("rounds", [30, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", HOW)
def test_damaged_stretch_never_reduces_ledger_count(three_phases, how, rounds):
    """Stretches that begin and end anywhere; only what is cut off at the end looks like an earlier kill."""
    path, known, lines = three_phases
    whole, draw, noticed = b"".join(lines), random.Random(rounds), 0
    for _ in range(rounds):
        begin = draw.randrange(len(whole))
        # Half of the stretches end in the last lines, where a reader has to tell damage from a crash.
        size = draw.choice([1, 5, 30, 60, 100, 300, 512, 1024])
        begin = len(whole) - min(len(whole), size + draw.randrange(130)) if draw.random() < 0.5 else begin
        content = whole[:begin] + HOW[how](draw, whole[begin : begin + size]) + whole[begin + size :]
        if not whole.startswith(content):
            found = altered(path, content)
            assert found is None or covers(found, known), (begin, size)
            noticed += found is None
    assert noticed > rounds // 3


@pytest.mark.parametrize("block", [64, 512, 4096])
def test_blocks_of_zeros_hide_no_release(three_phases, block):
    path, known, lines = three_phases
    whole = b"".join(lines)
    for begin in range(0, len(whole), block):
        found = altered(path, whole[:begin] + bytes(len(whole[begin : begin + block])) + whole[begin + block :])
        assert found is None or covers(found, known), begin
        assert found is None or begin + block >= len(whole)


@pytest.mark.parametrize("number", range(18))
@pytest.mark.parametrize("how", ["removed", "doubled", "zeroed", "moved", "joined", "ended otherwise"])
def test_changed_ledger_line_is_detected(three_phases, number, how):
    path, known, lines = three_phases
    assert len(lines) == 18
    line, last = lines[number], number == len(lines) - 1
    put = {
        "removed": [], "doubled": [line, line], "zeroed": [b"\0" * len(line)], "joined": [line[:-1]],
        "moved": [], "ended otherwise": [line[:-1] + b"\r\n"],
    }[how]  # fmt: skip
    changed = [*lines[:number], *put, *lines[number + 1 :]]
    if how == "moved":
        changed.insert(max(number - 1, 0) if number else 1, line)
    found = altered(path, b"".join(changed))
    if last and how in ("zeroed", "joined"):
        assert covers(found, known)
    elif last and how == "removed":
        assert found.spent == known.spent - 1, "looks like a run that was killed before that release"
    else:
        assert found is None


@pytest.mark.parametrize("count", range(2, 9))
def test_zeroed_last_lines_hide_no_release(three_phases, count):
    path, known, lines = three_phases
    tail = b"".join(lines[-count:])
    for end in (b"\0", b"\n"):
        found = altered(path, b"".join(lines[:-count]) + b"\0" * (len(tail) - 1) + end)
        assert found is None or covers(found, known)


@pytest.mark.parametrize("releases", [1, 2])
@pytest.mark.parametrize("joint", [b"J", b"", b" ", b"\0", b"\r"])
def test_joined_last_lines_are_rejected(path, releases, joint):
    spend(path, releases)
    lines = path.read_bytes().split(b"\n")
    assert altered(path, b"\n".join(lines[:-3]) + b"\n" + lines[-3] + joint + lines[-2] + b"\n") is None


# --- what a crash leaves -------------------------------------------------------------------------------


def test_incomplete_last_release_counts_and_run_continues(three_phases):
    """The beginning of the line that came next, with zeros for the rest or without it."""
    path, known, lines = three_phases
    kept, last = b"".join(lines[:-1]), lines[-1]
    for cut in range(1, len(last)):
        for rest in (b"", bytes(len(last) - cut)):
            assert covers(altered(path, kept + last[:cut] + rest), known)
    path.write_bytes(kept + last[:9])
    spend(path, 1, THIRD)
    assert [steps for _, steps in read_ledger(path).phases] == [7, 3, 5]


def test_incomplete_opening_line_opens_no_phase(path):
    """A phase is on the disk before its first release. What else follows half a phase is damage."""
    spend(path, 7)
    before = path.read_bytes()
    spend(path, 2, SECOND)
    after = path.read_bytes()
    line, _, releases = after.removeprefix(before).partition(b"\n")
    for cut in range(len(b'{"p'), len(line), 7):
        assert altered(path, before + line[:cut]).phases == altered(path, before).phases
        assert altered(path, before + line[:cut] + b"\n" + releases) is None
        assert altered(path, before + line[:cut] + releases) is None
    for joint in (b"J", b" ", b"}"):
        assert altered(path, before + line + joint + releases.replace(b"\n", b"")) is None
    for phase, made in ((SECOND, [7, 2]), (PHASE, [9])):
        path.write_bytes(before + line[:50])
        spend(path, 2, phase)
        assert [steps for _, steps in read_ledger(path).phases] == made


def write_for_ever(path, phase, used):
    with open(used, "ab", buffering=0) as file:
        book = Ledger(path, phase)
        while True:
            book.record()
            file.write(b".")


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_writer_never_undercounts(path, tmp_path, kills):
    """Killed at random moments, the opening of the file included; each phase counts what was used of it, or more."""
    draw, context = random.Random(kills), multiprocessing.get_context("fork")
    phases = [(phase, tmp_path / phase.name / str(i)) for i, phase in enumerate((PHASE, SECOND, THIRD))]
    for _, used in phases:
        used.parent.mkdir(exist_ok=True)
        used.touch()
    for kill in range(kills):
        phase, used = phases[3 * kill // kills]
        writer = context.Process(target=write_for_ever, args=(path, phase, used))
        before = used.stat().st_size
        writer.start()
        # Every other one is killed only after it has made a release, on a machine of any speed.
        while kill % 2 and used.stat().st_size == before:
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, 0.05))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        if path.exists():
            counted = [0, 0, 0]
            for number, (_, steps) in enumerate(read_ledger(path).phases):
                counted[number] = steps
            made = [file.stat().st_size for _, file in phases]
            assert all(was <= now <= was + kill + 1 for was, now in zip(made, counted, strict=True))
    assert sum(made) >= kills // 2


# --- the open file --------------------------------------------------------------------------------------


def move_away(path):
    path.rename(path.with_name("elsewhere"))


def replace_by_a_copy(path):
    content = path.read_bytes()
    path.unlink()
    path.with_name("copy").write_bytes(content)
    path.with_name("copy").rename(path)


def cut_last_line(path):
    os.truncate(path, len(b"".join(path.read_bytes().splitlines(keepends=True)[:-1])))


def empty(path):
    path.write_bytes(b"")


def grow(path):
    with path.open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("meddle", [os.unlink, move_away, replace_by_a_copy, cut_last_line, empty, grow])
def test_ledger_changed_by_others_stops_run(path, meddle, monkeypatch):
    book = Ledger(path, PHASE, TARGET)
    for _ in range(3):
        book.record()
    meddle(path)
    left = path.read_bytes() if path.exists() else None
    for _ in range(2):
        with pytest.raises(InvalidParameterError, match=r"removed or moved away|in its place|was changed"):
            book.record()
    assert (path.read_bytes() if path.exists() else None) == left and book.steps == 3
    book.close()


def test_restored_ledger_continues(path):
    book = Ledger(path, PHASE, TARGET)
    book.record()
    move_away(path)
    with pytest.raises(InvalidParameterError, match="moved away"):
        book.record()
    path.with_name("elsewhere").rename(path)
    assert book.record() == 2 == read_ledger(path).spent
    book.close()


def test_ledger_survives_change_of_directory(path, tmp_path, monkeypatch):
    monkeypatch.chdir(path.parent)
    book = Ledger(path.name, PHASE)
    monkeypatch.chdir("/")
    assert book.record() == 1 == read_ledger(path).spent
    book.close()
