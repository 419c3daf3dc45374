"""The ledger: never under-counts, one writer, survives torn lines."""

import json
import multiprocessing
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from privproj_cli.main import exit_code

import privproj
from privproj.accounting.schedule import phase_of
from privproj.assumptions import PLAN_FIXED_IN_ADVANCE
from privproj.errors import InvalidParameter
from privproj.records.ledger import CUT_SHORT, NOT_CHAINED, Ledger, read_ledger
from privproj.records.run_file import phase_from

RELEASE = privproj.M2(dim=64, rank=4, noise_multiplier=1.0)
RUN = {"steps": 20, "sampling_rate": 0.25}
PHASE = phase_of(RELEASE, "m2", **RUN)
TARGET = {"epsilon": 8.0, "delta": 1e-5}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def spend(path, steps, phase=PHASE):
    book = Ledger(path, phase, TARGET)
    for _ in range(steps):
        book.record()
    book.close()
    return book


def test_what_is_spent_is_the_phase_with_the_steps_made(path):
    spend(path, 7)
    account = read_ledger(path)
    assert (account.spent, account.left, account.target) == (7, 13, TARGET)
    known = privproj.epsilon(RELEASE, delta=1e-5, **{**RUN, "steps": 7}).value
    assert account.epsilon(1e-5).value == known
    assert account.planned.epsilon(1e-5).value == privproj.epsilon(RELEASE, delta=1e-5, **RUN).value


def test_a_resumed_run_continues_the_count(path):
    spend(path, 7)
    book = Ledger(path, PHASE, TARGET)
    assert (book.steps, book.earlier) == (7, ())
    assert book.record() == 8 and read_ledger(path).spent == 8
    book.close()


def test_another_plan_is_another_phase(path):
    spend(path, 7)
    louder = phase_of(privproj.Gaussian(noise_multiplier=2.0), "dp-sgd", steps=5)
    book = spend(path, 3, louder)
    assert len(book.earlier) == 1
    joint = read_ledger(path).epsilon(1e-5)
    assert read_ledger(path).spent == 10 and joint.bound == "m2.rank-free + gaussian.analytic"
    assert joint.value > privproj.epsilon(RELEASE, delta=1e-5, **{**RUN, "steps": 7}).value


