"""The Gaussian profile for many epsilons at once (C3): the array twin of :mod:`privproj.curves.gaussian`."""

import math
from functools import lru_cache

import numpy as np

from privproj.numerics.arrays import Array
from privproj.numerics.tables import MILLS

PROFILE_SAFETY = 1.0 + 1e-9
"""Factor for the rounding of the special functions used here (measured: far smaller). Soundness (measured)."""

SMALLEST_UPPER_DELTA = 1e-300
"""Smallest upper end that is returned, and smallest divisor. It enlarges what it replaces. Soundness."""


def scaled_tails(x: Array) -> Array:
    """Return ``e^(x^2/2) Phi(-x)`` for every ``x >= 0``, right to a relative 1e-15 (measured)."""
    # The Mills ratio over sqrt(2 pi): y times a polynomial on each piece of y = 4/(4 + x)
    y = 4.0 / (4.0 + x)
    place = 32.0 * y
    piece = place.astype(np.intp)
    place -= piece
    place -= 0.5
    first, *others = _tail_coefficients()
    found = first.take(piece)
    for coefficients in others:
        found *= place
        found += coefficients.take(piece)
    found *= y
    return found


@lru_cache(maxsize=1)
def _tail_coefficients() -> tuple[Array, ...]:
    """Return the coefficients of :func:`scaled_tails`, highest first: each an array with one for every piece."""
    return tuple(np.array(MILLS).T[::-1] / math.sqrt(2.0 * math.pi))


def gaussian_ends(eps: Array, mu: Array | float) -> tuple[Array, Array]:
    """Lower and upper bounds of the Gaussian delta for ``eps, mu >= 0`` (``eps`` in nats), broadcast (C3).

    ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``. With ``v = eps/mu - mu/2`` and
    ``q(x) = e^(x^2/2) Phi(-x)`` that is ``e^(-v^2/2) (q(v) - q(v + mu))``, and for ``v < 0`` it is
    ``1 - e^(-v^2/2) (q(-v) + q(v + mu))``.
    """
    value, rounding = _values(eps, np.asarray(mu, float))
    return _lower(value, rounding), _raise(value, rounding)


def gaussian_deltas(eps: Array, mu: Array | float) -> Array:
    """Upper bounds of the Gaussian delta for ``eps, mu >= 0``, broadcast: those of :func:`gaussian_ends`."""
    return _raise(*_values(eps, np.asarray(mu, float)))


def gaussian_deltas_below(eps: Array, mu: Array | float) -> Array:
    """Lower bounds of the Gaussian delta for ``eps, mu >= 0``, broadcast: those of :func:`gaussian_ends`."""
    return _lower(*_values(eps, np.asarray(mu, float)))


def _lower(value: Array, rounding: Array) -> Array:
    """Return lower bounds from these values: a factor for the special functions, less the rounding of differences."""
    found = value * (2.0 - PROFILE_SAFETY)
    found -= rounding
    return np.maximum(found, 0.0, out=found)


def _raise(value: Array, rounding: Array) -> Array:
    """Return upper bounds from these values, made in their place, as :func:`_lower` does lower ones."""
    value *= PROFILE_SAFETY
    value += rounding
    return np.clip(value, SMALLEST_UPPER_DELTA, 1.0, out=value)


def _values(eps: Array, mu: Array) -> tuple[Array, Array]:
    """Return the Gaussian deltas, and the rounding of their differences."""
    with np.errstate(over="ignore", under="ignore"):
        v, half = eps / np.maximum(mu, SMALLEST_UPPER_DELTA), 0.5 * mu
        v += np.where(mu > 0.0, 0.0, np.inf)
        far = v + half
        v -= half
        density = np.square(v)
        density *= -0.5
        np.exp(density, out=density)
        # q(|v|) e^(-v^2/2) = Phi(-|v|)
        first = scaled_tails(np.abs(v))
        first *= density
        second = scaled_tails(far)
        second *= density
    # Phi(-v), which is 1 - Phi(-|v|) for v < 0
    first = np.where(v < 0.0, 1.0 - first, first)
    np.subtract(first, second, out=second)
    first *= 4e-15
    return second, first
