"""Binned distributions of ``X``, the squared sensitivity divided by the noise variance.

The masses and the means of the bins bound the expectation of every convex or concave function of ``X`` from above and
from below (:mod:`privproj.distributions.binned_profile`). So delta is bounded at many epsilons at once, as a
composition needs.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from privproj.errors import PrecisionError
from privproj.numerics.arrays import Array, join_copies
from privproj.numerics.quadrature import gauss_nodes
from privproj.numerics.root_finding import find_crossing
from privproj.numerics.special import (
    beta_constant,
    log_beta_tail_from,
    log_gamma_below,
    log_gamma_front,
    log_gamma_tail,
)

BINS = 144  # bins of a distribution; every number of bins gives a valid bound

BINS_OF_SUM = 3 * BINS  # bins of the distribution of a sum over layers

# soundness: mass that is added at the supremum for truncated tails: each of at most 1e5 equal layers loses two tails of
# at most 1e-45
MASS_LOST_TO_CUTS = 1e-36

BINNED_TAIL = 1e-45  # upper tail at which the bins end; the last bin includes this tail

LOG_BINNED_TAIL = math.log(BINNED_TAIL)  # nats

BIN_NODES = 12  # soundness: Gauss nodes of a bin; masses and means are accurate to 1e-11 (measured)

CELL_NODES = 4  # soundness: Gauss nodes of a cell of a grid, with the same accuracy as BIN_NODES

# soundness: points that divide cells of a grid, in standard deviations from the mean, for the accuracy of BIN_NODES
CELL_PANELS = np.linspace(-12.0, 12.0, 193)

FAR_SQUARED_SENSITIVITY = 4e299  # soundness: h_eps is 1 here for every accepted eps

# soundness: least mass of a bin whose mean is computed; for a smaller mass the upper edge of the bin is used, which is
# valid for upper bounds
LEAST_DIVIDED_MASS = 1e-290

CELLS_BELOW = 2048  # cells up to the mean of one layer in a convolution that is rounded down

MOST_ATOMS_BELOW = 2**14  # most atoms in such a convolution; if there are more, cells are joined in pairs

TAIL_BELOW = (
    1e-22  # upper tail at which a distribution in such a convolution ends; its mass is moved down to that point
)


@dataclass(frozen=True)
class Bins:
    """The distribution of a variable ``X >= 0``, in ``n`` adjacent bins.

    The masses and means are those of ``X``, or those of a bound of ``X``. An upper bound, in increasing convex order,
    gives upper bounds of delta only. A lower bound, in stochastic order, gives lower bounds only.

    * ``edges``, of shape ``(n + 1,)``: the increasing ends of the bins.
    * ``mass``, of shape ``(n,)``: the probability of each bin. The first and the last bin include the mass outside the
      edges.
    * ``mean``, of shape ``(n,)``: the mean of ``X`` given that it is in the bin.
    * ``unbounded``: True if the supremum of ``X`` is ``inf``. The last edge is then an arbitrary point beyond the last
      mean.
    """

    # Rounding errors of masses and means are covered in binned_profile.
    edges: Array
    mass: Array
    mean: Array
    unbounded: bool = False

    @property
    def supremum(self) -> float:
        """The supremum of the binned variable: the last edge, or ``inf`` if it is unbounded."""
        return np.inf if self.unbounded else float(self.edges[-1])

    @cached_property
    def above(self) -> tuple[Array, Array]:
        """``P(X > edge)`` and ``E[X | X > edge]`` at every edge except the last."""
        # P(X > edge) and E[X; X > edge] are sums over the bins above the edge.
        tail = np.cumsum(self.mass[::-1])[::-1]
        moment = np.cumsum((self.mass * self.mean)[::-1])[::-1]
        means = np.divide(moment, tail, out=self.edges[1:].copy(), where=tail > 0.0)
        return tail, np.clip(means, self.edges[:-1], self.edges[-1])

    @cached_property
    def shares(self) -> tuple[Array, Array]:
        """The mass of each bin, moved to its left and right edge such that its mean is kept."""
        # mass (1 - w) and mass w,  w = (mean - left) / (right - left)
        left, right = self.edges[:-1], self.edges[1:]
        weight = (self.mean - left) / np.maximum(right - left, 1e-300)
        return self.mass * (1.0 - weight), self.mass * weight

    @cached_property
    def weights(self) -> Array:
        """The mass at each edge after the split of :attr:`shares`."""
        left, right = self.shares
        return np.append(left, 0.0) + np.append(0.0, right)

    def shifted(self, shift: float) -> "Bins":
        """Return the distribution of ``X + shift`` with ``shift >= 0``, in shifted bins."""
        if not shift:
            return self
        # The shifted bins give valid bounds if those of X do:
        # f(x + shift) is convex and increases in x where f does (C31).
        return Bins(self.edges + shift, self.mass, self.mean + shift, self.unbounded)

    def lowered(self, factor: float) -> tuple[Array, Array]:
        """Return masses and means multiplied by ``factor < 1``, for lower bounds (C28).

        Means are at least the left edges. The first bin, which lower bounds omit, gets the mass 0.
        """
        mass = factor * self.mass
        mass[0] = 0.0
        return mass, np.maximum(factor * self.mean, self.edges[:-1])


def beta_bins(a: float, b: float, scale: float, count: int = BINS) -> Bins:
    """Return the distribution of ``scale * Beta(a, b)`` in at most ``count`` bins.

    Raises:
        PrecisionError: ``a + b`` is above 5e8.
    """
    dist = _BetaDistribution(a, b)
    step = 0.25 * dist.width
    end = step * _first_true(240, lambda k: dist.center + step * k > 30.0 or dist.log_tail(step * k) < LOG_BINNED_TAIL)
    places = [max(-7.0 * dist.width, -36.0 - dist.center), 0.0, min(7.0 * dist.width, end), end]
    s = np.interp(np.linspace(0.0, 1.0, count - 1), [0.0, 0.2, 0.75, 1.0], places)
    s = s[np.append(True, np.diff(dist.place(s)) > 0.0)]
    edges = np.concatenate([[0.0], dist.place(s), [1.0]])
    mass, mean = dist.means(s, edges, BIN_NODES)
    return Bins(scale * edges, mass, scale * mean)


def gamma_bins(a: float, scale: float, count: int = BINS) -> Bins:
    """Return the distribution of ``scale * Gamma(a)`` in at most ``count`` bins.

    Raises:
        PrecisionError: ``a`` is above 5e8.
    """
    if a > 5e8:
        raise PrecisionError(f"rank must be at most 1e9 for this bound, got {2 * a:.3g}. Use the bound operator-norm")
    dist = _GammaDistribution(a)
    top = a + np.sqrt(a) * np.geomspace(1.0, 400.0 + 400.0 / np.sqrt(a), 400)
    end = float(top[_first_true(399, lambda k: dist.log_tail(math.log(top[k] / a)) < LOG_BINNED_TAIL)])
    places = [dist.find_quantile(share) for share in (1e-6, 0.1, 0.9999)]
    s = np.interp(np.linspace(0.0, 1.0, count - 1), [0.0, 0.15, 0.75, 1.0], [*places, math.log(end / a)])
    edges = np.concatenate([[0.0], dist.place(s), [2.0 * end + 10.0]])
    mass, mean = dist.means(s, edges, BIN_NODES)
    return Bins(scale * edges, mass, scale * mean, unbounded=True)


def inverse_gamma_bins(a: float, scale: float, count: int = BINS) -> Bins:
    """Return the distribution of ``scale / U`` with ``U ~ Gamma(a)`` in at most ``count`` bins.

    For ``a <= 1`` the mean is infinite, and only bounds of the expectation of an increasing function are valid.

    Raises:
        PrecisionError: ``a`` is above 5e8.
    """
    if a > 5e8:
        raise PrecisionError(f"probes must be at most 1e9 for this bound, got {2 * a:.3g}")
    dist = _GammaDistribution(a)
    # ln(a/U) at the quantiles of X
    low, start, middle = (-dist.find_quantile(share) for share in (1.0 - 1e-12, 0.9, 1e-4))
    # P(U < u) is about u^a/Gamma(a + 1) far below the mean
    reach = (a * math.log(a) - LOG_BINNED_TAIL - math.lgamma(a + 1.0)) / a
    steps = np.linspace(middle, max(reach, middle) + 1e-9, 400)
    end = float(steps[_first_true(399, lambda k: log_gamma_below(a, *_ratio(-steps[k])) < LOG_BINNED_TAIL)])
    s = np.interp(np.linspace(0.0, 1.0, count - 1), [0.0, 0.15, 0.5, 1.0], [low, start, middle, end])
    at, share = gauss_nodes(BIN_NODES)
    gaps = np.diff(s)[:, None]
    places = s[:-1, None] + gaps * at
    density = dist.density(-places) * gaps * share
    mass, first = density.sum(axis=1), (np.exp(places) * density).sum(axis=1)
    # Upper bounds of the expectation of an increasing function use its supremum in the last bin, and lower bounds its
    # value at the left edge, because the distribution is unbounded.
    last = FAR_SQUARED_SENSITIVITY
    if a > 1.0:
        # E[1/U; U < u] = P(Gamma(a - 1) < u)/(a - 1), u = a e^-end
        point = a * math.exp(-end) / (a - 1.0)
        log_share = log_gamma_below(a - 1.0, point - 1.0, point) - log_gamma_below(a, *_ratio(-end))
        last = scale * max(math.exp(log_share) / (a - 1.0), math.exp(end) / a) * (1.0 + 1e-9)
    edges = np.concatenate([[0.0], np.exp(s) / a * scale, [2.0 * last]])
    mean = np.divide(first, mass, out=np.exp(s[1:]), where=mass > LEAST_DIVIDED_MASS) / a * scale
    outer = (math.exp(log_gamma_tail(a, *_ratio(-low))), math.exp(log_gamma_below(a, *_ratio(-end))))
    # The mean of the first bin, which has a mass of 1e-12, is its upper edge.
    mean = np.concatenate([edges[1:2], np.clip(mean, edges[1:-2], edges[2:-1]), [last]])
    return Bins(edges, np.concatenate([outer[:1], mass, outer[1:]]), mean, unbounded=True)


def _ratio(s: float) -> tuple[float, float]:
    return math.expm1(s), math.exp(s)


def _first_true(last: int, is_true: Callable[[int], bool]) -> int:
    """Return the first integer at which a monotone condition holds, at most ``last``."""
    return bisect_left(range(last), True, key=is_true)


class _PositiveDistribution(ABC):
    """A distribution of a variable ``X >= 0``, given by the density of a coordinate ``s``.

    ``s`` is an increasing transform of ``X``, and 0 at the mean of ``X``.
    """

    width: float  # width of the peak in ``s``, about a standard deviation

    @abstractmethod
    def place(self, s: Array) -> Array:
        """Return the values of the variable at the coordinates ``s``."""

    @abstractmethod
    def density(self, s: Array) -> Array:
        """Return the density of the coordinate at the points ``s``."""

    @abstractmethod
    def outer(self, first: float, last: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return ``P(X in R)`` and ``E[X; X in R]`` for two ranges ``R`` of the coordinate.

        The first range is below ``first``, the second range is above ``last``.
        """

    def means(self, s: Array, edges: Array, nodes: int, finer: Array | None = None) -> tuple[Array, Array]:
        """Return masses and means of the bins between ``edges``, by Gauss rules.

        Args:
            s: The coordinates of all edges except the first and the last.
            edges: The edges of the bins.
            nodes: The number of nodes of each Gauss rule.
            finer: Equidistant coordinates. Bins that are wider than their spacing are integrated in parts between them.
        """
        points, starts = s, None
        if finer is not None:
            # insert the points of finer in gaps wider than theirs; starts are the indices of the old gaps
            gaps = np.diff(s)
            before = np.searchsorted(s, finer) - 1
            inside = (before >= 0) & (before < len(gaps))
            inside[inside] = gaps[before[inside]] > finer[1] - finer[0]
            if inside.any():
                points = np.insert(s, before[inside] + 1, finer[inside])
                starts = np.arange(len(gaps)) + np.searchsorted(finer[inside], s[:-1])
        at, share = gauss_nodes(nodes)
        # int f ds and int X f ds between neighbors
        gaps = np.diff(points)[:, None]
        places = points[:-1, None] + gaps * at
        density = self.density(places) * gaps * share
        mass, first = density.sum(axis=1), (self.place(places) * density).sum(axis=1)
        if starts is not None:
            mass, first = np.add.reduceat(mass, starts), np.add.reduceat(first, starts)
        below, above = self.outer(float(s[0]), float(s[-1]))
        mass = np.concatenate([below[:1], mass, above[:1]])
        first = np.concatenate([below[1:], first, above[1:]])
        mean = np.divide(first, mass, out=edges[1:].copy(), where=mass > LEAST_DIVIDED_MASS)
        return mass, np.clip(mean, edges[:-1], edges[1:])


