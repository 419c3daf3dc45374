"""Laws of the squared shift ``X`` in bins, as numpy arrays: the form in which composition reads a law.

Each bin has its mass and its mean. With these the mean of a convex or of a concave function of ``X`` is bounded from
above and from below (:mod:`privproj.laws.binned_profiles`). ``X`` is the squared shift in units of the squared noise
deviation.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import special

from privproj.errors import PrecisionLimit
from privproj.numerics.arrays import Array

BINS = 144
"""Bins of a law. Every number of them gives a valid bound. Speed only."""

MASS_LOST_TO_CUTS = 1e-36
"""Mass put at the top for what cut tails can lose. Proof: each of ``n <= 1e5`` equal layers counts at most two cuts of
1e-45.
"""

BINNED_TAIL = 1e-45
"""Upper tail at which the bins of a law end; what is beyond is in the last bin. Speed only."""

LEAST_DIVIDED_MASS = 1e-290
"""Least mass of a bin whose mean is computed. A lighter bin has its upper edge for a mean, which is sound. Proof."""

CELLS_BELOW = 2048
"""Cells up to the mean of one layer in a convolution that is rounded downwards. Speed only."""

MOST_ATOMS_BELOW = 2**14
"""Most atoms of a law in such a convolution: with more, its cells are joined in pairs. Speed only."""

TAIL_BELOW = 1e-22
"""Upper tail at which a law in such a convolution ends; what is beyond is moved down to that point. Speed only."""


@dataclass(frozen=True)
class Bins:
    """A law on ``[0, inf)`` in ``n`` bins, one after the other.

    * ``edges``, of shape ``(n + 1,)``: where the bins end, increasing, in the unit of ``X``.
    * ``mass``, of shape ``(n,)``: the probability of each bin. What lies below the first edge is counted in the first
      bin, and what lies above the last edge in the last.
    * ``mean``, of shape ``(n,)``: ``E[X | bin]``, between the edges of its bin.
    * ``unbounded``: False if the last edge is the supremum of ``X``. If True, the supremum is ``inf``, and the last
      edge is only some point beyond the last mean.

    Who makes the bins guarantees one of two things, but for rounding, which :mod:`privproj.laws.binned_profiles` allows
    for. Masses and means are those of the law; then both its upper and its lower bounds hold. Or they are those of a
    law that gives no convex increasing function too small a mean; then only the upper bounds hold for ``X`` itself.
    """

    edges: Array
    mass: Array
    mean: Array
    unbounded: bool = False

    @property
    def supremum(self) -> float:
        """The supremum of ``X``: the last edge, or ``inf`` for an unbounded law."""
        return np.inf if self.unbounded else float(self.edges[-1])

    @cached_property
    def above(self) -> tuple[Array, Array]:
        """``P(X > edge)`` and ``E[X | X > edge]`` for every edge but the last, two arrays of shape ``(n,)``."""
        # P(X > edge) and E[X; X > edge] are sums over the bins above the edge.
        tail = np.cumsum(self.mass[::-1])[::-1]
        moment = np.cumsum((self.mass * self.mean)[::-1])[::-1]
        means = np.divide(moment, tail, out=self.edges[1:].copy(), where=tail > 0.0)
        return tail, np.clip(means, self.edges[:-1], self.edges[-1])

    @cached_property
    def shares(self) -> tuple[Array, Array]:
        """How the mass of each bin splits to its left and its right edge, with its mean kept: two of shape ``(n,)``."""
        # mass (1 - w) and mass w,  w = (mean - left) / (right - left)
        left, right = self.edges[:-1], self.edges[1:]
        weight = (self.mean - left) / np.maximum(right - left, 1e-300)
        return self.mass * (1.0 - weight), self.mass * weight

    @cached_property
    def weights(self) -> Array:
        """What the edges get of the mass where that of every bin goes to its ends, of shape ``(n + 1,)``."""
        left, right = self.shares
        return np.append(left, 0.0) + np.append(0.0, right)

    def lowered(self, factor: float) -> tuple[Array, Array]:
        """Return masses and means times a factor below 1, means no lower than their bins and the first mass 0 (C28)."""
        mass = factor * self.mass
        mass[0] = 0.0
        return mass, np.maximum(factor * self.mean, self.edges[:-1])


def beta_bins(a: float, b: float, scale: float, count: int = BINS) -> Bins:
    """Return the law of ``scale * B``, ``B ~ Beta(a, b)``, in at most ``count`` bins up to a tail of 1e-45.

    In the logit of ``B`` the bins are narrowest just above the mean. Raises :class:`PrecisionLimit` where scipy's
    incomplete beta function is not trusted (:func:`_check_beta_shape`).
    """
    _check_beta_shape(a, b)
    centre, width = np.log(a / b), np.sqrt(1.0 / a + 1.0 / b)
    top = centre + width * np.linspace(0.0, 60.0, 241)
    tails = special.betainc(b, a, special.expit(-top))
    end = top[np.argmax((tails < BINNED_TAIL) | (top > 30.0))]
    places = [max(centre - 7.0 * width, -36.0), centre, min(centre + 7.0 * width, end), end]
    logit = np.interp(np.linspace(0.0, 1.0, count - 1), [0.0, 0.2, 0.75, 1.0], places)
    share = np.concatenate([[0.0], special.expit(logit), [1.0]])
    rest = np.concatenate([[1.0], special.expit(-logit), [0.0]])
    kept = np.concatenate([[True], np.diff(share) > 0.0])
    share, rest = share[kept], rest[kept]
    # E[B; u < B < v] = a/(a+b) P(u < Beta(a+1, b) < v)
    mass, first = _beta_masses(a, b, share, rest), a / (a + b) * _beta_masses(a + 1.0, b, share, rest)
    mean = np.divide(first, mass, out=share[1:].copy(), where=mass > LEAST_DIVIDED_MASS)
    return Bins(scale * share, mass, scale * np.clip(mean, share[:-1], share[1:]))


def gamma_bins(a: float, scale: float, count: int = BINS) -> Bins:
    """Return the law of ``scale * U``, ``U ~ Gamma(a)``, in at most ``count`` bins up to a tail of 1e-45.

    Three bins of five lie between the quantiles 0.1 and 0.9999. Raises :class:`PrecisionLimit` for ``a`` above 5e6,
    where scipy's incomplete gamma function is not trusted.
    """
    if a > 5e6:
        raise PrecisionLimit(f"expected a rank of at most 1e7 for this route, got rank={2 * a:.3g}; use operator-norm")
    top = a + np.sqrt(a) * np.geomspace(1.0, 400.0 + 400.0 / np.sqrt(a), 400)
    end = float(top[np.argmax(special.gammaincc(a, top) < BINNED_TAIL)])
    places = np.log([*special.gammaincinv(a, [1e-6, 0.1, 0.9999]), end])
    inner = np.exp(np.interp(np.linspace(0.0, 1.0, count - 1), [0.0, 0.15, 0.75, 1.0], places))
    edges = np.unique(np.concatenate([[0.0], inner, [2.0 * end + 10.0]]))
    # E[U; u < U < v] = a P(u < Gamma(a+1) < v)
    mass, first = (_gamma_masses(shape, np.append(edges[:-1], np.inf)) for shape in (a, a + 1.0))
    mean = np.divide(a * first, mass, out=edges[1:].copy(), where=mass > LEAST_DIVIDED_MASS)
    return Bins(scale * edges, mass, scale * np.clip(mean, edges[:-1], edges[1:]), unbounded=True)


def _gamma_masses(a: float, points: Array) -> Array:
    """Return the mass of ``Gamma(a)`` between consecutive points, each difference on the side of the smaller tail."""
    # P(u < U < v) = P(U < v) - P(U < u) below the mean, P(U > u) - P(U > v) above it
    lower, upper = special.gammainc(a, points), special.gammaincc(a, points)
    return np.maximum(np.where(points[1:] <= a, np.diff(lower), -np.diff(upper)), 0.0)


def _check_beta_shape(a: float, b: float) -> None:
    """Raise :class:`PrecisionLimit` where scipy's incomplete beta no longer reaches the margin kept here."""
    if a + b > 5e6:
        raise PrecisionLimit(
            f"expected a dim of at most 1e7 for this route, got dim={2 * (a + b):.3g}; use mixture-rdp"
        )


