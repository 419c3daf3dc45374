"""The exact profile of the public sketch when one record changes the query by a matrix of rank one."""

from typing import TYPE_CHECKING

from privproj.bound import RANK_PROMISE, Bound
from privproj.bounds.sketch_public_rank_free import law
from privproj.mechanisms import PublicSketch
from privproj.profile import PrivacyProfile
from privproj.random_sensitivity import log_expected_profile
from privproj.relations import NeighbouringRelation
from privproj.result import Status

if TYPE_CHECKING:
    from privproj.arrays import Array
    from privproj.rigorous.profiles import Profile


def form(mechanism: PublicSketch) -> PrivacyProfile:
    """``delta(eps) = E[h_eps(mu^2 chi2_r / r)]``."""
    energy = law(mechanism)

    def table(eps: "Array") -> "tuple[Array, Array]":
        from privproj import arrays

        return arrays.from_above(arrays.rank_one_deltas(eps, arrays.gamma_bins(energy.a, energy.scale)))

    return PrivacyProfile(lambda eps: log_expected_profile(eps, energy), table=table, resolution=40.0)


def promises(mechanism: PublicSketch) -> tuple[str, ...]:
    """Rank one must be promised."""
    return (RANK_PROMISE.format(k=1),)


def provable(mechanism: PublicSketch, steps: int) -> "Profile":
    """The bound in balls."""
    from privproj.rigorous.profiles import RandomSensitivity

    return RandomSensitivity(mechanism.needed_rank, mechanism.z)


BOUND = Bound(
    name="exact-rank1",
    mechanism=PublicSketch,
    summary="sketch known to all, noise after: exact for changes of rank one",
    formula="delta(eps) = E[h_eps(mu^2 chi2_r / r)], h_eps(x) the Gaussian delta at sqrt(x)",
    source="privproj: the privacy loss given the sketch is Gaussian (privproj.random_sensitivity)",
    example="privproj epsilon sketch-public --bound exact-rank1 --rank 16 --noise-multiplier 1 --delta 1e-5",
    form=form,
    provable=provable,
    status=Status.CONDITIONAL,
    exact=True,
    promises_of=promises,
    groups=False,
    relations=(NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.ZERO_OUT),
)
