"""Quiet computation: dropout and other random functions of torch do nothing, so that two passes can be compared."""

import inspect
import math
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from privproj.training.generators import CPU, unchanged_numbers

_IDENTITIES = {
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout,
    functional.feature_alpha_dropout, torch.dropout, torch.alpha_dropout, torch.feature_dropout,
    torch.feature_alpha_dropout, torch.dropout_, torch.alpha_dropout_, torch.feature_dropout_,
    torch.feature_alpha_dropout_,
}  # fmt: skip
"""Functions that are replaced by their first argument. Contract with torch."""

MOST_DRAWS = 10_000
"""Calls of random functions after which they draw again, so that a loop that waits for a draw ends. Contract."""

_PLACE_OF_DROPOUT = 4
"""The place of ``dropout_p`` among the arguments of scaled dot product attention. Contract with torch."""


class Draw:
    """What random functions return while they are quiet: everywhere the value that their distribution has at a level.

    ``level`` is the probability of smaller values, above 0 and below 1. Other levels take other branches of code such
    as ``if torch.rand(1) < 0.3``, and noise keeps the size that it is drawn with.
    """

    def __init__(self, level: float) -> None:
        self.level, self.normal, self.calls = level, NormalDist().inv_cdf(level), 0

    def uniform(self, args: tuple, kwargs: dict) -> Any:
        """The value of ``Tensor.uniform_``."""
        low, high = _given(args, kwargs, 1, "from", 0.0), _given(args, kwargs, 2, "to", 1.0)
        return low + self.level * (high - low)

    def gaussian(self, args: tuple, kwargs: dict, first: int = 1) -> Any:
        """The value of ``Tensor.normal_``, and of ``torch.normal`` with ``first=0``."""
        mean, std = _given(args, kwargs, first, "mean", 0.0), _given(args, kwargs, first + 1, "std", 1.0)
        return mean + self.normal * (std if isinstance(std, float | int | Tensor) else 1.0)

    def exponential(self, args: tuple, kwargs: dict) -> float:
        """The value of ``Tensor.exponential_``."""
        return -math.log1p(-self.level) / _given(args, kwargs, 1, "lambd", 1.0)

    def chance(self, args: tuple, kwargs: dict) -> Any:
        """The value of ``Tensor.bernoulli_``."""
        return _above(_given(args, kwargs, 1, "p", 0.5), self.level)

    def chances(self, args: tuple, kwargs: dict) -> Any:
        """The value of ``torch.bernoulli`` and ``Tensor.bernoulli``."""
        own = args[0] if args else kwargs["input"]
        return _above(_given(args, kwargs, 1, "p", own), self.level)

    def whole(self, args: tuple, kwargs: dict) -> int:
        """The value of ``torch.randint`` and ``torch.randint_like``."""
        bounds = [value for value in args if isinstance(value, int)][:2]
        low = bounds[0] if len(bounds) > 1 else kwargs.get("low", 0)
        high = bounds[-1] if bounds else kwargs["high"]
        return low + math.floor(self.level * (high - low))


_DRAWN: dict[Callable[..., Any], Callable[[Draw, tuple, dict], Any]] = {
    torch.rand: lambda draw, args, kwargs: draw.level, torch.rand_like: lambda draw, args, kwargs: draw.level,
    torch.randn: lambda draw, args, kwargs: draw.normal, torch.randn_like: lambda draw, args, kwargs: draw.normal,
    torch.normal: lambda draw, args, kwargs: draw.gaussian(args, kwargs, 0),
    torch.randint: Draw.whole, torch.randint_like: Draw.whole, Tensor.uniform_: Draw.uniform,
    Tensor.normal_: Draw.gaussian, Tensor.exponential_: Draw.exponential, Tensor.bernoulli_: Draw.chance,
    torch.bernoulli: Draw.chances, Tensor.bernoulli: Draw.chances,
}  # fmt: skip
"""Random functions and the value that stands for everything they draw. Contract with torch."""


