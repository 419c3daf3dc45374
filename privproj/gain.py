"""What a bound gains: the same question by plainer accounting."""

from dataclasses import replace

from privproj.accountant import delta, epsilon
from privproj.calibration import sigma
from privproj.errors import Unanswered
from privproj.mechanisms import M2, Mechanism
from privproj.result import Result
from privproj.runs import RunOptions


def yardsticks(result: Result) -> tuple[tuple[str, str], ...]:
    """What the gain of a projection bound is measured against: label and bound."""
    published = "beta-tail" if result.run["steps"] == 1 and result.run["sampling_rate"] == 1.0 else "good-event"
    return ("plain Gaussian", "gaussian"), ("published", published)


def gain(result: Result, mechanism: Mechanism, run: RunOptions) -> list[tuple[str, float]]:
    """The same epsilon, delta or noise multiplier by plainer accounting, as ``(label, value)`` rows.

    The published bound needs the rank of the change; where none is given it gets the most the shape allows.
    """
    if not isinstance(mechanism, M2) or result.quantity not in ("epsilon", "delta", "sigma"):
        return []
    run = {**run, "split": "even"}
    setting = replace(mechanism, change_rank=mechanism.change_rank or mechanism.largest_rank)
    asks = {
        "epsilon": lambda bound: epsilon(setting, delta=result.delta or 0.0, bound=bound, **run),
        "delta": lambda bound: delta(setting, epsilon=result.epsilon or 0.0, bound=bound, **run),
        "sigma": lambda bound: sigma(
            setting, epsilon=result.epsilon or 0.0, delta=result.delta or 0.0, bound=bound, **run
        ),
    }
    rows = []
    for label, bound in yardsticks(result):
        try:
            value = asks[result.quantity](bound).value
        except Unanswered:
            continue
        if value is not None and bound != result.bound:
            rows.append((label, float(value)))
    return rows
