"""Check regression files: queries with an expected value or an upper limit."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from privproj.accounting import config as spec
from privproj.errors import InvalidParameterError, PrivprojError, QueryError, raise_within, within
from privproj.parameters import TEXT, number, whole_number
from privproj.result import Outcome, Result, Status

DEFAULT_RTOL = 1e-6  # relative difference from the expected value that passes by default

PINS = (str(Status.PROVED), str(Status.CONDITIONAL))  # statuses that an entry may expect

# Keys of an entry that specify its expected result. The largest tolerance is 0.1, because a larger one tests nothing.
EXPECTED = {
    "status": TEXT,
    **dict.fromkeys(("expect", "at_most"), number("a number from -1e+300 to 1e+300", -1e300, 1e300)),
    "rtol": number("a number from 0 to 0.1", 0.0, 0.1),
    "bound_version": whole_number("a version of the bound, from 1 on"),
}


@dataclass(frozen=True)
class Entry:
    """An entry ``[[bound]]`` of a regression file: a query and its expected result.

    Attributes:
        name: The name of the entry, or its number if it has no name.
        query: The quantity that is computed, such as "epsilon".
        keys: All keys of the entry.
        place: The file and the entry, for messages.
        expected: The keys of the entry that specify the expected result (:data:`EXPECTED`).
        result: The result of the query, if it was evaluated and is finite.
        problem: How the result differs from the expected one; empty if it does not.
        seconds: The duration of the query in seconds.
        compared: "agrees" or "differs" after a comparison with mpmath, or the reason why there was none.
    """

    file: str
    name: str
    query: str
    keys: dict[str, Any]
    place: str
    expected: dict[str, Any]
    result: Result | None = None
    problem: str = ""
    seconds: float = 0.0
    compared: str = ""

    @property
    def holds(self) -> bool:
        """True if the result agrees with the expected one."""
        return not self.problem

    @property
    def parameters(self) -> dict[str, Any]:
        """The keys and values of the query, including its bound and relation."""
        phase = spec.composition_from(self.keys, self.query).only
        keys = {key: value for key, value in self.keys.items() if key not in ("name", "query", *EXPECTED)}
        return {**keys, "bound": phase.bound.name, "relation": str(phase.run.relation)}

    def ask(self) -> Result:
        """Evaluate the query of the entry, and return the result."""
        with within(self.place):
            return spec.evaluate_entry(self.query, self.keys)

    def checked(self, reference: bool = False) -> "Entry":
        """Return the entry with the result of its query, compared with the expected one.

        If ``reference`` is True, the result is also compared with a value from mpmath.
        """
        began, result = time.perf_counter(), None
        try:
            current = self.ask()
            problem = f"no finite answer (outcome {current.outcome})"
            if current.outcome is Outcome.OK and current.value is not None and math.isfinite(current.value):
                result, problem = current, self._problem_with(current, self.expected)
        except QueryError as error:
            problem = f"no answer: {error}"
        entry = replace(self, result=result, problem=problem, seconds=round(time.perf_counter() - began, 3))
        return entry._compared() if reference and result is not None else entry

    def _compared(self) -> "Entry":
        from privproj.accounting.digits import difference, noise_difference, reference_value

        assert self.result is not None
        if self.query not in ("epsilon", "delta", "sigma"):
            return replace(self, compared=f"not compared: mpmath does not compute {self.query}")
        query = spec.composition_from(self.keys, self.query)
        target: Any = spec.target_from(self.keys, self.query)
        try:
            if self.query == "sigma":
                problem = noise_difference(query, target, self.result.value or 0.0)
            else:
                problem = difference(self.result, reference_value(query, target))
        except QueryError as error:
            return replace(self, compared=f"not compared: {error}")
        return replace(self, compared="differs" if problem else "agrees", problem=self.problem or problem)

    def _problem_with(self, result: Result, expected: Mapping[str, Any]) -> str:
        """Return how a finite result differs from the expected one, as text; empty if it does not."""
        value, status = float(result.value or 0.0), expected.get("status", result.status)
        expect, rtol, most = expected.get("expect"), expected.get("rtol", DEFAULT_RTOL), expected.get("at_most")
        if result.status != status:
            return f"expected a {status} bound, got a {result.status} one"
        problems = []
        if expect is not None and not abs(value - expect) <= rtol * abs(expect):
            problems.append(f"expected {expect!r} (relative tolerance {rtol:g}), moved by {change_text(expect, value)}")
        if most is not None and not value <= most:
            problems.append(f"expected at most {most!r}, got {value!r}, {change_text(most, value)}")
        return "; ".join(problems) + self._why(result) if problems else ""

    def _why(self, result: Result) -> str:
        """Return a text on whether a new version of the bound may explain a changed value."""
        now, then = result.bound_version, self.expected.get("bound_version")
        if then is None:
            return ""
        if now == then:
            return f"; {result.bound} is at version {now} as before: look for what changed in the entry"
        return f"; {result.bound} went from version {then} to {now}, which may move its values: CHANGELOG.md says why"

    @property
    def rewritten(self) -> dict[str, Any]:
        """The new values of ``expect`` and ``bound_version`` for the file; empty without a result."""
        if self.result is None or self.result.value is None:
            return {}
        value, old = self.result.value, self.keys.get("expect")
        new = {"expect": int(value) if isinstance(old, int) and value == int(value) else float(value)}
        new["bound_version"] = self.result.bound_version
        return {key: now for key, now in new.items() if self.keys.get(key, now) != now}

    def updated(self) -> "Entry":
        """Return the entry, checked as if its file expected the current result."""
        limits = {key: value for key, value in self.expected.items() if key != "expect"}
        return self if self.result is None else replace(self, problem=self._problem_with(self.result, limits))


def change_text(before: float, now: float) -> str:
    """Return the relative change of a number in percent as text; if ``before`` is 0, the difference."""
    return f"{100.0 * (now - before) / abs(before):+.3g} %" if before else f"{now - before:+.3g}"


def entries_from(data: Mapping[str, Any], where: str = "regression file") -> list[Entry]:
    """Return the queries of a regression file with their expected results.

    Raises:
        InvalidParameterError: An entry is not valid; the message names file, entry and key.
    """
    for key in data:
        if key != "bound":
            raise InvalidParameterError(
                f"{where}: {key}", data[key], "omitted", "a regression file has entries [[bound]] only"
            )
    entries = data.get("bound")
    if not isinstance(entries, list) or not entries:
        raise InvalidParameterError(f"{where}: bound", entries, "a list of entries ([[bound]] in TOML)")
    read = [_entry_from(entry, where, i + 1) for i, entry in enumerate(entries)]
    (name, count), *_ = Counter(entry.name for entry in read).most_common(1)
    if count > 1:
        raise InvalidParameterError(f"{where}: name", name, "unique")
    return read


def _entry_from(entry: Any, file: str, number: int) -> Entry:
    where = f"{file}: entry {number}"
    keys = spec.with_unique_keys(entry, where)
    name = keys.get("name", f"entry {number}")
    label = f"{where} ({name})" if isinstance(keys.get("name"), str) else where
    try:
        query = spec.check_entry(keys, ("name", *EXPECTED))
        expected = _expectations_from(keys)
        spec.composition_from(keys, query)
        spec.target_from(keys, query)
    except InvalidParameterError as error:
        raise_within(error, label)
    except PrivprojError as error:
        raise InvalidParameterError(label, name, "a valid entry", str(error)) from None
    return Entry(file, name, query, keys, label, expected)


def _expectations_from(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an entry of a regression file that specify its expected result."""
    if "expect" not in keys and "at_most" not in keys:
        raise InvalidParameterError("expect", "nothing", "a number", "give expect, at_most or both")
    if "rtol" in keys and "expect" not in keys:
        raise InvalidParameterError("rtol", keys["rtol"], "omitted without expect", "at_most has no tolerance")
    if keys.get("status", PINS[0]) not in PINS:
        raise InvalidParameterError("status", keys["status"], " or ".join(PINS))
    return {key: kind.check(key, keys[key]) for key, kind in EXPECTED.items() if key in keys}
