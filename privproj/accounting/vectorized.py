"""Compute epsilons, deltas or noise multipliers for arrays of parameters.

Compiled functions evaluate many rows at once for the bounds that have them. All other rows, and rows with an error, are
evaluated one by one, as scalar queries.
"""

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privproj.accounting.calibration import classical_noise, require_unset
from privproj.accounting.config import SOLVERS
from privproj.accounting.phase import Phase
from privproj.accounting.query import composition_of, composition_of_phase, unique
from privproj.accounting.vectorized_kernels import MOST_TRIES, RowShape, answers_of, shape_of
from privproj.errors import InvalidParameterError, PrivprojError, QueryError, unknown_name, within
from privproj.mechanisms import Mechanism
from privproj.mechanisms.base import MechanismColumns, is_column
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.registry import find_bound, mechanism_named
from privproj.numerics.arrays import Array
from privproj.numerics.interval import NEXT_UP_RELATIVE_STEP
from privproj.numerics.jit import expect_rows, over_rows
from privproj.parameters import LARGEST_EPSILON, LARGEST_NOISE, SMALLEST_NOISE, arguments_by_name, integer
from privproj.profiles.conversion import LEAST_LOG_VALUE
from privproj.profiles.privacy_profile import Kernel
from privproj.result import Outcome, Side, Status
from privproj.run import RunOptions
from privproj.targets import TARGETS, AnyTarget, FullTarget, target_from, target_names

Places = NDArray[np.intp]  # indices of rows

Truths = NDArray[np.bool_]  # one boolean for each row

# soundness: relative distance of epsilon below its target, so that the next number of thirteen digits, which other
# arithmetic may return, still meets it (C24)
CALIBRATION_STEP = 1e-12

FIRST_STEP_DOWN = 2.0**-33  # first relative step of the search for a lower end

ROW_WEIGHTS = {"delta": 0.2, "epsilon": 1.0, "sigma": 8.0}  # cost of a row, relative to an epsilon

# the computed field of a result
SOUGHT = {"delta": "delta", "epsilon": "epsilon", "sigma": "noise_multiplier"}

NO_ANSWER = {"delta": 1.0, "epsilon": math.inf, "sigma": math.inf}  # value of a row without a result

FLAGS = ("allow_refuted", "public_size")  # options of the run that are true or false

# a type of mechanism, its name, or one with parameters
AnyColumns = type[Mechanism] | str | Mechanism | MechanismColumns


