"""Truncated concentrated DP of the secret sketch (2409.17538v9, Corollary 7.3 for one release)."""

from privproj.curves.renyi import ConcentratedCurve
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch._promises import has_several_layers, matrix_promises
from privproj.mechanisms.sketch.rdp import eigenvalues_of
from privproj.result import Status


def representation(mechanism: Sketch) -> ConcentratedCurve:
    """The truncated concentrated curve of one release, for ``Gamma > 5/2``."""
    gamma, count = mechanism.gamma_of_matrices, mechanism.layer_count * eigenvalues_of(mechanism)
    # (rho, omega) = (r L n_eig/(2 Gamma^2), 2 Gamma/5) (2409.17538v9, Corollary 7.3; C14).
    return ConcentratedCurve(0.5 * mechanism.needed_rank * count / gamma**2, 0.4 * gamma)


def refuses(mechanism: Sketch) -> str | None:
    """Why there is no bound at ``Gamma <= 5/2``; None above."""
    if mechanism.gamma_of_matrices <= 2.5:
        return f"tcdp is proved for gamma above 5/2, got {mechanism.gamma_of_matrices:.4g}; use rdp-best"
    return None


BOUND = Bound(
    name="tcdp",
    mechanism=Sketch,
    summary="truncated concentrated DP, closed-form conversion",
    formula="(rho, omega) = (r L n_eig/(2 Gamma^2), 2 Gamma/5), Gamma > 5/2",
    source="arXiv 2409.17538v9, Corollary 7.3; conversion Bun, Dwork, Rothblum, Steinke 2018",
    proof="C14",
    example="privproj epsilon sketch --bound tcdp --rank 16 --gamma 1000 --eigenvalues 768 --delta 1e-5",
    representation=representation,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses,
)
