"""A clip that follows a quantile of the norms, told by a noisy count of the records that were not clipped.

Every release comes with a noisy count, accounted together with it as one release (claim C31, docs/proofs.md). What the
clip becomes is a function of that count, and so post-processing. Source: arXiv 1905.03871.
"""

import math
from dataclasses import dataclass, replace

from privproj.errors import InvalidParameterError
from privproj.parameters import DEVIATION, check_parameters, number, parameter

DEFAULT_BATCHES_OVER_SIGMA = 20.0
"""The expected batch over the deviation of the noise on the count, where none is given (1905.03871)."""

LEAST_CLIP = 1e-20
"""The smallest clip that a plan may have, in the unit of the gradients."""

LARGEST_CLIP = 1e12
"""The largest clip that a plan may have, in the unit of the gradients."""

CLIP = number("a number from 1e-20 to 1e12", LEAST_CLIP, LARGEST_CLIP)
"""The range of a clip."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """How the clip follows a quantile of the norms of gradients: ``C <- C exp(-rate (b - quantile))``.

    ``b`` is the noisy share of the expected batch that was not clipped. A clip above the quantile shrinks, one below it
    grows. Each release has the noise ``z`` times the clip that it was made with. What is released is the sum of ``b_i -
    1/2`` over the records of the batch, ``b_i`` being 1 for a record that was not clipped and else 0: one record there
    or not moves it by 1/2, where a plain count moves by 1 and costs more (claim C31).

    Args:
        target_quantile: The share of the records that the clip should leave as they are, above 0 and below 1.
        learning_rate: The rate at which the log of the clip moves, above 0 and at most 10.
        sigma: ``S``, the standard deviation of the noise on the count, in records, from 1e-12 to 1e12. None: a
            twentieth of the expected batch, which is public.
        least: The smallest clip, from 1e-20 to 1e12.
        most: The largest clip, from ``least`` to 1e12.

    Raises:
        InvalidParameterError: A value is outside its range.

    >>> from privproj.training import AdaptiveClipping
    >>> clipping = AdaptiveClipping(target_quantile=0.5, learning_rate=0.2, sigma=5.0)
    >>> round(clipping.next_clip(1.0, centred_count=50.0, expected_batch=100.0), 4)
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
        """Return the same with its deviation: the one given, or a twentieth of the expected batch.

        Args:
            expected_batch: The public divisor ``q N``, in records, above 0.

        Returns:
            A record whose ``sigma`` is a number.
        """
        # S = q N / 20
        return self if self.sigma is not None else replace(self, sigma=expected_batch / DEFAULT_BATCHES_OVER_SIGMA)

    def next_clip(self, clip: float, centred_count: float, expected_batch: float) -> float:
        """Return the clip of the next release: post-processing of the noisy count of this one.

        Args:
            clip: The clip of this release, in the unit of the gradients.
            centred_count: The noisy sum of ``b_i - 1/2`` over the batch, in records.
            expected_batch: The public divisor ``q N``, in records, above 0.

        Returns:
            The next clip, between ``least`` and ``most``.
        """
        # C exp(-rate (b - quantile)),  b = count/(q N) + 1/2, on a log scale so that no step overflows
        share = centred_count / expected_batch + 0.5
        moved = math.log(clip) - self.learning_rate * (share - self.target_quantile)
        return min(max(math.exp(min(max(moved, -700.0), 700.0)), self.least), self.most)
