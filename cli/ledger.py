"""Implement the commands ``privproj ledger`` and ``privproj remaining``."""

from typing import Any

from privproj.accounting.schedule import Composition, Remaining, remaining
from privproj.assumptions import fixed_schedule
from privproj.errors import InvalidParameterError, QueryError
from privproj.io.files import read_bounded, read_data
from privproj.io.ledger import LARGEST_LEDGER, Account, parse_ledger
from privproj.io.run_file import from_data
from privproj.result import Result, round_outward
from privproj.run import percent

from . import render
from .options import command_with, file_argument, json_option, option, options_from
from .output import write
from .query import EXIT_CODES


@command_with(
    "ledger",
    file_argument(),
    option("--delta", "Failure probability delta.  [default: the ledger's]", metavar="D"),
    json_option(),
)
def ledger_command(file: str, delta: float | None, json: bool) -> int:
    """Print the ledger of a training run: the releases, epsilon so far and of the plan, and which epsilon to report.

    If the run was calibrated, the ledger has a target epsilon and delta; --delta selects another delta.
    `privproj verify FILE` checks the ledger as a document.

    \b
    Example:
      privproj ledger privproj-train/ledger.jsonl
    """
    account, _ = read_started_ledger(file)
    target, delta = account.target or {}, planned_delta(account, delta)
    try:
        summary = overview(account, delta)
    except QueryError as error:
        nothing = {"epsilon": None, "outcome": error.outcome, "reason": str(error)}
        error.result = {"steps": account.spent, "delta": delta, **nothing}
        raise
    summary["target_epsilon"] = target.get("epsilon") if delta == target.get("delta") else None
    budget = account.budget() if account.is_adaptive else None
    write(render.as_json(summary) if json else ledger_text(summary, budget.labels() if budget else {}))
    return 0 if summary["so_far"] is None else EXIT_CODES[summary["so_far"].outcome]


def read_started_ledger(file: str) -> tuple[Account, bytes]:
    """Return the account of a ledger that has a phase, and its content."""
    content = read_bounded(file, "ledger", LARGEST_LEDGER)
    return parse_ledger(content, file).account, content


def planned_delta(account: Account, delta: float | None) -> float:
    """Return the delta of the option, or else the delta of the target of the ledger."""
    if delta is None:
        delta = (account.target or {}).get("delta")
    if delta is None:
        raise InvalidParameterError("--delta", "nothing", "--delta, since the ledger has no target")
    return delta


def overview(account: Account, delta: float) -> dict[str, Any]:
    """Return steps and epsilon, so far and of the whole plan, and which epsilon to report."""
    so_far = account.epsilon(delta) if account.spent else None
    budget = account.budget() if account.is_adaptive else None
    planned = account.explained(account.planned.epsilon(delta))
    return {
        "steps": account.spent,
        "steps_left": account.left,
        "steps_planned": account.planned.spent,
        "delta": delta,
        "epsilon": so_far.value if so_far else 0.0,
        "epsilon_of_plan": planned.as_dict()["value"],
        "quote": budget.report if budget else QUOTE[bool(account.stopped), account.spent > 0],
        "assumes": list(planned.assumes),
        "warnings": list(dict.fromkeys((*(so_far.warnings if so_far else ()), *planned.warnings))),
        "so_far": so_far,
        "planned": planned,
        **(budget.summary() if budget else {}),
    }


# Which epsilon to report, by whether steps are missing (or too many) and whether there is a release.
QUOTE = {
    (False, True): "either: all planned steps were made, so both are one",
    (True, True): "the epsilon of the plan; the one so far only if no output had a part in the decision to stop",
    (True, False): "the epsilon of the plan, once anything is released",
}


def ledger_text(summary: dict[str, Any], budget: dict[str, str]) -> str:
    """Return the summary of a ledger as text, with the labels of its budget."""
    so_far, steps, planned = summary["so_far"], summary["steps"], summary["steps_planned"]
    goal = "" if summary["target_epsilon"] is None else f", target {summary['target_epsilon']:g}"
    parts = {
        "released": f"{steps} steps" + (f" ({percent(steps / planned)} of the plan)" if planned > 0 else ""),
        "left": f"{summary['steps_left']} planned steps",
        "plan": f"epsilon {round_outward(summary['planned'].value)} after all planned steps{goal}",
        **budget,
        "quote": summary["quote"],
        "assumes": summary["assumes"],
        "warning": summary["warnings"],
    }
    first = ["epsilon = 0  (nothing was released)"] if so_far is None else render.result_lines(so_far)
    return "\n".join([*first, *render.labeled(parts)])


