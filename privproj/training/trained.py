"""Define trained tensors, which store the per-example gradients of a loss function.

The weight and the bias of a layer are one matrix (outputs x inputs) whose last input is the constant 1. Every other
trained tensor is separate. The gradient of record ``j`` for a matrix is ``G_j = sum_t g_jt x_jt^T``, a sum over tokens
``t``. Each use of a matrix in the loss function stores the two factors: the gradients of the outputs ``g`` (records x
tokens x outputs) and the inputs ``x`` (records x tokens x inputs). If they are not known, whole gradients are stored.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from privproj.errors import InvalidParameterError
from privproj.training import per_example
from privproj.training.per_example import LookedUp

# dtypes that trained tensors may have; the rounding errors of shorter types exceed the amount that norms are overstated
DTYPES = (torch.float32, torch.float64)

# the gradients of all records: factors ``(g, x)``, or the gradients (records x outputs x inputs) themselves
Gradients = tuple[Tensor | LookedUp, Tensor] | tuple[Tensor]


class Trained:
    """A trained matrix, or any other trained tensor, with its per-example gradients.

    Attributes:
        name: The name of the weight in the whole module.
        module: The layer that contains the tensor.
        weight: The weight of the layer, or the other trained tensor.
        bias: The trained bias of the same layer; None if there is none.
        is_matrix: True for tensors with at least two dimensions. Any other tensor counts as a matrix with one row.
        is_transposed: True for a weight of shape inputs x outputs, as in transformers' Conv1D.
        only_for: The name of the only algorithm that can train this tensor; None if every algorithm can.
    """

    only_for: str | None = None
    keeps_factors = False  # whether factors are stored even if the gradients take less memory

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        self.name, self.module, self.weight, self.bias = name, module, weight, bias
        self.parameters = [weight] if bias is None else [weight, bias]
        self.is_matrix = weight.dim() >= 2
        self.is_transposed = weight.dim() == 2 and is_conv1d(module)
        self.factors: list[tuple[Tensor | LookedUp, Tensor]] = []
        self.formed: Tensor | None = None

    @property
    def size(self) -> int:
        """The number of entries of the trained weight and bias."""
        return sum(p.numel() for p in self.parameters)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape ``(outputs, inputs)`` of the matrix; its bias counts as one more input.

        A tensor that is not a matrix has one output.
        """
        if not self.is_matrix:
            return 1, self.weight.numel()
        outputs, inputs = self.weight.shape[0], math.prod(self.weight.shape[1:])
        if outputs == 1 and self.weight.dim() == 3 and not hasattr(self.module, "kernel_size"):
            # Class tokens and position embeddings of transformers, which are stored as 1 x tokens x width.
            outputs, inputs = self.weight.shape[1:]
        if self.is_transposed:
            outputs, inputs = inputs, outputs
        return outputs, inputs + (self.bias is not None)

    def keep(self, g: Tensor | LookedUp, x: Tensor) -> None:
        """Store the gradient factors ``g`` and ``x`` of one use of the matrix in the loss.

        ``g`` has the gradients of the outputs (records x tokens x outputs), and ``x`` (records x tokens x inputs) has
        the inputs.
        """
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
        # Whole gradients are stored if they take less memory than the factors, or if others are stored already.
        with per_example.precise():
            product = per_example.formed(g, x)
        self.formed = product if self.formed is None else self.formed.add_(product)

    def add_whole(self, parameter: nn.Parameter, gradients: Tensor) -> None:
        """Add per-example gradients of the weight or the bias to the stored gradients.

        The first dimension of ``gradients`` has the records.
        """
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
        """Return the stored gradients of all records and clear them; None if there are none."""
        factors, formed = self.factors, self.formed
        self.clear()
        if formed is not None:
            for g, x in factors:
                formed = formed + per_example.formed(g.to_dense() if isinstance(g, LookedUp) else g, x)
            return (formed,)
        if len(factors) <= 1:
            return factors[0] if factors else None
        # The tokens of all uses are joined, with those of embeddings last.
        factors.sort(key=lambda pair: isinstance(pair[0], LookedUp))
        x = torch.cat([x for _, x in factors], 1)
        dense = [g for g, _ in factors if isinstance(g, Tensor)]
        rows = [g.rows for g, _ in factors if isinstance(g, LookedUp)]
        joined = torch.cat(dense, 1) if dense else x.new_zeros(len(x), 0, self.shape[0])
        return (LookedUp(joined, torch.cat(rows, 1)) if rows else joined), x

    def clear(self) -> None:
        """Clear the stored gradients."""
        self.factors, self.formed = [], None

    def split(self, matrix: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield the weight and the bias, each with its columns of ``matrix``.

        ``matrix`` has one column for each input of the layer, and the last one is for the bias.
        """
        width = matrix.shape[1] - (self.bias is not None)
        yield self.weight, matrix[:, :width]
        if self.bias is not None:
            yield self.bias, matrix[:, width]

    def shaped(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        """Return the gradient ``part`` in the shape of ``parameter``, a weight or a bias."""
        part = part.T if self.is_transposed and parameter is self.weight else part
        return part.reshape(parameter.shape)

    def laid_out(self, parameter: nn.Parameter, values: Tensor) -> Tensor:
        """Return a view of ``values`` with the shape outputs x inputs.

        ``values`` has the shape of ``parameter``, and possibly more dimensions at the end, which the result keeps.
        """
        if self.is_transposed and parameter is self.weight:
            return values.transpose(0, 1)
        outputs = self.shape[0]
        return values.view(outputs, parameter.numel() // outputs, *values.shape[parameter.dim() :])


def trained_tensors(module: nn.Module) -> list[Trained]:
    """Return the trained tensors of a module, each once, in the order of the layers.

    Raises :class:`InvalidParameterError` if no tensor requires a gradient, for a layer of ``torch.jit``, and for a
    trained tensor that is not initialized, or not in float32 or float64.
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
    """Return whether a layer has a trained weight and a trained bias of matching shapes."""
    weight, bias = unclaimed.get("weight"), unclaimed.get("bias")
    if weight is None or bias is None or weight.dim() < 2:
        return False
    return bias.shape == (weight.shape[1 if is_conv1d(layer) else 0],)


def is_conv1d(module: nn.Module) -> bool:
    """Return whether a layer is transformers' Conv1D, whose weight is inputs x outputs."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _check(place: str, parameter: nn.Parameter) -> None:
    """Raise an error for a trained tensor without a shape or with a wrong dtype.

    ``place`` is the name of the layer.
    """
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        remedy = "call the module once before make_private"
        raise InvalidParameterError(
            "module", f"{place or 'a tensor'} without a shape", "a module whose tensors have a shape", remedy
        )
    if parameter.dtype not in DTYPES:
        remedy = "convert the trained tensors with float(). Frozen tensors may have half precision"
        expected = "a module with trained tensors in float32 or float64"
        raise InvalidParameterError("module", parameter.dtype, expected, remedy)
