"""Views: which linear image of a layer's per-example gradient is clipped, summed and released, one class each.

Every view looks at ``G_j = sum_t g_jt x_jt^T`` through ``x P``: ``measured`` is what the norm is taken of, ``sketched``
what is summed. What a view does with a released mean is post-processing.
"""

from torch import Tensor

from privproj.errors import InvalidParameter
from privproj.training.capture import Tap
from privproj.training.generators import Streams, normal, orthonormal
from privproj.training.view import Full, Update


class Projected(Full):
    """M2: a fresh projection of the inputs' side, ``A^T = Q R`` with ``Q`` orthonormal (inputs x rank).

    Released is ``S = sum_j c_j G_j Q + noise``; since ``E Q`` is standard normal for a standard normal ``E``, this is
    ``(sum_j c_j G_j + sigma E) Q``, and no matrix of the layer's size is drawn. The update is ``(d/r) S Q^T`` in the
    Haar frame and ``S R R^T Q^T`` in the Wishart frame. The norm is that of ``G_j`` (full clip) or of ``G_j Q``.
    """

    def __init__(self, tap: Tap, rank: int, frame: str | None, clip_projected: bool) -> None:
        super().__init__(tap)
        self.rank, self.frame, self.clip_projected = rank, frame, clip_projected
        self.fresh = False

    def refresh(self, streams: Streams) -> None:
        """A new projection, independent of all that was drawn before."""
        inputs = self.tap.shape[1]
        self.q, r = orthonormal(inputs, self.rank, self.tap.weight, streams.projection)
        self.back = self.q.T * (inputs / self.rank) if self.frame != "wishart" else (r @ r.T / self.rank) @ self.q.T
        self.fresh = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs x rank."""
        return self.tap.shape[0], self.rank

    @property
    def clips_what_it_sums(self) -> bool:
        """Only with projected clipping."""
        return self.clip_projected

    def sketched(self, x: Tensor) -> Tensor:
        """``x Q``."""
        return x @ self.q

    def update(self, mean: Tensor) -> Update:
        """``(S, (d/r) Q^T)`` or ``(S, R R^T Q^T)``; a projection that served a release already is refused."""
        if not self.fresh:
            raise InvalidParameter(self.tap.name, "a projection used before", "a fresh projection for each release")
        self.fresh = False
        return mean, self.back


class ProjectedFirst(Full):
    """M1: ``G_j A^T A`` with a fresh ``A`` (rank x inputs, entries N(0, 1/rank)) is clipped, then noise is added."""

    def __init__(self, tap: Tap, rank: int) -> None:
        super().__init__(tap)
        self.rank = rank

    def refresh(self, streams: Streams) -> None:
        """A new projection."""
        shape = self.rank, self.tap.shape[1]
        self.a = normal(shape, self.tap.weight, streams.projection) / self.rank**0.5

    def sketched(self, x: Tensor) -> Tensor:
        """``x A^T A``."""
        return (x @ self.a.T) @ self.a
