"""Columns: one release of many mechanisms of one kind, asked at once; arrays go in and arrays come out.

A row is a question like any other: its mechanism is built and checked, and seen as its group or its relation sees it.
Rows whose bound has a profile over columns are then read together, the others one by one.

What ``epsilons`` answers at ``d``, asked back as ``delta`` or ``deltas``, gives no more than ``d``; and ``sigmas``
keeps to both its targets when it is asked back (C24, "Columns"). With ``h(d)`` the point of the lattice below ``ln d``,
``w`` the width of an enclosure, ``s`` the spacing of the lattice and ``e'`` a few roundings below ``e``,

    deltas(e)   = value(h)  where h is the first point of the lattice with U(e) + 16 w <= h,
    epsilons(d) = e         where U(e') + 32 w + s <= h(d) - s was evaluated.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privproj.accounting.calibration import require_unset
from privproj.accounting.evaluate import SOLVERS
from privproj.accounting.first_guess import classical_noise
from privproj.accounting.question import Question, answer, ask_by_name
from privproj.bounds import find_bound, mechanism_named
from privproj.curves.columns import ColumnProfile
from privproj.curves.inversion import (
    COARSE_LATTICE_FACTOR,
    DEFAULT_SPACING,
    LARGE_LOG_DELTA,
    LEAST_LOG_VALUE,
    delta_value,
    log10_value,
)
from privproj.curves.profile import INVERSE_RTOL, Curve, PrivacyProfile, amplified_epsilon
from privproj.errors import InvalidParameter, PrivprojError, Refused, Unanswered, raise_within, unknown_name
from privproj.mechanisms import Mechanism
from privproj.numerics.arrays import Array
from privproj.numerics.compiled import rows_to_come
from privproj.numerics.enclosure import FUNCTION_RELATIVE_ERROR, RELATIVE_ERROR_PER_NAT
from privproj.result import Outcome, Side, Status
from privproj.runs import AnyTarget, FullTarget, RunOptions, Sampling, delta_target, epsilon_target, full_target
from privproj.validation import LARGEST_NOISE, SMALLEST_NOISE, whole

Places = NDArray[np.intp]
"""Numbers of rows."""

ROWS_AT_A_TIME = 2**15
"""How many mechanisms are in memory together. Speed only."""

WIDTHS_ABOVE = 16.0
"""How many widths of an enclosure a delta of columns lies above its upper end; an epsilon has twice as many (C24).

