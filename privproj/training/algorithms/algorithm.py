"""The record that makes a way of training an algorithm: what it looks at, what it is accounted as, what it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from privproj.mechanisms import M2, Gaussian
from privproj.training.generators import Streams
from privproj.training.plan import Plan
from privproj.training.taps import AnyTap, Tap
from privproj.training.view import SampledGradients, View, WholeGradient

Shape = tuple[int, int, bool]
"""``(outputs, inputs, projected)`` of one trained tensor: ``projected`` where the algorithm projects its inputs."""

Accounting = Callable[[list[Shape], tuple[int, ...], tuple[float, ...] | None], Gaussian | M2]
"""From the shapes of all trained tensors, a rank for each and the shares of the squared clip to the mechanism."""


def _as_gaussian(shapes: list[Shape], ranks: tuple[int, ...], shares: tuple[float, ...] | None) -> Gaussian:
    """The Gaussian mechanism, whatever the shapes: right for every algorithm that sums exactly what it clips."""
    return Gaussian()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The record of a training algorithm: what it looks at, what it is accounted as, what it needs.

    Soundness rests on ``accounted_as`` and ``view`` together: what the view lets into the sum must be what the
    mechanism says.

    Attributes:
        name: What users call it.
        summary: What it does, in one sentence.
        rank: "projection" where it draws projections of some rank itself and therefore needs one, "module" where the
            rank is that of the adapters in the module, "none" where it takes none.
        has_frame: True if its projection comes in a Haar and a Wishart frame.
        never_lengthens: True if what it clips is never longer than the gradient, so that a proved bound on the norm of
            gradients can stand in for the clip.
        accounted_as: The mechanism of one release, its noise left out, from the shapes, ranks and shares of all
            tensors.
        view: How it looks at one trained matrix, from the tap, the plan and the rank for this matrix. Other trained
            tensors are always looked at as they are.
        subspace_view: One view over all trained tensors within a given subspace, in place of one view each. An
            algorithm with such a view needs a subspace and a joint clip.
        check_layer: Called with the name of the algorithm that was asked for and a tap; raises
            :class:`InvalidParameter` where that algorithm must not train this layer. It is also asked about other
            algorithms, for layers that say (by ``only_for``) that they belong to this one.
        adapt: From a module, a rank and an ``insecure_seed`` to the module with its adapters, for ``privproj
            train`` and for audits. None where the module is trained as it is.
        step_hook: From the module, the plan and the random streams to what is called after every release.
    """

    name: str
    summary: str
    rank: Literal["none", "projection", "module"] = "none"
    has_frame: bool = False
    never_lengthens: bool = False
    accounted_as: Accounting = _as_gaussian
    view: Callable[[Any, Plan, int], View] = WholeGradient
    subspace_view: Callable[[list[AnyTap], Any], View] | None = None
    check_layer: Callable[[str, AnyTap], None] = lambda algorithm, tap: None
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

    def shape(self, tap: AnyTap) -> Shape:
        """What the accounting is told about one trained tensor; what is no matrix counts as one row, unprojected."""
        return (*tap.shape, self.projects) if isinstance(tap, Tap) else (1, tap.size, False)

    def views(self, taps: list[AnyTap], plan: Plan, subspace: Any) -> list[View]:
        """The views of all trained tensors under a plan, one for each tap or one for all in a subspace."""
        if self.subspace_view is not None:
            return [self.subspace_view(taps, subspace)]
        ranks = plan.ranks or (plan.rank or 1,) * len(taps)
        return [
            self.view(tap, plan, rank) if isinstance(tap, Tap) else SampledGradients(tap, plan, rank)
            for tap, rank in zip(taps, ranks, strict=True)
        ]
