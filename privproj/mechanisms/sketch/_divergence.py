"""Renyi divergences of the secret Gaussian sketch, without cancellation (C14).

The ``rank`` columns of a release are i.i.d. Gaussian with covariances ``Sigma_1``, ``Sigma_2``; with the eigenvalues
``nu_i`` of ``Sigma_1^(-1/2) (Sigma_2 - Sigma_1) Sigma_1^(-1/2)``,

    D(alpha) = rank/(2 (alpha-1)) sum_i [alpha ln(1 + nu_i) - ln(1 + alpha nu_i)],    sum nu_i^2 <= Gamma^-2.

**One eigenvalue is the worst case.** Put ``f(t) = alpha ln(1-t) - ln(1 - alpha t) = sum_{j>=2} (alpha^j - alpha)/j
t^j``. Each term of the sum is at most ``f(|nu_i|)``, and ``f(sqrt(u))`` is convex in ``u`` and 0 at 0 (powers ``j/2
>= 1``, coefficients ``>= 0``), so the sum is at most ``f(sqrt(sum nu_i^2)) <= f(1/Gamma)``.

**Relative to the other covariance.** With eigenvalues relative to ``Sigma_2`` the bracket is
``-(alpha-1) ln(1 + nu) - ln(1 - (alpha-1) nu)``, whose coefficients ``((alpha-1)^j + (-1)^j (alpha-1))/j`` are
non-negative for ``alpha >= 2``: the same argument gives a smaller bound there, attained at rank one.
"""

import math

from privproj.curves.renyi import RenyiCurve
from privproj.mechanisms import Sketch
from privproj.numerics.kernels import log_residual

SERIES_BELOW = 0.3
"""Below this ``alpha t`` a power series is used, since the closed form would cancel. Speed only."""

ROUNDED = 1e-15
"""Relative margin for the rounding of the closed form, on the sum of its parts. Soundness.

It also covers a rounded ``t = 1/Gamma``: ``-ln(1 - x) - x`` moves by ``x/(1 - x)`` times ``dx``.
"""


def divergence_bracket(alpha: float, t: float) -> float:
    """``f(t) = alpha ln(1-t) - ln(1 - alpha t)`` for ``0 < alpha t < 1``, rounded up."""
    x = alpha * t
    if x < SERIES_BELOW:
        # f(t) = alpha sum_{j>=2} (alpha^(j-1) - 1)/j t^j (C14).
        growth, power, total, j = math.log(alpha), t, 0.0, 1
        while True:
            j, power = j + 1, power * t
            term = math.expm1((j - 1) * growth) / j * power
            total += term
            if term <= 1e-18 * total:
                return alpha * total * (1.0 + 1e-14)
    # f(t) = -(ln(1-x) + x) + alpha (ln(1-t) + t), x = alpha t: the linear terms are dropped, as they cancel (C14).
    grown, plain = -log_residual(-x, 1.0 - x), -alpha * log_residual(-t, 1.0 - t)
    return grown - plain + ROUNDED * (4.0 * (grown + plain) + x / (1.0 - x))


def sharp_divergence_bracket(alpha: float, t: float) -> float:
    """``-(alpha-1) ln(1 + t) - ln(1 - (alpha-1) t)`` for ``0 < (alpha-1) t < 1``, as two positive terms, rounded up."""
    x = (alpha - 1.0) * t
    # -(ln(1-x) + x) - (alpha-1) (ln(1+t) - t), x = (alpha-1) t: the linear terms cancel (C14).
    value = -log_residual(-x, 1.0 - x) - (alpha - 1.0) * log_residual(t, 1.0 + t)
    return value * (1.0 + 8.0 * ROUNDED) + 2.0 * ROUNDED * x * x / (1.0 - x)


def tight_curve(mechanism: Sketch, gamma: float, eigenvalues: int = 1) -> RenyiCurve:
    """The Renyi curve ``rdp-tight`` at this ``Gamma``, for ``1 < alpha < Gamma``, times a number of eigenvalues."""
    front = 0.5 * mechanism.needed_rank * mechanism.layer_count * eigenvalues

    def divergence(alpha: float) -> float:
        # D(alpha) = r n/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (C14).
        return front / (alpha - 1.0) * divergence_bracket(alpha, 1.0 / gamma) if alpha < gamma else math.inf

    return RenyiCurve(divergence, high=gamma)


def sharp_curve(mechanism: Sketch, gamma: float) -> RenyiCurve:
    """The Renyi curve relative to the other covariance at this ``Gamma``, for ``2 <= alpha < Gamma + 1``."""
    front = 0.5 * mechanism.needed_rank * mechanism.layer_count

    def divergence(alpha: float) -> float:
        # D(alpha) = r/(2 (alpha-1)) [-(alpha-1) ln(1 + 1/Gamma) - ln(1 - (alpha-1)/Gamma)] (C14).
        return front / (alpha - 1.0) * sharp_divergence_bracket(alpha, 1.0 / gamma) if alpha - 1.0 < gamma else math.inf

    return RenyiCurve(divergence, low=2.0, high=gamma + 1.0)
