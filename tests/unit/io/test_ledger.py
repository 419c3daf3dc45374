"""The ledger: never under-counts, one writer, survives torn lines."""

import json
import multiprocessing
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from privproj_cli.main import exit_code
from unit.io.ledgers import PHASE, RELEASE, RUN, SECOND, TARGET, altered, spend
from unit.io.tampering import chained, chained_text, entries_of

import privproj
from privproj.accounting.schedule import phase_of
from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import CUT_SHORT, Ledger, read_ledger
from privproj.io.run_file import phase_from


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_account_spent_is_phase_with_recorded_steps(path):
    spend(path, 7)
    account = read_ledger(path)
    assert (account.spent, account.left, account.target) == (7, 13, TARGET)
    known = privproj.epsilon(RELEASE, delta=1e-5, **{**RUN, "steps": 7}).value
    assert account.epsilon(1e-5).value == known
    assert account.planned.epsilon(1e-5).value == privproj.epsilon(RELEASE, delta=1e-5, **RUN).value


def test_ledger_has_one_line_per_batch_of_epoch(path):
    """Its steps are epochs: one that was begun counts as a whole, and the plan is kept to in epochs."""
    release, run = privproj.Gaussian(noise_multiplier=2.0), {"sampling": "balls-in-bins", "batches": 5}
    phase = phase_of(release, "dp-sgd", steps=2, **run)
    known = privproj.epsilon(release, delta=1e-5, steps=2, **run).value
    for more, spent, epochs in ((1, 1, 1), (4, 5, 1), (1, 6, 2), (4, 10, 2)):
        spend(path, more, phase, {})
        account = read_ledger(path)
        assert (account.spent, account.left, bool(account.stopped)) == (spent, 10 - spent, spent < 10)
        assert [made.run.steps for made in account.released_phases()] == [epochs]
        assert account.planned.released_phases()[0].run.steps == 2
    assert account.epsilon(1e-5).value == known
    again = phase_of(release, "again", steps=1, **run)
    with pytest.raises(UnsupportedError, match="above the"):
        Ledger(path, again, {"epsilon": known, "delta": 1e-5})


def test_resumed_ledger_continues_count(path):
    spend(path, 7)
    book = Ledger(path, PHASE, TARGET)
    assert (book.steps, book.account.phases[:-1]) == (7, ())
    assert book.record() == 8 and read_ledger(path).spent == 8
    book.close()


def test_ledger_appends_phase_for_other_plan(path):
    spend(path, 7)
    louder = phase_of(privproj.Gaussian(noise_multiplier=2.0), "dp-sgd", steps=5)
    book = spend(path, 3, louder)
    assert len(book.account.phases) == 2
    joint = read_ledger(path).epsilon(1e-5)
    assert read_ledger(path).spent == 10 and joint.bound == "m2.rank-free + gaussian.analytic"
    assert joint.value > privproj.epsilon(RELEASE, delta=1e-5, **{**RUN, "steps": 7}).value


