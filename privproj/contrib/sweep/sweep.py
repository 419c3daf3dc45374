"""Evaluate a query at every point of a grid of parameters, and write a table.

The table has one row for each point. Finished rows are appended to a journal, so that an interrupted sweep can resume.
"""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from random import Random
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, BinaryIO

from privproj.accounting import config as spec
from privproj.accounting.batch_notes import known_size, warnings_of_delta
from privproj.accounting.phase import Phase
from privproj.accounting.query import Composition
from privproj.errors import InvalidParameterError, PrivprojError, QueryError, within
from privproj.io.files import check_output, write_atomically
from privproj.io.jobs import Pool, complete_rows, open_pool
from privproj.lazy import import_extra
from privproj.result import Outcome, Side

if TYPE_CHECKING:
    from privproj.accounting.vectorized import ColumnAnswers

MOST_POINTS = 10**7  # points, largest size of a table

PROBED_POINTS = 10**5  # points that are tried until one is a valid query, which takes about a second

MOST_CORNERS = 4096  # largest number of queries of a grid whose assumptions are listed

# Placeholder values of the calibrated parameter, for queries of which only the assumptions are needed. Other queries
# calibrate a parameter of the mechanism.
STAND_INS = {"epsilon": {}, "delta": {}, "rate": {"sampling_rate": 0.5}, "steps": {"steps": 2}}

# columns of the table after those of the axes: fields of a result, and a note
COLUMNS: tuple[str, ...] = (
    "value", "lower", "upper", "side", "bound", "status", "outcome", "epsilon", "delta", "log10_delta",
    "noise_multiplier", "note",
)  # fmt: skip

OUTCOMES = (*Outcome, "invalid")  # values of the column ``outcome``

TEXTS = ("side", "bound", "status", "outcome", "note")  # columns of text


