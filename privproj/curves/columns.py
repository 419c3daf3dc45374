"""Profiles over columns: one release of many mechanisms of one kind, a row for each.

A bound that has such a form says so in its field ``columns``. A row of the law is what the kernels need to know of one
mechanism, as floats.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array

Kernel = Callable[[float, Sequence[float]], tuple[float, float]]
"""A plain function of a float and of the row of a law that returns ``(lower, upper)``. It uses ``math`` alone."""


class ColumnProfile(Protocol):
    """A profile that is read for many rows at once. Every answer encloses the exact value of the bound."""

    def log_deltas(self, eps: "Array", laws: "Array", threads: int = 1) -> "tuple[Array, Array]":
        """``(lower, upper)`` of ``ln delta`` at ``eps >= 0``, of shape ``(n,)``, for ``laws`` of shape ``(n, k)``."""
        ...

    def epsilons(self, log_deltas: "Array", laws: "Array", threads: int = 1) -> "tuple[Array, Array]":
        """``(lower, upper)`` of the smallest ``eps >= 0`` whose delta is at most ``e^log_delta``, for every row."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class KernelColumns:
    """A profile whose two readings are kernels: run row by row as they are, or as machine code."""

    log_delta: Kernel
    """From ``eps`` and a row to an enclosure of ``ln delta``."""

    epsilon: Kernel
    """From ``ln delta`` and a row to an enclosure of ``eps``; at the upper end ``log_delta`` was evaluated."""

    def log_deltas(self, eps: "Array", laws: "Array", threads: int = 1) -> "tuple[Array, Array]":
        """Return ``(lower, upper)`` of ``ln delta`` for every row."""
        from privproj.numerics.compiled import over_rows

        return over_rows(self.log_delta, eps, laws, threads)

    def epsilons(self, log_deltas: "Array", laws: "Array", threads: int = 1) -> "tuple[Array, Array]":
        """Return ``(lower, upper)`` of ``eps`` for every row."""
        from privproj.numerics.compiled import over_rows

        return over_rows(self.epsilon, log_deltas, laws, threads)


RowOfLaw = tuple[ColumnProfile, tuple[float, ...]]
"""Which profile over columns a mechanism has, and its row."""
