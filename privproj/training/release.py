"""The release boundary: the one place that touches per-example quantities, and what leaves it is private.

Per example a norm, a clip, a contribution to a sum; per logical step the noise, once, and a public denominator. What is
done with the released means afterwards is post-processing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privproj.errors import InvalidParameter
from privproj.training import per_example
from privproj.training.generators import Streams, normal
from privproj.training.plan import Plan
from privproj.training.processes import Processes
from privproj.training.view import View, WholeGradient

SLACK = 1e-6
"""The share by which norms are overstated, far above the rounding of a sum in single precision. Proof: no contribution
exceeds the clip."""

RESIDUAL = math.sqrt(2.0)
"""The largest norm of a softmax residual ``p - e_y``. Proof."""


@dataclass(frozen=True)
class Clip:
    """``c_j = min(1, C_l / n_jl)`` with ``n_jl`` the norm over the tensors of group ``l``: one group, or one each."""

    norms: tuple[float, ...]

    def factors(self, squared: Tensor, finite: Tensor) -> Tensor:
        """Examples x groups, 0 for examples that are not finite; ``squared`` is examples x tensors."""
        grouped = squared if len(self.norms) > 1 else squared.sum(1, keepdim=True)
        limit = squared.new_tensor(self.norms)
        factors = (limit / (grouped.sqrt() * (1.0 + SLACK) + torch.finfo(squared.dtype).tiny)).clamp_max(1.0)
        return torch.where(finite[:, None], factors, 0.0)


class PrivateRelease:
    """Accumulates the clipped sum of one logical batch, in any number of parts, and releases it once, noised.

    ``record`` is called, and has to return, before a noised sum exists: it is the ledger's place.
    """

    def __init__(
        self, plan: Plan, views: list[View], streams: Streams, record: Callable[[], object], processes: Processes
    ) -> None:
        self.plan, self.views, self.streams, self.record, self.processes = plan, views, streams, record, processes
        shares = plan.shares or (1.0,)
        self.clip = Clip(tuple(plan.clip * math.sqrt(share) for share in shares))
        self.begin()

    def begin(self) -> None:
        """Draw the projections of the next release, before any of its data is seen."""
        with per_example.full_precision():
            for view in self.views:
                view.refresh(self.streams)
        self.sums: list[Tensor | None] = [None] * len(self.views)

    def add(self, examples: int) -> None:
        """Add the clipped contributions of what the taps have seen of this many examples."""
        with per_example.full_precision():
            norms = [view.squared_norms() for view in self.views]
            seen = [i for i, found in enumerate(norms) if found is not None]
            if not seen:
                return
            like = norms[seen[0]]
            assert like is not None
            squared = torch.stack([like.new_zeros(examples) if n is None else n.to(like) for n in norms], 1)
            finite = torch.isfinite(squared).all(1)
            factors = self.factors(squared, finite)
            kept = None if bool(finite.all()) else finite
            for i in seen:
                c = factors[:, min(i, factors.shape[1] - 1)].to(self.views[i].parameters[0])
                part, total = per_example.to_double(self.views[i].clipped_sum(c, kept)), self.sums[i]
                self.sums[i] = part if total is None else total + part

    def factors(self, squared: Tensor, finite: Tensor) -> Tensor:
        """The factor by which each example is scaled down, for each group of tensors."""
        return self.clip.factors(squared, finite)

    def release(self) -> list[Tensor]:
        """``(sum_j c_j G_j + sigma C Xi) / (q N)`` for every view; :meth:`begin` starts the next release."""
        sums = self.sums
        self.sums = [None] * len(self.views)
        self.record()
        with torch.no_grad():
            return [self.noisy_mean(view, total) for view, total in zip(self.views, sums, strict=True)]

    def noisy_mean(self, view: View, total: Tensor | None) -> Tensor:
        """The noised sum over all processes, divided by the public expected batch. An empty batch gives noise alone."""
        like = per_example.to_double(view.parameters[0].new_zeros(view.shape))
        total = self.processes.sum(like if total is None else total.reshape(view.shape).contiguous())
        if self.processes.first:
            total = total + self.plan.noise_std * normal(view.shape, view.parameters[0], self.streams.noise)
        return (self.processes.spread(total) / self.plan.expected_batch).to(view.parameters[0].dtype)


class BoundedRelease(PrivateRelease):
    """Without clipping norms: one linear layer, whose inputs and output gradients are bounded each on its own.

    ``|G_j| = |g_j| |x_j| <= sqrt(2) sqrt(R^2 + 1) = C``: a softmax residual has at most norm ``sqrt(2)`` and a feature
    vector with its 1 for the bias ``sqrt(R^2 + 1)``. What exceeds its bound (another loss, a larger feature) is
    scaled down to it, so that the bound is proved for any data.
    """

    def factors(self, squared: Tensor, finite: Tensor) -> Tensor:
        """``min(1, sqrt(2)/|g_j|) min(1, sqrt(R^2 + 1)/|x_j|)``."""
        (view,) = self.views
        assert isinstance(view, WholeGradient)
        pair = view.tap.captured()
        if pair[0].shape[1] != 1:
            raise InvalidParameter(
                "feature_bound", self.plan.feature_bound, "one input vector per record", "use max_grad_norm"
            )
        limits = RESIDUAL, math.hypot(self.plan.feature_bound or 0.0, 1.0)
        g, x = (part[:, 0].norm(dim=1) * (1.0 + SLACK) for part in pair)
        factors = (limits[0] / g.clamp_min(limits[0])) * (limits[1] / x.clamp_min(limits[1]))
        return torch.where(finite, factors, 0.0)[:, None]


def bounded_norm(feature_bound: float) -> float:
    """The largest norm of a gradient of a softmax head on features of norm at most ``feature_bound``, with bias."""
    return RESIDUAL * math.hypot(feature_bound, 1.0)
