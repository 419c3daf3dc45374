"""Enclose the Gaussian delta averaged over a random sensitivity, in ball arithmetic.

Let ``h_eps(x)`` be the Gaussian delta at ``x = (sensitivity / noise std)^2``. The random value of ``x`` is
``X = scale U`` or ``X = scale / U``, where ``U`` has a Beta or gamma distribution. The average ``E[h_eps(X)]`` is
computed by the trapezoidal rule (C21: certificates). For this rule, ``0 < U <= c`` is mapped to the real line by
``U = c E/(1 + E)``, where the odds ``E`` are ``e^s`` for real ``s``. :mod:`privproj.distributions.squared_sensitivity`
(floats) and :mod:`privproj.reference.distributions` (mpmath) compute the average independently.
"""

import math
from abc import ABC, abstractmethod

from flint import arb

from privproj.contrib.certify import gamma, gaussian
from privproj.contrib.certify.balls import GOAL_BITS
from privproj.contrib.certify.integral import Line
from privproj.errors import PrecisionError

DEEPEST = 8000  # nats; an expectation over an inverse distribution omits a part below e^-DEEPEST

FLAT = 12  # standard deviations beyond which the Gaussian profile is bounded by 1

WIDEST_STRIP = 1.25  # largest half width of the strip around the line, below pi/2


class BallDistribution(ABC):
    """The distribution of ``X = scale U`` for a Beta or gamma variable ``U``, in ball arithmetic.

    If ``inverse``, ``X`` is ``scale / U``.
    """

    a: arb  # first shape of the distribution

    scale: arb  # factor of X

    mean: arb  # E X

    supremum: arb | None = None  # supremum of X; None if X is unbounded

    inverse: bool = False  # True for ``X = scale / U``

    steepness: arb  # power m of 1/C that bounds the density in the strip (C21)

    log_norm: arb  # logarithm of the complete Beta or gamma function

    @abstractmethod
    def weight(self, u: arb, rest: arb) -> arb:
        """Return the density of ``ln(U/(1-U))`` (Beta) or ``ln U`` (gamma) where ``U = u``.

        ``rest`` is ``1 - u``.
        """

    @abstractmethod
    def density(self, odds: arb, cut: arb) -> arb:
        """Return the density of ``ln E`` at ``E = odds``, where ``U = cut E/(1 + E)``.

        ``U`` is the Beta or gamma variable. The integral of the density is ``P(U <= cut)``.
        """

    @abstractmethod
    def above(self, odds: arb, cut: arb) -> arb:
        """Return an upper bound of the trapezoidal sum of :meth:`density` over ``E > odds`` (C21)."""

    @abstractmethod
    def tail(self, u: arb) -> arb:
        """Return a ball that contains ``P(U > u)`` for the Beta or Gamma variable ``U``."""

    def last_cut(self, eps: arb) -> tuple[arb, arb]:
        """Return a truncation point ``c`` of ``U``, and a ball around ``E[h(X); U > c]``.

        ``h(X)`` is the Gaussian delta at the random ``X = (sensitivity / noise std)^2``.
        """
        if self.inverse:
            cut = (self.a + (2 * self.a * DEEPEST).sqrt() + DEEPEST).mid()
            return cut, arb(0).union(gamma.chernoff_bound(self.a, cut))
        # h is nearly 1 from here on: Phi(-u) at u = eps/mu - mu/2 = -FLAT
        edge = (FLAT + (FLAT**2 + 2 * eps).sqrt()).mid() ** 2
        if self.supremum is not None and not edge < self.supremum:
            return arb(1), arb(0)
        cut = (edge / self.scale).mid()
        return cut, self.tail(cut) * gaussian.delta(eps, (self.scale * cut).sqrt()).union(arb(1))

    def below(self, odds: arb, cut: arb) -> arb:
        """Return an upper bound of the trapezoidal sum of :meth:`density` over ``E < odds`` (C21)."""
        # (c E)^a / (a Beta(a, b)), or with Gamma(a)
        return (self.a * (cut * odds).log() - self.log_norm).exp() / self.a

    def mean_above(self, u: arb, tail: arb) -> arb:
        """Return a ball that contains ``E[X | U > u]`` for ``X = scale U``.

        ``tail`` is a ball that contains ``P(U > u)``.
        """
        # E[U; U > u] = E U (P(U > u) + k(u)/a)
        return self.mean * (tail + self.weight(u, 1 - u) / self.a) / tail

    def expected_delta(self, eps: arb, cut: arb | None = None, addend: arb | int = 0, goal: int = GOAL_BITS) -> arb:
        """Return a ball around the Gaussian delta averaged over the random sensitivity (C4).

        If a ``cut`` is given, the average is restricted to ``U <= cut``. The caller adds ``addend`` to the result.
        ``goal`` is the desired relative accuracy of this sum, in bits, which is not guaranteed.
        """
        if cut is None:
            cut, beyond = self.last_cut(eps)
            return beyond + self.expected_delta(eps, cut, addend + beyond, goal)
        return self.line(eps, cut).integral(addend, goal)

    def line(self, eps: arb, c: arb) -> Line:
        """Return the integrand of the Gaussian delta averaged over ``U <= c``."""
        size = self.scale / c if self.inverse else self.scale * c
        highest = arb(1) if self.inverse else gaussian.delta(eps, size.sqrt())

        def height(odds: arb) -> arb:
            share = odds / (1 + odds)
            return gaussian.delta(eps, (size / share if self.inverse else size * share).sqrt())

        def strip(nats: float) -> tuple[float, arb]:
            m, at = float(self.steepness), float(eps.mid())
            share = 0.0 if self.inverse else float((2 * eps / size).mid())
            angle = min(WIDEST_STRIP, math.sqrt(nats / (0.5 * m + 0.25 + 0.25 * at * max(0.0, 1.0 - share))))
            if 0.0 < share < 3.0:
                angle = min(angle, 2.0 * (nats / at) ** 0.25)
            cosine = arb(angle).cos()
            # M = C^-(m+1/2) e^growth, C = cos angle
            growth = eps * (1 - cosine) / 2 if self.inverse else _profile_growth(eps, size, cosine)
            return angle, (growth - (self.steepness + arb(0.5)) * cosine.log()).exp()

        return Line(
            value=lambda odds: self.density(odds, c) * height(odds),
            left=lambda odds: self.below(odds, c) * (highest if self.inverse else height(odds)),
            right=lambda odds: self.above(odds, c) * highest,
            strip=strip,
            highest=highest,
        )