class _BetaDistribution(_PositiveDistribution):
    """The distribution ``Beta(a, b)``, with the coordinate ``logit(B) - logit(E B)``."""

    def __init__(self, a: float, b: float) -> None:
        if a + b > 5e8:  # the rounding was not measured
            raise PrecisionError(
                f"dim must be at most 1e9 for this bound, got {2 * (a + b):.3g}. Use the bound mixture-rdp"
            )
        self.a, self.b, self.p, self.q = a, b, a / (a + b), b / (a + b)
        self.center, self.width = math.log(a / b), math.sqrt(1.0 / a + 1.0 / b)
        self.constant = beta_constant(a, b)

    def coordinate(self, x: Array) -> Array:
        # ln(x/p) - ln((1 - x)/q), e = n x - a
        excess = (self.a + self.b) * x - self.a
        return np.log1p(excess / self.a) - np.log1p(-excess / self.b)

    def place(self, s: Array) -> Array:
        # p e^s / (q + p e^s)
        return self.p / (self.p + self.q * np.exp(-s))

    def density(self, s: Array) -> Array:
        # x^a y^b / Beta(a, b), by its value at the mean and a ln(x/p) + b ln(y/q)
        deviance = self.a * np.log1p(self.q * np.expm1(-s)) + self.b * np.log1p(self.p * np.expm1(s))
        return np.exp(self.constant - deviance)

    def log_tail(self, s: float) -> float:
        """Return the log tail of the Beta variable above the coordinate ``s``."""
        return log_beta_tail_from(self.a, self.b, *self._shares(s), self.constant)

    def last_cell(self, cells: float, log_tail: float) -> int:
        """Return the least ``j <= ceil(cells)`` with ``ln P(B > j / cells) < log_tail``."""

        def is_below(j: int) -> bool:
            x = min(j / cells, 1.0)
            return log_beta_tail_from(self.a, self.b, x, 1.0 - x, self.constant) < log_tail

        return _first_true(math.ceil(cells), is_below)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """Return masses and means of the bins between ``edges``, of which the first is 0.

        If the last edge is below 1, one more bin ends at 1.
        """
        if len(edges) == 1 or edges[1] >= 1.0:
            return np.ones(1), np.array([self.p])
        s = self.coordinate(edges[1:] if edges[-1] < 1.0 else edges[1:-1])
        return self.means(s, edges if edges[-1] == 1.0 else np.append(edges, 1.0), CELL_NODES, self.width * CELL_PANELS)

    def outer(self, first: float, last: float) -> tuple[tuple[float, float], tuple[float, float]]:
        # E[B; .] = a/(a+b) P(Beta(a+1, b) in .)
        a, b, tail = self.a, self.b, log_beta_tail_from
        (x, y), (u, v), biased = self._shares(first), self._shares(last), beta_constant(a + 1.0, b)
        below = tail(b, a, y, x, self.constant), tail(b, a + 1.0, y, x, biased)
        above = tail(a, b, u, v, self.constant), tail(a + 1.0, b, u, v, biased)
        low, high = ((math.exp(mass), self.p * math.exp(moment)) for mass, moment in (below, above))
        return low, high

    def _shares(self, s: float) -> tuple[float, float]:
        """Return the value ``x`` of the Beta variable at the coordinate ``s``, and ``1 - x``."""
        return self.p / (self.p + self.q * math.exp(-s)), self.q / (self.q + self.p * math.exp(s))


