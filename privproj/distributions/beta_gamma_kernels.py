"""Kernels for delta with a Beta or Gamma distributed squared sensitivity ``X``.

``X`` is the squared sensitivity of a Gaussian release over the noise variance. It is random because the projection is.
Let ``h(x)`` be the delta of the Gaussian mechanism at ``eps`` and the squared sensitivity ``x``. If neighboring sums
differ by a matrix of rank one, delta is ``E[h(X)]`` (C4). For any rank, delta is at most ``min_p E[g_p(X)]`` (C5). Here
``g_p`` is a convex function above ``h``, defined in :mod:`privproj.distributions.mixture_profile`.

The functions are kernels (:mod:`privproj.numerics.jit`): they use floats, tuples and ``math`` only. A distribution is a
tuple ``(a, b, scale, any_rank)``: ``X = scale * B`` with ``B ~ Beta(a, b)``, or ``X = scale * U`` with ``U ~ Gamma(a)``
if ``b`` is inf. ``any_rank`` is 1 for the bound of C5, and 0 for the bound of C4.

**Coordinate.** The variable of integration is ``s = logit(B) - logit(E B)`` or ``s = ln(U / E U)``. So ``X = m e^s / (1
+ q (e^s - 1))``, where ``m = E X``, and ``q`` is ``a/(a+b)`` for a Beta and 0 for a Gamma distribution. The density
``f`` of ``s`` is unimodal with its peak at ``s = 0``, and ``d ln f/ds = -a y (e^s - 1)`` with ``y = (1-q) / (1 + q (e^s
- 1))``. The product ``h f`` is largest where ``a (e^s - 1) = d ln h/d ln x``.

**The whole integral** ``int h f ds`` is a sum over equidistant ``s``, from the peak outward. For an integrand that is
analytic in a strip, the error of such a sum is ``e^(-2 pi width/step)`` times the cosine of a phase. Four sums are
computed, each shifted by a quarter of the step. Their differences give the size ``D_1`` of this error, and
approximately the size ``D_2`` of the error term with twice the phase. The mean of the four sums has an error of about
``D_1^4`` or ``D_2^2``. The reported error is ``64 D_1^4 + 4 D_2^2``. That it bounds the true error is observed, not
proved.

**The integral up to a limit** of ``s`` is computed by a Gauss rule with 24 nodes on one panel, or on two panels that
meet at the peak. Panels are split while the error is too large. The Legendre coefficients of degree 22 and 23, computed
from the same nodes and divided by the mean, are about the square root of the relative error. The square of the sum of
their absolute values is reported as the error. That it bounds the true error is observed, not proved.
"""

import math
from math import exp, expm1, fabs, hypot, inf, log, log1p, sqrt

from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, RELATIVE_ERROR_PER_NAT, outward_margin
from privproj.numerics.quadrature import LOG_NEGLIGIBLE_HEIGHT, gauss_legendre, legendre
from privproj.numerics.root_finding import newton_start, newton_step, root_of
from privproj.numerics.special import (
    LOG_SQRT_2PI,
    beta_constant,
    beta_fraction,
    gamma_fraction,
    gamma_series,
    log_add,
    log_residual,
    stirling_remainder,
)
from privproj.profiles.gaussian import gaussian_terms
from privproj.profiles.privacy_profile import ProfileKernels

# soundness: above P(X > c)/P(X > M(c)) with M(c) = E[X | X > c]: the ratio is at most e if the hazard rate increases,
# and 3.2 (measured) for the shape 1/2 (C5)
TAIL_GROWTH = 4.0

SQRT_3 = math.sqrt(3.0)  # soundness: sqrt 3, in the steepness of C20

# soundness: value of a |s| up to which the log density is a difference of two terms, whose rounding is 5e-14
EXACT_NATS = 100.0

# most terms of the series or continued fraction of a tail; at the mean, shapes of 2.5e11 require 4e6 and 4e4 of them
MOST_TAIL_TERMS = 10_000_000

# soundness: largest smaller shape for which the margin of special functions covers the rounding of a continued fraction
LARGEST_MEASURED_SHAPE = 5e5

# soundness: for larger shapes, relative error of a delta of C5 divided by the square root of the shape (measured: below
# 3e-16); the number of terms of the tails grows like this root
FRACTION_ROUNDING = 2e-15

# soundness: nats below the peak at which an integrand is truncated for a Gauss rule; e^-31 is 3e-14
NATS_TO_EDGE = 31.0

