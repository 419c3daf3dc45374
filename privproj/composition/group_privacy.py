"""Account for users with several records (user-level privacy): one sampled step, and a whole run (C37).

**One step** (:func:`group_step`). A batch contains a random number ``j`` of the user's records. The output distribution
is a mixture over ``j``, so delta of the step is bounded by a weighted sum of the deltas of releases on batches with
``j`` of the records.

**A whole run** (:func:`curve_of_group`). Let ``delta`` be the privacy profile of the run for one record. Group privacy
bounds delta of ``k`` records at ``eps`` by ``delta(eps/k)`` times the sum of ``e^(j eps/k)`` over ``j = 0, ..., k -
1``.
"""

# **One step** (:func:`group_step`). A user has ``k`` records. Each is sampled independently with probability ``q``, so
# the number of them in a batch is binomial. Condition on the other records in the batch. The step on the larger dataset
# has the output distribution ``sum_S w_S P_S``, where ``S`` is the subset of the user's records in the batch and
# ``w_S`` its probability. The step on the smaller dataset has ``P_0``. Let ``D_j`` bound the profile of a release for
# up to ``j`` records in the batch, in both directions. Take ``t = e^eps > 0``, weights ``alpha_S >= 0`` and ``r_S =
# alpha_S t / w_S``. Because the supremum over events ``A`` of a sum is at most the sum of the suprema,
#
#     sup_A [sum_S w_S P_S(A) - t P_0(A)]   <= sum_S w_S D_|S|(ln r_S)               if sum alpha_S <= 1,
#     sup_A [P_0(A) - sum_S w_S P_S(A) / t] <= sum_S alpha_S D_|S|(-ln r_S)          if sum alpha_S >= 1.
#
# All subsets of one size ``j`` have the same weight, so ``r_S = r_j`` for them. ``r_j`` is the likelihood ratio of two
# Gaussians with unit variance at the distance ``j m``:
#
#     r_j = exp(j m x - j^2 m^2 / 2),   x such that   sum_j w_j r_j = t,   w_j = P(j records in the batch).
#
# ``r_0 = 1``, so the empty subset contributes nothing. The bound is valid for every ``m > 0`` and ``x``. If the release
# is Gaussian and ``m`` is its ``mu``, all suprema are attained by the same event ``A``. The bound is then exact for
# ``k`` records with parallel contributions (the mixture of Gaussians of arXiv 2401.10294). For other releases, ``m`` is
# that of a Gaussian with the same ``D_1`` at one epsilon. The best of a few such ``m`` is used at each loss.
#
# Let ``E_j(y) = D_j(y) - max(0, 1 - e^y)`` be the excess of ``D_j``, and ``E(t)`` that of the step in the remove
# direction at ``t = e^eps``. With ``E_j(-y) = e^-y E_j(y)`` (C1) the two inequalities give ``E``, without a difference
# of large numbers:
#
#     E(t) <= sum_(j >= 1) w_j [E_j(ln r_j) + max(0, 1 - r_j)]     for t >= 1,
#     E(t) <= sum_(j >= 1) w_j [E_j(ln r_j) + max(0, r_j - 1)]     for t <= 1,   E(t) = 0 for t <= w_0.
#
# For batches of fixed size under the replace relation, the first line holds for ``t >= 1`` with the profiles of ``j``
# replaced records, and ``E(1/t) = E(t) / t`` gives the other values. ``P_j`` is then compared with batches that hold at
# most ``j`` of the records (C37).
#
# ``x`` is rounded down for ``t >= 1`` and up for ``t <= 1``, so that the conditions on ``sum alpha_S`` hold. Very large
# subsets, which are improbable, have ``alpha_S = 0``. They add their probability for ``t >= 1``, and nothing for
# ``t <= 1``.
#
# A whole run: ``k`` steps from neighbor to neighbor connect two datasets that differ in the ``k`` records of a user, so
# ``delta_k(eps) <= sum_(j < k) e^(j eps/k) delta(eps/k)``.

import math
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import numpy as np
from scipy import special

