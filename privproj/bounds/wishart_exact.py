"""The default bound of the vector Wishart mechanism: its exact privacy profile."""

from typing import TYPE_CHECKING

from privproj.bound import Bound
from privproj.mechanisms import Wishart
from privproj.numerics import Enclosure
from privproj.profile import PrivacyProfile
from privproj.wishart_promise import promises, refuses_norms

if TYPE_CHECKING:
    from privproj.arrays import Array


def form(mechanism: Wishart) -> PrivacyProfile:
    """``delta(eps) = E[max(0, 1 - e^(eps - L))]`` of the least aligned pair that is promised."""
    dim, rank, misalignment = mechanism.shape

    def log_delta(eps: float) -> Enclosure:
        from privproj.vector_wishart import VectorWishart

        return VectorWishart(dim, rank, misalignment).log_delta(eps)

    def table(eps: "Array") -> "tuple[Array, Array]":
        from privproj.vector_wishart import VectorWishart

        return VectorWishart(dim, rank, misalignment).table(eps)

    return PrivacyProfile(log_delta, table=table, resolution=24.0)


BOUND = Bound(
    name="exact",
    mechanism=Wishart,
    summary="exact privacy profile at the promised misalignment; composes over fresh releases",
    formula="L = (d+1-r)/2 ln A + (W/2)(1/A - 1), A = rho + sqrt(1-rho^2) T_r/sqrt(r), W ~ chi2_(r+d-1); "
    "delta(eps) = E[max(0, 1 - e^(eps - L))], L infinite where A <= 0",
    source="privproj: the law of the privacy loss of 2601.21719, Theorem 1, averaged exactly (privproj.vector_wishart)",
    example="privproj epsilon wishart --dim 1000 --rank 16 --misalignment 8e-6 --delta 1e-5",
    form=form,
    exact=True,
    groups=False,
    promises_of=promises,
    refuses=refuses_norms,
)
