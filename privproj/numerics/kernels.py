"""Scalar kernels: the special functions of the answers, as plain functions of floats on ``math``.

Each function runs as it is (one evaluation costs microseconds and no import) and, through
:mod:`privproj.numerics.jit`, as machine code made by numba from the very same source. Two rules keep both alike.
Plain Python raises an error on overflow, ``log(0)`` and ``1/0`` where compiled code returns inf or nan, so no kernel
lets an argument get there. And ``-inf`` stands for the log of zero.

Notation: ``phi``, ``Phi`` normal density and CDF; ``u = eps/mu - mu/2``; Mills ratio ``R(x) = (1 - Phi(x)) / phi(x)``;
``B`` has law ``Beta(a, b)``, ``n = a + b``; ``U`` has law ``Gamma(a)``. Logs are natural. The functions are right to
the errors that :mod:`privproj.numerics.interval` allows for, which is measured.

The formulas stand in three arithmetics on purpose: here, in balls (:mod:`privproj.contrib.certify`) and in mpmath
(``tests/reference/special.py``).
"""

import math
from math import erfc, exp, expm1, fabs, inf, lgamma, log, log1p, pi, sqrt

from privproj.numerics.tables import MILLS

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
"""``ln sqrt(2 pi)``, in the normal density. Soundness."""

SQRT_HALF = math.sqrt(0.5)
"""``sqrt(1/2)``. Soundness."""

SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
"""``sqrt(pi/2)``, the Mills ratio at 0. Soundness."""

GAUSS_3_OUTER_NODE = math.sqrt(0.6)
"""Outer node of the three-point Gauss rule on [-1, 1]. Soundness."""

LEAST_SHIFT = 1e-290
"""Squared shifts below this have the delta 0. Soundness."""

DEKKER_SPLITTER = 134217729.0
"""``2^27 + 1``, which splits a double into two halves (Dekker). Soundness."""

LEAST_LOG_QUANTILE = -705.0
"""Log of the least probability that scipy's quantile functions are asked for.

Below e^-708 doubles lose digits, and a quantile comes out too small; above, the functions are right to 4e-13 (measured
against mpmath). Soundness (measured).
"""

LOG_LEAST_DOUBLE = -745.0
"""``ln`` of the least double, nearly. A search for epsilon ends where ``ln delta`` is a million times that.

Contract.
"""


def log_add(x, y):
    """Return ``ln(e^x + e^y)`` without overflow; ``-inf`` stands for a term of 0."""
    high, low = (x, y) if x > y else (y, x)
    if low == -inf or high == inf:
        return high
    return high + log1p(exp(low - high))


def product_error(x, y, product):
    """Return the rounding error of ``product = x * y``, exactly (Dekker)."""
    cx, cy = DEKKER_SPLITTER * x, DEKKER_SPLITTER * y
    x_high, y_high = cx - (cx - x), cy - (cy - y)
    x_low, y_low = x - x_high, y - y_high
    # x y - product, from the four products of halves
    return ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


# --- the normal law -----------------------------------------------------------------------------


def mills(x):
    """Return the Mills ratio ``R(x) = (1 - Phi(x)) / phi(x)`` for ``x >= -35``."""
    if x < -0.5:
        return SQRT_HALF_PI * exp(0.5 * x * x) * erfc(SQRT_HALF * x)
    y = 4.0 / (4.0 + x)
    t = 32.0 * y
    k = int(t)
    t = t - k - 0.5
    c = MILLS[k]
    return y * (c[0] + t * (c[1] + t * (c[2] + t * (c[3] + t * (c[4] + t * (c[5] + t * (c[6] + t * c[7])))))))


