"""The symmetry test: a matrix query after a Wishart projection without noise gives itself away.

``M`` is symmetric, so ``V^T Y = V^T M V`` is symmetric under the true ``V``; under a wrong ``V'`` it is with
probability zero, unless ``V`` and ``V'`` are proportional or both of rank one with the same right factor (the vector
case). This is the counterexample to every claim that ``M V``, or the LoRA update ``G A^T A``, is private without
noise (2601.21719, Proposition 2).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privproj.errors import InvalidParameter
from privproj.validation import whole

Array = NDArray[np.floating]

TIE = 1e3
"""Differences of asymmetry up to this many units of rounding are ties; under the true query it
is about ten (measured). Sound: a tie never counts as telling two queries apart."""


def asymmetry(output: Array, query: Array) -> float:
    """``|V^T Y - Y^T V|_F / |V^T Y|_F`` for ``output = Y`` and ``query = V``, both ``dim x columns``.

    It is 0 where ``V^T Y = 0``, and about ten units of rounding under the true query. For an update ``Y = G A^T A``,
    which is projected from the right, pass the transposes of ``Y`` and ``G``. Raises :class:`InvalidParameter` unless
    both are matrices of one shape.
    """
    if output.ndim != 2 or output.shape != query.shape:
        raise InvalidParameter("output", output.shape, f"a matrix of the query's shape {query.shape}")
    product = query.T @ output
    size = float(np.linalg.norm(product))
    return float(np.linalg.norm(product - product.T)) / size if size > 0.0 else 0.0


@dataclass(frozen=True)
class SymmetryTest:
    """``auc``: how often the asymmetry against the true query is the smaller, ties counting half; and its draws."""

    auc: float
    draws: int

    @property
    def separates(self) -> bool:
        """True if every single release told the two queries apart."""
        return self.auc == 1.0


def symmetry_test(
    query: Array, other: Array, rank: int, draws: int = 1000, rng: np.random.Generator | None = None
) -> SymmetryTest:
    """Release ``M query`` ``draws`` times, ``M ~ W_dim(I/rank, rank)``, and compare its asymmetry against both queries.

    Differences below a thousand units of rounding count as ties: where ``query`` and ``other`` are proportional, or
    single columns, nothing separates them and the area under the curve is 1/2.
    """
    generator = np.random.default_rng() if rng is None else rng
    count, trials = whole("rank", rank, "a whole number rank >= 1"), whole("draws", draws, "a whole number of draws")
    wins = 0.0
    for _ in range(trials):
        frame = generator.standard_normal((query.shape[0], count)) / np.sqrt(count)
        output = frame @ (frame.T @ query)
        gap = asymmetry(output, other) - asymmetry(output, query)
        tie = abs(gap) <= TIE * float(np.finfo(output.dtype).eps)
        wins += 0.5 if tie else float(gap > 0.0)
    return SymmetryTest(auc=wins / trials, draws=trials)
