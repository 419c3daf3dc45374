"""Hooks that tell every tap what its layers see and what gradient comes back.

The gradient of a whole batch is never computed for a trained matrix: it does not ask for gradients meanwhile, and its
tap makes those of single records from what is captured here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.training.taps import AnyTap, Tap, check_variants, first_output, make_tap, used_inside

BATCH_NORM = nn.modules.batchnorm._BatchNorm
"""The base of torch's layers that compute statistics over a batch. Soundness: such a layer mixes records."""


POSITIONS = 8
"""Rising whole numbers, as many as a part has records, that are taken for positions which the records share. Contract:
where they are the records' own, the loss is refused."""


class _Saved(torch.autograd.Function):
    """Saves a tensor for the way back as torch saves its own, so that checkpointing recomputes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, switch: Tensor) -> Tensor:
        """Save ``x``; ``switch`` requires a gradient, without which nothing is saved."""
        ctx.save_for_backward(x)
        return torch.empty_like(switch)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        """Give nothing back; it is never called."""
        return None, None


_TAPPED: "WeakSet[nn.Module]" = WeakSet()
"""The modules that private runs train now. Soundness: two runs would count releases of one module apart."""


class UnpickledHook:
    """A hook that a copy of its module has too, as it is, and with which no module is pickled."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.call(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> "UnpickledHook":
        return self

    def __reduce__(self) -> NoReturn:
        reason = "a module that a private run trains cannot be pickled, because its hooks belong to that run"
        raise UnsupportedError(f"{reason}. Save module.state_dict(), or call optimizer.close() first.")


