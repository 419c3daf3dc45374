"""Compute the Beta-tail bound of M2 for one release, in scalar functions (C16).

The bound is the minimum of ``G(tau) + k P(B > tau)`` over ``tau`` in (0, 1], with ``B ~ Beta(a, b)``. ``k`` is the rank
of the difference between neighboring sums. ``G(tau)`` is a term of the Gaussian mechanism whose sensitivity is
``mu sqrt(tau)`` times the standard deviation of the noise. If ``sharp``, the term is the Gaussian delta at ``eps``
(C3), else the probability that the absolute privacy loss exceeds ``eps``. The sum is an upper bound of delta for every
``tau``.

In all functions ``t`` is the logit ``ln(tau/(1-tau))`` of ``tau``, ``c`` is ``beta_constant(a, b)`` and
``log_k = ln k``.
"""

from math import exp, expm1, fabs, inf, log, log1p, pi, sqrt

from privproj.numerics.special import (
    beta_constant,
    beta_deviance,
    beta_excess,
    beta_tail_scale,
    log_add,
    log_beta_tail_from,
    log_normal_density,
    mills,
)
from privproj.profiles.gaussian import gaussian_shift, log_gaussian_delta, log_two_sided

# about ln of the smallest double; a search for epsilon ends if ln delta is a million times this number
LOG_LEAST_DOUBLE = -745.0


def log_tail_profile(eps, mu, sharp):
    """Return the log of the Gaussian delta if ``sharp``, else of an upper bound.

    The upper bound is the probability that the absolute privacy loss exceeds ``eps``. ``mu`` is the sensitivity divided
    by the standard deviation of the noise.
    """
    if sharp:
        return log_gaussian_delta(eps, mu)
    return log_two_sided(eps, mu)


def log_tail_profile_slope(eps, mu, sharp):
    """Return ``f = ln(dG/dmu)`` and ``df/dln mu`` for a Gaussian term ``G``.

    ``G`` is the Gaussian delta if ``sharp``, else the probability that the absolute privacy loss exceeds ``eps``, which
    must be above 0. ``mu`` is the sensitivity divided by the standard deviation of the noise.
    """
    u = gaussian_shift(eps, mu)
    # d delta/dmu = phi(u),  dT/dmu = phi(u) [(1 + e^-eps) eps/mu^2 + (1 - e^-eps)/2]  (C3)
    slope, curvature = log_normal_density(u), u * (u + mu)
    if sharp:
        return slope, curvature
    pull = eps / mu / mu * (1.0 + exp(-eps))
    total = pull - 0.5 * expm1(-eps)
    return slope + log(total), curvature - 2.0 * pull / total


def beta_tail_balance(t, a, b, c, log_k, mu, eps, sharp):
    """Return ``f = ln(dG/dtau) - ln(k pdf(tau))`` and ``df/dt``.

    ``G(tau) + k P(B > tau)`` is the Beta-tail bound, ``pdf`` is the density of ``B``, and ``t`` is the logit of
    ``tau``. The bound is stationary where ``f`` is 0.
    """
    # ln (dG/dln tau) - ln (k tau pdf(tau)), where pdf is the density of B
    y = 1.0 / (1.0 + exp(t))
    tau = exp(t) * y
    m = mu * sqrt(tau)
    slope, curvature = log_tail_profile_slope(eps, m, sharp)
    # dG/dln tau = (m/2) dG/dm at m = mu sqrt(tau), and dln tau/dt = 1 - tau
    balance = log(0.5 * m) + slope - (log_k + beta_deviance(a, b, tau, y) + c - log(y))
    return balance, 0.5 * y * (1.0 + curvature) + beta_excess(a, b, tau, y) - tau


def beta_tail_stationary(t, a, b, c, log_k, mu, eps, sharp):
    """Return the logit of a ``tau`` at which the Beta-tail bound is stationary.

    The search begins at the logit ``t``. If there is no stationary point between -300 and 35, the result is near one of
    these ends.
    """
    # t is accurate to about 1e-9 widths of the Beta distribution. The bound is flat there, so its
    # error is far below rounding.
    scale = beta_tail_scale(a, b)
    low, high, stride = -300.0, 35.0, 0.1 * scale
    for _ in range(200):
        balance, slope = beta_tail_balance(t, a, b, c, log_k, mu, eps, sharp)
        if balance < 0.0:
            low = t
        else:
            high = t
        if high - low <= 1e-7 * scale:
            break
        step = balance / slope if slope > 0.0 else inf
        if fabs(step) <= 4.0 * scale and low < t - step < high:
            t = t - step
            if fabs(step) <= 3e-5 * scale:
                return t
        elif low > -300.0 and high < 35.0:
            t = 0.5 * (low + high)
        else:
            t = min(t + stride, 35.0) if balance < 0.0 else max(t - stride, -300.0)
            stride = 2.0 * stride
    return 0.5 * (low + high)


def beta_tail_value(t, a, b, c, log_k, mu, eps, sharp):
    """Return ``ln(G(tau) + k P(B > tau))``, the log of the Beta-tail bound (C16).

    ``t`` is the logit of ``tau``, ``log_k`` is ``ln k``, and ``B`` has the distribution ``Beta(a, b)``. ``G`` is the
    exponential of :func:`log_tail_profile`.
    """
    y = 1.0 / (1.0 + exp(t))
    tau = exp(t) * y
    # G(tau) + k P(B > tau) (C16)
    tail = log_k + log_beta_tail_from(a, b, tau, y, c)
    return log_add(log_tail_profile(eps, mu * sqrt(tau), sharp), tail)


