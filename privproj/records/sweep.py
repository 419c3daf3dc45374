"""A grid of questions: one row of plain text for each point, which does not depend on who computes it.

A large grid is asked in columns (:mod:`privproj.accounting.columns`), and its kernels run as is best for the size of
the whole grid, whatever part of it is done at a time. In memory are the axes and a few batches of rows.

Rows go to a journal in the order of their numbers, which survives a kill at any moment, and reach the disk in batches.
What is in the journal is not done again. Work is a function of a list of tasks, so that it can be sent to other
processes (:func:`run_in_processes`) or to a Dask cluster (:func:`run_on_dask`).
"""

import csv
import io
import json
import math
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product, zip_longest
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, BinaryIO

from privproj.accounting import spec
from privproj.accounting.phase import Phase
from privproj.accounting.question import FOUND, ZERO_EPSILON_NOTE, Question
from privproj.errors import InvalidParameter, NotConverged, PrivprojError, Unanswered, unknown_name, within
from privproj.lazy import import_extra
from privproj.records.files import naming, open_alone, write_atomically
from privproj.result import Outcome, Result, Side
from privproj.validation import TEXT

if TYPE_CHECKING:
    from privproj.accounting.columns import Asked, Reading

Row = str
"""One line of text, without its end."""
Work = Callable[[list[Any]], list[Row]]
"""A function from a list of tasks to as many rows; it must be importable where the work is done."""
Runner = Callable[[Work, Iterator[list[Any]]], Iterator[tuple[list[Row], float]]]
"""A function that sends batches of tasks to work, and yields for each, in their order, its rows and how long it took.

The seconds are those of the process that did the work.
"""

MOST_POINTS = 10**7
"""The largest number of points of a grid. Contract."""

PROBED_POINTS = 10**5
"""How many points are looked at, at most, until one is found that is a valid question. Speed only."""

MOST_CORNERS = 4096
"""How many questions of a grid are looked at, at most, for what they take for granted. Contract."""

STAND_INS = {"rate": {"sampling_rate": 0.5}, "steps": {"steps": 2}}
"""What stands in, where nothing but assumptions is asked, for what a query finds."""

COLUMNS: tuple[str, ...] = (
    "value", "lower", "upper", "side", "bound", "status", "outcome", "epsilon", "delta", "log10_delta",
    "noise_multiplier", "note",
)  # fmt: skip
"""The columns of the table after those of the axes: fields of a result, and a note."""

WORDS = ("side", "bound", "status", "outcome", "note")
"""Those of them that are no numbers."""


@dataclass(frozen=True)
class _Grid:
    """A query, fixed keys, and axes of values; its points are in the order of nested loops, the last axis innermost."""

    query: str
    fixed: dict[str, Any]
    axes: dict[str, list[Any]]

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def points(self) -> Iterator[tuple[Any, ...]]:
        """The value of every axis at each point, in the order of their numbers."""
        return product(*self.axes.values())

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
            places = Random(0).sample(places, MOST_CORNERS)
        chosen = set(places)
        corners = (values for number, values in enumerate(ends.points()) if number in chosen)
        return list(self._questions(corners)) or list(islice(self._questions(islice(self.points(), PROBED_POINTS)), 1))

    def _questions(self, points: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Question]]:
        """The valid questions at these points, each after what is its own about it."""
        for values in points:
            own = dict(zip(self.axes, values, strict=True))
            with suppress(PrivprojError):
                question = spec.question_from({**self.fixed, **own, **STAND_INS.get(self.query, {})}, self.query)
                yield " ".join(f"{name}={value}" for name, value in own.items()), question

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
    given = spec.with_unique_keys(data, where)
    axes = spec.with_unique_keys(given.pop("grid", None), f"{where}: grid")
    with within(where):
        query = spec.check_type("query", given.pop("query", "epsilon"), TEXT)
        if query not in spec.QUERIES:
            raise unknown_name("query", query, "a query", spec.QUERIES)
        if not axes:
            raise InvalidParameter("grid", "nothing", "a table [grid] of lists")
        spec.check_keys(given, spec.keys_of(spec.mechanism_type_of(given), ("mechanism", "bound"), query))
        _check_axes(axes, given, query)
        found = _Grid(query, given, axes)
        if len(found) > MOST_POINTS:
            raise InvalidParameter("grid", f"{len(found)} points", f"at most {MOST_POINTS} points")
        _check_points(found)
    return found


