"""Calibration: the parameter that meets a target ``(epsilon, delta)``, returned at its safe end."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Unpack

from privproj.accounting.question import Question, answer, ask, numerics_of
from privproj.bounds import find, renyi_bound
from privproj.curves.inversion import meets, smallest_passing
from privproj.curves.profile import PrivacyProfile, Representation
from privproj.errors import InvalidParameter, NotConverged, PrivprojError
from privproj.mechanisms import Gaussian, Mechanism
from privproj.numerics.enclosure import Enclosure
from privproj.numerics.search import crossing, largest_integer, minimise
from privproj.result import Outcome, Result, Side
from privproj.runs import FullTarget, RunOptions, full_target
from privproj.validation import LARGEST, SMALLEST

MOST_STEPS = 10**8
"""Releases that the steps query searches to. Contract of the command line."""

MOST_RARE = 1e12
"""One over the smallest sampling rate that is tried."""

MOST_ALIGNED = 1e15
"""One over the smallest misalignment that is tried."""

ROUGH = 3.0
"""Values of a profile per deviation of the loss where only a first guess is needed. Speed only."""


def sigma(
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """The smallest noise multiplier ``z = sigma / sensitivity`` that meets ``(epsilon, delta)``, rounded up.

    The mechanism leaves ``noise_multiplier`` out. Asked for its epsilon at the returned value, the same bound never
    answers more than ``epsilon``. ``value`` is None (outcome vacuous) if no amount of noise meets the target.
    """
    require_unset(mechanism, "noise_multiplier", "sigma")
    target = full_target(epsilon, delta, log10_delta, zero=False)
    question = ask(mechanism, bound, run)
    return answer(question, "sigma", solve_sigma, target)


def rank(
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """The ranks of the projection at which the bound meets ``(epsilon, delta)``; the mechanism leaves ``rank`` out.

    ``value`` is the largest where epsilon grows with the rank (m2, sketch), the smallest where it falls
    (sketch-public). Where it falls first and then grows (wishart), ``value`` and ``upper`` are the largest and
    ``lower`` the smallest; that every rank between them fits is observed, not proved. ``value`` is None (outcome
    vacuous) if no rank fits.
    """
    require_unset(mechanism, "rank", "rank")
    if vars(mechanism).get("layers"):
        raise InvalidParameter("layers", mechanism.parameters()["layers"], "dim, not layers, for the rank query")
    target = full_target(epsilon, delta, log10_delta, zero=True)
    question = ask(mechanism, bound, run)
    return answer(question, "rank", solve_rank, target)


def steps(
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """The largest number of releases within ``(epsilon, delta)``, up to 1e8; ``value`` is None if not even one fits.

    Raises :class:`NotConverged` if more than 1e8 fit.
    """
    require_unset_in_run(run, "steps", "steps")
    target = full_target(epsilon, delta, log10_delta, zero=True)
    question = ask(mechanism, bound, run)
    return answer(question, "steps", solve_steps, target)


def rate(
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """The largest sampling rate within ``(epsilon, delta)``, rounded down; 1 with a warning if even that fits."""
    require_unset_in_run(run, "sampling_rate", "rate")
    target = full_target(epsilon, delta, log10_delta, zero=True)
    relation = run.get("relation") or mechanism.default_relation
    wanted = run.get("sampling")
    wanted = ("fixed" if relation == "replace" else "poisson") if wanted is None else wanted
    question = ask(mechanism, bound, {**run, "sampling": wanted, "sampling_rate": 0.5})
    return answer(question, "rate", solve_rate, target)


def misalignment(
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """The largest misalignment ``1 - rho`` within ``(epsilon, delta)``, rounded down; the mechanism leaves it out.

    ``value`` is None (outcome vacuous) if not even 1e-15 fits.
    """
    require_unset(mechanism, "misalignment", "misalignment")
    target = full_target(epsilon, delta, log10_delta, zero=True)
    question = ask(mechanism, bound, run)
    return answer(question, "misalignment", solve_misalignment, target)


def require_unset(mechanism: Mechanism, parameter: str, quantity: str) -> None:
    """Raise unless the mechanism has this parameter and leaves it out."""
    if parameter not in vars(mechanism):
        raise InvalidParameter("mechanism", mechanism.name, f"a mechanism with a {parameter}")
    if vars(mechanism)[parameter] is not None:
        raise InvalidParameter(parameter, vars(mechanism)[parameter], f"no {parameter}: it is what {quantity} finds")


def require_unset_in_run(run: RunOptions, parameter: str, quantity: str) -> None:
    """Raise where the run has the parameter that is to be found."""
    if parameter in run:
        raise InvalidParameter(parameter, run[parameter], f"no {parameter}: it is what {quantity} finds")


def solve_sigma(question: Question, target: FullTarget) -> Result:
    """:func:`sigma` of a question that is already parsed."""

    def at(z: float) -> Enclosure:
        return with_value(question, "noise_multiplier", z).curve().log_delta(target.epsilon)

    limits = {"low": SMALLEST, "high": LARGEST}
    guess, spread, rtol = classical_noise(target), 1.0, 1e-14
    if not question.run.single and not needs_no_grid(question, guess):
        guess, spread = coarse_noise(question, target, guess), 1e-3
        rtol = tolerance(question, guess)
    found = crossing(lambda z: at(z).upper - target.log_delta, guess, spread=spread, rtol=rtol, **limits).upper
    if found == math.inf:
        with_value(question, "noise_multiplier", guess).curve().epsilon(target.log_delta)  # raises below a floor
        return vacuous_answer(question, "sigma", **target.fields())
    found = smallest_passing(
        lambda z: answers_meet(with_value(question, "noise_multiplier", z), target), found, 1e-2 * rtol
    )
    if found > LARGEST:
        return vacuous_answer(question, "sigma", **target.fields())
    lower = None
    if at(found).lower > -math.inf:
        wide = max(1e-11, rtol)
        end = crossing(lambda z: at(z).lower - target.log_delta, found, spread=wide, rtol=wide, **limits).lower
        lower = min(found, end)
    answered = with_value(question, "noise_multiplier", found)
    side = answered.side(answered.curve())
    return answered.result("sigma", found, lower, side=side, **target.fields())


def needs_no_grid(question: Question, z: float) -> bool:
    """True if the curve of the question involves no grid."""
    return not numerics_of(with_value(question, "noise_multiplier", z).curve())


def tolerance(question: Question, z: float) -> float:
    """How closely a noise multiplier is worth searching: grids that follow the losses have their own error."""
    follows = "grid" in numerics_of(with_value(question, "noise_multiplier", z).curve())
    return 1e-3 if follows else 1e-7


def classical_noise(target: FullTarget) -> float:
    """The textbook noise multiplier of one release, as a first guess."""
    return min(math.sqrt(2.0 * math.log(1.25) - 2.0 * target.log_delta) / target.epsilon, LARGEST)


def renyi_noise(question: Question, target: FullTarget, guess: float) -> float:
    """The noise multiplier by a Renyi bound of the mechanism, or of the Gaussian: a guess without a composition."""
    run = replace(question.run, sampling=None, relation=None, group_size=1)
    mechanism, bound = question.mechanism, renyi_bound(type(question.mechanism))
    if bound is None:
        mechanism, bound = Gaussian(), find(Gaussian, "rdp")
    quick = replace(question, mechanism=mechanism, run=run, bound=bound)

    def excess(z: float) -> float:
        return with_value(quick, "noise_multiplier", z).curve().log_delta(target.epsilon).upper - target.log_delta

    try:
        return crossing(excess, guess, low=SMALLEST, high=LARGEST, rtol=0.05).lower or guess
    except PrivprojError:
        return guess


def coarse_noise(question: Question, target: FullTarget, guess: float) -> float:
    """The noise multiplier on a coarse grid, a close guess for a fine one; roughly, where that has no answer."""
    guess = renyi_noise(question, target, guess)

    def rough(asked: Question, spread: float) -> float:
        def excess(z: float) -> float:
            return with_value(asked, "noise_multiplier", z).curve().log_delta(target.epsilon).upper - target.log_delta

        return crossing(excess, guess, low=SMALLEST, high=LARGEST, spread=spread, rtol=1e-3).upper

    if question.run.discretization is not None:
        return guess
    try:
        grid = numerics_of(with_value(question, "noise_multiplier", guess).curve()).get("grid_step")
        if isinstance(grid, float):
            return rough(with_run(question, discretization=min(10.0 * grid, 1.0)), 0.1)
    except PrivprojError:
        pass
    try:
        return rough(question, 1.0)
    except PrivprojError:
        return guess


def solve_rank(question: Question, target: FullTarget) -> Result:
    """:func:`rank` of a question that is already parsed."""

    @cache
    def excess(rank: int) -> float:
        return with_value(question, "rank", rank).curve().log_delta(target.epsilon).upper - target.log_delta

    @cache
    def rough(rank: int) -> float:
        return rough_excess(with_value(question, "rank", rank), target)

    def meets(rank: int) -> bool:
        return answers_meet(with_value(question, "rank", rank), target)

    limit, looked = question.mechanism.rank_limit, None if question.run.single else rough
    smallest, largest = rank_ends(excess, question.mechanism.with_rank, limit, looked)
    largest = largest and first_passing(meets, largest, -1, smallest or 1)
    smallest = smallest and first_passing(meets, smallest, 1, largest or limit)
    found = largest or smallest
    side = Side.LOWER if largest else Side.UPPER
    if found is None:
        return vacuous_answer(question, "rank", side=side, **target.fields())
    upper = found if smallest else None
    return with_value(question, "rank", found).result(
        "rank", found, smallest or found, upper=upper, side=side, **target.fields()
    )


def rank_ends(
    excess: Callable[[int], float], shape: str, limit: int, rough: Callable[[int], float] | None = None
) -> tuple[int | None, int | None]:
    """``(smallest, largest)`` rank up to ``limit`` without excess; None for an end that is not asked for or missing.

    ``rough`` is a cheaper excess that says where to look.
    """

    def fits(rank: int) -> bool:
        return excess(rank) <= 0.0

    if shape == "grows":
        return None, largest_integer(fits, 1, limit)
    if shape != "u-shaped":
        if not fits(limit):
            return None, None
        return (largest_integer(lambda rank: not fits(rank), 1, limit) or 0) + 1, None
    rough = rough or excess
    best = lowest_rank(rough, limit)
    if not fits(best):
        best = round(math.exp(minimise(lambda x: excess(round(math.exp(x))), 0.0, math.log(limit), rtol=1e-3)[0]))
    if not fits(best):
        return None, None
    return rank_end(excess, rough, best, 1), rank_end(excess, rough, best, limit)


def lowest_rank(excess: Callable[[int], float], limit: int) -> int:
    """A rank that fits, or else nearly the one with the least excess."""

    def at(x: float) -> float:
        return excess(round(math.exp(x)))

    scan = [math.log(limit) * i / 12.0 for i in range(13)]
    best = min(range(13), key=lambda i: at(scan[i]))
    if at(scan[best]) <= 0.0:
        return round(math.exp(scan[best]))
    return round(math.exp(minimise(at, scan[max(best - 1, 0)], scan[min(best + 1, 12)], rtol=1e-3, points=7)[0]))


def rank_end(excess: Callable[[int], float], rough: Callable[[int], float], best: int, end: int) -> int:
    """The last rank without excess from ``best``, which has none, to ``end``: from where ``rough`` sees it."""
    near = best
    if rough(best) <= 0.0 < rough(end):
        near = last_fitting(rough, best, end, 1e-3)
    if excess(near) > 0.0:
        return last_fitting(excess, best, near, 0.0)
    stride, toward = max(1, round(1e-3 * near)), 1 if end > best else -1
    while near != end:
        further = min(near + stride, end) if toward > 0 else max(near - stride, end)
        if excess(further) > 0.0:
            return last_fitting(excess, near, further, 0.0)
        near, stride = further, 4 * stride
    return end


def last_fitting(excess: Callable[[int], float], inside: int, outside: int, rtol: float) -> int:
    """The last rank without excess between one that fits and one that does not, by secants in ``ln rank``."""
    at_inside, at_outside = excess(inside), excess(outside)
    for count in range(200):
        if abs(outside - inside) <= max(1.0, rtol * inside):
            break
        share = at_inside / (at_inside - at_outside) if math.isfinite(at_outside) and count % 3 != 2 else 0.5
        share = min(max(share, 0.02), 0.98)
        middle = round(math.exp((1.0 - share) * math.log(inside) + share * math.log(outside)))
        low, high = sorted((inside, outside))
        middle = min(max(middle, low + 1), high - 1)
        value = excess(middle)
        if value <= 0.0:
            inside, at_inside = middle, value
        else:
            outside, at_outside = middle, value
    return inside


def solve_steps(question: Question, target: FullTarget) -> Result:
    """:func:`steps` of a question that is already parsed."""

    @cache
    def excess(count: int) -> float:
        curve = with_run(question, steps=count).curve()
        return curve.log_delta(target.epsilon).upper - target.log_delta

    def count_at(x: float) -> int:
        return min(MOST_STEPS, max(1, int(1.0 / x)))

    x = crossing(lambda x: excess(count_at(x)), 1.0, low=1.0 / MOST_STEPS, high=1.0, spread=3.0, rtol=1e-9).upper
    if x == math.inf:
        return vacuous_answer(question, "steps", side=Side.LOWER, **target.fields())
    found = first_passing(lambda count: answers_meet(with_run(question, steps=count), target), count_at(x), -1, 1)
    if found is None:
        return vacuous_answer(question, "steps", side=Side.LOWER, **target.fields())
    if found == MOST_STEPS:
        raise NotConverged(f"more than {MOST_STEPS:.0e} steps fit; expected a target that fewer steps use up")
    return with_run(question, steps=found).result("steps", found, found, upper=None, side=Side.LOWER, **target.fields())


def solve_rate(question: Question, target: FullTarget) -> Result:
    """:func:`rate` of a question already put, by search over ``x = 1/q``."""

    def excess(x: float) -> float:
        curve = with_run(question, sampling_rate=1.0 / x, sampling=sampling).curve()
        return curve.log_delta(target.epsilon).upper - target.log_delta

    sampling = question.run.sampling
    x = crossing(excess, 100.0, low=1.0, high=MOST_RARE, rtol=1e-7).upper
    fields: dict = {"upper": None, "side": Side.LOWER, "warnings": question.notes, **target.fields()}
    if x == math.inf:
        return vacuous_answer(question, "rate", **fields)
    x = smallest_passing(
        lambda x: answers_meet(with_run(question, sampling_rate=1.0 / x, sampling=sampling), target), x, 1e-9
    )
    if x > MOST_RARE:
        return vacuous_answer(question, "rate", **fields)
    answered = with_run(question, sampling_rate=1.0 / x, sampling=sampling)
    if x == 1.0:
        fields["warnings"] = (*question.notes, "even the whole data set at every step meets the target")
    return answered.result("rate", 1.0 / x, 1.0 / x, **fields)


def solve_misalignment(question: Question, target: FullTarget) -> Result:
    """:func:`misalignment` of a question already put, by search over ``x = 1/m``."""

    def excess(x: float) -> float:
        curve = with_value(question, "misalignment", 1.0 / x).curve()
        return curve.log_delta(target.epsilon).upper - target.log_delta

    search: dict[str, float] = {"guess": 1e4, "spread": 1.0, "low": 0.51, "high": MOST_ALIGNED}
    rtol = 1e-9
    if not question.run.single:

        def rough(x: float) -> float:
            return rough_excess(with_value(question, "misalignment", 1.0 / x), target)

        guess = crossing(rough, **search, rtol=1e-4).upper
        search, rtol = {**search, "guess": guess, "spread": 2e-3}, 1e-7
    x = crossing(excess, **search, rtol=rtol).upper
    fields: dict = {"upper": None, "side": Side.LOWER, **target.fields()}
    if x == math.inf:
        return vacuous_answer(question, "misalignment", **fields)
    x = smallest_passing(lambda x: answers_meet(with_value(question, "misalignment", 1.0 / x), target), x, 1e-11)
    if x > MOST_ALIGNED:
        return vacuous_answer(question, "misalignment", **fields)
    answered = with_value(question, "misalignment", 1.0 / x)
    return answered.result("misalignment", 1.0 / x, 1.0 / x, **fields)


def rough_excess(question: Question, target: FullTarget) -> float:
    """What the log delta is too large by, from a sparse table of the profile: where to look, never what to claim.

    Infinite where there is no number.
    """
    whole = question.bound.representation

    def sparse(mechanism: Mechanism) -> Representation:
        found = whole(mechanism)
        return replace(found, resolution=ROUGH) if isinstance(found, PrivacyProfile) else found

    try:
        curve = replace(question, bound=replace(question.bound, representation=sparse)).curve()
        return curve.log_delta(target.epsilon).upper - target.log_delta
    except PrivprojError:
        return math.inf


def with_run(question: Question, **changes: object) -> Question:
    """The question with these parameters of its run."""
    return replace(question, run=replace(question.run, **changes))  # pyright: ignore[reportArgumentType]


def vacuous_answer(question: Question, quantity: str, **fields: Any) -> Result:
    """The answer that nothing meets the target."""
    warnings = (*question.notes, "nothing meets this target; expected a larger epsilon or delta, or an easier run")
    return question.result(quantity, None, None, **{"outcome": Outcome.VACUOUS, "warnings": warnings, **fields})


def with_value(question: Question, parameter: str, value: float) -> Question:
    """The question with this parameter of its mechanism."""
    return replace(question, mechanism=replace(question.mechanism, **{parameter: value}))


def answers_meet(question: Question, target: FullTarget) -> bool:
    """True where the question, asked for its epsilon or its delta, answers no more than the target: the last word."""
    return meets(question.curve(), target)


def first_passing(passes: Callable[[int], bool], n: int, direction: int, last: int) -> int | None:
    """The first integer from ``n`` in this direction that passes, tried ever further apart; None beyond ``last``."""
    stride = 1
    while not passes(n):
        if n == last:
            return None
        n, stride = n + direction * stride, 2 * stride
        n = max(n, last) if direction < 0 else min(n, last)
    return n
