from privproj.training.adaptive_clipping import AdaptiveClipping as AdaptiveClipping
from privproj.training.algorithms.lora import (
    FrozenLoRA as FrozenLoRA,
    add_frozen_lora as add_frozen_lora,
    export_peft as export_peft,
    import_peft as import_peft,
    prepare_peft as prepare_peft,
)
from privproj.training.algorithms.prism import PrismLinear as PrismLinear, Steps as Steps, add_prism as add_prism
from privproj.training.algorithms.projected_descent import ProjectedDescent as ProjectedDescent
from privproj.training.algorithms.subspace import Subspace as Subspace, Trajectory as Trajectory, leading as leading
from privproj.training.private import make_private as make_private
from privproj.training.batches import Batch as Batch, PrivateLoader as PrivateLoader
from privproj.training.optimizer import PrivateOptimizer as PrivateOptimizer
from privproj.training.plan import (
    BallsInBins as BallsInBins,
    FixedBatches as FixedBatches,
    Method as Method,
    Plan as Plan,
    PoissonBatches as PoissonBatches,
)
