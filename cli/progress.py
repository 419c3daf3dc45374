"""Progress on standard error, with the rate and the time left."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def bar(length: int, label: str, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar; yields the function that counts. What the first call counts was done before."""
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


def per_second(rate: float | None) -> str | None:
    """Say a rate as ``12.3/s``."""
    return None if rate is None else f"{rate:.3g}/s"
