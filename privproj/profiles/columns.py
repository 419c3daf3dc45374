"""Profiles over columns: one release of many mechanisms of one kind, a row for each.

A bound that has such a form says so in its field ``columns``. A row of the law is what the kernels need to know of one
mechanism, as floats.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privproj.errors import NotConverged
from privproj.numerics.interval import Enclosure
from privproj.profiles.privacy_profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array

Kernel = Callable[[float, Sequence[float]], tuple[float, float]]
"""A plain function of a float and of the row of a law that returns ``(lower, upper)``. It uses ``math`` alone."""


@dataclass(frozen=True, eq=False, repr=False)
class KernelColumns:
    """A profile whose readings are kernels: run row by row as they are, or as machine code.

    Every answer encloses the exact value of the bound, but for those of ``root``.
    """

    log_delta: Kernel
    """From ``eps`` and a row to an enclosure of ``ln delta``."""

    root: Kernel
    """From ``ln delta`` and a row to nearly that ``eps``, and about what it misses in nats; nothing is claimed."""

    weight: float = 1.0
    """What a row costs plain Python, over what one of M2 costs. Speed only."""


def profile_of_kernels(columns: KernelColumns, row: tuple[float, ...], **fields: Any) -> PrivacyProfile:
    """Return the profile of one release whose two readings are these kernels at this row.

    Raises :class:`privproj.errors.NotConverged` where a kernel says that nothing is known.
    """

    def log_delta(eps: float) -> Enclosure:
        return known_ends(columns.log_delta(eps, row))

    def log_deltas(eps: "Array") -> "tuple[Array, Array]":
        import numpy as np

        from privproj.numerics.jit import over_rows

        # What a delta of M2 costs, over what an epsilon does. Speed only.
        weight = 0.2 * columns.weight
        lower, upper = over_rows(columns.log_delta, eps, np.broadcast_to(row, (len(eps), len(row))), weight=weight)
        # Where machine code knows nothing it may say nan: then delta is at most 1.
        return np.where(np.isnan(lower), -math.inf, lower), np.where(np.isnan(upper), 0.0, np.minimum(upper, 0.0))

    def guess(log_delta: float) -> float | None:
        eps = columns.root(log_delta, row)[0]
        return eps if 0.0 < eps < math.inf else None

    return PrivacyProfile(log_delta, guess=guess, log_deltas=log_deltas, **fields)


def known_ends(ends: tuple[float, float]) -> Enclosure:
    """Return the enclosure that a kernel returned; raises :class:`NotConverged` where it says nothing."""
    if ends == (-math.inf, math.inf):
        raise NotConverged("the quadrature or the search did not converge; please report these parameters")
    return Enclosure(*ends)


LawRow = tuple[KernelColumns, tuple[Any, ...]]
"""Which profile over columns a mechanism has, and its row: floats, or arrays of them for many ratios ``mu``."""
