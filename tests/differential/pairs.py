"""Dominating pairs of privacy loss distributions, from their definitions and by dense integration.

A pair ``(P, Q)`` with loss ``L = ln dP/dQ`` has ``tails(at)``, which are ``P(L > at), P(L <= at), Q(L > at),
Q(L <= at)``, and ``delta(eps) = H_eps(P || Q)`` with an estimate of its error. Integrals are trapezoid sums of analytic
integrands over the whole line, which converge exponentially. The error is the difference to the sum over every second
point.
"""

import math
from functools import cached_property, lru_cache

import mpmath
import numpy as np
from scipy import interpolate, special

GATHERED = 3e-3  # relative error where points of a sum of layers are joined
HARD = 1e-11  # relative rounding error of one incomplete gamma function of SciPy


def gain(eps, shift):
    """Return ``Phi(s/2 - eps/s) - e^eps Phi(-s/2 - eps/s) = phi(a) (M(-a) - M(-a + s))``.

    Here ``a = s/2 - eps/s`` and ``M`` is Mills' ratio. Where the difference cancels, integrate
    ``int_0^s phi(t/2 - eps/t) dt`` by Gauss-Legendre quadrature in ``ln t``.
    """
    eps, s = np.broadcast_arrays(np.asarray(eps, float), np.asarray(shift, float))
    a = 0.5 * s - np.minimum(eps / np.maximum(s, 1e-150), 1e150)
    plain = np.exp(special.log_ndtr(a)) - np.exp(eps + special.log_ndtr(a - s))
    first, second = (math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2)) for x in (-a, s - a))
    small = a < 3.0
    ratio = np.where(small, first - second, 1.0)
    found = np.where(small, np.exp(-0.5 * a * a) / math.sqrt(2 * math.pi) * ratio, plain)
    lost = small & (ratio < 1e-3 * first)
    if lost.any():
        found = np.array(found)
        found[lost] = thin_gain(eps[lost], s[lost])
    return found


def thin_gain(eps, s):
    """Return the integral form; the integrand rises to ``t = s`` like ``exp(-eps^2/(2 t^2))``."""
    nodes = np.polynomial.legendre.leggauss(60)
    reach = np.minimum(45.0, 45.0 / (1.0 + eps * eps / s**2))[:, None]
    u = -reach * 0.5 * (1.0 - nodes[0])
    t = s[:, None] * np.exp(u)
    inner = np.exp(-0.5 * (t / 2 - eps[:, None] / t) ** 2) * t
    return (inner * nodes[1]).sum(axis=1) * 0.5 * reach[:, 0] / math.sqrt(2 * math.pi)


class Pair:
    """A symmetric pair, ``Q(L > at) = P(L < -at)``. ``largest`` is the supremum of its losses."""

    largest = math.inf

    def upper(self, at):
        """Return ``P(L > at)``."""
        raise NotImplementedError

    def lower(self, at):
        """Return ``P(L <= at)``."""
        raise NotImplementedError

    def tails(self, at):
        return self.upper(at), self.lower(at), self.lower(-at), self.upper(-at)


class Shifts(Pair):
    """A Gaussian pair with a random, observed sensitivity ``S``: ``P(L > at) = E Phi(S/2 - at/S)``."""

    def __init__(self, shift, weight, coarse=None, rough=1e-13):
        """``rough`` is the relative error of the weights, ``coarse`` the factors that keep every second point."""
        self.rough = rough
        keep = weight > 0.0
        self.s, self.w = shift[keep], weight[keep]
        self.c = None if coarse is None else coarse[keep]

    def mean(self, values):
        return values @ self.w

    def upper(self, at):
        return rows(lambda x: self.mean(special.ndtr(0.5 * self.s - x[:, None] / self.s)), at, len(self.s))

    def lower(self, at):
        return rows(lambda x: self.mean(special.ndtr(x[:, None] / self.s - 0.5 * self.s)), at, len(self.s))

    def delta(self, eps):
        values = gain(eps, self.s)
        found = float(values @ self.w)
        error = self.rough * found
        if self.c is not None:
            error += abs(float(values @ (self.w * self.c)) - found)
        return found, error


