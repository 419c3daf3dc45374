"""Privacy profiles of a Gaussian release with a random squared sensitivity ``X``.

The adversary observes the random projection, and with it ``X``, the squared sensitivity over the noise variance. Let
``h(x)`` be the delta of the Gaussian mechanism at ``eps`` and ``X = x``, also written ``h_eps``. It is convex up to
``x0`` and concave beyond (C3).

**Rank one (C4).** If the difference between neighboring sums has rank one, ``delta(eps) = E[h(X)]``.

**Any rank (C5).** For a difference with normalized squared singular values ``w_i``, the squared sensitivity is
``S = sum w_i X_i``, where the ``X_i`` are dependent and all have the distribution of ``X``. Let ``l_p`` be the tangent
of ``h`` at ``p >= x0``. Let ``g_p`` be ``max(h, l_p)`` up to ``x0`` and ``l_p`` beyond. It is convex and at least
``h``. By Jensen's inequality ``E h(S) <= E g_p(S) <= E g_p(X)``, so ``delta(eps) <= min_p E g_p(X)``.

**The dual form,** which the code computes. Let ``M(c) = E[X | X > c]``, and let ``Y_c`` be ``X`` with all values above
``c`` replaced by ``M(c)``. ``Y_c`` is below ``X`` in convex order. So for every ``c`` and ``p``

    V(c) = E h(Y_c) = E[h(X); X <= c] + P(X > c) h(M(c)) <= E g_p(Y_c) <= E g_p(X).

If ``p = M(c)`` and ``l_p`` meets ``h`` at ``c``, these are equalities, because ``g_p`` is ``h`` below ``c`` and affine
above. So the bound is ``V(c)`` at the root of one equation in ``c``. No smaller bound follows from the distribution of
``X`` alone.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from privproj.distributions.beta_gamma_kernels import (
    BETA_GAMMA_KERNELS,
    beta_gamma_params,
    inflection,
    log_slope_of_delta,
    tangent_cut,
)
from privproj.distributions.squared_sensitivity import (
    BetaGammaSensitivity,
    SensitivityDistribution,
    gaussian_steepness,
    log_gaussian_delta_at,
)
from privproj.numerics.interval import Enclosure, log1m_exp, widen_outward
from privproj.numerics.root_finding import find_crossing
from privproj.numerics.special import log_add
from privproj.profiles.privacy_profile import PrivacyProfile, TwoSidedTable, profile_from_kernels

if TYPE_CHECKING:
    from privproj.distributions.binned import Bins
    from privproj.numerics.arrays import Array

VALUES_PER_DEVIATION = 40.0  # evaluations of such a profile per standard deviation of the loss


# factor of the number of bins for lower bounds from one difference (C28)
LOWER_END_REFINEMENT = 2


def rank_one_profile(dist: SensitivityDistribution | BetaGammaSensitivity, finer: int = 1) -> PrivacyProfile:
    """Return the privacy profile if neighboring sums differ by a matrix of rank one (C4).

    The profile is valid in the add and remove directions, if the methods of ``dist`` return valid values.

    Args:
        dist: The distribution of the squared sensitivity over the noise variance, for the largest allowed difference.
        finer: A factor that multiplies the number of bins, and the number of epsilons at which a composition evaluates
            the profile. A larger factor makes the composition tighter and slower.
    """
    # delta(eps) = E[h(X)] (module docstring)
    table, resolution = _table_of_bins(lambda: (dist.bins(finer),), of_any_rank=False), finer * VALUES_PER_DEVIATION
    if isinstance(dist, BetaGammaSensitivity):
        row = (dist.a, dist.b, dist.scale, 0.0)
        return profile_from_kernels(BETA_GAMMA_KERNELS, row, table=table, resolution=resolution)
    return PrivacyProfile(dist.expected_profile, table=table, resolution=resolution)


def any_rank_profile(dist: SensitivityDistribution | BetaGammaSensitivity) -> PrivacyProfile:
    """Return the privacy profile if neighboring sums differ by a matrix of any rank (C5).

    The profile is valid in the add and remove directions, if the methods of ``dist`` return valid values. ``dist`` is
    the distribution of the squared sensitivity over the noise variance, for a difference that has rank one and the
    largest allowed norm.
    """
    # delta(eps) = min_p E[g_p(X)] (module docstring)
    table = _table_of_bins(lambda: (dist.bins(),), of_any_rank=True)
    if isinstance(dist, BetaGammaSensitivity):
        row = (dist.a, dist.b, dist.scale, 1.0)
        return profile_from_kernels(BETA_GAMMA_KERNELS, row, table=table, resolution=VALUES_PER_DEVIATION)
    return PrivacyProfile(lambda eps: log_any_rank_profile(eps, dist), table=table, resolution=VALUES_PER_DEVIATION)


def any_rank_profile_of_bins(dists: "tuple[Bins, ...]", below: "tuple[Bins, ...] | None" = None) -> PrivacyProfile:
    """Return the privacy profile for a difference of any rank, from binned distributions.

    Args:
        dists: The distribution of the squared sensitivity of each layer under a joint clipping norm, or one
            distribution of the sum over all layers.
        below: Distributions for the lower bounds, if ``dists`` give upper bounds only (C28).
    """
    # delta(eps) = min_p max_l E[g_p(X_l)] for the layers l (C5, C6)
    return _profile_of_table(_table_of_bins(lambda: dists, lambda: below or dists, of_any_rank=True))


def rank_one_profile_of_bins(dist: "Bins") -> PrivacyProfile:
    """Return the privacy profile for a difference of rank one, from a binned distribution.

    ``dist`` is the distribution of the squared sensitivity over the noise variance (C4).
    """
    return _profile_of_table(_table_of_bins(lambda: (dist,), of_any_rank=False))


def _table_of_bins(
    dists: "Callable[[], tuple[Bins, ...]]",
    below: "Callable[[], tuple[Bins, ...]] | None" = None,
    *,
    of_any_rank: bool,
) -> TwoSidedTable:
    """Return functions for lower and upper bounds of delta, from binned distributions.

    Args:
        dists: A function that returns distributions of the squared sensitivity; for rank one it returns one.
        below: A function that returns the distributions for lower bounds. None means ``dists``.
        of_any_rank: True for a difference of any rank, False for rank one.
    """

    def lower(eps: "Array") -> "Array":
        from privproj.distributions import binned_profile as binned

        bins = (below or dists)()
        return binned.any_rank_deltas_below(eps, bins) if of_any_rank else binned.rank_one_deltas_below(eps, *bins)

    def upper(eps: "Array") -> "Array":
        from privproj.distributions import binned_profile as binned

        bins = dists()
        return binned.any_rank_deltas(eps, bins) if of_any_rank else binned.rank_one_deltas(eps, *bins)

    return TwoSidedTable(lower, upper)


def _profile_of_table(table: TwoSidedTable) -> PrivacyProfile:
    def log_delta(eps: float) -> Enclosure:
        import numpy as np

        return Enclosure(*(float(end[0]) for end in log_deltas(np.array([eps]))))

    def log_deltas(eps: "Array") -> "tuple[Array, Array]":
        import numpy as np

        from privproj.distributions.binned_profile import MOST_GUIDES
        from privproj.profiles.gaussian import SMALLEST_UPPER_DELTA

        # So few rows at once are as accurate as single ones.
        parts = [table(eps[i : i + MOST_GUIDES]) for i in range(0, len(eps), MOST_GUIDES)]
        lower, upper = (np.concatenate(end) for end in zip(*parts, strict=True))
        with np.errstate(divide="ignore"):
            return np.log(lower), np.log(np.maximum(upper, SMALLEST_UPPER_DELTA))

    return PrivacyProfile(log_delta, table=table, log_deltas=log_deltas, resolution=VALUES_PER_DEVIATION)


def log_any_rank_profile(eps: float, dist: SensitivityDistribution) -> Enclosure:
    """Return bounds of ``ln delta`` if neighboring sums differ by a matrix of any rank (C5).

    ``dist`` is the distribution of the squared sensitivity. The bounds are valid if its methods return valid
    values.
    """
    # C5, case 2: h is convex on the whole range, and rank one is the worst case.
    if dist.supremum <= inflection(eps):
        return dist.expected_profile(eps)
    # C5, case 1: the tangent at the mean lies above h from 0 on, and the bound is h(E X).
    if _tangent_gap(eps, dist.mean, 0.0) >= 0.0:
        value = log_gaussian_delta_at(eps, dist.mean)
        return widen_outward(value, 0.0, gaussian_steepness(value, dist))
    # Otherwise V(c) = E[h(X); X <= c] + P(X > c) h(M(c)) at the root c of l_M(c)(c) = h(c) (C5).
    far = _is_cut_beyond_doubles(eps, dist)
    cut = math.inf if far else _tangent_cut(eps, dist)
    if far or dist.log_tail(cut) < dist.least_tail:
        uncut = dist.expected_profile(eps)
        return Enclosure(uncut.lower, min(0.0, log_add(uncut.upper, dist.least_tail)))
    rounding: float = getattr(dist, "rounding", 0.0)
    above = dist.log_tail(cut) + log_gaussian_delta_at(eps, dist.mean_above(cut))
    # E[h(X); X <= c] <= P(X <= c) h(c) is omitted if it is below e^-32 < 2e-14 of the rest.
    most_below = log1m_exp(dist.log_tail(cut)) + log_gaussian_delta_at(eps, cut)
    if most_below < above - 32.0:
        return widen_outward(above, 2e-14 + rounding, gaussian_steepness(above, dist))
    # If the part below is too small to be resolved, its lower end is -inf, and the sum is still enclosed.
    below = dist.expected_profile(eps, cut)
    lower, upper = (log_add(end, above) for end in (below.lower, below.upper))
    return widen_outward(0.5 * (lower + upper), upper - lower + rounding, gaussian_steepness(upper, dist))


def _tangent_cut(eps: float, dist: SensitivityDistribution) -> float:
    """Return the ``c`` where the Gaussian delta meets its tangent at ``E[X | X > c]`` (C5).

    ``X`` is the squared sensitivity.
    """
    return find_crossing(
        lambda c: -_tangent_gap(eps, dist.mean_above(c), c),
        0.5 * inflection(eps),
        low=1e-9 * min(inflection(eps), dist.mean),
        high=inflection(eps),
        rtol=1e-12,
    ).lower


def _is_cut_beyond_doubles(eps: float, dist: SensitivityDistribution) -> bool:
    """Return whether the tail above :func:`_tangent_cut` is smaller than ``dist`` resolves."""
    if dist.log_tail(inflection(eps)) >= dist.least_tail:
        return False
    # The gap is at least 0 at x0 and negative here, so its root lies between (C5).
    last = _last_resolved_sensitivity(dist)
    return last < inflection(eps) and _tangent_gap(eps, dist.mean_above(last), last) < 0.0


@lru_cache(maxsize=8)
def _last_resolved_sensitivity(dist: SensitivityDistribution) -> float:
    """Return approximately the largest squared sensitivity whose tail ``dist`` resolves.

    The result is ``inf`` if it is unknown.
    """
    mean = dist.mean
    return find_crossing(lambda x: dist.log_tail(x) - dist.least_tail, mean, low=1e-9 * mean, high=1e300).upper


def best_tangent(eps: float, dist: BetaGammaSensitivity) -> float:
    """Return approximately the tangent point with the least any-rank bound of delta (C5)."""
    in_kernels = beta_gamma_params((dist.a, dist.b, dist.scale, 1.0))
    mean = in_kernels[2]
    best = mean if log_slope_of_delta(eps, mean)[0] <= 1.0 else tangent_cut(eps, in_kernels, math.inf)[3]
    # Every point above the inflection point gives a valid bound.
    return max(best, inflection(eps) * (1.0 + 1e-14))


def _tangent_gap(eps: float, p: float, c: float) -> float:
    """Return the tangent of the Gaussian delta at ``p`` minus delta itself, at ``c``.

    The result is divided by the delta at ``p``. Both points are squared sensitivities.
    """
    # (l_p(c) - h(c)) / h(p) = 1 - k (p - c)/p - h(c) / h(p), k = p h'(p) / h(p) (C5)
    at_c = math.exp(min(700.0, log_gaussian_delta_at(eps, c) - log_gaussian_delta_at(eps, p))) if c > 0.0 else 0.0
    return 1.0 - log_slope_of_delta(eps, p)[0] * ((p - c) / p) - at_c