class Taps:
    """All taps of a module, with the hooks that feed them.

    A module that holds a layer which mixes records, or a trained tensor without per-example gradients, is refused by
    :class:`InvalidParameterError`. ``close`` removes the hooks.

    Something is kept only while the taps are :meth:`armed`, ``capturing`` is True then, and ``records`` is the number
    of records in the part that is computed. ``switch`` asks for a gradient, so that what is saved lives as long as
    torch keeps the graph. ``widened`` names the last layer whose output was the same for all of them. ``is_inside``
    while the loss function runs, whose own passes back, such as for an adversarial input, are no gradients of losses.
    ``alone`` where every record is a batch of its own.
    """

    def __init__(self, module: nn.Module) -> None:
        if module in _TAPPED:
            remedy = "call optimizer.close() of the earlier run first"
            expected, actual = "trained by one private run at a time", "one that a private run already trains"
            raise InvalidParameterError("module", actual, expected, remedy)
        self.module = module
        self.taps: list[AnyTap] = []
        self.handles: list[Any] = []
        self.capturing = self.is_inside = self.alone = False
        self.switch = torch.empty(0, requires_grad=True)
        self.records = 0
        inside: set[int] = set()
        for name, part in module.named_modules():
            if id(part) not in inside:
                self.add(name or type(part).__name__, part)
            inside |= {id(child) for child in used_inside(part)}
        self.check_owners(module)
        for tap in self.taps:
            self.handles += [part.register_forward_hook(self.hook(tap), with_kwargs=True) for part in tap.modules]
        _TAPPED.add(module)

    def add(self, name: str, module: nn.Module) -> None:
        """Make the tap of one module's own tensors, if any of them is trained, or join the tap of a shared weight."""
        if isinstance(module, BATCH_NORM) and (module.training or not module.track_running_stats):
            remedy = "use GroupNorm, or freeze the layer and put it in eval mode"
            raise InvalidParameterError(name, type(module).__name__, "a layer that does not mix records", remedy)
        check_variants(name, module)
        tap = make_tap(name, module)
        if tap is not None and not any(other.join(tap) for other in self.taps):
            self.taps.append(tap)

    @contextmanager
    def armed(self, records: int) -> Iterator[None]:
        """Keep what the layers see of a part of so many records, and what comes back, until the block ends."""
        self.records, self.widened = records, ""
        try:
            self.capture(True)
            yield
        finally:
            self.capture(False)
            self.clear()

    def capture(self, on: bool) -> None:
        """Keep what the layers see from now on, or let plain autograd compute gradients.

        Trained matrices do not ask for gradients meanwhile, so that torch never computes the gradient of a whole batch.
        """
        self.capturing = on
        for parameter in (p for tap in self.taps if isinstance(tap, Tap) for p in tap.parameters):
            parameter.requires_grad_(not on)

    def spread(self, tap: AnyTap, module: nn.Module, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """Give every record its own row of what the batch shares, such as embeddings of positions.

        Without it the gradient that comes back would be summed over the records before any norm is taken.
        """
        records = self.records
        if not x.dim():
            expected = "called with one row for each record, or one row for all"
            raise InvalidParameterError(tap.name, "an input of shape ()", expected, "pass x[None]")
        of_tokens = isinstance(module, nn.Embedding) and x.dim() == 1
        # Beside no other record, what all could share stands in a row all the same, as in larger parts.
        if records == 1 and (self.alone or not of_tokens or len(x) == 1 or not (_rise(x, 1) or _rise(x, 0))):
            return x, output
        if (isinstance(module, nn.Linear) and x.dim() == 1) or (isinstance(module, nn.Conv2d) and x.dim() == 3):
            expected, remedy = "called with one row for each record", "use strict=True, which computes each separately"
            raise InvalidParameterError(tap.name, f"an input of shape {tuple(x.shape)}", expected, remedy)
        # Numbers of shape (T,) are those of tokens, which all records share, unless there is one for each record.
        if of_tokens:
            # Of records, so many numbers are in no such order.
            is_run = len(x) == records >= POSITIONS and _rise(x, 1)
            tap.is_shared = tap.is_shared or is_run or len(x) not in (1, records)
            if not tap.is_shared:
                if len(x) == 1:
                    expected = "called with a row of indices for each record, or with indices of shape (1, T)"
                    raise InvalidParameterError(tap.name, "indices of shape (1,)", expected)
                return x, output
            x, output = x[None], output[None]
        if len(x) == 1 or len(output) == 1:
            self.widened = tap.name
        x = x.expand(records, *x.shape[1:]) if len(x) == 1 else x
        return x, output.expand(records, *output.shape[1:]).clone() if len(output) == 1 else output

    def hook(self, tap: AnyTap) -> Callable[..., Tensor | None]:
        """A forward hook that keeps what a layer sees and, once it comes back, the gradient of its output."""

        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor | None:
            if not self.capturing or not torch.is_grad_enabled() or AnyTap.is_replaying:
                return None
            # A copy of the module, such as a teacher or an average of weights, has the hooks too and is not trained.
            if not any(module is part for part in tap.modules):
                return None
            if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
                remedy = "remove vmap and grad from the loss function"
                raise InvalidParameterError(tap.name, "a call within it", "called outside of torch.func", remedy)
            call, seen = tap.call(module, args, kwargs)
            first = _differentiable(tap, output)
            seen, expanded = self.spread(tap, module, seen, first)
            saved: Any = [_Saved.apply(seen, self.switch)]
            if not expanded.requires_grad:
                # A copy that gets a gradient back. It may be written, as a leaf may not.
                expanded = expanded.detach().requires_grad_().clone()

            def back(g: Tensor) -> None:
                if self.is_inside:
                    return
                if not saved:
                    raise RuntimeError(f"backward goes through the graph a second time at {tap.name}")
                self.keep(tap, call, _saved_input(tap, saved.pop()), g.detach())

            expanded.register_hook(back)
            return None if expanded is first else expanded

        # Compiled code would not keep what the hook saves for the way back.
        return UnpickledHook(torch.compiler.disable(hook))

    def check_owners(self, module: nn.Module) -> None:
        """Raise unless every trained tensor belongs to one tap, and there is at least one."""
        owners: dict[int, str] = {}
        for tap in self.taps:
            for parameter in tap.parameters:
                if id(parameter) in owners:
                    remedy = f"untie it from {owners[id(parameter)]}, share the bias too, or freeze it"
                    expected = "a layer that shares tensors only with layers of its kind"
                    raise InvalidParameterError(tap.name, "a tensor shared with another layer", expected, remedy)
                owners[id(parameter)] = tap.name
        if not self.taps:
            expected = "a module with tensors that require gradients"
            remedy = "if an earlier run used this module, call optimizer.close() of that run first"
            raise InvalidParameterError("module", type(module).__name__, expected, remedy)

    @property
    def device(self) -> torch.device:
        """The device of the trained tensors."""
        return self.taps[0].parameters[0].device

    def keep(self, tap: AnyTap, call: Any, x: Tensor, g: Tensor) -> None:
        """Let a tap keep a use of its layer; raises :class:`InvalidParameterError` unless that saw one row for each
        record.

        All that a layer saw of a record that is computed alone is one record's, whatever its first dimension is.
        """
        if self.alone and {len(x), len(g)} != {1}:
            x, g = x[None], g[None]
        for rows in {len(x), len(g)} - {self.records}:
            remedy = "weight rows instead of gathering them, or use strict=True, which computes each record separately"
            actual = f"{rows} rows for {self.records} losses"
            expected = "called with one row for each record, batch first"
            raise InvalidParameterError(tap.name, actual, expected, remedy)
        tap.keep(call, x, g)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """All parameters and buffers of the module with their names, trained or not."""
        by_id: dict[int, tuple[str, Tensor]] = {}
        # Torch's own walks over tensors take twice as long, and every batch makes some.
        for name, part in self.module.named_modules():
            for key, tensor in (*part._parameters.items(), *part._buffers.items()):
                if tensor is not None:
                    by_id.setdefault(id(tensor), (f"{name}.{key}" if name else key, tensor))
        return list(by_id.values())

    def clear(self) -> None:
        """Forget everything that was captured."""
        for tap in self.taps:
            tap.clear()

    def close(self) -> None:
        """Remove the hooks."""
        _TAPPED.discard(self.module)
        for handle in self.handles:
            handle.remove()


def _differentiable(tap: AnyTap, output: Any) -> Tensor:
    """The output of a layer that gets a gradient back: a tensor, or the first of several.

    Where others get one too, the gradients of records that are computed apart differ.
    """
    first = first_output(output)
    if not isinstance(first, Tensor) or (first is not output and not (tap.may_return_more and first.requires_grad)):
        expected = "a layer that returns a tensor"
        raise InvalidParameterError(tap.name, type(output).__name__, expected, "freeze its own tensors")

    return first


def _rise(x: Tensor, by: int) -> bool:
    """True for numbers of shape (T,) that rise by so much each: by 1 as positions do, by 0 if all are of one kind."""
    return x.dim() == 1 and bool((x.diff() == by).all())


def _saved_input(tap: AnyTap, saved: Any) -> Tensor:
    """What a layer saw, as it was saved; raises :class:`InvalidParameterError` where it was written since."""
    try:
        (x,) = saved.grad_fn.saved_tensors
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        expected, remedy = "a layer whose input is not changed later", "change a copy of the input instead"
        raise InvalidParameterError(tap.name, "an input changed in place", expected, remedy) from None
    return x