class _GammaDistribution(_PositiveDistribution):
    """The distribution of ``U ~ Gamma(a)``, with the coordinate ``ln(U/a)``."""

    def __init__(self, a: float) -> None:
        self.a, self.width = a, 1.0 / math.sqrt(a)
        self.constant = log_gamma_front(a, 0.0, 1.0)

    def place(self, s: Array) -> Array:
        return self.a * np.exp(s)

    def density(self, s: Array) -> Array:
        # u^a e^-u / Gamma(a) at u = a e^s, by its value at the mean and a (s - (e^s - 1))
        return np.exp(self.constant - self.a * (np.expm1(s) - s))

    def log_tail(self, s: float) -> float:
        return log_gamma_tail(self.a, math.expm1(s), math.exp(s))

    def find_quantile(self, share: float) -> float:
        """Return approximately ``ln(q/a)``, where ``P(U < q) = share`` for ``U ~ Gamma(a)``."""
        a, below = self.a, share < 0.5

        def excess(ratio: float) -> float:
            place = a, ratio - 1.0, ratio
            return math.log(share) - log_gamma_below(*place) if below else log_gamma_tail(*place) - rest

        rest = math.log1p(-share)
        crossing = find_crossing(excess, 1.0, low=1e-40, high=1e9, spread=3.0 * self.width, rtol=1e-10)
        return math.log(crossing.upper)

    def outer(self, first: float, last: float) -> tuple[tuple[float, float], tuple[float, float]]:
        # E[U; .] = a P(Gamma(a+1) in .), and a e^s = (a + 1)(1 + e) with e = (a (e^s - 1) - 1)/(a + 1)
        a = self.a
        ends = []
        for s, tail in ((first, log_gamma_below), (last, log_gamma_tail)):
            mass = tail(a, math.expm1(s), math.exp(s))
            moment = tail(a + 1.0, (a * math.expm1(s) - 1.0) / (a + 1.0), a * math.exp(s) / (a + 1.0))
            ends.append((math.exp(mass), a * math.exp(moment)))
        return ends[0], ends[1]