from privproj.composition.dominating_pairs import delta_bounds
from privproj.errors import InvalidParameterError, PrecisionError, PrivprojError, UnsupportedError
from privproj.numerics.arrays import Array
from privproj.numerics.interval import Enclosure, LazyEnclosure
from privproj.profiles.conversion import digits_of, leads_with_epsilon
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, TwoSidedTable

# soundness: relative margin of every sum of a step, and of the sums of the weights. Weights are exponentials of sums of
# at most 2000 logarithms below 1e4, accurate to 1e-12. So are the ratios r_j, because ln r_j may be any float.
MARGIN = 1e-11
CUT_MASS = 1e-45  # probability of the largest subsets, which a step counts as infinite loss
MOST_MEMBERS = 400  # records of a group in one batch; if more are likely, the step is not supported
# soundness: nats. Where the loss is less than this above ln w_0, the excess at ln w_0 + LEAST_GAP is used, which is
# larger.
LEAST_GAP = 1e-9
MATCHED_LOG_DELTAS = (-1.0, -3.0, -8.0, -20.0, -60.0)  # ln D_1 at which a Gaussian has the same epsilon, one m each
PILOT_LOSSES = 14  # losses of each sign at which the values of m are compared


def group_step(
    member: Callable[[int], PrivacyProfile], logs: Array, *, of_fixed_size: bool = False, cut: float = CUT_MASS
) -> PrivacyProfile:
    """Return the privacy profile of one sampled step for a user with several records (C37).

    The profile is valid in the add and remove directions if the profiles that ``member`` returns are valid. The caller
    must account for the step as one release on the whole dataset.

    Args:
        member: Map from ``j`` to the profile of a release on a batch with ``j`` of the user's records.
        logs: The log probabilities that a batch contains ``j = 0, 1, ...`` of the records, from :func:`poisson_weights`
            or :func:`fixed_size_weights`.
        of_fixed_size: True for batches of fixed size, with profiles under the replace relation.
        cut: The largest numbers ``j``, with a total probability of at most ``cut``, count as infinite loss.

    Raises:
        UnsupportedError: More than :data:`MOST_MEMBERS` of the records are likely in one batch.
    """
    step = _GroupStep(member, logs, cut, of_fixed_size=of_fixed_size)

    def log_delta(eps: float) -> Enclosure:
        # The add direction at e^eps is E(t) / t at t = e^-eps.
        ends = step.excess(np.array([eps] if of_fixed_size else [eps, -eps]))
        lower, upper = (
            max(math.log(x) + grown if x > 0.0 else -math.inf for x, grown in zip(end, (0.0, eps), strict=False))
            for end in (end.tolist() for end in ends)
        )
        return Enclosure(min(0.0, lower - 1e-14), min(0.0, max(upper + 1e-14, -745.0)))

    return PrivacyProfile(
        log_delta,
        table=step.excess if of_fixed_size else None,
        excess=None if of_fixed_size else step.excess,
        with_smaller_tails=lambda mass: group_step(
            member, logs, of_fixed_size=of_fixed_size, cut=min(cut, max(1e-9 * mass, 1e-300))
        ),
        resolution=step.members[0].resolution,
        can_be_subsampled=False,
        numerics={"group": f"a mixture over how many of {len(logs) - 1} records a batch holds"},
    )


def copies_of_record(mu: float, rate: float, size: int) -> PrivacyProfile:
    """Return the exact privacy profile of one Poisson batch for several copies of a record.

    Args:
        mu: The sensitivity for one record divided by the standard deviation of the Gaussian noise.
        rate: The sampling rate.
        size: The number of copies of the record.
    """
    from privproj.profiles.gaussian import gaussian_profile

    return group_step(lambda count: gaussian_profile(count * mu), poisson_weights(rate, size))