def _profile_growth(eps: arb, size: arb, cosine: arb) -> arb:
    """Return the log of an upper bound of ``sqrt(cosine) |h_eps(x)|`` at complex ``x`` (C21).

    ``h_eps(x)`` is the Gaussian delta at ``x = (sensitivity / noise std)^2``. The bound holds if ``|x| <= size`` and
    ``cos(arg x) >= cosine``.
    """
    if size <= 2 * eps * cosine:
        # -(eps/mu - mu/2)^2/2
        return eps / 2 - eps * eps / (2 * size) - size / 8
    # eps/2 (1 - C - q S^2/2), and eps/2 (1 - q S^2 - C sqrt(1 - q^2 S^2)) where |X| >= 2 eps, q = 2 eps/size
    q, sine = 2 * eps / size, 1 - cosine * cosine
    one = eps / 2 * (1 - cosine - q * sine / 2)
    return one if q > 1 else one.max(eps / 2 * (1 - q * sine - cosine * (1 - q * q * sine).sqrt()))


class BallBetaDistribution(BallDistribution):
    """The distribution of ``X = scale U`` with ``U ~ Beta(a, b)``."""

    def __init__(self, a: arb, b: arb, scale: arb) -> None:
        self.a, self.b, self.scale = a, b, scale
        self.log_norm = a.lgamma() + b.lgamma() - (a + b).lgamma()
        self.mean, self.supremum, self.steepness = scale * a / (a + b), scale, a.min(b.max(2 - b))

    def weight(self, u: arb, rest: arb) -> arb:
        """Return the density of ``ln(U/(1-U))`` where ``U = u``, for ``U ~ Beta(a, b)``.

        ``rest`` is ``1 - u``.
        """
        # u^a (1 - u)^b / Beta(a, b)
        return (self.a * u.log() + self.b * rest.log() - self.log_norm).exp()

    def density(self, odds: arb, cut: arb) -> arb:
        """Return the density of ``ln E`` at ``E = odds``, where ``cut E/(1 + E)`` is a Beta variable."""
        # k(u) / (1 + (1-c) E) at u = c E/(1 + E), where k is the weight;
        # 1 - u = (1 + (1-c) E)/(1 + E)
        lifted = 1 + (1 - cut) * odds
        return self.weight(cut * odds / (1 + odds), lifted / (1 + odds)) / lifted

    def above(self, odds: arb, cut: arb) -> arb:
        """Return an upper bound of the trapezoidal sum of :meth:`density` over ``E > odds`` (C21)."""
        # The sum over all later nodes of the density times the step is at most c^a (1-u)^(b-m) E^-m / (m Beta(a, b)),
        # where u = c E/(1 + E) and m = min(b, 1).
        least, rest = self.b.min(arb(1)), (1 + (1 - cut) * odds) / (1 + odds)
        return (self.a * cut.log() + (self.b - least) * rest.log() - least * odds.log() - self.log_norm).exp() / least

    def tail(self, u: arb) -> arb:
        """Return a ball that contains ``P(U > u)`` for ``U ~ Beta(a, b)``.

        Raises:
            PrecisionError: ``u`` may be 1 or above.
        """
        if not u < 1:
            raise PrecisionError(
                f"u must be below 1, but its enclosure around {float(u):.17g} "
                f"does not exclude 1. Increase the precision"
            )
        # Arb's function takes minutes if both shapes are large, so above this shape lower_beta sums the series.
        balanced = min(float(self.a), float(self.b)) > 200.0 and 0.02 < float(self.a / (self.a + self.b)) < 0.98
        rest = 1 - u
        return gamma.lower_beta(self.b, self.a, rest) if balanced else rest.beta_lower(self.b, self.a, regularized=True)