NATS_OF_SLACK = 7.0  # nats, tolerance of the search for the point where the integrand is truncated

# soundness: relative error allowed for the integrals beyond both edges: e^-30 over the log slope there
CUT_ERROR = 2e-14

STEP_IN_WIDTHS = 1.4  # step of one of the four sums, in widths of the peak: a normal density then has D_1 = 9e-5

# longest step of one of the four sums in s; all functions are analytic up to pi/2 from the real line
LONGEST_STEP = 1.0

MOST_TERMS = 20_000  # most terms of a sum in one direction; beyond, the result is unknown

LARGEST_RISE = 60.0  # soundness: nats above the approximate peak; if a term is larger, the result is unknown

# soundness: Gauss rule on [0, 1]: node, weight, and the weights of the coefficients of P_22 and P_23
GAUSS_24 = tuple(
    (x, w, 45.0 * w * legendre(22, 2.0 * x - 1.0)[0], 47.0 * w * legendre(23, 2.0 * x - 1.0)[0])
    for x, w in gauss_legendre(24)
)

MOST_POWER = math.exp(LARGEST_RISE)  # soundness: e^LARGEST_RISE


def beta_gamma_params(row):
    """Return constants of a distribution, which are the argument ``dist`` of other kernels.

    Args:
        row: ``(a, b, scale, any_rank)``. The squared sensitivity is ``scale * Beta(a, b)``, or ``scale * Gamma(a)`` if
            ``b`` is inf. ``any_rank`` is 1 for differences of any rank (C5), 0 for rank one (C4).
    """
    a, b, scale, any_rank = row[0], row[1], row[2], row[3]
    # a, b, E X, q, 1 - q, supremum of X, ln f(0), any_rank (symbols of the module docstring)
    if b == inf:
        return a, b, scale * a, 0.0, 1.0, inf, 0.5 * log(a) - LOG_SQRT_2PI - stirling_remainder(a), any_rank
    n = a + b
    return a, b, scale * (a / n), a / n, b / n, scale, beta_constant(a, b), any_rank


def log_shape(s, rise, dist):
    """Return a log density minus its maximum, for a Beta logit or a Gamma log.

    The variable ``s`` is ``logit(B) - logit(E B)`` for a Beta variable ``B``, or ``ln(U / E U)`` for a Gamma variable
    ``U``. ``rise`` is ``e^s - 1``.
    """
    a, b, _, q, rest, _, _, _ = dist
    far = fabs(s) > 0.7
    if b == inf:
        return a * (s - rise) if far or a * fabs(s) < EXACT_NATS else a * log_residual(rise, 1.0 + rise)
    # a s - n ln(1 + q (e^s - 1)), from the smaller of a and b
    if a <= b and (far or a * fabs(s) < EXACT_NATS):
        return a * s - (a + b) * log1p(q * rise)
    if b < a and (far or b * fabs(s) < EXACT_NATS):
        return -b * s - (a + b) * log1p(rest * expm1(min(-s, 700.0)))
    # a [ln(1 + d) - d] + b [ln(1 + e) - e], as a d + b e = 0
    spread = 1.0 + q * rise
    d, e = rest * rise / spread, -q * rise / spread
    return a * log_residual(d, 1.0 + d) + b * log_residual(e, 1.0 + e)


def point_at(s, dist):
    """Return ``e^s``, ``e^s - 1`` and the squared sensitivity at the coordinate ``s``.

    ``s`` is ``logit(B) - logit(E B)`` for a Beta variable ``B``, or ``ln(U / E U)`` for a Gamma variable ``U``.
    """
    if s < -0.7:
        growth = exp(s)
        rise = growth - 1.0
    else:
        # Values of s above 700 count as 700.
        rise = expm1(min(s, 700.0))
        growth = 1.0 + rise
    return growth, rise, dist[2] * (growth / (dist[4] + dist[3] * growth))


def coordinate(x, dist):
    """Return the coordinate ``s`` of a squared sensitivity ``x > 0``.

    It is the inverse of :func:`point_at`, limited to at most 700.
    """
    w = x / dist[2]
    rest = 1.0 - dist[3] * w
    if rest <= 1e-300:
        return 700.0
    # e^s = w (1 - q)/(1 - q w)
    return log1p((w - 1.0) / rest) if 0.5 < w < 2.0 else min(700.0, log(max(w, 1e-300)) + log(dist[4] / rest))