def convolve_layers(parts: tuple[tuple[int, int, int, float], ...], scale: float) -> Bins:
    """Return an upper bound, in increasing convex order, of a sum over layers (C6).

    The sum is ``scale * sum of share * B`` over independent layers, where ``B`` is the squared norm of a projected unit
    vector.

    Args:
        parts: ``(dim, rank, count, share)`` for ``count`` equal layers with ``B ~ Beta(rank/2, (dim - rank)/2)``, or
            ``B = 1`` if ``dim == rank``. ``share`` is the squared clipping norm of one layer, divided by the sum
            of those of all layers.
        scale: The factor of the sum.
    """
    moving = [part for part in parts if part[0] > part[1]]
    width = 1.0
    if moving:
        # The grid is so fine that splitting adds at most a thousandth to the variance of the sum, or has 2^13 cells up
        # to the mean. The sum of very many layers hardly varies, so a coarser grid hardly matters.
        # Var B = 2 r (d - r) / (d^2 (d + 2)); splitting one atom adds at most width^2 / 4 to the variance.
        variance = sum(n * c**2 * 2.0 * r * (d - r) / (d**2 * (d + 2.0)) for d, r, n, c in moving)
        mean = sum(n * c * r / d for d, r, n, c in moving)
        width = float(max(np.sqrt(variance / (250.0 * sum(n for _, _, n, _ in moving))), mean / 2**13))
    # The sum is shift + width j with the probability atoms[j] (C6, computed convolution).
    shift = sum(n * share for dim, rank, n, share in parts if dim == rank)
    atoms = np.ones(1)

    def convolve(one: Array, other: Array) -> Array:
        # Drop a far tail of mass below 1e-45, which MASS_LOST_TO_CUTS covers. Without FFT all terms are positive.
        joint = np.convolve(one, other)
        return joint[: int(np.max(np.nonzero(np.cumsum(joint[::-1])[::-1] >= BINNED_TAIL))) + 1]

    for dim, rank, n, share in moving:
        layer = _spread_beta_atoms(0.5 * rank, 0.5 * (dim - rank), share / width)
        atoms = np.convolve(atoms, join_copies(layer, n, convolve))
    atoms = np.pad(atoms, (0, 3))
    # The tail is moved to the supremum, which is at least 1, because the shares sum to 1.
    last = int(np.argmax(np.cumsum(atoms[::-1])[::-1] < 1e-34)) or len(atoms)
    last = max(last, 3)
    beyond = float(atoms[last:].sum()) + MASS_LOST_TO_CUTS
    points = shift + width * np.arange(last)
    cuts = np.unique(np.concatenate([[0], np.linspace(2, last, min(BINS_OF_SUM, last)).astype(int)]))
    # Mass and E[X; bin] of the atoms between neighboring cuts
    mass = np.add.reduceat(atoms[:last], cuts[:-1])
    first = np.add.reduceat(atoms[:last] * points, cuts[:-1])
    edges = np.concatenate([[points[0]], points[cuts[1:] - 1], [max(1.0, points[-1] + width)]])
    mean = np.divide(first, mass, out=edges[1:-1].copy(), where=mass > LEAST_DIVIDED_MASS)
    mean, mass = np.append(np.clip(mean, edges[:-2], edges[1:-1]), edges[-1]), np.append(mass, beyond)
    return Bins(scale * np.maximum(edges, 0.0), mass * (1.0 + 1e-12), scale * np.maximum(mean, 0.0))


