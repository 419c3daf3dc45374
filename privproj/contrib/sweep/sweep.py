"""A grid of questions: one row of plain text for each point, which does not depend on who computes it.

Points are numbered, and work is a function from a range of numbers to the lines of their rows, so that it can be sent
to other processes or to a Dask cluster (:func:`open_pool`). A large grid is asked in columns
(:mod:`privproj.accounting.vectorized`), and its kernels run as is best for the size of the whole grid, whatever part
of it is done at a time. In memory are the axes and a few batches of rows.

Rows go to a journal in the order of their numbers, which survives a kill at any moment, and reach the disk in batches.
What is in the journal is not done again.
"""

import csv
import io
import json
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from random import Random
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, BinaryIO

from privproj.accounting import config as spec
from privproj.accounting.lower_bound import known_size, warnings_of_delta
from privproj.accounting.phase import Phase
from privproj.accounting.query import Schedule
from privproj.errors import InvalidParameter, NotConverged, PrivprojError, Unanswered, within
from privproj.io.files import check_output, naming, open_alone, write_atomically
from privproj.lazy import import_extra
from privproj.result import Outcome, Side

if TYPE_CHECKING:
    from privproj.accounting.vectorized import ColumnAnswers

Work = Callable[[range], str]
"""A function from the numbers of some points to their rows, a line each; it must be importable where it is done."""
Workers = tuple[Callable[..., Callable[[], Any]], int]
"""What has a function called and returns what waits for its result; and how many should be on their way."""
Pool = Callable[[], AbstractContextManager[Workers]]
"""What opens workers."""

MOST_POINTS = 10**7
"""The largest number of points of a grid. Contract."""

PROBED_POINTS = 10**5
"""How many points are looked at, at most, until one is found that is a valid question. Speed only."""

MOST_CORNERS = 4096
"""How many questions of a grid are looked at, at most, for what they take for granted. Contract."""

STAND_INS = {"epsilon": {}, "delta": {}, "rate": {"sampling_rate": 0.5}, "steps": {"steps": 2}}
"""What stands in, where no answer is asked, for what a query finds; other queries find it of the mechanism."""

COLUMNS: tuple[str, ...] = (
    "value", "lower", "upper", "side", "bound", "status", "outcome", "epsilon", "delta", "log10_delta",
    "noise_multiplier", "note",
)  # fmt: skip
"""The columns of the table after those of the axes: fields of a result, and a note."""

OUTCOMES = (*Outcome, "invalid")
"""How a row can end. Contract."""

WORDS = ("side", "bound", "status", "outcome", "note")
"""Those of them that are no numbers."""


