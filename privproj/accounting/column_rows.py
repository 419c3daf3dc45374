"""Rows of columns: how many questions with one profile are read together, and margins that make doors agree (C24).

What ``epsilons`` answers at ``d``, asked back as ``delta`` or ``deltas``, gives no more than ``d``; and ``sigmas``
keeps to both its targets when it is asked back (C24, "Columns"). With ``h(d)`` the point of the lattice below ``ln d``,
``w`` the width of an enclosure, ``s`` the spacing of the lattice and ``e'`` a few roundings below ``e``,

    deltas(e)   = value(h)  where h is the first point of the lattice with U(e) + 16 w <= h,
    epsilons(d) = e         where U(e') + 32 w + s <= h(d) - s was evaluated.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privproj.accounting.first_guess import classical_noise
from privproj.accounting.phase import Phase
from privproj.curves.columns import ColumnProfile
from privproj.curves.inversion import (
    COARSE_LATTICE_FACTOR,
    DEFAULT_SPACING,
    LARGE_LOG_DELTA,
    LEAST_LOG_VALUE,
    delta_value,
    floor_log_delta,
    log10_value,
)
from privproj.curves.profile import INVERSE_RTOL, Curve, PrivacyProfile, amplified_epsilon
from privproj.errors import InvalidParameter, PrivprojError
from privproj.numerics.arrays import Array
from privproj.numerics.enclosure import FUNCTION_RELATIVE_ERROR, RELATIVE_ERROR_PER_NAT
from privproj.result import Side
from privproj.runs.targets import FullTarget
from privproj.validation import LARGEST_NOISE, SMALLEST_NOISE

Places = NDArray[np.intp]
"""Numbers of rows."""

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


@dataclass
class _ColumnReading:
    """What columns say of some phases, and of which they say nothing."""

    value: Array
    lower: Array
    log10_delta: Array
    unknown: Any
    """True where the scalar path must be asked."""
    sides: list[Side]


def read_columns(quantity: str, phases: Sequence[Phase], targets: Sequence[Any], threads: int = 1) -> _ColumnReading:
    """Ask phases that were checked, those with a common profile over columns together.

    ``quantity`` is delta, epsilon or sigma, and ``targets`` are of its type. How a row is answered does not depend on
    the others.
    """
    size = len(phases)
    found = _ColumnReading(
        np.full(size, math.inf), np.zeros(size), np.zeros(size), np.ones(size, bool), [Side.UPPER] * size
    )
    eps = np.array([0.0 if quantity == "epsilon" else target.epsilon for target in targets], float)
    log_deltas = np.array([0.0 if quantity == "delta" else target.log_delta for target in targets], float)
    if quantity != "delta":
        found.log10_delta[:] = [target.log10_delta for target in targets]
    noises = [classical_noise(target) for target in targets] if quantity == "sigma" else None
    for where, rows in _rows_by_profile(phases, noises, threads):
        part = np.array(where)
        if quantity == "delta":
            points, lower = _read_log_deltas(rows, eps[part])
            found.value[part] = [delta_value(point) if point < math.inf else 1.0 for point in points.tolist()]
            found.lower[part] = [math.exp(x) if x > LEAST_LOG_VALUE else 0.0 for x in lower.tolist()]
            found.log10_delta[part] = [log10_value(min(point, 0.0)) for point in points.tolist()]
            known = points < math.inf
        elif quantity == "epsilon":
            found.value[part], found.lower[part] = _read_epsilons(rows, log_deltas[part])
            known = found.value[part] < math.inf
        else:
            found.value[part], found.lower[part] = _read_sigmas(rows, eps[part], log_deltas[part])
            known = found.value[part] < math.inf
        found.unknown[part] = ~known
        for i in where:
            small = quantity == "delta" and found.log10_delta[i] <= LEAST_LOG_VALUE / math.log(10.0)
            found.sides[i] = Side.UPPER if small else phases[i].side(rows.curve)
    return found


@dataclass
class _Rows:
    """Phases with one profile over columns: what their kernels need, and a scalar curve of one of them."""

    profile: ColumnProfile
    laws: Array
    """A row for each, at the noise that is looked at."""
    rates: list[float]
    curve: Curve
    phases: list[Phase]
    noises: Array | None
    """Where the search for a noise multiplier begins."""
    threads: int

    def take(self, where: Places, laws: Array | None = None) -> "_Rows":
        """Some of the rows, with their laws or others."""
        kept = where.tolist()
        return _Rows(
            self.profile,
            self.laws[where] if laws is None else laws,
            [self.rates[i] for i in kept],
            self.curve,
            [self.phases[i] for i in kept],
            None,
            self.threads,
        )

    def at_noise(self, where: Places, noises: Array) -> "_Rows":
        """Some of the rows at these noise multipliers; a law that is not known there is a row of nan."""
        unknown = (math.nan,) * self.laws.shape[1]
        laws = []
        for i, noise in zip(where.tolist(), noises.tolist(), strict=True):
            found = _law_of(self.phases[i], noise)
            laws.append(found[1] if found is not None and found[0] is self.profile else unknown)
        return self.take(where, np.array(laws, float))

    def log_deltas(self, eps: Array) -> tuple[Array, Array]:
        """``(lower, upper)`` of ``ln delta`` for every row; ``inf`` above where one of both ends is not known."""
        if self._sampled():
            # ln q + ln delta_0(ln(1 + (e^eps - 1)/q)), as in PrivacyProfile.sampled (C17).
            inner = np.array([amplified_epsilon(e, q) for e, q in zip(eps.tolist(), self.rates, strict=True)])
            shift = np.array([math.log(q) for q in self.rates])
            lower = self.profile.log_deltas(inner * (1.0 + 1e-15), self.laws, self.threads)[0] + shift - 1e-15
            upper = self.profile.log_deltas(inner * (1.0 - 1e-15), self.laws, self.threads)[1] + shift + 1e-15
        else:
            lower, upper = self.profile.log_deltas(eps, self.laws, self.threads)
        known = np.isfinite(lower) & np.isfinite(upper)
        return np.where(known, lower, -math.inf), np.where(known, np.minimum(upper, 0.0), math.inf)

    def raised_log_deltas(self, eps: Array, widths: float) -> tuple[Array, Array]:
        """:meth:`log_deltas` with the upper ends raised by so many widths, but not above what holds at every noise."""
        lower, upper = self.log_deltas(eps)
        width = np.subtract(upper, lower, out=np.zeros_like(upper), where=upper < math.inf)
        # delta <= q, of which the scalar path says ln q + 1e-15.
        most = np.array([math.log(q) for q in self.rates]) + 1e-14 if self._sampled() else 0.0
        return lower, np.where(upper < math.inf, np.minimum(upper + widths * width, most), math.inf)

    def epsilons(self, log_deltas: Array) -> tuple[Array, Array]:
        """Nearly ``(lower, upper)`` of the epsilon for every row; what it gives must be evaluated."""
        if not self._sampled():
            return self.profile.epsilons(log_deltas, self.laws, self.threads)
        shift = np.array([math.log(q) for q in self.rates])
        ends = self.profile.epsilons(np.minimum(log_deltas - shift, 0.0), self.laws, self.threads)
        lower, upper = (
            np.array([_reduced_epsilon(e, q) for e, q in zip(end.tolist(), self.rates, strict=True)]) for end in ends
        )
        return lower, upper

    def _sampled(self) -> bool:
        """True if the rows are on sampled batches; they all are or none is."""
        return self.rates[0] < 1.0

    def spacings(self, log_deltas: Array) -> Array:
        """The spacing of the lattice of log deltas of the scalar curve, there (C24)."""
        spacing = float(getattr(self.curve, "inverse_spacing", DEFAULT_SPACING))
        return np.where(log_deltas < -LARGE_LOG_DELTA, spacing * COARSE_LATTICE_FACTOR, spacing)

    def goals(self, points: Array) -> Array:
        """What the epsilons of columns are first sought for: below these points by more than what is raised."""
        margin = 8.0 * WIDTHS_ABOVE * (FUNCTION_RELATIVE_ERROR + RELATIVE_ERROR_PER_NAT * np.abs(points))
        return points - margin - self.spacings(points)

    def points(self, log_deltas: Array) -> Array:
        """A point of the lattice whose printed delta is below ``e^log_delta``: the last but one below."""
        spacing = self.spacings(log_deltas)
        return np.floor(log_deltas / spacing) * spacing - spacing


def _reduced_epsilon(inner: float, rate: float) -> float:
    """``ln(1 + q (e^inner - 1))``: the inverse of :func:`privproj.curves.profile.amplified_epsilon`."""
    if not 0.0 <= inner < math.inf:
        return inner
    if inner < 30.0:
        return math.log1p(rate * math.expm1(inner))
    return max(0.0, inner + math.log(rate + (1.0 - rate) * math.exp(-inner)))


def _law_of(phase: Phase, noise: float | None = None) -> tuple[ColumnProfile, tuple[float, ...], float] | None:
    """The profile over columns of a phase, its row and its sampling rate; None where it has none."""
    run, bound = phase.run, phase.bound
    if bound.columns is None or max(run.steps, run.group_size) > 1 or run.max_batch_size is not None:
        return None
    if (run.discretization, run.composer) != (None, "privproj") or run.scheme.is_shuffled or run.allocates:
        return None
    if not bound.guarantees(phase.mechanism):
        return None
    try:
        mechanism, seen = (phase if noise is None else phase.with_mechanism(noise_multiplier=noise)).seen()
    except InvalidParameter:  # what a group sees is outside of the domain
        return None
    found = bound.columns(mechanism)
    return None if found is None else (*found, seen.sampling_rate)


def _rows_by_profile(
    phases: Sequence[Phase], noises: list[float] | None, threads: int
) -> Iterator[tuple[list[int], _Rows]]:
    """The phases that have a profile over columns, those with the same one together, and which they are."""
    groups: dict[Any, list[tuple[int, tuple[float, ...], float]]] = {}
    profiles: dict[Any, ColumnProfile] = {}
    for i, phase in enumerate(phases):
        found = _law_of(phase, None if noises is None else noises[i])
        if found is not None:
            profile, law, rate = found
            key = id(profile), phase.bound.name, len(law), rate < 1.0
            profiles[key] = profile
            groups.setdefault(key, []).append((i, law, rate))
    for key, members in groups.items():
        where, laws, rates = (list(column) for column in zip(*members, strict=True))
        first = phases[where[0]]
        try:
            curve = (first if noises is None else first.with_mechanism(noise_multiplier=noises[where[0]])).curve()
        except PrivprojError:
            continue
        # a bound that has its own form of sampling is not the sampled profile of one release
        if rates[0] < 1.0 and not isinstance(curve, PrivacyProfile):
            continue
        guesses = None if noises is None else np.array([noises[i] for i in where])
        kept = [phases[i] for i in where]
        yield where, _Rows(profiles[key], np.array(laws, float), rates, curve, kept, guesses, threads)


def meets_in_columns(phase: Phase, target: FullTarget) -> bool:
    """True where epsilon and delta of the phase, if columns answer them, are no more than the target's (C24)."""
    for _, rows in _rows_by_profile([phase], None, threads=1):
        goals = (target.epsilon, target.log_delta, floor_log_delta(rows.curve, target))
        return bool(_are_met(rows, *(np.array([goal]) for goal in goals))[0])
    return True


