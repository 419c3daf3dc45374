"""The exact profile of M1 with a known projection when one record changes the query by a matrix of rank one."""

from privproj.curves.profile import PrivacyProfile
from privproj.laws.profiles import rank_one_profile
from privproj.mechanisms import M1
from privproj.mechanisms.bound import RANK_PROMISE, Bound
from privproj.mechanisms.m1.known_projection import allowed, law
from privproj.result import Status
from privproj.runs.sampling import NeighbouringRelation


def representation(mechanism: M1) -> PrivacyProfile:
    """The profile of the pair (projection, release) for a change of rank one."""
    # delta(eps) = E[h_eps(mu^2 U (U + Y)/r^2)] (C4, C7).
    return rank_one_profile(law(mechanism))


def promises(mechanism: M1) -> tuple[str, ...]:
    """The promise of rank one; none if the query has one column or one row."""
    return () if mechanism.largest_rank == 1 else (RANK_PROMISE.format(k=1),)


BOUND = Bound(
    name="known-projection-rank1",
    mechanism=M1,
    summary="exact for changes of rank one where the projection is known to all",
    formula="delta(eps) = E[h_eps(mu^2 X)], X = U(U+Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1), h_eps(x) the Gaussian delta at "
    "sqrt(x)",
    source="privproj: the privacy loss given the projection is Gaussian",
    proof="C4",
    example="privproj epsilon m1 --bound known-projection-rank1 --dim 1000 --rank 256 --noise-multiplier 20 "
    "--delta 1e-5",
    representation=representation,
    allows=allowed,
    sees_projection=True,
    status=Status.CONDITIONAL,
    promises_of=promises,
    groups=False,
    relations=(NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.ZERO_OUT),
    version=6,
)