It rests on the two widths of one question, scalar and in columns, being within a factor of 1.5 of each other. Proof.
"""

ROUNDINGS_BELOW = 8.0
"""How far below an epsilon its delta is looked at, in tolerances of the search for a scalar one (C24). Proof."""

CALIBRATION_STEP = 2.0**-34
"""The same for a noise multiplier, relative: more than columns and scalars differ (C24). Proof."""

FIRST_STEP_DOWN = 2.0**-33
"""First relative step of the search for a lower end. Speed only."""

SIGMA_RTOL = 1e-11
"""Relative width of the bracket in which a noise multiplier is found. Speed only."""

MOST_TRIES = 60
"""How often a row is looked at anew before it is left to the scalar search. Speed only."""


@dataclass(frozen=True, kw_only=True)
class ColumnResult:
    """The answers of many questions about one kind of mechanism, and what all of them rest on together.

    Attributes:
        quantity: What was asked: epsilon, delta or sigma.
        value: The answers at their safe end. Where there is no answer: ``inf``, or 1 for a delta.
        lower: The lower end of the interval that encloses the exact value of the named bound; 0 where none is known.
        log10_delta: The decimal logarithms of the deltas that were given or answered.
        outcome: How each evaluation ended, an :class:`privproj.Outcome`; only ``OK`` comes with a guarantee.
        side: Where the values lie relative to the true quantity, a :class:`privproj.Side`: exact if all of them are.
        bound: The name of the bound.
        bound_version: Its version, which changes whenever a value of the bound may change.
        status: What is known of the bound: the weakest status of a row, a :class:`privproj.Status`.
        promises: What the data must keep for all rows, in words.
        assumes: All that is taken for granted about the program, in words.
        source: The theorem, and the claim of docs/proofs.md that proves it here.

    >>> from privproj import Gaussian, epsilons
    >>> found = epsilons(Gaussian, noise_multiplier=[1.0, 2.0], delta=1e-5)
    >>> found.value.round(4).tolist(), str(found.side), found.bound
    ([4.3772, 1.9931], 'exact', 'analytic')
    """

    quantity: str
    value: Array
    lower: Array
    log10_delta: Array
    outcome: Any
    side: Side
    bound: str
    bound_version: int
    status: Status
    promises: tuple[str, ...]
    assumes: tuple[str, ...]
    source: str


def deltas(
    mechanism: type[Mechanism] | str,
    *,
    epsilon: Any,
    bound: str | None = None,
    threads: int = 1,
    **parameters: Any,
) -> ColumnResult:
    """Return the smallest deltas that the bound proves for many releases, rounded up.

    Args:
        mechanism: The type of the mechanism, or its name.
        epsilon: The epsilons of the guarantee, from 0 to 1e9: a number, a list or an array.
        bound: The name of a bound of the mechanism; None takes its default, the first in the registry.
        threads: How many threads share the work, where there is much of it.
        **parameters: Those of the mechanism: each a value for all rows, or a list or array. All lists and arrays are
            broadcast against each other as numpy does. Those of the run, as :class:`privproj.runs.RunOptions` lists
            them, are the same for all rows.

    Returns:
        Arrays of the broadcast shape, and what all rows rest on.

    Raises:
        InvalidParameter: A value is outside its domain, one is missing, or two contradict each other; the first such
            row is named.
        Refused: The bound proves nothing for a row or for the run.

    >>> from privproj import M2, deltas
    >>> found = deltas(M2, dim=2048, rank=[4, 16], noise_multiplier=0.5, epsilon=1.0)
    >>> [f"{value:.3g}" for value in found.value]
    ['6.54e-11', '1.42e-07']
    """
    return _answer_columns("delta", mechanism, bound, threads, {**parameters, "epsilon": epsilon})


def epsilons(
    mechanism: type[Mechanism] | str,
    *,
    delta: Any = None,
    log10_delta: Any = None,
    bound: str | None = None,
    threads: int = 1,
    **parameters: Any,
) -> ColumnResult:
    """Return the smallest epsilons that the bound proves for many releases, rounded up.

    Args:
        mechanism: The type of the mechanism, or its name.
        delta: The deltas of the guarantee, above 0 and below 1: a number, a list or an array; give either these or
            ``log10_delta``.
        log10_delta: The decimal logarithms of delta, from -1e6 to below 0.
        bound: The name of a bound of the mechanism; None takes its default, the first in the registry.
        threads: How many threads share the work, where there is much of it.
        **parameters: Those of the mechanism and of the run, as for :func:`privproj.deltas`.

    Returns:
        Arrays of the broadcast shape, and what all rows rest on. Asked back as a delta, no epsilon of them gives more
        than its delta; a row that columns cannot answer keeps to that at the scalar door alone.

    Raises:
        InvalidParameter: A value is outside its domain, one is missing, or two contradict each other; the first such
            row is named.
        Refused: The bound proves nothing for a row or for the run.

    >>> from privproj import M2, epsilons
    >>> epsilons(M2, dim=2048, rank=[4, 16], noise_multiplier=[[0.5], [1.0]], delta=1e-5).value.round(4).tolist()
    [[0.4312, 0.7382], [0.1962, 0.3412]]
    """
    targets = {"delta": delta, "log10_delta": log10_delta}
    return _answer_columns("epsilon", mechanism, bound, threads, {**parameters, **targets})


def sigmas(
    mechanism: type[Mechanism] | str,
    *,
    epsilon: Any,
    delta: Any = None,
    log10_delta: Any = None,
    bound: str | None = None,
    threads: int = 1,
    **parameters: Any,
) -> ColumnResult:
    """Find nearly the smallest noise multipliers that meet ``(epsilon, delta)`` for many releases, rounded up.

    Args:
        mechanism: The type of the mechanism, or its name.
        epsilon: The epsilons to be met, above 0 and at most 1e9: a number, a list or an array.
        delta: The deltas to be met, above 0 and below 1; give either these or ``log10_delta``.
        log10_delta: The decimal logarithms of delta, from -1e6 to below 0.
        bound: The name of a bound of the mechanism; None takes its default, the first in the registry.
        threads: How many threads share the work, where there is much of it.
        **parameters: Those of the mechanism, without ``noise_multiplier``, and of the run, as for
            :func:`privproj.deltas`.

    Returns:
        Arrays of the broadcast shape, and what all rows rest on. Each value meets its targets when it is asked back.

    Raises:
        InvalidParameter: A value is outside its domain, one is missing, or two contradict each other; the first such
            row is named.
        Refused: The bound proves nothing for a row or for the run.

    >>> from privproj import M2, sigmas
    >>> sigmas(M2, dim=2048, rank=16, epsilon=[0.5, 1.0], delta=1e-5).value.round(4).tolist()
    [0.709, 0.3814]
    """
    targets = {"epsilon": epsilon, "delta": delta, "log10_delta": log10_delta}
    return _answer_columns("sigma", mechanism, bound, threads, {**parameters, **targets})


TARGETS = ("epsilon", "delta", "log10_delta")
"""The names under which targets are given."""


def _answer_columns(
    quantity: str, mechanism: type[Mechanism] | str, bound: str | None, threads: int, given: dict[str, Any]
) -> ColumnResult:
    """Broadcast what is given, ask every row, and put together the answers and what they rest on."""
    kind = mechanism_named(mechanism) if isinstance(mechanism, str) else mechanism
    if not (isinstance(kind, type) and issubclass(kind, Mechanism)):
        raise InvalidParameter("mechanism", mechanism, "a type of mechanism or its name, for instance M2 or 'm2'")
    threads = whole("threads", threads, "a whole number of threads from 1 to 256", 1, 256)
    run: Any = {name: given.pop(name) for name in list(given) if name in RunOptions.__annotations__}
    _check_given(kind, quantity, run, given)
    same, columns, shape = _broadcast(given)
    size = math.prod(shape)
    numbers = [np.empty(size) for _ in range(3)]
    outcome, basis = np.empty(size, object), _Basis(kind, bound)
    outcome.fill(Outcome.OK)
    with rows_to_come(size):
        for start in range(0, size, ROWS_AT_A_TIME):
            part = slice(start, min(size, start + ROWS_AT_A_TIME))
            rows = ({**same, **dict(zip(columns, row, strict=True))} for row in _rows_of(columns, part))
            questions, targets = _questions_of(quantity, kind, bound, run, rows, start, shape)
            found = read_columns(quantity, questions, targets, threads)
            for array, column in zip(numbers, (found.value, found.lower, found.log10_delta), strict=True):
                array[part] = column
            for i in np.flatnonzero(found.unknown).tolist():
                try:
                    *ends, outcome[start + i], side = _ask_one(quantity, questions[i], targets[i])
                except InvalidParameter as error:
                    raise_within(error, _place(start + i, shape))
                found.sides[i] = side
                for array, end in zip(numbers, ends, strict=True):
                    array[start + i] = end
            basis.add(questions, found.sides)
    if quantity == "delta":
        outcome[(numbers[0] >= 1.0) & (outcome == Outcome.OK)] = Outcome.VACUOUS
    value, lower, power, outcome = (array.reshape(shape) for array in (*numbers, outcome))
    return basis.result(quantity=quantity, value=value, lower=lower, log10_delta=power, outcome=outcome)


def _broadcast(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array], tuple[int, ...]]:
    """What is the same for all rows, the flat columns of what is not, and the shape of the answers."""
    arrays = {name: _column_of(name, value) for name, value in given.items() if _is_column(name, value)}
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InvalidParameter("columns", shapes, "arrays of shapes that can be broadcast") from None
    columns = {name: np.broadcast_to(array, shape).reshape(-1) for name, array in arrays.items()}
    return {name: value for name, value in given.items() if name not in arrays}, columns, shape


def _check_given(kind: type[Mechanism], quantity: str, run: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise :class:`InvalidParameter` for a name that is not known, or that this quantity does not take."""
    for name, value in run.items():
        if isinstance(value, list | tuple | np.ndarray):
            raise InvalidParameter(name, value, f"one {name} for all rows", "ask once for each value")
    names = [field.name for field in fields(kind)]
    for name, value in given.items():
        if name not in TARGETS and name not in names:
            known = (*names, *RunOptions.__annotations__, *TARGETS)
            raise unknown_name(name, value, f"a parameter of {kind.name}", known, word=name)
    taken = {"delta": TARGETS[:1], "epsilon": TARGETS[1:]}.get(quantity, TARGETS)
    for name in set(TARGETS) - set(taken):
        if given.get(name) is not None:
            raise InvalidParameter(name, given[name], f"no {name}: it is what {quantity}s find at {' or '.join(taken)}")