def log_slope_of_delta(eps, x):
    """Return ``k = d ln delta/d ln x`` and ``-d ln k/d ln x`` for the Gaussian mechanism.

    ``x`` is the squared sensitivity over the noise variance.
    """
    _, gain, _, here = gaussian_terms(eps, x)
    k = 0.5 * sqrt(x) * here / gain if gain > 0.0 else 0.5 * (eps / x * eps + 1.0)
    # -d ln k/d ln x = k - 1 - x h''/h', x h''/h' = eps^2/(2 x) - 1/2 - x/8 (C3)
    return k, k - 0.5 + 0.125 * x - 0.5 * eps * (eps / x)


def find_peak(eps, dist, guess):
    """Return approximately the peak and the width of the integrand ``h f``.

    ``h`` is the Gaussian delta, and ``f`` the density of the coordinate of :func:`point_at`. The search starts at the
    coordinate ``guess``.
    """
    a, _, mean, q, rest, top, _, _ = dist
    k, _ = log_slope_of_delta(eps, mean)
    low, high = 0.0, log1p(min(k / a, 1e300))
    if top < inf:
        # k falls with x, and x stays below its supremum
        low = min(log1p(min(log_slope_of_delta(eps, top)[0] / a, 1e300)), high)
    s = guess
    if not low < s < high:
        # a (w - 1) = eps^2/(2 m w), where k is nearly eps^2/(2 x)
        ratio = 0.5 * eps / a * (eps / mean)
        w = 0.5 + sqrt(0.25 + ratio)
        s = log(w)
        if not (q * w < 0.5 and low < s < high):
            s = 0.5 * (low + high)
    width = 1.0
    for _ in range(80):
        growth, rise, x = point_at(s, dist)
        k, fall = log_slope_of_delta(eps, x)
        y = rest / (rest + q * growth)
        # -d^2 ln(h f)/ds^2 = y (a e^s + y k (-d ln k/d ln x)) at the top
        bend = y * (a * growth + y * k * max(fall, 0.0))
        width = 1.0 / sqrt(max(bend, 1e-300))
        if rise <= 0.0:
            break
        # if h rounds to 1, the peak lies below
        excess = log(a * rise) - log(k) if k > 0.0 else inf
        if excess > 0.0:
            high = s
        else:
            low = s
        # Newton in ln(e^s - 1)
        moved = log1p(rise * exp(min(700.0, -excess / (1.0 + y * max(fall, 0.0) * rise / growth))))
        if k <= 0.0 or not low <= moved <= high:
            moved = 0.5 * (low + high)
        step, s = fabs(moved - s), moved
        if k > 0.0 and step < 0.1 * width:
            break
    return s, width


def add_outwards(eps, dist, start, stride, height, by_parts):
    """Return sums of the integrand of a mean Gaussian delta over equidistant points.

    The mean is over the squared sensitivity. The points are ``start``, ``start + stride``, ``start + 2 stride``, ... in
    the coordinate of :func:`point_at`.

    Returns:
        * the sum of the integrand, after integration by parts if ``by_parts`` is True;
        * the sum of minus the derivative of the integrand in ``eps``;
        * a bound of the omitted part of the first sum, negative if the sum does not converge.

        All three are divided by ``e^height``.
    """
    total, fall, s, last = 0.0, 0.0, start, inf
    for _ in range(MOST_TERMS):
        growth, rise, x = point_at(s, dist)
        level, gain, loss, here = gaussian_terms(eps, x)
        # The integrand is dh/ds P(X > x) by parts, else h f with the density f of s.
        if by_parts:
            log_tail, hazard = log_tail_and_hazard(s, growth, rise, dist)
            power = exp(min(LARGEST_RISE, level + log_tail - height))
            term = 0.5 * dist[4] / (dist[4] + dist[3] * growth) * sqrt(x) * here * power
            loss *= hazard
        else:
            power = exp(min(LARGEST_RISE, level + log_shape(s, rise, dist) + dist[6] - height))
            term = gain * power
        if power >= MOST_POWER:
            break
        total += term
        fall += loss * power
        if term <= 4e-18 * total and term < last:
            # the remainder decreases faster than a geometric series, because the integrand is log-concave
            return total, fall, term * term / (last - term) if last < inf else 0.0
        last = term
        s += stride
    return total, fall, -1.0