def mills_slope(x):
    """Return ``-R'(x) = 1 - x R(x)``, without cancellation for large ``x``, right to a relative 1e-14 (measured)."""
    if x < -0.5:
        return 1.0 - x * mills(x)
    y = 4.0 / (4.0 + x)
    t = 32.0 * y
    k = int(t)
    t = t - k - 0.5
    c = MILLS[k]
    ratio = c[0] + t * (c[1] + t * (c[2] + t * (c[3] + t * (c[4] + t * (c[5] + t * (c[6] + t * c[7]))))))
    rise = 5.0 * c[5] + t * (6.0 * c[6] + t * 7.0 * c[7])
    rise = c[1] + t * (2.0 * c[2] + t * (3.0 * c[3] + t * (4.0 * c[4] + t * rise)))
    # R = y P(t) with dy/dx = -y^2/4 and dt/dy = 32: -R' = (y^2/4) (P + 32 y P'), and all terms are positive
    return 0.25 * y * y * (ratio + 32.0 * y * rise)


def mills_drop(u, mu):
    """Return ``R(u) - R(u + mu)`` for ``mu > 0``; where that would cancel, by three-point Gauss on ``-R'``."""
    if mu >= 0.01 * max(1.0, fabs(u)):
        return mills(u) - mills(u + mu)
    # R(u) - R(u + mu) = mu [5 S(c - g) + 8 S(c) + 5 S(c + g)]/18, S = -R', c = u + mu/2, g = (mu/2) sqrt(3/5)
    centre, reach = u + 0.5 * mu, 0.5 * mu * GAUSS_3_OUTER_NODE
    outer = mills_slope(centre - reach) + mills_slope(centre + reach)
    return mu * (5.0 * outer + 8.0 * mills_slope(centre)) / 18.0


def gaussian_shift(eps, mu):
    """Return ``u = eps/mu - mu/2``, right to a few units in the last place even where the two terms cancel."""
    if mu < 1e-100 or mu > 1e100:
        return eps / mu - 0.5 * mu
    square = mu * mu
    # (eps - mu^2/2) / mu, with the rounding of mu^2 put back
    return ((eps - 0.5 * square) - 0.5 * product_error(mu, mu, square)) / mu


def log_normal_density(u):
    """Return ``ln phi(u)``, the log of the normal density."""
    return -0.5 * u * u - LOG_SQRT_2PI


def log_gaussian_delta(eps, mu):
    """Return ``ln delta``, ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``, for ``eps >= 0, mu >= 0`` (C3).

    It is 0 where delta rounds to 1, and ``-inf`` where delta rounds to 0. The same function stands in balls as
    :func:`privproj.contrib.certify.gaussian.delta` and in mpmath as ``tests/reference/special.py``.
    """
    if mu <= 0.0:
        return -inf
    u = gaussian_shift(eps, mu)
    if u >= 1e154:
        return -inf
    if u < 0.0 and mu >= 1.0:
        if u < -38.0:
            return -0.0
        # delta = 1 - phi(u) [R(-u) + R(u + mu)]  (C3)
        return log1p(-exp(log_normal_density(u)) * (mills(-u) + mills(u + mu)))
    # delta = phi(u) [R(u) - R(u + mu)]  (C3, C20)
    drop = mills_drop(u, mu)
    return log_normal_density(u) + log(drop) if drop > 0.0 else -inf


def gaussian_terms(eps, x):
    """Return ``(E, G, D, P)``: ``h = e^E G``, ``-dh/deps = e^E D`` and ``phi(u) = e^E P`` at the squared shift ``x``.

    ``u = eps/mu - mu/2`` and ``v = eps/mu + mu/2``, ``mu = sqrt(x)`` (C3).
    """
    if x < LEAST_SHIFT:
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


def log_two_sided(eps, mu):
    """Return ``ln T``, ``T = Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)``, for ``eps >= 0, mu >= 0`` (C3).

    The same function stands in balls as :func:`privproj.contrib.certify.gaussian.two_sided` and in mpmath as
    ``tests/reference/special.py``.
    """
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
    # T = phi(u) [R(u) + e^-eps R(u + mu)], as phi(u + mu) = e^-eps phi(u)
    return log_normal_density(u) + log(mills(u) + exp(-eps) * mills(u + mu))


# --- the Beta law -------------------------------------------------------------------------------


