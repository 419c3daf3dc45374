"""Profiles for many eps at once from laws in bins: the array twin of :mod:`privproj.laws.profiles`.

From above, a convex function is replaced by its chord over a bin, a concave one by its value at the bin's mean
(Jensen's inequality); from below it is the other way round (C28). All are right to second order in the width. Shapes:
``eps`` is ``(e,)``, a law has ``n`` bins, and values at its edges are ``(e, n + 1)``.
"""

from collections.abc import Callable

import numpy as np

from privproj.curves.gaussian_arrays import ERFCX_SAFETY, SMALLEST_UPPER_DELTA, gaussian_deltas, gaussian_ends
from privproj.laws.binned import Bins
from privproj.numerics.arrays import Array
from privproj.numerics.enclosure import Enclosure

BIN_SAFETY = 1.0 - 1e-9
"""Factor by which masses, means and slopes are lowered for their rounding (measured: far smaller). Proof."""

LEAST_LOWER_DELTA = 1e-280
"""Below this no lower bound of a delta is claimed. It covers bins too light for their mean to be known. Proof."""


def enclose_from_table(table: Callable[[Array], tuple[Array, Array]], eps: float) -> Enclosure:
    """Return an enclosure of ``ln delta(eps)`` from a table; the lower end is ``-inf`` where it is not known.

    ``table(eps)`` gives lower and upper bounds of delta for an array, and guarantees them.
    """
    lower, upper = (float(end[0]) for end in table(np.array([eps])))
    return Enclosure(float(np.log(lower)) if lower > 0.0 else -np.inf, float(np.log(max(upper, SMALLEST_UPPER_DELTA))))


def chord_means(values: Array, law: Bins) -> Array:
    """Return ``E[f; bin]`` for every bin, where ``f`` is linear between these ``values`` at the edges.

    The last axis of ``values`` runs over the ``n + 1`` edges, that of the result over the ``n`` bins; other axes are
    one function each. It is an upper bound for a convex function with these values.
    """
    # mass (f(left) (1 - w) + f(right) w),  w = (mean - left) / (right - left)
    left, right = law.edges[:-1], law.edges[1:]
    weight = (law.mean - left) / np.maximum(right - left, 1e-300)
    return law.mass * (values[..., :-1] * (1.0 - weight) + values[..., 1:] * weight)


def _inflections(eps: Array) -> Array:
    """Return ``x0(eps) = 2 (sqrt(1 + eps^2) - 1)``: array twin of :func:`privproj.laws.shift_kernels.inflection`."""
    # 2 (sqrt(1 + eps^2) - 1) = 2 eps^2 / (1 + sqrt(1 + eps^2)), without cancellation (C3)
    return 2.0 * eps * (eps / (1.0 + np.hypot(1.0, eps)))


def rank_one_deltas(eps: Array, law: Bins) -> Array:
    """Return upper bounds of ``E[h_eps(X)]`` (C4), the delta of a change of rank one, of shape ``(e,)``.

    ``h_eps`` is replaced by its chord where it is convex and by its value at the bin's mean where it is concave. A bin
    that holds ``x0`` counts with the value at its upper edge.
    """
    # E[h; bin] is at most its chord for right <= x0, mass h(mean) for left >= x0, else mass h(right) (C3, C4).
    column, x0 = eps[:, None], _inflections(eps)[:, None]
    at_edges = gaussian_deltas(column, np.sqrt(law.edges))
    convex = chord_means(at_edges, law)
    concave = law.mass * gaussian_deltas(column, np.sqrt(law.mean))
    if law.unbounded:
        at_edges[:, -1] = 1.0
    straddling = law.mass * at_edges[:, 1:]
    right, left = np.append(law.edges[1:-1], law.supremum), law.edges[:-1]
    return np.minimum(
        ERFCX_SAFETY * np.where(right <= x0, convex, np.where(left >= x0, concave, straddling)).sum(axis=1), 1.0
    )


def any_rank_deltas(eps: Array, laws: tuple[Bins, ...]) -> Array:
    """Return upper bounds of ``min_p max_l E[g_p(X_l)]`` (C5), of shape ``(e,)``, for laws under one joint clip.

    ``p`` is sought among ``M(c) = E[X | X > c]`` of each law, ``c`` an edge: the best ``c`` maximises the dual value
    ``E[h(X); X <= c] + P(X > c) h(M(c))`` of its law. Each such ``p >= x0`` gives an upper bound, as does ``x0``
    itself, which is best where only a far atom lies beyond. The least of these bounds is taken.
    """
    x0 = _inflections(eps)
    convex_everywhere = np.array([law.supremum for law in laws]).max() <= x0
    tables = [(law, gaussian_deltas(eps[:, None], np.sqrt(law.edges))) for law in laws]
    least_point = np.maximum(x0, SMALLEST_UPPER_DELTA)
    # Candidates for p: x0, and M(c) at the best c of each law. For each p, max_l E[g_p(X_l)].
    points = [least_point, *(np.maximum(_best_tangents(eps, law, at), least_point) for law, at in tables)]
    bounds = [np.max([_tangent_deltas(eps, p, law, at) for law, at in tables], axis=0) for p in points]
    least = np.min(bounds, axis=0)
    # Where sup X <= x0 (C5, case 2) the bound is E[h(X)], by chords.
    if np.any(convex_everywhere):
        chords = np.max([chord_means(at, law).sum(axis=1) * ERFCX_SAFETY for law, at in tables], axis=0)
        least = np.where(convex_everywhere, np.minimum(least, chords), least)
    return np.minimum(least, 1.0)


