"""Theorem 1 of the early version of 2601.21719: the loss where ``r v.y`` is not small and ``M`` not large."""

import math
from functools import cache

from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.wishart._early import EarlyBound, log_two_tails
from privproj.mechanisms.wishart._promises import alignment_promises, refuses_unequal_norms
from privproj.numerics.search import minimise
from privproj.result import Status


def representation(mechanism: Wishart) -> EarlyBound:
    """The early rule, with ``eta`` optimised for every ``t``."""

    @cache
    def log_tail(t: float) -> float:
        # 1 - PhiBar(z) P(chi2_r > t + eta) at the best eta = t e^s (C11).
        return minimise(lambda s: log_two_tails(mechanism, t, t * math.exp(s)), -25.0, 5.0, rtol=1e-9)[1]

    return EarlyBound(mechanism, log_tail)


def refuses(mechanism: Wishart) -> str | None:
    """Why there is no bound: it is proved for ``rho > 0`` and equal norms; None there."""
    if mechanism.shape[2] >= 1.0:
        return f"this bound needs an alignment above 0, got misalignment={mechanism.shape[2]:g}; use exact"
    return refuses_unequal_norms(mechanism)


BOUND = Bound(
    name="early",
    mechanism=Wishart,
    summary="the bound of the early version, its parameters optimised; loose",
    formula="eps = |d-r-1|/2 ln(rho + sqrt(1-rho^2) sqrt(R^2/t^2-1)) + R^3 sqrt(2(1-rho))/(2t^2), delta = 1 - "
    "PhiBar(z) P(chi2_r > t+eta) + 2 exp(-(sqrt R - sqrt d - sqrt r)^2/2), z = (t(1-rho) - rho eta)/"
    "sqrt((1-rho^2)(t+eta))",
    source="early version of arXiv 2601.21719, Theorem 1",
    proof="C11",
    example="privproj epsilon wishart --bound early --dim 50 --rank 40 --misalignment 1e-12 --delta 1e-5",
    representation=representation,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=alignment_promises,
    refuses=refuses,
)
