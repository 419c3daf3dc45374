"""``privproj report``: a privacy statement for a model card, as text, Markdown or one self-contained HTML page."""

import html
from io import StringIO
from typing import Any

import click

from privproj import __version__
from privproj.accounting.queries import Comparison, compare, solve_epsilon
from privproj.accounting.question import ask_by_name
from privproj.curves.profile import Curve
from privproj.curves.tradeoff import profile_points
from privproj.errors import InvalidParameter
from privproj.records.run_file import from_data
from privproj.records.statement import Section, sections
from privproj.result import Result, round_outward
from privproj.runs import delta_target

from . import render
from .files import read_data, write_text
from .groups import Group
from .mechanisms import MECHANISMS, example_words, mechanism_options
from .options import Once, OneOf, option, run_options, sectioned, take_run, target_options, with_options
from .query import build_mechanism

SUMMARY = "A privacy statement for a model card: text, Markdown or HTML."
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 1.6rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
td:first-child { font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; background: #fff; } figure svg { width: 100%; height: auto; }
footer { margin-top: 2rem; font-size: .85rem; opacity: .75; }
"""

command = Group("report", help=SUMMARY, short_help=SUMMARY)


def produce(result: Result, curve: Curve, rows: list[Comparison], style: str | None, output: str | None) -> int:
    """Render the statement, and write or print it; returns the exit code."""
    ending = (output or "").rsplit(".", 1)[-1].lower()
    chosen = style or {"md": "markdown", "html": "html", "htm": "html"}.get(ending, "text")
    found = sections(result, curve)
    text = {"text": as_text, "markdown": as_markdown}.get(chosen, lambda s, r: as_html(s, r, result, curve))(
        found, rows
    )
    if output is not None:
        write_text(output, text + "\n")
        click.echo(f"wrote {output}: epsilon {round_outward(result.epsilon or 0.0)} at delta {result.delta:g}")
    else:
        click.echo(text)
    return 0 if result.usable else 4


def as_text(found: list[Section], rows: list[Comparison]) -> str:
    """Return the statement as plain text."""
    lines = ["PRIVACY STATEMENT"]
    for section in found:
        lines += ["", section.title]
        for words in section.lines:
            lines += render.wrap_line("  - " if section.items else "  ", words)
    if rows:
        lines += ["", "Every bound on the same question", render.comparison_text(rows)]
    return "\n".join(lines)


def as_markdown(found: list[Section], rows: list[Comparison]) -> str:
    """Return the statement as Markdown."""
    lines = ["## Privacy statement"]
    for section in found:
        lines += ["", f"### {section.title}", ""]
        lines += [f"- {words}" if section.items else words for words in section.lines]
    if rows:
        lines += ["", "### Every bound on the same question", "", "| epsilon | bound | status |", "| --- | --- | --- |"]
        lines += [f"| {value} | `{name}` | {status} |" for value, name, status, _ in cells(rows)]
    return "\n".join([*lines, "", f"Computed by privproj {__version__}."])


def cells(rows: list[Comparison]) -> list[tuple[str, str, str, str]]:
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


def as_html(found: list[Section], rows: list[Comparison], result: Result, curve: Curve) -> str:
    """Return the statement as one HTML page that needs no other file."""
    parts = []
    for section in found:
        lines = [html.escape(words) for words in section.lines]
        inner = "".join(f"<li>{words}</li>" for words in lines)
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts.append(f"<ul>{inner}</ul>" if section.items else "".join(f"<p>{words}</p>" for words in lines))
    picture = drawing(result, curve)
    if picture:
        parts.append(f"<h2>Delta at every epsilon</h2><figure>{picture}</figure>")
    if rows:
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in cells(rows))
        head = "<tr><th>epsilon</th><th>bound</th><th>status</th><th>promise on the data</th></tr>"
        parts.append(f"<h2>Every bound on the same question</h2><table>{head}{body}</table>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Privacy statement</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>Privacy statement</h1>{''.join(parts)}"
        f"<footer>Computed by privproj {__version__}.</footer></body></html>"
    )


def drawing(result: Result, curve: Curve) -> str:
    """Draw the curve as SVG; the text is empty where matplotlib is not installed."""
    from .picture import figure

    top = max(2.0 * float(result.epsilon or 0.0), 0.1)
    x = [top * i / 60.0 for i in range(61)]
    try:
        drawn = figure(x, {result.bound: profile_points(curve, x)}, "epsilon", "delta", "")
    except InvalidParameter:
        return ""
    file = StringIO()
    drawn.savefig(file, format="svg")
    return file.getvalue()[file.getvalue().index("<svg") :]


def shared_options() -> list[click.Option]:
    """Return the options for format and output."""
    return [
        option("--style", "How to write.  [default: from the file's name]", type=OneOf(["text", "markdown", "html"])),
        Once(["--output", "-o"], help="File to write (.txt, .md, .html).", metavar="FILE"),
    ]


def report_command(name: str) -> click.Command:
    """Build the command ``privproj report MECHANISM``."""
    entry = MECHANISMS[name]
    own = mechanism_options(name, "report")
    bound = option("--bound", "Bound to use; `privproj bounds` lists them.", type=str, metavar="NAME")
    words = " ".join(example_words(name, "report"))

    def callback(style: str | None, output: str | None, delta: float | None, bound: str | None, **options: Any) -> int:
        options.pop("clip", None)
        setting = take_run(options)
        mechanism = build_mechanism(entry.kind, {str(o.name): options.pop(str(o.name)) for o in own})
        question = ask_by_name(mechanism, bound, setting)
        result, curve = solve_epsilon(question, delta_target(delta, None)), question.curve()
        return produce(result, curve, compare(mechanism, delta=delta, **setting), style, output)

    return with_options(
        sectioned(own, run_options("compare"), target_options("report"), [bound, *shared_options()]),
        callback,
        name=name,
        help=f"{entry.summary}\n\n\b\nExample:\n  privproj report {name} {words} --delta 1e-5",
        short_help=entry.summary,
    )


def report_run(file: str, delta: float, style: str | None, output: str | None) -> int:
    """Answer ``privproj report run FILE``."""
    schedule = from_data(read_data(file), file)
    return produce(schedule.epsilon(delta=delta), schedule.curve(), [], style, output)


for mechanism_name in MECHANISMS:
    if mechanism_name != "wishart-matrix":
        command.add_command(report_command(mechanism_name))
command.add_command(
    with_options(
        [click.Argument(["file"], type=str, metavar="FILE"), *target_options("report"), *shared_options()],
        report_run,
        name="run",
        help="A run file: phases composed jointly.",
        short_help="A run file: phases composed jointly.",
    )
)
