"""Compose many releases of one dominating pair by FFT on a discretization grid, rounded up at two cell widths.

The masses of a cell ``[x, x + h]`` are split between its ends so that ``P`` and ``Q`` both keep their total. Because
``(1 - e^eps Q/P)_+`` is convex in ``Q/P``, the split is an upper bound, whose excess is of second order in ``h``. With
``U`` the value, ``[U(h/2) - (U(h) - U(h/2)), U(h/2)]`` holds the true value with three times the excess that the order
predicts.

For tiny sampling rates one grid cannot hold a step. Losses above a cut ``c`` are then rare: their number is binomial,
losses below it are composed on a fine grid and those above on a coarse one, and
``delta = sum_k P(k) E_C[ G_(T-k)(eps - C_k) ]``. This value has no lower end, because its two widths do not tell its
error.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

MOST, MOST_FINE, COARSE = 2**16, 2**12, 2**12  # cells of one step: on one grid, below a cut, above a cut
ESTIMATED = 1e-4  # relative error added to the lower end, which is an estimate (measured: 3e-5)
END_CELLS = 40.0  # cells from the largest loss within which there is no lower end
LARGEST_EPSILON = 600.0  # e^eps overflows beyond it
CELLS, MOST_CELLS = 12.0, 30.0  # least and most cells in one standard deviation of one step


@dataclass
class Steps:
    """Masses ``p`` of one step at ``offset + (first + j) h``."""

    first: int
    h: float
    p: np.ndarray
    offset: float = 0.0

    @property
    def x(self):
        return self.offset + self.h * (self.first + np.arange(len(self.p)))


def split(pair, h, left, right, offset=0.0, rest=True):
    """Return the masses of the pair on ``offset + j h`` between two losses, and ``P(L > right)``.

    ``rest`` moves the mass below ``left`` up to the first point.
    """
    first, last = math.floor((left - offset) / h), math.ceil((right - offset) / h)
    x = offset + h * np.arange(first, last + 1)
    p, pl, q, ql = pair.tails(x)
    mass_p = np.where(p[:-1] < 0.5, p[:-1] - p[1:], pl[1:] - pl[:-1])
    mass_q = np.where(q[:-1] < 0.5, q[:-1] - q[1:], ql[1:] - ql[:-1])
    mass_p, mass_q = np.maximum(mass_p, 0.0), np.maximum(mass_q, 0.0)
    high = np.clip((mass_p - np.exp(np.minimum(x[:-1], 700)) * mass_q) / -math.expm1(-h), 0.0, mass_p)
    found = np.zeros(len(x))
    found[:-1] += mass_p - high
    found[1:] += high
    found[0] += pl[0] if rest else 0.0
    return Steps(first, h, found, offset), float(p[-1])


def end(pair, mass, sign):
    """Return the loss at which the upper (``sign`` 1) or lower (-1) tail of ``P`` falls to a mass."""

    def tail(x):
        t = pair.tails(np.array([x * sign]))
        return float(t[0][0] if sign > 0 else t[1][0])

    low, high = 1e-14, 1e4
    if tail(low) <= mass:
        return low
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tail(middle) > mass else (low, middle)
    return high


def deviation(pair, cut, left):
    """Return the standard deviation of the loss between its cuts, from geometric cells."""
    grid = np.geomspace(1e-13, max(cut, left), 500)
    x = np.concatenate([-grid[grid <= left][::-1], grid[grid <= cut]])
    p, pl, _, _ = pair.tails(x)
    mass = np.maximum(np.where(p[:-1] < 0.5, p[:-1] - p[1:], pl[1:] - pl[:-1]), 0.0)
    middle = 0.5 * (x[:-1] + x[1:])
    mean = float(mass @ middle)
    return math.sqrt(max(float(mass @ middle**2) - mean * mean, 1e-300))


def tilted_delta(steps, infinite, count, eps):
    """Return delta of ``count`` steps and its rounding error; the sum is tilted so that its mean is near ``eps``."""
    x, p = steps.x, steps.p
    keep = p > 0
    x, logs = x[keep], np.log(p[keep])
    few, few_logs = thinned(x, p[keep])

    def roughly(t):
        return float(special.logsumexp(few_logs + t * few))

    def cost(u):
        return count * roughly(math.exp(u)) - math.exp(u) * eps

    best = optimize.minimize_scalar(cost, bounds=(-12.0, 9.0), method="bounded", options={"xatol": 0.02}).x
    theta = math.exp(best) if cost(best) < 0.0 else 0.0
    k = float(special.logsumexp(logs + theta * x))
    q = np.exp(logs + theta * x - k)
    mean = float(q @ x)
    spread = math.sqrt(max(count * (float(q @ x**2) - mean * mean), steps.h**2))
    reach = window(lambda t: roughly(t) - roughly(theta), theta, count, count * mean, spread)
    n = 1 << math.ceil(math.log2(2 * (reach + abs(count * mean - eps)) / steps.h + 64))
    if n > 2**23:
        return None
    cells = np.rint(x / steps.h).astype(np.int64)
    wrapped = np.bincount(cells % n, q, n)
    distribution = np.fft.irfft(np.fft.rfft(wrapped) ** count, n)
    start = math.floor(count * mean / steps.h) - n // 2
    s = start + np.arange(n)
    noise = 8.0 * max(-float(distribution.min()), 1e-17)
    distribution = np.maximum(distribution[s % n], 0.0)
    total = s * steps.h
    above = total > eps
    weight = np.exp(np.minimum(count * k - theta * total[above], 700)) * -np.expm1(eps - total[above])
    return float(weight @ distribution[above]) + count * infinite, noise * float(weight.sum())


def thinned(x, p, most=1500):
    """Return fewer points and log masses, for searches."""
    starts = np.arange(0, len(x), max(1, len(x) // most))
    mass = np.add.reduceat(p, starts)
    return np.add.reduceat(p * x, starts) / mass, np.log(mass)


def window(change, theta, count, center, spread):
    """Return how far from its mean the tilted sum is, except with probability 1e-14 (Chernoff)."""
    reach = 9.0 * spread
    for sign in (1.0, -1.0):
        orders = sign * np.geomspace(0.03, 30, 24) / spread
        slack = [(t, count * (change(theta + t) - 0) - t * center) for t in orders]
        reach = max(reach, min((value + 33.0) / abs(t) for t, value in slack))
    return reach


def rare_delta(pair, count, eps, left, cut, right, scale):
    """Return delta with losses above ``cut`` on a coarse grid; ``scale`` divides both cell widths."""
    h = deviation(pair, cut, left) / (CELLS * scale)
    fine, _ = split(pair, h, -left, cut)
    edge = float(fine.x[-1])
    wide = max(right - edge, h) / (COARSE * scale)
    coarse, infinite = split(pair, wide, edge, max(right, edge + h), edge, rest=False)
    rest, rare = fine.p.sum(), coarse.p
    lam = count * rare.sum()
    total, here, most = 0.0, np.ones(1), 0
    while special.gammainc(most + 1, lam) > 1e-17 and most < 60:
        most += 1
    n = 1 << math.ceil(math.log2(2 * (12 * math.sqrt(count) * h * CELLS * scale + 30 * (cut + left)) / h + 64))
    if n > 2**22:
        return None
    spectrum = np.fft.rfft(np.bincount((fine.first + np.arange(len(fine.p))) % n, fine.p / rest, n))
    for k in range(min(most, count) + 1):
        weight = math.exp(
            special.gammaln(count + 1)
            - special.gammaln(k + 1)
            - special.gammaln(count - k + 1)
            + (count - k) * math.log(rest)
        )
        total += weight * float(
            gains(spectrum ** (count - k), n, h, float(fine.p @ fine.x) / rest * (count - k), eps, here, coarse, k)
        )
        here = convolved(here, rare)
    return total + count * infinite, 1e-14


def convolved(a, b):
    """Return the convolution of two non-negative sequences."""
    size = len(a) + len(b) - 1
    n = 1 << size.bit_length()
    return np.maximum(np.fft.irfft(np.fft.rfft(a, n) * np.fft.rfft(b, n), n)[:size], 0.0)


def gains(spectrum, n, h, mean, eps, distribution, coarse, k):
    """Return ``sum_j law_j E (1 - e^(eps - F - C_j))_+`` for the sum ``F`` on the fine grid."""
    fine = np.maximum(np.fft.irfft(spectrum, n), 0.0)
    start = math.floor(mean / h) - n // 2
    s = start + np.arange(n)
    fine, x = fine[s % n], s * h
    above = np.concatenate([np.cumsum(fine[::-1])[::-1], [0.0]])
    shrunk = np.concatenate([np.cumsum((fine * np.exp(-(x - mean)))[::-1])[::-1], [0.0]])
    at = eps - k * coarse.x[0] - coarse.h * np.arange(len(distribution))
    index = np.clip(np.searchsorted(x, at, side="right"), 0, n)
    values = above[index] - np.exp(np.minimum(at - mean, 700)) * shrunk[index]
    return np.maximum(values, 0.0) @ distribution


def composed(pair, count, eps, claimed):
    """Enclose ``delta(eps)`` of ``count`` releases in this direction, or return None where no grid holds them.

    Truncated tails are small against ``claimed``. Near the largest loss ``T L_max`` of the run, the grid overestimates
    delta, which is at most ``1 - e^(eps - T L_max)``.
    """
    if eps > LARGEST_EPSILON:
        return None
    small = max(min(claimed, 1.0), 1e-280)
    right, left = end(pair, 1e-7 * small / count, 1.0), end(pair, 1e-10 * small / count, -1.0)
    whole = deviation(pair, right, left)
    cells = min(MOST_CELLS, MOST * whole / (2.0 * (right + left)))
    lost = 0.0
    if cells >= CELLS:

        def read(scale):
            return tilted_delta(*split(pair, whole / (cells * scale), -left, right), count, eps)
    else:
        left, right, cut, lost = cuts(pair, count, left, right)
        if cut is None or claimed < 1e-12:
            return None

        def read(scale):
            return rare_delta(pair, count, eps, left, cut, right, scale)

    wide, narrow = read(1.0), read(2.0)
    if wide is None or narrow is None:
        return None
    (wide, _), (narrow, noise) = wide, narrow
    excess = abs(wide - narrow) + noise + (1e-7 + lost) * narrow
    most = -math.expm1(min(eps - count * pair.largest, 0.0)) * (1 + 1e-12)
    near_end = count * pair.largest - eps < END_CELLS * whole / cells
    low = 0.0 if narrow > most or near_end or cells < CELLS else max(narrow * (1 - ESTIMATED) - excess, 0.0)
    return low, min(narrow * (1 + 1e-7) + noise, most)


def cuts(pair, count, left, right):
    """Return ``left, right, cut, lost`` such that few losses exceed the cut and a fine grid holds the others.

    Moving losses far below up gives an upper bound; leaving them out lowers delta by at most ``lost``, relative.
    """
    shorter = end(pair, 1e-5 / count, -1.0)
    left, lost = (shorter, 1e-5) if shorter < left else (left, 0.0)
    for most in (MOST_FINE, 8 * MOST_FINE):
        for cut in np.geomspace(right, 1e-13, 120):
            if (cut + left) * CELLS * 2 / deviation(pair, cut, left) <= most:
                if count * float(pair.tails(np.array([cut]))[0][0]) < 12.0:
                    return left, right, float(cut), lost
                break
    return left, right, None, lost
