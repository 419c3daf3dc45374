"""The exact privacy profile of the vector Wishart mechanism: release ``y = M v``, ``M ~ W_d(I/r, r)``, no noise.

For unit vectors ``v, v'`` with misalignment ``m = 1 - v.v'`` the privacy loss is a function of two independent
variables (2601.21719, proof of Theorem 1): with ``A = v'.y / v.y`` and ``U ~ Gamma(k)``, ``k = (r + d - 1)/2``,
``a = (d + 1 - r)/2``,

    L = a ln A + U (1/A - 1),  infinite where A <= 0;  A = rho + sqrt(1 - rho^2) T / sqrt(r),  T ~ Student t_r.

Averaging ``max(0, 1 - e^(eps - L))`` over ``U`` first and writing ``A = e^-+x``, ``sinh(x/2) = sqrt(m/2) u``,

    delta = P(A <= 0) + c_r (1 - m/2)^(r/2) int_0^inf (1 + u^2)^-(r+1)/2 (1 + m u^2/2)^-1/2
                                             [e^((r-1)x/2) g_-(x) + e^(-(r-1)x/2) g_+(x)] du
    g_-(x) = E[(1 - e^(-(e^x - 1)(U - U2)))_+],    U2 = (a x + eps)/(e^x - 1)
    g_+(x) = E[(1 - e^(-(1 - e^-x)(U1 - U)))_+],   U1 = (a x - eps)/(1 - e^-x)

with ``c_r = Gamma((r+1)/2) / (Gamma(r/2) sqrt(pi))``. All terms are positive: nothing cancels, and only ``m`` enters,
so a misalignment of 1e-12 keeps its digits. The profile is non-increasing in ``rho``, so the pair at ``m`` dominates
every better aligned one.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privproj.errors import NotConverged
from privproj.kernels import log_add
from privproj.numerics import Enclosure, outward

Array = NDArray[np.float64]

OUTER, CHECK, INNER = 15, 10, 64
SCAN, SCAN_INNER = 161, 24
PANELS, ENOUGH, MOST_ROUNDS = 8, 1e-12, 40
QUADRATURE = 2e-11
"""Relative error of the inner quadrature (measured against 30 digits: below 1e-12 over k from 1 to 1e6)."""
DROPPED = 46.0
"""Logs below a maximum where an integrand is left out."""


@lru_cache(maxsize=4)
def rule(count: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = special.roots_legendre(count)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def stirling(z: float) -> float:
    """``ln Gamma(z) - (z - 1/2) ln z + z - ln(2 pi)/2``."""
    if z < 20.0:
        return math.lgamma(z) - (z - 0.5) * math.log(z) + z - 0.5 * math.log(2.0 * math.pi)
    s = 1.0 / (z * z)
    return (1.0 / 12.0 - s * (1.0 / 360.0 - s * (1.0 / 1260.0 - s * (1.0 / 1680.0 - s / 1188.0)))) / z


def log_gamma_ratio(r: float) -> float:
    """``ln c_r = ln Gamma((r+1)/2) - ln Gamma(r/2) - ln(pi)/2``."""
    z = 0.5 * r
    return z * math.log1p(0.5 / z) + 0.5 * math.log(z) - 0.5 + stirling(z + 0.5) - stirling(z) - 0.5 * math.log(math.pi)


def deviance(z: Array) -> Array:
    """``z - ln(1 + z)`` without cancellation."""
    small = np.abs(z) < 0.02
    s = np.where(small, z, 0.0)
    series = s * s * (0.5 - s * (1 / 3 - s * (0.25 - s * (0.2 - s * (1 / 6 - s * (1 / 7 - s * (0.125 - s / 9)))))))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(small, series, z - np.log1p(z))


def mean_gain(k: float, rate: Array, start: Array, sign: float, inner: int = INNER) -> Array:
    """``ln E[(1 - e^(-rate (U - start)))_+]``, ``U ~ Gamma(k)``; for ``sign = -1`` with ``start - U``.

    By quadrature over the part of the law where the integrand is within ``e^-46`` of its largest: with the
    deviance ``D(z) = z - ln(1+z)``, ``z = U/k - 1``, the density falls below ``e^(-k D)``, and ``D`` reaches ``t``
    at most at ``z = sqrt(2 t) + t`` above and ``-sqrt(2 t)`` below.
    """
    place = start / k - 1.0
    outside = np.maximum(sign * place, 0.0)
    reached = np.where(outside > 0.0, deviance(np.where(place > -1.0, sign * outside, 0.0)), 0.0)
    t = reached + (DROPPED + 2.0 * math.log(k + 1.0) / 4.0) / k
    low = np.maximum(-np.sqrt(2.0 * t), -1.0)
    high = np.sqrt(2.0 * t) + t
    low, high = (np.maximum(low, place), high) if sign > 0.0 else (low, np.minimum(high, place))
    width = np.maximum(high - low, 0.0)
    z, weights = mapped(low[..., None], width[..., None], sign, inner)
    gain = -np.expm1(-np.maximum(rate[..., None] * k * sign * (z - place[..., None]), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = -k * deviance(z) - np.log1p(z) + reached[..., None] * k
        value = np.where(z > -1.0, np.exp(np.minimum(exponent, 700.0)), 0.0) * gain
        total = (value * weights).sum(axis=-1) * width
        front = 0.5 * math.log(k / (2.0 * math.pi)) - stirling(k)
        return np.where(width > 0.0, np.log(total) + front - reached * k, -np.inf)


def mapped(low: Array, width: Array, sign: float, inner: int) -> tuple[Array, Array]:
    """Nodes that crowd where the gain starts, and for ``sign = -1`` where ``U`` does too; weights for unit width."""
    nodes, weights = rule(inner)
    if sign > 0.0:
        return low + width * nodes**2, 2.0 * nodes * weights
    return low + width * nodes**2 * (3.0 - 2.0 * nodes), 6.0 * nodes * (1.0 - nodes) * weights


@dataclass(frozen=True)
class VectorWishart:
    """The pair at misalignment ``m`` in ``dim >= 2`` dimensions, rank ``rank >= 1`` of any size."""

    dim: int
    rank: int
    misalignment: float

    def log_integrand(self, eps: float, log_u: Array, inner: int = INNER) -> Array:
        """``ln`` of the integrand of the module docstring over ``ln u``."""
        k, a = 0.5 * (self.rank + self.dim - 1.0), 0.5 * (self.dim + 1.0 - self.rank)
        u, half = np.exp(log_u), 0.5 * self.misalignment
        x = 2.0 * np.arcsinh(math.sqrt(half) * u)
        grown, shrunk = np.expm1(x), -np.expm1(-x)
        less = mean_gain(k, grown, (a * x + eps) / grown, 1.0, inner)
        more = mean_gain(k, shrunk, (a * x - eps) / shrunk, -1.0, inner)
        tilt = 0.5 * (self.rank - 1.0) * x
        density = -0.5 * (self.rank + 1.0) * np.log1p(u * u) - 0.5 * np.log1p(half * u * u)
        return np.logaddexp(less + tilt, more - tilt) + density + log_u

    def log_infinite(self) -> float:
        """``ln P(A <= 0)``: ``I_{m(2-m)}(r/2, 1/2)/2`` for ``m <= 1``, one minus that beyond."""
        m = self.misalignment
        half = 0.5 * float(special.betainc(0.5 * self.rank, 0.5, m * (2.0 - m)))
        if m > 1.0:
            return math.log1p(-half)
        return math.log(half) if half > 0.0 else -math.inf

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, ``eps >= 0``; raises :class:`NotConverged` where the panels do not settle.

        In one dimension two vectors of equal norm and a cosine above -1 are the same vector.
        """
        if self.dim == 1:
            return outward(-math.inf)
        with np.errstate(all="ignore"):
            finite, error = self.log_finite(eps)
        front = log_gamma_ratio(self.rank) + 0.5 * self.rank * math.log1p(-0.5 * self.misalignment)
        return outward(log_add(finite + front, self.log_infinite()), error + QUADRATURE, 4.0 * abs(finite) + 40.0)

    def table(self, eps: Array) -> tuple[Array, Array]:
        """Lower and upper bounds of delta for many ``eps``."""
        lower, upper = np.array([self.log_delta(float(e)) for e in eps]).T
        return np.where(lower > -690.0, np.exp(np.maximum(lower, -690.0)), 0.0), np.exp(np.maximum(upper, -690.0))

    def log_finite(self, eps: float) -> tuple[float, float]:
        """``(ln of the integral, relative error)`` by panels in ``ln u``, halved until two rules agree on each."""
        edges = self.first_edges(eps)
        left, right = edges[:-1], edges[1:]
        top, total, error = -math.inf, 0.0, 0.0
        for _ in range(MOST_ROUNDS):
            fine, coarse, peak = self.panels(eps, left, right, top)
            total, error = (value * math.exp(max(top - peak, -700.0)) for value in (total, error))
            top, gap = peak, np.abs(fine - coarse)
            wide = (gap > 0.1 * ENOUGH * (total + float(fine.sum()))) & (right - left > 1e-9)
            total, error = total + float(fine[~wide].sum()), error + float(gap[~wide].sum())
            if not wide.any():
                return (math.log(total) + top, error / total) if total > 0.0 else (-math.inf, 0.0)
            middle = 0.5 * (left[wide] + right[wide])
            left, right = np.concatenate([left[wide], middle]), np.concatenate([middle, right[wide]])
        raise NotConverged("the quadrature of the exact profile did not settle; please report these parameters")

    def first_edges(self, eps: float) -> Array:
        """Panels over the hill of the integrand, with an edge where ``g_+`` begins (``a x = eps``)."""
        low, high = -0.5 * math.log(self.rank) - 18.0, 40.0 - 0.5 * math.log(self.misalignment)
        scan = np.linspace(low, high, SCAN)
        logs = self.log_integrand(eps, scan, SCAN_INNER)
        inside = np.flatnonzero(logs > np.max(logs) - DROPPED)
        edges = np.linspace(scan[max(inside[0] - 1, 0)], scan[min(inside[-1] + 1, SCAN - 1)], PANELS + 1)
        a = abs(0.5 * (self.dim + 1.0 - self.rank))
        if a > 0.0 and 1e-300 < eps / a < 600.0:
            kink = math.log(math.sinh(0.5 * eps / a) / math.sqrt(0.5 * self.misalignment))
            edges = np.sort(np.append(edges, kink)) if edges[0] < kink < edges[-1] else edges
        return edges

    def panels(self, eps: float, left: Array, right: Array, top: float) -> tuple[Array, Array, float]:
        """Two Gauss rules on each panel, scaled by ``e^-peak``, and ``peak``."""
        nodes, weights = (np.concatenate(x) for x in zip(rule(OUTER), rule(CHECK), strict=True))
        logs = self.log_integrand(eps, left[:, None] + (right - left)[:, None] * nodes)
        peak = max(top, float(np.max(logs)))
        values = np.exp(logs - peak) * weights * (right - left)[:, None]
        return values[:, :OUTER].sum(axis=1), values[:, OUTER:].sum(axis=1), peak
