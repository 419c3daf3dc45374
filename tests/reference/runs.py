"""Compute the delta of a whole run in mpmath by inverting its moments, without a grid or a dominating pair.

Let ``L`` be the loss of one release in one direction, ``M(z) = E_P[e^(z L)]`` its moments, and ``S`` the sum over a
run. Because ``1/(z (z+1))`` is the Laplace transform of ``1 - e^-y``, for any ``c > 0`` at which the moments are finite

    delta(eps) = E[(1 - e^(eps - S))_+]
               = 1/(2 pi i) int_(c - i inf)^(c + i inf) prod_i M_i(z)^T_i e^(-z eps) / (z (z+1)) dz

The line goes through the saddle point, the minimum of the integrand on the real axis. The step of the trapezoidal rule
on the line is halved until two sums agree. Every release here is written from its own density, not from a profile.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import mpmath as mp

from privproj.reference.calculus import Function, Real
from privproj.reference.special import normal_density, normal_tail

DIGITS = 12  # decimal digits to which two sums must agree; the finer one has about twice as many

WORKING_DIGITS = 34  # decimal digits of the arithmetic; a power T loses log10 T of them

LARGEST_SADDLE = 8  # log of the largest saddle point of the search

MOST_TERMS = 40_000  # terms of a sum before ArithmeticError

FINENESSES = (1, 2, 4, 8)  # factors by which the sums are refined in turn


class Moments(Protocol):
    """The moments ``M(z)`` of the loss of one release in one direction.

    ``limit`` is the supremum of the ``Re z`` at which they are finite. ``atom`` is the mass at a loss of exactly 0.
    """

    limit: Real
    atom: Real

    def along(self, c: Real, step: Real, fineness: int) -> Iterator[Real]:
        """Yield ``M(c + i k step)`` for ``k = 0, 1, ...``."""
        ...


@dataclass(frozen=True)
class KnownMoments:
    """Moments in closed form."""

    moment: Function
    limit: Real = mp.inf
    atom: Real = 0

    def along(self, c: Real, step: Real, fineness: int) -> Iterator[Real]:
        """Yield ``M(c + i k step)``; the fineness is not used."""
        k = 0
        while True:
            yield self.moment(mp.mpc(c, k * step))
            k += 1


@dataclass(frozen=True)
class SummedMoments:
    """Moments ``atom + sum_j w_j e^(z l_j)`` over nodes: ``nodes(c, fineness)`` returns pairs ``(w_j, l_j)``."""

    nodes: Function
    limit: Real = mp.inf
    atom: Real = 0

    def along(self, c: Real, step: Real, fineness: int) -> Iterator[Real]:
        """Yield ``M(c + i k step)``; each node is multiplied by ``e^(i step l_j)`` from one to the next."""
        nodes = [(weight * mp.exp(c * loss), step * loss) for weight, loss in self.nodes(c, fineness)]
        # Fixed-point integers in units of 2^-bits of the largest value of a sum.
        bits, size = mp.mp.prec, mp.fsum(value for value, _ in nodes)

        def whole(x: Real) -> int:
            return int(mp.nint(mp.ldexp(x, bits)))

        real, imag = [whole(value / size) for value, _ in nodes], [0] * len(nodes)
        turns = [(whole(mp.cos(angle)), whole(mp.sin(angle))) for _, angle in nodes]
        while True:
            yield self.atom + size * mp.mpc(mp.ldexp(sum(real), -bits), mp.ldexp(sum(imag), -bits))
            pairs = list(zip(real, imag, turns, strict=True))
            real = [(x * cos - y * sin) >> bits for x, y, (cos, sin) in pairs]
            imag = [(x * sin + y * cos) >> bits for x, y, (cos, sin) in pairs]


# the moments of one release of each phase, all in one direction, and the number of its releases
Phases = Sequence[tuple[Moments, int]]


def gaussian_moments(mu: Real) -> KnownMoments:
    """Return the moments ``e^(z (z+1) mu^2 / 2)`` of a Gaussian release with sensitivity ``mu``, either direction."""
    return KnownMoments(lambda z: mp.exp(z * (z + 1) * mp.mpf(mu) ** 2 / 2))


def m2_moments(dim: int, rank: int, mu: Real) -> KnownMoments:
    """Return the moments of M2 for a rank-one difference, in either direction.

    Given the squared sensitivity ``mu^2 B``, ``B ~ Beta(r/2, (d-r)/2)``, the release is Gaussian: ``M(z) = 1F1(r/2;
    d/2; z (z+1) mu^2 / 2)``.
    """
    half, half_dim = mp.mpf(rank) / 2, mp.mpf(dim) / 2
    return KnownMoments(lambda z: mp.hyp1f1(half, half_dim, z * (z + 1) * mp.mpf(mu) ** 2 / 2))


def public_sketch_moments(rank: int, mu: Real) -> KnownMoments:
    """Return the moments of a public sketch for a rank-one difference, in either direction.

    The squared sensitivity is ``mu^2 chi2_r / r``: ``M(z) = (1 - z (z+1) mu^2 / r)^(-r/2)``.
    """
    mu, half = mp.mpf(mu), mp.mpf(rank) / 2
    limit = (mp.sqrt(1 + 4 * rank / mu**2) - 1) / 2
    return KnownMoments(lambda z: (1 - z * (z + 1) * mu**2 / rank) ** -half, limit)


def secret_sketch_moments(rank: int, gamma: Real, *, grows: bool) -> KnownMoments:
    """Return the moments of a secret sketch for a rank-one difference; ``P`` has the larger variance if ``grows``.

    The distributions are ``r`` normal numbers of variance 1 and ``1 + nu``, ``nu = 1/Gamma``: ``M(z) = (1+nu)^(r z/2)
    (1 + z nu/(1+nu))^(-r/2)``, and with both exchanged ``(1+nu)^(-r z/2) (1 - z nu)^(-r/2)``.
    """
    nu, half = 1 / mp.mpf(gamma), mp.mpf(rank) / 2
    if grows:
        return KnownMoments(lambda z: (1 + nu) ** (-half * z) * (1 - z * nu) ** -half, 1 / nu)
    return KnownMoments(lambda z: (1 + nu) ** (half * z) * (1 + z * nu / (1 + nu)) ** -half)


def poisson_gaussian_moments(mu: Real, q: Real, *, add: bool = False) -> SummedMoments:
    """Return the moments of a Poisson-subsampled Gaussian release at rate ``q``, remove or add direction.

    ``Q = N(0, 1)``, ``R(u) = 1 - q + q e^(mu u - mu^2/2)``: ``M(z) = E_Q R^(z+1)``, and for add ``E_Q R^-z``.
    """
    return poisson_mixture_moments(lambda fineness: [(mp.mpf(1), mp.mpf(mu))], q, add=add)


def poisson_m2_moments(dim: int, rank: int, mu: Real, q: Real, *, add: bool = False) -> SummedMoments:
    """Return the moments of Poisson-subsampled M2, for a rank-one difference, remove or add direction.

    The projection is known, so the moments are the mean of those of a Gaussian release with sensitivity ``mu sqrt(B)``.
    """
    a, b = mp.mpf(rank) / 2, mp.mpf(dim - rank) / 2
    front = 1 / mp.beta(a, b)

    def shifts(fineness: int) -> list[tuple[Real, Real]]:
        # B = 1/(1 + e^-s), with the density B^a (1-B)^b / Beta(a, b) in s, around its maximum at ln(a/b).
        step, top = mp.sqrt(1 / a + 1 / b) / (2 * fineness), mp.log(a / b)
        nodes, least = [], mp.mpf(10) ** (-DIGITS - 10)
        for side in (1, -1):
            for j in range(0 if side > 0 else 1, MOST_TERMS):
                share = 1 / (1 + mp.exp(-(top + side * j * step)))
                weight = step * front * share**a * (1 - share) ** b
                if weight < least:
                    break
                nodes.append((weight, mp.mpf(mu) * mp.sqrt(share)))
        return nodes

    return poisson_mixture_moments(shifts, q, add=add)


def poisson_mixture_moments(shifts: Function, q: Real, *, add: bool) -> SummedMoments:
    """Return the moments of a sampled Gaussian release with random sensitivity, with nodes ``shifts(fineness)``."""
    q = mp.mpf(q)

    def nodes(c: Real, fineness: int) -> Iterable[tuple[Real, Real]]:
        pairs, reach = [], mp.sqrt(2 * (DIGITS + 10) * mp.log(10))
        for share, mu in shifts(fineness):
            # Q R^(c+1) has its mass around (c+1) mu at most, Q R^-c around -c mu at least, or 0 because R >= 1 - q.
            h = min(mp.mpf(1), 1 / mu) / (7 * fineness)
            first = -int((reach + c * mu * (add and q == 1)) / h)
            last = int((reach + (c + 1) * mu * (not add)) / h)
            for j in range(first, last + 1):
                ratio = 1 - q + q * mp.exp(mu * h * j - mu**2 / 2)
                weight = share * h * normal_density(h * j)
                pairs.append((weight, -mp.log(ratio)) if add else (weight * ratio, mp.log(ratio)))
        return pairs

    return SummedMoments(nodes)


def fixed_gaussian_moments(mu: Real, q: Real) -> SummedMoments:
    """Return the moments of the bound for a Gaussian release on fixed-size batches, ``mu`` under replace (C17).

    The bound ``H(t) = q H_0(1 + (t-1)/q)`` for ``t >= 1``, and ``E(1/t) = E(t)/t``, is the profile of a pair. The pair
    has the mass ``(1-q) H_0(1)`` at 0 (the remaining kink at ``t = 1``), with the ``Q`` distribution of ``1 + q (R -
    1)`` beyond it, where ``R > 1`` is that of the Gaussian pair, and the reflection below: ``M(z) = (1-q) H_0(1) +
    E_Q[t^(z+1) + t^-z; R > 1]``.
    """
    mu, q = mp.mpf(mu), mp.mpf(q)

    def nodes(c: Real, fineness: int) -> Iterable[tuple[Real, Real]]:
        pairs, h, scale = [], mp.mpf(1) / (16 * fineness), 1 + (c + 1) * mu
        for j in range(-64 * fineness, 64 * fineness + 1):
            # u = mu/2 + scale e^(s - e^-s), from mu/2 on
            s = h * j
            away = scale * mp.exp(s - mp.exp(-s))
            weight = h * away * (1 + mp.exp(-s)) * normal_density(mu / 2 + away)
            ratio = 1 + q * mp.expm1(mu * away)
            if weight * ratio ** (c + 1) > mp.mpf(10) ** (-DIGITS - 20):
                pairs += [(weight * ratio, mp.log(ratio)), (weight, -mp.log(ratio))]
        return pairs

    return SummedMoments(nodes, atom=(1 - q) * (1 - 2 * normal_tail(mu / 2)))


def run_delta(phases: Phases, eps: Real) -> Real:
    """Return the delta of a run in one direction, for ``eps >= 0``, to :data:`DIGITS` digits and usually twice as many.

    The moments must decay along the line, so some phase must have no atoms except at 0. Raises :class:`ArithmeticError`
    if two sums never agree.
    """
    with mp.workdps(WORKING_DIGITS):
        eps, last = mp.mpf(eps), None
        c, width = _find_saddle(phases, eps)
        for fineness in FINENESSES:
            try:
                now = _sum_on_line(phases, eps, c, min(width / 2, c / 4) / fineness, fineness)
            except ArithmeticError:
                continue
            if last is not None and abs(now - last) <= abs(now) * mp.mpf(10) ** -DIGITS:
                return now
            last = now
    raise ArithmeticError(f"two sums never agreed to {DIGITS} digits")


def _log_integrand(phases: Phases, eps: Real, c: Real) -> Real:
    """Return the log of the integrand on the real axis."""
    moments = (steps * mp.log(next(iter(release.along(c, 0, 1))).real) for release, steps in phases)
    return mp.fsum(moments) - c * eps - mp.log(c * (c + 1))


def _find_saddle(phases: Phases, eps: Real) -> tuple[Real, Real]:
    """Return an approximation of the saddle point on the real axis, and the width of the integrand on its line."""
    limit = min(release.limit for release, _ in phases)

    def place(x: Real) -> Real:
        return mp.exp(x) if mp.isinf(limit) else limit / (1 + mp.exp(-x))

    with mp.workdps(20):
        # The log of the integrand is convex in c, so it has one minimum in x too.
        x, step = mp.mpf(0), mp.mpf(1)
        value = _log_integrand(phases, eps, place(x))
        while step > mp.mpf(1) / 20:
            if x > LARGEST_SADDLE:
                raise ArithmeticError("eps is at or beyond the largest loss, or delta is far too small")
            for neighbor in (x + step, x - step):
                if (height := _log_integrand(phases, eps, place(neighbor))) < value:
                    x, value = neighbor, height
                    break
            else:
                step /= 2
        c = place(x)
        h = min(c, limit - c) / 50
        left, right = (_log_integrand(phases, eps, c + side * h) for side in (-1, 1))
        return c, 1 / mp.sqrt((left - 2 * value + right) / h**2)


def _sum_on_line(phases: Phases, eps: Real, c: Real, step: Real, fineness: int) -> Real:
    """Return the trapezoidal sum of the integrand on the line through ``c``."""
    constant = mp.fprod(mp.mpf(release.atom) ** steps for release, steps in phases)
    total, quiet, least = mp.mpf(0), 0, mp.mpf(10) ** (-DIGITS - 2)
    lines = zip(*(release.along(c, step, fineness) for release, _ in phases), strict=True)
    for k, values in zip(range(MOST_TERMS), lines, strict=False):
        z = mp.mpc(c, k * step)
        # 1/pi int_0^inf Re[(prod_i M_i(z)^T_i - atoms) e^(-z eps) / (z (z+1))] dy; atoms at 0 add nothing for eps >= 0.
        product = mp.fprod(value**steps for value, (_, steps) in zip(values, phases, strict=True))
        term = (product - constant) * mp.exp(-z * eps) / (z * (z + 1)) * step / mp.pi
        total += term.real / (2 if k == 0 else 1)
        quiet = quiet + 1 if abs(term) * (k + 1) < least * abs(total) else 0
        if quiet == 4:
            return total
    raise ArithmeticError("the moments do not fall along the line")


def laplace_run_delta(mu: Real, steps: int, eps: Real) -> Real:
    """Return the delta of ``T`` Laplace releases with sensitivity ``mu`` in units of the scale, a finite sum.

    ``M(z) = e^(z mu) (z+1)/(2z+1) + e^(-mu (z+1)) z/(2z+1)``. The power is expanded. The term with ``k`` factors of the
    second kind is ``e^(z (mu (T - 2k) - eps))`` times a rational function. The line is closed around its poles at 0 and
    -1/2, or, if the exponent is not positive, around none.
    """
    with mp.workdps(WORKING_DIGITS + 2 * steps):
        mu, eps, total = mp.mpf(mu), mp.mpf(eps), mp.mpf(0)
        for k in range(steps):
            y = mu * (steps - 2 * k) - eps
            if y <= 0:
                break
            # The residue at -1/2: 2^-T e^(-y/2) [w^(T-1)] e^(y w) (w + 1/2)^(T-k-1) (w - 1/2)^(k-1)
            series = [y**j / mp.factorial(j) for j in range(steps)]
            n = steps - k - 1
            series = _times(series, [mp.binomial(n, j) * mp.ldexp(1, j - n) for j in range(n + 1)])
            if k:
                other = [mp.binomial(k - 1, j) * mp.mpf(-0.5) ** (k - 1 - j) for j in range(k)]
            else:
                other = [-(mp.mpf(2) ** (j + 1)) for j in range(steps)]
            residue = mp.ldexp(mp.exp(-y / 2), -steps) * _times(series, other)[steps - 1]
            total += mp.binomial(steps, k) * mp.exp(-mu * k) * (residue + (1 if k == 0 else 0))
        return total


def _times(one: Sequence[Real], two: Sequence[Real]) -> list[Real]:
    """Return the first coefficients of a product of two power series, as many as the first series has."""
    return [mp.fsum(one[i] * two[n - i] for i in range(n + 1) if n - i < len(two)) for n in range(len(one))]
