"""Define the mechanism M2, which adds noise, then projects."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError
from privproj.mechanisms.base import ClippedSum, Lift
from privproj.parameters import LAYERS, flag, integer, one_of, parameter, quoted, real, whole_number

LAYER_TEXT = re.compile(
    # DxR, DxRxN, DxRxN:M or DxRxN:M@SHARE
    r"([0-9]+)x([0-9]+)(?:x([0-9]+))?(?::([0-9]+))?(?:@([0-9.]+(?:e[+-]?[0-9]+)?))?",
    re.ASCII | re.IGNORECASE,
)


class _ArgumentsByName:
    """Reject arguments without names, for subclasses such as :class:`Layer`."""

    # in a base class, so that help(Layer) shows the signature of Layer
    def __new__(cls, *unnamed: object, **parameters: object) -> Self:
        if unnamed:
            call = "write Layer(dim=1024, rank=16), or use the text '1024x16'"
            raise InvalidParameterError("arguments of Layer", quoted(unnamed), "given by name", call)
        return super().__new__(cls)


@dataclass(frozen=True, kw_only=True)
class Layer(_ArgumentsByName):
    """Layers of equal shape, each with its own projection from ``dim`` to ``rank``.

    Args:
        dim: The dimension that is projected, from 1 to 1e12.
        rank: The rank of the projection, from 1 to ``dim``; with ``rank = dim`` the layers are not projected.
        count: The number of layers of this shape, from 1 to 1e5.
        columns: The other dimension of the gradient of each layer, from 1 to 1e12; None means ``dim``.
        share: The share of the squared clipping norm for all ``count`` layers together, above 0 and at most 1; for
            per-layer clipping only. None means equal shares.

    Raises:
        InvalidParameterError: A value is outside its range.

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
        set_field(
            self, "dim", integer("layer", self.dim, "of the form DxR with D an integer from 1 to 1e12", 1, 10**12)
        )
        set_field(
            self,
            "rank",
            integer("layer", self.rank, f"of the form DxR with R an integer from 1 to D = {self.dim}", 1, self.dim),
        )
        set_field(
            self, "count", integer("layer", self.count, "of the form DxRxN with N an integer from 1 to 1e5", 1, 10**5)
        )
        if self.columns is not None:
            set_field(
                self,
                "columns",
                integer("layer", self.columns, "of the form DxR:M with M an integer from 1 to 1e12", 1, 10**12),
            )
        if self.share is not None:
            set_field(
                self,
                "share",
                real(
                    "layer", self.share, "of the form DxR@SHARE with SHARE above 0 and at most 1", 0, 1, open_low=True
                ),
            )

    def __str__(self) -> str:
        shape = f"{self.dim}x{self.rank}x{self.count}" + (f":{self.columns}" if self.columns else "")
        if self.share is None:
            return shape
        # Ledgers store this text: a rounded share would be a different mechanism.
        short = f"{self.share:g}"
        return f"{shape}@{short if float(short) == self.share else repr(self.share)}"

    @classmethod
    def parse(cls, text: object) -> "Layer":
        """Return the :class:`Layer` that a text ``DxR[xN][:M][@SHARE]`` describes.

        Args:
            text: For instance ``768x16x24`` for 24 layers of dimension 768, projected to rank 16, or ``768x16x24:3072``
                if the other dimension of these layers is 3072.

        Returns:
            The object with ``count = N``, ``columns = M`` and ``share = SHARE``.

        Raises:
            InvalidParameterError: The text has another form, or a size is outside its range.
        """
        if not isinstance(text, str):
            expected = "a Layer or a text such as '768x16x24'"
            raise InvalidParameterError("layer", quoted(text), expected, "write Layer(dim=768, rank=16, count=24)")
        match = LAYER_TEXT.fullmatch(text)
        if match is None:
            remedy = "for example, 768x16x24 means 24 layers of dimension 768, projected to rank 16"
            raise InvalidParameterError("layer", text, "of the form DxR[xN][:M][@SHARE]", remedy)
        dim, rank, count, columns, share = match.groups()
        try:
            sizes = {"dim": int(dim), "rank": int(rank), "count": int(count or 1), "columns": columns and int(columns)}
            return cls(**sizes, share=float(share) if share else None)
        except ValueError as error:
            if isinstance(error, InvalidParameterError):
                raise
            raise InvalidParameterError(
                "layer", str(text)[:80], "of the form DxR[xN][:M][@SHARE] with numbers"
            ) from None


