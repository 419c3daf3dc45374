"""The Gaussian profile and its derivative in balls."""

from flint import acb, arb

from privproj.rigorous.balls import ball_of_size, is_point


def delta(eps: arb, mu: arb) -> arb:
    """``Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``, the Gaussian delta (C3)."""
    u = eps / mu - mu / 2
    half = arb(2).rsqrt()
    return ((u * half).erfc() - eps.exp() * ((u + mu) * half).erfc()) / 2


def delta_around(eps: arb, mu: acb) -> acb:
    """The profile on a complex ball of ``mu``.

    With ``w = eps/mu + mu/2`` the second term is ``e^(-u^2/2) erfcx(w/sqrt 2)/2``, as ``w^2 - u^2 = 2 eps``; for
    ``Re w > 0`` its size is at most ``e^(-Re u^2/2) min(1, sqrt(2/pi) / Re w)/2``, and does not blow up with the ball.
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
    """``Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)``."""
    half = arb(2).rsqrt()
    return (((eps / mu - mu / 2) * half).erfc() + ((eps / mu + mu / 2) * half).erfc()) / 2


def slope(eps: arb, x: arb) -> arb:
    """``h_eps'(x) = phi(sqrt(x)/2 - eps/sqrt(x)) / (2 sqrt(x))``."""
    root = x.sqrt()
    u = root / 2 - eps / root
    return (-u * u / 2).exp() / (2 * root * (2 * arb.pi()).sqrt())


def inflection(eps: arb) -> arb:
    """``x0(eps) = 2 (sqrt(1 + eps^2) - 1)``."""
    return 2 * eps * eps / (1 + (1 + eps * eps).sqrt())