class _Constant(TorchFunctionMode):
    """Replaces what dropout and random functions return, and notes the types of all results."""

    def __init__(self, types: set[torch.dtype], draw: Draw) -> None:
        super().__init__()
        self.types, self.draw = types, draw

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return _quiet_backward(args[0], self.types, self.draw)
        if func in _IDENTITIES:
            return args[0] if args else kwargs["input"]
        self.draw.calls += func in _DRAWN
        if func in _DRAWN and self.draw.calls <= MOST_DRAWS:
            value = _DRAWN[func](self.draw, args, kwargs)
            with torch.no_grad():
                found = func(*args, **kwargs)
                return found.copy_(value) if isinstance(value, Tensor) else found.fill_(value)
        if func in _WITHOUT_NOISE:
            return _WITHOUT_NOISE[func](func, *args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            args, kwargs = args[:_PLACE_OF_DROPOUT] + (0.0,) * (len(args) > _PLACE_OF_DROPOUT) + args[5:], dict(kwargs)
            kwargs |= {} if len(args) > _PLACE_OF_DROPOUT else {"dropout_p": 0.0}
        if func is functional.multi_head_attention_forward:
            given = inspect.signature(func).bind(*args, **kwargs)
            given.arguments["dropout_p"] = 0.0
            args, kwargs = given.args, given.kwargs
        found = func(*args, **kwargs)
        if isinstance(found, Tensor):
            self.types.add(found.dtype)
        return found


def _given(args: tuple, kwargs: dict, place: int, name: str, otherwise: Any) -> Any:
    """An argument by its place or its name, or what stands for it where it is not given."""
    found = args[place] if len(args) > place else kwargs.get(name)
    return otherwise if found is None or isinstance(found, torch.Generator | tuple | list) else found


def _above(chance: Any, level: float) -> Any:
    """1 where a probability is above a level, 0 elsewhere, as a number or a tensor."""
    return (chance > level).to(torch.float32) if isinstance(chance, Tensor) else float(chance > level)


def _gumbel(_: Any, logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A softmax in place of one with Gumbel noise."""
    soft = (logits / tau).softmax(dim)
    if not hard:
        return soft
    one = torch.zeros_like(logits).scatter_(dim, soft.max(dim, keepdim=True).indices, 1.0)
    return one - soft.detach() + soft


def _leaky(
    _: Any, input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """A leaky ReLU in place of one with a random slope."""
    return functional.leaky_relu(input, (lower + upper) / 2.0)


def _pooled(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Fractional pooling with fixed places."""
    sides = 3 if "3d" in func.__name__ else 2
    lead = tuple(input.shape[:-sides]) if input.dim() == sides + 2 else (1, input.shape[0])
    # The samples are the fifth argument behind the input.
    return func(input, *args[:4], **{**kwargs, "_random_samples": input.new_full((*lead, sides), 0.5)})


def _likeliest(func: Any, input: Tensor, num_samples: int, *args: Any, **kwargs: Any) -> Tensor:
    """The likeliest numbers in place of drawn ones."""
    order = torch.sort(input, dim=-1, descending=True, stable=True).indices
    return order[..., torch.arange(num_samples, device=input.device) % input.shape[-1]]


def _in_order(func: Any, n: int, *args: Any, **kwargs: Any) -> Tensor:
    """An order of so many numbers that is the same each time, and none that leaves all in place."""
    order = random.Random(n).sample(range(n), n)
    order = order[1:] + order[:1] if order == sorted(order) else order
    return func(n, *args, **kwargs).copy_(torch.tensor(order, dtype=torch.long))


_torch: Any = torch
_functional: Any = functional

_WITHOUT_NOISE: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.gumbel_softmax: _gumbel, functional.rrelu: _leaky, torch.rrelu: _leaky, torch.multinomial: _likeliest,
    Tensor.multinomial: _likeliest, functional.fractional_max_pool2d_with_indices: _pooled,
    functional.fractional_max_pool3d_with_indices: _pooled, _functional._fractional_max_pool2d: _pooled,
    _functional._fractional_max_pool3d: _pooled, functional.fractional_max_pool2d: _pooled,
    functional.fractional_max_pool3d: _pooled, torch.randperm: _in_order,
    torch.poisson: lambda _, input, *args, **kwargs: input.round(),
    _torch._standard_gamma: lambda _, input, *args, **kwargs: input.clone(),
    _torch._sample_dirichlet: lambda _, input, *args, **kwargs: input / input.sum(-1, keepdim=True),
}  # fmt: skip
"""Random functions that are computed without their randomness. Contract with torch."""


def _quiet_backward(total: Tensor, types: set[torch.dtype], draw: Draw) -> None:
    """A backward pass during which recomputed parts of the forward pass are quiet too.

    Torch takes a mode off while it handles a call. Here it is on again when the pass begins, which hands it on.
    """
    one = torch.ones_like(total)
    with _Constant(types, draw):
        engine: Any = torch.autograd.Variable._execution_engine
        engine.run_backward((total,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)


@contextmanager
def quiet(module: nn.Module, level: float | None = 0.5) -> Iterator[set[torch.dtype]]:
    """Switch off all randomness of a module that torch can be told to switch off, and leave its generators untouched.

    Modules stay in their mode, so that what they do in training only is still done. Compiled code runs uncompiled.
    Random functions return what their distribution has at ``level``, and the set that is given has the types of all
    results so far. Without a level neither is so: that is cheaper, and enough where nothing is drawn.
    """
    recurrent = [(part, part.dropout) for part in module.modules() if isinstance(part, nn.RNNBase)]
    with ExitStack() as stack:
        stack.enter_context(unchanged_numbers(next((p.device for p in module.parameters()), CPU)))
        if hasattr(torch.compiler, "set_stance"):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for part, chance in recurrent:
            part.dropout = 0.0
            stack.callback(setattr, part, "dropout", chance)
        types: set[torch.dtype] = set()
        if level is not None:
            stack.enter_context(_Constant(types, Draw(level)))
        yield types
