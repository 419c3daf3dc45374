"""Compute reference values for the Laplace mechanism (C3: Laplace profile)."""

import mpmath as mp

from privproj.reference.calculus import Function, Real
from privproj.reference.composition import gaussian_mu


def exact(epsilon: Real, noise_multiplier: Real) -> Real:
    """Return delta of one Laplace release, ``max(0, 1 - e^((epsilon - 1/noise_multiplier)/2))``."""
    return max(mp.mpf(0), 1 - mp.exp((mp.mpf(epsilon) - gaussian_mu(noise_multiplier)) / 2))


DELTAS: dict[str, Function] = {"laplace.exact": exact}
