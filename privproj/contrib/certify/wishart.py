"""Enclose the exact profile of the vector Wishart mechanism in ball arithmetic (C9, C10).

The release is ``Y = M v``, where ``M`` is a Wishart matrix in ``d`` dimensions with ``r`` degrees of freedom. ``v`` and
``v'`` are neighboring unit vectors, ``rho = v . v'`` is their cosine, and ``m = 1 - rho`` is their misalignment. Delta
at ``eps`` is an integral over the ratio ``A = (v' . Y) / (v . Y)``, written in ``x = |ln A|`` and ``E = e^x - 1``:

    delta = P(A <= 0) + K int_0^inf (2m + 2m E + E^2)^-(r+1)/2 [(1 + E)^(r-1) g_-(x) + g_+(x)] dE
    g_- = Q(k, U2) - e^(eps - (r-1)x) Q(k, U2 e^x),   U2 = (a x + eps)/(e^x - 1);    1 - e^(eps - (r-1)x) if U2 <= 0
    g_+ = P(k, U1) - e^(eps + (r-1)x) P(k, U1 e^-x),  U1 = (a x - eps)/(1 - e^-x);   0 if U1 <= 0

``g_-`` belongs to ``A < 1`` and ``g_+`` to ``A > 1``. Both functions increase in ``x``, from 0 to at most 1. ``P`` and
``Q`` are the regularized incomplete gamma functions. The constants are ``k = (r + d - 1)/2``, ``a = (d + 1 - r)/2`` and
``K = (1 - rho^2)^(r/2) Gamma((r+1)/2) / (Gamma(r/2) sqrt(pi))``.
"""

import math
from functools import partial

from flint import arb

from privproj.contrib.certify import gamma
from privproj.contrib.certify.distributions import WIDEST_STRIP
from privproj.contrib.certify.integral import Line
from privproj.contrib.certify.profiles import BallMean


class BallWishartProfile(BallMean):
    """The profile of the vector Wishart mechanism for vectors of equal norm (C9)."""

    effort: int = 8

    def __init__(self, dim: int, rank: int, misalignment: float) -> None:
        self.dim, self.rank, self.misalignment = dim, rank, misalignment
        self._near = gamma.NearbyValues(arb(rank + dim - 1) / 2)

    def mean(self, eps: arb, goal: int) -> arb:
        """Return a ball that contains the profile at ``eps``, accurate to ``goal`` bits."""
        return _RatioPair(self.dim, self.rank, arb(self.misalignment), eps, goal, self._near).delta()


