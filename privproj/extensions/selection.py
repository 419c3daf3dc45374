"""What it costs to release the best of a random number of runs, chosen by score, and the draw of that number."""

import math
import secrets
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, Unpack

from privproj.accounting.batch_remarks import NO_AMPLIFICATION
from privproj.accounting.calibration import require_unset, solve_sigma
from privproj.accounting.queries import solve_delta, solve_epsilon
from privproj.accounting.question import Question, answer, ask_by_name, question_about, remark_on_composer
from privproj.assumptions import (
    CANDIDATES_DRAWN_AT_RANDOM,
    NUMBER_OF_TRIALS_DRAWN,
    ONLY_THE_BEST_RELEASED,
    SCORE_FROM_PRIVATE_OUTPUT,
)
from privproj.curves.profile import Curve
from privproj.errors import InvalidParameter, PrivprojError, within
from privproj.extensions.trial_laws import TrialLaw, law_of_trials, select_best
from privproj.mechanisms import Mechanism
from privproj.result import Result, Side
from privproj.runs import RunOptions
from privproj.runs.targets import Target, delta_target, epsilon_target, full_target

DistributionName = Literal["geometric", "logarithmic", "negative-binomial", "poisson"]

DRAWN_BITS = 160
"""Random bits of the uniform number that decides a number of trials. Soundness."""


