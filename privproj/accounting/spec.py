"""The one reader of questions: keys in words become mechanism, bound, run and target, whoever was given them.

Every key of a file is known, of its kind, given once and not contradicted, as on the command line.
"""

from collections.abc import Callable, Mapping
from typing import Any

from privproj.accounting import calibration, queries
from privproj.accounting.at_least import with_alternatives
from privproj.accounting.calibration import require_unset
from privproj.accounting.question import FOUND, Question, answer, ask_by_name
from privproj.errors import InvalidParameter, unknown_name
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import mechanism_named
from privproj.result import Result
from privproj.runs import RUN_PARAMETERS, RunOptions, run_from
from privproj.runs.targets import RISKS, TARGET_PARAMETERS, delta_target, epsilon_target, privacy_or_risk_target
from privproj.validation import (
    NUMBER,
    TABLE,
    TEXT,
    TRUTH,
    WHOLE,
    Kind,
    is_printable,
    parameters_from,
    parameters_of,
    privacy_epsilon,
    quoted,
)

TARGETS = {
    "epsilon": (queries.epsilon, ("delta",)),
    "delta": (queries.delta, ("epsilon",)),
    "sigma": (calibration.sigma, ("epsilon", "delta")),
    "rank": (calibration.rank, ("epsilon", "delta")),
    "steps": (calibration.steps, ("epsilon", "delta")),
    "rate": (calibration.rate, ("epsilon", "delta")),
    "misalignment": (calibration.misalignment, ("epsilon", "delta")),
}
"""For every quantity: the function that answers it, and the targets at which it is asked."""

SOLVERS: dict[str, Callable[[Any, Any], Result]] = {
    "epsilon": queries.solve_epsilon,
    "delta": queries.solve_delta,
    "sigma": calibration.solve_sigma,
}
"""For some quantities: the function that answers a question at a target, without the truth from below beside it."""

ALIASES: dict[str, str] = {"dp-sgd": "gaussian", "prism": "gaussian", "dp-lora-fa": "gaussian"}
"""Algorithms that are a (subsampled) Gaussian mechanism whatever their ranks are, so that no rank improves epsilon."""

KINDS: dict[str, Kind] = {
    **{name: found.kind for name, found in {**RUN_PARAMETERS, **TARGET_PARAMETERS}.items()},
    **dict.fromkeys(("name", "query", "mechanism", "bound", "status"), TEXT),
    **dict.fromkeys(("expect", "rtol", "at_most"), NUMBER),
    "bound_version": WHOLE,
    "planned": TRUTH,
    "event": TABLE,
}
"""What the values of every key may be, but for the parameters of a mechanism."""


def _target_names(query: str) -> tuple[str, ...]:
    """The names under which the targets of a query may be given: ``log10_delta`` wherever ``delta`` is, and risks."""
    wanted = TARGETS[query][1]
    return (*wanted, *(("log10_delta",) if "delta" in wanted else ()), *(RISKS if query == "sigma" else ()))


def with_unique_keys(entry: Any, where: str) -> dict[str, Any]:
    """The keys of an entry in one spelling, ``noise-multiplier`` as ``noise_multiplier``.

    Raises :class:`InvalidParameter` for an entry that is no table and for a key in both spellings.
    """
    if not isinstance(entry, Mapping):
        raise InvalidParameter(where, entry, "a table of keys")
    found: dict[str, Any] = {}
    for key, value in entry.items():
        name = str(key).replace("-", "_")
        if name in found:
            raise InvalidParameter(f"{where}: {name}", value, f"one spelling of a key, {name} or {key}, once")
        found[name] = value
    return found


def mechanism_type_of(given: Mapping[str, Any]) -> type[Mechanism]:
    """The type of the mechanism that an entry names; raises :class:`InvalidParameter` if it names none."""
    if "mechanism" not in given:
        raise InvalidParameter("mechanism", "nothing", "a mechanism")
    name: str = check_type("mechanism", given["mechanism"], TEXT)
    return mechanism_named(ALIASES.get(name, name))


