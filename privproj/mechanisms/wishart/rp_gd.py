"""Gradient descent along ``M grad`` with one matrix for the whole run (early version of 2601.21719, Theorem 3)."""

from privproj.errors import Refused
from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Bound
from privproj.result import Status

REASON = (
    "over several steps the cumulative gradient depends on the matrix itself, and alignment of the gradients does not "
    "help: with loss |w - h|^2/2 the descent ends at h whatever the matrix is, so neighbours are told apart surely. "
    "For one step its constant is left open. Use exact for one step along the normalised gradient, or m2 for a whole "
    "run"
)
"""Why the theorem is no guarantee, and what to use instead."""


def representation(mechanism: Wishart) -> None:
    """Raise :class:`Refused`: there is no formula to evaluate."""
    raise Refused(f"rp-gd has no formula to evaluate: {REASON}")


BOUND = Bound(
    name="rp-gd",
    mechanism=Wishart,
    summary="randomly projected gradient descent with one matrix for all steps",
    formula="w <- w - eta M grad, M ~ W_d(I/r, r) drawn once; privacy claimed up to an unspecified constant",
    source="early version of arXiv 2601.21719, Theorem 3",
    proof="C22",
    example="privproj epsilon wishart --dim 1000 --rank 1600 --misalignment 8e-6 --delta 1e-5",
    representation=representation,  # pyright: ignore[reportArgumentType]
    groups=False,
    status=Status.REFUTED,
    reason=REASON,
)
