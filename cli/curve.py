"""``privproj curve``: delta(eps), the trade-off function, one GDP mu: table, CSV, JSON, picture; several bounds."""

from collections.abc import Callable
from typing import Any

import click

from privproj.accounting.phase import numerics_of, phase_for
from privproj.accounting.question import Question, answer, ask_by_name, question_about
from privproj.curves.tradeoff import profile_points, tradeoff
from privproj.errors import InvalidParameter, PrivprojError, Unanswered
from privproj.extensions.gdp import DEFAULT_SLACK, solve_gdp_mu
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import bounds_of
from privproj.records.files import write_text
from privproj.result import Result, as_plain_value, round_outward
from privproj.runs import RunOptions
from privproj.runs.targets import slack_target
from privproj.validation import privacy_epsilon, whole

from . import render
from .answer import EXIT_CODES
from .options import Once, OneOf, option
from .output import draw
from .query import QuestionGroup, bound_option

COLUMN = {"delta": "epsilon", "trade-off": "false positive rate"}


def questions(mechanism: Mechanism, names: tuple[str, ...], run: RunOptions) -> list[Question]:
    """Put one question for each bound; "all" stands for every bound that answers."""
    if names != ("all",):
        return [ask_by_name(mechanism, name, run) for name in names or (None,)]
    found = []
    for bound in bounds_of(type(mechanism)):
        question = question_about(phase_for(mechanism, bound, run))
        try:
            question.curve().log_delta(1.0)
        except PrivprojError:
            continue
        found.append(question)
    return found


def grid(kind: str, largest: float | None, points: float | None) -> list[float]:
    """Return the epsilons, or the false positive rates, at which the curve is drawn."""
    count = whole("points", 41 if points is None else points, "a whole number of points from 2 to 2000", 2, 2000)
    if kind == "trade-off":
        if largest is not None:
            raise InvalidParameter("--epsilon-max", largest, "no --epsilon-max with --what trade-off")
        return [10.0 ** (-4.0 * (1.0 - i / (count - 1.0))) for i in range(count)]
    top = privacy_epsilon(5.0 if largest is None else largest, zero=False)
    return [top * i / (count - 1.0) for i in range(count)]


def show_curves(
    mechanism: Mechanism, run: RunOptions, bound: tuple[str, ...], what: str | None, delta: float | None,
    style: str | None, output: str | None, plot: str | None, size: float | None, **given: float | None,
) -> int:  # fmt: skip
    """delta(eps), the trade-off function or one GDP mu: table, CSV, JSON, picture."""
    code, warnings = 0, {}
    if what == "gdp":
        for name, value in {**given, "plot": plot}.items():
            if value is not None:
                raise InvalidParameter("--what", "gdp", f"no --{name.replace('_', '-')} with --what gdp")
        found = gdp_results(mechanism, bound, run, DEFAULT_SLACK if delta is None else delta)
        text = gdp_text(style, found)
        code = max((EXIT_CODES[result.outcome] for result in found), default=0)
    else:
        if delta is not None:
            raise InvalidParameter("--delta", delta, "--what gdp with --delta, its slack")
        shape = what or "delta"
        x = grid(shape, given["epsilon_max"], given["points"])
        columns, foundations = points_of(questions(mechanism, bound, run), shape, x)
        label = "delta" if shape == "delta" else "false negative rate (lower bound)"
        if plot is not None:
            draw(plot, x, columns, COLUMN[shape], label, mechanism.name)
        text = curve_text(style, COLUMN[shape], label, x, columns, foundations)
        warnings = dict.fromkeys(words for result in foundations for words in result.warnings)
    if output is not None:
        write_text(output, text + "\n")
    else:
        click.echo(text)
    for words in warnings:
        click.echo("\n".join(render.wrap_line("warning: ", words)), err=True)
    return code


def gdp_results(mechanism: Mechanism, names: tuple[str, ...], run: RunOptions, slack: float) -> list[Result]:
    """Return the ``mu`` of Gaussian differential privacy by each bound; with "all", by those that have one."""
    asked, target = questions(mechanism, names, run), slack_target(slack)
    found = []
    for question in asked:
        try:
            result = answer(question, "gdp_mu", solve_gdp_mu, target)
            found += [result] if result.usable or names != ("all",) else []
        except Unanswered:
            if names != ("all",):
                raise
    return found


