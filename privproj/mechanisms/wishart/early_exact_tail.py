"""Theorem 1 of the early version with the exact probability that ``r v.y`` or ``r v'.y`` is small (its Figure 1a)."""

import math
from functools import cache
from typing import TYPE_CHECKING

from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.wishart._promises import OF_ALIGNMENT
from privproj.mechanisms.wishart.early import EarlyBound, log_below, refuses
from privproj.numerics.kernels import log_add, log_gamma_front
from privproj.numerics.quadrature import log_integral

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array


def log_mixed_tail(mechanism: Wishart, t: float) -> float:
    """The log of the probability that ``r v.y`` or ``r v'.y`` is at most ``t``, a sum of two positive terms (C11)."""
    # 1 - E[1{X > t} PhiBar((t - rho X)/sqrt((1-rho^2) X))] = P(X <= t) + E[1{X > t} Phi(...)], X ~ chi2_r (C11).
    _, rank, m = mechanism.shape
    spread = math.sqrt(m * (2.0 - m))
    # Below this share of ``1 - rho^2`` a threshold ``t`` is integrated over decades. Speed only: both routes are exact.
    beyond = _log_beyond if t < 0.1 * spread * spread else _log_just_beyond
    return min(0.0, log_add(log_below(rank, t), beyond(rank, m, spread, t)))


def _log_just_beyond(rank: int, m: float, spread: float, t: float) -> float:
    """The log of the expectation over ``X > t``, integrated over ``ln w`` with ``X = t e^w``.

    It is for a ``t`` that is not tiny: the mass then lies close to ``t``.
    """
    import numpy as np
    from scipy import special

    def integrand(s: float) -> float:
        w = math.exp(s)
        x = t * math.exp(w)
        # z = (t - rho X)/sqrt((1-rho^2) X) = sqrt(t) (m e^(w/2) - 2 sinh(w/2))/sqrt(1-rho^2), X = t e^w, w = e^s.
        z = math.sqrt(t) * (m * math.exp(0.5 * w) - 2.0 * math.sinh(0.5 * w)) / spread
        return float(special.log_ndtr(z)) + log_gamma_front(0.5 * rank, (x - rank) / rank, x / rank) + s

    def at_many(s: "Array") -> "Array":
        w = np.exp(s)
        # The same z with m e^(w/2) - 2 sinh(w/2) = e^(-w/2) (m e^w - (e^w - 1))
        z = math.sqrt(t) * np.exp(-0.5 * w) * (m * np.exp(w) - np.expm1(w)) / spread
        return special.log_ndtr(z) + _log_fronts(rank, math.log(t / rank) + w) + s

    width = max(spread / math.sqrt(t), m, 1e-15)
    value, error = log_integral(integrand, math.log(width), 0.5, math.log(40.0), at_many)
    return value + error + 1e-12


def _log_beyond(rank: int, m: float, spread: float, t: float) -> float:
    """The log of the expectation over ``X > t``, integrated over ``ln(1/X)``.

    Where ``t`` is tiny, the mass lies near ``1 - rho^2``, decades above ``t``.
    """
    import numpy as np
    from scipy import special

    def integrand(u: float) -> float:
        x = math.exp(-u)
        # z = (t - rho X)/sqrt((1-rho^2) X) with rho = 1 - m, X = e^-u.
        z = (t - x + m * x) / (spread * math.sqrt(x))
        return float(special.log_ndtr(z)) + log_gamma_front(0.5 * rank, (x - rank) / rank, x / rank)

    def at_many(u: "Array") -> "Array":
        z = (t - np.exp(-u) * (1.0 - m)) / (spread * np.exp(-0.5 * u))
        return special.log_ndtr(z) + _log_fronts(rank, -u - math.log(rank))

    middle = max(min(float(rank), spread * spread * rank), 2.0 * t)
    value, error = log_integral(integrand, -math.log(middle), 0.5, -math.log(t), at_many)
    return value + error + 1e-12


def _log_fronts(rank: int, w: "Array") -> "Array":
    """``log_gamma_front`` of ``Gamma(rank/2)`` at ``u = (rank/2) e^w``."""
    from privproj.numerics.gamma_gain import deviance

    # a [ln(1 + e) - e] - R(a) + ln(a)/2 - ln sqrt(2 pi), ln(1 + e) - e = -D(w).
    return log_gamma_front(0.5 * rank, 0.0, 1.0) - 0.5 * rank * deviance(w)


def representation(mechanism: Wishart) -> EarlyBound:
    """The early rule with the exact tail in place of its bound."""

    @cache
    def log_tail(t: float) -> float:
        return log_mixed_tail(mechanism, t)

    return EarlyBound(mechanism, log_tail)


BOUND = Bound(
    name="early-exact-tail",
    summary="the early version's bound with its tail evaluated exactly",
    formula="early with 1 - E[1{X > t} PhiBar((t - rho X)/sqrt((1-rho^2) X))], X ~ chi2_r, in place of the first part "
    "of delta",
    source="early version of arXiv 2601.21719, proof of Theorem 1 and Figure 1a",
    proof="C11",
    example="privproj epsilon wishart --bound early-exact-tail --dim 50 --rank 40 --misalignment 1e-12 --delta 1e-5",
    representation=representation,
    refuses=refuses,
    version=2,
    **OF_ALIGNMENT,
)
