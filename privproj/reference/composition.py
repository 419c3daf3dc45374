"""Compute composition, subsampling and conversion of privacy curves in mpmath."""

import mpmath as mp

from privproj.reference.calculus import Function, Real, find_minimum, find_root


def gaussian_mu(noise_multiplier: Real, steps: int = 1, adaptive_clipping_sigma: Real = mp.inf) -> Real:
    """Return the sensitivity over noise of ``steps`` Gaussian releases together.

    ``adaptive_clipping_sigma`` is the standard deviation of the noise on a clipping count of sensitivity 1/2 in each
    release, if there is one (C31: adaptive clipping).
    """
    # sqrt(T (1/z^2 + 1/(2 S)^2)) for T steps, the noise multiplier z and S = adaptive_clipping_sigma
    return mp.sqrt(steps * (mp.mpf(noise_multiplier) ** -2 + adaptive_count_shift(adaptive_clipping_sigma)))


def adaptive_count_shift(adaptive_clipping_sigma: Real) -> Real:
    """Return the squared sensitivity of the clipping count, divided by its noise variance (C31: adaptive clipping).

    The sensitivity of the count is 1/2. ``adaptive_clipping_sigma`` is the standard deviation of the noise.
    """
    return (2 * mp.mpf(adaptive_clipping_sigma)) ** -2


def poisson_delta(profile: Function, eps: Real, q: Real) -> Real:
    """Return delta of one Poisson-subsampled release at ``eps >= 0`` and rate ``q`` (C17).

    It is the larger delta of the add and the remove direction. ``profile`` is the privacy profile of the release
    without sampling, for positive and negative epsilons.
    """
    # With delta_0 = profile: remove q delta_0(ln(1 + (e^eps - 1)/q)), and add (1 - (1-q) e^eps) delta_0(ln q + eps -
    # ln(1 - (1-q) e^eps)) for eps < -ln(1-q), else 0.
    eps, q = mp.mpf(eps), mp.mpf(q)
    if q == 1:
        return profile(eps)
    remove = q * profile(mp.log(1 + (mp.exp(eps) - 1) / q))
    rest = 1 - (1 - q) * mp.exp(eps)
    return max(remove, rest * profile(mp.log(q) + eps - mp.log(rest))) if rest > 0 else remove


def delta_from_renyi(divergence: Function, eps: Real, low: Real = 1, high: Real = mp.inf) -> Real:
    """Return delta at ``eps`` from a Renyi curve, minimized over orders from ``low`` to ``high``.

    ``divergence`` maps an order to the Renyi divergence of the whole run (C15: Renyi accounting; conversion of Canonne,
    Kamath, Steinke 2020).
    """
    eps = mp.mpf(eps)

    def objective(alpha: Real) -> Real:
        # exp((alpha-1) (D(alpha) - eps + ln(1 - 1/alpha))) / alpha
        return (alpha - 1) * (divergence(alpha) - eps + mp.log(1 - 1 / alpha)) - mp.log(alpha)

    return min(mp.mpf(1), mp.exp(_least_over_orders(objective, low, high)))


def epsilon_from_renyi(divergence: Function, delta: Real, low: Real = 1, high: Real = mp.inf) -> Real:
    """Return epsilon at ``delta`` from a Renyi curve, minimized over orders from ``low`` to ``high``.

    ``divergence`` maps an order to the Renyi divergence of the whole run (C15: Renyi accounting; conversion of Canonne,
    Kamath, Steinke 2020).
    """
    log_delta = mp.log(mp.mpf(delta))

    def objective(alpha: Real) -> Real:
        # D(alpha) + ln(1/(alpha delta))/(alpha-1) + ln(1 - 1/alpha)
        return divergence(alpha) - (log_delta + mp.log(alpha)) / (alpha - 1) + mp.log(1 - 1 / alpha)

    return max(mp.mpf(0), _least_over_orders(objective, low, high))


def _least_over_orders(objective: Function, low: Real, high: Real) -> Real:
    """Return the minimum of ``objective(alpha)`` over orders ``low < alpha < high``."""

    def at(s: Real) -> Real:
        with mp.workdps(mp.mp.dps + (20 if mp.isinf(high) else 45)):
            share = mp.exp(s) if mp.isinf(high) else (mp.mpf(high) - low) / (1 + mp.exp(-s))
            return objective(low + share)

    return find_minimum(at, -40 if low == 1 else -20, 40 if mp.isinf(high) else 70, points=110)[1]


def delta_from_whole_orders(divergence: Function, eps: Real) -> Real:
    """Return delta at ``eps`` from a Renyi curve, minimized over integer orders from 2 on.

    ``divergence`` maps an order to the Renyi divergence of the whole run.
    """

    def objective(alpha: int) -> Real:
        a = mp.mpf(alpha)
        return (a - 1) * (divergence(a) - mp.mpf(eps) + mp.log(1 - 1 / a)) - mp.log(a)

    high = 4
    while objective(2 * high) < objective(high):
        high *= 2
    low, high = 2, 2 * high
    while high - low > 2:
        one, two = low + (high - low) // 3, high - (high - low) // 3
        low, high = (low, two) if objective(one) <= objective(two) else (one, high)
    return min(mp.mpf(1), mp.exp(min(map(objective, range(low, high + 1)))))


