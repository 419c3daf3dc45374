"""The published bound of M2 with the exact Gaussian delta in place of the two-sided tail."""

from typing import TYPE_CHECKING

from privproj.curves.profile import PrivacyProfile
from privproj.mechanisms import M2
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.m2 import beta_tail as beta_tail
from privproj.mechanisms.m2._beta_tail import beta_tail_columns, beta_tail_profile
from privproj.mechanisms.m2.beta_tail import needs, promises

if TYPE_CHECKING:
    from privproj.rigorous.profiles import BallProfile


def representation(mechanism: M2) -> PrivacyProfile:
    """The Beta-tail bound with the exact Gaussian delta in place of the two-sided tail."""
    # delta(eps) = min over tau of delta_gauss(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau) (C16).
    return beta_tail_profile(mechanism, sharp=True)


def provable(mechanism: M2, steps: int) -> "BallProfile":
    """The bound in balls; its ``tau`` is the witness of the certificate."""
    return beta_tail.provable(mechanism, steps, sharp=True)


BOUND = Bound(
    name="beta-tail-sharp",
    mechanism=M2,
    summary="the published bound with the exact Gaussian term",
    formula="delta(eps) = min_tau delta_gauss(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau)",
    source="arXiv 2601.21719, Theorem 5, with Balle, Wang 2018, Theorem 8",
    example="privproj epsilon m2 --bound beta-tail-sharp --dim 2048 --rank 16 --change-rank 10"
    " --noise-multiplier 0.7787 --delta 1e-5",
    representation=representation,
    version=3,
    provable=provable,
    columns=lambda mechanism: beta_tail_columns(mechanism, sharp=True),
    promises_of=promises,
    needs=needs,
)
