"""Record each release of a training run in a ledger before the release is used.

A ledger is an append-only file of JSON lines. After a header, each phase has an opening line and one numbered line per
release. With balls-in-bins sampling, ``batches`` lines are one epoch, and an incomplete epoch counts as a whole one.
Every line is flushed to the disk before its release is used. So a run that is killed at any moment has used at most the
releases in its ledger.

Every line ends with a hash of all earlier bytes and of its own content. A file is rejected if a line is altered,
duplicated, moved or missing from the middle. Only the last line may be incomplete after a crash. The hash has no key,
so it does not detect tampering by a person who recomputes the hashes. It does not detect that whole lines at the end
are missing; for that the caller may store the number of releases outside the file (see :class:`Ledger`). Nor can a file
show that a person replaced it by the ledger of another run.

The target of a ledger is an epsilon and a delta that the run must not exceed. A phase that would exceed the target is
rejected before it begins, unless it sets a new target. A target with a key besides ``epsilon`` and ``delta`` is
enforced by an optional feature (:class:`Budget`). Such a target is fixed before the first release, and every release is
counted before it is recorded.
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
from privproj.accounting.schedule import Composition, Phase
from privproj.assumptions import FIXED_SCHEDULES, Requirement, fixed_schedule
from privproj.errors import InvalidParameterError, UnsupportedError, within
from privproj.io.files import Verdict, open_locked, read_bounded
from privproj.io.run_file import MOST_PHASES, phase_from
from privproj.parameters import TABLE, Kind, privacy_epsilon, probability, quoted
from privproj.plugins import load, plugin_table
from privproj.profiles.privacy_profile import Curve
from privproj.result import Result, round_outward
from privproj.targets import delta_target

HEADER = {"ledger": "privproj", "version": 2}  # first line of a ledger

LARGEST_LEDGER = 1 << 28  # bytes, about four million releases; a larger ledger is neither read nor written

HASH_DIGITS = 32  # hexadecimal digits of SHA-256 in a line; enough to rule out accidental collisions

KEEP_INTERVAL = 64  # releases between two calls of ``keep``, which is also called at every smaller power of 2

# Relative excess over the target epsilon at which a phase still opens, because noise that just meets the target on one
# machine may exceed it by rounding on another. The reported epsilon does not depend on it.
TARGET_SLACK = 1e-6

# remedy for a damaged ledger: no phase releases more than it planned, so the full plan can be accounted
REMEDY = (
    "restore the file from a backup, or account for all planned steps (`privproj run`) and continue with a new ledger"
)

MARKS = ("insecure", "public_subspace")  # fields of an account that an opening line can set to True

# keys of an opening line
OPENING = {
    **dict.fromkeys(("phase", "target"), TABLE),
    **dict.fromkeys(MARKS, Kind("true, or left out", lambda value: value is True, {"const": True})),
}

# warning for noise from a known seed
INSECURE = (
    "The noise came from a known seed, so nothing is protected: anyone who knows the seed can subtract the noise. "
    "Train without insecure_seed."
)

# warning for a line that a crash cut short
CUT_SHORT = "A crash cut off a line of this ledger. The line counts as a release."

# warning for a phase that made fewer or more steps than planned
STOPPED = (
    "Phase {name} made {steps} of {planned} planned steps. If outputs influenced this number of steps, report the "
    "epsilon of the whole plan."
)


AS_WRITTEN = "every line is as privproj writes it"  # claim that privproj writes exactly these lines

KEPT = "the planned epsilon of no phase exceeds the target in force"  # claim that every phase met its target

# claim that no phase made more releases than planned; training never does
WITHIN_PLAN = "no phase made more releases than it planned"

SECRET = "no noise came from a given seed"  # claim that the seed of the noise is secret


class Budget(Protocol):
    """A privacy budget with which an optional feature enforces the target of a ledger.

    With a budget, later phases of the run may depend on earlier outputs.

    Attributes:
        requirements: The requirement on the run. It replaces the requirement that the plan is fixed in advance.
        report: A text that says which epsilon may be reported.
    """

    requirements: str
    report: str

    def spend(self, release: Phase) -> None:
        """Count the releases of a phase against the budget.

        Raises:
            UnsupportedError: The releases would exceed the budget. Then no release is counted.
        """

    def epsilon(self, delta: float) -> Result:
        """Return the epsilon of the whole budget."""
        ...

    def curve(self) -> Curve:
        """Return the privacy curve of the whole budget."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return the fields of the budget in the JSON output of the ledger command."""
        ...

    def labels(self) -> dict[str, str]:
        """Return the lines of the budget in the text output of the ledger command, by label."""
        ...


