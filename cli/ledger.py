"""``privproj ledger`` and ``privproj remaining``: what a training run or a run file has spent, and what is left."""

from typing import Any

from privproj.accounting.schedule import Schedule
from privproj.assumptions import plan_fixed
from privproj.errors import InvalidParameter, Unanswered
from privproj.records.atomic import read_bounded
from privproj.records.data_file import read_data
from privproj.records.ledger import LARGEST_LEDGER, Account, parse_begun
from privproj.records.run_file import from_data
from privproj.result import round_outward

from . import render
from .answer import EXIT_CODES
from .options import command_with, file_argument, json_option, option, options_from
from .output import write


@command_with(
    "ledger",
    file_argument(),
    option("--delta", "Failure probability delta.  [default: the ledger's]", metavar="D"),
    json_option(),
)
def ledger_command(file: str, delta: float | None, json: bool) -> int:
    """What the ledger of a training run says: releases made, epsilon so far and of the plan, which to quote.

    The planned epsilon and delta are in the ledger where the run was calibrated for them; --delta asks at another one.
    `privproj verify FILE` checks the ledger as a document.

    \b
    Example:
      privproj ledger privproj-train/ledger.jsonl
    """
    account, _ = read_begun(file)
    target, delta = dict(account.target or {}), planned_delta(account, delta)
    try:
        shown = overview(account, delta)
    except Unanswered as error:
        if json:
            nothing = {"epsilon": None, "outcome": error.outcome, "reason": str(error)}
            write(render.as_json({"steps": account.spent, "delta": delta, **nothing}))
        raise
    shown["target_epsilon"] = target.get("epsilon") if delta == target.get("delta") else None
    write(render.as_json(shown) if json else ledger_text(shown))
    return 0 if shown["so_far"] is None else EXIT_CODES[shown["so_far"].outcome]


def read_begun(file: str) -> tuple[Account, bytes]:
    """Read a ledger that has a phase: what it says, and its bytes."""
    content = read_bounded(file, "ledger", LARGEST_LEDGER)
    return parse_begun(content, file).account, content


def planned_delta(account: Account, delta: float | None) -> float:
    """Return the delta at which a ledger is asked: the given one, else that of its target."""
    found = delta if delta is not None else (account.target or {}).get("delta")
    if found is None:
        raise InvalidParameter("--delta", "nothing", "--delta, since the ledger has no target")
    return found


def overview(account: Account, delta: float) -> dict[str, Any]:
    """Return steps and epsilon, so far and of the whole plan, and which of the two may be quoted."""
    so_far = account.epsilon(delta) if account.spent else None
    planned = account.explained(account.planned.epsilon(delta))
    return {
        "steps": account.spent,
        "steps_left": account.left,
        "steps_planned": account.releases_planned,
        "delta": delta,
        "epsilon": so_far.value if so_far else 0.0,
        "epsilon_of_plan": planned.as_dict()["value"],
        "quote": QUOTE_OF_FILTER if account.filtered else QUOTE[bool(account.stopped), account.spent > 0],
        "assumes": list(planned.assumes),
        "warnings": list(dict.fromkeys((*(so_far.warnings if so_far else ()), *planned.warnings))),
        "so_far": so_far,
        "planned": planned,
        "filter": account.filter().parameters() if account.filtered else None,
    }


QUOTE = {
    (False, True): "either: all planned steps were made, so both are one",
    (True, True): "the epsilon of the plan; the one so far only if no output had a part in the decision to stop",
    (True, False): "the epsilon of the plan, once anything is released",
}
"""Which number may be quoted, by whether steps are missing (or too many) and whether anything was released."""

QUOTE_OF_FILTER = "the epsilon of the filter's whole budget, whatever of it was spent and why"
"""Which number may be quoted under a filter."""


