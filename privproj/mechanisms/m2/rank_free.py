"""Compute the default bound of M2, and the exact profile for rank-one differences.

Let ``B ~ Beta(r/2, (d-r)/2)`` be the squared norm of a projected unit vector, and ``mu`` the sensitivity divided by the
standard deviation of the noise. The bound ``rank-free`` holds for differences of any rank between neighboring sums. It
is ``delta(eps) <= min over p of E[g_p(mu^2 B)]`` (C5). Here ``g_p(x)`` is a convex function that is at least the
Gaussian delta for ``mu = sqrt(x)``; :mod:`privproj.distributions.mixture_profile` defines ``g_p``.
"""

import math

from privproj.distributions.mixture_profile import (
    LOWER_END_REFINEMENT,
    any_rank_profile,
    any_rank_profile_of_bins,
    rank_one_profile,
    rank_one_profile_of_bins,
)
from privproj.distributions.squared_sensitivity import BetaGammaSensitivity, ScaledBeta
from privproj.errors import UnsupportedError
from privproj.mechanisms import M2
from privproj.mechanisms.bound import OF_RANK_ONE, Bound
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import PrivacyProfile


def squared_sensitivity(mechanism: M2, dim: int, rank: int) -> BetaGammaSensitivity | ScaledBeta:
    """Return the distribution of the squared sensitivity for a difference of rank one.

    The sensitivity is taken after the projection, and its square divided by the noise variance (C7). With adaptive
    clipping, the sensitivity of the clipping count is included (C31).
    """
    # X = mu^2 |P u|^2 for a unit vector u: mu^2 Beta(r/2, (d-r)/2) (C7), and X + c^2 with a count (C31).
    plain, count = (0.5 * rank, 0.5 * (dim - rank), mechanism.mu**2), mechanism.adaptive_count_shift
    return ScaledBeta(*plain, count) if count else BetaGammaSensitivity(*plain)


def representation(mechanism: M2) -> PrivacyProfile:
    """Return the privacy profile for neighboring sums that differ by any rank (C5)."""
    if mechanism.unprojected:
        return gaussian_profile(mechanism.mu_with_count)
    one_layer = mechanism.alike
    if one_layer.layers:
        return _layered_profile(mechanism)
    # delta(eps) = min_p E[g_p(X)] (C5).
    return any_rank_profile(squared_sensitivity(one_layer, *one_layer.shape))


def _layered_profile(mechanism: M2) -> PrivacyProfile:
    from privproj.distributions.binned import beta_bins, convolve_layers, convolve_layers_below

    scale = mechanism.mu**2
    if mechanism.clipping == "per-layer":
        # min_p E[g_p(mu^2 sum_l (C_l^2/C^2) B_l)], the B_l independent (C6).
        below = convolve_layers_below(mechanism.parts, scale)
        return any_rank_profile_of_bins((convolve_layers(mechanism.parts, scale),), (below,))
    # min_p max_l E[g_p(mu^2 B_l)] (C5, joint clip over layers).
    shapes = _largest_shapes({(dim, rank) for dim, rank, _, _ in mechanism.parts})
    bins = (beta_bins(0.5 * r, 0.5 * (d - r), scale) for d, r in shapes)
    return any_rank_profile_of_bins(tuple(part.shifted(mechanism.adaptive_count_shift) for part in bins))


