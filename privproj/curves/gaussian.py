"""The exact profile of the Gaussian mechanism (C3; Balle, Wang 2018, Theorem 8), one epsilon at a time."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privproj.curves.columns import KernelColumns
from privproj.curves.profile import PrivacyProfile
from privproj.numerics import kernels
from privproj.numerics.enclosure import Enclosure, widen_outward

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array


def log_delta_ends(eps: float, law: Sequence[float]) -> tuple[float, float]:
    """The enclosure of ``ln delta`` of :func:`gaussian_profile`; the row of the law is ``(mu,)``."""
    mu = law[0]
    return widen_outward(kernels.log_gaussian_delta(eps, mu), steepness=mu * mu)


def epsilon_ends(log_delta: float, law: Sequence[float]) -> tuple[float, float]:
    """The enclosure of the inverse of :func:`log_delta_ends`."""
    return gaussian_profile(law[0]).epsilon(log_delta)


GAUSSIAN_COLUMNS = KernelColumns(log_delta_ends, epsilon_ends)
"""The profile over columns, a row ``(mu,)`` for each release."""


def gaussian_profile(mu: float) -> PrivacyProfile:
    """The exact profile of a release whose sensitivity over noise is ``mu >= 0``; C3 and C20 make it sound.

    ``delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``. ``T`` releases have this profile at ``mu sqrt T``.
    """

    def log_delta(eps: float) -> Enclosure:
        # ln delta, widened for the rounding of mu: d ln delta / d ln mu is at most mu^2, and what the margin allows for
        # each nat of ln delta (C20).
        return widen_outward(kernels.log_gaussian_delta(eps, mu), steepness=mu * mu)

    def table(eps: "Array") -> "tuple[Array, Array]":
        from privproj.curves.gaussian_arrays import gaussian_ends

        return gaussian_ends(eps, mu)

    return PrivacyProfile(
        log_delta, closed_form=lambda steps: gaussian_profile(mu * math.sqrt(steps)), table=table, resolution=256.0
    )