@dataclass(frozen=True, kw_only=True, repr=False)
class ColumnResult:
    """The values of epsilon, delta or sigma that an array query returns.

    Attributes:
        quantity: The quantity: epsilon, delta or sigma.
        value: The values, rounded to the safe side. A row without a result has ``inf``, or 1 for a delta.
        lower: The lower ends of the enclosures of the exact value of the named bound; 0 if unknown.
        log10_delta: The decimal logarithms of the deltas, as targets or results.
        outcome: The :class:`privproj.Outcome` of each evaluation; only values with ``OK`` are guarantees.
        side: The :class:`privproj.Side` of the values relative to the true quantity; exact if all values are exact.
        bound: The name of the bound.
        bound_version: The version of the bound, which changes whenever a value of the bound may change.
        status: The weakest :class:`privproj.Status` of the bound in any row.
        data_assumptions: The assumptions on the data for all rows, as texts.
        requirements: All requirements on the program, as texts.
        source: The theorem, and the claim of docs/proofs.md that proves it here.
        arguments: The arguments by name (parameters, targets and run): each an array of the broadcast shape, or one
            value for all rows.
        find_lower: A function that computes ``lower`` when it is first read, because that takes additional time.

    >>> from privproj import Gaussian, epsilons
    >>> column = epsilons(Gaussian, noise_multiplier=[1.0, 2.0], delta=1e-5)
    >>> column.value.round(4).tolist(), str(column.side), column.bound
    ([4.3772, 1.9931], 'exact', 'analytic')
    """

    quantity: str
    value: Array
    log10_delta: Array
    outcome: Any
    side: Side
    bound: str
    bound_version: int
    status: Status
    data_assumptions: tuple[str, ...]
    requirements: tuple[str, ...]
    source: str
    arguments: dict[str, Any]
    find_lower: Callable[[], Array] = field(compare=False)

    @cached_property
    def lower(self) -> Array:
        """Lower ends of enclosures of the exact values of the bound; 0 if unknown."""
        return self.find_lower()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "lower": self.lower, "find_lower": None}

    def __repr__(self) -> str:
        description = f"{self.bound}, {self.side}, {self.status}"
        return f"<{self.value.size} {self.quantity}s ({description}): {reprlib.repr(self.value.ravel().tolist())}>"

    def to_dict(self) -> dict[str, Any]:
        """Return parameters, values and outcomes as flat columns by name, for a data frame.

        Returns:
            Arrays and lists of one length, for ``pandas.DataFrame(column.to_dict())`` or ``polars.DataFrame(...)``.

        >>> from privproj import Gaussian, epsilons
        >>> table = epsilons(Gaussian(noise_multiplier=[1.0, 2.0]), delta=1e-5).to_dict()
        >>> table["noise_multiplier"].tolist(), table["delta"], table["epsilon"].round(4).tolist()
        ([1.0, 2.0], [1e-05, 1e-05], [4.3772, 1.9931])
        """
        size = self.value.size
        texts = {name: ", ".join(map(str, value)) for name, value in self.arguments.items() if name == "layers"}
        arguments = {name: value.ravel() if isinstance(value, np.ndarray) else [value] * size
                     for name, value in {**self.arguments, **texts}.items()}  # fmt: skip
        answers = {self.quantity: self.value.ravel(), "lower": self.lower.ravel()}
        rests = {name: [str(getattr(self, name))] * size for name in ("side", "bound", "status")}
        return {**arguments, **answers, **rests, "outcome": [str(outcome) for outcome in self.outcome.ravel()]}


@arguments_by_name("deltas(mechanism, epsilon=[1.0, 2.0])")
def deltas(mechanism: AnyColumns, **arguments: Any) -> ColumnResult:
    """Return the smallest deltas that a bound proves at arrays of parameters, rounded up.

    Args:
        mechanism: The type of the mechanism or its name; or a mechanism, whose parameters may be lists and arrays.
        **arguments: ``epsilon``, the epsilons of the guarantee, from 0 to 1e9; the parameters of the mechanism; and
            the options of the run, as :class:`privproj.run.RunOptions` lists them. Each is one value for all rows, or a
            list or array. Lists and arrays are broadcast as in NumPy. ``bound`` is the name of a bound of the
            mechanism, by default its default bound. ``threads`` is the number of threads for large
            inputs, by default 1.

    Returns:
        Arrays of the broadcast shape, and the bound, assumptions and requirements of all rows.

    Raises:
        InvalidParameterError: A value is outside its domain, one is missing, or two contradict each other; the message
            names the first such row.
        UnsupportedError: The bound does not support a row or the run.

    >>> from privproj import M2, deltas
    >>> column = deltas(M2, dim=2048, rank=[4, 16], noise_multiplier=0.5, epsilon=1.0)
    >>> [f"{value:.3g}" for value in column.value]
    ['6.54e-11', '1.42e-07']
    """
    return _answer_columns("delta", mechanism, **arguments)


