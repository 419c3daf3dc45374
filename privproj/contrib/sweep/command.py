"""Implement ``privproj sweep``: evaluate a grid of queries and write a table."""

import time
from collections.abc import Iterable, Mapping
from functools import partial

from privproj_cli import render
from privproj_cli.kinds import GRID_FILE, expecting
from privproj_cli.options import WORKERS, Once, command_with, file_argument, json_option, option, requirements_option
from privproj_cli.output import bar, draw, write

from privproj.accounting.query import build_result
from privproj.contrib.sweep.plot import lines_of, plotted_axis, settings_of_axes
from privproj.contrib.sweep.sweep import MOST_CORNERS, check_table, grid_from, run_sweep
from privproj.errors import InvalidParameterError
from privproj.io.files import check_not_same_file, read_data
from privproj.io.jobs import open_pool


@command_with(
    "sweep",
    file_argument(),
    Once(["-o", "--output"], required=True, metavar="OUT", help="Write the table to this .csv or .parquet file."),
    Once(["--plot"], metavar="FILE", help="Plot the values (.png, .svg or .pdf; needs matplotlib)."),
    option("--workers", "Set the number of processes.  [default: 1]", type=WORKERS, metavar="N", default=1),
    Once(["--dask"], metavar="ADDRESS", help="Use the Dask cluster with this scheduler (extra: sweep)."),
    json_option(),
    requirements_option(),
)
def sweep_command(
    file: str, output: str, plot: str | None, workers: int, dask: str | None, json: bool, verbose: bool
) -> int:
    """Evaluate a grid of queries, and write a CSV or Parquet table.

    privproj appends each finished row to a journal next to the table. Run the same command again to resume an
    interrupted sweep. A query without a result has a row with the reason.

    --plot draws the value against one numeric key of [grid], the one with the most values. Each combination of the
    other keys is a line.

    \b
    A grid file:
      query = "epsilon"
      mechanism = "m2"
      delta = 1e-5
      steps = 2000
      sampling_rate = 0.01
      [grid]
      dim = [1024, 2048]
      rank = [4, 16, 64]
      noise_multiplier = [0.1, 0.2, 0.4]

    \b
    Example:
      privproj sweep examples/grid.toml -o table.csv --workers 2
      privproj sweep examples/m2-ranks.toml -o figure.csv --plot figure.svg
    """
    if dask is not None and workers > 1:
        raise InvalidParameterError("--workers", workers, "omitted if --dask is given")
    with expecting(GRID_FILE, file):
        grid = grid_from(read_data(file), file)
    began = time.monotonic()
    check_table(output)
    check_not_same_file("--plot", plot, output, "written too")
    axis = plotted_axis(grid) if plot is not None else ""
    with bar(len(grid), f"{len(grid)} queries") as step:
        outcomes = run_sweep(grid, output, partial(open_pool, workers, dask), step)
    seconds = time.monotonic() - began
    if plot is not None:
        points, lines = lines_of(grid, output)
        settings = settings_of_axes(points, lines)
        draw(plot, points, lines, axis.replace("_", " "), grid.query, str(grid.fixed["mechanism"]), **settings)
    corners = {place: build_result(composition, grid.query, 1.0) for place, composition in grid.corners()}
    assumptions = {place: corner.data_assumptions for place, corner in corners.items()}
    required: dict[str, dict[str, None]] = {}
    for corner in corners.values():
        bound = f"{corner.mechanism['name']}.{corner.bound}"
        required.setdefault(bound, {}).update(dict.fromkeys(corner.requirements))
    if json:
        facts = {"data_assumptions": every(assumptions), "requirements": every(required)}
        data = {"rows": len(grid), "outcomes": outcomes, "seconds": seconds, "output": output, **facts}
        write(render.as_json(data))
    else:
        counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
        counts += " (column note has the reasons)" if outcomes.keys() - {"ok"} else ""
        partial_note = f"assumptions and requirements of {MOST_CORNERS} of the {len(grid.ends)} corners of the grid"
        parts = {
            "assumes": render.each_with_owners(assumptions),
            "outcomes": counts,
            "speed": f"{len(grid) / max(seconds, 1e-9):.0f} rows/s",
            "requires": render.requirements_of(required, verbose),
            "note": partial_note if len(grid.ends) > MOST_CORNERS else "",
        }
        write("\n".join([f"{len(grid)} rows written to {output}", *render.label_lines(parts)]))
    return 0


def every(sentences_of: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the distinct sentences of all values of a mapping."""
    return list(dict.fromkeys(sentence for sentences in sentences_of.values() for sentence in sentences))
