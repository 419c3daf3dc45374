"""Special functions as kernels: plain functions of floats that need ``math`` only.

Each function runs as plain Python, where one evaluation takes microseconds, and as machine code from the same source
(:mod:`privproj.numerics.jit`). In plain Python ``log(0)``, ``1/0`` and overflows raise errors, but in machine code they
give inf or nan. So kernels avoid such operations. ``-inf`` is the log of zero.

Notation: ``phi`` and ``Phi`` are the density and the distribution function of the standard normal distribution,
``R(x) = (1 - Phi(x)) / phi(x)`` is the Mills ratio, ``B ~ Beta(a, b)`` with ``n = a + b``, and ``U ~ Gamma(a)``. Logs
are natural. The relative errors are within the margins of :mod:`privproj.numerics.interval` (measured).

The same functions are implemented in ball arithmetic for certificates, and in mpmath in
:mod:`privproj.reference.special`.
"""

import math
from math import erfc, exp, fabs, inf, lgamma, log, log1p, sqrt

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)  # soundness: ln sqrt(2 pi), in the normal density

SQRT_HALF = math.sqrt(0.5)  # soundness: sqrt(1/2)

SQRT_HALF_PI = math.sqrt(0.5 * math.pi)  # soundness: sqrt(pi/2), the Mills ratio at 0

GAUSS_3_OUTER_NODE = math.sqrt(0.6)  # soundness: outer node of the three-point Gauss rule on [-1, 1]

DEKKER_SPLITTER = 134217729.0  # soundness: 2^27 + 1, which splits a double into two halves (Dekker)

# soundness: nats, log of the least probability that is passed to scipy's quantile functions. Above it they are accurate
# to 4e-13 (measured against mpmath). Below e^-708 doubles lose digits, and a quantile is too small.
LEAST_LOG_QUANTILE = -705.0


def log_add(x, y):
    """Return ``ln(e^x + e^y)`` without overflow."""
    high, low = (x, y) if x > y else (y, x)
    if low == -inf or high == inf:
        return high
    return high + log1p(exp(low - high))


def product_error(x, y, product):
    """Return the exact rounding error of ``product = x * y`` (Dekker)."""
    cx, cy = DEKKER_SPLITTER * x, DEKKER_SPLITTER * y
    x_high, y_high = cx - (cx - x), cy - (cy - y)
    x_low, y_low = x - x_high, y - y_high
    # x y - product, from the four products of halves
    return ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


# --- the normal distribution ---


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
    """Return ``-R'(x) = 1 - x R(x)`` of the Mills ratio ``R`` for ``x >= -35``."""
    # The relative error is at most 1e-14 (measured), without cancellation.
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
    """Return the difference ``R(u) - R(u + mu)`` of the Mills ratio ``R`` for ``mu > 0``."""
    if mu >= 0.01 * max(1.0, fabs(u)):
        return mills(u) - mills(u + mu)
    # R(u) - R(u + mu) = mu [5 S(c - g) + 8 S(c) + 5 S(c + g)]/18, S = -R', c = u + mu/2, g = (mu/2) sqrt(3/5)
    center, reach = u + 0.5 * mu, 0.5 * mu * GAUSS_3_OUTER_NODE
    outer = mills_slope(center - reach) + mills_slope(center + reach)
    return mu * (5.0 * outer + 8.0 * mills_slope(center)) / 18.0


def log_normal_density(u):
    """Return the log of the standard normal density at ``u``."""
    return -0.5 * u * u - LOG_SQRT_2PI


# --- the Beta distribution ---


def stirling_remainder(z):
    """Return ``ln Gamma(z)`` minus Stirling's formula for ``z > 0``."""
    if z < 10.0:
        return lgamma(z) - ((z - 0.5) * log(z) - z + LOG_SQRT_2PI)
    # 1/(12 z) - 1/(360 z^3) + 1/(1260 z^5) - 1/(1680 z^7) + 1/(1188 z^9) - 691/(360360 z^11)
    w = 1.0 / (z * z)
    series = 1.0 / 1260.0 - w * (1.0 / 1680.0 - w * (1.0 / 1188.0 - w * 691.0 / 360360.0))
    return (1.0 / 12.0 - w * (1.0 / 360.0 - w * series)) / z


