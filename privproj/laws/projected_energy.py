"""The squared shift ``|M u|^2`` of one direction under M1 with a known projection: ``X = U (U + Y) / r^2`` (C7).

``U ~ chi2_r`` and ``Y ~ chi2_(d-1)`` are independent. The density of ``y = ln X`` is a trapezoidal sum over a second
variable. All functions are analytic and decay at both ends, so the sum converges geometrically.
:mod:`privproj.laws.panel_law` integrates over ``y``.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privproj.laws.panel_law import (
    LEAST_SHAPE_OVER_LENGTH,
    ROWS_AT_ONCE,
    SCAN_STRIDE,
    log_sum_exp,
    terms_that_matter,
)
from privproj.numerics import kernels
from privproj.numerics.arrays import Array


@dataclass(frozen=True)
class ProjectedEnergy:
    """``X = B N^2 / r^2``, the law of ``|M u|^2`` for a unit vector ``u`` and ``M ~ W_d(I/r, r)`` (C7).

    ``B ~ Beta(a, b)`` and ``N ~ chi2_(2(a+b))`` are independent, and ``X = U (U + Y) / r^2`` with ``U = B N``.

    * ``a``: half the degrees of freedom of ``U``, ``r/2`` for M1.
    * ``b``: half those of ``Y``, ``(d - 1)/2`` for M1; with ``b = 0``, ``X = U^2 / r^2``.
    * ``rank``: ``r``.
    """

    a: float
    b: float
    rank: int

    @property
    def mean(self) -> float:
        """The mean ``E X = 4 a (a + b + 1) / r^2``."""
        return 4.0 * self.a * (self.a + self.b + 1.0) / self.rank**2

    @property
    def ends(self) -> tuple[float, float, float]:
        """``(low, high, width)`` of ``y = ln B + 2 ln N - 2 ln r`` (:class:`privproj.laws.panel_law.LogDensity`)."""
        n = self.a + self.b
        spread_b = math.sqrt(self.b / (self.a * (n + 1.0)))
        width = math.hypot(spread_b, 2.0 / math.sqrt(n))
        centre = math.log(4.0 * self.a * n / self.rank**2)
        drop = 50.0 / self.a
        low = centre - 11.0 * width - drop
        return low, centre + _reach_above_centre(self.a, self.b), min(0.8 * width, 1.0)

    @cached_property
    def grid(self) -> tuple[Array, Array]:
        """The values of ``ln B`` and the logs of their weights, by the trapezoidal rule in the logit ``t`` of ``B``.

        ``t`` is counted from the logit of the mean ``a/n``. The weights add up to 1. With ``b = 0`` there is one point,
        ``B = 1``; points that round to 1 are taken together.
        """
        if self.b == 0.0:
            return np.zeros(1), np.zeros(1)
        a, b, n = self.a, self.b, self.a + self.b
        spread, rest = math.sqrt(1.0 / a + 1.0 / b), b / n
        # The largest N/2 that counts: its density has fallen by e^-740 there.
        most = n + 740.0 + math.sqrt(1480.0 * n)
        step = min(0.7 / math.sqrt(1.0 / spread**2 + 0.25 * rest * rest * most), 0.28)
        t = np.arange(-10.0 * spread - 60.0 / a, 40.0 * spread + 760.0 / b, step)
        t = t[(t > -700.0) & (t < 700.0)]
        # B = (a/n) / (a/n + (b/n) e^-t) with the density B^a (1-B)^b / Beta(a, b) of t: ln(n B/a) and ln(n (1-B)/b)
        log_b, log_rest = -np.log1p(rest * np.expm1(-t)), -np.log1p((a / n) * np.expm1(t))
        logs = a * log_b + b * log_rest
        logs = logs - log_sum_exp(logs)
        log_b = log_b + math.log(a / n)
        whole = log_b > -1e-17
        inside = (logs > -740.0) & ~whole
        together = [log_sum_exp(logs[whole])] if whole.any() else []
        return np.append(log_b[inside], [0.0] * len(together)), np.append(logs[inside], together)

    def density(self, y: Array) -> Array:
        """Return the density of ``y`` at an array of points, as a sum over the grid of ``B``.

        Where ``N`` hardly varies and ``B`` stays far from 1, :meth:`over_length` sums over ``ln N`` instead: fewer
        points.
        """
        from privproj.numerics.kernels import stirling_remainder

        k = self.a + self.b
        if self.b > LEAST_SHAPE_OVER_LENGTH and k * min(1.0 / self.a, 1.0) > LEAST_SHAPE_OVER_LENGTH:
            return self.over_length(y)
        # N/2 = k e^s, k = a + b, with density sqrt(k/2 pi) e^-R e^(-k (e^s - 1 - s)) of s, R Stirling's remainder:
        # sum over B of weight(B) f(s) / 2 at s = (y + 2 ln r - ln B)/2 - ln(2 k) (C7)
        log_b, weights = self.grid
        front = 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k) - math.log(2.0)
        shift = 2.0 * (math.log(self.rank) - math.log(2.0 * k))

        def log_terms(y: Array, chosen: slice) -> Array:
            place = 0.5 * ((y + shift)[:, None] - log_b[chosen])
            return weights[chosen] - k * (np.expm1(np.minimum(place, 50.0)) - place) + front

        sums = []
        for start in range(0, len(y), ROWS_AT_ONCE):
            rows = y[start : start + ROWS_AT_ONCE]
            exponent = log_terms(rows, terms_that_matter(log_terms(rows, slice(None, None, SCAN_STRIDE)), len(log_b)))
            peak = np.max(exponent, axis=1, keepdims=True)
            sums.append(np.exp(peak[:, 0]) * np.exp(exponent - peak).sum(axis=1))
        return np.concatenate(sums)

    def over_length(self, y: Array) -> Array:
        """Return the density of ``y`` at an array of points, as a sum over ``s = ln(N / 2n)``, ``n = a + b``."""
        a, b, n = self.a, self.b, self.a + self.b
        # sum over s of f(s) f_B(y + 2 ln(r/2n) - 2 s), f(s) = sqrt(n/2 pi) e^-R e^(-n (e^s - 1 - s)), and the density
        # f_B = B^a (1-B)^(b-1) / Beta(a, b) of ln B (C7)
        step = 0.35 / math.sqrt(n)
        s = np.arange(-40.0, 40.0, 0.35) * (step / 0.35)
        weights = 0.5 * math.log(n / (2.0 * math.pi)) - kernels.stirling_remainder(n) - n * (np.expm1(s) - s)
        moved = (y + 2.0 * math.log(self.rank / (2.0 * n)) - math.log(a / n))[:, None] - 2.0 * s
        share = (a / n) * np.expm1(np.minimum(moved, math.log(n / a)))
        inside = share < b / n
        front = kernels.log_beta_front(a, b, a / n, b / n) - math.log(b / n)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_b = a * moved + (b - 1.0) * np.log1p(-share * (n / b))
        exponent = np.where(inside, weights + front + log_b + math.log(step), -np.inf)
        peak = np.maximum(np.max(exponent, axis=1, keepdims=True), -1e4)
        return np.exp(peak[:, 0]) * np.exp(exponent - peak).sum(axis=1)


def _reach_above_centre(a: float, b: float) -> float:
    """Return how far above ``ln(4 a n)`` the density of ``ln(B N^2)`` has fallen by 720 nats, at its best split."""
    n = a + b

    def log_tail(v: float) -> float:
        s = np.linspace(0.0, max(v, 1e-12), 400)
        if b:
            # a ln B + b ln(1 - B) at the mean of B, less its value at ln B = ln(a/n) + v - s
            log_share = np.minimum(math.log(a / n) + (v - s), -1e-15)
            cost_b = -(a * log_share + b * np.log(-np.expm1(log_share))) + a * math.log(a / n) + b * math.log(b / n)
            cost_b = np.where(math.log(a / n) + (v - s) >= 0.0, np.inf, cost_b)
        else:
            cost_b = np.where(v - s > 0.0, np.inf, 0.0)
        # n (e^(s/2) - 1 - s/2) at s = 2 ln(N / 2n), so that ln(B N^2) = ln(4 a n) + v
        cost_n = n * (np.expm1(0.5 * s) - 0.5 * s)
        return float(np.min(cost_b + cost_n))

    low, high = 0.0, 1.0
    while log_tail(high) < 720.0:
        low, high = high, 2.0 * high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if log_tail(middle) < 720.0 else (low, middle)
    return high
