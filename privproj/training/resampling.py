"""LoRA with re-sampled factors, Flora's accumulator, and projected descent without noise, which nothing accounts."""

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import whole

from .adapters import FrozenLoRA
from .streams import Streams, normal, streams
from .taps import Tap
from .views import Projected, Update


class Resampling:
    """After every ``every`` steps the adapters of a module are merged and drawn anew: ``W <- W + s B A``, ``B = 0``.

    Each step between is DP-LoRA-FA's, and is accounted so: gradients depend on ``A`` from the second step on, so no
    gain by its randomness may be claimed.
    """

    def __init__(self, module: nn.Module, every: int, drawn: Streams) -> None:
        self.layers = [part for part in module.modules() if isinstance(part, FrozenLoRA)]
        if not self.layers:
            raise InvalidParameter("module", type(module).__name__, "a module with add_frozen_lora's adapters")
        self.every = whole("every", every, "a whole number of steps >= 1")
        self.drawn = drawn

    def __call__(self, optimizer: Any) -> None:
        """Count a step."""
        if optimizer.steps % self.every == 0:
            for layer in self.layers:
                layer.merge(self.drawn.projection)
                optimizer.state.pop(layer.lora_B.weight, None)


class Flora(Projected):
    """A momentum kept in the sketch: ``m <- beta m A_old A^T + (1 - beta) R / (q N)``, ``W <- W - lr m A``.

    ``R = sum_j c_j G_j A^T + noise`` is clipped after the projection, ``A`` (rank x inputs, entries N(0, 1/rank)) is
    drawn every ``every`` steps, and ``E A^T A = I`` makes the transfer unbiased. Transfer and decompression are
    post-processing: the subsampled Gaussian mechanism for any ``every``.
    """

    def __init__(self, tap: Tap, rank: int, beta: float, every: int) -> None:
        super().__init__(tap, rank, "wishart", True)
        self.beta, self.every, self.age = beta, every, 0
        self.moment: Tensor | None = None

    def refresh(self, streams: Streams) -> None:
        """A new sketch, the momentum carried over, when the old one is due."""
        if self.age % self.every == 0:
            shape = self.rank, self.tap.shape[1]
            new = normal(shape, self.tap.weight, streams.projection) / self.rank**0.5
            if self.moment is not None:
                self.moment = (self.moment @ self.a) @ new.T
            self.a, self.q = new, new.T
        self.age += 1

    def update(self, mean: Tensor) -> Update:
        """``(m, A)``."""
        new = (1.0 - self.beta) * mean
        self.moment = new if self.moment is None else self.beta * self.moment + new
        return self.moment, self.a


class ProjectedDescent:
    """RP-GD: ``w <- w - lr Z Z^T grad L(w)`` with one random ``Z``, no clip and no noise. Not private; for audits.

    Its published analysis needs queries that do not depend on ``Z`` and vectors of one norm, which training breaks, and
    a matrix query gives the data away (arXiv 2601.21719, Proposition 2).
    """

    def __init__(self, module: nn.Module, rank: int, lr: float, insecure_seed: int | None = None) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        total = sum(p.numel() for p in self.parameters)
        rank, like = whole("rank", rank, "a whole number rank >= 1"), self.parameters[0]
        self.z = normal((total, rank), like, streams(like.device, insecure_seed).projection) / rank**0.5
        self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        """One step with the gradients that ``backward`` left."""
        gradient = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        moves = (self.z @ (self.z.T @ gradient)).split([p.numel() for p in self.parameters])
        for parameter, move in zip(self.parameters, moves, strict=True):
            parameter.sub_(move.view_as(parameter), alpha=self.lr)
            parameter.grad = None

    def epsilon(self, delta: float) -> NoReturn:
        """Always refused."""
        raise Refused(f"projected descent without noise has no epsilon at delta {delta:g}, nor at any other")