def beta_tail_minimum(t, a, b, c, log_k, mu, eps, sharp):
    """Return a local minimum of ``ln delta`` over ``tau``, and the logit of this ``tau``.

    ``delta`` is the Beta-tail bound. The search begins at the logit ``t``. If ``delta`` is smaller at ``tau = 1``, the
    result is that of ``tau = 1``, with the logit ``inf``.
    """
    at_one = log_tail_profile(eps, mu, sharp)
    t = beta_tail_stationary(t, a, b, c, log_k, mu, eps, sharp)
    value = beta_tail_value(t, a, b, c, log_k, mu, eps, sharp)
    if at_one <= value:
        return min(at_one, 0.0), inf
    return min(value, 0.0), t


def beta_tail_start(side, a, b, c, log_k, mu, eps, sharp):
    """Return a logit at which to start a search for a minimum of the Beta-tail bound.

    The logit is that of a ``tau`` at most (``side = -1``) or at least (``side = 1``) the mean of ``Beta(a, b)``.
    """
    # The smallest bound on a grid of about ten values
    step = 0.5 * beta_tail_scale(a, b)
    mean = log(a / b)
    best_t, best = mean, beta_tail_value(mean, a, b, c, log_k, mu, eps, sharp)
    reach = step
    t = mean + side * reach
    while -200.0 < t < 35.0:
        value = beta_tail_value(t, a, b, c, log_k, mu, eps, sharp)
        if value < best:
            best_t, best = t, value
        reach = 1.3 * reach + 0.5 * step
        t = mean + side * reach
    return best_t


def beta_tail_delta(a, b, k, mu, eps, sharp):
    """Return the minimum of ``ln delta`` over ``tau``, and the logit of the best ``tau``.

    ``delta`` is the Beta-tail bound at ``eps`` (C16).
    """
    log_k, c = log(k), beta_constant(a, b)
    # There may be a local minimum on either side of the mean of Beta(a, b).
    below = beta_tail_start(-1.0, a, b, c, log_k, mu, eps, sharp)
    above = beta_tail_start(1.0, a, b, c, log_k, mu, eps, sharp)
    least = beta_tail_minimum(below, a, b, c, log_k, mu, eps, sharp)
    other = beta_tail_minimum(above, a, b, c, log_k, mu, eps, sharp)
    return least if least[0] <= other[0] else other


def beta_tail_share(a, b, c, log_share):
    """Return the logit of a point above which ``Beta(a, b)`` has about ``e^log_share`` mass.

    ``c`` is ``beta_constant(a, b)``.
    """
    t = log(a / b) + beta_tail_scale(a, b)
    for _ in range(6):
        y = 1.0 / (1.0 + exp(t))
        x = exp(t) * y
        slope = -beta_excess(a, b, x, y)
        if slope > -1e-3:
            break
        t = min(t + (log_share - beta_deviance(a, b, x, y) - c) / slope, 30.0)
    return t


def tail_profile_epsilon_slope(eps, mu, sharp):
    """Return ``ln(-dG/deps)`` for a Gaussian term ``G``.

    ``G`` is the Gaussian delta if ``sharp``, else the probability that the absolute privacy loss exceeds ``eps``.
    ``mu`` is the sensitivity divided by the standard deviation of the noise.
    """
    u = gaussian_shift(eps, mu)
    # -d delta/deps = phi(u) R(u + mu), and -dT/deps = phi(u) (1 + e^-eps)/mu
    if sharp:
        return log_normal_density(u) + log(mills(u + mu) if u + mu > -35.0 else 1.0)
    return log_normal_density(u) + log1p(exp(-eps)) - log(mu)


def beta_tail_epsilon(a, b, k, mu, log_delta, sharp):
    """Return the ``eps`` of the Beta-tail bound at ``log_delta``, rounded up.

    The result is ``inf`` if there is no such ``eps`` below 1e9.
    """
    log_k, c = log(k), beta_constant(a, b)
    tolerance = 1e-14 * (1.0 - log_delta)
    # below log_delta by the relative error of the bound, so that delta at the result is at most e^log_delta
    target = log_delta - 1e-12 - tolerance
    t = beta_tail_share(a, b, c, log_delta - log_k)
    m = mu * sqrt(1.0 / (1.0 + exp(-t)))
    square = -2.0 * log_delta
    eps = m * (0.5 * m + sqrt(max(square - log(2.0 * pi * max(square, 1.0)), 0.1 * square)))
    low, high = 0.0, inf
    last, slope_last = -1.0, 0.0
    for _ in range(100):
        value, t_best = beta_tail_minimum(t, a, b, c, log_k, mu, eps, sharp)
        excess = value - target
        if excess > 0.0:
            low = eps
        else:
            high = eps
        m = mu
        if t_best < 35.0:
            t = t_best
            m = mu * sqrt(1.0 / (1.0 + exp(-t)))
        if low > 1e9 or value <= LOG_LEAST_DOUBLE * 1e6:
            return inf
        slope = exp(tail_profile_epsilon_slope(eps, m, sharp) - value)
        if fabs(excess) <= tolerance:
            return eps
        if last >= 0.0 and fabs(excess) < 2e-5 and slope > 0.0:
            step = excess / slope
            bend = 0.5 * step * (slope - slope_last) / (eps - last) / slope
            if fabs(bend) < 1e-4:
                return eps + step * (1.0 - bend) + 4e-16 * eps
        last, slope_last = eps, slope
        eps = eps + excess / slope if slope > 0.0 else 2.0 * eps
        if not low < eps < high or eps > 8.0 * last:
            eps = 0.5 * (low + high) if high < inf else 4.0 * last
        if high < inf and high - low <= 1e-15 * high:
            break
    return high
