"""One number for a whole curve: the ``mu`` of Gaussian differential privacy that the run keeps, and what it gives away.

``G_mu`` is the profile, or the trade-off function, of two Gaussians at distance ``mu``. The profile ``H`` of a run is
read at some epsilons. Elsewhere it is only known that it is convex in ``t = e^eps`` and falls, so the lower convex hull
of the points is above it: a polygon. ``mu`` is chosen so that ``G_mu`` is above each edge between the ends of the edge.

Far out a sampled run looks like one on the whole data set, at deltas such as 1e-30 that nobody asks about. So a slack
``d0`` is given, and the polygon ends at the epsilon ``E`` at which ``H`` is ``d0``. Then (C30)

    delta(eps) <= max(G_mu(eps), d0)    at every epsilon,
    f(a) >= G_mu(a) - d0                at every false positive rate a,
    f(a) >= G_mu(a)                     wherever a and G_mu(a) are at least a0 = Phi(-mu/2 - E/mu).
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Unpack

from privproj.accounting.calibration import gaussian_mu
from privproj.accounting.phase import numerics_of
from privproj.accounting.query import Schedule, build_result, composition_of, query_of
from privproj.errors import InvalidParameter, PrivprojError, Refused
from privproj.mechanisms import Mechanism
from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, log1m_exp, next_up, outward_margin
from privproj.numerics.special import log_add, log_normal_density, mills
from privproj.profiles.conversion import read_epsilon
from privproj.profiles.gaussian import find_noise, log_gaussian_delta
from privproj.profiles.privacy_profile import Curve, PrivacyProfile
from privproj.profiles.tradeoff import advantage
from privproj.result import Outcome, Result, Side
from privproj.run import RunOptions
from privproj.targets import Target, delta_target, slack_target

DEFAULT_SLACK = 1e-9
"""The slack ``d0`` of ``mu`` where none is given. Contract."""


def gdp_mu(
    mechanism: Mechanism | Schedule,
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
        **run: The run, as :class:`privproj.run.RunOptions` lists it.

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
    if isinstance(mechanism, Schedule):
        require_no_options(bound, run, "a schedule")
        return solve_gdp_mu(mechanism, slack_target(delta))
    return solve_gdp_mu(composition_of(mechanism, bound, run), slack_target(delta))


def require_no_options(bound: str | None, options: Mapping[str, Any], what: str) -> None:
    """Raise :class:`InvalidParameter` for options of a run beside what has its runs already."""
    for name, value in {"bound": bound, **options}.items():
        if value is not None:
            raise InvalidParameter(name, value, f"no {name}: {what} has its bounds and its runs")


@query_of("gdp_mu")
def solve_gdp_mu(query: Schedule, target: Target) -> Result:
    """Answer :func:`privproj.gdp_mu` for a question that is already parsed (C30)."""
    curve = query.curve()
    exact_mu = gaussian_mu(curve)
    if exact_mu is not None:
        # The profile is that of mu itself; 1/z and sqrt(T) are rounded.
        fit, side = _GaussianFit(next_up(exact_mu), 0.0, 0.0, 0), query.side(curve)
    else:
        fit, side = fit_gaussian(curve, target if target.delta else None), Side.UPPER
        if not target.delta and fit.mu == math.inf:
            raise Refused("no finite mu covers every delta of this run; expected a slack above 0, for instance 1e-9")
    numerics = {"regret": fit.regret, "exact_from": fit.least_rate, "epsilons_read": fit.points}
    fields: dict[str, Any] = {"numerics": {**numerics_of(curve), **numerics}, "side": side, **target.fields()}
    if fit.mu == math.inf:
        note = f"no finite mu at this slack; expected a larger slack or {query.remedy}"
        fields |= {"outcome": Outcome.VACUOUS, "warnings": (*query.notes, note)}
    return build_result(query, "gdp_mu", fit.mu, **fields)


FIRST_EDGES = 16
"""Edges of the first polygon. Speed only."""

LEAST_LOG10_DELTA = -1e6
"""Decimal log of the delta at whose epsilon a curve is tried for 0. Contract."""

LEAST_TAIL_START = -8.0
"""Where the normal tail is within 1e-15 of 1, so that no quantile below it is sought. Soundness."""

SLOPE_MARGIN = 1e-9
"""Margin, in nats, by which the slopes of ``G`` and of an edge must differ to be told apart. Soundness."""

EDGE_ROUNDING = 1e-14
"""Error allowed to the log of a sum of two numbers whose logs are known, besides one rounding of these. Soundness."""


@dataclass(frozen=True)
class _GaussianFit:
    """The ``mu`` of a run, and what it rests on (C30).

    ``least_rate`` is ``a0``. ``regret`` is what the best attack gains at most from ``G_mu`` in place of the curve.
    ``points`` is how many epsilons were read.
    """

    mu: float
    least_rate: float
    regret: float
    points: int


def fit_gaussian(curve: Curve, slack: Target | None) -> _GaussianFit:
    """The smallest ``mu`` that was found such that ``delta(eps) <= max(G_mu(eps), d0)`` for all epsilons, rounded up.

    ``slack`` is ``d0``. No delta is left out of a curve that is 0 from some epsilon on, and no other does without it.
    It is as sound as the curve. ``mu`` is ``inf`` where the curve reaches ``d0`` nowhere, or says nothing.
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
        # An edge is halved until its ``mu`` is within this relative distance of what its own ends need. Speed only.
        enough = max(needed[eps] for eps, _ in ends) * (1.0 + 1e-4)
        # How far above the largest gap at a point the regret may be. Speed only.
        near = max(_gap(eps, mu, math.exp(log_delta)) for eps, log_delta in ends) + 1e-4
        new = [
            0.5 * (low[0] + high[0])
            for (low, high), spread, gap in zip(edges, spreads, gaps, strict=True)
            if (spread > enough or gap > near) and _falls(low[1], high[1])
        ]
        new = [eps for eps in new if eps not in read]
        # Epsilons that are read at most. Speed only.
        if not new or len(read) + len(new) > 2000:
            break
    # a0 = Phi(-mu/2 - E/mu), and 0 where nothing is left out
    log_rate = _log_slope(last, mu)
    rate = math.exp(min(log_rate + SLOPE_MARGIN + outward_margin(log_rate, 0.0, 0.0), 0.0))
    rate = 0.0 if least == LOG_OF_ZERO_FROM_ABOVE else rate
    # Beyond E, H is at least 0.
    regret = min(1.0, next_up(max(*gaps, _gap(last, mu, 0.0), 0.0) + 1e-12))
    return _GaussianFit(mu, rate, regret, len(read))


