"""``privproj report``: a privacy statement for a model card, as text, Markdown or one self-contained HTML page."""

import html
from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from importlib.resources import files
from math import floor, log10
from string import Template
from typing import Any

import click

from privproj.curves.tradeoff import profile_points
from privproj.mechanisms import Mechanism
from privproj.records import statement as statements
from privproj.records.files import digest_of, read_data, refuse_same_file, write_text
from privproj.records.run_file import from_data
from privproj.records.statement import BEGIN, END, Statement
from privproj.result import round_outward
from privproj.runs import RunOptions
from privproj.runs.targets import delta_target

from . import render
from .ledger import planned_delta, read_begun
from .options import Once, OneOf, command_with, file_argument, option
from .query import QuestionGroup, bound_option, target_options

DRAWN_AFTER = "What the best attack could reach"
COMPUTED_FROM = "`privproj verify FILE` writes this statement anew from the line below, and compares."


def produce(
    data: Mapping[str, Any], digests: Mapping[str, str], /, delta: float | None, style: str | None, output: str | None,
    **given: str | None,
) -> int:  # fmt: skip
    """Compute the statement, write or print it; returns the exit code. Of files that are ``given`` it has digests."""
    ending = (output or "").rsplit(".", 1)[-1].lower()
    chosen = style or {"md": "markdown", "html": "html", "htm": "html"}.get(ending, "text")
    target = delta_target(delta, None)
    assert target.delta is not None
    said = {name: words for name, words in given.items() if words is not None}
    for name in statements.DIGESTS:
        refuse_same_file("--output", output, said.get(name))
    said |= {name: digest_of(said[name], f"--{name}") for name in statements.DIGESTS if name in said} | {**digests}
    statement = statements.statement_from(data, target.delta, chosen, said=said)
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
    for section in statements.sections(statement):
        lines += ["", section.title, *render.wrap_line("  - " if section.items else "  ", *section.lines)]
    return "\n".join([*lines, "", COMPUTED_FROM, statement.line, END])


def as_markdown(statement: Statement) -> str:
    """Return the statement as Markdown."""
    lines = [BEGIN["markdown"]]
    for section in statements.sections(statement):
        lines += ["", f"### {section.title}", ""]
        lines += [f"- {words}" if section.items else words for words in section.lines]
    lines += ["", f"Computed by privproj {statement.version}. {COMPUTED_FROM}"]
    return "\n".join([*lines, "", "```json", statement.line, "```", "", END])


def as_html(statement: Statement) -> str:
    """Return the statement as one HTML page that needs no other file."""
    parts = []
    for section in statements.sections(statement):
        lines = [f"<li>{html.escape(words)}</li>" if section.items else html.escape(words) for words in section.lines]
        lines = [words.replace(" %", "&nbsp;%") for words in lines]
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts += ["<ul>", *lines, "</ul>"] if section.items else [f"<p>{words}</p>" for words in lines]
        parts += [drawing(statement)] if statement.result.usable and section.title == DRAWN_AFTER else []
    return filled(
        "statement.html",
        parts="\n".join(parts),
        version=html.escape(statement.version),
        computed_from=html.escape(COMPUTED_FROM),
        line=html.escape(statement.line, quote=False),
    )


def drawing(statement: Statement) -> str:
    """Draw delta against epsilon as SVG, on a logarithmic scale, with the claim marked."""
    epsilon, delta = float(statement.result.epsilon or 0.0), float(statement.result.delta or 0.0)
    top, lowest = end_of_axis(epsilon), Decimal(repr(delta)).adjusted() - 3

    def across(eps: float) -> str:
        return f"{60 + 280 * eps / top:.1f}"

    def down(log_delta: float) -> str:
        return f"{20 + 190 * log_delta / lowest:.1f}"

    x = [top * i / 60 for i in range(61)]
    floor_of_curve = 10.0 ** (lowest - 1)  # below the frame, which cuts it off
    deltas = profile_points(statement.curve, x, enough=floor_of_curve)
    logs = [log10(max(found * statement.factor, floor_of_curve)) for found in deltas]
    powers = range(0, lowest - 1, -max(1, -lowest // 4))
    return filled(
        "statement.svg",
        points=" ".join(f"{across(eps)},{down(log)}" for eps, log in zip(x, logs, strict=True)),
        ticks_across="".join(f'<text x="{across(eps)}" y="228"> {eps:g} </text>' for eps in x[::15]),
        ticks_down="".join(f'<text x="54" y="{down(power)}" dy="4">{power_of_ten(power)}</text>' for power in powers),
        lines="".join(f"M60 {down(power)}H340" for power in powers),
        x=across(epsilon),
        y=down(log10(delta)),
        epsilon=round_outward(epsilon),
        delta=repr(delta),
    )


def end_of_axis(epsilon: float) -> float:
    """Return 1, 2, 4 or 6 times a power of ten, with room for words beyond epsilon; no round epsilon is at a step."""
    least = max(1.618 * epsilon, 0.1)
    power = 10.0 ** floor(log10(least))
    return next(times * power for times in (1, 2, 4, 6, 10) if times * power >= least)


def power_of_ten(power: int) -> str:
    """Write a power of ten with a raised exponent."""
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if power else "1"


def filled(template: str, **fields: object) -> str:
    """Return a template file of this folder with its fields filled in."""
    text = files("privproj_cli").joinpath(template).read_text(encoding="utf-8")
    return Template(text.removesuffix("\n")).substitute(fields)


def shared_options(*digests: str) -> list[Once]:
    """Return the options for format and output, for what the author says, and for files whose digests are named."""
    said = [(name, words, "WORDS", name in ("date", "data", "versions")) for name, words in statements.FIELDS.items()]
    named = digests or statements.DIGESTS
    said += [(name, f"The {name}, of which the SHA-256 is said.", "FILE", True) for name in named]
    return [
        option("--style", "How to write.  [default: from the file's name]", type=OneOf([*statements.STYLES])),
        Once(["--output", "-o"], help="File to write (.txt, .md, .html).", metavar="FILE"),
        *(option(f"--{name}", words, type=str, metavar=of, is_rare=rare) for name, words, of, rare in said),
    ]


def report_mechanism(mechanism: Mechanism, run: RunOptions, bound: str | None, **options: Any) -> int:
    """Answer ``privproj report MECHANISM``."""
    options.pop("size")
    return produce(statements.question_data(mechanism, bound, run), {}, **options)


command = QuestionGroup(
    "report",
    report_mechanism,
    [bound_option(), *shared_options()],
    summary="A privacy statement for a model card: text, Markdown or HTML.",
    has=lambda kind: kind.name != "wishart-matrix",
)


@command.add_command
@command_with("run", file_argument(), *target_options("report"), *shared_options())
def report_run(file: str, **options: Any) -> int:
    """A run file: phases composed jointly."""
    refuse_same_file("--output", options["output"], file)
    return produce(statements.run_data(from_data(read_data(file), file)), {}, **options)


@command.add_command
@command_with("ledger", file_argument(), *target_options("report"), *shared_options("checkpoint"))
def report_ledger(file: str, delta: float | None, **options: Any) -> int:
    """The ledger of a training run: what it released."""
    refuse_same_file("--output", options["output"], file)
    account, content = read_begun(file)
    digests = {"ledger": sha256(content).hexdigest()}
    return produce(statements.account_data(account), digests, planned_delta(account, delta), **options)


COMMANDS = {"report": command}
