"""Quiet computation: dropout and other random functions of torch do nothing, so that two passes can be compared.

What is drawn from a known seed is refused: one record more or less would change which of these numbers others take.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from privproj.errors import InvalidParameterError
from privproj.training.generators import CPU, unchanged_numbers

_DROPOUTS = {
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout,
    functional.feature_alpha_dropout, torch.dropout, torch.alpha_dropout, torch.feature_dropout,
    torch.feature_alpha_dropout, torch.dropout_, torch.alpha_dropout_, torch.feature_dropout_,
    torch.feature_alpha_dropout_,
}  # fmt: skip
"""Functions that are replaced by their first argument, or by a multiple of each record's. Contract with torch."""

DROPPING = (nn.RNNBase, nn.MultiheadAttention)
"""Layers that drop within, at the rate of their attribute ``dropout``. Contract with torch."""

MOST_DRAWS = 10_000
"""Calls of random functions after which they draw again, so that a loop that waits for a draw ends. Contract."""


def _uniform(level: Tensor, tensor: Any, low: float = 0.0, high: float = 1.0, **named: Any) -> Tensor:
    """The value of ``Tensor.uniform_``, of which the bounds may be named ``from`` and ``to``."""
    low, high = named.get("from", low), named.get("to", high)
    return low + level * (high - low)


def _gaussian(level: Tensor, mean: Any = 0.0, std: Any = 1.0, *_: Any, **__: Any) -> Tensor:
    """The value of ``torch.normal``."""
    return mean + torch.special.ndtri(level) * std


def _above(level: Tensor, chance: Any) -> Tensor:
    """1 where a probability is above a level, 0 elsewhere."""
    return (level < chance).to(torch.float32)