def stirling_remainder(z):
    """Return the remainder of Stirling's formula, ``ln Gamma(z) - [(z - 1/2) ln z - z + ln sqrt(2 pi)]``, ``z > 0``."""
    if z < 10.0:
        return lgamma(z) - ((z - 0.5) * log(z) - z + LOG_SQRT_2PI)
    # 1/(12 z) - 1/(360 z^3) + 1/(1260 z^5) - 1/(1680 z^7) + 1/(1188 z^9) - 691/(360360 z^11)
    w = 1.0 / (z * z)
    series = 1.0 / 1260.0 - w * (1.0 / 1680.0 - w * (1.0 / 1188.0 - w * 691.0 / 360360.0))
    return (1.0 / 12.0 - w * (1.0 / 360.0 - w * series)) / z


def log_residual(e, ratio):
    """Return ``ln(1 + e) - e`` without cancellation; ``ratio = 1 + e`` is used where ``e`` is near -1."""
    if e < -0.6:
        return log(ratio) - e
    if fabs(e) > 0.3:
        return log1p(e) - e
    # ln(1 + e) = 2 atanh(s) = 2 s (1 + s^2/3 + s^4/5 + ...), s = e/(2 + e), and 2 s - e = -e s
    s = e / (2.0 + e)
    w = s * s
    series = 1.0 / 9.0 + w * (1.0 / 11.0 + w * (1.0 / 13.0 + w * (1.0 / 15.0 + w * (1.0 / 17.0))))
    if w > 3e-4:
        rest = 1.0 / 21.0 + w * (1.0 / 23.0 + w * (1.0 / 25.0 + w * (1.0 / 27.0)))
        series = series + w * w * w * w * w * (1.0 / 19.0 + w * rest)
    series = w * (1.0 / 3.0 + w * (1.0 / 5.0 + w * (1.0 / 7.0 + w * series)))
    return 2.0 * s * series - e * s


def beta_excess(a, b, x, y):
    """Return ``(a + b) x - a``, correctly rounded, for ``x + y = 1``: from the smaller of the two."""
    n = a + b
    if x <= 0.5:
        product = n * x
        return (product - a) + product_error(n, x, product)
    product = n * y
    return (b - product) - product_error(n, y, product)


def beta_constant(a, b):
    """Return ``ln[x^a y^b / Beta(a, b)]`` at the mean ``x = a/n``, ``y = b/n``. It is the same for ``(b, a)``."""
    # R(n) - R(a) - R(b) + ln(a b/n)/2 - ln sqrt(2 pi): the large terms have cancelled by hand.
    remainder = stirling_remainder(a + b) - stirling_remainder(a) - stirling_remainder(b)
    return remainder + 0.5 * log(a / (a + b) * b) - LOG_SQRT_2PI


def beta_deviance(a, b, x, y):
    """Return ``a ln(n x/a) + b ln(n y/b)``, ``n = a + b``, for ``x + y = 1``. It is at most 0, and 0 at the mean."""
    n = a + b
    # a [ln(1 + e/a) - e/a] + b [ln(1 - e/b) + e/b], e = n x - a
    excess = beta_excess(a, b, x, y)
    return a * log_residual(excess / a, n * x / a) + b * log_residual(-excess / b, n * y / b)


def log_beta_fraction(a, b, x, y, constant):
    """Return ``ln I_x(a, b)`` below the mean, ``x <= a / (a + b)``; ``constant`` is :func:`beta_constant`."""
    return beta_deviance(a, b, x, y) + constant + log(beta_fraction(a, b, x, y, beta_excess(a, b, x, y), 100000))


