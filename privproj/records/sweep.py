"""A grid of questions: one row of plain text for each point, which does not depend on who computes it.

A large grid is asked in columns (:mod:`privproj.accounting.columns`), and its kernels run as is best for the size of
the whole grid, whatever part of it is done at a time. In memory are the axes and a few batches of rows.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from privproj.accounting.question import FOUND, Question
from privproj.accounting.spec import (
    SOLVERS,
    TARGETS,
    answer_entry,
    check_keys,
    check_type,
    keys_of,
    mechanism_type_of,
    question_from,
    target_from,
    with_unique_keys,
)
from privproj.errors import InvalidParameter, MissingPackage, PrivprojError, Unanswered, raise_within, unknown_name
from privproj.records.atomic import write_atomically
from privproj.records.journal import Journal, complete_rows
from privproj.records.workers import Row, Runner, run_inline
from privproj.result import Result
from privproj.validation import TEXT

MOST_POINTS = 10**7
"""The largest number of points of a grid. Contract."""

POINTS_IN_COLUMNS = 64
"""From how many points on a grid is asked in columns, whose kernels need numpy. Speed only."""

ROWS_PER_GROUP = 2**16
"""How many rows of a Parquet table are in memory together. Speed only."""

PROBED_POINTS = 10**5
"""How many points are looked at, at most, until one is found that is a valid question. Speed only."""

MOST_CORNERS = 4096
"""How many questions of a grid are looked at, at most, for what they take for granted. Contract."""

STAND_INS = {"rate": {"sampling_rate": 0.5}, "steps": {"steps": 2}}
"""What stands in, where nothing but assumptions is asked, for what a query finds."""

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

    def values(self, index: int) -> tuple[Any, ...]:
        """The value of every axis at the point of this number."""
        found = []
        for values in reversed(self.axes.values()):
            index, place = divmod(index, len(values))
            found.append(values[place])
        return tuple(reversed(found))

    @property
    def ends(self) -> "_Grid":
        """The grid of every word of the axes and of the ends of their numbers."""
        return replace(self, axes={name: _ends_of(values) for name, values in self.axes.items()})

    def corners(self) -> list[tuple[str, Question]]:
        """The questions at the ends of the axes, or at the first valid point, each with what is its own about it.

        What the numbers of a table take for granted is that of these questions; they are a random sample of
        :data:`MOST_CORNERS` where there are more.
        """
        ends, places = self.ends, range(len(self.ends))
        if len(places) > MOST_CORNERS:
            places = sorted(Random(0).sample(places, MOST_CORNERS))
        return list(ends.questions(places)) or list(islice(self.questions(range(min(len(self), PROBED_POINTS))), 1))

    def questions(self, places: Iterable[int]) -> Iterator[tuple[str, Question]]:
        """The valid questions at the points of these numbers, each after what is its own about it."""
        work, found = self.work(), STAND_INS.get(self.query, {})
        for values in map(self.values, places):
            try:
                question = question_from(work.keys(values) | found, self.query)
            except PrivprojError:
                continue
            yield " ".join(f"{name}={value}" for name, value in zip(self.axes, values, strict=True)), question

    def work(self) -> "_Points":
        """What answers points, wherever that is done."""
        return _Points(self.query, self.fixed, tuple(self.axes), len(self))

    def title(self) -> dict[str, Any]:
        """What a journal of this grid belongs to: the query, the keys, the axes, the columns and the version."""
        from privproj.version import __version__

        own = {"sweep": self.query, "fixed": self.fixed, "grid": self.axes, "columns": column_names(self)}
        return {**own, "version": __version__}


def _ends_of(values: list[Any]) -> list[Any]:
    """Every value of an axis of words, and the ends of one of numbers."""
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return [min(values), max(values)][: len(values)] if plain else values


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
        seen = set[Any]()
        for value in values:
            # Equal numbers are one value, whatever their types are.
            key = value if isinstance(value, int | float) else repr(value)
            if key in seen:
                raise InvalidParameter(place, value, "a list of different values")
            seen.add(key)
            try:
                check_keys({name: value}, known)
            except InvalidParameter as error:
                raise InvalidParameter(place, error.value, error.expected) from None


def _check_points(grid: _Grid) -> None:
    """Raise the error of the first point if none of the points, up to :data:`PROBED_POINTS`, is a valid question."""
    first = None
    query, work = grid.query, grid.work()
    for index in islice(range(len(grid)), PROBED_POINTS):
        try:
            given = work.keys(grid.values(index))
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


@dataclass(frozen=True)
class _Points:
    """The work of a sweep: from the values of the axes at some points to their rows, each a line of CSV text."""

    query: str
    fixed: dict[str, Any]
    axes: tuple[str, ...]
    size: int
    """The number of points of the whole grid, by which it is decided how they are asked."""

    def __call__(self, points: list[tuple[Any, ...]]) -> list[Row]:
        """The rows of some points, in their order."""
        found = list(map(self.keys, points))
        if self.size >= POINTS_IN_COLUMNS and self.query in SOLVERS:
            from privproj.records.sweep_columns import rows_in_columns

            rows = rows_in_columns(self.query, found, self.axes, self.size)
        else:
            rows = [None] * len(found)
        whole = (row or _row_of(self.query, keys) for row, keys in zip(rows, found, strict=True))
        kept = [i for i, name in enumerate(COLUMNS) if name not in self.axes]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [*map(_value_text, point), *(row[i] for i in kept)] for point, row in zip(points, whole, strict=True)
        )
        return text.getvalue().split("\n")[:-1]

    def keys(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """All keys of the question at a point."""
        return {**self.fixed, **dict(zip(self.axes, values, strict=True))}


def _row_of(query: str, given: dict[str, Any]) -> list[str]:
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


def _result_row(result: Result, note: str = "") -> list[str]:
    """A result as text, in :data:`COLUMNS`."""
    plain = result.as_dict()
    values = [plain[name] for name in FIELDS] + [plain["noise_multiplier"]]
    return [*map(_number_text, values), _one_line(note or "; ".join(result.warnings))]


def _row_without_result(outcome: str, note: str) -> list[str]:
    """The row of a point without a result: its outcome and a note."""
    return [outcome if name == "outcome" else _one_line(note) if name == "note" else "" for name in COLUMNS]


def _one_line(words: str) -> str:
    """The words on one line."""
    return " ".join(words.splitlines())


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
        progress(len(book))
        complete_rows(grid.work(), grid.values, len(grid), book, doer, progress)
        writer(path, column_names(grid), book.rows)
        counts = _count_outcomes(grid, csv.reader(book.rows()))
        journal.unlink()
    finally:
        book.close()
    return counts


def column_names(grid: _Grid) -> list[str]:
    """The columns of the table: the axes, then those of :data:`COLUMNS` that are no axes."""
    return [*grid.axes, *(name for name in COLUMNS if name not in grid.axes)]


def _value_text(value: object) -> str:
    """A value of an axis as text."""
    return " ".join(map(str, value)) if isinstance(value, list) else _number_text(value)


def _rows_on_disk(grid: _Grid, path: Path) -> Iterator[list[str]]:
    """The rows of a table that is already there; raises :class:`InvalidParameter` if it is not that of the grid."""
    other = InvalidParameter("--output", path, "a new file, or the table of this very grid", "name another file")
    names, rows = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    if names != column_names(grid):
        raise other
    for index, row in zip_longest(range(len(grid)), rows):
        if index is None or row is None or row[: len(grid.axes)] != list(map(_value_text, grid.values(index))):
            raise other
        yield row


def _count_outcomes(grid: _Grid, rows: Iterator[list[str]]) -> dict[str, int]:
    """How many rows had which outcome, by the name of the outcome."""
    place = column_names(grid).index("outcome")
    return dict(sorted(Counter(row[place] for row in rows).items()))


def _write_csv(path: Path, names: list[str], rows: Callable[[], Iterator[Row]]) -> None:
    """Write the table as CSV, whole or not at all."""

    def fill(file: BinaryIO) -> None:
        for line in chain([",".join(names)], rows()):
            file.write(f"{line}\n".encode())

    write_atomically(path, fill)


def _read_csv(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    """The names of the columns and the rows of a CSV table."""
    try:
        rows = _lines_of(path)
        return next(rows, []), rows
    except (OSError, ValueError, csv.Error):
        raise _no_table(path) from None


def _lines_of(path: Path) -> Iterator[list[str]]:
    """The lines of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        try:
            yield from csv.reader(file)
        except (ValueError, csv.Error):
            raise _no_table(path) from None


