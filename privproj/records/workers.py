"""Who computes the rows of many independent tasks: this process, several processes, or a Dask cluster.

Work is a function of a list of tasks, so that it can be sent to other processes (:func:`run_in_processes`) or to a Dask
cluster (:func:`run_on_dask`).
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from privproj.errors import InvalidParameter, MissingPackage, NotConverged

Row = str
"""One line of text, without its end."""
Work = Callable[[list[Any]], list[Row]]
"""A function from a list of tasks to as many rows; it must be importable where the work is done."""
Runner = Callable[[Work, Iterator[list[tuple[int, Any]]]], Iterator[tuple[list[int], list[Row]]]]
"""A function that sends batches of numbered tasks to work, and yields the numbers and rows of each batch done."""
MOST_RESTARTS = 5
"""How often a pool is built anew after one of its processes died, before the sweep gives up. Contract."""


def run_inline(work: Work, batches: Iterator[list[tuple[int, Any]]]) -> Iterator[tuple[list[int], list[Row]]]:
    """Do the work in this process: for each batch, yield its numbers and its rows."""
    for batch in batches:
        numbers, tasks = zip(*batch, strict=True)
        yield list(numbers), work(list(tasks))


def run_in_processes(count: int) -> Runner:
    """A runner that does the work in ``count`` processes of this machine.

    If a process dies, the pool is built anew and its batches are done again; raises :class:`NotConverged` after
    :data:`MOST_RESTARTS` pools.
    """

    def run(work: Work, batches: Iterator[list[tuple[int, Any]]]) -> Iterator[tuple[list[int], list[Row]]]:
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        waiting: list[list[tuple[int, Any]]] = []
        for _ in range(MOST_RESTARTS):
            with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
                try:
                    yield from _keep_in_flight(_Pool(pool.submit), work, batches, waiting, 2 * count)
                except BrokenProcessPool:
                    continue
                return
        raise NotConverged(f"expected processes that live, but {MOST_RESTARTS} pools lost one; is there enough memory?")

    return run


class _Pool:
    """What :func:`_keep_in_flight` needs of an executor of this machine."""

    def __init__(self, submit: Callable[..., Any]) -> None:
        self.submit = submit

    def first(self, jobs: Iterable[Any]) -> Any:
        """Wait until one of these jobs is done, and return it."""
        from concurrent.futures import FIRST_COMPLETED, wait

        return next(iter(wait(jobs, return_when=FIRST_COMPLETED).done))


class _Cluster:
    """What :func:`_keep_in_flight` needs of a Dask cluster."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def submit(self, *call: Any) -> Any:
        """Send a batch to the cluster; if its worker dies, it is sent to another one."""
        return self.client.submit(*call, pure=False, retries=MOST_RESTARTS)

    def first(self, jobs: Iterable[Any]) -> Any:
        """Wait until one of these jobs is done, and return it."""
        from distributed import wait

        found: Any = wait(list(jobs), return_when="FIRST_COMPLETED")
        return next(iter(found.done))


def _work_packed(work: Work, tasks: bytes) -> str:
    """The rows of pickled tasks as one text: many small objects take longer to send than to make."""
    return "\n".join(work(pickle.loads(tasks)))


def _keep_in_flight(
    pool: _Pool | _Cluster,
    work: Work,
    batches: Iterator[list[tuple[int, Any]]],
    waiting: list[list[tuple[int, Any]]],
    most: int,
) -> Iterator[tuple[list[int], list[Row]]]:
    """Keep up to ``most`` batches at work until none is left; ``waiting`` holds those that are not done."""
    jobs: dict[Any, list[tuple[int, Any]]] = {}
    again = list(waiting)
    while True:
        while len(jobs) < most:
            batch = again.pop() if again else next(batches, None)
            if batch is None:
                break
            if batch not in waiting:
                waiting.append(batch)
            jobs[pool.submit(_work_packed, work, pickle.dumps([task for _, task in batch]))] = batch
        if not jobs:
            return
        job = pool.first(jobs)
        rows = job.result().split("\n")
        batch = jobs.pop(job)
        waiting.remove(batch)
        yield [number for number, _ in batch], rows


def run_on_dask(address: str) -> Runner:
    """A runner that does the work on the Dask cluster at this address; raises :class:`InvalidParameter` without one."""

    def run(work: Work, batches: Iterator[list[tuple[int, Any]]]) -> Iterator[tuple[list[int], list[Row]]]:
        try:
            from distributed import Client
        except ImportError:
            raise MissingPackage("distributed", "--dask", "sweep") from None
        try:
            client = Client(address, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise InvalidParameter("dask", address, "the address of a running scheduler", str(error)) from None
        with client, client.as_current():
            most = 2 * max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
            yield from _keep_in_flight(_Cluster(client), work, batches, [], most)

    return run
