"""Densities of two squared sensitivities of M1 that have no closed form (C7, C8).

The densities are those of ``y = ln X``, where ``X`` is the squared sensitivity over the noise variance.
:mod:`privproj.distributions.tabulated` integrates them.

:class:`ProjectedEnergy` is for M1 with a known projection matrix ``M`` and a difference along one unit vector ``u``:
``X = |M u|^2 = U (U + Y) / r^2``, where ``U ~ chi2_r`` and ``Y ~ chi2_(d-1)`` are independent (C7).

:class:`SecretShift` is for a vector release of M1 whose projection stays secret (C8). Let the unit vectors ``v`` and
``v'`` of two neighboring datasets have the distance ``s = 2 sin(eta)``, and let ``sigma`` be the standard deviation of
the noise. Given ``g ~ chi2_r / r``, both releases are Gaussian. The difference of their means, in units of their noise,
is ``S (c + xi)`` with ``xi ~ N(0, 1)`` and

    S = (g/r) sin(2 eta) / (sigma tau),   c = r sqrt(sigma^2 + (g/r) sin^2(eta)) / cos(eta),   tau^2 = sigma^2 + g/r.

The absolute value of this difference increases with ``s`` as long as ``sin(2 eta)`` and ``c`` increase, up to
``s = sqrt 2``. For larger ``s``, ``sin(2 eta)`` is replaced by 1. The result also bounds the difference for every
smaller distance.

Each density is a trapezoidal sum over a second variable. All functions are analytic and decrease to 0 at both ends, so
the sum converges geometrically.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privproj.distributions.tabulated import SCAN_STRIDE, log_sum_exp, terms_that_matter
from privproj.numerics.arrays import Array
from privproj.numerics.root_finding import find_crossing
from privproj.numerics.special import stirling_remainder


@dataclass(frozen=True)
class ProjectedEnergy:
    """The distribution of the squared norm ``X`` of a projected unit vector in M1 (C7).

    ``X = U (U + Y) / r^2`` with independent chi-square variables ``U`` and ``Y``, and the rank ``r``.

    * ``a``: half the degrees of freedom of ``U``, which is ``r/2`` for M1.
    * ``b``: half the degrees of freedom of ``Y``, which is ``(d - 1)/2`` for M1 in dimension ``d``. With ``b = 0``, ``Y
      = 0``.
    """

    a: float
    b: float
    rank: int

    @property
    def mean(self) -> float:
        """The mean of the squared norm of the projected vector."""
        return 4.0 * self.a * (self.a + self.b + 1.0) / self.rank**2

    @property
    def ends(self) -> tuple[float, float, float]:
        """The range and the peak width of the log squared sensitivity ``(low, high, width)``."""
        n = self.a + self.b
        spread_b = math.sqrt(self.b / (self.a * (n + 1.0)))
        width = math.hypot(spread_b, 2.0 / math.sqrt(n))
        center = math.log(4.0 * self.a * n / self.rank**2)
        drop = 50.0 / self.a
        low = center - 11.0 * width - drop
        return low, center + _reach_above_center(self.a, self.b), min(0.8 * width, 1.0)

    @cached_property
    def grid(self) -> tuple[Array, Array]:
        """The points ``ln B`` and the log weights of a trapezoidal sum over ``B ~ Beta(a, b)``."""
        if self.b == 0.0:
            return np.zeros(1), np.zeros(1)
        # The points are equidistant in the logit of B, and the weights have the sum 1.
        a, b, n = self.a, self.b, self.a + self.b
        spread, rest = math.sqrt(1.0 / a + 1.0 / b), b / n
        # the largest N/2 that is not negligible, where its density has fallen by a factor e^-740
        most = n + 740.0 + math.sqrt(1480.0 * n)
        step = min(0.7 / math.sqrt(1.0 / spread**2 + 0.25 * rest * rest * most), 0.28)
        t = np.arange(-10.0 * spread - 60.0 / a, 40.0 * spread + 760.0 / b, step)
        t = t[(t > -700.0) & (t < 700.0)]
        # B = (a/n) / (a/n + (b/n) e^-t) with the density B^a (1-B)^b / Beta(a, b) of t: ln(n B/a) and ln(n (1-B)/b)
        log_b, log_rest = -np.log1p(rest * np.expm1(-t)), -np.log1p((a / n) * np.expm1(t))
        logs = a * log_b + b * log_rest
        logs = logs - log_sum_exp(logs)
        log_b = log_b + math.log(a / n)
        at_one = log_b > -1e-17
        inside = (logs > -740.0) & ~at_one
        together = [log_sum_exp(logs[at_one])] if at_one.any() else []
        return np.append(log_b[inside], [0.0] * len(together)), np.append(logs[inside], together)

    def density(self, y: Array) -> Array:
        """Return the density of the log squared sensitivity at the points ``y``."""
        k = self.a + self.b
        # N/2 = k e^s, k = a + b, with density sqrt(k/2 pi) e^-R e^(-k (e^s - 1 - s)) of s, R Stirling's remainder:
        # sum over B of weight(B) f(s) / 2 at s = (y + 2 ln r - ln B)/2 - ln(2 k) (C7)
        log_b, weights = self.grid
        front = 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k) - math.log(2.0)
        shift = 2.0 * (math.log(self.rank) - math.log(2.0 * k))

        def log_terms(y: Array, chosen: slice) -> Array:
            place = 0.5 * ((y + shift)[:, None] - log_b[chosen])
            return weights[chosen] - k * (np.expm1(np.minimum(place, 50.0)) - place) + front

        # The terms of N are log-concave and ln B grows along the grid, so the rows at both ends determine the others.
        ends = log_terms(np.array([y.min(), y.max()]), slice(None, None, SCAN_STRIDE))
        return _row_sums_exp(log_terms(y, terms_that_matter(ends, len(log_b))))


def _reach_above_center(a: float, b: float) -> float:
    """Return how far above ``ln(4 a (a + b))`` the density of ``ln(B N^2)`` is not negligible.

    ``B ~ Beta(a, b)`` and ``N ~ chi2`` with ``2 (a + b)`` degrees of freedom are independent.
    """
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

    return find_crossing(lambda v: 720.0 - log_tail(v), 1.0, low=1e-9, high=1e9, rtol=1e-9).upper


# soundness: least c at which the density is a sum over xi; there c + xi is negative with probability below e^-800
LEAST_CENTER_OVER_XI = 40.0


@dataclass(frozen=True)
class SecretShift:
    """The distribution of the log squared sensitivity of M1 with a secret projection (C8).

    It is for one pair of unit vectors in neighboring datasets.

    * ``sigma``: standard deviation of the noise, for vectors of norm 1.
    * ``misalignment``: one minus the cosine of the two vectors, below 2.
    """

    rank: int
    sigma: float
    misalignment: float

    def parts(self, g: Array) -> tuple[Array, Array]:
        """Return ``S`` and ``c`` such that the normalized sensitivity is ``S (c + xi)`` (C8).

        The sensitivity is normalized by the standard deviation of the noise. ``xi`` is standard normal, independent of
        ``g ~ chi2_r / r`` for the rank ``r``.
        """
        # S = (g/r) sin(2 eta) / (sigma tau),  c = r sqrt(sigma^2 + (g/r) sin^2 eta) / cos eta,
        # sin^2 eta = misalignment/2 (C8)
        sine2, share = 0.5 * self.misalignment, g / self.rank
        doubled = 2.0 * math.sqrt(sine2 * (1.0 - sine2)) if sine2 < 0.5 else 1.0
        scale = share * doubled / (self.sigma * np.sqrt(self.sigma**2 + share))
        return scale, self.rank * np.sqrt(self.sigma**2 + share * sine2) / math.sqrt(1.0 - sine2)

    @property
    def center(self) -> float:
        """The constant ``c`` of :meth:`parts` at the mean ``g = 1``."""
        return float(self.parts(np.ones(1))[1][0])

    @property
    def ends(self) -> tuple[float, float, float]:
        """The range and the peak width of the log squared sensitivity ``(low, high, width)``."""
        c, spread = self.center, math.sqrt(2.0 / self.rank)
        width = 2.0 * math.hypot(1.0 / max(c, 1.0), spread)
        near = 100.0 if c < LEAST_CENTER_OVER_XI else -2.0 * math.log1p(-11.0 / c)
        middle = 2.0 * math.log(float(self.parts(np.ones(1))[0][0]) * max(c, 1.0))
        low = middle - near - 2.0 * (11.0 * spread + 100.0 / self.rank)
        # g <= 1 + 2 sqrt(x/r) + 2 x/r except for e^-x, at x = 725 (Laurent, Massart), and |xi| <= 38 except for e^-722.
        reach = 1.0 + math.sqrt(2.0 * 1450.0 / self.rank) + 1450.0 / self.rank
        scale, at_top = (float(x[0]) for x in self.parts(np.array([reach])))
        return low, 2.0 * math.log(scale * (at_top + 38.0)), min(0.8 * width, 1.0)

    def density(self, y: Array) -> Array:
        """Return the density of the log squared sensitivity at the points ``y``."""
        return self.over_xi(y) if self.center >= LEAST_CENTER_OVER_XI else self.over_g(y)

    def log_gamma(self, v: Array) -> Array:
        """Return the log density of ``v = ln g`` for ``g ~ chi2_r / r``."""
        k = 0.5 * self.rank
        # f(v) = sqrt(k/2 pi) e^-R e^(-k (e^v - 1 - v)), k = r/2, R the remainder of Stirling's formula
        return 0.5 * math.log(k / (2.0 * math.pi)) - stirling_remainder(k) - k * (np.expm1(v) - v)

    def over_g(self, y: Array) -> Array:
        """Return the density of the log squared sensitivity by a sum over a chi-square variable."""
        # sum over v of f(v) e^(y/2) / (2 S) [phi(e^(y/2)/S - c) + phi(e^(y/2)/S + c)] (C8)
        k = 0.5 * self.rank
        step = 0.7 / math.sqrt(k + 8.0 + 1.5 * self.center**2)
        v = np.arange(-11.0 / math.sqrt(k) - 60.0 / k, math.log1p(2.0 * math.sqrt(720.0 / k) + 720.0 / k), step)
        log_front = math.log(step) - math.log(2.0 * math.sqrt(2.0 * math.pi))

        def log_terms(v: Array) -> Array:
            scale, c = self.parts(np.exp(v))
            log_place = 0.5 * y[:, None] - np.log(scale)
            place = np.exp(log_place)
            # ln(phi(place - c) + phi(place + c)), the second less by e^(-2 c place)
            both = np.log1p(np.exp(-2.0 * c * place)) - 0.5 * (place - c) ** 2
            return self.log_gamma(v) + both + log_place + log_front

        return _row_sums_exp(log_terms(v[terms_that_matter(log_terms(v[::SCAN_STRIDE]), len(v))]))

    def over_xi(self, y: Array) -> Array:
        """Return the density of the log squared sensitivity by a sum over a normal variable."""
        # For each xi one g gives S (c + xi) = e^(y/2).
        step = 0.25 / max(1.0, math.sqrt(0.5 / self.rank) * 4.0)
        xi = np.arange(-38.0, 38.0 + step, step)
        log_front = math.log(step / math.sqrt(2.0 * math.pi))

        def log_terms(xi: Array, accuracy: float) -> Array:
            v = np.zeros((len(y), len(xi)))
            # Newton's method for ln g; the check of the total mass detects a failure
            for _ in range(12):
                value, slope = self.log_shift(v, xi)
                change = (value - 0.5 * y[:, None]) / slope
                v = v - change
                # the error after a step is about the square of the step
                if float(np.max(np.abs(change))) < accuracy:
                    break
            # f(v) phi(xi) dv/dy, where ln shift(v, xi) = y/2 and so dv/dy = 1/(2 slope) (C8)
            slope = self.log_shift(v, xi)[1]
            logs = self.log_gamma(v) - 0.5 * xi * xi - np.log(2.0 * slope) + log_front
            return np.where(np.isfinite(logs), logs, -np.inf)

        return _row_sums_exp(log_terms(xi[terms_that_matter(log_terms(xi[::SCAN_STRIDE], 1e-2), len(xi))], 1e-7))

    def log_shift(self, v: Array, xi: Array) -> tuple[Array, Array]:
        """Return ``ln(S (c + xi))`` at ``g = e^v``, and its derivative in ``v``.

        :meth:`parts` defines ``S``, ``c``, ``g`` and ``xi``.
        """
        sine2, share = 0.5 * self.misalignment, np.exp(np.clip(v, -60.0, 60.0)) / self.rank
        scale, c = self.parts(share * self.rank)
        # d ln S/dv + (dc/dv)/(c + xi), where d ln S/dv = 1 - (g/r)/(2 tau^2) and
        # dc/dv = c (g/r) sin^2 eta / (2 (sigma^2 + (g/r) sin^2 eta))
        slope_c = 0.5 * c * share * sine2 / (self.sigma**2 + share * sine2)
        # Newton's method may leave the domain of the logarithm.
        slope = 1.0 - 0.5 * share / (self.sigma**2 + share) + slope_c / (c + xi)
        return np.log(scale) + np.log(np.maximum(c + xi, 1e-300)), slope


def _row_sums_exp(logs: Array) -> Array:
    peak = np.maximum(np.max(logs, axis=1, keepdims=True), -1e4)
    return np.exp(peak[:, 0]) * np.exp(logs - peak).sum(axis=1)
