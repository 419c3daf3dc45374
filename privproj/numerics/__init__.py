"""Floating-point arithmetic with stated error bounds: intervals, root finding, quadrature, special functions.

Each formula is implemented three times: in floats here and in the packages above (for results), in ball arithmetic in
an optional feature (for certificates), and in mpmath in :mod:`privproj.reference` (for tests). The three
implementations share no code.
"""
