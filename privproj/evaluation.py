"""The stable door for scripts: one dotted name and the parameters of the reference vectors."""

from privproj import accountant, calibration
from privproj.bounds import registry
from privproj.errors import InvalidParameter
from privproj.mechanisms import Mechanism, real
from privproj.result import Result
from privproj.runs import RunOptions

TARGETS = {
    "epsilon": (accountant.epsilon, ("delta",)),
    "delta": (accountant.delta, ("epsilon",)),
    "sigma": (calibration.sigma, ("epsilon", "delta")),
    "rank": (calibration.rank, ("epsilon", "delta")),
    "steps": (calibration.steps, ("epsilon", "delta")),
    "rate": (calibration.rate, ("epsilon", "delta")),
    "misalignment": (calibration.misalignment, ("epsilon", "delta")),
}
RUN_PARAMETERS = tuple(RunOptions.__annotations__)


def evaluate(quantity: str, **parameters: object) -> Result:
    """Evaluate ``mechanism.bound.quantity``: ``evaluate("m2.rank-free.delta", dim=64, rank=4, mu=1, epsilon=8)``.

    Parameters are those of the mechanism (``mu`` may stand for ``noise_multiplier = 1/mu``), of the run
    and of the target; numbers may be given as text. Raises :class:`InvalidParameter` for an unknown name.
    """
    mechanism_name, bound, target = split_name(quantity)
    call, wanted = TARGETS[target]
    given = {name: number(value) for name, value in parameters.items()}
    if "mu" in given:
        given["noise_multiplier"] = 1.0 / real("mu", given.pop("mu"), "a ratio mu from 1e-12 to 1e+12", 1e-12, 1e12)
    outside = {name: given.pop(name) for name in (*wanted, *RUN_PARAMETERS) if name in given}
    kind = mechanism_named(mechanism_name)
    for name in given:
        if name not in kind.__dataclass_fields__:
            known = ", ".join((*kind.__dataclass_fields__, "mu", *wanted, *RUN_PARAMETERS))
            raise InvalidParameter(name, given[name], f"a parameter of {quantity}: {known}")
    for name in wanted:
        if name not in outside:
            raise InvalidParameter(name, None, f"the parameter {name} of {quantity}")
    return call(kind(**given), bound=bound, **outside)  # pyright: ignore


def split_name(quantity: str) -> tuple[str, str, str]:
    """``mechanism.bound.quantity`` in its three parts."""
    parts = tuple(quantity.split("."))
    if len(parts) != 3 or parts[2] not in TARGETS:
        raise InvalidParameter("quantity", quantity, "mechanism.bound.quantity ending in " + ", ".join(TARGETS))
    return parts


def mechanism_named(name: str) -> type[Mechanism]:
    """The mechanism type of this name."""
    kinds = {bound.mechanism.name: bound.mechanism for bound in registry()}
    if name not in kinds:
        raise InvalidParameter("mechanism", name, "one of " + ", ".join(kinds))
    return kinds[name]


def number(value: object) -> object:
    """Text that is a number as that number, everything else as it is."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
