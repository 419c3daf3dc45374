"""The guard: what a run rests on stays as it was, from the drawing of a batch to its release.

Trained tensors keep their type and device, nothing else asks for gradients, and no forward pass leaves anything of a
batch in the module.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameter
from privproj.training.capture import Taps

_KEPT_BY_TORCH = frozenset(nn.Module().__dict__)
"""What torch itself keeps in every module. Contract with torch."""

_NOTHING_KEPT = "layers that keep nothing of a batch"
"""What is expected of a forward pass."""

_NO_STATE = "keep no statistics, no memory and no outputs of a batch in attributes"
"""What helps against state in attributes."""

_State = list[tuple[str, int, int, int]]
"""For each tensor of a module its name, its identity, where its numbers lie, and its version."""


class Guard:
    """Compares a module with what it was when it was made private and when the batch was drawn."""

    def __init__(self, taps: Taps) -> None:
        self.taps, self.module = taps, taps.module
        self.trained = [(tap.name, p, p.dtype, p.device) for tap in taps.taps for p in tap.parameters]
        self.covered = {id(p) for _, p, _, _ in self.trained}
        self.before: _State = []
        self.released: _State | None = None
        self.numbers: dict[str, Any] | None = None
        # A plain function, which a copy of the module leaves as it is.
        taps.handles.append(taps.module.register_load_state_dict_post_hook(lambda *_: self.forget_released()))

    def note_released(self) -> None:
        """Note what the trained tensors are like after a release."""
        self.released = _state((name, p) for name, p, _, _ in self.trained)

    def forget_released(self) -> None:
        """Let the trained tensors be others than after the last release: weights were loaded."""
        self.released = None

    def begin(self) -> None:
        """Note what the module is like before a batch is seen."""
        self.check_trained()
        now = _state((name, p) for name, p, _, _ in self.trained)
        for old, new in zip(self.released or [], now, strict=False):
            if old != new:
                raise InvalidParameter(
                    old[0], "changed since the last release", "trained tensors that releases alone change",
                    "take other optimizers off them; weights from elsewhere come in by module.load_state_dict",
                )  # fmt: skip
        self.before, self.numbers = _state(self.taps.tensors()), None

    def check_trained(self) -> None:
        """Raise :class:`InvalidParameter` where trained tensors changed their type or others ask for gradients."""
        for name, parameter, dtype, device in self.trained:
            if parameter.dtype != dtype or parameter.device != device:
                raise InvalidParameter(
                    name, f"{parameter.dtype} on {parameter.device}", f"{dtype} on {device}, as make_private saw it",
                    "convert and move the module before make_private; for speed use autocast",
                )  # fmt: skip
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and id(parameter) not in self.covered:
                raise InvalidParameter(
                    name, "requires_grad=True", "the trained tensors that make_private saw",
                    "its gradients would be un-noised: freeze it again, or call make_private anew with the same ledger",
                )  # fmt: skip

    def check_unwritten(self) -> None:
        """Raise :class:`InvalidParameter` where a forward pass has written something of the batch into the module."""
        now = _state(self.taps.tensors())
        for old, new in zip(self.before, now, strict=False):
            if old != new:
                remedy = "no running statistics, no max_norm; change weights before the batch is drawn"
                raise InvalidParameter(old[0], "written by the forward pass", _NOTHING_KEPT, remedy)
        if len(self.before) != len(now):
            raise InvalidParameter("module", "other tensors than before the batch was drawn", _NOTHING_KEPT)
        if self.numbers is not None:
            self.check_numbers()

    def note(self) -> None:
        """Note the numbers that the module holds, for the rest of the batch: a device has to be waited for.

        What one record leaves there would reach the next one, even where every record is computed by itself.
        """
        if self.numbers is None:
            self.numbers, self.made = self.all_numbers(), None
            self.plain = [(part, _copied(_plain(part))) for part in self.module.modules()]

    def all_numbers(self) -> dict[str, Any]:
        """Every number that the module holds by name: two sums over each tensor, and those in attributes."""
        return {**{name: _sums(tensor) for name, tensor in self.taps.tensors()}, **dict(_attributes(self.module))}

    def check_numbers(self) -> None:
        """Raise where numbers differ from those before, but for attributes after the first part: they are noted."""
        old, self.numbers = self.numbers or {}, self.all_numbers()
        changed = {name: value for name, value in self.numbers.items() if not _same(old.get(name), value)}
        tensors = {name for name, _ in self.taps.tensors()}
        for name in changed:
            if name in tensors or self.made is not None:
                remedy = "do not write through .data" if name in tensors else _NO_STATE
                raise InvalidParameter(name, "changed by the forward pass", _NOTHING_KEPT, remedy)
        self.made = {**(self.made or {}), **changed}

    def restore(self) -> None:
        """Give all plain attributes the values that they had before the first part, where that has changed any."""
        for part, plain in self.plain if self.made else []:
            for key in _plain(part).keys() - plain.keys():
                del part.__dict__[key]
            part.__dict__.update(_copied(plain))

    def check_made(self) -> None:
        """Raise unless other records have left in attributes what the first part has left there.

        Tables of constants are such attributes, and what a layer sets by the first batch that it sees is not.
        """
        now = dict(_attributes(self.module))
        for name, value in (self.made or {}).items():
            if not _same(now.get(name), value):
                remedy = f"{_NO_STATE}; set what the first batch would set before make_private, from public data"
                raise InvalidParameter(name, "changed by the forward pass", _NOTHING_KEPT, remedy)

    def check_gradients(self) -> None:
        """Raise :class:`InvalidParameter` where a tensor has a gradient that no release is about, and remove it."""
        found = [(n, p) for n, p in self.module.named_parameters() if p.grad is not None and id(p) not in self.covered]
        for _, parameter in found:
            parameter.grad = None
        if found:
            raise InvalidParameter(
                found[0][0], "a gradient without noise", "gradients of the trained tensors alone",
                "freeze it, or let make_private see it as trained",
            )  # fmt: skip


def _state(tensors: Iterable[tuple[str, Tensor]]) -> _State:
    """Which tensors these are, where they lie and how often they were written."""
    return [(name, id(part), part.data_ptr(), part._version) for name, part in tensors]


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every number and tensor that the modules keep as plain attributes, or in lists and tables of these."""
    for name, part in module.named_modules():
        for key, value in _plain(part).items():
            yield from _numbers(f"{name}.{key}" if name else key, value, 2)


