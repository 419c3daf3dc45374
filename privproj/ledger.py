"""The ledger of a training run: what was released, recorded before it is used.

A ledger is a file of JSON lines: a header, then for each phase its event and one line for every release made under it.
It is only ever appended to, and every line reaches the disk before the release it stands for is used, so a run that is
killed at any moment has used at most what its ledger says.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privproj.accountant import epsilon_of
from privproj.errors import InvalidParameter
from privproj.mechanisms import whole
from privproj.profile import Curve
from privproj.result import Result
from privproj.schedule import Phase, Schedule, phase_from
from privproj.target import target_of

HEADER = {"ledger": "privproj", "version": 1}
INSECURE = "the noise came from a given seed: whoever knows it can take the noise away, so nothing is protected"


@dataclass(frozen=True)
class Account:
    """What a ledger says: for each phase its entry (with the planned number of steps) and the steps spent."""

    phases: tuple[tuple[dict[str, Any], int], ...] = ()
    target: Mapping[str, Any] | None = None
    insecure: bool = False

    def opened(self, entry: dict[str, Any], where: str) -> "Account":
        """With another phase; raises :class:`InvalidParameter` for one that is not."""
        phase, target = entry["phase"], entry.get("target")
        if not isinstance(phase, dict) or not isinstance(target, dict | None):
            raise InvalidParameter(where, type(phase).__name__, "a phase as privproj writes it")
        phase_from(phase, {}, where)
        whole("steps", phase.get("steps"), f"a whole number of steps in {where}")
        insecure = self.insecure or bool(entry.get("insecure"))
        return Account((*self.phases, (phase, 0)), target, insecure)

    def stepped(self) -> "Account":
        """With one more release of the last phase."""
        entry, steps = self.phases[-1]
        return replace(self, phases=(*self.phases[:-1], (entry, steps + 1)))

    @property
    def spent(self) -> int:
        """Releases in all."""
        return sum(steps for _, steps in self.phases)

    @property
    def left(self) -> int:
        """Releases of the last phase that were planned and not made."""
        return max(0, int(self.phases[-1][0]["steps"]) - self.phases[-1][1]) if self.phases else 0

    @property
    def planned(self) -> "Account":
        """The same with the last phase run to its planned end."""
        entry, steps = self.phases[-1]
        return replace(self, phases=(*self.phases[:-1], (entry, max(steps, int(entry["steps"])))))

    def made(self) -> list[Phase]:
        """What was released, as phases; raises :class:`InvalidParameter` if nothing was."""
        entries = [({**entry, "steps": steps}, i) for i, (entry, steps) in enumerate(self.phases) if steps]
        if not entries:
            raise InvalidParameter("ledger", "nothing released", "at least one release")
        return [phase_from(entry, {}, f"ledger: phase {i + 1}") for entry, i in entries]

    def curve(self) -> Curve:
        """The curve of all that was released: of one phase as its bound has it, of several jointly."""
        phases = self.made()
        return phases[0].question.curve() if len(phases) == 1 else Schedule(tuple(phases)).curve()

    def epsilon(self, delta: float) -> Result:
        """Epsilon of all that was released, rounded up."""
        phases = self.made()
        question, target = phases[0].question, target_of(delta, None)
        if len(phases) > 1:
            found = Schedule(tuple(phases)).epsilon(delta=delta)
        else:
            found = question.answer("epsilon", lambda: epsilon_of(question, target), **target.fields())
        return replace(found, warnings=(*found.warnings, INSECURE)) if self.insecure else found


def read(path: str | Path) -> Account:
    """What a ledger says.

    A line that cannot be read (the end of a run that lost its power) counts as a release. Raises
    :class:`InvalidParameter` for a file that is not a ledger.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise InvalidParameter("ledger", path, "a readable ledger", str(error.strerror)) from None
    return parsed([line for line in lines if line], str(path))


def parsed(lines: list[bytes], path: str) -> Account:
    """The account of a ledger's lines; raises :class:`InvalidParameter` where steps have lost their phase."""
    if not lines or line_of(lines[0]) != HEADER:
        if len(lines) <= 1 and json.dumps(HEADER).encode().startswith(b"".join(lines)):
            return Account()
        raise InvalidParameter("ledger", path, "a ledger of privproj (its first line says so)")
    account, orphaned = Account(), False
    for number, line in enumerate(lines[1:], 2):
        entry = line_of(line)
        if entry is not None and "phase" in entry:
            account, orphaned = account.opened(entry, f"{path}: line {number}"), False
        elif entry is None and (line.startswith(b'{"phase"') or not account.phases):
            orphaned = True
        elif orphaned or not account.phases:
            raise InvalidParameter("ledger", path, f"the phase that line {number} belongs to", "the file is damaged")
        else:
            account = account.stepped()
    return account


def line_of(line: bytes) -> dict[str, Any] | None:
    """One line as data; None where it cannot be read."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


class Ledger:
    """A ledger that this process writes, alone: a second writer is refused.

    Opening one with the phase that its last line of work belongs to continues the count; another phase is appended
    behind. ``steps`` is the number of releases of the current phase. Raises :class:`InvalidParameter` for a file that
    is not a ledger or that another process is writing.
    """

    def __init__(
        self, path: str | Path, phase: Phase, target: Mapping[str, Any] | None = None, insecure: bool = False
    ) -> None:
        self.path = Path(path)
        self.file = exclusive(self.path)
        try:
            self.begin(phase, {"target": dict(target)} if target else {}, insecure)
        except BaseException:
            self.close()
            raise

    def begin(self, phase: Phase, target: dict[str, Any], insecure: bool) -> None:
        """Continue the last phase if it is this one, else append it."""
        account = read(self.path)
        entry = json.loads(json.dumps(phase.as_dict()))
        if not account.phases:
            os.ftruncate(self.file, 0)
            self.append(HEADER)
        else:
            self.end_line()
        insecure = insecure and not account.insecure
        if account.phases and account.phases[-1][0] == entry and not insecure:
            self.earlier, self.steps = account.phases[:-1], account.phases[-1][1]
            return
        if account.spent:
            Schedule((*account.made(), phase))
        self.append({"phase": entry} | target | ({"insecure": True} if insecure else {}))
        sync_folder(self.path)
        self.earlier, self.steps = account.phases, 0

    @property
    def account(self) -> Account:
        """What the ledger says now."""
        return read(self.path)

    def record(self) -> int:
        """Record one release; returns its number within the phase. It is on the disk when this returns."""
        if os.fstat(self.file).st_nlink == 0:
            raise InvalidParameter("ledger", self.path, "a ledger that stays where it is", "it was removed")
        self.append({"step": self.steps + 1})
        self.steps += 1
        return self.steps

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on the disk."""
        line = json.dumps(entry).encode() + b"\n"
        while line:
            line = line[os.write(self.file, line) :]
        os.fsync(self.file)

    def end_line(self) -> None:
        """End a line that a crash left without its end, so that the next one is not glued to it."""
        size = os.fstat(self.file).st_size
        if size and os.pread(self.file, 1, size - 1) != b"\n":
            os.write(self.file, b"\n")

    def close(self) -> None:
        """Let another process write."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def exclusive(path: Path) -> int:
    """The file opened for appending under a lock that no other process holds."""
    import fcntl

    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise InvalidParameter("ledger", path, "a file that can be written", str(error.strerror)) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise InvalidParameter(
            "ledger", path, "a ledger that no other process is writing", "one ledger belongs to one run at a time"
        ) from None
    return file


def sync_folder(path: Path) -> None:
    """Make the file's name durable too."""
    folder = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