def _falls(log_delta: float, next_log_delta: float) -> bool:
    """True where delta, or 1 less it, changes enough along an edge for its halves to say more."""
    # Nats by which delta, or one less it, changes along an edge that is halved further. Speed only.
    return max(log_delta - next_log_delta, log1m_exp(next_log_delta) - log1m_exp(log_delta)) > 1e-3


def _end_of(curve: Curve, slack: Target | None) -> tuple[float, float]:
    """The last epsilon that is read, and the log of what delta is at most there; ``inf`` where there is none."""
    if isinstance(curve, PrivacyProfile):
        last = read_epsilon(curve, delta_target(None, LEAST_LOG10_DELTA)).upper
        if last < math.inf and curve.log_delta(last).upper <= LOG_OF_ZERO_FROM_ABOVE:
            return last, LOG_OF_ZERO_FROM_ABOVE
    return (math.inf, 0.0) if slack is None else (read_epsilon(curve, slack).upper, slack.log_delta)


_Point = tuple[float, float]
"""An epsilon in nats, and the log of an upper bound of delta there."""


def _read(curve: Curve, eps: float) -> float:
    """The upper end of ``ln delta``; 0 where the bound has no answer."""
    with suppress(PrivprojError):
        return min(0.0, curve.log_delta(eps).upper)
    return 0.0


def _edges(points: list[_Point]) -> list[tuple[_Point, _Point]]:
    """The edges of the lower convex hull of the points in ``t = e^eps``, as far as it falls; any edges are sound."""
    hull: list[_Point] = []
    for point in points:
        if hull and hull[-1][1] <= point[1]:
            continue
        while len(hull) > 1 and _log_rate(hull[-2], hull[-1]) <= _log_rate(hull[-1], point):
            hull.pop()
        hull.append(point)
    return list(pairwise(hull))


