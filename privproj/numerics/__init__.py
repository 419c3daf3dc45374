"""Floating-point arithmetic with an outward margin: enclosures, searches, quadratures, special functions.

One formula stands in three arithmetics on purpose: *numerics* and the rooms on top of it (floats with an outward
margin) give the answers, *rigorous* (balls) proves them, ``tests/reference`` (mpmath at any precision) tests them. The
three share no formula's code.
"""
