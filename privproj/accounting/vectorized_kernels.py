"""Columns as kernels: what one row answers, and the margins by which all doors agree (C24).

What ``epsilons`` answers at ``d``, asked back as ``delta`` or ``deltas``, gives no more than ``d``; and ``sigmas``
keeps to both its targets when it is asked back (C24, "Columns"). With ``w`` the width of an enclosure,

    deltas(e)   = value(U(c) + 2 w)  where c is the number of thirteen digits up to e,
    epsilons(d) = c                  of thirteen digits, where U(c) + 6 w <= ln d was evaluated,

both sums moved up to a multiple of 2^-36.

A row is that of the law, and after it the sampling rate.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from privproj.accounting.phase import Phase
from privproj.numerics.interval import (
    ANSWER_STEP,
    FUNCTION_RELATIVE_ERROR,
    RELATIVE_ERROR_PER_NAT,
    digits_above,
    digits_below,
    rounded_log_delta,
)
from privproj.numerics.root_finding import with_globals
from privproj.profiles.conversion import is_within
from privproj.profiles.privacy_profile import Curve, Kernel, KernelColumns, amplified_epsilon
from privproj.targets import FullTarget

WIDTHS_ABOVE = 2.0
"""How many widths of an enclosure a delta of columns lies above its upper end; for an epsilon it is three times that.

It rests on the two widths of one question, scalar and in columns, being within a factor of 1.5 of each other.
Soundness.
"""

LOG_ROUNDING = 4e-15
"""How far, relative, the log of a printed delta may be from the log that it stands for, with room. Soundness."""

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
    rate, shift, most = row[-1], 0.0, 0.0
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


def delta_of_row(eps: float, row: Sequence[float]) -> tuple[float, float]:
    """A lower end of ``ln delta``, and the log that is answered; ``inf`` where none is known."""
    cut = digits_below(eps)
    lower, upper = _ends(cut, row, WIDTHS_ABOVE)
    if upper < math.inf:
        upper = min(rounded_log_delta(upper), 0.0)
    return lower if cut == eps else _ends(eps, row, 0.0)[0], upper


def _root(log_delta: float, row: Sequence[float]) -> float:
    """Nearly the epsilon at this log delta; what it gives must be evaluated."""
    rate = row[-1]
    if not rate < 1.0:
        return ROOT(log_delta, row)[0]
    inner = ROOT(min(log_delta - math.log(rate), 0.0), row)[0]
    # ln(1 + q (e^inner - 1)), the inverse of amplified_epsilon, without overflow
    if inner < 30.0:
        return math.log1p(rate * math.expm1(inner))
    return inner + math.log(rate + (1.0 - rate) * math.exp(-inner))


def epsilon_of_row(log_delta: float, row: Sequence[float]) -> tuple[float, float]:
    """How far what is raised of the answer is above this log delta, at most 0, and the answer; ``inf`` for none."""
    # Below it by more than what is raised.
    width = FUNCTION_RELATIVE_ERROR + RELATIVE_ERROR_PER_NAT * abs(log_delta)
    goal = log_delta - ANSWER_STEP - 8.0 * WIDTHS_ABOVE * width
    for _ in range(MOST_TRIES):
        eps = digits_above(_root(goal, row))
        if not eps < math.inf:
            break
        upper = _ends(eps, row, 3.0 * WIDTHS_ABOVE)[1]
        if upper == math.inf:
            break
        # e^h is printed rounded up, and its log may be off by more.
        missing = rounded_log_delta(upper) - log_delta + LOG_ROUNDING * (1.0 - log_delta)
        if missing <= 0.0:
            return missing, eps
        goal -= 2.0 * missing
    return math.inf, math.inf


@lru_cache(maxsize=64)
def answers_of(profile: KernelColumns) -> tuple[Kernel, Kernel]:
    """The two answers, of a delta and of an epsilon, over a profile."""
    ends, root = with_globals(_ends, LOG_DELTA=profile.log_delta), with_globals(_root, ROOT=profile.root)
    return with_globals(delta_of_row, _ends=ends), with_globals(epsilon_of_row, _ends=ends, _root=root)


class RowShape(NamedTuple):
    """Rows that differ in noise and target alone."""

    profile: KernelColumns
    """What answers them."""

    row_at: Callable[[Any], tuple[Any, ...]]
    """The row at a noise multiplier; its entries may be arrays where that is one."""

    curve: Curve
    """The curve of one of them."""


def shape_of(phase: Phase, curve: Curve | None = None) -> RowShape | None:
    """The shape of the rows that are like this phase, whose curve may be known; None where columns say nothing."""
    run, bound, law_row = phase.run, phase.bound, phase.bound.law_row
    if law_row is None or max(run.steps, run.group_size) > 1 or run.max_batch_size is not None:
        return None
    if run.discretization is not None or run.scheme.is_shuffled or run.allocates:
        return None
    if not bound.guarantees(phase.mechanism):
        return None
    seen, run = phase.for_relation()
    profile_and_row = law_row(seen, 1.0)
    if profile_and_row is None:
        return None

    def row_at(noise: Any) -> tuple[Any, ...]:
        at_noise = law_row(seen, 1.0 / noise)
        assert at_noise is not None
        return *at_noise[1], run.sampling_rate

    return RowShape(profile_and_row[0], row_at, phase.curve() if curve is None else curve)


def meets_in_columns(phase: Phase, target: FullTarget, curve: Curve) -> bool:
    """True where epsilon and delta of the phase, if columns answer them, are no more than the target's (C24)."""
    shape = shape_of(phase, curve)
    if shape is None:
        return True
    row, (delta_of, epsilon_of) = shape.row_at(phase.mechanism.noise_multiplier), answers_of(shape.profile)
    # Where columns have no answer, none contradicts.
    with suppress(ArithmeticError, ValueError):
        upper = delta_of(target.epsilon, row)[1]
        if upper < math.inf and not is_within(target, upper):
            return False
    with suppress(ArithmeticError, ValueError):
        return not target.epsilon < epsilon_of(target.log_delta, row)[1] < math.inf
    return True
