"""Privacy profiles ``delta(eps)`` and the interface that every accounted curve shares.

Epsilons are in nats, and deltas are kept as their natural logarithms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from privproj.errors import NotConverged
from privproj.numerics.interval import ANSWER_DIGITS, Enclosure, LateEnclosure, digits_above
from privproj.numerics.root_finding import LARGEST_PROFILE_EPSILON, SMALLEST_PROFILE_EPSILON, find_crossing
from privproj.run import Run

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array


class Curve(Protocol):
    """A bound of a whole run, readable both ways. Each answer encloses the exact value of the bound.

    An end that is not known is ``-inf`` (below) or ``inf`` (above). ``log_delta`` is a pure function: the same ``eps``
    gets the same answer, whatever was asked before. :mod:`privproj.profiles.conversion` makes exact inverses of both
    readings (C24). A curve may have two further attributes for it:

    * ``digits`` is how many an epsilon has that is answered, :data:`privproj.numerics.interval.ANSWER_DIGITS` or less.
    * ``leads_with_epsilon`` is true for a rule ``eps(delta)`` whose ``log_delta`` is a search for its inverse.

    Lower ends that cost more are found when they are read (:class:`privproj.numerics.interval.LateEnclosure`). A curve
    whose small deltas cost more has the method ``log_delta_unless`` too (:func:`log_delta_unless`).
    """

    def log_delta(self, eps: float, /) -> Enclosure:
        """``ln delta(eps)`` for ``eps >= 0``, enclosed; the upper end is what an answer rests on."""
        ...

    def epsilon(self, log_delta: float, /) -> Enclosure:
        """The smallest ``eps >= 0`` whose delta is at most ``e^log_delta``, enclosed; ``inf`` where there is none."""
        ...


def log_delta_unless(curve: Curve, eps: float, enough: float) -> float:
    """The upper end of ``curve.log_delta(eps)`` unless that is at most ``enough``: then any bound that is so too."""
    shortcut: Callable[[float, float], float] | None = getattr(curve, "log_delta_unless", None)
    return curve.log_delta(eps).upper if shortcut is None else shortcut(eps, enough)


def shallow(curve: Curve) -> Curve:
    """The curve by its ordinary grid alone, where it has deeper ones for small deltas: as sound, with a floor."""
    return getattr(curve, "shallow", curve)


@dataclass(frozen=True)
class LazyBounds:
    """A table whose two columns are computed apart, each where it is asked for. Who makes one guarantees both."""

    below: "Callable[[Array], Array]"
    """Lower bounds at an array of points."""

    above: "Callable[[Array], Array]"
    """Upper bounds at an array of points."""

    def __call__(self, at: "Array") -> "tuple[Array, Array]":
        """Return both columns, lower bounds first."""
        return self.below(at), self.above(at)


@dataclass(frozen=True, eq=False, repr=False)
class PrivacyProfile:
    """A profile of one release that holds in both orders of the neighbouring pair, given on ``eps >= 0``.

    The bound that builds it guarantees its soundness.
    """

    log_delta: Callable[[float], Enclosure]
    """From ``eps >= 0`` to an enclosure of the natural log of the bound."""

    closed_form: "Callable[[int], PrivacyProfile] | None" = None
    """From ``T`` to the profile of ``T`` releases. Without it they are composed numerically."""

    table: "Callable[[Array], tuple[Array, Array]] | None" = None
    """From an array of ``eps >= 0`` to lower bounds (0: unknown) and upper bounds of delta.

    It is there where that is faster than one epsilon at a time; a :class:`LazyBounds` where half of it is faster still.
    The bounds must also hold for every ``eps`` that is off by a relative 1e-15, and where ``e^-eps`` is off by 1e-15.
    """

    log_deltas: "Callable[[Array], tuple[Array, Array]] | None" = None
    """:attr:`log_delta` of many ``eps >= 0`` at once, where there are kernels; ``-inf`` and 0 where unknown."""

    excess: "Callable[[Any], tuple[Any, Any]] | None" = None
    """Where the two orders differ: from an array of ``ln t`` (any sign, nats) to lower and upper bounds of the excess
    ``delta(t) - max(0, 1 - t)`` in the remove order. ``log_delta`` is then that of the larger order."""

    deeper: "Callable[[float], PrivacyProfile] | None" = None
    """From a mass to the same profile with tails that are followed down to it; None where they are not cut."""

    resolution: float = 12.0
    """How many evaluations per standard deviation of the loss are worth their time."""

    can_be_subsampled: bool = True
    """False where subsampling has no theorem in the bound's own terms."""

    numerics: dict[str, object] = field(default_factory=dict)
    """How it is computed, for an answer to say, where that is more than a closed form or a quadrature."""

    gaussian_mu: float | None = None
    """The ``mu`` where this is exactly the profile of two Gaussians at that distance; None for any other."""

    digits: int = ANSWER_DIGITS
    """Significant digits of an epsilon that is answered (C24): less where an enclosure is too wide for more."""

    guess: Callable[[float], float | None] | None = None
    """From ``ln delta`` to an epsilon near its inverse, where that saves evaluations; None where it finds none."""

    guess_spread: float = 1e-13
    """Relative distance of the second look of a search from a guess."""

    def __post_init__(self) -> None:
        # Last answers that are kept, as reading a curve both ways asks again what a search has asked.
        object.__setattr__(self, "log_delta", lru_cache(maxsize=64)(self.log_delta))

    @property
    def is_costly(self) -> bool:
        """True where values take so long that some searches for a closer bound of a run are left out."""
        # Profiles that ask for fewer values per deviation of the loss, and have no kernels, take milliseconds for each.
        #
        return self.resolution < 64.0 and self.log_deltas is None

    def sampled(self, rate: float) -> "PrivacyProfile":
        """The profile of one release on a batch sampled at the rate ``q``, as sound as this one (C17).

        ``delta(eps) = q delta_0(ln(1 + (e^eps - 1)/q))`` for ``eps >= 0``. That holds for a batch of fixed size under
        replace neighbours (Balle, Barthe, Gaboardi 2018, Theorem 9), and for Poisson sampling under add-remove and
        zero-out neighbours in the remove order. There the add order is ``w delta_0(ln(t q/w))`` with ``t = e^eps``,
        ``w = 1 - (1-q) t <= q`` and ``t q/w >= 1 + (t-1)/q``, so it is never larger.
        """

        # ln q + ln delta_0(ln(1 + (e^eps - 1)/q)): outward by a relative 1e-15 of the inner epsilon, and by 1e-15.
        def log_delta(eps: float) -> Enclosure:
            inner = amplified_epsilon(eps, rate)
            ends = self.log_delta(inner * (1.0 + 1e-15)).lower, self.log_delta(inner * (1.0 - 1e-15)).upper
            return Enclosure(ends[0] + math.log(rate) - 1e-15, min(0.0, ends[1] + math.log(rate) + 1e-15))

        numerics = {**self.numerics, "subsampling": "closed form"}
        lost: dict[str, None] = dict.fromkeys(("closed_form", "table", "deeper", "gaussian_mu", "guess"))
        return replace(self, log_delta=log_delta, numerics=numerics, **lost)

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)``, enclosed: at the upper end the profile's upper end was evaluated to be at most delta.

        It is a number of the digits that are answered.
        """
        guess = None if self.guess is None else self.guess(log_delta)
        if guess is None and self.log_delta(0.0).upper <= log_delta:
            return Enclosure(0.0, 0.0)
        start, spread = (1.0, 1.0) if guess is None else (guess, self.guess_spread)

        def excess(e: float) -> float:
            return self.log_delta(digits_above(e, self.digits)).upper - log_delta

        # No more than the distance of two such numbers, so that both ends are next to each other.
        rtol = 10.0**-self.digits
        safe = digits_above(find_crossing(excess, start, spread=spread, rtol=rtol, **_PROFILE_RANGE).upper, self.digits)
        if not 0.0 < safe < math.inf:
            return Enclosure(0.0, safe)
        return LateEnclosure(lambda: self.epsilon_below(log_delta, safe), safe)

    def epsilon_below(self, log_delta: float, near: float) -> float:
        """A lower end of ``eps(delta)``, sought from this epsilon on: there the profile's lower end is above delta."""
        # A tenth of the last digit that is answered.
        rtol = 0.1 * 10.0**-self.digits
        limits = {"spread": 100.0 * rtol, "rtol": rtol, **_PROFILE_RANGE}
        return find_crossing(lambda e: self.log_delta(e).lower - log_delta, near, **limits).lower