def sum_on_line(eps, dist, start, step, height, by_parts):
    """Return the sums of :func:`add_outwards` over ``start + k step`` for all integers ``k``.

    The bound of the omitted part is -1 if a sum does not converge.
    """
    right, right_fall, right_rest = add_outwards(eps, dist, start, step, height, by_parts)
    left, left_fall, left_rest = add_outwards(eps, dist, start - step, -step, height, by_parts)
    rest = right_rest + left_rest if min(right_rest, left_rest) >= 0.0 else -1.0
    return right + left, right_fall + left_fall, rest


def find_peak_by_parts(eps, dist):
    """Return approximately the peak and the width of the integrand ``dh/ds P(X > x)``.

    ``h`` is the Gaussian delta at the squared sensitivity ``x`` with the coordinate ``s`` (:func:`point_at`). The
    integrand is that of ``E[h(X)]`` after integration by parts.
    """
    # The integrand is dh/ds P(X > x).
    s, width = coordinate(2.0 * eps, dist), 1.0
    for _ in range(12):
        growth, rise, x = point_at(s, dist)
        spread = dist[4] + dist[3] * growth
        y, mu = dist[4] / spread, sqrt(x)
        _, hazard = log_tail_and_hazard(s, growth, rise, dist)
        u, v = eps / mu - 0.5 * mu, eps / mu + 0.5 * mu
        width = 2.0 / (v * y)
        # d/ds [ln y + ln mu - u^2/2 + ln P(X > x)], with du/ds = -y v/2
        slope = -dist[3] * growth / spread + 0.5 * y + 0.5 * y * u * v - hazard
        step = max(-4.0 * width, min(4.0 * width, slope * width * width))
        s += step
        if fabs(step) < 0.1 * width:
            break
    return s, width


def whole_integral(eps, dist, guess):
    """Return ``ln E[h(X)]``, its slope, its relative error and the peak of the integrand.

    ``h(x)`` is the Gaussian delta at the squared sensitivity ``x``. The slope is ``-d ln E[h(X)]/deps``. The error is
    inf if a sum does not converge. ``guess`` is where the search for the peak starts.
    """
    top, width = find_peak(eps, dist, guess)
    growth, rise, x = point_at(top, dist)
    level, gain, _, _ = gaussian_terms(eps, x)
    if gain <= 0.0 or level < -1e300:
        return -inf, 0.0, 0.0, top
    height = level + log_shape(top, rise, dist) + dist[6]
    s, by_parts = top, False
    step = min(STEP_IN_WIDTHS * width, LONGEST_STEP)
    # du/ds = -y v/2 with u = eps/mu - mu/2, v = eps/mu + mu/2; at u = 0, x = 2 eps, v = sqrt(2 eps), y = 1 - x/supremum
    if x > 2.0 * eps and (1.0 - 2.0 * eps / dist[5]) * sqrt(0.5 * eps) * step > STEP_IN_WIDTHS:
        by_parts = True
        s, width = find_peak_by_parts(eps, dist)
        step, height = STEP_IN_WIDTHS * width, 0.0
        growth, rise, _ = point_at(s, dist)
        height = max(log_tail_and_hazard(s, growth, rise, dist)[0], -1e300)
    one, one_fall, one_rest = sum_on_line(eps, dist, s, step, height, by_parts)
    two, two_fall, two_rest = sum_on_line(eps, dist, s + 0.5 * step, step, height, by_parts)
    total, fall, difference = one + two, one_fall + two_fall, 1.0
    for _ in range(8):
        three, three_fall, three_rest = sum_on_line(eps, dist, s + 0.25 * step, step, height, by_parts)
        four, four_fall, four_rest = sum_on_line(eps, dist, s - 0.25 * step, step, height, by_parts)
        between = three + four
        if min(min(one_rest, two_rest), min(three_rest, four_rest)) < 0.0 or total + between <= 0.0:
            break
        # four sums A, B, C, D a quarter of the step apart: D_1 = 2 hypot(A - C, B - D)/(A + B + C + D) for every phase,
        # D_2 = |A + C - B - D|/(A + B + C + D), error 64 D_1^4 + 4 D_2^2
        difference = 2.0 * hypot(one - two, three - four) / (total + between)
        finer = fabs(total - between) / (total + between)
        one, one_fall, one_rest = total, fall, one_rest + two_rest
        two, two_fall, two_rest = between, three_fall + four_fall, three_rest + four_rest
        total, fall, step = one + two, one_fall + two_fall, 0.5 * step
        # If the difference D_1 of the four sums is larger, the step is halved. Otherwise D_1 only determines the error.
        if difference <= max(3e-4, RELATIVE_ERROR_PER_NAT * fabs(height)):
            error = 64.0 * difference**4 + 4.0 * finer * finer + (one_rest + two_rest) / total
            return height + log(0.5 * step * total), fall / total, error, top
    if height < LOG_NEGLIGIBLE_HEIGHT and total > 0.0 and difference < max(0.5, RELATIVE_ERROR_PER_NAT * -height):
        # rounding of a huge exponent
        return height + log(0.5 * step * total), fall / total, 3.0, top
    return height, 0.0, inf, top


