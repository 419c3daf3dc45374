"""Implement ``privproj curve``: delta(epsilon), trade-off functions or a GDP mu."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from privproj.accounting.gdp import DEFAULT_SLACK, solve_gdp_mu
from privproj.accounting.phase import phase_for
from privproj.accounting.query import Composition, build_result, composition_of, composition_of_phase
from privproj.errors import InvalidParameterError, PrivprojError
from privproj.io.files import check_not_same_file, write_text
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import bounds_of
from privproj.parameters import integer, privacy_epsilon
from privproj.profiles.tradeoff import profile_points, tradeoff
from privproj.result import Result, as_plain_value, round_outward
from privproj.run import RunOptions
from privproj.targets import slack_target

from . import render
from .options import Once, OneOf, option
from .output import draw, write
from .query import EXIT_CODES, QueryGroup, bound_option

COLUMN = {"delta": "epsilon", "trade-off": "false positive rate"}
POINTS = {"delta": profile_points, "trade-off": tradeoff}  # function that evaluates the points of each kind of curve

# options that only some kinds of curves have
TAKEN = {"delta": ("epsilon_max", "points", "plot"), "trade-off": ("points", "plot"), "gdp": ("delta",)}


def answers(
    mechanism: Mechanism, names: tuple[str, ...], run: RunOptions, evaluate: Callable[[Composition], Any]
) -> list[Any]:
    """Apply ``evaluate`` to a query with each of the named bounds; return the results.

    The name "all" means every bound that has a result.
    """
    if names != ("all",):
        return [evaluate(composition_of(mechanism, name, run)) for name in names or (None,)]
    answered = []
    for bound in bounds_of(type(mechanism)):
        with suppress(PrivprojError):
            answered.append(evaluate(composition_of_phase(phase_for(mechanism, bound, run))))
    # If no bound has a result, the default bound raises the reason.
    return answered or [evaluate(composition_of(mechanism, None, run))]


def grid(kind: str, epsilon_max: float | None, points: float | None) -> list[float]:
    """Return the epsilons, or false positive rates, at which a curve is evaluated."""
    count = integer("points", 41 if points is None else points, "an integer from 2 to 2000", 2, 2000)
    if kind == "trade-off":
        return [10.0 ** (-4.0 * (1.0 - i / (count - 1.0))) for i in range(count)]
    top = privacy_epsilon(5.0 if epsilon_max is None else epsilon_max, zero=False, name="epsilon_max")
    return [top * i / (count - 1.0) for i in range(count)]


@dataclass(frozen=True)
class Table:
    """A table of curves or of mu-GDP parameters, to be printed as text, CSV or JSON.

    ``records`` are the results for JSON. ``rows`` begin with the header. ``notes`` are further lines by label. ``say``
    formats a number as rounded text.
    """

    results: list[Result]
    records: list[Any]
    rows: list[list[Any]]
    notes: dict[str, Any]
    say: Callable[[Any], str]
    title: str = ""

    def text(self, style: str | None) -> str:
        """Return the table as JSON, as CSV with all digits, or as text with the bounds' requirements."""
        if style == "json":
            return render.as_json({"results": self.records})
        if style == "csv":
            return "\n".join(",".join(map(str, row)) for row in self.rows)
        cells = [[cell if isinstance(cell, str) else self.say(cell) for cell in row] for row in self.rows]
        results = {result.bound: result for result in self.results}
        parts = {
            **self.notes,
            "bound": ", ".join(map(render.bound_text, self.results)),
            **render.several_results(results),
        }
        title = render.fit_line("", self.title) if self.title else []
        return "\n".join([*title, *render.table_lines(">", cells), *render.label_lines(parts)])


