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
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privproj.errors import NotConverged
from privproj.gamma_gain import DROPPED, INNER, QUADRATURE, mean_gain, rule
from privproj.kernels import log_add, log_beta_tail, stirling_remainder
from privproj.numerics import Enclosure, outward

Array = NDArray[np.float64]

OUTER, CHECK = 15, 10
SCAN, SCAN_INNER = 161, 24
PANELS, ENOUGH, MOST_ROUNDS = 8, 1e-12, 40
COARSE, DOUBLINGS = 32, 4
ROUGH = 60.0
"""Below this power the beginning of a gain is too rough for the trapezoidal rule."""


def log_gamma_ratio(r: float) -> float:
    """``ln c_r = ln Gamma((r+1)/2) - ln Gamma(r/2) - ln(pi)/2``."""
    z = 0.5 * r
    return (
        z * math.log1p(0.5 / z)
        + 0.5 * math.log(z)
        - 0.5
        + stirling_remainder(z + 0.5)
        - stirling_remainder(z)
        - 0.5 * math.log(math.pi)
    )


def log_adaptive(log_f: Callable[[Array], Array], edges: Array) -> tuple[float, float]:
    """``(ln int e^log_f, relative error)`` by panels between these edges, halved until two rules agree on each.

    Raises :class:`NotConverged` where they do not.
    """
    left, right = edges[:-1], edges[1:]
    top, total, error = -math.inf, 0.0, 0.0
    for _ in range(MOST_ROUNDS):
        fine, coarse, peak = on_panels(log_f, left, right, top)
        if peak == -math.inf:
            return -math.inf, 0.0
        total, error = (value * math.exp(max(top - peak, -700.0)) for value in (total, error))
        top, gap = peak, np.abs(fine - coarse)
        wide = (gap > 0.1 * ENOUGH * (total + float(fine.sum()))) & (right - left > 1e-9)
        total, error = total + float(fine[~wide].sum()), error + float(gap[~wide].sum())
        if not wide.any():
            return (math.log(total) + top, error / total) if total > 0.0 else (-math.inf, 0.0)
        middle = 0.5 * (left[wide] + right[wide])
        left, right = np.concatenate([left[wide], middle]), np.concatenate([middle, right[wide]])
    raise NotConverged("the quadrature of the exact profile did not settle; please report these parameters")


def log_smooth(log_f: Callable[[Array], Array], edges: Array) -> tuple[float, float]:
    """Like :func:`log_adaptive` for a smooth hill that has all but vanished at the outer edges.

    There the trapezoidal rule converges fast: geometrically where the integrand is analytic, and with a high power of
    the step where ``g_+`` begins. Either way the changes shrink at least as fast in the next halving as in the last,
    so ten times the next change by that measure is taken as the error. Panels take over where that is not enough.
    """
    points = np.linspace(edges[0], edges[-1], COARSE + 1)
    logs = log_f(points)
    step, top = points[1] - points[0], float(np.max(logs))
    total, before = step * float(np.exp(logs - top).sum()), 1.0
    for _ in range(DOUBLINGS):
        middles = np.arange(edges[0] + 0.5 * step, edges[-1], step)
        logs = log_f(middles)
        peak = max(top, float(np.max(logs)))
        scaled = total * math.exp(top - peak)
        top, step, finer = peak, 0.5 * step, 0.5 * scaled + 0.5 * step * float(np.exp(logs - peak).sum())
        gap, total = abs(finer - scaled), finer
        change = gap / total
        error = change * min(1.0, 10.0 * change / before) + 1e-14
        if change <= 0.1 * before and error <= ENOUGH:
            return math.log(total) + top, error
        before = change
    return log_adaptive(log_f, edges)


def on_panels(log_f: Callable[[Array], Array], left: Array, right: Array, top: float) -> tuple[Array, Array, float]:
    """Two Gauss rules on each panel, scaled by ``e^-peak``, and ``peak``."""
    nodes, weights = (np.concatenate(x) for x in zip(rule(OUTER), rule(CHECK), strict=True))
    logs = log_f(left[:, None] + (right - left)[:, None] * nodes)
    peak = max(top, float(np.max(logs)))
    if math.isnan(peak):
        raise NotConverged("the exact profile came out undefined; please report these parameters")
    values = np.exp(logs - max(peak, -1e300)) * weights * (right - left)[:, None]
    return values[:, :OUTER].sum(axis=1), values[:, OUTER:].sum(axis=1), peak