def rank_one_deltas_below(eps: Array, law: Bins) -> Array:
    """Return lower bounds of ``E[h_eps(X)]`` (C28), of shape ``(e,)``, 0 where none is claimed."""
    return _claimed(_means_below(eps, law).sum(axis=1))


def any_rank_deltas_below(eps: Array, laws: tuple[Bins, ...]) -> Array:
    """Return lower bounds of ``min_p max_l E[g_p(X_l)]`` (C5), of shape ``(e,)``, 0 where none is claimed.

    Each is the largest dual value ``E[h(X); X <= c] + P(X > c) h(M(c))`` over the edges ``c`` of all laws (C5, C28).
    """
    best = np.zeros(len(eps))
    for law in laws:
        within = np.cumsum(_means_below(eps, law), axis=1)
        below = np.concatenate([np.zeros((len(eps), 1)), within[:, :-1]], axis=1)
        tail, means = law.above()
        # V(c) = E[h(X); X <= c] + P(X > c) h(M(c))
        far = BIN_SAFETY * tail * gaussian_ends(eps[:, None], np.sqrt(BIN_SAFETY * means))[0]
        best = np.maximum(best, np.maximum((below + far).max(axis=1), within[:, -1]))
    return _claimed(best)


def _claimed(found: Array) -> Array:
    """Return these lower bounds, lowered by :data:`LEAST_LOWER_DELTA`, and 0 where little is left."""
    return np.minimum(np.where(found > 1e3 * LEAST_LOWER_DELTA, found - LEAST_LOWER_DELTA, 0.0), 1.0)


def _means_below(eps: Array, law: Bins) -> Array:
    """Return lower bounds of ``E[h_eps(X); bin]`` for every bin, of shape ``(e, n)``; the first bin counts as 0 (C28).

    ``h_eps`` increases: in a bin it is at least its value at the left edge, and more where it is known to bend.
    """
    column, x0 = eps[:, None], _inflections(eps)[:, None]
    mean = np.maximum(BIN_SAFETY * law.mean, law.edges[:-1])
    at_edges = gaussian_ends(column, np.sqrt(law.edges))[0]
    left, right = law.edges[:-1], np.append(law.edges[1:-1], law.supremum)
    # The lesser of the slope at the left edge and that of the chord, h(left) + min(h'(left), chord) (mean - left); the
    # former for right <= x0 gives way to h(mean) (Jensen), the latter for left >= x0 is the chord (C28).
    chord = (at_edges[:, 1:] - at_edges[:, :-1]) / np.maximum(right - left, 1e-300)
    slope = np.where(left >= x0, chord, np.minimum(chord, _slopes(column, np.maximum(left, 1e-300))))
    bent = at_edges[:, :-1] + BIN_SAFETY * np.maximum(slope, 0.0) * (mean - left)
    convex = np.maximum(bent, gaussian_ends(column, np.sqrt(mean))[0])
    found = BIN_SAFETY * law.mass * np.where(right <= x0, convex, bent)
    # What is in the first bin, which may be a small difference of large masses, is left out.
    found[:, 0] = 0.0
    return found


def _slopes(eps: Array, x: Array) -> Array:
    """Return ``h_eps'(x)`` for ``x > 0`` (C3)."""
    root = np.sqrt(x)
    # h'(x) = phi(eps/sqrt x - sqrt x/2) / (2 sqrt x)
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(-0.5 * (eps / root - 0.5 * root) ** 2) / (2.0 * root * np.sqrt(2.0 * np.pi))


def _best_tangents(eps: Array, law: Bins, at_edges: Array) -> Array:
    """Return ``M(c)`` for every ``eps``, at the edge ``c <= x0`` that maximises the dual value ``V(c)`` (C5)."""
    column, x0 = eps[:, None], _inflections(eps)[:, None]
    tail, means = law.above()
    below = np.cumsum(chord_means(at_edges, law), axis=1)
    below = np.concatenate([np.zeros((len(eps), 1)), below[:, :-1]], axis=1)
    # V(c) = E[h(X); X <= c] + P(X > c) h(M(c)) (C5)
    dual = below + tail * gaussian_deltas(column, np.sqrt(means))
    dual[law.edges[:-1] > np.maximum(x0, 0.0)] = -1.0
    return means[np.argmax(dual, axis=1)]


def _tangent_deltas(eps: Array, p: Array, law: Bins, at_edges: Array) -> Array:
    """Return upper bounds of ``E[g_p(X)]``, one for every ``eps`` and its ``p``, by chords: ``g_p`` is convex.

    ``g_p`` never rises faster than its tangent, which bounds it in a last bin without an end.
    """
    column, x0, p = eps[:, None], _inflections(eps)[:, None], p[:, None]
    # l_p(x) = h(p) + h'(p) (x - p) (C5)
    slope = _slopes(column, p)
    tangent = gaussian_deltas(column, np.sqrt(p)) + slope * (law.edges - p)
    # g_p = max(h, l_p) up to x0 and l_p beyond.
    majorant = np.where(law.edges > x0, tangent, np.maximum(at_edges, tangent))
    # g_p(x) <= g_p(left) + h'(p) (x - left) in a last bin without an end
    if law.unbounded:
        beyond = majorant[:, -2] + slope[:, 0] * (law.edges[-1] - law.edges[-2])
        majorant[:, -1] = np.maximum(majorant[:, -1], beyond)
    return np.minimum(ERFCX_SAFETY * chord_means(majorant, law).sum(axis=1), 1.0)
