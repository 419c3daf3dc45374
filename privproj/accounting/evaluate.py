"""The stable door for scripts: one dotted name and the parameters of the reference vectors."""

import math
from collections.abc import Callable
from typing import Any

from privproj.accounting import calibration, queries
from privproj.accounting.question import Question
from privproj.bounds import find_bound, mechanism_named
from privproj.errors import InvalidParameter, unknown_name
from privproj.mechanisms import Mechanism, Sketch, Wishart
from privproj.result import Result
from privproj.runs import Run, RunOptions
from privproj.validation import real

TARGETS = {
    "epsilon": (queries.epsilon, ("delta",)),
    "delta": (queries.delta, ("epsilon",)),
    "sigma": (calibration.sigma, ("epsilon", "delta")),
    "rank": (calibration.rank, ("epsilon", "delta")),
    "steps": (calibration.steps, ("epsilon", "delta")),
    "rate": (calibration.rate, ("epsilon", "delta")),
    "misalignment": (calibration.misalignment, ("epsilon", "delta")),
}
"""Every quantity: who answers it, and what it is asked at."""

FOUND = {
    "sigma": ("noise_multiplier",),
    "rank": ("rank",),
    "misalignment": ("misalignment", "alignment"),
    "steps": ("steps", "epochs"),
    "rate": ("sampling_rate", "batch_size", "dataset_size", "epochs"),
}
"""What a query finds, under each of its names: not to be given."""
RUN_PARAMETERS = tuple(RunOptions.__annotations__)
"""The parameters that describe a run."""

OTHER_NAMES = {"Gamma": "gamma", "n_eig": "eigenvalues", "rho": "alignment"}
"""Other names of parameters, as the papers write them."""

RECIPROCALS = {"mu": "noise_multiplier", "nu": "gamma"}
"""Names that stand for one over a parameter."""


def target_names(query: str) -> tuple[str, ...]:
    """The names under which a query's targets may be given."""
    wanted = TARGETS[query][1]
    return (*wanted, "log10_delta") if "delta" in wanted else wanted


def evaluate(quantity: str, **parameters: object) -> Result:
    """Evaluate ``mechanism.bound.quantity`` by its dotted name: the stable door for scripts.

    Args:
        quantity: For instance ``m2.rank-free.delta``. ``sketch.rdp`` at an ``order`` is the divergence;
            ``wishart.early.epsilon`` and ``.delta`` with ``t``, ``eta`` and ``R`` the bound at these values;
            ``wishart.preprocess.gain`` what pre-processing adds to the alignment.
        **parameters: Those of the mechanism, of the run and of the target; numbers may be given as text. ``mu`` may
            stand for ``noise_multiplier = 1/mu``, ``nu`` for ``gamma = 1/nu``, and ``Gamma``, ``n_eig`` and ``rho`` for
            gamma, eigenvalues and alignment.

    Returns:
        The :class:`Result` of the query of that name.

    Raises:
        InvalidParameter: For an unknown name, and as the query itself does.

    >>> from privproj import evaluate
    >>> round(evaluate("m2.rank-free.delta", dim=64, rank=4, mu=1, epsilon=1).value, 6) > 0.0
    True
    """
    given = {name: _parse_number(value) for name, value in parameters.items()}
    special = SPECIAL.get((quantity, "order" in given or "t" in given))
    if special is not None:
        return special(quantity, given)
    mechanism_name, bound, target = _split_name(quantity)
    call, wanted = TARGETS[target]
    for name in FOUND.get(target, ()):
        if name in given:
            raise InvalidParameter(name, given[name], f"no {name}: it is what {target} finds")
    outside = {name: given.pop(name) for name in (*wanted, *RUN_PARAMETERS) if name in given}
    if "log10_delta" in given and "delta" in wanted and "delta" not in outside:
        outside["log10_delta"] = given.pop("log10_delta")
        wanted = tuple(name for name in wanted if name != "delta")
    for name in wanted:
        if name not in outside:
            raise InvalidParameter(name, None, f"the parameter {name} of {quantity}")
    kind = mechanism_named(mechanism_name)
    return call(_build_mechanism(kind, quantity, given, (*wanted, *RUN_PARAMETERS)), bound=bound, **outside)  # pyright: ignore