def _is_column(name: str, value: Any) -> bool:
    """True for a list, a tuple, a range or an array, but for layers, of which every row has all."""
    return name != "layers" and (isinstance(value, list | tuple | range) or hasattr(value, "__array__"))


def _column_of(name: str, value: Any) -> Array:
    """The values of a parameter as an array; raises :class:`InvalidParameter` for what is none."""
    try:
        found = np.asarray(value)
    except ValueError:
        raise InvalidParameter(name, value, f"a {name} for every row, in an array without gaps") from None
    if np.ma.is_masked(value) or (
        found.size and found.dtype != bool and any(isinstance(x, bool) for x in _flat(value))
    ):
        raise InvalidParameter(name, value, f"a {name} for every row, none of them masked or a truth value")
    return found


def _flat(value: Any) -> Iterator[Any]:
    """The entries of nested lists and tuples; nothing of an array, which holds one kind of value."""
    for part in value if isinstance(value, list | tuple) else ():
        yield from _flat(part) if isinstance(part, list | tuple) else (part,)


def _rows_of(columns: Mapping[str, Array], part: slice) -> Iterator[tuple[Any, ...]]:
    """These rows of the columns as plain values; one empty row where there are no columns."""
    return zip(*(column[part].tolist() for column in columns.values()), strict=True) if columns else iter([()])


