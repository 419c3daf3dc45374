"""Renyi curves of the secret sketch: as printed (2409.17538v9, Lemma 7.1, Corollary 7.3), and sharper (C14)."""

from privproj.curves.renyi import BestCurve, ConcentratedCurve, RenyiCurve
from privproj.errors import InvalidParameter
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch._divergence import sharp_curve, tight_curve
from privproj.mechanisms.sketch._promises import has_several_layers, matrix_promises, refuses_infinite_divergence
from privproj.result import Status


def _eigenvalues_of(mechanism: Sketch) -> int:
    """The number of eigenvalues, a factor of the printed bounds; raises :class:`InvalidParameter` without it."""
    if mechanism.eigenvalues is None:
        raise InvalidParameter(
            "eigenvalues", "nothing", "the rank of Q Q^T - Q' Q'^T (at most n) for this bound", "rdp-best needs none"
        )
    return mechanism.eigenvalues


def rdp_of(mechanism: Sketch) -> RenyiCurve:
    """The printed Renyi curve of one release."""
    # D(alpha) = r n_eig/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (2409.17538v9, Lemma 7.1; C14).
    return tight_curve(mechanism, mechanism.gamma_of_matrices, _eigenvalues_of(mechanism))


RDP = Bound(
    name="rdp",
    mechanism=Sketch,
    summary="the published Renyi curve, with a factor for the number of eigenvalues",
    formula="D(alpha) = r n_eig/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="arXiv 2409.17538v9, Lemma 7.1",
    proof="C14",
    example="privproj epsilon sketch --bound rdp --rank 16 --gamma 1000 --eigenvalues 768 --delta 1e-5",
    representation=rdp_of,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses_infinite_divergence,
)


def _rdp_tight_of(mechanism: Sketch) -> RenyiCurve:
    """The printed Renyi curve of one release with one eigenvalue, which is the worst case."""
    # D(alpha) = r/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (C14).
    return tight_curve(mechanism, mechanism.gamma_of_matrices)


RDP_TIGHT = Bound(
    name="rdp-tight",
    mechanism=Sketch,
    summary="the published Renyi curve without its factor n",
    formula="D(alpha) = r/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="privproj: Lemma 7.1 of arXiv 2409.17538v9 with one eigenvalue as worst case",
    proof="C14",
    example="privproj epsilon sketch --bound rdp-tight --rank 16 --gamma 1000 --delta 1e-5",
    representation=_rdp_tight_of,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses_infinite_divergence,
    renyi=True,
)


def rdp_best_of(mechanism: Sketch) -> BestCurve:
    """The smaller of two Renyi curves at every order."""
    gamma = mechanism.gamma_of_matrices
    # rdp-tight for 1 < alpha < Gamma, the sharper curve for 2 <= alpha < Gamma + 1 (C14).
    return BestCurve((tight_curve(mechanism, gamma), sharp_curve(mechanism, gamma)))


RDP_BEST = Bound(
    name="rdp-best",
    mechanism=Sketch,
    summary="two Renyi curves without the factor n, the smaller at every order",
    formula="D(alpha) = r/(2(alpha-1)) min of alpha ln(1-1/G) - ln(1-alpha/G), 1 < alpha < G, and "
    "-(alpha-1) ln(1+1/G) - ln(1-(alpha-1)/G), 2 <= alpha < G+1; G = Gamma",
    source="privproj: sharpened Lemma 7.1 of arXiv 2409.17538v9",
    proof="C14",
    example="privproj epsilon sketch --rank 16 --gamma 1000 --delta 1e-5",
    representation=rdp_best_of,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses_infinite_divergence,
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
    mechanism=Sketch,
    summary="truncated concentrated DP, closed-form conversion",
    formula="(rho, omega) = (r L n_eig/(2 Gamma^2), 2 Gamma/5), Gamma > 5/2",
    source="arXiv 2409.17538v9, Corollary 7.3; conversion Bun, Dwork, Rothblum, Steinke 2018",
    proof="C14",
    example="privproj epsilon sketch --bound tcdp --rank 16 --gamma 1000 --eigenvalues 768 --delta 1e-5",
    representation=_tcdp_of,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses,
)