def show_curves(
    mechanism: Mechanism, run: RunOptions, bound: tuple[str, ...], what: str | None, delta: float | None,
    style: str | None, output: str | None, plot: str | None, **axis: float | None,
) -> int:  # fmt: skip
    """Print delta(eps), the trade-off function or one GDP mu as a table, CSV or JSON, or plot it."""
    check_not_same_file("--plot", plot, output, "written too")
    shape = what or "delta"
    for name, value in {**axis, "plot": plot, "delta": delta}.items():
        if value is not None and name not in TAKEN[shape]:
            wrong = f"--{name.replace('_', '-')}"
            raise InvalidParameterError(wrong, value, f"omitted with --what {shape}")
    if shape == "gdp":
        table = table_of_mu(mechanism, run, bound, DEFAULT_SLACK if delta is None else delta)
    else:
        table = table_of_curves(mechanism, run, bound, shape, grid(shape, **axis), plot)
    if output is not None:
        write_text(output, table.text(style) + "\n")
    else:
        write(table.text(style))
    warnings = dict.fromkeys(sentence for result in table.results for sentence in result.warnings)
    if warnings:
        write("\n".join(render.warning_lines(warnings)), sys.stderr)
    return max((EXIT_CODES[result.outcome] for result in table.results), default=0)


def table_of_curves(
    mechanism: Mechanism, run: RunOptions, bound: tuple[str, ...], shape: str, x: list[float], plot: str | None
) -> Table:
    """Return a table with the privacy profile or trade-off function by each bound.

    ``shape`` is "delta" or "trade-off", ``x`` are epsilons or false positive rates, and ``plot`` is a file to write or
    None.
    """

    def drawn(query: Composition) -> tuple[list[float], Result]:
        curve = query.curve()
        # All points have the bound, the run and the assumptions of one result; the value of that result is not used.
        return POINTS[shape](curve, x), build_result(query, "curve", 1.0, curve=curve)

    curves = answers(mechanism, bound, run, drawn)
    name, label = COLUMN[shape], "delta" if shape == "delta" else "false negative rate (lower bound)"
    columns = {result.bound: points for points, result in curves}
    if plot is not None:
        draw(plot, x, columns, name, label, mechanism.name)
    facts = ("status", "data_assumptions", "requirements", "warnings")
    records = [
        {"bound": result.bound, name: x, label: points, **{key: as_plain_value(getattr(result, key)) for key in facts}}
        for points, result in curves
    ]
    axis, scale = ("false positive rate", " (rates from 0 to 1)") if "rate" in name else (name, "")
    rows = [[name, *columns], *map(list, zip(x, *columns.values(), strict=True))]

    # Epsilons and rates are rounded outward too: deltas hold at or beyond the printed epsilon, false negative rates at
    # or before the printed rate.
    def say(value: float) -> str:
        if shape == "delta" and value > 0.0:
            return render.delta_shown(value)
        return round_outward(value, up=shape == "delta")

    title = f"{label} at each {axis}{scale}, with one column for each bound:"
    return Table([result for _, result in curves], records, rows, {}, say, title)


def table_of_mu(mechanism: Mechanism, run: RunOptions, bound: tuple[str, ...], slack: float) -> Table:
    """Return a table with mu of Gaussian DP by each bound, rounded up."""
    target = slack_target(slack)
    answered = answers(mechanism, bound, run, lambda one: solve_gdp_mu(one, target))
    results: list[Any] = [result for result in answered if result.usable or bound != ("all",)]
    rows: list[list[Any]] = [["bound", "status", "mu", "slack", "exact_from", "regret"]]
    for one in results:
        numbers = float(one.value or 0.0), float(one.delta or 0.0), one.numerics["exact_from"], one.numerics["regret"]
        rows.append([one.bound, str(one.status), *numbers])
    return Table(results, results, rows, {"meaning": render.GDP_NOTES}, round_outward)


command = QueryGroup(
    "curve",
    show_curves,
    [
        bound_option(
            "Evaluate this bound. Repeat the option for several bounds; all stands for every bound.", multiple=True
        ),
        option("--what", "Choose the curve.  [default: delta]", type=OneOf(["delta", "trade-off", "gdp"])),
        option("--delta", "Set the slack of --what gdp.  [default: 1e-9]", metavar="D0"),
        option("--epsilon-max", "Set the largest epsilon.  [default: 5]", metavar="E", is_rare=True),
        option("--points", "Set the number of points.  [default: 41]", metavar="N", is_rare=True),
        option("--style", "Choose the format.  [default: table]", type=OneOf(["table", "csv", "json"])),
        Once(["--output", "-o"], help="Write the numbers to a file.", metavar="FILE"),
        Once(["--plot"], help="Write a plot (.png, .svg or .pdf; needs matplotlib).", metavar="FILE"),
    ],
)


COMMANDS = {"curve": command}
