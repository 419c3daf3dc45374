"""Flora: the momentum is kept in a random sketch of the gradient, which is drawn anew every few steps.

What is released at each step is the clipped and noised sketch of the batch. The momentum and its transfer from one
sketch to the next use releases only.
"""

from torch import Tensor

from privproj.training.algorithms.projected import Projected
from privproj.training.generators import Streams, normal
from privproj.training.plan import Plan
from privproj.training.taps import Tap
from privproj.training.view import Algorithm, Update


class _Flora(Projected):
    """A momentum kept in the sketch: ``m <- beta m + (1 - beta) R / (q N)``, ``W <- W - lr m A``.

    ``R = sum_j c_j G_j A^T + sigma Xi`` (outputs x rank) is clipped after the projection. ``A`` (rank x inputs, entries
    N(0, 1/rank)) is drawn every ``every`` steps, when the momentum is carried over by ``m <- m A_old A^T``; ``E A^T A =
    I`` makes that unbiased. Transfer and decompression are post-processing, so this is the subsampled Gaussian
    mechanism (claims C3 and C17) for any ``every``.
    """

    clips_what_it_sums = True
    age = 0
    moment: Tensor | None = None

    def __init__(self, tap: Tap, plan: Plan, rank: int) -> None:
        super().__init__(tap, plan, rank)
        # It may exceed the inputs, since a sketch is no orthogonal projection.
        self.rank = rank

    def refresh(self, streams: Streams) -> None:
        """Draw a new sketch and carry the momentum over to it, where the old one has served its steps."""
        if self.age % self.plan.every == 0:
            shape = self.rank, self.tap.shape[1]
            # A = N/sqrt(r).
            new = normal(shape, self.tap.weight, streams.projection) / self.rank**0.5
            if self.moment is not None:
                # m <- m A_old A^T.
                self.moment = (self.moment @ self.a) @ new.T
            self.a, self.q = new, new.T
        self.age += 1

    def update(self, mean: Tensor) -> Update:
        """The momentum ``m`` (outputs x rank) and ``A`` (rank x inputs), whose product is the gradient estimate."""
        # m <- beta m + (1 - beta) R/(q N); the first m has no earlier part.
        beta = self.plan.beta
        new = (1.0 - beta) * mean
        self.moment = new if self.moment is None else beta * self.moment + new
        return self.moment, self.a


RECORDS = (
    Algorithm(
        name="flora",
        summary="Clip a random sketch of every record's gradient, add noise to the sum, keep momentum in the sketch.",
        rank="projection",
        view=_Flora,
    ),
)
