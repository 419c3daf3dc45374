"""The parameters of records: their checks, which every room shares, and their declarations.

What there is to know of a parameter is said once, where its field is declared (:func:`parameter`): its words, its kind
and its range. The check of its value, the option of the command line, the key in files and the rules of their schema
all come from it.

``noise_multiplier`` is ``z = sigma / s``: the noise standard deviation over the sensitivity of the query under the
relation of the run. It may be left out only for the query that finds it.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unicodedata import category

from privproj.errors import InvalidParameter

SMALLEST_NOISE = 1e-12  # smallest noise multiplier that is accepted

LARGEST_NOISE = 1e12  # largest noise multiplier that is accepted

LARGEST_EPSILON = 1e9  # largest epsilon that is accepted

MOST_WHOLE = 10**15  # largest whole number that is accepted where no other end is named

MOST_WORDS = 60  # characters of an unexpected value that a message repeats at most


def real(
    name: str, value: object, expected: str, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> float:
    """The value as a float in ``[low, high]``, without the ends that are open.

    Raises :class:`InvalidParameter` for anything else, also for nan, strings and booleans.
    """
    number = _converted(float, name, value, expected)
    if not low <= number <= high or (open_low and number == low) or (open_high and number == high):
        raise InvalidParameter(name, value, expected)
    return number


def integer(name: str, value: object, expected: str, low: int = 1, high: int = MOST_WHOLE) -> int:
    """The value as an int in ``[low, high]``; a float that is whole, such as ``1e5``, is accepted.

    Raises :class:`InvalidParameter` for anything else, also for ``2.5``, nan, strings and booleans.
    """
    is_whole = isinstance(value, float) and value.is_integer()
    number = _converted(int if is_whole else operator.index, name, value, expected)
    if number > high and ">=" in expected:
        raise InvalidParameter(name, value, f"{expected} and <= {high:g}")
    if not low <= number <= high:
        raise InvalidParameter(name, value, expected)
    return number


def _converted(convert: Callable[[Any], Any], name: str, value: object, expected: str) -> Any:
    """The value as a number; raises :class:`InvalidParameter` where it is none."""
    try:
        if isinstance(value, bool | str):
            raise TypeError
        return convert(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(name, value, expected, _no_text(value)) from None


# characters that turn the direction in which a line is shown
TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def is_printable(value: object) -> bool:
    """True unless a text within a value (also of a table or a list) has a line end, or what moves a terminal's cursor.

    A name with such characters could forge a line of an answer, so that every door refuses it where it is read.
    """
    if isinstance(value, str):
        return not any(category(c) in ("Cc", "Cs", "Zl", "Zp") or c in TURNS for c in value)
    if isinstance(value, Mapping):
        return all(is_printable(key) and is_printable(part) for key, part in value.items())
    return all(map(is_printable, value)) if isinstance(value, Sequence) else True


def quoted(value: object) -> str:
    """A value as a message repeats it: in ASCII, cut where it is long."""
    words = ascii(value)
    return words if len(words) <= MOST_WORDS else words[: MOST_WORDS - 3] + "..."


def _no_text(value: object) -> str:
    """What to do about a number that was given as text; empty for anything else."""
    return "write it as a number, without quotes" if isinstance(value, str) and value.strip()[:1].isdigit() else ""


def boolean(name: str, value: object) -> bool:
    """The value as it is if it is True or False; raises :class:`InvalidParameter` for numbers and text."""
    if not isinstance(value, bool):
        raise InvalidParameter(name, value, "true or false")
    return value


def probability(name: str, value: object) -> float:
    """The value as a number above 0 and below 1; raises :class:`InvalidParameter` for any other."""
    return real(name, value, "a number above 0 and below 1", 0.0, 1.0, open_low=True, open_high=True)


def privacy_epsilon(value: object, *, zero: bool, name: str = "epsilon") -> float:
    """The value as an epsilon up to 1e9, from 0 on if ``zero``, else above 0; raises :class:`InvalidParameter`."""
    expected = "an epsilon from 0 to 1e+09" if zero else "an epsilon above 0 and at most 1e+09"
    return real(name, value, expected, 0.0, LARGEST_EPSILON, open_low=not zero)


# --- declarations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What values a parameter may have.

    ``words`` are the type in files, as messages call it; ``fits`` says whether a file may hold a value, which is not
    converted, and ``rule`` is that of a JSON schema. ``check`` returns the value as a record keeps it, and raises
    :class:`InvalidParameter` for one outside the range.
    """

    words: str
    fits: Callable[[Any], bool]
    rule: Mapping[str, Any]
    check: Callable[[str, Any], Any] = lambda name, value: value


