"""Trained tensors, and the gradients of single records that a pass leaves for them.

A weight and the bias of its layer are one matrix (outputs x inputs) whose inputs end with a 1. Every other trained
tensor stands alone. A use of a matrix leaves a pair of factors ``(g, x)``, records first, whose product is the gradient
``G_j = sum_t g_jt x_jt^T``. Uses of a tensor that no factors are known for leave whole gradients.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from privproj.errors import InvalidParameterError
from privproj.training import per_example
from privproj.training.per_example import LookedUp

DTYPES = (torch.float32, torch.float64)
"""Types that trained tensors may have. Norms are overstated by less than the rounding of shorter types."""

Gradients = tuple[Tensor | LookedUp, Tensor] | tuple[Tensor]
"""The gradients of all records: factors ``(g, x)``, or the gradients (records x outputs x inputs) themselves."""


class Trained:
    """A trained matrix, or any other trained tensor, with the gradients of single records.

    Attributes:
        name: The name of the first tensor in its module.
        module: The layer that holds it.
        weight: The matrix, or the tensor.
        bias: The trained bias of the same layer; None where there is none.
        is_matrix: True for tensors with at least two dimensions. Others count as one row.
        is_transposed: True for a weight that is kept as inputs x outputs, as in transformers' Conv1D.
        only_for: The only algorithm that can train this tensor; None if every algorithm can.
    """

    only_for: str | None = None
    keeps_factors = False
    """True where factors are kept even if the gradients would take less memory."""

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        self.name, self.module, self.weight, self.bias = name, module, weight, bias
        self.parameters = [weight] if bias is None else [weight, bias]
        self.is_matrix = weight.dim() >= 2
        self.is_transposed = weight.dim() == 2 and is_conv1d(module)
        self.factors: list[tuple[Tensor | LookedUp, Tensor]] = []
        self.formed: Tensor | None = None

    @property
    def size(self) -> int:
        """The number of trained entries."""
        return sum(p.numel() for p in self.parameters)

    @property
    def shape(self) -> tuple[int, int]:
        """``(outputs, inputs)``, the bias counted as one more input; one row if the tensor is no matrix."""
        if not self.is_matrix:
            return 1, self.weight.numel()
        outputs, inputs = self.weight.shape[0], math.prod(self.weight.shape[1:])
        if outputs == 1 and self.weight.dim() == 3 and not hasattr(self.module, "kernel_size"):
            # Tokens and positions of transformers, which are kept as 1 x tokens x width.
            outputs, inputs = self.weight.shape[1:]
        if self.is_transposed:
            outputs, inputs = inputs, outputs
        return outputs, inputs + (self.bias is not None)

    def keep(self, g: Tensor | LookedUp, x: Tensor) -> None:
        """Keep the factors of one use: ``g`` (records x tokens x outputs) and ``x`` (records x tokens x inputs)."""
        dtype = self.weight.dtype
        x = x.to(dtype)
        if isinstance(g, LookedUp):
            self.factors.append((g, x))
            return
        g = g.to(dtype)
        tokens = g.shape[1] + sum(other.shape[1] for _, other in self.factors)
        if self.keeps_factors or (self.formed is None and not per_example.is_smaller_formed(tokens, *self.shape)):
            self.factors.append((g, x))
            return
        with per_example.precise():
            product = per_example.formed(g, x)
        self.formed = product if self.formed is None else self.formed.add_(product)

    def add_whole(self, parameter: nn.Parameter, gradients: Tensor) -> None:
        """Add whole gradients of one of the tensors, records first."""
        records, (outputs, inputs) = len(gradients), self.shape
        if not self.is_matrix:
            matrix = gradients.reshape(records, 1, -1)
        elif parameter is self.weight:
            matrix = gradients.mT if self.is_transposed else gradients.reshape(records, outputs, -1)
            matrix = matrix if self.bias is None else pad(matrix, (0, 1))
        else:
            matrix = pad(gradients[:, :, None], (inputs - 1, 0))
        self.formed = matrix if self.formed is None else self.formed + matrix

    def take(self) -> Gradients | None:
        """Return the gradients of all records, and forget them; None where nothing came back."""
        factors, formed = self.factors, self.formed
        self.clear()
        if formed is not None:
            for g, x in factors:
                formed = formed + per_example.formed(g.to_dense() if isinstance(g, LookedUp) else g, x)
            return (formed,)
        if len(factors) <= 1:
            return factors[0] if factors else None
        # The tokens of all uses, those that looked up rows last.
        factors.sort(key=lambda pair: isinstance(pair[0], LookedUp))
        x = torch.cat([x for _, x in factors], 1)
        dense = [g for g, _ in factors if isinstance(g, Tensor)]
        rows = [g.rows for g, _ in factors if isinstance(g, LookedUp)]
        joined = torch.cat(dense, 1) if dense else x.new_zeros(len(x), 0, self.shape[0])
        return (LookedUp(joined, torch.cat(rows, 1)) if rows else joined), x

    def clear(self) -> None:
        """Forget the gradients."""
        self.factors, self.formed = [], None

    def split(self, matrix: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Split a matrix of as many columns as inputs into the parts of the weight and of the bias."""
        width = matrix.shape[1] - (self.bias is not None)
        yield self.weight, matrix[:, :width]
        if self.bias is not None:
            yield self.bias, matrix[:, width]

    def shaped(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """Return a part of the matrix, as ``split`` gives it, in the shape of its tensor."""
        part = part.T if self.is_transposed and parameter is self.weight else part
        return part.reshape(parameter.shape)

    def laid_out(self, parameter: nn.Parameter, values: Tensor) -> Tensor:
        """Return the entries of a tensor as outputs x inputs, a view; ``values`` may have more dimensions behind."""
        if self.is_transposed and parameter is self.weight:
            return values.transpose(0, 1)
        outputs = self.shape[0]
        return values.view(outputs, parameter.numel() // outputs, *values.shape[parameter.dim() :])


def trained_tensors(module: nn.Module) -> list[Trained]:
    """List the trained tensors of a module, each once, in the order of its layers.

    Raises :class:`InvalidParameterError` if nothing is trained, for a layer of ``torch.jit``, and for a
    trained tensor without a shape or with a type other than float32 and float64.
    """
    taken: set[int] = set()
    tensors: list[Trained] = []
    for prefix, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            remedy = "pass the module as it was before torch.jit"
            raise InvalidParameterError("module", type(layer).__name__, "a module without torch.jit", remedy)
        unclaimed = {
            key: p for key, p in layer.named_parameters(recurse=False) if p.requires_grad and id(p) not in taken
        }
        for parameter in unclaimed.values():
            _check(f"{prefix}.".lstrip("."), parameter)
        taken.update(map(id, unclaimed.values()))
        if (make := getattr(layer, "trained_as", None)) is not None and unclaimed:
            tensors.append(make(prefix))
            continue
        bias = unclaimed.pop("bias", None) if _is_pair(layer, unclaimed) else None
        for key, parameter in unclaimed.items():
            name = f"{prefix}.{key}".lstrip(".")
            tensors.append(Trained(name, layer, parameter, bias if key == "weight" else None))
    if not tensors:
        raise InvalidParameterError("module", type(module).__name__, "a module with tensors that require a gradient")
    return tensors


def _is_pair(layer: nn.Module, unclaimed: dict[str, nn.Parameter]) -> bool:
    """Return True if the trained weight and bias of a layer are one matrix."""
    weight, bias = unclaimed.get("weight"), unclaimed.get("bias")
    if weight is None or bias is None or weight.dim() < 2:
        return False
    return bias.shape == (weight.shape[1 if is_conv1d(layer) else 0],)


def is_conv1d(module: nn.Module) -> bool:
    """Return True for transformers' Conv1D, a linear layer whose weight is inputs x outputs."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _check(place: str, parameter: nn.Parameter) -> None:
    """Raise for a tensor without a shape, and for one of low precision."""
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        remedy = "call the module once before make_private"
        raise InvalidParameterError(
            "module", f"{place or 'a tensor'} without a shape", "a module whose tensors have a shape", remedy
        )
    if parameter.dtype not in DTYPES:
        remedy = "convert the trained tensors with float(). Frozen tensors may have half precision"
        expected = "a module with trained tensors in float32 or float64"
        raise InvalidParameterError("module", parameter.dtype, expected, remedy)
