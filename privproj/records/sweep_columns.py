"""The rows of a large sweep, read in columns: the same text as row by row, but for the margins of the numbers."""

from collections.abc import Sequence
from typing import Any

from privproj.accounting.column_rows import read_columns
from privproj.accounting.columns import checked_phase
from privproj.accounting.phase import Phase
from privproj.accounting.queries import ZERO_EPSILON_NOTE
from privproj.accounting.spec import aim_from, mechanism_type_of, question_from
from privproj.errors import PrivprojError
from privproj.numerics.compiled import rows_to_come
from privproj.result import Outcome, Side
from privproj.runs.targets import RISKS, RiskTarget
from privproj.validation import parameters_from

TARGET_KEYS = ("epsilon", "delta", "log10_delta", *RISKS)
"""Keys that are no part of a phase."""


def rows_in_columns(
    query: str, points: Sequence[dict[str, Any]], axes: tuple[str, ...], size: int
) -> list[list[str] | None]:
    """The rows of points of a sweep over ``axes`` of ``size`` rows; None for those that must be asked one by one."""
    found: list[list[str] | None] = [None] * len(points)
    numbers, phases, targets, ask = [], [], [], _Phases(axes)
    for i, given in enumerate(points):
        try:
            target = aim_from(given, query)
            if isinstance(target, RiskTarget):
                continue
            phase = checked_phase(ask.phase(given, query), target)
        except (PrivprojError, ArithmeticError, ValueError):
            continue
        numbers.append(i)
        phases.append(phase)
        targets.append(target)
    with rows_to_come(size):
        read = read_columns(query, phases, targets)
    columns = (read.value, read.lower, read.log10_delta, read.unknown)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for i, phase, target, side, (*numbers_found, unknown) in zip(
        numbers, phases, targets, read.sides, rows, strict=True
    ):
        if not unknown:
            found[i] = _row(query, phase, target, side, *numbers_found)
    return found


class _Phases:
    """Phases at points: what the axes of the mechanism do not change is parsed once."""

    def __init__(self, axes: tuple[str, ...]) -> None:
        self.axes, self.kept = axes, dict[Any, tuple[dict[str, Any], Phase]]()

    def phase(self, given: dict[str, Any], query: str) -> Phase:
        """The phase at a point; raises as :func:`privproj.accounting.spec.question_from` does."""
        kind = mechanism_type_of(given)
        fields = kind.__dataclass_fields__
        key = repr([given[name] for name in self.axes if name not in fields and name not in TARGET_KEYS])
        if key not in self.kept:
            first = question_from(given, query).only
            self.kept[key] = parameters_from(kind, given), first
            return first
        parameters, first = self.kept[key]
        changed = {name: given[name] for name in self.axes if name in fields}
        mechanism = type(first.mechanism)(**{**parameters, **changed})
        return Phase(mechanism, first.run, first.bound, first.allow_refuted)


def _row(
    query: str, phase: Phase, target: Any, side: Side, value: float, lower: float, log10_delta: float
) -> list[str]:
    """A row as :mod:`privproj.records.sweep` writes one that was asked alone."""
    vacuous = query == "delta" and value >= 1.0
    delta = value if query == "delta" else target.delta
    noise = value if query == "sigma" else phase.mechanism.noise_multiplier
    notes = (*phase.notes, ZERO_EPSILON_NOTE) if query == "epsilon" and value == 0.0 else phase.notes
    return [
        "" if vacuous else repr(value),
        "" if lower == 0.0 and query == "delta" else repr(lower),
        repr(value),
        str(side),
        phase.bound.name,
        str(phase.status),
        str(Outcome.VACUOUS if vacuous else Outcome.OK),
        repr(value if query == "epsilon" else target.epsilon),
        "" if delta is None else repr(delta),
        repr(log10_delta),
        "" if noise is None else repr(noise),
        " ".join("; ".join(notes).splitlines()),
    ]
