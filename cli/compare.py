"""``privproj compare``: every bound of a mechanism on one question."""

from typing import Any

import click

from privproj.accountant import compare

from . import render
from .options import mechanism_options, option, run_options, take_run, target_options, with_options
from .query import EXAMPLES, MECHANISMS, build

SUMMARY = "Every bound of a mechanism, promise-free ones first, tightest first."

command = click.Group("compare", help=SUMMARY, short_help=SUMMARY)


def compare_command(mechanism: str) -> click.Command:
    """``privproj compare MECHANISM``."""
    kind, summary = MECHANISMS[mechanism]
    own = mechanism_options(mechanism, "compare")

    def run(json: bool, **options: Any) -> int:
        setting = take_run(options)
        parameters = {str(o.name): options.pop(str(o.name)) for o in own}
        rows = compare(build(kind, parameters), **options, **setting)
        click.echo(render.comparison_json(rows) if json else render.comparison_text(rows))
        return 0 if any(row.result and row.result.usable for row in rows) else 4

    words = " ".join(EXAMPLES[mechanism, o.name] for o in own if (mechanism, o.name) in EXAMPLES)
    return with_options(
        [
            *own,
            *run_options("compare"),
            *target_options("compare"),
            option("--json", "JSON instead of text.", is_flag=True),
        ],
        run,
        name=mechanism,
        help=f"{summary}\n\n\b\nExample:\n  privproj compare {mechanism} {words} --delta 1e-5",
        short_help=summary,
    )


for name in MECHANISMS:
    command.add_command(compare_command(name))
