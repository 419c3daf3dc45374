"""The default bound of M2: a change of any rank, no promise on the data; and the exact profile of one of rank one.

``delta(eps) <= min over p >= x0(eps) of E[g_p(mu^2 B)]``, ``B ~ Beta(r/2, (d-r)/2)`` (C5). It is computed in
:mod:`privproj.distributions.mixture_profile`.
"""

import math
from typing import TYPE_CHECKING, Any

from privproj.distributions.beta_gamma_kernels import SHIFT_COLUMNS
from privproj.distributions.mixture_profile import (
    LOWER_END_REFINEMENT,
    any_rank_profile,
    any_rank_profile_of_bins,
    rank_one_profile,
    rank_one_profile_of_bins,
)
from privproj.distributions.squared_sensitivity import HillLaw, ScaledBeta
from privproj.mechanisms import M2
from privproj.mechanisms.bound import OF_RANK_ONE, Bound
from privproj.profiles.gaussian import GAUSSIAN_COLUMNS, gaussian_profile
from privproj.profiles.privacy_profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.contrib.certify.profiles import BallProfile
    from privproj.profiles.privacy_profile import LawRow


def law(mechanism: M2) -> HillLaw | ScaledBeta:
    """The law of the squared shift of a unit direction, with that of the count, in units of the noise."""
    return _law_of(*mechanism.shape, mechanism)


def _law_of(dim: int, rank: int, mechanism: M2) -> HillLaw | ScaledBeta:
    """That law where the layer has this shape."""
    # X = mu^2 |P u|^2 for a unit vector u: mu^2 Beta(r/2, (d-r)/2) (C7), and X + c^2 with a count (C31).
    plain, count = (0.5 * rank, 0.5 * (dim - rank), mechanism.mu**2), mechanism.adaptive_count_shift
    return ScaledBeta(*plain, count) if count else HillLaw(*plain)


def representation(mechanism: M2) -> PrivacyProfile:
    """The any-rank profile; with ``r = d`` the projection is the identity and the profile Gaussian."""
    if mechanism.unprojected:
        return gaussian_profile(mechanism.mu_with_count)
    if mechanism.alike.layers:
        return _layered_profile(mechanism)
    # delta(eps) = min_p E[g_p(X)] (C5).
    return any_rank_profile(law(mechanism.alike))


def law_row(mechanism: M2, mu: Any, any_rank: float = 1.0) -> "LawRow | None":
    """The profile over columns and the row of one release; none for layers of several shapes, or with a count."""
    if mechanism.unprojected:
        return GAUSSIAN_COLUMNS, (mechanism.mus_with_count(mu),)
    if mechanism.alike.layers or mechanism.adaptive_count_shift:
        return None
    return SHIFT_COLUMNS, (*mechanism.alike.beta_shape, mu**2, any_rank)


def _layered_profile(mechanism: M2) -> PrivacyProfile:
    """The any-rank profile of layers of several shapes, under a joint clip or with a clip for each."""
    from privproj.distributions.binned import beta_bins, convolve_layers, convolve_layers_below

    scale = mechanism.mu**2
    if mechanism.clipping == "per-layer":
        # min_p E[g_p(mu^2 sum_l (C_l^2/C^2) B_l)], the B_l independent (C6).
        below = convolve_layers_below(mechanism.parts, scale)
        return any_rank_profile_of_bins((convolve_layers(mechanism.parts, scale),), (below,))
    # min_p max_l E[g_p(mu^2 B_l)] (C5, joint clip over layers).
    shapes = _largest_shapes({(dim, rank) for dim, rank, _, _ in mechanism.parts})
    bins = (beta_bins(0.5 * r, 0.5 * (d - r), scale) for d, r in shapes)
    return any_rank_profile_of_bins(tuple(law.shifted(mechanism.adaptive_count_shift) for law in bins))


