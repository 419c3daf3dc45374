"""References for Gaussian sketches with noise (C14: the secret sketch), in mpmath.

``Gamma`` is the assumed lower bound of the eigenvalues plus the noise, divided by the largest difference between
neighbors.
"""

import mpmath as mp

from privproj.reference import composition
from privproj.reference.calculus import Function, Real
from privproj.reference.special import chi2_above, chi2_below


def _tight_divergence(alpha: Real, front: Real, gamma: Real) -> Real:
    """Return the Renyi curve of the bound ``rdp-tight`` at an order below ``gamma``.

    ``front`` is ``r/2`` for rank ``r``, times the numbers of releases, eigenvalues and layers. See C14 (the secret
    sketch) in docs/proofs.md.
    """
    with mp.workdps(2 * mp.mp.dps + 20):
        gamma = mp.mpf(gamma)
        # front/(alpha-1) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)]
        return front / (alpha - 1) * (alpha * mp.log(1 - 1 / gamma) - mp.log(1 - alpha / gamma))


def _sharp_divergence(alpha: Real, front: Real, gamma: Real) -> Real:
    """Return the Renyi curve of the bound ``rdp-sharp`` at an order below ``gamma + 1``.

    ``front`` is ``r/2`` for rank ``r``, times the numbers of releases and layers. See C14 (the secret sketch) in
    docs/proofs.md.
    """
    with mp.workdps(2 * mp.mp.dps + 20):
        gamma = mp.mpf(gamma)
        # front/(alpha-1) [-(alpha-1) ln(1 + 1/Gamma) - ln(1 - (alpha-1)/Gamma)]
        return front / (alpha - 1) * (-(alpha - 1) * mp.log(1 + 1 / gamma) - mp.log(1 - (alpha - 1) / gamma))


def rdp(epsilon: Real, rank: int, gamma: Real, eigenvalues: int = 1, steps: int = 1, layer_count: int = 1) -> Real:
    """Return delta of a sketch by the published Renyi curve, at the best order.

    The curve has ``eigenvalues``, the rank of the difference of neighboring ``Q Q^T``, as a factor. The order is below
    ``gamma``.
    """
    front = mp.mpf(rank * eigenvalues * steps * layer_count) / 2
    return composition.delta_from_renyi(lambda alpha: _tight_divergence(alpha, front, gamma), epsilon, 1, mp.mpf(gamma))


def rdp_tight(epsilon: Real, rank: int, gamma: Real, steps: int = 1, layer_count: int = 1) -> Real:
    """Return delta of a sketch by :func:`rdp` with one eigenvalue.

    This bound holds for differences of every rank. See C14 (the secret sketch) in docs/proofs.md.
    """
    return rdp(epsilon, rank, gamma, 1, steps, layer_count)


def rdp_best(epsilon: Real, rank: int, gamma: Real, steps: int = 1, layer_count: int = 1) -> Real:
    """Return the smaller delta of the Renyi curves ``rdp-tight`` and ``rdp-sharp``.

    Orders are below ``gamma`` for the first curve, and from 2 to below ``gamma + 1`` for the second. See C14 (the
    secret sketch) in docs/proofs.md.
    """
    front, gamma = mp.mpf(rank * steps * layer_count) / 2, mp.mpf(gamma)
    one = composition.delta_from_renyi(lambda alpha: _tight_divergence(alpha, front, gamma), epsilon, 1, gamma)
    return min(
        one, composition.delta_from_renyi(lambda alpha: _sharp_divergence(alpha, front, gamma), epsilon, 2, gamma + 1)
    )


def divergence_at_order(order: Real, rank: int, gamma: Real, eigenvalues: int) -> Real:
    """Return the published Renyi curve of a sketch at one order."""
    return _tight_divergence(mp.mpf(order), mp.mpf(rank * eigenvalues) / 2, gamma)


def one_step_delta(epsilon: Real, rank: int, frobenius_bound: Real, sensitivity: Real, noise_sigma: Real) -> Real:
    """Return delta of one step of LoRA as a sketch.

    ``Gamma = r sigma_g^2 / (2 B_F B_S)``, with the rank ``r``, the noise ``sigma_g``, the Frobenius bound ``B_F`` and
    the sensitivity ``B_S``. The sketch has variance ``1/r``, and no lower bound of the eigenvalues is assumed. See C14
    (the secret sketch) in docs/proofs.md.
    """
    change = 2 * mp.mpf(frobenius_bound) * mp.mpf(sensitivity)
    return rdp_best(epsilon, rank, rank * mp.mpf(noise_sigma) ** 2 / change)


