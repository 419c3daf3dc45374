"""The best of a random number of runs, chosen by score: the law of that number, and the curve of the whole (C34).

``K`` runs are made, independent and alike, and the one of the largest score is released. Let ``delta_0`` be the profile
of one run, in both orders, and ``m = E K``. For a truncated negative binomial ``K`` of shape ``eta`` and ``gamma``,

    delta(eps) <= m delta_0(eps - (1 + eta) tau),   tau the least with  delta_0(tau) <= gamma/(1 - gamma) (e^tau - 1),

and for a Poisson ``K`` and every ``tau >= 0``, with ``c = e^tau - 1`` and ``X`` exponential of mean 1,

    delta(eps) <= m E[delta_0(eps + tau - m delta_0(tau) - c X); X < m] + m e^-m delta_0(eps - m delta_0(tau) - c m).
"""

import math
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import Any, ClassVar, Literal, Unpack

from privproj.accounting.calibration import require_unset, solve_sigma
from privproj.accounting.lower_bound import NO_AMPLIFICATION
from privproj.accounting.phase import numerics_of
from privproj.accounting.query import (
    Schedule,
    composition_of,
    composition_of_phase,
    solve_delta,
    solve_epsilon,
)
from privproj.assumptions import (
    CANDIDATES_DRAWN_AT_RANDOM,
    NUMBER_OF_TRIALS_DRAWN,
    ONLY_THE_BEST_RELEASED,
    SCORE_FROM_PRIVATE_OUTPUT,
)
from privproj.errors import InvalidParameter, PrivprojError, Refused, unknown_name, within
from privproj.mechanisms import Mechanism
from privproj.numerics.interval import Enclosure, log1m_exp, next_up
from privproj.numerics.root_finding import LARGEST_PROFILE_EPSILON, find_crossing
from privproj.numerics.special import log_add
from privproj.parameters import real
from privproj.profiles.conversion import digits_of, leads_with_epsilon
from privproj.profiles.privacy_profile import Curve
from privproj.profiles.rdp import BestCurve, RenyiCurve
from privproj.result import Result, Side
from privproj.run import RunOptions
from privproj.targets import Target, delta_target, epsilon_target, full_target

SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "negative-binomial": None, "poisson": None}
"""The laws of the number of runs, with the shape ``eta`` of those negative binomial laws that fix it. Contract."""

LARGEST_EXPECTED = 1e5
"""Largest expected number of runs that is accepted. Contract."""

LEAST_SHAPE = -0.9
"""Smallest shape that is accepted; ``gamma`` would underflow nearer to -1. Contract."""

LARGEST_SHAPE = 100.0
"""Largest shape that is accepted. Contract."""

LEAST_GAMMA = 1e-300
"""Smallest ``gamma`` that is looked for. Speed only."""

MEAN_RELATIVE_ERROR = 1e-13
"""Relative error allowed to the mean of the number of runs: a few roundings of differences of exponentials.
Soundness."""

DRAWN_DIGITS = 80
"""Decimal digits in which a number of runs is drawn: its law is then the one stated but for 1e-40. Soundness."""

LEAST_DRAWN = Decimal("1e-60")
"""Probability of a number beyond the mean below which none further is drawn: far finer than the random bits.
Soundness."""

SMALLEST_SHAPE = 1e-9
"""Smallest size of a shape that is not 0: probabilities lose so many of their digits. Soundness."""

ORDERS = (2.0, 3.0, 5.0, 9.0, 16.0, 32.0)
"""The tilts ``tau = ln(1 + 1/(order - 1))`` that are tried for a Poisson number, besides 0: every one is sound.

Speed only.
"""

CUTS = (*(0.5 * i for i in range(12)), *range(6, 14), 16.0, 20.0, 24.0, 32.0, 48.0, 64.0, 128.0, 512.0)
"""Where the law of an exponential variable is cut into cells, up to the mean of the Poisson number. Speed only."""

CHORD_ERROR = 1e-9
"""Added to the share of the far end in a cell, more than its rounding. Soundness."""

LEAST_WEIGHT = 5e-324
"""Smallest weight of what lies beyond the mean of a Poisson number, where ``e^-m`` underflows. Soundness."""


