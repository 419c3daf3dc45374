"""Workers that die are replaced."""

import os
import signal
import tomllib

import pytest
from helpers import needs
from records.grids import written

from privproj.records import journal, workers
from privproj.records.sweep import grid_from, run_sweep


@pytest.mark.full
def test_a_worker_that_dies_is_replaced(tmp_path):
    marker = tmp_path / "died"
    book = journal.Journal(tmp_path / "journal", {"of": "deaths"})
    journal.complete_rows(mortal, lambda i: (str(marker), i), 12, book, workers.run_in_processes(2))
    book.close()
    assert marker.exists() and list(book.rows()) == [str(i * i) for i in range(12)]


def mortal(tasks):
    for marker, i in tasks:
        if i == 5 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    return [str(i * i) for _, i in tasks]


@pytest.mark.full
def test_a_dask_cluster_that_loses_a_worker(tmp_path):
    distributed = needs("distributed")
    grid_path = written(tmp_path, 240)
    grid = grid_from(tomllib.loads(grid_path.read_text()))
    run_sweep(grid, tmp_path / "whole.csv")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        seen = []

        def progress(count):
            seen.append(count)
            if len(seen) == 4:
                os.kill(pids[0], signal.SIGKILL)

        run_sweep(grid, tmp_path / "out.csv", workers.run_on_dask(cluster.scheduler_address), progress)
    assert len(seen) > 4 and sum(seen) == len(grid)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
