"""Compute reference values for the vector Wishart mechanism in mpmath.

The release is ``Y = M v`` for a vector ``v`` and a random Wishart matrix ``M`` of a given dimension ``dim`` and
``rank``. The misalignment of neighboring vectors ``v`` and ``v'`` is 1 minus the cosine of their angle.

The privacy loss is a function of two random variables: ``A = (v' . Y)/(v . Y)``, a shifted and scaled
Student's t variable, and ``W``, which is chi-square. The exact delta is the mean over ``A`` of the hockey-stick
divergence given ``A`` (C9: equal norms; C12: unequal norms). Other bounds use quantiles of ``A`` and ``W`` (C11).
:mod:`privproj.distributions.wishart_loss` has the exact profile in floats.
"""

import mpmath as mp

from privproj.reference import composition
from privproj.reference.calculus import Function, Real, find_minimum, find_root, integrate_above, integrate_line
from privproj.reference.special import (
    beta_tail,
    chi2_below,
    chi2_quantile,
    gamma_lower,
    gamma_upper,
    normal_tail,
    student_density,
    student_quantile,
)


def _conditional_gain(dim: int, rank: int, log_kappa: Real, epsilon: Real, x: Real) -> Real:
    """Return the hockey-stick divergence of releases of two neighboring vectors, given ``A`` (C9, C12).

    ``A = e^(log_kappa - x)`` is the ratio of the inner products of a release with the two vectors. The ratio of the
    norms of the vectors is ``e^log_kappa``.
    """
    # With n = r + d - 1, kappa = e^log_kappa, b = (d+1-r)/2 ln A - (n/2) ln kappa, c = (kappa/A - 1)/2, w = (eps - b)/c
    # and V = e^-b (A/kappa)^(n/2), the divergence is
    # Q(n/2, w/2) - e^eps V Q(n/2, w kappa/(2A)) for A < kappa, or 1 - e^eps V if w <= 0, and
    # P(n/2, w/2) - e^eps V P(n/2, w kappa/(2A)) for A > kappa, or 0 if w <= 0,
    # with the lower and the upper regularized incomplete gamma functions P and Q.
    with mp.workdps(mp.mp.dps + 20 + int(2 * max(mp.mpf(0), -mp.log10(abs(x))))):
        n, log_a = mp.mpf(rank + dim - 1), log_kappa - x
        b = mp.mpf(dim + 1 - rank) / 2 * log_a - n / 2 * log_kappa
        c, weight = (mp.exp(x) - 1) / 2, mp.exp(epsilon - b - n / 2 * x)
        w = (epsilon - b) / c
        tail = gamma_upper if x > 0 else gamma_lower
        return tail(n / 2, w / 2) - weight * tail(n / 2, w / 2 * mp.exp(x))


def _pair_delta(dim: int, rank: int, misalignment: Real, epsilon: Real, log_kappa: Real = 0) -> Real:
    """Return delta of one pair of neighboring vectors with the norm ratio ``e^log_kappa`` (C9, C12)."""
    # P(A <= 0) + E[g(A); A > 0], where g(A) is the divergence given A, by a quadrature over A
    m, eps, log_kappa = mp.mpf(misalignment), mp.mpf(epsilon), mp.mpf(log_kappa)
    if m == 0:
        return max(mp.mpf(0), _conditional_gain(dim, rank, log_kappa, eps, log_kappa))
    scale = mp.sqrt(m * (2 - m) / rank)

    def integrand(x: Real) -> Real:
        excess = (mp.exp(log_kappa - x) - 1 + m) / scale
        return (
            _conditional_gain(dim, rank, log_kappa, eps, x)
            * student_density(rank, excess)
            * mp.exp(log_kappa - x)
            / scale
        )

    finite = _integrate_both_sides(integrand, dim, rank, eps + (rank - 1) * log_kappa, m + abs(log_kappa))
    return _infinite_part(rank, m) + finite


