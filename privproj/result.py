"""What the tool answers: a number with its side, its bound, the bound's status and its promises."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = 1
"""Version of the fields of a result as JSON. Contract."""


class Status(StrEnum):
    """What is known of a bound, whatever its value."""

    PROVED = "proved"
    CONDITIONAL = "conditional"
    ASYMPTOTIC = "asymptotic"
    REFUTED = "refuted"


class Outcome(StrEnum):
    """How the evaluation ended, whatever the bound."""

    OK = "ok"
    VACUOUS = "vacuous"
    NOT_CONVERGED = "not_converged"
    PRECISION_LIMIT = "precision_limit"
    REFUSED = "refused"


class Side(StrEnum):
    """Where a value stands to the true quantity of the mechanism under the stated promises; none: it is refuted."""

    UPPER = "upper bound"
    EXACT = "exact"
    LOWER = "lower bound"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One answer.

    ``value`` is the safe end of ``[lower, upper]``, which encloses the exact value of the named bound (``lower`` is
    None where it is not known): ``lower`` says nothing of the mechanism unless ``side`` is exact. ``inf`` says that no
    finite epsilon exists, None that nothing fits. ``mechanism`` and ``run`` hold all parameters; ``numerics`` how the
    value was computed.
    """

    quantity: str
    value: float | int | None
    lower: float | None
    upper: float | None
    side: Side
    mechanism: dict[str, object]
    run: dict[str, object]
    bound: str
    bound_version: int
    status: Status
    promises: tuple[str, ...]
    source: str
    outcome: Outcome
    epsilon: float | None = None
    delta: float | None = None
    log10_delta: float | None = None
    noise_multiplier: float | None = None
    noise_std: float | None = None
    numerics: dict[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """True if the value is a guarantee: evaluated, and by a bound that is one."""
        return self.outcome is Outcome.OK

    @property
    def assumes(self) -> tuple[str, ...]:
        """All that is taken for granted about the program: mechanism first, then run."""
        lists: Any = (self.mechanism.get("assumes", ()), self.run.get("assumes", ()))
        return tuple(dict.fromkeys(words for found in lists for words in found))

    def as_dict(self) -> dict[str, object]:
        """The JSON object of the command line: plain values, None for what is not a finite number."""
        from privproj.version import __version__

        shown = {name: as_plain_value(value) for name, value in vars(self).items()}
        shown["encloses"] = "the true value" if self.side is Side.EXACT else "the value of the named bound"
        if self.outcome not in (Outcome.OK, Outcome.REFUSED):
            shown["value"] = None
        return {**shown, "version": __version__, "schema": SCHEMA}


def as_plain_value(value: object) -> object:
    """``value`` in JSON's types."""
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return [as_plain_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): as_plain_value(item) for key, item in value.items()}
    return value