def _largest_shapes(shapes: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the shapes ``(dim, rank)`` of the layers whose delta can be the largest."""
    # E g(B) for convex increasing g grows with r/d and falls with d - r (C5, which layers count).
    # So a shape is omitted if another one has a ratio r/d that is not smaller and a difference d - r that is not
    # larger.
    largest: list[tuple[int, int]] = []
    for dim, rank in sorted(shapes, key=lambda shape: (shape[0] - shape[1], -shape[1])):
        if not largest or rank * largest[-1][0] > largest[-1][1] * dim:
            largest.append((dim, rank))
    return largest


def worst_differences(mechanism: M2) -> tuple[PrivacyProfile, ...]:
    """Return privacy profiles that are lower bounds on delta (C28).

    Each is the profile for a difference between neighboring sums that has rank one or equal singular values, if the
    adversary observes the projections.
    """
    if mechanism.unprojected:
        return (gaussian_profile(mechanism.mu_with_count),)
    parts = mechanism.parts
    if mechanism.clipping == "per-layer" and mechanism.alike.layers:
        from privproj.distributions.binned import convolve_layers_below

        # Rank one in every layer: X = mu^2 sum_l (C_l^2/C^2) B_l, rounded down (C6, C28).
        rank_one = [rank_one_profile_of_bins(convolve_layers_below(parts, mechanism.mu**2))]
    else:
        # Rank one in one layer: X = mu^2 B_l (C4), first of the shape that captures most.
        # three shapes suffice in practice; each is a valid lower bound
        shapes = sorted({(d, r) for d, r, _, _ in parts}, key=lambda shape: -shape[1] / shape[0])[:3]
        rank_one = [rank_one_profile(squared_sensitivity(mechanism, *shape), LOWER_END_REFINEMENT) for shape in shapes]
    return (rank_one[0], *_spread_evenly(mechanism), *rank_one[1:])


def _spread_evenly(mechanism: M2) -> tuple[PrivacyProfile, ...]:
    """Return the profile of a full-rank difference with equal singular values.

    The result is an empty tuple if the shape or an assumption on the data rules out such a difference.
    """
    most = min(mechanism.change_rank or math.inf, mechanism.columns or math.inf)
    slim = any((layer.columns or math.inf) < layer.dim for layer in mechanism.layers)
    if slim or most < max(dim for dim, _, _, _ in mechanism.parts):
        return ()
    # X = mu^2 r/d for sure: of the layer that captures most, or of all layers by their clips (C28).
    shares = [(rank / dim, count * share) for dim, rank, count, share in mechanism.parts]
    apart = mechanism.clipping == "per-layer"
    captured = math.fsum(part * share for part, share in shares) if apart else max(part for part, _ in shares)
    count = math.sqrt(mechanism.adaptive_count_shift)
    return (gaussian_profile(math.hypot(mechanism.mu * math.sqrt(captured), count) * (1.0 - 1e-15)),)


RANK_FREE = Bound(
    name="rank-free",
    mechanism=M2,
    summary="bound for neighboring sums that differ by a matrix of any rank",
    formula="delta(eps) = min_p E[g_p(mu^2 B)], B ~ Beta(r/2, (d-r)/2), g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C5",
    representation=representation,
    worst_differences=worst_differences,
    version=8,
    supports=("adaptive-clipping",),
)


def _rank_one_of(mechanism: M2) -> PrivacyProfile:
    """Return the privacy profile for neighboring sums that differ by rank one (C4).

    The result is exact for an adversary who observes the projection.
    """
    if mechanism.unprojected:
        return gaussian_profile(mechanism.mu_with_count)
    # delta(eps) = E[h_eps(mu^2 B)], B ~ Beta(r/2, (d-r)/2) (C4, C7).
    one_layer = mechanism.alike
    return rank_one_profile(squared_sensitivity(one_layer, *one_layer.shape))


def _check_one_layer(mechanism: M2) -> None:
    if sum(layer.count for layer in mechanism.layers) > 1:
        raise UnsupportedError("the bound exact-rank1 supports one projected layer only. Use the bound rank-free")


EXACT_RANK1 = Bound(
    name="exact-rank1",
    mechanism=M2,
    summary="exact for one layer, if neighboring sums have rank-one differences and the adversary sees the projection",
    formula="delta(eps) = E[h_eps(mu^2 B)], B ~ Beta(r/2, (d-r)/2), h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the privacy loss given the projection is Gaussian",
    proof="C4",
    representation=_rank_one_of,
    # Differences of rank one of several records add up to one of any rank.
    of_group=representation,
    worst_differences=lambda mechanism: worst_differences(mechanism)[:1],
    exact="given-projection",
    check=_check_one_layer,
    version=8,
    supports=("adaptive-clipping",),
    **OF_RANK_ONE,
)
