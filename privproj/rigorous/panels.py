"""Means of the Gaussian profile over a law of the squared shift, enclosed for many epsilons (C29, panels).

The range of ``X`` is cut into panels. On a panel with the centre ``c`` write ``X = c (1 + v)``, ``|v| <= rho``. The
moments ``E[v^n; panel]`` are computed once, in balls, from one incomplete Beta or Gamma function and a recurrence. The
Taylor series of ``h_eps`` in ``v`` has a recurrence too, and Cauchy's estimate bounds its rest. So ``E[h_eps(X);
panel]`` is a short sum for every epsilon.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from flint import arb, ctx

from privproj.laws.squared_shift import log_gaussian_delta_at
from privproj.rigorous import gaussian
from privproj.rigorous.laws import BallBetaLaw, BallLaw

HALF_WIDTH = 0.08
"""Half the width of a panel in units of its centre, at most. Speed only."""

MOST_MOMENTS = 96
"""Moments of a panel that are used at most. Speed only."""

NEGLIGIBLE = 36.0
"""Minus the log of the part of a mean that the rest of a series or what is left out may be. Speed only."""

LEAST_SHARE = 2.0**-28
"""The first panel begins at this part of the mean, or where hardly any mass lies below. Speed only."""

GUARD_BITS = 1024
"""Bits of the moments beyond twice the working precision. Speed only."""

RADII = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Radii of Cauchy's estimate that are tried. Speed only."""


class Shares(ABC):
    """A law on ``u >= 0`` whose density is ``edge(u)/u`` times a simple factor: Beta or Gamma, with the shape ``a``."""

    a: arb
    mean: arb
    bounded: bool
    """True if ``u`` is at most 1."""

    @abstractmethod
    def below(self, u: arb) -> arb:
        """Return a ball that holds ``P(U <= u)``."""

    @abstractmethod
    def edge(self, u: arb) -> arb:
        """Return a ball that holds what an integration by parts leaves at ``u``, see :meth:`moments`."""

    @abstractmethod
    def advance(self, n: int, centre: arb, before: arb, now: arb, ends: arb) -> arb:
        """Return the moment of order ``n + 1`` from those of order ``n - 1`` and ``n``, and what is left at the ends."""

    def moments(self, mass: arb, left: arb, right: arb, centre: arb, count: int) -> list[arb]:
        """Return ``E[v^n; left < U <= right]``, ``U = centre (1 + v)``, for ``n < count`` from that of order 0."""
        found, before = [mass], arb(0)
        powers = [(end / centre - 1, self.edge(end) / centre) for end in (left, right)]
        (down, low), (up, high) = powers
        for n in range(count - 1):
            # The integral over the panel of d/du [v^n u density(u) ...], which is edge v^n / centre at its ends
            found.append(self.advance(n, centre, before, found[-1], high - low))
            before, low, high = found[-2], low * down, high * up
        return found

    def first_above(self, u: arb, tail: arb) -> arb:
        """Return a ball that holds ``E[U; U > u]``, where ``tail`` holds ``P(U > u)``."""
        # E[U; U > u] = E U (P(U > u) + edge(u)/a)
        return self.mean * (tail + self.edge(u) / self.a)


class BetaShares(Shares):
    """The law ``Beta(a, b)``."""

    bounded = True

    def __init__(self, a: arb, b: arb) -> None:
        self.a, self.b, self.mean = a, b, a / (a + b)
        self.log_front = (a + b).lgamma() - a.lgamma() - b.lgamma()

    def below(self, u: arb) -> arb:
        """Return the regularised incomplete Beta function."""
        return u.beta_lower(self.a, self.b, regularized=True) if u < 1 else arb(1)

    def edge(self, u: arb) -> arb:
        """Return ``u^a (1 - u)^b / Beta(a, b)``."""
        return (self.a * u.log() + self.b * (-u).log1p() + self.log_front).exp() if u < 1 else arb(0)

    def advance(self, n: int, centre: arb, before: arb, now: arb, ends: arb) -> arb:
        """Return the next moment by parts: the integral of ``d/du [v^n u^a (1 - u)^b]``."""
        # (a+b+n) m_(n+1) = n (1-c)/c m_(n-1) + ((n (1-2c) + a)/c - a - b) m_n - ends
        rest = (n * (1 - 2 * centre) + self.a) / centre - self.a - self.b
        return (n * (1 - centre) / centre * before + rest * now - ends) / (self.a + self.b + n)


