"""The exact profile of the Gaussian mechanism (C3; Balle, Wang 2018, Theorem 8), one epsilon at a time."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, Enclosure, outward_margin
from privproj.numerics.inverse_kernels import newton_start, root_of
from privproj.numerics.kernels import gaussian_terms, log_gaussian_delta
from privproj.numerics.root_finding import find_crossing
from privproj.profiles.columns import KernelColumns, profile_of_kernels
from privproj.profiles.privacy_profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array


def _gaussian_ends(eps: float, law: Sequence[float], state: float) -> tuple[float, float, float, float]:
    """``(lower, upper, -d ln delta/deps, state)``; the law is ``(mu,)``, and there is nothing to keep."""
    mu = law[0]
    value = log_gaussian_delta(eps, mu)
    if value == -math.inf:
        return -math.inf, LOG_OF_ZERO_FROM_ABOVE, 0.0, state
    # ln delta, widened for the rounding of mu: d ln delta / d ln mu is at most mu^2, and what the margin allows for
    # each nat of ln delta (C20).
    margin = outward_margin(value, 0.0, mu * mu)
    _, gain, loss, _ = gaussian_terms(eps, mu * mu)
    return value - margin, min(0.0, value + margin), loss / gain if gain > 0.0 else 0.0, state


_find_root = root_of(_gaussian_ends)


def _gaussian_log_delta(eps: float, row: Sequence[float]) -> tuple[float, float]:
    """The enclosure of ``ln delta`` of :func:`gaussian_profile` as a kernel; the row of the law is ``(mu,)``."""
    lower, upper, _, _ = _gaussian_ends(eps, row, 0.0)
    return lower, upper


def _gaussian_root(log_delta: float, row: Sequence[float]) -> tuple[float, float]:
    """Nearly the inverse of :func:`_gaussian_log_delta`, as a kernel."""
    return _find_root(log_delta, row, 0.0, newton_start(row[0], log_delta))


GAUSSIAN_COLUMNS = KernelColumns(_gaussian_log_delta, _gaussian_root, weight=0.04)
"""The profile over columns, a row ``(mu,)`` for each release."""


def find_noise(eps: float, log_delta: float, rtol: float = 1e-12, near: float = 1.0) -> Enclosure:
    """``1/mu`` between which ``ln G_mu(eps)`` was evaluated to cross a number, as :func:`find_crossing` returns it.

    It is sought from ``near`` on.
    """
    # Every mu from 1e-12 to 1e12 is sought. Contract.
    range_of_noise = {"low": 1e-12, "high": 1e12, "rtol": rtol}
    return find_crossing(lambda z: log_gaussian_delta(eps, 1.0 / z) - log_delta, near, **range_of_noise)


def gaussian_profile(mu: float) -> PrivacyProfile:
    """The exact profile of a release whose sensitivity over noise is ``mu >= 0``; C3 and C20 make it sound.

    ``delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``. ``T`` releases have this profile at ``mu sqrt T``.
    """

    def table(eps: "Array") -> "tuple[Array, Array]":
        from privproj.profiles.gaussian_arrays import gaussian_ends

        return gaussian_ends(eps, mu)

    return profile_of_kernels(
        GAUSSIAN_COLUMNS,
        (mu,),
        closed_form=lambda steps: gaussian_profile(mu * math.sqrt(steps)),
        table=table,
        resolution=256.0,
        gaussian_mu=mu,
    )
