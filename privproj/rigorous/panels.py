"""Means of the Gaussian profile over a law of the squared shift, enclosed for many epsilons (C29, panels).

The range of ``X`` is cut into panels. On a panel with the centre ``c`` write ``X = c (1 + v)``, ``|v| <= rho``. The
moments ``E[v^n; panel]`` are computed once, in balls, from one incomplete Beta or Gamma function and a recurrence. The
Taylor series of ``h_eps`` in ``v`` has a recurrence too, and Cauchy's estimate bounds its rest. So ``E[h_eps(X);
panel]`` is a short sum for every epsilon.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise

from flint import arb, ctx

from privproj.laws.squared_shift import log_gaussian_delta_at
from privproj.rigorous import gaussian
from privproj.rigorous.balls import log_of_upper_end
from privproj.rigorous.laws import BallLaw

MOST_MOMENTS = 96
"""Moments of a panel that are used at most. Speed only."""

NEGLIGIBLE = 24.0
"""Minus the log of the part of a mean that the rest of a series or what is left out may be. Speed only."""

EVALUATION_BITS = 128
"""Working precision of the sums, in bits: a run asks for fewer. Speed only."""

GUARD_BITS = 1024
"""Bits of the moments beyond twice the working precision. Speed only."""

RADII = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Radii of Cauchy's estimate that are tried. Speed only."""


class _Panel:
    """The law on ``left < U <= right``, a part of a panel that ends at ``end``: its mass and its other moments."""

    def __init__(self, law: BallLaw, mass: arb, left: float, right: float, end: float) -> None:
        self.law, self.mass, self.left, self.right = law, mass, arb(left), arb(right)
        self.centre, self.rho = (self.left + end) / 2, (end - self.left) / (end + self.left)
        self._moments: list[arb] = []

    def moments(self, count: int, bits: int) -> list[arb]:
        """Return at least ``count`` moments, computed at a precision of so many bits and rounded to the working one."""
        if len(self._moments) < count:
            with ctx.workprec(bits):
                found = self.law.moments(self.mass, self.left, self.right, self.centre, count)
            self._moments = [+moment for moment in found]
        return self._moments


