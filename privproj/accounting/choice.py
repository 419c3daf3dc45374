"""Every way to train at one privacy, with the noise that it needs and what its update is worth."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

from privproj.accounting.calibration import sigma
from privproj.accounting.worth import Worth, worth_of
from privproj.errors import InvalidParameter, Refused, Unanswered
from privproj.mechanisms import M1, M2, Gaussian, Layer, Mechanism, PublicSketch
from privproj.mechanisms.base import Lift
from privproj.mechanisms.m2 import read_layers
from privproj.result import Result, Rows
from privproj.runs import RunOptions
from privproj.validation import whole


@dataclass(frozen=True, kw_only=True, repr=False)
class Choice:
    """One way to train, with the noise that it needs.

    Attributes:
        algorithm: The training algorithm of ``make_private``; None where it is a mechanism for a program of one's own.
        rank: The rank of its projections; None where it has none.
        result: The answer of the sigma query: noise multiplier, bound, status, promises and what the program must do.
        worth: What its update is worth.
        mechanism: What is accounted, with that noise multiplier.

    >>> from privproj import choose
    >>> best = choose(layers="64x4", epsilon=1.0, delta=1e-5)[0]
    >>> best.name, best.rank, best.worth.noise_over_dp_sgd
    ('dp-sgd', None, 1.0)
    """

    algorithm: str | None
    rank: int | None
    result: Result
    worth: Worth
    mechanism: Mechanism

    @property
    def name(self) -> str:
        """The algorithm, or the mechanism where there is none, and the clipping if it is per layer."""
        per_layer = vars(self.mechanism).get("clipping") == "per-layer"
        return (self.algorithm or f"{self.mechanism.name} (own program)") + " per-layer" * per_layer

    def __repr__(self) -> str:
        at = "" if self.rank is None else f" at rank {self.rank}"
        return f"<{self.name}{at}: {self.worth.noise_over_dp_sgd:.3g} times the noise of DP-SGD; {self.result}>"

    def as_row(self) -> dict[str, object]:
        """Return the row as plain values under the names of its columns."""
        worths = ("noise_over_dp_sgd", "projection_error", "projection_error_of_run", "error")
        facts = {name: getattr(self.worth, name) for name in worths}
        said = {"algorithm": self.name, "rank": self.rank, "noise_multiplier": self.result.value}
        return {**said, **facts, "bound": self.result.bound, "status": str(self.result.status)}

    def as_dict(self) -> dict[str, object]:
        """Return one row of the JSON object of the command line."""
        worth = {**self.worth.as_dict(), "noise_over_dp_sgd": self.worth.noise_over_dp_sgd, "error": self.worth.error}
        sizes = {"released_numbers": self.worth.released, "gradient_numbers": self.worth.of}
        return {"name": self.name, "algorithm": self.algorithm, "rank": self.rank, **worth, **sizes,
                "answer": self.result.as_dict()}  # fmt: skip


class _Way(NamedTuple):
    """One way to train: its algorithm, what it is accounted as, and what lifts its releases (None: the mechanism's)."""

    algorithm: str | None
    mechanism: Mechanism
    lift: Lift | None = None
    rank: int | None = None


def choose(
    *,
    layers: str | Layer | Iterable[str | Layer],
    epsilon: float,
    delta: float,
    ranks: Sequence[int] = (),
    **run: Unpack[RunOptions],
) -> Rows[Choice]:
    """List every way to train that has an update, at the same privacy, the one of the smallest error first.

    The order is that of :attr:`Worth.error`, with the noise that each needs for the target. Fixed subspaces (LoRA-FA,
    PRISM, DP-SFT) train another model, with DP-SGD's noise multiplier, and are compared by accuracy only.

    Args:
        layers: The trained matrices, as M2 takes them: ``1024x16x24`` are 24 of them with 1024 inputs, at rank 16;
            ``1024x16x24:4096`` where they have 4096 outputs.
        epsilon: The epsilon of the whole run.
        delta: Its delta.
        ranks: Ranks to try for every layer, in place of those in ``layers``; a layer that is smaller stays whole.
        **run: The run, as :class:`privproj.runs.RunOptions` lists it.

    Returns:
        A row for each way and rank, in :class:`privproj.accounting.Rows`, the best first.

    Raises:
        InvalidParameter: A value is outside its range, or nothing is projected.
        Unanswered: DP-SGD itself has no noise multiplier for the target.

    >>> from privproj import choose
    >>> rows = choose(layers="1024x16", epsilon=2.0, delta=1e-6, steps=1000, sampling_rate=0.01)
    >>> [(row.name, round(row.worth.noise_over_dp_sgd, 2)) for row in rows][:2]
    [('dp-sgd', 1.0), ('m2-projected-clip', 1.02)]
    """
    target = {"epsilon": epsilon, "delta": delta}
    asked = M2(layers=read_layers(layers))
    plain = sigma(Gaussian(), epsilon=epsilon, delta=delta, **run)
    if plain.value is None:
        raise Refused(f"no noise of DP-SGD meets epsilon {epsilon:g} and delta {delta:g} here")
    ways = [_Way("dp-sgd", Gaussian(), Lift(1.0, 1.0, asked.lift().of, asked.lift().of))]
    for projected in [_at_rank(asked, rank) for rank in ranks] or [asked]:
        ways += _ways_of(projected)
    rows = [row for way in ways if (row := _row(way, plain, target, run)) is not None]
    return Rows(sorted(rows, key=lambda row: row.worth.error))


def _at_rank(asked: M2, rank: int) -> M2:
    """The same layers at another rank, where they are larger."""
    checked = whole("ranks", rank, "ranks of at least 1", 1, 10**12)
    return replace(asked, layers=tuple(replace(layer, rank=min(checked, layer.dim)) for layer in asked.layers))


def _ways_of(projected: M2) -> list[_Way]:
    """Every way to train whose releases are projected to the ranks of these layers."""
    found = {layer.rank for layer in projected.layers if layer.rank < layer.dim}
    if not found:
        raise InvalidParameter("layers", str(projected.layers[0]), "a layer whose rank is below its dimension")
    rank = max(found)
    ways = [
        _Way("m2-projected-clip", Gaussian(), _clipped_after(projected, haar=True), rank),
        _Way("m1", Gaussian(), _clipped_after(projected, haar=False), rank),
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
    """The lift of algorithms that clip the projection of each record, for records beyond their clip and of rank one.

    With ``b = |P u|^2 ~ Beta(r/2, (d-r)/2)`` in the Haar frame, and ``b ~ Beta(r/2, (d-1)/2)`` the squared cosine of
    ``A^T A u`` and ``u`` for M1, a record that is cut to its clip keeps ``E sqrt b`` of it in the direction ``u``
    (C38): ``z_eff = z sqrt(r/d) / E sqrt b`` and ``kappa = 1/(E sqrt b)^2``. Records of higher ranks concentrate more;
    of several layers the worst is taken.
    """
    whole_lift = projected.lift()
    noise = factor = 1.0
    for layer in projected.layers:
        if haar and layer.rank == layer.dim:
            continue
        kept = _mean_root_of_beta(0.5 * layer.rank, 0.5 * (layer.dim - (layer.rank if haar else 1)))
        noise = max(noise, math.sqrt(layer.rank / layer.dim) / kept)
        factor = max(factor, 1.0 / kept**2)
    return Lift(noise, factor, whole_lift.released, whole_lift.of)


def _mean_root_of_beta(a: float, b: float) -> float:
    """The mean of ``sqrt X`` for ``X ~ Beta(a, b)``."""
    # Gamma(a + 1/2) Gamma(a + b) / (Gamma(a) Gamma(a + b + 1/2)).
    return math.exp(math.lgamma(a + 0.5) - math.lgamma(a) + math.lgamma(a + b) - math.lgamma(a + b + 0.5))


def _row(way: _Way, plain: Result, target: dict[str, float], run: Any) -> Choice | None:
    """The noise that a way needs and what it is worth; None where no bound of it answers here."""
    try:
        result = plain if isinstance(way.mechanism, Gaussian) else sigma(way.mechanism, **target, **run)
    except (Unanswered, Refused):
        return None
    lift = way.lift or way.mechanism.lift()
    if result.value is None or lift is None:
        return None
    mechanism: Any = replace(way.mechanism, noise_multiplier=result.value)  # pyright: ignore[reportCallIssue]
    found = worth_of(mechanism, lift, plain)
    return Choice(algorithm=way.algorithm, rank=way.rank, result=result, worth=found, mechanism=mechanism)
