"""Compute per-example gradients of a loss function that sees one record at a time.

Records of one shape form a group, which is computed at once under ``torch.vmap``. If the records of a group take
different branches, the group is divided, and each part is computed again.
"""

import copy
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from privproj.errors import InvalidParameterError
from privproj.training.capture import OWN_FUNCTIONS, AllRecords, OneRecord, unsupported_by_vmap
from privproj.training.generators import STATE_BYTES, device_generator, seed_numpy_and_python, seed_torch
from privproj.training.trained import Trained

# called with a batch of one record, as the user's collate_fn makes it; returns the loss
LossFunction = Callable[[Any], Tensor]

# types of single values in a record, except tensors; two values of one type are equal if _text returns the same
PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)


# --- groups of records ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Records that can be computed together under ``torch.vmap``.

    The records have the same structure. Their tensors have the same shapes and types, and their other values are equal.

    Attributes:
        columns: The tensors of a record, each stacked over all records of the group.
        build: Called with the tensors of one record; returns a batch of one record.
        records: The number of records.
    """

    columns: tuple[Tensor, ...]
    build: Callable[[tuple[Tensor, ...]], Any]
    records: int

    def pin_memory(self) -> "Group":
        """Return a copy of the group in pinned memory, for torch's data loader."""
        return Group(tuple(column.pin_memory() for column in self.columns), self.build, self.records)

    def rows(self, rows: slice | list[int]) -> "Group":
        """Return the group of the selected records."""
        count = len(range(self.records)[rows]) if isinstance(rows, slice) else len(rows)
        return Group(tuple(column[rows] for column in self.columns), self.build, count)


def group(records: Iterable[Any]) -> list[Group]:
    """Divide records into groups that can be computed together under ``torch.vmap``.

    Each of ``records`` is a batch of one record.
    """
    by_structure: dict[Any, tuple[list[list[Tensor]], Any]] = {}
    for record in records:
        tensors: list[Tensor] = []
        structure = _structure(record, tensors)
        key = _key(structure), tuple((t.shape, t.dtype, t.device) for t in tensors)
        by_structure.setdefault(key, ([], structure))[0].append(tensors)
    return [
        Group(tuple(map(torch.stack, zip(*rows, strict=True))), partial(_rebuild, structure), len(rows))
        for rows, structure in by_structure.values()
    ]


@dataclass(frozen=True)
class _Part:
    """A node in the nested structure of a record: a container or a single value.

    Attributes:
        value: The container or the value.
        keys: The keys of a dictionary, or the names of fields.
        parts: The nodes of the values in a container, with None for a tensor. For a single value, ``parts`` itself is
            None.
    """

    value: Any
    keys: tuple[Any, ...] = ()
    parts: tuple[Any, ...] | None = None