def beta_fraction(a, b, x, y, excess, most):
    """Return ``P(B <= x) / [x^a y^b / Beta(a, b)]`` for ``x <= a/(a+b)``; -1 where so many terms are too few.

    ``excess`` is ``(a+b) x - a``. It is the even contraction of the continued fraction of the incomplete beta (Didonato
    and Morris 1992, equation 9), by Steed's forward sums.
    """
    offset = 1.0 - excess
    d = 1.0 / (a / (a + 1.0) * offset)
    step = d
    total = d
    for n in range(1, most):
        odd = a + 2.0 * n - 1.0
        w = n * (b - n) * x
        alpha = (a + n - 1.0) / odd * ((a + b + n - 1.0) / odd) * w * x
        beta = n + w / odd + (a + n) / (odd + 2.0) * (offset + n * (1.0 + y))
        d = 1.0 / (beta + alpha * d)
        step = step * (beta * d - 1.0)
        total = total + step
        if fabs(step) <= 1e-17 * fabs(total):
            return total
    return -1.0


def log_beta_tail(a, b, x, y):
    """Return ``ln P(B > x)`` for ``B ~ Beta(a, b)``, ``x + y = 1``; for half-integer ``a, b`` up to 5e5.

    For whole ones it is a binomial tail, to the margin of C26 up to 1e12.
    """
    return log_beta_tail_from(a, b, x, y, beta_constant(a, b))


def log_beta_tail_from(a, b, x, y, constant):
    """Return :func:`log_beta_tail` where :func:`beta_constant` is known already."""
    if y <= 0.0:
        return -inf
    if x <= 0.0:
        return 0.0
    if beta_excess(a, b, x, y) > 0.0:
        return min(0.0, log_beta_fraction(b, a, y, x, constant))
    return log1p(-min(exp(log_beta_fraction(a, b, x, y, constant)), 1.0 - 1e-16))


# --- the Gamma law ------------------------------------------------------------------------------


def log_gamma_front(a, e, ratio):
    """Return ``ln[u^a e^-u / Gamma(a)]`` at ``u = a ratio``, ``ratio = 1 + e``."""
    if ratio <= 0.0:
        return -inf
    # a [ln(1 + e) - e] - R(a) + ln(a)/2 - ln sqrt(2 pi), R the remainder of Stirling's formula
    return a * log_residual(e, ratio) - stirling_remainder(a) + 0.5 * log(a) - LOG_SQRT_2PI


def log_gamma_below(a, e, ratio):
    """Return ``ln P(U <= a ratio)`` for ``U ~ Gamma(a)``, ``ratio = 1 + e``, by its series of positive terms."""
    if ratio <= 0.0:
        return -inf
    return min(0.0, log_gamma_front(a, e, ratio) + log(gamma_series(a, ratio, 10000000)))


def log_gamma_tail(a, e, ratio):
    """Return ``ln P(U > a ratio)`` for ``U ~ Gamma(a)``, ``ratio = 1 + e``: continued fraction above the mean."""
    if a * e < 1.0:
        return log1p(-min(exp(log_gamma_below(a, e, ratio)), 1.0 - 1e-16))
    return log_gamma_front(a, e, ratio) + log(gamma_fraction(a, a * e, 10000000))


def gamma_series(a, ratio, most):
    """Return ``P(U <= a ratio) / [u^a e^-u / Gamma(a)]`` by its series; -1 where so many terms are too few."""
    # 1/a + u/(a (a+1)) + u^2/(a (a+1) (a+2)) + ..., u = a ratio
    term = 1.0 / a
    total = term
    for n in range(1, most):
        term = term * (ratio / (1.0 + n / a))
        total = total + term
        if term <= 1e-17 * total:
            return total
    return -1.0


def gamma_fraction(a, excess, most):
    """Return ``P(U > u) / [u^a e^-u / Gamma(a)]``, ``excess = u - a >= 0``, by its continued fraction; -1 as above."""
    b = 1.0 + excess
    d = 1.0 / b
    step = d
    total = d
    for n in range(1, most):
        b = b + 2.0
        d = 1.0 / (b + n * (a - n) * d)
        step = step * (b * d - 1.0)
        total = total + step
        if fabs(step) <= 1e-17 * total:
            return total
    return -1.0


# --- the Beta-tail bound of M2: minimum over tau --------------------------------------------------


def log_tail_profile(eps, mu, sharp):
    """Return the log of the Gaussian term ``G``: of the delta of C3 if ``sharp``, else of the two-sided tail ``T``."""
    if sharp:
        return log_gaussian_delta(eps, mu)
    return log_two_sided(eps, mu)


