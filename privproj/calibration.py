"""Calibration: the parameter that meets a target ``(epsilon, delta)``, returned at its safe end."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Unpack

from privproj.accountant import Question, ask, numerics_of
from privproj.bounds import find
from privproj.errors import InvalidParameter, NotConverged, PrivprojError
from privproj.mechanisms import LARGEST, SMALLEST, Gaussian, Mechanism
from privproj.numerics import Enclosure, crossing, largest_integer, minimise
from privproj.result import Outcome, Result, Side
from privproj.runs import RunOptions
from privproj.target import FullTarget, full_target

MOST_STEPS = 10**8


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
    found_here(mechanism, "noise_multiplier", "sigma")
    target = full_target(epsilon, delta, log10_delta, zero=False)
    question = ask(mechanism, bound, run)
    return question.answer("sigma", lambda: sigma_of(question, target), **target.fields())


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
    found_here(mechanism, "rank", "rank")
    if vars(mechanism).get("layers"):
        raise InvalidParameter("layers", mechanism.parameters()["layers"], "dim, not layers, for the rank query")
    target = full_target(epsilon, delta, log10_delta, zero=True)
    question = ask(mechanism, bound, run)
    return question.answer("rank", lambda: rank_of(question, target), **target.fields())


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
    target = full_target(epsilon, delta, log10_delta, zero=True)
    question = ask(mechanism, bound, run)
    return question.answer("steps", lambda: steps_of(question, target), **target.fields())


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
    target = full_target(epsilon, delta, log10_delta, zero=True)
    relation = run.get("relation") or mechanism.default_relation
    wanted = run.get("sampling") or ("fixed" if relation == "replace" else "poisson")
    question = ask(mechanism, bound, {**run, "sampling": wanted, "sampling_rate": 0.5})
    return question.answer("rate", lambda: rate_of(question, target), **target.fields())


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
    found_here(mechanism, "misalignment", "misalignment")
    target = full_target(epsilon, delta, log10_delta, zero=True)
    question = ask(mechanism, bound, run)
    return question.answer("misalignment", lambda: misalignment_of(question, target), **target.fields())


def found_here(mechanism: Mechanism, parameter: str, quantity: str) -> None:
    """Raise unless the mechanism has this parameter and leaves it out."""
    if parameter not in vars(mechanism):
        raise InvalidParameter("mechanism", mechanism.name, f"a mechanism with a {parameter}")
    if vars(mechanism)[parameter] is not None:
        raise InvalidParameter(parameter, vars(mechanism)[parameter], f"no {parameter}: it is what {quantity} finds")


def sigma_of(question: Question, target: FullTarget) -> Result:
    """:func:`sigma` of a question already put."""

    def at(z: float) -> Enclosure:
        return with_value(question, "noise_multiplier", z).curve().log_delta(target.epsilon)

    def meets(z: float) -> bool:
        curve = with_value(question, "noise_multiplier", z).curve()
        return curve.epsilon(target.log_delta).upper <= target.epsilon

    limits = {"low": SMALLEST, "high": LARGEST}
    guess, spread, rtol = classical_noise(target), 1.0, 1e-14
    if not question.run.single and not closed(question, guess):
        guess, spread = coarse_noise(question, target, guess), 1e-3
        rtol = tolerance(question, guess)
    found = crossing(lambda z: at(z).upper - target.log_delta, guess, spread=spread, rtol=rtol, **limits).upper
    if found == math.inf:
        with_value(question, "noise_multiplier", guess).curve().epsilon(target.log_delta)  # raises below a floor
        return nothing(question, "sigma", **target.fields())
    found = nudged(meets, found, 1e-2 * rtol)
    lower = None
    if at(found).lower > -math.inf:
        wide = max(1e-11, rtol)
        end = crossing(lambda z: at(z).lower - target.log_delta, found, spread=wide, rtol=wide, **limits).lower
        lower = min(found, end)
    answered = with_value(question, "noise_multiplier", found)
    side = answered.side(answered.curve())
    return answered.result("sigma", found, lower, side=side, **target.fields())


def closed(question: Question, z: float) -> bool:
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
    mechanism, renyi = (question.mechanism, "mixture-rdp") if question.mechanism.name == "m2" else (Gaussian(), "rdp")
    quick = replace(question, mechanism=mechanism, run=run, bound=find(type(mechanism), renyi))

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


def rank_of(question: Question, target: FullTarget) -> Result:
    """:func:`rank` of a question already put."""

    @cache
    def excess(rank: int) -> float:
        return with_value(question, "rank", rank).curve().log_delta(target.epsilon).upper - target.log_delta

    smallest, largest = rank_ends(excess, question.mechanism.with_rank, question.mechanism.rank_limit)
    found = largest or smallest
    side = Side.LOWER if largest else Side.UPPER
    if found is None:
        return nothing(question, "rank", side=side, **target.fields())
    upper = found if smallest else None
    return with_value(question, "rank", found).result(
        "rank", found, smallest or found, upper=upper, side=side, **target.fields()
    )


def rank_ends(excess: Callable[[int], float], shape: str, limit: int) -> tuple[int | None, int | None]:
    """``(smallest, largest)`` rank up to ``limit`` without excess; None for an end that is not asked for or missing."""

    def fits(rank: int) -> bool:
        return excess(rank) <= 0.0

    if shape == "grows":
        return None, largest_integer(fits, 1, limit)
    best = limit
    if shape == "u-shaped":
        best = round(math.exp(minimise(lambda x: excess(round(math.exp(x))), 0.0, math.log(limit), rtol=1e-3)[0]))
    if not fits(best):
        return None, None
    failing = largest_integer(lambda rank: not fits(rank), 1, best) or 0
    return failing + 1, largest_integer(fits, best, limit) if shape == "u-shaped" else None


def steps_of(question: Question, target: FullTarget) -> Result:
    """:func:`steps` of a question already put."""

    @cache
    def excess(count: int) -> float:
        curve = with_run(question, steps=count).curve()
        return curve.log_delta(target.epsilon).upper - target.log_delta

    def count_at(x: float) -> int:
        return min(MOST_STEPS, max(1, int(1.0 / x)))

    x = crossing(lambda x: excess(count_at(x)), 1.0, low=1.0 / MOST_STEPS, high=1.0, spread=3.0, rtol=1e-9).upper
    if x == math.inf:
        return nothing(question, "steps", side=Side.LOWER, **target.fields())
    found = count_at(x)
    if found == MOST_STEPS:
        raise NotConverged(f"more than {MOST_STEPS:.0e} steps fit; expected a target that fewer steps use up")
    return with_run(question, steps=found).result("steps", found, found, upper=None, side=Side.LOWER, **target.fields())


def rate_of(question: Question, target: FullTarget) -> Result:
    """:func:`rate` of a question already put, by search over ``x = 1/q``."""

    def excess(x: float) -> float:
        curve = with_run(question, sampling_rate=1.0 / x, sampling=sampling).curve()
        return curve.log_delta(target.epsilon).upper - target.log_delta

    sampling = question.run.sampling
    x = crossing(excess, 100.0, low=1.0, high=1e12, rtol=1e-7).upper
    fields: dict = {"upper": None, "side": Side.LOWER, "warnings": question.notes, **target.fields()}
    if x == math.inf:
        return nothing(question, "rate", **fields)
    answered = with_run(question, sampling_rate=1.0 / x, sampling=sampling)
    if x == 1.0:
        fields["warnings"] = (*question.notes, "even the whole data set at every step meets the target")
    return answered.result("rate", 1.0 / x, 1.0 / x, **fields)


def misalignment_of(question: Question, target: FullTarget) -> Result:
    """:func:`misalignment` of a question already put, by search over ``x = 1/m``."""

    def excess(x: float) -> float:
        curve = with_value(question, "misalignment", 1.0 / x).curve()
        return curve.log_delta(target.epsilon).upper - target.log_delta

    x = crossing(excess, 1e4, low=0.51, high=1e15, rtol=1e-9).upper
    fields: dict = {"upper": None, "side": Side.LOWER, **target.fields()}
    if x == math.inf:
        return nothing(question, "misalignment", **fields)
    answered = with_value(question, "misalignment", 1.0 / x)
    return answered.result("misalignment", 1.0 / x, 1.0 / x, **fields)


def with_run(question: Question, **changes: object) -> Question:
    """The question with these parameters of its run."""
    return replace(question, run=replace(question.run, **changes))  # pyright: ignore[reportArgumentType]


def nothing(question: Question, quantity: str, **fields: Any) -> Result:
    """The answer that nothing meets the target."""
    warnings = (*question.notes, "nothing meets this target; expected a larger epsilon or delta, or an easier run")
    return question.result(quantity, None, None, **{"outcome": Outcome.VACUOUS, "warnings": warnings, **fields})


def with_value(question: Question, parameter: str, value: float) -> Question:
    """The question with this parameter of its mechanism."""
    return replace(question, mechanism=replace(question.mechanism, **{parameter: value}))


def nudged(meets: Callable[[float], bool], z: float, step: float) -> float:
    """``z`` moved up by as little as makes ``meets(z)`` true: rounding may leave the search an ulp short."""
    while not meets(z):
        z *= 1.0 + max(step, 1e-15)
        step *= 4.0
    return z
