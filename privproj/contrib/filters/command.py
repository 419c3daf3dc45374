"""Implement ``privproj filter``: the number of steps that fit into a privacy filter's budget."""

from dataclasses import replace
from typing import Any

from privproj_cli import render
from privproj_cli.kinds import read_run_file
from privproj_cli.ledger import record, remaining_text
from privproj_cli.options import command_with, file_argument, json_option, option, options_from, requirements_option
from privproj_cli.output import write

from privproj.accounting.schedule import Remaining, remaining
from privproj.assumptions import Requirement
from privproj.contrib.filters.filter import LARGEST_BUDGET, Filter
from privproj.contrib.filters.ledger import filter_text
from privproj.errors import QueryError, UnsupportedError
from privproj.result import round_outward
from privproj.run import percent


@command_with(
    "filter",
    file_argument(),
    *options_from(remaining, "epsilon", "delta"),
    option(
        "--order", "Renyi order of the filter, fixed in advance.  [default: the best for the first phase]", metavar="A"
    ),
    json_option(),
    requirements_option(),
)
def filter_command(file: str, epsilon: float, delta: float, order: float | None, json: bool, verbose: bool) -> int:
    """Print how many steps of a run file fit in a budget if later phases depend on earlier outputs.

    A Renyi filter enforces the budget. Parameters of completed phases and of phases with `planned = true` may depend on
    earlier outputs. Fix epsilon, delta and the Renyi order before the first release.

    \b
    Example:
      privproj filter run.toml --epsilon 3 --delta 1e-5
    """
    schedule = read_run_file(file)
    first, run = schedule.phases[0], schedule.phases[0].run
    if order is None:
        order = Filter.for_releases(first, epsilon=epsilon, delta=delta).order
    shared: Any = {"order": order, "relation": str(run.relation), "group_size": run.group_size}
    budget, unlimited = Filter(epsilon=epsilon, delta=delta, **shared), Filter(budget=LARGEST_BUDGET, **shared)
    for phase in schedule.done_phases:
        try:
            budget.spend(phase)
        except UnsupportedError:
            at = str(budget.order).removesuffix(".0")
            reason = f"{phase.place} is done but exceeds the budget at order {at}, so the filter has no guarantee"
            remedy = "Pass the epsilon, the delta and the --order that were fixed before the first release"
            raise UnsupportedError(f"{reason}. {remedy}") from None
    for phase in schedule.phases:
        unlimited.spend(phase)
    try:
        fixed = schedule.epsilon(delta=delta).value
    except QueryError:
        fixed = None
    plan = replace(unlimited.epsilon(delta), value=unlimited.epsilon_of_spent(delta))
    reported, text = float(budget.epsilon(delta)), filter_text(budget)
    share = percent(budget.spent / budget.budget)
    summary: dict[str, Any] = {"filter": budget.parameters(), "epsilon_to_report": reported}
    summary["epsilon_of_fixed_plan"] = fixed
    spent = budget.epsilon_of_spent(delta)
    # The steps that the filter allows for every planned phase, after all steps of the planned phases before it.
    planned = tuple(phase for phase in schedule.phases if phase.planned)
    rows, all_fit = list[Remaining](), True
    for i, phase in enumerate(planned or schedule.phases[-1:]):
        rows.append(Remaining(phase, budget.most_steps(phase) if all_fit else 0, planned[:i]))
        all_fit = all_fit and budget.fits(phase)
        if all_fit:
            budget.spend(phase)
    summary |= record(schedule, rows, plan, spent, Requirement.FIXED_FILTER)
    summary |= {"epsilon": epsilon, "delta": delta}
    of_filter = str(budget.order).removesuffix(".0")
    labels = {"report": f"epsilon {round_outward(reported)}, whenever the run stops"}
    if planned:
        labels |= {"planned": f"{percent(unlimited.spent / budget.budget)} of the budget after all phases"}
    labels |= {"order": f"{of_filter}; pass --order {of_filter} in all later queries for this run"}
    if verbose:
        price = "" if fixed is None else f"epsilon {round_outward(fixed)} if the same phases were fixed in advance"
        labels |= {"filter": text, "fixed plan": price}
    target = f"epsilon {epsilon:g} and delta {delta:g}"
    first = f"budget spent = {share}  (Renyi divergence at order {of_filter}, budget {target})"
    write(render.as_json(summary) if json else remaining_text(summary, plan, labels, verbose, first))
    return 0 if summary["fits"] else 4