def _infinite_part(rank: int, m: Real) -> Real:
    """Return the probability of an infinite privacy loss at the misalignment ``m`` (C9)."""
    # p = P(Beta(r/2, 1/2) < m (2-m))/2 for m <= 1, else 1 - p
    half = beta_tail(mp.mpf(1) / 2, mp.mpf(rank) / 2, 1 - m * (2 - m)) / 2
    return half if m <= 1 else 1 - half


def _integrate_both_sides(integrand: Function, dim: int, rank: int, shifted: Real, size: Real) -> Real:
    a = mp.mpf(dim + 1 - rank) / 2
    start = mp.log(mp.sqrt(size / rank) + size)
    cuts = [mp.mpf(0)] if a == 0 or shifted == 0 else [mp.mpf(0), -shifted / a]
    pieces = [_integrate_beyond(integrand, max(cuts), 1, start), _integrate_between(integrand, cuts)]
    if a > 0:
        pieces.append(_integrate_beyond(integrand, min(cuts), -1, start))
    return mp.fsum(pieces)


def _integrate_beyond(integrand: Function, cut: Real, sign: int, start: Real) -> Real:
    """Return the integral of ``integrand`` to the right of ``cut`` (``sign`` 1) or to the left (-1).

    The search for the main contribution begins at the distance ``e^start`` from ``cut``.
    """
    return integrate_line(lambda s: integrand(cut + sign * mp.exp(s)) * mp.exp(s), start)


def _integrate_between(integrand: Function, cuts: list[Real]) -> Real:
    """Return the integral of ``integrand`` between two points, of which one is 0.

    If the other point is negative, the result is 0, because ``integrand`` is 0 there.
    """
    low, high = min(cuts), max(cuts)
    if low == high or high <= 0:
        return mp.mpf(0)

    def at(s: Real) -> Real:
        up, down = 1 / (1 + mp.exp(-s)), 1 / (1 + mp.exp(s))
        return integrand(low + (high - low) * up) * (high - low) * up * down

    return integrate_line(at)


def exact_delta(epsilon: Real, dim: int, rank: int, misalignment: Real, norm_ratio: Real = 1) -> Real:
    """Return delta of the worst pair of neighboring vectors (C10: monotone in the alignment).

    With a ``norm_ratio`` above 1, the result is a lower bound: the largest delta over some pairs with at most this
    misalignment, in both orders of the two vectors (C12: unequal norms).
    """
    if dim == 1:
        return mp.mpf(0)
    if norm_ratio == 1:
        return _pair_delta(dim, rank, misalignment, epsilon)
    log_kappa = mp.log(mp.mpf(norm_ratio))
    return max(_worst_pair_delta(dim, rank, misalignment, epsilon, sign * log_kappa) for sign in (1, -1))


def _worst_pair_delta(dim: int, rank: int, misalignment: Real, epsilon: Real, log_kappa: Real) -> Real:
    """Return the largest delta over vectors with nine misalignments from 0 to ``misalignment``."""
    m = mp.mpf(misalignment)
    return max(_pair_delta(dim, rank, m * mp.mpf(j * j) / 64, epsilon, log_kappa) for j in range(9))


def _alignment_ends(dim: int, rank: int, m: Real, delta_t: Real) -> tuple[Real, Real]:
    """Return an interval that contains the alignment variable except with probability ``delta_t``.

    The variable is ``rho + sqrt(1-rho^2) T/sqrt(rank)`` with ``rho = 1 - m`` and Student's t variable ``T`` with
    ``rank`` degrees of freedom (C11).
    """
    reach = mp.sqrt(m * (2 - m)) * student_quantile(rank, delta_t) / mp.sqrt(rank)
    return 1 - m - reach, 1 - m + reach


