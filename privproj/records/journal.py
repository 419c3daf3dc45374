"""A journal of numbered rows that survives a kill at any moment.

Rows go to the journal in the order in which they are done, each behind its number, and reach the disk in batches. What
is in the journal is not done again. In memory is only where the rows are.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter
from privproj.records.atomic import naming
from privproj.records.workers import Row, Runner, Work

BATCH_SECONDS = 0.5
"""Seconds that a batch should take; a kill loses about that much work. Speed only."""

MOST_TASKS_PER_BATCH = 2**14
"""The largest number of tasks in a batch. Speed only."""

END_OF_ROW = b",;\n"
"""What a line ends with that was written whole. Contract."""


class Journal:
    """A file of numbered rows of one line each, behind a title that says what they belong to.

    One process at a time may have it open; raises :class:`InvalidParameter` for a second one.
    """

    def __init__(self, path: str | Path, title: dict[str, Any]) -> None:
        self.path = Path(path)
        self.runs: list[list[int]] = []
        """For rows with consecutive numbers, one behind the other: the first number, how many, and where they are."""
        try:
            self.file = open(path, "a+b")  # noqa: SIM115 (held until close)
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidParameter("journal", path, "a journal that no other process writes") from None
        except OSError as error:
            raise InvalidParameter("journal", path, "a file that can be written", str(error.strerror)) from None
        self.take_up(json.dumps(title, sort_keys=True))

    def __len__(self) -> int:
        """How many rows there are."""
        return sum(count for _, count, _ in self.runs)

    def take_up(self, title: str) -> None:
        """Find the rows up to the first line that is not whole, and cut off the rest."""
        self.file.seek(0)
        head = (title + "\n").encode()
        found = self.file.read(len(head))
        if not head.startswith(found):
            self.close()
            raise InvalidParameter("journal", self.path, "a journal of this very question", "name another file")
        good = len(head) if found == head else 0
        for line in self.file if good else ():
            number = line.split(b",", 1)[0]
            if not (number.isdigit() and line.endswith(END_OF_ROW)):
                break
            self._note(int(number), good)
            good += len(line)
        self.file.truncate(good)
        if good == 0:
            self.file.write(head)
            self.file.flush()

    def _note(self, number: int, place: int) -> None:
        """Keep in mind where a row is, which stands behind all others."""
        if self.runs and number == sum(self.runs[-1][:2]):
            self.runs[-1][1] += 1
        else:
            self.runs.append([number, 1, place])

    def add(self, numbers: list[int], rows: list[Row]) -> None:
        """Append these rows under these numbers; they are on the disk when this returns."""
        place = self.file.seek(0, os.SEEK_END)
        lines = [b"%d,%b%b" % (n, row.encode(), END_OF_ROW) for n, row in zip(numbers, rows, strict=True)]
        with naming(self.path):
            self.file.write(b"".join(lines))
            self.file.flush()
            os.fsync(self.file.fileno())
        for number, line in zip(numbers, lines, strict=True):
            self._note(number, place)
            place += len(line)

    def missing(self, count: int) -> Iterator[int]:
        """The numbers below ``count`` that had no row when this was called, in their order."""
        number = 0
        for first, size, _ in [tuple(run) for run in sorted(self.runs)]:
            yield from range(number, min(first, count))
            number = max(number, first + size)
        yield from range(number, count)

    def rows(self) -> Iterator[Row]:
        """The rows in the order of their numbers, each number once."""
        number = 0
        with self.path.open("rb") as file:
            for first, size, place in sorted(self.runs):
                file.seek(place)
                for i in range(first, first + size):
                    line = file.readline()
                    if i >= number:
                        yield line.split(b",", 1)[1][: -len(END_OF_ROW)].decode()
                number = max(number, first + size)

    def close(self) -> None:
        """Close the file, so that other processes may write it."""
        self.file.close()


def complete_rows(
    work: Work,
    task: Callable[[int], Any],
    count: int,
    journal: Journal,
    doer: Runner,
    progress: Callable[[int], object] = lambda count: None,
) -> None:
    """Let ``doer`` do those of ``count`` tasks that the journal has no row for; ``task`` makes one of its number."""
    batches = _Batches((number, task(number)) for number in journal.missing(count))
    for numbers, rows in doer(work, batches):
        journal.add(numbers, rows)
        batches.learn(len(rows))
        progress(len(rows))


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
