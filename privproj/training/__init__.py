"""The torch adapter: train with the computed sigma, and be able to prove what was spent (needs the extra ``torch``).

The names below are the public interface. Importing the package loads none of them and no torch, so that the command
line can list the algorithms (:mod:`privproj.training.algorithms`) where torch is not installed.
"""

from typing import TYPE_CHECKING

from privproj.lazy import lazy_names

if TYPE_CHECKING:
    from privproj.training.adaptive_clipping import AdaptiveClipping
    from privproj.training.algorithms.lora import FrozenLoRA, add_frozen_lora, export_peft, import_peft, prepare_peft
    from privproj.training.algorithms.prism import PrismLinear, Steps, add_prism
    from privproj.training.algorithms.projected_descent import ProjectedDescent
    from privproj.training.algorithms.subspace import Subspace, Trajectory, leading
    from privproj.training.engine import Method, make_private
    from privproj.training.independence import is_checking
    from privproj.training.optimizer import PrivateOptimizer
    from privproj.training.plan import BallsInBins, FeatureBound, FixedBatches, Plan, PoissonBatches

__all__ = [
    "AdaptiveClipping",
    "BallsInBins",
    "FeatureBound",
    "FixedBatches",
    "FrozenLoRA",
    "Method",
    "Plan",
    "PoissonBatches",
    "PrismLinear",
    "PrivateOptimizer",
    "ProjectedDescent",
    "Steps",
    "Subspace",
    "Trajectory",
    "add_frozen_lora",
    "add_prism",
    "export_peft",
    "import_peft",
    "is_checking",
    "leading",
    "make_private",
    "prepare_peft",
]

HOMES = {
    "adaptive_clipping": ("AdaptiveClipping",),
    "algorithms.lora": ("FrozenLoRA", "add_frozen_lora", "export_peft", "import_peft", "prepare_peft"),
    "algorithms.prism": ("PrismLinear", "Steps", "add_prism"),
    "algorithms.projected_descent": ("ProjectedDescent",),
    "algorithms.subspace": ("Subspace", "Trajectory", "leading"),
    "engine": ("Method", "make_private"),
    "independence": ("is_checking",),
    "optimizer": ("PrivateOptimizer",),
    "plan": ("BallsInBins", "FeatureBound", "FixedBatches", "Plan", "PoissonBatches"),
}
"""Where each public name is, by module. Contract: these names stay importable from here."""

__getattr__, __dir__ = lazy_names(__name__, HOMES, extra="torch")
