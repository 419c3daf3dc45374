"""What the data must promise for the bounds of the vector Wishart mechanism."""

from typing import Any

from privproj.mechanisms import Wishart
from privproj.result import Status


def _alignment_promises(mechanism: Wishart) -> tuple[str, ...]:
    """The promise on the angle and on the norms of neighbouring vectors, in words."""
    m = mechanism.misalignment
    most = "at most the misalignment that is found" if m is None else f"<= {m:g}"
    norms = "equal norm" if mechanism.norm_ratio == 1.0 else f"norms within a factor {mechanism.norm_ratio:g}"
    return (
        f"neighbouring data sets give vectors of {norms} with 1 - cos(v, v') {most}: an average alignment does not do",
    )


OF_ALIGNMENT: dict[str, Any] = {
    "mechanism": Wishart,
    "status": Status.CONDITIONAL,
    "groups": False,
    "promises_of": _alignment_promises,
}
"""What all bounds under this promise have."""


def refuses_unequal_norms(mechanism: Wishart) -> str | None:
    """Why there is no bound for norms that differ; None where they are equal."""
    if mechanism.norm_ratio != 1.0:
        return f"this bound needs equal norms, got norm_ratio={mechanism.norm_ratio:g}: normalise the vector first"
    return None