class GammaShares(Shares):
    """The law ``Gamma(a)``."""

    bounded = False

    def __init__(self, a: arb) -> None:
        self.a = self.mean = a
        self.log_front = -a.lgamma()

    def below(self, u: arb) -> arb:
        """Return the regularised incomplete Gamma function."""
        return 1 - u.gamma_upper(self.a, regularized=1)

    def edge(self, u: arb) -> arb:
        """Return ``u^a e^-u / Gamma(a)``."""
        return (self.a * u.log() - u + self.log_front).exp()

    def advance(self, n: int, centre: arb, before: arb, now: arb, ends: arb) -> arb:
        """Return the next moment by parts: the integral of ``d/du [v^n u^a e^-u]``."""
        # m_(n+1) = n/c m_(n-1) + ((n + a)/c - 1) m_n - ends
        return n / centre * before + ((n + self.a) / centre - 1) * now - ends


@dataclass
class Panel:
    """A part of the range of ``U``, its centre, half its width in units of that, and its moments."""

    centre: arb
    rho: arb
    moments: list[arb]


class PanelLaw:
    """The law of ``X = scale U`` in panels, for the working precision at which it is made.

    ``law`` is called at a higher one, which pays for what is cancelled in tails and in the recurrence of the moments.
    """

    def __init__(self, law: Callable[[], BallLaw]) -> None:
        self.bits = 2 * ctx.prec + GUARD_BITS
        least = arb(2) ** -ctx.prec
        with ctx.workprec(self.bits):
            found = law()
            self.scale = found.scale
            self.shares = BetaShares(found.a, found.b) if isinstance(found, BallBetaLaw) else GammaShares(found.a)
            self._cut_range(least)

    def _cut_range(self, least: arb) -> None:
        """Choose the panels, up to tails of the mass ``least``, and compute the mass below each edge."""
        shares = self.shares
        mean = float(shares.mean)
        half = min(HALF_WIDTH, 2.0 / math.sqrt(float(shares.a)))
        ratio = (1.0 + half) / (1.0 - half)
        start = min(mean, 0.999) if shares.bounded else mean
        edges = [start]
        while edges[0] > mean * LEAST_SHARE and not shares.below(arb(edges[0])) < least:
            edges.insert(0, edges[0] / ratio)
        while edges[-1] < (1.0 if shares.bounded else math.inf) and not 1 - shares.below(arb(edges[-1])) < least:
            edges.append(min(edges[-1] * ratio, 1.0) if shares.bounded else edges[-1] * ratio)
        self.edges = edges
        self.reach = next(
            edge for edge in reversed(edges) if not 1 - shares.below(arb(edge)) < least or edge == edges[0]
        )
        self.masses = [shares.below(arb(edge)) for edge in edges]
        self.log_below = [_log(mass) for mass in self.masses]
        self.log_above = [_log(1 - mass) for mass in self.masses]
        self.log_mass = [_log(b - a) for a, b in zip(self.masses, self.masses[1:], strict=False)]
        self.panels: list[Panel | None] = [None] * (len(edges) - 1)

    @cached_property
    def supremum(self) -> arb | None:
        """The supremum of ``X``; None where ``X`` is unbounded."""
        return self.scale if self.shares.bounded else None

    @property
    def mean(self) -> arb:
        """The mean ``E X``."""
        return self.scale * self.shares.mean

    def above(self, u: float) -> tuple[arb, arb]:
        """Return balls that hold ``P(U > u)`` and ``E[X | U > u]``."""
        with ctx.workprec(self.bits):
            tail = 1 - self.shares.below(arb(u))
            first = self.shares.first_above(arb(u), tail)
        return +tail, self.scale * first / tail

    def expected(self, eps: arb, cut: float | None = None) -> arb:
        """Return a ball that holds ``E[h_eps(X); U <= cut]``, ``cut`` in units of ``scale``."""
        x, at = float(self.scale), float(eps.mid())
        heights = [log_gaussian_delta_at(at, x * edge) for edge in self.edges]
        last = len(self.panels) if cut is None else max(bisect_left(self.edges, cut) - 1, 0)
        scores = [mass + height for mass, height in zip(self.log_mass[:last], heights, strict=False)]
        if cut is not None and cut > self.edges[0]:
            scores.append(_log(self.shares.below(arb(cut)) - self.masses[last]) + heights[last])
        floor = max(scores, default=0.0) - NEGLIGIBLE
        first = last
        while first > 0 and not self.log_below[first] + heights[first] < floor:
            first -= 1
        # Below the first panel 0 <= h <= h(its left end).
        total = self._between(arb(0), self._height(eps, first), self.masses[first])
        if cut is None:
            top = arb(1) if self.supremum is None else gaussian.delta(eps, self.supremum.sqrt())
            sup = 0.0 if self.supremum is None else log_gaussian_delta_at(at, x)
            while last > first + 1 and self.log_above[last - 1] + sup < floor:
                last -= 1
            total += self._between(self._height(eps, last), top, 1 - self.masses[last])
        elif cut <= self.edges[0]:
            return self._between(
                arb(0), gaussian.delta(eps, (self.scale * arb(cut)).sqrt()), self.shares.below(arb(cut))
            )
        elif last < len(self.panels):
            total += self._series(eps, self._part(last, cut), floor)
        else:
            total += self._between(
                self._height(eps, last),
                gaussian.delta(eps, (self.scale * arb(cut)).sqrt()),
                (self.shares.below(arb(cut)) - self.masses[last]).max(arb(0)),
            )
        for k in range(first, last):
            total += self._series(eps, self._whole(k), floor)
        return total

    def _height(self, eps: arb, k: int) -> arb:
        """Return ``h_eps`` at an edge."""
        return gaussian.delta(eps, (self.scale * arb(self.edges[k])).sqrt())

    @staticmethod
    def _between(low: arb, high: arb, mass: arb) -> arb:
        """Return a ball that holds the mean of a function between two values over a part of the law."""
        return low.union(high) * mass

    def _whole(self, k: int) -> Panel:
        """Return a panel."""
        found = self.panels[k]
        if found is None:
            found = self.panels[k] = self._panel(k, self.edges[k + 1], lambda: self.masses[k + 1])
        return found

    def _part(self, k: int, cut: float) -> Panel:
        """Return the panel up to ``cut``."""
        return self._panel(k, cut, lambda: self.shares.below(arb(cut)))

    def _panel(self, k: int, right: float, below: Callable[[], arb]) -> Panel:
        """Return the part of a panel up to ``right``."""
        with ctx.workprec(self.bits):
            left, end = arb(self.edges[k]), arb(self.edges[k + 1])
            centre = (left + end) / 2
            moments = self.shares.moments(below() - self.masses[k], left, arb(right), centre, MOST_MOMENTS)
            rho = (end - left) / (end + left)
        return Panel(+centre, +rho, [+moment for moment in moments])

    def _series(self, eps: arb, panel: Panel, floor: float) -> arb:
        """Return a ball that holds ``E[h_eps(X); panel]``, by its Taylor series in ``v``."""
        # F = dh/dv = F_0 (1+v)^(-1/2) exp(alpha + beta - alpha/(1+v) - beta (1+v))
        x = self.scale * panel.centre
        alpha, beta = eps * eps / (2 * x), x / 8
        front = x * gaussian.slope(eps, x)
        count, radius = _terms(
            float(alpha), float(beta), float(panel.rho), floor - _log(front) - _log(panel.moments[0])
        )
        moments = panel.moments
        if count > MOST_MOMENTS:
            low, high = (gaussian.delta(eps, (x * (1 + side * panel.rho)).sqrt()) for side in (-1, 1))
            return self._between(low, high, moments[0])
        total = arb(0)
        shift, twice = alpha - beta - arb(0.5), 2 * beta + arb(0.5)
        one, two, three = arb(0), arb(0), arb(1)
        for n in range(1, count):
            total += three * moments[n] / n
            # n F_n = (alpha - beta - 1/2 - 2 (n-1)) F_(n-1) - (2 beta + 1/2 + n - 2) F_(n-2) - beta F_(n-3)
            one, two, three = two, three, ((shift - 2 * (n - 1)) * three - (twice + (n - 2)) * two - beta * one) / n
        # |F| <= F_0 size for |v| <= R, so the rest is at most F_0 size R (rho/R)^count / (count (1 - rho/R))
        part = panel.rho / radius
        rest = _size(alpha, beta, arb(radius)) * radius * part**count / (count * (1 - part)) * moments[0]
        return gaussian.delta(eps, x.sqrt()) * moments[0] + front * (total + arb(0, rest.abs_upper()))