def left_edge(eps, dist, s, slope, bend, height):
    """Return a coordinate below which the integral of ``h f`` is negligible.

    ``h`` is the Gaussian delta, and ``f`` the density of the coordinate of :func:`point_at`.

    Args:
        eps: Epsilon in nats.
        dist: The distribution, from :func:`beta_gamma_params`.
        s: A coordinate at or left of the peak of the integrand.
        slope: The derivative of the log integrand at ``s``.
        bend: Minus the second derivative of the log integrand at ``s``.
        height: The log integrand at ``s``.
    """
    # At the limit, the log integrand is about NATS_TO_EDGE below its value at s.
    # Newton's method, which starts at the root of slope z + bend z^2/2 = NATS_TO_EDGE
    z = 2.0 * NATS_TO_EDGE / (slope + sqrt(slope * slope + 2.0 * NATS_TO_EDGE * bend))
    a, _, _, q, rest, _, _, _ = dist
    for _ in range(60):
        edge = s - z
        growth, rise, x = point_at(edge, dist)
        level, gain, _, here = gaussian_terms(eps, x)
        drop = height - (level + log(gain) + log_shape(edge, rise, dist) + dist[6]) if gain > 0.0 else 1e300
        if NATS_TO_EDGE - 1.0 <= drop <= NATS_TO_EDGE + NATS_OF_SLACK:
            return edge
        if drop > 1e299:
            z = 0.5 * z
            continue
        k = 0.5 * sqrt(x) * here / gain
        pull = rest / (rest + q * growth) * (k - a * rise)
        z = min(2.0 * z, max(0.1 * z, z + (NATS_TO_EDGE + 2.0 - drop) / pull)) if pull > 0.0 else 2.0 * z
    return s - z


def panel_sum(eps, dist, left, right, height):
    """Return two integrals over a panel by a Gauss rule, and the absolute error of the first.

    The integrands are ``h f`` and ``-d(h f)/deps``. ``h`` is the Gaussian delta, and ``f`` is the density of the
    coordinate of :func:`point_at`. The error is inf if ``h f`` is far above ``e^height``. All three results are divided
    by ``e^height``.
    """
    width = right - left
    total, fall, one, other = 0.0, 0.0, 0.0, 0.0
    for i in range(24):
        row = GAUSS_24[i]
        s = left + width * row[0]
        _, rise, x = point_at(s, dist)
        level, gain, loss, _ = gaussian_terms(eps, x)
        power = exp(min(LARGEST_RISE, level + log_shape(s, rise, dist) + dist[6] - height))
        if power >= MOST_POWER:
            return 1.0, 0.0, inf
        term = gain * power
        total += row[1] * term
        fall += row[1] * loss * power
        one += row[2] * term
        other += row[3] * term
    if total <= 0.0:
        return 0.0, 0.0, 0.0
    # c = |c_22| + |c_23| over the mean; error c^2
    share = (fabs(one) + fabs(other)) / total
    return width * total, width * fall, width * total * min(share, 1.0) * min(share, 1.0)


def split_panel_sum(eps, dist, left, right, height, most):
    """Return the sum of :func:`panel_sum` over 1, 2, 4, ... or 64 equal parts of a panel.

    The number of parts is the least for which the error is at most ``most``, or 64.
    """
    total, fall, error = panel_sum(eps, dist, left, right, height)
    parts = 1
    while error > most and parts < 64:
        parts = 2 * parts
        total, fall, error = 0.0, 0.0, 0.0
        width = (right - left) / parts
        for i in range(parts):
            one, two, three = panel_sum(eps, dist, left + i * width, left + (i + 1) * width, height)
            total, fall, error = total + one, fall + two, error + three
    return total, fall, error


