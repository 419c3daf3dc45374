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

_AS_SEEN, _FREEZE = (
    "the trained tensors that make_private saw",
    "freeze it again, or freeze layers before make_private, or call it anew with the same ledger",
)
"""What is expected of the tensors that ask for a gradient, and what helps."""

_MOVED_BY_RELEASES = "trained tensors that releases alone change"
"""What is expected of weights."""

_Contents = list[tuple[str, int, int]]
"""For each tensor its name, a number that changes with what it holds, and its version."""

_State = list[tuple[str, int, int, int]]
"""For each tensor of a module its name, its identity, where its numbers lie, and its version."""


class Guard:
    """Compares a module with what it was when it was made private and when the batch was drawn."""

    def __init__(self, taps: Taps) -> None:
        self.taps = taps
        self.trained = [(tap.name, p) for tap in taps.taps for p in tap.parameters]
        self.kinds = {id(p): (p.dtype, p.device) for _, p in self.trained}
        self.moved = False
        self.numbers: dict[str, str | int] | None = None
        self.forget_released()
        # A plain function, which a copy of the module leaves as it is.
        taps.handles.append(taps.module.register_load_state_dict_post_hook(lambda *_: self.forget_released()))

    def forget_released(self) -> None:
        """Let the trained tensors be others than after the last release: weights were loaded."""
        self.released: _State = []
        self.contents: _Contents = []

    def begin_step(self) -> None:
        """Raise where trained tensors or buffers were written in a way that counts no write; note the former."""
        self.check_trained()
        trained, buffers = _contents(self.trained), _contents(self.taps.module.named_buffers())
        for kept, now, expected in (
            (self.contents, trained, _MOVED_BY_RELEASES), (self.buffers, buffers, _NOTHING_KEPT)
        ):  # fmt: skip
            for old, new in zip(kept, now, strict=False):
                if old != new:
                    remedy = "no other optimizer steps on it, and nothing writes through .data"
                    raise InvalidParameter(old[0], "changed beside the releases", expected, remedy)
        self.contents = trained

    def end_step(self, rates: dict[int, float]) -> None:
        """Note what the trained tensors are like after a release.

        The first one at a positive learning rate has moved all that have one; else this raises. ``rates`` are the
        learning rates by the id of a tensor; one that is trained through others has the largest of them.
        """
        before, self.contents = self.contents, _contents(self.trained)
        self.released, most = _state(self.trained), max(rates.values(), default=0.0)
        if self.moved or most <= 0.0:
            return
        self.moved = True
        for (name, tensor), old, new in zip(self.trained, before, self.contents, strict=True):
            # Folded factors are zero again after a step, which has written them.
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
                raise InvalidParameter(old[0], "changed since the last release", _MOVED_BY_RELEASES, remedy)
        self.contents, self.buffers = (
            self.contents or _contents(self.trained),
            _contents(self.taps.module.named_buffers()),
        )

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
                raise InvalidParameter(name, found, _AS_SEEN, _FREEZE)
        return tensors

    def check_unwritten(self, form: Any = None) -> None:
        """Raise where a pass has written something of the batch into the module, or left a gradient there.

        Parts of a given ``form`` leave the same whole numbers in attributes.
        """
        tensors = self.taps.tensors()
        now = _state(tensors)
        for old, new in zip(self.before, now, strict=False):
            if old != new:
                remedy = "no running statistics, no max_norm; change weights before the batch is drawn"
                raise InvalidParameter(old[0], "written by the forward pass", _NOTHING_KEPT, remedy)
        if len(self.before) != len(now):
            raise InvalidParameter("module", "other tensors than before the batch was drawn", _NOTHING_KEPT)
        if self.numbers is not None:
            for old, new in zip(self.all, _contents(tensors), strict=True):
                if old != new:
                    remedy = "do not write through .data"
                    raise InvalidParameter(old[0], "changed by the forward pass", _NOTHING_KEPT, remedy)
            self.check_attributes(form, every=True)
        self.check_gradients(tensors)

    def check_leaves(self, losses: Tensor, records: int) -> None:
        """Raise where losses ask for the gradient of a tensor that is not trained, where it would be left unclipped.

        Tensors with a row for each of the records are inputs, such as those of checkpoints.
        """
        known = {*self.kinds, id(self.taps.switch)}
        seen, ahead = set(), [losses.grad_fn]
        while ahead:
            node = ahead.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
            leaf = getattr(node, "variable", None)
            is_input = not isinstance(leaf, nn.Parameter | None) and leaf.dim() and len(leaf) == records
            if leaf is not None and id(leaf) not in known and not is_input:
                own = {id(tensor): name for name, tensor in self.taps.tensors()}
                if id(leaf) in own:
                    raise InvalidParameter(own[id(leaf)], "trained", _AS_SEEN, _FREEZE)
                raise InvalidParameter(
                    "losses", f"the gradient of a tensor of shape {tuple(leaf.shape)} asked for too",
                    "losses of the trained tensors alone",
                    "put it into the module before make_private, or detach it: its gradient would have no noise",
                )  # fmt: skip

    def note(self) -> None:
        """Note the numbers that the module holds, for the rest of the batch: a device has to be waited for.

        What one record leaves there would reach the next one, even where every record is computed by itself.
        """
        if self.numbers is None:
            self.all = _contents(self.taps.tensors())
            self.numbers, self.made = _attributes(self.taps.module), None
            self.counts: dict[Any, dict[str, int]] = {}
            self.last: tuple[Any, dict[str, int]] | None = None
            self.plain = [(part, _copied(_plain(part))) for part in self.taps.module.modules()]

    def check_attributes(self, form: Any, *, every: bool = False) -> None:
        """Raise where a pass has left other numbers in attributes than the first one of the batch has.

        Tables of constants are the same whatever records are computed, and what a layer sets by the first batch that it
        sees is not. ``every`` number is compared after a later part of the batch, for its gradients are released; else
        those that the first pass has changed. Whole numbers are those of the records there, such as their sizes: they
        have to be the same in all passes of one ``form``, if it is known.
        """
        now = _attributes(self.taps.module)
        if self.made is None:
            before = self.numbers or {}
            self.made, self.numbers = {name for name in now if before.get(name) != now[name]}, now
        whole = {name: value for name, value in now.items() if isinstance(value, int)}
        if every and form is not None:
            # Records come one after the other, and those of a form add the same to what counts them.
            last, self.last = self.last, (form, whole)
            form = last and (last[0], form)
            whole = {name: value - last[1].get(name, value) for name, value in whole.items()} if last else {}
        alike, first = {} if form is None else self.counts.setdefault(form, whole), self.numbers or {}
        for name in now if every else self.made:
            is_whole = isinstance(now.get(name), int)
            known = name in alike and name in whole
            if (known and alike[name] != whole[name]) if is_whole else first.get(name) != now.get(name):
                raise InvalidParameter(name, "changed by the forward pass", _NOTHING_KEPT, _NO_STATE)

    def restore(self) -> None:
        """Give all plain attributes the values that they had before the first part, where that has changed any."""
        for part, plain in self.plain if self.made else []:
            for key in _plain(part).keys() - plain.keys():
                del part.__dict__[key]
            part.__dict__.update(_copied(plain))

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