def convolve_layers(parts: tuple[tuple[int, int, int, float], ...], scale: float, count: int = 3 * BINS) -> Bins:
    """Return a law that bounds ``scale * sum of share * B`` over independent layers from above (C6).

    Each of ``parts`` is ``(dim, rank, count, share)``: ``count`` layers with ``B ~ Beta(rank/2, (dim - rank)/2)`` and
    the part ``share = C_l^2/C^2`` of the squared clip. A layer with ``dim == rank`` is not projected and adds its
    share. Each ``share * B`` is spread to the points of a uniform grid without changing its mean, and what is cut off
    is put at the supremum. Both make the mean of every convex increasing function larger.
    """
    moving = [part for part in parts if part[0] > part[1]]
    width = _cell_width(moving) if moving else 1.0
    # The sum is shift + width j with the probability atoms[j] (C6, computed convolution).
    shift = sum(n * share for dim, rank, n, share in parts if dim == rank)
    atoms = np.ones(1)
    for dim, rank, n, share in moving:
        atoms = np.convolve(
            atoms, _convolve_n_times(_spread_beta_atoms(0.5 * rank, 0.5 * (dim - rank), share / width), n)
        )
    atoms = np.pad(atoms, (0, 3))
    # What lies beyond the last atom is put at the supremum, which is at least 1: the shares add up to 1.
    last = int(np.argmax(np.cumsum(atoms[::-1])[::-1] < 1e-34)) or len(atoms)
    last = max(last, 3)
    beyond = float(atoms[last:].sum()) + MASS_LOST_TO_CUTS
    points = shift + width * np.arange(last)
    cuts = np.unique(np.concatenate([[0], np.linspace(2, last, min(count, last)).astype(int)]))
    # Mass and E[X; bin] of the atoms between neighbouring cuts
    mass = np.add.reduceat(atoms[:last], cuts[:-1])
    first = np.add.reduceat(atoms[:last] * points, cuts[:-1])
    edges = np.concatenate([[points[0]], points[cuts[1:] - 1], [max(1.0, points[-1] + width)]])
    mean = np.divide(first, mass, out=edges[1:-1].copy(), where=mass > LEAST_DIVIDED_MASS)
    mean, mass = np.append(np.clip(mean, edges[:-2], edges[1:-1]), edges[-1]), np.append(mass, beyond)
    return Bins(scale * np.maximum(edges, 0.0), mass * (1.0 + 1e-12), scale * np.maximum(mean, 0.0))