def _structure(value: Any, tensors: list[Tensor]) -> _Part | None:
    """Return the nested structure of a record, and append its tensors to ``tensors``.

    The structure of a tensor is None. Raises :class:`InvalidParameterError` for values other than dense tensors,
    numbers and text in containers.
    """
    if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested:
        # Tensors are stacked without their graph and as plain tensors.
        is_bare = type(value) is Tensor and not value.requires_grad
        tensors.append(value if is_bare else value.detach().as_subclass(Tensor))
        return None
    # A batch is rebuilt from the container of the first record of a group, so containers with further contents, such
    # as attributes, are not accepted.
    kind, attributes = type(value), getattr(value, "__dict__", {})
    has_slots = any(base.__dict__.get("__slots__") for base in kind.__mro__)
    if kind in (dict, OrderedDict, defaultdict) and all(map(_is_plain, value)):
        return _Part(value, tuple(value), tuple(_structure(part, tensors) for part in value.values()))
    if isinstance(value, UserDict) and all(map(_is_plain, value)):
        return _Part(value, tuple(value.data), tuple(_structure(part, tensors) for part in value.data.values()))
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_fields") and not attributes):
        return _Part(value, (), tuple(_structure(part, tensors) for part in value))
    if is_dataclass(value) and not has_slots and {f.name for f in fields(value)} <= {*attributes}:
        return _Part(value, tuple(attributes), tuple(_structure(part, tensors) for part in attributes.values()))
    if _is_plain(value):
        return _Part(value)
    # The loss function could store values in other objects, and they would reach another record.
    expected = "a loader of records made of dense tensors, numbers and text, in tuples, lists, dicts or dataclasses"
    remedy = "convert other values in collate_fn, for instance by torch.as_tensor or to_dict()"
    raise InvalidParameterError("data_loader", type(value).__name__, expected, remedy)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, text, another constant, or a tuple of these."""
    if isinstance(value, Enum):
        return True
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(_is_plain, value))
    return type(value) in PLAIN or (isinstance(value, np.generic) and not isinstance(value, np.void))


def _text(value: Any) -> str:
    """Return a text that is equal for equal values of one type."""
    if isinstance(value, Enum):
        return f"{value._name_} {value._value_!r}"
    return repr(tuple((type(part), _text(part)) for part in value)) if isinstance(value, tuple) else repr(value)


def _key(part: _Part | None) -> Any:
    """Return a hashable key that is equal for records with equal structure."""
    if part is None:
        return None
    if part.parts is None:
        return type(part.value), _text(part.value)
    return type(part.value), tuple((type(key), _text(key)) for key in part.keys), tuple(map(_key, part.parts))


def _rebuild(part: _Part | None, tensors: Iterable[Tensor]) -> Any:
    """Return a batch of one record from its nested structure and its tensors."""
    return _built(part, iter(tensors))


def _built(part: _Part | None, left: Iterator[Tensor]) -> Any:
    """Return a part of a record from its structure and the next tensors in ``left``."""
    if part is None:
        return next(left)
    if part.parts is None:
        return part.value
    kind, values = type(part.value), [_built(one, left) for one in part.parts]
    if isinstance(part.value, tuple | list):
        return kind(*values) if hasattr(kind, "_fields") else kind(values)
    if isinstance(part.value, dict):
        # A defaultdict becomes a dict: its default would be that of the first record.
        made = OrderedDict() if kind is OrderedDict else {}
        made.update(zip(part.keys, values, strict=True))
        return made
    if isinstance(part.value, UserDict):
        # Other attributes, such as the tokens of one record, are left out.
        return kind(dict(zip(part.keys, values, strict=True)))
    made = copy.copy(part.value)
    vars(made).update(zip(part.keys, values, strict=True))
    return made


# --- passes -----------------------------------------------------------------------------------------


def check_batch_norm(layers: Iterable[nn.Module]) -> None:
    """Raise an error for BatchNorm in training mode, which mixes the records of a batch."""
    for layer in layers:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training and layer.track_running_stats:
            kind, expected = type(layer).__name__, "one without BatchNorm in training mode"
            remedy = "replace it by nn.GroupNorm, or call eval() on it before make_private and before each step"
            raise InvalidParameterError("module", f"{kind} in training mode", expected, remedy)


class Recorder:
    """A runner of loss functions that stores per-example gradients in the trained tensors."""

    def __init__(self, module: nn.Module, trained: list[Trained]) -> None:
        self.module, self.trained = module, trained
        self.owners = {id(p): (t, p) for t in trained for p in t.parameters}
        self.parameters = [p for _, p in self.owners.values()]

    def begin(self, seed: np.random.SeedSequence) -> None:
        """Begin a step with a secret seed for the random numbers of the loss function.

        Raises :class:`InvalidParameterError` for hooks that see gradients before they are clipped, and for BatchNorm in
        training mode.
        """
        self.layers = [*self.module.modules()]
        self.check_layers()
        # The module may have been moved to another device since the last step.
        self.device, self.tensors = self.parameters[0].device, [*self.module.parameters(), *self.module.buffers()]
        self.devices = list(dict.fromkeys((torch.device("cpu"), *(t.device for t in self.tensors))))
        self.generators = [device_generator(device) for device in self.devices if device.type in STATE_BYTES]
        self.places: list[tuple[Any, str, Any]] = [
            (layer._parameters, key, p)
            for layer in self.layers
            for key, p in layer._parameters.items()
            if id(p) in self.owners
        ]
        seed_torch(self.devices, seed)
        # NumPy and Python start from this seed in every call of the loss function, so that no record changes the random
        # numbers of another one.
        self.seed, self.secret_seeds = int(seed.generate_state(1)[0]), self.seeds()

    def seeds(self) -> list[int]:
        """Return the current seeds of torch's generators on all devices of the module."""
        return [generator.initial_seed() for generator in self.generators]

    def has_drawn(self) -> bool:
        """Return whether the loss function may have drawn random numbers from torch."""
        pairs = zip(self.generators, self.states, strict=True)
        return self.has_rewound or any(not torch.equal(generator.get_state(), state) for generator, state in pairs)

    def clear(self) -> None:
        """Clear the gradients in the trained tensors."""
        for trained in self.trained:
            trained.clear()

    def losses(self, loss_fn: LossFunction, group: Group, *, one_by_one: bool = False) -> Tensor:
        """Return the loss of each record, and store per-example gradients in trained tensors.

        With ``one_by_one`` the group must be a single record, which is computed without ``vmap``.

        Raises:
            Split: The records take different branches.
            InvalidParameterError: The loss function stores a tensor, writes to the module, sets a seed, or does
                something else that could make it depend on several records.
            UnsupportedError: ``vmap`` cannot run the loss function.
        """
        # The function may write to its input, and a group that is divided is computed again.
        columns = tuple(column.to(self.device, non_blocking=True, copy=True) for column in group.columns)
        compute = self._one if one_by_one else self._all
        self.passes: list[Any] = []
        self.states, self.has_rewound = [generator.get_state() for generator in self.generators], False
        try:
            # A compiled function would mix the records.
            with (
                torch.enable_grad(), _unchanged(self.layers, self.tensors), _noting_rewinds(self),
                torch.compiler.set_stance("force_eager"),
            ):  # fmt: skip
                losses = compute(loss_fn, Group(columns, group.build, group.records))
        except BaseException as error:
            self.clear()
            unsupported = unsupported_by_vmap(error) if isinstance(error, Exception) and not one_by_one else None
            if unsupported is not None:
                raise unsupported from error
            raise
        if any(one.leaks() for one in self.passes):
            remedy = (
                "do not store tensors in lists, globals or closures, because a kept tensor could reach another record"
            )
            self._refuse("a tensor that is kept after the call", remedy)
        if self.has_rewound:
            remedy = "remove it, because random numbers that repeat depend on the place of a record in its batch"
            self._refuse("a call of fork_rng or set_rng_state", remedy)
        return losses

    def _all(self, loss_fn: LossFunction, group: Group) -> Tensor:
        """Return the losses of all records of a group, computed under ``vmap``."""
        records = group.records
        # Expanded views take no memory until a function without a rule uses them.
        self.copies = tuple(p.detach().expand(records, *p.shape).requires_grad_() for p in self.parameters)
        self.switch = torch.empty(records, 0, device=self.device, requires_grad=True)
        dims = (0,) * len(group.columns)
        losses = self.run(lambda *tensors: _scalar(loss_fn(group.build(tensors))), group.columns, dims)
        if losses.requires_grad:
            torch.autograd.backward(losses.sum(), inputs=[self.switch, *self.copies, *self.parameters])
        stray = [self.owners[id(p)][0].name for p in self.parameters if p.grad is not None]
        for p, one in zip(self.parameters, self.copies, strict=True):
            p.grad = None
            if one.grad is not None:
                self.owners[id(p)][0].add_whole(p, one.grad)
        self.copies = ()
        if stray:
            remedy = "use the tensor as an attribute of its module inside the function"
            self._refuse(f"a use of {stray[0]} past its module", remedy)
        return losses.detach()

    def run(self, function: Callable[..., Any], tensors: tuple[Tensor, ...], dims: tuple[int | None, ...]) -> Any:
        """Run a function of one record's tensors under ``vmap`` for all records.

        ``dims`` is 0 for a tensor with one row for each record, and None for a tensor that all records share.
        """

        @_NO_SAVED_TENSORS_HOOKS
        def one(tensors: tuple[Tensor, ...], switch: Tensor, copies: tuple[Tensor, ...]) -> Any:
            during = AllRecords(self, {}, self.switch, switch)
            during.copies = {id(c): self.owners[id(p)] for p, c in zip(self.parameters, copies, strict=True)}
            # Within a checkpoint the tensors may depend on random numbers.
            if not self.passes:
                during.note_inputs(tensors)
            during.computed_tensors += [ref(tensor) for tensor in tensors]
            self.passes.append(during)
            replacements = {id(p): c for p, c in zip(self.parameters, copies, strict=True)}
            seed_numpy_and_python(self.seed)
            with _replaced(self.places, replacements), during:
                out = function(*tensors)
            during.end()
            return out

        with _recomputing(self):
            mapped = torch.vmap(one, in_dims=(dims, 0, 0), randomness="different")
            return mapped(tensors, self.switch, self.copies)

    def _one(self, loss_fn: LossFunction, group: Group) -> Tensor:
        """Return the loss of the only record of a group, computed without ``vmap``."""
        tensors = [column[0] for column in group.columns]
        during = OneRecord(self, tensors)
        self.passes.append(during)
        seed_numpy_and_python(self.seed)
        with during, _without_checkpoints():
            loss = _scalar(loss_fn(group.build(tuple(tensors))))
        during.end()
        del tensors
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            for p, g in zip(self.parameters, gradients, strict=True):
                if g is not None:
                    self.owners[id(p)][0].add_whole(p, (g.to_dense() if g.is_sparse else g)[None])
        return loss.detach()[None]

    def check_layers(self) -> None:
        """Raise an error for hooks on gradients and for BatchNorm in training mode."""
        if any((nn.modules.module._global_backward_hooks, nn.modules.module._global_backward_pre_hooks)):
            self._refuse("global backward hooks", "remove them, because they see gradients before they are clipped")
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self.parameters):
            remedy = "remove it, or call register_step_pre_hook of the wrapped optimizer, which sees released gradients"
            actual = "a hook on the gradient of a trained tensor"
            raise InvalidParameterError("module", actual, "one without hooks on gradients", remedy)
        for layer in self.layers:
            kind = type(layer).__name__
            if layer._backward_hooks or layer._backward_pre_hooks:
                remedy = "remove it, because it sees gradients before they are clipped"
                raise InvalidParameterError(
                    "module", f"{kind} with a backward hook", "one without backward hooks", remedy
                )
        check_batch_norm(self.layers)

    def _refuse(self, what: str, remedy: str) -> None:
        self.clear()
        raise InvalidParameterError("loss_fn", what, "a function of one record alone", remedy)


