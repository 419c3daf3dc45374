"""The truth from below: what no accounting can say less than, beside an answer that is an upper bound (C28).

The pair of data sets is one that the mechanism and the run allow: one record changes the query in one way, in every
release, and all other records contribute nothing. What its outputs tell whoever sees them is known exactly, up to the
two ends of the composition. The lower of these is a proved lower end of the truth. Shuffled batches have a pair of
their own (C27, :mod:`privproj.accounting.batch_remarks`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from privproj.accounting.batch_remarks import SEES_PROJECTIONS
from privproj.accounting.phase import Phase
from privproj.accounting.question import Aim, Question
from privproj.composition.compose import compose_phases
from privproj.curves.profile import PrivacyProfile
from privproj.errors import PrivprojError
from privproj.numerics.enclosure import next_up
from privproj.result import LowerBound, Result, Side, round_outward
from privproj.runs import Run
from privproj.runs.sampling import Sampling

CLOSE_ENOUGH = 1.01
"""Further changes are tried only where the answer is more than this factor above the lower end. Speed only."""

WIDE_GAP = 1.05
"""An answer that is above the lower end by more than this factor says why. Contract."""

LOOSE = "it is more than 5 % above the best lower end that is known ({}), and may be that much too large"
"""The warning of an answer that is far from what is known from below, for no other reason. Contract."""

NO_ONE_CHANGE = "the bound takes the worst change for each loss, and no change is that for all, least so at small ranks"
"""Why a bound that is known from both sides can be far from the lower end. Contract."""

SOME_COLUMNS = "for some number of columns"
"""For which layers a lower end holds where the number of columns is not given and the change has a high rank."""

EVENTS_LEFT_OUT = "events of dp-accounting are not counted from below"
"""Why a run with such events can be. Contract."""

OTHER_BOUND = "another bound of the mechanism may be closer, see privproj compare"
"""Why a Renyi bound can be. Contract."""


def with_lower_end(question: Question, result: Result) -> Result:
    """The result with a lower end of epsilon, or of ``log10 delta``, where one is proved; it is found when it is read.

    Where another lower end stands there, the larger is kept. Nothing that goes wrong here fails the answer.
    """
    if not result.usable or result.side is not Side.UPPER or not result.value or result.quantity not in ASKED:
        return result
    if result.risk is not None:
        return result.completed_by(lambda known: _with_advantage_below(question, known))
    return result.completed_by(lambda known: _with_end_below(question, known))


def _with_end_below(question: Question, result: Result) -> Result:
    """The result with a lower end of epsilon or of ``log10 delta``, and with a warning where it is far above that."""
    try:
        found, choice = _lower_end(question, result)
    except (PrivprojError, ArithmeticError, ValueError):
        found, choice = None, 0
    return _with_warning(replace(result, lower_bound=_larger_end(question, result, found, choice)))


def _with_warning(result: Result) -> Result:
    """The result, with a warning where it is an epsilon far above the best lower end and no other gap is named."""
    known, composed = result.lower_bound, "composer" in result.numerics or "epoch" in result.numerics
    if result.quantity != "epsilon" or not composed or (known and known.gap) or result.value is None:
        return result
    least = max(result.lower or 0.0, known.value if known else 0.0)
    if result.value <= WIDE_GAP * least:
        return result
    return replace(result, warnings=(*result.warnings, LOOSE.format(f"{least:.4g}" if least else "none")))


def _with_advantage_below(question: Question, result: Result) -> Result:
    """The result with a lower end of the advantage where its risk is an advantage and one is proved."""
    if "advantage" not in (result.risk or {}):
        return result
    try:
        ends = [compose_phases(phases).log_delta(0.0).lower for phases in _choices(question.phases)]
    except (PrivprojError, ArithmeticError, ValueError):
        return result
    # exp(max ln delta(0)), rounded down
    least = math.exp(max(ends, default=-math.inf)) * (1.0 - 1e-15)
    found = LowerBound(
        quantity="advantage", value=least, for_whom=SEES_PROJECTIONS if _shows_projections(question) else ""
    )
    return replace(result, lower_bound=found) if least else result


ASKED = ("epsilon", "delta", "sigma")
"""The quantities whose answers have a lower end of the truth beside them. Contract."""


def _lower_end(question: Question, result: Result) -> tuple[float | None, int]:
    """The largest lower end that is found, of epsilon or of ``log10 delta`` as was asked, and its choice."""
    best: float | None = None
    chosen = 0
    for choice, phases in enumerate(_choices(question.phases)):
        curve = compose_phases(phases)
        if result.quantity == "delta":
            assert result.epsilon is not None
            end = curve.log_delta(result.epsilon).lower / math.log(10.0) * (1.0 + 1e-15)
        else:
            end = curve.epsilon(_log_delta_of(result)).lower
        if best is None or end > best:
            best, chosen = end, choice
        if _ratio(result, best) < CLOSE_ENOUGH:
            break
    return best, chosen


def _log_delta_of(result: Result) -> float:
    """The log of the delta at which the result was asked, rounded up: the epsilon there is no larger."""
    assert result.log10_delta is not None
    return next_up(math.log(result.delta) if result.delta else result.log10_delta * math.log(10.0))


def _choices(phases: Sequence[Phase]) -> Iterator[list[tuple[PrivacyProfile, Run]]]:
    """For each choice of changes, the phases in which it is allowed: no more can be said of all phases than of them.

    The last change of a phase with few of them stands in where another phase has more.
    """
    known = [phase.allowed_changes() for phase in phases if attains_pair(phase)]
    known = [(changes, _plain(run)) for changes, run in known if changes]
    for i in range(max((len(changes) for changes, _ in known), default=0)):
        yield [(changes[min(i, len(changes) - 1)], run) for changes, run in known]


def _plain(run: Run) -> Run:
    """The run on the default grid of the own composer."""
    return replace(run, discretization=None, composer="privproj")


def attains_pair(phase: Phase) -> bool:
    """True where one record that changes alone attains the pair of the composition, whatever the change (C28)."""
    run = phase.run
    if getattr(phase.mechanism, "fixed_projection", False) or run.max_batch_size is not None:
        return False
    if run.group_size > 1 and run.in_batches and not run.scheme.draws_records_apart:
        return False
    return run.scheme.attains_pair and run.batches_per_record == 1


def _ratio(result: Result, least: float) -> float:
    """By which factor the answer, an epsilon or a delta, is above the lower end; ``inf`` where that is not positive."""
    if result.quantity == "delta":
        assert result.log10_delta is not None
        return 10.0 ** min(300.0, result.log10_delta - least) if least > -math.inf else math.inf
    return (result.epsilon or 0.0) / least if least > 0.0 else math.inf


def _larger_end(question: Question, result: Result, found: float | None, choice: int) -> LowerBound | None:
    """The larger of the lower end that the result has and of the one found: for whom it holds, and why it is far."""
    quantity, known = "log10_delta" if result.quantity == "delta" else "epsilon", result.lower_bound
    if found is None or not math.isfinite(found) or (quantity == "epsilon" and found <= 0.0):
        return known
    if known is not None and known.value >= found:
        return known
    # The first change has rank one, which any number of columns allows.
    open_columns = choice > 0 and any(getattr(phase.mechanism, "columns", 1) is None for phase in question.phases)
    seer = f"{SEES_PROJECTIONS}{', ' + SOME_COLUMNS if open_columns else ''}" if _shows_projections(question) else ""
    gap = ""
    if _ratio(result, found) > WIDE_GAP and result.value is not None:
        if any(phase.mechanism.name == "dp-accounting" for phase in question.phases):
            gap = EVENTS_LEFT_OUT
        elif any(phase.bound.renyi for phase in question.phases):
            gap = OTHER_BOUND
        elif result.lower is not None and result.value < WIDE_GAP * result.lower:
            gap = NO_ONE_CHANGE
    return LowerBound(quantity=quantity, value=found, for_whom=seer or (known.for_whom if known else ""), gap=gap)


def _shows_projections(question: Question) -> bool:
    """True where the pair of a lower end lets whoever sees the projections tell neighbours apart."""
    return any(phase.mechanism.name in ("m1", "m2") for phase in question.phases)


def with_alternatives(question: Question, result: Result, solve: Callable[[Any, Aim], Result], target: Aim) -> Result:
    """The result with the same number for balls-in-bins batches, and for Poisson ones, beside that of shuffled ones.

    An alternative that is refused or has no answer is left out.
    """
    runs = [phase.run for phase in question.phases]
    shuffled = [run for run in runs if run.scheme.is_shuffled]
    if result.value is None or not shuffled or any(run.batches is None for run in shuffled):
        return result

    def in_bins(run: Run) -> Run:
        return replace(run, sampling=Sampling.BALLS_IN_BINS) if run.scheme.is_shuffled else run

    def in_poisson_batches(run: Run) -> Run:
        if not run.scheme.is_shuffled:
            return run
        # As many batches, of the same size on average
        count = run.batches or 1
        steps = run.steps * count
        return replace(run, sampling=Sampling.POISSON, batches=None, sampling_rate=1.0 / count, steps=steps)

    beside, warnings = dict(result.alternatives), list(result.warnings)
    for name, changed, words in (
        ("balls_in_bins_instead", in_bins, "with balls-in-bins batches, another loader, it would be"),
        ("poisson_not_valid", in_poisson_batches, "Poisson accounting, NOT VALID for shuffled batches, would print"),
    ):
        try:
            other = solve(question.with_runs(changed), target)
        except PrivprojError:
            continue
        if other.value is not None and math.isfinite(other.value):
            beside[name] = other.value
            warnings.append(f"{words} {result.quantity} {round_outward(other.value)}")
    return replace(result, alternatives=beside, warnings=tuple(warnings))
