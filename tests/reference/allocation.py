"""Compute one epoch in which a record picks one of ``t`` batches at random, in mpmath (balls-in-bins).

With ``W = dP/dQ`` under ``Q`` and ``S = W_1 + ... + W_t`` of independent copies, the pair of the epoch is
``Pbar = (1/t) sum_i Q^(i-1) P Q^(t-i)`` and ``Q^t``, and ``dPbar/dQ^t = S/t``. So both directions are expected
excesses and shortfalls of a sum at a strike ``k``::

    remove:  H_s(Pbar || Q^t) = E (S/t - s)_+     = C(t s)/t,          C(k) = E (S - k)_+
    add:     H_s(Q^t || Pbar) = E (1 - s S/t)_+   = (s/t) B(t/s),      B(k) = E (k - S)_+ = C(k) - t + k

Two independent methods compute them: nested integrals over the batches (small ``t``), and the inversion of the
Laplace transform of ``W`` (any ``t``).
"""

import mpmath as mp

from privproj.reference.calculus import Function, Real, integrate_below
from privproj.reference.composition import gaussian_mu
from privproj.reference.special import gaussian_delta, normal_density, normal_tail

NEAR_NORMAL = 0.2  # shift 1/z below which the Laplace transform is integrated on the real line, with a vertical contour

TILT = 0.3  # radians: the angle of the contour of the inversion to the left otherwise


def gaussian_epoch_delta(epsilon: Real, noise_multiplier: Real, batches: int, order: str = "both") -> Real:
    """Return delta of one epoch of ``t = batches`` Gaussian releases, in the direction "remove", "add" or "both".

    ``W = e^(mu x - mu^2/2)`` with a standard normal ``x`` and ``mu = 1/z``; ``t = 1`` is the plain release.
    """
    eps, mu = mp.mpf(epsilon), gaussian_mu(noise_multiplier)
    if batches == 1:
        return gaussian_delta(eps, mu)
    return _in_order(eps, batches, order, lambda strike: lognormal_shortfall(strike, mu, batches))


def gaussian_epoch_delta_by_quadrature(epsilon: Real, noise_multiplier: Real, batches: int, order: str) -> Real:
    """Return :func:`gaussian_epoch_delta` by ``t - 1`` nested integrals, for ``t`` up to about 3."""
    mu = gaussian_mu(noise_multiplier)

    def shortfall(strike: Real) -> Real:
        return _lognormal_excess(strike, mu, batches) - batches + strike

    return _in_order(mp.mpf(epsilon), batches, order, shortfall)


def _in_order(eps: Real, batches: int, order: str, shortfall: Function) -> Real:
    """Return the hockey-stick divergence of a direction from ``B(k) = E (k - S)_+``, with guard digits in "remove"."""
    if order == "both":
        return max(_in_order(eps, batches, each, shortfall) for each in ("remove", "add"))
    s = mp.exp(eps)
    if order == "add":
        return s / batches * shortfall(batches / s)
    with mp.workdps(mp.mp.dps + 15):
        # E (S/t - s)_+ = 1 - s + E (s - S/t)_+
        s = mp.exp(eps)
        return 1 - s + shortfall(batches * s) / batches


def _lognormal_excess(strike: Real, mu: Real, count: int) -> Real:
    """Return ``C_n(k) = E (W_1 + ... + W_n - k)_+``, ``n = count``, by integration over each ``W`` in turn."""
    if strike <= 0:
        return count - strike
    if count == 1:
        return gaussian_delta(mp.log(strike), mu)
    edge = mp.log(strike) / mu + mu / 2

    def below(x: Real) -> Real:
        return normal_density(x) * _lognormal_excess(strike - mp.exp(mu * x - mu * mu / 2), mu, count - 1)

    # C_n(k) = E[C_(n-1)(k - W); W <= k] + E[W; W > k] + (n - 1 - k) P(W > k)
    above = normal_tail(edge - mu) + (count - 1 - strike) * normal_tail(edge)
    return integrate_below(below, edge) + above


def lognormal_shortfall(strike: Real, mu: Real, count: int) -> Real:
    """Return ``B(k) = E (k - W_1 - ... - W_n)_+``, ``n = count``, by inversion of ``L(theta) = E e^(-theta W)``.

    It is ``1/(2 pi i) int e^(theta k) L(theta)^n / theta^2 dtheta`` on a hyperbola ``theta = nu (1 + sin(i u - tilt))``
    through the saddle to the right of 0, by trapezoidal sums in ``u`` that are halved until two agree.
    """
    close = mp.mpf(10) ** (-mp.mp.dps - 2)
    # L is small if k is far below n, and its error is multiplied by n in L^n.
    with mp.workdps(mp.mp.dps + 10 + 2 * int(mp.log10(count))):
        mu, strike = mp.mpf(mu), mp.mpf(strike)
        tilt, transform = (mp.mpf(0), _transform) if mu < NEAR_NORMAL else (mp.mpf(TILT), _turned_transform(mu))
        nu = _saddle(strike, mu, count) / (1 - mp.sin(tilt))

        def integrand(u: Real) -> Real:
            theta = nu * (1 + mp.sin(mp.mpc(-tilt, u)))
            grown = mp.exp(theta * strike) * transform(theta, mu) ** count
            return mp.re(grown / theta**2 * nu * mp.cos(mp.mpc(-tilt, u))) / mp.pi

        return _settled_half_line(integrand, close)


