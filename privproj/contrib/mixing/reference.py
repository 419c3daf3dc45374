"""Compute reference values of the privacy of Gaussian mixing in mpmath.

Claim C33 (a sketch whose noise follows a private least eigenvalue) of docs/proofs.md proves the formulas.
"""

import mpmath as mp

from privproj.reference.calculus import Function, Real
from privproj.reference.special import chi2_above, chi2_below, normal_density, normal_tail

WIDTH = 3  # standard deviations of the eigenvalue's noise; width of a panel of the integral


def two_stage(epsilon: Real, rank: int, gamma: Real, eigen_noise: Real) -> Real:
    """Return delta of Gaussian mixing, the maximum over add and remove directions."""
    with mp.workdps(mp.mp.dps + 10):
        epsilon, gamma, noise = mp.mpf(epsilon), mp.mpf(gamma), mp.mpf(eigen_noise)
        return max(
            _with_against_without(epsilon, rank, gamma, noise), _without_against_with(epsilon, rank, gamma, noise)
        )


def _with_against_without(epsilon: Real, rank: int, gamma: Real, noise: Real) -> Real:
    """Return delta of Gaussian mixing if only the first dataset has the record."""
    mu, end = 1 / noise, gamma / noise

    def integrand(u: Real) -> Real:
        # phi(u) R H(e^eps/R): normal density phi, R the maximum of e^(s u - s^2/2) over 0 <= s <= mu, and H the profile
        # of a sketch whose variance the record changes by the factor 1 + nu; H = 1 for u >= gamma/noise
        shift = min(max(u, mp.mpf(0)), mu)
        log_ratio = shift * u - shift**2 / 2
        if not noise * u < gamma:
            return normal_density(u) * mp.exp(log_ratio)
        nu, e = 1 / (gamma - noise * u), epsilon - log_ratio
        # present: L = (1 - 1/(1+nu)) X/2 - r ln(1+nu)/2 with X/(1+nu) or X a chi-square
        w = (rank * mp.log(1 + nu) + 2 * e) / nu
        above = (chi2_above(rank, w), chi2_above(rank, w * (1 + nu))) if w > 0 else (1, 1)
        return normal_density(u) * mp.exp(log_ratio) * (above[0] - mp.exp(e) * above[1])

    corner = mp.sqrt(2 * epsilon) if 2 * epsilon < mu**2 else epsilon / mu + mu / 2
    total = _integral(integrand, [mp.mpf(0), mu, corner], end, mu)
    if end < mu:
        return total + (mu - end) / mp.sqrt(2 * mp.pi) + mp.mpf(1) / 2
    return total + normal_tail(end - mu)


def _without_against_with(epsilon: Real, rank: int, gamma: Real, noise: Real) -> Real:
    """Return delta of Gaussian mixing if only the second dataset has the record."""
    mu, end = 1 / noise, gamma / noise

    def integrand(u: Real) -> Real:
        if not noise * u < gamma:
            return normal_density(u)
        # phi(u) H(e^eps R): R the minimum of e^(s u - s^2/2) over 0 <= s <= mu, and H the profile in this direction
        nu, e = 1 / (gamma - noise * u), epsilon + min(mp.mpf(0), mu * u - mu**2 / 2)
        w = (rank * mp.log(1 + nu) - 2 * e) * (1 + nu) / nu
        below = chi2_below(rank, w) - mp.exp(e) * chi2_below(rank, w / (1 + nu)) if w > 0 else mp.mpf(0)
        return normal_density(u) * below

    return _integral(integrand, [mu / 2, mu / 2 - epsilon / mu], end, mu) + normal_tail(end)


def _integral(integrand: Function, corners: list[Real], end: Real, mu: Real) -> Real:
    """Return the integral of ``integrand`` from minus infinity to ``end``.

    ``corners`` are points where the integrand is not smooth. Below 0 and above ``mu``, the integrand decreases at least
    as fast as a normal density.
    """
    # tails below the working precision are omitted
    reach = mp.sqrt(2 * (mp.mp.dps + 5) * mp.log(10))
    low, high = -reach, min(end, reach + mu)
    edges = {low, high, *(corner for corner in corners if low < corner < high)}
    edges |= {low + WIDTH * i for i in range(1, int((high - low) / WIDTH) + 1)}
    return mp.quad(integrand, sorted(edges))


DELTAS: dict[str, Function] = {"mixing.two-stage": two_stage}

COARSE_DIGITS: dict[str, int] = {"mixing.two-stage": 12}

LOOSE: dict[str, float] = {"mixing.two-stage.delta": 2.0**-26}
