"""Compare the exact profile of the vector Wishart mechanism with scipy's quad at 1e-9, in one run.

Usage: python benchmarks/wishart.py

The baselines are the usual formula, in scipy.stats or in scipy.special, and the form without cancellation by nested
quadratures. The usual formula loses digits if its terms cancel (last column).
"""

import math
import warnings

import numpy as np
from clock import best_of
from scipy import special, stats
from scipy.integrate import quad

from privproj.distributions.wishart_loss import VectorWishart

SETTINGS = [(1000, 16, 8e-6, 0.19), (1000, 256, 8e-6, 0.2), (768, 16, 1e-4, 1.0), (10**6, 64, 1e-12, 5e-4)]


def literal(d, r, m, eps, stats_too):
    """Return delta by the usual formula ``E_T[g(A)]``, with regularized incomplete gamma functions.

    With ``stats_too``, scipy.stats computes the distributions.
    """
    rho, spread, n = 1.0 - m, math.sqrt(m * (2.0 - m)), r + d - 1
    front = special.gammaln((r + 1) / 2) - special.gammaln(r / 2) - 0.5 * math.log(math.pi * r)

    def density(t):
        return stats.t.pdf(t, r) if stats_too else math.exp(front - (r + 1) / 2 * math.log1p(t * t / r))

    def tail(x, upper):
        if stats_too:
            return stats.chi2.sf(x, n) if upper else stats.chi2.cdf(x, n)
        return special.gammaincc(n / 2, x / 2) if upper else special.gammainc(n / 2, x / 2)

    def gain(a):
        if a <= 0.0 or a == 1.0:
            return float(a <= 0.0)
        w = (eps - (d + 1 - r) / 2 * math.log(a)) / ((1 / a - 1) / 2)
        weight = math.exp(eps + (r - 1) * math.log(a))
        if w <= 0.0:
            return max(1.0 - weight, 0.0) if a < 1.0 else 0.0
        return tail(w, a < 1.0) - weight * tail(w / a, a < 1.0)

    def integrand(t):
        return density(t) * gain(rho + spread * t / math.sqrt(r))

    return quad(integrand, -np.inf, np.inf, epsrel=1e-9, epsabs=0.0, limit=500)[0]


def nested(d, r, m, eps):
    """Return delta by the form without cancellation, with each gain by ``quad``."""
    k, a = (r + d - 1) / 2, (d + 1 - r) / 2
    log_gamma = special.gammaln(k)
    front = math.exp(special.gammaln((r + 1) / 2) - special.gammaln(r / 2)) / math.sqrt(math.pi)

    def average(rate, start, sign):
        width = math.sqrt(k)
        low, high = (max(start, 0.0), k + 12 * width + 60) if sign > 0 else (max(0.0, k - 12 * width), start)
        if high <= low:
            return 0.0

        def integrand(u):
            return math.exp((k - 1) * math.log(u) - u - log_gamma) * -math.expm1(-rate * sign * (u - start))

        low = max(low, k - 12 * width, 1e-300)
        high = min(high, k + 12 * width + 60)
        return quad(integrand, low, high, epsrel=1e-9, epsabs=0.0, limit=200)[0] if low < high else 0.0

    def outer(u):
        x = 2 * math.asinh(math.sqrt(m / 2) * u)
        if x == 0.0:
            return 0.0
        less = average(math.expm1(x), (a * x + eps) / math.expm1(x), 1.0)
        more = average(-math.expm1(-x), (a * x - eps) / -math.expm1(-x), -1.0)
        tilt = (r - 1) * x / 2
        value = math.exp(tilt) * less + math.exp(-tilt) * more
        return value * (1 + u * u) ** (-(r + 1) / 2) * (1 + m * u * u / 2) ** -0.5

    finite = quad(outer, 0.0, 60.0 / math.sqrt(r) + 3.0, epsrel=1e-9, epsabs=0.0, limit=200)[0]
    return special.betainc(r / 2, 0.5, m * (2 - m)) / 2 + front * (1 - m / 2) ** (r / 2) * finite


def main():
    warnings.simplefilter("ignore")
    print(f"{'d, r, misalignment, eps':<28} {'privproj':>10} {'rival':<26} {'ratio':>8} {'rel. difference':>16}")
    for d, r, m, eps in SETTINGS:
        pair = VectorWishart(d, r, m)
        mine, value = best_of(lambda pair=pair, eps=eps: math.exp(pair.compute_log_delta(eps).upper), 30)
        rivals = {
            "quad over scipy.stats": lambda s=(d, r, m, eps): literal(*s, True),
            "quad over scipy.special": lambda s=(d, r, m, eps): literal(*s, False),
            "nested quad": lambda s=(d, r, m, eps): nested(*s),
        }
        for name, call in rivals.items():
            seconds, found = best_of(call, 3 if name != "nested quad" else 1)
            label = f"{d}, {r}, {m:g}, {eps:g}"
            print(f"{label:<28} {1e3 * mine:>7.2f} ms {name:<26} {seconds / mine:>8.1f} {found / value - 1:>16.1e}")


if __name__ == "__main__":
    main()
