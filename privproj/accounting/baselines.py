"""Baselines: the same question by plainer accounting, which shows what a bound gains."""

from dataclasses import replace
from functools import partial
from typing import Any

from privproj.accounting.calibration import solve_sigma
from privproj.accounting.question import ask_by_name
from privproj.accounting.spec import SOLVERS, TARGETS, aim_from
from privproj.errors import InvalidParameter, Unanswered
from privproj.mechanisms import M2, Mechanism
from privproj.mechanisms.bound import Baseline
from privproj.mechanisms.registry import with_role
from privproj.result import Result
from privproj.runs import RunOptions
from privproj.runs.sampling import scheme_of


def compare_with_baselines(
    result: Result, mechanism: Mechanism, run: RunOptions, dp_sgd_noise: float | None = None
) -> list[tuple[str, float]]:
    """The same epsilon, delta or noise multiplier by plainer accounting: ``(label, value)`` rows, plainest first.

    ``dp_sgd_noise`` is what DP-SGD needs for the same target, where that is known: the plain Gaussian noise multiplier.

    The published bound of M2 needs the rank of the change. Where none is promised, it gets the largest that the shape
    allows. Baselines without an answer, and the bound of the result itself, are left out. So is, where the target is a
    risk, the published bound of a run: it composes the run anew for each point of its curve, half a minute in all.
    """
    if result.quantity not in SOLVERS:
        return []
    setting: Any = mechanism
    if isinstance(mechanism, M2):
        setting = replace(mechanism, change_rank=mechanism.change_rank or mechanism.largest_rank)
    # Close enough for the digits that are compared
    solve = partial(solve_sigma, roughly=True) if result.quantity == "sigma" else SOLVERS[result.quantity]
    given = result.risk or {name: getattr(result, name) for name in TARGETS[result.quantity][1]}
    rows = []
    for bound, baseline in _baselines_of(mechanism, result.run):
        if result.risk and baseline.runs == "composed":
            continue
        try:
            value = dp_sgd_noise if result.quantity == "sigma" and bound == "gaussian" else None
            if not value:
                question = ask_by_name(setting, bound, {**run, "split": baseline.split})
                value = solve(question, aim_from(given, result.quantity)).value
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
