"""Run files: phases as data, read into a schedule."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from privproj.accounting import spec
from privproj.accounting.phase import Phase
from privproj.accounting.schedule import Schedule
from privproj.errors import InvalidParameter, Refused, within
from privproj.extensions.events import event_from_data
from privproj.runs import RUN_PARAMETERS
from privproj.validation import NUMBER, TABLE, TEXT, WHOLE, Kind

FOR_ALL = ("relation", "discretization", "composer")
"""Keys of a run file that hold for all its phases."""
MOST_PHASES = 1000
"""Most phases of a run file or a ledger, whose composition takes minutes. Contract."""
PHASE_KEYS = ("name", "mechanism", "bound", "planned")
"""Keys of a phase besides those of its mechanism and its run."""
EVENT_KEYS = ("name", "event", "steps", "relation", "public_size", "planned")
"""Keys of a phase that is an event of dp-accounting."""
OWN_EVENTS: dict[str, dict[str, Kind]] = {
    "SelfComposedDpEvent": {"count": WHOLE, "event": TABLE},
    "PoissonSampledDpEvent": {"sampling_probability": NUMBER, "event": TABLE},
    "BallsInBinsDpEvent": {"batches": WHOLE, "batches_per_record": WHOLE, "event": TABLE},
    "ReleaseDpEvent": {"mechanism": TABLE, "bound": TEXT, "relation": TEXT},
}
"""Events as which phases of our own are written, with their keys and the types of these."""
MAY_BE_MISSING = ("batches_per_record", "bound", "relation")
"""Keys of these events that have a default."""


def from_data(data: Mapping[str, Any], where: str = "run") -> Schedule:
    """Read a schedule from the data of a run file.

    Args:
        data: A list ``phase`` with a table for each phase, and the keys that hold for all phases: ``relation``,
            ``discretization`` and ``composer``.
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
    given = spec.with_unique_keys(data, where)
    entries = given.pop("phase", None)
    with within(where):
        spec.check_keys(given, {name: spec.KINDS[name] for name in FOR_ALL})
    if not isinstance(entries, list) or not entries:
        raise InvalidParameter(f"{where}: phase", entries, "a list of phases ([[phase]] in TOML)")
    if len(entries) > MOST_PHASES:
        raise InvalidParameter(f"{where}: phase", f"{len(entries)} phases", f"at most {MOST_PHASES} phases")
    shared = {"relation": given.pop("relation")} if "relation" in given else {}
    phases = [phase_from(entry, shared, f"{where}: phase {i + 1}") for i, entry in enumerate(entries)]
    with within(where):
        return Schedule(tuple(phases), **given)


def phase_from(entry: Any, shared: dict[str, Any], where: str) -> Phase:
    """One phase of a run file; raises :class:`InvalidParameter` or :class:`Refused` with its file and entry."""
    given = spec.with_unique_keys(entry, where)
    try:
        with within(where):
            for key in (*shared, *(name for name in FOR_ALL if name != "relation")):
                if key in given:
                    raise InvalidParameter(key, given[key], f"{key} once, before the phases")
            if "event" in given:
                spec.check_keys(given, {name: spec.KINDS[name] for name in EVENT_KEYS})
                given = _own_phase(given, shared) or given
            if "event" not in given:
                spec.check_keys(given, spec.keys_of(spec.mechanism_type_of(given), PHASE_KEYS))
            name = given.get("name", where.rsplit(": ", 1)[-1])
            whole = {**given, **shared}
            phase = _event_phase(whole, name) if "event" in given else spec.question_from(whole).only
            phase.check()
            return replace(phase, name=name, planned=given.get("planned", False))
    except Refused as error:
        raise Refused(f"{where}: {error}") from None


def _event_phase(given: Mapping[str, Any], name: str) -> Phase:
    """A phase that is an event of dp-accounting."""
    run: Any = {key: value for key, value in given.items() if key not in ("name", "event", "planned")}
    return event_from_data(given["event"], "event", run, name)


def _own_phase(given: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any] | None:
    """The phase of our own that an event says, as an entry; None for an event of dp-accounting.

    Raises :class:`InvalidParameter` for a key too much, one that is missing, a value of another type, and another
    relation than that of the run.
    """
    levels, event = [], given["event"]
    while isinstance(event, Mapping) and event.get("type") in OWN_EVENTS:
        levels.append(event)
        event = event.get("event")
    kinds = [level["type"] for level in levels]
    if "ReleaseDpEvent" not in kinds or any(kind != "SelfComposedDpEvent" for kind in kinds[:-2]):
        return None
    for level in levels:
        _check_own_event(level)
    fields = {key: value for level in levels for key, value in level.items()}
    release = fields["mechanism"]
    steps = math.prod([int(given.get("steps", 1)), *(int(level.get("count", 1)) for level in levels)])
    own = {"mechanism" if key == "name" else key: value for key, value in release.items()}
    own |= {"bound": fields["bound"]} if "bound" in fields else {}
    if "sampling_probability" in fields:
        own |= {"sampling": "poisson", "sampling_rate": fields["sampling_probability"]}
    elif "batches" in fields:
        own |= {"sampling": "balls-in-bins"}
        own |= {key: fields[key] for key in ("batches", "batches_per_record") if key in fields}
    relation = {**given, **shared}.get("relation", fields.get("relation"))
    if fields.get("relation", relation) != relation:
        raise InvalidParameter("event: relation", fields["relation"], f"relation={relation}, that of the run")
    own |= {} if relation is None or "relation" in shared else {"relation": relation}
    return {**{key: given[key] for key in ("name", "public_size", "planned") if key in given}, **own, "steps": steps}


def _check_own_event(level: Mapping[str, Any]) -> None:
    """Raise :class:`InvalidParameter` for a key of such an event that is too much, missing, or of another type."""
    kind, known = level["type"], OWN_EVENTS[level["type"]]
    with within("event"):
        spec.check_keys({key: value for key, value in level.items() if key != "type"}, known)
        missing = next((key for key in known if key not in level and key not in MAY_BE_MISSING), None)
        if missing:
            raise InvalidParameter(missing, "nothing", f"{missing} of {kind}")
        inner = level.get("mechanism", {})
        twice = next((key for key in inner if key != "name" and key in (*RUN_PARAMETERS, *PHASE_KEYS)), None)
        if twice:
            raise InvalidParameter(f"mechanism: {twice}", inner[twice], "the name and the parameters of a mechanism")
