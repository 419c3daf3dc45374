"""Evaluate delta and epsilon of array queries by compiled functions (C24).

The delta at the epsilon that ``epsilons`` returns is at most the target delta, and a result of ``sigmas`` meets both
its targets. Let ``U(eps)`` be the upper end of an enclosure of ``ln delta(eps)``, and ``w`` the width of the enclosure.
Let ``V(h)`` be the delta that is printed for a log delta ``h``. Then

    deltas(e)   = V(U(c) + 2 w), where c is e rounded down to thirteen digits,
    epsilons(d) = a number c of thirteen digits with U(c) + 6 w <= ln d,

where both sums are rounded up to a multiple of 2^-36.

In this module a row is the tuple of the parameters of a profile, followed by the sampling rate.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from privproj.accounting.kernel_rows import row_function
from privproj.accounting.phase import Phase
from privproj.numerics.interval import (
    FUNCTION_RELATIVE_ERROR,
    LOG_DELTA_STEP,
    RELATIVE_ERROR_PER_NAT,
    digits_above,
    digits_below,
    rounded_log_delta,
)
from privproj.numerics.root_finding import with_globals
from privproj.profiles.conversion import is_within
from privproj.profiles.privacy_profile import Curve, Kernel, ProfileKernels, amplified_epsilon
from privproj.targets import FullTarget

# soundness: widths of an enclosure by which deltas exceed its upper end; for epsilons three times as many. The widths
# of the scalar and of the array enclosure of a query must be within a factor of 1.5 of each other.
WIDTHS_ABOVE = 2.0

# soundness: relative error of the log of a printed delta, with a margin
LOG_ROUNDING = 4e-15

MOST_TRIES = 60  # steps before a row is evaluated by the scalar query

# soundness: relative error of the epsilon of the unsampled release, a dozen roundings
AMPLIFIED_RTOL = 4e-15

LOG_DELTA: Any = None  # the kernel of the profile; set by :func:`answers_of`

ROOT: Any = None  # the kernel of the approximate inverse of the profile; set by :func:`answers_of`


def _ends(eps: float, row: Sequence[float], widths: float) -> tuple[float, float]:
    """Return bounds of ``ln delta(eps)``, the upper one raised by ``widths`` times their distance.

    ``row`` has the parameters of the profile and the sampling rate. The bounds are infinite if delta cannot be
    computed.
    """
    rate, shift, most = row[-1], 0.0, 0.0
    if rate < 1.0:
        # ln q + ln delta_0(ln(1 + (e^eps - 1)/q)), as in PrivacyProfile.sampled (C17).
        inner, shift = amplified_epsilon(eps, rate), math.log(rate)
        lower = LOG_DELTA(inner * (1.0 + AMPLIFIED_RTOL), row)[0] + shift - 1e-14
        upper = LOG_DELTA(inner * (1.0 - AMPLIFIED_RTOL), row)[1] + shift + 1e-14
        # delta <= q, for which the scalar query has ln q + 1e-15
        most = shift + 1e-14
    else:
        lower, upper = LOG_DELTA(eps, row)
    if not -math.inf < lower <= upper < math.inf:
        return -math.inf, math.inf
    upper = min(upper, 0.0)
    return lower, min(upper + widths * (upper - lower), most)


def delta_of_row(eps: float, row: Sequence[float]) -> tuple[float, float]:
    """Return a lower bound and a rounded upper bound of ``ln delta(eps)``.

    ``row`` has the parameters of the profile and the sampling rate. The upper bound is ``inf`` if delta cannot be
    computed.
    """
    cut = digits_below(eps)
    lower, upper = _ends(cut, row, WIDTHS_ABOVE)
    if upper < math.inf:
        upper = min(rounded_log_delta(upper), 0.0)
    return lower if cut == eps else _ends(eps, row, 0.0)[0], upper


def _root(log_delta: float, row: Sequence[float]) -> float:
    """Return an approximate epsilon for a log delta; the caller must evaluate delta there."""
    rate = row[-1]
    if not rate < 1.0:
        return ROOT(log_delta, row)[0]
    inner = ROOT(min(log_delta - math.log(rate), 0.0), row)[0]
    # ln(1 + q (e^inner - 1)), the inverse of amplified_epsilon, without overflow
    if inner < 30.0:
        return math.log1p(rate * math.expm1(inner))
    return inner + math.log(rate + (1.0 - rate) * math.exp(-inner))


def epsilon_of_row(log_delta: float, row: Sequence[float]) -> tuple[float, float]:
    """Return ``(gap, eps)`` such that ``ln delta(eps) - log_delta <= gap <= 0``.

    ``row`` has the parameters of the profile and the sampling rate. The result is ``(inf, inf)`` if no epsilon is
    found.
    """
    # aim below the target by more than the margin
    width = FUNCTION_RELATIVE_ERROR + RELATIVE_ERROR_PER_NAT * abs(log_delta)
    goal = log_delta - LOG_DELTA_STEP - 8.0 * WIDTHS_ABOVE * width
    for _ in range(MOST_TRIES):
        eps = digits_above(_root(goal, row))
        if not eps < math.inf:
            break
        upper = _ends(eps, row, 3.0 * WIDTHS_ABOVE)[1]
        if upper == math.inf:
            break
        # e^h is printed rounded up, which changes its log
        missing = rounded_log_delta(upper) - log_delta + LOG_ROUNDING * (1.0 - log_delta)
        if missing <= 0.0:
            return missing, eps
        goal -= 2.0 * missing
    return math.inf, math.inf


@lru_cache(maxsize=64)
def answers_of(profile: ProfileKernels) -> tuple[Kernel, Kernel]:
    """Return the compiled functions that evaluate delta and epsilon of a privacy profile."""
    ends, root = with_globals(_ends, LOG_DELTA=profile.log_delta), with_globals(_root, ROOT=profile.root)
    return with_globals(delta_of_row, _ends=ends), with_globals(epsilon_of_row, _ends=ends, _root=root)


class RowShape(NamedTuple):
    """The common profile and curve of rows that differ only in noise and target."""

    profile: ProfileKernels  # profile of the rows

    row_at: Callable[[Any], tuple[Any, ...]]  # maps a noise multiplier, or an array of them, to the row

    curve: Curve  # curve of one of the rows


def shape_of(phase: Phase, curve: Curve | None = None) -> RowShape | None:
    """Return the common profile and curve of all rows that differ from a phase only in noise.

    The result is None if no compiled function evaluates the bound of the phase.
    """
    run, bound, kernel_row = phase.run, phase.bound, row_function(phase.bound)
    if kernel_row is None or max(run.steps, run.group_size) > 1 or run.max_batch_size is not None:
        return None
    if run.discretization is not None or run.tau is not None or run.scheme.is_shuffled or run.allocates:
        return None
    if not bound.guarantees(phase.mechanism):
        return None
    seen, run = phase.for_relation()
    profile_and_row = kernel_row(seen, 1.0)
    if profile_and_row is None:
        return None

    def row_at(noise: Any) -> tuple[Any, ...]:
        at_noise = kernel_row(seen, 1.0 / noise)
        assert at_noise is not None
        return *at_noise[1], run.sampling_rate

    return RowShape(profile_and_row[0], row_at, phase.curve() if curve is None else curve)


def meets_in_columns(phase: Phase, target: FullTarget, curve: Curve) -> bool:
    """Return whether array queries at the phase's noise multiplier meet the target (C24).

    The result is also True if no compiled function can evaluate these queries.
    """
    shape = shape_of(phase, curve)
    if shape is None:
        return True
    row, (delta_of, epsilon_of) = shape.row_at(phase.mechanism.noise_multiplier), answers_of(shape.profile)
    # A kernel without a value does not contradict the scalar query.
    with suppress(ArithmeticError, ValueError):
        upper = delta_of(target.epsilon, row)[1]
        if upper < math.inf and not is_within(target, upper):
            return False
    with suppress(ArithmeticError, ValueError):
        return not target.epsilon < epsilon_of(target.log_delta, row)[1] < math.inf
    return True
