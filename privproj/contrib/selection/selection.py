"""Account for the release of the best of a random number of runs.

``K`` independent runs of one mechanism are made, and the run with the largest score is released. Claim C34 (the best of
a random number of runs) of docs/proofs.md proves the bounds. Let ``delta_0`` be the privacy profile of one run, in both
the add and remove directions, and ``m`` the mean of ``K``. If ``K`` has a truncated negative binomial distribution with
parameters ``eta`` and ``gamma``, then

    delta(eps) <= m delta_0(eps - (1 + eta) tau),   tau the least with  delta_0(tau) <= gamma/(1 - gamma) (e^tau - 1).

If ``K`` has a Poisson distribution, then for every ``tau >= 0``, with ``c = e^tau - 1`` and ``X`` exponential of mean
1,

    delta(eps) <= m E[delta_0(eps + tau - m delta_0(tau) - c X); X < m] + m e^-m delta_0(eps - m delta_0(tau) - c m).

The distributions are those of Liu, Talwar (STOC 2019) and of Papernot, Steinke (ICLR 2022, arXiv 2110.03620).
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

from privproj.accounting.batch_notes import NO_AMPLIFICATION
from privproj.accounting.calibration import require_unset, solve_sigma
from privproj.accounting.phase import numerics_of
from privproj.accounting.query import (
    Composition,
    composition_of,
    composition_of_phase,
    solve_delta,
    solve_epsilon,
)
from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError, unknown_name, within
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

# distributions of the number of runs, with their shape ``eta`` if the name determines it
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "negative-binomial": None, "poisson": None}

LARGEST_EXPECTED = 1e5  # largest expected number of runs

LEAST_SHAPE = -0.9  # smallest shape; closer to -1 ``gamma`` would underflow

LARGEST_SHAPE = 100.0  # largest shape

LEAST_GAMMA = 1e-300  # smallest ``gamma`` in the search

# soundness: relative error of the mean number of runs, from a few roundings of differences of exponentials
MEAN_RELATIVE_ERROR = 1e-13

# soundness: decimal digits in which a number of runs is drawn; its distribution is then exact up to 1e-40
DRAWN_DIGITS = 80

# soundness: probability below which a number of runs beyond the mean is the largest one that is drawn; it is far below
# the resolution of the random bits
LEAST_DRAWN = Decimal("1e-60")

SMALLEST_SHAPE = 1e-9  # soundness: smallest absolute value of a nonzero shape, with which probabilities lose 9 digits

# orders for which ``tau = ln(1 + 1/(order - 1))`` is tried for a Poisson number of runs, besides ``tau = 0``; every tau
# is sound
ORDERS = (2.0, 3.0, 5.0, 9.0, 16.0, 32.0)

# boundaries of the cells of an exponential variable, as far as they are below the mean of the Poisson number
CUTS = (*(0.5 * i for i in range(12)), *range(6, 14), 16.0, 20.0, 24.0, 32.0, 48.0, 64.0, 128.0, 512.0)

CHORD_ERROR = 1e-9  # soundness: added to the share of the far end of a cell, more than its rounding

# soundness: smallest weight of the part beyond the mean of a Poisson number, where ``e^-m`` underflows
LEAST_WEIGHT = 5e-324


@dataclass(frozen=True)
class _TrialDistribution:
    """The distribution of the number ``K`` of runs in a private selection.

    Attributes:
        expected: The mean of ``K``. For a negative binomial distribution it is computed from ``gamma`` and rounded up.
        shape: ``eta`` of a truncated negative binomial distribution; None for a Poisson distribution.
        gamma: The other parameter of a negative binomial distribution, above 0 and at most 1; at 1 there is one run.
    """

    distribution: str

    expected: float

    shape: float | None = None

    gamma: float = 1.0

    def as_dict(self) -> dict[str, object]:
        """Return the distribution as plain values by key, for results."""
        parameters: dict[str, object] = {} if self.shape is None else {"shape": self.shape, "gamma": self.gamma}
        return {"distribution": self.distribution, "expected_trials": self.expected, **parameters}

    def probabilities(self) -> Iterator[tuple[int, Decimal]]:
        """Yield each number of runs in increasing order, with its probability.

        Probabilities are computed in the current decimal context.
        """
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
        """Return the number of runs for a uniform random number, by inverting the CDF."""
        with localcontext() as context:
            context.prec = DRAWN_DIGITS
            at = Decimal(uniform.numerator) / uniform.denominator
            k, total = 0, Decimal(0)
            for k, probability in self.probabilities():
                total += probability
                # at most the first number beyond the mean whose probability is below LEAST_DRAWN
                if total > at or (k > self.expected and probability < LEAST_DRAWN):
                    break
            return k


def trial_distribution(trials: float, distribution: str, shape: float | None) -> _TrialDistribution:
    """Return the distribution of the number of runs with this mean, name and shape.

    Raises:
        InvalidParameterError: The name is unknown, a number is out of range, or a shape is given for a distribution
            without one.
    """
    if distribution not in SHAPES:
        raise unknown_name("distribution", distribution, "distribution of trials", SHAPES)
    mean = real("trials", trials, f"a number from 1 to {LARGEST_EXPECTED:g}", 1.0, LARGEST_EXPECTED)
    if distribution != "negative-binomial":
        if shape is not None:
            raise InvalidParameterError(
                "shape", shape, f"omitted for the {distribution} distribution", "only negative-binomial has a shape"
            )
        shape = SHAPES[distribution]
    else:
        expected = f"a number from {LEAST_SHAPE:g} to {LARGEST_SHAPE:g}"
        shape = real("shape", shape, expected, LEAST_SHAPE, LARGEST_SHAPE)
        if 0.0 < abs(shape) < SMALLEST_SHAPE:
            raise InvalidParameterError("shape", shape, f"0, or at least {SMALLEST_SHAPE:g} in absolute value")
    if shape is None:
        return _TrialDistribution(distribution, mean)
    eta = shape
    gamma = find_crossing(lambda g: _mean_of(eta, g) - mean, 1.0 / mean, low=LEAST_GAMMA, high=1.0).upper
    return _TrialDistribution(distribution, _mean_of(eta, gamma) * (1.0 + MEAN_RELATIVE_ERROR), eta, gamma)


def _mean_of(eta: float, gamma: float) -> float:
    """Return the mean of a truncated negative binomial distribution."""
    # eta (1/gamma - 1)/(1 - gamma^eta), or the limit at eta = 0
    logarithm = -math.log(gamma)
    if logarithm == 0.0:
        return 1.0
    shrunk = -math.expm1(-eta * logarithm) / eta if eta else logarithm
    return math.expm1(logarithm) / shrunk


def selection_curve(base: Curve, runs: _TrialDistribution) -> Curve:
    """Return the privacy curve of the best of a random number of runs.

    The result is an upper bound if ``base``, the curve of one run, is an upper bound.

    Raises:
        UnsupportedError: ``base`` is neither a privacy profile nor a Renyi curve.
    """
    if leads_with_epsilon(base):
        raise UnsupportedError(
            "this bound does not support private selection. Use a bound with "
            "a privacy profile or a Renyi curve, as the "
            "default bounds have"
        )
    if runs.shape is not None:
        return _negative_binomial_curve(base, runs)
    if isinstance(base, BestCurve):
        return BestCurve(tuple(_poisson_renyi_curve(curve, runs.expected) for curve in base.curves))
    return (
        _poisson_renyi_curve(base, runs.expected)
        if isinstance(base, RenyiCurve)
        else _poisson_curve(base, runs.expected)
    )


def _poisson_renyi_curve(base: RenyiCurve, mean: float) -> RenyiCurve:
    """Return the Renyi curve of the best of a Poisson number of runs.

    ``base`` is the curve of one run, and ``mean`` is the mean number of runs.
    """

    def divergence(alpha: float) -> float:
        # Theorem 6 of Papernot, Steinke 2022
        # D(alpha) + m delta_0(ln(1 + 1/(alpha - 1))) + ln(m)/(alpha - 1)
        one = base.divergence(alpha)
        if one == math.inf:
            return math.inf
        shift = math.exp(base.log_delta(-math.log1p(-1.0 / alpha) * (1.0 - 1e-15)).upper)
        return next_up(one + mean * shift * (1.0 + 1e-15) + math.log(mean) / (alpha - 1.0))

    return replace(base, divergence=divergence, poisson=None)


def _negative_binomial_curve(base: Curve, runs: _TrialDistribution) -> "_Selection":
    """Return the privacy curve of the best of a negative binomial number of runs.

    ``base`` is the curve of one run.
    """
    assert runs.shape is not None
    # m delta_0(eps - (1 + eta) tau), with the least tau such that delta_0(tau) <= gamma/(1 - gamma) (e^tau - 1)
    tau, odds = 0.0, (1.0 - runs.gamma) / runs.gamma

    # ln delta_0(tau) + ln((1 - gamma)/gamma) - ln(e^tau - 1) <= 0, increased by more than its rounding (C34)
    def excess(tau: float) -> float:
        reach = tau + log1m_exp(-tau) if tau > 0.7 else math.log(math.expm1(tau))
        return base.log_delta(tau).upper + math.log(odds) - reach + 1e-13 * (1.0 + abs(reach))

    if odds > 0.0:
        # The search for tau starts at 0.3 nats and ends at 1e-15 nats.
        tau = find_crossing(excess, 0.3, low=1e-15, high=LARGEST_PROFILE_EPSILON, rtol=1e-12).upper
    shift = (1.0 + runs.shape) * tau * (1.0 + 1e-15)
    return _Selection(base, next_up(math.log(runs.expected)), (((1.0, shift),),), digits_of(base))


# the weights for one ``tau``, each with the number of nats below ``eps`` at which ``delta_0`` is evaluated
Cells = tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class _Selection:
    """The privacy curve of the best of several runs.

    With the profile ``delta_0`` of one run and the mean number ``m`` of runs, the curve is the minimum of several
    bounds ``delta(eps) <= m sum_k w_k delta_0(eps - s_k)``, each with its own weights ``w_k`` and shifts ``s_k``.

    Attributes:
        base: The curve of one run.
        growth: ``ln m``, rounded up.
        tilts: For each bound, the pairs ``(w_k, s_k)``. The first pair has the smallest shift.
        digits: Significant digits of a returned epsilon (C24: epsilon and delta as exact inverses).
    """

    base: Curve
    growth: float

    tilts: tuple[Cells, ...]

    digits: int

    @property
    def numerics(self) -> dict[str, object]:
        return numerics_of(self.base)

    @property
    def floor(self) -> float:
        """The smallest delta that the curve supports; 0 if there is no such limit."""
        return min(1.0, getattr(self.base, "floor", 0.0) * math.exp(self.growth) * (1.0 + 1e-9))

    def _log_base(self, eps: float, less: float) -> float:
        """Return an upper bound of ``ln delta`` of one run at the epsilon ``eps - less``."""
        # eps - less, rounded down
        inner = eps - less - 1e-14 * (eps + abs(less))
        return self.base.log_delta(inner).upper if inner >= 0.0 else 0.0

    def log_delta(self, eps: float) -> Enclosure:
        """Return an upper bound of ``ln delta(eps)``, as an enclosure without a lower end."""
        best = 0.0
        starts = [(self._log_base(eps, cells[0][1]), cells) for cells in self.tilts]
        for first, cells in sorted(starts, key=lambda start: start[0]):
            # Every value of this tau is at least m delta_0 at its first epsilon.
            if first + self.growth >= best:
                break
            # m [sum_k w_k delta_0(eps + tau - m delta_0(tau) - c x_k) + e^-m delta_0(eps - m delta_0(tau) - c m)]
            terms = (math.log(weight) + self._log_base(eps, less) for weight, less in cells)
            total = self.growth + reduce(log_add, terms)
            best = min(best, total + _log_rounding(total))
        return Enclosure(-math.inf, best)

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an upper bound of epsilon, in nats, as an enclosure without a lower end."""
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
    """Return an upper bound of the rounding error of a computed ``ln delta``."""
    return 1e-12 + 1e-15 * abs(log_delta)


