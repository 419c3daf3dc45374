"""Compute the exact profile of the secret sketch of one vector (C14).

The query matrix has one row ``g``. The release is an isotropic Gaussian vector, whose variance depends on the norm
``|g|`` only. So the privacy loss of a pair of neighbors depends on their two norms only.
"""

import math

from privproj.assumptions import Assumption
from privproj.errors import InvalidParameterError
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch import matrix_assumptions
from privproj.mechanisms.sketch.exact_rank1 import sketch_profile
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.result import Status


def largest_ratio(floor: float, least: float, change: float, total: float) -> float:
    """Return the largest relative difference of the variances of neighboring sketches.

    The difference is relative to the smaller variance, and rounded up.

    Args:
        floor: The variance of the noise divided by the variance of the entries of the sketching matrix.
        least: A lower bound of the norm of the sketched vector.
        change: An upper bound of the norm of the difference of neighboring vectors; ``inf`` if unknown.
        total: An upper bound of the norm of the sketched vector; ``inf`` if unknown.
    """
    # nu = max over S of (min(S + D, C)^2 - S^2)/(S^2 + a); without C the maximum is at S^2 + S D = a (C14).
    inner = 0.0 if change == math.inf else 2.0 * floor / (change + math.sqrt(change * change + 4.0 * floor))
    size = max(least, min(inner, max(total - change, 0.0)))
    # (S' - S)(S' + S) without cancellation. Rounding S = C - D must not make S' - S less than D.
    step = change if size <= total - change else total - size
    least_variance = size * size + floor
    # The squares of tiny numbers are 0.
    return step * (step + 2.0 * size) / least_variance * (1.0 + 1e-13) if least_variance > 0.0 else math.inf


def representation(mechanism: Sketch) -> PrivacyProfile:
    """Return the privacy profile for the worst pair of norms of neighboring vectors."""
    noise = mechanism.floor - mechanism.eigen_floor
    # A smaller least norm allows more pairs.
    least = math.nextafter(math.sqrt(mechanism.eigen_floor), 0.0)
    change = math.inf if mechanism.sensitivity is None else mechanism.sensitivity
    total = math.inf if mechanism.frobenius_bound is None else mechanism.frobenius_bound
    nu = largest_ratio(noise, least, change, total)
    profile = sketch_profile(float(mechanism.needed_rank * mechanism.layer_count), nu)
    # Only the profile of one release is used: the closed form for several does not hold, because either neighbor may
    # have the larger norm in each release.
    return PrivacyProfile(profile.log_delta, can_be_subsampled=False)


def _check(mechanism: Sketch) -> None:
    if mechanism.gamma is not None:
        raise InvalidParameterError(
            "gamma", mechanism.gamma, "omitted for this bound", "give noise_sigma, and frobenius_bound or sensitivity"
        )
    total = mechanism.frobenius_bound
    if total is None and mechanism.sensitivity is None:
        raise InvalidParameterError("frobenius_bound", "nothing", "a number", "give frobenius_bound or sensitivity")
    if total is not None and mechanism.eigen_floor > total**2:
        raise InvalidParameterError("eigen_floor", mechanism.eigen_floor, "at most frobenius_bound^2")


def _assumptions(mechanism: Sketch) -> tuple[Assumption, ...]:
    return () if mechanism.gamma is not None else matrix_assumptions(mechanism)


ONE_VECTOR = Bound(
    name="one-vector",
    mechanism=Sketch,
    summary="exact if the query matrix is one vector, such as one clipped update or the sum of clipped updates",
    formula="nu = max over S of (min(S+B_S, B_F)^2 - S^2)/(S^2 + sigma_g^2/sigma_A^2); then as exact-rank1",
    source="privproj: the sketch of a vector is a Gaussian whose variance depends on its norm",
    proof="C14",
    representation=representation,
    status=Status.CONDITIONAL,
    exact=True,
    of_group=None,
    assumptions=_assumptions,
    supports=("one-vector",),
    check=_check,
    example="--rank 1000 --frobenius-bound 1 --sketch-sigma 1 --noise-sigma 40 --enforced",
)
