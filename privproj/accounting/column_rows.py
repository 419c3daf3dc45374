"""Rows of columns: how many questions with one profile are read together, and margins that make doors agree (C24).

What ``epsilons`` answers at ``d``, asked back as ``delta`` or ``deltas``, gives no more than ``d``; and ``sigmas``
keeps to both its targets when it is asked back (C24, "Columns"). With ``h(d)`` the point of the lattice below ``ln d``,
``w`` the width of an enclosure, ``s`` the spacing of the lattice and ``e'`` a few roundings below ``e``,

    deltas(e)   = value(h)  where h is the first point of the lattice with U(e) + 16 w <= h,
    epsilons(d) = e         where U(e') + 32 w + s <= h(d) - s was evaluated.

Rows that differ in their noise and their target alone are one *shape*: one question is put and checked for all of them,
as nothing that a bound with kernels says besides depends on the noise.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privproj.accounting.phase import Phase
from privproj.curves.columns import KernelColumns
from privproj.curves.inversion import (
    COARSE_LATTICE_FACTOR,
    DEFAULT_SPACING,
    LARGE_LOG_DELTA,
    LEAST_LOG_VALUE,
    floor_log_delta,
)
from privproj.curves.profile import INVERSE_RTOL, Curve, PrivacyProfile
from privproj.errors import PrivprojError
from privproj.mechanisms import Mechanism
from privproj.numerics.arrays import Array
from privproj.numerics.enclosure import FUNCTION_RELATIVE_ERROR, NEXT_UP_RELATIVE_STEP, RELATIVE_ERROR_PER_NAT
from privproj.result import Side
from privproj.runs.targets import RISKS, FullTarget
from privproj.validation import LARGEST_EPSILON, LARGEST_NOISE, SMALLEST_NOISE

Places = NDArray[np.intp]
"""Numbers of rows."""

Truths = NDArray[np.bool_]
"""True or false for each row."""

WIDTHS_ABOVE = 16.0
"""How many widths of an enclosure a delta of columns lies above its upper end; an epsilon has twice as many (C24).

