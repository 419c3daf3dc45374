"""Enclose the privacy profile of the Gaussian mechanism in ball arithmetic (C3)."""

from flint import arb


def delta(eps: arb, mu: arb) -> arb:
    """Return a ball that contains the delta of the Gaussian mechanism at ``eps`` (C3).

    ``mu`` is the sensitivity over the noise standard deviation.
    """
    # Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)
    u = eps / mu - mu / 2
    half = arb(2).rsqrt()
    # Phi(-u) - e^eps Phi(-u - mu), u = eps/mu - mu/2, and Phi(-x) = erfc(x/sqrt 2)/2
    return ((u * half).erfc() - eps.exp() * ((u + mu) * half).erfc()) / 2


def two_sided(eps: arb, mu: arb) -> arb:
    """Return a ball around ``P(|L| > eps)`` for the Gaussian privacy loss ``L`` (C3).

    ``mu`` is the sensitivity over the noise standard deviation.
    """
    # Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)
    half = arb(2).rsqrt()
    return (((eps / mu - mu / 2) * half).erfc() + ((eps / mu + mu / 2) * half).erfc()) / 2


def slope(eps: arb, x: arb) -> arb:
    """Return a ball that contains the derivative of the Gaussian delta in ``x`` (C3).

    ``x > 0`` is (sensitivity / noise standard deviation)^2.
    """
    root = x.sqrt()
    u = root / 2 - eps / root
    # h'(x) = phi(sqrt(x)/2 - eps/sqrt(x)) / (2 sqrt(x))
    return (-u * u / 2).exp() / (2 * root * (2 * arb.pi()).sqrt())


def inflection(eps: arb) -> arb:
    """Return a ball around the inflection point of the Gaussian delta in ``x`` (C3).

    ``x`` is (sensitivity / noise standard deviation)^2. The delta is concave in ``x`` above the inflection point.
    """
    # 2 (sqrt(1 + eps^2) - 1), without cancellation
    return 2 * eps * eps / (1 + (1 + eps * eps).sqrt())
