"""DP-SFT: training within a subspace of all weights, found privately or on public data.

The coordinates of a record's gradient in the subspace are clipped, summed and noised. Where the subspace came from
private data, its own releases are accounted too.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameter
from privproj.records.ledger import Account
from privproj.training import per_example
from privproj.training.algorithms.algorithm import Algorithm
from privproj.training.capture import AnyTap
from privproj.training.optimizer import PrivateOptimizer
from privproj.training.view import View
from privproj.validation import whole

SMALLEST_SQUARED_LENGTH = 1e-10
"""A direction whose squared length is below this share of the largest is taken to be rounding. Speed only: every
orthonormal basis is accounted alike."""


@dataclass(frozen=True, eq=False)
class Subspace:
    """``k`` orthonormal directions among all trained weights (``basis``: weights x k), and where they are from.

    ``source`` "public": found without private data, at no cost. "dp": found by releases that ``account`` lists, which
    are accounted together with the training. ``mode`` "full": the wrapped optimizer sees the gradient ``P z`` on the
    weights; "subspace": it moves ``phi`` in ``R^k``, and the weights are ``Theta* + P phi``.
    """

    basis: Tensor
    source: Literal["public", "dp"]
    mode: Literal["full", "subspace"] = "full"
    account: Account | None = None
    phi: nn.Parameter = field(init=False)

    def __post_init__(self) -> None:
        if self.source not in ("public", "dp"):
            raise InvalidParameter("source", self.source, "public or dp", "a subspace of private data leaks it")
        if (self.source == "dp") != (self.account is not None):
            raise InvalidParameter("account", self.account, "an account of its releases for source dp, none for public")
        if self.mode not in ("full", "subspace"):
            raise InvalidParameter("mode", self.mode, "full or subspace")
        gram = self.basis.T @ self.basis
        # How far an orthonormal basis may be from it by rounding, entry by entry of its Gram matrix. The clip is on the
        # coordinates that are released, whatever the basis is, so that nothing of the proof rests on this.
        tolerance = 1e-3 if self.basis.dtype is torch.float32 else 1e-8
        if not torch.allclose(gram, torch.eye(len(gram), dtype=gram.dtype, device=gram.device), atol=tolerance):
            raise InvalidParameter("basis", "not orthonormal", "orthonormal columns")
        object.__setattr__(self, "phi", nn.Parameter(self.basis.new_zeros(self.basis.shape[1])))

    @property
    def rank(self) -> int:
        """``k``."""
        return self.basis.shape[1]


def leading(rows: Tensor, k: int) -> Tensor:
    """The top ``k`` right singular vectors of ``rows`` (snapshots x weights), by the Gram matrix of the rows.

    ``A A^T = W diag(w) W^T``, ``P = A^T W_k w_k^-1/2``, made orthonormal; directions without length are left out.
    """
    values, vectors = torch.linalg.eigh(rows.double() @ rows.double().T)
    order = values.argsort(descending=True)[:k]
    longest = values[order[0]]
    order = order[values[order] > SMALLEST_SQUARED_LENGTH * longest] if float(longest) > 0.0 else order[:0]
    if not len(order):
        raise InvalidParameter("rows", "all zero", "snapshots that moved")
    basis = rows.double().T @ (vectors[:, order] / values[order].sqrt())
    return torch.linalg.qr(basis)[0].to(rows.dtype)


class Trajectory:
    """Snapshots ``Theta_t - Theta_0`` of a private run, for a subspace of ``k`` directions."""

    def __init__(self, optimizer: PrivateOptimizer, k: int) -> None:
        self.optimizer, self.k = optimizer, whole("rank", k, "a whole number of directions >= 1")
        if self.k > optimizer.plan.steps:
            raise InvalidParameter(
                "rank", self.k, f"at most one direction for each of the {optimizer.plan.steps} steps"
            )
        self.every = optimizer.plan.steps // self.k
        self.start = _flat_weights(optimizer.taps.taps)
        self.rows: list[Tensor] = []
        optimizer.attach_step_hook(self.take_snapshot)

    def take_snapshot(self, optimizer: PrivateOptimizer) -> None:
        """Keep the weights after every so many steps."""
        if optimizer.steps % self.every == 0:
            self.rows.append(_flat_weights(optimizer.taps.taps) - self.start)

    def subspace(self, mode: Literal["full", "subspace"] = "full") -> Subspace:
        """The subspace of the snapshots, with the account of the run that made them, which has to be over."""
        if self.optimizer.steps < self.optimizer.plan.steps:
            left = self.optimizer.plan.steps - self.optimizer.steps
            raise InvalidParameter("trajectory", f"{left} steps left", "a search that made all its planned steps")
        basis = leading(torch.stack(self.rows), self.k)
        return Subspace(basis, "dp", mode, self.optimizer.spending.account)


def _flat_weights(taps: list[AnyTap]) -> Tensor:
    """All trained weights in a row."""
    return torch.cat([p.detach().flatten() for tap in taps for p in tap.parameters])


class _SubspaceView(View):
    """``z_j = P^T vec(G_j)`` in ``R^k``, over all trained tensors: clipped, summed, noised."""

    def __init__(self, taps: list[AnyTap], subspace: Subspace) -> None:
        self.taps, self.subspace = taps, subspace
        total = sum(p.numel() for tap in taps for p in tap.parameters)
        if subspace.basis.shape[0] != total:
            raise InvalidParameter(
                "subspace", f"{subspace.basis.shape[0]} weights", f"a basis over the {total} trained weights"
            )
        self.parts = subspace.basis.split([p.numel() for tap in taps for p in tap.parameters])
        self.last = subspace.phi.detach().clone()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trained tensors."""
        return [p for tap in self.taps for p in tap.parameters]

    @property
    def held(self) -> list[nn.Parameter]:
        """``phi`` where the optimizer moves that."""
        return [self.subspace.phi] if self.subspace.mode == "subspace" else self.parameters

    @property
    def name(self) -> str:
        """How messages call it."""
        return "the subspace"

    @property
    def shape(self) -> tuple[int, ...]:
        """``k``."""
        return (self.subspace.rank,)

    def coordinates(self) -> Tensor | None:
        """``z_j`` for every example, ``<G_j, P_c> = sum_t g_t^T P_c x_t`` layer by layer."""
        found, parts = [], iter(self.parts)
        for tap in self.taps:
            own = [next(parts) for _ in tap.parameters]
            seen = tap.captured()
            if seen is None:
                continue
            if isinstance(seen, Tensor):
                found.append(seen @ torch.cat(own))
                continue
            g, x = seen
            columns = [part.view(g.shape[2], -1, self.subspace.rank) for part in own]
            found.append(torch.einsum("nto,nti,oik->nk", g, x, torch.cat(columns, 1)))
        return torch.stack(found).sum(0) if found else None

    def squared_norms(self) -> Tensor | None:
        """``|z_j|^2``."""
        self.z = self.coordinates()
        return None if self.z is None else per_example.to_double(self.z).square().sum(1)

    def clipped_sum(self, c: Tensor, kept: Tensor | None) -> Tensor:
        """``sum_j c_j z_j``."""
        z, self.z = self.z, None
        return c @ (z if kept is None else torch.where(kept[:, None], z, 0.0))  # pyright: ignore

    def update(self, mean: Tensor) -> Any:
        """Not used: the gradient is set in :meth:`apply`."""
        raise NotImplementedError

    def apply(self, mean: Tensor, group: dict[str, Any], *, plain: bool) -> None:
        """The gradient of ``phi``, or ``P z`` on the weights."""
        if self.subspace.mode == "subspace":
            self.subspace.phi.grad = mean
            return
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            parameter.grad = (part @ mean).view_as(parameter)

    def moved(self, old: list, new: list) -> bool:
        """Whether every tensor changed that the basis reaches."""
        reached = [bool(part.any()) for part in self.parts]
        return all(was != now for was, now, can in zip(old, new, reached, strict=True) if can)

    @torch.no_grad()
    def after(self) -> None:
        """``Theta <- Theta + P (phi - phi_last)``."""
        if self.subspace.mode == "subspace":
            moved = self.subspace.phi - self.last
            for parameter, part in zip(self.parameters, self.parts, strict=True):
                parameter.add_((part @ moved).view_as(parameter))
            self.last = self.subspace.phi.detach().clone()


RECORDS = (
    Algorithm(
        name="dp-sft",
        summary="Clip and noise the coordinates of every record's gradient in a subspace of all weights.",
        subspace_view=_SubspaceView,
    ),
)
