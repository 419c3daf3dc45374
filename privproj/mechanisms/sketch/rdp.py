"""The Renyi curve of the secret sketch as printed (2409.17538v9, Lemma 7.1)."""

from privproj.curves.renyi import RenyiCurve
from privproj.errors import InvalidParameter
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch._divergence import tight_curve
from privproj.mechanisms.sketch._promises import has_several_layers, matrix_promises, refuses_infinite_divergence
from privproj.result import Status


def eigenvalues_of(mechanism: Sketch) -> int:
    """The number of eigenvalues, a factor of the printed bounds; raises :class:`InvalidParameter` without it."""
    if mechanism.eigenvalues is None:
        raise InvalidParameter(
            "eigenvalues", "nothing", "the rank of Q Q^T - Q' Q'^T (at most n) for this bound", "rdp-best needs none"
        )
    return mechanism.eigenvalues


def representation(mechanism: Sketch) -> RenyiCurve:
    """The printed Renyi curve of one release."""
    # D(alpha) = r n_eig/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (2409.17538v9, Lemma 7.1; C14).
    return tight_curve(mechanism, mechanism.gamma_of_matrices, eigenvalues_of(mechanism))


BOUND = Bound(
    name="rdp",
    mechanism=Sketch,
    summary="the published Renyi curve, with a factor for the number of eigenvalues",
    formula="D(alpha) = r n_eig/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="arXiv 2409.17538v9, Lemma 7.1",
    proof="C14",
    example="privproj epsilon sketch --bound rdp --rank 16 --gamma 1000 --eigenvalues 768 --delta 1e-5",
    representation=representation,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses_infinite_divergence,
)
