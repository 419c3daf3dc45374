"""A journal of rows that survives a kill at any moment, and who computes its rows.

Rows go to the journal in the order of their numbers and reach the disk in batches. What is in the journal is not done
again. Work is a function of a list of tasks, so that it can be sent to other processes (:func:`run_in_processes`) or to
a Dask cluster (:func:`run_on_dask`).
"""

import json
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter, NotConverged
from privproj.lazy import import_extra
from privproj.records.files import naming, open_alone

Row = str
"""One line of text, without its end."""
Work = Callable[[list[Any]], list[Row]]
"""A function from a list of tasks to as many rows; it must be importable where the work is done."""
Runner = Callable[[Work, Iterator[list[Any]]], Iterator[tuple[list[Row], float]]]
"""A function that sends batches of tasks to work, and yields for each, in their order, its rows and how long it took.

The seconds are those of the process that did the work.
"""

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
