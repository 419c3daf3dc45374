"""Compute reference values of bounds in mpmath, independently of the float code.

Each formula has three implementations that share no code: floats with an outward margin, ball arithmetic for
certificates, and mpmath at any precision (this package). The errors of this package are not proved; a higher
precision confirms the digits.

Each function works at the current ``mpmath.mp.dps`` and returns an ``mpf``. A function with the name of a bound of
:mod:`privproj.mechanisms` implements this bound, with the same parameters. A function without an argument ``steps``
is about one release. :func:`value` returns the reference for :func:`privproj.evaluate`.
"""

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import mpmath as mp

from privproj.plugins import plugins
from privproj.reference import composition
from privproj.reference.calculus import Function, Real, evaluate_until_settled

# The order of the stored results of benchmarks/reference_suite.py. The files of optional features come last.
_NAMES = ("gaussian", "laplace", "composition", "m1", "m2", "wishart", "sketch", "sketch_public")
_FEATURES = [plugin for plugin in plugins() if Path(plugin.__file__).with_name("reference.py").exists()]
# The modules with the references of each mechanism, and those of optional features. A module may define any of DELTAS,
# EPSILONS, OTHER_QUANTITIES, COARSE_DIGITS, LARGE_DIM_DIGITS and LOOSE.
FAMILIES = [
    import_module(name)
    for name in (
        *(f"privproj.reference.{name}" for name in _NAMES),
        *(f"{plugin.__package__}.reference" for plugin in _FEATURES),
    )
]


def _collected(name: str) -> dict[str, Any]:
    return {key: value for family in FAMILIES for key, value in getattr(family, name, {}).items()}


DELTAS: dict[str, Function] = _collected("DELTAS")  # mechanism.bound -> delta(epsilon, **parameters)
EPSILONS: dict[str, Function] = _collected("EPSILONS")  # mechanism.bound -> epsilon(delta, **parameters)
OTHER_QUANTITIES: dict[str, Function] = _collected("OTHER_QUANTITIES")  # neither a delta nor an epsilon
COARSE_DIGITS: dict[str, int] = _collected("COARSE_DIGITS")  # decimal digits of slow references; others have 50
LARGE_DIM_DIGITS: dict[str, int] = _collected("LARGE_DIM_DIGITS")  # decimal digits if the dimension is at least 1e6
LOOSE: dict[str, float] = _collected("LOOSE")  # start of a setting -> allowed relative error, where it is not 1e-9


def value(quantity: str, digits: int | None = None, **parameters: Real) -> Real:
    """Return the reference value of ``privproj.evaluate(quantity, **parameters)``.

    The precision is increased until two results agree to ``digits`` decimal digits. The default is
    :func:`reference_digits`. Raises :class:`ArithmeticError` if no two results agree.
    """
    name, _, target = quantity.rpartition(".")
    aim = digits or reference_digits(quantity, parameters)
    return evaluate_until_settled(
        lambda: _evaluate_once(name, target, parameters), aim, *((6, 4) if aim <= 25 else (8, 15))
    )


def parameters_of(quantity: str) -> set[str] | None:
    """Return the parameters of the reference for a quantity; None without reference.

    ``quantity`` is ``mechanism.bound.delta`` or ``mechanism.bound.epsilon``.
    """
    name, _, target = quantity.rpartition(".")
    direct, inverse = (DELTAS, EPSILONS) if target == "delta" else (EPSILONS, DELTAS)
    function = direct.get(name) or inverse.get(name)
    return None if function is None else set(inspect.signature(function).parameters) - {"epsilon", "delta"}


def reference_digits(quantity: str, parameters: dict[str, Real]) -> int:
    """Return the number of decimal digits to which :func:`value` computes a quantity."""
    name = quantity.rpartition(".")[0]
    if "t" in parameters:
        return 50
    few = LARGE_DIM_DIGITS if parameters.get("dim", 0) >= 10**6 else {}
    return min(COARSE_DIGITS.get(name, 50), few.get(name, 50))


def _evaluate_once(name: str, requested: str, parameters: dict[str, Real]) -> Real:
    """Return the quantity ``requested`` of the bound ``name`` at the current precision.

    ``name`` is ``mechanism.bound``, and ``requested`` is "delta", "epsilon" or another quantity.
    """
    # If only one of delta and epsilon has a reference, this reference is inverted for the other.
    if f"{name}.{requested}" in OTHER_QUANTITIES:
        return OTHER_QUANTITIES[f"{name}.{requested}"](**parameters)
    if "t" in parameters:
        return (DELTAS if requested == "delta" else EPSILONS)[name](None, **parameters)
    rest = dict(parameters)
    argument = mp.mpf(rest.pop("epsilon" if requested == "delta" else "delta"))
    direct, inverse = (DELTAS, EPSILONS) if requested == "delta" else (EPSILONS, DELTAS)
    if name in direct:
        return direct[name](argument, **rest)
    invert = composition.delta_of_rule if requested == "delta" else composition.epsilon_of_profile
    return invert(lambda x: inverse[name](x, **rest), argument)
