"""Build warnings about truncated batches, shuffled batches and large deltas."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from privproj.accounting.phase import Phase
from privproj.errors import PrivprojError
from privproj.profiles.conversion import LEAST_LOG_VALUE
from privproj.profiles.privacy_profile import Curve
from privproj.result import LowerBound, round_outward
from privproj.run import Run

# note on every number for shuffled batches (C17, C27)
NO_AMPLIFICATION = (
    "No amplification is proved for shuffled batches: an epoch counts as one release on the whole dataset."
)

# remedy if the lower bound for shuffled batches is not known
FOR_LOWER_BOUND = "For a lower bound, give the number of batches in an epoch (batches=T)."

SEES_PROJECTIONS = "an adversary who observes the projections"  # the adversary of C4

# parameters of a run without truncated batches
WHOLE_BATCHES: dict[str, Any] = {"max_batch_size": None, "dataset_size": None}


def describe_batches(phases: Sequence[Phase], fields: dict[str, Any], untruncated: Callable[[], Curve]) -> list[str]:
    """Return the warnings about truncated and shuffled batches, and add fields to the result.

    Args:
        phases: The phases of the run.
        fields: The fields of the result, changed in place. ``alternatives`` gets the smallest maximum batch size for
            which truncation adds at most 1 % to delta (C26). ``lower_bound`` gets the lower bound for shuffled batches
            (C27).
        untruncated: A function that returns the privacy curve of the run without truncation.
    """
    # If a calibration found no value, the run in its result is a placeholder.
    if fields["value"] is None and fields["quantity"] in ("steps", "rate"):
        return []
    fields["alternatives"], truncated = _note_truncation(phases, fields, untruncated)
    fields["lower_bound"], shuffled = _note_shuffling(phases, fields)
    return [*truncated, *shuffled]


def known_size(phases: Sequence[Phase]) -> int:
    """Return the largest dataset size that a phase states, or 0."""
    return max((phase.run.dataset_size or 0 for phase in phases), default=0)


def warnings_of_delta(size: int, delta: float | None) -> tuple[str, ...]:
    """Return a warning if delta is at least one over the dataset size; a size of 0 is unknown."""
    if not size or (delta or 0.0) < 1.0 / size:
        return ()
    return (
        f"delta is not below 1/N = {1.0 / size:.3g}, so it allows the release of a whole record. Use a smaller delta.",
    )


def _note_truncation(
    phases: Sequence[Phase], fields: dict[str, Any], untruncated: Callable[[], Curve]
) -> tuple[dict[str, object], list[str]]:
    """Return the smallest harmless maximum batch size, as a field of the result, and warnings.

    A maximum batch size is harmless if truncation adds at most 1 % to delta (C26).
    """
    runs = dict.fromkeys(phase.run for phase in phases if phase.run.max_batch_size is not None)
    if not runs or fields.get("log10_delta") is None:
        return {}, []
    from privproj.composition.truncated_poisson import smallest_harmless_cap

    log_delta = goal = fields["log10_delta"] * math.log(10.0)
    if fields["quantity"] == "delta":  # delta includes the truncation, so compare with delta without it
        try:
            goal = untruncated().log_delta(fields["epsilon"]).upper
        except PrivprojError:
            return {}, []
    least = [smallest_harmless_cap(run, goal) for run in runs]
    is_finite = fields.get("epsilon") is not None and fields["epsilon"] < math.inf
    texts = [
        f"{_truncation_text(run, log_delta, is_finite=is_finite)}. "
        f"With max_batch_size >= {n}, truncation takes at most 1 % of delta."
        for run, n in zip(runs, least, strict=True)
    ]
    return {"smallest_harmless_max_batch_size": least if len(least) > 1 else least[0]}, texts


def _truncation_text(run: Run, log_delta: float, *, is_finite: bool) -> str:
    """Return a sentence that states how much the truncation of batches adds to delta."""
    # Epsilon can be finite even if a truncation is more likely than delta, because another bound composes truncated
    # steps (C26).
    from privproj.composition.truncated_poisson import HARMLESS_SHARE, log_probability_of_cut

    log_cut = log_probability_of_cut(run).upper
    taken, share = f"Truncating batches at {run.max_batch_size} records", math.exp(min(0.0, log_cut - log_delta))
    if log_cut == -math.inf:
        return f"No batch has more than {run.max_batch_size} records, so none is truncated"
    if log_cut >= log_delta and is_finite:
        return f"Batches exceed {run.max_batch_size} records with a probability above delta, which increases epsilon"
    if log_cut >= log_delta:
        # a power of ten if the probability is below the range of doubles
        power = f"10^{math.ceil(log_cut / math.log(10.0))}"
        most = round_outward(math.exp(log_cut)) if log_cut > LEAST_LOG_VALUE else power
        return f"{taken} takes all of delta: its probability is up to {most}"
    return f"{taken} takes {'less than 1' if share <= HARMLESS_SHARE else f'at most {100.0 * share:.0f}'} % of delta"


def _note_shuffling(phases: Sequence[Phase], fields: dict[str, Any]) -> tuple[LowerBound | None, list[str]]:
    """Return a lower bound of epsilon or delta for shuffled batches, or None, and warnings (C27)."""
    shuffled = [phase for phase in phases if phase.run.scheme.is_shuffled]
    if not shuffled:
        return None, []
    if any(phase.run.batches is None for phase in shuffled):
        return None, [f"{NO_AMPLIFICATION} {FOR_LOWER_BOUND}"]
    of_delta = fields["quantity"] == "delta"
    goal = fields.get("epsilon") if of_delta else fields.get("log10_delta")
    if goal is None:
        return None, [NO_AMPLIFICATION]
    from privproj.accounting.shuffling import least_of

    least = max(least_of(phase, goal, of_delta=of_delta) for phase in shuffled)
    if least == -math.inf or (least <= 0.0 and not of_delta):
        return None, [NO_AMPLIFICATION]
    plain = all(phase.mechanism.name == "gaussian" for phase in shuffled)
    quantity, end = ("log10_delta", least / math.log(10.0) * (1.0 + 1e-15)) if of_delta else ("epsilon", least)
    return LowerBound(quantity=quantity, value=end, for_whom="" if plain else SEES_PROJECTIONS), [NO_AMPLIFICATION]