def sampled_divergence(log_moment: Function, q: Real) -> Function:
    """Return the Renyi curve of one Poisson-subsampled release, for integer orders (C15).

    ``q`` is the sampling rate. ``log_moment(j)`` is the log of the ``j``-th moment of the likelihood ratio without
    sampling.
    """
    q, moments = mp.mpf(q), {}

    def moment(j: int) -> Real:
        if j not in moments:
            moments[j] = mp.exp(log_moment(mp.mpf(j)))
        return moments[j]

    def divergence(alpha: Real) -> Real:
        a = int(alpha)
        # D(a) = 1/(a-1) ln sum_{j=0}^{a} C(a,j) (1-q)^(a-j) q^j e^log_moment(j)
        terms = (mp.binomial(a, j) * (1 - q) ** (a - j) * q**j * moment(j) for j in range(a + 1))
        return mp.log(mp.fsum(terms)) / (a - 1)

    return divergence


def concentrated_epsilon(rho: Real, delta: Real, omega: Real = mp.inf) -> Real:
    """Return epsilon at ``delta`` of a ``(rho, omega)``-tCDP release; ``omega = inf`` is zCDP."""
    reach = -mp.log(mp.mpf(delta))
    if reach <= (omega - 1) ** 2 * rho:
        return rho + 2 * mp.sqrt(rho * reach)
    return rho * omega + reach / (omega - 1)


def concentrated_delta(rho: Real, eps: Real, omega: Real = mp.inf) -> Real:
    """Return delta at ``eps`` of a ``(rho, omega)``-tCDP release; ``omega = inf`` is zCDP."""
    # the inverse of concentrated_epsilon
    eps = mp.mpf(eps)
    if eps <= rho:
        return mp.mpf(1)
    reach = (eps - rho) ** 2 / (4 * rho)
    return mp.exp(-reach if reach <= (omega - 1) ** 2 * rho else -(omega - 1) * (eps - rho * omega))


def basic_composition(epsilon: Real, steps: int) -> Real:
    """Return the epsilon of ``steps`` releases by basic composition."""
    return steps * mp.mpf(epsilon)


def advanced_composition(epsilon: Real, steps: int, slack: Real) -> Real:
    """Return the epsilon of ``steps`` releases by advanced composition.

    ``epsilon`` is that of one release. ``slack`` is the part of delta that the theorem adds to the deltas of the
    releases.
    """
    eps, grown = mp.mpf(epsilon), mp.exp(mp.mpf(epsilon))
    # eps sqrt(2k ln(1/d')) + k eps (e^eps - 1)/(e^eps + 1)
    return eps * mp.sqrt(2 * steps * mp.log(1 / mp.mpf(slack))) + steps * eps * (grown - 1) / (grown + 1)


def composed_rule(rule: Function, delta: Real, steps: int, limit: Real = mp.inf) -> Real:
    """Return epsilon of ``steps`` releases by the better one of basic and advanced composition.

    ``rule`` maps the delta of one release to its epsilon, which is valid only if it is below ``limit``.
    """
    # Basic composition uses the rule at delta/T. Advanced composition uses the rule at (1 - share) delta/T with the
    # slack share delta, for the best share.
    delta = mp.mpf(delta)
    if steps == 1:
        return rule(delta)

    def step(part: Real) -> Real:
        eps = rule(part)
        return eps if eps < limit else mp.inf

    def advanced(odds: Real) -> Real:
        share = 1 / (1 + mp.exp(-odds))
        eps = step((1 - share) * delta / steps)
        return advanced_composition(eps, steps, share * delta) if eps < mp.inf else mp.inf

    return min(basic_composition(step(delta / steps), steps), find_minimum(advanced, -30, 30)[1])


def epsilon_of_profile(profile: Function, delta: Real, guess: Real = 1) -> Real:
    """Return the ``eps >= 0`` at which a privacy profile equals ``delta``; 0 if ``profile(0) <= delta``."""
    delta = mp.mpf(delta)
    if profile(mp.mpf(0)) <= delta:
        return mp.mpf(0)
    return mp.exp(find_root(lambda s: mp.log(profile(mp.exp(s)) / delta), mp.log(mp.mpf(guess))))


def delta_of_rule(rule: Function, eps: Real, guess: Real = "1e-5") -> Real:
    """Return the delta for which a decreasing ``rule(delta)`` has the result ``eps``."""
    eps = mp.mpf(eps)

    def excess(s: Real) -> Real:
        value = rule(mp.exp(-mp.exp(s)))
        return mp.log(value / eps) if value < mp.inf else mp.mpf(10) ** 6

    return mp.exp(-mp.exp(find_root(excess, mp.log(-mp.log(mp.mpf(guess))), mp.mpf(1) / 4)))


OTHER_QUANTITIES: dict[str, Function] = {
    "rule.basic-composition.epsilon": basic_composition,
    "rule.advanced-composition.epsilon": advanced_composition,
}
