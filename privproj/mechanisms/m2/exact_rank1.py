"""The exact profile of M2 with a known projection when one record changes the query by a matrix of rank one."""

from privproj.curves.gaussian import gaussian_profile
from privproj.curves.profile import PrivacyProfile
from privproj.laws.profiles import rank_one_profile
from privproj.mechanisms import M2
from privproj.mechanisms.bound import OF_RANK_ONE, Bound
from privproj.mechanisms.m2.rank_free import allowed, columns, law, provable


def representation(mechanism: M2) -> PrivacyProfile:
    """The profile of the pair (projection, release) for a change of rank one."""
    if mechanism.unprojected:
        return gaussian_profile(mechanism.joint_mu)
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


BOUND = Bound(
    name="exact-rank1",
    mechanism=M2,
    summary="exact for changes of rank one where the projection is known: one linear layer, one input vector each",
    formula="delta(eps) = E[h_eps(mu^2 B)], B ~ Beta(r/2, (d-r)/2), h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the privacy loss given the projection is Gaussian",
    proof="C4",
    example="privproj epsilon m2 --bound exact-rank1 --dim 2048 --rank 16 --noise-multiplier 0.3814 --delta 1e-5",
    representation=representation,
    allows=lambda mechanism: allowed(mechanism)[:1],
    provable=lambda mechanism, steps: provable(mechanism, steps, rank_one=True),
    columns=lambda mechanism, mu: columns(mechanism, mu, any_rank=0.0),
    sees_projection=True,
    refuses=refuses,
    notes=notes,
    version=6,
    counts_clipped=True,
    **OF_RANK_ONE,
)
