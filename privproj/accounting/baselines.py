"""Baselines: the same question by plainer accounting, which shows what a bound gains."""

from dataclasses import replace
from typing import Any

from privproj.accounting.calibration import solve_sigma
from privproj.accounting.queries import delta, epsilon
from privproj.accounting.question import ask_by_name
from privproj.errors import InvalidParameter, Unanswered
from privproj.mechanisms import M2, Mechanism
from privproj.mechanisms.bound import Baseline
from privproj.mechanisms.registry import with_role
from privproj.result import Result
from privproj.runs import RunOptions
from privproj.runs.sampling import scheme_of
from privproj.runs.targets import privacy_or_risk_target


def _rough_sigma(mechanism: Mechanism, *, bound: str, **setting: Any) -> Result:
    """The noise multiplier of a baseline, close enough for the digits that are compared."""
    target: Any = {name: setting.pop(name, None) for name in ("epsilon", "delta", "advantage", "tpr", "fpr")}
    found: Any = setting
    return solve_sigma(
        ask_by_name(mechanism, bound, found), privacy_or_risk_target(log10_delta=None, **target), roughly=True
    )


ASKS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "epsilon": (epsilon, ("delta",)),
    "delta": (delta, ("epsilon",)),
    "sigma": (_rough_sigma, ("epsilon", "delta")),
}
"""The quantities that have baselines: the function that answers each, and the targets at which it is asked."""


def compare_with_baselines(
    result: Result, mechanism: Mechanism, run: RunOptions, dp_sgd_noise: float | None = None
) -> list[tuple[str, float]]:
    """The same epsilon, delta or noise multiplier by plainer accounting: ``(label, value)`` rows, plainest first.

    ``dp_sgd_noise`` is what DP-SGD needs for the same target, where that is known: the plain Gaussian noise multiplier.

    The published bound of M2 needs the rank of the change. Where none is promised, it gets the largest that the shape
    allows. Baselines without an answer, and the bound of the result itself, are left out. So is, where the target is a
    risk, the published bound of a run: it composes the run anew for each point of its curve, half a minute in all.
    """
    if result.quantity not in ASKS:
        return []
    setting: Any = mechanism
    if isinstance(mechanism, M2):
        setting = replace(mechanism, change_rank=mechanism.change_rank or mechanism.largest_rank)
    ask, targets = ASKS[result.quantity]
    target = result.risk or {name: getattr(result, name) for name in targets}
    rows = []
    for bound, baseline in _baselines_of(mechanism, result.run):
        if result.risk and baseline.runs == "composed":
            continue
        try:
            value = dp_sgd_noise if result.quantity == "sigma" and bound == "gaussian" else None
            value = value or ask(setting, bound=bound, **target, **{**run, "split": baseline.split}).value
        except (Unanswered, InvalidParameter):
            continue
        if value is not None and bound != result.bound:
            rows.append((baseline.label.format(k=vars(setting).get("change_rank")), float(value)))
    return rows


def _baselines_of(mechanism: Mechanism, run: dict[str, object]) -> list[tuple[str, Baseline]]:
    """The names and records of the bounds that are baselines for this run, the plainest first."""
    unsampled = run["sampling_rate"] == 1.0 and not scheme_of(run["sampling"]).picks_batches
    single = unsampled and run["steps"] == 1
    fits = {"single": single, "composed": not single, "unsampled": unsampled, "any": True}
    bounds = with_role(type(mechanism), "baseline", *(() if single else ("composed baseline",)))
    return [(bound.name, bound.baseline) for bound in reversed(bounds) if bound.baseline and fits[bound.baseline.runs]]
