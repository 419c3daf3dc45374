"""Compute norms and clipped sums of per-example gradients.

The gradient of record ``j`` for the weight of a linear layer is ``G_j = sum_t g_jt x_jt^T`` (outputs x inputs). The sum
is over the tokens ``t`` of the record. ``g_jt`` is the gradient of the layer's output for a token, and ``x_jt`` is its
input. The tensors ``g`` (records x tokens x outputs) and ``x`` (records x tokens x inputs) are the factors of the
gradients. A gradient is computed ("formed") only if this takes less memory or time than its factors.

Sums over records are in double precision, and the summand of a record depends on that record only. So adding a record
to ``n`` others changes their sum by its summand, with a rounding error of at most ``n^2 2^-53`` times the clipping
norm: 5e-7 at 65,536 records.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

# soundness: part of the bound on the rounding error of a squared norm whose tokens cancel, in units of the machine
# epsilon times (sum_t |g_t| |x_t|)^2
CANCELLATION = 16.0

# Number of products in a Gram matrix that are added in the precision of the tensor, with a relative error of at most
# half as many machine epsilons. The sums of such blocks are added in double precision.
GRAM_BLOCK = 256

# Number of gradient entries that are formed or converted to double precision at once. On a CPU a block fits into the
# cache. On other devices large blocks need few kernel launches.
BLOCK = {"cpu": 2**18, "other": 2**24}


def is_smaller_formed(tokens: int, outputs: int, inputs: int) -> bool:
    """Return whether a layer's gradient takes at most as much memory as its factors.

    The factors are one gradient of the outputs and one input for each token.
    """
    # o i <= T (o + i) for o outputs, i inputs and T tokens. The factors of a single token are kept.
    return tokens > 1 and outputs * inputs <= tokens * (outputs + inputs)


def formed(g: Tensor, x: Tensor) -> Tensor:
    """Return each record's gradient of a layer's weight, records x outputs x inputs.

    ``g`` (records x tokens x outputs) has the gradients of the outputs of the layer, and ``x`` (records x tokens x
    inputs) has its inputs.
    """
    # G_j = sum_t g_jt x_jt^T.
    return torch.bmm(g.transpose(1, 2), x)


def formed_blocks(g: Tensor, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(slice, gradients)`` for one block of records after another.

    ``g`` has the gradients of a layer's outputs and ``x`` its inputs, as in :func:`formed`.
    """
    size = max(1, block_of(g) // (g.shape[2] * x.shape[2]))
    for first in range(0, len(g), size):
        rows = slice(first, first + size)
        yield rows, formed(g[rows], x[rows])


def block_of(part: Tensor) -> int:
    """Return how many tensor entries to process at once on the device of ``part``."""
    return BLOCK["cpu" if part.device.type == "cpu" else "other"]


def to_double(part: Tensor) -> Tensor:
    """Return ``part`` in double precision, or unchanged on mps, which lacks it."""
    return part if part.device.type == "mps" else part.double()


def exact(part: Tensor) -> Tensor:
    """Return ``part`` in double precision; mps lacks it, so the result is then on the CPU."""
    return part.cpu().double() if part.device.type == "mps" else part.double()


def row_norms(rows: Tensor) -> Tensor:
    """Return the squared norm of each ``rows[j]``, in double precision except on mps."""
    wide = None if rows.device.type == "mps" else torch.float64
    return torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=wide).square()