def _is_number(value: object) -> bool:
    """True for a number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_number(expected: str = "", low: int = 1, high: int = MOST_WHOLE) -> Kind:
    """Whole numbers from ``low`` to ``high``, as a message describes them: by name and range unless it is told how."""
    ends = f">= {low}" if high == MOST_WHOLE else f"from {low} to {high:g}"
    return replace(
        WHOLE,
        rule={**WHOLE.rule, "minimum": low, "maximum": high},
        check=lambda name, value: integer(name, value, expected or f"a whole number {name} {ends}", low, high),
    )


def number(
    expected: str = "", low: float = 0.0, high: float = 1e100, *, open_low: bool = False, open_high: bool = False
) -> Kind:
    """Numbers from ``low`` to ``high``, without the ends that are open, as :func:`whole_number` describes them."""
    ends = {"exclusiveMinimum" if open_low else "minimum": low, "exclusiveMaximum" if open_high else "maximum": high}
    is_open = {"open_low": open_low, "open_high": open_high}
    words = f"above {low:g} and {'below' if open_high else 'up to'}" if open_low else f"from {low:g} to"
    words += f" below {high:g}" if open_high and not open_low else f" {high:g}"
    return replace(
        NUMBER,
        rule={**NUMBER.rule, **ends},
        check=lambda name, value: real(name, value, expected or f"a number {name} {words}", low, high, **is_open),
    )


def one_of(*choices: str) -> Kind:
    """A text that is one of these; the record checks it, since it knows what to suggest for another one."""
    return replace(TEXT, rule={"enum": [*choices]})


# whole numbers, whose range the record checks
WHOLE = Kind("a whole number", lambda value: _is_number(value) and value == value // 1, {"type": "integer"})

NUMBER = Kind("a number", _is_number, {"type": "number"})  # numbers, whose range the record checks

# the range of a noise multiplier
NOISE = number("a noise multiplier from 1e-12 to 1e+12", SMALLEST_NOISE, LARGEST_NOISE)

# the range of a standard deviation of noise
DEVIATION = number("a standard deviation from 1e-12 to 1e+12", SMALLEST_NOISE, LARGEST_NOISE)

# true or false: on the command line an option without a value
TRUTH = Kind("true or false", lambda value: isinstance(value, bool), {"type": "boolean"}, boolean)

TEXT = Kind("text", lambda value: isinstance(value, str), {"type": "string"})  # any text

TABLE = Kind("a table of keys", lambda value: isinstance(value, Mapping), {"type": "object"})  # A table within a file

# layers as texts; their record reads them
LAYERS = Kind(
    "a layer DxR[xN][:M][@SHARE], or a list of them",
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value))
    ),
    {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "string"}}]},
)

# the numbers that are a share
_OPEN_SHARE = number("even, optimal, or a share above 0 and below 1", 0, 1, open_low=True, open_high=True)

# A share of delta, as a number or as optimal
SHARE = Kind(
    "even, optimal or a number",
    lambda value: _is_number(value) or value in ("even", "optimal"),
    {"oneOf": [{"enum": ["even", "optimal"]}, _OPEN_SHARE.rule]},
    lambda name, value: 0.5 if value == "even" else value if value == "optimal" else _OPEN_SHARE.check(name, value),
)


@dataclass(frozen=True)
class Parameter:
    """What its declaration says of a parameter.

    ``words`` are those of its option, which it has none of without them; ``letter`` stands for its value there.
    ``is_needed`` says that it has to be given, but where a query ``is_found``. ``key`` is its name in files and on the
    command line, where that is another one than the field's. ``read`` makes of what stands there what the record takes.
    One that ``is_rare`` stands in the long help only.
    """

    kind: Kind
    words: str = ""
    letter: str | None = None
    default: Any = None
    is_needed: bool = False
    is_found: bool = False
    is_rare: bool = False
    key: str = ""
    read: Callable[[Any], Any] = lambda value: value


def parameter(kind: Kind, words: str = "", letter: str | None = None, *, default: Any = None, **more: Any) -> Any:
    """The field of a record that is a parameter, for which see :class:`Parameter`."""
    return field(default=default, metadata={"parameter": Parameter(kind, words, letter, default, **more)})


def flag(words: str = "") -> Any:
    """The field of a parameter that is true or false, and false unless given."""
    return parameter(TRUTH, words, default=False)


@cache
def parameters_of(record: type) -> dict[str, Parameter]:
    """The parameters of a record by the names of their fields."""
    declared = record.__dataclass_fields__.items()  # pyright: ignore[reportAttributeAccessIssue]
    return {name: field.metadata["parameter"] for name, field in declared if "parameter" in field.metadata}


def parameters_from(record: type, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a record by the names of their fields, from keys as files and the command line have them.

    Other keys are not looked at, and None says nothing.
    """
    readers = {name: (declared.key or name, declared.read) for name, declared in parameters_of(record).items()}
    return {name: read(keys[key]) for name, (key, read) in readers.items() if keys.get(key) is not None}


def check_parameters(record: object) -> None:
    """Replace every parameter that was given by its checked value; the record may be frozen.

    Raises :class:`InvalidParameter` for a value outside its range, and for one that is needed and missing.
    """
    for name, declared in parameters_of(type(record)).items():
        value = getattr(record, name)
        may_be_none = declared.default is None and (declared.is_found or not declared.is_needed)
        if value is not None or not may_be_none:
            object.__setattr__(record, name, declared.kind.check(name, value))