def _contents(tensors: Iterable[tuple[str, Tensor]]) -> _Contents:
    """What each tensor holds and how often it was written: fused optimizers count no writes."""
    named = list(tensors)
    sums = [_bits(part) for _, part in named]
    # One question to the device for all of them.
    numbers = torch.stack([part.to(sums[0].device) for part in sums]).tolist() if sums else []
    return [(name, number, part._version) for (name, part), number in zip(named, numbers, strict=True)]


def _attributes(module: nn.Module) -> dict[str, str | int]:
    """Every number that the modules keep as plain attributes, or in lists and tables of these: in words, or whole."""
    found: dict[str, str | int] = {}
    for name, part in module.named_modules():
        for key, value in _plain(part).items():
            found |= _in_attribute(f"{name}.{key}" if name else key, value, 3)
    return found


def _plain(part: nn.Module) -> dict[str, Any]:
    """The attributes of a module that torch itself knows nothing of."""
    return {key: value for key, value in part.__dict__.items() if key not in _KEPT_BY_TORCH}


def _copied(plain: dict[str, Any]) -> dict[str, Any]:
    """Attributes, lists and tables among them as copies."""
    return {key: copy(value) if type(value) in (dict, list, deque, set) else value for key, value in plain.items()}


def _in_attribute(name: str, value: Any, depth: int) -> dict[str, str | int]:
    """The numbers in an attribute by name: whole ones as they are, those of tensors and arrays as what they hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, int | set | frozenset):
        return {name: value if isinstance(value, int) else hash(frozenset(map(repr, value)))}
    if isinstance(value, float | Tensor):
        return {name: repr(value) if isinstance(value, float) else str(int(_bits(value)))}
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, _ROWS) else ()
    found: dict[str, str | int] = {}
    for key, part in pairs if depth else ():
        found |= _in_attribute(f"{name}[{key!r}]", part, depth - 1)
    return found


@torch.no_grad()
def _bits(tensor: Tensor) -> Tensor:
    """The sum of a tensor's numbers, read as whole ones: whatever is written there changes it, but an order."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    # Sums of 32 bits wrap around; those of longer ones would be slow.
    return tensor.detach().view(kind).sum(dtype=kind if tensor.element_size() > 2 else torch.int32).to(torch.int64)
