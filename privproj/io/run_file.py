"""Run files: phases as data, read into a schedule, and the accountant of a loop, which writes them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from privproj.accounting import config as spec
from privproj.accounting.phase import Phase
from privproj.accounting.schedule import Remaining, Schedule, phase_of
from privproj.errors import InvalidParameter, within
from privproj.io.files import read_data, write_data
from privproj.mechanisms import Mechanism
from privproj.parameters import TABLE, Kind
from privproj.plugins import load, plugin_table
from privproj.result import Result
from privproj.run import Run, RunOptions, run_words

FOR_ALL = ("relation", "discretization")
"""Keys of a run file that hold for all its phases."""
MOST_PHASES = 1000
"""Most phases of a run file or a ledger, whose composition takes minutes. Contract."""
PHASE_KEYS = ("name", "mechanism", "bound", "planned")
"""Keys of a phase besides those of its mechanism and its run."""


@dataclass(frozen=True)
class PhaseKind:
    """A kind of phase that an optional feature adds to run files, with its reader and its text.

    The table ``PHASES`` of a feature names one under the key that an entry of this kind has in place of ``mechanism``.

    Attributes:
        keys: Every key of such an entry, and what its value may be.
        read: Returns the phase, from the value under the key of this kind, the run, and the name of the phase.
        text: Returns that value as text.
    """

    keys: Mapping[str, Kind]
    read: Callable[[Any, RunOptions, str], Phase]
    text: Callable[[Any], str]


def phase_kind(entry: Mapping[str, Any]) -> tuple[str, PhaseKind] | None:
    """Return the kind of an entry that an optional feature adds, with its key; None for a mechanism of privproj."""
    if "mechanism" in entry:
        return None
    return next(((key, load(place)) for key, place in plugin_table("PHASES").items() if key in entry), None)


def from_data(data: Mapping[str, Any], where: str = "run") -> Schedule:
    """Read a schedule from the data of a run file.

    Args:
        data: A list ``phase`` with a table for each phase, and the keys that hold for all phases: ``relation`` and
            ``discretization``.
        where: The name of the file, for messages.

    Returns:
        The schedule of these phases.

    Raises:
        InvalidParameter: A key is unknown, missing, of another type or given twice; the message names file, entry and
            key.
        Refused: The bound of a phase does not answer for it.

    >>> from privproj.schedule import from_data
    >>> phase = {"mechanism": "m2", "dim": 2048, "rank": 16, "noise_multiplier": 0.5, "steps": 10}
    >>> round(from_data({"phase": [phase]}).epsilon(delta=1e-5).value, 4)
    2.3256
    """
    keys = spec.with_unique_keys(data, where)
    entries = keys.pop("phase", None)
    with within(where):
        # The phases were taken out before; a key that is spelt almost like theirs is told so.
        spec.check_keys(keys, {**{name: spec.KINDS[name] for name in FOR_ALL}, "phase": TABLE})
    if not isinstance(entries, list) or not entries:
        raise InvalidParameter(f"{where}: phase", entries, "a list of phases ([[phase]] in TOML)")
    if len(entries) > MOST_PHASES:
        raise InvalidParameter(f"{where}: phase", f"{len(entries)} phases", f"at most {MOST_PHASES} phases")
    shared = {"relation": keys.pop("relation")} if "relation" in keys else {}
    phases = [phase_from(entry, shared, f"{where}: phase {i + 1}") for i, entry in enumerate(entries)]
    with within(where):
        return Schedule(tuple(phases), **keys)


def phase_from(entry: Any, shared: dict[str, Any], where: str) -> Phase:
    """One phase of a run file; raises :class:`InvalidParameter` or :class:`Refused` with its file and entry."""
    keys = spec.with_unique_keys(entry, where)
    with within(where):
        for key in (*shared, "discretization"):
            if key in keys:
                raise InvalidParameter(key, keys[key], f"{key} once, before the phases")
        name = keys.get("name", where.rsplit(": ", 1)[-1])
        all_keys = {**keys, **shared}
        added = phase_kind(keys)
        if added:
            key, kind = added
            spec.check_keys(keys, kind.keys)
            run: Any = {name: value for name, value in all_keys.items() if name not in ("name", key, "planned")}
            phase = kind.read(keys[key], run, name)
        else:
            spec.check_keys(keys, spec.keys_of(spec.mechanism_type_of(keys), PHASE_KEYS))
            phase = spec.question_from(all_keys).only
        phase.check()
        return replace(phase, name=name, planned=keys.get("planned", False))


def without_names(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Entries of phases without their names, which are free words that nothing could check."""
    return [{key: value for key, value in entry.items() if key != "name"} for entry in entries]


