"""Define the secret Gaussian sketch with noise."""

import math
from dataclasses import dataclass

from privproj.assumptions import Assumption, DataAssumption, Requirement
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms.base import Mechanism
from privproj.parameters import flag, number, parameter, whole_number
from privproj.result import limit_text

SIZE = number(open_low=True)  # a norm or a standard deviation

# parameters from which gamma is computed
MATRIX_PARAMETERS = ("eigen_floor", "frobenius_bound", "sensitivity", "sketch_sigma", "noise_sigma")


@dataclass(frozen=True, kw_only=True)
class Sketch(Mechanism):
    """A secret Gaussian sketch with noise.

    The release is ``Q A^T + N``. The query matrix ``Q``, with ``m`` columns, is computed from the dataset, and ``Q'``
    is that of a neighboring dataset. ``A`` is secret, and freshly sampled for each release unless ``fixed_projection``
    is True. ``A`` has the shape ``rank x m`` and independent entries ``N(0, sketch_sigma^2)``. The entries of ``N``
    have the standard deviation ``noise_sigma``.

    Give either ``gamma``, or the parameters from ``eigen_floor`` to ``noise_sigma``, from which ``gamma`` is computed.
    ``gamma``, ``eigen_floor``, ``frobenius_bound`` and ``sensitivity`` are assumptions on all datasets and all
    neighbors. If ``enforced`` is True, clipping enforces ``frobenius_bound`` and ``sensitivity``, so these two are not
    assumptions.

    Args:
        rank: The number of rows of ``A``, from 1 to 1e9; None only for the rank query.
        gamma: The ratio ``(eigen_floor + noise_sigma^2/sketch_sigma^2) / |Q Q^T - Q' Q'^T|_F`` for the worst neighbors,
            above 0 and up to 1e15.
        eigen_floor: A lower bound of the least eigenvalue of ``Q Q^T``, from 0 to 1e100.
        frobenius_bound: An upper bound of ``|Q|_F``, above 0 and up to 1e100.
        sensitivity: An upper bound of ``|Q - Q'|_F`` for all neighbors, above 0 and up to 1e100.
        sketch_sigma: The standard deviation of the entries of ``A``, above 0 and up to 1e100. Default:
            ``1/sqrt(rank)``.
        noise_sigma: The standard deviation of the entries of ``N``, above 0 and up to 1e100.
        eigenvalues: The rank of ``Q Q^T - Q' Q'^T``, from 1 to 1e12; needed by the bounds ``rdp``, ``tcdp`` and
            ``lora-by-design``.
        layer_count: The number of independent sketches in one release, from 1 to 1e6.
        step_smoothness: The learning rate times the smoothness of the loss, for the bound ``lora-by-design`` only.
        enforced: Whether clipping enforces ``frobenius_bound`` and ``sensitivity``, so that they are not assumptions.
        fixed_projection: Whether one ``A`` is used for all releases.

    Raises:
        InvalidParameterError: A value is outside its range, or both ``gamma`` and parameters that determine it are
            given.

    >>> from privproj import Sketch, epsilon
    >>> round(epsilon(Sketch(rank=16, gamma=1000.0), delta=1e-5).value, 5)
    0.01107
    """

    name = "sketch"
    summary = "Multiply a matrix by a fresh secret Gaussian matrix, and add noise."
    example = "rank=16 gamma=1000"
    finds_rank = True
    can_be_sampled = False
    requirements = (Requirement.SECRET_SKETCH, Requirement.QUERY_INDEPENDENT_OF_SKETCH)
    default_relation = "replace"
    poisson = False
    remedy = "more noise (a larger gamma)"
    rank: int | None = parameter(whole_number(high=10**9), "Rows of the sketching matrix.", "R")
    gamma: float | None = parameter(
        number(high=1e15, open_low=True),
        "Assumption on the query matrices Q and Q' of all neighboring datasets: G |Q Q^T - Q' Q'^T|_F <= (least "
        "eigenvalue of Q Q^T) + (noise variance) / (variance of the entries of the sketching matrix). Replaces the "
        "options from --eigen-floor to --noise-sigma.",
        "G",
    )
    eigen_floor: float = parameter(
        number(), "Assumption: lower bound of the eigenvalues of Q Q^T.  [default: 0]", "LAM", default=0.0
    )
    frobenius_bound: float | None = parameter(SIZE, "Upper bound of the Frobenius norm |Q|_F.", "BF")
    sensitivity: float | None = parameter(SIZE, "Upper bound of |Q - Q'|_F for neighboring datasets.", "BS")
    sketch_sigma: float | None = parameter(
        SIZE, "Standard deviation of the entries of the sketching matrix.  [default: 1/sqrt(R)]", "SA", is_rare=True
    )
    noise_sigma: float | None = parameter(SIZE, "Standard deviation of the noise.", "SG")
    eigenvalues: int | None = parameter(
        whole_number(high=10**12), "Rank of Q Q^T - Q' Q'^T, for the published bounds.", "N", is_rare=True
    )
    layer_count: int = parameter(
        whole_number(high=10**6),
        "Number of independent sketches in one release.  [default: 1]",
        "L",
        default=1,
        is_rare=True,
    )
    step_smoothness: float | None = parameter(
        SIZE, "Learning rate times smoothness (lora-by-design).", "EB", is_rare=True
    )
    enforced: bool = flag(
        "Declare that clipping enforces --frobenius-bound and --sensitivity, so that they are not assumptions."
    )
    fixed_projection: bool = flag("Use one sketching matrix for all steps.")

    @property
    def projects_apart(self) -> bool:
        """Whether one release has several sketches, which must be independent."""
        return self.layer_count > 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma is not None:
            names = [name for name in MATRIX_PARAMETERS if getattr(self, name) not in (None, 0.0)]
            if names or self.enforced:
                name = names[0] if names else "enforced"
                raise InvalidParameterError(name, getattr(self, name), "omitted if gamma is given")

    @property
    def floor(self) -> float:
        """The number ``eigen_floor + noise_sigma^2/sketch_sigma^2`` (C14).

        The eigenvalues of the covariance of each column of the release, divided by ``sketch_sigma^2``, are at least
        this number.

        Raises:
            InvalidParameterError: ``noise_sigma`` was omitted.
        """
        noise = self.noise_sigma
        if noise is None:
            raise InvalidParameterError(
                "noise_sigma", "nothing", "a number", "give noise_sigma, the standard deviation of the noise"
            )
        variance = 1.0 / self.needed_rank if self.sketch_sigma is None else self.sketch_sigma**2
        # lam is eigen_floor, sigma_g is noise_sigma and sigma_A is sketch_sigma.
        # lam + sigma_g^2/sigma_A^2 (C14).
        return self.eigen_floor + noise**2 / variance

    def ratio(self, change: float | None) -> float:
        """Return the parameter ``gamma``, or else ``floor / change``, rounded down.

        Args:
            change: An upper bound of ``|Q Q^T - Q' Q'^T|_F`` for the query matrices of all neighbors; None if it is
                unknown.

        Returns:
            A positive number without a unit.

        Raises:
            InvalidParameterError: Both ``gamma`` and ``change`` are missing, or the ratio is not a positive double.
        """
        if self.gamma is not None:
            return self.gamma
        if change is None or not change > 0.0:
            missing = "sensitivity" if self.sensitivity is None else "frobenius_bound"
            remedy = "give sensitivity, frobenius_bound and noise_sigma, or gamma, which replaces them"
            raise InvalidParameterError(missing, "nothing", "a number", remedy)
        # Gamma = (lam + sigma_g^2/sigma_A^2)/B_C (C14), rounded down.
        gamma = self.floor / change * (1.0 - 1e-14)
        if not 0.0 < gamma < math.inf:
            raise InvalidParameterError("gamma", gamma, "a positive double", "use norms and noise of comparable size")
        return gamma

    @property
    def gamma_of_matrices(self) -> float:
        """The ratio ``gamma`` if a difference of query matrices may have any rank (C14)."""
        has_norms = self.frobenius_bound is not None and self.sensitivity is not None
        # |Q Q^T - Q' Q'^T|_F <= 2 B_F B_S, where B_F is frobenius_bound and B_S is sensitivity
        return self.ratio(2.0 * self.frobenius_bound * self.sensitivity if has_norms else None)  # pyright: ignore

    @property
    def gamma_of_one_column(self) -> float:
        """The ratio ``gamma`` if neighboring query matrices differ by one column (C14)."""
        # The norm of the column is at most the sensitivity, so |Q Q^T - Q' Q'^T|_F <= sensitivity^2.
        return self.ratio(None if self.sensitivity is None else self.sensitivity**2)


