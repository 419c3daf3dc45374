"""Bound the privacy curve of a run by the Renyi moments of its loss, also at extremely small deltas (C23, "Moments").

The moment of order ``theta`` of one release is ``E e^(theta loss)``. It is an integral of the privacy profile of the
release, so upper bounds of the profile at some epsilons give an upper bound of the moment. Moments of releases
multiply, and Chernoff's bound converts the moment of a run to delta.

Every ``theta`` gives a valid bound. All ``theta`` are taken from a fixed geometric grid, so that ``log_delta`` and
``epsilon`` minimize over the same bounds and are exact inverses of each other (C24).
"""

# For one release in one direction let ``W = dP/dQ`` be the likelihood ratio, and ``E(t) = delta(t) - max(0, 1 - t)``
# the excess at ``t = e^eps``. From ``u^theta = theta (theta + 1) int_0^inf t^(theta - 1) (1 - t/u)_+ dt`` its moment of
# order ``theta`` is, for every ``theta > 0``,
#
#     M(theta) = E_P W^theta = 1 + theta (theta + 1) int_0^inf t^(theta - 1) E(t) dt.
#
# The integrand is positive, so an upper bound of ``E`` gives an upper bound of ``M``. The excess is evaluated at knots.
# Between two knots it is bounded by its chord in ``t``. The mass beyond the last knot counts as infinite loss, with the
# ``P``-mass ``m`` equal to the value of ``E`` at the last knot. Phase ``i`` of a run has ``T_i`` releases with the
# moments ``M_i`` and the masses ``m_i``. Moments of releases multiply, and by Chernoff's bound (as in
# :meth:`privproj.composition.fourier.FourierComposition.log_chernoff_bound`)
#
#     delta(eps) <= e^(sum T_i ln M_i - theta eps - ln(1 + theta) - theta ln(1 + 1/theta)) + sum T_i m_i.

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from privproj.composition.dominating_pairs import LARGEST_LOSS, UNIT_ROUNDING, needs_both_directions
from privproj.numerics.arrays import Array
from privproj.numerics.interval import log1m_exp, next_up
from privproj.numerics.root_finding import minimize_integer
from privproj.numerics.special import log_add
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.run import Run

ORDERS_SPACING = 0.01  # soundness: spacing of ln theta on the grid of orders; it must not change between queries
ORDERS_RANGE = (-3000, 3000)  # first and last index of the grid of orders, from 1e-13 to 1e13
# soundness: relative error of M - 1, a sum of at most 1e4 terms of fifty roundings each, some after a cancellation of
# 1e3. Errors proportional to an exponent are added separately.
MOMENT_RELATIVE_ERROR = 1e-9
LEAST_RELATIVE_GAP = 1e-6  # soundness: least distance of two knots over the loss; it is then accurate to 1e-9
OUTWARD = 1.0 + 1e-12  # soundness: moves losses away from 0 by more than the rounding of e^(eps + ln q), 1e3 units
SERIES_BELOW = 0.5  # soundness: weights of a chord below this are series of 12 terms, accurate to 1e-15


