"""Prove results in ball arithmetic (C21: certificates).

Each formula is implemented three times, without shared code. The proofs do not depend on the floating-point code. That
code, with outward margins, computes the results, this package proves them with python-flint, and ``tests/reference``
(mpmath at any precision) tests both.

Every function takes and returns balls ``[mid +/- rad]``, which contain the exact value in spite of rounding. Two inputs
come from floating point, and no proof depends on them. The first is the discretization of a sum (its step, its ends,
the grid of a run), which determines how narrow a ball is. The second is the free parameters of a bound (``tau``, a
tangent point). Every admissible value of a free parameter proves a bound.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
