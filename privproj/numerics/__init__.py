"""Floating-point functions with stated error bounds.

Each formula is implemented three times, without shared code: in floats in this package and its callers (for results),
in ball arithmetic in an optional feature (for certificates), and in mpmath in :mod:`privproj.reference` (for tests).
"""