class _LatticeLaw(NamedTuple):
    """Atoms at ``0, w, 2 w, ...`` with ``w = 2^level`` units."""

    atoms: Array
    level: int

    def coarser(self, level: int) -> "_LatticeLaw":
        """Return the law with each atom moved down to the lattice of a level."""
        atoms = self.atoms
        for _ in range(level - self.level):
            atoms = np.pad(atoms, (0, len(atoms) % 2)).reshape(-1, 2).sum(axis=1)
        return _LatticeLaw(atoms, max(level, self.level))

    def plus(self, other: "_LatticeLaw") -> "_LatticeLaw":
        """Return a law below the sum of both, which are independent."""
        level = max(self.level, other.level)
        atoms = np.convolve(self.coarser(level).atoms, other.coarser(level).atoms)
        # What is beyond the tail is moved down to where it begins.
        tail = np.cumsum(atoms[::-1])[::-1]
        last = int(np.max(np.nonzero(tail >= TAIL_BELOW)))
        found = _LatticeLaw(np.append(atoms[:last], tail[last]), level)
        joined = max(0, math.ceil(math.log2(len(found.atoms) / MOST_ATOMS_BELOW)))
        return found.coarser(level + joined)


def convolve_layers_below(parts: tuple[tuple[int, int, int, float], ...], scale: float, count: int = 3 * BINS) -> Bins:
    """Return a law that is stochastically at most ``scale * sum of share * B`` over independent layers (C28).

    ``parts`` are those of :func:`convolve_layers`. Every atom is moved down, so that the mean of every increasing
    function becomes smaller.
    """
    moving = [part for part in parts if part[0] > part[1]]
    shift = sum(n * share for dim, rank, n, share in parts if dim == rank)
    found, unit = _LatticeLaw(np.ones(1), 0), min((share * r / d for d, r, _, share in moving), default=1.0)
    unit /= CELLS_BELOW
    for dim, rank, n, share in moving:
        # B = j w / share for j = 0, 1, ...; from the last point on all mass is put there.
        a, b, level = 0.5 * rank, 0.5 * (dim - rank), int(math.log2(share * rank / dim / (unit * CELLS_BELOW)))
        _check_beta_shape(a, b)
        end = _last_cell(a, b, share / (unit * 2.0**level))
        level += max(0, math.ceil(math.log2((end + 1) / MOST_ATOMS_BELOW)))
        cells = share / (unit * 2.0**level)
        end = _last_cell(a, b, cells)
        place = np.append(np.arange(end + 1) / cells, 1.0)
        layer = _LatticeLaw(_beta_masses(a, b, place, 1.0 - place), level)
        # n copies by repeated doubling
        for digit in reversed(f"{n:b}"):
            found = found.plus(layer) if digit == "1" else found
            layer = layer.plus(layer) if n > 1 else layer
    points = scale * (shift + unit * 2.0**found.level * np.arange(len(found.atoms) + 1))
    size = len(found.atoms)
    cuts = np.unique((np.linspace(0.0, math.sqrt(size - 1), min(count, size)) ** 2).astype(int))
    mass = np.add.reduceat(found.atoms, cuts)
    mean = np.add.reduceat(found.atoms * points[:-1], cuts) / np.maximum(mass, LEAST_DIVIDED_MASS)
    edges = np.concatenate([points[cuts], points[-1:]])
    mean = np.clip(mean, edges[:-1], edges[1:])
    # An empty bin goes first, which lower bounds leave out.
    return Bins(np.append(0.0, edges), np.append(0.0, mass), np.append(0.0, mean))


