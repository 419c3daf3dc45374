"""Compute Renyi curves of the secret sketch (C14).

One curve is published (arXiv 2409.17538v9, Lemma 7.1, Corollary 7.3), and the others are smaller. One step of LoRA
releases such a sketch. The claim that LoRA training is private by design is refuted (C22).

``Gamma`` is the parameter ``gamma`` of :class:`privproj.mechanisms.Sketch`. The ``rank`` columns of a release are
independent Gaussian vectors with the covariance ``Sigma_1``, or ``Sigma_2`` for a neighboring dataset. Let ``nu_i`` be
the eigenvalues of ``Sigma_1^(-1/2) (Sigma_2 - Sigma_1) Sigma_1^(-1/2)``. The Renyi divergence of order ``alpha`` is

    D(alpha) = rank/(2 (alpha-1)) sum_i [alpha ln(1 + nu_i) - ln(1 + alpha nu_i)],    sum nu_i^2 <= Gamma^-2.

**One eigenvalue is the worst case.** Let
``f(t) = alpha ln(1-t) - ln(1 - alpha t) = sum_{j>=2} (alpha^j - alpha)/j t^j``. Each term of the sum over ``i`` is at
most ``f(|nu_i|)``. The function ``f(sqrt(u))`` is convex in ``u`` and 0 at 0, because its series has the powers
``j/2 >= 1`` and nonnegative coefficients. So the sum is at most ``f(sqrt(sum nu_i^2)) <= f(1/Gamma)``.

**The other covariance gives a smaller bound.** Let ``nu_i`` be the eigenvalues of
``Sigma_2^(-1/2) (Sigma_1 - Sigma_2) Sigma_2^(-1/2)`` instead. Then each term of the sum is
``-(alpha-1) ln(1 + nu_i) - ln(1 - (alpha-1) nu_i)``. The series of this term has the coefficients
``((alpha-1)^j + (-1)^j (alpha-1))/j``, which are nonnegative for ``alpha >= 2``. So the same argument applies for
``alpha >= 2``. Differences of rank one attain the smaller bound.
"""

import math
from functools import partial
from typing import Any

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound, OverRun
from privproj.mechanisms.sketch import check_finite_divergence, matrix_assumptions
from privproj.numerics.special import log_residual
from privproj.profiles.rdp import BestCurve, ConcentratedCurve, RenyiCurve
from privproj.result import Status
from privproj.run import Run

# soundness: relative margin for the rounding of the closed form, on the sum of its parts. It also covers a rounded
# t = 1/Gamma: -ln(1 - x) - x changes by x/(1 - x) times the rounding of x.
ROUNDED = 1e-15


def divergence_bracket(alpha: float, t: float) -> float:
    """Return ``alpha ln(1-t) - ln(1 - alpha t)``, rounded up, for ``0 < alpha t < 1``.

    The Renyi divergence of order ``alpha`` between neighboring sketches is at most ``rank/(2 (alpha-1))`` times this
    value, if their eigenvalue ratio ``gamma`` is ``1/t``.
    """
    x = alpha * t
    # f(t) = -(ln(1-x) + x) + alpha (ln(1-t) + t), x = alpha t: the linear terms are dropped, as they cancel (C14).
    grown, plain = -log_residual(-x, 1.0 - x), -alpha * log_residual(-t, 1.0 - t)
    return grown - plain + ROUNDED * (4.0 * (grown + plain) + x * x / (1.0 - x))