def _check_axes(axes: Mapping[str, Any], fixed: Mapping[str, Any], query: str) -> None:
    """Raise :class:`InvalidParameter` unless every axis lists different values of a key that is not fixed."""
    known = spec.keys_of(spec.mechanism_type_of(fixed), ("bound",), query)
    for name, values in axes.items():
        place = f"grid.{name}"
        if name in fixed:
            raise InvalidParameter(place, values, f"{name} either fixed or in [grid], not both")
        if not isinstance(values, list) or not values:
            raise InvalidParameter(place, values, "a list that is not empty")
        # Equal numbers are one value, whatever their types are.
        if len({value if isinstance(value, int | float) else repr(value) for value in values}) < len(values):
            raise InvalidParameter(place, values, "a list of different values")
        for value in values:
            try:
                spec.check_keys({name: value}, known)
            except InvalidParameter as error:
                raise InvalidParameter(place, error.value, error.expected) from None


def _check_points(grid: _Grid) -> None:
    """Raise the error of the first point if none of the points, up to :data:`PROBED_POINTS`, is a valid question."""
    first, query = None, grid.query
    for values in islice(grid.points(), PROBED_POINTS):
        given = grid.work().keys(values)
        try:
            with suppress(Unanswered):
                question = spec.question_from(given, query)
                spec.target_from(given, query)
                question.check()
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
        # The kernels of columns need numpy, which is not imported for fewer points.
        in_columns = self.size >= 64 and self.query in spec.SOLVERS and points
        rows = self._rows_in_columns(points) if in_columns else [None] * len(points)
        return [row or self._row_alone(point) for row, point in zip(rows, points, strict=True)]

    def keys(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """All keys of the question at a point."""
        return {**self.fixed, **dict(zip(self.axes, values, strict=True))}

    def _row_alone(self, point: tuple[Any, ...]) -> Row:
        """The row of a point that is asked for itself."""
        given = self.keys(point)
        own = {name: _cell(given[name]) for name in self.axes}
        cells = {**_cells_of(self.query, given), **own}
        return _line_of([cells.get(name) for name in column_names(self)])

    def _rows_in_columns(self, points: Sequence[tuple[Any, ...]]) -> list[Row | None]:
        """The rows of points that columns answer; None for those that must be asked one by one.

        They are those of :meth:`_row_alone`, but for the margins of the numbers.
        """
        from privproj.accounting.columns import ROW_WEIGHTS, asked_rows, checked_phase, read_columns
        from privproj.numerics.compiled import rows_to_come

        def phase_at(i: int) -> Phase:
            given = self.keys(points[i])
            return checked_phase(spec.question_from(given, self.query).only, spec.target_from(given, self.query))

        axes = dict(zip(self.axes, zip(*points, strict=True), strict=True))
        asked = asked_rows(self.query, {**self.fixed, **axes}, len(points))
        own = {name: list(map(_quoted, column)) for name, column in axes.items()}
        free = ("epsilon", "delta", "log10_delta", "noise_multiplier")
        others = [list(map(repr, column)) for name, column in axes.items() if name not in free]
        # Whatever is kept on disk, so that a sweep that is killed and gone on with gives the same digits.
        with rows_to_come(self.size * ROW_WEIGHTS[self.query], may_load=False):
            read = read_columns(asked, others, phase_at)
            if not read.phases:
                return [None] * len(points)
            cells = {**_cells_in_columns(asked, read), **own}
        rows = map(",".join, zip(*(cells[name] for name in column_names(self)), strict=True))
        return [row if shape >= 0 else None for row, shape in zip(rows, read.shape.tolist(), strict=True)]


def _cells_of(query: str, given: dict[str, Any]) -> dict[str, Any]:
    """The answer of one point, by column; a refusal says why in the note."""
    try:
        return _cells_of_result(spec.answer_entry(query, given))
    except PrivprojError as error:
        if isinstance(known := getattr(error, "result", None), Result):
            return _cells_of_result(known, str(error))
        outcome, note = getattr(error, "outcome", "invalid"), str(error)
    except (ArithmeticError, ValueError, LookupError, RuntimeError, MemoryError) as error:
        outcome, note = "not_converged", f"an undefined value ({error}); please report these parameters"
    return {"outcome": outcome, "note": _one_line(note)}


def _cells_of_result(result: Result, note: str = "") -> dict[str, Any]:
    """A result, by column."""
    plain = result.as_dict()
    return {name: plain.get(name) for name in COLUMNS} | {"note": _one_line(note or "; ".join(result.warnings))}


def _cells_in_columns(asked: "Asked", read: "Reading") -> dict[str, Any]:
    """What columns answer, by column: lists with the text of a cell for each row."""
    query, value = asked.quantity, read.value
    of_delta = query == "delta"
    numbers = {"epsilon": asked.eps, "delta": asked.deltas, "noise_multiplier": asked.noises}
    numbers |= {"value": value, "lower": read.lower, "upper": value, "log10_delta": read.log10_delta}
    numbers["noise_multiplier" if query == "sigma" else query] = value
    # What stands in several columns is made text once.
    texts = {id(column): list(map(repr, column.tolist())) for column in numbers.values()}
    found: dict[str, Any] = {name: texts[id(column)] for name, column in numbers.items()}
    # A delta of 1 is no answer, a lower end of 0 says nothing, and a delta of 0 is given by its logarithm.
    nothing = {"value": value >= 1.0, "lower": read.lower == 0.0} if of_delta else {"delta": asked.deltas == 0.0}
    for name, where in nothing.items():
        found[name] = [*found[name]]
        for i in where.nonzero()[0].tolist():
            found[name][i] = ""
    # Words depend on the shape of a row, on whether its delta has a double, and on whether its answer is none or 0.
    special = value >= 1.0 if of_delta else value == 0.0
    keys = list(zip(read.shape.tolist(), (read.small & of_delta).tolist(), special.tolist(), strict=True))
    words = {key: _words_of(query, read, *key) for key in set(keys)}
    return {**found, **dict(zip(WORDS, zip(*map(words.__getitem__, keys), strict=True), strict=True))}


def _words_of(query: str, read: "Reading", shape: int, small: bool, special: bool) -> tuple[str, ...]:
    """The words of a row of this shape, in :data:`WORDS`."""
    phase = read.phases[shape]
    side = Side.UPPER if small else read.sides[shape]
    outcome = Outcome.VACUOUS if special and query == "delta" else Outcome.OK
    notes = (*phase.notes, ZERO_EPSILON_NOTE) if special and query == "epsilon" else phase.notes
    words = (side, phase.bound.name, phase.status, outcome, _one_line("; ".join(notes)))
    return tuple(map(_quoted, words))


def _one_line(words: str) -> str:
    """The words on one line."""
    return " ".join(words.splitlines())


def _line_of(cells: Sequence[Any]) -> Row:
    """Cells as a line of CSV, without its end; None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _quoted(value: Any) -> str:
    """A value as CSV has it, in quotes where it needs them."""
    # A cell before it, as an empty one alone is written in quotes.
    return repr(value) if isinstance(value, int | float) else _line_of(["", _cell(value)])[1:]


def _cell(value: Any) -> Any:
    """A value of an axis as a cell of the table."""
    return " ".join(map(str, value)) if isinstance(value, list) else value


# --- a journal of rows -------------------------------------------------------------------------------

MOST_RESTARTS = 5
"""How often work that lost its process is done again before it is given up. Contract."""


class Journal:
    """A file of rows of one line each, in their order, behind a title that says what they belong to.

    One process at a time may have it open; raises :class:`InvalidParameter` for a second one. Its length is the number
    of its rows.
    """

    def __init__(self, path: str | Path, title: dict[str, Any]) -> None:
        self.path, self.count = Path(path), 0
        self.head = (json.dumps(title, sort_keys=True) + "\n").encode()
        self.file = os.fdopen(open_alone(path, "journal"), "a+b")
        self._take_up()

    def __len__(self) -> int:
        """How many rows there are."""
        return self.count

    def _take_up(self) -> None:
        """Count the rows up to the first line that is not whole, and cut off the rest."""
        self.file.seek(0)
        found = self.file.read(len(self.head))
        if not self.head.startswith(found):
            self.close()
            raise InvalidParameter("journal", self.path, "a journal of this very question", "name another file")
        good = len(self.head) if found == self.head else 0
        for line in self.file if good else ():
            if not line.endswith(b"\n") or b"\0" in line:
                break
            self.count += 1
            good += len(line)
        self.file.truncate(good)
        if good == 0:
            self.file.write(self.head)
            self.file.flush()

    def add(self, rows: list[Row]) -> None:
        """Append the next rows; they are on the disk when this returns."""
        with naming(self.path):
            self.file.write("".join(f"{row}\n" for row in rows).encode())
            self.file.flush()
            os.fsync(self.file.fileno())
        self.count += len(rows)

    def rows(self) -> Iterator[Row]:
        """The rows in their order."""
        with self.path.open("rb") as file:
            file.seek(len(self.head))
            for line in file:
                yield line[:-1].decode()

    def close(self) -> None:
        """Close the file, so that other processes may write it."""
        self.file.close()


def complete_rows(
    work: Work, tasks: Iterable[Any], journal: Journal, runner: Runner, progress: Callable[[int], object]
) -> None:
    """Let ``runner`` do those of the tasks that the journal has no row for."""
    left, size = islice(tasks, len(journal), None), 1

    def batches() -> Iterator[list[Any]]:
        while batch := list(islice(left, size)):
            yield batch

    for rows, seconds in runner(work, batches()):
        journal.add(rows)
        # As many as take half a second, by those done last, of which a kill loses a few for each process, and at most
        # eight times as many.
        fitting = int(len(rows) * 0.5 / max(seconds, 1e-9))
        size = max(1, min(fitting, 8 * len(rows), 2**14))
        progress(len(rows))


# --- who computes -------------------------------------------------------------------------------------


def run_inline(work: Work, batches: Iterator[list[Any]]) -> Iterator[tuple[list[Row], float]]:
    """Do the work in this process."""
    for batch in batches:
        began = time.monotonic()
        yield work(batch), time.monotonic() - began


def run_in_processes(count: int) -> Runner:
    """A runner that does the work in ``count`` processes of this machine.

    If a process dies, the pool is built anew and its batches are done again; raises :class:`NotConverged` after
    :data:`MOST_RESTARTS` pools.
    """

    def run(work: Work, batches: Iterator[list[Any]]) -> Iterator[tuple[list[Row], float]]:
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        waiting: deque[list[Any]] = deque()
        for _ in range(MOST_RESTARTS):
            with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
                try:
                    yield from _rows_in_order(pool.submit, work, batches, waiting, count)
                    return
                except BrokenProcessPool:
                    continue
        raise NotConverged(f"expected processes that live, but {MOST_RESTARTS} pools lost one; is there enough memory?")

    return run


def run_on_dask(address: str) -> Runner:
    """A runner that does the work on the Dask cluster at this address; raises :class:`InvalidParameter` without one.

    If a worker dies, Dask sends its batches to another one.
    """

    def run(work: Work, batches: Iterator[list[Any]]) -> Iterator[tuple[list[Row], float]]:
        distributed = import_extra("distributed", "--dask", "sweep")
        try:
            client = distributed.Client(address, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise InvalidParameter("dask", address, "the address of a running scheduler", str(error)) from None
        with client, client.as_current():
            workers = len(client.scheduler_info(n_workers=-1)["workers"])
            submit = partial(client.submit, pure=False, retries=MOST_RESTARTS)
            yield from _rows_in_order(submit, work, batches, deque(), max(1, workers))

    return run


def _rows_in_order(
    submit: Callable[..., Any], work: Work, batches: Iterator[list[Any]], waiting: deque[list[Any]], workers: int
) -> Iterator[tuple[list[Row], float]]:
    """What each batch in turn gave, while later ones are at work; ``waiting`` holds the batches that are not done."""
    jobs = deque(submit(_work_packed, work, pickle.dumps(batch)) for batch in waiting)
    while True:
        # Four batches are on their way for each process, so that none waits for a slow one before it.
        for batch in islice(batches, max(0, 4 * workers - len(jobs))):
            waiting.append(batch)
            jobs.append(submit(_work_packed, work, pickle.dumps(batch)))
        if not jobs:
            return
        rows, seconds = jobs.popleft().result()
        waiting.popleft()
        yield rows.split("\n"), seconds


def _work_packed(work: Work, tasks: bytes) -> tuple[str, float]:
    """The rows of pickled tasks as one text, since many small objects take long to send, and how long they took."""
    began = time.monotonic()
    rows = work(pickle.loads(tasks))
    return "\n".join(rows), time.monotonic() - began


# --- the table ----------------------------------------------------------------------------------------


def run_sweep(
    grid: _Grid, out: str | Path, runner: Runner = run_inline, progress: Any = lambda count: None
) -> dict[str, int]:
    """Ask every point, write the table, and count the outcomes.

    The journal beside the table makes the sweep resumable; it is removed when the table is there. Raises
    :class:`InvalidParameter` where ``out`` holds anything but this very table.
    """
    path, place = Path(out), Path(f"{out}.journal")
    if path.exists() and not place.exists():
        return _count_outcomes(grid, _rows_on_disk(grid, path))
    journal = Journal(place, grid.title())
    try:
        progress(len(journal))
        complete_rows(grid.work(), grid.points(), journal, runner, progress)
        if path.suffix == ".parquet":
            _write_parquet(grid, path, journal)
        else:
            rows = chain([",".join(column_names(grid))], journal.rows())
            write_atomically(path, lambda file: file.writelines(f"{row}\n".encode() for row in rows))
        counts = _count_outcomes(grid, csv.reader(journal.rows()))
        place.unlink()
    finally:
        journal.close()
    return counts


def column_names(grid: _Grid | _Points) -> list[str]:
    """The columns of the table: the axes, then those of :data:`COLUMNS` that are no axes."""
    return [*grid.axes, *(name for name in COLUMNS if name not in grid.axes)]


def _count_outcomes(grid: _Grid, rows: Iterable[list[str]]) -> dict[str, int]:
    """How many rows had which outcome, by the name of the outcome."""
    place = column_names(grid).index("outcome")
    return dict(sorted(Counter(row[place] for row in rows).items()))


def _rows_on_disk(grid: _Grid, path: Path) -> Iterator[list[str]]:
    """The rows of a table that is already there; raises :class:`InvalidParameter` if it is not that of the grid."""
    other = InvalidParameter("--output", path, "a new file, or the table of this very grid", "name another file")
    try:
        rows = (_read_parquet if path.suffix == ".parquet" else _read_csv)(path)
        if next(rows, None) != column_names(grid):
            raise other
        for values, row in zip_longest(grid.points(), rows):
            if values is None or row is None or not all(map(_says, row, values)):
                raise other
            yield row
    except (OSError, ValueError, csv.Error):
        raise other from None


def _says(text: str, value: object) -> bool:
    """True if the text is that of the value, or for a number that of an equal one."""
    return text == str(_cell(value)) or (isinstance(value, int | float) and float(text) == value)


def _read_csv(path: Path) -> Iterator[list[str]]:
    """The names of the columns and then the rows of a CSV table."""
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.reader(file)


def _read_parquet(path: Path) -> Iterator[list[str]]:
    """The names of the columns and then the rows of a Parquet table, as text; an empty one for None."""
    table = _import_arrow(".parquet").ParquetFile(path)
    yield table.schema_arrow.names
    for batch in table.iter_batches():
        for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield ["" if cell is None else str(cell) for cell in cells]


def _write_parquet(grid: _Grid, path: Path, journal: Journal) -> None:
    """Write the rows of a journal as Parquet, whole or not at all; numbers become numbers."""
    arrow, reader, parquet = map(_import_arrow, ("", ".csv", ".parquet"))
    types = dict.fromkeys(COLUMNS, arrow.float64()) | dict.fromkeys(WORDS, arrow.string())
    for name, values in grid.axes.items():
        kinds = set(map(type, values))
        types[name] = arrow.string() if kinds - {int, float} else arrow.float64() if float in kinds else arrow.int64()

    def fill(file: BinaryIO) -> None:
        rows = reader.open_csv(
            journal.path,
            reader.ReadOptions(column_names=column_names(grid), skip_rows=1),
            convert_options=reader.ConvertOptions(column_types=types, null_values=[""]),
        )
        with parquet.ParquetWriter(file, rows.schema) as table:
            for batch in rows:
                table.write_batch(batch)

    write_atomically(path, fill)


def _import_arrow(part: str = "") -> Any:
    """Arrow, or its reader of CSV or of Parquet; raises :class:`InvalidParameter` where it is missing."""
    return import_extra(f"pyarrow{part}", "a .parquet file", "sweep", ", or write a .csv")
