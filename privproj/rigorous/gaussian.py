"""The Gaussian profile and its derivative in balls (C3).

The same functions stand in floats in :mod:`privproj.numerics.kernels` and :mod:`privproj.laws.squared_shift`, and in
mpmath in ``tests/reference/special.py`` and ``tests/reference/laws.py``.
"""

from flint import acb, arb

from privproj.rigorous.balls import ball_of_size, is_point


def delta(eps: arb, mu: arb) -> arb:
    """Return a ball that holds the Gaussian delta ``Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`` (C3)."""
    u = eps / mu - mu / 2
    half = arb(2).rsqrt()
    # Phi(-u) - e^eps Phi(-u - mu), u = eps/mu - mu/2, and Phi(-x) = erfc(x/sqrt 2)/2
    return ((u * half).erfc() - eps.exp() * ((u + mu) * half).erfc()) / 2


def delta_around(eps: arb, mu: acb) -> acb:
    """Return a ball that holds the Gaussian delta on a whole complex ball of ``mu``, for integration.

    With ``w = eps/mu + mu/2`` the second term is ``e^(-u^2/2) erfcx(w/sqrt 2)/2``, as ``w^2 - u^2 = 2 eps``; for ``Re w
    > 0`` its size is at most ``e^(-Re u^2/2) min(1, sqrt(2/pi) / Re w)/2``, and does not blow up with the ball.
    """
    if is_point(mu):
        return acb(delta(eps, mu.real))
    # u = eps/mu - mu/2, w = u + mu; erfc(u/sqrt 2)/2 and a ball of the size of the second term
    u, half = eps / mu - mu / 2, arb(2).rsqrt()
    reach = (u + mu).real.lower()
    if not reach > 0:
        return acb(arb.nan())
    size = (-u * u / 2).exp().abs_upper() / 2 * (1 / (reach * (arb.pi() / 2).sqrt())).min(arb(1))
    return (u * half).erfc() / 2 - ball_of_size(size)


def two_sided(eps: arb, mu: arb) -> arb:
    """Return a ball that holds ``T = Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)``, the two-sided tail (C3)."""
    half = arb(2).rsqrt()
    return (((eps / mu - mu / 2) * half).erfc() + ((eps / mu + mu / 2) * half).erfc()) / 2


def slope(eps: arb, x: arb) -> arb:
    """Return a ball that holds the slope ``h_eps'(x)`` of the Gaussian delta in the squared shift ``x > 0`` (C3)."""
    root = x.sqrt()
    u = root / 2 - eps / root
    # h'(x) = phi(sqrt(x)/2 - eps/sqrt(x)) / (2 sqrt(x))
    return (-u * u / 2).exp() / (2 * root * (2 * arb.pi()).sqrt())


def inflection(eps: arb) -> arb:
    """Return a ball that holds ``x0(eps) = 2 (sqrt(1 + eps^2) - 1)``, where ``h_eps`` turns concave (C3)."""
    # 2 (sqrt(1 + eps^2) - 1), without cancellation
    return 2 * eps * eps / (1 + (1 + eps * eps).sqrt())