def sharp_divergence_bracket(alpha: float, t: float) -> float:
    """Return ``-(alpha-1) ln(1 + t) - ln(1 - (alpha-1) t)``, rounded up.

    For ``alpha >= 2`` and ``(alpha-1) t < 1``, the Renyi divergence of order ``alpha`` between neighboring sketches is
    at most ``rank/(2 (alpha-1))`` times this value, if their eigenvalue ratio ``gamma`` is ``1/t``.
    """
    x = (alpha - 1.0) * t
    # -(ln(1-x) + x) - (alpha-1) (ln(1+t) - t), x = (alpha-1) t: the linear terms cancel (C14).
    value = -log_residual(-x, 1.0 - x) - (alpha - 1.0) * log_residual(t, 1.0 + t)
    return value * (1.0 + 8.0 * ROUNDED) + 2.0 * ROUNDED * x * x / (1.0 - x)


def tight_curve(mechanism: Sketch, gamma: float, eigenvalues: int = 1) -> RenyiCurve:
    """Return the Renyi curve of the bound ``rdp-tight``, for orders below ``gamma``.

    The curve is multiplied by ``eigenvalues``, a factor of the published bound ``rdp``.
    """
    front = 0.5 * mechanism.needed_rank * mechanism.layer_count * eigenvalues

    def divergence(alpha: float) -> float:
        # D(alpha) = r n/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (C14).
        return front / (alpha - 1.0) * divergence_bracket(alpha, 1.0 / gamma) if alpha < gamma else math.inf

    return RenyiCurve(divergence, high=gamma)


def sharp_curve(mechanism: Sketch, gamma: float) -> RenyiCurve:
    """Return a Renyi curve smaller than ``rdp-tight``, for orders from 2 to ``gamma + 1``.

    ``gamma`` is the eigenvalue ratio of :class:`privproj.mechanisms.Sketch`.
    """
    front = 0.5 * mechanism.needed_rank * mechanism.layer_count

    def divergence(alpha: float) -> float:
        # D(alpha) = r/(2 (alpha-1)) [-(alpha-1) ln(1 + 1/Gamma) - ln(1 - (alpha-1)/Gamma)] (C14).
        return front / (alpha - 1.0) * sharp_divergence_bracket(alpha, 1.0 / gamma) if alpha - 1.0 < gamma else math.inf

    return RenyiCurve(divergence, low=2.0, high=gamma + 1.0)


# fields that all these bounds have; tcdp has a stricter check
OF_MATRICES: dict[str, Any] = {
    "mechanism": Sketch,
    "proof": "C14",
    "status": Status.CONDITIONAL,
    "of_group": None,
    "assumptions": matrix_assumptions,
    "check": check_finite_divergence,
}


def eigenvalues_of(mechanism: Sketch) -> int:
    """Return the parameter ``eigenvalues``, the assumed rank of ``Q Q^T - Q' Q'^T``.

    ``Q`` and ``Q'`` are the query matrices of neighboring datasets.

    Raises:
        InvalidParameterError: ``eigenvalues`` is missing.
    """
    if mechanism.eigenvalues is None:
        raise InvalidParameterError(
            "eigenvalues", "nothing", "an integer", "give the rank of Q Q^T - Q' Q'^T, or use the bound rdp-best"
        )
    return mechanism.eigenvalues


RDP = Bound(
    name="rdp",
    summary="published Renyi curve, which contains the assumed rank --eigenvalues as a factor",
    formula="D(alpha) = r n_eig/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="arXiv 2409.17538v9, Lemma 7.1",
    example="--rank 16 --gamma 1000 --eigenvalues 768",
    # D(alpha) = r n_eig/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (2409.17538v9, Lemma 7.1; C14).
    representation=lambda mechanism: tight_curve(mechanism, mechanism.gamma_of_matrices, eigenvalues_of(mechanism)),
    version=2,
    **OF_MATRICES,
)


RDP_TIGHT = Bound(
    name="rdp-tight",
    summary="Renyi curve of rdp without the factor --eigenvalues, so epsilon is smaller",
    formula="D(alpha) = r/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="privproj: Lemma 7.1 of arXiv 2409.17538v9 with one eigenvalue as worst case",
    # D(alpha) = r/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (C14).
    representation=lambda mechanism: tight_curve(mechanism, mechanism.gamma_of_matrices),
    version=2,
    **OF_MATRICES,
)