@arguments_by_name("epsilons(mechanism, delta=[1e-5, 1e-6])")
def epsilons(mechanism: AnyColumns, **arguments: Any) -> ColumnResult:
    """Return the smallest epsilons that a bound proves at arrays of parameters, rounded up.

    Args:
        mechanism: The type of the mechanism or its name; or a mechanism, whose parameters may be lists and arrays.
        **arguments: ``delta``, the deltas of the guarantee, above 0 and below 1, or ``log10_delta``, their decimal
            logarithms, from -1e6 to below 0. The parameters of the mechanism, the run, ``bound`` and ``threads`` are
            the same as for :func:`privproj.deltas`.

    Returns:
        Arrays of the broadcast shape, and the bound, assumptions and requirements of all rows. The delta that
        :func:`privproj.delta` returns at each epsilon is at most the target. The same is true of
        :func:`privproj.deltas`, except in rows that are evaluated as scalar queries.

    Raises:
        InvalidParameterError: A value is outside its domain, one is missing, or two contradict each other; the message
            names the first such row.
        UnsupportedError: The bound does not support a row or the run.

    >>> from privproj import Gaussian, M2, epsilons
    >>> runs = epsilons(Gaussian, noise_multiplier=1.0, steps=[100, 1000], sampling_rate=0.01, delta=1e-5)
    >>> runs.value.round(3).tolist()
    [0.718, 1.828]
    >>> epsilons(M2, dim=2048, rank=[4, 16], noise_multiplier=[[0.5], [1.0]], delta=1e-5).value.round(4).tolist()
    [[0.4312, 0.7382], [0.1962, 0.3412]]
    """
    return _answer_columns("epsilon", mechanism, **arguments)


@arguments_by_name("sigmas(mechanism, epsilon=[1.0, 2.0], delta=1e-5)")
def sigmas(mechanism: AnyColumns, **arguments: Any) -> ColumnResult:
    """Return noise multipliers that meet ``(epsilon, delta)``, for arrays of parameters.

    Each is approximately the smallest one, rounded up.

    Args:
        mechanism: The type of the mechanism or its name; or a mechanism, whose parameters may be lists and arrays.
        **arguments: ``epsilon``, the target epsilons, above 0 and at most 1e9. ``delta``, the target deltas, above 0
            and below 1, or instead ``log10_delta``, their decimal logarithms, from -1e6 to below 0. The parameters of
            the mechanism, without ``noise_multiplier``, the run, ``bound`` and ``threads`` are the same as for
            :func:`privproj.deltas`.

    Returns:
        Arrays of the broadcast shape, and the bound, assumptions and requirements of all rows. Each value meets its
        target when it is evaluated again.

    Raises:
        InvalidParameterError: A value is outside its domain, one is missing, or two contradict each other; the message
            names the first such row.
        UnsupportedError: The bound does not support a row or the run.

    >>> from privproj import M2, sigmas
    >>> sigmas(M2, dim=2048, rank=16, epsilon=[0.5, 1.0], delta=1e-5).value.round(4).tolist()
    [0.709, 0.3814]
    """
    return _answer_columns("sigma", mechanism, **arguments)


def _answer_columns(
    quantity: str, mechanism: AnyColumns, /, *, bound: str | None = None, threads: int = 1, **parameters: Any
) -> ColumnResult:
    """Evaluate an array query."""
    kind, of_mechanism = _kind_and_parameters(mechanism)
    for name in set(of_mechanism) & set(parameters):
        raise InvalidParameterError(name, parameters[name], "given once, either in the mechanism or as an argument")
    parameters = {**of_mechanism, **parameters}
    threads = integer("threads", threads, "an integer from 1 to 256", 1, 256)
    run: Any = {name: parameters.pop(name) for name in list(parameters) if name in RunOptions.__annotations__}
    _check_given(kind, quantity, parameters)
    same, columns, shape = _broadcast({**parameters, **run})
    size = math.prod(shape)

    def row_query(i: int) -> tuple[Phase, Any]:
        with _naming_row(i, shape):
            row = {**same, **{name: column[i : i + 1].tolist()[0] for name, column in columns.items()}}
            target = target_from({name: row.pop(name, None) for name in TARGETS}, quantity)
            run_of_row: Any = {name: row.pop(name) for name in run}
            return checked_phase(composition_of(kind(**row), bound, run_of_row).only, target), target

    # numpy.full would treat a string as an array, which is slow.
    outcome = np.empty(size, object)
    outcome.fill(Outcome.OK)
    with expect_rows(size * ROW_WEIGHTS[quantity]):
        answers = read_columns(quantity, same, columns, size, lambda i: row_query(i)[0], threads)
        phases, sides = [*answers.phases], {*answers.sides}
        if quantity == "delta" and answers.small.any():
            sides.add(Side.UPPER)
        # Rows without a kernel are scalar queries; all of them are checked before the first is evaluated.
        alone = np.flatnonzero(answers.shape < 0)
        lower = np.zeros(len(alone))
        for k, (phase, target) in enumerate([row_query(i) for i in alone.tolist()]):
            i = int(alone[k])
            with _naming_row(i, shape):
                try:
                    one = SOLVERS[quantity](composition_of_phase(phase), target)
                except QueryError as error:
                    one = error.result
            answers.value[i] = NO_ANSWER[quantity] if one.value is None else one.value
            answers.numbers["log10_delta"][i] = one.log10_delta or 0.0
            outcome[i], lower[k] = one.outcome, one.lower or 0.0
            phases.append(phase)
            sides.add(one.side)
        answers.lower_ends.append((alone, lambda: lower))

    value, power, outcome = (array.reshape(shape) for array in (answers.value, answers.numbers["log10_delta"], outcome))
    argument_names = (*parameters, *run)
    again = {name: columns[name].reshape(shape) if name in columns else same[name] for name in argument_names}
    return ColumnResult(
        quantity=quantity,
        value=value,
        log10_delta=power,
        outcome=outcome,
        arguments={name: value for name, value in again.items() if value is not None},
        find_lower=lambda: answers.lower.reshape(shape),
        **_basis_of(find_bound(kind, bound), phases, sides),
    )