# --- a run file ---------------------------------------------------------------------------------------


@command_with(
    "remaining",
    file_argument(),
    *options_from(remaining, "epsilon", "delta"),
    json_option(),
)
def remaining_command(file: str, epsilon: float, delta: float, json: bool) -> int:
    """Print how much of a budget a run file has spent, and how many more steps fit.

    Phases with `planned = true` have not happened yet. Each of them is compared with the budget after all phases that
    are done and all planned phases before it. If no phase is planned, the last phase is the pattern of further steps.

    \b
    Example:
      privproj remaining run.toml --epsilon 3 --delta 1e-5
    """
    schedule = from_data(read_data(file), file)
    summary = {**plan_record(schedule, epsilon, delta), "epsilon": epsilon, "delta": delta}
    write(render.as_json(summary) if json else remaining_text(summary))
    return 0 if summary["fits"] else 4


def plan_record(schedule: Composition, epsilon: float, delta: float) -> dict[str, Any]:
    """Return the spent part of a budget and the steps that each phase may still take, for a plan fixed in advance."""
    rows, of_plan = remaining(schedule, epsilon=epsilon, delta=delta), schedule.epsilon(delta=delta)
    done = schedule.done_phases
    spent = of_plan.value if done == schedule.phases else schedule.done.epsilon(delta=delta).value if done else 0.0
    adapts = any(phase.mechanism.adapts_clip for phase in schedule.phases)
    return record(schedule, rows, of_plan, spent, fixed_schedule(adapts=adapts))


def record(schedule: Composition, rows: list[Remaining], of_plan: Result, spent: Any, assumed: str) -> dict[str, Any]:
    """Return the spent part of a budget, the steps that each phase may still take, and the assumptions."""
    fields = of_plan.as_dict()
    phases = [
        {
            "phase": row.phase.name,
            "more_steps": row.more_steps,
            "unit": "epochs" if row.phase.run.scheme.counts_epochs else "steps",
            "would_exceed": row.would_exceed,
            "after": [phase.name for phase in (*schedule.done_phases, *row.after)],
        }
        for row in rows
    ]
    return {
        "epsilon_spent": spent,
        "epsilon_planned": of_plan.value if any(phase.planned for phase in schedule.phases) else None,
        "fits": all(row.more_steps and not row.would_exceed for row in rows),
        "phases": phases,
        **{name: fields[name] for name in ("bound", "status", "promises", "warnings")},
        "relation": of_plan.run["relation"],
        "assumes": list(dict.fromkeys((assumed, *of_plan.assumes))),
    }


def remaining_text(summary: dict[str, Any], labels: dict[str, str] | None = None) -> str:
    """Return the record as text, with further labeled lines before the phases."""
    of = f"of {summary['epsilon']:g} at delta {summary['delta']:g}"
    lines = [f"spent: epsilon {round_outward(summary['epsilon_spent'])} {of}"]
    if summary["epsilon_planned"] is not None:
        lines.append(f"planned: epsilon {round_outward(summary['epsilon_planned'])} {of}, all phases together")
    lines += render.labeled(labels or {})
    fits = {None: "", True: ", all of it would exceed the budget", False: ", all of it fits"}
    for entry in summary["phases"]:
        after = f" (after {', '.join(entry['after'])})" if entry["after"] else ""
        words = f"{entry['more_steps']} more {entry['unit']} fit{after}{fits[entry['would_exceed']]}"
        lines.append(f"  {entry['phase']}: {words}")
    lines += render.fit_line("  rests on: ", f"{summary['bound']} ({summary['status']}); {summary['relation']}")
    parts = {"promise": summary["promises"], "assumes": summary["assumes"], "warning": summary["warnings"]}
    return "\n".join(lines + render.labeled(parts))


COMMANDS = {"ledger": ledger_command, "remaining": remaining_command}
