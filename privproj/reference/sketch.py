"""Compute reference values in mpmath for secret Gaussian sketches with noise (C14: the secret sketch).

A sketch of a matrix ``Q`` is ``Q A^T`` plus noise, with a secret Gaussian matrix ``A`` of ``rank`` rows. The bounds
depend on the eigenvalue ratio of the sketch, ``gamma = (lam + noise_sigma^2/sketch_sigma^2) / B``. ``lam`` is a lower
bound of the eigenvalues of ``Q Q^T``, and ``B`` is the largest Frobenius norm of the difference of ``Q Q^T`` between
neighbors. ``noise_sigma`` and ``sketch_sigma`` are the standard deviations of the noise and of the entries of ``A``.
"""

import mpmath as mp

from privproj.reference import composition
from privproj.reference.calculus import Function, Real
from privproj.reference.special import chi2_above, chi2_below


def _tight_divergence(alpha: Real, front: Real, gamma: Real) -> Real:
    """Return the Renyi divergence of the bound ``rdp-tight`` at an order ``alpha`` below ``gamma``.

    ``front`` is half of the product of the rank, the steps, the eigenvalues and the layers. ``gamma`` is the eigenvalue
    ratio of the sketch.
    """
    with mp.workdps(2 * mp.mp.dps + 20):
        gamma = mp.mpf(gamma)
        # front/(alpha-1) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)]
        return front / (alpha - 1) * (alpha * mp.log(1 - 1 / gamma) - mp.log(1 - alpha / gamma))


def _sharp_divergence(alpha: Real, front: Real, gamma: Real) -> Real:
    """Return the second Renyi divergence of ``rdp-best``, at an order ``alpha`` below ``gamma + 1``.

    ``front`` is half of the product of the rank, the steps and the layers. ``gamma`` is the eigenvalue ratio of the
    sketch.
    """
    with mp.workdps(2 * mp.mp.dps + 20):
        gamma = mp.mpf(gamma)
        # front/(alpha-1) [-(alpha-1) ln(1 + 1/Gamma) - ln(1 - (alpha-1)/Gamma)]
        return front / (alpha - 1) * (-(alpha - 1) * mp.log(1 + 1 / gamma) - mp.log(1 - (alpha - 1) / gamma))


def rdp(epsilon: Real, rank: int, gamma: Real, eigenvalues: int = 1, steps: int = 1, layer_count: int = 1) -> Real:
    """Return delta of a sketch from the published Renyi curve.

    ``eigenvalues`` is the rank of ``Q Q^T - R R^T``, where ``Q`` and ``R`` are the sketched matrices of neighboring
    datasets. Delta is minimized over orders below the eigenvalue ratio ``gamma``.
    """
    front = mp.mpf(rank * eigenvalues * steps * layer_count) / 2
    return composition.delta_from_renyi(lambda alpha: _tight_divergence(alpha, front, gamma), epsilon, 1, mp.mpf(gamma))


def rdp_tight(epsilon: Real, rank: int, gamma: Real, steps: int = 1, layer_count: int = 1) -> Real:
    """Return delta of a sketch from the Renyi curve of :func:`rdp` at ``eigenvalues = 1``.

    The result is a valid bound for differences of every rank.
    """
    return rdp(epsilon, rank, gamma, 1, steps, layer_count)


def rdp_best(epsilon: Real, rank: int, gamma: Real, steps: int = 1, layer_count: int = 1) -> Real:
    """Return the smaller one of two deltas of a sketch, each from its own Renyi curve."""
    # Each delta is minimized over the order: below gamma for the curve of rdp-tight, and from 2 to below gamma + 1 for
    # the second curve.
    front, gamma = mp.mpf(rank * steps * layer_count) / 2, mp.mpf(gamma)
    one = composition.delta_from_renyi(lambda alpha: _tight_divergence(alpha, front, gamma), epsilon, 1, gamma)
    return min(
        one, composition.delta_from_renyi(lambda alpha: _sharp_divergence(alpha, front, gamma), epsilon, 2, gamma + 1)
    )


