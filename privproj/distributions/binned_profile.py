"""Bounds of delta at many epsilons, for a binned squared sensitivity (C4, C5).

``X`` is the squared sensitivity over the noise variance, and ``h(x)`` is the Gaussian delta at ``eps`` and ``X = x``.
``h`` is convex up to ``x0`` and concave beyond. :mod:`privproj.distributions.mixture_profile` derives the formulas and
defines ``g_p``, a convex function above ``h``. For upper bounds, a convex function is replaced by its chord over a bin,
and a concave function by its value at the mean of the bin (Jensen's inequality). Lower bounds do the reverse (C28).

For the edge ``c`` of a bin, called a *cut*, the *dual value* is ``V(c) = E[h(X); X <= c] + P(X > c) h(M(c))`` with
``M(c) = E[X | X > c]``. It is a lower bound of ``E[g_p(X)]`` for every ``p``.

Arrays have one row for each ``eps``. A few rows are *guides*, for which ``h`` is evaluated at every edge. For rows
between two guides, ``h`` is evaluated only from the first to the last edge that contributes to one of the two guides.
The mass to the left of this first edge is moved up to this edge, which can only increase an upper bound.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privproj.distributions.binned import Bins
from privproj.numerics.arrays import Array
from privproj.profiles.gaussian import (
    PROFILE_SAFETY,
    SMALLEST_UPPER_DELTA,
    gaussian_deltas,
    gaussian_deltas_below,
)

# soundness: factor that lowers masses, means and slopes by more than their rounding (measured: far smaller)
BIN_SAFETY = 1.0 - 1e-9

# soundness: least lower bound of a delta; it covers bins whose mass is too small for their mean to be computed
LEAST_LOWER_DELTA = 1e-280

MOST_GUIDES = 96  # rows up to which the bound of each row is computed as if it were alone
ROWS_AT_ONCE = 64  # rows that are evaluated together, so that their data fit in the cache

NEGLIGIBLE_SHARE = (
    1e-12  # if a part of the distribution contributes at most this share of delta, it is bounded as a whole
)


def _inflections(eps: Array) -> Array:
    """Return the squared sensitivity at which the Gaussian delta turns concave (C3)."""
    # 2 (sqrt(1 + eps^2) - 1) = 2 eps^2 / (1 + sqrt(1 + eps^2)), without cancellation (C3)
    return 2.0 * eps * (eps / (1.0 + np.hypot(1.0, eps)))


def _slopes(eps: Array, x: Array) -> Array:
    """Return the slope of the Gaussian delta in the squared sensitivity ``x > 0`` (C3)."""
    root = np.sqrt(x)
    # h'(x) = phi(eps/sqrt x - sqrt x/2) / (2 sqrt x)
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(-0.5 * (eps / root - 0.5 * root) ** 2) / (2.0 * root * np.sqrt(2.0 * np.pi))


# --- rows and guides --------------------------------------------------------------------------------


def _in_order(evaluate: Callable[[Array], Array], eps: Array) -> Array:
    order = np.argsort(eps)
    values = np.empty(len(eps))
    values[order] = evaluate(eps[order])
    return values


def _guides(count: int) -> NDArray[np.intp]:
    """Return the indices, among ``count`` sorted epsilons, at which every bin is evaluated."""
    if count <= MOST_GUIDES:
        return np.arange(count)
    return np.linspace(0, count - 1, 1 + -(-count // ROWS_AT_ONCE)).astype(np.intp)


def _pieces(guides: NDArray[np.intp]) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the sorted epsilons, each with the slice of ``guides`` around it.

    ``guides`` are the indices from :func:`_guides`.
    """
    together = ROWS_AT_ONCE if len(guides) == guides[-1] + 1 else 1
    for i in range(0, max(len(guides) - 1, 1), together):
        last = i + together >= len(guides) - 1
        yield (
            slice(int(guides[i]), int(guides[-1]) + 1 if last else int(guides[i + together])),
            slice(i, i + together + 1),
        )


def _tabulate(function: Callable[[Array, Array], Array], eps: Array, x: Array) -> Array:
    roots, table = np.sqrt(x), np.empty((len(eps), len(x)))
    for i in range(0, len(eps), ROWS_AT_ONCE):
        table[i : i + ROWS_AT_ONCE] = function(eps[i : i + ROWS_AT_ONCE, None], roots)
    return table


