"""A journal cut anywhere is continued, and another grid's is refused; workers that die are replaced."""

import os
import random
import signal
import tomllib
from itertools import islice

import pytest
from helpers import needs
from records.grids import GRID, written

import privproj
from privproj.records import journal
from privproj.records.sweep import grid_from, run_sweep


def first_rows(grid, count):
    return grid.work()(list(islice(grid.points(), count)))


def test_a_journal_of_another_grid_is_refused_and_kept(tmp_path):
    out = tmp_path / "out.csv"
    book = journal.Journal(f"{out}.journal", grid_from(GRID).title())
    book.add(first_rows(grid_from(GRID), 1))
    book.close()
    before = (tmp_path / "out.csv.journal").read_bytes()
    with pytest.raises(privproj.InvalidParameter, match="this very question"):
        run_sweep(grid_from({**GRID, "epsilon": 2.0}), out)
    assert (tmp_path / "out.csv.journal").read_bytes() == before


def test_a_journal_cut_anywhere_gives_the_same_table(tmp_path):
    out, kept = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    grid = grid_from(GRID)
    run_sweep(grid, out)
    whole = out.read_bytes()
    book = journal.Journal(kept, grid.title())
    for row in first_rows(grid, len(grid)):
        book.add([row])
    book.close()
    content = kept.read_bytes()
    random.seed(3)
    for cut in (0, 1, len(content), *random.sample(range(len(content)), 25)):
        out.unlink(missing_ok=True)
        kept.write_bytes(content[:cut])
        run_sweep(grid, out)
        assert out.read_bytes() == whole


def test_only_what_is_missing_is_asked(tmp_path):
    grid, calls = grid_from(GRID), []

    def counting(work, batches):
        for batch in batches:
            calls.extend(batch)
            yield work(batch), 0.1

    book = journal.Journal(tmp_path / "out.csv.journal", grid.title())
    book.add(first_rows(grid, 5))
    book.close()
    run_sweep(grid, tmp_path / "out.csv", counting)
    assert calls == list(grid.points())[5:]


def test_two_sweeps_cannot_share_a_journal(tmp_path):
    book = journal.Journal(tmp_path / "out.csv.journal", grid_from(GRID).title())
    with pytest.raises(privproj.InvalidParameter, match="no other process"):
        run_sweep(grid_from(GRID), tmp_path / "out.csv")
    book.close()


def test_rows_come_in_their_order_and_what_is_not_whole_is_cut_off(tmp_path):
    book = journal.Journal(tmp_path / "journal", {"of": "numbers"})
    for start in range(0, 100, 10):
        book.add([f"row,{i}" for i in range(start, start + 10)])
    book.close()
    content = (tmp_path / "journal").read_bytes()
    for torn in (b"", b"row,10", b"\0" * 20, b"row,\0\0\0\nrow,101\n"):
        (tmp_path / "journal").write_bytes(content + torn)
        again = journal.Journal(tmp_path / "journal", {"of": "numbers"})
        assert list(again.rows()) == [f"row,{i}" for i in range(100)] and len(again) == 100
        again.close()
        assert (tmp_path / "journal").read_bytes() == content


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_batches_take_about_half_a_second_whatever_order_they_are_done_in(tmp_path, workers):
    """Rows are taken in their order, so those of many processes come in bursts: what counts is how long each took."""
    sizes = []

    def bursts(work, batches):
        while waiting := list(islice(batches, 4 * workers)):
            sizes.append(len(waiting[-1]))
            yield from ((work(batch), 0.01 * len(batch)) for batch in waiting)

    book = journal.Journal(tmp_path / "journal", {"of": "bursts"})
    journal.complete_rows(lambda tasks: [str(i) for i in tasks], range(20_000), book, bursts, lambda count: None)
    book.close()
    assert len(book) == 20_000 and 40 <= sizes[-2] <= 50 and max(sizes) <= 50


# --- workers ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_worker_that_dies_is_replaced(tmp_path):
    marker = tmp_path / "died"
    book = journal.Journal(tmp_path / "journal", {"of": "deaths"})
    tasks = [(str(marker), i) for i in range(12)]
    journal.complete_rows(mortal, tasks, book, journal.run_in_processes(2), lambda count: None)
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

        run_sweep(grid, tmp_path / "out.csv", journal.run_on_dask(cluster.scheduler_address), progress)
    assert len(seen) > 4 and sum(seen) == len(grid)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
