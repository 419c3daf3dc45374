"""Compute reference values for M1 in mpmath.

M1 multiplies a matrix by a random Wishart matrix of a given dimension ``dim`` and ``rank``, and then adds noise.

Some functions are about neighbors that differ in one column. The other columns span ``span_dim`` dimensions. The
residual of the column is its part orthogonal to this span. The privacy loss is a sum of two parts: the loss of the
residual and a Gaussian loss (:mod:`privproj.mechanisms.m1.column`).
"""

from functools import lru_cache

import mpmath as mp

from privproj.reference import composition, wishart
from privproj.reference.calculus import Function, Real, find_root, integrate_above, integrate_line
from privproj.reference.composition import gaussian_mu
from privproj.reference.distributions import (
    ReferenceDistribution,
    any_rank_delta,
    beta_density,
    expected_delta,
    gamma_density,
    gaussian_delta_of_square,
    log_gamma,
)
from privproj.reference.sketch_public import epsilon_at_split, least_over_radius
from privproj.reference.special import chi2_quantile, gaussian_delta, normal_density, student_quantile


@lru_cache(maxsize=64)
def _beta_nodes(a: Real, b: Real, digits: int) -> tuple[tuple[Real, Real], ...]:
    """Return pairs ``(B^(-1/2), w B^(-(a+b)/2))`` for a quadrature over ``B ~ Beta(a, b)`` with the weights ``w``."""
    # trapezoidal rule over the logit of B
    width = min(mp.sqrt(1 / a + 1 / b), 2 / mp.sqrt(a + b), mp.mpf("0.55"))
    step, center, nodes = width * 9 / digits, mp.log(a / b), []
    for sign, first in ((1, 0), (-1, 1)):
        j, weight = first, mp.mpf(1)
        while j < 12 or weight > mp.mpf(10) ** (-digits - 20):
            t = center + sign * j * step
            weight, grown = step * beta_density(a, b, t), mp.sqrt(1 + mp.exp(-t))
            nodes.append((grown, weight * grown ** (a + b)))
            j += 1
    return tuple(nodes)


def _energy_density(a: Real, b: Real, y: Real) -> Real:
    """Return the density at ``y`` of ``ln(B N^2)`` for independent ``B`` and ``N``.

    ``B`` is ``Beta(a, b)``, and ``N/2`` is ``Gamma(a + b)``.
    """
    # N/2 = (e^(y/2)/2) B^(-1/2): all nodes share its power a + b except for B^(-(a+b)/2), which is in the weights.
    n, half = a + b, mp.exp(y / 2) / 2
    total = mp.exp(-half) if b == 0 else mp.fsum(w * mp.exp(-half * s) for s, w in _beta_nodes(a, b, mp.mp.dps))
    with mp.workdps(mp.mp.dps + 10 + int(mp.log10(1 + n))):
        return mp.exp(n * mp.log(half) - log_gamma(n, mp.mp.prec)) * total / 2


def _energy_distribution(first: int, second: int, rank: int, scale: Real) -> ReferenceDistribution:
    """Return the distribution of ``scale U (U + Y)/rank^2`` (C7: distributions).

    ``U`` and ``Y`` are independent chi-square variables with ``first`` and ``second`` degrees of freedom.
    """
    a, b, unit = mp.mpf(first) / 2, mp.mpf(second) / 2, mp.mpf(scale) / mp.mpf(rank) ** 2
    density = lru_cache(maxsize=200000)(lambda y, digits: _energy_density(a, b, y))
    width = mp.sqrt(4 / (a + b) + (1 / a + 1 / b if b else 0))

    def at(y: Real) -> Real:
        return density(y, mp.mp.dps)

    def part(x: Real, power: int) -> Real:
        def integrand(y: Real) -> Real:
            return at(y) * (unit * mp.exp(y)) ** power

        return (
            integrate_above(integrand, mp.log(x / unit), width) if x > 0 else integrate_line(integrand, center, width)
        )

    center = mp.log(4 * a * (a + b))
    return ReferenceDistribution(
        density=at,
        value=lambda y: unit * mp.exp(y),
        coordinate=lambda x: mp.log(x / unit),
        hill=(center, width),
        tail=lambda x: part(x, 0),
        moment=lambda x: part(x, 1) if x > 0 else unit * 4 * a * (a + b + 1),
    )


