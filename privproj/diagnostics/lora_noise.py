"""What LoRA's random ``A`` does to a gradient row: exact moments of its noise term. No privacy guarantee.

With ``A`` of shape ``r x m`` a step of LoRA moves the weights along ``q A^T A = q + u`` for each gradient row ``q``:
``u = q (A^T A - I)`` (2409.17538v9, Lemmas 6.1, B.1, C.2). Its entries look Gaussian for large ``r``, with a constant
in the distance that is left open; that likeness says nothing about privacy (:mod:`privproj.audit.symmetry`).
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from privproj.errors import InvalidParameter
from privproj.validation import real, whole

Initialisation = Literal["gaussian", "uniform"]
NOT_PRIVACY = "a diagnostic, not a privacy guarantee: G A^T A reveals G (symmetry test)"
"""Warning on every number of this file."""


@dataclass(frozen=True)
class _NoiseMoments:
    """Mean and variance of one entry of ``u``; ``rank_rate = 9/sqrt(r) (|q|_1/|q|_2)^3`` where ``q`` was given in full.

    The total-variation distance of the entry to a Gaussian with these moments is at most an unspecified constant times
    ``rank_rate``.
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
    initialisation: Initialisation = "gaussian",
    variance: float | None = None,
    row_sum: float | None = None,
) -> _NoiseMoments:
    """Moments of ``u_i`` for a row with ``q_i = entry``, ``|q|_2 = row_norm`` and, if given, ``|q|_1 = row_sum``.

    ``variance = v`` of the entries of ``A``, ``1/rank`` by default, which makes the mean 0:
    mean ``(r v - 1) q_i``; variance ``r v^2 (|q|^2 + q_i^2)`` (gaussian) or ``r v^2 (|q|^2 - q_i^2/5)`` (uniform, as
    Kaiming: ``v = 2/m``). Raises :class:`InvalidParameter` for values outside their domain.
    """
    if initialisation not in get_args(Initialisation):
        raise InvalidParameter("initialisation", initialisation, "gaussian or uniform")
    norm = real("row_norm", row_norm, "a positive norm of the row", 0.0, 1e100, open_low=True)
    q = real("entry", entry, f"an entry of size at most row_norm={norm:g}", -norm, norm)
    r = whole("rank", rank, "a whole number rank >= 1")
    v = 1.0 / r if variance is None else real("variance", variance, "a positive variance", 0.0, 1e100, open_low=True)
    excess = q * q if initialisation == "gaussian" else -q * q / 5.0
    rate = None
    if row_sum is not None:
        total = real("row_sum", row_sum, f"a sum of sizes of at least row_norm={norm:g}", norm * (1.0 - 1e-12), 1e100)
        rate = 9.0 / math.sqrt(r) * (total / norm) ** 3
    return _NoiseMoments((r * v - 1.0) * q, r * v * v * (norm * norm + excess), rate)