def _scalar(loss: Any) -> Tensor:
    """Return a loss with one entry as a tensor without dimensions.

    Raises :class:`InvalidParameterError` for any other loss.
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"{type(loss).__name__}{f' of shape {tuple(loss.shape)}' if isinstance(loss, Tensor) else ''}"
        remedy = "return one number, with any reduction: the batch has one record"
        raise InvalidParameterError(
            "loss_fn", f"a function that returns {what}", "a function that returns the loss", remedy
        )
    return loss.reshape(())


@contextmanager
def _replaced(places: list[tuple[Any, str, Any]], replacements: dict[int, Tensor]) -> Iterator[None]:
    """Replace parameters of layers by other tensors in a ``with`` block.

    ``places`` has ``(table, key, parameter)`` for each parameter, which is at ``table[key]``. ``replacements`` maps the
    ``id`` of a parameter to the other tensor.
    """
    # Within a checkpoint the layers have the copies of the outer pass, which are restored.
    before = [table[key] for table, key, _ in places]
    for table, key, parameter in places:
        table[key] = replacements[id(parameter)]
    try:
        yield
    finally:
        for (table, key, _), tensor in zip(places, before, strict=True):
            table[key] = tensor


@contextmanager
def _unchanged(layers: list[nn.Module], tensors: list[Tensor]) -> Iterator[None]:
    """Restore the attributes and buffers of layers after a ``with`` block.

    Raises :class:`InvalidParameterError` if one of ``tensors`` was written in place.
    """
    # No call of the loss function may depend on an earlier one.
    before = [(layer, {**layer.__dict__}, {**layer._buffers}) for layer in layers]
    written = [(tensor, tensor._version) for tensor in tensors]
    try:
        yield
    finally:
        for layer, attributes, buffers in before:
            if layer.__dict__.keys() != attributes.keys():
                layer.__dict__.clear()
            layer.__dict__.update(attributes)
            if buffers or layer._buffers:
                layer._buffers.clear()
                layer._buffers.update(buffers)
    if any(tensor._version != version for tensor, version in written):
        remedy = "call eval() on the layer that writes it, or remove the write"
        what = "a forward pass that writes to a buffer or a parameter"
        raise InvalidParameterError("module", what, "unchanged by the forward pass", remedy)


@contextmanager
def _noting_rewinds(recorder: Any) -> Iterator[None]:
    """Set ``recorder.has_rewound`` if a ``with`` block sets a torch generator's state."""
    modules: tuple[Any, ...] = (torch, torch.random, torch.cuda, torch.cuda.random)
    places = [(module, module.set_rng_state) for module in modules]

    def noting(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        recorder.has_rewound = True
        original(*args, **kwargs)

    for module, original in places:
        module.set_rng_state = partial(noting, original)
    try:
        yield
    finally:
        for module, original in places:
            module.set_rng_state = original


# raises an error for hooks on the tensors that torch saves for the backward pass
_NO_SAVED_TENSORS_HOOKS = torch.autograd.graph.disable_saved_tensors_hooks(
    "vmap: hooks on saved tensors see all records at once. Remove them"
)


# --- checkpointing ----------------------------------------------------------------------------------


class _Recomputed(torch.autograd.Function):
    """A checkpointed part of the forward pass, computed again in the backward pass."""

    @staticmethod
    def forward(switch: Tensor, part: "_Checkpoint", dims: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        part.states = [generator.get_state() for generator in part.recorder.generators]
        outs = part.run(tensors, dims)
        return tuple(out.clone() if any(out is t for t in tensors) else out for out in outs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.part, ctx.dims, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # The part runs again with the same random numbers.
        needed = ctx.needs_input_grad[3:]
        tensors = [t.detach().requires_grad_(n) for t, n in zip(ctx.saved_tensors, needed, strict=True)]
        recorder = ctx.part.recorder
        now = [generator.get_state() for generator in recorder.generators]
        with torch.enable_grad():
            _set_states(recorder.generators, ctx.part.states)
            outs = ctx.part.run(tuple(tensors), ctx.dims)
            _set_states(recorder.generators, now)
        pairs = [(out, g) for out, g in zip(outs, grads, strict=True) if out.requires_grad]
        inputs = [recorder.switch, *recorder.copies, *(t for t in tensors if t.requires_grad)]
        torch.autograd.backward([out for out, _ in pairs], [g for _, g in pairs], inputs=inputs)
        return None, None, None, *(t.grad for t in tensors)

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: Any, switch: Tensor, part: "_Checkpoint", _: Any, *tensors: Tensor
    ) -> tuple[Any, Any]:
        moved = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims[3:], strict=True)]
        dims = tuple(None if d is None else 0 for d in in_dims[3:])
        outs: Any = _Recomputed.apply(switch, part, dims, *moved)
        return outs, (0,) * len(outs)


