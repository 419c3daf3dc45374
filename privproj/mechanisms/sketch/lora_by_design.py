"""The claim that training with LoRA is private by design (2409.17538v9, Lemma 7.2 and Corollary 7.3): refuted."""

import math

from privproj.curves.renyi import RenyiCurve
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import Sketch
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.sketch._divergence import tight_curve
from privproj.result import Status
from privproj.runs import Run


class _WholeTraining:
    """The printed formula for a whole training, which is refuted."""

    def __init__(self, mechanism: Sketch) -> None:
        self.mechanism = mechanism

    def over_run(self, run: Run) -> RenyiCurve:
        """The printed curve of a run; raises :class:`Refused` under subsampling."""
        if run.sampling_rate < 1.0:
            raise Refused("the printed formula has no sampled form; expected sampling_rate=1")
        return tight_curve(self.mechanism, self.gamma(run.steps))

    def gamma(self, steps: int) -> float:
        """The printed ``Gamma`` after ``steps`` steps; raises :class:`Refused` unless it is above 1."""
        product = self.mechanism.step_smoothness
        if product is None:
            raise InvalidParameter("step_smoothness", "nothing", "learning rate times smoothness, eta beta")
        # Gamma = (eta beta/4) b (lam + r sigma_g^2) / (C^2 T ((1 + eta beta)^T - 1)), with gamma_of_matrices =
        # b (lam + r sigma_g^2) / (4 C^2) (2409.17538v9, Lemma 7.2; refuted, C22).
        growth = steps * math.log1p(product)
        shrunk = product / (steps * math.expm1(growth)) if growth < 700.0 else 0.0
        found = self.mechanism.gamma_of_matrices * shrunk
        if found <= 1.0:
            raise Refused(f"the printed formula needs gamma above 1, here it is {found:.4g}")
        return found


BOUND = Bound(
    name="lora-by-design",
    mechanism=Sketch,
    summary="LoRA training claimed private by its random A alone",
    formula="rdp-tight at Gamma = (eta beta/4) b (lam + r sigma_g^2) / (C^2 T ((1 + eta beta)^T - 1)), "
    "D times L layers",
    source="arXiv 2409.17538v9, Lemma 7.2 and Corollary 7.3",
    proof="C22",
    example="privproj epsilon sketch --bound lora-by-design --rank 16 --frobenius-bound 1 --sensitivity 0.01 "
    "--noise-sigma 1 --step-smoothness 0.01 --steps 2 --delta 1e-5 --allow-refuted",
    representation=_WholeTraining,
    groups=False,
    status=Status.REFUTED,
    reason="the released weights W_T - W_0 = -eta (G A^T) A contain A a second time, so they are no post-processing "
    "of the sketch G A^T: Y G^T is symmetric for the true gradient G and for almost no other, which tells neighbours "
    "apart surely; and after one step the gradient depends on A. Use lora-one-step where only one sketch is released, "
    "or add noise to the gradient and use the bounds of m2",
)
