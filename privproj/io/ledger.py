"""The ledger of a training run: what was released, recorded before it is used.

A ledger is a file of JSON lines: a header, then for each phase its event and one numbered line for every release made
under it. A phase of balls-in-bins counts its steps in epochs: ``batches`` lines then make one epoch, and an epoch that
was begun counts as a whole one. The file is only ever appended to, and every line reaches the disk before the release
it stands for is used, so a run that is killed at any moment has used at most what its ledger says.

Every line ends with a hash of all bytes before it and of its own words. So a line that is altered, doubled, moved or
missing from the middle is noticed, and the file is refused. The last line alone may be cut short, as a crash leaves it:
the beginning of the one line that comes next, with zeros for what was not written. That is no protection against a
forger, who can compute the hashes again; and whole lines cut off at the end look like a run that was killed earlier. So
the number of releases is kept a second time outside the file, and in the checkpoint of a run.

As a document a ledger is checked by writing its lines again from what they say, and by comparing the target with the
recomputed epsilon. What holds there is true of the run that the file describes: whoever holds the file can write
another run's ledger, or cut whole lines off its end, and nothing in the file can show that.

A ledger that names a target keeps it: a phase that would end above it is refused before it begins, unless a new target
is named. An optional feature may keep a target that has a further key (:class:`Budget`): such a target is fixed before
the first release, and the budget counts every release before it is recorded.
"""

import json
import math
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from privproj.accounting.config import check_keys
from privproj.accounting.query import composition_of_phase, solve_epsilon
from privproj.accounting.schedule import Phase, Schedule
from privproj.assumptions import PLANS, PUBLIC_SUBSPACE, THIS_LEDGER_ALONE, THIS_RUN_ALONE, plan_fixed
from privproj.errors import InvalidParameter, Refused, within
from privproj.io.files import Verdict, open_alone, read_bounded
from privproj.io.run_file import MOST_PHASES, phase_from
from privproj.parameters import TABLE, Kind, privacy_epsilon, probability, quoted
from privproj.plugins import load, plugin_table
from privproj.profiles.privacy_profile import Curve
from privproj.result import Result, round_outward
from privproj.targets import delta_target

HEADER = {"ledger": "privproj", "version": 2}
"""The first line of a ledger whose lines are chained by hashes."""

LARGEST_LEDGER = 1 << 28
"""Bytes of a ledger, some four million releases: a longer one is neither read nor written. Contract."""

HASH_DIGITS = 32
"""Hexadecimal digits of SHA-256 that a line keeps: enough that no accident repeats one. Contract."""

KEPT_EVERY = 64
"""Releases after which their number is kept outside the ledger too; before that it is whenever it is a power of 2.
Contract."""

TARGET_SLACK = 1e-6
"""Relative excess over a target's epsilon at which a phase still opens: noise that just met the target on one machine
may miss it by rounding on another. What is reported is the epsilon itself, so only refusals depend on it. Contract."""

REMEDY = (
    "restore it from a backup, or account for every planned step of its phases as if it was made (`privproj run`), and "
    "go on under another ledger"
)
"""How to go on safely with a ledger that is damaged: no phase releases more than it planned. Contract."""

MARKS = ("insecure", "public_subspace")
"""What a line that opens a phase can say of the run beside phase and target, each the name of an account's field: true
from there on, and written once. Contract."""

OPENING = {
    **dict.fromkeys(("phase", "target"), TABLE),
    **dict.fromkeys(MARKS, Kind("true, or left out", lambda value: value is True, {"const": True})),
}
"""What a line that opens a phase may hold. Contract."""

INSECURE = "the noise came from a given seed: whoever knows it can take the noise away, so nothing is protected"
"""The warning for noise from a given seed."""

CUT_SHORT = "a line of this ledger was cut short by a crash; it counts as a release"
"""The warning for a line that a crash cut short."""

STOPPED = (
    "phase {name} made {steps} of {planned} planned steps: if that was decided by looking at outputs, the epsilon to "
    "quote is that of the plan"
)
"""The warning for a phase that made fewer or more steps than planned."""


AS_WRITTEN = "every line is as privproj writes it"
"""The claim that no line has a word more, less or otherwise than the writer gives it."""

KEPT = "no phase planned more than the target in force"
"""The claim that the targets of the file were kept."""

