"""JSON read strictly: what two readers could understand differently is refused.

One key twice, nan and infinities, and numbers written with digits that a double does not hold are no values here. The
usual reader keeps the last of two keys, and rounds the number without a word.
"""

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from privproj.errors import InvalidParameter
from privproj.validation import Kind, quoted

LIST = Kind("a list", lambda value: isinstance(value, list), {"type": "array"})
"""A list within an object."""


class Ambiguous(ValueError):
    """Raised for JSON that says something twice, or a number that is no double; the message says which."""


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises :class:`Ambiguous`, and ``json.JSONDecodeError`` or RecursionError for text that is no JSON or nested too
    deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_float=_double, parse_int=_whole, parse_constant=_none)
    except (json.JSONDecodeError, Ambiguous):
        raise
    except ValueError as error:
        raise Ambiguous(str(error)) from None


def same_json(one: object, other: object) -> bool:
    """True for equal JSON values of the same types, whatever the order of keys; 1 is neither 1.0 nor true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return type(one) is type(other) and one == other


def read_table(name: str, given: Any, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The values of an object of exactly these keys, each of its kind and within its range.

    Raises :class:`InvalidParameter` for anything else; ``name`` is that of the object.
    """
    if not isinstance(given, dict) or set(given) != set(kinds):
        raise InvalidParameter(name, quoted(given), "the keys " + ", ".join(kinds))
    for key, kind in kinds.items():
        if not kind.fits(given[key]):
            raise InvalidParameter(key, quoted(given[key]), kind.words)
    return {key: kind.check(key, given[key]) for key, kind in kinds.items()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; raises :class:`Ambiguous` for a key given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        double = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise Ambiguous(f"the key {quoted(double)} twice")
    return found


def _double(text: str) -> float:
    """The double that says the same digits as the text; raises :class:`Ambiguous` where there is none."""
    value = float(text)
    try:
        if math.isfinite(value) and Decimal(text) == Decimal(repr(value)):
            return value
    except ArithmeticError:
        pass
    raise Ambiguous(f"the number {quoted(text)}, which is no double")


def _whole(text: str) -> int:
    """A whole number of at most 20 characters; raises :class:`Ambiguous` for a longer one."""
    if len(text) > 20:
        raise Ambiguous(f"the whole number {quoted(text)}")
    return int(text)


def _none(text: str) -> None:
    """Refuse nan and infinities by raising :class:`Ambiguous`."""
    raise Ambiguous(f"{text} for a number")