def _poisson_curve(base: Curve, mean: float) -> _Selection:
    """Return the privacy curve of the best of a Poisson number of runs.

    ``base`` is the curve of one run, and ``mean`` is the mean number of runs.
    """
    taus = (0.0, *(math.log1p(1.0 / (order - 1.0)) for order in ORDERS))
    # Rounded up by more than the rounding error of differences of epsilons near 1.
    losses = [mean * math.exp(base.log_delta(tau).upper) * (1.0 + 1e-14) + 1e-14 for tau in taus]
    tilts = [_weigh_cells(tau, mean, lost) for tau, lost in zip(taus, losses, strict=True)]
    # Epsilon has seven digits only, because evaluations are slow.
    return _Selection(base, next_up(math.log(mean)), tuple(tilts), 7)


def _weigh_cells(tau: float, mean: float, lost: float) -> Cells:
    """Return the pairs ``(w_k, s_k)`` of an upper bound of the profile of a selection.

    The bound is ``delta(eps) <= mean sum_k w_k delta_0(eps - s_k)``, where ``delta_0`` is the profile of one run and
    the number of runs is Poisson distributed. Each ``tau >= 0`` gives another bound. ``lost`` is ``mean delta_0(tau)``,
    rounded up.
    """
    # m sum_k w_k delta_0(eps - s_k): the exponential variable X < m is discretized at points x_k. The shifts s_k are
    # lost + c x_k - tau, and one for the last term of the bound.
    c = math.expm1(tau)
    if c == 0.0:
        return ((1.0, lost),)
    cuts = [*(x for x in CUTS if x < mean), mean]
    weights = dict.fromkeys(cuts, 0.0)
    # A convex function of e^(-c x) is below its chord between two cuts, so each cell moves its mass to both ends.
    for near, far in pairwise(cuts):
        mass = math.exp(-near) * -math.expm1(near - far)
        # mean of e^(-c (x - near)) in the cell, and the share of the far end with the same mean
        discount = -math.expm1((1.0 + c) * (near - far)) / (1.0 + c) / -math.expm1(near - far)
        share = min(1.0, (1.0 - discount) / -math.expm1(c * (near - far)) + CHORD_ERROR)
        weights[near] += mass * (1.0 - share) + 1e-15 * mass
        weights[far] += mass * share
    ends = [(weight, lost + c * x - tau) for x, weight in weights.items() if weight > 0.0]
    return (*ends, (max(math.exp(-mean), LEAST_WEIGHT), lost + c * mean))


