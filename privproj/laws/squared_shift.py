"""Laws of the squared shift ``X`` of a Gaussian release whose sensitivity is random: every known projection.

Given the projection the privacy loss is Gaussian with squared shift ``X`` (for a unit change, scaled
by ``mu^2``), so the profile of a rank-one change is ``E[h_eps(X)]`` with
``h_eps(x)`` = the analytic Gaussian delta at ``mu = sqrt(x)``. ``h_eps`` is convex up to
``x0 = 2 (sqrt(1 + eps^2) - 1)`` and concave after. A release differs from another only in the law of ``X``.

The same laws stand on purpose in balls (:mod:`privproj.rigorous.laws`) and in mpmath
(:mod:`privproj.reference.laws`).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from privproj.numerics import kernels
from privproj.numerics.enclosure import Enclosure, widen_outward
from privproj.numerics.quadrature import log_integral

if TYPE_CHECKING:
    from privproj.laws.binned import Bins


class SensitivityLaw(Protocol):
    """Law of the squared shift ``X``. A tail below ``e^least_tail`` is bounded by it and no longer followed."""

    @property
    def least_tail(self) -> float:
        """``ln`` of the least tail that is followed."""
        ...

    @property
    def mean(self) -> float:
        """``E X``."""
        ...

    @property
    def supremum(self) -> float:
        """The supremum of ``X``, possibly inf."""
        ...

    def log_tail(self, x: float) -> float:
        """``ln P(X > x)``."""
        ...

    def mean_above(self, x: float) -> float:
        """``E[X | X > x]``."""
        ...

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """``ln E[h_eps(X); X <= up_to]``."""
        ...

    def bins(self) -> "Bins":
        """The law in bins, for composition."""
        ...


class _HillLaw(ABC):
    """A law given in a coordinate ``t`` in which its density is smooth with one hill."""

    least_tail = -1e7

    @property
    @abstractmethod
    def mean(self) -> float:
        """``E X``."""

    @property
    @abstractmethod
    def supremum(self) -> float:
        """The supremum of ``X``, possibly inf."""

    @property
    @abstractmethod
    def start(self) -> float:
        """A ``t`` in the bulk of the law."""

    @property
    @abstractmethod
    def step(self) -> float:
        """Width of the bulk in ``t``."""

    @abstractmethod
    def value(self, t: float) -> float:
        """``X`` at the coordinate ``t``."""

    @abstractmethod
    def coordinate(self, x: float) -> float:
        """The coordinate at which ``X`` is ``x``."""

    @abstractmethod
    def log_density(self, t: float) -> float:
        """Log of the density of ``t``."""

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """``ln E[h_eps(X); X <= up_to]``, by two Gauss rules whose difference widens the enclosure (observed)."""

        def integrand(t: float) -> float:
            return log_gaussian_delta_at(eps, self.value(t)) + self.log_density(t)

        high = self.coordinate(up_to) if up_to < self.supremum else math.inf
        value, error = log_integral(integrand, self.start, self.step, high)
        return widen_outward(value, error, gaussian_steepness(value, self))


@dataclass(frozen=True)
class ScaledBeta(_HillLaw):
    """``X = scale * B`` with ``B ~ Beta(a, b)``, in the coordinate ``t = ln(B / (1 - B))``."""

    a: float
    b: float
    scale: float

    @cached_property
    def constant(self) -> float:
        """``ln`` of the front of the density at the mean, which the tails have in common with it."""
        return kernels.beta_constant(self.a, self.b)

    @cached_property
    def size_biased(self) -> "ScaledBeta":
        """The size-biased law, with density ``x f(x) / E X``: ``Beta(a + 1, b)`` times ``scale``."""
        return ScaledBeta(self.a + 1.0, self.b, self.scale)

    @property
    def mean(self) -> float:
        return self.scale * (self.a / (self.a + self.b))

    @property
    def supremum(self) -> float:
        return self.scale

    @property
    def start(self) -> float:
        return math.log(self.a / self.b)

    @property
    def step(self) -> float:
        return kernels.beta_tail_scale(self.a, self.b)

    def value(self, t: float) -> float:
        return self.scale / (1.0 + math.exp(-t)) if t > -700.0 else 0.0

    def coordinate(self, x: float) -> float:
        return math.log(x / (self.scale - x)) if x < self.scale else math.inf

    def log_density(self, t: float) -> float:
        if t < 0.0:
            y = 1.0 / (1.0 + math.exp(t))
            return kernels.beta_deviance(self.a, self.b, math.exp(t) * y, y) + self.constant
        x = 1.0 / (1.0 + math.exp(-t))
        return kernels.beta_deviance(self.a, self.b, x, math.exp(-t) * x) + self.constant

    def log_tail(self, x: float) -> float:
        share = x / self.scale, (self.scale - x) / self.scale
        return kernels.log_beta_tail_from(self.a, self.b, *share, self.constant)

    def mean_above(self, x: float) -> float:
        # E[X | X > x] = E X P(size-biased X > x) / P(X > x)
        log_ratio = self.size_biased.log_tail(x) - self.log_tail(x)
        return min(self.scale, max(x, self.mean * math.exp(log_ratio)))

    def bins(self) -> "Bins":
        from privproj.laws.binned import beta_bins

        return beta_bins(self.a, self.b, self.scale)


@dataclass(frozen=True)
class ScaledGamma(_HillLaw):
    """``X = scale * U`` with ``U ~ Gamma(a)``, in the coordinate ``t = ln(U / a)``."""

    a: float
    scale: float

    @property
    def mean(self) -> float:
        return self.scale * self.a

    @property
    def supremum(self) -> float:
        return math.inf

    @property
    def start(self) -> float:
        return 0.0

    @property
    def step(self) -> float:
        return 1.0 / math.sqrt(self.a)

    def value(self, t: float) -> float:
        return self.mean * math.exp(min(t, 700.0))

    def coordinate(self, x: float) -> float:
        return math.log(x / self.mean)

    def log_density(self, t: float) -> float:
        return kernels.log_gamma_front(self.a, math.expm1(t), math.exp(t)) if t < 700.0 else -math.inf

    def log_tail(self, x: float) -> float:
        return kernels.log_gamma_tail(self.a, (x - self.mean) / self.mean, x / self.mean)

    def mean_above(self, x: float) -> float:
        # E[U | U > u] = a + u^a e^-u / Gamma(a) / P(U > u)
        place = (x - self.mean) / self.mean, x / self.mean
        excess = math.exp(kernels.log_gamma_front(self.a, *place) - kernels.log_gamma_tail(self.a, *place))
        return max(x, self.scale * (self.a + excess))

    def bins(self) -> "Bins":
        from privproj.laws.binned import gamma_bins

        return gamma_bins(self.a, self.scale)


def inflection(eps: float) -> float:
    """``x0(eps) = 2 (sqrt(1 + eps^2) - 1)``, where ``h_eps`` turns from convex to concave."""
    return 2.0 * eps * (eps / (1.0 + math.hypot(1.0, eps)))


def log_gaussian_delta_at(eps: float, x: float) -> float:
    """``ln h_eps(x)``: the log of the Gaussian delta at ``mu = sqrt(x)``."""
    return kernels.log_gaussian_delta(eps, math.sqrt(x))


def log_gaussian_delta_slope(eps: float, x: float) -> float:
    """``ln h_eps'(x)``, ``h' = phi(u) / (2 sqrt(x))`` with ``u = eps/sqrt(x) - sqrt(x)/2``."""
    root = math.sqrt(x)
    return kernels.log_normal_density(kernels.gaussian_shift(eps, root)) - math.log(2.0 * root)


def gaussian_steepness(log_value: float, law: "SensitivityLaw | _HillLaw") -> float:
    """``(v + sqrt 3)(v + mu + sqrt 3)``, ``v^2 = 2 |ln delta|``: bounds ``|d ln delta / d ln mu|`` (C20)."""
    v = math.sqrt(2.0 * min(abs(log_value), 1e300)) + math.sqrt(3.0)
    scale = law.supremum if math.isfinite(law.supremum) else law.mean
    return v * (v + math.sqrt(scale))
