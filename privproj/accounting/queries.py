"""Answers forwards: epsilon, delta, and all bounds side by side."""

import math
from dataclasses import dataclass, replace
from typing import Unpack

from privproj.accounting.question import Accounted, Question, answer, ask_by_name, numerics_of, question_of
from privproj.bounds import bounds_of
from privproj.bounds.bound import Bound
from privproj.curves.inversion import LEAST_LOG_VALUE, delta_value, log10_value, read_epsilon, read_log_delta
from privproj.errors import InvalidParameter, PrecisionLimit, PrivprojError, Unanswered
from privproj.mechanisms import Mechanism
from privproj.numerics.enclosure import Enclosure
from privproj.result import Outcome, Result, Side, Status
from privproj.runs import EpsilonTarget, RunOptions, Target, delta_target, epsilon_target


def epsilon(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """The smallest epsilon that ``bound`` proves at ``delta`` (or ``10^log10_delta``), rounded up.

    Args:
        mechanism: What was released, with its noise multiplier, rank and promises.
        delta: A number above 0 and below 1; or else ``log10_delta``, from -1e6 to below 0.
        log10_delta: The same as a power of ten, for deltas below double precision.
        bound: The name of a bound of the mechanism (None: its default, the first in the registry).
        **run: The run, as :class:`privproj.runs.RunOptions` lists it (none: one release on the whole data set).

    Returns:
        A :class:`Result`. ``value`` is ``inf`` (outcome vacuous) if the bound proves no finite epsilon there.

    Raises:
        InvalidParameter: A value is outside its domain, or one is missing.
        Refused: The bound proves nothing for this mechanism and run.
        NotConverged: A quadrature or a search did not settle.
        PrecisionLimit: A composition cannot tell such a delta from its rounding.

    >>> from privproj import M2, epsilon
    >>> round(epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5).value, 4)
    0.7382
    """
    question, target = ask_by_name(mechanism, bound, run), delta_target(delta, log10_delta)
    return answer(question, "epsilon", solve_epsilon, target)


def solve_epsilon(question: Accounted, target: Target) -> Result:
    """:func:`epsilon` of a question that is already parsed."""
    curve = question.curve()
    found = read_epsilon(curve, target)
    lower = found.lower if math.isfinite(found.lower) and found.lower >= 0.0 else None
    result_details: dict = {**target.fields(), "epsilon": found.upper}
    result_details.update(numerics=numerics_of(curve), side=question.side(curve))
    if found.upper == math.inf:
        note = f"this bound proves no finite epsilon at this delta; expected a larger delta or {question.remedy}"
        result_details.update(outcome=Outcome.VACUOUS, warnings=(*question.notes, note))
    if found.upper == 0.0:
        note = "delta alone already covers the total variation distance of neighbours, so epsilon 0 is met"
        result_details["warnings"] = (*question.notes, note)
    return question.result("epsilon", found.upper, lower, **result_details)


def delta(mechanism: Mechanism, *, epsilon: float, bound: str | None = None, **run: Unpack[RunOptions]) -> Result:
    """The smallest delta that ``bound`` proves at ``epsilon >= 0``, rounded up.

    Args:
        mechanism: What was released.
        epsilon: A number from 0 to 1e9.
        bound: The name of a bound of the mechanism (None: its default).
        **run: The run, as :class:`privproj.runs.RunOptions` lists it.

    Returns:
        A :class:`Result`. A delta of 1 says nothing (outcome vacuous). Below 1e-300 ``value`` stays there, an upper
        bound, and ``log10_delta`` carries the size.

    Raises:
        InvalidParameter, Refused, NotConverged, PrecisionLimit: As :func:`epsilon` does.

    >>> from privproj import Gaussian, delta
    >>> round(delta(Gaussian(noise_multiplier=1.0), epsilon=1.0).value, 6)
    0.126937
    """
    question, target = ask_by_name(mechanism, bound, run), epsilon_target(epsilon)
    return answer(question, "delta", solve_delta, target)


def solve_delta(question: Accounted, target: EpsilonTarget) -> Result:
    """:func:`delta` of a question that is already parsed."""
    curve, epsilon = question.curve(), target.epsilon
    floor = getattr(curve, "floor", 0.0)
    if floor and curve.log_delta(epsilon).upper <= math.log(floor):
        raise PrecisionLimit(
            f"the composed delta at epsilon {epsilon:g} is below {floor:.1e}, what the composition can tell from its "
            "rounding; use a Renyi bound (mixture-rdp, rdp)"
        )
    found = read_log_delta(curve, epsilon)
    value, lower = _probability_ends(found)
    return question.result(
        "delta",
        value,
        lower,
        side=question.side(curve) if found.upper > LEAST_LOG_VALUE else Side.UPPER,
        epsilon=epsilon,
        delta=value,
        numerics=numerics_of(curve),
        log10_delta=log10_value(found.upper),
        outcome=Outcome.VACUOUS if value >= 1.0 else Outcome.OK,
    )


def _probability_ends(log_value: Enclosure) -> tuple[float, float | None]:
    """``(upper, lower)`` as numbers: never 0, the lower end None where it is unknown or below 1e-300."""
    lower = math.exp(log_value.lower) if log_value.lower > LEAST_LOG_VALUE else None
    return delta_value(log_value.upper), lower


@dataclass(frozen=True)
class Comparison:
    """One row of :func:`compare`: a bound with its result, or the reason why it gives none.

    ``short`` is the reason in a few words, in those of the command line.
    """

    bound: Bound
    result: Result | None
    reason: str = ""
    short: str = ""


def compare(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    **run: Unpack[RunOptions],
) -> list[Comparison]:
    """Every bound of the mechanism on one question.

    Args:
        mechanism: What was released.
        delta: The delta at which every epsilon is asked for; or else ``epsilon``.
        epsilon: The epsilon at which every delta is asked for.
        **run: The run, as :class:`privproj.runs.RunOptions` lists it.

    Returns:
        A row for each bound: those without a promise first, then conditional ones, each tightest first; last those that
        do not apply, with their reasons.

    Raises:
        InvalidParameter: Both or none of ``delta`` and ``epsilon`` are given, or a value is outside its domain.

    >>> from privproj import M2, compare
    >>> rows = compare(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)
    >>> [row.bound.name for row in rows if row.result][:2]
    ['rank-free', 'mixture-rdp']
    """
    if (delta is None) == (epsilon is None):
        raise InvalidParameter("delta", delta, "exactly one of delta and epsilon")
    question_target = delta_target(delta, None) if delta is not None else epsilon_target(epsilon)  # pyright: ignore
    rows = []
    for bound in bounds_of(type(mechanism)):
        question = question_of(mechanism, bound, run)
        fitting = question.run if bound.splits else replace(question.run, split=None)
        rows.append(_compare_one(replace(question, run=fitting), question_target))
    return sorted(rows, key=_comparison_order)


def _compare_one(question: Question, target: Target | EpsilonTarget) -> Comparison:
    """One row: the answer, or the reason why there is none."""
    try:
        if isinstance(target, Target):
            return Comparison(question.bound, answer(question, "epsilon", solve_epsilon, target))
        return Comparison(question.bound, answer(question, "delta", solve_delta, target))
    except Unanswered as error:
        return Comparison(question.bound, error.result, str(error), _short_reason(question.bound, error))
    except PrivprojError as error:
        return Comparison(question.bound, None, str(error), _short_reason(question.bound, error))


def _short_reason(bound: Bound, error: PrivprojError) -> str:
    """The reason in a few words, without the name of the bound, which stands before it."""
    words = error.short.removeprefix(bound.name).removeprefix("this bound").lstrip(": ")
    words = "needs " + words.removeprefix("expected ") if words.startswith("expected ") else words
    kind = {"precision_limit": "precision limit: ", "not_converged": "not converged: "}
    return kind.get(getattr(error, "outcome", ""), "") + words


def _comparison_order(row: Comparison) -> tuple[int, float]:
    """Rows in the order of :func:`compare`."""
    if row.result is None or row.result.value is None:
        return 2, 0.0
    status = {Status.PROVED: 0, Status.CONDITIONAL: 1}.get(row.result.status, 3)
    return status, float(row.result.log10_delta or 0.0) if (row.result.quantity == "delta") else float(row.result.value)
