"""The default bound of the secret sketch: the smaller of its two Renyi curves, order by order."""

from privproj.curves.renyi import BestCurve
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch._divergence import sharp_curve, tight_curve
from privproj.mechanisms.sketch._promises import has_several_layers, matrix_promises, refuses_infinite_divergence
from privproj.result import Status


def representation(mechanism: Sketch) -> BestCurve:
    """The smaller of two Renyi curves at every order."""
    gamma = mechanism.gamma_of_matrices
    # rdp-tight for 1 < alpha < Gamma, the sharper curve for 2 <= alpha < Gamma + 1 (C14).
    return BestCurve((tight_curve(mechanism, gamma), sharp_curve(mechanism, gamma)))


BOUND = Bound(
    name="rdp-best",
    mechanism=Sketch,
    summary="two Renyi curves without the factor n, the smaller at every order",
    formula="D(alpha) = r/(2(alpha-1)) min of alpha ln(1-1/G) - ln(1-alpha/G), 1 < alpha < G, and "
    "-(alpha-1) ln(1+1/G) - ln(1-(alpha-1)/G), 2 <= alpha < G+1; G = Gamma",
    source="privproj: sharpened Lemma 7.1 of arXiv 2409.17538v9",
    proof="C14",
    example="privproj epsilon sketch --rank 16 --gamma 1000 --delta 1e-5",
    representation=representation,
    independent_layers=has_several_layers,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses_infinite_divergence,
)