def test_release_is_on_disk_before_use(path, monkeypatch):
    book = Ledger(path, PHASE, TARGET)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(path.read_bytes()))
    book.record()
    assert json.loads(synced[-1].splitlines()[-1])["step"] == 1 and synced[-1].endswith(b"\n")

    def broken(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(UnsupportedError, match=r"No space left on device.*nothing was released") as rejected:
        book.record()
    assert str(path) in str(rejected.value) and read_ledger(path).spent == 2
    monkeypatch.undo()
    assert book.record() == 3 and read_ledger(path).spent == 3
    book.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a ledger with seven releases."""
    path = tmp_path_factory.mktemp("whole") / "ledger.jsonl"
    spend(path, 7, SECOND)
    return path.read_bytes()


@given(cut=st.integers(0, 400))
def test_torn_ledger_counts_every_whole_line(tmp_path_factory, whole, cut):
    path = tmp_path_factory.mktemp("torn") / "ledger.jsonl"
    kept = whole[: max(len(whole) - cut, 0)]
    path.write_bytes(kept)
    lines = kept.count(b"\n")
    assert read_ledger(path).spent >= max(lines - 2, 0)
    before = read_ledger(path).spent
    book = Ledger(path, SECOND, TARGET)
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
    with pytest.raises(InvalidParameterError, match="no other process"):
        Ledger(path, PHASE)
    assert read_ledger(path).spent == 0
    done.set()
    other.join()
    Ledger(path, PHASE).close()


def test_damaged_phase_is_rejected_and_kept(path):
    spend(path, 20)
    damaged = path.read_bytes().replace(b'{"phase"', b'{"phas', 1)
    path.write_bytes(damaged)
    for use in (read_ledger, lambda p: Ledger(p, PHASE, TARGET)):
        with pytest.raises(InvalidParameterError, match="damaged"):
            use(path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    "line",
    ['{"phase": {"mechanism": "gaussian", "noise_multiplier": 1, "steps": null}}', '{"phase": [1]}', '{"phase": {}}',
     '{"phase": {"mechanism": "gaussian", "noise_multiplier": 1, "steps": -5}}',
     '{"phase": {"mechanism": "gaussian", "noise_multiplier": 1, "steps": 5}, "target": 5}'],
)  # fmt: skip
def test_invalid_phase_line_is_reported(path, line, capsys):
    spend(path, 0)
    path.write_text(path.read_text() + line + "\n")
    assert exit_code(["ledger", str(path)]) == 2
    assert "Line 3" in capsys.readouterr().err


def test_last_line_of_zeros_counts_as_release(path):
    spend(path, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 40)
    assert read_ledger(path).spent == 3 and CUT_SHORT in read_ledger(path).epsilon(1e-5).warnings
    for rest in (b"\0" * 100_000, b"[" * 40 + b"\n", b"[" * 100_000):
        path.write_bytes(whole + rest)
        with pytest.raises(InvalidParameterError, match=r"Line 5 is damaged"):
            read_ledger(path)


def test_phases_of_two_relations_are_rejected(path):
    spend(path, 2)
    with pytest.raises(InvalidParameterError, match="relation must be the same"):
        Ledger(path, phase_of(privproj.Gaussian(noise_multiplier=1.0), relation="replace"))
    assert read_ledger(path).spent == 2 and len(read_ledger(path).phases) == 1


def test_ledger_errors_can_be_pickled():
    error = InvalidParameterError("a", 1, "b", "c")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("text", ["", "hello\n", '{"ledger": "other"}\n', "[1]\n{}\n"])
def test_foreign_file_is_rejected_and_unchanged(path, text, capsys):
    path.write_text(text)
    if text:
        with pytest.raises(InvalidParameterError, match="a ledger that privproj wrote"):
            Ledger(path, PHASE)
        assert path.read_text() == text
    assert exit_code(["ledger", str(path)]) == 2
    assert "must be a ledger" in capsys.readouterr().err


def test_ledger_command_reports_spent_and_left(path, capsys):
    spend(path, 7)
    assert exit_code(["ledger", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("epsilon = ") and "released:  7 of 20 planned steps" in shown
    assert "target epsilon 8" in shown and "Poisson sampling at rate 0.25" in shown
    assert exit_code(["ledger", str(path), "--delta", "1e-6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = privproj.epsilon(RELEASE, delta=1e-6, **{**RUN, "steps": 7}).value
    assert (found["epsilon"], found["steps"], found["steps_left"]) == (known, 7, 13)
    assert found["planned"]["value"] > found["so_far"]["value"] == known and found["target_epsilon"] is None


def test_ledger_command_without_release(path, capsys):
    spend(path, 0)
    assert exit_code(["ledger", str(path)]) == 0
    assert "nothing was released" in capsys.readouterr().out
    assert exit_code(["ledger", str(path.with_name("none"))]) == 2


# --- lines by hand ----------------------------------------------------------------------------------

HAND = (
    '{"phase": {"name": "a", "mechanism": "gaussian", "noise_multiplier": 1, "steps": 5}, "target": {"delta": 1e-05}}'
)


def by_hand(path, *lines):
    """A ledger with these lines, each an object with its hash behind its own words."""
    path.write_bytes(chained_text(['{"ledger": "privproj", "version": 2}', HAND, *lines]))


def test_handwritten_ledger_is_read_but_not_version_1(path, capsys):
    by_hand(path, '{"step": 1}', '{"step": 2}')
    assert read_ledger(path).spent == 2 and read_ledger(path).target == {"delta": 1e-5}
    for old, new in ((b'"version": 2', b'"version": 1'), (b'"version": 2', b'"version": 2.0')):
        assert altered(path, chained_bytes(path, old, new)) is None
    path.write_text(f'{{"ledger": "privproj", "version": 1}}\n{HAND}\n{{"step": 1}}\n')
    assert exit_code(["ledger", str(path)]) == 2
    assert "a ledger that privproj wrote" in capsys.readouterr().err


def chained_bytes(path, old, new):
    """A ledger with other words in its first line, the hashes computed again."""
    lines = [json.dumps(entry).encode().replace(old, new) for entry in entries_of(path.read_bytes())]
    return chained([json.loads(line) for line in lines])


@pytest.mark.parametrize(
    "line",
    ['{"step": 3}', '{"step": 1}', '{"step": 50}', '{"step": "2"}', '{"step": 2.0}', '{"step": true}', '{"step": null}',
     '{"step": 2, "count": 3}', '{"count": "3"}', '{"step": 2, "step": 2}', "{}", "[]", "7", '{"step": 2}{"step": 3}',
     '{"step": NaN}', '{"phase": {}, "extra": 1}', HAND.replace("1e-05", "2"), HAND.replace("1e-05", "true"),
     HAND.replace('"delta": 1e-05', ""), HAND.replace("1e-05}", '1e-05}, "insecure": false'),
     HAND.replace("5},", '"5"},'), HAND.replace("}, ", ', "planned": true}, '),
     '{"phase": {"event": {"type": "NoOpDpEvent"}, "steps": 5}}', HAND.replace("1,", "1, \"noise_multiplier\": 9,")],
)  # fmt: skip
def test_unexpected_ledger_line_is_rejected(path, line, capsys):
    by_hand(path, '{"step": 1}', line)
    assert exit_code(["ledger", str(path)]) == 2
    output = capsys.readouterr().err
    assert "line 4" in output.lower() and str(path) in output and output.count("\n") == 1


# --- what may be quoted -----------------------------------------------------------------------------


def test_stopped_run_has_epsilon_of_plan(path, capsys):
    spend(path, 7)
    account = read_ledger(path)
    assert Requirement.FIXED_SCHEDULE in account.epsilon(1e-5).mechanism["requirements"]
    assert any("7 of 20 planned steps" in note for note in account.epsilon(1e-5).warnings)
    assert exit_code(["ledger", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    known = privproj.epsilon(RELEASE, delta=1e-5, **RUN).value
    assert shown["epsilon_of_plan"] == known == shown["planned"]["value"] > shown["epsilon"]
    assert Requirement.FIXED_SCHEDULE in shown["requirements"] and "of the whole plan" in shown["report"]
    assert (shown["steps"], shown["steps_left"], shown["steps_planned"]) == (7, 13, 20)
    for part in ("planned", "so_far"):
        assert Requirement.FIXED_SCHEDULE in shown[part]["mechanism"]["requirements"]
    assert exit_code(["ledger", str(path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert Requirement.FIXED_SCHEDULE.short in output and "of the whole plan (epsilon" in output


def test_completed_run_assumes_no_fixed_plan(path, capsys):
    spend(path, 20)
    assert Requirement.FIXED_SCHEDULE not in read_ledger(path).epsilon(1e-5).mechanism["requirements"]
    assert exit_code(["ledger", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["requirements"] == list(read_ledger(path).epsilon(1e-5).requirements)
    assert shown["epsilon_of_plan"] == shown["epsilon"]


def test_planned_account_completes_every_phase(path):
    spend(path, 7)
    spend(path, 5, SECOND)
    account = read_ledger(path)
    assert (
        account.requirements == (Requirement.FIXED_SCHEDULE, Requirement.ONLY_THIS_LEDGER) and len(account.stopped) == 1
    )
    assert [steps for _, steps in account.planned.phases] == [20, 5]
    assert (account.spent, account.left, account.planned.spent) == (12, 0, 25)
    assert account.planned.epsilon(1e-5).value > account.epsilon(1e-5).value
    assert Requirement.FIXED_SCHEDULE in account.epsilon(1e-5).mechanism["requirements"]


def test_abandoned_phase_is_not_part_of_plan(path):
    spend(path, 0)
    spend(path, 5, SECOND)
    assert read_ledger(path).requirements == (Requirement.ONLY_THIS_LEDGER,)
    assert [steps for _, steps in read_ledger(path).planned.phases] == [5]


def test_ledger_keeps_exact_layer_shares(path):
    layers = tuple(privproj.Layer(dim=dim, rank=4, share=1 / 3) for dim in (64, 32, 16))
    release = privproj.M2(layers=layers, clipping="per-layer", noise_multiplier=1.0)
    spend(path, 2, phase_of(release, steps=2))
    (entry, _), *_ = read_ledger(path).phases
    again = phase_from(entry, {}, "ledger").mechanism
    assert (
        again == release
        and read_ledger(path).epsilon(1e-5).value == privproj.epsilon(release, delta=1e-5, steps=2).value
    )


# --- the target that a ledger keeps -----------------------------------------------------------------

QUIET = phase_of(privproj.Gaussian(noise_multiplier=20.0), steps=5)
LOUD = phase_of(privproj.Gaussian(noise_multiplier=0.5), steps=5)


def test_phase_above_target_is_rejected_before_it_begins(path):
    spend(path, 2, QUIET)
    before = path.read_bytes()
    with pytest.raises(UnsupportedError, match=r"above the 8 that .* keeps to.*name a new epsilon") as rejected:
        Ledger(path, LOUD)
    assert path.read_bytes() == before and "\n" not in str(rejected.value)
    spend(path, 2, phase_of(privproj.Gaussian(noise_multiplier=10.0), steps=5), None)
    assert read_ledger(path).target == TARGET
    with pytest.raises(UnsupportedError, match="above the 8"):
        Ledger(path, LOUD)
    spend(path, 1, LOUD, {"epsilon": 60.0, "delta": 1e-5})
    assert read_ledger(path).target["epsilon"] == 60.0


def test_phase_that_began_above_target_is_not_continued(path):
    spend(path, 2, LOUD)
    for target in (None, TARGET):
        with pytest.raises(UnsupportedError, match="above the 8"):
            Ledger(path, LOUD, target)
    assert read_ledger(path).spent == 2


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 30.0])
@pytest.mark.parametrize("run", [{"steps": 3}, {"steps": 100, "sampling_rate": 0.05}])
def test_target_allows_rounding_of_another_machine(path, epsilon, run):
    """Noise that is smaller by a relative 1e-9 still goes on; one smaller by 1e-3 does not."""
    found = privproj.sigma(privproj.Gaussian(), epsilon=epsilon, delta=1e-5, **run).value
    for factor in (1.0, 1.0 - 1e-9, 1.0 - 1e-3):
        book = path.with_name(str(factor))
        phase = phase_of(privproj.Gaussian(noise_multiplier=found * factor), **run)
        spend(book, 1, phase, {"epsilon": epsilon, "delta": 1e-5})
        if factor < 1.0 - 1e-6:
            with pytest.raises(UnsupportedError, match="above the"):
                Ledger(book, phase)
        else:
            spend(book, 1, phase, None)


def test_ledger_check_runs_before_writing_and_keep_after(path):
    kept = []

    def check(account):
        kept.clear()
        if account.spent:
            kept.append(account.spent)
        return lambda releases: kept.append(path.read_bytes())

    Ledger(path, QUIET, TARGET, check=check).close()
    assert kept == [b""]
    spend(path, 2, QUIET)
    before = path.read_bytes()
    Ledger(path, phase_of(privproj.Gaussian(noise_multiplier=30.0)), check=check).close()
    assert kept == [2, before]
    with pytest.raises(UnsupportedError, match="above the 8"):
        Ledger(path, LOUD, check=check)
    assert kept == [2]


def test_new_target_is_checked_when_ledger_is_opened(path):
    """Another run may have written between the calibration, which read the file, and the lock."""
    spend(path, 2, LOUD, {"epsilon": 60.0, "delta": 1e-5})
    before = path.read_bytes()
    with pytest.raises(UnsupportedError, match="above the 8"):
        Ledger(path, QUIET, TARGET)
    assert path.read_bytes() == before
    spend(path, 1, QUIET, {"epsilon": 50.0, "delta": 1e-5})


def test_ledger_keeps_count_at_start_intervals_and_end(path):
    kept = []
    phase = phase_of(privproj.Gaussian(noise_multiplier=20.0), steps=300)
    for opened, releases in ((0, 5), (5, 140), (145, 0)):
        book = Ledger(path, phase, check=lambda account: kept.append)
        assert kept == [opened]
        for _ in range(releases):
            book.record()
            # Whatever is cut off now, more than half of the lines are left or the last 64 are gone.
            assert (made := book.account.spent) - kept[-1] < min(64, (made + 1) / 2) or kept[-1] == opened
        book.close()
        book.close()
        assert kept[-1] == opened + releases == read_ledger(path).spent
        kept.clear()


def test_closed_ledger_records_nothing(path):
    book = spend(path, 2)
    with pytest.raises(InvalidParameterError, match="a run that is not closed"):
        book.record()
    assert read_ledger(path).spent == 2
