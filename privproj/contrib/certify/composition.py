"""Enclose the delta of a run in ball arithmetic (C29: a whole run in balls).

This module follows the proof of claim C29 in ``PROOF.md`` of this folder step by step. Let ``H(t)`` be the privacy
profile of one release in one direction at ``t = e^eps``, and ``E(t) = H(t) - max(0, 1 - t)`` its excess. Privacy losses
are discretized on a grid with the spacing ``h``. The point ``j h`` of this grid is called the cell ``j``. A knot is a
cell with known bounds of the profile at ``t = e^(j h)``. Pairs of distributions on the grid bound a release from above
and from below. The distribution of the sum of the losses is evaluated on a window of cells. Every grid gives a sound
enclosure, and only determines how narrow it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from flint import acb, arb, ctx

from privproj.contrib.certify.profiles import BallProfile

Ends = tuple[arb, arb]  # a lower and an upper bound of one number


class Releases:
    """Identical releases of a run, with bounds of the privacy profile of one release."""

    steps: int  # number of releases

    one_sided: bool  # True if both directions must be composed

    def excess(self, cell: int, h: arb) -> Ends:
        """Return bounds of the profile of a release minus ``max(0, 1 - e^eps)``.

        The profile is in the remove direction, at an epsilon of ``cell`` times the grid spacing ``h``. An unknown
        lower bound is 0.
        """
        # If both directions are equal, this method is only called for cells of at least 0.
        raise NotImplementedError


@dataclass(frozen=True)
class BallPhase(Releases):
    """Releases with the same profile, on the whole dataset or on sampled batches."""

    profile: BallProfile
    steps: int
    # The sampling rate, 1 for the whole dataset
    rate: float = 1.0
    # True for Poisson sampling; at other rates below 1, batches have a fixed size, and both directions are equal
    one_sided: bool = False

    def excess(self, cell: int, h: arb) -> Ends:
        """Return bounds of the profile of a release minus ``max(0, 1 - e^eps)`` (C17).

        The profile is in the remove direction, at an epsilon of ``cell`` times the grid spacing ``h``.
        """
        q = arb(self.rate)
        # tau = (t - 1)/q:  E = q delta(ln(1 + tau)), tau >= 0;  q (1 + tau) delta(-ln(1 + tau)), -1 < tau < 0;  else 0
        share = 1 + (cell * h).expm1() / q
        if cell >= 0:
            return _scale(self.profile.ends(share.log().max(arb(0))), q)
        if share > 0:
            return _scale(self.profile.ends((-share.log()).max(arb(0))), q * share)
        return arb(0), q * share.max(arb(0))


@dataclass(frozen=True)
class BallGroup(Releases):
    """Poisson-sampled Gaussian steps for a user with ``size`` records (C37)."""

    noise_multiplier: float
    steps: int
    rate: float
    size: int
    one_sided: bool = True

    def excess(self, cell: int, h: arb) -> Ends:
        """Return bounds of the profile of a training step minus ``max(0, 1 - e^eps)``.

        The profile is in the remove direction, at an epsilon of ``cell`` times the grid spacing ``h``.
        """
        # Each record of the user is sampled independently. In the worst case, j sampled records shift the sum by j mu
        # standard deviations of the noise.
        # The bounds use the event A = {X > x} of the noisy sum X, whose likelihood ratio at x is r. With the user its
        # distribution is P, and P_0 without. P(A) - t P_0(A) <= H <= P(A) - r P_0(A) + max(0, r - t) for every x.
        t, mu, q = (cell * h).exp(), 1 / arb(self.noise_multiplier), arb(self.rate)
        weights = [arb(math.comb(self.size, j)) * q**j * (1 - q) ** (self.size - j) for j in range(self.size + 1)]
        if not t > weights[0]:
            return arb(0), arb(0) if t <= weights[0] else t
        x = self._threshold(weights, t, mu)
        half = arb(2).rsqrt()
        tails = [((x - j * mu) * half).erfc() / 2 for j in range(self.size + 1)]
        weighted_ratios = [w * (j * mu * (x - j * mu / 2)).exp() for j, w in enumerate(weights)]
        # sum_(j >= 1) w_j [P_j(A) - r_j P_0(A)] = sum_(j >= 1) w_j D_j(ln r_j), r_j the likelihood ratio at x
        gain = (
            sum((w * p for w, p in zip(weights[1:], tails[1:], strict=True)), arb(0))
            - sum(weighted_ratios[1:], arb(0)) * tails[0]
        )
        over = sum(weighted_ratios, arb(0)) - t
        if not over < weights[0]:  # the weights of j >= 1 already exceed t
            return arb(0), t
        # H >= P(A) - t P_0(A);  H <= the sum + (w_0 - t + sum_(j >= 1) w_j r_j)_+
        plain = (1 - t) if cell < 0 else arb(0)
        return gain + over * tails[0] - plain, gain + over.max(arb(0)) - plain

    def _threshold(self, weights: list[arb], t: arb, mu: arb) -> arb:
        """Return an approximate noisy sum at which the likelihood ratio of a step is ``t``.

        ``weights`` has the probabilities that 0, 1, ... records of the user are sampled.
        """
        # Newton's method for sum_j w_j r_j(x) = t, where r_j(x) is the likelihood ratio for j sampled records
        goal = (t - weights[0]).log()
        x = arb(min(float((goal - w.log()) / (j * mu) + j * mu / 2) for j, w in enumerate(weights) if j))
        for _ in range(60):
            parts = [w * (j * mu * (x - j * mu / 2)).exp() for j, w in enumerate(weights) if j]
            total = sum(parts, arb(0))
            slope = sum((j * mu * part for j, part in enumerate(parts, start=1)), arb(0)) / total
            step = (total.log() - goal) / slope
            x = (x - step).mid()
            if not abs(step) > arb(2) ** (-ctx.prec // 2):
                break
        return x


def _scale(ends: Ends, factor: arb) -> Ends:
    return ends[0] * factor, ends[1] * factor


@dataclass(frozen=True)
class Window:
    """The grid cells on which the distribution of a sum of losses is computed.

    ``first`` is the first cell. ``right`` and ``left`` are positive orders of Chernoff's bounds for the mass outside.
    """

    first: int
    size: int
    # Every order gives a sound bound.
    right: float
    left: float


@dataclass(frozen=True)
class Grid:
    """The discretization of privacy losses for composing a run in ball arithmetic.

    Attributes:
        step: The spacing of the grid, in nats.
        knots: For each phase the losses, in grid steps, at which its profile is evaluated. They increase and include 0.
        windows: The cells on which the sum of losses is computed, in the remove direction and in the add direction.
    """

    step: float
    knots: tuple[tuple[int, ...], ...]
    windows: tuple[Window, ...]


@dataclass(frozen=True)
class Knot:
    """Bounds ``low`` and ``high`` of the profile of a release at ``t = e^eps``.

    ``cell`` is the index of ``t`` on a grid.
    """

    cell: int
    t: arb
    low: arb
    high: arb


@dataclass(frozen=True)
class BallPair:
    """A discrete pair of distributions that bounds a release from above or from below.

    Attributes:
        cells: The privacy losses, in grid steps.
        masses: The masses of the first distribution at these losses.
        rest: For a bound from above, the mass at an infinite loss. For a bound from below, the largest amount by which
            the profile of the pair exceeds the profile of the release.
    """

    cells: tuple[int, ...]
    # The second distribution has the mass p / t where the first one has the mass p at the loss ln t.
    masses: tuple[arb, ...]
    rest: arb


def _knot(cell: int, excess: Ends, h: arb) -> Knot:
    """Return bounds of the profile of a release at the epsilon of a cell.

    The epsilon is ``cell`` times the grid spacing ``h``. ``excess`` has bounds of the profile minus
    ``max(0, 1 - e^eps)``.
    """
    t = (cell * h).exp()
    plain = (-(cell * h).expm1()) if cell < 0 else arb(0)
    low, high = (excess[0].max(arb(0)) + plain).lower(), (excess[1] + plain).min(arb(1)).upper()
    return Knot(cell, t, _or_else(low, 0), _or_else(high, 1))


def _excesses_at(phase: Releases, cells: Sequence[int], h: arb) -> list[tuple[int, Ends]]:
    """Return each cell with bounds of the profile of a release minus ``max(0, 1 - e^eps)``.

    The profile is in the remove direction, at an epsilon of ``cell`` times the grid spacing ``h``.
    """
    if phase.one_sided:
        return [(cell, phase.excess(cell, h)) for cell in cells]
    right = {cell: phase.excess(cell, h) for cell in {abs(cell) for cell in cells}}
    # E(t) = t E(1/t)
    return [(cell, right[cell] if cell >= 0 else _scale(right[-cell], (cell * h).exp())) for cell in cells]


def _reflect(excesses: Sequence[tuple[int, Ends]], h: arb) -> list[Knot]:
    """Convert bounds of the profile from the remove to the add direction (C1).

    ``excesses`` has, for each cell, bounds of the profile in the remove direction minus ``max(0, 1 - e^eps)``. The
    epsilon of a cell is its number times the grid spacing ``h``.
    """
    return [_knot(-cell, _scale(ends, (-cell * h).exp()), h) for cell, ends in reversed(excesses)]


def pair_above(knots: Sequence[Knot]) -> BallPair:
    """Return a pair that dominates every release with these bounds on its profile (C29)."""
    # H is convex, so the lower convex hull of (0, 1) and the upper bounds at the knots is above H. Except for rounding,
    # the hull is the profile of a pair. The largest deficit at a corner is added to the mass at infinity.
    falling = accumulate((knot.high for knot in knots), lambda x, y: x.min(y).upper())
    points = [(knot.cell, knot.t, value) for knot, value in zip(knots, falling, strict=True)]
    hull = _lower_hull([(points[0][0] - 1, arb(0), arb(1)), *points])[1:]
    cells, masses = _masses_of_kinks(hull)
    infinite = hull[-1][2]
    profile = _profile_of_masses(hull, masses, hull)
    # v_k <= m + sum_(j > k) p_j (1 - t_k/t_j) at every corner k, and 1 <= m + sum_j p_j
    lack = arb(0).max(1 - sum(masses, arb(0)) - infinite)
    for (_, _, least), value in zip(hull, profile, strict=True):
        lack = lack.max(least - value - infinite)
    return BallPair(cells, masses, (infinite + lack).upper())


def pair_below(knots: Sequence[Knot]) -> BallPair | None:
    """Return a pair that every release with these bounds on its profile nearly dominates.

    The profile of the pair exceeds the profile of the release by at most the ``rest`` of the pair (C29). The result is
    None if the lower bounds are too weak.
    """
    zero = next(i for i, knot in enumerate(knots) if knot.cell == 0)
    centred = knots[zero % 2 :]
    points = _segments_below(centred[: len(centred) - (len(centred) + 1) % 2])
    if points is None:
        return None
    hull = _lower_hull(points)
    cells, masses = _masses_of_kinks(hull, start=True)
    profile = _profile_of_masses(hull, masses, points)
    # sum_(j > k) p_j (1 - t_k/t_j) <= w_k + rest for every k, and sum_j p_j <= 1 + rest
    excess = (sum(masses, arb(0)) - 1).max(arb(0))
    for (_, _, most), value in zip(points, profile, strict=True):
        excess = excess.max(value - most)
    return BallPair(cells, masses, excess.upper())


Point = tuple[int, arb, arb]  # a cell, its t, and the exact value of a polygon there


def _segments_below(knots: Sequence[Knot]) -> list[Point] | None:
    """Return the corners of a polygon below the profile of a release.

    The result is None if no polygon exceeds ``max(0, 1 - e^eps)`` on both sides of ``eps = 0``.
    """
    # H is convex. So the line through high at knot i and low at i+1 is below H from i+1 to i+2, and the line through
    # high at i+2 and low at i+1 is below H from i to i+1. A segment connects the ends of both lines at i+2 and i.
    corners = knots[::2]
    plain = [(1 - knot.t) if knot.cell < 0 else arb(0) for knot in corners]
    zero = next(i for i, knot in enumerate(corners) if knot.cell == 0)
    ends, good = [], []
    for k, (one, two, three) in enumerate(zip(corners, knots[1::2], corners[1:], strict=False)):
        ratio = (two.t - one.t) / (three.t - two.t)
        # Through low at i+1 and high at i+2, at t_i; and through high at i and low at i+1, at t_(i+2).
        left, right = two.low - ratio * (three.high - two.low), two.low - (one.high - two.low) / ratio
        ends.append((left, right))
        good.append(bool(left > plain[k]) and bool(right > plain[k + 1]))
    first, last = zero, zero
    while first > 0 and good[first - 1]:
        first -= 1
    while last < len(good) and good[last]:
        last += 1
    if not first < zero < last:
        return None
    # At a common end of two segments the lower value is used, at both ends of the polygon max(0, 1 - t), which is
    # lower.
    values = [ends[i - 1][1].min(ends[i][0]) for i in range(first + 1, last)]
    values = [plain[first], *values, plain[last]]
    return [(knot.cell, knot.t, value.lower()) for knot, value in zip(corners[first : last + 1], values, strict=True)]


def _lower_hull(points: Sequence[Point]) -> list[Point]:
    """Return the corners of the lower convex hull of points in the plane."""
    hull: list[Point] = []
    for point in points:
        while len(hull) > 1:
            (_, t, value), (_, next_t, next_value), (_, last_t, last_value) = hull[-2], hull[-1], point
            # Keep the middle point if the polygon through these three points is certainly convex there.
            if (next_value - value) * (last_t - next_t) < (last_value - next_value) * (next_t - t):
                break
            hull.pop()
        hull.append(point)
    return hull


def _masses_of_kinks(hull: Sequence[Point], *, start: bool = False) -> tuple[tuple[int, ...], tuple[arb, ...]]:
    """Return the distribution of privacy losses whose profile is a convex polygon.

    The results are the cells of the corners of ``hull``, and the masses of the losses there. Left of the first
    corner, the profile is ``1 - e^eps`` if ``start``, and otherwise a line from the value 1 at ``e^eps = 0``.
    """
    # A mass is t times the change of slope at the corner t. The polygon is constant right of the last corner.
    slopes = [arb(-1) if start else (hull[0][2] - 1) / hull[0][1]]
    slopes += [(b[2] - a[2]) / (b[1] - a[1]) for a, b in pairwise(hull)]
    slopes.append(arb(0))
    masses = tuple(
        (point[1] * (after - before)).max(arb(0)).mid()
        for point, before, after in zip(hull, slopes, slopes[1:], strict=False)
    )
    return tuple(cell for cell, _, _ in hull), masses


def _profile_of_masses(hull: Sequence[Point], masses: Sequence[arb], places: Sequence[Point]) -> list[arb]:
    """Return the privacy profile of a discrete distribution of losses at ``places``.

    The distribution has the ``masses`` at the corners of ``hull``.
    """
    # sum of p_j (1 - t / t_j) over the corners t_j > t
    values, k, mass, weight = [], len(hull), arb(0), arb(0)
    for cell, t, _ in reversed(places):
        while k > 0 and hull[k - 1][0] > cell:
            k -= 1
            mass, weight = mass + masses[k], weight + masses[k] / hull[k][1]
        values.append(mass - t * weight)
    return values[::-1]


def _or_else(value: arb, certain: int) -> arb:
    return value if value.is_finite() else arb(certain)


class RunInBalls:
    """Upper and lower bounds of the delta of a run in ball arithmetic.

    Delta is the larger one of the add and remove directions.
    """

    def __init__(self, phases: Sequence[Releases], grid: Grid) -> None:
        # The bounds hold at the working precision at which the object is built.
        self.grid, self.bits, h = grid, ctx.prec, arb(grid.step)
        excesses = [_excesses_at(phase, cells, h) for phase, cells in zip(phases, grid.knots, strict=True)]
        steps = [phase.steps for phase in phases]
        orders = [[[_knot(cell, ends, h) for cell, ends in points] for points in excesses]]
        if any(phase.one_sided for phase in phases):
            orders.append([_reflect(points, h) for points in excesses])
        self.above = [
            ComposedDistribution(list(zip(map(pair_above, order), steps, strict=True)), grid.step, window)
            for order, window in zip(orders, grid.windows, strict=True)
        ]
        self.below = []
        for order, window in zip(orders, grid.windows, strict=True):
            pairs = [pair_below(knots) for knots in order]
            pairs_of_steps = [(pair, count) for pair, count in zip(pairs, steps, strict=True) if pair is not None]
            if len(pairs_of_steps) == len(pairs):
                self.below.append(ComposedDistribution(pairs_of_steps, grid.step, window))

    def upper(self, eps: float) -> arb:
        """Return an upper bound of the delta of a run at an exact number ``eps >= 0``."""
        # delta <= sum over the window of P(S) (1 - e^(eps - S h))_+ + P(S at or above its end) + cost of the masses at
        # infinity
        with ctx.workprec(self.bits):
            delta = arb(0)
            for distribution in self.above:
                delta = delta.max(distribution.gain(eps, above=True) + distribution.beyond_right + distribution.rest)
            return _or_else(delta.min(arb(1)).upper(), 1)

    def lower(self, eps: float) -> arb:
        """Return a lower bound of the delta of a run at an exact number ``eps >= 0``.

        The result is 0 if no lower bound is known.
        """
        # delta >= the same sum - P(S outside of the window) - cost of the rests
        with ctx.workprec(self.bits):
            delta = arb(0)
            for distribution in self.below:
                delta = delta.max(
                    distribution.gain(eps, above=False)
                    - distribution.beyond_right
                    - distribution.beyond_left
                    - distribution.rest
                )
            return _or_else(delta.lower(), 0)

    @property
    def blur(self) -> arb:
        """A bound of the error of delta that the radii of the composed masses cause."""
        widest = arb(0)
        for distribution in (*self.above, *self.below):
            widest = widest.max(sum((ball.rad() for ball in distribution.distribution), arb(0)))
        return widest


class ComposedDistribution:
    """The distribution of the sum of the privacy losses of a run, on a window of cells.

    ``beyond_right`` and ``beyond_left`` are upper bounds of the masses outside the window.
    """

    def __init__(self, pairs: Sequence[tuple[BallPair, int]], step: float, window: Window) -> None:
        self.pairs, self.step, self.window = pairs, step, window
        self.distribution = _composed_masses(pairs, window)
        self.beyond_right = self._chernoff(window.first + window.size, arb(window.right))
        self.beyond_left = self._chernoff(window.first, -arb(window.left))

    @property
    def rest(self) -> arb:
        """A bound of the total effect on delta of the ``rest`` of each :class:`BallPair` (C29)."""
        # sum_i T_i m_i prod_i M_i^(T_i), M_i = max(1, mass_i) + m_i
        total_rest, mass_bound = arb(0), arb(1)
        for pair, steps in self.pairs:
            mass_bound = mass_bound * (sum(pair.masses, arb(0)).max(arb(1)) + pair.rest) ** steps
            total_rest = total_rest + steps * pair.rest
        return (total_rest * mass_bound).upper()

    def _chernoff(self, edge: int, x: arb) -> arb:
        """Return a bound of the mass of the sum of losses beyond the cell ``edge``.

        Chernoff's bound with an order ``x > 0`` is for the right tail, and with ``x < 0`` for the left tail.
        """
        # prod_i (sum_j p_j e^(x j h))^T_i e^(-x h edge)
        h = arb(self.step)
        bound = (-x * h * edge).exp()
        for pair, steps in self.pairs:
            moment = sum((p * (x * j * h).exp() for j, p in zip(pair.cells, pair.masses, strict=True)), arb(0))
            bound = bound * moment**steps
        return bound.upper()

    def gain(self, eps: float, *, above: bool) -> arb:
        """Return a bound of the contribution of the window to delta at ``eps``.

        The result is an upper bound if ``above``, and a lower bound otherwise.
        """
        # sum over the window of P(S) (1 - e^(eps - S h))_+, where S is the sum of the losses in grid steps of h nats
        start = max(math.floor(Fraction(eps) / Fraction(self.step)) + 1, self.window.first)
        h, mass, weighted = arb(self.step), arb(0), arb(0)
        # e^(eps - S h) from cell to cell
        factor, decay = (arb(eps) - start * h).exp(), (-h).exp()
        for ball in self.distribution[start - self.window.first :]:
            p = ball.upper() if above else ball.lower()
            if not p <= 0:
                mass, weighted = mass + p, weighted + p * factor
            factor = factor * decay
        return mass - weighted


def _composed_masses(pairs: Sequence[tuple[BallPair, int]], window: Window) -> list[arb]:
    """Return the masses of the sum of losses, wrapped modulo the size of the window.

    The list begins at the first cell of the window.
    """
    product: list[acb] = []
    for pair, steps in pairs:
        wrapped = [acb(0)] * window.size
        for cell, mass in zip(pair.cells, pair.masses, strict=True):
            wrapped[cell % window.size] += mass
        spectrum = [value**steps for value in acb.dft(wrapped)]
        product = [x * y for x, y in zip(product, spectrum, strict=True)] if product else spectrum
    distribution = [value.real for value in acb.dft(product, inverse=True)]
    shift = window.first % window.size
    return distribution[shift:] + distribution[:shift]
