"""Distributions of the squared sensitivity of a Gaussian release after a projection.

Given the projection, the release is Gaussian. ``X`` is its squared sensitivity divided by the noise variance. So if
neighboring sums differ by a matrix of rank one, delta is ``E[h_eps(X)]``. Here ``h_eps(x)`` is the delta of the
Gaussian mechanism at ``X = x`` (C4). Mechanisms differ in the distribution of ``X`` only (C7).

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
    """The interface of a distribution of ``X``, the squared sensitivity divided by the noise variance.

    ``least_tail`` is the log of the smallest tail ``P(X > x)`` that is resolved. Functions are valid up to the
    rounding margins of :mod:`privproj.numerics.interval`.
    """

    least_tail: ClassVar[float]  # Log of the smallest tail that is resolved

    @property
    def mean(self) -> float:
        """The mean of the squared sensitivity over the noise variance."""
        ...

    @property
    def supremum(self) -> float:
        """The supremum of the squared sensitivity over the noise variance, possibly ``inf``."""
        ...

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x)`` for the squared sensitivity ``X``, possibly ``-inf``."""
        ...

    def mean_above(self, x: float) -> float:
        """Return ``E[X | X > x]`` for the squared sensitivity ``X``; it is at least ``x``."""
        ...

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return bounds of the log of the mean Gaussian delta over the squared sensitivity (C4).

        Squared sensitivities above ``up_to`` count as 0.
        """
        ...

    def bins(self, finer: int = 1) -> "Bins":
        """Return the distribution in bins; ``finer`` multiplies their default number."""
        ...


@dataclass(frozen=True)
class BetaGammaSensitivity:
    """A squared sensitivity ``scale * Beta(a, b)``, or ``scale * Gamma(a)`` if ``b`` is inf.

    :mod:`privproj.distributions.beta_gamma_kernels` computes its privacy profiles.
    """

    # M2 with dimension d, rank r and sensitivity over noise mu: a = r/2, b = (d - r)/2, scale = mu^2. The public
    # sketch: a = r/2, b = inf, scale = 2 mu^2 / r (C7).
    a: float
    b: float
    scale: float

    def bins(self, finer: int = 1) -> "Bins":
        """Return the distribution in bins; ``finer`` multiplies their default number."""
        from privproj.distributions.binned import BINS, beta_bins, gamma_bins

        if self.b == math.inf:
            return gamma_bins(self.a, self.scale, finer * BINS)
        return beta_bins(self.a, self.b, self.scale, finer * BINS)


@dataclass(frozen=True)
class ScaledBeta:
    """The squared sensitivity ``scale * Beta(a, b) + shift`` of M2 (C7).

    ``shift`` is the squared sensitivity of the count that adaptive clipping releases (C31).
    """

    a: float
    b: float
    scale: float
    shift: float = 0.0

    least_tail: ClassVar[float] = -1e7

    @cached_property
    def constant(self) -> float:
        """The log density of the logit of ``Beta(a, b)`` at the logit of the mean ``a/(a+b)``."""
        return beta_constant(self.a, self.b)

    @cached_property
    def size_biased(self) -> "ScaledBeta":
        """The size-biased distribution of ``scale * Beta(a, b)``, which is ``scale * Beta(a + 1, b)``."""
        return ScaledBeta(self.a + 1.0, self.b, self.scale)

    @property
    def mean(self) -> float:
        """The mean ``scale a / (a + b) + shift`` of the squared sensitivity."""
        return self.scale * (self.a / (self.a + self.b)) + self.shift

    @property
    def supremum(self) -> float:
        """The supremum ``scale + shift`` of the squared sensitivity."""
        return self.scale + self.shift

    @property
    def rounding(self) -> float:
        """The relative rounding error of an expectation that is computed from Beta tails."""
        return rounding_of_tails(self.a, self.b)

    @property
    def start(self) -> float:
        """The logit of the mean ``a/(a+b)`` of ``Beta(a, b)``."""
        return math.log(self.a / self.b)

    @property
    def step(self) -> float:
        """The standard deviation of the logit of ``Beta(a, b)``, to first order."""
        return beta_tail_scale(self.a, self.b)

    def value(self, t: float) -> float:
        """Return the squared sensitivity if the Beta variable has the logit ``t``."""
        return (self.scale / (1.0 + math.exp(-t)) if t > -700.0 else 0.0) + self.shift

    def log_density(self, t: float) -> float:
        """Return the log density of the logit of ``Beta(a, b)`` at ``t``."""
        # ln[x^a y^b / Beta(a, b)] at x = 1/(1 + e^-t), y = 1 - x, each from the smaller exponential
        if t < 0.0:
            y = 1.0 / (1.0 + math.exp(t))
            return beta_deviance(self.a, self.b, math.exp(t) * y, y) + self.constant
        x = 1.0 / (1.0 + math.exp(-t))
        return beta_deviance(self.a, self.b, x, math.exp(-t) * x) + self.constant

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x)`` for the squared sensitivity ``X``."""
        inside = x - self.shift
        if not 0.0 < inside < self.scale:
            return 0.0 if inside <= 0.0 else -math.inf
        share = inside / self.scale, (self.scale - inside) / self.scale
        return log_beta_tail_from(self.a, self.b, *share, self.constant)

    def mean_above(self, x: float) -> float:
        """Return ``E[X | X > x]`` for the squared sensitivity ``X``."""
        if not self.shift < x < self.supremum:
            return self.mean if x <= self.shift else self.supremum
        # E[X | X > x] = E X P(size-biased X > x) / P(X > x) (C21, tangents), without the shift
        log_ratio = self.size_biased.log_tail(x - self.shift) - self.log_tail(x)
        above = self.scale * (self.a / (self.a + self.b)) * math.exp(log_ratio)
        return min(self.supremum, max(x, min(above, self.scale) + self.shift))

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return bounds of the log of the mean Gaussian delta over the squared sensitivity.

        Squared sensitivities above ``up_to`` count as 0.
        """
        inside = up_to - self.shift
        if inside <= 0.0:
            return Enclosure(-math.inf, -math.inf)
        # Round in the same way as in log_tail, so that both ranges meet without a gap.
        high = math.inf if inside >= self.scale else math.log(inside / (self.scale - inside))

        def log_term(t: float) -> float:
            return self.log_density(t) + log_gaussian_delta_at(eps, self.value(t))

        # unimodal, because the Gaussian delta is log-concave in the squared sensitivity (C4, C31)
        value, error = log_integral(log_term, self.start, self.step, high)
        return widen_outward(value, error, gaussian_steepness(value, self))

    def bins(self, finer: int = 1) -> "Bins":
        """Return the distribution in bins; ``finer`` multiplies their default number."""
        return BetaGammaSensitivity(self.a, self.b, self.scale).bins(finer).shifted(self.shift)


def log_gaussian_delta_at(eps: float, x: float) -> float:
    """Return ``ln delta`` of the Gaussian mechanism at the squared sensitivity ``x`` (C3).

    ``x`` is in units of the noise variance.
    """
    return log_gaussian_delta(eps, math.sqrt(x))


def log_gaussian_delta_slope(eps: float, x: float) -> float:
    """Return the log of the slope of the Gaussian delta at the squared sensitivity ``x > 0``.

    ``x`` is in units of the noise variance.
    """
    # h'(x) = phi(u) / (2 sqrt(x)), u = eps/sqrt(x) - sqrt(x)/2 (C3)
    root = math.sqrt(x)
    return log_normal_density(gaussian_shift(eps, root)) - math.log(2.0 * root)


def gaussian_steepness(log_value: float, dist: SensitivityDistribution) -> float:
    """Return a bound of ``|d ln delta / d ln mu|`` for the sensitivity over noise ``mu`` (C20).

    ``log_value`` is ``ln delta``, and ``dist`` is the distribution of the squared sensitivity.
    """
    # (v + sqrt 3)(v + mu + sqrt 3), v = sqrt(2 |ln delta|) (C20)
    v = math.sqrt(2.0 * min(abs(log_value), 1e300)) + math.sqrt(3.0)
    # mu^2 is the supremum, or the mean if the distribution is unbounded.
    scale = dist.supremum if math.isfinite(dist.supremum) else dist.mean
    return v * (v + math.sqrt(scale))