def _size(alpha: arb, beta: arb, radius: arb) -> arb:
    """Return a bound of ``|F|/F_0`` on the disc ``|v| <= radius < 1``."""
    # Re 1/(1+v) >= 1/(1+R) and Re v >= -R; or -alpha/(1+v) - beta v = -alpha + (alpha - beta) v - alpha v^2/(1+v)
    one = alpha * radius / (1 + radius) + beta * radius
    two = abs(alpha - beta) * radius + alpha * radius * radius / (1 - radius)
    return one.min(two).exp() / (1 - radius).sqrt()


def _terms(alpha: float, beta: float, rho: float, log_share: float) -> tuple[int, float]:
    """Return how many moments to use, and the radius of Cauchy's estimate, for a rest of ``e^log_share``."""
    best, at = math.inf, RADII[0]
    for radius in RADII:
        one = alpha * radius / (1.0 + radius) + beta * radius
        two = abs(alpha - beta) * radius + alpha * radius * radius / (1.0 - radius)
        count = (min(one, two) - log_share) / math.log(radius / rho) if radius > rho else math.inf
        if count < best:
            best, at = count, radius
    return max(2, math.ceil(min(best, MOST_MOMENTS + 1.0))), at


def _log(ball: arb) -> float:
    """Return about ``ln`` of a ball, to guide a choice; ``-inf`` if it is hardly positive."""
    top = ball.upper()
    return float(top.log()) if top > 0 else -math.inf
