"""Enclose the privacy profiles of single releases in ball arithmetic.

There is one class for each bound (C21: certificates). ``z`` is the noise multiplier, ``mu = 1/z``, and ``h_eps(x)`` is
the Gaussian delta at the squared sensitivity over noise ``x``.

A profile may have free parameters. Values of the free parameters are a witness. Every admissible witness proves a
bound. So the witness is chosen in floating point, and chosen again by the check of a certificate. The same formulas are
implemented in floats for the bounds of :mod:`privproj.mechanisms.registry`, and in mpmath in :mod:`privproj.reference`.
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

    Values are computed at the current working precision. A subclass guarantees that :meth:`delta` contains the exact
    value of the bound for every admissible witness. By default there are no free parameters.
    """

    effort: int = 1  # cost of an evaluation, relative to a profile in closed form

    def witness(self, eps: float) -> Witness:
        """Return good values of the free parameters at this epsilon.

        The result is empty if there are none.
        """
        return {}

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return a ball that contains the value of the bound at ``eps``.

        ``witness`` has the values of the free parameters.
        """
        raise NotImplementedError

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return a lower and an upper bound of the value at ``eps``, for runs.

        The composition of a run needs both (C29: a whole run in balls). An unknown lower bound is 0.
        """
        ball = self.delta(eps, {})
        return ball.lower(), ball.upper()


