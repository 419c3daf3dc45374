"""Compute lower bounds of the true epsilon or delta of a run.

A lower bound is the exact value for one pair of neighboring datasets (C28). In this pair, one record changes the sum of
gradients in the same way in every release, and all other records contribute nothing. For shuffled batches another pair
is used (C27). This module also evaluates a run with other sampling schemes, for comparison.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from privproj.accounting.batch_notes import SEES_PROJECTIONS
from privproj.accounting.phase import Phase
from privproj.accounting.query import Composition, solve_delta, solve_epsilon
from privproj.composition.compose import compose_phases
from privproj.errors import InvalidParameterError, PrivprojError
from privproj.mechanisms.registry import is_renyi
from privproj.numerics.interval import next_up
from privproj.profiles.privacy_profile import Curve, PrivacyProfile
from privproj.result import LowerBound, Result, Side, round_outward
from privproj.run import Run
from privproj.sampling import Sampling

CLOSE_ENOUGH = 1.01  # factor above a lower bound up to which no further difference is tried

WIDE_GAP = 1.05  # factor above a lower bound from which a reason is given

# warning about a value far above its lower bound for no other reason
LOOSE = "The upper bound is more than 5 % above the best known lower bound ({:.4g}) and may be loose by this amount."

# warning about a value without a lower bound
NOTHING_BELOW = "No lower bound is known, so the upper bound may be loose by an unknown amount."

NO_ONE_CHANGE = (
    "the bound takes the worst case separately at each privacy loss. No single difference attains all of them, so it "
    "can be loose, especially at small ranks"
)  # reason for a gap

SOME_COLUMNS = "for some number of columns"  # for layers of unknown width and a difference of high rank

PHASES_LEFT_OUT = "phases with another accountant have no lower bound here"  # reason for a gap

OTHER_BOUND = "another bound of the mechanism may be closer, see privproj compare"  # reason for a gap

QUANTITIES = ("epsilon", "delta", "sigma")  # quantities whose results have a lower bound


def lower_bound(result: Result) -> LowerBound | None:
    """Return a lower bound of the true epsilon, delta or advantage of a run (C27, C28).

    No valid accounting of the same releases gives a smaller value, if the adversary observes the random projections.
    The lower bound has one of these quantities:

    * epsilon, for a result of epsilon or sigma;
    * ``log10_delta``, for a result of delta;
    * the advantage, for a noise multiplier that was calibrated to an advantage.

    Args:
        result: The result of :func:`privproj.epsilon`, :func:`privproj.delta` or :func:`privproj.sigma`.

    Returns:
        The largest lower bound that is known; None if there is none.

    Raises:
        InvalidParameterError: The argument is not a result.

    >>> from privproj import M2, epsilon, lower_bound
    >>> round(lower_bound(epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)).value, 3)
    0.738
    """
    if not isinstance(result, Result):
        raise InvalidParameterError("result", result, "a result of epsilon, delta or sigma")
    if result.query is None or result.side is not Side.UPPER or not result.usable or not result.value:
        return result.lower_bound
    if result.quantity not in QUANTITIES or (result.risk is not None and "advantage" not in result.risk):
        return result.lower_bound
    try:
        composed = _lower_end(result.query.phases, result)
    except (PrivprojError, ArithmeticError, ValueError):  # the result is valid without a lower bound
        composed = None
    bounds = [bound for bound in (result.lower_bound, composed) if bound is not None]
    return max(bounds, key=lambda bound: bound.value, default=None)


def with_details(result: Result) -> Result:
    """Add a lower bound to a result, and for shuffled batches the values for other sampling schemes.

    Each addition takes as long as a separate query.

    >>> from privproj import M2, epsilon
    >>> from privproj.accounting.lower_bounds import with_details
    >>> round(with_details(epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)).lower_bound.value, 3)
    0.738
    """
    query, target = result.query, result.target
    if query is None:
        return result
    has_bound = result.usable and result.side is Side.UPPER and result.value and result.quantity in QUANTITIES
    if has_bound and (result.risk is None or "advantage" in result.risk):
        below, warnings = lower_bound(result), result.warnings
        is_composed = "composer" in result.numerics or "epoch" in result.numerics
        if result.quantity == "epsilon" and is_composed and not (below and below.gap):
            least = max(result.lower or 0.0, below.value if below else 0.0)
            if (result.value or 0.0) > WIDE_GAP * least:
                warnings = (*warnings, LOOSE.format(least) if least else NOTHING_BELOW)
        result = replace(result, lower_bound=below, warnings=warnings)
    result = replace(result, query=None, target=None)
    solve = {"epsilon": solve_epsilon, "delta": solve_delta}.get(result.quantity)
    return with_alternatives(query, result, lambda other: solve(other, target)) if solve else result


def _lower_end(phases: Sequence[Phase], result: Result) -> LowerBound | None:
    """Return the largest lower bound found for an epsilon, delta or advantage, or None."""
    quantity = "advantage" if result.risk else "log10_delta" if result.quantity == "delta" else "epsilon"
    best, chosen = -math.inf, 0
    for choice, allowed in enumerate(_choices(phases)):
        end = _end_of(compose_phases(allowed), quantity, result)
        if end > best:
            best, chosen = end, choice
        if _ratio(result, best) < CLOSE_ENOUGH:
            break
    if not math.isfinite(best) or (quantity != "log10_delta" and best <= 0.0):
        return None
    # Only an adversary who observes the projections can distinguish the pair.
    seer = SEES_PROJECTIONS if any(phase.mechanism.name in ("m1", "m2") for phase in phases) else ""
    # The first difference has rank one, which any number of columns allows.
    if seer and chosen > 0 and any(getattr(phase.mechanism, "columns", 1) is None for phase in phases):
        seer = f"{seer}, {SOME_COLUMNS}"
    gap = _reason_of_gap(phases, result) if quantity != "advantage" and _ratio(result, best) > WIDE_GAP else ""
    return LowerBound(quantity=quantity, value=best, for_whom=seer, gap=gap)


def _end_of(curve: Curve, quantity: str, result: Result) -> float:
    """Return epsilon, ``log10_delta`` or the advantage of a privacy curve, rounded down."""
    if quantity == "advantage":
        return math.exp(curve.log_delta(0.0).lower) * (1.0 - 1e-15)
    if quantity == "log10_delta":
        assert result.epsilon is not None
        return curve.log_delta(result.epsilon).lower / math.log(10.0) * (1.0 + 1e-15)
    assert result.log10_delta is not None
    # The log of delta is rounded up, so that epsilon is rounded down.
    log_delta = math.log(result.delta) if result.delta else result.log10_delta * math.log(10.0)
    return curve.epsilon(next_up(log_delta)).lower


def _reason_of_gap(phases: Sequence[Phase], result: Result) -> str:
    """Return a text on why the upper bound is far above the lower bound, or an empty text."""
    if any(phase.accountant is not None for phase in phases):
        return PHASES_LEFT_OUT
    if any(is_renyi(phase.bound) for phase in phases):
        return OTHER_BOUND
    is_tight = result.value is not None and result.lower is not None and result.value < WIDE_GAP * result.lower
    return NO_ONE_CHANGE if is_tight else ""


def _choices(phases: Sequence[Phase]) -> Iterator[list[tuple[PrivacyProfile, Run]]]:
    """Yield, for each known pair of neighboring datasets, the privacy profiles and runs of the phases."""
    # A phase with fewer differences than another one uses its last difference again.
    from privproj.composition.balls_in_bins import tested_epochs

    # on the default grid, not on that of the query
    # A phase without a known difference between neighboring sums is omitted, which only decreases the lower bound.
    pairs = [phase.with_run(discretization=None).worst_differences() for phase in phases if attains_pair(phase)]
    for i in range(max((len(changes) for changes, _ in pairs), default=0)):
        chosen = [(changes[min(i, len(changes) - 1)], run) for changes, run in pairs if changes]
        tested = [tested_epochs(*phase) if phase[1].is_bounded_by_blocks else phase for phase in chosen]
        if any(tested):
            yield [phase for phase in tested if phase is not None]


def attains_pair(phase: Phase) -> bool:
    """Return whether a lower bound is proved for the run of a phase (C28)."""
    # No proof covers a fixed projection, truncated batches, or records of a user that are not sampled independently.
    run = phase.run
    if getattr(phase.mechanism, "fixed_projection", False) or run.max_batch_size is not None:
        return False
    if run.group_size > 1 and run.in_batches and not run.scheme.draws_records_apart:
        return False
    # Some dataset must attain the bound of the sampling scheme.
    return run.scheme.attains_pair


def _ratio(result: Result, least: float) -> float:
    """Return the ratio of the value of a result to its lower bound.

    For a delta, ``least`` is the decimal logarithm of the lower bound.
    """
    if result.quantity == "delta":
        assert result.log10_delta is not None
        return 10.0 ** min(300.0, result.log10_delta - least) if least > -math.inf else math.inf
    most = result.risk["advantage"] if result.risk else result.epsilon or 0.0
    return most / least if least > 0.0 else math.inf


def with_alternatives(query: Composition, result: Result, solve: Callable[[Composition], Result]) -> Result:
    """Add values for balls-in-bins and Poisson sampling to a result for shuffled batches.

    The value for Poisson sampling is not valid for shuffled batches. ``solve`` evaluates another run at the same
    target.
    """
    shuffled = [phase.run for phase in query.phases if phase.run.scheme.is_shuffled]
    if result.value is None or not shuffled or any(run.batches is None for run in shuffled):
        return result

    def in_bins(phase: Phase) -> Phase:
        return phase.with_run(sampling=Sampling.BALLS_IN_BINS)

    def in_poisson_batches(phase: Phase) -> Phase:
        # the same number of batches, of the same size on average
        count = phase.run.batches or 1
        steps = phase.run.steps * count
        return phase.with_run(sampling=Sampling.POISSON, batches=None, sampling_rate=1.0 / count, steps=steps)

    others, warnings = dict(result.alternatives), list(result.warnings)
    for name, changed, text in (
        ("balls_in_bins_instead", in_bins, "With a balls-in-bins loader, the result would be"),
        ("poisson_not_valid", in_poisson_batches, "Poisson accounting, NOT VALID for shuffled batches, would print"),
    ):
        try:
            phases = (changed(phase) if phase.run.scheme.is_shuffled else phase for phase in query.phases)
            other = solve(replace(query, phases=tuple(phases)))
        except PrivprojError:
            continue
        if other.value is not None and math.isfinite(other.value):
            others[name] = other.value
            warnings.append(f"{text} {result.quantity} {round_outward(other.value)}")
    return replace(result, alternatives=others, warnings=tuple(warnings))