def log_tail_profile_slope(eps, mu, sharp):
    """Return ``ln (dG/dmu)`` and ``d ln (dG/dmu) / d ln mu`` of the Gaussian term ``G``, for ``eps > 0``."""
    u = gaussian_shift(eps, mu)
    # d delta/dmu = phi(u),  dT/dmu = phi(u) [(1 + e^-eps) eps/mu^2 + (1 - e^-eps)/2]  (C3)
    slope, curvature = log_normal_density(u), u * (u + mu)
    if sharp:
        return slope, curvature
    pull = eps / mu / mu * (1.0 + exp(-eps))
    total = pull - 0.5 * expm1(-eps)
    return slope + log(total), curvature - 2.0 * pull / total


def beta_tail_balance(t, a, b, c, log_k, mu, eps, sharp):
    """Return the balance ``S`` at ``tau = 1/(1 + e^-t)`` and its slope ``dS/dt``; the bound is stationary at ``S = 0``.

    ``S = ln (dG/dln tau) - ln (k tau pdf(tau))``. ``c`` is :func:`beta_constant`.
    """
    y = 1.0 / (1.0 + exp(t))
    tau = exp(t) * y
    m = mu * sqrt(tau)
    slope, curvature = log_tail_profile_slope(eps, m, sharp)
    # dG/dln tau = (m/2) dG/dm at m = mu sqrt(tau), and dln tau/dt = 1 - tau
    balance = log(0.5 * m) + slope - (log_k + beta_deviance(a, b, tau, y) + c - log(y))
    return balance, 0.5 * y * (1.0 + curvature) + beta_excess(a, b, tau, y) - tau


def beta_tail_stationary(t, a, b, c, log_k, mu, eps, sharp):
    """Return the logit of the stationary ``tau`` nearest to the logit ``t``, or an end of the range.

    Newton's method stops after a step that leaves an error near ``1e-9`` of the natural scale. The bound is flat there,
    so that is far below rounding; any ``tau`` would be sound. Where a step leads astray, the bracket is halved, or is
    sought by ever longer strides.
    """
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


def beta_tail_scale(a, b):
    """Return the standard deviation of ``logit B`` to first order, the natural step in ``logit tau``."""
    return sqrt(1.0 / a + 1.0 / b)


def beta_tail_value(t, a, b, c, log_k, mu, eps, sharp):
    """Return ``ln[G(tau) + k P(B > tau)]`` at ``tau = 1/(1 + e^-t)``: the bound at this ``tau`` (C16)."""
    y = 1.0 / (1.0 + exp(t))
    tau = exp(t) * y
    # G(tau) + k P(B > tau) (C16)
    tail = log_k + log_beta_tail_from(a, b, tau, y, c)
    return log_add(log_tail_profile(eps, mu * sqrt(tau), sharp), tail)


def beta_tail_minimum(t, a, b, c, log_k, mu, eps, sharp):
    """Return ``(ln delta, logit tau)``: the bound minimised over ``tau`` in (0, 1], started at the logit ``t``.

    ``delta = min over tau of  G(tau) + k P(Beta(a, b) > tau)``; ``tau = 1`` is logit ``inf``. Every ``tau`` is sound
    (C16).
    """
    at_one = log_tail_profile(eps, mu, sharp)
    t = beta_tail_stationary(t, a, b, c, log_k, mu, eps, sharp)
    value = beta_tail_value(t, a, b, c, log_k, mu, eps, sharp)
    if at_one <= value:
        return min(at_one, 0.0), inf
    return min(value, 0.0), t


