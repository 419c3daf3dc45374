"""Calibrate one parameter of a mechanism or a run to a privacy target.

The target is ``(epsilon, delta)`` or an attack risk: the advantage, or the true positive rate at a false positive rate
(C30). Every search ends by evaluating epsilon, delta or the risk at its result, so the result meets the target (C24).

A search looks for the zero of the *excess*: the log of the delta of the run at the target epsilon, minus the log of the
target delta. A parameter value meets the target if the excess is at most 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any, NotRequired, Unpack

from privproj.accounting.phase import Phase, check_mechanism, numerics_of
from privproj.accounting.query import Composition, build_result, composition_of, query_of
from privproj.accounting.vectorized_kernels import meets_in_columns
from privproj.errors import ConvergenceError, InvalidParameterError, PrivprojError, QueryError, UnsupportedError
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import mechanism_named, mechanism_names
from privproj.numerics.interval import Enclosure
from privproj.numerics.root_finding import find_crossing, largest_integer, minimize
from privproj.parameters import LARGEST_NOISE, SMALLEST_NOISE, arguments_by_name
from privproj.profiles.conversion import SPARE_LOG, leads_with_epsilon, log_excess, meets, number_before, resolved_at
from privproj.profiles.gaussian import find_noise
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, Representation
from privproj.profiles.tradeoff import gaussian_mu_of_risk, risk_of
from privproj.result import Outcome, Result, Side, risk_text
from privproj.run import Run, RunOptions, without_batch_sizes
from privproj.sampling import IN_EPOCHS
from privproj.targets import FullTarget, RiskTarget, target_from, target_names

Releases = Sequence[tuple[Representation, Run]]  # the bound of one release of each phase, and the run of the phase

MOST_STEPS = 10**8  # largest number of releases that the steps query and ``remaining`` search
MOST_GUESSES = 12  # most steps of a secant in ln x, before a search with a bracket starts
LARGEST_GUESS_STEP = 1.0  # largest step of a secant in ln x

MOST_RARE = 1e12  # 1 / smallest sampling rate of the rate query

MOST_ALIGNED = 1e15  # 1 / smallest misalignment of the misalignment query

COMPOSED_RTOL = 1e-6  # relative, of a noise multiplier at a risk for a composed curve

# soundness: relative distance of a composed epsilon below its target: other processors change it by 1e-9 (measured)
MACHINE_MARGIN = 4e-9

FIRST_STEP = 1e-12  # first relative step from the end of a search

# soundness: relative margin of ``mu`` at a lower end: a difference of close quantiles is off by 1e-8 (measured)
CLOSED_FORM_MARGIN = 1e-7

# note on the least noise multiplier
LEAST_NOISE_NOTE = (
    "The smallest noise multiplier of the search meets this target. The target allows the release of whole records. "
    "Use a smaller epsilon or delta."
)

ROUGH_NOISE_RTOL = 1e-5  # relative, of a noise multiplier that is only compared in four digits


class _CalibrationOptions(RunOptions):
    epsilon: NotRequired[float]
    delta: NotRequired[float | None]
    log10_delta: NotRequired[float | None]
    bound: NotRequired[str | None]


class _SigmaOptions(_CalibrationOptions):
    advantage: NotRequired[float | None]
    tpr: NotRequired[float | None]
    fpr: NotRequired[float | None]


@arguments_by_name("sigma(mechanism, epsilon=1.0, delta=1e-5)")
def sigma(mechanism: Mechanism, **arguments: Unpack[_SigmaOptions]) -> Result:
    """Find the smallest noise multiplier that meets a target, rounded up.

    The noise multiplier is the standard deviation of the noise divided by the sensitivity. The target is
    ``(epsilon, delta)``, or the risk of an attack that distinguishes neighboring datasets, such as membership
    inference.

    Args:
        mechanism: The mechanism without its ``noise_multiplier``.
        **arguments: The target, ``bound`` (the name of a bound of the mechanism) and the run, as
            :class:`privproj.run.RunOptions` lists it. The target is one of: ``epsilon``, above 0 and at most 1e9, with
            ``delta`` or its decimal logarithm ``log10_delta``, from -1e6 to below 0; ``advantage``, the largest
            difference of true and false positive rate of any attack; or ``tpr``, the largest true positive rate of any
            attack at the false positive rate ``fpr``.

    Returns:
        A result whose ``value`` is the noise multiplier. The epsilon or the risk of the same bound at that value is
        never above the target. ``value`` is None (outcome vacuous) if no noise multiplier up to 1e12 meets the target.

    Raises:
        InvalidParameterError: A value is outside its domain, two targets are given, or the mechanism has no noise
            multiplier or already has it set.
        UnsupportedError: The bound does not support this mechanism and run.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: Delta is below the rounding error of a composition.

    >>> from privproj import M2, sigma
    >>> round(sigma(M2(dim=2048, rank=16), epsilon=1.0, delta=1e-5).value, 4)
    0.3814
    >>> round(sigma(M2(dim=2048, rank=16), tpr=0.02, fpr=0.01).value, 4)
    0.3411
    """
    require_unset(mechanism, "noise_multiplier", "sigma")
    query, target, result = _calibrate("sigma", mechanism, solve_sigma, arguments)
    return replace(result, query=query.with_mechanism(noise_multiplier=result.value), target=target)


@arguments_by_name("rank(mechanism, epsilon=1.0, delta=1e-5)")
def rank(mechanism: Mechanism, **arguments: Unpack[_CalibrationOptions]) -> Result:
    """Find the largest or smallest rank of the projection that meets ``(epsilon, delta)``.

    It is the largest rank for mechanisms whose epsilon increases with the rank, and otherwise the smallest one.

    Args:
        mechanism: The mechanism without its ``rank``.
        **arguments: ``epsilon``, from 0 to 1e9; ``delta``, or its decimal logarithm ``log10_delta``, from -1e6 to below
            0; ``bound``, the name of a bound of the mechanism; and the run, as :class:`privproj.run.RunOptions` lists
            it.

    Returns:
        A result whose ``value`` is a rank that meets the target. It is the largest one if epsilon increases with the
        rank (m2, sketch), and the smallest one if epsilon decreases (m1, sketch-public). For wishart epsilon first
        decreases and then increases: ``value`` and ``upper`` are the largest rank and ``lower`` is the smallest one.
        That every rank between them meets the target is observed, not proved. If the run is composed numerically, a
        rank outside this range may meet the target too, because of rounding. ``value`` is None (outcome vacuous) if no
        rank meets the target.

    Raises:
        InvalidParameterError: A value is outside its domain, or the mechanism has no rank, already has it set, or has
            layers.
        UnsupportedError: The bound does not support this mechanism and run.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: Delta is below the rounding error of a composition.

    >>> from privproj import M2, rank
    >>> rank(M2(dim=2048, noise_multiplier=0.5), epsilon=1.0, delta=1e-5).value
    31
    """
    require_unset(mechanism, "rank", "rank")
    if layers := vars(mechanism).get("layers"):
        raise InvalidParameterError(
            "layers", ", ".join(map(str, layers)), "omitted to calibrate the rank", "give dim instead"
        )
    return _calibrate("rank", mechanism, _solve_rank, arguments)[2]


@arguments_by_name("steps(mechanism, epsilon=1.0, delta=1e-5)")
def steps(mechanism: Mechanism, **arguments: Unpack[_CalibrationOptions]) -> Result:
    """Find the largest number of releases whose composition meets ``(epsilon, delta)``.

    Args:
        mechanism: The mechanism with its noise multiplier and its rank.
        **arguments: ``epsilon``, from 0 to 1e9; ``delta``, or its decimal logarithm ``log10_delta``, from -1e6 to below
            0; ``bound``, the name of a bound of the mechanism; and the run, as :class:`privproj.run.RunOptions` lists
            it, without ``steps``.

    Returns:
        A result whose ``value`` is a number of releases (of epochs, for partition, balls-in-bins and shuffle). It is
        None (outcome vacuous) if a single release exceeds the target.

    Raises:
        InvalidParameterError: A value is outside its domain, or ``steps`` is given.
        UnsupportedError: The bound does not support this mechanism and run.
        ConvergenceError: More than 1e8 releases meet the target, or a quadrature or a search did not reach its
            accuracy.
        PrecisionError: Delta is below the rounding error of a composition.

    >>> from privproj import Gaussian, steps
    >>> steps(Gaussian(noise_multiplier=10.0), epsilon=1.0, delta=1e-5).value
    7
    """
    _require_unset_in_run(arguments, "steps", "steps", "epochs")
    return _calibrate("steps", mechanism, _solve_steps, arguments)[2]


@arguments_by_name("rate(mechanism, epsilon=1.0, delta=1e-5)")
def rate(mechanism: Mechanism, **arguments: Unpack[_CalibrationOptions]) -> Result:
    """Find the largest sampling rate that meets ``(epsilon, delta)``, rounded down.

    Args:
        mechanism: The mechanism with its noise multiplier and its rank.
        **arguments: ``epsilon``, from 0 to 1e9; ``delta``, or its decimal logarithm ``log10_delta``, from -1e6 to below
            0; ``bound``, the name of a bound of the mechanism; and the run, as :class:`privproj.run.RunOptions` lists
            it, without a rate.

    Returns:
        A result whose ``value`` is a sampling rate above 0 and at most 1. It is 1, with a warning, if the target also
        holds with the whole dataset at every step. It is None (outcome vacuous) if a rate of 1e-12 does not meet the
        target.

    Raises:
        InvalidParameterError: A value is outside its domain, or ``sampling_rate`` is given.
        UnsupportedError: The bound does not support this mechanism and run.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: Delta is below the rounding error of a composition.

    >>> from privproj import Gaussian, rate
    >>> round(rate(Gaussian(noise_multiplier=1.0), epsilon=1.0, delta=1e-5, steps=100).value, 5)
    0.01391
    """
    _require_unset_in_run(arguments, "rate", "sampling_rate", "batch_size", "epochs")
    check_mechanism(mechanism)
    relation = arguments.get("relation") or mechanism.default_relation
    wanted = arguments.get("sampling")
    wanted = ("fixed" if relation == "replace" else "poisson") if wanted is None else wanted
    if wanted in IN_EPOCHS:
        remedy = f"with {wanted} sampling, calibrate the number of epochs with the query steps"
        raise InvalidParameterError("sampling", wanted, "poisson or fixed to calibrate the sampling rate", remedy)
    return _calibrate("rate", mechanism, _solve_rate, {**arguments, "sampling": wanted, "sampling_rate": 0.5})[2]


@arguments_by_name("misalignment(mechanism, epsilon=1.0, delta=1e-5)")
def misalignment(mechanism: Mechanism, **arguments: Unpack[_CalibrationOptions]) -> Result:
    """Find the largest misalignment that meets ``(epsilon, delta)``, rounded down.

    The misalignment is one minus the cosine of the angle between the vectors that neighboring datasets give to the
    mechanism.

    Args:
        mechanism: A mechanism without its misalignment: :class:`Wishart`, or :class:`M1` with its bound
            secret-projection.
        **arguments: ``epsilon``, from 0 to 1e9; ``delta``, or its decimal logarithm ``log10_delta``, from -1e6 to below
            0; ``bound``, the name of a bound of the mechanism; and the run, as :class:`privproj.run.RunOptions` lists
            it.

    Returns:
        A result whose ``value`` is the largest misalignment that meets the target, at most 1.96. ``value`` is None
        (outcome vacuous) if a misalignment of 1e-15 does not meet it.

    Raises:
        InvalidParameterError: A value is outside its domain, or the mechanism has no misalignment or already has it
            set.
        UnsupportedError: The bound does not support this mechanism and run.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: Delta is below the rounding error of a composition.

    >>> from privproj import Wishart, misalignment
    >>> f"{misalignment(Wishart(dim=1000, rank=16), epsilon=1.0, delta=1e-5).value:.4g}"
    '0.0001244'
    """
    require_unset(mechanism, "misalignment", "misalignment")
    return _calibrate("misalignment", mechanism, _solve_misalignment, arguments)[2]


def _calibrate(
    quantity: str, mechanism: Mechanism, solve: Callable[[Composition, Any], Result], arguments: Mapping[str, Any]
) -> tuple[Composition, Any, Result]:
    """Calibrate one parameter; return the query without this parameter, the target and the result."""
    run: Any = {name: value for name, value in arguments.items() if name not in (*target_names(quantity), "bound")}
    query = composition_of(mechanism, arguments.get("bound"), without_batch_sizes(run, quantity))
    target = target_from(arguments, quantity)
    return query, target, solve(query, target)


def require_unset(mechanism: Mechanism, parameter: str, quantity: str) -> None:
    """Raise an error unless the mechanism has the parameter, and its value is None."""
    if isinstance(mechanism, type) and issubclass(mechanism, Mechanism):
        remedy = f"write {mechanism.call_text(without=parameter)}"
        raise InvalidParameterError("mechanism", f"the class {mechanism.__name__}", "an instance", remedy)
    check_mechanism(mechanism)
    if parameter not in vars(mechanism):
        kinds = [kind for kind in map(mechanism_named, mechanism_names()) if parameter in kind.__dataclass_fields__]
        names = ", ".join(kind.name for kind in kinds if kind.finds_rank or parameter != "rank")
        expected = f"a mechanism with a {parameter.replace('_', ' ')}"
        raise InvalidParameterError("mechanism", mechanism.name, expected, f"use one of {names}")
    if vars(mechanism)[parameter] is not None:
        raise InvalidParameterError(
            parameter, vars(mechanism)[parameter], "omitted", f"the query {quantity} computes it"
        )


def _require_unset_in_run(run: Mapping[str, Any], quantity: str, *names: str) -> None:
    for parameter in (name for name in names if name in run):
        raise InvalidParameterError(parameter, run[parameter], "omitted", f"the query {quantity} computes it")


class Search:
    """A search for the smallest or largest parameter value that meets a privacy target.

    ``query_at`` returns the mechanism and run for a parameter value.
    """

    def __init__(self, query_at: Callable[[Any], Composition], target: FullTarget | RiskTarget) -> None:
        self.query_at, self.target = query_at, target
        # The last checks of a search evaluate up to eight curves again.
        self.curve = lru_cache(maxsize=8)(self._curve)
        self.excess = cache(self._excess)

    def _curve(self, x: Any) -> Curve:
        # deltas below double precision need a slower curve
        curve = self.query_at(x).curve()
        return curve if isinstance(self.target, RiskTarget) else resolved_at(curve, self.target.log_delta)

    def _margin(self, x: Any, margin: float) -> float:
        return margin if margin and numerics_of(self.curve(x)) else 0.0

    def _excess(self, x: Any, margin: float = 0.0) -> float:
        """Return a number that is at most 0 if the run meets the target at the parameter value ``x``.

        For a numerically composed run, the target epsilon is first reduced by the relative ``margin``.
        """
        # ln delta_x(epsilon) - ln delta, with the privacy profile delta_x of the run. For an attack risk it is
        # ln mu_x - ln mu: unit Gaussians at the distance mu_x have the risk of the run, and at mu the target risk.
        target = self.target
        if not isinstance(target, RiskTarget):
            return log_excess(self.curve(x), replace(target, epsilon=target.epsilon * (1.0 - self._margin(x, margin))))
        try:
            spread = gaussian_mu_of_risk(risk_of(self.curve(x), target), target.fpr)
        except QueryError:  # too little noise for a finite risk
            return math.inf
        return math.log(spread / gaussian_mu_of_risk(target.value, target.fpr)) if spread > 0.0 else -math.inf

    def meets(self, x: Any, margin: float = 0.0) -> bool:
        """Return whether the run meets the target at the parameter value ``x`` (C24, C30).

        For a numerically composed run, the target epsilon is first reduced by the relative ``margin``.
        """
        # Scalar queries and array queries must both meet the target.
        query, target, curve = self.query_at(x), self.target, self.curve(x)
        if isinstance(target, RiskTarget):
            return risk_of(curve, target) <= target.value
        if not meets(curve, target, self._margin(x, margin)):
            return False
        return not query.is_plain or meets_in_columns(query.only, target, curve)

    def result(self, quantity: str, x: Any, value: float, interval: Enclosure, **fields: Any) -> Result:
        """Return the calibrated parameter as a :class:`privproj.Result`.

        ``x`` is the final parameter value of the search, which may be the inverse of ``value``. ``interval`` encloses
        the exact solution of the calibration.
        """
        query = self.query_at(x)
        if quantity == "sigma" and value == SMALLEST_NOISE:
            fields["warnings"] = (*query.notes, LEAST_NOISE_NOTE)
        curve = None if query.grid_step is None else self.curve(x)
        return build_result(query, quantity, value, interval, curve, **{**self.target.fields(), **fields})

    def guess(self, otherwise: float) -> float:
        """Return a first guess of the parameter value, or ``otherwise`` if none is known."""
        return initial_noise(lambda x: [phase.guess() for phase in self.query_at(x).phases], self.target, otherwise)

    def least(
        self, guess: float, *, low: float, high: float, rtol: float, fall: float | None = None
    ) -> tuple[float, float]:
        """Return a value just above the smallest parameter value that meets the target, and a slope.

        Epsilon must decrease with the parameter. The value is ``inf`` if no number up to ``high`` meets the target. The
        slope is the decrease of the log of delta per unit of the log of the parameter. ``fall`` is a first guess of the
        slope.
        """
        excess, passes = partial(self.excess, margin=MACHINE_MARGIN), partial(self.meets, margin=MACHINE_MARGIN)
        crossing, fall = find_crossing_by_secants(excess, guess, low=low, high=high, rtol=rtol, fall=fall)
        return _smallest_passing(passes, crossing, max(1e-2 * rtol, FIRST_STEP), high), fall

    def last_whole(
        self, best: int, end: int, *, guide: Callable[[int], float] | None = None, guess: int | None = None
    ) -> int | None:
        """Return the last integer from ``best`` towards ``end`` that meets the target, or None.

        ``guide`` approximates, at lower cost, the log of the delta of the run minus the log of the target delta.
        """
        onwards = 1 if end > best else -1

        def number_at(x: float) -> int:
            return round(1.0 / x if end > best else x)

        @cache
        def passes(n: int) -> bool:
            return self.excess(n) <= 0.0 and self.meets(n)

        low, high = (1.0 / end, 1.0 / best) if end > best else (float(end), float(best))
        x, fall = (
            (1.0 / guess, None)
            if guess
            else rough_crossing(lambda x: (guide or self.excess)(number_at(x)), high, low, high)
        )
        rtol = max(0.5 * (x if end > best else 1.0 / x), 1e-9)
        x, _ = find_crossing_by_secants(
            lambda x: self.excess(number_at(x)), x, low=low, high=high, rtol=rtol, fall=fall
        )
        n, stride = number_at(min(x, high)), 1
        while not passes(n):
            if n == best:
                return None
            n, stride = n - onwards * stride, 2 * stride
            n = max(n, best) if end > best else min(n, best)
        return n + onwards * (largest_integer(lambda k: passes(n + onwards * k), 0, abs(end - n)) or 0)


def noise_factor(query: Composition, target: FullTarget | RiskTarget) -> float:
    """Return the smallest factor for the noise multipliers of all phases that meets a target.

    Raises:
        UnsupportedError: No factor from 1e-6 to 1e6 meets the target.
    """
    search = Search(query.scaled, target)
    rtol = COMPOSED_RTOL if isinstance(target, RiskTarget) else 1e-7
    factor, _ = search.least(search.guess(1.0), low=1e-6, high=1e6, rtol=rtol)
    if factor == math.inf:
        pair = "" if isinstance(target, RiskTarget) else f"epsilon {target.epsilon:g} and delta {target.delta:g}"
        missed = risk_text(target.parameters()) if isinstance(target, RiskTarget) else pair
        raise UnsupportedError(f"no scaling of the noise meets {missed}. Use a larger epsilon or delta")
    return factor


def steps_after(query: Composition, target: FullTarget) -> int:
    """Return the largest number of steps of the last phase for which the run meets a target.

    The result is at most 1e8. It is 0 if one step exceeds the target.
    """
    *before, last = query.phases
    search = Search(lambda steps: replace(query, phases=(*before, last.with_run(steps=steps))), target)
    # The first guess uses the phases with a profile.
    releases = [phase.guess() for phase in before if phase.accountant is None]
    return search.last_whole(1, MOST_STEPS, guess=steps_guess(releases, last.guess(), target)) or 0


def _smallest_passing(passes: Callable[[float], bool], start: float, step: float, largest: float) -> float:
    """Return a number from ``start`` to ``largest`` for which ``passes`` is true, or ``inf``."""
    # The relative difference of successive numbers begins at ``step`` and grows by a factor of four.
    x = start
    while x <= largest:
        if passes(x):
            return x
        x *= 1.0 + step
        step *= 4.0
    return math.inf


@query_of("sigma")
def solve_sigma(query: Composition, target: FullTarget | RiskTarget, *, roughly: bool = False) -> Result:
    """Return the smallest noise multiplier with which a run meets a target.

    If ``roughly`` is True, the noise multiplier is less accurate, and the result has no lower bound.
    """
    search = Search(lambda z: query.with_mechanism(noise_multiplier=z), target)
    if isinstance(target, RiskTarget):
        return _solve_sigma_at_risk(query, target, search)

    def at(z: float) -> Enclosure:
        return search.curve(z).log_delta(target.epsilon)

    run, limits = query.only.run, {"low": SMALLEST_NOISE, "high": LARGEST_NOISE}
    guess, rtol, fall = classical_noise(target), 1e-12, 1.0
    guess = guess if run.single else search.guess(guess)
    first = search.curve(guess)
    numerics = {} if run.single else numerics_of(first)
    if numerics:
        # A grid has a discretization error, which a more accurate search cannot remove.
        rtol = 1e-3 if "grid" in numerics else 1e-4 if run.allocates else 1e-7
        rtol = max(rtol, ROUGH_NOISE_RTOL) if roughly else rtol
        noise, fall = search.least(guess, rtol=rtol, **limits)
    else:
        # Aim so far below the target that the first candidate meets it on every processor (C24): one number of thirteen
        # digits in epsilon, and a few widths of an enclosure in delta unless the enclosure is too wide.
        before, width = number_before(first, target.epsilon), at(guess).upper - at(guess).lower
        aim = target.log_delta - 2.0 * SPARE_LOG - (12.0 * width if width < 1e-9 else 0.0)
        near = find_crossing(lambda z: search.curve(z).log_delta(before).upper - aim, guess, rtol=rtol, **limits).upper
        noise = _smallest_passing(search.meets, near, FIRST_STEP, LARGEST_NOISE)
    if noise == math.inf:
        first.epsilon(target.log_delta)  # raises below a floor
        return _vacuous_result(query, "sigma", **target.fields())
    curve, lower = search.curve(noise), None
    gap = math.inf if roughly or leads_with_epsilon(curve) else at(noise).upper - at(noise).lower
    if gap < math.inf:
        # ln delta decreases several times faster than ln z increases. Search the lower end to a small part of the gap.
        spread, rtol = max(1e-10, rtol, 0.05 * gap), max(1e-11, rtol, 0.003 * gap)
        near = noise
        if numerics:
            near, spread = noise * math.exp((at(noise).lower - target.log_delta) / fall), rtol
        end = find_crossing(lambda z: at(z).lower - target.log_delta, near, spread=spread, rtol=rtol, **limits).lower
        lower = min(noise, end)
    interval = Enclosure(-math.inf if lower is None else lower, noise)
    return search.result("sigma", noise, noise, interval, side=search.query_at(noise).side(curve))


@query_of("rank")
def _solve_rank(query: Composition, target: FullTarget) -> Result:
    search = Search(lambda rank: query.with_mechanism(rank=rank), target)
    excess, limit, shape = search.excess, query.only.mechanism.rank_limit, query.only.mechanism.with_rank
    rough = cache(lambda rank: sparse_excess(search.query_at(rank).only, target))
    guide = excess if query.only.run.single else rough
    best = {"grows": 1, "falls": limit}.get(shape) or _best_rank(guide, limit)
    if shape == "u-shaped" and excess(best) > 0.0:
        ends = max(math.log(best) - 1.0, 0.0), min(math.log(best) + 1.0, math.log(limit))
        best = round(math.exp(minimize(lambda x: excess(round(math.exp(x))), *ends, rtol=1e-3, points=5)[0]))
    smallest, largest = (
        None if shape == other or excess(best) > 0.0 else search.last_whole(best, end, guide=guide)
        for other, end in (("grows", 1), ("falls", limit))
    )
    fitting = largest or smallest
    side = Side.LOWER if largest else Side.UPPER
    if fitting is None:
        return _vacuous_result(query, "rank", side=side, **target.fields())
    interval = Enclosure(smallest or fitting, fitting if smallest else math.inf)
    return search.result("rank", fitting, fitting, interval, side=side)


def _best_rank(excess: Callable[[int], float], limit: int) -> int:
    """Return a rank at which ``excess`` is at most 0, or else a rank at which it is nearly smallest."""

    def at(x: float) -> float:
        return excess(round(math.exp(x)))

    scan = [math.log(limit) * i / 12.0 for i in range(13)]
    # Try thirteen ranks, evenly spaced in their logs, starting with index 4.
    for i in sorted(range(13), key=lambda i: abs(i - 4)):
        if at(scan[i]) <= 0.0:
            return round(math.exp(scan[i]))
    best = min(range(13), key=lambda i: at(scan[i]))
    return round(math.exp(minimize(at, scan[max(best - 1, 0)], scan[min(best + 1, 12)], rtol=1e-3, points=7)[0]))


@query_of("steps")
def _solve_steps(query: Composition, target: FullTarget) -> Result:
    search = Search(lambda count: query.with_run(steps=count), target)
    largest = search.last_whole(1, MOST_STEPS, guess=steps_guess([], query.only.guess(), target))
    if largest == MOST_STEPS:
        raise ConvergenceError(
            f"the largest number of steps is above {MOST_STEPS:.0e}, where the search ends. Use a smaller epsilon or "
            "delta."
        )
    return _largest_result(query, "steps", search, largest, largest)


@query_of("rate")
def _solve_rate(query: Composition, target: FullTarget) -> Result:
    sampling = query.only.run.sampling
    search = Search(lambda x: query.with_run(sampling_rate=min(1.0 / x, 1.0), sampling=sampling), target)
    x, _ = search.least(search.guess(100.0), low=1.0, high=MOST_RARE, rtol=1e-7)
    all_fits = ("Sampling rate 1 meets the target: every step may use the whole dataset.",) if x == 1.0 else ()
    return _largest_result(query, "rate", search, x, 1.0 / x, warnings=(*query.notes, *all_fits))


@query_of("misalignment")
def _solve_misalignment(query: Composition, target: FullTarget) -> Result:
    """Return the largest misalignment of neighboring datasets that meets a target."""
    search = Search(lambda x: query.with_mechanism(misalignment=1.0 / x), target)
    limits, single = {"low": 0.51, "high": MOST_ALIGNED}, query.only.run.single
    rough = cache(lambda x: sparse_excess(search.query_at(x).only, target))
    guess, fall = rough_crossing(search.excess if single else rough, 1e4, **limits)
    x, _ = search.least(guess, rtol=1e-9 if single else 1e-7, fall=fall, **limits)
    return _largest_result(query, "misalignment", search, x, 1.0 / x)


def _largest_result(
    query: Composition, quantity: str, search: Search, x: Any, value: float | None, **details: Any
) -> Result:
    """Return the result for the largest parameter value that meets a target.

    The outcome is vacuous if ``value`` is None or 0.
    """
    if not value:
        return _vacuous_result(query, quantity, side=Side.LOWER, **search.target.fields())
    return search.result(quantity, x, value, Enclosure(value, math.inf), side=Side.LOWER, **details)


def _vacuous_result(query: Composition, quantity: str, **fields: Any) -> Result:
    """Return the result of a calibration for which no parameter value meets the target."""
    larger = "risk" if "risk" in fields else "epsilon or delta"
    if quantity == "steps":
        why = f"Not even one step meets this target. Use a larger {larger}, or {query.remedy}."
    else:
        fewer = ", or a run with fewer steps" if query.only.run.steps > 1 else ""
        noisy = quantity != "sigma" and getattr(query.only.mechanism, "noise_multiplier", None) is not None
        noise = ", or a larger noise multiplier" if noisy else ""
        why = f"No value meets this target. Use a larger {larger}{noise}{fewer}."
    count = getattr(query.only.mechanism, "adaptive_clipping_sigma", None)
    if quantity == "sigma" and count is not None:
        why = (
            f"The count for adaptive clipping, with adaptive_clipping_sigma {count:g}, exceeds the target at any noise "
            "multiplier. Use a larger adaptive_clipping_sigma."
        )
    warnings = (*query.notes, why)
    return build_result(query, quantity, None, **{"outcome": Outcome.VACUOUS, "warnings": warnings, **fields})


# --- first guesses, which change the duration of a search, not its result --------------------------------------


def classical_noise(target: FullTarget) -> float:
    """Return the noise multiplier of the classical Gaussian mechanism as a first guess."""
    # z = sqrt(2 ln(1.25/delta)) / eps (Dwork, Roth 2014, Theorem A.1).
    return min(math.sqrt(2.0 * math.log(1.25) - 2.0 * target.log_delta) / target.epsilon, LARGEST_NOISE)


def _plain_run(run: Run) -> Run:
    """Return a Poisson-sampled run with an epsilon close to that of a balls-in-bins run."""
    if run.allocates and run.batches is not None:
        return Run(steps=run.steps * run.batches, sampling_rate=run.batches_per_record / run.batches)
    return Run(steps=run.steps, sampling_rate=run.sampling_rate)


def _target_deviation(target: FullTarget | RiskTarget) -> float:
    """Return the approximate GDP parameter of a Gaussian release that meets the target."""
    if isinstance(target, RiskTarget):
        return gaussian_mu_of_risk(target.value, target.fpr)
    near = classical_noise(target) if target.epsilon else 1.0
    noise = find_noise(target.epsilon, target.log_delta, rtol=1e-3, near=near)
    return 1.0 / min(noise.upper, LARGEST_NOISE)


def initial_noise(at: Callable[[float], Releases], target: FullTarget | RiskTarget, guess: float) -> float:
    """Return a first guess of a noise multiplier, or of the inverse of a sampling rate.

    ``at`` returns the releases of the run for a value of this parameter. ``guess`` is returned if nothing better is
    known.
    """
    # The search assumes that the standard deviation decreases approximately like 1/x.
    wanted = _target_deviation(target)
    x, fall, last = guess, 1.0, None
    for _ in range(MOST_GUESSES):
        spread = _deviation_of(at(x), target)
        if math.isnan(spread):
            return guess
        excess = math.log(max(spread, SMALLEST_NOISE) / wanted)
        if last and last[0] != x and excess != last[1]:
            fall = min(max((last[1] - excess) / math.log(x / last[0]), 0.3), 3.0)
        # relative accuracy of the standard deviation of the loss from which a search starts
        if abs(excess) < 0.02:
            break
        last = (x, excess) if excess < math.inf else None
        x = min(max(x * math.exp(min(max(excess / fall, -LARGEST_GUESS_STEP), 2.0)), SMALLEST_NOISE), LARGEST_NOISE)
    return x


def _deviation_of(releases: Releases, target: FullTarget | RiskTarget | None = None) -> float:
    """Return the approximate standard deviation of the privacy loss of a run, in nats.

    The result is ``inf`` if the loss is too large to be tabulated, and nan if the run needs no numerical composition.
    """
    # Balls-in-bins is replaced by Poisson sampling. A GoodEvent, which adds the probability of a rare event to the
    # delta of a Gaussian run (C16), is replaced by this Gaussian run at half of the target delta.
    from privproj.composition.dominating_pairs import describe_coarsely
    from privproj.composition.good_event import GoodEvent

    squares, composed = [], len(releases) > 1
    try:
        for form, run in releases:
            if isinstance(form, GoodEvent) and isinstance(target, FullTarget):
                form = form.over_run(run).gaussian_release(target.log_delta - math.log(2.0))
            if not isinstance(form, PrivacyProfile):
                return math.nan
            composed = composed or not form.closed_form or run.sampling_rate < 1.0 or run.allocates
            plain = _plain_run(run)
            squares.append(plain.steps * describe_coarsely(form, plain).deviation ** 2)
    except PrivprojError:
        return math.inf
    return math.sqrt(math.fsum(squares)) if composed else math.nan


def steps_guess(before: Releases, last: tuple[Representation, Run], target: FullTarget | RiskTarget) -> int:
    """Return a first guess of the largest number of steps of the last phase that meets a target."""
    form, run = last
    profiles = [(form, run) for form, run in before if isinstance(form, PrivacyProfile)]
    spent, unit = _deviation_of(profiles) if profiles else 0.0, _deviation_of([(form, replace(run, steps=1))])
    left = _target_deviation(target) ** 2 - spent**2
    return min(max(int(left / unit**2), 1), MOST_STEPS) if left > 0.0 and 0.0 < unit < math.inf else 1


def find_crossing_by_secants(
    excess: Callable[[float], float], guess: float, *, low: float, high: float, rtol: float, fall: float | None = None
) -> tuple[float, float]:
    """Return a number just above the zero of the decreasing function ``excess``, and a slope.

    The slope is the decrease of the function per unit of the log of its argument. ``fall`` is a first guess of the
    slope.
    """
    # typical slope of ln delta in ln z
    fall = 10.0 if fall is None else fall
    x, last, step = min(max(guess, low), high), None, math.inf
    for _ in range(MOST_GUESSES):
        try:
            value = excess(x)
        except PrivprojError:
            break
        if not math.isfinite(value):
            break
        if last and last[0] != x and (last[1] - value) * (x - last[0]) > 0.0:
            fall = min(max((last[1] - value) / math.log(x / last[0]), 0.1), 1e3)
        last, step = (x, value), value / fall
        x = min(max(x * math.exp(min(max(step, -LARGEST_GUESS_STEP), LARGEST_GUESS_STEP)), low), high)
        # The secants end once a step is below 0.3 of the accuracy.
        if abs(step) < 0.3 * rtol:
            break
    # The root is about one step away from the last value. The first step of the bracketing search is a few such steps,
    # within limits that depend on the accuracy.
    spread = rtol * min(max(3.0 * abs(step) / rtol, 1e-3), 1.0 - 1e-3)
    start = last[0] if last else x
    return find_crossing(excess, start, low=low, high=high, spread=spread, rtol=rtol).upper, fall


def sparse_excess(phase: Phase, target: FullTarget) -> float:
    """Return approximately the log of a phase's delta minus the log of the target delta.

    It is computed on a coarse grid, to guide a search. It is ``inf`` if the phase cannot be evaluated.
    """
    try:
        # 3 values of the profile per standard deviation of the loss
        return log_excess(phase.curve(resolution=3.0), target)
    except PrivprojError:
        return math.inf


def rough_crossing(
    rough: Callable[[float], float], guess: float, low: float, high: float
) -> tuple[float, float | None]:
    """Return the zero of a decreasing function to 1 %, and the slope there if it is known.

    The slope is the decrease of the function per unit of the log of its argument.
    """
    near = find_crossing(rough, guess, low=low, high=high, rtol=1e-2)
    if not (near.lower > 0.0 and near.upper < math.inf and math.isfinite(rough(near.lower))):
        return near.upper, None
    fall = (rough(near.lower) - rough(near.upper)) / math.log(near.upper / near.lower)
    return near.upper, fall if fall > 0.0 else None


# --- an attack risk in place of epsilon and delta -------------------------------------------------------


def _solve_sigma_at_risk(query: Composition, target: RiskTarget, search: Search) -> Result:
    """Return the smallest noise multiplier that meets an attack risk (C30)."""
    spread = gaussian_mu_of_risk(target.value, target.fpr)
    # relative accuracy for a closed form
    guess, rtol = min(max(1.0 / spread, SMALLEST_NOISE), LARGEST_NOISE), 1e-12
    if not query.only.run.single:
        guess = search.guess(guess)
    if numerics_of(search.curve(guess)):
        # Curves of balls-in-bins take seconds.
        rtol = 1e-4 if query.only.run.allocates else COMPOSED_RTOL
    noise, _ = search.least(guess, low=SMALLEST_NOISE, high=LARGEST_NOISE, rtol=rtol)
    if noise == math.inf:
        return _vacuous_result(query, "sigma", **target.fields())
    # A Gaussian release with a larger mu has a larger risk (C30).
    lower, step = None if gaussian_mu(search.curve(noise)) is None else noise, FIRST_STEP
    while lower and (gaussian_mu(search.curve(lower)) or 0.0) <= (1.0 + CLOSED_FORM_MARGIN) * spread:
        lower, step = lower * (1.0 - step), 4.0 * step
        lower = lower if lower >= SMALLEST_NOISE else None
    # The value is exact only for the advantage, or for Gaussian curves. Other risks depend on the profile at several
    # epsilons.
    is_known = target.fpr is None or gaussian_mu(search.curve(noise)) is not None
    side = search.query_at(noise).side(search.curve(noise)) if is_known else Side.UPPER
    interval = Enclosure(-math.inf if lower is None else lower, noise)
    return search.result("sigma", noise, noise, interval, side=side)


def gaussian_mu(curve: Curve) -> float | None:
    """Return the GDP parameter of an exactly Gaussian privacy curve, and None for other curves."""
    return curve.gaussian_mu if isinstance(curve, PrivacyProfile) else None
