"""Compute privacy profiles in mpmath for a random squared sensitivity ``X``.

``X`` is the squared sensitivity divided by the noise variance. ``h(x)`` is the Gaussian delta at the sensitivity over
noise ``sqrt(x)``, for a fixed epsilon. ``E[h(X)]`` is the delta for differences of rank one (C4: random sensitivity).
An upper bound for differences of any rank is ``E[g(X)]`` with a convex function ``g`` above ``h``: ``g`` equals ``h``
up to some point, and a tangent of ``h`` beyond it (C5: any rank). :mod:`privproj.distributions.squared_sensitivity` and
:mod:`privproj.distributions.mixture_profile` compute the same in floats.
"""

from dataclasses import dataclass
from functools import lru_cache

import mpmath as mp

from privproj.reference.calculus import Function, Real, find_root, integrate_below, integrate_line, root_in_bracket
from privproj.reference.special import beta_tail, gamma_upper, gaussian_delta, normal_density


@dataclass(frozen=True)
class ReferenceDistribution:
    """The distribution of a positive random variable ``X = value(t)`` with a random real ``t``.

    * ``density(t)``: the probability density of ``t``, smooth with one maximum.
    * ``value(t)``: an increasing function.
    * ``coordinate(x)``: the inverse function of ``value``.
    * ``hill``: the approximate position and width of the maximum of the density.
    * ``tail(x)``: ``P(X > x)``.
    * ``moment(x)``: ``E[X; X > x]``, the mean of ``X`` times the indicator of ``X > x``.
    * ``supremum``: the supremum of ``X``.
    """

    density: Function
    value: Function
    coordinate: Function
    hill: tuple[Real, Real]
    tail: Function
    moment: Function
    supremum: Real = mp.inf


@lru_cache(maxsize=4000)
def _log_beta(a: Real, b: Real, prec: int) -> Real:
    """Return ``ln Beta(a, b)``, where ``prec`` must be the current precision in bits."""
    return mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)


@lru_cache(maxsize=4000)
def log_gamma(a: Real, prec: int) -> Real:
    """Return ``ln Gamma(a)``, where ``prec`` must be the current precision in bits."""
    return mp.loggamma(a)


def beta_density(a: Real, b: Real, t: Real) -> Real:
    """Return the density of the logit ``ln(B/(1-B))`` of ``B ~ Beta(a, b)`` at ``t``."""
    # B^a (1-B)^b / Beta(a, b) for the B with the logit t
    with mp.workdps(mp.mp.dps + 10 + int(mp.log10(1 + a + b))):
        return mp.exp(-a * mp.log(1 + mp.exp(-t)) - b * mp.log(1 + mp.exp(t)) - _log_beta(a, b, mp.mp.prec))


def gamma_density(a: Real, t: Real) -> Real:
    """Return the density of ``ln U`` at ``t`` for ``U ~ Gamma(a)``; 0 where it would underflow."""
    # U^a e^-U / Gamma(a) for U = e^t
    if t > mp.log(a + 1) + 20:
        return mp.mpf(0)
    with mp.workdps(mp.mp.dps + 10 + int(mp.log10(1 + a))):
        return mp.exp(a * t - mp.exp(t) - log_gamma(a, mp.mp.prec))


def beta_distribution(a: Real, b: Real, scale: Real) -> ReferenceDistribution:
    """Return the distribution of ``X = scale B`` for ``B ~ Beta(a, b)``.

    The coordinate ``t`` is the logit of ``B``. The squared sensitivity of M2 has this distribution (C7: distributions).
    """
    a, b, scale = mp.mpf(a), mp.mpf(b), mp.mpf(scale)
    return ReferenceDistribution(
        density=lambda t: beta_density(a, b, t),
        value=lambda t: scale / (1 + mp.exp(-t)),
        coordinate=lambda x: mp.log(x / (scale - x)),
        hill=(mp.log(a / b), mp.sqrt(1 / a + 1 / b)),
        # E[B; B > x] = a/(a+b) P(Beta(a+1, b) > x)
        tail=lambda x: beta_tail(a, b, x / scale) if x < scale else mp.mpf(0),
        moment=lambda x: scale * a / (a + b) * beta_tail(a + 1, b, x / scale) if x < scale else mp.mpf(0),
        supremum=scale,
    )


