"""Define M1, the mechanism that projects a matrix, then adds noise."""

import math
from dataclasses import dataclass

from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError
from privproj.mechanisms.base import Lift, NoisyMechanism
from privproj.parameters import WHOLE, flag, integer, number, parameter, whole_number

OF_COLUMN = ("column-exact", "column", "residual", "column-published", "residual-published")  # for one changed column
SIZE = number()
MISALIGNMENT = number(high=2.0, open_high=True)  # 1 - cos, without opposite vectors


@dataclass(frozen=True, kw_only=True)
class M1(NoisyMechanism):
    """The mechanism that projects a matrix at random, then adds noise.

    The release is ``M V + E`` with ``M = Z Z^T``, where ``Z`` is resampled for each release. ``Z`` has the shape
    ``dim x rank`` and independent entries ``N(0, 1/rank)``. The parameters from ``misalignment`` to ``changed_columns``
    are assumptions on the data, which only some bounds need. Either ``V`` is a vector of unit norm, or one column of
    ``V`` changes from ``v`` to ``v'`` between neighboring datasets, and the other columns span ``span_dim`` dimensions.

    Args:
        noise_multiplier: ``z``, the ratio of the standard deviation of the noise to the sensitivity
            ``s = max |V - V'|_F``, from 1e-12 to 1e12; None only for the sigma query.
        dim: The dimension of ``V`` that is projected, from 1 to 1e7.
        rank: The rank of the projection, from 1 to 1e7, which may exceed ``dim``; None only for the rank query.
        columns: The other dimension of ``V``, from 1 to 1e7.
        misalignment: For a unit vector (``columns = 1``): the largest ``1 - cos(V, V')``, from 0 to below 2. The
            sensitivity is then ``sqrt(2 misalignment)``.
        span_dim: For one changed column: the dimension that the other columns span, from 0 to ``dim - 1``.
        residual_norm: The norm of the part of ``v`` orthogonal to that span, from 0 to 1e100; 1 by default.
        other_residual_norm: The norm of the part of ``v'`` orthogonal to that span; ``residual_norm`` by default.
        residual_misalignment: The largest ``1 - cos`` between these two parts, from 0 to below 2.
        shift_in_span: The largest norm of the part of ``v - v'`` within the span, from 0 to 1e100. The sensitivity is
            computed from this number and the parts orthogonal to the span.
        changed_columns: The number of columns that one record changes, from 1 to 1e7. The sensitivity is that of one
            column times the square root of this number.
        fixed_projection: Whether one projection is used for all releases.

    Raises:
        InvalidParameterError: A value is outside its range.

    >>> from privproj import M1, epsilon
    >>> round(epsilon(M1(dim=1000, rank=256, noise_multiplier=20.0), delta=1e-5).value, 4)
    0.3879
    """

    name = "m1"
    summary = "Clip the whole gradient, project it, then add noise."
    example = "dim=1000 rank=256 noise_multiplier=20"
    finds_rank = True
    requirements = (Requirement.FRESH_MATRIX, Requirement.FULL_GRADIENT_CLIPPING, Requirement.SECRET_MATRIX_SEED)
    with_rank = "falls"
    used_by = (
        ("misalignment", ("secret-projection",)),
        *((name, OF_COLUMN) for name in ("span_dim", "residual_norm", "residual_misalignment", "shift_in_span")),
        ("changed_columns", OF_COLUMN),
    )
    dim: int | None = parameter(
        whole_number(high=10**7), "Dimension of the layer that is projected.", "D", is_needed=True
    )
    rank: int | None = parameter(whole_number(high=10**7), "Rank of the projection (may exceed D).", "R")
    columns: int | None = parameter(whole_number(high=10**7), "Other dimension of the weight matrix.", "M")
    misalignment: float | None = parameter(
        MISALIGNMENT,
        "Assumption for --columns 1 and vectors of norm 1: upper bound of 1 - cosine of the angle between the vectors "
        "of neighboring datasets. Needs --bound secret-projection.",
        "X",
    )
    span_dim: int | None = parameter(
        WHOLE,
        "Assumption that one record changes one column of the matrix: dimension of the span of the other columns. "
        "Needs a bound of one changed column, such as --bound column-exact.",
        "K",
    )
    residual_norm: float | None = parameter(
        SIZE,
        "Norm of the residual in the one dataset (N) and in its neighbor (N').  [default: 1]",
        "N[,N']",
        is_rare=True,
    )
    other_residual_norm: float | None = parameter(SIZE)
    residual_misalignment: float | None = parameter(
        MISALIGNMENT,
        "Assumption on the residual, the part of the changed column that is orthogonal to the other columns: upper "
        "bound of 1 - cosine of the angle between the residuals of neighboring datasets.",
        "X",
    )
    shift_in_span: float = parameter(
        SIZE,
        "Assumption: largest norm of the change of the column within the span of the other columns.",
        "A",
        default=0.0,
        is_rare=True,
    )
    changed_columns: int = parameter(
        whole_number(high=10**7),
        "Number of columns that change, one after the other.  [default: 1]",
        "C",
        default=1,
        is_rare=True,
    )
    fixed_projection: bool = flag("Use one projection for all steps.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.span_dim is not None:
            expected = f"an integer from 0 to dim - 1 = {(self.dim or 1) - 1}"
            object.__setattr__(self, "span_dim", integer("span_dim", self.span_dim, expected, 0, (self.dim or 1) - 1))

    @property
    def shape(self) -> tuple[int, int]:
        """The pair ``(d, r)`` of dimension and rank.

        Raises:
            InvalidParameterError: The rank was omitted.
        """
        assert self.dim is not None
        return self.dim, self.needed_rank

    @property
    def largest_rank(self) -> int:
        """The largest rank of a difference of neighboring sums: ``min(dim, columns)``."""
        return min(self.dim or 1, self.columns or self.dim or 1)

    @property
    def norms(self) -> tuple[float, float]:
        """The norms of the residuals of the changed column in two neighboring datasets.

        The residual is the part of the changed column orthogonal to the other columns.
        """
        first = 1.0 if self.residual_norm is None else self.residual_norm
        return first, first if self.other_residual_norm is None else self.other_residual_norm

    @property
    def span_residual(self) -> tuple[int, float, float, float]:
        """The numbers ``(k, m, alpha, beta)`` that describe the change of a column.

        The other columns span ``k`` dimensions. The parts of the changed column orthogonal to this span have the cosine
        ``1 - m`` in neighboring datasets. The change has a part of norm ``alpha`` within the span, and a part of norm
        ``beta`` orthogonal to it.

        Raises:
            InvalidParameterError: Assumptions on the column are missing, or the column does not change.
        """
        if self.span_dim is None or self.residual_misalignment is None:
            missing = "span_dim" if self.span_dim is None else "residual_misalignment"
            remedy = "give span_dim and residual_misalignment for a bound of one changed column"
            raise InvalidParameterError(missing, "nothing", "a number", remedy)
        first, second = self.norms
        # kappa and kappa' are the norms of the parts orthogonal to the span, and rho is their cosine.
        # beta^2 = (kappa - kappa')^2 + 2 kappa kappa' (1 - rho).
        beta = math.sqrt((first - second) ** 2 + 2.0 * first * second * self.residual_misalignment)
        if not math.hypot(self.shift_in_span, beta) > 0.0:
            raise InvalidParameterError("shift_in_span", self.shift_in_span, "above 0 if the residuals do not change")
        return self.span_dim, self.residual_misalignment, self.shift_in_span, beta

    @property
    def column_shift(self) -> tuple[float, float]:
        """The norms of two parts of the column's change, over the standard deviation of noise.

        The parts are those within and orthogonal to the span of the other columns.

        Raises:
            InvalidParameterError: The noise multiplier or an assumption on the column is missing.
        """
        _, _, alpha, beta = self.span_residual
        # s = sqrt(c (alpha^2 + beta^2)), sigma = z s.
        size = math.hypot(alpha, beta) * math.sqrt(self.changed_columns)
        return self.mu * alpha / size, self.mu * beta / size

    def lift(self) -> Lift:
        """Return the noise and projection error, with the release as model update (C38)."""
        # |M v|^2 = v^T (Z Z^T)^2 v has the mean 1 + (d + 1)/r for a unit vector v.
        dim, rank = self.shape
        size = dim * (self.columns or dim)
        return Lift(1.0, 1.0 + (dim + 1) / rank, size, size)
