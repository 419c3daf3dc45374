"""The Gaussian mechanism: plain noise, without a projection; and its bounds, one theorem per file."""

from dataclasses import dataclass

from privproj.assumptions import CLIPPED_AND_NOISED
from privproj.mechanisms.base import ClippedSum


@dataclass(frozen=True, kw_only=True)
class Gaussian(ClippedSum):
    """The Gaussian mechanism releases ``V + E``, where the entries of ``E`` are independent ``N(0, sigma^2)``.

    Args:
        noise_multiplier: ``z``, the deviation ``sigma`` over the sensitivity of ``V`` in the Frobenius norm, from 1e-12
            to 1e12; left out (None) only for the sigma query.
        adaptive_clipping_sigma: ``S``, where the clip adapts to a private count: the standard deviation of the noise on
            the count, which adds 1/2 for each record of the batch that was not clipped and takes 1/2 for each one that
            was, from 1e-12 to 1e12 (a plain count has twice the sensitivity, and needs twice the noise). None: the clip
            is fixed, and nothing but the sum is released.

    Raises:
        InvalidParameter: The noise multiplier or the deviation is outside its range.

    >>> from privproj import Gaussian, epsilon
    >>> round(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5).value, 4)
    4.3772
    """

    name = "gaussian"
    summary = "Plain Gaussian mechanism (DP-SGD)."
    example = "noise_multiplier=1"
    assumes = (CLIPPED_AND_NOISED,)