class _RatioPair:
    """The delta of the vector Wishart mechanism for two unit vectors, in ball arithmetic (C9, C10).

    Delta is an integral over the ratio of the inner products of the release with the two vectors.
    """

    def __init__(self, dim: int, rank: int, misalignment: arb, eps: arb, goal: int, near: gamma.NearbyValues) -> None:
        self.r, self.m, self.eps, self.goal = rank, misalignment, eps, goal
        self.k, self.a, self.near = arb(rank + dim - 1) / 2, arb(dim + 1 - rank) / 2, near
        self.sine_squared, r = self.m * (2 - self.m), arb(rank)
        self.log_front = (
            ((r + 1) / 2).lgamma() - (r / 2).lgamma() - arb.pi().log() / 2 + r / 2 * self.sine_squared.log()
        )

    def delta(self) -> arb:
        if self.a > 0 or (self.a == 0 and self.eps > 0):
            total = self.below(self.m - 1)
            total += self.line(1, arb(0), arb(1)).integral(total, self.goal)
            if self.a == 0:
                return total
            origin = self.eps / self.a
            return total + self.line(-1, origin.expm1(), origin.exp()).integral(total, self.goal)
        # P(A < e^-x) - e^eps P(A > e^x), at x = eps/|a|, from which on U2 <= 0
        x = arb(0) if self.eps == 0 else self.eps / -self.a
        total = self.below(self.m + (-x).expm1()) - self.eps.exp() * self.beyond(self.m + x.expm1())
        if self.eps == 0:
            return total
        return total + self.line(1, arb(0), x.expm1(), bend=1).integral(total, self.goal)

    def beyond(self, away: arb) -> arb:
        """Return the probability of ``(v' . Y) / (v . Y) > v . v' + |away|`` for a release ``Y``."""
        # P(A > rho + |away|) = P(A < rho - |away|)
        # I_u(r/2, 1/2)/2, u = (1 - rho^2)/(1 - rho^2 + away^2)
        u = self.sine_squared / (self.sine_squared + away * away)
        return u.beta_lower(arb(self.r) / 2, arb(1) / 2, regularized=True) / 2

    def below(self, away: arb) -> arb:
        """Return the probability of ``(v' . Y) / (v . Y) < v . v' + away`` for a release ``Y``."""
        beyond = self.beyond(away)
        return beyond if away <= 0 else 1 - beyond if away > 0 else beyond.union(1 - beyond)

    def line(self, sign: int, least: arb, scale: arb, bend: int = 0) -> Line:
        """Return the integrand of delta for ratios ``A`` below 1 (``sign`` 1) or above 1 (``sign`` -1).

        If ``bend`` is 0, the integral over ``E`` runs from ``least`` to infinity, and does not depend on ``scale``. If
        ``bend`` is 1 and ``least`` is 0, the integral runs from 0 to ``scale``.
        """

        # E = (least + scale G)/(1 + bend G), where G = e^s for real s
        def grown_at(odds: arb) -> arb:
            return (least + scale * odds) / (1 + bend * odds)

        def value(odds: arb) -> arb:
            grown, slope = grown_at(odds), scale * odds / (1 + bend * odds) ** 2
            return slope * self.density(sign, grown, grown) * self.gain(sign, grown)

        def left(odds: arb) -> arb:
            grown = grown_at(odds)
            return scale * odds * self.density(sign, least, grown) * self.most_gain(sign, grown)

        def right(odds: arb) -> arb:
            grown = grown_at(odds)
            if bend:
                return scale / odds * self.density(sign, grown, scale)
            # K R^((r-1)/2) / (scale G); R = 1/(2m + 2m E + E^2), times (1 + E)^2, or 1/(1 - rho^2), below A = 1
            most = self.density(sign, grown, grown) * self.spread(grown)
            if sign > 0 and not grown > self.m * (1 + grown):
                most = (self.log_front - (self.r - 1) * self.sine_squared.log() / 2).exp()
            return most / (scale * odds)

        return Line(value, left, right, partial(self.strip, 1 + bend))

    def strip(self, turns: int, nats: float) -> tuple[float, arb]:
        """Return the half width of a strip around the real line, and a bound ``M`` (C21).

        On every line in the strip, the integral of ``|F|`` is at most ``M``, where ``F`` is the integrand. ``nats`` is
        about ``ln(M/2)``.
        """
        # turns = 1 + bend
        power = arb(turns * (self.r + 1)) / 2
        angle = min(WIDEST_STRIP / turns, math.sqrt(2.0 * nats / float(turns**2 * self.k + power)))
        # M = 2 cos(turns angle)^-k cos(angle)^-(turns (r+1)/2)
        return angle, 2 * (-self.k * (turns * arb(angle)).cos().log() - power * arb(angle).cos().log()).exp()

    def spread(self, grown: arb) -> arb:
        # 2m + 2m E + E^2
        return 2 * self.m * (1 + grown) + grown * grown

    def density(self, sign: int, least: arb, most: arb) -> arb:
        """Return an upper bound of the density of ``E`` between ``least`` and ``most``.

        The ratio ``A`` is ``1/(1 + E)`` if ``sign`` is 1, and ``1 + E`` if ``sign`` is -1. If ``least`` equals
        ``most``, the result is the density.
        """
        # K (2m + 2m E + E^2)^-(r+1)/2, times (1 + E)^(r-1) below A = 1
        rise = (self.r - 1) * most.log1p() if sign > 0 else 0
        return (self.log_front + rise - self.spread(least).log() * (self.r + 1) / 2).exp()

    def gain(self, sign: int, grown: arb) -> arb:
        """Return a ball around ``g_-`` (``sign`` 1) or ``g_+`` (``sign`` -1) at ``E = grown``.

        These functions are differences of gamma tails, and factors of the integrand of delta.
        """
        # g_- for sign = 1, and g_+ for sign = -1:
        # Q(k, U2) - e^(eps - (r-1)x) Q(k, U2 e^x), U2 = (a x + eps)/E
        # P(k, U1) - e^(eps + (r-1)x) P(k, U1 e^-x), U1 e^-x = (a x - eps)/E
        x = grown.log1p()
        near = (self.a * x + sign * self.eps) / grown
        if sign > 0 and not near > 0:
            return arb(0).union(1)
        plain, tilted = (near, near + near * grown)[::sign]
        part = self.near.upper if sign > 0 else self.near.lower
        return part(plain) - (self.eps - sign * (self.r - 1) * x).exp() * part(tilted)

    def most_gain(self, sign: int, grown: arb) -> arb:
        """Return an upper bound of the result of :meth:`gain`."""
        # The smaller one of k E, and of Chernoff's bound of the first gamma tail
        near = (self.a * grown.log1p() + sign * self.eps) / grown
        threshold = near.lower() if sign > 0 else (near + near * grown).upper()
        tail = gamma.chernoff_bound(self.k, threshold) if sign * (threshold - self.k) > 0 else arb(1)
        return tail.min(self.k * grown)
