"""Enclose the privacy profiles of single releases in ball arithmetic (C21).

There is one class for each bound. ``z`` is the noise multiplier, ``mu = 1/z``, and ``h_eps(x)`` is the Gaussian delta
at ``x = (sensitivity / noise std)^2``. A bound may have free parameters, whose values are called a witness. Every
admissible witness proves a bound, so a witness is chosen in floating point. When a certificate is checked, a new
witness is chosen.
"""

import math

from flint import arb, ctx

from privproj.contrib.certify import gamma, gaussian
from privproj.contrib.certify.balls import GOAL_BITS
from privproj.contrib.certify.distributions import BallBetaDistribution, BallDistribution, BallGammaDistribution
from privproj.errors import PrecisionError

Witness = dict[str, float]  # free parameters of a profile: name to value


BITS_OF_MEANS = 32  # bits of relative accuracy of a mean over a distribution at one knot of a run

EVALUATION_BITS = 128  # bits of working precision of these means in a run


class BallProfile:
    """The privacy profile ``delta(eps)`` of a bound in ball arithmetic.

    A subclass guarantees that :meth:`delta` contains the exact bound for all admissible values of its free parameters.
    """

    effort: int = 1  # cost of an evaluation, relative to a profile in closed form

    def witness(self, eps: float) -> Witness:
        """Return near-optimal values of the bound's free parameters at an epsilon."""
        return {}

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return a ball that contains the bound on delta at ``eps``.

        ``witness`` has the values of the bound's free parameters.
        """
        raise NotImplementedError

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return a lower and an upper bound of the privacy profile at ``eps``.

        The lower bound is 0 if no better one is known.
        """
        ball = self.delta(eps, {})
        return ball.lower(), ball.upper()


