"""Evaluate Theorem 1 of the early version of arXiv 2601.21719 (C11).

``v`` and ``v'`` are unit vectors of neighboring datasets, ``y = M v`` is the release, and ``r`` is the number of
degrees of freedom of ``M``. The theorem bounds the privacy loss if the inner products ``r v.y`` and ``r v'.y`` exceed a
threshold ``t``, and ``r |y|`` is at most ``R``. Delta is a bound on the probability of all other outputs. ``t``, ``R``
and a further parameter ``eta`` of this bound are optimized. The bound ``early`` uses the published bound on the
probability that ``r v.y`` or ``r v'.y`` is at most ``t``. The bound ``early-exact-tail`` uses this probability itself
(Figure 1a of the paper).
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.wishart import OF_ALIGNMENT, check_equal_norms
from privproj.numerics.interval import log1m_exp
from privproj.numerics.quadrature import log_integral
from privproj.numerics.root_finding import find_crossing, minimize
from privproj.numerics.special import log_add, log_gamma_below, log_gamma_front, log_gamma_tail
from privproj.profiles.approximate_dp import EpsilonDeltaRule

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array

THRESHOLD_RTOL = 1e-5  # relative accuracy of the best threshold; every threshold is sound
SPECTRAL_CONSTANT = 0.5  # soundness: c of P(|G| >= sqrt d + sqrt r + u) <= 2 exp(-c u^2), as proved


def _early_loss(mechanism: Wishart, t: float, radius: float) -> float:
    """Return the privacy loss of the bound ``early`` at its parameters (C11).

    The bound holds if the release, times the degrees of freedom, has inner products above ``t`` with both neighboring
    unit vectors and a norm of at most ``radius``.
    """
    dim, rank, m = mechanism.shape
    # slope = sqrt(R^2/t^2 - 1), sine = sqrt(1 - rho^2), m = 1 - rho.
    slope = math.sqrt((radius / t - 1.0) * (radius / t + 1.0))
    sine = math.sqrt(m * (2.0 - m))
    # ln(rho + sine slope), or ln(R/t) beyond the angle where it is largest (C11).
    growth = math.log(radius / t) if sine > slope * (1.0 - m) else math.log1p(sine * slope - m)
    # |d-r-1|/2 ln(...) + R^3 sqrt(2(1-rho)) / (2 t^2) (2601.21719, early version, Theorem 1; C11).
    front = 0.5 * abs(dim - rank - 1)
    return (front * max(growth, 0.0) + 0.5 * radius * (radius / t) ** 2 * math.sqrt(2.0 * m)) * (1.0 + 1e-12)


def _log_two_tails(mechanism: Wishart, t: float, eta: float) -> float:
    """Return the log of the published bound on ``P(min(r v.y, r v'.y) <= t)`` (C11).

    ``v`` and ``v'`` are neighboring unit vectors, ``y`` is the release, and ``r`` is the number of degrees of freedom.
    The bound holds for every ``eta >= 0``.
    """
    from scipy import special

    _, rank, m = mechanism.shape
    # z = (t(1-rho) - rho eta)/sqrt((1-rho^2)(t+eta)).
    z = (t * m - (1.0 - m) * eta) / math.sqrt(m * (2.0 - m) * (t + eta))
    # 1 - PhiBar(z) P(chi2_r > t + eta) = Phi(z) + PhiBar(z) P(chi2_r <= t + eta) (C11).
    first = float(special.log_ndtr(z))
    second = _log_below(rank, t + eta)
    return min(0.0, log_add(first, second + log1m_exp(first)))


def _log_below(rank: int, x: float) -> float:
    """Return ``ln P(X <= x)`` for a chi-square ``X`` with ``rank`` degrees of freedom."""
    place = 0.5 * rank, (x - rank) / rank, x / rank
    return log1m_exp(log_gamma_tail(*place)) if x > rank else log_gamma_below(*place)


def _log_spectral(mechanism: Wishart, radius: float, c: float = SPECTRAL_CONSTANT) -> float:
    """Return the log of a bound on the probability that ``r |y|`` exceeds ``radius``.

    ``y`` is the release, ``r`` is the number of degrees of freedom, and ``c`` is a constant of the bound.
    """
    dim, rank, _ = mechanism.shape
    # 2 exp(-c (sqrt R - sqrt d - sqrt r)^2) (C11).
    return math.log(2.0) - c * (math.sqrt(radius) - math.sqrt(dim) - math.sqrt(rank)) ** 2


def _spectral_radius(mechanism: Wishart, log_bad: float) -> float:
    """Return a radius that ``r |y|`` exceeds with probability at most ``e^log_bad``.

    ``y`` is the release, and ``r`` is the number of degrees of freedom.
    """
    dim, rank, _ = mechanism.shape
    # sqrt R = sqrt d + sqrt r + sqrt(ln(2/p)/c).
    return (math.sqrt(dim) + math.sqrt(rank) + math.sqrt(max(math.log(2.0) - log_bad, 0.0) / SPECTRAL_CONSTANT)) ** 2


def _early_rule(mechanism: Wishart, log_tail: Callable[[float], float]) -> EpsilonDeltaRule:
    """Return the bound ``early`` as a rule between epsilon and delta.

    ``log_tail(t)`` is the log of a bound on ``P(min(r v.y, r v'.y) <= t)``. ``v`` and ``v'`` are neighboring unit
    vectors, ``y`` is the release, and ``r`` is the number of degrees of freedom.
    """
    both = partial(_early_epsilon, mechanism, log_tail), partial(_early_log_delta, mechanism, log_tail)
    return EpsilonDeltaRule(*both, margin=1.0)


def _early_epsilon(mechanism: Wishart, log_tail: Callable[[float], float], log_delta: float) -> float:
    """Return the smallest epsilon of the bound ``early`` at a log delta.

    ``log_tail`` is that of :func:`_early_rule`.
    """
    rank = mechanism.needed_rank
    x = find_crossing(lambda x: log_tail(rank / x) - log_delta, 2.0, low=1e-3, high=1e60, rtol=1e-6).upper
    if x == math.inf:
        return math.inf

    def at(share: float) -> float:
        t = rank / x * math.exp(-math.exp(share))
        # 2 exp(-c (...)^2) = delta - tail(t).
        left = log_delta + log1m_exp(min(log_tail(t) - log_delta, -1e-300))
        return _early_loss(mechanism, t, _spectral_radius(mechanism, left)) if left > -math.inf else math.inf

    return minimize(at, -14.0, 4.0, rtol=THRESHOLD_RTOL, points=17)[1]


def _early_log_delta(mechanism: Wishart, log_tail: Callable[[float], float], eps: float) -> float:
    """Return the smallest log delta of the bound ``early`` at an epsilon; at most 0.

    ``log_tail`` is that of :func:`_early_rule`.
    """
    dim, rank, _ = mechanism.shape
    # A little more than (sqrt d + sqrt r)^2, which every R must exceed.
    least = (math.sqrt(dim) + math.sqrt(rank)) ** 2 * (1.0 + 1e-12)

    def excess(t: float, radius: float) -> float:
        return _early_loss(mechanism, t, radius) - eps if radius > t else -eps

    # The loss grows with R and falls with t: the search starts at the t whose loss at the least R is eps.
    x = find_crossing(lambda x: -excess(least / x, least), 2.0, low=1.0, high=1e60, rtol=1e-6)
    smallest = least / x.lower if x.upper < math.inf and x.lower > 0.0 else least * 1e-60

    # Delta is the probability of an inner product below t, plus that of a norm above the radius.
    def at(share: float) -> float:
        t = smallest * math.exp(math.exp(share))
        remaining = find_crossing(lambda y: excess(t, least / y), 1e-3, low=1e-60, high=1.0, rtol=1e-12).upper
        return 0.0 if remaining == math.inf else log_add(log_tail(t), _log_spectral(mechanism, least / remaining))

    return min(0.0, minimize(at, -14.0, 5.0, rtol=THRESHOLD_RTOL, points=17)[1] + 1e-12)


def early_bound_at(
    mechanism: Wishart, t: float, eta: float, radius: float, c: float = SPECTRAL_CONSTANT
) -> tuple[float, float]:
    """Return ``(eps, ln delta)`` of the bound ``early`` at its free parameters.

    Args:
        mechanism: The mechanism with its misalignment.
        t: The threshold of the inner products ``r v.y`` and ``r v'.y``, above 0. ``y`` is the release, ``v`` and ``v'``
            are neighboring unit vectors, and ``r`` is the number of degrees of freedom.
        eta: A free parameter of the published bound on ``P(min(r v.y, r v'.y) <= t)``, at least 0.
        radius: The bound on ``r |y|``, above ``t`` and above ``(sqrt d + sqrt r)^2`` in ``d`` dimensions.
        c: The constant of the bound on the spectral norm, above 0 and at most 1/2.

    Raises:
        InvalidParameterError: A value is out of range.
    """
    dim, rank, _ = mechanism.shape
    if not t > 0.0 or not eta >= 0.0 or not 0.0 < c <= SPECTRAL_CONSTANT:
        raise InvalidParameterError("t, eta, c", (t, eta, c), "numbers with t > 0, eta >= 0 and 0 < c <= 1/2")
    if not radius > max(t, (math.sqrt(dim) + math.sqrt(rank)) ** 2):
        raise InvalidParameterError(
            "R", radius, f"above t and above (sqrt d + sqrt r)^2 = {(dim**0.5 + rank**0.5) ** 2:.6g}"
        )
    # delta = 1 - PhiBar(z) P(chi2_r > t + eta) + 2 exp(-c (sqrt R - sqrt d - sqrt r)^2) (C11).
    bad = log_add(_log_two_tails(mechanism, t, eta), _log_spectral(mechanism, radius, c))
    return _early_loss(mechanism, t, radius), min(0.0, bad + 1e-12)


def _early_of(mechanism: Wishart) -> EpsilonDeltaRule:
    @cache
    def log_tail(t: float) -> float:
        # 1 - PhiBar(z) P(chi2_r > t + eta) at the best eta = t e^s (C11).
        return minimize(lambda s: _log_two_tails(mechanism, t, t * math.exp(s)), -25.0, 5.0, rtol=1e-9)[1]

    return _early_rule(mechanism, log_tail)


def _check_alignment(mechanism: Wishart) -> None:
    if mechanism.shape[2] >= 1.0:
        raise UnsupportedError(
            f"misalignment must be below 1 for this bound, got {mechanism.shape[2]:g}. Use the bound exact"
        )
    check_equal_norms(mechanism)


EARLY = Bound(
    name="early",
    summary="bound from the first version of arXiv 2601.21719, with optimized parameters",
    formula="eps = |d-r-1|/2 ln(rho + sqrt(1-rho^2) sqrt(R^2/t^2-1)) + R^3 sqrt(2(1-rho))/(2t^2), delta = 1 - "
    "PhiBar(z) P(chi2_r > t+eta) + 2 exp(-(sqrt R - sqrt d - sqrt r)^2/2), z = (t(1-rho) - rho eta)/"
    "sqrt((1-rho^2)(t+eta))",
    source="early version of arXiv 2601.21719, Theorem 1",
    proof="C11",
    example="--dim 50 --rank 40 --misalignment 1e-12",
    representation=_early_of,
    check=_check_alignment,
    version=2,
    **OF_ALIGNMENT,
)


def log_mixed_tail(mechanism: Wishart, t: float) -> float:
    """Return ``ln P(min(r v.y, r v'.y) <= t)``, exact up to rounding (C11).

    ``v`` and ``v'`` are neighboring unit vectors, ``y`` is the release, and ``r`` is the number of degrees of freedom.
    """
    # 1 - E[1{X > t} PhiBar((t - rho X)/sqrt((1-rho^2) X))] = P(X <= t) + E[1{X > t} Phi(...)], X ~ chi2_r (C11).
    _, rank, m = mechanism.shape
    spread = math.sqrt(m * (2.0 - m))
    return min(0.0, log_add(_log_below(rank, t), _log_beyond(rank, m, spread, t)))


def _log_beyond(rank: int, m: float, spread: float, t: float) -> float:
    """Return ``ln E[1{X > t} Phi((t - rho X)/sqrt((1-rho^2) X))]`` for ``X ~ chi2_r``.

    ``X`` has ``rank`` degrees of freedom. ``rho`` is the cosine of neighboring vectors, ``m`` is ``1 - rho``, and
    ``spread`` is ``sqrt(1 - rho^2)``.
    """
    import numpy as np
    from scipy import special

    # X = t (1 + v), s = ln v. For a tiny t the integrand is concentrated near X = 1 - rho^2, far above t.
    def integrand(s: "Array") -> "Array":
        v = np.exp(s)
        # z = (t - rho X)/sqrt((1-rho^2) X) = sqrt(t) (m - (1-m) v)/sqrt((1-rho^2) (1+v)), dX/X = v/(1+v) ds.
        z = math.sqrt(t) * (m - (1.0 - m) * v) / (spread * np.sqrt(1.0 + v))
        w = np.log1p(v)
        return special.log_ndtr(z) + _log_fronts(rank, math.log(t / rank) + w) + s - w

    width = max(spread / math.sqrt(t), m, 1e-15)
    value, error = log_integral(integrand, math.log(width), 0.5, takes_arrays=True)
    return value + error + 1e-12


def _log_fronts(rank: int, w: "Array") -> "Array":
    """Return ``ln[u^a e^-u / Gamma(a)]`` at ``u = a e^w``, for ``a = rank/2``."""
    from privproj.distributions.gamma_hockey_stick import deviance

    # a [ln(1 + e) - e] - R(a) + ln(a)/2 - ln sqrt(2 pi), ln(1 + e) - e = -D(w).
    return log_gamma_front(0.5 * rank, 0.0, 1.0) - 0.5 * rank * deviance(w)


EARLY_EXACT_TAIL = Bound(
    name="early-exact-tail",
    summary="version of early that uses an exact tail probability and gives a smaller epsilon",
    formula="early with 1 - E[1{X > t} PhiBar((t - rho X)/sqrt((1-rho^2) X))], X ~ chi2_r, in place of the first part "
    "of delta",
    source="early version of arXiv 2601.21719, proof of Theorem 1 and Figure 1a",
    proof="C11",
    example="--dim 50 --rank 40 --misalignment 1e-12",
    # The early rule with the exact tail in place of its bound.
    representation=lambda mechanism: _early_rule(mechanism, cache(partial(log_mixed_tail, mechanism))),
    check=_check_alignment,
    version=3,
    **OF_ALIGNMENT,
)
