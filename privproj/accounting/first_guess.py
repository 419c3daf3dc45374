"""Where a calibration begins to look: cheap guesses of the noise multiplier, and a rough excess of the log delta.

Speed only: a guess decides how long a search takes, never what it answers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from privproj.accounting.phase import Phase
from privproj.errors import PrivprojError
from privproj.numerics.root_finding import find_crossing
from privproj.parameters import LARGEST_NOISE, SMALLEST_NOISE
from privproj.profiles.conversion import log_excess
from privproj.profiles.gaussian import find_noise
from privproj.profiles.privacy_profile import PrivacyProfile, Representation
from privproj.profiles.tradeoff import gaussian_spread
from privproj.run import Run
from privproj.targets import FullTarget, RiskTarget

Releases = Sequence[tuple[Representation, Run]]
"""The phases of a run, each as the bound of one release and the run that it is for."""

MOST_STEPS = 10**8
"""The largest number of releases that the steps query and ``remaining`` search. Contract."""

MOST_GUESSES = 12
"""Most steps of a secant in ``ln x`` before a search with a bracket takes over. Speed only."""

LARGEST_GUESS_STEP = 1.0
"""Largest step of a secant in ``ln x``. Speed only."""


def classical_noise(target: FullTarget) -> float:
    """The noise multiplier of the textbook rule for one Gaussian release, at most 1e12, as a first guess."""
    # z = sqrt(2 ln(1.25/delta)) / eps (Dwork, Roth 2014, Theorem A.1).
    return min(math.sqrt(2.0 * math.log(1.25) - 2.0 * target.log_delta) / target.epsilon, LARGEST_NOISE)


def _plain_run(run: Run) -> Run:
    """A run of about the same cost that every Renyi curve accounts for: Poisson batches in place of bins."""
    if run.allocates and run.batches is not None:
        return Run(steps=run.steps * run.batches, sampling_rate=run.batches_per_record / run.batches)
    return Run(steps=run.steps, sampling_rate=run.sampling_rate)


def _wanted_spread(target: FullTarget | RiskTarget) -> float:
    """The ``mu`` of a Gaussian release that just meets the target, roughly."""
    if isinstance(target, RiskTarget):
        return gaussian_spread(target.value, target.fpr)
    near = classical_noise(target) if target.epsilon else 1.0
    noise = find_noise(target.epsilon, target.log_delta, rtol=1e-3, near=near)
    return 1.0 / min(noise.upper, LARGEST_NOISE)


def initial_noise(at: Callable[[float], Releases], target: FullTarget | RiskTarget, guess: float) -> float:
    """The ``x`` at which the losses of the run ``at(x)`` spread like those of a Gaussian release with this target.

    The spread falls about like ``1/x``: ``x`` is a noise multiplier, or one over a rate. ``guess`` is returned where
    no spread is known.
    """
    wanted = _wanted_spread(target)
    x, fall, last = guess, 1.0, None
    for _ in range(MOST_GUESSES):
        spread = _spread_of(at(x), target)
        if math.isnan(spread):
            return guess
        excess = math.log(max(spread, SMALLEST_NOISE) / wanted)
        if last and last[0] != x and excess != last[1]:
            fall = min(max((last[1] - excess) / math.log(x / last[0]), 0.3), 3.0)
        # Relative accuracy of the spread of losses by which a search begins. Speed only.
        if abs(excess) < 0.02:
            break
        last = (x, excess) if excess < math.inf else None
        x = min(max(x * math.exp(min(max(excess / fall, -LARGEST_GUESS_STEP), 2.0)), SMALLEST_NOISE), LARGEST_NOISE)
    return x


def _spread_of(releases: Releases, target: FullTarget | RiskTarget | None = None) -> float:
    """The standard deviation of the loss of a run in nats, roughly; ``inf`` for huge losses, nan where none is known.

    Poisson batches stand in for bins, and the Gaussian release outside an event of half of delta for a good-event
    bound. A run that needs no composition has no spread here.
    """
    from privproj.composition.dominating_pairs import outline_step
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
            squares.append(plain.steps * outline_step(form, plain).deviation ** 2)
    except PrivprojError:
        return math.inf
    return math.sqrt(math.fsum(squares)) if composed else math.nan


def steps_guess(before: Releases, last: tuple[Representation, Run], target: FullTarget | RiskTarget) -> int:
    """How many steps of the last phase about meet the target after the phases before it, from 1 to ``MOST_STEPS``."""
    form, run = last
    profiles = [(form, run) for form, run in before if isinstance(form, PrivacyProfile)]
    spent, unit = _spread_of(profiles) if profiles else 0.0, _spread_of([(form, replace(run, steps=1))])
    left = _wanted_spread(target) ** 2 - spent**2
    return min(max(int(left / unit**2), 1), MOST_STEPS) if left > 0.0 and 0.0 < unit < math.inf else 1


def find_crossing_by_secants(
    excess: Callable[[float], float], guess: float, *, low: float, high: float, rtol: float, fall: float | None = None
) -> tuple[float, float]:
    """The upper end of what :func:`find_crossing` finds, and how fast the excess falls with ``ln x`` there.

    Secants in ``ln x`` come first: they need few evaluations where the guess is right to a tenth, and fewer where it is
    known how fast the excess falls.
    """
    # How fast a log delta falls with the log of the noise, before two values tell. Speed only.
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
        # A secant ends where its step is below this share of the accuracy that is asked for. Speed only.
        if abs(step) < 0.3 * rtol:
            break
    # The root is about one step away from the last value.
    # The other end of a bracket is at least this share of the accuracy away from the last secant. Speed only.
    spread = rtol * min(max(3.0 * abs(step) / rtol, 1e-3), 1.0 - 1e-3)
    start = last[0] if last else x
    return find_crossing(excess, start, low=low, high=high, spread=spread, rtol=rtol).upper, fall


def sparse_excess(phase: Phase, target: FullTarget) -> float:
    """``ln delta(eps) - ln delta`` from a sparse table of the profile; ``inf`` where there is no number.

    It only tells a search where to look. Every answer is evaluated with the full table afterwards.
    """
    try:
        # Values of the profile per standard deviation of the loss. Speed only.
        return log_excess(phase.curve(resolution=3.0), target)
    except PrivprojError:
        return math.inf


def rough_crossing(
    rough: Callable[[float], float], guess: float, low: float, high: float
) -> tuple[float, float | None]:
    """Where a rough excess ends to be positive, to a hundredth; and how fast it falls with ``ln x``, where known."""
    near = find_crossing(rough, guess, low=low, high=high, rtol=1e-2)
    if not (near.lower > 0.0 and near.upper < math.inf and math.isfinite(rough(near.lower))):
        return near.upper, None
    fall = (rough(near.lower) - rough(near.upper)) / math.log(near.upper / near.lower)
    return near.upper, fall if fall > 0.0 else None