def _kind_and_parameters(mechanism: AnyColumns) -> tuple[type[Mechanism], dict[str, Any]]:
    if isinstance(mechanism, MechanismColumns):
        return mechanism.kind, mechanism.parameters
    if isinstance(mechanism, Mechanism):
        parameters = {one.name: getattr(mechanism, one.name) for one in fields(mechanism) if one.init}
        return type(mechanism), {name: value for name, value in parameters.items() if value is not None and value != ()}
    kind = mechanism_named(mechanism) if isinstance(mechanism, str) else mechanism
    if not (isinstance(kind, type) and issubclass(kind, Mechanism)):
        raise InvalidParameterError("mechanism", mechanism, "a mechanism, its class or its name, such as M2 or 'm2'")
    return kind, {}


def _broadcast(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array], tuple[int, ...]]:
    """Return the scalars, the broadcast and flattened arrays, and their shape."""
    arrays = {name: _column_of(name, value) for name, value in parameters.items() if is_column(name, value)}
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InvalidParameterError("columns", shapes, "arrays whose shapes can be broadcast") from None
    columns = {name: np.broadcast_to(array, shape).reshape(-1) for name, array in arrays.items()}
    return {name: value for name, value in parameters.items() if name not in arrays}, columns, shape


def _check_given(kind: type[Mechanism], quantity: str, parameters: Mapping[str, Any]) -> None:
    """Raise an error for a parameter that is unknown, or that the quantity does not use."""
    names, taken = [field.name for field in fields(kind)], target_names(quantity)[:3]
    for name, value in parameters.items():
        if name not in TARGETS and name not in names:
            allowed = (*names, *RunOptions.__annotations__, *TARGETS)
            raise unknown_name(name, value, f"parameter of {kind.name}", allowed, word=name)
        if name in TARGETS and name not in taken and value is not None:
            raise InvalidParameterError(
                name, value, "omitted", f"the function {quantity}s computes it from {' or '.join(taken)}"
            )


def _column_of(name: str, value: Any) -> Array:
    """Return the values of a parameter as an array of numbers."""
    try:
        column = np.array(value)  # a copy, because lower ends may be computed later
    except ValueError:
        raise InvalidParameterError(name, value, "an array of numbers with rows of equal length") from None
    listed = name not in FLAGS and column.dtype != bool and not isinstance(value, np.ndarray)
    if np.ma.is_masked(value) or (listed and any(isinstance(x, bool) for x in np.array(value, object).flat)):
        raise InvalidParameterError(name, value, "an array of numbers without masked values or booleans")
    return column


def _naming_row(number: int, shape: tuple[int, ...]) -> AbstractContextManager[None]:
    """Return a context in which error messages state the indices of a row."""
    return within(f"row {', '.join(map(str, np.unravel_index(number, shape)))}") if shape else nullcontext()


