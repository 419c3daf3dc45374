"""Prove epsilon, delta or the noise multiplier in ball arithmetic (C21).

A ball ``[mid +/- rad]`` of python-flint contains the exact value of a number in spite of rounding. Each formula is
implemented three times without shared code: in ball arithmetic in this package, in floating point for results, and with
mpmath in :mod:`privproj.reference` for tests.

Discretization grids and free parameters of bounds are chosen in floating point. Every admissible choice gives a valid
proof, and only determines how tight the proof is.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