def _last_cell(a: float, b: float, cells: float) -> int:
    """Return the first ``j`` with ``P(B > j / cells)`` below :data:`TAIL_BELOW`, or the last one below ``cells``."""
    low, high = 0, max(math.ceil(cells) - 1, 0)
    while low < high:
        middle = (low + high) // 2
        below = special.betainc(b, a, 1.0 - middle / cells) < TAIL_BELOW
        low, high = (low, middle) if below else (middle + 1, high)
    return low


def _cell_width(parts: list[tuple[int, int, int, float]]) -> float:
    """Return the distance of the grid points, in units of the sum.

    On this grid spreading the layers adds at most a thousandth to the variance of the sum, or there are 2^13 cells up
    to its mean, whichever is coarser. With very many layers the sum hardly varies, and a coarser grid costs nothing
    that shows.
    """
    # Var B = 2 r (d - r) / (d^2 (d + 2)); spreading one atom adds at most width^2 / 4 to the variance.
    variance = sum(n * share**2 * 2.0 * rank * (dim - rank) / (dim**2 * (dim + 2.0)) for dim, rank, n, share in parts)
    mean = sum(n * share * rank / dim for dim, rank, n, share in parts)
    return float(max(np.sqrt(variance / (250.0 * sum(n for _, _, n, _ in parts))), mean / 2**13))


def _spread_beta_atoms(a: float, b: float, cells: float) -> Array:
    """Return the masses of ``cells * Beta(a, b)`` spread to 0, 1, 2, ..., mean kept; a tail below 1e-45 is left out."""
    _check_beta_shape(a, b)
    share = np.minimum(np.arange(int(np.ceil(cells)) + 1) / cells, 1.0)
    top = max(int(np.argmax(special.betainc(b, a, 1.0 - share) < BINNED_TAIL)), 1)
    share = np.append(share[:top], 1.0) if share[top] >= 1.0 else share[: top + 1]
    mass = _beta_masses(a, b, share, 1.0 - share)
    first = a / (a + b) * _beta_masses(a + 1.0, b, share, 1.0 - share)
    mean = np.divide(first, mass, out=share[1:].copy(), where=mass > LEAST_DIVIDED_MASS) * cells
    # A mean j + w goes to j with the share 1 - w and to j + 1 with the share w.
    weight = np.clip(mean - np.arange(len(mass)), 0.0, 1.0)
    atoms = np.append(mass * (1.0 - weight), 0.0)
    atoms[1:] += mass * weight
    return atoms


def _convolve_n_times(atoms: Array, count: int) -> Array:
    """Return the law of a sum of ``count`` copies by repeated squaring; without FFT all terms are positive."""
    result = np.ones(1)
    while count:
        if count % 2:
            result = _drop_tail(np.convolve(result, atoms))
        count //= 2
        if count:
            atoms = _drop_tail(np.convolve(atoms, atoms))
    return result


def _drop_tail(atoms: Array) -> Array:
    """Return the atoms without their far tail of mass below 1e-45; :data:`MASS_LOST_TO_CUTS` covers all such cuts."""
    return atoms[: int(np.max(np.nonzero(np.cumsum(atoms[::-1])[::-1] >= BINNED_TAIL))) + 1]


def _beta_masses(a: float, b: float, share: Array, rest: Array) -> Array:
    """Return the mass of ``Beta(a, b)`` between consecutive points ``share``; ``rest`` is 1 less these points."""
    # P(u < B < v) = P(B < v) - P(B < u) below the mean, P(B > u) - P(B > v) above it
    lower, upper = special.betainc(a, b, share), special.betainc(b, a, rest)
    below = share[1:] <= a / (a + b)
    return np.maximum(np.where(below, np.diff(lower), -np.diff(upper)), 0.0)
