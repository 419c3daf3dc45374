"""Enclose the Gaussian profile and its derivative in ball arithmetic.

Claim C3 (the Gaussian profile) of docs/proofs.md proves the formulas. ``h_eps(x)`` is the Gaussian delta at the squared
sensitivity over noise ``x``, and ``mu = sqrt(x)``. :mod:`privproj.numerics.special` and
:mod:`privproj.distributions.squared_sensitivity` have the same functions in floats.
:mod:`privproj.reference.special` and :mod:`privproj.reference.distributions` have them in mpmath.
"""

from flint import arb


def delta(eps: arb, mu: arb) -> arb:
    """Return a ball that contains the Gaussian delta at ``mu`` (C3).

    ``mu`` is the sensitivity over the noise. The value is ``Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``.
    """
    u = eps / mu - mu / 2
    half = arb(2).rsqrt()
    # Phi(-u) - e^eps Phi(-u - mu), u = eps/mu - mu/2, and Phi(-x) = erfc(x/sqrt 2)/2
    return ((u * half).erfc() - eps.exp() * ((u + mu) * half).erfc()) / 2


def two_sided(eps: arb, mu: arb) -> arb:
    """Return a ball that contains the two-sided Gaussian tail at ``mu`` (C3).

    ``mu`` is the sensitivity over the noise. The value is ``Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2)``, which is the
    probability that the loss exceeds ``eps`` in absolute value.
    """
    half = arb(2).rsqrt()
    return (((eps / mu - mu / 2) * half).erfc() + ((eps / mu + mu / 2) * half).erfc()) / 2


def slope(eps: arb, x: arb) -> arb:
    """Return a ball that contains the derivative of the Gaussian delta (C3).

    The derivative is ``h_eps'(x)`` at ``x > 0``, where ``h_eps(x)`` is the Gaussian delta at the squared sensitivity
    over noise ``x``.
    """
    root = x.sqrt()
    u = root / 2 - eps / root
    # h'(x) = phi(sqrt(x)/2 - eps/sqrt(x)) / (2 sqrt(x))
    return (-u * u / 2).exp() / (2 * root * (2 * arb.pi()).sqrt())


def inflection(eps: arb) -> arb:
    """Return a ball that contains the inflection point ``x0`` of the Gaussian delta (C3).

    The inflection point is ``x0(eps) = 2 (sqrt(1 + eps^2) - 1)``. With ``x``, the square of sensitivity over
    noise, the Gaussian delta is concave in ``x`` for ``x > x0``.
    """
    # 2 (sqrt(1 + eps^2) - 1), without cancellation
    return 2 * eps * eps / (1 + (1 + eps * eps).sqrt())
