"""Implement ``privproj choose``: compare training algorithms at the same privacy."""

from typing import Any

from privproj.accounting.utility import Choice, choose
from privproj.errors import InvalidParameterError
from privproj.mechanisms import M2
from privproj.parameters import parameters_of
from privproj.result import round_outward

from . import output, render
from .options import SectionedCommand, option, option_of, options_from
from .query import (
    COMPUTED,
    json_option,
    run_options,
    take_run,
)

# meaning of the columns of the table
LEGEND = {
    "noise": "how many times as much noise as DP-SGD's the update has, at this privacy",
    "missed": "what projecting does to the update, over its square, in one step and, averaged by fresh projections, "
    "over the run",
    "order": "missed in the run, plus the square of noise: as if DP-SGD's noise, averaged over the run, were as large "
    "as the update. With many records a batch it matters less; only an experiment says how accurate a model is",
    "clips": "with clips per layer a record is cut more whose gradient sits in few layers, and layers that are "
    "projected less have less of the noise: a noise below 1 is no better model",
    "size": "numbers of a release beside those of the gradient: what is kept and sent for a step",
    "not here": "lora-fa, lora-resampled, prism and dp-sft train a part of the weights, with dp-sgd's noise "
    "multiplier; flora keeps a projection for several steps, and so averages less",
}


def table(rows: tuple[Choice, ...]) -> str:
    """Return the rows as text, best first, with the legend and the requirements of the algorithms."""
    run: Any = rows[0].result.run
    title = f"training with {rows[0].result.target_words}: {render.run_words(run)}; best first"
    head = ("algorithm", "rank", "noise multiplier", "noise", "missed: step", "run", "size")
    lines = render.table_lines("<>>>>>>", [head, *map(cells, rows)])
    named = {row.name: row.result for row in rows}
    # An algorithm assumes what any of its ranks assumes.
    assumed = {
        name: dict.fromkeys(w for row in rows if row.name == name for w in row.result.requirements) for name in named
    }
    plain = next(row for row in rows if row.rank is None)
    parts = {
        **LEGEND,
        "rests on": [
            f"{name}: {of.mechanism['name']}, {of.bound} ({of.status}); {render.relation_words(of)}"
            for name, of in named.items()
        ],
        "requirements": render.each_with_owners(assumed),
        "warning": plain.result.warnings,
    }
    return "\n".join([*render.fit_line("", title), *lines, *render.labeled(parts)])


def cells(row: Choice) -> tuple[str, ...]:
    """Return the cells of one row of the table."""
    utility, noise = row.utility, round_outward(row.result.value or 0.0)
    missed = f"{utility.projection_error:.4g}", render.two_digits(utility.projection_error_of_run)
    part = f"{100.0 * utility.released / utility.of:.3g} %" if utility.released and utility.of else "-"
    return row.name, str(row.rank or "-"), noise, f"{utility.noise_over_dp_sgd:.3f}", *missed, part


def choose_algorithm(
    layer: Any, rank: Any, epsilon: float, delta: float, json: bool, plot: str | None, **options: Any
) -> int:
    """Compare all training algorithms at one epsilon and delta by the noise and the error of their updates.

    \b
    Example:
      privproj choose --layer 1024x16x24 --batch-size 512 --dataset-size 120000 --epochs 5 --epsilon 2 --delta 1e-6
    """
    rows = choose(layers=layer, ranks=rank, epsilon=epsilon, delta=delta, **take_run(options, "sigma"))
    if plot is not None:
        draw(plot, rows, sorted({row.rank for row in rows if row.rank is not None}))
    output.write(render.as_json({"choices": [*rows]}) if json else table(rows))
    return 0


def draw(path: str, rows: tuple[Choice, ...], ranks: list[int]) -> None:
    """Plot the error of the mean update against the rank, one line for each algorithm."""
    if len(ranks) < 2:
        raise InvalidParameterError("--plot", path, "several --rank with --plot")
    errors = {(row.name, row.rank): row.utility.error for row in rows if row.algorithm}
    names = [name for name in dict.fromkeys(row.name for row in rows) if (name, ranks[-1]) in errors]
    columns = {name: [errors[name, rank] for rank in ranks] for name in names} | {"dp-sgd": [1.0] * len(ranks)}
    axes: Any = {"xscale": "log", "xticks": ranks, "xticklabels": ranks, "yscale": "linear"}
    axes |= {"ylim": (0.9, 1.1 * max(errors.values()))}
    title, label = "Error of the mean update", "over the noise of DP-SGD"
    output.draw(path, [*map(float, ranks)], columns, "rank", label, title, **axes)


choose_command = SectionedCommand(
    {
        "Layers": [
            option_of("layers", parameters_of(M2)["layers"], required=True),
            option("--rank", "Ranks to try, in place of the layers' own.", metavar="R", multiple=True),
        ],
        "Run": [one for one in run_options("sigma") if one.name not in COMPUTED],
        "Target": options_from(choose, "epsilon", "delta"),
        "Answer": [
            json_option(),
            option("--plot", "Picture of the error against the rank (.png, .svg, .pdf).", metavar="FILE"),
        ],
    },
    callback=choose_algorithm,
    name="choose",
    help=choose_algorithm.__doc__,
)  # fmt: skip


COMMANDS = {"choose": choose_command}
