"""``privproj sweep``: a grid of questions to a table, resumable, on many processes or a Dask cluster."""

import time

import click

from privproj.errors import InvalidParameter
from privproj.records.files import read_data
from privproj.records.journal import Runner, run_in_processes, run_inline, run_on_dask
from privproj.records.sweep import MOST_CORNERS, grid_from, run_sweep
from privproj.validation import whole

from . import render
from .options import Once, command_with, file_argument, json_option, option
from .output import bar


@command_with(
    "sweep",
    file_argument(),
    Once(["-o", "--output"], required=True, metavar="OUT", help="The table: a .csv or .parquet file."),
    option("--workers", "Processes of this machine.  [default: 1]", metavar="N", default=1.0),
    Once(["--dask"], metavar="ADDRESS", help="Scheduler of an existing Dask cluster (extra: sweep)."),
    json_option(),
)
def command(file: str, output: str, workers: float, dask: str | None, json: bool) -> int:
    """A grid of questions to a CSV or Parquet table; resumable.

    Every point of the grid is asked; rows go to a journal beside the table as they are done, so that the same command
    goes on after a kill. What is refused or has no answer keeps its row, with the reason.

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
    grid, began = grid_from(read_data(file), file), time.monotonic()
    with bar(len(grid), f"{len(grid)} questions") as step:
        found = run_sweep(grid, output, doer_for(workers, dask), step)
    seconds = time.monotonic() - began
    corners = {place: question.result(grid.query, 1.0, None) for place, question in grid.corners()}
    promises = {place: corner.promises for place, corner in corners.items()}
    assumed = {place: corner.assumes for place, corner in corners.items()}
    if json:
        said = {"promises": every(promises), "assumes": every(assumed)}
        data = {"rows": len(grid), "outcomes": found, "seconds": seconds, "output": output, **said}
        click.echo(render.as_json(data))
    else:
        parts = ", ".join(f"{count} {outcome}" for outcome, count in found.items())
        click.echo(f"{len(grid)} rows in {output}: {parts}; {len(grid) / max(seconds, 1e-9):.0f} rows/s")
        lines = [*render.assumption_lines(promises, "promise"), *render.assumption_lines(assumed)]
        if (ends := len(grid.ends)) > MOST_CORNERS:
            lines.append(f"promises and assumptions are those of {MOST_CORNERS} of {ends} ends of the grid")
        click.echo("\n".join(lines), nl=bool(lines))
    return 0


def every(said: dict[str, tuple[str, ...]]) -> list[str]:
    """Return every sentence once."""
    return list(dict.fromkeys(words for sentences in said.values() for words in sentences))


def doer_for(workers: float, dask: str | None) -> Runner:
    """Return who does the work: this process, several processes, or a Dask cluster."""
    count = whole("workers", workers, "a whole number of processes from 1 to 256", 1, 256)
    if dask is not None:
        if count > 1:
            raise InvalidParameter("--workers", count, "either --workers or --dask, not both")
        return run_on_dask(dask)
    return run_in_processes(count) if count > 1 else run_inline


COMMANDS = {"sweep": command}