def ledger_text(shown: dict[str, Any]) -> str:
    """Say epsilon so far, what it rests on, what is left of the plan, and which number may be quoted."""
    so_far, steps, planned = shown["so_far"], shown["steps"], shown["steps_planned"]
    goal = "" if shown["target_epsilon"] is None else f", target {shown['target_epsilon']:g}"
    parts = {
        "released": f"{steps} steps" + (f" ({render.percent(steps / planned)} of the plan)" if planned > 0 else ""),
        "left": f"{shown['steps_left']} planned steps",
        "plan": f"epsilon {round_outward(shown['planned'].value)} after all planned steps{goal}",
        "filter": render.filter_words(shown["filter"]) if shown["filter"] else "",
        "quote": shown["quote"],
        "assumes": shown["assumes"],
        "warning": shown["warnings"],
    }
    first = ["epsilon = 0  (nothing was released)"] if so_far is None else render.result_lines(so_far)
    return "\n".join([*first, *render.labelled(parts)])


# --- a run file ---------------------------------------------------------------------------------------


@command_with(
    "remaining",
    file_argument(),
    *options_from(Schedule.remaining, "epsilon", "delta"),
    json_option(),
)
def remaining_command(file: str, epsilon: float, delta: float, json: bool) -> int:
    """How much of a budget a run file has spent, and how many more steps fit.

    Phases with `planned = true` have not happened yet. They are judged in order, each after all that is done and the
    planned ones before it: how many of its steps fit and whether all do. Without any, the last phase is taken as the
    pattern of what may follow.

    \b
    Example:
      privproj remaining run.toml --epsilon 3 --delta 1e-5
    """
    schedule = from_data(read_data(file), file)
    shown = {**remaining_record(schedule, epsilon, delta), "epsilon": epsilon, "delta": delta}
    write(render.as_json(shown) if json else remaining_text(shown))
    return 0 if shown["fits"] else 4


def remaining_record(schedule: Schedule, epsilon: float, delta: float) -> dict[str, Any]:
    """Return what is spent, how many steps each phase may still take, and what these numbers rest on."""
    rows, whole = schedule.remaining(epsilon=epsilon, delta=delta), schedule.epsilon(delta=delta)
    done = schedule.done_phases
    spent = whole.value if done == schedule.phases else schedule.done.epsilon(delta=delta).value if done else 0.0
    assumed = plan_fixed(adapts=any(phase.mechanism.adapts_clip for phase in schedule.phases))
    phases = [
        {
            "phase": row.phase.name,
            "more_steps": row.more_steps,
            "unit": "epochs" if row.phase.run.in_epochs else "steps",
            "would_exceed": row.would_exceed,
            "after": [phase.name for phase in (*done, *row.after)],
        }
        for row in rows
    ]
    return {
        "epsilon_spent": spent,
        "epsilon_planned": whole.value if done != schedule.phases else None,
        "fits": all(row.more_steps and not row.would_exceed for row in rows),
        "phases": phases,
        "bound": whole.bound,
        "status": whole.status,
        "relation": whole.run["relation"],
        "promises": list(whole.promises),
        "assumes": list(dict.fromkeys((assumed, *whole.assumes))),
        "warnings": list(whole.warnings),
    }


def remaining_text(shown: dict[str, Any]) -> str:
    """Say the record in words."""
    of = f"of {shown['epsilon']:g} at delta {shown['delta']:g}"
    lines = [f"spent: epsilon {round_outward(shown['epsilon_spent'])} {of}"]
    if shown["epsilon_planned"] is not None:
        lines.append(f"planned: epsilon {round_outward(shown['epsilon_planned'])} {of}, all phases together")
    fits = {None: "", True: ", all of it would exceed the budget", False: ", all of it fits"}
    for entry in shown["phases"]:
        after = f" (after {', '.join(entry['after'])})" if entry["after"] else ""
        words = f"{entry['more_steps']} more {entry['unit']} fit{after}{fits[entry['would_exceed']]}"
        lines.append(f"  {entry['phase']}: {words}")
    lines += render.fit_line("  rests on: ", f"{shown['bound']} ({shown['status']}); {shown['relation']}")
    parts = {"promise": shown["promises"], "assumes": shown["assumes"], "warning": shown["warnings"]}
    return "\n".join(lines + render.labelled({label: "; ".join(found) for label, found in parts.items()}))


COMMANDS = {"ledger": ledger_command, "remaining": remaining_command}
