"""Implement ``privproj report``, which states a run's guarantee as text, Markdown or HTML."""

import html
from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from importlib.resources import files
from math import floor, log10
from string import Template
from typing import Any

import click
from privproj_cli.kinds import read_run_file
from privproj_cli.ledger import planned_delta, read_started_ledger
from privproj_cli.options import Once, OneOf, command_with, file_argument, option, option_of
from privproj_cli.query import QueryGroup, bound_option, target_options
from privproj_cli.render import WIDEST, warning_lines, wrap_line

from privproj.accounting.batch_notes import known_size, warnings_of_delta
from privproj.accounting.phase import Phase
from privproj.accounting.schedule import phase_of
from privproj.contrib.statement import statement as statements
from privproj.contrib.statement.statement import BEGIN, END, Statement
from privproj.errors import InvalidParameterError
from privproj.io.files import check_not_same_file, sha256_of, write_text
from privproj.io.ledger import Account
from privproj.mechanisms import Mechanism
from privproj.profiles.tradeoff import profile_points
from privproj.result import round_outward
from privproj.run import RunOptions
from privproj.targets import delta_target
from privproj.version import __version__

DRAWN_AFTER = "Limits of any attack"
ORIGIN = f"Computed by privproj {__version__}. `privproj verify FILE` writes it again from the line below and compares."


def produce(
    data: Mapping[str, Any], digests: Mapping[str, str], phases: Sequence[Phase], /, delta: float | None,
    style: str | None, output: str | None, **author_entries: str | None,
) -> int:  # fmt: skip
    """Compute a privacy statement, write or print it, and return the exit code.

    ``data`` is the run, as ``query_data``, ``run_data`` or ``account_data`` returns it. ``digests`` are SHA-256 digests
    by the names "ledger" and "checkpoint". Warnings about ``phases`` are printed to standard error. Without ``style``,
    the ending of the file ``output`` determines the style. The values of ``author_entries`` are texts, except the
    paths of the files "ledger" and "checkpoint".
    """
    ending = (output or "").rsplit(".", 1)[-1].lower()
    if ending in ("pdf", "docx"):
        raise InvalidParameterError(
            "--output", output, "a file that ends in .txt, .md or .html", "to make a PDF, print the HTML page"
        )
    chosen = style or {"md": "markdown", "html": "html", "htm": "html"}.get(ending, "text")
    fields = {name: text for name, text in author_entries.items() if text is not None}
    for name in {*fields} & {*statements.DIGESTS}:
        check_not_same_file("--output", output, fields[name])
        fields[name] = sha256_of(fields[name], f"--{name}")
    target: Any = delta_target(delta, None).delta
    statement = statements.statement_from(data, target, chosen, author_entries={**fields, **digests})
    if output is None:
        click.echo(written(statement))
    else:
        write_text(output, written(statement) + "\n")
        click.echo(f"wrote {output}: epsilon {round_outward(statement.epsilon)} at delta {target:g}")
    notes = dict.fromkeys(note for phase in phases for note in phase.notes)
    for line in warning_lines([*notes, *warnings_of_delta(known_size(phases), target)]):
        click.echo(line, err=True)
    return 0 if statement.result.usable else 4


def written(statement: Statement) -> str:
    """Return a privacy statement as text, Markdown or HTML."""
    if statement.style == "html":
        return as_html(statement)
    # Text and Markdown begin and end with fixed lines, so that `privproj verify` finds them in a larger file.
    is_text, lines = statement.style == "text", [BEGIN[statement.style]]
    for section in statements.sections(statement):
        lines += ["", section.title] if is_text else ["", f"### {section.title}", ""]
        label = ("  " if is_text else "") + ("- " if section.items else "")
        # The width does not depend on the terminal, because `verify` compares lines.
        lines += wrap_line(label, *section.lines, width=WIDEST) if is_text else [label + line for line in section.lines]
    fence = ([], []) if is_text else (["", "```json"], ["```", ""])
    return "\n".join([*lines, "", ORIGIN, *fence[0], statement.line, *fence[1], END])


def as_html(statement: Statement) -> str:
    """Return a privacy statement as one self-contained HTML page."""
    parts = []
    for section in statements.sections(statement):
        tag, item = ("<ul>{}</ul>", "<li>{}</li>") if section.items else ("{}", "<p>{}</p>")
        lines = (item.format(html.escape(text).replace(" %", "&nbsp;%")) for text in section.lines)
        parts += [f"<h2>{html.escape(section.title)}</h2>", tag.format("\n" + "\n".join(lines) + "\n").strip()]
        parts += [drawing(statement)] if statement.result.usable and section.title == DRAWN_AFTER else []
    line = html.escape(statement.line, quote=False)
    return filled("statement.html", parts="\n".join(parts), computed_from=ORIGIN, line=line)


