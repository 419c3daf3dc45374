"""Floating-point arithmetic with stated error terms: intervals, root finding, quadrature, special functions.

Each formula is implemented in three arithmetics: in floats here and in the packages above (results), in ball arithmetic
in an optional feature (certificates), and in mpmath in ``tests/reference`` (tests). The three implementations share no
code.
"""
