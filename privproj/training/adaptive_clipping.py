"""Define adaptive clipping: the clipping norm follows a quantile of gradient norms.

The method is from arXiv 1905.03871. Every release has the noisy sum of gradients and a noisy count of the records that
were not clipped (C31: adaptive clipping, docs/proofs.md). The next clipping norm is post-processing of the count.
"""

import math
from dataclasses import dataclass, replace

from privproj.errors import InvalidParameterError
from privproj.parameters import DEVIATION, check_parameters, number, parameter

# expected batch size divided by the default standard deviation of the noise on the count (arXiv 1905.03871)
DEFAULT_BATCHES_OVER_SIGMA = 20.0

LEAST_CLIP = 1e-20  # smallest clipping norm of a plan, in the unit of the gradients

LARGEST_CLIP = 1e12  # largest clipping norm of a plan, in the unit of the gradients

CLIP = number("a number from 1e-20 to 1e12", LEAST_CLIP, LARGEST_CLIP)  # clipping norm


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """Options of adaptive clipping, which tracks a quantile of the gradient norms.

    After every release the clipping norm ``C`` becomes ``C exp(-learning_rate (b - target_quantile))``. Here ``b`` is
    the noisy number of records that were not clipped, divided by the expected batch size. The noise on the sum of
    gradients is proportional to the ``C`` of the same release.

    The released count is the noisy sum of ``b_i - 1/2`` over the batch, where ``b_i`` is 1 if record ``i`` was not
    clipped, else 0. Adding or removing one record changes this sum by 1/2. A plain count would change by 1 and need
    more noise (C31: adaptive clipping).

    Args:
        target_quantile: The fraction of the records that should not be clipped, above 0 and below 1.
        learning_rate: The step size for the logarithm of the clipping norm, above 0 and at most 10.
        sigma: The standard deviation of the noise on the released count, in records, from 1e-12 to 1e12. None: a
            twentieth of the public expected batch size.
        least: The smallest clipping norm, from 1e-20 to 1e12.
        most: The largest clipping norm, from ``least`` to 1e12.

    Raises:
        InvalidParameterError: A value is outside its range.

    >>> from privproj.training import AdaptiveClipping
    >>> clipping = AdaptiveClipping(target_quantile=0.5, learning_rate=0.2, sigma=5.0)
    >>> round(clipping.next_clip(1.0, centered_count=50.0, expected_batch=100.0), 4)
    0.9048
    """

    target_quantile: float = parameter(
        number("a number above 0 and below 1", 0.0, 1.0, open_low=True, open_high=True), default=0.5
    )
    learning_rate: float = parameter(number("a number above 0 and at most 10", 0.0, 10.0, open_low=True), default=0.2)
    sigma: float | None = parameter(DEVIATION)
    least: float = parameter(CLIP, default=LEAST_CLIP)
    most: float = parameter(CLIP, default=LARGEST_CLIP)

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.most < self.least:
            raise InvalidParameterError("most", self.most, f"a number from {self.least:g} (least) to 1e12")

    def for_batches(self, expected_batch: float) -> "AdaptiveClipping":
        """Return a copy of the options in which ``sigma`` is a number.

        If ``sigma`` is None, it becomes a twentieth of the expected batch size.

        Args:
            expected_batch: The public expected batch size ``q N``, in records, above 0.

        Returns:
            The options.
        """
        # S = q N / 20
        return self if self.sigma is not None else replace(self, sigma=expected_batch / DEFAULT_BATCHES_OVER_SIGMA)

    def next_clip(self, clip: float, centered_count: float, expected_batch: float) -> float:
        """Return the next clipping norm from the noisy count of unclipped records.

        Args:
            clip: The clipping norm of this release, in the unit of the gradients.
            centered_count: The noisy sum of ``b_i - 1/2`` over the batch, in records; ``b_i`` is 1 if record ``i`` was
                not clipped, else 0.
            expected_batch: The public expected batch size ``q N``, in records, above 0.

        Returns:
            The next clipping norm, between ``least`` and ``most``.
        """
        # C exp(-rate (b - quantile)),  b = count/(q N) + 1/2, on a log scale so that no step overflows
        share = centered_count / expected_batch + 0.5
        moved = math.log(clip) - self.learning_rate * (share - self.target_quantile)
        return min(max(math.exp(min(max(moved, -700.0), 700.0)), self.least), self.most)
