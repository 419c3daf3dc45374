"""Laws of the squared shift ``X`` in a coordinate where their density is log-concave, in balls (C21).

They are independent twins of :mod:`privproj.laws.squared_shift` (floats) and ``tests/reference/laws.py`` (mpmath).
"""

from abc import ABC, abstractmethod

from flint import acb, arb

from privproj.rigorous.balls import UNDEFINED_BALL
from privproj.rigorous.integral import positive_integral


class BallLaw(ABC):
    """``X`` as an increasing function of a coordinate ``t``, whose log density is concave and analytic near the line.

    Arguments and results are balls that hold the exact values.
    """

    a: arb
    """The first shape of the law."""

    scale: arb
    """The factor of ``X``."""

    mean: arb
    """The mean ``E X``."""

    supremum: arb | None = None
    """The supremum of ``X``; None where ``X`` is unbounded."""

    hill: tuple[float, float]
    """The centre of the density of ``t`` and its width, as floats that only guide a search."""

    @property
    @abstractmethod
    def size_biased(self) -> "BallLaw":
        """The size-biased law, with density ``x f(x) / E X``."""

    @abstractmethod
    def strip(self, t: acb) -> bool:
        """Return True if ``X`` and the density are analytic on the ball ``t``."""

    @abstractmethod
    def value(self, t: acb) -> acb:
        """Return ``sqrt(X)`` at ``t``, the shift ``mu``."""

    @abstractmethod
    def coordinate(self, x: arb) -> arb:
        """Return the ``t`` at which ``X`` is ``x``."""

    @abstractmethod
    def derivatives(self, t: acb) -> tuple[acb, acb, acb]:
        """Return ``ln`` of the density of ``t``, and its first and second derivative in ``t``."""

    def density(self, t: acb, analytic: bool) -> acb:
        """Return the density of ``t``, as an :data:`privproj.rigorous.integral.Integrand`.

        Over a wide ball it is computed by Taylor's formula at the middle: dependencies would blow up.
        """
        if analytic and not self.strip(t):
            return UNDEFINED_BALL
        # ln f(t) = v(m) + v'(m) (t - m) + v''(ball) (t - m)^2/2 (C21, Taylor form)
        middle = acb(t.real.mid(), t.imag.mid())
        value, slope, _ = self.derivatives(middle)
        away = t - middle
        return (value + away * (slope + away * self.derivatives(t)[2] / 2)).exp()

    def below(self, t: arb) -> arb:
        """Return an upper bound of ``P(T <= t)``, at most 1."""
        # int_-inf^t f <= f(t)/(ln f)'(t) for a log-concave density where it rises (C21)
        _, slope, _ = self.derivatives(acb(t))
        return _cap_probability(self.density(acb(t), False).real / slope.real) if slope.real > 0 else arb(1)

    def above(self, t: arb) -> arb:
        """Return an upper bound of ``P(T > t)``, at most 1."""
        # int_t^inf f <= -f(t)/(ln f)'(t) where it falls (C21)
        _, slope, _ = self.derivatives(acb(t))
        return _cap_probability(self.density(acb(t), False).real / -slope.real) if slope.real < 0 else arb(1)

    def tail(self, t: arb) -> arb:
        """Return a ball that holds ``P(T > t)``, by an integral."""
        return positive_integral(self.density, *self.hill, low=t, right=self.above)


class BallBetaLaw(BallLaw):
    """``X = scale B``, ``B ~ Beta(a, b)``, in the coordinate ``t = ln(B / (1 - B))``.

    The density is ``e^(a t) (1 + e^t)^-(a+b) / Beta(a, b)``. Its twin in floats is
    :class:`privproj.laws.squared_shift.ScaledBeta`.
    """

    def __init__(self, a: arb, b: arb, scale: arb) -> None:
        self.a, self.b, self.scale = a, b, scale
        self.log_front = a.lgamma() + b.lgamma() - (a + b).lgamma()
        self.mean, self.supremum = scale * a / (a + b), scale
        # The logit of the mean of B, and the standard deviation of the logit to first order
        self.hill = float((a / b).log()), float((1 / a + 1 / b).sqrt())

    @property
    def size_biased(self) -> "BallBetaLaw":
        """The size-biased law: ``Beta(a + 1, b)`` times ``scale``."""
        return BallBetaLaw(self.a + 1, self.b, self.scale)

    def strip(self, t: acb) -> bool:
        """Return True if ``ln(1 + e^t)`` and ``ln(1 + e^-t)`` are analytic on the ball."""
        return _soft_plus(t, True).is_finite() and _soft_plus(-t, True).is_finite()

    def value(self, t: acb) -> acb:
        """Return ``sqrt(X) = sqrt(scale) e^(-ln(1 + e^-t)/2)``."""
        return self.scale.sqrt() * (-_soft_plus(-t, False) / 2).exp()

    def coordinate(self, x: arb) -> arb:
        """Return ``t = ln(x / (scale - x))``."""
        return (x / (self.scale - x)).log()

    def derivatives(self, t: acb) -> tuple[acb, acb, acb]:
        """Return ``a t - (a+b) ln(1 + e^t) - ln Beta(a, b)`` and its first and second derivative."""
        n, share = self.a + self.b, 1 / (1 + (-t).exp())
        return self.a * t - n * _soft_plus(t, False) - self.log_front, self.a - n * share, -n * share * (1 - share)


