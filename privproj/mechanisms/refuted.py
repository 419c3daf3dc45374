"""Define bounds for privacy claims that are not guarantees (C22).

Such a claim has a counterexample or an unspecified constant. The evaluation of a claim without a formula raises
:class:`UnsupportedError`. Refuted methods without a mechanism in privproj, such as R1SMG, are in ``methods.toml``.
"""

import math
from functools import partial
from typing import Any

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms import Mechanism, Sketch, Wishart, WishartMatrix
from privproj.mechanisms.bound import Bound, Flaw, OverRun
from privproj.mechanisms.sketch.rdp import eigenvalues_of, tight_curve
from privproj.profiles.rdp import RenyiCurve
from privproj.result import Status
from privproj.run import Run


def _without_a_number(claim: str, reason: str, **fields: Any) -> Bound:
    """Return a :class:`Bound` for a claim that has no formula to evaluate.

    An evaluation of the bound raises an error with the message ``<claim>: <reason>``.
    """

    def refuse(mechanism: Mechanism) -> Any:
        raise UnsupportedError(f"{claim}: {reason}")

    return Bound(flaw=Flaw(reason), representation=refuse, proof="C22", of_group=None, **fields)


EARLY_COROLLARY = _without_a_number(
    "early-corollary has no formula to evaluate",
    "the corollary does not state its universal constant, so no number follows. Use the bound exact, which has the "
    "same assumption on the data",
    name="early-corollary",
    mechanism=Wishart,
    summary="asymptotic rate from the first version of arXiv 2601.21719, with an unspecified constant",
    formula="eps = O(...) with an unspecified universal constant",
    source="early version of arXiv 2601.21719, Corollary 1",
    example="privproj epsilon wishart --dim 1000 --rank 16 --misalignment 8e-6 --delta 1e-5",
    status=Status.ASYMPTOTIC,
)

RP_GD = _without_a_number(
    "rp-gd has no formula to evaluate",
    "after the first step, the gradient depends on the matrix. For example, let h be a vector computed from the data, "
    "and |w - h|^2/2 the loss at the weights w. If the matrix is invertible, w converges to h and reveals h. Use the "
    "bound exact of wishart for a single step, or m2 for a run",
    name="rp-gd",
    mechanism=Wishart,
    summary="false claim that projected gradient descent with one random matrix for all steps is private",
    formula="w <- w - eta M grad, M ~ W_d(I/r, r) sampled once; privacy claimed up to an unspecified constant",
    source="early version of arXiv 2601.21719, Theorem 3",
    example="privproj epsilon wishart --dim 1000 --rank 1600 --misalignment 8e-6 --delta 1e-5",
    status=Status.REFUTED,
)

EARLY_MATRIX = _without_a_number(
    "a matrix query without noise has no bound",
    "one release tells neighboring datasets apart, so delta = 1 for every epsilon (docs/not-a-guarantee.md has a "
    "runnable attack). Use m1 or m2, which add noise, or wishart for a single column",
    name="early-matrix",
    mechanism=WishartMatrix,
    summary="false claim that a matrix query without noise is private; delta is 1 for every epsilon",
    formula="none; the published densities on the set of rank-deficient Y refer to different supports",
    source="early version of arXiv 2601.21719, Theorem 2 and its LoRA corollary; refuted by arXiv 2601.21719, "
    "Proposition 2",
    example="privproj epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.3814 --delta 1e-5",
    status=Status.REFUTED,
)


def _whole_training_over_run(mechanism: Sketch, run: Run) -> RenyiCurve:
    """Return the refuted Renyi curve that was published for a whole LoRA training run.

    Raises:
        InvalidParameterError: ``step_smoothness`` or ``eigenvalues`` is missing.
        UnsupportedError: The run is subsampled, or the eigenvalue ratio ``Gamma`` is at most 1.
    """
    if run.sampling_rate < 1.0:
        raise UnsupportedError("the published formula does not support sampling. Use sampling_rate=1")
    steps, product = run.steps, mechanism.step_smoothness
    if product is None:
        raise InvalidParameterError(
            "step_smoothness", "nothing", "a number", "give the learning rate times the smoothness, eta beta"
        )
    # Gamma = (eta beta/4) b (lam + r sigma_g^2) / (C^2 T ((1 + eta beta)^T - 1)), with gamma_of_matrices =
    # b (lam + r sigma_g^2) / (4 C^2) (2409.17538v9, Lemma 7.2; refuted, C22).
    growth = steps * math.log1p(product)
    shrunk = product / (steps * math.expm1(growth)) if growth < 700.0 else 0.0
    gamma = mechanism.gamma_of_matrices * shrunk
    if gamma <= 1.0:
        raise UnsupportedError(f"the published formula needs gamma above 1, got {gamma:.4g}. Use more noise")
    return tight_curve(mechanism, gamma, eigenvalues_of(mechanism))


LORA_BY_DESIGN = Bound(
    name="lora-by-design",
    mechanism=Sketch,
    summary="false claim that LoRA training is private because the factor A is random",
    formula="rdp at Gamma = (eta beta/4) b (lam + r sigma_g^2) / (C^2 T ((1 + eta beta)^T - 1)) (L layers: L D)",
    source="arXiv 2409.17538v9, Lemma 7.2 and Corollary 7.3",
    proof="C22",
    example="--rank 16 --frobenius-bound 1 --sensitivity 0.01 --noise-sigma 1 --step-smoothness 0.01 "
    "--eigenvalues 768 --steps 2 --allow-refuted",
    representation=lambda mechanism: OverRun(partial(_whole_training_over_run, mechanism)),
    of_group=None,
    status=Status.REFUTED,
    flaw=Flaw(
        "LoRA releases the sketched gradient times A, which contains A a second time. An adversary who knows two "
        "possible gradients distinguishes them (docs/not-a-guarantee.md has the attack). Use lora-one-step if only one "
        "sketch is released, or add noise to the gradient and use the bounds of m2"
    ),
    version=3,
)
