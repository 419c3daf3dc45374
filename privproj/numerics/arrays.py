"""What every file on arrays shares: the array type, and Gauss-Legendre nodes as arrays."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privproj.numerics.quadrature import gauss_legendre

Array = NDArray[np.float64]
"""An array of doubles of any shape."""


@lru_cache(maxsize=8)
def gauss_nodes(count: int) -> tuple[Array, Array]:
    """Return the nodes and the weights of the Gauss-Legendre rule on [0, 1], two arrays of shape ``(count,)``."""
    nodes, weights = zip(*gauss_legendre(count), strict=True)
    return np.array(nodes), np.array(weights)
