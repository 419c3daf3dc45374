"""Compute reference values of the privacy of random clipping in mpmath.

Claim C32 (random clipping by Gaussian probes) of docs/proofs.md proves the formulas.
"""

import mpmath as mp

from privproj.reference.calculus import Function, Real, find_root, integrate_line
from privproj.reference.distributions import (
    ReferenceDistribution,
    any_rank_delta,
    gamma_density,
    gaussian_delta_of_square,
)
from privproj.reference.gaussian import gaussian_mu
from privproj.reference.special import normal_tail


def exact(epsilon: Real, probes: int, noise_multiplier: Real) -> Real:
    """Return delta of random clipping if the adversary sees the probes (C32)."""
    a = mp.mpf(probes) / 2
    scale = gaussian_mu(noise_multiplier) ** 2 * a

    # E[h_eps(mu^2 r / chi2_r)] with r = probes, mu = 1/noise_multiplier and the Gaussian delta h_eps(x) at the squared
    # sensitivity x, over t = -ln(chi2_r / 2)
    def gain(t: Real) -> Real:
        return gamma_density(a, -t) * gaussian_delta_of_square(epsilon, scale * mp.exp(t))

    return integrate_line(gain, -mp.log(a), 1 / mp.sqrt(a))


def secret_probes(epsilon: Real, probes: int, noise_multiplier: Real) -> Real:
    """Return delta of random clipping if the probes are secret (C32)."""
    a, eps, mu = mp.mpf(probes) / 2, mp.mpf(epsilon), gaussian_mu(noise_multiplier)

    def mean(f: Function) -> Real:
        def term(t: Real) -> Real:
            return gamma_density(a, -t) * f(mu * mp.sqrt(a * mp.exp(t)))

        return integrate_line(term, -mp.log(a), 1 / mp.sqrt(a))

    # E Phi(S - x) - e^eps Phi(-x) with S = mu sqrt(r / chi2_r), r = probes, mu = 1/noise_multiplier, where x solves E
    # e^(S x - S^2/2) = e^eps
    x = find_root(lambda x: mp.log(mean(lambda s: mp.exp(s * x - s * s / 2))) - eps, eps / mu + mu / 2)
    return mean(lambda s: normal_tail(x - s)) - mp.exp(eps) * normal_tail(x)


def any_records(epsilon: Real, probes: int, noise_multiplier: Real) -> Real:
    """Return delta of random clipping if neighbors differ in several records (C32)."""
    a = mp.mpf(probes) / 2
    scale = gaussian_mu(noise_multiplier) ** 2 * a
    # min over p of E[g_p(mu^2 r / chi2_r)] with r = probes, mu = 1/noise_multiplier, where the convex function g_p
    # above the Gaussian delta has a tangent at the squared sensitivity p
    distribution = ReferenceDistribution(
        density=lambda t: gamma_density(a, -t),
        value=lambda t: scale * mp.exp(t),
        coordinate=lambda x: mp.log(x / scale),
        hill=(-mp.log(a), 1 / mp.sqrt(a)),
        # E[1/U; U < u] = P(Gamma(a - 1) < u)/(a - 1)
        tail=lambda x: _gamma_below(a, scale, x),
        moment=lambda x: scale / (a - 1) * _gamma_below(a - 1, scale, x),
    )
    return any_rank_delta(epsilon, distribution)


def _gamma_below(a: Real, scale: Real, x: Real) -> Real:
    """Return ``P(U < scale / x)`` for ``U ~ Gamma(a)``; 1 at ``x = 0``."""
    return mp.gammainc(a, 0, scale / x, regularized=True) if x > 0 else mp.mpf(1)


DELTAS: dict[str, Function] = {
    "jl-clip.exact": exact,
    "jl-clip.secret-probes": secret_probes,
    "jl-clip.any-records": any_records,
}
