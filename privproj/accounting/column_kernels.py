"""Columns as kernels: what one row answers, and the margins by which all doors agree (C24).

What ``epsilons`` answers at ``d``, asked back as ``delta`` or ``deltas``, gives no more than ``d``; and ``sigmas``
keeps to both its targets when it is asked back (C24, "Columns"). With ``h(d)`` the point of the lattice below ``ln d``,
``w`` the width of an enclosure, ``s`` the spacing of the lattice and ``e'`` a few roundings below ``e``,

    deltas(e)   = value(h)  where h is the first point of the lattice with U(e) + 16 w <= h,
    epsilons(d) = e         where U(e') + 32 w + s <= h(d) - s was evaluated.

A row is that of the law, and after it the sampling rate, the spacing of the lattice and the share ``e'/e``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from privproj.accounting.phase import Phase
from privproj.curves.columns import Kernel, KernelColumns
from privproj.curves.inversion import COARSE_LATTICE_FACTOR, LARGE_LOG_DELTA, floor_log_delta, spacing_of
from privproj.curves.profile import INVERSE_RTOL, Curve, amplified_epsilon
from privproj.mechanisms import Mechanism
from privproj.numerics.enclosure import FUNCTION_RELATIVE_ERROR, RELATIVE_ERROR_PER_NAT
from privproj.numerics.inverse_kernels import with_globals
from privproj.runs.targets import FullTarget

WIDTHS_ABOVE = 16.0
"""How many widths of an enclosure a delta of columns lies above its upper end; an epsilon has twice as many (C24).

