"""Clip and sum per-example gradients, and release their mean with noise.

Each record's gradient over all tensors is scaled down to the clipping norm ``C`` and added to a sum. In every step,
noise is added to the sum once, and the noisy sum is divided by the public expected batch size. An algorithm may sum
projected gradients instead (:mod:`privproj.training.view`).

Neighboring sums differ by at most the sensitivity, which is ``C``, or ``2C`` under replace. The standard deviation of
the noise is the noise multiplier times the sensitivity. So a step is a release of the Gaussian mechanism or, for the
algorithm ``m2``, of the mechanism M2 (claims C3 and C4 in docs/proofs.md). With adaptive clipping, the release also
includes a noisy count of the records that were not clipped (claim C31).
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

# soundness: norms are overstated by this relative amount, so that no contribution exceeds the clipping norm. It is
# above the rounding errors of norms, factors and sums in double precision, and of one factor times one gradient.
SLACK = 1e-6


class NoisySum:
    """The clipped sum of the gradients of one batch, which is released once with noise.

    ``views`` are the linear maps that the algorithm applies to gradients. ``record`` counts a release before its noisy
    sum is computed. If ``record`` raises an error, nothing is released.
    """

    def __init__(
        self, plan: Plan, views: list[View], streams: Streams, record: Callable[[], object], processes: Processes
    ) -> None:
        self.plan, self.views, self.streams, self.record, self.processes = plan, views, streams, record, processes
        self.set_clip(plan.clip)
        self.fresh = self.has_gradients = False
        self.begin()

    def set_clip(self, norm: float) -> None:
        """Set the clipping norm of the next records, which also scales the noise on their sum."""
        shares = self.plan.shares or (1.0,)
        # C_l = C sqrt(share_l), so that sum_l C_l^2 = C^2 (C6: a clipping norm for each layer).
        self.norm, self.clips = norm, tuple(norm * math.sqrt(share) for share in shares)

    def resume_clip(self, clip: object) -> None:
        """Restore the last clipping norm of a stopped run with adaptive clipping.

        Raises :class:`InvalidParameterError` if added records are not released yet, or if the norm is outside the range
        of the plan.
        """
        adaptive = self.plan.adaptive_clipping
        if adaptive is None:
            return
        if any(part is not None for part in self.sums):
            raise InvalidParameterError("clip", clip, "loaded between batches")
        expected = f"a number from {adaptive.least:g} to {adaptive.most:g}"
        self.set_clip(real("clip", clip, expected, adaptive.least, adaptive.most))

    def begin(self) -> None:
        """Clear the sum of gradients, and draw the projections of the next release.

        Call this before any record of the batch is read.
        """
        self.forget()
        with per_example.full_precision():
            # If a batch is abandoned without a release, its projections are used for the next release.
            for view in () if self.fresh else self.views:
                view.refresh(self.streams)
        self.fresh = True

    def forget(self) -> None:
        """Set the sum of gradients and the count of unclipped records to zero."""
        self.sums: list[Tensor | None] = [None] * len(self.views)
        self.count = torch.zeros((), dtype=torch.float64)

    def add(self, examples: int) -> None:
        """Add the clipped gradients of ``examples`` records to the sum.

        The trained tensors have stored these gradients in the last call of the loss function.
        """
        with per_example.full_precision():
            norms = {i: rows for i, view in enumerate(self.views) if (rows := view.squared_norms()) is not None}
            none = next(iter(norms.values()), torch.zeros(0)).new_zeros(examples)
            squared = torch.stack([norms.get(i, none).to(none.device) for i in range(len(self.views))], 1)
            finite = torch.isfinite(squared).all(1)
            factors = self.factors(squared, finite)
            if not norms:
                # Records without a gradient contribute 0 and are not clipped.
                self.count = self.count + 0.5 * examples
                return
            if self.plan.adaptive_clipping is not None:
                # sum_j (b_j - 1/2), b_j = 1 if c_j = 1; a record that is not finite counts as clipped (C31: adaptive
                # clipping).
                self.count = self.count + ((factors[:, 0] >= 1.0).double() - 0.5).sum()
            # On a CPU this test is cheap. On other devices it would wait for the device.
            mask = None if finite.device.type == "cpu" and bool(finite.all()) else finite
            for i in norms:
                # sum_j c_j G_j, over this and the earlier parts of the batch.
                c = factors[:, min(i, factors.shape[1] - 1)].to(self.views[i].parameters[0].device)
                part = self.views[i].clipped_sum(c, mask)
                # Entries are tested only until one gradient is not zero.
                self.has_gradients = self.has_gradients or bool(part.any())
                total = self.sums[i]
                self.sums[i] = part if total is None else total.add_(part)

    def factors(self, squared: Tensor, finite: Tensor) -> Tensor:
        """Return the factors that clip each record's gradient, records x groups of tensors.

        A factor is ``min(1, C / norm)``, with the gradient norm and the clipping norm ``C`` of the group. With joint
        clipping all tensors are one group, and with per-layer clipping each tensor is one. ``squared`` has squared
        norms, records x tensors. Records that are not ``finite`` get the factor 0.
        """
        grouped = squared if len(self.clips) > 1 else squared.sum(1, keepdim=True)
        over = (grouped.sqrt() * (1.0 + SLACK) + torch.finfo(squared.dtype).tiny).unbind(1)
        # c_jl = min(1, C_l / n_jl). n_jl is overstated by SLACK, and adding the smallest float avoids a division by 0.
        # The C_l are numbers, because a tensor of them would have to be copied to a GPU.
        factors = torch.stack([limit / n for limit, n in zip(self.clips, over, strict=True)], 1).clamp_max(1.0)
        return torch.where(finite[:, None], factors, 0.0)

    def release(self) -> list[Tensor]:
        """Return the noisy mean of the clipped gradients, one tensor for each :class:`View`.

        The mean is the noisy sum divided by the expected batch size. Call :meth:`begin` before the next batch.
        """
        sums, count = self.sums, self.count
        self.forget()
        self.fresh = False
        # The release is counted, on the disk if there is a ledger, before its noisy sum exists. If counting fails, all
        # processes stop, because their next batches would be mixed with this one.
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
        """Return the noisy sum of ``b_j - 1/2`` over the records ``j`` of all processes.

        ``b_j`` is 1 if record ``j`` was not clipped, else 0. ``count`` is the sum for this process.
        """
        assert adaptive.sigma is not None
        like = per_example.exact(self.views[0].parameters[0].new_zeros(()))
        # sum_j (b_j - 1/2) + S xi.
        return float(self._with_noise([count.to(like)], [like], adaptive.sigma)[0])

    def noisy_means(self, sums: list[Tensor | None]) -> list[Tensor]:
        """Return noisy sums of gradients over all processes, divided by the batch size.

        ``sums`` has one sum of this process for each :class:`View`. None: no record has a gradient for the view. The
        divisor is the public expected batch size.
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
        """Return the sum of each tensor over all processes, with Gaussian noise added once.

        ``deviation`` is the standard deviation of the noise. ``likes`` has, for each sum, a tensor with the dtype and
        device in which the noise is drawn.
        """
        totals = self.processes.sum(parts)
        for total, like in zip(totals, likes, strict=True) if self.processes.first else ():
            total.add_(normal(total.shape, like, self.streams.noise).to(total.device), alpha=deviation)
        return self.processes.spread(totals)
