"""Find the parameters of Gaussian mixing with the least noise for a given privacy."""

import math

from privproj.accounting.calibration import Search
from privproj.accounting.query import composition_of
from privproj.contrib.mixing.mechanism import Mixing
from privproj.errors import UnsupportedError
from privproj.numerics.root_finding import find_crossing, minimize
from privproj.targets import full_target

LEAST_GAMMA = 0.01  # units of B^2; the smallest gamma of a mechanism
LARGEST_GAMMA = 1e9  # units of B^2; the search ends here


def mixing_plan(*, rank: int, epsilon: float, delta: float) -> Mixing:
    """Return Gaussian mixing with nearly the smallest ``gamma`` that meets a target.

    The target is ``epsilon`` at ``delta`` for one release. A smaller ``gamma`` adds less noise for every eigenvalue.
    The function optimizes ``eigen_noise``: a smaller value increases the privacy loss of the first stage, and with a
    larger value the second stage needs a larger ``gamma``.

    Args:
        rank: The number of rows of the sketch, from 1 to 1e9.
        epsilon: The epsilon to be met, above 0 and at most 1e9.
        delta: The delta to be met, above 0 and below 1.

    Returns:
        The mechanism. Its epsilon at ``delta`` is at most ``epsilon``. Another ``eigen_noise`` may allow a slightly
        smaller ``gamma``, because the optimization is numerical.

    Raises:
        InvalidParameterError: A value is outside its domain.
        UnsupportedError: No ``gamma`` up to 1e9 meets the target.

    >>> from privproj.contrib.mixing import mixing_plan
    >>> found = mixing_plan(rank=100, epsilon=4.0, delta=1e-6)
    >>> round(found.gamma, 1), round(found.eigen_noise)
    (18.9, 2)
    """
    target = full_target(epsilon, delta, None, zero=False)

    limits = {"low": LEAST_GAMMA, "high": LARGEST_GAMMA}

    def search_at(eigen_noise: float) -> Search:
        return Search(
            lambda gamma: composition_of(Mixing(rank=rank, gamma=gamma, eigen_noise=eigen_noise), None, {}), target
        )

    def rough_gamma(log_noise: float) -> float:
        noise = math.exp(log_noise)
        # rtol: accuracy that suffices to choose the noise of the eigenvalue
        return find_crossing(search_at(noise).excess, 8.0 * noise, rtol=1e-3, **limits).upper

    # The first stage alone is the Gaussian mechanism at z = eigen_noise, of about sqrt(2 ln(1/delta))/epsilon.
    scale = math.log(math.sqrt(-2.0 * target.log_delta + 2.0 * epsilon) / epsilon)
    ends = max(scale - 1.5, math.log(LEAST_GAMMA)), max(scale + 2.5, math.log(LEAST_GAMMA) + 1.0)
    log_noise = minimize(lambda x: math.log(rough_gamma(x)), *ends, rtol=0.02, points=5)[0]
    noise = math.exp(log_noise)
    gamma, _ = search_at(noise).least(rough_gamma(log_noise), rtol=1e-9, **limits)
    if gamma == math.inf:
        raise UnsupportedError(
            f"no gamma up to {LARGEST_GAMMA:g} meets epsilon {epsilon:g} and "
            f"delta {delta:g}. Use a larger epsilon or delta"
        )
    return Mixing(rank=rank, gamma=gamma, eigen_noise=noise)
