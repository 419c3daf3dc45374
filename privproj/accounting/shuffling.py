"""Compute lower bounds of epsilon and delta for shuffled batches of fixed size (C27).

The lower bounds follow from one attack on one pair of neighboring datasets. In each of ``E`` epochs the data are
shuffled and split into ``t`` batches. All gradients have the clipping norm as their norm. The gradients of one record
and of all other records have opposite directions. So the adversary knows the sum of a batch without this record up to
the noise.

This record shifts the sum of its batch by ``a R`` standard deviations of the noise, and by ``b R`` in the neighboring
dataset. Here ``(a, b)`` is ``(2, 1)`` under zero-out and ``(1, 0)`` under replace, and ``R`` is the ratio of
sensitivity to noise in the direction of the gradients. For Gaussian noise ``R`` is one over the noise multiplier. For
an observed projection ``R`` is random, but known to the adversary.

The adversary marks a batch if the observed shift of its sum, in standard deviations of the noise, exceeds
``w/R + (a+b) R/2``, where ``w`` is a threshold for the log likelihood ratio. An epoch is marked if one of its batches
is marked. The probability of this is ``A`` with the record and ``B`` in the neighboring dataset:

    A = 1 - (1 - M[Q(w/R - R/2)]) (1 - M[Q(w/R + (a+b) R/2)])^(t-1),
    B = 1 - (1 - M[Q(w/R + R/2)]) (1 - M[Q(w/R + (a+b) R/2)])^(t-1).

``Q`` is the upper tail of the normal distribution, and ``M`` the mean over ``R``. The adversary decides for the record
if at least ``k`` epochs are marked. So for every ``w >= 0`` and ``k``

    delta(eps) >= P[Bin(E, A) >= k] - e^eps P[Bin(E, B) >= k].
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from privproj.composition.truncated_poisson import LEAST_RATE, log_binomial_tail
from privproj.distributions.squared_sensitivity import ScaledBeta
from privproj.mechanisms import M2, Gaussian, Mechanism
from privproj.numerics.interval import (
    NEXT_UP_RELATIVE_STEP,
    Enclosure,
    log1m_exp,
    log_difference,
    next_up,
    widen_outward,
)
from privproj.numerics.root_finding import minimize
from privproj.numerics.special import log_add, log_normal_density, mills
from privproj.sampling import NeighboringRelation

if TYPE_CHECKING:
    from privproj.accounting.phase import Phase

LOWER_MARGIN = 1e-9  # soundness: relative, far above the rounding of the few operations

# soundness: least difference of the logs of two probabilities that are subtracted, so that their difference has digits
LEAST_GAP = 1e-3

# numbers of epochs ``k`` that are tried, in standard deviations from their mean; every number is sound
COUNTS = (-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0, 6.0)

CELLS = 24  # cells per standard deviation of a random shift; every number of cells is sound


class _ShiftCell(NamedTuple):
    """An interval of the ratio of sensitivity to noise, with log bounds of its probability."""

    low: float
    high: float
    log_least: float
    log_most: float


def fixed_shift(noise_multiplier: float) -> tuple[_ShiftCell, ...]:
    """Return the ratio of sensitivity to noise for Gaussian noise, as a one-point distribution."""
    return (_ShiftCell(1.0 / noise_multiplier, 1.0 / noise_multiplier, 0.0, 0.0),)


def random_shift(distribution: ScaledBeta) -> tuple[_ShiftCell, ...]:
    """Return the distribution of the ratio of sensitivity to noise for an observed projection.

    ``distribution`` is the distribution of the squared ratio.
    """
    # The adversary observes the projection, and each batch has a fresh one.
    # first and last cell, in standard deviations from the middle
    first, last = -5, 8
    places = [
        distribution.value(distribution.start + distribution.step * i / CELLS)
        for i in range(first * CELLS, last * CELLS + 1)
    ]
    places = [0.0, *(x for x in dict.fromkeys(places) if 0.0 < x < distribution.supremum), distribution.supremum]
    tails = [Enclosure(0.0, 0.0), *(widen_outward(distribution.log_tail(x)) for x in places[1:-1])]
    tails.append(Enclosure(-math.inf, -math.inf))
    return tuple(
        _ShiftCell(math.sqrt(x), math.sqrt(y), log_difference(here.lower, after.upper),
                  log_difference(here.upper, after.lower))
        for x, y, here, after in zip(places, places[1:], tails, tails[1:], strict=False)
    )  # fmt: skip


@dataclass(frozen=True)
class ShuffledEpochs:
    """Lower bounds of epsilon and delta for epochs of shuffled batches (C27)."""

    cells: tuple[_ShiftCell, ...]  # distribution of ``R``, the sensitivity of a unit direction over the noise

    batches: int  # ``t``, the number of batches of an epoch, at least 1

    epochs: int  # ``E``, the number of epochs, at least 1

    relation: NeighboringRelation  # zero-out or replace

    def epsilon_at_least(self, log_delta: float) -> float:
        """Return a lower bound of epsilon at a given log of delta, rounded down; 0 if unknown."""

        # eps >= ln[(P[Bin(E, A) >= k] - delta) / P[Bin(E, B) >= k]]
        def value(right: float, wrong: float) -> float:
            return log_difference(right, log_delta, LEAST_GAP) - wrong

        root = self.cells[-1].low
        eps = self._best(value, 0.5 * root * root + root * math.sqrt(-2.0 * log_delta))
        return max(0.0, eps - LOWER_MARGIN * (1.0 + abs(eps))) if eps > -math.inf else 0.0

    def log_delta_at_least(self, eps: float) -> float:
        """Return a lower bound of the log of delta at ``eps``, rounded down; ``-inf`` if unknown."""

        # delta >= P[Bin(E, A) >= k] - e^eps P[Bin(E, B) >= k]
        def value(right: float, wrong: float) -> float:
            return log_difference(right, eps + wrong + 1e-15 * (eps + abs(wrong)), LEAST_GAP)

        log_delta = self._best(value, eps)
        return log_delta - LOWER_MARGIN * (1.0 + abs(log_delta)) if log_delta > -math.inf else log_delta

    def _best(self, value: Callable[[float, float], float], reach: float) -> float:
        """Return the largest ``value`` of the attack over several of its thresholds.

        ``value`` is a function of the two log-probabilities of :meth:`_log_tails`. The largest threshold increases with
        ``reach``.
        """
        last = reach + math.log(self.batches) + min(1.0, self.cells[-1].low)

        def loss(x: float) -> float:
            return -max(value(*ends) for ends in self._log_tails((x - 1.0) * last))

        cheap = self.epochs == len(self.cells) == 1
        # Scan fewer thresholds w if each takes longer; every threshold is sound.
        return -minimize(loss, 1.0, 2.0, rtol=1e-7 if cheap else 1e-4, points=240 if cheap else 60)[1]

    def _log_tails(self, w: float) -> Iterator[tuple[float, float]]:
        """Yield pairs of log-probabilities that the attack detects the record in at least ``k`` epochs.

        There is a pair for each of several ``k``. The first entry is for the dataset with the record, rounded down. The
        second is for the neighboring dataset, rounded up. ``w`` is a threshold for the log likelihood ratio.
        """
        right, wrong = self.log_looks_so(w)
        if self.epochs == 1:
            yield right, wrong
            return
        seen, likely = self.epochs, math.exp(right) * (1.0 - NEXT_UP_RELATIVE_STEP)
        unlikely = max(LEAST_RATE, min(1.0, next_up(math.exp(wrong))))
        spread = math.sqrt(seen * likely * -math.expm1(right)) + 1.0
        for k in sorted({min(seen, max(1, round(seen * likely + s * spread))) for s in COUNTS}):
            # P[Bin(E, A) >= k] = 1 - P[Bin(E, 1 - A) >= E - k + 1]; use the expression that has a lower end.
            above = log_binomial_tail(seen, likely, k).lower
            fewer = log_binomial_tail(seen, min(1.0, next_up(1.0 - likely)), seen - k + 1).upper
            yield max(above, log1m_exp(fewer)), log_binomial_tail(seen, unlikely, k).upper

    def log_looks_so(self, w: float) -> tuple[float, float]:
        """Return log-probabilities that the attack detects the record in an epoch.

        The first is for the dataset with the record, rounded down. The second is for its neighbor, rounded up. ``w >=
        0`` is a threshold for the log likelihood ratio.
        """
        # (a + b)/2 for (a, b) = (1, 0) or (2, 1)
        mean = 0.5 if self.relation is NeighboringRelation.REPLACE else 1.5
        hit, missed = self._log_tail_at_least(w, -0.5), self._log_tail_at_most(w, 0.5)
        if self.batches == 1:
            return hit, missed
        least, most = self._log_tail_at_least(w, mean), self._log_tail_at_most(w, mean)
        # 1 - (1 - p) (1 - p')^(t-1) = 1 - e^-L,  L = -ln(1 - p) - (t-1) ln(1 - p')
        log_others = math.log(self.batches - 1.0)
        right = log_add(_log_odds_against(hit), log_others + _log_odds_against(least))
        wrong = log_add(_log_odds_against(missed), log_others + _log_odds_against(most))
        return widen_outward(_log_any(right), 1e-13).lower, widen_outward(_log_any(wrong), 1e-13).upper

    def _log_tail_at_least(self, w: float, slope: float) -> float:
        """Return the log-probability that the sum of a batch exceeds a threshold, rounded down.

        The threshold is ``w/R + slope R`` standard deviations above the mean, for the ratio ``R`` of sensitivity to
        noise.
        """
        # ln E[Q(w/R + s R)] with the slope s.
        # w/R + s R decreases for s < 0. For s > 0 it decreases, then increases. So it is largest at an end of a cell.
        logs = []
        for low, high, log_least, _ in self.cells:
            if low > 0.0 and high < math.inf:
                ends = (low,) if slope < 0.0 else (low, high)
                logs.append(log_least + min(_log_tail(w, slope, root).lower for root in ends))
        return _log_sum(logs) - 1e-12

    def _log_tail_at_most(self, w: float, slope: float) -> float:
        """Return the log-probability that the sum of a batch exceeds a threshold, rounded up.

        The threshold is ``w/R + slope R`` standard deviations above the mean, for the ratio ``R`` of sensitivity to
        noise. ``slope`` must be positive.
        """
        # ln E[Q(w/R + s R)] with the slope s.
        # w/R + s R is least at R = sqrt(w/s).
        least = math.sqrt(w / slope)
        logs = [
            log_most + _log_tail(w, slope, min(max(least, low), high)).upper for low, high, _, log_most in self.cells
        ]
        return min(0.0, _log_sum(logs) + 1e-12)


def _log_tail(w: float, slope: float, root: float) -> Enclosure:
    """Return an enclosure of the log of the normal upper tail at ``w/root + slope root``."""
    if root <= 0.0:
        return Enclosure(-math.inf, math.log(0.5))
    x, size = w / root + slope * root, w / root + abs(slope) * root
    if x > 1e150:
        return Enclosure(-math.inf, -1e290)
    log_tail = log_normal_density(abs(x)) + math.log(mills(abs(x)))
    # Both terms of x have a few rounding errors, which the tail amplifies by a factor of about |x| + 1.
    return widen_outward(log_tail if x >= 0.0 else math.log1p(-math.exp(log_tail)), 0.0, 4.0 * (abs(x) + 1.0) * size)


def _log_sum(logs: list[float]) -> float:
    top = max(logs, default=-math.inf)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(x - top) for x in logs))


def _log_odds_against(log_probability: float) -> float:
    """Return ``ln(-ln(1 - p))`` from ``ln p``, for a probability ``p``."""
    if log_probability >= 0.0:
        return math.inf
    return log_probability if log_probability < -35.0 else math.log(-log1m_exp(log_probability))


def _log_any(log_spent: float) -> float:
    """Return ``ln(1 - e^-x)`` from ``ln x``."""
    if log_spent < -35.0:
        return log_spent
    return 0.0 if log_spent > 7.0 else math.log(-math.expm1(-math.exp(log_spent)))


def least_of(phase: "Phase", goal: float, *, of_delta: bool) -> float:
    """Return a lower bound of ``ln delta`` or epsilon for shuffled batches (C27).

    ``goal`` is an epsilon if ``of_delta`` is True, and otherwise the decimal logarithm of a delta. The result is
    ``-inf`` if no bound is known.
    """
    run, cells = phase.run, _shift_of(phase.mechanism)
    if cells is None or run.batches is None or run.relation is None:
        return -math.inf
    return _read(ShuffledEpochs(cells, run.batches, run.steps, run.relation), goal, of_delta=of_delta)


# cached, because all bounds of a mechanism share it
@lru_cache(maxsize=64)
def _read(distribution: ShuffledEpochs, goal: float, *, of_delta: bool) -> float:
    return distribution.log_delta_at_least(goal) if of_delta else distribution.epsilon_at_least(goal * math.log(10.0))


def _shift_of(mechanism: Mechanism) -> tuple[_ShiftCell, ...] | None:
    """Return the distribution of a mechanism's ratio of sensitivity to noise.

    The result is None if the lower bound for shuffled batches does not cover the mechanism (C27).
    """
    if getattr(mechanism, "fixed_projection", False) or mechanism.noise_multiplier is None:
        return None
    if isinstance(mechanism, Gaussian) or (isinstance(mechanism, M2) and mechanism.unprojected):
        return fixed_shift(mechanism.noise_multiplier)
    if isinstance(mechanism, M2) and not mechanism.alike.layers:
        # X = mu^2 Beta(r/2, (d-r)/2) (C7). The count of adaptive clipping is ignored, which only decreases the bound.
        return random_shift(ScaledBeta(*mechanism.alike.beta_shape, mechanism.mu**2))
    return None