class BallGaussianProfile(BallProfile):
    """The profile of ``T = steps`` Gaussian releases (C3: the Gaussian profile).

    The profile is ``delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`` at ``mu = sqrt(T)/z``, where ``z`` is
    the noise multiplier.
    """

    def __init__(self, noise_multiplier: float, steps: int = 1) -> None:
        self.noise, self.steps = noise_multiplier, steps

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return the closed form at ``mu = sqrt(T)/z``; the witness is empty."""
        return gaussian.delta(eps, arb(self.steps).sqrt() / arb(self.noise))


class BallBetaTail(BallProfile):
    """The Beta-tail bound of M2 at a ``tau`` in (0, 1] (C16: good events).

    The bound is ``delta(eps) = G(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau)``. ``G`` is the Gaussian delta if
    ``sharp``, and otherwise the two-sided tail. ``d`` is the dimension, ``r`` the rank, ``k`` the rank of the
    difference between neighboring sums, and ``mu`` one over the noise multiplier. The witness is ``tau``.
    """

    def __init__(self, dim: int, rank: int, k: int, noise_multiplier: float, sharp: bool) -> None:
        self.dim, self.rank, self.k, self.noise, self.sharp = dim, rank, k, noise_multiplier, sharp

    def witness(self, eps: float) -> Witness:
        """Return the best ``tau``, which is computed in floating point."""
        from privproj.mechanisms.m2.beta_tail_kernels import beta_tail_delta

        if self.dim == self.rank or (eps == 0.0 and not self.sharp):
            return {"tau": 1.0}
        a, b = 0.5 * self.rank, 0.5 * (self.dim - self.rank)
        t = beta_tail_delta(a, b, float(self.k), 1.0 / self.noise, eps, self.sharp)[1]
        return {"tau": 1.0 / (1.0 + math.exp(-t))}

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return the bound at the witness ``tau``."""
        tau, mu = arb(witness["tau"]), 1 / arb(self.noise)
        # G(eps; mu sqrt(tau)) + k P(Beta(r/2, (d-r)/2) > tau)
        term = (gaussian.delta if self.sharp else gaussian.two_sided)(eps, mu * tau.sqrt())
        if not tau < 1:
            return term
        distribution = BallBetaDistribution(arb(self.rank) / 2, arb(self.dim - self.rank) / 2, arb(1))
        return term + self.k * distribution.tail(tau)

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return the lower bound 0, and the bound at the ``tau`` of :meth:`witness`.

        No better lower bound is known.
        """
        return arb(0), self.delta(eps, self.witness(float(eps))).upper()


class BallMean(BallProfile):
    """A profile that is an integral.

    A run needs the integral with fewer bits than a certificate of one release.
    """

    def mean(self, eps: arb, goal: int) -> arb:
        """Return a ball that contains the profile at ``eps``.

        The ball is accurate to ``goal`` bits if the working precision allows it.
        """
        raise NotImplementedError

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return the integral; the witness is empty."""
        return self.mean(eps, GOAL_BITS)

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return the ends of a ball that contains the integral, to fewer bits."""
        with ctx.workprec(EVALUATION_BITS):
            ball = self.mean(eps, BITS_OF_MEANS)
            return ball.lower(), ball.upper()


class BallRandomSensitivity(BallMean):
    """The profile ``E[h_eps(X)]`` for a rank-one difference of neighboring sums.

    ``h_eps(X)`` is the Gaussian delta at the random squared sensitivity over noise ``X``. ``shape`` is ``(d, r)`` for
    M2, whose ``X`` has a Beta distribution, or the rank ``r`` of a public sketch, whose ``X`` has a Gamma distribution
    (C4: random sensitivity).
    """

    def __init__(self, shape: tuple[int, int] | int, noise_multiplier: float) -> None:
        self.shape, self.noise = shape, noise_multiplier

    def distribution(self) -> BallDistribution:
        """Return the distribution of the squared sensitivity over noise ``X``.

        With ``mu`` one over the noise multiplier, dimension ``d`` and rank ``r``, ``X`` is ``mu^2 Beta(r/2, (d-r)/2)``
        for M2 and ``mu^2 chi2_r / r`` for a public sketch (C7: distributions of the squared sensitivity).
        """
        scale = 1 / arb(self.noise) ** 2
        if isinstance(self.shape, int):
            return BallGammaDistribution(arb(self.shape) / 2, 2 * scale / self.shape)
        dim, rank = self.shape
        return BallBetaDistribution(arb(rank) / 2, arb(dim - rank) / 2, scale)

    def mean(self, eps: arb, goal: int) -> arb:
        """Return a ball that contains the profile at ``eps``, a mean over ``X``."""
        return self.distribution().expected_delta(eps, goal=goal)


class BallAnyRank(BallRandomSensitivity):
    """The bound for a difference of neighboring sums of any rank (C5: any rank).

    The bound is ``E[g_p(X)]``. ``X`` is the random squared sensitivity over noise, and ``h_eps(x)`` is the Gaussian
    delta at ``x``. The tangent of ``h_eps`` at ``p`` crosses ``h_eps`` at a smaller point. ``g_p`` equals ``h_eps``
    below the crossing, and equals the tangent above the crossing. The witness is ``p``, which must be at least the
    inflection point of ``h_eps``. If ``h_eps`` is convex on the whole range of ``X``, the witness is empty.
    """

    def witness(self, eps: float) -> Witness:
        """Return the best tangent point, computed in floating point.

        The result is empty if the Gaussian delta is convex on the whole range of the squared sensitivity.
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
        """Return a ball that contains the bound at the tangent point of the witness.

        For an empty witness the bound is the value for rank one, which must be the worst case.

        Raises:
            PrecisionError: The witness is not admissible.
        """
        if not witness and not self._is_convex(eps):
            raise PrecisionError("the profile is not convex on the whole range, so it has no tangent bound")
        return self._enclose(eps, arb(witness["tangent"]))[1] if witness else super().delta(eps, witness)

    def ends(self, eps: arb) -> tuple[arb, arb]:
        """Return a lower and an upper bound of the minimum over all tangent points.

        The upper bound is the value at the tangent point of :meth:`witness`.
        """
        if self._is_convex(eps):
            return super().ends(eps)
        with ctx.workprec(EVALUATION_BITS):
            p = arb(self.witness(float(eps.mid())).get("tangent", 0.0)).max(gaussian.inflection(eps).upper())
            lower, upper = self._enclose(eps, p, BITS_OF_MEANS)
            return lower.lower(), upper.upper()

    def _is_convex(self, eps: arb) -> bool:
        """Return whether the Gaussian delta is convex on the whole range of ``X``.

        ``X`` is the squared sensitivity over noise. If the Gaussian delta is convex there, a difference of rank one is
        the worst case.
        """
        most = self.distribution().supremum
        return most is not None and bool(most <= gaussian.inflection(eps))

    def _enclose(self, eps: arb, p: arb, goal: int = GOAL_BITS) -> tuple[arb, arb]:
        """Return balls of a lower and of an upper bound of the any-rank value.

        The value is the minimum over all ``p`` of ``E[g_p(X)]`` (see the class). The upper bound is ``E[g_p(X)]`` at
        this ``p``. If the tangent at ``p`` crosses ``h_eps`` at ``c``, the lower bound is
        ``E[h_eps(X); X <= c] + P(X > c) h_eps(E[X | X > c])``. If there is no crossing, ``c`` is 0.

        Raises:
            PrecisionError: ``p`` may be below the inflection point.
        """
        distribution, least = self.distribution(), gaussian.inflection(eps)
        if not p >= least:
            raise PrecisionError(
                f"the tangent point must be at least {float(least):.6g}, the inflection point, got {float(p):.6g}"
            )
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
    """Return a ball around the crossing of the Gaussian delta and its tangent.

    The tangent is at ``p``. The crossing is a squared sensitivity ``x``. Up to the inflection point, the Gaussian delta
    minus the tangent is convex in ``x``. The difference is at most 0 at this point, so its sign changes only once.
    """
    height, slope = gaussian.delta(eps, p.sqrt()), gaussian.slope(eps, p)

    def excess(x: arb) -> arb:
        return gaussian.delta(eps, x.sqrt()) - height - slope * (x - p)

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
    """The profile of a Laplace release.

    The profile is ``delta(eps) = 1 - e^((eps - mu)/2)`` for ``eps < mu``, and 0 otherwise. ``mu`` is one over the noise
    multiplier.
    """

    def __init__(self, noise_multiplier: float) -> None:
        self.noise = noise_multiplier

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return the closed form; the witness is empty."""
        return (-((eps - 1 / arb(self.noise)) / 2).expm1()).max(arb(0))


class BallSecretSketch(BallProfile):
    """The exact profile of a secret sketch for a rank-one difference.

    By claim C14 (the secret sketch) of docs/proofs.md, the profile is the larger one of ``F(w) - e^eps F(w/(1+nu))``
    and ``(1-F)(w') - e^eps (1-F)(w' (1+nu))``, one for each direction. ``F`` is the distribution function of ``chi2_r``
    with ``r = rank``, ``nu`` is ``1/gamma_ratio``, ``w = (r ln(1+nu) - 2 eps)(1+nu)/nu`` and
    ``w' = (r ln(1+nu) + 2 eps)/nu``. ``gamma_ratio`` is the smallest variance of the sketch over the largest change of
    the variance between neighboring datasets.
    """

    def __init__(self, rank: int, gamma_ratio: float) -> None:
        self.rank, self.gamma_ratio = rank, gamma_ratio

    def delta(self, eps: arb, witness: Witness) -> arb:
        """Return the larger one of both directions; the witness is empty."""
        nu, half = 1 / arb(self.gamma_ratio), arb(self.rank) / 2
        log_size, growth = self.rank * (1 + nu).log(), eps.exp()
        # F(w) - e^eps F(w/(1+nu)), w = (r ln(1+nu) - 2 eps)(1+nu)/nu (C14)
        w = (log_size - 2 * eps) * (1 + nu) / nu
        rise = gamma.lower(half, w / 2) - growth * gamma.lower(half, w / (2 * (1 + nu)))
        # (1-F)(w') - e^eps (1-F)(w' (1+nu)), w' = (r ln(1+nu) + 2 eps)/nu
        v = (log_size + 2 * eps) / nu
        fall = gamma.upper(half, v / 2) - growth * gamma.upper(half, v * (1 + nu) / 2)
        return rise.max(fall)
