"""Declare and check the parameters of mechanisms, runs and targets.

A parameter is declared once, where its field is defined, with its help text, type and range. The check of its value,
the command-line option, the key in files and their JSON schema are derived from the declaration.

``noise_multiplier`` is the ratio of the noise standard deviation to the sensitivity of the query under the neighboring
relation of the run.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar
from unicodedata import category

from privproj.errors import InvalidParameterError

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

SMALLEST_NOISE = 1e-12  # smallest accepted noise multiplier

LARGEST_NOISE = 1e12  # largest accepted noise multiplier

LARGEST_EPSILON = 1e9  # largest accepted epsilon

MOST_WHOLE = 10**15  # largest accepted integer unless declared otherwise

MOST_CHARACTERS = 60  # characters, longest value that an error message shows


def arguments_by_name(call: str) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """Return a decorator that rejects surplus positional arguments of a function.

    ``call`` is an example of a correct call for the error message.
    """

    def decorate(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        most: int = function.__code__.co_argcount  # pyright: ignore[reportFunctionMemberAccess]

        @wraps(function)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
            if len(args) > most:
                name = f"arguments of {function.__name__}"
                raise InvalidParameterError(name, quoted(args[most:]), "given by name", f"write {call}")
            return function(*args, **kwargs)

        return checked

    return decorate


def real(
    name: str, value: object, expected: str, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> float:
    """Check that a value is a number from ``low`` to ``high``; return it as a float.

    ``open_low`` and ``open_high`` exclude the ends of the range. ``expected`` describes valid values in the error
    message.

    Raises:
        InvalidParameterError: The value is anything else, including nan, strings and booleans.
    """
    number = _converted(float, name, value, expected)
    if not low <= number <= high or (open_low and number == low) or (open_high and number == high):
        raise InvalidParameterError(name, value, expected)
    return number


def integer(name: str, value: object, expected: str, low: int = 1, high: int = MOST_WHOLE) -> int:
    """Check that a value is an integer from ``low`` to ``high``; return it as an int.

    An integral float such as ``1e5`` is accepted. ``expected`` describes valid values in the error message.

    Raises:
        InvalidParameterError: The value is anything else, including ``2.5``, nan, strings and booleans.
    """
    is_whole = isinstance(value, float) and value.is_integer()
    number = _converted(int if is_whole else operator.index, name, value, expected)
    if number > high and ">=" in expected:
        raise InvalidParameterError(name, value, f"{expected} and <= {high:g}")
    if not low <= number <= high:
        raise InvalidParameterError(name, value, expected)
    return number


def _converted(convert: Callable[[Any], Any], name: str, value: object, expected: str) -> Any:
    try:
        if isinstance(value, bool | str):
            raise TypeError
        return convert(value)
    except (TypeError, ValueError, OverflowError):
        is_quoted = isinstance(value, str) and value.strip()[:1].isdigit()
        advice = "write the number without quotes" if is_quoted else ""
        actual = f"the text {quoted(value)}" if isinstance(value, str) else value
        raise InvalidParameterError(name, actual, expected, advice) from None


# characters that change the text direction
TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def is_printable(value: object) -> bool:
    """Return whether a value, with its elements, is free of line ends and control characters."""
    if isinstance(value, str):
        return not any(category(c) in ("Cc", "Cs", "Zl", "Zp") or c in TURNS for c in value)
    if isinstance(value, Mapping):
        return all(is_printable(key) and is_printable(part) for key, part in value.items())
    return all(map(is_printable, value)) if isinstance(value, Sequence) else True


def quoted(value: object) -> str:
    """Return a value as text for error messages: in ASCII, at most 60 characters."""
    text = ascii(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def boolean(name: str, value: object) -> bool:
    """Check that a value is True or False, and return it."""
    if not isinstance(value, bool):
        raise InvalidParameterError(name, value, "true or false")
    return value


def probability(name: str, value: object) -> float:
    """Check that a value is a number above 0 and below 1; return it as a float."""
    return real(name, value, "a number above 0 and below 1", 0.0, 1.0, open_low=True, open_high=True)


def privacy_epsilon(value: object, *, zero: bool, name: str = "epsilon") -> float:
    """Check that a value is an epsilon up to 1e9, which may be 0 if ``zero`` is True; return it."""
    expected = "a number from 0 to 1e+09" if zero else "a number above 0 and at most 1e+09"
    return real(name, value, expected, 0.0, LARGEST_EPSILON, open_low=not zero)


# --- declarations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The type and range of a parameter's values.

    * ``description``: The name of the type in error messages about files.
    * ``fits``: A function that returns whether a value in a file has the type.
    * ``rule``: The JSON schema of the values.
    * ``check``: A function that returns the validated value; it raises :class:`InvalidParameterError`.
    """

    description: str
    fits: Callable[[Any], bool]
    rule: Mapping[str, Any]
    check: Callable[[str, Any], Any] = lambda name, value: value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_number(expected: str = "", low: int = 1, high: int = MOST_WHOLE) -> Kind:
    """Return the type of a parameter whose values are integers from ``low`` to ``high``.

    ``expected`` describes valid values in error messages.
    """
    ends = f">= {low}" if high == MOST_WHOLE else f"from {low} to {high:g}"
    return replace(
        WHOLE,
        rule={**WHOLE.rule, "minimum": low, "maximum": high},
        check=lambda name, value: integer(name, value, expected or f"an integer {ends}", low, high),
    )


