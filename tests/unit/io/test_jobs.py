"""Jobs of many rows: their order, the journal, and workers that die."""

import os
import signal
from contextlib import contextmanager
from functools import partial

import pytest

from privproj.errors import ConvergenceError
from privproj.io.jobs import complete_rows, open_pool, rows_in_order


def numbered(numbers):
    return "".join(f"row,{i}\n" for i in numbers)


def test_complete_rows_removes_incomplete_lines(tmp_path):
    path, seen = tmp_path / "journal", []
    with complete_rows(numbered, 100, path, "numbers\nof rows\n", open_pool, seen.append) as rows:
        assert rows.read().decode() == "of rows\n" + numbered(range(100))
    assert seen[0] == 0 and sum(seen) == 100
    content = path.read_bytes()
    for torn in (b"", b"row,10", b"\0" * 20, b"row,\0\0\0\nrow,101\n"):
        path.write_bytes(content + torn)
        seen.clear()
        with complete_rows(numbered, 100, path, "numbers\nof rows\n", open_pool, seen.append) as rows:
            assert rows.read().decode() == "of rows\n" + numbered(range(100)) and seen == [100]
        assert path.read_bytes() == content


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_rows_in_order_sizes_batches_by_their_time(workers):
    """Rows of many processes arrive in bursts: batch sizes depend on the time that each batch took."""
    sizes = []

    @contextmanager
    def slow():
        def start(timed, work, numbers):
            sizes.append(len(numbers))
            return lambda: (work(numbers), 0.01 * len(numbers))

        yield start, 4 * workers

    lines = "".join(rows_in_order(numbered, range(20_000), slow))
    assert lines == numbered(range(20_000)) and 40 <= sizes[-2] <= 50 and max(sizes) <= 50


@pytest.mark.full
def test_pool_replaces_worker_that_dies(tmp_path):
    marker = tmp_path / "died"
    rows = "".join(rows_in_order(partial(mortal, str(marker)), range(12), partial(open_pool, 2)))
    assert marker.exists() and rows.split() == [str(i * i) for i in range(12)]


def mortal(marker, numbers):
    if 5 in numbers and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return "".join(f"{i * i}\n" for i in numbers)


@pytest.mark.full
def test_rows_in_order_gives_up_after_many_dead_pools():
    with pytest.raises(ConvergenceError, match="if memory is short"):
        list(rows_in_order(deadly, range(1), partial(open_pool, 2)))


def deadly(numbers):
    os.kill(os.getpid(), signal.SIGKILL)
