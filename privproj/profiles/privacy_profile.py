"""Privacy profiles ``delta(eps)`` of a release, and the interface of privacy curves.

Epsilons are in nats. Deltas are represented by their natural logarithms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from privproj.errors import ConvergenceError
from privproj.numerics.interval import RESULT_DIGITS, Enclosure, LazyEnclosure, digits_above
from privproj.numerics.root_finding import LARGEST_PROFILE_EPSILON, SMALLEST_PROFILE_EPSILON, find_crossing
from privproj.run import Run

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array


class Curve(Protocol):
    """The interface of a privacy curve: an upper bound of epsilon or delta of a run.

    ``log_delta`` and ``epsilon`` return lower and upper ends that enclose the exact value of the bound. An unknown end
    is ``-inf`` (lower) or ``inf`` (upper).

    These members are optional:

    * ``digits``: significant digits of a reported epsilon, at most :data:`privproj.numerics.interval.RESULT_DIGITS`.
    * ``leads_with_epsilon``: True if delta is computed as the inverse of epsilon.
    * ``log_delta_unless``: see :func:`log_delta_unless`.
    """

    # It depends on eps only, so that exact inverses exist (privproj.profiles.conversion, C24).
    def log_delta(self, eps: float, /) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)`` for ``eps >= 0``."""
        ...

    def epsilon(self, log_delta: float, /) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats.

        It is the smallest ``eps >= 0`` at which delta is at most ``e^log_delta``, or ``inf`` if there is none.
        """
        ...


def log_delta_unless(curve: Curve, eps: float, enough: float) -> float:
    """Return an upper bound of ``ln delta(eps)``; a result below ``enough`` may be loose."""
    # A result above enough is the upper end of curve.log_delta(eps).
    shortcut: Callable[[float, float], float] | None = getattr(curve, "log_delta_unless", None)
    return curve.log_delta(eps).upper if shortcut is None else shortcut(eps, enough)


def at_first_level(curve: Curve) -> Curve:
    """Return a faster form of the curve that is valid but loose at very small deltas."""
    return getattr(curve, "at_first_level", curve)


@dataclass(frozen=True)
class TwoSidedTable:
    """Functions that return lower and upper bounds of a curve at many points."""

    # The code that builds the table guarantees the bounds.
    below: "Callable[[Array], Array]"  # Lower bounds at an array of points

    above: "Callable[[Array], Array]"  # Upper bounds at an array of points

    def __call__(self, at: "Array") -> "tuple[Array, Array]":
        """Return lower bounds and upper bounds at an array of points."""
        return self.below(at), self.above(at)


class SmallDeltas(NamedTuple):
    """A slower privacy profile of a release, for deltas below double precision.

    Attributes:
        below: The slower profile is used if ``ln delta`` is below this number.
        profile: The slower profile.
    """

    below: float
    profile: "PrivacyProfile"


class FreeParameter(NamedTuple):
    """A free parameter of a theorem, such as ``tau`` of the Beta-tail bound.

    Attributes:
        name: The name.
        best: Map from ``eps`` to the value with the smallest delta.
        at: Map from a value to the privacy profile that the theorem proves at this value.
    """

    name: str
    best: Callable[[float], float]
    at: "Callable[[float], PrivacyProfile]"


@dataclass(frozen=True, eq=False, repr=False)
class PrivacyProfile:
    """The privacy profile ``delta(eps)`` of one release for ``eps >= 0``.

    ``delta(eps)`` is a bound in both directions, add and remove.
    """

    # The code that builds the profile guarantees that it is valid.
    log_delta: Callable[[float], Enclosure]  # Map from ``eps >= 0`` to an enclosure of the natural log of the bound

    # Map from ``T`` to the profile of ``T`` releases; None composes numerically
    closed_form: "Callable[[int], PrivacyProfile] | None" = None

    # Map from an array of ``eps >= 0`` to lower bounds (0 if unknown) and upper bounds of delta. It is None unless it
    # is faster than ``log_delta`` for one epsilon at a time. It is a ``TwoSidedTable`` if it is faster to compute only
    # one of the two bounds. The bounds must also hold if every ``eps`` has a relative error of 1e-15 and ``e^-eps`` an
    # error of 1e-15.
    table: "Callable[[Array], tuple[Array, Array]] | None" = None

    # Map from an array of ``eps >= 0`` to both ends of ``log_delta``; -inf and 0 where unknown. None without kernels.
    log_deltas: "Callable[[Array], tuple[Array, Array]] | None" = None

    # If the two directions differ: map from an array of ``ln t`` (any sign, nats) to lower and upper bounds of the
    # excess ``delta(t) - max(0, 1 - t)`` in the remove direction. Then ``log_delta`` is the larger one of both
    # directions.
    excess: "Callable[[Any], tuple[Any, Any]] | None" = None

    # Map from a mass to the same profile with tails truncated at this mass; None if tails are not truncated
    with_smaller_tails: "Callable[[float], PrivacyProfile] | None" = None

    resolution: float = 12.0  # Number of evaluations per standard deviation of the loss that a composition makes

    can_be_subsampled: bool = True  # False if there is no subsampling theorem for the bound

    # How the profile is computed, for the result, if it is more than a closed form or a quadrature
    numerics: dict[str, object] = field(default_factory=dict)

    # ``mu`` if this is exactly the profile of two Gaussians at the distance ``mu``, else None
    gaussian_mu: float | None = None

    # Significant digits of a reported epsilon (C24). There are fewer if an enclosure is too wide for more.
    digits: int = RESULT_DIGITS

    # Map from ``ln delta`` to an approximate inverse, where a search starts; None if there is none
    guess: Callable[[float], float | None] | None = None

    # How queries compute deltas that doubles do not resolve; None if all are resolved
    small_deltas: SmallDeltas | None = None

    # Named parameter over which the bound is minimized at every ``eps``; None if there is none
    free: FreeParameter | None = None

    guess_spread: float = 1e-13  # Relative distance between the guess of a search and the second evaluation

    def __post_init__(self) -> None:
        # The conversions evaluate the profile again where a search has evaluated it.
        object.__setattr__(self, "log_delta", lru_cache(maxsize=64)(self.log_delta))

    @property
    def is_costly(self) -> bool:
        """True if evaluations are too slow for optional searches for a tighter bound."""
        # Profiles with a lower resolution and without kernels take milliseconds for each value.
        return self.resolution < 64.0 and self.log_deltas is None

    def sampled(self, rate: float) -> "PrivacyProfile":
        """Return the profile of one release on a batch sampled at ``rate`` (C17).

        It holds for batches of fixed size under replace (Balle, Barthe, Gaboardi 2018, Theorem 9), and for Poisson
        sampling under add-remove and zero-out.
        """

        # delta(eps) = q delta_0(ln(1 + (e^eps - 1)/q)), where delta_0 is the profile without sampling and q the rate.
        # Under Poisson sampling this is the remove direction. The delta of the add direction is w delta_0(ln(t q/w))
        # with t = e^eps and w = 1 - (1-q) t. It is never larger, because w <= q and t q/w >= 1 + (t-1)/q.
        # ln q + ln delta_0(ln(1 + (e^eps - 1)/q)), moved outward by a relative 1e-15 of the inner epsilon and by 1e-15.
        def log_delta(eps: float) -> Enclosure:
            inner = amplified_epsilon(eps, rate)
            ends = self.log_delta(inner * (1.0 + 1e-15)).lower, self.log_delta(inner * (1.0 - 1e-15)).upper
            return Enclosure(ends[0] + math.log(rate) - 1e-15, min(0.0, ends[1] + math.log(rate) + 1e-15))

        numerics = {**self.numerics, "subsampling": "closed form"}
        fields = "closed_form table log_deltas with_smaller_tails gaussian_mu guess small_deltas free"
        lost: dict[str, None] = dict.fromkeys(fields.split())
        return replace(self, log_delta=log_delta, numerics=numerics, **lost)

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats; the upper end has ``self.digits`` digits."""
        guess = None if self.guess is None else self.guess(log_delta)
        if guess is None and self.log_delta(0.0).upper <= log_delta:
            return Enclosure(0.0, 0.0)
        start, spread = (1.0, 1.0) if guess is None else (guess, self.guess_spread)

        def excess(e: float) -> float:
            return self.log_delta(digits_above(e, self.digits)).upper - log_delta

        # The bracket is at most as wide as the distance of two numbers with these digits.
        rtol = 10.0**-self.digits
        safe = digits_above(find_crossing(excess, start, spread=spread, rtol=rtol, **_PROFILE_RANGE).upper, self.digits)
        if not 0.0 < safe < math.inf:
            return Enclosure(0.0, safe)
        return LazyEnclosure(lambda: self.epsilon_below(log_delta, safe), safe)

    def epsilon_below(self, log_delta: float, near: float) -> float:
        """Return a lower bound of ``eps(delta)`` (nats), by a search from ``near``."""
        # a tenth of the last digit of a reported epsilon
        rtol = 0.1 * 10.0**-self.digits
        limits = {"spread": 100.0 * rtol, "rtol": rtol, **_PROFILE_RANGE}
        return find_crossing(lambda e: self.log_delta(e).lower - log_delta, near, **limits).lower