def _largest_shapes(shapes: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The shapes ``(dim, rank)`` that may be the worst layer: no other has both ``r/d`` and ``-(d - r)`` no smaller."""
    # E g(B) for convex increasing g grows with r/d and falls with d - r (C5, which layers count).
    largest: list[tuple[int, int]] = []
    for dim, rank in sorted(shapes, key=lambda shape: (shape[0] - shape[1], -shape[1])):
        if not largest or rank * largest[-1][0] > largest[-1][1] * dim:
            largest.append((dim, rank))
    return largest


def worst_changes(mechanism: M2) -> tuple[PrivacyProfile, ...]:
    """Profiles of changes that are allowed, as whoever sees the projections has them: rank one, and spread evenly."""
    if mechanism.unprojected:
        return (gaussian_profile(mechanism.mu_with_count),)
    parts = mechanism.parts
    if mechanism.clipping == "per-layer" and mechanism.alike.layers:
        from privproj.distributions.binned import convolve_layers_below

        # Rank one in every layer: X = mu^2 sum_l (C_l^2/C^2) B_l, rounded down (C6, C28).
        rank_one = [rank_one_profile_of_bins(convolve_layers_below(parts, mechanism.mu**2))]
    else:
        # Rank one in one layer: X = mu^2 B_l (C4), first of the shape that captures most.
        # How many shapes of layers are tried for a change of rank one that is allowed. Speed only.
        shapes = sorted({(d, r) for d, r, _, _ in parts}, key=lambda shape: -shape[1] / shape[0])[:3]
        rank_one = [rank_one_profile(_law_of(*shape, mechanism), LOWER_END_REFINEMENT) for shape in shapes]
    return (rank_one[0], *_spread_evenly(mechanism), *rank_one[1:])


def _spread_evenly(mechanism: M2) -> tuple[PrivacyProfile, ...]:
    """The profile of a change with equal singular values in every direction; none where its rank is ruled out."""
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


def ball_profile(mechanism: M2, steps: int, *, rank_one: bool = False) -> "BallProfile":
    """The bound in balls, its tangent the witness, or that of rank one; Gaussian where nothing is projected."""
    from privproj.contrib.certify.profiles import BallAnyRank, BallGaussianProfile, BallRandomSensitivity

    if mechanism.unprojected:
        return BallGaussianProfile(mechanism.z)
    return (BallRandomSensitivity if rank_one else BallAnyRank)(mechanism.shape, mechanism.z)


RANK_FREE = Bound(
    name="rank-free",
    mechanism=M2,
    summary="change of any rank, no promise on the data; two to three times tighter than the published bound",
    formula="delta(eps) = min_p E[g_p(mu^2 B)], B ~ Beta(r/2, (d-r)/2), g_p the convex majorant of the Gaussian delta",
    source="privproj: Jensen's inequality on a convex majorant",
    proof="C5",
    representation=representation,
    worst_changes=worst_changes,
    ball_profile=ball_profile,
    law_row=law_row,
    independent_layers=lambda mechanism: mechanism.projects_apart,
    version=8,
    supports_adaptive_clipping=True,
)


def _rank_one_of(mechanism: M2) -> PrivacyProfile:
    """The profile of the pair (projection, release) for a change of rank one."""
    if mechanism.unprojected:
        return gaussian_profile(mechanism.mu_with_count)
    # delta(eps) = E[h_eps(mu^2 B)], B ~ Beta(r/2, (d-r)/2) (C4, C7).
    return rank_one_profile(law(mechanism.alike))


def refuses(mechanism: M2) -> str | None:
    """Why there is no bound for several layers: rank one in one of them need not be the worst case."""
    if sum(layer.count for layer in mechanism.layers) > 1:
        return "exact-rank1 is about one projected layer: over several, a spread change can cost more; use rank-free"
    return None


def notes(mechanism: M2) -> tuple[str, ...]:
    """A note where a change of higher rank was promised than this bound is about."""
    if (mechanism.change_rank or 1) > 1:
        return (
            f"change_rank={mechanism.change_rank} is given, but this bound holds only if every change has rank one",
        )
    return ()


EXACT_RANK1 = Bound(
    name="exact-rank1",
    mechanism=M2,
    summary="exact for changes of rank one where the projection is known: one linear layer, one input vector each",
    formula="delta(eps) = E[h_eps(mu^2 B)], B ~ Beta(r/2, (d-r)/2), h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the privacy loss given the projection is Gaussian",
    proof="C4",
    representation=_rank_one_of,
    # Changes of rank one of several records add up to one of any rank.
    of_several=representation,
    worst_changes=lambda mechanism: worst_changes(mechanism)[:1],
    ball_profile=lambda mechanism, steps: ball_profile(mechanism, steps, rank_one=True),
    law_row=lambda mechanism, mu: law_row(mechanism, mu, any_rank=0.0),
    adversary_sees_projection=True,
    refuses=refuses,
    notes=notes,
    version=8,
    supports_adaptive_clipping=True,
    **OF_RANK_ONE,
)
