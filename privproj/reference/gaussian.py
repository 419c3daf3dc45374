"""Compute reference values for the Gaussian mechanism (C3: Gaussian profile)."""

import mpmath as mp

from privproj.errors import InvalidParameterError
from privproj.reference import composition
from privproj.reference.calculus import Function, Real
from privproj.reference.composition import gaussian_mu
from privproj.reference.special import gaussian_delta, two_sided


def analytic(
    epsilon: Real,
    noise_multiplier: Real,
    steps: int = 1,
    sampling_rate: Real = 1,
    adaptive_clipping_sigma: Real = mp.inf,
) -> Real:
    """Return the exact delta of ``steps`` Gaussian releases.

    With a ``sampling_rate`` below 1, ``steps`` must be 1, and the release is Poisson-subsampled.
    ``adaptive_clipping_sigma`` is the standard deviation of the noise on the clipping count, if there is one.

    Raises:
        InvalidParameterError: The sampling rate is below 1, and there are several steps.
    """
    if steps != 1 and sampling_rate != 1:
        raise InvalidParameterError("steps", steps, "1 for mpmath if sampling_rate is below 1", "use the bound rdp")
    mu = gaussian_mu(noise_multiplier, steps, adaptive_clipping_sigma)
    return composition.poisson_delta(lambda eps: gaussian_delta(eps, mu), epsilon, sampling_rate)


def gdp(epsilon: Real, noise_multiplier: Real, steps: int = 1) -> Real:
    """Return delta of ``steps`` Gaussian releases by Dong, Roth, Su, Corollary 2.13."""
    # equal to analytic
    return analytic(epsilon, noise_multiplier, steps)


def two_sided_tail(epsilon: Real, noise_multiplier: Real) -> Real:
    """Return the probability that ``|privacy loss| > epsilon`` for one Gaussian release.

    It is an upper bound of delta.
    """
    return two_sided(epsilon, gaussian_mu(noise_multiplier))


def _gaussian_rule(delta: Real, noise_multiplier: Real, constant: Real) -> Real:
    """Return epsilon ``sqrt(2 ln(constant/delta)) / noise_multiplier`` of one Gaussian release."""
    return gaussian_mu(noise_multiplier) * mp.sqrt(2 * mp.log(mp.mpf(constant) / mp.mpf(delta)))


def classical(delta: Real, noise_multiplier: Real, steps: int = 1, constant: Real = "1.25") -> Real:
    """Return epsilon of ``steps`` Gaussian releases by the classical rule.

    The rule for one release is ``epsilon = sqrt(2 ln(constant/delta)) / noise_multiplier``. The rule is proved only
    for epsilons below 1. Only such epsilons are composed, by basic or advanced composition.
    """
    return composition.composed_rule(
        lambda part: _gaussian_rule(part, noise_multiplier, constant), delta, steps, limit=1
    )


def classical_2(delta: Real, noise_multiplier: Real, steps: int = 1) -> Real:
    """Return epsilon of ``steps`` Gaussian releases by the classical rule with the constant 2."""
    return classical(delta, noise_multiplier, steps, constant=2)


def _divergence(noise_multiplier: Real, steps: int, adaptive_clipping_sigma: Real = mp.inf) -> Function:
    """Return the Renyi curve of ``steps`` Gaussian releases as a function of the order."""
    # alpha mu^2/2
    mu = gaussian_mu(noise_multiplier, steps, adaptive_clipping_sigma)
    return lambda alpha: alpha * mu**2 / 2


def rdp(
    epsilon: Real,
    noise_multiplier: Real,
    steps: int = 1,
    sampling_rate: Real = 1,
    adaptive_clipping_sigma: Real = mp.inf,
) -> Real:
    """Return delta of ``steps`` Gaussian releases from their Renyi curve.

    Delta is minimized over the order, which is an integer under Poisson sampling.
    """
    # The log of the j-th moment of the likelihood ratio without sampling is j (j-1) mu^2/2.
    if sampling_rate == 1:
        return composition.delta_from_renyi(_divergence(noise_multiplier, steps, adaptive_clipping_sigma), epsilon)
    mu = gaussian_mu(noise_multiplier, 1, adaptive_clipping_sigma)
    one = composition.sampled_divergence(lambda j: j * (j - 1) * mu**2 / 2, sampling_rate)
    return composition.delta_from_whole_orders(lambda alpha: steps * one(alpha), epsilon)


def rdp_epsilon(delta: Real, noise_multiplier: Real, steps: int = 1) -> Real:
    """Return epsilon of ``steps`` Gaussian releases from their Renyi curve, minimized over the order."""
    return composition.epsilon_from_renyi(_divergence(noise_multiplier, steps), delta)


def zcdp(epsilon: Real, noise_multiplier: Real, steps: int = 1) -> Real:
    """Return delta of ``steps`` Gaussian releases by zCDP with ``rho = steps / (2 noise_multiplier^2)``."""
    return composition.concentrated_delta(gaussian_mu(noise_multiplier, steps) ** 2 / 2, epsilon)


def zcdp_epsilon(delta: Real, noise_multiplier: Real, steps: int = 1) -> Real:
    """Return epsilon of ``steps`` Gaussian releases by zCDP, ``rho + 2 sqrt(rho ln(1/delta))``.

    ``rho`` is ``steps / (2 noise_multiplier^2)``.
    """
    return composition.concentrated_epsilon(gaussian_mu(noise_multiplier, steps) ** 2 / 2, delta)


DELTAS: dict[str, Function] = {
    "gaussian.analytic": analytic,
    "gaussian.two-sided": two_sided_tail,
    "gaussian.rdp": rdp,
    "gaussian.zcdp": zcdp,
    "gaussian.gdp": gdp,
}

# ``mechanism.bound -> epsilon(delta, **parameters)``
EPSILONS: dict[str, Function] = {
    "gaussian.classical": classical,
    "gaussian.classical-2": classical_2,
    "gaussian.rdp": rdp_epsilon,
    "gaussian.zcdp": zcdp_epsilon,
}
