"""Define the errors of the package and the exit codes of the command line."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

__all__ = [
    "ConvergenceError",
    "InvalidParameterError",
    "MissingPackageError",
    "PrecisionError",
    "PrivprojError",
    "QueryError",
    "UnsupportedError",
]


EXIT_CODES = {
    0: "ok: the query has a result, or every check holds",
    1: "failed: a check or an audited claim does not hold",
    2: "bad input: a value, or a file that cannot be read or written",
    3: "refused: no sound bound for this query, or only a refuted one",
    4: "vacuous: no finite value, or nothing meets the target",
    5: "not computed: not converged, or beyond the precision of the arithmetic",
    130: "interrupted: stopped with Ctrl-C; a sweep or a training run can go on",
}  # of the command line, each with its name and its meaning; each error class below has one of these exit codes


class PrivprojError(Exception):
    """Base class of all errors that the package raises; the message is one sentence.

    Attributes:
        exit_code: The exit code of the command line (:data:`EXIT_CODES`).

    >>> from privproj import Gaussian, PrivprojError, epsilon
    >>> try:
    ...     epsilon(Gaussian(noise_multiplier=1.0), delta=2.0)
    ... except PrivprojError as error:
    ...     print(f"exit code {error.exit_code}: {error}")
    exit code 2: expected a number above 0 and below 1, got delta=2
    """

    exit_code = 5


class QueryError(PrivprojError):
    """Base class of errors of valid queries without a value; ``result`` is the :class:`privproj.Result`.

    Attributes:
        outcome: The name of the member of :class:`privproj.Outcome` that the result gets.
        result: The result without a value; None until the failed query has set it.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.errors import QueryError
    >>> try:
    ...     epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, bound="classical")
    ... except QueryError as error:
    ...     print(error.outcome, error.exit_code)
    refused 3
    """

    outcome = "not_converged"
    result: Any = None


class InvalidParameterError(PrivprojError, ValueError):
    """Raised for a value outside its domain, and for missing or contradictory parameters.

    It is also a ValueError. The message states what was expected, the name, the value and a remedy, which are
    attributes too.

    Args:
        name: The name of the parameter.
        value: The value that was given.
        expected: What was expected.
        remedy: What to do instead; empty if there is no remedy.

    >>> from privproj import Gaussian, InvalidParameterError
    >>> try:
    ...     Gaussian(noise_multiplier=-1.0)
    ... except InvalidParameterError as error:
    ...     print(error.name, error.value, error, sep=" | ")
    noise_multiplier | -1.0 | expected a noise multiplier from 1e-12 to 1e+12, got noise_multiplier=-1
    """

    exit_code = 2

    def __init__(self, name: str, value: object, expected: str, remedy: str = "") -> None:
        self.name, self.value, self.expected, self.remedy = name, value, expected, remedy
        super().__init__(self.sentence(name))

    def __reduce__(self) -> tuple:
        return type(self), (self.name, self.value, self.expected, self.remedy)

    @property
    def is_missing(self) -> bool:
        """True if the value of a required parameter is missing."""
        return self.value is None or (isinstance(self.value, str) and self.value == "nothing")

    def sentence(self, name: str) -> str:
        """Return the message with another name for the parameter, as the command line writes it.

        Args:
            name: The name to be written, for instance that of an option.

        Returns:
            The message, one sentence.
        """
        tail = f"; {self.remedy}" if self.remedy else ""
        if self.is_missing:
            return f"expected {self.expected}, got {'nothing for' if ': ' in name else 'no'} {name}{tail}"
        is_whole = isinstance(self.value, float) and self.value.is_integer() and abs(self.value) < 1e15
        return f"expected {self.expected}, got {name}={int(self.value) if is_whole else self.value}{tail}"  # pyright: ignore


class MissingPackageError(PrivprojError):
    """Raised if a package of an optional extra is not installed.

    Args:
        package: The name of the package.
        needed_by: The feature that needs the package.
        extra: The extra that contains the package.
        otherwise: What to do instead.

    >>> from privproj.errors import MissingPackageError
    >>> print(MissingPackageError("matplotlib", "--plot", "plot"))
    expected matplotlib to be installed, which --plot needs; pip install 'privproj[plot]'
    """

    exit_code = 2

    def __init__(self, package: str | None, needed_by: str, extra: str, otherwise: str = "") -> None:
        super().__init__(package, needed_by, extra, otherwise)

    def __str__(self) -> str:
        package, needed_by, extra, otherwise = self.args
        return (
            f"expected {package} to be installed, which {needed_by} needs; pip install 'privproj[{extra}]'{otherwise}"
        )


class UnsupportedError(QueryError):
    """Raised if no bound is sound for a query, or if the named bound is not.

    Attributes:
        result: The :class:`Result` without a value, with the outcome ``unsupported``; None outside of a query.

    >>> from privproj import Gaussian, UnsupportedError, epsilon
    >>> try:
    ...     epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, bound="classical")
    ... except UnsupportedError as error:
    ...     print(str(error.result.outcome), error.result.value)
    refused None
    """

    exit_code = 3
    outcome = "unsupported"


class ConvergenceError(QueryError):
    """Raised if a search or a quadrature did not reach its accuracy.

    Attributes:
        result: The :class:`Result` without a value, with the outcome ``not_converged``; None outside of a query.

    >>> from privproj import Gaussian, steps
    >>> from privproj.errors import ConvergenceError
    >>> try:
    ...     steps(Gaussian(noise_multiplier=1e6), epsilon=100.0, delta=1e-5)
    ... except ConvergenceError as error:
    ...     print(error)
    more than 1e+08 steps fit; expected a target that fewer steps use up
    """


class PrecisionError(QueryError):
    """Raised if a number is below what the arithmetic can resolve.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.errors import PrecisionError
    >>> try:
    ...     epsilon(Gaussian(noise_multiplier=1e-3), delta=1e-5, steps=9, sampling_rate=0.1)
    ... except PrecisionError as error:
    ...     print(error.outcome)
    precision_limit
    """

    outcome = "precision_limit"


class GridSizeError(PrecisionError):
    """Raised if the grid of a composition would take too much memory or time; a coarser grid may succeed."""


def raise_within(error: InvalidParameterError, where: str) -> NoReturn:
    """Raise the error again with its location before the parameter, for example a file and an entry."""
    raise InvalidParameterError(f"{where}: {error.name}", error.value, error.expected, error.remedy) from None


@contextmanager
def within(where: str) -> Iterator[None]:
    """Add a location to the message of an error about a parameter or a bound."""
    try:
        yield
    except InvalidParameterError as error:
        raise_within(error, where)
    except UnsupportedError as error:
        error.args = (f"{where}: {error}",)
        raise


def unknown_name(
    name: str, value: object, what: str, allowed: Iterable[str], remedy: str = "", *, word: str | None = None
) -> InvalidParameterError:
    """Return the error for a value (or its ``word``) that is not one of the ``allowed`` names.

    It suggests the nearest names. If none is near it lists all of them, or states the remedy if they are many.
    """
    names = list(dict.fromkeys(allowed))
    near = nearest_names(str(value) if word is None else word, names)
    if near:
        return InvalidParameterError(name, value, what, f"did you mean {' or '.join(near)}?")
    # At most 12 names are listed.
    if len(names) <= 12 or not remedy:
        return InvalidParameterError(name, value, f"{what}: {', '.join(names)}")
    return InvalidParameterError(name, value, what, remedy)


def nearest_names(word: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that are spelt almost like a word, nearest first."""
    from difflib import get_close_matches

    spelt = {name.lower(): name for name in names}
    if word.lower() in spelt:
        return [spelt[word.lower()]]
    # One wrong letter is a large share of a short word.
    cutoff = 0.5 if len(word) <= 3 else 0.6
    return [spelt[name] for name in get_close_matches(word.lower(), spelt, cutoff=cutoff)]
