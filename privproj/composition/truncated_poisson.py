"""Account for Poisson batches that are truncated to a maximum size (``max_batch_size``, C26).

The protected user has a limited number of records. If the other records leave space for all records of the user in
every batch, no batch is truncated in either of the neighboring datasets. So delta is at most the delta of the run
without truncation plus the probability that some batch has too many other records. This probability has no factor
``e^eps``, because it is the same in both neighboring datasets.

For one record and uniformly random truncation, :mod:`privproj.composition.truncated_step` has a second bound, which
does not need a small probability of truncation. Each query uses the smaller bound.
"""

# Each batch is a Poisson sample at the rate ``q``, truncated at ``B`` records. The protected user has at most ``K``
# records, and there are ``n`` other records. If no batch contains more than ``B - K`` of the other records, no batch is
# truncated in either of the neighboring datasets, whether or not the user's records are sampled. So
#
#     delta(eps) <= delta_0(eps) + P(cut),   P(cut) <= sum over phases of T P[Bin(n, q) > B - K],
#
# where ``delta_0`` bounds the run without truncation, ``P(cut)`` is the probability that some batch contains more than
# ``B - K`` other records, and ``T`` is the number of steps of a phase. ``P(cut)`` has no factor ``e^eps``, because the
# number of other records in a batch has the same distribution in both neighboring datasets.

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, reduce

from privproj.errors import GridSizeError, PrecisionError
from privproj.numerics.interval import Enclosure, LazyEnclosure, log_difference
from privproj.numerics.root_finding import largest_integer
from privproj.numerics.special import log_add, log_beta_tail
from privproj.profiles.conversion import digits_of, leads_with_epsilon
from privproj.profiles.privacy_profile import Curve, log_delta_unless
from privproj.run import Run
from privproj.sampling import NeighboringRelation

HARMLESS_SHARE = 0.01  # truncation is harmless if P(cut) is at most this share of delta
TAIL_RELATIVE_ERROR = 1e-9  # soundness: relative error of a binomial tail, 1000 times that of a special function (C20)
TAIL_ERROR_PER_NAT = 1e-14  # soundness: further relative error for each nat of its logarithm
LEAST_RATE = 1e-280  # soundness: a smaller sampling rate is replaced by this one, which raises every tail
LOG_RELATIVE_ERROR = 1e-15  # soundness: relative error of logs that are added and subtracted, a few roundings


@lru_cache(maxsize=4096)
def log_binomial_tail(count: int, rate: float, least: int) -> Enclosure:
    """Return an enclosure of ``ln P[Bin(count, rate) >= least]`` (C26).

    Args:
        count: The number of trials, at most 1e12.
        rate: The success probability, from 0 to 1.
        least: The least number of successes.
    """
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
    """Return an enclosure of the log probability that any batch of a run is truncated (C26).

    The result is ``-inf`` if no batch can be truncated.

    Args:
        run: A run with Poisson sampling.
        cap: The maximum batch size (None: that of the run).
    """
    # bounded by the sum over all batches of the run
    cap = run.max_batch_size if cap is None else cap
    if cap is None or run.dataset_size is None:
        return Enclosure(-math.inf, -math.inf)
    tail = log_binomial_tail(other_records(run), run.sampling_rate, cap - run.group_size + 1)
    # ln(T P[Bin(n, q) > B - K])
    ends = [end + math.log(run.steps) for end in tail]
    return Enclosure(min(0.0, ends[0] - _rounding(ends[0])), min(0.0, ends[1] + _rounding(ends[1])))


def smallest_harmless_cap(run: Run, log_delta: float) -> int:
    """Return the least maximum batch size for which truncation adds at most 1 % to delta.

    Args:
        run: A run with a ``dataset_size`` and Poisson sampling; its own maximum batch size is ignored.
        log_delta: ``ln delta``.
    """
    goal = log_delta + math.log(HARMLESS_SHARE)
    most = (run.dataset_size or 0) + run.group_size - 1
    return 1 + (largest_integer(lambda cap: log_probability_of_cut(run, cap).upper > goal, 0, most) or 0)


def with_truncated_batches(curve: Curve, runs: Sequence[Run]) -> Curve:
    """Return the privacy curve of a run with truncated batches (C26).

    Args:
        curve: The privacy curve of the run without truncation.
        runs: The runs of its phases.
    """
    cuts = [log_probability_of_cut(run) for run in runs]
    lower, upper = (reduce(log_add, ends, -math.inf) for ends in zip(*cuts, strict=True))
    if upper == -math.inf:
        return curve
    return TruncatedCurve(curve, Enclosure(min(0.0, lower - _rounding(lower)), min(0.0, upper + _rounding(upper))))


