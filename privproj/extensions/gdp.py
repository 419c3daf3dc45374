"""One number for a run: the ``mu`` of Gaussian differential privacy that it keeps (C30)."""

import math
from collections.abc import Mapping
from typing import Any, Unpack

from privproj.accounting.attack_risk import gaussian_mu
from privproj.accounting.phase import numerics_of
from privproj.accounting.question import Question, answer, ask_by_name
from privproj.errors import InvalidParameter, Refused
from privproj.extensions.gaussian_fit import GaussianFit, fit_gaussian
from privproj.mechanisms import Mechanism
from privproj.numerics.enclosure import Enclosure, next_up
from privproj.result import Outcome, Result, Side
from privproj.runs import RunOptions
from privproj.runs.targets import SlackTarget, slack_target

DEFAULT_SLACK = 1e-9
"""The slack ``d0`` of ``mu`` where none is given. Contract."""


def gdp_mu(
    mechanism: Mechanism | Question,
    *,
    delta: float = DEFAULT_SLACK,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """Return a ``mu`` such that the run is ``mu``-GDP but for the slack ``delta``, rounded up: one number for a curve.

    With ``G_mu`` the profile, or the trade-off function, of two Gaussians at distance ``mu``, at every epsilon and at
    every false positive rate ``a`` of an attack with the least false negative rate ``f(a)``,

        delta(eps) <= max(G_mu(eps), delta),    f(a) >= G_mu(a) - delta,

    and ``f(a) >= G_mu(a)`` wherever ``a`` and ``G_mu(a)`` are at least the rate ``exact_from`` (C30). A slack is needed
    since sampled or projected runs have tails far below any delta that force ``mu`` up.

    Args:
        mechanism: What was released, with its noise multiplier, its rank and its promises; or a schedule, which has
            its bounds and its runs.
        delta: The slack, below 1. It may be 0 for a run that is exactly Gaussian, and where delta is 0 from some
            epsilon on.
        bound: The name of a bound of the mechanism; None takes its default.
        **run: The run, as :class:`privproj.runs.RunOptions` lists it.

    Returns:
        A result whose ``value`` is ``mu``, and whose ``delta`` is the slack. Its numerics have ``exact_from``, and the
        ``regret``: an upper bound of how much the best attack against ``G_mu`` is above the best one against the curve
        of the bound, in the probability of guessing right, whatever the prior. ``value`` is ``inf`` (outcome vacuous)
        where no ``mu`` was found.

    Raises:
        InvalidParameter: A value is outside its domain.
        Refused: The bound proves nothing for this mechanism and run, or a slack of 0 leaves no finite ``mu``.
        NotConverged: A quadrature or a search did not reach its accuracy.
        PrecisionLimit: A composition cannot tell so small a slack from its rounding.

    >>> from privproj import Gaussian, gdp_mu
    >>> round(gdp_mu(Gaussian(noise_multiplier=2.0), steps=16).value, 12)
    2.0
    >>> sampled = gdp_mu(Gaussian(noise_multiplier=1.0), steps=2000, sampling_rate=0.01)
    >>> round(sampled.value, 3), round(sampled.numerics["regret"], 3)
    (0.666, 0.017)
    """
    if isinstance(mechanism, Question):
        require_no_options(bound, run, "a schedule")
        return solve_gdp_mu(mechanism, slack_target(delta))
    question = ask_by_name(mechanism, bound, run)
    return answer(question, "gdp_mu", solve_gdp_mu, slack_target(delta))


def require_no_options(bound: str | None, options: Mapping[str, Any], what: str) -> None:
    """Raise :class:`InvalidParameter` for options of a run beside what has its runs already."""
    for name, value in {"bound": bound, **options}.items():
        if value is not None:
            raise InvalidParameter(name, value, f"no {name}: {what} has its bounds and its runs")


def solve_gdp_mu(question: Question, target: SlackTarget) -> Result:
    """Answer :func:`privproj.gdp_mu` for a question that is already parsed (C30)."""
    curve = question.curve()
    known = gaussian_mu(curve)
    if known is not None:
        # The profile is that of mu itself; 1/z and sqrt(T) are rounded.
        ends = Enclosure(known * (1.0 - 1e-15), next_up(known))
        fit, side = GaussianFit(ends, 0.0, 0.0, 0), question.side(curve)
    else:
        fit, side = fit_gaussian(curve, target.target), Side.UPPER
        if target.target is None and fit.mu.upper == math.inf:
            raise Refused("no finite mu covers every delta of this run; expected a slack above 0, for instance 1e-9")
    found = {"regret": fit.regret, "exact_from": fit.least_rate, "epsilons_read": fit.points}
    fields: dict[str, Any] = {"numerics": {**numerics_of(curve), **found}, "side": side, **target.fields()}
    if fit.mu.upper == math.inf:
        note = f"no finite mu at this slack; expected a larger slack or {question.remedy}"
        fields |= {"outcome": Outcome.VACUOUS, "warnings": (*question.notes, note)}
    return question.result("gdp_mu", fit.mu.upper, fit.mu.lower, **fields)
