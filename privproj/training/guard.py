"""The guard: what a run rests on stays as it was, from the drawing of a batch to its release.

Trained tensors keep their type and device, nothing else asks for gradients, and no forward pass leaves anything of a
batch in the module.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameter
from privproj.training.capture import Taps

_KEPT_BY_TORCH = frozenset(nn.Module().__dict__)
"""What torch itself keeps in every module. Contract with torch."""

SMALL = 2**16
"""Entries of a buffer up to which its numbers are compared after every part; a check compares all. Speed only."""

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
        self.kept: dict[str, Any] | None = None
        self.thorough = True
        self.released: _State | None = None
        # A plain function, which a copy of the module leaves as it is.
        taps.handles.append(taps.module.register_load_state_dict_post_hook(lambda *_: self.forget_released()))

    def note_released(self) -> None:
        """Note what the trained tensors are like after a release."""
        self.released = self.trained_state()

    def forget_released(self) -> None:
        """Let the trained tensors be others than after the last release: weights were loaded."""
        self.released = None

    def trained_state(self) -> _State:
        """Which trained tensors there are, where they lie and how often they were written."""
        return [(name, id(p), p.data_ptr(), p._version) for name, p, _, _ in self.trained]

    def begin(self) -> None:
        """Note what the module is like before a batch is seen."""
        self.check_trained()
        for old, new in zip(self.released or [], self.trained_state(), strict=False):
            if old != new:
                raise InvalidParameter(
                    old[0], "changed since the last release", "trained tensors that releases alone change",
                    "take other optimizers off them; weights from elsewhere come in by module.load_state_dict",
                )  # fmt: skip
        self.before, self.kept = self.state(), None

    def state(self) -> _State:
        """Which tensors the module has now, where they lie and how often they were written."""
        return [(name, id(part), part.data_ptr(), part._version) for name, part in self.taps.tensors()]

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
        for old, new in zip(self.before, self.state(), strict=False):
            if old != new:
                remedy = "no running statistics, no max_norm; change weights before the batch is drawn"
                raise InvalidParameter(old[0], "written by the forward pass", _NOTHING_KEPT, remedy)
        if len(self.before) != sum(1 for _ in self.taps.tensors()):
            raise InvalidParameter("module", "other tensors than before the batch was drawn", _NOTHING_KEPT)
        if self.thorough:
            self.check_parts()

    def check_parts(self) -> None:
        """Raise :class:`InvalidParameter` where attributes or buffers differ from one part of the batch to the next.

        What one record leaves there would reach the next one, even where every record is computed by itself. It is
        looked for in batches that are checked (``thorough``), since a GPU has to be waited for.
        """
        buffers = ((n, b) for n, b in self.module.named_buffers() if b.is_floating_point() and b.numel() <= SMALL)
        now = {**dict(_attributes(self.module)), **{name: _sums(buffer) for name, buffer in buffers}}
        for name, value in (self.kept or {}).items():
            if name in now and not _same(value, now[name]):
                raise InvalidParameter(name, "changed by the forward pass", _NOTHING_KEPT, _NO_STATE)
        self.kept = now

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


class Contents:
    """What a module holds besides its trained tensors, to see whether a forward pass changes it unnoticed."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.tensors = dict(self.sums())
        self.kept = dict(_attributes(self.guard.module))
        self.plain = [(part, _copied(_plain(part))) for part in guard.module.modules()]

    def sums(self) -> Iterator[tuple[str, Any]]:
        """Two sums over every parameter and buffer by name."""
        for name, tensor in self.guard.taps.tensors():
            yield name, _sums(tensor)

    def settle(self, again: Callable[[], object], numbers: bool = True) -> None:
        """Let attributes stay that the first pass made, if another part of the batch makes the same.

        Tables of constants are such attributes, and what a layer sets by the first batch that it sees is not.
        ``again`` makes a pass over another part. Single numbers are left out where ``numbers`` is False.
        """
        self.check_tensors()
        made = {name: value for name, value in _attributes(self.guard.module) if numbers or len(value) > 1}
        made = {name: value for name, value in made.items() if not _same(self.kept.get(name), value)}
        if made:
            self.restore()
            again()
            found = dict(_attributes(self.guard.module))
            for name, value in made.items():
                if not _same(found.get(name), value):
                    remedy = f"{_NO_STATE}; set what the first batch would set before make_private, from public data"
                    raise InvalidParameter(name, "changed by the forward pass", _NOTHING_KEPT, remedy)
        self.kept = dict(_attributes(self.guard.module))

    def restore(self) -> None:
        """Give all plain attributes the values that they had."""
        for part, plain in self.plain:
            for key in _plain(part).keys() - plain.keys():
                del part.__dict__[key]
            for key, (value, entries) in plain.items():
                part.__dict__[key] = value
                if type(value) is dict:
                    value.clear()
                    value.update(entries)
                elif type(value) in (list, deque):
                    value.clear()
                    value.extend(entries)

    def check_tensors(self) -> None:
        """Raise :class:`InvalidParameter` where a parameter or a buffer changed."""
        for name, sums in self.sums():
            if name in self.tensors and not _same(self.tensors[name], sums):
                raise InvalidParameter(name, "written by the forward pass", _NOTHING_KEPT, "do not write through .data")

    def check(self) -> None:
        """Raise :class:`InvalidParameter` where something changed that only a forward pass can have changed."""
        self.check_tensors()
        for name, value in _attributes(self.guard.module):
            if not _same(self.kept.get(name), value):
                raise InvalidParameter(name, "changed by the forward pass", _NOTHING_KEPT, _NO_STATE)


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every number and tensor that the modules keep as plain attributes, or in lists and tables of these."""
    for name, part in module.named_modules():
        for key, value in _plain(part).items():
            yield from _numbers(f"{name}.{key}" if name else key, value, 2)


def _plain(part: nn.Module) -> dict[str, Any]:
    """The attributes of a module that torch itself knows nothing of."""
    return {key: value for key, value in part.__dict__.items() if key not in _KEPT_BY_TORCH}


def _copied(plain: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Attributes, each with a copy of its entries where it is a list or a table."""
    return {
        key: (value, type(value)(value) if type(value) in (dict, list, deque) else None) for key, value in plain.items()
    }


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
