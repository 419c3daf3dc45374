"""Bound the misalignment of vectors, and the condition number of a Wishart matrix.

These numbers are not privacy guarantees. The alignment ``rho`` of two vectors is the cosine of the angle between them,
and ``1 - rho`` is the misalignment.
"""

import math

from privproj.errors import InvalidParameterError
from privproj.parameters import integer, probability, real

__all__ = ["descent_condition", "mean_misalignment", "preprocessed_misalignment", "preprocessing_gain"]


def mean_misalignment(norm_bound: float, norm_floor: float, records: int) -> float:
    """Compute a bound on the misalignment of a normalized mean under replace.

    The misalignment ``1 - rho`` is at most ``2 L^2 / (c0^2 n^2)``, where ``rho`` is the cosine of neighboring means.

    The normalized mean is ``g/|g|``, where ``g`` is the mean of ``n`` vectors of norm at most ``L``. Let ``g'`` be the
    mean after one vector is replaced; then ``|g - g'| <= 2L/n``. The norms ``|g|`` and ``|g'|`` are assumed to be at
    least ``c0``. So the distance of the unit vectors is at most ``|g - g'| / c0``, and ``1 - rho`` is half the square
    of this distance.

    Args:
        norm_bound: ``L``, the norm to which every vector is clipped, above 0 and up to 1e100.
        norm_floor: ``c0``, the least norm of the mean, above 0 and at most ``norm_bound``.
        records: ``n``, the number of records, at least 1.

    Returns:
        The misalignment ``1 - rho``, a number above 0 and below 2, rounded up.

    Raises:
        InvalidParameterError: A value is outside its range, or the bound is at least 2, which every pair satisfies.

    >>> from privproj.mechanisms.wishart.alignment import mean_misalignment
    >>> f"{mean_misalignment(norm_bound=1.0, norm_floor=0.5, records=1000):.4g}"
    '8e-06'
    """
    bound = real("norm_bound", norm_bound, "a number above 0", 0.0, 1e100, open_low=True)
    floor = real("norm_floor", norm_floor, "a number above 0 and at most norm_bound", 0.0, bound, open_low=True)
    count = integer("records", records, "an integer >= 1")
    # 1 - rho <= 2 L^2 / (c0^2 n^2).
    misalignment = 2.0 * (bound / floor / count) ** 2 * (1.0 + 1e-15)
    if misalignment >= 2.0:
        raise InvalidParameterError("norm_floor", norm_floor, f"above norm_bound / records = {bound / count:.4g}")
    return misalignment


def preprocessed_misalignment(misalignment: float, gamma: float, dim: int, beta: float) -> float:
    """Compute a bound on the misalignment of unit vectors plus a common random vector.

    The new vectors are ``v + gamma u`` and ``v' + gamma u``, where ``u`` is uniform on the unit sphere. ``1 - rho'`` is
    their misalignment, one minus the cosine of their angle. The bound is
    ``1 - rho' = (1 - rho + 4 gamma t) / (1 + gamma^2 + 2 gamma t)`` with ``t = sqrt((2/d) ln(8/beta))``. It fails with
    probability at most ``beta``, so add ``beta`` to delta (arXiv 2601.21719, Lemma 10). ``ln(4/beta)`` in place of
    ``ln(8/beta)`` would suffice, because the proof excludes four tails: two of each of two inner products. The new
    vectors must be normalized before they are used, and the distribution of ``u`` must not depend on the data.

    Args:
        misalignment: ``1 - rho``, from 0 to 2, where ``rho`` is the cosine of the unit vectors ``v`` and ``v'``.
        gamma: The norm of the noise that is added, above 0 and up to 1e100.
        dim: ``d``, the length of the vectors, at least 1.
        beta: The probability with which the bound may fail, above 0 and below 1.

    Returns:
        The misalignment ``1 - rho'`` after preprocessing, rounded up.

    Raises:
        InvalidParameterError: A value is outside its range, or the alignment does not improve. It improves if ``gamma``
            is above ``2 t (1+rho)/(1-rho)``, which differs from the condition printed in the paper.

    >>> from privproj.mechanisms.wishart.alignment import preprocessed_misalignment
    >>> round(preprocessed_misalignment(0.5, gamma=10.0, dim=10**6, beta=1e-6), 6)
    0.007175
    """
    m = real("misalignment", misalignment, "a number from 0 to 2", 0.0, 2.0)
    size = real("gamma", gamma, "a number above 0", 0.0, 1e100, open_low=True)
    # t = sqrt((2/d) ln(8/beta)).
    t = math.sqrt(2.0 / integer("dim", dim, "an integer >= 1") * math.log(8.0 / probability("beta", beta)))
    # 1 - rho' = (1 - rho + 4 gamma t) / (1 + gamma^2 + 2 gamma t) (2601.21719, Lemma 10).
    upper = (m + 4.0 * size * t) / (1.0 + size * size + 2.0 * size * t) * (1.0 + 1e-15)
    if upper >= min(m, 1.0):
        least = 2.0 * t * (2.0 - m) / m if m > 0.0 else math.inf
        raise InvalidParameterError("gamma", gamma, f"above {least:.4g}, so that preprocessing raises the alignment")
    return upper


