"""Entries of files: every key is known, of its type, given once and not contradicted, as on the command line."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_args

from privproj.accounting.at_least import with_alternatives
from privproj.accounting.calibration import require_unset
from privproj.accounting.evaluate import FOUND, SOLVERS, TARGETS, target_names
from privproj.accounting.question import Question, answer, ask_by_name
from privproj.bounds import mechanism_named
from privproj.errors import InvalidParameter, unknown_name
from privproj.mechanisms import Layer, Mechanism
from privproj.records.strict_json import quoted
from privproj.result import Result
from privproj.runs import BATCH_KEYS, BATCH_OPTIONS, run_options_from_batches
from privproj.runs.targets import RISKS, delta_target, epsilon_target, privacy_or_risk_target
from privproj.validation import is_printable, privacy_epsilon

RUN_KEYS = (
    "steps", "sampling_rate", "sampling", *BATCH_OPTIONS, "relation", "group_size", "discretization", "composer",
    "split", "public_size",
)  # fmt: skip
"""Keys of an entry that describe the run."""

FROM_BATCHES = ("steps", "sampling_rate", "sampling", *BATCH_OPTIONS)
"""Keys that :func:`privproj.runs.run_options_from_batches` checks and passes on, or finds from the sizes."""

ALIASES: dict[str, str] = {"dp-sgd": "gaussian", "prism": "gaussian", "dp-lora-fa": "gaussian"}
"""Algorithms that are a (subsampled) Gaussian mechanism whatever their ranks are, so that no rank improves epsilon."""

# The types of keys, as messages call them.
WHOLE = "a whole number"
NUMBER = "a number"
TEXT = "text"
TRUTH = "true or false"
LAYERS = "a layer DxR, DxRxN or DxRxN@SHARE, or a list of them"
SHARE = "even, optimal or a number"
TABLE = "a table of keys"

TYPES = {
    "steps": WHOLE, "group_size": WHOLE, "batch_size": WHOLE, "dataset_size": WHOLE,
    "batches": WHOLE, "batches_per_record": WHOLE, "max_batch_size": WHOLE,
    "sampling_rate": NUMBER, "discretization": NUMBER, "epochs": NUMBER, "split": SHARE,
    "advantage": NUMBER, "tpr": NUMBER, "fpr": NUMBER,
    "epsilon": NUMBER, "delta": NUMBER, "log10_delta": NUMBER, "expect": NUMBER, "rtol": NUMBER, "at_most": NUMBER,
    "sampling": TEXT, "relation": TEXT, "composer": TEXT, "clipping": TEXT,
    "name": TEXT, "query": TEXT, "mechanism": TEXT, "bound": TEXT, "status": TEXT, "planned": TRUTH, "layer": LAYERS,
    "public_size": TRUTH, "event": TABLE,
}  # fmt: skip
"""The type of every key, as messages call it, but for the numbers and truth values of a mechanism."""


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


@cache
def _parameters_of(kind: type[Mechanism]) -> dict[str, str]:
    """The keys that are parameters of a mechanism, and their types; ``layers`` are given under the key ``layer``."""
    found = {}
    for field in fields(kind):
        kinds = get_args(field.type) or (field.type,)
        name = "layer" if field.name == "layers" else field.name
        found[name] = TYPES.get(name) or (TRUTH if bool in kinds else WHOLE if int in kinds else NUMBER)
    return found


def keys_of(kind: type[Mechanism], others: tuple[str, ...], query: str = "") -> dict[str, str]:
    """Every key that an entry about this mechanism may have, and its type, without what the query finds."""
    plain = (*RUN_KEYS, *BATCH_KEYS, *(target_names(query) if query else ()), *others)
    known = {**_parameters_of(kind), **{name: TYPES[name] for name in plain}}
    return {name: words for name, words in known.items() if name not in FOUND.get(query, ())}


def check_type(name: str, value: Any, words: str) -> Any:
    """The value if it is of the type, unconverted; raises :class:`InvalidParameter` for a value of another type."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        WHOLE: real and value == value // 1,
        NUMBER: real,
        TEXT: isinstance(value, str),
        TRUTH: isinstance(value, bool),
        TABLE: isinstance(value, Mapping),
        SHARE: real or value in ("even", "optimal"),
        LAYERS: isinstance(value, str)
        or (isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)),
    }
    if not fits[words]:
        raise InvalidParameter(name, repr(value)[:80] if isinstance(value, str) else value, words)
    if not is_printable(value):
        raise InvalidParameter(name, quoted(value), "text that can be printed on one line")
    return value


def check_keys(given: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """Raise :class:`InvalidParameter` for a key that is not known, and for a value of another type."""
    for name, value in given.items():
        if name not in known:
            raise unknown_name(name, value, "one of the keys", known, word=name)
        check_type(name, value, known[name])


def parameters_from(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the mechanism of an entry whose keys were checked."""
    own = {name: given[name] for name in _parameters_of(mechanism_type_of(given)) if name in given}
    if "layer" in own:
        texts = own.pop("layer")
        own["layers"] = tuple(map(Layer.parse, [texts] if isinstance(texts, str) else texts))
    return own


def mechanism_bound_and_run(given: Mapping[str, Any], query: str = "") -> tuple[Mechanism, str | None, dict[str, Any]]:
    """Mechanism, name of the bound and run of an entry whose keys were checked; what the query finds is missing."""
    kind, own = mechanism_type_of(given), parameters_from(given)
    run = {name: given[name] for name in RUN_KEYS if name in given and name not in FROM_BATCHES}
    run |= run_options_from_batches(given, {"steps": "steps", "rate": "sampling_rate"}.get(query, ""))
    return kind(**own), given.get("bound"), run


def question_from(given: Mapping[str, Any], query: str = "") -> Question:
    """The question that an entry puts, whose keys were checked."""
    mechanism, bound, run = mechanism_bound_and_run(given, query)
    return ask_by_name(mechanism, bound, run)  # pyright: ignore[reportArgumentType]


def target_from(given: Mapping[str, Any], query: str) -> dict[str, Any]:
    """The targets of a query by name; raises :class:`InvalidParameter` for one missing, doubled or out of range."""
    found = {name: given[name] for name in target_names(query) if name in given}
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
