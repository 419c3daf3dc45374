"""Floating-point arithmetic with an outward margin: enclosures, searches, quadratures, special functions.

One formula stands in three arithmetics on purpose, which share no code: *numerics* (floats with an outward margin)
gives the answers, *rigorous* (balls) proves them, *reference* (mpmath at any precision) tests them.
"""
