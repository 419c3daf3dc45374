"""``privproj remaining``: what a budget still allows after the phases of a run file."""

import click

from privproj.schedule import Schedule, from_data

from . import render
from .files import read
from .options import option, with_options
from .run import file_argument

HELP = r"""How much of a budget a run file has spent, and how many more steps fit.

Phases with `planned = true` have not happened yet: for each, how many of its steps fit and whether all do. Without any,
the last phase is taken as the pattern of what may follow.

\b
Example:
  privproj remaining run.toml --epsilon 3 --delta 1e-5
"""


def run(file: str, epsilon: float, delta: float, json: bool) -> int:
    schedule = from_data(read(file), file)
    spent = schedule.done.epsilon(delta=delta).value if any(not p.planned for p in schedule.phases) else 0.0
    planned = [phase for phase in schedule.phases if phase.planned] or [schedule.phases[-1]]
    rows = [row(schedule, phase, epsilon, delta) for phase in planned]
    shown = {"epsilon_spent": spent, "epsilon": epsilon, "delta": delta, "phases": rows}
    if json:
        click.echo(render.as_json(shown))
    else:
        click.echo(f"spent: epsilon {render.rounded(float(spent or 0.0))} of {epsilon:g} at delta {delta:g}")
        for entry in rows:
            would = "" if entry["would_exceed"] is None else ", all of it would exceed the budget"
            would = would if entry["would_exceed"] else ", all of it fits" if would else ""
            click.echo(f"  {entry['phase']}: {entry['more_steps']} more steps fit{would}")
    return 0 if all(entry["more_steps"] and not entry["would_exceed"] for entry in rows) else 4


def row(schedule: Schedule, phase, epsilon: float, delta: float) -> dict:  # noqa: ANN001
    """How many more steps like this phase's fit, and whether a planned phase fits as a whole."""
    more = schedule.more_steps(phase, epsilon=epsilon, delta=delta)
    steps = phase.question.run.steps
    return {"phase": phase.name, "more_steps": more, "would_exceed": more < steps if phase.planned else None}


command = with_options(
    [
        file_argument(),
        option("--epsilon", "The budget's epsilon.", metavar="E", required=True),
        option("--delta", "The budget's delta.", metavar="D", required=True),
        option("--json", "JSON instead of text.", is_flag=True),
    ],
    run,
    name="remaining",
    help=HELP,
    short_help="How many more steps a budget allows.",
)
