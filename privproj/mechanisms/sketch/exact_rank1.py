"""Compute the profile of the sketch if a record is a column of the query matrix (C14)."""

import math
from typing import TYPE_CHECKING

from privproj.errors import ConvergenceError
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import OF_ONE_RECORD, Bound
from privproj.mechanisms.sketch import column_assumptions
from privproj.numerics.interval import Enclosure
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.result import Status

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array


# soundness: a smaller start of a hockey stick over its k is raised to this, which adds a relative error of at most
# 1e-11; nodes of a shorter range have no correct digits
LEAST_START = 1e-8


def log_sketch_profile(half_rank: float, nu: "Array", eps: "Array", present: bool) -> "Array":
    """Return the logs of hockey-stick divergences between neighboring sketches (C14).

    Args:
        half_rank: Half of the number of rows of the sketch.
        nu: The relative increase of the variance by the record, in one direction, for each divergence.
        eps: Epsilon for each divergence, which may be negative.
        present: Whether the first distribution of the divergence is the release with the record.
    """
    import numpy as np

    from privproj.distributions.gamma_hockey_stick import log_gamma_hockey_stick

    size, half, k = np.abs(eps), half_rank * np.log1p(nu), nu / (1.0 + nu)
    rises, logs = (eps >= 0.0) == present, np.empty_like(nu)
    with np.errstate(all="ignore"):
        for rows, rate, start, sign in (
            (rises, nu, (half + size) / nu, 1.0),
            (~rises, k, np.where(size < half, np.maximum((half - size) / k, LEAST_START * half_rank), 0.0), -1.0),
        ):
            if rows.any():
                logs[rows] = log_gamma_hockey_stick(half_rank, rate[rows], start[rows], sign)
        # H_-e(A||B) = 1 - e^-e + e^-e H_e(B||A) (C1)
        mirrored = np.logaddexp(np.log(-np.expm1(-size)), logs - size)
    return np.where(eps >= 0.0, logs, mirrored)


def sketch_profile(rank: float, nu: float) -> PrivacyProfile:
    """Return the profile of the sketch if a record is a column of the query matrix (C14).

    The record increases the variance in one direction by the relative amount ``nu``.
    """
    if nu == math.inf:
        return PrivacyProfile(lambda eps: Enclosure(-math.inf, 0.0))

    def log_delta(eps: float) -> Enclosure:
        import numpy as np

        from privproj.distributions.gamma_hockey_stick import QUADRATURE_RELATIVE_ERROR
        from privproj.numerics.interval import widen_outward_each

        orders = (log_sketch_profile(0.5 * rank, np.array([nu]), np.array([eps]), present) for present in (True, False))
        logs = np.maximum(*orders)
        lower, upper = widen_outward_each(logs, QUADRATURE_RELATIVE_ERROR, 4.0 * np.abs(logs) + 40.0)
        if not upper[0] <= 0.0:
            raise ConvergenceError("the exact profile is not a number. Please report these parameters as a bug.")
        return Enclosure(float(lower[0]), float(upper[0]))

    # Several releases with fresh sketches have the profile of one release, at the sum of their ranks.
    return PrivacyProfile(log_delta, closed_form=lambda steps: sketch_profile(steps * rank, nu))


def representation(mechanism: Sketch) -> PrivacyProfile:
    """Return the privacy profile for a record that is a column of the largest norm."""
    # nu = B_S^2 / (lam + sigma_g^2/sigma_A^2) = 1/Gamma (C14).
    return sketch_profile(float(mechanism.needed_rank * mechanism.layer_count), 1.0 / mechanism.gamma_of_one_column)


def _is_attained(mechanism: Sketch) -> bool:
    """Return whether some neighboring datasets attain the bound ``exact-rank1`` (C4)."""
    # The pair differs in a column whose norm is the sensitivity. A query matrix with n rows and the eigenvalue floor
    # lam needs |Q|_F^2 >= n lam + B_S^2. n is not known, so with both limits the result counts as an upper bound.
    total, step = mechanism.frobenius_bound, mechanism.sensitivity or 0.0
    return total is None or (mechanism.eigen_floor == 0.0 and total >= step)


EXACT_RANK1 = Bound(
    name="exact-rank1",
    mechanism=Sketch,
    summary="exact if one record is one column of the query matrix; the composition has a closed form",
    formula="nu = 1/Gamma, k = nu/(1+nu), w = (r ln(1+nu) - 2 eps)/k: F(w) - e^eps F(w/(1+nu)), F the chi2_r CDF, or "
    "the same with nu -> -k and upper tails, whichever is larger",
    source="privproj: the likelihood ratio of two Gaussians that differ in one direction",
    proof="C14",
    representation=representation,
    version=4,
    status=Status.CONDITIONAL,
    exact=_is_attained,
    assumptions=column_assumptions,
    **OF_ONE_RECORD,
)
