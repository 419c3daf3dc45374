"""Read run files into compositions, and write training runs as run files.

A run file is a TOML or JSON file with an entry for each phase of a run. An entry has the sampling, the number of steps,
and a mechanism or a special key of an optional feature (:class:`PhaseKind`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from privproj.accounting import config as spec
from privproj.accounting.phase import Phase
from privproj.accounting.schedule import Composition, Remaining, phase_of, remaining
from privproj.errors import InvalidParameterError, unknown_attribute, within
from privproj.io.files import read_data, write_data
from privproj.mechanisms import Mechanism
from privproj.parameters import TABLE, Kind
from privproj.plugins import load, plugin_table
from privproj.result import Result
from privproj.run import Run, RunOptions, describe_run

FOR_ALL = ("relation", "discretization")  # keys of a run file that hold for all phases
MOST_PHASES = 1000  # largest number of phases of a run file or a ledger; composing that many takes minutes
PHASE_KEYS = ("name", "mechanism", "bound", "planned")  # keys of a phase besides those of its mechanism and its run


@dataclass(frozen=True)
class PhaseKind:
    """A kind of phase that an optional feature adds to run files.

    An entry of this kind has a special key, such as ``event``, in place of ``mechanism``.

    Attributes:
        keys: All keys of such an entry, with the allowed values.
        read: A function that returns the phase for the value of the special key, the run, and the name of the phase.
        text: A function that returns the value of the special key as text.
    """

    keys: Mapping[str, Kind]
    read: Callable[[Any, RunOptions, str], Phase]
    text: Callable[[Any], str]


def phase_kind(entry: Mapping[str, Any]) -> tuple[str, PhaseKind] | None:
    """Return the key that replaces ``mechanism`` in an entry, and its kind; None if there is none."""
    if "mechanism" in entry:
        return None
    return next(((key, load(place)) for key, place in plugin_table("PHASES").items() if key in entry), None)


def from_data(data: Mapping[str, Any], where: str = "run") -> Composition:
    """Return the composition of phases that the data of a run file describe.

    Args:
        data: The data: a list ``phase`` with a table for each phase, and the keys ``relation`` and ``discretization``,
            which hold for all phases.
        where: The name of the file, for messages.

    Returns:
        The composition.

    Raises:
        InvalidParameterError: A key is unknown, missing, of another type or duplicate; the message names file, entry
            and key.
        UnsupportedError: The bound of a phase does not support the phase.

    >>> from privproj.schedule import from_data
    >>> phase = {"mechanism": "m2", "dim": 2048, "rank": 16, "noise_multiplier": 0.5, "steps": 10}
    >>> round(from_data({"phase": [phase]}).epsilon(delta=1e-5).value, 4)
    2.3256
    """
    keys = spec.with_unique_keys(data, where)
    entries = keys.pop("phase", None)
    with within(where):
        # "phase" was removed above; it is listed for the suggestion after a misspelled key.
        spec.check_keys(keys, {**{name: spec.KINDS[name] for name in FOR_ALL}, "phase": TABLE})
    if not isinstance(entries, list) or not entries:
        raise InvalidParameterError(f"{where}: phase", entries, "a list of phases ([[phase]] in TOML)")
    if len(entries) > MOST_PHASES:
        raise InvalidParameterError(f"{where}: phase", f"{len(entries)} phases", f"at most {MOST_PHASES} phases")
    shared = {"relation": keys.pop("relation")} if "relation" in keys else {}
    phases = [phase_from(entry, shared, f"{where}: phase {i + 1}") for i, entry in enumerate(entries)]
    with within(where):
        return Composition(tuple(phases), **keys)


def phase_from(entry: Any, shared: dict[str, Any], where: str) -> Phase:
    """Return the phase that an entry of a run file describes.

    ``shared`` has the keys that hold for all phases. ``where`` names the file and the entry in messages.

    Raises:
        InvalidParameterError: A key is unknown, missing, of another type or duplicate.
        UnsupportedError: The bound of the phase does not support the phase.
    """
    keys = spec.with_unique_keys(entry, where)
    with within(where):
        for key in (*shared, "discretization"):
            if key in keys:
                raise InvalidParameterError(key, keys[key], "given once, before the phases")
        name = keys.get("name") or where.rsplit(": ", 1)[-1]
        all_keys = {**keys, **shared}
        added = phase_kind(keys)
        if added:
            key, kind = added
            spec.check_keys(keys, kind.keys)
            run: Any = {name: value for name, value in all_keys.items() if name not in ("name", key, "planned")}
            phase = kind.read(keys[key], run, name)
        else:
            spec.check_keys(keys, spec.keys_of(spec.mechanism_type_of(keys), PHASE_KEYS))
            phase = spec.composition_from(all_keys).only
        phase.check()
        return replace(phase, name=name, planned=keys.get("planned", False))


def without_names(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of the phases of a run without the names of the phases."""
    return [{key: value for key, value in entry.items() if key != "name"} for entry in entries]