@dataclass(frozen=True)
class _Excess:
    """Upper bounds of delta minus ``max(0, 1 - e^eps)`` of one release, at increasing epsilons.

    The bounds are for one direction (add or remove).
    """

    losses: Array
    logs: Array  # upper bounds of ``ln E`` at these losses, increasing up to the loss 0 and decreasing beyond it

    def mirrored(self) -> "_Excess":
        """Return the same bounds for the opposite direction (add or remove)."""
        # If E(t) is the bound of this direction, the bound of the other one at 1/t is E(t) / t (C1).
        # ln E'(t) at the loss x is x + ln E at the loss -x; x is off by a few roundings.
        logs = (self.logs - self.losses) + 4.0 * UNIT_ROUNDING * (np.abs(self.losses) + np.abs(self.logs))
        return _Excess(-self.losses[::-1], logs[::-1])

    @staticmethod
    def of(losses: Array, logs: Array) -> "_Excess":
        """Return the bounds ``logs`` at the epsilons ``losses``, made monotone on both sides of 0."""
        # The exact excess is monotone on both sides of 0. Chords between any knots are valid, but the width of a very
        # short chord would lose all its digits.
        distinct = np.concatenate([[True], np.diff(losses) > LEAST_RELATIVE_GAP * np.abs(losses[1:])])
        losses, logs = losses[distinct], logs[distinct]
        zero = int(np.searchsorted(losses, 0.0))
        right, left = np.minimum.accumulate(logs[zero:]), np.minimum.accumulate(logs[: zero + 1][::-1])[::-1]
        return _Excess(losses, np.concatenate([left[:-1], right]))

    def log_moment(self, theta: float) -> float:
        """Return an upper bound of ``ln E e^(theta loss)``, without infinite losses."""
        x, logs = self.losses, self.logs
        gap, right = np.diff(x), x[1:] > 0.0
        # The chord in t from a to b is E_a (1 - s) + E_b s, s = expm1(x - a) / expm1(b - a). With r = (x - a) / (b - a)
        # and k = (b - a) / expm1(b - a), k r <= s <= r. So E <= E_a (1 - r) + E_b' r, where E_b' = E_a (1 - k) + E_b k
        # if E decreases, and E_b' = E_b if it increases.
        share = np.where(right, np.minimum(gap, 700.0) / np.expm1(np.minimum(gap, 700.0)), 1.0)
        top = np.maximum(logs[:-1], logs[1:])
        first = np.exp(logs[:-1] - top)
        last = (1.0 - share) * first + share * np.exp(logs[1:] - top)
        # int_a^b e^(theta x) ((1 - r) E_a + r E_b') dx = (b - a) e^(theta a) (E_a A + E_b' B), at y = theta (b - a)
        log_a, log_b = _chord_weights(theta * gap)
        larger = np.maximum(log_a, log_b)
        area = np.log(first * np.exp(log_a - larger) + last * np.exp(log_b - larger)) + larger
        terms = np.log(gap) + theta * x[:-1] + top + area
        # Left of the first knot E <= E_0 t / t_0: e^(theta x_0) E_0 / (theta + 1).
        terms = np.append(terms, theta * x[0] + logs[0] - math.log1p(theta))
        sizes = np.append(theta * (np.abs(x[:-1]) + gap) + np.abs(top), theta * abs(x[0]) + abs(logs[0]))
        terms += 16.0 * UNIT_ROUNDING * (sizes + 50.0)
        most = float(np.max(terms))
        total = most + math.log(float(np.sum(np.exp(terms - most)))) + math.log(theta) + math.log1p(theta)
        return log_add(0.0, total + MOMENT_RELATIVE_ERROR)


def _chord_weights(y: Array) -> tuple[Array, Array]:
    """Return ``ln int_0^1 e^(y r) (1 - r) dr`` and ``ln int_0^1 e^(y r) r dr``."""
    # A = (e^y - 1 - y) / y^2 = sum_k y^k / (k + 2)!,  B = (e^y (y - 1) + 1) / y^2 = sum_k y^k (k + 1) / (k + 2)!
    small, large = np.minimum(y, SERIES_BELOW), np.maximum(y, SERIES_BELOW)
    series = [1.0 / math.factorial(k + 2) for k in range(12)]
    a = np.polyval(series[::-1], small)
    b = np.polyval([(k + 1) * c for k, c in enumerate(series)][::-1], small)
    fall = np.exp(-large)
    log_a = large + np.log1p(-(1.0 + large) * fall) - 2.0 * np.log(large)
    log_b = large + np.log(large - 1.0 + fall) - 2.0 * np.log(large)
    return np.where(y < SERIES_BELOW, np.log(a), log_a), np.where(y < SERIES_BELOW, np.log(b), log_b)


