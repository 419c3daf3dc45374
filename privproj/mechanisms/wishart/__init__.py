"""Define the vector Wishart mechanism, which adds no noise.

The mechanism multiplies a vector by a random Wishart matrix.
"""

from dataclasses import dataclass
from typing import Any

from privproj.assumptions import Assumption, DataAssumption, Requirement
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms.base import Mechanism
from privproj.parameters import NUMBER, flag, number, parameter, real, whole_number
from privproj.result import Status, limit_text


@dataclass(frozen=True, kw_only=True)
class Wishart(Mechanism):
    """The mechanism that multiplies a vector by a Wishart matrix, without noise.

    The release is ``M v`` for a vector ``v`` of length ``dim``. The random Wishart matrix ``M ~ W_dim(I/rank, rank)``
    is secret and resampled for each release. ``misalignment`` and ``norm_ratio`` are assumptions on the data: they
    limit the angle between neighboring vectors ``v`` and ``v'`` and the ratio of their norms.

    Args:
        dim: The length of the vector, from 1 to 1e7.
        rank: The degrees of freedom of ``M``, from 1 to 1e7, which may exceed ``dim``; None only for the rank query.
        misalignment: The largest ``1 - cos(v, v')`` between neighbors, from 1e-15 to below 2; None only for the
            misalignment query.
        alignment: The smallest ``cos(v, v')`` between neighbors, above -1 and below 1. Give either this or
            ``misalignment``.
        norm_ratio: The largest ratio of the norms of neighboring vectors, from 1 to 1e6. Either norm may be larger.
        fixed_projection: Whether one matrix is used for all releases.

    Raises:
        InvalidParameterError: A value is outside its range, or both ``misalignment`` and ``alignment`` are given.

    >>> from privproj import Wishart, epsilon
    >>> round(epsilon(Wishart(dim=1000, rank=16, misalignment=8e-6), delta=1e-5).value, 4)
    0.1925
    """

    name = "wishart"
    summary = "Multiply a vector by a fresh Wishart matrix. There is no noise."
    example = "dim=1000 rank=16 misalignment=8e-6"
    finds_rank = True
    requirements = (Requirement.FRESH_MATRIX, Requirement.SECRET_MATRIX)
    default_relation = "replace"
    poisson = False
    remedy = "a smaller misalignment"
    with_rank = "u-shaped"
    dim: int | None = parameter(whole_number(high=10**7), "Dimension of the vector.", "D", is_needed=True)
    rank: int | None = parameter(whole_number(high=10**7), "Degrees of freedom of the matrix (may exceed D).", "R")
    misalignment: float | None = parameter(
        number(low=1e-15, high=2.0, open_high=True),
        "Assumption: upper bound of 1 - cosine of neighboring vectors.",
        "M",
    )
    alignment: float | None = parameter(NUMBER, "The same assumption as a cosine.", "RHO")
    norm_ratio: float = parameter(
        number(low=1.0, high=1e6),
        "Assumption: largest ratio of the norms of neighboring vectors.",
        "K",
        default=1.0,
    )
    fixed_projection: bool = flag("One matrix for all steps.")

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if self.alignment is not None:
            if self.misalignment is not None:
                raise InvalidParameterError("alignment", self.alignment, "omitted if misalignment is given")
            expected = "a number above -1 and below 1"
            rho = real("alignment", self.alignment, expected, -1.0, 1.0, open_low=True, open_high=True)
            set_field(self, "misalignment", 1.0 - rho)
            set_field(self, "alignment", None)
        super().__post_init__()

    @property
    def shape(self) -> tuple[int, int, float]:
        """The dimension, the degrees of freedom and the misalignment ``(d, r, m)``.

        Raises:
            InvalidParameterError: One of them is missing.
        """
        for name in ("dim", "rank", "misalignment"):
            if getattr(self, name) is None:
                raise InvalidParameterError(name, "nothing", "a number")
        assert self.dim is not None and self.rank is not None and self.misalignment is not None
        return self.dim, self.rank, self.misalignment


def _alignment_assumptions(mechanism: Wishart) -> tuple[Assumption, ...]:
    """Return the assumption on the angle and on the norms of neighboring vectors."""
    m, ratio = mechanism.misalignment, limit_text(mechanism.norm_ratio, up=False)
    most = "at most the misalignment that is found" if m is None else f"<= {limit_text(m, up=False)}"
    norms = f"norms within a factor {ratio}" if mechanism.norm_ratio != 1.0 else "equal norm"
    return (DataAssumption.ALIGNMENT.at(norms=norms, most=most),)


# fields of the bounds under this assumption
OF_ALIGNMENT: dict[str, Any] = {
    "mechanism": Wishart,
    "status": Status.CONDITIONAL,
    "of_group": None,
    "assumptions": _alignment_assumptions,
}


def check_equal_norms(mechanism: Wishart) -> None:
    """Raise an error if the norms of neighboring vectors may differ.

    Raises:
        UnsupportedError: ``norm_ratio`` is not 1.
    """
    if mechanism.norm_ratio != 1.0:
        raise UnsupportedError(
            f"norm_ratio must be 1 for this bound, got {mechanism.norm_ratio:g}. "
            f"Normalize the vector, or use the bound exact"
        )