def matrix_assumptions(mechanism: Sketch) -> tuple[Assumption, ...]:
    """Return the assumptions on the norms and eigenvalues of the query matrix.

    Assumptions that clipping enforces are omitted.
    """
    if mechanism.gamma is not None:
        return (DataAssumption.EIGENVALUE_RATIO.at(least=limit_text(mechanism.gamma, up=True)),)
    limits = [(DataAssumption.EIGENVALUE_FLOOR, mechanism.eigen_floor or None, True)]
    if not mechanism.enforced:
        limits += [(DataAssumption.SENSITIVITY, mechanism.sensitivity, False)]
        limits += [(DataAssumption.FROBENIUS_NORM, mechanism.frobenius_bound, False)]
    return tuple(kind.at(limit=limit_text(size, up=up)) for kind, size, up in limits if size is not None)


def column_assumptions(mechanism: Sketch) -> tuple[Assumption, ...]:
    """Return the assumptions of bounds for which a record is a column of the query matrix."""
    column = DataAssumption.RECORD_IS_COLUMN.at()
    if mechanism.gamma is not None:
        ratio = DataAssumption.EIGENVALUE_RATIO_OF_COLUMN.at(least=limit_text(mechanism.gamma, up=True))
        return (column, ratio)
    return (column, *matrix_assumptions(mechanism))


def check_finite_divergence(mechanism: Sketch) -> None:
    """Raise an error if ``gamma`` is at most 1, so that Renyi divergences are infinite.

    Raises:
        UnsupportedError: ``gamma`` is at most 1.
    """
    if mechanism.gamma_of_matrices <= 1.0:
        raise UnsupportedError(
            f"gamma must be above 1, got {mechanism.gamma_of_matrices:.4g}. Use "
            f"more noise, or the bound exact-rank1 if a "
            "record is one column"
        )
