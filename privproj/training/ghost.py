"""Norms and clipped sums of per-example gradients, without forming them.

A linear layer that sees ``x`` (examples x tokens x inputs) and gets ``g`` (examples x tokens x outputs) back has the
per-example gradient ``G_j = sum_t g_jt x_jt^T``. Projections of it from the right are the same with ``x P`` for ``x``.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CANCELLATION = 16.0
"""Rounding errors of a Gram form, in units of the machine epsilon and of ``(sum_t |g_t| |x_t|)^2``."""


def squared_norms(g: Tensor, x: Tensor) -> Tensor:
    """``|G_j|_F^2 = <g_j g_j^T, x_j x_j^T>`` for every example.

    Tokens may cancel, and then the rounding error of the Gram form could hide a norm: a bound on it is added. Where
    ``2 T^2`` exceeds the size of the gradient, the gradient is formed.
    """
    tokens = g.shape[1]
    if tokens == 1:
        return g[:, 0].square().sum(1) * x[:, 0].square().sum(1)
    if 2 * tokens * tokens >= g.shape[2] * x.shape[2]:
        return torch.einsum("nto,nti->noi", g, x).square().sum((1, 2)) + rounding(g, x)
    gram = (g @ g.transpose(1, 2)) * (x @ x.transpose(1, 2))
    return gram.sum((1, 2)).clamp_min(0.0) + rounding(g, x)


def rounding(g: Tensor, x: Tensor) -> Tensor:
    """How far rounding can have lowered a squared norm whose tokens cancel."""
    bound = (g.norm(dim=2) * x.norm(dim=2)).sum(1).square()
    return CANCELLATION * torch.finfo(g.dtype).eps * bound


def clipped_sum(c: Tensor, g: Tensor, x: Tensor) -> Tensor:
    """``sum_j c_j G_j``, outputs x inputs."""
    weighted = (c[:, None, None] * g).flatten(0, 1)
    return weighted.T @ x.flatten(0, 1)


@contextmanager
def full_precision() -> Iterator[None]:
    """No mixed precision and no shortened mantissas: a norm must be the norm of what is summed."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