class BallGaussianProfile(BallProfile):
    """The privacy profile of ``steps`` Gaussian releases (C3: the Gaussian profile)."""

    def __init__(self, noise_multiplier: float, steps: int = 1) -> None:
        self.noise, self.steps = noise_multiplier, steps

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return a ball around the profile at ``eps``; ``witness`` is empty."""
        # The profile of one release at mu = sqrt(T)/z
        return gaussian.delta(eps, arb(self.steps).sqrt() / arb(self.noise))


class BallBetaTail(BallProfile):
    """The Beta-tail bound on the delta of M2, for a difference of rank ``k`` (C16).

    A projection keeps a random fraction of the squared norm of the difference. One term of the bound is for fractions
    above the free parameter ``tau``. The other term is for the fraction ``tau``: the Gaussian delta if ``sharp``, and
    otherwise ``P(|L| > eps)`` for the Gaussian privacy loss ``L``.
    """

    def __init__(self, dim: int, rank: int, k: int, noise_multiplier: float, sharp: bool) -> None:
        self.dim, self.rank, self.k, self.noise, self.sharp = dim, rank, k, noise_multiplier, sharp

    def witness(self, eps: float) -> Witness:
        """Return the ``tau`` in (0, 1] at which the bound is smallest, computed in floating point."""
        from privproj.mechanisms.m2.beta_tail_kernels import beta_tail_delta

        if self.dim == self.rank or (eps == 0.0 and not self.sharp):
            return {"tau": 1.0}
        a, b = 0.5 * self.rank, 0.5 * (self.dim - self.rank)
        t = beta_tail_delta(a, b, float(self.k), 1.0 / self.noise, eps, self.sharp)[1]
        return {"tau": 1.0 / (1.0 + math.exp(-t))}

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return a ball around the Beta-tail bound at the ``tau`` in ``witness``."""
        tau, mu = arb(witness["tau"]), 1 / arb(self.noise)
        # G(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau)
        term = (gaussian.delta if self.sharp else gaussian.two_sided)(eps, mu * tau.sqrt())
        if not tau < 1:
            return term
        distribution = BallBetaDistribution(arb(self.rank) / 2, arb(self.dim - self.rank) / 2, arb(1))
        return term + self.k * distribution.tail(tau)

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return the lower bound 0, and the Beta-tail bound at its best ``tau``."""
        return arb(0), self.delta(eps, self.witness(float(eps))).upper()


class BallMean(BallProfile):
    """A privacy profile that is computed as an integral."""

    def mean(self, eps: arb, goal: int) -> arb:
        """Return a ball that contains the profile at ``eps``.

        ``goal`` is the desired accuracy in bits, which is not guaranteed.
        """
        raise NotImplementedError

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return a ball around the profile at ``eps``; ``witness`` is empty."""
        return self.mean(eps, GOAL_BITS)

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return a lower and an upper bound of the privacy profile at ``eps``."""
        # A run needs fewer bits than a single release.
        with ctx.workprec(EVALUATION_BITS):
            ball = self.mean(eps, BITS_OF_MEANS)
            return ball.lower(), ball.upper()


class BallRandomSensitivity(BallMean):
    """The privacy profile of M2 or a public sketch if neighboring sums differ by rank one (C4).

    ``shape`` is the pair of dimension and rank for M2, and the rank for a public sketch.
    """

    def __init__(self, shape: tuple[int, int] | int, noise_multiplier: float) -> None:
        self.shape, self.noise = shape, noise_multiplier

    def distribution(self) -> BallDistribution:
        """Return the distribution of the random (sensitivity / noise std)^2 (C7)."""
        # mu^2 chi2_r / r for a public sketch, and mu^2 Beta(r/2, (d-r)/2) for M2
        scale = 1 / arb(self.noise) ** 2
        if isinstance(self.shape, int):
            return BallGammaDistribution(arb(self.shape) / 2, 2 * scale / self.shape)
        dim, rank = self.shape
        return BallBetaDistribution(arb(rank) / 2, arb(dim - rank) / 2, scale)

    def mean(self, eps: arb, goal: int) -> arb:
        """Return a ball around the Gaussian delta averaged over the random sensitivity."""
        # E[h_eps(X)], where X is the random (sensitivity / noise std)^2
        return self.distribution().expected_delta(eps, goal=goal)


class BallAnyRank(BallRandomSensitivity):
    """The bound on delta for a difference of any rank between neighboring sums (C5).

    The Gaussian delta is a function of ``x = (sensitivity / noise std)^2``. The free parameter is the ``x`` at which a
    tangent touches this function; it must not be below the inflection point.
    """

    def witness(self, eps: float) -> Witness:
        """Return the tangent point at which the bound is smallest, computed in floating point.

        The result is empty if a difference of rank one between neighboring sums is the worst case.
        """
        from privproj.distributions.beta_gamma_kernels import inflection
        from privproj.distributions.mixture_profile import best_tangent
        from privproj.distributions.squared_sensitivity import BetaGammaSensitivity

        mu = 1.0 / self.noise
        if isinstance(self.shape, int):
            return {
                "tangent": best_tangent(
                    eps, BetaGammaSensitivity(0.5 * self.shape, math.inf, 2.0 * mu * mu / self.shape)
                )
            }
        if mu * mu <= inflection(eps):
            return {}
        dim, rank = self.shape
        return {"tangent": best_tangent(eps, BetaGammaSensitivity(0.5 * rank, 0.5 * (dim - rank), mu * mu))}

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return a ball that contains the bound at the tangent point in ``witness``.

        If ``witness`` is empty, a difference of rank one between neighboring sums must be the worst case.

        Raises:
            PrecisionError: The tangent point is not admissible.
        """
        if not witness and not self._is_convex(eps):
            raise PrecisionError("the profile is not convex on the whole range, so it has no tangent bound")
        return self._enclose(eps, arb(witness["tangent"]))[1] if witness else super().delta(eps, witness)

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return numbers below and above the bound for a difference of any rank."""
        if self._is_convex(eps):
            return super().ends(eps)
        with ctx.workprec(EVALUATION_BITS):
            p = arb(self.witness(float(eps.mid())).get("tangent", 0.0)).max(gaussian.inflection(eps).upper())
            lower, upper = self._enclose(eps, p, BITS_OF_MEANS)
            return lower.lower(), upper.upper()

    def _is_convex(self, eps: arb) -> bool:
        """Return whether the Gaussian delta is convex at all possible (sensitivity / noise std)^2.

        If so, a difference of rank one between neighboring sums is the worst case.
        """
        most = self.distribution().supremum
        return most is not None and bool(most <= gaussian.inflection(eps))

    def _enclose(self, eps: arb, p: arb, goal: int = GOAL_BITS) -> tuple[arb, arb]:
        """Return balls around numbers below and above the bound for a difference of any rank (C5).

        This bound is a minimum over tangent points. The number above it is computed at the tangent point ``p``.

        Raises:
            PrecisionError: ``p`` may be below the inflection point of the Gaussian delta.
        """
        distribution, least = self.distribution(), gaussian.inflection(eps)
        if not p >= least:
            raise PrecisionError(
                f"the tangent point must be at least {float(least):.6g}, the inflection point, got {float(p):.6g}"
            )
        # The any-rank bound is the minimum of E[g_p(X)] over p. The tangent l_p of h at p crosses h at c (0 if there is
        # no crossing), and g_p is h up to c and l_p beyond.
        # h(p) and h'(p). If the tangent is not negative at 0, it lies above h everywhere, and E l_p(X) is the bound.
        height, slope = gaussian.delta(eps, p.sqrt()), gaussian.slope(eps, p)
        if height >= slope * p:
            return gaussian.delta(eps, distribution.mean.sqrt()), height + slope * (distribution.mean - p)
        cut = _tangent_crossing(eps, p, goal) / distribution.scale
        tail = distribution.tail(cut)
        beyond = distribution.mean_above(cut, tail)
        # E[h(X); X <= c] + P(X > c) (h(p) + h'(p) (E[X | X > c] - p)), and with h(E[X | X > c]) from below
        above = tail * (height + slope * (beyond - p))
        below = distribution.expected_delta(eps, cut, above, goal)
        return below + tail * gaussian.delta(eps, beyond.sqrt()), below + above


def _tangent_crossing(eps: arb, p: arb, goal: int) -> arb:
    """Return a ball around the point where the Gaussian delta crosses its tangent at ``p``.

    The Gaussian delta is a function of ``x = (sensitivity / noise std)^2``.
    """
    height, slope = gaussian.delta(eps, p.sqrt()), gaussian.slope(eps, p)

    def excess(x: arb) -> arb:
        return gaussian.delta(eps, x.sqrt()) - height - slope * (x - p)

    # Up to the inflection point, where it is at most 0, the excess is convex in x, so its sign changes only once.
    low, high = arb(0), gaussian.inflection(eps).upper()
    while high - low > high * arb(2) ** -(goal + 36):
        middle = ((low + high) / 2).mid()
        sign = excess(middle)
        if sign > 0:
            low = middle
        elif sign < 0:
            high = middle
        else:
            break
    if not excess(low) > 0:
        raise PrecisionError("the tangent does not cross the profile")
    return low.union(high)


class BallLaplaceProfile(BallProfile):
    """The privacy profile of one release of the Laplace mechanism."""

    def __init__(self, noise_multiplier: float) -> None:
        self.noise = noise_multiplier

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return a ball around the profile at ``eps``; ``witness`` is empty."""
        # 1 - e^((eps - mu)/2) for eps < mu, and 0 otherwise
        return (-((eps - 1 / arb(self.noise)) / 2).expm1()).max(arb(0))