def checked_phase(phase: Phase, target: AnyTarget) -> Phase:
    """Return a phase after checking that its bound is valid for its mechanism and run.

    If the target is for a noise multiplier, the returned phase has a first guess of it.
    """
    if isinstance(target, FullTarget):
        require_unset(phase.mechanism, "noise_multiplier", "sigma")
        phase = phase.with_mechanism(noise_multiplier=classical_noise(target))
    phase.check()
    return phase


def _basis_of(bound: Bound, phases: Sequence[Phase], sides: set[Side]) -> dict[str, Any]:
    """Return the fields of a result that all rows of an array query share."""
    requirements = (text for phase in phases for text in (*phase.mechanism_requirements, *phase.run_requirements))
    return {
        "side": next((side for side in (Side.NONE, Side.UPPER) if side in sides), Side.EXACT),
        "bound": bound.name,
        "bound_version": bound.version,
        "status": max((phase.status for phase in phases), key=list(Status).index, default=Status.PROVED),
        "data_assumptions": unique(text for phase in phases for text in phase.data_assumptions),
        "requirements": unique(requirements),
        "source": bound.citation,
    }


# --- rows that are evaluated together ------------------------------------------------------------------------


@dataclass
class ColumnAnswers:
    """The targets and computed values of many rows of an array query.

    Attributes:
        numbers: The arrays of targets and given noise multipliers, with the names ``epsilon``, ``delta``,
            ``log_delta``, ``log10_delta`` and ``noise_multiplier``. A delta below the range of doubles is 0.
        shape: For each row, the index of its phase in ``phases``; -1 if the row must be evaluated as a scalar query.
        lower_ends: Indices of rows, with a function that computes lower ends for their values.
        phases: One phase for each group of rows that differ only in noise and target.
        sides: Whether the values of each phase are exact or upper bounds.
    """

    quantity: str
    numbers: dict[str, Array]
    value: Array
    shape: Places
    # functions that compute the lower ends of some rows
    lower_ends: list[tuple[Places, Callable[[], Array]]] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)

    @cached_property
    def lower(self) -> Array:
        """Lower ends of enclosures of the exact values; 0 if unknown."""
        ends = np.zeros(len(self.value))
        for where, find in self.lower_ends:
            ends[where] = find()
        return ends

    @property
    def small(self) -> Truths:
        """True for rows with a delta below 1e-300, which is rounded up to about 1e-300."""
        return self.numbers["log10_delta"] <= LEAST_LOG_VALUE / math.log(10.0)


def _numbers_of(quantity: str, parameters: Mapping[str, Any], size: int) -> tuple[dict[str, Array], Truths]:
    """Return targets and noise multipliers as arrays, and a mask of the rows in range."""
    fine = np.ones(size, bool)

    def read(name: str, low: float, high: float) -> Array:
        array = np.asarray(parameters.get(name))
        numbers = np.broadcast_to(array.astype(float) if array.dtype.kind in "iuf" else math.nan, size)
        inside = (low <= numbers) & (numbers <= high)
        fine[~inside] = False
        return np.where(inside, numbers, high)

    targets = {"log10_delta": np.zeros(size)}
    if quantity != "sigma":
        targets["noise_multiplier"] = read("noise_multiplier", SMALLEST_NOISE, LARGEST_NOISE)
    if quantity != "epsilon":
        targets["epsilon"] = read("epsilon", 0.0 if quantity == "delta" else 5e-324, LARGEST_EPSILON)
    if quantity != "delta" and parameters.get("log10_delta") is not None:
        power = read("log10_delta", -1e6, -1e-300)
        delta, log_delta = np.where(power > -300.0, 10.0**power, 0.0), power * math.log(10.0)
        targets |= {"delta": delta, "log_delta": log_delta, "log10_delta": power}
    elif quantity != "delta":
        delta = read("delta", 5e-324, 1.0 - 2.0**-53)
        targets |= {"delta": delta, "log_delta": np.log(delta), "log10_delta": np.log10(delta)}
    return targets, fine