def _rdp_best_of(mechanism: Sketch) -> BestCurve:
    """Return the smaller one of two proved Renyi curves at every order."""
    gamma = mechanism.gamma_of_matrices
    # rdp-tight for 1 < alpha < Gamma, the sharper curve for 2 <= alpha < Gamma + 1 (C14).
    return BestCurve((tight_curve(mechanism, gamma), sharp_curve(mechanism, gamma)))


RDP_BEST = Bound(
    name="rdp-best",
    summary="Renyi curve: at each order, the smaller value of the curve of rdp-tight and a second curve",
    formula="D(alpha) = r/(2(alpha-1)) min of alpha ln(1-1/G) - ln(1-alpha/G), 1 < alpha < G, and "
    "-(alpha-1) ln(1+1/G) - ln(1-(alpha-1)/G), 2 <= alpha < G+1; G = Gamma",
    source="privproj: sharpened Lemma 7.1 of arXiv 2409.17538v9",
    representation=_rdp_best_of,
    version=2,
    **OF_MATRICES,
)


def _tcdp_of(mechanism: Sketch) -> ConcentratedCurve:
    """Return the truncated concentrated DP curve of one release, for ``gamma > 5/2``."""
    gamma, count = mechanism.gamma_of_matrices, mechanism.layer_count * eigenvalues_of(mechanism)
    # (rho, omega) = (r L n_eig/(2 Gamma^2), 2 Gamma/5) (2409.17538v9, Corollary 7.3; C14).
    return ConcentratedCurve(0.5 * mechanism.needed_rank * count / gamma**2, 0.4 * gamma)


def _check_tcdp(mechanism: Sketch) -> None:
    if mechanism.gamma_of_matrices <= 2.5:
        raise UnsupportedError(
            f"the bound tcdp needs gamma above 5/2, got {mechanism.gamma_of_matrices:.4g}. Use the bound rdp-best"
        )


TCDP = Bound(
    name="tcdp",
    summary="truncated concentrated DP (tCDP), with closed-form conversion to epsilon",
    formula="(rho, omega) = (r L n_eig/(2 Gamma^2), 2 Gamma/5), Gamma > 5/2",
    source="arXiv 2409.17538v9, Corollary 7.3; conversion Bun, Dwork, Rothblum, Steinke 2018",
    example="--rank 16 --gamma 1000 --eigenvalues 768",
    representation=_tcdp_of,
    **{**OF_MATRICES, "check": _check_tcdp},
    version=3,
)


def _one_step_over_run(mechanism: Sketch, run: Run) -> BestCurve:
    """Return the Renyi curve of one LoRA step.

    Raises:
        UnsupportedError: The run has several releases. The gradients of later releases depend on the sketch.
    """
    if run.steps > 1:
        raise UnsupportedError(
            f"steps must be 1 with a fixed projection, got {run.steps}. Use a "
            f"fresh projection for every release and the "
            "bound rdp-best"
        )
    return _rdp_best_of(mechanism).over_run(run)


LORA_ONE_STEP = Bound(
    name="lora-one-step",
    summary="bound for one LoRA step that releases the gradient times the secret factor A, plus noise",
    formula="rdp-best at Gamma = b (lam + r sigma_g^2)/(4 C^2): B_F = C, B_S = 2C/b, sigma_A^2 = 1/r (L layers: L D)",
    source="arXiv 2409.17538v9, Lemma 7.2 restricted to one released sketch",
    example="--rank 16 --frobenius-bound 1 --sensitivity 0.01 --noise-sigma 1 --enforced",
    # Gamma = b (lam + r sigma_g^2) / (4 C^2), since B_F = C and B_S = 2C/b (C14).
    representation=lambda mechanism: OverRun(partial(_one_step_over_run, mechanism)),
    version=2,
    **OF_MATRICES,
)
