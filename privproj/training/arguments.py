"""The arguments of ``make_private``: checked, and turned into what a plan is made of.

Whatever is wrong with an argument is said here, before anything is released.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import M2, Gaussian
from privproj.runs.sampling import SCHEMES, NeighbouringRelation, Sampling, member_named
from privproj.training.adaptive_clipping import AdaptiveClipping
from privproj.training.algorithms import ALGORITHMS, load
from privproj.training.algorithms.algorithm import Algorithm
from privproj.training.algorithms.subspace import Subspace
from privproj.training.capture import Taps
from privproj.training.plan import Plan, SchemeName
from privproj.training.release import bounded_norm
from privproj.training.taps import Tap
from privproj.validation import real, whole

EXPECTED_TYPES = {"module": nn.Module, "optimizer": torch.optim.Optimizer, "data_loader": DataLoader}
"""What the three objects of torch have to be. Contract."""

LARGEST_SUM_ERROR = 1e-9
"""How far from 1 the sum of the shares may be, as rounding leaves it; no unit. Contract."""


@dataclass(frozen=True)
class Method:
    """A training algorithm with its own options, for ``make_private(algorithm=...)`` where its name is not enough.

    Args:
        name: One of :data:`privproj.training.algorithms.ALGORITHMS`.
        rank: Rank of the projections of ``m2``, ``m2-projected-clip``, ``m1`` and ``flora``, from 1 to 1e7; refused for
            other algorithms that take none. None: a model from :func:`prepare_peft` is projected to the rank of each of
            its adapters, and any other module of a projecting algorithm needs a rank.
        frame: Frame of the projections of ``m2`` and ``m2-projected-clip``, "haar" or "wishart". It changes how a
            release is lifted back, not its privacy. None: Haar.
        subspace: The subspace of ``dp-sft``, needed there and refused elsewhere. Its own releases are accounted too.
        every: Number of steps, at least 1, that one draw of the factors of ``lora-resampled`` or of the sketch of
            ``flora`` serves. The other algorithms do not use it.
        beta: Momentum of ``flora``, from 0 to 1. The other algorithms do not use it.
        bound: Name of the bound that accounts the run. None: the default of the mechanism.

    Raises:
        InvalidParameter: There is no algorithm of that name, or the rank is outside its range.

    >>> from privproj.training import Method
    >>> Method("m2", rank=16).name
    'm2'
    """

    name: str = "dp-sgd"
    rank: int | None = None
    frame: Literal["haar", "wishart"] | None = None
    subspace: Subspace | None = None
    every: int = 1
    beta: float = 0.9
    bound: str | None = None

    def __post_init__(self) -> None:
        load(self.name)
        if self.rank is not None:
            object.__setattr__(self, "rank", whole("rank", self.rank, "a rank from 1 to 1e7", 1, 10**7))

    @classmethod
    def of(cls, given: "str | Method") -> "Method":
        """Return the algorithm that a name means, and one with its options as it is.

        Args:
            given: A name or a :class:`Method`.

        Returns:
            A :class:`Method`.
        """
        return given if isinstance(given, Method) else cls(given)


@dataclass(frozen=True, kw_only=True)
class PoissonBatches:
    """Batches that every record joins independently with one probability, for ``make_private(batches=...)``.

    Args:
        rate: ``q``, the probability that a record is in a batch, above 0 and at most 1; it is rounded up to a multiple
            of ``2^-24``. None: batch size over number of records of the loader.
        max_batch_size: The number of records above which a batch is cut, at least 1; the surplus is dropped at random.
            None: batches are used as drawn.

    >>> from privproj.training import PoissonBatches
    >>> PoissonBatches(rate=0.01, max_batch_size=512).sampling
    'poisson'
    """

    rate: float | None = None
    max_batch_size: int | None = None
    sampling: ClassVar[SchemeName] = "poisson"
    count: ClassVar = None


@dataclass(frozen=True, kw_only=True)
class FixedBatches:
    """Batches of one size, each a random subset drawn afresh, for ``make_private(batches=...)``.

    Args:
        rate: The size of a batch over the number of records, above 0 and at most 1; the size is rounded up. None: that
            of the loader.

    >>> from privproj.training import FixedBatches
    >>> FixedBatches(rate=0.01).sampling
    'fixed'
    """

    rate: float | None = None
    sampling: ClassVar[SchemeName] = "fixed"
    count: ClassVar = None
    max_batch_size: ClassVar = None


@dataclass(frozen=True, kw_only=True)
class BallsInBins:
    """Epochs in each of which every record picks one batch, uniformly, for ``make_private(batches=...)``.

    Each record is used once in an epoch; ``epochs`` or ``steps`` are whole epochs.

    Args:
        count: ``t``, the number of batches of an epoch, from 1 to 1e7. None: the number of records over the batch size
            of the loader, rounded up.

    >>> from privproj.training import BallsInBins
    >>> BallsInBins(count=100).sampling
    'balls-in-bins'
    """

    count: int | None = None
    sampling: ClassVar[SchemeName] = "balls-in-bins"
    rate: ClassVar = None
    max_batch_size: ClassVar = None


Batches = PoissonBatches | FixedBatches | BallsInBins
"""A way of drawing batches that training has."""

KINDS = {kind.sampling: kind for kind in (PoissonBatches, FixedBatches, BallsInBins)}
"""The ways of drawing batches by their names. Contract."""


@dataclass(frozen=True)
class FeatureBound:
    """A bound on the features of one linear softmax head that stands for its clip, for ``make_private(clipping=...)``.

    Gradients of the head have norm at most ``C = sqrt(2 (R^2 + 1))``; longer features are scaled down. No
    ``max_grad_norm`` is given beside it.

    Args:
        norm: ``R``, the largest norm of a feature vector, above 0 and at most 1e12.

    >>> from privproj.training import FeatureBound
    >>> FeatureBound(4.0).norm
    4.0
    """

    norm: float


Clipping = Literal["joint", "per-layer"] | tuple[float, ...] | AdaptiveClipping | FeatureBound
"""How gradients are clipped: by one norm, by one for each tensor, with shares, adaptively, or by what is proved."""


def batches_of(given: "str | Batches") -> Batches:
    """The way of drawing batches that a name means, and one with its options as it is."""
    if isinstance(given, str):
        if SCHEMES[member_named(Sampling, "sampling", given)].in_positions:
            raise Refused(
                f"sampling={given} has no private loader, since nothing is proved of such batches beyond one release "
                f"for each epoch: account for a run that has them so (`privproj epsilon ... --sampling {given}`), or "
                'train with batches="balls-in-bins", which has the same input pipeline, every record once in an epoch, '
                "and a smaller epsilon"
            )
        return KINDS[given]()
    if not isinstance(given, Batches):
        raise InvalidParameter("batches", given, "PoissonBatches, FixedBatches, BallsInBins or the name of one")
    return given


def ranks_of(taps: Taps) -> tuple[int, ...] | None:
    """The rank of each adapter, where :func:`prepare_peft` has noted one for every trained tensor; else None."""
    ranks = [getattr(tap.modules[0], "projection_rank", None) for tap in taps.taps]
    return None if None in ranks else tuple(ranks)  # pyright: ignore[reportReturnType]


def check_parts(**given: Any) -> None:
    """Raise unless these are torch's kinds of objects, and no module is wrapped for several devices or processes."""
    for name, value in given.items():
        if not isinstance(value, EXPECTED_TYPES[name]):
            raise InvalidParameter(name, type(value).__name__, f"a {EXPECTED_TYPES[name].__name__} of torch")
    for part in given["module"].modules():
        if isinstance(part, DistributedDataParallel | nn.DataParallel):
            remedy = "one process for each GPU: contributions are summed over processes here"
            raise InvalidParameter("module", f"a part in {type(part).__name__}", "the module itself", remedy)


