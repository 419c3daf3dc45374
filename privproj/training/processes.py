"""Coordinate the processes of one training run under ``torch.distributed``.

Each process clips its share of every batch, and the shares are summed. Only process 0 adds noise and writes the ledger.
If a process stops during a run, the others wait until the timeout of their process group.
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

BUCKET = 2**27  # bytes that processes exchange at once; a larger tensor is sent alone


@dataclass(frozen=True)
class Processes:
    """The processes of a run.

    ``size`` is their number, and ``rank`` is the number of this process, from 0.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """True in process 0, which adds the noise and writes the ledger."""
        return self.rank == 0

    def share(self, batch: list[int]) -> list[int]:
        """Return this process's part of a batch of record numbers, possibly empty."""
        return batch[self.rank :: self.size]

    def sum(self, parts: list[Tensor]) -> list[Tensor]:
        """Overwrite ``parts`` with their sums over all processes, and return them."""
        return self._exchange(distributed.all_reduce, parts)

    def spread(self, tensors: list[Tensor]) -> list[Tensor]:
        """Overwrite ``tensors`` with those that process 0 passes, and return them."""
        return self._exchange(lambda bucket: distributed.broadcast(bucket, 0), tensors)

    def _exchange(self, call: Callable[[Tensor], object], tensors: list[Tensor]) -> list[Tensor]:
        """Run a collective operation on tensors, which are joined into few large buffers."""
        for device in dict.fromkeys(tensor.device for tensor in tensors) if self.size > 1 else ():
            for bucket in _take_tensors([tensor for tensor in tensors if tensor.device == device], BUCKET):
                joined = _flatten_dense_tensors(bucket)
                call(joined)
                for tensor, part in zip(bucket, _unflatten_dense_tensors(joined, bucket), strict=True):
                    tensor.copy_(part)
        return tensors

    def agree(self, value: Any) -> Any:
        """Return, in every process, the picklable value that process 0 passes."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, 0)
        return values[0]

    def meet(self, place: str, value: Any) -> list[Any]:
        """Return the values that all processes pass, in the order of their ranks.

        ``place`` names the point of the run at which this is called. Raises :class:`UnsupportedError` in all processes
        if they are at different points.
        """
        pairs = [(place, value)] * self.size
        if self.size > 1:
            distributed.all_gather_object(pairs, (place, value))
        places = {rank: there for rank, (there, _) in enumerate(pairs)}
        if len(set(places.values())) > 1:
            problem = "the processes of the run are at different places"
            raise UnsupportedError(
                f"{problem} ({places}), but each must make every step. End all processes and resume the run"
            )
        return [one for _, one in pairs]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise an error in all processes if the ``with`` block fails in one of them."""
        try:
            yield
        except Exception as error:
            self.meet("a block that all reach", str(error))
            raise
        sentences = self.meet("a block that all reach", None)
        for rank, sentence in enumerate(sentences):
            if sentence is not None:
                raise UnsupportedError(f"process {rank} of {self.size} stopped: {sentence}")

    def check_same(self, settings: Mapping[str, object]) -> None:
        """Raise an error in every process unless all processes pass the same settings."""
        first, *others = self.meet("a comparison", dict(settings))
        for rank, other in enumerate(others, 1):
            for name in {**first, **other}:
                values = [one.get(name, "nothing") for one in (first, other)]
                if values[0] != values[1]:
                    actual = f"{values[0]} in process 0 and {values[1]} in process {rank}"
                    raise InvalidParameterError(name, actual, "the same in every process of the run")

    def align(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors in every process with their values in process 0."""
        self.spread([tensor.data for tensor in tensors])


def current_processes() -> Processes:
    """Return the processes of ``torch.distributed``; one process if it is not initialized."""
    if distributed.is_available() and distributed.is_initialized():
        # A DistributedDataParallel in a reference cycle has threads that must end before the interpreter does. The
        # function is registered once only.
        atexit.unregister(gc.collect)
        atexit.register(gc.collect)
        return Processes(distributed.get_rank(), distributed.get_world_size())
    return Processes()


def own_device(device: torch.device) -> torch.device:
    """Return the device that this process uses if ``device`` is requested.

    If ``torchrun`` started several processes, "cuda" becomes the GPU of this process, and a numbered GPU raises
    :class:`InvalidParameterError`.
    """
    if device.type != "cuda" or not _are_several():
        return device
    if device.index is not None:
        raise InvalidParameterError(
            "device", device, "cuda without a number", "each of several processes uses its own GPU"
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def join_processes(device: torch.device) -> Processes:
    """Join the processes that ``torchrun`` started, if any, and return them.

    If ``device`` is a numbered GPU, it becomes torch's current CUDA device.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    if _are_several() and not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return current_processes()


def _are_several() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
