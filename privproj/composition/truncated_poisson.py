"""Poisson batches that are cut at a largest size: the probability of a cut is added to delta (C26).

Let a phase have ``T`` releases on batches at the rate ``q``, cut at ``B`` records, and let there be ``n`` records
besides the ``K`` of the person who is protected. As long as no batch has more than ``B - K`` of these ``n``, neither
neighbour's batch is cut, whatever becomes of the person. So

    delta(eps) <= delta_0(eps) + P(cut),   P(cut) <= sum over phases of T P[Bin(n, q) > B - K],

with ``delta_0`` the bound of the run whose batches are not cut. There is no factor ``e^eps``, since whether the others
fill a batch has one law under both neighbours.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, reduce

from privproj.numerics.interval import Enclosure, LateEnclosure, log_difference
from privproj.numerics.root_finding import largest_integer
from privproj.numerics.special import log_add, log_beta_tail
from privproj.profiles.conversion import digits_of, leads_with_epsilon
from privproj.profiles.privacy_profile import Curve, log_delta_unless
from privproj.run import Run
from privproj.sampling import NeighbouringRelation

HARMLESS_SHARE = 0.01
"""The largest share of delta that a harmless cap takes. Contract."""

TAIL_RELATIVE_ERROR = 1e-9
"""Relative error allowed to a binomial tail: 1000 times what C20 allows a special function. Soundness."""

TAIL_ERROR_PER_NAT = 1e-14
"""Further relative error for each nat of its logarithm. Soundness."""

LEAST_RATE = 1e-280
"""A smaller sampling rate is taken for this one, which raises every tail. Soundness."""

LOG_RELATIVE_ERROR = 1e-15
"""Relative error of the logs that are added and subtracted here: a few roundings. Soundness."""


@lru_cache(maxsize=4096)
def log_binomial_tail(count: int, rate: float, least: int) -> Enclosure:
    """``ln P[Bin(count, rate) >= least]``, enclosed (C26). ``count`` is at most 1e12, and ``rate`` from 0 to 1."""
    if least <= 0 or (rate >= 1.0 and least <= count):
        return Enclosure(0.0, 0.0)
    if least > count or rate <= 0.0:
        return Enclosure(-math.inf, -math.inf)
    q, a, b = max(rate, LEAST_RATE), float(least), float(count - least + 1)
    # P[Bin(n, q) >= m] = P[Beta(m, n - m + 1) <= q]
    log_tail = log_beta_tail(b, a, 1.0 - q, q)
    error = TAIL_RELATIVE_ERROR + TAIL_ERROR_PER_NAT * abs(log_tail)
    return Enclosure(log_tail - error if rate >= LEAST_RATE else -math.inf, min(0.0, log_tail + error))


def log_probability_of_cut(run: Run, cap: int | None = None) -> Enclosure:
    """``ln P(cut)`` of a run by the union bound, enclosed (C26): ``-inf`` where no batch can be cut.

    ``cap`` takes the place of the run's ``max_batch_size``. A cap without Poisson sampling is refused by the run.
    """
    cap = run.max_batch_size if cap is None else cap
    if cap is None or run.dataset_size is None:
        return Enclosure(-math.inf, -math.inf)
    # n = N - 1 where neighbours have N records both; where records are added, all N are others.
    others = run.dataset_size - (run.relation is NeighbouringRelation.ZERO_OUT)
    tail = log_binomial_tail(others, run.sampling_rate, cap - run.group_size + 1)
    # ln(T P[Bin(n, q) > B - K])
    ends = [end + math.log(run.steps) for end in tail]
    return Enclosure(min(0.0, ends[0] - _rounding(ends[0])), min(0.0, ends[1] + _rounding(ends[1])))


def smallest_harmless_cap(run: Run, log_delta: float) -> int:
    """The smallest ``max_batch_size`` whose probability of a cut is at most 1 % of delta (:data:`HARMLESS_SHARE`).

    ``run`` has a ``dataset_size`` and Poisson sampling; its own cap plays no role. ``log_delta`` is in nats.
    """
    goal = log_delta + math.log(HARMLESS_SHARE)
    most = (run.dataset_size or 0) + run.group_size - 1
    return 1 + (largest_integer(lambda cap: log_probability_of_cut(run, cap).upper > goal, 0, most) or 0)


def with_cut_batches(curve: Curve, runs: Sequence[Run]) -> Curve:
    """The curve of these phases with their batches cut, from that of the same phases with whole batches (C26)."""
    cuts = [log_probability_of_cut(run) for run in runs]
    lower, upper = (reduce(log_add, ends, -math.inf) for ends in zip(*cuts, strict=True))
    if upper == -math.inf:
        return curve
    return TruncatedCurve(curve, Enclosure(min(0.0, lower - _rounding(lower)), min(0.0, upper + _rounding(upper))))


class TruncatedCurve:
    """The curve ``delta(eps) = delta_0(eps) + P(cut)``, as sound as that of ``delta_0`` (C26).

    ``curve`` is that of the run whose batches are not cut, ``log_cut`` encloses ``ln P(cut)``.
    """

    def __init__(self, curve: Curve, log_cut: Enclosure) -> None:
        self.curve, self.log_cut = curve, log_cut
        self.digits, self.leads_with_epsilon = digits_of(curve), leads_with_epsilon(curve)
        floor = float(getattr(curve, "floor", 0.0))
        self.floor = floor and floor + math.exp(log_cut.upper)

    @property
    def numerics(self) -> dict[str, object]:
        """How ``delta_0`` was computed, and how likely a cut is."""
        return {**getattr(self.curve, "numerics", {}), "log10_probability_of_cut": self.log_cut.upper / math.log(10.0)}

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)`` for ``eps`` in nats, enclosed; it has a lower end where ``delta_0`` has one."""

        # ln(delta_0(eps) + P(cut))
        def find_lower() -> float:
            lower = self.curve.log_delta(eps).lower
            low = log_add(lower, self.log_cut.lower) if lower > -math.inf else lower
            return self.log_cut.lower if self.log_cut.upper >= 0.0 else low - _rounding(low)

        return LateEnclosure(find_lower, self.log_delta_unless(eps, -math.inf))

    def log_delta_unless(self, eps: float, enough: float) -> float:
        """The upper end of :meth:`log_delta` unless that is at most ``enough``: then an upper bound that is so too."""
        cut = self.log_cut.upper
        # Below ln(e^enough - P(cut)), rounded down, the sum is below enough; far below P(cut) it is hardly above that.
        rest = log_difference(enough - 4.0 * _rounding(enough), cut)
        # Where ``delta_0`` is so many nats below ``P(cut)``, a rough upper bound of it will do. Speed only.
        high = log_add(log_delta_unless(self.curve, eps, max(rest - _rounding(rest), cut - 16.0)), cut)
        return 0.0 if self.log_cut.upper >= 0.0 else min(0.0, high + _rounding(high))

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats, enclosed: that of ``delta_0`` at ``delta - P(cut)``, ``inf`` if nothing is left."""
        # ln(delta - P(cut)), rounded down for the upper end and up for the lower one
        least, most = (log_difference(log_delta, end) for end in (self.log_cut.upper, self.log_cut.lower))

        def find_lower() -> float:
            return math.inf if most == -math.inf else self.curve.epsilon(min(0.0, most + _rounding(most))).lower

        upper = math.inf if least == -math.inf else self.curve.epsilon(least - _rounding(least)).upper
        return LateEnclosure(find_lower, upper)


def _rounding(log_value: float) -> float:
    """The error allowed to a log that comes from a sum or a difference of a few terms; 0 for the log of zero."""
    return LOG_RELATIVE_ERROR * (1.0 + abs(log_value)) if math.isfinite(log_value) else 0.0