def points_of(asked: list[Question], shape: str, x: list[float]) -> tuple[dict[str, list[float]], list[Result]]:
    """Return the points of each bound's curve, and what all points of it rest on."""
    columns, foundations = {}, []
    for question in asked:
        curve = question.curve()
        columns[question.only.bound.name] = profile_points(curve, x) if shape == "delta" else tradeoff(curve, x)
        # As a result has it; the value plays no role.
        foundations.append(question.result("curve", 1.0, None, numerics=numerics_of(curve)))
    return columns, foundations


def shown(
    style: str | None, records: list[Any], head: list[str], rows: list[list[Any]],
    say: Callable[[float], str], notes: list[str], label: str = "",
) -> str:  # fmt: skip
    """Return rows as JSON (then ``records``), as CSV with all digits, or as a table of what is said of each number."""
    if style == "json":
        return render.as_json({"results": records})
    if style == "csv":
        return "\n".join(",".join(map(str, row)) for row in (head, *rows))
    cells = [head, *([cell if isinstance(cell, str) else say(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([lines[0] + label, *lines[1:], *notes])


def curve_text(
    style: str | None, name: str, label: str, x: list[float], columns: dict[str, list[float]], of: list[Result]
) -> str:
    """Return the curves in this style. Table and JSON say what each bound rests on and assumes."""
    facts = ("status", "promises", "assumes", "warnings")
    records = [
        {"bound": bound, name: x, label: values, **{key: as_plain_value(getattr(result, key)) for key in facts}}
        for (bound, values), result in zip(columns.items(), of, strict=True)
    ]
    notes = render.assumption_lines({result.bound: result.assumes for result in of})
    notes += render.wrap_line("rests on: ", *map(render.foundation_line, of))
    notes += ["rates are shares from 0 to 1: 0.01 is 1 %"] if "rate" in name else []
    rows = [list(row) for row in zip(x, *columns.values(), strict=True)]
    return shown(style, records, [name, *columns], rows, lambda number: f"{number:.5g}", notes, f"   ({label})")


def gdp_text(style: str | None, results: list[Result]) -> str:
    """Return the ``mu`` by each bound in this style, with what it means; a table rounds all numbers up."""
    rows = []
    for result in results:
        facts: Any = result.numerics
        numbers = (float(result.value or 0.0), float(result.delta or 0.0), facts["exact_from"], facts["regret"])
        rows.append([result.bound, str(result.status), *numbers])
    promises = dict.fromkeys(f"{result.bound}: {words}" for result in results for words in result.promises)
    notes = [*render.wrap_line("promise: ", *promises), *render.wrap_line("meaning: ", *render.GDP_NOTES)]
    notes += render.foundation_of_several(results)
    return shown(style, results, ["bound", "status", "mu", "slack", "exact_from", "regret"], rows, round_outward, notes)


command = QuestionGroup(
    "curve",
    show_curves,
    [
        bound_option("A bound to draw; may be repeated; all: every bound.", multiple=True),
        option("--what", "What to draw.  [default: delta]", type=OneOf(["delta", "trade-off", "gdp"])),
        option("--delta", "Slack of the mu of --what gdp.  [default: 1e-9]", metavar="D0"),
        option("--epsilon-max", "Largest epsilon.  [default: 5]", metavar="E", is_rare=True),
        option("--points", "Number of points.  [default: 41]", metavar="N", is_rare=True),
        option("--style", "How to print.  [default: table]", type=OneOf(["table", "csv", "json"])),
        Once(["--output", "-o"], help="Write the numbers to a file.", metavar="FILE"),
        Once(["--plot"], help="Draw a picture (.png, .svg or .pdf; needs matplotlib).", metavar="FILE"),
    ],
    has=lambda kind: kind.name != "wishart-matrix",
    ending=lambda kind: "",
)


COMMANDS = {"curve": command}