def poisson_weights(rate: float, size: int) -> Array:
    """Return the log probabilities that ``j = 0, ..., k`` records of a user are sampled.

    Under Poisson sampling they are ``ln P(Bin(k, q) = j)``.

    Args:
        rate: The sampling rate ``q``.
        size: The number ``k`` of records of the user.
    """
    j = np.arange(size)
    # w_(j+1) / w_j = (k - j) / (j + 1) q / (1 - q)
    rise = np.log((size - j) / (j + 1.0)) + (math.log(rate) - math.log1p(-rate))
    return size * math.log1p(-rate) + np.concatenate([[0.0], np.cumsum(rise)])


def fixed_size_weights(records: int, batch: int, size: int) -> Array:
    """Return the log probabilities that ``j = 0, ..., k`` records of a user are sampled.

    The batch has a fixed size, so the probabilities are hypergeometric.

    Args:
        records: The number ``n`` of records in the dataset.
        batch: The batch size ``B``.
        size: The number ``k`` of records of the user.

    Raises:
        UnsupportedError: ``k > B`` or ``k > n - B``.
    """
    if size > min(batch, records - batch):
        raise UnsupportedError(
            f"group_size={size} needs at least {size} records in a batch of {batch} "
            f"and outside of it. Use a smaller group_size"
        )
    j = np.arange(size)
    # w_0 = prod_(i < k) (n - B - i) / (n - i),  w_(j+1) / w_j = (k - j) (B - j) / ((j + 1) (n - B - k + j + 1))
    first = math.fsum(np.log1p(-batch / (records - j.astype(float))).tolist())
    rise = np.log((size - j) / (j + 1.0)) + np.log((batch - j) / (records - batch - size + j + 1.0))
    return first + np.concatenate([[0.0], np.cumsum(rise)])


