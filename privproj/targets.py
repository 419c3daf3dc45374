"""Define the targets of queries, such as a delta at which epsilon is computed.

A delta may be far below the range of doubles, so its logarithm is stored.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privproj.errors import InvalidParameterError
from privproj.parameters import NUMBER, Parameter, privacy_epsilon, probability, real

# The target parameters by name
TARGET_PARAMETERS = {
    "epsilon": Parameter(NUMBER, "Epsilon of the (epsilon, delta) guarantee.", "E"),
    "delta": Parameter(NUMBER, "Delta of the (epsilon, delta) guarantee.", "D"),
    "log10_delta": Parameter(
        NUMBER, "Decimal logarithm of delta, instead of --delta, for example -1000.", "L", is_rare=True
    ),
    "advantage": Parameter(
        NUMBER, "Instead of epsilon and delta: largest TPR - FPR of any membership inference attack.", "A"
    ),
    "tpr": Parameter(
        NUMBER,
        "Instead of epsilon and delta: largest true positive rate of any attack at false positive rate --fpr.",
        "B",
        is_rare=True,
    ),
    "fpr": Parameter(NUMBER, "False positive rate at which --tpr limits the true positive rate.", "A", is_rare=True),
}


@dataclass(frozen=True)
class Target:
    """A target delta of a query, with its natural and decimal logarithm.

    ``delta`` is None below the range of doubles. ``by_log`` is True if the user gave ``log10_delta``.
    """

    delta: float | None
    log_delta: float
    log10_delta: float
    by_log: bool

    def fields(self) -> dict[str, Any]:
        """Return the fields of :class:`privproj.Result` that state the target."""
        names = ("epsilon", "delta", "log10_delta")
        return {name: None if x == -math.inf else x for name, x in vars(self).items() if name in names}


@dataclass(frozen=True)
class EpsilonTarget:
    """The epsilon at which a delta is evaluated."""

    epsilon: float

    def fields(self) -> dict[str, Any]:
        """Return the fields of :class:`privproj.Result` that state the target."""
        return {"epsilon": self.epsilon}


@dataclass(frozen=True)
class RiskTarget:
    """The risk of a membership inference attack, as the target of a query.

    ``value`` is the true positive rate at the false positive rate ``fpr``, or the advantage if ``fpr`` is None.
    """

    value: float
    fpr: float | None = None

    def parameters(self) -> dict[str, float]:
        """Return the attack risk by name: ``advantage``, or ``tpr`` and ``fpr``."""
        return {"advantage": self.value} if self.fpr is None else {"tpr": self.value, "fpr": self.fpr}

    def fields(self) -> dict[str, Any]:
        """Return the fields of :class:`privproj.Result` that state the target."""
        return {"risk": self.parameters()}


@dataclass(frozen=True)
class FullTarget(Target):
    """A target epsilon and delta of a query."""

    epsilon: float


AnyTarget = Target | EpsilonTarget | RiskTarget


def epsilon_target(epsilon: float) -> EpsilonTarget:
    """Return the checked epsilon at which a query computes delta, from 0 to 1e9."""
    return EpsilonTarget(privacy_epsilon(epsilon, zero=True))


def slack_target(delta: float) -> Target:
    """Return the target of a Gaussian DP query: its slack ``delta``, from 0 to below 1."""
    slack = real("delta", delta, "a number from 0 to below 1", 0.0, 1.0, open_high=True)
    return delta_target(slack, None) if slack else Target(0.0, -math.inf, -math.inf, by_log=False)


def delta_target(delta: float | None, log10_delta: float | None) -> Target:
    """Return a target delta, which is ``delta`` or ``10^log10_delta``.

    Raises:
        InvalidParameterError: Both or neither are given, or the value is out of range.
    """
    if (delta is None) == (log10_delta is None):
        value = "nothing" if delta is None else delta
        raise InvalidParameterError("delta", value, "omitted if log10_delta is given")
    if delta is not None:
        delta = probability("delta", delta)
        return Target(delta, math.log(delta), math.log10(delta), by_log=False)
    expected = "a number from -1e6 to below 0"
    power = real("log10_delta", log10_delta, expected, -1e6, -1e-300)
    return Target(10.0**power if power > -300.0 else None, power * math.log(10.0), power, by_log=True)


def full_target(epsilon: float, delta: float | None, log10_delta: float | None, *, zero: bool) -> FullTarget:
    """Return a target epsilon, which may be 0 if ``zero`` is True, and a target delta.

    Raises:
        InvalidParameterError: A value is out of range, or not exactly one of ``delta`` and ``log10_delta`` is given.
    """
    at_delta = delta_target(delta, log10_delta)
    return FullTarget(**vars(at_delta), epsilon=privacy_epsilon(epsilon, zero=zero))


TARGETS = ("epsilon", "delta", "log10_delta")  # names of epsilon and delta as targets

RISKS = ("advantage", "tpr", "fpr")  # names of the parts of a risk that can be a target


def risk_target(advantage: float | None, tpr: float | None, fpr: float | None) -> RiskTarget:
    """Return a target attack risk: the advantage, or a true and a false positive rate.

    Raises:
        InvalidParameterError: Both or none are given, a value is out of range, or ``fpr`` is not below ``tpr``.
    """
    if advantage is not None:
        if tpr is not None or fpr is not None:
            raise InvalidParameterError("advantage", advantage, "omitted if tpr or fpr is given")
        return RiskTarget(probability("advantage", advantage))
    for name, value in (("tpr", tpr), ("fpr", fpr)):
        if value is None:
            raise InvalidParameterError(name, "nothing", "a number", "give tpr and fpr together")
    hit, false = probability("tpr", tpr), probability("fpr", fpr)
    if hit <= false:
        raise InvalidParameterError("tpr", hit, f"above fpr = {false:g}, which random guessing reaches")
    return RiskTarget(hit, false)


def privacy_or_risk_target(**values: float | None) -> FullTarget | RiskTarget:
    """Return the target ``(epsilon, delta)``, or a target attack risk, from values by name.

    Raises:
        InvalidParameterError: Both or none are given, or a value is out of range.
    """
    risk = [name for name in RISKS if values.get(name) is not None]
    if not risk:
        if values.get("epsilon") is None:
            raise InvalidParameterError(
                "epsilon", "nothing", "a number", "give epsilon and delta, or advantage, or tpr and fpr"
            )
        return full_target(*map(values.get, TARGETS), zero=False)  # pyright: ignore[reportArgumentType]
    for name in TARGETS:
        if values.get(name) is not None:
            raise InvalidParameterError(
                name, values[name], f"omitted if {' and '.join(risk)} {'is' if len(risk) == 1 else 'are'} given"
            )
    return risk_target(*map(values.get, RISKS))


def target_names(query: str) -> tuple[str, ...]:
    """Return the names of the target parameters of a query."""
    return {"delta": TARGETS[:1], "epsilon": TARGETS[1:], "sigma": (*TARGETS, *RISKS)}.get(query, TARGETS)


def target_from(values: Mapping[str, Any], query: str) -> Any:
    """Return the target of a query from ``values``, the target parameters by name.

    Raises:
        InvalidParameterError: The target is missing, ambiguous or invalid.
    """
    epsilon, delta, log10_delta = (values.get(name) for name in TARGETS)
    if query == "delta":
        return epsilon_target(epsilon)  # pyright: ignore[reportArgumentType]
    if query == "epsilon":
        return delta_target(delta, log10_delta)
    if query == "sigma":
        return privacy_or_risk_target(**values)
    return full_target(epsilon, delta, log10_delta, zero=True)  # pyright: ignore[reportArgumentType]