def log_residual(e, ratio):
    """Return ``ln(1 + e) - e`` without cancellation for ``e > -1``.

    ``ratio`` is ``1 + e``.
    """
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
    """Return ``(a + b) x - a``, correctly rounded, for ``x + y = 1``."""
    n = a + b
    if x <= 0.5:
        product = n * x
        return (product - a) + product_error(n, x, product)
    product = n * y
    return (b - product) - product_error(n, y, product)


def beta_constant(a, b):
    """Return ``ln[x^a y^b / Beta(a, b)]`` at the mean ``x = a/(a+b)``, with ``y = 1 - x``."""
    # R(n) - R(a) - R(b) + ln(a b/n)/2 - ln sqrt(2 pi): the large terms cancel algebraically.
    remainder = stirling_remainder(a + b) - stirling_remainder(a) - stirling_remainder(b)
    return remainder + 0.5 * log(a / (a + b) * b) - LOG_SQRT_2PI


def beta_tail_scale(a, b):
    """Return the standard deviation of the logit of ``Beta(a, b)``, to first order."""
    return sqrt(1.0 / a + 1.0 / b)


def beta_deviance(a, b, x, y):
    """Return ``a ln(n x/a) + b ln(n y/b)`` for ``x + y = 1``, with ``n = a + b``."""
    n = a + b
    # a [ln(1 + e/a) - e/a] + b [ln(1 - e/b) + e/b], e = n x - a
    excess = beta_excess(a, b, x, y)
    return a * log_residual(excess / a, n * x / a) + b * log_residual(-excess / b, n * y / b)


def log_beta_fraction(a, b, x, y, constant):
    """Return ``ln P(B <= x)`` for ``B ~ Beta(a, b)`` and ``x`` at or below the mean.

    ``y`` is ``1 - x``, and ``constant`` is the result of :func:`beta_constant`.
    """
    return beta_deviance(a, b, x, y) + constant + log(beta_fraction(a, b, x, y, beta_excess(a, b, x, y), 100000))


def beta_fraction(a, b, x, y, excess, most):
    """Return ``P(B <= x) / [x^a y^b / Beta(a, b)]`` for ``B ~ Beta(a, b)``.

    Args:
        a: The first shape.
        b: The second shape.
        x: The point, at most the mean ``a/(a+b)``.
        y: ``1 - x``.
        excess: ``(a+b) x - a``, at most 0.
        most: The largest number of terms. If more are needed, the result is -1.
    """
    # even contraction of the continued fraction of the incomplete beta function (Didonato and Morris 1992, equation 9),
    # summed forward by Steed's algorithm
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
    """Return ``ln P(B > x)`` for ``B ~ Beta(a, b)`` and ``y = 1 - x``.

    ``a`` and ``b`` are half-integers up to 5e5. Integers up to 1e12 require the larger error margin of C26.
    """
    # For integers the probability is a binomial tail.
    return log_beta_tail_from(a, b, x, y, beta_constant(a, b))


def log_beta_tail_from(a, b, x, y, constant):
    """Return :func:`log_beta_tail`, given ``constant`` from :func:`beta_constant`."""
    if y <= 0.0:
        return -inf
    if x <= 0.0:
        return 0.0
    if beta_excess(a, b, x, y) > 0.0:
        return min(0.0, log_beta_fraction(b, a, y, x, constant))
    return log1p(-min(exp(log_beta_fraction(a, b, x, y, constant)), 1.0 - 1e-16))


# --- the Gamma distribution ---