def _log_rate(low: _Point, high: _Point) -> float:
    """``ln a`` where ``-a`` is the slope of an edge in ``t``; it falls, as :func:`_edges` guarantees."""
    (eps, log_delta), (next_eps, next_log_delta) = low, high
    # ln((H_1 - H_2) / (t_2 - t_1))
    fall = -math.expm1(next_log_delta - log_delta)
    return log_delta + math.log(fall) - next_eps - math.log(-math.expm1(eps - next_eps))


def _log_slope(eps: float, mu: float) -> float:
    """``ln a`` where ``-a`` is the slope of ``G_mu`` in ``t`` at this epsilon, to the margin of C20."""
    # -dG/dt = Phi(-mu/2 - eps/mu)
    return _log_tail(0.5 * mu + eps / mu)


def _edge_mu(low: _Point, high: _Point, at_ends: float) -> float:
    """A ``mu`` with ``G_mu`` above an edge between its ends, above both of which ``G`` is at ``at_ends`` (C30)."""
    log_rate = _log_rate(low, high)
    if at_ends == math.inf:
        return math.inf
    # G less the edge is convex in t. Where the slopes at the ends of the edge say that it rises or falls all along, its
    # least value is at an end.
    for eps, steeper in ((high[0], 1.0), (low[0], -1.0)):
        slope = _log_slope(eps, at_ends)
        if steeper * (slope - log_rate) > SLOPE_MARGIN + outward_margin(slope, 0.0, 0.0):
            return at_ends
    # Else the edge is taken as a whole line, which is the point (a, x) of the trade-off function, where
    # x = max(H_i + t_i a) is the true positive rate at a: mu = Q(a) - Q(x), with Q the inverse of the normal tail.
    log_hit = max(
        log_add(log_delta, eps + log_rate)
        + EDGE_ROUNDING
        + 4e-16 * (abs(max(log_delta, 10.0 * LEAST_LOG10_DELTA)) + eps + abs(log_rate))
        for eps, log_delta in (low, high)
    )
    return max(at_ends, next_up(_quantile(log_rate, up=True) - _quantile(log_hit, up=False)))


def _log_tail(x: float) -> float:
    """``ln(1 - Phi(x))`` for ``x`` from -8 on, to a relative 1e-12 of the probability and as C20 allows per nat."""
    return log_normal_density(x) + math.log(mills(x))


def _quantile(log_tail: float, *, up: bool) -> float:
    """An ``x`` whose normal tail was evaluated to be on the safe side of ``e^log_tail``: at most it if ``up``.

    It is ``-inf`` where the tail is too near to 1 to tell.
    """
    from scipy.special import ndtri_exp

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
    """A ``mu`` at which ``G_mu(eps)`` was evaluated to be above this delta; ``inf`` where none was."""
    aim = log_delta + outward_margin(log_delta, 0.0, 0.0)
    noise = find_noise(eps, aim).lower
    return next_up(1.0 / noise) if noise > 0.0 else math.inf


def _gaps(edges: list[tuple[_Point, _Point]], mu: float) -> list[float]:
    """For each edge an upper bound of ``(G_mu - H)/(1 + t)`` between its ends, for convex ``H`` through the points."""
    gaps = []
    for i, ((eps, log_delta), (next_eps, next_log_delta)) in enumerate(edges):
        # H is above the next edge, prolonged to the left: at t_1 it is at least H_2 + a (t_2 - t_1).
        rate = _log_rate(*edges[i + 1]) if i + 1 < len(edges) else -math.inf
        rise = math.exp(rate + next_eps + math.log(-math.expm1(eps - next_eps)))
        left = min(math.exp(log_delta), math.exp(next_log_delta) + rise)
        gaps.append(max(_gap(eps, mu, left), _gap(next_eps, mu, math.exp(next_log_delta))))
    return gaps


def _gap(eps: float, mu: float, delta: float) -> float:
    """``(G_mu(eps) - delta) / (1 + e^eps)``."""
    return (math.exp(log_gaussian_delta(eps, mu)) - delta) / (1.0 + math.exp(min(eps, 700.0)))