def published_loss(dim: int, rank: int, m: Real, delta_t: Real, delta_w: Real) -> Real:
    """Return the published bound on the privacy loss, outside an event of small probability (C11).

    This is Theorem 1 of arXiv 2601.21719, the bound ``quantile``. The loss is a function of a Student's t and a
    chi-square variable. These are outside of their quantiles with probabilities ``delta_t`` and ``delta_w``. ``m`` is
    the misalignment of neighboring vectors. The result may be infinite.
    """
    low = _alignment_ends(dim, rank, m, delta_t)[0]
    if low <= 0:
        return mp.inf
    w = chi2_quantile(rank + dim - 1, delta_w, upper=True)
    # |d+1-r|/2 |ln a_-| + (w/2)(1/a_- - 1)
    return abs(mp.mpf(dim + 1 - rank)) / 2 * abs(mp.log(low)) + w / 2 * (1 / low - 1)


def _largest_loss(dim: int, rank: int, m: Real, delta_t: Real, delta_w: Real) -> Real:
    """Return the largest privacy loss outside an event of small probability (C11).

    This is the bound ``quantile-sharp``. The loss is a function of a Student's t and a chi-square variable. They are
    outside of their intervals with probabilities ``delta_t`` and ``delta_w``. ``m`` is the misalignment of neighboring
    vectors.
    """
    # The loss is (d+1-r)/2 ln A + (W/2)(1/A - 1). The interval of W is one-sided or two-sided, whichever gives the
    # smaller result. The result is infinite if A may be negative.
    low, high = _alignment_ends(dim, rank, m, delta_t)
    if low <= 0:
        return mp.inf
    n = rank + dim - 1
    one = (mp.mpf(0), chi2_quantile(n, delta_w, upper=True))
    two = (chi2_quantile(n, delta_w / 2, upper=False), chi2_quantile(n, delta_w / 2, upper=True))
    return min(_largest_corner_loss(dim, rank, (low, high), one), _largest_corner_loss(dim, rank, (low, high), two))


def _largest_corner_loss(dim: int, rank: int, ends_of_a: tuple[Real, Real], ends_of_w: tuple[Real, Real]) -> Real:
    """Return the largest privacy loss if its two random variables are in the given intervals (C11).

    The loss is ``(dim+1-rank)/2 ln A + (W/2)(1/A - 1)`` for the variables ``A`` and ``W``.
    """
    a = mp.mpf(dim + 1 - rank) / 2
    inside = [x for x in (*ends_of_a, mp.mpf(1)) if ends_of_a[0] <= x <= ends_of_a[1]]
    return max(a * mp.log(x) + w / 2 * (1 / x - 1) for x in inside for w in ends_of_w)


def _loss_at_split(loss: Function, delta: Real, dim: int, rank: int, misalignment: Real, split: Real = "even") -> Real:
    """Return ``loss`` at a split of delta between two events.

    ``split`` is the fraction of delta for the first event. "even" means one half, and "optimal" is the split with the
    smallest loss.
    """
    delta, m = mp.mpf(delta), mp.mpf(misalignment)

    def at(odds: Real) -> Real:
        return loss(dim, rank, m, delta / (1 + mp.exp(-odds)), delta / (1 + mp.exp(odds)))

    if split == "optimal":
        return find_minimum(at, -16, 16)[1]
    share = mp.mpf("0.5") if split == "even" else mp.mpf(split)
    return loss(dim, rank, m, delta * share, delta * (1 - share))


def quantile(delta: Real, dim: int, rank: int, misalignment: Real, split: Real = "even", steps: int = 1) -> Real:
    """Return epsilon by Theorem 1 of arXiv 2601.21719 (C11: quantile bounds).

    ``split`` is the fraction of delta for the first of two events, "even" or "optimal". Several steps are composed by
    basic or advanced composition, whichever gives the smaller epsilon.
    """
    return composition.composed_rule(
        lambda part: _loss_at_split(published_loss, part, dim, rank, misalignment, split), delta, steps
    )


def quantile_sharp(delta: Real, dim: int, rank: int, misalignment: Real, split: Real = "even") -> Real:
    """Return the largest privacy loss outside of two events that split delta (C11: quantile bounds).

    The events are tails of the two random variables of the loss.
    """
    return _loss_at_split(_largest_loss, delta, dim, rank, misalignment, split)