def read_layers(layers: str | Layer | Iterable[str | Layer]) -> tuple[Layer, ...]:
    """Return a tuple of layers from one layer, one text, or several layers and texts."""
    several = layers if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    return tuple(one if isinstance(one, Layer) else Layer.parse(one) for one in several)


@dataclass(frozen=True, kw_only=True)
class M2(ClippedSum):
    """The mechanism that adds noise to a matrix, then projects the sum at random.

    The release is ``P (V + E)`` with ``P = Z Z^T``, and ``Z`` is resampled for each release. The columns of ``Z`` are a
    random orthonormal basis of a subspace of dimension ``rank``. ``V`` is the sum of clipped gradients, and ``E`` is
    Gaussian noise. The whole gradients are clipped, before they are projected. For LoRA with clipped gradients of its
    factors, use :class:`Gaussian` instead. Give either ``dim`` and ``rank``, or ``layers``.

    Args:
        noise_multiplier: ``z``, the ratio of the standard deviation of the noise to the sensitivity of ``V`` in the
            Frobenius norm, from 1e-12 to 1e12; None only for the sigma query.
        dim: The dimension of ``V`` that is projected, from 1 to 1e12.
        rank: The rank of the projection, from 1 to ``dim``; None only for the rank query.
        layers: The projected tensors, each a :class:`Layer` or a text for ``Layer.parse``, instead of ``dim`` and
            ``rank``.
        clipping: "joint": one clipping norm ``C`` for all layers. "per-layer": each layer has its own clipping norm,
            and the squares of these norms sum to ``C^2``.
        columns: The other dimension of ``V``, from 1 to 1e12. With ``layers``: the value for every layer that does not
            set ``columns`` itself, at least as large as each value that a layer sets.
        change_rank: An assumption: the largest rank of the difference between neighboring sums in a layer, from 1 to
            ``min(dim, columns)``.
        fixed_projection: Whether one projection is used for all releases.
        adaptive_clipping_sigma: ``S``, the standard deviation of the noise on the count that adapts the clipping norm,
            from 1e-12 to 1e12. The count is ``sum(b_i - 1/2)``, where ``b_i`` is 1 if record ``i`` of the batch was not
            clipped, else 0. The plain count ``sum(b_i)`` has twice the sensitivity and needs twice the noise. None
            means a fixed clipping norm.

    Raises:
        InvalidParameterError: A value is outside its range, ``dim`` and ``layers`` are both given or both missing, or
            the shares of the layers do not sum to 1.

    >>> from privproj import M2, epsilon
    >>> run = epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5, steps=2000, sampling_rate=0.01)
    >>> round(run.value, 4)
    0.2705
    """

    name = "m2"
    summary = "Clip the whole gradient, add noise, then project it to a fresh small subspace."
    example = "dim=2048 rank=16 noise_multiplier=0.3814"
    finds_rank = True
    requirements = (Requirement.FRESH_PROJECTION, Requirement.FULL_GRADIENT_CLIPPING, Requirement.SECRET_SEED)
    used_by = (("change_rank", ("beta-tail-sharp", "good-event", "beta-tail", "good-event-q", "exact-rank1")),)
    dim: int | None = parameter(whole_number(high=10**12), "Dimension of the layer that is projected.", "D")
    rank: int | None = parameter(whole_number(), "Rank of the projection.", "R")
    layers: tuple[Layer, ...] = parameter(
        LAYERS,
        "N layers, projected from dimension D to rank R; M is the other dimension of their weight matrices. DxD means "
        "not projected. SHARE is the share of the squared clipping norm for these N layers together (per-layer "
        "clipping). Repeat the option for other shapes.",
        "DxR[xN][:M][@SHARE]",
        default=(),
        key="layer",
        read=read_layers,
    )
    clipping: Literal["joint", "per-layer"] = parameter(
        one_of("joint", "per-layer"),
        "One clipping norm C for all layers, or one for each layer (C^2 is the sum of their squares).",
        default="joint",
    )
    columns: int | None = parameter(whole_number(high=10**12), "Other dimension of the weight matrix.", "M")
    change_rank: int | None = parameter(
        whole_number(), "Assumption: largest rank of the difference between neighboring gradients.", "K"
    )
    fixed_projection: bool = flag("Use one projection for all steps.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", read_layers(self.layers))
        super().__post_init__()
        if bool(self.layers) == (self.dim is not None) or (self.layers and self.rank is not None):
            name = "rank" if self.layers and self.dim is None else "dim"
            raise InvalidParameterError(
                name,
                getattr(self, name) or "nothing",
                "omitted if layers is given",
                "give dim and rank, or layers" if self.layers or self.rank is not None else "",
            )
        if self.clipping not in ("joint", "per-layer") or (self.clipping == "per-layer" and not self.layers):
            raise InvalidParameterError("clipping", self.clipping, "joint, or per-layer if layers is given")
        longest = max((layer.columns or 0 for layer in self.layers), default=0)
        if self.columns is not None and self.columns < longest:
            expected = f"at least {longest}, the other side of a layer"
            raise InvalidParameterError(
                "columns", self.columns, expected, "columns applies only to layers without their own size :M"
            )
        shares = [layer.share for layer in self.layers if layer.share is not None]
        are_whole = len(shares) == len(self.layers) and abs(sum(shares) - 1.0) <= 1e-9
        if shares and self.clipping == "joint":
            raise InvalidParameterError("clipping", "joint", "per-layer if a layer has a share (@SHARE)")
        if shares and not are_whole:
            total = f"shares for {len(shares)} of {len(self.layers)} layers, with the sum {sum(shares):g}"
            raise InvalidParameterError("layer", total, "given shares for all layers, with the sum 1")
        if self.rank is not None and self.rank > (self.dim or 0):
            raise InvalidParameterError("rank", self.rank, f"at most dim = {self.dim}")
        if self.change_rank is not None and self.change_rank > self.largest_rank:
            expected = f"at most min(dim, columns) = {self.largest_rank}"
            raise InvalidParameterError("change_rank", self.change_rank, expected)

    @property
    def clipping_requirements(self) -> tuple[str, ...]:
        """The requirements on clipping that depend on the parameters."""
        of_layers = (Requirement.PER_LAYER_CLIPPING,) if self.clipping == "per-layer" else ()
        return (*of_layers, *super().clipping_requirements)

    def notes(self) -> list[str]:
        """Return at most one warning: of a projection without effect, or an unusual rank."""
        if not self.layers and self.rank is None:
            return []
        if self.unprojected and self.clipping == "per-layer":
            return ["No layer is projected, so the result is that of the Gaussian mechanism."]
        if self.unprojected and self.layers:
            return [
                "An unprojected tensor shares the clipping norm, so the result is that of the Gaussian mechanism. "
                "Freeze the tensor, project it, or use per-layer clipping."
            ]
        if self.unprojected:
            return ["rank equals dim, so the result is that of the Gaussian mechanism. Use a smaller rank."]
        shared = min((layer.rank for layer in self.layers if layer.count > 1), default=0)
        slim = [layer for layer in self.layers if layer.count == 1 and layer.rank < min(shared, layer.dim)]
        if slim:
            return [
                f"Layer {slim[0].dim}x{slim[0].rank} means dimension {slim[0].dim} projected to rank {slim[0].rank}, "
                f"not the shape of a matrix. For a tensor that is not projected, write {slim[0].dim}x{slim[0].dim}."
            ]
        return []

    def lift(self) -> Lift:
        """Return the noise and projection error of the update ``(d/r) P (V + E)`` (C38).

        Returns:
            ``noise`` is the root mean square of ``sqrt(d/r)`` over the layers, weighted by their sizes. ``factor`` is
            the largest ``d/r`` of a layer.

        Raises:
            InvalidParameterError: Neither ``dim`` with ``rank`` nor ``layers`` were given.
        """
        # E|U - S|^2 = (d/r - 1) |S|^2 + n d (z sqrt(d/r) C)^2 for each layer.
        shapes = [(x.dim, x.rank, x.count, x.columns) for x in self.layers] or [(*self.shape, 1, None)]
        sizes = [(d, r, n * (m or self.columns or d)) for d, r, n, m in shapes]
        energy = sum(n * d * (d / r) for d, r, n in sizes) / sum(n * d for d, _, n in sizes)
        factor = max(d / r for d, r, _ in sizes)
        return Lift(math.sqrt(energy), factor, sum(n * r for _, r, n in sizes), sum(n * d for d, _, n in sizes))

    @property
    def parts(self) -> tuple[tuple[int, int, int, float], ...]:
        """The tuples ``(dim, rank, count, share)``, one for each shape of layers.

        ``share`` is the share of the squared clipping norm for each of the ``count`` layers.

        Raises:
            InvalidParameterError: Neither ``dim`` with ``rank`` nor ``layers`` were given.
        """
        total = sum(layer.count for layer in self.layers)
        if not self.layers:
            return ((*self.shape, 1, 1.0),)
        # soundness: rounded shares are divided by their sum, unless it exceeds 1, where they stay larger (C6).
        share = min(1.0, math.fsum(layer.share or 0.0 for layer in self.layers)) or 1.0
        return tuple(
            (x.dim, x.rank, x.count, (x.share / share / x.count) if x.share else 1.0 / total) for x in self.layers
        )

    @property
    def alike(self) -> "M2":
        """The mechanism reduced to one layer with the same privacy profile (C5).

        The value is the mechanism itself if layers differ in shape or clipping is per layer.
        """
        shapes = {(layer.dim, layer.rank) for layer in self.layers}
        several = sum(layer.count for layer in self.layers) > 1
        if len(shapes) != 1 or (several and self.clipping != "joint"):
            return self
        dim, rank = shapes.pop()
        return replace(self, layers=(), clipping="joint", dim=dim, rank=rank)

    @property
    def unprojected(self) -> bool:
        """Whether some tensor is not projected, and all share one clipping norm.

        If so, projecting other tensors does not reduce epsilon.
        """
        joint = self.clipping == "joint" or len(self.parts) == 1
        return joint and any(dim == rank for dim, rank, _, _ in self.parts)

    @property
    def projects_apart(self) -> bool:
        """Whether clipping is per layer and more than one layer is projected.

        If so, the default bound requires independent projections of the layers (C6).
        """
        projected = sum(layer.count for layer in self.layers if layer.rank < layer.dim)
        return self.clipping == "per-layer" and projected > 1

    @property
    def largest_rank(self) -> int:
        """The largest rank of the difference between neighboring sums in a layer."""
        dim = self.dim or max(layer.dim for layer in self.layers)
        return dim if self.columns is None else min(dim, self.columns)

    @property
    def rank_limit(self) -> int:
        """The largest rank that a calibration tries: the dimension."""
        return self.dim or 1

    def for_replacement(self) -> "M2":
        """Return the mechanism under the replace relation.

        The assumed rank of the difference between neighboring sums doubles.
        """
        return self._with_rank_times(2, super().for_replacement())

    def for_group(self, size: int) -> "M2":
        """Return the mechanism with the sensitivity of a user with ``size`` records.

        Args:
            size: The number of records of the user, at least 1.

        Returns:
            The mechanism with the noise multiplier divided, and the assumed rank of neighboring differences multiplied,
            by ``size``.
        """
        return self._with_rank_times(size, super().for_group(size))

    def _with_rank_times(self, size: int, seen: Any) -> "M2":
        """Return the mechanism ``seen``, with ``size`` times the ``change_rank`` of ``self``."""
        return replace(seen, change_rank=self.change_rank and min(size * self.change_rank, self.largest_rank))

    @property
    def shape(self) -> tuple[int, int]:
        """The dimension and the rank ``(d, r)`` of the only projected layer.

        Raises:
            InvalidParameterError: The dimension or the rank was omitted.
        """
        if self.rank is None or self.dim is None:
            raise InvalidParameterError("rank", "nothing", "an integer", "give dim and rank, or layers")
        return self.dim, self.rank

    @property
    def beta_shape(self) -> tuple[float, float]:
        """The parameters of the Beta distribution of a projected unit vector's squared norm.

        Raises:
            InvalidParameterError: The dimension or the rank was omitted.
        """
        dim, rank = self.shape
        # Beta(r/2, (d - r)/2) (C7)
        return 0.5 * rank, 0.5 * (dim - rank)
