"""Views: how an algorithm looks at the gradient of one record, one class for each way.

A view says which linear image of a layer's per-example gradient is clipped, summed and released. This file has the
plain view; those of single algorithms stand beside the algorithms.

A view of a matrix looks at ``G_j = sum_t g_jt x_jt^T`` (outputs x inputs) through ``G_j P``, which it forms by way of
``x P``, for the sum and, where it ``clips_what_it_sums``, for the norm. What it does with a released mean is
post-processing.
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

Update = tuple[Tensor, Tensor | None]
"""A gradient estimate: ``(L, R)`` for the matrix ``L R`` (outputs x inputs), or ``(L, None)`` for ``L`` itself."""


class View:
    """One trained tensor, or several, as an algorithm sees them: here as they are, which is DP-SGD.

    The guarantee needs one property of a view: what ``clipped_sum`` adds for a record with factor 1 is never longer
    than the root of ``squared_norms`` for that record. A record then shifts the sum by at most the clip.

    The view releases something of the shape ``shape`` for the trained tensors ``parameters``, which the wrapped
    optimizer has to hold. Messages call it by its ``name``.
    """

    noise_scale: float = 1.0
    """The noise of the last release over that of the first, which adaptive clipping changes; for post-processing."""

    clips_what_it_sums = True
    """True if the norm is that of ``G_j P``, which is summed; False if it is that of ``G_j``."""

    def __init__(self, trained: Any, plan: Plan, rank: int) -> None:
        self.trained, self.plan, self.rank, self.name = trained, plan, rank, trained.name
        self.parameters: list[nn.Parameter] = trained.parameters
        self.shape: tuple[int, ...] = trained.shape
        self.seen: Any = ()

    def refresh(self, streams: Streams) -> None:
        """Draw what must be fresh for each release, before any of its data is seen, and end the step before it."""

    def sketched(self, x: Tensor) -> Tensor:
        """Return ``x P`` with the ``P`` that is summed, ``x`` having the inputs last; here ``P = I``."""
        return x

    def squared_norms(self) -> Tensor | None:
        """Return the squared norm of each record's ``G_j P``, or of ``G_j``; None where nothing came back."""
        # A pass that failed before its sum may have left something.
        self.seen, captured = (), self.trained.take()
        if captured is None:
            return None
        *g, x = captured
        self.seen = *g, self.sketched(x)
        return per_example.squared_norms(*(self.seen if self.clips_what_it_sums else captured))

    def clipped_sum(self, c: Tensor, mask: Tensor | None) -> Tensor:
        """Return the sum ``sum_j c_j G_j P`` over the records, ``P`` that of ``sketched``, in double precision.

        It has as many entries as ``shape``. ``c`` is one factor for each record. ``mask`` says which records are
        finite; None says that all are.
        """
        seen, self.seen = self.seen, ()
        return per_example.clipped_sum(c, *seen, mask=mask)

    def update(self, mean: Tensor) -> Update:
        """Return the gradient estimate of a released mean of the shape ``shape``: by default the mean itself."""
        return mean, None

    def apply(self, mean: Tensor, group: dict[str, Any], *, plain: bool) -> None:
        """Hand a released mean to the wrapped optimizer as gradients, before its step.

        ``mean`` has the shape ``shape``. ``group`` holds the optimizer's settings for the first of these tensors. Under
        ``plain`` SGD a low-rank update goes straight into the weight, and no gradient of its size is formed, unless
        the bias has settings of its own.
        """
        left, right = self.update(mean)
        if right is not None and plain and {id(p) for p in self.parameters} <= {id(p) for p in group["params"]}:
            return _merge(self.trained, left, right, group)
        for parameter, part in self.trained.split(left if right is None else left @ right):
            parameter.grad = self.trained.shaped(parameter, part).contiguous()


@torch.no_grad()
def _merge(trained: Trained, left: Tensor, right: Tensor, group: dict[str, Any]) -> None:
    """Change a weight in place by ``W <- (1 - lr wd) W - lr L R``, its bias likewise."""
    for parameter, part in trained.split(right):
        # W <- (1 - lr wd) W.
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        # W <- W - lr L R, column by column where the parameter is the bias.
        if parameter.dim() == 1:
            parameter.addmv_(left, part, alpha=-group["lr"])
        else:
            trained.laid_out(parameter, parameter).addmm_(left, part, alpha=-group["lr"])


# --- the record of an algorithm --------------------------------------------------------------------

Shape = tuple[int, int, bool]
"""``(outputs, inputs, projected)`` of one trained tensor: ``projected`` where the algorithm projects its inputs."""

Accounting = Callable[[list[Shape], tuple[int, ...], tuple[float, ...] | None], Gaussian | M2]
"""From the shapes of all trained tensors, a rank for each and the shares of the squared clip to the mechanism."""


def _as_gaussian(shapes: list[Shape], ranks: tuple[int, ...], shares: tuple[float, ...] | None) -> Gaussian:
    """Return the Gaussian mechanism, whatever the shapes: right for every algorithm that sums exactly what it clips."""
    return Gaussian()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The record of a training algorithm: what it looks at, what it is accounted as, what it needs.

    The guarantee needs both ``accounted_as`` and ``view``: the view must sum what the mechanism describes.

    Attributes:
        name: What users call it.
        summary: What it does, in one sentence.
        rank: "projection" where it draws projections of some rank itself and therefore needs one, "module" where the
            rank is that of the adapters in the module, "none" where it takes none.
        has_frame: True if its projection comes in a Haar and a Wishart frame.
        accounted_as: The mechanism of one release, its noise left out, from the shapes, ranks and shares of all
            tensors.
        view: How it looks at one trained matrix, from the matrix, the plan and the rank for this matrix. Other trained
            tensors are always looked at as they are.
        subspace_view: One view over all trained tensors within a given subspace, in place of one view each. An
            algorithm with such a view needs a subspace and a joint clip.
        check_layer: Called with the name of the selected algorithm and a trained tensor; raises
            :class:`InvalidParameterError` if that algorithm must not train it. It is also called for other
            algorithms, with tensors that say (by ``only_for``) that they belong to this one.
        adapt: From a module, a rank and an ``insecure_seed`` to the module with its adapters, for ``privproj
            train`` and for audits. None where the module is trained as it is.
        step_hook: From the module, the plan and the random streams to what is called after every release.
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
        """True if the algorithm draws projections itself."""
        return self.rank == "projection"

    @property
    def needs_subspace(self) -> bool:
        """True if the algorithm trains within a subspace that has to be found before."""
        return self.subspace_view is not None

    def shape(self, trained: Trained) -> Shape:
        """Return the shape of one trained tensor for accounting; other tensors than matrices are one row."""
        return (*trained.shape, self.projects) if trained.is_matrix else (1, trained.size, False)

    def views(self, trained: list[Trained], plan: Plan) -> list[View]:
        """Return the views of all trained tensors under a plan, one for each or one for all in a subspace."""
        if self.subspace_view is not None:
            return [self.subspace_view(trained, plan.algorithm.subspace)]
        return [
            (self.view if one.is_matrix else View)(one, plan, rank)
            for one, rank in zip(trained, plan.ranks, strict=True)
        ]