@dataclass(frozen=True)
class _TrialLaw:
    """The law of the number of runs ``K``; :func:`law_of_trials` makes one from its mean."""

    distribution: str
    """One of :data:`SHAPES`."""

    expected: float
    """``E K``; rounded up for the negative binomial laws, whose law is that of ``gamma``."""

    shape: float | None = None
    """``eta`` of a truncated negative binomial law; None for a Poisson law."""

    gamma: float = 1.0
    """The other parameter of a negative binomial law, above 0 and at most 1; 1 is one run for certain."""

    def as_dict(self) -> dict[str, object]:
        """The law as plain values by key, as results write it."""
        parameters: dict[str, object] = {} if self.shape is None else {"shape": self.shape, "gamma": self.gamma}
        return {"distribution": self.distribution, "expected_trials": self.expected, **parameters}

    def probabilities(self) -> Iterator[tuple[int, Decimal]]:
        """Every ``k`` upwards with its probability, in the digits of the decimal context of whoever asks."""
        k, gamma, mean = 1, Decimal(self.gamma), Decimal(self.expected)
        eta = None if self.shape is None else Decimal(self.shape)
        if eta is None:
            k, p = 0, (-mean).exp()
        elif gamma == 1:
            p = gamma
        else:
            # P(1) = eta (1-gamma)/(gamma^-eta - 1), or (1-gamma)/ln(1/gamma)
            p = (1 - gamma) * (eta / (gamma**-eta - 1) if eta else -1 / gamma.ln())
        while True:
            yield k, p
            # P(k+1)/P(k) = m/(k+1), or (1-gamma)(k+eta)/(k+1)
            k, p = k + 1, p * (mean if eta is None else (1 - gamma) * (k + eta)) / (k + 1)

    def draw(self, uniform: Fraction) -> int:
        """The number of runs at which the distribution function is first above ``uniform``, which is in [0, 1)."""
        with localcontext() as context:
            context.prec = DRAWN_DIGITS
            at = Decimal(uniform.numerator) / uniform.denominator
            k, total = 0, Decimal(0)
            for k, probability in self.probabilities():
                total += probability
                if total > at or (k > self.expected and probability < LEAST_DRAWN):
                    break
            return k


def law_of_trials(trials: float, distribution: str, shape: float | None) -> _TrialLaw:
    """The law with this mean, name and shape; raises :class:`InvalidParameter` for a value outside its domain."""
    if distribution not in SHAPES:
        raise unknown_name("distribution", distribution, "a distribution of the number of trials", SHAPES)
    mean = real("trials", trials, f"a mean number of trials from 1 to {LARGEST_EXPECTED:g}", 1.0, LARGEST_EXPECTED)
    if distribution != "negative-binomial":
        if shape is not None:
            raise InvalidParameter("shape", shape, f"no shape with {distribution} trials", "negative-binomial has one")
        shape = SHAPES[distribution]
    else:
        expected = f"a shape from {LEAST_SHAPE:g} to {LARGEST_SHAPE:g} with negative-binomial trials"
        shape = real("shape", shape, expected, LEAST_SHAPE, LARGEST_SHAPE)
        if 0.0 < abs(shape) < SMALLEST_SHAPE:
            raise InvalidParameter("shape", shape, f"a shape of 0, or at least {SMALLEST_SHAPE:g} in size")
    if shape is None:
        return _TrialLaw(distribution, mean)
    eta = shape
    gamma = find_crossing(lambda g: _mean_of(eta, g) - mean, 1.0 / mean, low=LEAST_GAMMA, high=1.0).upper
    return _TrialLaw(distribution, _mean_of(eta, gamma) * (1.0 + MEAN_RELATIVE_ERROR), eta, gamma)


def _mean_of(eta: float, gamma: float) -> float:
    """``eta (1/gamma - 1)/(1 - gamma^eta)``, the mean of a negative binomial law above 0; its limit at ``eta = 0``."""
    logarithm = -math.log(gamma)
    if logarithm == 0.0:
        return 1.0
    shrunk = -math.expm1(-eta * logarithm) / eta if eta else logarithm
    return math.expm1(logarithm) / shrunk