It rests on the two widths of one question, scalar and in columns, being within a factor of 1.5 of each other.
Soundness.
"""

ROUNDINGS_BELOW = 8.0
"""How far below an epsilon its delta is looked at, in tolerances of the search for a scalar one (C24). Soundness."""

CALIBRATION_STEP = 2.0**-34
"""The same for a noise multiplier, relative: more than columns and scalars differ (C24). Soundness."""

FIRST_STEP_DOWN = 2.0**-33
"""First relative step of the search for a lower end. Speed only."""

SIGMA_RTOL = 1e-11
"""Relative width of the bracket in which a noise multiplier is found. Speed only."""

MOST_TRIES = 60
"""How often a row is looked at anew before it is left to the scalar search. Speed only."""

ROW_WEIGHTS = {"delta": 0.2, "epsilon": 1.0, "sigma": 4.0}
"""What a row costs, over what that of an epsilon costs. Speed only."""

AMPLIFIED_RTOL = 4e-15
"""Relative error allowed to the epsilon at which an unsampled release is asked: a dozen roundings. Soundness."""


# --- what is asked ------------------------------------------------------------------------------------


@dataclass
class Asked:
    """Rows of one quantity, as arrays: their targets and their noise.

    ``fine`` is False where a row has to be put as a question of its own, as whatever is wrong with it is.
    """

    quantity: str
    eps: Array
    deltas: Array
    """0 where a delta is given by a logarithm that no double has."""
    log_deltas: Array
    log10_deltas: Array
    noises: Array
    """The noise multipliers; for sigma where the search for them begins."""
    fine: Truths


def asked_rows(quantity: str, given: Mapping[str, Any], size: int) -> Asked:
    """Rows of delta, epsilon or sigma from targets and noise multipliers, each a value for all rows or one for each."""
    zeros = np.zeros(size)
    found = Asked(quantity, zeros, zeros, zeros, zeros, np.ones(size), np.ones(size, bool))

    def read(name: str, low: float, high: float) -> Array:
        numbers = _numbers(given.get(name), size)
        inside = (low <= numbers) & (numbers <= high)
        found.fine &= inside
        return np.where(inside, numbers, high)

    if any(given.get(name) is not None for name in RISKS):
        found.fine[:] = False
    if quantity != "epsilon":
        found.eps = read("epsilon", 0.0 if quantity == "delta" else 5e-324, LARGEST_EPSILON)
    if quantity != "delta":
        by_log = given.get("log10_delta") is not None
        if by_log == (given.get("delta") is not None):
            found.fine[:] = False
        elif by_log:
            found.log10_deltas = read("log10_delta", -1e6, -1e-300)
            found.log_deltas = found.log10_deltas * math.log(10.0)
            found.deltas = np.where(found.log10_deltas > -300.0, 10.0**found.log10_deltas, 0.0)
        else:
            found.deltas = read("delta", 5e-324, 1.0 - 2.0**-53)
            found.log_deltas, found.log10_deltas = _each(math.log, found.deltas), _each(math.log10, found.deltas)
    if quantity != "sigma":
        found.noises = read("noise_multiplier", SMALLEST_NOISE, LARGEST_NOISE)
    else:
        # As classical_noise has it.
        found.noises = np.minimum(np.sqrt(2.0 * math.log(1.25) - 2.0 * found.log_deltas) / found.eps, LARGEST_NOISE)
    return found


def _numbers(value: Any, size: int) -> Array:
    """A value for all rows or one for each, as an array; nan for what holds anything but numbers."""
    array = np.asarray(value)
    return np.broadcast_to(array.astype(float) if array.dtype.kind in "iuf" else math.nan, size)


def _each(function: Callable[[float], float], numbers: Array) -> Array:
    """The function of every number, as ``math`` rounds it."""
    return np.fromiter(map(function, numbers.tolist()), float, len(numbers))


# --- what is read together ----------------------------------------------------------------------------


@dataclass
class Reading:
    """What columns say of some rows.

    ``shape`` is the number of the shape of a row in ``phases`` and ``sides``, and -1 where columns say nothing: then
    the row is asked alone.
    """

    value: Array
    log10_delta: Array
    shape: Places
    lower_ends: list[tuple[Places, Callable[[], Array]]] = field(default_factory=list)
    """What finds the lower ends of some rows."""
    phases: list[Phase] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)

    @cached_property
    def lower(self) -> Array:
        """Lower ends; 0 where none is known. They are found when they are first read."""
        found = np.zeros(len(self.value))
        for where, find in self.lower_ends:
            found[where] = find()
        return found

    @property
    def small(self) -> Truths:
        """True for deltas that are told by their logarithm alone, which are above the truth."""
        return self.log10_delta <= LEAST_LOG_VALUE / math.log(10.0)


def read_columns(
    asked: Asked,
    others: Sequence[Sequence[Any]],
    phase_at: Callable[[int], Phase],
    threads: int = 1,
) -> Reading:
    """Ask rows, those with a common profile over columns together; how one is answered does not depend on the others.

    ``others`` are the columns of what differs between rows besides noise and target. ``phase_at`` puts the question of
    the row of this number, and checks it; what it refuses is not read.
    """
    size, quantity = len(asked.eps), asked.quantity
    found = Reading(np.full(size, math.inf), asked.log10_deltas.copy(), np.full(size, -1, np.intp))
    for rows in _rows_by_profile(_shapes_of(asked, others, phase_at), asked, threads):
        part, eps, log_deltas = rows.where, asked.eps[rows.where], asked.log_deltas[rows.where]
        if quantity == "delta":
            points, lower = _read_log_deltas(rows, eps)
            known = points < math.inf
            points = np.where(known, points, 0.0)
            # e^h rounded up; what numpy's exp may miss is far within the widths by which h lies above
            value = np.exp(np.maximum(points, LEAST_LOG_VALUE))
            value = np.minimum(1.0, value + NEXT_UP_RELATIVE_STEP * value)
            lower = np.where(lower > LEAST_LOG_VALUE, np.exp(lower), 0.0)
            find_lower = partial(np.asarray, lower)
            # h / ln 10 rounded up, as log10_value has it
            found.log10_delta[part] = np.minimum(0.0, points / math.log(10.0) + 8e-16 * np.abs(points))
        else:
            if quantity == "epsilon":
                value, find_lower = _read_epsilons(rows, log_deltas)
            else:
                value, find_lower = _read_sigmas(rows, asked.noises[part], eps, log_deltas)
            known = value < math.inf
        found.value[part] = value
        found.lower_ends.append((part, find_lower))
        found.shape[part] = np.where(known, rows.shape + len(found.phases), -1)
        found.phases += [shape.phase for shape in rows.shapes]
        found.sides += [shape.phase.side(rows.curve) for shape in rows.shapes]
    return found


@dataclass(frozen=True)
class _Shape:
    """Rows that differ in noise and target alone: their phase, and what neighbours see of it."""

    phase: Phase
    seen: Mechanism
    rate: float
    profile: KernelColumns
    where: Places

    def laws(self, noises: Array) -> Array:
        """The rows of the law at these noise multipliers."""
        found = self.phase.bound.columns and self.phase.bound.columns(self.seen, 1.0 / noises)
        assert found is not None
        laws = np.empty((len(noises), len(found[1])))
        for place, entry in enumerate(found[1]):
            laws[:, place] = entry
        return laws


def _shapes_of(asked: Asked, others: Sequence[Sequence[Any]], phase_at: Callable[[int], Phase]) -> Iterator[_Shape]:
    """The shapes of these rows that have a profile over columns."""
    places = np.flatnonzero(asked.fine)
    groups: dict[Any, Any] = {}
    if others:
        for i, key in zip(places.tolist(), compress(zip(*others, strict=True), asked.fine), strict=True):
            groups.setdefault(key, []).append(i)
    elif places.size:
        groups[()] = places
    for where in groups.values():
        try:
            phase = phase_at(int(where[0]))
            found = _seen_in_columns(phase)
        except (PrivprojError, ArithmeticError, ValueError):
            continue
        if found is not None:
            yield _Shape(phase, *found, np.asarray(where))


def _seen_in_columns(phase: Phase) -> tuple[Mechanism, float, KernelColumns] | None:
    """What neighbours see of a phase: mechanism, sampling rate and profile over columns; None where it has none."""
    run, bound = phase.run, phase.bound
    if bound.columns is None or max(run.steps, run.group_size) > 1 or run.max_batch_size is not None:
        return None
    if (run.discretization, run.composer) != (None, "privproj") or run.scheme.is_shuffled or run.allocates:
        return None
    if not bound.guarantees(phase.mechanism):
        return None
    seen, run = phase.seen()
    found = bound.columns(seen, 1.0)
    return None if found is None else (seen, run.sampling_rate, found[0])


def _rows_by_profile(shapes: Iterable[_Shape], asked: Asked, threads: int) -> Iterator["_Rows"]:
    """The rows of shapes, those with one profile together, so many at a time."""
    groups: dict[Any, list[_Shape]] = {}
    for shape in shapes:
        groups.setdefault((id(shape.profile), shape.phase.bound.name, shape.rate < 1.0), []).append(shape)
    for members in groups.values():
        where = np.concatenate([shape.where for shape in members])
        noises = asked.noises[where]
        try:
            curve = members[0].phase.with_mechanism(noise_multiplier=float(noises[0])).curve()
        except PrivprojError:
            continue
        # a bound that has its own form of sampling is not the sampled profile of one release
        if members[0].rate == 1.0 or isinstance(curve, PrivacyProfile):
            of = np.repeat(np.arange(len(members)), [len(shape.where) for shape in members])
            # Rows in memory together, which a cache holds. Speed only.
            for start in range(0, len(where), 2**15):
                some = slice(start, start + 2**15)
                first, last = of[some][0], of[some][-1] + 1
                own, shapes = of[some] - first, members[first:last]
                yield _Rows(shapes, curve, threads, where[some], own, _laws_of(shapes, own, noises[some]))


def _laws_of(shapes: Sequence[_Shape], of: Places, noises: Array) -> Array:
    """The rows of the law of some rows of these shapes, at these noise multipliers."""
    if len(shapes) == 1:
        return shapes[0].laws(noises)
    order = np.argsort(of, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(of[order])) + 1)
    laws = np.concatenate([shapes[int(of[part[0]])].laws(noises[part]) for part in parts])
    found = np.empty_like(laws)
    found[order] = laws
    return found


@dataclass
class _Rows:
    """Rows with one profile over columns: the rows of its law, their shapes, and a scalar curve of one of them."""

    shapes: Sequence[_Shape]
    curve: Curve
    threads: int
    where: Places
    """Which rows these are of all that are asked."""
    shape: Places
    """The number of the shape of each."""
    laws: Array

    @cached_property
    def profile(self) -> KernelColumns:
        """The profile of all of them."""
        return self.shapes[0].profile

    @cached_property
    def rates(self) -> Array:
        """The sampling rate of each row; they are all 1, or none is."""
        return np.array([shape.rate for shape in self.shapes])[self.shape]

    @cached_property
    def log_rates(self) -> Array:
        """The logarithm of that rate, as ``math`` rounds it."""
        return np.array([math.log(shape.rate) for shape in self.shapes])[self.shape]

    @property
    def _sampled(self) -> bool:
        """True if the rows are on sampled batches."""
        return self.shapes[0].rate < 1.0

    def take(self, where: Places, noises: Array | None = None) -> "_Rows":
        """Some of the rows, as they are or at other noise multipliers."""
        shape = self.shape[where]
        laws = self.laws[where] if noises is None else _laws_of(self.shapes, shape, noises)
        return _Rows(self.shapes, self.curve, self.threads, self.where[where], shape, laws)

    def log_deltas(self, eps: Array) -> tuple[Array, Array]:
        """``(lower, upper)`` of ``ln delta`` for every row; ``inf`` above where one of both ends is not known."""
        if self._sampled:
            # ln q + ln delta_0(ln(1 + (e^eps - 1)/q)), as in PrivacyProfile.sampled (C17).
            inner, shift = _amplified(eps, self.rates), self.log_rates
            lower = self.profile.log_deltas(inner * (1.0 + AMPLIFIED_RTOL), self.laws, self.threads)[0] + shift - 1e-14
            upper = self.profile.log_deltas(inner * (1.0 - AMPLIFIED_RTOL), self.laws, self.threads)[1] + shift + 1e-14
        else:
            lower, upper = self.profile.log_deltas(eps, self.laws, self.threads)
        known = np.isfinite(lower) & np.isfinite(upper)
        return np.where(known, lower, -math.inf), np.where(known, np.minimum(upper, 0.0), math.inf)

    def raised_log_deltas(self, eps: Array, widths: float) -> tuple[Array, Array]:
        """:meth:`log_deltas` with the upper ends raised by so many widths, but not above what holds at every noise."""
        lower, upper = self.log_deltas(eps)
        width = np.subtract(upper, lower, out=np.zeros_like(upper), where=upper < math.inf)
        # delta <= q, of which the scalar path says ln q + 1e-15.
        most = self.log_rates + 1e-14 if self._sampled else 0.0
        return lower, np.where(upper < math.inf, np.minimum(upper + widths * width, most), math.inf)

    def roots(self, log_deltas: Array) -> Array:
        """Nearly the epsilon of every row; what it gives must be evaluated."""
        if not self._sampled:
            return self.profile.roots(log_deltas, self.laws, self.threads)
        inner = self.profile.roots(np.minimum(log_deltas - self.log_rates, 0.0), self.laws, self.threads)
        return _reduced(inner, self.rates)


def _spacings(curve: Curve, log_deltas: Array) -> Array:
    """The spacing of the lattice of log deltas of the scalar curve, there (C24)."""
    spacing = float(getattr(curve, "inverse_spacing", DEFAULT_SPACING))
    return np.where(log_deltas < -LARGE_LOG_DELTA, spacing * COARSE_LATTICE_FACTOR, spacing)


def _points(curve: Curve, log_deltas: Array) -> Array:
    """A point of the lattice whose printed delta is below ``e^log_delta``: the last but one below."""
    spacing = _spacings(curve, log_deltas)
    return np.floor(log_deltas / spacing) * spacing - spacing


def _goals(curve: Curve, points: Array) -> Array:
    """What the epsilons of columns are first sought for: below these points by more than what is raised."""
    margin = 8.0 * WIDTHS_ABOVE * (FUNCTION_RELATIVE_ERROR + RELATIVE_ERROR_PER_NAT * np.abs(points))
    return points - margin - _spacings(curve, points)


def goal_in_columns(curve: Curve, log_delta: float) -> float:
    """What the epsilon of a column is first sought for; below it one release is calibrated."""
    return float(_goals(curve, _points(curve, np.array(log_delta))))


def _amplified(eps: Array, rates: Array) -> Array:
    """:func:`privproj.curves.profile.amplified_epsilon` of every row, right to a few roundings."""
    # ln(1 + (e^eps - 1)/q), without overflow
    far = eps - np.log(rates) + np.log1p((rates - 1.0) * np.exp(-eps))
    return np.where(eps < 30.0, np.log1p(np.expm1(np.minimum(eps, 30.0)) / rates), far)


def _reduced(inner: Array, rates: Array) -> Array:
    """``ln(1 + q (e^inner - 1))`` of every row: the inverse of :func:`_amplified`."""
    near = np.clip(inner, 0.0, 30.0)
    far = np.maximum(inner, 30.0) + np.log(rates + (1.0 - rates) * np.exp(-np.maximum(inner, 30.0)))
    return np.where(inner < 30.0, np.log1p(rates * np.expm1(near)), far)


def meets_in_columns(phase: Phase, target: FullTarget) -> bool:
    """True where epsilon and delta of the phase, if columns answer them, are no more than the target's (C24)."""
    given = {"epsilon": target.epsilon, "noise_multiplier": phase.mechanism.noise_multiplier}
    asked = asked_rows("delta", given, 1)
    for rows in _rows_by_profile(_shapes_of(asked, (), lambda row: phase), asked, threads=1):
        goals = (target.epsilon, target.log_delta, floor_log_delta(rows.curve, target))
        return bool(_are_met(rows, *(np.array([goal]) for goal in goals))[0])
    return True


