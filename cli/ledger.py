"""Implement the commands ``privproj ledger`` and ``privproj remaining``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from privproj.accounting.schedule import Composition, Remaining, remaining
from privproj.assumptions import fixed_schedule
from privproj.errors import InvalidParameterError, QueryError
from privproj.io.files import read_bounded
from privproj.io.ledger import LARGEST_LEDGER, Account, parse_ledger
from privproj.result import Result, round_outward
from privproj.run import percent

from . import render
from .kinds import LEDGER, expecting, read_run_file
from .options import command_with, file_argument, json_option, option, options_from, requirements_option
from .output import write
from .query import EXIT_CODES


@command_with(
    "ledger",
    file_argument(),
    option("--delta", "Delta at which epsilon is computed.  [default: the delta of the ledger's target]", metavar="D"),
    json_option(),
    requirements_option(),
)
def ledger_command(file: str, delta: float | None, json: bool, verbose: bool) -> int:
    """Print the epsilon of a training run so far, the epsilon of its plan, and which of them to report.

    If the run was calibrated, the ledger has a target epsilon and delta; --delta selects another delta.
    `privproj verify FILE` checks the ledger.

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
    write(render.as_json(summary) if json else ledger_text(summary, budget.labels() if budget else {}, verbose))
    return 0 if summary["so_far"] is None else EXIT_CODES[summary["so_far"].outcome]


def read_started_ledger(file: str) -> tuple[Account, bytes]:
    """Return the account (phases and counts of releases) and the bytes of a ledger.

    A ledger without a phase is an error.
    """
    content = read_bounded(file, most=LARGEST_LEDGER)
    with expecting(LEDGER, file), ledger_named_file():
        return parse_ledger(content, file).account, content


@contextmanager
def ledger_named_file() -> Iterator[None]:
    """Replace the name "ledger" in an error by ``FILE``, the argument of the command."""
    try:
        yield
    except InvalidParameterError as error:
        if error.name != "ledger":
            raise
        raise InvalidParameterError("FILE", error.value, error.expected, error.remedy) from None


def planned_delta(account: Account, delta: float | None) -> float:
    """Return ``delta``; if it is None, the target delta of the ledger."""
    if delta is None:
        delta = (account.target or {}).get("delta")
    if delta is None:
        raise InvalidParameterError("--delta", "nothing", "a delta", "the ledger has no target: try --delta 1e-6")
    return delta


def overview(account: Account, delta: float) -> dict[str, Any]:
    """Return steps, epsilon so far and planned epsilon of a run, and which to report."""
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
        "report": budget.report if budget else report_text(account, so_far, planned),
        "requirements": list(planned.requirements),
        "warnings": list(dict.fromkeys((*(so_far.warnings if so_far else ()), *planned.warnings))),
        "so_far": so_far,
        "planned": planned,
        **(budget.summary() if budget else {}),
    }


def report_text(account: Account, so_far: Result | None, planned: Result) -> str:
    """Return which epsilon of a training run to report, with the reason."""
    of_plan = round_outward(planned.value or 0.0)
    if so_far is None:
        return f"epsilon {of_plan} of the whole plan, from the first release on"
    if not account.stopped:
        return f"epsilon {of_plan} (all planned steps completed)"
    number = round_outward(so_far.value or 0.0)
    return f"epsilon {of_plan} of the whole plan (epsilon {number} only if no output influenced the decision to stop)"


def ledger_text(summary: dict[str, Any], budget: dict[str, str], verbose: bool = False) -> str:
    """Return the output of ``privproj ledger`` as text.

    ``budget`` has further lines by label.
    """
    so_far, steps, planned = summary["so_far"], summary["steps"], summary["steps_planned"]
    goal = "" if summary["target_epsilon"] is None else f", target epsilon {summary['target_epsilon']:g}"
    share = f" ({percent(steps / planned)})" if planned > 0 else ""
    of_plan = f"epsilon {round_outward(summary['planned'].value)} after all planned steps"
    parts = {
        "released": f"{steps} of {planned} planned steps{share}{goal}",
        "planned": "" if steps == planned else of_plan,
        **budget,
        "report": summary["report"],
        "requires": render.requirement_lines(summary["requirements"], verbose),
    }
    first = ["epsilon = 0  (nothing was released)"] if so_far is None else render.result_lines(so_far)
    return "\n".join([*first, *render.label_lines(parts), *render.warning_lines(summary["warnings"])])


# --- a run file ---------------------------------------------------------------------------------------


