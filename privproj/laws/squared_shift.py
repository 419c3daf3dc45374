"""Laws of the squared shift ``X`` of a Gaussian release whose sensitivity is random: every known projection.

Given the projection the privacy loss is Gaussian with squared shift ``X`` (for a unit change, scaled by ``mu^2``), so
the profile of a rank-one change is ``E[h_eps(X)]``, where ``h_eps(x)`` is the Gaussian delta at ``mu = sqrt(x)`` (C4).
``h_eps`` is convex up to ``x0 = 2 (sqrt(1 + eps^2) - 1)`` and concave after (C3). One release differs from another only
in the law of ``X`` (C7).

These laws stand in three arithmetics on purpose: in floats here, in balls in :mod:`privproj.rigorous.laws`, and in
mpmath in ``tests/reference/laws.py``.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

from privproj.curves.columns import known_ends
from privproj.laws.shift_kernels import shift_log_delta
from privproj.numerics import kernels
from privproj.numerics.enclosure import Enclosure, widen_outward
from privproj.numerics.quadrature import log_integral

if TYPE_CHECKING:
    from privproj.laws.binned import Bins


class SensitivityLaw(Protocol):
    """Law of the squared shift ``X``, in units of the squared noise deviation, as the profiles need it.

    A law guarantees its functions to the margins of :mod:`privproj.numerics.enclosure`. A tail below ``e^least_tail``
    is bounded by that number and no longer followed.
    """

    least_tail: ClassVar[float]
    """The log of the smallest tail that is followed."""

    @property
    def mean(self) -> float:
        """The mean ``E X``."""
        ...

    @property
    def supremum(self) -> float:
        """The supremum of ``X``, ``inf`` where ``X`` is unbounded."""
        ...

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x)``, ``-inf`` beyond the supremum."""
        ...

    def mean_above(self, x: float) -> float:
        """Return ``E[X | X > x]``, which is at least ``x``."""
        ...

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return an enclosure of ``ln E[h_eps(X); X <= up_to]`` (C4)."""
        ...

    def bins(self, finer: int = 1) -> "Bins":
        """Return the law in bins, the form in which composition reads it; ``finer`` times as many as usual."""
        ...


class HillLaw(SensitivityLaw, ABC):
    """A Beta or Gamma law, whose profiles are kernels; its density has one hill."""

    least_tail = -1e7

    @property
    @abstractmethod
    def row(self) -> tuple[float, float, float]:
        """The row of the law for :mod:`privproj.laws.shift_kernels`: two shapes and the scale."""

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return an enclosure of ``ln E[h_eps(X)]`` (C4), by the kernels, which cut the law by themselves.

        What its error is thought to be widens it; that this covers the error is observed.
        """
        assert up_to == math.inf
        return known_ends(shift_log_delta(eps, (*self.row, 0.0)))


@dataclass(frozen=True)
class ScaledBeta(HillLaw):
    """``X = scale * B`` with ``B ~ Beta(a, b)``: the law of M2 (C7).

    For M2 ``a = r/2``, ``b = (d - r)/2`` and ``scale = mu^2``. In the coordinate ``t = ln(B / (1 - B))``, in which
    ``X`` increases, the density is smooth with one hill.
    """

    a: float
    b: float
    scale: float

    @property
    def row(self) -> tuple[float, float, float]:
        """Both shapes and the scale."""
        return self.a, self.b, self.scale

    @cached_property
    def constant(self) -> float:
        """The log of ``x^a (1-x)^b / Beta(a, b)`` at the mean ``x = a/(a+b)``, which density and tails need."""
        return kernels.beta_constant(self.a, self.b)

    @cached_property
    def size_biased(self) -> "ScaledBeta":
        """The size-biased law, with density ``x f(x) / E X``: ``Beta(a + 1, b)`` times ``scale``."""
        return ScaledBeta(self.a + 1.0, self.b, self.scale)

    @property
    def mean(self) -> float:
        """The mean ``E X = scale a / (a + b)``."""
        return self.scale * (self.a / (self.a + self.b))

    @property
    def supremum(self) -> float:
        """The supremum ``scale`` of ``X``."""
        return self.scale

    @property
    def start(self) -> float:
        """The logit of the mean of ``B``, a ``t`` in the bulk of the law."""
        return math.log(self.a / self.b)

    @property
    def step(self) -> float:
        """The standard deviation of the logit of ``B``, to first order: the width of the bulk in ``t``."""
        return kernels.beta_tail_scale(self.a, self.b)

    def value(self, t: float) -> float:
        """Return ``X = scale / (1 + e^-t)``."""
        return self.scale / (1.0 + math.exp(-t)) if t > -700.0 else 0.0

    def log_density(self, t: float) -> float:
        """Return the log of the density ``B^a (1 - B)^b / Beta(a, b)`` of ``t``."""
        # ln[x^a y^b / Beta(a, b)] at x = 1/(1 + e^-t), y = 1 - x, each from the smaller exponential
        if t < 0.0:
            y = 1.0 / (1.0 + math.exp(t))
            return kernels.beta_deviance(self.a, self.b, math.exp(t) * y, y) + self.constant
        x = 1.0 / (1.0 + math.exp(-t))
        return kernels.beta_deviance(self.a, self.b, x, math.exp(-t) * x) + self.constant

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x) = ln P(B > x / scale)``."""
        share = x / self.scale, (self.scale - x) / self.scale
        return kernels.log_beta_tail_from(self.a, self.b, *share, self.constant)

    def mean_above(self, x: float) -> float:
        # E[X | X > x] = E X P(size-biased X > x) / P(X > x) (C21, tangents)
        """Return ``E[X | X > x]``, between ``x`` and the supremum."""
        log_ratio = self.size_biased.log_tail(x) - self.log_tail(x)
        return min(self.scale, max(x, self.mean * math.exp(log_ratio)))

    def bins(self, finer: int = 1) -> "Bins":
        """Return the law in bins (:func:`privproj.laws.binned.beta_bins`), ``finer`` times as many as usual."""
        from privproj.laws.binned import BINS, beta_bins

        return beta_bins(self.a, self.b, self.scale, finer * BINS)


@dataclass(frozen=True)
class ScaledGamma(HillLaw):
    """``X = scale * U`` with ``U ~ Gamma(a)``: the law of the public sketch (C7).

    For the public sketch ``a = r/2`` and ``scale = 2 mu^2 / r``.
    """

    a: float
    scale: float

    @property
    def row(self) -> tuple[float, float, float]:
        """The shape, inf, and the scale."""
        return self.a, math.inf, self.scale

    @property
    def mean(self) -> float:
        """The mean ``E X = scale a``."""
        return self.scale * self.a

    @property
    def supremum(self) -> float:
        """The supremum ``inf``: ``X`` is unbounded."""
        return math.inf

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x) = ln P(U > x / scale)``."""
        return kernels.log_gamma_tail(self.a, (x - self.mean) / self.mean, x / self.mean)

    def mean_above(self, x: float) -> float:
        # E[U | U > u] = a + u^a e^-u / Gamma(a) / P(U > u)
        """Return ``E[X | X > x]``, at least ``x``."""
        place = (x - self.mean) / self.mean, x / self.mean
        excess = math.exp(kernels.log_gamma_front(self.a, *place) - kernels.log_gamma_tail(self.a, *place))
        return max(x, self.scale * (self.a + excess))

    def bins(self, finer: int = 1) -> "Bins":
        """Return the law in bins (:func:`privproj.laws.binned.gamma_bins`), ``finer`` times as many as usual."""
        from privproj.laws.binned import BINS, gamma_bins

        return gamma_bins(self.a, self.scale, finer * BINS)


