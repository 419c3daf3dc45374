"""Gaussian noise along one random direction (R1SMG), which is not as private as claimed."""

from dataclasses import dataclass

from privproj.mechanisms.base import NoisyMechanism
from privproj.parameters import parameter, whole_number


@dataclass(frozen=True, kw_only=True)
class R1SMG(NoisyMechanism):
    """One Gaussian number along one random direction: release ``f + z s g u``, which is not private as claimed.

    ``u`` is uniform on the sphere of dimension ``dim``, ``g`` one standard normal number, ``s`` the sensitivity of
    ``f`` in the 2-norm (arXiv 2306.02256). It stands here so that the question can be asked and refused.

    Args:
        noise_multiplier: ``z``, the deviation of the one number over the sensitivity, from 1e-12 to 1e12; left out
            (None) only for the sigma query.
        dim: The length of ``f``, from 3 to 1e9.

    Raises:
        InvalidParameter: A value is outside its range, or ``dim`` is missing.

    >>> from privproj import R1SMG, Refused, epsilon
    >>> try:
    ...     epsilon(R1SMG(dim=100, noise_multiplier=2.0), delta=1e-5)
    ... except Refused as error:
    ...     print(str(error)[:37])
    published is refuted, not a guarantee
    """

    name = "r1smg"
    summary = "Gaussian noise along one random direction: not private as claimed."
    example = "dim=100 noise_multiplier=1.64"
    can_be_sampled = False
    poisson = False
    dim: int | None = parameter(whole_number(low=3, high=10**9), "Length of the vector.", "M", is_needed=True)