def _no_table(path: Path) -> InvalidParameter:
    """The error for a file that cannot be read as a table."""
    return InvalidParameter("--output", path, "a new file, or the table of this very grid")


def _import_arrow() -> tuple[Any, Any]:
    """Arrow and its Parquet module; raises :class:`InvalidParameter` where they are missing."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage("pyarrow", "a .parquet file", "sweep", ", or write a .csv") from None
    return pyarrow, parquet


def _write_parquet(path: Path, names: list[str], rows: Callable[[], Iterator[Row]]) -> None:
    """Write the table as Parquet, whole or not at all; columns that are all numbers become numbers."""
    pyarrow, module = _import_arrow()
    kinds = _kinds_of(csv.reader(rows()), len(names))
    types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), None: pyarrow.null()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in zip(names, kinds, strict=True)])

    def fill(file: BinaryIO) -> None:
        lines = csv.reader(rows())
        with module.ParquetWriter(file, schema) as table:
            while group := list(islice(lines, ROWS_PER_GROUP)):
                columns = [
                    column if kind is str else [kind(value) if value and kind else None for value in column]
                    for kind, column in zip(kinds, zip(*group, strict=True), strict=True)
                ]
                arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                table.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))

    write_atomically(path, fill)


def _kinds_of(rows: Iterator[list[str]], count: int) -> list[Any]:
    """For each column ``int``, ``float`` or ``str``, the first that all its values are; None where all are empty."""
    kinds: list[Any] = [None] * count
    for row in rows:
        for i, value in enumerate(row):
            while value and kinds[i] is not str and not _is_number(kinds[i] or int, value):
                kinds[i] = float if kinds[i] in (None, int) else str
            if value and kinds[i] is None:
                kinds[i] = int
    return kinds


def _is_number(kind: Any, value: str) -> bool:
    """True if the text is a number of this kind."""
    try:
        kind(value)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    """The names of the columns and the rows of a Parquet table, as text."""
    pyarrow, module = _import_arrow()
    try:
        table = module.ParquetFile(path)
    except (OSError, ValueError, pyarrow.ArrowException):
        raise _no_table(path) from None

    def rows() -> Iterator[list[str]]:
        try:
            for batch in table.iter_batches(ROWS_PER_GROUP):
                columns = [map(_number_text, column.to_pylist()) for column in batch.columns]
                yield from map(list, zip(*columns, strict=True))
        except (OSError, ValueError, pyarrow.ArrowException):
            raise _no_table(path) from None

    return table.schema_arrow.names, rows()