def drawing(statement: Statement) -> str:
    """Return an SVG plot of the privacy curve, with the claimed epsilon marked."""
    epsilon, delta = statement.epsilon, float(statement.result.delta or 0.0)
    # The axis ends at 1, 2, 4 or 6 times a power of ten, with space for the label of the claim.
    least_width = max(1.618 * epsilon, 0.1)
    top = next(end for times in (1, 2, 4, 6, 10) if (end := times * 10.0 ** floor(log10(least_width))) >= least_width)
    lowest = Decimal(repr(delta)).adjusted() - 3

    def across(eps: float) -> str:
        return f"{60 + 280 * eps / top:.1f}"

    def down(power: float) -> str:
        return f"{20 + 190 * power / lowest:.1f}"

    x = [top * i / 60 for i in range(61)]
    least = 10.0 ** (lowest - 1)  # below the frame, so the plot clips it
    deltas = profile_points(statement.curve, x, enough=least)
    points = (
        f"{across(eps)},{down(log10(max(statement.factor * y, least)))}" for eps, y in zip(x, deltas, strict=True)
    )
    powers = range(0, lowest - 1, -max(1, -lowest // 4))
    raised = {power: str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) for power in powers if power}
    return filled(
        "statement.svg",
        points=" ".join(points),
        ticks_across="".join(f'<text x="{across(eps)}" y="228"> {eps:g} </text>' for eps in x[::15]),
        ticks_down="".join(
            f'<text x="54" y="{down(power)}" dy="4">{"10" + raised[power] if power else 1}</text>' for power in powers
        ),
        lines="".join(f"M60 {down(power)}H340" for power in powers),
        x=across(epsilon),
        y=down(log10(delta)),
        epsilon=round_outward(epsilon),
        delta=repr(delta),
    )


def filled(template: str, **fields: object) -> str:
    """Return a template file of this package with its placeholders substituted."""
    text = files("privproj.contrib.statement").joinpath(template).read_text(encoding="utf-8")
    return Template(text.removesuffix("\n")).substitute(fields)


def shared_options(*hidden: str) -> list[Once]:
    """Return the click options of all ``report`` commands, without those in ``hidden``."""
    return [
        option("--style", "Choose the format.  [default: by the file name]", type=OneOf([*statements.STYLES])),
        Once(["--output", "-o"], help="Write to this file (.txt, .md, .html).", metavar="FILE"),
        *(option_of(name, field, type=str) for name, field in statements.AUTHOR_ENTRIES.items() if name not in hidden),
    ]


def report_mechanism(mechanism: Mechanism, run: RunOptions, bound: str | None, **options: Any) -> int:
    """Write a privacy statement for a model card as text, Markdown or HTML."""
    phase = phase_of(mechanism, bound=bound, **run)
    phase.check()  # an error of the query names no place in a file
    return produce(statements.query_data(phase), {}, [phase], **options)


command = QueryGroup("report", report_mechanism, [bound_option(), *shared_options()])


@command.add_command
@command_with("run", file_argument(), *target_options("report"), *shared_options())
def report_run(file: str, **options: Any) -> int:
    """Write the statement of a run file."""
    check_not_same_file("--output", options["output"], file)
    schedule = read_run_file(file)
    return produce(statements.run_data(schedule), {}, schedule.phases, **options)


@command.add_command
@command_with("ledger", file_argument(), *target_options("report"), *shared_options("ledger"))
def report_ledger(file: str, delta: float | None, **options: Any) -> int:
    """Write the privacy statement of a training run from its ledger."""
    check_not_same_file("--output", options["output"], file)
    account, content = read_started_ledger(file)
    digests = {"ledger": sha256(content).hexdigest()}
    return produce(statements.account_data(account), digests, (), planned_delta(account, delta), **options)


def write_statement_of_training(account: Account, delta: float, paths: Mapping[str, str]) -> None:
    """Write the privacy statement of a training run as a Markdown file.

    ``paths`` has the keys ``statement`` (the new file), ``ledger`` and ``checkpoint``.
    """
    digests = {name: sha256_of(paths[name]) for name in statements.DIGESTS}
    statement = statements.statement_from(statements.account_data(account), delta, "markdown", author_entries=digests)
    write_text(paths["statement"], written(statement) + "\n")
