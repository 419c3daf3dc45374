"""Define DP-SFT: training within a low-dimensional subspace of all weights.

The coordinates of each record's gradient in the subspace are clipped and summed, and noise is added. The subspace comes
from public data or from earlier private releases, which are accounted too.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from privproj.errors import InvalidParameterError
from privproj.io.ledger import Account
from privproj.parameters import integer
from privproj.training import per_example
from privproj.training.optimizer import PrivateOptimizer
from privproj.training.trained import Trained
from privproj.training.view import Algorithm, View


@dataclass(frozen=True, eq=False)
class Subspace:
    """Orthonormal directions in the space of all trained weights, and their source.

    Args:
        basis: The directions as columns, weights x ``k``. The weights are all trained tensors, flattened in order.
        source: "public" if the directions come from public data, at no privacy cost. "dp" if the directions come from
            the releases in ``account``, which are accounted together with the training.
        account: The releases from which the directions were computed, for source "dp"; None for "public".

    Raises:
        InvalidParameterError: ``source`` is unknown, the columns are not orthonormal, the account is missing for "dp",
            or there is one for "public".

    >>> import torch
    >>> from privproj.training import Subspace
    >>> Subspace(torch.eye(5)[:, :2], "public").rank
    2
    """

    basis: Tensor
    source: Literal["public", "dp"]
    account: Account | None = None

    def __post_init__(self) -> None:
        if self.source not in ("public", "dp"):
            raise InvalidParameterError(
                "source", self.source, "public or dp", "a subspace of private data is not private"
            )
        if not (isinstance(self.account, Account) if self.source == "dp" else self.account is None):
            raise InvalidParameterError(
                "account", self.account, "an Account of its releases for source=dp, and None for source=public"
            )
        gram = self.basis.T @ self.basis
        # Tolerance of each entry of the Gram matrix, for rounding. The proof does not use it, because the released
        # coordinates are clipped for any basis.
        tolerance = 1e-3 if self.basis.dtype is torch.float32 else 1e-8
        if not torch.allclose(gram, torch.eye(len(gram), dtype=gram.dtype, device=gram.device), atol=tolerance):
            raise InvalidParameterError("basis", "other columns", "a matrix with orthonormal columns")

    @property
    def rank(self) -> int:
        """The number ``k`` of directions."""
        return self.basis.shape[1]


def leading(rows: Tensor, k: int) -> Tensor:
    """Return the leading right singular vectors of a matrix of weight snapshots.

    Args:
        rows: The matrix, with one snapshot of all weights in each row.
        k: The number of singular vectors, at least 1.

    Returns:
        Orthonormal columns, weights x ``k``. There are fewer columns if the matrix has a smaller rank.

    Raises:
        InvalidParameterError: All snapshots are zero, one is not finite, or ``k`` is outside its range.

    >>> import torch
    >>> from privproj.training import leading
    >>> basis = leading(torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]), 2)
    >>> [[round(abs(entry), 3) for entry in row] for row in basis.tolist()]
    [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    k = integer("k", k, "an integer >= 1")
    if not rows.isfinite().all():
        raise InvalidParameterError(
            "rows", "infinite or NaN entries", "finite snapshots", "use a run that did not diverge"
        )
    # A^T = Q R and R = U diag(s) W^T, so A has the right singular vectors Q U.
    q, r = torch.linalg.qr(rows.double().T)
    directions, lengths, _ = torch.linalg.svd(r, full_matrices=False)
    # Directions with a singular value below 1e-5 of the largest are rounding errors, and are left out. The accounting
    # does not depend on this.
    basis = q @ directions[:, :k][:, lengths[:k] > 1e-5 * lengths[0]]
    if not basis.shape[1]:
        raise InvalidParameterError("rows", "zeros only", "snapshots that differ from the start")
    return basis.to(rows.dtype)


class Trajectory:
    """Snapshots of the weights of a private run, which span a subspace.

    A snapshot is ``Theta_t - Theta_0``, where ``Theta_t`` are the weights after ``t`` steps. Snapshots are computed
    from releases only, so they have no further privacy cost.

    Args:
        optimizer: The private optimizer of the run, from :func:`make_private`, before its first step.
        k: The number of directions of the subspace, at least 1 and at most the number of steps. A snapshot is taken
            after every ``floor(steps/k)`` steps.

    Raises:
        InvalidParameterError: ``k`` is outside its range.

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from privproj.training import Trajectory, make_private
    >>> records = TensorDataset(torch.ones(100, 8), torch.zeros(100, dtype=torch.long))
    >>> module = torch.nn.Linear(8, 2)
    >>> module, optimizer, loader = make_private(
    ...     module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(records, batch_size=25), algorithm="dp-sgd", max_grad_norm=1.0,
    ...     noise_multiplier=1.0, steps=4,
    ... )
    >>> trajectory = Trajectory(optimizer, 2)
    >>> for batch in loader:
    ...     loss = optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)
    >>> subspace = trajectory.subspace()
    >>> subspace.rank, subspace.account.spent
    (2, 4)
    """

    def __init__(self, optimizer: PrivateOptimizer, k: int) -> None:
        self.optimizer, self.k = optimizer, integer("rank", k, "an integer >= 1")
        steps = optimizer.plan.steps
        if self.k > steps:
            raise InvalidParameterError("rank", self.k, f"at most {steps}, the number of steps")
        self.every = steps // self.k
        self.start = flat_weights(optimizer._trained)
        self.rows: list[Tensor] = []
        optimizer.attach_step_hook(self.take_snapshot)

    def take_snapshot(self, optimizer: PrivateOptimizer) -> None:
        """Store a snapshot of the weights after every ``floor(steps/k)`` steps.

        Args:
            optimizer: The private optimizer, which calls this after every step.
        """
        if optimizer.steps_done % self.every == 0:
            self.rows.append(flat_weights(optimizer._trained) - self.start)

    def subspace(self) -> Subspace:
        """Return the subspace that the snapshots span, with the releases of the run.

        Returns:
            A :class:`Subspace` of source "dp" with at most ``k`` directions.

        Raises:
            InvalidParameterError: The run has steps left, or all snapshots are zero.
        """
        if self.optimizer.steps_done < self.optimizer.plan.steps:
            left = self.optimizer.plan.steps - self.optimizer.steps_done
            raise InvalidParameterError(
                "trajectory", f"one with {left} steps left", "that of a run that made all its planned steps"
            )
        return Subspace(leading(torch.stack(self.rows), self.k), "dp", self.optimizer._spending.account)


def flat_weights(trained: list[Trained]) -> Tensor:
    """Return all trained weights as a vector, in the order of the trained tensors."""
    return torch.cat([p.detach().flatten() for one in trained for p in one.parameters])


class _SubspaceView(View):
    """The linear map of DP-SFT, from a gradient to its coordinates in a subspace."""

    def __init__(self, trained: list[Trained], subspace: Subspace) -> None:
        self.tensors, self.name, self.shape = trained, "the subspace", (subspace.rank,)
        self.parameters = [p for one in trained for p in one.parameters]
        total = sum(p.numel() for p in self.parameters)
        if subspace.basis.shape[0] != total:
            expected = f"a basis of the {total} trained weights"
            raise InvalidParameterError("subspace", f"{subspace.basis.shape[0]} weights", expected)
        self.parts = subspace.basis.split([p.numel() for p in self.parameters])

    def coordinates(self) -> Tensor | None:
        """Return the coordinates of each record's gradient in the subspace, one row each."""
        by_tensor, parts = [], iter(self.parts)
        for one in self.tensors:
            slices = [next(parts) for _ in one.parameters]
            captured = one.take()
            if captured is None:
                continue
            columns = [one.laid_out(p, part.view(*p.shape, -1)) for p, part in zip(one.parameters, slices, strict=True)]
            basis = torch.cat(columns, 1).flatten(0, 1)
            g, x = captured[0] if isinstance(captured[0], Tensor) else captured[0].to_dense(), captured[-1]
            blocks = [x] if len(captured) == 1 else (block for _, block in per_example.formed_blocks(g, x))
            # z_jc = <G_j, P_c>.
            by_tensor.append(torch.cat([block.flatten(1) @ basis for block in blocks]))
        return torch.stack(by_tensor).sum(0) if by_tensor else None

    def squared_norms(self) -> Tensor | None:
        self.z = self.coordinates()
        return None if self.z is None else per_example.row_norms(self.z)

    def clipped_sum(self, c: Tensor, mask: Tensor | None) -> Tensor:
        z, self.z = self.z, None
        assert z is not None
        return per_example.weighted_sum(c, z, mask)

    def apply(self, mean: Tensor, group: dict[str, Any], *, plain: bool) -> None:
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            # The gradient P z, one tensor's rows of P at a time.
            parameter.grad = (part @ mean).view_as(parameter)


RECORDS = (
    Algorithm(
        name="dp-sft", subspace_view=_SubspaceView,
        summary="Clip and noise the coordinates of every record's gradient in a subspace of all weights.",
    ),
)  # fmt: skip
