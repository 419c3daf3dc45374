"""The torch adapter: train with the computed sigma, and be able to prove what was spent (needs the extra ``torch``)."""

from .adapters import FrozenLoRA, add_frozen_lora
from .engine import make_private
from .optimizer import PrivateOptimizer
from .plan import Plan

__all__ = ["FrozenLoRA", "Plan", "PrivateOptimizer", "add_frozen_lora", "make_private"]
