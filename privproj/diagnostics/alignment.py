"""Where the promise of the vector Wishart mechanism comes from: how aligned neighbouring vectors are."""

import math

from privproj.errors import InvalidParameter
from privproj.validation import probability, real, whole


def mean_misalignment(norm_bound: float, norm_floor: float, records: int) -> float:
    """``1 - rho <= 2 L^2 / (c0^2 n^2)`` for ``f(S) = g/|g|``, ``g`` the mean of ``n`` vectors of norm at most ``L``.

    Under replace ``|g - g'| <= 2L/n``, and ``|g|, |g'| >= c0 = norm_floor`` is a promise on the data: the chord of the
    unit vectors is at most ``|g - g'| / c0``, and ``1 - rho`` is half its square. Raises :class:`InvalidParameter`
    where that is no restriction (a misalignment of 2 or more).
    """
    bound = real("norm_bound", norm_bound, "a positive norm bound", 0.0, 1e100, open_low=True)
    floor = real("norm_floor", norm_floor, "a positive norm floor up to the norm bound", 0.0, bound, open_low=True)
    count = whole("records", records, "a whole number of records >= 1")
    found = 2.0 * (bound / floor / count) ** 2 * (1.0 + 1e-15)
    if found >= 2.0:
        raise InvalidParameter("norm_floor", norm_floor, f"a norm floor above norm_bound/records={bound / count:.4g}")
    return found


def preprocessed_misalignment(misalignment: float, gamma: float, dim: int, beta: float) -> float:
    """Misalignment of ``v + gamma u`` and ``v' + gamma u``, ``u`` uniform on the sphere: add ``beta`` to delta.

    ``1 - rho' = (1 - rho + 4 gamma t) / (1 + gamma^2 + 2 gamma t)``, ``t = sqrt((2/d) ln(8/beta))``, but for
    probability ``beta`` over ``u`` (2601.21719, Lemma 10; ``ln(4/beta)`` would do, as each of two inner products has
    two tails). The vector must be normalised again after the noise, and ``u`` drawn alike for all data. Raises
    :class:`InvalidParameter` where nothing is gained: that takes ``gamma > 2 t (1+rho)/(1-rho)``, not the condition
    printed in the paper.
    """
    m = real("misalignment", misalignment, "a misalignment from 0 to 2", 0.0, 2.0)
    size = real("gamma", gamma, "a positive noise norm gamma", 0.0, 1e100, open_low=True)
    t = math.sqrt(2.0 / whole("dim", dim, "a whole number dim >= 1") * math.log(8.0 / probability("beta", beta)))
    found = (m + 4.0 * size * t) / (1.0 + size * size + 2.0 * size * t) * (1.0 + 1e-15)
    if found >= min(m, 1.0):
        least = 2.0 * t * (2.0 - m) / m if m > 0.0 else math.inf
        raise InvalidParameter("gamma", gamma, f"a gamma above {least:.4g}: at this one the alignment is not raised")
    return found


def preprocessing_gain(misalignment: float, gamma: float, dim: int, beta: float) -> float:
    """``rho' - rho`` of :func:`preprocessed_misalignment`: what is gained in alignment, above 0."""
    return misalignment - preprocessed_misalignment(misalignment, gamma, dim, beta)


def descent_condition(dim: int, rank: int, failure: float) -> float:
    """``((sqrt r + sqrt d + u)/(sqrt r - sqrt d - u))^2``, ``u = sqrt(2 ln(1/b))``: condition number of the matrix.

    It exceeds ``lambda_max/lambda_min`` of ``M ~ W_d(I/r, r)`` with probability at least ``1 - 2b``, and says by how
    much gradient descent along ``M grad`` may converge more slowly. Raises :class:`InvalidParameter` where the rank is
    too small for a finite factor.
    """
    size, count = whole("dim", dim, "a whole number dim >= 1"), whole("rank", rank, "a whole number rank >= 1")
    edge = math.sqrt(size) + math.sqrt(2.0 * math.log(1.0 / probability("failure", failure)))
    root = math.sqrt(count)
    if root <= edge:
        raise InvalidParameter("rank", rank, f"a rank above {math.ceil(edge**2)} for these dim and failure")
    return ((root + edge) / (root - edge)) ** 2 * (1.0 + 1e-14)