def _questions_of(
    quantity: str,
    kind: type[Mechanism],
    bound: str | None,
    run: RunOptions,
    rows: Iterator[dict[str, Any]],
    start: int,
    shape: tuple[int, ...],
) -> tuple[list[Question], list[Any]]:
    """The questions of some rows and their targets, all of them checked; an error names the first bad row."""
    questions: list[Question] = []
    targets: list[Any] = []
    for number, row in enumerate(rows, start):
        try:
            goal = [row.pop(name, None) for name in TARGETS]
            if quantity == "delta":
                targets.append(epsilon_target(goal[0]))
            elif quantity == "epsilon":
                targets.append(delta_target(*goal[1:]))
            else:
                targets.append(full_target(*goal, zero=False))
            released = kind(**row)
            question = (
                Question(released, questions[0].run, questions[0].bound, questions[0].allow_refuted)
                if questions
                else ask_by_name(released, bound, run)
            )
            questions.append(checked_question(question, targets[-1]))
        except (InvalidParameter, Refused) as error:
            if not shape:
                raise
            if isinstance(error, InvalidParameter):
                raise_within(error, _place(number, shape))
            raise Refused(f"{_place(number, shape)}: {error}", brief=error.short) from None
    return questions, targets


def _place(number: int, shape: tuple[int, ...]) -> str:
    """Which row has this number, by its indices."""
    return f"row {', '.join(map(str, np.unravel_index(number, shape)))}"