def _build_mechanism(kind: type[Mechanism], quantity: str, given: dict[str, Any], others: tuple[str, ...] = ()) -> Any:
    """The mechanism with these parameters, under any of their names."""
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
    """These parameters, removed from ``given``."""
    for name in names:
        if name not in given:
            raise InvalidParameter(name, "nothing", f"the parameter {name} of {quantity}")
    return [real(name, given.pop(name), "a number", -1e300, 1e300) for name in names]


def _renyi_divergence_at_order(quantity: str, given: dict[str, Any]) -> Result:
    """The Renyi divergence of the secret sketch at one order."""
    (order,) = _pop_numbers(quantity, given, "order")
    mechanism = _build_mechanism(Sketch, quantity, given)
    question = Question(mechanism, Run(relation="replace"), find_bound(Sketch, "rdp"))  # pyright: ignore
    question.check()
    top = mechanism.gamma_of_matrices
    if not 1.0 < order < top:
        raise InvalidParameter("order", order, f"an order above 1 and below gamma={top:g}")
    return question.result("renyi divergence", question.bound.representation(mechanism).divergence(order), None)  # pyright: ignore


def _early_bound_at_values(quantity: str, given: dict[str, Any]) -> Result:
    """Theorem 1 of the early version at given ``t``, ``eta``, ``R``."""
    from privproj.bounds.wishart._early import SPECTRAL_CONSTANT, early_bound_at

    c = _pop_numbers(quantity, given, "c")[0] if "c" in given else SPECTRAL_CONSTANT
    t, eta, radius = _pop_numbers(quantity, given, "t", "eta", "R")
    mechanism = _build_mechanism(Wishart, quantity, given)
    question = Question(mechanism, Run(relation="replace"), find_bound(Wishart, "early"))  # pyright: ignore
    question.check()
    epsilon, log_delta = early_bound_at(mechanism, t, eta, radius, c)
    asked = quantity.rsplit(".", 1)[1]
    value = epsilon if asked == "epsilon" else math.exp(log_delta)
    fields = {"epsilon": epsilon, "delta": math.exp(log_delta), "log10_delta": log_delta / math.log(10.0)}
    return question.result(asked, value, None, numerics={"t": t, "eta": eta, "R": radius, "c": c}, **fields)


def _gain_of_preprocessing(quantity: str, given: dict[str, Any]) -> Result:
    """What pre-processing adds to the alignment; ``beta`` must be added to delta."""
    from privproj.diagnostics.alignment import preprocessing_gain

    gamma, beta = _pop_numbers(quantity, given, "gamma", "beta")
    mechanism = _build_mechanism(Wishart, quantity, {"rank": 1, **given})
    dim, _, misalignment = mechanism.shape
    value = preprocessing_gain(misalignment, gamma, dim, beta)
    question = Question(mechanism, Run(relation="replace"), find_bound(Wishart, None))  # pyright: ignore
    note = f"add beta={beta:g} to delta, and normalise the vector again after the noise"
    source = "arXiv 2601.21719, Lemma 10, with its condition corrected"
    return question.result("gain", value, value, upper=None, side="lower bound", warnings=(note,), source=source)


SPECIAL: dict[tuple[str, bool], Callable[[str, dict[str, Any]], Result]] = {
    ("sketch.rdp", True): _renyi_divergence_at_order,
    ("wishart.early.epsilon", True): _early_bound_at_values,
    ("wishart.early.delta", True): _early_bound_at_values,
    ("wishart.preprocess.gain", False): _gain_of_preprocessing,
}
"""Quantities with parameters of their own, by name and by whether an order or a ``t`` is given."""


def _split_name(quantity: str) -> tuple[str, str, str]:
    """``mechanism.bound.quantity`` in its three parts."""
    parts = tuple(quantity.split("."))
    if len(parts) != 3 or parts[2] not in TARGETS:
        expected = "mechanism.bound.quantity, the last of them"
        raise unknown_name("quantity", quantity, expected, TARGETS, word=parts[-1])
    return parts


def _parse_number(value: object) -> object:
    """Text that is a number as that number, everything else as it is."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
