"""Kernels over rows: plain Python for a few, machine code for many."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from privproj.numerics.arrays import Array

ROWS_WORTH_COMPILING = 2000
"""From how many rows on a kernel is compiled; numba takes most of a second to import. Speed only."""

_rows_of_work: ContextVar[int] = ContextVar("rows_of_work", default=0)


@contextmanager
def rows_to_come(count: int) -> Iterator[None]:
    """Within it, kernels are run as is best for so many rows, however few of them come at a time."""
    before = _rows_of_work.set(count)
    try:
        yield
    finally:
        _rows_of_work.reset(before)


def over_rows(
    kernel: Callable[[float, Sequence[float]], tuple[float, float]], first: Array, rows: Array, threads: int = 1
) -> tuple[Array, Array]:
    """Return both values of ``kernel(first_i, rows_i)`` for every ``i``, as two arrays of shape ``(n,)``.

    ``first`` has shape ``(n,)``, ``rows`` has shape ``(n, k)``.
    """
    found = [kernel(x, row) for x, row in zip(first.tolist(), rows.tolist(), strict=True)]
    pair = np.array(found, float).reshape(len(found), 2)
    return pair[:, 0], pair[:, 1]
