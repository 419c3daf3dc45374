"""A vector multiplied by a Wishart matrix."""

from dataclasses import dataclass

from privproj.errors import InvalidParameter
from privproj.mechanisms.base import Mechanism
from privproj.validation import boolean, real, whole


@dataclass(frozen=True, kw_only=True)
class Wishart(Mechanism):
    """Release ``M v`` without noise: ``v = f(S)`` a vector in ``R^dim``, ``M ~ W_dim(I/rank, rank)`` fresh per release.

    Promise: neighbouring vectors have ``1 - cos(v, v') <= misalignment`` (or cosine at least ``alignment``) and equal
    norms, or norms within a factor ``norm_ratio >= 1`` of each other: any ratio up to it, either one the larger.
    ``rank`` may exceed ``dim``.
    """

    name = "wishart"
    finds_rank = True
    assumes = (
        "the matrix is drawn afresh for each release, independently of the data and of all that shaped the query",
        "the matrix itself is never released, nor anything else that was computed from it",
    )
    default_relation = "replace"
    poisson = False
    remedy = "a smaller misalignment"
    with_rank = "u-shaped"
    dim: int | None = None
    rank: int | None = None
    misalignment: float | None = None
    alignment: float | None = None
    norm_ratio: float = 1.0
    fixed_projection: bool = False

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        boolean("fixed_projection", self.fixed_projection)
        set_field(self, "dim", whole("dim", self.dim, "a whole number dim from 1 to 1e7", 1, 10**7))
        if self.rank is not None:
            set_field(self, "rank", whole("rank", self.rank, "a whole number rank from 1 to 1e7", 1, 10**7))
        if self.alignment is not None:
            if self.misalignment is not None:
                raise InvalidParameter("alignment", self.alignment, "either misalignment or alignment, not both")
            rho = real("alignment", self.alignment, "an alignment above -1 and below 1", -1.0, 1.0, open_low=True)
            set_field(self, "misalignment", 1.0 - rho)
            set_field(self, "alignment", None)
        if self.misalignment is not None:
            expected = "a misalignment from 1e-15 to below 2"
            set_field(self, "misalignment", real("misalignment", self.misalignment, expected, 1e-15, 2.0))
            if self.misalignment == 2.0:
                raise InvalidParameter("misalignment", self.misalignment, expected)
        expected = "a ratio of norms from 1 to 1e6"
        set_field(self, "norm_ratio", real("norm_ratio", self.norm_ratio, expected, 1.0, 1e6))

    @property
    def shape(self) -> tuple[int, int, float]:
        """``(d, r, m)``; raises :class:`InvalidParameter` where one of them was left out."""
        for name in ("dim", "rank", "misalignment"):
            if getattr(self, name) is None:
                raise InvalidParameter(
                    name, "nothing", "dim, rank and misalignment", "only its own query leaves it out"
                )
        assert self.dim is not None and self.rank is not None and self.misalignment is not None
        return self.dim, self.rank, self.misalignment

    def parameters(self) -> dict[str, object]:
        """The parameters that were given; equal norms go without saying."""
        given = super().parameters()
        return {name: value for name, value in given.items() if name != "norm_ratio" or value != 1.0}


@dataclass(frozen=True, kw_only=True)
class WishartMatrix(Mechanism):
    """Release ``M V`` without noise, ``V`` of shape ``dim x columns``, ``M ~ W_dim(I/rank, rank)``: not private."""

    name = "wishart-matrix"
    can_be_sampled = False
    default_relation = "replace"
    poisson = False
    dim: int | None = None
    rank: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "rank", "columns"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name), f"a whole number {name} >= 1"))
