"""Laws of the squared shift ``X`` in a coordinate where their density is log-concave, in balls (C21).

They are independent twins of :mod:`privproj.laws.squared_shift` (floats) and :mod:`privproj.reference.laws` (mpmath).
"""

from abc import ABC, abstractmethod

from flint import acb, arb

from privproj.rigorous.balls import UNDEFINED_BALL
from privproj.rigorous.integral import positive_integral


class BallLaw(ABC):
    """``X`` as an increasing function of ``t``, whose log density is concave and analytic near the line."""

    a: arb
    scale: arb

    @property
    @abstractmethod
    def mean(self) -> arb:
        """``E X``."""

    @property
    @abstractmethod
    def supremum(self) -> arb | None:
        """The supremum of ``X``; None where ``X`` is unbounded."""

    @property
    @abstractmethod
    def hill(self) -> tuple[float, float]:
        """The centre of the density of ``t`` and its width."""

    @property
    @abstractmethod
    def size_biased(self) -> "BallLaw":
        """The size-biased law, with density ``x f(x) / E X``."""

    @abstractmethod
    def strip(self, t: acb) -> bool:
        """True if ``X`` and the density are analytic on the ball."""

    @abstractmethod
    def value(self, t: acb) -> acb:
        """``sqrt(X)``."""

    @abstractmethod
    def coordinate(self, x: arb) -> arb:
        """The ``t`` at which ``X`` is ``x``."""

    @abstractmethod
    def derivatives(self, t: acb) -> tuple[acb, acb, acb]:
        """``ln`` of the density of ``t`` and its first two derivatives in ``t``."""

    def density(self, t: acb, analytic: bool) -> acb:
        """The density of ``t``, over a wide ball by Taylor's formula at its middle: dependencies would blow up."""
        if analytic and not self.strip(t):
            return UNDEFINED_BALL
        # ln f(t) = v(m) + v'(m) (t - m) + v''(ball) (t - m)^2/2
        middle = acb(t.real.mid(), t.imag.mid())
        value, slope, _ = self.derivatives(middle)
        away = t - middle
        return (value + away * (slope + away * self.derivatives(t)[2] / 2)).exp()

    def below(self, t: arb) -> arb:
        """``P(T <= t)`` from above: ``f/(ln f)'`` for a log-concave density, where it rises."""
        _, slope, _ = self.derivatives(acb(t))
        return _cap_probability(self.density(acb(t), False).real / slope.real) if slope.real > 0 else arb(1)

    def above(self, t: arb) -> arb:
        """``P(T > t)`` from above: ``-f/(ln f)'``, where it falls."""
        _, slope, _ = self.derivatives(acb(t))
        return _cap_probability(self.density(acb(t), False).real / -slope.real) if slope.real < 0 else arb(1)

    def tail(self, t: arb) -> arb:
        """``P(T > t)``, by an integral."""
        return positive_integral(self.density, *self.hill, low=t, right=self.above)


class BallBetaLaw(BallLaw):
    """``scale * B``, ``B ~ Beta(a, b)``, ``t = ln(B / (1 - B))``: density ``e^(a t) (1 + e^t)^-(a+b) / Beta(a, b)``."""

    def __init__(self, a: arb, b: arb, scale: arb) -> None:
        self.a, self.b, self.scale = a, b, scale
        self.log_front = a.lgamma() + b.lgamma() - (a + b).lgamma()

    @property
    def mean(self) -> arb:
        return self.scale * self.a / (self.a + self.b)

    @property
    def supremum(self) -> arb:
        return self.scale

    @property
    def hill(self) -> tuple[float, float]:
        return float((self.a / self.b).log()), float((1 / self.a + 1 / self.b).sqrt())

    @property
    def size_biased(self) -> "BallBetaLaw":
        return BallBetaLaw(self.a + 1, self.b, self.scale)

    def strip(self, t: acb) -> bool:
        return _soft_plus(t, True).is_finite() and _soft_plus(-t, True).is_finite()

    def value(self, t: acb) -> acb:
        return self.scale.sqrt() * (-_soft_plus(-t, False) / 2).exp()

    def coordinate(self, x: arb) -> arb:
        return (x / (self.scale - x)).log()

    def derivatives(self, t: acb) -> tuple[acb, acb, acb]:
        n, share = self.a + self.b, 1 / (1 + (-t).exp())
        return self.a * t - n * _soft_plus(t, False) - self.log_front, self.a - n * share, -n * share * (1 - share)


class BallGammaLaw(BallLaw):
    """``scale * U``, ``U ~ Gamma(a)``, ``t = ln(U / c)``, ``c = a`` by default.

    The density is ``c^a e^(a t - c e^t) / Gamma(a)``.
    """

    def __init__(self, a: arb, scale: arb, centre: arb | None = None) -> None:
        self.a, self.scale, self.centre = a, scale, a if centre is None else centre
        self.log_front = a.lgamma() - a * self.centre.log()

    @property
    def mean(self) -> arb:
        return self.scale * self.a

    @property
    def supremum(self) -> None:
        return None

    @property
    def hill(self) -> tuple[float, float]:
        return float((self.a / self.centre).log()), float(self.a.rsqrt())

    @property
    def size_biased(self) -> "BallGammaLaw":
        return BallGammaLaw(self.a + 1, self.scale, self.centre)

    def strip(self, t: acb) -> bool:
        return True

    def value(self, t: acb) -> acb:
        return (self.scale * self.centre).sqrt() * (t / 2).exp()

    def coordinate(self, x: arb) -> arb:
        return (x / (self.scale * self.centre)).log()

    def derivatives(self, t: acb) -> tuple[acb, acb, acb]:
        u = self.centre * t.exp()
        return self.a * t - u - self.log_front, self.a - u, -u


def _soft_plus(t: acb, analytic: bool) -> acb:
    """``ln(1 + e^t)``."""
    if t.real.mid() > 0:
        return t + (1 + (-t).exp()).log(analytic=analytic)
    return (1 + t.exp()).log(analytic=analytic)


def _cap_probability(bound: arb) -> arb:
    """The smaller of the bound of a probability and 1."""
    return bound if bound < 1 else arb(1)
