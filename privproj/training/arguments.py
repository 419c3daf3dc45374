"""The arguments of ``make_private``: checked, and turned into what a plan is made of.

Whatever is wrong with an argument is said here, before anything is released.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import M2, Gaussian
from privproj.runs.sampling import SCHEMES, NeighbouringRelation, Sampling, member_named
from privproj.training.algorithms import ALGORITHMS, load
from privproj.training.algorithms.algorithm import Algorithm
from privproj.training.algorithms.subspace import Subspace
from privproj.training.capture import Taps
from privproj.training.plan import Plan
from privproj.training.release import bounded_norm
from privproj.training.taps import Tap
from privproj.validation import real

EXPECTED_TYPES = {"module": nn.Module, "optimizer": torch.optim.Optimizer, "data_loader": DataLoader}
"""What the three objects of torch have to be. Contract."""

LARGEST_SUM_ERROR = 1e-9
"""How far from 1 the sum of the shares may be, as rounding leaves it; no unit. Contract."""


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
    raise InvalidParameter(
        "module", type(module).__name__, "the module that make_private returned", "call that one in the loop"
    )


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


def check_sampling(sampling: str) -> None:
    """Raise :class:`Refused` for batches of which no more is proved than one release for each epoch."""
    if SCHEMES[member_named(Sampling, "sampling", sampling)].in_positions:
        raise Refused(
            f"sampling={sampling} has no private loader, since nothing is proved of such batches beyond one release "
            f"for each epoch: account for a run that has them so (`privproj epsilon ... --sampling {sampling}`), or "
            'train with sampling="balls-in-bins", which has the same input pipeline, every record once in an epoch, '
            "and a smaller epsilon"
        )


def relation_of(relation: str | None, sampling: str, rate: float, max_batch_size: int | None) -> NeighbouringRelation:
    """The relation that is named; else replace for fixed-size batches at a rate below 1, and add-remove.

    Batches that are cut at a largest size go with zero-out, under which the number of records is public.
    """
    fallback = "replace" if sampling == "fixed" and rate < 1.0 else "add-remove"
    fallback = fallback if max_batch_size is None else "zero-out"
    return member_named(NeighbouringRelation, "relation", relation or fallback)


def shares_of(clipping: str, shares: tuple[float, ...] | None, tensors: int) -> tuple[float, ...] | None:
    """The share of the squared clip of each trained tensor, which sum to 1; None under a joint clip."""
    if clipping not in ("joint", "per-layer") or (shares is not None and clipping == "joint"):
        raise InvalidParameter("clipping", clipping, "joint, or per-layer (with or without shares)")
    if clipping == "joint":
        return None
    if shares is None:
        return (1.0 / tensors,) * tensors
    found = tuple(real("shares", share, "shares above 0", 0.0, 1.0, open_low=True) for share in shares)
    if len(found) != tensors or abs(sum(found) - 1.0) > LARGEST_SUM_ERROR:
        raise InvalidParameter("shares", shares, f"{tensors} shares that sum to 1, one for each trained tensor")
    return found


def _names_where(holds: Callable[[Algorithm], bool]) -> str:
    """The names of all algorithms for which a property holds, for a message."""
    return " or ".join(name for name in ALGORITHMS if holds(load(name)))


def mechanism_of(
    algorithm: Algorithm,
    taps: Taps,
    rank: int | None,
    ranks: tuple[int, ...] | None,
    shares: tuple[float, ...] | None,
) -> Gaussian | M2:
    """What one release of the algorithm is accounted as, its noise left out.

    ``ranks`` are those of each trained tensor, instead of ``rank`` for all. Raises :class:`InvalidParameter` where a
    rank is missing, or given to an algorithm that takes none.
    """
    if rank is None and ranks is None and algorithm.projects:
        raise InvalidParameter("rank", "nothing", "a rank of the projection")
    if rank is not None and algorithm.rank == "none":
        raise InvalidParameter("rank", rank, f"no rank, since {algorithm.name} has none here")
    shapes = [algorithm.shape(tap) for tap in taps.taps]
    return algorithm.accounted_as(shapes, ranks or (rank or 1,) * len(shapes), shares)


def check_frame(algorithm: Algorithm, frame: str | None) -> None:
    """Raise for a frame that does not exist, or that the algorithm has no choice of."""
    if frame not in (None, "haar", "wishart") or (frame and not algorithm.has_frame):
        having = _names_where(lambda one: one.has_frame)
        raise InvalidParameter("frame", frame, f"haar or wishart, with {having} only")


def clip_of(algorithm: Algorithm, max_grad_norm: float | None, feature_bound: float | None, taps: Taps) -> float:
    """The clip ``C``, or the proved bound ``sqrt(2 (R^2 + 1))`` that stands for it where ``feature_bound`` is given.

    Raises :class:`InvalidParameter` unless exactly one of both is given and, for a feature bound, one linear layer is
    trained by an algorithm that never lengthens a gradient.
    """
    if (max_grad_norm is None) == (feature_bound is None):
        raise InvalidParameter("max_grad_norm", max_grad_norm, "either max_grad_norm or feature_bound")
    if feature_bound is None:
        assert max_grad_norm is not None
        return max_grad_norm
    bound = real("feature_bound", feature_bound, "a positive norm", 0.0, 1e12, open_low=True)
    if not algorithm.never_lengthens:
        words = f"max_grad_norm, since {algorithm.name} can lengthen a gradient"
        raise InvalidParameter("feature_bound", bound, words)
    tap = taps.taps[0]
    linear = isinstance(tap, Tap) and len(tap.modules) == 1 and not isinstance(tap.modules[0], nn.Embedding)
    if len(taps.taps) != 1 or not linear:
        raise InvalidParameter("feature_bound", bound, "one trained linear layer", "use max_grad_norm")
    return bounded_norm(bound)


def check_layers(algorithm: Algorithm, taps: Taps, subspace: Subspace | None, clipping: str) -> None:
    """Raise unless the algorithm can train every trained layer, under this clipping and with or without a subspace."""
    if algorithm.needs_subspace != (subspace is not None):
        needing = _names_where(lambda one: one.needs_subspace)
        raise InvalidParameter("subspace", subspace, f"a subspace for {needing}, and for nothing else")
    if algorithm.needs_subspace and clipping != "joint":
        raise InvalidParameter("clipping", clipping, "joint, since all layers share the coordinates of a subspace")
    for tap in taps.taps:
        # A layer that only one algorithm can train asks that algorithm first whether this one is it.
        if tap.only_for is not None:
            load(tap.only_for).check_layer(algorithm.name, tap)
        algorithm.check_layer(algorithm.name, tap)
