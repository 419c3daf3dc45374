"""LoRA with a frozen random factor: the adapters of DP-LoRA-FA."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameter
from privproj.mechanisms import whole

from .streams import normal, streams


class FrozenLoRA(nn.Module):
    """``y = W x + b + s B A x``: ``W``, ``b`` and the random ``A`` (rank x inputs, entries N(0, 1/rank)) are frozen.

    ``B`` (outputs x rank) starts at zero and is all that is trained; ``s = alpha / rank``. ``A`` comes from public
    randomness and may be published with the adapter.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float | None, stream: torch.Generator) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.rank, self.scale = rank, 1.0 if alpha is None else alpha / rank
        weight = base.weight
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, device=weight.device, dtype=weight.dtype)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, device=weight.device, dtype=weight.dtype)
        self.lora_A.weight = nn.Parameter(
            normal((rank, base.in_features), weight, stream) / rank**0.5, requires_grad=False
        )
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The layer with its adapter."""
        return self.base(x) + self.scale * self.lora_B(self.lora_A(x))


def add_frozen_lora(
    module: nn.Module,
    rank: int,
    *,
    alpha: float | None = None,
    where: Callable[[str, nn.Linear], bool] = lambda name, layer: True,
    insecure_seed: int | None = None,
) -> nn.Module:
    """The module with a :class:`FrozenLoRA` around each linear layer that ``where(name, layer)`` picks.

    All other tensors are frozen. Build the optimizer from the trained tensors afterwards. ``s = 1`` unless ``alpha`` is
    given. Raises :class:`InvalidParameter` if no layer is picked.
    """
    rank = whole("rank", rank, "a whole number rank >= 1")
    device = next(module.parameters()).device
    stream = streams(device, insecure_seed).projection
    module.requires_grad_(False)
    if isinstance(module, nn.Linear):
        return FrozenLoRA(module, rank, alpha, stream)
    picked = [(n, m) for n, m in module.named_modules() if type(m) is nn.Linear and where(n, m)]
    for name, layer in picked:
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, FrozenLoRA(layer, rank, alpha, stream))
    if not picked:
        raise InvalidParameter("module", type(module).__name__, "a module with linear layers to adapt")
    return module
