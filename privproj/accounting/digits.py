"""Compute epsilon or delta in mpmath, to any number of digits."""

import math
from dataclasses import MISSING, fields, replace
from typing import Any

from privproj.accounting.query import Composition
from privproj.errors import ConvergenceError, UnsupportedError
from privproj.parameters import integer
from privproj.result import Result
from privproj.targets import EpsilonTarget, FullTarget, RiskTarget, Target

MOST_DIGITS = 1000  # decimal digits; mpmath takes minutes for more

# largest relative difference between floats and mpmath that is not reported: results have 13 digits, rounded up
CLOSE = 8e-10

SPARE_DIGITS = 300  # decimal digits of a target beyond those of the value; precisions grow by 248 digits at most

# relative decrease of a noise multiplier that must miss the target
CLOSE_NOISE = 1e-6

LEAST_VALUE = 1e-290  # deltas below this are compared as logarithms


def reference_value(query: Composition, target: Target | EpsilonTarget, digits: int | None = None) -> Any:
    """Return the epsilon or delta of a run in mpmath, as an ``mpf``.

    Args:
        query: The mechanism, bound and run, as a composition of one phase.
        target: A target delta, at which epsilon is computed, or a target epsilon, at which delta is computed.
        digits: The number of decimal digits that must agree at two working precisions; None for the default of the
            bound.

    Raises:
        UnsupportedError: mpmath does not support these parameters, usually because the run is composed numerically.
        ConvergenceError: Evaluations at two working precisions never agree to that many digits.
    """
    import mpmath as mp
    from mpmath.libmp import NoConvergence

    from privproj import reference

    if len(query.phases) > 1:
        raise UnsupportedError("mpmath does not support runs of several phases. Query one phase")
    phase = query.only
    phase.check()
    mechanism, run = phase.for_relation()
    argument = "epsilon" if isinstance(target, EpsilonTarget) else "delta"
    quantity = f"{mechanism.name}.{phase.bound.name}.{'epsilon' if argument == 'delta' else 'delta'}"
    accepted = reference.parameters_of(quantity)
    if accepted is None:
        raise UnsupportedError(f"mpmath has no reference for the bound {phase.bound.name}")
    values = {field.name: getattr(mechanism, field.name) for field in fields(mechanism)}
    defaults = {field.name: field.default for field in fields(mechanism) if field.default is not MISSING}
    parameters = {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}
    parameters |= {"steps": run.steps} if run.steps > 1 else {}
    parameters |= {"sampling_rate": run.sampling_rate} if run.sampling_rate < 1.0 else {}
    parameters |= {name: value for name in ("split", "tau") if (value := getattr(run, name)) is not None}
    if unsupported := sorted(parameters.keys() - accepted):
        raise UnsupportedError(
            f"mpmath does not support {unsupported[0]}={parameters[unsupported[0]]} for the bound {phase.bound.name}. "
            "Query one release on the whole dataset"
        )
    try:
        with mp.workdps((digits or 50) + SPARE_DIGITS):
            parameters[argument] = _argument_of(target)
            value = reference.value(quantity, digits, **parameters)
    except (ArithmeticError, NoConvergence) as error:
        raise ConvergenceError(f"mpmath did not settle ({error}). Use fewer digits") from None
    # A sum of tails may exceed 1, which bounds every delta.
    return min(value, mp.mpf(1)) if argument == "epsilon" else value


def _argument_of(target: Target | EpsilonTarget) -> Any:
    import mpmath as mp

    if isinstance(target, EpsilonTarget):
        return target.epsilon
    return mp.mpf(10) ** mp.mpf(target.log10_delta) if target.by_log or target.delta is None else target.delta


def with_digits(result: Result, digits: float) -> Result:
    """Add the value of epsilon or delta in mpmath, with 1 to 1000 digits, to the numerics of a result.

    Raises:
        UnsupportedError: mpmath does not support this query.
        ConvergenceError: Evaluations at two working precisions never agree, or the value differs from the result.
    """
    import mpmath as mp

    count = integer("digits", digits, f"an integer from 1 to {MOST_DIGITS}", 1, MOST_DIGITS)
    assert result.query is not None
    value = reference_value(result.query, result.target, max(count, 20))  # compared with all 13 digits
    if problem := difference(result, value):
        raise ConvergenceError(f"{problem}. Please report this command as a bug")
    with mp.workdps(count + 5):
        text = mp.nstr(value, count, strip_zeros=False)
    return replace(result, numerics={**result.numerics, "mpmath": {"digits": count, "value": text}})


def difference(result: Result, value: Any) -> str:
    """Return a text on how a result differs from its value in mpmath; empty if they agree."""
    import mpmath as mp

    with mp.workdps(60):
        exact, printed = mp.mpf(value), mp.mpf(result.value or 0.0)
        if math.isinf(result.value or 0.0) or mp.isinf(exact):
            return "" if printed == exact else f"expected {mp.nstr(exact, 15)} (mpmath), got {result.value!r}"
        if result.quantity == "delta" and 0 < exact < LEAST_VALUE:
            # Logarithms are negative: a larger delta has a smaller one.
            above = 1 - mp.mpf(result.log10_delta) / mp.log10(exact)
        else:
            above = printed / exact - 1 if exact else printed
        lower = result.lower if result.side != "none" else None
        if (above < 0 and result.side != "none") or above < -CLOSE:
            return (
                f"the result {result.value!r} is below {mp.nstr(exact, 18)} (mpmath) by {mp.nstr(-above, 3)} relative"
            )
        if above > CLOSE:
            return f"the result {result.value!r} is above {mp.nstr(exact, 18)} (mpmath) by {mp.nstr(above, 3)} relative"
        if lower is not None and lower > exact:
            return f"the lower bound {lower!r} is above {mp.nstr(exact, 18)} (mpmath)"
    return ""


def noise_difference(query: Composition, target: FullTarget | RiskTarget, noise: float) -> str:
    """Return a text on how ``noise`` differs from the smallest noise multiplier that meets the target in mpmath.

    The text is empty if the two agree.

    Raises:
        UnsupportedError: mpmath does not support this query, or the target is an attack risk.
        ConvergenceError: Evaluations at two working precisions never agree.
    """
    import mpmath as mp

    if isinstance(target, RiskTarget):
        raise UnsupportedError("mpmath does not support attack risks. Give epsilon and delta")
    aim = _argument_of(target)
    for smaller in (0.0, CLOSE_NOISE):
        at_noise = reference_value(
            query.with_mechanism(noise_multiplier=noise * (1.0 - smaller)), EpsilonTarget(target.epsilon)
        )
        if (at_noise <= aim) != (smaller == 0.0):
            by = f"is {mp.nstr(at_noise, 18)} (mpmath) at noise multiplier {noise!r} (1 - {smaller:g})"
            return f"delta {by}, expected {'above' if smaller else 'at most'} {mp.nstr(aim, 18)}"
    return ""