def _are_met(rows: _Rows, eps: Array, log_deltas: Array, most: Array) -> Any:
    """True for each row whose answers, asked back in columns, are at most its epsilon and a point of the lattice."""
    found, point = _epsilons_above(rows, log_deltas)[1], _read_log_deltas(rows, eps)[0]
    return ((found <= eps) | (found == math.inf)) & ((point <= most) | (point == math.inf))


def _read_log_deltas(rows: _Rows, eps: Array) -> tuple[Array, Array]:
    """The point of the lattice that is answered at each epsilon, ``inf`` where none is known, and a lower end."""
    lower, upper = rows.raised_log_deltas(eps, WIDTHS_ABOVE)
    spacing = rows.spacings(upper)
    points = np.ceil(upper / spacing) * spacing
    return np.where(upper < math.inf, np.minimum(points, 0.0), math.inf), lower


def _epsilons_above(rows: _Rows, log_deltas: Array) -> tuple[Array, Array]:
    """Nearly the exact inverse, and the epsilon at each log delta, ``inf`` where columns have no answer."""
    points = rows.points(log_deltas)
    goals = rows.goals(points)
    nearly, value = (end.copy() for end in rows.epsilons(goals))
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
        value[waiting] = rows.take(waiting).epsilons(goals[waiting])[1] if waiting.size else ()
    value[waiting] = math.inf
    return nearly, value


