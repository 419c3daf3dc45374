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


BITS_IN_RUNS = 24
"""Relative accuracy sought at one knot of a run, in bits; the integrals reach about twice as many. Speed only."""


class BallWishartProfile(BallProfile):
    """The profile ``delta(eps) = E[max(0, 1 - e^(eps - L))]`` of the pair at misalignment ``m``, equal norms (C9)."""

    effort: int = 8

    def __init__(self, dim: int, rank: int, misalignment: float) -> None:
        self.dim, self.rank, self.misalignment = dim, rank, misalignment
        self._near = gamma.NearbyValues(arb(rank + dim - 1) / 2)
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
                ball = pair.delta()
            found = ball.lower(), ball.upper()
            self._known[float(eps.mid())] = eps, found
        return found


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
        self.c = r - 1
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

    def weight(self, x: acb, sign: int, analytic: bool) -> acb:
        """Return the weight of ``x`` below ``A = 1`` (``sign = 1``) or above it (-1), as an integrand."""
        # C e^(sign (r-1) x/2) (1 + u^2)^-(r+1)/2
        spread = 1 + 2 * (x / 2).sinh() ** 2 / self.m
        log_spread = spread.log(analytic=analytic)
        return (self.log_front + sign * (self.r - 1) * x / 2 - log_spread * (self.r + 1) / 2).exp()

    def part_below_one(self) -> arb:
        """Return the part of ``0 < A < 1``, in two pieces where ``U2`` changes its sign (``r > d + 1``)."""
        below, certain = self.gain(1), _BallGain(self.certain, self.certain)
        at_zero = bool(self.eps == 0)
        # U2 = 0 throughout at a = eps = 0
        if self.a > 0 or (self.a == 0 and not at_zero):
            return self.side(below, 1, arb(0))
        turn = arb(0) if at_zero else self.eps / -self.a
        beyond = self.side(certain, 1, turn)
        return beyond if at_zero else self.side(below, 1, arb(0), turn) + beyond

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
            away = t.exp()
            x = origin + away
            weight = away * self.weight(x, sign, analytic)
            if is_point(t) and is_sharp(x.real):
                return weight * gain.at(x.real, x.real.expm1())
            return weight * gain.around(x, analytic) if weight.is_finite() else UNDEFINED_BALL

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
            right=right,
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


def bernoulli_ratio(x: acb) -> acb:
    """Return a ball that holds ``B(x) = x / (e^x - 1)`` on a complex ball.

    Its slope is at most 1 for ``|x| <= 1`` (C21), so a small ball does not blow up.
    """
    if is_point(x) or not x.abs_upper() <= 1:
        return x / x.expm1()
    middle = acb(x.real.mid(), x.imag.mid())
    return middle / middle.expm1() + ball_of_size((x - middle).abs_upper())
