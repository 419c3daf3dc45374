"""A grid of questions: one row of plain text for each point, which does not depend on who computes it."""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from privproj.accounting.evaluate import FOUND, TARGETS
from privproj.errors import InvalidParameter, MissingPackage, PrivprojError, Unanswered, raise_within, unknown_name
from privproj.records.atomic import write_atomically
from privproj.records.entries import (
    TEXT,
    answer_entry,
    check_keys,
    check_type,
    keys_of,
    mechanism_type_of,
    question_from,
    target_from,
    with_unique_keys,
)
from privproj.records.journal import Journal, complete_rows
from privproj.records.workers import Row, Runner, run_inline
from privproj.result import Result

MOST_POINTS = 10**7
"""The largest number of points of a grid. Contract."""

PROBED_POINTS = 10**5
"""How many points are looked at, at most, until one is found that is a valid question. Speed only."""
FIXED_KEYS = ("mechanism", "bound")
"""Keys that have one value for the whole grid, besides the parameters."""

FIELDS = ("value", "lower", "upper", "side", "bound", "status", "outcome", "epsilon", "delta", "log10_delta")
"""Fields of a result that become columns of the table."""

COLUMNS = (*FIELDS, "noise_multiplier", "note")
"""The columns of the table after those of the axes."""


@dataclass(frozen=True)
class _Grid:
    """A query, fixed keys, and axes of values; its points are in the order of nested loops, the last axis innermost."""

    query: str
    fixed: dict[str, Any]
    axes: dict[str, list[Any]]

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def point(self, index: int) -> dict[str, Any]:
        """The value of every axis at the point of this number."""
        found = {}
        for name, values in reversed(self.axes.items()):
            index, place = divmod(index, len(values))
            found[name] = values[place]
        return {name: found[name] for name in self.axes}

    def tasks(self) -> Iterator[tuple[int, tuple[str, dict[str, Any]]]]:
        """Every point with its number: the query, and all keys of the question."""
        for index in range(len(self)):
            yield index, (self.query, {**self.fixed, **self.point(index)})

    def title(self) -> dict[str, Any]:
        """What a journal of this grid belongs to: the query, the keys, the axes and the version."""
        from privproj.version import __version__

        return {"sweep": self.query, "fixed": self.fixed, "grid": self.axes, "version": __version__}


def grid_from(data: Mapping[str, Any], where: str = "grid file") -> _Grid:
    """The grid of a file: ``query``, ``mechanism``, fixed keys and a table ``[grid]`` of lists.

    Raises :class:`InvalidParameter` that names the key for anything else, and where no point is a valid question.
    """
    given = with_unique_keys(data, where)
    axes = with_unique_keys(given.pop("grid", None), f"{where}: grid")
    try:
        query = check_type("query", given.pop("query", "epsilon"), TEXT)
        if query not in TARGETS:
            raise unknown_name("query", query, "a query", TARGETS)
        if not axes:
            raise InvalidParameter("grid", "nothing", "a table [grid] of lists")
        check_keys(given, keys_of(mechanism_type_of(given), FIXED_KEYS, query))
        _check_axes(axes, given, query)
        found = _Grid(query, given, axes)
        if len(found) > MOST_POINTS:
            raise InvalidParameter("grid", f"{len(found)} points", f"at most {MOST_POINTS} points")
        _check_points(found)
    except InvalidParameter as error:
        raise_within(error, where)
    return found


def _check_axes(axes: Mapping[str, Any], fixed: Mapping[str, Any], query: str) -> None:
    """Raise :class:`InvalidParameter` unless every axis lists different values of a key that is not fixed."""
    known = keys_of(mechanism_type_of(fixed), ("bound",), query)
    for name, values in axes.items():
        place = f"grid.{name}"
        if name in fixed:
            raise InvalidParameter(place, values, f"{name} either fixed or in [grid], not both")
        if not isinstance(values, list) or not values:
            raise InvalidParameter(place, values, "a list that is not empty")
        for i, value in enumerate(values):
            if value in values[:i]:
                raise InvalidParameter(place, value, "a list of different values")
            try:
                check_keys({name: value}, known)
            except InvalidParameter as error:
                raise InvalidParameter(place, error.value, error.expected) from None


def _check_points(grid: _Grid) -> None:
    """Raise the error of the first point if none of the points, up to :data:`PROBED_POINTS`, is a valid question."""
    first = None
    for _, (query, given) in islice(grid.tasks(), PROBED_POINTS):
        try:
            question, _ = question_from(given, query), target_from(given, query)
            question.check()
            return
        except Unanswered:
            return
        except InvalidParameter as error:
            if error.name in FOUND.get(query, ()):
                return
            first = first or error
    if first is not None and len(grid) <= PROBED_POINTS:
        raise first


def answer_points(tasks: list[tuple[str, dict[str, Any]]]) -> list[Row]:
    """The rows of some points, in their order (the work of :mod:`privproj.records.journal`)."""
    return [_row_of(*task) for task in tasks]