def known_projection_rank1(epsilon: Real, dim: int, rank: int, noise_multiplier: Real) -> Real:
    """Return the exact delta of M1 for a rank-one difference of neighboring sums (C4, C7).

    M1 is a product with a Wishart matrix plus noise. The adversary knows the projection.
    """
    # E[h(mu^2 U (U + Y)/r^2)], where h(x) is the Gaussian delta at the sensitivity over noise sqrt(x), and U and Y are
    # independent chi-square variables with r and d - 1 degrees of freedom
    return expected_delta(epsilon, _energy_distribution(rank, dim - 1, rank, gaussian_mu(noise_multiplier) ** 2))


def known_projection(epsilon: Real, dim: int, rank: int, noise_multiplier: Real) -> Real:
    """Return the bound on delta of M1 for a difference of neighboring sums of any rank (C5).

    M1 is a product with a Wishart matrix plus noise. The adversary knows the projection.
    """
    return any_rank_delta(epsilon, _energy_distribution(rank, dim - 1, rank, gaussian_mu(noise_multiplier) ** 2))


def _norm_radius(dim: int, rank: int) -> Function:
    """Return a map from ``ln p`` to a bound on the operator norm of a Wishart matrix (C16: good events).

    The norm exceeds the bound with probability at most ``p``.
    """
    # (sqrt d + sqrt r + sqrt(2 ln(1/p)))^2 / r
    return lambda log_bad: (mp.sqrt(dim) + mp.sqrt(rank) + mp.sqrt(-2 * log_bad)) ** 2 / rank


def operator_norm(
    epsilon: Real, dim: int, rank: int, noise_multiplier: Real, split: str = "optimal", steps: int = 1
) -> Real:
    """Return delta of a run of M1 from a bound on the norm of its Wishart matrix (C16: good events).

    M1 is a product with a Wishart matrix plus noise. Delta is minimized over the probability with which the bound
    fails. ``split`` is not used.
    """
    # min over d0 of T d0 + G(eps; mu sqrt(T) radius), with the Gaussian delta G
    return least_over_radius(_norm_radius(dim, rank), gaussian_mu(noise_multiplier, steps), epsilon, steps)


def operator_norm_epsilon(
    delta: Real, dim: int, rank: int, noise_multiplier: Real, split: Real = "even", steps: int = 1
) -> Real:
    """Return epsilon of a run of M1 from a bound on the norm of its Wishart matrix (C16).

    ``split`` is the fraction of delta for the event that the bound fails in some step; "even" means one half.
    """
    return epsilon_at_split(_norm_radius(dim, rank), gaussian_mu(noise_multiplier, steps), delta, steps, split)


def operator_norm_published(delta: Real, dim: int, rank: int, noise_multiplier: Real) -> Real:
    """Return epsilon of M1 from the norm of its Wishart matrix, by Equation 5 of the publication."""
    # sqrt(2 ln(1.25/delta_1)) mu R with delta_1 = delta/2; the bound R on the norm fails with probability at most
    # delta/2
    half = mp.mpf(delta) / 2
    radius = (mp.sqrt(dim) + mp.sqrt(rank) + mp.sqrt(2 * mp.log(1 / half))) ** 2 / rank
    return mp.sqrt(2 * mp.log(mp.mpf("1.25") / half)) * radius * gaussian_mu(noise_multiplier)