# phases of a run: the profile of a release, with its number of steps and its sampling
Phases = list[tuple[PrivacyProfile, Run]]

# range of the search for the inverse of a profile
_PROFILE_RANGE = {"low": SMALLEST_PROFILE_EPSILON, "high": LARGEST_PROFILE_EPSILON}


def amplified_epsilon(eps: float, rate: float) -> float:
    """Return ``ln(1 + (e^eps - 1)/rate)``, the epsilon of a release without sampling (C17)."""
    if eps < 30.0:
        return math.log1p(math.expm1(eps) / rate)
    # The same without overflow: eps - ln q + ln(1 - (1 - q) e^-eps).
    return eps - math.log(rate) + math.log1p(-(1.0 - rate) * math.exp(-eps))


class _RunRepresentation(Protocol):
    """A bound of one release, other than a privacy profile, with a curve for each run."""

    def over_run(self, run: Run, /) -> Curve:
        """Return the privacy curve of the run.

        Raises:
            UnsupportedError: There is no theorem for this run.
        """
        ...


Representation = PrivacyProfile | _RunRepresentation  # the bound of one release, in its own terms


# --- profiles whose functions are kernels ----------------------------------------------------------

# a plain function of a float and a row of parameters that returns two floats and needs math only
Kernel = Callable[[float, Sequence[float]], tuple[float, float]]