def squared_norms(g: "Tensor | LookedUp", x: Tensor | None = None) -> Tensor:
    """Return the squared Frobenius norm of every record's gradient.

    ``g`` (records x tokens x outputs) has the gradients of a layer's outputs, and ``x`` (records x tokens x inputs) its
    inputs. If ``x`` is None, ``g`` has the gradients themselves. For several tokens, a bound on the rounding error is
    added. If a value overflows, the result is not finite.
    """
    if x is None:
        assert isinstance(g, Tensor)
        return row_norms(g)
    tokens, outputs, inputs = g.shape[1], g.shape[2], x.shape[2]
    summed = x
    if isinstance(g, LookedUp):
        # This Gram matrix has entries of very different size, so it is computed in double precision. clipped_sum adds
        # the tokens in their own type.
        x = to_double(x)
        grams, added = [g.gram(), gram_matrix(x)], GRAM_BLOCK + tokens
    elif tokens == 1:
        # One token: |g_j x_j^T|_F^2 = |g_j|^2 |x_j|^2.
        return row_norms(g) * row_norms(x)
    elif is_smaller_formed(tokens, outputs, inputs):
        # |sum_t g_jt x_jt^T|_F^2, with the gradient formed.
        sizes = [torch.linalg.vector_norm(part, dim=2) for part in (g, x)]
        # Either clipped_sum adds these same blocks, or the rounding error of forming them is included.
        added = 0 if is_summed_formed(g) else tokens
        return torch.cat([row_norms(block) for _, block in formed_blocks(g, x)]) + _rounding(g, *sizes, added=added)
    else:
        grams, added = [gram_matrix(part) for part in (g, x)], GRAM_BLOCK + tokens
    # |G_j|_F^2 = <g_j g_j^T, x_j x_j^T>: the sum over pairs of tokens of (g_jt . g_js)(x_jt . x_js).
    # |g_jt|^2 is on the diagonal of g_j g_j^T, and less than o tiny is lost there by underflow, for o outputs. tiny is
    # the smallest normal number.
    tiny = torch.finfo(x.dtype).tiny
    sizes = [
        (gram.diagonal(dim1=1, dim2=2) + width * tiny).sqrt()
        for gram, width in zip(grams, (outputs, inputs), strict=True)
    ]
    # For o outputs, i inputs and T tokens, underflow takes at most o tiny and i tiny from the entries of the two Gram
    # matrices, and tiny from their products: in all o tiny (sum_t |x_t|)^2 + i tiny (sum_t |g_t|)^2 + T^2 tiny. Twice
    # that is added.
    totals = [to_double(size.sum(1)).square() for size in sizes]
    lost = 2.0 * tiny * (outputs * totals[1] + inputs * totals[0] + tokens**2)
    product = grams[0].mul_(grams[1]).sum((1, 2))
    return to_double(product.clamp_min(0.0)) + _rounding(summed, *sizes, added=added) + lost


def _rounding(like: Tensor, g: Tensor, x: Tensor, *, added: int) -> Tensor:
    """Return a bound on the rounding error of each record's squared gradient norm.

    ``g`` and ``x`` are the norms of the output gradients and inputs of each token. ``added`` is the number of rounded
    additions in the dtype of ``like``.
    """
    # (CANCELLATION + added) eps (sum_t |g_jt| |x_jt|)^2.
    return (CANCELLATION + added) * torch.finfo(like.dtype).eps * to_double((g * x).sum(1)).square()


def gram_matrix(part: Tensor) -> Tensor:
    """Return the inner products of all pairs of tokens of each record.

    ``part`` is records x tokens x width, and the result records x tokens x tokens.
    """
    blocks = part.split(GRAM_BLOCK, 2)
    total = to_double(blocks[0] @ blocks[0].mT)
    for block in blocks[1:]:
        total += block @ block.mT
    return total


def is_summed_formed(g: Tensor) -> bool:
    """Return whether :func:`clipped_sum` adds whole gradients and not products of factors."""
    # Products of factors are faster for few tokens or in double precision.
    return g.shape[1] >= 8 and g.dtype is not torch.float64