@dataclass(frozen=True)
class Grid:
    """A query on a grid of parameters, evaluated at every combination of their values.

    A point is one combination. Points are numbered as in nested loops, with the last parameter innermost. Calling the
    grid with a range of numbers returns the table rows of these points.

    Attributes:
        query: The quantity that is computed, such as "epsilon".
        fixed: The parameters that have one value at all points.
        axes: The list of values of each other parameter.
    """

    query: str
    fixed: dict[str, Any]
    axes: dict[str, list[Any]]

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    @property
    def names(self) -> list[str]:
        """The column names of the table: the varied parameters, then fields of a result."""
        return [*self.axes, *(name for name in COLUMNS if name not in self.axes)]

    @property
    def head(self) -> str:
        """The two header lines of the journal of finished rows: the grid and the columns."""
        from privproj.version import __version__

        title = {"sweep": self.query, "fixed": self.fixed, "grid": self.axes, "version": __version__}
        return json.dumps(title, sort_keys=True) + "\n" + ",".join(self.names) + "\n"

    def columns(self, numbers: Sequence[int]) -> dict[str, list[Any]]:
        """Return the values of each varied parameter at the points with these numbers."""
        columns, stride = {}, len(self)
        for name, values in self.axes.items():
            stride //= len(values)
            columns[name] = [values[number // stride % len(values)] for number in numbers]
        return columns

    def point(self, number: int) -> dict[str, Any]:
        """Return the value of each varied parameter at one point."""
        return {name: values[0] for name, values in self.columns([number]).items()}

    def keys(self, number: int) -> dict[str, Any]:
        """Return the fixed and the varied parameters of the query at one point."""
        return {**self.fixed, **self.point(number)}

    @property
    def ends(self) -> "Grid":
        """The grid with only the smallest and the largest value of each numeric parameter."""
        return replace(self, axes={name: _ends_of(values) for name, values in self.axes.items()})

    def composition(self, number: int) -> Composition:
        """Return the query at a point, with a placeholder for the parameter to solve for.

        Raises:
            InvalidParameterError: The parameters are not valid.
        """
        keys = {**self.keys(number), **STAND_INS.get(self.query, {})}
        composition = spec.composition_from(keys, self.query)
        spec.target_from(keys, self.query)
        if self.query in STAND_INS:
            with suppress(QueryError):
                composition.check()
        return composition

    def corners(self) -> list[tuple[str, Composition]]:
        """Return queries at extreme parameter values, each with these values as text.

        At most :data:`MOST_CORNERS` queries are returned, chosen at random.
        """
        ends = self.ends
        places = range(len(ends))
        some = sorted(Random(0).sample(places, min(len(places), MOST_CORNERS)))
        # if none is valid, the query at the first valid point
        return list(ends.compositions(some)) or list(islice(self.compositions(range(min(len(self), PROBED_POINTS))), 1))

    def compositions(self, numbers: Iterable[int]) -> Iterator[tuple[str, Composition]]:
        """Yield the varied parameters, as text, and the query of each valid point."""
        for number in numbers:
            with suppress(PrivprojError):
                composition = self.composition(number)
                yield " ".join(f"{name}={value}" for name, value in self.point(number).items()), composition

    def __call__(self, numbers: range) -> str:
        """Return the table rows of the points with these numbers, as lines of CSV."""
        # Arrays need numpy, which is slow to import.
        in_columns = len(self) >= 64 and self.query in spec.SOLVERS
        rows = self._rows_in_columns(numbers) if in_columns else [None] * len(numbers)
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerows(row or self._row_alone(number) for row, number in zip(rows, numbers, strict=True))
        return lines.getvalue()

    def _row_alone(self, number: int) -> Sequence[Any]:
        """Return the table row of one point, evaluated by a scalar query."""
        cells = {**_cells_of(self.query, self.keys(number)), **self.point(number)}
        return [_cell(cells.get(name)) for name in self.names]

    def _rows_in_columns(self, numbers: range) -> Sequence[Sequence[Any] | None]:
        """Return the table rows of points that are evaluated together as arrays.

        A row is None if arrays do not support its point.
        """
        from privproj.accounting.vectorized import ROW_WEIGHTS, checked_phase, read_columns
        from privproj.numerics.jit import expect_rows

        def phase_at(i: int) -> Phase:
            keys = self.keys(numbers[i])
            return checked_phase(spec.composition_from(keys, self.query).only, spec.target_from(keys, self.query))

        axes = self.columns(numbers)
        # Cached machine code is not loaded, so that an interrupted and resumed sweep gives the same digits.
        # The choice of machine code depends on the whole grid, so that a row does not depend on its batch.
        with expect_rows(len(self) * ROW_WEIGHTS[self.query], may_load=False):
            read = read_columns(self.query, self.fixed, axes, len(numbers), phase_at)
            if not read.phases:
                return [None] * len(numbers)
            cells = {**_cells_in_columns(read), **{name: map(_cell, column) for name, column in axes.items()}}
        rows = zip(*(cells[name] for name in self.names), strict=True)
        return [row if shape >= 0 else None for row, shape in zip(rows, read.shape.tolist(), strict=True)]


def _ends_of(values: list[Any]) -> list[Any]:
    """Return the least and the largest number, or all values if some are not numbers."""
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return [min(values), max(values)][: len(values)] if plain else values


def grid_from(data: Mapping[str, Any], where: str = "grid file") -> Grid:
    """Return the grid of parameters that a grid file describes.

    ``data`` is the content of the file. Its table ``grid`` has a list of values for each varied parameter.

    Raises:
        InvalidParameterError: A key is not valid, or no point is a valid query.
    """
    keys = spec.with_unique_keys(data, where)
    axes = spec.with_unique_keys(keys.pop("grid", {}), f"{where}: grid")
    with within(where):
        if not axes:
            raise InvalidParameterError(
                "grid",
                "nothing",
                "a table",
                "give a table [grid] with a list of values for each varied key, such as rank = [4, 16]",
            )
        query = spec.check_entry(keys, ())
        keys.pop("query", None)
        _check_axes(axes, keys, query)
        points = math.prod(map(len, axes.values()))
        if points > MOST_POINTS:
            raise InvalidParameterError("grid", f"{points} points", f"at most {MOST_POINTS} points")
        grid = Grid(query, keys, axes)
        if points <= PROBED_POINTS and next(grid.compositions(range(points)), None) is None:
            grid.composition(0)
    return grid


def _check_axes(axes: Mapping[str, Any], fixed: Mapping[str, Any], query: str) -> None:
    """Raise :class:`InvalidParameterError` if a varied parameter is not valid.

    Its values must be distinct, and it must have no fixed value.
    """
    kinds = spec.keys_of(spec.mechanism_type_of(fixed), ("bound",), query)
    for name, values in axes.items():
        if name in fixed:
            raise InvalidParameterError(f"grid.{name}", values, f"omitted if {name} has a fixed value")
        # Equal numbers of different types are one value.
        distinct = {x if isinstance(x, int | float) else repr(x) for x in values} if isinstance(values, list) else ()
        if not distinct or len(distinct) < len(values):
            raise InvalidParameterError(f"grid.{name}", values, "a list of one or more distinct values")
        for value in values:
            with within("grid"):
                spec.check_keys({name: value}, kinds)


def _cells_of(query: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Evaluate one query, and return its table cells by column."""
    result, outcome, note = None, "not_converged", ""
    try:
        result = spec.evaluate_entry(query, keys)
    except PrivprojError as error:
        result, outcome, note = getattr(error, "result", None), getattr(error, "outcome", "invalid"), str(error)
    except (ArithmeticError, ValueError, LookupError, RuntimeError, MemoryError) as error:
        note = f"an undefined value ({error}); please report these parameters"
    cells: dict[str, Any] = {"outcome": outcome} if result is None else result.as_dict()
    return {**cells, "note": _one_line(note or "; ".join(cells.get("warnings", ())))}


def _cells_in_columns(read: "ColumnAnswers") -> dict[str, Iterable[Any]]:
    """Return the table cells, by column, of queries that were evaluated as arrays."""
    import numpy as np

    from privproj.accounting.vectorized import SOUGHT

    value, of_delta = read.value, read.quantity == "delta"
    numbers = {**read.numbers, SOUGHT[read.quantity]: value, "value": value, "lower": read.lower, "upper": value}
    cells: dict[str, Any] = {name: numbers[name].astype(object) for name in COLUMNS if name in numbers}
    # A lower bound of 0 is not informative, and log10_delta replaces a delta of 0.
    name = "lower" if of_delta else "delta"
    cells[name][numbers[name] == 0.0] = None
    # The text depends on the shape of the row, on whether delta is below 1e-300, and on whether delta is above 1/N.
    shares = np.array([1.0 / (known_size([phase]) or math.nan) for phase in read.phases])
    is_large = numbers["delta"] >= shares[read.shape]
    keys = list(zip(read.shape.tolist(), (read.small & of_delta).tolist(), is_large.tolist(), strict=True))
    text_cells = {key: _text_cells_of(read, *key) for key in set(keys)}
    return {**cells, **dict(zip(TEXTS, zip(*map(text_cells.__getitem__, keys), strict=True), strict=True))}


def _text_cells_of(read: "ColumnAnswers", shape: int, small: bool, is_large: bool) -> tuple[str, ...]:
    """Return the text cells of a table row, in the order of :data:`TEXTS`.

    ``shape`` is the index in ``read.phases`` of the phase of the row. ``small`` is True if a computed delta is below
    1e-300. ``is_large`` is True if delta is at least ``1/N`` for the dataset size ``N``.
    """
    phase = read.phases[shape]
    side = Side.UPPER if small else read.sides[shape]
    notes = (*phase.notes, *warnings_of_delta(known_size([phase]), float(is_large)))
    return side, phase.bound.name, phase.status, Outcome.OK, _one_line("; ".join(notes))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _cell(value: Any) -> Any:
    """Return the value of a parameter as a table cell; a list is joined by spaces."""
    return " ".join(map(str, value)) if isinstance(value, list) else value


# --- the table ----------------------------------------------------------------------------------------


def run_sweep(
    grid: Grid, out: str | Path, pool: Pool = open_pool, progress: Callable[[int], object] = lambda count: None
) -> dict[str, int]:
    """Evaluate a grid, write the table, and return the number of rows by outcome.

    An interrupted sweep resumes from a journal next to the table.

    Raises:
        InvalidParameterError: ``out`` exists and is not the table of this grid.
    """
    check_table(out)
    path, journal = Path(out), Path(f"{out}.journal")
    if path.exists() and not journal.exists():
        if not path.is_file() or not _is_table_of(grid, path):
            expected = "a new file, or the table of this grid"
            raise InvalidParameterError("--output", path, expected, "name another file")
    else:
        with complete_rows(grid, len(grid), journal, grid.head, pool, progress, "--output: journal") as table:
            fill = partial(_fill_parquet, grid) if path.suffix == ".parquet" else copyfileobj
            write_atomically(path, partial(fill, table))
            journal.unlink()
    outcomes = map(itemgetter(grid.names.index("outcome")), islice(read_table(path), 1, None))
    return dict(sorted(Counter(outcomes).items()))


def check_table(out: str | Path) -> None:
    """Raise :class:`InvalidParameterError` unless a table can be written to this path."""
    check_output(str(out), "--output")
    path = Path(out)
    if not path.parent.is_dir():
        raise InvalidParameterError("--output", out, "in a folder that exists")
    if path.suffix not in (".csv", ".parquet") and (path.is_file() or not path.exists()):
        raise InvalidParameterError("--output", out, "a .csv or .parquet file")


def _is_table_of(grid: Grid, path: Path) -> bool:
    """Return whether a file has the columns, points and first result of a grid."""
    try:
        rows = read_table(path)
        if next(rows, None) != grid.names:
            return False
        (first,) = csv.reader([grid(range(1))])
        for number, row in zip(range(len(grid)), rows, strict=True):
            cells = dict(zip(grid.names, row, strict=True))
            expected_row = [str(_cell(value)) for value in grid.point(number).values()] if number else first
            if cells["outcome"] not in OUTCOMES or not all(map(_is_equal_cell, row, expected_row)):
                return False
        return True
    except (OSError, ValueError, TypeError, csv.Error):
        return False


def _is_equal_cell(cell: Any, text: str) -> bool:
    """Return whether a table cell equals a text, up to rounding of numbers."""
    cell_text = "" if cell is None else str(cell)
    return cell_text == text or math.isclose(float(cell_text), float(text))


def read_table(path: Path) -> Iterator[Sequence[Any]]:
    """Yield the column names of a CSV or Parquet table, then its rows."""
    if path.suffix == ".parquet":
        table = _import_arrow(".parquet").ParquetFile(path)
        yield table.schema_arrow.names
        for batch in table.iter_batches():
            yield from zip(*batch.to_pydict().values(), strict=True)
    else:
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.reader(file)


def _fill_parquet(grid: Grid, table: BinaryIO, file: BinaryIO) -> None:
    """Write the rows of a CSV table as Parquet, with columns of numbers and of text."""
    arrow, reader, parquet = map(_import_arrow, ("", ".csv", ".parquet"))
    types = dict.fromkeys(COLUMNS, arrow.float64()) | dict.fromkeys(TEXTS, arrow.string())
    for name, values in grid.axes.items():
        kinds = set(map(type, values))
        types[name] = arrow.string() if kinds - {int, float} else arrow.float64() if float in kinds else arrow.int64()
    rows = reader.open_csv(table, convert_options=reader.ConvertOptions(column_types=types, null_values=[""]))
    with parquet.ParquetWriter(file, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)


def _import_arrow(part: str = "") -> Any:
    """Import ``pyarrow`` or its module ``pyarrow.csv`` or ``pyarrow.parquet``."""
    return import_extra(f"pyarrow{part}", "a .parquet file", "sweep", ", or write a .csv")
