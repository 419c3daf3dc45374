"""Compute reference values for public Gaussian sketches in mpmath.

The sketching matrix has ``r`` rows (``rank``), and ``mu = 1/z`` is the sensitivity over noise.
"""

import mpmath as mp

from privproj.reference import composition
from privproj.reference.calculus import Function, Real, find_minimum
from privproj.reference.composition import gaussian_mu
from privproj.reference.distributions import any_rank_delta, expected_delta, gamma_distribution
from privproj.reference.special import gaussian_delta


def exact_rank1(epsilon: Real, rank: int, noise_multiplier: Real) -> Real:
    """Return delta of a public sketch for a difference of rank one.

    Delta is ``E[h_eps(mu^2 Y/r)]``, where ``h_eps(x)`` is the Gaussian delta at the sensitivity over noise ``sqrt(x)``
    and ``Y`` is chi-square with ``r`` degrees of freedom (the rank). ``mu`` is ``1/noise_multiplier``. See C4 (random
    sensitivity) and C7 (distributions) in docs/proofs.md.
    """
    return expected_delta(epsilon, gamma_distribution(mp.mpf(rank) / 2, 2 * gaussian_mu(noise_multiplier) ** 2 / rank))


def rank_free(epsilon: Real, rank: int, noise_multiplier: Real) -> Real:
    """Return the bound on delta of a public sketch for differences of any rank.

    The bound is :func:`any_rank_delta` for the squared sensitivity of :func:`exact_rank1`. See C5 (any rank) and C7
    (distributions) in docs/proofs.md.
    """
    return any_rank_delta(epsilon, gamma_distribution(mp.mpf(rank) / 2, 2 * gaussian_mu(noise_multiplier) ** 2 / rank))


def least_over_radius(radius: Function, mu: Real, epsilon: Real, count: int) -> Real:
    """Return a bound on delta of releases with a random factor in their sensitivity.

    In each of ``n = count`` releases, the factor exceeds ``radius(ln d0)`` with probability at most ``d0``. The bound
    is the minimum of ``n d0 + G(eps; mu radius(ln d0))`` over ``d0`` (C16: good events). ``G(eps; mu)`` is the Gaussian
    delta at the sensitivity over noise ``mu``.
    """

    def total(s: Real) -> Real:
        log_bad = -mp.exp(s)
        return mp.log(count * mp.exp(log_bad) + gaussian_delta(epsilon, mu * radius(log_bad)))

    return min(mp.mpf(1), mp.exp(find_minimum(total, -2, 12, points=80)[1]))


def epsilon_at_split(radius: Function, mu: Real, delta: Real, count: int, split: Real) -> Real:
    """Return ``eps`` of releases with a random factor in their sensitivity.

    In each of ``count`` releases, the factor exceeds ``radius(ln d0)`` with probability at most ``d0``. ``split`` is
    the fraction of ``delta`` for these events, and "even" means one half.
    """
    share, delta = mp.mpf("0.5") if split == "even" else mp.mpf(split), mp.mpf(delta)
    shift = mu * radius(mp.log(share * delta / count))
    return composition.epsilon_of_profile(lambda eps: gaussian_delta(eps, shift), (1 - share) * delta)


def _radius(rank: int) -> Function:
    """Return a function that bounds how much a public sketch increases a norm.

    The function maps the log of a probability ``d0`` to the factor ``1 + sqrt(2 ln(1/d0)/rank)``, which is exceeded
    with probability at most ``d0``. See C16 (good events) in docs/proofs.md.
    """
    return lambda log_bad: 1 + mp.sqrt(-2 * log_bad / rank)


def operator_norm(epsilon: Real, rank: int, noise_multiplier: Real, split: str = "optimal", steps: int = 1) -> Real:
    """Return delta of a public sketch from a bound on the sketched difference.

    The difference is that between neighboring matrices. Delta is minimized over the probability with which the bound on
    its norm fails. ``split`` is not used. See C16 (good events) in docs/proofs.md.
    """
    return least_over_radius(_radius(rank), gaussian_mu(noise_multiplier, steps), epsilon, steps)


def _operator_norm_epsilon(
    delta: Real, rank: int, noise_multiplier: Real, split: Real = "even", steps: int = 1
) -> Real:
    """Return ``eps`` of a public sketch from a bound on the sketched difference.

    The difference is that between neighboring matrices. ``split`` is the fraction of delta for the event that the bound
    on its norm fails, and "even" means one half. See C16 (good events) in docs/proofs.md.
    """
    return epsilon_at_split(_radius(rank), gaussian_mu(noise_multiplier, steps), delta, steps, split)


DELTAS: dict[str, Function] = {
    "sketch-public.rank-free": rank_free,
    "sketch-public.exact-rank1": exact_rank1,
    "sketch-public.operator-norm": operator_norm,
}

EPSILONS: dict[str, Function] = {"sketch-public.operator-norm": _operator_norm_epsilon}
