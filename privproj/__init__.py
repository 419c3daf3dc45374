"""Privacy accounting for random projections: exact and near-exact profiles, each with its status and promises.

The names below are the public interface; importing the package loads none of them.
"""

from typing import TYPE_CHECKING

from privproj.lazy import lazy_names
from privproj.version import __version__ as __version__

if TYPE_CHECKING:
    # isort: off
    from privproj.accounting.calibration import (
        misalignment as misalignment,
        rank as rank,
        rate as rate,
        sigma as sigma,
        steps as steps,
    )
    from privproj.accounting.choice import (
        Choice as Choice,
        Worth as Worth,
        choose as choose,
        mixing_plan as mixing_plan,
        worth as worth,
    )
    from privproj.accounting.columns import (
        ColumnResult as ColumnResult,
        deltas as deltas,
        epsilons as epsilons,
        sigmas as sigmas,
    )
    from privproj.accounting.comparison import Comparison as Comparison, compare as compare
    from privproj.accounting.question import delta as delta, epsilon as epsilon
    from privproj.accounting.spec import evaluate as evaluate
    from privproj.curves.epsilon_delta import (
        advanced_composition as advanced_composition,
        basic_composition as basic_composition,
    )
    from privproj.errors import (
        InvalidParameter as InvalidParameter,
        MissingPackage as MissingPackage,
        NotConverged as NotConverged,
        PrecisionLimit as PrecisionLimit,
        PrivprojError as PrivprojError,
        Refused as Refused,
        Unanswered as Unanswered,
    )
    from privproj.extensions.filter import Filter as Filter
    from privproj.extensions.gdp import gdp_mu as gdp_mu
    from privproj.extensions.privacy_loss import (
        Conversion as Conversion,
        PrivacyLoss as PrivacyLoss,
        convert as convert,
        privacy_loss as privacy_loss,
    )
    from privproj.extensions.selection import draw_trials as draw_trials, select as select
    from privproj.mechanisms import (
        M1 as M1,
        M2 as M2,
        R1SMG as R1SMG,
        Gaussian as Gaussian,
        JLClip as JLClip,
        Laplace as Laplace,
        Layer as Layer,
        Mixing as Mixing,
        PublicSketch as PublicSketch,
        Sketch as Sketch,
        Wishart as Wishart,
        WishartMatrix as WishartMatrix,
    )
    from privproj.mechanisms.m2.beta_tail import beta_tail_epsilons as beta_tail_epsilons
    from privproj.mechanisms.registry import registry as registry
    from privproj.records.run_file import Accountant as Accountant
    from privproj.result import (
        LowerBound as LowerBound,
        Outcome as Outcome,
        Result as Result,
        Rows as Rows,
        Side as Side,
        Status as Status,
    )
    from privproj.runs import RunOptions as RunOptions
    from privproj.runs.sampling import NeighbouringRelation as NeighbouringRelation, Sampling as Sampling

HOMES = {
    "accounting.calibration": ("misalignment", "rank", "rate", "sigma", "steps"),
    "accounting.choice": ("Choice", "Worth", "choose", "mixing_plan", "worth"),
    "accounting.columns": ("ColumnResult", "deltas", "epsilons", "sigmas"),
    "accounting.spec": ("evaluate",),
    "accounting.comparison": ("Comparison", "compare"),
    "accounting.question": ("delta", "epsilon"),
    "mechanisms.registry": ("registry",),
    "mechanisms.m2.beta_tail": ("beta_tail_epsilons",),
    "curves.epsilon_delta": ("advanced_composition", "basic_composition"),
    "extensions.filter": ("Filter",),
    "extensions.gdp": ("gdp_mu",),
    "extensions.privacy_loss": ("Conversion", "PrivacyLoss", "convert", "privacy_loss"),
    "extensions.selection": ("draw_trials", "select"),
    "errors": (
        *("InvalidParameter", "MissingPackage", "NotConverged", "PrecisionLimit", "PrivprojError", "Refused"),
        "Unanswered",
    ),
    "mechanisms": (
        *("M1", "M2", "R1SMG", "Gaussian", "JLClip", "Laplace", "Layer", "Mixing", "PublicSketch", "Sketch"),
        *("Wishart", "WishartMatrix"),
    ),
    "records.run_file": ("Accountant",),
    "result": ("LowerBound", "Outcome", "Result", "Rows", "Side", "Status"),
    "runs": ("RunOptions",),
    "runs.sampling": ("NeighbouringRelation", "Sampling"),
}
"""Where the public names live; a name is imported when it is asked for."""

__getattr__, __dir__ = lazy_names(__name__, HOMES)
