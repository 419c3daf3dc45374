"""The plan of a private training run: sampler, clip, noise, projection and accounting event in one frozen record."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from privproj.accounting import calibration
from privproj.accounting.schedule import Phase, phase_of
from privproj.curves.inversion import meets, smallest_passing
from privproj.curves.profile import Curve
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import M2, Gaussian, Layer
from privproj.numerics.search import crossing
from privproj.records.ledger import Account
from privproj.runs import NeighbouringRelation, from_batches, full_target
from privproj.validation import real, whole

GRID = 2.0**-24
"""The sampler compares 24-bit uniform numbers with the rate: one on this grid is the exact inclusion probability."""

AlgorithmName = Literal[
    "dp-sgd", "lora-fa", "lora-resampled", "flora", "m2", "m2-projected-clip", "m1", "prism", "dp-sft"
]
ALGORITHMS: tuple[str, ...] = get_args(AlgorithmName)
PROJECTING = ("m2", "m2-projected-clip", "m1", "flora")
"""Algorithms that draw a projection of some rank themselves."""

FRAMED = ("m2", "m2-projected-clip")
"""Algorithms whose projection has a choice of frame."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done, and what it costs.

    ``mechanism`` carries the noise multiplier ``z`` (noise deviation over sensitivity). A record contributes at most
    ``clip`` in norm to the sum, whose sensitivity is ``clip`` under add-remove and zero-out, ``2 clip`` under replace;
    the noise on the sum has deviation ``noise_std = z * sensitivity``, and the public ``expected_batch = q N`` divides
    it. ``shares`` are the parts of ``clip^2`` of each trained tensor where clipping is per layer, ``ranks`` the ranks
    of their projections where these have one each. ``every`` is how many steps a re-sampled factor serves, ``beta``
    the momentum of Flora's sketch.
    """

    algorithm: AlgorithmName
    mechanism: Gaussian | M2
    clip: float
    steps: int
    sampling_rate: float
    dataset_size: int
    sampling: Literal["poisson", "fixed"] = "poisson"
    relation: NeighbouringRelation = NeighbouringRelation.ADD_REMOVE
    rank: int | None = None
    ranks: tuple[int, ...] | None = None
    frame: Literal["haar", "wishart"] | None = None
    shares: tuple[float, ...] | None = None
    feature_bound: float | None = None
    bound: str | None = None
    every: int = 1
    beta: float = 0.9

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "steps", whole("steps", self.steps, "a whole number of steps >= 1"))
        if self.frame not in (None, "haar", "wishart") or (self.frame and self.algorithm not in FRAMED):
            raise InvalidParameter("frame", self.frame, "haar or wishart, with m2 or m2-projected-clip only")
        set_field(self, "every", whole("every", self.every, "a whole number of steps >= 1"))
        set_field(self, "beta", real("beta", self.beta, "a momentum from 0 to 1", 0.0, 1.0))
        set_field(self, "clip", real("max_grad_norm", self.clip, "a norm from 1e-20 to 1e12", 1e-20, 1e12))
        self.phase(self.steps).question.check()

    @property
    def expected_batch(self) -> float:
        """``q N``: public, unlike the size of any batch."""
        return self.sampling_rate * self.dataset_size

    @property
    def noise_multiplier(self) -> float:
        """``z``: noise deviation over sensitivity."""
        return 1.0 / self.mechanism.mu

    @property
    def noise_over_clip(self) -> float:
        """``z_C``: noise deviation over the clip; twice ``z`` under replace."""
        return self.noise_multiplier * self.relation.clip_factor

    @property
    def noise_std(self) -> float:
        """The deviation of the noise on the clipped sum."""
        return self.noise_over_clip * self.clip

    def phase(self, steps: int) -> Phase:
        """The event of ``steps`` releases, for the accountant and for a ledger."""
        return phase_of(self.mechanism, self.algorithm, self.bound, **self.run(steps))

    def run(self, steps: int) -> Any:
        """``steps`` releases as the accountant takes a run."""
        run = {"steps": steps, "sampling_rate": self.sampling_rate, "relation": str(self.relation)}
        return run | ({"sampling": self.sampling} if self.sampling_rate < 1.0 else {})


def calibrated(plan: Plan, earlier: Account, *, epsilon: float, delta: float) -> Plan:
    """The plan with the smallest noise that meets ``(epsilon, delta)`` over all its steps and what was released before.

    Raises :class:`Refused` where the earlier releases leave nothing.
    """
    silent = replace(plan.mechanism, noise_multiplier=None)
    if not earlier.spent:
        found = calibration.sigma(silent, epsilon=epsilon, delta=delta, bound=plan.bound, **plan.run(plan.steps)).value
        return replace(plan, mechanism=replace(silent, noise_multiplier=found))
    target = full_target(epsilon, delta, None, zero=False)

    def louder(z: float) -> Plan:
        return replace(plan, mechanism=replace(silent, noise_multiplier=z))

    def joint(z: float) -> Curve:
        return Account((*earlier.phases, (louder(z).phase(plan.steps).as_dict(), plan.steps))).curve()

    def excess(z: float) -> float:
        return joint(z).log_delta(target.epsilon).upper - target.log_delta

    def fits(z: float) -> bool:
        return meets(joint(z), target)

    found = crossing(excess, 1.0, low=1e-3, high=1e6, spread=0.2, rtol=1e-7).upper
    if found == math.inf:
        raise Refused(f"the {earlier.spent} earlier releases leave nothing of epsilon {epsilon:g} at delta {delta:g}")
    return louder(smallest_passing(fits, found, 1e-9))


def mechanism_for(
    algorithm: str,
    shapes: list[tuple[int, int, bool]],
    rank: int | None,
    shares: tuple[float, ...] | None,
    ranks: tuple[int, ...] | None = None,
) -> Gaussian | M2:
    """The mechanism of one release, its noise left out.

    ``shapes``: for each trained tensor ``(outputs, inputs, projected)``; ``ranks``: its own rank, instead of ``rank``
    for all. Per-layer, a tensor with fewer inputs than the
    rank is not projected, and accounted so. Everything but M2 with full clipping is the Gaussian mechanism, since what
    it sums is what it clips. Raises :class:`InvalidParameter` where the joint clip would take the gain of the
    projection away.
    """
    if rank is None and ranks is None and algorithm in PROJECTING:
        raise InvalidParameter("rank", "nothing", "a rank of the projection")
    if rank is not None and algorithm in ("dp-sgd", "dp-sft"):
        raise InvalidParameter("rank", rank, f"no rank, since {algorithm} has none here")
    if algorithm != "m2":
        return Gaussian()
    own = ranks or (rank or 1,) * len(shapes)
    if shares is None:
        check_ranks(shapes, own)
    if len(shapes) == 1:
        outputs, inputs, _ = shapes[0]
        return M2(dim=inputs, rank=min(own[0], inputs), columns=outputs)
    layers = Counter(
        (inputs, min(rank, inputs) if projected else inputs, share)
        for (_, inputs, projected), rank, share in zip(shapes, own, shares or (None,) * len(shapes), strict=True)
    )
    found = tuple(Layer(dim=d, rank=r, count=n, share=share and n * share) for (d, r, share), n in layers.items())
    return M2(layers=found, clipping="per-layer" if shares else "joint")


def check_ranks(shapes: list[tuple[int, int, bool]], ranks: tuple[int, ...]) -> None:
    """Raise where a tensor under the joint clip is not projected to less than its inputs."""
    for (outputs, inputs, projected), rank in zip(shapes, ranks, strict=True):
        if not projected or rank > inputs or (rank == inputs and len(shapes) > 1):
            remedy = "use a smaller rank" if projected else "freeze the unprojected tensors"
            raise InvalidParameter(
                "rank", rank, f"a rank below {inputs} for a tensor of {outputs} x {inputs} under the joint clip",
                f"else the whole norm may sit there and nothing is gained: {remedy}, or use clipping=per-layer",
            )  # fmt: skip


def rate_and_steps(
    sampling: str,
    dataset_size: int,
    batch_size: int | None,
    sampling_rate: float | None,
    steps: int | None,
    epochs: float | None,
) -> tuple[float, int]:
    """``(q, T)``: the exact inclusion probability (for Poisson rounded up to the sampler's grid) and the steps."""
    if (steps is None) == (epochs is None):
        raise InvalidParameter("steps", steps, "exactly one of steps and epochs")
    epochs = 1 if epochs is None else real("epochs", epochs, "a positive number of epochs", 0.0, 1e9, open_low=True)
    if sampling_rate is None:
        sampling_rate, per_epochs = from_batches(batch_size or 0, dataset_size, epochs)
    else:
        real("sampling_rate", sampling_rate, "a rate above 0 and at most 1", 0.0, 1.0, open_low=True)
        per_epochs = math.ceil(epochs * math.ceil(1.0 / sampling_rate))
    steps = per_epochs if steps is None else steps
    if sampling == "fixed":
        return max(1, math.ceil(sampling_rate * dataset_size - 1e-9)) / dataset_size, steps
    return min(1.0, math.ceil(sampling_rate / GRID) * GRID), steps
