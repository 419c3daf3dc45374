"""Rows of columns: what is asked of them as arrays, and the answers of the kernels, one walk over the rows of a shape.

Rows that differ in their noise and their target alone are one *shape*: one question is put and checked for all of them,
as nothing that a bound with kernels says besides depends on the noise. What a row answers, and with which margins, is
said in :mod:`privproj.accounting.column_kernels`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privproj.accounting.column_kernels import MOST_TRIES, RowShape, answers_of, shape_of
from privproj.accounting.phase import Phase
from privproj.curves.columns import Kernel
from privproj.curves.inversion import LEAST_LOG_VALUE
from privproj.errors import PrivprojError
from privproj.numerics.arrays import Array
from privproj.numerics.compiled import over_rows
from privproj.numerics.enclosure import NEXT_UP_RELATIVE_STEP
from privproj.result import Side
from privproj.runs.targets import RISKS
from privproj.validation import LARGEST_EPSILON, LARGEST_NOISE, SMALLEST_NOISE

Places = NDArray[np.intp]
"""Numbers of rows."""

Truths = NDArray[np.bool_]
"""True or false for each row."""

CALIBRATION_STEP = 2.0**-34
"""How far below its target the epsilon of a noise multiplier is, relative: more than two arithmetics differ (C24).
Soundness."""

FIRST_STEP_DOWN = 2.0**-33
"""First relative step of the search for a lower end. Speed only."""

ROW_WEIGHTS = {"delta": 0.2, "epsilon": 1.0, "sigma": 8.0}
"""What a row costs, over what that of an epsilon costs. Speed only."""


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
    """Ask the rows that have kernels; how one is answered does not depend on the others.

    ``others`` are the columns of what differs between rows besides noise and target. ``phase_at`` puts the question of
    the row of this number, and checks it; what it refuses is not read.
    """
    size, quantity = len(asked.eps), asked.quantity
    found = Reading(np.full(size, math.inf), asked.log10_deltas.copy(), np.full(size, -1, np.intp))
    for where in _alike(asked, others):
        noises, eps, log_deltas = asked.noises[where], asked.eps[where], asked.log_deltas[where]
        try:
            phase = phase_at(int(where[0]))
            at_noise = phase.with_mechanism(noise_multiplier=float(noises[0])) if quantity == "sigma" else phase
            shape = shape_of(at_noise)
        except (PrivprojError, ArithmeticError, ValueError):
            continue
        if shape is None:
            continue
        rows = _Rows(shape, threads)
        if quantity == "delta":
            lower, points = rows.deltas(noises, eps)
            known = points < math.inf
            points = np.where(known, points, 0.0)
            # e^h rounded up; what numpy's exp may miss is far within the widths by which h lies above
            value = np.exp(np.maximum(points, LEAST_LOG_VALUE))
            value = np.minimum(1.0, value + NEXT_UP_RELATIVE_STEP * value)
            lower = np.where(lower > LEAST_LOG_VALUE, np.exp(lower), 0.0)
            find_lower = partial(np.asarray, lower)
            # h / ln 10 rounded up, as log10_value has it
            found.log10_delta[where] = np.minimum(0.0, points / math.log(10.0) + 8e-16 * np.abs(points))
        else:
            if quantity == "epsilon":
                value = rows.epsilons(noises, log_deltas)
                find_lower = partial(_lower_ends, rows, value, log_deltas, noises=noises)
            else:
                value = _least_noises(rows, noises, eps, log_deltas)
                find_lower = partial(_lower_ends, rows, value, log_deltas, eps=eps)
            known = value < math.inf
        found.value[where] = value
        found.lower_ends.append((where, find_lower))
        found.shape[where] = np.where(known, len(found.phases), -1)
        found.phases.append(phase)
        found.sides.append(phase.side(shape.curve))
    return found


def _alike(asked: Asked, others: Sequence[Sequence[Any]]) -> Iterator[Places]:
    """The places of rows that differ in noise and target alone, of those that may be read together."""
    places = np.flatnonzero(asked.fine)
    groups: dict[Any, Any] = {}
    if others:
        for i, key in zip(places.tolist(), compress(zip(*others, strict=True), asked.fine), strict=True):
            groups.setdefault(key, []).append(i)
    else:
        groups[()] = places
    for where in groups.values():
        # So many rows in memory together, which a cache holds. Speed only.
        yield from (np.asarray(where[i : i + 2**15]) for i in range(0, len(where), 2**15))


@dataclass(frozen=True)
class _Rows:
    """The kernels of a shape, run over arrays of noise multipliers and targets."""

    shape: RowShape
    threads: int

    def _run(self, kernel: Kernel, noises: Array, asked: Array) -> tuple[Array, Array]:
        """Both values of the kernel for every row."""
        row = self.shape.row_at(noises)
        laws = np.empty((len(noises), len(row)))
        for place, entry in enumerate(row):
            laws[:, place] = entry
        return over_rows(kernel, asked, laws, self.threads, self.shape.profile.weight)

    def deltas(self, noises: Array, eps: Array) -> tuple[Array, Array]:
        """A lower end of ``ln delta`` of every row, and the point that is answered; ``inf`` where none is known."""
        return self._run(answers_of(self.shape.profile)[0], noises, eps)

    def epsilons(self, noises: Array, log_deltas: Array) -> Array:
        """The epsilon of every row, ``inf`` where columns have no answer."""
        found = self._run(answers_of(self.shape.profile)[1], noises, log_deltas)[1]
        return np.where(found < math.inf, found, math.inf)


def _lower_ends(
    rows: _Rows, value: Array, log_deltas: Array, *, noises: Array | None = None, eps: Array | None = None
) -> Array:
    """Below each epsilon (at its noise) or noise (at its epsilon) the first number whose delta is above the target."""

    def is_above(where: Places, x: Array) -> Any:
        at = (x if noises is None else noises[where]), (x if eps is None else eps[where])
        return rows.deltas(*at)[0] > log_deltas[where]

    start = np.where(value < math.inf, value * (1.0 - FIRST_STEP_DOWN), 0.0)
    return _moved_until(is_above, start, -8.0 * FIRST_STEP_DOWN, 0.0)


def _moved_until(holds: Callable[[Places, Array], Any], start: Array, step: float, otherwise: float) -> Array:
    """Numbers moved by a relative ``step``, then by ever larger ones, until each was tried and ``holds``."""
    found = start.copy()
    waiting = np.flatnonzero((found > 0.0) & (found < math.inf))
    while waiting.size and abs(step) < 1.0:
        waiting = waiting[~holds(waiting, found[waiting])]
        found[waiting] *= 1.0 + step
        step *= 4.0
    found[waiting] = otherwise
    return found


def _least_noises(rows: _Rows, start: Array, eps: Array, log_deltas: Array) -> Array:
    """Nearly the least noise multipliers that meet each target, ``inf`` where none is found.

    They are sought by secants of ``ln epsilon`` over ``ln z`` in a bracket. At the end each is asked for its epsilon as
    a user would: where that is within the target, so is the delta there (C24).
    """
    most = eps * (1.0 - CALIBRATION_STEP)

    def excess(where: Places, noises: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(rows.epsilons(noises, log_deltas[where])) - np.log(most[where]) + CALIBRATION_STEP

    def is_met(where: Places, noises: Array) -> Any:
        inside = noises <= LARGEST_NOISE
        return inside & (rows.epsilons(np.where(inside, noises, 1.0), log_deltas[where]) <= most[where])

    z = np.clip(start, SMALLEST_NOISE, LARGEST_NOISE)
    low, high = np.full(z.size, SMALLEST_NOISE), np.full(z.size, LARGEST_NOISE)
    last, at_last, fall = z.copy(), np.full(z.size, math.nan), np.ones(z.size)
    waiting = np.arange(z.size)
    for _ in range(MOST_TRIES):
        x, value = z[waiting], excess(waiting, z[waiting])
        low[waiting], high[waiting] = np.where(value > 0.0, (x, high[waiting]), (low[waiting], x))
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (at_last[waiting] - value) / np.log(x / last[waiting])
        fall[waiting] = np.where(np.isfinite(slope) & (slope > 0.0), np.clip(slope, 0.1, 1e6), fall[waiting])
        last[waiting], at_last[waiting] = x, value
        step = np.clip(value / fall[waiting], -1.0, 1.0)
        moved, a, b = x * np.exp(step), low[waiting], high[waiting]
        z[waiting] = np.where((a < moved) & (moved < b), moved, np.sqrt(a) * np.sqrt(b))
        waiting = waiting[(np.abs(step) > CALIBRATION_STEP) & (b - a > CALIBRATION_STEP * b)]
        if not waiting.size:
            break
    return _moved_until(is_met, z, CALIBRATION_STEP, math.inf)