def number(
    expected: str = "", low: float = 0.0, high: float = 1e100, *, open_low: bool = False, open_high: bool = False
) -> Kind:
    """Return the type of a parameter whose values are numbers from ``low`` to ``high``.

    ``open_low`` and ``open_high`` exclude the ends of the range. ``expected`` describes valid values in error messages.
    """
    ends = {"exclusiveMinimum" if open_low else "minimum": low, "exclusiveMaximum" if open_high else "maximum": high}
    is_open = {"open_low": open_low, "open_high": open_high}
    description = f"above {low:g} and {'below' if open_high else 'up to'}" if open_low else f"from {low:g} to"
    description += f" below {high:g}" if open_high and not open_low else f" {high:g}"
    return replace(
        NUMBER,
        rule={**NUMBER.rule, **ends},
        check=lambda name, value: real(name, value, expected or f"a number {description}", low, high, **is_open),
    )


def one_of(*choices: str) -> Kind:
    """Return the type of a parameter whose values are texts from a list of choices.

    The dataclass that declares the parameter must check its value.
    """
    return replace(TEXT, rule={"enum": [*choices]})


WHOLE = Kind("an integer", lambda value: _is_number(value) and value == value // 1, {"type": "integer"})

NUMBER = Kind("a number", _is_number, {"type": "number"})

NOISE = number("a number from 1e-12 to 1e+12", SMALLEST_NOISE, LARGEST_NOISE)

DEVIATION = number("a number from 1e-12 to 1e+12", SMALLEST_NOISE, LARGEST_NOISE)

# a flag on the command line
TRUTH = Kind("true or false", lambda value: isinstance(value, bool), {"type": "boolean"}, boolean)

TEXT = Kind("text", lambda value: isinstance(value, str), {"type": "string"})

TABLE = Kind("a table of keys", lambda value: isinstance(value, Mapping), {"type": "object"})

# layers as text, which their record parses
LAYERS = Kind(
    "a layer DxR[xN][:M][@SHARE], or a list of them",
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value))
    ),
    {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "string"}}]},
)

_OPEN_SHARE = number("even, optimal, or a share above 0 and below 1", 0, 1, open_low=True, open_high=True)

# a share of delta
SHARE = Kind(
    "even, optimal or a number",
    lambda value: _is_number(value) or value in ("even", "optimal"),
    {"oneOf": [{"enum": ["even", "optimal"]}, _OPEN_SHARE.rule]},
    lambda name, value: 0.5 if value == "even" else value if value == "optimal" else _OPEN_SHARE.check(name, value),
)


@dataclass(frozen=True)
class Parameter:
    """The declaration of a parameter.

    * ``kind``: The type and range of its values.
    * ``description``: The help text of the command-line option; empty if there is no option.
    * ``letter``: The metavar of the command-line option.
    * ``is_needed``: True if all queries require the parameter, except the query that solves for it.
    * ``is_found``: True if a query solves for the parameter.
    * ``is_rare``: True if the command-line option appears in the long help only.
    * ``key``: The name of the parameter in files and on the command line, if it differs from the name of the field.
    * ``read``: A function that converts a value from a file or the command line to the type of the field.
    """

    kind: Kind
    description: str = ""
    letter: str | None = None
    default: Any = None
    is_needed: bool = False
    is_found: bool = False
    is_rare: bool = False
    key: str = ""
    read: Callable[[Any], Any] = lambda value: value


def parameter(kind: Kind, description: str = "", letter: str | None = None, *, default: Any = None, **more: Any) -> Any:
    """Return a dataclass field that declares a parameter; see :class:`Parameter`."""
    return field(default=default, metadata={"parameter": Parameter(kind, description, letter, default, **more)})


def flag(description: str = "") -> Any:
    """Return a dataclass field that declares a boolean parameter with the default False."""
    return parameter(TRUTH, description, default=False)


@cache
def parameters_of(record: type) -> dict[str, Parameter]:
    """Return the declared parameters of a dataclass, by field name."""
    declared = record.__dataclass_fields__.items()  # pyright: ignore[reportAttributeAccessIssue]
    return {name: field.metadata["parameter"] for name, field in declared if "parameter" in field.metadata}


def parameters_from(record: type, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a dataclass by field name, converted from the values in a file."""
    readers = {name: (declared.key or name, declared.read) for name, declared in parameters_of(record).items()}
    return {name: read(keys[key]) for name, (key, read) in readers.items() if keys.get(key) is not None}


def check_parameters(record: object) -> None:
    """Validate the parameters of a dataclass instance, and store the validated values.

    Raises:
        InvalidParameterError: A value is outside its range, or a required one is missing.
    """
    for name, declared in parameters_of(type(record)).items():
        value = getattr(record, name)
        may_be_none = declared.default is None and (declared.is_found or not declared.is_needed)
        if value is not None or not may_be_none:
            object.__setattr__(record, name, declared.kind.check(name, value))
