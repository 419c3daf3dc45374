"""The plan of a private training run: sampler, clip, noise, projection and accounting event in one frozen record.

The training code does what the plan says and the accountant is told what the plan says. Nothing else links the two.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from privproj.accounting import calibration
from privproj.accounting.schedule import Phase, phase_of
from privproj.curves.inversion import meets, smallest_passing
from privproj.curves.profile import Curve
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import M2, Gaussian
from privproj.numerics.search import find_crossing
from privproj.records.ledger import Account
from privproj.runs import NeighbouringRelation, full_target, rate_and_steps_from_batches
from privproj.validation import real, whole

GRID = 2.0**-24
"""Unit: a probability. The sampler compares 24-bit uniform numbers with the rate, so that a rate on this grid is the
exact probability of being drawn. Proof."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done, and what it costs. The fields, in their order:

    * ``algorithm``: its name in :mod:`privproj.training.algorithms`.
    * ``mechanism``: what one release is accounted as. It carries the noise multiplier ``z``, which is the deviation of
      the noise over the sensitivity of the sum.
    * ``clip``: the largest norm that a record contributes to the sum. The sensitivity is ``clip`` under add-remove and
      zero-out and ``2 clip`` under replace, and the noise on the sum has deviation ``noise_std = z * sensitivity``.
    * ``steps``: how many releases are made.
    * ``sampling_rate``, ``dataset_size``: ``q`` and ``N``. The public number ``expected_batch = q N`` divides the sum.
    * ``sampling``, ``relation``: how batches are drawn, and which data sets are neighbours.
    * ``rank``, ``ranks``: the rank of all projections, or one for each trained tensor.
    * ``frame``: of the projection, where the algorithm has a choice.
    * ``shares``: the parts of ``clip^2`` of each trained tensor, where clipping is per layer.
    * ``feature_bound``: the largest norm of a feature vector, where a proved bound stands in for the clip.
    * ``bound``: which bound accounts the run; the default of the mechanism where it is None.
    * ``every``: how many steps a re-sampled factor serves. ``beta``: the momentum of Flora's sketch.
    """

    algorithm: str
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
        if self.frame not in (None, "haar", "wishart"):
            raise InvalidParameter("frame", self.frame, "haar or wishart")
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


def with_smallest_noise(plan: Plan, earlier: Account, *, epsilon: float, delta: float) -> Plan:
    """The plan with the smallest noise that meets ``(epsilon, delta)`` over all its steps and what was released before.

    Raises :class:`Refused` where the earlier releases leave nothing.
    """
    silent = replace(plan.mechanism, noise_multiplier=None)
    if not earlier.spent:
        found = calibration.sigma(silent, epsilon=epsilon, delta=delta, bound=plan.bound, **plan.run(plan.steps)).value
        return replace(plan, mechanism=replace(silent, noise_multiplier=found))
    target = full_target(epsilon, delta, None, zero=False)

    def with_noise(z: float) -> Plan:
        return replace(plan, mechanism=replace(silent, noise_multiplier=z))

    def joint_curve(z: float) -> Curve:
        return Account((*earlier.phases, (with_noise(z).phase(plan.steps).as_dict(), plan.steps))).curve()

    def excess(z: float) -> float:
        return joint_curve(z).log_delta(target.epsilon).upper - target.log_delta

    def fits(z: float) -> bool:
        return meets(joint_curve(z), target)

    # The crossing is where to look. What is returned passed the question itself: with this noise the target is met.
    found = find_crossing(excess, 1.0, low=1e-3, high=1e6, spread=0.2, rtol=1e-7).upper
    if found == math.inf:
        raise Refused(f"the {earlier.spent} earlier releases leave nothing of epsilon {epsilon:g} at delta {delta:g}")
    return with_noise(smallest_passing(fits, found, 1e-9))


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
        sampling_rate, per_epochs = rate_and_steps_from_batches(batch_size or 0, dataset_size, epochs)
    else:
        real("sampling_rate", sampling_rate, "a rate above 0 and at most 1", 0.0, 1.0, open_low=True)
        per_epochs = math.ceil(epochs * math.ceil(1.0 / sampling_rate))
    steps = per_epochs if steps is None else steps
    if sampling == "fixed":
        # Rounding of q N just above a whole number must not make the batch one record larger.
        return max(1, math.ceil(sampling_rate * dataset_size - 1e-9)) / dataset_size, steps
    return min(1.0, math.ceil(sampling_rate / GRID) * GRID), steps
