"""The published Renyi curve of the secret sketch without its factor n."""

from privproj.bound import Bound
from privproj.mechanisms import Sketch
from privproj.renyi import RenyiCurve
from privproj.result import Status
from privproj.sketch_divergence import tight
from privproj.sketch_promise import promises, refuses, several_layers


def form(mechanism: Sketch) -> RenyiCurve:
    """``D(alpha) = r/(2 (alpha-1)) [alpha ln(1 - 1/Gamma) - ln(1 - alpha/Gamma)]``."""
    return tight(mechanism, mechanism.gamma_of_matrices)


BOUND = Bound(
    name="rdp-tight",
    mechanism=Sketch,
    summary="the published Renyi curve without its factor n",
    formula="D(alpha) = r/(2(alpha-1)) [alpha ln(1-1/Gamma) - ln(1-alpha/Gamma)], 1 < alpha < Gamma",
    source="privproj: Lemma 7.1 of arXiv 2409.17538v9 with one eigenvalue as worst case (privproj.sketch_divergence)",
    example="privproj epsilon sketch --bound rdp-tight --rank 16 --gamma 1000 --delta 1e-5",
    form=form,
    independent_layers=several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=promises,
    refuses=refuses,
)