def listed(table: Mapping[str, Any], *hidden: str) -> str:
    """The keys of a table with their values, but for some of them."""
    words = {key: " + ".join(value) if key in ("layer", "layers") else value for key, value in table.items()}
    return ", ".join(f"{key} {value}" for key, value in words.items() if key not in hidden)


def what_was_run(result: Result) -> list[str]:
    """Which releases a result is about, in words: those of one mechanism, or of each phase."""
    phases: Any = result.mechanism.get("phases")
    plain = Run().parameters()

    def words(run: Mapping[str, Any], of: Mapping[str, Any], name: str) -> str:
        added = phase_kind(of)
        if added:
            key, kind = added
            return kind.text(of[key]) + (", once" if run["steps"] == 1 else f", {run['steps']} times")
        return f"{run_words(run, '')}, by {name} ({listed(of, *plain, 'name', 'mechanism', 'assumes')})"

    if phases is None:
        return [words(result.run, result.mechanism, str(result.mechanism["name"]))]
    return [words({**plain, **of}, of, of.get("mechanism", "")) for of in phases]


# --- the accountant of a loop -------------------------------------------------------------------------


class Accountant:
    """A schedule that grows in place: what a loop has released so far.

    A schedule itself is frozen, so that its answers can be kept. A step that returned a longer one would be forgotten
    by whoever drops what it returns, and its number would be too small. So :meth:`step` changes the accountant; all
    else is asked of its :attr:`schedule`. The plan is taken to be fixed in advance, as for every schedule:
    a loop that reacts to what was released needs a privacy filter instead.

    Args:
        schedule: What was released before; None for nothing.

    >>> from privproj import M2, Accountant, Gaussian
    >>> accountant = Accountant()
    >>> for _ in range(10):
    ...     _ = accountant.step(Gaussian(noise_multiplier=1.0), sampling_rate=0.01)
    ...     _ = accountant.step(M2(dim=64, rank=4, noise_multiplier=0.5), sampling_rate=0.01, steps=5)
    >>> [(phase.name, phase.run.steps) for phase in accountant.schedule.phases]
    [('gaussian', 10), ('m2', 50)]
    >>> round(accountant.epsilon(1e-5).value, 3)
    0.396
    """

    def __init__(self, schedule: Schedule | None = None) -> None:
        self._schedule = schedule

    @property
    def schedule(self) -> Schedule:
        """What was released so far.

        Raises:
            InvalidParameter: Nothing was.
        """
        if self._schedule is None:
            raise InvalidParameter("step", "nothing", "a step, as nothing was released so far")
        return self._schedule

    def step(
        self, mechanism: Mechanism, *, name: str | None = None, bound: str | None = None, **run: Unpack[RunOptions]
    ) -> "Accountant":
        """Count a release, or as many as ``steps`` says.

        Args:
            mechanism: What was released, with its noise multiplier.
            name: What the phase is called in answers; None takes the name of the mechanism.
            bound: The name of a bound of the mechanism; None takes its default.
            **run: The run, as :class:`privproj.run.RunOptions` lists it; one step unless it says more.

        Returns:
            This accountant.

        Raises:
            InvalidParameter: A value is outside its domain, or the phase does not go with those before it.
            Refused: The bound proves nothing for this release.
        """
        self._schedule = (self + self._phase(mechanism, name, bound, run)).schedule
        return self

    @staticmethod
    def _phase(mechanism: Mechanism, name: str | None, bound: str | None, run: RunOptions) -> Phase:
        """A phase that its bound answers for, a single step unless the run says how many."""
        counted: RunOptions = run if {"steps", "epochs"} & set(run) else {**run, "steps": 1}
        phase = phase_of(mechanism, name or getattr(mechanism, "name", ""), bound, **counted)
        phase.check()
        return phase

    def epsilon(self, delta: float) -> Result:
        """Return the smallest epsilon of all that was released, rounded up.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            The answer of :meth:`privproj.schedule.Schedule.epsilon`.

        Raises:
            InvalidParameter: A value is outside its domain, or nothing was released.
            Refused: Several phases, one of which has no privacy profile.
            PrecisionLimit: The composition cannot tell so small a delta from its rounding.
        """
        return self.schedule.epsilon(delta=delta)

    def delta(self, epsilon: float) -> Result:
        """Return the smallest delta of all that was released, rounded up.

        Args:
            epsilon: The epsilon of the guarantee, from 0 to 1e9.

        Returns:
            The answer of :meth:`privproj.schedule.Schedule.delta`.

        Raises:
            InvalidParameter: A value is outside its domain, or nothing was released.
            Refused: Several phases, one of which has no privacy profile.
            PrecisionLimit: The composed delta is too small to be told from rounding.
        """
        return self.schedule.delta(epsilon=epsilon)

    def remaining(
        self,
        mechanism: Mechanism | None = None,
        *,
        epsilon: float,
        delta: float,
        bound: str | None = None,
        **run: Unpack[RunOptions],
    ) -> Remaining:
        """Return how many releases of a mechanism still fit in a budget.

        Args:
            mechanism: What would be released; None for more steps like those of the last phase.
            epsilon: The epsilon of the budget, from 0 to 1e9.
            delta: The delta of the budget, above 0 and below 1.
            bound: The name of a bound of the mechanism; None takes its default.
            **run: Its run, as :class:`privproj.run.RunOptions` lists it; its number of steps plays no role.

        Returns:
            What is left: ``more_steps`` of it still fit.

        Raises:
            InvalidParameter: A value is outside its domain, or nothing was released and no mechanism is named.
            Refused: A phase has no privacy profile, or no amplification by subsampling.

        >>> from privproj import Accountant, Gaussian
        >>> Accountant().remaining(Gaussian(noise_multiplier=10.0), epsilon=1.0, delta=1e-5).more_steps
        7
        """
        planned = self if mechanism is None else self + replace(self._phase(mechanism, None, bound, run), planned=True)
        return planned.schedule.remaining(epsilon=epsilon, delta=delta)[-1]

    def __add__(self, other: "Accountant | Schedule | Phase") -> "Accountant":
        """The accountant of both; neither of them changes."""
        if not isinstance(other, Accountant | Schedule | Phase):
            return NotImplemented
        if isinstance(other, Accountant):
            other = other.schedule
        if self._schedule is None:
            return Accountant(Schedule((other,)) if isinstance(other, Phase) else other)
        return Accountant(self._schedule + other)

    def __mul__(self, times: int) -> "Accountant":
        """The accountant of all of it, so many times."""
        return Accountant(self.schedule * times)

    def __repr__(self) -> str:
        phases = () if self._schedule is None else self._schedule.phases
        counts = ", ".join(f"{phase.name} ({phase.run.steps})" for phase in phases)
        return f"<Accountant: {counts or 'nothing released'}>"

    def save(self, path: str | Path) -> None:
        """Write what was released as a run file, which ``privproj run`` and :meth:`read` take.

        Args:
            path: Where to: JSON where it ends in ``.json``, else TOML.

        Raises:
            InvalidParameter: Nothing was released.
            OSError: The file cannot be written.
        """
        write_data(str(path), self.schedule.as_dict())

    @classmethod
    def read(cls, path: str | Path) -> "Accountant":
        """Return the accountant of a run file.

        Args:
            path: The file, in TOML or JSON.

        Returns:
            The accountant, which goes on where the file ends.

        Raises:
            InvalidParameter: The file cannot be read; the message names entry and key.
            Refused: The bound of a phase does not answer for it.
        """
        return cls(from_data(read_data(str(path)), str(path)))
