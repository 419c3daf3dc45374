"""Answers forwards: epsilon at a delta, delta at an epsilon, and all bounds of a mechanism side by side."""

import math
from dataclasses import dataclass
from typing import Unpack

from privproj.accounting.at_least import with_alternatives, with_lower_end
from privproj.accounting.phase import Phase, check_mechanism, numerics_of, phase_for
from privproj.accounting.question import Question, answer, ask_by_name, question_about
from privproj.curves.inversion import LEAST_LOG_VALUE, delta_value, log10_value, read_epsilon, read_log_delta
from privproj.errors import InvalidParameter, PrecisionLimit, PrivprojError, Unanswered
from privproj.mechanisms import Mechanism
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.registry import bounds_of
from privproj.result import Outcome, Result, Rows, Side, Status
from privproj.runs import RunOptions
from privproj.runs.targets import EpsilonTarget, Target, delta_target, epsilon_target

ZERO_EPSILON_NOTE = "delta alone already covers the total variation distance of neighbours, so epsilon 0 is met"
"""Said beside an epsilon of 0. Contract."""


def epsilon(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """Return the smallest epsilon that the bound proves at a delta, rounded up.

    Args:
        mechanism: What was released, with its noise multiplier, its rank and its promises.
        delta: The delta of the guarantee, above 0 and below 1; give either this or ``log10_delta``.
        log10_delta: The decimal logarithm of delta, from -1e6 to below 0, for deltas below double precision.
        bound: The name of a bound of the mechanism; None takes its default, the first in the registry.
        **run: The run, as :class:`privproj.runs.RunOptions` lists it; none of them: one release on the whole data set.

    Returns:
        A result whose ``value`` is epsilon. It is ``inf`` (outcome vacuous) if the bound proves no finite epsilon at
        this delta.

    Raises:
        InvalidParameter: A value is outside its domain, one is missing, or two contradict each other.
        Refused: The bound proves nothing for this mechanism and run.
        NotConverged: A quadrature or a search did not reach its accuracy.
        PrecisionLimit: A composition cannot tell so small a delta from its rounding.

    >>> from privproj import M2, epsilon
    >>> round(epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5).value, 4)
    0.7382
    """
    question, target = ask_by_name(mechanism, bound, run), delta_target(delta, log10_delta)
    found = with_lower_end(question, answer(question, "epsilon", solve_epsilon, target))
    return with_alternatives(question, found, solve_epsilon, target)


def solve_epsilon(question: Question, target: Target) -> Result:
    """Answer :func:`privproj.epsilon` for a question that is already parsed."""
    curve = question.curve()
    found = read_epsilon(curve, target)
    lower = found.lower if math.isfinite(found.lower) and found.lower >= 0.0 else None
    result_details: dict = {**target.fields(), "epsilon": found.upper}
    result_details.update(numerics=numerics_of(curve), side=question.side(curve))
    if found.upper == math.inf:
        note = f"this bound proves no finite epsilon at this delta; expected a larger delta or {question.remedy}"
        result_details.update(outcome=Outcome.VACUOUS, warnings=(*question.notes, note))
    if found.upper == 0.0:
        result_details["warnings"] = (*question.notes, ZERO_EPSILON_NOTE)
    return question.result("epsilon", found.upper, lower, **result_details)


def delta(mechanism: Mechanism, *, epsilon: float, bound: str | None = None, **run: Unpack[RunOptions]) -> Result:
    """Return the smallest delta that the bound proves at an epsilon, rounded up.

    Args:
        mechanism: What was released, with its noise multiplier, its rank and its promises.
        epsilon: The epsilon of the guarantee, from 0 to 1e9.
        bound: The name of a bound of the mechanism; None takes its default, the first in the registry.
        **run: The run, as :class:`privproj.runs.RunOptions` lists it; none of them: one release on the whole data set.

    Returns:
        A result whose ``value`` is delta. A delta of 1 guarantees nothing (outcome vacuous). Where delta is below
        1e-300, ``value`` is about 1e-300, which is an upper bound, and ``log10_delta`` carries the size.

    Raises:
        InvalidParameter: A value is outside its domain, one is missing, or two contradict each other.
        Refused: The bound proves nothing for this mechanism and run.
        NotConverged: A quadrature or a search did not reach its accuracy.
        PrecisionLimit: The composed delta is too small to be told from rounding.

    >>> from privproj import Gaussian, delta
    >>> round(delta(Gaussian(noise_multiplier=1.0), epsilon=1.0).value, 6)
    0.126937
    """
    question, target = ask_by_name(mechanism, bound, run), epsilon_target(epsilon)
    found = with_lower_end(question, answer(question, "delta", solve_delta, target))
    return with_alternatives(question, found, solve_delta, target)


def solve_delta(question: Question, target: EpsilonTarget) -> Result:
    """Answer :func:`privproj.delta` for a question that is already parsed."""
    curve, epsilon = question.curve(), target.epsilon
    floor = getattr(curve, "floor", 0.0)
    if floor and curve.log_delta(epsilon).upper <= math.log(floor):
        raise PrecisionLimit(
            f"the composed delta at epsilon {epsilon:g} is below {floor:.1e}, what the composition can tell from its "
            "rounding; use a Renyi bound (mixture-rdp, rdp)"
        )
    found = read_log_delta(curve, epsilon)
    value, lower = delta_value(found.upper), math.exp(found.lower) if found.lower > LEAST_LOG_VALUE else None
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


@dataclass(frozen=True, repr=False)
class Comparison:
    """One row of :func:`privproj.compare`: a bound with its answer, or with the reason why it gives none.

    Attributes:
        bound: The record of the bound, a :class:`privproj.mechanisms.bound.Bound`.
        result: The answer of this bound; None where the question does not fit the bound. It has no value where the
            bound applies but has no answer.
        reason: Why there is no answer, in one sentence; empty where there is one.
        short: The reason in a few words, in those of the command line.

    >>> from privproj import Gaussian, compare
    >>> row = compare(Gaussian(noise_multiplier=1.0), delta=1e-5)[0]
    >>> row.bound.name, round(row.result.value, 4), row.reason
    ('analytic', 4.3772, '')
    """

    bound: Bound
    result: Result | None
    reason: str = ""
    short: str = ""

    def __repr__(self) -> str:
        return f"<{self.bound.name}: {self.reason or self.result}>"

    def as_row(self) -> dict[str, object]:
        """Return the row as plain values under the names of its columns."""
        found = self.result
        if found is None:
            return {"bound": self.bound.name, "status": str(self.bound.status), "reason": self.reason}
        facts = {"bound": found.bound, found.quantity: found.value}
        facts |= {"status": str(found.status), "side": str(found.side)}
        return {**facts, "promises": "; ".join(found.promises), "reason": self.reason}


def compare(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    **run: Unpack[RunOptions],
) -> "Rows[Comparison]":
    """Ask every bound of the mechanism the same question, and sort the answers.

    Args:
        mechanism: What was released, with its noise multiplier, its rank and its promises.
        delta: The delta at which every bound is asked for epsilon, above 0 and below 1; give either this or
            ``epsilon``.
        epsilon: The epsilon at which every bound is asked for delta, from 0 to 1e9.
        **run: The run, as :class:`privproj.runs.RunOptions` lists it; none of them: one release on the whole data set.

    Returns:
        A row for each bound, in :class:`privproj.accounting.Rows`: first the proved ones without a promise, then the
        conditional ones, each group from the smallest value to the largest; last those without an answer, with their
        reasons.

    Raises:
        InvalidParameter: Both or none of ``delta`` and ``epsilon`` are given, or a value is outside its domain.

    >>> from privproj import M2, compare
    >>> rows = compare(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)
    >>> [(row.bound.name, round(row.result.value, 4)) for row in rows if row.result][:2]
    [('rank-free', 0.7382), ('mixture-rdp', 0.8536)]
    """
    if (delta is None) == (epsilon is None):
        raise InvalidParameter("delta", delta, "exactly one of delta and epsilon")
    question_target = delta_target(delta, None) if delta is not None else epsilon_target(epsilon)  # pyright: ignore
    check_mechanism(mechanism)
    rows = []
    for bound in bounds_of(type(mechanism)):
        phase = phase_for(mechanism, bound, run)
        rows.append(_compare_one(phase if bound.splits else phase.with_run(split=None), question_target))
    return Rows(sorted(rows, key=_comparison_order))


def _compare_one(phase: Phase, target: Target | EpsilonTarget) -> Comparison:
    """Ask one bound: the row has its answer, or the reason why there is none."""
    try:
        if isinstance(target, Target):
            return Comparison(phase.bound, answer(question_about(phase), "epsilon", solve_epsilon, target))
        return Comparison(phase.bound, answer(question_about(phase), "delta", solve_delta, target))
    except Unanswered as error:
        return Comparison(phase.bound, error.result, str(error), _short_reason(phase.bound, error))
    except PrivprojError as error:
        return Comparison(phase.bound, None, str(error), _short_reason(phase.bound, error))


def _short_reason(bound: Bound, error: PrivprojError) -> str:
    """The reason in a few words, without the name of the bound, which stands before it."""
    words = error.short.removeprefix(bound.name).removeprefix("this bound").lstrip(": ")
    words = "needs " + words.removeprefix("expected ") if words.startswith("expected ") else words
    kind = {"precision_limit": "precision limit: ", "not_converged": "not converged: "}
    if words == f"is {bound.status}":
        words = f"{bound.status}, not a guarantee; see `privproj bounds {bound.mechanism.name}.{bound.name}`"
    return kind.get(getattr(error, "outcome", ""), "") + words


def _comparison_order(row: Comparison) -> tuple[int, float]:
    """Key that sorts rows by status and then by value; rows without a value come last."""
    if row.result is None or row.result.value is None:
        return 2, 0.0
    status = {Status.PROVED: 0, Status.CONDITIONAL: 1}.get(row.result.status, 3)
    return status, float(row.result.log10_delta or 0.0) if (row.result.quantity == "delta") else float(row.result.value)
