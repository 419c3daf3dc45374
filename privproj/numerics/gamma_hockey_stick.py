"""The mean ``E[(1 - e^(-rate (U - start)))_+]`` over ``U ~ Gamma(k)``, the hockey stick of a Gamma variable, in logs.

Privacy losses that are linear in a chi-square come down to this mean. Every term is positive, so nothing cancels. Below
*hockey stick* is the mean and *gain* the function under it.
"""

import math
from functools import lru_cache

import numpy as np

from privproj.numerics.arrays import Array, gauss_nodes
from privproj.numerics.kernels import stirling_remainder

INNER_NODES = 64
"""Gauss nodes of an integral. :data:`QUADRATURE_RELATIVE_ERROR` was measured with so many. Soundness (measured)."""

QUADRATURE_RELATIVE_ERROR = 2e-11
"""Relative error of the quadrature (measured against 200 nodes and 30 digits: below 4e-12, k from 1/2 to 5e6).

Soundness (measured).
"""

LAYER_GROWTH = 300.0
"""Each layer is this many times as wide as the one before. Speed only."""

FARTHEST_PLACE = 1e30
"""Largest ``start / k`` that is told apart; beyond it the hockey stick is 0, or all is gained. Soundness."""

DROPPED_NATS = 40.0
"""Nats below its largest value where an integrand is left out: less than :data:`QUADRATURE_RELATIVE_ERROR` counts.
Soundness.
"""

LARGEST_DENSITY_EXPONENT = 600.0
"""Exponents beyond this are not evaluated, to avoid overflow; none is reached within the range. Soundness."""


def log_gamma_hockey_stick(k: float, rate: Array, start: Array, sign: float, inner: int = INNER_NODES) -> Array:
    """Return ``ln E[(1 - e^(-rate (U - start)))_+]``, ``U ~ Gamma(k)``; for ``sign = -1`` with ``start - U``.

    ``rate`` and ``start`` are arrays of equal shape, which is that of the result. The quadrature is over ``w = U/k``
    where the integrand is within ``e^-40`` of its largest: the density falls as ``e^(-k D)`` with the deviance ``D = w
    - 1 - ln w``. Where the gain rises within a small part of that range, its first layer and ever wider ones get nodes
    of their own (not with fewer than :data:`INNER_NODES` nodes, a rough look). The relative error is below
    :data:`QUADRATURE_RELATIVE_ERROR`, which was measured.
    """
    # E = sqrt(k/2 pi) e^-R int e^(-k D(w)) gain(w) dw/w, D = w - 1 - ln w, R the remainder of Stirling's formula
    place = np.clip(start / k, -FARTHEST_PLACE, FARTHEST_PLACE)
    reached = _deviance_at_start(place, sign)
    low, high = _deviance_interval(reached + (DROPPED_NATS + 0.5 * math.log(k + 1.0)) / k)
    low, high = (np.maximum(low, place), high) if sign > 0.0 else (low, np.minimum(high, place))
    log_total = _log_panel_integral(k, rate, place, reached, low, high, sign, inner)
    # Largest rise of the gain's exponent, in nats, over a range without layers of its own. Speed only.
    steep = rate * k * (high - low) > 60.0
    if inner >= INNER_NODES and np.any(steep):
        some = [np.broadcast_to(x, steep.shape)[steep] for x in (rate, place, reached, low, high)]
        log_total[steep] = _log_integral_by_layers(k, some[0], some[1], some[2], some[3], some[4], sign, inner)
    return log_total + 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k)


def _deviance_interval(t: Array) -> tuple[Array, Array]:
    """Return ``(w, w')``, ``w < 1 < w'``, where the deviance is a little above ``t``: a series in ``sqrt(2 t)``."""
    # w = 1 - s + s^2/3 - s^3/24 and w' = 1 + s + min(s^2/2, s^2/3 + s^3/36), s = sqrt(2 t)
    s = np.sqrt(2.0 * t)
    low = -s + s * s * (1.0 / 3.0 - s / 24.0)
    return np.maximum(1.0 + low, 0.0), 1.0 + s + np.minimum(t, s * s * (1.0 / 3.0 + s / 36.0))


def _log_integral_by_layers(
    k: float, rate: Array, place: Array, reached: Array, low: Array, high: Array, sign: float, inner: int
) -> Array:
    """Return ``ln`` of the integral by layers from ``place``, each :data:`LAYER_GROWTH` times as wide as the last."""
    # Rise of the gain's exponent, in nats, over the first layer. Speed only.
    layer, parts = 30.0 / (k * rate), []
    while np.any(low < high):
        corner = np.clip(place + sign * layer, low, high)
        ends = (low, corner) if sign > 0.0 else (corner, high)
        parts.append(_log_panel_integral(k, rate, place, reached, *ends, sign, inner))
        low, high = (corner, high) if sign > 0.0 else (low, corner)
        layer = LAYER_GROWTH * layer
    return np.logaddexp.reduce(parts)


def _deviance_at_start(place: Array, sign: float) -> Array:
    """Return the deviance ``D`` at ``place`` where the gain starts beyond the mean, else 0."""
    beyond = np.where(place > 0.0, sign * np.maximum(sign * (place - 1.0), 0.0), 0.0)
    return beyond - np.log1p(beyond)


def _log_panel_integral(
    k: float, rate: Array, place: Array, reached: Array, low: Array, high: Array, sign: float, inner: int
) -> Array:
    """Return ``ln int e^(-k D(w)) (1 - e^(-rate k sign (w - place))) dw/w`` over ``[low, high]``."""
    width = np.maximum(high - low, 0.0)
    share, rest, weights = _crowded_nodes(sign, inner)
    w = low[..., None] + width[..., None] * share
    beyond, part = (low - place, share) if sign > 0.0 else (place - high, rest)
    gain = -np.expm1((-rate * k)[..., None] * (beyond[..., None] + width[..., None] * part))
    with np.errstate(divide="ignore", invalid="ignore"):
        # -k D(w) - ln w = (k - 1)(ln w - (w - 1)) - (w - 1), less its value where the gain starts
        away = w - 1.0
        exponent = (k - 1.0) * (np.log1p(away) - away) - away + k * reached[..., None]
        total = (np.exp(np.minimum(exponent, LARGEST_DENSITY_EXPONENT)) * gain) @ weights * width
        return np.where(width > 0.0, np.log(total) - reached * k, -np.inf)


@lru_cache(maxsize=8)
def _crowded_nodes(sign: float, inner: int) -> tuple[Array, Array, Array]:
    """Return ``(place, 1 - place, weight)`` of nodes on [0, 1] that crowd where the gain starts.

    * ``place``: the nodes, of shape ``(inner,)``.
    * ``1 - place``: their distances from 1, without cancellation.
    * ``weight``: their weights in the rule.

    For ``sign = -1`` they crowd at 0 too, where ``U`` starts.
    """
    nodes, weights = gauss_nodes(inner)
    # int_0^1 f(x) dx at x = u^2, or at x = u^2 (3 - 2u), which turns at both ends
    if sign > 0.0:
        return nodes**2, 1.0 - nodes**2, 2.0 * nodes * weights
    share, rest = nodes**2 * (3.0 - 2.0 * nodes), (1.0 - nodes) ** 2 * (1.0 + 2.0 * nodes)
    return share, rest, 6.0 * nodes * (1.0 - nodes) * weights
