"""The exact profile of the vector Wishart mechanism in balls, with equal norms (C9).

The same profile stands in floats in :mod:`privproj.laws.wishart_loss` and in mpmath in
``tests/reference/wishart.py``. With ``A = e^-+x`` and ``(1 + u^2) = 1 + 2 sinh^2(x/2)/m``,

    delta = P(A <= 0) + C int_0^inf (1 + u^2)^-(r+1)/2 [e^((r-1)x/2) g_-(x) + e^(-(r-1)x/2) g_+(x)] dx
    g_- = Q(k, U2) - e^(eps - (r-1)x) Q(k, U2 e^x),   U2 = (a x + eps)/(e^x - 1);    1 - e^(eps - (r-1)x) if U2 <= 0
    g_+ = P(k, U1) - e^(eps + (r-1)x) P(k, U1 e^-x),  U1 = (a x - eps)/(1 - e^-x);   0 if U1 <= 0

with ``C = c_r (1 - m/2)^(r/2) (2m)^(-1/2)``. Both ``g`` rise from 0 to at most 1 (C10, steps 1 and 2), which bounds
what lies beyond the window. Off the real line only sizes of ``P`` and ``Q`` are needed
(:func:`privproj.rigorous.gamma.tail_size`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from flint import acb, arb, ctx

from privproj.rigorous import gamma
from privproj.rigorous.balls import GOAL_BITS, UNDEFINED_BALL, ball_of_size, is_point, is_sharp
from privproj.rigorous.integral import Integrand, positive_integral
from privproj.rigorous.profiles import BallProfile, Witness


class _BallGain(NamedTuple):
    """A gain ``g(x)`` at a real point, from ``x`` and ``e^x - 1``, and around one on the complex plane."""

    at: Callable[[arb, arb], arb]
    """A ball that holds ``g`` at a real point."""

    around: Integrand
    """Balls that hold ``g`` on a complex ball, of which only the size matters."""


BITS_IN_RUNS = 16
"""Relative accuracy sought at one knot of a run, in bits; the integrals reach about twice as many. Speed only."""


_ONE = _BallGain(lambda x, grown: arb(1), lambda x, analytic: acb(1))
"""The gain 1."""

WIDEST_PANEL = 0.5
"""Width of the widest shared panels in ``ln x``. Speed only."""

PANEL_NODES = 16
"""Nodes of a shared panel. Speed only."""

ELLIPSE = 3.0
"""Sum of the semi-axes of the ellipse around a shared panel, in half widths. Speed only."""

MOST_PANELS = 400
"""Panels of one integral after which it is computed alone. Speed only."""

NEGLIGIBLE_PART = 2.0**-48
"""Panels below this part of the largest are bounded by their largest gain. Speed only."""

LARGEST_PANEL_ERROR = 2.0**-42
"""Error of a panel, as a part of the largest one, for which it is not halved. Speed only."""


class BallWishartProfile(BallProfile):
    """The profile ``delta(eps) = E[max(0, 1 - e^(eps - L))]`` of the pair at misalignment ``m``, equal norms (C9)."""

    effort: int = 8

    def __init__(self, dim: int, rank: int, misalignment: float) -> None:
        self.dim, self.rank, self.misalignment = dim, rank, misalignment
        self._near = gamma.NearbyValues(arb(rank + dim - 1) / 2)
        self._shared: _SharedPanels | None = None
        self._known: dict[float, tuple[arb, tuple[arb, arb]]] = {}

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return the integral over both sides of ``A = 1`` and ``P(A <= 0)``; the witness is empty."""
        return _RatioPair(self.dim, self.rank, arb(self.misalignment), eps, GOAL_BITS).delta()

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return both ends of the same integrals, to fewer bits; what was found for a ball around ``eps`` serves."""
        around, found = self._known.get(float(eps.mid()), (None, None))
        if found is None or around is None or not around.contains(eps):
            # Bits of the working precision beyond those that are sought. Speed only.
            with ctx.workprec(BITS_IN_RUNS + 64):
                pair = _RatioPair(self.dim, self.rank, arb(self.misalignment), eps, BITS_IN_RUNS, self._near)
                ball = self._by_shared_panels(pair)
                # Bits that shared nodes must be right to; else an integral is computed alone. Speed only.
                if not (ball.is_finite() and ball.rel_accuracy_bits() >= 26):
                    ball = pair.delta()
            found = ball.lower(), ball.upper()
            self._known[float(eps.mid())] = eps, found
        return found

    def _by_shared_panels(self, pair: "_RatioPair") -> arb:
        """Return a ball that holds the delta of the pair, by nodes shared over epsilons; undefined for small shapes."""
        if not (pair.a > 0 and pair.k > gamma.LEAST_SHAPE):
            return arb.nan()
        if self._shared is None:
            self._shared = _SharedPanels(pair)
        return self._shared.delta(pair)


class _RatioPair:
    """One pair at one epsilon, with ``k = (r + d - 1)/2`` and ``a = (d + 1 - r)/2``; results are balls."""

    def __init__(
        self, dim: int, rank: int, misalignment: arb, eps: arb, goal: int, near: gamma.NearbyValues | None = None
    ) -> None:
        self.r, self.m, self.eps, self.goal = rank, misalignment, eps, goal
        self.k, self.a = arb(rank + dim - 1) / 2, arb(dim + 1 - rank) / 2
        self.lower = partial(gamma.lower, self.k) if near is None else near.lower
        self.upper = partial(gamma.upper, self.k) if near is None else near.upper
        r = arb(rank)
        self.log_c = ((r + 1) / 2).lgamma() - (r / 2).lgamma() - arb.pi().log() / 2
        self.twice_m, self.decay, self.c = 2 * self.m, (r + 1) / 2, r - 1
        self.tilts = {1: self.c / 2, -1: -self.c / 2}
        self.log_front = self.log_c + (r / 2) * (-self.m / 2).log1p() - (2 * self.m).log() / 2

    def delta(self) -> arb:
        """Return the delta of the pair."""
        known = self.floor() + self.part_below_one()
        return known + self.part_above_one(known)

    def floor(self) -> arb:
        """Return ``P(A <= 0)``, the probability that the loss is infinite."""
        # P(A <= 0) = c_r int_0^theta sin^(r-1), sin theta = sqrt(m (2 - m)), and 1 less that for m > 1
        sine = (self.m * (2 - self.m)).sqrt()
        theta = sine.asin() if sine < 1 else arb.pi() / 2
        scale = sine ** (self.r - 1)
        tolerance = arb(2) ** -100
        part = acb.integral(lambda t, _: t.sin() ** (self.r - 1) / scale, 0, theta, rel_tol=tolerance).real
        below = self.log_c.exp() * scale * part
        return below if self.m <= 1 else 1 - below

    def weighted_at(self, t: arb, x: arb, sign: int, gain: _BallGain) -> arb:
        """Return ``e^t`` times :meth:`weight` times the gain, at a real point."""
        # C e^(t + sign (r-1) x/2) (1 + u^2)^-(r+1)/2, u^2 = 2 sinh^2(x/2)/m = (e^x - 1)^2 / (2 m e^x)
        grown = x.expm1()
        log_spread = (grown * grown / (self.twice_m + self.twice_m * grown)).log1p()
        exponent = self.log_front + t + self.tilts[sign] * x - self.decay * log_spread
        return exponent.exp() * gain.at(x, grown)

    def weight(self, x: acb, sign: int, analytic: bool) -> acb:
        """Return the weight of ``x`` below ``A = 1`` (``sign = 1``) or above it (-1), as an integrand."""
        # C e^(sign (r-1) x/2) (1 + u^2)^-(r+1)/2
        spread = 1 + 2 * (x / 2).sinh() ** 2 / self.m
        log_spread = spread.log(analytic=analytic)
        return (self.log_front + sign * (self.r - 1) * x / 2 - log_spread * (self.r + 1) / 2).exp()

    def part_below_one(self) -> arb:
        """Return the part of ``0 < A < 1``, in two pieces where ``U2`` changes its sign (``r > d + 1``)."""
        below, certain = self.gain(1), _BallGain(self.certain, self.certain)
        if not self.a < 0:
            return self.side(below, 1, arb(0))
        turn = self.eps / -self.a
        beyond = self.side(certain, 1, turn)
        return beyond if self.eps == 0 else self.side(below, 1, arb(0), turn) + beyond

    def part_above_one(self, known: arb) -> arb:
        """Return the part of ``A > 1``; ``known`` is the sum of the other parts.

        There is nothing unless ``a > 0``, and then only ``x > eps/a``.
        """
        if not self.a > 0:
            return arb(0)
        return self.side(self.gain(-1), -1, self.eps / self.a, known=known)

    def gain(self, sign: int) -> _BallGain:
        """Return ``g_-`` (``sign = 1``) or ``g_+`` (-1)."""
        return _BallGain(partial(self.at, sign), partial(self.around, sign))

    def side(self, gain: _BallGain, sign: int, origin: arb, end: arb | None = None, known: arb | None = None) -> arb:
        """Return ``int weight gain dx`` for ``x`` from ``origin`` (to ``end``), over ``t = ln(x - origin)``."""

        def integrand(t: acb, analytic: bool) -> acb:
            if is_point(t):
                x = origin + t.real.exp()
                if is_sharp(x):
                    return acb(self.weighted_at(t.real, x, sign, gain))
            away = t.exp()
            x = origin + away
            weight = self.weight(x, sign, analytic)
            return weight * away * gain.around(x, analytic) if weight.is_finite() else UNDEFINED_BALL

        def left(t: arb) -> arb:
            away = t.exp()
            x = origin + away
            most = self.log_front.exp() * ((self.r - 1) * x / 2).exp() if sign > 0 else self.log_front.exp()
            return away * most * gain.at(x, x.expm1())

        def right(t: arb) -> arb:
            return self.beyond(origin + t.exp(), sign)

        start = float((self.m / self.r).sqrt().log()) if origin == 0 else float(origin.log())
        high = None if end is None else (end - origin).log()
        return positive_integral(
            integrand,
            start,
            1.0,
            left=left,
            right=right if end is None else None,
            high=high,
            known=known,
            goal=self.goal,
        )

    def beyond(self, x: arb, sign: int) -> arb:
        """Return an upper bound of ``P(ln A < -x, A > 0)`` (``sign = 1``) or of ``P(ln A > x)`` (C21)."""
        # c_r (m (2-m))^(r/2) e^(-decay x) (1 - e^-x)^-(r+1) / decay, as 4 sinh^2(x/2) >= e^x (1 - e^-x)^2 (C21)
        log_c = self.log_c + arb(self.r) / 2 * (self.m * (2 - self.m)).log()
        decay = arb(1) if sign > 0 else arb(self.r)
        return (log_c - decay * x - (self.r + 1) * (-(-x).expm1()).log()).exp() / decay

    def at(self, sign: int, x: arb, grown: arb) -> arb:
        """Return ``g_-`` (``sign = 1``) or ``g_+`` (-1) at a real point where its threshold is positive."""
        # Q(k, U2) - e^(eps - (r-1)x) Q(k, U2 e^x), U2 = (a x + eps)/(e^x - 1)
        # P(k, U1) - e^(eps + (r-1)x) P(k, U1 e^-x), U1 e^-x = (a x - eps)/(e^x - 1)
        near = (self.a * x + sign * self.eps) / grown
        if sign > 0 and not near > 0:
            return arb(0).union(1)
        plain, tilted = (near, near + near * grown)[::sign]
        part = self.upper if sign > 0 else self.lower
        return part(plain) - (self.eps - sign * self.c * x).exp() * part(tilted)

    def around(self, sign: int, x: acb, analytic: bool) -> acb:
        """Return ``g_-`` or ``g_+`` where its threshold is positive, as an integrand."""
        # |Q(k, U2)| + |e^(eps - (r-1)x)| |Q(k, U2 e^x)|, U2 = a B(x) + eps/(e^x - 1)
        # |P(k, U1)| + |e^(eps + (r-1)x)| |P(k, U1 e^-x)|, U1 = a B(-x) + eps/(e^-x - 1)
        threshold = self.a * bernoulli_ratio(sign * x) + self.eps / (sign * x).expm1()
        moved = threshold * (sign * x).exp()
        if not (threshold.real > 0 and moved.real > 0):
            return UNDEFINED_BALL if analytic else acb(arb(0).union(1))
        tilt = (self.eps - sign * self.c * x.real).exp()
        return ball_of_size(gamma.tail_size(self.k, threshold, sign) + tilt * gamma.tail_size(self.k, moved, sign))

    def certain(self, x: Any, _: object) -> Any:
        """Return ``g_- = 1 - e^(eps - (r-1)x)`` where ``U2 <= 0``, at a real point or as an integrand."""
        return -(self.eps - (self.r - 1) * x).expm1()


class _SharedPanels:
    """The integrals of one pair at many epsilons by Gauss rules at the same nodes.

    Sharing is sound: epsilon enters the gains alone. The nodes, the weights of the density there, its bounds on the
    ellipses around panels, and the functions of ``x`` that thresholds are made of are balls that hold numbers of ``x``
    and ``m`` alone. So they hold for every epsilon, and each epsilon makes its own enclosure of them: the rule on a
    panel with its proved error (C20, Gauss rules), or what the largest gain of the panel bounds.
    """

    def __init__(self, pair: "_RatioPair") -> None:
        self.floor, self.left = pair.floor(), MOST_PANELS
        self.panels: dict[tuple[int, int], _SharedPanel] = {}

    def delta(self, pair: "_RatioPair") -> arb:
        """Return a ball that holds the delta of the pair, which differs from the others in epsilon alone."""
        growth = pair.eps.exp()
        found = self.floor
        for sign in (1, -1):
            found = found + self.side(pair, growth, sign, found)
        return found

    def side(self, pair: "_RatioPair", growth: arb, sign: int, known: arb) -> arb:
        """Return a ball that holds the part below ``A = 1`` (``sign = 1``) or above it (-1)."""
        first = math.floor(math.log(float(pair.m) / pair.r) / 2 / WIDEST_PANEL)
        if sign < 0:
            first = max(
                first, math.floor(math.log(float(pair.eps) / float(pair.a)) / WIDEST_PANEL) if pair.eps > 0 else first
            )
        # [0, bound] for panels that do not matter, from the middle of the hill to both sides
        rest, kept, top = arb(0), [], known.lower()
        for step in (1, -1):
            number = first if step > 0 else first - 1
            for _ in range(MOST_PANELS):
                panel = self.panel(pair, number, 0)
                most = panel.largest(pair, growth, sign)
                top = top.max(most)
                if most < top * NEGLIGIBLE_PART:
                    rest += most
                else:
                    kept.append(panel)
                outside = pair.beyond(panel.end[1], sign).upper() if step > 0 else panel.bound_below(pair, growth, sign)
                number += step
                if outside < top * NEGLIGIBLE_PART:
                    rest += outside
                    break
            else:
                return arb.nan()
        enough, self.left = top * LARGEST_PANEL_ERROR, MOST_PANELS
        found = sum((self.part(pair, growth, sign, panel, enough) for panel in kept), arb(0))
        return found + arb(0).union(rest)

    def part(self, pair: "_RatioPair", growth: arb, sign: int, panel: "_SharedPanel", enough: arb) -> arb:
        """Return a ball that holds the integral over a panel: the rule where its error is ``enough``, else halves.

        It is undefined after :data:`MOST_PANELS` panels.
        """
        self.left -= 1
        if self.left < 0:
            return arb.nan()
        missed = panel.error(pair, growth, sign)
        if missed < enough:
            return panel.rule(pair, growth, sign) + arb(0, missed.upper())
        most = panel.largest(pair, growth, sign)
        # How often a panel is halved. Speed only.
        if most < enough or panel.depth >= 24:
            return arb(0).union(most)
        halves = (self.panel(pair, 2 * panel.number + i, panel.depth + 1) for i in (0, 1))
        return sum((self.part(pair, growth, sign, half, enough) for half in halves), arb(0))

    def panel(self, pair: "_RatioPair", number: int, depth: int) -> "_SharedPanel":
        """Return a panel, which is made when it is first asked for."""
        if (number, depth) not in self.panels:
            self.panels[number, depth] = _SharedPanel(pair, number, depth)
        return self.panels[number, depth]


class _SharedPanel:
    """A panel ``[number, number + 1] 2^-depth`` times :data:`WIDEST_PANEL` in ``ln x``, with what is so at any epsilon.

    The integrand over ``t`` is ``weight(x) x g(x)``. With ``N = 1/(e^x - 1)`` and ``B = x N``

        U2 = a B + eps N,  U2 e^x = a (x + B) + eps (1 + N),  U1 = U2 e^x with -eps for eps,  U1 e^-x likewise
    """

    def __init__(self, pair: "_RatioPair", number: int, depth: int) -> None:
        self.number, self.depth = number, depth
        width = arb(WIDEST_PANEL) / 2**depth
        self.low, self.high, self.width = number * width, (number + 1) * width, width
        self.end = (number * width).exp(), self.high.exp()
        self.ends = [self._place(pair, x) for x in self.end]
        middle, half, rho = self.low + width / 2, width / 2, arb(ELLIPSE)
        box = acb(middle + half * (rho + 1 / rho) / 2 * arb(0, 1), half * (rho - 1 / rho) / 2 * arb(0, 1))
        x = box.exp()
        n = 1 / x.expm1()
        b = pair.a * bernoulli_ratio(x)
        self.off_line = b, n, b + pair.a * x, 1 + n
        self.tilt = {1: (-pair.c * x.real).exp().upper(), -1: (pair.c * x.real).exp().upper()}
        # Both factors of the weight are monotone on the real line, and 1 + u^2 rises
        least = (self.ends[0][2] - 1) ** 2 / (pair.twice_m * self.ends[0][2])
        front = pair.log_front - pair.decay * least.log1p()
        self.most = {sign: self.end[1] * (front + pair.tilts[sign] * self.end[int(sign > 0)]).exp() for sign in (1, -1)}
        # The largest |weight x| on the ellipse
        self.size = {sign: (pair.weight(x, sign, True) * x).abs_upper() for sign in (1, -1)}
        self._nodes: dict[int, list[tuple[arb, arb, arb, arb, arb]]] = {}

    @staticmethod
    def _place(pair: "_RatioPair", x: arb) -> tuple[arb, arb, arb]:
        """Return ``a B``, ``N`` and ``e^x`` at a real point."""
        grown = x.expm1()
        return pair.a * x / grown, 1 / grown, 1 + grown

    def nodes(self, pair: "_RatioPair", sign: int) -> list[tuple[arb, arb, arb, arb, arb]]:
        """Return for each node ``a B``, ``N``, ``e^x``, its whole weight, and that times ``e^(-sign (r-1) x)``."""
        if sign not in self._nodes:
            found = []
            for i in range(PANEL_NODES):
                place, share = arb.legendre_p_root(PANEL_NODES, i, weight=True)
                t = self.low + self.width * (1 + place) / 2
                x = t.exp()
                weight = self.width / 2 * share * pair.weighted_at(t, x, sign, _ONE)
                found.append((*self._place(pair, x), weight, weight * (-sign * pair.c * x).exp()))
            self._nodes[sign] = found
        return self._nodes[sign]

    def rule(self, pair: "_RatioPair", growth: arb, sign: int) -> arb:
        """Return the Gauss rule on the panel."""
        total = arb(0)
        part, eps = (pair.upper, pair.eps) if sign > 0 else (pair.lower, -pair.eps)
        for b, n, grown, weight, tilt in self.nodes(pair, sign):
            near = b + eps * n
            plain, tilted = (near, near * grown)[::sign]
            total += weight * part(plain) - growth * tilt * part(tilted)
        return total

    def gain_at_end(self, pair: "_RatioPair", growth: arb, sign: int, end: int) -> arb:
        """Return the gain at the lower (0) or the upper end (1) of the panel."""
        return pair.at(sign, self.end[end], self.ends[end][2] - 1)

    def largest(self, pair: "_RatioPair", growth: arb, sign: int) -> arb:
        """Return an upper bound of the integral over the panel, as the gain rises with ``x``."""
        return (self.width * self.most[sign] * self.gain_at_end(pair, growth, sign, 1)).upper()

    def bound_below(self, pair: "_RatioPair", growth: arb, sign: int) -> arb:
        """Return an upper bound of the integral below the panel."""
        most = pair.log_front + pair.tilts[sign].max(arb(0)) * self.end[0]
        return (self.end[0] * most.exp() * self.gain_at_end(pair, growth, sign, 0)).upper()

    def error(self, pair: "_RatioPair", growth: arb, sign: int) -> arb:
        """Return a bound of the error of the Gauss rule; not finite where none is known."""
        b, n, far, more = self.off_line
        eps = sign * pair.eps
        near, away = b + eps * n, far + eps * more
        if not (near.real > 0 and away.real > 0 and self.size[sign].is_finite()):
            return arb("inf")
        plain, tilted = (near, away)[::sign]
        gain = gamma.tail_size(pair.k, plain, sign) + growth * self.tilt[sign] * gamma.tail_size(pair.k, tilted, sign)
        # 2.1 h M rho^-2n / (1 - rho^-2) (C20, Gauss rules)
        rho = arb(ELLIPSE)
        return arb(21) / 10 * self.width * self.size[sign] * gain * rho ** (-2 * PANEL_NODES) / (1 - rho**-2)


def bernoulli_ratio(x: acb) -> acb:
    """Return a ball that holds ``B(x) = x / (e^x - 1)`` on a complex ball.

    Its slope is at most 1 for ``|x| <= 1`` (C21), so a small ball does not blow up.
    """
    if is_point(x) or not x.abs_upper() <= 1:
        return x / x.expm1()
    middle = acb(x.real.mid(), x.imag.mid())
    return middle / middle.expm1() + ball_of_size((x - middle).abs_upper())
