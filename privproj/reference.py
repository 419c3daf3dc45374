"""The same quantities in mpmath at any precision: slow, independent of the kernels, and the only file that imports it.

Each function works at the current ``mpmath.mp.dps`` and returns an ``mpf``.
"""

from typing import Any

import mpmath as mp

Real = Any
"""A float, an int, text or an ``mpf``."""


def normal_tail(x: Real) -> Real:
    """``1 - Phi(x)``."""
    return mp.erfc(mp.mpf(x) / mp.sqrt(2)) / 2


def gaussian_delta(eps: Real, mu: Real) -> Real:
    """``Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``, with guard digits for the cancellation."""
    eps, mu = mp.mpf(eps), mp.mpf(mu)
    if mu == 0:
        return mp.mpf(0)
    guard = 10 + int(2 * abs(mp.log10(mu)) + 2 * mp.log10(1 + eps / mu))
    with mp.workdps(mp.mp.dps + guard):
        return normal_tail(eps / mu - mu / 2) - mp.exp(eps) * normal_tail(eps / mu + mu / 2)


def two_sided(eps: Real, mu: Real) -> Real:
    """``Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)``."""
    eps, mu = mp.mpf(eps), mp.mpf(mu)
    return normal_tail(eps / mu - mu / 2) + normal_tail(eps / mu + mu / 2)


def beta_lower(a: Real, b: Real, x: Real) -> Real:
    """``I_x(a, b) = x^a (1-x)^b / (a Beta(a, b)) * 2F1(1, a+b; a+1; x)``, a series of positive terms."""
    a, b, x = mp.mpf(a), mp.mpf(b), mp.mpf(x)
    total = term = mp.mpf(1)
    j = 0
    while j <= 3 or term > total * mp.eps or (a + b + j) * x >= a + 1 + j:
        term *= (a + b + j) * x / (a + 1 + j)
        total += term
        j += 1
    front = a * mp.log(x) + b * mp.log(1 - x) + mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)
    return mp.exp(front) / a * total


def beta_tail(a: Real, b: Real, x: Real) -> Real:
    """``P(Beta(a, b) > x)`` by the series that converges faster, with guard digits (Chernoff) for the complement."""
    a, b, x = mp.mpf(a), mp.mpf(b), mp.mpf(x)
    if x > 0.5:
        return beta_lower(b, a, 1 - x)
    n = a + b
    exponent = a * mp.log(a / (n * x)) + b * mp.log(b / (n * (1 - x))) if n * x > a else mp.mpf(0)
    with mp.workdps(mp.mp.dps + 10 + int(exponent / mp.log(10))):
        return 1 - beta_lower(a, b, x)


def beta_tail_bound(eps: Real, mu: Real, dim: int, rank: int, k: int, tau: Real, sharp: bool) -> Real:
    """``G(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau)`` at a given ``tau``."""
    profile = gaussian_delta if sharp else two_sided
    half = mp.mpf(1) / 2
    return profile(eps, mu * mp.sqrt(tau)) + k * beta_tail(rank * half, (dim - rank) * half, tau)


def expected_profile(eps: Real, mu: Real, dim: int, rank: int) -> Real:
    """``E[h_eps(mu^2 B)]``, ``B ~ Beta(r/2, (d-r)/2)``, by quadrature over the logit of ``B``."""
    a, b = mp.mpf(rank) / 2, mp.mpf(dim - rank) / 2
    log_beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)

    def integrand(t: Real) -> Real:
        x = 1 / (1 + mp.exp(-t))
        density = mp.exp(a * mp.log(x) - b * mp.log(1 + mp.exp(t)) - log_beta)
        return density * gaussian_delta(eps, mu * mp.sqrt(x)) if density > mp.mpf(10) ** -400 else mp.mpf(0)

    centre, width = mp.log(a / b), mp.sqrt(1 / a + 1 / b)
    cuts = [centre + width * i / 2 for i in (-120, -60, *range(-20, 60), 80)]
    height = max(map(integrand, cuts))  # mpmath stops at an absolute error, so the integrand is brought near 1
    return height * mp.quad(lambda t: integrand(t) / height, cuts)
