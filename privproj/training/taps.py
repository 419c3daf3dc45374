"""Taps: which layers are trained record by record, what each saw and got back, and the gradients that this makes.

There is one tap for each trained tensor or matrix. A weight and its bias are one matrix whose inputs end with a 1.
Layers that share a weight share its tap, so that their contributions add up before any norm is taken: an embedding and
the head that is tied to it too, for looking up row ``i`` is multiplying by the unit vector ``e_i``.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.lazy import LazyModuleMixin

from privproj.errors import InvalidParameterError
from privproj.training import per_example
from privproj.training.per_example import LookedUp

UNITS = (nn.MultiheadAttention,)
"""Layers that use the tensors of their children without calling them: all their tensors belong to one tap."""

SHARED_ARGUMENTS = ("attn_mask",)
"""Names of arguments that, as matrices, are shared by all records, whatever their first dimension."""

FLOATS = (torch.float32, torch.float64)
"""Types that trained tensors may have. Rounding of shorter ones is beyond what norms are overstated by. Soundness."""

REMEDIES = {
    nn.modules.rnn.RNNBase: "use opacus.layers.DPLSTM, DPGRU or DPRNN with batch_first=True, or freeze it",
    nn.EmbeddingBag: "use nn.Embedding and a sum or mean over its tokens, or freeze it",
    nn.utils.parametrize.ParametrizationList: "remove the parametrization, or freeze the layer and put it in eval mode",
    LazyModuleMixin: "call the module once before make_private, so that the layer has a shape",
    torch.jit.ScriptModule: "pass the module as it was before torch.jit",
}
"""What to do about layers of torch that have no per-example gradients here. Contract."""

VARIANT_REMEDY = (
    "disable use_dora and similar options, which use the factors outside their layers (DoRA in the norm of W + s B A)"
)
"""Why variants of LoRA are refused. Contract."""


class AnyTap:
    """What every tap has: its layers, and each use of them until the gradients are clipped.

    A use is the call of a layer, what it saw, and the gradient of its output, records first. ``gradients`` is what
    ``joined`` has made of the uses: the pair ``(g, x)``, or the gradients of all records alone. ``split`` gives the
    part of each trained tensor in a sum of these.

    ``is_replaying`` while a layer is computed again for its per-example gradients, of which no hook keeps anything.
    ``only_for`` names the one algorithm that can train such a layer; None where every algorithm can.
    ``may_return_more`` is True where a layer may return a tuple, of which the first tensor gets a gradient back, and
    ``is_shared`` for an embedding once it has looked up one row of numbers for all records.
    """

    is_replaying: ClassVar[bool] = False
    only_for: str | None = None
    may_return_more = False
    is_shared = False
    gradients: tuple[Any, ...] | None = None
    joined: Callable[[], tuple[Any, ...]]
    split: Callable[[Tensor], Iterator[tuple[nn.Parameter, Tensor]]]

    def __init__(self, name: str, module: nn.Module, parameters: list[nn.Parameter]) -> None:
        self.name, self.modules, self.parameters = name, [module], parameters
        self.uses: list[tuple[Any, Tensor, Tensor]] = []

    @property
    def size(self) -> int:
        """The number of trained entries."""
        return sum(p.numel() for p in self.parameters)

    def join(self, other: "AnyTap") -> bool:
        """Take in the layer of another tap if it trains the same tensors."""
        if type(other) is not type(self) or list(map(id, other.parameters)) != list(map(id, self.parameters)):
            return False
        self.modules += other.modules
        return True

    def call(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[Any, Tensor]:
        """What is kept of a call of a layer, and the first tensor that it saw.

        That is the layer, its arguments by their numbers or names, and which of them it saw. For this one its number of
        dimensions stands there: it comes back with the gradient, and until then nothing holds it but torch.
        """
        arguments = {**dict(enumerate(args)), **kwargs}
        seen = next((key for key, value in arguments.items() if isinstance(value, Tensor)), None)
        if seen is None:
            raise InvalidParameterError(self.name, "a call without one", "called with a tensor", "freeze the layer")
        values = {key: value.detach() if isinstance(value, Tensor) else value for key, value in arguments.items()}
        return (module, {**values, seen: arguments[seen].dim()}, seen), values[seen]

    def keep(self, call: Any, x: Tensor, g: Tensor) -> None:
        """Keep a use of the layer: its ``call``, what it saw and what came back."""
        self.uses.append((call, x, g))
        self.gradients = None

    def clear(self) -> None:
        """Forget what was kept."""
        self.uses, self.gradients = [], None

    def captured(self) -> tuple[Any, ...] | None:
        """The gradients of all records, in the form that ``joined`` gives; None where nothing came back."""
        if self.gradients is None and self.uses:
            self.gradients = self.joined()
        return self.gradients

    @torch.no_grad()
    def gradient_of(self, rows: slice | Tensor, weights: Tensor) -> list[Tensor]:
        """The gradients of these records times their weights, added up, as one tensor for each of ``parameters``."""
        gradients = self.captured()
        if gradients is None:
            return [torch.zeros_like(p) for p in self.parameters]
        parts = [part[rows] for part in gradients]
        if len(weights) == 1 and isinstance(parts[0], Tensor):
            # One record, in every step: w G_j.
            total = (per_example.formed(*parts) if len(parts) > 1 else parts[0])[0] * weights.to(self.parameters[0])
        else:
            total = per_example.clipped_sum(weights.to(self.parameters[0].device), *parts).to(self.parameters[0])
        return [self.shaped(p, part) for p, part in self.split(total)]

    def shaped(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """A part of a gradient, as ``split`` gives it, in the shape of its trained tensor."""
        return part.reshape(parameter.shape)


class Tap(AnyTap):
    """One trained matrix: a weight, with its bias if that is trained.

    The weight of GPT-2's Conv1D is kept as inputs x outputs: it is ``turned``.
    """

    is_table = False
    forms = True
    """True where gradients that are smaller than what they are made of are formed as soon as they can be."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.weight: Any = module.weight
        bias = getattr(module, "bias", None)
        self.bias = bias if isinstance(bias, nn.Parameter) and bias.requires_grad else None
        self.turned, self.is_table = _is_conv1d(module), isinstance(module, nn.Embedding)
        super().__init__(name, module, [self.weight, *([] if self.bias is None else [self.bias])])

    @property
    def shape(self) -> tuple[int, int]:
        """``(outputs, inputs)`` of the matrix, the bias counted as one more input."""
        first, others = self.weight.shape[0], math.prod(self.weight.shape[1:])
        outputs, inputs = (others, first) if self.turned else (first, others)
        return outputs, inputs + (self.bias is not None)

    def join(self, other: AnyTap) -> bool:
        """Take in the layer of another tap if it shares this weight, and a bias where both train one."""
        if type(other) is not type(self) or other.weight is not self.weight or other.turned != self.turned:
            return False
        if None not in (self.bias, other.bias) and self.bias is not other.bias:
            return False
        self.parameters = max(self.parameters, other.parameters, key=len)
        self.bias = self.bias if other.bias is None else other.bias
        self.is_table |= other.is_table
        self.modules += other.modules
        return True

    def keep(self, call: Any, x: Tensor, g: Tensor) -> None:
        """Keep a use of the layer, as it is or in the gradients that are formed of it."""
        before = self.formed
        super().keep(call, x, g)
        if not self.forms or (before is None and not self.is_smaller_formed):
            return
        with per_example.full_precision():
            new = per_example.formed(*self.joined())
        self.uses = []
        self.gradients = (new if before is None else before.add_(new),)

    @property
    def is_smaller_formed(self) -> bool:
        """True if the gradients are no larger than what is kept to make them."""
        if self.is_table:
            return False
        outputs, _ = self.shape
        count = sum(g.numel() // max(1, len(g) * outputs) for *_, g in self.uses)
        return per_example.is_smaller_formed(count, *self.shape)

    @property
    def formed(self) -> Tensor | None:
        """The gradients of all records (records x outputs x inputs), if they are formed."""
        return self.gradients[0] if self.gradients is not None and len(self.gradients) == 1 else None

    def joined(self) -> tuple[Any, Tensor]:
        """The pair ``(g, x)`` over all uses of the layer.

        ``g`` is records x tokens x outputs, ``x`` records x tokens x inputs. The tokens of all uses stand side by side,
        so that ``G_j = sum_t g_jt x_jt^T`` is the gradient of all uses together. Where rows were looked up, ``g`` is a
        :class:`privproj.training.per_example.LookedUp`.
        """
        dtype, rows, pairs, looked_up = self.weight.dtype, [], [], []
        for (module, *_), x, g in self.uses:
            if type(module) is nn.Conv2d:
                # A record that is computed alone may have several images.
                images, back = (part.to(dtype).reshape(-1, *part.shape[-3:]) for part in (x, g))
                pair = back.flatten(2).mT, _columns(module, images, self.ones(module))
                pairs.append(tuple(part.reshape(len(x), -1, part.shape[2]) for part in pair))
            elif self.is_table and isinstance(module, nn.Embedding):
                ids, seen = _looked_up(module, x, g)
                rows.append(ids)
                looked_up.append(self.with_bias(module, seen.to(dtype)))
            else:
                g, seen = _tokens(x, g)
                pairs.append((g.to(dtype), self.with_bias(module, seen.to(dtype))))
        if len(pairs) == 1 and not rows:
            return pairs[0]
        x = _side_by_side([*(x for _, x in pairs), *looked_up])
        if not rows:
            return _side_by_side([g for g, _ in pairs]), x
        dense = [g for g, _ in pairs] or [x.new_zeros(x.shape[0], 0, self.shape[0])]
        return LookedUp(_side_by_side(dense), _side_by_side(rows)), x

    def with_bias(self, module: nn.Module, x: Tensor) -> Tensor:
        """The inputs of one use with a column more, if a bias is trained: its gradient is ``sum_t g_jt 1``."""
        value = self.ones(module)
        return x if value is None else functional.pad(x, (0, 1), value=value)

    def ones(self, module: nn.Module) -> float | None:
        """What stands in that column: 1, or 0 for a layer that shares the weight without having the bias."""
        return None if self.bias is None else float(getattr(module, "bias", None) is self.bias)

    def split(self, matrix: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Split a matrix of as many columns as inputs into the weight's part and, where it is trained, the bias's."""
        width = matrix.shape[1] - (self.bias is not None)
        yield self.weight, matrix[:, :width]
        if self.bias is not None:
            yield self.bias, matrix[:, width]

    def shaped(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """A part of the matrix (outputs x inputs) in the shape of its trained tensor."""
        return part.T if self.turned and parameter is self.weight else super().shaped(parameter, part)

    def laid_out(self, parameter: nn.Parameter, values: Tensor) -> Tensor:
        """The entries of a trained tensor as outputs x inputs, a view; ``values`` may have more dimensions behind."""
        if self.turned and parameter is self.weight:
            return values.transpose(0, 1)
        return values.view(values.shape[0], -1, *values.shape[parameter.dim() :])


class _ReplayedTap(AnyTap):
    """Any other trained module: its forward pass is made again for every record alone.

    The per-example gradient is that of ``<g_j, f(x_j)>``. Such a module must treat every record by itself and without
    drawing random numbers. Its per-example gradients are materialised.
    """

    may_return_more = True

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module, _trained_tensors(module))
        self.shared: set[tuple[int | str, int]] = set()

    @property
    def shape(self) -> tuple[int]:
        """The number of trained entries; they are released in one row."""
        return (self.size,)

    def joined(self) -> tuple[Tensor]:
        """The per-example gradients, records x entries, summed over all uses."""
        by_use = [self.samples(*use) for use in self.uses]
        return (sum(by_use[1:], by_use[0]),)

    def samples(self, call: Any, x: Tensor, g: Tensor) -> Tensor:
        """The per-example gradients of one use, records x entries: the call saw ``x`` and got ``g`` back."""
        (module, values, seen), dtype = call, self.parameters[0].dtype
        values = {**values, seen: x if x.dim() == values[seen] else x[0]}
        values = {key: _as_float(value, dtype) for key, value in values.items()}
        parameters = {n: p for n, p in module.named_parameters() if any(p is one for one in self.parameters)}
        # What once had another size is shared by all records also where it happens to have theirs.
        tensors = {key: value for key, value in values.items() if isinstance(value, Tensor) and value.dim()}
        is_shared = {key: key in SHARED_ARGUMENTS and value.dim() == 2 for key, value in tensors.items()}
        self.shared |= {(key, len(value)) for key, value in tensors.items() if is_shared[key] or len(value) != len(g)}
        rows_of = {key: value for key, value in tensors.items() if (key, len(value)) not in self.shared}

        def product(tensors: dict[str, Tensor], rows: dict[int | str, Tensor], one_g: Tensor) -> Tensor:
            arguments = values | {key: row[None] for key, row in rows.items()}
            plain = tuple(value for key, value in arguments.items() if isinstance(key, int))
            named = {key: value for key, value in arguments.items() if isinstance(key, str)}
            # <g_j, f(x_j)>.
            return (first_output(torch.func.functional_call(module, tensors, plain, named)) * one_g).sum()

        try:
            AnyTap.is_replaying = True
            each = torch.func.vmap(torch.func.grad(product), in_dims=(None, 0, 0))
            gradients = each(parameters, rows_of, g.to(dtype)[:, None])
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            remedy = "freeze its own tensors"
            if hasattr(module, "module_dropout"):
                # They draw at a rate of 0 too.
                remedy = f"train LoRA in place of LoHa or LoKr, or {remedy}"
            elif "random" in str(error):
                remedy = f"set its dropout to 0, or {remedy}"
            remedy += f". The error of torch.func is: {str(error).strip().splitlines()[0][:150]}"
            expected = "a layer that can be computed for one record alone"
            raise InvalidParameterError(self.name, type(module).__name__, expected, remedy) from error
        finally:
            AnyTap.is_replaying = False
        by_parameter = {id(parameters[name]): part for name, part in gradients.items()}
        return torch.cat([by_parameter[id(p)].reshape(len(g), -1) for p in self.parameters], 1)

    def split(self, vector: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Split a vector with one entry for each trained entry into the parts of the parameters."""
        parts = vector.split([p.numel() for p in self.parameters])
        yield from ((p, part.view_as(p)) for p, part in zip(self.parameters, parts, strict=True))


def first_output(output: Any) -> Any:
    """The output itself, or the first one of several."""
    return output[0] if isinstance(output, tuple) and output else output


def _trained_tensors(module: nn.Module) -> list[nn.Parameter]:
    """The trained tensors that belong to the tap of a module."""
    parts = (module, *used_inside(module))
    trained = {id(p): p for part in parts for p in part.parameters(recurse=False) if p.requires_grad}
    return [*trained.values()]


def used_inside(module: nn.Module) -> list[nn.Module]:
    """The parts whose tensors a module uses without calling them: lists of parameters, and all parts of a unit."""
    if isinstance(module, UNITS):
        return [*module.modules()][1:]
    lists = [part for part in module.children() if isinstance(part, nn.ParameterList | nn.ParameterDict)]
    return [part for container in lists for part in container.modules()]


def _as_float(value: Any, dtype: torch.dtype) -> Any:
    """A tensor of floats in another precision; anything else as it is."""
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """The tokens of all uses."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _columns(module: nn.Conv2d, x: Tensor, ones: float | None) -> Tensor:
    """What a convolution saw at each of its positions, records x positions x width, and a column of these ``ones``."""
    padding: Any = module.padding
    windows = functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    for axis, side, step, stride in zip((2, 3), module.kernel_size, module.dilation, module.stride, strict=True):
        windows = windows.unfold(axis, step * (side - 1) + 1, stride)[..., ::step]
    # Written once, next to the ones, and with the positions last: whole rows of an image are copied at a time.
    windows = windows.permute(0, 1, 4, 5, 2, 3)
    width, positions = windows.shape[1:4].numel(), windows.shape[4:].numel()
    columns = x.new_empty(len(x), width + (ones is not None), positions)
    columns[:, :width].view(windows.shape).copy_(windows)
    if ones is not None:
        columns[:, width] = ones
    return columns.mT


def _tokens(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The pair ``(g, x)`` of a layer as records x tokens x width."""
    count = math.prod(x.shape[1:-1])
    return g.reshape(g.shape[0], count, g.shape[-1]), x.reshape(x.shape[0], count, x.shape[-1])


def _looked_up(module: nn.Embedding, ids: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that an embedding looked up (records x tokens) and what came back for each; nothing for the padding."""
    count = math.prod(ids.shape[1:])
    ids, g = ids.reshape(ids.shape[0], count).long(), g.reshape(g.shape[0], count, g.shape[-1])
    if module.padding_idx is not None:
        g = g.masked_fill((ids == module.padding_idx)[:, :, None], 0.0)
    return ids, g * (1.0 if type(module) is nn.Embedding else module.embed_scale)  # pyright: ignore


@torch.no_grad()
def _is_table(module: nn.Module) -> bool:
    """True for an embedding that looks up rows of its weight, times a number if its class is one of transformers'."""
    if not isinstance(module, nn.Embedding) or type(module) is nn.Embedding:
        return isinstance(module, nn.Embedding)
    if not isinstance(getattr(module, "embed_scale", None), float | int | Tensor):
        return False
    scale: Any = module.embed_scale
    rows = torch.arange(min(4, module.num_embeddings), device=module.weight.device)[None]
    output, wanted = module.forward(rows), module.weight[rows] * scale
    return output.shape == wanted.shape and torch.allclose(output.double(), wanted.double(), rtol=1e-2)


def _is_conv1d(module: nn.Module) -> bool:
    """True for the layer of transformers that is a linear one with its weight transposed."""
    return (type(module).__module__, type(module).__name__) == ("transformers.pytorch_utils", "Conv1D")


def is_matrix(module: nn.Module) -> bool:
    """True for a layer whose per-example gradient is a sum of outer products that this package forms itself."""
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module).forward is nn.Linear.forward or _is_table(module) or _is_conv1d(module)


def make_tap(name: str, module: nn.Module) -> AnyTap | None:
    """The tap of a module's own tensors; None where none is trained, or where its layers have all of them too.

    Raises :class:`InvalidParameterError` for a layer without per-example gradients, and for tensors of low precision.
    """
    trained = _trained_tensors(module)
    layers = {*[*module.modules()][1:]}.difference(used_inside(module))
    theirs = {id(p) for layer in layers for p in layer.parameters(recurse=False)}
    # BERT's head merely holds the bias of its last layer.
    if not trained or (all(id(p) in theirs for p in trained) and not is_matrix(module)):
        return None
    _check_layer_kind(name, module, trained)
    weight: Any = getattr(module, "weight", None)
    is_trained = isinstance(weight, nn.Parameter) and weight.requires_grad
    kind: Any = Tap if is_trained and is_matrix(module) else _ReplayedTap
    tap: AnyTap = getattr(module, "private_tap", kind)(name, module)
    if {id(p) for p in trained} != {id(p) for p in tap.parameters}:
        expected = "a layer whose only trained tensors are its weight and bias"
        raise InvalidParameterError(name, "one with other trained tensors", expected, "freeze the other tensors")
    return tap


def _check_layer_kind(name: str, module: nn.Module, trained: Iterable[nn.Parameter]) -> None:
    """Refuse layers without per-example gradients, and tensors of low precision."""
    kind, expected = type(module).__name__, "a layer with per-example gradients"
    for base, remedy in REMEDIES.items():
        if isinstance(module, base):
            raise InvalidParameterError(name, kind, expected, remedy)
    if isinstance(module.__dict__.get("weight"), Tensor):
        remedy = "remove spectral_norm or weight_norm, or freeze the layer and put it in eval mode"
        raise InvalidParameterError(name, f"{kind} with a weight computed from other tensors", expected, remedy)
    if type(module).forward is nn.Module.forward:
        remedy = "freeze its tensors, because hooks do not see tensors that another layer takes from a container"
        raise InvalidParameterError(name, kind, "a layer with a forward method of its own", remedy)
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq or module.sparse):
        remedy = (
            "disable these options, which write to the table, count over the batch, or need gradients without noise"
        )
        raise InvalidParameterError(name, kind, "an embedding without max_norm, scale_grad_by_freq and sparse", remedy)
    for parameter in trained:
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            remedy = (
                "to change released gradients, call register_step_pre_hook of the optimizer that you pass to "
                "make_private. Other hooks would see gradients without noise"
            )
            expected = "a layer without hooks on its trained tensors"
            raise InvalidParameterError(name, "a hook on a gradient", expected, remedy)
        if parameter.dtype not in FLOATS:
            remedy = "convert it with float(). Frozen layers may stay in half precision, also under torch.autocast"
            expected = "a layer with trained tensors in float32 or float64"
            raise InvalidParameterError(name, parameter.dtype, expected, remedy)


def check_variants(name: str, module: nn.Module) -> None:
    """Refuse a trained adapter of PEFT that uses its factors otherwise than as layers."""
    variants: Any = {**getattr(module, "use_dora", {}), **getattr(module, "lora_variant", {})}
    if any(variants.values()) and any(p.requires_grad for p in module.parameters()):
        kinds = ", ".join(sorted({type(v).__name__ for v in variants.values() if v and v is not True})) or "DoRA"
        raise InvalidParameterError(name, kinds, "a plain LoRA adapter", VARIANT_REMEDY)
