"""Run files: phases as data, read into a schedule."""

from collections.abc import Mapping
from typing import Any

from privproj.accounting.schedule import Phase, Schedule
from privproj.errors import InvalidParameter, Refused, raise_within
from privproj.records.entries import TYPES, check_keys, keys_of, mechanism_type_of, question_from, with_unique_keys

FOR_ALL = ("relation", "discretization", "composer")
"""Keys of a run file that hold for all its phases."""
PHASE_KEYS = ("name", "mechanism", "bound", "planned")
"""Keys of a phase besides those of its mechanism and its run."""


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
    given = with_unique_keys(data, where)
    entries = given.pop("phase", None)
    try:
        check_keys(given, {name: TYPES[name] for name in FOR_ALL})
    except InvalidParameter as error:
        raise_within(error, where)
    if not isinstance(entries, list) or not entries:
        raise InvalidParameter(f"{where}: phase", entries, "a list of phases ([[phase]] in TOML)")
    shared = {"relation": given.pop("relation")} if "relation" in given else {}
    phases = [phase_from(entry, shared, f"{where}: phase {i + 1}") for i, entry in enumerate(entries)]
    try:
        return Schedule(tuple(phases), **given)
    except InvalidParameter as error:
        raise_within(error, where)


def phase_from(entry: Any, shared: dict[str, Any], where: str) -> Phase:
    """One phase of a run file; raises :class:`InvalidParameter` or :class:`Refused` with its file and entry."""
    given = with_unique_keys(entry, where)
    try:
        for key in (*shared, *(name for name in FOR_ALL if name != "relation")):
            if key in given:
                raise InvalidParameter(key, given[key], f"{key} once, before the phases")
        check_keys(given, keys_of(mechanism_type_of(given), PHASE_KEYS))
        if not given.get("name", "").isprintable():
            raise InvalidParameter("name", ascii(given["name"])[:80], "a name that can be printed on one line")
        question = question_from({**given, **shared})
        question.check()
    except InvalidParameter as error:
        raise_within(error, where)
    except Refused as error:
        raise Refused(f"{where}: {error}") from None
    return Phase(question, given.get("name", where.rsplit(": ", 1)[-1]), given.get("planned", False))