def _plain(part: nn.Module) -> dict[str, Any]:
    """The attributes of a module that torch itself knows nothing of."""
    return {key: value for key, value in part.__dict__.items() if key not in _KEPT_BY_TORCH}


def _copied(plain: dict[str, Any]) -> dict[str, Any]:
    """Attributes, lists and tables among them as copies."""
    return {key: copy(value) if type(value) in (dict, list, deque) else value for key, value in plain.items()}


def _numbers(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The floating-point numbers in an attribute by name, those of tensors as two sums."""
    if isinstance(value, float):
        yield name, (value,)
    elif isinstance(value, Tensor) and value.is_floating_point():
        yield name, _sums(value)
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield name, (float(value.sum()), float(np.linalg.norm(value)))
    elif depth and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(f"{name}[{key!r}]", part, depth - 1)
    elif depth and isinstance(value, list | tuple | deque):
        for i, part in enumerate(value):
            yield from _numbers(f"{name}[{i}]", part, depth - 1)


@torch.no_grad()
def _sums(tensor: Tensor) -> tuple[float, float]:
    """The sum and the norm of a tensor, in double precision where the device has it."""
    values = tensor.detach()
    if values.device.type == "mps":
        return float(values.float().sum()), float(values.float().norm())
    values = values if values.is_floating_point() else values.abs().double()
    return float(values.sum(dtype=torch.float64)), float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _same(old: Any, new: Any) -> bool:
    """True if numbers are equal, nan being equal to nan."""
    return old is not None and all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(old, new, strict=True))