def budget_type(target: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the class of the privacy budget that enforces a target of a ledger.

    It is None for a target of epsilon and delta only, which needs no budget.

    Raises:
        InvalidParameterError: The target is empty, has an unknown key or a value None, or has several keys besides
            ``epsilon`` and ``delta``.
    """
    # The table BUDGETS maps a further key of a target to a class. The class is called with the entries of the target
    # and, if releases are counted, with the ``relation`` and the ``group_size`` of the phases.
    further, budget_types = target.keys() - {"epsilon", "delta"}, plugin_table("BUDGETS") if target else {}
    if not target or None in target.values() or len(further) > 1 or not further <= budget_types.keys():
        raise InvalidParameterError("target", quoted(target), "a table with epsilon, delta or both")
    return load(budget_types[further.pop()]) if further else None


@dataclass(frozen=True)
class Account:
    """The planned and recorded releases of the phases of a run.

    :func:`privproj.io.read_ledger` returns one.

    Args:
        phases: A pair for each phase: its entry as in a run file, with the planned number of steps, and its number of
            recorded releases.
        target: The epsilon and delta that the run must not exceed, as set by the latest phase with a target. A
            key besides these two selects the :class:`Budget` that enforces the target. None: there is no target.
        insecure: True if some noise came from a known seed, so that nothing is protected.
        public_subspace: True if a phase trained in a subspace that is assumed to be public.
        alone: True if the training run has no ledger.
        notes: Warnings about the file, which every result repeats.

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
        if len(self.phases) > MOST_PHASES:
            expected = f"at most {MOST_PHASES}"
            raise InvalidParameterError(
                "phases", len(self.phases), expected, "begin another ledger, and add the epsilons of both"
            )

    def with_phase(self, entry: dict[str, Any], where: str) -> "Account":
        """Return the account with one more phase, which has no release yet.

        Raises:
            InvalidParameterError: The entry is not one that privproj writes.
            UnsupportedError: The bound of the phase does not support the phase.
        """
        phase, target = entry["phase"], entry.get("target")
        with within(where):
            check_keys(entry, OPENING)
            needed = {"mechanism", "steps"} | ({"batches"} if phase.get("sampling") == "balls-in-bins" else set())
            if "planned" in phase or not needed <= phase.keys():
                raise InvalidParameterError("phase", quoted(phase), "a phase that privproj wrote")
        self.check_target(target, where)
        phase_from(phase, {}, where)
        marks = {mark: getattr(self, mark) or mark in entry for mark in MARKS}
        return replace(self, phases=(*self.phases, (phase, 0)), target=target or self.target, **marks)

    def opening(self, phase: Phase, target: Any, marks: Container[str], again: bool) -> dict[str, Any] | None:
        """Return the ledger line that opens a phase, as data; None if the last phase continues.

        Args:
            phase: The phase.
            target: The target that the phase sets; None or empty keeps the current target.
            marks: Those of "insecure" and "public_subspace" that are true for the phase.
            again: True to open a new phase if the last phase is complete and equals ``phase``.
        """
        entry = json.loads(json.dumps(phase.as_dict()))
        new = {mark: True for mark in MARKS if mark in marks and not getattr(self, mark)}
        if self.phases and self.phases[-1][0] == entry and not new and not (again and not self.left):
            return None
        return {"phase": entry, **({"target": dict(target)} if target else {}), **new}

    def check_target(self, target: Any, where: str) -> None:
        """Raise an error unless a new phase may set this target for the whole run.

        Raises:
            InvalidParameterError: A key or a value of the target is not valid.
            UnsupportedError: No :class:`Budget` can guarantee the target, or the run has a release and the change is
                from or to a target with a budget.
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
                old_target = quoted(old) if old else "no target"
                raise UnsupportedError(
                    "the target of an adaptive run cannot change after the first release. Continue with "
                    f"{old_target}, or begin another ledger and add the epsilons of both"
                )

    @property
    def is_adaptive(self) -> bool:
        """True if a :class:`Budget` enforces the target, so that phases may depend on earlier outputs."""
        return bool((self.target or {}).keys() - {"epsilon", "delta"})

    def budget(self) -> Any:
        """Return the largest :class:`Budget` that meets the target, with all releases counted.

        Raises:
            InvalidParameterError: No budget enforces the target, or there is no phase.
            UnsupportedError: The releases exceed the budget, or cannot be counted.
        """
        make = budget_type(self.target) if self.target else None
        if make is None or not self.phases:
            raise InvalidParameterError("phase", "nothing", "a phase", "the ledger has no phase with a budget")
        run = phase_from(self.phases[0][0], {}, "ledger: phase 1").run
        options: Any = {**(self.target or {}), "relation": str(run.relation), "group_size": run.group_size}
        budget = make(**options)
        for phase in self.released_phases() if self.spent else ():
            budget.spend(phase)
        return budget

    def with_release(self) -> "Account":
        """Return the account with one more release of the last phase."""
        entry, steps = self.phases[-1]
        return replace(self, phases=(*self.phases[:-1], (entry, steps + 1)))

    @property
    def spent(self) -> int:
        """The number of recorded releases of all phases."""
        return sum(steps for _, steps in self.phases)

    @property
    def left(self) -> int:
        """The number of planned releases of the last phase that are not yet recorded."""
        return max(0, planned_releases(self.phases[-1][0]) - self.phases[-1][1]) if self.phases else 0

    @property
    def started(self) -> "Account":
        """The account without the phases that have no release; the last phase is always kept."""
        # The last phase remains, because it may be about to begin.
        # No output of such a phase can have influenced the decision to abandon it.
        return replace(self, phases=(*(phase for phase in self.phases[:-1] if phase[1]), *self.phases[-1:]))

    def to_end(self, first: int = -1) -> "Account":
        """Return the account as if its phases from an index on had made all their planned releases."""
        ends = tuple((entry, max(steps, planned_releases(entry))) for entry, steps in self.phases[first:])
        return replace(self, phases=(*self.phases[:first], *ends))

    @property
    def planned(self) -> "Account":
        """The account as if its phases had made all their planned releases.

        With a :class:`Budget` this is assumed of the last phase only, because an earlier phase may stop at any time.
        Phases without a release are removed, except the last phase.
        """
        return self.started.to_end(-1 if self.is_adaptive else 0)

    @property
    def stopped(self) -> tuple[str, ...]:
        """The warnings about phases that made fewer or more steps than planned."""
        # With a budget, a phase may stop at any time.
        if self.is_adaptive:
            return ()
        return tuple(
            STOPPED.format(name=entry.get("name", i + 1), steps=steps, planned=planned_releases(entry))
            for i, (entry, steps) in enumerate(self.started.phases)
            if steps != planned_releases(entry)
        )

    @property
    def renumbered(self) -> "Account":
        """The account with numbers as the names of its phases."""
        phases = tuple(({**entry, "name": str(i + 1)}, steps) for i, (entry, steps) in enumerate(self.phases))
        return replace(self, phases=phases)

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements on the run as a whole, besides those of its phases."""
        adapts = any("adaptive_clipping_sigma" in entry for entry, _ in self.started.phases)
        planned = len(self.started.phases) > 1 or bool(self.stopped)
        assumed = {Requirement.PUBLIC_SUBSPACE: self.public_subspace}
        if self.is_adaptive:
            assumed[budget_type(self.target or {}).requirements] = True  # pyright: ignore
        assumed[fixed_schedule(adapts=adapts)] = planned and not self.is_adaptive
        assumed[Requirement.ONLY_THIS_RUN if self.alone else Requirement.ONLY_THIS_LEDGER] = True
        return tuple(text for text, holds in assumed.items() if holds)

    def released_phases(self) -> list[Phase]:
        """Return the phases that have a release, with their recorded numbers of steps.

        An incomplete epoch of balls-in-bins counts as a whole one.

        Raises:
            InvalidParameterError: There is no release.
        """
        # E = ceil(T/t) epochs of t batches; an incomplete epoch counts as a whole one (C25).
        counts = [(entry, -(-steps // _releases_per_step(entry))) for entry, steps in self.phases]
        entries = [({**entry, "steps": count}, i) for i, (entry, count) in enumerate(counts) if count]
        if not entries:
            raise InvalidParameterError("ledger", "a ledger without releases", "a ledger with at least one release")
        return [phase_from(entry, {}, f"ledger: phase {i + 1}") for entry, i in entries]

    def curve(self) -> Curve:
        """Return the privacy curve of all recorded releases, or of the whole :class:`Budget`.

        Raises:
            InvalidParameterError: There is no release.
            UnsupportedError: The releases exceed the budget.
        """
        return self.budget().curve() if self.is_adaptive else Composition(tuple(self.released_phases())).curve()

    def epsilon(self, delta: float) -> Result:
        """Return the epsilon of all recorded releases.

        With a :class:`Budget` it is the epsilon of the whole budget, even if a part was not spent.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            A result whose ``value`` is epsilon, rounded up, with the requirements of this account.

        Raises:
            InvalidParameterError: There is no release, or ``delta`` is out of range.
            PrecisionError: Delta is below the rounding error of the composition.
        """
        phases = self.released_phases()
        if self.is_adaptive:
            result = self.budget().epsilon(delta)
        elif len(phases) > 1:
            result = Composition(tuple(phases)).epsilon(delta=delta)
        else:
            result = solve_epsilon(composition_of_phase(phases[0]), delta_target(delta, None))
        return self.explained(result)

    def overspent(self) -> str:
        """Return a text on how the releases exceed the target; empty if they do not."""
        target = self.target or {}
        if not {"epsilon", "delta"} <= target.keys():
            return ""
        try:
            value = self.epsilon(target["delta"]).value
        except UnsupportedError as error:
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
        """Return a result with the requirements and the warnings of this account added."""
        # The assumption on the plan covers all phases, including one without a release.
        plans = [requirement for requirement in self.requirements if requirement in FIXED_SCHEDULES]
        of_mechanism: Any = result.mechanism["requirements"]
        run_requirements: Any = result.run["requirements"]
        of_run = tuple(
            requirement
            for requirement in run_requirements
            if not plans or requirement not in FIXED_SCHEDULES or requirement in plans
        )
        notes = dict.fromkeys((*result.warnings, *self.notes, *self.stopped, *([INSECURE] if self.insecure else [])))
        mechanism: Any = {**result.mechanism, "requirements": tuple(dict.fromkeys((*of_mechanism, *self.requirements)))}
        return replace(result, mechanism=mechanism, run={**result.run, "requirements": of_run}, warnings=tuple(notes))


def _releases_per_step(entry: Mapping[str, Any]) -> int:
    """Return the number of releases in a step of a phase; for balls-in-bins a step is an epoch."""
    return int(entry["batches"]) if entry.get("sampling") == "balls-in-bins" else 1


def planned_releases(entry: Mapping[str, Any]) -> int:
    """Return the planned number of releases of a phase of a training run."""
    return int(entry["steps"]) * _releases_per_step(entry)


def read_ledger(path: str | Path) -> Account:
    """Read the ledger of a training run.

    An incomplete last line, which a crash may leave, counts as a release.

    Args:
        path: The file.

    Returns:
        The account of the run; an empty account for a file without a phase.

    Raises:
        InvalidParameterError: The file cannot be read, is not a ledger, or was altered.

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


def parse_ledger(content: bytes, path: str) -> "_Reader":
    """Return the parsed content of a ledger.

    Raises:
        InvalidParameterError: The ledger is damaged, or has no phase.
        UnsupportedError: The bound of a phase does not support the phase.
    """
    reader = _Reader(path, content)
    if not reader.account.phases:
        raise InvalidParameterError(
            "ledger",
            path,
            "a ledger with a phase",
            "a run that stopped before its first phase leaves a ledger without one. If this run made releases, restore "
            "the ledger from a backup",
        )
    return reader


class _Reader:
    """The parsed content of a ledger up to the last line that was read or written.

    Attributes:
        account: The planned and recorded releases of all lines.
        replaced: The accounts before each change of the target. With a :class:`Budget`, also those before each phase.
        as_written: False if the opening line of a phase differs from the line that privproj writes.
        half_opened: The number of bytes of an incomplete opening line at the end of the file; 0 if there is none.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self.path, self.number, self.hash = path, 1, sha256()
        self.account, self.replaced, self.as_written, self.half_opened = Account(), list[Account](), True, 0
        self.header = self.line(HEADER)
        self.hash.update(self.header)
        if not self.header.startswith(content[: len(self.header)]):
            expected = "a ledger that privproj wrote"
            new = "for a new run, give a path that does not exist yet"
            remedy = f"its first line is not that of a ledger; {new}. If it was a ledger, {REMEDY}"
            raise InvalidParameterError("ledger", path, expected, remedy)
        *lines, rest = content[len(self.header) :].split(b"\n")
        for line in lines:
            self.take(line)
        if rest:
            self.take(rest, is_whole=False)

    def line(self, entry: Mapping[str, Any]) -> bytes:
        """Return the next line of the ledger, with a hash of all earlier bytes and the entry."""
        line_hash = self.hash.copy()
        line_hash.update(json.dumps(entry).encode())
        return json.dumps({**entry, "chain": line_hash.hexdigest()[:HASH_DIGITS]}).encode() + b"\n"

    def take(self, line: bytes, is_whole: bool = True) -> None:
        """Parse the next line of the ledger, and update the account.

        Raises:
            InvalidParameterError: The line differs from every line that privproj could write at this position.
            UnsupportedError: The bound of a phase does not support the phase.
        """
        # A crash may leave an incomplete line, possibly padded with zeros. It counts as a release. It is ignored if it
        # opens a phase, which is only allowed at the end of the file.
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
            expected = "an undamaged ledger"
            remedy = f"line {self.number} is damaged, or a line before it is missing: {REMEDY}"
            raise InvalidParameterError("ledger", self.path, expected, remedy)
        self.hash.update(line + b"\n")

    def _open(self, entry: dict[str, Any]) -> None:
        where = f"{self.path}: line {self.number}"
        before, self.account = self.account, self.account.with_phase(entry, where)
        phase = phase_from(entry["phase"], {}, where)
        written = before.opening(phase, entry.get("target"), entry, again=True)
        self.as_written = self.as_written and json.dumps(written) == json.dumps(entry)
        if "target" in entry or before.is_adaptive:
            self.replaced.append(before)


def _value_of(line: bytes) -> Any:
    """Return the JSON value at the beginning of a line; None if it is incomplete."""
    try:
        return json.JSONDecoder().raw_decode(line.decode())[0]
    except (ValueError, RecursionError):
        return None


def _begins_phase(line: bytes) -> bool:
    """Return whether a line can be an incomplete opening line of a phase."""
    opening = b'{"phase"'
    return line[: len(opening)] == opening[: len(line)] and line.isascii() and line.decode().isprintable()


Keep = Callable[[int], object]  # a function that stores the number of releases outside the ledger


class Ledger(_Reader):
    """A ledger file that this process writes, with an exclusive lock.

    If ``phase`` equals the last phase of the file, the last phase continues. Any other phase is appended.

    Args:
        path: The file.
        phase: The phase of the training run whose releases follow.
        target: A new target for the whole ledger; None keeps the current one.
        marks: Those of "insecure" and "public_subspace" that are true for the phase, as in :class:`Account`.
        check: A function that is called with the :class:`Account` of the file before anything is written. It returns a
            function that stores the number of all releases outside the file.
        again: True to open a new phase if the last phase is complete and equals ``phase``.

    Raises:
        InvalidParameterError: The file is not a ledger, or another process writes it.
        UnsupportedError: The phase would exceed the target.
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
        self.file = open_locked(self.path, "ledger")
        try:
            self.check_file()
            self._read_file()
            self._begin(phase, dict(target or {}), marks, check(self.account), again)
        except BaseException:
            self.close()
            raise

    def _begin(self, phase: Phase, target: dict[str, Any], marks: tuple[str, ...], keep: Keep, again: bool) -> None:
        account = self.account
        account.check_target(target or None, self.path)
        opening = account.opening(phase, target, marks, again)
        opened = (
            account.with_phase(opening, self.path) if opening else replace(account, target=target or account.target)
        )
        if opening and account.spent:
            Composition((*account.released_phases(), phase))
        # The noise was calibrated to a new target when the ledger had fewer releases than it may have now.
        if not opening or account.spent or not target or opened.is_adaptive:
            above = opened.to_end().overspent()
            if above:
                raise UnsupportedError(f"{self.path}: {above}")
        # The number of releases is stored after all checks and before the phase is written, then at intervals, and when
        # the ledger closes.
        self.keep = keep
        self.keep_count()
        # An incomplete opening line or header stands for no release.
        if self.half_opened or not account.phases:
            os.ftruncate(self.file, self.size - self.half_opened if account.phases else 0)
            self._read_file()
        if opening:
            self._append(opening)
            _sync_folder(Path(self.path))
        self.budget = opened.budget() if opened.is_adaptive else None

    def _read_file(self) -> None:
        written = read_bounded(self.path, "ledger", LARGEST_LEDGER)
        super().__init__(self.path, written)
        self.size, self.unsure = len(written), False
        self.missing = self.header if not written else b"" if written.endswith(b"\n") else b"\n"

    @property
    def steps(self) -> int:
        """The number of recorded releases of the current phase."""
        return self.account.phases[-1][1]

    def record(self) -> int:
        """Record one release on the disk, and return its number within its phase.

        Raises:
            InvalidParameterError: The ledger is closed, or another process changed the file.
            UnsupportedError: The budget is exhausted, or the line could not be written. The release must not be made.
        """
        if self.unsure:
            self.check_file()
            self._read_file()
            self.budget = self.account.budget() if self.account.is_adaptive else None
        if self.budget is not None:
            self.budget.spend(self.next)
        self._append({"step": self.steps + 1})
        if self.account.spent % KEEP_INTERVAL == 0 or self.account.spent.bit_count() == 1:
            self.keep_count()
        return self.steps

    def keep_count(self) -> None:
        """Store the number of releases outside the ledger, to detect missing lines at its end."""
        self.keep(self.account.spent)
        self.last_count = self.account.spent

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Write one line to the ledger, and flush the file to the disk."""
        self.check_file()
        line = self.line(entry)
        left = self.missing + line
        size = self.size + len(left)
        if size > LARGEST_LEDGER:
            raise UnsupportedError(
                f"the ledger {self.path} would exceed {LARGEST_LEDGER} bytes, so nothing was released. Begin another "
                "ledger, and add the epsilons of both"
            )
        self.unsure = True
        try:
            while left:
                left = left[os.write(self.file, left) :]
            os.fsync(self.file)
        except OSError as error:
            raise UnsupportedError(
                f"cannot write to the ledger {self.path} ({error.strerror}), so nothing was released. Free some disk "
                "space and continue"
            ) from error
        self.take(line.removesuffix(b"\n"))
        self.size, self.unsure, self.missing = size, False, b""

    def check_file(self) -> None:
        """Raise an error if the ledger is closed, or if another process changed or moved its file."""
        if self.file < 0:
            remedy = "call make_private again to continue the run"
            raise InvalidParameterError("ledger", self.path, "the ledger of a run that is not closed", remedy)
        file = os.fstat(self.file)
        try:
            moved = "" if os.path.samestat(file, os.stat(self.path)) else "another file was put in its place"
        except OSError:
            moved = "it was removed or moved away"
        if moved or not (self.unsure or file.st_size == self.size):
            expected = "a file that only this run writes and that is not moved"
            remedy = "restore the file as this run left it, and resume. Nothing was released since"
            raise InvalidParameterError("ledger", self.path, expected, f"{moved or 'the file was changed'}: {remedy}")

    def close(self) -> None:
        """Close the file and release its lock."""
        if self.file >= 0:
            try:
                if self.last_count < self.account.spent:
                    self.keep_count()
            finally:
                os.close(self.file)
                self.file = -1


def _sync_folder(path: Path) -> None:
    """Flush the directory of a file to the disk, so that the file survives a crash."""
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- verification of a ledger as a document -----------------------------------------------------------


@dataclass(frozen=True)
class LedgerVerdict(Verdict):
    """The result of checking a ledger, with its planned and recorded releases."""

    account: Account

    @property
    def missing(self) -> int:
        """The number of planned but unrecorded releases of the phases that have started."""
        return self.account.planned.spent - self.account.spent


def verify_ledger(content: bytes, path: str) -> LedgerVerdict:
    """Return which claims about the ledger of a training run hold.

    Raises:
        InvalidParameterError: The ledger is damaged, or has no phase.
        QueryError: The epsilon of a plan cannot be computed.
    """
    reader = parse_ledger(content, path)
    account = reader.account
    # A later target replaces an earlier one and covers the whole run. The target of a budget is checked at the
    # beginning of every phase, after all earlier releases.
    plans = [before.to_end() for before in (*reader.replaced, account) if before.target]
    claims = {
        AS_WRITTEN: reader.as_written and not reader.half_opened,
        **({KEPT: all("delta" in (plan.target or {}) and not plan.overspent() for plan in plans)} if plans else {}),
        WITHIN_PLAN: all(made <= planned_releases(entry) for entry, made in account.phases),
        SECRET: not account.insecure,
    }
    return LedgerVerdict(claims, account)
