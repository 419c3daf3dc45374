"""Show that a Wishart projection without noise reveals the projected matrix.

A release is ``Y = M V`` for a query matrix ``V`` and a random symmetric matrix ``M``. So ``V^T Y = V^T M V`` is
symmetric. For another query ``V'``, the product ``V'^T Y`` is symmetric with probability zero. The exceptions are
proportional matrices, and matrices of rank one with the same right factor, such as vectors. The symmetry test is a
counterexample to every claim that ``M V``, or the LoRA update ``G A^T A``, is private without noise (arXiv 2601.21719,
Proposition 2).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privproj.errors import InvalidParameterError
from privproj.parameters import integer

Array = NDArray[np.floating]

# soundness (measured): differences of asymmetry up to this many units of rounding are ties, and a tie never separates
# two queries. The asymmetry for the true query is about ten units.
TIE = 1e3


def asymmetry(output: Array, query: Array) -> float:
    """Return the relative asymmetry of ``V^T Y`` for an output and a query.

    For an output ``Y`` and a query ``V`` the asymmetry is ``|V^T Y - Y^T V|_F / |V^T Y|_F``. The value is 0 if
    ``V^T Y = 0``, and about ten times the machine epsilon if ``Y = M V`` for a symmetric ``M``. For an update
    ``Y = G A^T A``, which is projected from the right, pass the transposes of ``Y`` and ``G``.

    Args:
        output: ``Y``, a matrix of shape dim x columns.
        query: ``V``, a matrix of the same shape.

    Returns:
        A number from 0 to 2.

    Raises:
        InvalidParameterError: The arguments are not matrices of one shape.

    >>> import numpy as np
    >>> from privproj.contrib.audit import asymmetry
    >>> query = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> symmetric = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> asymmetry(symmetric @ query, query) < 1e-12
    True
    >>> round(asymmetry(symmetric @ query, query + np.array([[1.0, 0.0], [0.0, 0.0]])), 4)
    0.1006
    """
    if output.ndim != 2 or output.shape != query.shape:
        raise InvalidParameterError("output", output.shape, f"a matrix of shape {query.shape}, like the query")
    # |V^T Y - Y^T V|_F / |V^T Y|_F.
    product = query.T @ output
    size = float(np.linalg.norm(product))
    return float(np.linalg.norm(product - product.T)) / size if size > 0.0 else 0.0


@dataclass(frozen=True)
class SymmetryTest:
    """The result of the symmetry test over a number of releases.

    Attributes:
        auc: The fraction of releases whose asymmetry against the true query is smaller than against the other query.
            Ties count half, so the fraction is 1/2 if nothing separates the queries.
        draws: The number of releases.

    >>> from privproj.contrib.audit import SymmetryTest
    >>> SymmetryTest(auc=1.0, draws=100).separates
    True
    """

    auc: float
    draws: int

    @property
    def separates(self) -> bool:
        """True if every release has the smaller asymmetry against the true query."""
        return self.auc == 1.0


def symmetry_test(
    query: Array, other: Array, rank: int, draws: int = 1000, rng: np.random.Generator | None = None
) -> SymmetryTest:
    """Test whether releases of a Wishart projection without noise identify the query.

    A release is ``M query`` with a fresh ``M ~ W_dim(I/rank, rank)``. The asymmetry of a release against ``query`` is
    compared with the asymmetry against ``other``. Differences up to a thousand times the machine epsilon count as ties.
    If ``query`` and ``other`` are proportional, or single columns, nothing separates them.

    Args:
        query: The query that is released, a matrix of shape dim x columns.
        other: The query of a neighboring dataset, a matrix of the same shape.
        rank: Degrees of freedom of the Wishart matrix, at least 1.
        draws: Number of releases, at least 1.
        rng: A random generator; None for a new one with a random seed.

    Returns:
        A :class:`SymmetryTest`.

    Raises:
        InvalidParameterError: The queries are not matrices of one shape, or ``rank`` or ``draws`` is outside its range.

    >>> import numpy as np
    >>> from privproj.contrib.audit import symmetry_test
    >>> rng = np.random.default_rng(0)
    >>> query = rng.standard_normal((16, 4))
    >>> other = query.copy()
    >>> other[0, 0] += 1.0
    >>> symmetry_test(query, other, rank=4, draws=50, rng=rng)
    SymmetryTest(auc=1.0, draws=50)
    """
    generator = np.random.default_rng() if rng is None else rng
    count = integer("rank", rank, "an integer >= 1")
    trials = integer("draws", draws, "an integer >= 1")
    wins = 0.0
    for _ in range(trials):
        # M = Z Z^T with Z = N/sqrt(r), so M ~ W_dim(I/r, r), and Y = M V.
        frame = generator.standard_normal((query.shape[0], count)) / np.sqrt(count)
        output = frame @ (frame.T @ query)
        gap = asymmetry(output, other) - asymmetry(output, query)
        tie = abs(gap) <= TIE * float(np.finfo(output.dtype).eps)
        wins += 0.5 if tie else float(gap > 0.0)
    return SymmetryTest(auc=wins / trials, draws=trials)
