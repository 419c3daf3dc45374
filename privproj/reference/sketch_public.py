"""Compute references for public Gaussian sketches in mpmath.

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
    and ``Y`` is chi-square with ``r`` degrees of freedom. See C4 (random sensitivity) and C7
    (distributions) in docs/proofs.md.
    """
    return expected_delta(epsilon, gamma_distribution(mp.mpf(rank) / 2, 2 * gaussian_mu(noise_multiplier) ** 2 / rank))


def rank_free(epsilon: Real, rank: int, noise_multiplier: Real) -> Real:
    """Return the bound on delta of a public sketch for differences of any rank.

    The result is :func:`any_rank_delta` of the squared sensitivity ``mu^2 Y/r``, where ``mu = 1/z``, and ``Y`` is
    chi-square with ``r`` degrees of freedom. See C5 (any rank) and C7 (distributions) in docs/proofs.md.
    """
    return any_rank_delta(epsilon, gamma_distribution(mp.mpf(rank) / 2, 2 * gaussian_mu(noise_multiplier) ** 2 / rank))


def least_over_radius(radius: Function, mu: Real, epsilon: Real, count: int) -> Real:
    """Return the minimum of ``n d0 + G(eps; mu radius(ln d0))`` over ``d0``.

    The result is a bound on delta (C16: good events). In each of ``n = count`` releases, a random factor of the
    sensitivity exceeds ``radius(ln d0)`` with a probability of at most ``d0``. ``G(eps; mu)`` is the Gaussian profile.
    """

    def total(s: Real) -> Real:
        log_bad = -mp.exp(s)
        return mp.log(count * mp.exp(log_bad) + gaussian_delta(epsilon, mu * radius(log_bad)))

    return min(mp.mpf(1), mp.exp(find_minimum(total, -2, 12, points=80)[1]))


def epsilon_at_split(radius: Function, mu: Real, delta: Real, count: int, split: Real) -> Real:
    """Return the ``eps`` at which ``n d0 + G(eps; mu radius(ln d0))`` is ``delta``.

    ``split`` is the fraction of ``delta`` for ``n d0``, and "even" means one half. ``G``, ``radius`` and ``n = count``
    are as in :func:`least_over_radius`.
    """
    share, delta = mp.mpf("0.5") if split == "even" else mp.mpf(split), mp.mpf(delta)
    shift = mu * radius(mp.log(share * delta / count))
    return composition.epsilon_of_profile(lambda eps: gaussian_delta(eps, shift), (1 - share) * delta)


def _radius(rank: int) -> Function:
    """Return the factor ``1 + sqrt(2 ln(1/d0)/r)`` as a function of ``ln d0``.

    A public sketch of rank ``r`` increases the norm of a difference by more than this factor with probability at most
    ``d0``. See C16 (good events) in docs/proofs.md.
    """
    return lambda log_bad: 1 + mp.sqrt(-2 * log_bad / rank)


def operator_norm(epsilon: Real, rank: int, noise_multiplier: Real, split: str = "optimal", steps: int = 1) -> Real:
    """Return delta of a public sketch by a bound on the sketched norm.

    The sketched norm is that of the difference between neighbors. Delta is minimized over the probability ``d0`` with
    which the bound on this norm fails. ``split`` is not used. See C16 (good events) in docs/proofs.md.
    """
    return least_over_radius(_radius(rank), gaussian_mu(noise_multiplier, steps), epsilon, steps)


def _operator_norm_epsilon(
    delta: Real, rank: int, noise_multiplier: Real, split: Real = "even", steps: int = 1
) -> Real:
    """Return ``eps`` of a public sketch by a bound on the sketched norm.

    ``split`` is the fraction of delta for the event that the bound of :func:`operator_norm` fails, and "even" means one
    half. See C16 (good events) in docs/proofs.md.
    """
    return epsilon_at_split(_radius(rank), gaussian_mu(noise_multiplier, steps), delta, steps, split)


DELTAS: dict[str, Function] = {
    "sketch-public.rank-free": rank_free,
    "sketch-public.exact-rank1": exact_rank1,
    "sketch-public.operator-norm": operator_norm,
}

EPSILONS: dict[str, Function] = {"sketch-public.operator-norm": _operator_norm_epsilon}