@dataclass(frozen=True)
class _SelectedQuestion(Question):
    """A question about one run, asked of the best of a random number of such runs."""

    law: TrialLaw = field(kw_only=True)
    """The law of the number of runs."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any number for this question should know, in words."""
        shuffled = self.only.run.scheme.is_shuffled
        return (*super().notes, *((NO_AMPLIFICATION,) if shuffled else ()))

    def curve(self) -> Curve:
        """The curve of the selection; raises :class:`Refused` where that of one run is a rule for single deltas."""
        one = super().curve()
        with within(self.only.bound.name):
            return select_best(one, self.law)

    def side(self, curve: Curve) -> Side:
        """Always an upper bound: what a selection costs is bounded."""
        return Side.UPPER

    @property
    def run_assumes(self) -> tuple[str, ...]:
        """What the number takes for granted about the run and the selection, in words."""
        chosen = (NUMBER_OF_TRIALS_DRAWN, ONLY_THE_BEST_RELEASED, SCORE_FROM_PRIVATE_OUTPUT, CANDIDATES_DRAWN_AT_RANDOM)
        return (*super().run_assumes, *chosen)

    def named(self) -> dict[str, Any]:
        """The mechanism and run of one trial, and the law of the number of trials."""
        one = super().named()
        run = {**one["run"], "selection": self.law.as_dict()}
        source = f"{one['source']}; selection: privproj (C34)"
        return {**one, "run": run, "bound": f"{one['bound']} + selection", "source": source}

    def remarked(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields with what there is to say of the composer; what else is said of batches holds for one run."""
        return remark_on_composer(self.asked_run, fields)


def select(
    mechanism: Mechanism,
    *,
    trials: float,
    distribution: DistributionName = "geometric",
    shape: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """Account for releasing the best of a random number of runs by score, as in a search of hyper-parameters.

    Of ``delta``, ``epsilon`` and the noise multiplier two are given, and the third is found. For negative binomial
    trials of mean ``m``, ``delta'(eps) = m delta(eps - (1 + shape) tau)`` with the least ``tau`` such that
    ``delta(tau) <= gamma/(1 - gamma) (exp(tau) - 1)``, ``delta`` the profile of one run (docs/proofs.md, C34).

    Args:
        mechanism: What one run releases; without its noise multiplier where both ``epsilon`` and ``delta`` are given.
        trials: The expected number of runs, from 1 to 1e5.
        distribution: The law of the number of runs: "geometric", "logarithmic" (often one run, rarely very many),
            "negative-binomial" (with a ``shape``) or "poisson" (which may be no run at all).
        shape: The shape of a negative binomial law, from -0.9 to 100; 1 is geometric, 0 logarithmic.
        epsilon: The epsilon of the whole selection, from 0 to 1e9.
        delta: The delta of the whole selection, above 0 and below 1.
        bound: The name of a bound of the mechanism; None takes its default.
        **run: The run of one trial, as :class:`privproj.runs.RunOptions` lists it.

    Returns:
        A result whose ``value`` is epsilon, delta or the noise multiplier of the whole selection, an upper bound.
        ``run["selection"]`` has the law of the number of runs. For epsilon, ``numerics`` says what one run costs, and
        what it costs to release all of as many runs as are expected, where these are known.

    Raises:
        InvalidParameter: A value is outside its domain, or neither ``epsilon`` nor ``delta`` is given.
        Refused: The bound proves nothing for this mechanism and run, or only a rule for one delta at a time.
        NotConverged: A quadrature or a search did not reach its accuracy.
        PrecisionLimit: A composition cannot tell so small a delta from its rounding.

    >>> from privproj import Gaussian, select
    >>> found = select(Gaussian(noise_multiplier=4.0), trials=10, delta=1e-5)
    >>> round(found.value, 3), round(found.numerics["epsilon_of_one_run"], 3)
    (1.51, 0.926)
    >>> round(select(Gaussian(), trials=10, epsilon=1.0, delta=1e-5).value, 3)
    5.92
    """
    law = law_of_trials(trials, distribution, shape)
    question = _SelectedQuestion(ask_by_name(mechanism, bound, run).phases, law=law)
    if epsilon is not None and delta is not None:
        require_unset(mechanism, "noise_multiplier", "select with epsilon and delta")
        return answer(question, "sigma", solve_sigma, full_target(epsilon, delta, None, zero=False))
    if delta is not None:
        target = delta_target(delta, None)
        return _with_comparison(question, answer(question, "epsilon", solve_epsilon, target), target)
    if epsilon is None:
        raise InvalidParameter("delta", "nothing", "a delta, an epsilon, or both without a noise multiplier")
    return answer(question, "delta", solve_delta, epsilon_target(epsilon))


def _with_comparison(question: _SelectedQuestion, found: Result, target: Target) -> Result:
    """The epsilon with those of one run and of all runs released, where they are known; a warning if all cost less."""
    one, count = question_about(question.only), math.ceil(question.law.expected * (1.0 - 1e-9))
    every = one.with_run(steps=min(one.only.run.steps * count, 10**15))
    numerics: dict[str, Any] = dict(found.numerics)
    for name, asked in (("epsilon_of_one_run", one), ("epsilon_of_all_trials", every)):
        try:
            numerics[name] = solve_epsilon(asked, target).value
        except PrivprojError:
            continue
    warnings, whole = found.warnings, numerics.get("epsilon_of_all_trials")
    if whole is not None and found.value is not None and whole <= found.value:
        warnings = (*warnings, f"exactly {count} trials, all of them released, cost no more: fix their number instead")
    return replace(found, numerics=numerics, warnings=warnings)


def draw_trials(trials: float, distribution: DistributionName = "geometric", shape: float | None = None) -> int:
    """Draw the number of runs of a selection from the law that :func:`privproj.select` accounts for.

    The bits come from the operating system. ``P(k+1)/P(k) = (1 - gamma)(k + shape)/(k + 1)`` for a negative binomial
    law, and ``P(k) = exp(-m) m^k / k!`` for a Poisson law; sums have 80 digits. Keep the number secret: it is no part
    of what the accounting covers.

    Args:
        trials: The expected number of runs, from 1 to 1e5.
        distribution: The law, as for :func:`privproj.select`.
        shape: The shape of a negative binomial law, from -0.9 to 100.

    Returns:
        A number of runs, at least 1; at least 0 for a Poisson law, where 0 means that nothing is released.

    Raises:
        InvalidParameter: A value is outside its domain.

    >>> from privproj import draw_trials
    >>> draw_trials(10) >= 1
    True
    """
    return law_of_trials(trials, distribution, shape).draw(Fraction(secrets.randbits(DRAWN_BITS), 2**DRAWN_BITS))
