"""Compute normal, Beta and chi-square distributions at any precision.

:mod:`privproj.numerics.special` has the same functions in floats.
"""

import mpmath as mp

from privproj.reference.calculus import Real, find_root


def normal_tail(x: Real) -> Real:
    """Return ``1 - Phi(x)``, the upper tail of the standard normal distribution.

    The result is 0 for ``x > 1e9``.
    """
    return mp.mpf(0) if x > 10**9 else mp.erfc(mp.mpf(x) / mp.sqrt(2)) / 2


def normal_density(x: Real) -> Real:
    """Return the density of the standard normal distribution at ``x``."""
    return mp.exp(-(mp.mpf(x) ** 2) / 2) / mp.sqrt(2 * mp.pi)


def gaussian_delta(eps: Real, mu: Real) -> Real:
    """Return the delta of the Gaussian mechanism at the sensitivity over noise ``mu`` (C3)."""
    # Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)
    eps, mu = mp.mpf(eps), mp.mpf(mu)
    if mu == 0:
        return mp.mpf(0)
    guard = 10 + int(2 * abs(mp.log10(mu)) + 2 * mp.log10(1 + abs(eps) / mu))
    with mp.workdps(mp.mp.dps + guard):
        return normal_tail(eps / mu - mu / 2) - mp.exp(eps) * normal_tail(eps / mu + mu / 2)


def two_sided(eps: Real, mu: Real) -> Real:
    """Return the probability that a Gaussian ``|privacy loss|`` exceeds ``eps`` (C3).

    It is an upper bound of the Gaussian delta. ``mu`` is the sensitivity over noise.
    """
    # Phi(mu/2 - eps/mu) + Phi(-mu/2 - eps/mu)
    eps, mu = mp.mpf(eps), mp.mpf(mu)
    return normal_tail(eps / mu - mu / 2) + normal_tail(eps / mu + mu / 2)


def beta_lower(a: Real, b: Real, x: Real) -> Real:
    """Return ``P(Beta(a, b) <= x)``, for integers ``2a`` and ``2b``."""
    # x^a (1-x)^b / (a Beta(a, b)) times the hypergeometric series 2F1(1, a+b; a+1; x), whose terms are positive
    a, b, x = mp.mpf(a), mp.mpf(b), mp.mpf(x)
    bits = mp.mp.prec + 40
    fixed_x, n, below, one = int(mp.ldexp(x, bits)), int(2 * (a + b)), int(2 * a) + 2, 1 << bits
    total, term, j = one, one, 0
    while j <= 6 or term > (total >> (mp.mp.prec + 8)) or (n + j) * fixed_x >= (below + j) << bits:
        # sum_i x^i (a+b)(a+b+1)... / ((a+1)(a+2)...): n, below and j are twice the terms of the formula.
        term = term * ((n + j) * fixed_x) // ((below + j) << bits)
        total += term
        j += 2
    return _beta_front(a, b, x) / a * mp.ldexp(total, -bits)


def _beta_front(a: Real, b: Real, x: Real) -> Real:
    """Return ``x^a (1-x)^b / Beta(a, b)``, where ``Beta(a, b)`` is the Beta function."""
    with mp.workdps(mp.mp.dps + 10 + int(mp.log10(1 + a + b))):
        front = mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)
        return mp.exp(a * mp.log(x) + b * mp.log(1 - x) + front)


def beta_tail(a: Real, b: Real, x: Real) -> Real:
    """Return ``P(Beta(a, b) > x)``, for integers ``2a`` and ``2b``."""
    a, b, x = mp.mpf(a), mp.mpf(b), mp.mpf(x)
    if x <= 0:
        return mp.mpf(1)
    n = a + b
    if x <= a / n:
        return 1 - beta_lower(a, b, x)
    if x > 0.5 or (x > 2 * a / n and (x - a / n) * 10000 > mp.mp.dps):
        return beta_lower(b, a, 1 - x)
    exponent = a * mp.log(a / (n * x)) + b * mp.log(b / (n * (1 - x)))
    with mp.workdps(mp.mp.dps + 10 + int(exponent / mp.log(10))):
        return 1 - beta_lower(a, b, x)


def _power_front(a: Real, x: Real) -> Real:
    """Return ``x^a e^-x / Gamma(a+1)``."""
    with mp.workdps(mp.mp.dps + 10 + int(mp.log10(1 + abs(a) + x))):
        return mp.exp(a * mp.log(x) - x - mp.loggamma(a + 1))