def checked_question(question: Question, target: AnyTarget) -> Question:
    """The question, which the bound answers soundly; raises as :meth:`Question.check` does.

    What the noise multiplier is not known for is checked at a guess.
    """
    if isinstance(target, FullTarget):
        require_unset(question.mechanism, "noise_multiplier", "sigma")
        question.with_mechanism(noise_multiplier=classical_noise(target)).check()
    else:
        question.check()
    return question


def _ask_one(quantity: str, question: Question, target: Any) -> tuple[float, float, float, Outcome, Side]:
    """The scalar answer of a row: value, lower end, ``log10 delta``, outcome and side."""
    try:
        found = answer(question, quantity, SOLVERS[quantity], target)
    except Unanswered as error:
        found = error.result
    value = (1.0 if quantity == "delta" else math.inf) if found.value is None else float(found.value)
    power = 0.0 if found.log10_delta is None else found.log10_delta
    return value, found.lower or 0.0, power, found.outcome, found.side


class _Basis:
    """What all rows rest on together: every promise and assumption of one, the weakest status and side."""

    def __init__(self, kind: type[Mechanism], bound: str | None) -> None:
        self.bound = find_bound(kind, bound)
        self.sides, self.statuses, self.seen = set[Side](), set[Status](), set[Any]()
        self.promises, self.assumes = dict[str, None](), dict[str, None]()

    def add(self, questions: Sequence[Question], sides: Sequence[Side]) -> None:
        """Take these rows in."""
        self.sides.update(sides)
        for question in questions:
            key = question.promises, question.mechanism_assumes
            if key not in self.seen:
                self.seen.add(key)
                self.promises.update(dict.fromkeys(key[0]))
                self.assumes.update(dict.fromkeys((*key[1], *question.run_assumes)))
            self.statuses.add(question.status)

    def result(self, **arrays: Any) -> ColumnResult:
        """The result with these arrays."""
        side = next((side for side in (Side.NONE, Side.UPPER) if side in self.sides), Side.EXACT)
        order = (Status.REFUTED, Status.ASYMPTOTIC, Status.CONDITIONAL)
        return ColumnResult(
            **arrays,
            side=side,
            bound=self.bound.name,
            bound_version=self.bound.version,
            status=next((status for status in order if status in self.statuses), Status.PROVED),
            promises=tuple(self.promises),
            assumes=tuple(self.assumes),
            source=self.bound.citation,
        )


@dataclass
class _ColumnReading:
    """What columns say of some questions, and of which they say nothing."""

    value: Array
    lower: Array
    log10_delta: Array
    unknown: Any
    """True where the scalar path must be asked."""
    sides: list[Side]


def read_columns(
    quantity: str, questions: Sequence[Question], targets: Sequence[Any], threads: int = 1
) -> _ColumnReading:
    """Ask questions that were checked, those with a common profile over columns together.

    ``quantity`` is delta, epsilon or sigma, and ``targets`` are of its type. How a row is answered does not depend on
    the others.
    """
    size = len(questions)
    found = _ColumnReading(
        np.full(size, math.inf), np.zeros(size), np.zeros(size), np.ones(size, bool), [Side.UPPER] * size
    )
    eps = np.array([0.0 if quantity == "epsilon" else target.epsilon for target in targets], float)
    log_deltas = np.array([0.0 if quantity == "delta" else target.log_delta for target in targets], float)
    if quantity != "delta":
        found.log10_delta[:] = [target.log10_delta for target in targets]
    noises = [classical_noise(target) for target in targets] if quantity == "sigma" else None
    for where, rows in _rows_by_profile(questions, noises, threads):
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
            found.sides[i] = Side.UPPER if small else questions[i].side(rows.curve)
    return found