def _are_met(rows: _Rows, eps: Array, log_deltas: Array, most: Array) -> Any:
    """True for each row whose answers, asked back in columns, are at most its epsilon and a point of the lattice."""
    found, point = _epsilons_above(rows, log_deltas), _read_log_deltas(rows, eps)[0]
    return ((found <= eps) | (found == math.inf)) & ((point <= most) | (point == math.inf))


def _read_log_deltas(rows: _Rows, eps: Array) -> tuple[Array, Array]:
    """The point of the lattice that is answered at each epsilon, ``inf`` where none is known, and a lower end."""
    lower, upper = rows.raised_log_deltas(eps, WIDTHS_ABOVE)
    spacing = _spacings(rows.curve, upper)
    points = np.ceil(upper / spacing) * spacing
    return np.where(upper < math.inf, np.minimum(points, 0.0), math.inf), lower


def _epsilons_above(rows: _Rows, log_deltas: Array) -> Array:
    """The epsilon at each log delta, ``inf`` where columns have no answer."""
    points = _points(rows.curve, log_deltas)
    goals = _goals(rows.curve, points)
    value = rows.roots(goals).copy()
    before = 1.0 - ROUNDINGS_BELOW * float(getattr(rows.curve, "inverse_rtol", None) or INVERSE_RTOL)
    waiting = np.flatnonzero(value < math.inf)
    for _ in range(MOST_TRIES):
        if not waiting.size:
            break
        excess = _excess(rows.take(waiting), value[waiting] * before, points[waiting])
        waiting, missing = waiting[excess > 0.0], excess[excess > 0.0]
        value[waiting[missing == math.inf]] = math.inf
        waiting, missing = waiting[missing < math.inf], missing[missing < math.inf]
        goals[waiting] -= 2.0 * missing
        value[waiting] = rows.take(waiting).roots(goals[waiting]) if waiting.size else ()
    value[waiting] = math.inf
    return value


