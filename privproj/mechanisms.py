"""Mechanisms: frozen records of what was run. Parameters and their validity, nothing else.

``noise_multiplier`` is ``z = sigma / s``: the noise standard deviation over the sensitivity of the
query under the relation of the run. It may be left out only for the query that finds it.
"""

import operator
from dataclasses import dataclass, replace
from typing import ClassVar

from privproj.errors import InvalidParameter

SMALLEST, LARGEST = 1e-100, 1e100


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


def noise(value: object) -> float:
    """A noise multiplier."""
    return real("noise_multiplier", value, "a noise multiplier from 1e-100 to 1e+100", SMALLEST, LARGEST)


def probability(name: str, value: object) -> float:
    """A number strictly between 0 and 1."""
    number = real(name, value, "a number above 0 and below 1", 0.0, 1.0, open_low=True)
    if number == 1.0:
        raise InvalidParameter(name, value, "a number above 0 and below 1")
    return number


def privacy_epsilon(value: object, *, zero: bool) -> float:
    """A finite epsilon, ``>= 0`` if ``zero``, else positive."""
    expected = "a finite epsilon >= 0" if zero else "a finite epsilon > 0"
    return real("epsilon", value, expected, 0.0, LARGEST, open_low=not zero)


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What every mechanism has: a noise multiplier, unless that is the question."""

    name: ClassVar[str]
    assumes: ClassVar[tuple[str, ...]] = ()
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", noise(self.noise_multiplier))

    @property
    def mu(self) -> float:
        """``mu = 1/z = s/sigma``."""
        if self.noise_multiplier is None:
            raise InvalidParameter("noise_multiplier", None, "a noise multiplier", "only the sigma query leaves it out")
        return 1.0 / self.noise_multiplier

    def for_group(self, size: int) -> "Mechanism":
        """The same mechanism seen by a group of ``size`` records: sensitivity grows that many times."""
        return self if self.noise_multiplier is None else replace(self, noise_multiplier=self.noise_multiplier / size)

    def parameters(self) -> dict[str, object]:
        """The parameters that were given, by name."""
        return {key: value for key, value in vars(self).items() if value not in (None, False)}


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """The Gaussian mechanism: ``V + E``, ``E`` i.i.d. ``N(0, sigma^2)``."""

    name = "gaussian"


@dataclass(frozen=True, kw_only=True)
class M2(Mechanism):
    """Noise first, then project: ``M (V + E)`` with ``M = Z Z^T``, ``Z`` of shape ``dim x rank``, fresh per release.

    ``dim`` is the side that is projected, ``rank`` the rank of the projection (left out only where it
    is the question), ``columns`` the other side of the matrix, ``change_rank`` the largest rank ``k`` of
    the change one record makes.
    """

    name = "m2"
    assumes = (
        "the projection is drawn afresh for each release, independently of the data and of all that shaped the query",
        "clipping comes before projecting",
        "the seed of the projection cannot be guessed by anyone who can shape the data",
    )
    dim: int
    rank: int | None = None
    columns: int | None = None
    change_rank: int | None = None
    fixed_projection: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_field = object.__setattr__
        set_field(self, "dim", whole("dim", self.dim, "a whole number dim >= 1", 1, 10**12))
        if self.rank is not None:
            set_field(self, "rank", whole("rank", self.rank, "a whole number rank >= 1"))
            if self.rank > self.dim:
                raise InvalidParameter("rank", self.rank, f"a rank of at most dim={self.dim}")
        if self.columns is not None:
            set_field(self, "columns", whole("columns", self.columns, "a whole number of columns >= 1", 1, 10**12))
        if self.change_rank is not None:
            set_field(self, "change_rank", whole("change_rank", self.change_rank, "a whole number change_rank >= 1"))
            if self.change_rank > self.largest_rank:
                expected = f"a change rank of at most min(dim, columns)={self.largest_rank}"
                raise InvalidParameter("change_rank", self.change_rank, expected)

    @property
    def largest_rank(self) -> int:
        """``min(d, m)``: the largest rank a change can have."""
        return self.dim if self.columns is None else min(self.dim, self.columns)

    def for_group(self, size: int) -> "Mechanism":
        """Sensitivity and the rank of the change grow ``size`` times."""
        promised = None if self.change_rank is None else min(self.change_rank * size, self.largest_rank)
        return replace(super().for_group(size), change_rank=promised)  # pyright: ignore[reportCallIssue]

    @property
    def beta_shape(self) -> tuple[float, float]:
        """``(r/2, (d - r)/2)``: the law of ``|P u|^2`` is Beta with these parameters."""
        if self.rank is None:
            raise InvalidParameter("rank", None, "a rank", "only the rank query leaves it out")
        return 0.5 * self.rank, 0.5 * (self.dim - self.rank)