def _integer(level: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The value of ``torch.randint`` and ``torch.randint_like``."""
    bounds = [value for value in args if isinstance(value, int)][:2]
    low = bounds[0] if len(bounds) > 1 else kwargs.get("low", 0)
    high = bounds[-1] if bounds else kwargs["high"]
    return low + (level * (high - low)).floor()


_DRAWN: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys((torch.rand, torch.rand_like), lambda level, *_, **__: level),
    **dict.fromkeys((torch.randn, torch.randn_like), lambda level, *_, **__: _gaussian(level)),
    **dict.fromkeys((torch.randint, torch.randint_like), _integer),
    **dict.fromkeys(
        (torch.bernoulli, Tensor.bernoulli), lambda level, input, p=None, **_: _above(level, input if p is None else p)
    ),
    torch.normal: _gaussian, Tensor.normal_: lambda level, tensor, *args, **named: _gaussian(level, *args, **named),
    Tensor.uniform_: _uniform, Tensor.bernoulli_: lambda level, tensor, p=0.5, **_: _above(level, p),
    Tensor.exponential_: lambda level, tensor, lambd=1.0, **_: -torch.log1p(-level) / lambd,
    Tensor.geometric_: lambda level, tensor, p, **_: (torch.log1p(-level) / math.log1p(-min(p, 1.0 - 1e-9))).ceil(),
    Tensor.log_normal_: lambda level, tensor, mean=1.0, std=2.0, **_: _gaussian(level, mean, std).exp(),
    Tensor.cauchy_: lambda level, tensor, median=0.0, sigma=1.0, **_: (
        median + sigma * torch.tan(math.pi * (level - 0.5))
    ),
    Tensor.random_: lambda level, tensor, *bounds, **_: _integer(level, *bounds, high=2**24),
}  # fmt: skip
"""Random functions and the value that stands for everything they draw: the one that their distribution has at a level.

The level is the probability of smaller values, above 0 and below 1. Other levels take other branches of code such as
``if torch.rand(1) < 0.3``, and noise keeps the size that it is drawn with. Contract with torch."""


class Still(TorchFunctionMode):
    """Replaces what dropout and random functions return, and notes the types of all results.

    Where ``apart`` is True each record has draws of its own, the same in every pass that makes as many. Which draws
    have a row for each record is told by the first two ``passes``, over one record and then over all. Draws from a
    known seed are refused, unless it ``takes_seeds``: then they are what they are.
    """

    def __init__(self, level: float, *, takes_seeds: bool = False) -> None:
        super().__init__()
        self.level, self.calls, self.takes_seeds = level, 0, takes_seeds
        self.types: set[torch.dtype] = set()
        self.apart = False
        self.passes: list[list[bool]] = []
        self.drawn: dict[bytes, int] = {}
        self.rows: Sequence[int] = ()
        self.by_row: list[bool] = []
        self.begin(())

    def begin(self, rows: Sequence[int]) -> None:
        """Let a pass over these records begin."""
        self.rows, self.by_row, self.drawn = rows, [], {}
        # Kept in every state that comes of it: another one is of a seed within the pass, or of a state from before.
        self.seed: int | None = torch.seed()
        # Those that had a row for each record in the first two passes.
        self.always_by_row = [all(draws) for draws in zip(*self.passes[:2], strict=False)]

    def levels(self, draw: Tensor) -> Tensor | None:
        """A level for each record, where a draw of this shape has a row for each; else None."""
        # A pass that is recomputed on the way back begins from the state that it had, and makes the same draws.
        state = torch.get_rng_state().numpy().tobytes()
        number = self.drawn.setdefault(state, len(self.by_row))
        torch.rand(())
        has_rows = draw.dim() > 0 and len(draw) == len(self.rows)
        if number == len(self.by_row):
            self.by_row.append(has_rows)
        if not (self.apart and has_rows and any(self.always_by_row[number : number + 1])):
            return None
        # The golden section keeps the levels of records apart, and pi those of one record's draws.
        levels = [math.modf(self.level + 0.6180339887 * (row + 1) + math.pi * number)[0] for row in self.rows]
        return torch.tensor(levels, device=draw.device).view(-1, *(1,) * (draw.dim() - 1)).clamp(0.001, 0.999)

    def scaled(self, func: Any, input: Tensor, p: float = 0.5, training: bool = True, *args: Any, **named: Any) -> Any:
        """What dropout gives: its argument times a number of its rate, and of each record where draws are by record."""
        training = named.pop("train", training)
        if not training or p == 0.0:
            return input
        if self.is_seeded():
            return func(input, p, training, *args, **named)
        levels = self.levels(input)
        # One for all has that shape too: what recomputes a pass looks at the tensors that it saves.
        ones = input.new_ones(tuple(input.shape[:1]) + (1,) * (input.dim() - 1))
        return input * (ones if levels is None else (0.9 + 0.2 * levels).to(input.dtype)) * self.seen_rate(p)

    def attended(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any,
        **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        """Attention without its dropout, times a number that its rate says."""
        rate = dropout_p if dropout_p and self.is_seeded() else 0.0
        attention = functional.scaled_dot_product_attention(query, key, value, attn_mask, rate, *args, **kwargs)
        return attention * self.seen_rate(dropout_p)

    def is_seeded(self) -> bool:
        """True where what is drawn now is of a known seed, and may be; raises where it may not be.

        That is a seed within the pass, or a state of before it.
        """
        is_seeded = self.seed is not None and torch.initial_seed() != self.seed
        if is_seeded and not self.takes_seeds:
            refuse_public_seed()
        return is_seeded

    def before_layer(self, layer: nn.Module, *_: Any) -> None:
        """Refuse numbers of a known seed in a layer that drops within."""
        if layer.training:
            self.is_seeded()

    def seen_rate(self, p: float) -> float:
        """A number that tells rates of dropout apart, for one may depend on the batch; 1 where calls may be counted."""
        return 1.0 + 0.1 * p if self.apart else 1.0

    def passed_back(
        self, output: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False,
        inputs: Any = None,
    ) -> None:  # fmt: skip
        """Go back from an output as ``Tensor.backward`` does, with recomputed parts of the forward pass quiet too.

        Torch takes a mode off while it handles a call. Here it is on again when the pass begins, which hands it on.
        """
        engine: Any = torch.autograd.Variable._execution_engine
        gradients = (torch.ones_like(output) if gradient is None else gradient,)
        keeps = bool(create_graph if retain_graph is None else retain_graph)
        leaves = () if inputs is None else (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        ways: dict[str, bool] = {"allow_unreachable": True, "accumulate_grad": True}
        with self:
            engine.run_backward((output,), gradients, keeps, bool(create_graph), leaves, **ways)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return self.passed_back(*args, **kwargs)
        # Numbers of a generator of the loop's own stay what they are: other ones in every pass.
        if kwargs.get("generator") in (None, torch.default_generator):
            if func in _DROPOUTS:
                return self.scaled(func, *args, **kwargs)
            if func is functional.scaled_dot_product_attention:
                return self.attended(*args, **kwargs)
            if (func in _DRAWN or func in _WITHOUT_NOISE) and self.is_seeded():
                return func(*args, **kwargs)
            self.calls += func in _DRAWN
            if func in _DRAWN and self.calls <= MOST_DRAWS:
                with torch.no_grad():
                    draw = func(*args, **kwargs)
                    levels = self.levels(draw)
                    level = torch.tensor(self.level, device=draw.device) if levels is None else levels
                    return draw.copy_(_DRAWN[func](level, *args, **kwargs))
            if func in _WITHOUT_NOISE:
                return _WITHOUT_NOISE[func](func, *args, **kwargs)
        output = func(*args, **kwargs)
        if isinstance(output, Tensor):
            self.types.add(output.dtype)
        return output


def refuse_public_seed() -> NoReturn:
    """Refuse random numbers that are known: a record more would change what the others draw."""
    expected = "a function that draws random numbers from the secret seed only"
    remedy = (
        "remove the call, or use strict=True. To repeat draws, call torch.get_rng_state before them and "
        "torch.set_rng_state after them"
    )
    raise InvalidParameterError("loss_fn", "torch.manual_seed or another known generator state", expected, remedy)


def _gumbel(_: Any, logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A softmax in place of one with Gumbel noise; its largest entry alone where it is ``hard``."""
    soft = (logits / tau).softmax(dim)
    if not hard:
        return soft
    one = torch.zeros_like(logits).scatter_(dim, soft.max(dim, keepdim=True).indices, 1.0)
    return one - soft.detach() + soft


def _pooled(func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Fractional pooling with fixed places."""
    sides = 3 if "3d" in func.__name__ else 2
    lead = tuple(input.shape[:-sides]) if input.dim() == sides + 2 else (1, input.shape[0])
    # The samples are the fifth argument behind the input.
    return func(input, *args[:4], **{**kwargs, "_random_samples": input.new_full((*lead, sides), 0.5)})


def _likeliest(func: Any, input: Tensor, num_samples: int, *args: Any, **kwargs: Any) -> Tensor:
    """The likeliest numbers in place of drawn ones; of several from one law the second likeliest is first."""
    order = torch.sort(input, dim=-1, descending=True, stable=True).indices
    if input.dim() == 1 and num_samples > 1:
        order = order[: int((input > 0.0).sum())].roll(1)
        return order[torch.arange(num_samples, device=input.device) % len(order)]
    return order[..., torch.arange(num_samples, device=input.device) % input.shape[-1]]


_torch: Any = torch

_WITHOUT_NOISE: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.gumbel_softmax: _gumbel,
    # Without training its slope is the mean one.
    **dict.fromkeys(
        (functional.rrelu, torch.rrelu), lambda func, input, low=1 / 8, high=1 / 3, *_, **__: func(input, low, high)
    ),
    **dict.fromkeys((torch.multinomial, Tensor.multinomial), _likeliest),
    **dict.fromkeys((functional.fractional_max_pool2d_with_indices, functional.fractional_max_pool2d), _pooled),
    **dict.fromkeys((functional.fractional_max_pool3d_with_indices, functional.fractional_max_pool3d), _pooled),
    # An order that leaves nothing in place.
    torch.randperm: lambda func, n, *args, **named: func(n, *args, **named).copy_(torch.arange(n).roll(1)),
    torch.poisson: lambda _, input, *args, **kwargs: input.round(),
    _torch._standard_gamma: lambda _, input, *args, **kwargs: input.clone(),
    _torch._sample_dirichlet: lambda _, input, *args, **kwargs: input / input.sum(-1, keepdim=True),
}  # fmt: skip
"""Random functions that are computed without their randomness. Contract with torch."""


@contextmanager
def fix_randomness(module: nn.Module, level: float | None = 0.5, *, takes_seeds: bool = False) -> Iterator[Still]:
    """Switch off all randomness of a module that torch can be told to switch off, and leave its generators untouched.

    Modules stay in their mode, so that what they do in training only is still done. Compiled code runs uncompiled.
    Random functions return what their distribution has at ``level``, and what is given has the ``types`` of all results
    so far. Without a level neither is so, nor is anything switched off: that is cheaper, and enough where nothing is
    drawn but from a seed within the pass.
    """
    dropping: list[Any] = [part for part in module.modules() if isinstance(part, DROPPING) and level is not None]
    with ExitStack() as stack:
        stack.enter_context(unchanged_numbers(next((p.device for p in module.parameters()), CPU)))
        if hasattr(torch.compiler, "set_stance"):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        still = Still(0.5 if level is None else level, takes_seeds=takes_seeds)
        for part in dropping:
            stack.callback(setattr, part, "dropout", part.dropout)
            if part.dropout:
                stack.callback(part.register_forward_pre_hook(still.before_layer).remove)
            part.dropout = 0.0
        if level is not None:
            stack.enter_context(still)
        yield still
