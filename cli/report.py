"""``privproj report``: a privacy statement for a model card, as text, Markdown or one self-contained HTML page."""

import html
from collections.abc import Iterable, Mapping
from math import floor, log10
from typing import Any

import click

from privproj.accounting.queries import Comparison
from privproj.curves.tradeoff import profile_points
from privproj.mechanisms import Mechanism
from privproj.records.run_file import from_data
from privproj.records.statement import STYLES, Statement, question_data, run_data, sections, statement_from
from privproj.records.statement_check import BEGIN, END
from privproj.result import round_outward
from privproj.runs import RunOptions
from privproj.runs.targets import delta_target

from . import render
from .files import read_data, write_text
from .options import Once, OneOf, option, with_options
from .query import QuestionGroup, bound_option, target_options

SUMMARY = "A privacy statement for a model card: text, Markdown or HTML."
COMPUTED_FROM = "`privproj verify FILE` writes this statement anew from the line below, and compares."
POINTS, LEAST_DRAWN = 60, 1e-15
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 1.6rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
td:first-child { font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; background: #fff; } figure svg { width: 100%; height: auto; }
footer { margin-top: 2rem; font-size: .85rem; opacity: .75; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


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
    return [
        (
            round_outward(float(row.result.value)),
            row.bound.name,
            str(row.result.status),
            "; ".join(row.result.promises),
        )
        for row in rows
        if row.result is not None and row.result.value is not None
    ]


def as_html(statement: Statement) -> str:
    """Return the statement as one HTML page that needs no other file."""
    parts = []
    for section in sections(statement):
        lines = [html.escape(words) for words in section.lines]
        inner = "".join(f"<li>{words}</li>\n" for words in lines)
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts.append(f"<ul>\n{inner}</ul>" if section.items else "\n".join(f"<p>{words}</p>" for words in lines))
    if statement.result.usable:
        parts.append(f"<h2>Delta at every epsilon</h2>\n<figure>\n{drawing(statement)}\n</figure>")
    if statement.rows:
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in cells(statement.rows))
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        head = "<tr><th>epsilon</th><th>bound</th><th>status</th><th>promise on the data</th></tr>"
        parts.append(f"<h2>Every bound on the same question</h2>\n<table>\n{head}\n{body}\n</table>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Privacy statement</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n<h1>Privacy statement</h1>\n" + "\n".join(parts) + "\n"
        f"<footer>Computed by privproj {html.escape(statement.version)}. {html.escape(COMPUTED_FROM)}\n<pre>\n"
        f"{html.escape(statement.line, quote=False)}\n</pre></footer></body></html>"
    )


def drawing(statement: Statement) -> str:
    """Draw delta against epsilon as SVG, on a logarithmic scale."""
    top = max(2.0 * float(statement.result.epsilon or 0.0) / statement.factor, 0.1)
    x = [top * i / POINTS for i in range(POINTS + 1)]
    deltas = profile_points(statement.curve, x, enough=LEAST_DRAWN)
    logs = [log10(max(delta * statement.factor, LEAST_DRAWN)) for delta in deltas]
    lowest = floor(min(logs))
    spread = max(1.0, -lowest)
    points = " ".join(f"{60 + 520 * a / top:.0f},{20 - 220 * b / spread:.0f}" for a, b in zip(x, logs, strict=True))
    return (
        '<svg viewBox="0 0 640 300" role="img" aria-label="delta against epsilon" font-size="13">\n'
        '<path d="M60 20 V240 H580" fill="none" stroke="#666"/>\n'
        f'<polyline fill="none" stroke="#000" stroke-width="2" points="{points} "/>\n'
        f'<text x="30" y="24">1</text><text x="8" y="244">1e{lowest}</text><text x="8" y="134">delta</text>\n'
        f'<text x="56" y="260">0</text><text x="550" y="260"> {round_outward(top * statement.factor)} </text>'
        '<text x="290" y="280">epsilon</text>\n</svg>'
    )


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
        [click.Argument(["file"], type=str, metavar="FILE"), *target_options("report"), *shared_options()],
        report_run,
        name="run",
        help="A run file: phases composed jointly.",
        short_help="A run file: phases composed jointly.",
    )
)