class BallSecretSketch(BallProfile):
    """The exact privacy profile of a secret sketch for a difference of rank one (C14).

    ``gamma_ratio`` is the smallest variance of the sketch over the largest change of the variance between neighboring
    datasets.
    """

    def __init__(self, rank: int, gamma_ratio: float) -> None:
        self.rank, self.gamma_ratio = rank, gamma_ratio

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return a ball around the larger of the deltas in the add and remove directions; ``witness`` is empty."""
        # One term for each direction: F is the distribution function of chi2_r, r the rank, and nu = 1/gamma_ratio.
        nu, half = 1 / arb(self.gamma_ratio), arb(self.rank) / 2
        log_size, growth = self.rank * (1 + nu).log(), eps.exp()
        # F(w) - e^eps F(w/(1+nu)), w = (r ln(1+nu) - 2 eps)(1+nu)/nu (C14)
        w = (log_size - 2 * eps) * (1 + nu) / nu
        rise = gamma.lower(half, w / 2) - growth * gamma.lower(half, w / (2 * (1 + nu)))
        # (1-F)(w') - e^eps (1-F)(w' (1+nu)), w' = (r ln(1+nu) + 2 eps)/nu
        v = (log_size + 2 * eps) / nu
        fall = gamma.upper(half, v / 2) - growth * gamma.upper(half, v * (1 + nu) / 2)
        return rise.max(fall)