def keys_of(mechanism: type[Mechanism], others: tuple[str, ...], query: str = "") -> dict[str, Kind]:
    """Every key that an entry about this mechanism may have, and its kind, without what the query finds."""
    own = {found.key or name: found.kind for name, found in parameters_of(mechanism).items()}
    plain = (*RUN_PARAMETERS, *(_target_names(query) if query else ()), *others)
    known = {**own, **{name: KINDS[name] for name in plain}}
    return {name: kind for name, kind in known.items() if name not in FOUND.get(query, ())}


def check_type(name: str, value: Any, kind: Kind) -> Any:
    """The value if it is of the kind, unconverted; raises :class:`InvalidParameter` for a value of another type."""
    if not kind.fits(value):
        raise InvalidParameter(name, repr(value)[:80] if isinstance(value, str) else _cut(value), kind.words)
    if not is_printable(value):
        raise InvalidParameter(name, quoted(value), "text that can be printed on one line")
    return value


def _cut(value: Any) -> Any:
    """A value as a message repeats it: text and what holds values are cut."""
    return str(value)[:80] if isinstance(value, str | list | Mapping) else value


def check_keys(given: Mapping[str, Any], known: Mapping[str, Kind]) -> None:
    """Raise :class:`InvalidParameter` for a key that is not known, and for a value of another type."""
    for name, value in given.items():
        if name not in known:
            raise unknown_name(name[:80], _cut(value), "one of the keys", known, word=name[:80])
        check_type(name, value, known[name])


def mechanism_bound_and_run(given: Mapping[str, Any], query: str = "") -> tuple[Mechanism, str | None, RunOptions]:
    """Mechanism, name of the bound and run of an entry whose keys were checked; what the query finds is missing."""
    kind, run = mechanism_type_of(given), run_from(given, query)
    return kind(**parameters_from(kind, given)), given.get("bound"), run


def question_from(given: Mapping[str, Any], query: str = "") -> Question:
    """The question that an entry puts, whose keys were checked."""
    mechanism, bound, run = mechanism_bound_and_run(given, query)
    return ask_by_name(mechanism, bound, run)


def target_from(given: Mapping[str, Any], query: str) -> dict[str, Any]:
    """The targets of a query by name; raises :class:`InvalidParameter` for one missing, doubled or out of range."""
    found = {name: given[name] for name in _target_names(query) if name in given}
    if query == "sigma":
        aim_from(given, query)
        return found
    if "epsilon" in TARGETS[query][1]:
        privacy_epsilon(found.get("epsilon"), zero=True)
    if "delta" in TARGETS[query][1]:
        delta_target(found.get("delta"), found.get("log10_delta"))
    return found


def aim_from(given: Mapping[str, Any], query: str) -> Any:
    """The target of a query for epsilon, delta or sigma, as its solver takes it; raises as :func:`target_from` does."""
    if query == "delta":
        return epsilon_target(given.get("epsilon"))  # pyright: ignore[reportArgumentType]
    if query == "epsilon":
        return delta_target(given.get("delta"), given.get("log10_delta"))
    goal: Any = (given.get(name) for name in ("epsilon", "delta", "log10_delta"))
    return privacy_or_risk_target(*goal, **{name: given.get(name) for name in RISKS})


def answer_entry(query: str, given: Mapping[str, Any]) -> Result:
    """The answer to the query that an entry puts, whose keys were checked.

    The truth from below is not computed, as no file keeps it.
    """
    if query not in SOLVERS:
        mechanism, bound, run = mechanism_bound_and_run(given, query)
        return TARGETS[query][0](mechanism, bound=bound, **target_from(given, query), **run)
    question, target, solve = question_from(given, query), aim_from(given, query), SOLVERS[query]
    if query == "sigma":
        require_unset(question.only.mechanism, "noise_multiplier", query)
        return answer(question, query, solve, target)
    return with_alternatives(question, answer(question, query, solve, target), solve, target)