class BallGammaDistribution(BallDistribution):
    """The distribution of ``X = scale U`` or ``scale / U`` with ``U ~ Gamma(a)``."""

    def __init__(self, a: arb, scale: arb, inverse: bool = False) -> None:
        self.a, self.scale, self.inverse, self.log_norm = a, scale, inverse, a.lgamma()
        self.steepness = a
        # E X = a scale, or scale / (a - 1), infinite for a up to 1
        self.mean = scale * a if not inverse else scale / (a - 1) if a > 1 else arb("inf")

    def weight(self, u: arb, rest: arb) -> arb:
        """Return the density of ``ln U`` where ``U = u``, for ``U ~ Gamma(a)``."""
        # u^a e^-u / Gamma(a)
        return (self.a * u.log() - u - self.log_norm).exp()

    def density(self, odds: arb, cut: arb) -> arb:
        """Return the density of ``ln E`` at ``E = odds``, where ``cut E/(1 + E)`` is a gamma variable."""
        # k(u) / (1 + E) at u = c E/(1 + E), where k is the weight
        return self.weight(cut * odds / (1 + odds), arb(0)) / (1 + odds)

    def above(self, odds: arb, cut: arb) -> arb:
        """Return an upper bound of the trapezoidal sum of :meth:`density` over ``E > odds`` (C21)."""
        # The sum over all later nodes of the density times the step is at most c^a e^-u / (E Gamma(a)), where u = c
        # E/(1 + E).
        return (self.a * cut.log() - cut * odds / (1 + odds) - self.log_norm).exp() / odds

    def tail(self, u: arb) -> arb:
        """Return a ball that contains ``P(U > u)`` for ``U ~ Gamma(a)``."""
        return gamma.upper(self.a, u)
