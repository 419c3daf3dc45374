"""The torch adapter: train with the computed sigma, and be able to prove what was spent (needs the extra ``torch``)."""

from .adapters import FrozenLoRA, add_frozen_lora, prepare_peft
from .engine import make_private
from .optimizer import PrivateOptimizer
from .plan import Plan
from .prism import PrismLinear, Steps, add_prism
from .resampling import ProjectedDescent
from .subspace import Subspace, Trajectory, leading

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