class _GroupStep:
    """Bounds of the privacy profile of one sampled step for a user with several records.

    They are combined from profiles of releases on batches with 1, 2, ... of the records.
    """

    def __init__(
        self, member: Callable[[int], PrivacyProfile], logs: Array, cut: float, *, of_fixed_size: bool
    ) -> None:
        size, self.of_fixed_size = len(logs) - 1, of_fixed_size
        tails = np.logaddexp.accumulate(logs[::-1])[::-1]
        count = int(np.argmax(np.append(tails, -np.inf) < math.log(cut))) - 1
        if count > MOST_MEMBERS:
            raise UnsupportedError(
                f"group_size={size} is too large: one batch is likely to contain more than {MOST_MEMBERS} "
                f"records of one user. Use a smaller sampling rate or group_size"
            )
        self.lost = math.exp(tails[count + 1]) * (1.0 + MARGIN) if count < size else 0.0
        first = member(1)
        sizes = [*range(1, count + 1)]
        if not first.gaussian_mu:
            # Each number j of records with a tail probability of at least 1e-14 has its own profile. Larger j share
            # profiles in growing groups, each with the profile of its largest j: a bound for j records also holds for
            # fewer records.
            unshared = int(np.argmax(np.append(tails[: count + 1], -np.inf) < math.log(1e-14))) - 1
            sizes, gap = [*range(1, max(unshared, 1) + 1)], 2
            while sizes[-1] < count:
                sizes.append(min(sizes[-1] + gap, count))
                gap *= 2
        self.members, self.sizes = [first, *map(member, sizes[1:])], np.array(sizes)
        shared = (float(np.logaddexp.reduce(logs[a + 1 : b + 1])) for a, b in pairwise([0, *sizes]))
        self.log_weights = np.array([logs[0], *shared])
        # Batches of fixed size compare two mixtures, for which the bound is not exact.
        self.mu = None if of_fixed_size else first.gaussian_mu
        # Some losses in nats, and the best ln m at each of them.
        self.losses, self.log_shifts = np.zeros(1), np.array([math.log(self.mu or 1.0)])
        if not self.mu:
            self._choose_shifts()

    def _choose_shifts(self) -> None:
        # Choose the parameter m of the bound at some losses: the mu of a Gaussian with the same delta for one record at
        # one epsilon. Every value is valid.
        from privproj.profiles.gaussian import find_noise

        shifts, first = [], self.members[0]
        for log_delta in MATCHED_LOG_DELTAS:
            eps = first.epsilon(log_delta).upper
            if not 0.0 < eps < 600.0:
                continue
            inverse = find_noise(eps, first.log_delta(eps).upper, 1e-3).upper
            shifts += [1.0 / inverse] if inverse < math.inf else []
        if not shifts:
            raise PrecisionError("the release has no finite delta below epsilon 600. Use more noise")
        tried = np.array([math.log(m) for m in sorted({*shifts, shifts[0] * 0.5})])
        top = self.members[-1].epsilon(MATCHED_LOG_DELTAS[-1]).upper
        right = np.geomspace(1e-4, max(min(top, 600.0), 1.0), PILOT_LOSSES)
        losses = np.concatenate([np.linspace(self.log_weights[0], 0.0, PILOT_LOSSES)[:-1], right])
        upper = self.above(np.tile(losses, len(tried)), np.repeat(tried, len(losses)))
        self.losses, self.log_shifts = losses, tried[np.argmin(upper.reshape(len(tried), -1), axis=0)]

    @property
    def excess(self) -> TwoSidedTable:
        """Lower and upper bounds of delta minus ``max(0, 1 - e^eps)``, in the remove direction."""
        return TwoSidedTable(
            self.below, lambda losses: self.above(losses, np.interp(losses, self.losses, self.log_shifts))
        )

    def above(self, losses: Array, log_shifts: Array) -> Array:
        """Return upper bounds of delta minus ``max(0, 1 - e^eps)``, in the remove direction.

        Args:
            losses: Epsilons in nats.
            log_shifts: The log of the free parameter of the bound at each epsilon; any value is valid.
        """
        upper, inside = np.zeros(len(losses)), losses > self.log_weights[0]
        at = np.maximum(losses[inside], self.log_weights[0] + LEAST_GAP)
        total, _ = self._sum_of_members(at, np.exp(log_shifts[inside]), 1)
        upper[inside] = (total + np.where(at >= 0.0, self.lost, 0.0)) * (1.0 + MARGIN)
        return upper

    def below(self, losses: Array) -> Array:
        """Return lower bounds of delta minus ``max(0, 1 - e^eps)``, in the remove direction.

        ``losses`` are epsilons in nats. The bounds are 0 unless the noise is Gaussian and the sampling Poisson.
        """
        # Then all suprema of the bound are attained by one event.
        lower, inside = np.zeros(len(losses)), losses > self.log_weights[0] + LEAST_GAP
        if self.mu:
            at = losses[inside]
            total, x = self._sum_of_members(at, np.full(len(at), self.mu), 0)
            # Subtract t |sum alpha - 1| P_0(A), because the sum of the weights is not exactly 1. For t < 1 also
            # subtract the probability of the omitted subsets.
            off = 4.0 * MARGIN * np.exp(np.minimum(at + special.log_ndtr(np.where(at >= 0.0, -x, x)), 700.0))
            lower[inside] = np.maximum(total * (1.0 - MARGIN) - off - np.where(at < 0.0, self.lost, 0.0), 0.0)
        return lower

    def _sum_of_members(self, at: Array, m: Array, end: int) -> tuple[Array, Array]:
        """Return bounds of delta minus ``max(0, 1 - e^eps)``, and the result of :meth:`_thresholds`.

        Args:
            at: Epsilons in nats.
            m: The argument of :meth:`_thresholds`; any positive value gives valid upper bounds.
            end: 0 to use lower bounds of the releases' profiles, 1 to use upper bounds.
        """
        # the sum over the numbers j >= 1 of the user's records in a batch
        x = self._thresholds(at, m)
        total, sign = np.zeros(len(at)), np.where(at >= 0.0, -1.0, 1.0)
        ratios, _ = self._log_ratios(x, m)
        for log_ratio, member, log_weight in zip(ratios, self.members, self.log_weights[1:], strict=True):
            # E_j(-e) = e^-e D_j(e)
            gap = np.maximum(sign * np.expm1(np.minimum(log_ratio, 700.0)), 0.0)
            shrunk = np.exp(np.minimum(log_ratio, 0.0))
            find_lower, upper = delta_bounds(member, np.abs(log_ratio))
            total += math.exp(log_weight) * ((upper if end else find_lower()) * shrunk + gap)
        return total, x

    def _log_ratios(self, x: Array, m: Array) -> tuple[Array, Array]:
        """Return log likelihood ratios at ``x`` and their slopes, for all numbers ``j`` of records.

        The ratios are those of unit Gaussians with the means ``j m`` and 0.
        """
        j = self.sizes[:, None]
        # ln r_j = j m x - (j m)^2/2
        plain, slopes = j * m * (x - 0.5 * j * m), j * m
        if not self.of_fixed_size:
            return plain, slopes
        # For batches of fixed size they increase with j. The slope is that of the largest size at the maximum.
        rising = np.maximum.accumulate(plain, axis=0)
        return rising, np.maximum.accumulate(np.where(plain == rising, slopes, 0.0), axis=0)

    def _thresholds(self, losses: Array, m: Array) -> Array:
        """Return the points at which a likelihood ratio is ``e^losses``.

        The ratio is that of a mixture of unit Gaussians with the means ``j m``, for ``j`` records in a batch, to the
        unit Gaussian with mean 0. The points are rounded down for ``losses >= 0`` and up otherwise.
        """
        # The likelihood ratio at x is the mean, over the number j of records in a batch, of those of two unit Gaussians
        # at the distance j m.
        j, weights = self.sizes[:, None], self.log_weights[1:, None]
        gap = -np.expm1(self.log_weights[0] - losses)
        goal = losses + np.log(gap)

        # h(x) = ln sum_j w_j r_j and its slope
        def value_at(x: Array) -> tuple[Array, Array]:
            ratios, slopes = self._log_ratios(x, m)
            logs = weights + ratios
            top = np.max(logs, axis=0)
            shares = np.exp(logs - top)
            total = np.sum(shares, axis=0)
            return top + np.log(total), np.sum(shares * slopes, axis=0) / total

        # h is convex and increases at least as fast as m x: Newton's method from the right of its root.
        x = np.min((goal - weights) / (j * m) + 0.5 * j * m, axis=0)
        for _ in range(60):
            value, slope = value_at(x)
            step = (value - goal) / slope
            x = x - step
            if np.all(np.abs(step) * m < 1e-13 * (1.0 + np.abs(goal))):
                break
        value, _ = value_at(x)
        # The relative error of the goal is a few roundings of ln t, divided by the gap.
        safe = MARGIN + 4e-15 / gap
        down = np.maximum(value - goal, 0.0) + safe
        up = np.maximum(goal - value, 0.0) + safe
        return np.where(losses >= 0.0, x - down / m, x + up / m)


