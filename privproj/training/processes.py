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
    """The processes of a run: ``size`` of them, of which this is number ``rank``, counted from 0.

    A single process communicates with nobody.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """True for the process that adds the noise and keeps the ledger."""
        return self.rank == 0

    def share(self, batch: list[int]) -> list[int]:
        """The part that this process has of a logical batch of record numbers; it may be empty."""
        return batch[self.rank :: self.size]

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the parts of all processes, in every process; ``part`` is overwritten."""
        if self.size > 1:
            distributed.all_reduce(part)
        return part

    def spread(self, tensor: Tensor) -> Tensor:
        """The first process's tensor, in every process; ``tensor`` is overwritten."""
        if self.size > 1:
            distributed.broadcast(tensor, 0)
        return tensor

    def agree(self, value: Any) -> Any:
        """The first process's value, in every process; it must be an object that can be pickled."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, 0)
        return values[0]

    def align(self, module: nn.Module) -> None:
        """Give the module of every process the weights and buffers of the first one's."""
        if self.size > 1:
            for tensor in (*module.parameters(), *module.buffers()):
                self.spread(tensor.data)


def current_processes() -> Processes:
    """The processes of ``torch.distributed`` if that is initialised, else a single one."""
    if distributed.is_available() and distributed.is_initialized():
        return Processes(distributed.get_rank(), distributed.get_world_size())
    return Processes()


def join_processes() -> Processes:
    """Join the processes that ``torchrun`` started, if it did; a single process otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not distributed.is_initialized():
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return current_processes()
