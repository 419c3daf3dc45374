"""Distributions of the squared sensitivity ``X`` of a Gaussian release after a public random projection.

Given the projection, the release is Gaussian. ``X`` is its squared sensitivity divided by the noise variance. So the
profile of a difference of rank one is ``E[h_eps(X)]``, where ``h_eps(x)`` is the Gaussian delta at ``mu = sqrt(x)``
(C4). ``h_eps`` is convex up to ``x0 = 2 (sqrt(1 + eps^2) - 1)`` and concave beyond (C3). Mechanisms differ in the
distribution of ``X`` only (C7).

The same distributions are implemented in ball arithmetic for certificates, and in mpmath in
:mod:`privproj.reference.distributions`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

from privproj.distributions.beta_gamma_kernels import rounding_of_tails
from privproj.numerics.interval import Enclosure, widen_outward
from privproj.numerics.quadrature import log_integral
from privproj.numerics.special import (
    beta_constant,
    beta_deviance,
    beta_tail_scale,
    log_beta_tail_from,
    log_normal_density,
)
from privproj.profiles.gaussian import gaussian_shift, log_gaussian_delta

if TYPE_CHECKING:
    from privproj.distributions.binned import Bins


class SensitivityDistribution(Protocol):
    """The interface of the distribution of ``X``, the squared sensitivity divided by the noise variance.

    An implementation guarantees its functions up to the margins of :mod:`privproj.numerics.interval`. If a tail is
    below ``e^least_tail``, ``e^least_tail`` is used as its upper bound.
    """

    least_tail: ClassVar[float]  # Log of the smallest tail that is resolved

    @property
    def mean(self) -> float:
        """The mean of the squared sensitivity over the noise variance."""
        ...

    @property
    def supremum(self) -> float:
        """The supremum of ``X``, ``inf`` if ``X`` is unbounded."""
        ...

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x)``, ``-inf`` beyond the supremum."""
        ...

    def mean_above(self, x: float) -> float:
        """Return ``E[X | X > x]``, which is at least ``x``."""
        ...

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return an enclosure of ``ln E[h_eps(X); X <= up_to]`` (C4).

        The expectation is over values of ``X`` up to ``up_to`` only; ``h_eps`` is the Gaussian delta.
        """
        ...

    def bins(self, finer: int = 1) -> "Bins":
        """Return the distribution in bins, for composition.

        Args:
            finer: The number of bins, as a multiple of the default number.
        """
        ...


@dataclass(frozen=True)
class BetaGammaSensitivity:
    """``X = scale * B`` with ``B ~ Beta(a, b)``, or ``X = scale * U`` with ``U ~ Gamma(a)`` if ``b`` is inf.

    Its density is unimodal, and its profiles are kernels (:mod:`privproj.distributions.beta_gamma_kernels`). For M2
    with dimension ``d`` and rank ``r``, ``a = r/2``, ``b = (d - r)/2`` and ``scale = mu^2``, where ``mu`` is the
    sensitivity over noise. For the public sketch ``a = r/2``, ``b = inf`` and ``scale = 2 mu^2 / r`` (C7).
    """

    a: float
    b: float
    scale: float

    def bins(self, finer: int = 1) -> "Bins":
        """Return the distribution in bins, for composition.

        Args:
            finer: The number of bins, as a multiple of the default number.
        """
        from privproj.distributions.binned import BINS, beta_bins, gamma_bins

        if self.b == math.inf:
            return gamma_bins(self.a, self.scale, finer * BINS)
        return beta_bins(self.a, self.b, self.scale, finer * BINS)


@dataclass(frozen=True)
class ScaledBeta:
    """``X = scale * B + shift`` with ``B ~ Beta(a, b)``, the squared sensitivity of M2 (C7).

    With adaptive clipping, ``shift`` is the squared sensitivity of the released count (C31). The density of
    ``t = ln(B / (1 - B))`` is smooth and unimodal, and ``X`` increases with ``t``. The class implements
    :class:`SensitivityDistribution`.
    """

    a: float
    b: float
    scale: float
    shift: float = 0.0

    least_tail: ClassVar[float] = -1e7

    @cached_property
    def constant(self) -> float:
        """The log of ``x^a (1-x)^b / Beta(a, b)`` at the mean ``x = a/(a+b)`` of ``B``.

        Densities and tails are computed relative to this value.
        """
        return beta_constant(self.a, self.b)

    @cached_property
    def size_biased(self) -> "ScaledBeta":
        """The distribution of ``scale * B`` with a density proportional to ``x f(x)``.

        ``f`` is the density of ``scale * B``. The result is ``scale * Beta(a + 1, b)``.
        """
        return ScaledBeta(self.a + 1.0, self.b, self.scale)

    @property
    def mean(self) -> float:
        """The mean ``E X = scale a / (a + b) + shift``."""
        return self.scale * (self.a / (self.a + self.b)) + self.shift

    @property
    def supremum(self) -> float:
        """The supremum ``scale + shift`` of ``X``."""
        return self.scale + self.shift

    @property
    def rounding(self) -> float:
        """The relative error that the rounding of tails adds to an expectation."""
        return rounding_of_tails(self.a, self.b)

    @property
    def start(self) -> float:
        """The logit of the mean of ``B``."""
        return math.log(self.a / self.b)

    @property
    def step(self) -> float:
        """The standard deviation of the logit of ``B``, to first order."""
        return beta_tail_scale(self.a, self.b)

    def value(self, t: float) -> float:
        """Return the squared sensitivity ``X`` at ``t``, the logit of ``B``."""
        return (self.scale / (1.0 + math.exp(-t)) if t > -700.0 else 0.0) + self.shift

    def log_density(self, t: float) -> float:
        """Return the log density of ``t``, the logit of ``B``."""
        # ln[x^a y^b / Beta(a, b)] at x = 1/(1 + e^-t), y = 1 - x, each from the smaller exponential
        if t < 0.0:
            y = 1.0 / (1.0 + math.exp(t))
            return beta_deviance(self.a, self.b, math.exp(t) * y, y) + self.constant
        x = 1.0 / (1.0 + math.exp(-t))
        return beta_deviance(self.a, self.b, x, math.exp(-t) * x) + self.constant

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x) = ln P(B > (x - shift) / scale)``."""
        inside = x - self.shift
        if not 0.0 < inside < self.scale:
            return 0.0 if inside <= 0.0 else -math.inf
        share = inside / self.scale, (self.scale - inside) / self.scale
        return log_beta_tail_from(self.a, self.b, *share, self.constant)

    def mean_above(self, x: float) -> float:
        """Return ``E[X | X > x]``, between ``x`` and the supremum."""
        if not self.shift < x < self.supremum:
            return self.mean if x <= self.shift else self.supremum
        # E[X | X > x] = E X P(size-biased X > x) / P(X > x) (C21, tangents), without the shift
        log_ratio = self.size_biased.log_tail(x - self.shift) - self.log_tail(x)
        above = self.scale * (self.a / (self.a + self.b)) * math.exp(log_ratio)
        return min(self.supremum, max(x, min(above, self.scale) + self.shift))

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return an enclosure of ``ln E[h_eps(X); X <= up_to]``, by quadrature (C4, C31).

        The integrand is unimodal, because the Gaussian delta is log-concave in the squared sensitivity (C31). ``X`` is
        the squared sensitivity over the noise variance, and ``h_eps`` is the Gaussian delta.
        """
        inside = up_to - self.shift
        if inside <= 0.0:
            return Enclosure(-math.inf, -math.inf)
        # Round in the same way as in log_tail, so that both ranges meet without a gap.
        high = math.inf if inside >= self.scale else math.log(inside / (self.scale - inside))

        def log_term(t: float) -> float:
            return self.log_density(t) + log_gaussian_delta_at(eps, self.value(t))

        value, error = log_integral(log_term, self.start, self.step, high)
        return widen_outward(value, error, gaussian_steepness(value, self))

    def bins(self, finer: int = 1) -> "Bins":
        """Return the distribution in bins, for composition.

        Args:
            finer: The number of bins, as a multiple of the default number.
        """
        return BetaGammaSensitivity(self.a, self.b, self.scale).bins(finer).shifted(self.shift)


def log_gaussian_delta_at(eps: float, x: float) -> float:
    """Return ``ln h_eps(x)``, the log Gaussian delta at the squared sensitivity ``x`` (C3)."""
    return log_gaussian_delta(eps, math.sqrt(x))


def log_gaussian_delta_slope(eps: float, x: float) -> float:
    """Return ``ln h_eps'(x)``, the log slope of the Gaussian delta in ``x > 0`` (C3).

    ``x`` is the squared sensitivity over the noise variance.
    """
    # h'(x) = phi(u) / (2 sqrt(x)), u = eps/sqrt(x) - sqrt(x)/2 (C3)
    root = math.sqrt(x)
    return log_normal_density(gaussian_shift(eps, root)) - math.log(2.0 * root)


def gaussian_steepness(log_value: float, dist: SensitivityDistribution) -> float:
    """Return a bound of ``|d ln delta / d ln mu|`` at this ``ln delta`` (C20).

    ``log_value`` is ``ln delta``. The bound is ``(v + sqrt 3)(v + mu + sqrt 3)`` with ``v^2 = 2 |ln delta|``. ``mu`` is
    the square root of the supremum of the distribution, or of its mean if it is unbounded.
    """
    # (v + sqrt 3)(v + mu + sqrt 3), v = sqrt(2 |ln delta|) (C20)
    v = math.sqrt(2.0 * min(abs(log_value), 1e300)) + math.sqrt(3.0)
    scale = dist.supremum if math.isfinite(dist.supremum) else dist.mean
    return v * (v + math.sqrt(scale))
