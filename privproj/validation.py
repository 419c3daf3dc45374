"""The checks of single parameters, which every room shares.

``noise_multiplier`` is ``z = sigma / s``: the noise standard deviation over the sensitivity of the query under the
relation of the run. It may be left out only for the query that finds it.
"""

import operator
from collections.abc import Mapping, Sequence
from unicodedata import category

from privproj.errors import InvalidParameter

SMALLEST_NOISE = 1e-12
"""Smallest noise multiplier that is accepted. Contract."""

LARGEST_NOISE = 1e12
"""Largest noise multiplier that is accepted. Contract."""

LARGEST_EPSILON = 1e9
"""Largest epsilon that is accepted. Contract."""


def real(name: str, value: object, expected: str, low: float, high: float, *, open_low: bool = False) -> float:
    """The value as a float in ``[low, high]``, above ``low`` if ``open_low``.

    Raises :class:`InvalidParameter` for anything else, also for nan, strings and booleans.
    """
    try:
        if isinstance(value, bool | str):
            raise TypeError
        number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(name, value, expected, _no_text(value)) from None
    if not (low < number <= high if open_low else low <= number <= high):
        raise InvalidParameter(name, value, expected)
    return number


def whole(name: str, value: object, expected: str, low: int = 1, high: int = 10**15) -> int:
    """The value as an int in ``[low, high]``; a float that is whole, such as ``1e5``, is accepted.

    Raises :class:`InvalidParameter` for anything else, also for ``2.5``, nan, strings and booleans.
    """
    try:
        if isinstance(value, bool | str):
            raise TypeError
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        number = operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise InvalidParameter(name, value, expected, _no_text(value)) from None
    if not low <= number <= high:
        raise InvalidParameter(name, value, expected)
    return number


TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that turn the direction in which a line is shown. Contract."""


def is_printable(value: object) -> bool:
    """True unless a text within a value (also of a table or a list) has a line end, or what moves a terminal's cursor.

    A name with such characters could forge a line of an answer, so that every door refuses it where it is read.
    """
    if isinstance(value, str):
        return not any(category(c) in ("Cc", "Cs", "Zl", "Zp") or c in TURNS for c in value)
    if isinstance(value, Mapping):
        return all(is_printable(key) and is_printable(part) for key, part in value.items())
    return all(map(is_printable, value)) if isinstance(value, Sequence) else True


def _no_text(value: object) -> str:
    """What to do about a number that was given as text; empty for anything else."""
    return "write it as a number, without quotes" if isinstance(value, str) and value.strip()[:1].isdigit() else ""


def boolean(name: str, value: object) -> bool:
    """The value as it is if it is True or False; raises :class:`InvalidParameter` for numbers and text."""
    if not isinstance(value, bool):
        raise InvalidParameter(name, value, "true or false")
    return value


def noise(value: object) -> float:
    """The value as a noise multiplier, from 1e-12 to 1e12; raises :class:`InvalidParameter` for any other."""
    return real("noise_multiplier", value, "a noise multiplier from 1e-12 to 1e+12", SMALLEST_NOISE, LARGEST_NOISE)


def positive_deviation(name: str, value: object) -> float:
    """The value as a standard deviation, from 1e-12 to 1e12; raises :class:`InvalidParameter` for any other."""
    return real(name, value, "a standard deviation from 1e-12 to 1e+12", SMALLEST_NOISE, LARGEST_NOISE)


def probability(name: str, value: object) -> float:
    """The value as a number above 0 and below 1; raises :class:`InvalidParameter` for any other."""
    number = real(name, value, "a number above 0 and below 1", 0.0, 1.0, open_low=True)
    if number == 1.0:
        raise InvalidParameter(name, value, "a number above 0 and below 1")
    return number


def privacy_epsilon(value: object, *, zero: bool) -> float:
    """The value as an epsilon up to 1e9, from 0 on if ``zero``, else above 0; raises :class:`InvalidParameter`."""
    expected = "an epsilon from 0 to 1e+09" if zero else "an epsilon above 0 and at most 1e+09"
    return real("epsilon", value, expected, 0.0, LARGEST_EPSILON, open_low=not zero)
