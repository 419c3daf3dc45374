"""The Laplace mechanism, for sensitivities in the 1-norm, and its exact profile."""

import math
from dataclasses import dataclass

from privproj.mechanisms.base import NoisyMechanism
from privproj.parameters import NOISE, parameter


@dataclass(frozen=True, kw_only=True)
class Laplace(NoisyMechanism):
    """The Laplace mechanism adds Laplace noise of scale ``z`` times the sensitivity in the 1-norm.

    Args:
        noise_multiplier: ``z``, the scale of the noise over the sensitivity, from 1e-12 to 1e12; left out (None) only
            for the sigma query.

    Raises:
        InvalidParameter: The noise multiplier is outside its range.

    >>> from privproj import Laplace, epsilon
    >>> round(epsilon(Laplace(noise_multiplier=1.0), delta=1e-5).value, 5)
    0.99998
    """

    name = "laplace"
    summary = "Plain Laplace mechanism."
    example = "noise_multiplier=2"
    assumes = (
        "one record changes what is released by at most the sensitivity in the 1-norm, and every coordinate has fresh "
        "Laplace noise whose scale is z times that",
    )
    deviation_over_scale = math.sqrt(2.0)
    """``z`` counts the scale ``b`` of the noise, whose standard deviation is ``sqrt(2) b``."""
    noise_multiplier: float | None = parameter(
        NOISE, "z = noise scale / sensitivity in the 1-norm.", "Z", is_needed=True, is_found=True
    )