def integral_below(eps, dist, cut, guess, log_other):
    """Return ``ln E[h(X); X <= c]`` with its slope, its relative error and the peak.

    ``h(x)`` is the Gaussian delta at the squared sensitivity ``x``. The slope is minus the derivative in ``eps``.

    Args:
        eps: Epsilon in nats.
        dist: The distribution of ``X``, from :func:`beta_gamma_params`.
        cut: The limit ``c`` in the coordinate of :func:`point_at`.
        guess: The coordinate at which the search for the peak starts.
        log_other: The log of the number to which the result is added. A result that is far smaller may be inaccurate.
    """
    a, _, _, q, rest, _, _, _ = dist
    top, width = find_peak(eps, dist, guess)
    s = min(top, cut)
    growth, rise, x = point_at(s, dist)
    level, gain, _, here = gaussian_terms(eps, x)
    if gain <= 0.0 or level < -1e300:
        return -inf, 0.0, 0.0, top
    height = level + log(gain) + log_shape(s, rise, dist) + dist[6]
    y = rest / (rest + q * growth)
    k = 0.5 * sqrt(x) * here / gain
    fall_of_k = k - 0.5 + 0.125 * x - 0.5 * eps * (eps / x)
    bend = y * (a * growth + y * k * max(fall_of_k, 0.0)) + (1.0 - y) * y * max(k - a * rise, 0.0)
    left = left_edge(eps, dist, s, max(y * (k - a * rise), 0.0), bend, height)
    # allow an error of 1e-13 of the sum, or of the number to which it is added
    most = 1e-13 * max(0.1 * (s - left), exp(min(log_other - height, 300.0)))
    if cut - top <= 2.0 * width:
        total, fall, error = split_panel_sum(eps, dist, left, cut, height, most)
        return height + log(total), fall / total, error / total + CUT_ERROR, top
    _, rise, x = point_at(cut, dist)
    level, gain, _, _ = gaussian_terms(eps, x)
    if level + log(max(gain, 1e-300)) + log_shape(cut, rise, dist) + dist[6] < height - NATS_TO_EDGE:
        value, slope, error, top = whole_integral(eps, dist, top)
        return value, slope, error + CUT_ERROR, top
    total, fall, error = split_panel_sum(eps, dist, left, top, height, most)
    more, more_fall, more_error = split_panel_sum(eps, dist, top, cut, height, most)
    total, fall, error = total + more, fall + more_fall, error + more_error
    return height + log(total), fall / total, error / total + CUT_ERROR, top


# --- the tail of the distribution, and the tangent of C5 ---------------------------------------------------


def log_tail_and_hazard(s, growth, rise, dist):
    """Return the log tail and the hazard rate of the coordinate ``s`` of :func:`point_at`.

    ``growth`` and ``rise`` are ``e^s`` and ``e^s - 1``.
    """
    a, b, _, q, rest, _, front, _ = dist
    shape = log_shape(s, rise, dist)
    spread = rest + q * growth
    x, y = q * growth / spread, rest / spread
    if s >= 0.0:
        if b == inf:
            over = gamma_fraction(a, a * rise, MOST_TAIL_TERMS)
        else:
            over = beta_fraction(b, a, y, x, -a * y * rise, MOST_TAIL_TERMS)
        return min(0.0, front + shape + log(over)), 1.0 / over
    if b == inf:
        under = gamma_series(a, growth, MOST_TAIL_TERMS)
    else:
        under = beta_fraction(a, b, x, y, a * y * rise, MOST_TAIL_TERMS)
    density = exp(front + shape)
    below = min(density * under, 1.0 - 1e-16)
    return log1p(-below), density / (1.0 - below)


