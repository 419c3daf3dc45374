"""The Gaussian profile for many epsilons at once (C3): the array twin of :mod:`privproj.curves.gaussian`."""

import numpy as np
from scipy import special

from privproj.numerics.arrays import Array

ERFCX_SAFETY = 1.0 + 1e-9
"""Factor for the rounding of the special functions used here (measured: far smaller). Proof."""

SMALLEST_UPPER_DELTA = 1e-300
"""Smallest upper end that is returned, and smallest divisor. It enlarges what it replaces. Proof."""

ROOT_HALF = float(np.sqrt(0.5))
"""``sqrt(1/2)``: ``Phi(-v) = e^(-v^2/2) erfcx(v sqrt(1/2)) / 2``. Proof."""


def gaussian_ends(eps: Array, mu: Array | float) -> tuple[Array, Array]:
    """Lower and upper bounds of the Gaussian delta for ``eps, mu >= 0`` (``eps`` in nats), broadcast (C3).

    ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``. With ``v = eps/mu - mu/2`` that is ``e^(-v^2/2)
    (erfcx(v/sqrt 2) - erfcx((v + mu)/sqrt 2)) / 2``. Below ``v = -37`` the first term is 1 to double precision, so a
    smaller ``v`` is raised to that.
    """
    # e^(-v^2/2) / 2 (erfcx(v/sqrt 2) - erfcx((v + mu)/sqrt 2)),  v = eps/mu - mu/2
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        v = np.where(np.asarray(mu) > 0.0, eps / np.maximum(mu, SMALLEST_UPPER_DELTA) - 0.5 * np.asarray(mu), np.inf)
        v = np.maximum(v, -37.0)
        half = 0.5 * np.exp(-0.5 * v * v)
        first = half * special.erfcx(ROOT_HALF * v)
        value = first - half * special.erfcx(ROOT_HALF * (v + mu))
        rounding = 4e-15 * first
    # The factor is for erfcx, the added term for the rounding of the difference.
    return np.maximum(value * (2.0 - ERFCX_SAFETY) - rounding, 0.0), np.clip(
        value * ERFCX_SAFETY + rounding, SMALLEST_UPPER_DELTA, 1.0
    )


def gaussian_deltas(eps: Array, mu: Array | float) -> Array:
    """Upper bounds of the Gaussian delta for ``eps, mu >= 0``, broadcast: those of :func:`gaussian_ends`."""
    return gaussian_ends(eps, mu)[1]