class MomentCurve:
    """The privacy curve of a run by bounds on the moments ``E e^(theta loss)`` (C23).

    The curve is valid if the profiles are valid.

    Args:
        phases: The profile of one release of each phase, and its run.
        log_least: The log of the delta at which tails are truncated. Any value gives a valid bound.
        spacing: The distance of the losses at which profiles are evaluated, relative to the default. Any value gives a
            valid bound.
    """

    def __init__(self, phases: list[tuple[PrivacyProfile, Run]], log_least: float, spacing: float = 1.0) -> None:
        excesses = [_excess_of(profile, run, log_least - math.log(run.steps), spacing) for profile, run in phases]
        self.steps = [run.steps for _, run in phases]
        is_symmetric = not any(needs_both_directions(*phase) for phase in phases)
        self.directions = [excesses] if is_symmetric else [excesses, [excess.mirrored() for excess in excesses]]
        self.log_moment = lru_cache(maxsize=None)(self._log_moment)
        # ln sum_i T_i m_i
        tails = [[float(e.logs[-1]) + math.log(t) for e, t in zip(d, self.steps, strict=True)] for d in self.directions]
        self.infinite = [max(direction) + math.log(len(direction)) + 1e-12 for direction in tails]

    def _log_moment(self, direction: int, index: int) -> float:
        """Return an upper bound of ``ln E e^(theta loss)`` of the run in the add or remove direction.

        ``index`` is the index of ``theta`` on the grid of moment orders.
        """
        theta = math.exp(index * ORDERS_SPACING)
        parts = [t * excess.log_moment(theta) for excess, t in zip(self.directions[direction], self.steps, strict=True)]
        return math.fsum(parts) * (1.0 + 1e-14)

    def log_delta_above(self, eps: float) -> float:
        """Return an upper bound of ``ln delta(eps)``, at most 0; ``eps`` is in nats."""

        def bound(direction: int) -> float:
            def line(index: int) -> float:
                # sum T_i ln M_i - theta eps - ln(1 + theta) - theta ln(1 + 1/theta)
                theta = math.exp(index * ORDERS_SPACING)
                moment, cost = self.log_moment(direction, index), _cost(theta)
                return moment - theta * eps - cost + 8.0 * UNIT_ROUNDING * (moment + theta * eps + cost)

            return min(0.0, log_add(minimize_integer(line, *ORDERS_RANGE), self.infinite[direction]) + 1e-14)

        return max(map(bound, range(len(self.directions))))

    def epsilon_above(self, log_delta: float) -> float:
        """Return an upper bound of ``eps(delta)`` in nats.

        It is ``inf`` if the mass of the losses that count as infinite is at least delta.
        """
        return max(self._epsilon(direction, log_delta) for direction in range(len(self.directions)))

    def _epsilon(self, direction: int, log_delta: float) -> float:
        """Return an upper bound of ``eps(delta)`` in nats for one direction (remove or add)."""
        share = self.infinite[direction] - log_delta + 1e-14 * (1.0 - log_delta)
        if share >= 0.0:
            return math.inf
        # ln(delta - sum T_i m_i), rounded down
        goal = log_delta + log1m_exp(share) - 1e-14 * (1.0 - log_delta)

        def line(index: int) -> float:
            # (sum T_i ln M_i - ln(1 + theta) - theta ln(1 + 1/theta) - ln(delta - sum T_i m_i)) / theta
            theta = math.exp(index * ORDERS_SPACING)
            moment, cost = self.log_moment(direction, index), _cost(theta)
            return (moment - cost - goal + 16.0 * UNIT_ROUNDING * (moment + cost - goal)) / theta

        return next_up(max(0.0, minimize_integer(line, *ORDERS_RANGE)))


def _cost(theta: float) -> float:
    """Return ``ln(1 + theta) + theta ln(1 + 1/theta)``, a term of Chernoff's bound of delta."""
    return math.log1p(theta) + theta * math.log1p(1.0 / theta)


def _excess_of(profile: PrivacyProfile, run: Run, log_least: float, spacing: float) -> _Excess:
    """Return upper bounds of delta minus ``max(0, 1 - e^eps)`` for one sampled release.

    They are for the remove direction.

    Args:
        profile: The profile of the release.
        run: The sampling of the batches.
        log_least: The log of the delta at which tails are truncated.
        spacing: The distance of the epsilons at which the profile is evaluated, relative to the default.
    """
    eps, right, left = _knots(profile, log_least - math.log(run.sampling_rate), spacing)
    q = run.sampling_rate
    # Sampling maps t to 1 + q (t - 1) and E to q E (C17), at t = e^eps on the right and e^-eps on the left: losses are
    # ln(1 + q (e^eps - 1)) and ln(1 + q (e^-eps - 1)). E decreases away from the loss 0, so losses are moved outward.
    y = eps + math.log(q)
    large = np.where(y < 600.0, np.log1p(np.exp(np.minimum(y, 600.0)) - q), y)
    x = np.where(eps < 30.0, np.log1p(q * np.expm1(np.minimum(eps, 30.0))), large) * OUTWARD
    if profile.excess is not None:
        return _Excess.of(np.concatenate([-eps[:0:-1], eps]), np.concatenate([left[:0:-1], right]))
    if needs_both_directions(profile, run):  # E(1/t) = E(t) / t before sampling
        y = np.log1p(q * np.expm1(-eps)) * OUTWARD
        below = right - eps
    else:  # E(1/t) = E(t) / t after it
        y, below = -x, right - x
    below = below + 4.0 * UNIT_ROUNDING * (eps + np.abs(right))
    logs = np.concatenate([below[:0:-1], right]) + math.log(q) + 1e-14
    return _Excess.of(np.concatenate([y[:0:-1], x]), logs)


