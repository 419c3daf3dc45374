"""Bound M2 by the Gaussian mechanism.

The projection is post-processing of a Gaussian release, so epsilon is at most that of the Gaussian mechanism.
"""

from privproj.mechanisms import M2
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.gaussian import representation

GAUSSIAN = Bound(
    name="gaussian",
    mechanism=M2,
    summary="Gaussian mechanism without the projection; the bound also holds if all releases use one projection",
    formula="delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z",
    source="post-processing; Balle, Wang 2018, Theorem 8",
    proof="C3",
    # delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z (C3): projecting is post-processing (F2).
    representation=representation,
    version=5,
    supports=("adaptive-clipping", "fixed-projection"),
)