def shifted_distribution(distribution: ReferenceDistribution, shift: Real) -> ReferenceDistribution:
    """Return the distribution of ``X + shift`` for ``X`` with a given distribution."""
    # The shift is the squared sensitivity over noise of the count for adaptive clipping (C31).
    shift = mp.mpf(shift)
    if not shift:
        return distribution
    mass, mean = distribution.tail(mp.mpf(0)), distribution.moment(mp.mpf(0))
    return ReferenceDistribution(
        density=distribution.density,
        value=lambda t: distribution.value(t) + shift,
        coordinate=lambda x: distribution.coordinate(x - shift) if x > shift else mp.mpf("-inf"),
        hill=distribution.hill,
        tail=lambda x: distribution.tail(x - shift) if x > shift else mass,
        # E[X + c; X + c > x] = E[X; X > x - c] + c P(X > x - c)
        moment=lambda x: (
            distribution.moment(x - shift) + shift * distribution.tail(x - shift) if x > shift else mean + shift * mass
        ),
        supremum=distribution.supremum + shift,
    )


def gamma_distribution(a: Real, scale: Real) -> ReferenceDistribution:
    """Return the distribution of ``X = scale U`` for ``U ~ Gamma(a)``.

    The coordinate ``t`` is ``ln U``. The squared sensitivity of a public sketch has this distribution (C7).
    """
    a, scale = mp.mpf(a), mp.mpf(scale)
    return ReferenceDistribution(
        density=lambda t: gamma_density(a, t),
        value=lambda t: scale * mp.exp(t),
        coordinate=lambda x: mp.log(x / scale),
        hill=(mp.log(a), 1 / mp.sqrt(a)),
        # E[U; U > x] = a Q(a+1, x)
        tail=lambda x: gamma_upper(a, x / scale),
        moment=lambda x: scale * a * gamma_upper(a + 1, x / scale),
    )


def gaussian_delta_of_square(eps: Real, x: Real) -> Real:
    """Return the Gaussian delta at the sensitivity over noise ``sqrt(x)``."""
    return gaussian_delta(eps, mp.sqrt(x))


def _gaussian_delta_slope(eps: Real, x: Real) -> Real:
    """Return the derivative with respect to ``x`` of the Gaussian delta at sensitivity ``sqrt(x)``."""
    # phi(sqrt(x)/2 - eps/sqrt(x)) / (2 sqrt(x)) with the standard normal density phi
    mu = mp.sqrt(x)
    return normal_density(mu / 2 - eps / mu) / (2 * mu)


def _inflection_point(eps: Real) -> Real:
    """Return the inflection point of the Gaussian delta as a function of the squared sensitivity."""
    # h(x), the delta at the sensitivity over noise sqrt(x), is convex below x = 2 (sqrt(1 + eps^2) - 1) and concave
    # above.
    with mp.workdps(2 * mp.mp.dps + 20):
        return 2 * (mp.sqrt(1 + mp.mpf(eps) ** 2) - 1)


def expected_delta(eps: Real, distribution: ReferenceDistribution) -> Real:
    """Return the mean of the Gaussian delta over a random squared sensitivity (C4).

    This mean is the delta for a rank-one difference of neighboring sums. ``distribution`` is the distribution of the
    squared sensitivity divided by the noise variance.
    """
    return integrate_line(
        lambda t: distribution.density(t) * gaussian_delta_of_square(eps, distribution.value(t)), *distribution.hill
    )


def _expected_delta_below(eps: Real, distribution: ReferenceDistribution, cut: Real) -> Real:
    """Return the mean of ``h(X)`` times the indicator of ``X <= cut``.

    ``X`` has the given ``distribution``, and ``h(x)`` is the Gaussian delta at the sensitivity over noise ``sqrt(x)``.
    """
    return integrate_below(
        lambda t: distribution.density(t) * gaussian_delta_of_square(eps, distribution.value(t)),
        distribution.coordinate(cut),
        distribution.hill[1],
    )