def hill_edges(scan: Array, logs: Array) -> Array:
    """Panel edges over the part of a scan that is within ``e^-46`` of its largest value."""
    logs = np.where(np.isnan(logs), -np.inf, logs)
    inside = np.flatnonzero(logs >= np.max(logs) - DROPPED)
    return np.linspace(scan[max(inside[0] - 1, 0)], scan[min(inside[-1] + 1, len(scan) - 1)], PANELS + 1)


@lru_cache(maxsize=20000)
def kept_log_delta(pair: "VectorWishart", eps: float) -> Enclosure:
    """:meth:`VectorWishart.log_delta_anew`, remembered."""
    return pair.log_delta_anew(eps)


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
        more, begun = np.full_like(x, -np.inf), a * x > eps
        more[begun] = mean_gain(k, shrunk[begun], (a * x - eps)[begun] / shrunk[begun], -1.0, inner)
        tilt = 0.5 * (self.rank - 1.0) * x
        density = -0.5 * (self.rank + 1.0) * np.log1p(u * u) - 0.5 * np.log1p(half * u * u)
        return np.logaddexp(less + tilt, more - tilt) + density + log_u

    def log_infinite(self) -> float:
        """``ln P(A <= 0)``: ``I_{m(2-m)}(r/2, 1/2)/2`` for ``m <= 1``, one minus that beyond."""
        m = self.misalignment
        log_half = log_beta_tail(0.5, 0.5 * self.rank, (1.0 - m) ** 2, m * (2.0 - m)) - math.log(2.0)
        return log_half if m <= 1.0 else math.log1p(-math.exp(log_half))

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, ``eps >= 0``; raises :class:`NotConverged` where the panels do not settle.

        In one dimension two vectors of equal norm and a cosine above -1 are the same vector. Runs of different length
        ask for the same values again, so they are kept.
        """
        return kept_log_delta(self, eps)

    def log_delta_anew(self, eps: float) -> Enclosure:
        """:meth:`log_delta`, computed."""
        if self.dim == 1:
            return outward(-math.inf)
        with np.errstate(all="ignore"):
            edges, smooth = self.first_edges(eps)
            integral = log_smooth if smooth else log_adaptive
            finite, error = integral(lambda x: self.log_integrand(eps, x), edges)
        front = log_gamma_ratio(self.rank) + 0.5 * self.rank * math.log1p(-0.5 * self.misalignment)
        whole = log_add(float(finite) + front, self.log_infinite())
        return outward(whole, float(error) + QUADRATURE, 4.0 * abs(float(finite)) + 40.0)

    def table(self, eps: Array) -> tuple[Array, Array]:
        """Lower and upper bounds of delta for many ``eps``."""
        lower, upper = np.array([self.log_delta(float(e)) for e in eps]).T
        return np.where(lower > -690.0, np.exp(np.maximum(lower, -690.0)), 0.0), np.exp(np.maximum(upper, -690.0))

    def first_edges(self, eps: float) -> tuple[Array, bool]:
        """Panels over the hill of the integrand, and whether it is smooth there.

        Where ``|a| x = eps`` a threshold crosses 0 and one gain begins, or one ends, with the power ``k`` of the
        distance: an edge of the panels, and too rough for anything else if ``k`` is small.
        """
        low, high = -0.5 * math.log(self.rank) - 18.0, 40.0 - 0.5 * math.log(self.misalignment)
        scan = np.linspace(low, high, SCAN)
        edges = hill_edges(scan, self.log_integrand(eps, scan, SCAN_INNER))
        a, k = abs(0.5 * (self.dim + 1.0 - self.rank)), 0.5 * (self.rank + self.dim - 1.0)
        if a > 0.0 and 1e-300 < eps / a < 600.0:
            kink = math.log(math.sinh(0.5 * eps / a) / math.sqrt(0.5 * self.misalignment))
            if edges[0] < kink < edges[-1]:
                return np.sort(np.append(edges, kink)), k > ROUGH
        return edges, True
