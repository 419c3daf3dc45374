"""``privproj curve``: delta(eps), the trade-off function, one GDP mu: table, CSV, JSON, picture; several bounds."""

from collections.abc import Callable
from typing import Any

import click

from privproj.accounting.phase import numerics_of, phase_for
from privproj.accounting.question import Question, answer, ask_by_name, question_about
from privproj.curves.tradeoff import profile_points, tradeoff
from privproj.errors import InvalidParameter, PrivprojError
from privproj.extensions.gdp import DEFAULT_SLACK, solve_gdp_mu
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import bounds_of
from privproj.records.files import write_text
from privproj.result import Result, as_plain_value, round_outward
from privproj.runs import RunOptions
from privproj.runs.targets import slack_target
from privproj.validation import privacy_epsilon, whole

from . import render
from .options import Once, OneOf, option
from .output import draw
from .query import EXIT_CODES, QuestionGroup, bound_option

COLUMN = {"delta": "epsilon", "trade-off": "false positive rate"}
POINTS = {"delta": profile_points, "trade-off": tradeoff}
"""What a curve is drawn over, and its points there."""


def answers(mechanism: Mechanism, names: tuple[str, ...], run: RunOptions, ask: Callable[[Question], Any]) -> list[Any]:
    """What each bound that is named answers; "all" stands for every bound that answers."""
    if names != ("all",):
        return [ask(ask_by_name(mechanism, name, run)) for name in names or (None,)]
    found = []
    for bound in bounds_of(type(mechanism)):
        try:
            found.append(ask(question_about(phase_for(mechanism, bound, run))))
        except PrivprojError:
            continue
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
    code, warnings, shape = 0, {}, what or "delta"
    of_other = {**given, "plot": plot} if shape == "gdp" else {"delta": delta}
    for name, value in of_other.items():
        if value is not None:
            wrong = f"--{name.replace('_', '-')}"
            raise InvalidParameter(wrong, value, f"no {wrong} with --what {shape}")
    if shape == "gdp":
        target = slack_target(DEFAULT_SLACK if delta is None else delta)
        found = answers(mechanism, bound, run, lambda one: answer(one, "gdp_mu", solve_gdp_mu, target))
        found = [result for result in found if result.usable or bound != ("all",)]
        text = gdp_text(style, found)
        code = max((EXIT_CODES[result.outcome] for result in found), default=0)
    else:
        x, points_at = grid(shape, given["epsilon_max"], given["points"]), POINTS[shape]

        def drawn(question: Question) -> tuple[list[float], Result]:
            curve = question.curve()
            # All points rest on what a result has; the value of that plays no role.
            return points_at(curve, x), question.result("curve", 1.0, None, numerics=numerics_of(curve))

        found = answers(mechanism, bound, run, drawn)
        foundations = [result for _, result in found]
        columns = {result.bound: points for points, result in found}
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


def shown(style: str | None, records: list[Any], rows: list[list[Any]], notes: list[str], say: Any) -> str:
    """Return rows, of which the first is the head, as JSON (then ``records``), as CSV with all digits, or a table."""
    if style == "json":
        return render.as_json({"results": records})
    if style == "csv":
        return "\n".join(",".join(map(str, row)) for row in rows)
    cells = [[cell if isinstance(cell, str) else say(cell) for cell in row] for row in rows]
    return "\n".join([*render.table_lines(">", cells), *notes])


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
    scale = "; rates are shares from 0 to 1: 0.01 is 1 %" if "rate" in name else ""
    notes.append(f"in each column: {label}{scale}")
    rows = [[name, *columns], *map(list, zip(x, *columns.values(), strict=True))]
    return shown(style, records, rows, notes, lambda number: f"{number:.5g}")


def gdp_text(style: str | None, results: list[Result]) -> str:
    """Return the ``mu`` by each bound in this style, with what it means; a table rounds all numbers up."""
    rows: list[list[Any]] = [["bound", "status", "mu", "slack", "exact_from", "regret"]]
    for result in results:
        facts: Any = result.numerics
        numbers = (float(result.value or 0.0), float(result.delta or 0.0), facts["exact_from"], facts["regret"])
        rows.append([result.bound, str(result.status), *numbers])
    promises = dict.fromkeys(f"{result.bound}: {words}" for result in results for words in result.promises)
    notes = [*render.wrap_line("promise: ", *promises), *render.wrap_line("meaning: ", *render.GDP_NOTES)]
    return shown(style, results, rows, [*notes, *render.foundation_of_several(results)], round_outward)


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
    ending="",
)


COMMANDS = {"curve": command}