def _tangent_crossing(eps: Real, p: Real) -> Real:
    """Return the point at which the tangent of ``h`` at ``p`` crosses ``h``, or 0 if the tangent is never below ``h``.

    ``h(x)`` is the Gaussian delta at the sensitivity over noise ``sqrt(x)``. ``p`` must be at least the inflection
    point of ``h``.
    """
    high, rise = gaussian_delta_of_square(eps, p), _gaussian_delta_slope(eps, p)
    if high >= p * rise:
        return mp.mpf(0)
    top = mp.log(_inflection_point(eps))

    def gap(s: Real) -> Real:
        c = mp.exp(s)
        return (high + rise * (c - p) - gaussian_delta_of_square(eps, c)) / high

    low = mp.log(p - high / rise)  # the zero of the tangent
    return mp.exp(root_in_bracket(gap, low, gap(low), top, gap(top)))


def _expected_majorant(eps: Real, distribution: ReferenceDistribution, p: Real) -> Real:
    """Return the mean of ``g(X)`` for a convex function ``g >= h``, where ``X`` has the given ``distribution``.

    ``h(x)`` is the Gaussian delta at the sensitivity over noise ``sqrt(x)``. ``g`` equals ``h`` up to the point at
    which the tangent of ``h`` at ``p`` crosses ``h``, and equals this tangent beyond the point.
    """
    c = _tangent_crossing(eps, p)
    tail, moment = distribution.tail(c), distribution.moment(c)
    # E[h(X); X <= c] + h(p) P(X > c) + h'(p) (E[X; X > c] - p P(X > c))
    above = gaussian_delta_of_square(eps, p) * tail + _gaussian_delta_slope(eps, p) * (moment - p * tail)
    return (
        above
        if distribution.coordinate(c) == -mp.inf or c == 0
        else _expected_delta_below(eps, distribution, c) + above
    )


def any_rank_delta(eps: Real, distribution: ReferenceDistribution) -> Real:
    """Return a bound on delta for differences of neighboring sums of any rank (C5: any rank).

    ``distribution`` is the distribution, for differences of rank one, of the squared sensitivity divided by the noise
    variance.
    """
    # min_p E[g_p(X)] with the convex function g_p of _expected_majorant, whose tangent at p crosses the Gaussian delta
    # at c(p). The minimum is at p = E[X | X > c(p)].
    eps, start = mp.mpf(eps), _inflection_point(eps)
    if distribution.supremum <= start:
        return expected_delta(eps, distribution)
    mean = distribution.moment(mp.mpf(0)) / distribution.tail(mp.mpf(0))
    if mean >= start and _tangent_crossing(eps, mean) == 0:
        return gaussian_delta_of_square(eps, mean)

    def excess(s: Real) -> Real:
        p = mp.exp(s)
        c = _tangent_crossing(eps, p)
        return mp.log(distribution.moment(c) / (distribution.tail(c) * p))

    with mp.workdps(mp.mp.dps // 2 + 2):
        # The search does not start at x0 itself, where the tangent nearly equals h.
        s = _best_tangent(
            excess, mp.log(max(start * mp.mpf("1.001"), mean)), mp.log(start), mp.log(distribution.supremum)
        )
    return _expected_majorant(eps, distribution, max(start, mp.exp(s)))


def _best_tangent(excess: Function, first: Real, low: Real, high: Real) -> Real:
    """Return the root of a decreasing function ``excess`` between ``low`` and ``high``.

    The result is about ``low`` if the function is not positive there. If ``high`` is infinite, the search starts at
    ``first``.
    """
    if mp.isinf(high):
        return find_root(excess, first, mp.mpf(1) / 4)
    low = low + (high - low) * mp.mpf(10) ** -12
    at_low = excess(low)
    return low if at_low <= 0 else root_in_bracket(excess, low, at_low, high, mp.mpf(-1) * at_low)