class _GridDistribution(NamedTuple):
    """A discrete distribution on the points ``0, 2^level, 2 * 2^level, ...`` times a unit."""

    atoms: Array
    level: int

    def coarser(self, level: int) -> "_GridDistribution":
        """Return the distribution after moving each atom down to a grid of spacing ``2^level``."""
        atoms = self.atoms
        for _ in range(level - self.level):
            atoms = np.pad(atoms, (0, len(atoms) % 2)).reshape(-1, 2).sum(axis=1)
        return _GridDistribution(atoms, max(level, self.level))

    def plus(self, other: "_GridDistribution", most: int = MOST_ATOMS_BELOW) -> "_GridDistribution":
        """Return a lower bound, in stochastic order, of the sum of two independent variables.

        The result has at most about ``most`` atoms.
        """
        level = max(self.level, other.level)
        atoms = np.convolve(self.coarser(level).atoms, other.coarser(level).atoms)
        # move the tail down to where it begins
        tail = np.cumsum(atoms[::-1])[::-1]
        last = int(np.max(np.nonzero(tail >= TAIL_BELOW)))
        dist = _GridDistribution(np.append(atoms[:last], tail[last]), level)
        joined = max(0, math.ceil(math.log2(len(dist.atoms) / most)))
        return dist.coarser(level + joined)


