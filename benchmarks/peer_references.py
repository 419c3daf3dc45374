"""Compute the references for ``peers.py``: mpmath at 50 digits, or an enclosure with a proved width.

Every function returns ``(reference, relative half width)``; the width is 0 for mpmath.
"""

import math
from contextlib import suppress

import mpmath as mp

import privproj
from privproj.mechanisms.m2.beta_tail_kernels import beta_tail_epsilon
from privproj.numerics.interval import Enclosure

DIGITS = 50
FINER = (3e-6, 1e-5, 3e-5, 1e-4)  # grids tried for the reference of a run


def gaussian_delta(z, eps):
    z, eps = mp.mpf(z), mp.mpf(eps)
    return mp.ncdf(1 / (2 * z) - eps * z) - mp.e**eps * mp.ncdf(-1 / (2 * z) - eps * z)


def root(f, near):
    """Return the root of ``f`` next to ``near``, which is accurate to nine digits."""
    return mp.findroot(f, (mp.mpf(near) * (1 - mp.mpf(10) ** -9), mp.mpf(near) * (1 + mp.mpf(10) ** -9)), tol=1e-60)


def gaussian_epsilon(z, delta):
    near = privproj.epsilon(privproj.Gaussian(noise_multiplier=z), delta=delta).value
    return root(lambda eps: mp.log(gaussian_delta(z, eps)) - mp.log(mp.mpf(delta)), near)


def gaussian_sigma(eps, delta):
    near = privproj.sigma(privproj.Gaussian(), epsilon=eps, delta=delta).value
    return root(lambda z: mp.log(gaussian_delta(z, eps)) - mp.log(mp.mpf(delta)), near)


