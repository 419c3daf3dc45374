"""M2: noise first, then project."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from privproj.errors import InvalidParameter
from privproj.mechanisms.base import Mechanism, NoisyMechanism
from privproj.validation import boolean, real, whole

LAYER_TEXT = re.compile(r"([0-9]+)x([0-9]+)(?:x([0-9]+))?(?:@([0-9.]+(?:e[+-]?[0-9]+)?))?", re.ASCII | re.IGNORECASE)
"""``DxR``, ``DxRxN`` or ``DxRxN@SHARE``."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """``count`` layers projected from ``dim`` to ``rank``, each by its own projection; ``dim = rank``: unprojected.

    ``share`` is the part of the squared clipping norm that all ``count`` together get under per-layer clipping.
    """

    dim: int
    rank: int
    count: int = 1
    share: float | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "dim", whole("layer", self.dim, "a whole number dim >= 1 in a layer", 1, 10**12))
        set_field(self, "rank", whole("layer", self.rank, f"a rank from 1 to dim={self.dim} in a layer", 1, self.dim))
        set_field(self, "count", whole("layer", self.count, "a count from 1 to 1e5 in a layer", 1, 10**5))
        if self.share is not None:
            set_field(self, "share", real("layer", self.share, "a share in (0, 1] in a layer", 0, 1, open_low=True))

    def __str__(self) -> str:
        shape = f"{self.dim}x{self.rank}x{self.count}"
        if self.share is None:
            return shape
        # A ledger keeps this text and reads it again: a rounded share would be another mechanism.
        short = f"{self.share:g}"
        return f"{shape}@{short if float(short) == self.share else repr(self.share)}"

    @classmethod
    def parse(cls, text: object) -> "Layer":
        """``DxR``, ``DxRxN`` or ``DxRxN@SHARE`` as a layer; raises :class:`InvalidParameter` for anything else."""
        found = LAYER_TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidParameter("layer", text, "a layer DxR, DxRxN or DxRxN@SHARE, for instance 768x16x24")
        dim, rank, count, share = found.groups()
        try:
            return cls(dim=int(dim), rank=int(rank), count=int(count or 1), share=float(share) if share else None)
        except ValueError as error:
            if isinstance(error, InvalidParameter):
                raise
            raise InvalidParameter("layer", str(text)[:80], "sizes and a share that are numbers in a layer") from None


@dataclass(frozen=True, kw_only=True)
class M2(NoisyMechanism):
    """Noise first, then project: ``M (V + E)`` with ``M = Z Z^T``, ``Z`` of shape ``dim x rank``, fresh per release.

    ``dim`` is the side that is projected, ``rank`` the rank of the projection (left out only where it
    is the question), ``columns`` the other side of the matrix, ``change_rank`` the largest rank ``k`` of
    the change one record makes. Instead of ``dim`` and ``rank``, ``layers`` lists the projected tensors under one
    joint clip, or each with its part of the clip (``clipping="per-layer"``; equal parts unless shares are given).
    """

    name = "m2"
    finds_rank = True
    assumes = (
        "the projection is drawn afresh for each release, independently of the data and of all that shaped the query",
        "clipping comes before projecting",
        "the seed of the projection cannot be guessed by anyone who can shape the data",
    )
    dim: int | None = None
    rank: int | None = None
    layers: tuple[Layer, ...] = ()
    clipping: Literal["joint", "per-layer"] = "joint"
    columns: int | None = None
    change_rank: int | None = None
    fixed_projection: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_field = object.__setattr__
        boolean("fixed_projection", self.fixed_projection)
        self.check_layers()
        if self.dim is not None:
            set_field(self, "dim", whole("dim", self.dim, "a whole number dim >= 1", 1, 10**12))
        if self.rank is not None:
            set_field(self, "rank", whole("rank", self.rank, "a whole number rank >= 1"))
            if self.rank > (self.dim or 0):
                raise InvalidParameter("rank", self.rank, f"a rank of at most dim={self.dim}")
        if self.columns is not None:
            set_field(self, "columns", whole("columns", self.columns, "a whole number of columns >= 1", 1, 10**12))
        if self.change_rank is not None:
            set_field(self, "change_rank", whole("change_rank", self.change_rank, "a whole number change_rank >= 1"))
            if self.change_rank > self.largest_rank:
                expected = f"a change rank of at most min(dim, columns)={self.largest_rank}"
                raise InvalidParameter("change_rank", self.change_rank, expected)

    def check_layers(self) -> None:
        """Either ``dim`` or ``layers``; shares all or none, summing to 1, and only with per-layer clipping."""
        if bool(self.layers) == (self.dim is not None) or (self.layers and self.rank is not None):
            given = "nothing" if self.dim is None else self.dim
            raise InvalidParameter("dim", given, "either dim and rank, or layers")
        if not all(isinstance(layer, Layer) for layer in self.layers):
            raise InvalidParameter("layers", self.layers, "layers of type privproj.Layer")
        if self.clipping not in ("joint", "per-layer") or (self.clipping == "per-layer" and not self.layers):
            raise InvalidParameter("clipping", self.clipping, "joint, or per-layer together with layers")
        given = [layer.share for layer in self.layers if layer.share is not None]
        if not given:
            return
        if self.clipping == "joint" or len(given) < len(self.layers) or abs(sum(given) - 1.0) > 1e-9:
            total = f"{sum(given):g} over {len(given)} of {len(self.layers)} layers, clipping {self.clipping}"
            raise InvalidParameter("layer", total, "a share for every layer, summing to 1, with clipping=per-layer")

    def notes(self) -> list[str]:
        """Where the projection gains nothing, and why."""
        if not self.layers and self.rank is None:
            return []
        if self.unprojected and self.layers:
            return [
                "an unprojected tensor shares the joint clip: the whole norm may sit there, so this is the Gaussian "
                "profile; freeze it, fold it into a projected matrix, or use per-layer clipping"
            ]
        if self.unprojected:
            return ["rank equals dim: the projection changes nothing, so this is the Gaussian profile"]
        return []

    @property
    def parts(self) -> tuple[tuple[int, int, int, float], ...]:
        """``(dim, rank, count, share of the squared clip for each one)`` of every layer."""
        total = sum(layer.count for layer in self.layers)
        if not self.layers:
            if self.dim is None or self.rank is None:
                raise InvalidParameter(
                    "rank", "nothing", "dim with rank, or layers", "only the rank query leaves it out"
                )
            return ((self.dim, self.rank, 1, 1.0),)
        return tuple((x.dim, x.rank, x.count, (x.share / x.count) if x.share else 1.0 / total) for x in self.layers)

    @property
    def alike(self) -> "M2":
        """Under a joint clip, layers of one shape are as private as one of them: that one (else the same mechanism)."""
        shapes = {(layer.dim, layer.rank) for layer in self.layers}
        several = sum(layer.count for layer in self.layers) > 1
        if len(shapes) != 1 or (several and self.clipping != "joint"):
            return self
        dim, rank = shapes.pop()
        return replace(self, layers=(), clipping="joint", dim=dim, rank=rank)

    @property
    def unprojected(self) -> bool:
        """True if some tensor under the joint clip is not projected: the whole norm may sit there."""
        joint = self.clipping == "joint" or len(self.parts) == 1
        return joint and any(dim == rank for dim, rank, _, _ in self.parts)

    @property
    def projects_apart(self) -> bool:
        """True if several projected layers have clips of their own, so that their captured shares average (C6)."""
        projected = sum(layer.count for layer in self.layers if layer.rank < layer.dim)
        return self.clipping == "per-layer" and projected > 1

    @property
    def largest_rank(self) -> int:
        """``min(d, m)``: the largest rank a change can have in one layer."""
        dim = self.dim or max(layer.dim for layer in self.layers)
        return dim if self.columns is None else min(dim, self.columns)

    @property
    def rank_limit(self) -> int:
        """A projection has at most the rank of its dimension."""
        return self.dim or 1

    def for_replacement(self) -> "M2":
        """Replacing a record takes one change away and adds another: twice the rank."""
        promised = None if self.change_rank is None else min(2 * self.change_rank, self.largest_rank)
        return replace(self, change_rank=promised)

    def for_group(self, size: int) -> "Mechanism":
        """Sensitivity and the rank of the change grow ``size`` times."""
        promised = None if self.change_rank is None else min(self.change_rank * size, self.largest_rank)
        return replace(super().for_group(size), change_rank=promised)  # pyright: ignore[reportCallIssue]

    @property
    def shape(self) -> tuple[int, int]:
        """``(d, r)`` of the one projected layer; raises :class:`InvalidParameter` where one of them was left out."""
        if self.rank is None or self.dim is None:
            raise InvalidParameter(
                "rank", "nothing", "dim with rank, or layers", "only the rank query leaves the rank out"
            )
        return self.dim, self.rank

    @property
    def beta_shape(self) -> tuple[float, float]:
        """``(r/2, (d - r)/2)``: the law of ``|P u|^2`` is Beta with these parameters."""
        dim, rank = self.shape
        return 0.5 * rank, 0.5 * (dim - rank)