def log_gamma_front(a, e, ratio):
    """Return ``ln[u^a e^-u / Gamma(a)]`` at ``u = a ratio``.

    ``e`` is ``ratio - 1`` without cancellation.
    """
    if ratio <= 0.0:
        return -inf
    # a [ln(1 + e) - e] - R(a) + ln(a)/2 - ln sqrt(2 pi), R the remainder of Stirling's formula
    return a * log_residual(e, ratio) - stirling_remainder(a) + 0.5 * log(a) - LOG_SQRT_2PI


def log_gamma_below(a, e, ratio):
    """Return ``ln P(U <= a ratio)`` for ``U ~ Gamma(a)``.

    ``e`` is ``ratio - 1`` without cancellation.
    """
    if ratio <= 0.0:
        return -inf
    return min(0.0, log_gamma_front(a, e, ratio) + log(gamma_series(a, ratio, 10000000)))


def log_gamma_tail(a, e, ratio):
    """Return ``ln P(U > a ratio)`` for ``U ~ Gamma(a)``.

    ``e`` is ``ratio - 1`` without cancellation.
    """
    if a * e < 1.0:
        return log1p(-min(exp(log_gamma_below(a, e, ratio)), 1.0 - 1e-16))
    return log_gamma_front(a, e, ratio) + log(gamma_fraction(a, a * e, 10000000))


def gamma_series(a, ratio, most):
    """Return ``P(U <= u) / [u^a e^-u / Gamma(a)]`` at ``u = a ratio`` for ``U ~ Gamma(a)``.

    The result is -1 if more than ``most`` terms of a series are needed.
    """
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
    """Return ``P(U > u) / [u^a e^-u / Gamma(a)]`` at ``u = a + excess`` for ``U ~ Gamma(a)``.

    ``excess`` is at least 0. The result is -1 if more than ``most`` terms of a continued fraction are needed.
    """
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


# --- sums of two discrete distributions ---