WITHIN_PLAN = "no phase made more releases than it planned"
"""The claim that no phase went on after its end, which training never does."""

SECRET = "no noise came from a given seed"
"""The claim that the noise protects at all."""


class Budget(Protocol):
    """A budget that an optional feature keeps for a ledger, so that later phases may depend on earlier outputs.

    The table ``BUDGETS`` of a feature names the class under the key that its targets have besides epsilon and delta.
    The class is called with the entries of the target, the ``relation`` and the ``group_size`` of the phases.

    Attributes:
        assumes: The assumption that takes the place of a plan fixed in advance.
        report: Which epsilon may be reported.
    """

    assumes: str
    report: str

    def spend(self, release: Phase) -> None:
        """Count the releases of a phase; raises :class:`Refused`, and counts none, if they would exceed the budget."""

    def epsilon(self, delta: float) -> Result:
        """Return the epsilon of the whole budget."""
        ...

    def curve(self) -> Curve:
        """Return the privacy curve of the whole budget."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return what the ledger command adds to its JSON output."""
        ...

    def labels(self) -> dict[str, str]:
        """Return what the ledger command adds to its text, by label."""
        ...


def budget_type(target: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the class of the budget that keeps a target; None for a target with epsilon and delta alone.

    Raises:
        InvalidParameter: The target is empty, has None as a value, or has a key that no feature knows.
    """
    further, known = target.keys() - {"epsilon", "delta"}, plugin_table("BUDGETS") if target else {}
    if not target or None in target.values() or len(further) > 1 or not further <= known.keys():
        raise InvalidParameter("target", quoted(target), "a target with an epsilon, a delta or both")
    return load(known[further.pop()]) if further else None


@dataclass(frozen=True)
class Account:
    """What a ledger says: the phases of a run with the releases that each planned and made.

    :func:`privproj.io.read_ledger` makes one from a file.

    Args:
        phases: For each phase its entry, which holds the planned number of steps, and the number of releases made.
        target: The epsilon and the delta that the run set out to keep, as they were named last, with the ``order`` of
            the filter that keeps them, where there is one; None where none were.
        insecure: True if some noise came from a given seed, so that nothing is protected.
        public_subspace: True if a phase trained in a subspace that is taken to be public.
        alone: True for a training run without a ledger.
        notes: What a reader of any number from the file should know of the file, in words.

    >>> from privproj import Gaussian
    >>> from privproj.io import Account
    >>> from privproj.schedule import phase_of
    >>> entry = phase_of(Gaussian(noise_multiplier=10.0), "training", steps=10).as_dict()
    >>> account = Account(phases=((entry, 4),))
    >>> account.spent, account.left, round(account.epsilon(1e-5).value, 4)
    (4, 6, 0.7255)
    """

    phases: tuple[tuple[dict[str, Any], int], ...] = ()
    target: Mapping[str, Any] | None = None
    insecure: bool = False
    public_subspace: bool = False
    alone: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse more phases than are ever read or written."""
        if len(self.phases) > MOST_PHASES:
            expected = f"a ledger of at most {MOST_PHASES} phases"
            raise InvalidParameter("phases", len(self.phases), expected, "go on under another, and add both up")

    def with_phase(self, entry: dict[str, Any], where: str) -> "Account":
        """Return the account with another phase, of which nothing has been released.

        Args:
            entry: The line of the ledger that opens the phase, as data.
            where: The file and the line, for messages.

        Returns:
            The new account.

        Raises:
            InvalidParameter: The entry is not one that privproj writes.
            Refused: The bound of the phase does not answer for it.
        """
        phase, target = entry["phase"], entry.get("target")
        with within(where):
            check_keys(entry, OPENING)
            needed = {"mechanism", "steps"} | ({"batches"} if phase.get("sampling") == "balls-in-bins" else set())
            if "planned" in phase or not needed <= phase.keys():
                raise InvalidParameter("phase", quoted(phase), "a phase as privproj writes it")
        self.check_target(target, where)
        phase_from(phase, {}, where)
        marks = {mark: getattr(self, mark) or mark in entry for mark in MARKS}
        return replace(self, phases=(*self.phases, (phase, 0)), target=target or self.target, **marks)

    def opening(self, phase: Phase, target: Any, marks: Container[str], again: bool) -> dict[str, Any] | None:
        """Return the line that opens a phase, as data; None where the phase goes on with the last one.

        Args:
            phase: The phase.
            target: The target that it names; nothing keeps the one in force.
            marks: Those of :data:`MARKS` that hold; the line has those that the account does not have yet.
            again: True if a phase like the last one begins anew once that made all its releases.

        Returns:
            The line, or None.
        """
        entry = json.loads(json.dumps(phase.as_dict()))
        new = {mark: True for mark in MARKS if mark in marks and not getattr(self, mark)}
        if self.phases and self.phases[-1][0] == entry and not new and not (again and not self.left):
            return None
        return {"phase": entry, **({"target": dict(target)} if target else {}), **new}

    def check_target(self, target: Any, where: str) -> None:
        """Raise unless a phase may name this target now; that of a filter is fixed before the first release.

        Args:
            target: The target that the phase names; None keeps the one in force.
            where: The file, for messages.

        Raises:
            InvalidParameter: The target is not an epsilon, a delta or both, or both with an order.
            Refused: The order leaves no budget, or something was released and either target is that of a filter.
        """
        if target is None:
            return
        old, new = dict(self.target or {}), dict(target)
        with within(where):
            budget = budget_type(new)
            if budget:
                budget(**new)
            if "epsilon" in new:
                privacy_epsilon(new["epsilon"], zero=False)
            if "delta" in new:
                probability("delta", new["delta"])
            if new != old and self.spent and (budget or self.is_adaptive):
                raise Refused(
                    "the target of an adaptive plan is fixed before the first release; go on with "
                    f"{quoted(old)}, or begin another ledger and add up the epsilons of both"
                )

    @property
    def is_adaptive(self) -> bool:
        """True if a budget keeps the target, so that phases may depend on earlier outputs."""
        return bool((self.target or {}).keys() - {"epsilon", "delta"})

    def budget(self) -> Any:
        """Return the budget that keeps the target, with all releases counted.

        Returns:
            The :class:`Budget`, the largest that meets the target.

        Raises:
            InvalidParameter: No budget keeps the target, or there is no phase.
            Refused: The releases exceed the budget, or cannot be counted.
        """
        make = budget_type(self.target) if self.target else None
        if make is None or not self.phases:
            raise InvalidParameter("ledger", "nothing", "a phase under a target that a budget keeps")
        run = phase_from(self.phases[0][0], {}, "ledger: phase 1").run
        budget = make(**self.target, relation=str(run.relation), group_size=run.group_size)  # pyright: ignore[reportCallIssue]
        for phase in self.released_phases() if self.spent else ():
            budget.spend(phase)
        return budget

    def with_release(self) -> "Account":
        """Return the account with one more release of the last phase."""
        entry, steps = self.phases[-1]
        return replace(self, phases=(*self.phases[:-1], (entry, steps + 1)))

    @property
    def spent(self) -> int:
        """The number of releases made, over all phases."""
        return sum(steps for _, steps in self.phases)

    @property
    def left(self) -> int:
        """The number of releases of the last phase that were planned and not made."""
        return max(0, planned_releases(self.phases[-1][0]) - self.phases[-1][1]) if self.phases else 0

    @property
    def started(self) -> "Account":
        """The account without the phases that were given up before their first release.

        No output can have had a part in giving them up. The last phase stays, since it may be about to begin.
        """
        return replace(self, phases=(*(phase for phase in self.phases[:-1] if phase[1]), *self.phases[-1:]))

    def to_end(self, first: int = -1) -> "Account":
        """Return the account with its phases from one on, usually the last, run to their planned ends.

        Args:
            first: The number of that phase.

        Returns:
            The account.
        """
        ends = tuple((entry, max(steps, planned_releases(entry))) for entry, steps in self.phases[first:])
        return replace(self, phases=(*self.phases[:first], *ends))

    @property
    def planned(self) -> "Account":
        """The account of the plan: every phase that was begun, run to its planned end; with a filter only the last.

        Under a filter an earlier phase may end whenever it is decided, so it counts as planned for what it made.
        """
        return self.started.to_end(-1 if self.is_adaptive else 0)

    @property
    def stopped(self) -> tuple[str, ...]:
        """A sentence on every phase that made fewer or more steps than planned, where that matters."""
        if self.is_adaptive:
            return ()
        return tuple(
            STOPPED.format(name=entry.get("name", i + 1), steps=steps, planned=planned_releases(entry))
            for i, (entry, steps) in enumerate(self.started.phases)
            if steps != planned_releases(entry)
        )

    @property
    def renumbered(self) -> "Account":
        """The account with its phases numbered, since their names are words that nothing could check."""
        phases = tuple(({**entry, "name": str(i + 1)}, steps) for i, (entry, steps) in enumerate(self.phases))
        return replace(self, phases=phases)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What a number from here takes for granted of the run as a whole, beside what its phases do."""
        adapts = any("adaptive_clipping_sigma" in entry for entry, _ in self.started.phases)
        planned = len(self.started.phases) > 1 or bool(self.stopped)
        assumed = {PUBLIC_SUBSPACE: self.public_subspace}
        if self.is_adaptive:
            assumed[budget_type(self.target or {}).assumes] = True  # pyright: ignore
        assumed[plan_fixed(adapts=adapts)] = planned and not self.is_adaptive
        assumed[THIS_RUN_ALONE if self.alone else THIS_LEDGER_ALONE] = True
        return tuple(text for text, holds in assumed.items() if holds)

    def released_phases(self) -> list[Phase]:
        """Return what was released, as phases of a schedule; an epoch of balls-in-bins that was begun is a whole one.

        Returns:
            A phase of a schedule for each phase with a release.

        Raises:
            InvalidParameter: Nothing was released.
        """
        # E = ceil(T/t) epochs of t batches, which are not counted apart (C25).
        counts = [(entry, -(-steps // _releases_per_step(entry))) for entry, steps in self.phases]
        entries = [({**entry, "steps": count}, i) for i, (entry, count) in enumerate(counts) if count]
        if not entries:
            raise InvalidParameter("ledger", "nothing released", "at least one release")
        return [phase_from(entry, {}, f"ledger: phase {i + 1}") for entry, i in entries]

    def curve(self) -> Curve:
        """Return the curve of all that was released, delta against epsilon.

        Returns:
            The curve of one phase as its bound has it, of several jointly, under a filter that of its budget.

        Raises:
            InvalidParameter: Nothing was released.
            Refused: More was released than the filter has.
        """
        return self.budget().curve() if self.is_adaptive else Schedule(tuple(self.released_phases())).curve()

    def epsilon(self, delta: float) -> Result:
        """Return epsilon of all that was released, rounded up; under a filter that of the whole budget.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            A result whose ``value`` is epsilon, with what this account takes for granted.

        Raises:
            InvalidParameter: Nothing was released, or ``delta`` is outside its range.
            PrecisionLimit: The composition cannot tell so small a delta from its rounding.
        """
        phases = self.released_phases()
        if self.is_adaptive:
            result = self.budget().epsilon(delta)
        elif len(phases) > 1:
            result = Schedule(tuple(phases)).epsilon(delta=delta)
        else:
            result = solve_epsilon(composition_of_phase(phases[0]), delta_target(delta, None))
        return self.explained(result)

    def overspent(self) -> str:
        """Return how all that is counted here ends above the target, in words; empty where it does not.

        Returns:
            A sentence without its end, or nothing.
        """
        target = self.target or {}
        if not {"epsilon", "delta"} <= target.keys():
            return ""
        try:
            value = self.epsilon(target["delta"]).value
        except Refused as error:
            return str(error)
        epsilon = math.inf if value is None else float(value)
        if epsilon <= target["epsilon"] * (1.0 + TARGET_SLACK):
            return ""
        return (
            f"all planned steps would end at epsilon {round_outward(epsilon)} at delta {target['delta']:g}, above the "
            f"{target['epsilon']:g} that this ledger keeps to; plan more noise or fewer steps, or name a new epsilon "
            "and delta for all of it"
        )

    def explained(self, result: Result) -> Result:
        """Return a result with what this account takes for granted, and with what its reader should know.

        Args:
            result: A result about this run.

        Returns:
            The result with further assumptions and warnings.
        """
        # The plan of the account is that of all phases, also of one without a release.
        plans = [words for words in self.assumes if words in PLANS]
        of_mechanism: Any = result.mechanism["assumes"]
        run_assumes: Any = result.run["assumes"]
        of_run = tuple(words for words in run_assumes if not plans or words not in PLANS or words in plans)
        notes = dict.fromkeys((*result.warnings, *self.notes, *self.stopped, *([INSECURE] if self.insecure else [])))
        mechanism: Any = {**result.mechanism, "assumes": tuple(dict.fromkeys((*of_mechanism, *self.assumes)))}
        return replace(result, mechanism=mechanism, run={**result.run, "assumes": of_run}, warnings=tuple(notes))


def _releases_per_step(entry: Mapping[str, Any]) -> int:
    """The number of releases in one step of a phase: the batches of an epoch for balls-in-bins, else 1."""
    return int(entry["batches"]) if entry.get("sampling") == "balls-in-bins" else 1


def planned_releases(entry: Mapping[str, Any]) -> int:
    """The number of releases that a phase plans, which is the number of its lines once it is done."""
    return int(entry["steps"]) * _releases_per_step(entry)


def read_ledger(path: str | Path) -> Account:
    """Read the ledger of a training run.

    A last line that cannot be read (the end of a run that was killed while it wrote) counts as a release.

    Args:
        path: The file.

    Returns:
        The account of the run; an empty one for a file without a phase.

    Raises:
        InvalidParameter: The file cannot be read, is no ledger, or was altered.

    >>> import tempfile
    >>> from privproj import Gaussian
    >>> from privproj.io import read_ledger
    >>> from privproj.io.ledger import Ledger
    >>> from privproj.schedule import phase_of
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     ledger = Ledger(file.name, phase_of(Gaussian(noise_multiplier=10.0), "training", steps=10))
    ...     for _ in range(4):
    ...         number = ledger.record()
    ...     ledger.close()
    ...     account = read_ledger(file.name)
    >>> account.spent, account.left
    (4, 6)
    """
    return _Reader(str(path), read_bounded(path, "ledger", LARGEST_LEDGER)).account


def parse_begun(content: bytes, path: str) -> "_Reader":
    """The bytes of a ledger that has a phase, read; refused where it has none."""
    reader = _Reader(path, content)
    if not reader.account.phases:
        raise InvalidParameter("ledger", path, "a ledger with a phase; this run was stopped before it began")
    return reader


class _Reader:
    """A ledger as far as it was read or written; ``content`` is what its file has, and ``path`` is for messages.

    ``account`` is what it says, and ``replaced`` are accounts that it had when another target began. ``as_written`` is
    False once a phase is not opened in the very words of the writer, which opens none again before it is made.
    ``half_opened`` is the size of a last line that a crash cut short while it opened a phase, whose words nobody knows.

    Raises :class:`InvalidParameter` for a line that was not written so, and :class:`Refused` for a phase whose bound
    does not answer.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self.path, self.number, self.hash = path, 1, sha256()
        self.account, self.replaced, self.as_written, self.half_opened = Account(), list[Account](), True, 0
        self.header = self.line(HEADER)
        self.hash.update(self.header)
        if not self.header.startswith(content[: len(self.header)]):
            expected = "a ledger of privproj (its first line says so)"
            raise InvalidParameter("ledger", path, expected, f"if it is one, it is damaged: {REMEDY}")
        *lines, rest = content[len(self.header) :].split(b"\n")
        for line in lines:
            self.take(line)
        if rest:
            self.take(rest, is_whole=False)

    def line(self, entry: Mapping[str, Any]) -> bytes:
        """The next line for this entry, with a hash of all bytes before it and of its own words.

        The hash has no key, so that anyone can compute it: it shows damage, not forgery.
        """
        words = self.hash.copy()
        words.update(json.dumps(entry).encode())
        return json.dumps({**entry, "chain": words.hexdigest()[:HASH_DIGITS]}).encode() + b"\n"

    def take(self, line: bytes, is_whole: bool = True) -> None:
        """Read the next line, without its end: a phase, a release, or what a crash left of one.

        A crash leaves the beginning of a line, with zeros for what was not written of a release. That of a release
        counts as one, and that of a phase, without an end, opens nothing.
        """
        self.number += 1
        release = self.line({"step": self.account.phases[-1][1] + 1}) if self.account.phases else b""
        value = _value_of(line)
        entry = {key: field for key, field in value.items() if key != "chain"} if isinstance(value, dict) else {}
        if line + b"\n" == release:
            self.account = self.account.with_release()
        elif "phase" in entry and self.line(entry) == line + b"\n":
            self._open(entry)
        elif release.startswith(line.rstrip(b"\0")) and 0 < len(line) <= len(release):
            self.account = replace(self.account.with_release(), notes=(CUT_SHORT,))
        elif not is_whole and value is None and _begins_phase(line):
            self.half_opened = len(line)
        else:
            expected = f"line {self.number} as privproj wrote it"
            why = "it is neither what comes next nor the beginning of that"
            raise InvalidParameter("ledger", self.path, expected, f"the file is damaged ({why}): {REMEDY}")
        self.hash.update(line + b"\n")

    def _open(self, entry: dict[str, Any]) -> None:
        """Open a phase by its line."""
        where = f"{self.path}: line {self.number}"
        before, self.account = self.account, self.account.with_phase(entry, where)
        phase = phase_from(entry["phase"], {}, where)
        written = before.opening(phase, entry.get("target"), entry, again=True)
        self.as_written = self.as_written and json.dumps(written) == json.dumps(entry)
        if "target" in entry or before.is_adaptive:
            self.replaced.append(before)


def _value_of(line: bytes) -> Any:
    """The JSON value that a line begins with, whatever comes behind it; None where there is no whole one."""
    try:
        return json.JSONDecoder().raw_decode(line.decode())[0]
    except (ValueError, RecursionError):
        return None


def _begins_phase(line: bytes) -> bool:
    """True for printable words that begin as a line that opens a phase, or are the beginning of that."""
    opening = b'{"phase"'
    return line[: len(opening)] == opening[: len(line)] and line.isascii() and line.decode().isprintable()


Keep = Callable[[int], object]
"""What keeps the number of releases a second time, outside of a ledger."""


class Ledger(_Reader):
    """A ledger that this process writes alone.

    Opening one with the phase that its last line of work belongs to continues the count; another phase is appended
    behind, with those of the ``marks`` that the file does not have yet; where ``again`` is True so is one like the last
    phase once that made all its releases. ``steps`` is the number of releases of the current phase. ``check`` is called
    with the account of the file while no other process can write, and what it returns is first called once nothing is
    left that could refuse the phase, before the phase is written. Raises :class:`InvalidParameter` for a file that is
    not a ledger, and for one that another process is writing, and :class:`Refused` for a phase that would end above the
    target of the file, or above the ``target`` that it names for all of it.

    What ``check`` returned keeps a second count of the releases. It is called with their number over all phases: when
    the file is opened, now and then, and when it is closed.
    """

    def __init__(
        self,
        path: str | Path,
        phase: Phase,
        target: Mapping[str, Any] | None = None,
        marks: tuple[str, ...] = (),
        check: Callable[[Account], Keep] = lambda account: lambda releases: None,
        again: bool = False,
    ) -> None:
        super().__init__(str(Path(path).absolute()), b"")
        self.keep, self.last_count, self.unsure, self.next = lambda releases: None, 0, True, phase.with_run(steps=1)
        self.file = open_alone(self.path, "ledger")
        try:
            self.check_place()
            self._take_stock()
            self._begin(phase, dict(target or {}), marks, check(self.account), again)
        except BaseException:
            self.close()
            raise

    def _begin(self, phase: Phase, target: dict[str, Any], marks: tuple[str, ...], keep: Keep, again: bool) -> None:
        """Continue the last phase of the file if it is this one, else append it."""
        account = self.account
        account.check_target(target or None, self.path)
        opening = account.opening(phase, target, marks, again)
        opened = (
            account.with_phase(opening, self.path) if opening else replace(account, target=target or account.target)
        )
        if opening and account.spent:
            Schedule((*account.released_phases(), phase))
        # A new target was met for what the ledger said when the noise was calibrated. It may have more since.
        if not opening or account.spent or not target or opened.is_adaptive:
            above = opened.to_end().overspent()
            if above:
                raise Refused(f"{self.path}: {above}")
        self.keep = keep
        self.keep_count()
        # What a crash left of the opening of a phase, or of the header, stands for nothing.
        if self.half_opened or not account.phases:
            os.ftruncate(self.file, self.size - self.half_opened if account.phases else 0)
            self._take_stock()
        if opening:
            self._append(opening)
            _sync_folder(Path(self.path))
        self.budget = opened.budget() if opened.is_adaptive else None

    def _take_stock(self) -> None:
        """Read the file; the next line comes behind the end that the last one lacks, or behind the header."""
        written = read_bounded(self.path, "ledger", LARGEST_LEDGER)
        super().__init__(self.path, written)
        self.size, self.unsure = len(written), False
        self.missing = self.header if not written else b"" if written.endswith(b"\n") else b"\n"

    @property
    def steps(self) -> int:
        """The number of releases of the current phase."""
        return self.account.phases[-1][1]

    def record(self) -> int:
        """Record one release and return its number within the phase; it is on the disk when this returns.

        After a failure the file is read again before the next line is written. Raises :class:`Refused` where the filter
        of the ledger has no budget left for it; then nothing is recorded.
        """
        if self.unsure:
            self.check_place()
            self._take_stock()
            self.budget = self.account.budget() if self.account.is_adaptive else None
        if self.budget is not None:
            self.budget.spend(self.next)
        self._append({"step": self.steps + 1})
        if self.account.spent % KEPT_EVERY == 0 or self.account.spent.bit_count() == 1:
            self.keep_count()
        return self.steps

    def keep_count(self) -> None:
        """Keep the number of releases outside the ledger too, so that a ledger that lost lines is known by it."""
        self.keep(self.account.spent)
        self.last_count = self.account.spent

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on the disk."""
        self.check_place()
        line = self.line(entry)
        left = self.missing + line
        size = self.size + len(left)
        if size > LARGEST_LEDGER:
            raise Refused(
                f"the ledger {self.path} would have more than {LARGEST_LEDGER} bytes, so nothing was released: begin "
                "another ledger, and add up the epsilons of both"
            )
        self.unsure = True
        try:
            while left:
                left = left[os.write(self.file, left) :]
            os.fsync(self.file)
        except OSError as error:
            raise Refused(
                f"a line could not be written to the ledger {self.path} ({error.strerror}), so what it stands for was "
                "not released: make room, and go on"
            ) from error
        self.take(line.removesuffix(b"\n"))
        self.size, self.unsure, self.missing = size, False, b""

    def check_place(self) -> None:
        """Raise where the file is not as this run left it: it was closed, removed, moved, replaced or written."""
        if self.file < 0:
            remedy = "call make_private again, which goes on with it"
            raise InvalidParameter("ledger", self.path, "a run that is not closed", remedy)
        file = os.fstat(self.file)
        try:
            moved = "" if os.path.samestat(file, os.stat(self.path)) else "another file was put in its place"
        except OSError:
            moved = "it was removed or moved away"
        if moved or not (self.unsure or file.st_size == self.size):
            expected = "a ledger that stays where it is and that only this run writes"
            remedy = "and nothing was released since: put back the file as this run left it, and resume"
            raise InvalidParameter("ledger", self.path, expected, f"{moved or 'it was changed meanwhile'}, {remedy}")

    def close(self) -> None:
        """Close the file, so that another process may write the ledger."""
        if self.file >= 0:
            try:
                if self.last_count < self.account.spent:
                    self.keep_count()
            finally:
                os.close(self.file)
                self.file = -1


def _sync_folder(path: Path) -> None:
    """Make the name of the file durable, by flushing its folder to the disk."""
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- a ledger checked as a document -------------------------------------------------------------------


@dataclass(frozen=True)
class LedgerVerdict(Verdict):
    """What checking a ledger found, and its account."""

    account: Account

    @property
    def missing(self) -> int:
        """The number of releases that were planned and are not there, over all phases that were begun."""
        return self.account.planned.spent - self.account.spent


def verify_ledger(content: bytes, path: str) -> LedgerVerdict:
    """Check the bytes of a ledger; ``path`` is for messages.

    Raises :class:`InvalidParameter` for a ledger that is damaged or opens no phase, and whatever computing the epsilon
    of a plan raises.
    """
    reader = parse_begun(content, path)
    account = reader.account
    # A later target takes the place of an earlier one, and is about all of the run. That of a filter is about each
    # phase when it began, after what was made before.
    plans = [before.to_end() for before in (*reader.replaced, account) if before.target]
    claims = {
        AS_WRITTEN: reader.as_written and not reader.half_opened,
        **({KEPT: all("delta" in (plan.target or {}) and not plan.overspent() for plan in plans)} if plans else {}),
        WITHIN_PLAN: all(made <= planned_releases(entry) for entry, made in account.phases),
        SECRET: not account.insecure,
    }
    return LedgerVerdict(claims, account)
