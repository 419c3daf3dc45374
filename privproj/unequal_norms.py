"""The vector Wishart mechanism where neighbouring vectors differ in norm.

With ``|v| = a``, ``|v'| = a'``, ``kappa = a/a'`` and the symbols of :mod:`privproj.vector_wishart` the loss is, around
``A = kappa``,

    L = -(r-1) ln kappa - a x + U (e^x - 1)      at A = kappa e^-x, x >= 0
    L = -(r-1) ln kappa + a x - U (1 - e^-x)     at A = kappa e^x,  x >= 0

so the two gains are those of equal norms at ``eps + (r-1) ln kappa``, averaged over ``A = rho + sqrt(1-rho^2)
T/sqrt(r)`` as it is. Neither order nor alignment is the worst in general: both ``kappa`` and ``1/kappa`` are taken,
and the largest over a grid of better aligned pairs down to parallel ones. That nothing between the grid points is
larger is observed.
"""

import math
from dataclasses import dataclass

import numpy as np

from privproj.gamma_gain import INNER, QUADRATURE, mean_gain
from privproj.kernels import log_add
from privproj.numerics import Enclosure, outward
from privproj.vector_wishart import (
    SCAN,
    SCAN_INNER,
    Array,
    VectorWishart,
    hill_edges,
    log_adaptive,
    log_gamma_ratio,
)

GRID = 16
"""Better aligned pairs that are tried, at misalignments ``m (j/16)^2``."""
CLOSE = 0.02
"""Pairs whose rough log delta is within this of the largest are evaluated in full."""


@dataclass(frozen=True)
class UnequalPair:
    """The pair ``v`` against ``v'`` at misalignment ``m`` and ``ln kappa = log_ratio != 0``."""

    dim: int
    rank: int
    misalignment: float
    log_ratio: float

    def log_gain(self, eps: float, x: Array, inner: int = INNER) -> Array:
        """``ln E_U[(1 - e^(eps - L))_+]`` at ``A = kappa e^-x``, ``x`` of either sign."""
        k, a = 0.5 * (self.rank + self.dim - 1.0), 0.5 * (self.dim + 1.0 - self.rank)
        shifted, size = eps + (self.rank - 1.0) * self.log_ratio, np.maximum(np.abs(x), 1e-300)
        grown, shrunk = np.expm1(size), -np.expm1(-size)
        less = mean_gain(k, grown, (a * size + shifted) / grown, 1.0, inner)
        more = mean_gain(k, shrunk, (a * size - shifted) / shrunk, -1.0, inner)
        return np.where(x >= 0.0, less, more)

    def log_integrand(self, eps: float, w: Array, inner: int = INNER) -> Array:
        """``ln`` of the integrand over ``w = asinh(T)``; ``A <= 0`` is left out."""
        m, r = self.misalignment, float(self.rank)
        t = np.sinh(w)
        excess = -m + math.sqrt(m * (2.0 - m) / r) * t
        inside = excess > -1.0
        x = self.log_ratio - np.log1p(np.where(inside, excess, 0.0))
        density = log_gamma_ratio(r) - 0.5 * math.log(r) - 0.5 * (r + 1.0) * np.log1p(t * t / r) + np.log(np.cosh(w))
        return np.where(inside, self.log_gain(eps, x, inner) + density, -np.inf)

    def edges(self, eps: float) -> tuple[Array, float]:
        """Panels over the hill, with edges at the kinks of the integrand; and a rough log of the integral."""
        m, r = self.misalignment, float(self.rank)
        reach = min(2.0 + 80.0 / r, 80.0) + math.asinh(math.sqrt(r))
        a = 0.5 * (self.dim + 1.0 - r)
        starts = [(eps + (r - 1.0) * self.log_ratio) / a] if a else []
        places = [self.log_ratio + y for y in (0.0, *starts)]
        spread = math.sqrt(m * (2.0 - m) / r)
        kinks = [math.asinh((math.expm1(min(p, 600.0)) + m) / spread) for p in places]
        bottom = math.asinh((m - 1.0) / spread)
        scan = np.unique(np.concatenate([np.linspace(max(-reach, bottom), reach, SCAN), kinks]))
        logs = self.log_integrand(eps, scan, SCAN_INNER)
        if not np.any(logs > -np.inf):
            return scan[[0, -1]], -math.inf
        peak = float(np.max(logs))
        rough = peak + math.log(float(np.trapezoid(np.exp(logs - peak), scan)))
        found = hill_edges(scan, logs)
        return np.unique(np.concatenate([found, [k for k in kinks if found[0] < k < found[-1]]])), rough

    def log_infinite(self) -> float:
        """``ln P(A <= 0)``, which no ratio of norms changes."""
        return VectorWishart(self.dim, self.rank, self.misalignment).log_infinite() if self.misalignment else -math.inf

    def rough(self, eps: float) -> float:
        """A rough ``ln delta(eps)``."""
        if self.misalignment == 0.0:
            return float(self.log_gain(eps, np.array([self.log_ratio]))[0])
        return log_add(self.edges(eps)[1], self.log_infinite())

    def log_delta(self, eps: float) -> Enclosure:
        """``ln H_eps(v || v')``."""
        if self.misalignment == 0.0:
            finite, error = float(self.log_gain(eps, np.array([self.log_ratio]))[0]), 0.0
        else:
            finite, error = log_adaptive(lambda w: self.log_integrand(eps, w), self.edges(eps)[0])
        return outward(log_add(finite, self.log_infinite()), error + QUADRATURE, 4.0 * min(abs(finite), 1e6) + 40.0)


@dataclass(frozen=True)
class UnequalNorms:
    """Every pair with misalignment at most ``m`` and norms in the ratio ``e^log_ratio``, in both orders."""

    dim: int
    rank: int
    misalignment: float
    log_ratio: float

    def pairs(self) -> list[UnequalPair]:
        """The pairs of the grid."""
        shares = [(j / GRID) ** 2 for j in range(GRID + 1)] if self.dim > 1 else [0.0]
        signs = (self.log_ratio, -self.log_ratio)
        return [UnequalPair(self.dim, self.rank, self.misalignment * s, ratio) for s in shares for ratio in signs]

    def log_delta(self, eps: float) -> Enclosure:
        """The largest ``ln H_eps`` over the grid."""
        with np.errstate(all="ignore"):
            rough = [(pair.rough(eps), pair) for pair in self.pairs()]
            top = max(value for value, _ in rough)
            found = [pair.log_delta(eps) for value, pair in rough if value >= top - CLOSE]
        return Enclosure(max(f.lower for f in found), max(f.upper for f in found))
