"""Laws of the squared shift ``X`` in balls, in a coordinate where their density is log-concave (C21), and in panels.

They are independent twins of :mod:`privproj.laws.squared_shift` (floats) and ``tests/reference/laws.py`` (mpmath).
"""

from abc import ABC, abstractmethod

from flint import acb, arb

from privproj.rigorous.balls import UNDEFINED_BALL
from privproj.rigorous.gamma import lower_beta
from privproj.rigorous.integral import positive_integral


class BallLaw(ABC):
    """``X`` as an increasing function of a coordinate ``t``, whose log density is concave and analytic near the line.

    ``U`` is the Beta or Gamma variable, of the shape ``a``, that ``X`` is a multiple of (or its inverse).
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

    # --- in panels of U ---

    @abstractmethod
    def share_below(self, u: arb) -> arb:
        """Return a ball that holds ``P(U <= u)``."""

    @abstractmethod
    def edge(self, u: arb) -> arb:
        """Return a ball that holds what an integration by parts leaves at ``u``, see :meth:`moments`."""

    @abstractmethod
    def advance(self, n: int, centre: arb, before: arb, now: arb, ends: arb) -> arb:
        """Return the moment of order ``n + 1`` from the two before it and what is left at the ends."""

    def moments(self, mass: arb, left: arb, right: arb, centre: arb, count: int) -> list[arb]:
        """Return ``E[v^n; left < U <= right]``, ``U = centre (1 + v)``, for ``n < count`` from the first (C29)."""
        found, before = [mass], arb(0)
        powers = [(end / centre - 1, self.edge(end) / centre) for end in (left, right)]
        (down, low), (up, high) = powers
        for n in range(count - 1):
            # The integral over the panel of d/du [v^n u density(u) ...], which is edge v^n / centre at its ends
            found.append(self.advance(n, centre, before, found[-1], high - low))
            before, low, high = found[-2], low * down, high * up
        return found

    def mean_above(self, u: arb, tail: arb) -> arb:
        """Return a ball that holds ``E[X | U > u]``, where ``tail`` holds ``P(U > u)``."""
        # E[U; U > u] = E U (P(U > u) + edge(u)/a)
        return self.mean * (tail + self.edge(u) / self.a) / tail


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

    def share_below(self, u: arb) -> arb:
        """Return the regularised incomplete Beta function."""
        if not u < 1:
            return arb(1)
        # Arb's own takes minutes where both shapes are large.
        # Shape of a Beta law above which its incomplete function is summed here. Speed only.
        balanced = min(float(self.a), float(self.b)) > 200.0 and 0.02 < float(self.a / (self.a + self.b)) < 0.98
        return lower_beta(self.a, self.b, u) if balanced else u.beta_lower(self.a, self.b, regularized=True)

    def edge(self, u: arb) -> arb:
        """Return ``u^a (1 - u)^b / Beta(a, b)``."""
        return (self.a * u.log() + self.b * (-u).log1p() - self.log_front).exp() if u < 1 else arb(0)

    def advance(self, n: int, centre: arb, before: arb, now: arb, ends: arb) -> arb:
        """Return the next moment by parts: the integral of ``d/du [v^n u^a (1 - u)^b]``."""
        # (a+b+n) m_(n+1) = n (1-c)/c m_(n-1) + ((n (1-2c) + a)/c - a - b) m_n - ends
        rest = (n * (1 - 2 * centre) + self.a) / centre - self.a - self.b
        return (n * (1 - centre) / centre * before + rest * now - ends) / (self.a + self.b + n)


class BallGammaLaw(BallLaw):
    """``X = scale U``, ``U ~ Gamma(a)``, in the coordinate ``t = ln(U / c)``, with ``c = centre``, ``a`` by default.

    With ``sign = -1`` it is ``X = scale / U`` in the coordinate ``t = ln(c / U)``. The density is ``c^a e^(a s - c e^s)
    / Gamma(a)`` at ``s = sign t``. Its twins in floats are :class:`privproj.laws.squared_shift.ScaledGamma` and
    :class:`privproj.mechanisms.jl_clip.exact.InverseGamma`.
    """

    def __init__(self, a: arb, scale: arb, centre: arb | None = None, sign: int = 1) -> None:
        self.a, self.scale, self.centre, self.sign = a, scale, a if centre is None else centre, sign
        self.log_front = a.lgamma() - a * self.centre.log()
        # E X = a scale, or scale / (a - 1), infinite for a up to 1
        self.mean = scale * a if sign > 0 else scale / (a - 1) if a > 1 else arb("inf")
        # The coordinate of the mean of U, and the standard deviation of ln U to first order
        self.hill = sign * float((a / self.centre).log()), float(a.rsqrt())

    def strip(self, t: acb) -> bool:
        """Return True: everything is entire in ``t``."""
        return True

    def value(self, t: acb) -> acb:
        """Return ``sqrt(X) = sqrt(scale c^sign) e^(t/2)``."""
        return (self.scale * self.centre**self.sign).sqrt() * (t / 2).exp()

    def coordinate(self, x: arb) -> arb:
        """Return ``t = ln(x / (scale c^sign))``."""
        return (x / (self.scale * self.centre**self.sign)).log()

    def derivatives(self, t: acb) -> tuple[acb, acb, acb]:
        """Return ``a s - c e^s - (ln Gamma(a) - a ln c)`` at ``s = sign t``, and its derivatives in ``t``."""
        u = self.centre * (self.sign * t).exp()
        return self.a * self.sign * t - u - self.log_front, self.sign * (self.a - u), -u

    def share_below(self, u: arb) -> arb:
        """Return the regularised incomplete Gamma function."""
        return 1 - u.gamma_upper(self.a, regularized=1)

    def edge(self, u: arb) -> arb:
        """Return ``u^a e^-u / Gamma(a)``."""
        return (self.a * (u / self.centre).log() - u - self.log_front).exp()

    def advance(self, n: int, centre: arb, before: arb, now: arb, ends: arb) -> arb:
        """Return the next moment by parts: the integral of ``d/du [v^n u^a e^-u]``."""
        # m_(n+1) = n/c m_(n-1) + ((n + a)/c - 1) m_n - ends
        return n / centre * before + ((n + self.a) / centre - 1) * now - ends


def _soft_plus(t: acb, analytic: bool) -> acb:
    """Return ``ln(1 + e^t)`` without overflow; if ``analytic``, not finite where the logarithm is not analytic."""
    if t.real.mid() > 0:
        return t + (1 + (-t).exp()).log(analytic=analytic)
    return (1 + t.exp()).log(analytic=analytic)


def _cap_probability(bound: arb) -> arb:
    """Return the smaller of a bound of a probability and 1."""
    return bound if bound < 1 else arb(1)
