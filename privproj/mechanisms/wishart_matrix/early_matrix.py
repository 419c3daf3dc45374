"""The claim that a matrix query is private after a projection without noise (early version, Theorem 2): refuted."""

from privproj.errors import Refused
from privproj.mechanisms import WishartMatrix
from privproj.mechanisms.bound import Bound
from privproj.result import Status

REASON = (
    "V^T Y = V^T M V is symmetric for the true V and, with probability one, for no other V' (unless both are "
    "proportional, or of rank one with the same right factor), so one release tells neighbours apart: delta = 1 for "
    "every epsilon. See for yourself with privproj.audit.symmetry_test. Use m1 or m2, which add noise; a single column "
    "is the wishart mechanism"
)
"""Why the theorem is no guarantee, and what to use instead."""


def representation(mechanism: WishartMatrix) -> None:
    """Raise :class:`Refused`: there is no formula to evaluate."""
    raise Refused(f"a matrix query without noise has no bound: {REASON}")


BOUND = Bound(
    name="early-matrix",
    mechanism=WishartMatrix,
    summary="matrix queries without noise, claimed private; no sound bound exists",
    formula="none: densities on the set of rank-deficient Y are taken with respect to different supports",
    source="early version of arXiv 2601.21719, Theorem 2 and its LoRA corollary; refuted by arXiv 2601.21719, "
    "Proposition 2",
    proof="C22",
    example="privproj epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.3814 --delta 1e-5",
    representation=representation,  # pyright: ignore[reportArgumentType]
    groups=False,
    status=Status.REFUTED,
    reason=REASON,
)
