"""Every error the package raises on purpose, each with the exit code the command line gives it."""

from typing import Any, NoReturn


class PrivprojError(Exception):
    """Base of the package's errors: one clear sentence, and the exit code of the command line."""

    exit_code = 5


class Unanswered(PrivprojError):
    """A well-posed question without an answer; ``result`` is the :class:`privproj.Result` without a value."""

    outcome = "not_converged"
    result: Any = None


class InvalidParameter(PrivprojError, ValueError):
    """A value outside its domain: what was expected, the name, the value, and a remedy where there is one."""

    exit_code = 2

    def __init__(self, name: str, value: object, expected: str, remedy: str = "") -> None:
        self.name, self.value, self.expected, self.remedy = name, value, expected, remedy
        super().__init__(self.sentence(name))

    def __reduce__(self) -> tuple:
        return type(self), (self.name, self.value, self.expected, self.remedy)

    def sentence(self, name: str) -> str:
        """The message with the parameter called ``name`` (the command line writes it as an option)."""
        tail = f"; {self.remedy}" if self.remedy else ""
        whole = isinstance(self.value, float) and self.value.is_integer() and abs(self.value) < 1e15
        return f"expected {self.expected}, got {name}={int(self.value) if whole else self.value}{tail}"  # pyright: ignore


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
