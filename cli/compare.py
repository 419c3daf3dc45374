"""``privproj compare``: every bound of a mechanism on one question."""

from typing import Any

import click

from privproj.accounting.queries import compare
from privproj.mechanisms import Mechanism
from privproj.result import Outcome
from privproj.runs import RunOptions

from . import render
from .query import QuestionGroup, json_option


def compare_bounds(mechanism: Mechanism, run: RunOptions, json: bool, size: float | None, **target: Any) -> int:
    """Every bound of a mechanism, promise-free ones first, tightest first."""
    rows = compare(mechanism, **target, **run)
    records = {"results": [*map(render.comparison_record, rows)]}
    click.echo(render.as_json(records) if json else render.comparison_text(rows))
    if not any(row.result and row.result.value is not None for row in rows):
        first = rows[0].reason.removeprefix(rows[0].bound.name).lstrip(": ")
        click.echo(f"error: no bound gives a number here: {rows[0].bound.name}: {first}", err=True)
    outcomes = {row.result.outcome if row.result else Outcome.REFUSED for row in rows}
    return 0 if Outcome.OK in outcomes else 3 if outcomes == {Outcome.REFUSED} else 4


command = QuestionGroup("compare", compare_bounds, [json_option()])