def convolve_layers_below(parts: tuple[tuple[int, int, int, float], ...], scale: float) -> Bins:
    """Return a lower bound, in stochastic order, of a weighted sum over layers (C28).

    The sum and the arguments are those of :func:`convolve_layers`.
    """
    shift, width, atoms = _sum_below(parts)
    points = scale * (shift + width * np.arange(len(atoms) + 1))
    cuts = np.unique((np.linspace(0.0, math.sqrt(len(atoms) - 1), min(BINS_OF_SUM, len(atoms))) ** 2).astype(int))
    mass = np.add.reduceat(atoms, cuts)
    mean = np.add.reduceat(atoms * points[:-1], cuts) / np.maximum(mass, LEAST_DIVIDED_MASS)
    edges = np.concatenate([points[cuts], points[-1:]])
    mean = np.clip(mean, edges[:-1], edges[1:])
    # Lower bounds omit the first bin, so it is empty.
    return Bins(np.append(0.0, edges), np.append(0.0, mass), np.append(0.0, mean))


@lru_cache(maxsize=16)
def _sum_below(parts: tuple[tuple[int, int, int, float], ...]) -> tuple[float, float, Array]:
    """Return a lower bound, in stochastic order, of ``sum of share * B`` over layers.

    ``parts`` and ``B`` are those of :func:`convolve_layers`. The result is ``(shift, width, atoms)``, where
    ``atoms[j]`` is the mass at ``shift + width j``.
    """
    moving = sorted((part for part in parts if part[0] > part[1]), key=lambda part: part[3] * part[1] / part[0])
    shift = sum(n * share for dim, rank, n, share in parts if dim == rank)
    if not moving:
        return shift, 1.0, np.ones(1)
    unit = moving[0][3] * moving[0][1] / moving[0][0] / CELLS_BELOW
    # base 2 log of the largest number of atoms, such that all convolutions of a sum take about 2^33 products
    log_most = min(math.log2(MOST_ATOMS_BELOW), 0.5 * math.log2(2.0**33 / len(moving)))
    most = 2 ** max(10, int(log_most))
    dists = [_copies_below(part, unit, most) for part in moving]
    while len(dists) > 1:
        pairs = [first.plus(second, most) for first, second in zip(dists[::2], dists[1::2], strict=False)]
        dists = pairs + dists[2 * len(pairs) :]
    return shift, unit * 2.0 ** dists[0].level, dists[0].atoms