class TruncatedCurve:
    """The privacy curve of a run plus the probability that a batch is truncated (C26).

    The curve is valid if the one without truncation is valid.

    Args:
        curve: The privacy curve without truncation.
        log_cut: An enclosure of the log probability of a truncation.
    """

    def __init__(self, curve: Curve, log_cut: Enclosure) -> None:
        self.curve, self.log_cut = curve, log_cut
        self.digits, self.leads_with_epsilon = digits_of(curve), leads_with_epsilon(curve)
        floor = float(getattr(curve, "floor", 0.0))
        self.floor = floor and floor + math.exp(log_cut.upper)

    @property
    def numerics(self) -> dict[str, object]:
        """How the curve was computed, and the probability of a truncation."""
        return {**getattr(self.curve, "numerics", {}), "log10_probability_of_cut": self.log_cut.upper / math.log(10.0)}

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``; ``eps`` is in nats."""
        # The lower end is -inf if the curve without truncation has no lower bound.

        # ln(delta_0(eps) + P(cut))
        def find_lower() -> float:
            lower = self.curve.log_delta(eps).lower
            low = log_add(lower, self.log_cut.lower) if lower > -math.inf else lower
            return self.log_cut.lower if self.log_cut.upper >= 0.0 else low - _rounding(low)

        return LazyEnclosure(find_lower, self.log_delta_unless(eps, -math.inf))

    def log_delta_unless(self, eps: float, threshold: float) -> float:
        """Return an upper bound of ``ln delta(eps)``, which may be loose if it is at most ``threshold``."""
        # A result above the threshold is the upper end of log_delta.
        cut = self.log_cut.upper
        # If delta_0 is at most e^threshold - P(cut), rounded down, the sum is at most e^threshold. If ln delta_0 is 16
        # nats below ln P(cut), a rough upper bound of delta_0 is enough.
        rest = log_difference(threshold - 4.0 * _rounding(threshold), cut)
        high = log_add(log_delta_unless(self.curve, eps, max(rest - _rounding(rest), cut - 16.0)), cut)
        return 0.0 if self.log_cut.upper >= 0.0 else min(0.0, high + _rounding(high))

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats.

        It is ``inf`` if the probability of a truncation is at least delta.
        """
        # ln(delta - P(cut)), rounded down for the upper end and up for the lower one
        least, most = (log_difference(log_delta, end) for end in (self.log_cut.upper, self.log_cut.lower))

        def find_lower() -> float:
            return math.inf if most == -math.inf else self.curve.epsilon(min(0.0, most + _rounding(most))).lower

        upper = math.inf if least == -math.inf else self.curve.epsilon(least - _rounding(least)).upper
        return LazyEnclosure(find_lower, upper)


class SmallerCurve:
    """The smaller of two privacy curves of a run with truncated batches (C26).

    Args:
        curve: The curve that adds the probability of a truncation.
        compose: Returns the curve that composes truncated steps. It is called only if the probability of a truncation
            is more than :data:`HARMLESS_SHARE` of delta.
    """

    def __init__(self, curve: TruncatedCurve, compose: Callable[[], Curve]) -> None:
        self.curve, self.compose = curve, compose
        self.digits, self.leads_with_epsilon, self.floor = curve.digits, curve.leads_with_epsilon, 0.0

    @cached_property
    def stepwise(self) -> Curve:
        """The curve that composes truncated steps."""
        return self.compose()

    @property
    def numerics(self) -> dict[str, object]:
        """How the curve that adds the probability of a truncation was computed."""
        return self.curve.numerics

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``; ``eps`` is in nats."""
        # The lower end is -inf if the curve that composes truncated steps is smaller.
        first = self.curve.log_delta(eps)
        if self._is_harmless(first.upper):
            return first
        with suppress(PrecisionError, GridSizeError):
            return _smaller(first, self.stepwise.log_delta(eps))
        return first

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats."""
        first = self.curve.epsilon(log_delta)
        if self._is_harmless(log_delta):
            return first
        with suppress(PrecisionError, GridSizeError):
            return _smaller(first, self.stepwise.epsilon(log_delta))
        return first

    def _is_harmless(self, log_delta: float) -> bool:
        """Return whether the probability of a truncation is a small share of delta."""
        return self.curve.log_cut.upper <= log_delta + math.log(HARMLESS_SHARE)


def _smaller(first: Enclosure, second: Enclosure) -> Enclosure:
    return first if first.upper <= second.upper else Enclosure(min(first.lower, second.lower), second.upper)


def other_records(run: Run) -> int:
    """Return the largest number of records other than the protected one.

    It is one less than the dataset size under zero-out, and the dataset size under add-remove.
    """
    return (run.dataset_size or 0) - (run.relation is NeighboringRelation.ZERO_OUT)


def _rounding(log_value: float) -> float:
    """Return a bound of the rounding error of the log of a sum or difference of a few terms."""
    return LOG_RELATIVE_ERROR * (1.0 + abs(log_value)) if math.isfinite(log_value) else 0.0