def read_columns(
    quantity: str,
    same: Mapping[str, Any],
    columns: Mapping[str, Any],
    size: int,
    phase_at: Callable[[int], Phase],
    threads: int = 1,
) -> ColumnAnswers:
    """Evaluate the rows of an array query that compiled functions support.

    The value of a row does not depend on other rows.

    Args:
        quantity: The quantity: epsilon, delta or sigma.
        same: The arguments that all rows share.
        columns: The arguments with a value for each row.
        size: The number of rows.
        phase_at: A function that returns the phase of the row with an index. A row for which it raises an error is not
            evaluated.
        threads: The number of threads.
    """
    numbers, fine = _numbers_of(quantity, {**same, **columns}, size)
    answers = ColumnAnswers(quantity, numbers, np.full(size, math.inf), np.full(size, -1, np.intp))
    for where in _alike(fine, columns):
        at = {name: column[where] for name, column in numbers.items()}
        try:
            phase = phase_at(int(where[0]))
            shape = shape_of(phase)
        except (PrivprojError, ArithmeticError, ValueError):
            continue
        if shape is None:
            continue
        of_delta, of_epsilon = (partial(_run, shape, threads, kernel) for kernel in answers_of(shape.profile))
        if quantity == "delta":
            lower, logs = of_delta(at["noise_multiplier"], at["epsilon"])
            logs = np.where(logs < math.inf, logs, 0.0)
            # e^h rounded up, by more than in scalar queries, because numpy's exp differs from that of math
            value = np.exp(np.maximum(logs, LEAST_LOG_VALUE))
            value = np.minimum(1.0, value + 2.0 * NEXT_UP_RELATIVE_STEP * value)
            lower = np.where(lower > LEAST_LOG_VALUE, np.exp(lower), 0.0)
            find_lower = partial(np.asarray, lower)
            # h / ln 10 rounded up, as in log10_value
            numbers["log10_delta"][where] = np.minimum(0.0, logs / math.log(10.0) + 8e-16 * np.abs(logs))
        else:
            if quantity == "epsilon":
                _, value = of_epsilon(at["noise_multiplier"], at["log_delta"])
            else:
                value = _least_noises(of_epsilon, at["epsilon"], at["log_delta"])
            find_lower = partial(_lower_ends, of_delta, SOUGHT[quantity], value, at)
        # An epsilon of 0 has a warning, which the scalar query adds.
        answered = (value > 0.0) & (value < NO_ANSWER[quantity])
        answers.value[where] = value
        answers.lower_ends.append((where, find_lower))
        answers.shape[where] = np.where(answered, len(answers.phases), -1)
        answers.phases.append(phase)
        answers.sides.append(phase.side(shape.curve))
    return answers


def _alike(fine: Truths, columns: Mapping[str, Any]) -> Iterator[Places]:
    """Yield groups of valid rows that differ only in noise and target, as arrays of indices."""
    places = np.flatnonzero(fine)
    others = [column for name, column in columns.items() if name not in (*TARGETS, "noise_multiplier")]
    groups: dict[Any, Any] = {}
    if others:
        lists = [column.tolist() if isinstance(column, np.ndarray) else column for column in others]
        keys = list(zip(*(map(repr, values) for values in lists), strict=True))
        for i in places.tolist():
            groups.setdefault(keys[i], []).append(i)
    else:
        groups[()] = places
    for where in groups.values():
        # 2^15 rows fit a CPU cache.
        yield from (np.asarray(where[i : i + 2**15]) for i in range(0, len(where), 2**15))


# map from noise multipliers and targets to both values of a kernel
_Answered = Callable[[Array, Array], tuple[Array, Array]]


def _run(shape: RowShape, threads: int, kernel: Kernel, noises: Array, targets: Array) -> tuple[Array, Array]:
    """Return both outputs of a compiled function for every row of an array query.

    The second output is ``inf`` in a row that the function cannot evaluate.
    """
    distributions = np.stack(np.broadcast_arrays(*shape.row_at(noises)), axis=1)
    first, answered = over_rows(kernel, targets, distributions, threads, shape.profile.weight)
    return first, np.where(answered < math.inf, answered, math.inf)


