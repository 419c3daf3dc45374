"""The Gaussian profile for many epsilons at once (C3): the array twin of :mod:`privproj.profiles.gaussian`."""

from functools import lru_cache

import numpy as np

from privproj.numerics import kernels
from privproj.numerics.arrays import Array

PROFILE_SAFETY = 1.0 + 1e-9
"""Factor for the rounding of the special functions used here (measured: far smaller). Soundness (measured)."""

SMALLEST_UPPER_DELTA = 1e-300
"""Smallest upper end that is returned, and smallest divisor. It enlarges what it replaces. Soundness."""

TAIL_PIECES = 128
"""Pieces of the table of :func:`scaled_tails`. Soundness (measured): with :data:`TAIL_DEGREE` right to 1.3e-15."""

TAIL_DEGREE = 6
"""Degree of the polynomial on each piece of that table. Soundness: as :data:`TAIL_PIECES`."""


def scaled_tails(x: Array) -> Array:
    """Return ``e^(x^2/2) Phi(-x)`` for every ``x >= 0``, right to a relative 1.3e-15 up to 500 (measured).

    Beyond 500 the error is at most 1e-15 of the value there.
    """
    # On each piece of t = 4/(4 + x) a polynomial in the distance from its middle.
    place = (4.0 * TAIL_PIECES) / (4.0 + x)
    piece = np.minimum(place, TAIL_PIECES - 0.5).astype(np.intp)
    place -= piece
    place -= 0.5
    first, *others = _tail_coefficients()
    tails = first.take(piece)
    for coefficients in others:
        tails *= place
        tails += coefficients.take(piece)
    return tails


@lru_cache(maxsize=1)
def _tail_coefficients() -> tuple[Array, ...]:
    """Return the coefficients of :func:`scaled_tails`, highest first: each an array with one for every piece.

    They interpolate in the Chebyshev nodes of each piece.
    """
    nodes = 0.5 * np.cos(np.pi * (np.arange(TAIL_DEGREE + 1) + 0.5) / (TAIL_DEGREE + 1))
    places = (np.arange(TAIL_PIECES)[:, None] + 0.5 + nodes) / TAIL_PIECES
    # e^(x^2/2) Phi(-x) at x = 4/t - 4
    values = np.array([[kernels.mills(4.0 / t - 4.0) for t in piece] for piece in places.tolist()])
    values /= 2.0 * kernels.SQRT_HALF_PI
    return tuple(np.linalg.solve(np.vander(nodes), values.T))


def gaussian_ends(eps: Array, mu: Array | float) -> tuple[Array, Array]:
    """Lower and upper bounds of the Gaussian delta for ``eps, mu >= 0`` (``eps`` in nats), broadcast (C3).

    ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``. With ``v = eps/mu - mu/2`` and
    ``q(x) = e^(x^2/2) Phi(-x)`` that is ``e^(-v^2/2) (q(v) - q(v + mu))``, and for ``v < 0`` it is
    ``1 - e^(-v^2/2) (q(-v) + q(v + mu))``.
    """
    value, rounding = gaussian_values(eps, np.asarray(mu, float))
    return _lower(value, rounding), _raise(value, rounding)


def gaussian_deltas(eps: Array, mu: Array | float) -> Array:
    """Upper bounds of the Gaussian delta for ``eps, mu >= 0``, broadcast: those of :func:`gaussian_ends`."""
    return _raise(*gaussian_values(eps, np.asarray(mu, float)))


def gaussian_deltas_below(eps: Array, mu: Array | float) -> Array:
    """Lower bounds of the Gaussian delta for ``eps, mu >= 0``, broadcast: those of :func:`gaussian_ends`."""
    return _lower(*gaussian_values(eps, np.asarray(mu, float)))


def _lower(value: Array, rounding: Array) -> Array:
    """Return lower bounds from these values: a factor for the special functions, less the rounding of differences."""
    lower = value * (2.0 - PROFILE_SAFETY)
    lower -= rounding
    return np.maximum(lower, 0.0, out=lower)


def _raise(value: Array, rounding: Array) -> Array:
    """Return upper bounds from these values, made in their place, as :func:`_lower` does lower ones."""
    value *= PROFILE_SAFETY
    value += rounding
    return np.clip(value, SMALLEST_UPPER_DELTA, 1.0, out=value)


def gaussian_values(eps: Array | float, mu: Array) -> tuple[Array, Array]:
    """Return the Gaussian deltas for ``eps, mu >= 0``, broadcast, and the rounding of their differences.

    But for that rounding they are right to far less than :data:`PROFILE_SAFETY` allows for (measured: 5e-13).
    """
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
