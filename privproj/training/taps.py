"""Taps: what a trained layer saw and got back, and the gradient of each record that this makes.

There is one tap for each trained tensor or matrix. A weight and its bias are one matrix whose inputs end with a 1.
Layers that share a weight share its tap, so that their contributions add up before any norm is taken: an embedding and
the head that is tied to it too, for looking up row ``i`` is multiplying by the unit vector ``e_i``.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from privproj.errors import InvalidParameter
from privproj.training import per_example
from privproj.training.per_example import LookedUp

UNITS = (nn.MultiheadAttention,)
"""Layers that use the tensors of their children without calling them: all their tensors belong to one tap."""

SHARED_ARGUMENTS = ("attn_mask",)
"""Names of arguments that, as matrices, are shared by all records, whatever their first dimension."""

FORMED = object()
"""Stands for the layer in a use whose gradients are formed."""

ForwardUse = tuple[Any, Tensor, Tensor]
"""One use of a layer: the layer or its whole call, what it saw, and the gradient of its output. Records come first."""


class _Uses:
    """What every tap has: its layers, and each use of them until the gradients are clipped.

    ``only_for`` names the one algorithm that can train such a layer; None where every algorithm can.
    ``may_return_more`` is True where a layer may return a tuple, of which the first tensor gets a gradient back, and
    ``is_shared`` for an embedding once it has looked up one row of numbers for all records. Where ``forms`` is set,
    gradients that are smaller than what they are made of are formed as soon as they can be.
    """

    only_for: str | None = None
    may_return_more = False
    is_shared = False
    forms = False
    captured: Callable[[], Any]

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.modules = name, [module]
        self.uses: list[ForwardUse] = []

    def call(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[Any, Tensor]:
        """What is kept of a call of a layer: the layer and the tensor that it saw."""
        seen = _first_input(args, kwargs)
        if seen is None:
            raise InvalidParameter(self.name, "no tensor", "a layer that is called with a tensor", "freeze it")
        return module, seen.detach()

    def keep(self, call: Any, x: Tensor, g: Tensor) -> None:
        """Keep a use of the layer: its ``call``, what it saw and what came back."""
        self.uses.append((call, x, g))

    def clear(self) -> None:
        """Forget what was kept."""
        self.uses.clear()

    def cut(self, use: ForwardUse, rows: slice | Tensor) -> ForwardUse:
        """The part of a use that is of these records."""
        call, x, g = use
        return call, x[rows], g[rows]

    @contextmanager
    def only(self, rows: int | Tensor) -> Iterator[Any]:
        """While this runs, the parts of these records stand for all that was kept; gives what is captured of them."""
        # One record is a slice: no device has to wait for its number.
        first = int(rows) if isinstance(rows, int) or len(rows) == 1 else None
        part = rows if first is None else slice(first, first + 1)
        kept, self.uses = self.uses, [self.cut(use, part) for use in self.uses]  # pyright: ignore[reportArgumentType]
        try:
            yield self.captured()
        finally:
            self.uses = kept

    def shaped(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """A part of a gradient, as ``split`` gives it, in the shape of its trained tensor."""
        return part.reshape(parameter.shape)


class Tap(_Uses):
    """One trained matrix: a weight, with its bias if that is trained.

    Gradients that are formed stand in ``uses`` as ``(FORMED, G, G)``.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.weight: Any = module.weight
        bias = getattr(module, "bias", None)
        self.bias = bias if isinstance(bias, nn.Parameter) and bias.requires_grad else None

    @property
    def shape(self) -> tuple[int, int]:
        """``(outputs, inputs)`` of the matrix, the bias counted as one more input."""
        outputs = self.weight.shape[0]
        return outputs, math.prod(self.weight.shape[1:]) + (self.bias is not None)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained tensors of this tap: the weight, and the bias if that is trained."""
        return [self.weight, *([] if self.bias is None else [self.bias])]

    def keep(self, call: Any, x: Tensor, g: Tensor) -> None:
        """Keep a use of the layer, as it is or in the gradients that are formed of it."""
        before = self.formed
        self.uses = [*([] if before is not None else self.uses), (call, x, g)]
        if not self.forms or (before is None and not self.is_smaller_formed):
            return
        pair = self.captured()
        assert pair is not None
        with per_example.full_precision():
            found = per_example.formed(*pair)
        if before is not None and len(before) != len(found):
            raise InvalidParameter(
                self.name, f"{len(found)} rows after {len(before)}", "one row for each record, batch first"
            )
        found = found if before is None else before.add_(found)
        self.uses = [(FORMED, found, found)]

    @property
    def is_smaller_formed(self) -> bool:
        """True if the gradients are no larger than what is kept to make them."""
        tables = any(isinstance(module, nn.Embedding) for module in self.modules)
        count = sum(math.prod(g.shape[2:] if type(call) is nn.Conv2d else g.shape[1:-1]) for call, _, g in self.uses)
        return not tables and per_example.is_smaller_formed(count, *self.shape)

    @property
    def formed(self) -> Tensor | None:
        """The gradients of all records (records x outputs x inputs), if they are formed."""
        if not self.uses or self.uses[0][0] is not FORMED:
            return None
        found = self.uses[0][1]
        # Where all rows are one record's, its gradient is their sum.
        return found if found.dim() == 3 else found.flatten(1, -3).sum(1)

    def join(self, other: Any) -> bool:
        """Take in the layer of another tap if it shares this weight, and a bias where both train one."""
        if type(other) is not type(self) or other.weight is not self.weight:
            return False
        if None not in (self.bias, other.bias) and self.bias is not other.bias:
            return False
        self.bias = self.bias if other.bias is None else other.bias
        self.modules += other.modules
        return True

    def captured(self) -> tuple[Any, Tensor] | None:
        """The pair ``(g, x)`` over all uses of the layer; None where nothing came back.

        ``g`` is records x tokens x outputs, ``x`` records x tokens x inputs. The tokens of all uses stand side by side,
        so that ``G_j = sum_t g_jt x_jt^T`` is the gradient of all uses together. Where rows were looked up, ``g`` is a
        :class:`privproj.training.per_example.LookedUp`.
        """
        if not self.uses:
            return None
        formed = self.formed
        if formed is not None:
            # G_j = sum_k (G_j e_k) e_k^T.
            units = torch.eye(formed.shape[2], dtype=formed.dtype, device=formed.device)
            return formed.transpose(1, 2), units.expand(len(formed), -1, -1)
        dtype, rows, pairs, found = self.weight.dtype, [], [], []
        for module, x, g in self.uses:
            if isinstance(module, nn.Embedding):
                ids, seen = _looked_up(module, x, g)
                rows.append(ids)
                found.append(self.with_bias(module, seen.to(dtype)))
            else:
                g, seen = _tokens(module, x, g)
                pairs.append((g.to(dtype), self.with_bias(module, seen.to(dtype))))
        x = _joined([*(x for _, x in pairs), *found])
        if not rows:
            return _joined([g for g, _ in pairs]), x
        dense = [g for g, _ in pairs] or [x.new_zeros(x.shape[0], 0, self.shape[0])]
        return LookedUp(_joined(dense), _joined(rows)), x

    def with_bias(self, module: nn.Module, x: Tensor) -> Tensor:
        """The inputs of one use with a column more, if a bias is trained: its gradient is ``sum_t g_jt 1``."""
        if self.bias is None:
            return x
        # A layer that shares the weight without having the bias gives that nothing.
        return functional.pad(x, (0, 1), value=float(getattr(module, "bias", None) is self.bias))

    def gradient_of(self, rows: int | Tensor, weights: Tensor | None = None) -> list[Tensor]:
        """The gradients of these records times their weights, added up, as one tensor for each of ``parameters``."""
        with self.only(rows) as pair:
            formed = self.formed
        if pair is None:
            return [torch.zeros_like(p) for p in self.parameters]
        factors = pair[1].new_ones(len(pair[1])) if weights is None else weights.to(pair[1].device)
        if formed is None and len(factors) == 1 and not isinstance(pair[0], LookedUp):
            # G_j = sum_t g_jt x_jt^T.
            formed = per_example.formed(*pair)
        if formed is not None and len(factors) == 1:
            matrix = formed[0] * factors.to(formed)
        else:
            # sum_j w_j G_j.
            matrix = (
                per_example.clipped_sum(factors, *pair) if formed is None else per_example.weighted_sum(factors, formed)
            )
        return [self.shaped(p, part) for p, part in self.split(matrix)]

    def split(self, matrix: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Split a matrix of as many columns as inputs into the weight's part and, where it is trained, the bias's."""
        width = matrix.shape[1] - (self.bias is not None)
        yield self.weight, matrix[:, :width]
        if self.bias is not None:
            yield self.bias, matrix[:, width]

    def laid_out(self, parameter: nn.Parameter, values: Tensor) -> Tensor:
        """The entries of a trained tensor as outputs x inputs, a view; ``values`` may have more dimensions behind."""
        return values.view(values.shape[0], -1, *values.shape[parameter.dim() :])