def rows(read, at, width):
    """Return ``read(at)`` in pieces that fit into memory."""
    at = np.atleast_1d(np.asarray(at, float))
    size = max(1, 2_000_000 // width)
    return np.concatenate([read(at[i : i + size]) for i in range(0, len(at), size)])


def trapezoid(log_weight, left, right, step):
    """Return points and weights of the trapezoid rule, and the factors that keep every second point."""
    count = max(8, math.ceil((right - left) / step) | 1)
    s = np.linspace(left, right, count)
    weight = np.exp(log_weight(s)) * (s[1] - s[0])
    return s, weight, np.where(np.arange(count) % 2 == 0, 2.0, 0.0)


@lru_cache(maxsize=512)
def gamma_nodes(k, density):
    """Return nodes of ``X ~ Gamma(k)`` at ``ln X = s``, weight ``e^(k s - e^s)/Gamma(k)``."""
    with mpmath.workdps(40):
        front = float(mpmath.mpf(k) * mpmath.log(k) - k - mpmath.loggamma(k))
    width = 1.0 / math.sqrt(k)
    left = math.log(k) - max(11.0 * width, 46.0 / k + 11 * width if k < 200 else 0.0)
    top = k
    while k * math.log(top / k) - top + k > -720.0:
        top *= 1.0 + 0.1 * min(1.0, width * 10)
    s, w, c = trapezoid(
        lambda s: front + k * ((s - math.log(k)) - np.expm1(s - math.log(k))),
        left,
        math.log(top),
        min(width, 1.0) / density,
    )
    return np.exp(s), w, c


@lru_cache(maxsize=512)
def beta_nodes(a, b, density):
    """Return ``B ~ Beta(a, b)`` at ``ln(B/(1-B)) = s`` as ``B, 1-B`` and weight ``B^a (1-B)^b / Beta(a, b)``."""
    with mpmath.workdps(40):
        mode = math.log(a / b)
        shape = mpmath.mpf(a), mpmath.mpf(b)
        peak = float(
            shape[0] * mpmath.log(shape[0] / sum(shape))
            + shape[1] * mpmath.log(shape[1] / sum(shape))
            - mpmath.loggamma(shape[0])
            - mpmath.loggamma(shape[1])
            + mpmath.loggamma(sum(shape))
        )

    def log_weight(s):
        x = s - mode  # a ln B + b ln(1-B) against its value at the mode
        share = a / (a + b)
        return (
            peak
            + np.where(x > 0, -b * x, a * x)
            - (a + b) * np.log1p(np.where(x > 0, 1 - share, share) * np.expm1(-np.abs(x)))
        )

    width = math.sqrt(1.0 / a + 1.0 / b)
    left, right = mode - width, mode + width
    while log_weight(np.array([left]))[0] > peak - 50.0:
        left -= width
    while log_weight(np.array([right]))[0] > peak - 740.0 and right < max(mode, 0.0) + 90.0 / b + 90.0:
        right += width
    s, w, c = trapezoid(log_weight, left, right, min(width, 2.0) / density)
    return special.expit(s), special.expit(-s), w, c


def gaussian(mu):
    return Shifts(np.array([mu]), np.array([1.0]))


def rounded(*sizes):
    """Return the relative rounding of weights ``e^(k x - k ...)``: two terms ``10 k/sqrt k`` cancel."""
    return 1e-13 + sum(4e-15 * math.sqrt(size) for size in sizes)


def product(first, second):
    """Return points, weights and halving factors of two independent variables."""
    (x, w, c), (y, v, d) = first, second
    return (np.repeat(x, len(y)), np.tile(y, len(x)), np.outer(w, v).ravel(), np.outer(c, d).ravel())


def m2_rank_one(dim, rank, mu, density=4):
    """Return the pair with ``S^2 = mu^2 b``, ``b ~ Beta(r/2, (d-r)/2)``."""
    if rank == dim:
        return gaussian(mu)
    b, _, w, c = beta_nodes(0.5 * rank, 0.5 * (dim - rank), density)
    return Shifts(mu * np.sqrt(b), w, c, rounded(dim * max(1.0, dim / rank)))


def m2_layers(parts, mu, density=3):
    """Return the pair of one direction per layer, ``S^2 = mu^2 sum_l share_l b_l``, ``parts`` of ``(d, r, share)``."""
    total, weight = np.zeros(1), np.ones(1)
    for dim, rank, share in parts:
        b, w = (np.ones(1), np.ones(1)) if dim == rank else beta_nodes(0.5 * rank, 0.5 * (dim - rank), density)[::2]
        total, weight = (total[:, None] + share * b).ravel(), np.outer(weight, w).ravel()
        total, weight = gathered(total, weight)
    return Shifts(mu * np.sqrt(total), weight, rough=GATHERED)


def gathered(x, w, cells=1500):
    """Return the distribution on fewer points, joined at their mean (an error of second order in the cell width)."""
    keep = w > 1e-30
    x, w = x[keep], w[keep]
    if len(x) <= cells:
        return x, w
    where = np.linspace(np.log(x.min()), np.log(x.max()) + 1e-12, cells)
    cell = np.digitize(np.log(x), where)
    mass = np.bincount(cell, w)
    keep = mass > 0
    return (np.bincount(cell, w * x)[keep] / mass[keep]), mass[keep]


def sketched(rank, mu, density=4):
    """Return the pair with ``S^2 = mu^2 chi2_r / r``."""
    x, w, c = gamma_nodes(0.5 * rank, density)
    return Shifts(mu * np.sqrt(2.0 * x / rank), w, c, rounded(rank))


def m1_rank_one(dim, rank, mu, density=3, ends=None):
    """Return the pair with ``S^2 = mu^2 B N^2/r^2``, ``B ~ Beta(r/2, (d-1)/2)``, ``N ~ chi2_(r+d-1)``."""
    k, other = ends or (rank, dim - 1)
    if other == 0:
        x, w, c = gamma_nodes(0.5 * k, density)
        return Shifts(mu * 2.0 * x / rank, w, c, rounded(k))
    b, _, w, c = beta_nodes(0.5 * k, 0.5 * other, density)
    n, v, e = gamma_nodes(0.5 * (k + other), density)
    keep = v > 1e-120 if len(b) * len(n) > 4e5 else v > 0
    x, y, weight, coarse = product((b, w, c), (n[keep], v[keep], e[keep]))
    size = (k + other) * max(1.0, (k + other) / k, (k + other) / other)
    return Shifts(mu * np.sqrt(x) * 2.0 * y / rank, weight, coarse, rounded(size, k + other))


def m1_secret(rank, misalignment, z, density=4):
    """Return the pair of M1 on vectors with a secret projection.

    ``shift = (2 sin eta/(sigma tau)) [g sqrt(sigma^2 + (g/r) sin^2 eta) + (g/r) cos eta xi]``.
    """
    s = math.sqrt(2.0 * misalignment)
    sigma, sine = z * s, 0.5 * s
    cosine = math.sqrt(1.0 - sine * sine)
    x, w, c = gamma_nodes(0.5 * rank, density)
    xi, v, d = trapezoid(lambda t: -0.5 * t * t - 0.5 * math.log(2 * math.pi), -38.0, 38.0, 0.2)
    g, xi, weight, coarse = product((2.0 * x / rank, w, c), (xi, v, d))
    tau = np.sqrt(sigma**2 + g / rank)
    shift = 2 * sine / (sigma * tau) * (g * np.sqrt(sigma**2 + g / rank * sine**2) + g / rank * cosine * xi)
    return Shifts(np.maximum(np.abs(shift), 1e-300), weight, coarse, rounded(rank))


class Laplace(Pair):
    """Return ``P(L <= at) = e^((at - mu)/2)/2`` on ``[-mu, mu)``, the rest at ``mu``."""

    def __init__(self, mu):
        self.mu = self.largest = mu

    def lower(self, at):
        return np.where(
            at < -self.mu, 0.0, np.where(at >= self.mu, 1.0, 0.5 * np.exp(0.5 * (np.minimum(at, self.mu) - self.mu)))
        )

    def upper(self, at):
        return 1.0 - self.lower(at)

    def tails(self, at):
        """Return the four tails; ``Q(L > at) = e^(-(at + mu)/2)/2`` inside, by symmetry."""
        inside = np.abs(at) < self.mu
        q = np.where(inside, 0.5 * np.exp(-0.5 * (np.where(inside, at, 0.0) + self.mu)), np.where(at > 0, 0.0, 1.0))
        return self.upper(at), self.lower(at), q, 1.0 - q

    def delta(self, eps):
        found = -math.expm1(0.5 * (eps - self.mu)) if eps < self.mu else 0.0
        return found, 1e-15 * (found + self.mu)


class Wishart(Pair):
    """``y = M v``: ``L = a ln A - (n/2) ln kappa + c W``, ``a = (d+1-r)/2``, ``c = (kappa/A - 1)/2``.

    ``W ~ chi2_n``, ``n = d+r-1``.

    ``A`` has density ``c_r (1-rho^2)^(r/2) ((1-A)^2 + 2 m A)^(-(r+1)/2)``, a trapezoid sum in ``ln |ln(A/kappa)|``.
    """

    def __init__(self, dim, rank, m, ratio=1.0, points=6000):
        self.d, self.r, self.m, self.k = dim, rank, m, math.log(ratio)
        self.points = points
        with mpmath.workdps(40):
            r, mm = mpmath.mpf(rank), mpmath.mpf(m)
            self.front = float(
                mpmath.loggamma((r + 1) / 2)
                - mpmath.loggamma(r / 2)
                - mpmath.log(mpmath.pi) / 2
                + r / 2 * mpmath.log(mm * (2 - mm))
                if m
                else 0
            )
        tail = 0.5 * special.betainc(0.5 * rank, 0.5, m * (2.0 - m))
        self.gone = tail if m <= 1.0 else 1.0 - 0.5 * special.betainc(0.5 * rank, 0.5, m * (2.0 - m))

    def peaked(self, points):
        """Return nodes for unequal norms, where ``A`` concentrates; ``A = rho + sqrt(1-rho^2) sinh v``."""
        reach = min(60.0, max(40.0 / math.sqrt(self.r), 710.0 / self.r))
        v, step = np.linspace(-reach, reach, points, retstep=True)
        wide = math.sqrt(self.m * (2.0 - self.m))
        a = 1.0 - self.m + wide * np.sinh(v)
        front = self.front - 0.5 * self.r * math.log(self.m * (2.0 - self.m))
        with np.errstate(over="ignore"):
            weight = np.exp(front - self.r * np.log(np.cosh(v))) * step
        half = np.where(np.arange(points) % 2 == 0, 2.0, 0.0)
        keep = (a > 0.0) & (weight > 0.0)
        log_a = np.log1p(-self.m + wide * np.sinh(v[keep]))
        x = log_a - self.k
        return np.where(x == 0.0, 1e-300, x), log_a, weight[keep], half[keep]

    def nodes(self, points):
        x0 = math.log(max(min(math.sqrt(2 * self.m / self.r), 1.0), 1e-12)) - 40.0
        s, step = np.linspace(x0, math.log(max(60.0, 60.0 / self.r)), points, retstep=True)
        x = np.concatenate([-np.exp(s), np.exp(s)])
        log_a = x + self.k
        gap = np.expm1(log_a)
        base = gap * gap + 2.0 * self.m * np.exp(log_a)
        weight = np.exp(self.front - 0.5 * (self.r + 1) * np.log(base) + log_a) * np.abs(x) * step
        half = np.tile(np.where(np.arange(points) % 2 == 0, 2.0, 0.0), 2)
        keep = weight > 1e-40 * weight.max() if self.gone > 1e-30 else weight > 0
        return x[keep], log_a[keep], weight[keep], half[keep]

    @cached_property
    def grid(self):
        """Return so many points that the total mass is 1."""
        if self.m == 0.0:  # A = 1
            return np.array([-self.k]), np.zeros(1), np.ones(1), np.ones(1)
        if self.k != 0.0:
            return self.peaked(self.points)
        points = self.points
        while True:
            found = self.nodes(points)
            off = abs(found[2].sum() + self.gone - 1.0), abs((found[2] * found[3]).sum() + self.gone - 1.0)
            if max(off) < 1e-10 or points > 2e5:
                return found
            points *= 4

    def parts(self, at):
        """Return ``P(L > at | A)`` and ``e^at Q(L > at | A)`` at every node, and the mass of ``A <= 0`` separately."""
        x, log_a, _, _ = self.grid  # x = ln(A/kappa)
        n = self.d + self.r - 1
        c = 0.5 * np.expm1(-x)
        w = (at - 0.5 * (self.d + 1 - self.r) * log_a + 0.5 * n * self.k) / c
        below = x < 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            y = np.maximum(w, 0.0) * np.exp(-x)
            first = np.where(
                below,
                special.gammaincc(0.5 * n, 0.5 * np.maximum(w, 0)),
                special.gammainc(0.5 * n, 0.5 * np.maximum(w, 0)),
            )
            second = np.where(below, special.gammaincc(0.5 * n, 0.5 * y), special.gammainc(0.5 * n, 0.5 * y))
            growth = np.exp(np.minimum(at + (self.r - 1) * log_a + np.log(np.maximum(second, 1e-320)), 700.0))
        return first, np.minimum(np.where(second > 0, growth, 0.0), first)

    def upper(self, at):
        w = self.grid[2]
        return np.array([self.gone + float(self.parts(x)[0] @ w) for x in np.atleast_1d(at)])

    def lower(self, at):
        w = self.grid[2]
        return np.array([float((1.0 - self.parts(x)[0]) @ w) for x in np.atleast_1d(at)])

    def tails(self, at):
        """Return the four tails, by the symmetry of equal norms."""
        at = np.atleast_1d(at)
        w = self.grid[2]
        sizes, back = np.unique(np.abs(at), return_inverse=True)
        both = np.array([[float(p @ w) for p in self.parts(x)] for x in sizes])[back]
        p, q = both[:, 0] + self.gone, both[:, 1] * np.exp(-np.abs(at))
        return (
            np.where(at >= 0, p, 1 - q),
            np.where(at >= 0, 1 - p, q),
            np.where(at >= 0, q, 1 - p),
            np.where(at >= 0, 1 - q, p),
        )

    def delta(self, eps):
        first, second = self.parts(eps)
        _, _, w, half = self.grid
        found = float((first - second) @ w) + self.gone
        coarse = float((first - second) @ (w * half)) + self.gone if self.m else found
        # What the sum of all probabilities misses is a relative error of the nodes in the bulk.
        missed = abs(w.sum() + self.gone - 1.0) if self.m else 0.0
        return found, abs(found - coarse) + HARD * float(first @ w) + (1e-13 + 2.0 * missed) * found


class Splined(Pair):
    """The tails of a symmetric pair, evaluated at ``at = +-least sinh(u)`` and interpolated in logarithms."""

    def __init__(self, pair, knots=500, least=1e-7):
        top = far(pair)
        self.least = min(least, 1e-4 * top)
        u = np.linspace(0.0, math.asinh(top / self.least), knots)
        self.u = np.concatenate([-u[:0:-1], u])
        at = self.least * np.sinh(self.u)
        p, pl, _, _ = pair.tails(at)
        self.curves = [
            interpolate.CubicSpline(self.u, np.log(np.maximum(t, 1e-300))) for t in (p, pl, pl[::-1], p[::-1])
        ]
        self.ends = at[0], at[-1]

    def tails(self, at):
        at = np.atleast_1d(np.asarray(at, float))
        u = np.arcsinh(np.clip(at, *self.ends) / self.least)
        out = [np.minimum(np.exp(curve(u)), 1.0) for curve in self.curves]
        high, low = at > self.ends[1], at < self.ends[0]
        fill = ((0.0, 1.0), (1.0, 0.0), (0.0, 1.0), (1.0, 0.0))
        return tuple(np.where(high, f[0], np.where(low, f[1], t)) for t, f in zip(out, fill, strict=True))


def far(pair, mass=1e-290):
    """Return where both tails of ``P`` have fallen to a mass, or do not fall further."""
    low, high = 1e-9, 3e3
    for _ in range(20):
        middle = math.sqrt(low * high)
        p = pair.tails(np.array([middle]))
        _, pl, _, _ = pair.tails(np.array([-middle]))
        low, high = (middle, high) if min(float(p[0][0]), float(pl[0])) > mass else (low, middle)
    return low


class Profiled(Pair):
    """The symmetric pair of a privacy profile at ``eps >= 0``.

    ``P(L > at) = f - f'``, ``Q(L > at) = -e^-at f'`` (``' = d/d eps``).
    """

    def __init__(self, profile, reach, knots=400, least=1e-4):
        u = np.linspace(0.0, math.asinh(reach / least), knots)
        eps = least * np.sinh(u)
        values = np.array([max(profile(x), 1e-300) for x in eps])
        keep = values > 1e-290
        self.curve = interpolate.PchipInterpolator(eps[keep], np.log(values[keep]), extrapolate=False)
        self.end = eps[keep][-1]

    def tails(self, at):
        x = np.minimum(np.abs(at), self.end)
        f = np.exp(self.curve(x))
        slope = f * self.curve(x, 1)
        out = np.abs(at) > self.end
        p, q = np.where(out, 0.0, f - slope), np.where(out, 0.0, -np.exp(-x) * slope)
        return (
            np.where(at >= 0, p, 1 - q),
            np.where(at >= 0, 1 - p, q),
            np.where(at >= 0, q, 1 - p),
            np.where(at >= 0, 1 - q, p),
        )


class Remove(Pair):
    """Poisson sampling, ``((1-q) Q + q P)`` against ``Q``: ``L' = ln(1 - q + q e^L)``."""

    def __init__(self, pair, q):
        self.pair, self.q = pair, q
        self.largest = math.log1p(q * math.expm1(pair.largest)) if pair.largest < 600.0 else math.inf

    def tails(self, at):
        at = np.atleast_1d(np.asarray(at, float))
        inside = at > math.log1p(-self.q) * (1 - 1e-15)
        x = np.where(inside, np.minimum(at, 600.0), 0.0)
        ratio = np.expm1(x) / self.q
        inside &= ratio > -1.0
        p, pl, q, ql = self.pair.tails(np.log1p(np.where(inside, ratio, 0.0)))
        out = (1 - self.q) * q + self.q * p, (1 - self.q) * ql + self.q * pl, q, ql
        return tuple(np.where(inside, t, f) for t, f in zip(out, (1.0, 0.0, 1.0, 0.0), strict=True))


class Swapped(Pair):
    """The opposite direction: ``L' = -L`` under ``Q``."""

    def __init__(self, pair):
        self.pair = pair

    def tails(self, at):
        p, pl, q, ql = self.pair.tails(-np.atleast_1d(at))
        return ql, q, pl, p


class Fixed(Pair):
    """Fixed-size batches under replace: ``q f(ln(1 + (e^eps - 1)/q))`` at ``eps >= 0``, symmetric."""

    def __init__(self, pair, q):
        self.half = Remove(pair, q)
        self.largest = self.half.largest

    def tails(self, at):
        at = np.atleast_1d(np.asarray(at, float))
        p, _, q, _ = self.half.tails(np.abs(at))
        return (
            np.where(at >= 0, p, 1 - q),
            np.where(at >= 0, 1 - p, q),
            np.where(at >= 0, q, 1 - p),
            np.where(at >= 0, 1 - q, p),
        )