def _read_epsilons(rows: _Rows, log_deltas: Array) -> tuple[Array, Callable[[], Array]]:
    """The epsilon at each log delta, ``inf`` where columns have no answer, and what finds lower ends of the inverse."""
    value = _epsilons_above(rows, log_deltas)

    def is_above(where: Places, eps: Array) -> Any:
        return rows.take(where).log_deltas(eps)[0] > log_deltas[where]

    return value, lambda: _steps_down(np.where(value < math.inf, value, 0.0), is_above)


def _read_sigmas(rows: _Rows, start: Array, eps: Array, log_deltas: Array) -> tuple[Array, Callable[[], Array]]:
    """Nearly the least noise multipliers that meet each target, ``inf`` where none do, and what finds lower ends."""
    # The goals of the epsilons, which may be below the points by more than an epsilon needs.
    goals, before = _goals(rows.curve, _points(rows.curve, log_deltas)), eps * (1.0 - CALIBRATION_STEP)

    def excess(where: Places, noises: Array) -> Array:
        return _excess(rows.take(where, noises), before[where], goals[where])

    nearly, value = _find_crossings(excess, start)
    # The search looks at enclosures. At last it is asked back as a user would.
    points, step = _points(rows.curve, log_deltas), CALIBRATION_STEP
    waiting = np.flatnonzero(value < math.inf)
    while waiting.size and step < 1.0:
        asked = rows.take(waiting, value[waiting])
        met = _are_met(asked, eps[waiting], log_deltas[waiting], points[waiting])
        waiting = waiting[~(met & (excess(waiting, value[waiting]) <= 0.0))]
        value[waiting] *= 1.0 + step
        step *= 4.0
    value[waiting] = math.inf

    def is_above(where: Places, noises: Array) -> Any:
        return rows.take(where, noises).log_deltas(eps[where])[0] > log_deltas[where]

    return value, lambda: _steps_down(np.where(value < math.inf, nearly, 0.0), is_above)


