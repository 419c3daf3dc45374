"""Where a calibration begins to look: cheap guesses of the noise multiplier, and a rough excess of the log delta.

Speed only: a guess decides how long a search takes, never what it answers.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from privproj.accounting.question import Question
from privproj.curves.profile import PrivacyProfile, Representation, log_delta_above
from privproj.errors import PrivprojError
from privproj.mechanisms import Mechanism
from privproj.numerics import kernels
from privproj.numerics.enclosure import Enclosure
from privproj.numerics.search import find_crossing
from privproj.runs import FullTarget, Run
from privproj.validation import LARGEST_NOISE, SMALLEST_NOISE

ROUGH = 3.0
"""Values of a profile per standard deviation of the loss where only a first guess is needed. Speed only."""

ROUGH_EPOCH = 12.0
"""The same for an epoch of balls-in-bins. Speed only."""


MOST_GUESSES = 12
"""Most steps of a secant in ``ln x`` before a search with a bracket takes over. Speed only."""

GUESSED_SPREAD_RTOL = 0.02
"""Relative accuracy of the spread of losses by which a search begins. Speed only."""

LARGEST_GUESS_STEP = 1.0
"""Largest step of a secant in ``ln x``. Speed only."""

USUAL_FALL = 10.0
"""How fast a log delta falls with the log of the noise, before two values tell. Speed only."""

SECANT_SHARE = 0.3
"""A secant ends where its step is below this share of the accuracy that is asked for. Speed only."""

LEAST_SECANT_SHARE = 1e-3
"""The other end of a bracket is at least this share of the accuracy away from the last secant. Speed only."""


def classical_noise(target: FullTarget) -> float:
    """The noise multiplier of the textbook rule for one Gaussian release, at most 1e12, as a first guess."""
    # z = sqrt(2 ln(1.25/delta)) / eps (Dwork, Roth 2014, Theorem A.1).
    return min(math.sqrt(2.0 * math.log(1.25) - 2.0 * target.log_delta) / target.epsilon, LARGEST_NOISE)


def _plain_run(run: Run) -> Run:
    """A run of about the same cost that every Renyi curve accounts for: Poisson batches in place of bins."""
    if run.allocates and run.batches is not None:
        return Run(steps=run.steps * run.batches, sampling_rate=run.batches_per_record / run.batches)
    return Run(steps=run.steps, sampling_rate=run.sampling_rate)


def spread_guess(at: Callable[[float], Question], target: FullTarget, guess: float) -> float:
    """The ``x`` at which the losses of the run ``at(x)`` spread like those of a Gaussian release with this target.

    The spread falls about like ``1/x``: ``x`` is a noise multiplier, or one over a rate. ``guess`` is returned where
    no spread is known.
    """
    # delta of a Gaussian release with mu = 1/s
    wanted = find_crossing(
        lambda s: kernels.log_gaussian_delta(target.epsilon, 1.0 / s) - target.log_delta,
        classical_noise(target) if target.epsilon else 1.0,
        low=SMALLEST_NOISE,
        high=LARGEST_NOISE,
        rtol=1e-3,
    ).upper
    x, fall, last = guess, 1.0, None
    for _ in range(MOST_GUESSES):
        excess = math.log(wanted * max(_spread_of_run(at(x)), SMALLEST_NOISE)) if wanted < math.inf else math.nan
        if math.isnan(excess):
            return guess
        if last and last[0] != x and excess != last[1]:
            fall = min(max((last[1] - excess) / math.log(x / last[0]), 0.3), 3.0)
        if abs(excess) < GUESSED_SPREAD_RTOL:
            break
        last = (x, excess) if math.isfinite(excess) else None
        x = min(max(x * math.exp(min(max(excess / fall, -LARGEST_GUESS_STEP), 2.0)), SMALLEST_NOISE), LARGEST_NOISE)
    return x


def _spread_of_run(question: Question) -> float:
    """The standard deviation of the loss of the run in nats, roughly; ``inf`` for huge losses, nan where none is known.

    Poisson batches stand in for bins.
    """
    from privproj.composition.dominating_pairs import outline_step

    form, run = question.release()
    if not isinstance(form, PrivacyProfile) or (form.closed_form and run.sampling_rate == 1.0):
        return math.nan
    try:
        run = _plain_run(run)
        return math.sqrt(run.steps) * outline_step(form, run).deviation
    except PrivprojError:
        return math.inf


def close_crossing(
    excess: Callable[[float], float], guess: float, *, low: float, high: float, rtol: float
) -> tuple[Enclosure, float]:
    """What :func:`find_crossing` finds, and how fast the excess falls with ``ln x`` there.

    Secants in ``ln x`` come first: they need few evaluations where the guess is right to a tenth.
    """
    excess = cache(excess)
    x, fall, last, step = guess, USUAL_FALL, None, math.inf
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
        if abs(step) < SECANT_SHARE * rtol:
            break
    # The root is about one step away from the last value.
    spread = rtol * min(max(3.0 * abs(step) / rtol, LEAST_SECANT_SHARE), 1.0 - 1e-3)
    return find_crossing(excess, last[0] if last else guess, low=low, high=high, spread=spread, rtol=rtol), fall


def rough_excess(question: Question, target: FullTarget, values: float = ROUGH) -> float:
    """``ln delta(eps) - ln delta`` from a sparse table of the profile; ``inf`` where there is no number.

    ``values`` is the number of values of the profile to a standard deviation of the loss.
    It only tells a search where to look. Every answer is evaluated with the full table afterwards.
    """
    whole = question.bound.representation

    def sparse(mechanism: Mechanism) -> Representation:
        found = whole(mechanism)
        return replace(found, resolution=values) if isinstance(found, PrivacyProfile) else found

    try:
        curve = replace(question, bound=replace(question.bound, representation=sparse)).curve()
        return log_delta_above(curve, target.epsilon) - target.log_delta
    except PrivprojError:
        return math.inf