@dataclass(frozen=True)
class _ShiftedBeta:
    """``X + shift`` for the Beta law of ``X``: a release that comes with a count of squared shift ``shift > 0`` (C31).

    It is a :class:`SensitivityLaw`.
    """

    base: ScaledBeta
    shift: float

    least_tail: ClassVar[float] = HillLaw.least_tail

    @property
    def mean(self) -> float:
        """The mean ``E X + shift``."""
        return self.base.mean + self.shift

    @property
    def supremum(self) -> float:
        """The supremum of ``X``, and the shift."""
        return self.base.supremum + self.shift

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X + shift > x)``."""
        if not self.shift < x < self.supremum:
            return 0.0 if x <= self.shift else -math.inf
        return self.base.log_tail(x - self.shift)

    def mean_above(self, x: float) -> float:
        """Return ``E[X + shift | X + shift > x]``, between ``x`` and the supremum."""
        if not self.shift < x < self.supremum:
            return self.mean if x <= self.shift else self.supremum
        return min(self.supremum, max(x, self.base.mean_above(x - self.shift) + self.shift))

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return an enclosure of ``ln E[h_eps(X + shift); X + shift <= up_to]`` (C31), by quadrature.

        The integrand has one hill: the Gaussian delta is log-concave in the squared shift (C31).
        """
        share = (up_to - self.shift) / self.base.scale
        if share <= 0.0:
            return Enclosure(-math.inf, -math.inf)
        high = math.inf if share >= 1.0 else math.log(share) - math.log1p(-share)

        def log_term(t: float) -> float:
            return self.base.log_density(t) + log_gaussian_delta_at(eps, self.base.value(t) + self.shift)

        value, error = log_integral(log_term, self.base.start, self.base.step, high)
        return widen_outward(value, error, gaussian_steepness(value, self))

    def bins(self, finer: int = 1) -> "Bins":
        """Return the law in bins, those of ``X`` moved."""
        return self.base.bins(finer).shifted(self.shift)


def shifted_law(law: ScaledBeta, shift: float) -> SensitivityLaw:
    """Return the law of ``X + shift`` for ``shift >= 0``, which is that of ``X`` where the shift is 0."""
    return _ShiftedBeta(law, shift) if shift else law


def log_gaussian_delta_at(eps: float, x: float) -> float:
    """Return ``ln h_eps(x)``, the log of the Gaussian delta at the squared shift ``x``, ``mu = sqrt(x)`` (C3)."""
    return kernels.log_gaussian_delta(eps, math.sqrt(x))


def log_gaussian_delta_slope(eps: float, x: float) -> float:
    """Return ``ln h_eps'(x)``, the log of the slope of the Gaussian delta in the squared shift ``x > 0`` (C3).

    It stands in balls as :func:`privproj.rigorous.gaussian.slope`, and in mpmath in ``tests/reference/laws.py``.
    """
    # h'(x) = phi(u) / (2 sqrt(x)), u = eps/sqrt(x) - sqrt(x)/2 (C3)
    root = math.sqrt(x)
    return kernels.log_normal_density(kernels.gaussian_shift(eps, root)) - math.log(2.0 * root)


def gaussian_steepness(log_value: float, law: SensitivityLaw) -> float:
    """Return ``(v + sqrt 3)(v + mu + sqrt 3)``, ``v^2 = 2 |ln delta|``, which bounds ``|d ln delta / d ln mu|`` (C20).

    ``mu`` is the root of the supremum of the law, or of its mean where it is unbounded.
    """
    # (v + sqrt 3)(v + mu + sqrt 3), v = sqrt(2 |ln delta|) (C20)
    v = math.sqrt(2.0 * min(abs(log_value), 1e300)) + math.sqrt(3.0)
    scale = law.supremum if math.isfinite(law.supremum) else law.mean
    return v * (v + math.sqrt(scale))
