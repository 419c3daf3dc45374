"""Run a loss function on records under ``torch.vmap``, and store their gradients.

``torch.vmap`` calls the loss function with a batch of one record, so no record can see another one. Every trained
tensor of the module is replaced by an expanded view with one copy for each record, so that autograd computes the
gradient of each record.

Some operations, such as linear layers, do not need the copies. They have a rule in :data:`RULES`, which runs the
operation once for all records and stores ("captures") the factors of the gradients (:mod:`privproj.training.trained`).
"""

import gc
import types
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _dispatch_has_kernel_for_dispatch_key  # pyright: ignore[reportPrivateUsage]
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    TransformType,
    _add_batch_dim,
    _unwrap_batched,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    maybe_get_bdim,
)  # fmt: skip
from torch._functorch.autograd_function import custom_function_call
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError
from privproj.training.per_example import LookedUp
from privproj.training.trained import Trained

SPATIAL = {functional.conv1d: 1, functional.conv2d: 2, functional.conv3d: 3}  # number of spatial dimensions

# functions whose results a program may fill in place, so each record gets a result of its own
FILLED = {torch.zeros, torch.empty, torch.ones, torch.full}

TRUTH_VALUES = {Tensor.__bool__, torch.is_nonzero}  # functions that return the truth value of a tensor

# operations that access gradients of records, each with its description for the error message
GRADIENTS = {
    Tensor.register_hook: "a call of register_hook, which sees gradients before they are clipped",
    Tensor.retain_grad: "a call of retain_grad, which keeps gradients before they are clipped",
    Tensor.grad_fn.__get__: "a use of grad_fn, which sees gradients before they are clipped",  # pyright: ignore
    Tensor.backward: "a call of backward, which computes gradients before they are clipped",
}  # fmt: skip

# the functions that torch calls to read ``tensor.data`` and to assign to it
DATA: Any = Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]
SET_DATA: Any = Tensor.data.__set__  # pyright: ignore[reportAttributeAccessIssue]

