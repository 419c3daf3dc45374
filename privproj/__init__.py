"""Privacy accounting for random projections: exact and near-exact profiles, each with its status and promises.

The names below are the public interface; importing the package loads none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from privproj.accountant import Comparison, compare, delta, epsilon
    from privproj.beta_tail import epsilons as beta_tail_epsilons
    from privproj.bounds import registry
    from privproj.calibration import misalignment, rank, rate, sigma, steps
    from privproj.errors import InvalidParameter, NotConverged, PrivprojError, Refused
    from privproj.evaluation import evaluate
    from privproj.mechanisms import M1, M2, Gaussian, Laplace, Layer, PublicSketch, Sketch, Wishart, WishartMatrix
    from privproj.relations import NeighbouringRelation, Sampling
    from privproj.result import Outcome, Result, Side, Status
    from privproj.rules import advanced_composition, basic_composition

__all__ = [
    "M1",
    "M2",
    "Comparison",
    "Gaussian",
    "InvalidParameter",
    "Laplace",
    "Layer",
    "NeighbouringRelation",
    "NotConverged",
    "Outcome",
    "PrivprojError",
    "PublicSketch",
    "Refused",
    "Result",
    "Sampling",
    "Side",
    "Sketch",
    "Status",
    "Wishart",
    "WishartMatrix",
    "advanced_composition",
    "basic_composition",
    "beta_tail_epsilons",
    "compare",
    "delta",
    "epsilon",
    "evaluate",
    "misalignment",
    "rank",
    "rate",
    "registry",
    "sigma",
    "steps",
]

HOMES = {
    "accountant": ("Comparison", "compare", "delta", "epsilon"),
    "bounds": ("registry",),
    "calibration": ("misalignment", "rank", "rate", "sigma", "steps"),
    "errors": ("InvalidParameter", "NotConverged", "PrivprojError", "Refused"),
    "evaluation": ("evaluate",),
    "mechanisms": ("M1", "M2", "Gaussian", "Laplace", "Layer", "PublicSketch", "Sketch", "Wishart", "WishartMatrix"),
    "relations": ("NeighbouringRelation", "Sampling"),
    "result": ("Outcome", "Result", "Side", "Status"),
    "rules": ("advanced_composition", "basic_composition"),
}


def __getattr__(name: str) -> object:
    if name == "beta_tail_epsilons":
        return import_module("privproj.beta_tail").epsilons
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"privproj.{home}"), name)
    raise AttributeError(f"module 'privproj' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
