"""The exact profile of the public sketch when one record changes the query by a matrix of rank one."""

from typing import TYPE_CHECKING

from privproj.curves.profile import PrivacyProfile
from privproj.laws.profiles import rank_one_profile
from privproj.mechanisms import PublicSketch
from privproj.mechanisms.bound import RANK_PROMISE, Bound
from privproj.mechanisms.sketch_public.rank_free import allowed, columns, law
from privproj.result import Status
from privproj.runs.sampling import NeighbouringRelation

if TYPE_CHECKING:
    from privproj.rigorous.profiles import BallProfile


def representation(mechanism: PublicSketch) -> PrivacyProfile:
    """The exact profile for a change of rank one."""
    # delta(eps) = E[h_eps(mu^2 chi2_r / r)] (C4, C7).
    return rank_one_profile(law(mechanism))


def promises(mechanism: PublicSketch) -> tuple[str, ...]:
    """The promise that every change has rank one."""
    return (RANK_PROMISE.format(k=1),)


def provable(mechanism: PublicSketch, steps: int) -> "BallProfile":
    """The integral of the exact profile in balls."""
    from privproj.rigorous.profiles import BallRandomSensitivity

    return BallRandomSensitivity(mechanism.needed_rank, mechanism.z)


BOUND = Bound(
    name="exact-rank1",
    mechanism=PublicSketch,
    summary="sketch known to all, noise after: exact for changes of rank one",
    formula="delta(eps) = E[h_eps(mu^2 chi2_r / r)], h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the privacy loss given the sketch is Gaussian",
    proof="C4",
    example="privproj epsilon sketch-public --bound exact-rank1 --rank 16 --noise-multiplier 1 --delta 1e-5",
    representation=representation,
    allows=lambda mechanism: allowed(mechanism)[:1],
    provable=provable,
    columns=lambda mechanism: columns(mechanism, any_rank=0.0),
    status=Status.CONDITIONAL,
    exact=True,
    promises_of=promises,
    groups=False,
    relations=(NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.ZERO_OUT),
    version=5,
)
