"""Compute many rows in several processes, with a journal for resuming.

A job is a function that takes a range of row numbers and returns these rows as lines of text. The rows are appended to
the journal in order. An interrupted job continues after the last row of its journal.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from privproj.errors import ConvergenceError, InvalidParameterError
from privproj.io.files import naming, open_locked
from privproj.lazy import import_extra

# a job: a function from the numbers of some rows to these rows, one line each; workers must be able to import it
Work = Callable[[range], str]

# a function that submits a call and returns a function that waits for its result, and the number of calls to submit
Workers = tuple[Callable[..., Callable[[], Any]], int]

Pool = Callable[[], AbstractContextManager[Workers]]  # a function that opens workers

MOST_RESTARTS = 5  # crashed pools after which a job fails, because memory is probably insufficient
SUBMITTED_PER_WORKER = 4  # batches that are submitted at a time, so that no worker waits for a slow earlier batch
SECONDS_PER_BATCH = 0.5  # seconds; a killed job repeats at most this much per worker
LARGEST_BATCH = 2**14  # rows


@contextmanager
def open_pool(workers: int = 1, dask: str | None = None) -> Iterator[Workers]:
    """Open workers in this process, in several processes, or on a Dask cluster.

    The context yields a function that submits a call, and the number of calls to submit before waiting for a result.

    Args:
        workers: The number of processes; 1 means that this process computes everything.
        dask: The address of the scheduler of a Dask cluster, which replaces the processes.

    Raises:
        InvalidParameterError: There is no cluster at the address.
    """
    if dask is not None:
        distributed = import_extra("distributed", "--dask", "sweep")
        try:
            client = distributed.Client(dask, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise InvalidParameterError("dask", dask, "the address of a running scheduler", str(error)) from None
        with client:
            size = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
            submit = lambda *call: client.submit(*call, pure=False, retries=MOST_RESTARTS).result  # noqa: E731
            yield submit, SUBMITTED_PER_WORKER * size
    elif workers == 1:
        yield partial, 1
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
            yield lambda *call: processes.submit(*call).result, SUBMITTED_PER_WORKER * workers


def rows_in_order(work: Work, numbers: range, pool: Pool = open_pool) -> Iterator[str]:
    """Yield the rows with these numbers in order, as blocks of several lines.

    Raises:
        ConvergenceError: The workers crashed :data:`MOST_RESTARTS` times.
    """
    from concurrent.futures import BrokenExecutor

    waiting, size = deque[range](), 1
    for _ in range(MOST_RESTARTS):
        with pool() as (submit, ahead), suppress(BrokenExecutor):
            results = deque(submit(_timed, work, batch) for batch in waiting)
            while numbers or waiting:
                while numbers and len(waiting) < ahead:
                    waiting.append(numbers[:size])
                    numbers = numbers[size:]
                    results.append(submit(_timed, work, waiting[-1]))
                lines, seconds = results.popleft()()
                done = len(waiting.popleft())
                # The next batch takes about half a second at the speed of this one, and grows at most eightfold.
                size = max(1, min(int(done * SECONDS_PER_BATCH / max(seconds, 1e-9)), 8 * done, LARGEST_BATCH))
                yield lines
            return
    raise ConvergenceError(f"worker processes died {MOST_RESTARTS} times. Use fewer workers if memory is short")


def _timed(work: Work, numbers: range) -> tuple[str, float]:
    began = time.monotonic()
    return work(numbers), time.monotonic() - began


@contextmanager
def complete_rows(
    work: Work,
    size: int,
    path: str | Path,
    head: str,
    pool: Pool,
    progress: Callable[[int], object],
    name: str = "journal",
) -> Iterator[BinaryIO]:
    """Compute the missing rows of a journal, and open the journal for reading its rows.

    Args:
        work: The function that computes rows from their numbers.
        size: The number of rows.
        path: The journal, a file. Only one process at a time may use it.
        head: The lines before the rows; the first one identifies the job.
        pool: A function that opens the workers.
        progress: A function that is called with the number of rows in the journal, then with the size of each new
            batch.
        name: The name of the journal in errors.

    Raises:
        InvalidParameterError: The journal belongs to another job, or another process uses the file.
    """
    with os.fdopen(open_locked(path, name), "a+b") as file:
        count = _resume(file, head.encode(), path, name)
        progress(count)
        for lines in rows_in_order(work, range(count, size), pool):
            with naming(path):
                file.write(lines.encode())
                file.flush()
                os.fsync(file.fileno())
            progress(lines.count("\n"))
        file.seek(head.index("\n") + 1)
        yield file


def _resume(file: BinaryIO, head: bytes, path: str | Path, name: str) -> int:
    """Prepare a journal for appending, and return its number of complete rows.

    Raises:
        InvalidParameterError: The file begins differently from ``head``, so it belongs to another job.
    """
    file.seek(0)
    before, good, count = file.read(len(head)), len(head), 0
    if not head.startswith(before):
        raise InvalidParameterError(name, path, "the journal of the same query", "use another file")
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