@dataclass(frozen=True)
class Grid:
    """A query, fixed keys, and axes of values; its points are in the order of nested loops, the last axis innermost.

    Its length is the number of its points. Called with the numbers of some points it does their work.
    """

    query: str
    fixed: dict[str, Any]
    axes: dict[str, list[Any]]

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    @property
    def names(self) -> list[str]:
        """The columns of the table: the axes, then those of :data:`COLUMNS` that are no axes."""
        return [*self.axes, *(name for name in COLUMNS if name not in self.axes)]

    @property
    def head(self) -> str:
        """What a journal of this grid belongs to: the query, the keys, the axes and the version; then its columns."""
        from privproj.version import __version__

        title = {"sweep": self.query, "fixed": self.fixed, "grid": self.axes, "version": __version__}
        return json.dumps(title, sort_keys=True) + "\n" + ",".join(self.names) + "\n"

    def columns(self, numbers: Sequence[int]) -> dict[str, list[Any]]:
        """The values of every axis at the points of these numbers."""
        columns, stride = {}, len(self)
        for name, values in self.axes.items():
            stride //= len(values)
            columns[name] = [values[number // stride % len(values)] for number in numbers]
        return columns

    def point(self, number: int) -> dict[str, Any]:
        """The value of every axis at one point."""
        return {name: values[0] for name, values in self.columns([number]).items()}

    def keys(self, number: int) -> dict[str, Any]:
        """All keys of the question at a point."""
        return {**self.fixed, **self.point(number)}

    @property
    def ends(self) -> "Grid":
        """The grid of every word of the axes and of the ends of their numbers."""
        return replace(self, axes={name: _ends_of(values) for name, values in self.axes.items()})

    def question(self, number: int) -> Schedule:
        """The question at a point, with what stands in for what the query finds; raises where it is none."""
        keys = {**self.keys(number), **STAND_INS.get(self.query, {})}
        question = spec.question_from(keys, self.query)
        spec.target_from(keys, self.query)
        if self.query in STAND_INS:
            with suppress(Unanswered):
                question.check()
        return question

    def corners(self) -> list[tuple[str, Schedule]]:
        """The questions at the ends of the axes, or at the first valid point, each with what is its own about it.

        What the numbers of a table take for granted is that of these questions; they are a random sample of
        :data:`MOST_CORNERS` where there are more.
        """
        ends = self.ends
        places = range(len(ends))
        some = sorted(Random(0).sample(places, min(len(places), MOST_CORNERS)))
        return list(ends.questions(some)) or list(islice(self.questions(range(min(len(self), PROBED_POINTS))), 1))

    def questions(self, numbers: Iterable[int]) -> Iterator[tuple[str, Schedule]]:
        """The questions at these points, each after what is its own about it."""
        for number in numbers:
            with suppress(PrivprojError):
                question = self.question(number)
                yield " ".join(f"{name}={value}" for name, value in self.point(number).items()), question

    def __call__(self, numbers: range) -> str:
        """The rows of some points, in their order, as lines of CSV."""
        # The kernels of columns need numpy, which is not imported for fewer points.
        in_columns = len(self) >= 64 and self.query in spec.SOLVERS
        rows = self._rows_in_columns(numbers) if in_columns else [None] * len(numbers)
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerows(row or self._row_alone(number) for row, number in zip(rows, numbers, strict=True))
        return lines.getvalue()

    def _row_alone(self, number: int) -> Sequence[Any]:
        """The row of a point that is asked for itself."""
        cells = {**_cells_of(self.query, self.keys(number)), **self.point(number)}
        return [_cell(cells.get(name)) for name in self.names]

    def _rows_in_columns(self, numbers: range) -> Sequence[Sequence[Any] | None]:
        """The rows of points that columns answer; None for those that must be asked one by one.

        They are those of :meth:`_row_alone`, but for the margins of the numbers.
        """
        from privproj.accounting.vectorized import ROW_WEIGHTS, checked_phase, read_columns
        from privproj.numerics.jit import expect_rows

        def phase_at(i: int) -> Phase:
            keys = self.keys(numbers[i])
            return checked_phase(spec.question_from(keys, self.query).only, spec.target_from(keys, self.query))

        axes = self.columns(numbers)
        # Whatever is kept on disk, so that a sweep that is killed and gone on with gives the same digits.
        with expect_rows(len(self) * ROW_WEIGHTS[self.query], may_load=False):
            read = read_columns(self.query, self.fixed, axes, len(numbers), phase_at)
            if not read.phases:
                return [None] * len(numbers)
            cells = {**_cells_in_columns(read), **{name: map(_cell, column) for name, column in axes.items()}}
        rows = zip(*(cells[name] for name in self.names), strict=True)
        return [row if shape >= 0 else None for row, shape in zip(rows, read.shape.tolist(), strict=True)]


def _ends_of(values: list[Any]) -> list[Any]:
    """Every value of an axis of words, and the ends of one of numbers."""
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return [min(values), max(values)][: len(values)] if plain else values


def grid_from(data: Mapping[str, Any], where: str = "grid file") -> Grid:
    """The grid of a file: ``query``, ``mechanism``, fixed keys and a table ``[grid]`` of lists.

    Raises :class:`InvalidParameter` that names the key for anything else, and where no point is a valid question.
    """
    keys = spec.with_unique_keys(data, where)
    axes = spec.with_unique_keys(keys.pop("grid", None), f"{where}: grid")
    with within(where):
        query = spec.check_entry(keys, ())
        keys.pop("query", None)
        if not axes:
            raise InvalidParameter("grid", "nothing", "a table [grid] of lists")
        _check_axes(axes, keys, query)
        points = math.prod(map(len, axes.values()))
        if points > MOST_POINTS:
            raise InvalidParameter("grid", f"{points} points", f"at most {MOST_POINTS} points")
        grid = Grid(query, keys, axes)
        if points <= PROBED_POINTS and next(grid.questions(range(points)), None) is None:
            grid.question(0)
    return grid


def _check_axes(axes: Mapping[str, Any], fixed: Mapping[str, Any], query: str) -> None:
    """Raise :class:`InvalidParameter` unless every axis lists different values of a key that is not fixed."""
    kinds = spec.keys_of(spec.mechanism_type_of(fixed), ("bound",), query)
    for name, values in axes.items():
        if name in fixed:
            raise InvalidParameter(f"grid.{name}", values, f"{name} either fixed or in [grid], not both")
        # Equal numbers are one value, whatever their types are.
        distinct = {x if isinstance(x, int | float) else repr(x) for x in values} if isinstance(values, list) else ()
        if not distinct or len(distinct) < len(values):
            raise InvalidParameter(f"grid.{name}", values, "a list that is not empty, of different values")
        for value in values:
            with within("grid"):
                spec.check_keys({name: value}, kinds)


def _cells_of(query: str, keys: dict[str, Any]) -> dict[str, Any]:
    """The answer of one point, by column; a refusal says why in the note."""
    result, outcome, note = None, "not_converged", ""
    try:
        result = spec.answer_entry(query, keys)
    except PrivprojError as error:
        result, outcome, note = getattr(error, "result", None), getattr(error, "outcome", "invalid"), str(error)
    except (ArithmeticError, ValueError, LookupError, RuntimeError, MemoryError) as error:
        note = f"an undefined value ({error}); please report these parameters"
    cells: dict[str, Any] = {"outcome": outcome} if result is None else result.as_dict()
    return {**cells, "note": _one_line(note or "; ".join(cells.get("warnings", ())))}


def _cells_in_columns(read: "ColumnAnswers") -> dict[str, Iterable[Any]]:
    """What columns answer, by column: the cells of each row."""
    import numpy as np

    from privproj.accounting.vectorized import SOUGHT

    value, of_delta = read.value, read.quantity == "delta"
    numbers = {**read.numbers, SOUGHT[read.quantity]: value, "value": value, "lower": read.lower, "upper": value}
    cells: dict[str, Any] = {name: numbers[name].astype(object) for name in COLUMNS if name in numbers}
    # A lower end of 0 says nothing, and a delta of 0 is given by its logarithm.
    name = "lower" if of_delta else "delta"
    cells[name][numbers[name] == 0.0] = None
    # Words depend on the shape of a row, and on whether its delta has a double and is above one over the data set.
    shares = np.array([1.0 / (known_size([phase]) or math.nan) for phase in read.phases])
    is_large = numbers["delta"] >= shares[read.shape]
    keys = list(zip(read.shape.tolist(), (read.small & of_delta).tolist(), is_large.tolist(), strict=True))
    words = {key: _words_of(read, *key) for key in set(keys)}
    return {**cells, **dict(zip(WORDS, zip(*map(words.__getitem__, keys), strict=True), strict=True))}


def _words_of(read: "ColumnAnswers", shape: int, small: bool, is_large: bool) -> tuple[str, ...]:
    """The words of a row of this shape, in :data:`WORDS`."""
    phase = read.phases[shape]
    side = Side.UPPER if small else read.sides[shape]
    notes = (*phase.notes, *warnings_of_delta(known_size([phase]), float(is_large)))
    return side, phase.bound.name, phase.status, Outcome.OK, _one_line("; ".join(notes))


def _one_line(words: str) -> str:
    """The words on one line."""
    return " ".join(words.splitlines())


def _cell(value: Any) -> Any:
    """A value of an axis as a cell of the table."""
    return " ".join(map(str, value)) if isinstance(value, list) else value


# --- who computes -------------------------------------------------------------------------------------

MOST_RESTARTS = 5
"""How often work that lost its process is done again before it is given up. Contract."""


@contextmanager
def open_pool(workers: int = 1, dask: str | None = None) -> Iterator[Workers]:
    """Open who does the work: this process, several of this machine, or the Dask cluster at an address.

    Raises :class:`InvalidParameter` without a cluster there. If a worker of it dies, Dask sends its work to another.
    """
    # Four batches are on their way for each process, so that none waits for a slow one before it.
    if dask is not None:
        distributed = import_extra("distributed", "--dask", "sweep")
        try:
            client = distributed.Client(dask, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise InvalidParameter("dask", dask, "the address of a running scheduler", str(error)) from None
        with client:
            there = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
            yield lambda *job: client.submit(*job, pure=False, retries=MOST_RESTARTS).result, 4 * there
    elif workers == 1:
        yield partial, 1
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
            yield lambda *job: processes.submit(*job).result, 4 * workers


def rows_in_order(work: Work, numbers: range, pool: Pool = open_pool) -> Iterator[str]:
    """The rows of these points in their order, some lines at a time, while later ones are at work.

    If a process dies, its pool is opened anew and does again what is not done; raises :class:`NotConverged` after
    :data:`MOST_RESTARTS` pools.
    """
    from concurrent.futures import BrokenExecutor

    waiting, size = deque[range](), 1
    for _ in range(MOST_RESTARTS):
        with pool() as (start, ahead), suppress(BrokenExecutor):
            results = deque(start(_timed, work, batch) for batch in waiting)
            while numbers or waiting:
                while numbers and len(waiting) < ahead:
                    waiting.append(numbers[:size])
                    numbers = numbers[size:]
                    results.append(start(_timed, work, waiting[-1]))
                lines, seconds = results.popleft()()
                done = len(waiting.popleft())
                # As many as take half a second, by those done last, of which a kill loses a few for each process, and
                # at most eight times as many.
                size = max(1, min(int(done * 0.5 / max(seconds, 1e-9)), 8 * done, 2**14))
                yield lines
            return
    raise NotConverged(f"expected processes that live, but {MOST_RESTARTS} pools lost one; is there enough memory?")


def _timed(work: Work, numbers: range) -> tuple[str, float]:
    """The rows of some points, and the seconds that they took where they were done."""
    began = time.monotonic()
    return work(numbers), time.monotonic() - began


# --- a journal of rows -------------------------------------------------------------------------------


@contextmanager
def complete_rows(
    work: Work, size: int, path: str | Path, head: str, pool: Pool, progress: Callable[[int], object]
) -> Iterator[BinaryIO]:
    """All rows of some work, in a file that is open behind its first line, which says what they belong to.

    That line, and others before the rows, are the ``head``. What the file has of the rows is not done again. One
    process at a time may have it open; raises :class:`InvalidParameter` for a second one, and for a file of other work.
    """
    with os.fdopen(open_alone(path, "journal"), "a+b") as file:
        count = _take_up(file, head.encode(), path)
        progress(count)
        for lines in rows_in_order(work, range(count, size), pool):
            with naming(path):
                file.write(lines.encode())
                file.flush()
                os.fsync(file.fileno())
            progress(lines.count("\n"))
        file.seek(head.index("\n") + 1)
        yield file


def _take_up(file: BinaryIO, head: bytes, path: str | Path) -> int:
    """Cut off what is not whole, write the head if that is missing, and count the rows."""
    file.seek(0)
    before, good, count = file.read(len(head)), len(head), 0
    if not head.startswith(before):
        raise InvalidParameter("journal", path, "a journal of this very question", "name another file")
    if len(before) < good:
        file.truncate(0)
        file.write(head)
    for line in file:
        if not line.endswith(b"\n") or b"\0" in line:
            break
        count += 1
        good += len(line)
    file.truncate(good)
    return count


# --- the table ----------------------------------------------------------------------------------------


def run_sweep(
    grid: Grid, out: str | Path, pool: Pool = open_pool, progress: Callable[[int], object] = lambda count: None
) -> dict[str, int]:
    """Ask every point, write the table, and count the outcomes.

    The journal beside the table makes the sweep resumable; it is removed when the table is there. Raises
    :class:`InvalidParameter` where ``out`` holds anything but this very table.
    """
    check_output(str(out), "--output")
    path, journal = Path(out), Path(f"{out}.journal")
    if path.exists() and not journal.exists():
        if not path.is_file() or not _is_table_of(grid, path):
            expected = "a new file, or the table of this very grid"
            raise InvalidParameter("--output", path, expected, "name another file")
    else:
        with complete_rows(grid, len(grid), journal, grid.head, pool, progress) as table:
            fill = partial(_fill_parquet, grid) if path.suffix == ".parquet" else copyfileobj
            write_atomically(path, partial(fill, table))
            journal.unlink()
    outcomes = map(itemgetter(grid.names.index("outcome")), islice(_read_table(path), 1, None))
    return dict(sorted(Counter(outcomes).items()))


def _is_table_of(grid: Grid, path: Path) -> bool:
    """True if a file has the columns of the grid, in them its points, and at the first of these its answer."""
    try:
        rows = _read_table(path)
        if next(rows, None) != grid.names:
            return False
        (first,) = csv.reader([grid(range(1))])
        for number, row in zip(range(len(grid)), rows, strict=True):
            cells = dict(zip(grid.names, row, strict=True))
            wanted = [str(_cell(value)) for value in grid.point(number).values()] if number else first
            if cells["outcome"] not in OUTCOMES or not all(map(_says, row, wanted)):
                return False
        return True
    except (OSError, ValueError, TypeError, csv.Error):
        return False


def _says(cell: Any, text: str) -> bool:
    """True if a cell has this text, or the number that it says as another machine may round it."""
    words = "" if cell is None else str(cell)
    return words == text or math.isclose(float(words), float(text))


def _read_table(path: Path) -> Iterator[Sequence[Any]]:
    """The names of the columns of a table, and then its rows."""
    if path.suffix == ".parquet":
        table = _import_arrow(".parquet").ParquetFile(path)
        yield table.schema_arrow.names
        for batch in table.iter_batches():
            yield from zip(*batch.to_pydict().values(), strict=True)
    else:
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.reader(file)


def _fill_parquet(grid: Grid, table: BinaryIO, file: BinaryIO) -> None:
    """Write the rows of a table of CSV as Parquet; numbers become numbers."""
    arrow, reader, parquet = map(_import_arrow, ("", ".csv", ".parquet"))
    types = dict.fromkeys(COLUMNS, arrow.float64()) | dict.fromkeys(WORDS, arrow.string())
    for name, values in grid.axes.items():
        kinds = set(map(type, values))
        types[name] = arrow.string() if kinds - {int, float} else arrow.float64() if float in kinds else arrow.int64()
    rows = reader.open_csv(table, convert_options=reader.ConvertOptions(column_types=types, null_values=[""]))
    with parquet.ParquetWriter(file, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)


def _import_arrow(part: str = "") -> Any:
    """Arrow, or its reader of CSV or of Parquet; raises :class:`InvalidParameter` where it is missing."""
    return import_extra(f"pyarrow{part}", "a .parquet file", "sweep", ", or write a .csv")
