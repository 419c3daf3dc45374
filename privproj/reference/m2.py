"""Compute reference values for M2 in mpmath.

M2 adds noise and then projects ``d`` dimensions to a random subspace of dimension ``r``. The squared norm of a
projected unit vector is ``B ~ Beta(r/2, (d-r)/2)``. The projection multiplies the squared sensitivity by ``B`` and does
not change the noise variance.
"""

from itertools import pairwise

import mpmath as mp

from privproj.reference import composition
from privproj.reference.calculus import Function, Real, find_root, integrate_line, root_in_bracket
from privproj.reference.composition import gaussian_mu
from privproj.reference.distributions import (
    ReferenceDistribution,
    any_rank_delta,
    beta_density,
    beta_distribution,
    expected_delta,
    shifted_distribution,
)
from privproj.reference.special import beta_tail, gaussian_delta, normal_density, two_sided


def _captured_distribution(
    dim: int, rank: int, noise_multiplier: Real, adaptive_clipping_sigma: Real
) -> ReferenceDistribution:
    """Return the distribution of the squared sensitivity of M2 divided by the noise variance (C7).

    The difference of neighboring sums has rank one. ``adaptive_clipping_sigma`` is the standard deviation of the noise
    on a clipping count (C31: adaptive clipping).
    """
    # mu^2 B, with B the squared norm of a projected unit vector, plus a constant for the count
    energy = beta_distribution(mp.mpf(rank) / 2, mp.mpf(dim - rank) / 2, gaussian_mu(noise_multiplier) ** 2)
    return shifted_distribution(energy, composition.adaptive_count_shift(adaptive_clipping_sigma))


def exact_rank1(
    epsilon: Real, dim: int, rank: int, noise_multiplier: Real, adaptive_clipping_sigma: Real = mp.inf
) -> Real:
    """Return the exact delta of M2 for a rank-one difference of neighboring sums (C4).

    M2 adds Gaussian noise and then projects to a random subspace.
    """
    # E[h(mu^2 B)], where h(x) is the Gaussian delta at the sensitivity over noise sqrt(x); B = 1 for rank = dim
    if rank == dim:
        return gaussian_delta(epsilon, gaussian_mu(noise_multiplier, 1, adaptive_clipping_sigma))
    return expected_delta(epsilon, _captured_distribution(dim, rank, noise_multiplier, adaptive_clipping_sigma))


def rank_free(
    epsilon: Real,
    dim: int,
    rank: int,
    noise_multiplier: Real,
    sampling_rate: Real = 1,
    adaptive_clipping_sigma: Real = mp.inf,
) -> Real:
    """Return the bound on delta of M2 for a difference of neighboring sums of any rank (C5).

    M2 adds Gaussian noise and then projects to a random subspace. If the sampling rate is below 1, the bound includes
    amplification by Poisson sampling (C17).
    """
    if rank == dim:
        mu = gaussian_mu(noise_multiplier, 1, adaptive_clipping_sigma)
        return composition.poisson_delta(lambda eps: gaussian_delta(eps, mu), epsilon, sampling_rate)
    energy = _captured_distribution(dim, rank, noise_multiplier, adaptive_clipping_sigma)

    def profile(eps: Real) -> Real:
        if eps >= 0:
            return any_rank_delta(eps, energy)
        return 1 - mp.exp(eps) + mp.exp(eps) * any_rank_delta(-eps, energy)

    return composition.poisson_delta(profile, epsilon, sampling_rate)


def expected_profile(eps: Real, mu: Real, dim: int, rank: int) -> Real:
    """Return delta of M2 for a rank-one difference of neighboring sums.

    ``mu`` is the sensitivity over noise without the projection.
    """
    return exact_rank1(eps, dim, rank, 1 / mp.mpf(mu))


def beta_tail_bound(eps: Real, mu: Real, dim: int, rank: int, k: Real, tau: Real, sharp: bool) -> Real:
    """Return the Beta-tail bound on delta of M2 at its parameter ``tau`` (C16: good events).

    The bound is ``G + k P(B > tau)`` with the squared norm ``B`` of a projected unit vector and the rank ``k`` of the
    difference between neighboring sums. If ``sharp``, ``G`` is the Gaussian delta at the sensitivity over noise ``mu
    sqrt(tau)``. Otherwise it is the probability that the absolute privacy loss exceeds ``eps``.
    """
    profile = gaussian_delta if sharp else two_sided
    half = mp.mpf(1) / 2
    tail = beta_tail(rank * half, (dim - rank) * half, tau) if tau < 1 else 0
    return profile(eps, mu * mp.sqrt(tau)) + k * tail


