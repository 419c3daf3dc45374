"""What every file on arrays shares: their types, Gauss nodes as arrays, the outward margin, and repeated doubling."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, outward_margin
from privproj.numerics.quadrature import gauss_legendre

Array = NDArray[np.float64]
"""An array of doubles of any shape."""

Index = NDArray[np.intp]
"""An array of indices."""

Item = TypeVar("Item")
"""What is joined with copies of itself."""


@lru_cache(maxsize=8)
def gauss_nodes(count: int) -> tuple[Array, Array]:
    """Return the nodes and the weights of the Gauss-Legendre rule on [0, 1], two arrays of shape ``(count,)``."""
    nodes, weights = zip(*gauss_legendre(count), strict=True)
    return np.array(nodes), np.array(weights)


def widen_outward_each(log_values: Array, error: Array | float, steepness: Array | float) -> tuple[Array, Array]:
    """Return :func:`privproj.numerics.interval.widen_outward` of each entry; an undefined one says nothing."""
    margin = outward_margin(log_values, error, steepness)
    lower, upper = log_values - margin, np.minimum(log_values + margin, 0.0)
    upper = np.where(log_values == -np.inf, LOG_OF_ZERO_FROM_ABOVE, upper)
    return np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), np.inf, upper)


def join_copies(item: Item, count: int, join: Callable[[Item, Item], Item]) -> Item:
    """Return ``count >= 1`` copies joined into one, by repeated doubling; ``join`` is associative."""
    while count % 2 == 0:
        item, count = join(item, item), count // 2
    total = item
    while count := count // 2:
        item = join(item, item)
        total = join(total, item) if count % 2 else total
    return total
