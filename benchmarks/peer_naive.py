"""Implement the baselines in plain scipy: ``scipy.special``, ``quad``, ``brentq``, ``minimize_scalar``.

They represent the code that a careful user would write directly. The Beta-tail and Wishart baselines are those of
``beta_tail.py`` and ``wishart.py``.
"""

import math

from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betainccinv, betaln, ndtr


def gaussian_delta(z, eps):
    """Return the Gaussian delta by the formula of Balle and Wang."""
    return ndtr(0.5 / z - eps * z) - math.exp(eps) * ndtr(-0.5 / z - eps * z)


def gaussian_epsilon(z, delta):
    return brentq(lambda eps: gaussian_delta(z, eps) - delta, 0.0, 50.0 / z + 1.0 / z**2, xtol=1e-14)


def gaussian_sigma(eps, delta):
    return brentq(lambda z: gaussian_delta(z, eps) - delta, 0.05, 1000.0, xtol=1e-14)


def beta_tail(rows):
    from beta_tail import scipy_epsilon

    return [scipy_epsilon(*row) for row in rows]


def wishart_delta(dim, rank, misalignment, eps, how):
    """Return delta by the usual formula in scipy, or by nested quadratures for ``how="nested"``."""
    from wishart import literal, nested

    settings = (dim, rank, misalignment, eps)
    return nested(*settings) if how == "nested" else literal(*settings, stats_too=how == "stats")


def gain(eps, x):
    """Return the Gaussian delta at the squared sensitivity ``x``."""
    return gaussian_delta(1.0 / math.sqrt(x), eps) if x > 0.0 else 0.0


def majorant(eps, x, p, slope):
    """Return ``g_p(x)``, the convex function above the Gaussian delta with tangent point ``p``.

    It is ``max(h, tangent at p)`` up to ``x0 = 2 (sqrt(1 + eps^2) - 1)``, and the tangent beyond. ``h`` is
    :func:`gain`, and ``slope`` is its derivative at ``p``.
    """
    line = gain(eps, p) + slope * (x - p)
    return max(gain(eps, x), line) if x < 2.0 * (math.hypot(1.0, eps) - 1.0) else line


def rank_free_delta(dim, rank, z, eps):
    """Return ``min_p E[g_p(mu^2 B)]`` by ``quad`` within ``minimize_scalar``."""
    a, b, scale = rank / 2, (dim - rank) / 2, 1.0 / z**2
    front, low = betaln(a, b), 2.0 * (math.hypot(1.0, eps) - 1.0)
    top = max(betainccinv(a, b, 1e-14) * scale, 1.01 * low)

    def density(x):
        return math.exp((a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - front) if 0.0 < x < 1.0 else 0.0

    def at(p):
        slope = (gain(eps, p * (1 + 1e-6)) - gain(eps, p * (1 - 1e-6))) / (2e-6 * p)
        inside = {"epsabs": 0.0, "epsrel": 1e-9, "limit": 200, "points": [a / (a + b), min(low, top) / scale]}
        return quad(lambda x: majorant(eps, scale * x, p, slope) * density(x), 0.0, top / scale, **inside)[0]

    return minimize_scalar(at, bounds=(low, 4.0 * top), method="bounded", options={"xatol": 1e-6 * top}).fun


def rank_free_epsilon(dim, rank, z, delta):
    return brentq(lambda eps: rank_free_delta(dim, rank, z, eps) - delta, 1e-3, 10.0 / z, xtol=1e-8)