DistributionName = Literal["geometric", "logarithmic", "negative-binomial", "poisson"]

DRAWN_BITS = 160  # soundness: random bits of the uniform number from which a number of runs is drawn


@dataclass(frozen=True)
class _SelectionQuery(Composition):
    """The query of epsilon or delta for the best of a random number of runs.

    Its only phase is one run.
    """

    runs: _TrialDistribution = field(kw_only=True)

    has_batch_notes: ClassVar[bool] = False  # notes on batches would be about one run

    @property
    def notes(self) -> tuple[str, ...]:
        shuffled = self.only.run.scheme.is_shuffled
        return (*super().notes, *((NO_AMPLIFICATION,) if shuffled else ()))

    def curve(self) -> Curve:
        """Return the privacy curve of the release of the best run.

        Raises:
            UnsupportedError: The bound of one run has neither a privacy profile nor a Renyi curve.
        """
        one = super().curve()
        with within(self.only.bound.name):
            return selection_curve(one, self.runs)

    def side(self, curve: Curve) -> Side:
        """Return "upper bound", because no exact value is known for a selection."""
        return Side.UPPER

    @property
    def run_requirements(self) -> tuple[str, ...]:
        """The requirements on the run and the selection."""
        of_selection = (
            Requirement.RANDOM_NUMBER_OF_TRIALS,
            Requirement.ONLY_BEST_RELEASED,
            Requirement.PRIVATE_SCORE,
            Requirement.RANDOM_CANDIDATES,
        )
        return (*super().run_requirements, *of_selection)

    def named(self) -> dict[str, Any]:
        """Return the fields of a result that describe one run and the selection."""
        one = super().named()
        run = {**one["run"], "selection": self.runs.as_dict()}
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
    """Return epsilon, delta or noise for the release of the best of several runs.

    The number of runs is random, as in a private hyper-parameter search, and the best run has the largest score. Give
    two of ``delta``, ``epsilon`` and the noise multiplier; the third is computed. Let ``delta(eps)`` be the profile of
    one run. For a negative binomial number of runs with mean ``m``, the profile of the selection is
    ``delta'(eps) = m delta(eps - (1 + shape) tau)`` with the least ``tau`` such that
    ``delta(tau) <= gamma/(1 - gamma) (exp(tau) - 1)``. Here ``gamma`` is the second parameter of the distribution,
    which follows from ``m`` (docs/proofs.md, C34).

    Args:
        mechanism: The mechanism of one run; without its noise multiplier if both ``epsilon`` and ``delta`` are given.
        trials: The expected number of runs, from 1 to 1e5.
        distribution: The distribution of the number of runs: "geometric", "logarithmic" (often one run, rarely very
            many), "negative-binomial" (with a ``shape``) or "poisson" (which may give no run at all).
        shape: The shape of a negative binomial distribution, from -0.9 to 100; 1 is geometric, 0 logarithmic.
        epsilon: The epsilon of the whole selection, from 0 to 1e9.
        delta: The delta of the whole selection, above 0 and below 1.
        bound: The name of a bound of the mechanism; None takes its default.
        **run: The run of one trial (:class:`privproj.run.RunOptions`).

    Returns:
        A result whose ``value`` is epsilon, delta or the noise multiplier of the whole selection, an upper bound.
        ``run["selection"]`` has the distribution of the number of runs. For epsilon, ``numerics`` has the epsilon of
        one run and the epsilon of releasing the expected number of runs, if they are known.

    Raises:
        InvalidParameterError: A value is out of range, or neither ``epsilon`` nor ``delta`` is given.
        UnsupportedError: The bound does not support this mechanism and run, or has neither a privacy profile nor a
            Renyi curve.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: Delta is below the rounding error of a composition.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.selection import select
    >>> result = select(Gaussian(noise_multiplier=4.0), trials=10, delta=1e-5)
    >>> round(result.value, 3), round(result.numerics["epsilon_of_one_run"], 3)
    (1.51, 0.926)
    >>> round(select(Gaussian(), trials=10, epsilon=1.0, delta=1e-5).value, 3)
    5.92
    """
    runs = trial_distribution(trials, distribution, shape)
    composition = _SelectionQuery(composition_of(mechanism, bound, run).phases, runs=runs)
    if epsilon is not None and delta is not None:
        require_unset(mechanism, "noise_multiplier", "select with epsilon and delta")
        return solve_sigma(composition, full_target(epsilon, delta, None, zero=False))
    if delta is not None:
        target = delta_target(delta, None)
        return _with_comparison(composition, solve_epsilon(composition, target), target)
    if epsilon is None:
        raise InvalidParameterError(
            "delta", "nothing", "a target", "give delta or epsilon, or both without a noise multiplier"
        )
    return solve_delta(composition, epsilon_target(epsilon))


