"""Layers: which of them can be trained record by record, and the tap that each gets."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameter
from privproj.training.taps import (
    AnyTap,
    ReplayedTap,
    SampledTap,
    Tap,
    TransposedTap,
    opacus_samplers,
    trained_tensors,
)

FLOATS = (torch.float32, torch.float64)
"""Types that trained tensors may have. Rounding of shorter ones is beyond what norms are overstated by. Soundness."""

REMEDIES = {
    nn.modules.rnn.RNNBase: "use opacus.layers.DPLSTM, DPGRU or DPRNN with batch_first=True, or freeze it",
    nn.EmbeddingBag: "use nn.Embedding and a sum or mean over its tokens, or freeze it",
    nn.utils.parametrize.ParametrizationList: "remove the parametrization, or freeze the layer",
}
"""What to do about layers of torch that have no per-example gradients here. Contract."""

VARIANT_REMEDY = (
    "switch use_dora and the like off: they use the factors beside their layers (DoRA in the norm of W + s B A), "
    "where no record's part can be seen"
)
"""Why variants of LoRA are refused. Contract."""


@torch.no_grad()
def _is_table(module: nn.Module) -> bool:
    """True for an embedding that looks up rows of its weight, times a number if its class is one of transformers'."""
    if not isinstance(module, nn.Embedding) or type(module) is nn.Embedding:
        return isinstance(module, nn.Embedding)
    if not isinstance(getattr(module, "embed_scale", None), float | int | Tensor):
        return False
    scale: Any = module.embed_scale
    rows = torch.arange(min(4, module.num_embeddings), device=module.weight.device)[None]
    found, wanted = module.forward(rows), module.weight[rows] * scale
    return found.shape == wanted.shape and torch.allclose(found.double(), wanted.double(), rtol=1e-2)


def _is_conv1d(module: nn.Module) -> bool:
    """True for the layer of transformers that is a linear one with its weight transposed."""
    return (type(module).__module__, type(module).__name__) == ("transformers.pytorch_utils", "Conv1D")


def is_matrix(module: nn.Module) -> bool:
    """True for a layer whose per-example gradient is a sum of outer products that this package forms itself."""
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear or _is_table(module) or _is_conv1d(module)


def _is_sampled(module: nn.Module) -> bool:
    """True for a layer that Opacus has per-example gradients for, as it is set up."""
    padded = getattr(module, "padding_mode", "zeros") != "zeros"
    whole = all(p is not None for p in module._parameters.values()) or type(module) is nn.Linear
    return type(module) in opacus_samplers() and whole and not padded and not isinstance(module, nn.Embedding)


def make_tap(name: str, module: nn.Module) -> AnyTap | None:
    """The tap of a module's own tensors; None where none is trained.

    Raises :class:`InvalidParameter` for a layer without per-example gradients, and for tensors of low precision.
    """
    trained = trained_tensors(module)
    if not trained:
        return None
    _check_layer_kind(name, module, trained)
    weight = getattr(module, "weight", None)
    if hasattr(module, "private_tap"):
        tap: AnyTap = module.private_tap(name, module)  # pyright: ignore[reportCallIssue]
    elif is_matrix(module) and weight is not None and weight.requires_grad:
        tap = (TransposedTap if _is_conv1d(module) else Tap)(name, module)
    else:
        tap = (SampledTap if _is_sampled(module) else ReplayedTap)(name, module)
    if {id(p) for p in trained} != {id(p) for p in tap.parameters}:
        raise InvalidParameter(
            name, "trained tensors besides weight and bias", "a layer as torch has it", "freeze the others"
        )
    return tap


def _check_layer_kind(name: str, module: nn.Module, trained: Iterable[nn.Parameter]) -> None:
    """Refuse layers without per-example gradients, and tensors of low precision."""
    kind, expected = type(module).__name__, "a layer with per-example gradients"
    for base, remedy in REMEDIES.items():
        if isinstance(module, base):
            raise InvalidParameter(name, kind, expected, remedy)
    if isinstance(module.__dict__.get("weight"), Tensor):
        raise InvalidParameter(
            name, f"{kind} with a weight that is made from others", expected,
            "remove spectral_norm or weight_norm from it, or freeze it",
        )  # fmt: skip
    if type(module).forward is nn.Module.forward:
        raise InvalidParameter(
            name, kind, "trained tensors in a layer that is called itself",
            "freeze them, for tensors that another layer takes out of a container pass by the hooks",
        )  # fmt: skip
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq or module.sparse):
        raise InvalidParameter(
            name, kind, "an embedding without max_norm, scale_grad_by_freq and sparse",
            "build it without them: they write to the table, count over the batch, or want gradients without noise",
        )  # fmt: skip
    for parameter in trained:
        if parameter.dtype not in FLOATS:
            raise InvalidParameter(
                name, parameter.dtype, "trained tensors in float32 or float64",
                "convert it with float(); frozen layers may stay in half precision, under torch.autocast if need be",
            )  # fmt: skip


def check_variants(name: str, module: nn.Module) -> None:
    """Refuse a trained adapter of PEFT that uses its factors otherwise than as layers."""
    variants: Any = {**getattr(module, "use_dora", {}), **getattr(module, "lora_variant", {})}
    if any(variants.values()) and any(p.requires_grad for p in module.parameters()):
        kinds = ", ".join(sorted({type(v).__name__ for v in variants.values() if v and v is not True})) or "DoRA"
        raise InvalidParameter(name, kinds, "plain LoRA", VARIANT_REMEDY)
