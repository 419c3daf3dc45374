"""Bound M1 on a unit vector with a secret projection (C8).

The proof conditions on the length of the projected vector and on one coordinate of the release. Given both, the
releases of two neighbors are Gaussian with the same variance.
"""

from privproj.assumptions import Assumption, DataAssumption
from privproj.distributions.mixture_profile import rank_one_profile
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms import M1
from privproj.mechanisms.bound import Bound
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.result import Status, limit_text


def representation(mechanism: M1) -> PrivacyProfile:
    """Return the profile: the mean of the Gaussian delta over a random sensitivity (C8).

    Raises:
        InvalidParameterError: The misalignment is missing.
    """
    from privproj.distributions.densities import SecretShift
    from privproj.distributions.tabulated import TabulatedSensitivity

    if mechanism.misalignment is None:
        raise InvalidParameterError(
            "misalignment", "nothing", "a number", "the bound secret-projection needs columns=1 and a misalignment"
        )
    _, rank = mechanism.shape
    # In units of a unit vector: sigma = z s, s = |v - v'| = sqrt(2 m).
    sigma = (2.0 * mechanism.misalignment) ** 0.5 / mechanism.mu
    # delta(eps) = E[h_eps(shift^2)] (C8).
    return rank_one_profile(TabulatedSensitivity(SecretShift(rank, sigma, mechanism.misalignment), 1.0))


def _unit_vector_assumptions(mechanism: M1) -> tuple[Assumption, ...]:
    """Return the assumptions: neighboring unit vectors and a secret projection."""
    most = limit_text(mechanism.misalignment or 0.0, up=False)
    return (DataAssumption.UNIT_VECTOR.at(most=most), DataAssumption.SECRET_PROJECTION.at())


def _check_vector(mechanism: M1) -> None:
    if mechanism.columns != 1 or mechanism.dim == 1:
        raise UnsupportedError(
            "the bound secret-projection needs columns=1 and dim >= 2. Use the bound known-projection"
        )
    if mechanism.misalignment == 0.0:
        raise UnsupportedError("misalignment must be above 0, because at 0 neighboring datasets do not differ")


SECRET_PROJECTION = Bound(
    name="secret-projection",
    mechanism=M1,
    summary="bound for a query that is one unit vector, if the projection stays secret",
    formula="delta(eps) = E[h_eps(shift^2)], shift = (2 sin eta/(sigma tau)) [g sqrt(sigma^2 + (g/r) sin^2 eta) + "
    "(g/r) cos eta xi], g ~ chi2_r/r, xi ~ N(0,1), tau^2 = sigma^2 + g/r, s = 2 sin eta",
    source="privproj: given the projected length the release is a Gaussian pair",
    proof="C8",
    example="--dim 1000 --rank 64 --columns 1 --misalignment 1.25e-3 --noise-multiplier 20",
    representation=representation,
    version=5,
    status=Status.CONDITIONAL,
    assumptions=_unit_vector_assumptions,
    of_group=None,
    check=_check_vector,
)