def _least_over_tau(eps: Real, mu: Real, dim: int, rank: int, k: Real, sharp: bool, tau: Real | None = None) -> Real:
    """Return :func:`beta_tail_bound` at ``tau``, or its minimum over this parameter if None."""
    if tau is not None:
        return beta_tail_bound(eps, mu, dim, rank, k, mp.mpf(tau), sharp)
    eps, mu, a, b = mp.mpf(eps), mp.mpf(mu), mp.mpf(rank) / 2, mp.mpf(dim - rank) / 2

    def derivative(s: Real) -> Real:
        # ln of dG/dm m (1 - tau)/2 over k tau^a (1-tau)^b / Beta(a, b), m = mu sqrt(tau)
        m, rest = mu / mp.sqrt(1 + mp.exp(-s)), 1 / (1 + mp.exp(s))
        return mp.log(_gaussian_term_slope(eps, m, sharp) * m * rest / (2 * k * beta_density(a, b, s)))

    def value(s: Real) -> Real:
        return beta_tail_bound(eps, mu, dim, rank, k, 1 / (1 + mp.exp(-s)), sharp)

    with mp.workdps(mp.mp.dps // 2 + 10):
        places = _turning_points(derivative, mp.log(a / b), mp.sqrt(1 / a + 1 / b))
    return min([beta_tail_bound(eps, mu, dim, rank, k, 1, sharp), *map(value, places)])


def _gaussian_term_slope(eps: Real, m: Real, sharp: bool) -> Real:
    """Return the derivative of a bound on the Gaussian delta in the sensitivity over noise ``m``.

    If ``sharp``, the bound is the Gaussian delta. Otherwise it is the probability that the absolute privacy loss
    exceeds ``eps``.
    """
    # phi(m/2 - eps/m), or (1/2 + eps/m^2) phi(m/2 - eps/m) - (1/2 - eps/m^2) phi(m/2 + eps/m)
    near = normal_density(m / 2 - eps / m)
    if sharp:
        return near
    pull = eps / m**2
    return (mp.mpf(1) / 2 + pull) * near - (mp.mpf(1) / 2 - pull) * normal_density(m / 2 + eps / m)


def _turning_points(derivative: Function, center: Real, width: Real, count: int = 500) -> list[Real]:
    """Return the points at which ``derivative`` becomes positive.

    The search uses a grid that is finest around ``center`` and begins with steps of about ``width``.
    """
    most = mp.asinh(150 / width)
    grid = [center + width * mp.sinh(most * j / count) for j in range(-count, count + 1)]
    with mp.workdps(20):
        signs = [derivative(s) for s in grid]
    cells = [cell for cell, one, two in zip(pairwise(grid), signs, signs[1:], strict=False) if one < 0 <= two]
    return [root_in_bracket(derivative, a, derivative(a), b, derivative(b)) for a, b in cells]


def beta_tail_published(
    epsilon: Real, dim: int, rank: int, noise_multiplier: Real, change_rank: int, tau: Real | None = None
) -> Real:
    """Return the published Beta-tail bound on delta of M2 (C16: good events).

    If ``tau`` is None, the bound is minimized over this parameter; see :func:`beta_tail_bound`.
    """
    return _least_over_tau(epsilon, gaussian_mu(noise_multiplier), dim, rank, change_rank, sharp=False, tau=tau)


def beta_tail_sharp(
    epsilon: Real, dim: int, rank: int, noise_multiplier: Real, change_rank: int, tau: Real | None = None
) -> Real:
    """Return the sharper Beta-tail bound on delta of M2, with the exact Gaussian delta (C16).

    If ``tau`` is None, the bound is minimized over this parameter; see :func:`beta_tail_bound`.
    """
    return _least_over_tau(epsilon, gaussian_mu(noise_multiplier), dim, rank, change_rank, sharp=True, tau=tau)


def good_event(epsilon: Real, dim: int, rank: int, noise_multiplier: Real, change_rank: int, steps: int = 1) -> Real:
    """Return a bound on delta of a run of M2 without sampling (C16: good events).

    The bound is the Gaussian delta for projected differences of neighboring sums with norms up to a threshold, plus a
    bound on the probability that some norm exceeds this threshold. The sum is minimized over the threshold.
    """
    # good-event and good-event-q are equal without sampling:
    # min over tau of T k P(B > tau) + G(eps; mu sqrt(T tau)), with the Gaussian delta G
    return _least_over_tau(epsilon, gaussian_mu(noise_multiplier, steps), dim, rank, steps * change_rank, sharp=True)


def _good_event_split(
    delta: Real, dim: int, rank: int, noise_multiplier: Real, change_rank: int, split: Real, steps: int = 1
) -> Real:
    """Return epsilon at ``delta`` of the bound :func:`good_event`, at a given split.

    ``split`` is the fraction of delta for the event that some norm exceeds the threshold; "even" means one half.
    """
    share = mp.mpf("0.5") if split == "even" else mp.mpf(split)
    a, b, bad = mp.mpf(rank) / 2, mp.mpf(dim - rank) / 2, mp.mpf(delta) * share / (steps * change_rank)
    odds = find_root(lambda s: mp.log(beta_tail(a, b, 1 / (1 + mp.exp(-s))) / bad), mp.log(a / b))
    mu = gaussian_mu(noise_multiplier, steps) / mp.sqrt(1 + mp.exp(-odds))
    return composition.epsilon_of_profile(lambda eps: gaussian_delta(eps, mu), mp.mpf(delta) * (1 - share))


def _log_moment(dim: int, rank: int, c: Real) -> Real:
    """Return ``ln E[e^(c B)]`` for the squared norm ``B`` of a projected unit vector."""
    # B ~ Beta(r/2, (d-r)/2), and the mean is 1F1(r/2; d/2; c)
    a, b = mp.mpf(rank) / 2, mp.mpf(dim - rank) / 2
    if c < 2000:
        return mp.log(mp.hyp1f1(a, a + b, c))
    # c + ln E[e^(-c (1 - B))]
    return c + mp.log(
        integrate_line(lambda t: beta_density(a, b, t) * mp.exp(-c / (1 + mp.exp(t))), mp.log(a * (1 + c) / b))
    )


def mixture_rdp(
    epsilon: Real,
    dim: int,
    rank: int,
    noise_multiplier: Real,
    steps: int = 1,
    sampling_rate: Real = 1,
    adaptive_clipping_sigma: Real = mp.inf,
) -> Real:
    """Return delta of ``steps`` releases of M2 from their Renyi curve (C15: Renyi accounting).

    M2 adds Gaussian noise and then projects to a random subspace. Delta is minimized over the order, which is an
    integer under Poisson sampling.
    """
    # The curve of one release is ln 1F1(r/2; d/2; alpha (alpha-1) mu^2/2) / (alpha-1). With Poisson sampling it comes
    # from a binomial mixture of the moments 1F1.
    mu, count = gaussian_mu(noise_multiplier), composition.adaptive_count_shift(adaptive_clipping_sigma)

    def moment(alpha: Real) -> Real:
        pairs = alpha * (alpha - 1) / 2
        return _log_moment(dim, rank, pairs * mu**2) + pairs * count

    if sampling_rate == 1:
        return composition.delta_from_renyi(lambda alpha: steps * moment(alpha) / (alpha - 1), epsilon)
    one = composition.sampled_divergence(moment, sampling_rate)
    return composition.delta_from_whole_orders(lambda alpha: steps * one(alpha), epsilon)


def unprojected_delta(
    epsilon: Real,
    noise_multiplier: Real,
    steps: int = 1,
    dim: int = 1,
    rank: int = 1,
    adaptive_clipping_sigma: Real = mp.inf,
) -> Real:
    """Return delta of ``steps`` releases of M2 as Gaussian releases, without the projection.

    ``dim`` and ``rank`` are not used.
    """
    return gaussian_delta(epsilon, gaussian_mu(noise_multiplier, steps, adaptive_clipping_sigma))


# ``mechanism.bound -> delta(epsilon, **parameters)``
DELTAS: dict[str, Function] = {
    "m2.rank-free": rank_free,
    "m2.exact-rank1": exact_rank1,
    "m2.mixture-rdp": mixture_rdp,
    "m2.good-event": good_event,
    "m2.good-event-q": good_event,
    "m2.beta-tail": beta_tail_published,
    "m2.beta-tail-sharp": beta_tail_sharp,
    "m2.gaussian": unprojected_delta,
}

# ``mechanism.bound -> epsilon(delta, **parameters)``
EPSILONS: dict[str, Function] = {"m2.good-event": _good_event_split, "m2.good-event-q": _good_event_split}

LARGE_DIM_DIGITS = {"m2.mixture-rdp": 16, "m2.rank-free": 25, "m2.exact-rank1": 25}
