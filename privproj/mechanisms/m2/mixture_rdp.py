"""Compute the Renyi curve of M2 (C15).

Given the projection, the release is Gaussian. The moment of the likelihood ratio is averaged over the squared norm of a
projected unit vector, which has a Beta distribution.
"""

import math

from privproj.distributions.squared_sensitivity import ScaledBeta
from privproj.mechanisms import M2
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.gaussian import rdp_of as gaussian_form
from privproj.mechanisms.m2.rank_free import worst_differences
from privproj.numerics.interval import FUNCTION_RELATIVE_ERROR, next_up
from privproj.numerics.quadrature import log_integral
from privproj.profiles.rdp import RenyiCurve, poisson_curve

MOST_TERMS = 4000.0  # terms of the series of 1F1; beyond, an integral is faster
RELATIVE_ERROR_PER_TERM = 8e-16  # soundness: six roundings of a term and one of the sum
LARGEST_SUM = 2.0**900  # soundness: sums are divided by this power of two, which is exact


def log_energy_moment(a: float, b: float, c: float) -> float:
    """Return ``ln E[e^(c B)]`` for ``B ~ Beta(a, b)``, rounded up.

    ``E[e^(c B)]`` is Kummer's function ``1F1(a; a+b; c)``.
    """
    n = a + b
    # Terms are halved at least from j = MOST_TERMS/2 on: (a + j) c / ((n + j) (j + 1)) < 1/2.
    if 2.0 * (a + 0.5 * MOST_TERMS) * c < (n + 0.5 * MOST_TERMS) * 0.5 * MOST_TERMS:
        return _log_moment_by_terms(a, n, c)
    # ln E[e^(c B)] = c + ln E[e^(-c (1 - B))], 1 - B ~ Beta(b, a).
    rest = ScaledBeta(b, a, 1.0)
    value, error = log_integral(lambda t: rest.log_density(t) - c * rest.value(t), rest.start, rest.step)
    return next_up(c + value + FUNCTION_RELATIVE_ERROR + error)


def _log_moment_by_terms(a: float, n: float, c: float) -> float:
    """Return ``ln 1F1(a; n; c)``, Kummer's function, by its series, rounded up."""
    term = total = a * c / n
    j, log_scale = 1.0, 0.0
    while True:
        # 1F1(a; n; c) = 1 + sum t_j,  t_(j+1)/t_j = (a + j) c/((n + j)(j + 1)) (C15)
        up, down = (a + j) * c, (n + j) * (j + 1.0)
        # The ratios to come are at most x = max(a + j, 1 + j) c/((n + j)(j + 1)), so what is left is t_j x/(1 - x).
        ratio = max(up, (1.0 + j) * c) / down
        if term * ratio < 1e-17 * total * (1.0 - ratio):
            break
        term *= up / down
        j += 1.0
        total += term
        if total > LARGEST_SUM:
            term, total, log_scale = term / LARGEST_SUM, total / LARGEST_SUM, log_scale + 900.0 * math.log(2.0)
    total *= 1.0 + FUNCTION_RELATIVE_ERROR + j * RELATIVE_ERROR_PER_TERM
    return next_up(log_scale + math.log(total) if log_scale else math.log1p(total))


def _log_layer_moment(dim: int, rank: int, c: float) -> float:
    """Return ``ln E[e^(c B)]`` for the squared norm ``B`` of a projected unit vector."""
    # B is 1 if the layer is not projected.
    return c if dim == rank else log_energy_moment(0.5 * rank, 0.5 * (dim - rank), c)


def representation(mechanism: M2) -> RenyiCurve:
    """Return the Renyi curve of one release."""
    if mechanism.unprojected:
        return gaussian_form(mechanism)
    mu, joint, count = mechanism.mu, mechanism.clipping == "joint", mechanism.adaptive_count_shift

    def log_moment(alpha: float) -> float:
        # c = alpha (alpha - 1) mu^2/2, rounded up (C15).
        c = next_up(0.5 * alpha * (alpha - 1.0) * mu * mu)
        # Neighboring sums may differ in one layer only.
        if joint:
            # max_l ln 1F1(r_l/2; d_l/2; c): one direction of the worst layer (C15).
            worst = max(_log_layer_moment(d, r, c) for d, r in {(d, r) for d, r, _, _ in mechanism.parts})
            # and alpha (alpha - 1) c^2/2 of the count (C31).
            return next_up(worst + next_up(0.5 * alpha * (alpha - 1.0) * count)) if count else worst
        # sum_l n_l ln 1F1(r_l/2; d_l/2; c C_l^2/C^2): a product over independent layers (C15, C6).
        return math.fsum(n * _log_layer_moment(d, r, c * share) for d, r, n, share in mechanism.parts)

    # D(alpha) = log_moment(alpha)/(alpha - 1) (C15).
    return RenyiCurve(lambda alpha: log_moment(alpha) / (alpha - 1.0), poisson=poisson_curve(log_moment))


MIXTURE_RDP = Bound(
    name="mixture-rdp",
    mechanism=M2,
    summary="Renyi curve in closed form, for differences of any rank between neighboring sums; fast for very long runs",
    formula="D(alpha) = ln 1F1(r/2; d/2; alpha (alpha-1) mu^2/2) / (alpha-1); sampled: a binomial mixture",
    source="privproj: the Gaussian moment is convex in the captured energy, so one direction is the worst case",
    proof="C15",
    representation=representation,
    worst_differences=worst_differences,
    version=5,
    supports=("adaptive-clipping",),
)
