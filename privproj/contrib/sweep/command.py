"""Implement ``privproj sweep``: evaluate a grid of queries and write a table."""

import time
from functools import partial

from privproj_cli import render
from privproj_cli.options import WORKERS, Once, command_with, file_argument, json_option, option
from privproj_cli.output import bar, write

from privproj.accounting.query import build_result
from privproj.contrib.sweep.sweep import MOST_CORNERS, grid_from, run_sweep
from privproj.errors import InvalidParameterError
from privproj.io.files import read_data
from privproj.io.jobs import open_pool


@command_with(
    "sweep",
    file_argument(),
    Once(["-o", "--output"], required=True, metavar="OUT", help="The table: a .csv or .parquet file."),
    option("--workers", "Processes of this machine.  [default: 1]", type=WORKERS, metavar="N", default=1),
    Once(["--dask"], metavar="ADDRESS", help="Scheduler of an existing Dask cluster (extra: sweep)."),
    json_option(),
)
def sweep_command(file: str, output: str, workers: int, dask: str | None, json: bool) -> int:
    """Evaluate a query on a grid of parameters, and write a CSV or Parquet table.

    Rows are stored in a journal next to the table. If the sweep is interrupted, run the same command again to resume
    it. A point that is not supported or has no result keeps its row, with the reason.

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
    """
    if dask is not None and workers > 1:
        raise InvalidParameterError("--workers", workers, "either --workers or --dask, not both")
    grid, began = grid_from(read_data(file), file), time.monotonic()
    with bar(len(grid), f"{len(grid)} questions") as step:
        outcomes = run_sweep(grid, output, partial(open_pool, workers, dask), step)
    seconds = time.monotonic() - began
    corners = {place: build_result(question, grid.query, 1.0) for place, question in grid.corners()}
    promises = {place: corner.promises for place, corner in corners.items()}
    assumed = {place: corner.assumes for place, corner in corners.items()}
    if json:
        rests_on = {"promises": every(promises), "assumes": every(assumed)}
        data = {"rows": len(grid), "outcomes": outcomes, "seconds": seconds, "output": output, **rests_on}
        write(render.as_json(data))
    else:
        parts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
        lines = [f"{len(grid)} rows in {output}: {parts}; {len(grid) / max(seconds, 1e-9):.0f} rows/s"]
        lines += [*render.assumption_lines(promises, "promise"), *render.assumption_lines(assumed)]
        if (ends := len(grid.ends)) > MOST_CORNERS:
            lines.append(f"promises and assumptions are those of {MOST_CORNERS} of {ends} ends of the grid")
        write("\n".join(lines))
    return 0


def every(sentences_of: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the distinct sentences of all values."""
    return list(dict.fromkeys(sentence for sentences in sentences_of.values() for sentence in sentences))
