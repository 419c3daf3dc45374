"""Incomplete gamma functions in balls: real ones to the last bit, and bounds of their size off the real line."""

from flint import acb, arb, ctx

from privproj.errors import PrecisionLimit

MOST_TERMS = 1_000_000
"""Terms of a series after which the certificate is refused. Contract."""


def lower(k: arb, z: arb) -> arb:
    """``P(k, z) = z^k e^-z / Gamma(k+1) sum_j z^j / (k+1)_j``; a geometric series bounds what is left out.

    Near and above ``k`` it is the complement of Arb's own ``Q(k, z)``.
    """
    if not z > 0:
        return arb(0).union(lower(k, z.upper())) if z.upper() > 0 else arb(0)
    if z > k - 4 * k.sqrt():
        return 1 - z.gamma_upper(k, regularized=1)
    return (k * z.log() - z - (k + 1).lgamma()).exp() * _lower_gamma_series(k, z)


def _lower_gamma_series(k: arb, z: arb) -> arb:
    """``sum_j z^j / (k+1)_j`` for ``z`` not above ``k``: its terms fall."""
    total = term = arb(1)
    least = arb(2) ** -ctx.prec
    for j in range(1, MOST_TERMS):
        ratio = z / (k + j)
        term = term * ratio
        total = total + term
        if j % 16 == 0 and term < least:
            return total + arb(0).union(term * ratio / (1 - ratio))
    raise PrecisionLimit(f"expected a series of at most {MOST_TERMS} terms, got shape {float(k):.3g}")


def upper(k: arb, z: arb) -> arb:
    """``Q(k, z) = 1 - P(k, z)``."""
    return z.gamma_upper(k, regularized=1) if z > k else 1 - lower(k, z)


def upper_size(k: arb, z: acb) -> arb:
    """``|Q(k, z)| <= e^(|z| - Re z) Q(k, |z|)`` for ``Re z > 0, k >= 1`` (integrate along ``z + s``).

    Chernoff's bound stands for the right side above ``k``.
    """
    size = z.abs_lower()
    return _skew_factor(z) * (_chernoff_bound(k, size) if size > k else arb(1))


def lower_size(k: arb, z: acb) -> arb:
    """``|P(k, z)| <= e^(|z| - Re z) P(k, |z|)`` for ``Re z > 0`` (the series, term by term); Chernoff below ``k``."""
    size = z.abs_upper()
    return _skew_factor(z) * (_chernoff_bound(k, size) if size < k else arb(1))


def _chernoff_bound(k: arb, y: arb) -> arb:
    """``e^-(y - k - k ln(y/k))``, a bound of the tail of ``Gamma(k)`` beyond ``y``."""
    return (k + k * (y / k).log() - y).exp() if y > 0 else arb(0)


def _skew_factor(z: acb) -> arb:
    """``e^(|z| - Re z)`` from above: ``|z| - Re z = Im^2 / (|z| + Re z)``."""
    aside = z.imag.abs_upper()
    return (aside * aside / (z.abs_lower() + z.real.lower())).exp()
