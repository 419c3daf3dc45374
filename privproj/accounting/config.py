"""Build and evaluate queries from named values in a file or a script.

The values describe the mechanism, the bound, the run and the target.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from privproj.accounting import calibration
from privproj.accounting.calibration import require_unset
from privproj.accounting.lower_bounds import with_alternatives
from privproj.accounting.query import (
    SOLVED_FOR,
    Composition,
    build_result,
    composition_of,
    delta,
    epsilon,
    solve_delta,
    solve_epsilon,
)
from privproj.errors import InvalidParameterError, unknown_name
from privproj.mechanisms import Mechanism, Sketch, Wishart
from privproj.mechanisms.registry import mechanism_named
from privproj.numerics.interval import Enclosure
from privproj.parameters import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    Kind,
    is_printable,
    parameters_from,
    parameters_of,
    quoted,
    real,
)
from privproj.result import Result, Side
from privproj.run import RUN_PARAMETERS, RunOptions, run_from
from privproj.targets import TARGET_PARAMETERS, target_from, target_names

# public function of every quantity
QUERIES: dict[str, Callable[..., Result]] = {
    "epsilon": epsilon,
    "delta": delta,
    **{name: getattr(calibration, name) for name in SOLVED_FOR},
}

# function that evaluates a composition at a target, for some quantities
SOLVERS: dict[str, Callable[[Any, Any], Result]] = {
    "epsilon": solve_epsilon,
    "delta": solve_delta,
    "sigma": calibration.solve_sigma,
}

# training algorithms that are accounted as the (subsampled) Gaussian mechanism for every rank
ALIASES: dict[str, str] = {"dp-sgd": "gaussian", "prism": "gaussian", "dp-lora-fa": "gaussian"}

# types of keys, without those of mechanisms
KINDS: dict[str, Kind] = {
    **{name: declared.kind for name, declared in {**RUN_PARAMETERS, **TARGET_PARAMETERS}.items()},
    **dict.fromkeys(("name", "query", "mechanism", "bound", "status"), TEXT),
    **dict.fromkeys(("expect", "rtol", "at_most"), NUMBER),
    "bound_version": WHOLE,
    "planned": TRUTH,
}


def with_unique_keys(entry: Any, where: str) -> dict[str, Any]:
    """Return a table of a file with hyphens in its keys replaced by underscores.

    Raises:
        InvalidParameterError: The entry is not a table, or has a key in both spellings.
    """
    if not isinstance(entry, Mapping):
        raise InvalidParameterError(where, entry, "a table of keys")
    keys: dict[str, Any] = {}
    for key, value in entry.items():
        name = str(key).replace("-", "_")
        if name in keys:
            raise InvalidParameterError(f"{where}: {name}", value, f"given once, as {name} or as {key}")
        keys[name] = value
    return keys


def mechanism_type_of(entry: Mapping[str, Any]) -> type[Mechanism]:
    """Return the mechanism class that the key ``mechanism`` of a table in a file names.

    Raises:
        InvalidParameterError: The table names no mechanism, or an unknown one.
        UnsupportedError: The name is a published method whose privacy claim is refuted.
    """
    if "mechanism" not in entry:
        raise InvalidParameterError("mechanism", "nothing", "a mechanism", "for example mechanism = 'm2'")
    name: str = check_type("mechanism", entry["mechanism"], TEXT)
    return mechanism_named(ALIASES.get(name, name))


def keys_of(mechanism: type[Mechanism], others: tuple[str, ...], query: str = "") -> dict[str, Kind]:
    """Return the allowed keys of a query in a file, with the type of each value.

    They are the parameters of the mechanism, the run and the target, without the quantity that ``query`` computes.
    """
    of_mechanism = {declared.key or name: declared.kind for name, declared in parameters_of(mechanism).items()}
    plain = (*RUN_PARAMETERS, *(target_names(query) if query else ()), *others)
    kinds = {**of_mechanism, **{name: KINDS[name] for name in plain}}
    return {name: kind for name, kind in kinds.items() if name not in SOLVED_FOR.get(query, ())}


def check_type(name: str, value: Any, kind: Kind) -> Any:
    """Raise an error unless the value of a parameter has the type ``kind``; otherwise return it."""
    if not kind.fits(value):
        actual = f"the text {quoted(value)}" if isinstance(value, str) else _cut(value)
        is_number = kind.rule.get("type") in ("integer", "number") and str(value).strip()[:1].isdigit()
        raise InvalidParameterError(name, actual, kind.description, "write the number without quotes" * is_number)
    if not is_printable(value):
        raise InvalidParameterError(name, quoted(value), "printable text without line breaks")
    return value


def _cut(value: Any) -> Any:
    return str(value)[:80] if isinstance(value, str | list | Mapping) else value


def check_keys(entry: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Raise an error if a table of a file has an unknown key or a value of the wrong type."""
    for name, value in entry.items():
        if name not in kinds:
            raise unknown_name(name[:80], _cut(value), "key", kinds, word=name[:80])
        check_type(name, value, kinds[name])