def secret_projection(
    epsilon: Real, dim: int, rank: int, noise_multiplier: Real, misalignment: Real, columns: int = 1
) -> Real:
    """Return delta of M1 for the release of one vector with a secret projection (C8: secret projection)."""
    # privproj.distributions.densities.SecretShift is the distribution of ln(shift^2) in floats.
    # E[h(shift^2)] for the random sensitivity over noise shift = S (c + xi) with xi ~ N(0, 1), where h(x) is the
    # Gaussian delta at the sensitivity over noise sqrt(x). Let g be a chi-square variable divided by its r degrees of
    # freedom, m the misalignment and z the noise multiplier. With s = 2 sin eta = sqrt(2 m), sigma = z s and tau^2 =
    # sigma^2 + g/r,
    # S = (2 sin eta cos eta/(sigma tau)) g/r, c = r sqrt(sigma^2 + (g/r) sin^2 eta)/cos eta,
    # and S = (g/r)/(sigma tau) for s > sqrt 2.
    m, eps = mp.mpf(misalignment), mp.mpf(epsilon)
    sigma, sine2 = mp.mpf(noise_multiplier) * mp.sqrt(2 * m), m / 2
    doubled = 2 * mp.sqrt(sine2 * (1 - sine2)) if m <= 1 else mp.mpf(1)

    def parts(v: Real) -> tuple[Real, Real]:
        share = mp.exp(v) / rank
        scale = doubled * share / (sigma * mp.sqrt(sigma**2 + share))
        return scale, rank * mp.sqrt(sigma**2 + share * sine2) / mp.sqrt(1 - sine2)

    def over_xi(v: Real) -> Real:
        scale, c = parts(v)
        return integrate_line(
            lambda xi: normal_density(xi) * gaussian_delta_of_square(eps, (scale * (c + xi)) ** 2), 0, 1
        )

    half, deviation = mp.mpf(rank) / 2, mp.sqrt(mp.mpf(2) / rank)
    if parts(mp.mpf(0))[1] > 40:
        return integrate_line(lambda v: gamma_density(half, v + mp.log(half)) * over_xi(v), 0, deviation)

    def density(y: Real) -> Real:
        def at(v: Real) -> Real:
            scale, c = parts(v)
            u = mp.exp(y) / scale
            return gamma_density(half, v + mp.log(half)) * (normal_density(u - c) + normal_density(u + c)) * u

        return integrate_line(at, 0, deviation)

    scale, c = parts(mp.mpf(0))
    start = mp.log(scale * (c + 1))
    return integrate_line(lambda y: density(y) * gaussian_delta_of_square(eps, mp.exp(2 * y)), start, mp.mpf(1) / 2)


def _residual_shift(residual_norm: Real, other: Real, misalignment: Real) -> Real:
    """Return the distance of two vectors of given norms; ``misalignment`` is 1 minus the cosine of their angle."""
    # beta^2 = (kappa - kappa')^2 + 2 kappa kappa' (1 - rho)
    return mp.sqrt((residual_norm - other) ** 2 + 2 * residual_norm * other * misalignment)


def residual(
    epsilon: Real,
    dim: int,
    rank: int,
    noise_multiplier: Real,
    residual_misalignment: Real,
    span_dim: int = 0,
    residual_norm: Real = 1,
    other_residual_norm: Real | None = None,
) -> Real:
    """Return delta of M1 from the residual of one differing column (C13: one changed column).

    The residual is the part of the column orthogonal to the other columns, which span ``span_dim`` dimensions. The two
    neighbors have the residual norms ``residual_norm`` and ``other_residual_norm`` (None: the same norm).
    """
    # the delta of the vector Wishart mechanism with dimension and rank reduced by span_dim
    first = mp.mpf(residual_norm)
    ratio = first / mp.mpf(residual_norm if other_residual_norm is None else other_residual_norm)
    n, free = dim - span_dim, rank - span_dim
    return wishart.exact_delta(epsilon, n, free, residual_misalignment, max(ratio, 1 / ratio))


def column_exact(
    epsilon: Real,
    dim: int,
    rank: int,
    noise_multiplier: Real,
    residual_misalignment: Real,
    span_dim: int,
    residual_norm: Real = 1,
    shift_in_span: Real = 0,
) -> Real:
    """Return the exact delta of M1 for one differing column, in three special cases (C13).

    The cases are other columns that span 0 dimensions, a rank of at most ``span_dim``, and neighboring columns that
    differ only within the span of the other columns.
    """
    # The privacy loss has one part only: that of residual in the first case, else known_projection_rank1.
    if span_dim == 0 and shift_in_span == 0:
        return residual(epsilon, dim, rank, noise_multiplier, residual_misalignment)
    assert rank <= span_dim or residual_misalignment == 0
    return known_projection_rank1(epsilon, dim, rank, noise_multiplier)


