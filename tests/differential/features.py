"""What the tests of optional features add to the differential suite.

``tests/contrib/<feature>/differential.py`` has any of these tables, and ``command_lines.py`` beside it has CASES.

=========== ========================================================================================
SHARE       mechanism -> relative frequency of its random queries
PARAMETERS  mechanism -> function ``(rng, query)`` that draws its parameters
WEIGHTS     (mechanism, bound) -> relative frequency among the bounds of the mechanism
GROUPED     names of bounds that support group privacy
NO_REPLACE  (mechanism, bound) without the replace relation and fixed-size batches
PAIRS       mechanism -> function ``(parameters, mu)`` that returns a dominating pair
LOWER       mechanism -> function ``(query, epsilon)`` in place of a pair
EXACT       (mechanism, bound) whose value the pair gives
MAJORANTS   (mechanism, bound) that is a rank-free bound of the pair
QUERIES     name -> arguments of a fixed query
ENTRIES     phases of run files
CASES       functions without arguments that return a strategy of command lines
=========== ========================================================================================
"""

from functools import cache
from importlib import import_module
from pathlib import Path

CONTRIB = Path(__file__).parents[1] / "contrib"


@cache
def feature_modules(file):
    """Return the test module of this name of every feature that has one, in alphabetical order."""
    folders = sorted(path.parent.name for path in CONTRIB.glob(f"*/{file}.py"))
    return tuple(import_module(f"tests.contrib.{name}.{file}") for name in folders)


def feature_dict(name):
    """Return the entries of the dictionaries of this name in all features."""
    return {key: v for module in feature_modules("differential") for key, v in getattr(module, name, {}).items()}


def feature_items(name, file="differential"):
    """Return the items of the tuples of this name in all features."""
    return [item for module in feature_modules(file) for item in getattr(module, name, ())]
