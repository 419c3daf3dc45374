"""Compute reference values for public Gaussian sketches in mpmath.

A public sketch multiplies by a Gaussian matrix of ``rank`` rows, which the adversary knows, and adds noise.
"""

import mpmath as mp

from privproj.reference import composition
from privproj.reference.calculus import Function, Real, find_minimum
from privproj.reference.composition import gaussian_mu
from privproj.reference.distributions import any_rank_delta, expected_delta, gamma_distribution
from privproj.reference.special import gaussian_delta


def exact_rank1(epsilon: Real, rank: int, noise_multiplier: Real) -> Real:
    """Return the exact delta of a public sketch for a difference of rank one (C4, C7)."""
    # E[h(mu^2 Y/r)], where h(x) is the Gaussian delta at the sensitivity over noise sqrt(x), and Y is chi-square with r
    # = rank degrees of freedom
    return expected_delta(epsilon, gamma_distribution(mp.mpf(rank) / 2, 2 * gaussian_mu(noise_multiplier) ** 2 / rank))


def rank_free(epsilon: Real, rank: int, noise_multiplier: Real) -> Real:
    """Return the bound on delta of a public sketch for a difference of any rank (C5, C7)."""
    return any_rank_delta(epsilon, gamma_distribution(mp.mpf(rank) / 2, 2 * gaussian_mu(noise_multiplier) ** 2 / rank))


def least_over_radius(radius: Function, mu: Real, epsilon: Real, count: int) -> Real:
    """Return a bound on delta of releases with a random factor in their sensitivity (C16: good events).

    The bound is the probability that some factor is too large plus a Gaussian delta, minimized over this probability.

    Args:
        radius: Map from ``ln p`` to a value that the factor of a release exceeds with probability at most ``p``.
        mu: The sensitivity over noise of all releases together, without the factor.
        epsilon: The epsilon of the bound.
        count: The number of releases.
    """
    # min over d0 of n d0 + G(eps; mu radius(ln d0)), with the Gaussian delta G

    def total(s: Real) -> Real:
        log_bad = -mp.exp(s)
        return mp.log(count * mp.exp(log_bad) + gaussian_delta(epsilon, mu * radius(log_bad)))

    return min(mp.mpf(1), mp.exp(find_minimum(total, -2, 12, points=80)[1]))


def epsilon_at_split(radius: Function, mu: Real, delta: Real, count: int, split: Real) -> Real:
    """Return epsilon of releases with a random factor in their sensitivity (C16: good events).

    Args:
        radius: Map from ``ln p`` to a value that the factor of a release exceeds with probability at most ``p``.
        mu: The sensitivity over noise of all releases together, without the factor.
        delta: The delta of the bound.
        count: The number of releases.
        split: The fraction of delta for the event that some factor is too large; "even" means one half.
    """
    share, delta = mp.mpf("0.5") if split == "even" else mp.mpf(split), mp.mpf(delta)
    shift = mu * radius(mp.log(share * delta / count))
    return composition.epsilon_of_profile(lambda eps: gaussian_delta(eps, shift), (1 - share) * delta)


def _radius(rank: int) -> Function:
    """Return a map from ``ln p`` to a bound on the factor by which a public sketch increases a norm.

    The factor exceeds the bound with probability at most ``p`` (C16: good events).
    """
    # 1 + sqrt(2 ln(1/p)/rank)
    return lambda log_bad: 1 + mp.sqrt(-2 * log_bad / rank)


def operator_norm(epsilon: Real, rank: int, noise_multiplier: Real, split: str = "optimal", steps: int = 1) -> Real:
    """Return delta of a public sketch from a bound on the sketched difference of neighbors (C16).

    Delta is minimized over the probability with which the bound fails. ``split`` is not used.
    """
    return least_over_radius(_radius(rank), gaussian_mu(noise_multiplier, steps), epsilon, steps)


def _operator_norm_epsilon(
    delta: Real, rank: int, noise_multiplier: Real, split: Real = "even", steps: int = 1
) -> Real:
    """Return epsilon of a public sketch from a bound on the sketched difference of neighbors (C16).

    ``split`` is the fraction of delta for the event that the bound fails; "even" means one half.
    """
    return epsilon_at_split(_radius(rank), gaussian_mu(noise_multiplier, steps), delta, steps, split)


DELTAS: dict[str, Function] = {
    "sketch-public.rank-free": rank_free,
    "sketch-public.exact-rank1": exact_rank1,
    "sketch-public.operator-norm": operator_norm,
}

EPSILONS: dict[str, Function] = {"sketch-public.operator-norm": _operator_norm_epsilon}
