"""Define claims that are not guarantees, each with its counterexample or its open constant (C22).

A claim without a formula raises :class:`UnsupportedError`. Refuted methods that are not mechanisms
here, such as R1SMG, are in ``methods.toml``.
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


def _without_a_number(says: str, reason: str, **fields: Any) -> Bound:
    """Return a claim that has no formula to evaluate and raises :class:`UnsupportedError`."""

    def refuse(mechanism: Mechanism) -> Any:
        raise UnsupportedError(f"{says}: {reason}")

    return Bound(flaw=Flaw(reason), representation=refuse, proof="C22", of_group=None, **fields)


EARLY_COROLLARY = _without_a_number(
    "early-corollary has no formula to evaluate",
    "its universal constant is left open, so no number follows from it. Use exact, the whole profile of the same "
    "mechanism under the same promise",
    name="early-corollary",
    mechanism=Wishart,
    summary="a rate whose constant is left open",
    formula="eps = O(...) with an unspecified universal constant",
    source="early version of arXiv 2601.21719, Corollary 1",
    example="privproj epsilon wishart --dim 1000 --rank 16 --misalignment 8e-6 --delta 1e-5",
    status=Status.ASYMPTOTIC,
)

RP_GD = _without_a_number(
    "rp-gd has no formula to evaluate",
    "over several steps the cumulative gradient depends on the matrix itself, and alignment of the gradients does not "
    "help: with loss |w - h|^2/2 the descent ends at h whatever the matrix is, so neighbors are told apart surely. "
    "For one step its constant is left open. Use exact for one step along the normalized gradient, or m2 for a whole "
    "run",
    name="rp-gd",
    mechanism=Wishart,
    summary="randomly projected gradient descent with one matrix for all steps",
    formula="w <- w - eta M grad, M ~ W_d(I/r, r) drawn once; privacy claimed up to an unspecified constant",
    source="early version of arXiv 2601.21719, Theorem 3",
    example="privproj epsilon wishart --dim 1000 --rank 1600 --misalignment 8e-6 --delta 1e-5",
    status=Status.REFUTED,
)

EARLY_MATRIX = _without_a_number(
    "a matrix query without noise has no bound",
    "V^T Y = V^T M V is symmetric for the true V and, with probability one, for no other V' (unless both are "
    "proportional, or of rank one with the same right factor), so one release tells neighbors apart: delta = 1 for "
    "every epsilon. See docs/not-a-guarantee.md for a runnable test. Use m1 or m2, which add noise; a "
    "single column is the wishart mechanism",
    name="early-matrix",
    mechanism=WishartMatrix,
    summary="matrix queries without noise, claimed private; no sound bound exists",
    formula="none: densities on the set of rank-deficient Y are taken with respect to different supports",
    source="early version of arXiv 2601.21719, Theorem 2 and its LoRA corollary; refuted by arXiv 2601.21719, "
    "Proposition 2",
    example="privproj epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.3814 --delta 1e-5",
    status=Status.REFUTED,
)


def _whole_training_over_run(mechanism: Sketch, run: Run) -> RenyiCurve:
    """Return the published curve of a whole training run.

    Raises:
        UnsupportedError: The run is subsampled, or ``Gamma <= 1``.
    """
    if run.sampling_rate < 1.0:
        raise UnsupportedError("the printed formula has no sampled form; expected sampling_rate=1")
    steps, product = run.steps, mechanism.step_smoothness
    if product is None:
        raise InvalidParameterError("step_smoothness", "nothing", "learning rate times smoothness, eta beta")
    # Gamma = (eta beta/4) b (lam + r sigma_g^2) / (C^2 T ((1 + eta beta)^T - 1)), with gamma_of_matrices =
    # b (lam + r sigma_g^2) / (4 C^2) (2409.17538v9, Lemma 7.2; refuted, C22).
    growth = steps * math.log1p(product)
    shrunk = product / (steps * math.expm1(growth)) if growth < 700.0 else 0.0
    gamma = mechanism.gamma_of_matrices * shrunk
    if gamma <= 1.0:
        raise UnsupportedError(f"the printed formula needs gamma above 1, here it is {gamma:.4g}")
    return tight_curve(mechanism, gamma, eigenvalues_of(mechanism))


LORA_BY_DESIGN = Bound(
    name="lora-by-design",
    mechanism=Sketch,
    summary="LoRA training claimed private by its random A alone",
    formula="rdp at Gamma = (eta beta/4) b (lam + r sigma_g^2) / (C^2 T ((1 + eta beta)^T - 1)), "
    "D times L layers",
    source="arXiv 2409.17538v9, Lemma 7.2 and Corollary 7.3",
    proof="C22",
    example="--rank 16 --frobenius-bound 1 --sensitivity 0.01 --noise-sigma 1 --step-smoothness 0.01 "
    "--eigenvalues 768 --steps 2 --allow-refuted",
    representation=lambda mechanism: OverRun(partial(_whole_training_over_run, mechanism)),
    of_group=None,
    status=Status.REFUTED,
    flaw=Flaw(
        "the released weights W_T - W_0 = -eta (G A^T) A contain A a second time, so they are no post-processing "
        "of the sketch G A^T: Y G^T is symmetric for the true gradient G and for almost no other, which tells "
        "neighbors apart surely; and after one step the gradient depends on A. Use lora-one-step where only one "
        "sketch is released, or add noise to the gradient and use the bounds of m2"
    ),
    version=3,
)
