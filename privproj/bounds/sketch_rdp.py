"""Lemma 7.1 of 2409.17538v9 as printed."""

from privproj.bound import Bound
from privproj.errors import InvalidParameter
from privproj.mechanisms import Sketch
from privproj.renyi import RenyiCurve
from privproj.result import Status
from privproj.sketch_divergence import tight
from privproj.sketch_promise import promises, refuses, several_layers


def eigenvalues_of(mechanism: Sketch) -> int:
    """The number of eigenvalues, which the bounds as printed multiply by."""
    if mechanism.eigenvalues is None:
        raise InvalidParameter(
            "eigenvalues", "nothing", "the rank of Q Q^T - Q' Q'^T (at most n) for this bound", "rdp-best needs none"
        )
    return mechanism.eigenvalues


def form(mechanism: Sketch) -> RenyiCurve:
    """``D(alpha) = r n_eig/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)]``."""
    return tight(mechanism, mechanism.gamma_of_matrices, eigenvalues_of(mechanism))


BOUND = Bound(
    name="rdp",
    mechanism=Sketch,
    summary="the published Renyi curve, with a factor for the number of eigenvalues",
    formula="D(alpha) = r n_eig/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="arXiv 2409.17538v9, Lemma 7.1",
    example="privproj epsilon sketch --bound rdp --rank 16 --gamma 1000 --eigenvalues 768 --delta 1e-5",
    form=form,
    independent_layers=several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=promises,
    refuses=refuses,
)
