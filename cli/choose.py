"""Implement ``privproj choose``: compare training algorithms at the same privacy."""

from typing import Any

from privproj.accounting.utility import Choice, choose
from privproj.errors import InvalidParameterError
from privproj.mechanisms import M2
from privproj.parameters import parameters_of
from privproj.result import round_outward

from . import output, render
from .options import SectionedCommand, option, option_of, options_from, requirements_option
from .query import (
    COMPUTED,
    json_option,
    run_options,
    take_run,
)

# meaning of the columns of the table
LEGEND = {
    "algorithm": "m2 clips each gradient, and projects the noisy sum. m2-projected-clip clips the projected gradients. "
    "projected-dp-sgd maps each projected gradient back to the full dimension, clips it, and projects the noisy sum. "
    "`privproj explain NAME` describes each one.",
    "noise": "standard deviation of the noise on the update, divided by the value for DP-SGD at the same privacy. The "
    "noise multipliers of m2 and dp-sgd are not comparable.",
    "error": "mean squared projection error, divided by the squared norm of the update: for one step, and for the mean "
    "over all steps of the run, each with a fresh projection",
    "size": "numbers in one release, in percent of the numbers in the gradient",
    "ranking": "by error (run) + noise^2, smallest first. This is a heuristic: it does not predict accuracy.",
}
OWN_PROGRAM = "privproj accounts for the mechanism, but does not train with it"  # for an algorithm of this name
# further explanations of the table, for --verbose
DETAILS = {
    "heuristic": "The ranking assumes that DP-SGD's noise, averaged over the run, is as large as the update. Noise "
    "matters less for large batches. Only an experiment measures accuracy.",
    "per-layer clipping": "Records whose gradient is concentrated in few layers are clipped harder. Layers that are "
    "projected less get less of the noise. A noise below 1 does not mean a better model.",
    "not listed": "lora-fa, lora-resampled, prism and dp-sft train part of the weights, with DP-SGD's noise "
    "multiplier. flora uses one projection for several steps, so its error averages out more slowly.",
}


def table(rows: tuple[Choice, ...], verbose: bool = False) -> str:
    """Return the table of algorithms as text, with a legend and their requirements."""
    first = rows[0].result
    title = f"training algorithms at {first.target_text}, sorted by error (run) + noise^2"
    head = ("algorithm", "rank", "noise multiplier", "noise (x DP-SGD)", "error (step)", "error (run)", "size (%)")
    lines = render.table_lines("<>>>>>>", [head, *map(cells, rows)])
    named = {row.name: row.result for row in rows}
    # An algorithm requires what any of its ranks requires.
    required = {
        name: list(dict.fromkeys(text for row in rows if row.name == name for text in row.result.requirements))
        for name in named
    }
    plain = next(row for row in rows if row.rank is None)
    bounds = [f"{name}: {of.mechanism['name']}, {render.bound_text(of)}" for name, of in named.items()]
    parts = {
        **LEGEND,
        "own program": OWN_PROGRAM if any(row.algorithm is None for row in rows) else "",
        **(DETAILS if verbose else {}),
        "assumes": render.each_with_owners({name: of.data_assumptions for name, of in named.items()}),
        "bound": bounds if verbose else (),
        "run": render.run_line(first),
        "neighbors": render.each_with_owners({name: [render.neighbors_text(of)] for name, of in named.items()}),
        "requires": render.requirements_of(required, verbose),
    }
    lines += render.label_lines(parts)
    return "\n".join([*render.fit_line("", title), *lines, *render.warning_lines(plain.result.warnings)])


def cells(row: Choice) -> tuple[str, ...]:
    """Return the table cells of one algorithm at one rank."""
    utility, noise = row.utility, round_outward(row.result.value or 0.0)
    missed = f"{utility.projection_error:.4g}", render.two_digits(utility.projection_error_of_run)
    part = f"{100.0 * utility.released / utility.of:.3g}" if utility.released and utility.of else "-"
    return row.name, str(row.rank or "-"), noise, f"{utility.noise_over_dp_sgd:.3f}", *missed, part


def choose_algorithm(
    layer: Any, rank: Any, epsilon: float, delta: float, json: bool, verbose: bool, plot: str | None, **options: Any
) -> int:  # fmt: skip
    """Compare all training algorithms at one epsilon and delta by the noise and the error of their updates.

    \b
    Example:
      privproj choose --layer 1024x16x24 --batch-size 512 --dataset-size 120000 --epochs 5 --epsilon 2 --delta 1e-6
    """
    rows = choose(layers=layer, ranks=rank, epsilon=epsilon, delta=delta, **take_run(options, "sigma"))
    if plot is not None:
        draw(plot, rows, sorted({row.rank for row in rows if row.rank is not None}))
    output.write(render.as_json({"choices": [*rows]}) if json else table(rows, verbose))
    return 0


def draw(path: str, rows: tuple[Choice, ...], ranks: list[int]) -> None:
    """Plot the error of each algorithm's mean update against the rank."""
    if len(ranks) < 2:
        raise InvalidParameterError(
            "--plot", path, "omitted with a single --rank", "repeat --rank to plot several ranks"
        )
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
            option("--rank", "Try this rank instead of those of --layer. May be repeated.", metavar="R", multiple=True),
        ],
        "Run": [one for one in run_options("sigma") if one.name not in COMPUTED],
        "Target": options_from(choose, "epsilon", "delta"),
        "Output": [
            json_option(),
            requirements_option(),
            option("--plot", "Write a plot of the error against the rank (.png, .svg, .pdf).", metavar="FILE"),
        ],
    },
    callback=choose_algorithm,
    name="choose",
    help=choose_algorithm.__doc__,
)  # fmt: skip


COMMANDS = {"choose": choose_command}
