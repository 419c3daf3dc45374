"""The guard: what a run rests on stays as it was, from the drawing of a batch to its release.

Trained tensors keep their type and device, nothing else asks for gradients, and no forward pass leaves anything of a
batch in the module.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameter
from privproj.training.capture import Taps

_KEPT_BY_TORCH = frozenset(nn.Module().__dict__)
"""What torch itself keeps in every module. Contract with torch."""

_ROWS = (list, tuple, deque)
"""Attributes of which the numbers are looked at one by one."""

_NOTHING_KEPT = "layers that keep nothing of a batch"
"""What is expected of a forward pass."""

_NO_STATE = (
    "keep no statistics, no memory and no outputs of a batch in attributes; set what the first batch would set before "
    "make_private, from public data"
)
"""What helps against state in attributes."""

_State = list[tuple[str, int, int, int]]
"""For each tensor of a module its name, its identity, where its numbers lie, and its version."""


class Guard:
    """Compares a module with what it was when it was made private and when the batch was drawn."""

    def __init__(self, taps: Taps) -> None:
        self.taps = taps
        self.trained = [(tap.name, p) for tap in taps.taps for p in tap.parameters]
        self.kinds = {id(p): (p.dtype, p.device) for _, p in self.trained}
        self.moved = False
        self.numbers: dict[str, str] | None = None
        self.forget_released()
        # A plain function, which a copy of the module leaves as it is.
        taps.handles.append(taps.module.register_load_state_dict_post_hook(lambda *_: self.forget_released()))

    def forget_released(self) -> None:
        """Let the trained tensors be others than after the last release: weights were loaded."""
        self.released: _State = []

    def begin_step(self) -> None:
        """Note what the trained tensors are like before a release moves them."""
        self.check_trained()
        self.contents = [] if self.moved else _contents(self.trained)

    def end_step(self, rates: dict[int, float]) -> None:
        """Note what the trained tensors are like after a release.

        The first one at a positive learning rate has moved all that have one; else this raises. ``rates`` are the
        learning rates by the id of a tensor; one that is trained through others has the largest of them.
        """
        self.released, most = _state(self.trained), max(rates.values(), default=0.0)
        if self.moved or most <= 0.0:
            return
        self.moved = True
        for (name, tensor), old, new in zip(self.trained, self.contents, _contents(self.trained), strict=True):
            if rates.get(id(tensor), most) > 0.0 and old == new:
                remedy = "build the optimizer from the parameters of the module that is trained, after moving it"
                raise InvalidParameter(name, "unmoved after a step", "trained weights that move", remedy)

    def begin(self) -> None:
        """Note what the module is like before a batch is seen."""
        tensors = self.check_trained()
        self.before, self.numbers, self.types = _state(tensors), None, {tensor.dtype for _, tensor in tensors}
        for old, new in zip(self.released, _state(self.trained), strict=False):
            if old != new:
                remedy = "take other optimizers off them; weights from elsewhere come in by module.load_state_dict"
                expected = "trained tensors that releases alone change"
                raise InvalidParameter(old[0], "changed since the last release", expected, remedy)

    def check_trained(self) -> list[tuple[str, Tensor]]:
        """The tensors of the module; raises unless those that make_private saw as trained are so, and no others."""
        for name, parameter in self.trained:
            dtype, device = self.kinds[id(parameter)]
            if parameter.dtype != dtype or parameter.device != device:
                expected = f"{dtype} on {device}, as make_private saw it"
                remedy = "convert and move the module before make_private; for speed use autocast"
                raise InvalidParameter(name, f"{parameter.dtype} on {parameter.device}", expected, remedy)
        tensors = self.taps.tensors()
        for name, tensor in tensors:
            if tensor.requires_grad != (id(tensor) in self.kinds):
                found = "trained" if tensor.requires_grad else "frozen"
                remedy = "freeze it again, or freeze layers before make_private, or call it anew with the same ledger"
                raise InvalidParameter(name, found, "the trained tensors that make_private saw", remedy)
        return tensors

    def check_unwritten(self) -> None:
        """Raise where a pass has written something of the batch into the module, or left a gradient there."""
        tensors = self.taps.tensors()
        now = _state(tensors)
        for old, new in zip(self.before, now, strict=False):
            if old != new:
                remedy = "no running statistics, no max_norm; change weights before the batch is drawn"
                raise InvalidParameter(old[0], "written by the forward pass", _NOTHING_KEPT, remedy)
        if len(self.before) != len(now):
            raise InvalidParameter("module", "other tensors than before the batch was drawn", _NOTHING_KEPT)
        if self.numbers is not None:
            for (name, tensor), sums in zip(tensors, self.sums, strict=True):
                if _sums(tensor) != sums:
                    remedy = "do not write through .data"
                    raise InvalidParameter(name, "changed by the forward pass", _NOTHING_KEPT, remedy)
            self.check_attributes(every=True)
        self.check_gradients(tensors)

    def note(self) -> None:
        """Note the numbers that the module holds, for the rest of the batch: a device has to be waited for.

        What one record leaves there would reach the next one, even where every record is computed by itself.
        """
        if self.numbers is None:
            self.sums = [_sums(tensor) for _, tensor in self.taps.tensors()]
            self.numbers, self.made = _attributes(self.taps.module), None
            self.plain = [(part, _copied(_plain(part))) for part in self.taps.module.modules()]

    def check_attributes(self, *, every: bool = False) -> None:
        """Raise where a pass has left other numbers in attributes than the first one of the batch has.

        Tables of constants are the same whatever records are computed, and what a layer sets by the first batch that it
        sees is not. ``every`` number is compared after a later part of the batch, for its gradients are released; else
        those that the first pass has changed.
        """
        now = _attributes(self.taps.module)
        if self.made is None:
            before = self.numbers or {}
            self.made, self.numbers = {name for name in now if before.get(name) != now[name]}, now
        first = self.numbers or {}
        for name in now if every else self.made:
            if now.get(name) != first.get(name):
                raise InvalidParameter(name, "changed by the forward pass", _NOTHING_KEPT, _NO_STATE)

    def restore(self) -> None:
        """Give all plain attributes the values that they had before the first part, where that has changed any."""
        for part, plain in self.plain if self.made else []:
            for key in _plain(part).keys() - plain.keys():
                del part.__dict__[key]
            part.__dict__.update(_copied(plain))

    def drop_gradients(self) -> None:
        """Remove the gradients of the trained tensors."""
        for _, parameter in self.trained:
            parameter.grad = None

    def check_gradients(self, tensors: list[tuple[str, Tensor]]) -> None:
        """Raise where one of the module's tensors has a gradient that no release is about, and remove all of these."""
        found = [(name, part) for name, part in tensors if part.grad is not None and id(part) not in self.kinds]
        for _, part in found:
            part.grad = None
        if found:
            expected, remedy = (
                "gradients of the trained tensors alone",
                "freeze it, or let make_private see it as trained",
            )
            raise InvalidParameter(found[0][0], "a gradient without noise", expected, remedy)


