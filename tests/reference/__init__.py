"""The quantities of the package in mpmath, at any precision: slow, and independent of the kernels.

One formula stands in three arithmetics on purpose: *numerics* and the rooms on top of it (floats with an outward
margin) give the answers, *rigorous* (balls) proves them, *reference* (mpmath at any precision) tests them. The three
share no formula's code. The package does not import mpmath.

Each function works at the current ``mpmath.mp.dps`` and returns an ``mpf``; it is written from the formula in its
docstring, with more digits where the float code avoids a cancellation. A function that is named after a bound is the
third form of that bound in :mod:`privproj.mechanisms`, and takes the same parameters. :func:`value` answers what
:func:`privproj.evaluate` answers. Nothing here proves an error; the digits are confirmed by a higher precision.
"""

from importlib import import_module
from pathlib import Path

import mpmath as mp

from reference import composition, sketch, wishart
from reference.calculus import Function, Real, evaluate_until_settled
from reference.m2 import beta_tail_bound, expected_profile
from reference.special import beta_lower, beta_tail, gaussian_delta, normal_tail, two_sided

__all__ = [
    "COARSE_DIGITS",
    "DELTAS",
    "EPSILONS",
    "Real",
    "beta_lower",
    "beta_tail",
    "beta_tail_bound",
    "expected_profile",
    "gaussian_delta",
    "normal_tail",
    "two_sided",
    "value",
]

TESTS = Path(__file__).parents[1]
FAMILIES = [import_module(f"reference.{name}") for name in ("gaussian", "m1", "m2", "sketch", "wishart")]
FEATURES = [
    import_module(".".join(path.relative_to(TESTS).with_suffix("").parts))
    for path in sorted(TESTS.glob("contrib/*/reference.py"))
]
"""References of the bounds of optional features, with their settings."""

DELTAS: dict[str, Function] = {name: f for family in FAMILIES + FEATURES for name, f in family.DELTAS.items()}
"""``mechanism.bound -> delta(epsilon, **parameters)``. Contract."""

EPSILONS: dict[str, Function] = {name: f for family in FAMILIES + FEATURES for name, f in family.EPSILONS.items()}
"""``mechanism.bound -> epsilon(delta, **parameters)``. Contract."""

OTHER_QUANTITIES: dict[str, Function] = {
    "sketch.rdp": sketch.divergence_at_order,
    "wishart.preprocess.gain": wishart.preprocessing_gain,
    "rule.basic-composition.epsilon": composition.basic_composition,
    "rule.advanced-composition.epsilon": composition.advanced_composition,
}
"""Quantities that are neither a delta nor an epsilon. Contract."""

COARSE_DIGITS = {
    "m1.known-projection": 14,
    "m1.known-projection-rank1": 14,
    "m1.secret-projection": 14,
    "m1.column-exact": 14,
    "wishart.early": 14,
    "wishart.early-exact-tail": 14,
    "wishart.exact": 20,
    "m1.residual": 20,
    **{name: digits for feature in FEATURES for name, digits in feature.COARSE_DIGITS.items()},
}
"""Digits of the references that take a double sum, a nested minimum or long series in each term; others have 50.

Contract.
"""

LARGE_DIM_DIGITS = {"m2.mixture-rdp": 16, "m2.rank-free": 25, "m2.exact-rank1": 25}
"""Digits of others where the dimension is a million or more. Contract."""


def value(quantity: str, digits: int | None = None, **parameters: Real) -> Real:
    """Return the reference for ``privproj.evaluate(quantity, **parameters)``, confirmed by a higher precision.

    ``digits`` is how many decimal digits are confirmed, by default :func:`reference_digits`. Raises
    :class:`ArithmeticError` where the precisions never agree.
    """
    name, _, asked = quantity.rpartition(".")
    aim = digits or reference_digits(quantity, parameters)
    return evaluate_until_settled(
        lambda: _evaluate_once(name, asked, parameters), aim, *((6, 4) if aim <= 25 else (8, 15))
    )


def reference_digits(quantity: str, parameters: dict[str, Real]) -> int:
    """Return how many decimal digits :func:`value` gives for this quantity at these parameters."""
    name = quantity.rpartition(".")[0]
    if "t" in parameters:
        return 50
    few = LARGE_DIM_DIGITS if parameters.get("dim", 0) >= 10**6 else {}
    return min(COARSE_DIGITS.get(name, 50), few.get(name, 50))


def _evaluate_once(name: str, asked: str, parameters: dict[str, Real]) -> Real:
    """Return the value at the current precision, by inversion where a reference answers the other question."""
    if f"{name}.{asked}" in OTHER_QUANTITIES:
        return OTHER_QUANTITIES[f"{name}.{asked}"](**parameters)
    if "t" in parameters:
        return (DELTAS if asked == "delta" else EPSILONS)[name](None, **parameters)
    rest = dict(parameters)
    given = mp.mpf(rest.pop("epsilon" if asked == "delta" else "delta"))
    known, other = (DELTAS, EPSILONS) if asked == "delta" else (EPSILONS, DELTAS)
    if name in known:
        return known[name](given, **rest)
    invert = composition.delta_of_rule if asked == "delta" else composition.epsilon_of_profile
    return invert(lambda x: other[name](x, **rest), given)