def check_entry(entry: Mapping[str, Any], others: tuple[str, ...]) -> str:
    """Check the keys of a query in a file, and return the name of the quantity to compute.

    The quantity is epsilon by default. ``others`` are further allowed keys.
    """
    query = check_type("query", entry.get("query", "epsilon"), TEXT)
    if query not in QUERIES:
        raise unknown_name("query", query, "query", QUERIES)
    for name in {query, *SOLVED_FOR.get(query, ())} & set(entry):
        raise InvalidParameterError(name, _cut(entry[name]), "omitted", f"the query {query} computes it")
    check_keys(entry, keys_of(mechanism_type_of(entry), ("query", "mechanism", "bound", *others), query))
    return query


def mechanism_bound_and_run(entry: Mapping[str, Any], query: str = "") -> tuple[Mechanism, str | None, RunOptions]:
    """Return the mechanism, the name of the bound, and the run of a query in a file.

    The keys of ``entry`` must have been checked by :func:`check_entry`.
    """
    kind, run = mechanism_type_of(entry), run_from(entry, query)
    return kind(**parameters_from(kind, entry)), entry.get("bound"), run


def composition_from(entry: Mapping[str, Any], query: str = "") -> Composition:
    """Return the mechanism and run of a query in a file, ready for evaluation.

    The keys of ``entry`` must have been checked by :func:`check_entry`.
    """
    return composition_of(*mechanism_bound_and_run(entry, query))


def evaluate_entry(query: str, entry: Mapping[str, Any]) -> Result:
    """Evaluate a query of a file, whose keys must have been checked by :func:`check_entry`."""
    if query not in SOLVERS:
        mechanism, bound, run = mechanism_bound_and_run(entry, query)
        requested = {name: entry[name] for name in target_names(query) if name in entry}
        return QUERIES[query](mechanism, bound=bound, **requested, **run)
    composition, target, solve = composition_from(entry, query), target_from(entry, query), SOLVERS[query]
    if query == "sigma":
        require_unset(composition.only.mechanism, "noise_multiplier", query)
        return solve(composition, target)
    return with_alternatives(composition, solve(composition, target), lambda other: solve(other, target))


# --- one dotted name ------------------------------------------------------------------------------


# names of parameters in the papers, and the names here
OTHER_NAMES = {"Gamma": "gamma", "n_eig": "eigenvalues", "rho": "alignment"}

RECIPROCALS = {"mu": "noise_multiplier", "nu": "gamma"}  # reciprocals of parameters


def evaluate(quantity: str, **parameters: object) -> Result:
    """Evaluate a query by its dotted name ``mechanism.bound.quantity``.

    Args:
        quantity: A dotted name, for instance ``m2.rank-free.delta``. Four names have special parameters. ``sketch.rdp``
            with an ``order`` is the Renyi divergence of that order. ``wishart.early.epsilon`` and
            ``wishart.early.delta`` evaluate the bound ``early`` at given values of its free parameters ``t``, ``eta``,
            ``R`` and optionally ``c`` instead of the optimal ones (C11). ``wishart.preprocess.gain`` with ``gamma`` and
            ``beta`` is a lower bound of how much the cosine of two vectors increases when the same random vector is
            added to both (:func:`privproj.mechanisms.wishart.alignment.preprocessing_gain`).
        **parameters: The parameters of the mechanism, of the run and of the target; numbers may be given as text. The
            names in the papers are accepted: ``mu`` for ``noise_multiplier = 1/mu``, ``nu`` for ``gamma = 1/nu``, and
            ``Gamma``, ``n_eig`` and ``rho`` for ``gamma``, ``eigenvalues`` and ``alignment``.

    Returns:
        The result of the query of that name.

    Raises:
        InvalidParameterError: The name is unknown, a parameter is missing, unknown or given twice, or a value is
            outside its domain.
        UnsupportedError: The bound does not support this mechanism and run.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: Delta is below the rounding error of a composition.

    >>> from privproj import evaluate
    >>> round(evaluate("m2.rank-free.delta", dim=64, rank=4, mu=1, epsilon=1).value, 6)
    0.000156
    """
    values = {name: _parse_number(value) for name, value in parameters.items()}
    special = SPECIAL.get((quantity, "order" in values or "t" in values))
    if special is not None:
        return special(quantity, values)
    mechanism_name, bound, query = _split_name(quantity)
    requested = {name: values[name] for name in target_names(query) if name in values}
    target_from(requested, query)
    run = {name: values[name] for name in RunOptions.__annotations__ if name in values}
    of_mechanism = {name: value for name, value in values.items() if name not in {**requested, **run}}
    mechanism = _build_mechanism(
        mechanism_named(mechanism_name), quantity, of_mechanism, (*requested, *RunOptions.__annotations__)
    )
    return QUERIES[query](mechanism, bound=bound, **requested, **run)