def _early_loss(dim: int, rank: int, m: Real, t: Real, radius: Real) -> Real:
    """Return the privacy loss of the bound ``early`` at its thresholds (C11: early theorem).

    This is Theorem 1 of the early version of arXiv 2601.21719. ``t`` is a threshold for inner products of the release,
    and ``radius`` for its norm. ``m`` is the misalignment of neighboring vectors.
    """
    # cos theta_R = t/R with R = radius. theta is the smaller one of the assumed angle and theta_R, because pairs with a
    # smaller angle are included.
    angle, best = mp.acos(1 - m), mp.acos(t / radius)
    # |d-r-1|/2 max(0, ln((R/t) cos(theta - theta_R))) + R^3 sqrt(2 m)/(2 t^2)
    growth = mp.log(radius / t * mp.cos(min(angle, best) - best))
    return abs(mp.mpf(dim - rank - 1)) / 2 * max(growth, 0) + radius**3 * mp.sqrt(2 * m) / (2 * t**2)


def _two_tails(rank: int, m: Real, t: Real, eta: Real) -> Real:
    """Return the published bound on ``P(min(S, S') <= t)`` of the bound ``early`` (C11: early theorem).

    ``S`` and ``S'`` are the inner products of the release with neighboring unit vectors, times the rank. ``m`` is the
    misalignment of these vectors, and ``eta`` is a free parameter.
    """
    # 1 - PhiBar(z) P(chi2_r > t + eta) = p + (1 - p) q, z = (t(1-rho) - rho eta)/sqrt((1-rho^2)(t+eta))
    z = (t * m - (1 - m) * eta) / mp.sqrt(m * (2 - m) * (t + eta))
    p, q = normal_tail(-z), chi2_below(rank, t + eta)
    return p + (1 - p) * q


def _mixed_tail(rank: int, m: Real, t: Real) -> Real:
    """Return ``P(min(S, S') <= t)`` exactly, for the bound ``early-exact-tail`` (C11: early theorem).

    ``S`` and ``S'`` are the inner products of the release with neighboring unit vectors, times the rank. ``m`` is the
    misalignment of these vectors.
    """

    # P(X <= t) + E[1{X > t} Phi((t - rho X)/sqrt((1-rho^2) X))], X ~ chi2_r
    def integrand(s: Real) -> Real:
        x = mp.exp(s)
        density = mp.exp(mp.mpf(rank) / 2 * mp.log(x / 2) - x / 2 - mp.loggamma(mp.mpf(rank) / 2))
        return density * normal_tail(((1 - m) * x - t) / mp.sqrt(m * (2 - m) * x))

    return chi2_below(rank, t) + integrate_above(integrand, mp.log(t), min(mp.sqrt(m * (2 - m) / t), mp.mpf(1)))


def _spectral_tail(dim: int, rank: int, radius: Real, c: Real) -> Real:
    """Return the published bound on the probability that the norm of a Gaussian matrix is large.

    The squared operator norm of a ``dim`` x ``rank`` matrix exceeds ``radius`` with at most this probability. ``c`` is
    the constant in the exponent of the bound.
    """
    return 2 * mp.exp(-c * (mp.sqrt(radius) - mp.sqrt(dim) - mp.sqrt(rank)) ** 2)


def early_delta(
    epsilon: Real | None,
    dim: int,
    rank: int,
    misalignment: Real,
    t: Real | None = None,
    eta: Real = 0,
    R: Real = 0,
    c: Real = "0.5",
) -> Real:
    """Return delta of the bound ``early`` at the given parameters (C11: early theorem).

    This is Theorem 1 of the early version of arXiv 2601.21719. ``t`` and ``R`` are its thresholds for inner products
    and for the norm of the release. ``eta`` and ``c`` are parameters of the bounds on the probabilities that an inner
    product is below ``t`` and that the norm is above ``R``. ``epsilon`` is not used.
    """
    m = mp.mpf(misalignment)
    return _two_tails(rank, m, mp.mpf(t), mp.mpf(eta)) + _spectral_tail(dim, rank, mp.mpf(R), mp.mpf(c))


