"""``privproj curve``: delta(eps), the trade-off function, one GDP mu: table, CSV, JSON, picture; several bounds."""

from typing import Any

import click

from privproj.accounting.phase import numerics_of, phase_for
from privproj.accounting.question import Question, answer, ask_by_name, question_about
from privproj.curves.tradeoff import profile_points, tradeoff
from privproj.errors import InvalidParameter, PrivprojError, Unanswered
from privproj.extensions.gdp import DEFAULT_SLACK, solve_gdp_mu
from privproj.mechanisms.registry import bounds_of, mechanism_named
from privproj.result import Result, as_plain_value
from privproj.runs.targets import slack_target
from privproj.validation import privacy_epsilon, whole

from . import render
from .answer import EXIT_CODES, build_mechanism, take_run
from .declared import MECHANISMS, example_words
from .files import write_text
from .groups import Group
from .options import Once, OneOf, mechanism_options, option, run_options, sectioned, with_options

SUMMARY = "delta(eps), the trade-off function or one GDP mu: table, CSV, JSON, picture."
COLUMN = {"delta": "epsilon", "trade-off": "false positive rate"}

command = Group("curve", help=SUMMARY, short_help=SUMMARY)


def questions(mechanism: Any, names: tuple[str, ...], run: Any) -> list[Question]:
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


def show_gdp(kind: type, options: dict[str, Any], own: list[str]) -> int:
    """Print or write the ``mu`` of Gaussian differential privacy by each bound; returns the exit code."""
    for name in ("epsilon_max", "points", "plot"):
        if options.pop(name) is not None:
            raise InvalidParameter("--what", "gdp", f"no --{name.replace('_', '-')} with --what gdp")
    output, style, names, slack = (options.pop(name) for name in ("output", "style", "bound", "delta"))
    del options["what"]
    options.pop("clip", None)
    setting = take_run(options)
    mechanism = build_mechanism(kind, {name: options.pop(name) for name in own})
    asked, target = questions(mechanism, names, setting), slack_target(DEFAULT_SLACK if slack is None else slack)
    found = []
    for question in asked:
        try:
            result = answer(question, "gdp_mu", solve_gdp_mu, target)
            found += [result] if result.usable or names != ("all",) else []
        except Unanswered:
            if names != ("all",):
                raise
    text = render.gdp_as(style or "table", found)
    if output is not None:
        write_text(output, text + "\n")
    else:
        click.echo(text)
    return max((EXIT_CODES[result.outcome] for result in found), default=0)


def show_curves(kind: type, options: dict[str, Any], own: list[str]) -> int:
    """Evaluate the curves and print, write or draw them; returns the exit code."""
    if options["what"] == "gdp":
        return show_gdp(kind, options, own)
    slack = options.pop("delta")
    if slack is not None:
        raise InvalidParameter("--delta", slack, "--what gdp with --delta, its slack")
    shape, largest, points = options.pop("what") or "delta", options.pop("epsilon_max"), options.pop("points")
    output, plot, style, names = options.pop("output"), options.pop("plot"), options.pop("style"), options.pop("bound")
    options.pop("clip", None)
    setting = take_run(options)
    mechanism = build_mechanism(kind, {name: options.pop(name) for name in own})
    x = grid(shape, largest, points)
    columns, foundations = {}, []
    for question in questions(mechanism, names, setting):
        curve = question.curve()
        columns[question.only.bound.name] = profile_points(curve, x) if shape == "delta" else tradeoff(curve, x)
        # What all points of the curve rest on, as a result has it; the value plays no role.
        foundations.append(question.result("curve", 1.0, None, numerics=numerics_of(curve)))
    label = "delta" if shape == "delta" else "false negative rate (lower bound)"
    if plot is not None:
        from .picture import draw

        draw(plot, x, columns, COLUMN[shape], label, mechanism.name)
    text = shown(style or "table", COLUMN[shape], label, x, columns, foundations)
    if output is not None:
        write_text(output, text + "\n")
    else:
        click.echo(text)
    for words in dict.fromkeys(words for result in foundations for words in result.warnings):
        click.echo("\n".join(render.wrap_line("warning: ", words)), err=True)
    return 0


def shown(
    style: str,
    name: str,
    label: str,
    x: list[float],
    columns: dict[str, list[float]],
    foundations: list[Result],
) -> str:
    """Return the curves as a table, CSV or JSON. Table and JSON say what each bound rests on and assumes."""
    if style == "json":
        facts = ("status", "promises", "assumes", "warnings")
        rows = [
            {"bound": bound, name: x, label: values, **{key: as_plain_value(getattr(result, key)) for key in facts}}
            for (bound, values), result in zip(columns.items(), foundations, strict=True)
        ]
        return render.as_json({"results": rows})
    if style == "csv":
        head = ",".join([name, *columns])
        return "\n".join([head, *(",".join(repr(v) for v in row) for row in zip(x, *columns.values(), strict=True))])
    head = f"{name:>20}" + "".join(f"  {bound:>22}" for bound in columns) + f"   {label}"
    rows = [f"{a:>20.6g}" + "".join(f"  {v:>22.4e}" for v in row) for a, *row in zip(x, *columns.values(), strict=True)]
    scale = ["rates are shares from 0 to 1: 0.01 is 1 %"] if "rate" in name else []
    rests = [line for result in foundations for line in render.wrap_line("rests on: ", render.foundation_line(result))]
    assumed = render.assumption_lines({result.bound: result.assumes for result in foundations})
    return "\n".join([head, *rows, *assumed, *rests, *scale])


def curve_command(name: str) -> click.Command:
    """Build the command ``privproj curve MECHANISM``."""
    kind = mechanism_named(name)
    own = mechanism_options(name, "curve")

    def callback(**options: Any) -> int:
        return show_curves(kind, options, [str(o.name) for o in own])

    return with_options(
        sectioned(
            own,
            run_options("compare"),
            [],
            [
                option("--bound", "A bound to draw; may be repeated; all: every bound.", type=str, multiple=True),
                option("--what", "What to draw.  [default: delta]", type=OneOf(["delta", "trade-off", "gdp"])),
                option("--delta", "Slack of the mu of --what gdp.  [default: 1e-9]", metavar="D0"),
                option("--epsilon-max", "Largest epsilon.  [default: 5]", metavar="E"),
                option("--points", "Number of points.  [default: 41]", metavar="N"),
                option("--style", "How to print.  [default: table]", type=OneOf(["table", "csv", "json"])),
                Once(["--output", "-o"], help="Write the numbers to a file.", metavar="FILE"),
                Once(["--plot"], help="Draw a picture (.png, .svg or .pdf; needs matplotlib).", metavar="FILE"),
            ],
        ),
        callback,
        name=name,
        help=f"{kind.summary}\n\n\b\nExample:\n  privproj curve {name} {' '.join(example_words(name, 'curve'))}",
        short_help=kind.summary,
    )


for mechanism_name in MECHANISMS:
    if mechanism_name != "wishart-matrix":
        command.add_command(curve_command(mechanism_name))
