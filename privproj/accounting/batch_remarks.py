"""What a result says of how its batches were drawn: what a cap costs, and what stands beside shuffled batches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privproj.curves.inversion import LEAST_LOG_VALUE
from privproj.errors import PrivprojError
from privproj.result import LowerBound, round_outward
from privproj.runs import Run

if TYPE_CHECKING:
    from privproj.accounting.phase import Phase


NO_AMPLIFICATION = "no amplification is proved for shuffled batches, so an epoch counts as one release of each record"
"""Printed with every number for shuffled batches (C17, C27)."""

SEES_PROJECTIONS = "whoever sees the projections"
"""For whom a lower end holds where the projections are known to all who are feared (C4). Contract."""


def remark_on_batches(
    phases: "Sequence[Phase]", found: dict[str, Any], log_delta_of_whole_batches: Callable[[float], float]
) -> dict[str, Any]:
    """The fields of a result with what there is to say of capped and of shuffled batches."""
    # Without their value the run of a result is only a placeholder.
    if found["value"] is None and found["quantity"] in ("steps", "rate"):
        return found
    caps, cut = _capped(phases, found, log_delta_of_whole_batches)
    least, shuffled = _shuffled(phases, found)
    return {**found, "lower_bound": least, "alternatives": caps, "warnings": (*found["warnings"], *cut, *shuffled)}


def _capped(
    phases: "Sequence[Phase]", found: dict[str, Any], log_delta_of_whole_batches: Callable[[float], float]
) -> tuple[dict[str, object], list[str]]:
    """What each cap of Poisson batches takes of delta, and the smallest cap that takes next to nothing (C26)."""
    runs = dict.fromkeys(phase.run for phase in phases if phase.run.max_batch_size is not None)
    if not runs or found.get("log10_delta") is None:
        return {}, []
    from privproj.composition.truncated import smallest_harmless_cap

    log_delta = goal = found["log10_delta"] * math.log(10.0)
    if found["quantity"] == "delta":  # the answer has the cuts in it: a cap is harmless beside delta without them
        try:
            goal = log_delta_of_whole_batches(found["epsilon"])
        except PrivprojError:
            return {}, []
    least = [smallest_harmless_cap(run, goal) for run in runs]
    said = [
        f"{_cap_words(run, log_delta)}; the smallest harmless cap here (1 % of delta) is {n}"
        for run, n in zip(runs, least, strict=True)
    ]
    return {"smallest_harmless_cap": least if len(least) > 1 else least[0]}, said


def _cap_words(run: Run, log_delta: float) -> str:
    """What the cap of a run takes of the delta ``e^log_delta``."""
    from privproj.composition.truncated import HARMLESS_SHARE, log_probability_of_cut

    log_cut = log_probability_of_cut(run).upper
    taken, share = f"cutting batches at {run.max_batch_size} records", math.exp(min(0.0, log_cut - log_delta))
    if log_cut == -math.inf:
        return f"no batch has more than {run.max_batch_size} records, so that none is cut"
    if log_cut >= log_delta:
        return f"{taken} takes all of delta: its probability is up to {_power(log_cut)}"
    return f"{taken} takes {'less than 1' if share <= HARMLESS_SHARE else f'{100.0 * share:.0f}'} % of delta"


def _shuffled(phases: "Sequence[Phase]", found: dict[str, Any]) -> tuple[LowerBound | None, list[str]]:
    """That shuffling is not accounted for, and the number below which none can be promised, where that is known."""
    shuffled = [phase for phase in phases if phase.run.scheme.is_shuffled]
    if not shuffled:
        return None, []
    if any(phase.run.batches is None for phase in shuffled):
        return None, [f"{NO_AMPLIFICATION}; with the number of batches of an epoch (batches) there is more to say"]
    of_delta = found["quantity"] == "delta"
    goal = found.get("epsilon") if of_delta else found.get("log10_delta")
    if goal is None:
        return None, [NO_AMPLIFICATION]
    from privproj.accounting.shuffling import least_of

    least = max(least_of(phase, goal, of_delta=of_delta) for phase in shuffled)
    if least == -math.inf or (least <= 0.0 and not of_delta):
        return None, [NO_AMPLIFICATION]
    plain = all(phase.mechanism.name == "gaussian" for phase in shuffled)
    quantity, end = ("log10_delta", least / math.log(10.0) * (1.0 + 1e-15)) if of_delta else ("epsilon", least)
    found_end = LowerBound(quantity=quantity, value=end, for_whom="" if plain else SEES_PROJECTIONS)
    return found_end, [NO_AMPLIFICATION]


def without_cap(run: Run) -> Run:
    """The run with whole batches."""
    return replace(run, max_batch_size=None, dataset_size=None)


def _power(log_value: float) -> str:
    """A probability by its natural log, rounded up, as a power of ten where it is below double precision."""
    if log_value > LEAST_LOG_VALUE:
        return round_outward(math.exp(log_value))
    return f"10^{math.ceil(log_value / math.log(10.0))}"