# operators that write to their first argument; all others that do so have names that end in "_", such as ``add_``
IN_PLACE = {"__setitem__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}

# operations that show the values of several records, each with its description for the error message
PRINTED = {
    Tensor.__repr__: "a printed tensor, which shows the values of all records",
    Tensor.__format__: "a formatted tensor, which shows the values of all records",
}  # fmt: skip


class Split(BaseException):
    """Signal that records of a group take different branches of the loss function.

    ``values`` has the truth value of the branch condition for each record.
    """

    def __init__(self, values: list[bool]) -> None:
        super().__init__()
        self.values = values

    def parts(self) -> list[list[int]]:
        """Return the positions of the records with a false and with a true condition."""
        return [[i for i, value in enumerate(self.values) if value is branch] for branch in (False, True)]


class _Pass(TorchFunctionMode):
    """One call of the loss function, during which its torch functions are intercepted."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.errors: list[BaseException] = []
        self.computed_tensors: list[ref[Any]] = []
        self.is_running = True

    def check(self, func: Any, kwargs: dict[str, Any]) -> None:
        """Raise an error for seeds, generators and assignments to ``tensor.data``."""
        if self.recorder.seeds() != self.recorder.secret_seeds or kwargs.get("generator") is not None:
            remedy = "remove torch.manual_seed and generator= from it, because known random numbers reveal records"
            what = f"a seed or a generator of its own, seen at {getattr(func, '__name__', func)}"
            raise InvalidParameterError("loss_fn", what, "a function without seeds and generators", remedy)
        if func == SET_DATA:
            what, remedy = "an assignment to the data of a tensor", "assign a new tensor"
            raise InvalidParameterError("loss_fn", what, "a function of one record alone", remedy)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        try:
            return self.intercept(func, args, kwargs or {})
        except BaseException as error:
            # The loss function may catch the error, so it is also stored.
            self.errors.append(error)
            raise

    def intercept(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a torch function that the loss function calls, and return its result."""
        raise NotImplementedError

    def end(self) -> None:
        """End a call of the loss function, and raise errors that the function has caught."""
        self.is_running = False
        errors, self.errors = self.errors, []
        for error in errors:
            error.__traceback__ = None
            if isinstance(error, PrivprojError | Split):
                raise error
            self.check_caught(error)

    def check_caught(self, error: BaseException) -> None:
        """Check an error that the loss function caught; by default every one is allowed."""

    def leaks(self) -> bool:
        """Return whether a tensor computed from records is alive after the loss function."""
        if any(tensor() is not None for tensor in self.computed_tensors):
            gc.collect()
        return any(tensor() is not None for tensor in self.computed_tensors)


class OneRecord(_Pass):
    """A call of the loss function for a single record, without ``vmap``."""

    def __init__(self, recorder: Any, inputs: list[Tensor]) -> None:
        super().__init__(recorder)
        self.computed: dict[int, ref[Any]] = {}
        self.input_storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self.note(inputs)

    def note(self, out: Any) -> None:
        """Store weak references to tensors and arrays that were computed from the record."""
        for value in [out] if isinstance(out, np.ndarray) else _tensors(out):
            self.computed_tensors.append(ref(value))
            self.computed[id(value)] = self.computed_tensors[-1]

    def intercept(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a torch function that the loss function calls, and return its result."""
        self.check(func, kwargs)
        depends = any(
            (noted := self.computed.get(id(t))) is not None and noted() is t for t in _tensors((args, kwargs))
        )
        if func in GRADIENTS and depends:
            raise InvalidParameterError("loss_fn", GRADIENTS[func], "a function of one record", "remove it")
        # Writes to the result of detach count as writes to the tensor; those to its data would not.
        out = args[0].detach() if func == DATA else func(*args, **kwargs)
        if depends:
            self.note(args[0] if func is Tensor.__setitem__ else out)
            if _writes(func, kwargs):
                # The written tensor may be a view of a tensor that is still alive after the call.
                storages = [tensor.untyped_storage() for tensor in _tensors((args[:1], out))]
                self.computed_tensors += [ref(s) for s in storages if s.data_ptr() not in self.input_storages]
        return out


class AllRecords(_Pass):
    """A call of the loss function for all records of a group, under ``vmap``.

    Attributes:
        copies: Pairs of a :class:`Trained` and one of its parameters, keyed by the ``id`` of the tensor that replaces
            the parameter. The replacement has one copy for each record.
        switch: An empty tensor, records x 0. It requires a gradient, so that autograd runs the backward pass of
            captured operations.
        switches: ``switch`` as a batched tensor inside ``vmap``.
    """

    def __init__(
        self, recorder: Any, copies: dict[int, tuple[Trained, nn.Parameter]], switch: Tensor, switches: Tensor
    ) -> None:
        super().__init__(recorder)
        self.copies, self.switch, self.switches = copies, switch, switches
        self.plain: dict[int, ref[Tensor]] = {}

    def check_caught(self, error: BaseException) -> None:
        """Raise :class:`Split` to halve the group if only some records may cause ``error``.

        The loss function caught ``error``. If the function drew random numbers, :class:`UnsupportedError` is raised
        instead. Nothing is raised for a single record or for an error of ``vmap`` itself.
        """
        records = len(self.switch)
        if records == 1 or not isinstance(error, Exception) or unsupported_by_vmap(error) is not None:
            return
        if self.recorder.has_drawn():
            raise UnsupportedError(
                f"the loss function catches an error that some records may cause ({str(error)[:80]}), after it drew "
                "random numbers. Pass one_by_one=True to step_on, or remove the handler."
            )
        raise Split([record < records // 2 for record in range(records)])

    def intercept(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a torch function that the loss function calls, or its rule in :data:`RULES`."""
        self.check(func, kwargs)
        rule = RULES.get(func)
        out = NotImplemented if rule is None else rule(self, *args, **kwargs)
        if out is NotImplemented:
            out = self.call(func, args, kwargs)
        if self.plain and _writes(func, kwargs) and (_draws(func) or not self.is_plain((args, kwargs))):
            # Other tensors may be views of what was written.
            self.plain.clear()
        if isinstance(out, Tensor):
            if is_batchedtensor(out):
                self.computed_tensors.append(ref(out))
                if not out.is_floating_point() and self.is_plain((args, kwargs)) and not _draws(func):
                    self.plain[id(out)] = self.computed_tensors[-1]
        elif isinstance(out, tuple | list):
            self.computed_tensors += [ref(tensor) for tensor in _tensors(out) if is_batchedtensor(tensor)]
        return out

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run a torch function that has no rule in :data:`RULES`, and return its result.

        Raises an error if the loss function would see several records or their gradients.
        """
        if func in TRUTH_VALUES and is_batchedtensor(args[0]) and self.depth == 1:
            return self.truth_value(args[0], args)
        if func in GRADIENTS and is_batchedtensor(args[0]):
            raise InvalidParameterError("loss_fn", GRADIENTS[func], "a function of one record", "remove it")
        if func in PRINTED and is_batchedtensor(args[0]):
            remedy = "remove it, or pass one_by_one=True to step_on"
            raise InvalidParameterError("loss_fn", PRINTED[func], "a function of one record", remedy)
        if func is Tensor.requires_grad_ and is_batchedtensor(args[0]):
            # Checkpointing calls this if the first layers are frozen. Copies require a gradient anyway.
            return args[0]
        if func is torch.autograd.grad and not self.takes_gradients:
            remedy = "use torch.func.grad, or pass one_by_one=True to step_on"
            what = "a call of torch.autograd.grad, which sees the gradients of all records"
            raise InvalidParameterError("loss_fn", what, "a function of one record", remedy)
        if (
            func is custom_function_call
            and args[0] not in OWN_FUNCTIONS
            and args[0].vmap is not torch.autograd.Function.vmap
        ):
            actual, remedy = f"{args[0].__name__} with a vmap method", "set generate_vmap_rule = True instead"
            raise InvalidParameterError("loss_fn", actual, "a function of one record", remedy)
        # A custom operator has one overload, which is named default.
        operator = getattr(func, "default", None) if isinstance(func, OpOverloadPacket) else func
        if isinstance(operator, OpOverload) and operator.namespace not in OWN_RULES and _has_vmap_rule(operator):
            actual, remedy = f"{operator.name()} with register_vmap", "pass one_by_one=True to step_on"
            raise InvalidParameterError("loss_fn", actual, "a function of one record", remedy)
        if isinstance(func, types.FunctionType) and func in COMPOSED:
            with self:
                return COMPOSED[func](*args, **kwargs)
        out = func(*args, **kwargs)
        if func in FILLED and self.depth == 1:
            with temporarily_pop_interpreter_stack():
                out = out.expand(len(self.switch), *out.shape).contiguous()
            out = _add_batch_dim(out, 0, get_interpreter_stack()[0].level())
        return out

    @property
    def depth(self) -> int:
        """The number of function transforms, such as ``vmap``, around the current operation."""
        return len(get_interpreter_stack() or ())

    @property
    def takes_gradients(self) -> bool:
        """True if the current operation is within ``torch.func.grad`` or a similar transform."""
        return any(level.key() != TransformType.Vmap for level in get_interpreter_stack() or ())

    def note_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Store weak references to the input tensors of the records."""
        for tensor in tensors:
            self.computed_tensors.append(ref(tensor))
            self.plain[id(tensor)] = self.computed_tensors[-1]

    def is_plain(self, arguments: Any) -> bool:
        """Return whether no tensor in the arguments can depend on random numbers."""
        return all(
            # Either all records share the tensor, or it is in self.plain: a tensor of the records, or integers or truth
            # values that are computed without random numbers.
            not is_batchedtensor(t) or ((noted := self.plain.get(id(t))) is not None and noted() is t)
            for t in _tensors(arguments)
        )

    def truth_value(self, x: Tensor, of: Any) -> bool:
        """Return the truth value of a tensor if it is the same for all records.

        Otherwise this raises :class:`Split`, or :class:`UnsupportedError` if the truth value may depend on random
        numbers. ``of`` has the tensors that determine the truth value.
        """
        rows = get_unwrapped(x).detach().movedim(maybe_get_bdim(x), 0)
        rows = rows.reshape(len(rows), -1)
        if rows.shape[1] != 1:
            raise RuntimeError("the truth value of a tensor with several entries, or none, is ambiguous")
        values = (rows[:, 0] != 0).tolist()
        if any(values) == all(values):
            return values[0]
        # The parts draw other random numbers, so the branch of a record would depend on other records.
        if not self.is_plain(of) and self.recorder.has_drawn():
            raise UnsupportedError(
                "records of one shape take different branches on a value that may depend on random numbers, such as "
                "dropout. Pass one_by_one=True to step_on, which computes one record after another, or remove it."
            )
        raise Split(values)

    def matrix(self, weight: Any) -> Trained | None:
        """Return the trained matrix with the weight ``weight``, or None if there is none.

        The result is also None within ``torch.func.grad`` and similar transforms.
        """
        trained, parameter = self.copies.get(id(weight), (None, None))
        if trained is None or parameter is not trained.weight or not trained.is_matrix or self.takes_gradients:
            return None
        return trained

    def use(self, x: Tensor, forward: Callable[[Tensor], Tensor], keep: Callable[[Tensor, Tensor], None]) -> Tensor:
        """Return ``forward(x)`` for all records, and call ``keep`` in the backward pass.

        ``keep`` is called with ``x`` and the gradient of the result, records first.
        """

        def keep_after_pass(x: Tensor, g: Tensor) -> None:
            if self.is_running:
                what, remedy = "a backward pass in it", "use torch.func.grad, or pass one_by_one=True"
                raise InvalidParameterError("loss_fn", what, "a function that returns the loss", remedy)
            keep(x, g)

        if self.depth > 1:
            return _Kept.apply(forward(x), self.switches, x, keep_after_pass)  # pyright: ignore[reportReturnType]
        # The same without vmap, which takes ten times as long to call a Function.
        level = get_interpreter_stack()[0].level()
        x, dim = _unwrap_batched(x, level)
        with temporarily_pop_interpreter_stack():
            x = x.expand(len(self.switch), *x.shape) if dim is None else x.movedim(dim, 0)
            out = _keep_plainly(forward(x), self.switch, x, keep_after_pass)
        return _add_batch_dim(out, 0, level)

    def multiply(
        self, x: Tensor, trained: Trained, bias: Any, forward: Callable[[Tensor, Any], Tensor],
        factors: Callable[[Tensor, Tensor, float | None], tuple[Tensor, Tensor]], channels_at: int = -1,
    ) -> Tensor:  # fmt: skip
        """Multiply ``x`` by a trained matrix, add a bias, and capture the matrix's gradient.

        ``forward`` computes the result from ``x`` and a bias or None. ``factors`` returns the two factors of the
        matrix's gradient, each records x tokens x width, from ``x``, the gradient of the result and the constant in the
        input column of the bias. The result has one bias for each index of its dimension ``channels_at``.
        """
        owner, parameter = self.copies.get(id(bias), (None, None))
        is_own = owner is trained
        is_frozen = bias is None or not (is_batchedtensor(bias) or bias.requires_grad)
        inside = parameter.detach() if is_own and parameter is not None else bias if is_frozen else None
        # The bias input is 1 for the trained bias, 0 for another bias, None if the matrix has no trained bias.
        ones = None if trained.bias is None else float(is_own)
        out = self.use(x, lambda x: forward(x, inside), lambda x, g: trained.keep(*factors(x, g, ones)))
        return out if is_own or is_frozen else out + bias.reshape(-1, *[1] * (-1 - channels_at))  # pyright: ignore


class _Kept(torch.autograd.Function):
    """The identity function, with a callback that gets the gradient in the backward pass."""

    @staticmethod
    def forward(out: Tensor, switch: Tensor, x: Tensor, keep: Callable[..., None]) -> Tensor:
        # A new tensor, because the loss function may write to it.
        return torch.ops.aten._unsafe_view(out, out.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, x, ctx.keep = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            ctx.keep(x, g)
        return g, None, None, None

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: Any, out: Tensor, switch: Tensor, x: Tensor, keep: Callable[..., None]
    ) -> tuple[Any, int]:
        dims = zip((out, switch, x), in_dims[:3], strict=True)
        moved = [t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in dims]
        return _Kept.apply(*moved, keep), 0


# ``_Kept.apply`` for calls outside of function transforms, which is faster
_keep_plainly: Any = super(torch.autograd.Function, _Kept).apply  # pyright: ignore


OWN_RULES = {"aten", "prims", "higher_order"}  # namespaces of operators whose rules for ``vmap`` are part of torch

OWN_FUNCTIONS: set[Any] = {_Kept}  # functions of this package, whose ``vmap`` methods keep records apart


def _writes(func: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a torch function writes to an argument, by its name and options."""
    name = getattr(func, "__name__", "")
    return name in IN_PLACE or (name.endswith("_") and not name.endswith("__")) or "out" in kwargs


def _has_vmap_rule(operator: OpOverload) -> bool:
    return _dispatch_has_kernel_for_dispatch_key(operator.name(), "FuncTorchBatched")


def _draws(func: Any) -> bool:
    """Return whether a torch function draws random numbers, according to its name."""
    name = getattr(func, "__name__", "")
    return any(word in name for word in ("rand", "bernoulli", "multinomial", "poisson", "geometric", "dropout"))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(part)]
    return [tensor for part in value.values() for tensor in _tensors(part)] if isinstance(value, dict) else []


# --- the functions that multiply by a matrix --------------------------------------------------------


def _tokens(x: Tensor, g: Tensor, ones: float | None) -> tuple[Tensor, Tensor]:
    """Return output gradients and inputs of a layer, each records x tokens x width.

    Unless ``ones`` is None, the inputs get one more column with this value, for the bias.
    """
    x = x.reshape(len(x), -1, x.shape[-1])
    return g.reshape(len(g), -1, g.shape[-1]), x if ones is None else functional.pad(x, (0, 1), value=ones)


def _linear(during: AllRecords, input: Tensor, weight: Tensor, bias: Any = None) -> Any:
    """Return the output of a linear layer, and capture the factors of its gradients."""
    trained = during.matrix(weight)
    if trained is None or trained.is_transposed or weight.dim() != 2:
        return NotImplemented
    matrix = trained.weight.detach()
    return during.multiply(input, trained, bias, lambda x, b: functional.linear(x, matrix, b), _tokens)


def _addmm(during: AllRecords, input: Tensor, mat1: Tensor, mat2: Tensor, **scales: Any) -> Any:
    """Run ``addmm`` of a ``transformers.Conv1D``, and capture the factors of its gradients."""
    trained = during.matrix(mat2)
    if trained is None or not trained.is_transposed or scales:
        return NotImplemented
    matrix = trained.weight.detach().T
    return during.multiply(mat1, trained, input, lambda x, b: functional.linear(x, matrix, b), _tokens)


def _embedding(
    during: AllRecords, input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: Any = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    """Return the output of an embedding layer, and capture the factors of its gradients."""
    if id(weight) not in during.copies:
        return NotImplemented
    trained = during.matrix(weight)
    if max_norm is not None or scale_grad_by_freq or trained is None:
        option, remedy = "torch.func.grad around it", "pass one_by_one=True to step_on"
        if scale_grad_by_freq:
            option, remedy = "scale_grad_by_freq", "remove this option, or pass one_by_one=True to step_on"
        if max_norm is not None:
            option, remedy = "max_norm", "remove this option, because it writes to the weight"
        raise InvalidParameterError("module", f"an embedding with {option}", "one with plain embeddings", remedy)
    padding, matrix = None if padding_idx is None else padding_idx % len(weight), trained.weight.detach()

    def keep(ids: Tensor, g: Tensor) -> None:
        rows, g = ids.reshape(len(ids), -1).long(), g.reshape(len(g), -1, g.shape[-1])
        if padding is not None:
            g = g.masked_fill((rows == padding)[:, :, None], 0.0)
        g = g if trained.bias is None else functional.pad(g, (0, 1))
        # Row i of the table is the product with the unit vector e_i.
        trained.keep(LookedUp(g.new_zeros(len(g), 0, len(matrix)), rows), g)

    return during.use(input, lambda ids: functional.embedding(ids, matrix), keep)


def _convolution(convolution: Callable[..., Tensor], dimensions: int) -> Callable[..., Any]:
    """Return a rule that runs a convolution and captures the factors of its gradients."""

    def rule(
        during: AllRecords, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        trained = during.matrix(weight)
        if trained is None or groups != 1:
            return NotImplemented
        matrix, sizes = trained.weight.detach(), trained.weight.shape[2:]
        strides, dilations = (_each(value, dimensions) for value in (stride, dilation))

        def forward(x: Tensor, b: Any) -> Tensor:
            images = x.reshape(-1, *x.shape[-dimensions - 1 :])
            out = convolution(images, matrix, b, stride, padding, dilation)
            return out.reshape(*x.shape[: -dimensions - 1], *out.shape[1:])

        def factors(x: Tensor, g: Tensor, ones: float | None) -> tuple[Tensor, Tensor]:
            images = x.reshape(-1, *x.shape[-dimensions - 1 :])
            windows = functional.pad(images, _margins(padding, sizes, dilations))
            for axis, (side, step, every) in enumerate(zip(sizes, dilations, strides, strict=True), 2):
                windows = windows.unfold(axis, step * (side - 1) + 1, every)[..., ::step]
            # The windows are written once, next to the ones. With the positions last, whole rows of an image are copied
            # at a time.
            windows = windows.permute(0, 1, *range(2 + dimensions, 2 + 2 * dimensions), *range(2, 2 + dimensions))
            width, positions = matrix[0].numel(), windows.shape[-dimensions:].numel()
            columns = x.new_empty(len(images), width + (ones is not None), positions)
            columns[:, :width].view(windows.shape).copy_(windows)
            if ones is not None:
                columns[:, width] = ones
            g = g.reshape(len(images), len(matrix), positions).mT
            return g.reshape(len(x), -1, len(matrix)), columns.mT.reshape(len(x), -1, columns.shape[1])

        return during.multiply(input, trained, bias, forward, factors, -dimensions - 1)

    return rule


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    return (value,) * dimensions if isinstance(value, int) else tuple(value) * (dimensions // len(value))


def _added(padding: Any, sizes: Any, dilations: tuple[int, ...]) -> tuple[int, ...]:
    """Return the total padding of a convolution in each dimension, over both sides."""
    if padding == "same":
        return tuple(step * (side - 1) for side, step in zip(sizes, dilations, strict=True))
    return (0,) * len(sizes) if padding == "valid" else tuple(2 * one for one in _each(padding, len(sizes)))


def _margins(padding: Any, sizes: Any, dilations: tuple[int, ...]) -> list[int]:
    """Return the padding of a convolution in the form that ``functional.pad`` takes."""
    added = reversed(_added(padding, sizes, dilations))
    return [side for both in added for side in (both // 2, both - both // 2)]


def _attention(
    during: AllRecords, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Return scaled dot-product attention for all records under ``vmap``."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        # vmap decomposes the function before autocast applies, so the arguments are converted here.
        query, key, value = (part.to(torch.get_autocast_dtype(kind)) for part in (query, key, value))
    learns_mask = attn_mask is not None and is_batchedtensor(attn_mask) and get_unwrapped(attn_mask).requires_grad
    # vmap would select a kernel without a gradient of the mask.
    with sdpa_kernel(SDPBackend.MATH) if learns_mask else nullcontext():
        return functional.scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs)


def _equal(during: AllRecords, input: Tensor, other: Tensor) -> Any:
    """Return whether two tensors are equal; all records must agree."""
    if input.shape != other.shape or not (is_batchedtensor(input) or is_batchedtensor(other)) or during.depth > 1:
        return NotImplemented
    return during.truth_value((input == other).all(), (input, other))


def _contains(during: AllRecords, input: Tensor, element: Any) -> Any:
    """Return whether a tensor contains a value; all records must agree."""
    if not is_batchedtensor(input) or during.depth > 1:
        return NotImplemented
    return during.truth_value((input == element).any(), (input, element))


# Functions that torch does not run under vmap in the usual way, each with its rule. If a rule returns NotImplemented,
# the function runs in the usual way.
RULES: dict[Any, Callable[..., Any]] = {
    functional.linear: _linear, torch.addmm: _addmm, functional.embedding: _embedding,
    functional.scaled_dot_product_attention: _attention, torch.equal: _equal,
    Tensor.__contains__: _contains,
    torch._is_all_true: lambda during, input: input.all(),  # pyright: ignore[reportPrivateImportUsage]
    torch._is_any_true: lambda during, input: input.any(),  # pyright: ignore[reportPrivateImportUsage]
    Tensor._is_all_true: lambda during, input: input.all(),
    Tensor._is_any_true: lambda during, input: input.any(),
    **{function: _convolution(function, dimensions) for function, dimensions in SPATIAL.items()},
}  # fmt: skip


def _without_overrides(function: Any) -> Any:
    """Return a copy of a torch function that does not call ``__torch_function__`` itself."""
    # Interception then applies to the functions that the copy calls.
    names = {**function.__globals__, "has_torch_function": lambda *_: False}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# functions of torch that call others, some of which multiply by a matrix; capturing the inner calls saves time and
# memory
COMPOSED = {
    functional.multi_head_attention_forward: _without_overrides(functional.multi_head_attention_forward),
}  # fmt: skip


def unsupported_by_vmap(error: Exception) -> UnsupportedError | None:
    """Return an :class:`UnsupportedError` for an error of ``vmap``; None for other errors."""
    first = str(error).strip().removeprefix("vmap: ").partition("\n")[0]
    text = ". ".join(first.split(". ")[:2]).rstrip(".")
    signs = (
        "vmap",
        "Batching rule",
        "functorch",
        "BatchedTensor",
        "function transforms",
        "have storage",
        "broadcast shape",
    )
    if not isinstance(error, RuntimeError | NotImplementedError) or not any(sign in str(error) for sign in signs):
        return None
    return UnsupportedError(
        f"torch.vmap cannot run the loss function for several records at once: {text[:200]}. Pass one_by_one=True to "
        "step_on, which computes one record after another, or replace the operation."
    )