def gamma_lower(a: Real, x: Real) -> Real:
    """Return ``P(a, x)``, the distribution function of a Gamma variable with shape ``a``."""
    a, x = mp.mpf(a), mp.mpf(x)
    if x <= 0:
        return mp.mpf(0)
    if x > a + 1:
        return 1 - gamma_upper(a, x)
    bits = mp.mp.prec + 40
    fixed_x, fixed_a = int(mp.ldexp(x, bits)), int(mp.ldexp(a, bits))
    total = term = 1 << bits
    j = 0
    while term > total >> (mp.mp.prec + 8):
        j += 1
        # x^a e^-x / Gamma(a+1) sum_j x^j / ((a+1) ... (a+j))
        term = term * fixed_x // (fixed_a + (j << bits))
        total += term
    return _power_front(a, x) * mp.ldexp(total, -bits)


def gamma_upper(a: Real, x: Real) -> Real:
    """Return ``Q(a, x)``, the upper tail of a Gamma variable with shape ``a``.

    ``2a`` must be an integer.
    """
    a, x = mp.mpf(a), mp.mpf(x)
    if x <= 0:
        return mp.mpf(1)
    if x <= a + 1:
        return 1 - gamma_lower(a, x)
    if a in (mp.mpf(1) / 2, 1):
        return mp.erfc(mp.sqrt(x)) if a < 1 else mp.exp(-x)
    bits = mp.mp.prec + 40
    fixed_x, twice = int(mp.ldexp(x, bits + 1)), int(2 * a)
    total = term = 1 << bits
    left = twice - 2
    while left > 1 and term > total >> (mp.mp.prec + 8):
        # x^(a-1) e^-x / Gamma(a) [1 + (a-1)/x + (a-1)(a-2)/x^2 + ...], left = 2 (a - 1), 2 (a - 2), ...
        term = term * left * (1 << bits) // fixed_x
        total += term
        left -= 2
    value = _power_front(a - 1, x) * mp.ldexp(total, -bits)
    return value + mp.erfc(mp.sqrt(x)) if left == 1 else value


def chi2_below(degrees: Real, x: Real) -> Real:
    """Return ``P(X <= x)`` for a chi-square ``X`` with ``degrees`` degrees of freedom."""
    return gamma_lower(mp.mpf(degrees) / 2, mp.mpf(x) / 2)


def chi2_above(degrees: Real, x: Real) -> Real:
    """Return ``P(X > x)`` for a chi-square ``X`` with ``degrees`` degrees of freedom."""
    return gamma_upper(mp.mpf(degrees) / 2, mp.mpf(x) / 2)


def chi2_quantile(degrees: Real, share: Real, upper: bool) -> Real:
    """Return the quantile of a chi-square variable at the tail probability ``share``.

    It is the quantile of the upper tail if ``upper``, else of the lower tail.
    """
    tail, target = (chi2_above if upper else chi2_below), mp.log(share)
    deviation = mp.sqrt(mp.mpf(2) / degrees)
    return mp.exp(find_root(lambda s: mp.log(tail(degrees, mp.exp(s))) - target, mp.log(degrees), deviation))


def student_quantile(degrees: int, share: Real) -> Real:
    """Return the ``t`` with ``P(|T| > t) = share`` for Student's t variable ``T``."""
    half, target = mp.mpf(1) / 2, mp.log(share)

    # P(|T| > t) = P(Beta(1/2, r/2) > t^2/(r + t^2)), s = ln(t^2/r)
    def excess(s: Real) -> Real:
        return mp.log(beta_tail(half, degrees * half, 1 / (1 + mp.exp(-s)))) - target

    return mp.sqrt(degrees * mp.exp(find_root(excess, -mp.log(degrees))))


def student_density(degrees: int, t: Real) -> Real:
    """Return the density of Student's t distribution at ``t``."""
    r = mp.mpf(degrees)
    # Gamma((r+1)/2) / (Gamma(r/2) sqrt(pi r)) (1 + t^2/r)^(-(r+1)/2)
    front = mp.loggamma((r + 1) / 2) - mp.loggamma(r / 2) - mp.log(mp.pi * r) / 2
    return mp.exp(front - (r + 1) / 2 * mp.log(1 + t * t / r))
