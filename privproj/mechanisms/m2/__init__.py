"""M2: add noise first, then project; and its bounds, one theorem per file."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from privproj.assumptions import Requirement
from privproj.errors import InvalidParameter
from privproj.mechanisms.base import ClippedSum, Lift
from privproj.parameters import LAYERS, flag, integer, one_of, parameter, real, whole_number

LAYER_TEXT = re.compile(
    r"([0-9]+)x([0-9]+)(?:x([0-9]+))?(?::([0-9]+))?(?:@([0-9.]+(?:e[+-]?[0-9]+)?))?", re.ASCII | re.IGNORECASE
)
"""How a layer is written: ``DxR``, ``DxRxN``, ``DxRxN:M`` or ``DxRxN:M@SHARE``."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Layers of one shape, each projected from ``dim`` to ``rank`` by a projection of its own.

    Args:
        dim: The side that is projected, from 1 to 1e12.
        rank: The rank of the projection, from 1 to ``dim``; with ``rank = dim`` the layers are not projected.
        count: How many layers there are of this shape, from 1 to 1e5.
        columns: The other side of each, from 1 to 1e12, which says how large its gradient is; None: as long as ``dim``.
        share: The part of the squared clipping norm that all ``count`` layers together get, above 0 and at most 1; for
            clipping per layer only. None: equal parts.

    Raises:
        InvalidParameter: A value is outside its range.

    >>> from privproj import M2, Layer, epsilon
    >>> layers = (Layer(dim=768, rank=16, count=24), Layer(dim=3072, rank=16, count=12))
    >>> round(epsilon(M2(layers=layers, noise_multiplier=0.5), delta=1e-5).value, 4)
    1.2784
    """

    dim: int
    rank: int
    count: int = 1
    columns: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "dim", integer("layer", self.dim, "a whole number dim >= 1 in a layer", 1, 10**12))
        set_field(self, "rank", integer("layer", self.rank, f"a rank from 1 to dim={self.dim} in a layer", 1, self.dim))
        set_field(self, "count", integer("layer", self.count, "a count from 1 to 1e5 in a layer", 1, 10**5))
        if self.columns is not None:
            set_field(self, "columns", integer("layer", self.columns, "columns from 1 to 1e12 in a layer", 1, 10**12))
        if self.share is not None:
            set_field(self, "share", real("layer", self.share, "a share in (0, 1] in a layer", 0, 1, open_low=True))

    def __str__(self) -> str:
        shape = f"{self.dim}x{self.rank}x{self.count}" + (f":{self.columns}" if self.columns else "")
        if self.share is None:
            return shape
        # A ledger keeps this text and reads it again: a rounded share would be another mechanism.
        short = f"{self.share:g}"
        return f"{shape}@{short if float(short) == self.share else repr(self.share)}"

    @classmethod
    def parse(cls, text: object) -> "Layer":
        """Return the layer that a text ``DxR[xN][:M][@SHARE]`` describes.

        Args:
            text: For instance ``768x16x24``: 24 layers of dimension 768, projected to rank 16; ``768x16x24:3072`` where
                their other side is 3072 long.

        Returns:
            The layer.

        Raises:
            InvalidParameter: It is no such text, or a size is outside its range.
        """
        match = LAYER_TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidParameter("layer", text, "a layer DxR[xN][:M][@SHARE], for instance 768x16x24")
        dim, rank, count, columns, share = match.groups()
        try:
            sizes = {"dim": int(dim), "rank": int(rank), "count": int(count or 1), "columns": columns and int(columns)}
            return cls(**sizes, share=float(share) if share else None)
        except ValueError as error:
            if isinstance(error, InvalidParameter):
                raise
            raise InvalidParameter("layer", str(text)[:80], "sizes and a share that are numbers in a layer") from None


def read_layers(layers: str | Layer | Iterable[str | Layer]) -> tuple[Layer, ...]:
    """The layers that a text says, or several, of which some may be layers already."""
    several = layers if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    return tuple(one if isinstance(one, Layer) else Layer.parse(one) for one in several)


@dataclass(frozen=True, kw_only=True)
class M2(ClippedSum):
    """Add noise first, then project: release ``M (V + E)`` with ``M = Z Z^T``, drawn afresh for each release.

    ``Z`` is a random frame of shape ``dim x rank``. ``V`` is the sum of whole clipped gradients: LoRA that clips the
    gradients of its own factors is :class:`Gaussian`. Give either ``dim`` and ``rank``, or ``layers``.

    Args:
        noise_multiplier: ``z``, the noise deviation over the sensitivity of ``V`` in the Frobenius norm, from 1e-12 to
            1e12; left out (None) only for the sigma query.
        dim: The side of ``V`` that is projected, from 1 to 1e12.
        rank: The rank of the projection, from 1 to ``dim``; left out only for the rank query.
        layers: The projected tensors, each a :class:`Layer` or its words as ``Layer.parse`` reads them, instead of
            ``dim`` and ``rank``.
        clipping: "joint": one clip ``C`` for all layers together. "per-layer": each layer has its own clip, and the
            sum of their squares is ``C^2``.
        columns: The other side of ``V``, from 1 to 1e12; with ``layers`` that of each that does not say its own, and no
            smaller than theirs.
        change_rank: A promise: the largest rank of the change that one record makes, from 1 to ``min(dim, columns)``.
        fixed_projection: True if one projection serves all releases; bounds that need a fresh one then refuse several.
        adaptive_clipping_sigma: ``S``, where the clip adapts to a private count: the standard deviation of the noise on
            the count, which adds 1/2 for each record of the batch that was not clipped and takes 1/2 for each one that
            was, from 1e-12 to 1e12 (a plain count has twice the sensitivity, and needs twice the noise). None: the clip
            is fixed, and nothing but the sum is released.

    Raises:
        InvalidParameter: A value is outside its range, ``dim`` and ``layers`` are both given or both missing, or shares
            do not sum to 1.

    >>> from privproj import M2, epsilon
    >>> run = epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5, steps=2000, sampling_rate=0.01)
    >>> round(run.value, 4)
    0.2705
    """

    name = "m2"
    summary = "Clip the whole gradient, add noise, then project it to a fresh small subspace."
    example = "dim=2048 rank=16 noise_multiplier=0.3814"
    finds_rank = True
    assumes = (Requirement.FRESH_PROJECTION, Requirement.FULL_GRADIENT_CLIPPING, Requirement.SECRET_SEED)
    dim: int | None = parameter(whole_number(high=10**12), "Side of the layer that is projected.", "D")
    rank: int | None = parameter(whole_number(), "Rank of the projection.", "R")
    layers: tuple[Layer, ...] = parameter(
        LAYERS,
        "N layers projected from D to R; DxD: not projected, whatever its other side. May be repeated.",
        "DxR[xN][:M][@SHARE]",
        default=(),
        key="layer",
        read=read_layers,
    )
    clipping: Literal["joint", "per-layer"] = parameter(
        one_of("joint", "per-layer"),
        "One clip C for all layers, or one each (C^2 is the sum of their squares).",
        default="joint",
    )
    columns: int | None = parameter(whole_number(high=10**12), "The layer's other side.", "M", is_rare=True)
    change_rank: int | None = parameter(
        whole_number(), "Promise: one record changes the gradient by at most this rank.", "K"
    )
    fixed_projection: bool = flag("One projection for all steps.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", read_layers(self.layers))
        super().__post_init__()
        self.check_layers()
        if self.rank is not None and self.rank > (self.dim or 0):
            raise InvalidParameter("rank", self.rank, f"a rank of at most dim={self.dim}")
        if self.change_rank is not None and self.change_rank > self.largest_rank:
            expected = f"a change rank of at most min(dim, columns)={self.largest_rank}"
            raise InvalidParameter("change_rank", self.change_rank, expected)

    def check_layers(self) -> None:
        """Raise :class:`InvalidParameter` unless the layers fit the other parameters.

        Either ``dim`` or ``layers`` is given. No layer is longer than ``columns``. Shares are given for all layers or
        for none, sum to 1, and need clipping per layer.
        """
        if bool(self.layers) == (self.dim is not None) or (self.layers and self.rank is not None):
            name = "rank" if self.layers and self.dim is None else "dim"
            raise InvalidParameter(name, getattr(self, name) or "nothing", "either dim and rank, or layers")
        if self.clipping not in ("joint", "per-layer") or (self.clipping == "per-layer" and not self.layers):
            raise InvalidParameter("clipping", self.clipping, "joint, or per-layer together with layers")
        longest = max((layer.columns or 0 for layer in self.layers), default=0)
        if self.columns is not None and self.columns < longest:
            expected = f"columns of at least {longest}, the other side of a layer"
            raise InvalidParameter("columns", self.columns, expected, "they are for layers that do not say their own")
        shares = [layer.share for layer in self.layers if layer.share is not None]
        if not shares:
            return
        if self.clipping == "joint" or len(shares) < len(self.layers) or abs(sum(shares) - 1.0) > 1e-9:
            total = f"{sum(shares):g} over {len(shares)} of {len(self.layers)} layers, clipping {self.clipping}"
            raise InvalidParameter("layer", total, "a share for every layer, summing to 1, with clipping=per-layer")

    @property
    def assumes_of_clips(self) -> tuple[str, ...]:
        """With a clip for each layer, what the noise multiplier is relative to."""
        of_layers = (Requirement.PER_LAYER_CLIPPING,) if self.clipping == "per-layer" else ()
        return (*of_layers, *super().assumes_of_clips)

    def notes(self) -> list[str]:
        """Return where the projection gains nothing, and why, in words."""
        if not self.layers and self.rank is None:
            return []
        if self.unprojected and self.clipping == "per-layer":
            return ["no layer is projected, so this is the Gaussian profile"]
        if self.unprojected and self.layers:
            return [
                "an unprojected tensor shares the joint clip: the whole norm may sit there, so this is the Gaussian "
                "profile; freeze it, fold it into a projected matrix, or use per-layer clipping"
            ]
        if self.unprojected:
            return ["rank equals dim: the projection changes nothing, so this is the Gaussian profile"]
        shared = min((layer.rank for layer in self.layers if layer.count > 1), default=0)
        slim = [layer for layer in self.layers if layer.count == 1 and layer.rank < min(shared, layer.dim)]
        if slim:
            return [
                f"{slim[0].dim}x{slim[0].rank} is a layer projected to rank {slim[0].rank}, not the shape of a matrix: "
                f"a trained tensor of that side which is not projected is {slim[0].dim}x{slim[0].dim}"
            ]
        return []

    def gain_words(self, *, of_noise: bool) -> str:
        """Return that what is released is smaller than DP-SGD's, and no better for it.

        Args:
            of_noise: True where noise multipliers are compared at equal privacy, and not privacy at equal noise.

        Returns:
            The end of a sentence.
        """
        if self.unprojected:
            return super().gain_words(of_noise=of_noise)
        return ("noise" if of_noise else "the same noise, but") + " on a smaller release, which is no better model"

    def lift(self) -> Lift:
        """Return the effective noise and the projection factor of the update ``(d/r) Y Q^T`` (C38).

        Returns:
            That of all layers together: noise by its energy, weighted by the sizes ``n d`` of the layers; the factor
            ``d/r`` of the layer where it is largest.

        Raises:
            InvalidParameter: Neither ``dim`` with ``rank`` nor ``layers`` were given.
        """
        # E|U - S|^2 = (d/r - 1) |S|^2 + n d (z sqrt(d/r) C)^2 for each layer.
        shapes = [(x.dim, x.rank, x.count, x.columns) for x in self.layers] or [(*self.shape, 1, None)]
        sizes = [(d, r, n * (m or self.columns or d)) for d, r, n, m in shapes]
        energy = sum(n * d * (d / r) for d, r, n in sizes) / sum(n * d for d, _, n in sizes)
        factor = max(d / r for d, r, _ in sizes)
        return Lift(math.sqrt(energy), factor, sum(n * r for _, r, n in sizes), sum(n * d for d, _, n in sizes))

    @property
    def parts(self) -> tuple[tuple[int, int, int, float], ...]:
        """For every layer: ``(dim, rank, count, share of the squared clip for each one of them)``.

        Raises:
            InvalidParameter: Neither ``dim`` with ``rank`` nor ``layers`` were given.
        """
        total = sum(layer.count for layer in self.layers)
        if not self.layers:
            return ((*self.shape, 1, 1.0),)
        # Shares that were rounded are parts of their sum, which is C^2 (C6); where that is above 1 they stay larger.
        share = min(1.0, math.fsum(layer.share or 0.0 for layer in self.layers)) or 1.0
        return tuple(
            (x.dim, x.rank, x.count, (x.share / share / x.count) if x.share else 1.0 / total) for x in self.layers
        )

    @property
    def alike(self) -> "M2":
        """The mechanism of one layer, if all layers have one shape and a joint clip; else the same mechanism.

        Under a joint clip, layers of one shape are as private as one of them (C5).
        """
        shapes = {(layer.dim, layer.rank) for layer in self.layers}
        several = sum(layer.count for layer in self.layers) > 1
        if len(shapes) != 1 or (several and self.clipping != "joint"):
            return self
        dim, rank = shapes.pop()
        return replace(self, layers=(), clipping="joint", dim=dim, rank=rank)

    @property
    def unprojected(self) -> bool:
        """True if some tensor under the joint clip is not projected, since the whole norm may sit there."""
        joint = self.clipping == "joint" or len(self.parts) == 1
        return joint and any(dim == rank for dim, rank, _, _ in self.parts)

    @property
    def projects_apart(self) -> bool:
        """True if several projected layers have clips of their own.

        Their captured shares then average, which needs independent projections (C6).
        """
        projected = sum(layer.count for layer in self.layers if layer.rank < layer.dim)
        return self.clipping == "per-layer" and projected > 1

    @property
    def largest_rank(self) -> int:
        """The largest rank that a change can have in one layer: ``min(d, m)``."""
        dim = self.dim or max(layer.dim for layer in self.layers)
        return dim if self.columns is None else min(dim, self.columns)

    @property
    def rank_limit(self) -> int:
        """The largest rank that the rank query tries: a projection has at most the rank of its dimension."""
        return self.dim or 1

    def for_replacement(self) -> "M2":
        """Return the mechanism under replace: one change is taken away and one added, so the rank doubles."""
        return self._with_rank_times(2, super().for_replacement())

    def for_group(self, size: int) -> "M2":
        """Return the mechanism as a group sees it: its sensitivity and the rank of its change grow ``size`` times.

        Args:
            size: The number of records of one person, at least 1.

        Returns:
            The mechanism with its noise multiplier divided, and its promised rank multiplied, by ``size``.
        """
        return self._with_rank_times(size, super().for_group(size))

    def _with_rank_times(self, size: int, seen: Any) -> "M2":
        """The mechanism as it is seen, with a promised rank that is ``size`` times as large."""
        return replace(seen, change_rank=self.change_rank and min(size * self.change_rank, self.largest_rank))

    @property
    def shape(self) -> tuple[int, int]:
        """The pair ``(d, r)`` of dimension and rank of the one projected layer.

        Raises:
            InvalidParameter: One of them was left out.
        """
        if self.rank is None or self.dim is None:
            raise InvalidParameter("rank", "nothing", "dim with rank, or layers", "only the rank query leaves it out")
        return self.dim, self.rank

    @property
    def beta_shape(self) -> tuple[float, float]:
        """The pair ``(r/2, (d - r)/2)``: ``|P u|^2`` of a unit vector has the Beta law with these parameters (C7).

        Raises:
            InvalidParameter: The dimension or the rank was left out.
        """
        dim, rank = self.shape
        return 0.5 * rank, 0.5 * (dim - rank)