def _build_mechanism(kind: type[Mechanism], quantity: str, values: dict[str, Any], others: tuple[str, ...] = ()) -> Any:
    """Return a mechanism from parameters, which may have the names used in papers."""
    plain: dict[str, Any] = {}
    names_of: dict[str, str] = {}
    for name, value in values.items():
        field = RECIPROCALS.get(name) or OTHER_NAMES.get(name, name)
        if field in plain:
            raise InvalidParameterError(field, f"both {names_of[field]} and {name}", "given once")
        names_of[field] = name
        if name in RECIPROCALS:
            value = 1.0 / real(name, value, "a number from 1e-12 to 1e+12", 1e-12, 1e12)
        plain[field] = value
    for name in plain:
        if name not in kind.__dataclass_fields__:
            names = (*kind.__dataclass_fields__, *OTHER_NAMES, *RECIPROCALS, *others)
            raise unknown_name(name, plain[name], f"parameter of {quantity}", names, word=name)
    return kind(**plain)


def _pop_numbers(quantity: str, values: dict[str, Any], *names: str) -> list[float]:
    for name in names:
        if name not in values:
            raise InvalidParameterError(name, "nothing", "a number", f"{quantity} needs it")
    return [real(name, values.pop(name), "a number", -1e300, 1e300) for name in names]


def _renyi_divergence_at_order(quantity: str, values: dict[str, Any]) -> Result:
    """Evaluate the Renyi divergence of the secret sketch at a given order, in nats."""
    (order,) = _pop_numbers(quantity, values, "order")
    mechanism = _build_mechanism(Sketch, quantity, values)
    query = composition_of(mechanism, "rdp", {})
    query.check()
    top = mechanism.gamma_of_matrices
    if not 1.0 < order < top:
        raise InvalidParameterError("order", order, f"above 1 and below gamma = {top:g}")
    return build_result(query, "renyi divergence", query.only.bound.representation(mechanism).divergence(order))  # pyright: ignore


def _early_bound_at_values(quantity: str, values: dict[str, Any]) -> Result:
    """Evaluate the bound ``early`` of the Wishart mechanism at given thresholds (C11)."""
    from privproj.mechanisms.wishart.early import SPECTRAL_CONSTANT, early_bound_at

    c = _pop_numbers(quantity, values, "c")[0] if "c" in values else SPECTRAL_CONSTANT
    t, eta, radius = _pop_numbers(quantity, values, "t", "eta", "R")
    mechanism = _build_mechanism(Wishart, quantity, values)
    query = composition_of(mechanism, "early", {})
    query.check()
    # The bound holds for outputs whose inner products with both neighboring vectors exceed t, and whose norm is at most
    # R (both scaled by the degrees of freedom). t + eta is a threshold for the probability of all other outputs.
    epsilon, log_delta = early_bound_at(mechanism, t, eta, radius, c)
    requested = quantity.rsplit(".", 1)[1]
    value = epsilon if requested == "epsilon" else math.exp(log_delta)
    fields: Any = {"epsilon": epsilon, "delta": math.exp(log_delta), "log10_delta": log_delta / math.log(10.0)}
    return build_result(query, requested, value, numerics={"t": t, "eta": eta, "R": radius, "c": c}, **fields)


def _gain_of_preprocessing(quantity: str, values: dict[str, Any]) -> Result:
    """Return a lower bound of how much preprocessing increases the alignment of two vectors.

    The alignment is the cosine of the angle between the vectors. The bound fails with a probability of at most
    ``beta``, which must be added to delta.
    """
    from privproj.mechanisms.wishart.alignment import preprocessing_gain

    gamma, beta = _pop_numbers(quantity, values, "gamma", "beta")
    mechanism = _build_mechanism(Wishart, quantity, {"rank": 1, **values})
    dim, _, misalignment = mechanism.shape
    value = preprocessing_gain(misalignment, gamma, dim, beta)
    query = composition_of(mechanism, None, {})
    note = f"Add beta={beta:g} to delta, and normalize the vector again after adding the noise."
    source = "arXiv 2601.21719, Lemma 10, with its condition corrected"
    interval = Enclosure(value, math.inf)
    return build_result(query, "gain", value, interval, side=Side.LOWER, warnings=(note,), source=source)


# functions of quantities with special parameters, by name and by whether ``order`` or ``t`` is given
SPECIAL: dict[tuple[str, bool], Callable[[str, dict[str, Any]], Result]] = {
    ("sketch.rdp", True): _renyi_divergence_at_order,
    ("wishart.early.epsilon", True): _early_bound_at_values,
    ("wishart.early.delta", True): _early_bound_at_values,
    ("wishart.preprocess.gain", False): _gain_of_preprocessing,
}


EXAMPLE_NAME = "for example m2.rank-free.delta"  # of a quantity


def _split_name(quantity: str) -> tuple[str, str, str]:
    """Return the mechanism, bound and quantity of a name such as ``m2.rank-free.delta``."""
    parts = tuple(quantity.split("."))
    if len(parts) != 3 or parts[2] not in QUERIES:
        if len(parts) == 3:
            raise unknown_name("quantity", quantity, "quantity", QUERIES, word=parts[-1])
        raise InvalidParameterError(
            "quantity", quoted(quantity), "a name of the form mechanism.bound.quantity", EXAMPLE_NAME
        )
    return parts


def _parse_number(value: object) -> object:
    """Return a text as a float if it is a number; return other values unchanged."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
