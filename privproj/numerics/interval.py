"""Intervals that enclose an exact value, and margins for rounding errors (C20).

This module needs ``math`` only. Names that start with ``log_`` are natural logs of small numbers, and ``-inf`` is the
log of zero. A function marked as a kernel also runs as machine code (:mod:`privproj.numerics.jit`).
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from privproj.errors import ConvergenceError

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array

# soundness: margin for the relative error of a special function or a converged quadrature (measured: below 1e-13)
FUNCTION_RELATIVE_ERROR = 1e-12

# soundness: margin for the rounding of an exponent, as a relative error for each nat of |ln delta| (measured)
RELATIVE_ERROR_PER_NAT = 4e-15

# soundness: margin for the relative error of a parameter that was rounded once, a few units of rounding
PARAMETER_RELATIVE_ERROR = 1e-15

NEXT_UP_RELATIVE_STEP = 8e-16  # soundness: relative step of next_up: seven units of rounding

# significant digits of a reported epsilon; rounding up increases it by a relative 1e-12 at most (C24)
RESULT_DIGITS = 13

# nats, distance of reported log deltas; rounding up increases a delta by a relative 2e-11 at most (C24)
LOG_DELTA_STEP = 2.0**-36

# nats; log deltas above this are rounded to multiples of LOG_DELTA_STEP, smaller ones are not rounded
LEAST_LOG_ROUNDED = -3e4

LEAST_ROUNDED = 1e-200  # least positive number that is rounded to significant digits

LOG_OF_ZERO_FROM_ABOVE = -1e300  # soundness: nats, upper end of the log of a probability that underflowed


class Enclosure(NamedTuple):
    """Two numbers with ``lower <= exact value <= upper``; an unknown end is ``-inf`` or ``inf``."""

    # The code that builds an enclosure guarantees the inequality. The exact value is that of a formula without
    # rounding.
    lower: float
    upper: float


UNKNOWN = Enclosure(-math.inf, math.inf)  # neither end is known


class LazyEnclosure(Enclosure):
    """Two bounds of a value, of which the lower one is computed on first use."""

    _find_lower: Callable[[], float]

    def __new__(cls, find_lower: Callable[[], float], upper: float) -> "LazyEnclosure":
        """Return an enclosure, given its upper end and a function for its lower end."""
        self = super().__new__(cls, -math.inf, upper)
        self._find_lower = find_lower
        return self

    @cached_property
    def lower(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The lower end, which is computed on first use."""
        return min(self._find_lower(), self.upper)

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.upper))

    def __getitem__(self, end: Any) -> Any:
        return (self.lower, self.upper)[end]


def outward_margin(log_value: Any, error: Any, steepness: Any) -> Any:
    """Return the rounding margin of a log probability, in nats (C20).

    The arguments are those of :func:`widen_outward`, or arrays of them.
    """
    # 1e-12 + error + 4e-15 |ln delta| + 1e-15 |d ln delta / d ln parameter| (C20)
    return (
        FUNCTION_RELATIVE_ERROR + error + RELATIVE_ERROR_PER_NAT * abs(log_value) + PARAMETER_RELATIVE_ERROR * steepness
    )


def widen_outward(log_value: float, error: float = 0.0, steepness: float = 1.0) -> Enclosure:
    """Return lower and upper bounds of a log probability that has rounding errors.

    Args:
        log_value: The computed log probability.
        error: The relative error of the probability, excluding errors of special functions (C20).
        steepness: A bound of ``|d log_value / d log(parameter)|`` for parameters that are themselves rounded.

    Raises:
        ConvergenceError: ``log_value`` or ``error`` is nan.
    """
    if log_value == -math.inf:
        return Enclosure(-math.inf, LOG_OF_ZERO_FROM_ABOVE)
    margin = outward_margin(log_value, error, steepness)
    if math.isnan(margin):
        raise ConvergenceError("a probability is not a number. Please report these parameters as a bug.")
    return Enclosure(log_value - margin, min(0.0, log_value + margin))


def widen_outward_each(
    log_values: "Array", error: "Array | float", steepness: "Array | float"
) -> "tuple[Array, Array]":
    """Return :func:`widen_outward` for arrays, as arrays of lower and upper bounds.

    The bounds are ``-inf`` and ``inf`` for nan.
    """
    import numpy as np

    margin = outward_margin(log_values, error, steepness)
    lower, upper = log_values - margin, np.minimum(log_values + margin, 0.0)
    upper = np.where(log_values == -np.inf, LOG_OF_ZERO_FROM_ABOVE, upper)
    return np.where(np.isnan(lower), -np.inf, lower), np.where(np.isnan(upper), np.inf, upper)


def log1m_exp(x: float) -> float:
    """Return ``ln(1 - e^x)`` without cancellation, ``-inf`` for ``x >= 0``."""
    if x >= 0.0:
        return -math.inf
    return math.log(-math.expm1(x)) if x > -0.7 else math.log1p(-math.exp(x))


def log_difference(x: float, y: float, gap: float = 0.0) -> float:
    """Return ``ln(e^x - e^y)``, or ``-inf`` unless ``x - y > gap``."""
    return x + log1m_exp(y - x) if x - y > gap else -math.inf


def next_up(x: float) -> float:
    """Return ``x`` increased by more than the relative error of several roundings."""
    return x + NEXT_UP_RELATIVE_STEP * abs(x)


def rounded_log_delta(log_delta: float) -> float:
    """Return ``log_delta`` rounded up to a multiple of :data:`LOG_DELTA_STEP`.

    Values below :data:`LEAST_LOG_ROUNDED` are not rounded.
    """
    return math.ceil(log_delta / LOG_DELTA_STEP) * LOG_DELTA_STEP if log_delta > LEAST_LOG_ROUNDED else log_delta


def digits_below(x: float, digits: int = RESULT_DIGITS) -> float:
    """Return ``x >= 0`` rounded down to a number of significant decimal digits.

    Values below :data:`LEAST_ROUNDED` give 0.
    """
    if not LEAST_ROUNDED <= x < math.inf:
        return x if x > 1.0 else 0.0
    return _digits_beside(x, digits, 1.0)


def digits_above(x: float, digits: int = RESULT_DIGITS) -> float:
    """Return ``x >= 0`` rounded up to a number of significant decimal digits."""
    if not 0.0 < x < math.inf:
        return x
    return _digits_beside(max(x, LEAST_ROUNDED), digits, -1.0)


def _digits_beside(x: float, digits: int, side: float) -> float:
    """Return ``x`` rounded to ``digits`` significant digits: down for ``side = 1``, up for -1."""
    first, last = 10.0 ** (digits - 1), 10.0**digits
    power = digits - 1 - math.floor(math.log10(x))
    # The decade of x starts with a number of few digits, so a number with few digits is returned unchanged.
    if x < _times_power_of_ten(first, -power):
        power += 1
    elif x >= _times_power_of_ten(first, 1 - power):
        power -= 1
    # A number with this many digits times this power is an integer except for a few rounding errors.
    count = min(max(side * math.floor(side * _times_power_of_ten(x, power) + 1e-2), first), last)
    near = _times_power_of_ten(count, -power) if count < last else _times_power_of_ten(first, 1 - power)
    if side * near <= side * x:
        return near
    count -= side
    return _times_power_of_ten(count, -power) if count < last else _times_power_of_ten(first, 1 - power)


def _times_power_of_ten(x: float, power: int) -> float:
    """Return ``x 10^power``, correctly rounded for powers from -22 to 22."""
    return x * 10.0 ** float(power) if power >= 0 else x / 10.0 ** float(-power)
