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
    2: "bad input: a value is invalid, or a file cannot be read or written",
    3: "unsupported: the bound does not hold for this query, or is refuted",
    4: "vacuous: the bound gives no guarantee, or no parameter meets the target",
    5: "not computed: the computation did not converge, or its precision was too low",
    130: "interrupted: stopped with Ctrl-C; you can resume a sweep or a training run",
}  # of the command line, each with its name and its meaning; each error class below has one of these exit codes

EXAMPLES = {
    "delta": "1e-6",
    "epsilon": "1",
    "noise_multiplier": "1.0",
    "dim": "768",
    "rank": "16",
    "steps": "1000",
    "sampling_rate": "0.01",
    "advantage": "0.1",
}  # typical values of parameters that are often missing

OTHER_TOOLS = {
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "sample_rate": "sampling_rate",
    "sampling_probability": "sampling_rate",
    "sampling_prob": "sampling_rate",
    "sigma": "noise_multiplier",
    "noise": "noise_multiplier",
    "num_compositions": "steps",
    "get_noise_multiplier": "sigma",
    "RDPAccountant": "Accountant",
    "get_epsilon": "epsilon",
    "get_delta": "delta",
    "compose": "step",
    "PrivacyEngine": "integrations.opacus.register",
    "make_private": "training.make_private",
    "make_private_with_epsilon": "training.make_private",
}  # other names of parameters and functions, such as those of Opacus and dp-accounting, with the names here

MISALIGNMENT_ADVICE = (
    "give the largest 1 - cosine between the vectors of neighboring datasets, an assumption on your data (`privproj "
    "alignment` bounds it)"
)  # without a typical value, because epsilon would then hold under an invented assumption


def _ended(text: str) -> str:
    return text if text[-1:] in ".?!" else f"{text}."


class PrivprojError(Exception):
    """Base class of all errors that the package raises; the message is one line.

    Attributes:
        exit_code: The exit code of the command line (:data:`EXIT_CODES`).

    >>> from privproj import Gaussian, PrivprojError, epsilon
    >>> try:
    ...     epsilon(Gaussian(noise_multiplier=1.0), delta=2.0)
    ... except PrivprojError as error:
    ...     print(f"exit code {error.exit_code}: {error}")
    exit code 2: delta must be a number above 0 and below 1, got 2.
    """

    exit_code = 5


class QueryError(PrivprojError):
    """Base class of the errors raised if a valid query has no value.

    Attributes:
        outcome: The outcome of the result, the value of a member of :class:`privproj.Outcome`.
        result: The :class:`privproj.Result` without a value; None outside of a query.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.errors import QueryError
    >>> try:
    ...     epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, bound="classical")
    ... except QueryError as error:
    ...     print(error.outcome, error.exit_code)
    unsupported 3
    """

    outcome = "not_converged"
    result: Any = None

    def __init__(self, *reason: str) -> None:
        super().__init__(*map(_ended, reason))


class InvalidParameterError(PrivprojError, ValueError):
    """Raised for a value outside its domain, and for missing or contradictory parameters.

    It is also a ValueError. The message is ``NAME must be CONDITION, got VALUE.``, followed by a remedy. Its parts are
    the attributes ``name``, ``expected``, ``value`` and ``remedy``.

    Args:
        name: The name of the parameter.
        value: The value that was given.
        expected: The condition that the value must meet, after the words "must be".
        remedy: What to do instead; empty if there is no remedy.

    >>> from privproj import Gaussian, InvalidParameterError
    >>> try:
    ...     Gaussian(noise_multiplier=-1.0)
    ... except InvalidParameterError as error:
    ...     print(error.name, error.value, error, sep=" | ")
    noise_multiplier | -1.0 | noise_multiplier must be a number from 1e-12 to 1e+12, got -1.
    """

    exit_code = 2

    def __init__(self, name: str, value: object, expected: str, remedy: str = "") -> None:
        self.name, self.value, self.expected, self.remedy = name, value, expected, remedy
        super().__init__(self.sentence(name))

    def __reduce__(self) -> tuple:
        return type(self), (self.name, self.value, self.expected, self.remedy)

    @property
    def is_missing(self) -> bool:
        """True if no value was given for a required parameter."""
        return self.value is None or (isinstance(self.value, str) and self.value == "nothing")

    def sentence(self, name: str) -> str:
        """Return the message with another name for the parameter.

        On the command line, the message names the option instead of the parameter.

        Args:
            name: The name to be written, for instance the name of an option.

        Returns:
            The message, in one line.
        """
        if self.is_missing:
            place, leaf = _split(name)
            remedy = self.remedy or _example(name) or f"give {self.expected}"
            return f"missing {leaf}{f' in {place}' if place else ''}; {_ended(remedy)}"
        is_whole = isinstance(self.value, float) and self.value.is_integer() and abs(self.value) < 1e15
        value = f"{int(self.value) if is_whole else self.value}"  # pyright: ignore
        place, leaf = _split(name)
        return f"{f'{place}: ' if place else ''}{leaf} must be {self.expected}, got {value}.{_as_sentence(self.remedy)}"