def select_best(base: Curve, law: _TrialLaw) -> Curve:
    """The curve of the best of a random number of runs that each have the curve ``base``, as sound as that (C34).

    Raises :class:`Refused` for a rule, which says one delta at a time and no profile.
    """
    if leads_with_epsilon(base):
        raise Refused(
            "a rule for one delta at a time does not account for a selection; expected a bound with a privacy profile "
            "or a Renyi curve, as the default bounds have"
        )
    if law.shape is not None:
        return _shifted(base, law)
    if isinstance(base, BestCurve):
        return BestCurve(tuple(_poisson_renyi(curve, law.expected) for curve in base.curves))
    return _poisson_renyi(base, law.expected) if isinstance(base, RenyiCurve) else _poisson_mixture(base, law.expected)


def _poisson_renyi(base: RenyiCurve, mean: float) -> RenyiCurve:
    """The curve for a Poisson law and a Renyi curve ``D`` of one run (Papernot, Steinke 2022, Theorem 6; C34)."""

    def divergence(alpha: float) -> float:
        # D(alpha) + m delta_0(ln(1 + 1/(alpha - 1))) + ln(m)/(alpha - 1)
        one = base.divergence(alpha)
        if one == math.inf:
            return math.inf
        shift = math.exp(base.log_delta(-math.log1p(-1.0 / alpha) * (1.0 - 1e-15)).upper)
        return next_up(one + mean * shift * (1.0 + 1e-15) + math.log(mean) / (alpha - 1.0))

    return replace(base, divergence=divergence, poisson=None)


def _shifted(base: Curve, law: _TrialLaw) -> "_Selection":
    """The curve for a truncated negative binomial law: the deltas grow by ``m``, the epsilons by ``(1 + eta) tau``."""
    assert law.shape is not None
    tau, odds = 0.0, (1.0 - law.gamma) / law.gamma

    # ln delta_0(tau) + ln((1 - gamma)/gamma) - ln(e^tau - 1) <= 0, moved up by more than its rounding (C34)
    def excess(tau: float) -> float:
        reach = tau + log1m_exp(-tau) if tau > 0.7 else math.log(math.expm1(tau))
        return base.log_delta(tau).upper + math.log(odds) - reach + 1e-13 * (1.0 + abs(reach))

    if odds > 0.0:
        # Where the search for ``tau`` begins, and the smallest that is looked for, in nats. Speed only.
        tau = find_crossing(excess, 0.3, low=1e-15, high=LARGEST_PROFILE_EPSILON, rtol=1e-12).upper
    shift = (1.0 + law.shape) * tau * (1.0 + 1e-15)
    return _Selection(base, next_up(math.log(law.expected)), (((1.0, shift),),), digits_of(base))


_Cells = tuple[tuple[float, float], ...]
"""What one choice of ``tau`` adds up: weights, and how far below ``eps``, in nats, ``delta_0`` is asked for each."""