def beta_tail_start(side, a, b, c, log_k, mu, eps, sharp):
    """Return the logit of the best of some ten ``tau`` below (``side = -1``) or above (1) the mean of ``B``."""
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
    """Return ``(ln delta, logit tau)`` of the Beta-tail bound at ``eps``, minimised over ``tau`` in (0, 1] (C16).

    There may be one local minimum on either side of the mean of ``B``; the lesser is taken.
    """
    log_k, c = log(k), beta_constant(a, b)
    below = beta_tail_start(-1.0, a, b, c, log_k, mu, eps, sharp)
    above = beta_tail_start(1.0, a, b, c, log_k, mu, eps, sharp)
    least = beta_tail_minimum(below, a, b, c, log_k, mu, eps, sharp)
    other = beta_tail_minimum(above, a, b, c, log_k, mu, eps, sharp)
    return least if least[0] <= other[0] else other


def beta_tail_share(a, b, c, log_share):
    """Return the logit ``t`` above the mean at which ``tau^a (1-tau)^b / Beta(a, b)`` is near ``e^log_share`` (Newton).

    It starts the search in ``tau``: this front is the tail to within a factor that matters little.
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
    """Return ``ln (-dG/deps)``, the log of how fast the Gaussian term falls with ``eps``."""
    u = gaussian_shift(eps, mu)
    # -d delta/deps = phi(u) R(u + mu), and -dT/deps = phi(u) (1 + e^-eps)/mu
    if sharp:
        return log_normal_density(u) + log(mills(u + mu) if u + mu > -35.0 else 1.0)
    return log_normal_density(u) + log1p(exp(-eps)) - log(mu)


def beta_tail_epsilon(a, b, k, mu, log_delta, sharp):
    """Return the ``eps`` at which the Beta-tail bound has come down to delta, rounded up; ``inf`` if none is below 1e9.

    The target is lowered by the relative error allowed to the bound, so that what is returned meets delta. Newton on
    ``ln delta(eps)``, whose derivative is that of the Gaussian term at the optimal ``tau`` (the envelope theorem),
    starts with the last ``tau`` and keeps a bracket that catches overshoot. A step that is corrected for the curvature
    seen so far has an error of third order; where that is below the tolerance, it is the last.
    """
    log_k, c = log(k), beta_constant(a, b)
    tolerance = 1e-14 * (1.0 - log_delta)
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


def add_laws(x, p, y, q, square, points, mass, above, below):
    """Add up the atoms ``x_i + y_j`` of mass ``p_i q_j`` between the increasing ``points``; return those beyond.

    ``x`` and ``y`` increase, and no sum lies below ``points[0]``. For each interval ``mass``, ``above`` and ``below``
    (all 0 on entry) get the sums of the mass ``w``, of ``w (v - left)`` and of ``w (right - v)`` over the atoms ``v``
    in it. Returned are the mass from the last point ``b`` on, and the sum of ``w (v - b)`` over it. With ``square``
    both laws are the same. Every sum adds up the terms of a row, then the rows; all terms are at least 0.
    """
    last, count = len(points) - 1, len(y)
    top = points[last]
    far_mass, far_excess, first = 0.0, 0.0, 0
    for i in range(len(x)):
        place, factor, start = x[i], p[i], i if square else 0
        while first + 1 < last and place + y[start] >= points[first + 1]:
            first += 1
        k, left, right = first, points[first], points[first + 1]
        w_sum, above_sum, below_sum = 0.0, 0.0, 0.0
        for j in range(start, count):
            v = place + y[j]
            if v >= right:
                mass[k] += w_sum
                above[k] += above_sum
                below[k] += below_sum
                w_sum, above_sum, below_sum = 0.0, 0.0, 0.0
                while k < last and v >= right:
                    k += 1
                    left, right = right, points[k + 1] if k < last else inf
                if k == last:
                    break
            w = factor * q[j]
            if square and j > i:
                w += w
            w_sum += w
            above_sum += w * (v - left)
            below_sum += w * (right - v)
        else:
            j = count
            mass[k] += w_sum
            above[k] += above_sum
            below[k] += below_sum
        w_sum, above_sum = 0.0, 0.0
        while j < count:
            w = factor * q[j] * (2.0 if square and j > i else 1.0)
            w_sum += w
            above_sum += w * (place + y[j] - top)
            j += 1
        far_mass += w_sum
        far_excess += above_sum
    return far_mass, far_excess