def listed(table: Mapping[str, Any], *hidden: str) -> str:
    """Return the keys and values of a table as text, without the ``hidden`` keys."""
    values = {key: " + ".join(value) if key in ("layer", "layers") else value for key, value in table.items()}
    return ", ".join(f"{key} {value}" for key, value in values.items() if key not in hidden)


def releases_text(result: Result) -> list[str]:
    """Return a description of the releases of a result, one line for each phase."""
    phases: Any = result.mechanism.get("phases")
    plain = Run().parameters()

    def sentence(run: Mapping[str, Any], of: Mapping[str, Any], name: str) -> str:
        added = phase_kind(of)
        if added:
            key, kind = added
            return kind.text(of[key]) + (", once" if run["steps"] == 1 else f", {run['steps']} times")
        return f"{describe_run(run, '')}, by {name} ({listed(of, *plain, 'name', 'mechanism', 'requirements')})"

    if phases is None:
        return [sentence(result.run, result.mechanism, str(result.mechanism["name"]))]
    return [sentence({**plain, **of}, of, of.get("mechanism", "")) for of in phases]


# --- accountant of a training loop --------------------------------------------------------------------


class Accountant:
    """An accountant for a training loop, which counts every step.

    A :class:`privproj.schedule.Composition` is immutable. If a step returned a new composition, a caller that ignores
    the return value would lose the step, and epsilon would be too small. Therefore :meth:`step` changes the accountant.
    The plan must be fixed in advance, as for every composition. A loop that depends on earlier outputs needs a privacy
    filter.

    Args:
        schedule: Earlier releases; None if there are none.

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

    def __init__(self, schedule: Composition | None = None) -> None:
        self._schedule = schedule

    @property
    def schedule(self) -> Composition:
        """The composition of all releases so far.

        Raises:
            InvalidParameterError: There is no release.
        """
        if self._schedule is None:
            raise InvalidParameterError("step", "nothing", "a step", "no step was recorded, so call step first")
        return self._schedule

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, with a hint if other accountants have this attribute."""
            raise AttributeError(unknown_attribute("Accountant", name))

    def step(
        self,
        mechanism: Mechanism = None,  # pyright: ignore[reportArgumentType]
        *,
        name: str | None = None,
        bound: str | None = None,
        **run: Unpack[RunOptions],
    ) -> "Accountant":
        """Count one release, or ``steps`` releases.

        Args:
            mechanism: The mechanism, with its noise multiplier; required. A call without a mechanism, as in Opacus,
                raises an error that shows an example.
            name: The name of the phase in results; None takes the name of the mechanism.
            bound: The name of a bound of the mechanism; None takes its default.
            **run: The run (:class:`privproj.run.RunOptions`); one step by default.

        Returns:
            This accountant.

        Raises:
            InvalidParameterError: A value is out of range, or the relation or group size differs from that of earlier
                phases.
            UnsupportedError: The bound does not support this release.
        """
        self._schedule = (self + self._phase(mechanism, name, bound, run)).schedule
        return self

    @staticmethod
    def _phase(mechanism: Mechanism, name: str | None, bound: str | None, run: RunOptions) -> Phase:
        """Return a checked phase of the mechanism, of one step unless ``run`` sets steps or epochs."""
        counted: RunOptions = run if {"steps", "epochs"} & set(run) else {**run, "steps": 1}
        phase = phase_of(mechanism, name or getattr(mechanism, "name", ""), bound, **counted)
        phase.check()
        return phase

    def epsilon(self, delta: float) -> Result:
        """Return the epsilon of all releases together, rounded up.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            The result of :meth:`privproj.schedule.Composition.epsilon`.

        Raises:
            InvalidParameterError: A value is out of range, or there is no release.
            UnsupportedError: There are several phases, and one has no privacy profile.
            PrecisionError: Delta is below the rounding error of the composition.
        """
        return self.schedule.epsilon(delta=delta)

    def delta(self, epsilon: float) -> Result:
        """Return the delta of all releases together, rounded up.

        Args:
            epsilon: The epsilon of the guarantee, from 0 to 1e9.

        Returns:
            The result of :meth:`privproj.schedule.Composition.delta`.

        Raises:
            InvalidParameterError: A value is out of range, or there is no release.
            UnsupportedError: There are several phases, and one has no privacy profile.
            PrecisionError: Delta is below the rounding error of the composition.
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
        """Return how many releases of a mechanism still fit in a privacy budget.

        Args:
            mechanism: The mechanism; None for more steps like those of the last phase.
            epsilon: The epsilon of the budget, from 0 to 1e9.
            delta: The delta of the budget, above 0 and below 1.
            bound: The name of a bound of the mechanism; None takes its default.
            **run: The run (:class:`privproj.run.RunOptions`); its number of steps is ignored.

        Returns:
            The remaining budget; ``more_steps`` is the number of releases that fit.

        Raises:
            InvalidParameterError: A value is out of range, or there is neither a release nor a mechanism.
            UnsupportedError: The bound of a phase has no privacy profile, or does not support sampled batches.

        >>> from privproj import Accountant, Gaussian
        >>> Accountant().remaining(Gaussian(noise_multiplier=10.0), epsilon=1.0, delta=1e-5).more_steps
        7
        """
        planned = self if mechanism is None else self + replace(self._phase(mechanism, None, bound, run), planned=True)
        return remaining(planned.schedule, epsilon=epsilon, delta=delta)[-1]

    def __add__(self, other: "Accountant | Composition | Phase") -> "Accountant":
        """Return a new accountant with the releases of both operands."""
        if not isinstance(other, Accountant | Composition | Phase):
            return NotImplemented
        if isinstance(other, Accountant):
            other = other.schedule
        if self._schedule is None:
            return Accountant(Composition((other,)) if isinstance(other, Phase) else other)
        return Accountant(self._schedule + other)

    def __mul__(self, times: int) -> "Accountant":
        """Return a new accountant with all releases repeated ``times`` times."""
        return Accountant(self.schedule * times)

    def __repr__(self) -> str:
        phases = () if self._schedule is None else self._schedule.phases
        counts = ", ".join(f"{phase.name} ({phase.run.steps})" for phase in phases)
        return f"<Accountant: {counts or 'nothing released'}>"

    def save(self, path: str | Path) -> None:
        """Write all releases as a run file, for ``privproj run`` and :meth:`read`.

        Args:
            path: The file: JSON if its name ends in ``.json``, else TOML.

        Raises:
            InvalidParameterError: There is no release.
            OSError: The file cannot be written.
        """
        write_data(str(path), self.schedule.as_dict())

    @classmethod
    def read(cls, path: str | Path) -> "Accountant":
        """Return the accountant of a run file.

        Args:
            path: The file, in TOML or JSON.

        Returns:
            The accountant with the releases of the file.

        Raises:
            InvalidParameterError: The file cannot be read; the message names entry and key.
            UnsupportedError: The bound of a phase does not support the phase.
        """
        return cls(from_data(read_data(str(path)), str(path)))
