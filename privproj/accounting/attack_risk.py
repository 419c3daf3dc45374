"""Calibration to an attack risk, the advantage or a true positive rate, in place of ``(epsilon, delta)``.

A risk is met where :func:`privproj.curves.tradeoff.risk_of` says so, the function by which every door shows it (C30).
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from privproj.accounting.first_guess import close_crossing, first_passing, spread_guess
from privproj.accounting.phase import numerics_of
from privproj.accounting.question import Question
from privproj.curves.profile import Curve, PrivacyProfile
from privproj.curves.tradeoff import gaussian_spread, risk_of
from privproj.errors import Unanswered
from privproj.result import Outcome, Result, Side
from privproj.runs.targets import RiskTarget
from privproj.validation import LARGEST_NOISE, SMALLEST_NOISE

COMPOSED_RTOL = 1e-6
"""Relative accuracy of a noise multiplier where the curve is composed. Speed only."""

FIRST_STEP_DOWN = 1e-12
"""First relative step below an answer for a noise multiplier that does not meet the target. Speed only."""

CLOSED_FORM_MARGIN = 1e-11
"""Relative margin by which the closed form of a Gaussian risk must be above the target at a lower end. Soundness."""


def smallest_at_risk(
    curve_at: Callable[[float], Curve], target: RiskTarget, guess: float, *, low: float, high: float, rtol: float
) -> float:
    """An ``x`` whose curve was evaluated to meet the target, nearly the smallest where the risk falls; ``inf`` if none.

    It is within a relative ``rtol`` of where the search found a larger risk.
    """
    aim = gaussian_spread(target.value, target.fpr)

    @cache
    def excess(x: float) -> float:
        try:
            spread = gaussian_spread(risk_of(curve_at(x), target), target.fpr)
        except Unanswered:  # so little noise that nothing is known
            return math.inf
        return math.log(spread / aim) if spread > 0.0 else -math.inf

    found, _ = close_crossing(excess, guess, low=low, high=high, rtol=rtol)
    return first_passing(lambda x: risk_of(curve_at(x), target) <= target.value, found, 1e-2 * rtol, high)


def smallest_noise_at_risk(question: Question, target: RiskTarget) -> tuple[float, float | None]:
    """The smallest noise multiplier that meets the risk, and a lower end of it where the curve is that of Gaussians.

    The first is ``inf`` where no noise does.
    """

    @cache
    def curve_at(z: float) -> Curve:
        return question.with_mechanism(noise_multiplier=z).curve()

    # Relative accuracy of a noise multiplier where a curve has a closed form. Speed only.
    guess, rtol = 1.0 / gaussian_spread(target.value, target.fpr), 1e-12
    if not question.only.run.single:
        near = min(max(guess, SMALLEST_NOISE), LARGEST_NOISE)
        guess = spread_guess(lambda z: [question.with_mechanism(noise_multiplier=z).only.guess()], target, near)
    guess = min(max(guess, SMALLEST_NOISE), LARGEST_NOISE)
    if numerics_of(curve_at(guess)):
        # Where records pick their batches, curves take seconds. Speed only.
        rtol = 1e-4 if question.only.run.allocates else COMPOSED_RTOL
    found = smallest_at_risk(curve_at, target, guess, low=SMALLEST_NOISE, high=LARGEST_NOISE, rtol=rtol)
    if found == math.inf or gaussian_mu(curve_at(found)) is None:
        return found, None
    lower, step = found, FIRST_STEP_DOWN
    while _gaussian_risk(gaussian_mu(curve_at(lower)), target) <= target.value * (1.0 + CLOSED_FORM_MARGIN):
        lower, step = lower * (1.0 - step), 4.0 * step
        if lower < SMALLEST_NOISE:
            return found, None
    return found, lower


def gaussian_mu(curve: Curve) -> float | None:
    """The ``mu`` of a curve that is exactly the profile of two Gaussians at this distance; None for any other."""
    return curve.gaussian_mu if isinstance(curve, PrivacyProfile) else None


def _gaussian_risk(mu: float | None, target: RiskTarget) -> float:
    """The risk of a Gaussian release in closed form; ``nan`` where ``mu`` is not known."""
    from statistics import NormalDist

    if mu is None:
        return math.nan
    if target.fpr is None:
        # 2 Phi(mu/2) - 1
        return math.erf(0.5 * mu / math.sqrt(2.0))
    # Phi(Phi^-1(a) + mu)
    return NormalDist().cdf(NormalDist().inv_cdf(target.fpr) + mu)


def side_at_risk(question: Question, curve: Curve, target: RiskTarget) -> Side:
    """Exact where the profile is the truth and the risk needs no more than it: the advantage, or that of Gaussians."""
    known = target.fpr is None or gaussian_mu(curve) is not None
    return question.side(curve) if known else Side.UPPER


def read_risk(question: Question, target: RiskTarget) -> Result:
    """The risk of a question, of the kind that the target is about, as a result."""
    curve = question.curve()
    value = risk_of(curve, target)
    outcome = Outcome.VACUOUS if value >= 1.0 else Outcome.OK
    fields: dict[str, Any] = {"outcome": outcome, "numerics": numerics_of(curve), **target.fields()}
    return question.result("advantage" if target.fpr is None else "tpr", value, None, **fields)
