"""The exact privacy profile of the vector Wishart mechanism, which adds no noise.

The mechanism releases ``y = M v`` for a vector ``v`` and a Wishart matrix ``M ~ W_d(I/r, r)``. For unit vectors ``v,
v'`` with misalignment ``m = 1 - v.v'`` the privacy loss is a function of two independent variables (C9; arXiv
2601.21719, proof of Theorem 1). With ``rho = v.v'``, the *alignment ratio* ``A = v'.y / v.y``, ``U ~ Gamma(k)``, ``k =
(r + d - 1)/2`` and ``a = (d + 1 - r)/2`` the loss is

    L = a ln A + U (1/A - 1),  infinite for A <= 0;  A = rho + sqrt(1 - rho^2) T / sqrt(r),  T ~ Student t_r.

The *gain* ``g(A)`` is the mean of ``max(0, 1 - e^(eps - L))`` over ``U`` for a given ``A``. With ``x > 0``

    delta = P(A <= 0) + E[g(A); A > 0]
    g(e^-x) = E[(1 - e^(-(e^x - 1)(U - U2)))_+],    U2 = (a x + eps)/(e^x - 1)
    g(e^x) = E[(1 - e^(-(1 - e^-x)(U1 - U)))_+],    U1 = (a x - eps)/(1 - e^-x)

:mod:`privproj.distributions.wishart_integral` encloses these expectations. All terms are positive, so nothing cancels.
The formulas use ``m`` instead of ``rho = 1 - m``, so a misalignment of 1e-12 keeps its digits. Delta does not increase
with ``rho`` (C10), so the pair at ``m`` dominates every pair with a smaller misalignment.

The same profile is implemented in ball arithmetic for certificates, and in mpmath in :mod:`privproj.reference.wishart`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from privproj.distributions.wishart_integral import (
    PANEL_ERROR_SHARE,
    TABLE_PANEL_ERROR_SHARE,
    THRESHOLD_ROUNDING,
    WishartIntegral,
    log_infinite,
)
from privproj.errors import ConvergenceError
from privproj.numerics.arrays import Array
from privproj.numerics.interval import Enclosure, widen_outward, widen_outward_each
from privproj.profiles.privacy_profile import PrivacyProfile

EPSILONS_TOGETHER = 64  # epsilons whose panels are evaluated together

# soundness: largest epsilon at which the panels are evaluated; the profile decreases, so its value here is an upper
# bound for every larger epsilon
FARTHEST_EPSILON = 1e9

# first points of a search for an epsilon, in units of a rough estimate of the epsilon
GUESS_LADDER = 2.0 ** np.arange(-4.0, 5.0)

GUESS_STEPS = 1.0 + 0.02 * np.arange(-2.0, 3.0)  # next points, in units of the result of the first

GUESS_POINTS = 5  # values of the profile that are interpolated for a guess


def steepness(log_delta: Array | float, rank: int, misalignment: Array | float) -> Array | float:
    """Return an estimate of the log-log slope of delta in the misalignment."""
    # A relative rounding error of the misalignment changes ln delta by this factor.
    return 4.0 * np.abs(log_delta) + 40.0 + np.sqrt(misalignment * rank)


@lru_cache(maxsize=20000)
def _cached_log_delta(pair: "VectorWishart", eps: float) -> Enclosure:
    return pair.compute_log_delta(eps)


@dataclass(frozen=True)
class VectorWishart:
    """The privacy profile of the vector Wishart mechanism for a pair of unit vectors.

    It also holds for every pair with a smaller misalignment (C10).

    * ``dim``: the dimension, at least 2.
    * ``rank``: the rank of the Wishart matrix, at least 1.
    * ``misalignment``: one minus the cosine of the two vectors, below 2.
    """

    # In one dimension, vectors of equal norm and a cosine above -1 are equal.
    dim: int
    rank: int
    misalignment: float

    def profile(self) -> PrivacyProfile:
        """Return the privacy profile of the mechanism for this pair of vectors."""
        # More digits would be below the rounding of panels.
        return PrivacyProfile(
            self.log_delta,
            table=self.table,
            log_deltas=self.bounds,
            guess=self.guess_epsilon,
            resolution=24.0,
            digits=12,
        )

    def log_delta(self, eps: float) -> Enclosure:
        """Return cached bounds of ``ln delta(eps)`` for ``eps >= 0``.

        Raises:
            ConvergenceError: The integral is not accurate enough.
        """
        return _cached_log_delta(self, eps)

    def compute_log_delta(self, eps: float) -> Enclosure:
        """Return bounds of ``ln delta(eps)`` without caching."""
        if eps > FARTHEST_EPSILON:  # the profile decreases to P(A <= 0), which it has nearly reached
            return Enclosure(
                widen_outward(log_infinite(self.rank, self.misalignment)).lower, self.log_delta(FARTHEST_EPSILON).upper
            )
        logs, error = self.log_deltas(np.array([eps]))
        value = float(logs[0])
        return widen_outward(value, float(error[0]), float(steepness(value, self.rank, self.misalignment)))

    def log_deltas(self, eps: Array, share: float = PANEL_ERROR_SHARE) -> tuple[Array, Array]:
        """Return ``ln delta`` at each epsilon, and the relative error of each delta (C20).

        The part of the error that is due to rounding is estimated. The other parts are proved.

        Args:
            eps: Epsilons in nats.
            share: The relative error that one interval of integration may add without being halved.

        Raises:
            ConvergenceError: The integral is not accurate enough, or a value is undefined.
        """
        logs, error = np.empty_like(eps), np.empty_like(eps)
        for i in range(0, len(eps), EPSILONS_TOGETHER):
            part = slice(i, i + EPSILONS_TOGETHER)
            integral = WishartIntegral(self.dim, self.rank, self.misalignment, eps[part], share)
            with np.errstate(all="ignore"):
                logs[part], missed, leaning = integral.log_delta()
            # panels and Gauss rules (proved) + tables of gains (proved) + 1.5e-15 times an estimate of the steepness
            error[part] = missed + integral.gain.error + THRESHOLD_ROUNDING * leaning
        if not np.all(np.isfinite(logs)):
            raise ConvergenceError("the exact profile is not a number. Please report these parameters as a bug.")
        return logs, error

    def bounds(self, eps: Array) -> tuple[Array, Array]:
        """Return lower and upper bounds of ``ln delta`` for many ``eps``.

        They hold if each ``eps`` has a relative error of up to 1e-15.
        """
        logs, error = self.log_deltas(np.minimum(eps, FARTHEST_EPSILON), TABLE_PANEL_ERROR_SHARE)
        # The margin of widen_outward, with twice its error per nat
        lower, upper = widen_outward_each(
            logs, error + 4e-15 * np.abs(logs), steepness(0.0, self.rank, self.misalignment)
        )
        infinite = widen_outward(log_infinite(self.rank, self.misalignment)).lower
        return np.where(eps > FARTHEST_EPSILON, infinite, lower), upper

    def table(self, eps: Array) -> tuple[Array, Array]:
        """Return lower and upper bounds of delta for many ``eps``."""
        lower, upper = self.bounds(eps)
        return np.where(lower > -690.0, np.exp(np.maximum(lower, -690.0)), 0.0), np.exp(np.maximum(upper, -690.0))

    def guess_epsilon(self, log_delta: float) -> float | None:
        """Return approximately the epsilon at ``log_delta``, or None if interpolation fails."""
        if not log_delta < 0.0:
            return None
        # Near A = 1, L is about (U - a)(1 - A), where U - a is about r - 1 plus or minus sqrt(k), and 1 - A is about s
        m, r = self.misalignment, self.rank
        scale = math.sqrt(m * (2.0 - m) / r * (0.5 * (r + self.dim - 1.0) + r * r) * -2.0 * log_delta)
        guess, goal = scale, math.log(-log_delta)
        # with a relative error of 1e-2 first, and 1e-9 next
        for steps, share in zip((GUESS_LADDER, GUESS_STEPS), (1e-2, 1e-9), strict=True):
            eps = guess * steps
            if not eps[-1] < FARTHEST_EPSILON:
                return None
            depth = -self.log_deltas(eps, share)[0]
            read = depth > 1e-3
            # ln eps is nearly linear in ln ln(1/delta)
            eps, depth = eps[read], np.log(depth[read])
            if len(eps) < GUESS_POINTS or not depth[0] < goal < depth[-1]:
                return None
            near = min(max(0, int(np.searchsorted(depth, goal)) - GUESS_POINTS // 2), len(eps) - GUESS_POINTS)
            near = slice(near, near + GUESS_POINTS)
            # the polynomial through these points at goal, by Neville's algorithm
            x, y = depth[near], np.log(eps[near])
            for step in range(1, len(x)):
                y = ((goal - x[:-step]) * y[1:] - (goal - x[step:]) * y[:-1]) / (x[step:] - x[:-step])
            guess = math.exp(float(y[0]))
        return guess
