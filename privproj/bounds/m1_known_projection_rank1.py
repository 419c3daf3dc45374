"""The exact profile of M1 with a known projection when one record changes the query by a matrix of rank one."""

from typing import TYPE_CHECKING

from privproj.bound import RANK_PROMISE, Bound
from privproj.bounds.m1_known_projection import law
from privproj.mechanisms import M1
from privproj.profile import PrivacyProfile
from privproj.relations import NeighbouringRelation
from privproj.result import Status

if TYPE_CHECKING:
    from privproj.arrays import Array
    from privproj.energy import ScaledEnergy


def rank_one(energy: "ScaledEnergy") -> PrivacyProfile:
    """``delta(eps) = E[h_eps(X)]`` for this law of ``X``."""

    def table(eps: "Array") -> "tuple[Array, Array]":
        from privproj import arrays

        return arrays.from_above(arrays.rank_one_deltas(eps, energy.bins()))

    return PrivacyProfile(energy.expected_profile, table=table, resolution=40.0)


def form(mechanism: M1) -> PrivacyProfile:
    """``delta(eps) = E[h_eps(mu^2 U (U + Y)/r^2)]``."""
    return rank_one(law(mechanism))


def promises(mechanism: M1) -> tuple[str, ...]:
    """Rank one must be promised, unless the query has one column or one row."""
    return () if mechanism.largest_rank == 1 else (RANK_PROMISE.format(k=1),)


BOUND = Bound(
    name="known-projection-rank1",
    mechanism=M1,
    summary="exact for changes of rank one where the projection is known to all",
    formula="delta(eps) = E[h_eps(mu^2 X)], X = U(U+Y)/r^2, U ~ chi2_r, Y ~ chi2_(d-1), h_eps(x) the Gaussian delta at "
    "sqrt(x)",
    source="privproj: the privacy loss given the projection is Gaussian (privproj.random_sensitivity)",
    example="privproj epsilon m1 --bound known-projection-rank1 --dim 1000 --rank 256 --noise-multiplier 20 "
    "--delta 1e-5",
    form=form,
    sees_projection=True,
    status=Status.CONDITIONAL,
    promises_of=promises,
    groups=False,
    relations=(NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.ZERO_OUT),
    version=2,
)
