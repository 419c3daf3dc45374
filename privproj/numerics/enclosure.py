"""Enclosures and the one outward margin of the project.

Everything here is on ``math``. Logs of tiny numbers are written ``log_...``; ``-inf`` is the log of zero.
"""

import math
from typing import NamedTuple

from privproj.errors import NotConverged

ROUNDING = 1e-12
"""Relative error allowed to a special function or a converged quadrature (measured: below 1e-13)."""

ROUNDING_PER_LOG = 4e-15
"""Further relative error for each unit of ``|log delta|`` (a rounding of the exponent)."""

LOG_FLOOR = -1e300


class Enclosure(NamedTuple):
    """``lower <= exact value <= upper``."""

    lower: float
    upper: float


def outward(log_value: float, error: float = 0.0, steepness: float = 1.0) -> Enclosure:
    """The one outward margin: the enclosure of a log probability computed with relative error ``error``.

    ``steepness`` bounds ``|d log_value / d log(parameter)|`` for parameters that are themselves rounded. Raises
    :class:`NotConverged` for a nan.
    """
    if log_value == -math.inf:
        return Enclosure(-math.inf, LOG_FLOOR)
    margin = ROUNDING + error + ROUNDING_PER_LOG * abs(log_value) + 1e-15 * steepness
    if math.isnan(margin):
        raise NotConverged("a probability or its error came out undefined; please report these parameters")
    return Enclosure(log_value - margin, min(0.0, log_value + margin))


def log1m_exp(x: float) -> float:
    """``ln(1 - e^x)`` for ``x <= 0``."""
    if x >= 0.0:
        return -math.inf
    return math.log(-math.expm1(x)) if x > -0.7 else math.log1p(-math.exp(x))


def next_up(x: float) -> float:
    """``x`` moved up past the error of a handful of roundings."""
    return x + 8e-16 * abs(x)
