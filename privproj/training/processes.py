"""The processes of one run under ``torch.distributed``.

Each process clips its share of every batch, and the shares are summed. Only the first one adds noise and keeps the
ledger. A process that stops in the middle of a run leaves the others waiting, until the timeout of their process group
ends them with an error (``torchrun`` ends them at once); nothing is released without all of them.
"""

import atexit
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors

from privproj.errors import InvalidParameterError, UnsupportedError

BUCKET = 2**27
"""Bytes that processes exchange at once. A larger tensor is sent alone."""


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
        """Return the part that this process has of a logical batch of record numbers; it may be empty."""
        return batch[self.rank :: self.size]

    def sum(self, parts: list[Tensor]) -> list[Tensor]:
        """Return the sums of the parts of all processes, in every process; ``parts`` are overwritten."""
        return self._exchange(distributed.all_reduce, parts)

    def spread(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the first process's tensors, in every process; ``tensors`` are overwritten."""
        return self._exchange(lambda bucket: distributed.broadcast(bucket, 0), tensors)

    def _exchange(self, call: Callable[[Tensor], object], tensors: list[Tensor]) -> list[Tensor]:
        """Let all processes call this on tensors of one type and device, joined to buckets: small ones cost a wait."""
        for device in dict.fromkeys(tensor.device for tensor in tensors) if self.size > 1 else ():
            for bucket in _take_tensors([tensor for tensor in tensors if tensor.device == device], BUCKET):
                joined = _flatten_dense_tensors(bucket)
                call(joined)
                for tensor, part in zip(bucket, _unflatten_dense_tensors(joined, bucket), strict=True):
                    tensor.copy_(part)
        return tensors

    def agree(self, value: Any) -> Any:
        """Return the first process's value, in every process; it must be an object that can be pickled."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, 0)
        return values[0]

    def meet(self, place: str, value: Any) -> list[Any]:
        """Return the values of all processes, by rank; all raise if they are at different places of the run."""
        pairs = [(place, value)] * self.size
        if self.size > 1:
            distributed.all_gather_object(pairs, (place, value))
        places = {rank: there for rank, (there, _) in enumerate(pairs)}
        if len(set(places.values())) > 1:
            words = "the processes of the run are at different places"
            raise UnsupportedError(
                f"{words} ({places}), but each must make every step. End all processes and resume the run"
            )
        return [one for _, one in pairs]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block that every process reaches: where one fails all do, so that none is left waiting."""
        try:
            yield
        except Exception as error:
            self.meet("a block that all reach", str(error))
            raise
        sentences = self.meet("a block that all reach", None)
        for rank, sentence in enumerate(sentences):
            if sentence is not None:
                raise UnsupportedError(f"process {rank} of {self.size} stopped: {sentence}")

    def check_same(self, told: Mapping[str, object]) -> None:
        """Raise :class:`InvalidParameterError`, in every process, unless all processes tell the same under every
        name.
        """
        first, *others = self.meet("a comparison", dict(told))
        for rank, other in enumerate(others, 1):
            for name in {**first, **other}:
                values = [one.get(name, "nothing") for one in (first, other)]
                if values[0] != values[1]:
                    actual = f"{values[0]} in process 0 and {values[1]} in process {rank}"
                    raise InvalidParameterError(name, actual, "the same in every process of the run")

    def align(self, tensors: Iterable[Tensor]) -> None:
        """Give these tensors of every process the values of the first one's."""
        self.spread([tensor.data for tensor in tensors])


def current_processes() -> Processes:
    """Return the processes of ``torch.distributed`` if that is initialized, else a single one."""
    if distributed.is_available() and distributed.is_initialized():
        # A wrapper that only cycles hold has threads, which must end before the interpreter does. Once is enough.
        atexit.unregister(gc.collect)
        atexit.register(gc.collect)
        return Processes(distributed.get_rank(), distributed.get_world_size())
    return Processes()


def own_device(device: torch.device) -> torch.device:
    """Return the device of this process: among GPUs, the one of the number that ``torchrun`` gave it on its machine."""
    if device.type != "cuda" or not _are_several():
        return device
    if device.index is not None:
        raise InvalidParameterError(
            "device", device, "cuda without a number", "each of several processes uses its own GPU"
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def join_processes(device: torch.device) -> Processes:
    """Join the processes that ``torchrun`` started, if it did, to train on this device of this process."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    if _are_several() and not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return current_processes()


def _are_several() -> bool:
    """True if ``torchrun`` has started more than one process."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
