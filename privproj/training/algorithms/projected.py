"""Training by random projections: M2, M2 with projected clipping and projected DP-SGD (all fresh), and Flora.

Each draws a new projection of the inputs' side of every trained matrix for every release. They differ in what is
clipped. M2 takes the norm of the whole gradient and sums the projected one. Only that gains privacy from the freshness
of the projection, which may be known to all. M2 with projected clipping and projected DP-SGD clip what they sum: they
are accounted as the Gaussian mechanism. The mechanism ``m1`` clips before it projects, and no algorithm here does.
"""

from collections import Counter

import torch
from torch import Tensor

from privproj.errors import InvalidParameterError
from privproj.mechanisms import M2, Gaussian, Layer
from privproj.training.generators import Streams, normal, orthonormal
from privproj.training.plan import Plan
from privproj.training.trained import Trained
from privproj.training.view import Algorithm, Shape, Update, View


class Projected(View):
    """M2: a fresh projection of the inputs' side, ``Q`` (inputs x rank) with orthonormal columns.

    ``Q R`` is a Gaussian matrix with N(0, 1) entries, ``d`` the number of inputs and ``r`` the rank. Released is ``S =
    sum_j c_j G_j Q + sigma Xi``, outputs x rank. Since ``E Q`` is standard normal for a standard normal ``E``, this is
    ``(sum_j c_j G_j + sigma E) Q``, which M2 releases (claim C4), and no matrix of the layer's size is drawn. The
    update is ``(d/r) S Q^T`` in the Haar frame and ``S (R R^T/r) Q^T`` in the Wishart frame: post-processing. The norm
    is that of ``G_j`` (full clip). With projected clipping ``sqrt(d/r) Q`` stands for ``Q`` in the sum and in its norm,
    so that a projected gradient is as long as the whole one on average and one clip serves both; its update is
    ``sqrt(d/r) S Q^T`` (claim C38).
    """

    clips_what_it_sums, is_orthogonal = False, True
    fresh = False

    def __init__(self, trained: Trained, plan: Plan, rank: int) -> None:
        # A sketch, which is no orthogonal projection, may exceed the inputs.
        super().__init__(trained, plan, min(rank, trained.shape[1]) if self.is_orthogonal else rank)
        self.shape = trained.shape[0], self.rank

    def refresh(self, streams: Streams) -> None:
        """Draw a new projection, independent of all that was drawn before."""
        inputs = self.trained.shape[1]
        q, r = orthonormal(inputs, self.rank, self.trained.weight, streams.projection)
        # (d/r) Q^T, or (R R^T/r) Q^T: what lifts a release back to outputs x inputs.
        back = q.T * (inputs / self.rank) if self.plan.algorithm.frame != "wishart" else (r @ r.T / self.rank) @ q.T
        # E|sqrt(d/r) G Q|^2 = |G|^2.
        longer = (inputs / self.rank) ** 0.5 if self.clips_what_it_sums else 1.0
        self.q, self.back = q * longer, back / longer
        self.fresh = True

    def sketched(self, x: Tensor) -> Tensor:
        """Return the product of ``x``, which has the inputs last, with what projects the sum."""
        return x @ self.q.to(x)

    def update(self, mean: Tensor) -> Update:
        """Return the gradient estimate ``((d/r) S) Q^T`` or ``S (R R^T/r) Q^T``, as its two factors ``S`` and the rest.

        Raises :class:`InvalidParameterError` for a projection that served a release already.
        """
        if not self.fresh:
            raise InvalidParameterError(
                self.trained.name, "a used projection", "given a fresh projection for each release"
            )
        self.fresh = False
        return mean, self.back


class _ProjectedClip(Projected):
    """M2 with projected clipping: the norm is that of ``sqrt(d/r) G_j Q``, which is summed."""

    clips_what_it_sums = True


class _ProjectedDPSGD(View):
    """Projected DP-SGD: ``G_j A^T A`` is clipped and noised, ``A`` (rank x inputs, entries N(0, 1/rank)) being fresh.

    The update is the release times ``P_A``, the projection onto the range of ``A``, which holds the whole sum: the
    noise outside of it is left out (post-processing, claim C38). ``A`` may be known, since what is summed is clipped.
    """

    def refresh(self, streams: Streams) -> None:
        """Draw a new projection ``A`` with independent entries N(0, 1/rank)."""
        shape = self.rank, self.trained.shape[1]
        # A = N/sqrt(r), so that E A^T A = I.
        self.a = normal(shape, self.trained.weight, streams.projection) / self.rank**0.5
        # An orthonormal basis of the range: P_A = Q Q^T.
        self.q = torch.linalg.qr(self.a.T.double())[0].to(self.a)

    def sketched(self, x: Tensor) -> Tensor:
        """Return the product ``x A^T A``, for the norm and for the sum, ``x`` having the inputs last."""
        return (x @ self.a.T) @ self.a

    def update(self, mean: Tensor) -> Update:
        """Return the release on the range of ``A``, as the factors ``Y Q`` and ``Q^T``."""
        return mean @ self.q, self.q.T


