"""Compute reference values for the Laplace mechanism (C3: Laplace profile)."""

import mpmath as mp

from privproj.reference.calculus import Function, Real
from privproj.reference.composition import gaussian_mu


def exact(epsilon: Real, noise_multiplier: Real) -> Real:
    """Return delta of one Laplace release: ``1 - e^((eps - mu)/2)`` for ``eps < mu``.

    Delta is 0 for ``eps >= mu``. ``mu`` is ``1/z``, with the noise multiplier ``z``.
    """
    return max(mp.mpf(0), 1 - mp.exp((mp.mpf(epsilon) - gaussian_mu(noise_multiplier)) / 2))


DELTAS: dict[str, Function] = {"laplace.exact": exact}
