"""Every error the package raises on purpose, each with the exit code the command line gives it."""

import re
from collections.abc import Iterable
from typing import Any, NoReturn

MOST_LISTED = 12
"""How many names an error lists to whoever mistyped one of them. Contract."""

ALIKE = 0.6
"""Similarity, from 0 to 1, at which a name is suggested for a mistyped one. Contract."""

ALIKE_IF_SHORT = 0.5
"""The same for words of up to three letters, where one wrong letter is a large share. Contract."""


class PrivprojError(Exception):
    """Base of the package's errors: one clear sentence, and the exit code of the command line."""

    exit_code = 5
    brief = ""

    @property
    def short(self) -> str:
        """The reason in a few words, for a table of the command line: ``brief`` where given, else the first clause."""
        return self.brief or _first_clause(str(self))


class Unanswered(PrivprojError):
    """A well-posed question without an answer; ``result`` is the :class:`privproj.Result` without a value."""

    outcome = "not_converged"
    result: Any = None

    def __init__(self, sentence: str, brief: str = "") -> None:
        self.brief = brief
        super().__init__(sentence)


class InvalidParameter(PrivprojError, ValueError):
    """A value outside its domain: what was expected, the name, the value, and a remedy where there is one."""

    exit_code = 2

    def __init__(self, name: str, value: object, expected: str, remedy: str = "", brief: str = "") -> None:
        self.name, self.value, self.expected, self.remedy, self.brief = name, value, expected, remedy, brief
        super().__init__(self.sentence(name))

    def __reduce__(self) -> tuple:
        return type(self), (self.name, self.value, self.expected, self.remedy, self.brief)

    @property
    def short(self) -> str:
        """What is missing, or what was expected."""
        if self.value in (None, "nothing"):
            return self.brief or f"needs --{self.name.replace('_', '-')}"
        return self.brief or f"expected {_first_clause(self.expected)}, got {self.name}={self.value}"

    def sentence(self, name: str) -> str:
        """The message with the parameter called ``name`` (the command line writes it as an option)."""
        tail = f"; {self.remedy}" if self.remedy else ""
        whole = isinstance(self.value, float) and self.value.is_integer() and abs(self.value) < 1e15
        return f"expected {self.expected}, got {name}={int(self.value) if whole else self.value}{tail}"  # pyright: ignore


class MissingPackage(InvalidParameter):
    """A package of an optional extra is not installed: who needs it, and what to install."""

    def __init__(self, package: str | None, needed_by: str, extra: str, otherwise: str = "") -> None:
        self.missing = package, needed_by, extra, otherwise
        super().__init__("package", package, "an installed package")

    def __reduce__(self) -> tuple:
        return type(self), self.missing

    def sentence(self, name: str) -> str:
        """The message; the name plays no role."""
        package, needed_by, extra, otherwise = self.missing
        return (
            f"expected {package} to be installed, which {needed_by} needs; pip install 'privproj[{extra}]'{otherwise}"
        )


class Refused(Unanswered):
    """There is no sound bound for this question, or the bound that was named is not one."""

    exit_code = 3
    outcome = "refused"


class NotConverged(Unanswered):
    """A search or a quadrature did not reach its accuracy, so no number is returned."""


class PrecisionLimit(Unanswered):
    """The number asked for lies below what the arithmetic in use can certify."""

    outcome = "precision_limit"


class GridLimit(PrecisionLimit):
    """The grid of a composition would take too much memory or time; a coarser one may do."""


def raise_within(error: InvalidParameter, where: str) -> NoReturn:
    """Raise the error again, with its place before the name of its key."""
    raise InvalidParameter(f"{where}: {error.name}", error.value, error.expected, error.remedy) from None


def _first_clause(sentence: str) -> str:
    """The words before the first colon, semicolon or comma that is not in parentheses."""
    return re.split(r"[:;,] (?![^(]*\))", sentence, maxsplit=1)[0]


def unknown_name(
    name: str, value: object, what: str, known: Iterable[str], remedy: str = "", *, word: str | None = None
) -> InvalidParameter:
    """The error for a value, or for the ``word`` where that is not the value, that is none of the ``known`` names.

    It suggests the names that are nearest. Where none is near it lists all of them, or says the remedy where they are
    many.
    """
    names = list(dict.fromkeys(known))
    near = nearest_names(str(value) if word is None else word, names)
    if near:
        return InvalidParameter(name, value, what, f"did you mean {' or '.join(near)}?")
    if len(names) <= MOST_LISTED or not remedy:
        return InvalidParameter(name, value, f"{what}: {', '.join(names)}")
    return InvalidParameter(name, value, what, remedy)


def nearest_names(word: str, known: Iterable[str]) -> list[str]:
    """Up to three names that are spelt almost like a word, nearest first."""
    from difflib import get_close_matches

    spelt = {name.lower(): name for name in known}
    if word.lower() in spelt:
        return [spelt[word.lower()]]
    cutoff = ALIKE_IF_SHORT if len(word) <= 3 else ALIKE
    return [spelt[name] for name in get_close_matches(word.lower(), spelt, cutoff=cutoff)]