def tangent_cut(eps, dist, guess):
    """Return the ``c`` where the Gaussian delta meets its tangent at ``M(c)`` (C5).

    ``M(c) = E[X | X > c]`` for the squared sensitivity ``X``. The any-rank bound is computed at this ``c``.

    Returns:
        ``(s, c, ln P(X > c), M(c), relative error)``, where ``s`` is the coordinate of ``c`` (:func:`point_at`). The
        last entry is the relative error of the any-rank bound that results from an inexact ``c``.
    """
    a, _, mean, q, rest, top, _, _ = dist
    bend = inflection(eps)
    high = coordinate(bend, dist)
    low = -inf
    s = guess
    if not s < high:
        # Start where the tangent at the mean m is 0, at m - h/h', or at x0 if the mean is below x0.
        s = high
        if mean > bend:
            s = min(s, coordinate(mean * max(1.0 - 1.0 / log_slope_of_delta(eps, mean)[0], 1e-6), dist))
    # The error is relative to P(X > c) h(M(c)) (C5, *A cut that is not exact*).
    best, last = (s, bend, 0.0, bend, inf), False
    for _ in range(200):
        growth, rise, c = point_at(s, dist)
        y = rest / (rest + q * growth)
        log_tail, hazard = log_tail_and_hazard(s, growth, rise, dist)
        p = min(top, max(c, mean * (1.0 + hazard / a)))
        level, gain, _, here = gaussian_terms(eps, p)
        level_c, gain_c, _, here_c = gaussian_terms(eps, c)
        if gain <= 0.0:
            break
        k = 0.5 * sqrt(p) * here / gain
        over = exp(min(700.0, level_c - level)) / gain
        share, share_slope = gain_c * over, 0.5 * sqrt(c) * here_c * over
        # (l_p(c) - h(c)) / h(p) = 1 - k (p - c)/p - h(c)/h(p)
        gap = 1.0 - k * ((p - c) / p) - share
        # its derivative in s: p' = hazard (p - c), c' = c y, x h''/h' = eps^2/(2 x) - 1/2 - x/8
        moved = hazard * (p - c)
        curve = 0.5 * eps * (eps / p) - 0.5 - 0.125 * p - k
        slope = k / p * (c * y - moved - curve * moved * ((p - c) / p)) - share_slope * y + share * k * moved / p
        # |gap| h(p) P(between c and the crossing) <= 4 |gap| h(p) P(X > c), if p >= x0; below, the gap is negative.
        error = inf
        if p < bend * (1.0 - 1e-14):
            gap = -max(fabs(gap), 1e-300)
        else:
            error = TAIL_GROWTH * fabs(gap)
            if slope > 0.0 and fabs(gap) < 0.05 and fabs(a * y * rise * gap) < 0.5 * slope:
                error = min(error, 4.0 * fabs(gap) * hazard * fabs(gap) / slope)
        if error < best[4]:
            best = (s, c, log_tail, p, error)
        if error <= 1e-14:
            return best
        if gap >= 0.0:
            high = s
        else:
            low = s
        if last or high < -690.0:
            break
        # For p < x0: if M - c is constant, the root is where M exceeds x0 by a third of M - c.
        newton = s - gap / slope if slope > 0.0 else -inf
        s = coordinate(c + (bend - p) + (p - c) / 3.0, dist) if p < bend else newton
        if low == -inf:
            s = max(s, high - 3.0)
        if not low < s < high:
            s = 0.5 * (low + high) if low > -inf else high - 1.0
        if high - low <= 4e-16 * fabs(high):
            s, last = high, True
    return best


def inflection(eps):
    """Return the squared sensitivity at which the Gaussian delta turns from convex to concave."""
    # 2 (sqrt(1 + eps^2) - 1) = 2 eps^2 / (1 + sqrt(1 + eps^2)), without cancellation (C3)
    return 2.0 * eps * (eps / (1.0 + hypot(1.0, eps)))


def any_rank_value(eps, dist, top, cut):
    """Return ``ln delta`` for a difference of any rank, with its slope and error (C5).

    Args:
        eps: Epsilon in nats.
        dist: The distribution, from :func:`beta_gamma_params`.
        top: Where the search for the peak of the integrand starts.
        cut: Where the search of :func:`tangent_cut` starts.

    Returns:
        ``(ln delta, -d ln delta/deps, relative error, top, cut)`` with the results of both searches.
    """
    mean, supremum = dist[2], dist[5]
    # C5, case 2: h is convex on the whole range, and rank one is the worst case.
    if supremum <= inflection(eps):
        value, slope, error, top = whole_integral(eps, dist, top)
        return value, slope, error, top, cut
    # C5, case 1: the tangent at the mean lies above h from 0 on, and the bound is h(E X).
    level, gain, loss, _ = gaussian_terms(eps, mean)
    if gain > 0.0 and log_slope_of_delta(eps, mean)[0] <= 1.0:
        return level + log(gain), loss / gain, 0.0, top, cut
    # Otherwise V(c) = E[h(X); X <= c] + P(X > c) h(M(c)) at the root c of l_M(c)(c) = h(c) (C5).
    s, c, log_tail, p, loose = tangent_cut(eps, dist, cut)
    level, gain, loss, _ = gaussian_terms(eps, p)
    if gain <= 0.0:
        return -inf, 0.0, 0.0, top, cut
    above = log_tail + level + log(gain)
    above_slope = loss / gain
    # E[h(X); X <= c] <= P(X <= c) h(c) is omitted if it is below e^-32 < 2e-14 of the rest.
    level, gain, _, _ = gaussian_terms(eps, c)
    if gain <= 0.0 or level + log(gain) + min(0.0, log(max(-expm1(log_tail), 1e-300))) < above - 32.0:
        return above, above_slope, loose + 2e-14, top, s
    below, below_slope, error, top = integral_below(eps, dist, s, top, above)
    if below == -inf:
        return above, above_slope, loose + 2e-14, top, s
    # The slope is that at a fixed c, which is exact by the envelope theorem.
    value = log_add(below, above)
    one, other = exp(below - value), exp(above - value)
    # the part above may be so small that its tangent is lost in rounding
    rough = other * min(loose, 3.0) if other < 1e-20 else other * loose
    return value, one * below_slope + other * above_slope, one * error + rough, top, s


