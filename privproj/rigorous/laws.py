"""Laws of the squared shift ``X`` in balls, and means of the Gaussian profile over them by the trapezoidal rule (C21).

They are independent twins of :mod:`privproj.laws.squared_shift` (floats) and ``tests/reference/laws.py`` (mpmath).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from flint import arb

from privproj.errors import PrecisionLimit
from privproj.rigorous import gamma, gaussian
from privproj.rigorous.balls import GOAL_BITS, log_of_upper_end

FIRST_NATS = 16.0
"""Nats of absolute accuracy that are sought first. Speed only."""

MOST_NATS = 1e5
"""Accuracy beyond which no more is sought. Speed only."""

WIDEST_STRIP = 1.25
"""Half width of the strip around the line that is used at most, below ``pi/2``. Speed only."""

MOST_NODES = 2_000_000
"""Nodes of a rule after which the certificate is refused. Contract."""


class BallLaw(ABC):
    """``X = scale U``, or ``scale / U`` if ``inverse``, where ``U`` is a Beta or Gamma variable of the shape ``a``.

    ``U`` up to a cut ``c`` is ``c E/(1 + E)`` with the odds ``E = e^s``, so that it is a law of ``s`` on the line.
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

    inverse: bool = False
    """True for ``X = scale / U``."""

    log_norm: arb
    """The logarithm of the complete Beta or gamma function."""

    @abstractmethod
    def weight(self, u: arb, rest: arb) -> arb:
        """Return ``k(u) = u^a (1-u)^b / Beta(a, b)`` or ``u^a e^-u / Gamma(a)``, where ``rest`` is ``1 - u``."""

    @abstractmethod
    def density(self, odds: arb, cut: arb) -> arb:
        """Return the density of ``s``."""

    @abstractmethod
    def above(self, odds: arb, cut: arb) -> arb:
        """Return a bound of the sum of ``step density`` over all nodes beyond one with these odds (C21)."""

    @abstractmethod
    def tail(self, u: arb) -> arb:
        """Return a ball that holds ``P(U > u)``."""

    @abstractmethod
    def full_cut(self, nats: float) -> tuple[arb, arb]:
        """Return a cut beyond which there is a mass of at most about ``e^-nats``, and a bound of that mass."""

    def below(self, odds: arb, cut: arb) -> arb:
        """Return a bound of the sum of ``step density`` over all nodes before one with these odds (C21)."""
        # (c E)^a / (a Beta(a, b)), or with Gamma(a)
        return (self.a * (cut * odds).log() - self.log_norm).exp() / self.a

    def mean_above(self, u: arb, tail: arb) -> arb:
        """Return a ball that holds ``E[X | U > u]``, where ``tail`` holds ``P(U > u)``."""
        # E[U; U > u] = E U (P(U > u) + k(u)/a)
        return self.mean * (tail + self.weight(u, 1 - u) / self.a) / tail

    def expected_delta(self, eps: arb, cut: arb | None = None, known: arb | None = None, goal: int = GOAL_BITS) -> arb:
        """Return a ball that holds ``E[h_eps(X); U <= cut]`` (C4), or the whole mean without a cut.

        ``goal`` is the relative accuracy that is sought, in bits, beside what is ``known``, to which it will be added.
        """
        nats, known = FIRST_NATS, arb(0) if known is None else known
        while True:
            total, missed = self._sum_nodes(eps, cut, nats)
            # The value is not known well before enough of it is found, so a step is at most fourfold.
            missing = (goal + 4) * math.log(2.0) + log_of_upper_end(missed) - log_of_upper_end(total + known)
            if not 0.0 < missing < math.inf or nats > MOST_NATS:
                return total + arb(0, missed.abs_upper())
            nats = min(nats + missing + 1.0, 4.0 * nats)

    def _sum_nodes(self, eps: arb, cut: arb | None, nats: float) -> tuple[arb, arb]:
        """Return the sum of the trapezoidal rule, right to about ``nats``, and how far the mean is from it (C21)."""
        c, beyond = self.full_cut(nats) if cut is None else (cut, arb(0))
        size = self.scale / c if self.inverse else self.scale * c
        # The highest values of h_eps on the line and in the strip |Im s| <= angle
        at, reach = float(eps.mid()), math.inf if self.inverse else float(size.mid())
        narrow = 0.5 * float(self.a) + 0.25 + 0.25 * at * max(1.0, 2.0 * at / reach)
        angle = min(WIDEST_STRIP, math.sqrt(nats / narrow))
        cosine = arb(angle).cos()
        highest, wide = (arb(1) if self.inverse else gaussian.delta(one, size.sqrt()) for one in (eps, eps * cosine))
        # M = e^(eps (1-C)/2) C^-(a+1/2) h_(eps C)(sup X), C = cos angle
        most = (eps * (1 - cosine) / 2 - (self.a + arb(0.5)) * cosine.log()).exp() * wide
        floor = log_of_upper_end(highest) - nats
        step = 2.0 * math.pi * angle / (log_of_upper_end(most) - floor)

        def odds_at(place: int) -> arb:
            return (arb(step) * place).exp()

        def height(odds: arb) -> arb:
            share = odds / (1 + odds)
            return gaussian.delta(eps, (size / share if self.inverse else size * share).sqrt())

        def left(odds: arb) -> arb:
            return self.below(odds, c) * (highest if self.inverse else height(odds))

        def right(odds: arb) -> arb:
            return self.above(odds, c) * highest

        # (c E)^a / (a Beta(a, b)) = e^-nats
        start = float((self.log_norm + self.a.log()) / self.a - c.log()) - nats / float(self.a)
        first = _stride(math.floor(start / step), lambda place: log_of_upper_end(left(odds_at(place))) < floor)[0]
        last = _stride(first, lambda place: log_of_upper_end(right(odds_at(place))) > floor)[1]
        if last - first > MOST_NODES:
            raise PrecisionLimit(f"expected a mean by at most {MOST_NODES} values, got {last - first}")
        total, odds, ratio = arb(0), odds_at(first), arb(step).exp()
        for _ in range(first, last + 1):
            total += self.density(odds, c) * height(odds)
            odds = odds * ratio
        # |int F - step sum| <= 2 M / (e^(2 pi angle/step) - 1)
        error = 2 * most / (2 * arb.pi() * arb(angle) / arb(step)).expm1()
        return total * arb(step), error + left(odds_at(first)) + right(odds_at(last)) + beyond


