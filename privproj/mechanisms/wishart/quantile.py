"""Theorem 1 of 2601.21719: the privacy loss at quantiles of its two variables."""

from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Baseline, Bound
from privproj.mechanisms.wishart._promises import alignment_promises, refuses_unequal_norms
from privproj.mechanisms.wishart._quantiles import QuantileBound, published_loss
from privproj.result import Status


def representation(mechanism: Wishart) -> QuantileBound:
    """The rule with the published bound on the loss."""
    # eps = |d+1-r|/2 |ln a_-| + (w/2)(1/a_- - 1) (2601.21719, Theorem 1; C11).
    return QuantileBound(mechanism, published_loss)


BOUND = Bound(
    name="quantile",
    mechanism=Wishart,
    summary="the published bound for unit vectors",
    formula="eps = |d+1-r|/2 |ln a| + (w/2)(1/a - 1), a = rho - sqrt(1-rho^2) t/sqrt(r) > 0, t and w quantiles of T_r "
    "and chi2_(r+d-1) that leave out delta_T and delta_W",
    source="arXiv 2601.21719, Theorem 1",
    proof="C11",
    example="privproj epsilon wishart --bound quantile --dim 1000 --rank 16 --misalignment 8e-6 --delta 1e-5",
    representation=representation,
    status=Status.CONDITIONAL,
    groups=False,
    splits=True,
    promises_of=alignment_promises,
    refuses=refuses_unequal_norms,
    baseline=Baseline("published", "unsampled"),
    version=2,
)