def _state(tensors: Iterable[tuple[str, Tensor]]) -> _State:
    """Which tensors these are, where they lie and how often they were written."""
    return [(name, id(part), part.data_ptr(), part._version) for name, part in tensors]


def _contents(tensors: Iterable[tuple[str, Tensor]]) -> list[tuple[str, int]]:
    """The sum, the length and the writes of each tensor: fused steps count none, and folded factors are zero again."""
    return [(_sums(part), part._version) for _, part in tensors]


def _attributes(module: nn.Module) -> dict[str, str]:
    """Every number that the modules keep as plain attributes, or in lists and tables of these, in words."""
    found: dict[str, str] = {}
    for name, part in module.named_modules():
        for key, value in _plain(part).items():
            found |= _in_attribute(f"{name}.{key}" if name else key, value, 2)
    return found


def _plain(part: nn.Module) -> dict[str, Any]:
    """The attributes of a module that torch itself knows nothing of."""
    return {key: value for key, value in part.__dict__.items() if key not in _KEPT_BY_TORCH}


def _copied(plain: dict[str, Any]) -> dict[str, Any]:
    """Attributes, lists and tables among them as copies."""
    return {key: copy(value) if type(value) in (dict, list, deque) else value for key, value in plain.items()}


def _in_attribute(name: str, value: Any, depth: int) -> dict[str, str]:
    """The floating-point numbers in an attribute by name, those of tensors and arrays as two sums."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = torch.from_numpy(value)
    if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
        return {name: repr(value) if isinstance(value, float) else _sums(value)}
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, _ROWS) else ()
    found: dict[str, str] = {}
    for key, part in pairs if depth else ():
        found |= _in_attribute(f"{name}[{key!r}]", part, depth - 1)
    return found


@torch.no_grad()
def _sums(tensor: Tensor) -> str:
    """The sum and the norm of a tensor in words, in double precision where the device has it."""
    kind = torch.float32 if tensor.device.type == "mps" else torch.float64
    values = tensor.detach() if tensor.is_floating_point() else tensor.detach().to(kind)
    return f"{float(values.sum(dtype=kind))!r} {float(torch.linalg.vector_norm(values, dtype=kind))!r}"
