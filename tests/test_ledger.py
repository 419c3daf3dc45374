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
from privproj.errors import InvalidParameter
from privproj.ledger import Ledger, read
from privproj.schedule import phase_of

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
    account = read(path)
    assert (account.spent, account.left, account.target) == (7, 13, TARGET)
    known = privproj.epsilon(RELEASE, delta=1e-5, **{**RUN, "steps": 7}).value
    assert account.epsilon(1e-5).value == known
    assert account.planned.epsilon(1e-5).value == privproj.epsilon(RELEASE, delta=1e-5, **RUN).value


def test_a_resumed_run_continues_the_count(path):
    spend(path, 7)
    book = Ledger(path, PHASE, TARGET)
    assert (book.steps, book.earlier) == (7, ())
    assert book.record() == 8 and read(path).spent == 8
    book.close()


def test_another_plan_is_another_phase(path):
    spend(path, 7)
    louder = phase_of(privproj.Gaussian(noise_multiplier=2.0), "dp-sgd", steps=5)
    book = spend(path, 3, louder)
    assert len(book.earlier) == 1
    joint = read(path).epsilon(1e-5)
    assert read(path).spent == 10 and joint.bound == "m2.rank-free + gaussian.analytic"
    assert joint.value > privproj.epsilon(RELEASE, delta=1e-5, **{**RUN, "steps": 7}).value


def test_a_release_is_on_the_disk_before_it_is_used(path, monkeypatch):
    book = Ledger(path, PHASE, TARGET)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(path.read_bytes()))
    book.record()
    assert synced[-1].endswith(b'{"step": 1}\n')

    def broken(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        book.record()
    assert read(path).spent == 2


@given(cut=st.integers(0, 400))
def test_a_torn_ledger_counts_every_whole_line_and_goes_on(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "ledger.jsonl"
    spend(path, 7)
    whole = path.read_bytes()
    kept = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(kept)
    lines = kept.count(b"\n")
    assert read(path).spent >= max(lines - 2, 0)
    before = read(path).spent
    book = Ledger(path, PHASE, TARGET)
    assert book.steps == before
    book.record()
    book.close()
    assert read(path).spent == before + 1


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
    assert read(path).spent == 0
    done.set()
    other.join()
    Ledger(path, PHASE).close()


def test_a_damaged_phase_is_refused_and_nothing_is_erased(path):
    spend(path, 20)
    damaged = path.read_bytes().replace(b'{"phase"', b'{"phas', 1)
    path.write_bytes(damaged)
    for use in (read, lambda p: Ledger(p, PHASE, TARGET)):
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


def test_a_line_nested_too_deeply_counts_as_a_release(path):
    spend(path, 2)
    path.write_text(path.read_text() + "[" * 100_000 + "\n")
    assert read(path).spent == 3


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
    assert read(path).spent == 2 and len(read(path).phases) == 1


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
