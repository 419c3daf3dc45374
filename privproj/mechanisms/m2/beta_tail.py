"""Compute the published bound of M2 (arXiv 2601.21719, Theorem 5; C16).

Let ``B ~ Beta(r/2, (d-r)/2)`` be the squared norm of a projected unit vector. Let ``k`` be the rank of the difference
between neighboring sums, and ``mu`` the sensitivity divided by the standard deviation of the noise. With probability at
most ``k P(B > tau)``, the projection keeps more than the fraction ``tau`` of the squared norm of the difference. The
bound adds this probability to a term of the Gaussian mechanism, with ``mu sqrt(tau)`` in place of ``mu``. In the bound
``beta-tail``, this term is the probability that the absolute privacy loss exceeds ``eps``. In ``beta-tail-sharp``, it
is the Gaussian delta. The two bounds are minimized over ``tau``, for one layer or for several layers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from privproj.assumptions import Assumption, DataAssumption
from privproj.errors import InvalidParameterError
from privproj.mechanisms import M2
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.m2.beta_tail_kernels import (
    beta_tail_delta,
    beta_tail_epsilon,
    beta_tail_minimum,
    beta_tail_start,
    log_tail_profile,
    tail_profile_epsilon_slope,
)
from privproj.numerics.interval import (
    LOG_OF_ZERO_FROM_ABOVE,
    Enclosure,
    next_up,
    outward_margin,
    widen_outward,
)
from privproj.numerics.root_finding import find_crossing, minimize, root_of
from privproj.numerics.special import beta_constant, log_add, log_beta_tail
from privproj.profiles.privacy_profile import FreeParameter, PrivacyProfile, ProfileKernels, profile_from_kernels


def rank_of_difference(mechanism: M2) -> int:
    """Return the rank of the difference between neighboring sums.

    The result is the assumed rank, or else the largest rank that the shape allows.
    """
    return mechanism.change_rank or mechanism.largest_rank


def _log_union_tail(mechanism: M2, t: float) -> float:
    """Return ``ln p`` for a bound ``p`` on the probability of a large projection (C16).

    With probability at most ``p``, projections keep more than the fraction ``1/(1 + e^-t)`` of the squared norm of the
    difference between neighboring sums.
    """
    # y = 1 - tau and e^t y = tau.
    y = 1.0 / (1.0 + math.exp(t))
    # ln sum_l n_l k_l P(B_l > tau), B_l ~ Beta(r_l/2, (d_l - r_l)/2) (C16, C7).
    total = -math.inf
    for dim, rank, count, _ in mechanism.parts:
        k = min(mechanism.change_rank or dim, dim, mechanism.columns or dim)
        tail = 0.0 if dim == rank else log_beta_tail(0.5 * rank, 0.5 * (dim - rank), math.exp(t) * y, y)
        total = log_add(total, math.log(count) + math.log(k) + tail)
    return total


def _beta_tail_ends(
    eps: float, distribution: tuple[float, ...], state: tuple[float, float, float]
) -> tuple[float, float, float, tuple[float, float, float]]:
    """Return two bounds of ``ln delta``, the slope ``-d ln delta/deps``, and a new ``state``.

    ``distribution`` is the result of :func:`_beta_tail_parameters`. ``state`` has the logits at which two searches for
    the best ``tau`` begin, and the ``eps`` at which they were found.
    """
    a, b, mu, sharp, log_k, c = distribution
    # The logits of the two local minima over tau at an earlier eps, and this eps
    below, above, found_at = state
    if eps <= 0.0 and sharp < 0.5:
        return 0.0, 0.0, 0.0, state
    # There may be two local minima over tau.
    # 2 %: relative distance of epsilons up to which local minima are followed
    if not math.fabs(eps - found_at) <= 0.02 * eps:
        below = beta_tail_start(-1.0, a, b, c, log_k, mu, eps, sharp > 0.5)
        above = beta_tail_start(1.0, a, b, c, log_k, mu, eps, sharp > 0.5)
        found_at = eps
    value, t = beta_tail_minimum(below, a, b, c, log_k, mu, eps, sharp > 0.5)
    other, other_t = beta_tail_minimum(above, a, b, c, log_k, mu, eps, sharp > 0.5)
    state = (t if t < math.inf else below, other_t if other_t < math.inf else above, found_at)
    if other < value:
        value, t = other, other_t
    if value == -math.inf:
        return -math.inf, LOG_OF_ZERO_FROM_ABOVE, 0.0, state
    margin = outward_margin(value, 0.0, mu * mu)
    # The slope is that of the Gaussian term at the best tau (the envelope theorem).
    best = mu * math.sqrt(1.0 / (1.0 + math.exp(-t))) if t < 35.0 else mu
    slope = math.exp(min(700.0, tail_profile_epsilon_slope(eps, best, sharp > 0.5) - value)) if eps > 0.0 else 0.0
    return value - margin, min(0.0, value + margin), slope, state


_find_root = root_of(_beta_tail_ends, bends=True)


def _beta_tail_parameters(row: Sequence[float]) -> tuple[float, ...]:
    return row[0], row[1], row[3], row[4], math.log(row[2]), beta_constant(row[0], row[1])


def _beta_tail_log_delta(eps: float, row: Sequence[float]) -> tuple[float, float]:
    """Return two bounds of ``ln delta``, for a ``row`` from :func:`beta_tail_row`."""
    lower, upper, _, _ = _beta_tail_ends(eps, _beta_tail_parameters(row), (0.0, 0.0, math.inf))
    return lower, upper


def _beta_tail_root(log_delta: float, row: Sequence[float]) -> tuple[float, float]:
    """Return an ``eps`` with ``ln delta`` near ``log_delta``, and the difference of these logs.

    ``row`` is the result of :func:`beta_tail_row`.
    """
    start = beta_tail_epsilon(row[0], row[1], row[2], row[3], log_delta, row[4] > 0.5)
    # ln delta has a kink in eps where the best tau jumps.
    return _find_root(log_delta, _beta_tail_parameters(row), (0.0, 0.0, math.inf), start)


# the kernels of the bound, called with a row ``(a, b, k, mu, sharp)`` for each release
BETA_TAIL_KERNELS = ProfileKernels(_beta_tail_log_delta, _beta_tail_root)


def beta_tail_row(mechanism: M2, mu: Any, sharp: bool) -> tuple[Any, ...]:
    """Return the parameters ``(a, b, k, mu, sharp)`` of the Beta-tail bound for one layer.

    The squared norm of a projected unit vector is ``Beta(a, b)``. ``k`` is the rank of the difference between
    neighboring sums. ``mu`` is the sensitivity divided by the standard deviation of the noise. ``sharp`` is 1 for the
    bound ``beta-tail-sharp``, else 0.
    """
    return *mechanism.beta_shape, float(rank_of_difference(mechanism)), mu, float(sharp)


def _profile(mechanism: M2, sharp: bool) -> PrivacyProfile:
    """Return the Beta-tail profile, minimized over its free parameter (C16)."""
    mu = mechanism.mu
    at = partial(_profile_at, mechanism, sharp)
    if mechanism.unprojected:
        return at(1.0)
    if mechanism.layers:
        # The scan over tau looks at the same points for every epsilon.
        tail = lru_cache(maxsize=None)(partial(_log_union_tail, mechanism))
        best = FreeParameter("tau", lambda eps: _layered_minimum(mu, tail, eps, sharp)[0], at)
        return PrivacyProfile(lambda eps: _layered_log_delta(mu, tail, eps, sharp), free=best)
    row = beta_tail_row(mechanism, mu, sharp)

    def best_tau(eps: float) -> float:
        a, b, k, *_ = row
        _, t = beta_tail_delta(a, b, k, mu, eps, sharp)
        return 1.0 / (1.0 + math.exp(-t)) if t < math.inf else 1.0

    # delta(eps) = min over tau in (0, 1] of G(eps; mu sqrt(tau)) + k P(B > tau) (C16).
    return profile_from_kernels(BETA_TAIL_KERNELS, row, free=FreeParameter("tau", best_tau, at))


def _profile_at(mechanism: M2, sharp: bool, tau: float) -> PrivacyProfile:
    """Return the Beta-tail profile at the value ``tau`` of its free parameter (C16)."""
    mu = mechanism.mu
    # ln of the union bound on P(B > tau); nothing exceeds tau = 1.
    log_tail = _log_union_tail(mechanism, math.log(tau) - math.log1p(-tau)) if tau < 1.0 else -math.inf

    def log_delta(eps: float) -> Enclosure:
        # G(eps; mu sqrt(tau)) + sum_l n_l k_l P(B_l > tau) (C16)
        return widen_outward(log_add(log_tail_profile(eps, mu * math.sqrt(tau), sharp), log_tail), steepness=mu * mu)

    profile = PrivacyProfile(log_delta)
    return replace(profile, free=FreeParameter("tau", lambda eps: tau, lambda other: profile))


def _layered_log_delta(mu: float, log_tail: Callable[[float], float], eps: float, sharp: bool) -> Enclosure:
    """Return an upper bound of ``ln delta`` for several layers, from :func:`_layered_minimum`."""
    value = _layered_minimum(mu, log_tail, eps, sharp)[1]
    # There is no lower end, because the search for tau may miss the minimum.
    return Enclosure(-math.inf, widen_outward(min(value, 0.0), steepness=mu * mu).upper)


def _layered_minimum(mu: float, log_tail: Callable[[float], float], eps: float, sharp: bool) -> tuple[float, float]:
    """Return the ``tau`` that minimizes the Beta-tail bound, and the log of the minimum.

    All layers have the same ``tau``. ``log_tail`` is :func:`_log_union_tail` of the mechanism.
    """

    def at(t: float) -> float:
        # G(eps; mu sqrt(tau)) + sum_l n_l k_l P(B_l > tau), sqrt(tau) = 1/sqrt(1 + e^-t) (C16).
        gaussian = log_tail_profile(eps, mu / math.sqrt(1.0 + math.exp(-t)), sharp)
        return log_add(gaussian, log_tail(t))

    # The least over t, and tau = 1, where nothing is left out.
    t, least = minimize(at, -30.0, 20.0, rtol=1e-8, points=101)
    at_one = log_tail_profile(eps, mu, sharp)
    return (1.0, at_one) if at_one <= least else (1.0 / (1.0 + math.exp(-t)), least)


def captured_energy_radius(mechanism: M2) -> Callable[[float], float]:
    """Return a function that maps ``ln p`` to a factor, rounded up (C16).

    With probability at least ``1 - p``, the norm of the difference between neighboring sums after projection is at most
    this factor times the norm before projection.
    """

    def radius(log_bad: float) -> float:
        # The least tau = odds/(1 + odds) with k P(B > tau) <= p (C16).
        odds = find_crossing(
            lambda odds: _log_union_tail(mechanism, math.log(odds)) - log_bad, 1.0, low=1e-30, high=1e15, rtol=1e-12
        ).upper
        return 1.0 if odds == math.inf else math.sqrt(next_up(odds / (1.0 + odds)))

    return radius


def _rank_assumptions(mechanism: M2) -> tuple[Assumption, ...]:
    k = rank_of_difference(mechanism)
    return () if k >= mechanism.largest_rank else (DataAssumption.DIFFERENCE_RANK.at(k=k),)


def _check_rank(mechanism: M2) -> None:
    if mechanism.change_rank is None and mechanism.columns is None:
        raise InvalidParameterError(
            "columns",
            "nothing",
            "a number",
            "give columns, the other dimension of the weight matrix, or change_rank, an assumption on the data",
        )


# fields of the bounds that depend on the rank of the difference
OF_CHANGE_RANK: dict[str, Any] = {"mechanism": M2, "assumptions": _rank_assumptions, "check": _check_rank}


def _fields_of(sharp: bool) -> dict[str, Any]:
    return {
        "example": "--dim 2048 --rank 16 --change-rank 10 --noise-multiplier 0.7787",
        # delta(eps) = min over tau of G(eps; mu sqrt(tau)) + k P(B > tau), B ~ Beta(r/2, (d-r)/2) (2601.21719, Theorem
        # 5; C16).
        "representation": partial(_profile, sharp=sharp),
        "version": 4,
        "supports": ("shared-projection", "tau"),
        **OF_CHANGE_RANK,
    }


BETA_TAIL = Bound(
    name="beta-tail",
    summary="published bound for one release, by a high-probability bound on the sensitivity after projection",
    formula="delta(eps) = min_tau T(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau)",
    source="arXiv 2601.21719, Theorem 5",
    **_fields_of(sharp=False),
)

BETA_TAIL_SHARP = Bound(
    name="beta-tail-sharp",
    summary="version of beta-tail that uses the exact Gaussian delta and gives a smaller epsilon",
    formula="delta(eps) = min_tau delta_gauss(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau)",
    source="arXiv 2601.21719, Theorem 5, with Balle, Wang 2018, Theorem 8",
    **_fields_of(sharp=True),
)
