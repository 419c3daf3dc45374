"""Prove results in ball arithmetic (python-flint), independently of the floating-point code (C21).

Each formula is implemented three times, without shared code. The floating-point code with outward margins computes the
results, this package proves them, and ``tests/reference`` (mpmath at any precision) tests both.

Every function takes and returns balls ``[mid +/- rad]``, which contain the exact value in spite of rounding. Two inputs
come from floating point, and no proof depends on them. The first is the discretization of a sum (its step, its ends,
the grid of a run), which determines how narrow a ball is. The second is the free parameters of a bound (``tau``, the
tangent), for which every admissible value proves a bound.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