@dataclass(frozen=True, eq=False)
class _Selection:
    """The curve of the best of several runs: the least over a few choices of ``tau``, all sound, of a weighted sum.

    A negative binomial number has one choice of one cell: ``delta(eps) = m delta_0(eps - (1 + eta) tau)``.
    """

    base: Curve
    growth: float
    """``ln m``, rounded up."""

    tilts: tuple[_Cells, ...]
    """The cells of each ``tau``; the first cell is the one nearest to ``eps``."""

    digits: int
    """Digits of an epsilon that is answered (C24)."""

    @property
    def numerics(self) -> dict[str, object]:
        """How the curve of one run was computed."""
        return numerics_of(self.base)

    @property
    def floor(self) -> float:
        """The delta below which the curve of one run cannot be told from rounding, times ``m``; 0 where none is."""
        return min(1.0, getattr(self.base, "floor", 0.0) * math.exp(self.growth) * (1.0 + 1e-9))

    def _log_base(self, eps: float, less: float) -> float:
        """``ln delta_0(eps - less)``, at an epsilon rounded down; 0 for a negative one."""
        inner = eps - less - 1e-14 * (eps + abs(less))
        return self.base.log_delta(inner).upper if inner >= 0.0 else 0.0

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``; the lower end is not known."""
        best = 0.0
        starts = [(self._log_base(eps, cells[0][1]), cells) for cells in self.tilts]
        for first, cells in sorted(starts, key=lambda start: start[0]):
            # No value of a tilt is below m delta_0 at its first epsilon.
            if first + self.growth >= best:
                break
            # m [sum_k w_k delta_0(eps + tau - m delta_0(tau) - c x_k) + e^-m delta_0(eps - m delta_0(tau) - c m)]
            terms = (math.log(weight) + self._log_base(eps, less) for weight, less in cells)
            total = self.growth + reduce(log_add, terms)
            best = min(best, total + _log_rounding(total))
        return Enclosure(-math.inf, best)

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats; the lower end is not known."""
        if self.log_delta(0.0).upper <= log_delta:
            return Enclosure(-math.inf, 0.0)
        least = self.base.epsilon(log_delta - self.growth - 2.0 * _log_rounding(log_delta)).upper
        if least == math.inf:
            return Enclosure(-math.inf, math.inf)
        if len(self.tilts) == 1:
            ((_, shift),) = self.tilts[0]
            return Enclosure(-math.inf, (least + shift) * (1.0 + 4e-14))
        search: dict[str, float] = {"low": 1e-15, "high": LARGEST_PROFILE_EPSILON, "rtol": 1e-8}
        crossing = find_crossing(lambda e: self.log_delta(e).upper - log_delta, max(least, 1e-9), **search)
        return Enclosure(-math.inf, crossing.upper)


def _log_rounding(log_delta: float) -> float:
    """More than the rounding of the log of a sum of such logs."""
    return 1e-12 + 1e-15 * abs(log_delta)


def _poisson_mixture(base: Curve, mean: float) -> _Selection:
    """The curve for a Poisson law of this mean."""
    taus = (0.0, *(math.log1p(1.0 / (order - 1.0)) for order in ORDERS))
    # Rounded up, and by more than the rounding of differences of epsilons near 1.
    losses = [mean * math.exp(base.log_delta(tau).upper) * (1.0 + 1e-14) + 1e-14 for tau in taus]
    tilts = [_weigh_cells(tau, mean, lost) for tau, lost in zip(taus, losses, strict=True)]
    # So few digits as evaluations are slow.
    return _Selection(base, next_up(math.log(mean)), tuple(tilts), 7)


def _weigh_cells(tau: float, mean: float, lost: float) -> _Cells:
    """``(w_k, lost + c x_k - tau)`` for the ends of cells of an exponential variable below ``mean``, and the rest.

    A chord in ``t = e^(-c x)`` is above a convex function of ``t``: each cell puts its mass on both of its ends (C34).
    ``lost`` is ``m delta_0(tau)``, rounded up by so much that the rounding of the difference is covered.
    """
    c = math.expm1(tau)
    if c == 0.0:
        return ((1.0, lost),)
    cuts = [*(x for x in CUTS if x < mean), mean]
    weights = dict.fromkeys(cuts, 0.0)
    for near, far in pairwise(cuts):
        mass = math.exp(-near) * -math.expm1(near - far)
        # the mean of e^(-c (x - near)) in the cell, and the share of the far end that has it
        discount = -math.expm1((1.0 + c) * (near - far)) / (1.0 + c) / -math.expm1(near - far)
        share = min(1.0, (1.0 - discount) / -math.expm1(c * (near - far)) + CHORD_ERROR)
        weights[near] += mass * (1.0 - share) + 1e-15 * mass
        weights[far] += mass * share
    ends = [(weight, lost + c * x - tau) for x, weight in weights.items() if weight > 0.0]
    return (*ends, (max(math.exp(-mean), LEAST_WEIGHT), lost + c * mean))


DistributionName = Literal["geometric", "logarithmic", "negative-binomial", "poisson"]

DRAWN_BITS = 160
"""Random bits of the uniform number that decides a number of trials. Soundness."""