def _with_comparison(composition: _SelectionQuery, result: Result, target: Target) -> Result:
    """Add to a result the epsilon of one run and the epsilon of releasing all runs."""
    one, count = composition_of_phase(composition.only), math.ceil(composition.runs.expected * (1.0 - 1e-9))
    all_released = one.with_run(steps=min(one.only.run.steps * count, 10**15))
    numerics: dict[str, Any] = dict(result.numerics)
    for name, query in (("epsilon_of_one_run", one), ("epsilon_of_all_trials", all_released)):
        with suppress(PrivprojError):
            numerics[name] = solve_epsilon(query, target).value
    warnings, of_all = result.warnings, numerics.get("epsilon_of_all_trials")
    if of_all is not None and result.value is not None and of_all <= result.value:
        warnings = (
            *warnings,
            f"Releasing all trials has no larger epsilon. Fix the number of trials at {count}.",
        )
    return replace(result, numerics=numerics, warnings=warnings)


def draw_trials(trials: float, distribution: DistributionName = "geometric", shape: float | None = None) -> int:
    """Return a random number of runs for a selection.

    The number has the distribution that :func:`select` accounts for. The random bits come from the operating system.
    With the parameter ``gamma`` and the mean ``m``, a negative binomial distribution has ``P(k+1)/P(k) = (1 - gamma)(k
    + shape)/(k + 1)``, and a Poisson distribution has ``P(k) = exp(-m) m^k / k!``. Keep the number secret, because the
    accounting does not cover its release.

    Args:
        trials: The expected number of runs, from 1 to 1e5.
        distribution: The distribution, as for :func:`select`.
        shape: The shape of a negative binomial distribution, from -0.9 to 100.

    Returns:
        A number of runs, at least 1; at least 0 for a Poisson distribution, where 0 means that nothing is released.

    Raises:
        InvalidParameterError: A value is out of range.

    >>> from privproj.contrib.selection import draw_trials
    >>> draw_trials(10) >= 1
    True
    """
    return trial_distribution(trials, distribution, shape).draw(Fraction(secrets.randbits(DRAWN_BITS), 2**DRAWN_BITS))
