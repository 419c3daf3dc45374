"""A journal of numbered rows that survives a kill at any moment.

Rows go to the journal in the order in which they are done, each behind its number, and reach the disk in batches. What
is in the journal is not done again.
"""

import csv
import fcntl
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter
from privproj.records.workers import Row, Runner, Work

BATCH_SECONDS = 0.5
"""Seconds that a batch should take; a kill loses about that much work. Speed only."""

MOST_TASKS_PER_BATCH = 500
"""The largest number of tasks in a batch. Speed only."""


class Journal:
    """A file of numbered rows of text (CSV) behind a title that says what they belong to.

    One process at a time may have it open; raises :class:`InvalidParameter` for a second one.
    """

    def __init__(self, path: str | Path, title: dict[str, Any]) -> None:
        self.path, self.rows = Path(path), dict[int, Row]()
        try:
            self.file = open(path, "a+b")  # noqa: SIM115 (held until close)
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidParameter("journal", path, "a journal that no other process writes") from None
        except OSError as error:
            raise InvalidParameter("journal", path, "a file that can be written", str(error.strerror)) from None
        self.take_up(json.dumps(title, sort_keys=True))

    def take_up(self, title: str) -> None:
        """Read the rows up to the first line that is not whole, and cut off the rest."""
        self.file.seek(0)
        content = self.file.read()
        head = (title + "\n").encode()
        if not head.startswith(content) and not content.startswith(head):
            self.close()
            raise InvalidParameter("journal", self.path, "a journal of this very question", "name another file")
        good = len(head) if content.startswith(head) else 0
        for line in content[good:].splitlines(keepends=True):
            row = _parse_row(line)
            if row is None:
                break
            good += len(line)
            self.rows.setdefault(int(row[0]), row[1:])
        self.file.truncate(good)
        if good == 0:
            self.file.write(head)
            self.file.flush()

    def add(self, numbers: list[int], rows: list[Row]) -> None:
        """Append these rows under these numbers; they are on the disk when this returns."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([str(number), *row, ";"] for number, row in zip(numbers, rows, strict=True))
        self.file.write(text.getvalue().encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        self.rows.update(zip(numbers, rows, strict=True))

    def close(self) -> None:
        """Close the file, so that other processes may write it."""
        self.file.close()


def _parse_row(line: bytes) -> Row | None:
    """The fields of a line that was written to its end, which its last field says; None for any other line."""
    try:
        (row,) = csv.reader([line.decode()])
    except (ValueError, csv.Error):
        return None
    return row[:-1] if line.endswith(b";\n") and len(row) > 1 and row[0].isdecimal() else None


def complete_rows(
    work: Work,
    tasks: Iterable[tuple[int, Any]],
    journal: Journal,
    doer: Runner,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[int, Row]:
    """The rows of all tasks by number: those of the journal as they are, the others computed by ``doer``."""
    batches = _Batches((number, task) for number, task in tasks if number not in journal.rows)
    for numbers, rows in doer(work, batches):
        journal.add(numbers, rows)
        batches.learn(len(rows))
        progress(len(rows))
    return journal.rows


class _Batches:
    """Tasks in batches that take about :data:`BATCH_SECONDS` each, judged by the batches done so far."""

    def __init__(self, tasks: Iterator[tuple[int, Any]]) -> None:
        self.tasks, self.size, self.since = tasks, 1, time.monotonic()

    def __iter__(self) -> Iterator[list[tuple[int, Any]]]:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        found = [task for _, task in zip(range(self.size), self.tasks, strict=False)]
        if not found:
            raise StopIteration
        return found

    def learn(self, count: int) -> None:
        """Double the size of batches while they are quick, halve it while they are slow."""
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        if seconds > 2.0 * BATCH_SECONDS:
            self.size = max(1, self.size // 2)
        elif seconds < BATCH_SECONDS and count >= self.size:
            self.size = min(MOST_TASKS_PER_BATCH, 2 * self.size)
