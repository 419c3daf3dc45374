"""References for the Laplace mechanism (C3), in mpmath."""

import mpmath as mp

from reference.calculus import Function, Real
from reference.composition import gaussian_mu


def exact(epsilon: Real, noise_multiplier: Real) -> Real:
    """Return delta of one Laplace release, ``1 - e^((eps - mu)/2)`` for ``eps < mu = 1/z``, else 0."""
    return max(mp.mpf(0), 1 - mp.exp((mp.mpf(epsilon) - gaussian_mu(noise_multiplier)) / 2))


DELTAS: dict[str, Function] = {"laplace.exact": exact}

SETTINGS = """
* laplace.exact.delta noise_multiplier=1 epsilon=0,0.5,1,50
  laplace.exact.delta noise_multiplier=0.01,1e6 epsilon=0,1e-9,50
"""