# the phases of a run: the profile of a release, and how often and on what batches there is one
Phases = list[tuple[PrivacyProfile, Run]]

# the ends of what a search for the inverse of a profile looks at
_PROFILE_RANGE = {"low": SMALLEST_PROFILE_EPSILON, "high": LARGEST_PROFILE_EPSILON}


def amplified_epsilon(eps: float, rate: float) -> float:
    """``ln(1 + (e^eps - 1)/q)``: the epsilon at which an unsampled release is asked (C17)."""
    if eps < 30.0:
        return math.log1p(math.expm1(eps) / rate)
    # The same without overflow: eps - ln q + ln(1 - (1 - q) e^-eps).
    return eps - math.log(rate) + math.log1p(-(1.0 - rate) * math.exp(-eps))


class _RunRepresentation(Protocol):
    """A bound that accounts for a run in its own terms: a Renyi curve, an ``(eps, delta)`` rule, a good event."""

    def over_run(self, run: Run, /) -> Curve:
        """The curve of the run; raises :class:`privproj.Refused` where there is no theorem for it."""
        ...


Representation = PrivacyProfile | _RunRepresentation  # what a bound says of one release, in its own terms


# --- profiles whose functions are kernels ----------------------------------------------------------

# A plain function of a float and of the row of a law that returns ``(lower, upper)``. It uses ``math`` alone
Kernel = Callable[[float, Sequence[float]], tuple[float, float]]