class UnknownNameError(InvalidParameterError):
    """Raised for a name that does not exist.

    ``expected`` is the kind of name that was expected, such as "bound of gaussian".

    >>> from privproj import Gaussian, InvalidParameterError, epsilon
    >>> try:
    ...     epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, bound="analytical")
    ... except InvalidParameterError as error:
    ...     print(error)
    unknown bound 'analytical' of gaussian; did you mean 'analytic'?
    """

    def sentence(self, name: str) -> str:
        """Return the message with another name for the parameter.

        The name may begin with a location, such as a file.
        """
        place, _ = _split(name)
        noun, _, owner = self.expected.partition(" of ")
        of_what = (f" of {owner}" if owner else "") + (f" in {place}" if place else "")
        return f"unknown {noun} {self.value!a}{of_what}; {_ended(self.remedy)}"


def _split(name: str) -> tuple[str, str]:
    """Return the location and the name of a parameter: "a.toml, entry 2" and "rank", for example."""
    *places, leaf = name.split(": ")
    return ", ".join(places), leaf


def _example(name: str) -> str:
    """Return advice for a missing parameter, such as a typical value; may be empty."""
    place, leaf = _split(name)
    parameter = leaf.lstrip("-").replace("-", "_")
    if parameter == "misalignment":
        return MISALIGNMENT_ADVICE
    value = EXAMPLES.get(parameter)
    sign = " = " if place else " " if leaf.startswith("-") else "="
    return f"try {leaf}{sign}{value}" if value else ""


def _as_sentence(remedy: str) -> str:
    """Return a remedy as a sentence with a leading space; empty without a remedy."""
    if not remedy:
        return ""
    first = remedy.split()[0]
    start = first.capitalize() if first.isalpha() and first.islower() else first
    return _ended(f" {start}{remedy[len(first) :]}")


class MissingPackageError(PrivprojError):
    """Raised if a package of an optional extra is not installed.

    Args:
        package: The name of the package.
        needed_by: The feature that needs the package.
        extra: The extra that contains the package.
        otherwise: What to do instead, as text that follows the install command in the message.

    >>> from privproj.errors import MissingPackageError
    >>> print(MissingPackageError("matplotlib", "--plot", "plot"))
    --plot needs matplotlib, which is not installed. Run in the clone of privproj: pip install '.[plot]'
    """

    exit_code = 2

    def __init__(self, package: str | None, needed_by: str, extra: str, otherwise: str = "") -> None:
        super().__init__(package, needed_by, extra, otherwise)

    def __str__(self) -> str:
        package, needed_by, extra, otherwise = self.args
        command = f"Run in the clone of privproj: pip install '.[{extra}]'"
        return f"{needed_by} needs {package}, which is not installed. {command}{otherwise}"


