"""Pairs of unequal norms by plain Gauss rules, without the package."""

import itertools
import math

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy import special, stats

LAYERS = (0.0, 1e-3, 1e-2, 0.05, 0.15, 0.3, 0.5, 0.75, 1.0)


def mean_over_w(log_a, tau, eps, dim, rank):
    """``E_W[(1 - e^(eps - L))_+]`` over the half line of ``W`` where ``L > eps``."""
    n = rank + dim - 1.0
    constant, slope = -dim * tau + 0.5 * (dim + 1 - rank) * (tau + log_a), 0.5 * np.expm1(tau - log_a)
    least, most = max(0.0, n - 12 * math.sqrt(2 * n)), n + 14 * math.sqrt(2 * n) + 60.0
    start = np.maximum((eps - constant) / slope, 0.0)
    decay = 40.0 / np.maximum(np.abs(0.5 - (0.5 * n - 1) / np.maximum(start, 1e-300)), 0.2 / math.sqrt(n))
    low = np.where(slope > 0, np.maximum(start, least), np.where(start > least, least, np.maximum(start - decay, 0.0)))
    high = np.where(slope > 0, np.maximum(most, low + decay), np.minimum(start, most))
    near, signed = np.where(slope > 0, low, high), np.where(slope > 0, 1.0, -1.0) * (high - low)
    nodes, weights = leggauss(12)
    total = np.zeros_like(slope)
    for left, right in itertools.pairwise(LAYERS):
        w = near[:, None] + signed[:, None] * (left + (right - left) * 0.5 * (nodes + 1))
        loss = constant[:, None] + w * slope[:, None]
        dist = np.exp((0.5 * n - 1) * np.log(0.5 * w) - 0.5 * w - special.gammaln(0.5 * n)) / 2
        total += (dist * np.clip(-np.expm1(eps - loss), 0, None)) @ weights * np.abs(signed) * (right - left) / 2
    return np.where(high > low, total, 0.0)


def one_pair(dim, rank, m, tau, eps, count=300):
    """``H_eps`` of one pair."""
    with np.errstate(all="ignore"):
        if m == 0.0:
            return float(mean_over_w(np.zeros(1), tau, eps, dim, rank)[0])
        s, root = math.sqrt(m * (2 - m)), math.sqrt(rank)
        reach = math.asinh(1e12 if rank == 1 else 1e6 if rank == 2 else 400.0 if rank < 8 else 60.0)
        kink, scale = (math.expm1(tau) + m) * root / s, root / s / math.sqrt(0.5 * (rank + dim - 1))
        near = np.geomspace(1e-3 * min(scale, 1.0), 20 * scale, 60)
        v = np.concatenate([np.linspace(-reach, reach, count), np.arcsinh(kink + np.concatenate([-near, [0.0], near]))])
        start = math.asinh(-(1 - m) * root / s)
        v = np.unique(np.append(v[(v > start) & (v <= reach)], max(start, -reach)))
        middle, half = 0.5 * (v[1:] + v[:-1]), 0.5 * np.diff(v) / math.sqrt(3.0)
        v = np.concatenate([middle - half, middle + half])
        t = np.sinh(v)
        excess = s * t / root - m
        weight = stats.t.pdf(t, rank) * np.cosh(v) * np.concatenate([half, half]) * math.sqrt(3.0)
        gains = mean_over_w(np.log1p(np.maximum(excess, -1 + 1e-300)), tau, eps, dim, rank)
        return float(weight @ gains + stats.t.cdf(-(1 - m) * root / s, rank))


def log_density(y, v, dim, rank):
    """``(v.y)^((r-d-1)/2) e^(-r |y|^2 / (2 v.y))`` on ``v.y > 0``, the density of ``M v`` up to a constant."""
    inner = y @ v
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = 0.5 * (rank - dim - 1) * np.log(inner) - 0.5 * rank * (y * y).sum(axis=1) / inner
    return np.where(inner > 0.0, inside, -np.inf)
