"""The published Renyi curve of the secret sketch without its factor n."""

from privproj.curves.renyi import RenyiCurve
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch._divergence import tight_curve
from privproj.mechanisms.sketch._promises import has_several_layers, matrix_promises, refuses_infinite_divergence
from privproj.result import Status


def representation(mechanism: Sketch) -> RenyiCurve:
    """The printed Renyi curve of one release with one eigenvalue, which is the worst case."""
    # D(alpha) = r/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)] (C14).
    return tight_curve(mechanism, mechanism.gamma_of_matrices)


BOUND = Bound(
    name="rdp-tight",
    mechanism=Sketch,
    summary="the published Renyi curve without its factor n",
    formula="D(alpha) = r/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="privproj: Lemma 7.1 of arXiv 2409.17538v9 with one eigenvalue as worst case",
    proof="C14",
    example="privproj epsilon sketch --bound rdp-tight --rank 16 --gamma 1000 --delta 1e-5",
    representation=representation,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses_infinite_divergence,
    renyi=True,
)
