"""Compute moments of the noise that a step of LoRA adds to a gradient.

The moments are not a privacy guarantee. Let ``A``, of shape ``r x m``, be the random factor of LoRA and ``I`` the
identity. For each row ``q`` of the gradient, a step changes the weights along ``q A^T A`` instead of ``q``. The
difference ``u = q (A^T A - I)`` is the noise of the step (arXiv 2409.17538v9, Lemmas 6.1, B.1, C.2). For large ``r``
the distribution of an entry of ``u`` is close to Gaussian; the bound on the distance has a constant that the paper does
not state. This closeness does not imply privacy (docs/not-a-guarantee.md).
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from privproj.errors import InvalidParameterError
from privproj.parameters import integer, real

__all__ = ["lora_noise"]

Initialization = Literal["gaussian", "uniform"]
NOT_PRIVACY = (
    "a diagnostic, not a privacy guarantee: the product G A^T A identifies the gradient G (`privproj audit symmetry`)"
)


@dataclass(frozen=True)
class _NoiseMoments:
    """The mean and the variance of one entry of the noise ``u`` of a LoRA step.

    The total-variation distance of the entry to a Gaussian is at most a constant times ``rank_rate``. This number is
    ``9/sqrt(r) (|q|_1/|q|_2)^3`` for a gradient row ``q`` and the LoRA rank ``r``, or None if ``|q|_1`` was not given.
    """

    mean: float
    variance: float
    rank_rate: float | None = None
    warning: str = NOT_PRIVACY


def lora_noise(
    entry: float,
    row_norm: float,
    rank: int,
    *,
    initialization: Initialization = "gaussian",
    variance: float | None = None,
    row_sum: float | None = None,
) -> _NoiseMoments:
    """Return the mean and the variance of an entry of the noise of a LoRA step.

    The noise is ``u = q (A^T A - I)`` for a gradient row ``q`` and the random factor ``A``, of shape ``r x m``. If the
    entries of ``A`` have the variance ``v``, the mean is ``(r v - 1) q_i``. The variance is ``r v^2 (|q|^2 + q_i^2)``
    for Gaussian entries and ``r v^2 (|q|^2 - q_i^2/5)`` for uniform ones. These numbers describe the noise; they are
    not a privacy guarantee.

    Args:
        entry: ``q_i``, an entry of the gradient row ``q``, of absolute value at most ``row_norm``.
        row_norm: ``|q|_2``, the Euclidean norm of ``q``, above 0 and up to 1e100.
        rank: ``r``, the number of rows of ``A``, at least 1.
        initialization: The distribution of the entries of ``A``: "gaussian" or "uniform" (as in LoRA's initialization).
        variance: ``v``, the variance of the entries of ``A``, above 0 and up to 1e100; by default ``1/r``, which makes
            the mean 0.
        row_sum: ``|q|_1``, the sum of the absolute values of ``q``, at least ``row_norm``; needed only for the distance
            to a Gaussian.

    Returns:
        A record with ``mean``, ``variance``, ``warning`` and ``rank_rate``. The total-variation distance of the entry
        to a Gaussian with these moments is at most an unspecified constant times ``rank_rate``.

    Raises:
        InvalidParameterError: A value is outside its range.

    >>> from privproj.mechanisms.sketch.lora_noise import lora_noise
    >>> moments = lora_noise(entry=0.1, row_norm=1.0, rank=16)
    >>> round(moments.mean, 6), round(moments.variance, 6)
    (0.0, 0.063125)
    """
    if initialization not in get_args(Initialization):
        raise InvalidParameterError("initialization", initialization, "gaussian or uniform")
    norm = real("row_norm", row_norm, "a number above 0", 0.0, 1e100, open_low=True)
    q = real("entry", entry, f"at most row_norm = {norm:g} in absolute value", -norm, norm)
    r = integer("rank", rank, "an integer >= 1")
    v = 1.0 / r if variance is None else real("variance", variance, "a number above 0", 0.0, 1e100, open_low=True)
    excess = q * q if initialization == "gaussian" else -q * q / 5.0
    rate = None
    if row_sum is not None:
        total = real("row_sum", row_sum, f"at least row_norm = {norm:g}", norm * (1.0 - 1e-12), 1e100)
        # rank_rate = 9/sqrt(r) (|q|_1/|q|_2)^3.
        rate = 9.0 / math.sqrt(r) * (total / norm) ** 3
    # mean (r v - 1) q_i, variance r v^2 (|q|^2 + q_i^2), for uniform entries r v^2 (|q|^2 - q_i^2/5).
    return _NoiseMoments((r * v - 1.0) * q, r * v * v * (norm * norm + excess), rate)