def divergence_at_order(order: Real, rank: int, gamma: Real, eigenvalues: int) -> Real:
    """Return the published Renyi divergence of one release of a sketch, at one order."""
    return _tight_divergence(mp.mpf(order), mp.mpf(rank * eigenvalues) / 2, gamma)


def one_step_delta(epsilon: Real, rank: int, frobenius_bound: Real, sensitivity: Real, noise_sigma: Real) -> Real:
    """Return delta of one step of LoRA, which is treated as a secret sketch, by :func:`rdp_best`."""
    # The eigenvalue ratio of the sketch is r sigma_g^2 / (2 B_F B_S), with the Frobenius bound B_F and the sensitivity
    # B_S.
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
    """Return delta of a run of LoRA by a published bound that is refuted (C22)."""
    # one sketch for the whole run
    # The eigenvalue ratio of the sketch is (p/4) b r sigma_g^2 / (C^2 T ((1 + p)^T - 1)), with p = step_smoothness, b =
    # 2 C/B_S, the rank r, the noise sigma_g, the Frobenius bound C, the sensitivity B_S and the number T of steps.
    product, norm = mp.mpf(step_smoothness), mp.mpf(frobenius_bound)
    batch = 2 * norm / mp.mpf(sensitivity)
    gamma = product / 4 * batch * rank * mp.mpf(noise_sigma) ** 2
    return rdp(epsilon, rank, gamma / (norm**2 * steps * ((1 + product) ** steps - 1)), eigenvalues)


def tcdp(epsilon: Real, rank: int, gamma: Real, eigenvalues: int, steps: int = 1) -> Real:
    """Return delta of ``steps`` sketches by truncated concentrated DP."""
    # T releases of rank r with n = eigenvalues are (T r n/(2 Gamma^2), 2 Gamma/5)-tCDP.
    gamma = mp.mpf(gamma)
    return composition.concentrated_delta(steps * rank * eigenvalues / (2 * gamma**2), epsilon, 2 * gamma / 5)


def exact_rank1(epsilon: Real, rank: int, gamma: Real, steps: int = 1, layer_count: int = 1) -> Real:
    """Return the exact delta of a secret sketch for a rank-one difference.

    It is the larger delta of the add and the remove direction. ``gamma`` is the eigenvalue ratio of the sketch.
    """
    # With nu = 1/gamma in one direction; in the other, -nu/(1+nu) replaces nu, and the upper tail replaces the lower
    # one.
    degrees, nu = rank * steps * layer_count, 1 / mp.mpf(gamma)
    with mp.workdps(mp.mp.dps + 20 + int(2 * abs(mp.log10(nu)))):
        return max(
            _one_order_delta(degrees, nu, epsilon, chi2_below),
            _one_order_delta(degrees, -nu / (1 + nu), epsilon, chi2_above),
        )


def _one_order_delta(degrees: int, nu: Real, epsilon: Real, tail: Function) -> Real:
    """Return delta of a sketch in one direction (add or remove), for a difference of rank one.

    The second output distribution has ``1 + nu`` times the variance of the first. ``tail(degrees, x)`` is the lower
    tail of a chi-square variable if ``nu > 0``, else the upper tail.
    """
    # F(w) - e^eps F(w/(1+nu)) with F(x) = tail(degrees, x) and w = (degrees ln(1+nu) - 2 eps)(1+nu)/nu, or 0 unless w >
    # 0
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

    The norm of the vector is at most ``frobenius_bound``. The norms of neighboring vectors differ by at most
    ``sensitivity``.
    """
    # exact_rank1 at 1/gamma = nu, the largest value of (S'^2 - S^2)/(S^2 + a) over the norms S <= S' of neighboring
    # vectors, with a = (noise_sigma/sketch_sigma)^2.
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
