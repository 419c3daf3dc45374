"""M1: project first, then add noise."""

import math
from dataclasses import dataclass

from privproj.errors import InvalidParameter
from privproj.mechanisms.base import NoisyMechanism
from privproj.validation import boolean, real, whole


@dataclass(frozen=True, kw_only=True)
class M1(NoisyMechanism):
    """Release ``M V + E``, ``M = Z Z^T``, ``Z`` of shape ``dim x rank`` i.i.d. ``N(0, 1/rank)``, fresh per release.

    ``noise_multiplier = z`` is the noise deviation over the sensitivity ``s = max |V - V'|_F``. ``rank`` may exceed
    ``dim``. The other parameters describe promises of conditional bounds:

    * a vector (``columns = 1``) of unit norm with ``1 - cos(v, v') <= misalignment``; ``s = sqrt(2 misalignment)``;
    * one changed column ``v -> v'`` of a matrix whose other columns span ``span_dim = k`` dimensions: the parts
      orthogonal to that span have norms ``residual_norm`` and ``other_residual_norm`` (the same unless given) and ``1
      - cos <= residual_misalignment``, the parts in the span differ by at most ``shift_in_span``; ``s`` follows from
      them. With ``changed_columns = c`` of them, ``s`` is ``sqrt(c)`` times that of one.
    """

    name = "m1"
    finds_rank = True
    assumes = (
        "the matrix is drawn afresh for each release, independently of the data and of all that shaped the query",
        "clipping comes before projecting",
        "the seed of the matrix cannot be guessed by anyone who can shape the data",
    )
    with_rank = "falls"
    dim: int | None = None
    rank: int | None = None
    columns: int | None = None
    misalignment: float | None = None
    span_dim: int | None = None
    residual_norm: float | None = None
    other_residual_norm: float | None = None
    residual_misalignment: float | None = None
    shift_in_span: float = 0.0
    changed_columns: int = 1
    fixed_projection: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_field = object.__setattr__
        boolean("fixed_projection", self.fixed_projection)
        set_field(self, "dim", whole("dim", self.dim, "a whole number dim from 1 to 1e7", 1, 10**7))
        for name in ("rank", "columns", "changed_columns"):
            if getattr(self, name) is not None:
                set_field(
                    self, name, whole(name, getattr(self, name), f"a whole number {name} from 1 to 1e7", 1, 10**7)
                )
        for name in ("misalignment", "residual_misalignment"):
            if getattr(self, name) is not None:
                value = real(name, getattr(self, name), f"a {name.replace('_', ' ')} from 0 to below 2", 0.0, 2.0)
                if value == 2.0:
                    raise InvalidParameter(name, value, f"a {name.replace('_', ' ')} from 0 to below 2")
                set_field(self, name, value)
        for name in ("residual_norm", "other_residual_norm", "shift_in_span"):
            if getattr(self, name) is not None:
                set_field(self, name, real(name, getattr(self, name), "a number from 0 to 1e100", 0.0, 1e100))
        if self.span_dim is not None:
            expected = f"a span dimension from 0 to dim-1={(self.dim or 1) - 1}"
            set_field(self, "span_dim", whole("span_dim", self.span_dim, expected, 0, (self.dim or 1) - 1))

    @property
    def shape(self) -> tuple[int, int]:
        """``(d, r)``; raises :class:`InvalidParameter` where the rank was left out."""
        if self.rank is None or self.dim is None:
            raise InvalidParameter("rank", "nothing", "a rank", "only the rank query leaves it out")
        return self.dim, self.rank

    @property
    def largest_rank(self) -> int:
        """``min(d, m)``: the largest rank a change can have."""
        return min(self.dim or 1, self.columns or self.dim or 1)

    @property
    def norms(self) -> tuple[float, float]:
        """``(kappa, kappa')``, 1 where nothing is given."""
        first = 1.0 if self.residual_norm is None else self.residual_norm
        return first, first if self.other_residual_norm is None else self.other_residual_norm

    @property
    def span_residual(self) -> tuple[int, float, float, float]:
        """``(k, misalignment of the residuals, alpha, beta)``, ``beta = |kappa b - kappa' b'|``; one column must be
        given.

        ``beta^2 = (kappa - kappa')^2 + 2 kappa kappa' (1 - rho)``.
        """
        if self.span_dim is None or self.residual_misalignment is None:
            missing = "span_dim" if self.span_dim is None else "residual_misalignment"
            raise InvalidParameter(missing, "nothing", f"{missing} for a bound on one changed column")
        first, second = self.norms
        beta = math.sqrt((first - second) ** 2 + 2.0 * first * second * self.residual_misalignment)
        if not math.hypot(self.shift_in_span, beta) > 0.0:
            raise InvalidParameter("shift_in_span", self.shift_in_span, "a change of the column that is not 0")
        return self.span_dim, self.residual_misalignment, self.shift_in_span, beta

    @property
    def column_shift(self) -> tuple[float, float]:
        """``(alpha, beta)`` in units of the noise deviation ``sigma = z sqrt(c (alpha^2 + beta^2))``."""
        _, _, alpha, beta = self.span_residual
        size = math.hypot(alpha, beta) * math.sqrt(self.changed_columns)
        return self.mu * alpha / size, self.mu * beta / size

    def parameters(self) -> dict[str, object]:
        """The parameters that were given."""
        given = super().parameters()
        return {k: v for k, v in given.items() if (k, v) not in (("changed_columns", 1), ("shift_in_span", 0.0))}