class TransposedTap(Tap):
    """A matrix that is kept as inputs x outputs, such as GPT-2's Conv1D."""

    @property
    def shape(self) -> tuple[int, int]:
        """``(outputs, inputs)`` of the matrix, the bias counted as one more input."""
        inputs, outputs = self.weight.shape
        return outputs, inputs + (self.bias is not None)

    def shaped(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """A part of the matrix (outputs x inputs) in the shape of its trained tensor."""
        return part.T if parameter is self.weight else part.reshape(parameter.shape)

    def laid_out(self, parameter: nn.Parameter, values: Tensor) -> Tensor:
        """The entries of a trained tensor as outputs x inputs, a view; ``values`` may have more dimensions behind."""
        return values.transpose(0, 1) if parameter is self.weight else super().laid_out(parameter, values)


class SampledTap(_Uses):
    """Any other trained module that Opacus has per-example gradients for (norms, grouped convolutions)."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.parameters = trained_tensors(module)

    @property
    def size(self) -> int:
        """The number of trained entries of the module."""
        return sum(p.numel() for p in self.parameters)

    def join(self, other: Any) -> bool:
        """Take in the layer of another tap if it trains the same tensors."""
        if type(other) is not type(self) or list(map(id, other.parameters)) != list(map(id, self.parameters)):
            return False
        self.modules += other.modules
        return True

    def captured(self) -> Tensor | None:
        """The per-example gradients, records x entries, summed over all uses; None where nothing came back."""
        found = [self.samples(module, x, g) for module, x, g in self.uses]
        return sum(found[1:], found[0]) if found else None

    def gradient_of(self, rows: int | Tensor, weights: Tensor | None = None) -> list[Tensor]:
        """The gradients of these records times their weights, added up, as one tensor for each of ``parameters``."""
        with self.only(rows) as found:
            if found is None:
                return [torch.zeros_like(p) for p in self.parameters]
        found = found if weights is None else found * weights.to(found)[:, None]
        return [part for _, part in self.split(found.sum(0))]

    def samples(self, module: Any, x: Tensor, g: Tensor) -> Tensor:
        """The per-example gradients of one use, records x entries: the layer saw ``x`` and got ``g`` back."""
        dtype = self.parameters[0].dtype
        by_parameter = opacus_samplers()[type(module)](module, [_as_float(x, dtype)], g.to(dtype))
        return torch.cat([by_parameter[p].flatten(1) for p in self.parameters], 1)

    def split(self, vector: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Split a vector with one entry for each trained entry into the parts of the parameters."""
        parts = vector.split([p.numel() for p in self.parameters])
        yield from ((p, part.view_as(p)) for p, part in zip(self.parameters, parts, strict=True))


@dataclass(frozen=True)
class _Call:
    """The call of a layer with all its arguments, by their numbers or names."""

    module: nn.Module
    values: dict[int | str, Any]

    def per_record(self, records: int) -> list[int | str]:
        """The arguments that have one row for each record."""
        return [
            key
            for key, value in self.values.items()
            if isinstance(value, Tensor)
            and value.dim()
            and value.shape[0] == records
            and not (key in SHARED_ARGUMENTS and value.dim() == 2)
        ]

    def again(self, tensors: dict[str, Tensor], changed: dict[int | str, Tensor]) -> Tensor:
        """The output of the layer with other tensors and some arguments changed."""
        values = {**self.values, **changed}
        plain = tuple(value for key, value in values.items() if isinstance(key, int))
        named = {key: value for key, value in values.items() if isinstance(key, str)}
        return first_output(torch.func.functional_call(self.module, tensors, plain, named))


class ReplayedTap(SampledTap):
    """A module that nothing better is known for: its forward pass is made again for every record alone.

    The per-example gradient is that of ``<g_j, f(x_j)>``. Such a module must treat every record by itself and without
    drawing random numbers. Its per-example gradients are materialised.
    """

    may_return_more = True

    def call(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[Any, Tensor]:
        """What is kept of a call of a layer: the whole call, and the first tensor that it saw."""
        given = {**dict(enumerate(args)), **kwargs}
        values = {key: value.detach() if isinstance(value, Tensor) else value for key, value in given.items()}
        return _Call(module, values), super().call(module, args, kwargs)[1]

    def cut(self, use: ForwardUse, rows: slice | Tensor) -> ForwardUse:
        """The part of a use that is of these records."""
        call, x, g = super().cut(use, rows)
        own = {key: call.values[key][rows] for key in call.per_record(use[1].shape[0])}
        return replace(call, values={**call.values, **own}), x, g

    def samples(self, module: Any, x: Tensor, g: Tensor) -> Tensor:
        """The per-example gradients of one use, records x entries: the call saw ``x`` and got ``g`` back."""
        dtype, call = self.parameters[0].dtype, module
        call = replace(call, values={key: _as_float(value, dtype) for key, value in call.values.items()})
        own = {n: p for n, p in call.module.named_parameters() if any(p is one for one in self.parameters)}
        rows_of = {key: call.values[key] for key in call.per_record(x.shape[0])}

        def product(tensors: dict[str, Tensor], rows: dict[int | str, Tensor], one_g: Tensor) -> Tensor:
            # <g_j, f(x_j)>.
            return (call.again(tensors, {key: row[None] for key, row in rows.items()}) * one_g).sum()

        try:
            with _replaying():
                each = torch.func.vmap(torch.func.grad(product), in_dims=(None, 0, 0))
                found = each(own, rows_of, g.to(dtype)[:, None])
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            remedy = "set its dropout to 0, or freeze it" if "random" in str(error) else "freeze it"
            raise InvalidParameter(
                self.name, type(call.module).__name__, "a layer that can be computed for one record alone",
                f"{remedy}; torch.func says: {str(error).strip().splitlines()[0][:150]}",
            ) from error  # fmt: skip
        by_parameter = {id(own[name]): part for name, part in found.items()}
        return torch.cat([by_parameter[id(p)].flatten(1) for p in self.parameters], 1)


AnyTap = Tap | SampledTap

_replays: list[bool] = []


@contextmanager
def _replaying() -> Iterator[None]:
    """While a forward pass is made again, no hook keeps anything of it."""
    _replays.append(True)
    try:
        yield
    finally:
        _replays.pop()


def is_replaying() -> bool:
    """True while a layer is computed again for its per-example gradients."""
    return bool(_replays)


def first_output(output: Any) -> Any:
    """The output itself, or the first one of several."""
    return output[0] if isinstance(output, tuple) and output else output


def _first_input(args: tuple, kwargs: dict) -> Tensor | None:
    """The first tensor among the arguments of a call; None where there is none."""
    return next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)


def trained_tensors(module: nn.Module) -> list[nn.Parameter]:
    """The trained tensors that belong to the tap of a module."""
    return [p for p in module.parameters(recurse=isinstance(module, UNITS)) if p.requires_grad]


def _as_float(value: Any, dtype: torch.dtype) -> Any:
    """A tensor of floats in another precision; anything else as it is."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _joined(parts: list[Tensor]) -> Tensor:
    """The tokens of all uses side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def opacus_samplers() -> dict[type[nn.Module], Callable[..., dict[Tensor, Tensor]]]:
    """Opacus' functions for per-example gradients, by type of layer."""
    from opacus.grad_sample import GradSampleModule

    return GradSampleModule.GRAD_SAMPLERS  # pyright: ignore[reportReturnType]


def _tokens(module: nn.Module, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The pair ``(g, x)`` of a layer as records x tokens x width; the tokens of a convolution are its positions."""
    if type(module) is nn.Conv2d:
        padding: Any = module.padding
        columns = functional.unfold(x, module.kernel_size, module.dilation, padding, module.stride)
        return g.flatten(2).transpose(1, 2), columns.transpose(1, 2)
    count = math.prod(x.shape[1:-1])
    return g.reshape(g.shape[0], count, g.shape[-1]), x.reshape(x.shape[0], count, x.shape[-1])


def _looked_up(module: nn.Embedding, ids: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that an embedding looked up (records x tokens) and what came back for each; nothing for the padding."""
    count = math.prod(ids.shape[1:])
    ids, g = ids.reshape(ids.shape[0], count).long(), g.reshape(g.shape[0], count, g.shape[-1])
    if module.padding_idx is not None:
        g = g.masked_fill((ids == module.padding_idx)[:, :, None], 0.0)
    return ids, g * _scale_of(module)


def _scale_of(module: nn.Embedding) -> Any:
    """The number by which an embedding multiplies the rows that it looks up."""
    return 1.0 if type(module) is nn.Embedding else module.embed_scale
