"""Gaussian sketches: secret ones with noise, and public ones."""

import math
from dataclasses import dataclass

from privproj.errors import InvalidParameter
from privproj.mechanisms.base import Mechanism, NoisyMechanism
from privproj.validation import boolean, real, whole

EXPECTED_SIZE = "a positive number up to 1e100"
"""What is expected of a norm or a deviation."""

MATRIX_PARAMETERS = ("eigen_floor", "frobenius_bound", "sensitivity", "sketch_sigma", "noise_sigma")
"""The parameters that ``gamma`` stands for."""


@dataclass(frozen=True, kw_only=True)
class Sketch(Mechanism):
    """Release ``Q A^T + N``: ``A`` of shape ``rank x m``, i.i.d. ``N(0, sketch_sigma^2)``, ``N`` of ``noise_sigma``.

    ``A`` is secret, fresh for each release and used once. Either ``gamma`` is given, or what it is computed from:
    ``eigen_floor <= lambda_min(Q Q^T)``, ``|Q|_F <= frobenius_bound`` and ``|Q - Q'|_F <= sensitivity`` for all
    neighbours. ``sketch_sigma`` is ``1/sqrt(rank)`` unless given. ``enforced`` says that clipping enforces both norms.
    ``eigenvalues`` is the rank of ``Q Q^T - Q' Q'^T`` (for the bounds as printed), ``layer_count`` how many independent
    sketches one release has, ``step_smoothness`` the learning rate times the smoothness (``lora-by-design``).
    """

    name = "sketch"
    finds_rank = True
    can_be_sampled = False
    assumes = (
        "the sketching matrix is secret, drawn afresh for each release and used once: nothing else that was computed "
        "from it is released",
        "the query is not a function of the sketching matrix",
    )
    default_relation = "replace"
    poisson = False
    remedy = "more noise (a larger gamma)"
    rank: int | None = None
    gamma: float | None = None
    eigen_floor: float = 0.0
    frobenius_bound: float | None = None
    sensitivity: float | None = None
    sketch_sigma: float | None = None
    noise_sigma: float | None = None
    eigenvalues: int | None = None
    layer_count: int = 1
    step_smoothness: float | None = None
    enforced: bool = False
    fixed_projection: bool = False

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        boolean("enforced", self.enforced)
        boolean("fixed_projection", self.fixed_projection)
        if self.rank is not None:
            set_field(self, "rank", whole("rank", self.rank, "a whole number rank from 1 to 1e9", 1, 10**9))
        for name in ("frobenius_bound", "sensitivity", "sketch_sigma", "noise_sigma", "step_smoothness"):
            if getattr(self, name) is not None:
                set_field(self, name, real(name, getattr(self, name), EXPECTED_SIZE, 0.0, 1e100, open_low=True))
        set_field(self, "eigen_floor", real("eigen_floor", self.eigen_floor, "a number from 0 to 1e100", 0.0, 1e100))
        if self.gamma is not None:
            set_field(
                self, "gamma", real("gamma", self.gamma, "a gamma above 0 and up to 1e15", 0, 1e15, open_low=True)
            )
            given = [name for name in MATRIX_PARAMETERS if getattr(self, name) not in (None, 0.0)]
            if given or self.enforced:
                name = given[0] if given else "enforced"
                raise InvalidParameter(name, getattr(self, name), f"either gamma, or {', '.join(MATRIX_PARAMETERS)}")
        count = whole("layer_count", self.layer_count, "a whole number of layers from 1 to 1e6", 1, 10**6)
        set_field(self, "layer_count", count)
        if self.eigenvalues is not None:
            expected = "a whole number of eigenvalues >= 1"
            set_field(self, "eigenvalues", whole("eigenvalues", self.eigenvalues, expected, 1, 10**12))

    @property
    def needed_rank(self) -> int:
        """The rank; raises :class:`InvalidParameter` where it was left out."""
        if self.rank is None:
            raise InvalidParameter("rank", "nothing", "a rank", "only the rank query leaves it out")
        return self.rank

    @property
    def floor(self) -> float:
        """``lam + sigma_g^2/sigma_A^2``, the least eigenvalue of ``Sigma/sigma_A^2``."""
        noise = self.noise_sigma
        if noise is None:
            raise InvalidParameter("gamma", "nothing", "gamma, or noise_sigma with sensitivity")
        variance = 1.0 / self.needed_rank if self.sketch_sigma is None else self.sketch_sigma**2
        return self.eigen_floor + noise**2 / variance

    def ratio(self, change: float | None) -> float:
        """``Gamma = floor / change``, rounded down."""
        if self.gamma is not None:
            return self.gamma
        if change is None or not change > 0.0:
            missing = "sensitivity" if self.sensitivity is None else "frobenius_bound"
            raise InvalidParameter(missing, "nothing", f"{missing}, or gamma")
        found = self.floor / change * (1.0 - 1e-14)
        if not 0.0 < found < math.inf:
            raise InvalidParameter("gamma", found, "norms and noise of comparable size")
        return found

    @property
    def gamma_of_matrices(self) -> float:
        """``Gamma`` with ``B_C = 2 B_F B_S``, which bounds ``|Q Q^T - Q' Q'^T|_F``."""
        known = self.frobenius_bound is not None and self.sensitivity is not None
        return self.ratio(2.0 * self.frobenius_bound * self.sensitivity if known else None)  # pyright: ignore

    @property
    def gamma_of_one_column(self) -> float:
        """``Gamma`` with ``B_C = B_S^2``: one column of norm at most ``B_S`` appears or disappears."""
        return self.ratio(None if self.sensitivity is None else self.sensitivity**2)

    def parameters(self) -> dict[str, object]:
        """The parameters that were given."""
        given = super().parameters()
        return {
            k: v for k, v in given.items() if not (k == "layer_count" and v == 1) and not (k == "eigen_floor" and not v)
        }


@dataclass(frozen=True, kw_only=True)
class PublicSketch(NoisyMechanism):
    """Release ``Q A^T + N`` together with ``A``, ``rank x m`` i.i.d. ``N(0, 1/rank)`` and fresh per release.

    ``noise_multiplier = z`` is the standard deviation of ``N`` over the sensitivity ``max |Q - Q'|_F``. ``dim`` is
    accepted and plays no role.
    """

    name = "sketch-public"
    finds_rank = True
    assumes = (
        "the sketching matrix is drawn afresh for each release, independently of the data and of all that shaped the "
        "query",
        "the norm is clipped before sketching",
        "the seed of the sketch cannot be guessed by anyone who can shape the data",
    )
    with_rank = "falls"
    rank: int | None = None
    dim: int | None = None
    fixed_projection: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        boolean("fixed_projection", self.fixed_projection)
        if self.rank is not None:
            expected = "a whole number rank from 1 to 1e6"
            object.__setattr__(self, "rank", whole("rank", self.rank, expected, 1, 10**6))
        if self.dim is not None:
            object.__setattr__(self, "dim", whole("dim", self.dim, "a whole number dim >= 1", 1, 10**12))

    @property
    def needed_rank(self) -> int:
        """The rank; raises :class:`InvalidParameter` where it was left out."""
        if self.rank is None:
            raise InvalidParameter("rank", "nothing", "a rank", "only the rank query leaves it out")
        return self.rank