def _lower_ends(of_delta: _Answered, sought: str, value: Array, at: Mapping[str, Array]) -> Array:
    """Return a lower bound for each exact epsilon or noise multiplier; 0 if none is found."""

    def is_above(where: Places, x: Array) -> Any:
        # At a lower bound, delta exceeds the target.
        tried = {name: column[where] for name, column in at.items()} | {sought: x}
        return of_delta(tried["noise_multiplier"], tried["epsilon"])[0] > tried["log_delta"]

    start = np.where(value < math.inf, value * (1.0 - FIRST_STEP_DOWN), 0.0)
    return _moved_until(is_above, start, -2.0 * FIRST_STEP_DOWN, 0.0)


def _moved_until(holds: Callable[[Places, Array], Any], start: Array, step: float, otherwise: float) -> Array:
    """Return numbers, each changed in growing relative steps until ``holds`` is true for it.

    A number for which it never becomes true is replaced by ``otherwise``.
    """
    moved = start.copy()
    waiting = np.flatnonzero((moved > 0.0) & (moved < math.inf))
    while waiting.size and abs(step) < 1.0:
        waiting = waiting[~holds(waiting, moved[waiting])]
        moved[waiting] *= 1.0 + step
        step *= 4.0
    moved[waiting] = otherwise
    return moved


def _least_noises(of_epsilon: _Answered, epsilon: Array, log_delta: Array) -> Array:
    """Return nearly the smallest noise multipliers that meet ``(epsilon, delta)``, or ``inf``."""
    # secants of ln epsilon over ln z in a bracket, where z is the noise multiplier
    most = epsilon * (1.0 - CALIBRATION_STEP)

    def excess(where: Places, noises: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(of_epsilon(noises, log_delta[where])[1]) - np.log(most[where]) + CALIBRATION_STEP

    def is_met(where: Places, noises: Array) -> Any:
        inside = noises <= LARGEST_NOISE
        return inside & (of_epsilon(np.where(inside, noises, 1.0), log_delta[where])[1] <= most[where])

    # as in classical_noise
    z = np.clip(np.sqrt(2.0 * math.log(1.25) - 2.0 * log_delta) / epsilon, SMALLEST_NOISE, LARGEST_NOISE)
    low, high = np.full(z.size, SMALLEST_NOISE), np.full(z.size, LARGEST_NOISE)
    last, at_last, fall = z.copy(), np.full(z.size, math.nan), np.ones(z.size)
    waiting, blind = np.arange(z.size), np.zeros(z.size, bool)
    for turn in range(MOST_TRIES):
        x, value = z[waiting], excess(waiting, z[waiting])
        low[waiting], high[waiting] = np.where(value > 0.0, (x, high[waiting]), (low[waiting], x))
        blind[waiting] = np.where(value > 0.0, value == math.inf, blind[waiting])
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (at_last[waiting] - value) / np.log(x / last[waiting])
        fall[waiting] = np.where(np.isfinite(slope) & (slope > 0.0), np.clip(slope, 0.1, 1e6), fall[waiting])
        last[waiting], at_last[waiting] = x, value
        step = np.clip(value / fall[waiting], -1.0, 1.0)
        moved, a, b = x * np.exp(step), low[waiting], high[waiting]
        # Every fourth step bisects, in case the kernel has no value below some noise.
        inside = (a <= moved) & (moved <= b) & ((turn % 4 < 3) | (np.abs(step) <= CALIBRATION_STEP))
        z[waiting] = np.where(inside, moved, np.sqrt(a) * np.sqrt(b))
        is_open = (np.abs(step) > CALIBRATION_STEP) & (b - a > CALIBRATION_STEP * b)
        # After nine steps a row without values is evaluated by the scalar query.
        waiting = waiting[is_open & ~(blind[waiting] & (turn > 8))]
        if not waiting.size:
            break
    z[waiting] = high[waiting]
    # Where the kernel has no value below a noise, the scalar query is used.
    z[blind] = math.inf
    # If the epsilon at a noise multiplier meets the target, so does its delta (C24).
    return _moved_until(is_met, z, CALIBRATION_STEP, math.inf)
