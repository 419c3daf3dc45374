"""The release boundary: the one place that touches per-example quantities. What leaves it is private.

For every record of a batch its norm is taken, its gradient is scaled down to the clip, and the result is added to a
sum. For every step noise is added to the sum once, and the noised sum is divided by the public expected batch ``q N``.
What is done with these released means afterwards is post-processing.

The sum of all views together has norm at most ``C`` for each record, so neighbors shift it by at most the sensitivity
``s`` (``C``, or ``2C`` under replace). With noise of standard deviation ``sigma = z s`` this is the Gaussian release of
claim C3, and for M2 that of claim C4 (docs/proofs.md). Where the clip adapts, a noisy count of the records that were
not clipped leaves with the sum, as one release (claim C31).
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from privproj.errors import InvalidParameterError
from privproj.parameters import real
from privproj.training import per_example
from privproj.training.adaptive_clipping import AdaptiveClipping
from privproj.training.generators import Streams, normal
from privproj.training.plan import Plan
from privproj.training.processes import Processes
from privproj.training.view import View

SLACK = 1e-6  # soundness
"""The relative amount by which norms are overstated, so that no contribution exceeds the clip. It is above the rounding
of norms, factors and sums in double precision, and of one factor times one gradient."""


class NoisySum:
    """Accumulates the clipped sum of one logical batch, in any number of parts, and releases it once with noise.

    ``record`` is called, and has to return, before a noised sum exists: this is where the ledger writes.
    """

    def __init__(
        self, plan: Plan, views: list[View], streams: Streams, record: Callable[[], object], processes: Processes
    ) -> None:
        self.plan, self.views, self.streams, self.record, self.processes = plan, views, streams, record, processes
        self.set_clip(plan.clip)
        self.fresh = self.has_gradients = False
        self.begin()

    def set_clip(self, norm: float) -> None:
        """Take this clip ``C`` for what is added from now on, and its noise for what is released."""
        shares = self.plan.shares or (1.0,)
        # C_l = C sqrt(share_l), so that sum_l C_l^2 = C^2 (claim C6).
        self.norm, self.clips = norm, tuple(norm * math.sqrt(share) for share in shares)

    def resume_clip(self, clip: object) -> None:
        """Go on with a clip that an earlier part of the run has come to; one that does not adapt stays as it is."""
        adaptive = self.plan.adaptive_clipping
        if adaptive is None:
            return
        if any(part is not None for part in self.sums):
            raise InvalidParameterError("clip", clip, "loaded between batches")
        words = f"a number from {adaptive.least:g} to {adaptive.most:g}"
        self.set_clip(real("clip", clip, words, adaptive.least, adaptive.most))

    def begin(self) -> None:
        """Empty the sums, and draw the projections of the next release, where that has none yet.

        They are drawn once, before any data of the release is seen. One that was broken off leaves its own to the next.
        """
        self.forget()
        with per_example.full_precision():
            for view in () if self.fresh else self.views:
                view.refresh(self.streams)
        self.fresh = True

    def forget(self) -> None:
        """Empty the sums."""
        self.sums: list[Tensor | None] = [None] * len(self.views)
        self.count = torch.zeros((), dtype=torch.float64)

    def add(self, examples: int) -> None:
        """Add the clipped contributions of so many records, whose gradients a pass has left in the trained tensors."""
        with per_example.full_precision():
            norms = {i: rows for i, view in enumerate(self.views) if (rows := view.squared_norms()) is not None}
            none = next(iter(norms.values()), torch.zeros(0)).new_zeros(examples)
            squared = torch.stack([norms.get(i, none).to(none.device) for i in range(len(self.views))], 1)
            finite = torch.isfinite(squared).all(1)
            factors = self.factors(squared, finite)
            if not norms:
                # Gradients that did not come back are 0, which no clip shortens.
                self.count = self.count + 0.5 * examples
                return
            if self.plan.adaptive_clipping is not None:
                # sum_j (b_j - 1/2), b_j = 1 where c_j = 1: a record that is not finite counts as clipped (claim C31).
                self.count = self.count + ((factors[:, 0] >= 1.0).double() - 0.5).sum()
            # On a CPU it is cheap to ask whether all are finite. Elsewhere the answer would have to be waited for.
            mask = None if finite.device.type == "cpu" and bool(finite.all()) else finite
            for i in norms:
                # sum_j c_j G_j, over this and the earlier parts of the batch.
                c = factors[:, min(i, factors.shape[1] - 1)].to(self.views[i].parameters[0].device)
                part = self.views[i].clipped_sum(c, mask)
                # Only until the first gradient that is not zero.
                self.has_gradients = self.has_gradients or bool(part.any())
                total = self.sums[i]
                self.sums[i] = part if total is None else total.add_(part)

    def factors(self, squared: Tensor, finite: Tensor) -> Tensor:
        """Return the factors ``c_jl = min(1, C_l / n_jl)`` that scale record ``j`` down, records x groups of tensors.

        ``n_jl`` is the norm over the tensors of group ``l``. Under a joint clip there is one group with ``C_1 = C``,
        under per-layer clipping each tensor is a group and ``sum_l C_l^2 = C^2``. ``squared`` holds squared norms,
        records x tensors. ``finite`` says which records have finite gradients; the others get the factor 0.
        """
        grouped = squared if len(self.clips) > 1 else squared.sum(1, keepdim=True)
        over = (grouped.sqrt() * (1.0 + SLACK) + torch.finfo(squared.dtype).tiny).unbind(1)
        # c_jl = min(1, C_l / n_jl), where n_jl is overstated by SLACK and the smallest float keeps 0/0 away. The C_l
        # stay numbers: a tensor made of them would be waited for on its way to a GPU.
        factors = torch.stack([limit / n for limit, n in zip(self.clips, over, strict=True)], 1).clamp_max(1.0)
        return torch.where(finite[:, None], factors, 0.0)

    def release(self) -> list[Tensor]:
        """Return the released mean ``(sum_j c_j G_j + sigma Xi) / (q N)`` of every view, in the order of the views.

        ``Xi`` has independent standard normal entries and ``sigma = z s``. :meth:`begin` starts the next release.
        """
        sums, count = self.sums, self.count
        self.forget()
        self.fresh = False
        # The release is counted, on the disk if there is a ledger, before its noised sum exists. Where it cannot be
        # counted, no process goes on alone: their next batches would be mixed with this one.
        with self.processes.together():
            self.record()
        with torch.no_grad():
            means = self.noisy_means(sums)
            for view in self.views:
                view.noise_scale = self.norm / self.plan.clip
            if self.plan.adaptive_clipping is not None:
                noisy_count = self.noisy_count(count, self.plan.adaptive_clipping)
                self.set_clip(self.plan.adaptive_clipping.next_clip(self.norm, noisy_count, self.plan.expected_batch))
            return means

    def noisy_count(self, count: Tensor, adaptive: AdaptiveClipping) -> float:
        """Return the sum of ``b_j - 1/2`` over the records of all processes with its noise ``S xi``, in records."""
        assert adaptive.sigma is not None
        like = per_example.exact(self.views[0].parameters[0].new_zeros(()))
        # sum_j (b_j - 1/2) + S xi.
        return float(self._with_noise([count.to(like)], [like], adaptive.sigma)[0])

    def noisy_means(self, sums: list[Tensor | None]) -> list[Tensor]:
        """Return the sums over all processes with their noise, divided by the public expected batch ``q N``.

        There is one for each view, of its shape; it is None where no record contributed, and then the noise alone is
        released.
        """
        likes = [view.parameters[0] for view in self.views]
        parts = [
            per_example.exact(like.new_zeros(view.shape)) if total is None else total.reshape(view.shape)
            for view, like, total in zip(self.views, likes, sums, strict=True)
        ]
        # sum_j c_j G_j + sigma Xi.
        totals = self._with_noise(parts, likes, self.plan.noise_over_clip * self.norm)
        # (sum_j c_j G_j + sigma Xi) / (q N).
        return [total.div_(self.plan.expected_batch).to(like) for total, like in zip(totals, likes, strict=True)]

    def _with_noise(self, parts: list[Tensor], likes: Sequence[Tensor], deviation: float) -> list[Tensor]:
        """Return the sums of these parts over all processes, with noise of this standard deviation, added once."""
        totals = self.processes.sum(parts)
        for total, like in zip(totals, likes, strict=True) if self.processes.first else ():
            total.add_(normal(total.shape, like, self.streams.noise).to(total.device), alpha=deviation)
        return self.processes.spread(totals)
