"""Corollary 1 of the early version of 2601.21719: a rate with an unspecified constant."""

from privproj.errors import Refused
from privproj.mechanisms import Wishart
from privproj.mechanisms.bound import Bound
from privproj.result import Status

REASON = (
    "its universal constant is left open, so no number follows from it. Use exact, the whole profile of the same "
    "mechanism under the same promise"
)
"""Why the corollary is no guarantee, and what to use instead."""


def representation(mechanism: Wishart) -> None:
    """Raise :class:`Refused`: a rate with an open constant cannot be evaluated."""
    raise Refused(f"early-corollary has no formula to evaluate: {REASON}")


BOUND = Bound(
    name="early-corollary",
    mechanism=Wishart,
    summary="a rate whose constant is left open",
    formula="eps = O(...) with an unspecified universal constant",
    source="early version of arXiv 2601.21719, Corollary 1",
    proof="C22",
    example="privproj epsilon wishart --dim 1000 --rank 16 --misalignment 8e-6 --delta 1e-5",
    representation=representation,  # pyright: ignore[reportArgumentType]
    groups=False,
    status=Status.ASYMPTOTIC,
    reason=REASON,
)
