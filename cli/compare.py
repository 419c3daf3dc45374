"""``privproj compare``: every bound of a mechanism on one question."""

from typing import Any

import click

from privproj.accounting.queries import compare
from privproj.mechanisms.registry import mechanism_named
from privproj.result import Outcome

from . import render
from .answer import build_mechanism, take_run
from .declared import MECHANISMS, example_words
from .groups import Group
from .options import mechanism_options, option, run_options, sectioned, target_options, with_options

SUMMARY = "Every bound of a mechanism, promise-free ones first, tightest first."

command = Group("compare", help=SUMMARY, short_help=SUMMARY)


def compare_command(mechanism: str) -> click.Command:
    """Build the command ``privproj compare MECHANISM``."""
    kind = mechanism_named(mechanism)
    own = mechanism_options(mechanism, "compare")

    def run(json: bool, **options: Any) -> int:
        setting = take_run(options)
        parameters = {str(o.name): options.pop(str(o.name)) for o in own}
        rows = compare(build_mechanism(kind, parameters), **options, **setting)
        click.echo(render.comparison_json(rows) if json else render.comparison_text(rows))
        if not any(row.result and row.result.value is not None for row in rows):
            first = rows[0].reason.removeprefix(rows[0].bound.name).lstrip(": ")
            click.echo(f"error: no bound gives a number here: {rows[0].bound.name}: {first}", err=True)
        outcomes = {row.result.outcome if row.result else Outcome.REFUSED for row in rows}
        return 0 if Outcome.OK in outcomes else 3 if outcomes == {Outcome.REFUSED} else 4

    words = " ".join(example_words(mechanism, "compare"))
    return with_options(
        sectioned(
            own,
            run_options("compare"),
            target_options("compare"),
            [option("--json", "JSON instead of text.", is_flag=True)],
        ),
        run,
        name=mechanism,
        help=f"{kind.summary}\n\n\b\nExample:\n  privproj compare {mechanism} {words} --delta 1e-5",
        short_help=kind.summary,
    )


for name in MECHANISMS:
    command.add_command(compare_command(name))
