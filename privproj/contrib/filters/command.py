"""Implement the command ``privproj filter``, which counts the steps that fit into the budget of a privacy filter."""

from dataclasses import replace
from typing import Any

from privproj_cli import render
from privproj_cli.ledger import record, remaining_text
from privproj_cli.options import command_with, file_argument, json_option, option, options_from
from privproj_cli.output import write

from privproj.accounting.schedule import Remaining, remaining
from privproj.assumptions import Requirement
from privproj.contrib.filters.filter import LARGEST_BUDGET, Filter
from privproj.contrib.filters.ledger import filter_text
from privproj.errors import QueryError, UnsupportedError
from privproj.io.files import read_data
from privproj.io.run_file import from_data
from privproj.result import round_outward


@command_with(
    "filter",
    file_argument(),
    *options_from(remaining, "epsilon", "delta"),
    option("--order", "Order of the filter, fixed in advance.  [default: suits the first phase]", metavar="A"),
    json_option(),
)
def filter_command(file: str, epsilon: float, delta: float, order: float | None, json: bool) -> int:
    """Count the steps of a run file that fit in a budget if later phases depend on earlier outputs.

    The budget is that of a Renyi filter. So the parameters of all phases, completed or with `planned = true`, may
    depend on earlier outputs. The order of the filter is fixed with the budget, before the first release. Without
    --order it is the best order for the first phase.

    \b
    Example:
      privproj filter run.toml --epsilon 3 --delta 1e-5
    """
    schedule = from_data(read_data(file), file)
    first, run = schedule.phases[0], schedule.phases[0].run
    if order is None:
        order = Filter.for_releases(first, epsilon=epsilon, delta=delta).order
    shared: Any = {"order": order, "relation": str(run.relation), "group_size": run.group_size}
    budget, unlimited = Filter(epsilon=epsilon, delta=delta, **shared), Filter(budget=LARGEST_BUDGET, **shared)
    for phase in schedule.done_phases:
        try:
            budget.spend(phase)
        except UnsupportedError as error:
            reason = f"phase {phase.name}: {error}, though it was done: such a filter guarantees nothing"
            raise UnsupportedError(reason) from None
    for phase in schedule.phases:
        unlimited.spend(phase)
    try:
        fixed = schedule.epsilon(delta=delta).value
    except QueryError:
        fixed = None
    plan = replace(unlimited.epsilon(delta), value=unlimited.epsilon_of_spent(delta))
    reported, text = float(budget.epsilon(delta)), filter_text(budget)
    summary: dict[str, Any] = {"filter": budget.parameters(), "epsilon_to_quote": reported}
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
    labels = {
        "filter": f"{text}; name --{text.split(',')[0]} whenever you ask again",
        "quote": f"epsilon {round_outward(reported)}, the whole budget, wherever the run stops",
        "price": "" if fixed is None else f"the same phases as a plan fixed in advance: epsilon {round_outward(fixed)}",
    }
    write(render.as_json(summary) if json else remaining_text(summary, labels))
    return 0 if summary["fits"] else 4