def weighted_sum(c: Tensor, rows: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``sum_j c[j] rows[j]`` over the records ``j``, in double precision.

    Records with a False ``mask`` count as 0. If ``mask`` is None, no record does.
    """
    # In single precision one record could change the rounding errors of all others.
    c, flat = exact(c), rows.flatten(1)
    total = c.new_empty(flat.shape[1])
    size = max(1, block_of(rows) // max(1, len(flat)))
    for first in range(0, flat.shape[1], size):
        block = exact(flat[:, first : first + size])
        if mask is not None:
            block = torch.where(mask.to(block.device)[:, None], block, 0.0)
        # sum_j c_j S_j, for some entries.
        torch.mv(block.T, c, out=total[first : first + size])
    return total.view(rows.shape[1:])


def clipped_sum(c: Tensor, g: "Tensor | LookedUp", x: Tensor | None = None, *, mask: Tensor | None = None) -> Tensor:
    """Return the sum of all records' gradients, weighted by their clipping factors ``c``.

    ``g`` (records x tokens x outputs) has the gradients of a layer's outputs, and ``x`` (records x tokens x inputs) its
    inputs. If ``x`` is None, ``g`` has the gradients themselves. Records with a False ``mask`` count as 0, because
    their gradients are not finite. If ``mask`` is None, all are finite. The result is in double precision.
    """
    if x is None:
        assert isinstance(g, Tensor)
        return weighted_sum(c, g, mask)
    if isinstance(g, LookedUp):
        return g.clipped_sum(c, x, mask)
    total = exact(c).new_zeros(g.shape[2], x.shape[2])
    if not g.shape[1]:
        return total
    if is_summed_formed(g):
        for rows, block in formed_blocks(g, x):
            total += weighted_sum(c[rows], block, None if mask is None else mask[rows])
        return total
    size = max(1, block_of(g) // (g.shape[1] * (g.shape[2] + x.shape[2])))
    for first in range(0, len(g), size):
        rows = slice(first, first + size)
        parts = exact(g[rows]), exact(x[rows])
        if mask is not None:
            parts = (torch.where(mask[rows].to(total.device)[:, None, None], part, 0.0) for part in parts)
        wide_g, wide_x = parts
        # sum_j c_j G_j = sum_j sum_t (c_j g_jt) x_jt^T.
        weighted = exact(c[rows])[:, None, None] * wide_g
        total.addmm_(weighted.flatten(0, 1).T, wide_x.flatten(0, 1))
    return total


@dataclass(frozen=True)
class LookedUp:
    """One factor of the gradients of an embedding table, stored as row numbers.

    A token that looks up row ``i`` adds the outer product of the unit vector ``e_i`` and the gradient of its embedding.
    This factor stores ``i`` for ``e_i``. Linear layers with the table as their weight add tokens with dense vectors.

    Attributes:
        dense: The vectors of the linear layers' tokens, records x tokens x outputs: output gradients. May be empty.
        rows: The row numbers of the looked-up tokens, which come after the dense ones, records x tokens.
    """

    dense: Tensor
    rows: Tensor

    def __getitem__(self, rows: slice | Tensor) -> "LookedUp":
        return LookedUp(self.dense[rows], self.rows[rows])

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape ``(records, tokens, outputs)`` of the factor, as if it were dense."""
        return len(self.rows), self.dense.shape[1] + self.rows.shape[1], self.dense.shape[2]

    def __matmul__(self, other: Tensor) -> Tensor:
        """Return the product of each token's vector with a matrix.

        The result is records x tokens x columns.
        """
        # e_i^T M is row i of M.
        return torch.cat([self.dense @ other, other[self.rows]], 1)

    def to_dense(self) -> Tensor:
        """Return the factor as a dense tensor, records x tokens x outputs."""
        unit = torch.nn.functional.one_hot(self.rows, self.dense.shape[2]).to(self.dense.dtype)
        return torch.cat([self.dense, unit], 1)

    def gram(self) -> Tensor:
        """Return the inner products of each record's tokens, records x tokens x tokens."""
        dense = to_double(self.dense)
        # g_t . e_i = g_ti, and e_i . e_k = 1 where i = k.
        crossed = dense.gather(2, self.rows[:, None, :].expand(-1, dense.shape[1], -1))
        equal = (self.rows[:, :, None] == self.rows[:, None, :]).to(dense)
        return torch.cat([torch.cat([gram_matrix(dense), crossed], 2), torch.cat([crossed.mT, equal], 2)], 1)

    def clipped_sum(self, c: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the sum of all records' gradients of the table, weighted by ``c``.

        ``x`` (records x tokens x inputs) is the other factor of the gradients, and ``c`` has the clipping factors.
        Records with a False ``mask`` count as 0.
        """
        count = self.dense.shape[1]
        total = clipped_sum(c, self.dense, x[:, :count], mask=mask)
        looked_up = exact(x[:, count:])
        if mask is not None:
            looked_up = torch.where(mask.to(total.device)[:, None, None], looked_up, 0.0)
        # sum_j c_j (sum_t g_jt x_jt^T + sum_s e_i(s) x_js^T).
        weighted = exact(c)[:, None, None] * looked_up
        return total.index_add_(0, self.rows.flatten().to(total.device), weighted.flatten(0, 1))


@contextmanager
def full_precision() -> Iterator[None]:
    """Switch off autocast, reduced-precision products and autograd in a ``with`` block."""
    # The clipped norm must be the norm of the summed gradient, so both need full precision.
    restores = _precision_restores()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), torch.no_grad():
            yield
    finally:
        for restore in restores:
            restore()


def precise() -> AbstractContextManager[None]:
    """Return :func:`full_precision`, or an empty context if precision is already full."""
    with suppress(RuntimeError):
        mixed = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        if not mixed and torch.get_float32_matmul_precision() == "highest":
            return nullcontext()
    return full_precision()


def _precision_restores() -> list[Callable[[], object]]:
    """Return functions that restore the current precision of torch's matrix products."""
    restores: list[Callable[[], object]] = []
    # Reading the older setting raises an error if it contradicts the newer ones.
    with suppress(RuntimeError):
        restores.append(partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
    backends: list[tuple[Any, Any]] = [
        (torch.backends.cuda.matmul, torch.backends.cudnn),
        (getattr(torch.backends.mkldnn, "matmul", None), torch.backends.mkldnn),
    ]
    for matrices, all_ in backends:
        value = getattr(matrices, "fp32_precision", None)
        if value is not None:
            # A value equal to that of the whole backend is restored as inherited from the backend.
            setting = "none" if value == all_.fp32_precision else value
            restores.append(partial(setattr, matrices, "fp32_precision", setting))
    return restores
