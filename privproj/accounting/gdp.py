"""Bound the whole privacy curve of a run by Gaussian differential privacy (GDP).

A run is ``mu``-GDP if its privacy profile ``H(eps)`` is nowhere above ``G_mu(eps)``, the privacy profile of two unit
Gaussians at distance ``mu``. ``H`` is evaluated at some epsilons. As a function of ``t = e^eps`` it is convex and
decreasing, so the polygon through these points is above ``H``. ``mu`` is chosen such that ``G_mu`` is above every edge
of the polygon.

At very small deltas, such as 1e-30, a sampled run is hardly better than a run on the whole dataset, and ``mu`` would be
large. Therefore a slack ``d0`` is allowed: the polygon ends at the epsilon ``E`` at which ``H`` is ``d0``. Let ``f(a)``
be the smallest false negative rate of any attack on the run at the false positive rate ``a``. Let ``g_mu(a)`` be the
same rate for the two Gaussians, and ``Phi`` the normal distribution function. Then (C30)

    delta(eps) <= max(G_mu(eps), d0)    at every epsilon,
    f(a) >= g_mu(a) - d0                at every false positive rate a,
    f(a) >= g_mu(a)                     wherever a and g_mu(a) are at least a0 = Phi(-mu/2 - E/mu).
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Unpack

from privproj.accounting.calibration import gaussian_mu
from privproj.accounting.phase import numerics_of
from privproj.accounting.query import Composition, build_result, composition_of, query_of
from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError
from privproj.mechanisms import Mechanism
from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, log1m_exp, next_up, outward_margin
from privproj.numerics.special import log_add, log_normal_density, mills
from privproj.parameters import arguments_by_name
from privproj.profiles.conversion import read_epsilon
from privproj.profiles.gaussian import find_noise, log_gaussian_delta
from privproj.profiles.privacy_profile import Curve, PrivacyProfile
from privproj.profiles.tradeoff import advantage
from privproj.result import Outcome, Result, Side
from privproj.run import RunOptions
from privproj.targets import Target, delta_target, slack_target

DEFAULT_SLACK = 1e-9  # default slack ``d0``, a delta


@arguments_by_name("gdp_mu(mechanism, delta=1e-5)")
def gdp_mu(
    mechanism: Mechanism | Composition,
    *,
    delta: float = DEFAULT_SLACK,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """Return a ``mu``, rounded up, such that the run is ``mu``-GDP up to a slack.

    Let ``D_mu(eps)`` be the privacy profile of two unit Gaussians at distance ``mu``, and ``G_mu(a)`` their trade-off
    function. Let ``H(eps)`` be the privacy profile of the run, and ``f(a)`` its trade-off function: the smallest false
    negative rate of any attack at the false positive rate ``a``. With the slack ``s``, for every ``eps`` and ``a``

        H(eps) <= max(D_mu(eps), s),    f(a) >= G_mu(a) - s,

    and ``f(a) >= G_mu(a)`` if ``a`` and ``G_mu(a)`` are at least ``exact_from``, a number of the result (C30).
    Without a slack, the tails of sampled or projected runs at very small deltas would make ``mu`` much larger.

    Args:
        mechanism: The mechanism with its noise multiplier; or a ``Composition``, whose phases have bounds and runs.
        delta: The slack ``s``, below 1. It may be 0 if the run is exactly Gaussian, or if ``H(eps)`` is 0 above some
            epsilon.
        bound: The name of a bound of the mechanism; None takes its default.
        **run: The run (:class:`privproj.run.RunOptions`).

    Returns:
        A result whose ``value`` is ``mu``, and whose ``delta`` is the slack. ``value`` is ``inf`` (outcome vacuous) if
        no ``mu`` was found. The numerics have ``exact_from`` and the ``regret``, which bounds how loose ``mu`` is: for
        any prior, the success probabilities of the best attacks against ``G_mu`` and against the run differ by at most
        the regret.

    Raises:
        InvalidParameterError: A value is out of range.
        UnsupportedError: The bound does not support this mechanism and run, or a slack of 0 leaves no finite ``mu``.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: The slack is below the rounding error of a composition.

    >>> from privproj import Gaussian, gdp_mu
    >>> round(gdp_mu(Gaussian(noise_multiplier=2.0), steps=16).value, 12)
    2.0
    >>> sampled = gdp_mu(Gaussian(noise_multiplier=1.0), steps=2000, sampling_rate=0.01)
    >>> round(sampled.value, 3), round(sampled.numerics["regret"], 3)
    (0.666, 0.017)
    """
    if isinstance(mechanism, Composition):
        require_no_options(bound, run, "a schedule")
        return solve_gdp_mu(mechanism, slack_target(delta))
    return solve_gdp_mu(composition_of(mechanism, bound, run), slack_target(delta))


def require_no_options(bound: str | None, options: Mapping[str, Any], what: str) -> None:
    """Raise an error if a bound or run options are given together with a multi-phase run.

    ``what`` is a noun phrase for the run in the error message.
    """
    for name, value in {"bound": bound, **options}.items():
        if value is not None:
            raise InvalidParameterError(name, value, "omitted", f"{what} already states its bounds and run options")


@query_of("gdp_mu")
def solve_gdp_mu(query: Composition, target: Target) -> Result:
    """Return the smallest GDP parameter found for a run (C30).

    ``target`` is a slack: the guarantee need not hold for deltas below it.
    """
    curve = query.curve()
    exact_mu = gaussian_mu(curve)
    if exact_mu is not None:
        # The profile is exactly G_mu; 1/z and sqrt(T) are rounded.
        fit, side = _GaussianFit(next_up(exact_mu), 0.0, 0.0, 0), query.side(curve)
    else:
        fit, side = fit_gaussian(curve, target if target.delta else None), Side.UPPER
        if not target.delta and fit.mu == math.inf:
            raise UnsupportedError(
                "no finite mu holds for every delta of this run. Use a slack above 0, for example delta=1e-9"
            )
    numerics = {"regret": fit.regret, "exact_from": fit.least_rate, "epsilons_read": fit.points}
    fields: dict[str, Any] = {"numerics": {**numerics_of(curve), **numerics}, "side": side, **target.fields()}
    if fit.mu == math.inf:
        note = f"No mu is finite at this slack. Use a larger slack or {query.remedy}."
        fields |= {"outcome": Outcome.VACUOUS, "warnings": (*query.notes, note)}
    return build_result(query, "gdp_mu", fit.mu, **fields)


FIRST_EDGES = 16  # number of edges of the first polygon

LEAST_LOG10_DELTA = -1e6  # decimal log of the delta at whose epsilon the curve is tested for 0

# soundness: standard deviations; the normal tail is within 1e-15 of 1 here, and no smaller quantile is computed
LEAST_TAIL_START = -8.0

SLOPE_MARGIN = 1e-9  # soundness: nats by which the slopes of ``G`` and of an edge must differ to be compared

# soundness: error of the log of a sum of two numbers with known logs, besides one rounding of these
EDGE_ROUNDING = 1e-14


@dataclass(frozen=True)
class _GaussianFit:
    """A Gaussian privacy profile that bounds the privacy curve of a run (C30).

    Attributes:
        mu: The distance of the two unit Gaussians with this profile; ``inf`` if none was found.
        least_rate: The smallest false positive and false negative rate at which GDP holds without slack.
        regret: An upper bound on how loose ``mu`` is: for any prior, the success probabilities of the best attacks on
            the Gaussians and on the run differ by at most the regret.
        points: The number of epsilons at which the curve was evaluated.
    """

    mu: float
    least_rate: float
    regret: float
    points: int


def fit_gaussian(curve: Curve, slack: Target | None) -> _GaussianFit:
    """Return nearly the smallest GDP parameter of a privacy curve with a slack on delta (C30).

    At every epsilon, the delta of the curve is at most the Gaussian delta or at most the slack. Without slack, the
    curve must be 0 above some epsilon. If there is no such parameter, the result is ``inf``.
    """
    last, least = _end_of(curve, slack)
    if last == math.inf:
        return _GaussianFit(math.inf, 1.0, 1.0, 1)
    log_advantage = math.log(advantage(curve))
    if last == 0.0 or log_advantage <= least:
        return _GaussianFit(0.0, 1.0, 0.0, 1)
    read, needed = {0.0: log_advantage, last: least}, dict[float, float]()
    new = [last * i / FIRST_EDGES for i in range(1, FIRST_EDGES)]
    while True:
        read |= {eps: _read(curve, eps) for eps in new}
        edges = _edges(sorted(read.items()))
        ends = list(dict.fromkeys(point for edge in edges for point in edge))
        needed |= {eps: _mu_above(eps, log_delta) for eps, log_delta in ends if eps not in needed}
        spreads = [_edge_mu(low, high, max(needed[low[0]], needed[high[0]])) for low, high in edges]
        mu = max(spreads)
        if mu == math.inf:
            return _GaussianFit(mu, 1.0, 1.0, len(read))
        gaps = _gaps(edges, mu)
        # An edge is bisected until its mu is within 1e-4 (relative) of the mu of its ends.
        enough = max(needed[eps] for eps, _ in ends) * (1.0 + 1e-4)
        # The regret may exceed the largest gap at a point by 1e-4.
        near = max(_gap(eps, mu, math.exp(log_delta)) for eps, log_delta in ends) + 1e-4
        new = [
            0.5 * (low[0] + high[0])
            for (low, high), spread, gap in zip(edges, spreads, gaps, strict=True)
            if (spread > enough or gap > near) and _falls(low[1], high[1])
        ]
        new = [eps for eps in new if eps not in read]
        # At most 2000 epsilons are evaluated.
        if not new or len(read) + len(new) > 2000:
            break
    # a0 = Phi(-mu/2 - E/mu), and 0 without slack
    log_rate = _log_slope(last, mu)
    rate = math.exp(min(log_rate + SLOPE_MARGIN + outward_margin(log_rate, 0.0, 0.0), 0.0))
    rate = 0.0 if least == LOG_OF_ZERO_FROM_ABOVE else rate
    # Beyond E, H is at least 0.
    regret = min(1.0, next_up(max(*gaps, _gap(last, mu, 0.0), 0.0) + 1e-12))
    return _GaussianFit(mu, rate, regret, len(read))


def _falls(log_delta: float, next_log_delta: float) -> bool:
    """Return whether delta or ``1 - delta`` changes noticeably between two epsilons."""
    # 1e-3 nats; an edge along which delta and 1 - delta change less is not bisected.
    return max(log_delta - next_log_delta, log1m_exp(next_log_delta) - log1m_exp(log_delta)) > 1e-3


def _end_of(curve: Curve, slack: Target | None) -> tuple[float, float]:
    """Return the epsilon at which a privacy curve reaches 0 or the slack; ``inf`` if it does not.

    The second result is an upper bound of ``ln delta`` there.
    """
    if isinstance(curve, PrivacyProfile):
        last = read_epsilon(curve, delta_target(None, LEAST_LOG10_DELTA)).upper
        if last < math.inf and curve.log_delta(last).upper <= LOG_OF_ZERO_FROM_ABOVE:
            return last, LOG_OF_ZERO_FROM_ABOVE
    return (math.inf, 0.0) if slack is None else (read_epsilon(curve, slack).upper, slack.log_delta)


_Point = tuple[float, float]  # an epsilon in nats, and the log of an upper bound on delta there


def _read(curve: Curve, eps: float) -> float:
    """Return an upper bound of ``ln delta(eps)``; 0 if the curve cannot be evaluated."""
    with suppress(PrivprojError):
        return min(0.0, curve.log_delta(eps).upper)
    return 0.0


def _edges(points: list[_Point]) -> list[tuple[_Point, _Point]]:
    """Return the decreasing edges of the lower convex hull of the points ``(e^eps, delta)``."""
    # With rounding, the result may have other edges. They are valid too, because the profile is convex.
    hull: list[_Point] = []
    for point in points:
        if hull and hull[-1][1] <= point[1]:
            continue
        while len(hull) > 1 and _log_rate(hull[-2], hull[-1]) <= _log_rate(hull[-1], point):
            hull.pop()
        hull.append(point)
    return list(pairwise(hull))


def _log_rate(low: _Point, high: _Point) -> float:
    """Return the log of the decrease of delta per unit of ``e^eps`` between two points."""
    (eps, log_delta), (next_eps, next_log_delta) = low, high
    # ln((H_1 - H_2) / (t_2 - t_1))
    fall = -math.expm1(next_log_delta - log_delta)
    return log_delta + math.log(fall) - next_eps - math.log(-math.expm1(eps - next_eps))


def _log_slope(eps: float, mu: float) -> float:
    """Return the log of the decrease of a Gaussian privacy profile per unit of ``e^eps``."""
    # -dG/dt = Phi(-mu/2 - eps/mu)
    # The error is within the margin of C20.
    return _log_tail(0.5 * mu + eps / mu)


def _edge_mu(low: _Point, high: _Point, at_ends: float) -> float:
    """Return a GDP parameter whose Gaussian privacy profile is above the edge from ``low`` to ``high`` (C30).

    The profile of the parameter ``at_ends`` must be above both ends of the edge.
    """
    log_rate = _log_rate(low, high)
    if at_ends == math.inf:
        return math.inf
    # G minus the edge is convex in t. If the slopes at the ends of the edge show that it is monotone, its minimum is at
    # an end.
    for eps, steeper in ((high[0], 1.0), (low[0], -1.0)):
        slope = _log_slope(eps, at_ends)
        if steeper * (slope - log_rate) > SLOPE_MARGIN + outward_margin(slope, 0.0, 0.0):
            return at_ends
    # Otherwise the edge is extended to a line, which is the point (a, x) of the trade-off function, where
    # x = max(H_i + t_i a) is the true positive rate at a: mu = Q(a) - Q(x), with Q the inverse of the normal tail.
    log_hit = max(
        log_add(log_delta, eps + log_rate)
        + EDGE_ROUNDING
        + 4e-16 * (abs(max(log_delta, 10.0 * LEAST_LOG10_DELTA)) + eps + abs(log_rate))
        for eps, log_delta in (low, high)
    )
    return max(at_ends, next_up(_quantile(log_rate, up=True) - _quantile(log_hit, up=False)))


def _log_tail(x: float) -> float:
    """Return the log of the upper tail of the normal distribution at ``x >= -8``."""
    # The error is within the margin of C20.
    return log_normal_density(x) + math.log(mills(x))


def _quantile(log_tail: float, *, up: bool) -> float:
    """Return the normal quantile for the log of an upper tail, rounded up or down.

    Rounded down, it is ``-inf`` if the tail is too close to 1.
    """
    from scipy.special import ndtri_exp

    # The tail at the result is at most e^log_tail with ``up``, and at least e^log_tail otherwise.
    margin = outward_margin(log_tail, 0.0, 0.0)
    if log_tail + margin >= 0.0:
        return LEAST_TAIL_START if up else -math.inf
    aim = log_tail - margin if up else log_tail + margin
    x = max(-float(ndtri_exp(aim)), LEAST_TAIL_START)
    step = 1e-15
    while (_log_tail(x) > aim) if up else (_log_tail(x) < aim):
        x += step * max(1.0, abs(x)) * (1.0 if up else -1.0)
        if x < LEAST_TAIL_START:
            return -math.inf
        step *= 2.0
    return x


def _mu_above(eps: float, log_delta: float) -> float:
    """Return a GDP parameter whose delta at ``eps`` is at least the given one, or ``inf``."""
    aim = log_delta + outward_margin(log_delta, 0.0, 0.0)
    noise = find_noise(eps, aim).lower
    return next_up(1.0 / noise) if noise > 0.0 else math.inf


def _gaps(edges: list[tuple[_Point, _Point]], mu: float) -> list[float]:
    # for each edge, an upper bound of (G_mu - H)/(1 + e^eps) for any convex, decreasing profile H through the ends of
    # the edges (C30)
    gaps = []
    for i, ((eps, log_delta), (next_eps, next_log_delta)) in enumerate(edges):
        # H is above the next edge extended to the left: at t_1 it is at least H_2 + a (t_2 - t_1).
        rate = _log_rate(*edges[i + 1]) if i + 1 < len(edges) else -math.inf
        rise = math.exp(rate + next_eps + math.log(-math.expm1(eps - next_eps)))
        left = min(math.exp(log_delta), math.exp(next_log_delta) + rise)
        gaps.append(max(_gap(eps, mu, left), _gap(next_eps, mu, math.exp(next_log_delta))))
    return gaps


def _gap(eps: float, mu: float, delta: float) -> float:
    """Return a Gaussian delta minus ``delta``, divided by ``1 + e^eps``."""
    return (math.exp(log_gaussian_delta(eps, mu)) - delta) / (1.0 + math.exp(min(eps, 700.0)))
