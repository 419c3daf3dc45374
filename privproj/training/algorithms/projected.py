"""Define algorithms with random projections: M2, two variants, and Flora.

All of them project the inputs of every trained matrix. M2 clips the norm of the whole gradient and sums the projected
gradients. The other three algorithms (M2 with projected clipping, projected DP-SGD, Flora) clip the projected gradients
that they sum, so they are accounted as the Gaussian mechanism. Flora may use one projection for several releases. The
others draw a new projection for every release.
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
    """The linear map of M2, which multiplies gradients by a fresh random projection.

    The projection (inputs x rank) has orthonormal columns and may be public. The norm of the whole gradient is clipped.
    Noise is added to the sum of the projected gradients (C4: random sensitivity).
    """

    # The release is S = sum_j c_j G_j Q + sigma Xi (outputs x rank), with the projection Q, the gradient G_j of record
    # j, its clipping factor c_j and a standard normal Xi. If E is a standard normal matrix of the layer's size, E Q is
    # standard normal too. So S is distributed as (sum_j c_j G_j + sigma E) Q, the release of M2 (C4: random
    # sensitivity), and E need not be drawn.
    clips_what_it_sums, is_orthogonal = False, True
    fresh = False

    def __init__(self, trained: Trained, plan: Plan, rank: int) -> None:
        # The rank of a sketch, which is not an orthogonal projection, may exceed the number of inputs.
        super().__init__(trained, plan, min(rank, trained.shape[1]) if self.is_orthogonal else rank)
        self.shape = trained.shape[0], self.rank

    def refresh(self, streams: Streams) -> None:
        """Draw a new projection, independent of all earlier ones."""
        inputs = self.trained.shape[1]
        q, r = orthonormal(inputs, self.rank, self.trained.weight, streams.projection)
        # The gradient estimate is post-processing. Q R is a Gaussian matrix with N(0, 1) entries, for d inputs and rank
        # r.
        # A release times (d/r) Q^T, or (R R^T/r) Q^T, is outputs x inputs.
        back = q.T * (inputs / self.rank) if self.plan.algorithm.frame != "wishart" else (r @ r.T / self.rank) @ q.T
        # E|sqrt(d/r) G Q|^2 = |G|^2.
        longer = (inputs / self.rank) ** 0.5 if self.clips_what_it_sums else 1.0
        self.q, self.back = q * longer, back / longer
        self.fresh = True

    def sketched(self, x: Tensor) -> Tensor:
        """Return the inputs ``x`` of a layer times the projection of this release."""
        return x @ self.q.to(x)

    def update(self, mean: Tensor) -> Update:
        """Return two factors of the gradient estimate, for a released mean.

        The first factor is the mean (outputs x rank), and the second is a matrix (rank x inputs). Raises
        :class:`InvalidParameterError` if the projection was already used for a release.
        """
        if not self.fresh:
            raise InvalidParameterError(
                self.trained.name, "a used projection", "given a fresh projection for each release"
            )
        self.fresh = False
        return mean, self.back


class _ProjectedClip(Projected):
    """The linear map of M2 with projected clipping: a scaled random projection.

    The projected gradient is clipped. Before clipping, its expected squared norm equals the squared norm of the
    whole gradient, so the same clipping norm is suitable (C38: utility of projections).
    """

    clips_what_it_sums = True


class _ProjectedDPSGD(View):
    """The linear map of projected DP-SGD, which multiplies gradients by ``A^T A``.

    ``A`` (rank x inputs) is fresh in each release, has entries N(0, 1/rank), and may be public. The product is clipped,
    and noise is added to the whole sum.
    """

    def refresh(self, streams: Streams) -> None:
        shape = self.rank, self.trained.shape[1]
        # A = N/sqrt(r), so that E A^T A = I.
        self.a = normal(shape, self.trained.weight, streams.projection) / self.rank**0.5
        # An orthonormal basis of the range: P_A = Q Q^T.
        self.q = torch.linalg.qr(self.a.T.double())[0].to(self.a)

    def sketched(self, x: Tensor) -> Tensor:
        return (x @ self.a.T) @ self.a

    def update(self, mean: Tensor) -> Update:
        """Return two factors of the released mean projected to the row space of ``A``.

        ``A`` (rank x inputs) is the random projection of this release.
        """
        # The rows of the sum are in the row space of A, so this removes only noise (post-processing; C38: utility of
        # projections).
        return mean @ self.q, self.q.T


class _Flora(Projected):
    """The linear map of Flora, which multiplies gradients by a random sketch.

    The sketch (rank x inputs) has entries N(0, 1/rank) and is kept for several steps. The sketched gradients are
    clipped and summed, and noise is added. Momentum is post-processing, so a step is the subsampled Gaussian mechanism
    (C3: Gaussian profile; C17: subsampling).
    """

    clips_what_it_sums, is_orthogonal = True, False
    age = 0
    moment: Tensor | None = None

    def refresh(self, streams: Streams) -> None:
        """Draw a new sketch after every ``every`` steps, and transfer the momentum to it."""
        if self.age % self.plan.algorithm.every == 0:
            shape = self.rank, self.trained.shape[1]
            # A = N/sqrt(r).
            new = normal(shape, self.trained.weight, streams.projection) / self.rank**0.5
            if self.moment is not None:
                # Unbiased because E A^T A = I.
                # m <- m A_old A^T.
                self.moment = (self.moment @ self.a) @ new.T
            self.a, self.q = new, new.T
        self.age += 1

    def update(self, mean: Tensor) -> Update:
        # m <- beta m + (1 - beta) R/(q N); the first m has no earlier part.
        beta = self.plan.algorithm.beta
        new = (1.0 - beta) * mean
        self.moment = new if self.moment is None else beta * self.moment + new
        return self.moment, self.a


def _m2_mechanism(shapes: list[Shape], ranks: tuple[int, ...], shares: tuple[float, ...] | None) -> Gaussian | M2:
    """Return the M2 mechanism of one release of all tensors, without a noise multiplier.

    ``shares`` is None if the tensors are clipped jointly. In this case, an unprojected tensor raises
    :class:`InvalidParameterError`.
    """
    if shares is None:
        # With an unprojected tensor, epsilon would not be smaller than that of DP-SGD.
        _check_ranks(shapes, ranks)
    if len(shapes) == 1:
        outputs, inputs, _ = shapes[0]
        # One layer: C4 (random sensitivity), or C5 (any rank) if differences may have a higher rank.
        return M2(dim=inputs, rank=min(ranks[0], inputs), columns=outputs)
    counts = Counter(
        # With per-layer clipping, a rank of at least the number of inputs is accounted as unprojected.
        (inputs, min(rank, inputs) if projected else inputs, share)
        for (_, inputs, projected), rank, share in zip(shapes, ranks, shares or (None,) * len(shapes), strict=True)
    )
    # Layers of one shape are counted, and their shares are added: C5 (joint clipping) or C6 (clipping per layer).
    layers = tuple(Layer(dim=d, rank=r, count=n, share=share and n * share) for (d, r, share), n in counts.items())
    return M2(layers=layers, clipping="per-layer" if shares else "joint")


def _check_ranks(shapes: list[Shape], ranks: tuple[int, ...]) -> None:
    """Raise an error unless every tensor is projected to a rank below its number of inputs.

    If there is only one tensor, its rank may equal its number of inputs.
    """
    for (outputs, inputs, projected), rank in zip(shapes, ranks, strict=True):
        if not projected or rank > inputs or (rank == inputs and len(shapes) > 1):
            remedy = "use a smaller rank" if projected else "freeze the unprojected tensors"
            most = "at most" if projected and len(shapes) == 1 else "below"
            expected = f"{most} {inputs} for a tensor of {outputs} x {inputs} with joint clipping"
            remedy = f"{remedy}, or pass clipping=per-layer"
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
