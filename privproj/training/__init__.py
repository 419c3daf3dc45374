"""The torch adapter: train with the computed sigma, and be able to prove what was spent (needs the extra ``torch``)."""

from privproj.training.algorithms.lora import FrozenLoRA, add_frozen_lora, prepare_peft
from privproj.training.algorithms.prism import PrismLinear, Steps, add_prism
from privproj.training.algorithms.projected_descent import ProjectedDescent
from privproj.training.algorithms.subspace import Subspace, Trajectory, leading
from privproj.training.engine import make_private
from privproj.training.optimizer import PrivateOptimizer
from privproj.training.plan import Plan

__all__ = [
    "FrozenLoRA",
    "Plan",
    "PrismLinear",
    "PrivateOptimizer",
    "ProjectedDescent",
    "Steps",
    "Subspace",
    "Trajectory",
    "add_frozen_lora",
    "add_prism",
    "leading",
    "make_private",
    "prepare_peft",
]
