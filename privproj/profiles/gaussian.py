"""The exact privacy profile of the Gaussian mechanism (C3; Balle, Wang 2018, Theorem 8).

``mu`` is the sensitivity divided by the standard deviation of the noise. Functions of one epsilon are kernels
(:mod:`privproj.numerics.jit`), which need ``math`` only.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from math import erfc, exp, fabs, inf, log, log1p, sqrt
from typing import TYPE_CHECKING

from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, Enclosure, outward_margin
from privproj.numerics.root_finding import find_crossing, newton_start, root_of
from privproj.numerics.special import (
    LOG_SQRT_2PI,
    SQRT_HALF,
    SQRT_HALF_PI,
    log_normal_density,
    mills,
    mills_drop,
    product_error,
)
from privproj.profiles.privacy_profile import PrivacyProfile, ProfileKernels, profile_from_kernels

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array

LEAST_SQUARED_SENSITIVITY = 1e-290  # soundness: below it delta is 0 in double precision

PROFILE_SAFETY = 1.0 + 1e-9  # soundness: allows for the relative error of the array functions (measured: 5e-13)

SMALLEST_UPPER_DELTA = 1e-300  # soundness: least upper bound that is returned, and least divisor

TAIL_PIECES = 128  # soundness: pieces of the table of scaled_tails, accurate to 1.3e-15 with TAIL_DEGREE (measured)

TAIL_DEGREE = 6  # soundness: degree of the polynomial on each piece, see TAIL_PIECES


# --- one epsilon: kernels -------------------------------------------------------------------------


def gaussian_shift(eps: float, mu: float) -> float:
    """Return ``eps/mu - mu/2``, accurate even if both terms nearly cancel.

    ``mu`` is the sensitivity divided by the noise standard deviation.
    """
    if mu < 1e-100 or mu > 1e100:
        return eps / mu - 0.5 * mu
    square = mu * mu
    # (eps - mu^2/2) / mu, with the rounding of mu^2 put back
    return ((eps - 0.5 * square) - 0.5 * product_error(mu, mu, square)) / mu


def log_gaussian_delta(eps: float, mu: float) -> float:
    """Return ``ln delta`` of the Gaussian mechanism for ``eps, mu >= 0`` (C3).

    ``mu`` is the sensitivity divided by the noise standard deviation. The result is 0 if delta rounds to 1, and
    ``-inf`` if delta rounds to 0.
    """
    # delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Balle, Wang 2018, Theorem 8)
    if mu <= 0.0:
        return -inf
    u = gaussian_shift(eps, mu)
    if u >= 1e154:
        return -inf
    if u < 0.0 and mu >= 1.0:
        if u < -38.0:
            return -0.0
        # delta = 1 - phi(u) [R(-u) + R(u + mu)], with the Mills ratio R  (C3)
        return log1p(-exp(log_normal_density(u)) * (mills(-u) + mills(u + mu)))
    # delta = phi(u) [R(u) - R(u + mu)]  (C3, C20)
    drop = mills_drop(u, mu)
    return log_normal_density(u) + log(drop) if drop > 0.0 else -inf


def gaussian_terms(eps: float, x: float) -> tuple[float, float, float, float]:
    """Return four numbers ``(E, G, D, P)`` that give the Gaussian delta and its slopes (C3).

    ``delta = e^E G``, ``-d delta/deps = e^E D`` and ``phi(u) = e^E P``, where ``phi`` is the normal density and ``u =
    eps/mu - mu/2``. ``x`` is ``mu^2``, and ``mu`` is the sensitivity divided by the noise standard deviation.
    """
    if x < LEAST_SQUARED_SENSITIVITY:
        return 0.0, 0.0, 0.0, 0.0
    mu = sqrt(x)
    first = eps / mu
    u, v = first - 0.5 * mu, first + 0.5 * mu
    if u < 0.0 and mu >= 1.0:
        if u < -38.5:
            return 0.0, 1.0, 0.0, 0.0
        # h = 1 - phi(u) [R(-u) + R(v)]
        p = exp(-0.5 * u * u - LOG_SQRT_2PI)
        far = mills(v)
        return 0.0, 1.0 - p * (mills(-u) + far), p * far, p
    far = mills(v)
    gain = mills(u) - far if mu >= 0.01 * max(1.0, fabs(u)) else mills_drop(u, mu)
    return -0.5 * u * u - LOG_SQRT_2PI, gain, far, 1.0


def log_two_sided(eps: float, mu: float) -> float:
    """Return ``ln P(|L| > eps)`` for the privacy loss ``L`` of the Gaussian mechanism (C3).

    ``mu`` is the sensitivity divided by the noise standard deviation.
    """
    # T = Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)
    if eps <= 0.0:
        return 0.0
    if mu <= 0.0:
        return -inf
    u = gaussian_shift(eps, mu)
    if u >= 1e154:
        return -inf
    if u < 0.0:
        # T = 1 - Phi(u) + Phi(-u - mu)
        return log1p(-0.5 * erfc(-SQRT_HALF * u) + 0.5 * erfc(SQRT_HALF * (u + mu)))
    # T = phi(u) [R(u) + e^-eps R(u + mu)], because phi(u + mu) = e^-eps phi(u)
    return log_normal_density(u) + log(mills(u) + exp(-eps) * mills(u + mu))


def _gaussian_ends(eps: float, row: Sequence[float], state: float) -> tuple[float, float, float, float]:
    """Return bounds of the Gaussian ``ln delta``, the slope ``-d ln delta/deps``, and ``state``.

    ``row`` is ``(mu,)``, the sensitivity divided by the noise standard deviation. ``state`` is not used.
    """
    mu = row[0]
    value = log_gaussian_delta(eps, mu)
    if value == -math.inf:
        return -math.inf, LOG_OF_ZERO_FROM_ABOVE, 0.0, state
    # The enclosure of ln delta allows for the rounding of mu: d ln delta / d ln mu is at most mu^2, plus an amount for
    # each nat of ln delta that the margin covers (C20).
    margin = outward_margin(value, 0.0, mu * mu)
    _, gain, loss, _ = gaussian_terms(eps, mu * mu)
    return value - margin, min(0.0, value + margin), loss / gain if gain > 0.0 else 0.0, state


_find_root = root_of(_gaussian_ends)


def _gaussian_log_delta(eps: float, row: Sequence[float]) -> tuple[float, float]:
    lower, upper, _, _ = _gaussian_ends(eps, row, 0.0)
    return lower, upper


def _gaussian_root(log_delta: float, row: Sequence[float]) -> tuple[float, float]:
    return _find_root(log_delta, row, 0.0, newton_start(row[0], log_delta))


GAUSSIAN_KERNELS = ProfileKernels(_gaussian_log_delta, _gaussian_root, weight=0.04)  # a row is (mu,)


def gaussian_profile(mu: float) -> PrivacyProfile:
    """Return the exact privacy profile of the Gaussian mechanism (C3, C20).

    ``mu`` is the sensitivity divided by the noise standard deviation, at least 0.
    """
    return profile_from_kernels(
        GAUSSIAN_KERNELS,
        (mu,),
        closed_form=lambda steps: gaussian_profile(mu * math.sqrt(steps)),
        table=lambda eps: gaussian_ends(eps, mu),
        resolution=256.0,
        gaussian_mu=mu,
    )


def find_noise(eps: float, log_delta: float, rtol: float = 1e-12, near: float = 1.0) -> Enclosure:
    """Return bounds of the Gaussian noise multiplier at a target epsilon and delta.

    The upper bound meets the target, and the lower bound does not. The result is ``(0, 1e-12)`` or ``(1e12, inf)`` if
    the noise multiplier is not between 1e-12 and 1e12.

    Args:
        eps: Epsilon in nats.
        log_delta: ``ln delta``.
        rtol: The relative distance of the bounds.
        near: The multiplier at which the search starts.
    """
    range_of_noise = {"low": 1e-12, "high": 1e12, "rtol": rtol}
    return find_crossing(lambda z: log_gaussian_delta(eps, 1.0 / z) - log_delta, near, **range_of_noise)


# --- arrays ----------------------------------------------------------------------------------------


def gaussian_ends(eps: "Array", mu: "Array | float") -> "tuple[Array, Array]":
    """Return lower and upper bounds of the Gaussian delta for broadcast arrays (C3).

    ``mu`` is the sensitivity divided by the noise standard deviation.
    """
    value, rounding = gaussian_values(eps, mu)
    return _lower(value, rounding), _raise(value, rounding)


def gaussian_deltas(eps: "Array", mu: "Array | float") -> "Array":
    """Return upper bounds of the Gaussian delta for broadcast arrays (C3).

    ``mu`` is the sensitivity divided by the noise standard deviation.
    """
    return _raise(*gaussian_values(eps, mu))


def gaussian_deltas_below(eps: "Array", mu: "Array | float") -> "Array":
    """Return lower bounds of the Gaussian delta for broadcast arrays (C3).

    ``mu`` is the sensitivity divided by the noise standard deviation.
    """
    return _lower(*gaussian_values(eps, mu))


def _lower(value: "Array", rounding: "Array") -> "Array":
    lower = value * (2.0 - PROFILE_SAFETY)
    lower -= rounding
    return lower.clip(0.0, None, out=lower)


def _raise(value: "Array", rounding: "Array") -> "Array":
    # in place, unlike _lower
    value *= PROFILE_SAFETY
    value += rounding
    return value.clip(SMALLEST_UPPER_DELTA, 1.0, out=value)


def gaussian_values(eps: "Array | float", mu: "Array | float") -> "tuple[Array, Array]":
    """Return Gaussian deltas for broadcast arrays, and absolute errors from cancellation.

    ``mu`` is the sensitivity divided by the noise standard deviation. Errors other than those from cancellation are
    not included; their sum is at most a relative 5e-13 (measured).
    """
    import numpy as np

    # relative error of all but the cancellation: 5e-13 (measured)
    # With v = eps/mu - mu/2 and q(x) = e^(x^2/2) Phi(-x), delta is e^(-v^2/2) (q(v) - q(v + mu)), or
    # 1 - e^(-v^2/2) (q(-v) + q(v + mu)) for v < 0.
    mu = np.asarray(mu, float)
    with np.errstate(over="ignore", under="ignore"):
        v, half = eps / np.maximum(mu, SMALLEST_UPPER_DELTA), 0.5 * mu
        v += np.where(mu > 0.0, 0.0, np.inf)
        far = v + half
        v -= half
        density = np.square(v)
        density *= -0.5
        np.exp(density, out=density)
        # q(|v|) e^(-v^2/2) = Phi(-|v|)
        first = scaled_tails(np.abs(v))
        first *= density
        second = scaled_tails(far)
        second *= density
    # Phi(-v), which is 1 - Phi(-|v|) for v < 0
    first = np.where(v < 0.0, 1.0 - first, first)
    np.subtract(first, second, out=second)
    first *= 4e-15
    return second, first


def scaled_tails(x: "Array") -> "Array":
    """Return ``e^(x^2/2) Phi(-x)``, the scaled normal tail, for every ``x >= 0``."""
    import numpy as np

    # Relative error: at most 1.3e-15 up to x = 500 (measured). Beyond, the absolute error is at most 1e-15 of the value
    # at 500.
    # On each piece of t = 4/(4 + x) a polynomial in the distance from its middle
    place = (4.0 * TAIL_PIECES) / (4.0 + x)
    piece = np.minimum(place, TAIL_PIECES - 0.5).astype(np.intp)
    place -= piece
    place -= 0.5
    first, *others = _tail_coefficients()
    tails = first.take(piece)
    for coefficients in others:
        tails *= place
        tails += coefficients.take(piece)
    return tails


@lru_cache(maxsize=1)
def _tail_coefficients() -> "tuple[Array, ...]":
    """Return the coefficients of the polynomials in :func:`scaled_tails`, highest power first."""
    import numpy as np

    nodes = 0.5 * np.cos(np.pi * (np.arange(TAIL_DEGREE + 1) + 0.5) / (TAIL_DEGREE + 1))
    places = (np.arange(TAIL_PIECES)[:, None] + 0.5 + nodes) / TAIL_PIECES
    # e^(x^2/2) Phi(-x) at x = 4/t - 4
    values = np.array([[mills(4.0 / t - 4.0) for t in piece] for piece in places.tolist()])
    values /= 2.0 * SQRT_HALF_PI
    return tuple(np.linalg.solve(np.vander(nodes), values.T))