def _knots(profile: PrivacyProfile, log_least: float, spacing: float) -> tuple[Array, Array, Array]:
    """Return epsilons from 0 on, and the log excess of the release at them and at their negatives.

    The excess is an upper bound of delta minus ``max(0, 1 - e^eps)``, without sampling.
    """
    start = min(0.05 * math.exp(profile.log_delta(0.0).upper), 1.0)
    last = max(4.0 * start, 1e-3)
    # 1e15: largest epsilon, in nats, at which a profile is evaluated
    while last < 1e15 and profile.log_delta(last).upper > log_least:
        last *= 1.5
    rough = np.concatenate([[0.0], np.geomspace(start, last, 2 + math.ceil(5.0 * math.log(last / start)))])
    logs = np.minimum.accumulate(_upper_log_deltas(profile, rough))
    far = int(np.argmax(logs <= max(log_least, logs[-1])))  # a profile can become constant above the least delta
    rough, fall = rough[: far + 1], -np.diff(logs[: far + 1])
    # The spacing of the knots is at most a quarter of the length over which the excess decreases by a factor e. It is
    # larger where the excess is tiny.
    decay = 0.25 + 1.0 / 600.0 * -logs[1 : far + 1]
    # 0.05: spacing of the knots as a share of epsilon
    wanted = np.maximum(np.diff(np.log(np.maximum(rough, 0.5 * start))) / 0.05, fall / decay)
    count = np.concatenate([[0.0], np.cumsum(np.maximum(wanted, 1.0) / spacing)])
    places = np.linspace(0.0, count[-1], 1 + math.ceil(count[-1]))
    eps = np.unique(np.concatenate([rough, np.interp(places, count, rough)]))
    if profile.excess is None:
        right = log_delta_columns(profile, eps)[1]
        return eps, right, right - eps
    # log_delta is the maximum of both directions: E(t) and E(1/t) t are at most that.
    log_deltas = _upper_log_deltas(profile, eps)
    near = np.minimum(eps, LARGEST_LOSS)
    below, above = (np.log(np.maximum(profile.excess(sign * near)[1], 1e-300)) for sign in (-1.0, 1.0))
    return eps, np.minimum(above, log_deltas), np.minimum(below, log_deltas - eps)


def _upper_log_deltas(profile: PrivacyProfile, eps: Array) -> Array:
    """Return upper bounds of ``ln delta`` at ``eps >= 0`` (nats)."""
    if profile.log_deltas is not None:
        return profile.log_deltas(eps)[1]
    return np.array([profile.log_delta(float(e)).upper for e in eps])


def log_delta_columns(profile: PrivacyProfile, eps: Array) -> tuple[Array, Array]:
    """Return lower and upper bounds of ``ln delta`` at these ``eps >= 0`` (nats)."""
    # from the table of the profile where it is accurate, and from single evaluations elsewhere
    lower, upper = np.full((2, len(eps)), -math.inf)
    if profile.table is not None:
        with np.errstate(divide="ignore"):
            lower, upper = (np.log(np.maximum(end, 0.0)) for end in profile.table(eps))
    # 1e-20: least delta from a table; below, single values are tighter
    deep = np.flatnonzero(upper < math.log(1e-20))
    if profile.log_deltas is not None:
        if len(deep):
            lower[deep], upper[deep] = profile.log_deltas(eps[deep])
        return lower, upper
    for i in deep.tolist():
        lower[i], upper[i] = profile.log_delta(float(eps[i]))
    return lower, upper