def _column_loss(dim: int, rank: int, k: int, m: Real, log_tau: Real, delta_t: Real, delta_w: Real) -> Real:
    """Return a bound on the privacy loss of a column's residual, which holds with high probability (C13).

    The residual is the part of a differing column orthogonal to the other columns, which span ``k`` dimensions. ``m``
    is 1 minus the cosine of the angle between neighboring residuals. The bound fails with probability at most
    ``delta_t + delta_w`` and may be infinite.
    """
    # The loss is p ln A - q tau + (W/2)(e^tau/A - 1) for the variables A and W, with tau = log_tau or -log_tau, p = (d
    # - r + 1)/2 and q = (d + r - 2k - 1)/2. It is infinite if A may be negative.
    # The bounds on A and W fail with probability at most delta_t and delta_w.
    n, free = dim - k, rank - k
    p, q = mp.mpf(n + 1 - free) / 2, mp.mpf(n + free - 1) / 2
    t = student_quantile(free, delta_t) / mp.sqrt(free)
    angle = mp.acos(1 - m)
    low, high = mp.cos(angle) - t * mp.sin(angle), mp.sqrt(1 + t * t) * mp.cos(min(angle, mp.atan(t)) - mp.atan(t))
    if low <= 0:
        return mp.inf
    ends = [chi2_quantile(2 * q, delta_w / 2, upper) for upper in (False, True)]
    losses = (
        # p ln A - q tau + (W/2)(e^tau/A - 1)
        p * mp.log(a) - q * tau + w / 2 * (mp.exp(tau) / a - 1)
        for a in (low, high)
        for w in ends
        for tau in (log_tau, -log_tau)
    )
    return max(mp.mpf(0), *losses)


def _shift_bound(dim: int, rank: int, k: int, alpha: Real, beta: Real, part: Real) -> Real:
    """Return a bound on the sensitivity over noise of the Gaussian loss of a differing column (C13).

    The other columns span ``k`` dimensions. ``alpha`` is the norm of the part of the column's difference within this
    span, and ``beta`` is the norm of the orthogonal part; each is divided by the standard deviation of the noise. The
    bound fails with probability at most ``2 part``, or ``3 part`` if ``rank > k``.
    """
    t, root_r = mp.sqrt(2 * mp.log(1 / part)), mp.sqrt(rank)
    if rank <= k:
        # (1/r)(sqrt d + sqrt r + t)(sqrt r + t) sqrt(alpha^2 + beta^2), t = sqrt(2 ln(1/part))
        return (mp.sqrt(dim) + root_r + t) * (root_r + t) * mp.hypot(alpha, beta) / rank
    # (1/r)(sqrt(d+r-k) + sqrt k + t)(alpha (sqrt r + t) + beta (sqrt k + t))
    stretched = alpha * (root_r + t) + beta * (mp.sqrt(k) + t)
    return (mp.sqrt(dim + rank - k) + mp.sqrt(k) + t) * stretched / rank


def column(
    delta: Real,
    dim: int,
    rank: int,
    noise_multiplier: Real,
    residual_misalignment: Real,
    span_dim: int,
    split: Real = "even",
    residual_norm: Real = 1,
    shift_in_span: Real = 0,
) -> Real:
    """Return epsilon of M1 for one differing column, as a sum of two losses (C13).

    One loss is that of the residual, the part of the column orthogonal to the other columns. The other loss is
    Gaussian. ``split`` is the fraction of delta for the first loss; "even" means one half.
    """
    # The first share is divided equally between the two variables of the loss. Half of the rest is the delta of the
    # Gaussian loss, and half is for the events in which _shift_bound fails.
    share = mp.mpf("0.5") if split == "even" else mp.mpf(split)
    delta, m, k = mp.mpf(delta), mp.mpf(residual_misalignment), span_dim
    norm, alpha = mp.mpf(residual_norm), mp.mpf(shift_in_span)
    beta = _residual_shift(norm, norm, m)
    count = 0 if k == 0 else 2 if rank <= k else 3
    part = 1 if count == 0 else share
    loss = _column_loss(dim, rank, k, m, 0, delta * part / 2, delta * part / 2) if rank > k else mp.mpf(0)
    if count == 0:
        return loss
    rest = delta * (1 - share if rank > k else 1) / 2
    unit = gaussian_mu(noise_multiplier) / mp.hypot(alpha, beta)
    shift = _shift_bound(dim, rank, k, alpha * unit, beta * unit, rest / count)
    return loss + composition.epsilon_of_profile(lambda eps: gaussian_delta(eps, shift), rest)


