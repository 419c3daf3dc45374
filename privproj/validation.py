"""What every mechanism shares, and the checks of single parameters.

``noise_multiplier`` is ``z = sigma / s``: the noise standard deviation over the sensitivity of the
query under the relation of the run. It may be left out only for the query that finds it.
"""

import operator

from privproj.errors import InvalidParameter

SMALLEST_NOISE = 1e-12
"""Smallest noise multiplier that is accepted. Contract."""

LARGEST_NOISE = 1e12
"""Largest noise multiplier that is accepted. Contract."""

LARGEST_EPSILON = 1e9
"""Largest epsilon that is accepted. Contract."""


def real(name: str, value: object, expected: str, low: float, high: float, *, open_low: bool = False) -> float:
    """``value`` as a float in ``[low, high]`` (``open_low``: above ``low``); nan, strings and booleans are refused."""
    try:
        if isinstance(value, bool | str):
            raise TypeError
        number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(name, value, expected) from None
    if not (low < number <= high if open_low else low <= number <= high):
        raise InvalidParameter(name, value, expected)
    return number


def whole(name: str, value: object, expected: str, low: int = 1, high: int = 10**15) -> int:
    """``value`` as an int in ``[low, high]``; ``2.5``, ``nan`` and booleans are refused, ``1e5`` is not."""
    try:
        if isinstance(value, bool | str):
            raise TypeError
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        number = operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise InvalidParameter(name, value, expected) from None
    if not low <= number <= high:
        raise InvalidParameter(name, value, expected)
    return number


def boolean(name: str, value: object) -> bool:
    """``value`` as it is, if it is True or False; numbers and text are refused."""
    if not isinstance(value, bool):
        raise InvalidParameter(name, value, "true or false")
    return value


def noise(value: object) -> float:
    """A noise multiplier."""
    return real("noise_multiplier", value, "a noise multiplier from 1e-12 to 1e+12", SMALLEST_NOISE, LARGEST_NOISE)


def probability(name: str, value: object) -> float:
    """A number strictly between 0 and 1."""
    number = real(name, value, "a number above 0 and below 1", 0.0, 1.0, open_low=True)
    if number == 1.0:
        raise InvalidParameter(name, value, "a number above 0 and below 1")
    return number


def privacy_epsilon(value: object, *, zero: bool) -> float:
    """A finite epsilon, ``>= 0`` if ``zero``, else positive."""
    expected = "an epsilon from 0 to 1e+09" if zero else "an epsilon above 0 and at most 1e+09"
    return real("epsilon", value, expected, 0.0, LARGEST_EPSILON, open_low=not zero)