@dataclass
class _Rows:
    """Questions with one profile over columns: what their kernels need, and a scalar curve of one of them."""

    profile: ColumnProfile
    laws: Array
    """A row for each, at the noise that is looked at."""
    rates: list[float]
    curve: Curve
    questions: list[Question]
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
            [self.questions[i] for i in kept],
            None,
            self.threads,
        )

    def at_noise(self, where: Places, noises: Array) -> "_Rows":
        """Some of the rows at these noise multipliers; a law that is not known there is a row of nan."""
        unknown = (math.nan,) * self.laws.shape[1]
        laws = []
        for i, noise in zip(where.tolist(), noises.tolist(), strict=True):
            found = _law_of(self.questions[i], noise)
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


def _law_of(question: Question, noise: float | None = None) -> tuple[ColumnProfile, tuple[float, ...], float] | None:
    """The profile over columns of a question, its row and its sampling rate; None where it has none."""
    run, bound = question.run, question.bound
    if bound.columns is None or run.steps > 1 or run.max_batch_size is not None or run.composer != "privproj":
        return None
    if run.discretization is not None or run.sampling in (Sampling.SHUFFLE, Sampling.BALLS_IN_BINS):
        return None
    if not bound.guarantees(question.mechanism):
        return None
    try:
        mechanism, seen = (question if noise is None else question.with_mechanism(noise_multiplier=noise)).seen()
    except InvalidParameter:  # what a group sees is outside of the domain
        return None
    found = bound.columns(mechanism)
    return None if found is None else (*found, seen.sampling_rate)


def _rows_by_profile(
    questions: Sequence[Question], noises: list[float] | None, threads: int
) -> Iterator[tuple[list[int], _Rows]]:
    """The questions that have a profile over columns, those with the same one together, and which they are."""
    groups: dict[Any, list[tuple[int, tuple[float, ...], float]]] = {}
    profiles: dict[Any, ColumnProfile] = {}
    for i, question in enumerate(questions):
        found = _law_of(question, None if noises is None else noises[i])
        if found is not None:
            profile, law, rate = found
            key = id(profile), question.bound.name, len(law), rate < 1.0
            profiles[key] = profile
            groups.setdefault(key, []).append((i, law, rate))
    for key, members in groups.items():
        where, laws, rates = (list(column) for column in zip(*members, strict=True))
        first = questions[where[0]]
        try:
            curve = (first if noises is None else first.with_mechanism(noise_multiplier=noises[where[0]])).curve()
        except PrivprojError:
            continue
        # a bound that has its own form of sampling is not the sampled profile of one release
        if rates[0] < 1.0 and not isinstance(curve, PrivacyProfile):
            continue
        guesses = None if noises is None else np.array([noises[i] for i in where])
        kept = [questions[i] for i in where]
        yield where, _Rows(profiles[key], np.array(laws, float), rates, curve, kept, guesses, threads)


def _read_log_deltas(rows: _Rows, eps: Array) -> tuple[Array, Array]:
    """The point of the lattice that is answered at each epsilon, ``inf`` where none is known, and a lower end."""
    lower, upper = rows.raised_log_deltas(eps, WIDTHS_ABOVE)
    spacing = rows.spacings(upper)
    points = np.ceil(upper / spacing) * spacing
    return np.where(upper < math.inf, np.minimum(points, 0.0), math.inf), lower


def _read_epsilons(rows: _Rows, log_deltas: Array) -> tuple[Array, Array]:
    """The epsilon at each log delta, ``inf`` where columns have no answer, and a lower end of the exact inverse."""
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
