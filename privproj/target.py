"""What a question aims at: a delta, or an epsilon and a delta; a delta may lie far below double precision."""

import math
from dataclasses import dataclass, field
from typing import Any

from privproj.errors import InvalidParameter
from privproj.mechanisms import privacy_epsilon, probability, real


@dataclass(frozen=True)
class Target:
    """The delta to be met; ``delta`` is None where only its logarithm is a double, ``by_log`` if that was asked."""

    delta: float | None
    log_delta: float
    log10_delta: float
    by_log: bool = field(default=False, kw_only=True)

    def fields(self) -> dict[str, Any]:
        """The target as fields of a result."""
        return {"delta": self.delta, "log10_delta": self.log10_delta}


@dataclass(frozen=True)
class FullTarget(Target):
    """The ``(epsilon, delta)`` to be met."""

    epsilon: float

    def fields(self) -> dict[str, Any]:
        """The target as fields of a result."""
        return {"epsilon": self.epsilon, **super().fields()}


def target_of(delta: float | None, log10_delta: float | None) -> Target:
    """The target at ``delta`` or ``10^log10_delta``; raises :class:`InvalidParameter` unless exactly one is given."""
    if (delta is None) == (log10_delta is None):
        given = "nothing" if delta is None else delta
        raise InvalidParameter("delta", given, "exactly one of delta and log10_delta")
    if delta is not None:
        found = probability("delta", delta)
        return Target(found, math.log(found), math.log10(found))
    expected = "a log10_delta from -1e6 to below 0"
    power = real("log10_delta", log10_delta, expected, -1e6, -1e-300)
    return Target(10.0**power if power > -300.0 else None, power * math.log(10.0), power, by_log=True)


def full_target(epsilon: float, delta: float | None, log10_delta: float | None, *, zero: bool) -> FullTarget:
    """Both, ``epsilon = 0`` allowed if ``zero``."""
    found = target_of(delta, log10_delta)
    eps = privacy_epsilon(epsilon, zero=zero)
    return FullTarget(found.delta, found.log_delta, found.log10_delta, eps, by_log=found.by_log)
