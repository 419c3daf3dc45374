"""What every mechanism shares, and the checks of single parameters.

``noise_multiplier`` is ``z = sigma / s``: the noise standard deviation over the sensitivity of the
query under the relation of the run. It may be left out only for the query that finds it.
"""

import operator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from privproj.errors import InvalidParameter

SMALLEST, LARGEST, LARGEST_EPSILON = 1e-12, 1e12, 1e9


def real(name: str, value: object, expected: str, low: float, high: float, *, open_low: bool = False) -> float:
    """``value`` as a float in ``[low, high]`` (``open_low``: above ``low``); nan, text and truth values are refused."""
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
    """``value`` as an int in ``[low, high]``; ``2.5``, ``nan`` and truth values are refused, ``1e5`` is not."""
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


def truth(name: str, value: object) -> bool:
    """``value`` as it is, if it is True or False; numbers and text are refused."""
    if not isinstance(value, bool):
        raise InvalidParameter(name, value, "true or false")
    return value


def noise(value: object) -> float:
    """A noise multiplier."""
    return real("noise_multiplier", value, "a noise multiplier from 1e-12 to 1e+12", SMALLEST, LARGEST)


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


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What every mechanism has: a name, what it must have done, and how it looks under a relation.

    ``default_relation`` is the neighbouring relation where none is given; ``poisson`` is False where Poisson
    sampling has no amplification theorem; ``remedy`` is what makes epsilon smaller. Epsilon "grows" or "falls" with the
    rank, or first falls and then grows ("u-shaped").
    """

    name: ClassVar[str]
    assumes: ClassVar[tuple[str, ...]] = ()
    default_relation: ClassVar[str | None] = None
    poisson: ClassVar[bool] = True
    remedy: ClassVar[str] = "more noise"
    with_rank: ClassVar[Literal["grows", "falls", "u-shaped"]] = "grows"
    noise_multiplier = None

    def for_group(self, size: int) -> "Mechanism":
        """The same mechanism seen by a group of ``size`` records."""
        return self

    def for_replacement(self) -> "Mechanism":
        """The same mechanism under the replace relation, where that changes more than the sensitivity."""
        return self

    @property
    def rank_limit(self) -> int:
        """The largest rank that the rank query tries."""
        return 10**6

    def notes(self) -> list[str]:
        """What a reader of any number for this mechanism should know."""
        return []

    def parameters(self) -> dict[str, object]:
        """The parameters that were given, by name."""
        given = {key: value for key, value in vars(self).items() if value is not None and value is not False}
        given = {key: value for key, value in given.items() if value != ()}
        if "layers" in given:
            given["layers"] = [str(layer) for layer in vars(self)["layers"]]
        return given


@dataclass(frozen=True, kw_only=True)
class NoisyMechanism(Mechanism):
    """A mechanism with a noise multiplier, which is left out where it is the question."""

    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", noise(self.noise_multiplier))

    @property
    def mu(self) -> float:
        """``mu = 1/z = s/sigma``."""
        return 1.0 / self.z

    @property
    def z(self) -> float:
        """The noise multiplier; raises :class:`InvalidParameter` where it was left out."""
        if self.noise_multiplier is None:
            raise InvalidParameter("noise_multiplier", None, "a noise multiplier", "only the sigma query leaves it out")
        return self.noise_multiplier

    def for_group(self, size: int) -> "Mechanism":
        """Sensitivity grows as many times as the group has records."""
        return self if self.noise_multiplier is None else replace(self, noise_multiplier=self.noise_multiplier / size)
