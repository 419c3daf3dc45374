"""Privacy accounting for random projections: exact and near-exact profiles, each with its status and promises.

The names below are the public interface; importing the package loads none of them.
"""

from typing import TYPE_CHECKING

from privproj.lazy import lazy_names
from privproj.version import __version__ as __version__

if TYPE_CHECKING:
    from privproj.accounting.calibration import misalignment, rank, rate, sigma, steps
    from privproj.accounting.choice import Choice, choose
    from privproj.accounting.columns import ColumnResult, deltas, epsilons, sigmas
    from privproj.accounting.evaluate import evaluate
    from privproj.accounting.mixing_plan import mixing_plan
    from privproj.accounting.queries import Comparison, compare, delta, epsilon
    from privproj.accounting.worth import Worth, worth
    from privproj.curves.epsilon_delta import advanced_composition, basic_composition
    from privproj.errors import (
        InvalidParameter,
        MissingPackage,
        NotConverged,
        PrecisionLimit,
        PrivprojError,
        Refused,
        Unanswered,
    )
    from privproj.extensions.filter import Filter
    from privproj.extensions.gdp import gdp_mu
    from privproj.extensions.privacy_loss import Conversion, PrivacyLoss, convert, privacy_loss
    from privproj.extensions.selection import draw_trials, select
    from privproj.mechanisms import (
        M1,
        M2,
        R1SMG,
        Gaussian,
        JLClip,
        Laplace,
        Layer,
        Mixing,
        PublicSketch,
        Sketch,
        Wishart,
        WishartMatrix,
    )
    from privproj.mechanisms.m2.beta_tail import beta_tail_epsilons
    from privproj.mechanisms.registry import registry
    from privproj.records.run_file import Accountant
    from privproj.result import LowerBound, Outcome, Result, Rows, Side, Status
    from privproj.runs import RunOptions
    from privproj.runs.sampling import NeighbouringRelation, Sampling

__all__ = [
    "M1",
    "M2",
    "R1SMG",
    "Accountant",
    "Choice",
    "ColumnResult",
    "Comparison",
    "Conversion",
    "Filter",
    "Gaussian",
    "InvalidParameter",
    "JLClip",
    "Laplace",
    "Layer",
    "LowerBound",
    "MissingPackage",
    "Mixing",
    "NeighbouringRelation",
    "NotConverged",
    "Outcome",
    "PrecisionLimit",
    "PrivacyLoss",
    "PrivprojError",
    "PublicSketch",
    "Refused",
    "Result",
    "Rows",
    "RunOptions",
    "Sampling",
    "Side",
    "Sketch",
    "Status",
    "Unanswered",
    "Wishart",
    "WishartMatrix",
    "Worth",
    "advanced_composition",
    "basic_composition",
    "beta_tail_epsilons",
    "choose",
    "compare",
    "convert",
    "delta",
    "deltas",
    "draw_trials",
    "epsilon",
    "epsilons",
    "evaluate",
    "gdp_mu",
    "misalignment",
    "mixing_plan",
    "privacy_loss",
    "rank",
    "rate",
    "registry",
    "select",
    "sigma",
    "sigmas",
    "steps",
    "worth",
]

HOMES = {
    "accounting.calibration": ("misalignment", "rank", "rate", "sigma", "steps"),
    "accounting.choice": ("Choice", "choose"),
    "accounting.columns": ("ColumnResult", "deltas", "epsilons", "sigmas"),
    "accounting.evaluate": ("evaluate",),
    "accounting.mixing_plan": ("mixing_plan",),
    "accounting.queries": ("Comparison", "compare", "delta", "epsilon"),
    "accounting.worth": ("Worth", "worth"),
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
