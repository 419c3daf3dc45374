"""Bounds of delta of the vector Wishart mechanism for vectors of different norms (C12).

The mechanism releases ``M v`` for a Wishart matrix ``M``. The vectors ``v`` and ``v'`` of two neighboring datasets have
the norm ratio ``kappa = |v|/|v'|``. With ``tau = ln kappa`` and the symbols of
:mod:`privproj.distributions.wishart_loss` the privacy loss is

    L = -d tau + a (tau + ln A) + U (kappa/A - 1),    infinite for A <= 0.

The *gain* ``G_tau(x)`` is the mean of ``max(0, 1 - e^(eps - L))`` given the alignment ratio ``A = e^x``. With ``U ~
Gamma(k)``, ``k = (d + r - 1)/2`` and ``e' = eps + (r-1) tau`` it is

    G_tau(x) = E[(1 - e^(-(e^y - 1)(U - (a y + e')/(e^y - 1))))_+]        x = tau - y, y > 0
    G_tau(x) = E[(1 - e^(-(1 - e^-y)((a y - e')/(1 - e^-y) - U)))_+]      x = tau + y, y > 0

The gain does not depend on the misalignment of ``v`` and ``v'``, which only affects the tails of ``A``. No misalignment
or norm ratio is the worst in general. Three facts give bounds of the largest delta over all misalignments in ``[0, m]``
and all ``|tau| <= log_ratio``:

1. ``G_tau(x)`` decreases in ``x`` up to a minimum and increases from there, so on an interval it is largest at an end.
2. The same holds in ``tau``, with the minimum at ``tau = x``.
3. Over an interval of misalignments, the tails of ``A`` are largest at an end of it or at the cosine ``rho = e^-x``.

The misalignments and the norm ratios are divided into cells. Let ``H(x)`` be the larger of the gains at the two norm
ratios that bound a cell. Every delta in the cell is at most the minimum of ``H`` plus a sum over panels in ``x``: the
increase of ``H`` away from its minimum times the largest tail of ``A``.

Shapes: misalignments are ``(m,)``, ratios ``(t,)``, nodes in ``x`` ``(n,)``, and values of eps ``(e,)``.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from privproj.distributions.gamma_hockey_stick import log_gamma_hockey_stick
from privproj.numerics.arrays import Array
from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, Enclosure
from privproj.profiles.privacy_profile import PrivacyProfile

EPSILONS_TOGETHER = 8  # epsilons of a table that share their nodes

# soundness: relative error allowed to special functions and sums (measured: gains keep seven digits)
UNEQUAL_NORMS_MARGIN = 1e-7

STEEPEST_LOG_DELTA = 1e4  # soundness: largest -d ln delta/d eps that lower bounds allow for (measured)

# soundness: probability that is added to upper bounds, above INVISIBLE_PROBABILITY times a few thousand panels
UNDERFLOW_FLOOR = 1e-270

# soundness: a difference of two incomplete gamma functions keeps nine digits above this share of the first (C12)
LEAST_SHARE_OF_DIFFERENCE = 1e-5

# soundness: probabilities below this are set to 0; UNDERFLOW_FLOOR is larger than all of them
INVISIBLE_PROBABILITY = 1e-280

LOWEST_LOG_ALIGNMENT = -60.0  # least node in x = ln A; the probability below it is added to delta

HIGHEST_LOG_ALIGNMENT = 300.0  # largest node in x = ln A; the probability above it is added to delta


@dataclass(frozen=True)
class UnequalNorms:
    """All pairs of inputs of the vector Wishart mechanism with similar direction and norm (C12).

    * ``dim``, ``rank``: dimension and rank of the mechanism.
    * ``misalignment``: the largest allowed value of one minus the cosine of the two vectors.
    * ``log_ratio``: the largest allowed absolute log of the ratio of their norms, above 0.
    """

    dim: int
    rank: int
    misalignment: float
    log_ratio: float

    def profile(self) -> PrivacyProfile:
        """Return a privacy profile that holds for all allowed pairs of vectors."""
        # More digits would be below the width of an enclosure.
        return PrivacyProfile(
            self.log_delta,
            table=self.table,
            resolution=8.0,
            numerics={"worst_pair": "enclosed"},
            digits=5,
        )

    def log_delta(self, eps: float) -> Enclosure:
        """Return bounds of the largest ``ln delta(eps)`` over all allowed pairs of vectors."""
        lower, upper = (float(end[0]) for end in self.delta_ends(np.array([eps])))
        at_least = max(math.log(lower), LOG_OF_ZERO_FROM_ABOVE) if lower > 0.0 else -math.inf
        return Enclosure(at_least, min(0.0, math.log(upper)))

    def table(self, eps: Array) -> tuple[Array, Array]:
        """Return bounds of the largest delta over all allowed pairs, for many ``eps``."""
        order = np.argsort(eps)
        lower, upper = np.zeros(len(eps)), np.ones(len(eps))
        for begin in range(0, len(eps), EPSILONS_TOGETHER):
            chosen = order[begin : begin + EPSILONS_TOGETHER]
            lower[chosen], upper[chosen] = self.delta_ends(eps[chosen])
        return lower, upper

    def delta_ends(self, eps: Array) -> tuple[Array, Array]:
        """Return bounds of the largest delta over all allowed pairs, with margins for rounding.

        The bounds allow for a few rounding errors of each ``eps``.
        """
        # eps is lowered by a few rounding errors of eps + r R, and the ends move outward by 1e-7 (C12, as evaluated).
        shift = 4e-15 * (eps + self.rank * self.log_ratio)
        # max of G(0) at tau = ln kappa and tau = -ln kappa: parallel vectors, and all pairs in one dimension (C12)
        ends = np.array([-self.log_ratio, self.log_ratio])
        with np.errstate(all="ignore"):
            lower = upper = self.gains(ends, np.zeros(1), eps - shift).max(axis=(0, 1))
            if self.dim > 1 and self.misalignment > 0.0:
                at_nodes, upper = self.search(eps - shift)
                lower = np.maximum(lower, at_nodes)
        # nan means that nothing is known
        lower, upper = np.nan_to_num(lower, nan=0.0), np.nan_to_num(upper, nan=1.0)
        return (
            np.maximum(lower * (1.0 - UNEQUAL_NORMS_MARGIN - STEEPEST_LOG_DELTA * shift) - UNDERFLOW_FLOOR, 0.0),
            np.minimum(upper * (1.0 + UNEQUAL_NORMS_MARGIN) + UNDERFLOW_FLOOR, 1.0),
        )

    def search(self, eps: Array) -> tuple[Array, Array]:
        """Return bounds of the largest delta at each ``eps``, without a margin for rounding."""
        # an adaptive grid of ln A; every grid gives valid bounds
        scale = min(math.sqrt(self.misalignment / self.rank), 1.0 / math.sqrt(self.rank + self.dim), self.log_ratio)
        out = np.geomspace(1e-3 * scale, HIGHEST_LOG_ALIGNMENT, 150)
        x = np.concatenate([-out[out < -LOWEST_LOG_ALIGNMENT][::-1], out])
        lower, upper, cost = self.bounds(x, eps)
        for _ in range(13):
            if cost.sum() < 0.025 * len(eps):
                break
            # For a given number of panels the error is least if the roots of their costs are equal.
            along = np.append(0.0, np.cumsum(np.sqrt(cost) + 0.1 * np.sqrt(cost).mean() + 1e-300))
            x = np.unique(np.append(x, np.interp(np.linspace(0.0, along[-1], 800), along, x)))
            lower, upper, cost = self.bounds(x, eps)
        return lower, upper

    def bounds(self, x: Array, eps: Array) -> tuple[Array, Array, Array]:
        """Return bounds of the largest delta over all allowed pairs, from sums over a grid.

        ``x`` is the grid of ``ln A`` (module docstring). The bounds have no margin for rounding.

        Returns:
            * a lower bound for each eps;
            * an upper bound for each eps;
            * for each interval of the grid, the relative error that it may add to the upper bound, summed over ``eps``.
        """
        # ends of cells of ratios and of misalignments, as shares of the largest
        ratios = self.log_ratio * np.array([-1.0, -0.95, -0.75, -0.4, 0.0, 0.4, 0.75, 0.95, 1.0])
        shares = np.array([4.0**-6, 4.0**-5, 4.0**-4, 4.0**-3, 4.0**-2, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97, 1.0])
        m = np.append(0.0, self.misalignment * shares)
        gains, node = self.gains(ratios, x, eps), np.arange(len(x))[:, None]
        # The larger gain of both ends of a cell of ratios, and the largest so far from its valley outward (C12, step 3)
        both = np.maximum(gains[1:], gains[:-1])
        valley, least = both.argmin(axis=1)[:, None], both.min(axis=1)[:, None]
        left = np.maximum.accumulate(np.where(node <= valley, both, least)[:, ::-1], axis=1)[:, ::-1]
        right = np.maximum.accumulate(np.where(node >= valley, both, least), axis=1)
        falls, rises = -np.diff(left, axis=1), np.diff(right, axis=1)
        # The largest tails over a cell of misalignments (C12, step 2)
        below, above = self.tails(m[1:, None], x)
        most_below = np.maximum(below, np.vstack([x > 0.0, below[:-1]]))
        most_above = self.tails(np.clip(-np.expm1(-x), m[:-1, None], m[1:, None]), x)[1]
        # M(valley) + sum of falls P_< + sum of rises P_>, and 1 - M of the outermost nodes times the tails beyond
        upper = least[:, 0] + _sum_over_panels(most_below[:, 1:], falls) + _sum_over_panels(most_above[:, :-1], rises)
        upper = upper + most_below[:, :1, None] * (1.0 - left[:, 0]) + most_above[:, -1:, None] * (1.0 - right[:, -1])
        highest = upper.max(axis=(0, 1))
        falling, rising = np.diff(most_below).max(axis=0), -np.diff(most_above).min(axis=0)
        cost = np.maximum(falling[:, None] * falls.max(axis=0), rising[:, None] * rises.max(axis=0))
        # Omit the panels next to the minimum of the gain. Over the others, the sum of the fall or rise of the gain
        # times a tail is a lower bound of the delta of a pair (C12, step 4).
        valley, change = gains.argmin(axis=1)[:, None], np.diff(gains, axis=1)
        falls, rises = np.where(node[1:] < valley, -change, 0.0), np.where(node[:-1] > valley, change, 0.0)
        never = self.tails(m[1:, None], np.array([-np.inf]))[0][..., None] * (1.0 - gains[:, 0])
        lower = never + _sum_over_panels(below[:, :-1], falls) + _sum_over_panels(above[:, 1:], rises)
        return lower.max(axis=(0, 1)), highest, (np.maximum(cost, 0.0) / (highest + UNDERFLOW_FLOOR)).sum(axis=1)

    def gains(self, ratios: Array, x: Array, eps: Array) -> Array:
        """Return hockey-stick divergences given the alignment ratio, of shape ``(t, n, e)``.

        Args:
            ratios: Logs of the ratio of norms, of shape ``(t,)``.
            x: Logs of the alignment ratio, a random variable in the privacy loss, of shape ``(n,)``.
            eps: Epsilons in nats, of shape ``(e,)``.
        """
        gains = np.empty((len(ratios), len(x), len(eps)))
        for i, tau in enumerate(ratios.tolist()):
            start, at = eps + (self.rank - 1.0) * tau, int(np.searchsorted(x, tau))
            gains[i, :at] = self.gains_at(tau - x[:at], start, 1.0)
            gains[i, at:] = self.gains_at(x[at:] - tau, start, -1.0)
            gains[i, x == tau] = -np.expm1(np.minimum(start, 0.0))
        return gains

    def gains_at(self, y: Array, start: Array, side: float) -> Array:
        """Return hockey-stick divergences given the alignment ratio, of shape ``(n, e)``.

        Args:
            y: Distances of the log norm ratio and the log alignment ratio, above 0, of shape ``(n,)``.
            start: Epsilon plus ``rank - 1`` times the log norm ratio, of shape ``(e,)``.
            side: 1 if the alignment ratio is below the norm ratio, -1 above.
        """
        k, a, c = 0.5 * (self.rank + self.dim - 1.0), 0.5 * (self.dim + 1.0 - self.rank), self.rank - 1.0
        tail, y = special.gammaincc if side > 0.0 else special.gammainc, y[:, None]
        # Q(k, b) - e^(e' - (r-1) y) Q(k, b e^y),   b = (a y + e')/(e^y - 1) cut at 0, before tau (C12)
        # P(k, b) - e^(e' + (r-1) y) P(k, b e^-y),  b = (a y - e')/(1 - e^-y) cut at 0, beyond
        rate = side * np.expm1(side * y)
        place = (a * y + side * start) / rate
        b = np.maximum(place, 0.0)
        first, second, exponent = tail(k, b), tail(k, b * np.exp(side * y)), start - side * c * y
        # INVISIBLE_PROBABILITY times e^700 exceeds 1, so no larger exponent is needed.
        value = first - np.exp(np.minimum(exponent, 700.0)) * second
        # if the second underflows, the exponential would undo that
        lost = (second < INVISIBLE_PROBABILITY) & (exponent > 0.0)
        weak = (first > INVISIBLE_PROBABILITY) & (lost | ~(value > LEAST_SHARE_OF_DIFFERENCE * first))
        # smaller divergences are set to 0
        value = np.where(first > INVISIBLE_PROBABILITY, value, 0.0)
        if np.any(weak):
            rate = np.broadcast_to(rate, place.shape)
            value[weak] = np.exp(log_gamma_hockey_stick(k, rate[weak], place[weak], side))
        return np.clip(value, 0.0, 1.0)

    def tails(self, m: Array, x: Array) -> tuple[Array, Array]:
        """Return the probabilities that the alignment ratio is below and above ``e^x``, at misalignments ``m``.

        The alignment ratio is a random variable in the privacy loss. ``x`` may be ``-inf``.
        """
        # I_q(r/2, 1/2)/2 on the far side, q = s^2/(s^2 + z^2), z = e^x - rho, s^2 = 1 - rho^2 = m (2 - m) (C12)
        z, square = np.expm1(x) + m, m * (2.0 - m)
        half = 0.5 * special.betainc(0.5 * self.rank, 0.5, np.where(z == 0.0, 1.0, square / (square + z * z)))
        return np.where(z < 0.0, half, 1.0 - half), np.where(z < 0.0, 1.0 - half, half)


def _sum_over_panels(tails: Array, parts: Array) -> Array:
    """Return the sum of ``tails`` times ``parts`` over the ``n`` intervals of a grid.

    ``tails`` has the shape ``(m, n)``, ``parts`` has the shape ``(t, n, e)``, and the sum has the shape ``(m, t, e)``.
    """
    # Set invisible probabilities to 0, because arithmetic with denormal numbers is slow.
    tails, parts = (np.where(part < INVISIBLE_PROBABILITY, 0.0, part) for part in (tails, parts))
    return np.einsum("mn,tne->mte", tails, parts)