@command_with(
    "remaining",
    file_argument(),
    *options_from(remaining, "epsilon", "delta"),
    json_option(),
    requirements_option(),
)
def remaining_command(file: str, epsilon: float, delta: float, json: bool, verbose: bool) -> int:
    """Print how much of a budget a run file has spent, and how many more steps fit.

    Phases with `planned = true` have not happened yet. All other phases are completed. privproj adds the planned phases
    to the completed ones in the order of the file, and compares each sum with the budget. If no phase is planned,
    privproj prints how many more steps like those of the last phase fit.

    \b
    Example:
      privproj remaining run.toml --epsilon 3 --delta 1e-5
    """
    schedule = read_run_file(file)
    summary, of_plan = plan_record(schedule, epsilon, delta)
    summary |= {"epsilon": epsilon, "delta": delta, "warnings": [*summary["warnings"], *exceeded(summary, epsilon)]}
    write(render.as_json(summary) if json else remaining_text(summary, of_plan, verbose=verbose))
    return 0 if summary["fits"] else 4


def exceeded(summary: dict[str, Any], epsilon: float) -> list[str]:
    """Return a warning if completed or planned phases exceed the budget ``epsilon``."""
    if summary["epsilon_spent"] > epsilon:
        return ["The completed phases exceed the budget. Release nothing more from these records, or raise the budget."]
    if any(entry["would_exceed"] for entry in summary["phases"]):
        return ["The planned phases exceed the budget. Plan fewer steps or more noise, or raise the budget."]
    return []


def plan_record(schedule: Composition, epsilon: float, delta: float) -> tuple[dict[str, Any], Result]:
    """Return the data of ``privproj remaining``, and the epsilon of all phases."""
    rows, of_plan = remaining(schedule, epsilon=epsilon, delta=delta), schedule.epsilon(delta=delta)
    done = schedule.done_phases
    spent = of_plan.value if done == schedule.phases else schedule.done.epsilon(delta=delta).value if done else 0.0
    adapts = any(phase.mechanism.adapts_clip for phase in schedule.phases)
    return record(schedule, rows, of_plan, spent, fixed_schedule(adapts=adapts)), of_plan


def record(schedule: Composition, rows: list[Remaining], of_plan: Result, spent: Any, assumed: str) -> dict[str, Any]:
    """Return the spent epsilon, the steps that still fit, and requirements, as data.

    ``rows`` has the steps that fit in each phase. ``of_plan`` is the result of all phases, and ``spent`` the epsilon of
    the completed phases. ``assumed`` is a requirement on the schedule.
    """
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
        **{name: fields[name] for name in ("bound", "status", "data_assumptions", "warnings")},
        "relation": of_plan.run["relation"],
        "requirements": list(dict.fromkeys((assumed, *of_plan.requirements))),
    }


def remaining_text(
    summary: dict[str, Any],
    plan: Result,
    labels: dict[str, str] | None = None,
    verbose: bool = False,
    first: str | None = None,
) -> str:
    """Return the output of ``privproj remaining`` as text.

    ``summary`` is the data of :func:`record`. ``labels`` are further lines before the phases, and ``first`` replaces
    the first line.
    """
    spent, budget = (
        round_outward(summary["epsilon_spent"]),
        f"{plan.side}, budget {summary['epsilon']:g}, delta = {summary['delta']:g}",
    )
    lines = [
        first or f"epsilon spent = {spent}  ({budget})",
        *render.label_lines({"assumes": summary["data_assumptions"]}),
    ]
    if summary["epsilon_planned"] is not None and "planned" not in (labels or {}):
        lines.append(f"  planned:   epsilon {round_outward(summary['epsilon_planned'])} after all phases")
    lines += render.label_lines(labels or {})
    fits = {None: "", True: "; the planned steps exceed the budget", False: "; the planned steps fit"}
    for entry in summary["phases"]:
        if entry["would_exceed"] is None:  # the last phase, as the pattern of further steps
            after = " after all phases of the file"
        else:
            after = f" after {' and '.join(', '.join(entry['after']).rsplit(', ', 1))}" if entry["after"] else ""
        unit = entry["unit"] if entry["more_steps"] != 1 else entry["unit"].removesuffix("s")
        lines.append(
            f"  {entry['phase'] + ':':<10} {entry['more_steps']} more {unit} of {entry['phase']} fit{after}"
            f"{fits[entry['would_exceed']]}"
        )
    parts = {
        "bound": f"{summary['bound']} ({summary['status']})",
        "neighbors": render.neighbors_text(plan),
        "requires": render.requirement_lines(summary["requirements"], verbose),
    }
    return "\n".join([*lines, *render.label_lines(parts), *render.warning_lines(summary["warnings"])])


COMMANDS = {"ledger": ledger_command, "remaining": remaining_command}
