"""The torch adapter: train with the computed sigma, and be able to prove what was spent (needs the extra ``torch``).

The names below are the public interface. Importing the package loads none of them and no torch, so that the command
line can list the algorithms (:mod:`privproj.training.algorithms`) where torch is not installed.
"""

from typing import TYPE_CHECKING

from privproj.lazy import lazy_names

if TYPE_CHECKING:
    # isort: off
    from privproj.training.adaptive_clipping import AdaptiveClipping as AdaptiveClipping
    from privproj.training.algorithms.lora import (
        FrozenLoRA as FrozenLoRA, add_frozen_lora as add_frozen_lora, export_peft as export_peft,
        import_peft as import_peft, prepare_peft as prepare_peft,
    )  # fmt: skip
    from privproj.training.algorithms.prism import PrismLinear as PrismLinear, Steps as Steps, add_prism as add_prism
    from privproj.training.algorithms.projected_descent import ProjectedDescent as ProjectedDescent
    from privproj.training.algorithms.subspace import (
        Subspace as Subspace, Trajectory as Trajectory, leading as leading,
    )  # fmt: skip
    from privproj.training.engine import Method as Method, make_private as make_private
    from privproj.training.independence import is_checking as is_checking
    from privproj.training.optimizer import PrivateOptimizer as PrivateOptimizer
    from privproj.training.plan import (
        BallsInBins as BallsInBins, FeatureBound as FeatureBound, FixedBatches as FixedBatches, Plan as Plan,
        PoissonBatches as PoissonBatches,
    )  # fmt: skip
    # isort: on

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
