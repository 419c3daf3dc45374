"""The stable door for scripts: one dotted name, and parameters that may have the names of the papers."""

import math
from collections.abc import Callable
from typing import Any

from privproj.accounting.question import FOUND, ask_by_name
from privproj.accounting.spec import TARGETS, target_from
from privproj.errors import InvalidParameter, unknown_name
from privproj.mechanisms import Mechanism, Sketch, Wishart
from privproj.mechanisms.registry import mechanism_named
from privproj.result import Result
from privproj.runs import RunOptions
from privproj.validation import real

OTHER_NAMES = {"Gamma": "gamma", "n_eig": "eigenvalues", "rho": "alignment"}
"""Other names of parameters, as the papers write them, and the names used here."""

RECIPROCALS = {"mu": "noise_multiplier", "nu": "gamma"}
"""Names that stand for one over a parameter, and that parameter."""


def evaluate(quantity: str, **parameters: object) -> Result:
    """Evaluate ``mechanism.bound.quantity`` by its dotted name; this is the stable door for scripts.

    Args:
        quantity: A dotted name, for instance ``m2.rank-free.delta``. Four names have parameters of their own:
            ``sketch.rdp`` at an ``order`` is the Renyi divergence of that order; ``wishart.early.epsilon`` and
            ``wishart.early.delta`` with ``t``, ``eta``, ``R`` and, if given, ``c`` are the early theorem at these
            values; ``wishart.preprocess.gain`` with ``gamma`` and ``beta`` is what preprocessing adds to the alignment.
        **parameters: Those of the mechanism, of the run and of the target; numbers may be given as text. ``mu`` may
            stand for ``noise_multiplier = 1/mu`` and ``nu`` for ``gamma = 1/nu``; ``Gamma``, ``n_eig`` and ``rho`` are
            other names of ``gamma``, ``eigenvalues`` and ``alignment``.

    Returns:
        The result of the query of that name.

    Raises:
        InvalidParameter: The name is unknown, a parameter is missing, unknown or given twice, or a value is outside its
            domain.
        Refused: The bound proves nothing for this mechanism and run.
        NotConverged: A quadrature or a search did not reach its accuracy.
        PrecisionLimit: A composition cannot tell so small a delta from its rounding.

    >>> from privproj import evaluate
    >>> round(evaluate("m2.rank-free.delta", dim=64, rank=4, mu=1, epsilon=1).value, 6)
    0.000156
    """
    given = {name: _parse_number(value) for name, value in parameters.items()}
    special = SPECIAL.get((quantity, "order" in given or "t" in given))
    if special is not None:
        return special(quantity, given)
    mechanism_name, bound, query = _split_name(quantity)
    for name in (name for name in FOUND.get(query, ()) if name in given):
        raise InvalidParameter(name, given[name], f"no {name}: it is what {query} finds")
    asked = target_from(given, query)
    run = {name: given[name] for name in RunOptions.__annotations__ if name in given}
    own = {name: value for name, value in given.items() if name not in {**asked, **run}}
    mechanism = _build_mechanism(mechanism_named(mechanism_name), quantity, own, (*asked, *RunOptions.__annotations__))
    return TARGETS[query][0](mechanism, bound=bound, **asked, **run)


def _build_mechanism(kind: type[Mechanism], quantity: str, given: dict[str, Any], others: tuple[str, ...] = ()) -> Any:
    """The mechanism of this type with these parameters, each under any of its names, but once."""
    plain: dict[str, Any] = {}
    for name, value in given.items():
        own = RECIPROCALS.get(name) or OTHER_NAMES.get(name, name)
        if own in plain:
            raise InvalidParameter(name, value, f"{own} under one of its names, once")
        if name in RECIPROCALS:
            value = 1.0 / real(name, value, f"a ratio {name} from 1e-12 to 1e+12", 1e-12, 1e12)
        plain[own] = value
    for name in plain:
        if name not in kind.__dataclass_fields__:
            known = (*kind.__dataclass_fields__, *OTHER_NAMES, *RECIPROCALS, *others)
            raise unknown_name(name, plain[name], f"a parameter of {quantity}", known, word=name)
    return kind(**plain)