@dataclass(frozen=True, eq=False, repr=False)
class KernelColumns:
    """A profile whose readings are kernels: run row by row as they are, or as machine code.

    Every answer encloses the exact value of the bound, but for those of ``root``.
    """

    log_delta: Kernel
    """From ``eps`` and a row to an enclosure of ``ln delta``."""

    root: Kernel
    """From ``ln delta`` and a row to nearly that ``eps``, and about what it misses in nats; nothing is claimed."""

    weight: float = 1.0
    """What a row costs plain Python, over what one of M2 costs."""


def profile_of_kernels(columns: KernelColumns, row: tuple[float, ...], **fields: Any) -> PrivacyProfile:
    """Return the profile of one release whose two readings are these kernels at this row.

    Raises :class:`privproj.errors.NotConverged` where a kernel says that nothing is known.
    """

    def log_delta(eps: float) -> Enclosure:
        return known_ends(columns.log_delta(eps, row))

    def log_deltas(eps: "Array") -> "tuple[Array, Array]":
        import numpy as np

        from privproj.numerics.compiled import over_rows

        # What a delta of M2 costs, over what an epsilon does.
        weight = 0.2 * columns.weight
        lower, upper = over_rows(columns.log_delta, eps, np.broadcast_to(row, (len(eps), len(row))), weight=weight)
        # Where machine code knows nothing it may say nan: then delta is at most 1.
        return np.where(np.isnan(lower), -math.inf, lower), np.where(np.isnan(upper), 0.0, np.minimum(upper, 0.0))

    def guess(log_delta: float) -> float | None:
        eps = columns.root(log_delta, row)[0]
        return eps if 0.0 < eps < math.inf else None

    return PrivacyProfile(log_delta, guess=guess, log_deltas=log_deltas, **fields)


def known_ends(ends: tuple[float, float]) -> Enclosure:
    """Return the enclosure that a kernel returned; raises :class:`NotConverged` where it says nothing."""
    if ends == (-math.inf, math.inf):
        raise NotConverged("the quadrature or the search did not converge; please report these parameters")
    return Enclosure(*ends)


# which profile over columns a mechanism has, and its row: floats, or arrays of them for many ratios ``mu``
LawRow = tuple[KernelColumns, tuple[Any, ...]]