def _excess(rows: _Rows, eps: Array, points: Array) -> Array:
    """How far ``U(e) + 32 w + s`` lies above the points; not above 0 where an answer holds at every door."""
    return rows.raised_log_deltas(eps, 2.0 * WIDTHS_ABOVE)[1] + _spacings(rows.curve, points) - points


def _steps_down(start: Array, is_above: Callable[[Places, Array], Any]) -> Array:
    """From each start the first number downwards that was tried and is above the target; 0 where none is."""
    found, step = start.copy(), FIRST_STEP_DOWN
    waiting = np.flatnonzero(found > 0.0)
    while waiting.size and step < 1.0:
        found[waiting] *= 1.0 - step
        waiting = waiting[~is_above(waiting, found[waiting])]
        step *= 8.0
    found[waiting] = 0.0
    return found


def _find_crossings(excess: Callable[[Places, Array], Array], start: Array) -> tuple[Array, Array]:
    """``(x1, x2)`` for each row: ``excess`` is positive at ``x1`` and not at ``x2``, where it was evaluated.

    ``x2`` is ``inf`` where nothing up to the largest noise multiplier will do, and ``x1`` is 0 where everything does.
    """
    x = np.clip(start, SMALLEST_NOISE, LARGEST_NOISE)
    low, high = np.zeros(x.size), np.full(x.size, math.inf)
    at_low, at_high = np.full(x.size, math.inf), np.full(x.size, -math.inf)

    def look(where: Places, x: Array) -> Any:
        value = excess(where, x)
        safe = value <= 0.0
        low[where[~safe]], at_low[where[~safe]] = x[~safe], value[~safe]
        high[where[safe]], at_high[where[safe]] = x[safe], value[safe]
        return safe

    look(np.arange(x.size), x)
    factor = 2.0
    for _ in range(MOST_TRIES):
        where = np.flatnonzero(((low == 0.0) & (high > SMALLEST_NOISE)) | ((high == math.inf) & (low < LARGEST_NOISE)))
        if not where.size:
            break
        down = high[where] < math.inf
        further = np.where(down, high[where], low[where]) * np.where(down, 1.0 / factor, factor)
        look(where, np.clip(further, SMALLEST_NOISE, LARGEST_NOISE))
        factor = min(factor**3, 1e60)
    for turn in range(MOST_TRIES):
        where = np.flatnonzero((high < math.inf) & (low > 0.0) & (high - low > SIGMA_RTOL * high))
        if not where.size:
            break
        a, b, fa, fb = low[where], high[where], at_low[where], at_high[where]
        with np.errstate(invalid="ignore"):
            share = np.where(np.isfinite(fa) & np.isfinite(fb) & (turn % 4 < 3), fa / (fa - fb), 0.5)
        edge = np.minimum(0.5, 0.4 * SIGMA_RTOL * b / (b - a))
        middle = a + np.clip(share, edge, 1.0 - edge) * (b - a)
        middle = np.where(b > 4.0 * a, np.sqrt(a) * np.sqrt(b), middle)
        safe = look(where, middle)
        # The end that stays counts half, so that the other end does not creep (Illinois).
        at_low[where[safe]] *= 0.5
        at_high[where[~safe]] *= 0.5
    return low, high
