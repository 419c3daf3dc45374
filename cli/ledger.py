"""``privproj ledger``: what a training run has spent, and what is left of it."""

from typing import Any

import click

from privproj.errors import InvalidParameter, Unanswered
from privproj.records.ledger import Account, read_ledger
from privproj.result import round_outward

from . import render
from .answer import EXIT_CODES
from .options import file_argument, json_option, option, with_options


def show_ledger(file: str, delta: float | None, json: bool) -> int:
    """What the ledger of a training run says: releases made, epsilon so far and of the plan, which to quote.

    The planned epsilon and delta are in the ledger where the run was calibrated for them; --delta asks at another one.
    `privproj verify FILE` checks the ledger as a document.

    \b
    Example:
      privproj ledger privproj-train/ledger.jsonl
    """
    account = begun_account(file)
    target, delta = dict(account.target or {}), planned_delta(account, delta)
    try:
        shown = overview(account, delta)
    except Unanswered as error:
        if json:
            nothing = {"epsilon": None, "outcome": error.outcome, "reason": str(error)}
            click.echo(render.as_json({"steps": account.spent, "delta": delta, **nothing}))
        raise
    shown["target_epsilon"] = target.get("epsilon") if delta == target.get("delta") else None
    if json:
        plain = {key: value.as_dict() if hasattr(value, "as_dict") else value for key, value in shown.items()}
        click.echo(render.as_json(plain))
    else:
        click.echo(text(shown))
    return 0 if shown["so_far"] is None else EXIT_CODES[shown["so_far"].outcome]


def begun_account(file: str) -> Account:
    """Read a ledger that has a phase."""
    account = read_ledger(file)
    if not account.phases:
        raise InvalidParameter("ledger", file, "a ledger with a phase; this run was stopped before it began")
    return account


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
        "epsilon": 0.0 if so_far is None else so_far.value,
        "epsilon_of_plan": planned.as_dict()["value"],
        "quote": QUOTE_OF_FILTER if account.filtered else QUOTE[bool(account.stopped), account.spent > 0],
        "assumes": list(planned.assumes),
        "warnings": list(dict.fromkeys((*(() if so_far is None else so_far.warnings), *planned.warnings))),
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


def text(shown: dict[str, Any]) -> str:
    """Say epsilon so far, what it rests on, what is left of the plan, and which number may be quoted."""
    so_far, planned = shown["so_far"], shown["planned"]
    lines = ["epsilon = 0  (nothing was released)"] if so_far is None else render.result_lines(so_far)
    goal = "" if shown["target_epsilon"] is None else f", target {shown['target_epsilon']:g}"
    planned_steps = shown["steps_planned"]
    share = f" ({render.percent(shown['steps'] / planned_steps)} of the plan)" if planned_steps > 0 else ""
    lines.append(f"  released: {shown['steps']} steps{share}")
    lines.append(f"  left:     {shown['steps_left']} planned steps")
    lines.append(f"  plan:     epsilon {round_outward(planned.value)} after all planned steps{goal}")
    lines += render.wrap_line("  filter:   ", render.filter_words(shown["filter"])) if shown["filter"] else []
    lines += render.wrap_line("  quote:    ", shown["quote"])
    lines += render.wrap_line("  assumes:  ", *shown["assumes"])
    return "\n".join([*lines, *render.wrap_line("  warning:  ", *shown["warnings"])])


command = with_options(
    [
        file_argument(),
        option("--delta", "Failure probability delta.  [default: the ledger's]", metavar="D"),
        json_option(),
    ],
    show_ledger,
    name="ledger",
)
