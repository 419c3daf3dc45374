"""Norms and clipped sums of per-example gradients, without forming them.

A linear layer that sees ``x`` (examples x tokens x inputs) and gets ``g`` (examples x tokens x outputs) back has the
per-example gradient ``G_j = sum_t g_jt x_jt^T``. Projections of it from the right are the same with ``x P`` for ``x``.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

CANCELLATION = 16.0
"""A bound on the rounding error of a Gram form, in units of the machine epsilon and of ``(sum_t |g_t| |x_t|)^2``.
Proof: where tokens cancel, a norm must not come out too small."""


def squared_norms(g: Tensor, x: Tensor) -> Tensor:
    """``|G_j|_F^2 = <g_j g_j^T, x_j x_j^T>`` for every example, in double precision.

    Tokens may cancel, and then the rounding error of the Gram form could hide a norm: a bound on it is added. Where
    ``2 T^2`` exceeds the size of the gradient, the gradient is formed. Rows are scaled first, so that nothing
    underflows on the way.
    """
    if g.shape[1] == 1:
        return to_double(g[:, 0]).square().sum(1) * to_double(x[:, 0]).square().sum(1)
    (g, size_g), (x, size_x) = _scaled(g), _scaled(x)
    return to_double(_gram_norms(g, x)) * (to_double(size_g) * to_double(size_x)).square()


def _gram_norms(g: Tensor, x: Tensor) -> Tensor:
    """The same for rows scaled to size 1. A bound on its rounding error is added."""
    if 2 * g.shape[1] ** 2 >= g.shape[2] * x.shape[2]:
        return torch.einsum("nto,nti->noi", g, x).square().sum((1, 2)) + _rounding(g, x)
    gram = (g @ g.transpose(1, 2)) * (x @ x.transpose(1, 2))
    return gram.sum((1, 2)).clamp_min(0.0) + _rounding(g, x)


def _scaled(part: Tensor) -> tuple[Tensor, Tensor]:
    """Every example divided by its largest entry, and that entry."""
    size = part.abs().amax((1, 2))
    return part / torch.where(size > 0.0, size, 1.0)[:, None, None], size


def to_double(part: Tensor) -> Tensor:
    """The tensor in double precision, where the device has it."""
    return part if part.device.type == "mps" else part.double()


def _rounding(g: Tensor, x: Tensor) -> Tensor:
    """How far rounding can have lowered a squared norm whose tokens cancel."""
    bound = (g.norm(dim=2) * x.norm(dim=2)).sum(1).square()
    return CANCELLATION * torch.finfo(g.dtype).eps * bound


def clipped_sum(c: Tensor, g: Tensor, x: Tensor) -> Tensor:
    """``sum_j c_j G_j``, outputs x inputs."""
    weighted = (c[:, None, None] * g).flatten(0, 1)
    return weighted.T @ x.flatten(0, 1)


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch off mixed precision and shortened mantissas: a norm must be the norm of what is summed."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
