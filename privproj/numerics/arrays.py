"""Array types, and repeated squaring of an associative operation."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]  # an array of doubles of any shape

Index = NDArray[np.intp]  # an array of indices

Item = TypeVar("Item")


def join_copies(item: Item, count: int, join: Callable[[Item, Item], Item]) -> Item:
    """Return the combination of ``count >= 1`` copies of ``item``, by repeated squaring.

    ``join`` is an associative operation on two items, such as convolution.
    """
    while count % 2 == 0:
        item, count = join(item, item), count // 2
    total = item
    while count := count // 2:
        item = join(item, item)
        total = join(total, item) if count % 2 else total
    return total
