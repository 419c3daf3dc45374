"""Progress on standard error, with the time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def bar(length: int, label: str, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar; yields the function that counts."""
    with click.progressbar(length=length, label=label, file=sys.stderr, hidden=hidden) as shown:
        yield shown.update