def rounding_of_tails(a, b):
    """Return the relative error of delta that results from rounding in Beta or Gamma tails.

    The error is 0 if one of the shapes ``a`` and ``b`` is at most :data:`LARGEST_MEASURED_SHAPE`.
    """
    return FRACTION_ROUNDING * sqrt(min(a, b)) if min(a, b) > LARGEST_MEASURED_SHAPE else 0.0


def mixture_ends(eps, dist, state):
    """Return bounds of ``ln delta``, the slope ``-d ln delta/deps``, and a new ``state``.

    If the error is unknown, the bounds are ``(-inf, inf)``.

    Args:
        eps: Epsilon in nats.
        dist: The result of :func:`beta_gamma_params`; its last entry selects C5 (any rank) or C4 (rank one).
        state: The coordinates at which :func:`find_peak` and :func:`tangent_cut` start. The new ``state`` has the
            coordinates that they found.
    """
    top, cut = state
    if dist[7] > 0.5:
        value, slope, error, top, cut = any_rank_value(eps, dist, top, cut)
    else:
        value, slope, error, top = whole_integral(eps, dist, top)
    if value == -inf:
        return -inf, LOG_OF_ZERO_FROM_ABOVE, slope, (top, cut)
    # (v + sqrt 3)(v + mu + sqrt 3), v = sqrt(2 |ln delta|) (C20)
    v = sqrt(2.0 * min(fabs(value), 1e300)) + SQRT_3
    steepness = v * (v + sqrt(dist[5] if dist[5] < inf else dist[2]))
    margin = outward_margin(value, error + rounding_of_tails(dist[0], dist[1]), steepness)
    if not margin < inf:
        return -inf, inf, slope, (top, cut)
    return value - margin, min(0.0, value + margin), slope, (top, cut)


def mixture_log_delta(eps, row):
    """Return bounds of ``ln delta`` for a Beta or Gamma squared sensitivity (C4, C5).

    ``row`` is ``(a, b, scale, any_rank)``, as for :func:`beta_gamma_params`.
    """
    lower, upper, _, _ = mixture_ends(eps, beta_gamma_params(row), (-1.0, inf))
    return lower, upper


find_mixture_root = root_of(mixture_ends)


def mixture_root(log_delta, row):
    """Return approximately the epsilon at which ``ln delta`` is ``log_delta``, and a residual.

    The residual is the computed ``ln delta`` minus ``log_delta``. As epsilon is not exact, the caller must evaluate
    :func:`mixture_log_delta` at it.
    """
    dist = beta_gamma_params(row)
    start, top = newton_start(sqrt(dist[2]), log_delta), -1.0
    # two Newton steps with a rough profile, which costs a tenth of an evaluation
    for _ in range(2):
        top, width = find_peak(start, dist, top)
        _, rise, x = point_at(top, dist)
        level, gain, loss, _ = gaussian_terms(start, x)
        value, slope = -inf, 0.0
        if gain > 0.0:
            # E[h(X)] is about sqrt(2 pi) width h f at the peak (Laplace's method)
            value = level + log(gain * width) + log_shape(top, rise, dist) + dist[6] + LOG_SQRT_2PI
            slope = loss / gain
        moved = newton_step(start, value, slope, log_delta, 0.0, inf)
        start = min(max(moved, 0.25 * start), 4.0 * start)
    return find_mixture_root(log_delta, dist, (top, inf), start)


# the kernels of C4 and C5; a row is (a, b, scale, any_rank)
BETA_GAMMA_KERNELS = ProfileKernels(mixture_log_delta, mixture_root)