def _copies_below(part: tuple[int, int, int, float], unit: float, most: int) -> _GridDistribution:
    """Return a lower bound, in stochastic order, of the sum over equal layers.

    Args:
        part: ``(dim, rank, count, share)`` as for :func:`convolve_layers`.
        unit: The spacing of the grid at level 0.
        most: The approximate largest number of atoms.
    """
    dim, rank, n, share = part
    dist, level = (
        _BetaDistribution(0.5 * rank, 0.5 * (dim - rank)),
        int(math.log2(share * rank / dim / (unit * CELLS_BELOW))),
    )
    end = dist.last_cell(share / (unit * 2.0**level), math.log(TAIL_BELOW))
    level += max(0, math.ceil(math.log2((end + 1) / most)))
    cells = share / (unit * 2.0**level)
    # B = j w / share for j = 0, 1, ...; all mass beyond the last point is moved there
    end = min(dist.last_cell(cells, math.log(TAIL_BELOW)), max(math.ceil(cells) - 1, 0))
    layer = _GridDistribution(dist.cells(np.arange(end + 1) / cells)[0], level)
    return join_copies(layer, n, lambda one, other: one.plus(other, most))


def _spread_beta_atoms(a: float, b: float, cells: float) -> Array:
    """Return masses at 0, 1, 2, ... that replace ``cells * Beta(a, b)`` with the same mean."""
    dist = _BetaDistribution(a, b)
    # the first integer with an upper tail below 1e-45
    top = max(dist.last_cell(cells, LOG_BINNED_TAIL), 1)
    edges = np.append(np.arange(top) / cells, min(top / cells, 1.0))
    mass, mean = dist.cells(edges)
    if edges[-1] < 1.0:
        mass, mean = mass[:-1], mean[:-1]
    # a mean j + w is split to j with the weight 1 - w and to j + 1 with the weight w
    weight = np.clip(mean * cells - np.arange(len(mass)), 0.0, 1.0)
    atoms = np.append(mass * (1.0 - weight), 0.0)
    atoms[1:] += mass * weight
    return atoms
