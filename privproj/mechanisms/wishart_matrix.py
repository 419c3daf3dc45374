"""Define the matrix Wishart mechanism without noise, which is not private."""

from dataclasses import dataclass

from privproj.mechanisms.base import Mechanism
from privproj.parameters import parameter, whole_number


@dataclass(frozen=True, kw_only=True)
class WishartMatrix(Mechanism):
    """The mechanism that multiplies a matrix by a Wishart matrix; not private.

    The release is ``M V``, without noise, for a matrix ``V`` and a random Wishart matrix ``M``. Every query about this
    mechanism raises :class:`UnsupportedError`, which states the reason.

    Args:
        dim: The number of rows of ``V``, at least 1.
        rank: The degrees of freedom of ``M ~ W_dim(I/rank, rank)``, at least 1.
        columns: The number of columns of ``V``, at least 1.

    Raises:
        InvalidParameterError: A value is not a whole number of at least 1.

    >>> from privproj import UnsupportedError, WishartMatrix, epsilon
    >>> try:
    ...     epsilon(WishartMatrix(dim=64, rank=16, columns=8), delta=1e-5)
    ... except UnsupportedError as error:
    ...     print(str(error).split(":")[0])
    no bound of wishart-matrix is a guarantee; the bound early-matrix is refuted
    """

    name = "wishart-matrix"
    summary = "Multiply a matrix by a Wishart matrix, without noise. Not private."
    example = "dim=64 rank=16 columns=8"
    can_be_sampled = False
    default_relation = "replace"
    poisson = False
    dim: int | None = parameter(whole_number(), "Rows of the matrix query.", "D")
    rank: int | None = parameter(whole_number(), "Degrees of freedom of the Wishart matrix.", "R")
    columns: int | None = parameter(whole_number(), "Columns of the matrix query.", "M")
