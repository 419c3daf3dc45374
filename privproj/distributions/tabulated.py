"""Expectations over a squared sensitivity ``X`` without a closed form, by Gauss rules.

:mod:`privproj.distributions.densities` computes the density of ``ln X``. A panel is an interval of ``ln X`` with the
nodes of two Gauss rules. Panels are halved if both rules disagree. The remaining difference is added as an error. That
it bounds the true error is observed, not proved. The first panels are cached, so another epsilon costs little more than
the Gaussian delta at their nodes.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privproj.errors import ConvergenceError
from privproj.numerics.arrays import Array
from privproj.numerics.interval import RELATIVE_ERROR_PER_NAT, Enclosure, widen_outward
from privproj.numerics.quadrature import gauss_nodes
from privproj.profiles.gaussian import gaussian_values, log_gaussian_delta

if TYPE_CHECKING:
    from privproj.distributions.binned import Bins


NODES_FINE = 16  # Gauss nodes of the fine rule of a panel

# soundness: Gauss nodes of the check rule; the difference of both rules estimates the error (measured, not proved)
NODES_CHECK = 11

MOST_LEVELS = 12  # most halvings of a panel of level 0; the remaining error is added to the result

# soundness: smallest resolved delta, far above the upper tail beyond the panels
SMALLEST_RESOLVED_DELTA = 1e-290

# soundness: relative margin for the Gaussian profile and the densities; the total mass is checked to twice this margin
DENSITY_MARGIN = 1e-12

PANEL_BINS = 144  # default number of bins

# soundness: relative rounding of a Gaussian delta above which it is recomputed; smaller errors are added
LARGEST_ROUNDING = 1e-11

LEAST_OUTER_MASS = 1e-300  # soundness: least mass of the outermost bins

# soundness: largest error of interpolated log tails, plus 4e-15 per nat, which is mostly rounding of the density. If
# the error is larger, tails are integrated.
INTERPOLATION_ERROR = 1e-12

ROWS_AT_ONCE = 54  # points whose densities are sums over the same terms

SCAN_STRIDE = 8  # stride of the terms that are computed first, to find the range of terms that are not negligible

# soundness: nats below the largest scanned term of a row at which terms are omitted
LOG_NEGLIGIBLE_TERM = 60.0


class LogDensity(Protocol):
    """The interface of a distribution of the log squared sensitivity; it must be hashable."""

    @property
    def ends(self) -> tuple[float, float, float]:
        """The range of the log squared sensitivity and the width of its peak, ``(low, high, width)``.

        The probability below ``low`` is 1e-20, and the probability above ``high`` is far smaller.
        """
        ...

    def density(self, y: Array) -> Array:
        """Return the density of the log squared sensitivity at an array of points."""
        ...


@dataclass(frozen=True)
class _Nodes:
    """Intervals of the log squared sensitivity with the nodes of two Gauss rules.

    * ``left``, ``right``: the ends of the intervals.
    * ``x``, of shape ``(intervals, nodes)``: squared sensitivities at the nodes, first of the fine rule, then of the
      check rule.
    * ``weighted``, of the same shape: the density at the node times the weight of the node.
    """

    left: Array
    right: Array
    x: Array
    weighted: Array

    def sums(self, values: Array) -> tuple[Array, Array]:
        """Return expectations over each interval by the fine rule and by the check rule.

        ``values`` is the integrand without the density, at all nodes.
        """
        terms = values * self.weighted
        return terms[:, :NODES_FINE].sum(axis=1), terms[:, NODES_FINE:].sum(axis=1)


@dataclass
class _TabulatedPanels:
    """Cached Gauss nodes on intervals that cover the range of a log squared sensitivity."""

    dist: LogDensity

    @cached_property
    def grid(self) -> tuple[float, float, int]:
        """The left end of the first interval, the width of each interval, and their number."""
        low, high, width = self.dist.ends
        count = max(8, math.ceil((high - low) / width))
        return low, (high - low) / count, count

    def evaluate_panels(self, left: Array, right: Array) -> _Nodes:
        """Return Gauss nodes on intervals of the log squared sensitivity, without caching."""
        nodes, weights = (
            np.concatenate(x) for x in zip(gauss_nodes(NODES_FINE), gauss_nodes(NODES_CHECK), strict=True)
        )
        # int f(y) dy over a panel = sum of density(y_i) w_i (right - left) at y_i = left + (right - left) node_i
        y = left[:, None] + (right - left)[:, None] * nodes
        flat = y.ravel()
        rows = [self.dist.density(flat[i : i + ROWS_AT_ONCE]) for i in range(0, len(flat), ROWS_AT_ONCE)]
        density = np.concatenate(rows).reshape(y.shape)
        return _Nodes(left, right, np.exp(y), density * weights * (right - left)[:, None])

    @cached_property
    def interpolants(self) -> tuple[Array, NDArray[np.bool_]]:
        """Polynomials for ``ln P(X > x)`` and ``ln E[X; X > x]``, and a mask of accurate ones.

        ``X`` is the squared sensitivity. The polynomials have the shape ``(intervals, 2, nodes)``, highest power first.
        Their variable runs from -1 to 1 on each interval of ``ln x``.
        """
        _, width, _ = self.grid
        weights = np.concatenate([gauss_nodes(NODES_FINE)[1], gauss_nodes(NODES_CHECK)[1]])
        nodes, fine = gauss_nodes(NODES_FINE)
        with np.errstate(all="ignore"):
            logs = np.log(self.base.weighted / (width * weights))
            at_nodes, check = logs[:, :NODES_FINE], logs[:, NODES_FINE:]
            error = np.abs(at_nodes @ _lagrange(gauss_nodes(NODES_CHECK)[0]).T - check).max(axis=1)
            # Logs of the integrals from each Chebyshev point and from the left edge to the right edge of the panel, in
            # two parts each, plus the integral beyond the panel.
            points = np.append(np.cos(np.pi * (np.arange(NODES_FINE) + 0.5) / NODES_FINE), -1.0)
            starts = 0.5 + 0.5 * points
            parts = np.concatenate([0.25 * nodes, 0.25 + 0.75 * nodes]), np.concatenate([0.25 * fine, 0.75 * fine])
            places = starts[:, None] + (1.0 - starts)[:, None] * parts[0]
            inside = np.exp(at_nodes @ _lagrange(places.ravel()).T).reshape(len(at_nodes), *places.shape)
            inside *= width * (1.0 - starts)[:, None] * parts[1]
            x = np.exp(self.base.left[:, None, None] + width * places)
            pieces = np.stack([(inside * v).sum(axis=2) for v in (1.0, x)], axis=1)
            of_panels = np.stack([-np.diff(end) for end in self.above], axis=1)
            of_panels = np.where(np.isfinite(pieces[..., -1]), pieces[..., -1], of_panels)
            beyond = np.append(np.cumsum(of_panels[:0:-1], axis=0)[::-1], [[0.0, 0.0]], axis=0)
            values = np.log(pieces + beyond[..., None])
            good = np.isfinite(values).all(axis=(1, 2))
            values[~good] = 0.0
            solved = np.linalg.solve(np.vander(points[:-1]), values[..., :-1].reshape(-1, NODES_FINE).T)
            polynomials = solved.T.reshape(len(at_nodes), 2, NODES_FINE)
            at_left = polynomials @ np.vander(points[-1:], NODES_FINE)[0]
            error = np.maximum(error, np.abs(at_left - values[..., -1]).max(axis=1))
            most = INTERPOLATION_ERROR + RELATIVE_ERROR_PER_NAT * np.abs(at_nodes).max(axis=1)
        return polynomials, good & (error < most)

    @cached_property
    def base(self) -> _Nodes:
        """The Gauss nodes of the intervals before any halving.

        Raises:
            ConvergenceError: The mass of the distribution is not 1.
        """
        low, width, count = self.grid
        left = np.asarray(low + width * np.arange(count), dtype=np.float64)
        nodes = self.evaluate_panels(left, left + width)
        mass = float(nodes.sums(np.ones_like(nodes.x))[0].sum())
        if not abs(mass - 1.0) < 2.0 * DENSITY_MARGIN:
            raise ConvergenceError(
                f"the distribution of the squared sensitivity has mass {mass!r} instead "
                f"of 1. Please report these parameters as a bug."
            )
        return nodes

    @cached_property
    def above(self) -> tuple[Array, Array]:
        """``P(X > edge)`` and ``E[X; X > edge]`` at the ends of the cached intervals."""
        mass, moment = (self.base.sums(v)[0] for v in (np.ones_like(self.base.x), self.base.x))
        # Both are set to 0 at the last end.
        return tuple(np.append(np.cumsum(v[::-1])[::-1], 0.0) for v in (mass, moment))  # pyright: ignore

    def tails(self, x: float) -> tuple[float, float]:
        """Return ``P(X > x)`` and ``E[X; X > x]`` for the squared sensitivity ``X``."""
        low, width, count = self.grid
        place = (math.log(x) - low) / width if x > 0.0 else -1.0
        mass, moment = self.above
        if place <= 0.0:
            return float(mass[0]), float(moment[0])
        if place >= count:
            return 0.0, 0.0
        polynomials, fits = self.interpolants
        if fits[int(place)]:
            t = 2.0 * (place - int(place)) - 1.0
            pair = polynomials[int(place)].tolist()
            return math.exp(_horner(pair[0], t)), math.exp(_horner(pair[1], t))
        # P(X > x) = the part of its own panel above x, and all panels after it; the same for E[X; X > x]
        after = int(place) + 1
        part = self.evaluate_panels(np.array([math.log(x)]), np.array([low + after * width]))
        more = [float(part.sums(v)[0][0]) for v in (np.ones_like(part.x), part.x)]
        return float(mass[after]) + more[0], float(moment[after]) + more[1]

    def mean_profile(self, eps: float, scale: float, up_to: float = math.inf) -> tuple[float, float]:
        """Return the mean Gaussian delta at the squared sensitivity ``scale * X``, and its error.

        The error is relative and estimated. Values of ``X`` above ``up_to`` count as 0.
        """
        low, width, count = self.grid
        place = min((math.log(up_to) - low) / width, float(count)) if up_to < math.inf else float(count)
        full, base = max(int(place), 0), self.base
        pieces = [_Nodes(*(part[:full] for part in (base.left, base.right, base.x, base.weighted)))]
        if place > full:
            pieces.append(self.evaluate_panels(np.array([low + full * width]), np.array([low + place * width])))
        value, error = np.sum([self.integrate_panels(eps, scale, piece) for piece in pieces], axis=0).tolist()
        return value, error / value if value > 0.0 else 0.0

    def integrate_panels(self, eps: float, scale: float, piece: _Nodes) -> tuple[float, float]:
        """Return the part of the mean Gaussian delta over the intervals of ``piece``.

        The second result is its absolute error. The squared sensitivities are ``scale * piece.x``.
        """
        value = error = 0.0
        for level in range(MOST_LEVELS + 1):
            # E[h_eps(scale X); panel] = int h_eps(scale e^y) f(y) dy by both rules (C4)
            mu = np.sqrt(scale * piece.x)
            values, rounding = gaussian_values(eps, mu)
            # At small sensitivities the array function loses digits by cancellation, and the kernel is used instead.
            rough = rounding > LARGEST_ROUNDING * values
            values[rough] = [math.exp(log_gaussian_delta(eps, shift)) for shift in mu[rough].tolist()]
            rounding[rough] = 0.0
            (fine, coarse), (slack, _) = piece.sums(values), piece.sums(rounding)
            gap = np.abs(fine - coarse)
            # Halve the panels whose error exceeds 1e-13 of the value, plus rounding. The other errors are added up.
            wide = gap > 0.1 * 1e-12 * (value + float(fine.sum())) + slack
            if level == MOST_LEVELS or not wide.any():
                wide = np.zeros_like(wide)
            value += float(fine[~wide].sum())
            error += float((np.minimum(gap, np.abs(fine)) + slack)[~wide].sum())
            if not wide.any():
                return value, error
            middle = 0.5 * (piece.left[wide] + piece.right[wide])
            ends = np.concatenate([piece.left[wide], middle]), np.concatenate([middle, piece.right[wide]])
            piece = self.evaluate_panels(*ends)
        raise AssertionError

    def bins(self, count: int) -> "Bins":
        """Return the distribution of the squared sensitivity in about ``count`` bins."""
        from privproj.distributions.binned import LEAST_DIVIDED_MASS, Bins

        low, width, panels = self.grid
        mass, moment = self.above
        # The bins end at an upper tail of 1e-45.
        end = int(np.argmax(mass < 1e-45)) or panels
        start = max(int(np.argmin(mass > 1.0 - 1e-9)) - 1, 0)
        # the first level with at least count panels; each level has twice as many
        level = max(0, math.ceil(math.log2(count / max(end - start, 1))))
        left = np.asarray(low + width / 2.0**level * np.arange(start << level, end << level), float)
        nodes = self.evaluate_panels(left, left + width / 2.0**level)
        masses, moments = (nodes.sums(v)[0] for v in (np.ones_like(nodes.x), nodes.x))
        edges = np.exp(np.append(nodes.left, nodes.right[-1]))
        below = max(1.0 - float(mass[start]), LEAST_OUTER_MASS), max(float(moment[0] - moment[start]), 0.0)
        masses = np.concatenate([[below[0]], masses, [max(float(mass[end]), LEAST_OUTER_MASS)]])
        moments = np.concatenate([[below[1]], moments, [float(moment[end])]])
        edges = np.concatenate([[0.0], edges, [2.0 * edges[-1] * math.exp(width)]])
        mean = np.divide(moments, masses, out=edges[1:].copy(), where=masses > LEAST_DIVIDED_MASS)
        mean = np.clip(mean, edges[:-1], edges[1:])
        # Masses are raised by the relative error of the density.
        return Bins(edges, masses * (1.0 + DENSITY_MARGIN), mean, unbounded=True)


@dataclass(frozen=True)
class TabulatedSensitivity:
    """A squared sensitivity whose density has no closed form.

    * ``dist``: the distribution of the log squared sensitivity before scaling.
    * ``scale``: the factor that makes it a squared sensitivity over the noise variance.
    """

    dist: LogDensity
    scale: float
    # Doubles underflow near e^-708.
    least_tail: ClassVar[float] = -660.0

    @property
    def panels(self) -> _TabulatedPanels:
        """The cached intervals for integration over the squared sensitivity before scaling."""
        return panels_of(self.dist)

    @property
    def mean(self) -> float:
        """The mean of the squared sensitivity."""
        return self.scale * float(self.panels.above[1][0])

    @property
    def supremum(self) -> float:
        """The supremum ``inf``: the squared sensitivity is unbounded."""
        return math.inf

    def log_tail(self, x: float) -> float:
        """Return ``ln P(X > x)`` for the squared sensitivity ``X``; ``-inf`` above the tabulated range."""
        tail = self.panels.tails(x / self.scale)[0]
        return math.log(min(tail, 1.0)) if tail > 0.0 else -math.inf

    def mean_above(self, x: float) -> float:
        """Return ``E[X | X > x]`` for the squared sensitivity ``X``; ``x`` if it is above the tabulated range."""
        mass, moment = self.panels.tails(x / self.scale)
        return max(x, self.scale * moment / mass) if mass > 0.0 else x

    def expected_profile(self, eps: float, up_to: float = math.inf) -> Enclosure:
        """Return bounds of the log of the mean Gaussian delta over the squared sensitivity (C4).

        Squared sensitivities above ``up_to`` count as 0. The upper bound is at least the log of
        :data:`SMALLEST_RESOLVED_DELTA`.
        """
        value, error = self.panels.mean_profile(eps, self.scale, up_to / self.scale)
        if value < SMALLEST_RESOLVED_DELTA:
            return Enclosure(-math.inf, math.log(SMALLEST_RESOLVED_DELTA))
        return widen_outward(math.log(value), error + DENSITY_MARGIN, 4.0 * abs(math.log(value)) + 40.0)

    def bins(self, finer: int = 1) -> "Bins":
        """Return the distribution in bins; ``finer`` multiplies their default number."""
        from privproj.distributions.binned import Bins

        unit = _bins_of(self.dist, finer * PANEL_BINS)
        return Bins(self.scale * unit.edges, unit.mass, self.scale * unit.mean, unbounded=True)


def _horner(coefficients: list[float], t: float) -> float:
    total = 0.0
    for coefficient in coefficients:
        total = total * t + coefficient
    return total


def _lagrange(places: Array) -> Array:
    """Return Lagrange weights for interpolation from the nodes of the fine Gauss rule.

    ``places`` are points from 0 to 1 on the interval of the rule. The weights have one more axis, the last.
    """
    nodes = gauss_nodes(NODES_FINE)[0]
    gaps = places[..., None] - nodes
    # barycentric: (w_j / (x - x_j)) / sum of these, w_j = 1 / prod_(i != j) (x_j - x_i)
    apart = 4.0 * (nodes[:, None] - nodes) + np.eye(NODES_FINE)
    terms = (1.0 / apart.prod(axis=1)) / gaps
    return terms / terms.sum(axis=-1, keepdims=True)


def terms_that_matter(scanned: Array, count: int) -> slice:
    """Return the range of the terms of a sum that are not negligible in at least one row.

    ``scanned`` has the logs of every :data:`SCAN_STRIDE`-th of ``count`` terms, for each row.
    """
    near = (scanned > scanned.max(axis=1, keepdims=True) - LOG_NEGLIGIBLE_TERM).any(axis=0).nonzero()[0]
    first, last = (int(near[0]), int(near[-1])) if len(near) else (0, count)
    return slice(max(0, (first - 1) * SCAN_STRIDE), min(count, (last + 1) * SCAN_STRIDE + 1))


def log_sum_exp(logs: Array) -> float:
    """Return the log of the sum of ``e^logs`` over all entries."""
    peak = float(np.max(logs))
    return peak + math.log(float(np.exp(logs - peak).sum()))


@lru_cache(maxsize=64)
def panels_of(dist: LogDensity) -> _TabulatedPanels:
    """Return the cached intervals for integration over a log squared sensitivity."""
    return _TabulatedPanels(dist)


@lru_cache(maxsize=64)
def _bins_of(dist: LogDensity, count: int) -> "Bins":
    return panels_of(dist).bins(count)