OWN_FUNCTIONS.add(_Recomputed)


def _set_states(generators: list[torch.Generator], states: list[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


class _Checkpoint:
    """A function under torch's ``checkpoint``, with its tensors and its other arguments."""

    def __init__(self, recorder: Recorder, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
        self.recorder, self.states = recorder, []
        self.out_spec: Any = None
        while isinstance(function, partial):
            function, args, kwargs = function.func, (*function.args, *args), {**function.keywords, **kwargs}
        leaves, self.spec = tree_flatten((args, kwargs))
        self.function, self.tensors = function, [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self.rest = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        self.autocast = torch.is_autocast_enabled(recorder.device.type), torch.get_autocast_dtype(recorder.device.type)

    def run(self, tensors: tuple[Tensor, ...], dims: tuple[Any, ...]) -> tuple[Tensor, ...]:
        def call(*tensors: Tensor) -> tuple[Any, ...]:
            left = iter(tensors)
            args, kwargs = tree_unflatten([next(left) if r is None else r[0] for r in self.rest], self.spec)
            out, self.out_spec = tree_flatten(self.function(*args, **kwargs))
            return tuple(out)

        enabled, dtype = self.autocast
        with torch.autocast(self.recorder.device.type, dtype=dtype, enabled=enabled):
            return self.recorder.run(call, tensors, dims)


@contextmanager
def _in_place_of_checkpoint(function: Callable[..., Any]) -> Iterator[None]:
    """Replace torch's ``checkpoint`` by ``function`` in a ``with`` block."""
    # torch calls the function in this attribute in place of checkpoint, with dynamo switched off.
    target: Any = torch.utils.checkpoint.checkpoint.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    before = getattr(target, "__dynamo_disable", None)
    target.__dynamo_disable = function
    try:
        yield
    finally:
        target.__dynamo_disable = before


# options of torch's checkpoint, which it does not pass to the function
_OPTIONS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


def _recomputing(recorder: Recorder) -> Any:
    """Return a context manager in which torch's ``checkpoint`` works under ``vmap``."""

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        part = _Checkpoint(recorder, function, args, {k: v for k, v in kwargs.items() if k not in _OPTIONS})
        tensors, part.tensors = part.tensors, []
        switches = recorder.passes[-1].switches
        return tree_unflatten([*_Recomputed.apply(switches, part, (), *tensors)], part.out_spec)  # pyright: ignore

    return _in_place_of_checkpoint(checkpoint)


def _without_checkpoints() -> Any:
    # The activations of one record take little memory, so nothing is computed again in the backward pass.

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **{k: v for k, v in kwargs.items() if k not in _OPTIONS})

    return _in_place_of_checkpoint(checkpoint)