def preprocessing_gain(misalignment: float, gamma: float, dim: int, beta: float) -> float:
    """Compute the increase ``rho' - rho`` of a cosine by adding a random vector.

    ``rho`` is the cosine of two unit vectors, and ``rho'`` is the cosine after the vector is added to both. The result
    is a lower bound, from :func:`preprocessed_misalignment`.

    Args:
        misalignment: ``1 - rho``, from 0 to 2, where ``rho`` is the cosine of the unit vectors ``v`` and ``v'``.
        gamma: The norm of the noise that is added, above 0 and up to 1e100.
        dim: ``d``, the length of the vectors, at least 1.
        beta: The probability with which the bound may fail, above 0 and below 1; add it to delta.

    Returns:
        The increase, a number above 0.

    Raises:
        InvalidParameterError: A value is outside its range, or the alignment does not improve.

    >>> from privproj.mechanisms.wishart.alignment import preprocessing_gain
    >>> round(preprocessing_gain(0.5, gamma=10.0, dim=10**6, beta=1e-6), 6)
    0.492825
    """
    return misalignment - preprocessed_misalignment(misalignment, gamma, dim, beta)


def descent_condition(dim: int, rank: int, failure: float) -> float:
    """Compute a bound on the condition number of a Wishart matrix.

    The condition number is the ratio ``lambda_max/lambda_min`` of the extreme eigenvalues of ``M ~ W_d(I/r, r)``. If
    the condition number is large, descent along ``M grad`` may be slow. The bound is
    ``((sqrt r + sqrt d + u)/(sqrt r - sqrt d - u))^2`` with ``u = sqrt(2 ln(1/b))``. It fails with probability at most
    ``2b``.

    Args:
        dim: ``d``, the dimension of the gradient, at least 1.
        rank: ``r``, the degrees of freedom of the matrix, above ``(sqrt d + sqrt(2 ln(1/b)))^2``.
        failure: ``b``, half of the probability with which the bound may fail, above 0 and below 1.

    Returns:
        The bound of the condition number, above 1.

    Raises:
        InvalidParameterError: A value is outside its range, or the rank is too small for a finite bound.

    >>> from privproj.mechanisms.wishart.alignment import descent_condition
    >>> round(descent_condition(dim=10, rank=1000, failure=1e-3), 4)
    2.4213
    """
    size, count = integer("dim", dim, "an integer >= 1"), integer("rank", rank, "an integer >= 1")
    # edge = sqrt d + u, u = sqrt(2 ln(1/b)).
    edge = math.sqrt(size) + math.sqrt(2.0 * math.log(1.0 / probability("failure", failure)))
    root = math.sqrt(count)
    if root <= edge:
        raise InvalidParameterError("rank", rank, f"above {math.ceil(edge**2)} for this dim and failure")
    # ((sqrt r + sqrt d + u)/(sqrt r - sqrt d - u))^2.
    return ((root + edge) / (root - edge)) ** 2 * (1.0 + 1e-14)