def convolve_discrete(x, p, y, q, square, points, mass, above, below):
    """Write sums over the atoms of the sum of two independent discrete variables.

    Each output has one sum for each interval of a grid. An atom of the sum has the value ``v = x_i + y_j`` and the mass
    ``w = p_i q_j``.

    Args:
        x: The values of the first variable, increasing.
        p: The masses of ``x``.
        y: The values of the second variable, increasing.
        q: The masses of ``y``.
        square: True if both distributions are equal, which takes half the time.
        points: Increasing grid points; no atom is below the first one.
        mass: Output, initially zero: the sum of ``w`` over each interval.
        above: Output, initially zero: the sum of ``w (v - left end)``.
        below: Output, initially zero: the sum of ``w (right end - v)``.

    Returns:
        The sums of ``w`` and of ``w (v - b)`` over the atoms at or above the last point ``b``.
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


# --- the table of the Mills ratio ---

# soundness: coefficients of R/y, accurate to 2e-16
MILLS = (
    (0.2539642549090267, 0.008046107920858267, 0.00023841195860147205, 6.510708228716721e-06,
     1.6008900305156134e-07, 3.3971033736549853e-09, 5.6402144574929905e-11, 4.914813257568472e-13),
    (0.2622554490397096, 0.008543121646077562, 0.00025893944448526063, 7.186180055592456e-06,
     1.77937118301935e-07, 3.745284904324026e-09, 5.953685371615141e-11, 3.973014339823308e-13),
    (0.27106487805265667, 0.009083289910034155, 0.0002816039612861302, 7.936585305607897e-06,
     1.9756952484197755e-07, 4.110005412438002e-09, 6.18557183051534e-11, 2.5712946340620153e-13),
    (0.28043791025091336, 0.009671118789469633, 0.000306641167187666, 8.769208563376854e-06,
     2.1905501142579514e-07, 4.485354531855504e-09, 6.301104617821099e-11, 6.381148650573352e-14),
    (0.29042466301955844, 0.010311607774714465, 0.0003343089223942252, 9.691543268915478e-06,
     2.4242736065652517e-07, 4.863195604392554e-09, 6.26107940702693e-11, -1.879752056049095e-13),
    (0.3010805186128944, 0.011010294648887215, 0.0003648876827737113, 1.0711128614289076e-05,
     2.6767362597411773e-07, 5.232946239443685e-09, 6.023577107368752e-11, -5.004481857810235e-13),
    (0.31246668503945213, 0.0117733006171922, 0.0003986803319428952, 1.1835337743055231e-05,
     2.9472161483885057e-07, 5.5814894322081e-09, 5.5466008312101054e-11, -8.714054512590923e-13),
    (0.3246508016840002, 0.012607374414641803, 0.0004360113023842576, 1.3071115566463748e-05,
     3.234273682456421e-07, 5.89326973639217e-09, 4.791584326222188e-11, -1.293090251345809e-12),
    (0.3377075878838213, 0.013519933820078213, 0.00047722483639944834, 1.4424668198837856e-05,
     3.535636843067677e-07, 6.150621327089027e-09, 3.727556551917044e-11, -1.7514944209076081e-12),
    (0.35171953095829367, 0.014519102716397246, 0.0005226822504287515, 1.5901110621695752e-05,
     3.848109264146719e-07, 6.3343564185228074e-09, 2.3355672826708796e-11, -2.2263443594962932e-12),
    (0.3667776082021195, 0.015613741588843282, 0.0005727580937580956, 1.7504084345636585e-05,
     4.167514314822452e-07, 6.424614092176973e-09, 6.1283238341209766e-12, -2.6919326146042547e-12),
    (0.3829820351485164, 0.01681346917582331, 0.0006278351357514515, 1.923536198829326e-05,
     4.4886874809723094e-07, 6.4019345255405e-09, -1.4240107738948339e-11, -3.118819408959854e-12),
    (0.40044303007537524, 0.018128672910426236, 0.0006882981734387747, 2.1094460134087765e-05,
     4.805526683731915e-07, 6.248487616094743e-09, -3.737106486851826e-11, -3.4762618994693175e-12),
    (0.41928158237966134, 0.019570505842058345, 0.0007545267203776042, 2.3078284878778524e-05,
     5.111105831920876e-07, 5.949354926930988e-09, -6.26745626938299e-11, -3.735076505604777e-12),
    (0.43963021022049115, 0.021150867924241555, 0.0008268867130272748, 2.5180835498093578e-05,
     5.397851343442222e-07, 5.493746010257466e-09, -8.937035967183067e-11, -3.870541701710934e-12),
    (0.46163369087889383, 0.02288236990270899, 0.0009057214458271731, 2.7392990364503257e-05,
     5.657775310618851e-07, 4.876028524939524e-09, -1.1652837534448902e-10, -3.8649302741540636e-12),
    (0.4854497457509677, 0.02477827852956429, 0.0009913420135678388, 2.970239553788302e-05,
     5.882753271337209e-07, 4.09646691975244e-09, -1.4312448750254818e-10, -3.709323429697159e-12),
    (0.5112496609146158, 0.026852442442410043, 0.0010840175927108336, 3.209347067716234e-05,
     6.064829979556574e-07, 3.161594206655565e-09, -1.6810582150784853e-10, -3.4044849524764387e-12),
    (0.5392188238935238, 0.029119198747620836, 0.0011839659266285358, 3.4547539647357216e-05,
     6.196533743849781e-07, 2.084180321026353e-09, -1.9045862964409366e-10, -2.9607291338139834e-12),
    (0.5695571576515933, 0.031593261091088475, 0.0012913443899388918, 3.70430851982745e-05,
     6.271179123795995e-07, 8.828023404819331e-10, -2.0927193221068365e-10, -2.3968663862740913e-12),
    (0.6024794340069097, 0.03428959074022853, 0.0014062419932659477, 3.955611919268976e-05,
     6.283139022340955e-07, -4.1893980666870584e-10, -2.237911134644311e-10, -1.7384273756028737e-12),
    (0.6382154505290802, 0.037223252890799245, 0.0015286726533322256, 4.2060652821968935e-05,
     6.228070187957501e-07, -1.793488429092943e-09, -2.3345733964869084e-10, -1.0154346674522816e-12),
    (0.677010057505145, 0.04040926100920669, 0.0016585699978046097, 4.4529245662824976e-05,
     6.103080349406466e-07, -3.2105812906753165e-09, -2.379306365936957e-10, -2.6000789266157023e-13),
    (0.7191230246171367, 0.04386241249213813, 0.0017957839047632901, 4.6933608677993905e-05,
     5.906830064594075e-07, -4.638593214841191e-09, -2.3709639560827787e-10, 4.959378133839575e-13),
    (0.7648287404305822, 0.0475971192481437, 0.0019400788988161348, 4.9245234489469854e-05,
     5.639567299834585e-07, -6.04587006644469e-09, -2.3105671201468294e-10, 1.2226960712013437e-12),
    (0.8144157414931075, 0.0516272369694941, 0.0020911344456114858, 5.143602838470899e-05,
     5.303097279471492e-07, -7.401971362483906e-09, -2.2010914797707554e-10, 1.89434214569619e-12),
    (0.8681860716261846, 0.05596589686794742, 0.0022485471092035577, 5.3478915313573117e-05,
     4.90069390320586e-07, -8.678755651835008e-09, -2.0471619940131777e-10, 2.4898111363922696e-12),
    (0.9264544757070963, 0.060625343505567954, 0.002411834466884582, 5.5348401243890536e-05,
     4.436961812459465e-07, -9.851263382383642e-09, -1.8546896664548852e-10, 2.9934799109674696e-12),
    (0.9895474357432669, 0.06561678207991004, 0.002580440617050706, 5.702107125911447e-05,
     3.917659929747287e-07, -1.0898372664992941e-08, -1.6304836533207962e-10, 3.3952984183567915e-12),
    (1.0578020602194782, 0.07095023814559685, 0.0027537430695103787, 5.847601129213621e-05,
     3.349498042889241e-07, -1.1803222171299762e-08, -1.3818677710607866e-10, 3.690546779288257e-12),
    (1.13156484045798, 0.076634432298465, 0.002931060775285038, 5.969514502046655e-05,
     2.739917887345979e-07, -1.2553411071192013e-08, -1.116324437795448e-10, 3.879309816401349e-12),
    (1.2111902900073839, 0.08267667184163884, 0.0031116630342678375, 6.0663481887430036e-05,
     2.0968693716996738e-07, -1.3140997776188133e-08, -8.411825180443901e-11, 3.965763112252618e-12),
    (1.2970394848309668, 0.08908276092166463, 0.0032947790131467054, 6.136927622469202e-05,
     1.4285912885213583e-07, -1.3562327193807368e-08, -5.6335915508953054e-11, 3.957357694415438e-12),
    (1.3894785232864215, 0.09585693009115577, 0.0034796076112189617, 6.18041008740981e-05,
     7.434042459282521e-08, -1.3817720497743511e-08, -2.89160006742209e-11, 3.8639775037118805e-12),
    (1.4888769255873124, 0.10300178574277018, 0.0036653274262146655, 6.196284145455419e-05,
     4.95218134142385e-09, -1.3911062613068125e-08, -2.4137655403633e-12, 3.6971279405970224e-12),
    (1.5956059926401391, 0.11051827938423561, 0.0038511065939287555, 6.18436194675196e-05,
     -6.451158618739403e-08, -1.3849321363310537e-08, 2.2699554096127122e-11, 3.4691973857234712e-12),
    (1.7100371439030135, 0.11840569629785337, 0.004036112302263422, 6.144765380652732e-05,
     -1.3329833401538953e-07, -1.3642029210511368e-08, 4.604062786522179e-11, 3.1928183209028924e-12),
)  # fmt: skip
