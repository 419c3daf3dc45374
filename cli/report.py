"""``privproj report``: a privacy statement for a model card, as text, Markdown or one self-contained HTML page."""

import html
from collections.abc import Iterable, Mapping
from importlib.resources import files
from math import floor, log10
from string import Template
from typing import Any

import click

from privproj.accounting.queries import Comparison
from privproj.curves.tradeoff import profile_points
from privproj.mechanisms import Mechanism
from privproj.records.data_file import read_data, write_text
from privproj.records.run_file import from_data
from privproj.records.statement import STYLES, Statement, question_data, run_data, sections, statement_from
from privproj.records.statement_check import BEGIN, END
from privproj.result import round_outward
from privproj.runs import RunOptions
from privproj.runs.targets import delta_target

from . import render
from .options import Once, OneOf, file_argument, option, with_options
from .query import QuestionGroup, bound_option, target_options

SUMMARY = "A privacy statement for a model card: text, Markdown or HTML."
COMPUTED_FROM = "`privproj verify FILE` writes this statement anew from the line below, and compares."


def produce(data: Mapping[str, Any], delta: float | None, style: str | None, output: str | None) -> int:
    """Compute the statement, write or print it; returns the exit code."""
    ending = (output or "").rsplit(".", 1)[-1].lower()
    chosen = style or {"md": "markdown", "html": "html", "htm": "html"}.get(ending, "text")
    target = delta_target(delta, None)
    assert target.delta is not None
    statement = statement_from(data, target.delta, chosen)
    result, text = statement.result, written(statement)
    if output is not None:
        write_text(output, text + "\n")
        click.echo(f"wrote {output}: epsilon {round_outward(result.epsilon or 0.0)} at delta {result.delta:g}")
    else:
        click.echo(text)
    return 0 if result.usable else 4


def written(statement: Statement) -> str:
    """Write a statement in its style."""
    return {"text": as_text, "markdown": as_markdown, "html": as_html}[statement.style](statement)


def as_text(statement: Statement) -> str:
    """Return the statement as plain text."""
    lines = [BEGIN["text"]]
    for section in sections(statement):
        lines += ["", section.title]
        for words in section.lines:
            lines += render.wrap_line("  - " if section.items else "  ", words)
    if statement.rows:
        lines += ["", "Every bound on the same question", *render.comparison_text([*statement.rows]).split("\n")]
    return "\n".join([*lines, "", COMPUTED_FROM, statement.line, END])


def as_markdown(statement: Statement) -> str:
    """Return the statement as Markdown."""
    lines = [BEGIN["markdown"]]
    for section in sections(statement):
        lines += ["", f"### {section.title}", ""]
        lines += [f"- {words}" if section.items else words for words in section.lines]
    if statement.rows:
        lines += ["", "### Every bound on the same question", "", "| epsilon | bound | status |", "| --- | --- | --- |"]
        lines += [f"| {value} | `{name}` | {status} |" for value, name, status, _ in cells(statement.rows)]
    lines += ["", f"Computed by privproj {statement.version}. {COMPUTED_FROM}"]
    return "\n".join([*lines, "", "```json", statement.line, "```", "", END])


def cells(rows: Iterable[Comparison]) -> list[tuple[str, str, str, str]]:
    """Return value, bound, status and promise of each bound that answers."""
    answered = [row.result for row in rows if row.result is not None and row.result.value is not None]
    return [
        (round_outward(float(found.value or 0.0)), found.bound, str(found.status), "; ".join(found.promises))
        for found in answered
    ]


def as_html(statement: Statement) -> str:
    """Return the statement as one HTML page that needs no other file."""
    parts = []
    for section in sections(statement):
        lines = [f"<li>{html.escape(words)}</li>" if section.items else html.escape(words) for words in section.lines]
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts += ["<ul>", *lines, "</ul>"] if section.items else [f"<p>{words}</p>" for words in lines]
    if statement.result.usable:
        parts += ["<h2>Delta at every epsilon</h2>", "<figure>", drawing(statement), "</figure>"]
    if statement.rows:
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in cells(statement.rows)]
        head = "<th>epsilon</th><th>bound</th><th>status</th><th>promise on the data</th>"
        parts += ["<h2>Every bound on the same question</h2>", "<table>", *(f"<tr>{row}</tr>" for row in (head, *rows))]
        parts.append("</table>")
    return filled(
        "statement.html",
        parts="\n".join(parts),
        version=html.escape(statement.version),
        computed_from=html.escape(COMPUTED_FROM),
        line=html.escape(statement.line, quote=False),
    )


def drawing(statement: Statement) -> str:
    """Draw delta against epsilon as SVG, on a logarithmic scale down to 1e-15."""
    top = max(2.0 * float(statement.result.epsilon or 0.0) / statement.factor, 0.1)
    x = [top * i / 60 for i in range(61)]
    deltas = profile_points(statement.curve, x, enough=1e-15)
    logs = [log10(max(delta * statement.factor, 1e-15)) for delta in deltas]
    lowest = floor(min(logs))
    spread = max(1.0, -lowest)
    points = " ".join(f"{60 + 520 * a / top:.0f},{20 - 220 * b / spread:.0f}" for a, b in zip(x, logs, strict=True))
    return filled("statement.svg", points=points, lowest=lowest, top=round_outward(top * statement.factor))


def filled(template: str, **fields: object) -> str:
    """Return a template file of this folder with its fields filled in."""
    text = files("privproj_cli").joinpath(template).read_text(encoding="utf-8")
    return Template(text.removesuffix("\n")).substitute(fields)


def shared_options() -> list[Once]:
    """Return the options for format and output."""
    return [
        option("--style", "How to write.  [default: from the file's name]", type=OneOf([*STYLES])),
        Once(["--output", "-o"], help="File to write (.txt, .md, .html).", metavar="FILE"),
    ]


def report_mechanism(
    mechanism: Mechanism,
    run: RunOptions,
    bound: str | None,
    delta: float | None,
    style: str | None,
    output: str | None,
    size: float | None,
) -> int:
    """Answer ``privproj report MECHANISM``."""
    return produce(question_data(mechanism, bound, run), delta, style, output)


def report_run(file: str, delta: float, style: str | None, output: str | None) -> int:
    """Answer ``privproj report run FILE``."""
    return produce(run_data(from_data(read_data(file), file)), delta, style, output)


command = QuestionGroup(
    "report",
    SUMMARY,
    report_mechanism,
    [bound_option(), *shared_options()],
    has=lambda kind: kind.name != "wishart-matrix",
)
command.add_command(
    with_options(
        [file_argument(), *target_options("report"), *shared_options()],
        report_run,
        name="run",
        help="A run file: phases composed jointly.",
        short_help="A run file: phases composed jointly.",
    )
)