def column_published(
    delta: Real,
    dim: int,
    rank: int,
    noise_multiplier: Real,
    residual_misalignment: Real,
    span_dim: int,
    residual_norm: Real = 1,
    changed_columns: int = 1,
) -> Real:
    """Return the published epsilon of M1 for ``changed_columns`` differing columns, for comparison only (C13).

    The other columns span ``span_dim`` dimensions. If the rank exceeds ``span_dim``, this epsilon is not a valid bound.
    """
    # For one column, delta is divided equally among four events. For c = changed_columns columns that are replaced one
    # after the other, the result is c eps_i. Each replacement has eps_i and delta_i with delta = delta_i (1 + e^eps_i +
    # ... + e^((c-1) eps_i)).
    has_residual = rank > span_dim
    m = mp.sqrt(min(span_dim, rank))
    mu = gaussian_mu(noise_multiplier) / mp.sqrt(changed_columns)
    # eps_R is the loss of Theorem 1 in d - k dimensions at rank r - k (Lemma 2).
    shape = dim - span_dim, rank - span_dim

    def link(delta: Real) -> Real:
        part = delta / (4 if has_residual else 2)
        t = mp.sqrt(2 * mp.log(2 / part))
        # eps_R + sqrt(2 ln(1.25/delta_C)) (1/r)(sqrt d + sqrt m + t)(sqrt m + t) mu, t = sqrt(2 ln(1/d0))
        gauss = mp.sqrt(2 * mp.log(mp.mpf("1.25") / part)) * (mp.sqrt(dim) + m + t) * (m + t) / rank
        misalignment = mp.mpf(residual_misalignment)
        loss = wishart.published_loss(*shape, misalignment, part, part) if has_residual else mp.mpf(0)
        return loss + gauss * mu

    delta, count = mp.mpf(delta), changed_columns
    if count == 1:
        return link(delta)

    # The root of eps_i(delta_i(x)) = x, for x = e^s.
    def excess(s: Real) -> Real:
        return link(delta / mp.fsum(mp.exp(i * mp.exp(s)) for i in range(count))) / mp.exp(s) - 1

    return count * mp.exp(find_root(excess, mp.log(link(delta)), mp.mpf("0.1")))


def residual_published(
    delta: Real,
    dim: int,
    rank: int,
    noise_multiplier: Real,
    residual_misalignment: Real,
    span_dim: int,
    split: Real = "even",
) -> Real:
    """Return the published epsilon of M1 from the residual of one differing column (Lemma 2).

    The residual is the part of the column orthogonal to the other columns, which span ``span_dim`` dimensions.
    """
    # Theorem 1 of arXiv 2601.21719, with dimension and rank reduced by span_dim
    return wishart.quantile(delta, dim - span_dim, rank - span_dim, residual_misalignment, split)


# ``mechanism.bound -> delta(epsilon, **parameters)``
DELTAS: dict[str, Function] = {
    "m1.known-projection": known_projection,
    "m1.known-projection-rank1": known_projection_rank1,
    "m1.operator-norm": operator_norm,
    "m1.secret-projection": secret_projection,
    "m1.column-exact": column_exact,
    "m1.residual": residual,
}

# ``mechanism.bound -> epsilon(delta, **parameters)``
EPSILONS: dict[str, Function] = {
    "m1.operator-norm": operator_norm_epsilon,
    "m1.operator-norm-published": operator_norm_published,
    "m1.column": column,
    "m1.column-published": column_published,
    "m1.residual-published": residual_published,
}

COARSE_DIGITS = {
    "m1.known-projection": 14,
    "m1.known-projection-rank1": 14,
    "m1.secret-projection": 14,
    "m1.column-exact": 14,
    "m1.residual": 20,
}