class PanelLaw:
    """The law of ``X = scale U`` in panels, for the working precision at which it is made.

    ``law`` is called at a higher one, which pays for what is cancelled in tails and in the recurrence of the moments.
    Results are balls that hold the exact values, whatever the precision.

    * ``edges``: where the panels end, doubles.
    * ``reach``: the last edge beyond which there is a mass worth its time.
    """

    def __init__(self, law: Callable[[], BallLaw]) -> None:
        self.bits = 2 * ctx.prec + GUARD_BITS
        least = arb(2) ** -ctx.prec
        with ctx.workprec(self.bits):
            self.law = law()
            self.scale, self.mean, self.supremum = self.law.scale, self.law.mean, self.law.supremum
            self.edges, self.masses = self._cut_range(least)
            above = [1 - mass for mass in self.masses]
            self.reach = max(edge for edge, tail in zip(self.edges, above, strict=True) if tail > least)
            parts = [b - a for a, b in pairwise(self.masses)]
            self.panels = [
                _Panel(self.law, mass, left, right, right)
                for mass, (left, right) in zip(parts, pairwise(self.edges), strict=True)
            ]
            self.log_below, self.log_above, self.log_mass = (
                [log_of_upper_end(x) for x in y] for y in (self.masses, above, parts)
            )

    def _cut_range(self, least: arb) -> tuple[list[float], list[arb]]:
        """Return the edges of the panels, up to tails of the mass ``least``, and the mass below each."""
        law, mean = self.law, float(self.mean / self.scale)
        # Half the width of a panel in units of its centre, at most. Speed only.
        half = min(0.08, 2.0 / math.sqrt(float(law.a)))
        ratio, top = (1.0 + half) / (1.0 - half), math.inf if self.supremum is None else 1.0
        edges = [mean]
        masses = [law.share_below(arb(mean))]
        # The first panel begins at this part of the mean, or where hardly any mass lies below. Speed only.
        while edges[0] > mean * 2.0**-28 and masses[0] > least:
            edges.insert(0, edges[0] / ratio)
            masses.insert(0, law.share_below(arb(edges[0])))
        while edges[-1] < top and 1 - masses[-1] > least:
            edges.append(min(edges[-1] * ratio, top))
            masses.append(law.share_below(arb(edges[-1])))
        return edges, masses

    def expected(self, eps: arb) -> arb:
        """Return a ball that holds ``E[h_eps(X)]``."""
        with ctx.workprec(EVALUATION_BITS):
            last = len(self.panels)
            first, floor = self._first_panel(eps, last, -math.inf)
            highest, log_highest = arb(1), 0.0
            if self.supremum is not None:
                highest = gaussian.delta(eps, self.supremum.sqrt())
                log_highest = log_gaussian_delta_at(float(eps.mid()), float(self.scale))
            while last > first + 1 and self.log_above[last - 1] + log_highest < floor:
                last -= 1
            # Above the last panel h lies between its value at the edge and the one at the supremum.
            total = self._height(eps, self.edges[last]).union(highest) * (1 - self.masses[last])
            return total + self._sum(eps, first, last, floor)

    def split(self, eps: arb, cut: float) -> tuple[arb, arb, arb]:
        """Return balls that hold ``E[h_eps(X); U <= cut]``, ``P(U > cut)`` and ``E[X | U > cut]``, ``cut <= reach``."""
        with ctx.workprec(self.bits):
            below = self.law.share_below(arb(cut))
            beyond = self.law.mean_above(arb(cut), 1 - below)
        with ctx.workprec(EVALUATION_BITS):
            if cut <= self.edges[0]:
                return arb(0).union(self._height(eps, cut)) * below, +(1 - below), +beyond
            last = bisect_left(self.edges, cut) - 1
            with ctx.workprec(self.bits):
                part = _Panel(self.law, below - self.masses[last], self.edges[last], cut, self.edges[last + 1])
            height = log_gaussian_delta_at(float(eps.mid()), float(self.scale) * self.edges[last])
            first, floor = self._first_panel(eps, last, log_of_upper_end(part.mass) + height)
            found = self._sum(eps, first, last, floor) + self._series(eps, part, floor)
            return found, +(1 - below), +beyond

    def _first_panel(self, eps: arb, last: int, best: float) -> tuple[int, float]:
        """Return the first panel before ``last`` that matters, and the log of what does not, both by the floats.

        ``best`` is the log of a part of the mean that is known.
        """
        at, x, first = float(eps.mid()), float(self.scale), last
        height = log_gaussian_delta_at(at, x * self.edges[last])
        while first > 0 and not self.log_below[first] + height < best - NEGLIGIBLE:
            first -= 1
            height = log_gaussian_delta_at(at, x * self.edges[first])
            best = max(best, self.log_mass[first] + height)
        return first, best - NEGLIGIBLE

    def _sum(self, eps: arb, first: int, last: int, floor: float) -> arb:
        """Return a ball that holds the mean below the panel ``last``, where ``0 <= h <= h(edge)`` below ``first``."""
        total = arb(0).union(self._height(eps, self.edges[first])) * self.masses[first]
        return sum((self._series(eps, panel, floor) for panel in self.panels[first:last]), total)

    def _height(self, eps: arb, u: float) -> arb:
        """Return ``h_eps`` at ``X = scale u``."""
        return gaussian.delta(eps, (self.scale * arb(u)).sqrt())

    def _series(self, eps: arb, panel: _Panel, floor: float) -> arb:
        """Return a ball that holds ``E[h_eps(X); panel]``, by its Taylor series in ``v``."""
        # F = dh/dv = F_0 (1+v)^(-1/2) e^(alpha + beta - alpha/(1+v) - beta (1+v))
        x = self.scale * panel.centre
        alpha, beta, front = eps * eps / (2 * x), x / 8, x * gaussian.slope(eps, x)
        share = floor - log_of_upper_end(front) - log_of_upper_end(panel.mass)
        count, radius = _choose_terms(float(alpha), float(beta), float(panel.rho), share)
        if count > MOST_MOMENTS:
            low, high = (gaussian.delta(eps, (self.scale * end).sqrt()) for end in (panel.left, panel.right))
            return low.union(high) * panel.mass
        moments = panel.moments(count, self.bits)
        shift, twice = alpha - beta - arb(0.5), 2 * beta + arb(0.5)
        total, before, last, now = arb(0), arb(0), arb(0), arb(1)
        for n in range(1, count):
            total += now * moments[n] / n
            # n F_n = (alpha - beta - 1/2 - 2 (n-1)) F_(n-1) - (2 beta + 1/2 + n - 2) F_(n-2) - beta F_(n-3)
            following = ((shift - 2 * (n - 1)) * now - (twice + (n - 2)) * last - beta * before) / n
            before, last, now = last, now, following
        # |F| <= F_0 size for |v| <= R, so the rest is at most F_0 size R (rho/R)^count / (count (1 - rho/R))
        part = panel.rho / radius
        rest = _size(alpha, beta, arb(radius)) * radius * part**count / (count * (1 - part)) * panel.mass
        return gaussian.delta(eps, x.sqrt()) * panel.mass + front * (total + arb(0, rest.abs_upper()))


def _size(alpha: arb, beta: arb, radius: arb) -> arb:
    """Return a bound of ``|F|/F_0`` on the disc ``|v| <= radius < 1``."""
    # Re 1/(1+v) >= 1/(1+R) and Re v >= -R; or -alpha/(1+v) - beta v = -alpha + (alpha - beta) v - alpha v^2/(1+v)
    one = alpha * radius / (1 + radius) + beta * radius
    two = abs(alpha - beta) * radius + alpha * radius * radius / (1 - radius)
    return one.min(two).exp() / (1 - radius).sqrt()


def _choose_terms(alpha: float, beta: float, rho: float, log_share: float) -> tuple[int, float]:
    """Return how many moments to use, and the radius of Cauchy's estimate, for a rest of ``e^log_share``."""
    best, at = math.inf, RADII[0]
    for radius in RADII:
        one = alpha * radius / (1.0 + radius) + beta * radius
        two = abs(alpha - beta) * radius + alpha * radius * radius / (1.0 - radius)
        count = (min(one, two) - log_share) / math.log(radius / rho) if radius > rho else math.inf
        if count < best:
            best, at = count, radius
    return max(2, math.ceil(min(best, MOST_MOMENTS + 1.0))), at