def unwrapped_module(module: Any) -> Any:
    """The module in a ``DistributedDataParallel``, which sums gradients before they are clipped; others as they are."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def retire_wrapper(module: nn.Module) -> None:
    """Keep a ``DistributedDataParallel`` whose module was made private from being called or summing gradients."""
    if isinstance(module, DistributedDataParallel):
        module._remove_autograd_hooks()
        module.register_forward_pre_hook(_refuse_call)


def _refuse_call(module: nn.Module, args: Any) -> None:
    """Refuse a call of the wrapper."""
    remedy = "call that one in the loop"
    raise InvalidParameter("module", type(module).__name__, "the module that make_private returned", remedy)


def told_to_others(
    plan: Plan,
    target: dict[str, float] | None,
    insecure_seed: int | None,
    taps: Taps,
    optimizer: torch.optim.Optimizer,
    subspace: Subspace | None,
) -> dict[str, object]:
    """All that the processes of a run must have in common, by the names of arguments where these are meant."""
    told: dict[str, object] = {"max_grad_norm": plan.clip, "noise_multiplier": plan.noise_multiplier}
    told |= {**(target or {}), "insecure_seed": insecure_seed}
    told |= {field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "clip"}
    groups = [{k: str(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    told |= {"optimizer": type(optimizer).__name__, "optimizer's groups": groups}
    if subspace is not None:
        told |= {"subspace": (tuple(subspace.basis.shape), subspace.source, subspace.mode)}
    trained = {id(p) for tap in taps.taps for p in tap.parameters}
    for name, tensor in taps.tensors():
        kind = "trained" if id(tensor) in trained else "frozen"
        told[f"module's {name}"] = f"{tuple(tensor.shape)} {tensor.dtype} {kind}"
    # Each process draws the projections by itself, and other hardware or another torch draws other ones.
    device = taps.taps[0].parameters[0].device
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return {**told, "device": f"{device.type} {model}".strip(), "torch": torch.__version__}


def unwrapped_optimizer(optimizer: Any) -> Any:
    """The optimizer that Accelerate has wrapped, if it has; raises :class:`InvalidParameter` where it scales losses."""
    if type(optimizer).__name__ != "AcceleratedOptimizer":
        return optimizer
    if optimizer.scaler is not None:
        remedy = 'use mixed_precision="bf16" or "no": a scaler skips steps by private gradients'
        raise InvalidParameter("optimizer", "one that Accelerate scales losses for (fp16)", "no scaler", remedy)
    return optimizer.optimizer


def calibration_target(
    z: float | None, epsilon: float | None, delta: float | None, order: float | None = None
) -> dict[str, float] | None:
    """The epsilon and delta to calibrate the noise for, with the order of a filter; None where the noise is given."""
    if order is not None and epsilon is None:
        raise InvalidParameter("adaptive_order", order, "epsilon and delta with it, which are the budget")
    if (z is None) == (epsilon is None):
        raise InvalidParameter("noise_multiplier", z, "either noise_multiplier, or epsilon with delta")
    if epsilon is None:
        return None
    if delta is None:
        raise InvalidParameter("delta", delta, "delta with epsilon")
    return {"epsilon": epsilon, "delta": delta} | ({} if order is None else {"order": order})


def relation_of(relation: str | None, sampling: str, rate: float, max_batch_size: int | None) -> NeighbouringRelation:
    """The relation that is named; else replace for fixed-size batches at a rate below 1, and add-remove.

    Batches that are cut at a largest size go with zero-out, under which the number of records is public.
    """
    fallback = "replace" if sampling == "fixed" and rate < 1.0 else "add-remove"
    fallback = fallback if max_batch_size is None else "zero-out"
    return member_named(NeighbouringRelation, "relation", relation or fallback)


def shares_of(clipping: Clipping, tensors: int) -> tuple[float, ...] | None:
    """The share of the squared clip of each trained tensor, which sum to 1; None under one clip for all."""
    if clipping == "joint" or isinstance(clipping, AdaptiveClipping | FeatureBound):
        return None
    if clipping == "per-layer":
        return (1.0 / tensors,) * tensors
    if not isinstance(clipping, tuple | list):
        words = "joint, per-layer, a share for each trained tensor, AdaptiveClipping or FeatureBound"
        raise InvalidParameter("clipping", clipping, words)
    found = tuple(real("clipping", share, "shares above 0", 0.0, 1.0, open_low=True) for share in clipping)
    if len(found) != tensors or abs(sum(found) - 1.0) > LARGEST_SUM_ERROR:
        raise InvalidParameter("clipping", clipping, f"{tensors} shares that sum to 1, one for each trained tensor")
    return found


def _names_where(holds: Callable[[Algorithm], bool]) -> str:
    """The names of all algorithms for which a property holds, for a message."""
    return " or ".join(name for name in ALGORITHMS if holds(load(name)))


def mechanism_of(
    method: Method, taps: Taps, ranks: tuple[int, ...] | None, shares: tuple[float, ...] | None
) -> Gaussian | M2:
    """What one release of the algorithm is accounted as, its noise left out.

    ``ranks`` are those of each trained tensor, instead of one for all. Raises :class:`InvalidParameter` where a rank is
    missing or a rank or a frame is given to an algorithm that takes none.
    """
    algorithm, rank, frame = load(method.name), method.rank, method.frame
    if frame not in (None, "haar", "wishart") or (frame and not algorithm.has_frame):
        having = _names_where(lambda one: one.has_frame)
        raise InvalidParameter("frame", frame, f"haar or wishart, with {having} only")
    if rank is None and ranks is None and algorithm.projects:
        raise InvalidParameter("rank", "nothing", "a rank of the projection")
    if rank is not None and algorithm.rank == "none":
        raise InvalidParameter("rank", rank, f"no rank, since {algorithm.name} has none here")
    shapes = [algorithm.shape(tap) for tap in taps.taps]
    return algorithm.accounted_as(shapes, ranks or (rank or 1,) * len(shapes), shares)


def clip_of(algorithm: Algorithm, max_grad_norm: float | None, clipping: Clipping, taps: Taps) -> float:
    """The clip ``C``, or the proved bound ``sqrt(2 (R^2 + 1))`` that stands for it under a :class:`FeatureBound`.

    Raises :class:`InvalidParameter` unless exactly one of both is given and, for a feature bound, one linear layer is
    trained by an algorithm that never lengthens a gradient.
    """
    if (max_grad_norm is None) != isinstance(clipping, FeatureBound):
        raise InvalidParameter("max_grad_norm", max_grad_norm, "either max_grad_norm or clipping=FeatureBound(R)")
    if not isinstance(clipping, FeatureBound):
        assert max_grad_norm is not None
        return max_grad_norm
    bound = real("feature_bound", clipping.norm, "a positive norm", 0.0, 1e12, open_low=True)
    if not algorithm.never_lengthens:
        words = f"max_grad_norm, since {algorithm.name} can lengthen a gradient"
        raise InvalidParameter("feature_bound", bound, words)
    tap = taps.taps[0]
    linear = isinstance(tap, Tap) and len(tap.modules) == 1 and not isinstance(tap.modules[0], nn.Embedding)
    if len(taps.taps) != 1 or not linear:
        raise InvalidParameter("feature_bound", bound, "one trained linear layer", "use max_grad_norm")
    return bounded_norm(bound)


def check_layers(algorithm: Algorithm, taps: Taps, subspace: Subspace | None, clipping: Clipping) -> None:
    """Raise unless the algorithm can train every trained layer, under this clipping and with or without a subspace."""
    if algorithm.needs_subspace != (subspace is not None):
        needing = _names_where(lambda one: one.needs_subspace)
        raise InvalidParameter("subspace", subspace, f"a subspace for {needing}, and for nothing else")
    if algorithm.needs_subspace and (clipping == "per-layer" or isinstance(clipping, tuple | list)):
        raise InvalidParameter("clipping", clipping, "joint, since all layers share the coordinates of a subspace")
    for tap in taps.taps:
        # A layer that only one algorithm can train asks that algorithm first whether this one is it.
        if tap.only_for is not None:
            load(tap.only_for).check_layer(algorithm.name, tap)
        algorithm.check_layer(algorithm.name, tap)
