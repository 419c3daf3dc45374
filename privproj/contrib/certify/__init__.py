"""Prove epsilon, delta or the noise multiplier in ball arithmetic (C21).

Each formula is implemented three times, without shared code. Results are computed in floating point, with outward
margins. This package proves results with python-flint. Tests compare both with :mod:`privproj.reference`, which uses
mpmath.

Every function takes and returns balls ``[mid +/- rad]``, which contain the exact value in spite of rounding.
Discretization grids and free parameters of bounds are chosen in floating point. A proof is valid for every admissible
choice, which only determines how tight the proof is.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
