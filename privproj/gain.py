"""What a bound gains: the same question by plainer accounting."""

from dataclasses import replace
from typing import Any

from privproj.accountant import delta, epsilon
from privproj.calibration import sigma
from privproj.errors import InvalidParameter, Unanswered
from privproj.mechanisms import M2, Mechanism
from privproj.result import Result
from privproj.runs import RunOptions

ASKS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "epsilon": (epsilon, ("delta",)),
    "delta": (delta, ("epsilon",)),
    "sigma": (sigma, ("epsilon", "delta")),
}


YARDSTICKS = {
    "m1": (("published operator norm", "operator-norm", None),),
    "sketch-public": (("operator norm", "operator-norm", None),),
    "wishart": (("published", "quantile", None),),
}
"""What other mechanisms are measured against: label, bound, split of delta."""


def gain(result: Result, mechanism: Mechanism, run: RunOptions) -> list[tuple[str, float]]:
    """The same epsilon, delta or noise multiplier by plainer accounting, as ``(label, value)`` rows.

    The published bound of M2 needs the rank of the change; where none is given it gets the most the shape allows.
    """
    if result.quantity not in ASKS:
        return []
    setting: Any = mechanism
    rivals = YARDSTICKS.get(mechanism.name, ()) if result.run["sampling_rate"] == 1.0 else ()
    if isinstance(mechanism, M2):
        setting = replace(mechanism, change_rank=mechanism.change_rank or mechanism.largest_rank)
        rivals = yardsticks(result, setting.change_rank or 1)
    ask, targets = ASKS[result.quantity]
    target = {name: getattr(result, name) for name in targets}
    rows = []
    for label, bound, split in rivals:
        try:
            value = ask(setting, bound=bound, **target, **{**run, "split": split}).value
        except (Unanswered, InvalidParameter):
            continue
        if value is not None and bound != result.bound:
            rows.append((label, float(value)))
    return rows


def yardsticks(result: Result, k: int) -> tuple[tuple[str, str, str | None], ...]:
    """What the gain of a projection bound is measured against: label, bound, split of delta."""
    label = f"published (k={k})"
    single = result.run["steps"] == 1 and result.run["sampling_rate"] == 1.0
    published = (label, "beta-tail", None) if single else (label, "good-event", "even")
    return ("plain Gaussian", "gaussian", None), published