def test_a_release_is_on_the_disk_before_it_is_used(path, monkeypatch):
    book = Ledger(path, PHASE, TARGET)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(path.read_bytes()))
    book.record()
    assert json.loads(synced[-1].splitlines()[-1])["step"] == 1 and synced[-1].endswith(b"\n")

    def broken(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        book.record()
    assert read_ledger(path).spent == 2
    monkeypatch.undo()
    assert book.record() == 3 and read_ledger(path).spent == 3
    book.close()


@given(cut=st.integers(0, 400))
def test_a_torn_ledger_counts_every_whole_line_and_goes_on(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "ledger.jsonl"
    spend(path, 7)
    whole = path.read_bytes()
    kept = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(kept)
    lines = kept.count(b"\n")
    assert read_ledger(path).spent >= max(lines - 2, 0)
    before = read_ledger(path).spent
    book = Ledger(path, PHASE, TARGET)
    assert book.steps == before
    book.record()
    book.close()
    assert read_ledger(path).spent == before + 1


def hold(path, ready, done):
    book = Ledger(path, PHASE)
    ready.set()
    done.wait(20)
    book.close()


def test_two_processes_cannot_write_one_ledger(path):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(path, ready, done))
    other.start()
    assert ready.wait(30)
    with pytest.raises(InvalidParameter, match="no other process"):
        Ledger(path, PHASE)
    assert read_ledger(path).spent == 0
    done.set()
    other.join()
    Ledger(path, PHASE).close()


def test_a_damaged_phase_is_refused_and_nothing_is_erased(path):
    spend(path, 20)
    damaged = path.read_bytes().replace(b'{"phase"', b'{"phas', 1)
    path.write_bytes(damaged)
    for use in (read_ledger, lambda p: Ledger(p, PHASE, TARGET)):
        with pytest.raises(InvalidParameter, match="damaged"):
            use(path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    "line",
    ['{"phase": {"mechanism": "gaussian", "noise_multiplier": 1, "steps": null}}', '{"phase": [1]}', '{"phase": {}}',
     '{"phase": {"mechanism": "gaussian", "noise_multiplier": 1, "steps": -5}}',
     '{"phase": {"mechanism": "gaussian", "noise_multiplier": 1, "steps": 5}, "target": 5}'],
)  # fmt: skip
def test_a_phase_that_is_none_is_said(path, line, capsys):
    spend(path, 0)
    path.write_text(path.read_text() + line + "\n")
    assert exit_code(["ledger", str(path)]) == 2
    assert "line 3" in capsys.readouterr().err


def test_an_unreadable_last_line_counts_as_a_release_and_is_refused_where_it_may_hide_more(path):
    spend(path, 2)
    whole = path.read_text()
    path.write_text(whole + "[" * 40 + "\n")
    assert read_ledger(path).spent == 3 and CUT_SHORT in read_ledger(path).epsilon(1e-5).warnings
    path.write_text(whole + "[" * 100_000 + "\n")
    with pytest.raises(InvalidParameter, match=r"line 5.*damaged"):
        read_ledger(path)


def test_a_removed_ledger_is_noticed(path):
    book = Ledger(path, PHASE, TARGET)
    path.unlink()
    with pytest.raises(InvalidParameter, match="removed"):
        book.record()
    book.close()


def test_phases_of_two_relations_are_refused_before_anything_is_spent(path):
    spend(path, 2)
    with pytest.raises(InvalidParameter, match="one neighbouring relation"):
        Ledger(path, phase_of(privproj.Gaussian(noise_multiplier=1.0), relation="replace"))
    assert read_ledger(path).spent == 2 and len(read_ledger(path).phases) == 1


def test_errors_survive_a_process_boundary():
    error = InvalidParameter("a", 1, "b", "c")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("text", ["", "hello\n", '{"ledger": "other"}\n', "[1]\n{}\n"])
def test_another_file_is_not_a_ledger_and_stays_as_it_is(path, text, capsys):
    path.write_text(text)
    if text:
        with pytest.raises(InvalidParameter, match="a ledger of privproj"):
            Ledger(path, PHASE)
        assert path.read_text() == text
    assert exit_code(["ledger", str(path)]) == 2
    assert "error: expected a ledger" in capsys.readouterr().err


def test_the_command_says_what_is_spent_and_left(path, capsys):
    spend(path, 7)
    assert exit_code(["ledger", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("epsilon = ") and "released: 7 steps" in shown and "13 planned steps" in shown
    assert "target 8" in shown and "poisson sampling at rate 0.25" in shown
    assert exit_code(["ledger", str(path), "--delta", "1e-6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = privproj.epsilon(RELEASE, delta=1e-6, **{**RUN, "steps": 7}).value
    assert (found["epsilon"], found["steps"], found["steps_left"]) == (known, 7, 13)
    assert found["planned"]["value"] > found["so_far"]["value"] == known and found["target_epsilon"] is None


def test_a_run_that_released_nothing(path, capsys):
    spend(path, 0)
    assert exit_code(["ledger", str(path)]) == 0
    assert "nothing was released" in capsys.readouterr().out
    assert exit_code(["ledger", str(path.with_name("none"))]) == 2


# --- altered ledgers --------------------------------------------------------------------------------

SECOND = phase_of(privproj.Gaussian(noise_multiplier=2.0), "dp-sgd", steps=5)


@pytest.fixture
def two_phases(path):
    """A ledger of two phases, its account, its lines."""
    spend(path, 3)
    spend(path, 4, SECOND)
    return path, read_ledger(path), path.read_bytes().splitlines(keepends=True)


def altered(path, content):
    """What an altered ledger is read as; None where it is refused by one sentence that names the file."""
    path.write_bytes(content)
    try:
        return read_ledger(path)
    except InvalidParameter as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return None


def covers(found, known):
    """Nothing is counted less: the same phases with at least the same steps."""
    entries = [entry for entry, _ in known.phases]
    steps = zip(found.phases, known.phases, strict=True)
    return [entry for entry, _ in found.phases] == entries and all(now >= was for (_, now), (_, was) in steps)


def flipped(path, known, bits):
    """How many flips of a bit were refused and accepted; an accepted one must not count less."""
    whole, counts = path.read_bytes(), [0, 0]
    for place, bit in bits(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1 << bit
        found = altered(path, bytes(content))
        assert found is None or covers(found, known), (place, bit)
        counts[found is not None] += 1
    path.write_bytes(whole)
    return counts


def test_a_flipped_bit_never_makes_a_ledger_count_less(two_phases):
    path, known, lines = two_phases
    refused, accepted = flipped(path, known, lambda size: ((i, i % 8) for i in range(size)))
    assert refused > 10 * accepted > 0
    assert accepted <= len(lines[-1])


@pytest.mark.slow
def test_no_flipped_bit_of_all_makes_a_ledger_count_less(two_phases):
    path, known, _ = two_phases
    flipped(path, known, lambda size: ((i, bit) for i in range(size) for bit in range(8)))


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("how", ["removed", "doubled", "zeroed", "moved", "joined", "ended otherwise"])
def test_a_line_that_is_removed_doubled_zeroed_or_moved_is_noticed(two_phases, number, how):
    path, known, lines = two_phases
    assert len(lines) == 10
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
def test_zeroes_over_the_last_lines_hide_no_release(two_phases, count):
    path, known, lines = two_phases
    tail = b"".join(lines[-count:])
    for end in (b"\0", b"\n"):
        found = altered(path, b"".join(lines[:-count]) + b"\0" * (len(tail) - 1) + end)
        assert found is None or covers(found, known)


HAND = '{"phase": {"name": "a", "mechanism": "gaussian", "noise_multiplier": 1, "steps": 5}, "target": {"delta": 1e-5}}'


def by_hand(path, *lines, version=1):
    """A ledger of version 1, which has no hashes."""
    path.write_text("\n".join([f'{{"ledger": "privproj", "version": {version}}}', HAND, *lines, ""]))


def test_a_ledger_of_version_1_is_read_with_a_warning_and_goes_on_with_hashes(path, capsys):
    by_hand(path, '{"step": 1}', '{"step": 2}')
    account = read_ledger(path)
    assert account.spent == 2 and NOT_CHAINED in account.epsilon(1e-5).warnings
    assert exit_code(["ledger", str(path)]) == 0
    assert "without hashes" in capsys.readouterr().out
    spend(path, 3)
    known = read_ledger(path)
    assert [steps for _, steps in known.phases] == [2, 3] and NOT_CHAINED in known.notes
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in range(len(b"".join(lines[4:]))):
        whole = b"".join(lines)
        assert altered(path, whole[: len(whole) - cut]).spent >= 2
    assert altered(path, b"".join(lines).replace(b'{"step": 2}', b'{"step": 3}')) is None
    assert altered(path, b"".join(lines).replace(b'"noise_multiplier": 1,', b'"noise_multiplier": 2,')) is None
    assert altered(path, b"".join([*lines, b'{"step": 4}\n'])) is None


@pytest.mark.parametrize(
    "line",
    ['{"step": 3}', '{"step": 1}', '{"step": 50}', '{"step": "2"}', '{"step": 2.0}', '{"step": true}', '{"step": null}',
     '{"step": 2, "count": 3}', '{"count": "3"}', '{"step": 2, "step": 2}', "{}", "[]", "7", '{"step": 2}{"step": 3}',
     '{"step": NaN}', '{"phase": {}, "extra": 1}', HAND.replace("1e-5", "2"), HAND.replace("1e-5", "true"),
     HAND.replace('"delta": 1e-5', ""), HAND.replace("1e-5}", '1e-5}, "insecure": false'), HAND.replace("5},", '"5"},'),
     HAND.replace("}, ", ', "planned": true}, '), HAND.replace("1,", "1, \"noise_multiplier\": 9,")],
)  # fmt: skip
def test_a_line_that_says_anything_but_what_comes_next_is_refused(path, line, capsys):
    by_hand(path, '{"step": 1}', line)
    assert exit_code(["ledger", str(path)]) == 2
    said = capsys.readouterr().err
    assert "line 4" in said and str(path) in said and said.count("\n") == 1


def test_a_ledger_that_was_changed_under_the_run_stops_it(path):
    book = Ledger(path, PHASE, TARGET)
    book.record()
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(InvalidParameter, match="changed meanwhile"):
        book.record()
    book.close()


# --- what may be quoted -----------------------------------------------------------------------------


def test_a_run_that_was_stopped_has_the_epsilon_of_its_plan(path, capsys):
    spend(path, 7)
    account = read_ledger(path)
    assert PLAN_FIXED_IN_ADVANCE in account.epsilon(1e-5).mechanism["assumes"]
    assert any("7 of 20 planned steps" in note for note in account.epsilon(1e-5).warnings)
    assert exit_code(["ledger", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    known = privproj.epsilon(RELEASE, delta=1e-5, **RUN).value
    assert shown["epsilon_of_plan"] == known == shown["planned"]["value"] > shown["epsilon"]
    assert shown["assumes"] == [PLAN_FIXED_IN_ADVANCE] and "of the plan" in shown["quote"]
    for part in ("planned", "so_far"):
        assert PLAN_FIXED_IN_ADVANCE in shown[part]["mechanism"]["assumes"]
    assert exit_code(["ledger", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert PLAN_FIXED_IN_ADVANCE in said and "quote: the epsilon of the plan" in said


def test_a_run_that_made_its_plan_assumes_nothing_of_it(path, capsys):
    spend(path, 20)
    assert PLAN_FIXED_IN_ADVANCE not in read_ledger(path).epsilon(1e-5).mechanism["assumes"]
    assert exit_code(["ledger", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["assumes"] == [] and shown["epsilon_of_plan"] == shown["epsilon"]


def test_the_plan_of_several_phases_is_all_of_each(path):
    spend(path, 7)
    spend(path, 5, SECOND)
    account = read_ledger(path)
    assert account.assumes == (PLAN_FIXED_IN_ADVANCE,) and len(account.stopped) == 1
    assert [steps for _, steps in account.planned.phases] == [20, 5]
    assert account.planned.epsilon(1e-5).value > account.epsilon(1e-5).value
    assert PLAN_FIXED_IN_ADVANCE in account.epsilon(1e-5).mechanism["assumes"]


def test_a_phase_given_up_before_its_first_release_is_no_part_of_the_plan(path):
    spend(path, 0)
    spend(path, 5, SECOND)
    assert read_ledger(path).assumes == () and [steps for _, steps in read_ledger(path).planned.phases] == [5]


def test_layers_with_shares_that_are_no_short_decimals_keep_them(path):
    layers = tuple(privproj.Layer(dim=dim, rank=4, share=1 / 3) for dim in (64, 32, 16))
    release = privproj.M2(layers=layers, clipping="per-layer", noise_multiplier=1.0)
    spend(path, 2, phase_of(release, steps=2))
    (entry, _), *_ = read_ledger(path).phases
    again = phase_from(entry, {}, "ledger").question.mechanism
    assert (
        again == release
        and read_ledger(path).epsilon(1e-5).value == privproj.epsilon(release, delta=1e-5, steps=2).value
    )


@pytest.mark.parametrize("releases", [1, 2])
@pytest.mark.parametrize("joint", [b"J", b"", b" ", b"\0", b"\r"])
def test_two_last_lines_run_together_are_refused(path, releases, joint):
    spend(path, releases)
    lines = path.read_bytes().split(b"\n")
    assert altered(path, b"\n".join(lines[:-3]) + b"\n" + lines[-3] + joint + lines[-2] + b"\n") is None