def by_design_delta(
    epsilon: Real,
    rank: int,
    frobenius_bound: Real,
    sensitivity: Real,
    noise_sigma: Real,
    step_smoothness: Real,
    eigenvalues: int,
    steps: int = 1,
) -> Real:
    """Return delta of LoRA as a sketch by the published design rule for ``Gamma``.

    ``Gamma = (p/4) b r sigma_g^2 / (C^2 T ((1 + p)^T - 1))``, with ``p = step_smoothness``, ``b = 2 C/B_S``, the rank
    ``r``, the noise ``sigma_g``, the Frobenius bound ``C``, the sensitivity ``B_S`` and ``T`` steps. The published
    factor ``eigenvalues`` is included.
    """
    product, norm = mp.mpf(step_smoothness), mp.mpf(frobenius_bound)
    batch = 2 * norm / mp.mpf(sensitivity)
    gamma = product / 4 * batch * rank * mp.mpf(noise_sigma) ** 2
    return rdp(epsilon, rank, gamma / (norm**2 * steps * ((1 + product) ** steps - 1)), eigenvalues)


def tcdp(epsilon: Real, rank: int, gamma: Real, eigenvalues: int, steps: int = 1) -> Real:
    """Return delta of ``steps`` sketches by tCDP.

    For ``T`` steps, rank ``r`` and ``n`` eigenvalues, they are ``(T r n/(2 Gamma^2), 2 Gamma/5)``-tCDP. See C14 (the
    secret sketch) in docs/proofs.md.
    """
    gamma = mp.mpf(gamma)
    return composition.concentrated_delta(steps * rank * eigenvalues / (2 * gamma**2), epsilon, 2 * gamma / 5)


def exact_rank1(epsilon: Real, rank: int, gamma: Real, steps: int = 1, layer_count: int = 1) -> Real:
    """Return the exact delta of a secret sketch for a rank-one difference.

    It is the larger one of both directions. With ``nu = 1/Gamma``, one direction is ``F(w) - e^eps F(w/(1+nu))``, where
    ``F`` is the chi-square distribution function with ``r`` degrees of freedom and
    ``w = (r ln(1+nu) - 2 eps)(1+nu)/nu``; it is 0 unless ``w > 0``. The other direction has ``-nu/(1+nu)`` for ``nu``
    and upper tails for ``F``. Several releases and layers add their degrees of freedom. See C14 (the secret sketch) in
    docs/proofs.md.
    """
    degrees, nu = rank * steps * layer_count, 1 / mp.mpf(gamma)
    with mp.workdps(mp.mp.dps + 20 + int(2 * abs(mp.log10(nu)))):
        return max(
            _one_order_delta(degrees, nu, epsilon, chi2_below),
            _one_order_delta(degrees, -nu / (1 + nu), epsilon, chi2_above),
        )


def _one_order_delta(degrees: int, nu: Real, epsilon: Real, tail: Function) -> Real:
    """Return ``F(w) - e^eps F(w/(1+nu))`` for one direction, where ``F`` is ``tail``.

    ``w = (r ln(1+nu) - 2 eps)(1+nu)/nu`` for ``r`` degrees of freedom; the result is 0 unless ``w > 0``.
    """
    w = (degrees * mp.log(1 + nu) - 2 * mp.mpf(epsilon)) * (1 + nu) / nu
    return tail(degrees, w) - mp.exp(epsilon) * tail(degrees, w / (1 + nu)) if w > 0 else mp.mpf(0)


def one_vector(
    epsilon: Real,
    rank: int,
    noise_sigma: Real,
    sketch_sigma: Real,
    frobenius_bound: Real | None = None,
    sensitivity: Real | None = None,
) -> Real:
    """Return the exact delta of the sketch of one vector.

    The worst pair of norms ``S <= S'`` has the largest ``nu = (S'^2 - S^2)/(S^2 + a)``, where ``a`` is the squared
    ratio of noise and sketch deviations. ``S'`` is at most the Frobenius bound ``B_F`` and at most ``S + B_S``, with
    the sensitivity ``B_S``. The maximum is at ``S^2 + S B_S = a`` or at ``S = B_F - B_S``, whichever ``S`` is smaller.
    Without ``B_S`` it is at ``S = 0``. See C14 (the secret sketch) in docs/proofs.md.
    """
    a = (mp.mpf(noise_sigma) / mp.mpf(sketch_sigma)) ** 2
    if sensitivity is None:
        nu = mp.mpf(frobenius_bound) ** 2 / a
    else:
        step = mp.mpf(sensitivity)
        size = (mp.sqrt(step**2 + 4 * a) - step) / 2
        if frobenius_bound is not None:
            size = min(size, max(mp.mpf(frobenius_bound) - step, mp.mpf(0)))
            step = min(step, mp.mpf(frobenius_bound) - size)
        nu = (step**2 + 2 * size * step) / (size**2 + a)
    return exact_rank1(epsilon, rank, 1 / nu)


DELTAS: dict[str, Function] = {
    "sketch.one-vector": one_vector,
    "sketch.rdp-best": rdp_best,
    "sketch.exact-rank1": exact_rank1,
    "sketch.rdp-tight": rdp_tight,
    "sketch.rdp": rdp,
    "sketch.tcdp": tcdp,
    "sketch.lora-one-step": one_step_delta,
    "sketch.lora-by-design": by_design_delta,
}

# Deltas below 1e-300, and orders close to the last one.
LOOSE = {"sketch.rdp-best": 1e-5, "sketch.rdp-tight": 1e-5}

OTHER_QUANTITIES: dict[str, Function] = {"sketch.rdp": divergence_at_order}