class _Flora(Projected):
    """A momentum kept in the sketch: ``m <- beta m + (1 - beta) R / (q N)``, ``W <- W - lr m A``.

    ``R = sum_j c_j G_j A^T + sigma Xi`` (outputs x rank) is clipped after the projection. ``A`` (rank x inputs, entries
    N(0, 1/rank)) is drawn every ``every`` steps, when the momentum is carried over by ``m <- m A_old A^T``; ``E A^T A =
    I`` makes that unbiased. Transfer and decompression are post-processing, so this is the subsampled Gaussian
    mechanism (claims C3 and C17) for any ``every``.
    """

    clips_what_it_sums, is_orthogonal = True, False
    age = 0
    moment: Tensor | None = None

    def refresh(self, streams: Streams) -> None:
        """Draw a new sketch and carry the momentum over to it, where the old one has served its steps."""
        if self.age % self.plan.algorithm.every == 0:
            shape = self.rank, self.trained.shape[1]
            # A = N/sqrt(r).
            new = normal(shape, self.trained.weight, streams.projection) / self.rank**0.5
            if self.moment is not None:
                # m <- m A_old A^T.
                self.moment = (self.moment @ self.a) @ new.T
            self.a, self.q = new, new.T
        self.age += 1

    def update(self, mean: Tensor) -> Update:
        """Return the momentum ``m`` (outputs x rank) and ``A`` (rank x inputs), the factors of the estimate."""
        # m <- beta m + (1 - beta) R/(q N); the first m has no earlier part.
        beta = self.plan.algorithm.beta
        new = (1.0 - beta) * mean
        self.moment = new if self.moment is None else beta * self.moment + new
        return self.moment, self.a


def _m2_mechanism(shapes: list[Shape], ranks: tuple[int, ...], shares: tuple[float, ...] | None) -> Gaussian | M2:
    """M2 with full clipping, its noise left out.

    Per layer, a tensor with fewer inputs than its rank is not projected, and is accounted so. Raises
    :class:`InvalidParameterError` where the joint clip would take the gain of the projection away.
    """
    if shares is None:
        _check_ranks(shapes, ranks)
    if len(shapes) == 1:
        outputs, inputs, _ = shapes[0]
        # One layer: claim C4, or C5 where a record's change has a higher rank.
        return M2(dim=inputs, rank=min(ranks[0], inputs), columns=outputs)
    counts = Counter(
        (inputs, min(rank, inputs) if projected else inputs, share)
        for (_, inputs, projected), rank, share in zip(shapes, ranks, shares or (None,) * len(shapes), strict=True)
    )
    # Layers of one shape count together, with the sum of their shares: claim C5 (joint clip) or C6 (per layer).
    layers = tuple(Layer(dim=d, rank=r, count=n, share=share and n * share) for (d, r, share), n in counts.items())
    return M2(layers=layers, clipping="per-layer" if shares else "joint")


def _check_ranks(shapes: list[Shape], ranks: tuple[int, ...]) -> None:
    """Raise where a tensor under the joint clip is not projected to less than its inputs."""
    for (outputs, inputs, projected), rank in zip(shapes, ranks, strict=True):
        if not projected or rank > inputs or (rank == inputs and len(shapes) > 1):
            remedy = "use a smaller rank" if projected else "freeze the unprojected tensors"
            expected = f"below {inputs} for a tensor of {outputs} x {inputs} with joint clipping"
            remedy = f"{remedy}, or use clipping=per-layer"
            raise InvalidParameterError("rank", rank, expected, remedy)


RECORDS = (
    Algorithm(
        name="m2", view=Projected, accounted_as=_m2_mechanism, rank="projection", has_frame=True,
        summary="Clip every record's gradient, add noise to the sum, and release its fresh random projection only.",
    ),
    Algorithm(
        name="m2-projected-clip", view=_ProjectedClip, rank="projection", has_frame=True,
        summary="Project every record's gradient freshly and scale it to its length, clip that, add noise to the sum.",
    ),
    Algorithm(
        name="projected-dp-sgd", view=_ProjectedDPSGD, rank="projection",
        summary="Project every record's gradient and lift it back, clip it, add noise to the sum, project that.",
    ),
    Algorithm(
        name="flora", view=_Flora, rank="projection",
        summary="Clip a random sketch of every record's gradient, add noise to the sum, keep momentum in the sketch.",
    ),
)  # fmt: skip