class BallGammaLaw(BallLaw):
    """``X = scale U``, ``U ~ Gamma(a)``, in the coordinate ``t = ln(U / c)``, with ``c = centre``, ``a`` by default.

    The density is ``c^a e^(a t - c e^t) / Gamma(a)``. Its twin in floats is
    :class:`privproj.laws.squared_shift.ScaledGamma`.
    """

    def __init__(self, a: arb, scale: arb, centre: arb | None = None) -> None:
        self.a, self.scale, self.centre = a, scale, a if centre is None else centre
        self.log_front = a.lgamma() - a * self.centre.log()
        self.mean = scale * a
        # The coordinate of the mean of U, and the standard deviation of ln U to first order
        self.hill = float((a / self.centre).log()), float(a.rsqrt())

    @property
    def size_biased(self) -> "BallGammaLaw":
        """The size-biased law: ``Gamma(a + 1)`` times ``scale``, in the same coordinate."""
        return BallGammaLaw(self.a + 1, self.scale, self.centre)

    def strip(self, t: acb) -> bool:
        """Return True: everything is entire in ``t``."""
        return True

    def value(self, t: acb) -> acb:
        """Return ``sqrt(X) = sqrt(scale c) e^(t/2)``."""
        return (self.scale * self.centre).sqrt() * (t / 2).exp()

    def coordinate(self, x: arb) -> arb:
        """Return ``t = ln(x / (scale c))``."""
        return (x / (self.scale * self.centre)).log()

    def derivatives(self, t: acb) -> tuple[acb, acb, acb]:
        """Return ``a t - c e^t - (ln Gamma(a) - a ln c)`` and its first and second derivative."""
        u = self.centre * t.exp()
        return self.a * t - u - self.log_front, self.a - u, -u


class BallInverseGammaLaw(BallGammaLaw):
    """``X = scale / U``, ``U ~ Gamma(a)``, in the coordinate ``t = ln(c / U)``, with ``c = centre``, ``a`` by default.

    The density is ``c^a e^(-a t - c e^-t) / Gamma(a)``. Its twin in floats is
    :class:`privproj.mechanisms.jl_clip.exact.InverseGamma`.
    """

    def __init__(self, a: arb, scale: arb, centre: arb | None = None) -> None:
        super().__init__(a, scale, centre)
        # E X = scale / (a - 1), infinite for a up to 1
        self.mean = scale / (a - 1) if a > 1 else arb("inf")
        self.hill = float((self.centre / a).log()), float(a.rsqrt())

    @property
    def size_biased(self) -> "BallInverseGammaLaw":
        """The size-biased law: ``scale`` over ``Gamma(a - 1)``, in the same coordinate."""
        return BallInverseGammaLaw(self.a - 1, self.scale, self.centre)

    def value(self, t: acb) -> acb:
        """Return ``sqrt(X) = sqrt(scale / c) e^(t/2)``."""
        return (self.scale / self.centre).sqrt() * (t / 2).exp()

    def coordinate(self, x: arb) -> arb:
        """Return ``t = ln(x c / scale)``."""
        return (x * self.centre / self.scale).log()

    def derivatives(self, t: acb) -> tuple[acb, acb, acb]:
        """Return ``-a t - c e^-t - (ln Gamma(a) - a ln c)`` and its first and second derivative."""
        u = self.centre * (-t).exp()
        return -self.a * t - u - self.log_front, u - self.a, -u


def _soft_plus(t: acb, analytic: bool) -> acb:
    """Return ``ln(1 + e^t)`` without overflow; if ``analytic``, not finite where the logarithm is not analytic."""
    if t.real.mid() > 0:
        return t + (1 + (-t).exp()).log(analytic=analytic)
    return (1 + t.exp()).log(analytic=analytic)


def _cap_probability(bound: arb) -> arb:
    """Return the smaller of a bound of a probability and 1."""
    return bound if bound < 1 else arb(1)
