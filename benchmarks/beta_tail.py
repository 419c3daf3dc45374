"""Measure the beta-tail epsilon with optimized tau: compiled kernels against scipy's minimize_scalar and brentq.

Usage: python benchmarks/beta_tail.py [POINTS]
"""

import math
import random
import sys

import numpy as np
from clock import best_of, timed
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betaincc, ndtr

from privproj.mechanisms.m2.beta_tail_kernels import beta_tail_epsilon
from privproj.numerics.jit import compile_kernel


def scipy_epsilon(d, r, k, mu, delta):
    """Return epsilon by scipy: ``brentq`` for epsilon at a given tau, ``minimize_scalar`` over tau."""
    a, b = r / 2, (d - r) / 2

    def at(log_tau):
        tau = math.exp(log_tau)
        left = delta - k * betaincc(a, b, tau)
        if left <= 0:
            return 1e9 * (1 - log_tau)
        m = mu * math.sqrt(tau)
        return brentq(
            lambda e: ndtr(m / 2 - e / m) + ndtr(-m / 2 - e / m) - left, 0, 50 * m + m * m, xtol=1e-13, rtol=1e-12
        )

    low = math.log(a / (a + b))
    return minimize_scalar(at, bounds=(low, -1e-12), method="bounded", options={"xatol": 1e-7}).fun


def beta_tail_epsilons(a, b, k, mu, log_delta, sharp, out):
    """Write the epsilon of every row to ``out``. The function is compiled by numba."""
    for i in range(len(out)):
        out[i] = beta_tail_epsilon(a[i], b[i], k[i], mu[i], log_delta[i], sharp)


def parameters(points):
    """Return the columns ``d, r, k, mu, delta`` of random settings."""
    draw = random.Random(1)
    d = [int(10 ** draw.uniform(2.5, 6)) for _ in range(points)]
    r = [int(2 ** draw.uniform(0, 8)) for _ in d]
    k = [draw.choice([1, 10, 100]) for _ in d]
    mu = [10 ** draw.uniform(-1, 1) for _ in d]
    delta = [10 ** draw.uniform(-10, -3) for _ in d]
    return d, r, k, mu, delta


def main():
    points = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000
    columns = parameters(points)
    d, r, k, mu, delta = (np.array(c, dtype=float) for c in columns)
    run, out = compile_kernel(beta_tail_epsilons), np.empty(points)
    compiling, _ = timed(run, r[:1] / 2, (d - r)[:1] / 2, k[:1], mu[:1], np.log(delta[:1]), False, out[:1])
    fast, _ = best_of(lambda: run(r / 2, (d - r) / 2, k, mu, np.log(delta), False, out), 3)
    few, plain_values = [c[:300] for c in columns], np.empty(300)
    rows = [c[:300].tolist() for c in (r / 2, (d - r) / 2, k, mu, np.log(delta))]
    plain, _ = best_of(lambda: beta_tail_epsilons(*rows, False, plain_values), 1)
    slow, rival = best_of(lambda: [scipy_epsilon(*row) for row in zip(*few, strict=True)], 1)
    per_fast, per_plain, per_slow = fast / points, plain / 300, slow / 300
    errors = [(o - s) / s for o, s in zip(out[:300], rival, strict=True)]
    print(f"compiled {per_fast * 1e6:.2f} us a point ({points} points), compile or load {compiling:.2f} s")
    print(f"plain    {per_plain * 1e6:.1f} us a point, scipy {per_slow * 1e6:.1f} us a point (300 points)")
    print(f"ratio scipy / compiled {per_slow / per_fast:.0f}, scipy / plain {per_slow / per_plain:.1f}")
    print(
        f"(ours - scipy) / scipy: from {min(errors):.1e} to {max(errors):.1e}; compiled - plain at most "
        f"{max(abs(p - o) / o for p, o in zip(plain_values, out, strict=False)):.1e}"
    )


if __name__ == "__main__":
    main()
