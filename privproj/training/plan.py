"""The plan of a private training run, which is both executed and accounted.

The training code executes the plan, and the accountant computes epsilon from the same plan. This module also has the
options that :func:`make_private` accepts for batches and algorithms.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any, ClassVar, Literal, Self

from privproj.accounting import calibration
from privproj.accounting.calibration import Search
from privproj.accounting.schedule import Composition, Phase, phase_of
from privproj.errors import InvalidParameterError, UnsupportedError, unknown_name
from privproj.io.ledger import Account
from privproj.mechanisms import M2, Gaussian
from privproj.numerics.root_finding import find_crossing
from privproj.parameters import check_parameters, integer, number, parameter, quoted, real, whole_number
from privproj.run import EPOCHS, rate_and_steps_from_batches
from privproj.sampling import SCHEMES, NeighboringRelation, Sampling, member_named
from privproj.targets import full_target
from privproj.training.adaptive_clipping import CLIP, AdaptiveClipping
from privproj.training.algorithms import load

# soundness: sampling rates are multiples of this probability. The sampler compares 24-bit uniform numbers with the
# rate, so such a rate is the exact probability that a record is drawn.
GRID = 2.0**-24


# sampling schemes that training supports; the accounting has more
SchemeName = Literal["poisson", "fixed", "balls-in-bins"]


@dataclass(frozen=True, kw_only=True)
class PoissonBatches:
    """Poisson sampling of batches, for ``make_private(batches=...)``.

    Every record joins every batch independently, with the same probability.

    Args:
        rate: ``q``, the probability that a record is in a batch, above 0 and at most 1. It is rounded up to a multiple
            of ``2^-24``. None: the batch size of the loader divided by the number of records.
        max_batch_size: The maximum batch size, at least 1. A larger batch is truncated: records are dropped uniformly
            at random. None: there is no maximum.

    >>> from privproj.training import PoissonBatches
    >>> PoissonBatches(rate=0.01, max_batch_size=512).sampling
    'poisson'
    """

    rate: float | None = None
    max_batch_size: int | None = None
    sampling: ClassVar[SchemeName] = "poisson"
    count: ClassVar = None

    @staticmethod
    def draw(plan: "Plan", steps: int, generator: Any) -> Iterable[list[int]]:
        """Draw ``steps`` Poisson-sampled batches, each a list of record numbers."""
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler

        return UniformWithReplacementSampler(
            num_samples=plan.dataset_size, sample_rate=plan.sampling_rate, generator=generator, steps=steps
        )


@dataclass(frozen=True, kw_only=True)
class FixedBatches:
    """Batches of one size, each a random subset, for ``make_private(batches=...)``.

    Args:
        rate: The batch size divided by the number of records, above 0 and at most 1. The batch size is rounded up to a
            whole number. None: the batch size is that of the loader.

    >>> from privproj.training import FixedBatches
    >>> FixedBatches(rate=0.01).sampling
    'fixed'
    """

    rate: float | None = None
    sampling: ClassVar[SchemeName] = "fixed"
    count: ClassVar = None
    max_batch_size: ClassVar = None

    @staticmethod
    def draw(plan: "Plan", steps: int, generator: Any) -> Iterable[list[int]]:
        """Draw ``steps`` batches of a fixed size, each a list of record numbers."""
        size = round(plan.expected_batch)
        return (drawn_from(range(plan.dataset_size), size, generator) for _ in range(steps))


@dataclass(frozen=True, kw_only=True)
class BallsInBins:
    """Balls-in-bins sampling of batches, for ``make_private(batches=...)``.

    In every epoch each record picks one of the batches uniformly at random, so each record is used once in an epoch.
    ``epochs`` or ``steps`` of :func:`make_private` must be a whole number of epochs.

    Args:
        count: ``t``, the number of batches in an epoch, from 1 to 1e7. None: the number of records divided by the batch
            size of the loader, rounded up.

    >>> from privproj.training import BallsInBins
    >>> BallsInBins(count=100).sampling
    'balls-in-bins'
    """

    count: int | None = None
    sampling: ClassVar[SchemeName] = "balls-in-bins"
    rate: ClassVar = None
    max_batch_size: ClassVar = None


# a sampling scheme with its options
Batches = PoissonBatches | FixedBatches | BallsInBins

# a sampling scheme with its options, or the name of a scheme
Drawing = SchemeName | Batches

# the class of each sampling scheme, by name
KINDS = {kind.sampling: kind for kind in (PoissonBatches, FixedBatches, BallsInBins)}


# one clipping norm for all tensors, equal shares of C^2 for each tensor, a tuple of shares, or an adaptive clipping
# norm
Clipping = Literal["joint", "per-layer"] | tuple[float, ...] | AdaptiveClipping


def drawn_from(batch: Sequence[int], most: int, generator: Any) -> list[int]:
    """Return at most ``most`` records of a batch, in random order."""
    import torch

    return [batch[i] for i in torch.randperm(len(batch), generator=generator)[:most].tolist()]


def batches_of(batches: "str | Batches") -> Batches:
    """Return a sampling scheme from its name, with default options.

    A scheme is returned unchanged. Raises :class:`UnsupportedError` for a scheme that has no private loader, and
    :class:`InvalidParameterError` for anything else.
    """
    if isinstance(batches, str):
        if SCHEMES[member_named(Sampling, "sampling", batches)].in_positions:
            raise UnsupportedError(
                f"sampling={batches} has no private loader, because no amplification is proved for it. Use "
                "balls-in-bins, which also uses each record once per epoch, or account for your own loader with "
                f"`privproj epsilon ... --sampling {batches}`"
            )
        return KINDS[batches]()
    if not isinstance(batches, Batches):
        raise InvalidParameterError("batches", batches, "PoissonBatches, FixedBatches, BallsInBins or the name of one")
    return batches


# arguments of Opacus and of other functions of privproj, each with a remedy
OTHER_NAMES = {
    "target_epsilon": "use epsilon={}", "target_delta": "use delta={}", "total_steps": "use steps={}",
    "clip": "use max_grad_norm={}", "sample_rate": "use batches=PoissonBatches(rate={})",
    "sampling_rate": "use batches=PoissonBatches(rate={})", "sampling": "use batches={}",
    "max_batch_size": "use batches=PoissonBatches(max_batch_size={})",
    "batch_size": "set the batch size of data_loader", "dataset_size": "privproj counts the records of data_loader",
    "poisson_sampling": 'use batches="poisson" (True) or batches="balls-in-bins" (False)',
    "noise_generator": "use insecure_seed", "criterion": "pass the loss of a record to step_on as loss_fn",
    "max_physical_batch_size": "use micro_batch_size of step_on",
    "grad_sample_mode": "", "loss_reduction": "", "batch_first": "",
}  # fmt: skip


class _Options:
    """A class whose unknown keyword arguments raise an error with a remedy."""

    def __new__(cls, *values: Any, **options: Any) -> Self:
        names = [field.name for field in fields(cls)]  # pyright: ignore[reportArgumentType]
        for name in options.keys() - names:
            from privproj.training import make_private

            if name in (*signature(make_private).parameters, *OTHER_NAMES) and name != "algorithm":
                value = quoted(options[name])
                remedy = OTHER_NAMES.get(name, f"write make_private(..., {name}={{}})").format(value)
                raise InvalidParameterError(name, value, "given to make_private", remedy)
            raise unknown_name(name, options[name], f"option of {cls.__name__}", names, word=name)
        return super().__new__(cls)


@dataclass(frozen=True)
class Method(_Options):
    """A training algorithm with its options, for ``make_private(algorithm=...)``.

    Args:
        name: One of :data:`privproj.training.algorithms.ALGORITHMS`.
        rank: Rank of the projections of ``m2``, ``m2-projected-clip``, ``projected-dp-sgd`` and ``flora``, from 1 to
            1e7. A rank for ``dp-sgd`` or ``dp-sft``, which have no projections, raises an error. None: for a model from
            :func:`prepare_peft` each projection has the rank of its adapter. For any other module, algorithms with
            projections need a rank.
        frame: "haar" or "wishart": how ``m2`` and ``m2-projected-clip`` map a release back to the size of the weight.
            The frame does not change epsilon. None: "haar".
        subspace: The :class:`Subspace` of ``dp-sft``. It is required for ``dp-sft`` and raises an error for other
            algorithms. The releases that computed the subspace are accounted too.
        every: Number of steps, at least 1, after which ``lora-resampled`` draws new factors, or ``flora`` a new sketch.
            Other algorithms ignore ``every``.
        beta: Momentum of ``flora``, from 0 to 1. Other algorithms ignore ``beta``.
        bound: Name of the bound for the accounting of the run. None: the default bound of the mechanism.

    Raises:
        InvalidParameterError: There is no algorithm of that name, or a value is outside its range.

    >>> from privproj.training import Method
    >>> Method("m2", rank=16).name
    'm2'
    """

    name: str = "dp-sgd"
    rank: int | None = parameter(whole_number("an integer from 1 to 1e7", 1, 10**7))
    frame: Literal["haar", "wishart"] | None = None
    subspace: Any = None
    every: int = parameter(whole_number("an integer >= 1"), default=1)
    beta: float = parameter(number("a number from 0 to 1", 0.0, 1.0), default=0.9)
    bound: str | None = None

    def __post_init__(self) -> None:
        algorithm = load(self.name)
        check_parameters(self)
        if self.frame not in (None, "haar", "wishart") or (self.frame is not None and not algorithm.has_frame):
            raise InvalidParameterError("frame", self.frame, "haar or wishart for m2 and m2-projected-clip, else None")
        if self.rank is not None and algorithm.rank == "none":
            raise InvalidParameterError("rank", self.rank, f"omitted for {self.name}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parameters of a private training run, as executed and as accounted.

    :func:`make_private` makes the plan. The sums of clipped gradients of neighboring datasets differ by at most the
    sensitivity: ``clip`` under add-remove and zero-out, ``2 clip`` under replace.

    Args:
        algorithm: The training algorithm with its options and its bound.
        mechanism: The mechanism of one release. Its noise multiplier ``z`` is the standard deviation of the noise
            divided by the sensitivity.
        clip: The clipping norm ``C``: the largest Frobenius norm that one record contributes to the sum, from 1e-20 to
            1e12. With adaptive clipping, ``clip`` is the clipping norm of the first release.
        steps: ``T``, the number of planned releases, at least 1.
        sampling_rate: ``q``, the probability that a record is in a batch, above 0 and at most 1. It is ``1/t`` for
            balls-in-bins.
        dataset_size: ``N``, the number of records, which is assumed to be public.
        sampling: How batches are drawn: "poisson", "fixed" for batches of exactly ``q N`` records, or "balls-in-bins",
            where each record picks one of the batches of an epoch.
        batches: ``t``, the number of batches in an epoch, for balls-in-bins only. ``steps`` is a multiple of ``t``.
        max_batch_size: The maximum size of a Poisson batch; a larger batch is truncated. None: there is no maximum.
        relation: The neighboring relation.
        group_size: The largest number of records of one user, at least 1. Epsilon is about a user.
        ranks: Rank of the projection of each trained tensor, in the order of the tensors; 1 without a projection.
        shares: For per-layer clipping, the share of ``clip^2`` of each trained tensor; the shares sum to 1. None: joint
            clipping.
        adaptive_clipping: Options of adaptive clipping. Their ``sigma`` equals the ``adaptive_clipping_sigma`` of the
            mechanism. None: the clipping norm is fixed.

    Raises:
        InvalidParameterError: A field is outside its range.
        UnsupportedError: The bound does not hold for this run or this relation.

    >>> from privproj import M2
    >>> from privproj.training import Method, Plan
    >>> release = M2(dim=64, rank=8, noise_multiplier=2.0)
    >>> plan = Plan(
    ...     algorithm=Method("m2", rank=8), mechanism=release, ranks=(8,), clip=0.5, steps=100, sampling_rate=0.125,
    ...     dataset_size=800,
    ... )
    >>> plan.noise_std, plan.expected_batch
    (1.0, 100.0)
    """

    algorithm: Method
    mechanism: Gaussian | M2
    ranks: tuple[int, ...]
    clip: float
    steps: int
    sampling_rate: float
    dataset_size: int
    sampling: SchemeName = "poisson"
    batches: int | None = None
    max_batch_size: int | None = None
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE
    group_size: int = 1
    shares: tuple[float, ...] | None = None
    adaptive_clipping: AdaptiveClipping | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, Method):
            raise InvalidParameterError("algorithm", self.algorithm, "a Method, such as Method('dp-sgd')")
        object.__setattr__(self, "steps", integer("steps", self.steps, "an integer >= 1"))
        object.__setattr__(self, "clip", CLIP.check("max_grad_norm", self.clip))
        if self.max_batch_size is not None and self.sampling_rate == 1.0:
            raise InvalidParameterError("max_batch_size", self.max_batch_size, "omitted with sampling_rate=1")
        if self.batches is not None and self.steps % self.batches:
            raise InvalidParameterError(
                "steps", self.steps, f"a multiple of {self.batches}, the number of batches in an epoch of balls-in-bins"
            )
        adaptive, accounted = self.adaptive_clipping, self.mechanism.adaptive_clipping_sigma
        is_one_clip = adaptive is None or self.shares is None
        if not is_one_clip or accounted != (None if adaptive is None else adaptive.sigma):
            expected = f"None with clipping=per-layer, else have the sigma of the mechanism ({accounted})"
            raise InvalidParameterError("adaptive_clipping", adaptive, expected)
        if adaptive is not None and not adaptive.least <= self.clip <= adaptive.most:
            expected = f"a number from {adaptive.least:g} to {adaptive.most:g}, the range of adaptive_clipping"
            raise InvalidParameterError("max_grad_norm", self.clip, expected)
        self.phase(self.steps).check()

    @property
    def expected_batch(self) -> float:
        """The expected batch size ``q N``, in records, by which the sum is divided.

        It is a public constant, unlike the actual batch sizes.
        """
        # q N, or N/t.
        return self.sampling_rate * self.dataset_size if self.batches is None else self.dataset_size / self.batches

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier ``z``: noise standard deviation divided by sensitivity."""
        return self.mechanism.z

    @property
    def noise_over_clip(self) -> float:
        """The standard deviation of the noise divided by the clipping norm ``C``.

        The ratio is the noise multiplier ``z``, or ``2 z`` under replace.
        """
        # z_C = z s / C, with the sensitivity s = C or, under replace, s = 2 C.
        return self.noise_multiplier * self.relation.clip_factor

    @property
    def noise_std(self) -> float:
        """The standard deviation ``sigma`` of the noise on the clipped sum.

        The value has the unit of the gradients. With adaptive clipping it is the value for the first release.
        """
        # sigma = z_C C.
        return self.noise_over_clip * self.clip

    def phase(self, steps: int) -> Phase:
        """Return ``steps`` releases of this plan as a phase of a privacy schedule.

        Args:
            steps: Number of releases, at least 1.

        Returns:
            A phase of a schedule, named after the algorithm.
        """
        return phase_of(self.mechanism, self.algorithm.name, self.algorithm.bound, **self.run(steps))

    def run(self, steps: int) -> Any:
        """Return the accountant's options for a run of ``steps`` releases of this plan.

        With balls-in-bins the accountant counts epochs as steps, and an incomplete epoch counts as a whole one.

        Args:
            steps: Number of releases, at least 1.

        Returns:
            A dictionary of keyword arguments: the steps, the neighboring relation, the sampling, the size of a group,
                and that the number of records is public.
        """
        # Rate, steps and divisor are computed from the number of records.
        run: dict[str, object] = {"relation": str(self.relation), "public_size": True, "group_size": self.group_size}
        run |= {"max_batch_size": self.max_batch_size}
        fixed_groups = self.group_size > 1 and self.sampling == "fixed" and self.sampling_rate < 1.0
        if self.max_batch_size is not None or fixed_groups:
            run |= {"dataset_size": self.dataset_size}
        if self.batches is not None:
            # E = ceil(T/t).
            return run | {"steps": -(-steps // self.batches), "sampling": self.sampling, "batches": self.batches}
        sampling = self.sampling if self.sampling_rate < 1.0 else None
        return run | {"steps": steps, "sampling_rate": self.sampling_rate, "sampling": sampling}


# If earlier releases use more than this share of a budget, an error is raised. The rest would need so much noise that
# training is useless.
NEARLY_ALL = 0.999

# The noise under a filter is larger by this relative amount than the smallest noise that fits the budget, so that the
# last step of a plan also fits with the rounding of another machine.
FILTER_HEADROOM = 1e-9


def calibrated(plan: Plan, earlier: Account, *, epsilon: float, delta: float, order: float | None = None) -> Plan:
    """Return the plan with the smallest noise that meets ``(epsilon, delta)``.

    The releases of ``earlier`` are composed with those of the plan, by a Renyi filter if an ``order`` is given. The
    target is verified for the returned noise. Raises :class:`UnsupportedError` if no noise meets the target, or if
    earlier releases leave less than a thousandth of the budget.
    """
    silent = replace(plan.mechanism, noise_multiplier=None)

    def with_noise(z: float) -> Plan:
        return replace(plan, mechanism=replace(silent, noise_multiplier=z))

    if order is None and not earlier.spent:
        bound, run = plan.algorithm.bound, plan.run(plan.steps)
        answer = calibration.sigma(silent, epsilon=epsilon, delta=delta, bound=bound, **run)
        if answer.value is None:
            raise UnsupportedError(
                f"no noise multiplier meets epsilon {epsilon:g} at delta {delta:g}. {' '.join(answer.warnings)}"
            )
        return with_noise(answer.value)
    ends = {"low": 1e-3, "high": 1e6}
    if order is None:

        def run_at(z: float) -> Composition:
            phases = (*earlier.phases, (with_noise(z).phase(plan.steps).as_dict(), plan.steps))
            return Composition(tuple(Account(phases).released_phases()))

        share = float(earlier.epsilon(delta)) / epsilon
        search = Search(run_at, full_target(epsilon, delta, None, zero=False))
        noise, _ = search.least(search.guess(1.0), rtol=1e-7, **ends)
    else:
        budget = {"epsilon": epsilon, "delta": delta, "order": order}
        earlier.check_target(budget, "adaptive_order")
        budget_left = Account((*earlier.phases, (plan.phase(plan.steps).as_dict(), 0)), budget).budget()

        def lacks(z: float) -> float:
            return -1.0 if budget_left.fits(with_noise(z).phase(plan.steps)) else 1.0

        share = budget_left.spent / budget_left.budget
        noise = find_crossing(lacks, 1.0, spread=0.2, rtol=1e-9, **ends).upper * (1.0 + FILTER_HEADROOM)
    if noise == math.inf or share > NEARLY_ALL:
        left = f"leave nothing of epsilon {epsilon:g} at delta {delta:g}"
        raise UnsupportedError(f"the {earlier.spent} earlier releases {left}. Use a larger epsilon or delta")
    return with_noise(noise)


def rate_and_steps(
    drawing: Batches, dataset_size: int, batch_size: int | None, steps: int | None, epochs: float | None
) -> tuple[float, int, int | None]:
    """Return the sampling rate, the number of steps, and the batches per epoch.

    The batches per epoch are None except for balls-in-bins. The rate is rounded up: to a multiple of :data:`GRID` for
    Poisson sampling, and to a whole batch size for fixed batches. Raises :class:`InvalidParameterError` unless exactly
    one of ``steps`` and ``epochs`` is given. With balls-in-bins, ``epochs`` must be a whole number.
    """
    if (steps is None) == (epochs is None):
        raise InvalidParameterError("steps", steps, "omitted if epochs is given", "give steps or epochs")
    if batch_size is None and (drawing.count if isinstance(drawing, BallsInBins) else drawing.rate) is None:
        raise InvalidParameterError("data_loader", "batch_size=None", "a DataLoader with a batch_size")
    if isinstance(drawing, BallsInBins):
        # t = ceil(N/B), T = E t.
        batches = drawing.count
        batches = rate_and_steps_from_batches(batch_size or 0, dataset_size)[1] if batches is None else batches
        batches = integer("batches", batches, "an integer from 1 to 1e7", 1, 10**7)
        if steps is None:
            steps = batches * integer("epochs", epochs, "an integer with balls-in-bins sampling", 1, 10**9)
        return 1.0 / batches, steps, batches
    passes = 1.0 if epochs is None else float(EPOCHS.check("epochs", epochs))
    rate = drawing.rate
    if rate is None:
        rate, per_epochs = rate_and_steps_from_batches(batch_size or 0, dataset_size, passes)
    else:
        real("rate", rate, "a number above 0 and at most 1", 0.0, 1.0, open_low=True)
        per_epochs = math.ceil(passes * math.ceil(1.0 / rate))
    steps = per_epochs if steps is None else steps
    if isinstance(drawing, FixedBatches):
        # If rounding puts q N just above a whole number, the batch must not have one record more: hence the 1e-9.
        # q = ceil(q N)/N.
        return max(1, math.ceil(rate * dataset_size - 1e-9)) / dataset_size, steps, None
    # q = ceil(q 2^24)/2^24: how often a 24-bit uniform number is below the rate, so the accounted rate is exact.
    return min(1.0, math.ceil(rate / GRID) * GRID), steps, None