def _row_of(query: str, given: dict[str, Any]) -> Row:
    """The answer of one point as text, in :data:`COLUMNS`; a refusal says why in the note."""
    try:
        return _result_row(answer_entry(query, given))
    except Unanswered as error:
        found = error.result
        return (
            _result_row(found, str(error))
            if isinstance(found, Result)
            else _row_without_result(error.outcome, str(error))
        )
    except InvalidParameter as error:
        return _row_without_result("invalid", str(error))
    except PrivprojError as error:
        return _row_without_result("not_converged", str(error))
    except (ArithmeticError, ValueError, LookupError, RuntimeError, MemoryError) as error:
        return _row_without_result("not_converged", f"an undefined value ({error}); please report these parameters")


def _result_row(result: Result, note: str = "") -> Row:
    """A result as text, in :data:`COLUMNS`."""
    plain = result.as_dict()
    values = [plain[name] for name in FIELDS] + [plain["noise_multiplier"]]
    return [*map(_number_text, values), note or "; ".join(result.warnings)]


def _row_without_result(outcome: str, note: str) -> Row:
    """The row of a point without a result: its outcome and a note."""
    return [outcome if name == "outcome" else note if name == "note" else "" for name in COLUMNS]


def _number_text(value: object) -> str:
    """A number with all its digits; empty for None."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def run_sweep(
    grid: _Grid, out: str | Path, doer: Runner = run_inline, progress: Any = lambda count: None
) -> dict[str, int]:
    """Ask every point, write the table, and count the outcomes.

    The journal beside the table makes the sweep resumable; it is removed when the table is there. Raises
    :class:`InvalidParameter` where ``out`` holds anything but this very table.
    """
    path, journal = Path(out), Path(f"{out}.journal")
    writer = _write_parquet if path.suffix == ".parquet" else _write_csv
    if path.exists() and not journal.exists():
        return _count_outcomes(grid, _rows_on_disk(grid, path))
    book = Journal(journal, grid.title())
    try:
        progress(len(book.rows))
        found = complete_rows(answer_points, grid.tasks(), book, doer, progress)
        kept = [i for i, name in enumerate(COLUMNS) if name not in grid.axes]
        rows = [[*map(_value_text, grid.point(i).values()), *(found[i][k] for k in kept)] for i in range(len(grid))]
        writer(path, column_names(grid), rows)
        journal.unlink()
    finally:
        book.close()
    return _count_outcomes(grid, rows)


def column_names(grid: _Grid) -> list[str]:
    """The columns of the table: the axes, then those of :data:`COLUMNS` that are no axes."""
    return [*grid.axes, *(name for name in COLUMNS if name not in grid.axes)]


def _value_text(value: object) -> str:
    """A value of an axis as text."""
    return " ".join(map(str, value)) if isinstance(value, list) else _number_text(value)


def _rows_on_disk(grid: _Grid, path: Path) -> list[Row]:
    """The rows of a table that is already there; raises :class:`InvalidParameter` if it is not that of the grid."""
    names, rows = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    points = (
        [list(map(_value_text, grid.point(i).values())) for i in range(len(grid))] if len(rows) == len(grid) else None
    )
    if names != column_names(grid) or points != [row[: len(grid.axes)] for row in rows]:
        raise InvalidParameter("--output", path, "a new file, or the table of this very grid", "name another file")
    return rows


def _count_outcomes(grid: _Grid, rows: list[Row]) -> dict[str, int]:
    """How many rows had which outcome, by the name of the outcome."""
    place = column_names(grid).index("outcome")
    outcomes = [row[place] for row in rows]
    return {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}


def _write_csv(path: Path, names: list[str], rows: list[Row]) -> None:
    """Write the table as CSV, whole or not at all."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([names, *rows])
    write_atomically(path, lambda file: file.write(buffer.getvalue().encode()))


def _read_csv(path: Path) -> tuple[list[str], list[Row]]:
    """The names of the columns and the rows of a CSV table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            names, *rows = csv.reader(file)
    except (OSError, ValueError, csv.Error):
        raise InvalidParameter("--output", path, "a new file, or the table of this very grid") from None
    return names, rows


def _import_arrow() -> tuple[Any, Any]:
    """Arrow and its Parquet module; raises :class:`InvalidParameter` where they are missing."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage("pyarrow", "a .parquet file", "sweep", ", or write a .csv") from None
    return pyarrow, parquet


def _write_parquet(path: Path, names: list[str], rows: list[Row]) -> None:
    """Write the table as Parquet; columns that are all numbers become numbers."""
    pyarrow, module = _import_arrow()
    columns = [_typed_column(list(column)) for column in zip(*rows, strict=True)]
    table = pyarrow.table(dict(zip(names, columns, strict=True)))
    write_atomically(path, lambda file: module.write_table(table, file))


def _typed_column(column: list[str]) -> list[Any]:
    """The column as whole numbers, as numbers or as text; empty cells of numbers become None."""
    for kind in (int, float):
        try:
            return [kind(value) if value else None for value in column]
        except ValueError:
            continue
    return column


def _read_parquet(path: Path) -> tuple[list[str], list[Row]]:
    """The names of the columns and the rows of a Parquet table, as text."""
    pyarrow, module = _import_arrow()
    try:
        table = module.read_table(path)
    except (OSError, ValueError, pyarrow.ArrowException):
        raise InvalidParameter("--output", path, "a new file, or the table of this very grid") from None
    columns = [[_number_text(value) for value in table[name].to_pylist()] for name in table.column_names]
    return table.column_names, [list(row) for row in zip(*columns, strict=True)]
