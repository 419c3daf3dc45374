"""One LoRA step read as a secret sketch: what is left of the claim that LoRA is private by design."""

from privproj.curves.renyi import BestCurve
from privproj.errors import Refused
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch._promises import matrix_promises, refuses_infinite_divergence
from privproj.mechanisms.sketch.rdp import rdp_best_of as best
from privproj.result import Status
from privproj.runs import Run


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


def representation(mechanism: Sketch) -> _OneStep:
    """The curve of ``rdp-best`` for one release, at the ``Gamma`` of a clipped and averaged gradient."""
    # Gamma = b (lam + r sigma_g^2) / (4 C^2), since B_F = C and B_S = 2C/b (C14).
    return _OneStep(best(mechanism))


BOUND = Bound(
    name="lora-one-step",
    mechanism=Sketch,
    summary="one LoRA step: the noisy sketch G A^T is released and A is discarded",
    formula="rdp-best at Gamma = b (lam + r sigma_g^2)/(4 C^2): B_F = C, B_S = 2C/b, sigma_A^2 = 1/r; D times L layers",
    source="arXiv 2409.17538v9, Lemma 7.2 restricted to one released sketch",
    proof="C14",
    example="privproj epsilon sketch --bound lora-one-step --rank 16 --frobenius-bound 1 --sensitivity 0.01 "
    "--noise-sigma 1 --enforced --delta 1e-5",
    representation=representation,
    status=Status.CONDITIONAL,
    groups=False,
    promises_of=matrix_promises,
    refuses=refuses_infinite_divergence,
)