def _early_epsilon(delta: Real, tail: Function, dim: int, rank: int, misalignment: Real) -> Real:
    """Return the smallest privacy loss of the bound ``early`` at ``delta`` (C11: early theorem).

    ``tail(t)`` is the part of delta for inner products of the release below a threshold ``t``. The rest of delta
    determines the threshold for the norm.
    """
    delta, m = mp.mpf(delta), mp.mpf(misalignment)
    highest = mp.exp(find_root(lambda s: mp.log(tail(mp.exp(s)) / delta), mp.log(rank), mp.mpf(-1)))

    def at(s: Real) -> Real:
        t = highest * mp.exp(-mp.exp(s))
        left = delta - tail(t)
        edge = mp.sqrt(dim) + mp.sqrt(rank)
        return _early_loss(dim, rank, m, t, (edge + mp.sqrt(2 * mp.log(2 / left))) ** 2)

    return find_minimum(at, -12, 2)[1]


def early(
    delta: Real | None,
    dim: int,
    rank: int,
    misalignment: Real,
    t: Real | None = None,
    eta: Real = 0,
    R: Real = 0,
    c: Real = "0.5",
) -> Real:
    """Return epsilon of the bound ``early`` at its thresholds (C11: early theorem).

    This is Theorem 1 of the early version of arXiv 2601.21719. ``t`` and ``R`` are its thresholds for inner products
    and for the norm of the release. If ``t`` is None, the best thresholds at ``delta`` are used; otherwise ``delta`` is
    not used. ``eta`` and ``c`` are not used.
    """
    m = mp.mpf(misalignment)
    if t is not None:
        return _early_loss(dim, rank, m, mp.mpf(t), mp.mpf(R))

    def tail(x: Real) -> Real:
        return find_minimum(lambda s: _two_tails(rank, m, x, x * mp.exp(s)), -40, 5)[1]

    return _early_epsilon(delta, tail, dim, rank, misalignment)


def early_exact_tail(delta: Real, dim: int, rank: int, misalignment: Real) -> Real:
    """Return epsilon of the bound ``early-exact-tail`` at its best thresholds (C11: early theorem).

    This is the bound ``early`` with the exact probability of an inner product below its threshold.
    """
    return _early_epsilon(delta, lambda t: _mixed_tail(rank, mp.mpf(misalignment), t), dim, rank, misalignment)


def preprocessing_gain(dim: int, misalignment: Real, gamma: Real, beta: Real) -> Real:
    """Return a lower bound on the increase of the cosine of two unit vectors by preprocessing.

    The published preprocessing adds a common random vector of norm ``gamma`` to both vectors. The increase is below the
    bound with probability at most ``beta``.
    """
    m, gamma = mp.mpf(misalignment), mp.mpf(gamma)
    # (gamma^2 (1-rho) - 2 gamma t (1+rho)) / (1 + gamma^2 + 2 gamma t), t = sqrt((2/d) ln(8/beta))
    t = mp.sqrt(mp.mpf(2) / dim * mp.log(8 / mp.mpf(beta)))
    return (gamma**2 * m - 2 * gamma * t * (2 - m)) / (1 + gamma**2 + 2 * gamma * t)


# ``mechanism.bound -> delta(epsilon, **parameters)``
DELTAS: dict[str, Function] = {"wishart.exact": exact_delta, "wishart.early": early_delta}

# ``mechanism.bound -> epsilon(delta, **parameters)``
EPSILONS: dict[str, Function] = {
    "wishart.quantile-sharp": quantile_sharp,
    "wishart.quantile": quantile,
    "wishart.early-exact-tail": early_exact_tail,
    "wishart.early": early,
}

COARSE_DIGITS = {"wishart.early": 14, "wishart.early-exact-tail": 14, "wishart.exact": 20}

# The worst pair is enclosed in cells and panels.
LOOSE = {"wishart.exact.delta dim=20 rank=4 misalignment=0.001 norm_ratio": 2.5e-3}

OTHER_QUANTITIES: dict[str, Function] = {"wishart.preprocess.gain": preprocessing_gain}