def _read_epsilons(rows: _Rows, log_deltas: Array) -> tuple[Array, Array]:
    """The epsilon at each log delta, ``inf`` where columns have no answer, and a lower end of the exact inverse."""
    nearly, value = _epsilons_above(rows, log_deltas)
    start = np.where((value < math.inf) & (nearly < math.inf), nearly, 0.0)

    def is_above(where: Places, eps: Array) -> Any:
        return rows.take(where).log_deltas(eps)[0] > log_deltas[where]

    return value, _steps_down(np.minimum(start, value), is_above)


def _read_sigmas(rows: _Rows, eps: Array, log_deltas: Array) -> tuple[Array, Array]:
    """Nearly the least noise multiplier that meets each target, ``inf`` where none is found, and a lower end."""
    # The goals of the epsilons, which may be below the points by more than an epsilon needs.
    goals, before = rows.goals(rows.points(log_deltas)), eps * (1.0 - CALIBRATION_STEP)

    def excess(where: Places, noises: Array) -> Array:
        return _excess(rows.at_noise(where, noises), before[where], goals[where])

    assert rows.noises is not None
    nearly, value = _find_crossings(excess, rows.noises)
    # The search looks at enclosures. At last it is asked back as a user would.
    points, step = rows.points(log_deltas), CALIBRATION_STEP
    waiting = np.flatnonzero(value < math.inf)
    while waiting.size and step < 1.0:
        asked = rows.at_noise(waiting, value[waiting])
        met = _are_met(asked, eps[waiting], log_deltas[waiting], points[waiting])
        waiting = waiting[~(met & (excess(waiting, value[waiting]) <= 0.0))]
        value[waiting] *= 1.0 + step
        step *= 4.0
    value[waiting] = math.inf

    def is_above(where: Places, noises: Array) -> Any:
        return rows.at_noise(where, noises).log_deltas(eps[where])[0] > log_deltas[where]

    return value, _steps_down(np.where(value < math.inf, nearly, 0.0), is_above)


def _excess(rows: _Rows, eps: Array, points: Array) -> Array:
    """How far ``U(e) + 32 w + s`` lies above the points; not above 0 where an answer holds at every door."""
    return rows.raised_log_deltas(eps, 2.0 * WIDTHS_ABOVE)[1] + rows.spacings(points) - points


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
