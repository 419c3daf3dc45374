"""Random clipping by Gaussian probes, and the refuted claim about noise along one random direction, in mpmath."""

import mpmath as mp

from privproj.reference.calculus import Function, Real, integrate_line
from privproj.reference.gaussian import gaussian_mu
from privproj.reference.laws import gamma_density, gaussian_delta_of_square


def exact(epsilon: Real, probes: int, noise_multiplier: Real) -> Real:
    """Return ``E[h_eps(mu^2 r / chi2_r)]`` by an integral over ``t = -ln(chi2_r / 2)`` (C32)."""
    a = mp.mpf(probes) / 2
    scale = gaussian_mu(noise_multiplier) ** 2 * a

    def gain(t: Real) -> Real:
        return gamma_density(a, -t) * gaussian_delta_of_square(epsilon, scale * mp.exp(t))

    return integrate_line(gain, -mp.log(a), 1 / mp.sqrt(a))


def published_epsilon(delta: Real, dim: int, noise_multiplier: Real) -> Real:
    """Return ``2 mu^2/psi``, ``psi = (delta Gamma((M-1)/2) / (sqrt(pi) Gamma(M/2)))^(2/(M-2))``, as claimed (C22)."""
    half = mp.mpf(dim) / 2
    psi = (mp.mpf(delta) * mp.gammaprod([half - mp.mpf(1) / 2], [half]) / mp.sqrt(mp.pi)) ** (1 / (half - 1))
    return 2 * gaussian_mu(noise_multiplier) ** 2 / psi


DELTAS: dict[str, Function] = {"jl-clip.exact": exact}
"""``mechanism.bound -> delta(epsilon, **parameters)``. Contract."""

EPSILONS: dict[str, Function] = {"r1smg.published": published_epsilon}
"""``mechanism.bound -> epsilon(delta, **parameters)``. Contract."""
