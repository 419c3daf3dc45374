"""Renyi curves of the secret sketch: as printed (2409.17538v9, Lemma 7.1, Corollary 7.3), and sharper (C14).

One LoRA step, read as a sketch, is what is left of the claim that LoRA is private by design.
"""

from typing import Any

from privproj.curves.renyi import BestCurve, ConcentratedCurve
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch._divergence import sharp_curve, tight_curve
from privproj.mechanisms.sketch._promises import has_several_layers, matrix_promises, refuses_infinite_divergence
from privproj.result import Status
from privproj.runs import Run

OF_MATRICES: dict[str, Any] = {
    "mechanism": Sketch,
    "proof": "C14",
    "status": Status.CONDITIONAL,
    "groups": False,
    "promises_of": matrix_promises,
    "independent_layers": has_several_layers,
}
"""What all these bounds have."""


def _eigenvalues_of(mechanism: Sketch) -> int:
    """The number of eigenvalues, a factor of the printed bounds; raises :class:`InvalidParameter` without it."""
    if mechanism.eigenvalues is None:
        raise InvalidParameter(
            "eigenvalues", "nothing", "the rank of Q Q^T - Q' Q'^T (at most n) for this bound", "rdp-best needs none"
        )
    return mechanism.eigenvalues


RDP = Bound(
    name="rdp",
    summary="the published Renyi curve, with a factor for the number of eigenvalues",
    formula="D(alpha) = r n_eig/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="arXiv 2409.17538v9, Lemma 7.1",
    example="privproj epsilon sketch --bound rdp --rank 16 --gamma 1000 --eigenvalues 768 --delta 1e-5",
    # D(alpha) = r n_eig/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (2409.17538v9, Lemma 7.1; C14).
    representation=lambda mechanism: tight_curve(mechanism, mechanism.gamma_of_matrices, _eigenvalues_of(mechanism)),
    refuses=refuses_infinite_divergence,
    **OF_MATRICES,
)


RDP_TIGHT = Bound(
    name="rdp-tight",
    summary="the published Renyi curve without its factor n",
    formula="D(alpha) = r/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="privproj: Lemma 7.1 of arXiv 2409.17538v9 with one eigenvalue as worst case",
    example="privproj epsilon sketch --bound rdp-tight --rank 16 --gamma 1000 --delta 1e-5",
    # D(alpha) = r/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (C14).
    representation=lambda mechanism: tight_curve(mechanism, mechanism.gamma_of_matrices),
    refuses=refuses_infinite_divergence,
    **OF_MATRICES,
    renyi=True,
)


def _rdp_best_of(mechanism: Sketch) -> BestCurve:
    """The smaller of two Renyi curves at every order."""
    gamma = mechanism.gamma_of_matrices
    # rdp-tight for 1 < alpha < Gamma, the sharper curve for 2 <= alpha < Gamma + 1 (C14).
    return BestCurve((tight_curve(mechanism, gamma), sharp_curve(mechanism, gamma)))


RDP_BEST = Bound(
    name="rdp-best",
    summary="two Renyi curves without the factor n, the smaller at every order",
    formula="D(alpha) = r/(2(alpha-1)) min of alpha ln(1-1/G) - ln(1-alpha/G), 1 < alpha < G, and "
    "-(alpha-1) ln(1+1/G) - ln(1-(alpha-1)/G), 2 <= alpha < G+1; G = Gamma",
    source="privproj: sharpened Lemma 7.1 of arXiv 2409.17538v9",
    example="privproj epsilon sketch --rank 16 --gamma 1000 --delta 1e-5",
    representation=_rdp_best_of,
    refuses=refuses_infinite_divergence,
    **OF_MATRICES,
)


def _tcdp_of(mechanism: Sketch) -> ConcentratedCurve:
    """The truncated concentrated curve of one release, for ``Gamma > 5/2``."""
    gamma, count = mechanism.gamma_of_matrices, mechanism.layer_count * _eigenvalues_of(mechanism)
    # (rho, omega) = (r L n_eig/(2 Gamma^2), 2 Gamma/5) (2409.17538v9, Corollary 7.3; C14).
    return ConcentratedCurve(0.5 * mechanism.needed_rank * count / gamma**2, 0.4 * gamma)


def refuses(mechanism: Sketch) -> str | None:
    """Why there is no bound at ``Gamma <= 5/2``; None above."""
    if mechanism.gamma_of_matrices <= 2.5:
        return f"tcdp is proved for gamma above 5/2, got {mechanism.gamma_of_matrices:.4g}; use rdp-best"
    return None


TCDP = Bound(
    name="tcdp",
    summary="truncated concentrated DP, closed-form conversion",
    formula="(rho, omega) = (r L n_eig/(2 Gamma^2), 2 Gamma/5), Gamma > 5/2",
    source="arXiv 2409.17538v9, Corollary 7.3; conversion Bun, Dwork, Rothblum, Steinke 2018",
    example="privproj epsilon sketch --bound tcdp --rank 16 --gamma 1000 --eigenvalues 768 --delta 1e-5",
    representation=_tcdp_of,
    refuses=refuses,
    **OF_MATRICES,
)


class _OneStep:
    """The curve of one release; several are refused, since the second gradient depends on ``A``."""

    def __init__(self, curve: BestCurve) -> None:
        self.curve = curve

    def over_run(self, run: Run) -> BestCurve:
        """The curve of one release; raises :class:`Refused` for more than one."""
        if run.steps > 1:
            raise Refused(
                f"expected steps=1, got steps={run.steps}: from the second step on the gradient depends on A, so its "
                "sketch by the same A is no longer covered; draw a fresh A for every release and use rdp-best"
            )
        return self.curve.over_run(run)


LORA_ONE_STEP = Bound(
    name="lora-one-step",
    summary="one LoRA step: the noisy sketch G A^T is released and A is discarded",
    formula="rdp-best at Gamma = b (lam + r sigma_g^2)/(4 C^2): B_F = C, B_S = 2C/b, sigma_A^2 = 1/r; D times L layers",
    source="arXiv 2409.17538v9, Lemma 7.2 restricted to one released sketch",
    example="privproj epsilon sketch --bound lora-one-step --rank 16 --frobenius-bound 1 --sensitivity 0.01 "
    "--noise-sigma 1 --enforced --delta 1e-5",
    # Gamma = b (lam + r sigma_g^2) / (4 C^2), since B_F = C and B_S = 2C/b (C14).
    representation=lambda mechanism: _OneStep(_rdp_best_of(mechanism)),
    refuses=refuses_infinite_divergence,
    **OF_MATRICES,
)