@dataclass(frozen=True, eq=False, repr=False)
class ProfileKernels:
    """Functions that evaluate and invert a privacy profile, as plain Python or machine code.

    The parameters of one release are a tuple of floats (a row).
    """

    # kernels as defined in privproj.numerics.jit
    log_delta: Kernel  # Map from ``eps`` and a row to an enclosure of ``ln delta``

    root: Kernel  # Map from ``ln delta`` and a row to approximately the inverse, and its residual in nats

    weight: float = 1.0  # Cost of a row in plain Python relative to a row of M2


def profile_from_kernels(columns: ProfileKernels, row: tuple[float, ...], **fields: Any) -> PrivacyProfile:
    """Return the privacy profile of one release whose delta is computed by kernels.

    Its methods raise :class:`ConvergenceError` if a kernel returns no bound.

    Args:
        columns: The kernels.
        row: The parameters of the release.
        fields: Further fields of the profile.
    """

    def log_delta(eps: float) -> Enclosure:
        ends = columns.log_delta(eps, row)
        if ends == (-math.inf, math.inf):
            raise ConvergenceError(
                "the quadrature or the root search did not converge. Please report these parameters as a bug."
            )
        return Enclosure(*ends)

    def log_deltas(eps: "Array") -> "tuple[Array, Array]":
        import numpy as np

        from privproj.numerics.jit import over_rows

        # cost of a delta of M2 relative to an epsilon
        weight = 0.2 * columns.weight
        lower, upper = over_rows(columns.log_delta, eps, np.broadcast_to(row, (len(eps), len(row))), weight=weight)
        # Machine code may return nan, which means that nothing is known: delta is at most 1.
        return np.where(np.isnan(lower), -math.inf, lower), np.where(np.isnan(upper), 0.0, np.minimum(upper, 0.0))

    def guess(log_delta: float) -> float | None:
        eps = columns.root(log_delta, row)[0]
        return eps if 0.0 < eps < math.inf else None

    return PrivacyProfile(log_delta, guess=guess, log_deltas=log_deltas, **fields)


# the kernels of a mechanism's profile and its row: floats, or arrays of floats for many mu
KernelRow = tuple[ProfileKernels, tuple[Any, ...]]