class UnsupportedError(QueryError):
    """Raised if no bound is sound for a query, or if the requested bound is not.

    Args:
        reason: The message.
        mechanism: The name of the mechanism.
        sampling: The sampling scheme; None for releases on the whole dataset.
        relation: The neighboring relation.
        bound: The name of the bound.

    Attributes:
        mechanism: The name of the mechanism; None if the error is not about one mechanism.
        sampling: The sampling scheme; None for releases on the whole dataset, or if the error is not about a run.
        relation: The neighboring relation; None if the error is not about a run.
        bound: The name of the bound; None if the error is not about one bound.
        result: The :class:`Result` without a value, with the outcome ``unsupported``; None outside of a query.

    >>> from privproj import Gaussian, UnsupportedError, epsilon
    >>> try:
    ...     epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, bound="classical")
    ... except UnsupportedError as error:
    ...     print(error.mechanism, error.sampling, error.relation, error.bound, error.result.value)
    gaussian None add-remove classical None
    """

    exit_code = 3
    outcome = "unsupported"
    mechanism: str | None = None
    sampling: str | None = None
    relation: str | None = None
    bound: str | None = None

    def __init__(self, *reason: str, **about: str | None) -> None:
        super().__init__(*reason)
        self.describe(**about)

    def describe(
        self,
        *,
        mechanism: str | None = None,
        sampling: str | None = None,
        relation: str | None = None,
        bound: str | None = None,
    ) -> None:
        """Set those of the attributes that are None.

        Args:
            mechanism: The name of the mechanism.
            sampling: The sampling scheme.
            relation: The neighboring relation.
            bound: The name of the bound.
        """
        about = {"mechanism": mechanism, "sampling": sampling, "relation": relation, "bound": bound}
        for name, value in about.items():
            if getattr(self, name) is None and value is not None:
                setattr(self, name, str(value))


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
    the largest number of steps is above 1e+08, where the search ends. Use a smaller epsilon or delta.
    """


class PrecisionError(QueryError):
    """Raised if a value is below the smallest number that the arithmetic can resolve.

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
    """Raised if the grid of a composition would take too much memory or time."""


def raise_within(error: InvalidParameterError, where: str) -> NoReturn:
    """Raise an error again, with a location before the name of its parameter.

    ``where`` is the location, such as a file and an entry.
    """
    raise type(error)(f"{where}: {error.name}", error.value, error.expected, error.remedy) from None


@contextmanager
def within(where: str) -> Iterator[None]:
    """Add a location to errors about parameters and bounds that are raised in the context.

    ``where`` is the location, such as a file and an entry.
    """
    try:
        yield
    except InvalidParameterError as error:
        raise_within(error, where)
    except UnsupportedError as error:
        error.args = (f"{', '.join(where.split(': '))}: {error}",)
        raise


def unknown_name(
    name: str, value: object, what: str, allowed: Iterable[str], remedy: str = "", *, word: str | None = None
) -> InvalidParameterError:
    """Return the error for a value that is not one of the allowed names, with suggestions.

    Args:
        name: The name of the parameter, which may begin with a location and ": ".
        value: The value that was given.
        what: What the value should name, such as "bound of gaussian" or "key".
        allowed: The names that exist.
        remedy: What to do if the names are too many to be listed.
        word: The unknown name, if it is not the value itself.
    """
    requested = str(value if word is None else word)
    names = list(dict.fromkeys(map(str, allowed)))  # the repr of a member of an enum is not its name
    translation = OTHER_TOOLS.get(requested, "")
    near = [translation] if translation in (*names, "epsilon", "delta") else nearest_names(requested, names)
    if near:
        remedy = f"did you mean {' or '.join(map(repr, near))}?"
    elif len(names) <= 12 or not remedy:  # At most 12 names are listed.
        remedy = f"choose from {', '.join(names)}"
    return UnknownNameError(name, requested[:80], what, remedy)


def unknown_attribute(owner: str, name: str) -> str:
    """Return the error message for an unknown attribute of ``owner``, with a suggestion."""
    translation = OTHER_TOOLS.get(name)
    return f"{owner} has no attribute {name!r}{f'; use {translation!r}' if translation else ''}"


def nearest_names(word: str, names: Iterable[str]) -> list[str]:
    """Return up to three ``names`` spelled like ``word``, the most similar one first."""
    from difflib import get_close_matches

    spelt = {name.lower(): name for name in names}
    if word.lower() in spelt:
        return [spelt[word.lower()]]
    # One wrong letter is a large share of a short word.
    cutoff = 0.5 if len(word) <= 3 else 0.6
    return [spelt[name] for name in get_close_matches(word.lower(), spelt, cutoff=cutoff)]
