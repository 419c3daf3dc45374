"""Compute the quantities of privproj in mpmath at any precision: slow, and independent of its kernels.

Each formula is implemented three times, without shared code. The floating-point code with outward margins computes the
results, the ball arithmetic of certificates proves them, and this package tests both. privproj does not import mpmath.

Each function works at the current ``mpmath.mp.dps`` and returns an ``mpf``. It is written from the formula in its
docstring, with more digits where the float code avoids a cancellation. A function that is named after a bound
implements this bound of :mod:`privproj.mechanisms`, and takes the same parameters. :func:`value` returns the reference
for :func:`privproj.evaluate`. No error is proved here; a higher precision confirms the digits.
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
# references of the bounds of optional features, with their settings
FEATURES = [
    import_module(".".join(path.relative_to(TESTS).with_suffix("").parts))
    for path in sorted(TESTS.glob("contrib/*/reference.py"))
]

# ``mechanism.bound -> delta(epsilon, **parameters)``
DELTAS: dict[str, Function] = {name: f for family in FAMILIES + FEATURES for name, f in family.DELTAS.items()}

# ``mechanism.bound -> epsilon(delta, **parameters)``
EPSILONS: dict[str, Function] = {name: f for family in FAMILIES + FEATURES for name, f in family.EPSILONS.items()}

# quantities that are neither a delta nor an epsilon
OTHER_QUANTITIES: dict[str, Function] = {
    "sketch.rdp": sketch.divergence_at_order,
    "wishart.preprocess.gain": wishart.preprocessing_gain,
    "rule.basic-composition.epsilon": composition.basic_composition,
    "rule.advanced-composition.epsilon": composition.advanced_composition,
}

# digits of references with a double sum, a nested minimum or long series in each term; others have 50
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

# digits of further references if the dimension is a million or more
LARGE_DIM_DIGITS = {"m2.mixture-rdp": 16, "m2.rank-free": 25, "m2.exact-rank1": 25}


def value(quantity: str, digits: int | None = None, **parameters: Real) -> Real:
    """Return the reference for ``privproj.evaluate(quantity, **parameters)``, confirmed by a higher precision.

    ``digits`` is the number of confirmed decimal digits, by default :func:`reference_digits`. Raises
    :class:`ArithmeticError` if the precisions never agree.
    """
    name, _, target = quantity.rpartition(".")
    aim = digits or reference_digits(quantity, parameters)
    return evaluate_until_settled(
        lambda: _evaluate_once(name, target, parameters), aim, *((6, 4) if aim <= 25 else (8, 15))
    )


def reference_digits(quantity: str, parameters: dict[str, Real]) -> int:
    """Return the number of decimal digits of :func:`value` for this quantity at these parameters."""
    name = quantity.rpartition(".")[0]
    if "t" in parameters:
        return 50
    few = LARGE_DIM_DIGITS if parameters.get("dim", 0) >= 10**6 else {}
    return min(COARSE_DIGITS.get(name, 50), few.get(name, 50))


def _evaluate_once(name: str, asked: str, parameters: dict[str, Real]) -> Real:
    """Return the value at the current precision, by inversion if the reference has the other direction."""
    if f"{name}.{asked}" in OTHER_QUANTITIES:
        return OTHER_QUANTITIES[f"{name}.{asked}"](**parameters)
    if "t" in parameters:
        return (DELTAS if asked == "delta" else EPSILONS)[name](None, **parameters)
    rest = dict(parameters)
    argument = mp.mpf(rest.pop("epsilon" if asked == "delta" else "delta"))
    direct, inverse = (DELTAS, EPSILONS) if asked == "delta" else (EPSILONS, DELTAS)
    if name in direct:
        return direct[name](argument, **rest)
    invert = composition.delta_of_rule if asked == "delta" else composition.epsilon_of_profile
    return invert(lambda x: inverse[name](x, **rest), argument)