def highest(f, low, high, rounds=60):
    """Return the maximum of a unimodal function, by golden-section search."""
    ratio = (mp.sqrt(5) - 1) / 2
    a, b = mp.mpf(low), mp.mpf(high)
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    at_c, at_d = f(c), f(d)
    for _ in range(rounds):
        if at_c > at_d:
            b, d, at_d = d, c, at_c
            c = b - ratio * (b - a)
            at_c = f(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + ratio * (b - a)
            at_d = f(d)
    return max(at_c, at_d)


def beta_upper(a, b, x):
    """Return ``P(Beta(a, b) > x)``, computed with twice the digits because digits cancel."""
    with mp.workdps(2 * DIGITS):
        return 1 - mp.betainc(a, b, 0, x, regularized=True)


def beta_tail_delta(row, eps):
    """Return ``min_tau T(eps; mu sqrt(tau)) + k P(B > tau)`` for the two-sided Gaussian tail ``T``."""
    d, r, k, mu, _ = row
    a, b = mp.mpf(r) / 2, mp.mpf(d - r) / 2

    def negative(log_tau):
        tau = mp.e**log_tau
        m = mu * mp.sqrt(tau)
        return -(mp.ncdf(m / 2 - eps / m) + mp.ncdf(-m / 2 - eps / m) + k * beta_upper(a, b, tau))

    width = 12 / mp.sqrt(a) + mp.mpf(60) / a
    low = mp.log(a / (a + b))
    return -highest(negative, low, min(mp.mpf(0), low + width))


def beta_tail(rows):
    """Return epsilon of each row, by one secant step from the epsilon of privproj."""
    found = []
    for row in rows:
        d, r, k, mu, delta = row
        near = beta_tail_epsilon(r / 2, (d - r) / 2, k, mu, math.log(delta), False)
        at = [mp.log(beta_tail_delta(row, mp.mpf(eps))) for eps in (near, near * (1 + 1e-6))]
        found.append(near + (mp.log(mp.mpf(row[4])) - at[0]) * near * mp.mpf(1e-6) / (at[1] - at[0]))
    return found


def rank_free_delta(dim, rank, z, eps):
    """Return ``max_c E[h(X); X <= c] + P(X > c) h(E[X | X > c])``, the bound ``rank-free``.

    This is the dual form of :mod:`privproj.distributions.mixture_profile`.
    """
    a, b, eps, scale = mp.mpf(rank) / 2, mp.mpf(dim - rank) / 2, mp.mpf(eps), 1 / mp.mpf(z) ** 2
    front = mp.beta(a, b)

    def gain(x):
        return gaussian_delta(1 / mp.sqrt(scale * x), eps) if x > 0 else mp.mpf(0)

    def value(c):
        tail = beta_upper(a, b, c)
        above = a / (a + b) * beta_upper(a + 1, b, c) / tail
        pieces = [c * i / 32 for i in range(33)]
        inside = mp.quad(
            lambda x: gain(x) * x ** (a - 1) * (1 - x) ** (b - 1), pieces, method="gauss-legendre", maxdegree=4
        )
        return inside / front + tail * gain(above)

    with mp.workdps(35):
        return highest(value, a / (a + b), min(mp.mpf(1), 2 * (mp.sqrt(1 + eps * eps) - 1) / scale), rounds=28)


def rank_free_epsilon(dim, rank, z, delta):
    near = privproj.epsilon(privproj.M2(dim=dim, rank=rank, noise_multiplier=z), delta=delta).value
    at = [mp.log(rank_free_delta(dim, rank, z, eps)) for eps in (near, near * (1 + 1e-5))]
    return near + (mp.log(mp.mpf(delta)) - at[0]) * near * mp.mpf(1e-5) / (at[1] - at[0])


def wishart_delta(dim, rank, misalignment, eps):
    """Return delta of the vector Wishart mechanism.

    The formula of :mod:`privproj.distributions.wishart_loss` is used, with incomplete gamma functions for the gains.
    """
    d, r, m, eps = (mp.mpf(x) for x in (dim, rank, misalignment, eps))
    k, a = (r + d - 1) / 2, (d + 1 - r) / 2

    def share(low, high=mp.inf):
        return mp.gammainc(k, max(low, 0), high, regularized=True)

    def average(x):
        """Return ``e^((r-1)x/2) g(e^-x) + e^(-(r-1)x/2) g(e^x)`` for the gain ``g``."""
        c, e = mp.expm1(x), -mp.expm1(-x)
        above, below = (a * x + eps) / c, (a * x - eps) / e
        less = share(above) - mp.e ** (c * above - k * x) * share(above * (1 + c))
        more = share(0, below) - mp.e ** (k * x - e * below) * share(0, below * (1 - e)) if below > 0 else 0
        return mp.e ** ((r - 1) * x / 2) * less + mp.e ** (-(r - 1) * x / 2) * more

    def outer(u):
        x = 2 * mp.asinh(mp.sqrt(m / 2) * u)
        return average(x) * (1 + u * u) ** (-(r + 1) / 2) * (1 + m * u * u / 2) ** mp.mpf(-0.5)

    top = 60 / mp.sqrt(r) + 3
    front = mp.gamma((r + 1) / 2) / mp.gamma(r / 2) / mp.sqrt(mp.pi) * (1 - m / 2) ** (r / 2)
    infinite = mp.betainc(r / 2, mp.mpf(1) / 2, 0, m * (2 - m), regularized=True) / 2

    def total(panels):
        near = [top * mp.mpf(i * i) / panels**2 for i in range(1, panels + 1)]
        pieces = [mp.mpf(10) ** -6, *near, *(top * 2**j for j in range(1, 21, 2))]
        return infinite + front * mp.quad(outer, pieces, method="gauss-legendre", maxdegree=4)

    return settled(total)


def settled(total):
    """Return ``total(panels)`` once twice as many panels change it by less than 1e-12.

    Raises :class:`ArithmeticError` if that never happens.
    """
    last = total(12)
    for panels in (24, 48, 96, 192):
        value = total(panels)
        if abs(value - last) <= 1e-12 * abs(value):
            return value
        last = value
    raise ArithmeticError("the reference did not settle")


def enclosed(ask):
    """Return middle and relative half width of privproj's narrowest enclosure; None without one."""
    found = []
    for grid in FINER:
        with suppress(privproj.PrivprojError):
            result = ask(grid)
            found += [((result.upper - result.lower) / (result.upper + result.lower), result)] if result.lower else []
    half_width, best = min(found, key=lambda pair: pair[0], default=(None, None))
    return None if best is None else ((best.lower + best.upper) / 2, half_width)


def dp_sgd_epsilon(z, delta, q, T, grid=None):
    run = {"steps": T, "sampling_rate": q}
    noise = privproj.Gaussian(noise_multiplier=z)
    return enclosed(lambda fine: privproj.epsilon(noise, delta=delta, discretization=fine, **run))


def dp_sgd_sigma(eps, delta, q, T):
    run = {"steps": T, "sampling_rate": q}
    return enclosed(
        lambda fine: privproj.sigma(privproj.Gaussian(), epsilon=eps, delta=delta, discretization=fine, **run)
    )


def trade_off(z, rates, q, T, grid):
    """Return the middle of two trade-off curves, and half of their largest distance.

    The curves come from upper and lower bounds of delta at 3000 epsilons.
    """
    from privproj.accounting.query import composition_of
    from privproj.profiles.tradeoff import tradeoff

    run = {"sampling_rate": q, "steps": T, "discretization": grid / 5}
    curve = composition_of(privproj.Gaussian(noise_multiplier=z), None, run).curve()
    epsilons = [0.004 * i for i in range(3000)]
    found = [curve.log_delta(eps) for eps in epsilons]
    low, high = (tradeoff(Known(epsilons, [end[i] for end in found]), rates, epsilons) for i in (1, 0))
    return [(x + y) / 2 for x, y in zip(low, high, strict=True)], max(y - x for x, y in zip(low, high, strict=True)) / 2


class Known:
    """A privacy curve that is known at some epsilons only."""

    def __init__(self, epsilons, logs):
        self.logs = dict(zip(epsilons, logs, strict=True))

    def log_delta(self, eps):
        """Return the known ``ln delta`` as both ends of an enclosure."""
        return Enclosure(self.logs[eps], self.logs[eps])


EXACT = {
    "gaussian delta": gaussian_delta,
    "gaussian epsilon": gaussian_epsilon,
    "gaussian sigma": gaussian_sigma,
    "beta-tail": beta_tail,
    "rank-free delta": rank_free_delta,
    "rank-free epsilon": rank_free_epsilon,
    "wishart delta": wishart_delta,
}
ENCLOSED = {"dp-sgd epsilon": dp_sgd_epsilon, "dp-sgd sigma": dp_sgd_sigma, "trade-off": trade_off}


def reference(job, parameters):
    """Return ``(value or values, relative half width)``; None without a reference."""
    with mp.workdps(DIGITS):
        return (EXACT[job](**parameters), 0.0) if job in EXACT else ENCLOSED[job](**parameters)
