"""What every file on arrays shares: their types, Gauss-Legendre nodes, the deviance, and the outward margin."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privproj.numerics.enclosure import (
    FUNCTION_RELATIVE_ERROR,
    LOG_OF_ZERO_FROM_ABOVE,
    PARAMETER_RELATIVE_ERROR,
    RELATIVE_ERROR_PER_NAT,
)
from privproj.numerics.quadrature import gauss_legendre

Array = NDArray[np.float64]
"""An array of doubles of any shape."""

Index = NDArray[np.intp]
"""An array of indices."""

SERIES_RANGE = 0.3
"""``|w|`` below which ``D`` is summed in powers. Soundness."""

SERIES_COEFFICIENTS = tuple(1.0 / math.factorial(n) for n in range(13, 1, -1))
"""Coefficients of ``D/w^2``, the highest first: the remainder is below ``0.3^12 2.1/14! < 2e-17`` of it. Soundness."""


@lru_cache(maxsize=8)
def gauss_nodes(count: int) -> tuple[Array, Array]:
    """Return the nodes and the weights of the Gauss-Legendre rule on [0, 1], two arrays of shape ``(count,)``."""
    nodes, weights = zip(*gauss_legendre(count), strict=True)
    return np.array(nodes), np.array(weights)


def widen_outward_each(log_values: Array, error: Array | float, steepness: Array | float) -> tuple[Array, Array]:
    """Return :func:`privproj.numerics.enclosure.widen_outward` of each entry; an undefined one says nothing."""
    # 1e-12 + error + 4e-15 |ln delta| + 1e-15 |d ln delta / d ln parameter| (C20)
    margin = (
        FUNCTION_RELATIVE_ERROR
        + error
        + RELATIVE_ERROR_PER_NAT * np.abs(log_values)
        + PARAMETER_RELATIVE_ERROR * steepness
    )
    lower, upper = log_values - margin, np.minimum(log_values + margin, 0.0)
    upper = np.where(log_values == -np.inf, LOG_OF_ZERO_FROM_ABOVE, upper)
    return np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), np.inf, upper)


def deviance(w: Array) -> Array:
    """Return ``D(w) = e^w - 1 - w`` at every entry, without cancellation near 0."""
    small = np.abs(w) < SERIES_RANGE
    v = np.where(small, w, 0.0)
    series = np.full_like(v, SERIES_COEFFICIENTS[0])
    for coefficient in SERIES_COEFFICIENTS[1:]:
        series *= v
        series += coefficient
    series *= v
    series *= v
    if small.all():
        return series
    return np.where(small, series, np.expm1(w) - w)
