"""What goes to standard output and standard error: text, errors, and progress with the rate and the time left."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click


def write(text: str, stream: TextIO | None = None) -> None:
    """Write a text and the end of its line, to standard output unless told otherwise."""
    print(text, file=stream, flush=True)


def one_line(message: str) -> str:
    """Return a message on one line; characters that would move a terminal's cursor are shown, not obeyed."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))


def complain(message: str, code: int) -> int:
    """Print the error, in which a file's own words may stand, as one line on standard error; returns the exit code."""
    write("error: " + one_line(message), sys.stderr)
    return code


@contextmanager
def bar(length: int, label: str, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar; yields the function that counts. What the first call counts was done before."""

    def per_second(rate: float | None) -> str | None:
        return None if rate is None else f"{rate:.3g}/s"

    with click.progressbar(
        length=length, label=label, file=sys.stderr, hidden=hidden, show_pos=True, item_show_func=per_second
    ) as shown:
        began, counted = None, 0

        def count(done: int) -> None:
            nonlocal began, counted
            now = time.monotonic()
            counted += done if began is not None else 0
            began = now if began is None else began
            shown.update(done, counted / (now - began) if now > began else None)

        yield count
