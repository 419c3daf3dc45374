"""Prove results in ball arithmetic (C21: certificates).

Each formula is implemented three times, without shared code. The proofs do not depend on the floating-point code. That
code computes the results with outward margins. This package proves the results with python-flint.
:mod:`privproj.reference` has the formulas in mpmath at any precision, and tests compare both with it.

Every function takes and returns balls ``[mid +/- rad]``, which contain the exact value in spite of rounding. Two kinds
of input come from floating point. A proof is valid for every admissible input of these kinds. The first kind is the
discretization of a sum, such as the step and the ends of a grid, which determines how narrow a ball is. The second kind
is the free parameters of a bound, such as the point at which a tangent bounds the Gaussian profile.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