def _pop_numbers(quantity: str, given: dict[str, Any], *names: str) -> list[float]:
    """The values of these parameters as floats; they are removed from ``given``."""
    for name in names:
        if name not in given:
            raise InvalidParameter(name, "nothing", f"the parameter {name} of {quantity}")
    return [real(name, given.pop(name), "a number", -1e300, 1e300) for name in names]


def _renyi_divergence_at_order(quantity: str, given: dict[str, Any]) -> Result:
    """Answer ``sketch.rdp`` with an ``order``: the Renyi divergence of the secret sketch at that order, in nats."""
    (order,) = _pop_numbers(quantity, given, "order")
    mechanism = _build_mechanism(Sketch, quantity, given)
    question = ask_by_name(mechanism, "rdp", {})
    question.check()
    top = mechanism.gamma_of_matrices
    if not 1.0 < order < top:
        raise InvalidParameter("order", order, f"an order above 1 and below gamma={top:g}")
    return question.result("renyi divergence", question.only.bound.representation(mechanism).divergence(order), None)  # pyright: ignore


def _early_bound_at_values(quantity: str, given: dict[str, Any]) -> Result:
    """Answer ``wishart.early.epsilon`` and ``.delta`` with given ``t``, ``eta`` and ``R`` (C11)."""
    from privproj.mechanisms.wishart.early import SPECTRAL_CONSTANT, early_bound_at

    c = _pop_numbers(quantity, given, "c")[0] if "c" in given else SPECTRAL_CONSTANT
    t, eta, radius = _pop_numbers(quantity, given, "t", "eta", "R")
    mechanism = _build_mechanism(Wishart, quantity, given)
    question = ask_by_name(mechanism, "early", {})
    question.check()
    epsilon, log_delta = early_bound_at(mechanism, t, eta, radius, c)
    asked = quantity.rsplit(".", 1)[1]
    value = epsilon if asked == "epsilon" else math.exp(log_delta)
    fields = {"epsilon": epsilon, "delta": math.exp(log_delta), "log10_delta": log_delta / math.log(10.0)}
    return question.result(asked, value, None, numerics={"t": t, "eta": eta, "R": radius, "c": c}, **fields)


def _gain_of_preprocessing(quantity: str, given: dict[str, Any]) -> Result:
    """Answer ``wishart.preprocess.gain``: what preprocessing adds to the alignment; ``beta`` must be added to delta."""
    from privproj.diagnostics.alignment import preprocessing_gain

    gamma, beta = _pop_numbers(quantity, given, "gamma", "beta")
    mechanism = _build_mechanism(Wishart, quantity, {"rank": 1, **given})
    dim, _, misalignment = mechanism.shape
    value = preprocessing_gain(misalignment, gamma, dim, beta)
    question = ask_by_name(mechanism, None, {})
    note = f"add beta={beta:g} to delta, and normalise the vector again after the noise"
    source = "arXiv 2601.21719, Lemma 10, with its condition corrected"
    return question.result("gain", value, value, upper=None, side="lower bound", warnings=(note,), source=source)


SPECIAL: dict[tuple[str, bool], Callable[[str, dict[str, Any]], Result]] = {
    ("sketch.rdp", True): _renyi_divergence_at_order,
    ("wishart.early.epsilon", True): _early_bound_at_values,
    ("wishart.early.delta", True): _early_bound_at_values,
    ("wishart.preprocess.gain", False): _gain_of_preprocessing,
}
"""Who answers quantities with parameters of their own, by name and by whether an ``order`` or a ``t`` is given."""


def _split_name(quantity: str) -> tuple[str, str, str]:
    """The three parts of ``mechanism.bound.quantity``; raises :class:`InvalidParameter` for anything else."""
    parts = tuple(quantity.split("."))
    if len(parts) != 3 or parts[2] not in TARGETS:
        expected = "mechanism.bound.quantity, the last of them"
        raise unknown_name("quantity", quantity, expected, TARGETS, word=parts[-1])
    return parts


def _parse_number(value: object) -> object:
    """The number that a text says; every other value as it is."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
