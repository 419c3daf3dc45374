"""Gaussian mixing that just meets a target: how much to spend on the eigenvalue and how much on the sketch."""

import math
from functools import cache

from privproj.accounting.question import Question, ask_by_name
from privproj.curves.inversion import smallest_passing
from privproj.errors import Refused
from privproj.mechanisms import Mixing
from privproj.numerics.search import find_crossing, minimise
from privproj.runs.targets import full_target

LEAST_GAMMA = 0.01
"""Least ``gamma`` that is tried. Contract."""

LARGEST_GAMMA = 1e9
"""Largest ``gamma`` that is tried. Contract."""

ROUGH = 1e-3
"""Relative accuracy of the ``gamma`` by which the noise of the eigenvalue is chosen. Speed only."""

NARROW = 0.02
"""Least ``eigen_noise`` over that at which the first stage alone meets the target. Speed only."""


def mixing_plan(*, rank: int, epsilon: float, delta: float) -> Mixing:
    """Find the mixing in two stages with the smallest ``gamma`` whose one release meets ``(epsilon, delta)``.

    A smaller ``gamma`` adds less noise, whatever the eigenvalue is. ``eigen_noise`` is chosen such that it is smallest:
    with less of it the first stage spends more, with more of it the second stage needs a wider margin.

    Args:
        rank: The number of rows of the sketch, from 1 to 1e9.
        epsilon: The epsilon to be met, above 0 and at most 1e9.
        delta: The delta to be met, above 0 and below 1.

    Returns:
        The mechanism, whose epsilon at ``delta`` is at most ``epsilon``. That no smaller ``gamma`` does rests on a
        search.

    Raises:
        InvalidParameter: A value is outside its domain.
        Refused: No ``gamma`` up to 1e9 meets the target.

    >>> from privproj import mixing_plan
    >>> found = mixing_plan(rank=100, epsilon=4.0, delta=1e-6)
    >>> round(found.gamma, 1), round(found.eigen_noise)
    (18.9, 2)
    """
    target = full_target(epsilon, delta, None, zero=False)

    def question(gamma: float, eigen_noise: float) -> Question:
        mechanism = Mixing(rank=rank, gamma=gamma, eigen_noise=eigen_noise)
        return ask_by_name(mechanism, None, {})

    def find_gamma(noise: float, guess: float, **search: float) -> float:
        ends = {"low": LEAST_GAMMA, "high": LARGEST_GAMMA}
        return find_crossing(lambda gamma: question(gamma, noise).excess(target), guess, **ends, **search).upper

    @cache
    def least_gamma(log_noise: float) -> float:
        return find_gamma(math.exp(log_noise), 8.0 * math.exp(log_noise), rtol=ROUGH)

    # The first stage alone is the Gaussian mechanism at z = eigen_noise, of about sqrt(2 ln(1/delta))/epsilon.
    scale = math.log(math.sqrt(-2.0 * target.log_delta + 2.0 * epsilon) / epsilon)
    ends = max(scale - 1.5, math.log(LEAST_GAMMA)), max(scale + 2.5, math.log(LEAST_GAMMA) + 1.0)
    log_noise = minimise(lambda x: math.log(least_gamma(x)), *ends, rtol=NARROW, points=5)[0]
    gamma, noise = least_gamma(log_noise), math.exp(log_noise)
    if gamma == math.inf:
        raise Refused(f"no gamma up to {LARGEST_GAMMA:g} meets epsilon {epsilon:g} and delta {delta:g}")
    near = find_gamma(noise, gamma, spread=ROUGH, rtol=1e-9)
    gamma = smallest_passing(lambda x: question(x, noise).meets_target(target), near, 1e-9)
    return question(gamma, noise).only.mechanism  # pyright: ignore[reportReturnType]
