"""The exact profile of the secret sketch when one record is one column of the query."""

import math

from privproj.errors import NotConverged
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import OF_ONE_RECORD, Bound, in_balls
from privproj.mechanisms.sketch import column_promises, has_several_layers
from privproj.numerics.interval import Enclosure
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.result import Status
from privproj.sampling import NeighbouringRelation


def sketch_profile(rank: float, nu: float) -> PrivacyProfile:
    """The profile at ``rank`` and ``nu``; ``T`` fresh releases are one of rank ``T r``, since chi-squares add (C14)."""

    def log_delta(eps: float) -> Enclosure:
        import numpy as np

        from privproj.contrib.mixing.enforced_sketch import log_sketch
        from privproj.distributions.gamma_hockey_stick import QUADRATURE_RELATIVE_ERROR
        from privproj.numerics.interval import widen_outward_each

        orders = (log_sketch(0.5 * rank, np.array([nu]), np.array([eps]), present) for present in (True, False))
        logs = np.maximum(*orders)
        lower, upper = widen_outward_each(logs, QUADRATURE_RELATIVE_ERROR, 4.0 * np.abs(logs) + 40.0)
        if upper[0] == math.inf:
            raise NotConverged("the exact profile came out undefined; please report these parameters")
        return Enclosure(float(lower[0]), float(upper[0]))

    return PrivacyProfile(log_delta, closed_form=lambda steps: sketch_profile(steps * rank, nu))


def representation(mechanism: Sketch) -> PrivacyProfile:
    """The profile at the largest ``nu`` that a column can cause, which is the worst."""
    # nu = B_S^2 / (lam + sigma_g^2/sigma_A^2) = 1/Gamma (C14).
    return sketch_profile(float(mechanism.needed_rank * mechanism.layer_count), 1.0 / mechanism.gamma_of_one_column)


def is_attained(mechanism: Sketch) -> bool:
    """True if a column of norm ``B_S`` over the eigenvalue floor fits within ``|Q|_F <= B_F`` (C4, "Which sides")."""
    total, step = mechanism.frobenius_bound, mechanism.sensitivity or 0.0
    # B_F^2 >= lam + B_S^2.
    return total is None or total**2 >= mechanism.eigen_floor + step**2


BOUND = Bound(
    name="exact-rank1",
    mechanism=Sketch,
    summary="exact where one record is one column; any number of releases in closed form",
    formula="nu = 1/Gamma, k = nu/(1+nu), w = (r ln(1+nu) - 2 eps)/k: F(w) - e^eps F(w/(1+nu)), F the chi2_r CDF, or "
    "the same with nu -> -k and upper tails, whichever is larger",
    source="privproj: the likelihood ratio of two Gaussians that differ in one direction",
    proof="C14",
    representation=representation,
    version=4,
    # T releases are one of rank T r (C14).
    ball_profile=in_balls(
        "BallSecretSketch",
        lambda mechanism, steps: (
            steps * mechanism.needed_rank * mechanism.layer_count,
            mechanism.gamma_of_one_column,
        ),
    ),
    certifies_runs=True,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    exact=True,
    is_attained=is_attained,
    promises_of=column_promises,
    default_relation=NeighbouringRelation.ZERO_OUT,
    **OF_ONE_RECORD,
)