def _stride(place: int, holds: Callable[[int], bool]) -> tuple[int, int]:
    """Return a place up to which a condition seems to hold, in growing strides, and a further one where it does not."""
    stride = 1
    while stride < MOST_NODES and holds(place + stride):
        place, stride = place + stride, stride + (stride + 3) // 4
    return place, place + stride


class BallBetaLaw(BallLaw):
    """``X = scale U``, ``U ~ Beta(a, b)``. Its twin in floats is :class:`privproj.laws.squared_shift.ScaledBeta`."""

    def __init__(self, a: arb, b: arb, scale: arb) -> None:
        self.a, self.b, self.scale = a, b, scale
        self.log_norm = a.lgamma() + b.lgamma() - (a + b).lgamma()
        self.mean, self.supremum = scale * a / (a + b), scale

    def weight(self, u: arb, rest: arb) -> arb:
        """Return ``u^a (1 - u)^b / Beta(a, b)``."""
        return (self.a * u.log() + self.b * rest.log() - self.log_norm).exp()

    def density(self, odds: arb, cut: arb) -> arb:
        """Return ``k(u) / (1 + (1-c) E)``, as ``1 - u = (1 + (1-c) E)/(1 + E)``."""
        lifted = 1 + (1 - cut) * odds
        return self.weight(cut * odds / (1 + odds), lifted / (1 + odds)) / lifted

    def above(self, odds: arb, cut: arb) -> arb:
        """Return ``c^a (1-u)^(b-m) E^-m / (m Beta(a, b))``, ``m = min(b, 1)``."""
        least, rest = self.b.min(arb(1)), (1 + (1 - cut) * odds) / (1 + odds)
        return (self.a * cut.log() + (self.b - least) * rest.log() - least * odds.log() - self.log_norm).exp() / least

    def tail(self, u: arb) -> arb:
        """Return the regularised incomplete Beta function of ``1 - u``; raises where ``u`` may not be below 1."""
        if not u < 1:
            raise PrecisionLimit(f"expected a place below the end of the law, got {float(u):.17g} of it")
        # Arb's own takes minutes where both shapes are large.
        # Shape of a Beta law above which its incomplete function is summed here. Speed only.
        balanced = min(float(self.a), float(self.b)) > 200.0 and 0.02 < float(self.a / (self.a + self.b)) < 0.98
        rest = 1 - u
        return gamma.lower_beta(self.b, self.a, rest) if balanced else rest.beta_lower(self.b, self.a, regularized=True)

    def full_cut(self, nats: float) -> tuple[arb, arb]:
        """Return 1, beyond which there is nothing."""
        return arb(1), arb(0)


class BallGammaLaw(BallLaw):
    """``X = scale U``, ``U ~ Gamma(a)``, or ``scale / U``.

    Its twins in floats are :class:`privproj.laws.squared_shift.ScaledGamma` and
    :class:`privproj.mechanisms.jl_clip.exact.InverseGamma`.
    """

    def __init__(self, a: arb, scale: arb, inverse: bool = False) -> None:
        self.a, self.scale, self.inverse, self.log_norm = a, scale, inverse, a.lgamma()
        # E X = a scale, or scale / (a - 1), infinite for a up to 1
        self.mean = scale * a if not inverse else scale / (a - 1) if a > 1 else arb("inf")

    def weight(self, u: arb, rest: arb) -> arb:
        """Return ``u^a e^-u / Gamma(a)``."""
        return (self.a * u.log() - u - self.log_norm).exp()

    def density(self, odds: arb, cut: arb) -> arb:
        """Return ``k(u) / (1 + E)``."""
        return self.weight(cut * odds / (1 + odds), arb(0)) / (1 + odds)

    def above(self, odds: arb, cut: arb) -> arb:
        """Return ``c^a e^-u / (E Gamma(a))``."""
        return (self.a * cut.log() - cut * odds / (1 + odds) - self.log_norm).exp() / odds

    def tail(self, u: arb) -> arb:
        """Return the regularised incomplete gamma function."""
        return gamma.upper(self.a, u)

    def full_cut(self, nats: float) -> tuple[arb, arb]:
        """Return ``a + sqrt(2 a nats) + nats`` and Chernoff's bound of what lies beyond."""
        cut = (self.a + (2 * self.a * nats).sqrt() + nats).mid()
        return cut, gamma.chernoff_bound(self.a, cut)