def _saddle(strike: Real, mu: Real, count: int) -> Real:
    """Return an approximation of the positive ``theta`` that minimizes ``theta k + n ln L(theta) - 2 ln theta``."""
    with mp.workdps(10):
        transform = _transform if mu < NEAR_NORMAL else _turned_transform(mu)

        def height(s: Real) -> Real:
            return mp.exp(s) * strike + count * mp.log(mp.re(transform(mp.exp(s), mu))) - 2 * s

        s, stride = -mp.log(strike) - 2, mp.mpf(1) / 4
        while height(s + stride) < height(s):
            s += stride
        return mp.exp(s)


def _settled_half_line(f: Function, close: Real) -> Real:
    """Return ``int_0^inf f(u) du`` of an even ``f`` that decays faster than any exponential, by halved steps."""
    step = mp.mpf(1) / 4
    total = f(mp.mpf(0)) / 2 + _sum_until_negligible(f, step, step)
    for _ in range(12):
        last, step = step * total, step / 2
        total += _sum_until_negligible(f, step, 2 * step)
        if abs(step * total - last) <= close * abs(last):
            return step * total
    raise ArithmeticError("the sums of the inversion did not settle")


def _sum_until_negligible(f: Function, start: Real, stride: Real) -> Real:
    """Return ``sum_j f(start + stride j)``, up to where terms are negligible over a length of 1/2."""
    total = largest = small = mp.mpf(0)
    u = start
    while small < mp.mpf(1) / 2:
        term = f(u)
        total, largest = total + term, max(largest, abs(term))
        small = small + stride if abs(term) <= largest * mp.eps else mp.mpf(0)
        u += stride
    return total


def _turned_transform(mu: Real) -> Function:
    """Return :func:`_transform`, continued to the left, with the line of integration moved by ``i arg(theta)/mu``.

    Then ``L(theta) = e^(a^2/2) E[e^(i a x) e^(-|theta| W)]``, ``a = arg(theta)/mu``, without oscillation in ``W``.
    """
    largest = (mp.pi / 2 + TILT) / mu
    digits = mp.mp.dps + 5 + int(largest**2 / 4)
    with mp.workdps(digits):
        # |integrand| <= e^(y^2/2 + a y) at a distance y from the line, as long as mu y < pi/2.
        nats = digits * mp.log(10)
        reach, strip = mp.sqrt(2 * nats), min(mp.sqrt(2 * nats), mp.mpf("1.4") / mu)
        h = 2 * mp.pi * strip / (nats + strip**2 / 2 + largest * strip)
        places = [h * j for j in range(-int(reach / h) - 1, int(reach / h) + 2)]
        nodes = [(h * normal_density(x), mp.exp(mu * x - mu * mu / 2)) for x in places]

    def transform(theta: Real, mu: Real) -> Real:
        a, size = mp.arg(theta) / mu, abs(theta)
        with mp.workdps(digits):
            rotation, total = mp.expj(a * h), mp.mpc(0)
            factor = mp.expj(a * places[0])
            for weight, w in nodes:
                if size * w > nats:
                    break
                total += weight * mp.exp(-size * w) * factor
                factor *= rotation
            return mp.exp(a * a / 2) * total

    return transform


def _transform(theta: Real, mu: Real) -> Real:
    """Return ``L(theta) = E e^(-theta W)`` for ``Re theta >= 0``, by a trapezoidal sum."""
    nats = mp.mp.dps * mp.log(10) + 5
    reach = mp.sqrt(2 * nats)
    strip = min(reach, 1 / mu)
    # |integrand| <= e^(y^2/2 + |theta| W sin(mu y + |arg theta| - pi/2)) at a distance y from the line.
    rise = max(mp.mpf(0), mp.sin(mu * strip + abs(mp.arg(theta)) - mp.pi / 2))
    h = 2 * mp.pi * strip / (nats + strip**2 / 2 + abs(theta) * rise * mp.exp(mu * reach))
    count = int(reach / h) + 1
    return h * mp.fsum(
        normal_density(h * j) * mp.exp(-theta * mp.exp(mu * h * j - mu * mu / 2)) for j in range(-count, count + 1)
    )


def two_batches_delta(epsilon: Real, tail: Function, excess: Function, order: str = "both") -> Real:
    """Return delta of one epoch of two batches, for any release without infinite losses, from ``W = dP/dQ``.

    ``tail(w) = Q(W > w)`` and ``excess(w) = E (W - w)_+ = H_w(P || Q)``, for ``w > 0``.
    """

    # E (S - k)_+ = int_k^inf P(S > x) dx = 2 E(W - k)_+ + int_0^k tail(w) tail(k - w) dw, and the integral is even.
    def shortfall(strike: Real) -> Real:
        inner = 2 * integrate_below(
            lambda x: mp.exp(x) * tail(mp.exp(x)) * tail(strike - mp.exp(x)), mp.log(strike / 2)
        )
        return 2 * excess(strike) + inner - 2 + strike

    return _in_order(mp.mpf(epsilon), 2, order, shortfall)
