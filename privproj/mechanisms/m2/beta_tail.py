"""The published bound of M2, optimised over tau (2601.21719, Theorem 5)."""

from typing import TYPE_CHECKING

from privproj.curves.profile import PrivacyProfile
from privproj.mechanisms import M2
from privproj.mechanisms.bound import RANK_PROMISE, Baseline, Bound
from privproj.mechanisms.m2._beta_tail import beta_tail_columns, beta_tail_profile, rank_of_change

if TYPE_CHECKING:
    from privproj.rigorous.profiles import BallProfile


def representation(mechanism: M2) -> PrivacyProfile:
    """The profile with the two-sided tail as its Gaussian term, as published."""
    # delta(eps) = min over tau of T(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau) (2601.21719, Theorem 5; C16).
    return beta_tail_profile(mechanism, sharp=False)


def promises(mechanism: M2) -> tuple[str, ...]:
    """The promise on the rank of the change; none if the shape allows no larger rank."""
    k = rank_of_change(mechanism)
    return () if k >= mechanism.largest_rank else (RANK_PROMISE.format(k=k),)


def needs(mechanism: M2) -> str | None:
    """What is missing where neither the rank of the change nor the number of columns is given."""
    if mechanism.change_rank is None and mechanism.columns is None:
        return "change_rank (a promise) or columns (the change has rank at most min(dim, columns))"
    return None


def provable(mechanism: M2, steps: int, sharp: bool = False) -> "BallProfile":
    """The bound in balls; its ``tau`` is the witness of the certificate."""
    from privproj.rigorous.profiles import BallBetaTail

    return BallBetaTail(*mechanism.shape, rank_of_change(mechanism), mechanism.z, sharp)


BOUND = Bound(
    name="beta-tail",
    mechanism=M2,
    summary="the published bound, tau optimised; union over the k directions of the change",
    formula="delta(eps) = min_tau T(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau)",
    source="arXiv 2601.21719, Theorem 5",
    example="privproj epsilon m2 --bound beta-tail --dim 2048 --rank 16 --change-rank 10"
    " --noise-multiplier 0.7787 --delta 1e-5",
    representation=representation,
    version=3,
    provable=provable,
    columns=lambda mechanism: beta_tail_columns(mechanism, sharp=False),
    promises_of=promises,
    needs=needs,
    baseline=Baseline("published (k={k})", "single"),
)
