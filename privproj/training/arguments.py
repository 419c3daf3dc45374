"""``make_private``: from a module, an optimizer and a loader to private ones, under one plan."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from privproj.errors import InvalidParameter
from privproj.runs import NeighbouringRelation, named
from privproj.training.algorithms.prism import PrismTap
from privproj.training.algorithms.subspace import Subspace
from privproj.training.capture import Tap, Taps
from privproj.training.release import bounded_norm
from privproj.validation import real

PARTS = {"module": nn.Module, "optimizer": torch.optim.Optimizer, "data_loader": DataLoader}


def ranks_of(taps: Taps) -> tuple[int, ...] | None:
    """The rank of each adapter, where :func:`prepare_peft` has noted one for every trained tensor."""
    ranks = [
        getattr(part, "projection_rank", None) for tap in taps.taps for part in getattr(tap, "modules", [None])[:1]
    ]
    return None if None in ranks else tuple(ranks)  # pyright: ignore[reportReturnType]


def check_parts(**given: Any) -> None:
    """The right kinds of objects."""
    for name, value in given.items():
        if not isinstance(value, PARTS[name]):
            raise InvalidParameter(name, type(value).__name__, f"a {PARTS[name].__name__} of torch")
    if isinstance(given["module"], DistributedDataParallel | nn.DataParallel):
        name = type(given["module"]).__name__
        raise InvalidParameter("module", name, "the module itself", "contributions are summed over processes here")


def target_of(z: float | None, epsilon: float | None, delta: float | None) -> dict[str, float] | None:
    """Epsilon and delta to calibrate for; None where the noise is given."""
    if (z is None) == (epsilon is None):
        raise InvalidParameter("noise_multiplier", z, "either noise_multiplier, or epsilon with delta")
    if epsilon is None:
        return None
    if delta is None:
        raise InvalidParameter("delta", delta, "delta with epsilon")
    return {"epsilon": epsilon, "delta": delta}


def relation_of(relation: str | None, sampling: str, rate: float) -> NeighbouringRelation:
    """Add-remove unless said otherwise; fixed-size sampling has a theorem for replace only."""
    fallback = "replace" if sampling == "fixed" and rate < 1.0 else "add-remove"
    return named(NeighbouringRelation, "relation", relation or fallback)


def shares_of(clipping: str, shares: tuple[float, ...] | None, tensors: int) -> tuple[float, ...] | None:
    """The parts of the squared clip for each trained tensor; None under a joint clip."""
    if clipping not in ("joint", "per-layer") or (shares is not None and clipping == "joint"):
        raise InvalidParameter("clipping", clipping, "joint, or per-layer (with or without shares)")
    if clipping == "joint":
        return None
    if shares is None:
        return (1.0 / tensors,) * tensors
    found = tuple(real("shares", share, "shares above 0", 0.0, 1.0, open_low=True) for share in shares)
    if len(found) != tensors or abs(sum(found) - 1.0) > 1e-9:
        raise InvalidParameter("shares", shares, f"{tensors} shares that sum to 1, one for each trained tensor")
    return found


def clip_of(algorithm: str, max_grad_norm: float | None, feature_bound: float | None, taps: Taps) -> float:
    """The clip, or what stands for it where gradients are bounded without one."""
    if (max_grad_norm is None) == (feature_bound is None):
        raise InvalidParameter("max_grad_norm", max_grad_norm, "either max_grad_norm or feature_bound")
    if feature_bound is None:
        assert max_grad_norm is not None
        return max_grad_norm
    bound = real("feature_bound", feature_bound, "a positive norm", 0.0, 1e12, open_low=True)
    if algorithm not in ("dp-sgd", "m2", "m2-projected-clip"):
        raise InvalidParameter("feature_bound", bound, f"max_grad_norm, since {algorithm} can lengthen a gradient")
    if len(taps.taps) != 1 or not isinstance(taps.taps[0], Tap) or len(taps.taps[0].modules) != 1:
        raise InvalidParameter("feature_bound", bound, "one trained linear layer", "use max_grad_norm")
    return bounded_norm(bound)


def check_layers(algorithm: str, taps: Taps, subspace: Subspace | None, clipping: str) -> None:
    """The module has the adapters that the algorithm trains, and nothing else trained."""
    if (algorithm == "dp-sft") != (subspace is not None):
        raise InvalidParameter("subspace", subspace, "a subspace for dp-sft, and for nothing else")
    if algorithm == "dp-sft" and clipping != "joint":
        raise InvalidParameter("clipping", clipping, "joint, since all layers share the coordinates of a subspace")
    for tap in taps.taps:
        if isinstance(tap, PrismTap) != (algorithm == "prism"):
            raise InvalidParameter(
                "algorithm", algorithm, f"prism, and only add_prism's layers trained, not {tap.name}"
            )
        if algorithm in ("lora-fa", "lora-resampled") and ".lora_B" not in f".{tap.name}":
            raise InvalidParameter(
                "algorithm", algorithm, f"only LoRA's B factors trained, not {tap.name}",
                "wrap the module with add_frozen_lora, or freeze it",
            )  # fmt: skip
