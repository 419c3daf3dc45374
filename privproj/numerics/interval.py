"""Enclosures and the one outward margin of the project (C20).

Everything here is on ``math``. Logs of tiny numbers are written ``log_...``; ``-inf`` is the log of zero.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from privproj.errors import NotConverged

FUNCTION_RELATIVE_ERROR = 1e-12
"""Relative error allowed to a special function or a converged quadrature (measured: below 1e-13).
Soundness (measured)."""

RELATIVE_ERROR_PER_NAT = 4e-15
"""Further relative error for each nat of ``|ln delta|``: a rounding of the exponent (measured).
Soundness (measured)."""

PARAMETER_RELATIVE_ERROR = 1e-15
"""Relative error allowed to a parameter that was rounded once, a few units of rounding. Soundness."""

NEXT_UP_RELATIVE_STEP = 8e-16
"""Relative step of :func:`next_up`: seven units of rounding. Soundness."""

ANSWER_DIGITS = 13
"""Significant digits of an epsilon that is answered: rounded up, it grows by a relative 1e-12 at the most (C24).
Contract."""

ANSWER_STEP = 2.0**-36
"""Distance of the log deltas that are answered: rounded up, a delta grows by a relative 2e-11 at the most (C24).
Contract."""

LEAST_LOG_ROUNDED = -3e4
"""Log deltas above this are answered as multiples of :data:`ANSWER_STEP`, all others as they are. Contract."""

LEAST_ROUNDED = 1e-200
"""Least number above 0 that has digits to round to. Contract."""

LOG_OF_ZERO_FROM_ABOVE = -1e300
"""Upper end, in nats, of the log of a probability that came out 0. Soundness."""


class Enclosure(NamedTuple):
    """Two numbers with ``lower <= exact value <= upper``; ``-inf`` and ``inf`` where an end is not known.

    Whoever makes an enclosure guarantees it. The exact value is that of the bound's formula at the parameters given.
    """

    lower: float
    upper: float


UNKNOWN = Enclosure(-math.inf, math.inf)  # neither end is known


class LateEnclosure(Enclosure):
    """An enclosure whose lower end costs more than its upper one: it is found when it is first read."""

    _find_lower: Callable[[], float]

    def __new__(cls, find_lower: Callable[[], float], upper: float) -> "LateEnclosure":
        """Whoever makes it guarantees what ``find_lower`` returns; a number above the upper end is lowered to it."""
        self = super().__new__(cls, -math.inf, upper)
        self._find_lower = find_lower
        return self

    @cached_property
    def lower(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The lower end."""
        return min(self._find_lower(), self.upper)

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.upper))

    def __getitem__(self, end: Any) -> Any:
        return (self.lower, self.upper)[end]


def outward_margin(log_value: Any, error: Any, steepness: Any) -> Any:
    """Return how far :func:`widen_outward` moves either end, in nats (C20). It is a kernel, and takes arrays too."""
    # 1e-12 + error + 4e-15 |ln delta| + 1e-15 |d ln delta / d ln parameter| (C20)
    return (
        FUNCTION_RELATIVE_ERROR + error + RELATIVE_ERROR_PER_NAT * abs(log_value) + PARAMETER_RELATIVE_ERROR * steepness
    )


def widen_outward(log_value: float, error: float = 0.0, steepness: float = 1.0) -> Enclosure:
    """Return the enclosure of a log probability that was computed with relative error ``error``: the one margin.

    ``error`` is what a quadrature reports; that of the special functions is added here (C20). ``steepness`` bounds ``|d
    log_value / d log(parameter)|`` for parameters that are themselves rounded. Raises :class:`NotConverged` for a nan.
    """
    if log_value == -math.inf:
        return Enclosure(-math.inf, LOG_OF_ZERO_FROM_ABOVE)
    margin = outward_margin(log_value, error, steepness)
    if math.isnan(margin):
        raise NotConverged("a probability or its error came out undefined; please report these parameters")
    return Enclosure(log_value - margin, min(0.0, log_value + margin))


def log1m_exp(x: float) -> float:
    """Return ``ln(1 - e^x)`` for ``x <= 0``, without cancellation; ``-inf`` from 0 on."""
    if x >= 0.0:
        return -math.inf
    return math.log(-math.expm1(x)) if x > -0.7 else math.log1p(-math.exp(x))


def log_difference(x: float, y: float, gap: float = 0.0) -> float:
    """Return ``ln(e^x - e^y)``; ``-inf`` unless ``x - y`` is above ``gap``, so that the difference keeps its digits."""
    return x + log1m_exp(y - x) if x - y > gap else -math.inf


def next_up(x: float) -> float:
    """Return ``x`` moved up past the error of a handful of roundings, relative :data:`NEXT_UP_RELATIVE_STEP`."""
    return x + NEXT_UP_RELATIVE_STEP * abs(x)


def rounded_log_delta(log_delta: float) -> float:
    """Return the first multiple of :data:`ANSWER_STEP` from a log delta on; it is a kernel."""
    return math.ceil(log_delta / ANSWER_STEP) * ANSWER_STEP if log_delta > LEAST_LOG_ROUNDED else log_delta


def digits_below(x: float, digits: int = ANSWER_DIGITS) -> float:
    """Return the largest number of so many significant digits up to ``x >= 0``: ``x`` itself if it is one; a kernel."""
    if not LEAST_ROUNDED <= x < math.inf:
        return x if x > 1.0 else 0.0
    return _digits_beside(x, digits, 1.0)


def digits_above(x: float, digits: int = ANSWER_DIGITS) -> float:
    """Return the least number of so many significant digits from ``x >= 0`` on: ``x`` itself if it is one; a kernel."""
    if not 0.0 < x < math.inf:
        return x
    return _digits_beside(max(x, LEAST_ROUNDED), digits, -1.0)


def _digits_beside(x: float, digits: int, side: float) -> float:
    """The number of so many digits next to ``x``, not above it for a ``side`` of 1 and not below it for one of -1."""
    power = digits - 1 - math.floor(math.log10(x))
    # A number of so many digits, times this power, is whole but for a few roundings.
    count = side * math.floor(side * _times_power_of_ten(x, power) + 1e-2)
    near = _times_power_of_ten(count, -power)
    return near if side * near <= side * x else _times_power_of_ten(count - side, -power)


def _times_power_of_ten(x: float, power: int) -> float:
    """``x 10^power``; of powers up to 22, and of their inverses, it is the double next to it."""
    return x * 10.0 ** float(power) if power >= 0 else x / 10.0 ** float(-power)
