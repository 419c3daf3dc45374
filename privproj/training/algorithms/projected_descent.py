"""Define projected descent without noise, a counterexample for audits.

It is not in the list of algorithms. No theorem bounds epsilon of this method, so ``epsilon`` always raises an error.
"""

from typing import NoReturn

import torch
from torch import nn

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.parameters import integer
from privproj.training.generators import normal, streams


class ProjectedDescent:
    """RP-GD: ``w <- w - lr Z Z^T grad L(w)`` without clipping and noise; not private.

    The random matrix ``Z`` (trained weights x rank) has entries N(0, 1/rank) and is drawn once. This class is for
    audits. The assumptions of the published analysis do not hold in training. If ``Z Z^T`` multiplies a matrix instead
    of a vector, the product is not private (arXiv 2601.21719, Proposition 2).

    Args:
        module: The module to train: its tensors with ``requires_grad``.
        rank: Rank of ``Z Z^T``, at least 1.
        lr: Learning rate.
        insecure_seed: A whole number of at least 0 that makes ``Z`` repeatable. None: ``Z`` comes from a generator
            seeded by the operating system.

    Raises:
        InvalidParameterError: ``rank`` is not a whole number of at least 1, or no tensor requires a gradient.

    >>> import torch
    >>> from privproj.training import ProjectedDescent
    >>> module = torch.nn.Linear(4, 1)
    >>> descent = ProjectedDescent(module, rank=2, lr=0.1, insecure_seed=0)
    >>> module(torch.ones(3, 4)).sum().backward()
    >>> descent.step()
    >>> module.weight.grad is None
    True
    """

    def __init__(self, module: nn.Module, rank: int, lr: float, insecure_seed: int | None = None) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        if not self.parameters:
            raise InvalidParameterError(
                "module", type(module).__name__, "a module with tensors that require a gradient"
            )
        total = sum(p.numel() for p in self.parameters)
        rank, like = integer("rank", rank, "an integer >= 1"), self.parameters[0]
        # Z = N/sqrt(r), so that E Z Z^T = I.
        self.z = normal((total, rank), like, streams(insecure_seed).projection) / rank**0.5
        self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        """Make one descent step with the gradients from ``backward``, and remove them."""
        gradient = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        # w <- w - lr Z Z^T grad L(w).
        moves = (self.z @ (self.z.T @ gradient)).split([p.numel() for p in self.parameters])
        for parameter, move in zip(self.parameters, moves, strict=True):
            parameter.sub_(move.view_as(parameter), alpha=self.lr)
            parameter.grad = None

    def epsilon(self, delta: float) -> NoReturn:
        """Raise an error, because this algorithm has no epsilon at any delta.

        Args:
            delta: Not used.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"projected descent without noise has no epsilon at delta {delta:g}. Train with make_private"
        )
