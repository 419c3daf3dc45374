"""The processes of one run under ``torch.distributed``.

Each process clips its share of every batch, and the shares are summed. Only the first one adds noise and keeps the
ledger.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn


@dataclass(frozen=True)
class Processes:
    """``size`` processes, of which this is number ``rank``. A single process communicates with nobody."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """True for the process that adds the noise and keeps the ledger."""
        return self.rank == 0

    def share(self, batch: list[int]) -> list[int]:
        """The part that this process has of a logical batch; parts may differ in size and may be empty."""
        return batch[self.rank :: self.size]

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all parts, in every process."""
        if self.size > 1:
            distributed.all_reduce(part)
        return part

    def spread(self, tensor: Tensor) -> Tensor:
        """The first process's tensor, in every process."""
        if self.size > 1:
            distributed.broadcast(tensor, 0)
        return tensor

    def agree(self, value: Any) -> Any:
        """The first process's value, in every process."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, 0)
        return values[0]

    def align(self, module: nn.Module) -> None:
        """Every process starts from the first one's weights."""
        if self.size > 1:
            for tensor in (*module.parameters(), *module.buffers()):
                self.spread(tensor.data)


def current_processes() -> Processes:
    """The processes of ``torch.distributed``, if that is initialised."""
    if distributed.is_available() and distributed.is_initialized():
        return Processes(distributed.get_rank(), distributed.get_world_size())
    return Processes()


def join_processes() -> Processes:
    """Join the processes that ``torchrun`` started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not distributed.is_initialized():
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return current_processes()