@dataclass(frozen=True)
class _SelectedQuestion(Schedule):
    """A question about one run, asked of the best of a random number of such runs."""

    law: _TrialLaw = field(kw_only=True)
    """The law of the number of runs."""

    has_batch_notes: ClassVar[bool] = False  # they hold for one run

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
        **run: The run of one trial, as :class:`privproj.run.RunOptions` lists it.

    Returns:
        A result whose ``value`` is epsilon, delta or the noise multiplier of the whole selection, an upper bound.
        ``run["selection"]`` has the law of the number of runs. For epsilon, ``numerics`` says what one run costs, and
        what it costs to release all of as many runs as are expected, where these are known.

    Raises:
        InvalidParameter: A value is outside its domain, or neither ``epsilon`` nor ``delta`` is given.
        Refused: The bound proves nothing for this mechanism and run, or only a rule for one delta at a time.
        NotConverged: A quadrature or a search did not reach its accuracy.
        PrecisionLimit: A composition cannot tell so small a delta from its rounding.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.selection import select
    >>> found = select(Gaussian(noise_multiplier=4.0), trials=10, delta=1e-5)
    >>> round(found.value, 3), round(found.numerics["epsilon_of_one_run"], 3)
    (1.51, 0.926)
    >>> round(select(Gaussian(), trials=10, epsilon=1.0, delta=1e-5).value, 3)
    5.92
    """
    law = law_of_trials(trials, distribution, shape)
    question = _SelectedQuestion(composition_of(mechanism, bound, run).phases, law=law)
    if epsilon is not None and delta is not None:
        require_unset(mechanism, "noise_multiplier", "select with epsilon and delta")
        return solve_sigma(question, full_target(epsilon, delta, None, zero=False))
    if delta is not None:
        target = delta_target(delta, None)
        return _with_comparison(question, solve_epsilon(question, target), target)
    if epsilon is None:
        raise InvalidParameter("delta", "nothing", "a delta, an epsilon, or both without a noise multiplier")
    return solve_delta(question, epsilon_target(epsilon))


def _with_comparison(question: _SelectedQuestion, result: Result, target: Target) -> Result:
    """The epsilon with those of one run and of all runs released, where they are known; a warning if all cost less."""
    one, count = composition_of_phase(question.only), math.ceil(question.law.expected * (1.0 - 1e-9))
    every = one.with_run(steps=min(one.only.run.steps * count, 10**15))
    numerics: dict[str, Any] = dict(result.numerics)
    for name, asked in (("epsilon_of_one_run", one), ("epsilon_of_all_trials", every)):
        with suppress(PrivprojError):
            numerics[name] = solve_epsilon(asked, target).value
    warnings, of_all = result.warnings, numerics.get("epsilon_of_all_trials")
    if of_all is not None and result.value is not None and of_all <= result.value:
        warnings = (*warnings, f"exactly {count} trials, all of them released, cost no more: fix their number instead")
    return replace(result, numerics=numerics, warnings=warnings)


def draw_trials(trials: float, distribution: DistributionName = "geometric", shape: float | None = None) -> int:
    """Draw the number of runs of a selection from the law that :func:`privproj.contrib.selection.select` accounts for.

    The bits come from the operating system. ``P(k+1)/P(k) = (1 - gamma)(k + shape)/(k + 1)`` for a negative binomial
    law, and ``P(k) = exp(-m) m^k / k!`` for a Poisson law; sums have 80 digits. Keep the number secret: it is no part
    of what the accounting covers.

    Args:
        trials: The expected number of runs, from 1 to 1e5.
        distribution: The law, as for :func:`privproj.contrib.selection.select`.
        shape: The shape of a negative binomial law, from -0.9 to 100.

    Returns:
        A number of runs, at least 1; at least 0 for a Poisson law, where 0 means that nothing is released.

    Raises:
        InvalidParameter: A value is outside its domain.

    >>> from privproj.contrib.selection import draw_trials
    >>> draw_trials(10) >= 1
    True
    """
    return law_of_trials(trials, distribution, shape).draw(Fraction(secrets.randbits(DRAWN_BITS), 2**DRAWN_BITS))