# --- any rank ---------------------------------------------------------------------------------------


def any_rank_deltas(eps: Array, dists: tuple[Bins, ...]) -> Array:
    """Return upper bounds of delta if neighboring sums differ by a matrix of any rank (C5).

    ``dists`` are distributions of the squared sensitivity divided by the noise variance, one for each layer under a
    joint clipping norm.
    """
    # min_p max_l E[g_p(X_l)]; every p gives a valid bound (C5)
    return _in_order(lambda rows: _any_rank_deltas(rows, dists), eps)


def _any_rank_deltas(eps: Array, dists: tuple[Bins, ...]) -> Array:
    guides, x0 = _guides(len(eps)), np.maximum(_inflections(eps), SMALLEST_UPPER_DELTA)
    # Where sup X <= x0 (C5, case 2) the bound is E[h(X)].
    convex = max(dist.supremum for dist in dists) <= x0
    few, least, straight = eps[guides], x0[guides], convex[guides]
    tables = [_Table.of(few, dist, slice(0, len(dist.edges)), slice(0, len(dist.mass))) for dist in dists]
    points, best_of_each, best = _worst_tangents(tables, least)
    at_points, at_least = (_tangents(few, p, straight) for p in (points, least))
    bounds = _largest_means(tables, at_points, best_of_each, straight), _largest_means(tables, at_least)
    if len(guides) == len(eps):
        return np.minimum(PROFILE_SAFETY * np.minimum(*bounds), 1.0)
    # Near a guide, the tangent at x0 is tried if its bound exceeds the best bound at the guide by at most 0.1 %.
    far = bounds[1] < 1.001 * bounds[0]
    columns = [table.find_columns(np.where(far, at_least, at_points)) for table in tables]

    def tabulate(rows: slice, near: slice) -> list[_Table]:
        narrowed = []
        for dist, k, (first, stop) in zip(dists, best, columns, strict=True):
            cuts = slice(max(int(k[near].min()) - 1, 0), min(int(k[near].max()) + 2, len(dist.mass)))
            edges = slice(min(int(first[near].min()), cuts.start), max(int(stop[near].max()), cuts.stop))
            narrowed.append(_Table.of(eps[rows], dist, edges, cuts))
        return narrowed

    deltas, pieces = np.empty(len(eps)), list(_pieces(guides))
    # at most 256 tables of a distribution and a piece of rows are kept at once
    together = max(1, 256 // len(dists))
    for block in (pieces[i : i + together] for i in range(0, len(pieces), together)):
        of_pieces = [tabulate(*piece) for piece in block]
        span = slice(block[0][0].start, block[-1][0].stop)
        points = [_worst_tangents(tables, x0[rows]) for (rows, _), tables in zip(block, of_pieces, strict=True)]
        tangents = _tangents(eps[span], np.concatenate([p for p, _, _ in points]), convex[span])
        at_least = _tangents(eps[span], x0[span], convex[span]) if far.any() else tangents
        for (rows, near), tables, (_, best_of_each, _) in zip(block, of_pieces, points, strict=True):
            here = slice(rows.start - span.start, rows.stop - span.start)
            deltas[rows] = _largest_means(tables, tangents[:, here], best_of_each, convex[rows])
            if far[near].any():
                deltas[rows] = np.minimum(deltas[rows], _largest_means(tables, at_least[:, here]))
    return np.minimum(PROFILE_SAFETY * deltas, 1.0)


def _worst_tangents(tables: "list[_Table]", x0: Array) -> tuple[Array, Array, list[NDArray[np.intp]]]:
    """Return tangent points that nearly minimize the any-rank bound, at each epsilon.

    A tangent point is the squared sensitivity at which a tangent touches the Gaussian delta. ``x0`` has the inflection
    point of the Gaussian delta at each epsilon.

    Returns:
        * the best tangent point for the layer with the largest dual value;
        * the best tangent point for each layer;
        * for each layer, the index of the best edge of :meth:`_Table.find_largest_duals`.
    """
    duals = [table.find_largest_duals(x0) for table in tables]
    worst = np.argmax([value for value, _, _ in duals], axis=0)
    points = np.maximum([p for _, p, _ in duals], x0)
    return points[worst, np.arange(len(x0))], points, [best for _, _, best in duals]


def _largest_means(
    tables: "list[_Table]", tangents: Array, best_of_each: Array | None = None, convex: NDArray[np.bool_] | None = None
) -> Array:
    """Return upper bounds of delta for a difference of any rank, at each epsilon (C5).

    Args:
        tables: The Gaussian delta at the edges of the bins, for each layer.
        tangents: The first tangent at each epsilon, from :func:`_tangents`.
        best_of_each: The second result of :func:`_worst_tangents`. If given, two more tangents are tried.
        convex: True where the Gaussian delta is convex on the whole range of the squared sensitivity.
    """
    means, row = np.array([table.means(tangents) for table in tables]), np.arange(len(tables[0].eps))
    largest, first = means.max(axis=0), means.argmax(axis=0)
    if best_of_each is None or convex is None or np.array_equal(best_of_each[first, row], tangents[0]):
        return largest
    p, other = tangents[0], best_of_each[first, row]
    again = np.array([table.means(_tangents(table.eps, other, convex)) for table in tables])
    second = again.argmax(axis=0)
    # The lead of the first distribution at p and at the other point, and where it vanishes on the line through both
    leads = (part[first, row] - part[second, row] for part in (means, again))
    lead, behind = (np.maximum(sign * part, 0.0) for sign, part in zip((1.0, -1.0), leads, strict=True))
    between = p + (other - p) * np.divide(lead, lead + behind, out=np.zeros(len(row)), where=lead + behind > 0.0)
    largest = np.minimum(largest, again.max(axis=0))
    return np.minimum(largest, _largest_means(tables, _tangents(tables[0].eps, between, convex)))


def _tangents(eps: Array, p: Array, convex: NDArray[np.bool_]) -> Array:
    """Return tangents of the Gaussian delta at squared sensitivities ``p``, as three rows.

    The rows are ``p``, upper bounds of delta at ``p``, and the slopes there. Where ``convex`` is True, the line is the
    constant -1, which is below delta.
    """
    tangents = np.stack([p, gaussian_deltas(eps, np.sqrt(p)), _slopes(eps, p)])
    tangents[1:, convex] = [[-1.0], [0.0]]
    return tangents


@dataclass(frozen=True)
class _Table:
    """The Gaussian delta at a range of the edges of a binned squared sensitivity."""

    # The mass to the left of the range is moved up to its first edge.
    dist: Bins

    eps: Array  # values of eps, one for each row

    edges: slice  # range of the tabulated edges

    at_edges: Array  # upper bounds of ``h_eps`` at these edges, one row for each eps

    cuts: slice  # range of the edges ``c`` that are tried as cuts of the dual value ``V(c)``

    at_means: Array  # upper bounds of ``h_eps(M(c))`` at these cuts, with ``M(c) = E[X | X > c]``

    @classmethod
    def of(cls, eps: Array, dist: Bins, edges: slice, cuts: slice) -> "_Table":
        edges = slice(edges.start, min(edges.stop, len(dist.edges)))
        values = _tabulate(gaussian_deltas, eps, np.concatenate([dist.edges[edges], dist.above[1][cuts]]))
        count = edges.stop - edges.start
        return cls(dist, eps, edges, values[:, :count], cuts, values[:, count:])

    def find_largest_duals(self, x0: Array) -> tuple[Array, Array, NDArray[np.intp]]:
        """Return the largest dual value over edges ``c <= x0``, for each epsilon (C5).

        The dual value is delta after replacing squared sensitivities above ``c`` by their mean. The other results are
        this mean and the index of the best edge.
        """
        dist, cuts, start = self.dist, self.cuts, self.edges.start
        ahead, count = cuts.start - start, cuts.stop - 1 - cuts.start
        left, right = dist.shares
        before, bins = slice(start, cuts.start), slice(cuts.start, cuts.stop - 1)
        # V(c) = E[h(X); X <= c] + P(X > c) h(M(c)) (C5)
        weights = np.append(left[before], 0.0)
        weights[1:] += right[before]
        weights[0] += dist.mass[:start].sum()
        within = np.empty((len(self.eps), count + 1))
        within[:, 0] = self.at_edges[:, : ahead + 1] @ weights
        within[:, 1:] = left[bins] * self.at_edges[:, ahead : ahead + count]
        within[:, 1:] += right[bins] * self.at_edges[:, ahead + 1 : ahead + count + 1]
        dual = np.cumsum(within, axis=1)
        dual += dist.above[0][cuts] * self.at_means
        dual[dist.edges[cuts] > x0[:, None]] = -1.0
        best = np.argmax(dual, axis=1)
        return dual[np.arange(len(best)), best], dist.above[1][cuts][best], cuts.start + best

    def majorants(self, tangents: Array) -> Array:
        """Return the maximum of the Gaussian delta and its tangent, at every edge (C5)."""
        # g_p = max(h, l_p),  l_p(x) = h(p) + h'(p) (x - p) (C5); from x0 on l_p is the larger.
        p, height, slope = tangents[:, :, None]
        values = self.dist.edges[self.edges] - p
        values *= slope
        values += height
        np.maximum(values, self.at_edges, out=values)
        # g_p(x) <= g_p(left) + h'(p) (x - left) in an unbounded last bin
        if self.dist.unbounded and self.edges.stop == len(self.dist.edges) and values.shape[1] > 1:
            beyond = values[:, -2] + tangents[2] * (self.dist.edges[-1] - self.dist.edges[-2])
            values[:, -1] = np.maximum(values[:, -1], beyond)
        return values

    def means(self, tangents: Array) -> Array:
        """Return upper bounds of ``E[max(h(X), l(X))]`` for the squared sensitivity ``X`` (C5).

        ``h`` is the Gaussian delta, and ``l`` is the line in ``tangents``, for each epsilon.
        """
        dist, edges, majorants = self.dist, self.edges, self.majorants(tangents)
        if edges.stop < len(dist.edges) and np.any(self.at_edges[:, -1] >= majorants[:, -1]):
            return _Table.of(self.eps, dist, slice(edges.start, len(dist.edges)), self.cuts).means(tangents)
        weights, beyond = dist.weights[edges].copy(), dist.weights[edges.stop :]
        weights[0] += dist.weights[: edges.start].sum()
        p, height, slope = tangents
        # sum of the weights beyond times h(p) + h'(p) (x - p)
        rest = beyond.sum(), beyond @ dist.edges[edges.stop :]
        return majorants @ weights + (height * rest[0] + slope * (rest[1] - p * rest[0]))

    def find_columns(self, tangents: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the range of edges that contribute to :meth:`means`, for each epsilon."""
        majorants = self.majorants(tangents)
        # The range ends at the first edge where g_p is the tangent.
        stop = (self.at_edges >= majorants).sum(axis=1) + 2
        first = _first_followed(majorants, np.cumsum(self.dist.weights), majorants @ self.dist.weights)
        return np.minimum(first, stop - 2), stop


def _first_followed(values: Array, weights: Array, totals: Array) -> NDArray[np.intp]:
    """Return for each row the index before which the part of a weighted sum is negligible.

    ``values`` increase along a row. ``weights`` are the cumulative sums of their weights, and ``totals`` are the
    weighted sums.
    """
    return np.maximum((weights * values <= NEGLIGIBLE_SHARE * totals[:, None]).sum(axis=1) - 1, 0)


def any_rank_deltas_below(eps: Array, dists: tuple[Bins, ...]) -> Array:
    """Return lower bounds of the delta in :func:`any_rank_deltas`, 0 where none is known (C28)."""
    return _in_order(lambda rows: _claimed(_largest_duals_below(rows, dists)), eps)


def _largest_duals_below(eps: Array, dists: tuple[Bins, ...]) -> Array:
    """Return lower bounds of delta for a difference of any rank; ``eps`` must increase."""
    # the largest dual value V(c) over some distributions and some edges c (C5, C28)
    guides, x0 = _guides(len(eps)), _inflections(eps)
    tried = [_try_cuts(eps[guides], x0[guides], dist) for dist in dists]
    worst = np.argmax([value for value, _, _ in tried], axis=0)
    if len(guides) == len(eps):
        return np.max([value for value, _, _ in tried], axis=0)
    duals = np.zeros(len(eps))
    for index in np.unique(worst).tolist():
        dist, (_, best, first) = dists[index], tried[index]
        for rows, near in _pieces(guides):
            cuts = slice(max(int(best[near].min()) - 1, 0), min(int(best[near].max()) + 2, len(dist.mass) + 1))
            bins = slice(min(int(first[near].min()), cuts.start), cuts.stop - 1)
            within, far = _dual_parts_below(eps[rows], x0[rows], dist, bins, cuts)
            duals[rows] = np.maximum(duals[rows], np.max(within + far, axis=1))
    return duals


def _try_cuts(eps: Array, x0: Array, dist: Bins) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """Return the largest lower bound of the dual value over all edges, for each epsilon.

    :meth:`_Table.find_largest_duals` defines the dual value. The other results are the indices of the best edge and
    of the first bin that is not negligible.
    """
    count = len(dist.mass)
    within, far = _dual_parts_below(eps, x0, dist, slice(0, count), slice(0, count + 1))
    best, value = np.argmax(within + far, axis=1), np.max(within + far, axis=1)
    so_far = np.maximum.accumulate(within, axis=1)
    return value, best, _first_followed(so_far, np.ones(count + 1), value)


def _dual_parts_below(eps: Array, x0: Array, dist: Bins, bins: slice, cuts: slice) -> tuple[Array, Array]:
    """Return lower bounds of both terms of the dual value at each edge ``c`` (C5, C28).

    The terms are ``E[h(X); X <= c]`` and ``P(X > c) h(E[X | X > c])``, where ``h`` is the Gaussian delta and ``X`` the
    squared sensitivity. A bound is 0 if none is known.

    Args:
        eps: Epsilons in nats.
        x0: The inflection point of ``h`` at each epsilon.
        dist: The distribution of ``X``.
        bins: The range of bins that are used; the mass of earlier bins is omitted.
        cuts: The range of indices of the edges ``c``.
    """
    mass, mean = dist.lowered(BIN_SAFETY)
    tail, means = (np.append(BIN_SAFETY * part, 0.0)[cuts] for part in dist.above)
    ends = np.concatenate([[0.0], dist.edges[1:-1], [dist.supremum]])[cuts]
    # V(c) = E[h(X); X <= c] + P(X > c) h(M(c)), and E[h(X); bin] >= mass h(mean) where h is convex (C5, C28)
    within = np.zeros((len(eps), bins.stop - bins.start + 1))
    np.cumsum(_tabulate(gaussian_deltas_below, eps, mean[bins]) * mass[bins], axis=1, out=within[:, 1:])
    within = within[:, cuts.start - bins.start :]
    far = tail * _tabulate(gaussian_deltas_below, eps, means)
    convex = ends <= x0[:, None]
    return np.where(convex, within, 0.0), np.where(convex, far, 0.0)


# --- rank one ---------------------------------------------------------------------------------------


def rank_one_deltas(eps: Array, dist: Bins) -> Array:
    """Return upper bounds of delta if neighboring sums differ by a matrix of rank one (C4).

    ``dist`` is the distribution of the squared sensitivity over the noise variance.
    """
    return _in_order(lambda rows: np.minimum(PROFILE_SAFETY * _rank_one_means(rows, dist, _upper_means), 1.0), eps)


def rank_one_deltas_below(eps: Array, dist: Bins) -> Array:
    """Return lower bounds of the delta in :func:`rank_one_deltas`, 0 where none is known (C28)."""
    return _in_order(lambda rows: _claimed(_rank_one_means(rows, dist, _lower_means)), eps)


def _claimed(lower: Array) -> Array:
    """Return lower bounds of delta, reduced by a margin for rounding."""
    # The decrease covers bins whose mass is too small for their mean to be computed.
    return np.minimum(np.where(lower > 1e3 * LEAST_LOWER_DELTA, lower - LEAST_LOWER_DELTA, 0.0), 1.0)


def _rank_one_means(eps: Array, dist: Bins, mean: Callable[[Array, Array, Bins, slice], Array]) -> Array:
    """Return ``mean(eps, x0, dist, bins)`` with the bins that contribute to delta.

    ``x0`` are the inflection points of the Gaussian delta. ``eps`` must increase.
    """
    guides, x0 = _guides(len(eps)), _inflections(eps)
    at_left = _tabulate(gaussian_deltas, eps[guides], dist.edges[:-1])
    totals = at_left @ dist.mass
    first = _first_followed(at_left, np.cumsum(dist.mass), totals)
    stop = (dist.above[0] > NEGLIGIBLE_SHARE * totals[:, None]).sum(axis=1)
    means = np.empty(len(eps))
    for rows, near in _pieces(guides):
        bins = slice(int(first[near].min()), max(int(stop[near].max()), int(first[near].min()) + 1))
        means[rows] = mean(eps[rows], x0[rows], dist, bins)
    return means


def _bends(x0: Array, dist: Bins, bins: slice) -> tuple[slice, slice, slice]:
    """Return the ranges of bins below all inflection points, between them, and above them.

    ``x0`` has the inflection point of the Gaussian delta at each epsilon, in increasing order.
    """
    right = np.append(dist.edges[1:-1], dist.supremum)[bins]
    convex = bins.start + int(np.searchsorted(right, x0[0], "right"))
    concave = bins.start + int(np.searchsorted(dist.edges[:-1][bins], x0[-1], "left"))
    return slice(bins.start, convex), slice(convex, concave), slice(concave, bins.stop)


def _upper_means(eps: Array, x0: Array, dist: Bins, bins: slice) -> Array:
    """Return upper bounds of the Gaussian delta averaged over ``dist``, at each epsilon.

    The Gaussian delta is evaluated in ``bins`` only. ``x0`` has its inflection point at each epsilon.
    """
    convex, some, concave = _bends(x0, dist, bins)
    column, x0 = eps[:, None], x0[:, None]
    at_edges = gaussian_deltas(column, np.sqrt(dist.edges[bins.start : some.stop + 1]))
    at_means = gaussian_deltas(column, np.sqrt(dist.mean[some.start : bins.stop]))
    if dist.unbounded and some.stop == len(dist.mass):
        at_edges[:, -1] = 1.0
    # E[h; bin] is at most its chord for right <= x0, mass h(mean) for left >= x0, and mass h(right) otherwise (C3, C4).
    left, right = dist.shares
    expected = at_edges[:, : some.start - bins.start] @ left[convex]
    expected += at_edges[:, 1 : some.start - bins.start + 1] @ right[convex]
    expected += at_means[:, some.stop - some.start :] @ dist.mass[concave]
    if some.start < some.stop:
        near = at_edges[:, some.start - bins.start :]
        chord = left[some] * near[:, :-1] + right[some] * near[:, 1:]
        ends = np.append(dist.edges[1:-1], dist.supremum)[some]
        above = dist.mass[some] * np.where(dist.edges[some] >= x0, at_means[:, : some.stop - some.start], near[:, 1:])
        expected += np.where(ends <= x0, chord, above).sum(axis=1)
    return expected + dist.mass[: bins.start].sum() * at_edges[:, 0] + dist.mass[bins.stop :].sum()


def _lower_means(eps: Array, x0: Array, dist: Bins, bins: slice) -> Array:
    """Return lower bounds of the Gaussian delta averaged over ``dist``, at each epsilon (C28).

    The Gaussian delta is evaluated in ``bins`` only. ``x0`` has its inflection point at each epsilon.
    """
    convex, some, concave = _bends(x0, dist, bins)
    column, x0 = eps[:, None], x0[:, None]
    mass, mean = dist.lowered(BIN_SAFETY)
    at_means = gaussian_deltas_below(column, np.sqrt(mean[bins.start : some.stop]))
    at_edges = gaussian_deltas_below(column, np.sqrt(dist.edges[some.start : bins.stop + 1]))
    # h(mean) for right <= x0 (Jensen), and the chord h(left) + chord (mean - left) for left >= x0. Otherwise the lesser
    # of the chord and of the tangent at the left edge, h(left) + min(h'(left), chord) (mean - left) (C28).
    width = np.append(dist.edges[1:-1], dist.supremum) - dist.edges[:-1]
    share = BIN_SAFETY * (mean - dist.edges[:-1]) / np.maximum(width, 1e-300)
    expected = at_means[:, : some.start - bins.start] @ mass[convex]
    far = at_edges[:, some.stop - some.start :]
    expected += far[:, :-1] @ (mass * (1.0 - share))[concave] + far[:, 1:] @ (mass * share)[concave]
    if some.start < some.stop:
        near, left = at_edges[:, : some.stop - some.start + 1], dist.edges[some]
        chord = np.maximum(near[:, 1:] - near[:, :-1], 0.0) * share[some]
        tangent = BIN_SAFETY * _slopes(column, np.maximum(left, 1e-300)) * (mean[some] - left)
        bent = near[:, :-1] + np.where(left >= x0, chord, np.minimum(chord, tangent))
        ends = np.append(dist.edges[1:-1], dist.supremum)[some]
        values = np.where(ends <= x0, at_means[:, some.start - bins.start :], bent)
        expected += (mass[some] * values).sum(axis=1)
    return expected
