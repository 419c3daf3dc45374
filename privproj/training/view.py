"""Define views, the linear maps of gradients that are released, and algorithms.

A view is a linear map that an algorithm applies to every record's gradient before summing, such as a projection.

The gradient of record ``j`` for a matrix is ``G_j = sum_t g_jt x_jt^T`` (outputs x inputs), a sum over tokens ``t``.
``g_jt`` is the gradient of the output for a token, and ``x_jt`` is the input. A view multiplies ``G_j`` by some matrix
``P``, so ``x_jt`` becomes ``P^T x_jt``. Either the norm of ``G_j P`` is clipped, or the norm of ``G_j``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privproj.mechanisms import M2, Gaussian
from privproj.training import per_example
from privproj.training.generators import Streams
from privproj.training.plan import Plan
from privproj.training.trained import Trained

# a gradient estimate (outputs x inputs): ``(L, R)`` means the matrix ``L R``, and ``(L, None)`` means ``L``
Update = tuple[Tensor, Tensor | None]


class View:
    """The identity map, which DP-SGD applies to gradients, and the base class of other views.

    An algorithm applies a view to every record's gradient, and clips, sums and releases the result. The privacy
    guarantee needs one property: with the clipping factor 1, a record adds to ``clipped_sum`` a tensor whose norm is at
    most ``sqrt(squared_norms)`` of that record. Then a record changes the sum by at most the clipping norm.

    Attributes:
        parameters: The tensors to which the view belongs.
        shape: The shape of the released tensor.
        name: The name of the view in messages.
    """

    # noise of the last release divided by that of the first, which differs from 1 with adaptive clipping
    noise_scale: float = 1.0

    clips_what_it_sums = True  # whether the norm of ``G_j P`` is clipped, and not that of ``G_j``

    def __init__(self, trained: Any, plan: Plan, rank: int) -> None:
        self.trained, self.plan, self.rank, self.name = trained, plan, rank, trained.name
        self.parameters: list[nn.Parameter] = trained.parameters
        self.shape: tuple[int, ...] = trained.shape
        self.seen: Any = ()

    def refresh(self, streams: Streams) -> None:
        """Draw the random projection of the next release, before its batch is drawn.

        The default does nothing.
        """

    def sketched(self, x: Tensor) -> Tensor:
        """Return the inputs ``x`` of a layer times the projection; here ``x`` itself."""
        return x

    def squared_norms(self) -> Tensor | None:
        """Return the squared norm of each record's gradient, for clipping.

        If ``self.clips_what_it_sums`` is True, the gradient is projected first. The result is None if no gradients were
        captured.
        """
        # A pass that failed before its sum may have left gradients here.
        self.seen, captured = (), self.trained.take()
        if captured is None:
            return None
        *g, x = captured
        self.seen = *g, self.sketched(x)
        return per_example.squared_norms(*(self.seen if self.clips_what_it_sums else captured))

    def clipped_sum(self, c: Tensor, mask: Tensor | None) -> Tensor:
        """Return the sum of all records' projected gradients, weighted by clipping factors.

        ``c`` has the clipping factors. Records with a False ``mask`` count as 0, because their gradients are not
        finite. If ``mask`` is None, all gradients are finite. The sum is in double precision.
        """
        seen, self.seen = self.seen, ()
        return per_example.clipped_sum(c, *seen, mask=mask)

    def update(self, mean: Tensor) -> Update:
        """Return the gradient estimate for a released mean, by default the mean itself.

        The result ``(L, R)`` means the product ``L R``, and ``(L, None)`` means ``L``.
        """
        return mean, None

    def apply(self, mean: Tensor, group: dict[str, Any], *, plain: bool) -> None:
        """Set the gradient of the parameters from a released mean, for the next step.

        ``group`` is the parameter group of the first of ``parameters``. ``plain`` is True if the wrapped optimizer is
        SGD without momentum. Then a low-rank gradient estimate changes the weight directly.
        """
        left, right = self.update(mean)
        # Merging avoids a gradient of the size of the weight. It needs weight and bias in one group.
        if right is not None and plain and {id(p) for p in self.parameters} <= {id(p) for p in group["params"]}:
            return _merge(self.trained, left, right, group)
        for parameter, part in self.trained.split(left if right is None else left @ right):
            parameter.grad = self.trained.shaped(parameter, part).contiguous()


@torch.no_grad()
def _merge(trained: Trained, left: Tensor, right: Tensor, group: dict[str, Any]) -> None:
    """Make an SGD step in place on a weight and its bias.

    The gradient is the product of ``left`` and ``right``. ``group`` has the learning rate and the weight decay.
    """
    for parameter, part in trained.split(right):
        # W <- (1 - lr wd) W.
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        # W <- W - lr L R, column by column where the parameter is the bias.
        if parameter.dim() == 1:
            parameter.addmv_(left, part, alpha=-group["lr"])
        else:
            trained.laid_out(parameter, parameter).addmm_(left, part, alpha=-group["lr"])


# --- the record of an algorithm --------------------------------------------------------------------

# ``(outputs, inputs, projected)`` of one trained tensor; ``projected`` is True if the algorithm projects the inputs
Shape = tuple[int, int, bool]

# called with the shapes and the ranks of all trained tensors and their shares of C^2 (None: joint clipping); returns
# the mechanism
Accounting = Callable[[list[Shape], tuple[int, ...], tuple[float, ...] | None], Gaussian | M2]


def _as_gaussian(shapes: list[Shape], ranks: tuple[int, ...], shares: tuple[float, ...] | None) -> Gaussian:
    # This describes every algorithm for which the clipped norm is the norm of the summand.
    return Gaussian()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The definition of a training algorithm: what it releases, and its mechanism.

    The privacy guarantee needs the mechanism from ``accounted_as`` to describe the release of ``view``.

    Attributes:
        name: The name in the public API.
        summary: One sentence about what the algorithm does.
        rank: "projection" if the algorithm draws projections of this rank. "module" if the rank is that of the adapters
            in the module. "none" if there is no rank.
        has_frame: True if users can choose how a release is mapped back to the size of the weight: "haar" or "wishart".
        accounted_as: Called with the shapes, the ranks and the shares of the squared clipping norm of all tensors;
            returns the mechanism of one release, without a noise multiplier.
        view: Called with a trained matrix, the plan and the rank for this matrix; returns the :class:`View` of the
            matrix. Other trained tensors always have the identity.
        subspace_view: Called with all trained tensors and a subspace; returns one :class:`View` of all tensors, in
            place of one for each. An algorithm with such a view needs a subspace and joint clipping.
        check_layer: Called with the name of the selected algorithm and a trained tensor; raises
            :class:`InvalidParameterError` if that algorithm must not train the tensor.
        adapt: Called with a module, a rank and an ``insecure_seed``; returns the module with adapters. None: the
            algorithm needs no adapters.
        step_hook: Called with the module, the plan and the random streams; returns a function that is called with the
            optimizer after every release. None: nothing is called.
    """

    name: str
    summary: str
    rank: Literal["none", "projection", "module"] = "none"
    has_frame: bool = False
    accounted_as: Accounting = _as_gaussian
    view: Callable[[Any, Plan, int], View] = View
    subspace_view: Callable[[list[Trained], Any], View] | None = None
    check_layer: Callable[[str, Trained], None] = lambda algorithm, trained: None
    adapt: Callable[..., nn.Module] | None = None
    step_hook: Callable[[nn.Module, Plan, Streams], Callable[[Any], None]] | None = None

    @property
    def projects(self) -> bool:
        """True if the algorithm draws random projections."""
        return self.rank == "projection"

    @property
    def needs_subspace(self) -> bool:
        """True if the algorithm needs a subspace that was computed before."""
        return self.subspace_view is not None

    def shape(self, trained: Trained) -> Shape:
        """Return ``(outputs, inputs, projected)`` of one trained tensor for accounting.

        ``projected`` is True if the inputs are projected. A tensor that is not a matrix counts as one unprojected row.
        """
        return (*trained.shape, self.projects) if trained.is_matrix else (1, trained.size, False)

    def views(self, trained: list[Trained], plan: Plan) -> list[View]:
        """Return the linear maps of gradients: one for each trained tensor, or one for all."""
        if self.subspace_view is not None:
            return [self.subspace_view(trained, plan.algorithm.subspace)]
        return [
            (self.view if one.is_matrix else View)(one, plan, rank)
            for one, rank in zip(trained, plan.ranks, strict=True)
        ]
