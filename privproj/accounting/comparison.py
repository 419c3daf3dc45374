"""Evaluate one query with all bounds of a mechanism, and with baseline bounds.

A baseline is a published or less specific bound, such as plain Gaussian accounting without amplification.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from privproj.accounting.calibration import solve_sigma
from privproj.accounting.config import SOLVERS
from privproj.accounting.phase import Phase, check_mechanism, phase_for
from privproj.accounting.query import composition_of, composition_of_phase
from privproj.errors import InvalidParameterError, PrivprojError, QueryError
from privproj.mechanisms import M2, Mechanism
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.registry import Baseline, baselines_of, bounds_of
from privproj.parameters import arguments_by_name
from privproj.result import Result, Rows, Status
from privproj.run import RunOptions
from privproj.sampling import scheme_of
from privproj.targets import target_from


@dataclass(frozen=True, repr=False)
class Comparison:
    """A bound with its result in :func:`privproj.compare`, or why it has none.

    Attributes:
        bound: The bound, with its name, status and source.
        result: The result of this bound; None if the bound does not support the query. The result has no value if the
            bound supports the query but the evaluation failed.
        reason: Why there is no value, in one sentence; empty if there is one.
        short: The reason in a few words, as the command line prints it.

    >>> from privproj import Gaussian, compare
    >>> row = compare(Gaussian(noise_multiplier=1.0), delta=1e-5)[0]
    >>> row.bound.name, round(row.result.value, 4), row.reason
    ('analytic', 4.3772, '')
    """

    bound: Bound
    result: Result | None
    reason: str = ""
    short: str = ""

    def __repr__(self) -> str:
        return f"<{self.bound.name}: {self.reason or (self.result and self.result.one_line)}>"

    def as_row(self) -> dict[str, object]:
        """Return the bound and its result as plain values, by the names of table columns."""
        result = self.result
        if result is None:
            return {"bound": self.bound.name, "status": str(self.bound.status), "reason": self.reason}
        facts = {"bound": result.bound, result.quantity: result.value}
        facts |= {"status": str(result.status), "side": str(result.side)}
        return {**facts, "data_assumptions": "; ".join(result.data_assumptions), "reason": self.reason}


@arguments_by_name("compare(mechanism, delta=1e-5)")
def compare(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    **run: Unpack[RunOptions],
) -> "Rows[Comparison]":
    """Evaluate epsilon or delta with every bound of a mechanism, and sort the results.

    Args:
        mechanism: The mechanism with its noise multiplier, its rank and its assumptions on the data.
        delta: The delta at which epsilon is evaluated, above 0 and below 1; give either this or ``epsilon``.
        epsilon: The epsilon at which delta is evaluated, from 0 to 1e9.
        **run: The run, as :class:`privproj.run.RunOptions` lists it; by default one release on the whole dataset.

    Returns:
        A row for each bound, in :class:`privproj.accounting.Rows`. Proved bounds without an assumption on the data come
        first, then conditional ones, each group in increasing order of the value. Bounds without a value come last,
        with their reasons.

    Raises:
        InvalidParameterError: Both or none of ``delta`` and ``epsilon`` are given, or a value is outside its domain.

    >>> from privproj import M2, compare
    >>> rows = compare(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)
    >>> [(row.bound.name, round(row.result.value, 4)) for row in rows if row.result][:2]
    [('rank-free', 0.7382), ('mixture-rdp', 0.8536)]
    """
    if (delta is None) == (epsilon is None):
        raise InvalidParameterError("delta", delta, "omitted if epsilon is given" if delta is not None else "a delta")
    quantity = "delta" if delta is None else "epsilon"
    target = target_from({"delta": delta, "epsilon": epsilon}, quantity)
    check_mechanism(mechanism)
    rows = []
    for bound in bounds_of(type(mechanism)):
        phase = phase_for(mechanism, bound, run)
        others = {name: None for name in ("split", "tau") if name not in bound.supports}
        rows.append(_compare_one(phase.with_run(**others), quantity, target))
    return Rows(sorted(rows, key=_comparison_order))


def _compare_one(phase: Phase, quantity: str, target: Any) -> Comparison:
    try:
        return Comparison(phase.bound, SOLVERS[quantity](composition_of_phase(phase), target))
    except PrivprojError as error:
        return Comparison(phase.bound, getattr(error, "result", None), str(error), _short_reason(phase.bound, error))


def _short_reason(bound: Bound, error: PrivprojError) -> str:
    if isinstance(error, InvalidParameterError) and error.is_missing:
        return f"needs --{error.name.replace('_', '-')}"
    message = (
        str(error).removeprefix(f"{bound.name}: ").removeprefix(f"the bound {bound.name}").removeprefix("this bound")
    )
    # before the first period, colon, semicolon or comma that is not in parentheses
    reason = re.split(r"[.:;,] (?![^(]*\))", message.strip().removesuffix("."), maxsplit=1)[0]
    kind = {"precision_limit": "precision limit: ", "not_converged": "not converged: "}
    if f"{bound.name} is {bound.status}" in str(error):
        reason = f"{bound.status}, not a guarantee; see `privproj bounds {bound.mechanism.name}.{bound.name}`"
    return kind.get(getattr(error, "outcome", ""), "") + reason.removeprefix("is ")


def _comparison_order(row: Comparison) -> tuple[int, float]:
    if row.result is None or row.result.value is None:
        return 2, 0.0
    status = {Status.PROVED: 0, Status.CONDITIONAL: 1}.get(row.result.status, 3)
    return status, float(row.result.log10_delta or 0.0) if (row.result.quantity == "delta") else float(row.result.value)


def compare_with_baselines(
    result: Result, mechanism: Mechanism, run: RunOptions, dp_sgd_noise: float | None = None
) -> list[tuple[str, float]]:
    """Return labels and values of baseline bounds for a query, the least specific one first.

    Args:
        result: The result of an epsilon, delta or sigma query; other queries have no baselines.
        mechanism: The mechanism of the query.
        run: The run of the query.
        dp_sgd_noise: The noise multiplier that DP-SGD needs for the same target, if it is known.
    """
    # If the target is a risk and the run is composed, the published bound is omitted. It would compose the run for each
    # point of its curve, which takes 30 s in total.
    # The published bound of M2 needs the rank of the difference between neighboring sums. If the mechanism assumes
    # none, the largest rank that the shape allows is used.
    if result.quantity not in SOLVERS:
        return []
    setting: Any = mechanism
    limit = ""
    if isinstance(mechanism, M2):
        setting = replace(mechanism, change_rank=mechanism.change_rank or mechanism.largest_rank)
        is_from_dim = mechanism.dim is not None and mechanism.columns is None and mechanism.change_rank is None
        limit = f"{mechanism.dim} (the largest possible rank)" if is_from_dim else f"{setting.change_rank}"
    # relative accuracy, enough for four digits
    solve = partial(solve_sigma, roughly=True) if result.quantity == "sigma" else SOLVERS[result.quantity]
    target = result.risk or {"epsilon": result.epsilon, "delta": result.delta}
    rows = []
    for bound, baseline in _baselines_of(mechanism, result.run):
        if result.risk and baseline.runs == "composed":
            continue
        try:
            value = dp_sgd_noise if result.quantity == "sigma" and bound == "gaussian" else None
            if not value:
                query = composition_of(setting, bound, {**run, "split": baseline.split, "tau": None})
                value = solve(query, target_from(target, result.quantity)).value
        except (QueryError, InvalidParameterError):
            continue
        if value is not None and bound != result.bound:
            rows.append((baseline.label.format(k=limit), float(value)))
    return rows


def _baselines_of(mechanism: Mechanism, run: dict[str, object]) -> list[tuple[str, Baseline]]:
    unsampled = run["sampling_rate"] == 1.0 and not scheme_of(run["sampling"]).picks_batches
    single = unsampled and run["steps"] == 1
    fits = {"single": single, "composed": not single, "unsampled": unsampled, "any": True}
    baselines = reversed(baselines_of(mechanism.name).items())
    return [(name, baseline) for name, baseline in baselines if fits[baseline.runs]]