def curve_of_group(stepwise: Callable[[], Curve], single: Callable[[], Curve], size: int, *, is_true: bool) -> Curve:
    """Return the privacy curve of a run for a user with several records (C37).

    The curve is the smaller of two bounds. If one bound raises :class:`UnsupportedError` or
    :class:`InvalidParameterError`, only the other is used.

    Args:
        stepwise: Returns the first bound, which composes steps of the user's records.
        single: Returns the curve for one record, which group privacy converts to the second bound. A curve whose delta
            is computed by inverting its epsilon is not used.
        size: The number of records of the user.
        is_true: True if the first bound is exact, so that the second bound is not needed.
    """

    def build(make: Callable[[], Curve]) -> Curve | PrivprojError:
        try:
            return make()
        except (UnsupportedError, InvalidParameterError) as error:
            return error

    curve = build(stepwise)
    if is_true and not isinstance(curve, PrivprojError):
        return curve
    one = build(single)
    if not isinstance(one, PrivprojError) and not leads_with_epsilon(one):
        return _GroupCurve(None if isinstance(curve, PrivprojError) else curve, one, size)
    if isinstance(curve, PrivprojError):
        raise curve
    return curve


class _GroupCurve:
    """The privacy curve of a run for a user with several records (C37).

    The curve is the smaller of two bounds: ``stepwise`` (or None), which composes steps of all the user's records, and
    group privacy applied to ``single``, the curve for one record.
    """

    def __init__(self, stepwise: Curve | None, single: Curve, size: int) -> None:
        self.stepwise, self.single, self.size = stepwise, single, size
        self.digits = digits_of(stepwise or single)
        self.converted = PrivacyProfile(self.convert, digits=self.digits, guess=self._guess, guess_spread=0.05)

    @property
    def numerics(self) -> dict[str, object]:
        """How the curve was computed, for the report of a result."""
        source = self.single if self.stepwise is None else self.stepwise
        how = {"group": "group privacy of the curve of one record"} if self.stepwise is None else {}
        return {**getattr(source, "numerics", {}), **how}

    def convert(self, eps: float) -> Enclosure:
        """Return an enclosure of the group-privacy bound of ``ln delta(eps)``; ``eps`` is in nats."""
        part, factor = eps / self.size, _log_factor(eps, self.size)
        ends = self.single.log_delta(part * (1.0 + 1e-15)).lower, self.single.log_delta(part * (1.0 - 1e-15)).upper
        return Enclosure(min(0.0, ends[0] + factor.lower), min(0.0, ends[1] + factor.upper))

    def _guess(self, log_delta: float) -> float | None:
        """Return an epsilon slightly below ``eps(delta)`` by group privacy; None if 0 or unknown."""
        # The search for the least epsilon needs a good start. The factor of group privacy increases with epsilon, so
        # delta is not met at much larger epsilons, and a search with long steps would fail.
        eps = 0.0
        with suppress(PrecisionError):
            # Iterate k eps(delta / sum_(j < k) e^(j eps/k)) from 0: each value is closer, and none is above the result.
            for _ in range(3):
                eps = self.size * self.single.epsilon(log_delta - _log_factor(eps, self.size).upper).upper
                if eps == math.inf:
                    return None
        return eps or None

    def log_delta(self, eps: float) -> Enclosure:
        """Return an enclosure of ``ln delta(eps)``; ``eps`` is in nats."""
        stepwise, other = None if self.stepwise is None else self.stepwise.log_delta(eps), self.convert(eps)
        if stepwise is None:
            return other
        return Enclosure(min(stepwise.lower, other.upper), min(stepwise.upper, other.upper))

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an enclosure of ``eps(delta)`` in nats."""
        try:
            ends = None if self.stepwise is None else self.stepwise.epsilon(log_delta)
        except PrecisionError:
            ends = None
        if ends is None:
            return self.converted.epsilon(log_delta)
        upper = ends.upper
        if upper == math.inf or self._may_be_less(upper, log_delta):
            upper = min(upper, self.converted.epsilon(log_delta).upper)
        return LazyEnclosure(lambda: ends.lower, upper)

    def _may_be_less(self, upper: float, log_delta: float) -> bool:
        """Return whether group privacy may give a smaller epsilon than ``upper`` (nats)."""
        # Smaller log deltas of one record take longer to compute. The group has an epsilon without them.
        deepest = -150.0 if hasattr(self.single, "log_delta_unless") else -math.inf
        if log_delta - _log_factor(upper, self.size).upper >= deepest:
            return self.converted.log_delta(upper).upper <= log_delta
        # The epsilon by group privacy is at least k eps(delta/k) of one record, because the factor is at least k.
        of_record = log_delta - math.log(self.size)
        with suppress(PrecisionError):
            return of_record >= deepest and self.size * self.single.epsilon(of_record).upper < upper
        return False


def _log_factor(eps: float, size: int) -> Enclosure:
    """Return an enclosure of the log of the group-privacy factor ``sum_(j < size) e^(j eps/size)``."""
    # By group privacy, delta of k = size records at eps is at most this sum times delta of one record at eps/k.
    if eps < 1e-6:
        return Enclosure(math.log(size), math.log(size) + eps + 1e-14)
    # (e^eps - 1) / (e^(eps/k) - 1)
    part = eps / size
    middle = eps + math.log(-math.expm1(-eps)) - part - math.log(-math.expm1(-part))
    return Enclosure(middle - 1e-13 * (1.0 + eps), middle + 1e-13 * (1.0 + eps))
