"""Compute noise and projection error of updates, and compare training algorithms.

Two numbers describe the update of a step (docs/proofs.md, C38). The effective noise multiplier is the noise multiplier
of the DP-SGD run whose update has the same noise. The projection error is the mean squared error of the update,
relative to the square of the clipped sum. Algorithms are compared at the same epsilon and delta.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

from privproj.accounting.calibration import sigma, solve_sigma
from privproj.accounting.phase import check_mechanism
from privproj.accounting.query import composition_of
from privproj.errors import InvalidParameterError, QueryError, UnsupportedError
from privproj.mechanisms import M1, M2, Gaussian, Layer, Mechanism, PublicSketch
from privproj.mechanisms.base import Lift
from privproj.mechanisms.m2 import read_layers
from privproj.parameters import arguments_by_name, integer
from privproj.result import Result, Rows
from privproj.run import RunOptions
from privproj.sampling import IN_EPOCHS
from privproj.targets import privacy_or_risk_target


@dataclass(frozen=True, kw_only=True)
class Utility:
    """The noise and projection error of an update, compared with DP-SGD at the same privacy.

    Attributes:
        effective_noise_multiplier: The noise multiplier of the DP-SGD run whose update has the same noise.
        dp_sgd_noise_multiplier: The noise multiplier that DP-SGD needs for the same epsilon and delta in the same run.
        projection_error: The mean squared error that the projection causes in the update of one step, divided by the
            square of the clipped sum (C38); 0 without a projection.
        releases: The number of updates with a fresh projection each; 1 for a fixed projection.
        released: The number of coordinates of a release; None if the size of the gradient is unknown.
        of: The number of coordinates of the gradient; None if it is unknown.

    >>> from privproj import M2, update_utility
    >>> round(update_utility(M2(dim=64, rank=4, noise_multiplier=2.0), epsilon=1.0, delta=1e-5).noise_over_dp_sgd, 2)
    2.14
    """

    effective_noise_multiplier: float
    dp_sgd_noise_multiplier: float
    projection_error: float
    releases: int
    released: int | None = None
    of: int | None = None

    @property
    def noise_over_dp_sgd(self) -> float:
        """The noise of the update, relative to the noise of DP-SGD at the same privacy."""
        return self.effective_noise_multiplier / self.dp_sgd_noise_multiplier

    @property
    def projection_error_of_run(self) -> float:
        """The projection error of the mean update of a run with a constant gradient."""
        return self.projection_error / self.releases

    @property
    def error(self) -> float:
        """The squared error of the mean update of the run, relative to DP-SGD.

        It is ``projection_error_of_run + noise_over_dp_sgd^2``, under the assumption that the mean of all noise of a
        DP-SGD run is as large as the clipped sum.
        """
        return self.projection_error_of_run + self.noise_over_dp_sgd**2

    def as_dict(self) -> dict[str, object]:
        """Return the noise and projection error as plain names and values."""
        names = ("effective_noise_multiplier", "dp_sgd_noise_multiplier", "projection_error", "projection_error_of_run")
        return {name: getattr(self, name) for name in names}


@arguments_by_name("update_utility(mechanism, epsilon=1.0, delta=1e-5)")
def update_utility(
    mechanism: Mechanism,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    log10_delta: float | None = None,
    risk: dict[str, float] | None = None,
    **run: Unpack[RunOptions],
) -> Utility | None:
    """Compute the noise and projection error of a mechanism's update, compared with DP-SGD.

    Args:
        mechanism: The mechanism with its noise multiplier.
        epsilon: The epsilon of the mechanism in this run.
        delta: The delta of the mechanism in this run; give either this or ``log10_delta``.
        log10_delta: The decimal logarithm of delta.
        risk: An attack risk in place of epsilon and delta: ``advantage``, or ``tpr`` and ``fpr``.
        **run: The run, as :class:`privproj.run.RunOptions` lists it.

    Returns:
        The utility; None for a mechanism whose release determines no update (``wishart``, ``sketch``, ...), or if no
        noise multiplier of DP-SGD meets the target.

    Raises:
        InvalidParameterError: A value is outside its range.

    >>> from privproj import M2, update_utility
    >>> run = {"steps": 2000, "sampling_rate": 0.01}
    >>> release = M2(dim=2048, rank=16, noise_multiplier=0.1661)
    >>> utility = update_utility(release, epsilon=1.0, delta=1e-5, **run)
    >>> round(utility.effective_noise_multiplier, 3), round(utility.noise_over_dp_sgd, 2)
    (1.879, 1.02)
    >>> round(utility.projection_error)
    127
    """
    check_mechanism(mechanism)
    lift = mechanism.lift()
    if lift is None:
        return None
    plain = Gaussian(adaptive_clipping_sigma=vars(mechanism).get("adaptive_clipping_sigma"))
    target = privacy_or_risk_target(epsilon=epsilon, delta=delta, log10_delta=log10_delta, **(risk or {}))
    try:
        least = solve_sigma(composition_of(plain, None, run), target, roughly=True)
    except (QueryError, UnsupportedError):
        return None
    return utility_of(mechanism, lift, least) if least.value else None


def utility_of(mechanism: Any, lift: Lift, dp_sgd: Result) -> Utility:
    """Return the noise and projection error of a mechanism's update, compared with DP-SGD.

    ``dp_sgd`` is the result of the sigma query of DP-SGD for the same target and run.
    """
    run: Any = dp_sgd.run
    # If a step is an epoch, each of its batches is an update.
    updates = run["steps"] * (run.get("batches", 1) if run["sampling"] in IN_EPOCHS else 1)
    return Utility(
        effective_noise_multiplier=mechanism.z * lift.noise,
        dp_sgd_noise_multiplier=float(dp_sgd.value or 0.0),
        projection_error=lift.factor - 1.0,
        releases=1 if vars(mechanism).get("fixed_projection") else updates,
        released=lift.released,
        of=lift.of,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Choice:
    """A training algorithm with the noise multiplier and utility at a privacy target.

    Attributes:
        algorithm: The training algorithm of ``make_private``; None for a mechanism that ``make_private`` cannot use.
        rank: The rank of the projections; None without projections.
        result: The result of the sigma query: noise multiplier, bound, status, assumptions and requirements.
        utility: The utility of the updates of the algorithm.
        mechanism: The mechanism that accounts for the algorithm, with that noise multiplier.

    >>> from privproj import choose
    >>> best = choose(layers="64x4", epsilon=1.0, delta=1e-5)[0]
    >>> best.name, best.rank, best.utility.noise_over_dp_sgd
    ('dp-sgd', None, 1.0)
    """

    algorithm: str | None
    rank: int | None
    result: Result
    utility: Utility
    mechanism: Mechanism

    @property
    def name(self) -> str:
        """The name of the algorithm or of the mechanism, with the clipping if it is per layer."""
        per_layer = vars(self.mechanism).get("clipping") == "per-layer"
        return (self.algorithm or f"{self.mechanism.name} (own program)") + " per-layer" * per_layer

    def __repr__(self) -> str:
        at = "" if self.rank is None else f" at rank {self.rank}"
        return (
            f"<{self.name}{at}: {self.utility.noise_over_dp_sgd:.3g} times the noise of DP-SGD; {self.result.one_line}>"
        )

    def as_row(self) -> dict[str, object]:
        """Return the algorithm as plain values, by the names of table columns."""
        worths = ("noise_over_dp_sgd", "projection_error", "projection_error_of_run", "error")
        facts = {name: getattr(self.utility, name) for name in worths}
        setting = {"algorithm": self.name, "rank": self.rank, "noise_multiplier": self.result.value}
        return {**setting, **facts, "bound": self.result.bound, "status": str(self.result.status)}

    def as_dict(self) -> dict[str, object]:
        """Return the algorithm as plain names and values, for JSON output."""
        utility = {
            **self.utility.as_dict(),
            "noise_over_dp_sgd": self.utility.noise_over_dp_sgd,
            "error": self.utility.error,
        }
        sizes = {"released_numbers": self.utility.released, "gradient_numbers": self.utility.of}
        return {"name": self.name, "algorithm": self.algorithm, "rank": self.rank, **utility, **sizes,
                "result": self.result.as_dict()}  # fmt: skip


class _Way(NamedTuple):
    """A training algorithm, and the mechanism that accounts for it."""

    algorithm: str | None
    mechanism: Mechanism
    lift: Lift | None = None
    rank: int | None = None


@arguments_by_name('choose(layers="768x16", epsilon=1.0, delta=1e-5)')
def choose(
    *,
    layers: str | Layer | Iterable[str | Layer],
    epsilon: float,
    delta: float,
    ranks: Sequence[int] = (),
    **run: Unpack[RunOptions],
) -> Rows[Choice]:
    """Compare training algorithms at the same privacy, sorted by the error of their updates.

    The error is :attr:`Utility.error`, at the noise multiplier that each algorithm needs for the target. Algorithms
    with a fixed subspace (LoRA-FA, PRISM, DP-SFT) are not listed: they have the noise multiplier of DP-SGD but train
    another model, so they can only be compared by accuracy.

    Args:
        layers: The trained matrices in the format of M2: ``1024x16x24`` means 24 matrices with 1024 inputs, projected
            to rank 16; ``1024x16x24:4096`` if they have 4096 outputs.
        epsilon: The epsilon of the whole run.
        delta: The delta of the whole run.
        ranks: Ranks for every layer that replace the ranks in ``layers``. A layer with fewer inputs is not projected.
        **run: The run, as :class:`privproj.run.RunOptions` lists it.

    Returns:
        A row for each algorithm and rank, in :class:`privproj.accounting.Rows`, best first.

    Raises:
        InvalidParameterError: A value is outside its range, or nothing is projected.
        QueryError: No noise multiplier of DP-SGD meets the target.

    >>> from privproj import choose
    >>> rows = choose(layers="1024x16", epsilon=2.0, delta=1e-6, steps=1000, sampling_rate=0.01)
    >>> [(row.name, round(row.utility.noise_over_dp_sgd, 2)) for row in rows][:2]
    [('dp-sgd', 1.0), ('m2-projected-clip', 1.02)]
    """
    target = {"epsilon": epsilon, "delta": delta}
    requested = M2(layers=read_layers(layers))
    plain = sigma(Gaussian(), epsilon=epsilon, delta=delta, **run)
    if plain.value is None:
        raise UnsupportedError(f"no noise multiplier of DP-SGD meets epsilon {epsilon:g} and delta {delta:g} here")
    ways = [_Way("dp-sgd", Gaussian(), Lift(1.0, 1.0, requested.lift().of, requested.lift().of))]
    for projected in [_at_rank(requested, rank) for rank in ranks] or [requested]:
        ways += _ways_of(projected)
    rows = [row for way in ways if (row := _row(way, plain, target, run)) is not None]
    return Rows(sorted(rows, key=lambda row: row.utility.error))


def _at_rank(requested: M2, rank: int) -> M2:
    """Return M2 with one rank for all layers, at most the dimension of each layer."""
    largest = max(layer.dim for layer in requested.layers)
    checked = integer("ranks", rank, f"an integer from 1 to {largest - 1}, below the largest dimension", 1, largest - 1)
    return replace(requested, layers=tuple(replace(layer, rank=min(checked, layer.dim)) for layer in requested.layers))


def _ways_of(projected: M2) -> list[_Way]:
    """Return the training algorithms that can project these layers to their ranks."""
    ranks = {layer.rank for layer in projected.layers if layer.rank < layer.dim}
    if not ranks:
        raise InvalidParameterError("layers", str(projected.layers[0]), "a layer whose rank is below its dimension")
    rank = max(ranks)
    ways = [
        _Way("m2-projected-clip", Gaussian(), _clipped_after(projected, haar=True), rank),
        _Way("projected-dp-sgd", Gaussian(), _clipped_after(projected, haar=False), rank),
        _Way("m2", projected.alike, projected.lift(), rank),
    ]
    apart = replace(projected, clipping="per-layer")
    if apart.projects_apart:
        return [*ways, _Way("m2", apart, projected.lift(), rank)]
    if sum(layer.count for layer in projected.layers) == 1 and not projected.unprojected:
        layer = projected.layers[0]
        columns = layer.columns or layer.dim
        ways += [
            _Way(None, M1(dim=layer.dim, rank=rank, columns=columns), None, rank),
            _Way(None, PublicSketch(dim=layer.dim, rank=rank), None, rank),
        ]
    return ways


def _clipped_after(projected: M2, *, haar: bool) -> Lift:
    """Return the noise and projection error of algorithms that clip after projecting (C38).

    If ``haar`` is True, the projection is a uniformly random orthogonal one, and otherwise a Gaussian matrix.
    """
    # Every record is assumed to be clipped, and its gradient to have rank one along a unit vector u. Let z be the noise
    # multiplier, and a the mean component of a clipped record along u in clipping norms. The effective noise multiplier
    # is z sqrt(r/d) / a, and the squared projection error is 1/a^2 - 1. The result is for the worst of all layers.
    # a = E sqrt b. For an orthogonal projection P, b = |P u|^2 ~ Beta(r/2, (d-r)/2). For a Gaussian matrix A,
    # b ~ Beta(r/2, (d-1)/2) is the squared cosine of the angle between A^T A u and u. For gradients of higher rank b
    # varies less.
    whole_lift = projected.lift()
    noise = factor = 1.0
    for layer in projected.layers:
        if haar and layer.rank == layer.dim:
            continue
        mean_root = _mean_root_of_beta(0.5 * layer.rank, 0.5 * (layer.dim - (layer.rank if haar else 1)))
        noise = max(noise, math.sqrt(layer.rank / layer.dim) / mean_root)
        factor = max(factor, 1.0 / mean_root**2)
    return Lift(noise, factor, whole_lift.released, whole_lift.of)


def _mean_root_of_beta(a: float, b: float) -> float:
    """Return the mean of the square root of a Beta variable."""
    # Gamma(a + 1/2) Gamma(a + b) / (Gamma(a) Gamma(a + b + 1/2)).
    return math.exp(math.lgamma(a + 0.5) - math.lgamma(a) + math.lgamma(a + b) - math.lgamma(a + b + 0.5))


def _row(way: _Way, plain: Result, target: dict[str, float], run: Any) -> Choice | None:
    """Return an algorithm calibrated to the target, or None if it cannot meet the target."""
    try:
        result = plain if isinstance(way.mechanism, Gaussian) else sigma(way.mechanism, **target, **run)
    except (QueryError, UnsupportedError):
        return None
    lift = way.lift or way.mechanism.lift()
    if result.value is None or lift is None:
        return None
    mechanism: Any = replace(way.mechanism, noise_multiplier=result.value)  # pyright: ignore[reportCallIssue]
    update = utility_of(mechanism, lift, plain)
    return Choice(algorithm=way.algorithm, rank=way.rank, result=result, utility=update, mechanism=mechanism)