It rests on the two widths of one question, scalar and in columns, being within a factor of 1.5 of each other.
Soundness.
"""

ROUNDINGS_BELOW = 8.0
"""How far below an epsilon its delta is looked at, in tolerances of the search for a scalar one (C24). Soundness."""

MOST_TRIES = 60
"""How often a row is looked at anew before it is left to the scalar search. Speed only."""

AMPLIFIED_RTOL = 4e-15
"""Relative error allowed to the epsilon at which an unsampled release is asked: a dozen roundings. Soundness."""

LOG_DELTA: Any = None
"""The profile that is read, and ``ROOT`` its inverse; :func:`answers_of` puts both in their place. Speed only."""

ROOT: Any = None
"""The inverse of :data:`LOG_DELTA`. Speed only."""


def _ends(eps: float, row: Sequence[float], widths: float) -> tuple[float, float]:
    """An enclosure of ``ln delta``, its upper end raised by so many widths; ``(-inf, inf)`` where one is not known."""
    rate, shift, most = row[-3], 0.0, 0.0
    if rate < 1.0:
        # ln q + ln delta_0(ln(1 + (e^eps - 1)/q)), as in PrivacyProfile.sampled (C17).
        inner, shift = amplified_epsilon(eps, rate), math.log(rate)
        lower = LOG_DELTA(inner * (1.0 + AMPLIFIED_RTOL), row)[0] + shift - 1e-14
        upper = LOG_DELTA(inner * (1.0 - AMPLIFIED_RTOL), row)[1] + shift + 1e-14
        # delta <= q, of which the scalar path says ln q + 1e-15.
        most = shift + 1e-14
    else:
        lower, upper = LOG_DELTA(eps, row)
    if not -math.inf < lower <= upper < math.inf:
        return -math.inf, math.inf
    upper = min(upper, 0.0)
    return lower, min(upper + widths * (upper - lower), most)


def _spacing(log_delta: float, row: Sequence[float]) -> float:
    """The spacing of the lattice of log deltas of the scalar curve, there (C24)."""
    return row[-2] * COARSE_LATTICE_FACTOR if log_delta < -LARGE_LOG_DELTA else row[-2]


def _rounded_down(log_delta: float, spacing: float) -> float:
    """The last point of the lattice up to a log delta."""
    count = log_delta / spacing
    # Beyond, every double is whole.
    return math.floor(count) * spacing if abs(count) < 2.0**53 else log_delta


def delta_of_row(eps: float, row: Sequence[float]) -> tuple[float, float]:
    """A lower end of ``ln delta``, and the point of the lattice that is answered; ``inf`` where none is known."""
    lower, upper = _ends(eps, row, WIDTHS_ABOVE)
    if upper == math.inf:
        return lower, upper
    return lower, min(-_rounded_down(-upper, _spacing(upper, row)), 0.0)


def goal_of_row(log_delta: float, row: Sequence[float]) -> tuple[float, float]:
    """The point whose printed delta is below ``e^log_delta``, the last but one below; and what is sought for it first.

    The goal is below the point by more than what is raised.
    """
    spacing = _spacing(log_delta, row)
    point = _rounded_down(log_delta, spacing) - spacing
    margin = 8.0 * WIDTHS_ABOVE * (FUNCTION_RELATIVE_ERROR + RELATIVE_ERROR_PER_NAT * abs(point))
    return point, point - margin - _spacing(point, row)


def _root(log_delta: float, row: Sequence[float]) -> float:
    """Nearly the epsilon at this log delta; what it gives must be evaluated."""
    rate = row[-3]
    if not rate < 1.0:
        return ROOT(log_delta, row)[0]
    inner = ROOT(min(log_delta - math.log(rate), 0.0), row)[0]
    # ln(1 + q (e^inner - 1)), the inverse of amplified_epsilon, without overflow
    if inner < 30.0:
        return math.log1p(rate * math.expm1(inner))
    return inner + math.log(rate + (1.0 - rate) * math.exp(-inner))


def epsilon_of_row(log_delta: float, row: Sequence[float]) -> tuple[float, float]:
    """How far the answer at this log delta is above its point, at most 0, and that answer; ``inf`` where none is."""
    point, goal = goal_of_row(log_delta, row)
    for _ in range(MOST_TRIES):
        eps = _root(goal, row)
        if not eps < math.inf:
            break
        missing = _ends(eps * row[-1], row, 2.0 * WIDTHS_ABOVE)[1] + _spacing(point, row) - point
        if missing <= 0.0:
            return missing, eps
        if missing == math.inf:
            break
        goal -= 2.0 * missing
    return math.inf, math.inf


@lru_cache(maxsize=64)
def answers_of(profile: KernelColumns) -> tuple[Kernel, Kernel]:
    """The two answers, of a delta and of an epsilon, over a profile."""
    ends, root = with_globals(_ends, LOG_DELTA=profile.log_delta), with_globals(_root, ROOT=profile.root)
    return with_globals(delta_of_row, _ends=ends), with_globals(epsilon_of_row, _ends=ends, _root=root)


@dataclass(frozen=True)
class RowShape:
    """Rows that differ in noise and target alone: what neighbours see of them, and a curve of one of them."""

    phase: Phase
    seen: Mechanism
    rate: float
    profile: KernelColumns
    curve: Curve

    def row_at(self, noise: Any) -> tuple[Any, ...]:
        """The row at a noise multiplier; its entries may be arrays where that is one."""
        profile_and_row = self.phase.bound.law_row and self.phase.bound.law_row(self.seen, 1.0 / noise)
        assert profile_and_row is not None
        before = 1.0 - ROUNDINGS_BELOW * float(getattr(self.curve, "inverse_rtol", None) or INVERSE_RTOL)
        return *profile_and_row[1], self.rate, spacing_of(self.curve, 0.0), before


def shape_of(phase: Phase, curve: Curve | None = None) -> RowShape | None:
    """The shape of the rows that are like this phase, whose curve may be known; None where columns say nothing."""
    run, bound = phase.run, phase.bound
    if bound.law_row is None or max(run.steps, run.group_size) > 1 or run.max_batch_size is not None:
        return None
    if run.discretization is not None or run.scheme.is_shuffled or run.allocates:
        return None
    if not bound.guarantees(phase.mechanism):
        return None
    seen, run = phase.for_relation()
    profile_and_row = bound.law_row(seen, 1.0)
    if profile_and_row is None:
        return None
    return RowShape(phase, seen, run.sampling_rate, profile_and_row[0], phase.curve() if curve is None else curve)


def goal_in_columns(curve: Curve, log_delta: float) -> float:
    """What the epsilon of a column is first sought for; below it one release is calibrated."""
    return goal_of_row(log_delta, (1.0, spacing_of(curve, 0.0), 1.0))[1]


def meets_in_columns(phase: Phase, target: FullTarget, curve: Curve) -> bool:
    """True where epsilon and delta of the phase, if columns answer them, are no more than the target's (C24)."""
    shape = shape_of(phase, curve)
    if shape is None:
        return True
    row, most = shape.row_at(phase.mechanism.noise_multiplier), (floor_log_delta(curve, target), target.epsilon)
    for answer, asked, limit in zip(answers_of(shape.profile), (target.epsilon, target.log_delta), most, strict=True):
        try:
            upper = answer(asked, row)[1]
        except (ArithmeticError, ValueError):  # columns have no answer
            continue
        if limit < upper < math.inf:
            return False
    return True
